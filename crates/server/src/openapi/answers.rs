//! Schemas of answers. Each says what clients can count on: an answer has these fields, of these types, and may have
//! more. The test suite asks every route and holds what it answers to them.

use serde_json::{Map, Value, json};

use crate::answers::Finish;

/// An object that has all of these, and may have more.
fn object(fields: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn list(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn or_null(schema: &Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn one_of(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

/// All of them, by name.
pub(super) fn schemas() -> Value {
    let text = json!({"type": "string"});
    let maybe_text = or_null(&text);
    let count = json!({"type": "integer", "minimum": 0});
    let number = json!({"type": "number"});
    let maybe_count = or_null(&count);
    let yes = json!({"type": "boolean"});
    let any = json!({"type": "object"});
    let constant = |word: &str| json!({ "const": word });

    let usage = object(&[("prompt_tokens", count.clone()), ("total_tokens", count.clone())]);
    let mut answered = usage.clone();
    answered["properties"]["completion_tokens"] = count.clone();
    answered["required"] = json!(["prompt_tokens", "completion_tokens", "total_tokens"]);
    let call = object(&[
        ("id", text.clone()),
        ("type", constant("function")),
        ("function", object(&[("name", text.clone()), ("arguments", text.clone())])),
    ]);
    let mut message = object(&[("role", constant("assistant")), ("content", maybe_text.clone())]);
    message["properties"]["tool_calls"] = list(&call);
    message["properties"]["reasoning"] = text.clone();
    message["properties"]["reasoning_content"] = text.clone();
    let envelope = |kind: &str, choice: &Value| {
        let mut answer = object(&[
            ("id", text.clone()),
            ("object", constant(kind)),
            ("created", count.clone()),
            ("model", text.clone()),
            ("choices", list(choice)),
            ("usage", answered.clone()),
            ("timings", any.clone()),
        ]);
        // Of a worker that has read a prompt for another one.
        answer["properties"]["kv_transfer_params"] = any.clone();
        answer
    };
    let finish = or_null(&one_of(&[Finish::Stop, Finish::Length, Finish::ToolCalls].map(Finish::name)));
    let chat_choice = object(&[("index", count.clone()), ("message", message), ("finish_reason", finish.clone())]);
    let text_choice = object(&[("index", count.clone()), ("text", text.clone()), ("finish_reason", finish)]);
    let tokens_used =
        object(&[("input_tokens", count.clone()), ("output_tokens", count.clone()), ("total_tokens", count.clone())]);
    let item = object(&[("type", one_of(&["message", "reasoning", "function_call"])), ("id", text.clone())]);
    let block = object(&[("type", one_of(&["text", "thinking", "tool_use"]))]);
    let vectors = list(&list(&number));
    let embedding = object(&[
        ("object", constant("embedding")),
        ("index", count.clone()),
        ("embedding", json!({"anyOf": [list(&number), text]})),
    ]);
    let score = object(&[("index", count.clone()), ("object", constant("score")), ("score", number.clone())]);
    let ranked = object(&[("index", count.clone()), ("relevance_score", number.clone())]);
    let classes = object(&[
        ("index", count.clone()),
        ("label", text.clone()),
        ("probs", list(&number)),
        ("num_classes", count.clone()),
    ]);
    let pooled = object(&[("index", count.clone()), ("object", constant("pooling")), ("data", list(&number))]);
    let mut line = object(&[("model", text.clone()), ("created_at", text.clone()), ("done", yes.clone())]);
    let mut generated = line.clone();
    line["properties"]["message"] = object(&[("role", constant("assistant")), ("content", text.clone())]);
    generated["properties"]["response"] = text.clone();
    let ollama_model = object(&[
        ("name", text.clone()),
        ("model", text.clone()),
        ("size", count.clone()),
        ("digest", text.clone()),
        ("details", any.clone()),
    ]);
    let batch_states = ["validating", "failed", "in_progress", "finalizing", "completed", "cancelling", "cancelled"];

    json!({
        "ChatCompletion": envelope("chat.completion", &chat_choice),
        "Completion": envelope("text_completion", &text_choice),
        "Response": object(&[
            ("id", text.clone()),
            ("object", constant("response")),
            ("created_at", count.clone()),
            ("status", one_of(&["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"])),
            ("model", text.clone()),
            ("output", list(&item)),
            ("usage", or_null(&tokens_used)),
        ]),
        "InputTokens": object(&[("object", constant("response.input_tokens")), ("input_tokens", count.clone())]),
        "AnthropicMessage": object(&[
            ("id", text.clone()),
            ("type", constant("message")),
            ("role", constant("assistant")),
            ("model", text.clone()),
            ("content", list(&block)),
            ("stop_reason", one_of(&["end_turn", "max_tokens", "stop_sequence", "tool_use"])),
            ("usage", object(&[("input_tokens", count.clone()), ("output_tokens", count.clone())])),
        ]),
        "CountedTokens": object(&[("input_tokens", count.clone())]),
        "Embeddings": object(&[
            ("object", constant("list")),
            ("model", text.clone()),
            ("data", list(&embedding)),
            ("usage", usage.clone()),
        ]),
        "Scores": object(&[("object", constant("list")), ("data", list(&score)), ("usage", usage.clone())]),
        "Classes": object(&[("object", constant("list")), ("data", list(&classes)), ("usage", usage.clone())]),
        "Pooled": object(&[("object", constant("list")), ("data", list(&pooled)), ("usage", usage.clone())]),
        "Ranking": object(&[("id", text.clone()), ("results", list(&ranked)), ("usage", usage)]),
        "File": object(&[
            ("id", text.clone()),
            ("object", constant("file")),
            ("bytes", count.clone()),
            ("created_at", count.clone()),
            ("filename", text.clone()),
            ("purpose", text.clone()),
        ]),
        "Batch": object(&[
            ("id", text.clone()),
            ("object", constant("batch")),
            ("endpoint", text.clone()),
            ("input_file_id", text.clone()),
            ("status", one_of(&batch_states)),
            ("created_at", maybe_count.clone()),
            ("output_file_id", maybe_text.clone()),
            ("request_counts", object(&[
                ("total", count.clone()),
                ("completed", count.clone()),
                ("failed", count.clone()),
            ])),
        ]),
        "List": object(&[("data", list(&any))]),
        "Model": object(&[("id", text.clone())]),
        "Deleted": object(&[("id", text.clone()), ("deleted", yes.clone())]),
        "Version": object(&[("version", text.clone())]),
        "OllamaModels": object(&[("models", list(&ollama_model))]),
        "OllamaShown": object(&[
            ("details", any.clone()),
            ("model_info", any.clone()),
            ("capabilities", list(&text)),
        ]),
        "OllamaChat": line,
        "OllamaGenerate": generated,
        "LlamaEmbeddings": list(&object(&[("index", count.clone()), ("embedding", vectors.clone())])),
        "OllamaEmbeddings": object(&[("model", text.clone()), ("embeddings", vectors)]),
        "OllamaEmbedding": object(&[("embedding", list(&number))]),
        "LlamaCompletion": object(&[
            ("content", text.clone()),
            ("stop", yes.clone()),
            ("tokens_predicted", count.clone()),
            ("tokens_evaluated", count.clone()),
            ("timings", any.clone()),
        ]),
        "Tokens": object(&[
            ("count", count.clone()),
            ("max_model_len", count.clone()),
            ("tokens", list(&json!({"anyOf": [count, any]}))),
        ]),
        "Prompt": object(&[("prompt", text.clone())]),
        "Load": object(&[("server_load", count.clone())]),
        "Health": object(&[
            ("status", one_of(&["ok", "dead", "draining", "stuck"])),
            ("open_requests", count),
        ]),
        "Object": any.clone(),
        "Objects": list(&any),
        "Error": object(&[("error", object(&[
            ("message", text.clone()),
            ("type", text.clone()),
            ("param", maybe_text.clone()),
            ("code", maybe_text),
        ]))]),
        "AnthropicError": object(&[
            ("type", constant("error")),
            ("error", object(&[("type", text.clone()), ("message", text.clone())])),
        ]),
        "OllamaError": object(&[("error", text)]),
    })
}
