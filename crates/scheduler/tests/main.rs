//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod allocations;
mod fairness;
mod forecast;
mod given;
mod holders;
mod late;
mod plans;
mod router;
mod speculation;
mod targets;
