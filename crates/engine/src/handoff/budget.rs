//! A byte budget between two threads: a sender beyond it waits, or tries again.

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

/// Bytes that count as long as this exists.
#[derive(Debug)]
pub(crate) struct Budgeted<T = Vec<u8>> {
    pub(crate) bytes: T,
    _share: Share,
}

#[derive(Debug)]
struct Share {
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

    fn count(&self, used: &mut usize, len: usize) -> Share {
        *used += len;
        Share { weight: len, budget: self.clone() }
    }

    /// Room for `len` bytes as `hold` holds them, or `None`.
    pub(crate) fn try_take<T>(&self, len: usize, hold: impl FnOnce(Vec<u8>) -> T) -> Option<Budgeted<T>> {
        let mut used = self.used();
        self.fits(*used, len).then(|| Budgeted { bytes: hold(vec![0; len]), _share: self.count(&mut used, len) })
    }

    /// Waits for room, no longer than `most`.
    pub(crate) fn take(&self, len: usize, most: Duration) -> Option<Budgeted> {
        let until = Instant::now() + most;
        let mut used = self.used();
        while !self.fits(*used, len) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            (used, _) = self.0.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner);
        }
        Some(Budgeted { bytes: vec![0; len], _share: self.count(&mut used, len) })
    }
}

impl Drop for Share {
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
        let first = budget.try_take(6, Vec::from).expect("there is room");
        assert!(budget.try_take(5, Vec::from).is_none(), "11 bytes are more than 10");
        assert!(budget.take(5, Duration::ZERO).is_none());
        let second = budget.try_take(4, Vec::from).expect("10 are not");
        drop(first);
        assert_eq!(second.bytes, vec![0; 4]);
        drop(second);
        assert!(budget.try_take(100, Vec::from).is_some(), "what alone is too large has a turn of its own");
    }

    #[test]
    fn who_waits_is_woken() {
        let budget = Budget::of(10);
        let held = budget.try_take(10, Vec::from).expect("there is room");
        let waiting = budget.clone();
        let thread =
            std::thread::spawn(move || waiting.take(3, Duration::from_secs(60)).map(|taken| taken.bytes.len()));
        drop(held);
        assert_eq!(thread.join().expect("it does not panic"), Some(3));
    }
}
