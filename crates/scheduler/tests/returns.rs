//! What is kept for conversations that pause, beside the two orders that frame it: the last use, and the next one, which
//! nothing can know (Belady, IBM Systems Journal 5, 1966).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use protocol::{Nanos, TokenId};
use scheduler::{Limits, Request, Scheduler};
use testing::{Dice, plans};

const BLOCK: usize = 4;

/// A request of an agent: when, what, and the number of tokens that it is answered with.
struct Ask {
    at: f64,
    prompt: Vec<TokenId>,
    output: usize,
    /// Names of the blocks that are full in the end: equal prefixes have equal names.
    blocks: Vec<u64>,
}

impl Ask {
    fn new(at: f64, prompt: Vec<TokenId>, output: usize) -> Ask {
        let all = [&prompt[..], &vec![ANSWER; output - 1]].concat();
        let mut hasher = DefaultHasher::new();
        let name = |block: &[TokenId]| {
            block.hash(&mut hasher);
            hasher.finish()
        };
        Ask { at, blocks: all.chunks_exact(BLOCK).map(name).collect(), prompt, output }
    }
}

const ANSWER: TokenId = 900;

/// Agents, each with one of three system prompts and a pace of its own, off by a factor of about `1 + spread` from turn to
/// turn, and one question in ten that stands alone. An agent has 4 to 20 turns, and another one takes its place.
fn agents(seed: u64, paces: &[f64], spread: f64) -> Vec<Ask> {
    let mut dice = Dice::new(seed);
    let mut fresh = 1000;
    let mut text = |dice: &mut Dice, len: std::ops::RangeInclusive<usize>| -> Vec<TokenId> {
        let len = dice.within(len) as u32;
        fresh += len;
        (fresh - len..fresh).collect()
    };
    let systems: Vec<Vec<TokenId>> = (0..3).map(|_| text(&mut dice, 64..=64)).collect();
    let mut asks: Vec<Ask> = Vec::new();
    for _ in 0..40 {
        let mut at = dice.share() * 3.0;
        while at < 60.0 {
            let (mut prompt, pace) = (dice.pick(&[0, 1, 2].map(|of| &systems[of])).clone(), dice.pick(paces));
            for _ in 0..dice.within(4..=20) {
                if dice.percent(10) {
                    let alone = [&systems[dice.roll(3)][..], &text(&mut dice, 16..=160)].concat();
                    asks.push(Ask::new(at + 1e-4, alone, 2));
                }
                prompt.extend(text(&mut dice, 8..=56));
                let output = dice.within(4..=24);
                asks.push(Ask::new(at, prompt.clone(), output));
                prompt.extend(vec![ANSWER; output]);
                // The sum of twelve is nearly normal.
                let normal = (0..12).map(|_| dice.share()).sum::<f64>() - 6.0;
                at += pace * (spread * normal).exp();
            }
        }
    }
    asks.sort_by(|a, b| a.at.total_cmp(&b.at));
    asks
}

/// Blocks found where the block with the least of these ranks goes first, later ones of a prompt before earlier ones.
fn found<R: Ord>(asks: &[Ask], room: usize, rank: impl Fn(u64, usize) -> R) -> usize {
    let mut cached: HashMap<u64, (usize, usize)> = HashMap::new();
    let mut found = 0;
    for (now, Ask { blocks, prompt, .. }) in asks.iter().enumerate() {
        let most = (prompt.len() - 1) / BLOCK;
        found += blocks[..most].iter().take_while(|block| cached.contains_key(*block)).count();
        cached.extend(blocks.iter().enumerate().map(|(index, &block)| (block, (now, index))));
        let mut idle: Vec<_> =
            cached.iter().map(|(&block, &(used, index))| (rank(block, used), Reverse(index), block)).collect();
        idle.sort_unstable();
        idle.iter().take(idle.len().saturating_sub(room)).for_each(|(.., block)| _ = cached.remove(block));
    }
    found
}

/// Blocks that the scheduler finds.
fn scheduled(asks: &[Ask], room: usize) -> usize {
    let limits =
        Limits { block_size: BLOCK, num_blocks: room, max_model_len: 4 * room, max_num_seqs: 1, ..plans::limits() };
    let mut scheduler = Scheduler::new(limits).expect("good limits");
    let mut found = 0;
    for (id, ask) in (0..).zip(asks) {
        let now = Nanos((ask.at * 1e9) as u64);
        let request = Request { stop: plans::at_most(ask.output), ..plans::request(id, ask.prompt.clone()) };
        scheduler.admit(request).expect("room");
        while scheduler.has_work() {
            let step = scheduler.schedule(now);
            let completed = scheduler.complete(plans::answer(&step, ANSWER), now);
            found += completed.record.prefill.iter().map(|row| row.cached_tokens / BLOCK).sum::<usize>();
        }
        if id % 64 == 0 {
            scheduler.check_invariants();
        }
    }
    found
}

#[test]
fn agents_find_most_of_what_a_cache_that_knows_the_future_would_keep() {
    // Paces in seconds, how even they are, the least share of the best, and how much more of it than by the last use.
    let mixed = &[0.3, 1.0, 3.0][..];
    let cases = [(mixed, 0.1, 80, 20), (mixed, 0.3, 75, 20), (mixed, 0.7, 70, 5), (&[1.0][..], 0.1, 70, 25)];
    for (turn, (paces, spread, least, more)) in cases.into_iter().enumerate() {
        for seed in testing::one_of([1, 2], turn) {
            let asks = agents(seed, paces, spread);
            let room = asks[asks.len() / 2..][..40].iter().map(|ask| ask.blocks.len()).sum::<usize>() * 3 / 10;
            let mut uses: HashMap<u64, Vec<usize>> = HashMap::new();
            for (now, ask) in asks.iter().enumerate() {
                ask.blocks.iter().for_each(|&block| uses.entry(block).or_default().push(now));
            }
            let next = |block, used| uses[&block].iter().copied().find(|&next| next > used);
            let best = found(&asks, room, |block, used| Reverse(next(block, used).unwrap_or(usize::MAX)));
            let last_use = found(&asks, room, |_, used| used) * 100 / best;
            let here = scheduled(&asks, room) * 100 / best;
            println!("paces {paces:?} within {spread}, seed {seed}: last use {last_use} %, here {here} % of the best");
            assert!(here >= least && here >= last_use + more, "{here} {last_use}");
        }
    }
}
