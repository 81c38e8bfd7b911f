//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod fuzzed;
mod harm;
#[path = "../../../tests/long.rs"]
mod long;
mod masks;
mod schemas;
