//! Beam search: what it finds is compared with the definition of vLLM's server, worked out over this server's own log
//! probabilities; what it takes, and what it cannot be combined with.

use std::cmp::Ordering;

use engine::EngineOptions;
use serde_json::{Value, json};

use crate::host::{Canaries, Host, local_server, small_engine, wait};

const PROMPT: &str = "Once upon a time there was a little fox. The fox was";

fn tokens(host: &Host, text: &str) -> Vec<u64> {
    let told = host.ask("/tokenize", &json!({"prompt": text}));
    told["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The top tokens behind `prompt`, best first, of equal ones the lower id.
fn top_tokens(host: &Host, prompt: &[u64], most: usize) -> Vec<(u64, f32)> {
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": most, "return_tokens_as_token_ids": true,
        "ignore_eos": true,
    });
    let answer = host.ask("/v1/completions", &body);
    let top = answer["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap();
    let entry = |(name, logprob): (&String, &Value)| {
        let id = name.strip_prefix("token_id:").unwrap().parse().unwrap();
        (id, logprob.to_string().parse().unwrap())
    };
    let mut all: Vec<(u64, f32)> = top.iter().map(entry).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    assert_eq!(all.len(), most, "the chosen token is the most likely");
    all
}

/// What is searched for.
struct Asked {
    width: usize,
    max_tokens: usize,
    length_penalty: f64,
    stops: Vec<u64>,
}

/// vLLM's loop: twice as many candidates as beams behind each, or enough more that ends leave enough; those that end an
/// answer set aside, the best of the others gone on with; at last everything is ranked by its score, whose length has the
/// prompt and not the end.
fn by_definition(host: &Host, prompt: &[u64], asked: &Asked) -> Vec<(Vec<u64>, &'static str)> {
    let most = (2 * asked.width).max(asked.width + asked.stops.len());
    let mut beams = vec![(Vec::new(), 0.0)];
    let mut completed: Vec<(Vec<u64>, f64, &str)> = Vec::new();
    for _ in 0..asked.max_tokens {
        let mut candidates = Vec::new();
        for (rank, (said, sum)) in beams.iter().enumerate() {
            for (token, logprob) in top_tokens(host, &[prompt, said].concat(), most) {
                let (said, sum) = ([&said[..], &[token]].concat(), sum + f64::from(logprob));
                match asked.stops.contains(&token) {
                    true => completed.push((said, sum, "stop")),
                    false => candidates.push((said, sum, token, rank)),
                }
            }
        }
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then((a.2, a.3).cmp(&(b.2, b.3))));
        beams = candidates.into_iter().take(asked.width).map(|(said, sum, ..)| (said, sum)).collect();
    }
    completed.extend(beams.into_iter().map(|(said, sum)| (said, sum, "length")));
    let score = |(said, sum, end): &(Vec<u64>, f64, &str)| {
        let length = prompt.len() + said.len() - usize::from(*end == "stop");
        sum / (length as f64).powf(asked.length_penalty)
    };
    completed.sort_by(|a, b| score(b).partial_cmp(&score(a)).unwrap_or(Ordering::Equal));
    completed.truncate(asked.width);
    completed.into_iter().map(|(said, _, end)| (said, end)).collect()
}

fn answers(body: &Value) -> Vec<(Vec<u64>, &str)> {
    let ids = |choice: &Value| choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let choices = body["choices"].as_array().unwrap();
    choices.iter().map(|choice| (ids(choice), choice["finish_reason"].as_str().unwrap())).collect()
}

fn ask(n: usize, max_tokens: usize, more: &Value) -> Value {
    let mut body = json!({
        "prompt": PROMPT, "use_beam_search": true, "n": n, "max_tokens": max_tokens, "return_token_ids": true,
    });
    more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

#[test]
fn a_search_finds_what_its_definition_finds() {
    let host = Host::start();
    let prompt = tokens(&host, PROMPT);
    let full_stop = *tokens(&host, "It was big.").last().unwrap();
    let own: Vec<u64> = host.engine.model().eos_token_ids.iter().map(|&id| u64::from(id)).collect();
    let with = |more: u64| own.iter().copied().chain([more]).collect::<Vec<u64>>();
    let mut ends = 0;
    for (width, max_tokens, length_penalty, stops) in [
        (1, 12, 1.0, own.clone()),
        (2, 40, 1.0, own.clone()),
        (4, 1, 1.0, own.clone()),
        (4, 14, 0.0, with(full_stop)),
        (4, 14, 2.0, with(full_stop)),
        (3, 10, -1.5, with(full_stop)),
        (3, 12, 1.0, vec![full_stop]),
    ] {
        let asked = Asked { width, max_tokens, length_penalty, stops };
        let body = ask(
            width,
            max_tokens,
            &json!({
                "length_penalty": length_penalty, "ignore_eos": !asked.stops.contains(&own[0]),
                "stop_token_ids": asked.stops.iter().filter(|id| !own.contains(id)).collect::<Vec<_>>(),
            }),
        );
        let found = host.ask("/v1/completions", &body);
        assert_eq!(answers(&found), by_definition(&host, &prompt, &asked), "{body}");
        ends += answers(&found).iter().filter(|(_, end)| *end == "stop").count();
    }
    assert!(ends > 3, "some answers end: {ends}");
    host.quiet();
}

#[test]
fn an_answer_says_what_it_took() {
    let host = Host::start();
    let body = ask(3, 9, &json!({"ignore_eos": true, "logprobs": 2}));
    let before = host.engine.stats().generated_tokens;
    let found = host.ask("/v1/completions", &body);
    let prompt_tokens = tokens(&host, PROMPT).len();
    let usage = &found["usage"];
    assert_eq!(
        (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()),
        (Some(prompt_tokens as u64), Some(27))
    );
    let timings = &found["timings"];
    assert_eq!((timings["beam_rounds"].as_u64(), timings["decode_tokens"].as_u64()), (Some(9), Some(24)));
    assert_eq!(timings["prefill_tokens"].as_u64(), Some(prompt_tokens as u64), "{timings}");
    assert!(timings["beam_rows"].as_u64() >= Some(24), "each beam has a row of its own: {timings}");
    for phase in ["queue_ms", "prefill_ms", "decode_ms"] {
        assert!(timings[phase].as_f64().unwrap() <= timings["total_ms"].as_f64().unwrap(), "{timings}");
    }
    // What the engine did is counted as what it was: a token for each beam of each round.
    assert_eq!(host.engine.stats().generated_tokens - before, 25);
    for choice in found["choices"].as_array().unwrap() {
        let logprobs = &choice["logprobs"];
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 9);
        let own: Vec<f64> =
            logprobs["token_logprobs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        let top = logprobs["top_logprobs"].as_array().unwrap();
        let best =
            |at: usize| top[at].as_object().unwrap().values().map(|x| x.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert!(own.iter().enumerate().all(|(at, own)| *own <= best(at)), "{logprobs}");
    }
    let text: String =
        found["choices"][0]["logprobs"]["tokens"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    // An end that is not obeyed is a token, and no text.
    assert_eq!(found["choices"][0]["text"], text.replace("<|end|>", ""));
    // Several prompts are searched side by side, each as it would be alone.
    let several = host.ask("/v1/completions", &ask(2, 6, &json!({"prompt": [PROMPT, "One day,"]})));
    for (at, prompt) in [PROMPT, "One day,"].into_iter().enumerate() {
        let alone = host.ask("/v1/completions", &ask(2, 6, &json!({"prompt": prompt})));
        assert_eq!(answers(&several)[2 * at..][..2], answers(&alone)[..]);
    }
    host.quiet();
}

#[test]
fn ends_are_as_they_are_wished() {
    let host = Host::start();
    let full_stop = *tokens(&host, "It was big.").last().unwrap();
    let stops = |more: Value| {
        let mut more = more;
        more["stop_token_ids"] = json!([full_stop]);
        host.ask("/v1/completions", &ask(3, 30, &more))
    };
    let first = |body: &Value| body["choices"][0].clone();
    let plain = stops(json!({"length_penalty": -2, "early_stopping": true}));
    let choice = first(&plain);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(full_stop)));
    assert!(!choice["text"].as_str().unwrap().ends_with('.'), "{choice}");
    let with = stops(json!({"length_penalty": -2, "early_stopping": true, "include_stop_str_in_output": true}));
    assert_eq!(first(&with)["text"].as_str().unwrap(), format!("{}.", choice["text"].as_str().unwrap()));
    assert_eq!(answers(&with), answers(&plain));
    // The least length is one of what stands before the end.
    let long = stops(json!({"length_penalty": -2, "min_tokens": 9}));
    assert!(answers(&long).iter().all(|(ids, end)| *end == "length" || ids.len() > 9), "{long}");
    // As many whole answers as beams are enough, or the best of all that may come.
    let early = stops(json!({"length_penalty": 3, "early_stopping": true}));
    assert!(answers(&early).iter().all(|(_, end)| *end == "stop"), "{early}");
    let exact = stops(json!({"length_penalty": 3}));
    assert_eq!(answers(&stops(json!({"length_penalty": 3, "early_stopping": "never"}))), answers(&exact));
    assert!(early["timings"]["beam_rounds"].as_u64() <= exact["timings"]["beam_rounds"].as_u64());
    let echoed = host.ask("/v1/completions", &ask(2, 4, &json!({"echo": true})));
    assert!(
        echoed["choices"].as_array().unwrap().iter().all(|choice| choice["text"].as_str().unwrap().starts_with(PROMPT))
    );
    host.quiet();
}

#[test]
fn a_search_is_the_same_beside_others_and_however_it_would_be_drawn() {
    let host = Host::start();
    let chat = |more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Tell me of a fox."}], "use_beam_search": true, "n": 4,
            "max_tokens": 12, "return_token_ids": true,
        });
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    let alone = host.ask("/v1/chat/completions", &chat(json!({})));
    assert_eq!(alone["choices"].as_array().unwrap().len(), 4);
    assert!(alone["choices"][0]["message"]["content"].is_string(), "{alone}");
    let canaries = Canaries::start(&host);
    for _ in 0..4 {
        assert_eq!(answers(&host.ask("/v1/chat/completions", &chat(json!({})))), answers(&alone));
    }
    canaries.finish();
    let drawn = chat(json!({
        "temperature": 1.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7, "speculate": false,
        "prediction": {"type": "content", "content": "Once"},
    }));
    let drawn = host.ask("/v1/chat/completions", &drawn);
    assert_eq!(answers(&drawn), answers(&alone));
    assert_eq!(drawn["hints"], json!(["temperature", "top_p", "top_k", "min_p", "seed", "prediction"]));
    host.quiet();
}

#[test]
fn what_a_search_cannot_be_combined_with_is_refused_by_name() {
    let host = Host::start();
    let tool = json!({"type": "function", "function": {"name": "clock"}});
    for (field, value) in [
        ("stream", json!(true)),
        ("receipt", json!(true)),
        ("timings_detail", json!(true)),
        ("ttft_slo_ms", json!(100)),
        ("tpot_slo_ms", json!(100)),
        ("stop", json!("x")),
        ("prompt_logprobs", json!(1)),
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(0.5)),
        ("repetition_penalty", json!(1.1)),
        ("logit_bias", json!({"5": 1})),
        ("allowed_token_ids", json!([5])),
        ("bad_words", json!(["x"])),
        ("n", json!(65)),
        ("n", json!(0)),
        ("best_of", json!(5)),
        ("max_tokens", json!(0)),
        ("length_penalty", json!(1e9)),
        ("length_penalty", json!("long")),
        ("early_stopping", json!("soon")),
        ("response_format", json!({"type": "json_object"})),
        ("guided_regex", json!("a*")),
    ] {
        let answer = host.post("/v1/completions", &ask(2, 4, &json!({field: value})));
        assert_eq!(answer.status, 400, "{field}: {value} -> {}", answer.text());
        let param = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
        assert!(param.starts_with(field), "{field}: {value} -> {}", answer.text());
    }
    let scored = host.post("/v1/completions", &ask(2, 4, &json!({"echo": true, "logprobs": 1})));
    assert_eq!((scored.status, &scored.json()["error"]["param"]), (400, &json!("echo")));
    let messages = json!([{"role": "user", "content": "Hello"}]);
    for (field, value) in [("tools", json!([tool])), ("structured_outputs", json!({"regex": "a*"}))] {
        let body = json!({"messages": messages, "use_beam_search": true, field: value});
        let answer = host.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.json()["error"]["param"].as_str().unwrap().starts_with(field), "{}", answer.text());
    }
    // Alone they belong to nothing.
    for (field, value) in [("length_penalty", json!(2)), ("early_stopping", json!(true))] {
        let answer = host.post("/v1/completions", &json!({"prompt": PROMPT, field: value}));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(field)));
    }
    let neutral = json!({"prompt": PROMPT, "use_beam_search": false, "length_penalty": 1, "early_stopping": false});
    host.ask("/v1/completions", &neutral);
    host.quiet();
}

#[test]
fn a_search_ends_with_its_client() {
    let host = Host::start();
    let body = ask(8, 900, &json!({"ignore_eos": true})).to_string();
    let mut connection = host.connect();
    connection.request("POST", "/v1/completions", &[("content-type", "application/json")], body.as_bytes());
    wait("the search to begin", || host.engine.stats().finished_length > 20);
    drop(connection);
    host.quiet();
    // It was given up and not searched to its end.
    assert!(host.engine.stats().finished_length < 8 * 900);
}

#[test]
fn a_drain_waits_for_the_rounds_to_come() {
    let mut host = Host::start();
    let body = ask(4, 200, &json!({"ignore_eos": true}));
    let whole = host.ask("/v1/completions", &body);
    let done = host.engine.stats().finished_length;
    host.pause();
    let mut connection = host.connect();
    let bytes = body.to_string();
    connection.request("POST", "/v1/completions", &[("content-type", "application/json")], bytes.as_bytes());
    // A step that comes between two rounds has nothing to do.
    wait("the search to go on", || host.try_step() && host.engine.stats().finished_length > done + 8);
    host.stop.drain();
    // Not by a request for text: one that came before would wait in the held engine.
    wait("the drain to be seen", || host.get("/v1/models").status == 503);
    assert_eq!(host.post("/v1/completions", &body).status, 503, "no other one is begun");
    host.resume();
    assert_eq!(answers(&connection.answer().json()), answers(&whole));
    host.join();
}

#[test]
fn a_search_wider_than_the_queue_takes_turns() {
    let engine = EngineOptions { max_queued_requests: 2, ..small_engine() };
    let host = Host::with(engine, local_server());
    let narrow = host.ask("/v1/completions", &ask(6, 8, &json!({})));
    drop(host);
    let host = Host::start();
    assert_eq!(answers(&narrow), answers(&host.ask("/v1/completions", &ask(6, 8, &json!({})))));
}
