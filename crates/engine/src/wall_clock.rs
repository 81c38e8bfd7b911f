//! What a clock on the wall showed at moments of the machine's clock.
//!
//! ```text
//! machine    0 -------------- 70 s -------------- 90 s ---->    monotonic, since the start
//! wall       09:00:00 ------- 09:01:10 | 10:01:10 ---------->   set by an hour, or the machine slept
//!            anchor                      anchor
//! ```
//!
//! A moment has the time that wall clocks showed at it, as in logs and alerts. So a jump moves what comes after it and
//! nothing before. It is found at the next look ([`WallClock::look`]), and a moment between its jump and that look has
//! the time of before. Between jumps a wall clock is pulled towards the right time together with the monotonic one, so
//! one anchor holds for as long as nothing jumps.

use std::collections::VecDeque;

/// Jumps that are remembered; of older moments the time may be off by what was forgotten.
const KEPT: usize = 64;
/// What two readings of two clocks may be apart without a jump, nanoseconds.
const SLACK: u64 = 100_000_000;

/// Nanoseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixNanos(pub u64);

impl UnixNanos {
    /// Milliseconds since 1970 UTC, to the microsecond.
    pub fn as_millis_f64(self) -> f64 {
        (self.0 / 1_000) as f64 / 1e3
    }
}

/// See the module's picture. Times of the machine are nanoseconds since the start.
#[derive(Debug)]
pub(crate) struct WallClock(VecDeque<(u64, UnixNanos)>);

impl WallClock {
    /// At `machine` the wall clock shows `unix`.
    pub(crate) fn anchored(machine: u64, unix: UnixNanos) -> WallClock {
        WallClock(VecDeque::from([(machine, unix)]))
    }

    /// Compares both clocks, `machine` being now.
    pub(crate) fn look(&mut self, machine: u64, unix: UnixNanos) {
        if self.at(machine).0.abs_diff(unix.0) <= SLACK {
            return;
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((machine, unix));
    }

    /// What it showed at a moment.
    pub(crate) fn at(&self, machine: u64) -> UnixNanos {
        let before = self.0.partition_point(|&(at, _)| at <= machine);
        let (at, unix) = self.0[before.saturating_sub(1)];
        UnixNanos(if machine >= at { unix.0 + (machine - at) } else { unix.0.saturating_sub(at - machine) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_jump_moves_what_comes_after_it() {
        let mut wall = WallClock::anchored(0, UnixNanos(1_000 * SECOND));
        // Readings that are off by less than the slack are none.
        wall.look(10 * SECOND, UnixNanos(1_010 * SECOND + SLACK));
        assert_eq!(wall.at(10 * SECOND), UnixNanos(1_010 * SECOND));
        wall.look(70 * SECOND, UnixNanos(4_670 * SECOND));
        wall.look(90 * SECOND, UnixNanos(500 * SECOND));
        let shown = [0, 69, 70, 89, 90, 91].map(|second| wall.at(second * SECOND).0 / SECOND);
        assert_eq!(shown, [1_000, 1_069, 4_670, 4_689, 500, 501]);
    }

    #[test]
    fn as_many_jumps_as_there_may_be_are_remembered() {
        let mut wall = WallClock::anchored(0, UnixNanos(0));
        for jump in 1..=2 * KEPT as u64 {
            wall.look(jump * SECOND, UnixNanos(jump * 3_600 * SECOND));
        }
        assert_eq!(wall.0.len(), KEPT);
        assert_eq!(wall.at(2 * KEPT as u64 * SECOND), UnixNanos(2 * KEPT as u64 * 3_600 * SECOND));
        // What was before the oldest is counted back from it, and never below the beginning.
        assert_eq!(WallClock::anchored(5, UnixNanos(3)).at(0), UnixNanos(0));
    }
}
