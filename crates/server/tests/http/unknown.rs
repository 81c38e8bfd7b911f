//! Unknown names: in queries, and members of objects inside bodies.

use serde_json::{Map, Value, json};

use crate::host::{Host, local_server, small_engine};

/// Whether a part of a path stands for a name.
fn named(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "none".to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[test]
fn no_route_drops_a_name_of_a_query() {
    let host = Host::with(small_engine(), local_server());
    let mut routes = 0;
    for (method, path) in server::routes() {
        let path = named(path);
        for (query, field) in [("bogus=1", "bogus"), ("a=1&limit=1", "a"), ("%62ogus", "bogus")] {
            let headers = [("content-type", "application/json"), ("connection", "close")];
            let answer = host.send(method, &format!("{path}?{query}"), &headers, b"{}");
            assert_eq!(answer.status, 400, "{method} {path}?{query}: {}", answer.text());
            let is_named =
                answer.text().contains(field) || path.starts_with("/api/") || path.starts_with("/v1/messages");
            assert!(is_named, "{method} {path}?{query}: {}", answer.text());
        }
        routes += 1;
    }
    assert!(routes > 80);
    for path in ["/v1/models?beta=true", "/health?"] {
        assert_eq!(host.get(path).status, 200, "{path}");
    }
    host.quiet();
}

/// Bodies with every object that clients send, by route.
fn bodies() -> Vec<(&'static str, Value)> {
    let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    let function = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}});
    let called = json!({"id": "callnumb1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    vec![
        (
            "/v1/chat/completions",
            json!({
                "messages": [
                    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                    {"role": "assistant", "content": "", "tool_calls": [called]},
                    {"role": "tool", "tool_call_id": "callnumb1", "content": "x"},
                    {"role": "user", "content": "And now?"},
                ],
                "tools": [function], "max_tokens": 4, "temperature": 0, "stream_options": {"include_usage": true},
                "stream": true, "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
            }),
        ),
        (
            "/v1/chat/completions",
            json!({
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}}},
            }),
        ),
        (
            "/v1/messages",
            json!({
                "system": [{"type": "text", "text": "Be brief."}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": ""},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {}, "caller": {"type": "direct"}},
                    ]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]},
                    ]},
                ],
                "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "auto"},
                "thinking": {"type": "disabled"}, "max_tokens": 4, "temperature": 0,
            }),
        ),
        (
            "/api/chat",
            json!({
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                    {"role": "tool", "tool_name": "f", "content": "x"},
                ],
                "tools": [function], "stream": false, "options": {"num_predict": 4, "temperature": 0},
            }),
        ),
        ("/v1/rerank", json!({"query": {"text": "a"}, "documents": [{"text": "b"}, "c"]})),
    ]
}

/// Places of the objects inside, without those whose names are the caller's own and those that are settings.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    const OWN: [&str; 7] = ["parameters", "input_schema", "schema", "arguments", "input", "options", "response_format"];
    match value {
        Value::Object(members) => {
            if !at.is_empty() {
                found.push(at.to_owned());
            }
            for (name, member) in members.iter().filter(|(name, _)| !OWN.contains(&name.as_str())) {
                places(member, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// An answer without what differs from one to the next.
fn tokens(answer: &str) -> String {
    const OTHER: [&str; 10] = [
        "id",
        "created",
        "created_at",
        "timings",
        "hints",
        "total_duration",
        "load_duration",
        "prompt_eval_duration",
        "eval_duration",
        "usage",
    ];
    fn plain(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.retain(|name, _| !OTHER.contains(&name.as_str()));
                members.values_mut().for_each(plain);
            }
            Value::Array(items) => items.iter_mut().for_each(plain),
            _ => {}
        }
    }
    let lines = answer.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap_or_else(|_| line.into());
        plain(&mut value);
        value.to_string()
    };
    lines.map(line).collect()
}

#[test]
fn an_unknown_member_changes_no_token_and_is_named() {
    let host = Host::start();
    for (path, body) in bodies() {
        let alone = host.post(path, &body);
        assert_eq!(alone.status, 200, "{path}: {}", alone.text());
        let mut objects = Vec::new();
        places(&body, "", &mut objects);
        for place in &objects {
            for value in [json!("text"), json!(7), json!({"a": {"b": 1}}), json!(null)] {
                let mut with = body.clone();
                with.pointer_mut(place).unwrap()["agent_note"] = value.clone();
                let answer = host.post(path, &with);
                assert_eq!(answer.status, 200, "{path} {place} {value}: {}", answer.text());
                assert_eq!(tokens(answer.text()), tokens(alone.text()), "{path} {place} {value}");
                let hints = answer.header("x-twostroke-hints").unwrap_or_default();
                assert_eq!(hints.contains("agent_note"), !value.is_null(), "{path} {place} {value}: {hints}");
            }
        }
        // At the top a name may be a misspelt one, and `null` says nothing.
        let mut with = body.clone();
        with["agent_note"] = json!(null);
        assert_eq!(host.post(path, &with).status, 200, "{path}");
        with["agent_note"] = json!(1);
        assert_eq!(host.post(path, &with).status, 400, "{path}");
    }
    let settings = json!({"prompt": "a", "stream": false, "options": {"temprature": 1}});
    assert_eq!(host.post("/api/generate", &settings).status, 400);
    host.quiet();
}

/// Bodies that clients send and that were refused, and what they are the same as.
#[test]
fn what_clients_send_is_taken() {
    let host = Host::start();
    let octets = |path: &str, body: &Value| {
        let headers = [("content-type", "application/octet-stream"), ("connection", "close")];
        host.send("POST", path, &headers, body.to_string().as_bytes()).status
    };
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let short = json!({"num_predict": 2});
    assert_eq!(octets("/api/chat", &json!({"messages": hi, "options": short, "stream": false})), 200);
    assert_eq!(octets("/api/show", &json!({"model": "lantern"})), 200);
    for half in [r#"{"prompt": "a\ud83d b", "max_tokens": 2}"#, r#"{"prompt": "\udc00", "max_tokens": 2}"#] {
        assert_eq!(host.post_bytes("/v1/completions", half.as_bytes()).status, 200, "{half}");
    }
    for temperature in [json!(0), json!(3), json!(1e30)] {
        host.ask("/v1/completions", &json!({"prompt": "a", "max_tokens": 2, "temperature": temperature}));
    }
    for temperature in [json!(-0.1), json!(1e300)] {
        let answer = host.post("/v1/completions", &json!({"prompt": "a", "temperature": temperature}));
        assert_eq!(answer.json()["error"]["param"], "temperature");
    }
    host.ask("/api/embed", &json!({"input": "hi", "truncate": true}));
    let generate = |more: &Value| {
        let mut body = json!({"prompt": "hi", "stream": false, "options": {"num_predict": 2}});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        host.ask("/api/generate", &body)
    };
    generate(&json!({"truncate": true, "shift": true}));
    let own = json!({"num_predict": 2, "repeat_penalty": 1.1, "repeat_last_n": 64});
    generate(&json!({"options": own}));
    // An empty system message is none.
    let count = |path: &str, body: Value| {
        let answer = host.ask(path, &body);
        let usage = [&answer["input_tokens"], &answer["count"], &answer["prompt_eval_count"]];
        usage.into_iter().find_map(Value::as_u64).unwrap()
    };
    let empties = [json!(""), json!([]), json!([{"type": "text", "text": ""}])];
    let none = count("/v1/messages/count_tokens", json!({"messages": hi}));
    for system in &empties {
        assert_eq!(count("/v1/messages/count_tokens", json!({"messages": hi, "system": system})), none, "{system}");
    }
    let none = count("/tokenize", json!({"messages": hi}));
    let empty = json!([{"role": "system", "content": ""}, hi[0]]);
    assert_eq!(count("/tokenize", json!({"messages": empty})), none);
    let chat = |messages: &Value| count("/api/chat", json!({"messages": messages, "options": short, "stream": false}));
    assert_eq!(chat(&empty), chat(&hi));
    // Equal requests have equal counts, whatever was drafted.
    let fox = json!([{"role": "user", "content": "Say fox fox fox fox fox fox fox fox."}]);
    for _ in 0..2 {
        let body = json!({"messages": fox, "max_tokens": 60, "temperature": 0, "ignore_eos": true});
        let details = host.ask("/v1/chat/completions", &body)["usage"]["completion_tokens_details"].clone();
        let details: Map<String, Value> = details.as_object().cloned().unwrap_or_default();
        assert!(details.keys().all(|name| !name.contains("prediction")), "{details:?}");
    }
    host.quiet();
}
