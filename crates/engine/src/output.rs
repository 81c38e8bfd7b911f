//! What comes back from the engine: a stream of events per request, closed by exactly one `Done` or `Failed`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use grammar::ConstraintError;
use observe::{Timings, Usage};
use protocol::{FinishReason, TokenId};
use receipt::Unsealed;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::SubmitError;

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
    /// The device that computes is lost, and there is no other.
    #[error("the device that computes is lost: the log says why; start again once it is there")]
    DeviceLost,
    /// The device is lost, another goes on, and the files of this request's adapter are not what they were.
    #[error("the adapter of this request is lost with its device, and its files have changed: load it again")]
    AdapterLost,
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
