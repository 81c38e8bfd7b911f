//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod apart;
#[path = "../../../tests/long.rs"]
mod long;
mod promises;
mod spec;
mod traces;
mod without;
