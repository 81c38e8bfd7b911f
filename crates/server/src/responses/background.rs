//! Answers that nobody waits for.

use std::sync::Arc;

use axum::response::Response;

use super::write::{Shape, failure};
use crate::answers::{Outputs, Plan, gather};
use crate::app::App;
use crate::error::ApiError;
use crate::routes::json_body;

/// Goes on computing when its client has gone. The answer is in the store when it has ended.
pub(super) fn begin(app: Arc<App>, shape: Arc<Shape>, plan: Plan, outputs: Outputs) -> Result<Response, ApiError> {
    let id = outputs.served().response_id.clone();
    let tenant = shape.stores.flatten();
    let mut response = shape.head(&id, app.now(), &plan);
    response["status"] = "queued".into();
    let (input, conversation) = (shape.input.clone(), shape.conversation.clone());
    app.responses.keep(tenant, &id, response.clone(), input.clone(), conversation.clone())?;
    let (task_app, task_id, mut failed) = (app.clone(), id.clone(), response.clone());
    let task = tokio::spawn(async move {
        match gather(&task_app, &plan, outputs).await {
            // What cannot be written has failed, which is what the store says of it from then on.
            Ok(gathered) => _ = shape.response(&task_app, &plan, gathered),
            Err(error) => {
                failed["status"] = "failed".into();
                failed["error"] = failure(&error);
                let _ = task_app.responses.keep(tenant, &task_id, failed, input, conversation);
            }
        }
    });
    app.responses.computes(&id, task.abort_handle());
    Ok(json_body(response.to_string()))
}
