//! The document and its page as bytes.

use axum::http::HeaderValue;
use hyper::body::Bytes;

/// Both, as they are sent: rendered once, since unauthenticated clients may ask often.
pub(crate) struct CachedDocument {
    pub(super) document: Bytes,
    pub(super) page: Bytes,
    /// What the page may load.
    pub(super) policy: HeaderValue,
}
