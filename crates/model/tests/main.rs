//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod adapters;
mod allocations;
mod bad_drafters;
mod bad_files;
mod bits;
mod common;
mod config;
mod device;
mod drafts;
mod encoders;
mod expert_memory;
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
mod states;
