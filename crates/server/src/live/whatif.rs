//! `GET /live/whatif`: the last minutes of this server with other settings, in the simulator.
//!
//! ```text
//! engine's past --pointers--> a thread of its own: fit the machine, simulate twice --> figures, and the steps of both
//! ```
//!
//! One question at a time, at most [`MOST_STEPS`] simulated steps, and while the engine has work the thread sleeps as
//! long as it computes: half a core for a second or so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use protocol::Nanos;
use replay::{Changes, Course, Figures, WhatIfAnswer, WhatIfError};
use scheduler::StepRecord;
use serde_json::{Value, json};
use telemetry::live_events::{self as events, Names, Prices};
use telemetry::time_format;
use tokio::sync::oneshot;
use transport::error::ApiError;
use transport::json::fresh_json_body;
use transport::query;

use crate::app::App;
use crate::ask::UrlRequest;

/// Minutes that may be asked about.
const MOST_MINUTES: u64 = 60;
/// Default minutes.
const MINUTES: u64 = 5;
/// Steps of both simulations together.
const MOST_STEPS: usize = 400_000;
/// Bytes of the steps of one course in the answer; those after that are counted.
const MOST_BYTES: usize = 8 << 20;
/// Steps between two looks at the clock.
const YIELD_STEPS: usize = 64;

pub(crate) async fn ask(UrlRequest { app, query, .. }: UrlRequest) -> Result<Response, ApiError> {
    let (minutes, changes) = question(&query)?;
    let text = alone(app, move |app, is_wanted| simulate(app, minutes, &changes, is_wanted)).await?.map_err(refused)?;
    Ok(fresh_json_body(text))
}

/// Simulates on a separate thread, and refuses to while another does. `simulate` can ask whether its client is still there.
pub(crate) async fn alone<T: Send + 'static>(
    app: Arc<App>,
    simulate: impl FnOnce(&App, &dyn Fn() -> bool) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let turn = app.permits.simulations.clone().try_acquire_owned().map_err(|_| ApiError::simulating())?;
    let (told, answer) = oneshot::channel();
    let work = move || {
        // Held until the work is over, also when its client is gone; and given back before the answer is
        // told, for who hears it may ask again at once.
        let simulated = simulate(&app, &|| !told.is_closed());
        drop(turn);
        let _ = told.send(simulated);
    };
    std::thread::Builder::new().name("whatif".into()).spawn(work).map_err(|_| ApiError::internal())?;
    answer.await.map_err(|_| ApiError::internal())
}

/// How far a simulation may go, and that it leaves the machine to the engine.
pub(crate) struct YieldPoint<'a> {
    app: &'a App,
    is_wanted: &'a dyn Fn() -> bool,
    steps: usize,
    since: Instant,
}

impl YieldPoint<'_> {
    pub(crate) fn of<'a>(app: &'a App, is_wanted: &'a dyn Fn() -> bool) -> YieldPoint<'a> {
        YieldPoint { app, is_wanted, steps: 0, since: Instant::now() }
    }

    /// After each step: whether there may be another.
    pub(crate) fn goes_on(&mut self) -> bool {
        self.steps += 1;
        if self.steps.is_multiple_of(YIELD_STEPS) {
            if self.app.engine.health().open_requests > 0 {
                std::thread::sleep(self.since.elapsed());
            }
            self.since = Instant::now();
        }
        self.steps < MOST_STEPS && (self.is_wanted)()
    }
}

fn refused(error: WhatIfError) -> ApiError {
    match error {
        WhatIfError::Nothing => ApiError::bad_request(
            "No request that came in these minutes has been answered: there is nothing to simulate.",
        )
        .with_param("minutes"),
        WhatIfError::TooLong => {
            ApiError::bad_request("The simulation takes too many steps: ask about fewer minutes.").with_param("minutes")
        }
        // Fixed text with numbers.
        WhatIfError::Limits(error) => ApiError::bad_request(format!("These settings do not go together: {error}.")),
    }
}

fn question(query: &str) -> Result<(u64, Changes), ApiError> {
    let mut minutes = MINUTES;
    let mut changes = Changes::default();
    for (name, value) in query::pairs(query) {
        let (name, value) = (&*name, &*value);
        let count = || match query::number(name, value)? {
            count @ 1..=0xffff_ffff => Ok(count as usize),
            _ => Err(ApiError::bad_request(format!("{name} must be at least 1 and fit 32 bits.")).with_param(name)),
        };
        match name {
            "minutes" => {
                minutes = query::number(name, value)?;
                if !(1..=MOST_MINUTES).contains(&minutes) {
                    let message = format!("minutes must be between 1 and {MOST_MINUTES}.");
                    return Err(ApiError::bad_request(message).with_param(name));
                }
            }
            "max_num_batched_tokens" => changes.max_num_batched_tokens = Some(count()?),
            "max_prefill_chunk" => changes.max_prefill_chunk = Some(count()?),
            "max_num_partial_prefills" => changes.max_prefill_seqs = Some(count()?),
            "max_num_seqs" => changes.max_num_seqs = Some(count()?),
            "kv_blocks" => changes.kv_blocks = Some(count()?),
            "ttft_slo" => changes.ttft = Some(target(name, value)?),
            "tpot_slo" => changes.tpot = Some(target(name, value)?),
            "speculate" if value == "off" => changes.without_drafts = true,
            "speculate" => return Err(ApiError::bad_request("speculate can be off.").with_param(name)),
            _ => return Err(query::unknown(name)),
        }
    }
    Ok((minutes, changes))
}

/// `500ms`, `2s`, a bare number of milliseconds, or `off`.
fn target(name: &str, value: &str) -> Result<Option<Nanos>, ApiError> {
    if value == "off" {
        return Ok(None);
    }
    match time_format::milliseconds(value) {
        Some(ms) if (0.1..=3.6e6).contains(&ms) => Ok(Some(Nanos((ms * 1e6) as u64))),
        _ => {
            let message = format!("{name} must be a time between 0.1ms and 3600s, such as 500ms or 2s, or off.");
            Err(ApiError::bad_request(message).with_param(name))
        }
    }
}

/// The steps of a course, as text.
#[derive(Default)]
struct Steps {
    text: String,
    count: u64,
    left_out: u64,
}

fn simulate(app: &App, minutes: u64, changes: &Changes, is_wanted: &dyn Fn() -> bool) -> Result<String, WhatIfError> {
    let past = app.engine.past(Duration::from_secs(60 * minutes));
    let (names, prices) = (Names::numbered(past.answers.len() as u64), Prices::of(&*app.engine));
    let mut courses = [Steps::default(), Steps::default()];
    let mut yield_point = YieldPoint::of(app, is_wanted);
    let mut watcher = |course: Course, record: &StepRecord| {
        let steps = &mut courses[course as usize];
        if steps.text.len() < MOST_BYTES {
            steps.text.push_str(if steps.count > 0 { "," } else { "" });
            steps.text.push_str(&events::written(&events::step(steps.count, record, &names, &prices)));
            steps.count += 1;
        } else {
            steps.left_out += 1;
        }
        yield_point.goes_on()
    };
    let answer = replay::what_if(&past, changes, &mut watcher)?;
    Ok(written(minutes, &answer, &courses))
}

fn written(minutes: u64, answer: &WhatIfAnswer, [simulated, what_if]: &[Steps; 2]) -> String {
    let head = json!({
        "minutes": minutes,
        "recorded": figures(&answer.recorded),
        "simulated": figures(&answer.simulated),
        "whatif": figures(&answer.what_if),
        "steps_left_out": {"simulated": simulated.left_out, "whatif": what_if.left_out},
    });
    let head = head.to_string();
    let open = &head[..head.len() - 1];
    format!("{open},\"steps\":{{\"simulated\":[{}],\"whatif\":[{}]}}}}", simulated.text, what_if.text)
}

/// Times in milliseconds.
fn figures(figures: &Figures) -> Value {
    let spread = |of: &replay::Spread| json!({"mean": of.mean * 1e3, "p50": of.p50 * 1e3, "p90": of.p90 * 1e3, "p99": of.p99 * 1e3});
    let mut object = figures.json();
    object.insert("ttft".into(), spread(&figures.ttft));
    object.insert("tpot".into(), spread(&figures.tpot));
    object.insert("longest_gap_ms".into(), (figures.longest_gap * 1e3).into());
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let read = |value| target("ttft_slo", value).map_err(|error| error.message().to_owned());
        assert_eq!(read("off"), Ok(None));
        for (value, ms) in [("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("80", 80)] {
            assert_eq!(read(value), Ok(Some(Nanos(ms * 1_000_000))), "{value}");
        }
        for wrong in ["", "ms", "s", "-1ms", "0", "1e3", "nan", "inf", "5m", "4000s", "1_0"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
