//! The Responses API: items whole and as they grow, what is kept, what is gone on from.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::host::{Host, local_server, small_engine, wait};

const PATH: &str = "/v1/responses";

fn ask(method: &str, host: &Host, path: &str, key: Option<&str>) -> Answer {
    let mut connection = host.connect();
    let bearer = key.map(|key| format!("Bearer {key}"));
    let mut headers = vec![("connection", "close")];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    connection.request(method, path, &headers, b"");
    connection.answer()
}

/// Names and bodies of a stream's events, whose numbers are looked at.
fn events(host: &Host, body: &Value) -> Vec<(String, Value)> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let answer = host.post(PATH, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    let event = |(at, event): (usize, &str)| {
        let (name, data) = event.split_once("\ndata: ").unwrap_or_else(|| panic!("{event:?}"));
        let name = name.rsplit_once("event: ").expect("a name").1;
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(at)));
        (name.to_owned(), data)
    };
    text.trim_end().split("\n\n").filter(|event| !event.starts_with(": ")).enumerate().map(event).collect()
}

/// Without what differs from one answer to the next.
fn plain(response: &Value) -> Value {
    let mut response = response.clone();
    for field in ["id", "created_at", "timings"] {
        response.as_object_mut().unwrap().remove(field);
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        if item["type"] == "function_call" {
            item["call_id"] = Value::Null;
        }
    }
    response
}

fn weather() -> Value {
    json!({"type": "function", "name": "weather", "strict": true, "description": "Says how it is.", "parameters": {
        "type": "object", "properties": {"place": {"enum": ["forest", "river"]}}, "required": ["place"],
        "additionalProperties": false}})
}

#[test]
fn a_response_and_its_events_say_the_same() {
    let host = Host::start();
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["fox", "owl"]}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "animal", "schema": schema, "strict": true}});
    for (more, kinds) in [
        (json!({"input": "Tell me a story about a fox."}), vec!["message"]),
        (json!({"input": [{"role": "user", "content": "What is 17 + 25?"}]}), vec!["reasoning", "message"]),
        (json!({"input": "Name an animal and count its legs.", "text": format}), vec!["message"]),
        (
            json!({"input": "How is it?", "tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false}),
            vec!["function_call"],
        ),
        (json!({"input": "Tell me a story.", "max_output_tokens": 5, "instructions": "Be brief."}), vec!["message"]),
    ] {
        let mut body = json!({"model": "lantern", "temperature": 0, "max_output_tokens": 300, "store": false});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        let whole = host.ask(PATH, &body);
        assert_eq!(whole.get("user"), None, "a text or absent");
        let told: Vec<&str> =
            whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
        // What is said behind a thought is what must look like something.
        let kinds = if told.len() > kinds.len() { [&["reasoning"], kinds.as_slice()].concat() } else { kinds };
        assert_eq!(told, kinds, "{whole}");
        let events = events(&host, &body);
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..2], ["response.created", "response.in_progress"]);
        let last = &events.last().unwrap();
        let is_cut = body["max_output_tokens"] == 5;
        assert_eq!(last.0, if is_cut { "response.incomplete" } else { "response.completed" });
        assert_eq!(plain(&last.1["response"]), plain(&whole));
        assert_eq!(whole["status"], if is_cut { "incomplete" } else { "completed" });
        assert_eq!(
            whole["incomplete_details"]["reason"],
            if is_cut { json!("max_output_tokens") } else { Value::Null }
        );
        // Each item: added, its part added, deltas, all of them again, the part, the item.
        for (at, kind) in kinds.iter().enumerate() {
            let of_item: Vec<&(String, Value)> =
                events.iter().filter(|(_, event)| event["output_index"] == at).collect();
            let names: Vec<&str> = of_item.iter().map(|(name, _)| name.as_str()).collect();
            let text = match *kind {
                "function_call" => "function_call_arguments",
                "reasoning" => "reasoning_text",
                _ => "output_text",
            };
            let deltas = names.iter().filter(|name| **name == format!("response.{text}.delta")).count();
            let mut wanted = vec!["response.output_item.added".to_owned()];
            let has_part = *kind != "function_call";
            wanted.extend(has_part.then(|| "response.content_part.added".to_owned()));
            wanted.extend(vec![format!("response.{text}.delta"); deltas]);
            wanted.push(format!("response.{text}.done"));
            wanted.extend(has_part.then(|| "response.content_part.done".to_owned()));
            wanted.push("response.output_item.done".to_owned());
            assert_eq!(names, wanted);
            let sum: String = of_item.iter().filter_map(|(_, event)| event["delta"].as_str()).collect();
            let item = &whole["output"][at];
            assert_eq!(sum, item["content"][0]["text"].as_str().or(item["arguments"].as_str()).unwrap());
            let ids: Vec<&Value> = of_item.iter().filter_map(|(_, event)| event.get("item_id")).collect();
            assert!(ids.iter().all(|id| **id == of_item[0].1["item"]["id"]));
            assert_eq!(of_item.last().unwrap().1["item"]["status"], "completed");
        }
    }
    host.quiet();
}

#[test]
fn a_tools_second_turn_is_told_to_the_model() {
    let host = Host::start();
    let mut body = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]}],
        "tools": [weather()], "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 300});
    let first = host.ask(PATH, &body);
    let output = first["output"].as_array().unwrap();
    let call = output.last().unwrap().clone();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "It rains."});
    // By the items themselves, and by the name of what was kept: the same prompt.
    let mut items = body["input"].as_array().unwrap().clone();
    items.extend(output.iter().cloned().chain([result.clone()]));
    let name = |item: &Value| json!({"type": "item_reference", "id": item["id"]});
    let mut names = body["input"].as_array().unwrap().clone();
    names.extend(output.iter().map(name).chain([result.clone()]));
    body["tool_choice"] = json!("auto");
    (body["temperature"], body["max_output_tokens"]) = (json!(0), json!(20));
    body["input"] = json!(items);
    let by_items = host.ask(PATH, &body);
    body["input"] = json!(names);
    let by_names = host.ask(PATH, &body);
    assert_eq!(by_items["usage"]["input_tokens"], by_names["usage"]["input_tokens"]);
    assert_eq!(plain(&by_items)["output"], plain(&by_names)["output"]);
    let kept = ask("GET", &host, &format!("{PATH}/{}/input_items", by_names["id"].as_str().unwrap()), None).json();
    assert!(kept["data"].as_array().unwrap().iter().all(|item| item["type"] != "item_reference"), "{kept}");
    body["input"] = json!([result]);
    body["previous_response_id"] = first["id"].clone();
    let by_name = host.ask(PATH, &body);
    assert_eq!(by_items["usage"]["input_tokens"], by_name["usage"]["input_tokens"]);
    assert_eq!(plain(&by_items)["output"], plain(&by_name)["output"]);
    let count = host.ask("/v1/responses/input_tokens", &body);
    assert_eq!(count["input_tokens"], by_name["usage"]["input_tokens"]);
}

#[test]
fn what_is_kept_is_its_keys_alone_until_it_is_deleted() {
    let keys = ["one", "two"].map(server::ApiKey::from).to_vec();
    let host = Host::with(small_engine(), server::ServerOptions { api_keys: keys, ..local_server() });
    let post = |path: &str, body: &Value, key: &str| {
        let mut connection = host.connect();
        let bearer = format!("Bearer {key}");
        let headers =
            [("content-type", "application/json"), ("connection", "close"), ("authorization", bearer.as_str())];
        connection.request("POST", path, &headers, body.to_string().as_bytes());
        connection.answer()
    };
    let body = json!({"input": "Hello", "max_output_tokens": 5, "temperature": 0, "metadata": {"a": "b"}});
    let made = post(PATH, &body, "one").json();
    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    assert_eq!(ask("GET", &host, &path, Some("one")).json(), made);
    let cancelled = ask("POST", &host, &format!("{path}/cancel"), Some("one"));
    assert_eq!(cancelled.status, 400);
    assert_eq!(cancelled.json()["error"]["message"], "Cannot cancel a synchronous response.");
    assert_eq!(made["metadata"], json!({"a": "b"}));
    let items = ask("GET", &host, &format!("{path}/input_items"), Some("one")).json();
    assert_eq!(items["data"][0]["content"][0]["text"], "Hello");
    for (method, path) in [("GET", path.clone()), ("DELETE", path.clone()), ("GET", format!("{path}/input_items"))] {
        assert_eq!(ask(method, &host, &path, Some("two")).status, 404, "{method} {path}");
    }
    let more = json!({"input": "More", "previous_response_id": made["id"], "max_output_tokens": 5});
    assert_eq!(post(PATH, &more, "two").status, 404);
    let item = json!({"type": "item_reference", "id": made["output"][0]["id"]});
    let named = |items: Value| json!({"input": items, "max_output_tokens": 2});
    for (items, key, status, place) in [
        (json!([item, {"role": "user", "content": "More"}]), "one", 200, Value::Null),
        (json!([item]), "two", 404, json!("input[0].id")),
        (json!([{"type": "item_reference", "id": "msg_no"}]), "one", 404, json!("input[0].id")),
        (json!([item, item]), "one", 400, json!("input[1].id")),
        (json!([{"type": "item_reference"}]), "one", 400, json!("input[0].id")),
    ] {
        let answer = post(PATH, &named(items.clone()), key);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (status, &place), "{items}");
    }
    assert!(post(PATH, &more, "one").json()["usage"]["input_tokens"].as_u64() > made["usage"]["input_tokens"].as_u64());
    assert_eq!(ask("DELETE", &host, &path, Some("one")).json()["deleted"], true);
    assert_eq!(ask("GET", &host, &path, Some("one")).status, 404);
    let unkept = post(PATH, &json!({"input": "Hello", "max_output_tokens": 2, "store": false}), "one").json();
    assert_eq!(ask("GET", &host, &format!("{PATH}/{}", unkept["id"].as_str().unwrap()), Some("one")).status, 404);
}

#[test]
fn an_answer_in_the_background_is_asked_for_again_or_cancelled() {
    let host = Host::start();
    let body =
        json!({"input": "Tell me a story about a fox.", "background": true, "max_output_tokens": 30, "temperature": 0});
    let queued = host.ask(PATH, &body);
    assert_eq!((&queued["status"], &queued["output"]), (&json!("queued"), &json!([])));
    let path = format!("{PATH}/{}", queued["id"].as_str().unwrap());
    let get = || ask("GET", &host, &path, None).json();
    wait("the answer", || get()["status"] != "queued");
    let done = get();
    let now = host.ask(PATH, &{
        let mut body = body.clone();
        body["background"] = json!(false);
        body
    });
    assert_eq!(plain(&done)["output"], plain(&now)["output"]);

    // One that would run for long is ended, and its blocks are free.
    let long = json!({"input": "Count.", "background": true, "max_output_tokens": 900, "temperature": 2, "text": {
        "format": {"type": "json_schema", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 500}}}});
    let running = host.ask(PATH, &long);
    let path = format!("{PATH}/{}", running["id"].as_str().unwrap());
    let answer = ask("POST", &host, &format!("{path}/cancel"), None).json();
    assert!(["cancelled", "completed", "incomplete"].contains(&answer["status"].as_str().unwrap()), "{answer}");
    host.quiet();
    assert_eq!(ask("GET", &host, &path, None).json()["status"], answer["status"]);
    let more = json!({"input": "More", "previous_response_id": running["id"]});
    assert!(answer["status"] != "cancelled" || host.post(PATH, &more).status == 400);
}

#[test]
fn what_tools_of_others_left_is_told_or_passed_over() {
    let host = Host::start();
    let count = |items: &Value| {
        let answer = host.ask(PATH, &json!({"input": items, "max_output_tokens": 1, "max_tool_calls": 3}));
        let hints = answer["hints"].as_array().unwrap().iter().map(|hint| hint.as_str().unwrap().to_owned());
        (answer["usage"]["input_tokens"].as_u64().unwrap(), hints.collect::<Vec<_>>())
    };
    let user = json!({"role": "user", "content": "hi"});
    let (plain, hints) = count(&json!([user]));
    assert_eq!(hints, ["max_tool_calls"]);
    let told = [
        json!({"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}),
        json!({"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]}),
        json!({"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}}),
        json!({"type": "local_shell_call_output", "id": "c", "output": "{\"stdout\": \"a\"}"}),
        json!({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "environment": null}),
        json!({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]}),
        json!({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}}),
        json!({"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "done"}),
        json!({"type": "mcp_call", "id": "c", "server_label": "s", "name": "f", "arguments": "{}", "output": "done"}),
    ];
    for item in told {
        let (tokens, hints) = count(&json!([user, item, user]));
        let both = count(&json!([user, user])).0;
        assert!(tokens > both && hints == ["max_tool_calls"], "{item}: {tokens} of {both}, {hints:?}");
    }
    for kind in [
        "computer_call",
        "computer_call_output",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
        "compaction",
    ] {
        let item = json!({"type": kind, "id": "w", "status": "completed", "action": {"query": 1}, "results": null});
        let (tokens, hints) = count(&json!([user, item, item]));
        assert_eq!((tokens, hints), (plain, vec![format!("input[].{kind}"), "max_tool_calls".to_owned()]), "{kind}");
    }
}

#[test]
fn what_codex_sends_is_taken() {
    let host = Host::start();
    let body = json!({
        "model": "lantern", "stream": true, "store": false, "include": ["reasoning.encrypted_content"],
        "input": [
            {"id": "m1", "type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
            {"id": "m2", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        ],
        "tools": [
            weather(),
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "x"}]},
            {"type": "web_search", "external_web_access": true},
        ],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"summary": "auto"},
        "prompt_cache_key": "abc", "client_metadata": {"x": "y"}, "max_output_tokens": 20,
    });
    let events = events(&host, &body);
    let response = &events.last().unwrap().1["response"];
    let hints: Vec<&str> = response["hints"].as_array().unwrap().iter().map(|hint| hint.as_str().unwrap()).collect();
    for hint in ["client_metadata", "prompt_cache_key", "tools[].namespace", "tools[].web_search", "reasoning.summary"]
    {
        assert!(hints.contains(&hint), "{hint} is not in {hints:?}");
    }
    assert!(!response["output"].as_array().unwrap().is_empty());
}

#[test]
fn what_is_wrong_with_a_response_is_named() {
    let host = Host::start();
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [{"type": "dragon"}]}), "input[0].type"),
        (json!({"input": [{"role": "wizard", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0].type"),
        (json!({"input": [{"type": "function_call", "call_id": "a"}]}), "input[0].name"),
        (json!({"input": [{"type": "custom_tool_call", "input": "x"}]}), "input[0].name"),
        (json!({"input": [{"type": "custom_tool_call", "name": "x"}]}), "input[0].input"),
        (json!({"input": [{"type": "shell_call", "action": 1}]}), "input[0].action"),
        (json!({"input": [{"type": "mcp_call", "arguments": "{}"}]}), "input[0].name"),
        (json!({"input": "x", "temprature": 1}), "temprature"),
        (json!({"input": "x", "tools": [{"type": "dragon"}]}), "tools[0].type"),
        (json!({"input": "x", "tools": [{"type": "function", "name": "a b"}]}), "tools[0].name"),
        (json!({"input": "x", "tool_choice": "required"}), "tool_choice"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"input": "x", "reasoning": {"effort": "heroic"}}), "reasoning.effort"),
        (json!({"input": "x", "include": ["file_search_call.results"]}), "include[0]"),
        (json!({"input": "x", "truncation": "auto"}), "truncation"),
        (json!({"input": "x", "background": true, "store": false}), "store"),
        (json!({"input": "x", "background": true, "stream": true}), "stream"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "receipt": true}), "receipt"),
    ] {
        let answer = host.post(PATH, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.text());
    }
    assert_eq!(host.post(PATH, &json!({"input": "x", "previous_response_id": "resp_no"})).status, 404);
    assert_eq!(ask("GET", &host, "/v1/responses/resp_no", None).status, 404);
    assert_eq!(ask("POST", &host, "/v1/responses/resp_no/cancel", None).status, 404);
    host.quiet();
}
