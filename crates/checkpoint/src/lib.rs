//! The files of a model: what they say, and the tensors in them by name. This crate knows no forward pass.
//!
//! ```text
//! weights/   Weights: tensors by name, read as rows, packed for a backend; the packed image on disk
//!    │
//! checkpoint.rs   Checkpoint: a model's files behind one door, whatever they are packed in
//!    │
//! safetensors/    gguf/    the two containers            container.rs   what either is: texts by name, tensors by file
//!    │              │
//! encoding.rs, blocks.rs   how numbers lie in a file      files.rs       where files are, opened for positioned reads
//! ```
//! Every arrow between these files points down.
//!
//! Files come from strangers. Every reader reads with positioned reads into memory that it owns (a mapped file that
//! somebody truncates kills the process), allocates no more than the file's own size, and ends in one error that
//! names the file and the field.

mod blocks;
mod checkpoint;
mod container;
pub mod encoding;
mod files;
pub mod gguf;
mod safetensors;
pub mod weights;

pub use blocks::BlockType;
pub use checkpoint::Checkpoint;
pub use files::{LoadError, ModelFile, Source};
pub use safetensors::parts_of;
pub use weights::{ImageWriter, Weights};
