//! Anthropic's Messages API: a message as a list of blocks, and the events by which they grow.
//!
//! ```text
//! system, blocks --blocks--> messages --read--> PreparedRequest --> gather | StreamWriter --write--> blocks, events
//!                                                    \--> encode --> count_tokens
//! ```

mod blocks;
mod hints;
mod read;
mod routes;
pub(crate) mod shapes;
mod write;

pub(crate) use hints::HINTS;
pub(crate) use routes::{count_tokens, create, model_card, model_list};
