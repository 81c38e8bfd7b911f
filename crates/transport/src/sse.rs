//! Bodies that come in pieces: server-sent events, and lines.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use tokio::sync::mpsc::Receiver;

/// What a stream of events is.
pub const EVENTS: &str = "text/event-stream; charset=utf-8";

/// A response that is passed on piece by piece. `kind`: its content type; `cache`: what caches may do with it.
pub fn streamed(kind: &'static str, cache: &'static str, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, cache),
        // Asks proxies to pass each piece on at once.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// A body of what comes through a channel. Who sends learns from it that the reader has left.
pub fn piped(pieces: Receiver<Bytes>) -> Body {
    Body::new(Piped(pieces))
}

struct Piped(Receiver<Bytes>);

impl HttpBody for Piped {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// One server-sent event. JSON on one line needs no escaping.
pub fn framed(json: &str) -> String {
    format!("data: {json}\n\n")
}

pub fn event(json: &str) -> Bytes {
    framed(json).into()
}
