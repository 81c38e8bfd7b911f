//! Which of several workers takes a request: the one that is predicted to give its first token first.
//!
//! ```text
//! request: prompt of 1,000 tokens
//!             tokens before it    of it in the cache    decode rows    predicted first token
//! worker 0           0                    0                 60             45 ms
//! worker 1        2400                  960                 12             70 ms
//! worker 2           0                  960                 60             12 ms    <- takes it
//! ```
//!
//! One number weighs everything: a cached prefix is time saved, a queue is time to wait, decode rows make every step
//! longer. So requests follow their prefix until its worker is busier than the prefix is worth (as Mooncake's Conductor
//! weighs them: Qin et al., FAST 2025). A decision over snapshots and nothing else: whoever has workers, real or
//! imagined, makes the snapshots.

mod apart;
mod roles;

use alloc::vec::Vec;

pub use apart::{AnswerInView, AnswerLengths, DecodeLoad, LEAST_TOKENS, TooLittle, leaves};
pub use roles::{Role, RoleMemory, RoleView, Switch, advise};

use crate::kv::{BlockHash, ChainHasher};
use crate::{CostModel, Nanos, Phase, Scheduler, TokenId, Work};

/// What a worker looks like to a request that looks for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Prompt tokens that it computes before those of a newcomer: of all that wait, and the rest of those begun.
    pub prefill_tokens: usize,
    /// Rows that every step has beside prompts.
    pub decode_rows: usize,
    /// Keys that these see.
    pub decode_context: u64,
    /// Rows of a step.
    pub rows_per_step: usize,
    /// Tokens of the request's prompt that its cache has.
    pub cached_tokens: usize,
    /// Tokens that its free blocks hold.
    pub free_tokens: usize,
}

impl Snapshot {
    /// How long a prompt of `prompt_tokens` that came now would wait for its first token, if `cost` is right.
    pub fn first_token_after(&self, prompt_tokens: usize, cost: &CostModel) -> Nanos {
        let own = prompt_tokens.saturating_sub(self.cached_tokens).max(1);
        let tokens = self.prefill_tokens + own;
        let rows = tokens.min(self.rows_per_step.saturating_sub(self.decode_rows)).max(1);
        let mut work = Work {
            decode_rows: self.decode_rows,
            decode_context: self.decode_context,
            logit_rows: self.decode_rows,
            ..Work::default()
        };
        // As if every chunk saw what the request's own does in the middle of its prompt.
        work.add_chunk((self.cached_tokens + own / 2).saturating_sub(rows / 2), rows, true);
        Nanos((cost.seconds(&work) * (tokens as f64 / rows as f64) * 1e9) as u64)
    }
}

/// The worker for a prompt of `prompt_tokens`: of those with room for it, or of all if none has, the one with the
/// earliest first token; of equals the first. `None` without workers. Cost: one prediction for each worker.
pub fn route<'a>(prompt_tokens: usize, workers: impl IntoIterator<Item = (Snapshot, &'a CostModel)>) -> Option<usize> {
    let rank = |(snapshot, cost): (Snapshot, &CostModel)| {
        let is_short = prompt_tokens.saturating_sub(snapshot.cached_tokens) > snapshot.free_tokens;
        (is_short, snapshot.first_token_after(prompt_tokens, cost))
    };
    let ranks = workers.into_iter().map(rank).enumerate();
    ranks.min_by_key(|&(_, rank)| rank).map(|(index, _)| index)
}

impl ChainHasher {
    /// Hashes of the full blocks of a prompt: what [`Scheduler::snapshot`] looks up.
    pub fn chain(&self, prompt: &[TokenId], salt: u64, block_size: usize) -> Vec<BlockHash> {
        let mut parent = BlockHash::ROOT;
        let blocks = prompt.chunks_exact(block_size);
        let hashes = blocks.map(|tokens| {
            parent = self.hash(parent, salt, tokens);
            parent
        });
        hashes.collect()
    }
}

impl Scheduler {
    /// What this worker looks like to a request whose prompt has this chain of hashes, made with this worker's key and
    /// block size. Hashes are believed here: a collision costs a detour, and the worker itself compares tokens.
    /// Cost: linear in what runs.
    pub fn snapshot(&self, chain: &[BlockHash]) -> Snapshot {
        let limits = self.limits();
        let cached_blocks = chain.iter().take_while(|hash| self.state.pool.holds(hash)).count();
        let mut snapshot = Snapshot {
            prefill_tokens: self.state.queue.num_tokens(),
            rows_per_step: limits.max_num_batched_tokens,
            cached_tokens: cached_blocks * limits.block_size,
            free_tokens: self.state.pool.num_free() * limits.block_size,
            ..Snapshot::default()
        };
        for &(_, id) in &self.state.running {
            let seq = &self.state.seqs[id];
            match seq.phase() {
                Phase::Decode => {
                    snapshot.decode_rows += 1;
                    snapshot.decode_context += seq.num_tokens() as u64;
                }
                Phase::Prefill => snapshot.prefill_tokens += seq.num_uncomputed() - seq.rows_in_flight,
            }
        }
        snapshot
    }
}
