//! Several models in one process, of which those that are asked for are in memory.
//!
//! ```text
//! request --> manager.rs: who waits, who loads --facts, now--> machine.rs: what is to be done --actions--> manager.rs
//! ```

mod claims;
mod machine;
mod manager;
#[cfg(test)]
mod tests;

pub use claims::{Claim, Claims, Unclaimed};
pub use machine::{Action, Facts, ModelId, Place, Refusal, Residency, Rules, WaitTicket};
pub use manager::{Entered, LoadingReport, Manager, ResidentModel, Standing};
