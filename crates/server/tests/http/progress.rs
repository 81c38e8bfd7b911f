//! `return_progress`: how far a prompt is read, in llama.cpp's words.

use serde_json::{Value, json};

use crate::host::Host;

/// The `prompt_progress` of each chunk that has one, and what else came.
fn told(events: &[Value]) -> (Vec<Value>, Vec<Value>) {
    let (with, without): (Vec<_>, Vec<_>) =
        events.iter().cloned().partition(|event| !event["prompt_progress"].is_null());
    (with.iter().map(|event| event["prompt_progress"].clone()).collect(), without)
}

/// What llama.cpp's own test asks of it (`test_return_progress`): the first says what the cache had, each has more than
/// the one before, the last has all.
fn check(progress: &[Value], cached: bool) {
    let number = |event: &Value, name: &str| event[name].as_u64().unwrap_or_else(|| panic!("{name}: {event}"));
    let first = progress.first().expect("there is some");
    assert_eq!(first["processed"], first["cache"]);
    assert_eq!(number(first, "cache") > 0, cached, "{progress:?}");
    for pair in progress.windows(2) {
        assert_eq!((&pair[0]["total"], &pair[0]["cache"]), (&pair[1]["total"], &pair[1]["cache"]));
        assert!(number(&pair[0], "processed") < number(&pair[1], "processed"), "{progress:?}");
        assert!(number(&pair[0], "time_ms") <= number(&pair[1], "time_ms"), "{progress:?}");
    }
    let last = progress.last().expect("there is some");
    assert_eq!(last["processed"], last["total"]);
    for event in progress {
        let names: Vec<&str> = event.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(names, ["total", "cache", "processed", "time_ms"]);
    }
}

#[test]
fn a_long_prompt_says_how_far_it_is() {
    let host = Host::start();
    let text = "The fox looked at the lantern. ".repeat(80);
    let chat = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 3, "temperature": 0, "return_progress": true});
    let cases = [
        ("/v1/completions", json!({"prompt": text, "max_tokens": 3, "temperature": 0, "return_progress": true})),
        ("/v1/chat/completions", chat),
    ];
    for (path, body) in &cases {
        let events = host.stream(path, body);
        let (progress, rest) = told(&events);
        check(&progress, false);
        // 128 rows a step: one that says where it begins, and one a chunk.
        let total = progress[0]["total"].as_u64().expect("a number");
        assert_eq!(progress.len() as u64, 1 + total.div_ceil(128), "{progress:?}");
        assert_eq!(rest.last().expect("an answer")["timings"]["prefill_tokens"], total);
        // Every progress chunk is a chunk like others, with one choice that gets nothing.
        let chunk = events.iter().find(|event| !event["prompt_progress"].is_null()).expect("one");
        assert_eq!((&chunk["id"], &chunk["object"]), (&rest[0]["id"], &rest[0]["object"]));
        let choice = &chunk["choices"][0];
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &Value::Null));
        assert!(choice["text"] == "" || choice["delta"] == json!({}), "{chunk}");
        // They come before any token, and nothing else changes.
        let first_token = events.iter().position(|event| event["prompt_progress"].is_null()).expect("one");
        assert_eq!(first_token, progress.len());
        let mut plain = body.clone();
        plain["return_progress"] = json!(false);
        let (none, same) = told(&host.stream(path, &plain));
        assert!(none.is_empty());
        assert_eq!(texts(&rest), texts(&same));
        // The second time it is in the cache.
        let again = host.stream(path, body);
        check(&told(&again).0, true);
    }
    host.quiet();
}

#[test]
fn it_belongs_to_streams_and_is_a_boolean() {
    let host = Host::start();
    for (body, problem) in [
        (json!({"prompt": "a", "return_progress": true}), "only when 'stream' is true"),
        (json!({"prompt": "a", "return_progress": 1, "stream": true}), "true or false"),
    ] {
        let answer = host.post("/v1/completions", &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("return_progress")), "{body}");
        assert!(answer.text().contains(problem), "{}", answer.text());
    }
    // Several prompts of one request: each has its own, under the index of its choice.
    let prompts = ["One fox. ".repeat(90), "Two foxes. ".repeat(60)];
    let body = json!({"prompt": prompts, "max_tokens": 2, "return_progress": true});
    let events = host.stream("/v1/completions", &body);
    for index in 0..2 {
        let of_it: Vec<Value> =
            (events.iter().filter(|event| event["choices"][0]["index"] == index)).cloned().collect();
        check(&told(&of_it).0, false);
    }
    host.quiet();
}

/// All text of a stream.
fn texts(events: &[Value]) -> String {
    let text = |event: &Value| {
        let choice = &event["choices"][0];
        choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default().to_owned()
    };
    events.iter().map(text).collect()
}
