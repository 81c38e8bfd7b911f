//! A model that fails: what the client of the request at fault hears, and that nobody else hears anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kernels::threads::ThreadError;
use kernels::{DeviceInfo, DeviceLimits};
use model::{Batch, Forward, Logits, ModelConfig, Ticket};
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::{Host, local_server, small_engine};

/// A pass with this token panics.
const POISON: u32 = 7;
/// The logits behind this token are no numbers.
const NAN: u32 = 8;

/// The real model, with faults.
struct Sick {
    inner: Box<dyn Forward>,
    wanted: Vec<u32>,
    /// The next pass panics, and the one after it does not.
    hiccup: Arc<AtomicBool>,
}

impl Forward for Sick {
    fn launch(&mut self, batch: &Batch) -> Ticket {
        assert!(!self.hiccup.swap(false, Ordering::Relaxed), "a hiccup");
        assert!(!batch.token_ids.contains(&POISON), "poison");
        self.wanted = batch.logit_rows.iter().map(|&row| batch.token_ids[row as usize]).collect();
        self.inner.launch(batch)
    }

    fn read_logits(&mut self, logits: &Logits, row: usize, out: &mut [f32]) {
        self.inner.read_logits(logits, row, out);
        if self.wanted[row] == NAN {
            out[0] = f32::NAN;
        }
    }

    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }
    fn wait(&mut self, ticket: Ticket) -> Logits {
        self.inner.wait(ticket)
    }
    fn adopt_thread(&self) {
        self.inner.adopt_thread();
    }
    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.inner.copy_blocks(copies);
    }
    fn read_block(&self, block: u32, out: &mut [u8]) {
        self.inner.read_block(block, out);
    }
    fn write_block(&mut self, block: u32, bytes: &[u8]) {
        self.inner.write_block(block, bytes);
    }
    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }
    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }
    fn expert_bytes(&self) -> usize {
        self.inner.expert_bytes()
    }
    fn kv_bytes_per_token(&self) -> usize {
        self.inner.kv_bytes_per_token()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn device(&self) -> DeviceInfo {
        self.inner.device()
    }
    fn limits(&self, seconds: f64) -> Result<DeviceLimits, ThreadError> {
        self.inner.limits(seconds)
    }
}

fn sick() -> (Host, Arc<AtomicBool>) {
    let hiccup = Arc::new(AtomicBool::new(false));
    let own = hiccup.clone();
    let around = move |inner| Box::new(Sick { inner, wanted: Vec::new(), hiccup: own }) as Box<dyn Forward>;
    (Host::around(small_engine(), local_server(), around), hiccup)
}

fn greedy(prompt: &Value, max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
        "logit_bias": {POISON.to_string(): -100, NAN.to_string(): -100}})
}

#[test]
fn a_request_that_fails_fails_alone() {
    let (host, hiccup) = sick();
    let story = json!("Once upon a time there was a fox who lived beside a quiet river. ".repeat(4));
    let alone = host.ask("/v1/completions", &greedy(&story, 300))["choices"].clone();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| host.ask("/v1/completions", &greedy(&story, 300)));
        let at_fault =
            [(POISON, Value::Null, "An internal error"), (NAN, json!("nan_logits"), "values that are not numbers")];
        for (token, code, says) in at_fault {
            for stream in [false, true] {
                let mut body = greedy(&json!([300, 301, 302, token]), 5);
                body["stream"] = json!(stream);
                let answer = host.post("/v1/completions", &body);
                let error = if stream && answer.status == 200 {
                    let (events, _) = answer.events();
                    events.last().expect("an event")["error"].clone()
                } else {
                    assert_eq!(answer.status, 500, "{}", answer.text());
                    answer.json()["error"].clone()
                };
                assert_eq!(error["code"], code, "{error}");
                assert!(error["message"].as_str().is_some_and(|text| text.contains(says)), "{error}");
            }
            hiccup.store(true, Ordering::Relaxed);
        }
        let beside = beside.join().expect("an answer");
        assert_eq!(beside["choices"], alone, "the same answer, to the byte");
        let cached = beside["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(cached.is_some_and(|tokens| tokens > 0), "the cache is kept: {}", beside["usage"]);
    });
    let again = host.ask("/v1/completions", &greedy(&story, 300));
    assert_eq!(again["choices"], alone);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached.is_some_and(|tokens| tokens > 0), "failures cost nobody the cache: {}", again["usage"]);
    assert_eq!(host.metric("vllm:num_requests_waiting"), 0.0);
    host.quiet();
}

#[test]
fn a_client_that_streams_hears_of_a_failure_in_the_middle() {
    let (host, _) = sick();
    // The token is drawn, and the next pass fails by it.
    let mut body = greedy(&json!("Once upon a time"), 50);
    body["logit_bias"] = json!({POISON.to_string(): 100});
    body["stream"] = json!(true);
    let mut connection = Connection::open(host.address);
    connection.request("POST", "/v1/completions", &[("content-type", "application/json")], body.to_string().as_bytes());
    let answer = connection.answer();
    let (events, done) = answer.events();
    assert_eq!(answer.status, 200);
    assert!(events.last().expect("events")["error"]["message"].is_string() && !done, "{}", answer.text());
    host.quiet();
}
