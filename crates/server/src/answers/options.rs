//! How an answer is to be delivered, and what of its request was settled otherwise than asked.

use engine::{RawRequest, ServiceClass, SignedAddress, ValidatedRequest, fit_schema};
use serde::Serialize;
use serde_json::Value;
use transport::error::{ApiError, ApiResult};
use transport::hints::Hints;

/// How an answer is to be delivered.
#[derive(Clone, Default)]
pub(crate) struct ResponseOptions {
    /// The name the model was asked for by.
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// A last chunk with token counts.
    pub(crate) include_usage: bool,
    /// Token counts in every chunk; only with the former.
    pub(crate) continuous_usage: bool,
    /// Token ids beside the text.
    pub(crate) token_ids: bool,
    /// Tokens of log probabilities as `token_id:42`.
    pub(crate) tokens_as_ids: bool,
    /// The owners of all times, beside `timings`.
    pub(crate) timings_detail: bool,
    /// A receipt with each answer.
    pub(crate) receipt: bool,
    /// Whether speculation is allowed.
    pub(crate) speculate: bool,
    /// How far the prompt is read, in chunks before the first token.
    pub(crate) progress: bool,
    /// Who asked, for the log.
    pub(crate) user: Option<String>,
    /// The tier of service that was asked for.
    pub(crate) tier: Option<ServiceClass>,
    /// The prompt is read for another worker, which finds it there.
    pub(crate) gives: Option<SignedAddress>,
    pub(crate) adjustments: Adjustments,
}

impl ResponseOptions {
    /// Of an API that has none of the extra fields.
    pub(crate) fn plain(model: String, stream: bool, hints: Hints) -> ResponseOptions {
        let adjustments = Adjustments { hints, max_tokens: None };
        ResponseOptions { model, stream, speculate: true, adjustments, ..ResponseOptions::default() }
    }

    /// A request with what of its delivery concerns the engine.
    pub(crate) fn request(&self, raw: RawRequest) -> RawRequest {
        let &ResponseOptions { tier, receipt, speculate, progress, .. } = self;
        RawRequest { class: tier, receipt, speculate, progress, ..raw }
    }
}

/// What was settled otherwise than a client may think. The answer says so, in its headers and beside `timings`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Adjustments {
    /// Fields that were taken and change nothing ([`transport::hints`]), and places of schemas that are not kept to.
    #[serde(skip_serializing_if = "Hints::is_empty")]
    pub(crate) hints: Hints,
    /// What `max_tokens` was cut to; of several prompts, the least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<usize>,
}

impl Adjustments {
    /// Makes a schema that stands in this field into one that compiles, and notes what of it is left open.
    pub(crate) fn fit(&mut self, schema: &Value, field: &str, strict: bool) -> Result<Value, ApiError> {
        let fitted = fit_schema(schema, strict)
            .map_err(|misfit| ApiError::of_schema(&format!("{field}{}", misfit.place), &misfit))?;
        self.hints.extend(fitted.open.iter().map(|place| format!("{field}{place}")));
        Ok(fitted.schema)
    }

    /// Notes places of the schema in this field that the model's calls cannot be held to.
    pub(crate) fn leave_open(&mut self, places: Vec<String>, field: &str, strict: bool) -> ApiResult<()> {
        if let (Some(place), true) = (places.first(), strict) {
            let why = "calls of this model are not written as JSON and cannot be held to it; leave it out, or send the \
                       tool without 'strict'";
            return Err(ApiError::of_schema(&format!("{field}{place}"), &why));
        }
        self.hints.extend(places.into_iter().map(|place| format!("{field}{place}")));
        Ok(())
    }

    /// Says them in the body of an answer.
    pub(crate) fn tell(&self, body: &mut Value) {
        if let Ok(Value::Object(told)) = serde_json::to_value(self) {
            told.into_iter().for_each(|(name, value)| body[name] = value);
        }
    }

    /// Looks at what became of the `max_tokens` that was asked for.
    pub(crate) fn see(&mut self, asked: Option<i64>, request: &ValidatedRequest) {
        let most = request.max_tokens();
        if asked.is_some_and(|asked| asked > most as i64) {
            self.max_tokens = Some(self.max_tokens.map_or(most, |least| least.min(most)));
        }
    }
}
