//! The server from outside: a real engine with the repository's model, behind a real socket.
//!
//! Numbers such as "row 12" are rows of docs/faults.md; each names an input or a fault and what must happen.

mod adapters;
mod answers;
mod batches;
mod beams;
mod bodies;
mod cache;
mod client;
mod connections;
mod encoders;
mod faults;
mod fields;
mod host;
mod live;
mod llama;
mod losses;
mod messages;
mod moved;
mod ollama;
mod openapi;
mod otel;
mod phases;
mod plan;
mod progress;
mod receipts;
mod refusals;
mod requests;
mod responses;
mod schemas;
mod script;
mod sick;
mod site;
mod speculate;
mod structured;
mod surfaces;
mod targets;
mod tenants;
mod texts;
mod thoughts;
mod timeline;
mod tools;
mod trace;
mod unknown;
mod vectors;
