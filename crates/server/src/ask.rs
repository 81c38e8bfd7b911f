//! A request that the engine is to answer, from its body to its response.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use engine::{Timings, ValidatedRequest};
use scheduler::LatencyBound;
use serde_json::Value;
use telemetry::access::Refused;
use telemetry::answer_timings::NOT_KNOWN_YET;
use telemetry::otel::TraceParent;
use telemetry::timeline::RequestOrigin;
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult};
use transport::sse::streamed;

use crate::answers::{Adjustments, EventStream, Events, PreparedRequest, ResponsePlan, ResponseWriter};
use crate::app::App;
use crate::endpoint::Endpoint;

/// When the first token was likely to come, and what was promised, when the request was taken: milliseconds from there.
const PREDICTED_TTFT: HeaderName = HeaderName::from_static("x-predicted-ttft-ms");
const PROMISED_TTFT: HeaderName = HeaderName::from_static("x-promised-ttft-ms");
const PROMISED_TOTAL: HeaderName = HeaderName::from_static("x-promised-total-ms");
/// What it says beside a promise that rests on nothing yet.
const PROMISE: HeaderName = HeaderName::from_static("x-promise");
/// Fields that were taken and change nothing, and what `max_tokens` was cut to.
const HINTS: HeaderName = HeaderName::from_static("x-twostroke-hints");
const MAX_TOKENS: HeaderName = HeaderName::from_static("x-twostroke-max-tokens");
/// Where the time went, as browsers' tools show it (W3C Server Timing).
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Work that reads files or blocks, off the serving threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> ApiResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal())
}

/// Who asked, and by which name the request goes in the log.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: Option<Tenant>,
    pub(crate) key: Option<usize>,
    pub(crate) request_id: HeaderValue,
    pub(crate) parent: Option<TraceParent>,
    /// When its head was read.
    pub(crate) came: Instant,
}

impl Caller {
    fn origin(&self) -> RequestOrigin {
        RequestOrigin { tenant: self.tenant, key: self.key, request_id: self.name(), parent: self.parent.clone() }
    }

    /// No client: a line of a file.
    pub(crate) fn local(app: &App, tenant: Option<Tenant>) -> Caller {
        let key = app.keys.number(tenant.as_ref());
        Caller { tenant, key, request_id: own_id(app), parent: None, came: Instant::now() }
    }

    /// What its request is called.
    pub(crate) fn name(&self) -> String {
        self.request_id.to_str().unwrap_or_default().to_owned()
    }

    /// Writes down that it was refused what it asked for, and why.
    pub(crate) fn refused(&self, app: &App, endpoint: Endpoint, error: ApiError) -> ApiError {
        app.telemetry.access.refused(Refused {
            route: endpoint.route(),
            request_id: self.name(),
            key: self.key,
            status: error.status().as_u16(),
            why: error.short_reason(),
        });
        error
    }
}

pub(crate) fn own_id(app: &App) -> HeaderValue {
    app.ids.request_id().try_into().expect("letters and digits are a header value")
}

/// A request that its URL says all of.
pub(crate) struct UrlRequest {
    pub(crate) app: Arc<App>,
    pub(crate) caller: Caller,
    /// Empty where there is none.
    pub(crate) query: String,
}

impl FromRequestParts<Arc<App>> for UrlRequest {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, app: &Arc<App>) -> ApiResult<UrlRequest> {
        let caller = head.extensions.remove().ok_or_else(ApiError::internal)?;
        Ok(UrlRequest { app: app.clone(), caller, query: head.uri.query().unwrap_or_default().to_owned() })
    }
}

impl UrlRequest {
    /// What `work` writes, when it is the caller's turn ([`App::in_turn`]).
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&App) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        self.app.in_turn(self.caller.tenant, work).await
    }
}

/// A request with an unread JSON body.
pub(crate) struct JsonRequest {
    pub(crate) app: Arc<App>,
    pub(crate) caller: Caller,
    pub(crate) headers: HeaderMap,
    body: Body,
}

impl FromRequest<Arc<App>> for JsonRequest {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> ApiResult<JsonRequest> {
        let (mut head, body) = request.into_parts();
        let caller = head.extensions.remove().ok_or_else(ApiError::internal)?;
        Ok(JsonRequest { app: app.clone(), caller, headers: head.headers, body })
    }
}

impl JsonRequest {
    /// What `work` makes of the body: see [`App::with_json`].
    pub(crate) async fn read<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Value, &App) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        self.app.with_json(&self.headers, std::mem::take(&mut self.body), self.caller.tenant, work).await
    }

    /// What the reader of one API makes of the body. A refusal is written down.
    pub(crate) async fn read_as<T: Send + 'static>(
        &mut self,
        endpoint: Endpoint,
        read: impl FnOnce(Value, &App, Option<Tenant>) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let tenant = self.caller.tenant;
        let read = self.read(move |body, app| read(body, app, tenant)).await;
        read.map_err(|error| self.caller.refused(&self.app, endpoint, error))
    }

    /// A body that `read` understands, answered.
    pub(crate) async fn ask(
        mut self,
        endpoint: Endpoint,
        read: fn(Value, &App, Option<Tenant>) -> ApiResult<PreparedRequest>,
    ) -> ApiResult<Response> {
        let prepared = self.read_as(endpoint, read).await?;
        answer(self.app, &self.caller, prepared).await
    }
}

/// Has the engine begin with what was read of a body, or writes down why it cannot.
pub(crate) async fn submit(
    app: &Arc<App>,
    caller: &Caller,
    requests: Vec<ValidatedRequest>,
    mut plan: ResponsePlan,
) -> ApiResult<(ResponsePlan, EventStream)> {
    let endpoint = plan.endpoint;
    let refused = |error| caller.refused(app, endpoint, error);
    if plan.delivery.receipt {
        plan.basis = Some(app.basis(&plan.delivery.model).await.map_err(refused)?);
    }
    if let Some(user) = &plan.delivery.user {
        // Escaped: a name must not be able to write lines of its own into the log.
        tracing::info!(request_id = ?caller.request_id, user = ?user, "request of a named user");
    }
    let outputs = EventStream::submit(app, &plan, caller.origin(), requests).map_err(refused)?;
    Ok((plan, outputs))
}

pub(crate) async fn answer(app: Arc<App>, caller: &Caller, prepared: PreparedRequest) -> ApiResult<Response> {
    let PreparedRequest { requests, plan, writer } = prepared;
    let (plan, outputs) = submit(&app, caller, requests, plan).await?;
    let bound = outputs.latency_bound();
    let known = bound.as_ref().is_none_or(LatencyBound::is_known);
    let text = caller.came.elapsed();
    let adjustments = plan.delivery.adjustments.clone();
    let (mut response, timings) = deliver(app, plan, &*writer, outputs).await?;
    let headers = response.headers_mut();
    note_adjustments(headers, &adjustments);
    if let Some(LatencyBound { first_token, answer, .. }) = &bound {
        // Of what is likely to come within a millisecond too, 0 is not the time.
        headers.insert(PREDICTED_TTFT, HeaderValue::from(first_token.p50.0.div_ceil(1_000_000)));
        // Rounded up, so that a kept bound never looks broken.
        headers.insert(PROMISED_TTFT, HeaderValue::from(first_token.p95.0.div_ceil(1_000_000)));
        if !known {
            headers.insert(PROMISE, HeaderValue::from_static(NOT_KNOWN_YET));
        }
        headers.insert(PROMISED_TOTAL, HeaderValue::from(answer.p95.0.div_ceil(1_000_000)));
    }
    let likely = bound.map(|bound| Duration::from_nanos(bound.first_token.p50.0));
    let timing = server_timing(text, likely, timings.as_ref());
    headers.insert(SERVER_TIMING, timing.try_into().expect("digits and letters are a header value"));
    Ok(response)
}

/// Says in headers what was settled otherwise than a client may think.
pub(crate) fn note_adjustments(headers: &mut HeaderMap, adjustments: &Adjustments) {
    if !adjustments.hints.is_empty() {
        headers.insert(HINTS, adjustments.hints.in_a_line().try_into().expect("names of fields are a header value"));
    }
    if let Some(most) = adjustments.max_tokens {
        headers.insert(MAX_TOKENS, HeaderValue::from(most));
    }
}

/// `text`: reading and tokenizing the body. Of a stream, whose headers go out before its first token, the rest is what
/// was predicted.
fn server_timing(text: Duration, predicted: Option<Duration>, timings: Option<&Timings>) -> String {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let mut told = vec![("text", "parse and tokenize", ms(text))];
    match timings {
        Some(timings) => told.extend([
            ("queue", "wait for the first step", timings.queue_ms),
            ("prefill", "read the prompt", timings.prefill_ms),
            ("decode", "write the answer", timings.decode_ms),
            ("total", "arrival to end", timings.total_ms),
        ]),
        None => told.extend(predicted.map(|predicted| ("predicted-ttft", "first token expected", ms(predicted)))),
    }
    let entries = told.iter().map(|(name, what, ms)| format!("{name};desc=\"{what}\";dur={ms:.3}"));
    entries.collect::<Vec<_>>().join(", ")
}

async fn deliver(
    app: Arc<App>,
    plan: ResponsePlan,
    writer: &dyn ResponseWriter,
    outputs: EventStream,
) -> ApiResult<(Response, Option<Timings>)> {
    if plan.delivery.stream {
        let (kind, writer) = (writer.stream_type(), writer.stream_writer(&app, plan, &outputs));
        return Ok((streamed(kind, "no-cache", Body::new(Events::new(app, outputs, writer))), None));
    }
    let (response, timings) = writer.whole(&app, plan, outputs).await?;
    Ok((response, Some(timings)))
}
