//! The object `timings` of an answer, in whichever API's words the rest of it is.

use engine::Timings;
use protocol::Nanos;
use scheduler::LatencyBound;
use serde::Serialize;
use serde_json::Value;

use crate::phase_cost::WirePhase;

/// Of a bound that rests on nothing yet, in place of a number.
pub const NOT_KNOWN_YET: &str = "not known yet";

/// Where the time went. For several prompts in one request: tokens are summed and times are the longest, since the
/// prompts ran side by side.
#[derive(Clone, Serialize)]
pub struct WireTimings {
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    ttft_ms: f64,
    total_ms: f64,
    /// How long it thought, and since its arrival until there was something else to see; where it thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_visible_ms: Option<f64>,
    prefill_tokens: usize,
    cached_tokens: usize,
    decode_tokens: usize,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    preemptions: usize,
    /// Of a beam search: its rounds, and the rows behind the first, with those that were computed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_rounds: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_rows: Option<usize>,
    /// Steps in which drafts were checked, if any; the drafts, and the accepted ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    verify_steps: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drafted_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_tokens: Option<usize>,
    /// What was promised when it came, where steps are predicted: when the first token was likely, and within which
    /// times 95 of 100 first tokens and whole answers come.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promised_ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promised_total_ms: Option<f64>,
    /// Says so where too few requests like it have ended to promise by.
    #[serde(skip_serializing_if = "Option::is_none")]
    promise: Option<&'static str>,
    /// How long the engine was paused meanwhile, if at all: no part of the other times.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<f64>,
    /// What the phases asked of the machine, and what they had of its limits; absent for a phase without tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill: Option<WirePhase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<WirePhase>,
    /// Why no more of the prompt was cached; of several prompts, of the one that lost most.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<Value>,
    /// If asked for: the same times by owner, one object per prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Value>,
}

impl WireTimings {
    pub fn of(
        timings: &Timings,
        (thinking, first_visible): (Option<Nanos>, Option<Nanos>),
        [prefill, decode]: [Option<WirePhase>; 2],
        [cache, detail]: [Option<Value>; 2],
    ) -> WireTimings {
        // Rounded to microseconds.
        let round = |value: f64| (value * 1e3).round() / 1e3;
        let promised = |of: &dyn Fn(&LatencyBound) -> Nanos| {
            timings.latency_bound.as_ref().map(|promise| round(of(promise).0 as f64 / 1e6))
        };
        WireTimings {
            queue_ms: round(timings.queue_ms),
            prefill_ms: round(timings.prefill_ms),
            decode_ms: round(timings.decode_ms),
            ttft_ms: round(timings.ttft_ms),
            total_ms: round(timings.total_ms),
            thinking_ms: thinking.map(|time| round(time.0 as f64 / 1e6)),
            first_visible_ms: first_visible.map(|time| round(time.0 as f64 / 1e6)),
            prefill_tokens: timings.prefill_tokens,
            cached_tokens: timings.cached_tokens,
            decode_tokens: timings.decode_tokens,
            prefill_tokens_per_second: round(timings.prefill_tok_s()),
            decode_tokens_per_second: round(timings.decode_tok_s()),
            preemptions: timings.preemptions,
            beam_rounds: None,
            beam_rows: None,
            verify_steps: Some(timings.verify_steps).filter(|&steps| steps > 0),
            drafted_tokens: Some(timings.drafted_tokens).filter(|&tokens| tokens > 0),
            accepted_tokens: Some(timings.accepted_tokens).filter(|_| timings.drafted_tokens > 0),
            predicted_ttft_ms: promised(&|promise| promise.first_token.p50),
            promised_ttft_ms: promised(&|promise| promise.first_token.p95),
            promised_total_ms: promised(&|promise| promise.answer.p95),
            promise: timings.latency_bound.filter(|bound| !bound.is_known()).map(|_| NOT_KNOWN_YET),
            held_ms: Some(round(timings.held_ms)).filter(|&ms| ms > 0.0),
            prefill,
            decode,
            cache,
            detail,
        }
    }
}
