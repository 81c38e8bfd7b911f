//! `POST /api/pull` and `DELETE /api/delete`, where the operator allows them: models come to this disk and leave it.
//!
//! ```text
//! {"status": "pulling manifest"}
//! {"status": "pulling 0123456789ab", "digest": "sha256:0123...", "total": 5, "completed": 2}    each tenth of a second
//! {"status": "success"}     or {"error": "..."}
//! ```
//! A client that leaves ends its download with the next megabyte; what came is kept, and the next pull goes on from there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::response::Response;
use hub::{DownloadEvent, DownloadProgress};
use hyper::body::Bytes;
use residency::Place;
use serde_json::{Value, json};
use tokio::sync::mpsc;
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

/// Why a model was not downloaded or removed, in words for a client.
#[derive(Debug)]
pub enum StorageError {
    /// There is none of this name.
    Unknown(String),
    /// The name is none that could be downloaded, or several.
    Name(String),
    /// It is in memory, or on its way here.
    InUse(String),
    /// The disk has no room.
    NoRoom(String),
    /// The network, the hub or the disk is at fault.
    Failed(String),
}

impl From<StorageError> for ApiError {
    fn from(error: StorageError) -> ApiError {
        match error {
            StorageError::Unknown(why) => ApiError::no_such_model(why),
            StorageError::Name(why) => ApiError::bad_request(why).with_param("model"),
            StorageError::InUse(why) => ApiError::model_in_use(why),
            StorageError::NoRoom(why) => ApiError::no_room_on_disk(why),
            StorageError::Failed(why) => ApiError::machine_busy(why),
        }
    }
}

/// The names that are being downloaded.
#[derive(Default)]
pub(super) struct Pulls(Mutex<BTreeSet<String>>);

/// A name's download, until this is dropped.
struct Pull {
    several: Arc<Several>,
    name: String,
}

impl Pull {
    fn begin(several: Arc<Several>, name: String) -> ApiResult<Pull> {
        let mut names = several.pulls.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(&name) {
            return Err(ApiError::model_in_use("This model is being downloaded already.".to_owned()));
        }
        if names.len() >= MOST {
            return Err(ApiError::overloaded(60));
        }
        names.insert(name.clone());
        drop(names);
        Ok(Pull { several, name })
    }

    /// Downloads it, and tells of it line by line. Blocks.
    fn run(&self, lines: &mpsc::Sender<Bytes>) -> ApiResult<()> {
        let mut told = Instant::now();
        let mut progress = |event: DownloadEvent<'_>| match event {
            DownloadEvent::Begins(_) => !lines.is_closed(),
            DownloadEvent::File(file) => {
                let is_last = file.bytes_total == Some(file.bytes_done);
                if !is_last && file.bytes_done > 0 && told.elapsed() < EACH {
                    return !lines.is_closed();
                }
                told = Instant::now();
                lines.blocking_send(line(&of_file(&file))).is_ok()
            }
        };
        Ok(self.several.catalog.pull(&self.name, &mut progress)?)
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.several.pulls.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

fn of_file(file: &DownloadProgress<'_>) -> Value {
    let DownloadProgress { etag, bytes_done, bytes_total, .. } = file;
    let kind = if etag.len() == 64 { "sha256:" } else { "" };
    json!({
        "status": format!("pulling {:.12}", etag),
        "digest": format!("{kind}{etag}"),
        "total": bytes_total,
        "completed": bytes_done,
    })
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

/// `POST /api/pull`.
pub(crate) async fn pull(store: Option<Extension<Arc<Several>>>, mut request: JsonRequest) -> ApiResult<Response> {
    let several = allowed(store, &request)?;
    let (name, is_streamed) = request.read(asked).await?;
    let (lines, mut pieces) = mpsc::channel(16);
    let pull = Pull::begin(several, name)?;
    if !is_streamed {
        let done = blocking(move || pull.run(&lines));
        // Who hears no lines takes them all the same, and by leaving says that it has left.
        let heard = async { while pieces.recv().await.is_some() {} };
        tokio::join!(done, heard).0??;
        return Ok(json_body(json!({"status": "success"}).to_string()));
    }
    tokio::task::spawn_blocking(move || {
        // Who has left hears nothing.
        _ = lines.blocking_send(line(&json!({"status": "pulling manifest"})));
        let last = match pull.run(&lines) {
            Ok(()) => line(&json!({"status": "success"})),
            Err(error) => format!("{}\n", error.json_in(ErrorFormat::Ollama)).into(),
        };
        drop(pull);
        _ = lines.blocking_send(last);
    });
    Ok(streamed("application/x-ndjson", "no-cache", piped(pieces)))
}

/// `DELETE /api/delete`.
pub(crate) async fn delete(store: Option<Extension<Arc<Several>>>, mut request: JsonRequest) -> ApiResult<Response> {
    let several = allowed(store, &request)?;
    let (name, _) = request.read(asked).await?;
    let known = several.all().await;
    let in_memory = move |several: &Several, name: &str| {
        let is_here = |id| !matches!(several.manager.standing(id).place, Place::Cold | Place::Failed { .. });
        known.iter().any(|(model, id)| model.names[0] == name && is_here(*id))
    };
    let delete = move || {
        // A download that begins now would bring it back in part.
        let _pull = Pull::begin(several.clone(), name.clone())?;
        several.catalog.delete(&name, &|name| in_memory(&several, name)).map_err(ApiError::from)
    };
    blocking(delete).await??;
    Ok(json_body("{}".to_owned()))
}

fn allowed(store: Option<Extension<Arc<Several>>>, request: &JsonRequest) -> ApiResult<Arc<Several>> {
    let store = store.map(|Extension(several)| several).filter(|several| several.catalog.may_pull());
    let store = store.ok_or_else(ApiError::pulls_forbidden)?;
    request.app.keys.check(Right::Models, request.caller.tenant.as_ref())?;
    Ok(store)
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
