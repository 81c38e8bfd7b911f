//! What every handler shares: the engine, the limits, and the work that must not run on the threads that serve
//! connections.

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::http::HeaderMap;
use batches::BatchStore;
use engine::receipt::Provenance;
use engine::{Observe, Prompt, RawRequest, Rejection, ValidatedRequest};
use telemetry::access::AccessLog;
use telemetry::metrics::HttpMetrics;
use telemetry::otel::Exporter;
use telemetry::time_format::unix_seconds;
use telemetry::timeline::{Reader, Registry};
use tokio::sync::Semaphore;
use transport::answer_memory::AnswerMemory;
use transport::arriving::Arriving;
use transport::auth::{ApiKeys, Right, Tenant};
use transport::drain::Drain;
use transport::error::ApiError;
use transport::ids::Ids;
use transport::json;
use transport::openapi::Rendered;
use transport::origin::OriginPolicy;
use transport::prepare_pool::PreparePool;

use crate::ServerOptions;
use crate::responses::Store;
use crate::served_model::ServedModel;
use crate::settings::Settings;

pub(crate) const MOST_READERS: usize = 16;
/// Memory that all open answers together may take.
const ANSWER_BUDGET: u64 = 256 << 20;
/// Values in a body; a model with a longer context takes twice its tokens. A value takes up to 100 bytes of memory, and
/// as little as two bytes of the body.
const MOST_VALUES: usize = 1 << 18;

pub(crate) struct App {
    /// Who answers: the one place that says so.
    pub(crate) engine: Arc<dyn Observe>,
    pub(crate) model: ServedModel,
    pub(crate) settings: Settings,
    pub(crate) keys: ApiKeys,
    /// Whose pages may ask.
    pub(crate) origin_policy: OriginPolicy,
    pub(crate) telemetry: Telemetry,
    /// Responses that are kept.
    pub(crate) responses: Store,
    /// Files and batches, where they are kept.
    pub(crate) batch_store: Option<Arc<BatchStore>>,
    /// The document of the API.
    pub(crate) openapi: OnceLock<Rendered>,
    pub(crate) permits: Permits,
    pub(crate) drain: Arc<Drain>,
    /// Memory for answers that are not read yet.
    pub(crate) answers: Arc<AnswerMemory>,
    /// Where text is worked on.
    pub(crate) text: PreparePool,
    /// Where what takes a millisecond to write is written: one at a time, so that a key's many leave the serving threads
    /// to others.
    pages: PreparePool,
    pub(crate) ids: Ids,
}

/// Where what happened to requests goes.
pub(crate) struct Telemetry {
    pub(crate) http: HttpMetrics,
    /// Which names answers were given.
    pub(crate) registry: Arc<Registry>,
    /// What is written down of requests that are over.
    pub(crate) access: Arc<AccessLog>,
    pub(crate) exporter: Option<Arc<Exporter>>,
}

impl Telemetry {
    fn start(engine: &Arc<dyn Observe>, options: &ServerOptions) -> Telemetry {
        let (registry, http) = (Arc::new(Registry::default()), HttpMetrics::default());
        Telemetry {
            access: AccessLog::start(engine.clone(), registry.clone(), options.slow, http.thoughts.clone()),
            exporter: options.otel.clone().map(|otel| Exporter::start(otel, engine.clone())),
            http,
            registry,
        }
    }
}

/// How many may do at once what keeps a thread or a connection busy.
pub(crate) struct Permits {
    /// Seats of those who watch.
    pub(crate) readers: Arc<Semaphore>,
    pub(crate) simulations: Arc<Semaphore>,
    pub(crate) traces: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(
        engine: Arc<dyn Observe>,
        options: &ServerOptions,
        origin_policy: OriginPolicy,
        batch_store: Option<Arc<BatchStore>>,
        responses: Store,
    ) -> App {
        let permits = |count| Arc::new(Semaphore::new(count));
        App {
            model: ServedModel::new(engine.model(), options),
            settings: Settings::new(options),
            keys: ApiKeys::new(&options.api_keys),
            origin_policy,
            telemetry: Telemetry::start(&engine, options),
            responses,
            batch_store,
            openapi: OnceLock::new(),
            permits: Permits { readers: permits(MOST_READERS), simulations: permits(1), traces: permits(1) },
            drain: Arc::default(),
            answers: AnswerMemory::new(ANSWER_BUDGET, options.api_keys.len() > 1),
            text: PreparePool::new(options.text_workers, options.body_limit),
            pages: PreparePool::new(1, 0),
            ids: Ids::default(),
            engine,
        }
    }

    /// Every name that a request may ask for: the model's, then those of adapters.
    pub(crate) fn names(&self) -> Vec<String> {
        let adapters = self.engine.model().adapters.list().into_iter().map(|adapter| adapter.name);
        self.model.names.iter().cloned().chain(adapters).collect()
    }

    /// Whether a request may ask for it.
    pub(crate) fn serves(&self, name: &str) -> bool {
        self.model.names.iter().any(|own| own == name) || self.engine.model().adapters.has(name)
    }

    /// What is said of a name that is not served.
    pub(crate) fn unknown_model(&self, name: &str) -> ApiError {
        ApiError::unknown_model(&hub::nearest(name, self.names()))
    }

    /// The engine's door, for what was asked of the model of this name.
    pub(crate) fn validate(&self, raw: RawRequest, model: &str) -> Result<ValidatedRequest, Rejection> {
        let is_own = self.model.names.iter().any(|own| own == model);
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
            cut_max_tokens: self.settings.cut_max_tokens,
            max_logprobs: self.settings.max_logprobs,
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
        let basis = self.model.basis.get_or_try_init(read).await?;
        Ok(Provenance { model: model.to_owned(), ..basis.clone() })
    }

    /// What a tenant may see of where time went.
    pub(crate) fn reader(&self, tenant: Option<Tenant>) -> Reader<'_> {
        Reader { engine: &*self.engine, registry: &self.telemetry.registry, tenant, others: Vec::new() }
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
        json::check_content_type(headers)?;
        let (patience, mut room) = (self.settings.patience, self.text.room(tenant));
        let body = Arriving::new(headers, body, self.settings.body_limit as u64, patience.quiet, patience.body)?;
        let bytes = body.collect(&mut room).await?;
        let app = self.clone();
        let most_values = MOST_VALUES.max(2 * self.engine.model().max_model_len);
        let job = move || {
            let value = json::parse(&bytes, most_values)?;
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
}
