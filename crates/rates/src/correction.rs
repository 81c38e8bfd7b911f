//! Whether what was kept of the costs of steps is still true, and what would be: decisions alone, `store.rs` writes.
//!
//! ```text
//! step: took, and what the kept model says ──> ratio ──┬─ decode alone ──> the last 32 ──┐
//!                                                      └─ what prompts add ──> the last 32 ──┴─> correction
//! ```
//! The scheduler follows the machine from step to step; this is slower, for it speaks to the next start. Whatever
//! disturbs a step makes it longer, so that steps are *faster* than was kept is believed soon (the file was measured on
//! a busy machine), and that they are slower only after hundreds of even ones. Several times slower no neighbour makes them
//! evenly: then the file is wrong (what others took was taken for speed), and some dozens are enough.

use protocol::Nanos;
use scheduler::{CostModel, Work};

/// Steps that are looked back at, of each kind.
const WINDOW: usize = 32;
/// Ratios that are evidence, and steps between two looks.
const LEAST: usize = 8;
/// Steps that must all say that the machine is slower than was kept.
const SLOWER_AFTER: usize = 512;
/// Steps that take more than this many times their prediction are far slower, and steps that must all be.
const FAR_ABOVE: f64 = 2.0;
const FAR_SLOWER_AFTER: usize = 64;
/// A correction by less is not worth a file.
const WORTH: f64 = 0.15;
/// Quartiles so far apart are not one machine's.
const UNEVEN: f64 = 1.3;
/// Steps that all take less than this share of their prediction are faster, even or not.
const FAR_BELOW: f64 = 0.67;
/// A chunk that is less than this share of its step's prediction teaches nothing about prompts.
const TEACHES: f64 = 0.5;
/// A model that is corrected by more was measured so badly that the next start measures again.
const MEASURED_BADLY: f64 = 2.0;

/// Ratios of the last steps of one kind.
#[derive(Clone, Debug)]
struct Window {
    ratios: [f64; WINDOW],
    /// Ratios seen in all.
    seen: usize,
    /// Steps in a row that were slower.
    slower: usize,
    correction: Option<f64>,
}

impl Default for Window {
    fn default() -> Window {
        Window { ratios: [1.0; WINDOW], seen: 0, slower: 0, correction: None }
    }
}

impl Window {
    fn observe(&mut self, ratio: f64) {
        self.ratios[self.seen % WINDOW] = ratio;
        self.seen += 1;
        if !self.seen.is_multiple_of(LEAST) {
            return;
        }
        let mut sorted = self.ratios;
        let sorted = &mut sorted[..self.seen.min(WINDOW)];
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
        let [lower, middle, upper] = [0.25, 0.5, 0.75].map(at);
        let is_even = upper <= lower * UNEVEN;
        let found = match self.correction.unwrap_or(1.0) {
            _ if is_even => Some(middle),
            known if upper < known * FAR_BELOW => Some(upper),
            _ => None,
        };
        let is_above = |times: f64| found.is_some_and(|found| found > self.correction.unwrap_or(1.0) * times);
        let (is_slower, is_far) = (is_above(1.0 + WORTH), is_above(FAR_ABOVE));
        self.slower = if is_slower { self.slower + LEAST } else { 0 };
        if !is_slower || self.slower >= if is_far { FAR_SLOWER_AFTER } else { SLOWER_AFTER } {
            self.correction = found.or(self.correction);
        }
    }
}

/// Follows the steps of one engine.
#[derive(Clone, Debug)]
pub(crate) struct CostCorrector {
    /// As it was kept.
    kept: CostModel,
    /// Of steps of decode alone, and of what prompts add.
    windows: [Window; 2],
    /// What was returned last.
    reported: [f64; 2],
}

/// What the next start should know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CorrectedCost {
    /// The kept model, corrected.
    pub(crate) cost: CostModel,
    /// The correction is so large that its parts cannot be trusted either.
    pub(crate) was_bad: bool,
}

impl CostCorrector {
    pub(crate) fn new(kept: CostModel) -> CostCorrector {
        CostCorrector { kept, windows: Default::default(), reported: [1.0; 2] }
    }

    /// What a step of this work takes, as it is corrected so far.
    pub(crate) fn predicted(&self, work: &Work) -> Nanos {
        self.corrected().cost.step_time(work)
    }

    /// Takes in a step that took `took`, without what others took of it. What is worth to be kept now, if anything.
    pub(crate) fn step(&mut self, work: &Work, took: Nanos) -> Option<CorrectedCost> {
        let predicted = self.kept.seconds(work);
        if work.rows() == 0 || predicted <= 0.0 || took == Nanos(0) {
            return None;
        }
        let alone = Work { prefill_rows: 0, prefill_pairs: 0, prefill_seqs: 0, logit_rows: work.decode_rows, ..*work };
        let own = if work.decode_rows == 0 { 0.0 } else { self.kept.seconds(&alone) };
        let (added, took) = (predicted - own, took.as_secs_f64());
        if work.prefill_seqs == 0 {
            self.windows[0].observe(took / predicted);
        } else if added > predicted * TEACHES {
            let own = own * self.correction()[0];
            self.windows[1].observe((took - own).max(0.0) / added);
        }
        let correction = self.correction();
        let is_news = correction.iter().zip(self.reported).any(|(now, reported)| (now / reported - 1.0).abs() > WORTH);
        is_news.then(|| {
            self.reported = correction;
            self.corrected()
        })
    }

    /// Whether anything was worth to be kept.
    pub(crate) fn has_reported(&self) -> bool {
        self.reported != [1.0; 2]
    }

    /// The kept model as steps have corrected it so far.
    pub(crate) fn corrected(&self) -> CorrectedCost {
        let [alone, added] = self.correction();
        let drift = self.kept.drift();
        let cost = self.kept.clone().drifted([drift[0] * alone, drift[1] * added]);
        let far = |factor: f64| !(1.0 / MEASURED_BADLY..=MEASURED_BADLY).contains(&factor);
        CorrectedCost { was_bad: cost.drift().into_iter().any(far), cost }
    }

    /// What was never seen follows what was, where that says that the file is wrong.
    fn correction(&self) -> [f64; 2] {
        match [&self.windows[0], &self.windows[1]].map(|window| window.correction) {
            [Some(alone), Some(added)] => [alone, added],
            [Some(one), None] | [None, Some(one)] if !(FAR_BELOW..=FAR_ABOVE).contains(&one) => [one; 2],
            [alone, added] => [alone.unwrap_or(1.0), added.unwrap_or(1.0)],
        }
    }
}

#[cfg(test)]
mod tests {
    use scheduler::cost::{Knot, Terms};

    use super::*;

    /// A machine `times` as slow as another one.
    fn machine(times: f64) -> CostModel {
        let knot = |rows, ms: f64| Knot { rows, seconds: times * ms / 1e3 };
        let terms = Terms { key: times * 1e-8, pair: times * 1e-9, row: times * 1e-5, ..Terms::default() };
        CostModel::new(vec![knot(1, 0.3), knot(64, 0.8), knot(512, 5.0)], terms)
    }

    /// Steps as a server makes them: one in eight reads a chunk.
    fn work(index: usize) -> Work {
        let mut work = Work::default();
        (0..1 + index % 5).for_each(|row| work.add_decode(100 + 10 * row + index));
        if index.is_multiple_of(8) {
            work.add_chunk(0, 300, true);
        }
        work
    }

    /// From 0 to 1, by a number.
    fn chance(index: usize) -> f64 {
        ((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24)
    }

    /// What a step takes: a few percent more or less, and much more if it was disturbed.
    fn took(truth: &CostModel, index: usize, disturbed: f64) -> Nanos {
        let seconds = truth.seconds(&work(index)) * (0.97 + 0.06 * chance(index));
        let seconds = if chance(index + 7919) < disturbed { seconds + 4e-3 * chance(index + 104_729) } else { seconds };
        Nanos((seconds * 1e9) as u64)
    }

    /// Runs this number of steps, and returns how far off the model is that a next start would have read, and how often
    /// one was written.
    fn run(file: f64, truth: f64, steps: usize, disturbed: f64) -> ([f64; 2], usize, Option<CorrectedCost>) {
        let truth = machine(truth);
        let mut corrector = CostCorrector::new(machine(file));
        let mut last = None;
        let mut writes = 0;
        for index in 0..steps {
            if let Some(corrected) = corrector.step(&work(index), took(&truth, index, disturbed)) {
                (last, writes) = (Some(corrected), writes + 1);
            }
        }
        let cost = last.as_ref().map_or(machine(file), |corrected| corrected.cost.clone());
        let off = [1, 8].map(|index| cost.seconds(&work(index)) / truth.seconds(&work(index)));
        (off, writes, last)
    }

    #[test]
    fn a_file_that_was_multiplied_by_eight_is_healed_within_a_hundred_steps() {
        for disturbed in [0.0, 0.1, 0.2] {
            let ([decode, prompt], writes, corrected) = run(8.0, 1.0, 100, disturbed);
            assert!((0.85..1.2).contains(&decode) && (0.85..1.25).contains(&prompt), "{disturbed}: {decode} {prompt}");
            assert!(writes <= 6, "{writes} files");
            assert!(corrected.expect("it is worth a file").was_bad, "and the next start measures again");
        }
    }

    #[test]
    fn a_file_that_claims_six_times_the_speed_is_healed_within_a_hundred_steps() {
        for disturbed in [0.0, 0.1] {
            let ([decode, prompt], _, corrected) = run(1.0 / 6.0, 1.0, 100, disturbed);
            assert!((0.85..1.2).contains(&decode) && (0.8..1.25).contains(&prompt), "{disturbed}: {decode} {prompt}");
            assert!(corrected.expect("it is worth a file").was_bad);
        }
    }

    #[test]
    fn what_is_true_is_left_alone() {
        for disturbed in [0.0, 0.2] {
            let (_, writes, _) = run(1.0, 1.0, 5000, disturbed);
            assert_eq!(writes, 0, "{disturbed}");
        }
    }

    #[test]
    fn a_busy_hour_does_not_poison_a_good_file() {
        let ([decode, prompt], ..) = run(1.0, 1.0, 3000, 0.9);
        assert!((0.8..1.3).contains(&decode) && (0.8..1.3).contains(&prompt), "{decode} {prompt}");
    }

    #[test]
    fn a_machine_that_is_slower_is_believed_in_the_end() {
        let ([decode, _], ..) = run(1.0, 1.6, 300, 0.0);
        assert!(decode < 0.7, "not yet: {decode}");
        let ([decode, _], _, corrected) = run(1.0, 1.6, 2000, 0.0);
        assert!((0.9..1.1).contains(&decode), "{decode}");
        assert!(!corrected.expect("it is worth a file").was_bad);
    }

    #[test]
    fn what_was_never_seen_follows() {
        let mut corrector = CostCorrector::new(machine(8.0));
        let mut only_decode = (1..400_usize).filter(|index| !index.is_multiple_of(8));
        let corrected = only_decode.find_map(|index| corrector.step(&work(index), took(&machine(1.0), index, 0.0)));
        let cost = corrected.expect("it is worth a file").cost;
        let off = cost.seconds(&work(8)) / machine(1.0).seconds(&work(8));
        assert!((0.8..1.25).contains(&off), "prompts by {off}");
    }

    #[test]
    fn a_clock_that_stands_still_teaches_nothing() {
        let mut corrector = CostCorrector::new(machine(1.0));
        assert!((0..1000).all(|index| corrector.step(&work(index), Nanos(0)).is_none()));
    }
}
