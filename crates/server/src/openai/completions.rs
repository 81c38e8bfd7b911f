//! `POST /v1/completions`: one text or several, each continued `n` times.

use std::sync::Arc;

use engine::{Prompt, RawRequest};
use serde_json::Value;
use text::infill::TextGap;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use crate::answers::{PreparedRequest, ResponsePlan};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::llama::fim;
use crate::openai::format::OpenAi;
use crate::openai::{beams, hints, params, shapes, structured, transfer};

/// Most prompts in one request.
const MAX_PROMPTS: usize = 256;
/// Default of OpenAI and vLLM.
const DEFAULT_MAX_TOKENS: i64 = 16;

/// Reads the body into validated requests. Tokenizes: not for the threads that serve connections.
pub(crate) fn read(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<PreparedRequest, ApiError> {
    let hints = hints::take(&mut body, &shapes::COMPLETION)?;
    let mut fields = Fields::of(body, &shapes::COMPLETION)?;
    let mut delivery = params::delivery(&mut fields, app, hints)?;
    let mut raw = delivery.request(app.request(Prompt::Tokens(Vec::new()), tenant));
    raw.prediction = params::prediction(&mut fields)?;
    params::sampling(&mut fields, &mut raw)?;
    let max_tokens_name = params::max_tokens(&mut fields, &mut raw)?;
    raw.logprobs = fields.integer("logprobs")?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let (rule, rule_field) =
        structured::read(&mut fields, &mut delivery.adjustments)?.map(|asked| (asked.rule, asked.field)).unzip();
    raw.rule = rule;
    best_of(&mut fields, raw.n)?;
    raw.remote_role = transfer::read(&mut fields, app, &mut delivery)?;
    let beams = beams::read(&mut fields)?;
    let suffix = fields.string("suffix")?.filter(|text| !text.is_empty());
    let prompts = prompts(fields.take("prompt"))?;
    if prompts.len() > 1 && raw.prediction.is_some() {
        let message = "'prediction' is of the answer to one prompt: send the others in requests of their own.";
        return Err(ApiError::bad_request(message).with_param("prediction"));
    }
    let text_bytes = |prompt: &Prompt| if let Prompt::Text(text) = prompt { text.len() } else { 0 };
    let behind = suffix.as_deref().map_or(0, str::len);
    params::check_text("prompt", prompts.iter().map(|prompt| text_bytes(prompt) + behind).sum())?;
    fields.finish()?;
    if beams.is_some() {
        if let Some(field) = &rule_field {
            return Err(beams::refuse_form(field));
        }
        if echo && (raw.logprobs.is_some() || raw.max_tokens == Some(0)) {
            let why = "a beam search knows no log probabilities of the prompt that it would repeat";
            return Err(ApiError::unsupported("echo", why));
        }
        beams::check(&mut raw, &mut delivery, app.engine.model())?;
    }

    let shows_prompt_logprobs = raw.prompt_logprobs.is_some();
    if echo && raw.prompt_logprobs.is_none() {
        // An echoed prompt shows its log probabilities like the answer's. A request for nothing but its own prompt is
        // one that scores it, whether or not the scores are shown.
        let only_the_prompt = (raw.max_tokens == Some(0)).then_some(0);
        raw.prompt_logprobs = raw.logprobs.or(only_the_prompt);
    }
    let asked = raw.max_tokens;
    if asked.is_none() {
        // The default is clamped to the context that is left.
        (raw.max_tokens, raw.cut_max_tokens) = (Some(DEFAULT_MAX_TOKENS), true);
    }
    let mut echoes = Vec::new();
    let mut requests = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let text = if let Prompt::Text(text) = &prompt { echo.then(|| text.clone()) } else { None };
        let mut raw = RawRequest { prompt, ..raw.clone() };
        if let Some(behind) = &suffix {
            fill(&mut raw, behind, app)?;
        }
        let request = app.validate(raw, &delivery.model).map_err(|rejection| {
            ApiError::from(rejection)
                .rename_param("max_tokens", max_tokens_name)
                .rename_param("rule", rule_field.as_deref().unwrap_or_default())
        })?;
        delivery.adjustments.see(asked, &request);
        if echo {
            echoes.push(text.unwrap_or_else(|| app.decode(request.prompt())));
        }
        requests.push(request);
    }
    let prompt_logprobs = shows_prompt_logprobs;
    let plan =
        ResponsePlan { beams, prompt_logprobs, echo: echoes, ..ResponsePlan::of(Endpoint::Completion, delivery, &raw) };
    Ok(PreparedRequest { requests, plan, writer: Arc::new(OpenAi) })
}

/// `suffix`: what is written belongs between the prompt and this.
fn fill(raw: &mut RawRequest, behind: &str, app: &App) -> Result<(), ApiError> {
    let Prompt::Text(before) = std::mem::replace(&mut raw.prompt, Prompt::Tokens(Vec::new())) else {
        let message = "'suffix' goes with a prompt that is a text: its tokens have marks around them.";
        return Err(ApiError::bad_request(message).with_param("suffix"));
    };
    let gap = TextGap { before: &before, behind, begun: "", files: &[] };
    fim::fill(&gap, app.engine.model(), raw, "suffix")
}

/// `best_of` would mean to compute more answers than are shown.
fn best_of(fields: &mut Fields, n: Option<i64>) -> Result<(), ApiError> {
    match fields.integer("best_of")? {
        Some(best_of) if best_of != n.unwrap_or(1) => {
            Err(ApiError::unsupported("best_of", "'best_of' is supported only when it equals 'n'."))
        }
        _ => Ok(()),
    }
}

/// A string, a list of token ids, or a list of either.
fn prompts(prompt: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a string, a list of token ids, or a list of one of these";
    let items = match prompt {
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) => items,
        None => return Err(ApiError::bad_request("'prompt' is missing.").with_param("prompt")),
        Some(_) => return Err(wrong_type("prompt", expected)),
    };
    match items.first() {
        None => Err(ApiError::bad_request("'prompt' must not be empty.").with_param("prompt")),
        Some(Value::Number(_)) => Ok(vec![Prompt::Tokens(params::token_ids(&items, |at| format!("prompt[{at}]"))?)]),
        Some(_) if items.len() > MAX_PROMPTS => {
            let message = format!("'prompt' may hold at most {MAX_PROMPTS} prompts, got {}.", items.len());
            Err(ApiError::bad_request(message).with_param("prompt"))
        }
        Some(_) => items.into_iter().enumerate().map(|(at, item)| one_of_several(at, item)).collect(),
    }
}

fn one_of_several(at: usize, item: Value) -> Result<Prompt, ApiError> {
    match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => Ok(Prompt::Tokens(params::token_ids(&ids, |inner| format!("prompt[{at}][{inner}]"))?)),
        _ => Err(wrong_type(format!("prompt[{at}]"), "a string or a list of token ids")),
    }
}
