//! What a server shows of its requests. Everything is a view of the engine's step log and accounts; nothing is measured
//! here, and no route is known.
//!
//! ```text
//! HTTP request --> timeline   its names, its requests in the engine, its thoughts: a registry of the newest
//!                    |--> why          the sentence that says where its time went
//!                    |--> requests     the list of them
//!                    |--> access       a line of the log
//!                    |--> otel         its trace, exported
//!                    |--> answer_timings  the object `timings` of its answer; phase_cost: what its phases cost
//! step log    --> live_events          what the page gets, as the types of live_wire; live_thoughts: what was thought
//!                 live_feed            when a reader gets it
//! counters    --> metrics              Prometheus' text
//! ```
#![allow(missing_docs, reason = "most names are those that programs read in what is shown, and say what they are")]

pub mod access;
pub mod answer_timings;
pub mod live_events;
pub mod live_feed;
pub mod live_thoughts;
pub mod live_wire;
pub mod metrics;
pub mod otel;
mod other_models;
pub mod phase_cost;
pub mod requests;
pub mod thinking;
pub mod time_format;
pub mod timeline;
pub mod why;
