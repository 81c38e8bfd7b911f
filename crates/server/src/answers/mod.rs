//! From the engine's outputs to an answer, whichever API it is for: gathered into one body, or event by event.
//!
//! ```text
//! PreparedRequest --submit--> EventStream --next--> Event --+--> gather --> CollectedAnswer --> one JSON body
//!                                                           +--> StreamWriter --> an event for each token
//! ```
//!
//! A request with several prompts is several requests to the engine; prompt `p`'s answer `a` is choice `p * n + a`.
//! Dropping [`EventStream`] cancels whatever still runs: that is all there is to a client's disconnect.

mod event_stream;
mod events;
mod gather;
mod options;
mod output_parser;
mod prepare;
mod totals;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::response::Response;
use engine::receipt::{Provenance, Receipt, Unsealed};
use engine::{FinishReason, RawRequest, Timings, ValidatedRequest};
use serde_json::Value;
use transport::error::ApiError;
use transport::sse::EVENTS;

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::openai::beams::Beams;

pub(crate) use self::event_stream::EventStream;
pub(crate) use self::events::{Events, StreamWriter};
pub(crate) use self::gather::{Answer, CollectedAnswer, gather};
pub(crate) use self::options::{Adjustments, ResponseOptions};
pub(crate) use self::output_parser::{OutputParser, Parsed, StreamParser};
pub(crate) use self::totals::Totals;

/// A whole answer that is being written.
pub(crate) type Whole<'a> = Pin<Box<dyn Future<Output = Result<(Response, Timings), ApiError>> + Send + 'a>>;

/// A whole answer, gathered and then written by `body`.
pub(crate) fn gathered<'a>(
    app: &'a Arc<App>,
    plan: ResponsePlan,
    outputs: EventStream,
    body: impl FnOnce(&ResponsePlan, CollectedAnswer) -> Response + Send + 'a,
) -> Whole<'a> {
    Box::pin(async move {
        let gathered = gather(app, &plan, outputs).await?;
        let timings = gathered.totals.timings.clone();
        Ok((body(&plan, gathered), timings))
    })
}

/// How one API writes answers.
pub(crate) trait ResponseWriter: Send + Sync {
    /// The whole answer, when it is there, and where its time went.
    fn whole<'a>(&'a self, app: &'a Arc<App>, plan: ResponsePlan, outputs: EventStream) -> Whole<'a>;

    /// Writes the events of a stream.
    fn stream_writer(&self, app: &Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Box<dyn StreamWriter>;

    /// What a stream's events are.
    fn stream_type(&self) -> &'static str {
        EVENTS
    }
}

/// Validated requests, and how their answer is to look.
pub(crate) struct PreparedRequest {
    pub(crate) requests: Vec<ValidatedRequest>,
    pub(crate) plan: ResponsePlan,
    pub(crate) writer: Arc<dyn ResponseWriter>,
}

/// How the answer is to look.
pub(crate) struct ResponsePlan {
    pub(crate) endpoint: Endpoint,
    pub(crate) delivery: ResponseOptions,
    /// What receipts share, where they were asked for.
    pub(crate) basis: Option<Provenance>,
    /// Answers per prompt.
    pub(crate) num_answers: usize,
    /// There was a prediction of the answers.
    pub(crate) predicted: bool,
    /// They are found by beam search.
    pub(crate) beams: Option<Beams>,
    /// The stop strings, to name the one that ended an answer.
    pub(crate) stop: Vec<String>,
    pub(crate) logprobs: bool,
    /// vLLM's `prompt_logprobs` was asked for.
    pub(crate) prompt_logprobs: bool,
    /// Texts to repeat before the answers, one per prompt; none at all without `echo`.
    pub(crate) echo: Vec<String>,
    /// Where answers are told apart into thoughts, text and calls.
    pub(crate) output_parser: Option<OutputParser>,
}

impl ResponsePlan {
    /// One answer, and nothing beside its text.
    pub(crate) fn new(endpoint: Endpoint, delivery: ResponseOptions) -> ResponsePlan {
        ResponsePlan {
            endpoint,
            delivery,
            basis: None,
            num_answers: 1,
            predicted: false,
            beams: None,
            stop: Vec::new(),
            logprobs: false,
            prompt_logprobs: false,
            echo: Vec::new(),
            output_parser: None,
        }
    }

    /// The answers that a request asks for.
    pub(crate) fn of(endpoint: Endpoint, delivery: ResponseOptions, raw: &RawRequest) -> ResponsePlan {
        ResponsePlan {
            // The engine's door checks it.
            num_answers: raw.n.unwrap_or(1) as usize,
            predicted: raw.prediction.is_some(),
            stop: raw.stop.clone(),
            logprobs: raw.logprobs.is_some(),
            prompt_logprobs: raw.prompt_logprobs.is_some(),
            ..ResponsePlan::new(endpoint, delivery)
        }
    }

    /// The receipt of an answer; none where none was asked for.
    pub(crate) fn receipt(&self, unsealed: Unsealed) -> Option<Receipt> {
        self.basis.clone().map(|basis| unsealed.seal(basis))
    }
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Finish {
    #[default]
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// The end of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct FinishInfo {
    pub(crate) finish: Finish,
    /// vLLM's: the stop string or token that did it, `null` for the model's own end.
    pub(crate) stop_reason: Value,
}

impl FinishInfo {
    pub(crate) fn of(plan: &ResponsePlan, app: &App, reason: FinishReason, stop_string: Option<usize>) -> FinishInfo {
        let (finish, stop_reason) = match (reason, stop_string) {
            (FinishReason::Length, _) => (Finish::Length, Value::Null),
            (_, Some(at)) => (Finish::Stop, plan.stop.get(at).map_or(Value::Null, |text| text.as_str().into())),
            (FinishReason::Stop(Some(token)), _) if !app.engine.model().eos_token_ids.contains(&token) => {
                (Finish::Stop, token.into())
            }
            (FinishReason::Stop(_), _) => (Finish::Stop, Value::Null),
        };
        FinishInfo { finish, stop_reason }
    }

    /// Whether it has called tools, and as it should: then that is why it ended, if nothing cut it off.
    pub(crate) fn called(&mut self, has_called: bool) {
        if has_called && self.finish == Finish::Stop {
            self.finish = Finish::ToolCalls;
        }
    }
}
