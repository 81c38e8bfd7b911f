//! Fields that chat and completions share: sampling, delivery, and what neither has.

use engine::{ChatMessage, RawRequest, ServiceClass};
use serde_json::Value;
use transport::error::ApiError;
use transport::fields::{Fields, integer, number, wrong_type};
use transport::hints::Hints;
use transport::json::shortened;

use crate::answers::{Adjustments, ResponseOptions};
use crate::app::App;
use crate::openai::parts::text_of_parts;
use crate::sampling;

/// Longest `user` in bytes.
const MAX_USER_BYTES: usize = 512;

/// Bytes of text in one request, prompts or messages together, or of what ids are turned to; and of a prediction. A
/// million tokens, the longest context that models have, of the four bytes that a token of English has.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 20;

/// Refuses a request with more text than [`MAX_TEXT_BYTES`] before any of it is worked on.
pub(crate) fn check_text(param: &str, bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_TEXT_BYTES {
        return Ok(());
    }
    let message = format!("'{param}' has {bytes} bytes of text; at most {MAX_TEXT_BYTES} are read in one request.");
    Err(ApiError::bad_request(message).with_param(param).with_code("string_above_max_length"))
}

/// The same of the texts of messages.
pub(crate) fn check_messages(param: &str, messages: &[ChatMessage]) -> Result<(), ApiError> {
    check_text(param, messages.iter().filter_map(|message| message.content.as_deref()).map(str::len).sum())
}

/// The model's name, checked; none means the one that is served.
pub(crate) fn model(fields: &mut Fields, app: &App) -> Result<String, ApiError> {
    match fields.string("model")? {
        None => Ok(app.model.names[0].clone()),
        Some(name) if app.serves(&name) => Ok(name),
        Some(name) => Err(app.unknown_model(&name)),
    }
}

/// `max_completion_tokens`, or its older name; both only when they agree. Returns the name that was used.
pub(crate) fn max_tokens(fields: &mut Fields, raw: &mut RawRequest) -> Result<&'static str, ApiError> {
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

/// What concerns delivery of what is no answer of a model's: a body, whole.
pub(crate) fn unstreamed(fields: &mut Fields, app: &App, hints: Hints) -> Result<ResponseOptions, ApiError> {
    let adjustments = Adjustments { hints, max_tokens: None };
    Ok(ResponseOptions {
        model: model(fields, app)?,
        user: user(fields)?,
        tier: service_tier(fields)?,
        adjustments,
        ..ResponseOptions::default()
    })
}

/// Reads what concerns delivery.
pub(crate) fn delivery(fields: &mut Fields, app: &App, hints: Hints) -> Result<ResponseOptions, ApiError> {
    let model = model(fields, app)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let mut delivery = ResponseOptions {
        model,
        stream,
        token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
        tokens_as_ids: fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
        timings_detail: fields.boolean("timings_detail")?.unwrap_or(false),
        receipt: fields.boolean("receipt")?.unwrap_or(false),
        speculate: fields.boolean("speculate")?.unwrap_or(true),
        progress: fields.boolean("return_progress")?.unwrap_or(false),
        user: user(fields)?,
        tier: service_tier(fields)?,
        adjustments: Adjustments { hints, max_tokens: None },
        ..ResponseOptions::default()
    };
    if delivery.progress && !stream {
        let message = "'return_progress' has a meaning only when 'stream' is true.";
        return Err(ApiError::bad_request(message).with_param("return_progress"));
    }
    if let Some(mut options) = fields.object("stream_options")? {
        if !stream {
            let message = "'stream_options' has a meaning only when 'stream' is true.";
            return Err(ApiError::bad_request(message).with_param("stream_options"));
        }
        delivery.include_usage = options.boolean("include_usage")?.unwrap_or(false);
        // It refines the former: alone it asks for nothing.
        let continuous = options.boolean("continuous_usage_stats")?.unwrap_or(false);
        delivery.continuous_usage = continuous && delivery.include_usage;
        options.finish()?;
    }
    Ok(delivery)
}

/// `user` and its successor name the person behind the request. They have no effect on the answer by definition; they
/// go into the server's log, which is where an operator looks for them.
fn user(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let mut named = None;
    for field in ["user", "safety_identifier"] {
        let Some(user) = fields.string(field)? else { continue };
        if user.len() > MAX_USER_BYTES {
            let message = format!("'{field}' may have at most {MAX_USER_BYTES} bytes.");
            return Err(ApiError::bad_request(message).with_param(field));
        }
        named = Some(user);
    }
    Ok(named)
}

/// OpenAI's `service_tier`: `flex` is batch work. `auto` leaves the choice to the server, which takes `default`.
fn service_tier(fields: &mut Fields) -> Result<Option<ServiceClass>, ApiError> {
    Ok(fields.string("service_tier")?.map(|tier| match tier.as_str() {
        "priority" => ServiceClass::Priority,
        "flex" => ServiceClass::Flex,
        _ => ServiceClass::Default,
    }))
}

/// Reads what concerns sampling into `raw`. Types are checked here, values at the engine's door.
pub(crate) fn sampling(fields: &mut Fields, raw: &mut RawRequest) -> Result<(), ApiError> {
    raw.n = fields.integer("n")?;
    sampling::read(fields, &mut raw.sampling)?;
    raw.logit_bias = logit_bias(fields)?;
    raw.allowed_token_ids = token_id_list(fields, "allowed_token_ids")?;
    raw.bad_words = texts(fields, "bad_words")?;
    raw.logprob_token_ids = fields.integers("logprob_token_ids")?;
    raw.truncate_prompt_tokens = fields.integer("truncate_prompt_tokens")?;
    raw.seed = fields.integer("seed")?;
    raw.stop = texts(fields, "stop")?;
    raw.stop_token_ids = fields.integers("stop_token_ids")?;
    raw.min_tokens = fields.integer("min_tokens")?;
    raw.ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
    raw.include_stop_str_in_output = fields.boolean("include_stop_str_in_output")?.unwrap_or(false);
    raw.skip_special_tokens = fields.boolean("skip_special_tokens")?.unwrap_or(true);
    raw.prompt_logprobs = fields.integer("prompt_logprobs")?;
    scheduling(fields, raw)
}

/// When the request's turn comes, and whose blocks it may share.
pub(crate) fn scheduling(fields: &mut Fields, raw: &mut RawRequest) -> Result<(), ApiError> {
    raw.priority = fields.integer("priority")?;
    raw.cache_salt = fields.string("cache_salt")?;
    raw.ttft_slo_ms = fields.number("ttft_slo_ms")?;
    raw.tpot_slo_ms = fields.number("tpot_slo_ms")?;
    Ok(())
}

/// OpenAI's `prediction`: a text that the answer will mostly be.
pub(crate) fn prediction(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(mut fields) = fields.object("prediction")? else { return Ok(None) };
    let name = fields.name("content");
    fields.string("type")?;
    let text = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) if !parts.is_empty() => text_of_parts(parts, &name)?,
        _ => return Err(wrong_type(name, "a string or a list of text parts that is not empty")),
    };
    fields.finish()?;
    check_text("prediction", text.len())?;
    Ok(Some(text))
}

/// A list of token ids, where there is one: an empty one says something else than none.
fn token_id_list(fields: &mut Fields, field: &str) -> Result<Option<Vec<i64>>, ApiError> {
    let name = fields.name(field);
    let ids = |items: Vec<Value>| token_ids(&items, |at| format!("{name}[{at}]"));
    fields.list(field)?.map(ids).transpose()
}

/// A text or several.
pub(crate) fn texts(fields: &mut Fields, field: &str) -> Result<Vec<String>, ApiError> {
    let name = fields.name(field);
    let items = match fields.take(field) {
        None => return Ok(Vec::new()),
        Some(Value::String(one)) => return Ok(vec![one]),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(wrong_type(name, "a string or a list of strings")),
    };
    let text = |(at, item)| match item {
        Value::String(text) => Ok(text),
        _ => Err(wrong_type(format!("{name}[{at}]"), "a string")),
    };
    items.into_iter().enumerate().map(text).collect()
}

/// `{"<token id>": bias}`. Each id may be written in one way only, so that no two keys mean the same token.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(i64, f64)>, ApiError> {
    let Some(map) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    let entry = |(key, value): (String, Value)| {
        let id = key.parse::<i64>().ok().filter(|id| id.to_string() == key).ok_or_else(|| {
            let message = format!("The keys of 'logit_bias' must be token ids in decimal, not '{}'.", shortened(&key));
            ApiError::bad_request(message).with_param("logit_bias")
        })?;
        Ok((id, number(&value, || format!("logit_bias.{id}"))?))
    };
    map.into_iter().map(entry).collect()
}

/// A list of token ids, as one prompt.
pub(crate) fn token_ids(items: &[Value], name: impl Fn(usize) -> String) -> Result<Vec<i64>, ApiError> {
    items.iter().enumerate().map(|(at, item)| integer(item, || name(at))).collect()
}
