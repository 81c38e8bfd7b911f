//! `twostroke top`: one screen as text, the same on a terminal, and what it says where there is nothing to watch.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use tests::{Server, binary, run, twostroke};

use crate::terminal::Terminal;

fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.port())
}

#[test]
fn one_screen_as_text() {
    let server = Server::start(&[]);
    // A feed is asked for what comes after the first step of all.
    server.request("POST", "/v1/completions", &[], r#"{"prompt": "The fox", "max_tokens": 1}"#);
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": true}"#;
    let (status, answer) = server.request("POST", "/v1/completions", &[], body);
    assert_eq!(status, 200);
    let id = answer.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id");
    let ran = run(&mut twostroke(&["top", "--once", "--url", &url(&server)]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(!ran.stdout.contains('\x1b'), "{ran:?}");
    // Whether drafts paid, and have a line, is the machine's to say.
    let lines: Vec<&str> = ran.stdout.lines().filter(|line| !line.starts_with("drafts ")).collect();
    assert!(lines[0].starts_with("lantern bf16 · ") && lines[0].ends_with("running 0 · waiting 0"), "{ran:?}");
    for (line, begin, end) in [(1, "prefill", "% of bandwidth"), (2, "decode", "% of bandwidth"), (3, "KV", "blocks")] {
        assert!(lines[line].starts_with(begin) && lines[line].ends_with(end), "{ran:?}");
    }
    assert!(lines[4].starts_with("TTFT p50 ") && !lines[4].contains('-'), "{ran:?}");
    let lane = lines.iter().find(|line| line.contains(&id[id.len() - 8..])).expect("the request's lane");
    // How much of it is in the ten seconds shown, and in how many columns, is the machine's business.
    assert!(lane.contains('█') || lane.contains('─'), "{ran:?}");
}

#[test]
fn a_terminal_shows_it_until_q_and_is_given_back_as_it_was() {
    let server = Server::start(&[]);
    let top = format!("{} top --url {}", binary().display(), url(&server));
    // (what is pressed)
    for keys in ["q", "\u{3}", "\u{4}"] {
        let mut terminal = Terminal::start(&format!(
            "bash -c 'trap : INT; stty cols 60 rows 14; stty -g; {top}; echo code $?; stty -g'"
        ));
        let before = terminal.wait_for("\x1b[?1049h");
        let screen = terminal.wait_for("q quits");
        assert!(screen.contains("lantern bf16") && screen.contains("running 0"), "{screen:?}");
        terminal.type_in(keys);
        terminal.wait_for("\x1b[?25h\x1b[?1049l");
        terminal.wait_for("code 0\r\n");
        let after = terminal.wait_for("\r\n");
        assert_eq!(before.trim(), after.trim(), "{keys:?}: the terminal's settings");
        // The shell's own may be 130: the Ctrl-C may reach it as a signal, in the moment when `top` gives the terminal
        // back.
        assert!(terminal.code().is_some());
    }
}

#[test]
fn a_server_that_ends_gives_the_terminal_back_too() {
    let mut server = Server::start(&[]);
    let top = format!("{} top --url {}", binary().display(), url(&server));
    let mut terminal = Terminal::start(&format!("bash -c 'stty -g; {top}; echo code $?; stty -g'"));
    let before = terminal.wait_for("\x1b[?1049h");
    terminal.wait_for("q quits");
    tests::signal("TERM", server.pid());
    terminal.wait_for("\x1b[?25h\x1b[?1049l");
    terminal.wait_for("ended the feed");
    terminal.wait_for("code 1\r\n");
    let after = terminal.wait_for("\r\n");
    assert_eq!(before.trim(), after.trim());
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn whatever_cannot_be_watched_is_told_in_one_line() {
    let locked = Server::start(&["--api-key", "sk-a"]);
    let blind = Server::start(&["--no-ui"]);
    // One that answers everything with rubbish.
    let rubbish = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = rubbish.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for mut stream in rubbish.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nrubbish");
        }
    });
    let table: [(&[&str], &str); 9] = [
        (&["--once", "--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (&["--once", "--url", "127.0.0.1:1"], "127.0.0.1:1: Connection refused"),
        (&["--once", "--url", "ftp://127.0.0.1:1"], "does not begin with http://"),
        (&["--once", "--url", &url(&locked)], "--api-key"),
        (&["--once", "--url", &url(&locked), "--api-key", "sk-b"], "--api-key"),
        (&["--once", "--url", &url(&blind)], "not a twostroke server with a live view"),
        (&["--once", "--url", &format!("http://127.0.0.1:{port}")], "not a twostroke server"),
        (&["--url", &url(&blind)], "--once"),
        (&["--once", "--api-key", "a\nb"], "unprintable"),
    ];
    for (arguments, wanted) in table {
        let ran = run(twostroke(&["top"]).args(arguments));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(wanted) && ran.stdout.is_empty(), "{arguments:?}: {ran:?}");
    }
    let ran = run(&mut twostroke(&["top", "--once", "--url", &url(&locked), "--api-key", "sk-a"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
