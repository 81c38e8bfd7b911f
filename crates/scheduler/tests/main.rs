//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod allocations;
mod checkpoints;
mod fairness;
mod forecast;
mod holders;
mod late;
mod misses;
mod plans;
mod planted;
mod remote_only_prefill;
mod returns;
mod router;
mod speculation;
mod targets;
