//! A body of `POST /v1/responses` as a prepared request.

use std::sync::Arc;

use engine::{Chat, ChatMessage, Prompt, RawRequest, Rule};
use serde_json::{Map, Value, json};
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, wrong_type};

use super::items::{self, Messages};
use super::shapes::{CHOICE, CREATE, FORMAT, TOOL};
use super::write::{ResponseEcho, Responses};
use super::{references, truncation};
use crate::answers::{Adjustments, PreparedRequest, ResponsePlan};
use crate::app::App;
use crate::conversation::{Thinking, ToolChoice, ToolOptions};
use crate::endpoint::Endpoint;
use crate::openai::params;
use crate::openai::tools::{self, Offer};
use crate::openai::{hints, structured, thoughts};
use crate::sampling;

/// Tools that run on a server of their maker's, and kinds that are no functions: the model is not told of them.
const ELSEWHERE: [(&str, &str); 16] = [
    ("namespace", "tools[].namespace"),
    ("custom", "tools[].custom"),
    ("web_search", "tools[].web_search"),
    ("web_search_2025_08_26", "tools[].web_search"),
    ("web_search_preview", "tools[].web_search_preview"),
    ("web_search_preview_2025_03_11", "tools[].web_search_preview"),
    ("file_search", "tools[].file_search"),
    ("code_interpreter", "tools[].code_interpreter"),
    ("computer", "tools[].computer"),
    ("computer_use_preview", "tools[].computer_use_preview"),
    ("image_generation", "tools[].image_generation"),
    ("local_shell", "tools[].local_shell"),
    ("shell", "tools[].shell"),
    ("apply_patch", "tools[].apply_patch"),
    ("mcp", "tools[].mcp"),
    ("tool_search", "tools[].tool_search"),
];

/// What else can be included: of tools that run elsewhere, and encrypted thoughts. They have no effect.
const OF_TOOLS: [(&str, &str); 7] = [
    ("reasoning.encrypted_content", "include[reasoning.encrypted_content]"),
    ("file_search_call.results", "include[file_search_call.results]"),
    ("web_search_call.results", "include[web_search_call.results]"),
    ("web_search_call.action.sources", "include[web_search_call.action.sources]"),
    ("message.input_image.image_url", "include[message.input_image.image_url]"),
    ("computer_call_output.output.image_url", "include[computer_call_output.output.image_url]"),
    ("code_interpreter_call.outputs", "include[code_interpreter_call.outputs]"),
];

/// What a word of `include` asks for.
pub(super) enum Included {
    Logprobs,
    /// What is never there; the hint that says so.
    Nothing(&'static str),
}

pub(super) fn included(word: &str, field: impl FnOnce() -> String) -> ApiResult<Included> {
    if word == "message.output_text.logprobs" {
        return Ok(Included::Logprobs);
    }
    let nothing = OF_TOOLS.iter().find(|(name, _)| *name == word).map(|(_, hint)| Included::Nothing(hint));
    nothing.ok_or_else(|| wrong_type(field(), "'message.output_text.logprobs', or what else OpenAI includes"))
}

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(crate) fn read(body: Value, app: &App, tenant: Option<Tenant>) -> ApiResult<(PreparedRequest, Arc<ResponseEcho>)> {
    let Asked { raw, plan, echo, tool_options } = asked(body, app, tenant)?;
    let rule_field = raw.rule.is_some().then_some("text.format.schema");
    let (writer, rename) = (Arc::new(Responses(echo.clone())), |error| rename(error, rule_field));
    Ok((PreparedRequest::of_one(app, raw, Some(tool_options), plan, writer, rename)?, echo))
}

/// How many tokens the input has.
pub(crate) fn count(body: Value, app: &App, tenant: Option<Tenant>) -> ApiResult<String> {
    let Asked { mut raw, tool_options, .. } = asked(body, app, tenant)?;
    app.model.tool_format.tell(&mut raw, tool_options.thinking);
    let tokens = app.engine.model().encode(&raw).map_err(|rejection| rename(rejection.into(), None))?;
    Ok(json!({"object": "response.input_tokens", "input_tokens": tokens.len()}).to_string())
}

/// What `RawRequest` calls by the names of other APIs.
fn rename(error: ApiError, rule_field: Option<&str>) -> ApiError {
    error
        .rename_param("messages", "input")
        .rename_param("max_tokens", "max_output_tokens")
        .rename_param("logprobs", "top_logprobs")
        .rename_param("rule", rule_field.unwrap_or("tools"))
}

struct Asked {
    raw: RawRequest,
    plan: ResponsePlan,
    echo: Arc<ResponseEcho>,
    tool_options: ToolOptions,
}

fn asked(mut body: Value, app: &App, tenant: Option<Tenant>) -> ApiResult<Asked> {
    let metadata = body.get("metadata").filter(|metadata| metadata.is_object()).cloned();
    let hints = items::without_foreign(&mut body, |body| hints::take(body, &CREATE))?;
    let mut fields = Fields::of(body, &CREATE)?;
    let mut delivery = params::delivery(&mut fields, app, hints)?;
    let input = fields.take("input").unwrap_or_default();
    let input = references::resolved(input, &app.responses, tenant)?;
    let previous = fields.string("previous_response_id")?;
    let before = match &previous {
        Some(id) => {
            let before = app.responses.messages(tenant, id);
            before.map_err(|error| error.with_param("previous_response_id"))?
        }
        None => Vec::new(),
    };
    let mut messages = Messages::after(before);
    messages.read(input.clone())?;
    delivery.adjustments.hints.extend(messages.passed_over.drain(..));
    params::check_messages("input", &messages.list)?;
    let instructions = fields.string("instructions")?;
    let conversation = messages.list.clone();
    let told = instructions.iter().map(|text| ChatMessage::new("system", text.as_str())).chain(messages.list).collect();

    let shown_tools = fields.take("tools").unwrap_or_else(|| json!([]));
    let shown_choice = fields.take("tool_choice").unwrap_or_else(|| "auto".into());
    let offer = offer(&mut fields, shown_tools.clone(), shown_choice.clone(), &mut delivery.adjustments)?;
    let shows_parallel = offer.parallel;
    let (tools, definitions, choice, parallel) =
        offer.fitted(&app.model.tool_format.dialect, &mut delivery.adjustments)?.told();
    let mut kwargs = fields.map("chat_template_kwargs")?.unwrap_or_default();
    if !definitions.is_empty() {
        kwargs.insert("tools".to_owned(), definitions.into());
    }
    let mut thinking = thoughts::switches(&mut fields, app, &mut delivery.adjustments)?;
    let mut told_kwargs = Map::new();
    let reasoning = reasoning(&mut fields, app, &mut thinking, &mut told_kwargs, &mut delivery.adjustments)?;
    for (name, value) in told_kwargs {
        // What is said in the template's own words counts.
        kwargs.entry(name).or_insert(value);
    }
    let (format, rule) = text_format(&mut fields, &mut delivery.adjustments)?;

    let chat = Chat { template_kwargs: kwargs, ..Chat::new(told) };
    let mut raw = delivery.request(app.request(Prompt::Chat(chat), tenant));
    raw.max_tokens = fields.integer("max_output_tokens")?;
    raw.rule = rule;
    // Of the sampling fields one answer can have; the API itself has the first two.
    sampling::read(&mut fields, &mut raw.sampling)?;
    raw.seed = fields.integer("seed")?;
    params::scheduling(&mut fields, &mut raw)?;
    let stores = fields.boolean("store")?.unwrap_or(true);
    let background = fields.boolean("background")?.unwrap_or(false);
    if background && !stores {
        let message = "An answer in the background has to be stored: 'store' must not be false.";
        return Err(ApiError::bad_request(message).with_param("store"));
    }
    let top_logprobs = fields.integer("top_logprobs")?;
    for (index, item) in fields.list("include")?.unwrap_or_default().iter().enumerate() {
        let name = || format!("include[{index}]");
        let word = item.as_str().ok_or_else(|| wrong_type(name(), "a string"))?;
        match included(word, name)? {
            Included::Logprobs => raw.logprobs = Some(top_logprobs.unwrap_or(0)),
            Included::Nothing(hint) => delivery.adjustments.hints.push(hint),
        }
    }
    if raw.logprobs.is_none() && top_logprobs.is_some_and(|top| top != 0) {
        // Elsewhere too they are told where they are asked to be included.
        delivery.adjustments.hints.push("top_logprobs");
    }
    let truncation = if fields.string("truncation")?.as_deref() == Some("auto") { "auto" } else { "disabled" };
    let max_tool_calls = fields.integer("max_tool_calls")?;
    if max_tool_calls.is_some() {
        // It counts calls of tools that the server runs, which this one never does.
        delivery.adjustments.hints.push("max_tool_calls");
    }
    fields.finish()?;
    if delivery.receipt || delivery.progress || delivery.token_ids {
        let field = match (delivery.receipt, delivery.progress) {
            (true, _) => "receipt",
            (_, true) => "return_progress",
            _ => "return_token_ids",
        };
        return Err(ApiError::unsupported(field, "it is in /v1/chat/completions"));
    }
    let echo = ResponseEcho {
        instructions,
        previous,
        metadata: metadata.unwrap_or_else(|| json!({})),
        tools: shown_tools,
        tool_choice: shown_choice,
        parallel: shows_parallel,
        reasoning,
        format,
        max_output_tokens: raw.max_tokens,
        temperature: raw.sampling.temperature,
        top_p: raw.sampling.top_p,
        top_logprobs: raw.logprobs.unwrap_or(0),
        truncation,
        max_tool_calls,
        stores: stores.then_some(tenant),
        background,
        input,
        conversation,
    };
    if truncation == "auto" {
        truncation::fit(&mut raw, thinking, app);
    }
    let plan = ResponsePlan::of(Endpoint::Responses, delivery, &raw);
    let tool_options = ToolOptions { tools, choice, parallel, thinking, is_searched: false };
    Ok(Asked { raw, plan, echo: Arc::new(echo), tool_options })
}

fn offer(fields: &mut Fields, tools: Value, choice: Value, adjustments: &mut Adjustments) -> ApiResult<Offer> {
    let mut offer = Offer { parallel: fields.boolean("parallel_tool_calls")?.unwrap_or(true), ..Offer::default() };
    let Value::Array(items) = tools else { return Err(wrong_type("tools", "a list")) };
    for (at, item) in items.into_iter().enumerate() {
        let mut tool = Fields::nested(item, format!("tools[{at}]"), &TOOL)?;
        let kind_name = tool.name("type");
        let kind = tool.string("type")?;
        if let Some((name, hint)) = ELSEWHERE.iter().find(|(name, _)| kind.as_deref() == Some(name)) {
            adjustments.hints.push(*hint);
            offer.kinds.push((name, String::new()));
            continue;
        }
        if kind.as_deref() != Some("function") {
            return Err(wrong_type(kind_name, "'function', or a kind of tool that OpenAI knows"));
        }
        tools::function_into(&mut tool, None, &mut offer)?;
        tool.finish()?;
    }
    offer.choice = match choice {
        Value::String(word) => tools::by_word(&word)
            .ok_or_else(|| wrong_type("tool_choice", "'none', 'auto', 'required' or a function by its name"))?,
        object => {
            let mut named = Fields::nested(object, "tool_choice".to_owned(), &CHOICE)?;
            let choice = match named.text("type")?.as_str() {
                "function" => ToolChoice::Named(named.text("name")?),
                _ => tools::only(&mut named, &mut offer)?,
            };
            named.finish()?;
            choice
        }
    };
    offer.check()?;
    Ok(offer)
}

/// What is to be thought, and what the answer says of that.
fn reasoning(
    fields: &mut Fields,
    app: &App,
    thinking: &mut Thinking,
    kwargs: &mut Map<String, Value>,
    adjustments: &mut Adjustments,
) -> ApiResult<Value> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(json!({"effort": null, "summary": null})) };
    let effort = reasoning.string("effort")?;
    if let Some(effort) = &effort
        && !thinking.effort(&app.model.tool_format, "reasoning.effort", effort, kwargs)?
    {
        adjustments.hints.push("reasoning.effort");
    }
    let summary = reasoning.string("summary")?.or(reasoning.string("generate_summary")?);
    if summary.is_some() {
        // Thoughts are returned whole, without a summary.
        adjustments.hints.push("reasoning.summary");
    }
    reasoning.finish()?;
    Ok(json!({"effort": effort, "summary": summary}))
}

/// `text.format`, as it is and as a rule.
fn text_format(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<(Value, Option<Rule>)> {
    let plain = json!({"type": "text"});
    let Some(mut text) = fields.object("text")? else { return Ok((plain, None)) };
    if text.string("verbosity")?.is_some() {
        adjustments.hints.push("text.verbosity");
    }
    let format = text.take("format");
    text.finish()?;
    let Some(format) = format else { return Ok((plain, None)) };
    let mut read = Fields::nested(format.clone(), "text.format".to_owned(), &FORMAT)?;
    let rule = match read.text("type")?.as_str() {
        "json_object" => Some(Rule::JsonObject),
        "json_schema" => {
            read.string("name")?;
            read.string("description")?;
            let strict = read.boolean("strict")?.unwrap_or(false);
            let schema = read.take("schema").ok_or_else(|| wrong_type("text.format.schema", "a JSON schema"))?;
            Some(structured::schema(schema, "text.format.schema", strict, adjustments)?)
        }
        _ => None,
    };
    read.finish()?;
    Ok((format, rule))
}
