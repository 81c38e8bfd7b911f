//! A model that fails: what the client of the request at fault receives, and that no other receives anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{Batch, Forward};
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::{Host, local_server, small_engine, wait};
use crate::losses::{Losses, OnDevice};
use crate::sick::{Illness, Sick};

/// A pass with this token panics.
const POISON: u32 = 7;
/// The logits behind this token are no numbers.
const NAN: u32 = 8;

/// Rows that cannot be computed.
struct Faults {
    wanted: Vec<u32>,
    /// The next pass panics, and the one after it does not.
    hiccup: Arc<AtomicBool>,
}

impl Illness for Faults {
    fn before(&mut self, batch: &Batch) {
        assert!(!self.hiccup.swap(false, Ordering::Relaxed), "a hiccup");
        assert!(!batch.token_ids.contains(&POISON), "poison");
        self.wanted = batch.logit_rows.iter().map(|&row| batch.token_ids[row as usize]).collect();
    }

    fn logits(&mut self, row: usize, logits: &mut [f32]) {
        if self.wanted[row] == NAN {
            logits[0] = f32::NAN;
        }
    }
}

fn sick() -> (Host, Arc<AtomicBool>) {
    let hiccup = Arc::new(AtomicBool::new(false));
    let own = hiccup.clone();
    let around = move |inner| {
        let illness = Faults { wanted: Vec::new(), hiccup: own };
        Box::new(Sick { inner, illness }) as Box<dyn Forward>
    };
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
    assert!(cached.is_some_and(|tokens| tokens > 0), "failures do not cost the cache: {}", again["usage"]);
    assert_eq!(host.engine.stats().waiting_requests, 0);
    host.quiet();
}

#[test]
fn a_lost_device_ends_what_is_open_and_the_server_says_why() {
    let losses = Arc::new(Losses::default());
    let around = |inner| OnDevice::around(inner, &losses);
    let host = Host::around(small_engine(), local_server(), around);
    host.ask("/v1/completions", &greedy(&json!("The fox"), 3));
    host.pause();
    let streams = [false, true].map(|stream| {
        let mut body = greedy(&json!("The fox"), 200);
        body["stream"] = json!(stream);
        host.begin("", "POST", "/v1/completions", &body.to_string())
    });
    wait("both to be there", || host.engine.health().open_requests == 2);
    host.step_into(3);
    *losses.next.lock().unwrap() = Some(("", 1));
    host.resume();
    let [whole, streamed] = streams.map(|mut stream| stream.answer());
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (503, &json!("device_lost")), "{}", whole.text());
    let (events, done) = streamed.events();
    let error = &events.last().expect("events")["error"];
    assert!(error["code"] == "device_lost" && !done, "{}", streamed.text());
    assert!(error["message"].as_str().is_some_and(|text| text.contains("has to be restarted")), "{error}");

    wait("the loop to end", || host.engine.health().dead);
    let health = host.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("dead")), "{}", health.text());
    let late = host.post("/v1/completions", &greedy(&json!("The fox"), 3));
    assert_eq!((late.status, &late.json()["error"]["code"]), (503, &json!("device_lost")), "{}", late.text());
    assert_eq!(host.get("/v1/models").status, 200, "the process lives");
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

#[test]
fn each_api_says_a_failure_in_its_own_words() {
    let (host, _) = sick();
    let of_ollama = json!({"prompt": "x", "raw": true, "context": [300, 301, POISON], "options": {"num_predict": 4}});
    let of_llama = json!({"prompt": [300, 301, NAN], "n_predict": 4});
    for (path, body) in [("/api/generate", of_ollama), ("/completion", of_llama)] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let answer = host.post(path, &body);
            assert_eq!(answer.status, if stream { 200 } else { 500 }, "{path}: {}", answer.text());
            let last = answer.text().trim_end().lines().last().expect("a line").trim_start_matches("data: ");
            let error = serde_json::from_str::<Value>(last).expect("JSON")["error"].clone();
            let message = if path == "/completion" { &error["message"] } else { &error };
            assert!(message.is_string(), "{path}: {error}");
        }
    }
    host.quiet();
}
