//! `twostroke sim`: a load on imagined hardware.

use std::fs;

use serde_json::Value;
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
    let directory = std::env::temp_dir().join(format!("twostroke-sim-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("the temporary directory can be written");
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
    fs::remove_dir_all(&directory).expect("it was made here");
}
