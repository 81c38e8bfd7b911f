//! Slots for states: the memory of layers that keep no keys and values (recurrences, short convolutions).
//!
//! ```text
//! sequence A  state after its computed tokens: slot 3          held
//! step        leaves the next states of A in slot 5, and at a block's border in slot 0
//! checkpoint  content of block 7 -> slot 0                     idle: a prompt with this prefix goes on from it
//! ```
//!
//! A state belongs to a number of tokens, not to a position in memory that grows, so a prefix can be reused only where
//! its state was kept: at a *checkpoint*, the state after the last token of a full block, which lives and dies with the
//! content of that block, wherever that is. A slot is written once and then only read, so sequences share slots as they
//! share full blocks. When no slot is free, the least recently used checkpoint that no sequence holds is given up.

use alloc::vec;
use alloc::vec::Vec;

use super::BlockHash;
use super::list::List;

/// A slot of the states of one sequence in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateSlot(pub u32);

impl StateSlot {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// How many slots for states there are, and how often states are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSizes {
    /// Slots; for each sequence that may run at least one that a step reads and one that each step in flight writes.
    pub slots: usize,
    /// Tokens between checkpoints of a long prompt; a multiple of the block size.
    pub interval: usize,
}

/// Use of the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateUse {
    /// Slots in all.
    pub slots: usize,
    /// Held by sequences and steps.
    pub held: usize,
    /// Checkpoints that no sequence holds.
    pub idle: usize,
    /// Checkpoints made since start.
    pub kept: u64,
    /// Checkpoints given up for other states since start.
    pub given_up: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Sequences, and steps in flight that write it.
    holders: u32,
    /// The content whose checkpoint it is.
    content: Option<BlockHash>,
}

/// All slots. See the module.
#[derive(Clone, Debug)]
pub(super) struct StateSlots {
    entries: Vec<Entry>,
    free: Vec<StateSlot>,
    /// Checkpoints without holders, least recently used first.
    idle: List,
    kept: u64,
    given_up: u64,
}

impl StateSlots {
    pub(super) fn new(slots: usize) -> StateSlots {
        StateSlots {
            entries: vec![Entry::default(); slots],
            free: (0..slots as u32).rev().map(StateSlot).collect(),
            idle: List::empty(slots),
            kept: 0,
            given_up: 0,
        }
    }

    pub(super) fn uses(&self) -> StateUse {
        let (slots, idle) = (self.entries.len(), self.idle.len());
        StateUse { slots, held: slots - self.num_takeable(), idle, kept: self.kept, given_up: self.given_up }
    }

    /// Slots that [`StateSlots::take`] can give, idle checkpoints included.
    pub(super) fn num_takeable(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// A slot with one holder, and the content that loses its checkpoint for it. `None` if all are held.
    pub(super) fn take(&mut self) -> Option<(StateSlot, Option<BlockHash>)> {
        let (slot, lost) = match self.free.pop() {
            Some(slot) => (slot, None),
            None => {
                let slot = StateSlot(self.idle.first()? as u32);
                self.idle.remove(slot.index());
                self.given_up += 1;
                (slot, self.entries[slot.index()].content.take())
            }
        };
        self.entries[slot.index()].holders = 1;
        Some((slot, lost))
    }

    /// Adds a holder of a slot that is held or a checkpoint.
    pub(super) fn share(&mut self, slot: StateSlot) {
        let entry = &mut self.entries[slot.index()];
        if entry.holders == 0 {
            assert!(entry.content.is_some(), "sharing an empty slot");
            self.idle.remove(slot.index());
        }
        entry.holders += 1;
    }

    /// Drops a holder. Without any, a checkpoint is idle and any other slot free.
    pub(super) fn release(&mut self, slot: StateSlot) {
        let entry = &mut self.entries[slot.index()];
        assert!(entry.holders > 0, "releasing a free slot");
        entry.holders -= 1;
        match (entry.holders, entry.content) {
            (0, Some(_)) => self.idle.push_last(slot.index()),
            (0, None) => self.free.push(slot),
            _ => {}
        }
    }

    /// A held slot becomes the checkpoint of a content that has none.
    pub(super) fn keep(&mut self, slot: StateSlot, content: BlockHash) {
        let entry = &mut self.entries[slot.index()];
        assert!(entry.holders > 0 && entry.content.is_none(), "only a held state is kept, and once");
        entry.content = Some(content);
        self.kept += 1;
    }

    /// The content is gone, or needs no checkpoint.
    pub(super) fn forget(&mut self, slot: StateSlot) {
        let entry = &mut self.entries[slot.index()];
        entry.content = None;
        if entry.holders == 0 {
            self.idle.remove(slot.index());
            self.free.push(slot);
        }
    }

    /// The content whose checkpoint it is.
    pub(super) fn content(&self, slot: StateSlot) -> Option<BlockHash> {
        self.entries[slot.index()].content
    }

    /// Whether a sequence or a step holds it.
    pub(super) fn is_held(&self, slot: StateSlot) -> bool {
        self.entries[slot.index()].holders > 0
    }

    /// Panics if an invariant is violated. `holders`: of each slot, as counted.
    pub(super) fn check(&self, holders: &[u32]) {
        self.idle.check();
        let mut classes = vec![0; self.entries.len()];
        self.idle.iter().for_each(|slot| classes[slot] += 1);
        self.free.iter().for_each(|slot| classes[slot.index()] += 1);
        for (slot, (entry, &counted)) in self.entries.iter().zip(holders).enumerate() {
            assert_eq!(entry.holders, counted, "I40: holders of state slot {slot}");
            assert_eq!(classes[slot], u32::from(counted == 0), "I40: state slot {slot} is in exactly one class");
        }
        assert!(self.free.iter().all(|&slot| self.content(slot).is_none()), "I40: a checkpoint is free");
        assert!(self.idle.iter().all(|at| self.entries[at].content.is_some()), "I40: an empty slot is idle");
    }
}
