//! Which states a step leaves, and which of them the prefix cache keeps.
//!
//! ```text
//! prompt   [ .... | .... | .... | .... | .... | .... | .. ]      blocks
//! states                 a             b      b  c      d        d: after the last row, to go on from
//! ```
//! A prefix of a model with states is reused from a *checkpoint* only. Kept are the states after
//! - `a`: every [`StateSizes::interval`] tokens, counted from the beginning, so that prompts share them;
//! - `b`: the last two full blocks of a prompt: a chat comes back with what follows them, or with another template end;
//! - `c`: the last full block that a lookup found without a checkpoint: there prompts part, such as behind a system
//!   prompt, and the third one is served;
//! - the newest full block of an answer, which the next turn of the chat repeats. It replaces the one before it.
//!
//! Checkpoints take slots that no running sequence may need ([`State::spare_states`]), and give way to them.

use alloc::vec::Vec;

use crate::kv::ContentName;
use crate::state::State;
use crate::{Rows, Scheduler, SeqId, Sequence, StateSizes, StateUse, StateWrite, Step};

impl Scheduler {
    /// Sizes and use of the slots for states; `None` for models without.
    pub fn states(&self) -> Option<(StateSizes, StateUse)> {
        self.state.limits.states.map(|sizes| (sizes, self.state.pool.state_use()))
    }

    /// Takes a slot for each state that the step leaves.
    pub(crate) fn plan_states(&mut self, step: &mut Step) {
        let Some(sizes) = self.state.limits.states else { return };
        let Step { decode, prefill, states, .. } = step;
        for rows in decode.iter().chain(prefill.iter()) {
            self.state.leave_states(rows, sizes, states);
        }
    }

    /// Keeps of the found prefix what a checkpoint ends, and notes how far it went.
    pub(crate) fn cut_to_checkpoint(&mut self, id: SeqId) {
        if self.state.limits.states.is_none() {
            return;
        }
        let (found, pool) = (self.plan.hits.len(), &self.state.pool);
        let last = self.plan.hits.iter().rposition(|hit| pool.state_of(hit.name).is_some());
        let usable = last.map_or(0, |last| last + 1);
        if usable < found {
            let seq = &mut self.state.seqs[id];
            seq.branch = seq.branch.max(found * self.state.limits.block_size);
            self.plan.hits.truncate(usable);
        }
    }
}

impl State {
    /// Slots beyond those that running sequences need for their next states.
    pub(crate) fn spare_states(&self) -> usize {
        self.pool.num_free_states().saturating_sub(self.limits.max_num_seqs)
    }

    /// After each draft and the row before the first, since any may be the last that holds; after a chunk's last row and
    /// at its checkpoints, as far as there are slots.
    fn leave_states(&mut self, rows: &Rows, sizes: StateSizes, states: &mut Vec<StateWrite>) {
        let &Rows { seq, start, len, drafts, .. } = rows;
        let (block, end) = (self.limits.block_size, start + len);
        self.seqs[seq].first_left_state = states.len();
        let mut leave = |state: &mut State, after| {
            let slot = state.pool.take_state().expect("each sequence has a slot to write");
            states.push(StateWrite { seq, after, slot });
        };
        for after in start + 1..end {
            let is_checkpoint = || after.is_multiple_of(block) && self.is_checkpoint(&self.seqs[seq], after, sizes);
            if drafts > 0 || is_checkpoint() && self.spare_states() > 0 {
                leave(self, after);
            }
        }
        leave(self, end);
    }

    /// Whether the state after this number of tokens, which end a block, is worth a slot.
    fn is_checkpoint(&self, seq: &Sequence, after: usize, sizes: StateSizes) -> bool {
        let block = self.limits.block_size;
        let last = seq.num_tokens() / block * block;
        let is_cached = self.limits.enable_prefix_caching && seq.request.use_prefix_cache;
        is_cached
            && (after.is_multiple_of(sizes.interval) || after == seq.branch || after == last || after + block == last)
    }

    /// One of `left` ends the block of `name`, which is in the prefix cache: it is kept as its checkpoint, if it is worth
    /// that.
    pub(crate) fn keep_checkpoint(&mut self, id: SeqId, name: ContentName, after: usize, left: &[StateWrite]) {
        let Some(sizes) = self.limits.states else { return };
        let Some(save) = left.iter().find(|save| save.after == after) else { return };
        let seq = &self.seqs[id];
        let (is_checkpoint, is_answer) = (self.is_checkpoint(seq, after, sizes), after > seq.num_prompt_tokens());
        let passes = is_answer && !after.is_multiple_of(sizes.interval);
        if (is_checkpoint || is_answer) && self.pool.keep_state(save.slot, name) && passes {
            let older = self.seqs[id].passing_checkpoint.replace(name);
            older.into_iter().for_each(|older| self.pool.drop_checkpoint(older));
        }
    }

    /// A step is computed: the sequence goes on from the state after its tokens, and lets go of the others.
    pub(crate) fn take_states(&mut self, id: SeqId, left: &[StateWrite]) {
        if left.is_empty() {
            return; // most models have no states
        }
        let computed = self.seqs.get(id).map(|seq| seq.num_computed);
        if let Some(save) = left.iter().find(|save| Some(save.after) == computed) {
            self.pool.share_state(save.slot);
            let before = self.seqs[id].state.replace(save.slot);
            before.into_iter().for_each(|slot| self.pool.release_state(slot));
        }
        self.release_states(left);
    }

    /// The sequence has nothing computed any more.
    pub(crate) fn release_state(&mut self, id: SeqId) {
        let state = self.seqs[id].state.take();
        state.into_iter().for_each(|slot| self.pool.release_state(slot));
    }

    /// A step in flight is over.
    pub(crate) fn release_states(&mut self, left: &[StateWrite]) {
        left.iter().for_each(|save| self.pool.release_state(save.slot));
    }
}
