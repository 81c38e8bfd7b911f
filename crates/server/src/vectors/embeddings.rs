//! `POST /v1/embeddings`.

use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::Prompt;
use serde::Serialize;
use serde_json::Value;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};
use transport::hints::Hints;

use super::shapes::EMBEDDINGS;
use super::{Asked, Texts, normalised, place};
use crate::app::App;
use crate::ask::JsonRequest;
use crate::endpoint::Endpoint;
use crate::openai::hints;
use crate::openai::params;

/// How the vectors are to look.
struct Look {
    is_base64: bool,
    dimensions: Option<usize>,
    /// Length 1.
    is_normalised: bool,
}

#[derive(Serialize)]
struct List {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Item>,
    usage: Value,
    #[serde(skip_serializing_if = "Hints::is_empty")]
    hints: Hints,
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Embedding,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Embedding {
    Floats(Vec<f32>),
    /// Of the floats' bytes, little endian.
    Base64(String),
}

/// Vectors of one text or several.
pub(crate) async fn embed(mut request: JsonRequest) -> Result<Response, ApiError> {
    let (texts, look) = request.read_as(Endpoint::Embeddings, read).await?;
    let mut vectors = texts.vectors(&request.app, &request.caller, Endpoint::Embeddings).await?;
    let list = std::mem::take(&mut vectors.list);
    let data = list.into_iter().enumerate().map(|(index, vector)| look.item(index, vector)).collect();
    let body = List {
        id: vectors.id.clone(),
        object: "list",
        created: request.app.now(),
        model: vectors.delivery.model.clone(),
        data,
        usage: vectors.usage(),
        hints: vectors.delivery.adjustments.hints.clone(),
    };
    Ok(vectors.answered(&body))
}

impl Look {
    fn item(&self, index: usize, vector: Vec<f32>) -> Item {
        let vector = match self.is_normalised {
            true => normalised(&vector, self.dimensions),
            false => vector[..self.dimensions.unwrap_or(vector.len())].to_vec(),
        };
        let embedding = match self.is_base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|component| component.to_le_bytes()).collect();
                Embedding::Base64(BASE64_STANDARD.encode(bytes))
            }
            false => Embedding::Floats(vector),
        };
        Item { object: "embedding", index, embedding }
    }
}

fn read(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<(Texts, Look), ApiError> {
    let hints = hints::take(&mut body, &EMBEDDINGS)?;
    let mut fields = Fields::of(body, &EMBEDDINGS)?;
    let texts = input("input", fields.take("input"))?;
    let dimensions = super::dimensions(&mut fields, app)?;
    let is_base64 = fields.string("encoding_format")?.as_deref() == Some("base64");
    // vLLM's names for one thing.
    let mut is_normalised = true;
    for field in ["normalize", "use_activation"] {
        is_normalised &= fields.boolean(field)?.unwrap_or(true);
    }
    let place = place("input", texts.len());
    let texts = Texts::read_for_vectors(&mut fields, texts, "input", place, Asked { app, tenant, model: None, hints })?;
    fields.finish()?;
    Ok((texts, Look { is_base64, dimensions, is_normalised }))
}

/// `field`: a string, a list of token ids, or a list of either.
pub(super) fn input(field: &str, input: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a string, a list of token ids, or a list of one of these";
    let items = match input {
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) if !items.is_empty() => items,
        _ => return Err(wrong_type(field, &format!("{expected}, and not empty"))),
    };
    if let Value::Number(_) = items[0] {
        return Ok(vec![Prompt::Tokens(params::token_ids(&items, |at| format!("{field}[{at}]"))?)]);
    }
    let one = |(at, item)| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => Ok(Prompt::Tokens(params::token_ids(&ids, |inner| format!("{field}[{at}][{inner}]"))?)),
        _ => Err(wrong_type(format!("{field}[{at}]"), "a string or a list of token ids")),
    };
    items.into_iter().enumerate().map(one).collect()
}
