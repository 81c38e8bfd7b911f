//! What a server says is text: nothing of it is obeyed by a terminal, whichever command prints it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use serde_json::{Value, json};
use tests::{run, twostroke};

/// What a terminal obeys, or shows as something else: colours and titles by escapes of one byte and of two, lines that
/// are none, text that runs backwards.
const BAD: &str = "x\u{1b}[31m\u{9b}2J\u{1b}]0;t\u{7}\r\ny\t\u{7f}\u{85}\u{202e}\u{2028}\u{2066}z";

/// A server that says such text wherever a text can be, under any status.
fn liar(status: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let port = listener.local_addr().expect("it has one").port();
    let mostly = json!({"id": BAD, "request_id": BAD, "arrived_at": BAD, "state": BAD, "ttft_mostly": BAD,
        "gaps_mostly": BAD, "prompt_tokens": BAD, "completion_tokens": BAD, "ttft_ms": 5, "total_ms": 7});
    let said: Value = json!({
        "object": "request.timeline", "id": BAD, "request_id": BAD, "error": {"message": BAD},
        "data": [mostly], "now_ms": 1, "name": BAD, "weights": BAD, "isa": BAD, "threads": 2,
        "prompts": [{"state": BAD, "arrived_at": BAD, "why": [BAD, BAD]}], "choices": [],
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let said = said.to_string();
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 65_536]);
                let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close");
                let _ = stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{said}", said.len()).as_bytes());
            });
        }
    });
    port
}

#[test]
fn what_a_server_says_is_printable_text() {
    for status in ["200 OK", "400 Bad Request", "404 Not Found", "500 Internal Server Error", "503 Service Unavailable"]
    {
        let url = format!("http://127.0.0.1:{}", liar(status));
        let commands: [&[&str]; 9] = [
            &["why", "--url", &url],
            &["why", "--url", &url, "--json"],
            &["why", "one", "--url", &url],
            &["why", "one", "--url", &url, "--json"],
            &["top", "--once", "--url", &url],
            &["bench-serve", "--base-url", &url, "--num-prompts", "2"],
            &["bench-serve", "--base-url", &url, "--num-prompts", "2", "--json"],
            &["bench-serve", "--base-url", &url, "--num-prompts", "2", "--backend", "openai-chat"],
            &["bench-serve", "--base-url", &url, "-m", "x", "--num-prompts", "2"],
        ];
        for command in commands {
            let ran = run(&mut twostroke(command));
            let obeyed = |c: char| {
                c != '\n' && (c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
            };
            for text in [&ran.stdout, &ran.stderr] {
                assert!(!text.contains(obeyed), "{command:?}, {status}: {ran:?}");
                assert!(!text.lines().any(|line| line.starts_with('y')), "a line of its own: {ran:?}");
            }
            assert!(ran.code != Some(101) && ran.code.is_some(), "{ran:?}");
        }
    }
}
