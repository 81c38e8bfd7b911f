//! Answers that must look like something, in every spelling, whole and streamed.

use serde_json::{Value, json};

use crate::client::with;
use crate::host::Host;
use testing::{one_of, part_of};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"animal": {"enum": ["fox", "owl"]}, "legs": {"type": "integer", "minimum": 2, "maximum": 4}},
        "required": ["animal", "legs"],
        "additionalProperties": false,
    })
}

fn is_animal(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str(text) else { return false };
    map.len() == 2
        && ["fox", "owl"].iter().any(|animal| map["animal"] == *animal)
        && map["legs"].as_u64().is_some_and(|legs| (2..=4).contains(&legs))
}

/// Whether a text is an answer.
type Holds = fn(&str) -> bool;

/// Each spelling, and what its answers are.
fn spellings() -> Vec<(Value, Holds)> {
    let strict = json!({"type": "json_schema", "json_schema": {"name": "animal", "strict": true, "schema": schema()}});
    vec![
        (json!({"response_format": strict}), is_animal),
        (json!({"structured_outputs": {"json": schema()}}), is_animal),
        (json!({"structured_outputs": {"json": schema().to_string()}}), is_animal),
        (json!({"guided_json": schema()}), is_animal),
        (json!({"json_schema": schema()}), is_animal),
        (json!({"guided_regex": "[0-9]{2}:[0-9]{2}"}), |text| text.len() == 5 && text.as_bytes()[2] == b':'),
        (json!({"structured_outputs": {"regex": "(ab)+c"}}), |text| text.starts_with("ab") && text.ends_with('c')),
        (json!({"guided_choice": ["yes", "no"]}), |text| ["yes", "no"].contains(&text)),
        (json!({"structured_outputs": {"grammar": "start: \"a\" | \"b\" start"}}), |text| {
            text.trim_start_matches('b') == "a"
        }),
        (json!({"structured_outputs": {"json_object": false}, "guided_choice": ["x"]}), |text| text == "x"),
    ]
}

#[test]
fn every_spelling_holds_in_chat_and_completions_whole_and_streamed() {
    let host = Host::start();
    for (turn, (form, holds)) in part_of(spellings(), 4).enumerate() {
        let paths = [
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Tell me a story"}]})),
            ("/v1/completions", json!({"prompt": "The fox"})),
        ];
        for (path, ask) in one_of(paths, turn) {
            let body = with(&with(&ask, &form), &json!({"max_tokens": 400, "n": 2, "temperature": 1, "seed": 5}));
            let whole = host.ask(path, &body);
            let events = host.stream(path, &with(&body, &json!({"logprobs": path.contains("chat").then_some(true)})));
            for index in 0..2 {
                let choice = &whole["choices"][index];
                let text = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap();
                assert!(choice["finish_reason"] == "length" || holds(text), "{form}: {text:?}");
                let streamed: String = events
                    .iter()
                    .flat_map(|event| event["choices"].as_array().unwrap())
                    .filter(|choice| choice["index"] == index)
                    .filter_map(|choice| choice["delta"]["content"].as_str().or(choice["text"].as_str()))
                    .collect();
                assert_eq!(streamed, text, "{form}: a stream says what the whole answer says");
            }
        }
    }
    host.quiet();
}
