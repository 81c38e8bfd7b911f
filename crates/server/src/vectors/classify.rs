//! `POST /classify` and `POST /pooling`, in vLLM's shapes: the share of each class of a text, and what a model has of a
//! text as it is.

use axum::response::Response;
use serde_json::{Value, json};
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::Fields;

use super::embeddings::input;
use super::shapes::CLASSIFY;
use super::{Asked, Texts, judge, place};
use crate::app::App;
use crate::ask::JsonRequest;
use crate::endpoint::Endpoint;
use crate::openai::hints;
use crate::order::falling;

/// The classes of one text or several.
pub(crate) async fn classify(mut request: JsonRequest) -> Result<Response, ApiError> {
    let texts = request.read_as(Endpoint::Classify, read_for_classes).await?;
    let vectors = texts.vectors(&request.app, &request.caller, Endpoint::Classify).await?;
    let classifier = judge::classifier(&request.app).expect("it was there when the request was read");
    let judged = |(index, logits): (usize, &Vec<f32>)| {
        let shares = judge::shares(classifier, logits);
        let best = (0..shares.len()).min_by(|&a, &b| falling(shares[a], shares[b]).then(a.cmp(&b)));
        let label = best.map(|best| &classifier.labels[best]);
        json!({"index": index, "label": label, "probs": shares, "num_classes": classifier.labels.len()})
    };
    let data = vectors.list.iter().enumerate().map(judged).collect();
    Ok(vectors.listed(&request.app, data))
}

/// Vectors, or logits of classes, as the model has them.
pub(crate) async fn pool(mut request: JsonRequest) -> Result<Response, ApiError> {
    let texts = request.read_as(Endpoint::Pooling, read).await?;
    let vectors = texts.vectors(&request.app, &request.caller, Endpoint::Pooling).await?;
    let item = |(index, vector): (usize, &Vec<f32>)| json!({"index": index, "object": "pooling", "data": vector});
    let data = vectors.list.iter().enumerate().map(item).collect();
    Ok(vectors.listed(&request.app, data))
}

fn read_for_classes(body: Value, app: &App, tenant: Option<Tenant>) -> Result<Texts, ApiError> {
    let texts = read(body, app, tenant)?;
    match judge::classifier(app) {
        Some(_) => Ok(texts),
        None => {
            let message = "this model has no classes: its weights were saved without a classifier";
            Err(ApiError::bad_request(message).with_param("model"))
        }
    }
}

fn read(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<Texts, ApiError> {
    let hints = hints::take(&mut body, &CLASSIFY)?;
    let mut fields = Fields::of(body, &CLASSIFY)?;
    let texts = input("input", fields.take("input"))?;
    let place = place("input", texts.len());
    let texts = Texts::read(&mut fields, texts, "input", place, Asked { app, tenant, model: None, hints })?;
    fields.finish()?;
    Ok(texts)
}
