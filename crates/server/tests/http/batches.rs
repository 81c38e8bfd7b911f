//! Files and batches: what is kept, whose it is, and that each line is answered once, over restarts.

use std::path::Path;

use serde_json::{Value, json};
use server::ServerOptions;
use testing::Scratch;

use crate::client::Answer;
use crate::host::{Host, local_server, small_engine, wait};

fn host(place: &Path, keys: &[&str]) -> Host {
    let options = ServerOptions {
        batch_directory: Some(place.to_owned()),
        api_keys: keys.iter().map(|&key| key.into()).collect(),
        ..local_server()
    };
    wait_until_free(place);
    Host::with(small_engine(), options)
}

/// A server that has ended lets go of its files when its last thread has.
fn wait_until_free(place: &Path) {
    let is_free = || std::fs::File::open(place.join("lock")).map_or(true, |lock| lock.try_lock().is_ok());
    wait("the files to be free", is_free);
}

fn ask(host: &Host, method: &str, path: &str, key: Option<&str>, kind: &str, body: &[u8]) -> Answer {
    let bearer = key.map(|key| format!("Bearer {key}"));
    let mut headers = vec![("connection", "close")];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    headers.extend((!kind.is_empty()).then_some(("content-type", kind)));
    host.send(method, path, &headers, body)
}

fn get(host: &Host, path: &str, key: Option<&str>) -> Answer {
    ask(host, "GET", path, key, "", b"")
}

fn post(host: &Host, path: &str, key: Option<&str>, body: &Value) -> Answer {
    ask(host, "POST", path, key, "application/json", body.to_string().as_bytes())
}

/// A form with these fields; `file` has a name.
fn send(host: &Host, key: Option<&str>, fields: &[(&str, &str)]) -> Answer {
    let mut form = String::new();
    for (name, value) in fields {
        let file = if *name == "file" { "; filename=\"in.jsonl\"" } else { "" };
        form.push_str(&format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n"));
    }
    form.push_str("--edge--\r\n");
    ask(host, "POST", "/v1/files", key, "multipart/form-data; boundary=edge", form.as_bytes())
}

fn lines(count: usize, max_tokens: i64) -> String {
    let line = |at: usize| {
        let body = json!({"prompt": format!("Once {at}"), "max_tokens": max_tokens, "temperature": 0});
        format!(
            "{}\n",
            json!({"custom_id": format!("line-{at}"), "method": "POST", "url": "/v1/completions", "body": body})
        )
    };
    (0..count).map(line).collect()
}

fn begin(host: &Host, key: Option<&str>, lines: &str) -> String {
    let file = send(host, key, &[("purpose", "batch"), ("file", lines)]).json();
    let asked = json!({
        "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"},
    });
    let batch = post(host, "/v1/batches", key, &asked).json();
    assert_eq!((&batch["object"], &batch["status"]), (&json!("batch"), &json!("validating")), "{batch}");
    batch["id"].as_str().unwrap().to_owned()
}

fn ended(host: &Host, key: Option<&str>, id: &str) -> Value {
    let path = format!("/v1/batches/{id}");
    let over = ["completed", "failed", "cancelled"];
    wait("the batch to end", || over.iter().any(|over| get(host, &path, key).json()["status"] == *over));
    get(host, &path, key).json()
}

fn content(host: &Host, key: Option<&str>, id: &Value) -> Vec<Value> {
    let answer = get(host, &format!("/v1/files/{}/content", id.as_str().expect("a name")), key);
    assert_eq!(answer.status, 200);
    answer.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_file_of_requests_becomes_files_of_answers() {
    let place = Scratch::new("batches-whole");
    let host = host(&place, &[]);
    let bad =
        "{\"custom_id\": \"bad\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\", \"max_tokens\": -7}}\n";
    let id = begin(&host, None, &format!("{}{bad}", lines(40, 12)));
    let batch = ended(&host, None, &id);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 41, "completed": 40, "failed": 1}));
    assert_eq!((&batch["metadata"], &batch["errors"]), (&json!({"a": "b"}), &Value::Null));
    let answers = content(&host, None, &batch["output_file_id"]);
    assert_eq!(answers.len(), 40);
    for answer in &answers {
        let at = answer["custom_id"].as_str().unwrap().strip_prefix("line-").unwrap();
        let body = json!({"prompt": format!("Once {at}"), "max_tokens": 12, "temperature": 0});
        let alone = host.ask("/v1/completions", &body);
        assert_eq!(answer["response"]["body"]["choices"][0]["text"], alone["choices"][0]["text"], "line {at}");
    }
    let errors = content(&host, None, &batch["error_file_id"]);
    assert_eq!((errors.len(), &errors[0]["response"]["status_code"]), (1, &json!(400)));

    // Lists, a page at a time, and what is deleted is gone.
    let files = get(&host, "/v1/files", None).json();
    assert_eq!(files["data"].as_array().unwrap().len(), 3);
    let sent = get(&host, "/v1/files?purpose=batch", None).json()["data"][0].clone();
    assert_eq!((&sent["filename"], &sent["object"]), (&json!("in.jsonl"), &json!("file")));
    let first = get(&host, "/v1/files?limit=1&order=asc", None).json();
    assert_eq!(first["has_more"], true);
    let after = format!("/v1/files?after={}&order=asc", first["last_id"].as_str().unwrap());
    assert_eq!(get(&host, &after, None).json()["data"].as_array().unwrap().len(), 2);
    assert_eq!(get(&host, "/v1/batches", None).json()["data"][0]["id"], id);
    let path = format!("/v1/files/{}", sent["id"].as_str().unwrap());
    assert_eq!(ask(&host, "DELETE", &path, None, "", b"").json()["deleted"], true);
    assert_eq!(get(&host, &path, None).status, 404);
    let gone = json!({"input_file_id": sent["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
    assert_eq!(post(&host, "/v1/batches", None, &gone).json()["error"]["param"], "input_file_id");
    host.quiet();
}

#[test]
fn a_batch_goes_on_where_another_server_left_it() {
    let place = Scratch::new("batches-again");
    let id = {
        let host = host(&place, &[]);
        let id = begin(&host, None, &lines(400, 40));
        let path = format!("/v1/batches/{id}");
        wait("some answers", || get(&host, &path, None).json()["request_counts"]["completed"].as_u64() > Some(20));
        id
    };
    let before = std::fs::read_to_string(place.join("batches").join(format!("{id}.answers"))).expect("answers");
    assert!(before.lines().count() < 400, "it was not over");
    let host = host(&place, &[]);
    let batch = ended(&host, None, &id);
    assert_eq!(batch["request_counts"], json!({"total": 400, "completed": 400, "failed": 0}), "{batch}");
    let answers = content(&host, None, &batch["output_file_id"]);
    let mut names: Vec<&str> = answers.iter().map(|answer| answer["custom_id"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), answers.len()), (400, 400), "each once");
    let whole: Vec<Value> = before.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(!whole.is_empty() && answers[..whole.len()] == whole[..], "what was answered stays");
    host.quiet();
}

/// A kill cuts the last answer anywhere, also within a character; and what was answered stays when the input is lost.
#[test]
fn what_was_answered_before_a_kill_is_kept() {
    for harm in ["cut while it was written down", "input gone"] {
        let place = Scratch::new("batches-killed");
        let id = {
            let host = host(&place, &[]);
            let id = begin(&host, None, &lines(400, 40));
            let path = format!("/v1/batches/{id}");
            wait("some answers", || get(&host, &path, None).json()["request_counts"]["completed"].as_u64() > Some(5));
            id
        };
        wait_until_free(&place);
        let [note, answers] = ["json", "answers"].map(|end| place.join("batches").join(format!("{id}.{end}")));
        let mut before = std::fs::read(&answers).expect("answers");
        before.truncate(before.iter().rposition(|&byte| byte == b'\n').expect("a line") + 1);
        let count = before.split(|&byte| byte == b'\n').count() - 1;
        let mut batch: Value = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
        let status = if harm == "input gone" {
            std::fs::remove_file(place.join("files").join(batch["input_file_id"].as_str().unwrap())).unwrap();
            "failed"
        } else {
            batch["status"] = "finalizing".into();
            std::fs::write(&note, batch.to_string()).unwrap();
            before.extend(b"{\"custom_id\":\"\xe2\x82");
            "completed"
        };
        std::fs::write(&answers, before).unwrap();
        let host = host(&place, &[]);
        let batch = ended(&host, None, &id);
        assert_eq!(batch["status"], status, "{harm}: {batch}");
        assert_eq!(content(&host, None, &batch["output_file_id"]).len(), count, "{harm}");
        host.quiet();
    }
}

#[test]
fn a_batch_that_is_cancelled_keeps_its_answers() {
    let place = Scratch::new("batches-cancelled");
    let host = host(&place, &[]);
    let id = begin(&host, None, &lines(400, 60));
    let path = format!("/v1/batches/{id}");
    wait("some answers", || get(&host, &path, None).json()["request_counts"]["completed"].as_u64() > Some(5));
    let file = get(&host, &path, None).json()["input_file_id"].as_str().unwrap().to_owned();
    let held = ask(&host, "DELETE", &format!("/v1/files/{file}"), None, "", b"");
    assert_eq!(held.status, 400, "{}", held.text());
    let told = post(&host, &format!("{path}/cancel"), None, &json!({})).json();
    assert_eq!(told["status"], "cancelling");
    let batch = ended(&host, None, &id);
    assert_eq!(batch["status"], "cancelled", "{batch}");
    assert!(!content(&host, None, &batch["output_file_id"]).is_empty());
    assert_eq!(post(&host, &format!("{path}/cancel"), None, &json!({})).status, 400, "it is over");
    host.quiet();
}

#[test]
fn what_is_another_keys_is_unknown() {
    let place = Scratch::new("batches-keys");
    let host = host(&place, &["one", "two"]);
    let id = begin(&host, Some("one"), &lines(3, 4));
    let batch = ended(&host, Some("one"), &id);
    let (input, output) = (batch["input_file_id"].as_str().unwrap(), batch["output_file_id"].as_str().unwrap());
    for path in [
        format!("/v1/batches/{id}"),
        format!("/v1/files/{input}"),
        format!("/v1/files/{output}"),
        format!("/v1/files/{output}/content"),
    ] {
        assert_eq!(get(&host, &path, Some("one")).status, 200, "{path}");
        assert_eq!(get(&host, &path, Some("two")).status, 404, "{path}");
        assert_eq!(get(&host, &path, None).status, 401, "{path}");
    }
    assert_eq!(get(&host, "/v1/files", Some("two")).json()["data"], json!([]));
    assert_eq!(get(&host, "/v1/batches", Some("two")).json()["data"], json!([]));
    assert_eq!(ask(&host, "DELETE", &format!("/v1/files/{input}"), Some("two"), "", b"").status, 404);
    assert_eq!(post(&host, &format!("/v1/batches/{id}/cancel"), Some("two"), &json!({})).status, 404);
    let others = json!({"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h"});
    assert_eq!(post(&host, "/v1/batches", Some("two"), &others).status, 404);
    for path in ["/v1/files/../lock/content", "/v1/files/..%2Flock/content", "/v1/files/..%2F..%2Fetc%2Fpasswd"] {
        assert_eq!(get(&host, path, Some("one")).status, 404, "{path}");
    }
    host.quiet();
}

#[test]
fn what_is_wrong_is_named() {
    let place = Scratch::new("batches-wrong");
    let host = host(&place, &[]);
    for (fields, status, param) in [
        (vec![("file", "x")], 400, json!("purpose")),
        (vec![("purpose", "batch")], 400, json!("file")),
        (vec![("purpose", "fine-tune"), ("file", "x")], 400, json!("purpose")),
        (vec![("purpose", "batch"), ("file", "x"), ("more", "y")], 400, json!("more")),
        (vec![("purpose", "batch"), ("file", "x"), ("file", "y")], 400, json!("file")),
    ] {
        let answer = send(&host, None, &fields);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (status, &param), "{fields:?}");
    }
    assert_eq!(post(&host, "/v1/files", None, &json!({})).status, 415);
    let cut = b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nabc";
    assert_eq!(ask(&host, "POST", "/v1/files", None, "multipart/form-data; boundary=edge", cut).status, 400);
    assert_eq!(get(&host, "/v1/files", None).json()["data"], json!([]), "nothing of these was kept");
    assert_eq!(std::fs::read_dir(place.join("files")).unwrap().count(), 0);
    let file = send(&host, None, &[("purpose", "batch"), ("file", "x")]).json()["id"].clone();
    for (body, param) in [
        (json!({"endpoint": "/v1/completions"}), "input_file_id"),
        (json!({"input_file_id": file}), "endpoint"),
        (json!({"input_file_id": file, "endpoint": "/v1/audio"}), "endpoint"),
        (json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "1h"}), "completion_window"),
        (json!({"input_file_id": file, "endpoint": "/v1/completions", "more": 1}), "more"),
    ] {
        let answer = post(&host, "/v1/batches", None, &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    // What is wrong with a line fails the batch, with its number.
    let other = "{\"custom_id\": \"a\", \"url\": \"/v1/embeddings\", \"body\": {\"input\": \"x\"}}\n";
    for (text, line) in [("x\n", json!(1)), ("\n", Value::Null), (&format!("{}{other}", lines(1, 2)), json!(2))] {
        let batch = ended(&host, None, &begin(&host, None, text));
        assert_eq!((&batch["status"], &batch["errors"]["data"][0]["line"]), (&json!("failed"), &line), "{batch}");
    }
    host.quiet();
    drop(host);
    let without = Host::start();
    assert_eq!(get(&without, "/v1/files", None).status, 403);
    assert!(get(&without, "/v1/batches", None).text().contains("--batch-dir"));
    without.quiet();
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let place = Scratch::new("batches-two");
    let first = host(&place, &[]);
    let options = ServerOptions { batch_directory: Some(place.to_path_buf()), ..local_server() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let second = runtime.block_on(server::Server::bind(first.engine.clone(), options));
    let error = second.err().expect("it is refused").to_string();
    assert!(error.contains("--batch-dir") && error.contains("another server has its files here"), "{error}");
    first.quiet();
}

/// Every file that was used once: its owner alone may read it.
#[test]
fn what_is_kept_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("batches-modes");
    let place = scratch.join("deep/er");
    let host = host(&place, &[]);
    ended(&host, None, &begin(&host, None, &format!("{}{{", lines(3, 4))));
    let id = begin(&host, None, &lines(3, 4));
    ended(&host, None, &id);
    let mut open = vec![place.clone(), place.join("..")];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{}", path.display());
        seen += 1;
        if meta.is_dir() && path.starts_with(&place) && !path.ends_with("..") {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 8, "{seen}");
    host.quiet();
}

#[test]
fn what_stops_one_batch_stops_no_other() {
    let place = Scratch::new("batches-stops");
    let host = host(&place, &["one", "two"]);
    let [first, second] = [Some("one"), Some("two")].map(|key| begin(&host, key, &lines(300, 40)));
    let input = get(&host, &format!("/v1/batches/{first}"), Some("one")).json()["input_file_id"].clone();
    // While they wait for the first: deleted beneath the server, a directory at its place, cut in the middle of a line.
    let harmed = ["gone", "directory", "cut"].map(|harm| {
        let bad = begin(&host, Some("one"), &lines(2, 2));
        let lost = get(&host, &format!("/v1/batches/{bad}"), Some("one")).json()["input_file_id"].clone();
        assert_ne!(input, lost);
        let path = place.join("files").join(lost.as_str().unwrap());
        let whole = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        match harm {
            "directory" => std::fs::create_dir(&path).unwrap(),
            "cut" => std::fs::write(&path, &whole[..whole.len() / 3]).unwrap(),
            _ => {}
        }
        (harm, bad)
    });
    let good = begin(&host, Some("one"), &lines(1, 2));
    assert_eq!(ended(&host, Some("two"), &second)["status"], "completed");
    assert_eq!(ended(&host, Some("one"), &first)["status"], "completed");
    for (harm, bad) in harmed {
        let failed = ended(&host, Some("one"), &bad);
        assert_eq!(failed["status"], "failed", "{harm}: {failed}");
        let error = &failed["errors"]["data"][0];
        assert!(error["message"].is_string(), "{harm}: {failed}");
        assert_eq!(error["code"] == "invalid_line", error["line"].is_u64(), "{harm}: {failed}");
    }
    assert_eq!(ended(&host, Some("one"), &good)["status"], "completed");
    host.quiet();
}

/// Two lines of one key end while thousands of another's are there.
#[test]
fn a_key_does_not_wait_for_anothers_batches() {
    let place = Scratch::new("batches-turns");
    let host = host(&place, &["one", "two"]);
    let large: Vec<String> = (0..2).map(|_| begin(&host, Some("one"), &lines(4000, 40))).collect();
    let path = format!("/v1/batches/{}", large[0]);
    wait("the large one to begin", || get(&host, &path, Some("one")).json()["status"] == "in_progress");
    let small = begin(&host, Some("two"), &lines(2, 2));
    assert_eq!(ended(&host, Some("two"), &small)["status"], "completed");
    for id in &large {
        let batch = get(&host, &format!("/v1/batches/{id}"), Some("one")).json();
        assert_ne!(batch["status"], "completed", "{batch}");
        post(&host, &format!("/v1/batches/{id}/cancel"), Some("one"), &json!({}));
    }
    for id in &large {
        assert_eq!(ended(&host, Some("one"), id)["status"], "cancelled");
    }
    host.quiet();
}

/// The largest that is taken is read after a restart, and one more is refused.
#[test]
fn what_is_accepted_is_read_back() {
    let place = Scratch::new("batches-limits");
    let labels = |bytes: usize| json!({"a": "\u{1}".repeat(bytes / 6 - 2)});
    let asked = |file: &Value, metadata: &Value| json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h", "metadata": metadata});
    let (id, name) = {
        let host = host(&place, &[]);
        let file = send(&host, None, &[("purpose", "batch"), ("file", &lines(1, 2))]).json()["id"].clone();
        let refused = post(&host, "/v1/batches", None, &asked(&file, &labels(65 << 10)));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("metadata")));
        let batch = post(&host, "/v1/batches", None, &asked(&file, &labels(64 << 10))).json();
        let id = batch["id"].as_str().expect("it is made").to_owned();
        ended(&host, None, &id);
        let long = format!("{{\"{}\": 1}}\n", "\u{fc}".repeat(1 << 20));
        let name = begin(&host, None, &long);
        assert_eq!(ended(&host, None, &name)["status"], "failed");
        (id, name)
    };
    let host = host(&place, &[]);
    assert_eq!(get(&host, &format!("/v1/batches/{id}"), None).json()["metadata"], labels(64 << 10));
    assert_eq!(get(&host, &format!("/v1/batches/{name}"), None).json()["status"], "failed");
    host.quiet();
}

/// Lines that are written otherwise than most, and whether they are requests all the same.
#[test]
fn a_line_is_read_as_a_body_is() {
    let place = Scratch::new("batches-lines");
    let host = host(&place, &[]);
    let body = r#"{"input": "x\ud83d", "max_output_tokens": 1}"#;
    let line =
        |body: &str| format!(r#"{{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {body}}}"#);
    for (lines, problem) in [
        (line(body), None),
        (format!("\u{feff}{}\r\n", line(body)), None),
        (format!("\n\n{}\n\n", line(body)), None),
        (line(body).replace("\"a\"", r#""a\udc00""#), None),
        (format!("{}\n\u{feff}{}", line(body), line(body).replace("\"a\"", "\"b\"")), Some("column 1")),
        (line(r#"{"input": "x", "background": true}"#), Some("'background'")),
        (line(r#"{"input": "x", "stream": true}"#), Some("'stream'")),
    ] {
        let file = send(&host, None, &[("purpose", "batch"), ("file", &lines)]).json();
        let asked = json!({"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"});
        let batch = ended(&host, None, post(&host, "/v1/batches", None, &asked).json()["id"].as_str().unwrap());
        let told = batch["errors"]["data"][0]["message"].as_str();
        assert_eq!(told.is_some(), problem.is_some(), "{lines}: {batch}");
        assert!(told.is_none_or(|told| told.contains(problem.unwrap())), "{lines}: {batch}");
        assert!(problem.is_some() || batch["request_counts"]["completed"] == 1, "{lines}: {batch}");
    }
    let long = send(&host, None, &[("purpose", &"p".repeat(5000)), ("file", "x")]);
    assert_eq!((long.status, &long.json()["error"]["param"]), (400, &json!("purpose")));
    for query in ["?after=nothing", "?limit=1&limit=2"] {
        for path in ["/v1/files", "/v1/batches"] {
            assert_eq!(get(&host, &format!("{path}{query}"), None).status, 400, "{path}{query}");
        }
    }
    // What was changed on the disk is not returned as what was sent.
    let longer = "x".repeat(9999);
    for (how, contents) in [("gone", None), ("shorter", Some("x")), ("longer", Some(longer.as_str()))] {
        let file = send(&host, None, &[("purpose", "batch"), ("file", "one and two")]).json();
        let id = file["id"].as_str().unwrap();
        let path = place.join("files").join(id);
        match contents {
            None => std::fs::remove_file(path).unwrap(),
            Some(contents) => std::fs::write(path, contents).unwrap(),
        }
        let answer = get(&host, &format!("/v1/files/{id}/content"), None);
        assert_eq!(answer.status, 404, "{how}");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("on its disk"), "{how}");
    }
    host.quiet();
}
