//! Spot checks: a share of the answers is computed again in the engine that gave them, while it has nothing else to do.
//!
//! ```text
//! answer ends ──in the share?──> line of a few ──idle──> some rows ──> some rows ──> equal, or an error in the log
//!                                └ full, or too long: dropped      └ a request comes: it goes first
//! ```
//! What is compared was computed under load: beside others, in chunks, after prefix hits, preemptions and swaps. A
//! check has blocks of its own, so it takes nothing from the prefix cache, and the scheduler does not know of it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grammar::Grammar;
use model::Forward;
use observe::SpotChecked;
use protocol::RequestId;
use receipt::Unsealed;

use super::recompute::{Bench, Recompute};
use crate::ModelInfo;

/// Answers that wait for their check.
const MOST_WAITING: usize = 16;
/// Tokens of the longest answer that is checked, its prompt included.
const MOST_TOKENS: usize = 4096;
/// The share of the cache that checks may have, as its inverse.
const CACHE_SHARE: usize = 8;
/// Rows at a time: they take as long as one or two decode steps, and that is what a request that comes may wait.
const ROWS: usize = 16;

/// The same while it is counted.
#[derive(Debug, Default)]
pub(crate) struct SpotCounts {
    equal: AtomicU64,
    different: AtomicU64,
    dropped: AtomicU64,
}

impl SpotCounts {
    pub(crate) fn read(&self) -> SpotChecked {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SpotChecked { equal: read(&self.equal), different: read(&self.different), dropped: read(&self.dropped) }
    }
}

/// The blocks that checks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpotRoom {
    /// Behind those of the scheduler.
    pub(crate) first_block: u32,
    pub(crate) blocks: usize,
    pub(crate) block_size: usize,
    /// The same of slots for states.
    pub(crate) first_state: u32,
}

impl SpotRoom {
    /// The part of a cache of `blocks` blocks that checks take; the scheduler has the others. `max_model_len`: of the
    /// longest answer.
    pub(crate) fn blocks(blocks: usize, block_size: usize, max_model_len: usize) -> usize {
        let longest = MOST_TOKENS.min(max_model_len).div_ceil(block_size);
        longest.min(blocks / CACHE_SHARE)
    }

    /// What a model's cache has for them.
    pub(crate) fn behind(model: &ModelInfo) -> SpotRoom {
        SpotRoom {
            first_block: model.num_blocks as u32,
            blocks: model.spot_blocks,
            block_size: model.block_size,
            first_state: model.states.map_or(0, |states| states.slots as u32),
        }
    }
}

/// See the module's picture.
#[derive(Debug)]
pub(crate) struct SpotChecks {
    share: f64,
    key: u64,
    room: SpotRoom,
    bench: Bench,
    waiting: VecDeque<(RequestId, Unsealed, Option<Grammar>)>,
    current: Option<(RequestId, Unsealed, Recompute)>,
    counts: Arc<SpotCounts>,
}

impl SpotChecks {
    /// `share` of the answers, from 0 to 1; `key` decides which.
    pub(crate) fn new(share: f64, key: u64, vocab_size: usize, room: SpotRoom, counts: Arc<SpotCounts>) -> SpotChecks {
        let bench = Bench::new(vocab_size, room.first_block, room.block_size, room.first_state);
        SpotChecks { share, key, room, bench, waiting: VecDeque::new(), current: None, counts }
    }

    /// Whether a request's answers are to be noted: by chance, the same each time.
    pub(crate) fn picks(&self, request: RequestId) -> bool {
        (mixed(request.0 ^ self.key) as f64) < self.share * 2f64.powi(64)
    }

    /// An answer has ended.
    pub(crate) fn take(&mut self, request: RequestId, answer: Unsealed, grammar: Option<&Grammar>) {
        let tokens = answer.asked.prompt.len() + answer.tokens.len();
        let fits = tokens <= self.room.blocks * self.room.block_size;
        if answer.tokens.is_empty() {
            return;
        }
        if !fits || self.waiting.len() >= MOST_WAITING {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.waiting.push_back((request, answer, grammar.cloned()));
    }

    /// The check under way is not made.
    pub(crate) fn drop_current(&mut self) {
        self.counts.dropped.fetch_add(self.current.take().is_some().into(), Ordering::Relaxed);
    }

    /// Computes some rows of the answer that is next. False: none waits.
    pub(crate) fn step(&mut self, forward: &mut dyn Forward) -> bool {
        let vocab_size = forward.config().vocab_size;
        let next = || {
            let (request, answer, grammar) = self.waiting.pop_front()?;
            let again = Recompute::new(&answer.asked, &answer.tokens, vocab_size, grammar.as_ref());
            Some((request, answer, again))
        };
        let Some((request, answer, mut again)) = self.current.take().or_else(next) else { return false };
        let bench = &mut self.bench;
        let computed = catch_unwind(AssertUnwindSafe(|| again.step(forward, bench, ROWS)));
        // A lost device is found where the next request is computed.
        if !matches!(computed, Ok(Ok(()))) {
            tracing::error!(request = request.0, "a spot check panicked, or its device is lost");
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        match first_difference(&answer, &again) {
            None if again.is_done() => _ = self.counts.equal.fetch_add(1, Ordering::Relaxed),
            None => self.current = Some((request, answer, again)),
            Some(token) => {
                self.counts.different.fetch_add(1, Ordering::Relaxed);
                let (then, now) = (answer.rows[token].mark(), again.rows()[token].logits.mark());
                let position = answer.asked.prompt.len() + token;
                tracing::error!(
                    request = request.0,
                    answer = answer.asked.sampling.answer,
                    token,
                    position,
                    %then,
                    %now,
                    same_token = again.rows()[token].token == Some(answer.tokens[token]),
                    "a spot check found other logits than the answer was made of"
                );
            }
        }
        true
    }
}

/// The first token that differs, itself or in its row.
fn first_difference(answer: &Unsealed, again: &Recompute) -> Option<usize> {
    let told = answer.rows.iter().zip(&answer.tokens);
    told.zip(again.rows()).position(|((row, token), now)| *row != now.logits || Some(*token) != now.token)
}

/// A number that looks drawn (the finalizer of SplitMix64, Steele, Lea & Flood, 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(share: f64, room: SpotRoom) -> SpotChecks {
        SpotChecks::new(share, 7, 16, room, Arc::default())
    }

    #[test]
    fn a_share_is_a_share() {
        let room = SpotRoom { first_block: 56, blocks: 8, block_size: 32, first_state: 0 };
        for (share, between) in [(0.0, 0..=0), (0.001, 60..=140), (0.25, 24_500..=25_500), (1.0, 100_000..=100_000)] {
            let checks = checks(share, room);
            let picked = (1..=100_000).filter(|&id| checks.picks(RequestId(id))).count();
            assert!(between.contains(&picked), "{share}: {picked}");
        }
    }

    #[test]
    fn checks_have_blocks_of_their_own_and_never_many() {
        // (blocks, longest sequence) and the blocks that are left to the scheduler.
        for (blocks, len, left) in [(1024, 512, 1008), (1024, 1 << 20, 896), (64, 512, 56), (7, 512, 7), (1, 32, 1)] {
            assert_eq!(blocks - SpotRoom::blocks(blocks, 32, len), left, "{blocks} {len}");
        }
    }
}
