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
mod run;
mod store;
pub mod worker;

pub use input::{BatchInput, InputError};
pub use local::{Local, LocalServer};
pub use output::{BatchOutput, OutputError};
pub use run::{BatchRun, Stopped};
pub use store::{BatchNote, BatchStore, Counts, FileNote, MOST_FILE_BYTES, Sending, Status, unwritable};

/// The routes that a line may ask.
pub const BATCH_ROUTES: [&str; 6] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score", "/v1/rerank"];
