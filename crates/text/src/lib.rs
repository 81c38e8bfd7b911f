//! From text to tokens and back. This crate knows no weights and no requests.
//!
//! ```text
//! messages ──ChatTemplate──> text, ids        tokenizer.json ──> Tokenizer ──encode──> ids
//!    (a child process runs a stranger's template)       ids ──Detokenizer──> text as it comes, stop strings
//! ```
//! `encode/` is the way in as a stream of pieces; [`pace`] is where long work lets others go first. What several of
//! them need is below them all: `error.rs`, `alphabet.rs`, `specials.rs`, and `check.rs`, which reads a
//! `tokenizer.json` before the crate that defines it does.

mod alphabet;
pub mod caught;
pub mod chat_template;
mod check;
pub mod detokenizer;
mod encode;
mod error;
pub mod pace;
mod specials;
pub mod tokenizer;
