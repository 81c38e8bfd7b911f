//! What a scheduler is given: limits, requests, a machine, and answers. Tests change what they are about.

use std::sync::Arc;

use protocol::{Nanos, Priority, RequestId, StopRules, Targets, TokenId};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits, Request, RowOutput, Step, StepOutput};

/// Limits that no test meets.
pub fn limits() -> Limits {
    Limits {
        block_size: 16,
        num_blocks: 10_000,
        max_model_len: 20_000,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        max_prefill_chunk: 2048,
        max_prefill_seqs: 4,
        max_queued_requests: usize::MAX,
        max_queued_tokens: usize::MAX / 2,
        enable_prefix_caching: true,
        states: None,
        whole_prompts: false,
        hash_key: [0; 32],
    }
}

/// So little that a test can follow every block and row.
pub fn small() -> Limits {
    Limits {
        block_size: 4,
        num_blocks: 100,
        max_model_len: 400,
        max_num_batched_tokens: 8,
        max_prefill_chunk: 8,
        max_num_seqs: 4,
        ..limits()
    }
}

/// At time 0, for one answer of at most 1000 tokens.
pub fn request(id: u64, prompt: impl Into<Arc<[TokenId]>>) -> Request {
    Request {
        id: RequestId(id),
        prompt: prompt.into(),
        num_answers: 1,
        stop: at_most(1000),
        priority: Priority(0),
        salt: 0,
        use_prefix_cache: true,
        tenant: 0,
        targets: Targets::default(),
        arrived: Nanos(0),
    }
}

/// An answer ends after this number of tokens, at no stop token.
pub fn at_most(max_tokens: usize) -> StopRules {
    StopRules { max_tokens, min_tokens: 0, stop_token_ids: Vec::new() }
}

/// 10 ms for a pass of up to 100 rows, and 0.1 ms for each row more.
pub const KNOTS: [(usize, f64); 3] = [(1, 0.010), (100, 0.010), (1100, 0.110)];

/// The machine of these [`KNOTS`], where nothing else takes time.
pub fn machine() -> CostModel {
    machine_of(&KNOTS, Terms::default())
}

/// A machine by its seconds for numbers of rows.
pub fn machine_of(knots: &[(usize, f64)], terms: Terms) -> CostModel {
    CostModel::new(knots.iter().map(|&(rows, seconds)| Knot { rows, seconds }).collect(), terms)
}

/// `token` for every sample of a plan, and no draft holds.
pub fn answer(step: &Step, token: TokenId) -> StepOutput {
    let rows = step.rows().flat_map(|rows| std::iter::repeat_n(RowOutput { seq: rows.seq, token }, rows.samples));
    StepOutput { step: step.id, rows: rows.collect(), ..StepOutput::default() }
}
