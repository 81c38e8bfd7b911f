//! Time is an argument: the caller passes nanoseconds since any fixed moment, from a monotonic clock.
//!
//! A faulty clock that stops, jumps by days or goes back breaks nothing. Time affects only the step bound beside
//! streams with a target, the order of prompts with deadlines, and the cost model:
//!
//! - outputs stay the same, and all invariants but the targets hold: blocks, classes, fairness, the starvation guard
//!   and the bounds on preemption and on left-out rows count steps and tokens, not nanoseconds;
//! - a duration is zero where the clock went back ([`Nanos::since`]), never negative or huge;
//! - the cost model's error is bounded, and some fifty steps with a good clock correct it.
//!
//! The chaos test draws such clocks from its seeds.

/// A moment or a duration, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Seconds, for display and metrics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}
