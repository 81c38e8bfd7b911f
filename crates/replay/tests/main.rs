//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod bits;
#[path = "../../engine/tests/common/mod.rs"]
mod common;
mod perfetto;
mod recording;
mod trace;
mod whatif;
