//! Blocks that another worker has computed land in the host tier, and are found there like what this one computed.
//!
//! ```text
//! expect(request)   tokens are known here, so names are made here: no hash comes from outside, none must be believed
//! adopt(request, i) -> slot   pinned, without a name          only behind block i - 1
//! the engine puts the bytes into it, and compares their checksum
//! adopted(slot, good)         good: an ordinary content of the tier, which find_prefix judges like any other
//!                             bad:  the slot is empty again; a miss from there on
//! ```
//!
//! A transfer is a cache: what is missing, late or wrong is computed here. Landed blocks lie before those that they
//! follow in the order of what gives way, so of a prefix the end goes first; what they follow becomes the last to give
//! way when it is asked what is missing, or what lands behind an old prefix would go as soon as it has come; and no block
//! takes its parent's slot.

use alloc::vec::Vec;
use core::ops::Range;

use crate::kv::{ContentName, FullBlock};
use crate::sequence::Status;
use crate::{RequestId, Scheduler, SeqId, TierSlot};

/// Why there is no slot for a block from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotAdopted {
    /// Its request does not wait for it: it runs, or it is gone.
    NotWaiting,
    /// It is not full, it has the last known token, which is computed in any case, or its request stays out of the
    /// cache.
    NotCached,
    /// It is here already.
    Known,
    /// What comes before it is not here.
    NoParent,
    /// There is no tier, or every slot is in use for something that is moving, or for its parent. Others may come free.
    NoRoom,
}

impl Scheduler {
    /// Of the blocks of a request that is expected or waits, those that [`Scheduler::adopt`] has slots for: what the
    /// cache and the tiers do not have, and no further than what another worker may compute. Empty where it stays out of
    /// the cache. What is here of them counts as used now: whoever asks is about to send for what follows. Cost: a
    /// look-up for each block that is here.
    pub fn missing_blocks(&mut self, request: RequestId) -> Range<usize> {
        let Ok(id) = self.adoptive(request) else { return 0..0 };
        let most = self.state.seqs[id].num_blocks_to_look_up();
        self.state.seqs[id].set_registered(0, None);
        let known = self.known_blocks(id, most).0;
        let (seq, pool) = (&mut self.state.seqs[id], &mut self.state.pool);
        // The beginning last: it gives way after the end.
        (0..known).rev().for_each(|block| pool.touch(&seq.content(block, &self.state.hasher).0));
        known..most
    }

    /// Short names of the full blocks of its prompt that may be looked up, of a request that is expected or waits: what
    /// another worker with the same key may have. Empty where it stays out of the cache. Cost: a hash for each block,
    /// once.
    pub fn prompt_chain(&mut self, request: RequestId) -> Vec<u64> {
        let Ok(id) = self.adoptive(request) else { return Vec::new() };
        let seq = &mut self.state.seqs[id];
        (0..seq.num_blocks_to_look_up()).map(|block| seq.content(block, &self.state.hasher).0.short()).collect()
    }

    /// A slot of the host tier for block `index` of a request that is expected or waits. Nobody finds it before
    /// [`Scheduler::adopted`], and nothing else is put into it. Bytes may be put there once the transfers of every step
    /// planned until now are done. Cost: a few look-ups where blocks come in their order, else as many as blocks before
    /// it.
    pub fn adopt(&mut self, request: RequestId, index: usize) -> Result<TierSlot, NotAdopted> {
        let id = self.adoptive(request)?;
        if index >= self.state.seqs[id].num_blocks_to_look_up() {
            return Err(NotAdopted::NotCached);
        }
        let (count, parent) = self.known_blocks(id, index);
        if count < index {
            return Err(NotAdopted::NoParent);
        }
        let (seq, pool) = (&mut self.state.seqs[id], &mut self.state.pool);
        let salt = seq.request.salt;
        let (hash, tokens) = seq.content(index, &self.state.hasher);
        let block = FullBlock { hash, parent, salt, tokens };
        if pool.find(&block).is_some() {
            return Err(NotAdopted::Known);
        }
        pool.adopt(&block).ok_or(NotAdopted::NoRoom)
    }

    /// The sequence of a request that blocks from elsewhere may be for.
    fn adoptive(&self, request: RequestId) -> Result<SeqId, NotAdopted> {
        let active = self.state.requests.get(&request).ok_or(NotAdopted::NotWaiting)?;
        let id = active.answers.iter().flatten().next().copied().ok_or(NotAdopted::NotWaiting)?;
        let seq = &self.state.seqs[id];
        if !matches!(seq.status, Status::Expecting | Status::Waiting) {
            return Err(NotAdopted::NotWaiting);
        }
        let is_cached = self.state.limits.enable_prefix_caching && seq.request.use_prefix_cache;
        if is_cached { Ok(id) } else { Err(NotAdopted::NotCached) }
    }

    /// How many of the first `most` blocks of a sequence without blocks are here, and the last one's name.
    fn known_blocks(&mut self, id: SeqId, most: usize) -> (usize, Option<ContentName>) {
        let (seq, pool) = (&mut self.state.seqs[id], &self.state.pool);
        let salt = seq.request.salt;
        // It holds no block, so what is noted of its blocks is how far the cache was seen to know them.
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

    /// The bytes for a slot have come, `good` if they are what was sent, or will not come. False if the block has no
    /// place in the cache: it is bad, or equal to one that came meanwhile, or what comes before it is lost. Panics if
    /// the slot was not given by [`Scheduler::adopt`].
    pub fn adopted(&mut self, slot: TierSlot, good: bool) -> bool {
        self.state.pool.adopted(slot, good)
    }
}
