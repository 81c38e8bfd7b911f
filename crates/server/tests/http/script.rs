//! The server over something that is no engine: HTTP knows the traits alone.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use checkpoint::{Checkpoint, Source};
use engine::run_history::RunHistoryWindow;
use engine::{
    AccumulationOrder, DeviceInfo, Ended, Event, FinishReason, Health, Isa, KvDtype, KvMap, LazyVocabulary, LogCursor,
    LoggedStep, ModelInfo, Observe, Origin, PauseFuture, Percentiles, RawRequest, Rejection, RemotePrefillTrace,
    RequestId, RequestSnapshot, RequestSummary, Rerun, RerunError, SecondStats, Serve, Stats, Stream, SubmitError,
    Subscription, Timeline, Timings, UnixNanos, Usage, ValidatedRequest, WeightClass,
};
use model::{GenerationDefaults, ModelConfig};
use protocol::{Nanos, Targets};
use scheduler::latency_bound::TimeBound;
use scheduler::{LatencyBound, TierSizes};
use serde_json::json;
use server::{Server, Stop};
use testing::plans;
use text::chat_template::ChatTemplate;
use text::tokenizer::Tokenizer;

use crate::client::Connection;
use crate::host::local_server;

/// Gives every request the same words, and computes nothing.
#[derive(Clone)]
struct Script(Arc<Inner>);

struct Inner {
    model: ModelInfo,
    words: &'static [&'static str],
    submitted: AtomicU64,
    /// What it promises every request at the moment 0. Then it says nothing before it was asked twice what time it is.
    promise: Option<LatencyBound>,
    asked: AtomicU64,
    /// Held while a test counts.
    counting: Mutex<()>,
}

impl Script {
    /// As if it served the model of this repository, of which it reads no weight.
    fn saying(words: &'static [&'static str], promise: Option<LatencyBound>) -> Script {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
        let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the model of this repository");
        let config = ModelConfig::load(&checkpoint).expect("it has a configuration");
        let tokenizer = Tokenizer::load(&checkpoint, config.vocab_size).expect("it has a tokenizer");
        let model = ModelInfo {
            name: "script".to_owned(),
            generation_defaults: GenerationDefaults::default(),
            eos_token_ids: Vec::new(),
            tokenizer: Some(Arc::new(tokenizer)),
            chat_template: ChatTemplate::load(&checkpoint).expect("it has a template"),
            template_fault: None,
            vocabulary: LazyVocabulary::default(),
            max_model_len: 512,
            max_num_seqs: 4,
            is_shared: false,
            max_num_batched_tokens: 64,
            block_size: 32,
            num_blocks: 64,
            spot_blocks: 0,
            states: None,
            kv_dtype: KvDtype::Bf16,
            kv_bytes: 0,
            memory_limit: None,
            weight_bytes: 0,
            expert_bytes: 0,
            swap: TierSizes::default(),
            kv_bytes_per_token: 0,
            notices: Vec::new(),
            precisions: None,
            remote_only_prefill: false,
            weights: WeightClass::Bf16,
            device: DeviceInfo::cpu(Isa::Scalar, 1),
            arithmetic: AccumulationOrder::best(),
            backend: "a script".to_owned(),
            calibrated: None,
            targets: Targets::default(),
            origin: Origin::default(),
            adapters: engine::Adapters::default(),
            config,
        };
        Script(Arc::new(Inner {
            model,
            words,
            submitted: AtomicU64::new(0),
            promise,
            asked: AtomicU64::new(0),
            counting: Mutex::new(()),
        }))
    }
}

impl Serve for Script {
    fn model(&self) -> &ModelInfo {
        &self.0.model
    }

    fn validate(&self, raw: RawRequest) -> Result<ValidatedRequest, Rejection> {
        self.0.model.validate(raw, &[0; 32])
    }

    fn submit(&self, request: ValidatedRequest) -> Result<Stream, SubmitError> {
        let id = RequestId(self.0.submitted.fetch_add(1, Ordering::Relaxed));
        let (outlet, stream) = Stream::open(id, request.prompt());
        let (inner, prompt_tokens) = (self.0.clone(), request.prompt().len());
        let say = move || {
            for (token, word) in (300..).zip(inner.words) {
                outlet.send(Event::Token { answer: 0, token, text: (*word).to_owned(), logprob: None });
            }
            let (reason, text) = (FinishReason::Length, String::new());
            outlet.send(Event::Finished { answer: 0, reason, stop_string: None, text });
            let usage = Usage { prompt_tokens, completion_tokens: inner.words.len(), cached_tokens: 0 };
            outlet.send(Event::Done { usage, timings: Timings::default() });
        };
        let Some(promise) = self.0.promise else {
            say();
            return Ok(stream);
        };
        let inner = self.0.clone();
        std::thread::spawn(move || {
            while inner.asked.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            say();
        });
        Ok(stream.with_latency_bound(promise, Nanos(0)))
    }

    fn health(&self) -> Health {
        Health { dead: false, draining: false, stuck_for: Duration::ZERO, open_requests: 0 }
    }

    fn drain(&self) {}

    fn stop(&self) {}
}

impl Observe for Script {
    fn stats(&self) -> Stats {
        let _counting = self.0.counting.lock();
        Stats::default()
    }

    fn timeline(&self, _: RequestId) -> Option<Timeline> {
        None
    }

    fn requests(&self) -> Vec<RequestSummary> {
        Vec::new()
    }

    fn request(&self, _: RequestId) -> Option<RequestSummary> {
        None
    }

    fn past(&self, _: Duration) -> RunHistoryWindow {
        RunHistoryWindow { limits: plans::small(), cost: None, answers: Vec::new(), steps: Vec::new(), preemptions: 0 }
    }

    fn run_again(&self, _: &[RequestId], _: &[RequestId], _: engine::IsWanted<'_>) -> Result<Rerun, RerunError> {
        unreachable!("no test asks for it")
    }

    fn watch(&self, _: bool) -> Box<dyn Subscription> {
        Box::new(Nothing)
    }

    fn now(&self) -> Nanos {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        Nanos(3_000_000_000)
    }

    fn since_start(&self, at: Nanos) -> Nanos {
        at
    }

    fn unix(&self, at: Nanos) -> UnixNanos {
        UnixNanos(at.0)
    }

    fn held(&self) -> Nanos {
        Nanos(0)
    }

    fn pause(&self) -> PauseFuture<'_> {
        Box::pin(async { false })
    }

    fn single_step(&self) -> PauseFuture<'_> {
        Box::pin(async { false })
    }

    fn resume(&self) -> PauseFuture<'_> {
        Box::pin(async { false })
    }

    fn is_paused(&self) -> bool {
        false
    }
}

/// There are no steps to be seen.
struct Nothing;

impl Subscription for Nothing {
    fn newest(&self) -> LogCursor {
        LogCursor { step: 0, end: 0, remote_prefill: 0 }
    }

    fn read(&self, _: &mut LogCursor, _: usize, _: &mut Vec<LoggedStep>, _: &mut Vec<Ended>) -> u64 {
        0
    }

    fn remote_prefills(&self, _: &mut LogCursor) -> Vec<(RequestId, RemotePrefillTrace)> {
        Vec::new()
    }

    fn snapshot_into(&self, _: &mut RequestSnapshot) {}

    fn map_into(&self, _: &mut KvMap) -> bool {
        false
    }

    fn seconds(&self) -> Vec<SecondStats> {
        Vec::new()
    }

    fn percentiles(&self) -> [Option<Percentiles>; 2] {
        [None; 2]
    }
}

/// Serves `script` while `talk` asks it.
fn serve(script: &Script, talk: impl FnOnce(SocketAddr)) {
    let (handle, stop) = Stop::by_hand();
    let (sender, receiver) = mpsc::channel();
    let served = script.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let server = Server::bind(served, local_server()).await.expect("a free port");
            sender.send(server.address().socket().expect("it listens at a port")).expect("the test waits");
            server.run(stop).await;
        });
    });
    talk(receiver.recv().expect("it listens"));
    handle.now();
    thread.join().expect("the server ends without a panic");
}

#[test]
fn a_stream_says_when_it_breaks_a_promise() {
    let time = |ms: u64| TimeBound { p95: Nanos(ms * 1_000_000), ..TimeBound::default() };
    let promise = LatencyBound { first_token: time(1_500), answer: time(2_500), ..LatencyBound::default() };
    let script = Script::saying(&["Once", " upon", " a", " time"], Some(promise));
    serve(&script, |address| {
        let mut connection = Connection::open(address);
        let body = json!({"prompt": "A story", "max_tokens": 4, "stream": true}).to_string();
        let headers = [("content-type", "application/json"), ("connection", "close")];
        connection.request("POST", "/v1/completions", &headers, body.as_bytes());
        let answer = connection.answer();
        let told = ["x-promised-ttft-ms", "x-promised-total-ms"].map(|name| answer.header(name).map(str::to_owned));
        assert_eq!(told, ["1500", "2500"].map(|ms| Some(ms.to_owned())));
        let comments: Vec<&str> = answer.text().split("\n\n").filter(|event| event.starts_with(':')).collect();
        let late = |kind: &str, promised: f64| {
            format!(": late {}", json!({"promise": kind, "promised_ms": promised, "elapsed_ms": 3000.0}))
        };
        assert_eq!(comments, [late("ttft", 1500.0), late("answer", 2500.0)], "{}", answer.text());
        assert!(answer.text().starts_with(':'), "before the first token");
        let (events, done) = answer.events();
        let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!((text.as_str(), done), ("Once upon a time", true), "and the answer is what it is");
    });
}

#[test]
fn a_page_that_takes_long_to_write_holds_nobody_up() {
    let script = Script::saying(&["Once"], None);
    serve(&script, |address| {
        let get = |path: &str| {
            let mut connection = Connection::open(address);
            connection.request("GET", path, &[("connection", "close")], b"");
            connection
        };
        let counting = script.0.counting.lock();
        let mut pages = [(); 3].map(|()| get("/metrics"));
        for _ in 0..3 {
            assert_eq!(get("/health").answer().status, 200, "the one thread that serves is free");
        }
        drop(counting);
        assert!(pages.iter_mut().all(|page| page.answer().status == 200));
    });
}

#[test]
fn a_script_is_served_as_an_engine_is() {
    let script = Script::saying(&["Once", " upon", " a", " time"], None);
    serve(&script, |address| talk(&script, address));
}

fn talk(script: &Script, address: SocketAddr) {
    let ask = |method: &str, path: &str, body: &str| {
        let mut connection = Connection::open(address);
        let headers = [("content-type", "application/json"), ("connection", "close")];
        connection.request(method, path, &headers, body.as_bytes());
        connection.answer()
    };
    let body = |stream: bool| {
        json!({"messages": [{"role": "user", "content": "A story"}], "max_tokens": 4, "stream": stream}).to_string()
    };

    let answer = ask("POST", "/v1/chat/completions", &body(false));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("Once upon a time"), &json!("length"))
    );
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert!(answer["usage"]["prompt_tokens"].as_u64().expect("a number") > 1, "the template is the model's");

    let (events, done) = ask("POST", "/v1/chat/completions", &body(true)).events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!((pieces.collect::<String>().as_str(), done), ("Once upon a time", true));

    // The door is the same one, and what an operator asks for is there.
    assert_eq!(ask("POST", "/v1/completions", r#"{"prompt": "A", "temperature": -1}"#).status, 400);
    assert_eq!(script.0.submitted.load(Ordering::Relaxed), 2);
    for path in ["/health", "/metrics", "/v1/models", "/live/info"] {
        assert_eq!(ask("GET", path, "").status, 200, "{path}");
    }
    assert_eq!(ask("GET", "/live/whatif", "").status, 400, "nothing was answered that it remembers");
}
