//! The block pool against a naive one: no hashes, no index, no linked list, whole prefixes compared token by token.
//!
//! Both are driven by the same random operations and must agree on every answer: which block is taken, shared, found,
//! evicted. A second property weakens the hashes until they collide all the time: then the pool may miss what the naive
//! one finds, but it must never find anything else.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;
use scheduler::TokenId;
use scheduler::kv::{BlockHash, BlockId, BlockPool, CachedBlock, ChainHasher, blocks_for};

/// What a block holds: tenant, *all* tokens up to its end, and the name of the block before it.
type Content = (u64, Vec<TokenId>, Option<CachedBlock>);

#[derive(Clone, Default)]
struct NaiveBlock {
    refs: usize,
    epoch: u64,
    content: Option<Content>,
}

struct NaivePool {
    blocks: Vec<NaiveBlock>,
    /// In the order of being taken.
    free: Vec<BlockId>,
    num_evicted: u64,
}

impl NaivePool {
    fn new(num_blocks: usize) -> NaivePool {
        let free = (0..num_blocks as u32).map(BlockId).collect();
        NaivePool { blocks: vec![NaiveBlock::default(); num_blocks], free, num_evicted: 0 }
    }

    fn take(&mut self) -> Option<BlockId> {
        let block = if self.free.is_empty() { return None } else { self.free.remove(0) };
        if self.blocks[block.index()].content.is_some() {
            self.num_evicted += 1;
            self.forget(block);
        }
        self.blocks[block.index()].refs = 1;
        Some(block)
    }

    fn share(&mut self, block: BlockId) {
        self.free.retain(|&free| free != block);
        self.blocks[block.index()].refs += 1;
    }

    fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        entry.refs -= 1;
        match (entry.refs, &entry.content) {
            (0, Some(_)) => self.free.push(block),
            (0, None) => self.free.insert(0, block),
            _ => {}
        }
    }

    fn find(&self, parent: Option<CachedBlock>, salt: u64, prefix: &[TokenId]) -> Option<CachedBlock> {
        let wanted = Some((salt, prefix.to_vec(), parent));
        let index = self.blocks.iter().position(|block| block.content == wanted)?;
        Some(CachedBlock { block: BlockId(index as u32), epoch: self.blocks[index].epoch })
    }

    fn register(
        &mut self,
        block: BlockId,
        parent: Option<CachedBlock>,
        salt: u64,
        prefix: &[TokenId],
    ) -> Option<CachedBlock> {
        if let Some(CachedBlock { block, epoch }) = parent {
            let parent = &self.blocks[block.index()];
            if parent.content.is_none() || parent.epoch != epoch {
                return None;
            }
        }
        if let Some(known) = self.find(parent, salt, prefix) {
            return Some(known);
        }
        let same_prefix = |block: &NaiveBlock| block.content.as_ref().is_some_and(|c| c.0 == salt && c.1 == prefix);
        if let Some(orphan) = self.blocks.iter().position(same_prefix) {
            let orphan = BlockId(orphan as u32);
            self.forget(orphan);
            if let Some(place) = self.free.iter().position(|&free| free == orphan) {
                self.free.remove(place);
                self.free.insert(0, orphan);
            }
        }
        let entry = &mut self.blocks[block.index()];
        entry.content = Some((salt, prefix.to_vec(), parent));
        Some(CachedBlock { block, epoch: entry.epoch })
    }

    fn forget(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        entry.content = None;
        entry.epoch += 1;
    }
}

/// A sequence as far as the pool is concerned.
#[derive(Clone)]
struct Table {
    salt: u64,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    num_registered: usize,
    last_registered: Option<CachedBlock>,
}

#[derive(Clone, Debug)]
enum Op {
    /// A prompt: the first `len` tokens of a document, the last of them changed by `twist`.
    Enter {
        salt: u64,
        document: usize,
        len: usize,
        twist: TokenId,
    },
    /// Its full blocks are computed.
    Compute {
        table: usize,
    },
    Fork {
        table: usize,
    },
    /// Its last block is written, and copied first if others hold it.
    Write {
        table: usize,
    },
    Leave {
        table: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..2u64, 0..2usize, 1..24usize, 0..3u32)
            .prop_map(|(salt, document, len, twist)| Op::Enter { salt, document, len, twist }),
        3 => any::<usize>().prop_map(|table| Op::Compute { table }),
        1 => any::<usize>().prop_map(|table| Op::Fork { table }),
        1 => any::<usize>().prop_map(|table| Op::Write { table }),
        2 => any::<usize>().prop_map(|table| Op::Leave { table }),
    ];
    proptest::collection::vec(op, 1..200)
}

struct Pair {
    pool: BlockPool,
    naive: NaivePool,
    hasher: ChainHasher,
    block_size: usize,
    tables: Vec<Table>,
    /// With weak hashes the naive pool only judges what the pool finds.
    weak: bool,
    hits: usize,
}

impl Pair {
    fn new(num_blocks: usize, block_size: usize, hash_bits: usize) -> Pair {
        Pair {
            pool: BlockPool::new(num_blocks, block_size),
            naive: NaivePool::new(num_blocks),
            hasher: ChainHasher::truncated([9; 32], hash_bits),
            block_size,
            tables: Vec::new(),
            weak: hash_bits < 64,
            hits: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        let choose = |table: usize| table % self.tables.len().max(1);
        match *op {
            Op::Enter { salt, document, len, twist } => self.enter(salt, document, len, twist),
            _ if self.tables.is_empty() => {}
            Op::Compute { table } => self.compute(choose(table)),
            Op::Fork { table } => {
                let fork = self.tables[choose(table)].clone();
                fork.blocks.iter().for_each(|&block| self.share(block));
                self.tables.push(fork);
            }
            Op::Write { table } => self.write(choose(table)),
            Op::Leave { table } => {
                let table = self.tables.swap_remove(choose(table));
                table.blocks.into_iter().rev().for_each(|block| self.release(block));
            }
        }
        self.check();
    }

    fn enter(&mut self, salt: u64, document: usize, len: usize, twist: TokenId) {
        let mut tokens: Vec<TokenId> = (0..len).map(|at| (document * 100 + at) as TokenId).collect();
        tokens[len - 1] += twist * 1000;
        let mut hits: Vec<CachedBlock> = Vec::new();
        let mut hash = BlockHash::ROOT;
        for index in 0..(len - 1) / self.block_size {
            let block_tokens = &tokens[index * self.block_size..][..self.block_size];
            hash = self.hasher.hash(hash, salt, block_tokens);
            let found = self.pool.find(&hash, hits.last().copied(), salt, block_tokens);
            let expected = self.naive.find(hits.last().copied(), salt, &tokens[..(index + 1) * self.block_size]);
            assert!(found == expected || (self.weak && found.is_none()), "found {found:?}, not {expected:?}");
            match found {
                Some(hit) => hits.push(hit),
                None => break,
            }
        }
        self.hits += hits.len();
        let needed = blocks_for(len, self.block_size) - hits.len();
        let idle = hits.iter().filter(|hit| self.pool.refs(hit.block) == 0).count();
        if self.pool.num_free() - idle < needed {
            return;
        }
        let mut blocks: Vec<BlockId> = hits.iter().map(|hit| hit.block).collect();
        blocks.iter().for_each(|&block| self.share(block));
        blocks.extend((0..needed).map(|_| self.take().expect("counted")));
        let last_registered = hits.last().copied();
        self.tables.push(Table { salt, tokens, blocks, num_registered: hits.len(), last_registered });
    }

    fn compute(&mut self, table: usize) {
        let Table { salt, tokens, blocks, num_registered, last_registered } = self.tables[table].clone();
        let (mut last, mut hash) = (last_registered, BlockHash::ROOT);
        for (index, block_tokens) in tokens.chunks_exact(self.block_size).enumerate() {
            hash = self.hasher.hash(hash, salt, block_tokens);
            let parent_is_lost = index > 0 && last.is_none();
            if index < num_registered || parent_is_lost || self.pool.is_cached(blocks[index]) {
                continue;
            }
            let parent = last;
            last = self.pool.register(blocks[index], hash, parent, salt, block_tokens);
            let prefix = &tokens[..(index + 1) * self.block_size];
            if self.weak {
                self.forget_what_the_pool_forgot();
                if last.is_none() {
                    continue; // collided with its own parent
                }
            }
            let expected = self.naive.register(blocks[index], parent, salt, prefix);
            assert_eq!(last, expected);
        }
        let table = &mut self.tables[table];
        table.num_registered = tokens.len() / self.block_size;
        table.last_registered = last;
    }

    /// A collision makes the older content give way; the naive pool cannot know that.
    fn forget_what_the_pool_forgot(&mut self) {
        for index in 0..self.naive.blocks.len() {
            let block = BlockId(index as u32);
            if self.naive.blocks[index].content.is_some() && !self.pool.is_cached(block) {
                self.naive.forget(block);
                if let Some(place) = self.naive.free.iter().position(|&free| free == block) {
                    self.naive.free.remove(place);
                    self.naive.free.insert(0, block);
                }
            }
        }
    }

    fn write(&mut self, table: usize) {
        let Some(&last) = self.tables[table].blocks.last() else { return };
        if self.pool.refs(last) > 1 && self.pool.num_free() > 0 && !self.pool.is_cached(last) {
            let copy = self.take().expect("counted");
            self.release(last);
            *self.tables[table].blocks.last_mut().expect("it has one") = copy;
        }
    }

    fn take(&mut self) -> Option<BlockId> {
        let taken = self.pool.take();
        assert_eq!(taken, self.naive.take());
        taken
    }

    fn share(&mut self, block: BlockId) {
        self.pool.share(block);
        self.naive.share(block);
    }

    fn release(&mut self, block: BlockId) {
        self.pool.release(block);
        self.naive.release(block);
    }

    fn check(&self) {
        let mut held = vec![0; self.pool.num_blocks()];
        self.tables.iter().flat_map(|table| &table.blocks).for_each(|block| held[block.index()] += 1);
        self.pool.check(&held);
        for (index, block) in self.naive.blocks.iter().enumerate() {
            assert_eq!((self.pool.refs(BlockId(index as u32)), held[index]), (block.refs, block.refs));
            assert_eq!(self.pool.is_cached(BlockId(index as u32)), block.content.is_some());
        }
        let idle = self.naive.free.iter().filter(|block| self.naive.blocks[block.index()].content.is_some()).count();
        assert_eq!((self.pool.num_free(), self.pool.num_idle()), (self.naive.free.len(), idle));
        assert_eq!(self.pool.num_evicted(), self.naive.num_evicted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_pool_agrees_with_a_naive_one(num_blocks in 1..12usize, block_size in 1..5usize, ops in ops()) {
        let mut pair = Pair::new(num_blocks, block_size, 256);
        ops.iter().for_each(|op| pair.apply(op));
    }

    #[test]
    fn colliding_hashes_cost_hits_and_never_bring_a_wrong_one(
        num_blocks in 1..12usize,
        block_size in 1..5usize,
        hash_bits in 0..6usize,
        ops in ops(),
    ) {
        let mut pair = Pair::new(num_blocks, block_size, hash_bits);
        ops.iter().for_each(|op| pair.apply(op));
    }
}

#[test]
fn the_operations_above_do_hit() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut hits = 0;
    for _ in 0..200 {
        let ops = ops().new_tree(&mut runner).expect("no filter").current();
        let mut pair = Pair::new(8, 2, 256);
        ops.iter().for_each(|op| pair.apply(op));
        hits += pair.hits;
    }
    assert!(hits > 500, "{hits} hits: the properties above test little");
}
