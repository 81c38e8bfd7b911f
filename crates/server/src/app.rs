//! What every handler shares: the engine, the limits, and the work that must not run on the threads that serve
//! connections.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use engine::receipt::Provenance;
use engine::{Observe, Prompt, RawRequest, Rejection, ValidatedRequest};
use http_body_util::BodyExt;
use roofline::Demands;
use tokio::sync::{OnceCell, Semaphore};

use crate::ServerOptions;
use crate::access::AccessLog;
use crate::arriving::{Arriving, Patience};
use crate::auth::{ApiKeys, HoldToken, Right, Tenant};
use crate::batch::BatchStore;
use crate::charge::AnswerMemory;
use crate::conversation::ToolFormat;
use crate::drain::Drain;
use crate::error::ApiError;
use crate::ids::Ids;
use crate::metrics::HttpMetrics;
use crate::openapi::CachedDocument;
use crate::origin::OriginPolicy;
use crate::otel::Exporter;
use crate::prepare_pool::{PreparePool, Room};
use crate::responses::Store;
use crate::time_format::unix_seconds;
use crate::timeline::{Reader, Registry};

pub(crate) const MOST_READERS: usize = 16;
/// Memory that all open answers together may take.
const ANSWER_BUDGET: u64 = 256 << 20;
/// Values in a body; a model with a longer context takes twice its tokens. A value takes up to 100 bytes of memory, and
/// as little as two bytes of the body.
const MOST_VALUES: usize = 1 << 18;

pub(crate) struct App {
    /// Who answers: the one place that says so.
    pub(crate) engine: Arc<dyn Observe>,
    /// Names that the model answers to, the first being its own.
    pub(crate) models: Vec<String>,
    /// Whether requests may load adapters.
    pub(crate) runtime_adapters: bool,
    /// Names of the adapters that were there at the start: the operator's.
    pub(crate) first_adapters: Vec<String>,
    pub(crate) keys: ApiKeys,
    /// Whose pages may ask.
    pub(crate) origin_policy: OriginPolicy,
    pub(crate) http: HttpMetrics,
    /// Which names answers were given.
    pub(crate) registry: Arc<Registry>,
    /// Responses that are kept.
    pub(crate) responses: Store,
    /// How the model thinks and calls tools.
    pub(crate) tool_format: ToolFormat,
    /// What is written down of requests that are over.
    pub(crate) access: Arc<AccessLog>,
    pub(crate) exporter: Option<Arc<Exporter>>,
    /// Seconds since 1970 at the start.
    pub(crate) started: u64,
    /// Whether the page and what it is made of are served.
    pub(crate) ui: bool,
    /// Files and batches, where they are kept.
    pub(crate) batch_store: Option<Arc<BatchStore>>,
    /// Whether a `max_tokens` beyond the context is cut.
    pub(crate) cut_max_tokens: bool,
    /// The document of the API.
    pub(crate) openapi: OnceLock<CachedDocument>,
    /// What paths may begin with; empty or `/...` without a slash at its end.
    pub(crate) root_path: Arc<str>,
    /// Most log probabilities per token; -1: of the whole vocabulary.
    max_logprobs: i64,
    /// Whether a request may bring a chat template.
    pub(crate) trusts_templates: bool,
    /// What those bring who may hold the engine, and how long it stays held when they have left.
    pub(crate) hold_token: Option<HoldToken>,
    pub(crate) pause_limit: Duration,
    /// What the model's passes ask of the machine.
    pub(crate) demands: Demands,
    /// Seats of those who watch.
    pub(crate) readers: Arc<Semaphore>,
    /// Whose turn it is to simulate.
    pub(crate) simulations: Arc<Semaphore>,
    /// Whose turn it is to have a trace written.
    pub(crate) traces: Arc<Semaphore>,
    pub(crate) drain: Drain,
    /// Memory for answers that are not read yet.
    pub(crate) answers: Arc<AnswerMemory>,
    /// Where text is worked on.
    pub(crate) text: PreparePool,
    /// Where what takes a millisecond to write is written: one at a time, so that a key's many leave the serving threads
    /// to others.
    pages: PreparePool,
    basis: OnceCell<Provenance>,
    body_limit: usize,
    pub(crate) patience: Patience,
    pub(crate) ids: Ids,
}

impl App {
    pub(crate) fn new(
        engine: Arc<dyn Observe>,
        options: &ServerOptions,
        origin_policy: OriginPolicy,
        batch_store: Option<Arc<BatchStore>>,
        responses: Store,
    ) -> App {
        let names = &options.served_model_names;
        let (registry, http) = (Arc::new(Registry::default()), HttpMetrics::default());
        let models = if names.is_empty() { vec![engine.model().name.clone()] } else { names.clone() };
        App {
            models,
            runtime_adapters: options.runtime_adapters,
            first_adapters: engine.model().adapters.list().into_iter().map(|adapter| adapter.name).collect(),
            keys: ApiKeys::new(&options.api_keys),
            origin_policy,
            access: AccessLog::start(engine.clone(), registry.clone(), options.slow, http.thoughts.clone()),
            http,
            registry,
            responses,
            tool_format: ToolFormat::of(engine.model(), &options.parsers),
            exporter: options.otel.clone().map(|otel| Exporter::start(otel, engine.clone())),
            started: unix_seconds(),
            ui: options.ui,
            batch_store,
            cut_max_tokens: options.cut_max_tokens,
            openapi: OnceLock::new(),
            root_path: options.root_path.trim_end_matches('/').into(),
            max_logprobs: options.max_logprobs,
            trusts_templates: options.trust_request_chat_template,
            hold_token: options.hold_token.as_deref().map(HoldToken::new),
            pause_limit: options.pause_limit,
            demands: engine.model().demands(),
            readers: Arc::new(Semaphore::new(MOST_READERS)),
            simulations: Arc::new(Semaphore::new(1)),
            traces: Arc::new(Semaphore::new(1)),
            drain: Drain::default(),
            answers: AnswerMemory::new(ANSWER_BUDGET, options.api_keys.len() > 1),
            text: PreparePool::new(options.text_workers, options.body_limit),
            pages: PreparePool::new(1, 0),
            basis: OnceCell::new(),
            body_limit: options.body_limit,
            patience: options.patience,
            ids: Ids::new(),
            engine,
        }
    }

    /// Every name that a request may ask for: the model's, then those of adapters.
    pub(crate) fn names(&self) -> Vec<String> {
        let adapters = self.engine.model().adapters.list().into_iter().map(|adapter| adapter.name);
        self.models.iter().cloned().chain(adapters).collect()
    }

    /// Whether a request may ask for it.
    pub(crate) fn serves(&self, name: &str) -> bool {
        self.models.iter().any(|own| own == name) || self.engine.model().adapters.has(name)
    }

    /// The engine's door, for what was asked of the model of this name.
    pub(crate) fn validate(&self, raw: RawRequest, model: &str) -> Result<ValidatedRequest, Rejection> {
        let is_own = self.models.iter().any(|own| own == model);
        self.engine.validate(RawRequest { adapter: (!is_own).then(|| model.to_owned()), ..raw })
    }

    /// Seconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        unix_seconds()
    }

    /// A request as this server makes them, with every field of its own left to its default.
    pub(crate) fn request(&self, prompt: Prompt, tenant: Option<Tenant>) -> RawRequest {
        RawRequest {
            tenant,
            may_be_urgent: self.keys.may(Right::Urgency, tenant.as_ref()),
            cut_max_tokens: self.cut_max_tokens,
            max_logprobs: self.max_logprobs,
            now: Some(self.now() as i64),
            ..RawRequest::new(prompt)
        }
    }

    /// What all receipts share, under the model's name as this caller knows it. The first one waits while every weight
    /// is read; a failure is tried again by the next.
    pub(crate) async fn basis(self: &Arc<App>, model: &str) -> Result<Provenance, ApiError> {
        let app = self.clone();
        let read = || async {
            let read = tokio::task::spawn_blocking(move || app.engine.model().basis(""));
            let read = read.await.map_err(|_| ApiError::internal())?;
            read.map_err(|error| {
                tracing::error!(%error, "no digest of the weights, so no receipts");
                ApiError::no_receipts()
            })
        };
        let basis = self.basis.get_or_try_init(read).await?;
        Ok(Provenance { model: model.to_owned(), ..basis.clone() })
    }

    /// What a tenant may see of where time went.
    pub(crate) fn reader(&self, tenant: Option<Tenant>) -> Reader<'_> {
        Reader { engine: &*self.engine, registry: &self.registry, tenant }
    }

    /// Token ids as text, special tokens shown.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        self.engine.model().tokenizer.as_ref().map_or_else(String::new, |tokenizer| tokenizer.decode(ids, false))
    }

    /// Reads a JSON body and hands it to `work` on a thread of the text pool: parsing, templates and tokenizers take
    /// time in proportion to what a stranger sent. The tenant is charged for it.
    pub(crate) async fn with_json<T: Send + 'static>(
        self: &Arc<App>,
        headers: &HeaderMap,
        body: Body,
        tenant: Option<Tenant>,
        work: impl FnOnce(serde_json::Value, &App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        check_content_type(headers)?;
        let (bytes, room) = self.read(headers, body, tenant).await?;
        let app = self.clone();
        let most_values = MOST_VALUES.max(2 * self.engine.model().max_model_len);
        let job = move || {
            let value = crate::json::parse(&bytes, most_values)?;
            drop(bytes);
            work(value, &app)
        };
        self.text.run(room, job).await
    }

    /// What `work` writes, when it is the tenant's turn.
    pub(crate) async fn in_turn<T: Send + 'static>(
        self: &Arc<App>,
        tenant: Option<Tenant>,
        work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = self.clone();
        self.pages.run(self.pages.room(tenant), move || work(&app)).await
    }

    /// Collects a body within its limits of size, time and memory.
    async fn read(&self, headers: &HeaderMap, body: Body, tenant: Option<Tenant>) -> Result<(Vec<u8>, Room), ApiError> {
        let patience = self.patience;
        let mut body = Arriving::new(headers, body, self.body_limit as u64, patience.quiet, patience.body)?;
        let mut bytes: Vec<u8> = Vec::new();
        let mut room = self.text.room(tenant);
        // Memory is taken for what has arrived, not for what was announced: a client that promises much and sends little
        // holds little.
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|unread| ApiError::from(&unread))?.into_data() else { continue };
            room.grow(data.len())?;
            bytes.extend_from_slice(&data);
        }
        Ok((bytes, room))
    }
}

/// JSON in UTF-8, as it is: no other type, no other character set, no compression. A body without a type is JSON, and so
/// is one of type `application/octet-stream`, which says no more: LiteLLM sends either to Ollama. No form of a page can
/// send these, and a script's request names its origin.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(ApiError::unsupported_media_type("Compressed request bodies are not supported."));
    }
    let wrong =
        ApiError::unsupported_media_type("The request body must be JSON: send 'Content-Type: application/json'.");
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(value) = types.next() else { return Ok(()) };
    if types.next().is_some() {
        return Err(wrong);
    }
    let Ok(value) = value.to_str() else { return Err(wrong) };
    let mut parts = value.split(';').map(str::trim);
    let types = ["application/json", "application/octet-stream"];
    let is_json = parts.next().is_some_and(|kind| types.iter().any(|json| kind.eq_ignore_ascii_case(json)));
    let is_utf8 = parts.all(|part| match part.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        _ => true,
    });
    if is_json && is_utf8 { Ok(()) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_in_utf8_is_read() {
        let check = |types: &[&str]| {
            let headers = types.iter().map(|kind| (header::CONTENT_TYPE, kind.parse().unwrap())).collect();
            check_content_type(&headers).is_ok()
        };
        let octets = "application/octet-stream";
        for good in
            [octets, "application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\"; x=y"]
        {
            assert!(check(&[good]), "{good}");
        }
        for bad in ["", "text/plain", "application/jsonp", "application/json; charset=utf-16", "*/*"] {
            assert!(!check(&[bad]), "{bad}");
        }
        assert!(check(&[]));
        assert!(!check(&["application/json", "application/json"]));
    }
}
