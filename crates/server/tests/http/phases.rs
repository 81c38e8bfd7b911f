//! What both phases asked of the machine: in an answer's `timings`, in `/metrics`, and who waits meanwhile.

use serde_json::{Value, json};

use crate::host::{Host, local_server, small_engine};

/// Limits that no machine reaches, so that shares are known to be small and above nothing.
fn limits() -> engine::DeviceLimits {
    engine::DeviceLimits { read_bandwidth: 1e12, bf16_flops: 2e13, int8_ops: 4e13, ..crate::host::some_limits() }
}

fn host(limits: Option<engine::DeviceLimits>) -> Host {
    Host::with(engine::EngineOptions { limits, ..small_engine() }, local_server())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn timings_say_what_the_phases_cost() {
    let host = host(Some(limits()));
    let body = json!({"prompt": "The fox looked at the lantern. ".repeat(30), "max_tokens": 20, "ignore_eos": true});
    let timings = host.ask("/v1/completions", &body)["timings"].clone();
    let demands = host.engine.model().demands();
    let tokens = |name: &str| number(&timings[name]) as usize;
    let prefill = demands.prefill(0, tokens("prefill_tokens"), 128);
    let (prompt, steps) = (tokens("prefill_tokens"), tokens("decode_tokens"));
    let keys: usize = (prompt + 1..=prompt + steps).sum();
    let decode = demands.decode(steps, steps, keys as f64);
    for (phase, work, bound) in [("prefill", prefill, "compute"), ("decode", decode, "memory")] {
        let told = &timings[phase];
        assert_eq!((number(&told["flops"]), number(&told["bytes"])), (work.flops().round(), work.bytes.round()));
        assert!((number(&told["intensity"]) - work.intensity()).abs() < 1e-3, "{told}");
        let [all, compute, memory] =
            ["limit_percent", "compute_percent", "memory_percent"].map(|name| number(&told[name]));
        assert!(all > 0.0 && all < 10.0 && all == compute.max(memory), "{told}");
        // So far from both that neither bound it.
        assert_eq!(told["bound_by"], "overhead", "{bound} {told}");
    }
    assert!(number(&timings["prefill"]["intensity"]) > 10.0 * number(&timings["decode"]["intensity"]), "{timings}");
    // The last chunk of a stream has the same; several prompts have no share, for their times are no sum.
    let mut several = body.clone();
    several["prompt"] = json!(["One fox.", "Two foxes."]);
    let events = host.stream("/v1/completions", &several);
    let told = &events.iter().rev().find(|event| !event["timings"].is_null()).expect("timings")["timings"]["decode"];
    assert!(number(&told["flops"]) > 0.0 && told["limit_percent"].is_null(), "{told}");
    // A single token is no decode.
    let one = host.ask("/v1/completions", &json!({"prompt": "One fox.", "max_tokens": 1}));
    assert!(one["timings"]["decode"].is_null() && !one["timings"]["prefill"].is_null(), "{one}");
    host.quiet();
}

#[test]
fn a_limit_that_was_measured_too_low_is_reached_and_not_exceeded() {
    let host = host(Some(engine::DeviceLimits { read_bandwidth: 1e3, bf16_flops: 1e3, ..limits() }));
    let told = host.ask("/v1/completions", &json!({"prompt": "One fox.", "max_tokens": 9, "ignore_eos": true}));
    for phase in ["prefill", "decode"] {
        // The engine raises a limit that a step has beaten; all of it is not known.
        let percent = &told["timings"][phase]["limit_percent"];
        assert!(percent.is_null() || number(percent) > 0.0 && number(percent) < 100.0, "{told}");
    }
    let metrics = host.get("/metrics");
    for line in metrics.text().lines().filter(|line| line.starts_with("twostroke_roofline_utilization{")) {
        let share: f64 = line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number");
        assert!((0.0..=1.0).contains(&share), "{line}");
    }
}

#[test]
fn metrics_count_operations_and_bytes_by_phase() {
    let host = host(Some(limits()));
    host.ask("/v1/completions", &json!({"prompt": "Once upon a time", "max_tokens": 9, "ignore_eos": true}));
    let page = host.get("/metrics");
    let sample = |labels: &str| {
        let line = page.text().lines().find(|line| line.starts_with(labels));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    let [prefill, decode] = host.engine.stats().work;
    assert_eq!(sample("twostroke_flops_total{phase=\"prefill\"}"), Some(prefill.total.flops()));
    assert_eq!(sample("twostroke_flops_total{phase=\"decode\"}"), Some(decode.total.flops()));
    assert_eq!(sample("twostroke_bytes_read_total{phase=\"decode\"}"), Some(decode.total.bytes));
    for phase in ["prefill", "decode"] {
        let share = sample(&format!("twostroke_roofline_utilization{{phase=\"{phase}\",limit=\"memory\"}}"));
        assert!(share > Some(0.0) && share < Some(0.1), "{phase}: {share:?}");
    }
    assert_eq!(sample("twostroke_oldest_waiting_seconds"), Some(0.0));
    // Without limits there is no share of them.
    drop(host);
    let blind = host_without_limits();
    blind.ask("/v1/completions", &json!({"prompt": "Once", "max_tokens": 3}));
    let told = blind.ask("/v1/completions", &json!({"prompt": "Once", "max_tokens": 3}));
    assert!(
        number(&told["timings"]["prefill"]["flops"]) > 0.0 && told["timings"]["prefill"]["bound_by"].is_null(),
        "{told}"
    );
    assert!(!blind.get("/metrics").text().contains("twostroke_roofline_utilization"));
}

fn host_without_limits() -> Host {
    host(None)
}
