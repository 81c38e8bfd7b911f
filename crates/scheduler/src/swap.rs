//! Decides whether a preempted sequence's blocks are swapped to a tier or recomputed.
//!
//! ```text
//! swap        save each block and load it again (through the disk if host memory is full)  bytes / measured rates
//! recompute   prefill its tokens again                                                     cost model
//! ```
//!
//! Both ways recompute the partial last block. Which is faster depends on machine, model and length, so each preemption
//! is decided separately (recompute or swap: Kwon et al., SOSP 2023, who choose once for all).

use crate::kv::Tier;
use crate::{CostModel, Work};
use protocol::Nanos;

/// What happens to a preempted sequence's full blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PreemptionMode {
    /// Lost when evicted, and recomputed.
    #[default]
    Recompute,
    /// Saved to a tier when evicted, and loaded again.
    Swap,
}

/// Why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SwapReason {
    /// There is no tier.
    #[default]
    NoTier,
    /// No block is full and cached.
    NothingToKeep,
    /// No transfer was measured yet, so a configured tier is used.
    NotMeasured,
    /// Predicted to be faster.
    Faster,
}

/// A decision and its predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapDecision {
    /// The decision.
    pub mode: PreemptionMode,
    /// Why.
    pub reason: SwapReason,
    /// Predicted time to save the blocks and load them again; zero if not measured.
    pub swap: Nanos,
    /// Predicted time to compute them again; zero without a cost model.
    pub recompute: Nanos,
}

/// Nanoseconds per block and direction, exponentially averaged over the engine's reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TransferTimes {
    save: Option<f64>,
    load: Option<f64>,
    write: Option<f64>,
    read: Option<f64>,
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// Pool to host memory.
    Save,
    /// A tier to the pool.
    Load(Tier),
    /// Host memory to disk.
    Spill,
}

/// Weight of a transfer in the average.
const WEIGHT: f64 = 0.125;

impl TransferTimes {
    /// Adds a measurement: `blocks` blocks took `took` together.
    pub(crate) fn observe(&mut self, way: Transfer, blocks: usize, took: Nanos) {
        let average = match way {
            Transfer::Save => &mut self.save,
            Transfer::Load(Tier::Host) => &mut self.load,
            Transfer::Spill => &mut self.write,
            Transfer::Load(Tier::Disk) => &mut self.read,
        };
        let sample = took.0 as f64 / blocks.max(1) as f64;
        *average = Some(average.map_or(sample, |average| average + WEIGHT * (sample - average)));
    }

    /// Nanoseconds per block, if measured.
    pub(crate) fn of(&self, way: Transfer) -> Option<f64> {
        match way {
            Transfer::Save => self.save,
            Transfer::Load(Tier::Host) => self.load,
            Transfer::Spill => self.write,
            Transfer::Load(Tier::Disk) => self.read,
        }
    }

    /// Round-trip time of `blocks` blocks. An unmeasured load is taken to be as fast as the save.
    fn round_trip(&self, blocks: usize, through_disk: bool) -> Option<Nanos> {
        let mut each = self.save? + self.load.or(self.save)?;
        if through_disk {
            each += self.write.unwrap_or(0.0) + self.read.or(self.write).unwrap_or(0.0);
        }
        Some(Nanos((each * blocks as f64) as u64))
    }
}

/// Blocks of a sequence about to be preempted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreemptedBlocks {
    /// Full cached blocks without other holders.
    pub(crate) blocks: usize,
    /// Position of their first token, and number of tokens.
    pub(crate) start: usize,
    pub(crate) tokens: usize,
    /// Whether the host tier is full, so that each block displaces another to disk.
    pub(crate) through_disk: bool,
}

/// Prefix hits that must be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierHits {
    /// Per tier.
    pub(crate) blocks: [usize; 2],
    /// Position of their first token, and number of tokens.
    pub(crate) start: usize,
    pub(crate) tokens: usize,
}

/// Decides between swap and recompute. `times` is `None` without tiers.
pub(crate) fn decide(
    preempted: &PreemptedBlocks,
    times: Option<&TransferTimes>,
    cost: Option<&CostModel>,
) -> SwapDecision {
    let recompute = cost.map_or(Nanos(0), |cost| prefill_time(cost, preempted.start, preempted.tokens));
    let decision = |mode, reason, swap| SwapDecision { mode, reason, swap, recompute };
    let Some(times) = times else { return decision(PreemptionMode::Recompute, SwapReason::NoTier, Nanos(0)) };
    if preempted.blocks == 0 {
        return decision(PreemptionMode::Recompute, SwapReason::NothingToKeep, Nanos(0));
    }
    match (times.round_trip(preempted.blocks, preempted.through_disk), cost) {
        (Some(swap), Some(_)) if swap <= recompute => decision(PreemptionMode::Swap, SwapReason::Faster, swap),
        (Some(swap), Some(_)) => decision(PreemptionMode::Recompute, SwapReason::Faster, swap),
        (swap, _) => decision(PreemptionMode::Swap, SwapReason::NotMeasured, swap.unwrap_or_default()),
    }
}

/// Whether tier hits are faster loaded than recomputed.
pub(crate) fn is_worth_loading(hits: &TierHits, times: &TransferTimes, cost: Option<&CostModel>) -> bool {
    let Some(cost) = cost else { return true };
    let load = |tier: Tier| times.of(Transfer::Load(tier)).unwrap_or(0.0) * hits.blocks[tier as usize] as f64;
    let load = Nanos((load(Tier::Host) + load(Tier::Disk)) as u64);
    load <= prefill_time(cost, hits.start, hits.tokens)
}

/// Seconds that these prompt rows add to a decode step.
fn prefill_time(cost: &CostModel, start: usize, tokens: usize) -> Nanos {
    if tokens == 0 {
        return Nanos(0);
    }
    let mut work = Work::default();
    work.add_decode(1);
    let without = cost.step_time(&work);
    work.add_chunk(start, tokens, false);
    cost.step_time(&work).since(without)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::cost::{Knot, Terms};

    const MS: u64 = 1_000_000;

    /// One millisecond for a step, and 0.1 ms for each row.
    fn cost() -> CostModel {
        let knots = [(1, 0.0011), (1001, 0.1011)].map(|(rows, seconds)| Knot { rows, seconds });
        CostModel::new(vec![knots[0], knots[1]], Terms::default())
    }

    fn times(save_ms: u64, load_ms: u64, disk_ms: u64) -> TransferTimes {
        let mut times = TransferTimes::default();
        times.observe(Transfer::Save, 2, Nanos(2 * save_ms * MS));
        times.observe(Transfer::Load(Tier::Host), 1, Nanos(load_ms * MS));
        times.observe(Transfer::Spill, 1, Nanos(disk_ms * MS));
        times.observe(Transfer::Load(Tier::Disk), 1, Nanos(disk_ms * MS));
        times
    }

    #[test]
    fn the_faster_way_is_taken_and_both_are_predicted() {
        // Blocks of 16 tokens: computing one again takes 1.6 ms.
        let of = |blocks: usize, through_disk| PreemptedBlocks { blocks, start: 0, tokens: blocks * 16, through_disk };
        let (cost, fast, slow) = (cost(), times(0, 1, 5), times(1, 1, 5));
        let cases = [
            (of(4, false), Some(&fast), Some(&cost), PreemptionMode::Swap, SwapReason::Faster, 4000, 6400),
            (of(4, true), Some(&fast), Some(&cost), PreemptionMode::Recompute, SwapReason::Faster, 44_000, 6400),
            (of(4, false), Some(&slow), Some(&cost), PreemptionMode::Recompute, SwapReason::Faster, 8000, 6400),
            (of(4, false), Some(&fast), None, PreemptionMode::Swap, SwapReason::NotMeasured, 4000, 0),
            (
                of(4, false),
                Some(&TransferTimes::default()),
                Some(&cost),
                PreemptionMode::Swap,
                SwapReason::NotMeasured,
                0,
                6400,
            ),
            (of(0, false), Some(&fast), Some(&cost), PreemptionMode::Recompute, SwapReason::NothingToKeep, 0, 0),
            (of(4, false), None, Some(&cost), PreemptionMode::Recompute, SwapReason::NoTier, 0, 6400),
        ];
        for (case, (preempted, times, cost, mode, reason, swap_us, recompute_us)) in cases.into_iter().enumerate() {
            let decision = decide(&preempted, times, cost);
            let micros = (decision.swap.0 / 1000, (decision.recompute.0 + 500) / 1000);
            assert_eq!(
                (decision.mode, decision.reason, micros),
                (mode, reason, (swap_us, recompute_us)),
                "case {case}"
            );
        }
    }

    #[test]
    fn a_hit_in_a_tier_is_loaded_where_that_is_faster_than_its_prefill() {
        let (cost, times) = (cost(), times(0, 1, 5));
        let of = |blocks: [usize; 2]| TierHits { blocks, start: 0, tokens: (blocks[0] + blocks[1]) * 16 };
        let worth = |blocks| is_worth_loading(&of(blocks), &times, Some(&cost));
        assert_eq!([[3, 0], [9, 1], [1, 1], [0, 1]].map(worth), [true, true, false, false]);
        assert!(is_worth_loading(&of([0, 1]), &times, None), "without a model tiers are used");
    }

    #[test]
    fn averages_follow_what_is_reported() {
        let mut times = times(2, 1, 1);
        (0..60).for_each(|_| times.observe(Transfer::Save, 4, Nanos(4 * MS)));
        assert!((times.of(Transfer::Save).unwrap() / MS as f64 - 1.0).abs() < 0.01);
    }
}
