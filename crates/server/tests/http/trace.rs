//! The last seconds as a trace, and what a feed says of the minutes before it.

#[path = "../../../replay/tests/perfetto/mod.rs"]
mod perfetto;

use std::collections::BTreeSet;
use std::time::Duration;

use engine::{Calibration, DefaultTarget, EngineOptions};
use serde_json::{Value, json};

use crate::host::{Host, keyed, small_engine};

const PROMPT: &str = "The fox looked at the lantern in the window.";

fn send(host: &Host, method: &str, key: &str, path: &str, body: &str) -> crate::client::Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str()), ("connection", "close")];
    host.send(method, path, &headers, body.as_bytes())
}

/// A stream, and a prompt of its own key and of another beside it: the server, the stream's id, and what a trace shows
/// to its key.
fn disturbed() -> (Host, String, perfetto::Shown) {
    let options = keyed(&["sk-a", "sk-b"]);
    // Steps of the built-in model are short: with so near a target every gap is late.
    let tpot = DefaultTarget::Fixed(Duration::from_micros(100));
    let host = Host::with(EngineOptions { tpot, calibration: Some(Calibration::default()), ..small_engine() }, options);
    let body = |prompt: &str, tokens: u32| {
        json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true}).to_string()
    };
    let streamed = std::thread::scope(|scope| {
        host.pause();
        let streamed = scope.spawn(|| send(&host, "POST", "sk-a", "/v1/completions", &body(PROMPT, 400)));
        host.step_into(1);
        let (host, body) = (&host, &body);
        let beside = ["sk-a", "sk-b"].map(|key| {
            // In enough chunks that both have some of the longest gaps, of which an account names 32.
            let long = format!("{key} {PROMPT}").repeat(12);
            scope.spawn(move || send(host, "POST", key, "/v1/completions", &body(&long, 1)))
        });
        crate::host::wait("both to come", || host.engine.health().open_requests == 3);
        host.resume();
        for answer in beside {
            assert_eq!(answer.join().expect("an answer").status, 200);
        }
        streamed.join().expect("an answer").json()
    });
    let id = streamed["id"].as_str().expect("an id").to_owned();
    let answer = send(&host, "GET", "sk-a", "/live/trace?seconds=3600", "");
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-disposition").is_some_and(|name| name.contains("twostroke-trace.json")));
    let shown = perfetto::check(&answer.json());
    (host, id, shown)
}

#[test]
fn the_last_seconds_open_as_a_trace_and_strangers_are_numbers() {
    let (host, id, shown) = disturbed();
    assert_eq!((shown.lanes.len(), shown.tokens), (3, 402), "{shown:?}");
    let (own, strangers): (Vec<&String>, Vec<&String>) = shown.lanes.iter().partition(|lane| lane.starts_with("cmpl-"));
    assert_eq!((own.len(), strangers.len()), (2, 1), "{:?}", shown.lanes);
    assert!(strangers[0].starts_with("other "));
    assert!(shown.arrows.iter().all(|(_, to, _)| to.starts_with("cmpl-")), "{shown:?}");
    for (query, param) in [("seconds=0", "seconds"), ("seconds=1e9", "seconds"), ("minutes=1", "minutes")] {
        let answer = send(&host, "GET", "sk-a", &format!("/live/trace?{query}"), "");
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{query}");
    }
    // Both of the others delayed the stream. An account names its longest gaps, and on a busy machine those may be of
    // other causes: then once more.
    let causes = |id: &str, shown: &perfetto::Shown| -> BTreeSet<String> {
        shown.arrows.iter().filter(|(_, to, _)| to == id).map(|(from, ..)| from.clone()).collect()
    };
    let mut found = causes(&id, &shown);
    drop(host); // the next one waits for it
    for _ in 0..20 {
        if found.len() == 2 {
            return;
        }
        let (_, id, shown) = disturbed();
        found = causes(&id, &shown);
    }
    panic!("two others delayed it, and the trace has {found:?}");
}

#[test]
fn a_page_that_is_opened_later_sees_what_was() {
    let host = Host::start();
    let answer = host.ask("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 30, "ignore_eos": true}));
    host.ask("/v1/completions", &json!({"prompt": "Once", "max_tokens": 1}));
    let mut connection = host.connect();
    connection.request("GET", "/live/feed", &[], b"");
    connection.head().expect("a feed");
    let mut text = Vec::new();
    while String::from_utf8_lossy(&text).matches("event: ended").count() < 2 {
        assert!(connection.chunk(&mut text), "the feed has no end");
    }
    let text = String::from_utf8(text).expect("UTF-8");
    let of = |kind: &str| -> Vec<Value> {
        let events = text.split("\n\n").filter_map(|event| event.strip_prefix(&format!("event: {kind}\ndata: ")));
        events.map(|data| serde_json::from_str(data).expect("JSON")).collect()
    };
    let history = &of("history")[0];
    let columns: Vec<&str> = history["columns"].as_array().expect("columns").iter().filter_map(Value::as_str).collect();
    let sum = |column: &str| -> f64 {
        let at = columns.iter().position(|name| *name == column).unwrap_or_else(|| panic!("no {column}"));
        history["seconds"].as_array().expect("rows").iter().filter_map(|row| row[at].as_f64()).sum()
    };
    let stats = host.engine.stats();
    assert_eq!(sum("prefill_tokens") as u64, stats.prefill_tokens);
    assert_eq!(sum("decode_tokens") as u64, stats.decode_tokens);
    assert!(sum("ttft_p50_ms") > 0.0 && sum("itl_p99_ms") > 0.0 && sum("running") >= 1.0, "{history}");
    // Those that ended before are whole.
    let ended = of("ended");
    let ours = ended.iter().find(|ended| ended["r"] == answer["id"]).expect("the first request");
    assert_eq!((&ours["generated"], &ours["prompt_tokens"]), (&json!(30), &answer["usage"]["prompt_tokens"]));
    assert!(ours["queue_ms"].is_number() && ours["longest_gap_ms"].as_f64() > Some(0.0) && ours["arrived"].is_number());
    assert!(of("stats")[0]["unix_ms"].as_f64() > Some(1.7e12));
    // Who goes on after a step has seen it.
    let mut connection = host.connect();
    connection.request("GET", "/live/feed?after=0", &[], b"");
    connection.head().expect("a feed");
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("event: stats") {
        assert!(connection.chunk(&mut text), "the feed has no end");
    }
    assert!(!String::from_utf8_lossy(&text).contains("event: history"));
}
