//! Adapters as vLLM's routes have them: loaded and unloaded by name while the server runs, if it was started so. Their
//! names are names of models, on every route; which ones there are is the engine's to say.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use engine::AdapterError;
use serde_json::Value;

use crate::app::App;
use crate::ask::Caller;
use crate::auth::Right;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::shapes;

type Caught<T> = Result<T, ApiError>;

/// `POST /v1/load_lora_adapter`.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    allowed(&app, &caller)?;
    let (name, path) = app.with_json(&headers, body, caller.tenant, |body, _| read_load(body)).await?;
    if app.models.contains(&name) {
        return Err(AdapterError::Exists { name }.into());
    }
    let said = format!("Success: LoRA adapter '{name}' added successfully.");
    in_peace(app, move |app| app.engine.load_adapter(&name, Path::new(&path))).await?;
    Ok(text(said))
}

/// `POST /v1/unload_lora_adapter`.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Caught<Response> {
    allowed(&app, &caller)?;
    let name = app.with_json(&headers, body, caller.tenant, |body, _| read_unload(body)).await?;
    if app.keys.are_several() && app.first_adapters.contains(&name) {
        let message = "This adapter was there at the start (--lora-modules), and other keys use it: it stays.";
        return Err(ApiError::forbidden("adapter_is_fixed", message).with_param("lora_name"));
    }
    let said = format!("Success: LoRA adapter '{name}' removed successfully.");
    in_peace(app, move |app| app.engine.unload_adapter(&name)).await?;
    Ok(text(said))
}

fn allowed(app: &App, caller: &Caller) -> Caught<()> {
    let message = "Adapters come and go by requests only where the server was started with --allow-runtime-lora.";
    if !app.runtime_adapters {
        return Err(ApiError::forbidden("adapters_are_fixed", message));
    }
    app.keys.check(Right::Adapters, caller.tenant.as_ref())
}

fn read_load(body: Value) -> Caught<(String, String)> {
    let mut fields = Fields::of(body, &shapes::LOAD_ADAPTER)?;
    let [name, path] = [fields.text("lora_name")?, fields.text("lora_path")?];
    fields.finish()?;
    Ok((name, path))
}

fn read_unload(body: Value) -> Caught<String> {
    let mut fields = Fields::of(body, &shapes::UNLOAD_ADAPTER)?;
    let name = fields.text("lora_name")?;
    fields.finish()?;
    Ok(name)
}

/// Files are read and the engine's thread is waited for: not on a thread that serves.
async fn in_peace(app: Arc<App>, work: impl FnOnce(&App) -> Result<(), AdapterError> + Send + 'static) -> Caught<()> {
    let done = tokio::task::spawn_blocking(move || work(&app)).await;
    done.map_err(|_| ApiError::internal())?.map_err(ApiError::from)
}

fn text(said: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], said).into_response()
}
