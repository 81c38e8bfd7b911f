//! From a checkpoint to logits, and from text to tokens and back. This crate knows no requests.
//!
//! ```text
//! Checkpoint ──> ModelConfig, Weights ──pack──> Runner<Backend>      Batch ──forward──> logits [rows, vocab]
//!     └──────> Tokenizer, ChatTemplate           (dyn Forward)       logits ──Sampler──> one token
//! ```
//!
//! The floats of a row depend on the weights and on that row's token history only (see [`kernels`]); everything here
//! keeps that: a [`Batch`] may hold any rows of any sequences in any order, and no row's logits change.
//!
//! Files come from strangers. Every loader reads with positioned reads into memory that it owns (a mapped file that
//! somebody truncates kills the process), allocates no more than the file's own size, and ends in one error that
//! names the file and the field.

mod balance;
pub mod batch;
pub mod caught;
pub mod chat_template;
pub mod checkpoint;
pub mod config;
pub mod demands;
pub mod detokenizer;
mod encode;
mod experts;
pub mod export;
pub mod forward;
pub mod gguf;
pub mod hub;
pub mod pace;
pub mod quality;
pub mod sampler;
mod tensors;
pub mod tokenizer;
mod transformer;
pub mod weights;

pub use batch::{Batch, Span};
pub use checkpoint::{Checkpoint, LoadError, Source};
pub use config::{Family, GenerationDefaults, ModelConfig};
pub use forward::{Forward, KvBudget, LoadOptions, Logits, Progress, Runner, Ticket, embedding_class, load};
pub use tensors::bytes_in_memory;
pub use weights::ImageWriter;
