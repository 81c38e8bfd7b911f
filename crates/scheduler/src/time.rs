//! Time is an argument: the caller says what time it is, in nanoseconds since any fixed moment (monotonic).

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
