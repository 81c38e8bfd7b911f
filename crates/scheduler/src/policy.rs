//! State of decisions beside the sequences: cost model, transfer times, starvation guard, late shares.
//!
//! Without a cost model no time is predicted, and only the limits bound a step.

use crate::kv::BlockPool;
use crate::pace::{self, LateShares};
use crate::state::State;
use crate::swap::{self, PreemptedBlocks, SwapDecision, TierHits, Transfer, TransferTimes};
use crate::{CostModel, DraftSource, SeqId, StepRecord, Tier, Work};
use protocol::Nanos;

/// Consecutive steps in which the oldest unfinished prompt may be passed over.
pub(crate) const MAX_PASSED_OVER: u32 = 16;

/// Waiting prompts that are compared for the next admission.
pub(crate) const LOOKAHEAD: usize = 256;
/// Newest prompts compared beyond [`LOOKAHEAD`], with deadlines.
pub(crate) const NEWEST: usize = 128;
/// Weight of a step in the mean steal time: about the last thirty count.
const STEAL_WEIGHT: f64 = 1.0 / 16.0;

#[derive(Default)]
pub(crate) struct Policy {
    /// Predicts steps; enables targets.
    pub(crate) cost: Option<CostModel>,
    /// The drafter whose proposals cost forward passes, and their cost.
    pub(crate) drafting: Option<(DraftSource, CostModel)>,
    pub(crate) steal: StealRate,
    pub(crate) transfer_times: TransferTimes,
    pub(crate) starvation_guard: StarvationGuard,
    pub(crate) late: LateShares,
    /// What others on the same cores leave a step.
    pub(crate) outer_bound: Option<Nanos>,
}

impl Policy {
    /// Predicted time of a pass, to compare passes; 1 without a cost model.
    pub(crate) fn seconds(&self, work: &Work) -> f64 {
        self.cost.as_ref().map_or(1.0, |cost| cost.seconds(work))
    }

    /// Predicted time of a drafter's pass, which drafts one token per row of `work`, with the decode drift of the
    /// machine.
    pub(crate) fn drafting_seconds(&self, source: DraftSource, work: &Work) -> f64 {
        let drift = self.cost.as_ref().map_or(1.0, |cost| cost.drift()[0]);
        match &self.drafting {
            Some((of, cost)) if *of == source && work.rows() > 0 => cost.seconds(work) * drift,
            _ => 0.0,
        }
    }

    /// Adds a row with `context` keys to a pass; returns the seconds that it adds.
    pub(crate) fn add_pass_row(&self, source: DraftSource, pass: &mut Work, context: usize) -> f64 {
        let before = self.drafting_seconds(source, pass);
        pass.add_decode(context);
        self.drafting_seconds(source, pass) - before
    }

    /// Predicted time of a step, with its host-memory transfers and drafting; zero without a cost model.
    pub(crate) fn predict(&self, record: &StepRecord) -> Nanos {
        let Some(cost) = &self.cost else { return Nanos(0) };
        let nanos = |way, blocks: usize| self.transfer_times.of(way).unwrap_or(0.0) * blocks as f64;
        let saves = nanos(Transfer::Save, record.saved_blocks);
        let loads = nanos(Transfer::Load(Tier::Host), record.loaded_blocks[0]);
        Nanos(cost.step_time(&record.work).0 + record.drafting.0 + (saves + loads) as u64)
    }

    /// Longest time, without steal time, of the step planned at `now` with which every running stream meets its target.
    pub(crate) fn step_bound(&self, state: &State, now: Nanos) -> Option<Nanos> {
        self.cost.as_ref()?;
        let computing = state.running().filter(|seq| !seq.is_loading());
        let allowed = computing.filter_map(|seq| pace::allowance(seq, now));
        let bound = allowed.chain(self.outer_bound).min()?;
        Some(Nanos((bound.0 as f64 / self.steal.slowdown()) as u64))
    }

    /// Whether to swap or recompute released blocks.
    pub(crate) fn decide_swap(&self, blocks: &PreemptedBlocks, pool: &BlockPool) -> SwapDecision {
        let times = pool.has_tiers().then_some(&self.transfer_times);
        swap::decide(blocks, times, self.cost.as_ref())
    }

    /// Whether hits in tiers are faster loaded than recomputed.
    pub(crate) fn is_worth_loading(&self, hits: &TierHits) -> bool {
        swap::is_worth_loading(hits, &self.transfer_times, self.cost.as_ref())
    }

    /// Updates the models with a completed step. The cost model excludes steal time: it does not predict the next step,
    /// and would be counted twice.
    pub(crate) fn learn(&mut self, record: &StepRecord) {
        self.steal.observe(record.undisturbed(), record.stolen.during);
        if let Some(cost) = &mut self.cost {
            let predicted = cost.step_time(&record.work);
            cost.observe(&record.work, record.computing_like(predicted));
        }
    }
}

/// Mean steal time relative to own time. Kept apart from the cost model because it depends on other processes, not on
/// the work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StealRate {
    /// Exponential means, nanoseconds.
    own: f64,
    stolen: f64,
}

impl StealRate {
    fn observe(&mut self, own: Nanos, stolen: Nanos) {
        self.own += (own.0 as f64 - self.own) * STEAL_WEIGHT;
        self.stolen += (stolen.0 as f64 - self.stolen) * STEAL_WEIGHT;
    }

    /// Factor by which steps take longer than their own time, at least 1.
    pub(crate) fn slowdown(&self) -> f64 {
        if self.own > 0.0 { 1.0 + self.stolen / self.own } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_last_longer_while_the_machine_takes_its_part() {
        let mut steal = StealRate::default();
        assert_eq!(steal.slowdown(), 1.0);
        (0..100).for_each(|_| steal.observe(Nanos(300), Nanos(0)));
        assert_eq!(steal.slowdown(), 1.0);
        // Every tenth step loses three milliseconds.
        (0..1000).for_each(|at| steal.observe(Nanos(300_000), Nanos(if at % 10 == 0 { 3_000_000 } else { 0 })));
        assert!((1.6..2.5).contains(&steal.slowdown()), "{steal:?}");
        (0..200).for_each(|_| steal.observe(Nanos(300_000), Nanos(0)));
        assert!(steal.slowdown() < 1.0001, "{steal:?}");
    }
}

/// Steps in which the oldest unfinished prompt was passed over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StarvationGuard {
    oldest: Option<SeqId>,
    passed_over: u32,
}

impl StarvationGuard {
    /// Whether the oldest prompt must go first in this step.
    pub(crate) fn must_go_first(&self, oldest: SeqId) -> bool {
        self.oldest == Some(oldest) && self.passed_over >= MAX_PASSED_OVER
    }

    /// Updates the count after a step.
    pub(crate) fn note(&mut self, oldest: Option<SeqId>, any_advanced: bool, oldest_advanced: bool) {
        if oldest != self.oldest || oldest_advanced {
            *self = StarvationGuard { oldest, passed_over: 0 };
        }
        if any_advanced && !oldest_advanced {
            self.passed_over += 1;
        }
    }
}
