//! The routes of `/v1/responses`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Store, background, count, read};
use crate::answers::Form;
use crate::app::App;
use crate::error::ApiError;
use crate::routes::{self, Caller, json_body};

type Caught<T> = Result<T, ApiError>;

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    let tenant = caller.tenant;
    let job = app.with_json(&headers, body, tenant, move |value, app| read(value, app, tenant)).await;
    let job = job.map_err(|error| caller.refused(&app, Form::Responses, error))?;
    match job.api.shape().filter(|shape| shape.background).cloned() {
        None => routes::answer(app, &caller, Form::Responses, Ok(job)).await,
        Some(shape) => {
            let (plan, outputs) = routes::submit(&app, &caller, job.requests, job.plan).await?;
            background::begin(app, shape, plan, outputs)
        }
    }
}

/// `POST /v1/responses/input_tokens`.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    let tenant = caller.tenant;
    Ok(json_body(app.with_json(&headers, body, tenant, move |value, app| count(value, app, tenant)).await?))
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Caught<Response> {
    Ok(json_body(kept(&app, move |store| store.response(caller.tenant, &id)).await?.to_string()))
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Caught<Response> {
    let (tenant, asked) = (caller.tenant, id.clone());
    let items = match kept(&app, move |store| store.input(tenant, &asked)).await? {
        Value::Array(items) => items,
        text => vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})],
    };
    let named = |(at, mut item): (usize, Value)| {
        if let Value::Object(item) = &mut item {
            item.entry("id").or_insert_with(|| format!("{id}-{at}").into());
            item.entry("type").or_insert_with(|| "message".into());
        }
        item
    };
    let items: Vec<Value> = items.into_iter().enumerate().map(named).collect();
    let ends = [items.first(), items.last()].map(|item| item.map(|item| item["id"].clone()));
    let list = json!({"object": "list", "data": items, "first_id": ends[0], "last_id": ends[1], "has_more": false});
    Ok(json_body(list.to_string()))
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Caught<Response> {
    let (tenant, asked) = (caller.tenant, id.clone());
    kept(&app, move |store| store.delete(tenant, &asked)).await?;
    Ok(json_body(json!({"id": id, "object": "response", "deleted": true}).to_string()))
}

/// `POST /v1/responses/{id}/cancel`.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Caught<Response> {
    Ok(json_body(kept(&app, move |store| store.cancel(caller.tenant, &id)).await?.to_string()))
}

/// Asks the store, which may read a file, away from the threads that serve.
async fn kept<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Store) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let store = app.responses.clone();
    tokio::task::spawn_blocking(move || ask(&store)).await.map_err(|_| ApiError::internal())?
}
