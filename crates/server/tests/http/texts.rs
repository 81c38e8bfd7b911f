//! Text is work: it has limits on every route, goes by turns, and ends when its client has left.

use serde_json::{Value, json};

use crate::host::{Host, keyed, local_server, small_engine, wait};
use testing::is_long;

/// One more byte than is read.
const TOO_LONG: usize = (4 << 20) + 1;

// rows 7 and 32
#[test]
fn text_beyond_the_limit_is_refused_with_both_numbers() {
    let host = Host::start();
    let half = "a ".repeat(TOO_LONG / 4 + 1);
    let rows = [
        ("/tokenize", json!({"prompt": "1".repeat(TOO_LONG)}), "prompt"),
        (
            "/tokenize",
            json!({"messages": [{"role": "user", "content": half}, {"role": "user", "content": half}]}),
            "messages",
        ),
        ("/v1/completions", json!({"prompt": [half, half]}), "prompt"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "1".repeat(TOO_LONG)}]}), "messages"),
    ];
    for (path, body, param) in rows {
        let answer = host.post(path, &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{path}: {error}");
        assert_eq!(error["code"], "string_above_max_length", "{path}: {error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("bytes of text; at most 4194304 are read"), "{path}: {message}");
    }
    host.quiet();
}

/// A prompt that cannot fit is refused by the length of the tokenizer's longest token, before it is tokenized.
#[test]
fn a_prompt_that_cannot_fit_is_not_tokenized() {
    let host = Host::start();
    let answer = host.post("/v1/completions", &json!({"prompt": "1".repeat(1 << 20)}));
    let error = &answer.json()["error"];
    assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("has 1048576 bytes;")), "{error}");
}

#[test]
fn a_body_of_very_many_values_is_refused() {
    let host = Host::start();
    let body = format!("{{\"tokens\": [{}]}}", vec!["0"; 400_000].join(","));
    let answer = host.post_bytes("/detokenize", body.as_bytes());
    let error = &answer.json()["error"];
    assert_eq!(answer.status, 400);
    assert_eq!(error["message"], "The request body has more than 262144 JSON values.");
}

fn digits(bytes: usize) -> Value {
    json!({"prompt": "0123456789".repeat(bytes / 10), "add_special_tokens": false})
}

/// Long texts of one key, a short one of another: all are answered in full, and nothing is left of them.
#[test]
fn long_and_short_texts_take_turns() {
    let mut options = keyed(&["sk-a", "sk-b"]);
    options.text_workers = 1;
    let host = Host::with(small_engine(), options);
    let ask = |key: &'static str, body: Value| host.begin(key, "POST", "/tokenize", &body.to_string());
    let length = if is_long() { 1_000_000 } else { 250_000 };
    let mut long: Vec<_> = (0..5).map(|_| ask("sk-a", digits(length))).collect();
    let mut short: Vec<_> = (0..5).map(|_| ask("sk-b", digits(10))).collect();
    for connection in &mut short {
        assert_eq!(connection.answer().json()["count"], 10);
    }
    for connection in &mut long {
        let answer = connection.answer().json();
        assert_eq!(answer["count"], length);
        let tokens = answer["tokens"].as_array().expect("ids");
        assert!(tokens.chunks(10).all(|ten| ten == &tokens[..10]), "a window changed the ids");
    }
    let mut metrics = host.connect();
    metrics.request("GET", "/metrics", &[("authorization", "Bearer sk-a")], b"");
    let page = metrics.answer();
    assert_eq!(crate::host::metric(page.text(), "twostroke_prepare_jobs"), 0.0);
    assert!(crate::host::metric(page.text(), "twostroke_prepare_seconds_total") > 0.0);
}

#[test]
fn text_whose_client_has_left_is_dropped() {
    let mut options = local_server();
    options.text_workers = 1;
    let host = Host::with(small_engine(), options);
    for _ in 0..20 {
        let mut connection = host.connect();
        let headers = [("content-type", "application/json")];
        connection.request("POST", "/tokenize", &headers, digits(2_000_000).to_string().as_bytes());
        drop(connection);
    }
    wait("the texts to be dropped", || host.metric("twostroke_prepare_jobs") == 0.0);
    assert_eq!(host.ask("/tokenize", &digits(10))["count"], 10);
}
