//! Whether what was kept of the costs of steps is still true, and what would be: decisions alone, `store.rs` writes.
//!
//! ```text
//! step: took, and what the kept model says ──> ratio ──┬─ decode alone ──> the last 64 ──┐
//!                                                      └─ what prompts add ──> the last 64 ──┴─> correction
//! ```
//! The scheduler follows the machine from step to step; this is slower, for it speaks to the next start. Steps that others
//! disturbed are not shown to it, so the median of some dozens is the machine's.

use protocol::Nanos;
use scheduler::{CostModel, Work};

/// Steps that are looked back at, of each kind.
const WINDOW: usize = 64;
/// Steps that are evidence, and between two looks.
const LEAST: usize = 8;
/// A correction by less is not worth a file.
const WORTH: f64 = 0.15;
/// A chunk that is less than this share of its step's prediction teaches nothing about prompts.
const TEACHES: f64 = 0.5;
/// A model that is corrected by more was measured so badly that the next start measures again.
const MEASURED_BADLY: f64 = 2.0;

fn is_far(factor: f64) -> bool {
    !(1.0 / MEASURED_BADLY..=MEASURED_BADLY).contains(&factor)
}

/// Ratios of the last steps of one kind.
#[derive(Clone, Debug)]
struct Window {
    ratios: [f64; WINDOW],
    /// Ratios seen in all.
    seen: usize,
    /// Their median at the last look.
    correction: Option<f64>,
}

impl Default for Window {
    fn default() -> Window {
        Window { ratios: [1.0; WINDOW], seen: 0, correction: None }
    }
}

impl Window {
    fn observe(&mut self, ratio: f64) {
        self.ratios[self.seen % WINDOW] = ratio;
        self.seen += 1;
        if self.seen.is_multiple_of(LEAST) {
            let mut sorted = self.ratios;
            let sorted = &mut sorted[..self.seen.min(WINDOW)];
            sorted.sort_unstable_by(f64::total_cmp);
            self.correction = Some(sorted[sorted.len() / 2]);
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

    /// Takes in a step that nothing disturbed and that took `took`. What is worth to be kept now, if anything.
    pub(crate) fn step(&mut self, work: &Work, took: Nanos) -> Option<CorrectedCost> {
        let predicted = self.kept.seconds(work);
        if work.rows() == 0 || predicted <= 0.0 || took == Nanos(0) {
            return None;
        }
        let alone = Work { prefill_rows: 0, prefill_pairs: 0, prefill_seqs: 0, logit_rows: work.decode_rows, ..*work };
        let own = if work.decode_rows == 0 { 0.0 } else { self.kept.seconds(&alone) };
        let (added, is_telling, took) = (predicted - own, took >= CostModel::TELLING, took.as_secs_f64());
        if work.prefill_seqs == 0 {
            self.windows[0].observe(took / predicted);
        } else if added > predicted * TEACHES && is_telling {
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
        CorrectedCost { was_bad: cost.drift().into_iter().any(is_far), cost }
    }

    /// What was never seen follows what was, where that says that the file is wrong.
    fn correction(&self) -> [f64; 2] {
        match [&self.windows[0], &self.windows[1]].map(|window| window.correction) {
            [Some(alone), Some(added)] => [alone, added],
            [Some(one), None] | [None, Some(one)] if is_far(one) => [one; 2],
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
    fn a_file_that_is_wrong_is_healed_within_a_hundred_steps_and_one_that_is_true_is_left_alone() {
        // What the file says, what is so, and whether it was measured badly.
        for (file, truth, was_bad) in
            [(8.0, 1.0, Some(true)), (1.0 / 6.0, 1.0, Some(true)), (1.0, 1.6, Some(false)), (1.0, 1.0, None)]
        {
            // A few may be disturbed and not be known to be.
            for disturbed in [0.0, 0.1, 0.2] {
                let ([decode, prompt], writes, corrected) = run(file, truth, 100, disturbed);
                let off = format!("{file} {truth} {disturbed}: {decode} {prompt}, {writes} files");
                assert!((0.85..1.2).contains(&decode) && (0.8..1.25).contains(&prompt) && writes <= 6, "{off}");
                assert_eq!(corrected.map(|corrected| corrected.was_bad), was_bad, "{off}");
            }
        }
        assert_eq!(run(1.0, 1.0, 5000, 0.2).1, 0);
    }

    #[test]
    fn prompts_of_a_moment_say_nothing_of_others() {
        let (mut corrector, mut work) = (CostCorrector::new(machine(1.0)), Work::default());
        work.add_chunk(0, 40, true);
        assert!((0..500).all(|_| corrector.step(&work, Nanos(1_900_000)).is_none()), "three times what is predicted");
        assert!((0..500).any(|_| corrector.step(&work, Nanos(2_100_000)).is_some()));
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
