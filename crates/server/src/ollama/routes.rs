//! The routes of `/api`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult};
use transport::json::json_body;

use super::{Asked, models};
use crate::app::App;
use crate::ask::{JsonRequest, answer};
use crate::endpoint::Endpoint;

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
pub(crate) async fn show(mut request: JsonRequest) -> ApiResult<Response> {
    Ok(json_body(request.read(models::show).await?))
}

/// `POST /api/chat`.
pub(crate) async fn chat(request: JsonRequest) -> ApiResult<Response> {
    ask(request, Endpoint::OllamaChat, super::chat::read).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(request: JsonRequest) -> ApiResult<Response> {
    ask(request, Endpoint::OllamaGenerate, super::generate::read).await
}

/// Whatever would bring, make or remove a model.
pub(crate) async fn fixed() -> ApiError {
    ApiError::fixed_models()
}

async fn ask(
    mut request: JsonRequest,
    endpoint: Endpoint,
    read: fn(Value, &App, Option<Tenant>) -> ApiResult<Asked>,
) -> ApiResult<Response> {
    match request.read_as(endpoint, read).await? {
        Asked::Load(line) => Ok(json_body(line.to_string())),
        Asked::Answer(prepared) => answer(request.app, &request.caller, *prepared).await,
    }
}
