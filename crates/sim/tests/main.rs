//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod disaggregation;
mod promises;
mod spec;
mod traces;
mod without;
