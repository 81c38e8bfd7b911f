//! Anthropic's Messages API: blocks whole and as they grow, tools and back, what is honoured, refused and a hint.

use model::{Batch, Forward};
use serde_json::{Value, json};

use crate::client::{Answer, with};
use crate::host::{Host, keyed, local_server, small_engine};
use crate::sick::{Illness, Sick};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn send(host: &Host, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let headers = [&[("content-type", "application/json"), ("connection", "close")], headers].concat();
    host.send(method, path, &headers, body)
}

/// A request for `text`, with more fields.
fn asks(text: &str, more: Value) -> Value {
    with(&json!({"max_tokens": 300, "temperature": 0, "messages": [{"role": "user", "content": text}]}), &more)
}

/// Names and bodies of a stream's events.
fn events(host: &Host, body: &Value) -> Vec<(String, Value)> {
    let answer = host.post(PATH, &with(body, &json!({"stream": true})));
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    let event = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").unwrap_or_else(|| panic!("{event:?}"));
        let name = name.rsplit_once("event: ").expect("a name").1;
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["type"], name);
        (name.to_owned(), data)
    };
    answer.text().trim_end().split("\n\n").filter(|event| !event.starts_with(": ")).map(event).collect()
}

/// The message that a client makes of them, as Anthropic's own do.
fn message_of(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut json = String::new();
    for (name, event) in events {
        let at = event["index"].as_u64().unwrap_or_default() as usize;
        match name.as_str() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().unwrap();
                assert_eq!(blocks.len(), at);
                blocks.push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let (delta, block) = (&event["delta"], &mut message["content"][at]);
                let field = match delta["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    "input_json_delta" => {
                        json.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    kind => panic!("{kind}"),
                };
                block[field] = (block[field].as_str().unwrap().to_owned() + delta[field].as_str().unwrap()).into();
            }
            "content_block_stop" if !json.is_empty() => {
                message["content"][at]["input"] = serde_json::from_str(&json).unwrap();
            }
            "message_delta" => {
                for (field, value) in event["delta"].as_object().unwrap() {
                    message[field] = value.clone();
                }
                for (field, value) in event.as_object().unwrap() {
                    if !["type", "delta"].contains(&field.as_str()) {
                        message[field] = value.clone();
                    }
                }
            }
            _ => {}
        }
    }
    message
}

/// Without what differs from one answer to the next.
fn plain(message: &Value) -> Value {
    let mut message = message.clone();
    for field in ["id", "timings"] {
        assert!(message.as_object_mut().unwrap().remove(field).is_some(), "{message}");
    }
    let usage = &mut message["usage"];
    usage["input_tokens"] =
        json!(usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap());
    usage["cache_read_input_tokens"] = Value::Null;
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    message
}

fn kinds(message: &Value) -> Vec<&str> {
    message["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect()
}

fn weather() -> Value {
    json!({"name": "weather", "strict": true, "description": "Says how it is.", "input_schema": {
        "type": "object", "properties": {"place": {"enum": ["forest", "river"]}}, "required": ["place"],
        "additionalProperties": false}})
}

/// Wants one call.
fn one_call() -> Value {
    json!({"tools": [weather()], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})
}

#[test]
fn a_message_and_its_events_say_the_same() {
    let host = Host::start();
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["fox", "owl"]}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let before = json!({"output_format": {"type": "json_schema", "schema": schema}});
    for (body, blocks, reason) in [
        (asks("Tell me a story about a fox.", json!({"max_tokens": 8})), vec!["text"], "max_tokens"),
        (asks("What is 17 + 25?", json!({})), vec!["thinking", "text"], "end_turn"),
        (asks("What is 17 + 25?", json!({"thinking": {"type": "disabled"}})), vec!["text"], "end_turn"),
        (asks("Name an animal and count its legs.", format), vec!["text"], "end_turn"),
        (asks("Name an animal and count its legs.", before), vec!["text"], "end_turn"),
        (asks("How is it?", one_call()), vec!["tool_use"], "tool_use"),
        (asks("Tell me a story.", json!({"stop_sequences": ["a"]})), vec!["text"], "stop_sequence"),
    ] {
        let whole = host.ask(PATH, &body);
        // What is said behind a thought is what must look like something.
        let hides = body["thinking"]["type"] == "disabled";
        let told: Vec<&str> = kinds(&whole).into_iter().filter(|kind| hides || *kind != "thinking").collect();
        let wanted: Vec<&str> = blocks.iter().copied().filter(|kind| *kind != "thinking").collect();
        assert_eq!(told, wanted, "{body}: {whole}");
        assert!(!blocks.contains(&"thinking") || kinds(&whole)[0] == "thinking", "{whole}");
        assert_eq!((&whole["stop_reason"], &whole["model"]), (&json!(reason), &json!("lantern")), "{whole}");
        assert_eq!(whole["stop_sequence"], if reason == "stop_sequence" { json!("a") } else { Value::Null });
        assert!(whole["id"].as_str().unwrap().starts_with("msg_"));
        let events = events(&host, &body);
        assert_eq!(plain(&message_of(&events)), plain(&whole));
        // Each block starts, grows and stops before the next one.
        let mut names = vec!["message_start", "ping"];
        for at in 0..kinds(&whole).len() {
            let deltas = events.iter().filter(|(name, event)| name == "content_block_delta" && event["index"] == at);
            names.push("content_block_start");
            names.extend(deltas.map(|_| "content_block_delta"));
            names.push("content_block_stop");
        }
        names.extend(["message_delta", "message_stop"]);
        assert_eq!(events.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
    }
    host.quiet();
}

#[test]
fn a_tools_second_turn_is_told_to_the_model() {
    let host = Host::start();
    let first = host.ask(PATH, &asks("How is it?", one_call()));
    let call = first["content"].as_array().unwrap().last().unwrap();
    assert!(["forest", "river"].iter().any(|place| call["input"]["place"] == *place), "{call}");
    let turn = |result: Value| {
        let mut result = with(&json!({"type": "tool_result", "tool_use_id": call["id"]}), &result);
        result["cache_control"] = json!({"type": "ephemeral"});
        json!({"max_tokens": 20, "temperature": 0, "tools": [weather()], "messages": [
            {"role": "user", "content": "How is it?"},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ]})
    };
    // The same as chat is told by its own words.
    let arguments = call["input"].to_string();
    let thought = first["content"].as_array().unwrap().iter().find(|block| block["type"] == "thinking");
    let thought = thought.map_or(Value::Null, |block| block["thinking"].clone());
    let chat = |said: &str| {
        let function = json!({"name": "weather", "description": "Says how it is.", "strict": true,
            "parameters": weather()["input_schema"]});
        json!({"tools": [{"type": "function", "function": function}], "messages": [
            {"role": "user", "content": "How is it?"},
            {"role": "assistant", "content": null, "reasoning_content": thought, "tool_calls": [{"id": call["id"],
                "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": call["id"], "content": said},
            {"role": "user", "content": "So?"},
        ]})
    };
    for (result, said) in [
        (json!({"content": "It rains."}), "It rains."),
        (json!({"content": [{"type": "text", "text": "It"}, {"type": "text", "text": "rains."}]}), "It\nrains."),
        (json!({"content": "No rain gauge.", "is_error": true}), "Error: No rain gauge."),
        (json!({}), ""),
    ] {
        let told = host.ask("/tokenize", &chat(said));
        let body = turn(result);
        let answer = host.ask(PATH, &body);
        let usage = &answer["usage"];
        let tokens = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(json!(tokens), told["count"], "{body}");
        assert_eq!(host.ask(COUNT, &body), json!({"input_tokens": tokens}));
        assert_eq!(usage["cache_creation_input_tokens"], 0);
    }
    host.quiet();
}

#[test]
fn an_assistants_last_message_is_gone_on_with() {
    let host = Host::start();
    let begun = |content: Value| {
        let turns = json!([{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": content}]);
        json!({"max_tokens": 12, "temperature": 0, "messages": turns})
    };
    let chat = json!({"max_tokens": 12, "temperature": 0, "continue_final_message": true, "messages": [
        {"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once upon"}]});
    let said = host.ask("/v1/chat/completions", &chat)["choices"][0]["message"]["content"].clone();
    for content in [json!("Once upon"), json!([{"type": "text", "text": "Once upon"}])] {
        assert_eq!(host.ask(PATH, &begun(content))["content"][0]["text"], said);
    }
}

#[test]
fn turns_and_blocks_are_told_in_their_order() {
    let host = Host::start();
    let count =
        |path: &str, body: Value| host.ask(path, &body)[if path == COUNT { "input_tokens" } else { "count" }].clone();
    let block = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    for (anthropics, chats) in [
        (
            json!({"system": "Be kind.", "messages": [{"role": "user", "content": "Hello"}]}),
            json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]),
        ),
        (
            json!({"system": [block("Be"), block("kind.")], "messages": [{"role": "user", "content": [block("Hel"), block("lo")]}]}),
            json!([{"role": "system", "content": "Be\nkind."}, {"role": "user", "content": "Hel\nlo"}]),
        ),
        (
            json!({"messages": [{"role": "user", "content": "Hello"}, {"role": "user", "content": "you"}]}),
            json!([{"role": "user", "content": "Hello\nyou"}]),
        ),
        (
            json!({"messages": [{"role": "user", "content": "Hello"}, {"role": "system", "content": "It is late."},
                {"role": "user", "content": "Good night"}]}),
            json!([{"role": "user", "content": "Hello"}, {"role": "system", "content": "It is late."},
                {"role": "user", "content": "Good night"}]),
        ),
        (
            json!({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Two and two.", "signature": ""}, {"type": "text", "text": "4"}]},
                {"role": "user", "content": "And 3 + 3?"}]}),
            json!([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4", "reasoning": "Two and two."},
                {"role": "user", "content": "And 3 + 3?"}]),
        ),
    ] {
        assert_eq!(count(COUNT, anthropics.clone()), count("/tokenize", json!({"messages": chats})), "{anthropics}");
    }
}

#[test]
fn a_thought_has_the_budget_that_it_is_given() {
    let host = Host::start();
    let thought = |more: Value| {
        let message = host.ask(PATH, &asks("What is 17 + 25?", more));
        let first = message["content"][0].clone();
        (first["thinking"].as_str().unwrap_or_default().to_owned(), kinds(&message).len())
    };
    let (free, _) = thought(json!({}));
    assert!(!free.is_empty());
    let enabled = |tokens: u64| json!({"thinking": {"type": "enabled", "budget_tokens": tokens}});
    let (short, _) = thought(enabled(3));
    assert!(free.starts_with(short.trim_end()) && short.len() < free.len(), "{short:?} of {free:?}");
    for same in [enabled(1024), json!({"thinking": {"type": "adaptive"}}), json!({"thinking": null})] {
        assert_eq!(thought(same), (free.clone(), 2));
    }
    for hidden in [json!({"type": "disabled"}), json!({"type": "adaptive", "display": "omitted"})] {
        assert_eq!(thought(json!({"thinking": hidden})), (String::new(), 1));
    }
}

#[test]
fn what_claude_code_sends_is_taken() {
    let host = Host::start();
    let cached = json!({"type": "ephemeral"});
    let block = |text: &str| json!({"type": "text", "text": text, "cache_control": cached});
    let body = json!({
        "model": "lantern", "stream": true, "max_tokens": 32000, "temperature": 0,
        "system": [{"type": "text", "text": "You are"}, block("an agent"), block("and kind.")],
        "messages": [
            {"role": "user", "content": [block("Hello"), {"type": "text", "text": "there"}]},
            {"role": "system", "content": "Mind the clock."},
            {"role": "user", "content": [block("How are you?")]},
        ],
        "tools": [
            {"name": "Read", "description": "Reads a file.", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}, "cache_control": cached},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "somebody"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    });
    let headers = [
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "claude-code-20250219,no-such-2099"),
        ("x-api-key", "any"),
    ];
    let answer = send(&host, "POST", "/v1/messages?beta=true", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    let hints = answer.header("x-twostroke-hints").unwrap();
    for hint in [
        "metadata",
        "system[].cache_control",
        "tools[].cache_control",
        "messages[].content[].cache_control",
        "tools[].web_search",
        "output_config.effort",
        "context_management",
        "anthropic-beta",
    ] {
        assert!(hints.split(", ").any(|told| told == hint), "{hint} is not in {hints}");
    }
    assert!(answer.header("x-twostroke-max-tokens").is_some(), "it is cut to what the context leaves");
    assert!(answer.text().contains("event: message_stop"), "{}", answer.text());
    host.quiet();
}

#[test]
fn hints_change_nothing_and_are_named() {
    let host = Host::start();
    let body = asks("Tell me a story.", json!({"max_tokens": 6}));
    let said = host.ask(PATH, &body)["content"].clone();
    let tool = |kind: &str| json!({"tools": [{"type": kind, "name": "x", "display_width_px": 5}]});
    for (more, hint) in [
        (json!({"metadata": {"user_id": "u"}}), "metadata"),
        (json!({"cache_control": {"type": "ephemeral", "ttl": "1h"}}), "cache_control"),
        (json!({"inference_geo": "us"}), "inference_geo"),
        (json!({"speed": "fast"}), "speed"),
        (json!({"service_tier": "auto"}), "service_tier"),
        (json!({"service_tier": "standard_only"}), "service_tier"),
        (json!({"context_management": {"edits": []}}), "context_management"),
        (json!({"output_config": {"effort": "max"}}), "output_config.effort"),
        (json!({"thinking": {"type": "adaptive", "display": "summarized"}}), "thinking.display"),
        (tool("web_search_20250305"), "tools[].web_search"),
        (tool("web_fetch_20250910"), "tools[].web_fetch"),
        (
            // What is said of tools that run elsewhere does not matter here.
            json!({"tools": [{"type": "web_fetch_20250910", "name": "fetch", "defer_loading": true,
                "allowed_callers": ["code_execution_20250825"]}]}),
            "tools[].web_fetch",
        ),
        (tool("bash_20250124"), "tools[].bash"),
        (tool("text_editor_20250728"), "tools[].text_editor"),
        (tool("computer_20250124"), "tools[].computer"),
        (tool("code_execution_20250825"), "tools[].code_execution"),
        (tool("memory_20250818"), "tools[].memory"),
        (tool("tool_search_tool_regex_20251119"), "tools[].tool_search"),
        (tool("mcp_toolset"), "tools[].mcp_toolset"),
    ] {
        let answer = host.ask(PATH, &with(&body, &more));
        let is_named = answer["hints"].as_array().is_some_and(|hints| hints.iter().any(|told| told == hint));
        assert_eq!((is_named, &answer["content"]), (true, &said), "{more}: {}", answer["hints"]);
    }
    // What asks for nothing is no hint either.
    for more in [
        json!({"container": null, "mcp_servers": [], "tools": [], "stop_sequences": [], "system": null}),
        json!({"tool_choice": {"type": "auto"}, "thinking": null, "output_config": {}}),
        json!({"tools": [weather()], "tool_choice": {"type": "none"}}),
        json!({"top_p": 1, "top_k": 0, "min_p": 0, "seed": 5, "cache_salt": "s", "priority": 0, "speculate": false}),
        json!({"chat_template_kwargs": {"nobody": "reads it"}}),
    ] {
        let answer = host.ask(PATH, &with(&body, &more));
        assert_eq!((answer.get("hints"), &answer["content"]), (None, &said), "{more}");
    }
}

#[test]
fn what_is_wrong_with_a_message_is_named() {
    let host = Host::start();
    let content = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let said = |block: Value| json!({"messages": [{"role": "assistant", "content": [block]}]});
    let tool = |tool: Value| json!({"tools": [tool]});
    for (more, field) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "5"}), "max_tokens"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (content(json!({"type": "image", "source": {}})), "messages[0].content[0].type"),
        (content(json!({"type": "document", "source": {}})), "messages[0].content[0].type"),
        (content(json!({"type": "tool_use", "id": "a", "name": "b", "input": {}})), "messages[0].content[0].type"),
        (content(json!({"type": "text"})), "messages[0].content[0].text"),
        (content(json!({"type": "text", "text": "x", "citations": [{}]})), "messages[0].content[0].citations"),
        (content(json!({"type": "tool_result", "content": "x"})), "messages[0].content[0].tool_use_id"),
        (content(json!({"type": "tool_result", "tool_use_id": "a".repeat(257)})), "messages[0].content[0].tool_use_id"),
        (
            content(json!({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]})),
            "messages[0].content[0].content[0].type",
        ),
        (said(json!({"type": "tool_use", "id": "a", "name": "b", "input": "{}"})), "messages[0].content[0].input"),
        (said(json!({"type": "thinking"})), "messages[0].content[0].thinking"),
        (said(json!({"type": "server_tool_use"})), "messages[0].content[0].type"),
        (json!({"system": [{"type": "image"}]}), "system[0].type"),
        (json!({"system": 5}), "system"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": [5]}), "stop_sequences[0]"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"temperature": -9}), "temperature"),
        (json!({"temprature": 1}), "temprature"),
        (json!({"n": 2}), "n"),
        (tool(json!({"name": "a"})), "tools[0].input_schema"),
        (tool(json!({"name": "a b", "input_schema": {}})), "tools[0].name"),
        (tool(json!({"type": "dragon", "name": "a"})), "tools[0].type"),
        (tool(json!({"name": "a", "input_schema": {}, "defer_loading": true})), "tools[0].defer_loading"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "maybe"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tools": [weather()], "tool_choice": {"type": "tool", "name": "nobody"}}), "tool_choice"),
        (json!({"tools": [weather(), weather()]}), "tools"),
        (json!({"thinking": {"type": "often"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": -1}}), "thinking.budget_tokens"),
        (json!({"output_config": {"effort": "heroic"}}), "output_config.effort"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
            "context_management.edits[0]",
        ),
        (json!({"service_tier": "express"}), "service_tier"),
        (json!({"container": "c"}), "container"),
        (json!({"mcp_servers": [{}]}), "mcp_servers"),
        (json!({"metadata": 5}), "metadata"),
        (json!({"thread": {"type": "create"}}), "thread"),
    ] {
        let body = with(&asks("x", json!({})), &more);
        let answer = host.post(PATH, &body);
        assert_eq!(answer.status, 400, "{more}: {}", answer.text());
        let error = answer.json();
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert!(error["error"]["message"].as_str().unwrap().contains(field), "{field}: {error}");
    }
    // The clients' runner of tools asks for a thread, and goes on without one for these two.
    let error = host.post(PATH, &with(&asks("x", json!({})), &json!({"thread": {"type": "create"}}))).json();
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!(error["error"]["details"], details);
    host.quiet();
}

/// Its passes fail from the third on: one alone would be tried again.
struct Third(usize);

impl Illness for Third {
    fn before(&mut self, _: &Batch) {
        self.0 += 1;
        assert!(self.0 < 3, "pass {}", self.0);
    }

    fn logits(&mut self, _: usize, _: &mut [f32]) {}
}

#[test]
fn a_stream_that_fails_in_the_middle_says_so_and_does_not_stop() {
    let around = |inner| Box::new(Sick { inner, illness: Third(0) }) as Box<dyn Forward>;
    let host = Host::around(small_engine(), local_server(), around);
    let events = events(&host, &asks("Tell me a story.", json!({"speculate": false})));
    let (name, error) = events.last().unwrap();
    assert_eq!((name.as_str(), &error["error"]["type"]), ("error", &json!("api_error")));
    assert!(events.iter().any(|(name, _)| name == "content_block_delta"));
    assert!(events.iter().all(|(name, _)| !["message_delta", "message_stop"].contains(&name.as_str())));
    host.quiet();
}

#[test]
fn errors_have_anthropics_envelope_and_keys_its_header() {
    let host = Host::with(small_engine(), keyed(&["one", "two"]));
    let body = asks("Hello", json!({"max_tokens": 3}));
    let version = ("anthropic-version", "2023-06-01");
    let key = ("x-api-key", "two");
    let unknown = with(&body, &json!({"model": "claude"}));
    for (method, path, headers, body, status, kind) in [
        ("POST", PATH, vec![key], body.to_string(), 200, ""),
        ("POST", PATH, vec![("authorization", "Bearer one")], body.to_string(), 200, ""),
        ("POST", COUNT, vec![key, version], body.to_string(), 200, ""),
        ("POST", PATH, vec![], body.to_string(), 401, "authentication_error"),
        ("POST", PATH, vec![("x-api-key", "three")], body.to_string(), 401, "authentication_error"),
        ("POST", PATH, vec![key], "{".to_owned(), 400, "invalid_request_error"),
        ("POST", PATH, vec![key], unknown.to_string(), 404, "not_found_error"),
        ("POST", "/v1/messages/batches", vec![key], body.to_string(), 404, "not_found_error"),
        ("GET", PATH, vec![key], String::new(), 405, "invalid_request_error"),
        ("GET", "/v1/models/claude", vec![key, version], String::new(), 404, "not_found_error"),
    ] {
        let answer = send(&host, method, path, &headers, body.as_bytes());
        let error = answer.json();
        assert_eq!(answer.status, status, "{method} {path}: {error}");
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
        if status != 200 {
            assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)), "{error}");
            assert_eq!(error["error"].as_object().unwrap().len(), 2);
        }
    }
    let models = send(&host, "GET", "/v1/models", &[key, version], b"").json();
    assert_eq!((&models["first_id"], &models["has_more"]), (&json!("lantern"), &json!(false)));
    let model = &models["data"][0];
    assert_eq!((&model["type"], &model["id"]), (&json!("model"), &json!("lantern")));
    assert!(model["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(send(&host, "GET", "/v1/models/lantern", &[key, version], b"").json(), *model);
    let openais = send(&host, "GET", "/v1/models", &[key], b"");
    assert_eq!((openais.json()["object"].as_str(), openais.header("request-id")), (Some("list"), None));
    host.quiet();
}
