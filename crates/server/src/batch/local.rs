//! The routes without a network, a key or a name: for requests that come from files.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use engine::Observe;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::sync::Semaphore;
use tower::ServiceExt;

use super::input::MAX_LINE_BYTES;
use crate::app::App;
use crate::ask::Caller;
use crate::auth::Tenant;
use crate::origin::{OriginPolicy, Told};
use crate::responses::Store;
use crate::routes;
use crate::{ServeError, ServerOptions};

/// Answers as a server does, in this process.
#[derive(Clone)]
pub struct Local {
    app: Arc<App>,
    router: Router,
    tenant: Option<Tenant>,
    /// What lines may hold that are being asked, of all batches together.
    pub(super) lines: Arc<Semaphore>,
}

/// Room for the lines of all batches, in the unit of [`permits`]: eight of the longest.
pub(super) fn lines_room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(8 * permits(MAX_LINE_BYTES) as usize))
}

/// Budget of a line of this length.
pub(super) fn permits(bytes: usize) -> u32 {
    bytes.div_ceil(1024).max(1) as u32
}

/// An answer of [`Local`].
pub(super) struct Answered {
    pub(super) status: u16,
    /// When it is worth asking again, if it is.
    pub(super) retry_after: Option<Duration>,
    pub(super) request_id: String,
    pub(super) body: Vec<u8>,
}

impl Local {
    /// Of what concerns answers `options` count; addresses, keys and origins do not.
    pub fn new(engine: impl Observe + 'static, options: &ServerOptions) -> Result<Local, ServeError> {
        if options.served_model_names.iter().any(String::is_empty) {
            return Err(ServeError::EmptyModelName);
        }
        let policy =
            OriginPolicy::new(&Told { host: "localhost", allowed_hosts: &[], allowed_origins: &[], has_keys: false });
        let policy = policy.expect("localhost is a name");
        let app = App::new(Arc::new(engine), options, policy, None, Store::in_memory());
        Ok(Local::of(Arc::new(app), None, lines_room()))
    }

    /// The same answers as its server gives this tenant.
    pub(super) fn of(app: Arc<App>, tenant: Option<Tenant>, lines: Arc<Semaphore>) -> Local {
        Local { router: routes::inner(app.clone()), app, tenant, lines }
    }

    /// Requests that the engine runs at a time, and as many that wait.
    pub(super) fn fills(&self) -> usize {
        (2 * self.app.engine.model().max_num_seqs).min(128)
    }

    /// Whether no answer will come any more.
    pub(super) fn is_stopping(&self) -> bool {
        self.app.drain.has_begun()
    }

    pub(super) async fn post(&self, path: &str, body: Bytes) -> Answered {
        let caller = Caller::local(&self.app, self.tenant);
        let request_id = caller.name();
        let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        if let Some(extensions) = request.extensions_mut() {
            extensions.insert(caller);
        }
        let request = request.body(Body::from(body)).expect("routes are paths");
        let Ok(response) = self.router.clone().oneshot(request).await;
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        Answered { status: head.status.as_u16(), retry_after, request_id, body }
    }
}
