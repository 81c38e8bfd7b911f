//! `/v1/files` and `/v1/batches`, in OpenAI's shapes.

use std::io::{Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use batches::{BATCH_ROUTES, BatchNote, BatchStore, FileNote, MOST_FILE_BYTES, Status, unwritable};
use http_body_util::BodyDataStream;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use multer::Multipart;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use transport::arriving::{Arriving, Unread};
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, wrong_type};
use transport::json::json_body;
use transport::query::{FILES_PAGE, PAGE, Page};

use crate::app::App;
use crate::ask::{Caller, JsonRequest, UrlRequest, blocking};
use crate::openai::shapes;

/// Bytes of a field beside the file.
const FIELD_BYTES: u64 = 4096;
/// Bytes of a form beside the file: heads of parts, and what has come of the file and is not on the disk yet.
const FORM_BYTES: u64 = 1 << 20;
/// Bytes of a file that are read at a time.
const CHUNK: usize = 64 << 10;
/// `completion_window`: what OpenAI has. Nothing ends here because it was over.
const WINDOW: &str = "24h";

/// `POST /v1/files`.
pub(crate) async fn send_file(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let store = store(&app)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        ApiError::unsupported_media_type(
            "A file is sent as 'multipart/form-data', with the fields 'purpose' and 'file'.",
        )
    })?;
    let limits = multer::SizeLimit::new().for_field("file", MOST_FILE_BYTES).per_field(FIELD_BYTES);
    let constraints = multer::Constraints::new().size_limit(limits);
    let patience = app.settings.patience;
    let body = Arriving::new(&headers, body, MOST_FILE_BYTES + FORM_BYTES, patience.quiet, patience.file)?;
    let passed = Arc::new(AtomicU64::new(0));
    let body = Unpacked { body, came: 0, passed: passed.clone() };
    let mut parts = Multipart::with_constraints(BodyDataStream::new(body), boundary, constraints);
    Ok(json_body(shown(&take(&app, &store, &caller, &passed, &mut parts).await?).to_string()))
}

/// The parts of a form; the file goes to the disk as it comes.
async fn take(
    app: &Arc<App>,
    store: &Arc<BatchStore>,
    caller: &Caller,
    passed: &AtomicU64,
    parts: &mut Multipart<'_>,
) -> ApiResult<FileNote> {
    let (mut sent, mut purpose) = (None, None);
    while let Some(mut part) = parts.next_field().await.map_err(|error| broken(&error))? {
        match part.name() {
            Some("purpose") if purpose.is_none() => purpose = Some(part.text().await.map_err(|error| broken(&error))?),
            Some("file") if sent.is_none() => {
                let filename: String = part.file_name().unwrap_or("file.jsonl").chars().take(255).collect();
                let id = format!("file-{}", app.ids.unique());
                let (sending, mut file) = store.begin_file(caller.tenant, &id)?;
                while let Some(chunk) = part.chunk().await.map_err(|error| broken(&error))? {
                    passed.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                    sending.grow(chunk.len() as u64)?;
                    let written = tokio::task::spawn_blocking(move || file.write_all(&chunk).map(|()| file)).await;
                    file = written.map_err(|_| ApiError::internal())?.map_err(|error| unwritable(&error))?;
                }
                sent = Some((filename, sending, file));
            }
            Some(name) => {
                let message = "Of the fields of a file this server knows 'purpose' and 'file', once each.";
                let name: String = name.chars().take(64).collect();
                return Err(ApiError::unknown_parameter(name, message));
            }
            None => return Err(ApiError::bad_request("A part of the form has no name.")),
        }
    }
    match purpose.as_deref() {
        Some("batch") => {}
        Some(_) => return Err(wrong_type("purpose", "'batch': files are for batches here")),
        None => return Err(ApiError::bad_request("'purpose' is missing.").with_param("purpose")),
    }
    let Some((filename, sending, file)) = sent else {
        return Err(ApiError::bad_request("'file' is missing.").with_param("file"));
    };
    let now = app.now();
    let kept = tokio::task::spawn_blocking(move || {
        file.sync_all().map_err(|error| unwritable(&error))?;
        sending.keep(filename, now)
    });
    kept.await.map_err(|_| ApiError::internal())?
}

/// The bytes of a form. What the reader of forms holds back (a head of a part, what is before the first) has a limit too;
/// it has none itself.
struct Unpacked {
    body: Arriving,
    came: u64,
    /// Bytes of the file that the reader has passed on.
    passed: Arc<AtomicU64>,
}

impl HttpBody for Unpacked {
    type Data = Bytes;
    type Error = Unread;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unread>>> {
        if self.came > self.passed.load(Ordering::Relaxed) + FORM_BYTES {
            return Poll::Ready(Some(Err(Unread::TooLarge(MOST_FILE_BYTES))));
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.came += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        frame
    }
}

fn broken(error: &multer::Error) -> ApiError {
    if let multer::Error::StreamReadFailed(error) = error
        && let Some(unread) = error.downcast_ref::<Unread>()
    {
        return unread.into();
    }
    match error {
        multer::Error::FieldSizeExceeded { limit: FIELD_BYTES, field_name } => {
            let message = format!("A field beside 'file' has at most {FIELD_BYTES} bytes.");
            let name: String = field_name.as_deref().unwrap_or_default().chars().take(64).collect();
            ApiError::bad_request(message).with_param(name)
        }
        multer::Error::FieldSizeExceeded { .. } => ApiError::body_too_large(MOST_FILE_BYTES as usize),
        _ => ApiError::bad_request("The form could not be read to its end."),
    }
}

/// `GET /v1/files`.
pub(crate) async fn list_files(request: UrlRequest) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    let mut page = Page::read(&request.query, FILES_PAGE, &["purpose", "order"])?;
    let purpose = page.take("purpose");
    let is_rising = page.is_rising()?;
    let listed = move |app: &App| {
        let mut files = store(app)?.files(tenant);
        files.retain(|file| purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose));
        if is_rising {
            files.reverse();
        }
        Ok(page.of(files.iter().map(shown).collect())?.to_string())
    };
    Ok(json_body(request.in_turn(listed).await?))
}

/// `GET /v1/files/{id}`.
pub(crate) async fn show_file(
    UrlRequest { app, caller, .. }: UrlRequest,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    Ok(json_body(shown(&store(&app)?.file(caller.tenant, &id)?).to_string()))
}

/// `DELETE /v1/files/{id}`.
pub(crate) async fn delete_file(
    UrlRequest { app, caller, .. }: UrlRequest,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    let (store, file) = (store(&app)?, id.clone());
    blocking(move || store.delete_file(caller.tenant, &file)).await??;
    Ok(json_body(json!({"id": id, "object": "file", "deleted": true}).to_string()))
}

/// `GET /v1/files/{id}/content`.
pub(crate) async fn read_file(
    UrlRequest { app, caller, .. }: UrlRequest,
    Path(id): Path<String>,
) -> ApiResult<Response> {
    let store = store(&app)?;
    let bytes = store.file(caller.tenant, &id)?.bytes;
    let (sender, chunks) = mpsc::channel(2);
    let path = store.path(&id);
    let file = blocking(move || files::open(&path)).await?.map_err(|error| {
        tracing::error!(file = id, %error, "the contents of a file cannot be read");
        ApiError::damaged_file()
    })?;
    if file.metadata().is_ok_and(|found| found.len() != bytes) {
        tracing::error!(file = id, "a file is not as long as it was");
        return Err(ApiError::damaged_file());
    }
    let mut file = file.take(bytes);
    tokio::task::spawn_blocking(move || {
        loop {
            let mut chunk = vec![0; CHUNK];
            match file.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(read) => chunk.truncate(read),
            }
            if sender.blocking_send(Bytes::from(chunk)).is_err() {
                return;
            }
        }
    });
    let headers = [(header::CONTENT_TYPE, "application/jsonl".to_owned()), (header::CONTENT_LENGTH, bytes.to_string())];
    Ok((headers, Body::new(Chunks(chunks))).into_response())
}

/// A file as it is read.
struct Chunks(mpsc::Receiver<Bytes>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// `POST /v1/batches`.
pub(crate) async fn begin(mut request: JsonRequest) -> ApiResult<Response> {
    let store = store(&request.app)?;
    let note = request.read(|body, app| {
        let mut fields = Fields::of(body, &shapes::BATCH)?;
        let [input_file_id, endpoint] = [fields.text("input_file_id")?, fields.text("endpoint")?];
        if !BATCH_ROUTES.contains(&endpoint.as_str()) {
            return Err(wrong_type("endpoint", &format!("one of {}", BATCH_ROUTES.join(", "))));
        }
        let metadata = fields.map("metadata")?.map_or(Value::Null, Value::from);
        fields.finish()?;
        Ok(BatchNote::new(format!("batch_{}", app.ids.unique()), endpoint, input_file_id, metadata, app.now()))
    });
    let note = note.await?;
    let begun = blocking(move || store.begin_batch(request.caller.tenant, note)).await??;
    Ok(json_body(told(&begun).to_string()))
}

/// `GET /v1/batches`.
pub(crate) async fn list(request: UrlRequest) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    let page = Page::read(&request.query, PAGE, &[])?;
    let listed = move |app: &App| {
        let batches = store(app)?.batches(tenant);
        Ok(page.of(batches.iter().map(told).collect())?.to_string())
    };
    Ok(json_body(request.in_turn(listed).await?))
}

/// `GET /v1/batches/{id}`.
pub(crate) async fn show(UrlRequest { app, caller, .. }: UrlRequest, Path(id): Path<String>) -> ApiResult<Response> {
    Ok(json_body(told(&store(&app)?.batch(caller.tenant, &id)?).to_string()))
}

/// `POST /v1/batches/{id}/cancel`.
pub(crate) async fn cancel(UrlRequest { app, caller, .. }: UrlRequest, Path(id): Path<String>) -> ApiResult<Response> {
    let (store, now) = (store(&app)?, app.now());
    let cancelled = blocking(move || store.cancel(caller.tenant, &id, now)).await??;
    Ok(json_body(told(&cancelled).to_string()))
}

fn store(app: &App) -> ApiResult<Arc<BatchStore>> {
    app.batch_store.clone().ok_or_else(|| {
        ApiError::forbidden("no_batches", "This server keeps no files: start it with --batch-dir DIR for batches.")
    })
}

/// A file in OpenAI's words.
fn shown(file: &FileNote) -> Value {
    json!({
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": null,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": null,
    })
}

/// A batch in OpenAI's words.
fn told(batch: &BatchNote) -> Value {
    let created = batch.since(Status::Validating);
    let errors = batch.problem.as_ref().map(|(message, line)| {
        // Without a line it is not the input that is wrong.
        let code = line.map_or("batch_failed", |_| "invalid_line");
        json!({"object": "list", "data": [{"code": code, "message": message, "line": line, "param": null}]})
    });
    json!({
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": WINDOW,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": created,
        "in_progress_at": batch.since(Status::InProgress),
        "expires_at": null,
        "finalizing_at": batch.since(Status::Finalizing),
        "completed_at": batch.since(Status::Completed),
        "failed_at": batch.since(Status::Failed),
        "expired_at": null,
        "cancelling_at": batch.since(Status::Cancelling),
        "cancelled_at": batch.since(Status::Cancelled),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
    })
}
