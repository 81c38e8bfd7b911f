//! When the KV cache will be full, at the rate of the last seconds.
//!
//! The trend of the used blocks is an exponential average of their rate of growth (as the trend in Holt, ONR Memorandum
//! 52, 1957), by time and not by steps, so that short steps do not count more than long ones.

use protocol::Nanos;

/// Seconds in which an old trend loses all but a third of its weight.
const MEMORY_S: f64 = 10.0;
/// Blocks per second below which nothing grows.
const LEAST_RATE: f64 = 0.01;

/// Used blocks and their trend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheFillForecast {
    at: Nanos,
    used: usize,
    /// Blocks per second.
    rate: f64,
}

impl CacheFillForecast {
    /// The number of blocks in use at `now`.
    pub fn observe(&mut self, now: Nanos, used: usize) {
        let seconds = now.since(self.at).as_secs_f64();
        if seconds <= 0.0 {
            self.used = used;
            return;
        }
        let grown = (used as f64 - self.used as f64) / seconds;
        self.rate = grown + (self.rate - grown) * (-seconds / MEMORY_S).exp();
        *self = CacheFillForecast { at: now, used, rate: self.rate };
    }

    /// Seconds until all of `total` blocks are in use; infinite if their number does not grow. What was last observed
    /// has stood since.
    pub fn seconds_to_full(&self, now: Nanos, total: usize) -> f64 {
        let mut then = *self;
        then.observe(now, self.used);
        match total.saturating_sub(then.used) {
            0 => 0.0,
            _ if then.rate < LEAST_RATE => f64::INFINITY,
            left => left as f64 / then.rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Used blocks at seconds, then when it will be full of 1000, asked at a second.
    fn forecast(observed: &[(f64, usize)], at: f64) -> f64 {
        let nanos = |seconds: f64| Nanos((seconds * 1e9) as u64);
        let mut fill = CacheFillForecast::default();
        observed.iter().for_each(|&(seconds, used)| fill.observe(nanos(seconds), used));
        fill.seconds_to_full(nanos(at), 1000)
    }

    #[test]
    fn a_steady_growth_is_continued() {
        // Ten blocks a second for a minute, in steps of any length: 400 are left.
        for step in [0.01, 0.1, 1.0, 7.5] {
            let observed: Vec<_> =
                (0..=(60.0 / step) as usize).map(|i| (i as f64 * step, i as f64 * step * 10.0)).collect();
            let observed: Vec<_> = observed.into_iter().map(|(at, used)| (at, used as usize)).collect();
            let seconds = forecast(&observed, 60.0);
            assert!((seconds - 40.0).abs() < 1.5, "{step}: {seconds}");
        }
    }

    #[test]
    fn what_does_not_grow_is_never_full() {
        assert_eq!(forecast(&[], 5.0), f64::INFINITY);
        assert_eq!(forecast(&[(0.0, 500), (30.0, 500), (120.0, 500)], 120.0), f64::INFINITY, "it stands");
        assert_eq!(forecast(&[(60.0, 500), (61.0, 300), (62.0, 100)], 62.0), f64::INFINITY, "it shrinks");
        let grew = [(1.0, 100), (2.0, 200), (3.0, 300)];
        assert!(forecast(&grew, 3.0) < 60.0);
        assert_eq!(forecast(&grew, 300.0), f64::INFINITY, "it grew minutes ago");
    }

    #[test]
    fn full_is_now() {
        assert_eq!(forecast(&[(1.0, 1000)], 1.0), 0.0);
        assert_eq!(forecast(&[(1.0, 1000)], 1000.0), 0.0);
    }
}
