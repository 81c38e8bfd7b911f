//! `POST /v1/score` and `POST /v1/rerank`, in vLLM's and Jina's shapes: how alike texts are, by the cosines of their
//! vectors; or how well they go together, where the model was trained to judge pairs (Nogueira & Cho, 2019).

use axum::response::Response;
use engine::Prompt;
use serde_json::{Value, json};
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use super::judge::{self, reranker};
use super::shapes::{RERANK, SCORE};
use super::{Asked, Texts, cosine, note, text};
use crate::app::App;
use crate::ask::JsonRequest;
use crate::endpoint::Endpoint;
use crate::openai::hints;
use crate::order::falling;

/// Pairs of texts: one with each of the others, or as many on both sides.
pub(crate) async fn score(mut request: JsonRequest) -> Result<Response, ApiError> {
    let (texts, lefts) = request.read_as(Endpoint::Score, read_pairs).await?;
    let vectors = texts.vectors(&request.app, &request.caller, Endpoint::Score).await?;
    let scores: Vec<f64> = match reranker(&request.app)? {
        Some(classifier) => vectors.list.iter().map(|logits| judge::score(classifier, logits)).collect(),
        None => {
            let (left, right) = vectors.list.split_at(lefts);
            let left = |at: usize| &left[if lefts == 1 { 0 } else { at }];
            right.iter().enumerate().map(|(at, right)| cosine(left(at), right)).collect()
        }
    };
    let scored = |(index, score)| json!({"index": index, "object": "score", "score": score});
    let data: Vec<Value> = scores.into_iter().enumerate().map(scored).collect();
    Ok(vectors.listed(&request.app, data))
}

/// The texts of both sides, and how many are on the left.
fn read_pairs(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<(Texts, usize), ApiError> {
    let hints = hints::take(&mut body, &SCORE)?;
    let mut fields = Fields::of(body, &SCORE)?;
    let [left, right] = [["text_1", "queries", "data_1"], ["text_2", "documents", "data_2"]].map(|names| {
        let given = names.into_iter().find_map(|name| Some((name, fields.take(name)?)));
        given.ok_or_else(|| ApiError::bad_request(format!("'{}' is missing.", names[0])).with_param(names[0]))
    });
    let ((left_name, left), (right_name, right)) = (left?, right?);
    let left = side(left_name, left)?;
    let right = side(right_name, right)?;
    let lefts = left.len();
    if lefts != 1 && lefts != right.len() {
        let message =
            format!("'{left_name}' has {lefts} texts and '{right_name}' {}: send one, or as many.", right.len());
        return Err(ApiError::bad_request(message).with_param(left_name));
    }
    let asked = Asked { app, tenant, model: None, hints };
    let texts = match reranker(app)? {
        Some(_) => {
            let left = |at: usize| left[if lefts == 1 { 0 } else { at }].clone();
            let pairs = right.into_iter().enumerate().map(|(at, right)| Prompt::Pair(left(at), right)).collect();
            Texts::read(&mut fields, pairs, right_name, |at| format!("{right_name}[{at}]"), asked)?
        }
        None => {
            let place = |at: usize| match at.checked_sub(lefts) {
                None => format!("{left_name}[{at}]"),
                Some(at) => format!("{right_name}[{at}]"),
            };
            let texts = left.into_iter().chain(right).map(Prompt::Text).collect();
            Texts::read(&mut fields, texts, right_name, place, asked)?
        }
    };
    fields.finish()?;
    Ok((texts, lefts))
}

fn side(name: &str, value: Value) -> Result<Vec<String>, ApiError> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.into_iter().enumerate().map(|(at, item)| text(item, format!("{name}[{at}]"))).collect()
        }
        Value::Array(_) => Err(wrong_type(name, "a text, or a list of texts that is not empty")),
        one => Ok(vec![text(one, name.to_owned())?]),
    }
}

/// What is to be ranked.
struct Documents {
    texts: Texts,
    list: Vec<String>,
    /// How many of the best.
    top: usize,
    shows_texts: bool,
}

/// Documents by how near they are to a query, the nearest first.
pub(crate) async fn rerank(mut request: JsonRequest) -> Result<Response, ApiError> {
    let Documents { texts, list, top, shows_texts } = request.read_as(Endpoint::Rerank, read_documents).await?;
    let vectors = texts.vectors(&request.app, &request.caller, Endpoint::Rerank).await?;
    let scores: Vec<f64> = match reranker(&request.app)? {
        Some(classifier) => vectors.list.iter().map(|logits| judge::score(classifier, logits)).collect(),
        None => {
            let (query, documents) = vectors.list.split_first().expect("the query comes first");
            documents.iter().map(|document| cosine(query, document)).collect()
        }
    };
    let mut ranked: Vec<(usize, f64)> = scores.into_iter().enumerate().collect();
    // Of two that are as near, the one that was sent first.
    ranked.sort_by(|a, b| falling(a.1, b.1));
    let result = |&(index, score): &(usize, f64)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if shows_texts {
            result["document"] = json!({"text": list[index]});
        }
        result
    };
    let results: Vec<Value> = ranked.iter().take(top).map(result).collect();
    let mut body = json!({
        "id": vectors.id,
        "model": vectors.delivery.model,
        "usage": vectors.usage(),
        "results": results,
    });
    note(&mut body, &vectors.delivery.adjustments);
    Ok(vectors.answered(&body))
}

fn read_documents(mut body: Value, app: &App, tenant: Option<Tenant>) -> Result<Documents, ApiError> {
    let hints = hints::take(&mut body, &RERANK)?;
    let mut fields = Fields::of(body, &RERANK)?;
    let query = text(fields.take("query").unwrap_or_default(), "query".to_owned())?;
    let list = side("documents", fields.take("documents").unwrap_or_default())?;
    let top = match fields.integer("top_n")? {
        // vLLM's clients send 0 for all.
        None | Some(0) => list.len(),
        Some(top) if top > 0 => list.len().min(usize::try_from(top).unwrap_or(usize::MAX)),
        Some(_) => return Err(wrong_type("top_n", "a number of documents")),
    };
    let shows_texts = fields.boolean("return_documents")?.unwrap_or(true);
    let asked = Asked { app, tenant, model: None, hints };
    let texts = match reranker(app)? {
        Some(_) => {
            let pairs = list.iter().map(|document| Prompt::Pair(query.clone(), document.clone())).collect();
            Texts::read(&mut fields, pairs, "documents", |at| format!("documents[{at}]"), asked)?
        }
        None => {
            let texts = std::iter::once(&query).chain(&list).cloned().map(Prompt::Text).collect();
            let place = |at: usize| at.checked_sub(1).map_or("query".to_owned(), |at| format!("documents[{at}]"));
            Texts::read(&mut fields, texts, "documents", place, asked)?
        }
    };
    fields.finish()?;
    Ok(Documents { texts, list, top, shows_texts })
}
