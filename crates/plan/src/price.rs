//! What tokens cost: the own seconds of their phase on a machine, times what an hour of it costs.
//!
//! ```text
//! an input token     prefill of the computed tokens alone / their number
//! a cached token     what attention to the cached tokens adds to that / their number
//! an output token    TPOT / batch            (a step is shared by all who decode in it)
//! all of them        / utilization           (the hours in which a machine waits are paid as well)
//! ```
//! So an input token is cheap: it shares one read of the weights with its prompt, an output token only with the batch.

use crate::{Ask, Deployment, Plan};

/// What something costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseCost {
    /// Seconds of a machine, or of all machines of an instance, waiting included.
    pub seconds: f64,
    /// In the currency of the machine's price; `None` without one.
    pub price: Option<f64>,
    /// Energy at the most that the machine draws; `None` if that is unknown.
    pub watt_hours: Option<f64>,
}

/// Costs of a million tokens of each kind, and of the whole request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Requests that decode together: of a fleet, those that its targets and its memory allow.
    pub batch: usize,
    /// A million computed prompt tokens.
    pub input: PhaseCost,
    /// A million cached prompt tokens; `None` without any.
    pub cached: Option<PhaseCost>,
    /// A million output tokens, reasoning included.
    pub output: PhaseCost,
    /// The request.
    pub request: PhaseCost,
}

impl Plan {
    /// Costs at the batch that a fleet has, or else at the batch of the question.
    pub fn costs(&self) -> Costs {
        let batch = self.fleet.map_or(self.ask.batch, |fleet| fleet.batch);
        let speculation = self.speculation.as_ref().filter(|_| batch == self.ask.batch).cloned();
        self.deployment.costs(&Ask { batch, ..self.ask }, speculation.map(|speculation| speculation.tpot))
    }
}

impl Deployment {
    fn costs(&self, ask: &Ask, speculated: Option<f64>) -> Costs {
        const MILLION: f64 = 1e6;
        let (cached, computed) = (ask.cached_tokens(), ask.computed());
        let (alone, behind) = (self.ttft_behind(0, computed, 0, 0.0), self.ttft_behind(cached, computed, 0, 0.0));
        let tpot = speculated.or_else(|| self.plan_speculation(ask).map(|speculation| speculation.tpot));
        let output = tpot.unwrap_or_else(|| self.step(ask.batch, ask.mean_context())) / ask.batch as f64;
        let of = |seconds: f64| {
            let seconds = seconds / ask.utilization;
            let hours = seconds / 3600.0;
            let machine = &self.machine;
            let price = machine.price_per_hour.map(|price| price * hours);
            PhaseCost { seconds, price, watt_hours: machine.watts.map(|watts| watts * hours) }
        };
        Costs {
            batch: ask.batch,
            input: of(MILLION * alone / computed as f64),
            // A floor may keep both the same.
            cached: (cached > 0).then(|| of(MILLION * (behind - alone).max(0.0) / cached as f64)),
            output: of(MILLION * output),
            request: of(behind + ask.written().saturating_sub(1) as f64 * output),
        }
    }
}
