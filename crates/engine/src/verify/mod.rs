//! Answers that are computed again: what is noted of one while it is computed, and one pass over its prompt and its
//! tokens that gives every row of logits and every token a second time.
//!
//! ```text
//! core: sample a row ─feature.rs─> digest of the row, token     (requests that asked for a receipt; spot checks)
//!       answer ends  ───────────> Unsealed ──origin.rs──> Receipt, to the client
//!                                    └──spot.rs──> recompute.rs, in the same engine, while it is idle
//! verifier.rs: Receipt ──> recompute.rs, on any instruction set and number of threads ──> Verdict
//! ```
//! That a pass over many rows gives the bits of one pass for each row is the first promise; so a check is a prefill.

mod feature;
mod notes;
mod origin;
mod recompute;
mod spot;
mod verifier;

pub(crate) use feature::Verify;
pub use origin::{Origin, OriginError};
pub(crate) use recompute::STATE_SLOTS;
pub(crate) use spot::{SpotChecks, SpotCounts, SpotRoom};
pub(crate) use verifier::classes;
pub use verifier::{Verifier, VerifyError};
