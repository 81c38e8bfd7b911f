//! `POST /api/embed`, and `POST /api/embeddings` which came before it: the same in Ollama's words.

use std::time::Instant;

use axum::response::Response;
use engine::Prompt;
use serde::Serialize;
use serde_json::Value;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};
use transport::hints;

use super::{Asked, Texts, normalised, place};
use crate::app::App;
use crate::ask::JsonRequest;
use crate::endpoint::Endpoint;
use crate::ollama::shapes::{EMBED, EMBED_ONE};
use crate::ollama::{HINTS, of_vectors, served, uncut};

#[derive(Serialize)]
struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    /// Nanoseconds.
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct Embedding {
    embedding: Vec<f32>,
}

/// What is asked for.
struct Read {
    texts: Texts,
    /// The model's name as it was asked for, which the answer repeats.
    name: String,
    dimensions: Option<usize>,
}

/// Vectors of one text or several, with length 1.
pub(crate) async fn embed(mut request: JsonRequest) -> Result<Response, ApiError> {
    let began = Instant::now();
    let read = request.read_as(Endpoint::OllamaEmbed, |body, app, tenant| read(body, app, tenant, "input")).await?;
    let Read { texts, name, dimensions } = read;
    let vectors = texts.vectors(&request.app, &request.caller, Endpoint::OllamaEmbed).await?;
    let body = Embeddings {
        model: name,
        embeddings: vectors.list.iter().map(|vector| normalised(vector, dimensions)).collect(),
        total_duration: began.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count: vectors.tokens,
    };
    Ok(vectors.answered(&body))
}

/// The vector of one text, as the model has it.
pub(crate) async fn embed_one(mut request: JsonRequest) -> Result<Response, ApiError> {
    let read = request.read_as(Endpoint::OllamaEmbed, |body, app, tenant| read(body, app, tenant, "prompt")).await?;
    let mut vectors = read.texts.vectors(&request.app, &request.caller, Endpoint::OllamaEmbed).await?;
    let body = Embedding { embedding: vectors.list.pop().unwrap_or_default() };
    Ok(vectors.answered(&body))
}

/// `field`: where the texts are.
fn read(mut body: Value, app: &App, tenant: Option<Tenant>, field: &'static str) -> Result<Read, ApiError> {
    let is_one = field == "prompt";
    let shape = if is_one { &EMBED_ONE } else { &EMBED };
    let mut hints = hints::take_of(&mut body, HINTS, shape)?;
    let mut fields = Fields::of(body, shape)?;
    let name = fields.string("model")?.unwrap_or_else(|| app.model.names[0].clone());
    let model = served(app, &name).ok_or_else(|| app.unknown_model(&name))?;
    let text = |(at, item)| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        _ => Err(wrong_type(format!("{field}[{at}]"), "a text")),
    };
    let texts = match fields.take(field) {
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(items)) if !is_one && !items.is_empty() => {
            items.into_iter().enumerate().map(text).collect::<Result<Vec<_>, ApiError>>()?
        }
        _ if is_one => return Err(wrong_type(field, "a text")),
        _ => return Err(wrong_type(field, "a text, or a list of texts that is not empty")),
    };
    let dimensions = if is_one { None } else { super::dimensions(&mut fields, app)? };
    of_vectors(&mut fields, app, &mut hints)?;
    uncut(&mut fields, &["truncate"], &mut hints)?;
    let place = place(field, texts.len());
    let texts =
        Texts::read_for_vectors(&mut fields, texts, field, place, Asked { app, tenant, model: Some(model), hints })?;
    fields.finish()?;
    Ok(Read { texts, name, dimensions })
}
