//! `twostroke bench-serve` against a server of ours, and what it says where there is none.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::thread;

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
            "--metric-percentiles",
            "25,90,99",
        ];
        let ran = run(twostroke(&load).args(SMALL).args(["--max-concurrency", "2", "--ignore-eos"]));
        let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!((&json["completed"], &json["total_output_tokens"]), (&6.into(), &30.into()), "{ran:?}");
        let mut ttfts: Vec<f64> = serde_json::from_value(json["ttfts"].clone()).expect("seconds");
        assert_eq!(ttfts.len(), 6);
        ttfts.sort_by(f64::total_cmp);
        for (name, percent) in [("median", 50.0), ("p25", 25.0), ("p90", 90.0), ("p99", 99.0)] {
            let wanted = 1e3 * figures::percentile(&ttfts, percent).expect("six values");
            let said = json[format!("{name}_ttft_ms")].as_f64().expect("milliseconds");
            assert!((said / wanted - 1.0).abs() < 1e-9, "{name}: {said}, not {wanted}");
        }
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
fn a_sweep_ends_with_a_table_and_a_picture() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let picture = std::env::temp_dir().join(format!("twostroke-sweep-{}.svg", std::process::id()));
    let svg = picture.to_string_lossy().into_owned();
    let load = ["bench-serve", "--port", &port, "--goodput", "ttft:60000", "--sweep-svg", &svg];
    let ran = run(twostroke(&load).args(SMALL).args(["--sweep-request-rate", "20,inf"]));
    let rows: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("| ")).collect();
    assert_eq!((rows.len(), rows[2].starts_with("| 20 "), rows[3].starts_with("| inf ")), (4, true, true), "{ran:?}");
    let drawn = std::fs::read_to_string(&picture).expect("the picture is written");
    std::fs::remove_file(&picture).expect("it is there");
    assert!(drawn.starts_with("<svg") && drawn.contains(">20<") && drawn.contains("lantern"), "{drawn}");
}

#[test]
fn a_sweep_is_one_json_object_and_sends_new_prompts_at_every_point() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let file = std::env::temp_dir().join(format!("twostroke-sweep-{}.json", std::process::id()));
    let path = file.to_string_lossy().into_owned();
    let load = ["bench-serve", "--port", &port, "--json", "--ignore-eos", "--save-result", "--result-filename", &path];
    let sweep = ["--sweep-max-concurrency", "1,3", "--sweep-num-prompts-factor", "2"];
    let ran = run(twostroke(&load).args(sweep).args(["--random-input-len", "200", "--random-output-len", "5"]));
    let json = ran.json();
    let saved = std::fs::read_to_string(&file).expect("the result is written");
    std::fs::remove_file(&file).expect("it is there");
    assert_eq!(serde_json::from_str::<Value>(&saved).expect("JSON")["points"], json["points"]);
    let points = json["points"].as_array().expect("points");
    for (point, concurrency) in points.iter().zip([1_u64, 3]) {
        let figures = (&point["max_concurrency"], &point["completed"], &point["total_cached_tokens"]);
        assert_eq!(figures, (&concurrency.into(), &(2 * concurrency).into(), &0.into()), "{point}");
    }
    assert!(json["front"].as_array().is_some_and(|front| !front.is_empty()), "{json}");
}

/// A long prompt arrives beside streams: its milliseconds are found in their late tokens, and under its name.
#[test]
fn a_stall_has_the_name_of_the_prompt_that_made_it() {
    let flags = ["--api-key", "secret", "--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"];
    let server = Server::start(&flags);
    let file = std::env::temp_dir().join(format!("twostroke-stalls-{}.jsonl", std::process::id()));
    let row = |ms: u64, input: u64, output: u64| {
        let blocks: Vec<u64> = (0..input.div_ceil(512)).map(|block| input * 10 + block).collect();
        let lengths = format!(r#""input_length": {input}, "output_length": {output}"#);
        format!(r#"{{"timestamp": {ms}, {lengths}, "hash_ids": {blocks:?}}}"#) + "\n"
    };
    std::fs::write(&file, row(0, 30, 1500) + &row(1, 40, 1500) + &row(60, 3000, 1)).expect("a temporary file");
    let (port, path) = (server.port().to_string(), file.to_string_lossy().into_owned());
    let load = ["bench-serve", "--port", &port, "--dataset-name", "trace", "--dataset-path", &path, "--ignore-eos"];
    // In words on standard output, and as JSON in a file.
    let result = file.with_extension("json");
    let more = ["--save-detailed", "--api-key", "secret", "--result-filename", &result.to_string_lossy()];
    let measured = || {
        let ran = run(twostroke(&load).args(more));
        let json = std::fs::read_to_string(&result).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        std::fs::remove_file(&result).expect("it is there");
        (serde_json::from_str::<Value>(&json).expect("JSON"), ran)
    };
    // On a busy machine the prompt may be sent when both streams have ended: then once more.
    let is_told = |json: &Value| json["stalls"]["server"]["prompts"].get(0).is_some();
    let found = (0..10).map(|_| measured()).find(|(json, _)| is_told(json));
    std::fs::remove_file(&file).expect("it is there");
    let (json, ran) = found.expect("the prompt delays a stream");
    let stalls = &json["stalls"];
    assert!(stalls["stalls"].as_u64() > Some(0), "{ran:?}");
    assert_eq!(json["stalled_itls"].as_array().map(Vec::len), Some(3), "{ran:?}");
    let told = &stalls["server"];
    assert!(told["explained"].as_u64() > Some(0) && told["explained"].as_u64() <= told["stalls"].as_u64(), "{stalls}");
    let prompt = &told["prompts"][0];
    assert_eq!((&prompt["request"], &prompt["prompt_tokens"]), (&2.into(), &3000.into()), "{stalls}");
    assert!(prompt["ms"].as_f64() <= told["owners_ms"]["other_prefill"].as_f64(), "{stalls}");
    assert!(ran.stdout.contains("Stalls found in the server's timelines:"), "{ran:?}");
}

#[test]
fn probes_are_reported_apart() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let load = ["bench-serve", "--port", &port, "--request-rate", "20", "--probe-request-rate", "50", "--json"];
    let json = run(twostroke(&load).args(SMALL)).json();
    assert_eq!((&json["completed"], &json["probe_failed"]), (&6.into(), &0.into()), "{json}");
    assert!(json["probe_completed"].as_u64() > Some(2), "{json}");
    assert!(json["probe_median_e2el_ms"].as_f64() <= json["probe_max_e2el_ms"].as_f64(), "{json}");
}

/// A server that answers every connection with the same bytes, whatever it is asked, until the test is over.
fn parrot(answer: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            // A client that hangs up early is no failure here.
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn a_server_that_answers_rubbish_is_told_in_one_line() {
    let table = [
        ("SSH-2.0-OpenSSH_9.2\r\n", "HTTP"),
        ("", "connection closed"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<html>hi</html>", "not a stream of events"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\u{1b}[2J", "not a stream of events"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\ndata: {nope}\n\n", "an event is not JSON"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\ndata: [DONE]\n\n", "the answer has no token"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\ndata: {\"error\":1}\n", "the server reported"),
        ("HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nout\nof it", "500 Internal Server Error: out of it"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "the connection broke"),
    ];
    for (answer, problem) in table {
        let port = parrot(answer).to_string();
        let ran = run(twostroke(&["bench-serve", "--port", &port, "--model", "m"]).args(SMALL));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{answer:?}: {ran:?}");
        assert!(ran.stderr.contains(problem) && !ran.stderr.contains('\u{1b}'), "{answer:?}: {ran:?}");
    }
    let port = parrot("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").to_string();
    let ran = run(twostroke(&["bench-serve", "--port", &port]).args(SMALL));
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
    assert!(ran.stderr.contains("names no model: set --model"), "{ran:?}");
}

/// A server of another kind: the labels are the client's, and the report says so.
#[test]
fn a_server_without_timelines_gets_the_clients_labels_alone() {
    let port = parrot(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n\
         data: {\"id\":\"x\",\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: [DONE]\n\n",
    );
    let port = port.to_string();
    let ran = run(twostroke(&["bench-serve", "--port", &port, "--model", "m"]).args(SMALL));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("Whose time they were: this server keeps no timelines"), "{ran:?}");
    let json = run(twostroke(&["bench-serve", "--port", &port, "--model", "m", "--json"]).args(SMALL)).json();
    assert_eq!((&json["stalls"]["steady_gaps"], &json["stalls"]["server"]), (&6.into(), &Value::Null), "{json}");
}

#[test]
fn ctrl_c_keeps_the_points_that_were_measured() {
    keeps_what_was_measured("INT");
}

#[test]
fn a_terminal_that_goes_takes_no_measured_point_along() {
    keeps_what_was_measured("HUP");
}

fn keeps_what_was_measured(by: &str) {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    // The second point would take twenty seconds; it has begun when it has an answer.
    let load = ["bench-serve", "--port", &port, "--sweep-request-rate", "100,0.3", "--json"];
    let child = twostroke(&load).args(SMALL).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let pid = child.id();
    tests::wait("the second point to begin", || {
        let wanted = "vllm:e2e_request_latency_seconds_count";
        let page = server.request("GET", "/metrics", &[], "").1;
        let count = page.lines().find(|line| line.starts_with(wanted)).and_then(|line| line.rsplit(' ').next());
        // Six of the first, one of the second, and the one that looks whether there is a server.
        count.and_then(|count| count.parse().ok()) >= Some(8)
    });
    tests::signal(by, pid);
    let output = child.wait_with_output().expect("it ends");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((&json["points"][0]["completed"], &json["points"][0]["complete"]), (&6.into(), &true.into()), "{json}");
    assert_eq!(json["points"][1]["complete"], false, "{json}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("stopped: ") && said.contains(" of 6 requests were answered"), "{output:?}");
}

/// All answers of a point are there and their timelines are asked for: a stop then does not begin the next
/// point.
#[test]
fn ctrl_c_while_timelines_are_read_begins_no_further_point() {
    // Five tokens evenly and one much later: a stall, whose owner the server is asked for. Tokens that a busy machine reads
    // together have no gap, so they come slowly.
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    const TOKEN: &str = "data: {\"id\":\"x\",\"choices\":[{\"text\":\"a\"}]}\n\n";
    const TIMELINE: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 29\r\nConnection: close\r\n\r\n{\"object\":\"request.timeline\"}";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port().to_string();
    let (asked, second) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut open = Vec::new(); // the second timeline and what comes after it never gets an answer
        let mut timelines = 0;
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let count = stream.read(&mut request).unwrap_or(0);
            if !request[..count].starts_with(b"GET") {
                thread::spawn(move || {
                    let evenly = [(0, HEAD), (0, TOKEN), (250, TOKEN), (250, TOKEN), (250, TOKEN), (250, TOKEN)];
                    for (milliseconds, text) in evenly.into_iter().chain([(4000, TOKEN)]) {
                        thread::sleep(std::time::Duration::from_millis(milliseconds));
                        let _ = stream.write_all(text.as_bytes());
                    }
                    let _ = stream.write_all(b"data: [DONE]\n\n");
                });
                continue;
            }
            timelines += 1;
            if timelines == 1 {
                let _ = stream.write_all(TIMELINE.as_bytes());
            } else {
                let _ = asked.send(());
                open.push(stream);
            }
        }
    });
    let load = ["bench-serve", "--port", &port, "--model", "m", "--sweep-request-rate", "100,0.001", "--json"];
    let child = twostroke(&load).args(SMALL).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    second.recv_timeout(std::time::Duration::from_secs(60)).expect("a timeline is asked for");
    tests::signal("INT", child.id());
    let output = child.wait_with_output().expect("it ends");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["points"][0]["completed"], &json["points"][0]["complete"]), (&6.into(), &true.into()), "{json}");
    assert_eq!((output.status.code(), json["points"].as_array().map(Vec::len)), (Some(0), Some(1)), "{json}");
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
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let server = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", server.port());
    let https = url.replace("http:", "https:");
    let table: &[(&[&str], &str)] = &[
        (&["--port", "1"], "127.0.0.1:1: Connection refused"),
        (&["--base-url", &https], "does not speak https"),
        (&["--base-url", "https://127.0.0.1:1"], "127.0.0.1:1: Connection refused"),
        (&["--base-url", "http://no-such-host.invalid"], "no-such-host.invalid:80"),
        (&["--base-url", "localhost:8000"], "does not begin with http://"),
        (&["--base-url", "http://127.0.0.1:70000"], "has a port that is none"),
        (&["--base-url", &url, "--endpoint", "/nowhere"], "404"),
        (&["--base-url", &url, "--model", "another"], "does not serve the model asked for"),
        (&["--base-url", &url, "--request-rate", "-1"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--request-rate", "0"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--request-rate", "nan"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--request-rate", "1e-300"], "--request-rate must be at least 0.000001"),
        (&["--base-url", &url, "--request-rate", "fast"], "--request-rate"),
        (&["--base-url", &url, "--sweep-request-rate", "1,-1"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--sweep-request-rate", "nan"], "--request-rate must be greater than 0"),
        (&["--base-url", &url, "--sweep-max-concurrency", "0"], "at least 1"),
        (&["--base-url", &url, "--sweep-max-concurrency", "1", "--sweep-request-rate", "1"], "--sweep-"),
        (&["--base-url", &url, "--sweep-svg", "x.svg"], "--sweep-request-rate or --sweep-max-concurrency"),
        (&["--base-url", &url, "--sweep-request-rate", "1", "--sweep-svg", "/nowhere/x.svg"], "no directory /nowhere"),
        (&["--base-url", &url, "--result-dir", "/nowhere"], "--result-dir is of use only with --save-result"),
        (
            &["--base-url", &url, "--save-result", "--result-dir", "/nowhere"],
            "--result-dir: /nowhere: is not a directory",
        ),
        (&["--base-url", &url, "--probe-request-rate", "0"], "--probe-request-rate"),
        (&["--base-url", &url, "--probe-request-rate", "nan"], "--probe-request-rate"),
        (&["--base-url", &url, "--max-concurrency", "0"], "at least 1"),
        (&["--base-url", &url, "--num-prompts", "1000M"], "must be at most 1000000"),
        (&["--base-url", &url, "--temperature", "nan"], "--temperature"),
        (&["--base-url", &url, "--api-key", "a\u{7f}b"], "unprintable"),
        (&["--base-url", &url, "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1"], "--ramp-up-end-rps"),
        (&["--base-url", &url, "--goodput", "ttft:nan"], "greater than 0"),
        (&["--base-url", &url, "--request-rate", "5", "--burstiness", "0"], "--burstiness must be greater than 0"),
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
        (
            &["--base-url", &url, "--dataset-path", "/nowhere/x"],
            "--dataset-path is of use only with --dataset-name trace",
        ),
    ];
    for (arguments, problem) in table {
        let ran = run(twostroke(&["bench-serve"]).args(*arguments));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(problem), "{arguments:?}: {ran:?}");
    }
}

/// Conversations: each turn quotes the server's own answers, so all but the new tokens is in its cache.
#[test]
fn sessions_have_turns_and_hits() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let load = ["bench-serve", "--port", &port, "--dataset-name", "sessions", "--num-prompts", "12", "--ignore-eos"];
    let shape = ["--sessions-num-turns", "4", "--sessions-input-len", "100", "--sessions-output-len", "40"];
    let more = ["--sessions-pause", "10ms", "--sessions-length-cv", "0", "--sessions-prefix-len", "64"];
    for backend in ["openai", "openai-chat"] {
        let all = [&load[..], &shape[..], &more[..], &["--backend", backend]].concat();
        let ran = run(twostroke(&all).args(["--json", "--save-detailed", "--result-filename", "/dev/null"]));
        let json = ran.json();
        assert_eq!((&json["completed"], &json["failed"]), (&12.into(), &0.into()), "{ran:?}");
        let turns = json["turns"].as_array().unwrap_or_else(|| panic!("turns: {ran:?}"));
        assert_eq!(turns.len(), 4, "{ran:?}");
        let number = |turn: usize, name: &str| turns[turn][name].as_f64().expect("a number");
        for (turn, told) in turns.iter().enumerate() {
            assert_eq!((&told["turn"], &told["requests"]), (&(turn + 1).into(), &3.into()), "{ran:?}");
            assert!(number(turn, "median_ttft_ms") > 0.0);
        }
        assert!(number(3, "mean_prompt_tokens") > number(0, "mean_prompt_tokens") + 3.0 * 120.0, "{ran:?}");
        // The fourth turn's history is some 500 tokens, of which blocks of 32 are cached. A chat's text is tokenized
        // again, which may part where an answer ends in the middle of a word.
        let least = if backend == "openai" { 0.7 } else { 0.5 };
        assert!(number(3, "hit_rate") > least, "{backend}: {ran:?}");
        assert!(json["cache_hit_rate"].as_f64() > Some(0.4), "{ran:?}");
        // The server says what its phases cost.
        assert!(json["prefill"]["flops"].as_f64() > Some(0.0) && json["decode"]["answers"] == 12, "{ran:?}");
        if backend == "openai" {
            // Token for token: 64 + 100, then 140 more each time.
            assert_eq!(
                [0, 1, 2, 3].map(|turn| number(turn, "mean_prompt_tokens")),
                [164.0, 304.0, 444.0, 584.0],
                "{ran:?}"
            );
        }
    }
    let text = run(&mut twostroke(&[&load[..], &shape[..], &more[..]].concat()));
    for line in
        ["Turns", "turn      requests  prompt tok  hits %  TTFT p50 ms  p99 ms", "Phases (by the server's timings)"]
    {
        assert!(text.stdout.contains(line), "{line:?} is missing in {text:?}");
    }
}

/// A run of some length has a middle, without the ramp-up and the drain.
#[test]
fn a_steady_state_is_told_apart() {
    let server = Server::start(&[]);
    let port = server.port().to_string();
    let load = ["bench-serve", "--port", &port, "--num-prompts", "60", "--max-concurrency", "3", "--ignore-eos"];
    let ran = run(twostroke(&load).args(["--random-input-len", "30", "--random-output-len", "20", "--json"]));
    let steady = &ran.json()["steady"];
    assert!(steady["requests"].as_u64() > Some(20) && steady["output_throughput"].as_f64() > Some(0.0), "{ran:?}");
    assert!(steady["from_s"].as_f64() < steady["to_s"].as_f64() && steady["median_ttft_ms"].is_number(), "{ran:?}");
    let burst = run(twostroke(&["bench-serve", "--port", &port, "--json"]).args(SMALL));
    assert!(burst.json()["steady"].is_null(), "all at once has none: {burst:?}");
}
