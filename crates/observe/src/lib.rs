//! Views of what an engine did. Nothing here is measured: everything is made of facts that the core reports once, and
//! no view knows another, the core, or a clock.
//!
//! ```text
//! step record --> accounts (ledger)  the owner of each millisecond; the only clock of a request
//!     |              \--closed--> counters    what /metrics shows
//!     |                       --> recent      steps, ends and gaps for watchers
//!     |                       --> run_history lengths and moments for what-if
//!     |                       --> history     the last of them, second by second
//!     \------------------------> cache_fill   when the cache will be full
//!                            --> finish_rate  how often a request ends
//!                            --> phase_work   what steps asked of the machine, by phase
//! run_history --when asked--> cache_optimum   what the prefix cache saved, beside one that knows what comes
//! ```

mod accounts;
mod cache_fill;
pub mod cache_optimum;
mod counters;
mod finish_rate;
mod handoffs;
mod history;
mod live;
mod phase_work;
mod recent;
mod remote_prefill;
mod report;
pub mod run_history;
mod summary;
mod views;

pub use accounts::{Accounts, Closed, Ending, Timeline};
pub use cache_fill::CacheFillForecast;
pub use counters::{Exemplar, Gauges, Histogram, Predictions, SloOutcome, SpotChecked, Stats};
pub use finish_rate::FinishRate;
pub use handoffs::{HandoffOutcome, Handoffs};
pub use history::{RecentSeconds, SecondStats};
pub use live::{
    KvMap, LogCursor, LoggedStep, MAP_EVERY, Percentiles, RequestSnapshot, SNAPSHOT_EVERY, SnapshotRow, percentiles,
    with_waiting_requests,
};
pub use phase_work::{PhaseWork, PhaseWorkTotals};
pub use recent::{End, Ended, Recent};
pub use remote_prefill::{RemotePrefillResult, RemotePrefillTrace, RemotePrefillTraces, RemoteStep, RemoteStepEntry};
pub use report::{FinishedSummary, Timings, Usage};
pub use run_history::OfferEntry;
pub use summary::{RequestState, RequestSummary};
pub use views::Views;
