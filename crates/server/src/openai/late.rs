//! A stream that misses a latency bound says so at that moment, as a comment: clients of server-sent events skip those.
//!
//! ```text
//! : late {"promise":"ttft","promised_ms":412.0,"elapsed_ms":412.3,"owners":{"queue_budget_ms":310.2},"delayed_by":[...]}
//! ```
//! `owners` and `delayed_by` are whose the time was until then, as in `timings.detail`. At most one comment for the
//! first token and one for the whole answer. The times are the engine's: nothing is late while it is paused.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use hyper::body::Bytes;
use protocol::Nanos;
use scheduler::{BoundKind, LatencyBound};
use serde_json::json;
use telemetry::time_format::ms;
use telemetry::timeline::RequestTrace;
use tokio::time::{Sleep, sleep};

use crate::app::App;

/// The latency bounds of a stream that are neither met nor missed yet.
pub(crate) struct LatencyBoundWatch {
    bound: LatencyBound,
    /// When they began to count.
    arrived: Nanos,
    /// By [`BoundKind`].
    is_open: [bool; 2],
    /// Which prompts have a token.
    has_token: Vec<bool>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl LatencyBoundWatch {
    pub(crate) fn new(bound: LatencyBound, arrived: Nanos, num_prompts: usize) -> LatencyBoundWatch {
        LatencyBoundWatch { bound, arrived, is_open: [true; 2], has_token: vec![false; num_prompts], alarm: None }
    }

    /// A prompt has a token.
    pub(crate) fn token(&mut self, prompt: usize) {
        self.has_token[prompt] = true;
        if self.has_token.iter().all(|&has| has) {
            self.is_open[BoundKind::FirstToken as usize] = false;
        }
    }

    /// Nothing comes for now: a comment if a bound is missed; else the task is woken when one may be.
    pub(crate) fn poll(&mut self, app: &App, trace: &RequestTrace, cx: &mut Context<'_>) -> Option<Bytes> {
        loop {
            let elapsed = app.engine.now().since(self.arrived);
            let open = BoundKind::ALL.into_iter().filter(|&kind| self.is_open[kind as usize]);
            let kind = open.min_by_key(|&kind| self.bound.of(kind).p95)?;
            let left = self.bound.of(kind).p95.since(elapsed);
            if left == Nanos(0) {
                self.is_open[kind as usize] = false;
                return Some(self.comment(kind, elapsed, app, trace));
            }
            // A little later, to avoid early wakeups.
            let left = Duration::from_nanos(left.0).min(Duration::from_secs(3600)) + Duration::from_millis(1);
            let alarm = self.alarm.insert(Box::pin(sleep(left)));
            if alarm.as_mut().poll(cx).is_pending() {
                return None;
            }
        }
    }

    fn comment(&self, kind: BoundKind, elapsed: Nanos, app: &App, trace: &RequestTrace) -> Bytes {
        // Of several prompts one that has nothing yet is what the stream waits for.
        let waits = self.has_token.iter().position(|&has| !has).unwrap_or(0);
        let mut comment = json!({
            "promise": kind.name(),
            "promised_ms": ms(self.bound.of(kind).p95),
            "elapsed_ms": ms(elapsed),
        });
        if let Some((owners, delayed_by)) = app.reader(trace.tenant).so_far(trace.requests[waits]) {
            (comment["owners"], comment["delayed_by"]) = (owners, delayed_by);
        }
        format!(": late {comment}\n\n").into()
    }
}
