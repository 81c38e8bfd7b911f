//! What decisions stand on beside the state: how long a step will take, what moving a block takes, who was passed over.
//!
//! Without a cost model nothing here predicts, and only the limits bound a step.

use crate::kv::BlockPool;
use crate::pace;
use crate::prefill::Patience;
use crate::state::State;
use crate::swap::{self, GivenUp, SwapDecision, TierHits, Transfer, TransferTimes};
use crate::{CostModel, Nanos, StepRecord, Tier};

/// Predictions, and the patience of the oldest prompt.
#[derive(Default)]
pub(crate) struct Policy {
    /// Predicts steps; with it, targets are heeded.
    pub(crate) cost: Option<CostModel>,
    pub(crate) transfer_times: TransferTimes,
    pub(crate) patience: Patience,
}

impl Policy {
    /// How long the step will take, its transfers with host memory included; zero without a cost model.
    pub(crate) fn predict(&self, record: &StepRecord) -> Nanos {
        let Some(cost) = &self.cost else { return Nanos(0) };
        let nanos = |way, blocks: usize| self.transfer_times.of(way).unwrap_or(0.0) * blocks as f64;
        let saves = nanos(Transfer::Save, record.saved_blocks);
        let loads = nanos(Transfer::Load(Tier::Host), record.loaded_blocks[0]);
        Nanos(cost.step_time(&record.work).0 + (saves + loads) as u64)
    }

    /// How long the step planned at `now` may take so that every running stream meets its target.
    pub(crate) fn step_bound(&self, state: &State, now: Nanos) -> Option<Nanos> {
        self.cost.as_ref()?;
        let computing = state.running().filter(|seq| !seq.is_loading());
        computing.filter_map(|seq| pace::allowance(seq, now)).min()
    }

    /// What becomes of blocks that are given up.
    pub(crate) fn judge(&self, given_up: &GivenUp, pool: &BlockPool) -> SwapDecision {
        let times = pool.has_tiers().then_some(&self.transfer_times);
        swap::judge(given_up, times, self.cost.as_ref())
    }

    /// Whether hits in tiers are worth loading.
    pub(crate) fn is_worth_loading(&self, hits: &TierHits) -> bool {
        swap::is_worth_loading(hits, &self.transfer_times, self.cost.as_ref())
    }

    /// A step is over, for which the machine was free when it `began`: the cost model learns what it took. Not what the
    /// machine did for others meanwhile: that says nothing about the next step, and a model that learned it would call
    /// the next theft its own.
    pub(crate) fn learn(&mut self, record: &StepRecord, began: Nanos) {
        if let Some(cost) = &mut self.cost {
            let measured = record.completed_at.since(began).since(record.transfers_took);
            cost.observe(&record.work, measured.since(record.stolen.during));
        }
    }
}
