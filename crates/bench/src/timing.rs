//! How everything here is timed: several ways to do something, called in turns.
//!
//! ```text
//! way 0      ## warms up, and gives the number of calls in a sample
//! way 1      ##
//! round 1    0000 11111111      each sample has enough calls to fill its time, so that the clock's grain is nothing
//! round 2    0000 11111111      a machine that changes its speed meanwhile changes that of all ways
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use figures::percentile;

/// Seconds of a sample of calls that take less.
const SAMPLE_SECONDS: f64 = 0.03;

/// How often something is timed.
#[derive(Clone, Copy)]
pub(crate) struct Timing<'a> {
    /// Samples of each way.
    pub(crate) repetitions: usize,
    /// Seconds of a sample; 0: each is one call.
    pub(crate) sample_seconds: f64,
    /// Set while it runs, it ends; what was cut off counts for nothing.
    pub(crate) stop: &'a AtomicBool,
}

impl Timing<'static> {
    pub(crate) fn of(repetitions: usize) -> Timing<'static> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Timing { repetitions, sample_seconds: SAMPLE_SECONDS, stop: &NEVER }
    }

    /// Each sample is one call.
    pub(crate) fn of_calls(repetitions: usize) -> Timing<'static> {
        Timing { sample_seconds: 0.0, ..Timing::of(repetitions) }
    }
}

impl Timing<'_> {
    /// Seconds of a call: the samples of each way, in the order in which they were taken.
    pub(crate) fn in_turns<const WAYS: usize>(&self, mut call: impl FnMut(usize)) -> [Vec<f64>; WAYS] {
        let calls: [usize; WAYS] = std::array::from_fn(|way| self.calls(|| call(way)));
        let mut samples = [const { Vec::new() }; WAYS];
        for _ in 0..self.repetitions {
            for way in 0..WAYS {
                let seconds = seconds(calls[way], || call(way));
                if self.stop.load(Ordering::Relaxed) {
                    return samples;
                }
                samples[way].push(seconds);
            }
        }
        samples
    }

    /// Calls of one sample. The first of all warms up.
    fn calls(&self, mut call: impl FnMut()) -> usize {
        call();
        let mut calls = 1;
        while self.sample_seconds > 0.0 && !self.stop.load(Ordering::Relaxed) {
            let each = seconds(calls, &mut call);
            if each * calls as f64 >= self.sample_seconds / 8.0 {
                return (self.sample_seconds / each).ceil() as usize;
            }
            calls *= 4;
        }
        calls
    }
}

/// Mean seconds of one of `calls` calls.
fn seconds(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() / calls as f64
}

/// The least, the median and the largest; zeros of nothing.
pub(crate) fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [0.0, 50.0, 100.0].map(|percent| percentile(&sorted, percent).unwrap_or_default())
}

/// The median; 0 of nothing.
pub(crate) fn middle(values: &[f64]) -> f64 {
    spread(values)[1]
}

/// On a separate thread: the one that computes is pinned to a core.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_called_in_turns() {
        let mut called = Vec::new();
        let samples: [Vec<f64>; 2] = Timing::of_calls(2).in_turns(|way| called.push(way));
        assert_eq!(called, [0, 1, 0, 1, 0, 1], "once each to warm up");
        assert!(samples.iter().all(|samples| samples.len() == 2));
    }

    #[test]
    fn what_is_cut_off_counts_for_nothing() {
        let stop = AtomicBool::new(false);
        let mut calls = 0;
        let timing = Timing { stop: &stop, ..Timing::of_calls(5) };
        let [samples] = timing.in_turns(|_| {
            calls += 1;
            stop.store(calls == 4, Ordering::Relaxed);
        });
        assert_eq!((samples.len(), calls), (2, 4), "one to warm up, two whole ones, one cut off");
    }

    #[test]
    fn what_is_fast_is_called_often() {
        let mut calls = 0usize;
        let timing = Timing { sample_seconds: 0.001, ..Timing::of(1) };
        let [samples] = timing.in_turns(|_| calls += std::hint::black_box(1));
        assert!(samples.len() == 1 && calls > 100, "{calls}");
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
    }
}
