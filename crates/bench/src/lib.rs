//! Measurements, each of which any person with a question about speed can take: `twostroke bench` and `bench-serve`.
//!
//! ```text
//! subjects.rs   what there is to measure: a line of a table and a file of subjects/ for each
//!     |  BenchSetup (setup.rs): what was asked for
//!     v
//! timing.rs     ways to do something, timed in turns          forward.rs   a model's passes, llama.rs   as llama-bench has them
//!     v
//! rows.rs       medians, spreads and shares of the machine's limits (limits.rs), as Markdown, JSON and CSV
//!
//! cost_model.rs, drafts.rs     a whole engine, driven from inside      loras.rs   passes through adapters and without
//! lab.rs                       both phases as curves, with their laws
//! load.rs                      any server, from the outside
//! ```

pub mod cost_model;
pub mod drafts;
mod forward;
mod lab;
mod limits;
mod llama;
pub mod load;
pub mod loras;
mod rows;
mod setup;
mod subjects;
mod timing;

pub use forward::{ForwardTest, LoadedModel};
pub use lab::{LAB_COLUMNS, Lab, LabPlan};
pub use limits::{LIMITS_SECONDS, limits_json, not_sure};
pub use rows::RowForm;
pub use setup::{BenchError, BenchProgress, BenchReport, BenchSetup, OnProgress};
pub use subjects::{BenchSubject, SUBJECTS};
