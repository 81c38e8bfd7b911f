//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod adapters;
mod answers;
mod bits;
mod calibration;
mod common;
mod gpu;
mod handoff;
mod ledger;
#[path = "../../server/tests/http/losses.rs"]
mod losses;
mod lost;
mod pair;
mod pressure;
mod requests;
mod resume;
mod rules;
#[path = "../../server/tests/http/sick.rs"]
mod sick;
mod speculation;
mod states;
