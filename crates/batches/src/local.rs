//! The routes of a server without a network: for requests that come from files.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Request, header};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::sync::Semaphore;
use tower::ServiceExt;
use transport::auth::Tenant;
use transport::drain::Drain;
use transport::ids::REQUEST_ID;

use crate::input::MAX_LINE_BYTES;

/// What answers.
#[derive(Clone)]
pub struct LocalServer {
    /// Its routes, as a client with this key sees them. Answers name their request in `x-request-id`.
    pub routes: Arc<dyn Fn(Option<Tenant>) -> Router + Send + Sync>,
    /// Requests that the engine runs at a time, and as many that wait.
    pub fills: usize,
    /// Once it has begun, no answer comes any more.
    pub drain: Arc<Drain>,
}

/// Answers as a server does, in this process.
#[derive(Clone)]
pub struct Local {
    router: Router,
    pub(crate) server: LocalServer,
    /// What lines may hold that are being asked, of all batches together.
    pub(crate) lines: Arc<Semaphore>,
}

/// Room for the lines of all batches, in the unit of [`permits`]: eight of the longest.
pub(crate) fn lines_room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(8 * permits(MAX_LINE_BYTES) as usize))
}

/// Budget of a line of this length.
pub(crate) fn permits(bytes: usize) -> u32 {
    bytes.div_ceil(1024).max(1) as u32
}

/// An answer of [`Local`].
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// When it is worth asking again, if it is.
    pub(crate) retry_after: Option<Duration>,
    pub(crate) request_id: String,
    pub(crate) body: Vec<u8>,
}

impl Local {
    /// For a batch of its own, without a key.
    pub fn new(server: LocalServer) -> Local {
        Local::of(server, None, lines_room())
    }

    /// The same answers as the server gives this tenant.
    pub(crate) fn of(server: LocalServer, tenant: Option<Tenant>, lines: Arc<Semaphore>) -> Local {
        Local { router: (server.routes)(tenant), server, lines }
    }

    pub(crate) async fn post(&self, path: &str, body: Bytes) -> Answered {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json").body(Body::from(body));
        let Ok(response) = self.router.clone().oneshot(request.expect("routes are paths")).await;
        let (head, body) = response.into_parts();
        let request_id = text_of(&head.headers, REQUEST_ID).unwrap_or_default().to_owned();
        let retry_after = text_of(&head.headers, header::RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
        let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        Answered { status: head.status.as_u16(), retry_after: retry_after.map(Duration::from_secs), request_id, body }
    }
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}
