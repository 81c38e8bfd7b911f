//! Which request was slow: the list of a caller's own.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::client::Answer;
use crate::host::{Host, keyed, small_engine};

const PROMPT: &str = "The fox looked at the lantern in the window.";

fn names(list: &Value) -> Vec<&str> {
    let lines = list["data"].as_array().expect("a list");
    lines.iter().map(|line| line["request_id"].as_str().expect("a name")).collect()
}

fn ask(host: &Host, name: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json"), ("x-request-id", name), ("connection", "close")];
    host.send("POST", "/v1/completions", &headers, body.to_string().as_bytes())
}

#[test]
fn requests_are_found_by_state_slowness_and_time() {
    let host = Host::start();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis() as f64;
    let list = |query: &str| host.get(&format!("/v1/requests{query}")).json();
    assert_eq!(list(""), json!({"object": "list", "data": [], "has_more": false}));
    let body = |tokens: u32| json!({"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": true});
    let answer = ask(&host, "short", &body(3)).json();
    assert_eq!(
        ask(&host, "two", &json!({"prompt": [PROMPT, "Once"], "max_tokens": 2, "ignore_eos": true})).status,
        200
    );

    let whole = list("");
    assert_eq!(names(&whole), ["two", "short"], "the newest first");
    let line = &whole["data"][1];
    assert_eq!(
        (&line["id"], &line["state"], &line["finish_reason"]),
        (&answer["id"], &json!("finished"), &json!("length"))
    );
    assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&answer["usage"]["prompt_tokens"], &json!(3)));
    for (field, wanted) in [("ttft_ms", "ttft_ms"), ("queue_ms", "queue_ms"), ("total_ms", "total_ms")] {
        let (found, wanted) = (line[field].as_f64().expect(field), answer["timings"][wanted].as_f64().expect("a time"));
        assert!((found - wanted).abs() < 0.001, "{field}: {found} and {wanted}");
    }
    assert!(line["ttft_mostly"].is_string() && line["gaps_mostly"].is_string(), "{line}");
    assert_eq!(whole["data"][0]["prompts"], 2);
    // The wall's clock, in both forms, and the same on the timeline.
    let arrived = line["arrived_unix_ms"].as_f64().expect("a moment");
    assert!((0.0..600_000.0).contains(&(arrived - before)), "{arrived} is not after {before}");
    assert!(line["arrived_at"].as_str().is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{line}");
    let timeline = host.get(line["timeline"].as_str().expect("a path")).json();
    assert_eq!(timeline["prompts"][0]["arrived_unix_ms"], line["arrived_unix_ms"]);

    assert_eq!(names(&list("?limit=1")), ["two"]);
    assert_eq!(list("?limit=1")["has_more"], true);
    assert_eq!(names(&list("?min_gap=80000s")), Vec::<&str>::new().as_slice());
    assert_eq!(names(&list("?min_ttft=80000s")), Vec::<&str>::new().as_slice());
    assert_eq!(names(&list(&format!("?since={}", arrived as u64))), ["two", "short"]);
    assert_eq!(names(&list("?since=2100-01-01T00:00:00Z")), Vec::<&str>::new().as_slice());
    assert_eq!(names(&list("?order=total")).len(), 2);

    // One that runs, and what it has waited so far.
    std::thread::scope(|scope| {
        host.pause();
        let long = scope.spawn(|| ask(&host, "long", &body(900)));
        host.step_into(1);
        assert_eq!(names(&list("?state=running")), ["long"]);
        let line = list("?state=running,waiting")["data"][0].clone();
        assert!(line["finish_reason"].is_null() && line["ended_at"].is_null(), "{line}");
        host.resume();
        assert_eq!(long.join().expect("an answer").status, 200);
    });
    assert_eq!(names(&list("?state=running")), Vec::<&str>::new().as_slice());
    assert_eq!(names(&list("?state=finished&order=total&limit=1")), ["long"], "the slowest first");
    for (query, param) in
        [("state=slow", "state"), ("min_ttft=fast", "min_ttft"), ("limit=5000", "limit"), ("x=1", "x")]
    {
        let answer = host.get(&format!("/v1/requests?{query}"));
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{query}");
    }
    // It says nothing of what was said.
    assert!(!list("").to_string().contains("fox"));
}

#[test]
fn a_key_sees_its_own() {
    let host = Host::with(small_engine(), keyed(&["sk-a", "sk-b"]));
    let send = |method: &str, key: &str, path: &str, body: &str| host.begin(key, method, path, body).answer();
    let body = json!({"prompt": PROMPT, "max_tokens": 2}).to_string();
    let id = send("POST", "sk-a", "/v1/completions", &body).json()["id"].clone();
    let of = |key: &str| send("GET", key, "/v1/requests", "").json()["data"].clone();
    assert_eq!((of("sk-a").as_array().map(Vec::len), of("sk-b")), (Some(1), json!([])));
    assert_eq!(of("sk-a")[0]["id"], id);
    assert_eq!(send("GET", "sk-c", "/v1/requests", "").status, 401);
}

#[test]
fn browsers_tools_are_told_where_the_time_went() {
    let host = Host::start();
    let body = json!({"prompt": PROMPT, "max_tokens": 4, "ignore_eos": true});
    let entries = |answer: &Answer| -> Vec<(String, f64)> {
        let header = answer.header("server-timing").expect("a header").to_owned();
        let entry = |entry: &str| {
            let (name, rest) = entry.split_once(";desc=\"").expect("a description");
            (name.to_owned(), rest.split_once("\";dur=").expect("a duration").1.parse().expect("milliseconds"))
        };
        header.split(", ").map(entry).collect()
    };
    let answer = host.post("/v1/completions", &body);
    let told = entries(&answer);
    assert_eq!(
        told.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["text", "queue", "prefill", "decode", "total"]
    );
    let timings = answer.json()["timings"].clone();
    for (name, ms) in &told[1..] {
        let wanted = timings[format!("{name}_ms")].as_f64().expect("a time");
        assert!((ms - wanted).abs() < 0.002, "{name}: {ms} and {wanted}");
    }
    let mut streamed = body;
    streamed["stream"] = true.into();
    // Its headers are gone before its first token.
    let told = entries(&host.post("/v1/completions", &streamed));
    assert_eq!(told[0].0, "text");
    assert!(told.iter().all(|(name, _)| ["text", "predicted-ttft"].contains(&name.as_str())), "{told:?}");
}

#[test]
fn buckets_name_a_request_for_who_asks_in_open_metrics() {
    let host = Host::start();
    let answer = host.ask("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 6, "ignore_eos": true}));
    let id = answer["id"].as_str().expect("an id");
    let get = |accept: &str| host.send("GET", "/metrics", &[("accept", accept), ("connection", "close")], b"");
    let plain = get("*/*");
    assert!(plain.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
    assert!(!plain.text().contains(" # {") && !plain.text().contains("# EOF"));
    let page = get("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3");
    assert_eq!(page.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(page.text().ends_with("\n# EOF\n"));
    for (histogram, ms) in [
        ("twostroke_time_to_first_token_seconds", answer["timings"]["ttft_ms"].as_f64()),
        ("vllm:inter_token_latency_seconds", None),
    ] {
        let named: Vec<&str> =
            page.text().lines().filter(|line| line.starts_with(histogram) && line.contains(" # ")).collect();
        assert_eq!(named.len(), 1, "one observation, one bucket: {named:?}");
        let (bucket, exemplar) = named[0].split_once(" # ").expect("an exemplar");
        let (labels, rest) = exemplar.split_once("} ").expect("labels");
        assert_eq!(labels, format!("{{request_id=\"{id}\""));
        let numbers: Vec<f64> = rest.split(' ').map(|number| number.parse().expect("a number")).collect();
        let bound = bucket.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"')?.0.parse::<f64>().ok());
        assert!(numbers[0] <= bound.expect("a bound"), "it is in its bucket: {}", named[0]);
        assert!(ms.is_none_or(|ms| (numbers[0] * 1e3 - ms).abs() < 0.001), "{}", named[0]);
        assert!(numbers[1] > 1.7e9, "a second since 1970: {}", named[0]);
    }
}
