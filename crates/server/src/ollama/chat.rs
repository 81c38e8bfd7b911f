//! A body of `POST /api/chat`.

use std::sync::Arc;

use engine::{Chat, ChatMessage, Prompt};
use serde_json::{Map, Value};
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::Fields;

use super::Asked;
use super::options::{self, Begun};
use super::shapes::CHAT;
use super::write::{Kind, Ollama};
use crate::answers::{PreparedRequest, ResponsePlan};
use crate::app::App;
use crate::conversation::{ToolOptions, insert_thought, told_call};
use crate::endpoint::Endpoint;
use crate::openai::chat::logprobs;
use crate::openai::{params, tools};

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(super) fn read(body: Value, app: &App, tenant: Option<Tenant>) -> Result<Asked, ApiError> {
    let Begun { mut fields, name, mut delivery } = options::begin(body, &CHAT, app)?;
    let api = Ollama { kind: Kind::Chat, name };
    let messages = fields.objects("messages")?.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    params::check_messages("messages", &messages)?;
    let offer = tools::read(&mut fields)?.fitted(&app.model.tool_format.dialect, &mut delivery.adjustments)?;
    let (tools, definitions, choice, parallel) = offer.told();
    let (thinking, mut template_kwargs) = options::think(&mut fields, app, &mut delivery.adjustments)?;
    if !definitions.is_empty() {
        template_kwargs.insert("tools".to_owned(), definitions.into());
    }
    let is_load = messages.is_empty();
    // An answer that was begun is gone on with.
    let goes_on = messages.last().is_some_and(|last| {
        last.role == "assistant" && last.content.as_deref().is_some_and(|text| !text.trim().is_empty())
    });
    let chat = Chat { template_kwargs, ..Chat::new(messages) }.continuing(goes_on);
    let mut raw = app.request(Prompt::Chat(chat), tenant);
    let window = options::options(&mut fields, &mut raw, app, &mut delivery.adjustments)?;
    raw.rule = options::format(&mut fields, &mut delivery.adjustments)?;
    raw.logprobs = logprobs(&mut fields)?;
    fields.finish()?;
    if is_load {
        return Ok(Asked::Load(api.loaded(app)));
    }
    let tool_options = ToolOptions { tools, choice, parallel, thinking, is_searched: false };
    let plan = ResponsePlan::of(Endpoint::OllamaChat, delivery, &raw);
    let rename = |error| options::rename(error, "messages");
    let prepared = PreparedRequest::of_one(app, raw, Some(tool_options), plan, Arc::new(api), rename)?;
    Ok(Asked::Answer(Box::new(window.checked(prepared)?)))
}

fn message(mut fields: Fields) -> Result<ChatMessage, ApiError> {
    let role = fields.text("role")?;
    let mut extra = Map::new();
    match role.as_str() {
        "assistant" => {
            let calls = calls(&mut fields)?;
            if !calls.is_empty() {
                extra.insert("tool_calls".to_owned(), calls.into());
            }
            if let Some(thought) = fields.string("thinking")?.filter(|thought| !thought.is_empty()) {
                insert_thought(&mut extra, &thought);
            }
        }
        "tool" => {
            if let Some(name) = fields.short("tool_name")? {
                extra.insert("name".to_owned(), name.into());
            }
            if let Some(id) = fields.short("tool_call_id")? {
                extra.insert("tool_call_id".to_owned(), id.into());
            }
        }
        _ => {}
    }
    for field in ["tool_calls", "thinking", "tool_name", "tool_call_id"] {
        fields.nothing(field, "only an assistant's message and a tool's have it")?;
    }
    // What is empty may be left out; templates read a text wherever nothing is called.
    let content = fields.string("content")?.unwrap_or_default();
    fields.finish()?;
    let content = (!content.is_empty() || !extra.contains_key("tool_calls")).then_some(content);
    Ok(ChatMessage { role, content, extra })
}

/// Calls that the model made before, as templates read them.
fn calls(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let read = |mut call: Fields| {
        let id = call.string("id")?;
        call.string("type")?;
        let mut function = call.inner("function")?;
        call.finish()?;
        // Its place among the calls of an answer.
        function.integer("index")?;
        let name = function.text("name")?;
        let arguments = function.map("arguments")?.unwrap_or_default();
        function.finish()?;
        Ok(told_call(id, &name, &arguments.into()))
    };
    fields.objects("tool_calls")?.into_iter().map(read).collect()
}
