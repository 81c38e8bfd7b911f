//! A `Request` never changes after admission; its progress is in [`crate::Sequence`].

use alloc::sync::Arc;
use core::fmt;

use protocol::{FinishReason, Nanos, Priority, RequestId, StopRules, Targets, TokenId};

/// A request, as the scheduler sees it: sampling parameters affect no decision, so the engine keeps them.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique among all requests ever admitted.
    pub id: RequestId,
    /// The prompt, at least one token.
    pub prompt: Arc<[TokenId]>,
    /// Number of answers (n >= 1); they share the prompt's blocks.
    pub num_answers: usize,
    /// Stop conditions of each answer.
    pub stop: StopRules,
    /// Its class.
    pub priority: Priority,
    /// Prefix-cache isolation: blocks are shared only between requests with an equal salt (one per tenant).
    pub salt: u64,
    /// False: neither reads nor feeds the prefix cache, as needed for the logits of every prompt row.
    pub use_prefix_cache: bool,
    /// Tenant for fair sharing (one number per API key).
    pub tenant: u64,
    /// Latency targets.
    pub targets: Targets,
    /// Arrival time.
    pub arrived: Nanos,
}

/// Why an answer with `before` tokens ends with `token`, if it does; the context has `room` for that many generated
/// tokens.
pub fn finish_reason(rules: &StopRules, token: TokenId, before: usize, room: usize) -> Option<FinishReason> {
    let num_generated = before + 1;
    if before >= rules.min_tokens && rules.stop_token_ids.contains(&token) {
        Some(FinishReason::Stop(Some(token)))
    } else if num_generated >= rules.max_tokens || num_generated >= room {
        Some(FinishReason::Length)
    } else {
        None
    }
}

/// Whether an answer of these tokens has ended.
pub fn has_ended(rules: &StopRules, tokens: &[TokenId], room: usize) -> bool {
    tokens.iter().enumerate().any(|(before, &token)| finish_reason(rules, token, before, room).is_some())
}

/// Why a request was not admitted. No state was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// The prompt is empty.
    EmptyPrompt,
    /// Prompt and answer exceed the context.
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens a sequence may have at most.
        max_model_len: usize,
    },
    /// The request alone needs more KV blocks than the pool has.
    NeverFits {
        /// Blocks at its maximum length.
        needed_blocks: usize,
        /// Blocks of the pool.
        total_blocks: usize,
    },
    /// More answers than sequences that may run.
    TooManyAnswers {
        /// Answers requested.
        num_answers: usize,
        /// Maximum running sequences.
        max_num_seqs: usize,
    },
    /// The generated tokens of this answer already end it.
    HasEnded {
        /// Which answer.
        answer: usize,
    },
    /// The queue is at its limit of requests or prompt tokens.
    QueueFull {
        /// Requests waiting.
        waiting_requests: usize,
        /// Prompt tokens waiting.
        waiting_tokens: usize,
    },
}

impl fmt::Display for AdmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmitError::EmptyPrompt => write!(f, "prompt is empty"),
            AdmitError::TooLong { prompt_tokens, max_model_len } => {
                write!(f, "prompt has {prompt_tokens} tokens; prompt and answer are limited to {max_model_len}")
            }
            AdmitError::NeverFits { needed_blocks, total_blocks } => {
                write!(f, "the request may need {needed_blocks} KV blocks; the pool has {total_blocks}")
            }
            AdmitError::TooManyAnswers { num_answers, max_num_seqs } => {
                write!(f, "{num_answers} answers requested; at most {max_num_seqs} sequences can run")
            }
            AdmitError::HasEnded { answer } => {
                write!(f, "answer {answer} is already complete")
            }
            AdmitError::QueueFull { waiting_requests, waiting_tokens } => {
                write!(f, "queue is full: {waiting_requests} requests with {waiting_tokens} tokens")
            }
        }
    }
}

impl core::error::Error for AdmitError {}
