//! Requests that come in a file, a line each, and answers that go to one: OpenAI's batches.
//!
//! ```text
//! in.jsonl --BatchInput::check--> lines --as many as fill the engine--> Local: the routes, without a network
//!                                   ^                                            |
//! out.jsonl --BatchOutput::open-----+  whose answers are there already           |
//!      ^------------------------------ a line for each answer, as it comes <-----+
//! ```
//! A line is answered once: what stands in the output counts as done, and a line that a kill has cut off is
//! taken back and asked again. Answers come in the order in which they are ready; `custom_id` says whose they are.

mod input;
mod local;
mod output;
pub(crate) mod routes;
mod run;
mod store;
pub(crate) mod worker;

pub use input::{BatchInput, InputError};
pub use local::Local;
pub use output::{BatchOutput, OutputError};
pub use run::{BatchRun, Stopped};
pub(crate) use store::BatchStore;
pub use store::Counts;

/// The routes that a line may ask.
pub const BATCH_ROUTES: [&str; 6] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score", "/v1/rerank"];
