//! Names of which each is worked on once at a time, and few at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The names that are worked on; clones are of the same.
#[derive(Clone, Default)]
pub struct Claims(Arc<Mutex<BTreeSet<String>>>);

/// A name that is worked on until this is dropped.
pub struct Claim(Claims, String);

/// Why a name is not claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclaimed {
    /// It is worked on already.
    Taken,
    /// As many as may be are.
    Full,
}

impl Claims {
    /// Claims a name, if fewer than `most` are worked on.
    pub fn claim(&self, name: &str, most: usize) -> Result<Claim, Unclaimed> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(name) {
            return Err(Unclaimed::Taken);
        }
        if names.len() >= most {
            return Err(Unclaimed::Full);
        }
        names.insert(name.to_owned());
        drop(names);
        Ok(Claim(self.clone(), name.to_owned()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}
