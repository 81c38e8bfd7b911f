//! How often a request ends under load: at what rate a full queue drains.

use protocol::Nanos;

use crate::accounts::{Closed, Ending};

/// An exponential average, with weight 1/8, of the time between two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FinishRate {
    interval: Nanos,
    last_end: Nanos,
}

impl FinishRate {
    /// After a time without requests one comes.
    pub fn begins(&mut self, now: Nanos) {
        self.last_end = self.last_end.max(now);
    }

    /// A request is over. One that was cancelled says nothing of how long requests take.
    pub fn closed(&mut self, closed: &Closed) {
        if closed.ending == Ending::Cancelled {
            return;
        }
        let sample = closed.until.since(self.last_end).0;
        let before = self.interval.0;
        let after = if before == 0 { sample } else { before - before / 8 + sample / 8 };
        *self = FinishRate { interval: Nanos(after.max(1)), last_end: closed.until.max(self.last_end) };
    }

    /// The mean time between two ends; 0 before the first.
    pub fn interval(&self) -> Nanos {
        self.interval
    }
}
