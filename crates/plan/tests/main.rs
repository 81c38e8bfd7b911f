//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod examples;
mod named;
mod prices;
mod questions;
mod targets;
mod units;
