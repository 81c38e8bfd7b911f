//! Receives KV blocks that another worker computed into the host tier, where prefix lookup finds them.
//!
//! ```text
//! admit_remote(request)      tokens are known, so block hashes are computed here: none is accepted from the peer
//! begin_receive(request, i)  -> slot, pinned and without a name; only if block i - 1 is present
//! the engine writes the bytes into the slot and compares their checksum
//! end_receive(slot, good)    good: ordinary tier content, which find_prefix may use
//!                            bad:  the slot is freed, and lookup misses from this block on
//! ```
//!
//! Of a model with states the last block is of use with a checkpoint only, which comes behind it
//! ([`Scheduler::receive_checkpoint`]).
//!
//! A transfer only fills a cache: missing, late or corrupt blocks are computed here. Eviction order: a received block
//! goes before its parent, so a prefix loses its end first; [`Scheduler::missing_blocks`] marks the present prefix as
//! used, or blocks received behind an old prefix would be evicted at once; and a block never takes its parent's slot.

use alloc::vec::Vec;
use core::ops::Range;

use crate::kv::{ContentName, FullBlock};
use crate::sequence::Status;
use crate::{Scheduler, SeqId, StateSlot, TierSlot};
use protocol::RequestId;

/// Why there is no slot for a received block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveError {
    /// The request does not wait for it: it runs, or is gone.
    NotWaiting,
    /// The block is not full, contains the last known token (always computed here), or its request bypasses the cache.
    NotCached,
    /// The block is already present.
    Known,
    /// The block before it is not present.
    NoParent,
    /// There is no host tier, or every slot is pinned or holds the parent. Retry later.
    NoRoom,
}

impl Scheduler {
    /// Blocks of an expected or waiting request that [`Scheduler::begin_receive`] has slots for: those that neither the cache
    /// nor the tiers have and that another worker may compute. Empty if the request bypasses the cache. Marks the
    /// present ones as recently used, because the caller is about to fetch what follows them. Cost: one lookup per
    /// present block.
    pub fn missing_blocks(&mut self, request: RequestId) -> Range<usize> {
        let Ok(id) = self.receiver(request) else { return 0..0 };
        let most = self.state.seqs[id].num_blocks_to_look_up();
        self.state.seqs[id].set_registered(0, None);
        let known = self.known_blocks(id, most).0;
        let (seq, pool) = (&mut self.state.seqs[id], &mut self.state.pool);
        // From the end, so that the beginning is evicted last.
        (0..known).rev().for_each(|block| pool.touch(&seq.content(block, &self.state.hasher).0));
        known..most
    }

    /// Truncated hashes of the prompt's full blocks of an expected or waiting request, for lookup on another worker
    /// with the same key. Empty if the request bypasses the cache. Cost: a hash per block, once.
    pub fn prompt_chain(&mut self, request: RequestId) -> Vec<u64> {
        let Ok(id) = self.receiver(request) else { return Vec::new() };
        let seq = &mut self.state.seqs[id];
        (0..seq.num_blocks_to_look_up()).map(|block| seq.content(block, &self.state.hasher).0.short()).collect()
    }

    /// A host-tier slot for block `index` of an expected or waiting request. Lookup does not find it before
    /// [`Scheduler::end_receive`], and it is not reused. The bytes may be written once the transfers of every step planned
    /// so far are done. Cost: a few lookups if blocks arrive in order, else one per preceding block.
    pub fn begin_receive(&mut self, request: RequestId, index: usize) -> Result<TierSlot, ReceiveError> {
        let id = self.receiver(request)?;
        if index >= self.state.seqs[id].num_blocks_to_look_up() {
            return Err(ReceiveError::NotCached);
        }
        let (count, parent) = self.known_blocks(id, index);
        if count < index {
            return Err(ReceiveError::NoParent);
        }
        let (seq, pool) = (&mut self.state.seqs[id], &mut self.state.pool);
        let salt = seq.request.salt;
        let (hash, tokens) = seq.content(index, &self.state.hasher);
        let block = FullBlock { hash, parent, salt, tokens };
        if pool.find(&block).is_some() {
            return Err(ReceiveError::Known);
        }
        pool.begin_receive(&block).ok_or(ReceiveError::NoRoom)
    }

    /// Tokens that a pass here would compute of the prompt's full blocks: those behind the present ones, and of a model
    /// with states those behind the last checkpoint. Cost: one lookup per present block.
    pub fn tokens_to_compute(&mut self, request: RequestId) -> usize {
        let Ok(id) = self.receiver(request) else { return 0 };
        let most = self.state.seqs[id].num_blocks_to_look_up();
        let mut usable = self.missing_blocks(request).start;
        if self.state.limits.states.is_some() {
            let seq = &mut self.state.seqs[id];
            let mut has_checkpoint = |block: usize| {
                let name = self.state.pool.content_named(&seq.content(block, &self.state.hasher).0);
                name.is_some_and(|name| self.state.pool.state_of(name).is_some())
            };
            usable = (0..usable).rev().find(|&block| has_checkpoint(block)).map_or(0, |last| last + 1);
        }
        (most - usable) * self.state.limits.block_size
    }

    /// A slot for the states behind the first `blocks` blocks of an expected or waiting request, which are present: from
    /// now on their checkpoint. The bytes must be written before the next plan. Cost: as of
    /// [`Scheduler::begin_receive`].
    pub fn receive_checkpoint(&mut self, request: RequestId, blocks: usize) -> Result<StateSlot, ReceiveError> {
        let id = self.receiver(request)?;
        if self.state.limits.states.is_none() || blocks > self.state.seqs[id].num_blocks_to_look_up() {
            return Err(ReceiveError::NotCached);
        }
        let (count, name) = self.known_blocks(id, blocks);
        let name = name.filter(|_| count == blocks).ok_or(ReceiveError::NoParent)?;
        let spare = self.state.spare_states();
        let pool = &mut self.state.pool;
        if pool.state_of(name).is_some() {
            return Err(ReceiveError::Known);
        }
        let slot = if spare > 0 { pool.take_state() } else { None }.ok_or(ReceiveError::NoRoom)?;
        let is_kept = pool.keep_state(slot, name);
        pool.release_state(slot);
        assert!(is_kept, "the content is present, and has no checkpoint");
        Ok(slot)
    }

    /// The sequence that received blocks of this request are for.
    fn receiver(&self, request: RequestId) -> Result<SeqId, ReceiveError> {
        let active = self.state.requests.get(&request).ok_or(ReceiveError::NotWaiting)?;
        let id = active.answers.iter().flatten().next().copied().ok_or(ReceiveError::NotWaiting)?;
        let seq = &self.state.seqs[id];
        if !matches!(seq.status, Status::RemotePrefill | Status::Waiting) {
            return Err(ReceiveError::NotWaiting);
        }
        let is_cached = self.state.limits.enable_prefix_caching && seq.request.use_prefix_cache;
        if is_cached { Ok(id) } else { Err(ReceiveError::NotCached) }
    }

    /// The number of the first `most` blocks that are present, for a sequence that holds none, and the last one's name.
    fn known_blocks(&mut self, id: SeqId, most: usize) -> (usize, Option<ContentName>) {
        let (seq, pool) = (&mut self.state.seqs[id], &self.state.pool);
        let salt = seq.request.salt;
        // A sequence without blocks uses its registration state as a cursor of the known prefix.
        let (mut count, mut parent) = seq.registered();
        if count > most || parent.is_some_and(|parent| !pool.is_current(parent)) {
            (count, parent) = (0, None);
        }
        while count < most {
            let (hash, tokens) = seq.content(count, &self.state.hasher);
            let Some(hit) = pool.find(&FullBlock { hash, parent, salt, tokens }) else { break };
            (count, parent) = (count + 1, Some(hit.name));
        }
        seq.set_registered(count, parent);
        (count, parent)
    }

    /// Ends a transfer into `slot`; `good` if the bytes arrived intact. Returns false if the block is not cached: it is
    /// bad, an equal one was cached meanwhile, or its parent was evicted. Panics if the slot is not from
    /// [`Scheduler::begin_receive`].
    pub fn end_receive(&mut self, slot: TierSlot, good: bool) -> bool {
        self.state.pool.end_receive(slot, good)
    }
}
