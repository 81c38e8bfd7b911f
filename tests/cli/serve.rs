//! `twostroke serve`: start, keys, signals. What it answers is the server crate's own matter.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use tests::{Server, run, signal, twostroke};

#[test]
fn it_answers_and_ends_on_sigterm() {
    let mut server = Server::start(&[]);
    let (status, body) = server.request("GET", "/health", &[], "");
    assert_eq!(status, 200, "{body}");
    let question = r#"{"messages":[{"role":"user","content":"What is 7 + 5?"}],"max_tokens":4}"#;
    let (status, body) = server.request("POST", "/v1/chat/completions", &[], question);
    let answer: Value = serde_json::from_str(&body).expect("an object");
    assert_eq!((status, &answer["object"]), (200, &"chat.completion".into()), "{body}");
    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn six_lines_tell_what_was_started() {
    let mut command = twostroke(&["serve", "--port", "0", "--served-model-name", "fable"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let stdout = child.stdout.take().expect("standard output is piped");
    let lines: Vec<String> = BufReader::new(stdout).lines().take(6).map(|line| line.expect("a line")).collect();
    signal("INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let names: Vec<&str> = lines.iter().map(|line| line[..10].trim()).collect();
    assert_eq!(names, ["model", "precision", "memory", "kv blocks", "limits", "serving"], "{lines:?}");
    assert!(lines[5].contains("http://127.0.0.1:"), "{lines:?}");
}

#[test]
fn a_key_from_the_environment_is_asked_for() {
    let mut command = twostroke(&["serve", "--port", "0", "--json"]);
    command.env("TWOSTROKE_API_KEY", "first,second");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    let server = Server::adopt(child, &line);
    assert_eq!(server.request("GET", "/v1/models", &[], "").0, 401);
    assert_eq!(server.request("GET", "/v1/models", &["Authorization: Bearer third"], "").0, 401);
    for key in ["first", "second"] {
        assert_eq!(server.request("GET", "/v1/models", &[&format!("Authorization: Bearer {key}")], "").0, 200);
    }
}

#[test]
fn an_open_server_without_a_key_is_warned_about() {
    let mut child = twostroke(&["serve", "--port", "0", "--host", "0.0.0.0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let warning = stderr.lines().map_while(Result::ok).find(|line| line.contains("--api-key"));
    signal("TERM", child.id());
    child.wait().expect("it ends");
    assert!(warning.is_some_and(|line| line.starts_with("warning: ")));
}

#[test]
fn a_port_that_is_taken_is_told_in_one_line() {
    let server = Server::start(&[]);
    let ran = run(&mut twostroke(&["serve", "--port", &server.port().to_string()]));
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{ran:?}");
    assert!(ran.stderr.contains(&server.port().to_string()), "{ran:?}");
}
