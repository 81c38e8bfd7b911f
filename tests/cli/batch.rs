//! `twostroke batch`: each line is answered once, whatever stops it, and what is no batch is named.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use testing::Scratch;
use tests::{run, signal, twostroke};

/// Files of one test.
struct Files {
    input: PathBuf,
    output: PathBuf,
    _place: Scratch,
}

impl Files {
    fn new(name: &str, lines: &[Value]) -> Files {
        let place = Scratch::new(name);
        let files = Files { input: place.join("in.jsonl"), output: place.join("out.jsonl"), _place: place };
        fs::write(&files.input, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("it fits");
        files
    }

    /// One thread: several tests run at once, and threads that wait for each other would take turns.
    fn arguments(&self) -> [String; 7] {
        let (input, output) = (self.input.display().to_string(), self.output.display().to_string());
        ["batch", "-t", "1", "-i", &input, "-o", &output].map(str::to_owned)
    }

    fn run(&self, more: &[&str]) -> tests::Ran {
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        run(&mut twostroke(&arguments))
    }

    /// Status and body of each answer; each has one.
    fn answers(&self) -> HashMap<String, (u64, Value)> {
        let mut answers = HashMap::new();
        for line in fs::read_to_string(&self.output).expect("there are answers").lines() {
            let mut line: Value = serde_json::from_str(line).expect("each line is whole");
            let response = line["response"].take();
            let status = response["status_code"].as_u64().expect("a status");
            let id = line["custom_id"].as_str().expect("a name").to_owned();
            assert!(answers.insert(id, (status, response["body"].clone())).is_none(), "twice: {line}");
        }
        answers
    }
}

fn ask(at: usize, max_tokens: i64) -> Value {
    let text = format!("What is {at} + {at}?");
    let body = json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens});
    json!({"custom_id": format!("ask-{at}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
}

fn said(answer: &(u64, Value)) -> String {
    answer.1["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn each_line_has_an_answer_and_refusals_say_why() {
    let mut lines: Vec<Value> = (0..40).map(|at| ask(at, 60)).collect();
    lines.push(ask(100, -5));
    lines.push(json!({"custom_id": "vector", "url": "/v1/embeddings", "body": {"input": "a fox"}}));
    lines.push(json!({"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 5}}));
    let files = Files::new("each", &lines);
    let ran = files.run(&["--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("1 of 43 requests were refused"), "{ran:?}");
    let sums = ran.json();
    assert_eq!((&sums["total"], &sums["completed"], &sums["failed"]), (&json!(43), &json!(42), &json!(1)));
    assert!(sums["completion_tokens"].as_u64() > Some(100), "{sums}");
    let answers = files.answers();
    assert_eq!(answers.len(), 43);
    assert_eq!((answers["ask-100"].0, &answers["ask-100"].1["error"]["param"]), (400, &json!("max_tokens")));
    assert!(answers["vector"].1["data"][0]["embedding"].is_array() && answers["text"].1["choices"].is_array());
    assert!(said(&answers["ask-21"]).contains("42"), "{:?}", answers["ask-21"]);

    // A line that was cut off is asked again, and no other.
    let whole = fs::read_to_string(&files.output).unwrap();
    let kept: usize = whole.split_inclusive('\n').take(30).map(str::len).sum();
    fs::write(&files.output, &whole[..kept + 50]).unwrap();
    let ran = files.run(&[]);
    assert!(ran.stderr.contains("30 of 43 requests are answered already"), "{ran:?}");
    let again = files.answers();
    assert!(fs::read_to_string(&files.output).unwrap().starts_with(&whole[..kept]), "what was there stays");
    for (id, answer) in &answers {
        assert_eq!((again[id].0, said(&again[id])), (answer.0, said(answer)), "{id}");
    }
    let ran = files.run(&[]);
    assert!(ran.stderr.contains("all 43 requests are answered already"), "{ran:?}");
}

#[test]
fn what_stops_it_costs_no_answer() {
    for by in tests::part_of(["KILL", "INT", "HUP"], 2) {
        let lines: Vec<Value> = (0..1000).map(|at| ask(at % 500, 10)).collect();
        let named = |(at, mut line): (usize, Value)| {
            line["custom_id"] = json!(format!("line-{at}"));
            line
        };
        let lines: Vec<Value> = lines.into_iter().enumerate().map(named).collect();
        let files = Files::new(by, &lines);
        let arguments = files.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = twostroke(&arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        tests::wait("some answers", || fs::read_to_string(&files.output).is_ok_and(|text| text.lines().count() > 50));
        // While it runs the file is locked.
        let second = files.run(&[]);
        assert_eq!(second.code, Some(2), "{second:?}");
        assert!(second.stderr.contains("another process writes answers to it"), "{second:?}");
        signal(by, child.id());
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        if by != "KILL" {
            assert_eq!(ended.status.code(), Some(130), "{said}");
            assert!(said.contains(" of 1000 requests are answered; the same command goes on"), "{said}");
        }
        let before = fs::read_to_string(&files.output).unwrap();
        let whole: usize = before.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::len).sum();
        let ran = files.run(&[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(files.answers().len(), 1000);
        assert!(fs::read_to_string(&files.output).unwrap().starts_with(&before[..whole]), "what was there stays");
    }
}

#[test]
fn what_is_no_batch_is_named_before_anything_is_asked() {
    let twice = [ask(1, 5), ask(1, 5)];
    let with = |more: Value| {
        let mut line = ask(1, 5);
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line
    };
    for (name, lines, problem) in [
        ("empty", vec![], "there is no request in it"),
        ("twice", twice.to_vec(), "line 2: another line has the same 'custom_id'"),
        ("none", vec![ask(1, 5), json!({"custom_id": "a"})], "line 2: missing field `url`"),
        ("list", vec![json!([1])], "line 1: "),
        ("url", vec![with(json!({"url": "/v1/files"}))], "line 1: 'url' is none of"),
        ("method", vec![with(json!({"method": "GET"}))], "line 1: 'method' is not 'POST'"),
        ("unnamed", vec![with(json!({"custom_id": ""}))], "line 1: 'custom_id' is empty"),
        ("more", vec![with(json!({"more": 1}))], "line 1: 'more' is no member of a line"),
        ("stream", vec![with(json!({"body": {"prompt": "a", "stream": true}}))], "line 1: 'stream' cannot be true"),
    ] {
        let files = Files::new(name, &lines);
        let ran = files.run(&[]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{name}: {ran:?}");
        assert!(ran.stderr.contains(problem) && ran.stderr.lines().count() == 1, "{name}: {ran:?}");
        assert!(!files.output.exists(), "{name}: nothing is made of it");
    }
    // An output that is none, or another's.
    let files = Files::new("foreign", &[ask(1, 5)]);
    for (text, problem) in [
        ("not JSON\n", "line 1 is no answer of a batch"),
        (&format!("{}\n", ask(1, 5)), "line 1 is no answer of a batch"),
        (
            "{\"id\":\"batch_req_1\",\"custom_id\":\"b\",\"response\":{\"status_code\":200}}\n",
            "line 1 answers 'b', which the input does not",
        ),
    ] {
        fs::write(&files.output, text).unwrap();
        let ran = files.run(&[]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(problem), "{ran:?}");
        assert_eq!(fs::read_to_string(&files.output).unwrap(), text, "it is left alone");
    }
    // One line of zeros that has no end: no byte of it is kept.
    fs::File::create(&files.output).and_then(|file| file.set_len(1 << 40)).unwrap();
    let ran = files.run(&[]);
    assert!(ran.code == Some(2) && ran.stderr.contains("line 1 is no answer of a batch"), "{ran:?}");
    for (place, problem) in [
        ("/nowhere/out", "-o: /nowhere/out: No such file"),
        ("/usr", "-o: /usr: a directory, not a regular file; name another"),
        ("/dev/full", "-o: /dev/full: a device, not a regular file; name another"),
    ] {
        let input = files.input.display().to_string();
        let ran = run(&mut twostroke(&["batch", "-i", &input, "-o", place]));
        assert!(ran.code == Some(2) && ran.stderr.contains(problem), "{ran:?}");
    }
    let missing = run(&mut twostroke(&["batch", "-i", "/nowhere/in", "-o", "/nowhere/out"]));
    assert_eq!(missing.code, Some(2), "{missing:?}");
    // A line that is longer than any request.
    let files = Files::new("long", &[ask(1, 5)]);
    let mut input = OpenOptions::new().append(true).open(&files.input).unwrap();
    input.write_all(&vec![b' '; 9 << 20]).unwrap();
    drop(input);
    let ran = files.run(&[]);
    assert!(ran.code == Some(2) && ran.stderr.contains("line 2: it is longer than"), "{ran:?}");
}
