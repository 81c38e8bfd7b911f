//! What was asked. A `Request` never changes after it is admitted; its progress lives in [`crate::Sequence`].

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::Nanos;

/// An index into the model's vocabulary.
pub type TokenId = u32;

/// Names a request for its whole life. Chosen by the engine, never by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request's class. Lower runs first among a tenant's own requests; those of one priority are served first come,
/// first served. Between tenants it is a weight: [`Priority::charge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub i32);

impl Priority {
    /// What a token of such a request counts when tenants share the machine ([`crate::fairness`]): four for the usual
    /// class, a quarter of it for an urgent one (below 0), four times as much for batch work (above). So between two
    /// tenants that want more than there is, one class makes four tokens of five, and two make sixteen of seventeen.
    pub fn charge(self) -> u64 {
        match self.0.signum() {
            -1 => 1,
            0 => 4,
            _ => 16,
        }
    }
}

/// When a sequence ends. All the rules that can be decided on token ids; stop *strings* are text and are found by the
/// engine's detokenizer, which then calls [`crate::Scheduler::stop`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRules {
    /// Tokens to generate at most, at least 1 (0 is allowed for a request that only scores its prompt).
    pub max_tokens: usize,
    /// Stop tokens are not heeded (and the sampler does not offer them) before this many tokens.
    pub min_tokens: usize,
    /// Ids that end the sequence: the model's end-of-sequence ids unless ignored, and the request's own.
    pub stop_token_ids: Vec<TokenId>,
}

impl StopRules {
    /// Whether an answer that has so many tokens `before` ends with this one; the context has `room` for so many all in
    /// all.
    pub fn end(&self, token: TokenId, before: usize, room: usize) -> Option<FinishReason> {
        let num_generated = before + 1;
        if before >= self.min_tokens && self.stop_token_ids.contains(&token) {
            Some(FinishReason::Stop(Some(token)))
        } else if num_generated >= self.max_tokens || num_generated >= room {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Whether an answer of these tokens has ended.
    pub fn have_ended(&self, tokens: &[TokenId], room: usize) -> bool {
        tokens.iter().enumerate().any(|(before, &token)| self.end(token, before, room).is_some())
    }
}

/// What a request wants to be met. Absent: as soon as others allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Arrival to first token.
    pub ttft: Option<Nanos>,
    /// Mean time from a token to the next.
    pub tpot: Option<Nanos>,
}

/// What was asked of the scheduler. Sampling parameters are numbers, not decisions: the engine keeps them beside it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique among all requests ever admitted.
    pub id: RequestId,
    /// The prompt, at least one token.
    pub prompt: Arc<[TokenId]>,
    /// Answers wanted (n >= 1); they share the prompt's blocks.
    pub num_answers: usize,
    /// When each answer ends.
    pub stop: StopRules,
    /// Its class.
    pub priority: Priority,
    /// Prefix-cache isolation: blocks are shared only between requests with an equal salt (one per tenant).
    pub salt: u64,
    /// False: neither reads nor feeds the prefix cache. A request that wants the logits of its prompt's rows must
    /// compute them all, so it sets this to false.
    pub use_prefix_cache: bool,
    /// Whose it is: tenants share what there is (one number per API key).
    pub tenant: u64,
    /// When its tokens are wanted.
    pub targets: Targets,
    /// When it arrived.
    pub arrived: Nanos,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token (the id is given) or, through [`crate::Scheduler::stop`], a stop string (`None`).
    Stop(Option<TokenId>),
    /// `max_tokens` or the context's end.
    Length,
}

/// Why a request was not admitted. Nothing was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmitError {
    /// The prompt is empty.
    EmptyPrompt,
    /// Prompt and answer do not fit the context.
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens a sequence may have at most.
        max_model_len: usize,
    },
    /// The request alone needs more KV blocks than the pool has: it could never run to its end.
    NeverFits {
        /// Blocks that its longest course needs.
        needed_blocks: usize,
        /// Blocks of the pool.
        total_blocks: usize,
    },
    /// More answers than there are seats in a step.
    TooManyAnswers {
        /// Answers wanted.
        num_answers: usize,
        /// Sequences that may run together.
        max_num_seqs: usize,
    },
    /// What was generated before ends this answer already: there is nothing to go on with.
    HasEnded {
        /// Which answer.
        answer: usize,
    },
    /// The queue holds its limit of requests, or of prompt tokens.
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
            AdmitError::EmptyPrompt => write!(f, "the prompt has no tokens"),
            AdmitError::TooLong { prompt_tokens, max_model_len } => {
                write!(f, "prompt has {prompt_tokens} tokens; prompt and answer may have {max_model_len} together")
            }
            AdmitError::NeverFits { needed_blocks, total_blocks } => {
                write!(f, "prompt and answers may need {needed_blocks} KV blocks; there are {total_blocks}")
            }
            AdmitError::TooManyAnswers { num_answers, max_num_seqs } => {
                write!(f, "{num_answers} answers were asked for; {max_num_seqs} sequences run together at most")
            }
            AdmitError::HasEnded { answer } => {
                write!(f, "answer {answer} ends with what was generated of it before")
            }
            AdmitError::QueueFull { waiting_requests, waiting_tokens } => {
                write!(f, "the queue is full: {waiting_requests} requests with {waiting_tokens} tokens wait")
            }
        }
    }
}

impl core::error::Error for AdmitError {}
