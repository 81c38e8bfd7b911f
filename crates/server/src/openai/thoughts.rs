//! How much is to be thought, in the words of all who speak OpenAI's API.
//!
//! ```text
//! reasoning_effort: "none"                                 OpenAI
//! include_reasoning, thinking_token_budget: 0              vLLM
//! enable_thinking: false, thinking_budget: 0               Qwen
//! thinking: {type: "disabled", budget_tokens: 0}           DeepSeek, GLM, Seed
//! reasoning: {effort: "none", enabled: false, max_tokens}  OpenRouter
//! think: false                                             Ollama
//! chat_template_kwargs: {enable_thinking: false}           the template's own (`ToolFormat::tell`)
//! ```

use serde_json::{Map, Value};
use transport::error::ApiError;
use transport::fields::Fields;

use crate::answers::Adjustments;
use crate::app::App;
use crate::conversation::{Thinking, thought_tokens};

/// Reads all of them. `kwargs`: what the template is told.
pub(crate) fn read(
    fields: &mut Fields,
    app: &App,
    kwargs: &mut Map<String, Value>,
    adjustments: &mut Adjustments,
) -> Result<Thinking, ApiError> {
    let tool_format = &app.model.tool_format;
    let mut wanted = switches(fields, app, adjustments)?;
    if let Some(shown) = fields.boolean("include_reasoning")? {
        wanted.shown = shown;
    }
    if let Some(effort) = fields.string("reasoning_effort")?
        && !wanted.effort(tool_format, "reasoning_effort", &effort, kwargs)?
    {
        adjustments.hints.push("reasoning_effort");
    }
    if let Some(mut reasoning) = fields.object("reasoning")? {
        if let Some(effort) = reasoning.string("effort")?
            && !wanted.effort(tool_format, "reasoning.effort", &effort, kwargs)?
        {
            adjustments.hints.push("reasoning.effort");
        }
        if let Some(is_on) = reasoning.boolean("enabled")? {
            wanted.switch(is_on);
        }
        let field = "reasoning.max_tokens";
        wanted.at_most(thought_tokens(field, reasoning.integer("max_tokens")?, tool_format, adjustments)?);
        wanted.shown &= !reasoning.boolean("exclude")?.unwrap_or(false);
        reasoning.finish()?;
    }
    Ok(wanted)
}

/// Those that OpenAI's newer API shares.
pub(crate) fn switches(fields: &mut Fields, app: &App, adjustments: &mut Adjustments) -> Result<Thinking, ApiError> {
    let tool_format = &app.model.tool_format;
    let mut wanted = Thinking::default();
    for field in ["thinking_token_budget", "thinking_budget"] {
        wanted.at_most(thought_tokens(field, fields.integer(field)?, tool_format, adjustments)?);
    }
    if let Some(is_on) = fields.boolean("enable_thinking")? {
        wanted.switch(is_on);
    }
    match fields.take("think") {
        None => {}
        Some(Value::Bool(is_on)) => wanted.switch(is_on),
        Some(word) => wanted.switch(word != "none"),
    }
    if let Some(mut thinking) = fields.object("thinking")? {
        match thinking.text("type")?.as_str() {
            "enabled" => wanted.switch(true),
            "disabled" => wanted.switch(false),
            // As the model does by itself.
            _ => {}
        }
        let field = "thinking.budget_tokens";
        wanted.at_most(thought_tokens(field, thinking.integer("budget_tokens")?, tool_format, adjustments)?);
        thinking.finish()?;
    }
    Ok(wanted)
}
