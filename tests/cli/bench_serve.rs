//! `twostroke bench-serve` against a server of ours, and what it says where there is none.

use serde_json::Value;
use tests::{Server, run, twostroke};

const SMALL: [&str; 6] = ["--num-prompts", "6", "--random-input-len", "20", "--random-output-len", "5"];

#[test]
fn a_load_is_measured_in_vllms_words() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let load = [
        "bench-serve",
        "--port",
        &port,
        "--ignore-eos",
        "--request-rate",
        "50",
        "--goodput",
        "ttft:60000",
        "tpot:60000",
    ];
    let ran = run(twostroke(&load).args(SMALL));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for line in [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     6",
        "Failed requests:                         0",
        "Total input tokens:                      120",
        "Total generated tokens:                  30",
    ] {
        assert!(ran.stdout.lines().any(|found| found == line), "{line:?} is missing in {ran:?}");
    }
    assert!(ran.stdout.contains("Request goodput (req/s):"), "{ran:?}");
}

#[test]
fn the_json_holds_every_request_if_asked() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    for backend in ["openai", "openai-chat"] {
        let load = [
            "bench-serve",
            "--port",
            &port,
            "--backend",
            backend,
            "--json",
            "--save-detailed",
            "--result-filename",
            "/dev/null",
        ];
        let ran = run(twostroke(&load).args(SMALL).args(["--max-concurrency", "2", "--ignore-eos"]));
        let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!((&json["completed"], &json["total_output_tokens"]), (&6.into(), &30.into()), "{ran:?}");
        assert_eq!(json["ttfts"].as_array().map(Vec::len), Some(6));
        assert!(
            json["itls"]
                .as_array()
                .is_some_and(|each| each.iter().all(|gaps| gaps.as_array().map(Vec::len) == Some(4))),
            "{json}"
        );
        assert!(json["max_concurrent_requests"].as_u64() >= Some(2), "{json}");
    }
}

#[test]
fn a_sweep_ends_with_a_table() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let ran = run(twostroke(&["bench-serve", "--port", &port, "--sweep-rates", "20,40"]).args(SMALL));
    let rows: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("| ")).collect();
    assert_eq!((rows.len(), rows[2].starts_with("| 20 "), rows[3].starts_with("| 40 ")), (4, true, true), "{ran:?}");
}

#[test]
fn a_trace_is_sent_as_it_was_recorded() {
    let server = Server::start(&[]);
    let file = std::env::temp_dir().join(format!("twostroke-bench-serve-{}.jsonl", std::process::id()));
    let row =
        |ms, input| format!(r#"{{"timestamp": {ms}, "input_length": {input}, "output_length": 4, "hash_ids": [1]}}"#);
    std::fs::write(&file, format!("{}\n{}\n", row(0, 30), row(120, 45))).expect("a temporary file");
    let (port, path) = (server.port().to_string(), file.to_string_lossy().into_owned());
    let load =
        ["bench-serve", "--port", &port, "--dataset-name", "trace", "--dataset-path", &path, "--json", "--ignore-eos"];
    let ran = run(&mut twostroke(&load));
    std::fs::remove_file(&file).expect("it is there");
    let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!(
        (&json["completed"], &json["total_input_tokens"], &json["total_output_tokens"]),
        (&2.into(), &75.into(), &8.into())
    );
    assert!(json["duration"].as_f64() >= Some(0.12), "{json}");
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let server = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", server.port());
    let table: &[(&[&str], &str)] = &[
        (&["--port", "1"], "127.0.0.1:1: Connection refused"),
        (&["--base-url", "https://127.0.0.1"], "https is not spoken"),
        (&["--base-url", "localhost:8000"], "does not begin with http://"),
        (&["--base-url", &url, "--endpoint", "/nowhere"], "404"),
        (&["--base-url", &url, "--model", "another"], "does not serve the model asked for"),
        (&["--base-url", &url, "--request-rate", "-1"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--request-rate", "0"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--burstiness", "0"], "--burstiness must be greater than 0"),
        (&["--base-url", &url, "--random-range-ratio", "2"], "--random-range-ratio must be"),
        (&["--base-url", &url, "--num-prompts", "0"], "--num-prompts"),
        (&["--base-url", &url, "--goodput", "ttft"], "METRIC:MS"),
        (&["--base-url", &url, "--goodput", "speed:3"], "ttft, tpot, itl, e2el"),
        (&["--base-url", &url, "--percentile-metrics", "speed"], "ttft, tpot, itl, e2el"),
        (&["--base-url", &url, "--metric-percentiles", "101"], "0 to 100"),
        (&["--base-url", &url, "--header", "nonsense"], "NAME=VALUE"),
        (&["--base-url", &url, "--extra-body", "[1]"], "--extra-body is not a JSON object"),
        (&["--base-url", &url, "--dataset-name", "nonsense"], "--dataset-name"),
        (&["--base-url", &url, "--dataset-name", "trace"], "--dataset-path"),
        (&["--base-url", &url, "--dataset-name", "trace", "--dataset-path", "/nowhere/x"], "/nowhere/x"),
    ];
    for (arguments, problem) in table {
        let ran = run(twostroke(&["bench-serve"]).args(*arguments).args(["--random-input-len", "20"]));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(problem), "{arguments:?}: {ran:?}");
    }
}
