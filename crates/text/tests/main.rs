//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

mod encoding;
mod hostile_tokenizers;
mod infill;
mod pairs;
mod template;
mod tokenizer;
