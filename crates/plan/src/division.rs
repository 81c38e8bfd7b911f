//! Whether prefill and decode on machines of their own serve the same users with fewer.
//!
//! ```text
//! together   TPOT = step + batch x prefill / answer <= target       others' prompts come between: smaller batches
//! apart      TPOT = step                            <= target       larger ones, and a pool each to be rounded up
//! ```
//! The work is the same, so what can be won is the batch: where the target keeps it small, and nowhere else. What that
//! costs is a link for keys and values (DistServe: Zhong et al., OSDI 2024, who choose by goodput as well).

use crate::fleet::{Cap, FleetSize, USE};

/// The phases on machines of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Division {
    /// Requests that decode together on a machine that reads no prompts.
    pub batch: usize,
    /// Machines always in prefill, and in decode.
    pub busy: [f64; 2],
    /// Machines with room for queues to stay short, of both.
    pub machines: u64,
    /// Bytes of keys and values that travel for a prompt.
    pub bytes_per_prompt: f64,
    /// Bytes per second that a machine sends which always reads.
    pub link: f64,
    /// Whether it pays, and why or why not.
    pub verdict: DivisionVerdict,
}

/// Whether dividing pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DivisionVerdict {
    /// The target is met, and is out of reach together.
    MeetsTarget,
    /// Fewer machines do.
    Fewer,
    /// One machine does all: its memory is one.
    OneMachine,
    /// Others' prompts keep no batch small.
    #[default]
    NothingToWin,
    /// Batches are larger, and two pools take as many machines.
    TooLittle,
    /// Not even alone does a request meet the target.
    OutOfReach,
}

impl DivisionVerdict {
    /// Whether it does.
    pub fn pays(self) -> bool {
        matches!(self, DivisionVerdict::MeetsTarget | DivisionVerdict::Fewer)
    }
}

/// What a division is of.
pub(crate) struct Together<'a> {
    pub(crate) fleet: &'a FleetSize,
    /// Requests of all users per second.
    pub(crate) rate: f64,
    /// Seconds of a request: of its prompt, and of its answer in a batch of so many.
    pub(crate) prefill: f64,
    pub(crate) decode: &'a dyn Fn(usize) -> f64,
    /// The largest batch whose steps keep the target, with nothing between them; `None`: not even one does.
    pub(crate) batch: Option<usize>,
    pub(crate) bytes_per_prompt: f64,
}

impl Division {
    pub(crate) fn of(together: &Together<'_>) -> Division {
        let &Together { fleet, rate, prefill, decode, batch, bytes_per_prompt } = together;
        let batch_apart = batch.unwrap_or(1);
        let busy = [rate * prefill, rate * decode(batch_apart)];
        let machines = busy.map(|busy| ((busy / USE).ceil() as u64).max(1)).iter().sum();
        let verdict = match batch {
            None => DivisionVerdict::OutOfReach,
            Some(_) if fleet.misses_target => DivisionVerdict::MeetsTarget,
            Some(_) if fleet.machines <= 1 => DivisionVerdict::OneMachine,
            Some(_) if machines < fleet.machines => DivisionVerdict::Fewer,
            Some(batch) if fleet.cap != Cap::Target || batch <= fleet.batch => DivisionVerdict::NothingToWin,
            Some(_) => DivisionVerdict::TooLittle,
        };
        let link = bytes_per_prompt / prefill.max(1e-12);
        Division { batch: batch_apart, busy, machines, bytes_per_prompt, link, verdict }
    }
}
