//! What a server writes down of requests, how `why` tells where their time went, and that the log needs no reader.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tests::{Server, run, signal, twostroke};

/// A server whose log is kept.
fn logged(arguments: &[&str]) -> Server {
    logged_by(twostroke(&[&["serve", "--port", "0", "--json"][..], arguments].concat()))
}

fn logged_by(mut command: Command) -> Server {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    Server::adopt(child, &line)
}

fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.port())
}

fn ask(server: &Server, headers: &[&str], body: &Value) -> Value {
    let (status, answer) = server.request("POST", "/v1/completions", headers, &body.to_string());
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).expect("JSON")
}

/// The value of a field in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let at = line.find(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    line[at + name.len() + 2..].split(' ').next().expect("a value")
}

#[test]
fn each_request_is_a_line_and_a_slow_one_is_a_warning_in_words() {
    let server = logged(&["--slow-ttft", "0.1ms", "--slow-gap", "10m", "--api-key", "sk-a", "--api-key", "sk-b"]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": true, "temperature": 0});
    let answer = ask(&server, &["Authorization: Bearer sk-b", "X-Request-Id: mine=\"1\""], &body);
    let refused = server.request("POST", "/v1/completions", &["Authorization: Bearer sk-a"], r#"{"temperature": 9}"#);
    assert_eq!(refused.0, 400);
    signal("TERM", server.pid());
    let (_, log) = server.output();
    assert!(!log.contains('\x1b'), "a pipe gets no colours: {log:?}");

    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" access: ")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    let line = lines[0];
    assert!(line.starts_with("20") && line.contains("Z  INFO access: "), "{line}");
    let id = answer["id"].as_str().expect("an id");
    for (name, wanted) in [
        ("route", "\"/v1/completions\""),
        ("status", "200"),
        ("id", &format!("{id:?}")),
        ("request_id", r#""mine=\"1\"""#),
        ("key", "2"),
        ("state", "\"finished\""),
        ("finish_reason", "\"length\""),
        ("stream", "false"),
        ("prompt_tokens", &answer["usage"]["prompt_tokens"].to_string()),
        ("cached_tokens", "0"),
        ("completion_tokens", "5"),
    ] {
        assert_eq!(field(line, name), wanted, "{line}");
    }
    for (name, wanted) in [("ttft_ms", "ttft_ms"), ("total_ms", "total_ms"), ("queue_ms", "queue_ms")] {
        let wanted = answer["timings"][wanted].as_f64().expect("a time");
        let found: f64 = field(line, name).parse().expect("a number");
        assert!((found - wanted).abs() < 0.0015, "{name}: {found}, not {wanted}");
    }
    assert!(field(line, "tpot_ms").parse::<f64>().is_ok() && field(line, "longest_gap_ms").parse::<f64>().is_ok());
    assert_eq!((field(lines[1], "status"), field(lines[1], "key")), ("400", "1"), "{log}");

    let slow: Vec<&str> = log.lines().filter(|line| line.contains(" slow: ")).collect();
    assert_eq!(slow.len(), 1, "{log}");
    assert!(slow[0].contains(" WARN slow: The first token came after ") && slow[0].contains(id), "{}", slow[0]);
    // Whose time it was is the machine's business too.
    assert!(slow[0].contains(" of prefill (") && slow[0].contains(" Of that: "), "{}", slow[0]);
    assert!(!log.contains("Once upon"), "nothing of what was said: {log}");
}

#[test]
fn what_is_logged_can_be_chosen() {
    let mut command = twostroke(&["serve", "--port", "0", "--json"]);
    command.env("TWOSTROKE_LOG", "info,access=off");
    let server = logged_by(command);
    ask(&server, &[], &json!({"prompt": "Once", "max_tokens": 1}));
    signal("TERM", server.pid());
    let (_, log) = server.output();
    assert!(log.contains("draining") && !log.contains("access"), "{log}");
}

#[test]
fn why_tells_of_one_and_lists_the_slowest() {
    let server = Server::start(&[]);
    let url = url(&server);
    let why = |arguments: &[&str]| run(&mut twostroke(&[&["why", "--url", &url][..], arguments].concat()));
    let none = why(&[]);
    assert_eq!((none.code, none.stdout.contains("no request is known")), (Some(0), true), "{none:?}");
    let body = json!({"prompt": "Once upon a time", "max_tokens": 7, "ignore_eos": true, "temperature": 0});
    let id = ask(&server, &["X-Request-Id: a/b?c"], &body)["id"].as_str().expect("an id").to_owned();

    for name in [id.as_str(), "a/b?c"] {
        let told = why(&[name]);
        assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""), "{told:?}");
        let lines: Vec<&str> = told.stdout.lines().collect();
        assert!(lines[0].starts_with(&format!("{id} (a/b?c): finished, came at 20")), "{told:?}");
        assert!(lines[1].starts_with("The first token came after ") && lines[1].contains("of prefill"), "{told:?}");
        assert!(lines[2].starts_with("Nothing of its prompt was seen "), "{told:?}");
        assert!(lines[3].starts_with("Of that: ") && lines[3].contains(" %)"), "{told:?}");
        assert!(told.stdout.contains("Then 6 tokens came in "), "{told:?}");
    }
    let json: Value = why(&[&id, "--json"]).json();
    assert_eq!((&json["object"], json["prompts"][0]["why"].is_array()), (&json!("request.timeline"), true));

    let listed = why(&[]);
    assert_eq!(listed.stdout.matches(&id).count(), 2, "in both lists: {listed:?}");
    assert!(listed.stdout.contains("finished"), "{listed:?}");
    assert_eq!(why(&["--json"]).json()["ttft"][0]["id"], json!(id));
    assert!(why(&["--since", "2100-01-01T00:00:00Z"]).stdout.contains("no request is known"));
    for (arguments, said) in [
        (&["nobody"][..], "No request of this name"),
        (&["--since", "soon"], "since must be a moment"),
        (&["--limit", "0"], "from 1 to 1000"),
        (&["--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
    ] {
        let ours: &[&str] = if arguments[0] == "--url" { &[] } else { &["--url", &url] };
        let ran = run(&mut twostroke(&[&["why"][..], arguments, ours].concat()));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
        assert!(ran.stderr.contains(said), "{ran:?}");
    }
}

// A supervisor that pipes the log and does not read it stops nothing.
#[test]
fn a_log_without_a_reader_stops_nothing() {
    let mut command = twostroke(&["serve", "--port", "0", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    let mut unread = child.stderr.take().expect("piped");
    let server = Server::adopt(child, &line);
    // Some 400 bytes each: more than a pipe holds.
    let body = json!({"prompt": "Once", "max_tokens": 1});
    for _ in 0..300 {
        ask(&server, &[], &body);
    }
    signal("TERM", server.pid());
    let mut server = server;
    assert_eq!(server.wait(), Some(0), "it ends as well");
    let mut log = String::new();
    unread.read_to_string(&mut log).expect("UTF-8");
    assert!(log.matches(" access: ").count() > 50, "what fitted was written");
}
