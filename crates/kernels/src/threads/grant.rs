//! Admission of workers: the number of threads follows the CPU time that the machine grants.
//!
//! ```text
//! caller  |==|....waits....|==|....waits....|  barred: |====|====|====|  a trial: |==|...  barred again, longer
//! worker  |==|  no core    |==|  no core    |                                     |==|
//! ```
//! A region ends when all entered threads have left, so one that loses its core inside keeps the others waiting. With
//! `n` threads, one less takes at most `n / (n - 1)` times as long and does not wait for it; so a worker that keeps the
//! others waiting for more than a little less than `1 / n` of the time ([`BRINGS`]) is barred for a while. Then it gets
//! another trial, after longer and longer times if that ends the same way. The set of threads changes no bits.
//!
//! Only waits that outlast the gaps of a quiet machine are reported, so a quiet machine has no overhead from this.

/// Time constant in nanoseconds: a wait decays by two thirds.
const MEMORY: f64 = 32e6;
/// A worker contributes less than its share, in regions of microseconds half of it: one that shares its core with
/// another program, and so is away half of the time, costs two threads of a small model twice its contribution, and a
/// large model nothing. Between the two, barring it at this part of `1 / n` is wrong by a tenth at most.
const BRINGS: f64 = 1.0 / 1.2;
/// First time for which a worker is barred in nanoseconds: the minimum, its multiple of the caused wait (cores shared
/// by many have long turns), and the maximum of any.
const FIRST: u64 = 32_000_000;
const FIRST_WAITS: u64 = 4;
const LONGEST: u64 = 2_048_000_000;

/// Admission state of one worker. Times are nanoseconds of any clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Grant {
    /// Time that others waited for it, decayed over [`MEMORY`].
    waited: f64,
    /// Time of the last decay.
    at: u64,
    /// Duration of the next bar.
    next: u64,
    /// Start of its last trial.
    since: u64,
}

impl Grant {
    /// Records that the others waited `nanos` for it until `now`. `Some`: it is barred until then. `threads`: of the region.
    pub(super) fn waited(&mut self, now: u64, nanos: u64, threads: usize) -> Option<u64> {
        self.forget(now);
        self.waited += nanos as f64;
        if self.waited * threads as f64 <= MEMORY * BRINGS {
            return None;
        }
        let was_right = self.next > 0 && now - self.since < 2 * self.next;
        let first = FIRST.max(nanos.saturating_mul(FIRST_WAITS));
        self.next = if was_right { first.max(self.next * 2) } else { first }.min(LONGEST);
        self.since = now + self.next;
        Some(self.since)
    }

    /// Starts another trial: the recorded wait is halved, so that a failing trial is short.
    pub(super) fn tries_again(&mut self, now: u64, threads: usize) {
        (self.waited, self.at, self.since) = (MEMORY / threads as f64 / 2.0, now, now);
    }

    fn forget(&mut self, now: u64) {
        self.waited *= (-(now.saturating_sub(self.at) as f64) / MEMORY).exp();
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Two threads, one of which has its core for `on` of every `on + off` milliseconds, for `seconds`. Returns the share
    /// of time that it was barred, of the time in which one thread alone would have been at least as fast.
    fn barred(on: u64, off: u64, seconds: u64) -> f64 {
        let (mut grant, mut now, mut without) = (Grant::default(), 0, 0);
        let end = seconds * 1000 * MS;
        while now < end {
            now += (on + off) * MS;
            if let Some(until) = grant.waited(now, off * MS, 2) {
                without += until - now;
                now = until;
                grant.tries_again(now, 2);
            }
        }
        without as f64 / end as f64
    }

    #[test]
    fn a_worker_that_is_waited_for_most_of_the_time_stays_out() {
        for (on, off) in [(3, 12), (1, 8), (3, 50)] {
            let share = barred(on, off, 20);
            assert!(share > 0.9, "{on} of {}: out for {share}", on + off);
        }
    }

    #[test]
    fn a_worker_that_brings_more_than_it_costs_stays_in() {
        for (on, off) in [(12, 3), (50, 3), (8, 4)] {
            assert_eq!(barred(on, off, 20), 0.0, "{on} of {}", on + off);
        }
    }

    #[test]
    fn one_bad_moment_costs_little_and_the_past_is_forgotten() {
        let mut grant = Grant::default();
        assert_eq!(grant.waited(100 * MS, 10 * MS, 2), None, "one wait of a scheduler's slices");
        assert_eq!(grant.waited(400 * MS, 10 * MS, 2), None, "another, long after");
        assert_eq!(grant.waited(420 * MS, 20 * MS, 2), Some((420 + 80) * MS));
        grant.tries_again(500 * MS, 2);
        // It did well for a second: the next bar is as long as the first.
        assert_eq!(grant.waited(1500 * MS, 20 * MS, 2), Some((1500 + 80) * MS));
        grant.tries_again(1580 * MS, 2);
        assert_eq!(grant.waited(1600 * MS, 16 * MS, 2), Some((1600 + 160) * MS), "twice as long");
    }

    #[test]
    fn of_many_threads_one_that_is_late_costs_more() {
        let share = |threads| {
            let mut grant = Grant::default();
            (1..100).any(|round| grant.waited(round * 20 * MS, 3 * MS, threads).is_some())
        };
        assert_eq!([share(2), share(4), share(16)], [false, false, true]);
    }
}
