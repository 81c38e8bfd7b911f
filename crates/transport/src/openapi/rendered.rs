//! The document and its page as bytes.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;
use serde_json::Value;

use super::page;
use crate::json::json_body;

/// Both, as they are sent: rendered once, since unauthenticated clients may ask often.
pub struct Rendered {
    document: Bytes,
    page: Bytes,
    /// What the page may load.
    policy: HeaderValue,
}

impl Rendered {
    pub fn new(document: &Value) -> Rendered {
        let (page, policy) = page::of(document);
        Rendered {
            document: document.to_string().into(),
            page: page.into(),
            policy: policy.try_into().expect("words and a digest are a header value"),
        }
    }

    pub fn document(&self) -> Response {
        json_body(self.document.clone())
    }

    pub fn page(&self) -> Response {
        let html = (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        let headers = [
            html,
            (header::CONTENT_SECURITY_POLICY, self.policy.clone()),
            (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ];
        (headers, self.page.clone()).into_response()
    }
}
