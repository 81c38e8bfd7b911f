//! Cost of a model's passes and peaks of a machine, without running anything: shapes, operations, bytes, rates.
//!
//! ```text
//! shape.rs, models.rs   ModelShape ──precision──> Demands (demands.rs) ──rows, keys──> PassWork: operations, bytes
//! machine.rs            Machine ──────────────────> Peaks (limits.rs) ─────────────────> seconds, shares, bound
//! ```
//! One description of a decoder's shape, and one of a machine, for planning, the simulator and the figures with every
//! answer. Reads no files: a configuration converts itself to a shape (`model::ModelConfig::shape`).

pub mod demands;
pub mod limits;
mod machine;
mod models;
pub mod shape;

pub use demands::{Demands, PassWork};
pub use limits::{Bound, LimitShares, NOT_KNOWN, Peaks, peak};
pub use machine::{Basis, LastLevel, MEMORY_SHARE, Machine, ROWS_HERE};
pub use shape::{Mixture, ModelShape, WideParts, embedding_class};
