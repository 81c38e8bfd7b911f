//! `POST /api/pull` and `DELETE /api/delete`, where the operator allows them: models come to this disk and leave it.
//!
//! ```text
//! {"status": "pulling manifest"}
//! {"status": "pulling 0123456789ab", "digest": "sha256:0123...", "total": 5, "completed": 2}    each tenth of a second
//! {"status": "success"}     or {"error": "..."}
//! ```
//! A client that leaves ends its download with the next megabyte; what came is kept, and the next pull goes on from there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::response::Response;
use hub::{DownloadEvent, DownloadProgress};
use hyper::body::Bytes;
use residency::{Claim, Place, Unclaimed};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Sender};
use transport::auth::Right;
use transport::error::{ApiError, ApiResult, ErrorFormat};
use transport::fields::{Fields, wrong_type};
use transport::json::json_body;
use transport::sse::{piped, streamed};

use super::Several;
use crate::app::App;
use crate::ask::{JsonRequest, blocking};
use crate::ollama::shapes::PULL;

/// Downloads at once.
const MOST: usize = 4;
/// Between two lines about one file.
const EACH: Duration = Duration::from_millis(100);

/// Where models are kept, in the request's extensions.
type Store = Option<Extension<Arc<Several>>>;

/// `POST /api/pull`.
pub(crate) async fn pull(store: Store, mut request: JsonRequest) -> ApiResult<Response> {
    let several = allowed(store, &request)?;
    let (name, is_streamed) = request.read(asked).await?;
    let claim = several.claim(&name)?;
    let (told, mut lines) = mpsc::channel(16);
    if !is_streamed {
        let done = blocking(move || several.download(&name, claim, &told));
        // Lines that are not sent are read all the same: no reader would mean that the client has left.
        let read = async { while lines.recv().await.is_some() {} };
        tokio::join!(done, read).0??;
        return Ok(json_body(json!({"status": "success"}).to_string()));
    }
    tokio::task::spawn_blocking(move || {
        _ = told.blocking_send(line(&json!({"status": "pulling manifest"})));
        let last = match several.download(&name, claim, &told) {
            Ok(()) => line(&json!({"status": "success"})),
            Err(error) => format!("{}\n", error.json_in(ErrorFormat::Ollama)).into(),
        };
        _ = told.blocking_send(last);
    });
    Ok(streamed("application/x-ndjson", "no-cache", piped(lines)))
}

/// `DELETE /api/delete`.
pub(crate) async fn delete(store: Store, mut request: JsonRequest) -> ApiResult<Response> {
    let several = allowed(store, &request)?;
    let (name, _) = request.read(asked).await?;
    let known = several.all().await;
    blocking(move || {
        // A download that begins now would bring it back in part.
        let _claim = several.claim(&name)?;
        let is_here = |id| !matches!(several.manager.standing(id).place, Place::Cold | Place::Failed { .. });
        several.catalog.delete(&name, &|name| known.iter().any(|(it, id)| it.names[0] == name && is_here(*id)))
    })
    .await??;
    Ok(json_body("{}".to_owned()))
}

impl Several {
    fn claim(&self, name: &str) -> ApiResult<Claim> {
        self.pulls.claim(name, MOST).map_err(|unclaimed| match unclaimed {
            Unclaimed::Taken => ApiError::model_in_use("This model is being downloaded already.".to_owned()),
            Unclaimed::Full => ApiError::overloaded(60),
        })
    }

    /// Downloads a model, and tells of it line by line. Blocks.
    fn download(&self, name: &str, _claim: Claim, told: &Sender<Bytes>) -> ApiResult<()> {
        let mut last = Instant::now();
        let mut progress = |event: DownloadEvent<'_>| {
            let DownloadEvent::File(file) = event else { return !told.is_closed() };
            let is_edge = file.bytes_done == 0 || file.bytes_total == Some(file.bytes_done);
            if !is_edge && last.elapsed() < EACH {
                return !told.is_closed();
            }
            last = Instant::now();
            told.blocking_send(line(&of_file(&file))).is_ok()
        };
        self.catalog.pull(name, &mut progress)?;
        self.refreshed();
        Ok(())
    }
}

fn of_file(file: &DownloadProgress<'_>) -> Value {
    let DownloadProgress { etag, bytes_done, bytes_total, .. } = file;
    let digest = format!("{}{etag}", if etag.len() == 64 { "sha256:" } else { "" });
    json!({"status": format!("pulling {etag:.12}"), "digest": digest, "total": bytes_total, "completed": bytes_done})
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

fn allowed(store: Store, request: &JsonRequest) -> ApiResult<Arc<Several>> {
    let store = store.filter(|store| store.catalog.may_pull()).ok_or_else(ApiError::pulls_forbidden)?;
    request.app.keys.check(Right::Models, request.caller.tenant.as_ref())?;
    Ok(store.0)
}

/// The name without Ollama's tag, and whether lines are wanted.
fn asked(body: Value, _: &App) -> ApiResult<(String, bool)> {
    let mut fields = Fields::of(body, &PULL)?;
    let older = fields.string("name")?;
    let name = fields.string("model")?.or(older).ok_or_else(|| wrong_type("model", "the name of a model"))?;
    let stream = fields.boolean("stream")?.unwrap_or(true);
    fields.finish()?;
    Ok((name.strip_suffix(":latest").unwrap_or(&name).to_owned(), stream))
}
