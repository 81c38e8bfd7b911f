//! Load tests from the outside: what people who use an OpenAI-compatible server feel, phase by phase.
//!
//! ```text
//! Schedule: when and what    | plan.rs      pure: a seed gives the same requests at the same moments
//!      |                     |
//!      |  measure.rs: warm-up, load, what is sent beside it
//!      v  one connection per request, events read as they come; turns of sessions after those before    sessions.rs
//! RequestOutcome: when each token came, or why not    client.rs (the clock), target.rs (the sockets), events.rs (the stream)
//!      |                       |
//!      |                       v
//!      |     Stalls: gaps that were long, and whose prompts took them, if the server says    stalls.rs
//!      v
//! Summary: TTFT, TPOT, ITL, E2EL, rates, goodput    summary.rs, report.rs: names and fields as `vllm bench serve` has them
//!      |
//!      |     the same without ramp-up and drain, turn by turn, and what the server says of its phases
//!      |     steady.rs, turns.rs, phases.rs
//!      v
//! Sweep: throughput against latency over several loads    sweep.rs
//! ```
//!
//! Definitions, the same as vLLM's: TTFT = request sent, on an open connection, to first text; ITL = from one event
//! with text to the next; E2EL = request sent to the end; TPOT = (E2EL - TTFT) / (output tokens - 1), for answers of
//! two tokens or more.

mod client;
mod events;
mod feed;
mod measure;
mod phases;
mod plan;
mod printable;
mod report;
mod requests;
mod sessions;
mod stalls;
mod steady;
mod summary;
mod sweep;
mod target;
mod turns;

pub use client::{PhaseFigures, RequestOutcome, beside, first_model, probe, run, timeline};
pub use feed::{Feed, ask, tell};
pub use measure::{LoadClient, LoadProgress, Measured};
pub use phases::{PhaseSummary, phases};
pub use plan::{Arrivals, Dataset, PlanError, PlannedPrompt, PlannedRequest, Ramp, schedule};
pub use printable::printable;
pub use report::{ReportSettings, json, text};
pub use requests::{Delay, ListedRequest, PromptTimeline, RequestTimeline, TimelineGap};
pub use stalls::{Attribution, Prefill, Stalls, stalls};
pub use steady::{Steady, steady};
pub use summary::{Goal, Metric, Summary, summarize};
pub use sweep::{Point, Swept};
pub use target::{Api, Target, TargetError};
pub use turns::{TurnFigures, turns};

#[cfg(test)]
mod tests;
