//! What the machine took of a step, and of the time before it: when to ask the kernel, and what its answer means.
//!
//! ```text
//! predicted   |=======|
//! took        |=======|.............|      later than it should be: the counters of the threads are read
//! thread 0    |====|........|=======|      lost 8
//! thread 1    |=======|  waits    |.|      lost 2
//! stolen              |.........|          the excess, but no more than 8 + 2
//! ```
//! The threads of a step meet at a barrier some hundred times. What one of them lost between two barriers all wait for,
//! so the step is late by at least the longest loss between any two, summed, and by no more than all losses together;
//! losses at the same time count once. Where between was the kernel does not say. What the step took beyond its
//! prediction lies there too, if the prediction is good; so that is the answer, with the sum of all losses as its
//! bound: what nobody lost, the machine did not take, whatever was predicted. Without a prediction the largest loss of
//! one thread is the answer.
//!
//! Reading costs a system call for each thread, so a step that took what it should is not looked into; now and then
//! the counters are read all the same, so that what was lost long ago is not found in a step that is late for reasons
//! of its own.

use std::time::Duration;

use kernels::threads::LostTime;
use model::Forward;
use scheduler::{Nanos, Stolen};

/// A step is late if it took this many times what was predicted, and this much longer.
const LATE: f64 = 1.2;
const LATE_BY: Nanos = Nanos(50_000);
/// Between two steps plans are made and tokens delivered: tens of microseconds. What is longer is looked into.
const BETWEEN: Nanos = Nanos(150_000);
/// The counters are read after so long, times the threads there are: a thousandth of the time at most.
const EVERY: Nanos = Nanos(1_000_000);

/// Whether a step that took so long is looked into. `predicted`: zero where nothing predicts.
fn is_late(took: Nanos, predicted: Nanos) -> bool {
    predicted == Nanos(0) || took.0 as f64 > predicted.0 as f64 * LATE && took > Nanos(predicted.0 + LATE_BY.0)
}

/// What the machine took of a step. `lost`: by its threads, while it ran; see the module's head.
fn stolen(took: Nanos, predicted: Nanos, lost: LostTime) -> Nanos {
    let most = match predicted {
        Nanos(0) => nanos(lost.most),
        predicted => nanos(lost.all).min(took.since(predicted)),
    };
    most.min(took)
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Follows one engine thread's steps.
#[derive(Debug)]
pub(super) struct Machine {
    /// Where the counters were read, or might have been.
    asked: Nanos,
    /// How often they are.
    every: Nanos,
    /// When the last step ended.
    ended: Nanos,
    before: Nanos,
}

impl Machine {
    pub(super) fn new(threads: usize) -> Machine {
        let every = Nanos(EVERY.0 * threads.max(2) as u64);
        Machine { asked: Nanos(0), every, ended: Nanos(0), before: Nanos(0) }
    }

    /// A step is planned now.
    pub(super) fn begins(&mut self, now: Nanos, forward: &dyn Forward) {
        let between = now.since(self.ended);
        self.before = Nanos(0);
        if between > BETWEEN {
            self.asked = now;
            // One thread delivers and plans; the others wait for it.
            self.before = forward.lost().map_or(Nanos(0), |lost| nanos(lost.caller).min(between));
        }
    }

    /// The step that began last is over.
    pub(super) fn ends(&mut self, began: Nanos, now: Nanos, predicted: Nanos, forward: &dyn Forward) -> Stolen {
        self.ended = now;
        let took = now.since(began);
        let mut during = Nanos(0);
        if is_late(took, predicted) || now.since(self.asked) >= self.every {
            self.asked = now;
            during = forward.lost().map_or(Nanos(0), |lost| stolen(took, predicted, lost));
        }
        Stolen { before: self.before, during }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn what_the_machine_took_lies_between_what_was_lost_and_what_was_late() {
        let cases = [
            // took, predicted, most of one, all together: what was stolen
            ("a quiet step", 300, 300, 0, 0, 0),
            ("late, and nothing was lost: its own", 900, 300, 0, 0, 0),
            ("a thread lost its core", 3300, 300, 3000, 3000, 3000),
            ("two lost theirs, one after the other", 6300, 300, 3000, 6000, 6000),
            ("two lost theirs at once", 3300, 300, 3000, 6000, 3000),
            ("lost while it had nothing to do", 300, 300, 3000, 3000, 0),
            ("late for two reasons", 4000, 300, 3000, 3000, 3000),
            ("faster than predicted", 200, 300, 50, 50, 0),
            ("nothing predicts: the largest", 5000, 0, 3000, 4000, 3000),
            ("nothing predicts, and lost before it began", 300, 0, 3000, 3000, 300),
        ];
        for (what, took, predicted, most, all, want) in cases {
            let lost = |us| Duration::from_micros(us);
            let lost = LostTime { caller: lost(most), most: lost(most), all: lost(all) };
            assert_eq!(stolen(Nanos(took * US), Nanos(predicted * US), lost), Nanos(want * US), "{what}");
        }
    }

    #[test]
    fn only_late_steps_are_looked_into() {
        let cases = [(300, 300, false), (360, 300, false), (410, 300, true), (70, 40, false), (30_000, 26_000, false)];
        for (took, predicted, want) in cases {
            assert_eq!(
                is_late(Nanos(took * US), Nanos(predicted * US)),
                want,
                "{took} where {predicted} was predicted"
            );
        }
        assert!(is_late(Nanos(1), Nanos(0)), "where nothing is predicted nothing is known");
    }
}
