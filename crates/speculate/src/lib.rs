//! Speculative decoding: drafters, which say what may come next.
//!
//! ```text
//! before the plan   Drafter::propose  how many tokens could be had, and how sure it is   -> Scheduler::propose
//! after it          Drafter::draft    exactly as many as the plan took                   -> rows behind the last token
//! after the pass    DraftNetwork::landed the target's rows, for drafters that read them
//! after the draw    the run of tokens that were drawn; the scheduler learns how many drafts were accepted
//! after an answer   Drafter::remember the answer, as a source of later drafts
//! ```
//! A draft decides nothing but time: a token is drawn from each row as if it were the only one, and the row behind it
//! counts only if its draft is that token. So a drafter may be wrong or late without changing an answer.

mod answers;
mod coverage;
mod draft_model;
mod drafter;
mod drafters;
mod files;
mod layer;
mod lookup;
mod lookup_bench;
mod matches;
mod medusa;
mod network;
mod options;
mod prediction;
mod span;
mod synthetic;
mod trained;

pub use draft_model::DraftModel;
pub use drafter::{DraftTokens, Drafter};
pub use drafters::DrafterSet;
pub use files::DraftFiles;
pub use lookup::Lookup;
pub use lookup_bench::LookupBench;
pub use network::{DraftNetwork, DraftSizes, Draw, DrawnRow, SOURCE, TargetPass};
pub use options::{DraftMethod, Drafters, LearnedDrafter, LookupOptions, Speculation};
pub use prediction::Prediction;
pub use span::push_span;
pub use trained::{LoadedDrafter, TrainedDrafter};
