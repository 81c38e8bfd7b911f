//! Ollama's API: conversations and texts continued, line by line, and what is served.
//!
//! ```text
//! POST /api/chat ------chat.rs------+--> PreparedRequest --> gather | StreamWriter --write.rs--> {"message": ..}s
//! POST /api/generate --generate.rs--+
//!                   \--nothing to answer: "load"
//! GET /api/tags, /api/ps, POST /api/show --models.rs--> the one model, as a list of one
//! POST /api/pull, ... --> 501: models come and go with the server
//! ```
//!
//! Streams are lines of JSON, and the default. Errors are `{"error": "..."}`, in the middle of a stream as a line.

mod chat;
mod generate;
mod hints;
mod models;
mod options;
mod routes;
pub(crate) mod shapes;
mod write;

use crate::answers::PreparedRequest;

pub(crate) use hints::HINTS;
pub(crate) use models::{name_digest, short};
pub(crate) use options::{of_vectors, served, tagged, uncut};
pub(crate) use routes::{chat, fixed, generate, ps, show, tags, version};

/// What a body asks for.
enum Asked {
    /// An answer. Boxed: it is large beside the other.
    Answer(Box<PreparedRequest>),
    /// That the model be there, which it is: the last line of an answer that has no other.
    Load(serde_json::Value),
}
