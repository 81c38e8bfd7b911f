//! The routes of `/v1/messages`, and the models as this API lists them.

use axum::response::Response;
use engine::UnixNanos;
use serde_json::{Value, json};
use telemetry::time_format::rfc3339;
use transport::error::{ApiError, ApiResult};
use transport::fields::wrong_type;
use transport::json::json_body;
use transport::query;

use super::read::{BETA, count, read};
use crate::app::App;
use crate::ask::{JsonRequest, answer};
use crate::endpoint::Endpoint;

/// Models on a page.
const MOST_LISTED: u64 = 1000;

/// `POST /v1/messages`.
pub(crate) async fn create(mut request: JsonRequest) -> ApiResult<Response> {
    let has_beta = request.headers.contains_key(BETA);
    let prepared =
        request.read_as(Endpoint::Messages, move |body, app, tenant| read(body, has_beta, app, tenant)).await?;
    answer(request.app, &request.caller, prepared).await
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(mut request: JsonRequest) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    Ok(json_body(request.read(move |body, app| count(body, app, tenant)).await?))
}

/// A page of the models: all of them unless the query says otherwise.
pub(crate) fn model_list(app: &App, query: &str) -> ApiResult<Value> {
    let names = app.names();
    let place = |field: &str, id: &str| {
        let wrong = || ApiError::bad_request(format!("'{field}' names no model of this server.")).with_param(field);
        names.iter().position(|name| name == id).ok_or_else(wrong)
    };
    let (mut first, mut end, mut most) = (0, names.len(), MOST_LISTED);
    for (name, value) in query::pairs(query) {
        match &*name {
            "after_id" => first = place("after_id", &value)? + 1,
            "before_id" => end = place("before_id", &value)?,
            "limit" => most = query::number("limit", &value)?,
            _ => {}
        }
    }
    if !(1..=MOST_LISTED).contains(&most) {
        return Err(wrong_type("limit", &format!("from 1 to {MOST_LISTED}")));
    }
    let listed = names.get(first..end).unwrap_or_default();
    let page = &listed[..listed.len().min(most as usize)];
    let cards: Vec<Value> = page.iter().map(|name| model_card(app, name)).collect();
    let has_more = page.len() < listed.len();
    Ok(json!({"data": cards, "first_id": page.first(), "last_id": page.last(), "has_more": has_more}))
}

/// A model under one of its names.
pub(crate) fn model_card(app: &App, name: &str) -> Value {
    let most = app.engine.model().max_model_len;
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": rfc3339(UnixNanos(app.model.created * 1_000_000_000)),
        "max_input_tokens": most,
        "max_tokens": most,
        "lifecycle": "active",
        "deprecated_at": null,
        "retires_at": null,
        "capabilities": null,
        "line": null,
    })
}
