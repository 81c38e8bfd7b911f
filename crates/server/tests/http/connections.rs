//! Clients that leave, dawdle or come in crowds, and the end of the server itself.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use engine::EngineOptions;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::{Canaries, Host, keyed, local_server, small_engine, wait};
use testing::is_long;

const JSON: (&str, &str) = ("content-type", "application/json");

/// An answer that would take a long while.
fn long(max_tokens: usize) -> Value {
    json!({"prompt": "The fox", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// The longest answer to a short prompt.
fn longest(host: &Host) -> usize {
    host.engine.model().max_model_len - 16
}

fn send(host: &Host, body: &Value) -> Connection {
    let mut connection = host.connect();
    connection.request("POST", "/v1/completions", &[JSON], body.to_string().as_bytes());
    connection
}

/// All of the model's context: room for an answer that does not end by itself while a test looks elsewhere.
fn long_engine() -> EngineOptions {
    EngineOptions { max_model_len: None, ..small_engine() }
}

// rows 35 and 36
#[test]
fn a_client_that_leaves_frees_everything_whatever_it_was_waiting_for() {
    let host = Host::with(long_engine(), local_server());
    let prompt_of_many_steps = "fox ".repeat(900);
    let mut cancelled = 0;
    for n in [1, 4] {
        for stream in [false, true] {
            for prompt in ["The fox", prompt_of_many_steps.as_str()] {
                let mut body = long(longest(&host) - 1000);
                (body["prompt"], body["n"], body["stream"]) = (json!(prompt), json!(n), json!(stream));
                let mut connection = send(&host, &body);
                if stream {
                    // In the middle of the answer...
                    connection.head().expect("headers come before the first token");
                    connection.chunk(&mut Vec::new());
                } else {
                    // ... or of the wait for it.
                    wait("the request to be taken in", || host.engine.health().open_requests == 1);
                }
                drop(connection);
                host.quiet();
                cancelled += 1;
                assert_eq!(host.engine.stats().finished_cancelled, cancelled, "n={n} stream={stream}");
            }
        }
    }
}

// row 35, in the queue
#[test]
fn a_client_that_leaves_the_queue_is_never_computed() {
    let host = Host::with(EngineOptions { max_num_seqs: 1, ..long_engine() }, local_server());
    host.pause();
    let running = send(&host, &long(longest(&host)));
    host.step_into(1);
    let waiting: Vec<_> = (0..5).map(|_| send(&host, &long(longest(&host)))).collect();
    wait("the others to wait", || host.engine.stats().waiting_requests == 5);
    drop(waiting);
    wait("the queue to empty", || host.engine.stats().waiting_requests == 0);
    drop(running);
    host.resume();
    host.quiet();
    assert_eq!(host.engine.stats().finished_cancelled, 6);
    let prompt = host.ask("/tokenize", &json!({"prompt": "The fox"}))["count"].as_u64().unwrap();
    assert_eq!(host.engine.stats().prefill_tokens, prompt, "only the first was ever computed");
}

#[test]
fn many_clients_that_leave_at_any_moment_leave_nothing_behind() {
    let host = Host::start();
    let canaries = Canaries::start(&host);
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let host = &host;
            scope.spawn(move || {
                for turn in 0..50u64 {
                    let mut body = long(64);
                    body["stream"] = json!(turn % 2 == 0);
                    body["n"] = json!(1 + turn % 3);
                    let connection = send(host, &body);
                    // A different moment each time; which one it is does not matter to what must follow.
                    std::thread::sleep(Duration::from_micros((worker * 7919 + turn * 104_729) % 8000));
                    drop(connection);
                }
            });
        }
    });
    canaries.finish();
    host.quiet();
    wait("the connections to end", || host.metric("twostroke_http_connections") <= 1.0);
}

// row 44
#[test]
fn a_full_queue_says_so_at_once_and_when_to_come_back() {
    let engine = EngineOptions { max_num_seqs: 1, max_queued_requests: 2, ..long_engine() };
    let host = Host::with(engine, local_server());
    host.pause();
    let running = send(&host, &long(longest(&host)));
    host.step_into(1);
    let waiting: Vec<_> = (0..2).map(|_| send(&host, &long(longest(&host)))).collect();
    wait("the queue to fill", || host.engine.stats().waiting_requests == 2);
    for stream in [false, true] {
        let mut body = long(4);
        body["stream"] = json!(stream);
        let answer = host.post("/v1/completions", &body);
        assert_eq!(answer.status, 503, "a stream is refused before its headers are sent");
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        let error = answer.json()["error"].clone();
        assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("overloaded")));
    }
    // Several prompts are taken in together or not at all.
    drop(waiting);
    wait("the queue to empty", || host.engine.stats().waiting_requests == 0);
    let mut body = long(4);
    body["prompt"] = json!(["a", "b", "c"]);
    assert_eq!(host.post("/v1/completions", &body).status, 503);
    wait("nothing of it to stay", || host.engine.stats().waiting_requests == 0);
    drop(running);
    host.resume();
    host.quiet();
    assert_eq!(host.post("/v1/completions", &long(4)).status, 200);
}

// row 48: a long prompt at the head of the line gets its blocks while short ones keep coming
#[test]
fn a_large_request_gets_through_a_crowd_of_small_ones() {
    let mut engine = small_engine();
    let block_bytes = Host::start().engine.model().kv_bytes_per_token * engine.block_size;
    (engine.kv_cache_bytes, engine.max_model_len) = (Some(16 * block_bytes as u64), Some(512));
    let host = Host::with(engine, local_server());
    let large = json!({"prompt": vec![7; 400], "max_tokens": 20, "temperature": 0, "ignore_eos": true});
    let alone = host.ask("/v1/completions", &large)["choices"].clone();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (host, done) = (&host, &done);
        for client in 0..4 {
            scope.spawn(move || {
                let body =
                    json!({"prompt": vec![8 + client; 40], "max_tokens": 40, "temperature": 0, "ignore_eos": true});
                while !done.load(Ordering::Relaxed) {
                    host.ask("/v1/completions", &body);
                }
            });
        }
        for _ in 0..3 {
            assert_eq!(host.ask("/v1/completions", &large)["choices"], alone);
        }
        done.store(true, Ordering::Relaxed);
    });
    host.quiet();
}

// row 39
#[test]
fn a_reader_that_stops_reading_holds_up_no_other() {
    let host = Host::start();
    let mut body = long(900);
    (body["stream"], body["n"], body["logprobs"]) = (json!(true), json!(8), json!(20));
    let asleep = send(&host, &body);
    wait("its answer to begin", || host.engine.stats().decode_tokens > 0);
    let canaries = Canaries::start(&host);
    canaries.finish();
    drop(asleep);
    host.quiet();
}

// row 32: what takes a tokenizer long is done where it holds up no other request
#[test]
fn texts_that_are_hard_on_tokenizers_hold_up_no_other() {
    let host = Host::start();
    let canaries = Canaries::start(&host);
    // What takes a square of its length does not end at either.
    let length = if is_long() { 1 << 20 } else { 1 << 18 };
    for text in [
        "a".repeat(length),
        ".".repeat(length),
        "\u{1f98a}".repeat(length / 4),
        " ".repeat(length),
        "e\u{301}".repeat(length / 4),
    ] {
        assert!(host.ask("/tokenize", &json!({ "prompt": text }))["count"].as_u64() > Some(0));
        assert_eq!(host.post("/v1/completions", &json!({ "prompt": text })).status, 400);
    }
    canaries.finish();
    host.quiet();
}

// row 40
#[test]
fn a_head_that_never_ends_is_cut_off_and_an_idle_connection_is_not() {
    let host = Host::start();
    let mut idle = host.connect();
    idle.request("GET", "/version", &[], b"");
    assert_eq!(idle.answer().status, 200);
    let mut slow = host.connect();
    slow.send(b"GET /version HTTP/1.1\r\nhost: localhost\r\n");
    let (sender, dripping) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(slow.is_closed(), "the server answered half a request");
            drop(sender);
        });
        // Well before a minute; the limit itself is ten seconds.
        let cut_off = dripping.recv_timeout(Duration::from_secs(45));
        assert_eq!(cut_off, Err(mpsc::RecvTimeoutError::Disconnected), "the connection was left open");
    });
    idle.request("GET", "/version", &[], b"");
    assert_eq!(idle.answer().status, 200, "an idle connection has more time than a half-sent request");
}

#[test]
fn a_connection_is_used_again_and_requests_on_it_keep_their_order() {
    let host = Host::start();
    let mut connection = host.connect();
    let body = json!({"prompt": "The fox", "max_tokens": 2, "temperature": 0}).to_string();
    for _ in 0..3 {
        connection.request("POST", "/v1/completions", &[JSON], body.as_bytes());
        assert_eq!(connection.answer().status, 200);
        connection.request("POST", "/v1/completions", &[JSON], b"{}");
        assert_eq!(connection.answer().status, 400);
        connection.request("GET", "/nowhere", &[], b"");
        assert_eq!(connection.answer().status, 404);
    }
    connection.request("GET", "/version", &[], b"");
    connection.request("GET", "/health", &[], b"");
    assert!(connection.answer().json()["version"].is_string());
    assert_eq!(connection.answer().json()["status"], "ok");
}

/// An answer that does not need the body: whether the connection can be used again is true and told.
#[test]
fn a_body_that_comes_behind_its_answer_spoils_no_connection() {
    let host = Host::start();
    for path in ["/v1/moderations", "/health"] {
        let mut connection = host.connect();
        let head = |length: usize, more: &str| {
            format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n"
            )
        };
        for _ in 0..3 {
            connection.send(head(12, "").as_bytes());
            std::thread::sleep(Duration::from_millis(20));
            connection.send(b"{\"input\":1}\n");
            let answer = connection.answer();
            assert!([404, 405].contains(&answer.status), "{}", answer.text());
            assert_eq!(answer.header("connection"), None);
        }
        connection.request("GET", "/health", &[], b"");
        assert_eq!(connection.answer().status, 200, "it is the same connection");
        // What does not come, what is long, and what waits to be asked for end it, and the answer says so.
        for (length, more) in [(12, ""), (100 << 20, ""), (12, "expect: 100-continue\r\n")] {
            let mut connection = host.connect();
            connection.send(head(length, more).as_bytes());
            let answer = connection.answer();
            assert_eq!(answer.header("connection"), Some("close"), "{length} {more}");
            assert!(connection.is_closed());
        }
    }
    host.quiet();
}

#[test]
fn a_client_that_reads_nothing_before_it_has_written_all_gets_its_answer() {
    let host = Host::with(small_engine(), keyed(&["key"]));
    // More than the buffers of both sides hold.
    let body = vec![b' '; 12 << 20];
    let key = ("authorization", "Bearer key");
    for (method, path, headers, status) in [
        ("POST", "/v1/completions", &[JSON, key][..], 413),
        ("POST", "/v1/completions", &[JSON], 401),
        ("POST", "/nowhere", &[key], 404),
        ("PUT", "/v1/models", &[key], 405),
        ("POST", "/v1/completions", &[key, ("content-type", "text/plain")], 415),
    ] {
        let mut socket = std::net::TcpStream::connect(host.address).expect("the server listens");
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
        socket.write_all(format!("{request}\r\n").as_bytes()).expect("a head");
        socket
            .write_all(&body)
            .unwrap_or_else(|error| panic!("{status}: the server hung up while it was told: {error}"));
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{status}: the answer is lost: {error}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("invalid_request_error"), "{answer}");
    }
    host.quiet();
}

// row 41
#[test]
fn connections_beyond_the_cap_wait_for_a_place() {
    let mut options = local_server();
    options.max_connections = 2;
    let host = Host::with(small_engine(), options);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut connection = host.connect();
            connection.request("GET", "/version", &[], b"");
            assert_eq!(connection.answer().status, 200);
            connection
        })
        .collect();
    let mut third = host.connect();
    third.request("GET", "/version", &[], b"");
    drop(held);
    assert_eq!(third.answer().status, 200);
}

// row 59
#[test]
fn a_drain_lets_running_answers_end_and_takes_no_new_ones() {
    let mut host = Host::with(long_engine(), local_server());
    let mut kept = host.connect();
    kept.request("GET", "/health", &[], b"");
    assert_eq!(kept.answer().status, 200);
    let whole = host.ask("/v1/completions", &long(400))["choices"][0]["text"].clone();

    host.pause();
    let mut plain = send(&host, &long(400));
    let mut body = long(400);
    body["stream"] = json!(true);
    let mut stream = send(&host, &body);
    wait("both to come", || host.engine.health().open_requests == 2);
    host.step_into(1);
    host.stop.drain();
    wait("the drain to be seen", || host.engine.health().draining);

    // On a connection that was open before, and on a new one.
    for mut connection in [kept, host.connect()] {
        connection.request("GET", "/health", &[], b"");
        let refused = connection.answer();
        assert_eq!(refused.status, 503);
        assert!(refused.header("retry-after").is_some());
        assert_eq!(refused.json()["error"]["code"], "shutting_down");
        assert!(connection.is_closed());
    }
    assert_eq!(host.post("/v1/completions", &long(1)).status, 503);

    host.resume();
    // Both are read at once: a stream that waits for its reader for a minute is given up.
    let streamed = std::thread::spawn(move || stream.answer());
    assert_eq!(plain.answer().json()["choices"][0]["text"], whole);
    let (events, done) = streamed.join().expect("an answer").events();
    assert!(done);
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(json!(text), whole);
    host.join();
    assert_eq!(host.engine.stats().finished_cancelled, 0);
}

// row 59: the limit, and the second signal
#[test]
fn what_a_drain_does_not_wait_for_ends_with_an_error_and_no_done() {
    for second_signal in [false, true] {
        let mut options = local_server();
        options.drain_limit = if second_signal { Duration::from_secs(3600) } else { Duration::from_millis(50) };
        let mut host = Host::with(long_engine(), options);
        let mut body = long(longest(&host));
        let mut plain = send(&host, &body);
        body["stream"] = json!(true);
        let mut stream = send(&host, &body);
        stream.head().expect("the stream begins");
        let mut bytes = Vec::new();
        assert!(stream.chunk(&mut bytes));
        host.stop.drain();
        if second_signal {
            host.stop.now();
        }
        while stream.chunk(&mut bytes) {}
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.contains("[DONE]"), "an end that is none looks like one");
        let last = text.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
        assert_eq!(serde_json::from_str::<Value>(last).unwrap()["error"]["code"], "shutting_down");
        let answer = plain.answer();
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("shutting_down")));
        host.join();
        assert!(host.engine.health().dead);
    }
}
