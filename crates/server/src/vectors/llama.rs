//! `POST /embedding` and `POST /embeddings`: the same in llama-server's words.

use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use super::embeddings::input;
use super::{Asked, Texts, normalised, place};
use crate::app::App;
use crate::ask::JsonRequest;
use crate::endpoint::Endpoint;
use crate::llama::shapes::EMBEDDING;
use crate::openai::hints;

#[derive(Serialize)]
struct Item {
    index: usize,
    /// One, of the whole text.
    embedding: [Vec<f32>; 1],
}

/// Vectors of one text or several.
pub(crate) async fn embed(mut request: JsonRequest) -> Result<Response, ApiError> {
    let (texts, is_normalised) = request.read_as(Endpoint::Embeddings, read).await?;
    let mut vectors = texts.vectors(&request.app, &request.caller, Endpoint::Embeddings).await?;
    let list = std::mem::take(&mut vectors.list).into_iter();
    let list = list.map(|vector| if is_normalised { normalised(&vector, None) } else { vector });
    let items: Vec<Item> = list.enumerate().map(|(index, vector)| Item { index, embedding: [vector] }).collect();
    Ok(vectors.answered(&items))
}

/// The texts, and whether vectors have length 1.
fn read(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<(Texts, bool), ApiError> {
    let hints = hints::take(&mut body, &EMBEDDING)?;
    let mut fields = Fields::of(body, &EMBEDDING)?;
    let (content, other) = (fields.take("content"), fields.take("input"));
    let (field, value) = match (content, other) {
        (Some(_), Some(_)) => {
            let message = "'content' and 'input' are two names for the same: send one.";
            return Err(ApiError::bad_request(message).with_param("input"));
        }
        (Some(content), None) => ("content", Some(content)),
        (None, Some(input)) => ("input", Some(input)),
        (None, None) => ("content", None),
    };
    let texts = input(field, value)?;
    let is_normalised = match fields.integer("embd_normalize")? {
        None | Some(2) => true,
        Some(-1) => false,
        Some(_) => return Err(wrong_type("embd_normalize", "2 (length 1) or -1 (as the model has it)")),
    };
    let place = place(field, texts.len());
    let texts = Texts::read_for_vectors(&mut fields, texts, field, place, Asked { app, tenant, model: None, hints })?;
    fields.finish()?;
    Ok((texts, is_normalised))
}
