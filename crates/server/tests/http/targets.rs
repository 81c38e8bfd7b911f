//! Targets over HTTP: who may name them, what becomes of the ones that cannot be met, and what is counted.

use engine::{Calibration, DefaultTarget, EngineOptions};
use serde_json::{Value, json};

use crate::client::Answer;
use crate::host::{Host, local_server, small_engine, wait};

fn measured() -> EngineOptions {
    EngineOptions { calibration: Some(Calibration::default()), ..small_engine() }
}

fn ask(extra: Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// A sample with these labels on the page of metrics.
fn sample(host: &Host, line: &str) -> f64 {
    let page = host.get("/metrics");
    let value = page.text().lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no sample {line}")).parse().unwrap()
}

#[test]
fn targets_and_tiers_are_taken_and_counted() {
    let options = EngineOptions { ttft: DefaultTarget::Auto, tpot: DefaultTarget::Auto, ..measured() };
    let host = Host::with(options, local_server());
    let met = |class: &str, slo: &str, outcome: &str| {
        sample(&host, &format!("twostroke_slo_requests_total{{class=\"{class}\",slo=\"{slo}\",outcome=\"{outcome}\"}}"))
    };
    let answer = host.post("/v1/completions", &ask(json!({})));
    let promised = ["x-predicted-ttft-ms", "x-promised-ttft-ms", "x-promised-total-ms"]
        .map(|name| answer.header(name).expect("it is promised").parse::<u64>().expect("whole milliseconds"));
    assert!(promised.is_sorted(), "{promised:?}");
    let timings = &answer.json()["timings"];
    for (name, header) in ["predicted_ttft_ms", "promised_ttft_ms", "promised_total_ms"].iter().zip(promised) {
        let body = timings[*name].as_f64().expect("the body has it too");
        assert!((body - header as f64).abs() <= 1.0, "{name}: {body} {header}");
    }
    let is_known =
        |answer: &Answer| (answer.header("x-promise").is_none(), answer.json()["timings"].get("promise").is_none());
    assert_eq!((is_known(&answer), answer.header("x-promise")), ((false, false), Some("not known yet")));
    assert_eq!(answer.json().get("service_tier"), None, "it was not asked for");
    let text = answer.json()["choices"].clone();

    // (what is asked, the tier that is told)
    for (extra, tier) in [
        (json!({"service_tier": "auto"}), "default"),
        (json!({"service_tier": "default", "tpot_slo_ms": 3_600_000, "ttft_slo_ms": 3_600_000}), "default"),
        (json!({"service_tier": "priority", "ttft_slo_ms": 0.1}), "priority"),
        (json!({"service_tier": "flex"}), "flex"),
        (json!({"service_tier": "flex", "tpot_slo_ms": 3_600_000}), "flex"),
    ] {
        let body = host.ask("/v1/completions", &ask(extra.clone()));
        assert_eq!((&body["service_tier"], &body["choices"]), (&json!(tier), &text), "{extra}");
        let events = host.stream("/v1/completions", &ask(extra.clone()));
        assert!(events.iter().all(|event| event["service_tier"] == tier), "{extra}");
    }
    host.quiet();
    // Batch work has no targets but its own; the first token of a tenth of a millisecond is always late.
    assert_eq!((met("flex", "ttft", "met"), met("flex", "ttft", "missed")), (0.0, 0.0));
    assert_eq!((met("flex", "tpot", "met"), met("flex", "all", "met")), (2.0, 2.0));
    assert_eq!((met("priority", "ttft", "missed"), met("priority", "all", "missed")), (2.0, 2.0));
    let default = met("default", "all", "met") + met("default", "all", "missed");
    assert_eq!(default, 5.0, "one without a word, two each of auto and default");

    // Every request had two promises, and each was kept or broken.
    let promises = |kind: &str, outcome: &str| {
        sample(&host, &format!("twostroke_latency_bounds_total{{kind=\"{kind}\",outcome=\"{outcome}\"}}"))
    };
    let info = host.get("/live/info").json();
    assert_eq!(info["promises"]["share"], 0.95);
    for kind in ["ttft", "answer"] {
        assert_eq!(promises(kind, "kept") + promises(kind, "broken"), 11.0, "{kind}");
        let (told, share) = (&info["promises"][kind], promises(kind, "kept") / 11.0);
        assert_eq!(
            (&told["kept"], &told["broken"]),
            (&json!(promises(kind, "kept") as u64), &json!(promises(kind, "broken") as u64))
        );
        let page = sample(&host, &format!("twostroke_latency_bound_coverage{{kind=\"{kind}\"}}"));
        assert!((told["rolling"].as_f64().expect("a share") - share).abs() < 1e-9 && (page - share).abs() < 1e-9);
    }

    // What the steps took is set beside what they were predicted to take. A step of which other programs had all the
    // time has nothing to set beside it.
    let count =
        |phase: &str| sample(&host, &format!("twostroke_step_prediction_error_ratio_count{{phase=\"{phase}\"}}"));
    let (counted, steps) = (count("decode") + count("prefill") + count("mixed"), host.metric("twostroke_steps_total"));
    assert!((1.0..=steps).contains(&counted), "{counted} of {steps} steps");
    let seconds =
        |what: &str, phase: &str| sample(&host, &format!("twostroke_step_{what}_seconds_total{{phase=\"{phase}\"}}"));
    assert!(seconds("predicted", "decode") > 0.0 && seconds("measured", "decode") > 0.0);
    assert_eq!(host.metric("twostroke_prefill_backlog_seconds"), 0.0, "nothing is in line");

    // Twenty have ended, each without another before it.
    let answers: Vec<Answer> = (0..20).map(|_| host.post("/v1/completions", &ask(json!({})))).collect();
    let known = answers.last().expect("twenty");
    assert_eq!(is_known(known), (true, true), "{:?}", known.json()["timings"]);
}

#[test]
fn what_would_be_late_is_refused_at_once_and_told_when_to_come_back() {
    let host = Host::with(EngineOptions { refuse_late: true, max_num_seqs: 1, ..measured() }, local_server());
    let refused = |body: &Value| {
        let answer = host.post("/v1/completions", body);
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("late")), "{}", answer.text());
        assert!(answer.header("retry-after").expect("it says when").parse::<u64>().unwrap() >= 1);
    };
    // Not even an idle server reads 900 tokens in a tenth of a millisecond. But that is what it believes: some are let
    // through to see whether it is so, fewer and fewer as it is.
    let mut long = ask(json!({"ttft_slo_ms": 0.1}));
    long["prompt"] = json!(vec![7; 900]);
    let statuses: Vec<u16> = (0..7).map(|_| host.post("/v1/completions", &long).status).collect();
    assert_eq!(statuses, [200, 503, 200, 503, 503, 503, 200]);
    assert_eq!(
        (host.metric("twostroke_rejected_late_total"), host.metric("twostroke_admission_probes_total")),
        (4.0, 3.0)
    );

    // One answers, ten prompts of a class before ours stand in line, and none moves up while it does.
    let runs = std::thread::scope(|scope| {
        let send = |body: Value| scope.spawn(|| host.post("/v1/completions", &{ body }));
        host.pause();
        let runs = send(ask(json!({"max_tokens": 1000, "service_tier": "priority"})));
        host.step_into(1);
        let mut first = long.clone();
        (first["ttft_slo_ms"], first["service_tier"], first["max_tokens"]) = (json!(null), json!("priority"), json!(1));
        let waiting: Vec<_> = (0..10).map(|_| send(first.clone())).collect();
        wait("the line to form", || host.engine.stats().prefill_backlog_seconds > 0.0);
        let backlog_ms = host.engine.stats().prefill_backlog_seconds * 1e3;
        assert!(host.metric("twostroke_prefill_backlog_seconds") >= 0.0);
        for stream in [false, true] {
            let body = ask(json!({"ttft_slo_ms": (backlog_ms / 4.0).max(5.0), "stream": stream}));
            refused(&body);
        }
        host.resume();
        assert_eq!(host.post("/v1/completions", &ask(json!({"ttft_slo_ms": 3_600_000}))).status, 200);
        for answer in waiting {
            assert_eq!(answer.join().expect("it is answered").status, 200);
        }
        runs.join().expect("it is answered")
    });
    assert_eq!(runs.status, 200);
    host.quiet();
}
