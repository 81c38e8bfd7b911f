//! The Responses API: items whole and as they grow, what is kept, what is gone on from.

use serde_json::{Value, json};

use crate::client::{Answer, Connection};
use crate::host::{Host, keyed, local_server, small_engine, wait};
use crate::live;

const PATH: &str = "/v1/responses";

fn ask(method: &str, host: &Host, path: &str, key: Option<&str>) -> Answer {
    let bearer = key.map(|key| format!("Bearer {key}"));
    let mut headers = vec![("connection", "close")];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    host.send(method, path, &headers, b"")
}

/// Names and bodies of a stream's events, whose numbers are looked at.
fn events(host: &Host, body: &Value) -> Vec<(String, Value)> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let answer = host.post(PATH, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let events = read_events(answer.text());
    for (at, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(at)));
    }
    events
}

/// The events that are whole.
fn read_events(text: &str) -> Vec<(String, Value)> {
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let event = |event: &str| {
        let (name, data) = event.split_once("\ndata: ").unwrap_or_else(|| panic!("{event:?}"));
        let name = name.rsplit_once("event: ").expect("a name").1;
        (name.to_owned(), serde_json::from_str(data).expect("JSON"))
    };
    whole.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(": ")).map(event).collect()
}

fn without_comments(text: &str) -> String {
    text.split_inclusive("\n\n").filter(|event| !event.starts_with(": ")).collect()
}

/// The events of a kept answer.
fn replayed(host: &Host, id: &Value, after: Option<usize>) -> Vec<(String, Value)> {
    let after = after.map(|after| format!("&starting_after={after}")).unwrap_or_default();
    let answer = host.get(&format!("{PATH}/{}?stream=true{after}", id.as_str().unwrap()));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    read_events(answer.text())
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
    let host = Host::with(small_engine(), keyed(&["one", "two"]));
    let post = |path: &str, body: &Value, key: &str| host.begin(key, "POST", path, &body.to_string()).answer();
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
    wait("the answer", || get()["status"] != "queued" && get()["status"] != "in_progress");
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

/// A stream that is read as it comes.
struct Reader {
    connection: Connection,
    text: Vec<u8>,
    has_ended: bool,
}

impl Reader {
    fn open(host: &Host, method: &str, path: &str, body: &str) -> Reader {
        let headers = [("content-type", "application/json"), ("connection", "close")];
        let mut connection = host.connect();
        connection.request(method, path, &headers, body.as_bytes());
        assert_eq!(connection.head().expect("an answer").0, 200, "{method} {path}");
        Reader { connection, text: Vec::new(), has_ended: false }
    }

    fn events(&self) -> Vec<(String, Value)> {
        read_events(std::str::from_utf8(&self.text).expect("UTF-8"))
    }

    /// Reads until there is such an event, or all.
    fn until(&mut self, is_wanted: impl Fn(&str) -> bool) {
        while !self.has_ended && !self.events().iter().any(|(name, _)| is_wanted(name)) {
            self.has_ended = !self.connection.chunk(&mut self.text);
        }
    }
}

#[test]
fn the_events_of_an_answer_are_told_again_from_any_place() {
    let host = Host::start();
    let format = json!({"format": {"type": "json_schema", "schema": {"enum": ["fox"]}}});
    let tools = json!([weather()]);
    // One token of its arguments, with and without log probabilities.
    let mut called = json!({"model": "lantern", "input": "How is it?", "tools": tools, "tool_choice": "required",
        "temperature": 0});
    let is_in_a_call = |answer: &Value| {
        let last = answer["output"].as_array().and_then(|items| items.last()).cloned().unwrap_or_default();
        last["status"] == "incomplete" && last["arguments"].as_str().is_some_and(|text| !text.is_empty())
    };
    let length = (5..300).step_by(3).find(|length| {
        called["max_output_tokens"] = json!(length);
        is_in_a_call(&host.ask(PATH, &called))
    });
    assert!(length.is_some(), "an answer that is cut off in a call");
    let mut cut_off = [called.clone(), called];
    cut_off[1]["include"] = json!(["message.output_text.logprobs"]);
    for (at, more) in [
        json!({"input": "Tell me a story about a fox.", "max_output_tokens": 30}),
        json!({"input": [{"role": "user", "content": "What is 17 + 25?"}]}),
        json!({"input": "Name an animal.", "text": format, "include": ["message.output_text.logprobs"]}),
        json!({"input": "How is it?", "tools": tools, "tool_choice": "required", "parallel_tool_calls": false}),
        json!({"input": "How is it?", "tools": tools, "tool_choice": "required", "max_output_tokens": 12}),
        cut_off[0].clone(),
        cut_off[1].clone(),
    ]
    .iter()
    .enumerate()
    {
        let mut first_way = None;
        // Streamed to who asked, streamed in the background, and whole in both ways.
        for (background, stream) in [(false, true), (true, true), (false, false), (true, false)] {
            let mut body =
                json!({"model": "lantern", "temperature": 0, "max_output_tokens": 300, "background": background});
            more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
            let told = if stream { events(&host, &body) } else { Vec::new() };
            let id = match told.first() {
                Some((_, created)) => created["response"]["id"].clone(),
                None => host.ask(PATH, &body)["id"].clone(),
            };
            // Of one that still runs it waits for the end.
            let again = replayed(&host, &id, None);
            assert!(!stream || again == told, "{at}: {background} {stream}");
            let names: Vec<&str> = again.iter().map(|(name, _)| name.as_str()).collect();
            let mut first = vec!["response.created", "response.queued", "response.in_progress"];
            first.retain(|name| background || *name != "response.queued");
            assert_eq!(names[..first.len()], first);
            let kept = ask("GET", &host, &format!("{PATH}/{}", id.as_str().unwrap()), None).json();
            assert_eq!(again.last().unwrap().1["response"], kept, "{at}: {background} {stream}");
            for (number, (_, event)) in again.iter().enumerate() {
                assert_eq!(event["sequence_number"], number);
            }
            // Whichever way it came, it is the same, and in the same deltas.
            let same: Vec<Value> = again.iter().filter_map(|(_, event)| event.get("delta").cloned()).collect();
            let (output, deltas) = first_way.get_or_insert_with(|| (plain(&kept)["output"].clone(), same.clone()));
            assert_eq!((&plain(&kept)["output"], &same), (&*output, &*deltas), "{at}: {background} {stream}");
            for after in [0, 1, names.len() / 2, names.len() - 2, names.len() - 1, names.len() + 7] {
                let rest = again.get(after + 1..).unwrap_or_default();
                assert_eq!(replayed(&host, &id, Some(after)), rest, "{at}: {background} {stream}, after {after}");
            }
        }
    }
    host.quiet();
}

#[test]
fn an_answer_in_the_background_is_read_while_it_is_written() {
    let body = json!({"input": "Tell me a story about a fox.", "background": true, "stream": true,
        "max_output_tokens": 60, "temperature": 0});
    let host = live::pausable();
    let alone = host.ask(PATH, &json!({"input": body["input"], "max_output_tokens": 60, "temperature": 0}));
    for what in ["goes on", "cancel", "delete"] {
        assert_eq!(live::post(&host, "/live/pause"), json!(true));
        let mut first = Reader::open(&host, "POST", PATH, &body.to_string());
        first.until(|name| name == "response.queued");
        let id = first.events()[0].1["response"]["id"].clone();
        let path = format!("{PATH}/{}", id.as_str().unwrap());
        assert_eq!(ask("GET", &host, &path, None).json()["status"], "queued");
        host.step_into(6);
        first.until(|name| name.ends_with(".delta"));
        assert_eq!(ask("GET", &host, &path, None).json()["status"], "in_progress");
        // Its client leaves, and another reads on behind what that one had.
        let before = first.events();
        drop(first);
        let mut second =
            Reader::open(&host, "GET", &format!("{path}?stream=true&starting_after={}", before.len() - 1), "");
        host.step_into(6);
        second.until(|name| name.ends_with(".delta"));
        assert_eq!(host.engine.health().open_requests, 1, "who leaves ends nothing");
        let answer = match what {
            "cancel" => Some(ask("POST", &host, &format!("{path}/cancel"), None).json()),
            "delete" => {
                assert_eq!(ask("DELETE", &host, &path, None).json()["deleted"], true);
                None
            }
            _ => None,
        };
        assert_eq!(live::post(&host, "/live/resume"), json!(false));
        second.until(|_| false);
        let events = [before, second.events()].concat();
        for (number, (_, event)) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number, "{what}");
        }
        let text: String = events.iter().filter_map(|(_, event)| event["delta"].as_str()).collect();
        let last = events.last().unwrap();
        match what {
            "goes on" => {
                assert_eq!(last.0, "response.incomplete");
                assert_eq!(plain(&last.1["response"])["output"], plain(&alone)["output"]);
            }
            "cancel" => {
                let answer = answer.unwrap();
                assert_eq!((&last.0[..], &answer["status"]), ("response.incomplete", &json!("cancelled")));
                assert_eq!(last.1["response"], answer);
                let output: String = answer["output"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|item| item["content"][0]["text"].as_str().unwrap())
                    .collect();
                assert_eq!(output, text, "as far as it was");
                let items = answer["output"].as_array().unwrap();
                assert_eq!(items.last().unwrap()["status"], "incomplete");
                let more = json!({"input": [{"type": "item_reference", "id": items.last().unwrap()["id"]}]});
                assert_eq!(host.post(PATH, &more).status, 404, "what was cut off is not gone on from");
            }
            _ => {
                assert_eq!((&last.0[..], &last.1["code"]), ("error", &json!("response_not_found")), "{last:?}");
                assert_eq!(ask("GET", &host, &format!("{path}?stream=true"), None).status, 404);
            }
        }
        if what != "delete" {
            assert_eq!(replayed(&host, &id, None), events, "{what}");
        }
        host.quiet();
    }
}

#[test]
fn queries_of_kept_answers_are_heeded_or_refused() {
    let host = Host::with(small_engine(), keyed(&["one", "two"]));
    let input: Vec<Value> = (0..5).map(|at| json!({"role": "user", "content": format!("{at}")})).collect();
    let body = json!({"input": input, "max_output_tokens": 2});
    let mut connection = host.connect();
    let headers = [("content-type", "application/json"), ("connection", "close"), ("authorization", "Bearer one")];
    connection.request("POST", PATH, &headers, body.to_string().as_bytes());
    let path = format!("{PATH}/{}", connection.answer().json()["id"].as_str().unwrap());
    for (query, status, named) in [
        ("?stream=true", 200, "response.incomplete"),
        ("?stream=false", 200, "incomplete"),
        ("?stream=true&starting_after=0&include_obfuscation=false", 200, "response.in_progress"),
        ("?include=message.output_text.logprobs&include[]=code_interpreter_call.outputs", 200, "incomplete"),
        ("?include%5B%5D=reasoning.encrypted_content", 200, "incomplete"),
        ("?stream=yes", 400, "stream"),
        ("?stream=true&starting_after=x", 400, "starting_after"),
        ("?stream=true&starting_after=-1", 400, "starting_after"),
        ("?starting_after=1", 400, "starting_after"),
        ("?include_obfuscation=1", 400, "include_obfuscation"),
        ("?include=dragons", 400, "include"),
        ("?include[]=dragons", 400, "include[]"),
        ("?after=x", 400, "after"),
        ("?stream=true&stream=false", 400, "stream"),
        ("?stream=true&starting_after=0&starting_after=2", 400, "starting_after"),
        ("?stream=true&%73tream=true", 400, "stream"),
    ] {
        let answer = ask("GET", &host, &format!("{path}{query}"), Some("one"));
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
        assert!(answer.text().contains(named), "{query}: {}", answer.text());
        assert!(status == 200 || answer.json()["error"]["param"] == named, "{query}: {}", answer.text());
        assert_ne!(ask("GET", &host, &format!("{path}{query}"), Some("two")).status, 200, "it is another's: {query}");
    }
    for (query, texts, has_more) in [
        ("", "43210", false),
        ("?order=asc", "01234", false),
        ("?order=asc&limit=2", "01", true),
        ("?limit=2&include[]=message.output_text.logprobs", "43", true),
        ("?order=asc&limit=2&after=ID-1", "23", true),
        ("?order=desc&after=ID-1", "0", false),
    ] {
        let id = path.rsplit_once('/').unwrap().1;
        let answer = ask("GET", &host, &format!("{path}/input_items{}", query.replace("ID", id)), Some("one")).json();
        let items = answer["data"].as_array().unwrap();
        let all: String = items.iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
        assert_eq!((all.as_str(), &answer["has_more"]), (texts, &json!(has_more)), "{query}");
        assert_eq!(answer["last_id"], items.last().unwrap()["id"], "{query}");
    }
    for (query, named) in [
        ("?order=up", "order"),
        ("?limit=0", "limit"),
        ("?stream=true", "stream"),
        ("?include=x", "include"),
        ("?after=nobody", "after"),
        ("?order=asc&order=desc", "order"),
        ("?limit=1&limit=2", "limit"),
    ] {
        let answer = ask("GET", &host, &format!("{path}/input_items{query}"), Some("one"));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(named)), "{query}");
    }
    // No path is text that is none.
    for path in ["/v1/responses/%ff", "/v1/files/%C3/content", "/v1/models/%ff%fe", "/v1/requests/%80/timeline"] {
        let answer = ask("GET", &host, path, Some("one"));
        assert_eq!((answer.status, answer.header("content-type")), (400, Some("application/json")), "{path}");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("UTF-8"), "{path}");
    }
    // What there is none of is said to be so.
    for (method, path, word) in [
        ("POST", "/v1/responses/compact", "truncation"),
        ("POST", "/v1/conversations", "previous_response_id"),
        ("GET", "/v1/conversations/c1", "previous_response_id"),
        ("POST", "/v1/conversations/c1/items", "previous_response_id"),
        ("DELETE", "/v1/conversations/c1/items/i1", "previous_response_id"),
    ] {
        let answer = ask(method, &host, path, Some("one"));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 404 && message.contains(word), "{method} {path}: {message}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let host = Host::start();
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["fox", "owl"]}}, "required": ["a"]});
    for (at, more) in [
        json!({"input": "Tell me a story about a fox.", "max_output_tokens": 20, "top_logprobs": 2}),
        json!({"input": "What is 17 + 25?", "top_logprobs": 0}),
        json!({"input": "Name an animal.", "text": {"format": {"type": "json_schema", "schema": schema}}}),
        json!({"input": "How is it?", "tools": [weather()], "top_logprobs": 1}),
        json!({"input": "Say \u{1f98a} and \u{e9}.", "max_output_tokens": 40, "top_logprobs": 5}),
    ]
    .iter()
    .enumerate()
    {
        let mut body = json!({"model": "lantern", "temperature": 0, "max_output_tokens": 300});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        let without = host.ask(PATH, &{
            let mut body = body.clone();
            body.as_object_mut().unwrap().remove("top_logprobs");
            body
        });
        body["include"] = json!(["message.output_text.logprobs"]);
        let whole = host.ask(PATH, &body);
        let top = body["top_logprobs"].as_u64().unwrap_or(0);
        assert_eq!((&whole["top_logprobs"], &without["top_logprobs"]), (&json!(top), &json!(0)));
        let text = |item: &Value| item["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        let texts = |response: &Value| response["output"].as_array().unwrap().iter().map(text).collect::<Vec<_>>();
        assert_eq!(texts(&whole), texts(&without), "{at}");
        let told = events(&host, &body);
        assert_eq!(plain(&told.last().unwrap().1["response"]), plain(&whole), "{at}");
        for (index, item) in whole["output"].as_array().unwrap().iter().enumerate() {
            let logprobs = &item["content"][0]["logprobs"];
            if item["type"] != "message" {
                assert!(logprobs.is_null(), "{at}: {item}");
                continue;
            }
            assert_eq!(without["output"][index]["content"][0]["logprobs"], json!([]));
            let logprobs = logprobs.as_array().unwrap();
            let bytes = logprobs.iter().flat_map(|token| token["bytes"].as_array().unwrap());
            let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
            let said = String::from_utf8_lossy(&bytes).into_owned();
            assert_eq!(said.trim(), text(item).trim(), "{at}");
            assert!(logprobs.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0));
            assert!(logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() as u64 == top));
            // The deltas have each of them once, in order, and so have the events that sum up.
            let of_item = |name: &str| {
                let is_it = |(told, event): &&(String, Value)| told == name && event["output_index"] == index;
                told.iter().filter(is_it).map(|(_, event)| event.clone()).collect::<Vec<_>>()
            };
            let deltas = of_item("response.output_text.delta");
            let sum: Vec<Value> =
                deltas.iter().flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
            assert_eq!(&sum, logprobs, "{at}");
            assert_eq!(of_item("response.output_text.done")[0]["logprobs"], json!(logprobs));
            assert_eq!(of_item("response.content_part.done")[0]["part"]["logprobs"], json!(logprobs));
        }
    }
    // Without the word that asks for them nothing is told, and that is said.
    let answer = host.ask(PATH, &json!({"input": "Hello", "max_output_tokens": 2, "top_logprobs": 2}));
    assert_eq!((&answer["hints"], &answer["top_logprobs"]), (&json!(["top_logprobs"]), &json!(0)));
    host.quiet();
}

#[test]
fn a_conversation_that_is_too_long_loses_its_oldest_turns() {
    let host = Host::start();
    let count = |body: &Value| host.ask("/v1/responses/input_tokens", body)["input_tokens"].as_u64().unwrap();
    let turn = |at: usize| {
        let told = format!("Turn {at}. {}", "The fox went over the river and came back again. ".repeat(3));
        [json!({"role": "user", "content": told}), json!({"role": "assistant", "content": format!("I see {at}.")})]
    };
    let system = json!({"role": "developer", "content": "Be kind."});
    let question = json!({"role": "user", "content": "And now?"});
    let of = |turns: std::ops::Range<usize>| {
        let items = [system.clone()].into_iter().chain(turns.flat_map(turn)).chain([question.clone()]);
        json!({"input": items.collect::<Vec<_>>(), "instructions": "Be brief.", "max_output_tokens": 40,
            "temperature": 0})
    };
    let truncated = |mut body: Value| {
        body["truncation"] = json!("auto");
        body
    };
    let long = of(0..40);
    for body in [long.clone(), {
        let mut body = long.clone();
        body["truncation"] = json!("disabled");
        body
    }] {
        let refused = host.post(PATH, &body);
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        assert_eq!(error["param"], "input");
    }
    // As few turns go as have to.
    let fits = (0..40).find(|&first| {
        host.post("/v1/responses/input_tokens", &of(first..40)).status == 200 && count(&of(first..40)) + 40 <= 1024
    });
    let first = fits.expect("the question alone fits");
    assert!(first > 0);
    let answer = host.ask(PATH, &truncated(long.clone()));
    assert_eq!(
        (&answer["truncation"], &answer["usage"]["input_tokens"]),
        (&json!("auto"), &json!(count(&of(first..40))))
    );
    assert_eq!(count(&truncated(long.clone())), count(&of(first..40)));
    let same = host.ask(PATH, &of(first..40));
    assert_eq!(
        (plain(&same)["output"].clone(), &same["truncation"]),
        (plain(&answer)["output"].clone(), &json!("disabled"))
    );
    // What fits stays whole, and what is kept is all of it.
    assert_eq!(count(&truncated(of(30..40))), count(&of(30..40)));
    let more = json!({"input": "And then?", "previous_response_id": answer["id"], "max_output_tokens": 5});
    assert_eq!(host.post(PATH, &more).json()["error"]["code"], "context_length_exceeded");
    assert_eq!(host.post(PATH, &truncated(more)).status, 200);
    // An agent's calls go with what came of them; its task stays.
    let called = |at: usize| {
        let id = format!("call{at:05}");
        [
            json!({"type": "function_call", "call_id": id, "name": "weather", "arguments": "{\"place\": \"river\"}"}),
            json!({"type": "function_call_output", "call_id": id, "output": "It rains on the river and in the forest. ".repeat(4)}),
        ]
    };
    let agent = |calls: std::ops::Range<usize>| {
        let items = [system.clone(), question.clone()].into_iter().chain(calls.flat_map(called));
        json!({"input": items.collect::<Vec<_>>(), "tools": [weather()], "max_output_tokens": 40, "temperature": 0})
    };
    let first = (0..30).find(|&first| {
        host.post("/v1/responses/input_tokens", &agent(first..30)).status == 200
            && count(&agent(first..30)) + 40 <= 1024
    });
    let first = first.expect("the task alone fits");
    assert!(first > 0);
    assert_eq!(count(&truncated(agent(0..30))), count(&agent(first..30)));
    // A question that is too long is not cut.
    let huge = json!({"input": "fox and owl ".repeat(2000), "truncation": "auto"});
    let refused = host.post(PATH, &huge).json();
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["param"]),
        (&json!("context_length_exceeded"), &json!("input"))
    );
    host.quiet();
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
        (
            json!({"input": [{"type": "function_call_output", "call_id": "a".repeat(257), "output": "x"}]}),
            "input[0].call_id",
        ),
        (
            json!({"input": [{"type": "custom_tool_call_output", "call_id": "a".repeat(257), "output": "x"}]}),
            "input[0].call_id",
        ),
        (json!({"input": "x", "temprature": 1}), "temprature"),
        (json!({"input": "x", "tools": [{"type": "dragon"}]}), "tools[0].type"),
        (json!({"input": "x", "tools": [{"type": "function", "name": "a b"}]}), "tools[0].name"),
        (json!({"input": "x", "tool_choice": "required"}), "tool_choice"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"input": "x", "reasoning": {"effort": "heroic"}}), "reasoning.effort"),
        (json!({"input": "x", "include": ["file_search_call.dragons"]}), "include[0]"),
        (json!({"input": "x", "include": ["reasoning.encrypted_content", 5]}), "include[1]"),
        (json!({"input": "x", "truncation": "middle"}), "truncation"),
        (json!({"input": "x", "top_logprobs": 99, "include": ["message.output_text.logprobs"]}), "top_logprobs"),
        (json!({"input": "x", "background": true, "store": false}), "store"),
        (json!({"input": "x", "background": true, "store": false, "stream": true}), "store"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "receipt": true}), "receipt"),
    ] {
        let answer = host.post(PATH, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{body}: {}", answer.text());
    }
    let lost = host.post(PATH, &json!({"input": "x", "previous_response_id": "resp_no"}));
    assert_eq!((lost.status, &lost.json()["error"]["param"]), (404, &json!("previous_response_id")));
    // Also in words it is the sender's own field.
    for (path, body, field) in [
        (PATH, json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (PATH, json!({"input": "x", "top_logprobs": 99, "include": ["message.output_text.logprobs"]}), "top_logprobs"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0}),
            "max_completion_tokens",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true,
            "top_logprobs": 99}),
            "top_logprobs",
        ),
        ("/completion", json!({"prompt": "x", "n_predict": 0}), "n_predict"),
        ("/completion", json!({"prompt": "x", "n_probs": 99}), "n_probs"),
        ("/completion", json!({"prompt": "x", "repeat_penalty": -1}), "repeat_penalty"),
        (
            "/api/generate",
            json!({"prompt": "x", "stream": false, "options": {"repeat_penalty": -1, "repeat_last_n": -1}}),
            "options.repeat_penalty",
        ),
        ("/api/generate", json!({"prompt": "x", "stream": false, "options": {"top_p": 3}}), "options.top_p"),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "x"}], "options": {"temperature": -1}}),
            "options.temperature",
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 99, "logprobs": true}),
            "top_logprobs",
        ),
    ] {
        let answer = host.post(path, &body).json();
        let message = answer["error"]["message"].as_str().or(answer["error"].as_str()).unwrap().to_owned();
        assert!(message.starts_with(&format!("{field} ")) || message.starts_with(&format!("{field}:")), "{message}");
        assert_eq!(message.matches(field.rsplit('.').next().unwrap()).count(), 1, "{message}");
    }
    let long = host.post("/api/generate", &json!({"prompt": "x ".repeat(9000), "stream": false})).json();
    assert!(!long["error"].as_str().unwrap().contains("messages"), "what it never sent: {long}");
    assert_eq!(ask("GET", &host, "/v1/responses/resp_no", None).status, 404);
    assert_eq!(ask("POST", &host, "/v1/responses/resp_no/cancel", None).status, 404);
    host.quiet();
}

#[test]
fn tools_that_run_elsewhere_are_hints() {
    let host = Host::start();
    for (kind, hint) in [
        ("web_search", "web_search"),
        ("web_search_2025_08_26", "web_search"),
        ("web_search_preview", "web_search_preview"),
        ("web_search_preview_2025_03_11", "web_search_preview"),
        ("file_search", "file_search"),
        ("code_interpreter", "code_interpreter"),
        ("computer", "computer"),
        ("computer_use_preview", "computer_use_preview"),
        ("image_generation", "image_generation"),
        ("local_shell", "local_shell"),
        ("shell", "shell"),
        ("apply_patch", "apply_patch"),
        ("mcp", "mcp"),
        ("custom", "custom"),
    ] {
        let mut body = json!({"input": "x", "max_output_tokens": 1, "tools": [{"type": kind}]});
        let hints = json!([format!("tools[].{hint}")]);
        assert_eq!(host.ask(PATH, &body)["hints"], hints, "{kind}");
        // Nothing is left that could be called.
        let allowed = json!([{"type": kind, "server_label": "x"}]);
        body["tool_choice"] = json!({"type": "allowed_tools", "mode": "auto", "tools": allowed});
        assert_eq!(host.ask(PATH, &body)["hints"], json!([format!("tools[].{hint}")]), "{kind} is allowed");
        body["tool_choice"]["mode"] = "required".into();
        let refused = host.post(PATH, &body);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tool_choice")), "{kind}");
        // What is not among the tools is no kind to choose from.
        body["tools"] = json!([weather()]);
        let refused = host.post(PATH, &body);
        let place = json!("tool_choice.tools[0].type");
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &place), "{kind}");
    }
}

/// However an item was sent, it is told in OpenAI's shape, and a walk over pages comes to its end.
#[test]
fn items_of_an_input_are_told_in_one_shape() {
    let host = Host::start();
    let input = json!([
        {"role": "user", "content": "a", "id": null},
        {"type": "message", "role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}], "id": "twice"},
        {"role": "developer", "content": "d", "id": "twice"},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "e"},
        {"type": null, "role": "user", "content": "g", "id": "own"},
    ]);
    for input in [input, json!("a")] {
        let made = host.ask(PATH, &json!({"input": input, "max_output_tokens": 1}));
        let path = format!("{PATH}/{}/input_items?order=asc&limit=1", made["id"].as_str().unwrap());
        let (mut items, mut after) = (Vec::new(), String::new());
        loop {
            let page = ask("GET", &host, &format!("{path}{after}"), None).json();
            items.extend(page["data"].as_array().unwrap().iter().cloned());
            assert_eq!(page["last_id"], items.last().unwrap()["id"]);
            assert!(items.len() <= 7, "it never ends: {items:?}");
            if page["has_more"] == false {
                break;
            }
            after = format!("&after={}", page["last_id"].as_str().unwrap());
        }
        let sent = input.as_array().map_or(1, Vec::len);
        assert_eq!(items.len(), sent);
        for (at, item) in items.iter().enumerate() {
            assert!(item["id"].is_string() && item["type"].is_string(), "{item}");
            if item["type"] == "message" {
                let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
                assert_eq!(item["content"][0]["type"], kind, "{item}");
            }
            let own = &input[at]["id"];
            assert!(!own.is_string() || at == 3 || item["id"] == *own, "{item}");
        }
    }
}

fn storing(place: &std::path::Path) -> Host {
    let options = server::ServerOptions { store_directory: Some(place.to_owned()), ..local_server() };
    // A server that has ended lets go of its files when its last thread has.
    let is_free = || std::fs::File::open(place.join("lock")).map_or(true, |lock| lock.try_lock().is_ok());
    wait("the directory to be free", is_free);
    Host::with(small_engine(), options)
}

/// To the byte, also of numbers, and also by the next server.
#[test]
fn what_comes_from_a_file_is_what_was_told() {
    let place = testing::Scratch::new("responses-bits");
    let mut told = Vec::new();
    {
        let host = storing(&place);
        for (seed, background) in [(1, false), (2, true), (3, false)] {
            let body = json!({"input": "Tell me a story.", "temperature": 3, "seed": seed, "max_output_tokens": 80,
                "background": background, "stream": true, "include": ["message.output_text.logprobs"],
                "top_logprobs": 5});
            let answer = host.post(PATH, &body);
            told.push((read_events(answer.text())[0].1["response"]["id"].clone(), answer.text().to_owned()));
        }
        let whole = host.post(
            PATH,
            &json!({"input": "Tell me a story.", "max_output_tokens": 80, "temperature": 3,
            "seed": 4, "include": ["message.output_text.logprobs"], "top_logprobs": 5}),
        );
        let path = format!("{PATH}/{}", whole.json()["id"].as_str().unwrap());
        assert_eq!(host.get(&path).text(), whole.text());
    }
    let next = storing(&place);
    for (id, text) in &told {
        let again = next.get(&format!("{PATH}/{}?stream=true", id.as_str().unwrap()));
        // A stream may say that it is late, which is not kept.
        assert_eq!(again.text(), without_comments(text));
    }
    drop(next);
}

/// A response whose file cannot be deleted is still there and says so; a copy of a file is no response of its own.
#[test]
fn the_files_are_what_is_kept() {
    let place = testing::Scratch::new("responses-files");
    let body = json!({"input": "Hello", "max_output_tokens": 2, "temperature": 0});
    let host = storing(&place);
    let id = host.ask(PATH, &body)["id"].as_str().unwrap().to_owned();
    let (path, file) = (format!("{PATH}/{id}"), place.join(format!("{id}.json")));
    let delete = || host.send("DELETE", &path, &[("connection", "close")], b"");
    let kept = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let refused = delete();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (507, &json!("not_kept")), "{}", refused.text());
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, &kept).unwrap();
    std::fs::write(place.join("resp_copy.json"), &kept).unwrap();
    assert_eq!(host.get(&path).status, 200);
    assert_eq!(delete().status, 200);
    assert_eq!(host.get(&path).status, 404);
    drop(host);
    let next = storing(&place);
    assert_eq!(next.get(&format!("{PATH}/resp_copy")).status, 404);
    drop(next);
}

/// As a request that a client waits for.
#[test]
fn a_server_that_drains_ends_what_is_in_the_background() {
    let place = testing::Scratch::new("responses-drain");
    let long = json!({"input": "Count.", "background": true, "max_output_tokens": 900, "temperature": 2, "text": {
        "format": {"type": "json_schema", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 500}}}});
    let mut ids = Vec::new();
    for stream in [false, true] {
        let mut host = storing(&place);
        let mut body = long.clone();
        body["stream"] = json!(stream);
        let id = if stream {
            let mut reader = Reader::open(&host, "POST", PATH, &body.to_string());
            reader.until(|name| name.ends_with(".delta"));
            reader.events()[0].1["response"]["id"].clone()
        } else {
            host.ask(PATH, &body)["id"].clone()
        };
        host.stop.drain();
        host.join();
        ids.push(id);
    }
    let next = storing(&place);
    for id in ids {
        let kept = next.get(&format!("{PATH}/{}", id.as_str().unwrap())).json();
        assert!(["completed", "incomplete"].contains(&kept["status"].as_str().unwrap()), "{kept}");
        assert!(!kept["output"].as_array().unwrap().is_empty());
    }
    drop(next);
}
