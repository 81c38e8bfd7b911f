//! What models ask and machines allow, before anything runs: shapes, operations, bytes, peaks. Pure numbers.
//!
//! ```text
//! shape.rs, models.rs   ModelShape ──precision──> Demands (demands.rs) ──rows, keys──> PassWork: operations, bytes
//! machine.rs            Machine ──────────────────> Peaks (limits.rs) ─────────────────> seconds, shares, what binds
//! ```
//! One description of a decoder's shape for planning, the simulator and the figures beside every answer, and one of a
//! machine. Knows no file: a configuration turns itself into a shape (`model::ModelConfig::shape`).

pub mod demands;
pub mod limits;
mod machine;
mod models;
pub mod shape;

pub use demands::{Demands, PassWork};
pub use limits::{Bound, LimitShares, Peaks, peak};
pub use machine::{Basis, LastLevel, MEMORY_SHARE, Machine, ROWS_HERE};
pub use shape::{Mixture, ModelShape, embedding_class};
