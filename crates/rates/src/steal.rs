//! What the machine took of a step, and of the time before it: when to ask the threads' clocks.
//!
//! Their answer needs no prediction: see [`LostCpuTime`]. Where it is an interval, the step has its middle, and the half of
//! its width says how uncertain that is.
//!
//! Asking costs two system calls for each thread, so a step that took what it should is looked into only now and then: what
//! is lost in it is little, and what was lost long ago is not found in a step that is late for other reasons.

use std::time::Duration;

use kernels::threads::LostCpuTime;
use model::Forward;
use protocol::Nanos;
use scheduler::StealTime;

/// A step is late if it took this many times what was predicted, and this much longer. (Looking costs a hundredth of
/// that.)
const LATE: f64 = 1.15;
const LATE_BY: Nanos = Nanos(10_000);
/// Between two steps plans are made and tokens delivered: tens of microseconds. What is longer is looked into.
const BETWEEN: Nanos = Nanos(150_000);
/// The clocks are read after so long, times the threads there are: a thousandth of the time at most.
const EVERY: Nanos = Nanos(1_000_000);

/// Whether a step that took so long is looked into. `predicted`: zero where nothing predicts.
fn is_late(took: Nanos, predicted: Nanos) -> bool {
    predicted == Nanos(0) || took.0 as f64 > predicted.0 as f64 * LATE && took > Nanos(predicted.0 + LATE_BY.0)
}

/// What the machine took of a step, of all that it took since the clocks were read: `[middle, half of the width]`. `since`:
/// how long ago that was, at least `took`. A step that is late has all of it.
fn stolen(took: Nanos, since: Nanos, is_late: bool, lost: &LostCpuTime) -> [Nanos; 2] {
    let part = if is_late { 1.0 } else { took.0 as f64 / since.0.max(took.0).max(1) as f64 };
    let [least, most] = lost.delay.map(|delay| ((nanos(delay).0 as f64 * part) as u64).min(took.0));
    [Nanos(least + (most - least) / 2), Nanos((most - least) / 2)]
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
        let is_late = is_late(took, predicted);
        let mut during = [Nanos(0); 2];
        if is_late || since.0 >= EVERY.0 * threads.max(2) as u64 {
            self.asked = now;
            during = forward.lost().map_or(during, |lost| stolen(took, since, is_late, &lost));
        }
        let [during, uncertain] = during;
        // Of several steps in flight the first has it.
        StealTime { before: std::mem::take(&mut self.before), during, uncertain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn a_step_has_the_middle_of_what_the_machine_took_and_no_more_than_its_own_time() {
        let cases = [
            // took, since when, late, lost at least and at most: what was stolen, and how uncertain that is
            ("a quiet step", 300, 2000, false, [0, 0], [0, 0]),
            ("late, and nothing was lost: its own", 900, 900, true, [0, 0], [0, 0]),
            ("late", 3300, 3400, true, [3000, 3000], [3000, 0]),
            ("late by something between", 3300, 3300, true, [1000, 3000], [2000, 1000]),
            ("its part of what was lost in steps that were not late", 310, 3100, false, [100, 200], [15, 5]),
            ("no more than it took", 300, 3000, true, [200, 3000], [250, 50]),
        ];
        for (what, took, since, is_late, delay, want) in cases {
            let lost = LostCpuTime { delay: delay.map(Duration::from_micros), ..LostCpuTime::default() };
            let stolen = stolen(Nanos(took * US), Nanos(since * US), is_late, &lost);
            assert_eq!(stolen.map(|nanos| nanos.0 / US), want, "{what}");
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
