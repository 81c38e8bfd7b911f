//! OpenAI's Responses API: an answer as a list of items, with names by which it can be had again and gone on from.
//!
//! ```text
//! input --items--> messages --read--> PreparedRequest --> gather | StreamWriter | background --write--> items, events
//!            ^                                                                               |
//!            +------- previous_response_id -------------- Store <-- store: true -------------+
//!                                                         |
//!                                                         +--> responses, events again
//! ```

mod background;
mod disk;
mod events;
mod growing;
mod items;
mod read;
mod references;
mod routes;
mod running;
pub(crate) mod shapes;
mod store;
mod truncation;
mod write;

use read::{count, included, read};
pub(crate) use routes::{cancel, create, delete, input_items, input_tokens, retrieve};
pub(crate) use store::Store;
