//! Pausing the engine to look at it: no step, one step, as many as there are.
//!
//! ```text
//! pause --> paused --step--> one step --> paused --resume--> moves
//!             |                             |
//!             +-- no viewer for 30 s, or the server drains --> moves
//! ```
//!
//! A pause stops all requests, so it is off unless the operator allows it, and then takes the token of this start, which
//! is in the link that the start printed. Nothing fails because of it: requests are taken in and wait, `/health` stays
//! good, and the time has an owner of its own (`paused`, see `engine::ledger`). Targets do not run in it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;
use tokio::time::Instant;
use transport::error::ApiError;
use transport::json::json_body;

use crate::app::{App, MOST_READERS};

/// Between two looks at who still watches.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) async fn pause(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    allowed(&app, &headers)?;
    let was_paused = app.engine.is_paused();
    let is_paused = app.engine.pause().await;
    if is_paused && !was_paused {
        tokio::spawn(let_go_when_alone(app));
    }
    Ok(state(is_paused))
}

/// One step.
pub(crate) async fn step(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    allowed(&app, &headers)?;
    Ok(state(app.engine.single_step().await))
}

/// As many steps as there are.
pub(crate) async fn resume(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    allowed(&app, &headers)?;
    Ok(state(app.engine.resume().await))
}

fn state(is_paused: bool) -> Response {
    json_body(json!({"paused": is_paused}).to_string())
}

/// Whether the server allows pausing, and this caller may.
fn allowed(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(token) = &app.settings.hold_token else {
        let message = "Pausing holds every request on this server, so it is off: start the server with --allow-pause.";
        return Err(ApiError::forbidden("pause_not_allowed", message));
    };
    if token.is_in(headers) {
        return Ok(());
    }
    let message = "Holding the engine takes the token of this start in the header 'x-hold-token': it is in the link to \
        the page that the server printed when it started.";
    Err(ApiError::forbidden("hold_token", message))
}

/// Resumes the engine after a while without viewers. Ends with the pause.
async fn let_go_when_alone(app: Arc<App>) {
    let mut alone_since = Instant::now();
    while app.engine.is_paused() {
        if app.permits.readers.available_permits() < MOST_READERS {
            alone_since = Instant::now();
        }
        if app.drain.has_begun() || alone_since.elapsed() >= app.settings.pause_limit {
            tracing::info!("no viewers left, or the server drains; resuming the engine");
            app.engine.resume().await;
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
