//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod adapters;
mod allocations;
mod bad_drafters;
mod bad_files;
mod common;
mod config;
mod device;
mod drafts;
mod export;
mod fuzzed;
mod gguf;
mod gguf_bad_files;
mod identity;
mod images;
mod loading;
mod oracle;
mod outliers;
mod quantized;
mod sampler;
mod shape;

/// Whether tables are tried whole (`cargo xtask test --all`).
pub(crate) fn is_long() -> bool {
    std::env::var_os("TWOSTROKE_LONG_TESTS").is_some()
}

/// All rows of a table in a long run, else each `n`th: what a quick run has time for.
pub(crate) fn part_of<T>(table: impl IntoIterator<Item = T>, n: usize) -> impl Iterator<Item = T> {
    table.into_iter().step_by(if is_long() { 1 } else { n })
}
