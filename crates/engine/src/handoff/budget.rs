//! A byte budget between two threads: a sender beyond it waits, or tries again.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A bound on bytes that are under way. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

/// Bytes that count as long as they exist.
#[derive(Debug)]
pub(crate) struct BudgetedBytes {
    bytes: Vec<u8>,
    weight: usize,
    budget: Budget,
}

impl Budget {
    /// Of `most` bytes; what alone is larger has a turn when nothing else is under way.
    pub(crate) fn of(most: usize) -> Budget {
        Budget(Arc::new(Inner { most, used: Mutex::new(0), freed: Condvar::new() }))
    }

    fn used(&self) -> MutexGuard<'_, usize> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, used: usize, more: usize) -> bool {
        used == 0 || used + more <= self.0.most
    }

    /// Room for `len` bytes, or `None`.
    pub(crate) fn try_take(&self, len: usize) -> Option<BudgetedBytes> {
        let mut used = self.used();
        self.fits(*used, len).then(|| {
            *used += len;
            BudgetedBytes { bytes: vec![0; len], weight: len, budget: self.clone() }
        })
    }

    /// Waits for room, no longer than `most`.
    pub(crate) fn take(&self, len: usize, most: Duration) -> Option<BudgetedBytes> {
        let until = Instant::now() + most;
        let mut used = self.used();
        while !self.fits(*used, len) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            (used, _) = self.0.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner);
        }
        *used += len;
        Some(BudgetedBytes { bytes: vec![0; len], weight: len, budget: self.clone() })
    }
}

impl BudgetedBytes {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The bytes, which count no more.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Deref for BudgetedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BudgetedBytes {
    fn drop(&mut self) {
        *self.budget.used() -= self.weight;
        self.budget.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_makes_room() {
        let budget = Budget::of(10);
        let first = budget.try_take(6).expect("there is room");
        assert!(budget.try_take(5).is_none(), "11 bytes are more than 10");
        assert!(budget.take(5, Duration::ZERO).is_none());
        let second = budget.try_take(4).expect("10 are not");
        drop(first);
        assert_eq!(second.into_bytes(), vec![0; 4]);
        assert!(budget.try_take(100).is_some(), "what alone is too large has a turn of its own");
    }

    #[test]
    fn who_waits_is_woken() {
        let budget = Budget::of(10);
        let held = budget.try_take(10).expect("there is room");
        let waiting = budget.clone();
        let thread = std::thread::spawn(move || waiting.take(3, Duration::from_secs(60)).map(|bytes| bytes.len()));
        drop(held);
        assert_eq!(thread.join().expect("it does not panic"), Some(3));
    }
}
