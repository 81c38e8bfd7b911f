//! Answers in the background: their client may go, and ask for them or read them again.

use std::sync::Arc;

use axum::response::Response;
use serde_json::Value;
use transport::drain::InBackground;
use transport::error::ApiError;
use transport::json::json_body;

use super::running::{Replay, Running, Source};
use super::store::Content;
use super::write::{ResponseEcho, Writing};
use crate::answers::{EventStream, ResponsePlan};
use crate::app::App;

/// Goes on computing when its client has gone. The answer is in the store when it has ended.
pub(super) fn begin(
    app: Arc<App>,
    echo: Arc<ResponseEcho>,
    plan: ResponsePlan,
    outputs: EventStream,
    is_streamed: bool,
) -> Result<Response, ApiError> {
    let id = outputs.trace().response_id.clone();
    let tenant = echo.stores.flatten();
    let mut head = echo.head(&id, app.now(), &plan);
    head["status"] = "queued".into();
    let (input, conversation) = (echo.input.clone(), echo.conversation.clone());
    let content = Content { response: head.clone(), input, conversation, deltas: Vec::new() };
    app.responses.keep(tenant, &id, content)?;
    let running = Arc::new(Running::new(head.clone()));
    let busy = app.drain.in_background();
    let work = Work { app: app.clone(), echo, head: head.clone(), running: running.clone(), _busy: busy };
    let task = tokio::spawn(work.run(plan, outputs));
    app.responses.computes(&id, task.abort_handle(), running.clone());
    match is_streamed {
        true => Ok(Replay::response(Source::Running(running), None, None)),
        false => Ok(json_body(head.to_string())),
    }
}

/// What writes an answer, token by token, with or without readers. However it ends, its readers hear of it.
struct Work {
    app: Arc<App>,
    echo: Arc<ResponseEcho>,
    head: Value,
    running: Arc<Running>,
    /// The server ends behind it.
    _busy: InBackground,
}

impl Work {
    async fn run(self, plan: ResponsePlan, mut outputs: EventStream) {
        let (tenant, id) = (self.echo.stores.flatten(), outputs.trace().response_id.clone());
        let content = self.write(plan, &mut outputs).await.unwrap_or_else(|error| {
            let failed = self.echo.failed(self.head.clone(), self.running.grown(), &error);
            let store = &self.app.responses;
            if store.keep(tenant, &id, failed.clone()).is_err() {
                // That it failed takes no room, or is what the file says with which it was queued.
                let _ = store.keep(tenant, &id, failed.clone().without_an_answer());
            }
            Arc::new(failed)
        });
        self.running.end(content);
    }

    async fn write(&self, plan: ResponsePlan, outputs: &mut EventStream) -> Result<Arc<Content>, ApiError> {
        let mut writing = Writing::new(self.app.clone(), self.echo.clone(), plan, outputs.trace().clone());
        writing.push_all(outputs, &self.running).await?;
        writing.finish(self.running.grown(), self.head.clone())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.running.forget();
    }
}
