//! The requests of an answer under way, and their events as they come.

use std::iter::repeat_with;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use engine::{Event, RequestError, Stream, ValidatedRequest};
use scheduler::LatencyBound;
use telemetry::access;
use telemetry::otel::Guard;
use telemetry::thinking::Thought;
use telemetry::timeline::{RequestOrigin, RequestTrace};
use transport::answer_memory::Charge;
use transport::error::ApiError;

use super::ResponsePlan;
use crate::app::App;
use crate::charge;
use crate::endpoint::Endpoint;
use crate::openai::late::LatencyBoundWatch;

/// Outputs of each answer of a stream that may wait to be read, beyond what the connection's buffers hold.
const MOST_UNREAD: usize = 4096;

fn most_unread(plan: &ResponsePlan) -> usize {
    MOST_UNREAD * plan.num_answers
}

/// The outputs of all prompts of a request, as they come.
pub(crate) struct EventStream {
    streams: Vec<Option<Stream>>,
    trace: Arc<RequestTrace>,
    /// Prompt to ask first, so that none is starved.
    turn: usize,
    /// Memory set aside for what they say.
    charge: Option<Charge>,
    /// Dropped last, with the streams: then the request has ended, or is cancelled.
    _span: Option<Guard>,
    /// The same for the log.
    access: access::Guard,
}

impl EventStream {
    /// Submits all prompts, or none.
    pub(crate) fn submit(
        app: &Arc<App>,
        plan: &ResponsePlan,
        origin: RequestOrigin,
        requests: Vec<ValidatedRequest>,
    ) -> Result<EventStream, ApiError> {
        if app.drain.has_begun() {
            return Err(ApiError::shutting_down());
        }
        let streamed = plan.delivery.stream;
        let tells_logprobs = plan.endpoint == Endpoint::Responses && plan.logprobs;
        let bytes = |request: &ValidatedRequest| match &plan.beams {
            None if tells_logprobs => charge::bytes_of(request, streamed, most_unread(plan))
                .saturating_add(charge::bytes_of_told_logprobs(request)),
            None => charge::bytes_of(request, streamed, most_unread(plan)),
            Some(_) => charge::bytes_of_beams(request),
        };
        let bytes = requests.iter().map(bytes).fold(0, u64::saturating_add);
        let tenant = requests.first().map_or(0, ValidatedRequest::tenant);
        let charge = app.answers.charge(tenant, bytes)?;
        // Other APIs count their messages otherwise than a template does. Of several prompts none is a conversation.
        let conversation = requests.first().filter(|_| plan.endpoint == Endpoint::Chat);
        let messages = conversation.map_or(&[][..], ValidatedRequest::messages).to_vec();
        let prompt_tokens = requests.iter().map(|request| request.prompt().len()).collect();
        let submit = |request| match &plan.beams {
            None => Ok(Some(app.engine.submit(request)?)),
            Some(beams) => Ok(Some(beams.begin(app, request)?)),
        };
        // When a later one finds the queue full, dropping the earlier ones cancels them.
        let streams = requests.into_iter().map(submit).collect::<Result<Vec<_>, ApiError>>()?;
        if streamed {
            streams.iter().flatten().for_each(|stream: &Stream| stream.limit_unread(most_unread(plan)));
        }
        let requests: Vec<_> = streams.iter().flatten().map(Stream::id).collect();
        let response_id = app.ids.response_id(plan.endpoint.prefix());
        let trace = Arc::new(RequestTrace {
            tenant: origin.tenant,
            key: origin.key,
            response_id,
            request_id: origin.request_id,
            thoughts: repeat_with(Thought::default).take(requests.len() * plan.num_answers).collect(),
            requests,
            prompt_tokens,
            messages,
            num_answers: plan.num_answers,
        });
        app.telemetry.registry.add(trace.clone());
        let span = app.telemetry.exporter.clone().map(|exporter| {
            let operation = plan.endpoint.operation();
            Guard::new(exporter, trace.clone(), plan.delivery.model.clone(), operation, origin.parent)
        });
        let access = access::Guard::new(app.telemetry.access.clone(), trace.clone(), plan.endpoint.route(), streamed);
        Ok(EventStream { streams, trace, turn: 0, charge: Some(charge), _span: span, access })
    }

    /// The bound that was given when the prompts were submitted: of each time, the latest of any prompt.
    pub(crate) fn latency_bound(&self) -> Option<LatencyBound> {
        self.streams.iter().flatten().filter_map(Stream::latency_bound).copied().reduce(|a, b| a.latest(&b))
    }

    /// Tells the client if that is missed.
    pub(super) fn bound_watch(&self) -> Option<LatencyBoundWatch> {
        let arrived = self.streams.iter().flatten().map(Stream::arrived).min()?;
        Some(LatencyBoundWatch::new(self.latency_bound()?, arrived, self.streams.len()))
    }

    pub(crate) fn prompts(&self) -> Vec<Vec<u32>> {
        self.streams.iter().flatten().map(|stream| stream.prompt().to_vec()).collect()
    }

    /// The next output and the prompt it belongs to; `None` when all have ended.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        let count = self.streams.len();
        let mut open = false;
        for at in (self.turn..self.turn + count).map(|at| at % count) {
            let Some(stream) = &mut self.streams[at] else { continue };
            open = true;
            // A receive that is given up before it is ready has taken nothing.
            let Poll::Ready(output) = pin!(stream.recv()).poll(cx) else { continue };
            // An engine that is gone sends nothing more, not even an error.
            let output = output.unwrap_or(Event::Failed(RequestError::Internal));
            if matches!(output, Event::Done { .. } | Event::Failed(_)) {
                self.streams[at] = None;
            }
            self.turn = (at + 1) % count;
            return Poll::Ready(Some((at, output)));
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn trace(&self) -> &Arc<RequestTrace> {
        &self.trace
    }

    /// For the log: with which status.
    pub(crate) fn answered(&mut self, status: u16) {
        self.access.answered(status);
    }

    /// All outputs are read: what is left.
    pub(super) fn into_rest(mut self) -> (Arc<RequestTrace>, Option<Charge>) {
        (self.trace.clone(), self.charge.take())
    }
}
