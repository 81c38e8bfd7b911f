//! Chooses the worker with the earliest predicted first token.
//!
//! ```text
//! request: prompt of 1,000 tokens
//!             tokens before it    of it in the cache    decode rows    predicted first token
//! worker 0           0                    0                 60             45 ms
//! worker 1        2400                  960                 12             70 ms
//! worker 2           0                  960                 60             12 ms    <- takes it
//! ```
//!
//! One number weighs everything: a cached prefix saves time, a queue and decode rows cost time. So requests follow
//! their prefix until its worker is busier than the prefix is worth (as Mooncake's Conductor weighs them: Qin et al.,
//! FAST 2025). A pure function of snapshots, from real or simulated workers.

mod disaggregation;
mod roles;

pub use disaggregation::{AnswerInView, AnswerLengths, DecodeLoad, LEAST_TOKENS, TooLittle, leaves};
pub use roles::{Role, RoleMemory, RoleView, Switch, advise};

use crate::kv::{BlockHash, ChainHasher};
use crate::{CostModel, Phase, Scheduler, Work};
use protocol::{Nanos, TokenId};

/// Load of a worker, as one request sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Prompt tokens queued ahead of a newcomer: waiting ones, and the rest of running ones.
    pub prefill_tokens: usize,
    /// Decode rows of every step.
    pub decode_rows: usize,
    /// Keys that decode rows attend to.
    pub decode_context: u64,
    /// Rows of a step.
    pub rows_per_step: usize,
    /// Prompt tokens in the worker's cache.
    pub cached_tokens: usize,
    /// Tokens that the free blocks hold.
    pub free_tokens: usize,
}

impl Snapshot {
    /// Predicted TTFT of a prompt of `prompt_tokens` that arrives now.
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
        // As if every chunk saw as many keys as the middle of the request's own prompt.
        work.add_chunk((self.cached_tokens + own / 2).saturating_sub(rows / 2), rows, true);
        Nanos((cost.seconds(&work) * (tokens as f64 / rows as f64) * 1e9) as u64)
    }
}

/// The worker for a prompt of `prompt_tokens`: the one with the earliest first token among those with room for it, else
/// among all; of equals the first. `None` without workers. Cost: one prediction per worker.
pub fn route<'a>(prompt_tokens: usize, workers: impl IntoIterator<Item = (Snapshot, &'a CostModel)>) -> Option<usize> {
    let rank = |(snapshot, cost): (Snapshot, &CostModel)| {
        let is_short = prompt_tokens.saturating_sub(snapshot.cached_tokens) > snapshot.free_tokens;
        (is_short, snapshot.first_token_after(prompt_tokens, cost))
    };
    let ranks = workers.into_iter().map(rank).enumerate();
    ranks.min_by_key(|&(_, rank)| rank).map(|(index, _)| index)
}

impl ChainHasher {
    /// Hashes of the full blocks of a prompt, each computed when it is asked for: what [`Scheduler::snapshot`] looks up.
    pub fn chain(&self, prompt: &[TokenId], salt: u64, block_size: usize) -> impl Iterator<Item = BlockHash> {
        prompt.chunks_exact(block_size).scan(BlockHash::ROOT, move |parent, tokens| {
            *parent = self.hash(*parent, salt, tokens);
            Some(*parent)
        })
    }
}

impl Scheduler {
    /// Load of this worker for a request with this hash chain, made with this worker's key and block size. Hashes are
    /// not verified: a collision only costs a detour, because the worker compares tokens. Cost: linear in running
    /// sequences.
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
