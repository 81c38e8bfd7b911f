//! `POST /v1/chat/completions`: a conversation, answered `n` times.

use std::sync::Arc;

use engine::{Chat, ChatMessage, ModelInfo, Prompt};
use serde_json::{Map, Value, json};
use text::chat_template::ChatTemplate;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};
use transport::hints::take_of;
use transport::json;

use crate::answers::{PreparedRequest, ResponsePlan};
use crate::app::App;
use crate::conversation::{ToolOptions, insert_thought, told_call};
use crate::endpoint::Endpoint;
use crate::openai::format::OpenAi;
use crate::openai::parts::text_of_parts;
use crate::openai::{beams, hints, params, shapes, structured, thoughts, tools, transfer};

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(crate) fn read(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<PreparedRequest, ApiError> {
    let hints = take_of(&mut body, &hints::OF_CHATS, &shapes::CHAT)?;
    let mut fields = Fields::of(body, &shapes::CHAT)?;
    let mut delivery = params::delivery(&mut fields, app, hints)?;
    let offer = tools::read(&mut fields)?.fitted(&app.model.tool_format.dialect, &mut delivery.adjustments)?;
    let (tools, definitions, choice, parallel) = offer.told();
    let mut kwargs = Map::new();
    let thinking = thoughts::read(&mut fields, app, &mut kwargs, &mut delivery.adjustments)?;
    let chat = prompt(&mut fields, definitions, kwargs, app)?;
    let echo = fields.boolean("echo")?.unwrap_or(false).then(|| echo(&chat));
    let mut raw = delivery.request(app.request(Prompt::Chat(chat), tenant));
    raw.prediction = params::prediction(&mut fields)?;
    params::sampling(&mut fields, &mut raw)?;
    let max_tokens_name = params::max_tokens(&mut fields, &mut raw)?;
    raw.logprobs = logprobs(&mut fields)?;
    let (rule, rule_field) =
        structured::read(&mut fields, &mut delivery.adjustments)?.map(|asked| (asked.rule, asked.field)).unzip();
    raw.rule = rule;
    raw.remote_role = transfer::read(&mut fields, app, &mut delivery)?;
    let beams = beams::read(&mut fields)?;
    fields.finish()?;
    if beams.is_some() {
        let budget = thinking.tokens.map(|_| "thinking_token_budget");
        if let Some(field) = rule_field.as_deref().or(budget) {
            return Err(beams::refuse_form(field));
        }
        if !tools.is_empty() {
            return Err(ApiError::unsupported("tools", "a beam search weighs whole answers, and calls no tools"));
        }
        beams::check(&mut raw, &mut delivery, app.engine.model())?;
    }

    let tool_options = ToolOptions { tools, choice, parallel, thinking, is_searched: beams.is_some() };
    let echo = echo.into_iter().collect();
    let plan = ResponsePlan { beams, echo, ..ResponsePlan::of(Endpoint::Chat, delivery, &raw) };
    PreparedRequest::of_one(app, raw, Some(tool_options), plan, Arc::new(OpenAi), |error| {
        // The door knows these two by the names they have in completions.
        error
            .rename_param("logprobs", "top_logprobs")
            .rename_param("max_tokens", max_tokens_name)
            .rename_param("rule", rule_field.as_deref().unwrap_or("tools"))
    })
}

/// The fields that make up the prompt; `/tokenize` has them too.
pub(crate) fn prompt(
    fields: &mut Fields,
    definitions: Vec<Value>,
    kwargs: Map<String, Value>,
    app: &App,
) -> Result<Chat, ApiError> {
    let messages = fields.objects("messages")?.into_iter().map(message).collect::<Result<Vec<_>, ApiError>>()?;
    if messages.is_empty() {
        return Err(ApiError::bad_request("'messages' must not be empty.").with_param("messages"));
    }
    params::check_messages("messages", &messages)?;
    let continue_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = match fields.boolean("add_generation_prompt")? {
        Some(true) if continue_final_message => {
            let message = "'continue_final_message' goes on with a turn, and 'add_generation_prompt' begins one.";
            return Err(ApiError::bad_request(message).with_param("continue_final_message"));
        }
        asked => asked.unwrap_or(!continue_final_message),
    };
    let template_kwargs = template_kwargs(fields, definitions, kwargs)?;
    let template = template(fields.string("chat_template")?, "chat_template", app)?;
    Ok(Chat { template_kwargs, add_generation_prompt, continue_final_message, template, ..Chat::new(messages) })
}

/// What the template is given: the body's own words count above `kwargs`.
pub(crate) fn template_kwargs(
    fields: &mut Fields,
    definitions: Vec<Value>,
    kwargs: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    let mut all = fields.map("chat_template_kwargs")?.unwrap_or_default();
    for (name, value) in kwargs {
        all.entry(name).or_insert(value);
    }
    if !definitions.is_empty() && all.insert("tools".to_owned(), definitions.into()).is_some() {
        let message = "Tools are in 'tools' or in 'chat_template_kwargs', not in both.";
        return Err(ApiError::bad_request(message).with_param("chat_template_kwargs"));
    }
    Ok(all)
}

/// The source of a template in place of the model's.
pub(crate) fn template(template: Option<String>, field: &str, app: &App) -> Result<Option<String>, ApiError> {
    if template.is_some() && !app.settings.trust_request_chat_template {
        let why = "a template in a request is a program: it is run with serve --trust-request-chat-template";
        return Err(ApiError::unsupported(field, why));
    }
    Ok(template)
}

/// A conversation with a model that has no template to write it. `instead`: what to do.
pub(crate) fn no_template(model: &ModelInfo, instead: &str) -> ApiError {
    let message = match &model.template_fault {
        Some(fault) => format!("This model's chat template cannot be used ({fault}){instead}."),
        None => format!("This model has no chat template{instead}."),
    };
    ApiError::bad_request(message).with_param("messages")
}

/// A template that a request brought.
pub(crate) fn other_template(own: &ChatTemplate, source: Option<&str>) -> Result<Option<ChatTemplate>, ApiError> {
    let other = source.map(|source| own.with_source(source)).transpose();
    other.map_err(|error| ApiError::bad_request(format!("{error}.")).with_param("chat_template"))
}

/// What `echo` puts before the answer: the last message, if an assistant said it.
fn echo(chat: &Chat) -> String {
    let last = chat.messages.last().filter(|message| message.role == "assistant");
    last.and_then(|message| message.content.clone()).unwrap_or_default()
}

fn message(mut fields: Fields) -> Result<ChatMessage, ApiError> {
    let role = match fields.string("role")?.as_deref() {
        Some("assistant") => "assistant",
        // OpenAI's newer name for the same thing; templates know the older one.
        Some("system" | "developer") => "system",
        Some("tool") => "tool",
        _ => "user",
    };
    let mut extra = Map::new();
    if let Some(name) = fields.string("name")? {
        extra.insert("name".to_owned(), name.into());
    }
    let mut may_be_silent = false;
    match role {
        "assistant" => {
            let calls = tool_calls(&mut fields)?;
            if !calls.is_empty() {
                may_be_silent = true;
                extra.insert("tool_calls".to_owned(), calls.into());
            }
            if let Some(thought) = thought(&mut fields)? {
                may_be_silent = true;
                insert_thought(&mut extra, &thought);
            }
        }
        "tool" => {
            if let Some(id) = fields.string("tool_call_id")? {
                extra.insert("tool_call_id".to_owned(), id.into());
            }
        }
        _ => {}
    }
    for field in ["tool_calls", "tool_call_id", "reasoning", "reasoning_content"] {
        fields.nothing(field, "only an assistant's message and a tool's have it")?;
    }
    let content_name = fields.name("content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) if !parts.is_empty() => Some(text_of_parts(parts, &content_name)?),
        None if may_be_silent => None,
        _ => return Err(wrong_type(content_name, "a string or a list of text parts that is not empty")),
    };
    fields.finish()?;
    Ok(ChatMessage { role: role.to_owned(), content, extra })
}

/// Calls that the model made before, as templates read them: arguments as an object.
fn tool_calls(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let read = |mut call: Fields| {
        // Pieces of a stream that were put together have it.
        call.integer("index")?;
        call.string("type")?;
        let id = call.string("id")?;
        let mut function = call.inner("function")?;
        call.finish()?;
        let name = function.text("name")?;
        let arguments = match function.take("arguments") {
            Some(Value::String(text)) if text.trim().is_empty() => json!({}),
            // What is no JSON was written by the model, and is shown to it as it was.
            Some(Value::String(text)) => json::of_text(&text).unwrap_or(Value::String(text)),
            Some(object) => object,
            None => json!({}),
        };
        function.finish()?;
        Ok(told_call(id, &name, &arguments))
    };
    fields.objects("tool_calls")?.into_iter().map(read).collect()
}

/// What an assistant thought, under either name.
fn thought(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let older = fields.string("reasoning_content")?;
    Ok(fields.string("reasoning")?.or(older).filter(|text| !text.is_empty()))
}

/// `logprobs` says whether, `top_logprobs` how many beside the token's own.
pub(crate) fn logprobs(fields: &mut Fields) -> Result<Option<i64>, ApiError> {
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
