//! Chat templates, tokenization and incremental detokenization. This crate knows no weights and no requests.
//!
//! ```text
//! messages ──ChatTemplate──> text, ids        tokenizer.json ──> Tokenizer ──encode──> ids
//!    (untrusted templates run in a child process)      ids ──Detokenizer──> streamed text, stop strings
//! ```
//! [`infill`] makes the prompt for a gap in a text; `encode/` is the streaming encoder; [`yield_point`] holds the yield
//! points of long work. Shared by all modules: `error.rs`, `alphabet.rs`, `specials.rs`, and `check.rs`, which validates a
//! `tokenizer.json` before the `tokenizers` crate parses it.

mod alphabet;
pub mod catch_panic;
pub mod chat_template;
mod check;
pub mod detokenizer;
mod encode;
mod error;
pub mod infill;
mod specials;
pub mod tokenizer;
pub mod yield_point;
