//! One worker reads prompts and another answers: as processes, found by their addresses, killed in the middle.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Server, root, run, run_with_input, signal, twostroke, wait};

/// A file with the cluster's key, which goes with the test.
struct Key(PathBuf);

impl Key {
    fn new(name: &str) -> Key {
        let path = std::env::temp_dir().join(format!("twostroke-{}-{name}.key", std::process::id()));
        fs::write(&path, "c2l4dGVlbiBieXRlcyBvciBtb3Jl\n").expect("it can be written");
        Key(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path of letters")
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// With a target that both roles meet: a busy machine may believe that a worker is too slow to be asked.
const SMALL: [&str; 9] = [
    "-t",
    "1",
    "--max-model-len",
    "2048",
    "--kv-cache-memory-bytes",
    "64MiB",
    "--speculate",
    "off",
    "--ttft-slo=3600s",
];

fn prefill(key: &Key, listen: &str) -> Server {
    let own = ["--role", "prefill", "--handoff-listen", listen, "--cluster-key", key.path()];
    Server::start(&[SMALL.as_slice(), &own].concat())
}

fn decode(key: &Key, workers: &str) -> Server {
    let own = ["--role", "decode", "--prefill-workers", workers, "--cluster-key", key.path()];
    Server::start(&[SMALL.as_slice(), &own].concat())
}

fn address(server: &Server) -> &str {
    server.start["handoff"].as_str().expect("it listens for handoffs")
}

fn question(number: usize) -> String {
    question_of(60, number)
}

fn question_of(notes: usize, number: usize) -> String {
    let notes: String = (0..notes).map(|at| format!("The key {} is in the tower. ", at * 7 + number)).collect();
    json!({"prompt": notes, "max_tokens": 24, "seed": number, "temperature": 0.8, "ignore_eos": true}).to_string()
}

fn answer(server: &Server, question: &str) -> String {
    let (status, body) = server.request("POST", "/v1/completions", &[], question);
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("an object");
    body["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// Texts may be equal by chance, what was thought of each token is not.
fn likely(server: &Server, question: &str) -> String {
    let asked = question.replacen('{', r#"{"logprobs": 1, "#, 1);
    let (status, body) = server.request("POST", "/v1/completions", &[], &asked);
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("an object");
    body["choices"][0]["logprobs"]["token_logprobs"].to_string()
}

/// A sample of `/metrics` by its name and labels.
fn metric(server: &Server, name: &str) -> f64 {
    let (_, page) = server.request("GET", "/metrics", &[], "");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} is not in {page}"))
}

/// Each phase on the device that suits it: blocks are the same bytes, so answers are those of one that does both.
#[test]
#[ignore = "long: two servers, of which one computes on a software device"]
fn one_device_reads_prompts_and_another_answers() {
    let (key, alone) = (Key::new("devices"), Server::start(&SMALL));
    // Another device that a test may have added compiles for long.
    let start = |device: &str, own: &[&str]| {
        let all = [SMALL.as_slice(), &["--device", device, "--cluster-key", key.path(), "--role"], own].concat();
        Server::start_with(&all, &[("VK_ADD_DRIVER_FILES", "")])
    };
    for (number, (reads, answers)) in [("gpu", "cpu"), ("cpu", "gpu")].into_iter().enumerate() {
        let prefill = start(reads, &["prefill", "--handoff-listen", "127.0.0.1:0"]);
        let decode = start(answers, &["decode", "--prefill-workers", address(&prefill)]);
        let asked = question_of(40, number);
        assert_eq!(likely(&decode, &asked), likely(&alone, &asked), "{reads} reads, {answers} answers");
        assert_eq!(metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="whole"}"#), 1.0);
    }
}

/// Prompts are read with int8 weights and answers written with int4, by two processes that are told so by one flag.
#[test]
fn two_precisions_make_one_answer_or_none() {
    let key = Key::new("pair");
    let pair = ["--handoff-precision", "int8/int4", "--cluster-key", key.path(), "--role"];
    let start = |own: &[&str]| Server::start(&[SMALL.as_slice(), &pair, own].concat());
    let int4 = Server::start(&[SMALL.as_slice(), &["--weights", "int4"]].concat());
    let prefill = start(&["prefill", "--handoff-listen", "127.0.0.1:0"]);
    let [first, second] = [(); 2].map(|()| start(&["decode", "--prefill-workers", address(&prefill)]));
    for number in tests::part_of(0..3, 3) {
        let of_pair = likely(&first, &question(number));
        assert_eq!(of_pair, likely(&second, &question(number)));
        assert_ne!(of_pair, likely(&int4, &question(number)), "it is the pair's own");
    }
    let fingerprint = |server: &Server| {
        let (_, body) = server.request("POST", "/v1/completions", &[], r#"{"prompt": "Hi", "max_tokens": 1}"#);
        serde_json::from_str::<Value>(&body).expect("an object")["system_fingerprint"].clone()
    };
    assert!(fingerprint(&first) == fingerprint(&second) && fingerprint(&first) != fingerprint(&int4));

    // A receipt says whose answer it is, and that one worker alone cannot compute it again.
    let asked = question(7).replacen('{', r#"{"receipt": true, "#, 1);
    let (status, body) = first.request("POST", "/v1/completions", &[], &asked);
    assert!(status == 200 && body.contains("int8/int4"), "{status} {body}");
    let ran = run_with_input(&mut twostroke(&["verify", "-", "-m", "lantern", "-t", "1"]), body.as_bytes());
    assert!(ran.code != Some(0) && format!("{ran:?}").contains("no model computes that again alone"), "{ran:?}");

    drop(prefill);
    let (status, body) = first.request("POST", "/v1/completions", &[], &question(9));
    assert!(status == 503 && body.contains("no_prefill_worker"), "{status} {body}");
    let (status, body) = first.request("POST", "/v1/completions", &[], r#"{"prompt": "Hi", "max_tokens": 3}"#);
    assert_eq!(status, 200, "a short prompt is read here: {body}");
    assert_eq!(
        answer(&first, &question(0)),
        answer(&second, &question(0)),
        "what is cached here needs no other worker"
    );
    let (status, body) = first.request("POST", "/v1/completions", &[], r#"{"prompt": "Hi", "max_tokens": 3, "n": 2}"#);
    assert!(status == 400 && body.contains("int8/int4"), "{status} {body}");

    let table: [(&[&str], &str); 5] = [
        (&["--handoff-precision", "int8/int4", "--role", "decode"], "--cluster-key"),
        (&["--handoff-precision", "int8", "--cluster-key", key.path(), "--role", "decode"], "int8/int4"),
        (&["--handoff-precision", "int8/int8", "--cluster-key", key.path(), "--role", "decode"], "no pair"),
        (
            &["--handoff-precision", "int8/int4", "--cluster-key", key.path(), "--prefill-workers", "a:1"],
            "--role prefill",
        ),
        (
            &["--handoff-precision", "int8/int4", "--cluster-key", key.path(), "--role", "decode", "--weights", "int8"],
            "this role has int4",
        ),
    ];
    for (flags, says) in table {
        let ran = run(&mut twostroke(&[&["serve"], flags].concat()));
        assert!(ran.code == Some(2) && ran.stderr.contains(says), "{flags:?}: {ran:?}");
    }
}

#[test]
fn a_prompt_is_read_by_one_process_and_answered_by_another() {
    let key = Key::new("two");
    let joint = Server::start(&SMALL);
    let prefill = prefill(&key, "127.0.0.1:0");
    let decode = decode(&key, address(&prefill));
    for number in 0..3 {
        assert_eq!(answer(&decode, &question(number)), answer(&joint, &question(number)));
    }
    assert_eq!(metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="whole"}"#), 3.0);
    assert_eq!(metric(&decode, r#"twostroke_role{role="decode"}"#), 1.0);
    assert_eq!(metric(&prefill, r#"twostroke_remote_prefills_total{way="given",result="whole"}"#), 3.0);
    assert_eq!(metric(&prefill, "twostroke_pinned_blocks"), 0.0);
    assert!(metric(&decode, r#"twostroke_kv_transfer_bytes_total{way="taken"}"#) > 1e5);
    assert!(metric(&decode, r#"twostroke_ttft_seconds_total{owner="remote_prefill"}"#) > 0.0);
    let (status, body) = prefill.request("POST", "/v1/completions", &[], &question(9));
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("only_reads") && body.contains("its role is prefill"), "{body}");
    assert_eq!(prefill.request("GET", "/health", &[], "").0, 200);
}

/// A controller that watches the load moves workers between reading and answering: what has been taken goes on, what
/// comes is the new role's, and no bit of any answer depends on it.
#[test]
fn a_role_changes_while_answers_go_on() {
    let key = Key::new("roles");
    let joint = Server::start(&SMALL);
    let may_change = ["--allow-role-change", "--handoff-listen", "127.0.0.1:0", "--cluster-key", key.path()];
    // It starts in the role that another's listener would be an error for.
    let changing = Server::start(&[SMALL.as_slice(), &may_change, &["--role", "decode"]].concat());
    let decode = decode(&key, address(&changing));
    let role_of = |server: &Server| server.request("GET", "/role", &[], "").1;
    let become_ =
        |server: &Server, role: &str| server.request("POST", "/role", &[], &json!({"role": role}).to_string());
    let given = r#"twostroke_remote_prefills_total{way="given",result="whole"}"#;

    assert_eq!(role_of(&changing), r#"{"role":"decode"}"#);
    assert_eq!(answer(&decode, &question(50)), answer(&joint, &question(50)));
    assert_eq!(metric(&changing, given), 0.0, "one that answers reads for no other");
    assert_eq!(metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="refused"}"#), 1.0);

    // An answer that was begun before the change is told to its end.
    let long = json!({"prompt": "The key", "max_tokens": 900, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, changing.port())).expect("it listens");
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{long}", long.len()).expect("it reads");
    let mut piece = [0; 512];
    let mut told = String::new();
    while !told.contains("data: ") {
        let read = stream.read(&mut piece).expect("it goes on");
        assert!(read > 0, "it ended: {told}");
        told += &String::from_utf8_lossy(&piece[..read]);
    }
    assert_eq!(become_(&changing, "prefill"), (200, r#"{"role":"prefill"}"#.to_owned()));
    stream.read_to_string(&mut told).expect("text");
    assert!(told.contains("data: [DONE]") && told.contains(r#""finish_reason":"length""#), "{told}");
    let (status, body) = changing.request("POST", "/v1/completions", &[], &question(51));
    assert!(status == 503 && body.contains("only_reads"), "{status} {body}");
    assert_eq!(metric(&changing, r#"twostroke_role{role="prefill"}"#), 1.0);
    assert_eq!(metric(&changing, r#"twostroke_role{role="decode"}"#), 0.0);
    // Who was refused asks again after a while.
    let next = AtomicUsize::new(52);
    wait("a prompt that is read there", || {
        let asked = question(next.fetch_add(1, Ordering::Relaxed));
        assert_eq!(answer(&decode, &asked), answer(&joint, &asked));
        metric(&changing, given) >= 1.0
    });

    assert_eq!(become_(&changing, "both").0, 200);
    assert_eq!(answer(&changing, &question(51)), answer(&joint, &question(51)));

    // Who may not, and what is no role.
    let (status, body) = become_(&decode, "both");
    assert!(status == 403 && body.contains("role_is_fixed") && body.contains("--allow-role-change"), "{status} {body}");
    assert_eq!(role_of(&decode), r#"{"role":"decode"}"#);
    assert_eq!(role_of(&joint), r#"{"role":"both"}"#);
    assert_eq!(become_(&joint, "prefill").0, 403);
    let unfound = ["--allow-role-change", "--role", "decode", "--cluster-key", key.path()];
    let unfound = Server::start(&[SMALL.as_slice(), &unfound].concat());
    let (status, body) = become_(&unfound, "prefill");
    assert!(status == 400 && body.contains("--handoff-listen"), "{status} {body}");
    assert_eq!(become_(&unfound, "both").0, 200);
    for (body, says) in [(r#"{"role": "reader"}"#, "role"), ("{}", "role"), (r#"{"role": "both", "now": 1}"#, "now")] {
        let (status, told) = changing.request("POST", "/role", &[], body);
        assert!(status == 400 && told.contains(says), "{body}: {status} {told}");
    }
    let pair = ["serve", "--handoff-precision", "int8/int4", "--cluster-key", key.path(), "--role", "decode"];
    for (flags, says) in [
        (&["serve", "--allow-role-change"][..], "--cluster-key"),
        (&[&pair[..], &["--allow-role-change"]].concat(), "without --allow-role-change"),
    ] {
        let ran = run(&mut twostroke(flags));
        assert!(ran.code == Some(2) && ran.stderr.contains(says), "{flags:?}: {ran:?}");
    }
}

/// What a new reader of the feed is told first, with the figures of the moment.
fn beginning_of_feed(server: &Server) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("it listens");
    stream.write_all(b"GET /live/feed HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let (mut told, mut piece) = (String::new(), [0; 4096]);
    while !told.contains("event: stats") {
        let read = stream.read(&mut piece).expect("it goes on");
        assert!(read > 0, "the feed ended: {told}");
        told += std::str::from_utf8(&piece[..read]).expect("ASCII");
    }
    told
}

#[test]
fn why_says_which_worker_read_the_prompt() {
    let key = Key::new("why");
    let prefill = prefill(&key, "127.0.0.1:0");
    let decode = decode(&key, address(&prefill));
    let (status, body) = decode.request("POST", "/v1/completions", &[], &question(40));
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("an object");
    let id = body["id"].as_str().expect("it has one");
    let (status, timeline) = decode.request("GET", &format!("/v1/requests/{id}/timeline"), &[], "");
    assert_eq!(status, 200, "{timeline}");
    let timeline: Value = serde_json::from_str(&timeline).expect("an object");
    let prompt = &timeline["prompts"][0];
    let away = &prompt["away"];
    assert_eq!((&away["worker"], &away["result"]), (&json!(address(&prefill)), &json!("whole")));
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number in {away}"));
    let (from, to) = (number(&away["from_ms"]), number(&away["to_ms"]));
    let steps = away["steps"].as_array().expect("a list");
    let rows: f64 = steps.iter().map(|step| number(&step["rows"])).sum();
    assert_eq!(rows, number(&body["usage"]["prompt_tokens"]), "all of it was read there: {away}");
    let mut last = from;
    for step in steps {
        assert!(last <= number(&step["from_ms"]) && number(&step["from_ms"]) < number(&step["to_ms"]), "{away}");
        last = number(&step["to_ms"]);
    }
    assert!(last <= to, "{away}");
    let landed = away["landed"].as_array().expect("a list");
    let blocks: Vec<f64> = landed.iter().map(|landing| number(&landing["blocks"])).collect();
    assert!(blocks.is_sorted() && blocks.last() == Some(&((rows - 1.0) / 32.0).floor()), "{away}");
    assert!(landed.iter().all(|landing| (from..=to).contains(&number(&landing["at_ms"]))), "{away}");
    // What it took there is on the bill, to the nanosecond of what remains.
    let remote = ["queue", "prefill", "others", "machine"].map(|owner| format!("remote_{owner}_ms"));
    let billed = remote.iter().map(|owner| number(&prompt["ttft"][owner]));
    let billed = number(&prompt["ttft"]["transfer_ms"]) + billed.sum::<f64>();
    assert!((billed - (to - from)).abs() < 1e-6, "{billed} of {} in {prompt}", to - from);
    assert_eq!(number(&prompt["ttft"]["remote_others_ms"]), 0.0, "whatever else ran, that worker had no other request");
    let why: Vec<&str> = prompt["why"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    let told = format!("The worker at {} read its prompt, in {} step", address(&prefill), steps.len());
    assert!(why.iter().any(|line| line.starts_with(&told)), "{why:?}");
    // Who watches sees the same.
    let feed = beginning_of_feed(&decode);
    let event = feed.split("\n\n").find_map(|event| event.strip_prefix("event: away\ndata: "));
    let event: Value =
        serde_json::from_str(event.unwrap_or_else(|| panic!("no such event in {feed}"))).expect("an object");
    assert_eq!((event["r"].as_str(), &event["worker"], &event["result"]), (Some(id), &away["worker"], &away["result"]));
    assert_eq!(event["landed"].as_array().map(Vec::len), Some(landed.len()));
    // A trace has it on the request's lane.
    let (_, trace) = decode.request("GET", "/live/trace?seconds=3600", &[], "");
    let trace: Value = serde_json::from_str(&trace).expect("an object");
    let slices = trace["traceEvents"].as_array().expect("events");
    let is_named = |slice: &Value, name: &str| slice["name"].as_str().is_some_and(|named| named.contains(name));
    let reader = format!("read by {}", address(&prefill));
    let whole = slices.iter().find(|slice| is_named(slice, &reader)).expect("who read it");
    assert_eq!((&whole["args"]["way"], whole["args"]["blocks"].as_f64()), (&json!("whole"), blocks.last().copied()));
    let there = slices.iter().filter(|slice| is_named(slice, "of the prompt, there"));
    let there: f64 = there.map(|slice| number(&slice["args"]["rows"])).sum();
    assert_eq!(there, rows);
    // One that stays has none.
    let short = json!({"prompt": "The key", "max_tokens": 2}).to_string();
    let (_, body) = decode.request("POST", "/v1/completions", &[], &short);
    let body: Value = serde_json::from_str(&body).expect("an object");
    let path = format!("/v1/requests/{}/timeline", body["id"].as_str().expect("it has one"));
    let timeline: Value = serde_json::from_str(&decode.request("GET", &path, &[], "").1).expect("an object");
    assert_eq!(timeline["prompts"][0]["away"], Value::Null);
}

/// The same question with what a router adds to it.
fn routed(number: usize, more: &Value) -> String {
    let mut body: Value = serde_json::from_str(&question(number)).expect("an object");
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body.to_string()
}

#[test]
fn a_router_says_who_has_read_the_prompt() {
    let key = Key::new("router");
    let joint = Server::start(&SMALL);
    let prefill = prefill(&key, "0.0.0.0:0");
    let decode = Server::start(&[&SMALL[..], &["--role", "decode", "--cluster-key", key.path()]].concat());
    // As vLLM's routers write it.
    let wanted = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null});
    let is_read = |number: usize| {
        // vllm-router writes the rest into every request.
        let asked = routed(
            number,
            &json!({"max_tokens": 1, "min_tokens": 1, "stream": false, "echo": false, "no_stop_trim": false,
                "return_hidden_states": false, "kv_transfer_params": wanted}),
        );
        let (status, body) = prefill.request("POST", "/v1/completions", &[], &asked);
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).expect("an object");
        body["kv_transfer_params"].clone()
    };
    for number in 20..23 {
        let params = is_read(number);
        assert_eq!((&params["do_remote_prefill"], &params["do_remote_decode"]), (&json!(true), &json!(false)));
        let (status, body) =
            decode.request("POST", "/v1/completions", &[], &routed(number, &json!({"kv_transfer_params": params})));
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).expect("an object");
        assert_eq!(body["choices"][0]["text"], answer(&joint, &question(number)));
        assert_eq!(body.get("kv_transfer_params"), None);
    }
    assert_eq!(metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="whole"}"#), 3.0);
    // No worker is asked for those of which no router says anything.
    answer(&decode, &question(23));
    assert_eq!(metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="whole"}"#), 3.0);

    let good = is_read(24);
    let with = |name: &str, value: Value| {
        let mut params = good.clone();
        params[name] = value;
        json!({"kv_transfer_params": params})
    };
    let here = json!({"max_tokens": 1, "kv_transfer_params": wanted});
    let cases = [
        (&decode, with("remote_host", json!("10.0.0.1")), 400, "kv_transfer_params.seal"),
        (&decode, with("remote_port", json!(22)), 400, "kv_transfer_params.seal"),
        (&decode, with("remote_port", json!(70_000)), 400, "kv_transfer_params.remote_port"),
        (&decode, with("seal", json!("")), 400, "kv_transfer_params.seal"),
        (&decode, with("seal", Value::Null), 400, "kv_transfer_params.seal"),
        (&decode, with("do_remote_decode", json!(true)), 400, "not both"),
        (&decode, with("remote_block_ids", json!([[1, 2]])), 400, "kv_transfer_params.remote_block_ids"),
        (&decode, here.clone(), 400, "--handoff-listen"),
        (&prefill, with("do_remote_prefill", json!(true)), 400, "--role decode"),
        (&prefill, json!({"kv_transfer_params": {"do_remote_decode": false}}), 503, "only_reads"),
        (&prefill, json!({"max_tokens": 9, "kv_transfer_params": wanted}), 400, "max_tokens"),
        (&prefill, json!({"max_tokens": 1, "n": 2, "kv_transfer_params": wanted}), 400, "\"n\""),
        (&prefill, json!({"max_tokens": 1, "stream": true, "kv_transfer_params": wanted}), 400, "stream"),
        (&joint, here, 400, "--handoff-listen"),
        (&joint, with("do_remote_prefill", json!(true)), 400, "--role decode"),
    ];
    for (server, more, expected, says) in cases {
        let (status, body) = server.request("POST", "/v1/completions", &[], &routed(24, &more));
        assert!(status == expected && body.contains(says), "{more}: {status} {body}");
    }
    // What a router says of a worker that is gone is no reason to fail.
    drop(prefill);
    let gone = routed(24, &json!({"kv_transfer_params": good}));
    let (status, body) = decode.request("POST", "/v1/completions", &[], &gone);
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("an object");
    assert_eq!(body["choices"][0]["text"], answer(&joint, &question(24)));
}

/// A worker that reads prompts has come so far with those of this round: blocks of the first were sent, or it has read
/// one, two or more of them whole; or all have their answers.
fn wait_for_moment(round: usize, reader: &Server, asking: &[thread::ScopedJoinHandle<'_, ()>]) {
    let sent = || metric(reader, r#"twostroke_kv_transfer_bytes_total{way="given"}"#);
    let whole = || metric(reader, r#"twostroke_remote_prefills_total{way="given",result="whole"}"#);
    let (had_sent, had_whole) = (sent(), whole());
    wait("the moment to kill", || {
        let has_come = match round % 4 {
            0 => sent() > had_sent,
            more => whole() >= had_whole + more as f64,
        };
        has_come || asking.iter().all(|thread| thread.is_finished())
    });
}

/// How often a worker is killed: `TWOSTROKE_KILLS`.
fn kills() -> usize {
    let unless_told = tests::part_of(0..2, 2).count();
    std::env::var("TWOSTROKE_KILLS").map_or(unless_told, |text| text.parse().expect("a number"))
}

#[test]
fn a_worker_that_is_killed_loses_no_answer() {
    let kills = kills();
    let key = Key::new("kills");
    let joint = Server::start(&SMALL);
    let mut first = prefill(&key, "127.0.0.1:0");
    let at = address(&first).to_owned();
    let decode = decode(&key, &at);
    let next = AtomicUsize::new(100);
    for kill in 0..kills {
        thread::scope(|scope| {
            let ask = || {
                for _ in 0..3 {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(answer(&decode, &question(number)), answer(&joint, &question(number)), "{number}");
                }
            };
            let asking = [(); 4].map(|()| scope.spawn(ask));
            wait_for_moment(kill, &first, &asking);
            signal("KILL", first.pid());
            first.wait();
        });
        // It comes again where it was, and is asked again.
        first = prefill(&key, &at);
        let whole = || metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="whole"}"#);
        let before = whole();
        wait("a handoff to the worker that is there again", || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            assert_eq!(answer(&decode, &question(number)), answer(&joint, &question(number)), "{number}");
            whole() > before
        });
    }
    assert_eq!(metric(&decode, "twostroke_remote_prefill_mismatches_total"), 0.0);
    wait("nothing to be kept", || metric(&first, "twostroke_pinned_blocks") == 0.0);
}

/// A port without a listener.
fn free_port() -> String {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is one");
    socket.local_addr().expect("it is bound").port().to_string()
}

#[test]
fn a_script_starts_both_workers_and_ends_both() {
    let ports: [String; 3] = std::array::from_fn(|_| free_port());
    let binary = twostroke(&["serve"]).get_program().to_owned();
    let beside = Path::new(&binary).parent().expect("it lies somewhere").to_owned();
    let path = std::env::join_paths(
        [beside].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").expect("a PATH"))),
    );
    let mut script = Command::new("bash")
        .arg(Path::new(root()).join("deploy/two-workers.sh"))
        .args(SMALL)
        .env("PATH", path.expect("no name has a colon"))
        .env("XDG_CACHE_HOME", tests::cache())
        .envs([("PORT", &ports[0]), ("PREFILL_PORT", &ports[1]), ("HANDOFF_PORT", &ports[2])])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash is there");
    let port: u16 = ports[0].parse().expect("a number");
    let answer = answer_at_last(port, &question(70));
    assert!(!answer.is_empty());
    let page = |port: &str| try_request(port.parse().expect("a number"), "GET", "/metrics", "");
    // The first question may have come before the other worker was there; each has another prompt.
    let next = AtomicUsize::new(71);
    wait("a handoff", || {
        answer_at_last(port, &question(next.fetch_add(1, Ordering::Relaxed)));
        page(&ports[1]).is_some_and(|page| {
            page.contains("twostroke_kv_transfer_bytes_total{way=\"given\"} ")
                && !page.contains("twostroke_kv_transfer_bytes_total{way=\"given\"} 0\n")
        })
    });
    signal("TERM", script.id());
    script.wait().expect("it ends");
    wait("both to be gone", || page(&ports[0]).is_none() && page(&ports[1]).is_none());
}

/// What a client does that wants its answer: it asks again until it has one.
fn answer_at_last(port: u16, question: &str) -> String {
    loop {
        if let Some(text) = try_answer(port, question) {
            return text;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// `None` if no worker is there, or is there no more.
fn try_answer(port: u16, question: &str) -> Option<String> {
    let body: Value = serde_json::from_str(&try_request(port, "POST", "/v1/completions", question)?).ok()?;
    body["choices"][0]["text"].as_str().map(str::to_owned)
}

/// [`Server::request`] to one that may be killed meanwhile.
fn try_request(port: u16, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close");
    let length = body.len();
    let request = format!("{head}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// `TWOSTROKE_KILLS` times. The worker that is asked again has the same answer, and what was read for the one that is gone
/// is not kept.
#[test]
fn the_worker_that_answers_is_killed_and_nothing_is_kept_for_it() {
    let kills = kills();
    let key = Key::new("kills-of-d");
    let joint = Server::start(&SMALL);
    let prefill = prefill(&key, "127.0.0.1:0");
    let mut first = decode(&key, address(&prefill));
    let port = first.port();
    let next = AtomicUsize::new(5000);
    for kill in 0..kills {
        thread::scope(|scope| {
            let ask = || {
                for _ in 0..3 {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let expected = answer(&joint, &question(number));
                    assert_eq!(answer_at_last(port, &question(number)), expected, "{number}");
                }
            };
            let asking = [(); 4].map(|()| scope.spawn(ask));
            wait_for_moment(kill, &prefill, &asking);
            signal("KILL", first.pid());
            first.wait();
            let own = ["--role", "decode", "--prefill-workers", address(&prefill), "--cluster-key", key.path()];
            first = Server::start(&[SMALL.as_slice(), &own, &["--port", &port.to_string()]].concat());
        });
        wait("nothing to be kept", || metric(&prefill, "twostroke_pinned_blocks") == 0.0);
        wait("nothing to be held", || metric(&prefill, "twostroke_requests_running") == 0.0);
        assert_eq!(metric(&first, "twostroke_remote_prefill_mismatches_total"), 0.0);
    }
    assert!(metric(&prefill, r#"twostroke_remote_prefills_total{way="given",result="whole"}"#) > 0.0);
}

/// As llm-d's sidecar beside a decode worker does it: the client's body with a few fields changed goes to the prefill
/// worker, and its `kv_transfer_params` with the client's own body to the decode worker, streams too.
#[test]
fn a_sidecar_after_the_rules_of_llm_d_is_served() {
    let key = Key::new("sidecar");
    let joint = Server::start(&SMALL);
    let prefill = prefill(&key, "127.0.0.1:0");
    let decode = Server::start(&[&SMALL[..], &["--role", "decode", "--cluster-key", key.path()]].concat());
    let long: String = (0..60).map(|at| format!("The key {} is in the tower. ", at * 5)).collect();
    let message = json!([{"role": "user", "content": format!("{long}Where is key 35?")}]);
    let limits = ["max_tokens", "max_completion_tokens"];
    let mut handed_over = 0.0;
    for (at, (path, limit)) in
        [("/v1/chat/completions", 0), ("/v1/chat/completions", 1), ("/v1/completions", 0)].into_iter().enumerate()
    {
        for stream in [false, true] {
            let mut asked = json!({"seed": at, "temperature": 0.7, "stream": stream, limits[limit]: 12});
            match path {
                "/v1/completions" => asked["prompt"] = long.as_str().into(),
                _ => asked["messages"] = message.clone(),
            }
            // Prefixes are found; each of these is to be read.
            asked["cache_salt"] = format!("{at} {stream}").into();
            if stream {
                asked["stream_options"] = json!({"include_usage": true});
            }
            let mut first = asked.clone();
            first["stream"] = false.into();
            first.as_object_mut().expect("an object").remove("stream_options");
            // Both, whichever the client sent.
            limits.iter().for_each(|name| first[*name] = 1.into());
            first["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false,
                "remote_engine_id": null, "remote_block_ids": null, "remote_host": null, "remote_port": null});
            let id = format!("x-request-id: leg-{at}-{stream}\r\n");
            let (status, read) = prefill.request("POST", path, &[id.trim_end()], &first.to_string());
            assert_eq!(status, 200, "{read}");
            let read: Value = serde_json::from_str(&read).expect("an object");
            let mut second = asked.clone();
            second["kv_transfer_params"] = read["kv_transfer_params"].clone();
            let (status, split) = decode.request("POST", path, &[id.trim_end()], &second.to_string());
            let (_, whole) = joint.request("POST", path, &[], &asked.to_string());
            assert_eq!(status, 200, "{split}");
            assert_eq!(text_of(&split), text_of(&whole), "{asked}");
            assert!(!text_of(&split).is_empty(), "{split}");
            handed_over += 1.0;
            assert_eq!(metric(&decode, r#"twostroke_remote_prefills_total{way="taken",result="whole"}"#), handed_over);
        }
    }
}

/// The text of an answer, whole or in pieces.
fn text_of(body: &str) -> String {
    let pieces = body.lines().map(|line| line.trim_start_matches("data: "));
    let values = pieces.filter_map(|piece| serde_json::from_str::<Value>(piece).ok());
    let text = |value: &Value| -> String {
        let choice = &value["choices"][0];
        let places = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
        places.into_iter().filter_map(Value::as_str).collect()
    };
    values.map(|value| text(&value)).collect()
}

#[test]
fn flags_that_do_not_go_together_are_one_line() {
    let key = Key::new("flags");
    let short = Key::new("short");
    fs::write(&short.0, "secret\n").expect("it can be written");
    let cases: [(&[&str], &str); 9] = [
        (&["--cluster-key", key.path()], "there is neither"),
        (&["--role", "prefill"], "--handoff-listen"),
        (&["--role", "prefill", "--cluster-key", key.path()], "--handoff-listen"),
        (&["--role", "decode"], "--cluster-key"),
        (&["--role", "reader"], "prefill, decode or both"),
        (&["--prefill-workers", "127.0.0.1:9000"], "--cluster-key"),
        (&["--prefill-workers", "http://127.0.0.1:9000/", "--cluster-key", key.path()], "HOST:PORT"),
        (&["--handoff-listen", "127.0.0.1:0", "--cluster-key", short.path()], "6 bytes are too short a secret"),
        (&["--handoff-listen", "127.0.0.1:0", "--cluster-key", "/nonexistent/key"], "/nonexistent/key"),
    ];
    for (flags, says) in cases {
        let ran = run(&mut twostroke(&[&["serve", "--port", "0"], flags].concat()));
        assert_eq!(ran.code, Some(2), "{flags:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{flags:?}: {ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    }
}
