//! Several models in one server: which one a request is for, and what is told of all.
//!
//! ```text
//! request --front: key, origin, URL--> dispatch --names the first model, or none--> its routes
//!                                         |--names another--> waits until it is in memory --> the routes of that one
//!                                         `--asks what there is--> several/listing.rs
//! ```
//! The model that the server was started with first is its *first* model: it is in memory for as long as the server runs,
//! and answers what names none. The others are [`Guest`]s: each has an engine and routes of its own, and comes and goes as
//! [`residency`] decides. All share keys, kept responses and the directory of batches.

mod listing;
pub(crate) mod pulling;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::Observe;
use hub::DownloadEvent;
use hyper::body::Body as _;
use residency::{Claims, Facts, LoadingReport, Manager, ModelId, Place, Refusal, ResidentModel, Rules, Standing};
use serde::Deserialize;
use serde_json::Value;
use telemetry::metrics;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use transport::arriving::Arriving;
use transport::auth::Right;
use transport::error::{ApiError, ApiResult, ErrorFormat};
use transport::held::held;
use transport::keep_alive;
use transport::listen::holding;
use transport::origin::{OriginOptions, OriginPolicy};
use transport::query;

use crate::app::App;
use crate::ask::Caller;
use crate::responses::Store;
use crate::{LAST_WORDS, ServerOptions, ollama, openapi, routes};

/// How long what the catalog has said is believed, when a name is not among it.
const FRESH: Duration = Duration::from_secs(1);
/// Bytes of bodies that wait for their model, in all.
const WAITING_BYTES: usize = 64 << 20;
/// How long a request waited for its model to be in memory.
const LOAD_MS: HeaderName = HeaderName::from_static("x-twostroke-load-ms");

/// What is known of a model that may not be in memory.
#[derive(Clone, Debug)]
pub struct KnownModel {
    /// What it may be asked for by; the first is what it is called.
    pub names: Vec<String>,
    /// What it takes, and when it leaves.
    pub facts: Facts,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// Seconds since 1970 of its newest file.
    pub changed: u64,
    /// Its architecture.
    pub family: String,
    /// Its parameters.
    pub parameters: u64,
    /// Precision of the weights that it would have in memory.
    pub weights: &'static str,
    /// Its context, in tokens.
    pub context: usize,
    /// It gives vectors and writes no text.
    pub is_encoder: bool,
}

/// Where models come from.
pub trait Catalog: Send + Sync {
    /// Those that there are now, beside the first. One whose files have changed is what they say from its next load on.
    fn models(&self) -> Vec<KnownModel>;

    /// Whether requests may have models downloaded and removed.
    fn may_pull(&self) -> bool {
        false
    }

    /// Downloads a model of the hub. Blocks. `progress` says whether it goes on.
    fn pull(&self, name: &str, progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool) -> ApiResult<()>;

    /// Removes a model from the cache. Blocks. `in_memory`: whether that of this first name is, beside the first model.
    fn delete(&self, name: &str, in_memory: &dyn Fn(&str) -> bool) -> ApiResult<()>;

    /// Starts an engine for the model of this name, or says why not. Blocks; others serve meanwhile.
    fn start(&self, name: &str, report: &LoadingReport) -> Result<Arc<dyn Observe>, String>;
}

/// Models beside the one that a server is started with.
pub struct OtherModels {
    /// Which there are.
    pub catalog: Arc<dyn Catalog>,
    /// How they share the memory.
    pub rules: Rules,
}

/// A model in memory beside the first.
#[derive(Clone)]
pub(crate) struct Guest {
    app: Arc<App>,
    router: Router,
    /// On which the end of what it does in the background is waited for.
    runtime: tokio::runtime::Handle,
}

impl ResidentModel for Guest {
    fn bytes(&self) -> u64 {
        let model = self.app.engine.model();
        // A tenth for what steps need beside them.
        (model.weight_bytes + model.kv_bytes) as u64 / 10 * 11
    }

    fn close(self) {
        let Guest { app, runtime, .. } = self;
        app.drain.begin();
        runtime.block_on(app.drain.background_ended());
        app.engine.stop();
        tracing::info!(model = app.model.names[0], "a model leaves");
        app.telemetry.access.finish(LAST_WORDS);
        app.telemetry.exporter.iter().for_each(|exporter| exporter.finish(LAST_WORDS));
        let begun = Instant::now();
        while !app.engine.health().dead && begun.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The models beside the first, and how they are found.
pub(crate) struct Several {
    catalog: Arc<dyn Catalog>,
    manager: Manager<Guest>,
    known: Mutex<KnownModels>,
    /// Room for bodies that wait.
    waiting: Arc<Semaphore>,
    /// Names of models that are being downloaded or removed.
    pulls: Claims,
}

#[derive(Default)]
struct KnownModels {
    models: Vec<(KnownModel, ModelId)>,
    /// Those of them that the catalog has now.
    there: BTreeSet<ModelId>,
    asked: Option<Instant>,
}

impl KnownModels {
    fn all_there(&self) -> Vec<(KnownModel, ModelId)> {
        self.models.iter().filter(|(_, id)| self.there.contains(id)).cloned().collect()
    }
}

/// What a body says before it is read whole.
#[derive(Deserialize)]
struct Peeked {
    model: Option<String>,
    /// Ollama's older name of it.
    name: Option<Value>,
    keep_alive: Option<Value>,
    stream: Option<Value>,
    prompt: Option<Value>,
    messages: Option<Value>,
}

impl Peeked {
    fn asked_for(&self) -> Option<String> {
        self.model.clone().or_else(|| self.name.as_ref()?.as_str().map(str::to_owned))
    }
}

impl Several {
    /// Call it inside the runtime that serves.
    pub(crate) fn new(others: OtherModels, options: &ServerOptions, store: Store) -> Arc<Several> {
        let OtherModels { catalog, rules } = others;
        let runtime = tokio::runtime::Handle::current();
        // Set once it is there: the loader needs the names of what is known.
        Arc::new_cyclic(|several: &std::sync::Weak<Several>| {
            let (several, catalog_of_loader, options) = (several.clone(), catalog.clone(), options.clone());
            let load = move |id: ModelId, report: &LoadingReport| {
                let several = several.upgrade().ok_or("the server is shutting down")?;
                let names = several.names(id);
                let begun = Instant::now();
                let engine = catalog_of_loader.start(&names[0], report).inspect_err(|error| {
                    tracing::error!(model = names[0], %error, "a model could not be loaded");
                })?;
                tracing::info!(model = names[0], ms = begun.elapsed().as_millis() as u64, "a model was loaded");
                let options = ServerOptions { served_model_names: names, ..options.clone() };
                let app = Arc::new(App::new(engine, &options, own_origin(), None, store.clone()));
                Ok(Guest { router: routes::of_guest(app.clone()), app, runtime: runtime.clone() })
            };
            Several {
                catalog,
                manager: Manager::new(rules, load),
                known: Mutex::default(),
                waiting: Arc::new(Semaphore::new(WAITING_BYTES >> 10)),
                pulls: Claims::default(),
            }
        })
    }

    /// Loads and unloads as time goes by.
    pub(crate) async fn run(self: &Arc<Self>) {
        self.all().await;
        self.manager.run().await;
    }

    /// Takes no new request; those that run go on.
    pub(crate) fn drain(&self) {
        self.manager.close();
        for (_, guest) in self.manager.all_loaded() {
            guest.app.drain.begin();
            guest.app.engine.drain();
        }
    }

    /// What guests do without a connection is done.
    pub(crate) async fn background_ended(&self) {
        for (_, guest) in self.manager.all_loaded() {
            guest.app.drain.background_ended().await;
        }
    }

    /// Ends what runs.
    pub(crate) fn stop(&self) {
        for (_, guest) in self.manager.all_loaded() {
            guest.app.engine.stop();
            guest.app.telemetry.access.finish(LAST_WORDS);
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownModels> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self, id: ModelId) -> Vec<String> {
        let known = self.known();
        let found = known.models.iter().find(|(_, other)| *other == id);
        found.map_or_else(Vec::new, |(model, _)| model.names.clone())
    }

    /// All that there are, as of now. Reads directories, where there are some.
    fn refreshed(&self) -> Vec<(KnownModel, ModelId)> {
        let now = self.catalog.models();
        let mut known = self.known();
        known.asked = Some(Instant::now());
        known.there.clear();
        for model in now {
            let found = known.models.iter_mut().find(|(other, _)| other.names[0] == model.names[0]);
            let id = match found {
                Some((other, id)) => {
                    let is_changed = (other.changed, other.file_bytes) != (model.changed, model.file_bytes);
                    if is_changed && self.manager.renew(*id, model.facts) {
                        *other = model;
                    }
                    *id
                }
                None => {
                    let id = self.manager.add(model.facts);
                    known.models.push((model, id));
                    id
                }
            };
            known.there.insert(id);
        }
        known.all_there()
    }

    /// The model of this name. One that came since is found too.
    async fn find(self: &Arc<Self>, name: &str) -> Option<(KnownModel, ModelId)> {
        let is_it = |(model, _): &&(KnownModel, ModelId)| model.names.iter().any(|own| own == name);
        let is_fresh = {
            let known = self.known();
            if let Some(found) = known.models.iter().filter(|(_, id)| known.there.contains(id)).find(is_it) {
                return Some(found.clone());
            }
            known.asked.is_some_and(|asked| asked.elapsed() < FRESH)
        };
        if is_fresh {
            return None;
        }
        self.all().await.iter().find(is_it).cloned()
    }

    /// All that there are, read on a thread that may wait for a disk.
    async fn all(self: &Arc<Self>) -> Vec<(KnownModel, ModelId)> {
        let several = self.clone();
        tokio::task::spawn_blocking(move || several.refreshed()).await.unwrap_or_default()
    }

    /// What is said of a name that none has.
    async fn unknown(self: &Arc<Self>, app: &App, name: &str) -> ApiError {
        let others = self.all().await.into_iter().flat_map(|(model, _)| model.names);
        ApiError::unknown_model(&hub::nearest(name, app.names().into_iter().chain(others).collect()))
    }

    /// The first model's routes know the names of the others not.
    async fn with_near_names(self: &Arc<Self>, app: &App, name: &str, response: Response) -> ApiResult<Response> {
        match response.extensions().get::<ApiError>().is_some_and(ApiError::is_unknown_model) {
            true => Err(self.unknown(app, name).await),
            false => Ok(response),
        }
    }

    /// What the model says, once it may be asked. It stays in memory until that is sent.
    async fn answer(
        self: Arc<Self>,
        model: KnownModel,
        id: ModelId,
        request: Request,
        stays: Option<Option<Duration>>,
    ) -> ApiResult<Response> {
        let (begun, bytes) = (Instant::now(), request.body().size_hint().lower());
        let room = self.waiting.clone().try_acquire_many_owned((bytes >> 10) as u32 + 1);
        let room = room.map_err(|_| ApiError::overloaded(5))?;
        let entered = self.manager.enter(id).await.map_err(|refusal| refused(&model.names[0], &refusal))?;
        drop(room);
        let loaded_in = begun.elapsed();
        let mut response = passed_on(&entered.handle, request).await;
        if let Some(stays) = stays.filter(|_| response.status() == StatusCode::OK) {
            self.manager.keep_alive(id, stays);
        }
        if loaded_in >= Duration::from_millis(1) {
            response.headers_mut().insert(LOAD_MS, HeaderValue::from(loaded_in.as_millis() as u64));
        }
        Ok(response.map(|body| holding(body, entered)))
    }

    /// How far a model is that cannot be asked yet.
    fn loading(&self, id: ModelId) -> Option<String> {
        let Standing { place, percent, .. } = self.manager.standing(id);
        let percent = percent.map_or_else(String::new, |percent| format!(" {percent} %"));
        (!matches!(place, Place::Serving { closing: false, .. })).then(|| format!("loading{percent}"))
    }
}

/// Guests are asked by this server alone, which has looked at where a request comes from.
fn own_origin() -> OriginPolicy {
    let options = OriginOptions { host: "localhost", allowed_hosts: &[], allowed_origins: &[], has_keys: false };
    OriginPolicy::new(&options).expect("localhost is a name")
}

fn refused(name: &str, refusal: &Refusal) -> ApiError {
    let gib = |bytes: u64| match bytes as f64 / (1_u64 << 30) as f64 {
        gib if gib >= 1.0 => format!("{gib:.2} GiB"),
        gib => format!("{:.1} MiB", gib * 1024.0),
    };
    match refusal {
        Refusal::TooLarge { needs, room } => ApiError::model_too_large(format!(
            "{name} needs {} and there is room for {} (--memory): serve it alone, or with smaller weights (--weights) or a \
             smaller cache (--kv-cache-memory-bytes).",
            gib(*needs),
            gib(*room)
        )),
        Refusal::Failed(why) => ApiError::model_failed(format!("{name} cannot be loaded: {why}.")),
        Refusal::TooLate => ApiError::model_failed(format!("{name} was not in memory in time: ask again later.")),
        Refusal::Full => ApiError::overloaded(5),
    }
}

/// Which model a request is for, and where that is asked for.
enum Wanted {
    /// The first, or all that is the server's own.
    First,
    /// By its body.
    ByBody,
    /// By `?model=`.
    ByQuery,
    /// A request of any of them, by its name.
    Anywhere,
    /// What there is.
    List,
}

/// Routes of which the URL says the model.
const BY_QUERY: [&str; 10] = [
    "/live/info",
    "/live/feed",
    "/live/trace",
    "/live/whatif",
    "/live/pause",
    "/live/step",
    "/live/resume",
    "/v1/requests",
    "/props",
    "/slots",
];
/// Routes whose body is no request of a model, or has it elsewhere.
const OWN_BODIES: [&str; 12] = [
    "/v1/files",
    "/v1/batches",
    "/v1/batches/{id}/cancel",
    "/v1/responses/{id}/cancel",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/lora-adapters",
    "/role",
    "/ping",
    "/plan",
    "/live/pause",
    "/api/pull",
];

impl Wanted {
    fn of(method: &Method, route: &str) -> Wanted {
        match route {
            "/v1/models" | "/models" | "/v1/models/{*model}" | "/api/tags" | "/api/ps" | "/metrics" => Wanted::List,
            "/v1/requests/{id}/timeline" | "/v1/requests/{id}/without/{other}" => Wanted::Anywhere,
            route if BY_QUERY.contains(&route) => Wanted::ByQuery,
            route if *method == Method::POST && !OWN_BODIES.contains(&route) => Wanted::ByBody,
            _ => Wanted::First,
        }
    }
}

/// Takes a request to the model that it is for.
pub(crate) async fn dispatch(app: Arc<App>, several: Option<Arc<Several>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let wanted = Wanted::of(request.method(), route);
    if let (Wanted::ByQuery, Some(_)) = (&wanted, request.uri().query()) {
        return by_query(&app, several.as_ref(), request, next).await.unwrap_or_else(ApiError::into_response);
    }
    let Some(several) = several else { return next.run(request).await };
    match wanted {
        Wanted::First | Wanted::ByQuery => {
            let mut request = request;
            request.extensions_mut().insert(several);
            next.run(request).await
        }
        Wanted::ByBody => by_body(&app, &several, request, next).await.unwrap_or_else(ApiError::into_response),
        Wanted::Anywhere => anywhere(&app, &several, request, next).await,
        Wanted::List => listing::answer(&app, &several, request, next).await,
    }
}

/// `?model=` names one of those in memory; it is taken out of the query, which the route knows nothing of.
async fn by_query(
    app: &Arc<App>,
    several: Option<&Arc<Several>>,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    let query = request.uri().query().unwrap_or_default();
    let Some((_, name)) = query::pairs(query).find(|(name, _)| name == "model") else {
        return Ok(next.run(request).await);
    };
    let name = name.into_owned();
    let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("model=")).collect();
    let path = request.uri().path();
    let target = if rest.is_empty() { path.to_owned() } else { format!("{path}?{}", rest.join("&")) };
    *request.uri_mut() = target.parse::<Uri>().map_err(|_| ApiError::unknown_route())?;
    if app.serves(&name) {
        return Ok(next.run(request).await);
    }
    let Some(several) = several else { return Err(app.unknown_model(&name)) };
    let Some((model, id)) = several.find(&name).await else { return Err(several.unknown(app, &name).await) };
    // Who only looks loads nothing.
    let guest = several.manager.peek(id).ok_or_else(|| ApiError::model_not_loaded(&model.names[0]))?;
    Ok(passed_on(&guest, request).await)
}

/// The body names the model. Read here, it is read again by the routes of that one.
async fn by_body(app: &Arc<App>, several: &Arc<Several>, request: Request, next: Next) -> ApiResult<Response> {
    let (head, body) = request.into_parts();
    let tenant = head.extensions.get::<Caller>().and_then(|caller| caller.tenant);
    let (patience, mut room) = (app.settings.patience, app.text.room(tenant));
    let limit = app.settings.body_limit as u64;
    let bytes = Arriving::new(&head.headers, body, limit, patience.quiet, patience.body)?.collect(&mut room).await?;
    drop(room);
    let route = head.extensions.get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
    let peeked: Option<Peeked> = serde_json::from_slice(&bytes).ok();
    let again = |head, bytes: &[u8]| Request::from_parts(head, Body::from(bytes.to_vec()));
    // What is wrong with it the routes say.
    let Some(name) = peeked.as_ref().and_then(Peeked::asked_for) else {
        return Ok(next.run(again(head, &bytes)).await);
    };
    let is_first = app.serves(&name) || ollama::served(app, &name).is_some();
    let is_ollamas = route.starts_with("/api/");
    // The tag is Ollama's alone.
    let found = match (is_first, name.strip_suffix(":latest").filter(|_| is_ollamas)) {
        (true, _) => None,
        (false, Some(plain)) => several.find(plain).await,
        (false, None) => several.find(&name).await,
    };
    let Some((model, id)) = found else {
        let response = next.run(again(head, &bytes)).await;
        return several.with_near_names(app, &name, response).await;
    };
    if route == "/api/show" && several.manager.peek(id).is_none() {
        return Ok(listing::shown(&model));
    }
    let peeked = peeked.expect("it has a name");
    let stays = peeked.keep_alive.as_ref().map(keep_alive::read).transpose()?;
    if let Some(stays) = stays {
        let is_empty = |value: &Option<Value>| match value {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(_) => false,
        };
        let is_for_none = is_empty(&peeked.prompt) && is_empty(&peeked.messages);
        if stays == Some(Duration::ZERO) && is_for_none && matches!(&*route, "/api/chat" | "/api/generate") {
            app.keys.check(Right::Models, tenant.as_ref())?;
            several.manager.dismiss(id);
            return Ok(listing::unloaded(app, &name, &route));
        }
    }
    let is_streamed = peeked.stream == Some(Value::Bool(true)) && openapi::streams_events(&route);
    let format = ErrorFormat::of(&route, &head.headers).unwrap_or(ErrorFormat::OpenAi);
    let answer = several.clone().answer(model, id, again(head, &bytes), stays);
    if !is_streamed {
        return answer.await;
    }
    let several = several.clone();
    held(answer, format, move || several.loading(id)).await
}

/// The first of the models that knows the request's name.
async fn anywhere(app: &Arc<App>, several: &Arc<Several>, request: Request, next: Next) -> Response {
    let (mut head, _) = request.into_parts();
    let guests = several.manager.all_loaded();
    let apps = guests.iter().map(|(_, guest)| guest.app.clone());
    head.extensions.insert(InMemory(std::iter::once(app.clone()).chain(apps).collect()));
    let again = || Request::from_parts(head.clone(), Body::empty());
    let first = next.run(again()).await;
    if first.status() != StatusCode::NOT_FOUND {
        return first;
    }
    for (_, guest) in guests {
        let response = passed_on(&guest, again()).await;
        if response.status() != StatusCode::NOT_FOUND {
            return response;
        }
    }
    first
}

/// All models in memory, for what is told of a request that waited for another model's.
#[derive(Clone)]
pub(crate) struct InMemory(pub(crate) Vec<Arc<App>>);

/// The routes of a guest, asked for the same. What the first's router has written into the request stays here.
async fn passed_on(guest: &Guest, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let mut passed = Request::new(body);
    if let Some(caller) = head.extensions.remove::<Caller>() {
        passed.extensions_mut().insert(caller);
    }
    if let Some(all) = head.extensions.remove::<InMemory>() {
        passed.extensions_mut().insert(all);
    }
    *passed.method_mut() = head.method;
    *passed.uri_mut() = head.uri;
    *passed.headers_mut() = head.headers;
    let Ok(response) = guest.router.clone().oneshot(passed).await;
    response
}

/// The metrics of all that are in memory, as one page.
async fn all_metrics(app: &Arc<App>, several: &Arc<Several>, request: Request, next: Next) -> Response {
    let (head, _) = request.into_parts();
    let again = || Request::from_parts(head.clone(), Body::empty());
    let first = next.run(again()).await;
    if first.status() != StatusCode::OK {
        return first;
    }
    let (parts, body) = first.into_parts();
    let mut pages = vec![(app.model.names[0].clone(), text_of(body).await)];
    for (_, guest) in several.manager.all_loaded() {
        let page = passed_on(&guest, again()).await.into_body();
        pages.push((guest.app.model.names[0].clone(), text_of(page).await));
    }
    let mut response = Response::new(Body::from(metrics::merged(&pages)));
    *response.headers_mut() = parts.headers;
    response.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
    response
}

/// A page that this server has written itself.
async fn text_of(body: Body) -> String {
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
