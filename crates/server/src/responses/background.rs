//! Answers in the background: their client may go, and ask for them or read them again.

use std::sync::Arc;

use axum::response::Response;
use serde_json::Value;

use super::running::{Replay, Running, Source};
use super::store::Content;
use super::write::{Shape, Writing};
use crate::answers::{Outputs, Plan, gather};
use crate::app::App;
use crate::error::ApiError;
use crate::routes::json_body;

/// Goes on computing when its client has gone. The answer is in the store when it has ended.
pub(super) fn begin(
    app: Arc<App>,
    shape: Arc<Shape>,
    plan: Plan,
    outputs: Outputs,
    is_streamed: bool,
) -> Result<Response, ApiError> {
    let id = outputs.served().response_id.clone();
    let tenant = shape.stores.flatten();
    let mut head = shape.head(&id, app.now(), &plan);
    head["status"] = "queued".into();
    let (input, conversation) = (shape.input.clone(), shape.conversation.clone());
    let content = Content { response: head.clone(), input, conversation, deltas: Vec::new() };
    app.responses.keep(tenant, &id, content)?;
    let running = Arc::new(Running::new(head.clone()));
    let work = Work { app: app.clone(), shape, head: head.clone(), running: running.clone() };
    let task = tokio::spawn(work.run(plan, outputs, is_streamed));
    app.responses.computes(&id, task.abort_handle(), running.clone());
    match is_streamed {
        true => Ok(Replay::response(Source::Running(running), None, None)),
        false => Ok(json_body(head.to_string())),
    }
}

/// What writes an answer. However it ends, its readers hear of it.
struct Work {
    app: Arc<App>,
    shape: Arc<Shape>,
    head: Value,
    running: Arc<Running>,
}

impl Work {
    async fn run(self, plan: Plan, mut outputs: Outputs, is_streamed: bool) {
        let (tenant, id) = (self.shape.stores.flatten(), outputs.served().response_id.clone());
        let done = match is_streamed {
            true => self.write(plan, &mut outputs).await,
            false => match gather(&self.app, &plan, outputs).await {
                Ok(gathered) => self.shape.response(&self.app, &plan, gathered, Some(self.head.clone())),
                Err(error) => Err(error),
            },
        };
        let content = done.unwrap_or_else(|error| {
            let failed = self.shape.failed(self.head.clone(), self.running.grown(), &error);
            // What cannot be written has failed, which is what the store says of it from then on.
            self.app.responses.keep(tenant, &id, failed.clone()).unwrap_or_else(|_| Arc::new(failed))
        });
        self.running.end(content);
    }

    /// Token by token, as a streamed answer is read.
    async fn write(&self, plan: Plan, outputs: &mut Outputs) -> Result<Arc<Content>, ApiError> {
        let mut writing = Writing::new(self.app.clone(), self.shape.clone(), plan, outputs.served().clone());
        while let Some((_, output)) = outputs.next().await {
            let is_last = self.running.change(|growing| writing.take(output, growing));
            if is_last.inspect_err(|error| outputs.answered(error.status().as_u16()))? {
                outputs.answered(200);
                return writing.finish(self.running.grown(), self.head.clone());
            }
        }
        Err(ApiError::internal())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.running.forget();
    }
}
