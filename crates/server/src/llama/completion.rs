//! A body of `POST /completion`, and what `POST /infill` has in common with it.

use std::sync::Arc;

use engine::{Prompt, RawRequest};
use serde_json::Value;
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, wrong_type};
use transport::shape::Shape;

use super::shapes::COMPLETION;
use super::write::Llama;
use super::{bias, sampler};
use crate::answers::{PreparedRequest, ResponseOptions, ResponsePlan};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::openai::params;
use crate::openai::{hints, structured};
use crate::sampling;

/// Reads the body into a validated request. Tokenizes: not for the threads that serve connections.
pub(super) fn read(body: Value, app: &App, tenant: Option<Tenant>) -> ApiResult<PreparedRequest> {
    let mut begun = Begun::of(body, &COMPLETION, app)?;
    let prompt = prompt(begun.fields.take("prompt"))?;
    let raw = app.request(prompt, tenant);
    begun.finish(raw, Endpoint::LlamaCompletion, "prompt", app)
}

/// A text, token ids, or a list of one of these.
fn prompt(prompt: Option<Value>) -> ApiResult<Prompt> {
    match prompt {
        Some(Value::String(text)) => {
            params::check_text("prompt", text.len())?;
            Ok(Prompt::Text(text))
        }
        Some(Value::Array(mut items)) if items.len() == 1 && !items[0].is_number() => self::prompt(items.pop()),
        Some(Value::Array(ids)) if ids.iter().all(Value::is_number) => {
            Ok(Prompt::Tokens(params::token_ids(&ids, |at| format!("prompt[{at}]"))?))
        }
        Some(Value::Array(_)) => {
            let why = "one prompt in each request here, of text or of token ids: POST /v1/completions takes several";
            Err(ApiError::unsupported("prompt", why))
        }
        _ => Err(wrong_type("prompt", "a string or a list of token ids")),
    }
}

/// A body whose delivery is known.
pub(super) struct Begun {
    pub(super) fields: Fields,
    delivery: ResponseOptions,
}

impl Begun {
    pub(super) fn of(mut body: Value, shape: &'static Shape, app: &App) -> ApiResult<Begun> {
        let hints = hints::take(&mut body, shape)?;
        let mut fields = Fields::of(body, shape)?;
        let model = params::model(&mut fields, app)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let mut delivery = ResponseOptions::plain(model, stream, hints);
        delivery.token_ids = fields.boolean("return_tokens")?.unwrap_or(false);
        delivery.timings_detail = fields.boolean("timings_detail")?.unwrap_or(false);
        delivery.progress = fields.boolean("return_progress")?.unwrap_or(false) && stream;
        Ok(Begun { fields, delivery })
    }

    /// Reads what is left into `raw`, whose prompt is there; `prompt`: the field that it is from.
    pub(super) fn finish(
        self,
        mut raw: RawRequest,
        endpoint: Endpoint,
        prompt: &str,
        app: &App,
    ) -> ApiResult<PreparedRequest> {
        let Begun { mut fields, mut delivery } = self;
        let window = sampler::read(&mut fields, &mut raw, app.engine.model())?;
        raw.logprobs = fields.integer("n_probs")?.filter(|&count| count != 0);
        raw.logit_bias = bias::read(fields.take("logit_bias"), app.engine.model())?;
        raw.progress = delivery.progress;
        // Both mean: until it ends, or the context does.
        raw.max_tokens = fields.integer("n_predict")?.filter(|most| ![-1, -2].contains(most));
        raw.ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        let (rule, rule_field) =
            structured::read(&mut fields, &mut delivery.adjustments)?.map(|asked| (asked.rule, asked.field)).unzip();
        raw.rule = rule;
        // What stays of a prompt that is cut: none is. And refinements of samplers that are off.
        fields.integer("n_keep")?;
        fields.number("adaptive_decay")?;
        params::texts(&mut fields, "dry_sequence_breakers")?;
        fields.finish()?;
        let plan = ResponsePlan::of(endpoint, delivery, &raw);
        window.checked(PreparedRequest::of_one(app, raw, None, plan, Arc::new(Llama), |error| {
            sampling::renamed(error, "")
                .rename_param("prompt", prompt)
                .rename_param("max_tokens", "n_predict")
                .rename_param("logprobs", "n_probs")
                .rename_param("rule", rule_field.as_deref().unwrap_or_default())
        })?)
    }
}
