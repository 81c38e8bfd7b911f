//! A device is lost while answers are on their way, and its standby goes on: no client of any API can tell by what it
//! receives, to the byte.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{EngineOptions, Speculation};
use serde_json::{Value, json};
use testing::{Dice, Scratch};

use crate::host::{Host, local_server, small_engine, wait};
use crate::losses::{Losses, OnDevice, standby};

/// Of the steps at which devices are lost.
const SEED: u64 = 0x105e;

/// Calls, forms, thoughts, several answers and vectors, in every API: a path, what is asked, and how.
fn requests() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["place", "days"],
        "properties": {"place": {"enum": ["forest", "river"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}});
    let messages = json!([{"role": "user", "content": "How is it in the forest?"}]);
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": schema}}]);
    let call = json!({"messages": messages, "tools": tools, "tool_choice": "required", "max_tokens": 150});
    let chat = json!({"messages": messages, "max_tokens": 60, "seed": 5});
    let story = json!({"prompt": "Once upon a time", "max_tokens": 50, "ignore_eos": true, "seed": 7});
    let anthropic = json!({"model": "lantern", "max_tokens": 150, "messages": messages, "tool_choice": {"type": "any"},
        "tools": [{"name": "weather", "input_schema": schema}]});
    let responses = json!({"input": "How is it?", "max_output_tokens": 150, "tool_choice": "required", "store": false,
        "tools": [{"type": "function", "name": "weather", "parameters": schema}]});
    let form = json!({"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}});
    let ollama = json!({"model": "lantern", "messages": messages, "tools": tools});
    let (of_chat, of_texts) = ("/v1/chat/completions", "/v1/completions");
    let table = [
        (of_chat, &call, json!({"stream": true, "temperature": 0})),
        (of_chat, &call, json!({"stream": true, "temperature": 1, "seed": 3, "n": 2})),
        (of_chat, &call, json!({"temperature": 0})),
        (of_chat, &chat, json!({"stream": true, "response_format": form})),
        (of_chat, &chat, json!({"stream": true, "n": 3, "logprobs": true, "top_logprobs": 2})),
        (of_texts, &story, json!({"stream": true, "temperature": 0.9, "logprobs": 1})),
        (of_texts, &story, json!({"echo": true, "logprobs": 1, "temperature": 0})),
        (of_texts, &story, json!({"stream": true, "temperature": 0, "stop": [" the"], "min_tokens": 20})),
        ("/v1/messages", &anthropic, json!({"stream": true, "temperature": 0})),
        ("/v1/responses", &responses, json!({"stream": true, "temperature": 0})),
        ("/api/chat", &ollama, json!({"stream": true, "options": {"num_predict": 40, "temperature": 0}})),
        ("/completion", &json!({"prompt": "The fox"}), json!({"n_predict": 40, "seed": 3, "stream": true})),
        ("/v1/embeddings", &json!({}), json!({"input": ["The fox sat by the door.", "The owl"]})),
    ];
    let with = |(path, body, how): (&'static str, &Value, Value)| {
        let fields = [body, &how].into_iter().flat_map(|fields| fields.as_object().expect("fields").clone());
        (path, Value::Object(fields.collect()))
    };
    table.map(with).to_vec()
}

/// What a client received, without names and times, which are of the moment, and of several answers one after the
/// other: which of them goes on first is not promised.
fn told(text: &str) -> Vec<String> {
    fn blank(value: &mut Value) {
        const OF_THE_MOMENT: [&str; 7] =
            ["id", "created", "timings", "created_at", "completed_at", "item_id", "call_id"];
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !OF_THE_MOMENT.contains(&&name[..]) && !name.ends_with("_duration"));
                fields.values_mut().for_each(blank);
            }
            Value::Array(list) => list.iter_mut().for_each(blank),
            _ => {}
        }
    }
    let line = |line: &str| {
        let (before, json) = line.split_at(line.find('{').unwrap_or(line.len()));
        let mut value = serde_json::from_str::<Value>(json).unwrap_or_default();
        blank(&mut value);
        (value["choices"][0]["index"].as_u64().unwrap_or(u64::MAX), format!("{before}{value}"))
    };
    let mut lines: Vec<(u64, String)> = text.lines().filter(|line| !line.is_empty()).map(line).collect();
    lines.sort_by_key(|(answer, _)| *answer);
    lines.into_iter().map(|(_, line)| line).collect()
}

#[test]
fn what_clients_receive_does_not_tell_that_a_device_was_lost() {
    let (losses, images) = (Arc::new(Losses::default()), Scratch::new("http-standby"));
    let options = EngineOptions {
        kv_cache_bytes: Some(16 << 20),
        enable_prefix_caching: false,
        speculation: Speculation::auto(),
        ..small_engine()
    };
    let other = standby(&options, images.to_path_buf(), losses.clone());
    let around = |inner| (OnDevice::around(inner, &losses), Some(other));
    let host = Host::of(testing::lantern(), options, local_server(), around);
    let requests = requests();
    let all = || -> Vec<Vec<String>> {
        host.pause();
        let begin = |(path, body): &(&str, Value)| host.begin("", "POST", path, &body.to_string());
        let connections: Vec<_> = requests.iter().map(begin).collect();
        // One of them has two texts.
        wait("all to be there", || host.engine.health().open_requests == requests.len() + 1);
        host.resume();
        let answer = |mut connection: crate::client::Connection| {
            let answer = connection.answer();
            assert_eq!(answer.status, 200, "{}", answer.text());
            told(answer.text())
        };
        connections.into_iter().map(answer).collect()
    };
    let expected = all();
    let mut dice = Dice::new(SEED);
    let rounds = if testing::is_long() { 200 } else { 8 };
    for round in 0..rounds {
        let next = (["", "launch", "wait", "read_logits"][dice.within(0..=3)], dice.within(1..=40) as u64);
        *losses.next.lock().unwrap() = Some(next);
        let received = all();
        for ((received, expected), (path, body)) in received.iter().zip(&expected).zip(&requests) {
            assert_eq!(received, expected, "seed {SEED}, round {round}, {next:?}: {path} {body}");
        }
        host.quiet();
    }
    // A round has fewer calls of a door the more of its answers share passes.
    let lost = losses.count.load(Ordering::Relaxed);
    assert!(lost > rounds / 4, "{lost} devices were lost");
    assert_eq!(host.get("/health").status, 200);
}
