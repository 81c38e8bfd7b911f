//! Server-sent events.

use hyper::body::Bytes;

/// One server-sent event. JSON on one line needs no escaping.
pub fn framed(json: &str) -> String {
    format!("data: {json}\n\n")
}

pub fn event(json: &str) -> Bytes {
    framed(json).into()
}
