//! The engine as it runs, for people who look: the embedded page, and the routes that it is made of.
//!
//! ```text
//! GET /, /app.js, /app.css, /favicon.svg    the page (live/page.rs): holds no data, so it asks for no key
//! GET /live/info                            what is served, and the limits of the machine
//! GET /live/feed?after=STEP&kv=1                server-sent events, without end (live/feed.rs, live/events.rs)
//! POST /live/pause, /live/step, /live/resume   hold the engine, one step, let go of it (live/hold.rs)
//! GET /live/trace?seconds=10                the last steps as a trace for ui.perfetto.dev (live/trace.rs)
//! GET /live/whatif?minutes=5&...            the last minutes with other settings (live/whatif.rs)
//! ```
//!
//! Events of the feed, each with one JSON object; readers ignore fields that they do not know:
//!
//! | event | when | |
//! | --- | --- | --- |
//! | `step` | each step, in batches of 50 ms | `id`, `at` and `took` (ms), `predicted`; `decode` rows `{r, a, start}`, `prefill` rows `{r, a, start, len, samples, cached}`; `preempted` `{r, tokens, verdict}`; `waiting`, `waiting_tokens`, `blocked`; `blocks` `{used, taken, evicted, copied}`; `recomputed`; `flops`, `bytes` that it asked of the machine |
//! | `kv` | with `kv=1`, every 50 ms while it changes, and after each step of a held engine | `step`, and with `full` all `blocks`, else those that `changed` as `[block, state]`; a state is 0 (free), 1 (nobody's, but a prefix that somebody may ask for) or `[r, holders]`: the first request that holds it, and how many sequences do |
//! | `requests` | every 250 ms while it changes | `waiting` and `running`, at most 256 each: `{r, a, since, prompt_tokens}`, those that run with `computed` and `generated` |
//! | `ended` | each request that is over | `r`, `at`, `ending` (stop, length, cancelled, error), `arrived`, `queue_ms`, `ttft_ms`, `tpot_ms`, `longest_gap_ms`, `prompt_tokens`, `generated`, `cached` |
//! | `history` | at the beginning, without `after` | `seconds`: for each of the last 15 minutes' seconds that had a step a row of the `columns`; percentiles to within an eighth |
//! | `stats` | every 500 ms | gauges, counters and percentiles, see [`events::stats`] |
//!
//! Moments are milliseconds since the engine started; a `stats` says in `unix_ms` what a clock on the wall showed at its
//! `at`. `r` is the id of an answer for the caller's own requests, and a
//! number for those of others (`timeline.rs`). `id` counts steps since the start.
//!
//! Who reads slowly falls behind and goes on with the newest steps; the log keeps 4,096. A feed ends when the server
//! drains. A reader who names no step begins with `history`, the last 256 ends and the last 512 steps. There are at
//! most [`crate::app::MOST_READERS`] at once.

pub(crate) mod events;
pub(crate) mod feed;
pub(crate) mod hold;
pub(crate) mod page;
pub(crate) mod thoughts;
pub(crate) mod trace;
pub(crate) mod whatif;

use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use engine::Stats;
use engine::ledger::{LATE_FLOOR, LATE_MEDIANS};
use scheduler::promise::PROMISED_SHARE;
use scheduler::{Nanos, PromiseKind};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::ask::Caller;
use crate::error::ApiError;
use crate::json::json_body;
use crate::json::nullable;
use crate::live::feed::{Feed, Wishes};
use crate::moment::ms;
use crate::query;

/// Whether the route is the page's, and gone with `ServerOptions::ui`.
pub(crate) fn is_live(path: &str) -> bool {
    page::is_page(path) || path.starts_with("/live/")
}

/// What is served, and what the machine can do.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Response {
    let model = app.engine.model();
    let kind = |limits: &engine::DeviceLimits| match model.weights.name() {
        "bf16" => limits.bf16_kind,
        _ => limits.int8_kind,
    };
    let targets = app.engine.targets();
    let limits = app.engine.device_limits().map(|limits| {
        let mut value = events::limits(&limits, model);
        value["matrix_kind"] = kind(&limits).into();
        value["in_cache"] = limits.holds(model.weight_bytes).into();
        value["not_sure"] = nullable(limits.doubt().map(|doubt| doubt.to_string()));
        value
    });
    let target = |target: Option<Nanos>| target.map(ms);
    let now = app.engine.now();
    let info = json!({
        "name": app.models[0],
        "version": env!("CARGO_PKG_VERSION"),
        "weights": model.weights.name(),
        "kv_dtype": model.kv_dtype.name(),
        "isa": model.device.kernels,
        "arithmetic": model.arithmetic.name(),
        "threads": model.device.threads,
        "block_size": model.block_size,
        "blocks": model.num_blocks,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "weight_bytes": model.weight_bytes,
        "max_model_len": model.max_model_len,
        "max_num_seqs": model.max_num_seqs,
        "max_num_batched_tokens": model.max_num_batched_tokens,
        "targets": {"ttft_ms": target(targets.ttft), "tpot_ms": target(targets.tpot)},
        "promises": promises(&app.engine.stats()),
        // Above what a gap is late where there is no target: the ledger's rule, told and not written twice.
        "late": {"medians": LATE_MEDIANS, "floor_ms": ms(LATE_FLOOR)},
        "limits": limits,
        "pause_allowed": app.hold_token.is_some(),
        "now_ms": ms(now),
        "now_unix_ms": app.engine.unix(now).as_millis_f64(),
    });
    ([(header::CACHE_CONTROL, "no-store")], json_body(info.to_string())).into_response()
}

/// How promises were kept: the share of the last 200, and all of them.
fn promises(stats: &Stats) -> Value {
    let mut kinds: Map<String, Value> = Map::new();
    kinds.insert("share".into(), PROMISED_SHARE.into());
    for (kind, kept) in PromiseKind::ALL.iter().zip(&stats.promises) {
        let of = json!({"kept": kept.kept, "broken": kept.broken, "rolling": kept.rolling});
        kinds.insert(kind.name().into(), of);
    }
    Value::Object(kinds)
}

/// The feed.
pub(crate) async fn watch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let mut wishes = Wishes::default();
    for (name, value) in query::pairs(query.as_deref().unwrap_or_default()) {
        match (&*name, &*value) {
            ("after", value) => wishes.after = Some(query::number("after", value)?),
            ("kv", "0" | "1") => wishes.map = value == "1",
            ("kv", _) => return Err(ApiError::bad_request("kv must be 0 or 1.").with_param("kv")),
            (name, _) => return Err(query::unknown(name)),
        }
    }
    let feed = Feed::open(app, caller.tenant, wishes)?;
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        // Asks proxies to pass each event on at once.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, axum::body::Body::new(feed)).into_response())
}
