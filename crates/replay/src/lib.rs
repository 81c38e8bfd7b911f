//! A recorded run again, above the engine and the simulator.
//!
//! ```text
//! FILE --read--> entries --replay---> the production scheduler, at the recorded times --> the same steps, or where they differ
//!                   |      \-compute-> the production engine without a thread --> the same tokens too
//!                   |\-trace--> lanes, phases, owners and arrows, for ui.perfetto.dev
//!                   v
//!                 past --whatif--> the production scheduler on an imagined machine --> what would have been
//! ```
//!
//! The engine writes recordings and knows their format ([`engine::recording`]); it does not read them, and it does not
//! know the simulator. So a server without this crate still records.

mod arrivals;
mod compute;
mod read;
mod replay;
mod trace;
mod whatif;

pub use arrivals::past;
pub use compute::{ReplayError, replay_with_model};
pub use engine::run_history::RunHistoryWindow;
pub use read::{Recording, RecordingError};
pub use replay::{Difference, ReplayEvent, Replayed, replay};
pub use sim::report::Spread;
pub use trace::{TraceWriter, Traced, TracingError, is_trace, trace};
pub use whatif::{
    AnswerLatency, BeyondCache, Changes, ComparedAnswer, Course, Figures, Watcher, WhatIfAnswer, WhatIfError, what_if,
};
