//! The routes, and what every request passes on its way to one: draining, the key, its name, the count.
//!
//! ```text
//! request --> Host? 400, 403 --> draining? 503 --> key? 401 --> Origin? 403 --> route? 404, 405 --> handler
//!                                                                                                      |
//!                                                      answer <-- X-Request-Id, counters, CORS <-------+
//! ```
//!
//! Whose pages may ask is `site.rs`. Denying is the default: the key is asked for before a route is looked up, whatever
//! the path looks like, and only `GET /health` and the files of the page are exempt.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Tenant;
use crate::error::ApiError;
use crate::live::page::is_page;
use crate::openai::answer::{Events, Job, Outputs, Plan, collect};
use crate::openai::{chat, completions, text};
use crate::otel::TraceParent;
use crate::timeline::Asker;
use crate::{live, metrics, plan};

/// The engine has been stuck for longer than any step takes.
const STUCK: Duration = Duration::from_secs(5);
/// Longest X-Request-Id that is sent back.
const MAX_REQUEST_ID_BYTES: usize = 128;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// When the first token was likely to come, as it looked when the request was taken.
const PREDICTED_TTFT: HeaderName = HeaderName::from_static("x-predicted-ttft-ms");
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a route is asked, where, and what answers.
type Route = (Method, &'static str, fn(MethodFilter) -> MethodRouter<Arc<App>>);

/// Every route: what the router is made of, and the labels of a metric.
static TABLE: [Route; 23] = [
    (Method::POST, "/v1/completions", |by| on(by, complete)),
    (Method::POST, "/v1/chat/completions", |by| on(by, converse)),
    (Method::GET, "/v1/models", |by| on(by, list_models)),
    (Method::GET, "/v1/models/{*model}", |by| on(by, show_model)),
    (Method::GET, "/v1/requests/{id}/timeline", |by| on(by, show_timeline)),
    (Method::POST, "/tokenize", |by| on(by, tokenize)),
    (Method::POST, "/detokenize", |by| on(by, detokenize)),
    (Method::GET, "/health", |by| on(by, health)),
    (Method::GET, "/metrics", |by| on(by, show_metrics)),
    (Method::GET, "/version", |by| on(by, version)),
    (Method::GET, "/", |by| on(by, live::page::file)),
    (Method::GET, "/app.js", |by| on(by, live::page::file)),
    (Method::GET, "/app.css", |by| on(by, live::page::file)),
    (Method::GET, "/favicon.svg", |by| on(by, live::page::file)),
    (Method::GET, "/plan", |by| on(by, plan::answer)),
    (Method::POST, "/plan", |by| on(by, plan::answer_of_config)),
    (Method::GET, "/plan/presets", |by| on(by, plan::presets)),
    (Method::GET, "/live/info", |by| on(by, live::info)),
    (Method::GET, "/live/feed", |by| on(by, live::watch)),
    (Method::GET, "/live/whatif", |by| on(by, live::whatif::ask)),
    (Method::POST, "/live/pause", |by| on(by, live::hold::pause)),
    (Method::POST, "/live/step", |by| on(by, live::hold::step)),
    (Method::POST, "/live/resume", |by| on(by, live::hold::resume)),
];

/// Method and path of every route.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|(method, path, _)| (method.as_str(), *path))
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (method, path, handler) in TABLE.iter().filter(|(_, path, _)| app.ui || !live::is_live(path)) {
        let by = MethodFilter::try_from(method.clone()).expect("GET and POST are methods that axum knows");
        router = router.route(path, handler(by));
    }
    router
        .fallback(|| async { ApiError::unknown_route() })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(middleware::from_fn_with_state(app.clone(), front))
        .with_state(app)
}

/// What every request passes, in this order.
async fn front(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = echoed_id(request.headers()).unwrap_or_else(|| own_id(&app));
    let route = request.extensions().get::<MatchedPath>().and_then(|path| known_route(path.as_str()));
    let share = app.site.sharing(request.headers());
    let mut response = match admit(&app, &request) {
        Ok(Admitted::Preflight(answer)) => answer,
        Ok(Admitted::Caller(tenant)) => {
            let caller = Caller { tenant, request_id: id.clone(), parent: trace_parent(request.headers()) };
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    share(&mut response);
    app.http.answered(route.unwrap_or("other"), response.status());
    response.headers_mut().insert(REQUEST_ID, id);
    // What a model says is data, whatever it looks like to a browser.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Who asked, and by which name the request goes in the log.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: Option<Tenant>,
    request_id: HeaderValue,
    parent: Option<TraceParent>,
}

impl Caller {
    fn asker(&self) -> Asker {
        Asker {
            tenant: self.tenant,
            request_id: self.request_id.to_str().unwrap_or_default().to_owned(),
            parent: self.parent.clone(),
        }
    }
}

enum Admitted {
    Caller(Option<Tenant>),
    /// A browser asks whether a page of an allowed origin may ask; it brings no key.
    Preflight(Response),
}

fn admit(app: &App, request: &Request) -> Result<Admitted, ApiError> {
    app.site.check_name(request)?;
    // Counters are wanted most when a server goes down.
    if app.is_draining() && request.uri().path() != "/metrics" {
        return Err(ApiError::shutting_down());
    }
    if let Some(answer) = app.site.preflight(request) {
        return Ok(Admitted::Preflight(answer));
    }
    let tenant = match app.keys.tenant(request.headers()) {
        Ok(tenant) => tenant,
        Err(_) if is_open(app, request) => None,
        Err(_) => return Err(ApiError::unauthorized()),
    };
    app.site.check_origin(request)?;
    Ok(Admitted::Caller(tenant))
}

/// Load balancers have no keys, and a browser has none before it has the page that asks for one.
fn is_open(app: &App, request: &Request) -> bool {
    let path = request.uri().path();
    matches!(*request.method(), Method::GET | Method::HEAD) && (path == "/health" || app.ui && is_page(path))
}

/// The routes are labels of a metric, so only names from the list are.
fn known_route(path: &str) -> Option<&'static str> {
    routes().map(|(_, route)| route).find(|&route| route == path)
}

/// The caller's own name for the request, if it is fit to be sent back. It is a key among its tenant's own requests
/// only.
fn echoed_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(REQUEST_ID)?;
    let bytes = value.as_bytes();
    let fit = (1..=MAX_REQUEST_ID_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    fit.then(|| value.clone())
}

/// The caller's span, if it says so in the way of W3C Trace Context.
fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    TraceParent::parse(headers.get("traceparent")?.to_str().ok()?)
}

fn own_id(app: &App) -> HeaderValue {
    app.request_id().try_into().expect("letters and digits are a header value")
}

type Caught<T> = Result<T, ApiError>;

async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    let tenant = caller.tenant;
    let job = app.with_json(&headers, body, tenant, move |value, app| completions::read(value, app, tenant)).await?;
    answer(app, &caller, job).await
}

async fn converse(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    let tenant = caller.tenant;
    let job = app.with_json(&headers, body, tenant, move |value, app| chat::read(value, app, tenant)).await?;
    answer(app, &caller, job).await
}

async fn answer(app: Arc<App>, caller: &Caller, job: Job) -> Caught<Response> {
    let Job { requests, mut plan } = job;
    if plan.delivery.receipt {
        plan.basis = Some(app.basis(&plan.delivery.model).await?);
    }
    if let Some(user) = &plan.delivery.user {
        // Escaped: a name must not be able to write lines of its own into the log.
        tracing::info!(request_id = ?caller.request_id, user = ?user, "request of a named user");
    }
    let outputs = Outputs::submit(&app, &plan, caller.asker(), requests)?;
    let predicted = outputs.predicted_ttft();
    let mut response = deliver(app, plan, outputs).await?;
    if let Some(predicted) = predicted {
        response.headers_mut().insert(PREDICTED_TTFT, HeaderValue::from(predicted.as_millis() as u64));
    }
    Ok(response)
}

async fn deliver(app: Arc<App>, plan: Plan, outputs: Outputs) -> Caught<Response> {
    if plan.delivery.stream {
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache"),
            // Asks proxies to pass each event on at once.
            (HeaderName::from_static("x-accel-buffering"), "no"),
        ];
        return Ok((headers, Body::new(Events::new(app, plan, outputs))).into_response());
    }
    let mut whole = collect(&app, &plan, outputs).await?;
    Ok(match whole.short() {
        Some(json) => json_body(json),
        None => json_body(Body::new(whole)),
    })
}

async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    Ok(json_body(app.with_json(&headers, body, caller.tenant, text::tokenize).await?))
}

async fn detokenize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    Ok(json_body(app.with_json(&headers, body, caller.tenant, text::detokenize).await?))
}

async fn list_models(State(app): State<Arc<App>>) -> Response {
    let cards: Vec<Value> = app.models.iter().map(|name| model_card(&app, name)).collect();
    json_body(json!({"object": "list", "data": cards}).to_string())
}

async fn show_model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Caught<Response> {
    if !app.models.contains(&name) {
        return Err(ApiError::unknown_model());
    }
    Ok(json_body(model_card(&app, &name).to_string()))
}

fn model_card(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": "twostroke",
        "root": app.engine.model().name,
        "parent": null,
        "max_model_len": app.engine.model().max_model_len,
    })
}

/// Where the time of a request went.
async fn show_timeline(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Caught<Response> {
    let timeline = app.reader(caller.tenant).timeline(&name).ok_or_else(ApiError::unknown_request)?;
    Ok(json_body(timeline.to_string()))
}

/// Healthy means that the engine's own loop moves, or has nothing to do.
async fn health(State(app): State<Arc<App>>) -> Response {
    let health = app.engine.health();
    let (healthy, status) = match () {
        () if health.dead => (false, "dead"),
        () if health.draining => (false, "draining"),
        () if health.stuck_for > STUCK => (false, "stuck"),
        () => (true, "ok"),
    };
    let body = json!({
        "status": status,
        "stuck_for_ms": health.stuck_for.as_millis() as u64,
        "open_requests": health.open_requests,
    });
    let code = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, json_body(body.to_string())).into_response()
}

async fn show_metrics(State(app): State<Arc<App>>) -> Response {
    let text =
        metrics::render(&app.engine.stats(), &app.http, &app.text.stats(), &app.models[0], app.engine.model().targets);
    ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

async fn version() -> Response {
    json_body(json!({"version": env!("CARGO_PKG_VERSION")}).to_string())
}

pub(crate) fn json_body(json: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json.into()).into_response()
}
