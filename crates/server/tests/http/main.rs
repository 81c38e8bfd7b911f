//! The server from outside: a real engine with the repository's model, behind a real socket.
//!
//! Numbers such as "row 12" are rows of the fault catalogue that the project is built against; each names an input or a
//! fault and what must happen.

mod answers;
mod client;
mod connections;
mod host;
mod live;
#[cfg(feature = "otel")]
mod otel;
mod plan;
mod refusals;
mod site;
mod surfaces;
mod targets;
mod tenants;
mod texts;
mod timeline;
