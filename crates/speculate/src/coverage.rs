//! What a drafter with a cache of its own, in the target's blocks, has computed of them.
//!
//! ```text
//! target's cache    block 7 [ a b c d ]  block 3 [ e f . . ]       one block table for both:
//! drafter's cache   block 7 [ a b c d ]  block 3 [ e . . . ]       hits, forks and copies hold for it too
//! known             block 7 4            block 3 1
//! ```
//! A number per block: its valid positions, counted from the first. It may be wrong without harm: a drafter that reads
//! keys of another sequence's tokens drafts badly, and nothing else follows.

use std::ops::Range;

use scheduler::{Sequence, Step};

use crate::network::SequenceLookup;

/// By block: positions that the drafter has, from the first on.
pub(crate) struct DraftCoverage {
    positions: Vec<u16>,
    block_size: usize,
}

impl DraftCoverage {
    /// Nothing of `blocks` blocks.
    pub(crate) fn new(blocks: usize, block_size: usize) -> DraftCoverage {
        DraftCoverage { positions: vec![0; blocks], block_size }
    }

    /// Positions of a sequence that it has, from the first on.
    pub(crate) fn of(&self, sequence: &Sequence) -> usize {
        let mut known = 0;
        for block in sequence.block_table() {
            let here = usize::from(self.positions[block.0 as usize]);
            known += here;
            if here < self.block_size {
                break;
            }
        }
        known
    }

    /// Whether a sequence has blocks for all positions before this one.
    pub(crate) fn holds(&self, sequence: &Sequence, end: usize) -> bool {
        sequence.block_table().len() * self.block_size >= end
    }

    /// It has computed these positions of a sequence, and everything before them.
    pub(crate) fn note(&mut self, sequence: &Sequence, positions: Range<usize>) {
        for position in positions {
            let block = sequence.block_table()[position / self.block_size];
            self.positions[block.0 as usize] = (position % self.block_size + 1) as u16;
        }
    }

    /// What is at `position` of a sequence and behind it is not known.
    pub(crate) fn forget_from(&mut self, sequence: &Sequence, position: usize) {
        let (first, offset) = (position / self.block_size, position % self.block_size);
        for (index, block) in sequence.block_table().iter().enumerate().skip(first) {
            let most = if index == first { offset } else { 0 };
            let here = &mut self.positions[block.0 as usize];
            *here = (*here).min(most as u16);
        }
    }

    /// Blocks have other contents than they had: those that a step copies or loads, and those whose first slot it
    /// writes. Returns what has to be copied.
    pub(crate) fn follow(&mut self, step: &Step, of: &SequenceLookup<'_, '_>) -> Vec<(u32, u32)> {
        let copies: Vec<_> = step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
        copies.iter().for_each(|&(src, dst)| self.positions[dst as usize] = self.positions[src as usize]);
        // A tier keeps what the target has alone.
        step.loads.iter().for_each(|load| self.positions[load.block.0 as usize] = 0);
        for rows in step.rows() {
            let Some(sequence) = of(rows.seq) else { continue };
            let table = sequence.block_table();
            let begun = rows.start.div_ceil(self.block_size)..(rows.start + rows.len).div_ceil(self.block_size);
            begun.for_each(|index| self.positions[table[index].0 as usize] = 0);
        }
        copies
    }
}
