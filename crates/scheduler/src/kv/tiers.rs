//! Where contents go when the pool needs their block: slots in host memory, and behind them slots on disk.
//!
//! ```text
//! pool --evicted: save--> host slot --room runs low: spill--> disk slot --least recently used--> forgotten
//!   ^     elsewhere: adopt--> |                                   |
//!   +---------- load ---------+-----------------------------------+
//! ```
//!
//! A content keeps its name wherever it is, so a sequence that lost its blocks finds them again exactly as it finds a
//! prefix: preemption by swap and the prefix cache are one mechanism (the names are those of PagedAttention's swapping,
//! Kwon et al., SOSP 2023).
//!
//! A slot that bytes are read from or written to is *pinned*: it is neither handed out nor taken as a victim before the
//! engine has said that the transfer has ended. A disk slot has a content only once its write has ended well, and so
//! has a host slot for a block from elsewhere ([`crate::adopt`]): nothing half written is ever found. After
//! [`MAX_FAULTS`] faults in a row the disk is given up.
//!
//! This module counts slots; the bytes, their checksums and the threads are the engine's.

use alloc::vec;
use alloc::vec::Vec;

use super::list::List;
use super::pool::Content;
use super::{BlockHash, BlockId};
use crate::TokenId;

/// Faults in a row after which the disk is not used any more.
pub(super) const MAX_FAULTS: u32 = 3;
/// Host slots that are kept free for evictions at least, by spilling ahead, if there is a disk.
const LEAST_SPARE: usize = 32;

/// Which tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Memory of the host.
    Host,
    /// A file.
    Disk,
}

/// Slots of each tier, each for the bytes of one block in all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSizes {
    /// In host memory. Without any there is no swapping: disk is reached through them.
    pub host_slots: usize,
    /// On disk.
    pub disk_slots: usize,
}

/// Names a slot: `index` counts from 0 in each tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierSlot {
    /// The tier.
    pub tier: Tier,
    /// Which of its slots.
    pub index: u32,
}

/// The bytes of `block` must be copied to the host slot before anything else writes the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSave {
    /// A block that was taken for something else.
    pub block: BlockId,
    /// Where its content lives on.
    pub slot: TierSlot,
}

/// The bytes of a host slot must be written to a disk slot, in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpill {
    /// Read from.
    pub host: TierSlot,
    /// Written to.
    pub disk: TierSlot,
}

/// What the tiers have done since the start, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    /// Copied from the pool to host memory.
    pub saved: u64,
    /// Written to disk.
    pub spilled: u64,
    /// Brought back from host memory.
    pub loaded_from_host: u64,
    /// Brought back from disk.
    pub loaded_from_disk: u64,
    /// Came from other workers to host memory.
    pub landed: u64,
    /// Contents that the tiers lost to make room.
    pub dropped: u64,
    /// Reads that failed, or brought other bytes than were written.
    pub read_faults: u64,
    /// Writes that failed.
    pub write_faults: u64,
    /// Host slots that hold a content now.
    pub host_used: usize,
    /// Disk slots that hold a content now.
    pub disk_used: usize,
    /// The disk was given up after faults.
    pub disk_given_up: bool,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    content: Option<Content>,
    /// Transfers that read or write it.
    pins: u32,
}

/// The slots of one tier.
#[derive(Clone, Debug)]
struct Shelf {
    slots: Vec<Slot>,
    /// `[slots, block_size]`.
    tokens: Vec<TokenId>,
    /// Slots with neither content nor pins.
    empty: Vec<u32>,
    /// Contents without pins, the one that was used least recently first.
    idle: List,
    used: usize,
}

impl Shelf {
    fn new(len: usize, block_size: usize) -> Shelf {
        let empty = (0..u32::try_from(len).expect("slots are counted in 32 bits")).rev().collect();
        let (slots, tokens) = (vec![Slot::default(); len], vec![0; len * block_size]);
        Shelf { slots, tokens, empty, idle: List::empty(len), used: 0 }
    }
}

/// Every slot of both tiers. Sized once; no call allocates.
pub(super) struct Tiers {
    block_size: usize,
    shelves: [Shelf; 2],
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
            shelves: [Shelf::new(host_slots, block_size), Shelf::new(disk_slots, block_size)],
            spills: Vec::with_capacity(most_spills),
            most_spills,
            faults_in_a_row: 0,
            stats: SwapStats::default(),
        }
    }

    /// Slots of a tier.
    pub(super) fn len(&self, tier: Tier) -> usize {
        self.shelf(tier).slots.len()
    }

    /// Slots of a tier that are free for a content without another one losing its place.
    pub(super) fn num_empty(&self, tier: Tier) -> usize {
        self.shelf(tier).empty.len()
    }

    /// Whether contents may still go to disk.
    pub(super) fn has_disk(&self) -> bool {
        self.len(Tier::Disk) > 0 && !self.stats.disk_given_up
    }

    pub(super) fn stats(&self) -> SwapStats {
        SwapStats { host_used: self.shelf(Tier::Host).used, disk_used: self.shelf(Tier::Disk).used, ..self.stats }
    }

    pub(super) fn content(&self, slot: TierSlot) -> Option<&Content> {
        self.shelf(slot.tier).slots[slot.index as usize].content.as_ref()
    }

    pub(super) fn tokens_of(&self, slot: TierSlot) -> &[TokenId] {
        &self.shelf(slot.tier).tokens[slot.index as usize * self.block_size..][..self.block_size]
    }

    /// A slot without content and pins, in no list: the caller fills or pins it at once. The second value is what had
    /// to give way. `None` if every slot is pinned.
    pub(super) fn take(&mut self, tier: Tier) -> Option<(TierSlot, Option<Content>)> {
        if let Some(index) = self.shelf_mut(tier).empty.pop() {
            return Some((TierSlot { tier, index }, None));
        }
        let oldest = self.oldest(tier)?;
        self.shelf_mut(tier).idle.remove(oldest.index as usize);
        self.stats.dropped += 1;
        let content = self.clear(oldest);
        Some((oldest, Some(content)))
    }

    /// Somebody has use for what a slot holds: of what has no pins, it is the last that gives way.
    pub(super) fn touch(&mut self, slot: TierSlot) {
        let shelf = self.shelf_mut(slot.tier);
        if shelf.slots[slot.index as usize].pins == 0 {
            shelf.idle.remove(slot.index as usize);
            shelf.idle.push_last(slot.index as usize);
        }
    }

    /// The content without pins that was used least recently.
    pub(super) fn oldest(&self, tier: Tier) -> Option<TierSlot> {
        self.shelf(tier).idle.first().map(|index| TierSlot { tier, index: index as u32 })
    }

    /// Fills a slot that [`Tiers::take`] gave.
    pub(super) fn fill(&mut self, slot: TierSlot, content: Content, tokens: &[TokenId]) {
        let (index, block_size) = (slot.index as usize, self.block_size);
        let shelf = self.shelf_mut(slot.tier);
        shelf.tokens[index * block_size..][..block_size].copy_from_slice(tokens);
        shelf.slots[index].content = Some(content);
        shelf.used += 1;
        if shelf.slots[index].pins == 0 {
            shelf.idle.push_last(index);
        }
    }

    /// Bytes for these tokens will come to a slot that [`Tiers::take`] gave: it has a pin and no content.
    pub(super) fn begin_landing(&mut self, slot: TierSlot, tokens: &[TokenId]) {
        let (index, block_size) = (slot.index as usize, self.block_size);
        self.shelf_mut(slot.tier).tokens[index * block_size..][..block_size].copy_from_slice(tokens);
        self.pin(slot);
    }

    /// They have come, or not. A content lies before its parent, if that is in the list: it gives way before it.
    pub(super) fn end_landing(&mut self, slot: TierSlot, content: Option<Content>, parent: Option<TierSlot>) {
        let has_come = content.is_some();
        let shelf = self.shelf_mut(slot.tier);
        shelf.slots[slot.index as usize].content = content;
        shelf.used += usize::from(has_come);
        self.unpin(slot);
        self.stats.landed += u64::from(has_come);
        let shelf = self.shelf_mut(slot.tier);
        let parent = parent.filter(|parent| parent.tier == slot.tier && shelf.slots[parent.index as usize].pins == 0);
        if let Some(parent) = parent.filter(|_| has_come) {
            shelf.idle.remove(slot.index as usize);
            shelf.idle.insert_before(parent.index as usize, slot.index as usize);
        }
    }

    /// The content leaves its slot, which is free once it has no pins. The caller sees to the index.
    pub(super) fn forget(&mut self, slot: TierSlot) -> Content {
        let shelf = self.shelf_mut(slot.tier);
        if shelf.slots[slot.index as usize].pins == 0 {
            shelf.idle.remove(slot.index as usize);
            shelf.empty.push(slot.index);
        }
        self.clear(slot)
    }

    fn clear(&mut self, slot: TierSlot) -> Content {
        let shelf = self.shelf_mut(slot.tier);
        shelf.used -= 1;
        shelf.slots[slot.index as usize].content.take().expect("forgetting a slot that holds nothing")
    }

    /// A transfer begins that reads or writes the slot. One that was taken has a pin from now on.
    pub(super) fn pin(&mut self, slot: TierSlot) {
        let shelf = self.shelf_mut(slot.tier);
        let entry = &mut shelf.slots[slot.index as usize];
        if entry.pins == 0 && entry.content.is_some() {
            shelf.idle.remove(slot.index as usize);
        }
        entry.pins += 1;
    }

    /// A transfer has ended.
    pub(super) fn unpin(&mut self, slot: TierSlot) {
        let shelf = self.shelf_mut(slot.tier);
        let entry = &mut shelf.slots[slot.index as usize];
        assert!(entry.pins > 0, "a transfer ends once");
        entry.pins -= 1;
        match (entry.pins, entry.content.is_some()) {
            (0, true) => shelf.idle.push_last(slot.index as usize),
            (0, false) => shelf.empty.push(slot.index),
            _ => {}
        }
    }

    /// Whether host slots should be emptied ahead of the next evictions.
    pub(super) fn wants_spill(&self) -> bool {
        let spare = self.num_empty(Tier::Host) + self.spills.len();
        self.has_disk() && spare < self.most_spills && self.spills.len() < self.most_spills
    }

    /// A write from `host` to `disk`, a slot that was taken, begins.
    pub(super) fn begin_spill(&mut self, host: TierSlot, disk: TierSlot) -> SlotSpill {
        let id = self.content(host).expect("a content is written").id;
        self.pin(host);
        self.pin(disk);
        let spill = SlotSpill { host, disk };
        self.spills.push((spill, id));
        spill
    }

    /// A write has ended. True if its content is still in the host slot and may move to disk.
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

    /// The content moves from the host slot to the disk slot, both named by a write that [`Tiers::end_spill`] called
    /// good.
    pub(super) fn finish_spill(&mut self, spill: SlotSpill) -> BlockHash {
        let (from, to, block_size) = (spill.host.index as usize, spill.disk.index as usize, self.block_size);
        let [host, disk] = &mut self.shelves;
        let tokens = &host.tokens[from * block_size..][..block_size];
        disk.tokens[to * block_size..][..block_size].copy_from_slice(tokens);
        let content = self.forget(spill.host);
        let disk = self.shelf_mut(Tier::Disk);
        disk.slots[to].content = Some(content);
        disk.used += 1;
        self.unpin(spill.disk);
        content.hash
    }

    /// What a transfer with the disk says about it. True if it is given up now.
    pub(super) fn judge_disk(&mut self, good: bool) -> bool {
        self.faults_in_a_row = if good { 0 } else { self.faults_in_a_row + 1 };
        let given_up = self.has_disk() && self.faults_in_a_row >= MAX_FAULTS;
        self.stats.disk_given_up |= given_up;
        given_up
    }

    /// Slots of a tier that hold a content.
    pub(super) fn filled(&self, tier: Tier) -> impl Iterator<Item = TierSlot> {
        let slots = self.shelf(tier).slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.content.is_some()).map(move |(index, _)| TierSlot { tier, index: index as u32 })
    }

    /// Panics unless the books balance. `moving`: slots that are being read back, or filled from elsewhere.
    pub(super) fn check(&self, moving: impl Iterator<Item = TierSlot>) {
        let spills = self.spills.iter().flat_map(|(spill, _)| [spill.host, spill.disk]);
        let mut pins = [vec![0; self.len(Tier::Host)], vec![0; self.len(Tier::Disk)]];
        moving.chain(spills).for_each(|slot| pins[slot.tier as usize][slot.index as usize] += 1);
        for (tier, pins) in [Tier::Host, Tier::Disk].into_iter().zip(&pins) {
            let shelf = self.shelf(tier);
            let mut listed = vec![false; shelf.slots.len()];
            shelf.idle.check();
            for at in shelf.idle.iter() {
                assert!(
                    shelf.slots[at].content.is_some() && shelf.slots[at].pins == 0,
                    "I3: {tier:?} {at} in the list"
                );
                listed[at] = true;
            }
            for &at in &shelf.empty {
                let is_empty = shelf.slots[at as usize].content.is_none();
                assert!(!listed[at as usize] && is_empty, "I1: {tier:?} {at} is empty");
                listed[at as usize] = true;
            }
            for (at, slot) in shelf.slots.iter().enumerate() {
                assert_eq!(slot.pins, pins[at], "I2: pins of {tier:?} {at}");
                assert_eq!(slot.pins == 0, listed[at], "I1: {tier:?} {at} is in exactly one class");
            }
            assert_eq!(shelf.used, self.filled(tier).count(), "I11: slots in use");
        }
        assert!(self.spills.len() <= self.most_spills, "I11: writes in flight");
        assert!(
            !self.stats.disk_given_up || self.shelf(Tier::Disk).used == 0,
            "a disk that was given up holds nothing"
        );
    }

    fn shelf(&self, tier: Tier) -> &Shelf {
        &self.shelves[tier as usize]
    }

    fn shelf_mut(&mut self, tier: Tier) -> &mut Shelf {
        &mut self.shelves[tier as usize]
    }
}
