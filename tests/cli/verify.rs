//! `twostroke verify`: receipts of a server under load, computed again elsewhere; and forged ones, each found, with the
//! token from which it is one.

use std::fs;

use kernels::Isa;
use serde_json::{Value, json};
use testing::{Scratch, lantern};
use tests::{Ran, Server, root, run, run_with_input, twostroke};

/// The receipts of answers to these requests, all asked at once.
fn receipts(server: &Server, bodies: &[Value]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let ask = |body: &Value| {
            let mut body = body.clone();
            body["receipt"] = json!(true);
            let (status, answer) = server.request("POST", "/v1/completions", &[], &body.to_string());
            assert_eq!(status, 200, "{body}: {answer}");
            serde_json::from_str::<Value>(&answer).expect("JSON")["choices"][0]["receipt"].clone()
        };
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(body))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    })
}

/// Verifies JSON lines on standard input; the verdicts.
fn verify(lines: &[Value], more: &[&str]) -> (Ran, Vec<Value>) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let ran = run_with_input(&mut twostroke(&[&["verify", "--json", "-t", "1"], more].concat()), text.as_bytes());
    let verdicts: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(verdicts.len(), lines.len(), "{ran:?}");
    (ran, verdicts)
}

fn story(max_tokens: usize) -> Value {
    json!({"prompt": "Once upon a time there was a fox", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 1,
        "seed": 5})
}

/// The repository's model with other weights.
fn changed(name: &str, change: impl Fn(&mut Vec<u8>)) -> Scratch {
    let copy = Scratch::copy_of(&lantern(), name);
    let weights = copy.join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("it can be read");
    change(&mut bytes);
    fs::write(weights, bytes).expect("room for a model");
    copy
}

#[test]
fn answers_under_load_are_equal_on_any_machine() {
    let server = Server::start(&["--max-num-seqs", "4", "--kv-cache-memory-bytes", "3MiB"]);
    let count = if tests::is_long() { 24 } else { 12 };
    let bodies: Vec<Value> = (0..count)
        .map(|number| {
            let mut body = story(20 + 96 / count * number);
            body["prompt"] = json!("Once upon a time there was a fox. ".repeat(1 + number % 5));
            body["seed"] = json!(number);
            body
        })
        .collect();
    let receipts = receipts(&server, &bodies);
    drop(server);
    // With the plainest vectors, and few rows at a time; without any vectors a few, for that takes long.
    let isa = Isa::available().get(1).copied().unwrap_or(Isa::Scalar).name();
    let machines = [
        (count, &["--isa", isa, "--max-num-batched-tokens", "256"][..]),
        (count, &["--max-num-batched-tokens", "5"]),
        (2, &["--isa", "scalar"]),
    ];
    for (number, more) in machines {
        let (ran, verdicts) = verify(&receipts[..number], more);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(verdicts.iter().all(|verdict| verdict["equal"] == true && verdict["first"].is_null()), "{ran:?}");
    }
    // For people; and a model by its name.
    let text: String = receipts.iter().map(Value::to_string).collect();
    let ran = run_with_input(&mut twostroke(&["verify", "-", "-m", "lantern", "-t", "1"]), text.as_bytes());
    let wanted = format!("{count} of {count} equal");
    assert_eq!((ran.code, ran.stdout.lines().last()), (Some(0), Some(wanted.as_str())), "{ran:?}");
    assert!(ran.stdout.starts_with("standard input:1: equal, 20 tokens\n"), "{ran:?}");
}

#[test]
fn whole_answers_and_streams_are_read_too() {
    let server = Server::start(&[]);
    let path = std::env::temp_dir().join(format!("twostroke-verify-{}-answers", std::process::id()));
    // The weights of the binary in another place have the same digest.
    let model = root().join("models/lantern");
    for stream in [false, true] {
        let body = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "n": 2, "stream": stream,
            "max_tokens": 8, "receipt": true});
        let (status, answer) = server.request("POST", "/v1/chat/completions", &[], &body.to_string());
        assert_eq!(status, 200, "{answer}");
        // As chunks of HTTP have it, without what is around them.
        let lines = answer.lines().filter(|line| line.starts_with("data:") || line.starts_with('{'));
        fs::write(&path, lines.collect::<Vec<_>>().join("\n")).expect("room for an answer");
        let ran = run(twostroke(&["verify", "-t", "1", "-m"]).args([&model, &path, &path]));
        assert_eq!((ran.code, ran.stdout.lines().last()), (Some(0), Some("4 of 4 equal")), "stream {stream}: {ran:?}");
        assert_eq!(ran.stdout.matches(" tokens and their text\n").count(), 4, "stream {stream}: {ran:?}");
    }
    fs::remove_file(&path).expect("it was ours");
}

/// The last string of this name that has text in it, in an answer or in the events of one.
fn last_text<'a>(events: &'a mut [Value], name: &str) -> Option<&'a mut Value> {
    let places = ["", "/message", "/delta", "/message/tool_calls/0/function", "/delta/tool_calls/0/function"];
    events.iter_mut().rev().find_map(|event| {
        let pointers = places.map(|place| format!("/choices/0{place}/{name}"));
        let has_text =
            |pointer: &&String| event.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        let pointer = pointers.iter().find(has_text)?;
        event.pointer_mut(pointer)
    })
}

#[test]
fn an_edited_text_is_found() {
    let server = Server::start(&[]);
    let story = |more: Value| {
        let mut body = story(40);
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        ("/v1/completions", body)
    };
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        ("/v1/chat/completions", body)
    };
    let begun = json!([{"role": "user", "content": "What is 17 + 25?"}, {"role": "assistant", "content": "It is not"}]);
    let goes_on =
        json!({"messages": begun, "add_generation_prompt": false, "continue_final_message": true, "echo": true});
    let goes_on = chat(goes_on);
    let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}}, "required": ["a"]}}});
    // (request, what it says of an unedited answer, texts that are edited)
    let table = [
        (story(json!({})), "", &["text"][..]),
        (story(json!({"stop": ["e"], "min_tokens": 3, "seed": 2})), "", &["text"]),
        (story(json!({"stop": ["e"], "include_stop_str_in_output": true})), "", &["text"]),
        (story(json!({"echo": true})), "the prompt's", &["text"]),
        (story(json!({"max_tokens": 1})), "", &["text"]),
        (chat(json!({})), "", &["content", "reasoning", "reasoning_content"]),
        (chat(json!({"max_tokens": 4})), "", &["reasoning"]),
        (goes_on, "the prompt's", &["content"]),
        (chat(json!({"include_reasoning": false})), "reasoning is not in it", &["content"]),
        (chat(json!({"thinking_token_budget": 3})), "", &["content", "reasoning"]),
        (chat(json!({"response_format": {"type": "json_object"}, "max_tokens": 60})), "", &["content"]),
        (chat(json!({"tools": [tool], "tool_choice": "required"})), "", &["name"]),
        (chat(json!({"tools": [tool]})), "", &["content"]),
    ];
    let (mut text, mut wanted) = (String::new(), Vec::new());
    for ((path, body), note, names) in table {
        for is_stream in [false, true] {
            let mut body = body.clone();
            (body["receipt"], body["stream"]) = (json!(true), json!(is_stream));
            let (status, answer) = server.request("POST", path, &[], &body.to_string());
            assert_eq!(status, 200, "{body}: {answer}");
            let lines = answer.lines().filter(|line| line.starts_with("data: {") || line.starts_with('{'));
            let json = |line: &str| serde_json::from_str(line.trim_start_matches("data: ")).expect("JSON");
            let events: Vec<Value> = lines.map(json).collect();
            let mut put = |events: &[Value], kind: &'static str| {
                for mut event in events.iter().cloned() {
                    event["id"] = json!(format!("answer-{}", wanted.len()));
                    text += &format!("{event}\n");
                }
                wanted.push((body.clone(), note, kind));
            };
            put(&events, "equal");
            for name in names {
                let edits: [fn(&mut String); 5] = [
                    String::clear,
                    |text| _ = text.pop(),
                    |text| text.push('.'),
                    |text| text.insert(0, '~'),
                    |text| text.insert_str(0, " \n \n"),
                ];
                for edit in edits {
                    let mut edited = events.clone();
                    let place = last_text(&mut edited, name).unwrap_or_else(|| panic!("{name} in {body}: {answer}"));
                    let mut text = place.as_str().expect("a text").to_owned();
                    edit(&mut text);
                    *place = json!(text);
                    put(&edited, "different");
                }
            }
            if is_stream {
                let mut more = events[1].clone();
                more["choices"][0].as_object_mut().expect("a choice").remove("receipt");
                let place = ["text", "delta"].into_iter().find(|name| !more["choices"][0][name].is_null());
                let place = place.expect("a piece");
                more["choices"][0][place] = if place == "text" { json!(" No.") } else { json!({"content": " No."}) };
                put(&[&events[..], &[more]].concat(), "different");
            }
            // Its beginning is gone: only of a chat's can that be seen.
            if is_stream && path.contains("chat") {
                put(&events[1..], "not_compared");
            }
        }
    }
    drop(server);
    let ran = run_with_input(&mut twostroke(&["verify", "--json", "-t", "1"]), text.as_bytes());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let verdicts: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(verdicts.len(), wanted.len());
    for ((body, note, kind), verdict) in wanted.iter().zip(&verdicts) {
        assert_eq!(
            (&verdict["text"], &verdict["equal"]),
            (&json!(kind), &json!(*kind != "different")),
            "{body}: {verdict}"
        );
        let told = verdict["text_note"].as_str().unwrap_or_default();
        assert!(*kind != "equal" || told.contains(note) && told.is_empty() == note.is_empty(), "{body}: {verdict}");
        assert!(*kind != "different" || verdict["cause"] == "text", "{body}: {verdict}");
    }
}

#[test]
fn an_edited_character_is_named() {
    let server = Server::start(&[]);
    let mut body = story(20);
    body["receipt"] = json!(true);
    let (_, answer) = server.request("POST", "/v1/completions", &[], &body.to_string());
    drop(server);
    let mut answer: Value = serde_json::from_str(&answer).expect("JSON");
    let text = answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    let edited: String = text.chars().enumerate().map(|(at, c)| if at == 7 { '#' } else { c }).collect();
    for (text, code, said) in [
        (text, 0, "standard input:1: equal, 20 tokens and their text\n"),
        (edited, 1, "standard input:1: not equal: text differs from its tokens at character 7; what differs: the text"),
    ] {
        answer["choices"][0]["text"] = json!(text);
        let ran = run_with_input(&mut twostroke(&["verify", "-t", "1"]), answer.to_string().as_bytes());
        assert!(ran.code == Some(code) && ran.stdout.starts_with(said), "{ran:?}");
    }
}

/// What is found of a forgery: kind of the first difference, its token, what differs.
type Wanted = (&'static str, Option<usize>, &'static str);

#[test]
fn forgeries_are_found_with_their_token() {
    const TOKENS: usize = 40;
    let server = Server::start(&[]);
    let honest = receipts(&server, &[story(TOKENS)]).remove(0);
    drop(server);
    let of = |list: &str, at: usize| honest[list][at].clone();
    let other_token = |at: usize| json!((of("tokens", at).as_u64().expect("an id") + 1) % 2000);
    let edit = |change: &dyn Fn(&mut Value)| {
        let mut receipt = honest.clone();
        change(&mut receipt);
        receipt
    };
    let set =
        |field: &'static str, value: Value| edit(&move |json| *json.pointer_mut(field).expect(field) = value.clone());
    let list = |json: &mut Value, name: &str, change: &dyn Fn(&mut Vec<Value>)| {
        change(json[name].as_array_mut().expect("a list"));
    };
    let both = |change: &dyn Fn(&mut Vec<Value>)| {
        edit(&|json| {
            list(json, "tokens", change);
            list(json, "logits", change);
        })
    };
    let swapped = (1..TOKENS - 1).find(|&at| of("tokens", at) != of("tokens", at + 1)).expect("two unlike tokens");
    let arithmetic = if honest["definition"]["arithmetic"] == "pairs" { "tiles" } else { "pairs" };

    let mut table: Vec<(&str, Value, Wanted)> = vec![
        ("a token", set("/tokens/17", other_token(17)), ("token", Some(17), "tokens")),
        ("the first token", set("/tokens/0", other_token(0)), ("token", Some(0), "tokens")),
        ("the last token", set("/tokens/39", other_token(39)), ("token", Some(39), "tokens")),
        ("a token of no model", set("/tokens/9", json!(4_000_000_000u32)), ("token", Some(9), "tokens")),
        (
            "two tokens in each other's place",
            edit(&|json| list(json, "tokens", &|all| all.swap(swapped, swapped + 1))),
            ("token", Some(swapped), "tokens"),
        ),
        ("a token put in", both(&|all| all.insert(12, all[20].clone())), ("logits", Some(12), "computation")),
        ("a token left out", both(&|all| _ = all.remove(12)), ("logits", Some(12), "computation")),
        ("cut off", both(&|all| all.truncate(25)), ("end", Some(25), "end")),
        ("lengthened", both(&|all| all.push(all[39].clone())), ("", None, "")),
        ("a digest", set("/logits/23", json!("0123456789abcdef")), ("logits", Some(23), "digests")),
        (
            "two digests in each other's place",
            edit(&|json| list(json, "logits", &|all| all.swap(30, 31))),
            ("logits", Some(30), "digests"),
        ),
        ("a token of the prompt", set("/prompt/2", json!(300)), ("logits", Some(0), "prompt")),
        ("a shorter prompt", edit(&|json| list(json, "prompt", &|all| _ = all.pop())), ("logits", Some(0), "prompt")),
        ("temperature", set("/sampling/temperature", json!(0.3)), ("token", None, "sampling")),
        ("seed", set("/sampling/seed", json!("6")), ("token", None, "sampling")),
        ("top_k", set("/sampling/top_k", json!(1)), ("token", None, "sampling")),
        ("another answer of the request", set("/sampling/answer", json!(1)), ("token", None, "sampling")),
        ("repetition penalty", set("/sampling/repetition_penalty", json!(4.0)), ("token", None, "sampling")),
        ("other stop rules", set("/stop/max_tokens", json!(41)), ("end", Some(40), "end")),
        ("another reason", set("/end", json!("stop_token")), ("end", Some(39), "end")),
        (
            "bf16 weights said to be int4",
            set("/definition/weights", json!("int4")),
            ("logits", Some(0), "quantization"),
        ),
        ("a bf16 cache said to be int8", set("/definition/kv", json!("int8")), ("logits", Some(0), "quantization")),
        ("another arithmetic", set("/definition/arithmetic", json!(arithmetic)), ("logits", None, "arithmetic")),
        ("other weights, it says", set("/weights", json!("ab".repeat(32))), ("", None, "weights")),
        ("another model's name", set("/model", json!("a better one")), ("", None, "terms")),
        ("the seal", set("/seal", json!("ab".repeat(32))), ("", None, "digests")),
        ("what no door lets in", set("/sampling/top_p", json!(3.5)), ("", None, "terms")),
    ];
    // The other way round it takes a server of its own.
    if tests::is_long() {
        let int8 = Server::start(&["--weights", "int8"]);
        let mut receipt = receipts(&int8, &[story(TOKENS)]).remove(0);
        receipt["definition"]["weights"] = json!("bf16");
        table.push(("int8 weights said to be bf16", receipt, ("logits", Some(0), "quantization")));
    }
    let forged: Vec<Value> = table.iter().map(|(_, receipt, _)| receipt.clone()).collect();
    let (ran, verdicts) = verify(&forged, &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    for ((what, _, (kind, token, cause)), verdict) in table.iter().zip(&verdicts) {
        assert_eq!(verdict["equal"], false, "{what}: {verdict}");
        let first = &verdict["first"];
        if !kind.is_empty() {
            assert_eq!(first["kind"], *kind, "{what}: {verdict}");
            let at = first["token"].as_u64().unwrap_or_else(|| panic!("{what}: {verdict}")) as usize;
            assert!(token.is_none_or(|token| token == at), "{what}: {verdict}");
            let prompt = honest["prompt"].as_array().expect("a list").len();
            assert!(
                first["position"].as_u64().is_some_and(|found| found as usize + 1 >= prompt + at),
                "{what}: {verdict}"
            );
            assert_ne!(first["claimed"], first["found"], "{what}: {verdict}");
        }
        assert!(cause.is_empty() || verdict["cause"] == *cause, "{what}: {verdict}");
    }
}

#[test]
fn one_flipped_bit_of_the_weights_is_found() {
    // In the middle of the tensors, the top bit of a fraction.
    let flip = |bytes: &mut Vec<u8>| {
        let at = (bytes.len() / 2) & !1;
        bytes[at] ^= 0x40;
    };
    let [flipped, elsewhere] = ["flipped", "elsewhere"].map(|name| changed(name, flip));
    let server = Server::start(&["-m", flipped.text(), "--no-packed-cache"]);
    let receipt = receipts(&server, &[story(12)]).remove(0);
    drop(server);
    // With the weights that it names, wherever they are, it is equal; with the others it is not, and the first token is
    // named.
    let (ran, _) = verify(std::slice::from_ref(&receipt), &["-m", elsewhere.text()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (ran, verdicts) = verify(std::slice::from_ref(&receipt), &[]);
    let verdict = &verdicts[0];
    assert_eq!((ran.code, &verdict["cause"]), (Some(1), &json!("weights")), "{ran:?}");
    assert_eq!((&verdict["first"]["kind"], &verdict["first"]["token"]), (&json!("logits"), &json!(0)), "{verdict}");

    // Files that were written to under a server may be other weights than it has: no receipt, and all else goes on.
    let server = Server::start(&["-m", elsewhere.text(), "--no-packed-cache"]);
    let file = elsewhere.join("model.safetensors");
    fs::write(&file, fs::read(&file).expect("the weights")).expect("they can be written");
    for (receipt, wanted) in [(true, 500), (false, 200)] {
        let body = json!({"prompt": "The fox", "max_tokens": 2, "receipt": receipt}).to_string();
        let (status, answer) = server.request("POST", "/v1/completions", &[], &body);
        assert_eq!(status, wanted, "{answer}");
        assert_eq!(answer.contains("\"code\":\"no_receipts\""), receipt, "{answer}");
    }
}

#[test]
fn what_is_no_receipt_is_one_line_and_exit_code_2() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("empty", b"", "no receipt"),
        ("garbage", &[0xff; 5000], "UTF-8"),
        ("no JSON", b"receipt", "no JSON"),
        ("cut off", b"{\"receipt\":1,", "no JSON"),
        ("another object", b"{\"step\":1}", "no receipt"),
        ("an answer without", b"{\"choices\":[{\"index\":0}]}", "no receipt"),
        ("version", b"{\"receipt\":2}", "version 2"),
        ("half", b"{\"receipt\":1,\"model\":\"x\"}", "missing field"),
    ];
    for (name, bytes, wanted) in cases {
        let ran = run_with_input(&mut twostroke(&["verify"]), bytes);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{name}: {ran:?}");
        assert!(ran.stderr.contains(wanted) && ran.stderr.lines().count() == 1, "{name}: {ran:?}");
    }
    let ran = run(&mut twostroke(&["verify", "/nowhere/receipt.json"]));
    assert!(ran.code == Some(2) && ran.stderr.contains("/nowhere/receipt.json"), "{ran:?}");
}
