//! Several models in one server: which answers, which is in memory, and what is told of them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use testing::{Dice, Scratch};
use tests::{Server, is_long, root, run, twostroke, wait};

/// Small models of random weights, without a tokenizer: they are asked with token ids.
const NAMES: [&str; 3] = ["llama2", "mistral", "gemma2"];

fn model(name: &str) -> String {
    root().join("crates/model/tests/data").join(name).to_str().expect("the path is text").to_owned()
}

/// Flags of a server whose first model is the built-in one.
fn flags(names: &[&str], more: &[&str]) -> Vec<String> {
    let mut flags = vec!["--models=lantern".to_owned()];
    flags.extend(names.iter().map(|name| format!("--models={}", json!({"model": model(name), "name": name}))));
    flags.extend(["--kv-cache-memory-bytes", "4MiB"].into_iter().chain(more.iter().copied()).map(str::to_owned));
    flags
}

fn start(flags: &[String]) -> Server {
    Server::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Greedy tokens behind a few: what a model says to `seed`.
fn ask(server: &Server, name: &str, seed: u64, tokens: usize) -> (u16, Value) {
    let mut dice = Dice::new(seed);
    let prompt: Vec<u64> = (0..8).map(|_| 3 + dice.below(90)).collect();
    let body = json!({"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true});
    post(server, "/v1/completions", &body)
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = server.request("POST", path, &[], &body.to_string());
    (status, serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

fn get(server: &Server, path: &str) -> Value {
    let (status, answer) = server.request("GET", path, &[], "");
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn said(answer: &Value) -> Value {
    assert!(answer["choices"][0]["token_ids"].is_array(), "{answer}");
    answer["choices"][0]["token_ids"].clone()
}

/// Bytes of a model in memory, as the server counts them.
fn size(server: &Server, name: &str) -> Option<u64> {
    let loaded = get(server, "/api/ps");
    let is_it = |entry: &&Value| entry["name"] == format!("{name}:latest");
    loaded["models"].as_array().expect("a list").iter().find(is_it)?["size"].as_u64()
}

#[test]
fn every_answer_is_the_models_own_whatever_is_loaded_and_unloaded_meanwhile() {
    const SEEDS: u64 = 5;
    let all = start(&flags(&NAMES, &[]));
    let alone: Vec<Vec<Value>> =
        NAMES.iter().map(|name| (0..SEEDS).map(|seed| said(&ask(&all, name, seed, 12).1)).collect()).collect();
    assert!(alone[0] != alone[1] && alone[1] != alone[2], "they are different models");
    let mut sizes: Vec<u64> = NAMES.iter().map(|name| size(&all, name).expect("it was asked")).collect();
    drop(all);
    sizes.sort_unstable();
    // Room for any two of the three.
    let memory = format!("--memory={}", sizes[1] + sizes[2]);
    let server = start(&flags(&NAMES, &[&memory, "--load-wait", "500ms"]));
    let (clients, each) = if is_long() { (8, 63) } else { (4, 6) };
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..clients {
            let (server, alone, most) = (&server, &alone, &most);
            scope.spawn(move || {
                let mut dice = Dice::new(client);
                for _ in 0..each {
                    let (at, seed) = (dice.roll(NAMES.len()), dice.below(SEEDS));
                    let (status, answer) = ask(server, NAMES[at], seed, 12);
                    assert_eq!(status, 200, "client {client}: {answer}");
                    assert_eq!(answer["model"], NAMES[at]);
                    assert_eq!(said(&answer), alone[at][seed as usize], "client {client}, {} of {seed}", NAMES[at]);
                    // In one look: between two another may have come.
                    let loaded = get(server, "/api/ps")["models"].as_array().expect("a list").len() - 1;
                    most.fetch_max(loaded, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::Relaxed), 2, "there is room for two");
}

#[test]
fn names_lists_and_what_leaves() {
    let server = start(&flags(&NAMES[..2], &["--keep-alive", "forever"]));
    let status = |name: &str| {
        let list = get(&server, "/v1/models");
        let card = list["data"].as_array().unwrap().iter().find(|card| card["id"] == name).cloned();
        card.map_or(Value::Null, |card| card["status"]["value"].clone())
    };
    assert_eq!(
        [status("lantern"), status("llama2"), status("nope")],
        [json!("loaded"), json!("unloaded"), Value::Null]
    );
    assert_eq!(get(&server, "/v1/models/llama2")["status"]["value"], "unloaded");
    let tags = get(&server, "/api/tags");
    let named: Vec<&str> =
        tags["models"].as_array().unwrap().iter().filter_map(|entry| entry["name"].as_str()).collect();
    assert_eq!(named, ["lantern:latest", "llama2:latest", "mistral:latest"]);
    let anthropics = server.request("GET", "/v1/models", &["anthropic-version: 2023-06-01"], "").1;
    assert!(anthropics.contains("\"last_id\":\"mistral\""), "{anthropics}");
    assert_eq!(server.request("DELETE", "/v1/models/llama2", &[], "").0, 405);
    // What is only looked at is not loaded.
    assert_eq!(post(&server, "/api/show", &json!({"model": "llama2"})).1["details"]["family"], "llama");
    let (code, answer) = server.request("GET", "/live/info?model=llama2", &[], "");
    assert_eq!((code, answer.contains("model_not_loaded")), (404, true), "{answer}");
    assert_eq!((status("llama2"), size(&server, "llama2")), (json!("unloaded"), None));
    // A request loads it, by its name or with Ollama's tag; none names the first.
    assert_eq!(ask(&server, "llama2", 0, 4).0, 200);
    assert_eq!(ask(&server, "llama2:latest", 0, 4).0, 404, "the tag is Ollama's alone");
    assert_eq!(get(&server, "/live/info?model=llama2")["name"], "llama2");
    assert_eq!(get(&server, "/live/info?model=lantern")["name"], "lantern");
    let first = post(&server, "/v1/completions", &json!({"prompt": "Once", "max_tokens": 1})).1;
    assert_eq!(first["model"], "lantern");
    // What none is called is told the nearest names, in every API.
    for (path, body, said) in [
        ("/v1/completions", json!({"prompt": "a"}), "near its name: mistral, lantern, llama2; "),
        ("/v1/chat/completions", json!({"messages": []}), "near its name: mistral, lantern, llama2; "),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}), "mistral"),
        ("/v1/embeddings", json!({"input": "a"}), "mistral"),
        ("/tokenize", json!({"prompt": "a"}), "mistral"),
        ("/api/generate", json!({"prompt": "a"}), "mistral"),
        ("/api/show", json!({}), "mistral"),
    ] {
        let mut body = body.clone();
        body["model"] = json!("mistrel");
        let (code, answer) = post(&server, path, &body);
        assert_eq!((code, answer.to_string().contains(said)), (404, true), "{path}: {answer}");
    }
    for path in ["/v1/models/lantren", "/live/info?model=lantren"] {
        let (code, answer) = server.request("GET", path, &[], "");
        assert_eq!((code, answer.contains("near its name: lantern, ")), (404, true), "{path}: {answer}");
    }
    // Their requests are found whichever answered, and their counters told apart.
    let id = ask(&server, "llama2", 1, 4).1["id"].as_str().unwrap().to_owned();
    assert_eq!(get(&server, &format!("/v1/requests/{id}/timeline"))["id"], id.as_str());
    assert_eq!(get(&server, "/v1/requests?model=llama2")["data"].as_array().unwrap().len(), 2);
    let metrics = server.request("GET", "/metrics", &[], "").1;
    assert!(metrics.contains("\ntwostroke_decode_tokens_total{model_name=\"llama2\"} 6\n"), "{metrics}");
    assert!(metrics.contains("\ntwostroke_decode_tokens_total 0\n"), "the first's keep their names");
    assert_eq!(metrics.matches("# TYPE twostroke_decode_tokens_total").count(), 1);
    // It leaves when it is told to, and the first does not.
    let url = format!("http://127.0.0.1:{}", server.port());
    let ps = || run(&mut twostroke(&["ps", "--url", &url]));
    assert!(ps().stdout.contains("llama2") && ps().stdout.contains("  PREFILL  DECODE  UNTIL\n"), "{:?}", ps());
    // What each phase had of the machine is told where one ran.
    let loaded = get(&server, "/api/ps");
    let of = |at: usize| loaded["models"][at]["limit_percent"].clone();
    assert!(of(1)["decode"].is_null() || of(1)["decode"].as_f64().is_some_and(|share| share <= 100.0), "{loaded}");
    assert!(of(1).is_object() && of(0).is_object(), "{loaded}");
    let stopped = run(&mut twostroke(&["stop", "llama2", "--url", &url]));
    assert_eq!((stopped.code, stopped.stderr.as_str()), (Some(0), ""));
    wait("it is gone", || size(&server, "llama2").is_none());
    assert!(!ps().stdout.contains("llama2"), "{:?}", ps());
    let first = run(&mut twostroke(&["stop", "lantern", "--url", &url]));
    assert_eq!(first.code, Some(2), "{first:?}");
    assert!(first.stderr.contains("stays until the server ends"), "{first:?}");
    let unknown = run(&mut twostroke(&["stop", "nope", "--url", &url]));
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    // Ollama's clients say how long it stays.
    let generate = |keep_alive: Value| {
        let body = json!({"model": "llama2", "prompt": "", "stream": false, "keep_alive": keep_alive});
        post(&server, "/api/generate", &body)
    };
    assert_eq!(generate(json!("abc")).0, 400);
    assert_eq!(generate(json!("5m")).1["done_reason"], "load");
    assert!(size(&server, "llama2").is_some());
    assert_eq!(generate(json!(0)).1["done_reason"], "unload");
    wait("it is gone", || size(&server, "llama2").is_none());
    assert_eq!(generate(json!("1ms")).0, 200);
    wait("its time is over", || size(&server, "llama2").is_none());
    // So do those of OpenAI's API.
    for (path, keep_alive, status) in [
        ("/v1/chat/completions", json!("soon"), 400),
        ("/v1/embeddings", json!([]), 400),
        ("/v1/completions", json!("-"), 400),
        ("/v1/completions", json!(0), 200),
    ] {
        let body = json!({"model": "llama2", "prompt": [5, 6], "max_tokens": 1, "keep_alive": keep_alive});
        let (code, said) = post(&server, path, &body);
        assert_eq!((code, said.to_string().contains("keep_alive must be")), (status, status == 400), "{path}: {said}");
    }
    wait("it is gone", || size(&server, "llama2").is_none());
}

#[test]
fn what_cannot_be_loaded_is_refused_by_name_and_harms_no_other() {
    let scratch = Scratch::new("damaged");
    let copy = scratch.join("damaged");
    fs::create_dir(&copy).unwrap();
    let files: [PathBuf; 2] =
        ["config.json", "model.safetensors"].map(|file| PathBuf::from(model("llama2")).join(file));
    files.iter().for_each(|file| _ = fs::copy(file, copy.join(file.file_name().unwrap())).unwrap());
    let mut arguments = flags(&NAMES[..1], &["--memory", "40MiB"]);
    arguments.push(format!("--models={}", json!({"model": copy.to_str().unwrap(), "name": "damaged"})));
    let large = json!({"model": model("mistral"), "name": "large"});
    arguments.push(format!("--models={large}"));
    let server = start(&arguments);
    let whole = fs::read(copy.join("model.safetensors")).unwrap();
    fs::write(copy.join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    let (code, answer) = ask(&server, "damaged", 0, 4);
    assert_eq!((code, &answer["error"]["code"]), (503, &json!("model_failed")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("damaged cannot be loaded: "), "{answer}");
    assert_eq!(get(&server, "/v1/models/damaged")["status"]["value"], "failed");
    assert_eq!(ask(&server, "llama2", 0, 4).0, 200);
    assert_eq!(post(&server, "/v1/completions", &json!({"prompt": "Once", "max_tokens": 1})).0, 200);
    drop(server);
    // A cache that alone takes more than there may be.
    let mut arguments = flags(&NAMES[..1], &["--memory", "2MiB"]);
    arguments.extend(["--kv-cache-memory-bytes".to_owned(), "8MiB".to_owned()]);
    let server = start(&arguments);
    let (code, answer) = ask(&server, "llama2", 0, 4);
    assert_eq!((code, &answer["error"]["code"]), (400, &json!("model_too_large")), "{answer}");
    for (arguments, why) in [
        (vec!["serve", "--models={\"model\": \"lantern\", \"pinned\": true}"], "unknown field"),
        (vec!["serve", "lantern", "/no/model"], "/no/model"),
        (vec!["serve", "lantern", "lantern", "--record", "/tmp/x"], "a server of one model"),
        (vec!["serve", "lantern", "--models=lantern"], "cannot be used with"),
        (vec!["serve", "lantern", "lantern"], "is another's name"),
        (
            vec!["serve", "--models={\"model\": \"lantern\", \"keep-alive\": \"1m\"}", "--on-demand"],
            "the first model stays",
        ),
        (
            vec![
                "serve",
                "--models=lantern",
                &format!("--models={}", json!({"model": model("llama2"), "name": "lantern"})),
            ],
            "is another's name",
        ),
        (
            vec![
                "serve",
                "--models=lantern",
                &format!("--models={}", json!({"model": model("llama2"), "name": ["a", ""]})),
            ],
            "or none",
        ),
    ] {
        let refused = run(&mut twostroke(&arguments));
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(why), "{arguments:?}: {refused:?}");
    }
    // What is to be there from the start and cannot be is said at the start.
    let pinned = ["serve", "lantern", &model("llama2"), "--memory", "2MiB", "--kv-cache-memory-bytes", "4MiB"];
    let refused = run(&mut twostroke(&pinned));
    assert_eq!((refused.code, refused.stderr.contains("(--memory)")), (Some(1), true), "{refused:?}");
}

#[test]
fn time_in_which_another_model_computes_has_an_owner() {
    let server = start(&flags(&NAMES[..2], &[]));
    NAMES[..2].iter().for_each(|name| assert_eq!(ask(&server, name, 0, 1).0, 200));
    // Both write at once for as long as it takes that one has waited for the other.
    let waited = AtomicUsize::new(0);
    wait("one waits for the other", || {
        thread::scope(|scope| {
            for name in &NAMES[..2] {
                let (server, waited) = (&server, &waited);
                scope.spawn(move || {
                    let id = ask(server, name, 7, 100).1["id"].as_str().expect("it is answered").to_owned();
                    let timeline = get(server, &format!("/v1/requests/{id}/timeline"));
                    let owners = &timeline["prompts"][0]["gaps"];
                    let sum: f64 = owners.as_object().expect("owners").values().filter_map(Value::as_f64).sum();
                    assert!(sum > 0.0, "{timeline}");
                    // Whose it was is named, and nothing of it is lost.
                    let prompt = &timeline["prompts"][0];
                    let ms = |of: &str| prompt[of]["other_model_ms"].as_f64().expect("an owner");
                    let others = prompt["other_models"].as_array().expect("a list");
                    let named: f64 = others.iter().filter_map(|entry| entry["ms"].as_f64()).sum();
                    assert!((named - ms("ttft") - ms("gaps")).abs() < 1e-6, "{timeline}");
                    for entry in others.iter().filter(|entry| !entry["model"].is_null()) {
                        assert!(entry["model"] != **name && entry["request"].is_string(), "{timeline}");
                        assert!(prompt["why"].to_string().contains("Of other models' requests it waited for "));
                        waited.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        waited.load(Ordering::Relaxed) > 0
    });
}

#[test]
fn a_stream_that_waits_for_its_model_says_so_each_second() {
    let both = start(&flags(&NAMES[..2], &[]));
    NAMES[..2].iter().for_each(|name| assert_eq!(ask(&both, name, 0, 1).0, 200));
    let sizes = NAMES[..2].iter().map(|name| size(&both, name).expect("it was asked"));
    // Room for one: the other waits for its last answer, which does not come as long as it is held.
    let memory = format!("--memory={}", sizes.max().expect("two") * 3 / 2);
    drop(both);
    let server = start(&flags(&NAMES[..2], &[&memory, "--allow-pause"]));
    assert_eq!(ask(&server, NAMES[0], 0, 1).0, 200);
    let token = format!("x-hold-token: {}", server.start["hold_token"].as_str().expect("a token"));
    let hold = |verb: &str| {
        let (status, said) = server.request("POST", &format!("/live/{verb}?model={}", NAMES[0]), &[&token], "");
        assert_eq!(status, 200, "{said}");
    };
    hold("pause");
    thread::scope(|scope| {
        let held = scope.spawn(|| ask(&server, NAMES[0], 0, 4).0);
        let open = || get(&server, "/api/ps")["models"][1]["requests"] == 1;
        wait("the first has a request", open);
        let stream = |path: &str, body: Value| {
            let (path, body) = (path.to_owned(), body.to_string());
            let server = &server;
            scope.spawn(move || server.request("POST", &path, &[], &body))
        };
        let question = json!({"model": NAMES[1], "prompt": [5, 6], "max_tokens": 2, "stream": true});
        let answered = stream("/v1/completions", question);
        let chat =
            json!({"model": NAMES[1], "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": true});
        // It has no template: what is wrong comes in the stream, in the form of the API.
        let refused = stream("/v1/messages", chat);
        thread::sleep(std::time::Duration::from_millis(2500));
        hold("resume");
        assert_eq!(held.join().expect("it is answered"), 200);
        let (status, said) = answered.join().expect("it is answered");
        let at = |what: &str| said.find(what).unwrap_or_else(|| panic!("{what}: {said}"));
        assert!(status == 200 && at(": loading") < at("data: {") && at("data: {") < at("data: [DONE]"), "{said}");
        assert!(said.matches(": loading").count() >= 2, "{said}");
        let (status, said) = refused.join().expect("it is answered");
        assert!(status == 200 && said.contains("event: error\ndata: {\"type\":\"error\""), "{said}");
    });
}
