//! Fields that change nothing, limits that are cut, and unknown names: what is done about them is reported.

use engine::EngineOptions;
use serde_json::{Value, json};
use server::ServerOptions;

use crate::client::Answer;
use crate::host::{Host, local_server, small_engine};

fn chat() -> Value {
    let content = json!([{"type": "text", "text": "Tell me a story"}, {"type": "text", "text": "about a fox"}]);
    json!({
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8, "temperature": 1, "seed": 5, "ignore_eos": true, "return_token_ids": true,
    })
}

fn completion() -> Value {
    let fields = chat();
    let mut body = json!({"prompt": "Once upon a time"});
    for (name, value) in fields.as_object().unwrap().iter().filter(|(name, _)| *name != "messages") {
        body[name] = value.clone();
    }
    body
}

/// The tokens of a whole answer or of a stream's events.
fn tokens<'a>(parts: impl IntoIterator<Item = &'a Value>) -> Vec<Value> {
    let ids = |part: &'a Value| part["choices"][0]["token_ids"].as_array().into_iter().flatten();
    parts.into_iter().flat_map(ids).cloned().collect()
}

/// Puts a value where a hint's name says, into the first item of each list on the way.
fn put(body: &mut Value, field: &str, value: &Value) {
    let mut place = body;
    for step in field.split('.') {
        place = match step.strip_suffix("[]") {
            Some(list) => &mut place[list][0],
            None => &mut place[step],
        };
    }
    *place = value.clone();
}

fn told<'a>(answer: &'a Answer, header: &str) -> Option<&'a str> {
    answer.header(&format!("x-twostroke-{header}"))
}

/// The number of hints of both routes.
const OF_BOTH: usize = 12;

#[test]
fn hints_change_no_token_and_are_named_in_the_answer() {
    let host = Host::start();
    let examples = [
        ("metadata", json!({"run": "7", "of": "a test"})),
        ("client_metadata", json!({"program": "agent", "nested": {"a": [1, 2]}})),
        ("session_id", json!("session-1")),
        ("request_id", json!("request-1")),
        ("prompt_cache_key", json!("a key")),
        ("prompt_cache_retention", json!("24h")),
        ("prompt_cache_options", json!({"mode": "explicit", "ttl": "30m"})),
        ("cache_prompt", json!(false)),
        ("stream_options.include_obfuscation", json!(true)),
        ("backend_sampling", json!(false)),
        ("t_max_prompt_ms", json!(500)),
        ("keep_alive", json!("5m")),
        ("store", json!(true)),
        ("verbosity", json!("low")),
        ("usage", json!({"include": true})),
        ("provider", json!({"order": ["a"]})),
        ("models", json!(["a", "b"])),
        ("route", json!("fallback")),
        ("chat_id", json!("c")),
        ("conversation_id", json!("c")),
        ("user_id", json!("u")),
    ];
    let named: Vec<&str> = server::hints().map(|hint| hint.field).collect();
    assert_eq!(named, examples.iter().map(|(field, _)| *field).collect::<Vec<_>>(), "each has an example here");

    for (path, body) in [("/v1/chat/completions", chat()), ("/v1/completions", completion())] {
        let plain = host.post(path, &body);
        assert!(told(&plain, "hints").is_none() && plain.json().get("hints").is_none(), "there were none");
        let expected = tokens([&plain.json()]);
        assert_eq!(expected.len(), 8);
        for (field, value) in &examples {
            let is_of_chats = named.iter().position(|name| name == field).is_some_and(|at| at >= OF_BOTH);
            if path == "/v1/completions" && is_of_chats {
                continue;
            }
            let mut with = body.clone();
            put(&mut with, field, value);
            // It speaks of streams.
            if !field.starts_with("stream_options") {
                let answer = host.post(path, &with);
                assert_eq!((answer.status, told(&answer, "hints")), (200, Some(*field)), "{}", answer.text());
                let answer = answer.json();
                assert_eq!(answer["hints"], json!([field]));
                assert_eq!(tokens([&answer]), expected, "{field}: other tokens");
            }
            with["stream"] = json!(true);
            let answer = host.post(path, &with);
            assert_eq!((answer.status, told(&answer, "hints")), (200, Some(*field)), "{}", answer.text());
            let (events, _) = answer.events();
            let (last, before) = events.split_last().unwrap();
            assert_eq!(last["hints"], json!([field]), "beside the timings");
            assert!(last["timings"].is_object() && before.iter().all(|event| event.get("hints").is_none()));
            assert_eq!(tokens(&events), expected, "{field}: other tokens of a stream");
        }
    }

    // All at once, in the order of the guide.
    let mut all = chat();
    examples.iter().for_each(|(field, value)| put(&mut all, field, value));
    all["stream"] = json!(true);
    let answer = host.post("/v1/chat/completions", &all);
    assert_eq!(told(&answer, "hints"), Some(named.join(", ").as_str()));
    host.quiet();
}

#[test]
fn a_hint_has_its_type_and_what_is_no_hint_is_refused() {
    let host = Host::start();
    let wrong = |kind: &str| if kind.ends_with("a string") { json!([5]) } else { json!("x") };
    for (field, kind) in server::hints().map(|hint| (hint.field, hint.must_be())) {
        let mut body = chat();
        body["stream"] = json!(true);
        put(&mut body, field, &wrong(kind));
        let answer = host.post("/v1/chat/completions", &body);
        let error = answer.json()["error"].clone();
        let place = field.replace("[]", "[0]");
        assert_eq!((answer.status, &error["param"]), (400, &json!(place)), "{error}");
        assert_eq!(error["message"], format!("'{place}' must be {kind}."));
    }
    for (field, value) in [
        // These would have to do something.
        ("messages[].refusal", json!("no")),
        ("messages[].audio", json!({"id": "a"})),
        // Hints have their place.
        ("id", json!("x")),
        ("cache_control", json!({})),
    ] {
        let mut body = chat();
        put(&mut body, field, &value);
        let error = host.post("/v1/chat/completions", &body).json()["error"].clone();
        assert_eq!(error["param"], field.replace("[]", "[0]"), "{error}");
    }
    host.quiet();
}

#[test]
fn unknown_things_and_missing_ones_have_their_own_codes() {
    let host = Host::start();
    for (path, field, value, code) in [
        ("/v1/chat/completions", "temprature", json!(1), "unknown_parameter"),
        ("/v1/chat/completions", "prompt", json!("Hi"), "unknown_parameter"),
        ("/v1/chat/completions", "chat_template", json!("x"), "unsupported_parameter"),
        ("/v1/completions", "logits_processors", json!(["x"]), "unsupported_parameter"),
        ("/v1/completions", "suffix", json!("x"), "no_infill"),
        ("/v1/completions", "best_of", json!(2), "unsupported_parameter"),
        ("/v1/completions", "top_logprobs", json!(2), "unknown_parameter"),
    ] {
        let mut body = if path == "/v1/completions" { completion() } else { chat() };
        put(&mut body, field, &value);
        let answer = host.post(path, &body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{field}: {error}");
        assert_eq!(error["param"], field.replace("[]", "[0]"));
    }
    host.quiet();
}

#[test]
fn what_is_wrong_with_a_number_is_said_in_its_own_words() {
    let host = Host::start();
    let count = |got: i64| format!("between 0 and 20 log probabilities per token (serve --max-logprobs), got {got}");
    for (field, value, said) in [
        ("logprobs", json!(-1), "which serve --max-logprobs -1 allows".to_owned()),
        ("prompt_logprobs", json!(-2), count(-2)),
        ("logprobs", json!(21), count(21)),
        ("logit_bias", json!({"not_a_token_id": 1}), "must be token ids in decimal, not 'not_a_token_id'.".to_owned()),
        ("logit_bias", json!({"k".repeat(5000): 1}), format!("in decimal, not '{}'.", "k".repeat(64))),
        ("max_tokens", json!(-2), "at least 1, or -1 for all that the context leaves, got -2".to_owned()),
        ("n", json!(17), "n must be between 1 and 16, as many as may run together, got 17".to_owned()),
    ] {
        let mut body = completion();
        body[field] = value;
        let answer = host.post("/v1/completions", &body);
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (400, &json!(field)), "{error}");
        assert!(error["message"].as_str().unwrap().ends_with(&said), "{error}");
    }
    host.quiet();
}

#[test]
fn as_many_answers_may_be_asked_for_as_run_together() {
    let engine =
        EngineOptions { max_num_seqs: 200, max_num_batched_tokens: 200, max_model_len: Some(64), ..small_engine() };
    let host = Host::with(engine, local_server());
    let mut body = completion();
    (body["n"], body["max_tokens"]) = (json!(200), json!(2));
    assert_eq!(host.ask("/v1/completions", &body)["choices"].as_array().unwrap().len(), 200);
    body["n"] = json!(201);
    assert_eq!(host.post("/v1/completions", &body).status, 400);
    host.quiet();
}

#[test]
fn more_tokens_than_the_context_has_are_cut_and_the_answer_says_so() {
    let host = Host::with(EngineOptions { max_model_len: Some(128), ..small_engine() }, local_server());
    let greedy = |body: Value| {
        let mut body = body;
        body["temperature"] = json!(0);
        body
    };
    let (chat, completion) = (greedy(chat()), greedy(completion()));
    let all = |path: &str, body: &Value| 128 - host.ask(path, body)["usage"]["prompt_tokens"].as_u64().unwrap();
    for (path, body, field) in [
        ("/v1/chat/completions", &chat, "max_tokens"),
        ("/v1/chat/completions", &chat, "max_completion_tokens"),
        ("/v1/completions", &completion, "max_tokens"),
        ("/v1/completions", &completion, "max_completion_tokens"),
    ] {
        let room = all(path, body);
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove("max_tokens");
        // (asked for, tokens, whether that is a cut)
        for (asked, tokens, is_cut) in [
            (json!(32_000), room, true),
            (json!(i64::MAX), room, true),
            (json!(room + 1), room, true),
            (json!(room), room, false),
            (json!(-1), room, false),
            (json!(3), 3, false),
        ] {
            body[field] = asked.clone();
            let answer = host.post(path, &body);
            let whole = answer.json();
            assert_eq!(whole["usage"]["completion_tokens"], tokens, "{field} {asked}: {}", answer.text());
            assert_eq!(whole["choices"][0]["finish_reason"], "length");
            let expected = is_cut.then(|| json!(tokens));
            assert_eq!(whole.get("max_tokens").cloned(), expected, "{field} {asked}");
            assert_eq!(told(&answer, "max-tokens").map(str::to_owned), expected.map(|tokens| tokens.to_string()));
        }
        body[field] = json!(32_000);
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let answer = host.post(path, &body);
        assert_eq!(told(&answer, "max-tokens"), Some(room.to_string().as_str()));
        let (events, _) = answer.events();
        // With the timings: at the end of the answer, and with the token counts.
        let cut: Vec<_> = events.iter().filter_map(|event| event.get("max_tokens")).collect();
        assert_eq!(cut, [&json!(room); 2]);
        assert_eq!(events.last().unwrap()["max_tokens"], room);
    }
    host.quiet();
    drop(host);

    let host = Host::start();
    // Of several prompts each has its own room, and the least is told.
    let mut several = completion.clone();
    (several["prompt"], several["max_tokens"]) = (json!([vec![5; 1000], vec![5; 1014]]), json!(32_000));
    let whole = host.ask("/v1/completions", &several);
    assert_eq!((&whole["usage"]["completion_tokens"], &whole["max_tokens"]), (&json!(24 + 10), &json!(10)));

    // What was not asked for is no cut; what does not fit into one is refused.
    let mut default = completion.clone();
    default.as_object_mut().unwrap().remove("max_tokens");
    default["prompt"] = json!(vec![5; 1020]);
    let whole = host.ask("/v1/completions", &default);
    assert_eq!((&whole["usage"]["completion_tokens"], whole.get("max_tokens")), (&json!(4), None));
    let mut least = default.clone();
    (least["max_tokens"], least["min_tokens"]) = (json!(32_000), json!(10));
    assert_eq!(host.post("/v1/completions", &least).json()["error"]["param"], "min_tokens");
    host.quiet();
    drop(host);

    let host = Host::with(small_engine(), ServerOptions { cut_max_tokens: false, ..local_server() });
    for (path, body, field) in
        [("/v1/chat/completions", &chat, "max_completion_tokens"), ("/v1/completions", &completion, "max_tokens")]
    {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove("max_tokens");
        body[field] = json!(32_000);
        let error = host.post(path, &body).json()["error"].clone();
        assert_eq!((&error["param"], &error["code"]), (&json!(field), &json!("context_length_exceeded")), "{error}");
        body[field] = json!(-1);
        body["stop"] = json!(" ");
        host.ask(path, &body);
    }
    // The default is no wish.
    assert_eq!(host.ask("/v1/completions", &default)["usage"]["completion_tokens"], 4);
    host.quiet();
}

/// The policies of a server, and fields of vLLM's that both routes have.
#[test]
fn what_vllm_takes_beside_the_usual_is_taken() {
    let server = ServerOptions { max_logprobs: -1, trust_request_chat_template: true, ..local_server() };
    let host = Host::with(small_engine(), server);
    // Of the whole vocabulary, or of named tokens.
    let vocabulary = host.engine.model().config.vocab_size;
    let mut body = json!({"prompt": "The fox", "max_tokens": 2, "logprobs": -1, "return_tokens_as_token_ids": true});
    let all = host.ask("/v1/completions", &body);
    assert_eq!(all["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), vocabulary);
    (body["logprobs"], body["logprob_token_ids"]) = (json!(1), json!([7, 3]));
    let named = host.ask("/v1/completions", &body);
    let keys = |top: &Value| top.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let own = named["choices"][0]["logprobs"]["tokens"][0].as_str().unwrap().to_owned();
    assert_eq!(keys(&named["choices"][0]["logprobs"]["top_logprobs"][0]), [&*own, "token_id:7", "token_id:3"]);
    let body = json!({
        "messages": [{"role": "user", "content": "fox"}], "max_tokens": 2, "logprobs": true, "logprob_token_ids": [7],
        "return_tokens_as_token_ids": true,
    });
    let top = &host.ask("/v1/chat/completions", &body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    assert_eq!((top.as_array().unwrap().len(), &top[0]["token"]), (1, &json!("token_id:7")));

    // Tokens that an answer has, and words that it has not.
    let body = json!({"prompt": "The fox", "max_tokens": 5, "allowed_token_ids": [7], "return_token_ids": true});
    assert_eq!(host.ask("/v1/completions", &body)["choices"][0]["token_ids"], json!([7, 7, 7, 7, 7]));
    let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "bad_words": ["there", "was"]});
    let text = host.ask("/v1/completions", &body)["choices"][0]["text"].clone();
    assert!(!text.as_str().unwrap().contains(" was "), "{text}");

    // Of a prompt its end.
    let body =
        json!({"prompt": [5, 6, 7, 8, 9], "max_tokens": 1, "truncate_prompt_tokens": 2, "return_token_ids": true});
    assert_eq!(host.ask("/v1/completions", &body)["choices"][0]["prompt_token_ids"], json!([8, 9]));
    let body = json!({"input": "a long text about a fox", "truncate_prompt_tokens": 2});
    assert_eq!(host.ask("/v1/embeddings", &body)["usage"]["prompt_tokens"], 2);

    // A message that is gone on with, and both parts in the answer.
    let begun = json!([{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "The fox"}]);
    let mut body = json!({
        "messages": begun, "continue_final_message": true, "add_generation_prompt": false, "max_tokens": 4,
        "temperature": 0, "return_token_ids": true,
    });
    let rest = host.ask("/v1/chat/completions", &body);
    body["echo"] = json!(true);
    let whole = host.ask("/v1/chat/completions", &body);
    let content = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(content(&whole), format!("The fox{}", content(&rest)));
    assert_eq!(whole["choices"][0]["token_ids"], rest["choices"][0]["token_ids"]);
    let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned();
    let streamed: String = host.stream("/v1/chat/completions", &body).iter().map(delta).collect();
    assert_eq!(streamed, content(&whole));

    // A template of the request's own.
    let template = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ tone }}";
    let mut body = json!({
        "messages": [{"role": "user", "content": "fox"}], "chat_template": template,
        "chat_template_kwargs": {"tone": "loud"},
    });
    let tokens = host.ask("/tokenize", &body)["tokens"].clone();
    assert_eq!(host.ask("/detokenize", &json!({"tokens": tokens}))["prompt"], "[fox]loud");
    assert_eq!(host.ask("/apply-template", &body)["prompt"], "[fox]loud");
    (body["max_tokens"], body["return_token_ids"]) = (json!(1), json!(true));
    assert_eq!(host.ask("/v1/chat/completions", &body)["prompt_token_ids"], tokens);
    body["chat_template"] = json!("{% for %}");
    let error = host.post("/v1/chat/completions", &body).json()["error"].clone();
    assert_eq!((&error["param"], &error["code"]), (&json!("chat_template"), &json!(null)), "{error}");
    host.quiet();
}
