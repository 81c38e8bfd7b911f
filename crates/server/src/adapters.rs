//! Adapters as vLLM's routes have them: loaded and unloaded by name while the server runs, if it was started so. Their
//! names are names of models, on every route; which ones there are is the engine's to say.

use std::path::Path;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use engine::AdapterError;
use serde_json::Value;
use transport::auth::Right;
use transport::error::{ApiError, ApiResult};
use transport::fields::Fields;

use crate::app::App;
use crate::ask::{Caller, JsonRequest, blocking};
use crate::openai::shapes;

/// As the system has it: what is longer is no path, and would be repeated in the refusal.
const MAX_PATH_BYTES: usize = 4096;

/// `POST /v1/load_lora_adapter`.
pub(crate) async fn load(mut request: JsonRequest) -> ApiResult<Response> {
    allowed(&request.app, &request.caller)?;
    let (name, path) = request.read(|body, _| read_load(body)).await?;
    let app = request.app;
    if app.model.names.contains(&name) {
        return Err(AdapterError::Exists { name }.into());
    }
    let said = format!("Success: LoRA adapter '{name}' added successfully.");
    // Files are read and the engine's thread is waited for.
    blocking(move || app.engine.load_adapter(&name, Path::new(&path))).await??;
    Ok(text(said))
}

/// `POST /v1/unload_lora_adapter`.
pub(crate) async fn unload(mut request: JsonRequest) -> ApiResult<Response> {
    allowed(&request.app, &request.caller)?;
    let name = request.read(|body, _| read_unload(body)).await?;
    let app = request.app;
    if app.keys.are_several() && app.model.first_adapters.contains(&name) {
        let message = "This adapter was there at the start (--lora-modules), and other keys use it: it stays.";
        return Err(ApiError::forbidden("adapter_is_fixed", message).with_param("lora_name"));
    }
    let said = format!("Success: LoRA adapter '{name}' removed successfully.");
    blocking(move || app.engine.unload_adapter(&name)).await??;
    Ok(text(said))
}

fn allowed(app: &App, caller: &Caller) -> ApiResult<()> {
    let message = "Adapters come and go by requests only where the server was started with --allow-runtime-lora.";
    if !app.settings.runtime_adapters {
        return Err(ApiError::forbidden("adapters_are_fixed", message));
    }
    app.keys.check(Right::Adapters, caller.tenant.as_ref())
}

fn read_load(body: Value) -> ApiResult<(String, String)> {
    let mut fields = Fields::of(body, &shapes::LOAD_ADAPTER)?;
    let [name, path] = [fields.text("lora_name")?, fields.text("lora_path")?];
    if path.len() > MAX_PATH_BYTES {
        let message = format!("'lora_path' has more than {MAX_PATH_BYTES} bytes.");
        return Err(ApiError::bad_request(message).with_param("lora_path"));
    }
    fields.finish()?;
    Ok((name, path))
}

fn read_unload(body: Value) -> ApiResult<String> {
    let mut fields = Fields::of(body, &shapes::UNLOAD_ADAPTER)?;
    let name = fields.text("lora_name")?;
    fields.finish()?;
    Ok(name)
}

fn text(said: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], said).into_response()
}
