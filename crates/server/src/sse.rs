//! Server-sent events.

use hyper::body::Bytes;

/// One server-sent event. JSON on one line needs no escaping.
pub(crate) fn framed(json: &str) -> String {
    format!("data: {json}\n\n")
}

pub(crate) fn event(json: &str) -> Bytes {
    framed(json).into()
}
