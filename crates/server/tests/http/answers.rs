//! What a well-behaved client gets.

use serde_json::{Value, json};

use crate::host::{Host, local_server, small_engine};
use testing::part_of;

fn conversation() -> Value {
    json!([{"role": "user", "content": "Tell me a story about a fox and a lantern"}])
}

fn greedy(prompt: &str, max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// The text of each choice of a stream, in order of index.
fn texts(events: &[Value], num_choices: usize) -> Vec<String> {
    let mut texts = vec![String::new(); num_choices];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        texts[choice["index"].as_u64().unwrap() as usize].push_str(piece);
    }
    texts
}

#[test]
fn a_completion_has_openais_shape_and_our_timings() {
    let host = Host::start();
    let answer = host.ask("/v1/completions", &greedy("The fox", 8));
    let choice = &answer["choices"][0];
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "lantern");
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_600_000_000);
    assert!(!choice["text"].as_str().unwrap().is_empty());
    assert_eq!(
        (&choice["index"], &choice["finish_reason"], &choice["logprobs"]),
        (&json!(0), &json!("length"), &Value::Null)
    );
    let usage = &answer["usage"];
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["completion_tokens"], 8);
    assert_eq!(usage["total_tokens"], prompt_tokens + 8);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    let timings = &answer["timings"];
    let ms = |name: &str| timings[name].as_f64().unwrap();
    assert_eq!(timings["prefill_tokens"], prompt_tokens);
    assert_eq!((&timings["decode_tokens"], &timings["cached_tokens"]), (&json!(7), &json!(0)));
    assert!(
        (ms("queue_ms") + ms("prefill_ms") - ms("ttft_ms")).abs() < 0.01,
        "queue and prefill are the first token's time"
    );
    assert!((ms("ttft_ms") + ms("decode_ms") - ms("total_ms")).abs() < 0.01, "{timings}");
    assert!(ms("prefill_tokens_per_second") > 0.0 && ms("decode_tokens_per_second") > 0.0);
    host.quiet();
}

#[test]
fn max_tokens_defaults_to_16_or_what_is_left() {
    let host = Host::start();
    let ask = |body: Value| host.ask("/v1/completions", &body)["usage"]["completion_tokens"].clone();
    assert_eq!(ask(json!({"prompt": [5, 6, 7], "temperature": 0, "ignore_eos": true})), 16);
    assert_eq!(ask(json!({"prompt": vec![5; 1020], "temperature": 0, "ignore_eos": true})), 4);
    let chat = json!({"messages": conversation(), "ignore_eos": true, "temperature": 0, "logit_bias": {"5": 1}});
    let answer = host.ask("/v1/chat/completions", &chat);
    assert_eq!(answer["usage"]["total_tokens"], 1024, "chat goes on to the context's end");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    host.quiet();
}

#[test]
fn a_stream_has_an_event_per_token_and_says_what_the_answer_says() {
    let host = Host::start();
    let mut body = json!({"messages": conversation(), "max_tokens": 20, "temperature": 0, "ignore_eos": true});
    let whole = host.ask("/v1/chat/completions", &body);
    body["stream_options"] = json!({"include_usage": true});
    let events = host.stream("/v1/chat/completions", &body);

    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(texts(&events, 1)[0], whole["choices"][0]["message"]["content"].as_str().unwrap());
    // The role, 20 tokens, the end, the usage.
    assert_eq!(events.len(), 1 + 20 + 1 + 1);
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
    }
    for event in &events[1..21] {
        assert!(event["choices"][0]["delta"]["content"].is_string(), "{event}");
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(event["usage"], Value::Null);
    }
    assert_eq!(events[21]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[21]["timings"]["decode_tokens"], 19);
    assert_eq!(events[22]["choices"], json!([]));
    assert_eq!(events[22]["usage"]["completion_tokens"], 20);
    assert_eq!(events[22]["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);

    // Without the option no event has the field, and the end still has its timings.
    body.as_object_mut().unwrap().remove("stream_options");
    let events = host.stream("/v1/chat/completions", &body);
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    assert!(events.last().unwrap()["timings"].is_object());

    // Counts grow with the tokens: the event that names the role has none, the end brings none.
    let text = greedy("The fox", 20);
    for (path, mut body, opening) in [("/v1/chat/completions", body, 1), ("/v1/completions", text, 0)] {
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let events = host.stream(path, &body);
        let counts: Vec<_> = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
        let expected: Vec<u64> = (1 - opening..=20).chain([20, 20]).collect();
        assert_eq!(counts, expected, "{path}");
        for event in &events {
            let usage = &event["usage"];
            let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
            assert_eq!(usage["total_tokens"], sum, "{path}");
        }
        // It says how the other is done, and asks for nothing by itself.
        for options in
            [json!({"continuous_usage_stats": true}), json!({"include_usage": false, "continuous_usage_stats": true})]
        {
            body["stream_options"] = options;
            let events = host.stream(path, &body);
            assert!(events.iter().all(|event| event.get("usage").is_none()), "{path}");
        }
    }
    host.quiet();
}

#[test]
fn what_was_not_asked_for_is_null_in_a_whole_answer_and_absent_in_a_stream() {
    let host = Host::start();
    let chat = json!({"messages": conversation(), "max_tokens": 2, "temperature": 0, "ignore_eos": true});
    // Where a field stands: in the answer, or in its choice.
    for (path, body, of_answer, of_choice) in [
        ("/v1/chat/completions", chat, &["prompt_logprobs", "prompt_token_ids"][..], &["token_ids"][..]),
        ("/v1/completions", greedy("The fox", 2), &[], &["prompt_logprobs", "token_ids", "prompt_token_ids"]),
    ] {
        let fields = |answer: &Value| -> Vec<Option<Value>> {
            let of_answer = of_answer.iter().map(|name| answer.get(*name).cloned());
            of_answer.chain(of_choice.iter().map(|name| answer["choices"][0].get(*name).cloned())).collect()
        };
        assert!(fields(&host.ask(path, &body)).iter().all(|field| *field == Some(Value::Null)), "{path}");
        for event in host.stream(path, &body) {
            assert!(fields(&event).iter().all(Option::is_none), "{path}: {event}");
        }
        let mut asked = body.clone();
        (asked["prompt_logprobs"], asked["return_token_ids"]) = (json!(1), json!(true));
        let whole = fields(&host.ask(path, &asked));
        assert!(whole.iter().flatten().all(|field| !field.as_array().unwrap().is_empty()), "{path}: {whole:?}");
        let first = fields(&host.stream(path, &asked)[0]);
        // A chat's first event names the role, and brings no token.
        assert_eq!(first.iter().filter(|field| field.is_some()).count(), if of_answer.is_empty() { 3 } else { 2 });
    }
    host.quiet();
}

#[test]
fn several_answers_are_interleaved_by_index() {
    let host = Host::start();
    let body =
        json!({"messages": conversation(), "max_tokens": 12, "temperature": 1, "seed": 3, "n": 3, "ignore_eos": true});
    let whole = host.ask("/v1/chat/completions", &body);
    let events = host.stream("/v1/chat/completions", &body);
    let expected: Vec<_> =
        whole["choices"].as_array().unwrap().iter().map(|c| c["message"]["content"].clone()).collect();
    assert_eq!(json!(texts(&events, 3)), json!(expected), "a seed gives the same answers, streamed or not");
    assert_ne!(expected[0], expected[1], "answers of one request differ");
    assert_eq!(whole["usage"]["completion_tokens"], 36);
    let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"] == "length").count();
    assert_eq!(ends, 3);
    // Interleaved: the second answer starts before the first has ended.
    let index = |event: &Value| event["choices"][0]["index"].as_u64();
    let second_starts = events.iter().position(|event| index(event) == Some(1)).unwrap();
    let first_ends = events.iter().rposition(|event| index(event) == Some(0)).unwrap();
    assert!(second_starts < first_ends);
    host.quiet();
}

#[test]
fn several_prompts_are_several_answers_in_order() {
    let host = Host::start();
    let prompts = ["The fox", "A lantern", "One day"];
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| host.ask("/v1/completions", &greedy(prompt, 6))["choices"][0]["text"].clone())
        .collect();
    let mut body = greedy("", 6);
    body["prompt"] = json!(prompts);
    body["n"] = json!(2);
    let answer = host.ask("/v1/completions", &body);
    let got: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    let expected: Vec<_> = alone.iter().flat_map(|text| [text.clone(), text.clone()]).collect();
    assert_eq!(got, expected);
    for (at, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["index"], at);
    }
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    assert_eq!(json!(texts(&host.stream("/v1/completions", &body), 6)), json!(expected));

    // The same prompts as ids, alone and in a list.
    let ids: Vec<_> = prompts.iter().map(|p| host.ask("/tokenize", &json!({"prompt": p}))["tokens"].clone()).collect();
    body["n"] = json!(1);
    body["prompt"] = json!(ids);
    let answer = host.ask("/v1/completions", &body);
    let got: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(got, alone);
    body["prompt"] = ids[1].clone();
    assert_eq!(host.ask("/v1/completions", &body)["choices"][0]["text"], alone[1]);
    host.quiet();
}

#[test]
fn stop_rules_end_an_answer() {
    let host = Host::start();
    let whole = host.ask("/v1/completions", &greedy("Once upon a time", 30));
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let word = text.split_whitespace().nth(4).expect("five words in thirty tokens");
    let before = &text[..text.find(word).unwrap()];

    let mut body = greedy("Once upon a time", 30);
    body["stop"] = json!(["never in here", word]);
    let choice = host.ask("/v1/completions", &body)["choices"][0].clone();
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(word)));
    assert_eq!(choice["text"], before);
    assert_eq!(
        texts(&host.stream("/v1/completions", &body), 1)[0],
        before,
        "nothing at or after the stop string is sent"
    );

    body["include_stop_str_in_output"] = json!(true);
    assert_eq!(host.ask("/v1/completions", &body)["choices"][0]["text"], format!("{before}{word}"));

    let mut body = greedy("Once upon a time", 30);
    body["return_token_ids"] = json!(true);
    let answer = host.ask("/v1/completions", &body);
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap().clone();
    assert_eq!(ids.len(), 30);
    let stop_id = ids[3].clone();
    let first = ids.iter().position(|id| *id == stop_id).unwrap();
    body["stop_token_ids"] = json!([stop_id]);
    let answer = host.ask("/v1/completions", &body);
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["choices"][0]["stop_reason"]),
        (&json!("stop"), &stop_id)
    );
    assert_eq!(answer["usage"]["completion_tokens"], first + 1);
    body["min_tokens"] = json!(20);
    assert!(host.ask("/v1/completions", &body)["usage"]["completion_tokens"].as_u64() >= Some(20));
    host.quiet();
}

#[test]
fn log_probabilities_belong_to_their_tokens() {
    let host = Host::start();
    let mut body = greedy("The fox looked at the lantern", 6);
    body["logprobs"] = json!(3);
    let choice = host.ask("/v1/completions", &body)["choices"][0].clone();
    let lists = &choice["logprobs"];
    let tokens: Vec<_> = lists["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), choice["text"].as_str().unwrap());
    for (at, token) in tokens.iter().enumerate() {
        let top = lists["top_logprobs"][at].as_object().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(
            top[*token], lists["token_logprobs"][at],
            "greedy takes the most likely token, and both lists agree"
        );
        let offset: usize = tokens[..at].iter().map(|token| token.chars().count()).sum();
        assert_eq!(lists["text_offset"][at], offset);
    }
    // Its own entry is the first, also where it is not the most likely.
    let warm =
        json!({"prompt": "The fox", "max_tokens": 12, "temperature": 2, "seed": 1, "logprobs": 2, "ignore_eos": true});
    let warm = host.ask("/v1/completions", &warm)["choices"][0]["logprobs"].clone();
    let mut unlikely = 0;
    for (at, top) in warm["top_logprobs"].as_array().unwrap().iter().enumerate() {
        let top = top.as_object().unwrap();
        assert_eq!(json!(top.iter().next().unwrap()), json!([warm["tokens"][at], warm["token_logprobs"][at]]));
        unlikely += usize::from(top.len() == 3);
    }
    assert!(unlikely > 0, "all of them were among the top tokens: {warm}");

    // Streamed: the same entries, one per event.
    let streamed: Vec<_> = host
        .stream("/v1/completions", &body)
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["token_logprobs"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(json!(streamed), lists["token_logprobs"]);

    // Chat shows the same numbers in its own shape, with bytes.
    let chat = json!({"messages": conversation(), "max_tokens": 5, "temperature": 0, "ignore_eos": true, "logprobs": true, "top_logprobs": 2});
    let choice = host.ask("/v1/chat/completions", &chat)["choices"][0].clone();
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 5);
    let bytes: Vec<u8> =
        content.iter().flat_map(|t| t["bytes"].as_array().unwrap()).map(|byte| byte.as_u64().unwrap() as u8).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), choice["message"]["content"].as_str().unwrap());
    for token in content {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
    }
    let ids = json!({"prompt": "The fox", "max_tokens": 1, "logprobs": 1, "return_tokens_as_token_ids": true});
    let token = host.ask("/v1/completions", &ids)["choices"][0]["logprobs"]["tokens"][0].clone();
    assert!(token.as_str().unwrap().starts_with("token_id:"));
    host.quiet();
}

#[test]
fn an_echoed_prompt_comes_first_and_is_scored() {
    let host = Host::start();
    let prompt = "The fox looked at the lantern";
    let ids = host.ask("/tokenize", &json!({"prompt": prompt}))["tokens"].as_array().unwrap().clone();
    let mut body = greedy(prompt, 4);
    let answered = host.ask("/v1/completions", &body)["choices"][0]["text"].as_str().unwrap().to_owned();
    body["echo"] = json!(true);
    assert_eq!(host.ask("/v1/completions", &body)["choices"][0]["text"], format!("{prompt}{answered}"));
    assert_eq!(texts(&host.stream("/v1/completions", &body), 1)[0], format!("{prompt}{answered}"));

    body["logprobs"] = json!(2);
    let scored = host.ask("/v1/completions", &body)["choices"][0].clone();
    let lists = &scored["logprobs"];
    assert_eq!(lists["tokens"].as_array().unwrap().len(), ids.len() + 4);
    assert_eq!((&lists["token_logprobs"][0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert!(lists["token_logprobs"].as_array().unwrap()[1..].iter().all(|logprob| logprob.as_f64().unwrap() <= 0.0));

    // Nothing but the scores, as evaluation harnesses ask for them; by text and by ids they are the same.
    body["max_tokens"] = json!(0);
    let only = host.ask("/v1/completions", &body);
    assert_eq!(only["usage"]["completion_tokens"], 0);
    let count = ids.len();
    let scores = |choice: &Value| choice["logprobs"]["token_logprobs"].as_array().unwrap()[..count].to_vec();
    assert_eq!(scores(&only["choices"][0]), scores(&scored));
    body["prompt"] = json!(ids);
    assert_eq!(scores(&host.ask("/v1/completions", &body)["choices"][0]), scores(&scored));
    body.as_object_mut().unwrap().remove("logprobs");
    assert_eq!(host.ask("/v1/completions", &body)["choices"][0]["text"], prompt);

    // vLLM's own shape of the same.
    let body = json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": 1, "temperature": 0});
    let list = host.ask("/v1/completions", &body)["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
    assert_eq!((list.len(), &list[0]), (count, &Value::Null));
    for (at, entry) in list.iter().enumerate().skip(1) {
        assert_eq!(entry[ids[at].to_string()]["logprob"], scores(&scored)[at], "position {at}");
    }
    host.quiet();
}

#[test]
fn a_repeated_prompt_is_served_from_the_cache_and_says_so() {
    let host = Host::start();
    let body = greedy(&"The fox and the lantern. ".repeat(20), 8);
    let cold = host.ask("/v1/completions", &body);
    let warm = host.ask("/v1/completions", &body);
    assert_eq!(cold["choices"], warm["choices"], "a prefix hit changes nothing");
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 32);
    assert_eq!(warm["timings"]["cached_tokens"], cached);
    assert_eq!(
        warm["timings"]["prefill_tokens"].as_u64().unwrap() + cached,
        warm["usage"]["prompt_tokens"].as_u64().unwrap()
    );
    // A salt is a cache of one's own.
    let mut salted = body.clone();
    salted["cache_salt"] = json!("mine");
    assert_eq!(host.ask("/v1/completions", &salted)["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    host.quiet();
}

// row 47: more than fits is preempted and recomputed, and answers as if it had been alone
#[test]
fn answers_under_memory_pressure_are_the_answers_alone() {
    let mut engine = small_engine();
    let block_bytes = Host::start().engine.model().kv_bytes_per_token * engine.block_size;
    (engine.kv_cache_bytes, engine.max_model_len) = (Some(12 * block_bytes as u64), Some(256));
    let host = Host::with(engine, local_server());
    let prompts: Vec<String> = (0..6).map(|at| format!("Story number {at} about a fox")).collect();
    let texts = |answer: &Value| -> Vec<Value> {
        answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect()
    };
    let alone: Vec<Value> =
        prompts.iter().flat_map(|prompt| texts(&host.ask("/v1/completions", &greedy(prompt, 120)))).collect();
    assert_eq!(host.metric("twostroke_num_preemptions_total"), 0.0);
    let mut together = greedy("", 120);
    together["prompt"] = json!(prompts);
    assert_eq!(texts(&host.ask("/v1/completions", &together)), alone);
    assert!(host.metric("twostroke_num_preemptions_total") > 0.0, "the pool was meant to be too small");
    host.quiet();
}

// row 34
#[test]
fn every_event_is_text_however_the_tokens_cut_characters() {
    let host = Host::start();
    let bodies = (0..6).map(|seed| {
        json!({"prompt": "\u{1f98a}\u{1f3ee} é", "max_tokens": 60, "temperature": 2, "seed": seed,
        "ignore_eos": true, "skip_special_tokens": false})
    });
    for body in bodies {
        let whole = host.ask("/v1/completions", &body)["choices"][0]["text"].clone();
        // `stream` has already parsed every event as JSON, which is UTF-8 by definition.
        let events = host.stream("/v1/completions", &body);
        assert_eq!(texts(&events, 1)[0], whole.as_str().unwrap(), "{body}");
    }
    host.quiet();
}

#[test]
fn tokenize_and_detokenize_undo_each_other() {
    let host = Host::start();
    let text = "The fox saw a lantern, then 12 + 7 = 19.";
    let answer = host.ask("/tokenize", &json!({"prompt": text, "return_token_strs": true}));
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(answer["count"], tokens.len());
    assert_eq!(answer["max_model_len"], 1024);
    let names: Vec<&str> = answer["token_strs"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(names.len(), tokens.len());
    // The vocabulary's own entries, in which a space is a letter.
    assert!(names.iter().any(|name| name.starts_with('\u{120}')) && !names.concat().contains(' '), "{names:?}");
    let parts = host.ask("/tokenize", &json!({"prompt": "\u{1f98a}", "return_token_strs": true}))["token_strs"].clone();
    assert!(!parts.to_string().contains('\u{fffd}'), "parts of a character have names: {parts}");
    assert_eq!(host.ask("/detokenize", &json!({"tokens": tokens}))["prompt"], text);
    // What the model reads for a conversation: `/tokenize` and the answer's own count agree.
    let count = host.ask("/tokenize", &json!({"messages": conversation()}))["count"].clone();
    let answer = host.ask("/v1/chat/completions", &json!({"messages": conversation(), "max_tokens": 1}));
    assert_eq!(answer["usage"]["prompt_tokens"], count);
    // What the tokenizer puts around a text can be put around a conversation.
    let ids = |add: bool| {
        let body = json!({"messages": conversation(), "add_special_tokens": add});
        host.ask("/tokenize", &body)["tokens"].clone()
    };
    let tokenizer = host.engine.model().tokenizer.clone().unwrap();
    let bare: Vec<u32> = serde_json::from_value(ids(false)).unwrap();
    assert_eq!(ids(true), json!(tokenizer.with_special_tokens(&bare).unwrap()));
    assert_eq!(json!(bare.len()), count, "nothing is added unless it is asked for");
}

#[test]
fn the_model_is_listed_under_its_names() {
    let mut options = local_server();
    options.served_model_names = vec!["lantern".into(), "org/other name".into()];
    let host = Host::with(small_engine(), options);
    let list = host.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!((&list["data"][0]["id"], &list["data"][1]["id"]), (&json!("lantern"), &json!("org/other name")));
    assert_eq!(list["data"][0]["max_model_len"], 1024);
    for path in ["/v1/models/org/other%20name", "/v1/models/org%2Fother%20name"] {
        assert_eq!(host.get(path).json()["id"], "org/other name");
    }
    assert_eq!(host.get("/v1/models/unknown").status, 404);
    let mut body = greedy("The fox", 1);
    body["model"] = json!("org/other name");
    assert_eq!(host.ask("/v1/completions", &body)["model"], "org/other name");
}

// row 17: every pair of features at once, half of them in a quick run
#[test]
fn any_two_features_go_together() {
    let host = Host::start();
    let features = [
        json!({"presence_penalty": 1.0, "frequency_penalty": -0.5, "repetition_penalty": 1.3}),
        json!({"logit_bias": {"5": -100, "17": 3}}),
        json!({"logprobs": 3}),
        json!({"prompt_logprobs": 2}),
        json!({"echo": true}),
        json!({"n": 3}),
        json!({"stop": ["the", "\u{1f98a}"]}),
        json!({"stop_token_ids": [40, 41, 42], "min_tokens": 4}),
        json!({"min_tokens": 10}),
        json!({"ignore_eos": true, "skip_special_tokens": false}),
        json!({"top_k": 20, "top_p": 0.9, "min_p": 0.02}),
        json!({"temperature": 0}),
        json!({"prompt": ["The fox", "A lantern in the dark"]}),
        json!({"return_token_ids": true, "return_tokens_as_token_ids": true}),
        json!({"cache_salt": "mine", "priority": 3}),
        json!({"max_tokens": 1}),
    ];
    for (at, one) in features.iter().enumerate() {
        for other in part_of(&features[at..], 2) {
            let mut body = json!({"prompt": "The fox and the lantern", "max_tokens": 12, "seed": 5});
            for (key, value) in one.as_object().unwrap().iter().chain(other.as_object().unwrap()) {
                body[key] = value.clone();
            }
            if body["min_tokens"].as_u64() > body["max_tokens"].as_u64() {
                assert_eq!(host.post("/v1/completions", &body).status, 400, "{body}");
                continue;
            }
            let whole = host.ask("/v1/completions", &body);
            let choices = whole["choices"].as_array().unwrap();
            let streamed = texts(&host.stream("/v1/completions", &body), choices.len());
            let expected: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
            assert_eq!(streamed, expected, "streamed and whole differ: {body}");
        }
    }
    host.quiet();
}
