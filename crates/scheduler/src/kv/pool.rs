//! The pool: reference counts, the free list in order of use, and which blocks hold which prefix.
//!
//! ```text
//!            take()                          share()
//!   free ------------> held (refs = 1) <------------------+
//!    ^                     |  register() once full        |
//!    | release() to 0      v                              |
//!    +-------- plain    held, cached -- release() to 0 -> idle, cached
//!    ^                                                    |
//!    +------------- evicted by take(), oldest first ------+
//! ```

use alloc::vec;
use alloc::vec::Vec;

use super::prefix::PrefixIndex;
use super::{BlockHash, BlockId};
use crate::TokenId;

/// Names a *content* in the prefix cache: a block, and how often that block has changed content before. When the block
/// is evicted its epoch moves on, so an old name finds nothing instead of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedBlock {
    /// The block that holds it.
    pub block: BlockId,
    /// The block's content number.
    pub epoch: u64,
}

/// What a cached block holds: everything a hit is compared with. The tokens are in the pool's arena.
#[derive(Clone, Copy, Debug)]
struct Content {
    hash: BlockHash,
    parent: Option<CachedBlock>,
    salt: u64,
}

#[derive(Clone, Debug)]
struct Block {
    refs: u32,
    epoch: u64,
    content: Option<Content>,
    /// Neighbours in the free list, meaningful while `refs == 0`.
    previous: u32,
    next: u32,
}

/// Every block of the cache: who holds it, and what it is known to contain. Sized once; no call allocates.
pub struct BlockPool {
    block_size: usize,
    /// The last one is the free list's sentinel: its `next` is handed out first, its `previous` last.
    blocks: Vec<Block>,
    /// Token ids of cached blocks, `[num_blocks, block_size]`.
    tokens: Vec<TokenId>,
    index: PrefixIndex,
    num_free: usize,
    num_idle: usize,
    num_taken: u64,
    num_evicted: u64,
    compare_on_hit: bool,
}

impl BlockPool {
    /// `num_blocks` free blocks of `block_size` tokens, with nothing cached.
    pub fn new(num_blocks: usize, block_size: usize) -> BlockPool {
        assert!(num_blocks > 0 && num_blocks < u32::MAX as usize && block_size > 0);
        let sentinel = num_blocks as u32;
        let link = |index: u32| Block {
            refs: 0,
            epoch: 0,
            content: None,
            previous: if index == 0 { sentinel } else { index - 1 },
            next: if index == sentinel { 0 } else { index + 1 },
        };
        BlockPool {
            block_size,
            blocks: (0..=sentinel).map(link).collect(),
            tokens: vec![0; num_blocks * block_size],
            index: PrefixIndex::new(num_blocks),
            num_free: num_blocks,
            num_idle: 0,
            num_taken: 0,
            num_evicted: 0,
            compare_on_hit: true,
        }
    }

    /// A planted bug for the tests' own test: a hit is believed by its hash alone.
    #[doc(hidden)]
    pub fn believe_hashes(&mut self) {
        self.compare_on_hit = false;
    }

    /// Blocks in all.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks that [`BlockPool::take`] can hand out, cached ones included.
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// Blocks that some table names.
    pub fn num_used(&self) -> usize {
        self.num_blocks() - self.num_free
    }

    /// Free blocks that still hold a prefix.
    pub fn num_idle(&self) -> usize {
        self.num_idle
    }

    /// Blocks that the prefix cache can find, held or idle.
    pub fn num_cached(&self) -> usize {
        self.index.len()
    }

    /// Blocks ever taken.
    pub fn num_taken(&self) -> u64 {
        self.num_taken
    }

    /// Cached contents ever lost because their block was taken.
    pub fn num_evicted(&self) -> u64 {
        self.num_evicted
    }

    /// Tables that name `block`.
    pub fn refs(&self, block: BlockId) -> usize {
        self.blocks[block.index()].refs as usize
    }

    /// Whether the prefix cache can find `block`: then nobody may write it.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.blocks[block.index()].content.is_some()
    }

    /// Takes a free block for writing, refs = 1: a plain one if there is one, otherwise the least recently used cached
    /// one, which loses its content. `None` when every block is held.
    pub fn take(&mut self) -> Option<BlockId> {
        let first = self.blocks[self.num_blocks()].next;
        if first as usize == self.num_blocks() {
            return None;
        }
        let block = BlockId(first);
        self.unlink(block);
        if self.is_cached(block) {
            self.num_evicted += 1;
            self.forget(block);
        }
        self.blocks[block.index()].refs = 1;
        self.num_taken += 1;
        Some(block)
    }

    /// One more table names `block`, which is held or holds a prefix.
    pub fn share(&mut self, block: BlockId) {
        if self.blocks[block.index()].refs == 0 {
            assert!(self.is_cached(block), "sharing a block that holds nothing");
            self.unlink(block);
            self.num_idle -= 1;
        }
        self.blocks[block.index()].refs += 1;
    }

    /// One table fewer names `block`. The last one puts it in the free list: behind all others if it holds a prefix,
    /// before all others if not. Release a table from its end, so that a prefix outlives what follows it.
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        assert!(entry.refs > 0, "releasing a free block");
        entry.refs -= 1;
        if entry.refs == 0 {
            if entry.content.is_some() {
                self.num_idle += 1;
                self.link_before(self.num_blocks() as u32, block);
            } else {
                self.link_before(self.blocks[self.num_blocks()].next, block);
            }
        }
    }

    /// The cached block whose content is `tokens` after `parent` under `salt`. The hash finds a candidate; parent,
    /// salt and every token decide.
    pub fn find(
        &self,
        hash: &BlockHash,
        parent: Option<CachedBlock>,
        salt: u64,
        tokens: &[TokenId],
    ) -> Option<CachedBlock> {
        let block = self.index.get(hash)?;
        let entry = &self.blocks[block.index()];
        let content = entry.content.as_ref().expect("the index names cached blocks");
        let equal = content.parent == parent && content.salt == salt && self.tokens_of(block) == tokens;
        (equal || !self.compare_on_hit).then_some(CachedBlock { block, epoch: entry.epoch })
    }

    /// Puts a full, computed, held block into the prefix cache, and returns the name under which its content is known:
    /// its own, or that of an equal block that was there before (then `block` stays private). `None` if `parent` has
    /// left the cache meanwhile: nobody could find a child of it. A different content under the same hash gives way.
    pub fn register(
        &mut self,
        block: BlockId,
        hash: BlockHash,
        parent: Option<CachedBlock>,
        salt: u64,
        tokens: &[TokenId],
    ) -> Option<CachedBlock> {
        assert!(self.refs(block) > 0 && !self.is_cached(block), "only a held block is registered, and once");
        assert_eq!(tokens.len(), self.block_size, "only a full block is registered");
        if parent.is_some_and(|parent| !self.is_current(parent)) {
            return None;
        }
        if let Some(known) = self.find(&hash, parent, salt, tokens) {
            return Some(known);
        }
        if let Some(other) = self.index.get(&hash) {
            if parent.is_some_and(|parent| parent.block == other) {
                return None; // its own parent's hash: without the parent nobody could find it
            }
            self.forget(other);
            if self.refs(other) == 0 {
                self.unlink(other);
                self.link_before(self.blocks[self.num_blocks()].next, other);
            }
        }
        let start = block.index() * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        self.index.insert(hash, block);
        let entry = &mut self.blocks[block.index()];
        entry.content = Some(Content { hash, parent, salt });
        Some(CachedBlock { block, epoch: entry.epoch })
    }

    /// Whether that content is still where its name says.
    pub fn is_current(&self, cached: CachedBlock) -> bool {
        let entry = &self.blocks[cached.block.index()];
        entry.content.is_some() && entry.epoch == cached.epoch
    }

    /// Panics unless the books balance. `held[b]`: how many tables name block `b`.
    pub fn check(&self, held: &[usize]) {
        assert_eq!(held.len(), self.num_blocks());
        let mut in_free_list = vec![false; self.num_blocks()];
        let (mut at, mut free, mut idle) = (self.blocks[self.num_blocks()].next, 0, 0);
        while at as usize != self.num_blocks() {
            let entry = &self.blocks[at as usize];
            assert!(!in_free_list[at as usize], "I3: block {at} is in the free list twice");
            assert_eq!(entry.refs, 0, "I3: block {at} is free and referenced");
            assert!(entry.content.is_some() || idle == 0, "I3: plain block {at} waits behind cached ones");
            assert_eq!(self.blocks[entry.next as usize].previous, at, "I3: links of block {at}");
            in_free_list[at as usize] = true;
            free += 1;
            idle += usize::from(entry.content.is_some());
            at = entry.next;
        }
        assert_eq!((free, idle), (self.num_free, self.num_idle), "I1: free and idle counts");
        let mut cached = 0;
        for (index, entry) in self.blocks[..self.num_blocks()].iter().enumerate() {
            assert_eq!(entry.refs as usize, held[index], "I2: references of block {index}");
            assert_eq!(entry.refs == 0, in_free_list[index], "I1: block {index} is in exactly one class");
            if let Some(content) = &entry.content {
                cached += 1;
                let block = BlockId(index as u32);
                assert_eq!(self.index.get(&content.hash), Some(block), "I6: block {index} is not under its hash");
            }
        }
        assert_eq!(cached, self.index.len(), "I6: the index names exactly the cached blocks");
    }

    fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    /// Takes a cached block out of the index. Its place in the free list is the caller's business.
    fn forget(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        let content = entry.content.take().expect("forgetting a block that holds nothing");
        entry.epoch += 1;
        if entry.refs == 0 {
            self.num_idle -= 1;
        }
        self.index.remove(&content.hash);
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { previous, next, .. } = self.blocks[block.index()];
        self.blocks[previous as usize].next = next;
        self.blocks[next as usize].previous = previous;
        self.num_free -= 1;
    }

    fn link_before(&mut self, next: u32, block: BlockId) {
        let previous = self.blocks[next as usize].previous;
        let entry = &mut self.blocks[block.index()];
        (entry.previous, entry.next) = (previous, next);
        self.blocks[previous as usize].next = block.0;
        self.blocks[next as usize].previous = block.0;
        self.num_free += 1;
    }
}
