//! `GET /v1/requests/{id}/without/{other}`: what a request would have waited had another never come.
//!
//! ```text
//! both names --Registry--> the engine's requests --past--> replay::what_if on a thread of its own --> both worlds
//!                                     `?run=true` \------> Engine::run_again, while it is idle ------> the other, measured
//! ```
//!
//! The ledger says which requests a request waited for; this asks what the scheduler would have done instead. Both must be
//! the caller's own, and over. One simulation at a time, as for `/live/whatif`. A run has the requests of all keys that were
//! there, as they were; of those of others it shows what a simulation shows, their effect.

use std::time::Duration;

use axum::extract::Path;
use axum::response::Response;
use engine::{RequestId, Rerun, RerunError};
use replay::{AnswerLatency, Changes, ComparedAnswer, WhatIfError};
use serde_json::{Value, json};
use telemetry::timeline::RequestTrace;
use transport::error::ApiError;
use transport::json::fresh_json_body;
use transport::query;

use crate::app::App;
use crate::ask::UrlRequest;
use crate::live::whatif::{YieldPoint, alone};

/// So long before the two the simulation begins, so that the queue is what it was.
const BEFORE: Duration = Duration::from_secs(60);

pub(crate) async fn ask(
    UrlRequest { app, caller, query }: UrlRequest,
    Path((name, other)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let mut asked = query::pairs(&query);
    let runs = asked.next().map(|(name, value)| query::boolean(&name, &value)).transpose()?.unwrap_or(false);
    let find = |name: &str| app.telemetry.registry.find(caller.tenant, name).ok_or_else(ApiError::unknown_request);
    let (trace, other) = (find(&name)?, find(&other)?);
    if trace.response_id == other.response_id {
        return Err(ApiError::bad_request("A request without itself has no times: name two.").with_param("other"));
    }
    let mut span = Duration::ZERO;
    for &id in trace.requests.iter().chain(&other.requests) {
        let timeline = app.engine.timeline(id).ok_or_else(ApiError::unknown_request)?;
        if timeline.ending.is_none() || timeline.account.first_token.is_none() {
            return Err(ApiError::bad_request("Both requests have to be over, with a token at least: ask again then."));
        }
        let ago = app.engine.now().since(timeline.account.arrived);
        span = span.max(Duration::from_nanos(ago.0) + BEFORE);
    }
    let work = move |app: &App, is_wanted: &dyn Fn() -> bool| {
        let mut yield_point = YieldPoint::of(app, is_wanted);
        let changes = Changes { without: other.requests.clone(), ..Changes::default() };
        let answer = replay::what_if(&app.engine.past(span), &changes, &mut |_, _| yield_point.goes_on())?;
        let run = runs.then(|| app.engine.run_again(&trace.requests, &other.requests, is_wanted)).transpose();
        Ok(run.map(|run| written(app, [&trace, &other], &answer.answers, run.as_ref())))
    };
    let text: Result<Result<String, RerunError>, WhatIfError> = alone(app, work).await?;
    let text = text.map_err(|error| match error {
        WhatIfError::Nothing => ApiError::unknown_request(),
        WhatIfError::TooLong => {
            ApiError::bad_request("Too much has happened since: the simulation takes too many steps.")
        }
        WhatIfError::Limits(_) => ApiError::internal(),
    })?;
    Ok(fresh_json_body(text.map_err(not_run)?))
}

/// The messages are fixed text.
fn not_run(error: RerunError) -> ApiError {
    let kind = match error {
        RerunError::Busy(_) => ApiError::machine_busy,
        RerunError::Refused(_) => ApiError::bad_request,
    };
    kind(format!("run: {error}.")).with_param("run")
}

fn written(app: &App, [trace, other]: [&RequestTrace; 2], answers: &[ComparedAnswer], run: Option<&Rerun>) -> String {
    let prompt = |&id: &RequestId| {
        let bill = app.engine.timeline(id).map(|timeline| timeline.account.bill);
        let booked = bill.map_or(0.0, |bill| {
            let named = bill.ttft_others.entries().filter(|(named, _)| other.requests.contains(named));
            named.map(|(_, nanos)| nanos.as_secs_f64()).fold(0.0, |sum, time| sum + time)
        });
        let own = answers.iter().filter(|answer| answer.request == id);
        let mut again = run.into_iter().flat_map(|run| &run.answers).filter(|answer| answer.request == id);
        let own = own.map(|answer| {
            let mut said = json!({
                "recorded": times(&answer.recorded),
                "simulated": times(&answer.simulated),
                "without": times(&answer.what_if),
            });
            if let Some(again) = again.next() {
                let [ttft, total, longest_gap] = again.times.map(|nanos| nanos.as_secs_f64());
                said["measured"] = times(&AnswerLatency { ttft, total, longest_gap });
                said["same_text"] = again.same_text.into();
                let [recorded, measured] = again.cached_tokens;
                said["cached_tokens"] = json!({"recorded": recorded, "measured": measured});
            }
            said
        });
        json!({"ttft_booked_on_other_ms": booked * 1e3, "answers": own.collect::<Vec<Value>>()})
    };
    // Of all but the two: the gain of all others.
    let effect = |get: fn(&AnswerLatency) -> f64| {
        let others = answers.iter().filter(|answer| !trace.requests.contains(&answer.request));
        // A sum of none is -0.0.
        others.map(|answer| get(&answer.simulated) - get(&answer.what_if)).fold(0.0, |sum, gain| sum + gain) * 1e3
    };
    let mut said = json!({
        "object": "request.without",
        "id": trace.response_id,
        "without": other.response_id,
        "prompts": trace.requests.iter().map(prompt).collect::<Vec<Value>>(),
        "others": {"ttft_ms": effect(|times| times.ttft), "total_ms": effect(|times| times.total)},
    });
    if let Some(run) = run {
        let (warmed, evicted) = (run.warmed_tokens, run.evicted_blocks);
        said["run"] = json!({
            "requests": run.requests, "left_out": run.left_out, "warmed_tokens": warmed, "evicted_blocks": evicted,
        });
    }
    said.to_string()
}

fn times(times: &AnswerLatency) -> Value {
    let AnswerLatency { ttft, total, longest_gap } = *times;
    json!({"ttft_ms": ttft * 1e3, "total_ms": total * 1e3, "longest_gap_ms": longest_gap * 1e3})
}
