//! The decode half of a plan: room for every decoding sequence's token, then its row.
//!
//! ```text
//! make_room_for_decode    preempts, as [`crate::decode`] decides, until the blocks suffice
//! plan_decode             a slot and a row for each; those without a target sit out where others' targets need it
//! ```

use crate::decode::{self, Room};
use crate::planted::{Bug, planted};
use crate::step::Preempted;
use crate::swap::{self, Fate, GivenUp};
use crate::{BlockCopy, Nanos, Phase, SeqId, Step};

use super::Scheduler;

/// A decode row without a target is left out for others' targets so many steps in a row at most.
const MOST_LEFT_OUT: u32 = 8;

impl Scheduler {
    /// Preempts until every decoding sequence has a slot for its token, but for the one returned.
    pub(super) fn make_room_for_decode(&mut self, step: &mut Step) -> Option<SeqId> {
        let weight = self.swap_weight();
        loop {
            let Scheduler { running, seqs, pool, loads, shares, limits, .. } = &*self;
            match decode::room_for_decode(running, seqs, pool, loads, shares, limits, weight) {
                Room::Enough { stalled } => return stalled,
                Room::Preempt(victim) => {
                    self.preempt(victim);
                    step.preempted.push(victim);
                }
            }
        }
    }

    fn preempt(&mut self, id: SeqId) {
        let (request, tokens) = (self.seqs[id].request_id(), self.seqs[id].num_computed());
        let verdict = self.leave_running(id);
        self.record.preempted.push(Preempted { request, tokens, verdict });
        let seq = &mut self.seqs[id];
        seq.num_preemptions += 1;
        seq.rewind();
        self.queue.insert(&self.seqs[id]);
    }

    /// What a token that a tier keeps counts as lost: the time to move it over the time to compute it. Nothing as long
    /// as nobody has measured; all of it without tiers.
    fn swap_weight(&self) -> usize {
        let block_size = self.limits.block_size;
        let given_up = GivenUp { blocks: 1, start: 0, tokens: block_size, through_disk: self.pool.swaps_to_disk() };
        let verdict = swap::judge(given_up, self.times(), self.cost.as_ref());
        match verdict.fate {
            Fate::Recompute => decode::WHOLE,
            Fate::Swap if verdict.recompute.0 == 0 => 0,
            Fate::Swap => (verdict.swap.0.saturating_mul(decode::WHOLE as u64) / verdict.recompute.0) as usize,
        }
    }

    /// One row for every decoding sequence, and a slot for it: a new block at a block's end, or a copy of a shared one.
    /// Those without a target come last, and sit the step out where it would take longer than `bound`.
    pub(super) fn plan_decode(&mut self, stalled: Option<SeqId>, bound: Option<Nanos>, step: &mut Step) {
        for index in 0..self.running.len() {
            let (_, id) = self.running[index];
            if bound.is_none() || self.seqs[id].request.targets.tpot.is_some() {
                self.decode_unless(stalled, id, step);
            }
        }
        for index in 0..if bound.is_some() { self.running.len() } else { 0 } {
            let (_, id) = self.running[index];
            if self.seqs[id].request.targets.tpot.is_none() && !self.leaves_out(id, bound) {
                self.decode_unless(stalled, id, step);
            }
        }
    }

    fn decode_unless(&mut self, stalled: Option<SeqId>, id: SeqId, step: &mut Step) {
        let seq = &mut self.seqs[id];
        if seq.phase() != Phase::Decode || stalled == Some(id) || seq.is_loading() {
            return;
        }
        if planted(Bug::DecodeRowForgotten) && step.decode.len() >= 3 {
            return;
        }
        seq.steps_left_out = 0;
        let block = seq.num_computed / self.limits.block_size;
        match seq.table.get(block).copied() {
            None => seq.table.push(self.pool.take().expect("room was made")),
            Some(src) if self.pool.refs(src) > 1 && !planted(Bug::SharedBlockWritten) => {
                let dst = self.pool.take().expect("room was made");
                self.pool.release(src);
                seq.table.replace(block, dst);
                step.copies.push(BlockCopy { src, dst });
            }
            Some(_) => {}
        }
        self.plan_decode_row(id, step);
    }

    /// Whether a decode row without a target stays out of the step, for those with one.
    fn leaves_out(&mut self, id: SeqId, bound: Option<Nanos>) -> bool {
        let (Some(cost), Some(bound)) = (&self.cost, bound) else { return false };
        let seq = &mut self.seqs[id];
        if seq.phase() != Phase::Decode || seq.is_loading() {
            return false;
        }
        let mut work = self.record.work;
        work.add_decode(seq.num_tokens());
        let may_stay_out = seq.steps_left_out < MOST_LEFT_OUT || planted(Bug::LeftOutForEver);
        // In a step without rows nobody gains by it: who has the target may itself wait for this one's blocks.
        let stays_out = may_stay_out && self.record.work.rows() > 0 && cost.step_time(&work) > bound;
        seq.steps_left_out += u32::from(stays_out);
        stays_out
    }

    pub(super) fn plan_decode_row(&mut self, id: SeqId, step: &mut Step) {
        step.decode.push(id);
        let row = self.plan_rows(id, 1, 1);
        self.record.work.add_decode(row.start + 1);
        self.record.decode.push(row);
    }
}
