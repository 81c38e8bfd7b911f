//! Invariants between any two calls. `I..` are the names that the tests use.

use alloc::vec;
use alloc::vec::Vec;

use crate::kv::{Uses, blocks_for};
use crate::sequence::Status;
use crate::{Phase, Scheduler};

/// One in this many steps rehashes all cached blocks: that costs more than all other checks together.
const AUDIT_EVERY: u64 = 16;

impl Scheduler {
    /// Panics if an invariant is violated. Cost: linear in blocks and tokens held; for tests and idle moments.
    pub fn check_invariants(&self) {
        self.check_blocks();
        self.check_sequences();
        self.check_states();
        self.check_caps();
    }

    /// I40: a slot of states is free, idle or held by those that name it; what is computed has its state.
    fn check_states(&self) {
        let Some((sizes, _)) = self.states() else { return };
        let mut holders = vec![0; sizes.slots];
        let in_flight = self.plan.in_flight.iter().flat_map(|step| &step.states).map(|save| save.slot);
        let of_sequences = self.state.seqs.iter().filter_map(|seq| seq.state);
        in_flight.chain(of_sequences).for_each(|slot| holders[slot.0 as usize] += 1);
        self.state.pool.check_states(&holders);
        for seq in self.state.seqs.iter().filter(|seq| seq.status == Status::Running) {
            assert_eq!(seq.state.is_some(), seq.num_computed() > 0, "I40: the state of {:?}", seq.id());
        }
    }

    /// I1-I4, I6, I7: every block is in one class, references equal the tables, no sequence is about to write a shared
    /// block, and cached blocks are computed, under their own hash, with the content that their holders expect.
    fn check_blocks(&self) {
        let mut uses = vec![Uses::default(); self.state.pool.num_blocks()];
        for seq in self.state.seqs.iter() {
            seq.block_table().iter().for_each(|block| uses[block.index()].tables += 1);
        }
        for pinned in &self.state.pinned {
            pinned.blocks.iter().for_each(|block| uses[block.index()].pins += 1);
        }
        self.state.reads.iter().for_each(|read| uses[read.block.index()].readers += 1);
        let loads: Vec<_> = self.state.loads.iter().map(|load| load.slot).collect();
        self.state.pool.check(&uses, &loads);
        if self.plan.next_step.0.is_multiple_of(AUDIT_EVERY) {
            self.state.pool.check_contents(&self.state.hasher);
        }
        for seq in self.state.seqs.iter() {
            let loads = self.state.loads.iter().filter(|load| load.seq == seq.id());
            assert!(loads.clone().all(|load| seq.block_table().contains(&load.block)), "I9: {:?} is written", seq.id());
            assert_eq!(loads.count(), seq.loads_in_flight, "I2: loads of {:?}", seq.id());
            assert!(seq.loads_in_flight == 0 || seq.rows_in_flight == 0, "I8: {:?} computes what is loaded", seq.id());
        }
        let known = self.state.loads.iter().all(|load| self.state.seqs.get(load.seq).is_some());
        assert!(known, "I9: a block is being loaded for no sequence");
        let block_size = self.limits().block_size;
        for seq in self.state.seqs.iter() {
            let computed = seq.num_computed();
            let written = computed..computed + seq.rows_in_flight;
            for (index, &block) in seq.block_table().iter().enumerate() {
                let (first, end) = (index * block_size, (index + 1) * block_size);
                let is_written = !written.is_empty() && written.start < end && first < written.end;
                assert!(
                    !is_written || self.state.pool.refs(block) == 1,
                    "I4: a step in flight writes {block:?}, shared"
                );
                assert!(
                    end <= computed || !self.state.pool.is_cached(block),
                    "I7: {block:?} is cached but not computed"
                );
                let tokens = seq.tokens().get(first..end).unwrap_or_default();
                let is_its_own = self.state.pool.may_hold(block, seq.request.salt, tokens);
                assert!(is_its_own, "I6: {block:?} is cached with other content than {:?} has", seq.id());
            }
        }
    }

    /// I5, I12, I19: each sequence is in one state, with the blocks that this state allows.
    fn check_sequences(&self) {
        let block_size = self.limits().block_size;
        for seq in self.state.seqs.iter() {
            let (id, held) = (seq.id(), seq.block_table().len());
            let waits = self.state.queue.iter().any(|waiting| waiting == id);
            let runs = self.state.running.iter().any(|&(rank, running)| running == id && rank == seq.rank);
            let expected = match seq.status {
                Status::Waiting => (true, false),
                Status::Running => (false, true),
                Status::Leaving | Status::RemotePrefill => (false, false),
            };
            assert_eq!((waits, runs), expected, "I12: {id:?} is {:?}", seq.status);
            let active = self.state.requests.get(&seq.request.id);
            let has_client = active.is_some_and(|active| active.answers[seq.answer()] == Some(id));
            assert_eq!(has_client, seq.status != Status::Leaving, "I12: whether {id:?} has a client");
            assert!(held == 0 || active.is_none_or(|active| active.has_run), "I33: {id:?} has run");
            if matches!(seq.status, Status::Waiting | Status::RemotePrefill) {
                assert_eq!((held, seq.num_computed()), (0, 0), "I19: {id:?} waits and holds blocks");
            } else {
                let tokens = seq.num_tokens();
                // Decode takes the last token's block when it plans the row.
                let least = tokens - usize::from(seq.phase() == Phase::Decode && seq.rows_in_flight == 0);
                assert!(held >= blocks_for(least, block_size), "I5: {id:?} lacks blocks");
                // I23: blocks of rejected drafts are released.
                let known = tokens + seq.drafts_in_flight;
                assert!(held <= blocks_for(known, block_size), "I5, I23: {id:?} holds blocks that it does not need");
                assert!(seq.num_uncomputed() >= 1, "{id:?} has nothing to do");
                assert!(seq.num_computed() + seq.rows_in_flight <= known, "{id:?} computes what it does not know");
                assert!(seq.drafts_in_flight == 0 || seq.phase() == Phase::Decode, "{id:?}: drafts are of decode");
            }
            let is_written = seq.rows_in_flight + seq.loads_in_flight > 0;
            assert!(seq.status != Status::Leaving || is_written, "I16: {id:?} should be gone");
            let steps = self.plan.in_flight.iter().flat_map(|step| &step.rows);
            let rows: Vec<_> = steps.filter(|rows| rows.seq == id).map(|rows| (rows.start, rows.len)).collect();
            let expected = [(seq.num_computed(), seq.rows_in_flight)];
            assert_eq!(rows, expected[..usize::from(seq.is_in_flight())], "I12: {id:?} in flight");
            let computed_here = rows.iter().all(|&(start, _)| start >= seq.num_remote_blocks() * block_size);
            assert!(computed_here, "I38: {id:?} has its prompt computed elsewhere");
        }
        let in_flight = self.plan.in_flight.iter().flat_map(|step| &step.rows);
        let known = in_flight.into_iter().all(|rows| self.state.seqs.get(rows.seq).is_some());
        assert!(known, "I16: what is in flight exists");
        assert!(self.plan.in_flight.iter().is_sorted_by_key(|step| step.id), "steps complete in their order");
        assert!(self.state.running.is_sorted(), "I15: running is in rank order");
    }

    /// I11: nothing exceeds its limit; reserved blocks are free.
    fn check_caps(&self) {
        let limits = self.limits();
        assert!(self.state.seats_taken() <= limits.max_num_seqs, "I11: too many sequences run");
        let new = self.state.requests.values().filter(|active| !active.has_run);
        let (num_new, num_new_tokens) = new.fold((0, 0), |(n, tokens), new| (n + 1, tokens + new.prompt_tokens));
        assert_eq!((num_new, num_new_tokens), (self.state.num_new, self.state.num_new_tokens), "I33: new requests");
        assert!(num_new <= limits.max_queued_requests, "I11: too many requests wait");
        assert!(num_new <= 1 || num_new_tokens <= limits.max_queued_tokens, "I11: too many tokens wait");
        let waiting: usize = self.state.queue.iter().map(|id| self.state.seqs[id].num_tokens()).sum();
        assert_eq!(waiting, self.state.queue.num_tokens(), "I33: waiting tokens");
        self.state.tenants.check(self.state.requests.values().map(|active| active.tenant));
        let reserved = self.state.reserved_blocks();
        assert!(reserved <= self.state.pool.num_free(), "I13: protected sequences lack {reserved} blocks");
        for seq in self.state.seqs.iter() {
            assert!(seq.num_preemptions() <= crate::decode::MAX_PREEMPTIONS, "I14: preempted too often");
            assert!(seq.num_tokens() <= limits.max_model_len, "I11: longer than the context");
        }
        if self.state.seqs.iter().next().is_none() && self.state.reads.is_empty() {
            assert_eq!(self.state.pool.num_used(), 0, "I10: leaked blocks");
        }
    }
}
