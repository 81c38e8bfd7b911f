//! A stream whose model is not in memory yet: after a second its headers go out, and then a comment each second, so that
//! no proxy takes it for dead.
//!
//! ```text
//! : loading 43 %
//!
//! : loading 86 %
//!
//! data: {"id": ...}        what the model says, or why it could not be loaded
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use residency::{ModelId, Place};
use tokio::sync::mpsc::{self, Sender};
use tokio::time::timeout;
use transport::error::{ApiError, ApiResult, ErrorFormat};
use transport::sse::{EVENTS, framed, piped, streamed};

use super::Several;

/// Between two comments.
const EACH: Duration = Duration::from_secs(1);

/// The answer, or a stream that waits for it.
pub(super) async fn answer(
    several: &Arc<Several>,
    id: ModelId,
    format: ErrorFormat,
    answer: impl Future<Output = ApiResult<Response>> + Send + 'static,
) -> ApiResult<Response> {
    let mut answer = Box::pin(answer);
    if let Ok(answer) = timeout(EACH, &mut answer).await {
        return answer;
    }
    if several.is_serving(id) {
        return answer.await;
    }
    let (pieces, body) = mpsc::channel(16);
    let several = several.clone();
    tokio::spawn(async move {
        // Who has left waits for nothing: dropping the answer withdraws it.
        while several.comment(id, &pieces).await {
            if let Ok(answer) = timeout(EACH, &mut answer).await {
                return pass_on(answer, format, &pieces).await;
            }
        }
    });
    Ok(streamed(EVENTS, "no-cache", piped(body)))
}

impl Several {
    fn is_serving(&self, id: ModelId) -> bool {
        matches!(self.manager.standing(id).place, Place::Serving { closing: false, .. })
    }

    /// Says how far the model is. False: its client has left.
    async fn comment(&self, id: ModelId, pieces: &Sender<Bytes>) -> bool {
        let percent = self.manager.standing(id).percent.map_or_else(String::new, |percent| format!(" {percent} %"));
        pieces.send(format!(": loading{percent}\n\n").into()).await.is_ok()
    }
}

/// An answer whose headers are gone.
async fn pass_on(answer: ApiResult<Response>, format: ErrorFormat, pieces: &Sender<Bytes>) {
    let answer = answer.and_then(|mut response| match response.extensions_mut().remove::<ApiError>() {
        Some(error) => Err(error),
        None => Ok(response),
    });
    let mut body = match answer {
        Ok(response) => response.into_body(),
        Err(error) => {
            let event = if format == ErrorFormat::Anthropic { "event: error\n" } else { "" };
            _ = pieces.send(format!("{event}{}", framed(&error.json_in(format))).into()).await;
            return;
        }
    };
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        if pieces.send(data).await.is_err() {
            return;
        }
    }
}
