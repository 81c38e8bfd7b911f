//! `POST /v1/chat/completions`: a conversation, answered `n` times.

use engine::{ChatMessage, Prompt, RawRequest};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::auth::Tenant;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::openai::answer::{Form, Job, Plan};
use crate::openai::params;

/// Reads the body into a request that has passed the door. Tokenizes: not for the threads that serve connections.
pub(crate) fn read(body: Value, app: &App, tenant: Option<Tenant>) -> Result<Job, ApiError> {
    let mut fields = Fields::of(body)?;
    let delivery = params::delivery(&mut fields, app)?;
    let mut raw = RawRequest::new(prompt(&mut fields)?);
    raw.tenant = tenant;
    raw.may_be_urgent = app.keys.may_be_urgent(tenant.as_ref());
    raw.class = delivery.tier;
    raw.receipt = delivery.receipt;
    raw.speculate = delivery.speculate;
    raw.progress = delivery.progress;
    raw.prediction = params::prediction(&mut fields)?;
    raw.now = Some(app.now() as i64);
    params::sampling(&mut fields, &mut raw)?;
    let max_tokens_name = max_tokens(&mut fields, &mut raw)?;
    raw.logprobs = logprobs(&mut fields)?;
    refuse_what_is_missing(&mut fields)?;
    params::refuse_what_is_missing(&mut fields)?;
    fields.finish()?;

    let logprobs = raw.logprobs.is_some();
    let prompt_logprobs = raw.prompt_logprobs.is_some();
    let stop = raw.stop.clone();
    let predicted = raw.prediction.is_some();
    let num_answers = raw.n.unwrap_or(1);
    let request = app.engine.validate(raw).map_err(|rejection| {
        // The door knows these two by the names they have in completions.
        ApiError::from(rejection).rename_param("logprobs", "top_logprobs").rename_param("max_tokens", max_tokens_name)
    })?;
    Ok(Job {
        requests: vec![request],
        plan: Plan {
            form: Form::Chat,
            delivery,
            basis: None,
            // The door has checked it.
            num_answers: num_answers as usize,
            predicted,
            stop,
            logprobs,
            prompt_logprobs,
            echo: Vec::new(),
        },
    })
}

/// The fields that make up the prompt; `/tokenize` has them too.
pub(crate) fn prompt(fields: &mut Fields) -> Result<Prompt, ApiError> {
    let items = match fields.list("messages")? {
        None => return Err(ApiError::bad_request("'messages' is missing.").with_param("messages")),
        Some(items) if items.is_empty() => {
            return Err(ApiError::bad_request("'messages' must not be empty.").with_param("messages"));
        }
        Some(items) => items,
    };
    let messages =
        items.into_iter().enumerate().map(|(at, item)| message(at, item)).collect::<Result<Vec<_>, ApiError>>()?;
    params::check_text("messages", messages.iter().map(text_bytes).sum())?;
    let add_generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(true);
    let template_kwargs = fields.object("chat_template_kwargs")?.map(Fields::into_map).unwrap_or_default();
    fields.unsupported("chat_template", "a template in a request is not supported: the model's own is used")?;
    fields.only("continue_final_message", &json!(false), "continuing the last message is not supported")?;
    Ok(Prompt::Chat { messages, template_kwargs, add_generation_prompt })
}

fn text_bytes(message: &ChatMessage) -> usize {
    message.content.as_deref().map_or(0, str::len)
}

fn message(at: usize, item: Value) -> Result<ChatMessage, ApiError> {
    let mut fields = Fields::nested(item, format!("messages[{at}]"))?;
    let role_name = fields.name("role");
    let role = match fields.string("role")?.as_deref() {
        Some("user") => "user",
        Some("assistant") => "assistant",
        // OpenAI's newer name for the same thing; templates know the older one.
        Some("system" | "developer") => "system",
        Some("tool" | "function") => {
            return Err(ApiError::unsupported(role_name, "tools are not supported"));
        }
        _ => return Err(wrong_type(role_name, "one of 'system', 'developer', 'user' and 'assistant'")),
    };
    let mut extra = Map::new();
    if let Some(name) = fields.string("name")? {
        extra.insert("name".to_owned(), name.into());
    }
    for field in ["tool_calls", "tool_call_id", "function_call"] {
        fields.only(field, &json!([]), "tools are not supported")?;
    }
    // What this server's own answers carry as null may be sent back with the conversation.
    for field in ["refusal", "audio", "annotations", "reasoning_content"] {
        fields.only(field, &json!([]), "only 'role', 'content' and 'name' are read from a message")?;
    }
    let content_name = fields.name("content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) if !parts.is_empty() => text_of_parts(parts, &content_name)?,
        _ => return Err(wrong_type(content_name, "a string or a list of text parts that is not empty")),
    };
    fields.finish()?;
    Ok(ChatMessage { role: role.to_owned(), content: Some(content), extra })
}

/// Text parts stand on lines of their own, as vLLM joins them.
pub(crate) fn text_of_parts(parts: Vec<Value>, path: &str) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::nested(part, format!("{path}[{at}]"))?;
        let type_name = fields.name("type");
        match fields.string("type")?.as_deref() {
            Some("text") => {}
            Some(_) => {
                return Err(ApiError::unsupported(
                    type_name,
                    "this server reads text only: parts must be of type 'text'",
                ));
            }
            None => return Err(wrong_type(type_name, "'text'")),
        }
        let text_name = fields.name("text");
        texts.push(fields.string("text")?.ok_or_else(|| wrong_type(text_name, "a string"))?);
        fields.finish()?;
    }
    Ok(texts.join("\n"))
}

/// `max_completion_tokens`, or its older name; both only when they agree. Returns the name that was used.
fn max_tokens(fields: &mut Fields, raw: &mut RawRequest) -> Result<&'static str, ApiError> {
    let old = fields.integer("max_tokens")?;
    let new = fields.integer("max_completion_tokens")?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let message = "'max_tokens' and 'max_completion_tokens' are one limit under two names: send one of them.";
        return Err(ApiError::bad_request(message).with_param("max_tokens"));
    }
    raw.max_tokens = new.or(old);
    Ok(if new.is_some() { "max_completion_tokens" } else { "max_tokens" })
}

/// `logprobs` says whether, `top_logprobs` how many beside the token's own.
fn logprobs(fields: &mut Fields) -> Result<Option<i64>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs")? {
        Some(top) if wanted => Ok(Some(top)),
        Some(0) | None => Ok(wanted.then_some(0)),
        Some(_) => {
            let message = "'top_logprobs' needs 'logprobs' to be true.";
            Err(ApiError::bad_request(message).with_param("top_logprobs"))
        }
    }
}

/// Chat's own fields that this server does not have; the values that say "off" are taken.
fn refuse_what_is_missing(fields: &mut Fields) -> Result<(), ApiError> {
    fields.only("tools", &json!([]), "tools are not supported")?;
    fields.only("functions", &json!([]), "tools are not supported")?;
    fields.only("tool_choice", &json!("none"), "tools are not supported: only 'none' can be chosen")?;
    fields.only("function_call", &json!("none"), "tools are not supported: only 'none' can be chosen")?;
    fields.only("modalities", &json!(["text"]), "this server answers in text only")?;
    fields.only("store", &json!(false), "answers are not stored")?;
    fields.only("metadata", &json!({}), "answers are not stored, so there is nothing to attach metadata to")?;
    fields.only("echo", &json!(false), "conversations are not echoed")?;
    fields.only("include_reasoning", &json!(true), "reasoning is part of the text and is always included")?;
    let missing = [
        ("parallel_tool_calls", "tools are not supported"),
        ("audio", "this server answers in text only"),
        (
            "reasoning_effort",
            "reasoning effort is not supported: use 'chat_template_kwargs' if the template has a switch",
        ),
        ("verbosity", "verbosity is not supported"),
        ("web_search_options", "web search is not supported"),
        ("prompt_cache_key", "the prefix cache needs no key; 'cache_salt' keeps prompts apart"),
        ("prompt_cache_retention", "the prefix cache keeps what was used last"),
        ("documents", "documents are not supported"),
        ("mm_processor_kwargs", "this server reads text only"),
    ];
    for (field, why) in missing {
        fields.unsupported(field, why)?;
    }
    Ok(())
}
