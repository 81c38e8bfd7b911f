//! The routes of `/v1/messages`, and the models as this API lists them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use engine::UnixNanos;
use serde_json::{Value, json};

use super::read::{BETA, count, read};
use crate::answers::Form;
use crate::app::App;
use crate::error::ApiError;
use crate::moment::rfc3339;
use crate::routes::{self, Caller, json_body};

type Caught<T> = Result<T, ApiError>;

/// `POST /v1/messages`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    let (tenant, has_beta) = (caller.tenant, headers.contains_key(BETA));
    let job = app.with_json(&headers, body, tenant, move |value, app| read(value, has_beta, app, tenant)).await;
    routes::answer(app, &caller, Form::Messages, job).await
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    let tenant = caller.tenant;
    Ok(json_body(app.with_json(&headers, body, tenant, move |value, app| count(value, app, tenant)).await?))
}

/// All models; there is one page of them.
pub(crate) fn model_list(app: &App) -> Value {
    let names = app.names();
    let cards: Vec<Value> = names.iter().map(|name| model_card(app, name)).collect();
    let (first, last) = (names.first(), names.last());
    json!({"data": cards, "first_id": first, "last_id": last, "has_more": false})
}

/// A model under one of its names.
pub(crate) fn model_card(app: &App, name: &str) -> Value {
    let most = app.engine.model().max_model_len;
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": rfc3339(UnixNanos(app.started * 1_000_000_000)),
        "max_input_tokens": most,
        "max_tokens": most,
    })
}
