//! The block pool: reference counts, allocation order, and which blocks hold which prefix.
//!
//! ```text
//!            take()                          share()
//!   free ------------> held (refs = 1) <------------------+
//!    ^                     |  register() once full        |
//!    | release() to 0      v                              |
//!    +-------- plain    held, cached -- release() to 0 -> idle, cached
//!    ^                                                    |
//!    +------------- evicted by take(), see idle.rs -------+ its content may move to a tier
//!
//! allocation order   [ plain | cached, least worth keeping first ]  [ pinned, longest pinned first ]
//! ```
//!
//! A *pinned* block ([`crate::pin`]) is free like any other and allocated last. A block with *readers* is not
//! allocated, even if all tables release it. A pinned one stays in its list while it is read, so reads do not change
//! the order.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::idle::IdleBlocks;
use super::list::List;
use super::prefix::PrefixIndex;
use super::returns::Pace;
use super::seen::{Fate, Seen, Taker};
use super::states::{StateSlot, StateSlots, StateUse};
use super::tiers::Tiers;
use super::{BlockHash, BlockId, BlockSave, ChainHasher, SlotSpill, SwapStats, Tier, TierSizes, TierSlot};
use protocol::{Nanos, TokenId};

/// Identifies a *content* of the prefix cache, wherever it is. Ids are never reused: after an eviction the old name
/// finds nothing rather than another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentName {
    pub(crate) hash: BlockHash,
    pub(crate) id: u64,
}

/// The one place of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// A block of the pool, readable at once.
    Block(BlockId),
    /// A tier slot, to be loaded.
    Slot(TierSlot),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) place: Location,
    /// Its name: the parent of the next block.
    pub(crate) name: ContentName,
}

impl Hit {
    /// The block, if it is in the pool.
    pub(crate) fn block(&self) -> Option<BlockId> {
        match self.place {
            Location::Block(block) => Some(block),
            Location::Slot(_) => None,
        }
    }
}

/// A full block of a sequence: everything that a hit is compared with.
#[derive(Clone, Copy)]
pub(crate) struct FullBlock<'a> {
    /// Hash of its tokens and all before them.
    pub(crate) hash: BlockHash,
    /// The preceding block's content, if any.
    pub(crate) parent: Option<ContentName>,
    /// Isolation salt of its tenant.
    pub(crate) salt: u64,
    pub(crate) tokens: &'a [TokenId],
}

/// A change of the prefix cache, blocks and tiers alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// A full block can be found.
    Found {
        /// Its hash, equal on all workers with the same key.
        hash: BlockHash,
        /// The preceding block, if any.
        parent: Option<BlockHash>,
        /// Isolation salt of its tenant.
        salt: u64,
        /// `block_size` token ids.
        tokens: Vec<TokenId>,
    },
    /// The block can no longer be found.
    Lost {
        /// Its hash.
        hash: BlockHash,
    },
    /// Of a model with states: whether a block that can be found has a checkpoint at its end, where a prompt goes on.
    Checkpoint {
        /// Its hash.
        hash: BlockHash,
        /// Whether it has one from now on.
        is_kept: bool,
    },
    /// No block can be found: a new scheduler starts.
    Cleared,
}

fn record_found(events: &mut Option<Vec<CacheEvent>>, full: &FullBlock) {
    if let Some(events) = events {
        let &FullBlock { hash, parent, salt, tokens } = full;
        let parent = parent.map(|parent| parent.hash);
        events.push(CacheEvent::Found { hash, parent, salt, tokens: tokens.to_vec() });
    }
}

/// A slot for a received block. Its tokens are in the slot already.
#[derive(Clone, Copy, Debug)]
struct PendingReceive {
    slot: TierSlot,
    hash: BlockHash,
    parent: Option<ContentName>,
    salt: u64,
}

/// The content of a place. Its tokens are in the arena beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) hash: BlockHash,
    pub(super) id: u64,
    parent: Option<u64>,
    salt: u64,
    /// Whether it is worth a tier slot.
    worth_saving: bool,
    /// Its checkpoint: the states after its last token.
    state: Option<StateSlot>,
}

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    /// Finished answers that pin it.
    pins: u32,
    /// Reads in progress.
    readers: u32,
    content: Option<Content>,
    /// Of the content.
    pace: Pace,
    /// The block of the content before it, when it was registered, and contents in blocks behind this one.
    parent: Option<BlockId>,
    children: u32,
}

impl Block {
    /// Whether it may be allocated.
    fn is_free(&self) -> bool {
        self.refs == 0 && self.readers == 0
    }

    /// Whether it is in the pinned list.
    fn is_in_pinned_list(&self) -> bool {
        self.refs == 0 && self.pins > 0
    }
}

/// All blocks: their holders and known contents. Sized once; no call allocates, except for
/// [events](BlockPool::record_events).
pub(crate) struct BlockPool {
    block_size: usize,
    blocks: Vec<Block>,
    /// Unreferenced blocks.
    free: IdleBlocks,
    /// Unreferenced pinned blocks, allocated when no other is left, and how many of them have readers.
    pinned: List,
    num_pinned_read: usize,
    /// Token ids of cached blocks, `[num_blocks, block_size]`.
    tokens: Vec<TokenId>,
    index: PrefixIndex<Location>,
    tiers: Tiers,
    /// Of models with states; else there are none.
    states: StateSlots,
    /// Evicted contents that the current step must save.
    saves: Vec<BlockSave>,
    /// Slots of blocks being received.
    receiving: Vec<PendingReceive>,
    /// What was in the cache, and what became of it.
    pub(crate) seen: Seen,
    /// Recorded cache events, if enabled. The only part that grows.
    events: Option<Vec<CacheEvent>>,
    next_id: u64,
    mark: Option<CacheMark>,
    num_cached: usize,
    num_taken: u64,
    num_evicted: u64,
    num_pinned_taken: u64,
    num_sharings: u64,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` tokens, without contents, and of free slots for states.
    pub(crate) fn new(num_blocks: usize, block_size: usize, state_slots: usize) -> BlockPool {
        assert!(num_blocks > 0 && num_blocks < u32::MAX as usize && block_size > 0);
        BlockPool {
            block_size,
            blocks: vec![Block::default(); num_blocks],
            free: IdleBlocks::full(num_blocks),
            pinned: List::empty(num_blocks),
            num_pinned_read: 0,
            tokens: vec![0; num_blocks * block_size],
            index: PrefixIndex::new(num_blocks),
            tiers: Tiers::new(TierSizes::default(), block_size),
            states: StateSlots::new(state_slots),
            saves: Vec::new(),
            receiving: Vec::new(),
            seen: Seen::new(num_blocks, block_size),
            events: None,
            next_id: 0,
            mark: None,
            num_cached: 0,
            num_taken: 0,
            num_evicted: 0,
            num_pinned_taken: 0,
            num_sharings: 0,
        }
    }

    /// Adds tiers for evicted contents. Call before anything is cached.
    pub(crate) fn set_tiers(&mut self, sizes: TierSizes) {
        assert_eq!(self.index.len(), 0, "tiers are there from the start");
        let num_places = self.num_blocks() + sizes.host_slots + sizes.disk_slots;
        (self.index, self.seen) = (PrefixIndex::new(num_places), Seen::new(num_places, self.block_size));
        self.tiers = Tiers::new(sizes, self.block_size);
        // Each block is allocated, and so evicted, at most once per step.
        self.saves = Vec::with_capacity(self.num_blocks().min(sizes.host_slots));
        self.receiving = Vec::with_capacity(sizes.host_slots);
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that [`BlockPool::take`] can allocate, cached and pinned ones included.
    pub(crate) fn num_free(&self) -> usize {
        self.free.len() + self.num_pinned()
    }

    /// Pinned blocks that may be allocated.
    pub(crate) fn num_pinned(&self) -> usize {
        self.pinned.len() - self.num_pinned_read
    }

    /// Pinned blocks allocated since start.
    pub(crate) fn num_pinned_taken(&self) -> u64 {
        self.num_pinned_taken
    }

    /// Blocks in tables or being read.
    pub(crate) fn num_used(&self) -> usize {
        self.num_blocks() - self.num_free()
    }

    /// Blocks with a cached content, held or idle.
    pub(crate) fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// Blocks allocated since start.
    pub(crate) fn num_taken(&self) -> u64 {
        self.num_taken
    }

    /// Cached contents evicted since start.
    pub(crate) fn num_evicted(&self) -> u64 {
        self.num_evicted
    }

    /// Changes of sharing since start: while it is constant, no sequence's part of a shared block changes.
    pub(crate) fn num_sharings(&self) -> u64 {
        self.num_sharings
    }

    /// Tables that name `block`.
    pub(crate) fn refs(&self, block: BlockId) -> usize {
        self.blocks[block.index()].refs as usize
    }

    /// Whether `block` may be allocated.
    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.blocks[block.index()].is_free()
    }

    /// Finished answers that pin `block`.
    pub(crate) fn pins(&self, block: BlockId) -> usize {
        self.blocks[block.index()].pins as usize
    }

    /// Whether `block` is cached: then it is immutable.
    pub(crate) fn is_cached(&self, block: BlockId) -> bool {
        self.blocks[block.index()].content.is_some()
    }

    /// Whether a content is cached under `hash`. Not verified: see [`BlockPool::find`].
    pub(crate) fn holds(&self, hash: &BlockHash) -> bool {
        self.index.get(hash).is_some()
    }

    /// Cached contents, in blocks and tiers.
    #[cfg(test)]
    pub(crate) fn num_found(&self) -> usize {
        self.index.len()
    }

    /// Allocates a free block with refs = 1: a plain one if there is one, else the cached one that is least worth keeping,
    /// whose content moves to a tier if possible (see [`BlockPool::drain_saves`]), else the longest pinned one. `None`
    /// when every block is held.
    pub(crate) fn take(&mut self, by: Option<Taker>) -> Option<BlockId> {
        let is_parent = |at: usize| self.blocks[at].children > 0;
        let block = match self.free.next(self.seen.now, &self.seen.returns, is_parent) {
            Some(first) => {
                self.free.remove(first);
                BlockId(first as u32)
            }
            None => self.take_pinned()?,
        };
        if self.is_cached(block) {
            self.num_evicted += 1;
            self.demote(block, by);
        }
        self.blocks[block.index()].refs = 1;
        self.num_taken += 1;
        Some(block)
    }

    fn take_pinned(&mut self) -> Option<BlockId> {
        let first = self.pinned.iter().find(|&at| self.blocks[at].readers == 0)?;
        self.pinned.remove(first);
        self.blocks[first].pins = 0;
        self.num_pinned_taken += 1;
        Some(BlockId(first as u32))
    }

    /// Adds a reference from a table to `block`, which is held or cached.
    pub(crate) fn share(&mut self, block: BlockId) {
        if self.blocks[block.index()].refs == 0 {
            assert!(self.is_cached(block), "sharing an empty block");
            self.leave_list(block);
        } else {
            self.num_sharings += 1;
        }
        let entry = &mut self.blocks[block.index()];
        entry.pace = entry.pace.again(self.seen.now);
        entry.refs += 1;
    }

    /// The table's own blocks are wanted again as soon as there is room.
    pub(crate) fn expect_soon(&mut self, table: &[BlockId]) {
        for block in table {
            let entry = &mut self.blocks[block.index()];
            if entry.refs == 1 {
                entry.pace.gap = Pace::SOON;
            }
        }
    }

    /// Drops a table's reference. The last one moves the block to the free list. Release a table from its end, so that a
    /// prefix outlives what follows it.
    pub(crate) fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.refs > 0, "releasing a free block");
        entry.refs -= 1;
        entry.pace.used = self.seen.now;
        if entry.refs == 0 {
            self.join_list(block);
        } else {
            self.num_sharings += 1;
        }
    }

    /// Puts a block into the list it belongs to.
    fn join_list(&mut self, block: BlockId) {
        let entry = &self.blocks[block.index()];
        if entry.is_in_pinned_list() {
            self.num_pinned_read += usize::from(entry.readers > 0);
            self.pinned.push_last(block.index());
        } else if entry.is_free() && entry.content.is_some() {
            self.free.push_cached(block.index(), entry.pace);
        } else if entry.is_free() {
            self.free.push_plain(block.index());
        }
    }

    /// Removes a block from its list.
    fn leave_list(&mut self, block: BlockId) {
        let entry = &self.blocks[block.index()];
        if entry.is_in_pinned_list() {
            self.num_pinned_read -= usize::from(entry.readers > 0);
            self.pinned.remove(block.index());
        } else if entry.is_free() {
            self.free.remove(block.index());
        }
    }

    /// Looks up the content of `full` in all places. The hash finds a candidate; parent, salt and every token must
    /// match.
    pub(crate) fn find(&self, full: &FullBlock) -> Option<Hit> {
        let &FullBlock { hash, parent, salt, tokens } = full;
        let place = self.index.get(&hash)?;
        let content = self.content_at(place);
        let follows = content.parent == parent.map(|parent| parent.id);
        let equal = follows && content.salt == salt && self.tokens_at(place) == tokens;
        let name = ContentName { hash, id: content.id };
        equal.then_some(Hit { place, name })
    }

    /// Registers a full, computed, held block in the prefix cache, and returns its content's name. If an equal block is
    /// cached, that one pins the name and `block` stays private; if the content is in a tier, it moves here. `None` if
    /// `parent` was evicted meanwhile: lookup could not reach the block. A different content under the same hash is
    /// dropped.
    pub(crate) fn register(&mut self, block: BlockId, full: &FullBlock, gap: Nanos) -> Option<ContentName> {
        let &FullBlock { hash, parent, salt, tokens } = full;
        assert!(self.refs(block) > 0 && !self.is_cached(block), "only a held block is registered, and once");
        assert_eq!(tokens.len(), self.block_size, "only a full block is registered");
        if parent.is_some_and(|parent| !self.is_current(parent)) {
            return None;
        }
        match self.find(full) {
            Some(Hit { place: Location::Block(_), name }) => return Some(name),
            Some(Hit { place: Location::Slot(slot), name }) => {
                let content = self.tiers.drop_content(slot);
                self.index.relocate(&hash, Location::Block(block));
                self.hold(block, content, parent, tokens);
                return Some(name);
            }
            None => {}
        }
        self.blocks[block.index()].pace = Pace { used: self.seen.now, gap };
        let content = self.new_content(hash, parent, salt)?;
        self.index.insert(hash, Location::Block(block));
        record_found(&mut self.events, full);
        self.seen.note_block(hash, parent.map(|parent| parent.hash), salt, tokens);
        self.hold(block, content, parent, tokens);
        Some(ContentName { hash, id: content.id })
    }

    /// Creates a new content. A different one under the same hash is dropped.
    fn new_content(&mut self, hash: BlockHash, parent: Option<ContentName>, salt: u64) -> Option<Content> {
        if let Some(other) = self.index.get(&hash) {
            if parent.is_some_and(|parent| parent.hash == hash) {
                return None; // its parent has the same hash, and dropping the parent makes it unreachable
            }
            self.drop_content(other, self.evicted(None));
        }
        let id = self.next_id;
        self.next_id += 1;
        Some(Content { hash, id, parent: parent.map(|parent| parent.id), salt, worth_saving: true, state: None })
    }

    /// Name of the content of `block`, if it is cached.
    pub(crate) fn name_of(&self, block: BlockId) -> Option<ContentName> {
        let content = self.blocks[block.index()].content.as_ref()?;
        Some(ContentName { hash: content.hash, id: content.id })
    }

    /// Whether that content is still cached.
    pub(crate) fn is_current(&self, name: ContentName) -> bool {
        self.index.get(&name.hash).is_some_and(|place| self.content_at(place).id == name.id)
    }

    /// Panics if an invariant is violated. `loads`: slots being read.
    pub(crate) fn check(&self, uses: &[Uses], loads: &[TierSlot]) {
        assert_eq!(uses.len(), self.num_blocks());
        let mut in_list = vec![false; self.num_blocks()];
        let mut is_after_cached = false;
        self.free.check();
        self.pinned.check();
        for at in self.free.iter() {
            let entry = &self.blocks[at];
            assert!(entry.is_free() && entry.pins == 0, "I3: block {at} is free and referenced, read or pinned");
            assert!(entry.content.is_some() || !is_after_cached, "I3: plain block {at} is listed after cached ones");
            in_list[at] = true;
            is_after_cached |= entry.content.is_some();
        }
        for at in self.pinned.iter() {
            assert!(self.blocks[at].is_in_pinned_list(), "I3: block {at} is not pinned");
            in_list[at] = true;
        }
        let pinned = self.pinned.iter().filter(|&at| self.blocks[at].readers > 0).count();
        assert_eq!(pinned, self.num_pinned_read, "I3: pinned blocks that are read");
        let mut cached = 0;
        for (index, entry) in self.blocks.iter().enumerate() {
            let counted = Uses { tables: entry.refs, pins: entry.pins, readers: entry.readers };
            assert_eq!(counted, uses[index], "I2: references of block {index}");
            let is_listed = entry.is_free() || entry.is_in_pinned_list();
            assert_eq!(is_listed, in_list[index], "I1: block {index} is in exactly one class");
            if let Some(content) = &entry.content {
                cached += 1;
                let place = Location::Block(BlockId(index as u32));
                assert_eq!(self.index.get(&content.hash), Some(place), "I6: block {index} is not under its hash");
            }
        }
        assert_eq!(cached, self.num_cached, "I6: cached blocks");
        let mut children: BTreeMap<Option<u64>, u32> = BTreeMap::new();
        let contents = self.blocks.iter().filter_map(|entry| entry.content.as_ref());
        contents.for_each(|content| *children.entry(content.parent).or_default() += 1);
        for entry in self.blocks.iter().filter(|_| !self.has_tiers()) {
            let counted = entry.content.as_ref().map_or(0, |content| children.get(&Some(content.id)).map_or(0, |&n| n));
            assert_eq!(entry.children, counted, "I6: contents behind a block");
        }
        self.tiers.check(loads.iter().copied().chain(self.receiving.iter().map(|receive| receive.slot)));
        for slot in [Tier::Host, Tier::Disk].into_iter().flat_map(|tier| self.tiers.filled(tier)) {
            let hash = self.tiers.content(slot).expect("it is filled").hash;
            assert_eq!(self.index.get(&hash), Some(Location::Slot(slot)), "I6: {slot:?} is not under its hash");
            cached += 1;
        }
        assert_eq!(cached, self.index.len(), "I6: a content is in one place, and the index names each");
    }

    /// Panics unless every content is under its own hash. Cost: a hash each.
    pub(crate) fn check_contents(&self, hasher: &ChainHasher) {
        let blocks = (0..self.num_blocks() as u32).map(BlockId);
        let in_blocks = blocks.filter(|&block| self.is_cached(block)).map(Location::Block);
        let in_slots =
            [Tier::Host, Tier::Disk].into_iter().flat_map(|tier| self.tiers.filled(tier)).map(Location::Slot);
        let contents: BTreeMap<u64, (&Content, Location)> =
            in_blocks.chain(in_slots).map(|place| (self.content_at(place), place)).map(|c| (c.0.id, c)).collect();
        assert_eq!(contents.len(), self.index.len(), "I6: two contents have one name");
        for &(content, place) in contents.values() {
            let parent = match content.parent.map(|id| contents.get(&id)) {
                None => BlockHash::ROOT,
                Some(Some((parent, _))) => parent.hash,
                Some(None) => continue, // its parent is evicted, so it is unreachable
            };
            let hash = hasher.hash(parent, content.salt, self.tokens_at(place));
            assert!(hash == content.hash, "I6: {place:?} is under a hash that is not its own");
        }
    }

    /// Whether `block`, if cached, holds these tokens under this salt.
    pub(crate) fn may_hold(&self, block: BlockId, salt: u64, tokens: &[TokenId]) -> bool {
        let content = self.blocks[block.index()].content.as_ref();
        content.is_none_or(|content| content.salt == salt && self.tokens_of(block) == tokens)
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    fn content_at_mut(&mut self, place: Location) -> &mut Content {
        match place {
            Location::Block(block) => self.blocks[block.index()].content.as_mut(),
            Location::Slot(slot) => self.tiers.content_mut(slot),
        }
        .expect("the index names contents")
    }

    fn content_at(&self, place: Location) -> &Content {
        match place {
            Location::Block(block) => self.blocks[block.index()].content.as_ref(),
            Location::Slot(slot) => self.tiers.content(slot),
        }
        .expect("the index names contents")
    }

    fn tokens_at(&self, place: Location) -> &[TokenId] {
        match place {
            Location::Block(block) => self.tokens_of(block),
            Location::Slot(slot) => self.tiers.tokens_of(slot),
        }
    }

    fn hold(&mut self, block: BlockId, content: Content, parent: Option<ContentName>, tokens: &[TokenId]) {
        let parent = parent.and_then(|parent| self.index.get(&parent.hash)).and_then(|place| match place {
            Location::Block(parent) => Some(parent),
            Location::Slot(_) => None,
        });
        self.blocks[block.index()].parent = parent;
        if let Some(parent) = parent {
            self.blocks[parent.index()].children += 1;
        }
        let start = block.index() * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.blocks[block.index()].content = Some(content);
        self.num_cached += 1;
    }

    /// Moves an idle block's content to a tier slot if there is one, else drops it. Updates the index; the caller
    /// updates the free list.
    fn demote(&mut self, block: BlockId, by: Option<Taker>) {
        let content = self.leave_block(block);
        let slot = if content.worth_saving { self.tiers.take(Tier::Host) } else { None };
        let Some((slot, evicted)) = slot else { return self.unindex(&content, self.evicted(by)) };
        if let Some(other) = evicted {
            self.unindex(&other, self.evicted(by));
            // Its content may be from this very step: then its save is obsolete.
            self.saves.retain(|save| save.slot != slot);
        }
        let start = block.index() * self.block_size;
        self.tiers.fill(slot, content, &self.tokens[start..start + self.block_size]);
        self.index.relocate(&content.hash, Location::Slot(slot));
        self.saves.push(BlockSave { block, slot });
    }

    /// Takes the content out of its block.
    fn leave_block(&mut self, block: BlockId) -> Content {
        let entry = &mut self.blocks[block.index()];
        let (content, parent) = (entry.content.take().expect("it has a content"), entry.parent.take());
        entry.children = 0;
        self.num_cached -= 1;
        if let Some(parent) = parent.map(|parent| &mut self.blocks[parent.index()])
            && parent.content.as_ref().map(|parent| parent.id) == content.parent
        {
            // It may have been elsewhere meanwhile, and then it counts those that came since.
            parent.children = parent.children.saturating_sub(1);
        }
        content
    }

    /// What comes from now on is forgotten by [`BlockPool::forget`].
    pub(crate) fn mark(&mut self) {
        self.mark = Some(CacheMark { next_id: self.next_id, seen: self.seen.mark() });
    }

    /// Contents of idle blocks that came since the mark are dropped, and no one is told of their requests.
    pub(crate) fn forget(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        for block in (0..self.num_blocks() as u32).map(BlockId) {
            let Block { content, pins, .. } = &self.blocks[block.index()];
            let is_newer = content.as_ref().is_some_and(|content| content.id >= mark.next_id);
            if is_newer && *pins == 0 && self.is_free(block) {
                self.drop_content(Location::Block(block), self.evicted(None));
            }
        }
        self.seen.forget_since(mark.seen);
    }

    fn evicted(&self, by: Option<Taker>) -> Fate {
        Fate::Evicted(self.seen.now, by)
    }

    /// Removes a content, which is in no place any more, from the index. Its checkpoint goes with it.
    fn unindex(&mut self, content: &Content, fate: Fate) {
        let hash = &content.hash;
        if let Some(state) = content.state {
            self.states.forget(state);
        }
        self.index.remove(hash);
        self.seen.note_gone(hash, fate);
        if let Some(events) = &mut self.events {
            events.push(CacheEvent::Lost { hash: *hash });
        }
    }

    /// Starts to record cache events.
    pub(crate) fn record_events(&mut self) {
        self.events.get_or_insert_default();
    }

    /// Events since the last call, in order.
    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.as_mut().map(core::mem::take).unwrap_or_default()
    }

    fn drop_content(&mut self, place: Location, fate: Fate) {
        let content = match place {
            Location::Slot(slot) => self.tiers.drop_content(slot),
            Location::Block(block) => {
                let content = self.leave_block(block);
                let entry = &self.blocks[block.index()];
                if entry.is_free() && entry.pins == 0 {
                    self.free.remove(block.index());
                    self.free.push_plain(block.index());
                }
                content
            }
        };
        self.unindex(&content, fate);
    }
}

/// A moment in the life of a cache.
#[derive(Clone, Copy, Debug)]
struct CacheMark {
    next_id: u64,
    /// Entries of what was seen, and the time.
    seen: (u64, Nanos),
}

/// Uses of a block, as counted by the invariant check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) tables: u32,
    pub(crate) pins: u32,
    pub(crate) readers: u32,
}

/// Pinned blocks and reads: see [`crate::pin`].
impl BlockPool {
    /// Pins `block`: it is allocated last.
    pub(crate) fn pin(&mut self, block: BlockId) {
        self.leave_list(block);
        self.blocks[block.index()].pins += 1;
        self.join_list(block);
    }

    /// Drops one pin.
    pub(crate) fn unpin(&mut self, block: BlockId) {
        self.leave_list(block);
        self.blocks[block.index()].pins -= 1;
        self.join_list(block);
    }

    /// Begins a read of `block`: its content stays until the read ends.
    pub(crate) fn begin_read(&mut self, block: BlockId) {
        if !self.blocks[block.index()].is_in_pinned_list() {
            self.leave_list(block);
        }
        let entry = &mut self.blocks[block.index()];
        entry.readers += 1;
        self.num_pinned_read += usize::from(entry.is_in_pinned_list() && entry.readers == 1);
    }

    pub(crate) fn end_read(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        entry.readers -= 1;
        self.num_pinned_read -= usize::from(entry.is_in_pinned_list() && entry.readers == 0);
        if !entry.is_in_pinned_list() {
            self.join_list(block);
        }
    }
}

/// States: see [`super::states`].
impl BlockPool {
    /// Use of the slots.
    pub(crate) fn state_use(&self) -> StateUse {
        self.states.uses()
    }

    /// Slots that can be taken, idle checkpoints included.
    pub(crate) fn num_free_states(&self) -> usize {
        self.states.num_takeable()
    }

    /// A slot with one holder: a free one, else the least recently used checkpoint that no sequence holds.
    pub(crate) fn take_state(&mut self) -> Option<StateSlot> {
        let (slot, lost) = self.states.take()?;
        lost.into_iter().for_each(|hash| self.set_checkpoint(&hash, None));
        Some(slot)
    }

    /// Adds a holder to a slot that is held or a checkpoint.
    pub(crate) fn share_state(&mut self, slot: StateSlot) {
        self.states.share(slot);
    }

    /// Drops a holder. The last one leaves a checkpoint to the cache, and any other slot free.
    pub(crate) fn release_state(&mut self, slot: StateSlot) {
        self.states.release(slot);
    }

    /// The name of the content under `hash`. Not verified: see [`BlockPool::find`].
    pub(crate) fn content_named(&self, hash: &BlockHash) -> Option<ContentName> {
        self.index.get(hash).map(|place| ContentName { hash: *hash, id: self.content_at(place).id })
    }

    /// The checkpoint of a content.
    pub(crate) fn state_of(&self, name: ContentName) -> Option<StateSlot> {
        let content = self.content_at(self.index.get(&name.hash)?);
        if content.id == name.id { content.state } else { None }
    }

    /// Makes a held slot the checkpoint of a content. False if that is gone, or has one.
    pub(crate) fn keep_state(&mut self, slot: StateSlot, name: ContentName) -> bool {
        let Some(place) = self.index.get(&name.hash).filter(|_| self.states.content(slot).is_none()) else {
            return false;
        };
        let content = self.content_at(place);
        let is_wanted = content.id == name.id && content.state.is_none();
        if is_wanted {
            self.set_checkpoint(&name.hash, Some(slot));
            self.states.keep(slot, name.hash);
        }
        is_wanted
    }

    /// Gives up a content's checkpoint that no sequence holds: a later one of the same sequence takes its place.
    pub(crate) fn drop_checkpoint(&mut self, name: ContentName) {
        let Some(slot) = self.state_of(name).filter(|&slot| !self.states.is_held(slot)) else { return };
        self.set_checkpoint(&name.hash, None);
        self.states.forget(slot);
    }

    fn set_checkpoint(&mut self, hash: &BlockHash, state: Option<StateSlot>) {
        let Some(place) = self.index.get(hash) else { return };
        self.content_at_mut(place).state = state;
        if let Some(events) = &mut self.events {
            events.push(CacheEvent::Checkpoint { hash: *hash, is_kept: state.is_some() });
        }
    }

    /// Panics if an invariant is violated. `holders`: of each slot, as counted.
    pub(crate) fn check_states(&self, holders: &[u32]) {
        self.states.check(holders);
        for slot in (0..holders.len() as u32).map(StateSlot) {
            let content =
                self.states.content(slot).map(|hash| self.content_at(self.index.get(&hash).expect("it is kept")));
            assert!(content.is_none_or(|content| content.state == Some(slot)), "I40: {slot:?} is of another content");
        }
    }
}

/// Tiers: see [`super::tiers`].
impl BlockPool {
    /// Whether evicted contents can move to a tier.
    pub(crate) fn has_tiers(&self) -> bool {
        self.tiers.len(Tier::Host) > 0
    }

    /// Whether an eviction now displaces another content to disk, sooner or later.
    pub(crate) fn swaps_to_disk(&self) -> bool {
        self.tiers.has_disk() && self.tiers.num_empty(Tier::Host) == 0
    }

    /// Counters of the tiers.
    /// The counters of another pool are where these begin.
    pub(crate) fn count_on(&mut self, before: &BlockPool) {
        self.tiers.stats = SwapStats { disk_given_up: false, ..before.tiers.stats };
    }

    pub(crate) fn swap_stats(&self) -> SwapStats {
        self.tiers.stats()
    }

    /// Sets whether a block's content is worth a tier slot on eviction; initially it is.
    pub(crate) fn set_worth_saving(&mut self, block: BlockId, worth_saving: bool) {
        if let Some(content) = &mut self.blocks[block.index()].content {
            content.worth_saving = worth_saving;
        }
    }

    /// Moves out the saves that allocations have caused since the last call, in order.
    pub(crate) fn drain_saves(&mut self, saves: &mut Vec<BlockSave>) {
        self.tiers.stats.saved += self.saves.len() as u64;
        saves.append(&mut self.saves);
    }

    /// Starts writes of host slots to disk until enough are free or being freed.
    pub(crate) fn spill_ahead(&mut self, spills: &mut Vec<SlotSpill>) {
        while self.tiers.wants_spill() {
            let Some(host) = self.tiers.oldest(Tier::Host) else { return };
            let Some((disk, evicted)) = self.tiers.take(Tier::Disk) else { return };
            if let Some(other) = evicted {
                self.unindex(&other, self.evicted(None));
            }
            spills.push(self.tiers.begin_spill(host, disk));
        }
    }

    /// Ends a write to disk: if it succeeded the content moves there, else it stays in host memory.
    pub(crate) fn end_spill(&mut self, spill: SlotSpill, good: bool) {
        if self.tiers.end_spill(spill, good) {
            let hash = self.tiers.finish_spill(spill);
            self.index.relocate(&hash, Location::Slot(spill.disk));
            self.tiers.stats.spilled += 1;
        }
        self.tiers.stats.write_faults += u64::from(!good);
        self.record_disk_result(good);
    }

    /// Begins a read of a slot, which pins its content until then.
    pub(crate) fn begin_load(&mut self, slot: TierSlot) {
        self.tiers.pin(slot);
    }

    /// Ends a read; if it failed, the content is dropped.
    pub(crate) fn end_load(&mut self, slot: TierSlot, good: bool) {
        let stats = &mut self.tiers.stats;
        match (good, slot.tier) {
            (true, Tier::Host) => stats.loaded_from_host += 1,
            (true, Tier::Disk) => stats.loaded_from_disk += 1,
            (false, _) => stats.read_faults += 1,
        }
        if !good && self.tiers.content(slot).is_some() {
            self.drop_content(Location::Slot(slot), Fate::Lost(self.seen.now));
        }
        self.tiers.unpin(slot);
        if slot.tier == Tier::Disk {
            self.record_disk_result(good);
        }
    }

    /// Marks a tier content as recently used: a request needs what follows it.
    pub(crate) fn touch(&mut self, hash: &BlockHash) {
        if let Some(Location::Slot(slot)) = self.index.get(hash) {
            self.tiers.touch(slot);
        }
    }

    /// A host slot for a content that is not cached and will be received. `None` if that would evict its parent.
    pub(crate) fn begin_receive(&mut self, full: &FullBlock) -> Option<TierSlot> {
        let &FullBlock { hash, parent, salt, tokens } = full;
        let oldest = self.tiers.oldest(Tier::Host).and_then(|slot| self.tiers.content(slot));
        let is_parent = oldest.zip(parent).is_some_and(|(oldest, parent)| oldest.id == parent.id);
        if self.tiers.num_empty(Tier::Host) == 0 && is_parent {
            return None;
        }
        let (slot, evicted) = self.tiers.take(Tier::Host)?;
        if let Some(other) = evicted {
            self.unindex(&other, self.evicted(None));
        }
        self.tiers.begin_receive(slot, tokens);
        self.receiving.push(PendingReceive { slot, hash, parent, salt });
        Some(slot)
    }

    /// Ends a transfer. True if the content is now cached.
    pub(crate) fn end_receive(&mut self, slot: TierSlot, good: bool) -> bool {
        let place = self.receiving.iter().position(|receive| receive.slot == slot).expect("a transfer ends once");
        let PendingReceive { hash, parent, salt, .. } = self.receiving.swap_remove(place);
        let full = FullBlock { hash, parent, salt, tokens: self.tiers.tokens_of(slot) };
        let is_wanted = parent.is_none_or(|parent| self.is_current(parent)) && self.find(&full).is_none();
        let content = if good && is_wanted { self.new_content(hash, parent, salt) } else { None };
        if content.is_some() {
            self.index.insert(hash, Location::Slot(slot));
            let tokens = self.tiers.tokens_of(slot);
            record_found(&mut self.events, &FullBlock { hash, parent, salt, tokens });
            self.seen.note_block(hash, parent.map(|parent| parent.hash), salt, tokens);
        }
        let parent = parent.and_then(|parent| match self.index.get(&parent.hash) {
            Some(Location::Slot(slot)) => Some(slot),
            _ => None,
        });
        self.tiers.end_receive(slot, content, parent);
        content.is_some()
    }

    fn record_disk_result(&mut self, good: bool) {
        if self.tiers.record_disk_result(good) {
            let lost: Vec<TierSlot> = self.tiers.filled(Tier::Disk).collect();
            lost.into_iter().for_each(|slot| self.drop_content(Location::Slot(slot), Fate::Lost(self.seen.now)));
        }
    }
}
