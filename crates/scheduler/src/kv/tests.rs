//! The block pool against a naive model: no hashes, no index, no linked list, whole prefixes compared token by token.
//!
//! Both run the same random operations and must agree on every result: which block is allocated, shared, found,
//! evicted. A second property weakens the hashes until they collide often: then the pool may miss what the model finds,
//! but must never find anything else. A third adds tiers, failing transfers and hashes of any strength, and tracks the
//! bytes: every hit holds exactly the requested prefix.

extern crate std;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;

use super::*;
use protocol::{Nanos, TokenId};

/// What a block holds: tenant, *all* tokens up to its end, and the number of the content before it.
type Content = (u64, Vec<TokenId>, Option<u64>);

#[derive(Clone, Default)]
struct NaiveBlock {
    refs: usize,
    /// With its own number.
    content: Option<(Content, u64)>,
}

struct NaivePool {
    blocks: Vec<NaiveBlock>,
    /// In the order of being taken.
    free: Vec<BlockId>,
    num_evicted: u64,
    next_id: u64,
}

impl NaivePool {
    fn new(num_blocks: usize) -> NaivePool {
        let free = (0..num_blocks as u32).map(BlockId).collect();
        NaivePool { blocks: vec![NaiveBlock::default(); num_blocks], free, num_evicted: 0, next_id: 0 }
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

    /// The block and the content's number.
    fn find(&self, parent: Option<u64>, salt: u64, prefix: &[TokenId]) -> Option<(BlockId, u64)> {
        let wanted = (salt, prefix.to_vec(), parent);
        let holds = |block: &NaiveBlock| block.content.as_ref().is_some_and(|(content, _)| *content == wanted);
        let index = self.blocks.iter().position(holds)?;
        Some((BlockId(index as u32), self.blocks[index].content.as_ref().expect("it holds it").1))
    }

    fn register(&mut self, block: BlockId, parent: Option<u64>, salt: u64, prefix: &[TokenId]) -> Option<u64> {
        let is_there = |id: u64| self.blocks.iter().any(|block| block.content.as_ref().is_some_and(|c| c.1 == id));
        if parent.is_some_and(|parent| !is_there(parent)) {
            return None;
        }
        if let Some((_, known)) = self.find(parent, salt, prefix) {
            return Some(known);
        }
        let same_prefix =
            |block: &NaiveBlock| block.content.as_ref().is_some_and(|(c, _)| c.0 == salt && c.1 == prefix);
        if let Some(orphan) = self.blocks.iter().position(same_prefix) {
            let orphan = BlockId(orphan as u32);
            self.forget(orphan);
            if let Some(place) = self.free.iter().position(|&free| free == orphan) {
                self.free.remove(place);
                self.free.insert(0, orphan);
            }
        }
        let id = self.next_id;
        self.next_id += 1;
        self.blocks[block.index()].content = Some(((salt, prefix.to_vec(), parent), id));
        Some(id)
    }

    fn forget(&mut self, block: BlockId) {
        self.blocks[block.index()].content = None;
    }
}

/// A sequence as far as the pool is concerned.
#[derive(Clone)]
struct Table {
    salt: u64,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    num_registered: usize,
    last_registered: Option<ContentName>,
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

/// There are no tiers where this is asked.
fn in_pool(hit: &Hit) -> BlockId {
    hit.block().expect("every content is in the pool")
}

impl Pair {
    fn new(num_blocks: usize, block_size: usize, hash_bits: usize) -> Pair {
        Pair {
            pool: BlockPool::new(num_blocks, block_size, 0),
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
        let mut hits: Vec<Hit> = Vec::new();
        let mut hash = BlockHash::ROOT;
        for index in 0..(len - 1) / self.block_size {
            let block_tokens = &tokens[index * self.block_size..][..self.block_size];
            hash = self.hasher.hash(hash, salt, block_tokens);
            let parent = hits.last().map(|hit| hit.name);
            let found = self.pool.find(&FullBlock { hash, parent, salt, tokens: block_tokens });
            let parent = parent.map(|parent| parent.id);
            let expected = self.naive.find(parent, salt, &tokens[..(index + 1) * self.block_size]);
            let equal =
                found.map(|hit| (hit.place, hit.name.id)) == expected.map(|(block, id)| (Location::Block(block), id));
            assert!(equal || (self.weak && found.is_none()), "found {found:?}, not {expected:?}");
            match found {
                Some(hit) => hits.push(hit),
                None => break,
            }
        }
        self.hits += hits.len();
        let needed = blocks_for(len, self.block_size) - hits.len();
        let idle = hits.iter().filter(|hit| self.pool.refs(in_pool(hit)) == 0).count();
        if self.pool.num_free() - idle < needed {
            return;
        }
        let mut blocks: Vec<BlockId> = hits.iter().map(in_pool).collect();
        blocks.iter().for_each(|&block| self.share(block));
        blocks.extend((0..needed).map(|_| self.take().expect("counted")));
        let last_registered = hits.last().map(|hit| hit.name);
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
            let full = FullBlock { hash, parent, salt, tokens: block_tokens };
            last = self.pool.register(blocks[index], &full, Nanos(0));
            let prefix = &tokens[..(index + 1) * self.block_size];
            if self.weak {
                self.forget_what_the_pool_forgot();
                if last.is_none() {
                    continue; // collided with its own parent
                }
            }
            let expected = self.naive.register(blocks[index], parent.map(|parent| parent.id), salt, prefix);
            assert_eq!(last.map(|last| last.id), expected);
        }
        let table = &mut self.tables[table];
        table.num_registered = tokens.len() / self.block_size;
        table.last_registered = last;
    }

    /// A collision drops the older content; the naive model cannot know that.
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
        let taken = self.pool.take(None);
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
        let mut uses = vec![Uses::default(); self.pool.num_blocks()];
        self.tables.iter().flat_map(|table| &table.blocks).for_each(|block| uses[block.index()].tables += 1);
        self.pool.check(&uses, &[]);
        for (index, block) in self.naive.blocks.iter().enumerate() {
            assert_eq!((self.pool.refs(BlockId(index as u32)), uses[index].tables), (block.refs, block.refs as u32));
            assert_eq!(self.pool.is_cached(BlockId(index as u32)), block.content.is_some());
        }
        assert_eq!(self.pool.num_free(), self.naive.free.len());
        assert_eq!(self.pool.num_evicted(), self.naive.num_evicted);
    }
}

/// Actual content of a place: tenant and prefix. `None` after a failed write.
type Bytes = Option<(u64, Vec<TokenId>)>;

/// A sequence whose prefix may still be on its way from a tier.
struct Loading {
    salt: u64,
    tokens: Vec<TokenId>,
    blocks: Vec<BlockId>,
    num_registered: usize,
    last_registered: Option<ContentName>,
    /// Index in the table, and from where.
    loads: Vec<(usize, TierSlot)>,
    first_lost: usize,
}

/// The pool with tiers, beside the bytes that its instructions move.
struct Mover {
    pool: BlockPool,
    hasher: ChainHasher,
    block_size: usize,
    bytes: BTreeMap<(u8, u32), Bytes>,
    seqs: Vec<Loading>,
    spills: Vec<SlotSpill>,
    hits: [usize; 3],
    faults: usize,
    /// Cached hashes according to the events.
    found: BTreeSet<BlockHash>,
}

fn key(place: Location) -> (u8, u32) {
    match place {
        Location::Block(block) => (2, block.0),
        Location::Slot(slot) => (slot.tier as u8, slot.index),
    }
}

impl Mover {
    fn new(num_blocks: usize, block_size: usize, sizes: TierSizes, hash_bits: usize) -> Mover {
        let mut pool = BlockPool::new(num_blocks, block_size, 0);
        pool.set_tiers(sizes);
        pool.record_events();
        Mover {
            pool,
            hasher: ChainHasher::truncated([9; 32], hash_bits),
            block_size,
            bytes: BTreeMap::new(),
            seqs: Vec::new(),
            spills: Vec::new(),
            hits: [0; 3],
            faults: 0,
            found: BTreeSet::new(),
        }
    }

    fn take_events(&mut self) {
        for event in self.pool.take_events() {
            let is_news = match event {
                CacheEvent::Found { hash, parent, salt, tokens } => {
                    let parent = parent.unwrap_or(BlockHash::ROOT);
                    assert_eq!(self.hasher.hash(parent, salt, &tokens), hash, "the event has the hash of its tokens");
                    self.found.insert(hash)
                }
                CacheEvent::Lost { hash } => self.found.remove(&hash),
                CacheEvent::Checkpoint { .. } => unreachable!("this pool has no states"),
                CacheEvent::Cleared => unreachable!("a pool begins once"),
            };
            assert!(is_news, "an event is a change");
        }
        assert!(self.found.iter().all(|hash| self.pool.holds(hash)) && self.found.len() == self.pool.num_found());
    }

    fn read(&self, place: Location) -> Bytes {
        self.bytes.get(&key(place)).cloned().flatten()
    }

    /// The transfers that a step would carry out before anything else.
    fn transfer(&mut self) {
        let (mut saves, mut spills) = (Vec::new(), Vec::new());
        self.pool.drain_saves(&mut saves);
        self.pool.spill_ahead(&mut spills);
        for BlockSave { block, slot } in saves {
            self.bytes.insert(key(Location::Slot(slot)), self.read(Location::Block(block)));
        }
        self.spills.extend(spills);
    }

    fn enter(&mut self, salt: u64, document: usize, len: usize, twist: TokenId) {
        let mut tokens: Vec<TokenId> = (0..len).map(|at| (document * 100 + at) as TokenId).collect();
        tokens[len - 1] += twist * 1000;
        let mut hits: Vec<Hit> = Vec::new();
        let mut hash = BlockHash::ROOT;
        for (index, block_tokens) in tokens[..len - 1].chunks_exact(self.block_size).enumerate() {
            hash = self.hasher.hash(hash, salt, block_tokens);
            let parent = hits.last().map(|hit| hit.name);
            let Some(hit) = self.pool.find(&FullBlock { hash, parent, salt, tokens: block_tokens }) else { break };
            let prefix = tokens[..(index + 1) * self.block_size].to_vec();
            assert_eq!(self.read(hit.place), Some((salt, prefix)), "{hit:?} holds something else");
            self.hits[key(hit.place).0 as usize] += 1;
            hits.push(hit);
        }
        let held: Vec<BlockId> = hits.iter().filter_map(Hit::block).collect();
        let needed = blocks_for(len, self.block_size) - held.len();
        let idle = held.iter().filter(|&&block| self.pool.refs(block) == 0).count();
        if self.pool.num_free() - idle < needed {
            return;
        }
        held.iter().for_each(|&block| self.pool.share(block));
        let mut seq = Loading {
            salt,
            tokens,
            blocks: Vec::new(),
            num_registered: hits.iter().take_while(|hit| hit.block().is_some()).count(),
            last_registered: None,
            loads: Vec::new(),
            first_lost: usize::MAX,
        };
        seq.last_registered = seq.num_registered.checked_sub(1).map(|last| hits[last].name);
        let slots = hits.iter().filter_map(|hit| if let Location::Slot(slot) = hit.place { Some(slot) } else { None });
        slots.for_each(|slot| self.pool.begin_load(slot));
        for index in 0..held.len() + needed {
            let block = match hits.get(index).map(|hit| hit.place) {
                Some(Location::Block(block)) => block,
                place => {
                    if let Some(Location::Slot(slot)) = place {
                        seq.loads.push((index, slot));
                    }
                    self.pool.take(None).expect("counted")
                }
            };
            seq.blocks.push(block);
        }
        self.transfer();
        self.seqs.push(seq);
    }

    fn end_load(&mut self, choose: usize, good: bool) {
        let loading: Vec<usize> = (0..self.seqs.len()).filter(|&seq| !self.seqs[seq].loads.is_empty()).collect();
        let Some(&at) = loading.get(choose % loading.len().max(1)) else { return };
        let (index, slot) = self.seqs[at].loads.pop().expect("it loads");
        let (block, prefix) = (self.seqs[at].blocks[index], (index + 1) * self.block_size);
        self.faults += usize::from(!good);
        if good {
            let bytes = self.read(Location::Slot(slot));
            let seq = &self.seqs[at];
            assert_eq!(bytes, Some((seq.salt, seq.tokens[..prefix].to_vec())), "pinned bytes have changed");
            self.bytes.insert(key(Location::Block(block)), bytes);
        }
        self.pool.end_load(slot, good);
        let seq = &mut self.seqs[at];
        if !good {
            seq.first_lost = seq.first_lost.min(index);
        }
        if seq.loads.is_empty() && seq.first_lost < usize::MAX {
            let until = seq.first_lost;
            self.register(at, until);
            self.leave(at, true);
        }
    }

    /// The first `until` full blocks of a sequence are computed or loaded.
    fn register(&mut self, at: usize, until: usize) {
        let seq = &mut self.seqs[at];
        let mut hash = BlockHash::ROOT;
        for (index, block_tokens) in seq.tokens.chunks_exact(self.block_size).enumerate().take(until) {
            hash = self.hasher.hash(hash, seq.salt, block_tokens);
            if index < seq.num_registered || index > 0 && seq.last_registered.is_none() {
                continue;
            }
            let (block, prefix) = (seq.blocks[index], &seq.tokens[..(index + 1) * self.block_size]);
            let known = self.pool.name_of(block);
            if known.is_none() {
                let bytes = Some((seq.salt, prefix.to_vec()));
                self.bytes.insert(key(Location::Block(block)), bytes);
            }
            let parent = seq.last_registered;
            let gap = Nanos((index % 3) as u64 * 1_000_000_000);
            let register =
                || self.pool.register(block, &FullBlock { hash, parent, salt: seq.salt, tokens: block_tokens }, gap);
            seq.last_registered = known.or_else(register);
            seq.num_registered = index + 1;
        }
    }

    fn leave(&mut self, at: usize, keep: bool) {
        let seq = self.seqs.swap_remove(at);
        for block in seq.blocks.into_iter().rev() {
            if self.pool.refs(block) == 1 {
                self.pool.set_worth_saving(block, keep);
            }
            self.pool.release(block);
        }
    }

    fn end_spill(&mut self, choose: usize, good: bool) {
        if self.spills.is_empty() {
            return;
        }
        let spill = self.spills.swap_remove(choose % self.spills.len());
        self.faults += usize::from(!good);
        let bytes = if good { self.read(Location::Slot(spill.host)) } else { None };
        self.bytes.insert(key(Location::Slot(spill.disk)), bytes);
        self.pool.end_spill(spill, good);
    }

    fn apply(&mut self, op: &Move) {
        match *op {
            Move::Enter { salt, document, len, twist } => self.enter(salt, document, len, twist),
            Move::Leave { seq, keep } => {
                let ready: Vec<usize> = (0..self.seqs.len()).filter(|&seq| self.seqs[seq].loads.is_empty()).collect();
                if let Some(&at) = ready.get(seq % ready.len().max(1)) {
                    self.register(at, usize::MAX);
                    self.pool.seen.now.0 += (seq % 4) as u64 * 500_000_000;
                    self.leave(at, keep);
                }
            }
            Move::EndLoad { choose, good } => self.end_load(choose, good),
            Move::EndSpill { choose, good } => self.end_spill(choose, good),
        }
        let mut uses = vec![Uses::default(); self.pool.num_blocks()];
        self.seqs.iter().flat_map(|seq| &seq.blocks).for_each(|block| uses[block.index()].tables += 1);
        let loads: Vec<TierSlot> = self.seqs.iter().flat_map(|seq| &seq.loads).map(|&(_, slot)| slot).collect();
        self.pool.check(&uses, &loads);
        self.take_events();
    }
}

#[derive(Clone, Debug)]
enum Move {
    Enter {
        salt: u64,
        document: usize,
        len: usize,
        twist: TokenId,
    },
    /// After all its blocks are computed.
    Leave {
        seq: usize,
        keep: bool,
    },
    EndLoad {
        choose: usize,
        good: bool,
    },
    EndSpill {
        choose: usize,
        good: bool,
    },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let good = || prop_oneof![9 => Just(true), 1 => Just(false)];
    let op = prop_oneof![
        4 => (0..2u64, 0..3usize, 1..24usize, 0..3u32)
            .prop_map(|(salt, document, len, twist)| Move::Enter { salt, document, len, twist }),
        4 => (any::<usize>(), good()).prop_map(|(seq, keep)| Move::Leave { seq, keep }),
        4 => (any::<usize>(), good()).prop_map(|(choose, good)| Move::EndLoad { choose, good }),
        2 => (any::<usize>(), good()).prop_map(|(choose, good)| Move::EndSpill { choose, good }),
    ];
    proptest::collection::vec(op, 1..200)
}

/// Of each property: the same ones in every run, since their seeds are fixed.
fn cases() -> u32 {
    if testing::is_long() { 10_000 } else { 3_000 }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
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

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2),
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_found_in_a_tier_is_what_was_looked_for(
        num_blocks in 1..12usize,
        block_size in 1..5usize,
        host_slots in 0..8usize,
        disk_slots in 0..12usize,
        hash_bits in prop_oneof![1 => 0..6usize, 2 => Just(256usize)],
        moves in moves(),
    ) {
        let mut mover = Mover::new(num_blocks, block_size, TierSizes { host_slots, disk_slots }, hash_bits);
        moves.iter().for_each(|op| mover.apply(op));
    }
}

#[test]
fn a_disk_is_given_up_after_three_faults_in_a_row_and_holds_nothing_any_more() {
    let mut mover = Mover::new(2, 1, TierSizes { host_slots: 4, disk_slots: 8 }, 256);
    let fill = |mover: &mut Mover, document: usize| {
        mover.apply(&Move::Enter { salt: 0, document, len: 2, twist: 0 });
        mover.apply(&Move::Leave { seq: 0, keep: true });
    };
    let end = |mover: &mut Mover, good| mover.apply(&Move::EndSpill { choose: 0, good });
    (0..3).for_each(|document| fill(&mut mover, document));
    (0..2).for_each(|_| end(&mut mover, true));
    assert_eq!(mover.pool.swap_stats().disk_used, 2);
    (3..6).for_each(|document| fill(&mut mover, document));
    (0..2).for_each(|_| end(&mut mover, false));
    assert!(!mover.pool.swap_stats().disk_given_up);
    end(&mut mover, false);
    let stats = mover.pool.swap_stats();
    assert!(stats.disk_given_up && stats.disk_used == 0, "{stats:?}");
    assert_eq!((stats.spilled, stats.write_faults), (2, 3));
    (6..20).for_each(|document| fill(&mut mover, document));
    assert_eq!(mover.pool.swap_stats().host_used, 4, "the host tier continues alone");
    mover.enter(0, 19, 3, 0);
    assert!(mover.hits[Tier::Host as usize] + mover.hits[2] > 0, "and is still found");
}

#[test]
fn the_moves_above_do_hit_in_every_tier_and_fail() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut hits, mut faults) = ([0; 3], 0);
    for _ in 0..200 {
        let moves = moves().new_tree(&mut runner).expect("no filter").current();
        let mut mover = Mover::new(8, 2, TierSizes { host_slots: 4, disk_slots: 8 }, 256);
        moves.iter().for_each(|op| mover.apply(op));
        hits.iter_mut().zip(mover.hits).for_each(|(all, some)| *all += some);
        faults += mover.faults;
    }
    assert!(hits.iter().all(|&hits| hits > 300) && faults > 100, "{hits:?} {faults}: the property above tests little");
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
