//! From a checkpoint to logits. This crate knows no requests.
//!
//! ```text
//! Checkpoint ──> ModelConfig, Weights ──pack──> Runner<Backend>      Batch ──forward──> logits [rows, vocab]
//!                                               (dyn Forward)       logits ──Sampler──> one token
//! ```
//!
//! The floats of a row depend on the weights and on that row's token history only (see [`kernels`]); everything here
//! keeps that: a [`Batch`] may hold any rows of any sequences in any order, and no row's logits change.

pub mod adapter;
mod balance;
pub mod batch;
pub mod config;
pub mod draft;
mod encoder;
mod expert_cache;
mod experts;
pub mod export;
pub mod forward;
mod kv;
mod mixers;
pub mod sampler;
mod standby;
mod tensors;
mod transformer;

pub use adapter::{Adapter, AdapterPacker, AdapterRoom, PackedAdapter};
pub use batch::{Batch, Span, StateSave};
pub use config::{
    Classifier, EncoderConfig, Family, GenerationBase, GenerationDefaults, GenerationSettings, Head, ModelConfig,
};
pub use encoder::{Encoder, load_encoder};
pub use expert_cache::{ExpertMemory, ExpertReadTotals};
pub use forward::{Forward, KvBudget, LoadOptions, Logits, Progress, Runner, Ticket, load, load_beside};
pub use standby::Standby;
pub use tensors::bytes_in_memory;
