//! Drafts as clients see them: how many were checked is reported, and nothing else is different.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use checkpoint::{Checkpoint, Source};
use engine::{Drafters, EngineOptions, LookupOptions, Speculation};
use replay::{Recording, replay, replay_with_model};
use serde_json::{Value, json};
use server::{ApiKey, ServerOptions};

use crate::host::{Host, local_server, metric, small_engine};

#[test]
fn drafts_are_reported_and_change_nothing() {
    let host = Host::with(EngineOptions { speculation: Speculation::auto(), ..small_engine() }, local_server());
    let prompt = "The fox sat by the door. The owl sang of gold.\n".repeat(4);
    let body = |speculate: bool| {
        json!({"prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": true, "logprobs": 1,
            "return_token_ids": true, "speculate": speculate})
    };
    let (with, without) = (host.ask("/v1/completions", &body(true)), host.ask("/v1/completions", &body(false)));
    assert_eq!(with["choices"], without["choices"]);
    assert_eq!(with["usage"]["completion_tokens"], 120);
    let count = |field: &str| with["timings"][field].as_f64().unwrap_or_else(|| panic!("{field}: {}", with["timings"]));
    let (drafted, accepted) = (count("drafted_tokens"), count("accepted_tokens"));
    assert!(accepted > 60.0 && accepted <= drafted, "{accepted} of {drafted}");
    assert_eq!(count("decode_tokens"), 119.0, "drafted or not, they are the answer's tokens");
    assert_eq!(without["timings"]["drafted_tokens"], Value::Null);
    host.quiet();
    let page = host.get("/metrics");
    let page = page.text();
    for (name, expected) in [("num_draft_tokens", drafted), ("num_accepted_tokens", accepted)] {
        assert_eq!(metric(page, &format!("twostroke_spec_decode_{name}_total")), expected, "{name}");
        let vllm = format!("vllm:spec_decode_{name}_total{{model_name=\"lantern\",engine=\"0\"}}");
        assert_eq!(metric(page, &vllm), expected, "{name}");
    }
    let total = |name: &str| -> f64 {
        let labelled = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        labelled
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number"))
            .sum()
    };
    for prefix in ["twostroke_", "vllm:"] {
        assert_eq!(total(&format!("{prefix}spec_decode_num_accepted_tokens_per_pos_total")), accepted, "{prefix}");
    }
    // Of both requests: a step of the one without drafts brings a token.
    let steps = 119.0 - accepted + 119.0;
    let [sum, runs] = ["sum", "count"].map(|part| metric(page, &format!("twostroke_tokens_per_decode_step_{part}")));
    assert_eq!((sum, runs), (238.0, steps), "tokens, and the steps that brought them");
    let off = total("twostroke_spec_decode_skipped_steps_total");
    assert!(off < steps - 119.0, "{off} steps without drafts");
    let own = metric(page, "twostroke_itl_seconds_total{owner=\"own_drafts\"}");
    let rejected = metric(page, "twostroke_spec_decode_rejected_seconds_total");
    assert!(0.0 <= rejected && rejected <= own, "{rejected} of {own}");
    let tokens = metric(page, "twostroke_generation_tokens_total");
    assert_eq!(tokens, 240.0, "a token is one, whether it came alone or with others");
}

#[test]
fn a_timeline_shows_drafts() {
    let host = Host::with(EngineOptions { speculation: Speculation::auto(), ..small_engine() }, local_server());
    let prompt = "The fox sat by the door. The owl sang of gold.\n".repeat(4);
    let body =
        json!({"prompt": prompt, "max_tokens": 120, "temperature": 0, "ignore_eos": true, "timings_detail": true});
    let answer = host.ask("/v1/completions", &body);
    let detail = &answer["timings"]["detail"][0];
    let ms = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("milliseconds in {detail}"));
    assert_eq!(ms(&detail["gaps"]["other_drafts_ms"]), 0.0, "there are no others");
    assert!(ms(&detail["rejected_drafts_ms"]) <= ms(&detail["gaps"]["own_drafts_ms"]));
    let gaps: f64 = detail["gaps"].as_object().expect("owners").values().map(ms).sum();
    assert!((gaps - ms(&answer["timings"]["decode_ms"])).abs() < 0.001 + gaps * 0.01, "{answer}");
    let id = answer["id"].as_str().expect("an id");
    let timeline = host.get(&format!("/v1/requests/{id}/timeline")).json();
    let prompt = &timeline["prompts"][0];
    let times = prompt["token_times_ms"].as_array().expect("times");
    let steps = prompt["steps"].as_array().expect("steps");
    let runs = steps.iter().filter(|step| step["tokens"].as_u64() > Some(1)).count();
    assert!(times.len() == 120 && runs > 0, "{} tokens, {runs} runs", times.len());
    assert!(times.is_sorted_by(|a, b| a.as_f64() <= b.as_f64()) && times.windows(2).any(|two| two[0] == two[1]));
    // The rows of a step are its token's and those of its drafts.
    let rows = |step: &Value| step["rows"].as_u64() >= step["tokens"].as_u64();
    assert!(steps.iter().filter(|step| step["phase"] == "decode").all(rows), "{steps:?}");
    let words = prompt["why"].to_string();
    assert!(words.contains("draft tokens") && words.contains(" accepted"), "{words}");
}

#[test]
fn whether_to_speculate_is_true_or_false() {
    let host = Host::start();
    let answer = host.post("/v1/completions", &json!({"prompt": "a", "speculate": "often"}));
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("speculate")));
}

/// Drafts from the texts of a request alone: answers to others are no part of these tests.
fn own_texts() -> EngineOptions {
    let lookup = Some(LookupOptions { most_answers: 0, ..LookupOptions::default() });
    EngineOptions { speculation: Speculation::By(Drafters { lookup, ..Drafters::default() }), ..small_engine() }
}

/// Drafts that were accepted and rejected, as usage has them.
fn details(answer: &Value) -> (u64, u64) {
    let count = |field: &str| {
        let details = &answer["usage"]["completion_tokens_details"];
        details[field].as_u64().unwrap_or_else(|| panic!("{field}: {}", answer["usage"]))
    };
    (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
}

#[test]
fn what_was_predicted_is_accepted() {
    let host = Host::with(own_texts(), local_server());
    let body = |prediction: Value| {
        json!({"prompt": "Once upon a time there was a fox who", "max_tokens": 200, "temperature": 0, "ignore_eos": true,
            "logprobs": 2, "return_token_ids": true, "prediction": prediction})
    };
    let without = host.ask("/v1/completions", &body(Value::Null));
    let text = without["choices"][0]["text"].as_str().expect("a text");
    let words: Vec<&str> = text.split(' ').collect();
    let (middle, third) = (words.len() / 2, words.len() / 3);
    let changed = [&words[..middle], &["elephant"], &words[middle + 1..]].concat().join(" ");
    let inserted = [&words[..third], &["and", "the", "purple", "elephant"], &words[third..]].concat().join(" ");
    let left_out = [&words[..third], &words[third + 3..]].concat().join(" ");
    // A prediction, and how many of the 199 tokens behind the first come of it at least.
    let table = [
        ("the answer", text, 150),
        ("one word is another", &*changed, 130),
        ("words more", &*inserted, 130),
        ("words less", &*left_out, 130),
        ("something else", "1 2 3 4 5 6 7 8 9", 0),
        ("nothing", "", 0),
    ];
    for (what, prediction, least) in table {
        let with = host.ask("/v1/completions", &body(json!({"type": "content", "content": prediction})));
        assert_eq!(with["choices"], without["choices"], "{what}");
        assert_eq!(with["usage"]["completion_tokens"], 200, "{what}: what was rejected is no token of the answer");
        let (accepted, rejected) = details(&with);
        println!("{what}: {accepted} accepted, {rejected} rejected");
        assert!(accepted >= least, "{what}: {accepted} accepted, {rejected} rejected");
        let timings = &with["timings"];
        let count = |field: &str| timings[field].as_u64().unwrap_or(0);
        assert_eq!((accepted, accepted + rejected), (count("accepted_tokens"), count("drafted_tokens")), "{what}");
        let steps = count("verify_steps");
        assert!(steps <= 199 - accepted && (steps > 0) == (accepted + rejected > 0), "{what}: {timings}");
    }
    // Parts are lines, and a stream tells the same.
    let lines: Vec<&str> = text.split('\n').collect();
    let parts: Vec<Value> = lines.iter().map(|line| json!({"type": "text", "text": line})).collect();
    let mut streamed = body(json!({"type": "content", "content": parts}));
    streamed["stream_options"] = json!({"include_usage": true});
    let events = host.stream("/v1/completions", &streamed);
    assert!(details(&events[events.len() - 1]).0 >= 150, "{}", events[events.len() - 1]);
    let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(texts.collect::<String>(), text);
    host.quiet();
}

#[test]
fn a_chat_has_predictions_too() {
    let host = Host::with(own_texts(), local_server());
    let body = |prediction: Value| {
        json!({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 120, "temperature": 0.7,
            "seed": 5, "n": 2, "logprobs": true, "presence_penalty": 0.2, "ignore_eos": true, "prediction": prediction})
    };
    let without = host.ask("/v1/chat/completions", &body(Value::Null));
    let text = without["choices"][1]["message"]["content"].clone();
    let with = host.ask("/v1/chat/completions", &body(json!({"type": "content", "content": text})));
    assert_eq!(with["choices"], without["choices"]);
    let (accepted, _) = details(&with);
    assert!(accepted >= 100, "{accepted} of the second answer's 119");
}

#[test]
fn a_request_without_drafts_says_so() {
    let prediction = json!({"type": "content", "content": "there was a fox"});
    let body = json!({"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0});
    let mut predicted = body.clone();
    predicted["prediction"] = prediction;
    let host = Host::start();
    assert_eq!(details(&host.ask("/v1/completions", &predicted)), (0, 0), "this server does not draft");
    assert!(host.ask("/v1/completions", &body)["usage"].get("completion_tokens_details").is_none());
    drop(host);
    let host = Host::with(own_texts(), local_server());
    predicted["speculate"] = json!(false);
    assert_eq!(details(&host.ask("/v1/completions", &predicted)), (0, 0));
}

#[test]
fn a_prediction_that_is_none_is_refused_by_name() {
    let host = Host::with(own_texts(), local_server());
    let long = "fox ".repeat(1025);
    let longer = "x".repeat((4 << 20) + 1);
    let part = json!({"type": "image_url", "image_url": {"url": "x"}});
    let table = [
        (json!("a text"), "prediction", Value::Null),
        (json!([]), "prediction", Value::Null),
        (json!({}), "prediction.type", Value::Null),
        (json!({"type": "text", "content": "a"}), "prediction.type", Value::Null),
        (json!({"type": "content"}), "prediction.content", Value::Null),
        (json!({"type": "content", "content": 7}), "prediction.content", Value::Null),
        (json!({"type": "content", "content": []}), "prediction.content", Value::Null),
        (json!({"type": "content", "content": [7]}), "prediction.content[0]", Value::Null),
        (json!({"type": "content", "content": [part]}), "prediction.content[0].type", json!("unsupported_parameter")),
        (json!({"type": "content", "content": long}), "prediction", json!("context_length_exceeded")),
        (json!({"type": "content", "content": longer}), "prediction", json!("string_above_max_length")),
    ];
    let ask = |prediction: &Value| {
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "prediction": prediction, "max_tokens": 1});
        let text = json!({"prompt": "Hi", "prediction": prediction, "max_tokens": 1});
        [host.post("/v1/chat/completions", &chat), host.post("/v1/completions", &text)]
    };
    for (prediction, param, code) in table {
        for answer in ask(&prediction) {
            let (error, shown) = (answer.json()["error"].clone(), prediction.to_string());
            let shown: String = shown.chars().take(80).collect();
            assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{shown}: {error}");
            assert_eq!(error["code"], code, "{shown}: {error}");
        }
    }
    // As long as the context it is taken.
    let most = "fox ".repeat(1000);
    ask(&json!({"type": "content", "content": most})).iter().for_each(|answer| assert_eq!(answer.status, 200));
    let several = json!({"prompt": ["a", "b"], "prediction": {"type": "content", "content": "c"}});
    let answer = host.post("/v1/completions", &several);
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("prediction")));
    host.quiet();
}

/// Who is offered what, by source: a recording has all offers.
fn offers(path: &Path) -> BTreeMap<u64, BTreeSet<u64>> {
    let text = std::fs::read_to_string(path).expect("the recording");
    let mut offers: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let entry: Value = serde_json::from_str(line).expect("a line of JSON");
        if let Some(id) = entry["admit"]["id"].as_u64() {
            offers.entry(id).or_default();
        }
        for offer in entry["step"]["offers"].as_array().into_iter().flatten() {
            let number = |index: usize| offer[index].as_u64().expect("a number");
            offers.entry(number(0)).or_default().insert(number(2));
        }
    }
    offers
}

/// Among the scheduler's sources.
const EARLIER: u64 = 2;

#[test]
fn earlier_answers_are_offered_to_their_own_salt_alone() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("earlier-{}.jsonl", std::process::id()));
    let keys = ["sk-a", "sk-b"];
    let options = EngineOptions {
        speculation: Speculation::auto(),
        record: Some(path.clone()),
        hash_key: [3; 32],
        ..small_engine()
    };
    let server = ServerOptions { api_keys: keys.map(ApiKey::from).to_vec(), ..local_server() };
    let mut host = Host::with(options, server);
    let begin = |host: &Host, key: &str, body: &Value| host.begin(key, "POST", "/v1/completions", &body.to_string());
    let body = |more: Value| {
        let mut body = json!({"prompt": "Once upon a time there was a fox who", "max_tokens": 60, "temperature": 0,
            "ignore_eos": true});
        more.as_object().expect("fields").iter().for_each(|(field, value)| body[field] = value.clone());
        body
    };
    // One after the other: who asks what, and whether an earlier answer is on offer.
    let plain = json!({});
    let (mine, hidden, gone) =
        (json!({"cache_salt": "mine"}), json!({"cache_salt": "hidden"}), json!({"cache_salt": "gone"}));
    let predicted = json!({"cache_salt": "predicted", "prediction": {"type": "content", "content": " was a fox who"}});
    let silent = json!({"cache_salt": "hidden", "speculate": false});
    let table = [
        (keys[0], &plain, false),
        (keys[0], &plain, true),
        (keys[1], &plain, false),
        (keys[1], &mine, false),
        (keys[0], &mine, false),
        (keys[0], &mine, true),
        (keys[1], &mine, true),
        // A request without drafts is offered none, and leaves nothing for others.
        (keys[0], &silent, false),
        (keys[0], &silent, false),
        (keys[0], &hidden, false),
        (keys[0], &predicted, false),
    ];
    let mut texts = BTreeSet::new();
    for (key, more, _) in &table {
        let answer = begin(&host, key, &body((*more).clone())).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        texts.insert(answer.json()["choices"][0]["text"].to_string());
    }
    assert_eq!(texts.len(), 1, "whatever is offered, it is the same answer");
    // What was cancelled is not remembered.
    let mut long = body(gone.clone());
    (long["max_tokens"], long["stream"]) = (json!(900), json!(true));
    let mut connection = begin(&host, keys[0], &long);
    assert_eq!(connection.head().expect("an answer").0, 200);
    drop(connection);
    host.quiet();
    assert_eq!(begin(&host, keys[0], &body(gone)).answer().status, 200);
    host.stop.drain();
    host.join();
    host.engine.stop();
    host.engine.finish_recording(std::time::Duration::from_secs(60));
    let recorded = offers(&path);
    let first_gone = table.len() as u64 + 1;
    let text = std::fs::read_to_string(&path).expect("the recording");
    assert!(text.contains(&format!("{{\"cancel\":[{first_gone},")), "the long one was cancelled");
    // A recording holds none of the texts, only what was drafted: it is enough to do the same again.
    let recording = || Recording::open(&path).expect("what was just written");
    let replayed = replay(recording(), &mut |_| {}).expect("it can be read");
    assert_eq!((replayed.difference, replayed.requests), (None, first_gone + 1));
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let checkpoint = Checkpoint::open(Source::Directory(directory)).expect("the model of this repository");
    let computed = replay_with_model(recording(), &checkpoint, &small_engine(), &mut |_| {}).expect("it fits");
    assert_eq!(computed.difference, None);
    std::fs::remove_file(&path).expect("it is there");
    for (index, (key, more, wanted)) in table.iter().enumerate() {
        let sources = &recorded[&(index as u64 + 1)];
        assert_eq!(sources.contains(&EARLIER), *wanted, "{index}: {key} {more}: {sources:?}");
        assert!(sources.is_empty() || more["speculate"].is_null(), "{index}: {sources:?}");
    }
    assert!(!recorded[&(first_gone + 1)].contains(&EARLIER), "{:?}", recorded[&(first_gone + 1)]);
}
