//! The pool: reference counts, the free list in order of use, and which blocks hold which prefix.
//!
//! ```text
//!            take()                          share()
//!   free ------------> held (refs = 1) <------------------+
//!    ^                     |  register() once full        |
//!    | release() to 0      v                              |
//!    +-------- plain    held, cached -- release() to 0 -> idle, cached
//!    ^                                                    |
//!    +------------- evicted by take(), oldest first ------+ its content may live on in a tier
//!
//! the order of take()   [ plain | cached, least recently used first ]  [ kept, longest kept first ]
//! ```
//!
//! A *kept* block ([`crate::keep`]) is free like any other and taken last. A *pinned* one is being read: it is not
//! taken, whoever lets go of it meanwhile. A kept one has its place in the order all the same, so that reading changes
//! nothing in it.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::list::List;
use super::prefix::PrefixIndex;
use super::tiers::Tiers;
use super::{BlockHash, BlockId, BlockSave, ChainHasher, SlotSpill, SwapStats, Tier, TierSizes, TierSlot};
use crate::TokenId;

/// Names a *content* of the prefix cache, wherever it is. Numbers are never used twice: when a content is lost, its old
/// name finds nothing instead of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentName {
    /// Its hash, by which it is looked up.
    pub(crate) hash: BlockHash,
    /// Its number.
    pub(crate) id: u64,
}

/// Where a content is: in exactly one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a block of the pool, where it can be read at once.
    Block(BlockId),
    /// In a tier, from where it must be loaded.
    Slot(TierSlot),
}

/// A content that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Where.
    pub(crate) place: Place,
    /// Its name: the parent of what follows.
    pub(crate) name: ContentName,
}

impl Hit {
    /// The block, if it is in one.
    pub(crate) fn block(&self) -> Option<BlockId> {
        match self.place {
            Place::Block(block) => Some(block),
            Place::Slot(_) => None,
        }
    }
}

/// A full block of some sequence: everything that a hit is compared with.
#[derive(Clone, Copy)]
pub(crate) struct FullBlock<'a> {
    /// Of its tokens and all before them.
    pub(crate) hash: BlockHash,
    /// What comes before it, if anything does.
    pub(crate) parent: Option<ContentName>,
    /// Of its tenant.
    pub(crate) salt: u64,
    pub(crate) tokens: &'a [TokenId],
}

/// What the prefix cache finds from now on, or finds no more; wherever a content is, in a block or a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// A full block is found.
    Found {
        /// Its name, the same in every worker that hashes with the same key.
        hash: BlockHash,
        /// What comes before it, if anything does.
        parent: Option<BlockHash>,
        /// Of its tenant.
        salt: u64,
        /// As many as a block has.
        tokens: Vec<TokenId>,
    },
    /// It is not found any more.
    Lost {
        /// Its name.
        hash: BlockHash,
    },
    /// Nothing is: another scheduler begins.
    Cleared,
}

fn note_found(notes: &mut Option<Vec<CacheEvent>>, full: &FullBlock) {
    if let Some(notes) = notes {
        let &FullBlock { hash, parent, salt, tokens } = full;
        let parent = parent.map(|parent| parent.hash);
        notes.push(CacheEvent::Found { hash, parent, salt, tokens: tokens.to_vec() });
    }
}

/// A slot for a content that comes from elsewhere. The tokens are in the slot already.
#[derive(Clone, Copy, Debug)]
struct Adoption {
    slot: TierSlot,
    hash: BlockHash,
    parent: Option<ContentName>,
    salt: u64,
}

/// What a place holds. The tokens are in the arena beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    pub(super) hash: BlockHash,
    pub(super) id: u64,
    parent: Option<u64>,
    salt: u64,
    /// Whether it is worth a place in a tier.
    keep: bool,
}

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    /// Finished answers that it is kept for.
    keeps: u32,
    /// Readers outside.
    pins: u32,
    content: Option<Content>,
}

impl Block {
    /// Whether it may be taken.
    fn is_free(&self) -> bool {
        self.refs == 0 && self.pins == 0
    }

    /// Whether it has a place among the kept ones.
    fn is_listed_as_kept(&self) -> bool {
        self.refs == 0 && self.keeps > 0
    }
}

/// Every block of the cache: who holds it, and what it is known to contain. Sized once; no call allocates,
/// but for [notes](BlockPool::begin_notes).
pub(crate) struct BlockPool {
    block_size: usize,
    blocks: Vec<Block>,
    /// Those without references, the next to be taken first.
    free: List,
    /// Those without references that are kept, which are taken when no other is left, and how many of them are pinned.
    kept: List,
    num_kept_pinned: usize,
    /// Token ids of cached blocks, `[num_blocks, block_size]`.
    tokens: Vec<TokenId>,
    index: PrefixIndex,
    tiers: Tiers,
    /// Evicted contents whose bytes the step at hand must save.
    saves: Vec<BlockSave>,
    /// Slots whose bytes come from elsewhere.
    adoptions: Vec<Adoption>,
    /// Where somebody wants to know: what is found and what is lost. The only thing here that grows.
    notes: Option<Vec<CacheEvent>>,
    next_id: u64,
    num_cached: usize,
    num_taken: u64,
    num_evicted: u64,
    num_kept_taken: u64,
    num_sharings: u64,
}

impl BlockPool {
    /// `num_blocks` free blocks of `block_size` tokens, with nothing cached.
    pub(crate) fn new(num_blocks: usize, block_size: usize) -> BlockPool {
        assert!(num_blocks > 0 && num_blocks < u32::MAX as usize && block_size > 0);
        BlockPool {
            block_size,
            blocks: vec![Block::default(); num_blocks],
            free: List::full(num_blocks),
            kept: List::empty(num_blocks),
            num_kept_pinned: 0,
            tokens: vec![0; num_blocks * block_size],
            index: PrefixIndex::new(num_blocks),
            tiers: Tiers::new(TierSizes::default(), block_size),
            saves: Vec::new(),
            adoptions: Vec::new(),
            notes: None,
            next_id: 0,
            num_cached: 0,
            num_taken: 0,
            num_evicted: 0,
            num_kept_taken: 0,
            num_sharings: 0,
        }
    }

    /// Contents that are evicted from now on live on in tiers of these sizes. Before anything is cached.
    pub(crate) fn set_tiers(&mut self, sizes: TierSizes) {
        assert_eq!(self.index.len(), 0, "tiers are there from the start");
        self.index = PrefixIndex::new(self.num_blocks() + sizes.host_slots + sizes.disk_slots);
        self.tiers = Tiers::new(sizes, self.block_size);
        // Each block is taken, and so evicted, once in a step at most.
        self.saves = Vec::with_capacity(self.num_blocks().min(sizes.host_slots));
        self.adoptions = Vec::with_capacity(sizes.host_slots);
    }

    /// Blocks in all.
    pub(crate) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that [`BlockPool::take`] can hand out, cached and kept ones included.
    pub(crate) fn num_free(&self) -> usize {
        self.free.len() + self.num_kept()
    }

    /// Blocks that are free and taken last, because they are kept.
    pub(crate) fn num_kept(&self) -> usize {
        self.kept.len() - self.num_kept_pinned
    }

    /// Kept blocks that were ever taken.
    pub(crate) fn num_kept_taken(&self) -> u64 {
        self.num_kept_taken
    }

    /// Blocks that some table names or somebody reads.
    pub(crate) fn num_used(&self) -> usize {
        self.num_blocks() - self.num_free()
    }

    /// Blocks that the prefix cache can find, held or idle.
    pub(crate) fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// Blocks ever taken.
    pub(crate) fn num_taken(&self) -> u64 {
        self.num_taken
    }

    /// Cached contents that ever left the pool because their block was taken.
    pub(crate) fn num_evicted(&self) -> u64 {
        self.num_evicted
    }

    /// Changes, ever, of how many tables name a block that several name or named: while it stands still, nobody's
    /// part of a shared block changes.
    pub(crate) fn num_sharings(&self) -> u64 {
        self.num_sharings
    }

    /// Tables that name `block`.
    pub(crate) fn refs(&self, block: BlockId) -> usize {
        self.blocks[block.index()].refs as usize
    }

    /// Whether `block` may be taken.
    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        self.blocks[block.index()].is_free()
    }

    /// Finished answers that `block` is kept for.
    pub(crate) fn keeps(&self, block: BlockId) -> usize {
        self.blocks[block.index()].keeps as usize
    }

    /// Whether the prefix cache can find `block`: then nobody may write it.
    pub(crate) fn is_cached(&self, block: BlockId) -> bool {
        self.blocks[block.index()].content.is_some()
    }

    /// Whether some block is known under `hash`. Nothing is compared: see [`BlockPool::find`].
    pub(crate) fn holds(&self, hash: &BlockHash) -> bool {
        self.index.get(hash).is_some()
    }

    /// Contents that are found, wherever they are.
    #[cfg(test)]
    pub(crate) fn num_found(&self) -> usize {
        self.index.len()
    }

    /// Takes a free block for writing, refs = 1: a plain one if there is one, otherwise the least recently used cached
    /// one, whose content moves to a tier if it can: see [`BlockPool::drain_saves`]. Where there is none, the one that
    /// is kept longest. `None` when every block is held.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = match self.free.first() {
            Some(first) => {
                self.free.remove(first);
                BlockId(first as u32)
            }
            None => self.take_kept()?,
        };
        if self.is_cached(block) {
            self.num_evicted += 1;
            self.demote(block);
        }
        self.blocks[block.index()].refs = 1;
        self.num_taken += 1;
        Some(block)
    }

    fn take_kept(&mut self) -> Option<BlockId> {
        let first = self.kept.iter().find(|&at| self.blocks[at].pins == 0)?;
        self.kept.remove(first);
        self.blocks[first].keeps = 0;
        self.num_kept_taken += 1;
        Some(BlockId(first as u32))
    }

    /// One more table names `block`, which is held or holds a prefix.
    pub(crate) fn share(&mut self, block: BlockId) {
        if self.blocks[block.index()].refs == 0 {
            assert!(self.is_cached(block), "sharing a block that holds nothing");
            self.leave_list(block);
        } else {
            self.num_sharings += 1;
        }
        self.blocks[block.index()].refs += 1;
    }

    /// One table fewer names `block`. The last one puts it in the free list: behind all others if it holds a prefix,
    /// before all others if not. Release a table from its end, so that a prefix outlives what follows it.
    pub(crate) fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.refs > 0, "releasing a free block");
        entry.refs -= 1;
        if entry.refs == 0 {
            self.join_list(block);
        } else {
            self.num_sharings += 1;
        }
    }

    /// One that may be taken again goes where it belongs.
    fn join_list(&mut self, block: BlockId) {
        let entry = &self.blocks[block.index()];
        if entry.is_listed_as_kept() {
            self.num_kept_pinned += usize::from(entry.pins > 0);
            self.kept.push_last(block.index());
        } else if entry.is_free() && entry.content.is_some() {
            self.free.push_last(block.index());
        } else if entry.is_free() {
            self.free.push_first(block.index());
        }
    }

    /// One that may be taken will not be, or has another place from now on.
    fn leave_list(&mut self, block: BlockId) {
        let entry = &self.blocks[block.index()];
        if entry.is_listed_as_kept() {
            self.num_kept_pinned -= usize::from(entry.pins > 0);
            self.kept.remove(block.index());
        } else if entry.is_free() {
            self.free.remove(block.index());
        }
    }

    /// The content of `full`, wherever it is. The hash finds a candidate; parent, salt and every token decide.
    pub(crate) fn find(&self, full: &FullBlock) -> Option<Hit> {
        let &FullBlock { hash, parent, salt, tokens } = full;
        let place = self.index.get(&hash)?;
        let content = self.content_at(place);
        let follows = content.parent == parent.map(|parent| parent.id);
        let equal = follows && content.salt == salt && self.tokens_at(place) == tokens;
        let name = ContentName { hash, id: content.id };
        equal.then_some(Hit { place, name })
    }

    /// Puts a full, computed, held block into the prefix cache, and returns the name under which its content is known.
    /// If an equal block was there before, that one keeps the name and `block` stays private; if the content was in a
    /// tier, it moves here. `None` if `parent` has left the cache meanwhile: nobody could find a child of it. A
    /// different content under the same hash gives way.
    pub(crate) fn register(&mut self, block: BlockId, full: &FullBlock) -> Option<ContentName> {
        let &FullBlock { hash, parent, salt, tokens } = full;
        assert!(self.refs(block) > 0 && !self.is_cached(block), "only a held block is registered, and once");
        assert_eq!(tokens.len(), self.block_size, "only a full block is registered");
        if parent.is_some_and(|parent| !self.is_current(parent)) {
            return None;
        }
        match self.find(full) {
            Some(Hit { place: Place::Block(_), name }) => return Some(name),
            Some(Hit { place: Place::Slot(slot), name }) => {
                let content = self.tiers.forget(slot);
                self.index.relocate(&hash, Place::Block(block));
                self.hold(block, content, tokens);
                return Some(name);
            }
            None => {}
        }
        let content = self.new_content(hash, parent, salt)?;
        self.index.insert(hash, Place::Block(block));
        note_found(&mut self.notes, full);
        self.hold(block, content, tokens);
        Some(ContentName { hash, id: content.id })
    }

    /// What nothing equals gets a name. A different content under the same hash gives way.
    fn new_content(&mut self, hash: BlockHash, parent: Option<ContentName>, salt: u64) -> Option<Content> {
        if let Some(other) = self.index.get(&hash) {
            if parent.is_some_and(|parent| parent.hash == hash) {
                return None; // its own parent's hash: without the parent nobody could find it
            }
            self.forget(other);
        }
        let id = self.next_id;
        self.next_id += 1;
        Some(Content { hash, id, parent: parent.map(|parent| parent.id), salt, keep: true })
    }

    /// The name of what `block` holds, if the cache knows it.
    pub(crate) fn name_of(&self, block: BlockId) -> Option<ContentName> {
        let content = self.blocks[block.index()].content.as_ref()?;
        Some(ContentName { hash: content.hash, id: content.id })
    }

    /// Whether that content is still somewhere.
    pub(crate) fn is_current(&self, name: ContentName) -> bool {
        self.index.get(&name.hash).is_some_and(|place| self.content_at(place).id == name.id)
    }

    /// Panics unless the books balance. `loads`: slots being read back.
    pub(crate) fn check(&self, uses: &[Uses], loads: &[TierSlot]) {
        assert_eq!(uses.len(), self.num_blocks());
        let mut in_list = vec![false; self.num_blocks()];
        let mut is_behind_cached = false;
        self.free.check();
        self.kept.check();
        for at in self.free.iter() {
            let entry = &self.blocks[at];
            assert!(entry.is_free() && entry.keeps == 0, "I3: block {at} is free and referenced, read or kept");
            assert!(entry.content.is_some() || !is_behind_cached, "I3: plain block {at} waits behind cached ones");
            in_list[at] = true;
            is_behind_cached |= entry.content.is_some();
        }
        for at in self.kept.iter() {
            assert!(self.blocks[at].is_listed_as_kept(), "I3: block {at} is not kept");
            in_list[at] = true;
        }
        let pinned = self.kept.iter().filter(|&at| self.blocks[at].pins > 0).count();
        assert_eq!(pinned, self.num_kept_pinned, "I3: kept blocks that are read");
        let mut cached = 0;
        for (index, entry) in self.blocks.iter().enumerate() {
            let counted = Uses { tables: entry.refs, kept: entry.keeps, readers: entry.pins };
            assert_eq!(counted, uses[index], "I2: references of block {index}");
            let is_listed = entry.is_free() || entry.is_listed_as_kept();
            assert_eq!(is_listed, in_list[index], "I1: block {index} is in exactly one class");
            if let Some(content) = &entry.content {
                cached += 1;
                let place = Place::Block(BlockId(index as u32));
                assert_eq!(self.index.get(&content.hash), Some(place), "I6: block {index} is not under its hash");
            }
        }
        assert_eq!(cached, self.num_cached, "I6: cached blocks");
        self.tiers.check(loads.iter().copied().chain(self.adoptions.iter().map(|adoption| adoption.slot)));
        for slot in [Tier::Host, Tier::Disk].into_iter().flat_map(|tier| self.tiers.filled(tier)) {
            let hash = self.tiers.content(slot).expect("it is filled").hash;
            assert_eq!(self.index.get(&hash), Some(Place::Slot(slot)), "I6: {slot:?} is not under its hash");
            cached += 1;
        }
        assert_eq!(cached, self.index.len(), "I6: a content is in one place, and the index names each");
    }

    /// Panics unless every content is under the hash of what it is. Cost: a hash for each.
    pub(crate) fn check_contents(&self, hasher: &ChainHasher) {
        let blocks = (0..self.num_blocks() as u32).map(BlockId);
        let in_blocks = blocks.filter(|&block| self.is_cached(block)).map(Place::Block);
        let in_slots = [Tier::Host, Tier::Disk].into_iter().flat_map(|tier| self.tiers.filled(tier)).map(Place::Slot);
        let contents: BTreeMap<u64, (&Content, Place)> =
            in_blocks.chain(in_slots).map(|place| (self.content_at(place), place)).map(|c| (c.0.id, c)).collect();
        assert_eq!(contents.len(), self.index.len(), "I6: two contents have one name");
        for &(content, place) in contents.values() {
            let parent = match content.parent.map(|id| contents.get(&id)) {
                None => BlockHash::ROOT,
                Some(Some((parent, _))) => parent.hash,
                Some(None) => continue, // its parent is lost: nobody finds it any more
            };
            let hash = hasher.hash(parent, content.salt, self.tokens_at(place));
            assert!(hash == content.hash, "I6: {place:?} is under a hash that is not its own");
        }
    }

    /// Whether `block`, if it is cached, holds these tokens under this salt.
    pub(crate) fn may_hold(&self, block: BlockId, salt: u64, tokens: &[TokenId]) -> bool {
        let content = self.blocks[block.index()].content.as_ref();
        content.is_none_or(|content| content.salt == salt && self.tokens_of(block) == tokens)
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    fn content_at(&self, place: Place) -> &Content {
        match place {
            Place::Block(block) => self.blocks[block.index()].content.as_ref(),
            Place::Slot(slot) => self.tiers.content(slot),
        }
        .expect("the index names contents")
    }

    fn tokens_at(&self, place: Place) -> &[TokenId] {
        match place {
            Place::Block(block) => self.tokens_of(block),
            Place::Slot(slot) => self.tiers.tokens_of(slot),
        }
    }

    fn hold(&mut self, block: BlockId, content: Content, tokens: &[TokenId]) {
        let start = block.index() * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.blocks[block.index()].content = Some(content);
        self.num_cached += 1;
    }

    /// Takes an idle block's content out of it, for a slot of a tier if there is one. The index follows; the block's
    /// place in the free list is the caller's business.
    fn demote(&mut self, block: BlockId) {
        let content = self.blocks[block.index()].content.take().expect("demoting a block that holds nothing");
        self.num_cached -= 1;
        let slot = if content.keep { self.tiers.take(Tier::Host) } else { None };
        let Some((slot, gives_way)) = slot else { return self.lose(&content.hash) };
        if let Some(other) = gives_way {
            self.lose(&other.hash);
            // It may have come in this very step: then nobody needs it copied.
            self.saves.retain(|save| save.slot != slot);
        }
        let start = block.index() * self.block_size;
        self.tiers.fill(slot, content, &self.tokens[start..start + self.block_size]);
        self.index.relocate(&content.hash, Place::Slot(slot));
        self.saves.push(BlockSave { block, slot });
    }

    /// Nobody finds it any more.
    fn lose(&mut self, hash: &BlockHash) {
        self.index.remove(hash);
        if let Some(notes) = &mut self.notes {
            notes.push(CacheEvent::Lost { hash: *hash });
        }
    }

    /// From now on it is noted what the prefix cache finds and finds no more.
    pub(crate) fn begin_notes(&mut self) {
        self.notes.get_or_insert_default();
    }

    /// What was noted since the last call, in its order.
    pub(crate) fn take_notes(&mut self) -> Vec<CacheEvent> {
        self.notes.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// A content is lost.
    fn forget(&mut self, place: Place) {
        let content = match place {
            Place::Slot(slot) => self.tiers.forget(slot),
            Place::Block(block) => {
                let entry = &mut self.blocks[block.index()];
                let content = entry.content.take().expect("forgetting a block that holds nothing");
                self.num_cached -= 1;
                if entry.is_free() && entry.keeps == 0 {
                    self.free.remove(block.index());
                    self.free.push_first(block.index());
                }
                content
            }
        };
        self.lose(&content.hash);
    }
}

/// Who else has to do with a block, as counted by an auditor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) tables: u32,
    pub(crate) kept: u32,
    pub(crate) readers: u32,
}

/// Blocks of finished answers, and blocks that are read: see [`crate::keep`].
impl BlockPool {
    /// `block` is taken last from now on.
    pub(crate) fn keep(&mut self, block: BlockId) {
        self.leave_list(block);
        self.blocks[block.index()].keeps += 1;
        self.join_list(block);
    }

    /// One that it was kept for lets go of it.
    pub(crate) fn let_go(&mut self, block: BlockId) {
        self.leave_list(block);
        self.blocks[block.index()].keeps -= 1;
        self.join_list(block);
    }

    /// Somebody begins to read `block`: it stays as it is until that has ended.
    pub(crate) fn pin(&mut self, block: BlockId) {
        if !self.blocks[block.index()].is_listed_as_kept() {
            self.leave_list(block);
        }
        let entry = &mut self.blocks[block.index()];
        entry.pins += 1;
        self.num_kept_pinned += usize::from(entry.is_listed_as_kept() && entry.pins == 1);
    }

    /// Somebody has read it.
    pub(crate) fn unpin(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        entry.pins -= 1;
        self.num_kept_pinned -= usize::from(entry.is_listed_as_kept() && entry.pins == 0);
        if !entry.is_listed_as_kept() {
            self.join_list(block);
        }
    }
}

/// Tiers: see [`super::tiers`].
impl BlockPool {
    /// Whether evicted contents can live on.
    pub(crate) fn has_tiers(&self) -> bool {
        self.tiers.len(Tier::Host) > 0
    }

    /// Whether what is evicted now pushes another content on to disk, sooner or later.
    pub(crate) fn swaps_to_disk(&self) -> bool {
        self.tiers.has_disk() && self.tiers.num_empty(Tier::Host) == 0
    }

    /// What the tiers have done so far.
    pub(crate) fn swap_stats(&self) -> SwapStats {
        self.tiers.stats()
    }

    /// Says whether a block's content, if it has one, is worth a place in a tier when it is evicted. At first it is.
    pub(crate) fn set_keep(&mut self, block: BlockId, keep: bool) {
        if let Some(content) = &mut self.blocks[block.index()].content {
            content.keep = keep;
        }
    }

    /// The saves that [`BlockPool::take`] has made necessary since the last call, in order.
    pub(crate) fn drain_saves(&mut self, saves: &mut Vec<BlockSave>) {
        self.tiers.stats.saved += self.saves.len() as u64;
        saves.append(&mut self.saves);
    }

    /// Begins to write host slots to disk until enough of them are free, or on their way to be.
    pub(crate) fn spill_ahead(&mut self, spills: &mut Vec<SlotSpill>) {
        while self.tiers.wants_spill() {
            let Some(host) = self.tiers.oldest(Tier::Host) else { return };
            let Some((disk, gives_way)) = self.tiers.take(Tier::Disk) else { return };
            if let Some(other) = gives_way {
                self.lose(&other.hash);
            }
            spills.push(self.tiers.begin_spill(host, disk));
        }
    }

    /// A write to disk has ended: the content moves there if it went well, and stays in host memory if not.
    pub(crate) fn end_spill(&mut self, spill: SlotSpill, good: bool) {
        if self.tiers.end_spill(spill, good) {
            let hash = self.tiers.finish_spill(spill);
            self.index.relocate(&hash, Place::Slot(spill.disk));
            self.tiers.stats.spilled += 1;
        }
        self.tiers.stats.write_faults += u64::from(!good);
        self.judge_disk(good);
    }

    /// Begins to read a slot: it keeps its content until the read has ended.
    pub(crate) fn begin_load(&mut self, slot: TierSlot) {
        self.tiers.pin(slot);
    }

    /// A read has ended; if it failed, its content is lost.
    pub(crate) fn end_load(&mut self, slot: TierSlot, good: bool) {
        let stats = &mut self.tiers.stats;
        match (good, slot.tier) {
            (true, Tier::Host) => stats.loaded_from_host += 1,
            (true, Tier::Disk) => stats.loaded_from_disk += 1,
            (false, _) => stats.read_faults += 1,
        }
        if !good && self.tiers.content(slot).is_some() {
            self.forget(Place::Slot(slot));
        }
        self.tiers.unpin(slot);
        if slot.tier == Tier::Disk {
            self.judge_disk(good);
        }
    }

    /// Somebody waits for what follows this content: if it is in a tier, it gives way after what nobody waits for.
    pub(crate) fn touch(&mut self, hash: &BlockHash) {
        if let Some(Place::Slot(slot)) = self.index.get(hash) {
            self.tiers.touch(slot);
        }
    }

    /// A host slot for a content that is nowhere, whose bytes come from elsewhere. `None` if there is none to be had
    /// without its parent giving way.
    pub(crate) fn adopt(&mut self, full: &FullBlock) -> Option<TierSlot> {
        let &FullBlock { hash, parent, salt, tokens } = full;
        let oldest = self.tiers.oldest(Tier::Host).and_then(|slot| self.tiers.content(slot));
        let is_parent = oldest.zip(parent).is_some_and(|(oldest, parent)| oldest.id == parent.id);
        if self.tiers.num_empty(Tier::Host) == 0 && is_parent {
            return None;
        }
        let (slot, gives_way) = self.tiers.take(Tier::Host)?;
        if let Some(other) = gives_way {
            self.lose(&other.hash);
        }
        self.tiers.begin_landing(slot, tokens);
        self.adoptions.push(Adoption { slot, hash, parent, salt });
        Some(slot)
    }

    /// The bytes have come, or will not. True if the content is found there from now on.
    pub(crate) fn adopted(&mut self, slot: TierSlot, good: bool) -> bool {
        let place = self.adoptions.iter().position(|adoption| adoption.slot == slot).expect("a block lands once");
        let Adoption { hash, parent, salt, .. } = self.adoptions.swap_remove(place);
        let full = FullBlock { hash, parent, salt, tokens: self.tiers.tokens_of(slot) };
        let is_wanted = parent.is_none_or(|parent| self.is_current(parent)) && self.find(&full).is_none();
        let content = if good && is_wanted { self.new_content(hash, parent, salt) } else { None };
        if content.is_some() {
            self.index.insert(hash, Place::Slot(slot));
            note_found(&mut self.notes, &FullBlock { hash, parent, salt, tokens: self.tiers.tokens_of(slot) });
        }
        let parent = parent.and_then(|parent| match self.index.get(&parent.hash) {
            Some(Place::Slot(slot)) => Some(slot),
            _ => None,
        });
        self.tiers.end_landing(slot, content, parent);
        content.is_some()
    }

    fn judge_disk(&mut self, good: bool) {
        if self.tiers.judge_disk(good) {
            let lost: Vec<TierSlot> = self.tiers.filled(Tier::Disk).collect();
            lost.into_iter().for_each(|slot| self.forget(Place::Slot(slot)));
        }
    }
}
