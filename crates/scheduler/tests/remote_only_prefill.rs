//! Remote-only prefill: full blocks of prompts are computed on another worker and never here, whatever is lost, evicted
//! or preempted.
//!
//! A position's state is a hash chain over its tokens and over the worker that computed each, and sampling depends on
//! it. So an answer reveals any position that the wrong worker computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::{Nanos, RequestId, TokenId};
use scheduler::{
    BlockId, Limits, ReceiveError, Request, RowOutput, Scheduler, Step, StepOutput, TierSizes, TierSlot, TokenEvent,
};
use testing::{Dice, plans};

const BLOCK: usize = 4;
const SEEDS: u64 = 300;

const THERE: u64 = 1;
const HERE: u64 = 2;

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}

/// What the positions of these tokens hold, where those before `given` are computed there and the rest here.
fn chain(tokens: &[TokenId], given: usize) -> Vec<u64> {
    let mut last = 0;
    let hold = |(at, &token): (usize, &TokenId)| {
        last = next(last, token, if at < given { THERE } else { HERE });
        last
    };
    tokens.iter().enumerate().map(hold).collect()
}

fn next(last: u64, token: TokenId, who: u64) -> u64 {
    mix(mix(last, u64::from(token) + 1), who)
}

fn drawn(hidden: u64) -> TokenId {
    (mix(hidden, 5) % 7) as TokenId
}

fn given(prompt: &[TokenId]) -> usize {
    (prompt.len() - 1) / BLOCK * BLOCK
}

/// What the pair answers.
fn alone(prompt: &[TokenId], max_tokens: usize) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + max_tokens {
        let last = *chain(&tokens, given(prompt)).last().expect("a prompt has tokens");
        tokens.push(drawn(last));
    }
    tokens.split_off(prompt.len())
}

pub(crate) struct World {
    dice: Dice,
    scheduler: Scheduler,
    blocks: BTreeMap<BlockId, Vec<u64>>,
    slots: BTreeMap<TierSlot, Vec<u64>>,
    /// Requests whose blocks are being fetched.
    expected: BTreeSet<RequestId>,
    prompts: BTreeMap<RequestId, (Arc<[TokenId]>, usize)>,
    answers: BTreeMap<RequestId, Vec<TokenId>>,
    ended: BTreeSet<RequestId>,
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut dice = Dice::new(mix(seed, 1));
        let limits = Limits {
            block_size: BLOCK,
            num_blocks: 14 + dice.roll(20),
            max_model_len: 56,
            max_num_seqs: 5,
            max_num_batched_tokens: 5 + dice.roll(20),
            max_prefill_chunk: 1 + dice.roll(12),
            max_prefill_seqs: 3,
            ..plans::limits()
        };
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.set_tiers(TierSizes { host_slots: 24 + dice.roll(40), disk_slots: 0 });
        scheduler.set_remote_only_prefill();
        World {
            dice,
            scheduler,
            blocks: BTreeMap::new(),
            slots: BTreeMap::new(),
            expected: BTreeSet::new(),
            prompts: BTreeMap::new(),
            answers: BTreeMap::new(),
            ended: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// A prompt of its own, or one that begins like another, or goes on with what was answered.
    fn arrive(&mut self, id: RequestId) {
        let mut prompt: Vec<TokenId> = Vec::new();
        let before: Vec<RequestId> = self.prompts.keys().copied().collect();
        if !before.is_empty() && self.dice.percent(60) {
            let other = before[self.dice.roll(before.len())];
            prompt.extend_from_slice(&self.prompts[&other].0);
            if self.dice.percent(60) {
                prompt.extend_from_slice(&self.answers[&other]);
                self.saw("a conversation goes on");
            }
        }
        prompt.truncate(30);
        (0..1 + self.dice.below(9)).for_each(|_| prompt.push(self.dice.below(7) as TokenId));
        let max_tokens = 1 + self.dice.roll(16);
        let prompt: Arc<[TokenId]> = prompt.into();
        let request = Request { stop: plans::at_most(max_tokens), ..plans::request(id.0, prompt.clone()) };
        // A request that is not expected at first becomes so once it lacks a block.
        if self.dice.percent(70) {
            self.scheduler.admit_remote(request).expect("room");
            self.expected.insert(id);
        } else {
            self.scheduler.admit(request).expect("room");
        }
        self.prompts.insert(id, (prompt, max_tokens));
        self.answers.insert(id, Vec::new());
    }

    /// Blocks arrive, not always and not always intact; sometimes the end is reported before all are here.
    fn bring(&mut self) {
        for id in self.expected.clone() {
            let prompt = self.prompts[&id].0.clone();
            let missing = self.scheduler.missing_blocks(id);
            assert!(missing.end <= given(&prompt) / BLOCK);
            if missing.is_empty() || self.dice.percent(5) {
                self.expected.remove(&id);
                self.scheduler.remote_prefill_ended(id, &[Some(&[])], Nanos(0)).expect("it goes on");
                continue;
            }
            if self.dice.percent(30) {
                continue;
            }
            match self.scheduler.begin_receive(id, missing.start) {
                Ok(slot) => {
                    let holds = chain(&prompt, given(&prompt));
                    self.slots.insert(slot, holds[missing.start * BLOCK..][..BLOCK].to_vec());
                    let good = !self.dice.percent(10);
                    self.scheduler.end_receive(slot, good);
                    self.saw("a block came");
                }
                Err(ReceiveError::NoRoom) => self.saw("no room for a block"),
                Err(error) => panic!("{id:?}: {error:?}"),
            }
        }
    }

    fn step(&mut self) {
        let step = self.scheduler.schedule(Nanos(0));
        self.scheduler.check_invariants();
        for _ in &step.preempted {
            self.saw("a preemption");
        }
        for &id in &step.needs_prefill {
            self.expected.insert(id);
            self.saw("a prompt that lacks blocks");
            if !self.answers[&id].is_empty() {
                self.saw("an answer that lacks blocks of its prompt");
            }
        }
        self.transfer(&step);
        let mut rows = Vec::new();
        for row in step.rows() {
            let seq = self.scheduler.sequence(row.seq).expect("it is planned");
            let id = seq.request_id();
            let prompt = &self.prompts[&id].0;
            let table = seq.block_table();
            let holds = chain(seq.tokens(), given(prompt));
            assert!(row.start >= given(prompt), "{id:?} computes what it is given");
            for at in 0..row.start {
                let there = self.blocks[&table[at / BLOCK]][at % BLOCK];
                assert_eq!(there, holds[at], "{id:?}: position {at} of {} given", given(prompt));
            }
            for at in row.start..row.start + row.len {
                self.blocks.entry(table[at / BLOCK]).or_insert_with(|| vec![0; BLOCK])[at % BLOCK] = holds[at];
            }
            if row.samples > 0 {
                rows.push(RowOutput { seq: row.seq, token: drawn(holds[row.start + row.len - 1]) });
            }
        }
        if step.is_empty() {
            return;
        }
        let output = StepOutput { step: step.id, rows, ..StepOutput::default() };
        for event in self.scheduler.complete(output, Nanos(0)).events {
            match event {
                TokenEvent::Token { request, token, .. } => {
                    self.answers.get_mut(&request).expect("it came").push(token)
                }
                TokenEvent::Finished { request, .. } => _ = self.ended.insert(request),
            }
        }
        self.scheduler.check_invariants();
    }

    fn transfer(&mut self, step: &Step) {
        for save in &step.saves {
            let holds = self.blocks[&save.block].clone();
            self.slots.insert(save.slot, holds);
        }
        assert!(step.spills.is_empty(), "there is no disk");
        for &load in &step.loads {
            self.blocks.insert(load.block, self.slots[&load.slot].clone());
            let good = !self.dice.percent(10);
            if !good {
                self.blocks.insert(load.block, vec![0; BLOCK]);
                self.saw("a load failed");
            }
            self.scheduler.load_ended(load, good, Nanos(0));
        }
        for copy in &step.copies {
            let holds = self.blocks[&copy.src].clone();
            self.blocks.insert(copy.dst, holds);
        }
    }

    pub(crate) fn run(mut self) -> BTreeMap<&'static str, u64> {
        let mut next_id = 0;
        for tick in 0.. {
            if tick < 120 && self.dice.percent(35) {
                self.arrive(RequestId(next_id));
                next_id += 1;
            }
            self.bring();
            self.step();
            if tick >= 120 && self.ended.len() as u64 == next_id {
                break;
            }
            assert!(tick < 20_000, "it never ends: {:?} of {next_id}", self.ended.len());
        }
        for (id, (prompt, max_tokens)) in &self.prompts {
            assert_eq!(self.answers[id], alone(prompt, *max_tokens), "{id:?}");
        }
        assert_eq!(self.scheduler.used_blocks(), 0, "blocks are held when all is quiet");
        self.seen
    }
}

#[test]
fn what_is_given_is_never_computed_here_and_what_is_computed_here_is_never_taken_for_it() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        println!("seed {seed}");
        for (what, count) in World::new(seed).run() {
            *seen.entry(what).or_default() += count;
        }
    }
    println!("{seen:?}");
    for what in [
        "a conversation goes on",
        "a block came",
        "a preemption",
        "a prompt that lacks blocks",
        "an answer that lacks blocks of its prompt",
        "a load failed",
    ] {
        assert!(seen.get(what).is_some_and(|&count| count > 10), "{what}: {seen:?}");
    }
}
