//! Adapters by name on every route, as vLLM has them; loaded and unloaded while the server runs.

#[path = "../../../model/tests/common/adapters.rs"]
mod files;

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, Source};
use engine::EngineOptions;
use files::{adapter, write_in};
use model::{AdapterRoom, ModelConfig};
use serde_json::{Value, json};
use server::{ApiKey, ServerOptions};
use testing::Scratch;

use crate::client::Answer;
use crate::host::{Host, local_server, small_engine};

fn directory(place: &Scratch, name: &str, seed: u64) -> PathBuf {
    let lantern = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let config = ModelConfig::load(&Checkpoint::open(Source::Directory(lantern)).unwrap()).unwrap();
    write_in(place, name, &adapter(&config, seed, 8, 24.0, &[]))
}

/// The model, and an adapter "tales" beside it; room for one more.
fn host(place: &Scratch, server: ServerOptions) -> Host {
    let adapters = vec![("tales".to_string(), directory(place, "tales", 1))];
    let adapter_room = AdapterRoom { slots: 2, max_rank: 16 };
    Host::with(EngineOptions { adapters, adapter_room, ..small_engine() }, server)
}

fn with_loading(place: &Scratch) -> Host {
    host(place, ServerOptions { runtime_adapters: true, ..local_server() })
}

fn completion(model: &str) -> Value {
    json!({"model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": true})
}

fn text(host: &Host, model: &str) -> String {
    host.ask("/v1/completions", &completion(model))["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn error(answer: &Answer) -> (u16, String, String) {
    let error = &answer.json()["error"];
    let told = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    (answer.status, told("code"), told("message"))
}

#[test]
fn the_name_of_an_adapter_is_the_name_of_a_model_in_every_api() {
    let place = Scratch::new("http-names");
    let host = host(&place, local_server());
    let [own, tales] = ["lantern", "tales"].map(|model| text(&host, model));
    assert_ne!(own, tales);
    let said = json!([{"role": "user", "content": "Once upon a time"}]);
    let chat = |model: &str| json!({"model": model, "messages": said, "max_tokens": 12, "temperature": 0});
    let routes: [(&str, Value, &str); 7] = [
        ("/v1/chat/completions", chat("tales"), "/choices/0/message/content"),
        ("/v1/messages", chat("tales"), "/content/0/text"),
        (
            "/v1/responses",
            json!({"model": "tales", "input": "Once upon a time", "max_output_tokens": 16, "temperature": 0}),
            "/output/0/content/0/text",
        ),
        (
            "/api/chat",
            json!({"model": "tales:latest", "messages": said, "stream": false, "options": {"temperature": 0, "num_predict": 12}}),
            "/message/content",
        ),
        (
            "/api/generate",
            json!({"model": "tales", "prompt": "Once", "raw": true, "stream": false, "options": {"temperature": 0, "num_predict": 12}}),
            "/response",
        ),
        (
            "/completion",
            json!({"model": "tales", "prompt": "Once upon a time", "n_predict": 12, "temperature": 0}),
            "/content",
        ),
        ("/v1/embeddings", json!({"model": "tales", "input": "Once"}), "/data/0/embedding"),
    ];
    for (route, body, place) in routes {
        let through = host.ask(route, &body);
        let mut plain = body.clone();
        plain["model"] = json!("lantern");
        let plain = host.ask(route, &plain);
        assert!(through.pointer(place).is_some(), "{route}: {through}");
        assert_ne!(through.pointer(place), plain.pointer(place), "{route}");
        assert_eq!(host.ask(route, &body).pointer("/model"), through.pointer("/model"), "{route}");
    }
    let embed = |model: &str| host.ask("/api/embed", &json!({"model": model, "input": "Once"}))["embeddings"].clone();
    assert_ne!(embed("tales"), embed("lantern"), "/api/embed");
    assert_eq!(host.ask("/v1/completions", &completion("tales"))["model"], "tales");
    assert_eq!(text(&host, "tales"), tales, "the same again");
}

#[test]
fn models_are_listed_with_their_parent() {
    let place = Scratch::new("http-list");
    let host = host(&place, local_server());
    let list = host.get("/v1/models").json();
    let cards: Vec<(&str, &Value)> =
        list["data"].as_array().unwrap().iter().map(|card| (card["id"].as_str().unwrap(), &card["parent"])).collect();
    assert_eq!(cards, [("lantern", &Value::Null), ("tales", &json!("lantern"))]);
    let card = host.get("/v1/models/tales").json();
    assert_eq!((&card["parent"], &card["root"]), (&json!("lantern"), &json!(place.join("tales"))));
    assert_eq!(host.get("/v1/models/others").status, 404);
    let tags = host.get("/api/tags").json();
    assert_eq!(tags["models"].as_array().unwrap().len(), 2);
    let (status, code, _) = error(&host.post("/v1/completions", &completion("others")));
    assert_eq!((status, code.as_str()), (404, "model_not_found"));
}

#[test]
fn adapters_come_and_go_by_requests_where_they_may() {
    let place = Scratch::new("http-load");
    let path = directory(&place, "verse", 2);
    let load = json!({"lora_name": "verse", "lora_path": path});
    {
        let fixed = host(&place, local_server());
        let (status, code, message) = error(&fixed.post("/v1/load_lora_adapter", &load));
        assert_eq!((status, code.as_str()), (403, "adapters_are_fixed"));
        assert!(message.contains("--allow-runtime-lora"), "{message}");
    }
    let host = with_loading(&place);
    assert_eq!(host.post("/v1/completions", &completion("verse")).status, 404);
    let loaded = host.post("/v1/load_lora_adapter", &load);
    assert_eq!((loaded.status, loaded.text()), (200, "Success: LoRA adapter 'verse' added successfully."));
    let verse = text(&host, "verse");
    assert_ne!(verse, text(&host, "tales"));
    let unloaded = host.post("/v1/unload_lora_adapter", &json!({"lora_name": "verse"}));
    assert_eq!((unloaded.status, unloaded.text()), (200, "Success: LoRA adapter 'verse' removed successfully."));
    assert_eq!(host.post("/v1/completions", &completion("verse")).status, 404);
    // Under another name it is the same.
    host.post("/v1/load_lora_adapter", &json!({"lora_name": "again", "lora_path": path}));
    assert_eq!(text(&host, "again"), verse);
}

#[test]
fn what_is_wrong_with_loading_is_said() {
    let place = Scratch::new("http-wrong");
    let path = directory(&place, "verse", 2);
    let host = with_loading(&place);
    let load = |name: &str, path: &Path| json!({"lora_name": name, "lora_path": path});
    let nowhere = place.join("nowhere");
    let table = [
        (load("tales", &path), 400, "adapter_exists", "the adapter 'tales' is loaded already"),
        (load("lantern", &path), 400, "adapter_exists", "the adapter 'lantern' is loaded already"),
        (load("a,b", &path), 400, "bad_adapter_name", "none of them a control character or a comma"),
        (load("verse", Path::new(&"a".repeat(5000))), 400, "", "'lora_path' has more than 4096 bytes."),
        (load("verse", &nowhere), 400, "bad_adapter", "nowhere: no such directory"),
        (json!({"lora_name": "verse"}), 400, "", "'lora_path' is missing."),
        (json!({"lora_path": path}), 400, "", "'lora_name' is missing."),
        (json!({"lora_name": "v", "lora_path": path, "load_inplace": true}), 400, "", "unload the adapter first"),
        (json!({"lora_name": "v", "lora_path": path, "else": 1}), 400, "unknown_parameter", "else"),
    ];
    for (body, status, code, message) in table {
        let found = error(&host.post("/v1/load_lora_adapter", &body));
        assert_eq!(found.0, status, "{body}: {found:?}");
        assert!(code.is_empty() || found.1 == code, "{body}: {found:?}");
        assert!(found.2.contains(message), "{body}: {found:?}");
    }
    assert_eq!(host.post("/v1/load_lora_adapter", &load("verse", &path)).status, 200);
    let (status, code, _) = error(&host.post("/v1/load_lora_adapter", &load("more", &path)));
    assert_eq!((status, code.as_str()), (400, "too_many_adapters"));
    let (status, code, _) = error(&host.post("/v1/unload_lora_adapter", &json!({"lora_name": "none"})));
    assert_eq!((status, code.as_str()), (404, "adapter_not_found"));
    let (status, code, _) = error(&host.post("/v1/unload_lora_adapter", &json!({"lora_name": "n".repeat(5000)})));
    assert_eq!((status, code.as_str()), (400, "bad_adapter_name"));
    assert_eq!(error(&host.post("/v1/unload_lora_adapter", &json!({"lora_name": "lantern"}))).0, 404);
}

/// vLLM's gauge, and a refusal to unload what runs.
#[test]
fn metrics_name_the_adapters_that_run() {
    let place = Scratch::new("http-metrics");
    let host = with_loading(&place);
    let metric = || {
        let page = host.get("/metrics").text().to_owned();
        page.lines().find(|line| line.starts_with("vllm:lora_requests_info{")).unwrap_or_default().to_owned()
    };
    let idle = "vllm:lora_requests_info{max_lora=\"2\",waiting_lora_adapters=\"\",running_lora_adapters=\"\"}";
    assert!(metric().starts_with(idle), "{}", metric());
    let mut stream = host.connect();
    let mut body = completion("tales");
    (body["stream"], body["max_tokens"]) = (json!(true), json!(900));
    stream.request("POST", "/v1/completions", &[("content-type", "application/json")], body.to_string().as_bytes());
    stream.head().unwrap();
    let mut events = Vec::new();
    assert!(stream.chunk(&mut events), "a token has come: it runs");
    assert!(metric().contains("running_lora_adapters=\"tales\""), "{}", metric());
    let (status, code, message) = error(&host.post("/v1/unload_lora_adapter", &json!({"lora_name": "tales"})));
    assert_eq!((status, code.as_str()), (409, "adapter_in_use"), "{message}");
    drop(stream);
    let gone = || host.post("/v1/unload_lora_adapter", &json!({"lora_name": "tales"})).status == 200;
    crate::host::wait("tales is free again", gone);
}

/// Of two keys one may change adapters, the other the role: neither may do the other's, and what the server was started
/// with stays.
#[test]
fn a_key_changes_what_it_may_and_nothing_of_the_operators() {
    let place = Scratch::new("http-rights");
    let path = directory(&place, "verse", 2);
    let api_keys = vec![
        ApiKey { may_change_adapters: true, ..ApiKey::from("adapters") },
        ApiKey { may_change_role: true, ..ApiKey::from("role") },
        "none".into(),
    ];
    let host = host(&place, ServerOptions { runtime_adapters: true, api_keys, ..local_server() });
    let ask = |key: &str, route: &str, body: &Value| host.begin(key, "POST", route, &body.to_string()).answer();
    let (load, unload, role) = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/role");
    let verse = json!({"lora_name": "verse", "lora_path": path});
    let [tales, named] = ["tales", "verse"].map(|name| json!({"lora_name": name}));
    let answered = || ask("none", "/v1/completions", &completion("tales")).json()["choices"][0]["text"].clone();
    let before = answered();
    let table = [
        ("none", load, &verse, "key_may_not"),
        ("none", unload, &tales, "key_may_not"),
        ("role", load, &verse, "key_may_not"),
        ("role", unload, &tales, "key_may_not"),
        ("adapters", unload, &tales, "adapter_is_fixed"),
        ("adapters", load, &json!({"lora_name": "tales", "lora_path": path}), "adapter_exists"),
        ("adapters", load, &verse, ""),
        ("none", unload, &named, "key_may_not"),
        ("adapters", unload, &named, ""),
        ("none", role, &json!({"role": "prefill"}), "key_may_not"),
        ("adapters", role, &json!({"role": "prefill"}), "key_may_not"),
        ("role", role, &json!({"role": "prefill"}), "role_is_fixed"),
    ];
    for (key, route, body, code) in table {
        let answer = ask(key, route, body);
        let found = if answer.status == 200 { String::new() } else { error(&answer).1 };
        assert_eq!(found, code, "{key} {route} {body}");
    }
    assert_eq!(answered(), before);
}
