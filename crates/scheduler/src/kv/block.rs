//! Block ids, block tables, and the one place where a position becomes a slot.

use alloc::vec::Vec;
use core::ops::Deref;

/// A block of the pool, `0..num_blocks`: keys and values of `block_size` consecutive tokens. An id, not bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Blocks for `tokens` tokens; the last may be partial.
pub(crate) fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}

/// Prefix-cache hits, counted when a sequence first enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Known tokens of requests that use the cache: the prompt, and tokens generated elsewhere.
    pub queried_tokens: u64,
    /// Those found.
    pub hit_tokens: u64,
}

/// A sequence's blocks in order: position `p` is in block `p / block_size` at offset `p % block_size`. Append-only
/// while the sequence runs, except that copy-on-write replaces an entry by its copy.
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

    /// KV slot of `position`: `block * block_size + offset`.
    /// Panics if the table does not reach that far.
    pub fn slot(&self, position: usize) -> usize {
        self.blocks[position / self.block_size].index() * self.block_size + position % self.block_size
    }

    /// Tokens that the table's blocks hold.
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

    /// Copy-on-write: sets entry `index` to `copy`.
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
