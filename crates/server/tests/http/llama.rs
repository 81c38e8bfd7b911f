//! Routes of llama-server and vLLM beside OpenAI's: a text continued, what is served, who sees which requests.

use serde_json::{Value, json};

use crate::client::{Answer, with};
use crate::host::{Host, keyed, small_engine, wait};

const COMPLETION: &str = "/completion";

fn once() -> Value {
    json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0})
}

/// Without what differs from one answer to the next.
fn plain(answer: &Value) -> Value {
    let mut answer = answer.clone();
    answer.as_object_mut().unwrap().retain(|name, _| !["timings", "tokens", "tokens_cached"].contains(&name.as_str()));
    answer
}

#[test]
fn a_text_goes_on_whole_and_by_events() {
    let host = Host::start();
    let ids = host.ask("/tokenize", &json!({"prompt": "Once upon a time"}))["tokens"].clone();
    for (more, stop_type, word) in [
        (json!({}), "limit", ""),
        (json!({"prompt": ids}), "limit", ""),
        (json!({"prompt": ["Once upon a time"], "return_tokens": true}), "limit", ""),
        (
            json!({"prompt": "<|user|>\nTell me a story about a fox.<|end|>\n<|assistant|>\n", "n_predict": -1}),
            "eos",
            "",
        ),
        (
            json!({"prompt": "<|user|>\nTell me a story about a fox.<|end|>\n<|assistant|>\n",
                "stop": [" the", " a"], "n_predict": -1}),
            "word",
            " ",
        ),
        (json!({"json_schema": {"enum": ["fox"]}, "n_predict": -1}), "eos", ""),
        (json!({"grammar": "root ::= \"owl\"", "n_predict": 30}), "eos", ""),
        (json!({"grammar": "", "json_schema": {"enum": ["fox"]}, "n_predict": -1}), "eos", ""),
        (json!({"grammar": ""}), "limit", ""),
        (json!({"temperature": 1, "seed": 3, "top_k": 20, "repeat_penalty": 1.2, "cache_prompt": true}), "limit", ""),
    ] {
        let body = with(&once(), &more);
        let whole = host.ask(COMPLETION, &body);
        let answer = host.post(COMPLETION, &with(&body, &json!({"stream": true})));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (events, done) = answer.events();
        assert!(!done, "this API has no [DONE]");
        let (last, pieces) = events.split_last().unwrap();
        let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
        assert!(pieces.iter().all(|piece| piece["stop"] == false));
        assert_eq!(plain(&with(last, &json!({"content": text}))), plain(&whole), "{body}");
        assert_eq!((&whole["stop"], &whole["stop_type"]), (&json!(true), &json!(stop_type)), "{whole}");
        assert!(whole["stopping_word"].as_str().unwrap().starts_with(word), "{whole}");
        let tokens: Vec<&Value> = pieces.iter().flat_map(|piece| piece["tokens"].as_array().unwrap()).collect();
        assert_eq!(tokens.len() as u64, whole["tokens_predicted"].as_u64().unwrap());
        if body["return_tokens"] == true {
            assert_eq!(json!(tokens), whole["tokens"]);
        }
        let timings = &whole["timings"];
        assert_eq!(timings["predicted_n"], whole["tokens_predicted"]);
        let read = timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap();
        assert_eq!(read, whole["tokens_evaluated"].as_u64().unwrap());
        assert_eq!((&timings["prompt_ms"], &timings["predicted_ms"]), (&timings["prefill_ms"], &timings["decode_ms"]));
    }
    let same = host.ask("/v1/completions", &json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}));
    assert_eq!(host.ask(COMPLETION, &once())["content"], same["choices"][0]["text"]);
    host.quiet();
}

#[test]
fn progress_is_told_before_the_first_token() {
    let host = Host::start();
    let prompt = "Once upon a time there was a fox. ".repeat(20);
    let body = json!({"prompt": prompt, "n_predict": 2, "stream": true, "return_progress": true});
    let (events, _) = host.post(COMPLETION, &body).events();
    let told: Vec<&Value> = events.iter().map(|event| &event["prompt_progress"]).filter(|it| !it.is_null()).collect();
    assert!(told.len() > 1 && told.last().unwrap()["processed"] == told[0]["total"], "{told:?}");
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let host = Host::start();
    for (more, field) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": ["a", "b"]}), "prompt"),
        (json!({"prompt": ["a", 5]}), "prompt"),
        (json!({"prompt": {"prompt_string": "a"}}), "prompt"),
        (json!({"n_predict": 0}), "n_predict"),
        (json!({"n_probs": -2}), "n_probs"),
        (json!({"n_probs": 21}), "n_probs"),
        (json!({"samplers": ["top_k"]}), "samplers"),
        (json!({"mirostat": 1}), "mirostat"),
        (json!({"dry_multiplier": 0.8}), "dry_multiplier"),
        (json!({"dry_sequence_breakers": ["\n", {}]}), "dry_sequence_breakers[1]"),
        (json!({"dry_sequence_breakers": [1.5]}), "dry_sequence_breakers[0]"),
        (json!({"xtc_probability": 0.5}), "xtc_probability"),
        (json!({"id_slot": 2}), "id_slot"),
        (json!({"top_n_sigma": 1}), "top_n_sigma"),
        (json!({"n_cmpl": 2}), "n_cmpl"),
        (json!({"logit_bias": [[1, 2, 3]]}), "logit_bias[0]"),
        (json!({"logit_bias": [[1, 200]]}), "logit_bias"),
        (json!({"repeat_penalty": 99}), "repeat_penalty"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"grammar": "root ::= ("}), "grammar"),
        (json!({"model": "other"}), "model"),
    ] {
        let answer = host.post(COMPLETION, &with(&once(), &more));
        assert!(matches!(answer.status, 400 | 404), "{more}");
        assert_eq!(answer.json()["error"]["param"], field, "{more}: {}", answer.text());
    }
    let off = json!({"n_probs": 0, "mirostat": 0, "mirostat_tau": 5, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_sequence_breakers": ["\n"], "xtc_probability": 0, "xtc_threshold": 0.1, "typical_p": 1, "id_slot": -1,
        "repeat_last_n": 64, "t_max_predict_ms": 0, "min_keep": 0, "n_indent": 0, "logit_bias": [], "lora": [],
        "top_n_sigma": -1, "adaptive_target": -1.0, "adaptive_decay": 0.9, "n_cmpl": 1, "image_data": [], "t_max_prompt_ms": 500});
    assert_eq!(host.ask(COMPLETION, &with(&once(), &off))["content"], host.ask(COMPLETION, &once())["content"]);
    let gap = host.post("/infill", &json!({"input_prefix": "def f(", "input_suffix": "return 1"}));
    assert_eq!((gap.status, &gap.json()["error"]["code"]), (400, &json!("no_infill")), "this model has no marks");
}

#[test]
fn unprefixed_names_are_the_same_routes() {
    let host = Host::start();
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0});
    let text = json!({"prompt": "Once", "max_tokens": 4, "temperature": 0});
    for (path, body) in [("/chat/completions", &chat), ("/completions", &text)] {
        let (short, long) = (host.ask(path, body), host.ask(&format!("/v1{path}"), body));
        assert_eq!(short["choices"], long["choices"]);
    }
    assert_eq!(host.get("/models").json(), host.get("/v1/models").json());
    assert_eq!(host.get("/v1/health").json()["status"], "ok");
    for answer in [host.get("/ping"), host.post("/ping", &json!({}))] {
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn what_is_served_is_told() {
    let host = Host::start();
    let props = host.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 1024);
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(16), &json!("lantern")));
    assert_eq!(props["modalities"], json!({"vision": false, "audio": false}));
    assert!(!props["model_path"].as_str().unwrap().contains('/'), "no place on a disk: {props}");
    let info = host.get("/tokenizer_info").json();
    for field in ["chat_template", "bos_token", "eos_token"] {
        assert_eq!(info[field].as_str().unwrap_or_default(), props[field].as_str().unwrap(), "{field}");
    }
    assert_eq!(info["model_max_length"], 1024);
    assert_eq!(host.get("/load").json(), json!({"server_load": 0}));
    let conversation = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let prompt = host.ask("/apply-template", &conversation)["prompt"].clone();
    assert!(prompt.as_str().unwrap().ends_with("<|assistant|>\n"), "{prompt}");
    let tokens = |body: &Value| host.ask("/tokenize", body)["tokens"].clone();
    assert_eq!(tokens(&json!({"prompt": prompt, "add_special_tokens": false})), tokens(&conversation));
    for (body, field) in [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (with(&conversation, &json!({"warmth": 1})), "warmth"),
        (with(&conversation, &json!({"continue_final_message": true})), "continue_final_message"),
    ] {
        assert_eq!(host.post("/apply-template", &body).json()["error"]["param"], field);
    }
}

const A: &str = "sk-a";
const B: &str = "sk-b";

#[test]
fn slots_are_the_callers_own_requests() {
    let host = Host::with(small_engine(), keyed(&[A, B]));
    let get = |key: &str, path: &str| -> Answer { host.begin(key, "GET", path, "{}").answer() };
    assert_eq!(get(A, "/slots").json(), json!([]));
    let long = json!({"prompt": "Once upon a time", "n_predict": 900, "ignore_eos": true, "stream": true});
    let mut open = host.begin(A, "POST", COMPLETION, &long.to_string());
    open.head().expect("it begins");
    open.chunk(&mut Vec::new());
    let seen = get(A, "/slots").json();
    let others = get(B, "/slots").json();
    let load = get(B, "/load").json();
    assert_eq!(others, json!([]), "nothing of another's");
    if load["server_load"] == 1 {
        assert!(seen[0]["request"].as_str().unwrap().starts_with("llama-"), "{seen}");
        // The ledger learns of a step when it is over: the client may have its token before.
        let is_known = || get(A, "/slots").json()[0]["next_token"][0]["n_decoded"].as_u64() != Some(0);
        wait("the first step's end", is_known);
    }
    assert_eq!(get(A, "/slots?fail_on_no_slot=1").json()["error"]["param"], "fail_on_no_slot");
    drop(open);
    wait("all requests to end", || host.engine.health().open_requests == 0);
    assert_eq!(get(A, "/slots").json(), json!([]));
    let own = [
        "/props",
        "/slots",
        "/models",
        "/tokenizer_info",
        "/load",
        "/ping",
        "/v1/health",
        "/apply-template",
        "/completion",
        "/completions",
        "/chat/completions",
        "/infill",
    ];
    for (method, path) in server::routes().filter(|(_, path)| own.contains(path)) {
        assert_eq!(host.begin("sk-c", method, path, "{}").answer().status, 401, "{path}");
    }
}

/// Ids of tokens, log probabilities, vectors and adapters in llama-server's words.
#[test]
fn llama_servers_other_routes_and_fields_are_there() {
    let host = Host::start();
    let ids = host.ask("/tokenize", &json!({"prompt": "a fox", "add_special_tokens": false}))["tokens"].clone();
    assert_eq!(host.ask("/tokenize", &json!({"content": "a fox"}))["tokens"], ids);
    let pieces = host.ask("/tokenize", &json!({"content": "a fox", "with_pieces": true}))["tokens"].clone();
    let told: String = pieces.as_array().unwrap().iter().map(|token| token["piece"].as_str().unwrap()).collect();
    assert_eq!(told, "a fox");
    assert_eq!(host.ask("/detokenize", &json!({"tokens": ids}))["content"], "a fox");

    let own = host.ask("/v1/embeddings", &json!({"input": "a fox"}))["data"][0]["embedding"].clone();
    for (path, field) in [("/embedding", "content"), ("/embeddings", "input"), ("/embeddings", "content")] {
        assert_eq!(host.ask(path, &json!({field: "a fox"})), json!([{"index": 0, "embedding": [own]}]), "{path}");
    }
    assert_eq!(host.post("/embedding", &json!({})).json()["error"]["param"], "content");
    let rank = json!({"query": "fox", "documents": ["an owl", "a fox"]});
    assert_eq!(host.ask("/reranking", &rank)["results"], host.ask("/v1/rerank", &rank)["results"]);
    assert_eq!(host.get("/lora-adapters").json(), json!([]));
    assert_eq!(host.ask("/lora-adapters", &json!([]))["success"], true);
    assert_eq!(host.post("/lora-adapters", &json!([{"id": 0, "scale": 1}])).json()["error"]["param"], "[0].id");

    let body = with(&once(), &json!({"n_predict": 3, "n_probs": 2}));
    let whole = host.ask(COMPLETION, &body)["completion_probabilities"].clone();
    let (events, _) = host.post(COMPLETION, &with(&body, &json!({"stream": true}))).events();
    let told = events.iter().filter_map(|event| event["completion_probabilities"].as_array()).flatten();
    assert_eq!(whole, told.cloned().collect::<Value>());
    assert_eq!(whole.as_array().unwrap().len(), 3);
    let first = &whole[0];
    assert_eq!((&first["id"], first["top_logprobs"].as_array().unwrap().len()), (&first["top_logprobs"][0]["id"], 2));

    let id = first["id"].as_u64().unwrap();
    for bias in [json!([[id, false]]), json!([[first["token"], -100]]), json!({id.to_string(): -100})] {
        let other = host.ask(COMPLETION, &with(&body, &json!({"logit_bias": bias})));
        assert_ne!(other["completion_probabilities"][0]["id"], first["id"], "{bias}");
    }
    // A window that holds everything is none, one of nothing is no penalty, a smaller one is refused.
    let penalty = |last: i64| with(&once(), &json!({"repeat_penalty": 1.3, "repeat_last_n": last}));
    assert_eq!(host.ask(COMPLETION, &penalty(64))["content"], host.ask(COMPLETION, &penalty(-1))["content"]);
    assert_eq!(host.ask(COMPLETION, &penalty(0))["content"], host.ask(COMPLETION, &once())["content"]);
    assert_eq!(host.post(COMPLETION, &penalty(8)).json()["error"]["param"], "repeat_last_n");
    host.quiet();
}
