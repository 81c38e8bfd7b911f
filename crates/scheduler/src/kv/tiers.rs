//! KV tiers for evicted contents: slots in host memory, and behind them slots on disk.
//!
//! ```text
//! pool --evicted: save--> host slot --free slots run low: spill--> disk slot --least recently used--> dropped
//!   ^     received: adopt-> |                                        |
//!   +---------- load -------+----------------------------------------+
//! ```
//!
//! A content keeps its name in every place, so a preempted sequence finds its blocks as any prefix hit: swap preemption
//! and the prefix cache are one mechanism (the names are those of PagedAttention's swapping, Kwon et al., SOSP 2023).
//!
//! A slot with a transfer in progress is *pinned*: it is neither allocated nor evicted before the engine reports the
//! end. A disk slot has a content only after a successful write, and a host slot for a received block
//! ([`crate::kv_receive`]) only after a successful transfer: partial writes are never found. After [`MAX_FAULTS`]
//! consecutive faults the disk is disabled.
//!
//! This module counts slots; the bytes, their checksums and the threads are the engine's.

use alloc::vec;
use alloc::vec::Vec;

use super::list::List;
use super::pool::Content;
use super::{BlockHash, BlockId};
use protocol::TokenId;

/// Consecutive faults after which the disk is disabled.
pub(super) const MAX_FAULTS: u32 = 3;
/// Minimum number of host slots kept free for evictions by spilling ahead, if there is a disk.
const LEAST_SPARE: usize = 32;

/// A storage tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Host memory.
    Host,
    /// A file.
    Disk,
}

/// Number of slots per tier, each for the bytes of one block in all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSizes {
    /// In host memory. Zero disables swapping: the disk is reached through host slots.
    pub host_slots: usize,
    /// On disk.
    pub disk_slots: usize,
}

/// A slot; `index` counts from 0 in each tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierSlot {
    /// The tier.
    pub tier: Tier,
    /// Index of the slot.
    pub index: u32,
}

/// The bytes of `block` must be copied to the host slot before anything else writes the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSave {
    /// A block that was allocated for other content.
    pub block: BlockId,
    /// Destination.
    pub slot: TierSlot,
}

/// The bytes of a host slot must be written to a disk slot in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpill {
    /// Source.
    pub host: TierSlot,
    /// Destination.
    pub disk: TierSlot,
}

/// Counters since start, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    /// Saved from the pool to host memory.
    pub saved: u64,
    /// Written to disk.
    pub spilled: u64,
    /// Loaded from host memory.
    pub loaded_from_host: u64,
    /// Loaded from disk.
    pub loaded_from_disk: u64,
    /// Received from other workers into host memory.
    pub landed: u64,
    /// Contents dropped to make room.
    pub dropped: u64,
    /// Reads that failed or returned wrong bytes.
    pub read_faults: u64,
    /// Writes that failed.
    pub write_faults: u64,
    /// Host slots with a content now.
    pub host_used: usize,
    /// Disk slots with a content now.
    pub disk_used: usize,
    /// Whether the disk was disabled after faults.
    pub disk_given_up: bool,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    content: Option<Content>,
    /// Transfers in progress.
    pins: u32,
}

/// The slots of one tier.
#[derive(Clone, Debug)]
struct TierSlots {
    slots: Vec<Slot>,
    /// `[slots, block_size]`.
    tokens: Vec<TokenId>,
    /// Slots with neither content nor pins.
    empty: Vec<u32>,
    /// Slots with content and without pins, least recently used first.
    idle: List,
    used: usize,
}

impl TierSlots {
    fn new(len: usize, block_size: usize) -> TierSlots {
        let empty = (0..u32::try_from(len).expect("slots are counted in 32 bits")).rev().collect();
        let (slots, tokens) = (vec![Slot::default(); len], vec![0; len * block_size]);
        TierSlots { slots, tokens, empty, idle: List::empty(len), used: 0 }
    }
}

/// All slots of both tiers. Sized once; no call allocates.
pub(super) struct Tiers {
    block_size: usize,
    tiers: [TierSlots; 2],
    spills: Vec<(SlotSpill, u64)>,
    most_spills: usize,
    faults_in_a_row: u32,
    pub(super) stats: SwapStats,
}

impl Tiers {
    pub(super) fn new(sizes: TierSizes, block_size: usize) -> Tiers {
        let TierSizes { host_slots, disk_slots } = sizes;
        let most_spills = (host_slots / 8).max(LEAST_SPARE).min(host_slots);
        Tiers {
            block_size,
            tiers: [TierSlots::new(host_slots, block_size), TierSlots::new(disk_slots, block_size)],
            spills: Vec::with_capacity(most_spills),
            most_spills,
            faults_in_a_row: 0,
            stats: SwapStats::default(),
        }
    }

    /// Slots of a tier.
    pub(super) fn len(&self, tier: Tier) -> usize {
        self.tier(tier).slots.len()
    }

    /// Slots of a tier that can be filled without an eviction.
    pub(super) fn num_empty(&self, tier: Tier) -> usize {
        self.tier(tier).empty.len()
    }

    /// Whether contents may still be written to disk.
    pub(super) fn has_disk(&self) -> bool {
        self.len(Tier::Disk) > 0 && !self.stats.disk_given_up
    }

    pub(super) fn stats(&self) -> SwapStats {
        SwapStats { host_used: self.tier(Tier::Host).used, disk_used: self.tier(Tier::Disk).used, ..self.stats }
    }

    pub(super) fn content(&self, slot: TierSlot) -> Option<&Content> {
        self.tier(slot.tier).slots[slot.index as usize].content.as_ref()
    }

    pub(super) fn content_mut(&mut self, slot: TierSlot) -> Option<&mut Content> {
        self.tier_mut(slot.tier).slots[slot.index as usize].content.as_mut()
    }

    pub(super) fn tokens_of(&self, slot: TierSlot) -> &[TokenId] {
        &self.tier(slot.tier).tokens[slot.index as usize * self.block_size..][..self.block_size]
    }

    /// Allocates a slot, in no list: the caller fills or pins it at once. The second value is the evicted content.
    /// `None` if every slot is pinned.
    pub(super) fn take(&mut self, tier: Tier) -> Option<(TierSlot, Option<Content>)> {
        if let Some(index) = self.tier_mut(tier).empty.pop() {
            return Some((TierSlot { tier, index }, None));
        }
        let oldest = self.oldest(tier)?;
        self.tier_mut(tier).idle.remove(oldest.index as usize);
        self.stats.dropped += 1;
        let content = self.clear(oldest);
        Some((oldest, Some(content)))
    }

    /// Marks an unpinned slot as recently used.
    pub(super) fn touch(&mut self, slot: TierSlot) {
        let tier = self.tier_mut(slot.tier);
        if tier.slots[slot.index as usize].pins == 0 {
            tier.idle.remove(slot.index as usize);
            tier.idle.push_last(slot.index as usize);
        }
    }

    /// The least recently used unpinned content.
    pub(super) fn oldest(&self, tier: Tier) -> Option<TierSlot> {
        self.tier(tier).idle.first().map(|index| TierSlot { tier, index: index as u32 })
    }

    /// Fills a slot from [`Tiers::take`].
    pub(super) fn fill(&mut self, slot: TierSlot, content: Content, tokens: &[TokenId]) {
        let (index, block_size) = (slot.index as usize, self.block_size);
        let tier = self.tier_mut(slot.tier);
        tier.tokens[index * block_size..][..block_size].copy_from_slice(tokens);
        tier.slots[index].content = Some(content);
        tier.used += 1;
        if tier.slots[index].pins == 0 {
            tier.idle.push_last(index);
        }
    }

    /// Begins to receive a block with these tokens into a slot from [`Tiers::take`]: it is pinned, without content.
    pub(super) fn begin_receive(&mut self, slot: TierSlot, tokens: &[TokenId]) {
        let (index, block_size) = (slot.index as usize, self.block_size);
        self.tier_mut(slot.tier).tokens[index * block_size..][..block_size].copy_from_slice(tokens);
        self.pin(slot);
    }

    /// Ends receiving. The content is placed before its parent in eviction order, if the parent is listed.
    pub(super) fn end_receive(&mut self, slot: TierSlot, content: Option<Content>, parent: Option<TierSlot>) {
        let is_received = content.is_some();
        let tier = self.tier_mut(slot.tier);
        tier.slots[slot.index as usize].content = content;
        tier.used += usize::from(is_received);
        self.unpin(slot);
        self.stats.landed += u64::from(is_received);
        let tier = self.tier_mut(slot.tier);
        let parent = parent.filter(|parent| parent.tier == slot.tier && tier.slots[parent.index as usize].pins == 0);
        if let Some(parent) = parent.filter(|_| is_received) {
            tier.idle.remove(slot.index as usize);
            tier.idle.insert_before(parent.index as usize, slot.index as usize);
        }
    }

    /// Removes the content of a slot, which is free once it has no pins. The caller updates the index.
    pub(super) fn drop_content(&mut self, slot: TierSlot) -> Content {
        let tier = self.tier_mut(slot.tier);
        if tier.slots[slot.index as usize].pins == 0 {
            tier.idle.remove(slot.index as usize);
            tier.empty.push(slot.index);
        }
        self.clear(slot)
    }

    fn clear(&mut self, slot: TierSlot) -> Content {
        let tier = self.tier_mut(slot.tier);
        tier.used -= 1;
        tier.slots[slot.index as usize].content.take().expect("dropping the content of an empty slot")
    }

    /// Begins a transfer from or to a slot.
    pub(super) fn pin(&mut self, slot: TierSlot) {
        let tier = self.tier_mut(slot.tier);
        let entry = &mut tier.slots[slot.index as usize];
        if entry.pins == 0 && entry.content.is_some() {
            tier.idle.remove(slot.index as usize);
        }
        entry.pins += 1;
    }

    pub(super) fn unpin(&mut self, slot: TierSlot) {
        let tier = self.tier_mut(slot.tier);
        let entry = &mut tier.slots[slot.index as usize];
        assert!(entry.pins > 0, "a transfer ends once");
        entry.pins -= 1;
        match (entry.pins, entry.content.is_some()) {
            (0, true) => tier.idle.push_last(slot.index as usize),
            (0, false) => tier.empty.push(slot.index),
            _ => {}
        }
    }

    /// Whether host slots should be freed ahead of the next evictions.
    pub(super) fn wants_spill(&self) -> bool {
        let spare = self.num_empty(Tier::Host) + self.spills.len();
        self.has_disk() && spare < self.most_spills && self.spills.len() < self.most_spills
    }

    /// Begins a write from `host` to `disk`, an allocated slot.
    pub(super) fn begin_spill(&mut self, host: TierSlot, disk: TierSlot) -> SlotSpill {
        let id = self.content(host).expect("a content is written").id;
        self.pin(host);
        self.pin(disk);
        let spill = SlotSpill { host, disk };
        self.spills.push((spill, id));
        spill
    }

    /// Ends a write. True if its content is still in the host slot and may move to disk.
    pub(super) fn end_spill(&mut self, spill: SlotSpill, good: bool) -> bool {
        let place = self.spills.iter().position(|(s, _)| *s == spill).expect("a write ends once");
        let (_, id) = self.spills.remove(place);
        self.unpin(spill.host);
        let moves = good && self.has_disk() && self.content(spill.host).is_some_and(|content| content.id == id);
        if !moves {
            self.unpin(spill.disk);
        }
        moves
    }

    /// Moves the content of a successful write ([`Tiers::end_spill`]) from the host slot to the disk slot.
    pub(super) fn finish_spill(&mut self, spill: SlotSpill) -> BlockHash {
        let (from, to, block_size) = (spill.host.index as usize, spill.disk.index as usize, self.block_size);
        let [host, disk] = &mut self.tiers;
        let tokens = &host.tokens[from * block_size..][..block_size];
        disk.tokens[to * block_size..][..block_size].copy_from_slice(tokens);
        let content = self.drop_content(spill.host);
        let disk = self.tier_mut(Tier::Disk);
        disk.slots[to].content = Some(content);
        disk.used += 1;
        self.unpin(spill.disk);
        content.hash
    }

    /// Counts disk faults. True if the disk is disabled now.
    pub(super) fn record_disk_result(&mut self, good: bool) -> bool {
        self.faults_in_a_row = if good { 0 } else { self.faults_in_a_row + 1 };
        let given_up = self.has_disk() && self.faults_in_a_row >= MAX_FAULTS;
        self.stats.disk_given_up |= given_up;
        given_up
    }

    /// Slots of a tier with a content.
    pub(super) fn filled(&self, tier: Tier) -> impl Iterator<Item = TierSlot> {
        let slots = self.tier(tier).slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.content.is_some()).map(move |(index, _)| TierSlot { tier, index: index as u32 })
    }

    /// Panics if an invariant is violated. `moving`: slots being read or received.
    pub(super) fn check(&self, moving: impl Iterator<Item = TierSlot>) {
        let spills = self.spills.iter().flat_map(|(spill, _)| [spill.host, spill.disk]);
        let mut pins = [vec![0; self.len(Tier::Host)], vec![0; self.len(Tier::Disk)]];
        moving.chain(spills).for_each(|slot| pins[slot.tier as usize][slot.index as usize] += 1);
        for (tier, pins) in [Tier::Host, Tier::Disk].into_iter().zip(&pins) {
            let slots = self.tier(tier);
            let mut listed = vec![false; slots.slots.len()];
            slots.idle.check();
            for at in slots.idle.iter() {
                assert!(
                    slots.slots[at].content.is_some() && slots.slots[at].pins == 0,
                    "I3: {tier:?} {at} in the list"
                );
                listed[at] = true;
            }
            for &at in &slots.empty {
                let is_empty = slots.slots[at as usize].content.is_none();
                assert!(!listed[at as usize] && is_empty, "I1: {tier:?} {at} is empty");
                listed[at as usize] = true;
            }
            for (at, slot) in slots.slots.iter().enumerate() {
                assert_eq!(slot.pins, pins[at], "I2: pins of {tier:?} {at}");
                assert_eq!(slot.pins == 0, listed[at], "I1: {tier:?} {at} is in exactly one class");
            }
            assert_eq!(slots.used, self.filled(tier).count(), "I11: slots in use");
        }
        assert!(self.spills.len() <= self.most_spills, "I11: writes in flight");
        assert!(!self.stats.disk_given_up || self.tier(Tier::Disk).used == 0, "a disk that was given up holds nothing");
    }

    fn tier(&self, tier: Tier) -> &TierSlots {
        &self.tiers[tier as usize]
    }

    fn tier_mut(&mut self, tier: Tier) -> &mut TierSlots {
        &mut self.tiers[tier as usize]
    }
}
