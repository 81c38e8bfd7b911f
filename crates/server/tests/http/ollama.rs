//! Ollama's API: the model as it is listed, answers whole and by lines, tools, forms, thoughts, what is refused.

use serde_json::{Value, json};

use crate::client::{Answer, with};
use crate::host::{Host, keyed, local_server, small_engine};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

/// A body with more in it.
fn story() -> Value {
    json!({
        "model": "lantern", "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
        "options": {"temperature": 0, "num_predict": 40},
    })
}

/// The lines of a stream.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"))).collect()
}

/// All lines as one answer.
fn joined(lines: &[Value]) -> Value {
    let (last, pieces) = lines.split_last().expect("a last line");
    let mut whole = last.clone();
    for piece in pieces {
        assert_eq!(piece["done"], false);
        assert!(piece["created_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{piece}");
    }
    let at = |line: &Value| if line["message"].is_null() { line.clone() } else { line["message"].clone() };
    for name in ["content", "response", "thinking"] {
        let told: String = lines.iter().filter_map(|line| at(line)[name].as_str().map(str::to_owned)).collect();
        let place = if whole["message"].is_null() { &mut whole } else { &mut whole["message"] };
        if place.get(name).is_some() || !told.is_empty() {
            place[name] = told.into();
        }
    }
    let calls: Vec<Value> =
        lines.iter().flat_map(|line| at(line)["tool_calls"].as_array().cloned().unwrap_or_default()).collect();
    if !calls.is_empty() {
        whole["message"]["tool_calls"] = calls.into();
    }
    whole
}

/// Without what differs from one answer to the next.
fn plain(answer: &Value) -> Value {
    let mut answer = answer.clone();
    answer
        .as_object_mut()
        .unwrap()
        .retain(|name, _| !name.ends_with("_duration") && !["created_at", "timings"].contains(&name.as_str()));
    answer
}

#[test]
fn the_model_is_listed_shown_and_loaded() {
    let host = Host::start();
    assert_eq!(host.get("/api/version").json()["version"], env!("CARGO_PKG_VERSION"));
    let tags = host.get("/api/tags").json();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!("lantern:latest"), &json!("lantern:latest")));
    assert!(model["size"].as_u64().unwrap() > 1_000_000, "{model}");
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    assert_eq!(model["details"]["families"], json!([model["details"]["family"]]));
    let loaded = &host.get("/api/ps").json()["models"][0];
    assert_eq!((&loaded["digest"], &loaded["size_vram"]), (&model["digest"], &json!(0)));
    assert!(loaded["size"].as_u64() > model["size"].as_u64(), "with its cache");
    assert!(loaded["expires_at"].as_str().unwrap() > "2500");
    for name in ["lantern", "lantern:latest"] {
        let shown = host.ask("/api/show", &json!({"model": name}));
        assert_eq!(shown["details"], model["details"]);
        let arch = shown["model_info"]["general.architecture"].as_str().unwrap();
        assert_eq!(shown["model_info"][format!("{arch}.context_length")], 1024);
        assert!(shown["model_info"][format!("{arch}.block_count")].as_u64().unwrap() > 0);
        assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
        assert!(shown["template"].as_str().unwrap().contains("<|assistant|>"));
        assert_eq!(host.ask("/api/show", &json!({"name": name}))["details"], shown["details"]);
    }
    let verbose = host.ask("/api/show", &json!({"verbose": true}));
    assert!(verbose["model_info"]["tokenizer.ggml.tokens"].as_array().unwrap().len() > 1000);
    let mut connection = host.connect();
    connection.request("HEAD", "/api/version", &[("connection", "close")], b"");
    assert_eq!(connection.head().unwrap().0, 200);
}

#[test]
fn lines_are_the_whole_answer_in_pieces() {
    let host = Host::start();
    let sums = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}],
        "options": {"temperature": 0, "num_predict": 200}});
    for more in [
        json!({}),
        json!({"model": "lantern:latest"}),
        sums.clone(),
        with(&sums, &json!({"think": false})),
        with(&sums, &json!({"think": true})),
        json!({"options": {"temperature": 1, "seed": 7, "num_predict": 30, "stop": [" the"], "repeat_penalty": 1.1}}),
        json!({"messages": [{"role": "user", "content": "A story."}, {"role": "assistant", "content": "Once upon a"}]}),
    ] {
        let body = with(&story(), &more);
        let lines = lines(&host.post(CHAT, &body));
        let whole = host.ask(CHAT, &with(&body, &json!({"stream": false})));
        assert!(lines.len() > 2, "a line for each token: {body}");
        assert_eq!(plain(&joined(&lines)), plain(&whole), "{body}");
        assert_eq!((&whole["model"], &whole["done"]), (&body["model"], &json!(true)));
        assert_eq!(whole["message"]["role"], "assistant");
        for field in ["total_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count", "eval_count"] {
            assert!(whole[field].as_u64().unwrap() > 0, "{field}: {whole}");
        }
        let parts = ["prompt_eval_duration", "eval_duration"].map(|field| whole[field].as_u64().unwrap());
        assert!(parts.iter().sum::<u64>() <= whole["total_duration"].as_u64().unwrap(), "{whole}");
    }
    host.quiet();
}

#[test]
fn an_answer_is_what_openais_route_says_and_ends_for_the_same_reason() {
    let host = Host::start();
    for (most, reason) in [(3, "length"), (-1, "stop"), (-2, "stop"), (0, "stop")] {
        let body = with(&story(), &json!({"stream": false, "options": {"temperature": 0, "num_predict": most}}));
        let answer = host.ask(CHAT, &body);
        let limit = if most > 0 { json!(most) } else { Value::Null };
        let same = host
            .ask("/v1/chat/completions", &json!({"messages": body["messages"], "temperature": 0, "max_tokens": limit}));
        assert_eq!(answer["message"]["content"], same["choices"][0]["message"]["content"]);
        assert_eq!((&answer["done_reason"], &same["choices"][0]["finish_reason"]), (&json!(reason), &json!(reason)));
        assert_eq!(answer["prompt_eval_count"], same["usage"]["prompt_tokens"]);
        assert_eq!(answer["eval_count"], same["usage"]["completion_tokens"]);
    }
}

#[test]
fn thoughts_stand_apart_or_are_not_shown() {
    let host = Host::start();
    let ask = |think: Value| {
        let body = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "think": think,
            "stream": false, "options": {"temperature": 0, "num_predict": 200}});
        host.ask(CHAT, &body)
    };
    let (unsaid, shown, hidden) = (ask(Value::Null), ask(json!(true)), ask(json!(false)));
    assert!(unsaid["message"]["thinking"].as_str().is_some_and(|thought| !thought.is_empty()), "{unsaid}");
    assert_eq!(unsaid["message"], shown["message"]);
    assert_eq!(hidden["message"]["thinking"], Value::Null);
    assert!(hidden["message"]["content"].as_str().is_some_and(|text| !text.trim().is_empty()), "{hidden}");
    // This model's template has no switch: nothing can be done to think more.
    assert_eq!((&shown["hints"], &hidden["hints"]), (&json!(["think"]), &Value::Null));
    let generated = host.ask(
        GENERATE,
        &json!({"prompt": "What is 17 + 25?", "stream": false, "options": {"temperature": 0, "num_predict": 200}}),
    );
    assert_eq!(generated["thinking"], shown["message"]["thinking"]);
    assert_eq!(generated["response"], shown["message"]["content"]);
}

#[test]
fn a_form_is_kept_to() {
    let host = Host::start();
    let schema = json!({"type": "object", "properties": {"animal": {"enum": ["fox", "owl"]}}, "required": ["animal"],
        "additionalProperties": false});
    for (path, field) in [(CHAT, "message"), (GENERATE, "response")] {
        let asked = "Name an animal and count its legs.";
        let mut base = json!({"messages": [{"role": "user", "content": asked}], "prompt": asked,
            "stream": false, "options": {"temperature": 0, "num_predict": 300}});
        base.as_object_mut().unwrap().remove(if path == CHAT { "prompt" } else { "messages" });
        let answer = host.ask(path, &with(&base, &json!({"format": schema})));
        let text = if path == CHAT { &answer[field]["content"] } else { &answer[field] };
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap_or_else(|_| panic!("{answer}"));
        assert!(value == json!({"animal": "fox"}) || value == json!({"animal": "owl"}), "{value}");
        let answer = host.ask(path, &with(&base, &json!({"format": "json"})));
        let text = if path == CHAT { &answer[field]["content"] } else { &answer[field] };
        assert!(text.as_str().unwrap().trim_start().starts_with('{'), "{answer}");
    }
}

#[test]
fn tools_are_called_with_objects_and_what_they_said_is_told() {
    let host = Host::start();
    let weather = json!({"type": "function", "function": {"name": "weather", "description": "Says how it is.",
        "parameters": {"type": "object", "properties": {"place": {"enum": ["forest", "river"]}}, "required": ["place"],
        "additionalProperties": false}}});
    let body = json!({"messages": [{"role": "user", "content": "How is it?"}], "tools": [weather],
        "tool_choice": "required", "parallel_tool_calls": false, "options": {"temperature": 0, "num_predict": 300}});
    let whole = host.ask(CHAT, &with(&body, &json!({"stream": false})));
    let call = &whole["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "weather", "{whole}");
    assert!(["forest", "river"].iter().any(|place| call["arguments"] == json!({"place": place})), "{whole}");
    assert_eq!(whole["done_reason"], "stop");
    assert_eq!(whole["message"]["content"], "");
    assert_eq!(plain(&joined(&lines(&host.post(CHAT, &body)))), plain(&whole));
    // Cut off anywhere it says the same either way, and a call that has begun and not ended is none.
    for most in testing::part_of(1..whole["eval_count"].as_u64().unwrap(), 4) {
        let body = with(&body, &json!({"options": {"temperature": 0, "num_predict": most}}));
        let cut = host.ask(CHAT, &with(&body, &json!({"stream": false})));
        assert_eq!(plain(&joined(&lines(&host.post(CHAT, &body)))), plain(&cut), "{most}");
        assert!(!cut["message"]["content"].as_str().unwrap().contains("\"arguments\": {"), "{cut}");
    }
    // What an answer said may be sent back as it is.
    let mut messages = body["messages"].as_array().unwrap().clone();
    messages.push(whole["message"].clone());
    // A tool may have nothing to say.
    for said in [json!("Foggy."), json!(""), Value::Null] {
        let mut messages = messages.clone();
        messages.push(json!({"role": "tool", "tool_name": "weather", "content": said}));
        let next = host.ask(CHAT, &with(&body, &json!({"messages": messages, "tool_choice": "none", "stream": false})));
        assert!(next["prompt_eval_count"].as_u64() > Some(20), "{next}");
    }
}

#[test]
fn a_text_is_gone_on_with_from_its_context() {
    let host = Host::start();
    let options = json!({"temperature": 0, "num_predict": 20});
    let first = json!({"prompt": "Tell me a story about an owl.", "options": options});
    let whole = host.ask(GENERATE, &with(&first, &json!({"stream": false})));
    assert_eq!(plain(&joined(&lines(&host.post(GENERATE, &first)))), plain(&whole));
    let context = whole["context"].as_array().unwrap();
    let tokens = whole["prompt_eval_count"].as_u64().unwrap() + whole["eval_count"].as_u64().unwrap();
    assert_eq!(context.len() as u64, tokens, "prompt and answer");
    let next = json!({"prompt": "And then?", "stream": false, "options": options});
    let alone = host.ask(GENERATE, &next);
    let on = host.ask(GENERATE, &with(&next, &json!({"context": context})));
    assert_eq!(on["prompt_eval_count"].as_u64().unwrap(), alone["prompt_eval_count"].as_u64().unwrap() + tokens);
    assert_eq!(on["context"].as_array().unwrap()[..context.len()], context[..]);
    // Raw: the text as it is, and nothing to go on from.
    let raw = host.ask(GENERATE, &with(&next, &json!({"prompt": "Once upon a", "raw": true})));
    let same = host.ask("/v1/completions", &json!({"prompt": "Once upon a", "temperature": 0, "max_tokens": 20}));
    assert_eq!((&raw["response"], &raw["context"]), (&same["choices"][0]["text"], &Value::Null));
    let told = host.ask(GENERATE, &with(&next, &json!({"system": "Be brief."})));
    assert!(told["prompt_eval_count"].as_u64() > alone["prompt_eval_count"].as_u64());
}

#[test]
fn nothing_to_answer_means_to_load() {
    let host = Host::start();
    for (path, body) in [
        (CHAT, json!({"model": "lantern"})),
        (CHAT, json!({"model": "lantern", "messages": [], "keep_alive": -1})),
        (GENERATE, json!({"model": "lantern", "keep_alive": "5m"})),
        (GENERATE, json!({"model": "lantern", "prompt": "", "stream": false})),
    ] {
        let answer = host.ask(path, &body);
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")), "{body}");
        assert_eq!(answer["model"], "lantern");
    }
}

#[test]
fn what_changes_no_token_is_named_and_all_else_is_refused_by_name() {
    let host = Host::start();
    let ask = |more: Value| host.post(CHAT, &with(&story(), &with(&json!({"stream": false}), &more)));
    let options = |field: &str, value: Value| json!({"options": {"temperature": 0, "num_predict": 8, field: value}});
    let first = ask(options("seed", json!(1))).json()["message"].clone();
    for (more, hint) in [
        (json!({"keep_alive": "10m", "options": {"temperature": 0, "num_predict": 8}}), "keep_alive"),
        (options("num_ctx", json!(512)), "options.num_ctx"),
        (options("num_ctx", json!(32_768)), "options.num_ctx"),
        (options("num_gpu", json!(99)), "options.num_gpu"),
        (options("num_thread", json!(2)), "options.num_thread"),
        (options("use_mmap", json!(true)), "options.use_mmap"),
    ] {
        let answer = ask(more);
        assert_eq!(answer.header("x-twostroke-hints"), Some(hint));
        assert_eq!((&answer.json()["message"], &answer.json()["hints"]), (&first, &json!([hint])), "{hint}");
    }
    for off in [
        options("typical_p", json!(1.0)),
        options("tfs_z", json!(1)),
        options("mirostat", json!(0)),
        options("mirostat_tau", json!(5.0)),
        options("repeat_last_n", json!(64)),
        options("seed", json!(-1)),
        with(&options("top_k", json!(0)), &json!({"format": "", "truncate": false})),
    ] {
        assert_eq!(ask(off.clone()).json()["message"], first, "{off}");
    }
    for (more, status, field) in [
        (json!({"model": "other"}), 404, "model"),
        (json!({"model": "lantern:7b"}), 404, "model"),
        (json!({"messages": "hello"}), 400, "messages"),
        (json!({"messages": [{"role": "bot", "content": "a"}]}), 400, "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}), 400, "messages[0].images"),
        (json!({"messages": [{"role": "user", "content": ["a"]}]}), 400, "messages[0].content"),
        (
            json!({"messages": [{"role": "tool", "tool_name": "n".repeat(257)}]}),
            400,
            "messages[0].tool_name' has 257 bytes; at most 256",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",
            "arguments": "{}"}}]}]}),
            400,
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({"format": "yaml"}), 400, "format"),
        (json!({"think": "very"}), 400, "think"),
        (json!({"top_logprobs": 2}), 400, "'top_logprobs' needs 'logprobs'"),
        (json!({"logprobs": true, "top_logprobs": 21}), 400, "top_logprobs"),
        (json!({"logprobs": 2}), 400, "logprobs"),
        (json!({"stream": "yes"}), 400, "stream"),
        (json!({"temperature": 0}), 400, "temperature"),
        (options("mirostat", json!(2)), 400, "options.mirostat"),
        (options("typical_p", json!(0.5)), 400, "options.typical_p"),
        (json!({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}), 400, "options.repeat_last_n"),
        (options("num_ctx", json!(0)), 400, "options.num_ctx"),
        (options("top_p", json!("high")), 400, "options.top_p"),
        (options("top_p", json!(7)), 400, "top_p"),
        (options("stop", json!(5)), 400, "options.stop"),
        (options("warmth", json!(5)), 400, "options.warmth"),
        (json!({"keep_alive": []}), 400, "keep_alive"),
    ] {
        let answer = ask(more.clone());
        let told = answer.json();
        assert_eq!(answer.status, status, "{more}: {told}");
        let message = told["error"].as_str().unwrap_or_else(|| panic!("{told}"));
        assert!(message.contains(field), "{more}: {message}");
    }
    for (more, field) in [
        (json!({"suffix": "end"}), "suffix"),
        (json!({"prompt": "", "suffix": "end"}), "suffix"),
        (json!({"template": "{{ messages }}"}), "serve --trust-request-chat-template"),
        (json!({"images": ["aGk="]}), "images"),
        (json!({"raw": true, "system": "Be brief."}), "system"),
        (json!({"context": ["a"]}), "context"),
        (json!({"context": [1, 9_007_199_254_740_993_i64]}), "context: token id"),
        (json!({"context": [-1]}), "context: token id"),
    ] {
        let answer = host.post(GENERATE, &with(&json!({"prompt": "Once"}), &more));
        assert_eq!(answer.status, 400, "{more}");
        assert!(answer.json()["error"].as_str().unwrap().contains(field), "{more}: {}", answer.text());
    }
    host.quiet();
}

#[test]
fn log_probabilities_are_those_of_the_other_api() {
    let host = Host::start();
    let asked = json!({"logprobs": true, "top_logprobs": 3});
    let whole = host.ask(CHAT, &with(&with(&story(), &asked), &json!({"stream": false})));
    let other = host.ask(
        "/v1/chat/completions",
        &json!({
            "messages": story()["messages"], "temperature": 0, "max_tokens": 40, "logprobs": true, "top_logprobs": 3,
        }),
    );
    assert_eq!(whole["logprobs"], other["choices"][0]["logprobs"]["content"]);
    let first = &whole["logprobs"][0];
    assert!(
        first["token"].is_string() && first["bytes"].is_array() && first["logprob"].as_f64() <= Some(0.0),
        "{first}"
    );
    assert_eq!(first["top_logprobs"].as_array().map(Vec::len), Some(3));
    // Of a stream each line has those of its own tokens, and none is lost.
    for path in [CHAT, GENERATE] {
        let asks = match path {
            CHAT => json!({"messages": story()["messages"]}),
            _ => json!({"prompt": "Once upon a time"}),
        };
        let body = with(&with(&asks, &asked), &json!({"options": story()["options"]}));
        let whole = host.ask(path, &with(&body, &json!({"stream": false})));
        let lines = lines(&host.post(path, &body));
        let told: Vec<&Value> = lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten().collect();
        assert_eq!(told, whole["logprobs"].as_array().unwrap().iter().collect::<Vec<_>>(), "{path}");
        assert_eq!(Some(told.len() as u64), whole["eval_count"].as_u64());
        let plain = host.ask(path, &with(&body, &json!({"stream": false, "logprobs": false, "top_logprobs": 0})));
        assert_eq!((plain.get("logprobs"), &plain["response"]), (None, &whole["response"]));
    }
    host.quiet();
}

#[test]
fn a_template_of_a_request_is_run_where_the_server_allows_that() {
    let options = server::ServerOptions { trust_request_chat_template: true, ..local_server() };
    let host = Host::with(small_engine(), options);
    let ask = |more: Value| {
        let base = json!({"prompt": "a fox", "stream": false, "options": {"temperature": 0, "num_predict": 8}});
        host.post(GENERATE, &with(&base, &more))
    };
    let template = "{% for message in messages %}Once there was {{ message.content }}{% endfor %}";
    let templated = ask(json!({"template": template})).json();
    let plain = ask(json!({"raw": true, "prompt": "Once there was a fox"})).json();
    // The model's template is one of a reasoning model: white space before the answer is none of it.
    assert_eq!(templated["response"].as_str().unwrap(), plain["response"].as_str().unwrap().trim_start());
    assert_eq!(templated["prompt_eval_count"], plain["prompt_eval_count"]);
    assert_eq!(ask(json!({"template": ""})).json()["response"], ask(json!({})).json()["response"]);
    for more in [json!({"template": template, "raw": true}), json!({"template": "{% for"})] {
        let answer = ask(more.clone());
        assert_eq!(answer.status, 400, "{more}");
        assert!(answer.json()["error"].as_str().unwrap().contains("template"), "{more}: {}", answer.text());
    }
    host.quiet();
}

#[test]
fn models_come_and_go_with_the_server_alone() {
    let host = Host::start();
    for (method, path, status, said) in [
        ("POST", "/api/push", 501, "-m"),
        ("POST", "/api/create", 501, "-m"),
        ("POST", "/api/copy", 501, "-m"),
        ("POST", "/api/pull", 403, "--allow-pull"),
        ("DELETE", "/api/delete", 403, "--allow-pull"),
    ] {
        let answer = host.send(method, path, &[("content-type", "application/json"), ("connection", "close")], b"{}");
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.json()["error"].as_str().unwrap().contains(said), "{path}");
    }
    assert_eq!(host.get("/api/nothing").status, 404);
    assert!(host.get("/api/nothing").json()["error"].is_string());
    assert_eq!(host.get(CHAT).status, 405);
}

#[test]
fn every_route_asks_for_the_key() {
    let host = Host::with(small_engine(), keyed(&["sk-a"]));
    for (method, path) in server::routes().filter(|(_, path)| path.starts_with("/api/")) {
        let answer = host.send(method, path, &[("content-type", "application/json"), ("connection", "close")], b"{}");
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.json()["error"].is_string(), "{path}");
    }
}
