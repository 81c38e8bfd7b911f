//! The embedded page: the files that `cargo xtask web` builds, part of the program.
//!
//! They hold no data and are the same for all readers, so they need no key; what the page shows it gets from the
//! other routes, with the reader's key. Scripts and styles come from this origin only and are never inline, no page may
//! frame this one, and it contacts no other host: what a model says can at worst be text in it.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use transport::error::ApiError;

use crate::app::App;

const FILES: [(&str, &str, &[u8]); 8] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../../ui/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../../ui/app.js")),
    ("/calculator.js", "text/javascript; charset=utf-8", include_bytes!("../../ui/calculator.js")),
    ("/highlight.js", "text/javascript; charset=utf-8", include_bytes!("../../ui/highlight.js")),
    ("/tour.js", "text/javascript; charset=utf-8", include_bytes!("../../ui/tour.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../../ui/app.css")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../../ui/favicon.svg")),
    ("/licences.txt", "text/plain; charset=utf-8", include_bytes!("../../ui/licences.txt")),
];

/// What the page may load, run and ask: its own origin, and pictures that it draws itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Whether the path is one of the page's files.
pub(crate) fn is_page(path: &str) -> bool {
    FILES.iter().any(|&(name, ..)| name == path)
}

/// One of the files; 304 where the reader has it.
pub(crate) async fn file(State(_): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    let Some(index) = FILES.iter().position(|&(name, ..)| name == uri.path()) else {
        return ApiError::unknown_route().into_response();
    };
    let (_, kind, content) = FILES[index];
    let tag = &tags()[index];
    let known = headers.get_all(header::IF_NONE_MATCH).iter().any(|value| value == tag);
    let mut response = if known { StatusCode::NOT_MODIFIED.into_response() } else { content.into_response() };
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        // Asks each time whether the copy is still good: another server may run here tomorrow.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().insert(header::ETAG, tag.clone());
    response
}

/// A name for each content.
fn tags() -> &'static [HeaderValue; 8] {
    static TAGS: OnceLock<[HeaderValue; 8]> = OnceLock::new();
    TAGS.get_or_init(|| {
        FILES.map(|(_, _, content)| {
            let digest = Sha256::digest(content);
            let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("\"{hex}\"").try_into().expect("hexadecimal digits are a header value")
        })
    })
}
