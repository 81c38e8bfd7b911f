//! A body of `POST /api/generate`.
//!
//! ```text
//! prompt, system --template--> tokens ---+--> what the model reads
//! raw: prompt ---------------> tokens ---+
//! prompt, suffix --marks-----> tokens ---+
//! context (tokens of an earlier answer) -+  before them
//! ```

use std::sync::Arc;

use engine::{Chat, ChatMessage, Prompt, RawRequest};
use serde_json::{Map, Value};
use text::infill::TextGap;
use transport::auth::Tenant;
use transport::error::ApiError;

use super::Asked;
use super::options::{self, Begun};
use super::shapes::GENERATE;
use super::write::{Kind, Ollama};
use crate::answers::{PreparedRequest, ResponsePlan};
use crate::app::App;
use crate::conversation::{ToolChoice, ToolOptions};
use crate::endpoint::Endpoint;
use crate::llama::fim;
use crate::openai::{chat, params};

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(super) fn read(body: Value, app: &App, tenant: Option<Tenant>) -> Result<Asked, ApiError> {
    let Begun { mut fields, name, mut delivery } = options::begin(body, &GENERATE, app)?;
    let text = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?.filter(|text| !text.is_empty());
    let context = fields.integers("context")?;
    // One that cannot be used is told, not passed over.
    let model = app.engine.model();
    let has_template = model.chat_template.is_some() || model.template_fault.is_some();
    let is_raw = fields.boolean("raw")?.unwrap_or(false);
    let suffix = fields.string("suffix")?.filter(|text| !text.is_empty());
    let length = |text: &Option<String>| text.as_deref().map_or(0, str::len);
    params::check_text("prompt", text.len() + length(&system) + length(&suffix))?;
    let is_plain = is_raw || suffix.is_some() || !has_template;
    if is_plain && system.is_some() {
        let why = "a system message needs the model's template, and none is used here";
        return Err(ApiError::unsupported("system", why));
    }
    let template = chat::template(fields.string("template")?.filter(|source| !source.is_empty()), "template", app)?;
    if is_plain && template.is_some() {
        let why = "'template' takes the place of the model's, and none is used here";
        return Err(ApiError::unsupported("template", why));
    }
    let (thinking, kwargs) = options::think(&mut fields, app, &mut delivery.adjustments)?;
    let is_load = text.is_empty() && suffix.is_none();
    let prompt = match is_plain {
        true => Prompt::Text(text.clone()),
        false => conversation(system, text.clone(), kwargs, template),
    };
    let mut raw = app.request(prompt, tenant);
    if let Some(behind) = &suffix {
        let gap = TextGap { before: &text, behind, begun: "", files: &[] };
        fim::fill(&gap, app.engine.model(), &mut raw, "suffix")?;
    }
    let window = options::options(&mut fields, &mut raw, app, &mut delivery.adjustments)?;
    raw.rule = options::format(&mut fields, &mut delivery.adjustments)?;
    raw.logprobs = chat::logprobs(&mut fields)?;
    fields.finish()?;
    let api = Ollama { kind: Kind::Generate { tells_context: !is_raw }, name };
    if is_load {
        return Ok(Asked::Load(api.loaded(app)));
    }
    app.model.tool_format.tell(&mut raw, thinking);
    // What is wrong with the tokens of a prompt that is text is wrong with those of the context.
    let blamed = if context.is_empty() { "prompt" } else { "context" };
    let rename = |error| options::rename(error, "prompt").rename_param("prompt", blamed);
    go_on_from(context, &mut raw, app)?;
    let conversation = (!is_raw && suffix.is_none()).then(|| ToolOptions {
        tools: Arc::default(),
        choice: ToolChoice::Never,
        parallel: false,
        thinking,
        is_searched: false,
    });
    let plan = ResponsePlan::of(Endpoint::OllamaGenerate, delivery, &raw);
    let prepared = PreparedRequest::of_one(app, raw, conversation, plan, Arc::new(api), rename)?;
    Ok(Asked::Answer(Box::new(window.checked(prepared)?)))
}

fn conversation(
    system: Option<String>,
    text: String,
    template_kwargs: Map<String, Value>,
    template: Option<String>,
) -> Prompt {
    let system = system.map(|text| ChatMessage::new("system", text));
    let messages = system.into_iter().chain([ChatMessage::new("user", text)]).collect();
    Prompt::Chat(Chat { template_kwargs, template, ..Chat::new(messages) })
}

/// Puts what an earlier answer gave before the prompt, whose own beginning of a text is then none.
fn go_on_from(context: Vec<i64>, raw: &mut RawRequest, app: &App) -> Result<(), ApiError> {
    if context.is_empty() {
        return Ok(());
    }
    let model = app.engine.model();
    let tokens = model.encode(raw).map_err(|rejection| options::rename(rejection.into(), "prompt"))?;
    let bos = model.tokenizer.as_ref().and_then(|tokenizer| tokenizer.bos_id());
    let begins = usize::from(bos.is_some() && tokens.first().copied() == bos);
    let own = tokens.into_iter().skip(begins).map(i64::from);
    raw.prompt = Prompt::Tokens(context.into_iter().chain(own).collect());
    Ok(())
}
