//! Scheduling decisions: which sequences run in a step, with how many tokens, on which KV blocks.
//!
//! ```text
//! admit(request) -> schedule(now) -> Step -> (the engine computes it) -> complete(output, now) -> events
//! ```
//!
//! A pure state machine: time is an argument, and there is no IO, thread, random hasher or tensor; `no_std` enforces
//! it. The simulator drives this same type with a virtual clock.
#![no_std]
extern crate alloc;

pub mod cost;
pub mod kv;
pub mod latency_bound;
pub mod quota;
pub mod request;
pub mod router;
pub mod scheduler;
pub mod sequence;
pub mod step;
pub mod swap;

mod best_drafts;
mod blocking_holders;
mod cache_miss;
mod checkpoints;
mod decode;
mod draft;
mod fairness;
mod forecast;
mod invariants;
mod kv_receive;
mod limits;
mod note_miss;
mod pin;
mod remote_only_prefill;
#[cfg(test)]
extern crate std;
mod pace;
mod policy;
mod prefill;
mod queue;
mod resume;
mod speculate;
mod state;

pub use best_drafts::BestDrafts;
pub use cache_miss::{CacheMiss, MissReason};
pub use cost::{CostModel, Hardware, ModelCost, Work};
pub use draft::{DraftProposal, DraftSource};
pub use forecast::{AdmissionForecast, IncomingRequest, LatePrompts, QueueForecast};
pub use kv::{
    BlockHash, BlockId, BlockRead, BlockSave, BlockTable, CacheEvent, PinnedAnswer, PrefixStats, SlotSpill, StateSizes,
    StateSlot, StateUse, SwapStats, Tier, TierSizes, TierSlot,
};
pub use kv_receive::ReceiveError;
pub use latency_bound::{BoundKind, LatencyBound, LatencyBounds};
pub use limits::{Limits, LimitsError};
pub use request::{AdmitError, Request};
pub use scheduler::{BlockUse, Completed, Scheduler};
pub use sequence::{Phase, SeqId, Sequence};
pub use step::{
    BlockCopy, BlockLoad, Blocked, ExpertReads, Holder, NoDraftReason, PinLost, Preempted, RecordRow, RowOutput, Rows,
    StateWrite, StealTime, Step, StepId, StepOutput, StepRecord, TokenEvent, UnpinReason,
};
pub use swap::{PreemptionMode, SwapDecision, SwapReason, Transfer};
