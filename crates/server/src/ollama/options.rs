//! Fields that `/api/chat` and `/api/generate` share.

use engine::{RawRequest, Rule};
use serde_json::{Map, Value};
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};
use transport::hints::{self, Hints};
use transport::shape::Shape;

use crate::answers::{Adjustments, ResponseOptions};
use crate::app::App;
use crate::conversation::Thinking;
use crate::llama::sampler::{self, Window};
use crate::openai::structured;
use crate::sampling;

/// Names of a model have a tag behind a colon, and this one by default.
const TAG: &str = ":latest";

/// The served model of this name, with or without the tag.
pub(crate) fn served(app: &App, name: &str) -> Option<String> {
    let is_it = |served: &String| served == name || name.strip_suffix(TAG) == Some(served.as_str());
    app.names().into_iter().find(is_it)
}

/// The name as Ollama lists it.
pub(crate) fn tagged(name: &str) -> String {
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    if last.contains(':') { name.to_owned() } else { format!("{name}{TAG}") }
}

/// A body, and what is known of its answer.
pub(super) struct Begun {
    pub(super) fields: Fields,
    /// The model's name as it was asked for, which answers repeat.
    pub(super) name: String,
    pub(super) delivery: ResponseOptions,
}

/// Reads the model's name and how the answer is to be delivered.
pub(super) fn begin(mut body: Value, shape: &'static Shape, app: &App) -> Result<Begun, ApiError> {
    let mut hints = hints::take_of(&mut body, super::HINTS, shape)?;
    let mut fields = Fields::of(body, shape)?;
    let name = fields.string("model")?.unwrap_or_else(|| app.model.names[0].clone());
    let model = served(app, &name).ok_or_else(|| app.unknown_model(&name))?;
    uncut(&mut fields, &["truncate", "shift"], &mut hints)?;
    let delivery = ResponseOptions::plain(model, fields.boolean("stream")?.unwrap_or(true), hints);
    Ok(Begun { fields, name, delivery })
}

/// Ollama's wishes that what does not fit be cut. What fits is not cut there either; what does not is refused here.
pub(crate) fn uncut(fields: &mut Fields, names: &[&'static str], hints: &mut Hints) -> Result<(), ApiError> {
    for &name in names {
        let is_wanted = fields.boolean(name)?.unwrap_or(false);
        hints.extend(is_wanted.then_some(name));
    }
    Ok(())
}

/// Reads `options` into `raw`.
pub(super) fn options(
    fields: &mut Fields,
    raw: &mut RawRequest,
    app: &App,
    adjustments: &mut Adjustments,
) -> Result<Window, ApiError> {
    let Some(mut options) = fields.object("options")? else { return Ok(Window::none()) };
    let window = sampler::read(&mut options, raw, app.engine.model())?;
    raw.max_tokens = sampler::most(&mut options, "num_predict")?;
    context(&mut options, app, &mut adjustments.hints)?;
    options.finish()?;
    Ok(window)
}

/// Reads the `options` of a request for vectors, of which nothing is drawn.
pub(crate) fn of_vectors(fields: &mut Fields, app: &App, hints: &mut Hints) -> Result<(), ApiError> {
    let Some(mut options) = fields.object("options")? else { return Ok(()) };
    context(&mut options, app, hints)?;
    options.finish()
}

/// `num_ctx`: there is one context, and nothing is cut to a smaller one.
fn context(options: &mut Fields, app: &App, hints: &mut Hints) -> Result<(), ApiError> {
    let longest = app.engine.model().max_model_len;
    let field = options.name("num_ctx");
    match options.integer("num_ctx")? {
        Some(asked) if asked < 1 => return Err(wrong_type(field, "at least 1")),
        Some(asked) if asked as u64 > longest as u64 && !app.settings.cut_max_tokens => {
            let message = format!("this server's context is {longest} tokens, and {asked} are asked for.");
            return Err(ApiError::bad_request(message).with_param(field).with_code("context_length_exceeded"));
        }
        Some(_) => hints.push("options.num_ctx"),
        None => {}
    }
    Ok(())
}

/// `format`: `"json"`, or a schema.
pub(super) fn format(fields: &mut Fields, adjustments: &mut Adjustments) -> Result<Option<Rule>, ApiError> {
    match fields.take("format") {
        None => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => Ok(Some(Rule::JsonObject)),
        Some(schema @ Value::Object(_)) => structured::schema(schema, "format", false, adjustments).map(Some),
        Some(_) => Err(wrong_type("format", "'json' or a JSON schema")),
    }
}

/// `think`: whether, or how much; and that in the template's own words.
pub(super) fn think(
    fields: &mut Fields,
    app: &App,
    adjustments: &mut Adjustments,
) -> Result<(Thinking, Map<String, Value>), ApiError> {
    let tool_format = &app.model.tool_format;
    let (mut thinking, mut kwargs) = (Thinking::default(), Map::new());
    let (effort, shown) = match fields.take("think") {
        None => return Ok((thinking, kwargs)),
        Some(Value::Bool(false)) => ("none".to_owned(), false),
        Some(Value::Bool(true)) => ("medium".to_owned(), true),
        Some(level) => (level.as_str().unwrap_or_default().to_owned(), true),
    };
    if tool_format.dialect.thoughts.is_none() {
        // Nothing is thought, as was wished.
        return if shown { Err(does_not_think()) } else { Ok((thinking, kwargs)) };
    }
    if !thinking.effort(tool_format, "think", &effort, &mut kwargs)? {
        adjustments.hints.push("think");
    }
    thinking.shown = shown;
    Ok((thinking, kwargs))
}

fn does_not_think() -> ApiError {
    let why = "this model's chat template shows no way to think: start the server with --reasoning-parser if the model has one";
    ApiError::unsupported("think", why)
}

/// What `RawRequest` calls by other names.
pub(super) fn rename(error: ApiError, prompt: &str) -> ApiError {
    sampling::renamed(error, "options.")
        .rename_param("seed", "options.seed")
        .rename_param("stop", "options.stop")
        .rename_param("max_tokens", "options.num_predict")
        .rename_param("rule", "format")
        .rename_param("logprobs", "top_logprobs")
        .rename_param("chat_template", "template")
        .rename_param("messages", prompt)
}
