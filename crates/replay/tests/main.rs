//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

#[path = "../../engine/tests/common/mod.rs"]
mod common;
mod perfetto;
mod recording;
mod speculation;
mod trace;
mod without;
