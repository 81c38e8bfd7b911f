//! The production scheduler and router under a simulated clock.
//!
//! ```text
//! workload.rs  requests and their arrival times: drawn from a seed, or   trace.rs   read from a file
//!     |
//!     v arrivals
//! world.rs     route -> admit -> propose drafts -> schedule -> (step time by the cost model) -> complete -> events
//!     |             disaggregation.rs: prefill and decode on different workers
//!     |                                      the clock jumps from event to event; nothing is computed
//!     v step records, tokens
//! report.rs    percentiles, goodput, occupancy, as a table and as JSON    charts.rs   as SVG
//! ```
//!
//! There is no second scheduler: [`world`] drives [`scheduler::Scheduler`], the type that the engine drives. Only the
//! machine (cost models) and the tokens (numbers derived from the request) are simulated. One seed gives one report, byte
//! for byte.

pub mod charts;
pub mod curve;
pub mod disaggregation;
pub mod drafts;
pub mod report;
pub mod trace;
pub mod workload;
pub mod world;

mod gather;

pub use curve::Curve;
pub use disaggregation::{Disaggregation, Link, RefuseWhen};
pub use drafts::Acceptance;
pub use report::Report;
pub use workload::{Arrival, Lengths, LoadPattern, Workload};
pub use world::{Fleet, Instance, Observer, Pace, StepTimes, records, simulate};
