//! Types that cross rooms. It decides nothing and depends on no other room.
#![no_std]

extern crate alloc;

mod request;
pub mod sampling;
pub mod time;

pub use request::{FinishReason, Priority, RequestId, ServiceClass, StopRules, Targets, TokenId};
pub use time::Nanos;
