//! Whether prefill and decode on separate machines (disaggregation) serve the same users with fewer machines.
//!
//! ```text
//! together   TPOT = step + batch x prefill / answer <= target       other prompts come between steps: smaller batches
//! apart      TPOT = step                            <= target       larger batches, but two pools to round up
//! ```
//! The work is the same, so only the batch can be improved, where the target keeps it small. The cost is a link for keys
//! and values (DistServe: Zhong et al., OSDI 2024, who choose by goodput as well).

use crate::fleet::{Cap, FleetSize};

/// Prefill and decode on separate machines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Division {
    /// Requests that decode together on a decode-only machine.
    pub batch: usize,
    /// Fully busy machines in prefill, and in decode.
    pub busy: [f64; 2],
    /// Machines of both pools at the utilization of the question.
    pub machines: u64,
    /// Bytes of keys, values and states transferred per prompt.
    pub bytes_per_prompt: f64,
    /// Bytes per second sent by a fully busy prefill machine.
    pub link: f64,
    /// Whether it pays, and the reason.
    pub verdict: DivisionVerdict,
}

/// Whether disaggregation pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DivisionVerdict {
    /// It meets the target, which is out of reach together.
    MeetsTarget,
    /// It needs fewer machines.
    Fewer,
    /// One machine is enough, and its memory is shared.
    OneMachine,
    /// Other prompts do not limit the batch.
    #[default]
    NothingToWin,
    /// Batches are larger, but two pools need no fewer machines.
    TooLittle,
    /// Even a single request misses the target.
    OutOfReach,
}

impl DivisionVerdict {
    /// Whether the verdict is positive.
    pub fn pays(self) -> bool {
        matches!(self, DivisionVerdict::MeetsTarget | DivisionVerdict::Fewer)
    }
}

/// The combined deployment to compare with.
pub(crate) struct Together<'a> {
    pub(crate) fleet: &'a FleetSize,
    /// Requests per second of all users.
    pub(crate) rate: f64,
    pub(crate) utilization: f64,
    /// Seconds per request: of prefill, and of decode per batch size.
    pub(crate) prefill: f64,
    pub(crate) decode: &'a dyn Fn(usize) -> f64,
    /// The largest batch whose steps meet the target without prompts between them; `None`: not even one request does.
    pub(crate) batch: Option<usize>,
    pub(crate) bytes_per_prompt: f64,
}

impl Division {
    pub(crate) fn of(together: &Together<'_>) -> Division {
        let &Together { fleet, rate, utilization, prefill, decode, batch, bytes_per_prompt } = together;
        let batch_apart = batch.unwrap_or(1);
        let busy = [rate * prefill, rate * decode(batch_apart)];
        let machines = busy.map(|busy| ((busy / utilization).ceil() as u64).max(1)).iter().sum();
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
