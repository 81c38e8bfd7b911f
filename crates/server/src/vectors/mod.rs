//! Vectors of texts, and how alike texts are by them: embeddings, scores, ranks.
//!
//! ```text
//! texts --door--> requests that only read --a window at a time--> engine --the last token's state--> length 1
//!                                                                                                       |
//!                                       /v1/embeddings: floats, base64   /v1/score, /v1/rerank: cosines +
//! ```
//! A text's vector is what the language-model head reads of its last token, behind the final norm: how decoders that were
//! trained to embed (Qwen3-Embedding, E5-Mistral, GTE-Qwen2) are read. Of a model that was not trained to, it is a vector
//! all the same, and says little. An encoder's is made of all its rows, as its checkpoint says; and an encoder with a
//! classifier judges texts, or pairs of them ([`judge`]), instead. Its bits depend on the text alone: not on what else is
//! read beside it, nor on which part of the text was in the prefix cache.

mod classify;
mod embeddings;
mod judge;
pub(crate) mod llama;
pub(crate) mod ollama;
mod score;
pub(crate) mod shapes;

use std::sync::Arc;

use axum::response::Response;
use engine::{Prompt, RawRequest, ValidatedRequest};
use serde::Serialize;
use serde_json::{Value, json};
use transport::answer_memory::Charge;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};
use transport::hints::Hints;
use transport::json::json_body;

pub(crate) use self::classify::{classify, pool};
pub(crate) use self::embeddings::embed;
pub(crate) use self::score::{rerank, score};
use self::shapes::TEXT;
use crate::answers::{Adjustments, ResponseOptions, ResponsePlan, gather};
use crate::app::App;
use crate::ask::{self, Caller};
use crate::endpoint::Endpoint;
use crate::openai::params;

/// Most texts in one request, as with OpenAI.
const MAX_TEXTS: usize = 2048;
/// Texts of one request that are with the engine at a time, and tokens of these: its queue is there for others too.
const WINDOW_TEXTS: usize = 32;
const WINDOW_TOKENS: usize = 1 << 16;
/// Bytes of a component while it is kept and written as JSON.
const COMPONENT_BYTES: u64 = 20;

/// Validated texts.
struct Texts {
    requests: Vec<ValidatedRequest>,
    delivery: ResponseOptions,
}

/// What became of them.
struct Vectors {
    /// The name of the answer.
    id: String,
    delivery: ResponseOptions,
    /// In the order of the texts, `[hidden_size]` each, as the model has them.
    list: Vec<Vec<f32>>,
    tokens: usize,
    cached_tokens: usize,
    /// Memory set aside for all this.
    _charge: Charge,
}

impl Vectors {
    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.tokens,
            "total_tokens": self.tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }

    /// The response with a list of what came of each.
    fn listed(&self, app: &App, data: Vec<Value>) -> Response {
        let mut body = json!({
            "id": self.id,
            "object": "list",
            "created": app.now(),
            "model": self.delivery.model,
            "data": data,
            "usage": self.usage(),
        });
        note(&mut body, &self.delivery.adjustments);
        self.answered(&body)
    }

    /// The response with this body.
    fn answered(&self, body: &impl Serialize) -> Response {
        let mut response = json_body(serde_json::to_string(body).expect("numbers and texts serialize"));
        ask::note_adjustments(response.headers_mut(), &self.delivery.adjustments);
        response
    }
}

impl Texts {
    /// [`read`](Self::read), for a route that gives vectors: a model that judges texts has none.
    fn read_for_vectors(
        fields: &mut Fields,
        texts: Vec<Prompt>,
        field: &'static str,
        place: impl Fn(usize) -> String,
        asked: Asked<'_>,
    ) -> Result<Texts, ApiError> {
        match judge::classifier(asked.app) {
            None => Texts::read(fields, texts, field, place, asked),
            Some(_) => Err(judge::no_vectors()),
        }
    }

    /// What all routes have in common is read of `fields`. `field` has most of the texts, `place` says where each stands.
    fn read(
        fields: &mut Fields,
        texts: Vec<Prompt>,
        field: &'static str,
        place: impl Fn(usize) -> String,
        asked: Asked<'_>,
    ) -> Result<Texts, ApiError> {
        let Asked { app, tenant, model, hints } = asked;
        if texts.len() > MAX_TEXTS {
            let message = format!("'{field}' may hold at most {MAX_TEXTS} texts, got {}.", texts.len());
            return Err(ApiError::bad_request(message).with_param(field));
        }
        let bytes = |text: &Prompt| match text {
            Prompt::Text(text) => text.len(),
            Prompt::Pair(first, second) => first.len() + second.len(),
            Prompt::Tokens(_) | Prompt::Chat(_) => 0,
        };
        params::check_text(field, texts.iter().map(bytes).sum())?;
        let mut delivery = params::unstreamed(fields, app, hints)?;
        delivery.model = model.unwrap_or(delivery.model);
        let raw = RawRequest {
            max_tokens: Some(0),
            embed: true,
            class: delivery.tier,
            priority: fields.integer("priority")?,
            cache_salt: fields.string("cache_salt")?,
            ttft_slo_ms: fields.number("ttft_slo_ms")?,
            truncate_prompt_tokens: fields.integer("truncate_prompt_tokens")?,
            ..app.request(Prompt::Tokens(Vec::new()), tenant)
        };
        let validated = |(at, prompt): (usize, Prompt)| {
            let request = app.validate(RawRequest { prompt, ..raw.clone() }, &delivery.model);
            request.map_err(|rejection| ApiError::from(rejection).rename_param("prompt", &place(at)))
        };
        let requests = texts.into_iter().enumerate().map(validated).collect::<Result<Vec<_>, ApiError>>()?;
        Ok(Texts { requests, delivery })
    }

    /// Has the engine read them, some at a time.
    async fn vectors(self, app: &Arc<App>, caller: &Caller, endpoint: Endpoint) -> Result<Vectors, ApiError> {
        let Texts { requests, mut delivery } = self;
        let components = requests.len() as u64 * app.engine.model().config.vector_width() as u64;
        let tenant = requests.first().map_or(0, ValidatedRequest::tenant);
        let charge = app.answers.charge(tenant, components * COMPONENT_BYTES);
        let charge = charge.map_err(|error| caller.refused(app, endpoint, error))?;
        let (mut id, mut list) = (None, Vec::with_capacity(requests.len()));
        let (mut tokens, mut cached_tokens) = (0, 0);
        for window in windows(requests) {
            let of_window = ResponseOptions { user: delivery.user.take(), ..delivery.clone() };
            let (plan, outputs) = ask::submit(app, caller, window, ResponsePlan::new(endpoint, of_window)).await?;
            let gathered = gather(app, &plan, outputs).await?;
            id.get_or_insert_with(|| gathered.trace.response_id.clone());
            list.extend(gathered.embeddings);
            tokens += gathered.totals.usage.prompt_tokens;
            cached_tokens += gathered.totals.usage.cached_tokens;
        }
        let id = id.unwrap_or_else(|| app.ids.response_id(endpoint.prefix()));
        Ok(Vectors { id, delivery, list, tokens, cached_tokens, _charge: charge })
    }
}

/// Whose body it is.
struct Asked<'a> {
    app: &'a App,
    tenant: Option<Tenant>,
    /// The model's name, where it is known already.
    model: Option<String>,
    hints: Hints,
}

/// In order, in lists that the engine gets one after the other.
fn windows(requests: Vec<ValidatedRequest>) -> Vec<Vec<ValidatedRequest>> {
    let mut windows: Vec<Vec<ValidatedRequest>> = Vec::new();
    let mut tokens = 0;
    for request in requests {
        let more = request.prompt().len();
        match windows.last_mut() {
            Some(last) if last.len() < WINDOW_TEXTS && tokens + more <= WINDOW_TOKENS => {
                last.push(request);
                tokens += more;
            }
            _ => {
                windows.push(vec![request]);
                tokens = more;
            }
        }
    }
    windows
}

/// The vector with length 1, of its first `dimensions` components. One of zeros stays what it is.
fn normalised(vector: &[f32], dimensions: Option<usize>) -> Vec<f32> {
    let part = &vector[..dimensions.unwrap_or(vector.len())];
    let length = dot(part, part).sqrt();
    let factor = if length > 0.0 { length.recip() } else { 0.0 };
    part.iter().map(|&component| (f64::from(component) * factor) as f32).collect()
}

/// In one order, so that it has the same bits everywhere.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// How alike two texts are: 1 for the same direction.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

/// How many components of each vector are wanted, if not all.
fn dimensions(fields: &mut Fields, app: &App) -> Result<Option<usize>, ApiError> {
    let width = app.engine.model().config.vector_width();
    match fields.integer("dimensions")? {
        None => Ok(None),
        Some(some) if (1..=width as i64).contains(&some) => Ok(Some(some as usize)),
        Some(_) => Err(wrong_type("dimensions", &format!("a number from 1 to {width}"))),
    }
}

/// Where each of `count` texts of a field stands: one alone may be no list.
fn place(field: &'static str, count: usize) -> impl Fn(usize) -> String {
    move |at| if count > 1 { format!("{field}[{at}]") } else { field.to_owned() }
}

/// A text, or `{"text": ..}`.
fn text(item: Value, place: String) -> Result<String, ApiError> {
    match item {
        Value::String(text) => Ok(text),
        Value::Object(_) => {
            let mut fields = Fields::nested(item, place, &TEXT)?;
            let text = fields.text("text")?;
            fields.finish()?;
            Ok(text)
        }
        _ => Err(wrong_type(place, "a text, or an object with 'text'")),
    }
}

/// The hints of an answer, for its body.
fn note(body: &mut Value, adjustments: &Adjustments) {
    if !adjustments.hints.is_empty() {
        body["hints"] = json!(adjustments.hints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_1_and_cosines_no_unit() {
        let vector = [3.0f32, 0.0, 4.0, 12.0];
        assert_eq!(normalised(&vector, Some(3)), [0.6, 0.0, 0.8]);
        assert!((dot(&normalised(&vector, None), &normalised(&vector, None)) - 1.0).abs() < 1e-6);
        assert_eq!(normalised(&[0.0; 3], None), [0.0; 3]);
        assert_eq!(cosine(&vector, &[6.0, 0.0, 8.0, 24.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 0.0]), 0.0);
    }
}
