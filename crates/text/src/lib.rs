//! From text to tokens and back. This crate knows no weights and no requests.
//!
//! ```text
//! messages ──ChatTemplate──> text, ids        tokenizer.json ──> Tokenizer ──encode──> ids
//!    (a child process runs a stranger's template)       ids ──Detokenizer──> text as it comes, stop strings
//! ```
//! `encode/` is the way in as a stream of pieces; [`pace`] is where long work lets others go first.

pub mod caught;
pub mod chat_template;
pub mod detokenizer;
mod encode;
pub mod pace;
pub mod tokenizer;
