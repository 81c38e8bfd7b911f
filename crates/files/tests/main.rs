//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod door;
mod private;
mod result_file;
