//! The routes, and what every request passes on its way to one: draining, the key, its name, the count.
//!
//! ```text
//! request --> Host? 400, 403 --> draining? 503 --> key? 401 --> Origin? 403 --> query? 400 --> route? 404, 405 --+
//!                                                                                                               v
//!                                                 answer <-- X-Request-Id, counters, CORS <-------------- handler
//! ```
//!
//! Whose pages may ask is `origin.rs`. Denying is the default: the key is asked for before a route is looked up,
//! whatever the path looks like, and only `GET /health`, the files of the page and the document of the API are exempt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};
use batches::LocalServer;
use engine::Exemplar;
use serde_json::{Value, json};
use telemetry::live_wire::Name;
use telemetry::metrics::{self, CacheConfig, Exposition, Sources};
use telemetry::otel::TraceParent;
use telemetry::requests::{self, RequestQuery, WrongParameter};
use telemetry::timeline::{OtherModel, Reader};
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult, ErrorFormat};
use transport::ids::REQUEST_ID;
use transport::json::{fresh_json_body, json_body};
use transport::query;

use crate::app::App;
use crate::ask::{Caller, JsonRequest, UrlRequest, own_id};
use crate::endpoint::Endpoint;
use crate::live::page::is_page;
use crate::openai::{chat, completions, text};
use crate::several::{self, InMemory, Several, pulling};
use crate::{adapters, anthropic, batch, live, llama, ollama, openapi, plan, responses, role, vectors, without};

/// The engine has been stuck for longer than any step takes.
const STUCK: Duration = Duration::from_secs(5);
/// Longest X-Request-Id that is sent back.
const MAX_REQUEST_ID_BYTES: usize = 128;
/// A request's name where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// How a route is asked, where, and what answers.
type Route = (Method, &'static str, fn(MethodFilter) -> MethodRouter<Arc<App>>);

/// Every route: what the router is made of, and the labels of a metric.
static TABLE: [Route; 92] = [
    (Method::POST, "/v1/completions", |by| on(by, complete)),
    (Method::POST, "/v1/chat/completions", |by| on(by, converse)),
    (Method::POST, "/v1/responses", |by| on(by, responses::create)),
    (Method::POST, "/v1/responses/input_tokens", |by| on(by, responses::input_tokens)),
    (Method::GET, "/v1/responses/{id}", |by| on(by, responses::retrieve)),
    (Method::DELETE, "/v1/responses/{id}", |by| on(by, responses::delete)),
    (Method::GET, "/v1/responses/{id}/input_items", |by| on(by, responses::input_items)),
    (Method::POST, "/v1/responses/{id}/cancel", |by| on(by, responses::cancel)),
    (Method::POST, "/v1/messages", |by| on(by, anthropic::create)),
    (Method::POST, "/v1/messages/count_tokens", |by| on(by, anthropic::count_tokens)),
    (Method::POST, "/v1/embeddings", |by| on(by, vectors::embed)),
    (Method::POST, "/v1/score", |by| on(by, vectors::score)),
    (Method::POST, "/score", |by| on(by, vectors::score)),
    (Method::POST, "/v1/rerank", |by| on(by, vectors::rerank)),
    (Method::POST, "/v2/rerank", |by| on(by, vectors::rerank)),
    (Method::POST, "/rerank", |by| on(by, vectors::rerank)),
    (Method::POST, "/reranking", |by| on(by, vectors::rerank)),
    (Method::POST, "/classify", |by| on(by, vectors::classify)),
    (Method::POST, "/pooling", |by| on(by, vectors::pool)),
    (Method::POST, "/embedding", |by| on(by, vectors::llama::embed)),
    (Method::POST, "/embeddings", |by| on(by, vectors::llama::embed)),
    (Method::GET, "/lora-adapters", |by| on(by, llama::loras)),
    (Method::POST, "/lora-adapters", |by| on(by, llama::scale_loras)),
    (Method::POST, "/v1/files", |by| on(by, batch::send_file)),
    (Method::GET, "/v1/files", |by| on(by, batch::list_files)),
    (Method::GET, "/v1/files/{id}", |by| on(by, batch::show_file)),
    (Method::DELETE, "/v1/files/{id}", |by| on(by, batch::delete_file)),
    (Method::GET, "/v1/files/{id}/content", |by| on(by, batch::read_file)),
    (Method::POST, "/v1/batches", |by| on(by, batch::begin)),
    (Method::GET, "/v1/batches", |by| on(by, batch::list)),
    (Method::GET, "/v1/batches/{id}", |by| on(by, batch::show)),
    (Method::POST, "/v1/batches/{id}/cancel", |by| on(by, batch::cancel)),
    (Method::GET, "/api/version", |by| on(by, ollama::version)),
    (Method::GET, "/api/tags", |by| on(by, ollama::tags)),
    (Method::GET, "/api/ps", |by| on(by, ollama::ps)),
    (Method::POST, "/api/show", |by| on(by, ollama::show)),
    (Method::POST, "/api/chat", |by| on(by, ollama::chat)),
    (Method::POST, "/api/generate", |by| on(by, ollama::generate)),
    (Method::POST, "/api/embed", |by| on(by, vectors::ollama::embed)),
    (Method::POST, "/api/embeddings", |by| on(by, vectors::ollama::embed_one)),
    (Method::POST, "/api/pull", |by| on(by, pulling::pull)),
    (Method::POST, "/api/push", |by| on(by, ollama::fixed)),
    (Method::POST, "/api/create", |by| on(by, ollama::fixed)),
    (Method::POST, "/api/copy", |by| on(by, ollama::fixed)),
    (Method::DELETE, "/api/delete", |by| on(by, pulling::delete)),
    (Method::POST, "/completion", |by| on(by, llama::complete)),
    (Method::POST, "/infill", |by| on(by, llama::infill)),
    (Method::POST, "/completions", |by| on(by, complete)),
    (Method::POST, "/chat/completions", |by| on(by, converse)),
    (Method::GET, "/models", |by| on(by, list_models)),
    (Method::GET, "/props", |by| on(by, llama::props)),
    (Method::GET, "/slots", |by| on(by, llama::slots)),
    (Method::POST, "/apply-template", |by| on(by, llama::apply_template)),
    (Method::GET, "/tokenizer_info", |by| on(by, llama::tokenizer_info)),
    (Method::GET, "/load", |by| on(by, llama::load)),
    (Method::GET, "/ping", |by| on(by, health)),
    (Method::POST, "/ping", |by| on(by, health)),
    (Method::GET, "/v1/health", |by| on(by, health)),
    (Method::GET, "/v1/models", |by| on(by, list_models)),
    (Method::GET, "/v1/models/{*model}", |by| on(by, show_model)),
    (Method::POST, "/v1/load_lora_adapter", |by| on(by, adapters::load)),
    (Method::POST, "/v1/unload_lora_adapter", |by| on(by, adapters::unload)),
    (Method::GET, "/role", |by| on(by, role::show)),
    (Method::POST, "/role", |by| on(by, role::change)),
    (Method::GET, "/v1/requests", |by| on(by, list_requests)),
    (Method::GET, "/v1/requests/{id}/timeline", |by| on(by, show_timeline)),
    (Method::GET, "/v1/requests/{id}/without/{other}", |by| on(by, without::ask)),
    (Method::POST, "/tokenize", |by| on(by, tokenize)),
    (Method::POST, "/detokenize", |by| on(by, detokenize)),
    (Method::GET, "/health", |by| on(by, health)),
    (Method::GET, "/metrics", |by| on(by, show_metrics)),
    (Method::GET, "/version", |by| on(by, version)),
    (Method::GET, "/openapi.json", |by| on(by, openapi::document)),
    (Method::GET, "/docs", |by| on(by, openapi::docs)),
    (Method::GET, "/", |by| on(by, live::page::file)),
    (Method::GET, "/app.js", |by| on(by, live::page::file)),
    (Method::GET, "/calculator.js", |by| on(by, live::page::file)),
    (Method::GET, "/highlight.js", |by| on(by, live::page::file)),
    (Method::GET, "/tour.js", |by| on(by, live::page::file)),
    (Method::GET, "/app.css", |by| on(by, live::page::file)),
    (Method::GET, "/favicon.svg", |by| on(by, live::page::file)),
    (Method::GET, "/licences.txt", |by| on(by, live::page::file)),
    (Method::GET, "/plan", |by| on(by, plan::answer)),
    (Method::POST, "/plan", |by| on(by, plan::answer_of_config)),
    (Method::GET, "/plan/presets", |by| on(by, plan::presets)),
    (Method::GET, "/live/info", |by| on(by, live::info)),
    (Method::GET, "/live/feed", |by| on(by, live::watch)),
    (Method::GET, "/live/trace", |by| on(by, live::trace::download)),
    (Method::GET, "/live/whatif", |by| on(by, live::whatif::ask)),
    (Method::POST, "/live/pause", |by| on(by, live::hold::pause)),
    (Method::POST, "/live/step", |by| on(by, live::hold::step)),
    (Method::POST, "/live/resume", |by| on(by, live::hold::resume)),
];

/// Method and path of every route.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.iter().map(|(method, path, _)| (method.as_str(), *path))
}

pub(crate) fn router(app: Arc<App>, several: Option<Arc<Several>>) -> Router {
    with_models(app.clone(), several).layer(middleware::from_fn_with_state(app, front))
}

/// The routes of all models, each request taken to the one that it is for.
fn with_models(app: Arc<App>, several: Option<Arc<Several>>) -> Router {
    let own = app.clone();
    let dispatch = move |request: Request, next: Next| several::dispatch(own.clone(), several.clone(), request, next);
    inner(app).layer(middleware::from_fn(dispatch))
}

/// The routes of a model beside the first, to which requests are taken.
pub(crate) fn of_guest(app: Arc<App>) -> Router {
    inner(app)
}

/// The routes for clients in this process, which have no network and no name of their own.
pub(crate) fn local(app: Arc<App>, several: Option<Arc<Several>>) -> LocalServer {
    let (fills, drain) = ((2 * app.engine.model().max_num_seqs).min(128), app.drain.clone());
    let routes = move |tenant| {
        let told = app.clone();
        let name = move |mut request: Request, next: Next| {
            let caller = Caller::local(&told, tenant);
            let id = caller.request_id.clone();
            request.extensions_mut().insert(caller);
            async move {
                let mut response = next.run(request).await;
                response.headers_mut().insert(REQUEST_ID, id);
                response
            }
        };
        with_models(app.clone(), several.clone()).layer(middleware::from_fn(name))
    };
    LocalServer { routes: Arc::new(routes), fills, drain }
}

/// The routes without what every request from outside passes first: each wants a [`Caller`] beside it.
fn inner(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (method, path, handler) in TABLE.iter().filter(|(_, path, _)| app.settings.ui || !live::is_live(path)) {
        let by = MethodFilter::try_from(method.clone()).expect("GET and POST are methods that axum knows");
        router = router.route(path, handler(by));
    }
    router
        .fallback(|uri: Uri| async move { absent(uri.path()).unwrap_or_else(ApiError::unknown_route) })
        .method_not_allowed_fallback(|uri: Uri| async move {
            absent(uri.path()).unwrap_or_else(ApiError::method_not_allowed)
        })
        .with_state(app)
}

/// What is said of those routes of OpenAI's API for which there is another way here.
fn absent(path: &str) -> Option<ApiError> {
    let is_under = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let message = match () {
        () if is_under("/v1/conversations") => {
            "This server keeps no conversations, but answers: send the last one's name as 'previous_response_id'."
        }
        () if path == "/v1/responses/compact" => {
            "This server does not compact conversations: send 'truncation': 'auto', and the oldest items are left out."
        }
        () => return None,
    };
    Some(ApiError::absent_route(message))
}

/// What every request passes, in this order.
async fn front(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = echoed_id(request.headers()).unwrap_or_else(|| own_id(&app));
    let route = request.extensions().get::<MatchedPath>().and_then(|path| known_route(path.as_str()));
    let share = app.origin_policy.sharing(request.headers());
    let error_format = ErrorFormat::of(request.uri().path(), request.headers());
    let mut response = match admit(&app, &request) {
        Ok(Admitted::Preflight(answer)) => answer,
        Ok(Admitted::Caller(tenant)) => {
            let key = app.keys.number(tenant.as_ref());
            let parent = trace_parent(request.headers());
            let caller = Caller { tenant, key, request_id: id.clone(), parent, came: Instant::now() };
            request.extensions_mut().insert(caller);
            match route.map_or(Ok(()), |route| check_url(&request, route)) {
                Ok(()) => next.run(request).await,
                Err(refusal) => refusal.into_response(),
            }
        }
        Err(refusal) => refusal.into_response(),
    };
    if let (Some(error_format), Some(error)) = (error_format, response.extensions_mut().remove::<ApiError>()) {
        response = error.render_as(error_format);
    }
    share(&mut response);
    app.telemetry.http.answered(route.unwrap_or("other"), response.status().as_u16());
    if error_format == Some(ErrorFormat::Anthropic) {
        response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    // What a model says is data, whatever it looks like to a browser.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

enum Admitted {
    Caller(Option<Tenant>),
    /// A browser asks whether a page of an allowed origin may ask; it brings no key.
    Preflight(Response),
}

fn admit(app: &App, request: &Request) -> Result<Admitted, ApiError> {
    app.origin_policy.check_name(request)?;
    // Counters are wanted most when a server goes down.
    if app.drain.has_begun() && request.uri().path() != "/metrics" {
        return Err(ApiError::shutting_down());
    }
    if let Some(answer) = app.origin_policy.preflight(request) {
        return Ok(Admitted::Preflight(answer));
    }
    let tenant = match app.keys.tenant(request.headers()) {
        Ok(tenant) => tenant,
        Err(_) if is_open(app, request) => None,
        Err(_) => return Err(ApiError::unauthorized()),
    };
    app.origin_policy.check_origin(request)?;
    Ok(Admitted::Caller(tenant))
}

/// Load balancers have no keys, and a browser has none before it has the page that asks for one.
fn is_open(app: &App, request: &Request) -> bool {
    let path = request.uri().path();
    let is_for_people = || is_page(path) || openapi::PATHS.contains(&path);
    matches!(*request.method(), Method::GET | Method::HEAD) && (path == "/health" || app.settings.ui && is_for_people())
}

/// A name in a query that its route does not have would be dropped in silence: `?stream=true` where nothing streams.
fn check_url(request: &Request, route: &str) -> Result<(), ApiError> {
    if !query::is_text(request.uri().path()) {
        return Err(ApiError::bad_request("The path of this URL is not UTF-8 text."));
    }
    // Its own reader knows what may be planned, and says so.
    if route == "/plan" && request.method() == Method::GET {
        return Ok(());
    }
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if !routes().any(|(own, path)| own == method.as_str() && path == route) {
        // 405, whatever the query says.
        return Ok(());
    }
    query::check(request.uri().query().unwrap_or_default(), openapi::query(method, route))
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

async fn complete(request: JsonRequest) -> ApiResult<Response> {
    request.ask(Endpoint::Completion, completions::read).await
}

async fn converse(request: JsonRequest) -> ApiResult<Response> {
    request.ask(Endpoint::Chat, chat::read).await
}

async fn tokenize(mut request: JsonRequest) -> ApiResult<Response> {
    Ok(json_body(request.read(text::tokenize).await?))
}

async fn detokenize(mut request: JsonRequest) -> ApiResult<Response> {
    Ok(json_body(request.read(text::detokenize).await?))
}

async fn list_models(UrlRequest { app, query, .. }: UrlRequest, headers: HeaderMap) -> ApiResult<Response> {
    if ErrorFormat::are_anthropics(&headers) {
        return Ok(json_body(anthropic::model_list(&app, &query)?.to_string()));
    }
    // OpenAI's list has one page; Anthropic's clients send this one whatever they mean.
    query::check(&query, &[query::parameter("beta", transport::shape::Kind::Text, "")])?;
    let cards: Vec<Value> = app.names().iter().map(|name| model_card(&app, name)).collect();
    Ok(json_body(json!({"object": "list", "data": cards}).to_string()))
}

async fn show_model(State(app): State<Arc<App>>, Path(name): Path<String>, headers: HeaderMap) -> ApiResult<Response> {
    if !app.serves(&name) {
        return Err(app.unknown_model(&name));
    }
    let card = if ErrorFormat::are_anthropics(&headers) { anthropic::model_card } else { model_card };
    Ok(json_body(card(&app, &name).to_string()))
}

fn model_card(app: &App, name: &str) -> Value {
    let model = app.engine.model();
    let adapter = model.adapters.list().into_iter().find(|adapter| adapter.name == name);
    let (root, parent) = match &adapter {
        Some(adapter) => (adapter.path.display().to_string(), Some(&app.model.names[0])),
        None => (model.name.clone(), None),
    };
    json!({
        "id": name,
        "object": "model",
        "created": app.model.created,
        "owned_by": "twostroke",
        "root": root,
        "parent": parent,
        "max_model_len": model.max_model_len,
    })
}

/// The caller's requests: those that wait and run, and the last that ended.
async fn list_requests(request: UrlRequest) -> ApiResult<Response> {
    let (engine, tenant) = (&request.app.engine, request.caller.tenant);
    let question = RequestQuery::read(query::pairs(&request.query), engine.unix(engine.now()));
    let question = question.map_err(|wrong| match wrong {
        WrongParameter::Unknown(name) => query::unknown(&name),
        WrongParameter::Not(name, what) => ApiError::bad_request(format!("{name} must be {what}.")).with_param(name),
    })?;
    let listed =
        move |app: &App| Ok(requests::list(&*app.engine, &app.telemetry.registry.of(tenant), &question).to_string());
    Ok(fresh_json_body(request.in_turn(listed).await?))
}

/// Where the time of a request went.
async fn show_timeline(
    request: UrlRequest,
    Path(name): Path<String>,
    all: Option<Extension<InMemory>>,
) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    let told = move |app: &App| {
        let all = all.iter().flat_map(|Extension(InMemory(all))| all);
        let others = all.filter(|other| !std::ptr::eq(&***other, app)).map(|other| OtherModel {
            name: &other.model.names[0],
            engine: &*other.engine,
            registry: &other.telemetry.registry,
        });
        let reader = Reader { others: others.collect(), ..app.reader(tenant) };
        let timeline = reader.timeline(&name).ok_or_else(ApiError::unknown_request)?;
        Ok(timeline.to_string())
    };
    Ok(json_body(request.in_turn(told).await?))
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

async fn show_metrics(request: UrlRequest, headers: HeaderMap) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_open_metrics = Exposition::is_open_metrics(accept);
    request.in_turn(move |app| Ok(metrics_page(app, tenant, is_open_metrics))).await
}

fn metrics_page(app: &App, tenant: Option<Tenant>, is_open_metrics: bool) -> Response {
    let known = |exemplar: &Exemplar| {
        let name = match app.telemetry.registry.name(tenant, exemplar.request) {
            Name::Own(name) => name,
            Name::Other(number) => number.to_string(),
        };
        (name, app.engine.unix(exemplar.at).as_millis_f64() / 1e3)
    };
    let exposition = match is_open_metrics {
        true => Exposition::OpenMetrics(&known),
        false => Exposition::Text,
    };
    let limits = app.engine.device_limits();
    let model = app.engine.model();
    let swap = model.swap;
    let sources = Sources {
        stats: &app.engine.stats(),
        http: &app.telemetry.http,
        text: &app.text.stats(),
        model: &app.model.names[0],
        cache: CacheConfig {
            block_size: model.block_size,
            blocks: model.num_blocks,
            dtype: model.kv_dtype.name(),
            swap_blocks: swap.host_slots + swap.disk_slots,
        },
        targets: app.engine.targets(),
        limits: limits.as_ref(),
        demands: &app.model.demands,
        now: app.engine.now(),
        adapters: &app.engine.model().adapters,
        unix_seconds: app.now(),
    };
    let headers = [(header::CONTENT_TYPE, exposition.content_type()), (header::VARY, "accept")];
    (headers, metrics::render(&sources, exposition)).into_response()
}

async fn version() -> Response {
    json_body(json!({"version": env!("CARGO_PKG_VERSION")}).to_string())
}
