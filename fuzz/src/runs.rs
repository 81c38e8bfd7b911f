//! Recordings, traces and the bodies of requests as a stranger's bytes meet them. A panic is a finding.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;

use checkpoint::{Checkpoint, Source};
use engine::{Certainty, DeviceLimits, Engine, EngineOptions, Speculation};
use replay::{Changes, Recording, past, replay, what_if};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits};
use serde_json::Value;
use server::{Server, ServerOptions, Stop, StopHandle};
use sim::{Fleet, Instance, Report};
use testing::plans;

/// A recording, replayed twice: the same both times. And what it would have been with other settings.
pub fn recording(bytes: &[u8]) -> bool {
    let path = file("recording", bytes);
    let once = || Recording::open(&path).and_then(|recording| replay(recording, &mut |_| {}));
    let (first, again) = (once(), once());
    let taken = match (&first, &again) {
        (Ok(first), Ok(again)) => {
            assert_eq!(first, again, "a replay went otherwise the second time");
            first.difference.is_none()
        }
        (Err(error), Err(_)) => {
            one_line(&error.to_string(), "recording");
            false
        }
        _ => panic!("a replay failed one time of two"),
    };
    match Recording::open(&path).and_then(past) {
        Ok(past) => drop(what_if(&past, &Changes::default(), &mut |_, _| true)),
        Err(error) => one_line(&error.to_string(), "recording"),
    }
    taken
}

/// A trace, and its first requests in the simulator, twice: the same report.
pub fn trace(bytes: &[u8]) -> bool {
    let path = file("trace", bytes);
    let workload = match sim::trace::read(&path, 0) {
        Ok(workload) => workload.first(32),
        Err(error) => {
            one_line(&error.to_string(), "trace");
            return false;
        }
    };
    let fleet = Fleet::of(1, &instance());
    let run = || -> Report { sim::simulate(&workload, &fleet, &mut ()).expect("the limits are good") };
    assert_eq!(run().json(), run().json(), "a simulation went otherwise the second time");
    true
}

fn instance() -> Instance {
    let limits = Limits {
        block_size: 32,
        num_blocks: 256,
        max_model_len: 4096,
        max_num_seqs: 8,
        max_num_batched_tokens: 512,
        max_prefill_chunk: 512,
        ..plans::limits()
    };
    let knots = [1, 64, 512].map(|rows| Knot { rows, seconds: 1e-3 + 1e-5 * rows as f64 }).to_vec();
    let terms = Terms { pair: 1e-8, key: 1e-8, row: 1e-5, prompt: 1e-5, head: 1e-4, logits: 1e-5 };
    let cost = CostModel::new(knots, terms);
    Instance { limits, belief: None, machine: cost.into() }
}

/// The body of a request to one of the routes, over a real socket. The first byte says which.
pub fn body(bytes: &[u8]) -> bool {
    const ROUTES: [&str; 6] =
        ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/plan", "/live/pause"];
    let Some((route, body)) = bytes.split_first() else { return false };
    let route = ROUTES[usize::from(*route) % ROUTES.len()];
    let (status, text) = post(route, body);
    let fine = [200, 400, 403, 404, 413, 415, 429, 503].contains(&status);
    assert!(fine, "{route}: {status} {text}");
    if status >= 400 {
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let message = value["error"]["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty() && value["error"]["type"].is_string(), "{route}: {status} {text}");
        assert!(!message.contains(['\n', '\u{1b}']) && message.len() < 4096, "not one clear line: {message}");
    }
    // What a body says does not depend on how it is written.
    if let Ok(value) = serde_json::from_slice::<Value>(body)
        && status == 200
    {
        let (again, text) = post(route, value.to_string().as_bytes());
        assert!([200, 429, 503].contains(&again), "{route}: taken, and written otherwise {again} {text}");
    }
    status == 200
}

fn post(route: &str, body: &[u8]) -> (u16, String) {
    static SERVER: OnceLock<(SocketAddr, StopHandle)> = OnceLock::new();
    let (address, _) = SERVER.get_or_init(serve);
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket has one");
    let head = format!(
        "POST {route} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in UTF-8, within ten seconds");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// Of an imagined machine: without any, nothing can be planned.
fn limits() -> DeviceLimits {
    DeviceLimits {
        read_bandwidth: 4e10,
        cache_bandwidth: 8e10,
        cache_bytes: 0,
        int8_ops: 2e12,
        bf16_flops: 1e12,
        f32_flops: 5e11,
        int8_kind: "imagined",
        bf16_kind: "imagined",
        fastest_int8_ops: 2e12,
        fastest_int8_kind: "imagined",
        fastest_bf16_flops: 1e12,
        fastest_bf16_kind: "imagined",
        certainty: [Certainty::of_rates(&[1.0; 5]); 5],
    }
}

/// A server of the smaller model on a free port, for as long as the process lives.
fn serve() -> (SocketAddr, StopHandle) {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/lantern-draft");
    let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the committed model");
    let options = EngineOptions {
        threads: Some(1),
        max_model_len: Some(64),
        max_num_seqs: 4,
        max_num_batched_tokens: 64,
        kv_cache_bytes: Some(2 << 20),
        limits: Some(limits()),
        speculation: Speculation::auto(),
        ..EngineOptions::default()
    };
    let engine = Engine::start(&checkpoint, &options, &mut |_| {}).expect("the committed model");
    let (handle, stop) = Stop::by_hand();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let options = ServerOptions { port: 0, ..ServerOptions::default() };
            let server = Server::bind(engine, options).await.expect("a free port");
            sender.send(server.address().socket().expect("it listens at a port")).expect("the test waits");
            server.run(stop).await;
        });
    });
    (receiver.recv().expect("it listens"), handle)
}

/// An error is one line, not too long, and says which file.
fn one_line(message: &str, name: &str) {
    assert!(!message.contains('\n') && message.len() < 1 << 16, "not one clear line: {message:.400}");
    assert!(message.contains(name), "no {name} in: {message:.400}");
}

/// A file of this process, the same one each time.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let path = base.join(format!("twostroke-fuzz-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).expect("room for a small file");
    path
}
