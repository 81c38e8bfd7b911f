//! HTTP below every API. It knows no route, no model and no answer: what it knows is connections, who asks, bodies, and
//! how an error is said.
//!
//! ```text
//! socket --> listen --> head: origin, auth --> body: arriving --> json --> hints --> fields, by a table (shape)
//!    |                                                             |
//!    |                                    prepare_pool: threads for text, shared fairly (fair_queue)
//!    |                                    answer_memory: room for what is not read yet
//! stop, drain: how a server ends               error: one type, in the shape that each API has
//!                                              openapi: the document of what is taken and answered, of the same tables
//! ```
#![allow(missing_docs, reason = "most methods are one error, or read one field, and their names say it")]

pub mod answer_memory;
pub mod arriving;
pub mod auth;
pub mod drain;
pub mod error;
mod fair_queue;
pub mod fields;
pub mod held;
pub mod hints;
pub mod ids;
pub mod json;
pub mod keep_alive;
pub mod listen;
pub mod openapi;
pub mod origin;
pub mod prepare_pool;
pub mod query;
pub mod shape;
pub mod socket;
pub mod sse;
pub mod stop;
