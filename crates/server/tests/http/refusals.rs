//! Requests that say something wrong: each gets its status and the name of the field at fault, before a block is taken,
//! and no other client notices.

use serde_json::{Value, json};
use testing::Scratch;

use crate::client::Answer;
use crate::host::{Canaries, Host, local_server, small_engine};

/// Posts a completion body as text.
fn completion(host: &Host, body: &str) -> Answer {
    host.post_bytes("/v1/completions", body.as_bytes())
}

/// The error of an answer, in its one shape.
fn error_of(answer: &Answer) -> Value {
    let body = answer.json();
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{body}");
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    body["error"].clone()
}

/// Each row: a body, and the field that the refusal names (`-`: none). All are 400 unless said otherwise.
fn check(host: &Host, path: &str, rows: &[(&str, &str)]) {
    let steps = host.engine.stats().steps;
    for &(body, param) in rows {
        let answer = host.post_bytes(path, body.as_bytes());
        let shown = &body[..body.len().min(120)];
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        let error = error_of(&answer);
        let named = error["param"].as_str().unwrap_or("-");
        assert_eq!(named, param, "{shown}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{shown}");
    }
    assert_eq!(host.engine.stats().steps, steps, "a refused request reached the engine");
    host.quiet();
}

// row 1
#[test]
fn bodies_that_are_not_one_json_object() {
    let host = Host::start();
    check(
        &host,
        "/v1/completions",
        &[
            ("", "-"),
            ("{", "-"),
            (r#"{"prompt": "a""#, "-"),
            (r#"{"prompt": "a"} {}"#, "-"),
            (r#"{"prompt": "a"}x"#, "-"),
            ("\u{feff}{\"prompt\": \"a\"}", "-"),
            (r#"{"prompt": "a", "n": 1, "n": 2}"#, "n"),
            (r#"{"prompt": "a", "prompt": "b"}"#, "prompt"),
            (r#"{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}"#, "logit_bias.1"),
            ("[]", "-"),
            ("null", "-"),
            ("\"prompt\"", "-"),
            (r#"{'prompt': 'a'}"#, "-"),
            (r#"{"prompt": "a",}"#, "-"),
            (r#"{"prompt": "a", "temperature": NaN}"#, "temperature"),
            (r#"{"prompt": "a", "temperature": -Infinity}"#, "temperature"),
            (r#"{"prompt": "a", "temperature": 1e309}"#, "temperature"),
            (r#"{"prompt": "a", "temperature": .5}"#, "temperature"),
        ],
    );
}

#[test]
fn other_content_types_are_not_read() {
    let host = Host::start();
    let body = br#"{"prompt": "a"}"#;
    for headers in [
        &[("content-type", "text/plain")][..],
        &[("content-type", "application/x-www-form-urlencoded"), ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)")],
        &[("content-type", "application/json; charset=utf-16")],
        &[("content-type", "application/json"), ("content-encoding", "gzip")],
    ] {
        let answer = host.send("POST", "/v1/completions", headers, body);
        assert_eq!(answer.status, 415, "{headers:?}");
        assert_eq!(error_of(&answer)["code"], "unsupported_media_type");
    }
    // `curl -d` calls JSON a form.
    let form = [("content-type", "application/x-www-form-urlencoded"), ("user-agent", "curl/8.14.1")];
    assert_eq!(host.send("POST", "/v1/completions", &form, br#"{"prompt": "a", "max_tokens": 1}"#).status, 200);
    assert_eq!(host.send("POST", "/v1/completions", &form, b"prompt=a").status, 400);
}

// row 2
#[test]
fn nesting_has_an_end() {
    let host = Host::start();
    for depth in [128, 100_000] {
        let body = format!(r#"{{"prompt": {}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert_eq!(completion(&host, &body).status, 400);
        let body = format!(r#"{{"prompt": "a", "logit_bias": {}1{}}}"#, r#"{"a":"#.repeat(depth), "}".repeat(depth));
        assert_eq!(completion(&host, &body).status, 400);
    }
    host.ask("/v1/completions", &json!({"prompt": "The fox", "max_tokens": 1}));
}

// row 3
#[test]
fn a_body_ends_at_the_limit_however_it_is_sent() {
    let mut options = local_server();
    options.body_limit = 64 << 10;
    let host = Host::with(small_engine(), options);
    let big = json!({"prompt": "a".repeat(65 << 10)}).to_string();
    let answer = completion(&host, &big);
    assert_eq!((answer.status, &error_of(&answer)["code"]), (413, &json!("request_too_large")));
    assert_eq!(answer.header("connection"), Some("close"));

    // Announced only: the refusal does not wait for a byte of it.
    let mut connection = host.connect();
    connection.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9999999999\r\n\r\n");
    assert_eq!(connection.answer().status, 413);

    // In chunks, without an announced length, and without an end.
    let mut connection = host.connect();
    connection.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("{:x}\r\n{}\r\n", 16 << 10, " ".repeat(16 << 10));
    for _ in 0..5 {
        connection.send(chunk.as_bytes());
    }
    assert_eq!(connection.answer().status, 413);
    assert!(connection.is_closed());

    // Chunks within the limit are a body like any other.
    let mut connection = host.connect();
    connection.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n");
    for piece in [r#"{"prompt": "The fox","#, r#" "max_tokens": 1}"#] {
        connection.send(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
    }
    connection.send(b"0\r\n\r\n");
    assert_eq!(connection.answer().status, 200);
}

// row 4
#[test]
fn headers_and_urls_have_an_end() {
    let host = Host::start();
    let canaries = Canaries::start(&host);
    let long = "x".repeat(64 << 10);
    let many: String = (0..20_000).map(|at| format!("h{at}: 1\r\n")).collect();
    for (head, statuses) in [
        (format!("GET /health HTTP/1.1\r\nhost: localhost\r\nlong: {long}\r\n\r\n"), [431, 431]),
        (format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"), [431, 431]),
        (format!("GET /{long} HTTP/1.1\r\nhost: localhost\r\n\r\n"), [414, 431]),
    ] {
        let mut connection = host.connect();
        connection.send(head.as_bytes());
        let (status, _) = connection.head().expect("an answer");
        assert!(statuses.contains(&status), "{status}");
        assert!(connection.is_closed());
    }
    canaries.finish();
    host.quiet();
}

// rows 5 to 8
#[test]
fn prompts_that_cannot_be_read() {
    let host = Host::start();
    let model = host.engine.model();
    let vocab = model.config.vocab_size;
    let long_text = json!({"prompt": "fox ".repeat(2000)}).to_string();
    let longer_text = json!({"prompt": "x".repeat(1 << 20)}).to_string();
    let long_ids = json!({"prompt": vec![5; 1024]}).to_string();
    let million_ids = json!({"prompt": vec![5; 1_000_000]}).to_string();
    let beyond = json!({"prompt": [1, vocab]}).to_string();
    let many = json!({"prompt": vec!["a"; 257]}).to_string();
    check(
        &host,
        "/v1/completions",
        &[
            ("{}", "prompt"),
            (r#"{"prompt": null}"#, "prompt"),
            (r#"{"prompt": ""}"#, "prompt"),
            (r#"{"prompt": []}"#, "prompt"),
            (r#"{"prompt": [[]]}"#, "prompt"),
            (r#"{"prompt": ["a", ""]}"#, "prompt"),
            (r#"{"prompt": 5}"#, "prompt"),
            (r#"{"prompt": {"text": "a"}}"#, "prompt"),
            (r#"{"prompt": [1, "a"]}"#, "prompt[1]"),
            (r#"{"prompt": ["a", 1]}"#, "prompt[1]"),
            (r#"{"prompt": ["a", ["b"]]}"#, "prompt[1][0]"),
            (r#"{"prompt": [null]}"#, "prompt[0]"),
            (r#"{"prompt": [1.5]}"#, "prompt[0]"),
            (r#"{"prompt": [-1]}"#, "prompt"),
            (r#"{"prompt": [4294967296]}"#, "prompt"),
            (r#"{"prompt": [18446744073709551615]}"#, "prompt[0]"),
            (&beyond, "prompt"),
            (&many, "prompt"),
            (&long_text, "prompt"),
            (&longer_text, "prompt"),
            (&long_ids, "prompt"),
            (&million_ids, "prompt"),
            (r#"{"prompt": "a", "prompt_embeds": "AAAA"}"#, "prompt_embeds"),
        ],
    );
    let error = error_of(&completion(&host, &long_ids));
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(error["message"].as_str().unwrap().contains("1024"), "both numbers are told: {error}");
}

// row 8
#[test]
fn a_request_that_could_never_fit_is_refused_at_once() {
    let mut engine = small_engine();
    let block_bytes = Host::start().engine.model().kv_bytes_per_token * engine.block_size;
    (engine.kv_cache_bytes, engine.max_model_len) = (Some(8 * block_bytes as u64), Some(256));
    let host = Host::with(engine, local_server());
    check(&host, "/v1/completions", &[(r#"{"prompt": "a", "max_tokens": 100, "n": 8}"#, "n")]);
    host.ask("/v1/completions", &json!({"prompt": "The fox", "max_tokens": 100}));
    host.quiet();
}

// rows 9 to 16
#[test]
fn parameters_out_of_range_or_of_another_type() {
    let host = Host::start();
    let canaries = Canaries::start(&host);
    let vocab = host.engine.model().config.vocab_size;
    let many_biases: Value = (0..1025).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let fields = [
        (r#""max_tokens": 0"#, "max_tokens"),
        (r#""max_tokens": -2"#, "max_tokens"),
        (r#""max_tokens": 9223372036854775808"#, "max_tokens"),
        (r#""max_tokens": 1e300"#, "max_tokens"),
        (r#""max_tokens": 1.5"#, "max_tokens"),
        (r#""max_tokens": "5""#, "max_tokens"),
        (r#""max_tokens": [5]"#, "max_tokens"),
        (r#""max_tokens": true"#, "max_tokens"),
        (r#""min_tokens": -1"#, "min_tokens"),
        (r#""min_tokens": 5, "max_tokens": 4"#, "min_tokens"),
        // Against the default of max_tokens, not against nothing.
        (r#""min_tokens": 17"#, "min_tokens"),
        (r#""min_tokens": 1000000000"#, "min_tokens"),
        (r#""n": 0"#, "n"),
        (r#""n": -3"#, "n"),
        (r#""n": 17"#, "n"),
        (r#""n": 1000000000"#, "n"),
        (r#""n": 1e18"#, "n"),
        (r#""n": "2""#, "n"),
        (r#""best_of": 2"#, "best_of"),
        (r#""n": 2, "best_of": 3"#, "best_of"),
        (r#""temperature": -1"#, "temperature"),
        (r#""temperature": 1e300"#, "temperature"),
        (r#""temperature": "1""#, "temperature"),
        (r#""top_p": 0"#, "top_p"),
        (r#""top_p": 2"#, "top_p"),
        (r#""top_p": -0.1"#, "top_p"),
        (r#""top_k": -5"#, "top_k"),
        (r#""top_k": 1.5"#, "top_k"),
        (r#""top_k": 9999999999"#, "top_k"),
        (r#""min_p": 1.5"#, "min_p"),
        (r#""min_p": -1"#, "min_p"),
        (r#""presence_penalty": 1e30"#, "presence_penalty"),
        (r#""frequency_penalty": -2.1"#, "frequency_penalty"),
        (r#""repetition_penalty": 0"#, "repetition_penalty"),
        (r#""repetition_penalty": 1e30"#, "repetition_penalty"),
        (r#""logit_bias": {"AI": 1}"#, "logit_bias"),
        (r#""logit_bias": {"01": 1}"#, "logit_bias"),
        (r#""logit_bias": {"-1": 1}"#, "logit_bias"),
        (r#""logit_bias": {"1.0": 1}"#, "logit_bias"),
        (&format!(r#""logit_bias": {{"{vocab}": 1}}"#), "logit_bias"),
        (r#""logit_bias": {"1": 101}"#, "logit_bias"),
        (r#""logit_bias": {"1": "x"}"#, "logit_bias.1"),
        (r#""logit_bias": [[1, 1]]"#, "logit_bias"),
        (&format!(r#""logit_bias": {many_biases}"#), "logit_bias"),
        (r#""logprobs": 21"#, "logprobs"),
        (r#""logprobs": -1"#, "logprobs"),
        (r#""logprobs": 1000000"#, "logprobs"),
        (r#""logprobs": true"#, "logprobs"),
        (r#""prompt_logprobs": 1000000"#, "prompt_logprobs"),
        (&format!(r#""stop": {}"#, json!(vec!["x"; 17])), "stop"),
        (&format!(r#""stop": {}"#, json!(vec!["x"; 100_000])), "stop"),
        (&format!(r#""stop": "{}""#, "x".repeat(257)), "stop"),
        (&format!(r#""stop": "{}""#, "x".repeat(1 << 20)), "stop"),
        (r#""stop": """#, "stop"),
        (r#""stop": ["a", ""]"#, "stop"),
        (r#""stop": ["a", 1]"#, "stop[1]"),
        (r#""stop": 1"#, "stop"),
        (r#""stop_token_ids": [-1]"#, "stop_token_ids"),
        (r#""stop_token_ids": ["1"]"#, "stop_token_ids[0]"),
        (&format!(r#""stop_token_ids": {}"#, json!(vec![1; 129])), "stop_token_ids"),
        (r#""seed": 18446744073709551616"#, "seed"),
        (r#""seed": 9223372036854775808"#, "seed"),
        (r#""seed": 1.5"#, "seed"),
        (r#""priority": 3000000000"#, "priority"),
        (r#""cache_salt": """#, "cache_salt"),
        (r#""cache_salt": "a\nb""#, "cache_salt"),
        (r#""cache_salt": "é""#, "cache_salt"),
        (&format!(r#""cache_salt": "{}""#, "s".repeat(129)), "cache_salt"),
        (&format!(r#""user": "{}""#, "u".repeat(10 << 10)), "user"),
        (r#""user": 7"#, "user"),
        (r#""stream": "true""#, "stream"),
        (r#""stream_options": {"include_usage": true}"#, "stream_options"),
        (r#""stream": true, "stream_options": {"include_usage": 1}"#, "stream_options.include_usage"),
        (r#""echo": 1"#, "echo"),
        (r#""suffix": "end""#, "suffix"),
        (r#""temprature": 1"#, "temprature"),
        (r#""": 1"#, ""),
        (r#""tools": []"#, "tools"),
        (r#""use_beam_search": 1"#, "use_beam_search"),
        (r#""response_format": {"type": "xml"}"#, "response_format.type"),
        (r#""response_format": {"type": "json_schema", "json_schema": {}}"#, "response_format.json_schema.schema"),
        (r#""guided_json": "{""#, "guided_json"),
        (r#""guided_regex": "(""#, "guided_regex"),
        (r#""guided_choice": []"#, "guided_choice"),
        (r#""guided_choice": ["a", 1]"#, "guided_choice[1]"),
        (r#""guided_grammar": "start: nowhere""#, "guided_grammar"),
        (r#""response_format": {"type": "structural_tag", "structures": []}"#, "response_format.structures"),
        (r#""response_format": {"type": "structural_tag", "format": {}}"#, "response_format.format"),
        (r#""structured_outputs": {"structural_tag": "{}"}"#, "structured_outputs.structural_tag"),
        (r#""structured_outputs": {"colour": "red"}"#, "structured_outputs.colour"),
        (r#""structured_outputs": {"regex": "a", "choice": ["b"]}"#, "structured_outputs.choice"),
        (r#""guided_json": {}, "grammar": "root ::= \"a\"""#, "grammar"),
        (r#""grammar": "no grammar""#, "grammar"),
        (r#""json_schema": 7"#, "json_schema"),
        (r#""allowed_token_ids": []"#, "allowed_token_ids"),
        (r#""allowed_token_ids": ["a"]"#, "allowed_token_ids[0]"),
        (r#""truncate_prompt_tokens": -2"#, "truncate_prompt_tokens"),
        (r#""bad_words": [""]"#, "bad_words"),
        (r#""bad_words": [1]"#, "bad_words[0]"),
        (r#""logprob_token_ids": [1]"#, "logprob_token_ids"),
        (r#""logprobs": -1"#, "logprobs"),
        (r#""model": 5"#, "model"),
    ];
    let bodies: Vec<_> =
        fields.iter().map(|(field, param)| (format!(r#"{{"prompt": "a", {field}}}"#), *param)).collect();
    for (body, param) in &bodies {
        let answer = completion(&host, body);
        let shown = &body[..body.len().min(120)];
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
        assert_eq!(error_of(&answer)["param"].as_str().unwrap(), *param, "{shown}: {}", answer.text());
        // An error repeats nothing long, whatever it was about.
        assert!(answer.body.len() < 500, "{shown}: {}", answer.text());
    }
    canaries.finish();
    host.quiet();
}

#[test]
fn every_edge_of_the_ranges_is_inside() {
    let host = Host::start();
    for fields in [
        json!({"temperature": 0}),
        json!({"temperature": 1e-320}),
        json!({"temperature": 2, "top_p": 1e-9, "top_k": 1, "min_p": 1}),
        json!({"top_k": -1}),
        json!({"top_k": 4_000_000_000u64}),
        json!({"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 10}),
        json!({"seed": -1}),
        json!({"seed": i64::MIN}),
        json!({"n": 16, "max_tokens": 2}),
        json!({"n": 2, "best_of": 2}),
        json!({"max_tokens": 5.0}),
        json!({"max_tokens": -1}),
        json!({"max_tokens": i64::MAX}),
        json!({"min_tokens": 16}),
        json!({"logprobs": 20}),
        json!({"stop": vec!["\u{1f98a}"; 16]}),
        json!({"logit_bias": {"0": -100, "5": 100}}),
        json!({"cache_salt": "s".repeat(128)}),
        json!({"user": "somebody", "priority": -5, "response_format": {"type": "text"}, "suffix": "", "use_beam_search": false}),
        json!({"stop": null, "n": null, "seed": null, "model": null, "logit_bias": null, "suffix": null, "stream": null}),
    ] {
        let mut body = fields;
        body["prompt"] = json!("The fox");
        host.ask("/v1/completions", &body);
    }
    host.quiet();
}

// row 12: biases that leave nothing to choose from
#[test]
fn banning_every_token_is_no_way_to_nan() {
    let host = Host::start();
    let vocab = host.engine.model().config.vocab_size;
    let banned: Value =
        (0..vocab.min(1024)).map(|id| (id.to_string(), json!(-100))).collect::<serde_json::Map<_, _>>().into();
    let answer = host
        .ask("/v1/completions", &json!({"prompt": "The fox", "logit_bias": banned, "max_tokens": 4, "logprobs": 1}));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    host.quiet();
}

#[test]
fn chat_has_refusals_of_its_own() {
    let host = Host::start();
    let user = r#""messages": [{"role": "user", "content": "Hi"}]"#;
    let deep = format!(r#"{{"messages": [{{"role": "user", "content": "{}"}}]}}"#, "fox ".repeat(2000));
    let with = |field: &str| format!("{{{user}, {field}}}");
    check(
        &host,
        "/v1/chat/completions",
        &[
            ("{}", "messages"),
            (r#"{"messages": []}"#, "messages"),
            (r#"{"messages": "Hi"}"#, "messages"),
            (r#"{"messages": ["Hi"]}"#, "messages[0]"),
            (r#"{"messages": [{}]}"#, "messages[0].role"),
            (r#"{"messages": [{"role": "user"}]}"#, "messages[0].content"),
            (r#"{"messages": [{"role": "user", "content": null}]}"#, "messages[0].content"),
            (r#"{"messages": [{"role": "user", "content": []}]}"#, "messages[0].content"),
            (r#"{"messages": [{"role": "user", "content": 5}]}"#, "messages[0].content"),
            (r#"{"messages": [{"role": "user", "content": [5]}]}"#, "messages[0].content[0]"),
            (r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#, "messages[0].content[0].text"),
            (r#"{"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}"#, "messages[0].content[0].type"),
            // row 20: text only
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}]}"#,
                "messages[0].content[1].type",
            ),
            (r#"{"messages": [{"role": "wizard", "content": "Hi"}]}"#, "messages[0].role"),
            (r#"{"messages": [{"role": "function", "content": "Hi", "name": "f"}]}"#, "messages[0].role"),
            (
                r#"{"messages": [{"role": "assistant", "content": "Hi", "tool_calls": [{"id": "1"}]}]}"#,
                "messages[0].tool_calls[0].function",
            ),
            (&deep, "messages"),
            (&with(r#""max_tokens": 0"#), "max_tokens"),
            (&with(r#""max_completion_tokens": -5"#), "max_completion_tokens"),
            (&with(r#""max_tokens": 5, "max_completion_tokens": 6"#), "max_tokens"),
            (&with(r#""min_tokens": 100000"#), "min_tokens"),
            (&with(r#""logprobs": 3"#), "logprobs"),
            (&with(r#""top_logprobs": 3"#), "top_logprobs"),
            (&with(r#""logprobs": true, "top_logprobs": 1000000"#), "top_logprobs"),
            (&with(r#""logprobs": false, "top_logprobs": 1"#), "top_logprobs"),
            (&with(r#""tools": {}"#), "tools"),
            (&with(r#""tool_choice": "required""#), "tool_choice"),
            (&with(r#""functions": [{}]"#), "functions"),
            (&with(r#""parallel_tool_calls": 1"#), "parallel_tool_calls"),
            (&with(r#""modalities": ["text", "audio"]"#), "modalities"),
            (&with(r#""audio": {"voice": "x"}"#), "audio"),
            (&with(r#""prediction": {}"#), "prediction.type"),
            (&with(r#""reasoning_effort": "heroic""#), "reasoning_effort"),
            (&with(r#""service_tier": "scale""#), "service_tier"),
            (&with(r#""service_tier": 1"#), "service_tier"),
            (&with(r#""service_tier": "flex", "priority": 3"#), "priority"),
            // This server has not measured its steps.
            (&with(r#""ttft_slo_ms": 500"#), "ttft_slo_ms"),
            (&with(r#""tpot_slo_ms": 50"#), "tpot_slo_ms"),
            (&with(r#""tpot_slo_ms": "50ms""#), "tpot_slo_ms"),
            // row 28: the model's own template only
            (&with(r#""chat_template": "{{ 1 }}""#), "chat_template"),
            (&with(r#""chat_template_kwargs": []"#), "chat_template_kwargs"),
            (&with(r#""prompt": "Hi""#), "prompt"),
            (&with(r#""best_of": 1"#), "best_of"),
        ],
    );
    let accepted = json!({
        "messages": [{"role": "developer", "content": "Be brief.", "name": "op"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
            {"role": "assistant", "content": "Hello.", "refusal": null, "tool_calls": [], "audio": null},
            {"role": "user", "content": ""}],
        "max_tokens": 2, "tools": [], "tool_choice": "none", "modalities": ["text"], "store": false, "metadata": {},
        "service_tier": "auto", "user": "ann\u{1b}[31m\nfake log line", "chat_template_kwargs": {"enable_thinking": false},
    });
    host.ask("/v1/chat/completions", &accepted);
    host.quiet();
}

// row 18
#[test]
fn a_model_that_is_not_served_is_not_found_and_not_remembered() {
    let host = Host::start();
    for name in ["gpt-4", "", "../lantern", "LANTERN", &"m".repeat(1 << 20)] {
        let answer = host.post("/v1/completions", &json!({"prompt": "a", "model": name}));
        assert_eq!(answer.status, 404);
        let error = error_of(&answer);
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
        assert!(answer.body.len() < 500);
    }
    assert!(!host.get("/metrics").text().contains("gpt-4"), "a client's text became a label");
}

// row 19
#[test]
fn text_is_unicode_or_refused() {
    let host = Host::start();
    let answer = completion(&host, r#"{"prompt": "a\u12"}"#);
    assert_eq!((answer.status, error_of(&answer)["param"].as_str()), (400, Some("prompt")));
    for bytes in [&b"\xc0\xaf"[..], b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\xa6"] {
        let body = [br#"{"prompt": ""#, bytes, br#""}"#].concat();
        assert_eq!(host.post_bytes("/v1/completions", &body).status, 400, "{bytes:?}");
    }
    for text in ["\0", "\u{fffd}", "\u{202e}olleh", &"\u{301}".repeat(200), "\u{1f98a}\u{200d}\u{1f98a}", "\u{10ffff}"]
    {
        for path in ["/v1/completions", "/tokenize"] {
            let mut body = json!({ "prompt": text });
            if path == "/v1/completions" {
                body["max_tokens"] = json!(1);
            }
            let answer = host.post(path, &body);
            assert_eq!(answer.status, 200, "{text:?}: {}", answer.text());
        }
    }
    host.quiet();
}

#[test]
fn tokenize_and_detokenize_check_their_fields() {
    let host = Host::start();
    let vocab = host.engine.model().config.vocab_size;
    check(
        &host,
        "/tokenize",
        &[
            ("{}", "prompt"),
            (r#"{"prompt": 5}"#, "prompt"),
            (r#"{"prompt": "a", "messages": []}"#, "messages"),
            (r#"{"prompt": "a", "add_special_tokens": 1}"#, "add_special_tokens"),
            (r#"{"messages": [{"role": "wizard", "content": "a"}]}"#, "messages[0].role"),
        ],
    );
    check(
        &host,
        "/detokenize",
        &[
            ("{}", "tokens"),
            (r#"{"tokens": "a"}"#, "tokens"),
            (r#"{"tokens": [1, -1]}"#, "tokens[1]"),
            (&format!(r#"{{"tokens": [{vocab}]}}"#), "tokens[0]"),
            (r#"{"tokens": [1], "skip": true}"#, "skip"),
        ],
    );
}

// row 79
#[test]
fn no_error_shows_what_is_inside() {
    let host = Host::start();
    let secret = "zq-secret-prompt";
    for body in [
        format!(r#"{{"prompt": "{secret}", "n": 0}}"#),
        format!(r#"{{"prompt": "{secret}", "stop": ["{secret}", 1]}}"#),
        format!(r#"{{"prompt": "{secret}"#),
        format!(r#"{{"prompt": "{secret}", "model": "{secret}"}}"#),
        format!(r#"{{"prompt": "{secret}", "temperature": "{secret}"}}"#),
    ] {
        let answer = completion(&host, &body);
        assert!(answer.status >= 400);
        for leak in [secret, "Error(", "src/", ".rs", "0x", "Some("] {
            assert!(!answer.text().contains(leak), "{leak} in {}", answer.text());
        }
    }
}

#[test]
fn a_broken_template_refuses_conversations_and_nothing_else() {
    let copy = Scratch::copy_of(&testing::lantern(), "server-broken-template");
    std::fs::write(copy.join("chat_template.jinja"), "\n{% if %}").expect("written");
    let host = Host::of(copy.to_path_buf(), small_engine(), local_server(), |forward| (forward, None));
    assert!(host.engine.model().notices.iter().any(|notice| notice.contains("chat_template line 2")), "it is told");
    let text = json!({"prompt": "Once upon a time", "max_tokens": 2});
    assert_eq!(host.ask("/v1/completions", &text)["usage"]["completion_tokens"], 2);
    let raw =
        json!({"model": "lantern", "prompt": "Once", "raw": true, "stream": false, "options": {"num_predict": 2}});
    assert!(host.ask("/api/generate", &raw)["response"].is_string());
    let bare = json!({"messages": [{"role": "user", "content": "hi"}]});
    let mut bounded = bare.clone();
    bounded["max_tokens"] = json!(2);
    for (path, chat) in
        [("/v1/chat/completions", &bare), ("/tokenize", &bare), ("/apply-template", &bare), ("/v1/messages", &bounded)]
    {
        let answer = host.post(path, chat);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.text().contains("chat_template line 2"), "{path}: {}", answer.text());
    }
    // Not a plain continuation in the conversation's place.
    let told = host.post("/api/generate", &json!({"model": "lantern", "prompt": "hi", "stream": false}));
    assert!(told.status == 400 && told.text().contains("chat_template line 2"), "{}", told.text());
}
