//! `twostroke serve`: start, keys, signals. What it answers is the server crate's own matter.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use testing::Scratch;
use tests::{Server, run, run_by, signal, twostroke};

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
fn a_terminal_that_goes_drains_unless_that_is_to_be_ignored() {
    let mut server = Server::start(&[]);
    signal("HUP", server.pid());
    assert_eq!(server.wait(), Some(0), "drained, like SIGTERM");
    // As under nohup.
    let serve = twostroke(&["serve", "--port", "0", "--json"]);
    let mut deaf = Command::new("bash");
    deaf.args(["-c", "trap '' HUP; exec \"$@\"", "bash"]);
    let mut child = run_by(deaf, &serve).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    let mut server = Server::adopt(child, &line);
    signal("HUP", server.pid());
    assert_eq!(server.request("GET", "/health", &[], "").0, 200);
    signal("HUP", server.pid());
    let question = r#"{"prompt":"The fox","max_tokens":4}"#;
    assert_eq!(server.request("POST", "/v1/completions", &[], question).0, 200);
    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_link_holds_the_engine_and_the_start_alone_tells_it() {
    let mut child = twostroke(&["serve", "--port", "0", "--allow-pause"])
        .env("TWOSTROKE_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let lines: Vec<String> = stdout.lines().take(8).map(|line| line.expect("a line")).collect();
    let page = lines[7].strip_prefix("page").map(str::trim).expect("the eighth line");
    let (address, token) = page.split_once("/#/step?hold=").expect("the token is in the fragment");
    let token = token.to_owned();
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{page}");
    let port: u16 = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let server = Server::adopt(child, &format!("{{\"port\":{port}}}"));
    assert_eq!(server.request("POST", "/live/pause", &[], "").0, 403);
    let (header, path) = (format!("X-Hold-Token: {token}"), format!("/live/pause?hold={token}"));
    assert_eq!(server.request("POST", &path, &[], "").0, 400, "an address is no place for a secret");
    assert_eq!(server.request("POST", "/live/pause", &[&header], "").0, 200);
    assert_eq!(server.request("POST", "/live/resume", &[&header], "").0, 200);
    signal("TERM", server.pid());
    let (_, stderr) = server.output();
    assert!(!stderr.contains(&token), "{stderr}");
    assert!(stderr.contains("draining"), "the log was there: {stderr}");
}

#[test]
fn impossible_names_and_origins_are_one_line() {
    for (flag, value) in [("--allowed-host", "http://llm"), ("--allowed-host", "llm:80"), ("--allowed-origin", "llm")] {
        let ran = run(&mut twostroke(&["serve", "--port", "0", flag, value]));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
        assert!(ran.stderr.contains(flag) && ran.stderr.contains(value), "{ran:?}");
    }
    let server = Server::start(&["--allowed-host", "llm"]);
    let port = server.port();
    for (host, status) in [("llm", "200"), ("evil.example", "403")] {
        let ask = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /health HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n' >&3; head -1 <&3"
        );
        let ran = run(Command::new("bash").args(["-c", &ask]));
        assert!(ran.stdout.contains(status), "{host}: {ran:?}");
    }
}

#[test]
fn seven_lines_tell_what_was_started() {
    let mut command = twostroke(&["serve", "--port", "0", "--served-model-name", "fable"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let stdout = child.stdout.take().expect("standard output is piped");
    let lines: Vec<String> = BufReader::new(stdout).lines().take(7).map(|line| line.expect("a line")).collect();
    signal("INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let names: Vec<&str> = lines.iter().map(|line| line[..10].trim()).collect();
    assert_eq!(names, ["model", "precision", "memory", "kv blocks", "limits", "targets", "serving"], "{lines:?}");
    assert!(lines[6].contains("http://127.0.0.1:"), "{lines:?}");
}

#[test]
fn targets_are_given_comfortable_or_off() {
    // (flags, target to first token and between tokens in milliseconds, whether steps have a fixed size)
    let comfortable = |value: &Value| value.as_f64().is_some_and(|ms| ms >= 50.0);
    let given = |ms: f64| move |value: &Value| value.as_f64() == Some(ms);
    type Check<'a> = &'a dyn Fn(&Value) -> bool;
    let table: [(&[&str], Check<'_>, Check<'_>, bool); 4] = [
        (&[], &comfortable, &comfortable, false),
        (&["--ttft-slo", "1.5s", "--tpot-slo", "off"], &given(1500.0), &Value::is_null, false),
        (&["--max-num-batched-tokens", "128"], &Value::is_null, &Value::is_null, true),
        (&["--max-prefill-chunk", "64", "--tpot-slo", "80ms", "--ttft-slo", "auto"], &comfortable, &given(80.0), true),
    ];
    for (flags, ttft, tpot, fixed) in table {
        let server = Server::start(flags);
        let start = &server.start;
        assert!(ttft(&start["ttft_slo_ms"]) && tpot(&start["tpot_slo_ms"]), "{flags:?}: {start}");
        assert_eq!(start["static_steps"], fixed, "{flags:?}");
        assert!(start["calibration"]["seconds"].as_f64().is_some_and(|seconds| seconds < 30.0), "{start}");
    }
}

#[test]
fn a_key_from_the_environment_is_asked_for() {
    let mut command = twostroke(&["serve", "--port", "0", "--json"]);
    command.env("TWOSTROKE_API_KEY", "first, second\n");
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

/// Starts a server that needs no port, with its start as JSON.
fn start(arguments: &[&str]) -> Server {
    let arguments: Vec<&str> = ["serve", "--json"].iter().chain(arguments).copied().collect();
    let mut child = twostroke(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    Server::adopt(child, &line)
}

#[test]
fn it_listens_at_a_unix_socket() {
    use std::io::{Read, Write};
    let directory = Scratch::new("uds");
    let path = directory.join("socket");
    let name = path.to_str().expect("a name");
    // What a server that was killed has left is taken over.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let mut server = start(&["--uds", name]);
    assert_eq!((&server.start["url"], &server.start["port"]), (&format!("unix:{name}/v1").into(), &Value::Null));
    let ask = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    assert!(ask().starts_with("HTTP/1.1 200"), "{}", ask());
    // One that is listened at is not, and neither is a file.
    let second = run(&mut twostroke(&["serve", "--uds", name]));
    assert!(
        second.code == Some(1) && second.stderr.contains("--uds") && second.stderr.contains("in use"),
        "{second:?}"
    );
    assert!(ask().starts_with("HTTP/1.1 200"));
    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
    assert!(!path.exists(), "it is gone with the server");
    std::fs::write(&path, "a letter").expect("it can be written");
    assert_eq!(run(&mut twostroke(&["serve", "--uds", name])).code, Some(1));
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "a letter");
}

#[test]
fn it_speaks_tls() {
    let directory = Scratch::new("tls");
    let pem = tests::root().join("crates/bench/src/load/tests/localhost.pem");
    let pem = pem.to_str().expect("a name");
    let server = start(&["--port", "0", "--ssl-certfile", pem, "--ssl-keyfile", pem]);
    let url = server.start["url"].as_str().expect("a URL").trim_end_matches("/v1").to_owned();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let load = ["bench-serve", "--base-url", &url, "--num-prompts", "4", "--random-output-len", "4", "--json"];
    let ran = run(twostroke(&load).arg("--insecure"));
    assert_eq!(ran.json()["completed"], 4, "{ran:?}");
    let ran = run(&mut twostroke(&load));
    assert!(ran.code == Some(2) || ran.stderr.contains("not trusted"), "{ran:?}");
    // Who does not speak it hears nothing, and no other client suffers.
    let plain =
        run(&mut twostroke(&["bench-serve", "--base-url", &url.replace("https", "http"), "--num-prompts", "1"]));
    assert_ne!(plain.code, Some(0), "{plain:?}");
    let ran = run(twostroke(&load).arg("--insecure"));
    assert_eq!(ran.json()["completed"], 4, "{ran:?}");
    drop(server);
    let empty = directory.join("empty.pem");
    std::fs::write(&empty, "").expect("it can be written");
    let empty = empty.to_str().expect("a name");
    for (certificate, key, part) in [
        (empty, pem, "--ssl-certfile: "),
        (pem, empty, "--ssl-keyfile: "),
        ("/no/such/file", pem, "No such file"),
        ("/dev/zero", pem, "--ssl-certfile: "),
    ] {
        let ran = run(&mut twostroke(&["serve", "--port", "0", "--ssl-certfile", certificate, "--ssl-keyfile", key]));
        assert!(ran.code == Some(2) && ran.stderr.contains(part), "{certificate} {key}: {ran:?}");
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{ran:?}");
    }
}

#[test]
fn a_file_says_what_the_command_line_does_not() {
    let directory = Scratch::new("config");
    let file = directory.join("site.yaml");
    let name = file.to_str().expect("a name");
    std::fs::write(directory.join("generation_config.json"), r#"{"temperature": 0.25, "top_k": 3}"#).expect("written");
    let template = directory.join("template.jinja");
    std::fs::write(&template, "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ tone }}").expect("written");
    let text = format!(
        "port: 1\nserved-model-name: [fox, reynard]\nmax_model_len: 512\nroot-path: /llm/\n\
         generation-config: {}\noverride-generation-config: {{top_k: 5}}\nchat-template: {}\n\
         default-chat-template-kwargs: {{tone: soft}}\n",
        directory.display(),
        template.display()
    );
    std::fs::write(&file, text).expect("written");
    let server = start(&["--config", name, "--port", "0", "--max-model-len", "600"]);
    assert_ne!(server.port(), 1);
    let get = |path: &str| -> Value {
        let (status, body) = server.request("GET", path, &[], "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    };
    // With the prefix of a proxy, or without.
    for prefix in ["", "/llm"] {
        let models = get(&format!("{prefix}/v1/models"));
        assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&"fox".into(), &"reynard".into()));
        assert_eq!(models["data"][0]["max_model_len"], 600);
    }
    assert_eq!(server.request("GET", "/other/v1/models", &[], "").0, 404);
    assert_eq!(server.request("GET", "/llmv1/models", &[], "").0, 404);
    let settings = get("/props")["default_generation_settings"]["params"].clone();
    let number = |name: &str| settings[name].as_f64();
    assert_eq!((number("temperature"), number("top_k")), (Some(0.25), Some(5.0)), "{settings}");
    let (_, body) = server.request("POST", "/apply-template", &[], r#"{"messages":[{"role":"user","content":"hi"}]}"#);
    assert!(body.contains("<hi>soft"), "{body}");
    let louder = r#"{"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"tone":"loud"}}"#;
    let (_, body) = server.request("POST", "/apply-template", &[], louder);
    assert!(body.contains("<hi>loud"), "{body}");
    drop(server);
    let empty = directory.join("empty.jinja");
    std::fs::write(&empty, "").expect("written");
    let named = |problem: &str| format!("--config: {name}: {problem}");
    for (text, part) in [
        ("no-such-flag: 1", named("unexpected argument '--no-such-flag'").as_str()),
        ("max-num-seqs: many", &named("invalid value 'many' for '--max-num-seqs")),
        ("swap-space: 4", &named("unexpected argument '--swap-space'")),
        ("help: true", &named("--help is for a command line")),
        ("- a", "one mapping"),
        ("a: [", "--config"),
        ("override-generation-config: {beam: 3}", "beam"),
        ("override-generation-config: {temperature: hot}", "temperature"),
        ("chat-template: no-such-file.jinja", "neither a template"),
        ("chat-template: '{% for %}'", "--chat-template: chat_template line 1"),
        (&format!("chat-template: {}", empty.display()), "the file is empty"),
        ("generation-config: /no/such", "/no/such/generation_config.json"),
        ("root-path: llm", "--root-path"),
        ("revision: main", "--revision"),
    ] {
        std::fs::write(&file, text).expect("written");
        let ran = run(&mut twostroke(&["serve", "--port", "0", "--config", name]));
        assert!(ran.code == Some(2) && ran.stderr.contains(part), "{text}: {ran:?}");
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{text}: {ran:?}");
    }
}
