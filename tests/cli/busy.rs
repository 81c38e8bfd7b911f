//! Physics on a busy machine: whatever else runs, no figure of any surface says more than the machine's limits allow.
//! What is asserted is physics and never a duration, so no load makes it fail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::Value;
use testing::Scratch;
use tests::{Server, run, signal, twostroke};

/// A process that takes all of a core, and ends with the test's process whatever ends that.
struct Spinner(Child);

impl Spinner {
    fn on(core: usize) -> Spinner {
        let spin = format!("while kill -0 {}; do for ((i = 0; i < 99999; i++)); do :; done; done", std::process::id());
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), "bash", "-c", &spin]).stderr(Stdio::null());
        Spinner(command.spawn().expect("taskset is part of util-linux"))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill(); // a core that is not ours to use has none
        let _ = self.0.wait();
    }
}

/// What the machine can do, by the server's last word.
struct Peaks {
    flops: f64,
    bytes: f64,
}

impl Peaks {
    /// Milliseconds below which nothing does this work. Figures are rounded to the sixth place.
    fn least_ms(&self, of: &Value) -> f64 {
        (number(&of["flops"]) / self.flops).max(number(&of["bytes"]) / self.bytes) * 1e3 * (1.0 - 1e-5)
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Every number below `value` whose name says that it is a share is one.
fn only_shares(at: &str, value: &Value) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| only_shares(&format!("{at}.{name}"), value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(n, value)| only_shares(&format!("{at}.{n}"), value)),
        _ => {
            let name = at.rsplit('.').next().unwrap_or(at);
            let most = match name {
                _ if name.ends_with("_percent") => 100.0,
                _ if name.ends_with("share") || ["own", "other_prefill", "promises_kept"].contains(&name) => 1.0,
                _ => return,
            };
            let is_share = value.as_f64().is_none_or(|share| (-1e-9..=most).contains(&share));
            assert!(is_share, "{at}: {value}");
        }
    }
}

/// A step took, by itself and as predicted, at least what its work takes.
fn is_possible(step: &Value, peaks: &Peaks) {
    let (took, least) = (number(&step["took"]), peaks.least_ms(step));
    let own = took - step["stolen"].as_f64().unwrap_or(0.0);
    // Moments are told to the microsecond.
    assert!(own + 0.002 >= least, "a step alone took {own} ms of at least {least}: {step}");
    let predicted = number(&step["predicted"]);
    assert!(predicted == 0.0 || predicted + 0.001 >= least, "{predicted} ms of at least {least}: {step}");
}

/// Reads a page of text until it ends.
fn listen(port: u16, path: &'static str) -> thread::JoinHandle<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it reads");
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text); // the server is killed
        String::from_utf8_lossy(&text).into_owned()
    })
}

#[test]
fn no_figure_is_above_what_the_machine_can_do() {
    let spinners = if tests::is_long() { 8 } else { 4 };
    let _spinners: Vec<Spinner> = (0..spinners).map(|at| Spinner::on(at % 2)).collect();
    let cache = Scratch::new("busy");
    let recording = cache.join("run.jsonl");
    let mut serve = twostroke(&["serve", "--port", "0", "--json", "-t", "2", "--record", &recording.to_string_lossy()]);
    serve.env("XDG_CACHE_HOME", &*cache).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = serve.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    let mut server = Server::adopt(child, &line);
    let get = |path: &str| {
        let (status, body) = server.request("GET", path, &[], "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap_or(Value::String(body))
    };
    let feed = listen(server.port(), "/live/feed");
    let ask = |n: usize| {
        // Half of them begin as one before, so that the prefix cache saves something.
        let prompt = format!("{} of {}", "A fox and a lantern. ".repeat([1, 8, 40, 90][n % 4]), n / 2);
        let body = format!(r#"{{"prompt":"{prompt}","max_tokens":{},"ignore_eos":true}}"#, 2 + 6 * (n % 3));
        let (status, answer) = server.request("POST", "/v1/completions", &[], &body);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).expect("an answer")
    };
    let mut answers: Vec<(Value, bool)> = (0..12).map(|n| (ask(n), true)).collect();
    let ask = &ask;
    let beside: Vec<Value> = thread::scope(|scope| {
        let asked: Vec<_> = (12..20).map(|n| scope.spawn(move || ask(n))).collect();
        asked.into_iter().map(|one| one.join().expect("it is answered")).collect()
    });
    answers.extend(beside.into_iter().map(|answer| (answer, false)));
    let top = run(&mut twostroke(&["top", "--once", "--url", &format!("http://127.0.0.1:{}", server.port())]));
    let info = get("/live/info");
    let peaks =
        Peaks { flops: number(&info["limits"]["matrix_flops"]), bytes: number(&info["limits"]["read_bandwidth"]) };
    let plans = ["prompt=2000&response=20", "prompt=1&response=1", "prompt=200&response=50&batch=8"];
    let plans = plans.map(|query| get(&format!("/plan?{query}")));
    let metrics = get("/metrics");

    for (answer, is_alone) in &answers {
        let timeline = get(&format!("/v1/requests/{}/timeline", answer["id"].as_str().expect("a name")));
        only_shares("answer", answer);
        only_shares("timeline", &timeline);
        let (told, prompt) = (&answer["timings"], &timeline["prompts"][0]);
        let own = number(&prompt["ttft"]["own_prefill_ms"]);
        // Steps with rows of others are shared, and so is reading the weights.
        let least = if *is_alone { peaks.least_ms(&told["prefill"]) } else { 0.0 };
        assert!(own + 0.002 >= least, "the prompt took {own} ms of at least {least}: {timeline}");
        let work = number(&told["cached_tokens"]) * number(&plans[0]["model"]["flops_per_token"]) / peaks.flops * 1e3;
        // Nothing but the last row has logits, which are half of a small model's operations.
        let (saved, least) = (&prompt["saved_by_cache_ms"], 0.4 * work);
        assert!(saved.as_f64().is_none_or(|saved| saved >= least), "{saved} of at least {least}");
    }
    only_shares("requests", &get("/v1/requests"));
    for plan in &plans {
        only_shares("plan", plan);
        let machine = &plan["machine"];
        assert!(number(&machine["flops"]) <= peaks.flops * 1.0001, "{peaks:?} {machine}", peaks = peaks.flops);
        assert!(number(&machine["bandwidth"]) <= peaks.bytes * 1.0001, "{peaks:?} {machine}", peaks = peaks.bytes);
        assert!(number(&plan["prefill"]["floor_ms"]) >= peaks.least_ms(&plan["prefill"]), "{plan}");
        for time in ["ttft_ms", "tpot_ms"] {
            assert!(number(&plan[time]) >= number(&plan["floors"][time]) - 1e-6, "{time}: {plan}");
        }
    }
    for line in metrics.as_str().expect("text").lines().filter(|line| line.contains("_roofline_utilization{")) {
        let share: f64 = line.rsplit(' ').next().and_then(|share| share.parse().ok()).expect("a number");
        assert!((0.0..=1.0).contains(&share), "{line}");
    }
    assert_eq!(top.code, Some(0), "{top:?}");
    let words: Vec<&str> = top.stdout.split_whitespace().collect();
    for pair in words.windows(2).filter(|pair| pair[1].starts_with('%')) {
        assert!(pair[0].parse::<f64>().is_ok_and(|share| (0.0..=100.0).contains(&share)), "{}", top.stdout);
    }

    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
    let feed = feed.join().expect("it was read");
    let steps = feed.split("\n\n").filter_map(|event| event.strip_prefix("event: step\ndata: "));
    let steps: Vec<Value> = steps.filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert!(steps.len() > 50, "{} steps in {feed:.200}", steps.len());
    for step in &steps {
        only_shares("step", step);
        is_possible(step, &peaks);
    }
    let replay = run(&mut twostroke(&["replay", "--json", &recording.to_string_lossy()]));
    assert_eq!(replay.json()["equal"], true, "{replay:?}");
    only_shares("replay", &replay.json());
}
