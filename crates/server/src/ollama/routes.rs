//! The routes of `/api`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Asked, models};
use crate::app::App;
use crate::ask::{self, Caller};
use crate::auth::Tenant;
use crate::endpoint::Form;
use crate::error::ApiError;
use crate::json::json_body;

type Caught<T> = Result<T, ApiError>;

/// `GET /api/version`.
pub(crate) async fn version() -> Response {
    json_body(json!({"version": env!("CARGO_PKG_VERSION")}).to_string())
}

/// `GET /api/tags`.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    json_body(models::tags(&app).to_string())
}

/// `GET /api/ps`.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Response {
    json_body(models::ps(&app).to_string())
}

/// `POST /api/show`.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    Ok(json_body(app.with_json(&headers, body, caller.tenant, models::show).await?))
}

/// `POST /api/chat`.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    ask(app, &caller, &headers, body, Form::OllamaChat, super::chat::read).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    ask(app, &caller, &headers, body, Form::OllamaGenerate, super::generate::read).await
}

/// Whatever would bring, make or remove a model.
pub(crate) async fn fixed() -> ApiError {
    ApiError::fixed_models()
}

async fn ask(
    app: Arc<App>,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    form: Form,
    read: fn(Value, &App, Option<Tenant>) -> Caught<Asked>,
) -> Caught<Response> {
    let tenant = caller.tenant;
    let job = match app.with_json(headers, body, tenant, move |value, app| read(value, app, tenant)).await {
        Ok(Asked::Load(line)) => return Ok(json_body(line.to_string())),
        Ok(Asked::Answer(job)) => Ok(*job),
        Err(error) => Err(error),
    };
    ask::answer(app, caller, form, job).await
}
