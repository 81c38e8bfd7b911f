//! Requests as spans, against a collector that is a few lines of this test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use server::OtelOptions;

use crate::host::{Host, local_server, small_engine};

/// Listens and passes on every message, with its head.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            loop {
                let mut head = String::new();
                while reader.read_line(&mut head).is_ok_and(|bytes| bytes > 2) {}
                let length = head
                    .to_ascii_lowercase()
                    .split_once("content-length:")
                    .and_then(|(_, rest)| rest.lines().next().and_then(|line| line.trim().parse::<usize>().ok()));
                let Some(length) = length else { break };
                let mut body = vec![0; length];
                reader.read_exact(&mut body).expect("the body that was announced");
                let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                reader.get_mut().write_all(answer).expect("it reads");
                let message = serde_json::from_slice(&body).expect("JSON");
                if sender.send((head, message)).is_err() {
                    return;
                }
            }
        }
    });
    (format!("http://127.0.0.1:{port}/v1/traces"), messages)
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    let value = &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"];
    value.as_object().expect("one value").values().next().expect("one value")
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().expect("64 bits are a string").parse().expect("a number")
}

#[test]
fn a_request_is_a_span_with_its_phases_below_it() {
    let (traces_endpoint, messages) = collector();
    let mut options = local_server();
    options.otel = Some(OtelOptions {
        traces_endpoint,
        headers: vec![("x-key".into(), "k".into())],
        service_name: "fable".into(),
    });
    let mut host = Host::with(small_engine(), options);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let traceparent = format!("00-{trace}-{parent}-01");
    let headers =
        [("content-type", "application/json"), ("traceparent", traceparent.as_str()), ("connection", "close")];
    let answer = host.send("POST", "/v1/completions", &headers, body.to_string().as_bytes()).json();
    let (head, message) = messages.recv_timeout(Duration::from_secs(60)).expect("a message");
    assert!(head.starts_with("POST /v1/traces ") && head.to_ascii_lowercase().contains("x-key: k"), "{head}");
    let resource = &message["resourceSpans"][0];
    assert_eq!(attribute(&resource["resource"], "service.name"), "fable");
    let spans = resource["scopeSpans"][0]["spans"].as_array().expect("spans");
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["text_completion lantern", "queue", "prefill", "decode"]);
    let root = &spans[0];
    assert_eq!((&root["traceId"], &root["parentSpanId"]), (&json!(trace), &json!(parent)));
    assert_eq!(attribute(root, "gen_ai.request.model"), "lantern");
    assert_eq!(attribute(root, "gen_ai.response.id"), &answer["id"]);
    let count = |key| attribute(root, key).as_str().expect("64 bits are a string").parse::<u64>().expect("a count");
    assert_eq!(Some(count("gen_ai.usage.input_tokens")), answer["usage"]["prompt_tokens"].as_u64());
    assert_eq!(count("gen_ai.usage.output_tokens"), 6);
    let ttft = attribute(root, "gen_ai.server.time_to_first_token").as_f64().expect("seconds") * 1e3;
    assert!((ttft - answer["timings"]["ttft_ms"].as_f64().expect("milliseconds")).abs() < 0.001);
    // The phases follow each other within the request, and below it.
    let mut at = nanos(root, "startTimeUnixNano");
    for child in &spans[1..] {
        assert_eq!((&child["parentSpanId"], &child["traceId"]), (&root["spanId"], &root["traceId"]));
        assert_eq!(nanos(child, "startTimeUnixNano"), at, "{child}");
        at = nanos(child, "endTimeUnixNano");
    }
    assert!(at <= nanos(root, "endTimeUnixNano"));

    // One whose client leaves is a span too; without a parent it begins a trace. What is queued is sent at the end.
    let mut connection = host.connect();
    let long = json!({"prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true}).to_string();
    connection.request("POST", "/v1/completions", &[("content-type", "application/json")], long.as_bytes());
    connection.head().expect("an answer begins");
    drop(connection);
    host.quiet();
    host.stop.now();
    host.join();
    let (_, message) = messages.recv_timeout(Duration::from_secs(60)).expect("a message");
    let root = &message["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert!(root["parentSpanId"].is_null() && root["traceId"] != trace, "{root}");
}

#[test]
fn a_collector_that_is_away_costs_nothing_but_its_spans() {
    let mut options = local_server();
    // Nothing listens on this port: it was free a moment ago.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port").local_addr().expect("bound").port();
    options.otel = Some(OtelOptions {
        traces_endpoint: format!("http://127.0.0.1:{port}/v1/traces"),
        headers: Vec::new(),
        service_name: "fable".into(),
    });
    let mut host = Host::with(small_engine(), options);
    for _ in 0..3 {
        host.ask("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2}));
    }
    host.quiet();
    host.stop.now();
    host.join();
}
