//! Load tests from the outside: what people who use an OpenAI-compatible server feel, phase by phase.
//!
//! ```text
//! Schedule: when and what    | plan.rs      pure: a seed gives the same requests at the same moments
//!      |                     |
//!      v  one connection per request, events read as they come
//! Outcome: when each token came, or why not    client.rs, the only file with sockets and a clock
//!      |
//!      v
//! Summary: TTFT, TPOT, ITL, E2EL, rates, goodput    summary.rs, report.rs: names and fields as `vllm bench serve` has them
//! ```
//!
//! Definitions, the same as vLLM's: TTFT = request sent to first text; ITL = from one event with text to the next; E2EL =
//! request sent to the end; TPOT = (E2EL - TTFT) / (output tokens - 1), for answers of two tokens or more.

mod client;
mod plan;
mod report;
mod summary;

pub use client::{Api, Outcome, Target, TargetError, first_model, probe, run};
pub use plan::{Arrivals, Ask, Dataset, PlanError, Prompt, Ramp, schedule};
pub use report::{Settings, json, text};
pub use summary::{Distribution, Goal, Metric, Summary, summarize};
