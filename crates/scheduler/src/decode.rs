//! Plans decode rows and chooses preemption victims when blocks run out.
//!
//! ```text
//! running, in rank order    A      B      C      D        one row each, if each has a slot for its token
//! blocks needed now         0      1      1      0
//! free blocks               1 ---> B                      C lacks one: a sequence ranked after C is preempted, else C.
//!                                                         No sequence is preempted for one ranked after it.
//! ```
//!
//! Every decoding sequence gets a row in every step: a row is cheap, and a user waits for each token (decode-first
//! mixed steps: Sarathi-Serve, Agrawal et al., OSDI 2024).
//!
//! A victim keeps its tokens, releases its blocks, and waits at its old rank. Its full blocks stay in the prefix cache
//! and from there go to a tier if there is one ([`crate::swap`]); the rest is recomputed (Kwon et al., SOSP 2023).
//! Victim order: the most served tenant ([`crate::fairness`]), its lowest class, then the fewest lost tokens per freed
//! block, where a token kept in a tier counts its transfer time relative to recompute. After [`MAX_PREEMPTIONS`]
//! preemptions a sequence is readmitted only with blocks for its maximum length reserved, and is then never a victim:
//! so preemptions are bounded, and some sequence always runs to its end.

use core::cmp::Ordering;

use crate::fairness::FairnessKey;
use crate::kv::{BlockId, BlockPool, Taker};
use crate::sequence::{Phase, Rank, Sequence, SequenceBounds, Status};
use crate::state::State;
use crate::step::Preempted;
use crate::swap::{PreemptedBlocks, PreemptionMode};
use crate::{BlockCopy, Rows, Scheduler, SeqId, Step};
use protocol::{Nanos, Priority};

/// Preemptions after which a sequence runs with blocks for its maximum length reserved.
pub(crate) const MAX_PREEMPTIONS: u32 = 4;

/// Consecutive steps at most in which a decode row without a target is left out for others' targets.
const MOST_LEFT_OUT: u32 = 8;

impl Scheduler {
    /// Preempts until every decoding sequence has a slot for its token, except the returned one.
    pub(crate) fn make_room_for_decode(&mut self, step: &mut Step) -> Option<SeqId> {
        let weight = self.swap_weight();
        loop {
            match self.state.room_for_decode(weight) {
                DecodeRoom::Enough { stalled } => return stalled,
                DecodeRoom::Preempt(victim) => {
                    self.preempt(victim);
                    step.preempted.push(victim);
                }
            }
        }
    }

    fn preempt(&mut self, id: SeqId) {
        let (request, tokens) = (self.state.seqs[id].request_id(), self.state.seqs[id].num_computed());
        self.state.pool.expect_soon(&self.state.seqs[id].table);
        let decision = self.leave_running(id);
        self.plan.record.preempted.push(Preempted { request, tokens, decision });
        self.state.seqs[id].num_preemptions += 1;
        self.state.return_to_queue(id);
    }

    /// Weight of a lost token that a tier keeps: its transfer time over its compute time. Zero before anything was
    /// measured; [`WHOLE`] without tiers.
    fn swap_weight(&self) -> usize {
        let (tokens, through_disk) = (self.state.limits.block_size, self.state.pool.swaps_to_disk());
        let blocks = PreemptedBlocks { blocks: 1, start: 0, tokens, through_disk };
        let decision = self.policy.decide_swap(&blocks, &self.state.pool);
        match decision.mode {
            PreemptionMode::Recompute => WHOLE,
            PreemptionMode::Swap if decision.recompute.0 == 0 => 0,
            PreemptionMode::Swap => (decision.swap.0.saturating_mul(WHOLE as u64) / decision.recompute.0) as usize,
        }
    }

    /// One row and its slot for every decoding sequence: a new block at a block's end, or a copy of a shared one.
    /// Sequences without a target come last and skip a step that they would make longer than `bound`.
    pub(crate) fn plan_decode(&mut self, stalled: Option<SeqId>, bound: Option<Nanos>, step: &mut Step) {
        for index in 0..self.state.running.len() {
            let (_, id) = self.state.running[index];
            if bound.is_none() || self.state.seqs[id].request.targets.tpot.is_some() {
                self.decode_unless(stalled, id, step);
            }
        }
        for index in 0..if bound.is_some() { self.state.running.len() } else { 0 } {
            let (_, id) = self.state.running[index];
            if self.state.seqs[id].request.targets.tpot.is_none() && !self.leaves_out(id, bound) {
                self.decode_unless(stalled, id, step);
            }
        }
    }

    fn decode_unless(&mut self, stalled: Option<SeqId>, id: SeqId, step: &mut Step) {
        let seq = &mut self.state.seqs[id];
        if seq.phase() != Phase::Decode || stalled == Some(id) || seq.is_busy() {
            return;
        }
        seq.steps_left_out = 0;
        let block = seq.num_computed / self.state.limits.block_size;
        let by = Taker::of(&seq.request);
        match seq.table.get(block).copied() {
            None => seq.table.push(self.state.pool.take(by).expect("room was made")),
            Some(src) if self.state.pool.refs(src) > 1 => {
                let dst = self.state.pool.take(by).expect("room was made");
                self.state.pool.release(src);
                seq.table.replace(block, dst);
                step.copies.push(BlockCopy { src, dst });
            }
            Some(_) => {}
        }
        self.plan_decode_row(id, step);
    }

    /// Whether a decode row without a target skips the step, for those with one.
    fn leaves_out(&mut self, id: SeqId, bound: Option<Nanos>) -> bool {
        let (Some(cost), Some(bound)) = (&self.policy.cost, bound) else { return false };
        let seq = &mut self.state.seqs[id];
        if seq.phase() != Phase::Decode || seq.is_busy() {
            return false;
        }
        let mut work = self.plan.record.work;
        work.add_decode(seq.num_tokens());
        let may_stay_out = seq.steps_left_out < MOST_LEFT_OUT;
        // In an empty step skipping helps no one: the sequence with the target may itself wait for this one's blocks.
        let stays_out = may_stay_out && self.plan.record.work.rows() > 0 && cost.step_time(&work) > bound;
        seq.steps_left_out += u32::from(stays_out);
        stays_out
    }

    pub(crate) fn plan_decode_row(&mut self, id: SeqId, step: &mut Step) {
        let rows = Rows { seq: id, start: self.state.seqs[id].num_computed, len: 1, samples: 1, drafts: 0 };
        let row = self.plan_rows(rows);
        self.plan.record.work.add_decode(rows.start + rows.len);
        self.plan.record.decode.push(row);
        step.decode.push(rows);
    }
}

/// What must happen before every decoding sequence has a slot for its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeRoom {
    /// Nothing. At most one sequence skips this step for want of a block: all sequences ranked after it are protected,
    /// loading or in flight, or there are none and blocks of departed sequences are still being written or read. It
    /// keeps its blocks. The protected run to their end without it, the others become victims when their writes end,
    /// and departed sequences' blocks are freed.
    Enough { stalled: Option<SeqId> },
    /// Preempt this one, then decide again.
    Preempt(SeqId),
}

/// Queries of decode. They change nothing.
impl State {
    /// One decision: see [`DecodeRoom`]. `swap_weight`: weight of a token in a tier, in parts of [`WHOLE`].
    fn room_for_decode(&self, swap_weight: usize) -> DecodeRoom {
        let mut unreserved = self.pool.num_free() - self.reserved_blocks();
        let mut sharers = Sharers::default();
        for (index, seq) in self.running().enumerate() {
            if seq.phase() != Phase::Decode || is_protected(seq) || seq.is_busy() {
                continue;
            }
            let needed = sharers.blocks_to_write(seq, &self.pool);
            if needed <= unreserved {
                unreserved -= needed;
                continue;
            }
            let behind = &self.running[index + 1..];
            return match self.cheapest_victim(behind, swap_weight) {
                Some(victim) => DecodeRoom::Preempt(victim),
                None if behind.is_empty() && !self.blocks_come_back() => DecodeRoom::Preempt(seq.id),
                None => DecodeRoom::Enough { stalled: Some(seq.id) },
            };
        }
        DecodeRoom::Enough { stalled: None }
    }

    /// Whether blocks are held for departed sequences until their writes end, or for readers: they will be freed.
    fn blocks_come_back(&self) -> bool {
        self.seqs.iter().any(|seq| seq.status == Status::Leaving) || self.reads_will_free()
    }

    /// Blocks reserved for protected sequences: those that they may still take before they end.
    pub(crate) fn reserved_blocks(&self) -> usize {
        let mut sharers = Sharers::default();
        let protected = self.running().filter(|seq| is_protected(seq));
        protected.map(|seq| self.blocks_to_end(seq) - seq.table.len() + sharers.copies_to_write(seq, &self.pool)).sum()
    }

    /// Blocks of a sequence at its maximum length, its forks included.
    pub(crate) fn blocks_to_end(&self, seq: &Sequence) -> usize {
        let bounds = SequenceBounds::of(&seq.request, self.limits.max_model_len);
        bounds.blocks_of_answers(seq.num_seats(), self.limits.block_size)
    }

    /// The victim among `candidates` (in rank order): of the most served tenant, of its lowest class, the one that
    /// loses the fewest computed tokens per freed block; the youngest of equals.
    fn cheapest_victim(&self, candidates: &[(Rank, SeqId)], swap_weight: usize) -> Option<SeqId> {
        let can_go = |seq: &Sequence| !is_protected(seq) && !seq.is_busy();
        let mut best: Option<(FairnessKey, Priority, PreemptionCost, SeqId)> = None;
        for &(rank, id) in candidates.iter().rev().filter(|(_, id)| can_go(&self.seqs[*id])) {
            let seq = &self.seqs[id];
            let (key, class) = (self.tenants.key(seq), rank.priority);
            let cost = PreemptionCost::of(seq, &self.pool, swap_weight);
            let is_better =
                |(most, lowest, least, _): (FairnessKey, Priority, PreemptionCost, SeqId)| match (key, class)
                    .cmp(&(most, lowest))
                {
                    Ordering::Equal => cost.is_less_than(least),
                    order => order == Ordering::Greater,
                };
            if best.is_none_or(is_better) {
                best = Some((key, class, cost, id));
            }
        }
        best.map(|(.., id)| id)
    }
}

/// Whether a sequence is exempt from preemption.
pub(crate) fn is_protected(seq: &Sequence) -> bool {
    seq.num_preemptions >= MAX_PREEMPTIONS
}

/// Counts copies-on-write before they happen. Of `r` answers that share a block, `r - 1` copy it and the last writes in
/// place; they are forked from one sequence, so their ranks are adjacent.
#[derive(Default)]
struct Sharers {
    block: Option<BlockId>,
    copies_left: usize,
}

impl Sharers {
    /// Blocks that the next token of `seq` takes from the pool: 0 or 1.
    #[inline]
    fn blocks_to_write(&mut self, seq: &Sequence, pool: &BlockPool) -> usize {
        let grows = seq.num_computed == seq.table.capacity();
        usize::from(grows) + self.copies_to_write(seq, pool)
    }

    /// 1 if the block of the next token must be copied first.
    fn copies_to_write(&mut self, seq: &Sequence, pool: &BlockPool) -> usize {
        let Some(&block) = seq.table.get(seq.num_computed / seq.table.block_size()) else { return 0 };
        if self.block != Some(block) {
            *self = Sharers { block: Some(block), copies_left: pool.refs(block) - 1 };
        }
        let copies = self.copies_left.min(1);
        self.copies_left -= copies;
        copies
    }
}

/// Weight of a lost token.
const WHOLE: usize = 1024;

/// Lost tokens and freed blocks of a preemption. Shared blocks count on neither side: they stay.
#[derive(Clone, Copy)]
struct PreemptionCost {
    /// In parts of [`WHOLE`].
    lost_tokens: usize,
    freed_blocks: usize,
}

impl PreemptionCost {
    fn of(seq: &Sequence, pool: &BlockPool, swap_weight: usize) -> PreemptionCost {
        let block_size = seq.table.block_size();
        let mut cost = PreemptionCost { lost_tokens: 0, freed_blocks: 0 };
        for (index, &block) in seq.table.iter().enumerate() {
            if pool.refs(block) == 1 {
                cost.freed_blocks += 1;
                let weight = if pool.is_cached(block) { swap_weight } else { WHOLE };
                cost.lost_tokens += weight * seq.num_computed.saturating_sub(index * block_size).min(block_size);
            }
        }
        cost
    }

    /// Compares tokens per block; one that frees no block is worse than any that does.
    fn is_less_than(self, other: PreemptionCost) -> bool {
        match (self.freed_blocks, other.freed_blocks) {
            (0, _) => false,
            (_, 0) => true,
            (mine, others) => self.lost_tokens * others < other.lost_tokens * mine,
        }
    }
}
