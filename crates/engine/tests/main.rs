//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod adapters;
mod answers;
mod bits;
mod calibration;
mod common;
mod handoff;
mod ledger;
mod pair;
mod pressure;
mod requests;
mod resume;
mod rules;
mod speculation;
mod states;
