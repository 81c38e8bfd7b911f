//! One key against another: classes, places in the queue, memory for answers.

use std::sync::atomic::{AtomicBool, Ordering};

use engine::EngineOptions;
use serde_json::{Value, json};
use server::{ApiKey, ServerOptions};

use crate::client::{Answer, Connection};
use crate::host::{Host, local_server, small_engine, wait};

const A: &str = "sk-a";
/// May ask for the priority class.
const B: &str = "sk-b";

fn two_keys() -> ServerOptions {
    let b = ApiKey { may_be_urgent: true, ..ApiKey::from(B) };
    ServerOptions { api_keys: vec![A.into(), b], ..local_server() }
}

fn shared(engine: EngineOptions) -> EngineOptions {
    EngineOptions { is_shared: true, ..engine }
}

fn begin(host: &Host, key: &str, path: &str, body: &Value) -> Connection {
    host.begin(key, "POST", path, &body.to_string())
}

fn ask(host: &Host, key: &str, body: &Value) -> Answer {
    begin(host, key, "/v1/completions", body).answer()
}

fn long(max_tokens: usize) -> Value {
    json!({"prompt": "Once upon", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0})
}

#[test]
fn only_a_key_that_may_asks_for_more_than_the_usual_class() {
    let urgent =
        [("service_tier", json!("priority")), ("priority", json!(-1)), ("priority", json!(i64::from(i32::MIN)))];
    let usual = [("service_tier", json!("flex")), ("service_tier", json!("auto")), ("priority", json!(7))];
    let with = |field: &str, value: &Value| {
        let mut body = long(1);
        body[field] = value.clone();
        body
    };
    let host = Host::with(small_engine(), two_keys());
    for (field, value) in &urgent {
        let refused = ask(&host, A, &with(field, value));
        let error = refused.json()["error"].clone();
        let (param, code) = (json!(field), json!("class_not_allowed"));
        assert_eq!((refused.status, &error["param"], &error["code"]), (400, &param, &code), "{field} {value}");
        assert_eq!(ask(&host, B, &with(field, value)).status, 200, "{field} {value}");
    }
    for (field, value) in &usual {
        assert_eq!(ask(&host, A, &with(field, value)).status, 200, "{field} {value}");
    }
    drop(host);
    // A single tenant has no other to press ahead of.
    let host = Host::with(small_engine(), ServerOptions { api_keys: vec![A.into()], ..local_server() });
    assert_eq!(ask(&host, A, &with("service_tier", &json!("priority"))).status, 200);
    drop(host);
    assert_eq!(Host::start().post("/v1/completions", &with("priority", &json!(-5))).status, 200);
}

#[test]
fn urgent_floods_of_one_key_leave_the_other_its_answers() {
    // As many clients of B as there are seats and more, each asking again at once.
    let host = Host::with(shared(small_engine()), two_keys());
    let alone = ask(&host, A, &long(12)).json()["choices"].clone();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..24 {
            let (host, over) = (&host, &over);
            scope.spawn(move || {
                let mut body = long(150);
                match client % 2 {
                    0 => body["service_tier"] = json!("priority"),
                    _ => body["priority"] = json!(i64::from(i32::MIN)),
                }
                while !over.load(Ordering::Relaxed) {
                    assert!([200, 429].contains(&ask(host, B, &body).status));
                }
            });
        }
        wait("the flood to fill the seats", || host.engine.stats().running_requests >= 15);
        for turn in 0..5 {
            let before = host.engine.stats().finished_length;
            assert_eq!(ask(&host, A, &long(12)).json()["choices"], alone, "turn {turn}");
            // Passed over by a bounded number of requests, however many come.
            let passed = host.engine.stats().finished_length - before;
            assert!(passed <= 60, "{passed} requests of the other key ended first");
        }
        over.store(true, Ordering::Relaxed);
    });
    host.quiet();
}

#[test]
fn a_key_waits_with_no_more_than_it_leaves_for_others() {
    let engine = EngineOptions { max_num_seqs: 1, max_queued_requests: 8, ..shared(small_engine()) };
    let host = Host::with(engine, two_keys());
    let longest = host.engine.model().max_model_len - 32;
    let stats = || host.engine.stats();
    host.pause();
    let running = begin(&host, B, "/v1/completions", &long(longest));
    host.step_into(1);
    let waiting: Vec<Connection> = (0..4)
        .map(|index| {
            let connection = begin(&host, B, "/v1/completions", &long(longest));
            wait("it to wait", || stats().waiting_requests == index + 1);
            connection
        })
        .collect();
    let refused = ask(&host, B, &long(1));
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(error["message"].as_str().unwrap().starts_with("4 requests of this API key wait"), "{error}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let other = begin(&host, A, "/v1/completions", &long(3));
    wait("the other key's to wait as well", || stats().waiting_requests == 5);
    host.resume();
    drop((running, waiting));
    let mut other = other;
    assert_eq!(other.answer().status, 200);
    host.quiet();
}

#[test]
fn memory_for_answers_is_set_aside_before_they_are_admitted() {
    let host = Host::with(shared(small_engine()), two_keys());
    let logprobs = |n: usize, max_tokens: usize| {
        let mut body = long(max_tokens);
        (body["n"], body["logprobs"], body["temperature"]) = (json!(n), json!(20), json!(1));
        body
    };
    // One seat is always for the next to come.
    let mut all = long(1);
    all["n"] = json!(16);
    let refused = ask(&host, A, &all);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("n")));
    // Fifteen answers of a thousand tokens each for one prompt are 4.3 MiB; for 128 prompts they are more than any
    // request may take.
    let mut many = logprobs(15, 1000);
    many["prompt"] = json!(vec!["Once upon"; 128]);
    let refused = ask(&host, A, &many);
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (400, &json!("answer_too_large")), "{error}");
    assert_eq!(host.engine.stats().waiting_requests, 0, "nothing of it was admitted");
    // What is given back can be taken again, whether it was read or not.
    for turn in testing::part_of(0..40, 5) {
        let mut connection = begin(&host, A, "/v1/completions", &logprobs(8, 200));
        if turn % 2 == 0 {
            assert_eq!(connection.answer().status, 200, "turn {turn}");
        }
    }
    host.quiet();
}

#[test]
fn a_long_answer_is_the_same_in_one_piece_and_in_many() {
    let host = Host::start();
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let mut body = json!({
            "max_tokens": 300, "n": 3, "temperature": 1, "seed": 7, "ignore_eos": true, "prompt_logprobs": 2,
        });
        if path.contains("chat") {
            body["messages"] =
                json!([{"role": "user", "content": "Say \"content\":[] and \"logprobs\":{\"tokens\":[]"}]);
            (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(20));
        } else {
            body["prompt"] = json!("Once \"text_offset\":[] upon \"choices\":[] a time");
            (body["logprobs"], body["echo"]) = (json!(20), json!(true));
        }
        let answer = host.post(path, &body);
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"), "it is long");
        let whole = answer.json();
        let events = host.stream(path, &body);
        for index in 0..3 {
            let choice = &whole["choices"][index];
            let pieces = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
            let pieces: Vec<&Value> = pieces.filter(|piece| piece["index"] == json!(index)).collect();
            let list = |name: &str| -> Vec<Value> {
                let lists = pieces.iter().filter_map(|piece| piece["logprobs"][name].as_array());
                lists.flatten().cloned().collect()
            };
            let names: &[&str] = match path.contains("chat") {
                true => &["content"],
                false => &["text_offset", "token_logprobs", "tokens", "top_logprobs"],
            };
            for name in names {
                let streamed = list(name);
                assert!(streamed.len() >= 300);
                assert_eq!(choice["logprobs"][name], json!(streamed), "{path} {name} of {index}");
            }
        }
        let with_prompt =
            if path.contains("chat") { (&whole, &events[0]) } else { (&whole["choices"][0], &events[0]["choices"][0]) };
        assert_eq!(with_prompt.0["prompt_logprobs"], with_prompt.1["prompt_logprobs"]);
        assert!(with_prompt.0["prompt_logprobs"].as_array().unwrap().len() > 5);
    }
}
