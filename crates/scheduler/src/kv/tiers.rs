//! Where contents go when the pool needs their block: slots in host memory, and behind them slots on disk.
//!
//! ```text
//! pool --evicted: save--> host slot --room runs low: spill--> disk slot --least recently used--> forgotten
//!   ^                         |                                   |
//!   +---------- load ---------+-----------------------------------+
//! ```
//!
//! A content keeps its name wherever it is, so a sequence that lost its blocks finds them again exactly as it finds a
//! prefix: preemption by swap and the prefix cache are one mechanism (the names are those of PagedAttention's swapping,
//! Kwon et al., SOSP 2023).
//!
//! A slot that bytes are read from or written to is *pinned*: it is neither handed out nor taken as a victim before the
//! engine has said that the transfer has ended. A disk slot has a content only once its write has ended well, so nothing
//! half written is ever found. After [`MAX_FAULTS`] faults in a row the disk is given up.
//!
//! This module counts slots; the bytes, their checksums and the threads are the engine's.

use alloc::vec;
use alloc::vec::Vec;

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
    /// Neighbours in the list of its tier, meaningful while it has a content and no pins.
    previous: u32,
    next: u32,
}

/// One tier: its slots are `first..first + len` of all.
#[derive(Clone, Debug)]
struct Shelf {
    first: usize,
    len: usize,
    /// Slots with neither content nor pins.
    empty: Vec<u32>,
    /// Ends of the list of contents without pins: its `next` was used least recently.
    sentinel: usize,
    used: usize,
}

/// Every slot of both tiers. Sized once; no call allocates.
pub(super) struct Tiers {
    block_size: usize,
    slots: Vec<Slot>,
    /// `[slots, block_size]`.
    tokens: Vec<TokenId>,
    shelves: [Shelf; 2],
    spills: Vec<(SlotSpill, u64)>,
    most_spills: usize,
    faults_in_a_row: u32,
    pub(super) stats: SwapStats,
}

impl Tiers {
    pub(super) fn new(sizes: TierSizes, block_size: usize) -> Tiers {
        let TierSizes { host_slots, disk_slots } = sizes;
        let num_slots = host_slots + disk_slots;
        assert!(num_slots < u32::MAX as usize - 2, "slots are counted in 32 bits");
        let shelf = |first: usize, len: usize, sentinel| {
            let empty = (0..len as u32).rev().map(|index| first as u32 + index).collect();
            Shelf { first, len, empty, sentinel, used: 0 }
        };
        let mut slots = vec![Slot::default(); num_slots + 2];
        for (sentinel, slot) in slots.iter_mut().enumerate().skip(num_slots) {
            (slot.previous, slot.next) = (sentinel as u32, sentinel as u32);
        }
        let most_spills = (host_slots / 8).max(LEAST_SPARE).min(host_slots);
        Tiers {
            block_size,
            slots,
            tokens: vec![0; num_slots * block_size],
            shelves: [shelf(0, host_slots, num_slots), shelf(host_slots, disk_slots, num_slots + 1)],
            spills: Vec::with_capacity(most_spills),
            most_spills,
            faults_in_a_row: 0,
            stats: SwapStats::default(),
        }
    }

    /// Slots of a tier.
    pub(super) fn len(&self, tier: Tier) -> usize {
        self.shelves[tier as usize].len
    }

    /// Slots of a tier that are free for a content without another one losing its place.
    pub(super) fn num_empty(&self, tier: Tier) -> usize {
        self.shelves[tier as usize].empty.len()
    }

    /// Whether contents may still go to disk.
    pub(super) fn has_disk(&self) -> bool {
        self.len(Tier::Disk) > 0 && !self.stats.disk_given_up
    }

    pub(super) fn stats(&self) -> SwapStats {
        let used = |tier: Tier| self.shelves[tier as usize].used;
        SwapStats { host_used: used(Tier::Host), disk_used: used(Tier::Disk), ..self.stats }
    }

    pub(super) fn content(&self, slot: TierSlot) -> Option<&Content> {
        self.slots[self.at(slot)].content.as_ref()
    }

    pub(super) fn tokens_of(&self, slot: TierSlot) -> &[TokenId] {
        &self.tokens[self.at(slot) * self.block_size..][..self.block_size]
    }

    /// A slot without content and pins, in no list: the caller fills or pins it at once. The second value is what had to
    /// give way. `None` if every slot is pinned.
    pub(super) fn take(&mut self, tier: Tier) -> Option<(TierSlot, Option<Content>)> {
        if let Some(at) = self.shelves[tier as usize].empty.pop() {
            return Some((self.name(at as usize), None));
        }
        let oldest = self.oldest(tier)?;
        self.unlink(self.at(oldest));
        self.stats.dropped += 1;
        let content = self.clear(oldest);
        Some((oldest, Some(content)))
    }

    /// The content without pins that was used least recently.
    pub(super) fn oldest(&self, tier: Tier) -> Option<TierSlot> {
        let sentinel = self.shelves[tier as usize].sentinel;
        let oldest = self.slots[sentinel].next as usize;
        (oldest != sentinel).then(|| self.name(oldest))
    }

    /// Fills a slot that [`Tiers::take`] gave.
    pub(super) fn fill(&mut self, slot: TierSlot, content: Content, tokens: &[TokenId]) {
        let at = self.at(slot);
        self.tokens[at * self.block_size..][..self.block_size].copy_from_slice(tokens);
        self.slots[at].content = Some(content);
        self.shelves[slot.tier as usize].used += 1;
        if self.slots[at].pins == 0 {
            self.link_last(at);
        }
    }

    /// The content leaves its slot, which is free once it has no pins. The caller sees to the index.
    pub(super) fn forget(&mut self, slot: TierSlot) -> Content {
        let at = self.at(slot);
        let pinned = self.slots[at].pins > 0;
        if !pinned {
            self.unlink(at);
        }
        let content = self.clear(slot);
        if !pinned {
            self.shelves[slot.tier as usize].empty.push(at as u32);
        }
        content
    }

    fn clear(&mut self, slot: TierSlot) -> Content {
        let at = self.at(slot);
        self.shelves[slot.tier as usize].used -= 1;
        self.slots[at].content.take().expect("forgetting a slot that holds nothing")
    }

    /// A transfer begins that reads or writes the slot. One that was taken has a pin from now on.
    pub(super) fn pin(&mut self, slot: TierSlot) {
        let at = self.at(slot);
        if self.slots[at].pins == 0 && self.slots[at].content.is_some() {
            self.unlink(at);
        }
        self.slots[at].pins += 1;
    }

    /// A transfer has ended.
    pub(super) fn unpin(&mut self, slot: TierSlot) {
        let at = self.at(slot);
        assert!(self.slots[at].pins > 0, "a transfer ends once");
        self.slots[at].pins -= 1;
        if self.slots[at].pins == 0 {
            match self.slots[at].content {
                Some(_) => self.link_last(at),
                None => self.shelves[slot.tier as usize].empty.push(at as u32),
            }
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

    /// The content moves from the host slot to the disk slot, both named by a write that [`Tiers::end_spill`] called good.
    pub(super) fn finish_spill(&mut self, spill: SlotSpill) -> BlockHash {
        let (from, to) = (self.at(spill.host), self.at(spill.disk));
        self.tokens.copy_within(from * self.block_size..(from + 1) * self.block_size, to * self.block_size);
        let content = self.forget(spill.host);
        self.slots[to].content = Some(content);
        self.shelves[Tier::Disk as usize].used += 1;
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
        let Shelf { first, len, .. } = self.shelves[tier as usize];
        (first..first + len).filter(|&at| self.slots[at].content.is_some()).map(|at| self.name(at))
    }

    /// Panics unless the books balance. `loads`: slots that are being read back.
    pub(super) fn check(&self, loads: &[TierSlot]) {
        let spills = self.spills.iter().flat_map(|(spill, _)| [spill.host, spill.disk]);
        let mut pins = vec![0; self.slots.len()];
        loads.iter().copied().chain(spills).for_each(|slot| pins[self.at(slot)] += 1);
        for (tier, shelf) in [Tier::Host, Tier::Disk].into_iter().zip(&self.shelves) {
            let mut listed = vec![false; self.slots.len()];
            let mut at = self.slots[shelf.sentinel].next as usize;
            while at != shelf.sentinel {
                assert!(self.slots[at].content.is_some() && self.slots[at].pins == 0, "I3: slot {at} in the list");
                assert!(!listed[at], "I3: slot {at} is listed twice");
                listed[at] = true;
                at = self.slots[at].next as usize;
            }
            for &at in &shelf.empty {
                assert!(!listed[at as usize] && self.slots[at as usize].content.is_none(), "I1: slot {at} is empty");
                listed[at as usize] = true;
            }
            for at in shelf.first..shelf.first + shelf.len {
                assert_eq!(self.slots[at].pins, pins[at], "I2: pins of slot {at}");
                assert_eq!(self.slots[at].pins == 0, listed[at], "I1: slot {at} is in exactly one class");
            }
            assert!(shelf.used == self.filled(tier).count() && shelf.used <= shelf.len, "I11: slots in use");
        }
        assert!(self.spills.len() <= self.most_spills, "I11: writes in flight");
        let on_disk = self.shelves[Tier::Disk as usize].used;
        assert!(!self.stats.disk_given_up || on_disk == 0, "a disk that was given up holds nothing");
    }

    fn at(&self, slot: TierSlot) -> usize {
        let shelf = &self.shelves[slot.tier as usize];
        assert!((slot.index as usize) < shelf.len, "{slot:?} of {}", shelf.len);
        shelf.first + slot.index as usize
    }

    fn name(&self, at: usize) -> TierSlot {
        let host = self.shelves[0].len;
        match at < host {
            true => TierSlot { tier: Tier::Host, index: at as u32 },
            false => TierSlot { tier: Tier::Disk, index: (at - host) as u32 },
        }
    }

    fn unlink(&mut self, at: usize) {
        let Slot { previous, next, .. } = self.slots[at];
        self.slots[previous as usize].next = next;
        self.slots[next as usize].previous = previous;
    }

    fn link_last(&mut self, at: usize) {
        let sentinel = self.shelves[usize::from(at >= self.shelves[0].len)].sentinel;
        let previous = self.slots[sentinel].previous;
        (self.slots[at].previous, self.slots[at].next) = (previous, sentinel as u32);
        self.slots[previous as usize].next = at as u32;
        self.slots[sentinel].previous = at as u32;
    }
}
