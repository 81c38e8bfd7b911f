//! Bodies that come in pieces: server-sent events, and lines.

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;

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

/// One server-sent event. JSON on one line needs no escaping.
pub fn framed(json: &str) -> String {
    format!("data: {json}\n\n")
}

pub fn event(json: &str) -> Bytes {
    framed(json).into()
}
