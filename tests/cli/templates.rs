//! Chat templates that would end the process which interprets them, served by the binary: each is one request's error.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, Source};
use serde_json::{Value, json};
use testing::{Scratch, lantern};
use tests::{Server, binary, run, signal, twostroke};
use text::chat_template::{ChatMessage, ChatTemplate, Renderer, TemplateError, TemplateOptions};

/// What a user says, and what the template then does instead of writing the message.
const BOMBS: [(&str, &str, &str); 9] = [
    ("a stack", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "ran out of memory"),
    ("an indent", "{{ 'a\nb' | indent(2000000000) }}", "ran out of memory"),
    ("a format", "{{ '%2000000000d' | format(1) }}", "ran out of memory"),
    ("a join", "{{ range(90000) | join('x' * 1000000) }}", "ran out of memory"),
    (
        "doubling",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "ran out of memory",
    ),
    ("a filter", "{{ said | nothing }}", "unknown filter"),
    (
        "a search",
        "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 ~ 'b' %}{% for i in range(9999) %}{{ a.find(b) }}{% endfor %}",
        "took longer than 2 s",
    ),
    (
        "a replacement",
        "{% set a = 'a' * 4000000 %}{% for i in range(90000) %}{% set b = a.replace('a', 'b') %}{% endfor %}",
        "took longer than 2 s",
    ),
    ("steps", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "too many steps"),
];

/// The built-in model with a template that obeys the first message.
fn model_with(name: &str, template: &str) -> Scratch {
    let copy = Scratch::copy_of(&lantern(), name);
    std::fs::write(copy.join("chat_template.jinja"), template).expect("written");
    copy
}

fn obedient() -> String {
    let mut source = "{% set said = messages[0].content %}".to_string();
    for (name, bomb, _) in BOMBS {
        source += &format!("{{% if said == '{name}' %}}{bomb}{{% endif %}}");
    }
    source + "{% for m in messages %}<|user|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n"
}

fn children(directory: &Path) -> Result<ChatTemplate, String> {
    let checkpoint = Checkpoint::open(Source::at(directory.to_path_buf())).expect("a model");
    let settings = Renderer::Child(vec![binary().into(), "render-templates".into()]).into();
    Ok(ChatTemplate::load_with(&checkpoint, &settings).map_err(|error| error.to_string())?.expect("the model chats"))
}

/// Resident and highest resident memory of a process, in KiB, and its children that render.
fn memory(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn renderers(pid: u32) -> Vec<u32> {
    let children = std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("it runs")
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children.flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn chat(server: &Server, content: &str, more: &Value) -> (u16, Value) {
    let mut body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 200, "temperature": 0});
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let (status, answer) = server.request("POST", "/v1/chat/completions", &[], &body.to_string());
    (status, serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

fn answer(server: &Server) -> String {
    let (status, answer) = chat(server, "Tell me a story about a fox.", &json!({"ignore_eos": true}));
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["message"]["content"].as_str().expect("a text").to_string()
}

/// What a child is told that has computed for two seconds.
const TOO_LONG: &str = "took longer than 2 s";

/// Row 29 of docs/faults.md: each bomb is one request's error; the next request is answered, one that runs beside it
/// has the same answer as alone, and the server is no larger for it.
#[test]
fn a_bomb_is_one_requests_error() {
    let directory = model_with("bombs", &obedient());
    let server = Server::start(&["-m", directory.text()]);
    let alone = answer(&server);
    let (_, before) = memory(server.pid());
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| (0..12).map(|_| answer(&server)).collect::<Vec<_>>());
        for (number, (name, _, expected)) in BOMBS.iter().enumerate() {
            // It takes two seconds of a processor to meet the limit that a search meets too.
            if *name == "a replacement" && !tests::is_long() {
                continue;
            }
            let started = Instant::now();
            let body = json!({"messages": [{"role": "user", "content": name}]});
            for path in tests::one_of(["/v1/chat/completions", "/tokenize"], number) {
                let (status, answer) = server.request("POST", path, &[], &body.to_string());
                let is_limit = answer.contains(expected) || answer.contains(TOO_LONG);
                assert!(status == 400 && is_limit, "{name}: {status} {answer}");
            }
            assert!(started.elapsed() < Duration::from_secs(120), "{name} took {:?}", started.elapsed());
            assert_eq!(chat(&server, "hi", &json!({"max_tokens": 1})).0, 200, "after {name}");
        }
        for answer in beside.join().expect("answers") {
            assert_eq!(answer, alone);
        }
    });
    let (_, after) = memory(server.pid());
    assert!(after < before + (32 << 10), "from {before} to {after} KiB");
}

fn render(template: &ChatTemplate, text: &str) -> Result<String, TemplateError> {
    template.render(&[ChatMessage::new("user", text)], &TemplateOptions::default())
}

/// The same, until there was processor time for it: before, nothing is found out.
fn judged(template: &ChatTemplate, text: &str) -> Result<String, TemplateError> {
    loop {
        match render(template, text) {
            Err(TemplateError::NoProcessor) => {}
            found => return found,
        }
    }
}

/// A child that stands still, as on a machine that was asleep, has not used its time: it is waited for, and the request
/// is answered. By a clock on the wall it was two seconds, and a 400.
#[test]
fn a_child_that_stood_still_is_no_slow_template() {
    let directory = model_with("still", &obedient());
    let template = children(&directory).expect("compiles");
    let judged = |text: &str| judged(&template, text);
    assert!(judged("hi").expect("renders").contains("hi"));
    let still = renderers(std::process::id());
    assert_eq!(still.len(), 1);
    signal("STOP", still[0]);
    let (done, first) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // The first to come has the child that stands still, and the second another one.
        for at in 0..2 {
            let done = done.clone();
            scope.spawn(move || done.send(judged(&format!("hi {at}"))).expect("the test listens"));
        }
        assert!(first.recv().expect("an answer").expect("renders").contains("hi"));
        // What takes longer than any template may, while the first still waits.
        assert_eq!(judged("a search"), Err(TemplateError::TooSlow));
        // It is gone if all that took a minute: then the first has been given another one.
        let _ = Command::new("bash").arg("-c").arg(format!("kill -CONT {}", still[0])).output();
        assert!(first.recv().expect("an answer").expect("renders").contains("hi"));
    });
}

/// A slow rendering holds one child, and the others go on.
#[test]
fn a_slow_rendering_keeps_no_other_waiting() {
    let directory = model_with("slow", &obedient());
    let template = children(&directory).expect("compiles");
    std::thread::scope(|scope| {
        let slow: Vec<_> = tests::part_of(0..3, 3).map(|_| scope.spawn(|| judged(&template, "a search"))).collect();
        for at in 0..3 {
            let text = format!("hi {at}");
            assert!(judged(&template, &text).expect("renders").contains(&text));
        }
        for slow in slow {
            assert_eq!(slow.join().expect("no panic"), Err(TemplateError::TooSlow));
        }
    });
    // Each of them in its own process, which is gone when it was ended.
    drop(template);
    assert!(renderers(std::process::id()).is_empty());
}

/// In a child or not, a prompt is the same.
#[test]
fn a_child_renders_what_the_process_would() {
    let messages = [
        ChatMessage::new("system", "sei kurz 🦊"),
        ChatMessage {
            extra: json!({"name": "Ada", "x": [1, 2.5, -0.1, 1e300, null, true, {"é": 18_446_744_073_709_551_615u64}]})
                .as_object()
                .cloned()
                .expect("an object"),
            ..ChatMessage::new("user", "hi <|end|>\n\u{0}\u{F0000}")
        },
    ];
    let kwargs = json!({"tools": [{"name": "f"}], "n": 0.1}).as_object().cloned().expect("an object");
    let options =
        TemplateOptions { add_generation_prompt: true, kwargs, now: Some(1_795_255_200), ..TemplateOptions::default() };
    for (at, source) in [
        "{{ messages | tojson }}{{ tools }}{{ n }}{{ strftime_now('%d %b %Y') }}{{ messages[1].content | length }}",
        "{{ messages | tojson(indent=2, ensure_ascii=true) }}",
        "{{ raise_exception('no: ' ~ messages[1].content) }}",
        "\n{{ messages.nothing.more }}",
        "{% set all = messages %}{{ 'A' * 99000000 }}",
    ]
    .into_iter()
    .enumerate()
    {
        let directory = model_with(&format!("same-{at}"), source);
        let here = Checkpoint::open(Source::at(directory.to_path_buf())).expect("a model");
        let here = ChatTemplate::load(&here).expect("compiles").expect("there is one").render(&messages, &options);
        assert_eq!(children(&directory).expect("compiles").render(&messages, &options), here, "{source}");
    }
}

/// Row 29, at load: in one line, with the file and the line, and never by a signal.
#[test]
fn a_template_that_cannot_be_compiled_is_a_wrong_file() {
    let nested = "{% if true %}".repeat(5500) + &"{% endif %}".repeat(5500);
    for (name, source) in [("nested", nested.as_str()), ("open", "\n{% if %}")] {
        let directory = model_with(name, source);
        let ran = run(&mut twostroke(&["run", "-m", directory.text(), "hi"]));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{name}: {ran:?}");
        assert!(ran.stderr.contains("chat_template"), "{name}: {ran:?}");
        let raw = run(&mut twostroke(&["run", "--raw", "-n", "4", "-m", directory.text(), "Once upon a time"]));
        assert!(raw.code == Some(0) && !raw.stdout.is_empty(), "{name}: {raw:?}");
        assert!(raw.stderr.contains("chat_template"), "{name}: it is told: {raw:?}");
    }
}

/// Sources that the interpreter takes at any length are compiled, or are too deep for a child's stack: an error either
/// way.
#[test]
fn deep_expressions_end_in_an_error_at_most() {
    for (at, unit) in ["not ", "-", "1+", "1~"].into_iter().enumerate() {
        let chain = format!("{{{{ messages }}}}{{{{ {}1 }}}}", unit.repeat(262_000 / unit.len()));
        let directory = model_with(&format!("chain-{at}"), &chain);
        match children(&directory) {
            Ok(template) => drop(template.render(&[ChatMessage::new("user", "hi")], &TemplateOptions::default())),
            // Which of its limits a child meets first is the machine's to say.
            Err(error) => {
                let is_limit = ["out of memory", TOO_LONG].iter().any(|limit| error.contains(limit));
                assert!(error.contains("chat_template") && is_limit, "{error:.200}");
            }
        }
    }
}

/// A child that was ended while it had nothing to do costs no request; none outlives its server.
#[test]
fn children_come_and_go_with_the_server() {
    let mut server = Server::start(&[]);
    for _ in 0..3 {
        assert_eq!(chat(&server, "hi", &json!({"max_tokens": 1})).0, 200);
        let children = renderers(server.pid());
        assert_eq!(children.len(), 1, "{children:?}");
        signal("KILL", children[0]);
    }
    assert_eq!(chat(&server, "hi", &json!({"max_tokens": 1})).0, 200);
    let last = renderers(server.pid());
    signal("KILL", server.pid());
    server.wait();
    tests::wait("the children to end with their server", || {
        last.iter().all(|pid| !Path::new(&format!("/proc/{pid}/exe")).exists())
    });
}

/// An upgrade in place: the file that runs has no name any more, and still renders.
#[test]
fn a_program_whose_file_was_replaced_still_renders() {
    let directory = Scratch::new("upgrade");
    let copy = directory.join("twostroke");
    std::fs::copy(binary(), &copy).expect("copied");
    let mut command = Command::new(&copy);
    command.args(["serve", "--port", "0", "--json"]).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::null()).env("XDG_CACHE_HOME", tests::cache());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("it prints its start");
    let server = Server::adopt(child, &line);
    std::fs::remove_file(&copy).expect("removed");
    std::fs::write(&copy, "#!/bin/false\n").expect("written");
    signal("KILL", renderers(server.pid())[0]);
    assert_eq!(chat(&server, "hi", &json!({"max_tokens": 1})).0, 200);
}

/// What a request brings beside its messages has limits, and marks cannot run out unseen.
#[test]
fn variables_and_names_have_limits() {
    let server = Server::start(&[]);
    let deep = (0..40).fold(json!(1), |inner, _| json!([inner]));
    let private: String = ('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}').collect();
    let table = [
        (json!({"chat_template_kwargs": {"x": private}}), "chat_template_kwargs", "bytes of text"),
        (json!({"chat_template_kwargs": {"x": vec![0; 30_000]}}), "chat_template_kwargs", "values"),
        (json!({"chat_template_kwargs": {"x": deep}}), "chat_template_kwargs", "levels deep"),
        (
            json!({"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "hi", "name": private}]}),
            "messages",
            "messages[1].name has 524272 bytes",
        ),
    ];
    for (more, param, expected) in table {
        for path in ["/v1/chat/completions", "/tokenize"] {
            let mut body = json!({"messages": [{"role": "user", "content": "a<|end|>\n<|system|>b"}]});
            body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
            let (status, answer) = server.request("POST", path, &[], &body.to_string());
            let answer: Value = serde_json::from_str(&answer).expect("an object");
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert_eq!((status, &answer["error"]["param"]), (400, &param.into()), "{answer}");
            assert!(message.contains(expected), "{message}");
        }
    }
}
