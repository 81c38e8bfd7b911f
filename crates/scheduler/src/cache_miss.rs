//! Why no more of a prompt was found in the prefix cache, told when it enters.
//!
//! ```text
//! prompt    [ found | found | was there, is gone | same tokens | other tokens ... ]
//!                           ^ computed from here               ^ at_token
//! ```
//!
//! A fact beside the plan: it changes no decision (`note_miss.rs`).

use protocol::{Nanos, RequestId};

/// Where a prompt left the longest prefix that its tenant was seen with, and why no more of it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMiss {
    /// The request.
    pub request: RequestId,
    /// Index of the first token that was not seen behind those before it; the prompt's length if all were.
    pub at_token: usize,
    /// Tokens that are computed and could have been found.
    pub lost: usize,
    /// Predicted time to compute them beside the others; `None` without a cost model.
    pub cost: Option<Nanos>,
    /// Why.
    pub why: MissReason,
    /// When they were evicted or their tier failed, if that is known.
    pub at: Option<Nanos>,
    /// The request that they were evicted for or that computes them, and whether it is of another tenant: never named.
    pub by: Option<RequestId>,
    /// See `by`.
    pub by_other_tenant: bool,
}

/// Why no more was found. What was seen is of the same tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// All was found but the last token, whose row is always computed.
    AllFound,
    /// Nothing longer was seen since the start, as far as is remembered.
    New,
    /// Another token was seen there. Whole blocks behind it that are the same count as lost: they would be found if
    /// what differs came last.
    OtherToken,
    /// It was seen with another salt or adapter.
    OtherSalt,
    /// It was evicted.
    Evicted,
    /// The rest does not fill a block.
    BlockNotFull,
    /// It was in a tier that could not be read.
    TierFault,
    /// It is in a tier, and computing it is predicted to be faster than loading it.
    NotWorthLoading,
    /// Its keys and values are there, but no state of the layers that have one was kept at their end.
    NoCheckpoint,
    /// Another request computes it at this moment.
    InProgress,
    /// The request needs the logits of its prompt, which are not kept.
    OffForIt,
    /// The prefix cache is off.
    Off,
}

impl MissReason {
    /// Their names in answers and metrics.
    #[rustfmt::skip]
    pub const NAMES: [&str; 12] = [
        "all_found", "new", "other_token", "other_salt", "evicted", "block_not_full", "tier_fault",
        "not_worth_loading", "no_checkpoint", "in_progress", "off_for_it", "off",
    ];
}
