//! What comes back from the engine: a stream of events per request, closed by exactly one `Done` or `Failed`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use grammar::ConstraintError;
use ledger::{Account, Bill};
use protocol::{FinishReason, Nanos, TokenId};
use receipt::Unsealed;
use scheduler::LatencyBound;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::SubmitError;
use crate::accounts::Closed;

/// The log probability of a token, and of the most likely ones at its place.
///
/// Natural logarithms of the model's own distribution: before temperature, penalties and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens, best first; their number is the one asked for.
    pub top: Vec<(TokenId, f32)>,
}

/// Token counts of a request, over all its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, counted once however many answers were asked for.
    pub prompt_tokens: usize,
    /// Tokens generated, stop tokens included.
    pub completion_tokens: usize,
    /// Prompt tokens whose keys and values were found in the prefix cache.
    pub cached_tokens: usize,
}

/// Where a request's time went, by phase. `queue + prefill = time to first token`, and with `decode` the total.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    /// From arrival to the first step that carried a row of it, milliseconds.
    pub queue_ms: f64,
    /// From there to its first token.
    pub prefill_ms: f64,
    /// From its first token to its last, over all answers.
    pub decode_ms: f64,
    /// Arrival to first token.
    pub ttft_ms: f64,
    /// Arrival to the end.
    pub total_ms: f64,
    /// Prompt rows computed, recomputation after preemption included.
    pub prefill_tokens: usize,
    /// Prompt tokens that the prefix cache saved.
    pub cached_tokens: usize,
    /// Tokens generated after the first of each answer: the ones that decode steps made.
    pub decode_tokens: usize,
    /// Steps that carried a decode row of it.
    pub decode_steps: usize,
    /// Those of them that verified drafts.
    pub verify_steps: usize,
    /// Drafts that these steps verified, and the accepted ones.
    pub drafted_tokens: usize,
    /// See `drafted_tokens`.
    pub accepted_tokens: usize,
    /// Cache positions read by its decode rows, summed: what attention had to fetch.
    pub decode_context_tokens: u64,
    /// Times it lost its blocks and was recomputed.
    pub preemptions: usize,
    /// For how long the engine was held meanwhile: no part of the other times.
    pub held_ms: f64,
    /// What it was promised; `None` where steps are not predicted.
    pub latency_bound: Option<LatencyBound>,
    /// The same times by owner: which requests they were spent on, and what this one cost others.
    pub bill: Box<Bill>,
}

impl Usage {
    pub(crate) fn of(account: &Account) -> Usage {
        Usage {
            prompt_tokens: account.prompt_tokens,
            completion_tokens: account.num_tokens(),
            cached_tokens: account.cached_tokens,
        }
    }
}

impl Timings {
    pub(crate) fn of(closed: &Closed) -> Timings {
        let Closed { account, until, held, .. } = closed;
        let ms = |from: Nanos, to: Nanos| to.since(from).as_secs_f64() * 1e3;
        let first_scheduled = account.first_scheduled.unwrap_or(*until);
        let first_token = account.first_token.unwrap_or(*until);
        Timings {
            queue_ms: ms(account.arrived, first_scheduled),
            prefill_ms: ms(first_scheduled, first_token),
            decode_ms: ms(first_token, account.last_token.unwrap_or(first_token)),
            ttft_ms: ms(account.arrived, first_token),
            total_ms: ms(account.arrived, *until),
            prefill_tokens: account.prefill_rows,
            cached_tokens: account.cached_tokens,
            decode_tokens: account.answers().map(|answer| answer.tokens.saturating_sub(1)).sum(),
            decode_steps: account.decode_rows,
            verify_steps: account.verify_rows,
            drafted_tokens: account.draft_rows,
            accepted_tokens: account.held_drafts,
            decode_context_tokens: account.decode_context,
            preemptions: account.preemptions,
            held_ms: held.as_secs_f64() * 1e3,
            latency_bound: None,
            bill: Box::new(account.bill),
        }
    }

    /// Computed prompt tokens per second of the prefill phase (0 when nothing was computed).
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_ms)
    }

    /// Decoded tokens per second of the decode phase (0 when nothing was decoded).
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.decode_tokens, self.decode_ms)
    }
}

fn rate(tokens: usize, ms: f64) -> f64 {
    if ms > 0.0 { tokens as f64 / ms * 1e3 } else { 0.0 }
}

/// Why a request ended without an answer although it was admitted. The message is fixed text: it may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The model's output was not a number for this request.
    #[error("the model produced values that are not numbers for this request")]
    NanLogits,
    /// Its answer cannot go on as its rule wants.
    #[error(transparent)]
    Rule(#[from] ConstraintError),
    /// A step that carried it failed; the engine went on without it.
    #[error("an internal error ended this request")]
    Internal,
    /// Its events were not read ([`Stream::limit_unread`](crate::Stream::limit_unread)).
    #[error("client read too slowly")]
    SlowReader,
    /// The server is going down and did not wait longer.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The worker that read its prompt and this one drew different first tokens.
    #[error("prefill and decode workers disagree on a token")]
    Handoff,
    /// Its prompt is read by weights of another precision ([`PrecisionPair`](crate::PrecisionPair)), and no worker with such
    /// weights reads it.
    #[error("no worker reads this prompt, and weights of another precision would not give the same answer")]
    NoPrefill,
    /// A server that forwards the request was refused by the worker.
    #[error("the answer could not go on: {0}")]
    Refused(#[from] SubmitError),
}

/// How far a prompt is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptProgress {
    /// Its tokens.
    pub total: usize,
    /// Those that the prefix cache had when it began.
    pub cached: usize,
    /// Those that are in the cache now, `cached` among them: it grows, up to `total`.
    pub processed: usize,
    /// Milliseconds since its first rows were planned; the queue is no part of it.
    pub ms: f64,
}

/// One piece of a request's outcome, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt's log probabilities, one entry per prompt token; `None` for the first. Sent before any token.
    PromptLogprobs(Vec<Option<TokenLogprob>>),
    /// The vector of the prompt, `[hidden_size]`, for a request for nothing else (`RawRequest::embed`): the state of
    /// its last token behind the final norm, which the language-model head reads. Not normalised.
    Embedding(Vec<f32>),
    /// How far the prompt is read, if asked for (`RawRequest::progress`): once when it begins, then after each step
    /// that read some of it. Sent before any token.
    Progress(PromptProgress),
    /// One generated token.
    Token {
        /// Which answer.
        answer: usize,
        /// The token.
        token: TokenId,
        /// Text that became final with it; empty while a character or a possible stop string is incomplete.
        text: String,
        /// If asked for.
        logprob: Option<TokenLogprob>,
    },
    /// What a receipt of an answer is made of, if one was asked for. Comes before its end.
    Noted {
        /// Which answer.
        answer: usize,
        /// Its terms, tokens and digests of logits.
        unsealed: Box<Unsealed>,
    },
    /// One answer is complete.
    Finished {
        /// Which answer.
        answer: usize,
        /// Why.
        reason: FinishReason,
        /// The stop string that ended it, as an index into the request's list.
        stop_string: Option<usize>,
        /// The rest of its text.
        text: String,
    },
    /// Every answer is complete. The last event.
    Done {
        /// Token counts.
        usage: Usage,
        /// Times by phase.
        timings: Timings,
    },
    /// The request ended with an error. The last event.
    Failed(RequestError),
}

/// The sending end of a [`Stream`](crate::Stream): it never waits, and it knows how far behind the reader is.
#[derive(Clone, Debug)]
pub struct EventSender {
    events: UnboundedSender<Event>,
    backlog: Arc<SendBacklog>,
}

/// Events that were sent and not read.
#[derive(Debug)]
pub(crate) struct SendBacklog {
    pub(crate) count: AtomicUsize,
    pub(crate) most: AtomicUsize,
}

/// Both ends, with room for any number of events.
pub(crate) fn event_channel() -> (EventSender, UnboundedReceiver<Event>, Arc<SendBacklog>) {
    let (events, receiver) = unbounded_channel();
    let backlog = Arc::new(SendBacklog { count: AtomicUsize::new(0), most: AtomicUsize::new(usize::MAX) });
    (EventSender { events, backlog: backlog.clone() }, receiver, backlog)
}

impl EventSender {
    /// Sends one more. To a reader that is gone it does nothing: that one has cancelled.
    pub fn send(&self, event: Event) {
        self.backlog.count.fetch_add(1, Ordering::Relaxed);
        let _ = self.events.send(event);
    }

    /// Whether more waits to be read than may ([`Stream::limit_unread`](crate::Stream::limit_unread)): the request is
    /// to end with [`RequestError::SlowReader`].
    pub fn is_overfull(&self) -> bool {
        self.backlog.count.load(Ordering::Relaxed) > self.backlog.most.load(Ordering::Relaxed)
    }

    /// Resolves when the reader is gone: whatever is done for it may end.
    pub async fn closed(&self) {
        self.events.closed().await;
    }
}
