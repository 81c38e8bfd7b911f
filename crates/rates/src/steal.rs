//! What the machine took of a step, and of the time before it: when to ask the kernel, and what its answer means.
//!
//! ```text
//! predicted   |=======|
//! took        |=======|.............|      later than it should be: the counters of the threads are read
//! thread 0    |====|........|=======|      lost 8
//! thread 1    |=======|  waits    |.|      lost 2
//! stolen              |.........|          the excess, but no more than 8 + 2
//! ```
//! The threads of a step meet at a barrier some hundred times, and what one of them loses between two barriers others
//! wait for, or do. So the answer has bounds that need no prediction:
//!
//! - *at least* the losses of all, divided by the threads: what the threads did not run together, the work was late by,
//!   even if others did it in their stead;
//! - *at most* the losses of all, one after the other; those at the same time count once.
//!
//! Where between is what no kernel counts. If the prediction is good, the step's excess over it is the truth, so that
//! is the answer, within the bounds: time that no thread lost is not the machine's, whatever was predicted, and a
//! prediction that is far too high (made on a busy machine) hides nothing and is corrected by the remainder. Without a
//! prediction the largest loss of one thread is the answer.
//!
//! Reading costs a system call for each thread, so a step that took what it should is not looked into; now and then
//! the counters are still read, so that what was lost long ago is not found in a step that is late for other
//! reasons.

use std::time::Duration;

use kernels::threads::LostCpuTime;
use model::Forward;
use protocol::Nanos;
use scheduler::StealTime;

/// A step is late if it took this many times what was predicted, and this much longer. (Looking costs a hundredth of
/// that. What is not looked into teaches the cost model.)
const LATE: f64 = 1.15;
const LATE_BY: Nanos = Nanos(10_000);
/// Between two steps plans are made and tokens delivered: tens of microseconds. What is longer is looked into.
const BETWEEN: Nanos = Nanos(150_000);
/// The counters are read after so long, times the threads there are: a thousandth of the time at most.
const EVERY: Nanos = Nanos(1_000_000);

/// Whether a step that took so long is looked into. `predicted`: zero where nothing predicts.
fn is_late(took: Nanos, predicted: Nanos) -> bool {
    predicted == Nanos(0) || took.0 as f64 > predicted.0 as f64 * LATE && took > Nanos(predicted.0 + LATE_BY.0)
}

/// Of a step, and of its threads.
#[derive(Clone, Copy, Debug)]
struct Looked {
    took: Nanos,
    /// Zero where nothing predicts.
    predicted: Nanos,
    /// How long ago the counters were read before, at least `took`.
    since: Nanos,
    /// By that, what its threads lost.
    lost: LostCpuTime,
    threads: usize,
}

/// What the machine took of a step; see the module's head.
fn stolen(Looked { took, predicted, since, lost, threads }: Looked) -> Nanos {
    // The step's part of what was lost since the counters were read.
    let part = took.0 as f64 / since.0.max(took.0).max(1) as f64;
    let least = Nanos((nanos(lost.all).0 as f64 * part / threads as f64) as u64).min(took);
    let most = Nanos(nanos(lost.all).0.saturating_add(nanos(lost.unseen).0)).min(took);
    let likely = match predicted {
        Nanos(0) => nanos(lost.most),
        predicted => took.since(predicted),
    };
    likely.clamp(least, most.max(least))
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Follows one engine thread's steps.
#[derive(Debug)]
pub struct StealMeter {
    /// Where the counters were read, or might have been.
    asked: Nanos,
    threads: usize,
    /// When the last step ended.
    ended: Nanos,
    before: Nanos,
}

impl StealMeter {
    /// For steps of that number of threads.
    pub fn new(threads: usize) -> StealMeter {
        StealMeter { asked: Nanos(0), threads: threads.max(1), ended: Nanos(0), before: Nanos(0) }
    }

    /// A step is planned now.
    pub fn begins(&mut self, now: Nanos, forward: &dyn Forward) {
        let between = now.since(self.ended);
        self.before = Nanos(0);
        if between > BETWEEN {
            self.asked = now;
            // One thread delivers and plans; the others wait for it.
            self.before = forward.lost().map_or(Nanos(0), |lost| nanos(lost.caller).min(between));
        }
    }

    /// The step that began last is over.
    pub fn ends(&mut self, began: Nanos, now: Nanos, predicted: Nanos, forward: &dyn Forward) -> StealTime {
        self.ended = now;
        let (took, since, threads) = (now.since(began), now.since(self.asked), self.threads);
        let mut during = Nanos(0);
        if is_late(took, predicted) || since.0 >= EVERY.0 * threads.max(2) as u64 {
            self.asked = now;
            let looked = |lost| stolen(Looked { took, predicted, since, lost, threads });
            during = forward.lost().map_or(Nanos(0), looked);
        }
        StealTime { before: self.before, during }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn what_the_machine_took_lies_between_what_was_lost_and_what_was_late() {
        let cases = [
            // took, predicted, since when, most of one, all together, unseen: what was stolen
            ("a quiet step", 300, 300, 2000, [0, 0, 0], 0),
            ("late, and nothing was lost: its own", 900, 300, 900, [0, 0, 0], 0),
            ("a thread lost its core", 3300, 300, 4000, [3000, 3000, 0], 3000),
            ("two lost theirs, one after the other", 6300, 300, 6300, [3000, 6000, 0], 6000),
            ("two lost theirs at once", 3300, 300, 3300, [3000, 6000, 0], 3000),
            ("late for two reasons", 4000, 300, 4000, [3000, 3000, 0], 3000),
            ("some of it lost, in steps that were not late", 310, 300, 3100, [100, 200, 0], 10),
            ("faster than predicted", 200, 300, 2000, [50, 50, 0], 2),
            ("predicted on a busy machine, ten times too much", 3300, 3000, 3300, [3000, 6000, 0], 3000),
            ("the same: one lost, the other did the work of both", 600, 3000, 600, [600, 600, 0], 300),
            ("a thread waits still, and the other did its work", 600, 300, 600, [0, 0, 600], 300),
            ("nothing predicts: the largest", 5000, 0, 5000, [3000, 4000, 0], 3000),
            ("nothing predicts, and lost before it began", 300, 0, 3000, [3000, 3000, 0], 300),
        ];
        for (what, took, predicted, since, lost, want) in cases {
            let [most, all, unseen] = lost.map(Duration::from_micros);
            let [took, predicted, since] = [took, predicted, since].map(|us| Nanos(us * US));
            let lost = LostCpuTime { caller: most, most, all, unseen };
            assert_eq!(stolen(Looked { took, predicted, since, lost, threads: 2 }).0 / US, want, "{what}");
        }
    }

    #[test]
    fn only_late_steps_are_looked_into() {
        let cases = [(300, 300, false), (340, 300, false), (350, 300, true), (15, 10, false), (30_000, 26_500, false)];
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
