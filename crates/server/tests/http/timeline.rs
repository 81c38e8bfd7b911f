//! Why was this slow: the detail of an answer's timings, the timeline of a request, and who may see it.

use engine::{EngineOptions, Observe};
use serde_json::{Value, json};
use server::{ParserOptions, ServerOptions};
use text::chat_template::TemplateSettings;

use crate::host::{Host, LONG, keyed, local_server, metric, small_engine, wait};

const PROMPT: &str = "The fox looked at the lantern in the window.";

fn sum(parts: &Value) -> f64 {
    parts.as_object().expect("owners").values().map(|ms| ms.as_f64().expect("milliseconds")).sum()
}

fn assert_same(what: &str, parts: f64, whole: &Value) {
    let whole = whole.as_f64().expect("milliseconds");
    // Times in answers are rounded to microseconds.
    assert!((parts - whole).abs() <= 0.001 + whole * 0.01, "{what}: {parts} of {whole}");
}

#[test]
fn an_answers_parts_are_its_times_streamed_or_not() {
    let host = Host::start();
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let mut body = json!({"max_tokens": 12, "temperature": 0, "ignore_eos": true, "timings_detail": true});
        match path {
            "/v1/completions" => body["prompt"] = PROMPT.into(),
            _ => body["messages"] = json!([{"role": "user", "content": PROMPT}]),
        }
        let whole = host.ask(path, &body)["timings"].clone();
        let events = host.stream(path, &body);
        let last = events.last().expect("events")["timings"].clone();
        assert!(events.iter().rev().skip(1).all(|event| event["timings"].is_null()), "the last one has it");
        for timings in [whole, last] {
            let detail = &timings["detail"][0];
            assert_same("TTFT", sum(&detail["ttft"]), &timings["ttft_ms"]);
            assert_same("gaps", sum(&detail["gaps"]), &timings["decode_ms"]);
            assert!(detail["ttft"]["own_prefill_ms"].as_f64() > Some(0.0), "{detail}");
            for key in ["ttft_delayed_by", "gaps_delayed_by", "late_tokens", "cost_to_others"] {
                assert!(!detail[key].is_null(), "{key} in {detail}");
            }
        }
        body["timings_detail"] = false.into();
        assert!(host.ask(path, &body)["timings"]["detail"].is_null(), "only if asked for");
    }
    let two = json!({"prompt": [PROMPT, "Once"], "max_tokens": 2, "timings_detail": true});
    let timings = host.ask("/v1/completions", &two)["timings"].clone();
    assert_eq!(timings["detail"].as_array().map(Vec::len), Some(2), "one for each prompt");
}

#[test]
fn a_timeline_is_found_by_either_name_and_shows_every_token() {
    let host = Host::start();
    let body = json!({"prompt": PROMPT, "max_tokens": 9, "temperature": 0, "ignore_eos": true}).to_string();
    let headers = [("content-type", "application/json"), ("x-request-id", "mine-1"), ("connection", "close")];
    let answer = host.send("POST", "/v1/completions", &headers, body.as_bytes());
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let by_id = host.get(&format!("/v1/requests/{id}/timeline")).json();
    let by_name = host.get("/v1/requests/mine-1/timeline").json();
    assert_eq!(by_id, by_name);
    assert_eq!((&by_id["id"], &by_id["request_id"]), (&json!(id), &json!("mine-1")));
    let prompt = &by_id["prompts"][0];
    assert_eq!(prompt["state"], "finished");
    assert_same("TTFT", sum(&prompt["ttft"]), &prompt["ttft_ms"]);
    let steps = prompt["steps"].as_array().expect("steps");
    let tokens: u64 = steps.iter().map(|step| step["tokens"].as_u64().expect("a count")).sum();
    assert_eq!((tokens, prompt["token_times_ms"].as_array().map(Vec::len)), (9, Some(9)));
    assert_eq!((&steps[0]["phase"], &steps[8]["phase"]), (&json!("prefill"), &json!("decode")));
    // It says nothing of what was said.
    assert!(!by_id.to_string().contains("fox"));
    for unknown in ["cmpl-0", "mine-2", "%2e%2e", "x".repeat(3000).as_str()] {
        let answer = host.get(&format!("/v1/requests/{unknown}/timeline"));
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("request_not_found")), "{unknown}");
    }
}

#[test]
fn a_late_token_names_the_prompt_that_delayed_it_and_a_strangers_is_a_number() {
    let host = Host::with(small_engine(), keyed(&["sk-a", "sk-b"]));
    let send = |method: &str, key: &str, path: &str, body: &str| host.begin(key, method, path, body).answer();
    let body = |prompt: &str, tokens: u32| {
        json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "timings_detail": true})
            .to_string()
    };
    // A stream of A's, and beside it a long prompt of each.
    let streamed = std::thread::scope(|scope| {
        host.pause();
        let streamed = scope.spawn(|| send("POST", "sk-a", "/v1/completions", &body(PROMPT, 400)));
        host.step_into(1);
        let beside = ["sk-a", "sk-b"].map(|key| {
            let body = body(&format!("{key} {PROMPT}").repeat(40), 1);
            scope.spawn(move || send("POST", key, "/v1/completions", &body))
        });
        wait("both to come", || host.engine.health().open_requests == 3);
        host.resume();
        for answer in beside {
            let answer = answer.join().expect("an answer");
            let cost = answer.json()["timings"]["detail"][0]["cost_to_others"]["total_ms"].as_f64();
            assert!(cost > Some(0.0), "it knows what it cost the stream");
        }
        streamed.join().expect("an answer")
    });
    let detail = streamed.json()["timings"]["detail"][0].clone();
    let blamed = detail["gaps_delayed_by"].as_array().expect("others");
    assert_eq!(blamed.iter().filter(|other| other["request"].is_string()).count(), 1, "its own tenant's: {detail}");
    assert_eq!(blamed.iter().filter(|other| other["request"].is_u64()).count(), 1, "a stranger's: {detail}");
    let id = streamed.json()["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/requests/{id}/timeline");
    assert_eq!(send("GET", "sk-a", &path, "").status, 200);
    assert_eq!(send("GET", "sk-b", &path, "").status, 404, "not B's business");
    assert_eq!(send("GET", "sk-c", &path, "").status, 401);

    // Run again without the own long prompt, and beside the stranger's, of which nothing is shown.
    let mine = blamed.iter().find_map(|other| other["request"].as_str()).expect("its own");
    let path = format!("/v1/requests/{id}/without/{mine}?run=true");
    let answer = send("GET", "sk-a", &path, "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["run"]["requests"], 2, "{}", answer.text());
    assert_eq!(answer.json()["prompts"][0]["answers"][0]["same_text"], true, "{}", answer.text());
    assert!(!answer.text().contains("fox"));
    assert_eq!(send("GET", "sk-b", &path, "").status, 404, "not B's business");
}

#[test]
fn of_many_prompts_at_once_every_wait_has_a_name_and_one_can_be_left_out() {
    let engine = EngineOptions { max_num_seqs: 2, ..small_engine() };
    let host = Host::with(engine, local_server());
    let long = format!("{PROMPT} ").repeat(30);
    let ask = |index: usize, asked: usize| {
        let prompt = format!("{asked}: {}", if asked == 0 { long.as_str() } else { PROMPT });
        let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true});
        let name = format!("of-many-{index}");
        let headers = [("content-type", "application/json"), ("x-request-id", &name), ("connection", "close")];
        host.send("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    };
    // None ends before the last has come, however slow the machine is.
    host.pause();
    std::thread::scope(|scope| {
        (0..12).for_each(|index| _ = scope.spawn(move || ask(index, index)));
        wait("all of them", || host.engine.health().open_requests == 12);
        host.resume();
    });
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number: {value}"));
    let (mut waited, mut cost) = (0.0, 0.0);
    for index in 0..12 {
        let timeline = host.get(&format!("/v1/requests/of-many-{index}/timeline")).json();
        let prompt = &timeline["prompts"][0];
        let parts = prompt["ttft"].as_object().expect("owners");
        let is_others = |name: &str| !["own_prefill_ms", "overhead_ms", "machine_ms"].contains(&name);
        let others: f64 = parts.iter().filter(|(name, _)| is_others(name)).map(|(_, ms)| number(ms)).sum();
        let named = prompt["ttft_delayed_by"].as_array().expect("a list");
        let named: f64 = named.iter().map(|other| number(&other["ms"])).sum();
        assert!((named - others).abs() < 1e-6, "request {index}: {named} of {others} ms are named");
        waited += others;
        let costs = &prompt["cost_to_others"];
        let rows = ["prefill_in_ttfts_ms", "decode_in_ttfts_ms", "drafts_in_ttfts_ms"];
        let of = rows.into_iter().chain(["queue_kv_ms", "queue_seats_ms", "queue_budget_ms"]);
        cost += of.map(|part| number(&costs[part])).sum::<f64>();
    }
    assert!(waited > 0.0 && (waited - cost).abs() < 1e-6, "delays {waited} ms, costs {cost} ms");

    let answer = host.get("/v1/requests/of-many-3/without/of-many-0").json();
    let times = &answer["prompts"][0]["answers"][0];
    for world in ["recorded", "simulated", "without"] {
        assert!(number(&times[world]["ttft_ms"]) > 0.0, "{answer}");
    }
    let status = |path: &str| host.get(&format!("/v1/requests/{path}")).status;
    assert_eq!(status("of-many-3/without/of-many-3"), 400);
    assert_eq!([status("of-many-3/without/nobody"), status("nobody/without/of-many-3")], [404; 2]);

    // The same run: measured, and nothing that the engine counts or remembers has changed.
    ask(12, 0);
    let seen = || {
        let (stats, past) = (host.engine.stats(), host.engine.past(LONG));
        let counts = [stats.steps, stats.generated_tokens, stats.prefix_queries, stats.finished_length];
        (counts, host.engine.requests(), past.answers.len(), past.steps.len())
    };
    let before = seen();
    for (name, requests, is_warm) in [("of-many-3", 11, false), ("of-many-12", 1, true)] {
        let answer = host.get(&format!("/v1/requests/{name}/without/of-many-0?run=true")).json();
        let times = &answer["prompts"][0]["answers"][0];
        assert!(number(&times["measured"]["total_ms"]) >= number(&times["measured"]["ttft_ms"]), "{answer}");
        assert!(number(&times["measured"]["ttft_ms"]) > 0.0 && times["same_text"] == true, "{answer}");
        assert_eq!((&answer["run"]["requests"], &answer["run"]["left_out"]), (&json!(requests), &json!(0)), "{answer}");
        let [then, now] = ["recorded", "measured"].map(|world| number(&times["cached_tokens"][world]));
        assert!(then == now && (then > 0.0) == is_warm, "what the cache had is warmed: {answer}");
    }
    // One whose client is gone ends.
    let [.., other, asked] = &host.engine.requests()[..] else { panic!("they are known") };
    let stopped = host.engine.run_again(&[asked.request], &[other.request], &|| false);
    assert!(matches!(stopped, Err(engine::RerunError::Busy(_))), "{stopped:?}");
    assert_eq!(seen(), before);

    // Whatever comes goes first: beside a request that is open none is run, and one that comes stops it. A long one is run,
    // so that another can come while it runs.
    let body = json!({"prompt": PROMPT, "max_tokens": 1500, "temperature": 0, "ignore_eos": true});
    let headers = [("content-type", "application/json"), ("x-request-id", "long"), ("connection", "close")];
    host.send("POST", "/v1/completions", &headers, body.to_string().as_bytes());
    let run = || host.get("/v1/requests/long/without/of-many-0?run=true");
    host.pause();
    let refused = run();
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (503, &json!("run")), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    host.resume();
    wait("a run to be stopped", || {
        let running = std::thread::scope(|scope| {
            let running = scope.spawn(run);
            std::thread::sleep(std::time::Duration::from_millis(50));
            ask(13, 13);
            running.join().expect("an answer")
        });
        [200, 503].contains(&running.status) && running.text().contains("goes first")
    });
    host.quiet();
    // Nothing but the long prompt came again, and it was found.
    wait("the share", || host.get("/metrics").text().contains("\ntwostroke_cache_saved_of_optimum_ratio 1\n"));
}

#[test]
fn every_second_of_waiting_has_an_owner_in_the_metrics() {
    let host = Host::start();
    host.ask("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 9, "ignore_eos": true}));
    let page = host.get("/metrics").text().to_owned();
    for (owned, histogram, owners) in [
        ("twostroke_ttft_seconds_total", "twostroke_time_to_first_token_seconds_sum", 16),
        ("twostroke_itl_seconds_total", "twostroke_inter_token_latency_seconds_sum", 13),
    ] {
        let parts = page.lines().filter(|line| line.starts_with(&format!("{owned}{{owner=\"")));
        let parts: Vec<f64> = parts.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(parts.len(), owners, "{owned} has a fixed set of labels");
        let (parts, whole) = (parts.iter().sum::<f64>(), host.metric(histogram));
        assert!(whole > 0.0 && (parts / whole - 1.0).abs() < 0.01, "{owned}: {parts} of {whole}");
    }
}

/// A template that opens a thought, and a budget that closes it: so any model thinks.
#[test]
fn a_thought_is_a_span_of_its_own() {
    let source = "{% for m in messages %}<|user|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n<think>\n";
    let template = TemplateSettings { source: Some(source.to_owned()), ..TemplateSettings::default() };
    let parsers = ParserOptions { reasoning_parser: Some("qwen3".to_owned()), ..ParserOptions::default() };
    let host = Host::with(EngineOptions { template, ..small_engine() }, ServerOptions { parsers, ..local_server() });
    let body = json!({
        "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24, "temperature": 0, "ignore_eos": true,
        "thinking_token_budget": 5,
    });
    let answer = host.ask("/v1/chat/completions", &body);
    let thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("it is counted");
    assert_eq!(thought, 5, "{answer}");
    let of = |value: &Value, name: &str| value[name].as_f64().unwrap_or_else(|| panic!("{name} of {value}"));
    let timings = &answer["timings"];
    let (thinking, visible) = (of(timings, "thinking_ms"), of(timings, "first_visible_ms"));
    assert!(thinking > 0.0 && visible > of(timings, "ttft_ms") && visible < of(timings, "total_ms"), "{timings}");

    let path = format!("/v1/requests/{}/timeline", answer["id"].as_str().expect("an id"));
    let prompt = host.get(&path).json()["prompts"][0].clone();
    let span = &prompt["thinking"][0];
    assert_eq!((&span["answer"], &span["from_token"]), (&json!(0), &json!(0)));
    let to = span["to_token"].as_u64().expect("it ends");
    assert!(to > thought && to < 24, "with the tokens of its mark: {span}");
    let times: Vec<f64> = prompt["token_times_ms"].as_array().expect("times").iter().flat_map(Value::as_f64).collect();
    let moments = [times[0], times[to as usize - 1], times[to as usize]];
    assert_eq!([of(span, "from_ms"), of(span, "to_ms"), of(span, "visible_ms")], moments);
    assert_eq!(of(span, "from_ms"), of(&prompt, "ttft_ms"), "it begins with the first token");
    assert!((thinking - (moments[2] - moments[0])).abs() < 0.002 && (visible - moments[2]).abs() < 0.002);

    // Streamed it is the same, and the page is told the rows.
    let events = host.stream("/v1/chat/completions", &body);
    assert!(events.last().expect("events")["timings"]["first_visible_ms"].is_f64());
    let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().expect("it is counted");
    let told = format!("\"a\":0,\"from\":{prompt_tokens},\"to\":{}", prompt_tokens + to - 1);
    let mut feed = host.connect();
    feed.request("GET", "/live/feed", &[], b"");
    feed.head().expect("an answer");
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(&told) {
        assert!(feed.chunk(&mut text), "it ended without it");
    }
    // Both are counted; who broke off in a thought saw nothing.
    let short = json!({"messages": body["messages"], "max_tokens": 3, "temperature": 0, "ignore_eos": true});
    let timings = host.ask("/v1/chat/completions", &short)["timings"].clone();
    assert!(of(&timings, "thinking_ms") > 0.0 && timings.get("first_visible_ms").is_none(), "{timings}");
    wait("the books to be closed", || host.metric("twostroke_thinking_seconds_count") == 3.0);
    assert_eq!(metric(host.get("/metrics").text(), "twostroke_time_to_first_visible_token_seconds_count"), 2.0);
    host.quiet();
}
