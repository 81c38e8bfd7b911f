//! The engine as it runs, for people who look: the embedded page, and the routes that it is made of.
//!
//! ```text
//! GET /, /app.js, /app.css and others        the page (live/page.rs): holds no data, so it asks for no key
//! GET /live/info                            what is served, and the limits of the machine
//! GET /live/feed?after=STEP&kv=1                server-sent events, without end (live/feed.rs, live/events.rs, live/wire.rs)
//! POST /live/pause, /live/step, /live/resume   hold the engine, one step, let go of it (live/hold.rs)
//! GET /live/trace?seconds=10                the last steps as a trace for ui.perfetto.dev (live/trace.rs)
//! GET /live/whatif?minutes=5&...            the last minutes with other settings (live/whatif.rs)
//! ```
//!
//! The feed is events with one JSON object each (live/wire.rs has the types, live/feed.rs says when): `step` for each step,
//! `thought`, `away`, `requests` and `ended` for requests, `kv` for the map of the cache, `history` at the beginning and
//! `stats` twice a second.
//!
//! Who reads slowly falls behind and goes on with the newest steps; the log keeps 4,096. A feed ends when the server
//! drains. A reader who names no step begins with `history`, the last 256 ends and the last 512 steps
//! ([`telemetry::live_feed`]). There are at most [`crate::app::MOST_READERS`] at once.

pub(crate) mod feed;
pub(crate) mod hold;
pub(crate) mod page;
pub(crate) mod trace;
pub(crate) mod whatif;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use telemetry::live_events as events;
use telemetry::live_feed::Wishes;
use transport::error::ApiError;
use transport::json::fresh_json_body;
use transport::query;
use transport::sse::{EVENTS, streamed};

use crate::app::App;
use crate::ask::UrlRequest;
use crate::live::feed::Feed;

/// Whether the route is the page's, and gone with `ServerOptions::ui`.
pub(crate) fn is_live(path: &str) -> bool {
    page::is_page(path) || path.starts_with("/live/")
}

/// What is served, and what the machine can do.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Response {
    let info = events::info(&*app.engine, &app.model.names[0], app.settings.hold_token.is_some());
    fresh_json_body(events::written(&info))
}

pub(crate) async fn watch(request: UrlRequest) -> Result<Response, ApiError> {
    let mut wishes = Wishes::default();
    for (name, value) in query::pairs(&request.query) {
        match (&*name, &*value) {
            ("after", value) => wishes.after = Some(query::number("after", value)?),
            ("kv", "0" | "1") => wishes.map = value == "1",
            ("kv", _) => return Err(ApiError::bad_request("kv must be 0 or 1.").with_param("kv")),
            (name, _) => return Err(query::unknown(name)),
        }
    }
    let feed = Feed::open(request.app, request.caller.tenant, wishes)?;
    Ok(streamed(EVENTS, "no-store", axum::body::Body::new(feed)))
}
