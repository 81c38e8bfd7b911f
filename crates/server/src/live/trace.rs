//! `GET /live/trace`: the last seconds of this server as a trace, to be opened in `ui.perfetto.dev`
//! ([`replay::TraceWriter`] has the picture).
//!
//! The caller's own requests have their names, phases and owners, and arrows from what delayed them; those of others
//! are lanes of rows under a number, as in the feed.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use engine::{LogCursor, LoggedStep, RequestId, Timeline};
use protocol::Nanos;
use replay::{TraceWriter, Traced};
use telemetry::live_wire::Name;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::json::fresh_json_body;
use transport::query;

use crate::app::App;
use crate::ask::{UrlRequest, blocking};

/// Default seconds.
const SECONDS: u64 = 10;
/// And at most: no log of steps is longer.
const MOST_SECONDS: u64 = 3600;
/// Rows of sequences in a trace, some 200 bytes each: the newest steps that have no more.
const MOST_ROWS: usize = 200_000;

pub(crate) async fn download(UrlRequest { app, caller, query }: UrlRequest) -> Result<Response, ApiError> {
    let mut seconds = SECONDS;
    for (name, value) in query::pairs(&query) {
        seconds = match &*name {
            "seconds" => query::number("seconds", &value)?,
            _ => return Err(query::unknown(&name)),
        };
    }
    if !(1..=MOST_SECONDS).contains(&seconds) {
        let message = format!("seconds must be between 1 and {MOST_SECONDS}.");
        return Err(ApiError::bad_request(message).with_param("seconds"));
    }
    let turn = app.permits.traces.clone().try_acquire_owned().map_err(|_| ApiError::tracing())?;
    let write = move || {
        let _turn = turn;
        write(&app, caller.tenant, Nanos(seconds * 1_000_000_000))
    };
    // Making text of it takes a moment, so not on a thread that serves.
    let text = blocking(write).await?;
    let name = (header::CONTENT_DISPOSITION, "attachment; filename=\"twostroke-trace.json\"");
    Ok(([name], fresh_json_body(text)).into_response())
}

fn write(app: &App, tenant: Option<Tenant>, span: Nanos) -> Vec<u8> {
    let engine = &*app.engine;
    let steps = newest(app, engine.now().since(span));
    let name = |id: RequestId| match app.telemetry.registry.name(tenant, id) {
        Name::Own(name) => name,
        Name::Other(number) => format!("other {number}"),
    };
    let mut writer = TraceWriter::new(Vec::new(), Some(engine.unix(Nanos(0)).0)).expect("memory takes it");
    for step in &steps {
        writer.step(step.number, &step.record).expect("memory takes it");
    }
    for request in writer.open() {
        let is_own = matches!(app.telemetry.registry.name(tenant, request), Name::Own(_));
        let timeline: Option<Timeline> = if is_own { engine.timeline(request) } else { None };
        let traced = Traced {
            request,
            name: &name(request),
            account: timeline.as_ref().map(|timeline| &timeline.account),
            until: timeline.as_ref().map(|timeline| timeline.until),
            away: timeline.as_ref().and_then(|timeline| timeline.away.as_ref()),
            other: &name,
        };
        writer.request(&traced).expect("memory takes it");
    }
    writer.finish().expect("memory takes it")
}

/// The steps since a moment, as far as they are remembered and not too many.
fn newest(app: &App, since: Nanos) -> Vec<LoggedStep> {
    let (watch, mut steps) = (app.engine.watch(false), Vec::new());
    watch.read(&mut LogCursor { step: 0, ..watch.newest() }, usize::MAX, &mut steps, &mut Vec::new());
    let mut rows = 0;
    let first = steps.iter().rposition(|step| {
        rows += step.record.decode.len() + step.record.prefill.len();
        step.record.completed_at < since || rows > MOST_ROWS
    });
    steps.split_off(first.map_or(0, |first| first + 1))
}
