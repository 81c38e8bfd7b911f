//! The production scheduler and router under an imagined clock.
//!
//! ```text
//! workload.rs  who asks for what, and when: drawn from a seed, or      trace.rs   read from a file
//!     |
//!     v arrivals
//! world.rs     route -> admit -> offer -> schedule -> (the cost model says how long it takes) -> complete -> events
//!     |             apart.rs: one reads the prompt, another answers
//!     |                                      the clock jumps from moment to moment; nothing is computed
//!     v step records, tokens
//! report.rs    percentiles, goodput, occupancy, as a table and as JSON    charts.rs   as SVG
//! ```
//!
//! There is no second scheduler: [`world`] drives [`scheduler::Scheduler`], the type that the engine drives. What is
//! imagined is the machine (cost models) and the tokens (numbers derived from the request). One seed
//! gives one report, byte for byte.

pub mod apart;
pub mod charts;
pub mod curve;
pub mod drafts;
pub mod report;
pub mod trace;
pub mod workload;
pub mod world;

mod gather;

pub use apart::{Apart, Link, RefuseWhen};
pub use curve::Curve;
pub use drafts::Acceptance;
pub use report::Report;
pub use workload::{Arrival, Lengths, Shape, Workload};
pub use world::{Fleet, Instance, Observer, Pace, StepTimes, records, simulate};
