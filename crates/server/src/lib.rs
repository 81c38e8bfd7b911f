//! The only crate that knows the HTTP APIs, over HTTP/1.1: OpenAI's routes with vLLM's additions, and those of others.
//!
//! ```text
//! socket --listen--> request --routes--> auth --> json --> fields --> openai::{chat, completions} --> engine's door
//!                                                                                                         |
//! socket <---------- JSON body or one event per token <-------- answers <-- engine::Stream <-------------+
//! ```
//!
//! Three promises hold on every route:
//! - A field is honoured, or refused with 400 and its name, or one of a closed list that change no token (`openai::hints`)
//!   and named in the answer. No field is dropped in silence.
//! - Everything a stranger can make large or slow has a limit: bodies, headers, depth, time to read, time to write,
//!   connections. What is wrong with a request is found before the engine hears of it.
//! - What is sent back about an error is fixed text and checked numbers, in the one shape that each API has.
//!
//! A client that goes away cancels what it asked for, streaming or not: the handler is dropped, with it the engine's
//! stream, and the blocks are free within one step.

mod adapters;
mod answers;
mod anthropic;
mod app;
mod ask;
mod batch;
mod charge;
mod conversation;
mod endpoint;
mod live;
mod llama;
mod ollama;
mod openai;
mod openapi;
mod order;
mod plan;
mod responses;
mod role;
mod routes;
mod sampling;
mod served_model;
mod settings;
mod several;
mod vectors;
mod without;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use batches::{BatchStore, LocalServer};
use engine::Observe;
use transport::listen::Listener;
use transport::origin::{OriginOptions, OriginPolicy, Unusable};
use transport::socket::Socket;

use crate::app::App;
use crate::responses::Store;
use crate::several::Several;

pub use conversation::ParserOptions;
pub use openai::hints::hints;
pub use openapi::reference as api_reference;
pub use routes::routes;
pub use several::{Catalog, KnownModel, OtherModels};
pub use telemetry::access::SlowOptions;
pub use telemetry::otel::OtelOptions;
pub use transport::arriving::Patience;
pub use transport::auth::ApiKey;
pub use transport::error::ApiError;
pub use transport::hints::Hint;
pub use transport::keep_alive::keep_alive;
pub use transport::socket::{Address, TlsFiles};
pub use transport::stop::{Stop, StopHandle, StopStage, hangups};

/// After the drain limit: time for the requests that were ended by it to say so to their clients.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Addresses, and who may ask.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name or address to listen on.
    pub host: String,
    /// 0: a free one, see [`Server::address`].
    pub port: u16,
    /// Listen at this Unix socket in place of host and port.
    pub unix_socket: Option<PathBuf>,
    /// Speak TLS, with this certificate.
    pub tls: Option<TlsFiles>,
    /// What paths may begin with, because a proxy leads there what begins so (`/llm`).
    pub root_path: String,
    /// Keys of which a request must bring one; none at all: no key is asked for. Each key is a tenant of its own:
    /// prefix cache blocks are not shared between them.
    pub api_keys: Vec<ApiKey>,
    /// Names that requests may give in `Host`, beside `localhost`, what ends in it, addresses and `host` itself.
    /// Without any, a server with keys takes every name: a page whose name was rebound to this machine has no key.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://app.example`) whose pages may ask and read the answers; a browser gets CORS headers for them. No
    /// other page of another origin may, unless it has a key.
    pub allowed_origins: Vec<String>,
    /// Names that the model answers to, the first being the one it gives itself; none: the checkpoint's.
    pub served_model_names: Vec<String>,
    /// Cut a `max_tokens` beyond the context to what the context leaves, and say so in the answer; else refuse it.
    pub cut_max_tokens: bool,
    /// Log probabilities per token that a request may ask for; -1: of the whole vocabulary.
    pub max_logprobs: i64,
    /// Take `chat_template` in requests: a program that renders the conversation in place of the model's.
    pub trust_request_chat_template: bool,
    /// Where responses are kept; without it in memory.
    pub store_directory: Option<PathBuf>,
    /// Let requests load adapters from directories of this machine, and unload them.
    pub runtime_adapters: bool,
    /// Where files and batches are kept; without it there are none.
    pub batch_directory: Option<PathBuf>,
    /// Bytes of a request body.
    pub body_limit: usize,
    /// How long a body may take.
    pub patience: Patience,
    /// Connections at once; lowered to what the limit of open files allows. Further ones wait to be accepted.
    pub max_connections: usize,
    /// Threads at work on parsing, templates and tokenizers.
    pub text_workers: usize,
    /// How long a drain waits for running requests.
    pub drain_limit: Duration,
    /// Serve the page at `/` and the routes that it is made of.
    pub ui: bool,
    /// Token that allows pausing and single-stepping the engine; `None`: not allowed.
    pub hold_token: Option<String>,
    /// After the last of them has left: how long it stays held.
    pub pause_limit: Duration,
    /// Where spans of requests go; nowhere by default.
    pub otel: Option<OtelOptions>,
    /// Which requests are worth a warning in the log.
    pub slow: SlowOptions,
    /// How the model thinks and calls tools, where its chat template does not show it.
    pub parsers: ParserOptions,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            unix_socket: None,
            tls: None,
            root_path: String::new(),
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            served_model_names: Vec::new(),
            cut_max_tokens: true,
            max_logprobs: engine::MAX_LOGPROBS,
            trust_request_chat_template: false,
            store_directory: None,
            runtime_adapters: false,
            batch_directory: None,
            body_limit: 8 << 20,
            patience: Patience::default(),
            max_connections: 4096,
            text_workers: 2,
            drain_limit: Duration::from_secs(30),
            ui: true,
            hold_token: None,
            pause_limit: Duration::from_secs(30),
            otel: None,
            slow: SlowOptions::default(),
            parsers: ParserOptions::default(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The host is no address and no name of one.
    #[error("cannot resolve the host '{host}': {source}")]
    Resolve {
        /// As it was given.
        host: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address is taken, or not ours.
    #[error("cannot listen on {host}:{port}: {source}")]
    Bind {
        /// As it was given.
        host: String,
        /// As it was given.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// The Unix socket cannot be made.
    #[error("--uds: cannot listen at {path}: {source}")]
    Unix {
        /// As it was given.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A certificate or a key that is none.
    #[error("{flag}: {file}: {problem}")]
    Tls {
        /// Which of the two.
        flag: &'static str,
        /// As it was given.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A prefix that no path could have.
    #[error("--root-path: '{0}' is no path: it begins with '/' and has neither '?' nor '#'")]
    RootPath(String),
    /// An empty key would admit clients without one.
    #[error("an API key must not be empty")]
    EmptyApiKey,
    /// A name that no request could have in `Host`.
    #[error("--allowed-host: '{0}' is no name of a server: give it without scheme, port and path, in ASCII")]
    HostName(String),
    /// An origin that no browser could send.
    #[error("--allowed-origin: '{0}' is no origin: give scheme, host and port alone, as in https://app.example")]
    Origin(String),
    /// The directory of batches cannot be had.
    #[error("--batch-dir: {directory}: {source}")]
    Batches {
        /// As it was given.
        directory: String,
        /// Why.
        source: std::io::Error,
    },
    /// The directory of responses cannot be had.
    #[error("--store: {directory}: {source}")]
    Store {
        /// As it was given.
        directory: String,
        /// Why.
        source: std::io::Error,
    },
    /// Two things of one name.
    #[error("--lora-modules: '{0}' is a name of the model itself")]
    AdapterName(String),
    /// A name that no request could ask for.
    #[error("a served model name must not be empty")]
    EmptyModelName,
}

/// A server that answers lines of files in this process: of what concerns answers `options` count; addresses, keys and
/// origins do not.
pub fn local(engine: impl Observe + 'static, options: &ServerOptions) -> Result<LocalServer, ServeError> {
    if options.served_model_names.iter().any(String::is_empty) {
        return Err(ServeError::EmptyModelName);
    }
    let policy = OriginOptions { host: "localhost", allowed_hosts: &[], allowed_origins: &[], has_keys: false };
    let policy = OriginPolicy::new(&policy).expect("localhost is a name");
    Ok(routes::local(Arc::new(App::new(Arc::new(engine), options, policy, None, Store::in_memory())), None))
}

/// A server that listens and does not answer yet.
pub struct Server {
    app: Arc<App>,
    /// The models beside the first.
    several: Option<Arc<Several>>,
    listener: Listener,
    address: Address,
    drain_limit: Duration,
}

impl Server {
    /// Binds the address, for what answers: an [`Engine`](engine::Engine), or something else that can.
    ///
    /// Call it inside a tokio runtime with its time and IO drivers on.
    pub async fn bind(engine: impl Observe + 'static, options: ServerOptions) -> Result<Server, ServeError> {
        Server::bind_with(engine, None, options).await
    }

    /// The same with other models beside that of `engine`, which stays the first: it answers what names none.
    pub async fn bind_with(
        engine: impl Observe + 'static,
        others: Option<OtherModels>,
        options: ServerOptions,
    ) -> Result<Server, ServeError> {
        if options.api_keys.iter().any(|key| key.key.trim_ascii().is_empty()) {
            return Err(ServeError::EmptyApiKey);
        }
        if options.served_model_names.iter().any(String::is_empty) {
            return Err(ServeError::EmptyModelName);
        }
        let own_name = &engine.model().name;
        let names = if options.served_model_names.is_empty() {
            std::slice::from_ref(own_name)
        } else {
            &options.served_model_names
        };
        if let Some(adapter) = engine.model().adapters.list().into_iter().find(|it| names.contains(&it.name)) {
            return Err(ServeError::AdapterName(adapter.name));
        }
        let origin_policy = OriginPolicy::new(&OriginOptions {
            host: &options.host,
            allowed_hosts: &options.allowed_hosts,
            allowed_origins: &options.allowed_origins,
            has_keys: !options.api_keys.is_empty(),
        });
        let origin_policy = origin_policy.map_err(|unusable| match unusable {
            Unusable::Host(name) => ServeError::HostName(name),
            Unusable::Origin(origin) => ServeError::Origin(origin),
        })?;
        check_root_path(&options.root_path)?;
        let (socket, address) = listening(&options).await?;
        let unusable = |directory: &PathBuf| {
            let directory = directory.display().to_string();
            |source| ServeError::Batches { directory, source }
        };
        let open = |directory: &PathBuf| BatchStore::open(directory).map_err(unusable(directory));
        let batch_store = options.batch_directory.as_ref().map(open).transpose()?;
        let store = options.store_directory.as_ref().map(|directory| {
            let unusable = |source| ServeError::Store { directory: directory.display().to_string(), source };
            Store::open(directory).map_err(unusable)
        });
        let store = store.transpose()?.unwrap_or_else(Store::in_memory);
        let several = others.map(|others| Several::new(others, &options, store.clone()));
        let app = Arc::new(App::new(Arc::new(engine), &options, origin_policy, batch_store.clone(), store));
        let count = app.telemetry.http.connections.clone();
        let listener = Listener::new(socket, options.max_connections, &app.settings.root_path, count);
        if let (Some(batch_store), Some(directory)) = (batch_store, &options.batch_directory) {
            batches::worker::start(routes::local(app.clone(), several.clone()), batch_store)
                .map_err(unusable(directory))?;
        }
        Ok(Server { app, several, listener, address, drain_limit: options.drain_limit })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until `stop` says drain, then finishes what runs: new requests get 503 with Retry-After, running ones go
    /// on for the drain limit, and what is left then ends with an error. `stop` saying "now" skips the waiting.
    ///
    /// Returns when every connection is closed. The engine is stopped.
    pub async fn run(self, mut stop: Stop) {
        let Server { app, several, mut listener, drain_limit, .. } = self;
        let router = routes::router(app.clone(), several.clone());
        let residency = several.clone().map(|several| tokio::spawn(async move { several.run().await }));
        until(stop.reached(StopStage::Draining), listener.accept(&router)).await;

        tracing::info!("draining: no new requests are taken");
        app.drain.begin();
        let mut open = listener.open();
        // A request that was taken before may still begin something in the background, and none is taken now.
        let mut all_done = async || {
            let _ = open.wait_for(|open| *open == 0).await;
            app.drain.background_ended().await;
            if let Some(several) = &several {
                several.background_ended().await;
            }
        };
        let drained = async {
            let done = async {
                app.drain.asking_ended().await;
                app.engine.drain();
                several.iter().for_each(|several| several.drain());
                all_done().await;
            };
            tokio::select! {
                () = done => true,
                () = tokio::time::sleep(drain_limit) => false,
                () = stop.reached(StopStage::Now) => false,
            }
        };
        // Connections are still taken: a client that comes now learns that it should come back, and a load balancer
        // that asks for health gets an answer.
        let drained = until(drained, listener.accept(&router)).await;

        app.engine.stop();
        several.iter().for_each(|several| several.stop());
        residency.iter().for_each(tokio::task::JoinHandle::abort);
        if !drained {
            let all_told = all_done();
            let last_words = tokio::time::timeout(LAST_WORDS, until(all_told, listener.accept(&router)));
            if last_words.await.is_err() {
                tracing::warn!("some clients did not read the end of their answers");
            }
        }
        listener.close(LAST_WORDS).await;
        // Both wait, so not on a thread that serves.
        let access = app.telemetry.access.clone();
        let _ = tokio::task::spawn_blocking(move || access.finish(LAST_WORDS)).await;
        if let Some(exporter) = app.telemetry.exporter.clone() {
            let _ = tokio::task::spawn_blocking(move || exporter.finish(LAST_WORDS)).await;
        }
    }
}

/// The socket that the options say.
async fn listening(options: &ServerOptions) -> Result<(Socket, Address), ServeError> {
    if let Some(path) = &options.unix_socket {
        let refused = |source| ServeError::Unix { path: path.display().to_string(), source };
        let socket = Socket::unix(path).await.map_err(refused)?;
        let address = socket.address().map_err(refused)?;
        return Ok((socket, address));
    }
    let (host, port) = (options.host.as_str(), options.port);
    let unknown = |source| ServeError::Resolve { host: host.to_owned(), source };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.map_err(unknown)?.collect();
    let tls = options.tls.as_ref().map(|files| {
        transport::socket::acceptor(files).map_err(|bad| ServeError::Tls {
            flag: if bad.file == files.certificates { "--ssl-certfile" } else { "--ssl-keyfile" },
            file: bad.file.display().to_string(),
            problem: bad.problem,
        })
    });
    let refused = |source| ServeError::Bind { host: host.to_owned(), port, source };
    let socket = Socket::tcp(&addresses, tls.transpose()?).await.map_err(refused)?;
    let address = socket.address().map_err(refused)?;
    Ok((socket, address))
}

fn check_root_path(path: &str) -> Result<(), ServeError> {
    let is_path = path.starts_with('/') && path.parse::<axum::http::uri::PathAndQuery>().is_ok();
    if path.is_empty() || is_path && !path.contains(['?', '#']) {
        Ok(())
    } else {
        Err(ServeError::RootPath(path.to_owned()))
    }
}

/// Waits for `end` while `work`, which has none, goes on.
async fn until<T>(end: impl Future<Output = T>, work: impl Future<Output = ()>) -> T {
    tokio::select! {
        end = end => end,
        () = work => unreachable!("accepting does not end"),
    }
}
