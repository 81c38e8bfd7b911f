//! A body of `POST /v1/messages` as a prepared request.

use std::sync::Arc;

use dialect::Tool;
use engine::{Chat, Prompt, RawRequest, Rule};
use serde_json::{Map, Value, json};
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, wrong_type};
use transport::hints;
use transport::shape::Shape;

use super::HINTS;
use super::blocks::Messages;
use super::shapes;
use super::write::Anthropic;
use crate::answers::{Adjustments, PreparedRequest, ResponseOptions, ResponsePlan};
use crate::app::App;
use crate::conversation::{self, Thinking, ToolChoice, ToolOptions};
use crate::endpoint::Endpoint;
use crate::openai::chat::template_kwargs;
use crate::openai::params;
use crate::openai::structured;
use crate::openai::tools::Offer;
use crate::sampling;

/// Tools that are their maker's own, by what their dated names begin with: the model is not told of them.
const ELSEWHERE: [(&str, &str); 10] = [
    ("web_search_", "tools[].web_search"),
    ("web_fetch_", "tools[].web_fetch"),
    ("bash_", "tools[].bash"),
    ("text_editor_", "tools[].text_editor"),
    ("computer_", "tools[].computer"),
    ("browser_", "tools[].browser"),
    ("code_execution_", "tools[].code_execution"),
    ("memory_", "tools[].memory"),
    ("tool_search", "tools[].tool_search"),
    ("mcp_toolset", "tools[].mcp_toolset"),
];

/// The header that names what a client knows of the API beyond its version: names of features, which every field of a
/// request says again itself.
pub(super) const BETA: &str = "anthropic-beta";

const EFFORT: &str = "output_config.effort";
const BUDGET: &str = "thinking.budget_tokens";

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(super) fn read(body: Value, has_beta: bool, app: &App, tenant: Option<Tenant>) -> ApiResult<PreparedRequest> {
    let Asked { raw, mut delivery, tool_options, rule_field } = asked(body, &shapes::MESSAGES, app, tenant)?;
    delivery.adjustments.hints.extend(has_beta.then_some(BETA));
    let plan = ResponsePlan::of(Endpoint::Messages, delivery, &raw);
    let rename = |error| rename(error, rule_field.as_deref());
    PreparedRequest::of_one(app, raw, Some(tool_options), plan, Arc::new(Anthropic), rename)
}

/// How many tokens the prompt has.
pub(super) fn count(body: Value, app: &App, tenant: Option<Tenant>) -> ApiResult<String> {
    let Asked { mut raw, tool_options, .. } = asked(body, &shapes::COUNT, app, tenant)?;
    app.model.tool_format.tell(&mut raw, tool_options.thinking);
    let tokens = app.engine.model().encode(&raw).map_err(|rejection| rename(rejection.into(), None))?;
    Ok(json!({"input_tokens": tokens.len()}).to_string())
}

/// What `RawRequest` calls by the names of other APIs.
fn rename(error: ApiError, rule_field: Option<&str>) -> ApiError {
    error.rename_param("stop", "stop_sequences").rename_param("rule", rule_field.unwrap_or("tools"))
}

struct Asked {
    raw: RawRequest,
    delivery: ResponseOptions,
    tool_options: ToolOptions,
    /// Where the form was.
    rule_field: Option<String>,
}

fn asked(mut body: Value, shape: &'static Shape, app: &App, tenant: Option<Tenant>) -> ApiResult<Asked> {
    let hints = hints::take_of(&mut body, HINTS, shape)?;
    let mut fields = Fields::of(body, shape)?;
    let mut delivery = ResponseOptions {
        timings_detail: fields.boolean("timings_detail")?.unwrap_or(false),
        speculate: fields.boolean("speculate")?.unwrap_or(true),
        ..ResponseOptions::plain(params::model(&mut fields, app)?, fields.boolean("stream")?.unwrap_or(false), hints)
    };
    let adjustments = &mut delivery.adjustments;
    let messages = messages(&mut fields, adjustments)?;
    let offer = offer(&mut fields, adjustments)?.fitted(&app.model.tool_format.dialect, adjustments)?;
    let (tools, definitions, choice, parallel) = offer.told();
    let (effort, form) = output(&mut fields, adjustments)?;
    let (rule, rule_field) = form.unzip();
    let (kwargs, thinking) = thinking(&mut fields, effort, app, adjustments)?;
    let template_kwargs = template_kwargs(&mut fields, definitions, kwargs)?;
    let goes_on = messages.is_begun();
    let chat = Chat { template_kwargs, ..Chat::new(messages.list) }.continuing(goes_on);
    let mut raw = delivery.request(app.request(Prompt::Chat(chat), tenant));
    raw.rule = rule;
    sampling(&mut fields, &mut raw)?;
    settle_the_rest(&mut fields, &mut delivery.adjustments)?;
    fields.finish()?;
    let tool_options = ToolOptions { tools, choice, parallel, thinking, is_searched: false };
    Ok(Asked { raw, delivery, tool_options, rule_field })
}

fn messages(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<Messages> {
    let mut messages = Messages::default();
    messages.system(fields.take("system"))?;
    let items = fields.objects("messages")?;
    if items.is_empty() {
        return Err(ApiError::bad_request("'messages' must not be empty.").with_param("messages"));
    }
    items.into_iter().try_for_each(|item| messages.message(item))?;
    params::check_messages("messages", &messages.list)?;
    adjustments.hints.append(&mut messages.hints);
    Ok(messages)
}

/// What the API has, and fields of this server's own.
fn sampling(fields: &mut Fields, raw: &mut RawRequest) -> ApiResult<()> {
    sampling::read(fields, &mut raw.sampling)?;
    raw.stop = params::texts(fields, "stop_sequences")?;
    raw.max_tokens = fields.integer("max_tokens")?;
    raw.seed = fields.integer("seed")?;
    params::scheduling(fields, raw)
}

fn offer(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<Offer> {
    let mut offer = Offer { parallel: true, ..Offer::default() };
    for mut tool in fields.objects("tools")? {
        let kind_name = tool.name("type");
        let kind = tool.string("type")?.unwrap_or_else(|| "custom".to_owned());
        if let Some((_, hint)) = ELSEWHERE.iter().find(|(prefix, _)| kind.starts_with(prefix)) {
            adjustments.hints.push(*hint);
            continue;
        }
        if kind != "custom" {
            return Err(wrong_type(kind_name, "'custom', or a kind of tool that Anthropic knows"));
        }
        tool_into(&mut tool, &mut offer)?;
        tool.finish()?;
    }
    if let Some(mut choice) = fields.object("tool_choice")? {
        offer.choice = match choice.text("type")?.as_str() {
            "any" => ToolChoice::Required,
            "none" => ToolChoice::Never,
            "tool" => ToolChoice::Named(choice.text("name")?),
            _ => ToolChoice::Auto,
        };
        offer.parallel = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
        choice.finish()?;
    }
    offer.check()?;
    Ok(offer)
}

/// Reads a tool of the caller's own.
fn tool_into(tool: &mut Fields, offer: &mut Offer) -> ApiResult<()> {
    let [field, schema] = ["name", "input_schema"].map(|field| tool.name(field));
    let name = tool.text("name")?;
    let description = tool.string("description")?;
    let strict = tool.boolean("strict")?.unwrap_or(false);
    let parameters = tool.map("input_schema")?.ok_or_else(|| wrong_type(&schema, "a JSON schema"))?.into();
    tool.only("defer_loading", &json!(false), "the model is told of every tool at once")?;
    tool.only("allowed_callers", &json!(["direct"]), "only the model itself calls tools here")?;
    offer.add(Tool { name, parameters, strict }, description.as_deref(), &field, schema)
}

/// `thinking`, and how much effort the answer is worth, as far as they go in the template's words. Where both say
/// whether to think at all the former counts: effort is not thought alone.
fn thinking(
    fields: &mut Fields,
    effort: Option<String>,
    app: &App,
    adjustments: &mut Adjustments,
) -> ApiResult<(Map<String, Value>, Thinking)> {
    let mut kwargs = Map::new();
    let mut wanted = Thinking::default();
    if let Some(effort) = effort {
        // No template knows more.
        let known = if effort == "max" { "xhigh" } else { &effort };
        if !wanted.effort(&app.model.tool_format, EFFORT, known, &mut kwargs)? {
            adjustments.hints.push(EFFORT);
        }
    }
    let Some(mut thinking) = fields.object("thinking")? else { return Ok((kwargs, wanted)) };
    let switch = match thinking.text("type")?.as_str() {
        "enabled" => {
            let budget = thinking.integer("budget_tokens")?.filter(|&tokens| tokens >= 0);
            let budget = budget.ok_or_else(|| wrong_type(BUDGET, "a number of tokens"))?;
            wanted.tokens = conversation::thought_tokens(BUDGET, Some(budget), &app.model.tool_format, adjustments)?;
            Some(true)
        }
        "disabled" => Some(false),
        // As the model does by itself.
        _ => None,
    };
    wanted.shown = match thinking.string("display")?.as_deref() {
        None => switch != Some(false),
        Some("summarized") => {
            // Thoughts are returned whole, without a summary.
            adjustments.hints.push("thinking.display");
            switch != Some(false)
        }
        Some(_) => false,
    };
    thinking.finish()?;
    wanted.is_on = switch.or(wanted.is_on);
    Ok((kwargs, wanted))
}

/// A form, and the field that it was in.
type Asking = (Rule, String);

/// `output_config`: how much effort the answer is worth, and what it must look like; that was `output_format` before.
fn output(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<(Option<String>, Option<Asking>)> {
    let before = fields.object("output_format")?.map(|format| form(format, adjustments)).transpose()?;
    let Some(mut config) = fields.object("output_config")? else { return Ok((None, before)) };
    let effort = config.string("effort")?;
    let format = config.object("format")?;
    config.finish()?;
    let asked = format.map(|format| form(format, adjustments)).transpose()?;
    match (before, asked) {
        (Some((_, before)), Some((_, field))) => {
            let message = format!("An answer can have one form: send '{before}' or '{field}'.");
            Err(ApiError::bad_request(message).with_param(field))
        }
        (before, asked) => Ok((effort, asked.or(before))),
    }
}

fn form(mut format: Fields, adjustments: &mut Adjustments) -> ApiResult<Asking> {
    format.string("type")?;
    let name = format.name("schema");
    let schema = format.take("schema").unwrap_or_default();
    format.finish()?;
    Ok((structured::schema(schema, &name, false, adjustments)?, name))
}

/// What is a hint in some of its values, and what this server does not have.
fn settle_the_rest(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<()> {
    if fields.string("service_tier")?.is_some() {
        adjustments.hints.push("service_tier");
    }
    if let Some(mut management) = fields.object("context_management")? {
        let edits_name = management.name("edits");
        let edits = management.list("edits")?.unwrap_or_default();
        management.finish()?;
        // Thoughts of earlier turns go to the template, which keeps those that its model is used to.
        let keeps_all = |edit: &Value| *edit == json!({"type": "clear_thinking_20251015", "keep": "all"});
        if let Some(at) = edits.iter().position(|edit| !keeps_all(edit)) {
            let why = "conversations are not cut: send what is to be read";
            return Err(ApiError::unsupported(format!("{edits_name}[{at}]"), why));
        }
        adjustments.hints.push("context_management");
    }
    if fields.take("thread").is_some() {
        return Err(ApiError::no_threads());
    }
    Ok(())
}
