//! Names for answers, requests, files and calls: none comes twice.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderName;

/// Has the name of a request, in it and in its answer.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub struct Ids {
    /// Random per process: names of answers do not repeat over restarts. Nothing secret rests on it.
    boot: u64,
    next: AtomicU64,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { boot: RandomState::new().build_hasher().finish(), next: AtomicU64::new(0) }
    }
}

impl Ids {
    /// A name that no other answer has.
    pub fn response_id(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.unique())
    }

    /// A name for a call of a tool: nine letters and digits, which is what the strictest templates (Mistral's) take.
    pub fn call_id(&self) -> String {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        // A walk over all numbers of nine such digits, from a place of this process's own: none comes twice.
        const COUNT: u64 = 36u64.pow(9);
        let step = self.next.fetch_add(1, Ordering::Relaxed);
        let mut number = (self.boot.wrapping_add(step.wrapping_mul(60_466_176_000_001))) % COUNT;
        let digit = |_| {
            let digit = DIGITS[(number % 36) as usize];
            number /= 36;
            char::from(digit)
        };
        (0..9).map(digit).collect()
    }

    /// A name for a request that brought none.
    pub fn request_id(&self) -> String {
        format!("req-{}", self.unique())
    }

    pub fn unique(&self) -> String {
        format!("{:016x}{:x}", self.boot, self.next.fetch_add(1, Ordering::Relaxed))
    }
}
