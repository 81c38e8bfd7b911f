//! A stream of events that cannot begin yet: after a second its headers go out, and then a comment each second, so that no
//! proxy takes it for dead.
//!
//! ```text
//! : loading 43 %
//!
//! : loading 86 %
//!
//! data: {"id": ...}        the answer, or why there is none
//! ```

use std::future::Future;
use std::time::Duration;

use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::timeout;

use crate::error::{ApiError, ApiResult, ErrorFormat};
use crate::sse::{EVENTS, framed, piped, streamed};

/// Between two comments.
const EACH: Duration = Duration::from_secs(1);

/// The answer, or a stream that waits for it. `comment`: what it waits for; `None`: nothing any more.
pub async fn held(
    answer: impl Future<Output = ApiResult<Response>> + Send + 'static,
    format: ErrorFormat,
    comment: impl Fn() -> Option<String> + Send + 'static,
) -> ApiResult<Response> {
    let mut answer = Box::pin(answer);
    if let Ok(answer) = timeout(EACH, &mut answer).await {
        return answer;
    }
    if comment().is_none() {
        return answer.await;
    }
    let (pieces, body) = mpsc::channel(16);
    tokio::spawn(async move {
        // Whose client has left waits for nothing: dropping the answer withdraws it.
        while !pieces.is_closed() {
            if let Some(comment) = comment() {
                _ = pieces.send(format!(": {comment}\n\n").into()).await;
            }
            if let Ok(answer) = timeout(EACH, &mut answer).await {
                return pass_on(answer, format, &pieces).await;
            }
        }
    });
    Ok(streamed(EVENTS, "no-cache", piped(body)))
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
