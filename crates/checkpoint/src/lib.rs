//! Model files: config and tokenizer texts, and tensors by name. This crate knows no forward pass.
//!
//! ```text
//! weights/   Weights: tensors by name, read as rows, packed for a backend; the packed image on disk
//!    │
//! checkpoint.rs   Checkpoint: a model's files in any container
//!    │
//! safetensors/    gguf/    the two containers            container.rs   their trait: texts by name, tensors by file
//!    │              │
//! encoding.rs, blocks.rs   number formats                files.rs       finds files, opens them for positioned reads
//! ```
//! Every arrow between these files points down.
//!
//! Model files are untrusted. Every reader uses positioned reads into its own memory (truncating a mapped file would
//! kill the process), allocates no more than the file's size, and returns one error that names the file and the field.

mod blocks;
mod checkpoint;
mod container;
pub mod encoding;
mod files;
pub mod gguf;
mod grids;
mod safetensors;
pub mod weights;

pub use blocks::BlockType;
pub use checkpoint::Checkpoint;
pub use files::{LoadError, ModelFile, Source, brief};
pub use safetensors::part_files;
pub use weights::{ImageWriter, Weights};
