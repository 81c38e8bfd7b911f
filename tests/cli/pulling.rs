//! Models that come from a hub and leave the disk: by requests to a server that allows it, and what is foretold of a download.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testing::Scratch;
use testing::hub::{Answer, COMMIT, FakeHub, path};
use tests::{Server, root, run, run_by, twostroke, wait};

/// A hub with a model of random weights as `org/tiny`, of which each thousandth takes so long.
fn hub(slow: Duration) -> FakeHub {
    let (hub, data) = (FakeHub::start(), root().join("crates/model/tests/data/llama2"));
    let files = ["config.json", "model.safetensors"];
    hub.list(&files);
    for file in files {
        let bytes = fs::read(data.join(file)).expect("it is committed");
        let etag = format!("\"{:064x}\"", bytes.len());
        // No content has that digest, so it is named otherwise.
        let etag = etag.replace("000000", "g");
        let answer = Answer::new(200, bytes).with("etag", etag).with("x-repo-commit", COMMIT);
        hub.answer(&format!("HEAD {}", path(file)), [answer.clone()]);
        hub.answer(&format!("GET {}", path(file)), [Answer { slow, ..answer }]);
    }
    hub
}

/// A command with the hub and its cache.
fn command(hub: &FakeHub, home: &Scratch, arguments: &[&str]) -> Command {
    let mut command = twostroke(arguments);
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", &**home).env("HF_HUB_OFFLINE", "");
    command
}

fn start(hub: &FakeHub, home: &Scratch, more: &[&str]) -> Server {
    let home = home.to_str().expect("the path is text");
    let variables = [("HF_ENDPOINT", &*hub.endpoint), ("HF_HOME", home), ("HF_HUB_OFFLINE", "")];
    Server::start_with(&[&["--allow-pull", "--kv-cache-memory-bytes", "4MiB"], more].concat(), &variables)
}

fn ask(server: &Server, method: &str, path: &str, body: &Value) -> (u16, String) {
    server.request(method, path, &[], &body.to_string())
}

/// The lines of a body that comes in pieces, without the lengths of those.
fn objects(body: &str) -> Vec<Value> {
    let lines = body.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn listed(server: &Server) -> bool {
    server.request("GET", "/v1/models", &[], "").1.contains("org/tiny")
}

#[test]
fn models_come_and_go_by_requests_where_that_is_allowed() {
    let (home, hub) = (Scratch::new("pulled"), hub(Duration::ZERO));
    let server = start(&hub, &home, &[]);
    assert!(!listed(&server));
    let (status, lines) = ask(&server, "POST", "/api/pull", &json!({"model": "org/tiny:latest"}));
    assert_eq!(status, 200, "{lines}");
    let lines = objects(&lines);
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    assert_eq!(lines.last(), Some(&json!({"status": "success"})), "{lines:?}");
    let is_whole = |line: &&Value| line["digest"].is_string() && line["total"] == line["completed"];
    assert_eq!(lines.iter().filter(is_whole).count(), 2, "{lines:?}");
    // It can be asked as soon as it is here, and not be removed as long as it is in memory.
    assert!(listed(&server));
    let question = json!({"model": "org/tiny", "prompt": [5, 6], "max_tokens": 1});
    assert_eq!(ask(&server, "POST", "/v1/completions", &question).0, 200);
    let delete = |name: &str| ask(&server, "DELETE", "/api/delete", &json!({"model": name}));
    let (status, said) = delete("org/tiny");
    assert_eq!((status, said.contains("org/tiny is in memory: keep_alive 0 unloads it.")), (409, true), "{said}");
    let unload = json!({"model": "org/tiny", "prompt": "", "keep_alive": 0});
    assert_eq!(ask(&server, "POST", "/api/generate", &unload).0, 200);
    wait("it is out of memory", || delete("org/tiny").0 == 200);
    assert!(!home.join("hub/models--org--tiny").exists() && !listed(&server));
    assert_eq!(delete("org/tiny").0, 404);
    let once = |name: &str| ask(&server, "POST", "/api/pull", &json!({"name": name, "stream": false}));
    assert_eq!(once("org/tiny"), (200, json!({"status": "success"}).to_string()));
    for (name, status, words) in [
        ("org/none", 404, "no such model on the hub"),
        ("llamo3.2", 404, "near it: llama3.2"),
        ("org/tiny:Q4_0", 400, "no GGUF model"),
        ("./tiny", 400, "short name"),
        ("/etc", 400, "short name"),
        ("../hub/models", 400, "short name"),
    ] {
        let (code, said) = once(name);
        assert_eq!((code, said.contains(words)), (status, true), "{name}: {said}");
        // Of a model on the disk any name means all of it, as for `rm`.
        assert!(name == "org/tiny:Q4_0" || [400, 404].contains(&delete(name).0), "{name}");
    }
    let (status, said) = ask(&server, "POST", "/api/pull", &json!({"model": "org/none"}));
    assert!(status == 200 && objects(&said).last().is_some_and(|last| last["error"].is_string()), "{said}");
    for body in [json!({}), json!({"model": 5}), json!({"model": "a", "insecure": true})] {
        assert_eq!(ask(&server, "POST", "/api/pull", &body).0, 400, "{body}");
    }
    // What no disk holds is refused before its first byte.
    let siblings = ["config.json", "model.safetensors"].map(|file| json!({"rfilename": file, "size": u64::MAX / 4}));
    let list = json!({"sha": COMMIT.replace('0', "1"), "siblings": siblings}).to_string();
    hub.answer("GET /api/models/org/tiny/revision/main", [Answer::new(200, list)]);
    let (status, said) = once("org/tiny");
    assert_eq!((status, said.contains("the disk of this server has ")), (507, true), "{said}");
}

#[test]
fn of_several_keys_those_with_the_word_change_what_is_there() {
    let (home, hub) = (Scratch::new("words"), hub(Duration::ZERO));
    let keys = home.join("keys");
    fs::write(&keys, "sk-operator models\nsk-user\n").expect("it can be written");
    let server = start(&hub, &home, &["--api-key-file", keys.to_str().expect("the path is text")]);
    let ask = |key: &str, method: &str, path: &str, body: Value| {
        let key = format!("authorization: Bearer {key}");
        server.request(method, path, &[&key], &body.to_string())
    };
    let pull = json!({"model": "org/tiny", "stream": false});
    let (status, said) = ask("sk-user", "POST", "/api/pull", pull.clone());
    assert_eq!((status, said.contains("the word `models`")), (403, true), "{said}");
    assert_eq!(ask("sk-operator", "POST", "/api/pull", pull).0, 200);
    let unload = json!({"model": "org/tiny", "prompt": "", "keep_alive": 0});
    let delete = json!({"model": "org/tiny"});
    for (method, path, body) in [("POST", "/api/generate", unload), ("DELETE", "/api/delete", delete)] {
        assert_eq!(ask("sk-user", method, path, body.clone()).0, 403, "{path}");
        assert_eq!(ask("sk-operator", method, path, body).0, 200, "{path}");
    }
}

#[test]
fn a_client_that_leaves_ends_its_download_and_the_next_goes_on() {
    let (home, hub) = (Scratch::new("left"), hub(Duration::from_millis(20)));
    let server = start(&hub, &home, &[]);
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let body = json!({"model": "org/tiny"}).to_string();
    let head = "POST /api/pull HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    write!(client, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
    let mut reader = BufReader::new(client.try_clone().expect("a second handle"));
    let mut line = String::new();
    while !line.contains("\"completed\"") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("it writes") > 0, "it ended");
    }
    let once = || ask(&server, "POST", "/api/pull", &json!({"model": "org/tiny", "stream": false}));
    let (status, said) = once();
    assert_eq!((status, said.contains("being downloaded already")), (409, true), "{said}");
    drop((reader, client));
    wait("the download has ended", || once().0 == 200);
    assert!(home.join("hub/models--org--tiny/refs/main").exists());
}

#[test]
fn a_download_says_what_it_would_do_here_and_what_does_not_fit_is_not_begun() {
    let (home, hub) = (Scratch::new("foretold"), FakeHub::start());
    let list = json!({"sha": COMMIT, "siblings": [{"rfilename": "Qwen3-1.7B-Q8_0.gguf", "size": 1_300_000_000_u64}]});
    hub.answer("GET /api/models/Qwen/Qwen3-1.7B-GGUF/revision/main", [Answer::new(200, list.to_string())]);
    let limited = |arguments: &[&str]| {
        let mut shell = Command::new("bash");
        shell.args(["-c", "ulimit -Sv $((1200 * 1024)) && exec \"$@\"", "bash"]);
        run(&mut run_by(shell, &command(&hub, &home, arguments)))
    };
    let list = "GET /api/models/Qwen/Qwen3-1.7B-GGUF/revision/main";
    for verb in [&["pull", "qwen3:1.7b"][..], &["run", "qwen3:1.7b", "hi"], &["serve", "qwen3:1.7b", "--port", "0"]] {
        let refused = limited(verb);
        assert_eq!(refused.code, Some(1), "{verb:?}: {refused:?}");
        for words in ["it needs about 1.33 GiB of ", "does not fit", "is qwen3:0.6b (0.64 GB)", "--force goes on"] {
            assert!(refused.stderr.contains(words), "{verb:?}, {words}: {refused:?}");
        }
        assert_eq!(hub.lines().last().unwrap(), list, "no file was asked for");
        let forced = limited(&[verb, &["--force"]].concat());
        assert!(!forced.stderr.contains("does not fit"), "{forced:?}");
        assert!(hub.lines().last().unwrap().starts_with("HEAD "), "{forced:?}");
    }
}

#[test]
fn the_list_says_which_models_run_here() {
    let (home, hub) = (Scratch::new("runs"), hub(Duration::ZERO));
    let cache = home.join("cache");
    let with = |arguments: &[&str]| run(command(&hub, &home, arguments).env("XDG_CACHE_HOME", &cache));
    assert_eq!(with(&["pull", "org/tiny"]).code, Some(0));
    fs::create_dir_all(home.join("hub/models--org--half/blobs")).expect("a directory");
    let told = with(&["list", "--json"]).json();
    let of = |name: &str| {
        let models = told["models"].as_array().expect("a list");
        models.iter().find(|model| model["id"] == name).expect(name)["runs_here"].clone()
    };
    assert_eq!((of("org/tiny")["fits"].clone(), of("org/half")["fits"].clone()), (json!(true), json!(false)), "{told}");
    assert!(of("org/half")["why"].is_string(), "{told}");
    // Once limits were measured there are speeds.
    let list = with(&["list"]);
    assert!(list.stdout.lines().next().unwrap().ends_with("RUNS HERE"), "{list:?}");
    assert!(list.stdout.contains("twostroke doctor") && list.stdout.contains("  no: incomplete"), "{list:?}");
    assert_eq!(with(&["doctor"]).code, Some(0));
    let list = with(&["list"]);
    // Where something else used the machine meanwhile, nothing is sure enough to be kept.
    let expected = if list.stdout.contains("twostroke doctor") { 0 } else { 2 };
    assert_eq!(list.stdout.matches(" tok/s").count(), expected, "{list:?}");
}
