//! A block's name, a sequence's blocks in order, and the one place where a position becomes a slot.

use alloc::vec::Vec;
use core::ops::Deref;

/// Names a block of the pool, `0..num_blocks`: `block_size` consecutive tokens' keys and values. An id, not bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Blocks that `tokens` tokens fill, the last one perhaps in part.
pub(crate) fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}

/// How much of what was asked the prefix cache had, counted when a sequence first enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Tokens known then of requests that asked the cache: the prompt's, and those generated before it came.
    pub queried_tokens: u64,
    /// Those found.
    pub hit_tokens: u64,
}

/// A sequence's blocks in order: position `p` lives in block `p / block_size` at offset `p % block_size`.
/// Append-only while the sequence runs, but for copy-on-write, which replaces one entry by a copy of itself.
#[derive(Clone, Debug)]
pub struct BlockTable {
    block_size: usize,
    blocks: Vec<BlockId>,
}

impl BlockTable {
    /// An empty table.
    pub fn new(block_size: usize) -> BlockTable {
        assert!(block_size > 0, "a block holds at least one token");
        BlockTable { block_size, blocks: Vec::new() }
    }

    /// The place of position `position` in the cache: `block * block_size + offset`.
    /// Panics if the table does not reach that far.
    pub fn slot(&self, position: usize) -> usize {
        self.blocks[position / self.block_size].index() * self.block_size + position % self.block_size
    }

    /// Tokens that the table has room for.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * self.block_size
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn reserve(&mut self, blocks: usize) {
        self.blocks.reserve_exact(blocks.saturating_sub(self.blocks.len()));
    }

    pub(crate) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        self.blocks.pop()
    }

    /// Copy-on-write: entry `index` is now `copy`.
    pub(crate) fn replace(&mut self, index: usize, copy: BlockId) {
        self.blocks[index] = copy;
    }
}

impl Deref for BlockTable {
    type Target = [BlockId];

    fn deref(&self) -> &[BlockId] {
        &self.blocks
    }
}
