//! `twostroke sim`: a load on imagined hardware.

use std::fs;

use serde_json::Value;
use testing::Scratch;
use tests::{root, run, twostroke};

fn report(arguments: &[&str]) -> Value {
    let ran = run(&mut twostroke(&[&["sim", "--json"], arguments].concat()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran.json()
}

#[test]
fn one_seed_is_one_report() {
    let run = |seed: &str| report(&["--requests", "200", "--rate", "20", "--workload", "bursty", "--seed", seed]);
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn more_hardware_is_faster_and_targets_are_heeded() {
    let p99 = |report: &Value, what: &str| report[what]["p99"].as_f64().expect("a number");
    let load = ["--requests", "400", "--rate", "12", "--input-tokens", "3000", "--output-tokens", "100"];
    let one = report(&load);
    let two = report(&[&load[..], &["--instances", "2"]].concat());
    assert_eq!(one["completed"], 400);
    assert!(p99(&two, "ttft_seconds") < p99(&one, "ttft_seconds"), "{one} {two}");
    let heeded = report(&[&load[..], &["--instances", "2", "--tpot-slo", "30ms"]].concat());
    assert!(p99(&heeded, "itl_seconds") < p99(&two, "itl_seconds"), "{heeded} {two}");
    assert!(heeded["met_tpot"].as_f64() > Some(0.99), "{heeded}");
}

#[test]
fn a_config_json_is_a_model() {
    let named = report(&["--model", "qwen2.5-0.5b", "--requests", "20"]);
    let shipped = report(&["--model", &root().join("models/lantern").display().to_string(), "--requests", "20"]);
    let mean = |report: &Value| report["tpot_seconds"]["mean"].as_f64().expect("a number");
    assert!(mean(&shipped) < mean(&named), "4 million parameters against 500 million: {shipped} {named}");
}

#[test]
fn a_trace_is_replayed_and_drawn() {
    let directory = Scratch::new("sim");
    let trace = directory.join("trace.jsonl");
    let line = |at: usize| {
        let ids: Vec<usize> = (0..4).chain([100 + at]).collect();
        format!("{{\"timestamp\": {at}, \"input_length\": 2300, \"output_length\": 30, \"hash_ids\": {ids:?}}}\n")
    };
    fs::write(&trace, (0..50).map(|index| line(index * 200)).collect::<String>()).expect("a file can be written");
    let path = trace.display().to_string();
    let charts = directory.join("charts");
    let drawn = report(&["--trace", &path, "--svg", &charts.display().to_string()]);
    assert_eq!((&drawn["completed"], &drawn["input_tokens"]), (&50.into(), &(50 * 2300).into()));
    // All but the first find the four blocks of 512 tokens that they share.
    assert_eq!(drawn["prefix_cache"]["hit_tokens"], 49 * 2048);
    for name in ["ttft.svg", "tpot.svg", "kv.svg", "load.svg"] {
        let svg = fs::read_to_string(charts.join(name)).expect("each chart is a file");
        assert!(svg.starts_with("<svg ") && svg.contains("<path d=\"M"), "{name}: {svg}");
    }
    let faster = report(&["--trace", &path, "--rate", "50"]);
    assert!(faster["seconds"].as_f64() < drawn["seconds"].as_f64());
}

/// Without a target nothing was met, and nothing says so.
#[test]
fn a_target_that_was_not_set_is_not_met() {
    let load = ["--rate", "60", "--requests", "300"];
    let none = report(&load);
    for name in ["met_ttft", "met_tpot", "met_both", "goodput_requests_per_second"] {
        assert!(none[name].is_null(), "{name}: {none}");
    }
    let text = run(&mut twostroke(&[&["sim"], &load[..]].concat())).stdout;
    assert!(text.contains("none set: --ttft-slo and --tpot-slo do") && !text.contains("goodput"), "{text}");
    let one = report(&[&load[..], &["--ttft-slo", "60s"]].concat());
    assert_eq!((&one["met_ttft"], &one["met_both"]), (&1.0.into(), &1.0.into()), "{one}");
    assert!(one["met_tpot"].is_null(), "{one}");
}

/// The same names as `plan -m` and `plan --machine`.
#[test]
fn models_and_machines_are_those_of_plan() {
    let few = ["--requests", "5"];
    for model in ["7b", "lantern", "Qwen3-30B-A3B", "gpt-oss-20b", "gemma-3-4b"] {
        for machine in ["--hardware", "--machine"] {
            let told = report(&[&["-m", model, machine, "H200"], &few[..]].concat());
            assert_eq!(told["completed"], 5, "{model}: {told}");
        }
    }
    // int8 is twice as fast to multiply there.
    let ttft = |weights: &str| {
        let told = report(&[
            "-m",
            "llama-3.1-8b",
            "--weights",
            weights,
            "--input-tokens",
            "8000",
            "--requests",
            "5",
            "--rate",
            "0.1",
        ]);
        told["ttft_seconds"]["mean"].as_f64().expect("a number")
    };
    let gain = ttft("bf16") / ttft("int8");
    assert!(gain > 1.4 && gain < 2.0, "{gain}: attention stays");
    // The machine at hand has two names.
    for here in ["here", "this"] {
        assert_eq!(report(&["-m", "lantern", "--hardware", here, "--requests", "3"])["completed"], 3);
    }
}

#[test]
fn agents_sessions_share_their_beginning() {
    let load = ["--workload", "sessions", "--turns", "10", "--input-tokens", "700", "--output-tokens", "100"];
    let more = ["--prefix-tokens", "4000", "--requests", "60", "--pause", "1s", "--length-cv", "0"];
    let told = report(&[load, more].concat());
    assert_eq!(told["completed"], 60);
    assert!(told["prefix_cache"]["hit_share"].as_f64() > Some(0.85), "{told}");
}

/// Accepted drafts make answers shorter where rows are free, and change nothing of what is said.
#[test]
fn drafts_are_simulated() {
    let load = ["--requests", "40", "--rate", "1", "--output-tokens", "200"];
    let told = |more: &[&str]| report(&[&load[..], more].concat());
    let [never, often, always] =
        [&["--acceptance", "0"][..], &["--acceptance", "0.9,0.6"], &["--acceptance", "1"]].map(told);
    let number = |report: &Value, pointer: &str| report.pointer(pointer).and_then(Value::as_f64).expect("a number");
    let tokens = |report| number(report, "/speculation/tokens_per_step");
    assert!(tokens(&never) == 1.0 && tokens(&often) > 2.0 && tokens(&always) > 8.0, "{never} {often} {always}");
    assert!(number(&often, "/tpot_seconds/p50") < 0.6 * number(&never, "/tpot_seconds/p50"), "{often}");
    let none = told(&[]);
    assert!(none["speculation"].is_null() && none["output_tokens"] == always["output_tokens"], "{none}");
    assert_eq!(often, told(&["--acceptance", "0.9,0.6"]));
}

/// Workers with roles, what they refuse, and every division of them.
#[test]
fn prompts_are_read_by_some_and_answered_by_others() {
    let load = ["--instances", "3", "--requests", "60", "--rate", "6", "--input-tokens", "3000"];
    let targets = ["--ttft-slo", "2s", "--tpot-slo", "30ms"];
    let told = |more: &[&str]| report(&[&load[..], &targets, more].concat());
    let joint = told(&[]);
    assert!(joint["apart"].is_null(), "{joint}");
    let apart = told(&["--prefill", "1"]);
    assert_eq!((&apart["completed"], &apart["apart"]["prefill"]), (&60.into(), &1.into()), "{apart}");
    assert!(apart["apart"]["handed_over"].as_u64() > Some(30), "{apart}");
    let fast = told(&["--prefill", "1", "--link", "100G"]);
    let mean = |report: &Value| report["ttft_seconds"]["mean"].as_f64().expect("a number");
    assert!(mean(&fast) < mean(&told(&["--prefill", "1", "--link", "1G"])), "{fast}");
    let refusing = told(&["--prefill", "1", "--reject", "predicted", "--switch-roles"]);
    assert_eq!(refusing["completed"].as_u64().zip(refusing["refused"].as_u64()).map(|(a, b)| a + b), Some(60));
    let curve = told(&["--splits"]);
    let prefill: Vec<_> =
        curve["splits"].as_array().expect("a list").iter().map(|split| split["prefill"].clone()).collect();
    assert_eq!(prefill, [0, 1, 2], "{curve}");
    let refused = |more: &[&str], why: &str| {
        let ran = run(&mut twostroke(&[&["sim"], more].concat()));
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{more:?}: {ran:?}");
    };
    refused(&["--prefill", "1"], "--prefill");
    refused(&["--reject", "early"], "--prefill or --splits");
    refused(&["--instances", "2", "--prefill", "1", "--reject", "early"], "--ttft-slo");
    refused(&["--switch-roles"], "there are no roles");
    refused(&["--splits"], "--instances");
}
