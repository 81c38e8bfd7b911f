//! A real server on a real engine with the model of this repository, one at a time: engines have the machine's cores to
//! themselves, and "no block is in use" is a statement about all requests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use checkpoint::{Checkpoint, Source};
use engine::{Engine, EngineOptions};
use model::{Forward, Standby};
use serde_json::{Value, json};
use server::{Server, ServerOptions, Stop, StopHandle};
pub(crate) use testing::wait;

use crate::client::{Answer, Connection};

/// A moment at which something that must happen has happened, or never will.
pub(crate) const LONG: Duration = Duration::from_secs(300);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The server under test.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) address: SocketAddr,
    pub(crate) stop: StopHandle,
    thread: Option<JoinHandle<()>>,
    _alone: MutexGuard<'static, ()>,
}

/// Sizes small enough that limits are easy to reach.
pub(crate) fn small_engine() -> EngineOptions {
    EngineOptions {
        threads: Some(1),
        max_model_len: Some(1024),
        max_num_seqs: 16,
        max_num_batched_tokens: 128,
        kv_cache_bytes: None,
        ..EngineOptions::default()
    }
}

/// Limits of a machine, as `serve` measures them.
pub(crate) fn some_limits() -> engine::DeviceLimits {
    engine::DeviceLimits {
        read_bandwidth: 20e9,
        int8_ops: 2e12,
        f32_flops: 1e11,
        ..engine::DeviceLimits::of_rate(1e12, &[1.0; 5])
    }
}

/// A free port of the loopback interface, and a drain that a test can wait for.
pub(crate) fn local_server() -> ServerOptions {
    ServerOptions { port: 0, served_model_names: vec!["lantern".into()], drain_limit: LONG, ..ServerOptions::default() }
}

/// That, for these API keys.
pub(crate) fn keyed(keys: &[&str]) -> ServerOptions {
    ServerOptions { api_keys: keys.iter().map(|&key| key.into()).collect(), ..local_server() }
}

impl Host {
    pub(crate) fn start() -> Host {
        Host::with(small_engine(), local_server())
    }

    pub(crate) fn with(engine: EngineOptions, server: ServerOptions) -> Host {
        Host::around(engine, server, |forward| forward)
    }

    /// With something around the model.
    pub(crate) fn around(
        engine: EngineOptions,
        server: ServerOptions,
        around: impl FnOnce(Box<dyn Forward>) -> Box<dyn Forward>,
    ) -> Host {
        Host::of(testing::lantern(), engine, server, |inner| (around(inner), None))
    }

    pub(crate) fn of(
        directory: PathBuf,
        engine: EngineOptions,
        server: ServerOptions,
        around: impl FnOnce(Box<dyn Forward>) -> (Box<dyn Forward>, Option<Standby>),
    ) -> Host {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("a model");
        let engine = Engine::start_around(&checkpoint, &engine, &mut |_| {}, around);
        let engine = engine.expect("the engine starts");
        let (handle, stop) = Stop::by_hand();
        let (sender, receiver) = mpsc::channel();
        let served = engine.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(served, server).await.expect("a free port");
                sender.send(server.address().socket().expect("it listens at a port")).unwrap();
                server.run(stop).await;
            });
        });
        let address = receiver.recv().expect("the server listens");
        Host { engine, address, stop: handle, thread: Some(thread), _alone: alone }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    /// Begins a request of this API key.
    pub(crate) fn begin(&self, key: &str, method: &str, path: &str, body: &str) -> Connection {
        let mut connection = self.connect();
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", &bearer), ("connection", "close")];
        connection.request(method, path, &headers, body.as_bytes());
        connection
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut connection = self.connect();
        connection.request(method, path, headers, body);
        connection.answer()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[("connection", "close")], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub(crate) fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        self.send("POST", path, &[("content-type", "application/json"), ("connection", "close")], body)
    }

    /// Posts and expects 200 and JSON.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{body} -> {}", answer.text());
        answer.json()
    }

    /// Posts with `stream: true` and expects events up to `[DONE]`.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let answer = self.post(path, &body);
        assert_eq!(answer.status, 200, "{body} -> {}", answer.text());
        let (events, done) = answer.events();
        assert!(done, "no [DONE]: {}", answer.text());
        events
    }

    /// A sample of `/metrics` without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        metric(self.get("/metrics").text(), name)
    }

    /// Holds the engine: what runs now lasts until `resume`, however late this thread comes to look at it.
    pub(crate) fn pause(&self) {
        assert!(now(self.engine.pause()));
    }

    pub(crate) fn resume(&self) {
        assert!(!now(self.engine.resume()));
    }

    /// Moves a held engine into the answer of the first request, by a few tokens.
    pub(crate) fn step_into(&self, tokens: u64) {
        wait("the request to come", || self.engine.health().open_requests > 0);
        let begun = self.engine.stats().decode_tokens;
        while self.engine.stats().decode_tokens <= begun + tokens {
            let before = self.engine.stats().steps;
            assert!(self.try_step());
            wait("the step", || self.engine.stats().steps > before);
        }
    }

    /// One step of a held engine, if it has something to do. Whether it is held.
    pub(crate) fn try_step(&self) -> bool {
        now(self.engine.single_step())
    }

    /// Waits until nothing is open, then checks that nothing is held: a leaked block would stay.
    pub(crate) fn quiet(&self) {
        wait("all requests to end", || self.engine.health().open_requests == 0);
        wait("all blocks to be free", || self.engine.stats().used_blocks == 0);
        let stats = self.engine.stats();
        assert_eq!((stats.running_requests, stats.waiting_requests, stats.waiting_tokens), (0, 0, 0));
    }

    /// Waits until the server has ended by itself.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends without a panic");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.now();
        if std::thread::panicking() {
            return;
        }
        self.join();
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// A sample without labels on a page of metrics.
pub(crate) fn metric(page: &str, name: &str) -> f64 {
    let sample = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    sample.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
}

/// Clients with known greedy prompts that ask again and again while something else happens. Whatever that is, each of
/// their answers must be the one they get alone, to the byte.
pub(crate) struct Canaries {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<usize>>,
}

const CANARY_PROMPTS: [&str; 4] =
    ["Once upon a time there was", "The fox looked at the", "One day, a little", "In the morning the lantern"];

impl Canaries {
    pub(crate) fn start(host: &Host) -> Canaries {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |prompt: &'static str| {
            let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2});
            let alone = host.ask("/v1/completions", &body)["choices"].to_string();
            let (address, stop) = (host.address, stop.clone());
            let body = body.to_string();
            std::thread::spawn(move || {
                let mut answers = 0;
                while !stop.load(Ordering::Relaxed) || answers == 0 {
                    let mut connection = Connection::open(address);
                    let headers = [("content-type", "application/json"), ("connection", "close")];
                    connection.request("POST", "/v1/completions", &headers, body.as_bytes());
                    let answer = connection.answer();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert_eq!(answer.json()["choices"].to_string(), alone, "a canary's answer changed");
                    answers += 1;
                }
                answers
            })
        };
        Canaries { clients: CANARY_PROMPTS.into_iter().map(client).collect(), stop }
    }

    /// Ends them; fails if an answer of theirs had changed.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            assert!(client.join().expect("canaries are untouched by others' requests") > 0);
        }
    }
}
