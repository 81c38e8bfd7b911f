//! Pins the blocks of finished answers that another worker will fetch, and tracks blocks that are being read.
//!
//! ```text
//!                  pin(request, lease)       the answer ends
//! a prompt runs ------------------------> .. ---------------> pinned [ 7 | 4 | 9 ]   until unpin, the lease's end,
//!    |                                                          |                    or until blocks run out
//!    +-- begin_read(request, answer, index) <-------------------+
//!          block being read -- read_ended
//!
//! allocation order of the pool   [ plain | cached ]  [ pinned: the longest pinned answer first, its end first ]
//! ```
//!
//! Pinning is an eviction order, not a hold: pinned blocks count as free in every decision and are allocated last, so
//! pinning never delays a request. An answer that loses a block keeps those before it; the plan that took the block
//! reports the loss ([`PinLost`]). A block that is being read is not free, like one that is being loaded: a sequence
//! that needs it waits for the read to end.
//!
//! Only full, computed blocks are pinned and read: they are immutable.

use alloc::vec::Vec;

use crate::sequence::Sequence;
use crate::state::State;
use crate::step::{PinLost, UnpinReason};
use crate::{BlockId, BlockRead, CacheEvent, PinnedAnswer, Scheduler, SeqId, StateSlot, Step};
use protocol::{Nanos, RequestId};

impl Scheduler {
    /// Pins the full blocks of `request`'s answers for `lease` from when they finish; not when it is aborted or
    /// stopped. False if there is no such unfinished request.
    pub fn pin(&mut self, request: RequestId, lease: Nanos) -> bool {
        let active = self.state.requests.get_mut(&request);
        active.map(|active| active.pin_lease = Some(lease)).is_some()
    }

    /// Moves the lease end of the pinned blocks of `request`: later while its peer is connected, earlier when it is
    /// gone. False if none is pinned.
    pub fn pin_until(&mut self, request: RequestId, until: Nanos) -> bool {
        let pinned = self.state.pinned.iter_mut().filter(|pinned| pinned.request == request);
        pinned.map(|pinned| pinned.until = until).count() > 0
    }

    /// Unpins the blocks of `request`: they stay as cached prefixes. False if none is pinned. Blocks that are being
    /// read stay until the read ends.
    pub fn unpin(&mut self, request: RequestId) -> bool {
        let before = self.state.pinned.len();
        let pool = &mut self.state.pool;
        self.state.pinned.retain(|pinned| {
            let stays = pinned.request != request;
            pinned.blocks.iter().rev().filter(|_| !stays).for_each(|&block| pool.unpin(block));
            stays
        });
        self.state.pinned.len() < before
    }

    /// Pinned answers, the longest pinned first.
    pub fn pinned_answers(&self) -> impl Iterator<Item = &PinnedAnswer> {
        self.state.pinned.iter()
    }

    /// Starts to record changes of the prefix cache, for routers that send a prompt to the worker with its prefix.
    pub fn record_cache_events(&mut self) {
        self.state.pool.record_events();
    }

    /// The changes since the last call, in order. Empty unless [`Scheduler::record_cache_events`] was called.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.state.pool.take_events()
    }

    /// Pinned blocks that no sequence or reader holds: free, and allocated last.
    pub fn pinned_blocks(&self) -> usize {
        self.state.pool.num_pinned()
    }

    /// The full, computed blocks of a running or pinned answer: block `i` starts at token `i * block_size`. Empty while
    /// it waits or loads blocks. Of several answers the first has the prompt's.
    pub fn full_blocks(&self, request: RequestId, answer: usize) -> &[BlockId] {
        let pinned = self.state.pinned.iter().find(|pinned| (pinned.request, pinned.answer) == (request, answer));
        if let Some(pinned) = pinned {
            return &pinned.blocks;
        }
        let active = self.state.requests.get(&request);
        let seq = active.and_then(|active| *active.answers.get(answer)?).map(|seq| &self.state.seqs[seq]);
        match seq {
            Some(seq) if !seq.is_loading() => full_blocks(seq),
            _ => &[],
        }
    }

    /// The states behind the last full block before the prompt's last token, from which another worker goes on. `None`
    /// for models without states, before the answer is pinned, and when the checkpoint was evicted. Its
    /// bytes must be read before the next plan.
    pub fn pinned_checkpoint(&self, request: RequestId) -> Option<StateSlot> {
        let pinned = self.state.pinned.iter().find(|pinned| pinned.request == request);
        self.state.pool.state_of(pinned?.prompt_end?)
    }

    /// Begins a read of one of [`Scheduler::full_blocks`]: its content stays until [`Scheduler::read_ended`], whatever
    /// happens to its request. `None` if there is no such block, or if it is reserved for a protected sequence: retry
    /// later.
    #[must_use = "a block stays allocated until its read has ended"]
    pub fn begin_read(&mut self, request: RequestId, answer: usize, index: usize) -> Option<BlockRead> {
        let block = *self.full_blocks(request, answer).get(index)?;
        let state = &mut self.state;
        if state.pool.is_free(block) && state.pool.num_free() <= state.reserved_blocks() {
            return None;
        }
        state.pool.begin_read(block);
        let read = BlockRead { request, answer, index, block };
        state.reads.push(read);
        Some(read)
    }

    /// Ends a read. Panics if it had not begun.
    pub fn read_ended(&mut self, read: BlockRead) {
        let place = self.state.reads.iter().position(|other| *other == read).expect("a read ends once");
        self.state.reads.swap_remove(place);
        self.state.pool.end_read(read.block);
    }

    /// Blocks that are being read.
    pub fn reads(&self) -> &[BlockRead] {
        &self.state.reads
    }
}

fn full_blocks(seq: &Sequence) -> &[BlockId] {
    &seq.table[..seq.num_computed() / seq.table.block_size()]
}

/// State transitions of pinned answers.
impl State {
    /// An answer finished: its blocks are pinned if that was requested.
    pub(crate) fn pin_finished(&mut self, id: SeqId, now: Nanos) {
        let seq = &mut self.seqs[id];
        let Some(lease) = self.requests.get(&seq.request.id).and_then(|active| active.pin_lease) else { return };
        let blocks = full_blocks(seq).to_vec();
        if !blocks.is_empty() {
            blocks.iter().for_each(|&block| self.pool.pin(block));
            let until = Nanos(now.0.saturating_add(lease.0));
            let end = ((seq.num_prompt_tokens() - 1) / self.limits.block_size).checked_sub(1);
            let end = end.filter(|_| self.limits.states.is_some());
            let prompt_end = end.and_then(|last| self.pool.content_named(&seq.content(last, &self.hasher).0));
            self.pinned.push(PinnedAnswer { request: seq.request.id, answer: seq.answer(), until, blocks, prompt_end });
        }
    }

    /// Unpins answers whose lease has ended by `now`.
    pub(crate) fn end_leases(&mut self, now: Nanos, step: &mut Step) {
        let pool = &mut self.pool;
        self.pinned.retain(|pinned| {
            let stays = pinned.until > now;
            if !stays {
                pinned.blocks.iter().rev().for_each(|&block| pool.unpin(block));
                step.lost.push(PinLost {
                    request: pinned.request,
                    answer: pinned.answer,
                    left: 0,
                    why: UnpinReason::Lease,
                });
            }
            stays
        });
    }

    /// Unpins the blocks behind those that were just taken: without their prefix they are useless.
    pub(crate) fn truncate_pinned(&mut self, step: &mut Step) {
        let pool = &mut self.pool;
        self.pinned.retain_mut(|pinned| {
            let Some(left) = pinned.blocks.iter().position(|&block| pool.pins(block) == 0) else { return true };
            for block in pinned.blocks.drain(left..).rev() {
                if pool.pins(block) > 0 {
                    pool.unpin(block);
                }
            }
            step.lost.push(PinLost { request: pinned.request, answer: pinned.answer, left, why: UnpinReason::Blocks });
            left > 0
        });
    }

    /// Whether blocks will be free when a read ends.
    pub(crate) fn reads_will_free(&self) -> bool {
        self.reads.iter().any(|read| self.pool.refs(read.block) == 0)
    }
}
