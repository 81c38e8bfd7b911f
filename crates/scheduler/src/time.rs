//! Time is an argument: the caller says what time it is, in nanoseconds since any fixed moment, from a clock that does
//! not go back.
//!
//! If it lies all the same, nothing breaks. Time decides three things only: how long a step may be beside a stream with
//! a target, in which order prompts with deadlines come, and what the cost model learns. Whatever the clock says, that
//! it stands still, jumps by days or goes back:
//!
//! - every output stays the same, and every invariant but the targets holds: blocks, classes, turns of tenants,
//!   patience and the bounds on preemption and on being left out count steps and tokens, not nanoseconds;
//! - a length of time is zero where the clock went back ([`Nanos::since`]), never negative and never a huge number;
//! - what the cost model learns from it is bounded, and some fifty steps with a good clock make it right again.
//!
//! The chaos test draws such clocks from its seeds.

/// A moment or a length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// The same length in seconds, for people and metrics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}
