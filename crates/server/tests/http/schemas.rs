//! Schemas in forms and tools of every API: advice unless their sender says strict, and errors with the place of what
//! was wrong in the words of the API.

use serde_json::{Value, json};
use server::{ParserOptions, ServerOptions};

use crate::client::with;
use crate::host::{Host, local_server, small_engine};

fn of(property: &Value) -> Value {
    json!({"type": "object", "properties": {"m": property}, "required": ["m"], "additionalProperties": false})
}

/// What cannot be held to, and the place of it.
fn odd() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "string", "maxLength": 5, "pattern": "^(?!x)y"}), "pattern"),
        (json!({"type": "None"}), "type"),
    ]
}

/// Each way to ask for a form: the route, the body, where its schema stands, and how strict is said, if it can be.
fn forms(schema: &Value, strict: bool) -> Vec<(&'static str, Value, &'static str)> {
    let ask = json!({"messages": [{"role": "user", "content": "A bird?"}], "max_tokens": 40});
    let named = json!({"name": "x", "schema": schema, "strict": strict});
    let in_responses = json!({"type": "json_schema", "name": "x", "schema": schema, "strict": strict});
    let mut all = vec![
        (
            "/v1/chat/completions",
            with(&ask, &json!({"response_format": {"type": "json_schema", "json_schema": named}})),
            "response_format.json_schema.schema",
        ),
        (
            "/v1/responses",
            json!({"input": "A bird?", "max_output_tokens": 40, "text": {"format": in_responses}}),
            "text.format.schema",
        ),
    ];
    if !strict {
        all.extend([
            (
                "/v1/chat/completions",
                with(&ask, &json!({"response_format": {"type": "json_object", "schema": schema}})),
                "response_format.schema",
            ),
            (
                "/v1/chat/completions",
                with(&ask, &json!({"structured_outputs": {"json": schema}})),
                "structured_outputs.json",
            ),
            ("/v1/completions", json!({"prompt": "x", "max_tokens": 40, "guided_json": schema}), "guided_json"),
            ("/completion", json!({"prompt": "x", "n_predict": 40, "json_schema": schema}), "json_schema"),
            ("/api/chat", with(&ask, &json!({"stream": false, "format": schema, "max_tokens": null})), "format"),
            (
                "/v1/messages",
                with(&ask, &json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}})),
                "output_config.format.schema",
            ),
        ]);
    }
    all
}

/// Each way to have two tools, of which one must be called.
fn tools(schema: &Value, strict: bool) -> Vec<(&'static str, Value, &'static str)> {
    let ask = json!({"messages": [{"role": "user", "content": "A bird?"}], "max_tokens": 40});
    let plain = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let two =
        |tool: fn(&str, &Value, bool) -> Value| json!([tool("weather", &plain, false), tool("send", schema, strict)]);
    vec![
        (
            "/v1/chat/completions",
            with(
                &ask,
                &json!({"tool_choice": "required", "tools": two(|name, schema, strict| {
                    json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}})
                })}),
            ),
            "tools[1].function.parameters",
        ),
        (
            "/v1/responses",
            json!({"input": "A bird?", "max_output_tokens": 40, "tool_choice": "required",
            "tools": two(|name, schema, strict| {
                json!({"type": "function", "name": name, "parameters": schema, "strict": strict})
            })}),
            "tools[1].parameters",
        ),
        (
            "/v1/messages",
            with(
                &ask,
                &json!({"tool_choice": {"type": "any"}, "tools": two(|name, schema, strict| {
                    json!({"name": name, "input_schema": schema, "strict": strict})
                })}),
            ),
            "tools[1].input_schema",
        ),
    ]
}

#[test]
fn advice_is_taken_and_named() {
    let host = Host::start();
    for (property, place) in odd() {
        let schema = of(&property);
        for (path, body, field) in forms(&schema, false).into_iter().chain(tools(&schema, false)) {
            let answer = host.post(path, &body);
            assert_eq!(answer.status, 200, "{path} {field}: {}", answer.text());
            let hints = answer.header("x-twostroke-hints").unwrap_or_default().to_owned();
            assert!(hints.contains(&format!("{field}.properties.m.{place}")), "{path} {field}: {hints}");
        }
    }
    host.quiet();
}

#[test]
fn strict_is_kept_to_or_refused_with_its_place() {
    let host = Host::start();
    for (property, place) in odd() {
        let schema = of(&property);
        for (path, body, field) in forms(&schema, true).into_iter().chain(tools(&schema, true)) {
            let answer = host.post(path, &body);
            assert_eq!(answer.status, 400, "{path} {field}");
            let place = format!("{field}.properties.m.{place}");
            assert!(answer.text().contains(&place), "{path} {place}: {}", answer.text());
            assert!(!answer.text().contains("%json"), "{}", answer.text());
        }
    }
    // What says nothing, or has an equal, is strict as well.
    for property in [
        json!({"type": "string", "format": "path"}),
        json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}}),
    ] {
        let schema = of(&property);
        for (path, body, field) in forms(&schema, true).into_iter().chain(tools(&schema, true)) {
            let answer = host.post(path, &body);
            assert_eq!(answer.status, 200, "{path} {field}: {}", answer.text());
            assert_eq!(answer.header("x-twostroke-hints"), None, "{path} {field}");
        }
    }
    host.quiet();
}

#[test]
fn hundreds_of_tools_are_taken() {
    let host = Host::start();
    let values: Vec<String> = (0..40).map(|at| format!("v{at}")).collect();
    let properties: Value = (0..5)
        .map(|at| (format!("p{at}"), json!({"type": "string", "description": "what it is", "enum": values})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let tool = |at: usize| {
        json!({"type": "function", "function": {"name": format!("tool_{at}"),
            "parameters": {"type": "object", "properties": properties}}})
    };
    for (count, choice) in [(100, "auto"), (150, "required"), (512, "auto")] {
        let tools: Vec<Value> = (0..count).map(tool).collect();
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "tools": tools,
            "tool_choice": choice});
        let answer = host.post("/v1/chat/completions", &body);
        // This model's context is shorter than that many tools.
        let is_known = answer.status == 200 || answer.text().contains("context_length_exceeded");
        assert!(is_known, "{count} {choice}: {}", &answer.text().chars().take(400).collect::<String>());
    }
    host.quiet();
}

/// Calls that are not written as JSON hold to less.
#[test]
fn what_a_format_of_calls_cannot_be_held_to_is_named_or_refused() {
    let parsers = ParserOptions { tool_call_parser: Some("gemma4".to_owned()), reasoning_parser: None };
    let host = Host::with(small_engine(), ServerOptions { parsers, ..local_server() });
    let schema = of(&json!({"type": "string", "pattern": "^a+$"}));
    for strict in [false, true] {
        for (path, body, field) in tools(&schema, strict) {
            let answer = host.post(path, &body);
            assert_eq!(answer.status, if strict { 400 } else { 200 }, "{path} {field}: {}", answer.text());
            let place = format!("{field}.properties.m.pattern");
            let named = if strict { answer.text() } else { answer.header("x-twostroke-hints").unwrap_or_default() };
            assert!(named.contains(&place), "{path} {place}: {named}");
        }
    }
    host.quiet();
}

/// A schema compiles because what nothing fits is left out, and the grammar of calls that has no JSON does not.
#[test]
fn a_grammar_of_calls_that_does_not_compile_is_no_fault_of_advice() {
    let parsers = ParserOptions { tool_call_parser: Some("qwen3_coder".to_owned()), reasoning_parser: None };
    let host = Host::with(small_engine(), ServerOptions { parsers, ..local_server() });
    let never = json!({"type": "array", "prefixItems": [{"type": "integer"}, false], "minItems": 2});
    let schema = json!({"type": "object", "properties": {"m": never}, "additionalProperties": false});
    for strict in [false, true] {
        for (path, body, field) in tools(&schema, strict) {
            let answer = host.post(path, &body);
            assert_eq!(answer.status, if strict { 400 } else { 200 }, "{path} {field}: {}", answer.text());
            let named = if strict { answer.text() } else { answer.header("x-twostroke-hints").unwrap_or_default() };
            assert!(named.contains(field), "{path} {field}: {named}");
        }
    }
    host.quiet();
}
