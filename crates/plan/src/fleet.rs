//! Fleet size: the number of machines for many users, and the limiting phase.
//!
//! ```text
//! a fully busy machine              requests/s x (prefill + answer x step / batch) = 1
//! one answer on it                  TPOT = step + batch x prefill / answer           (other prompts come between steps)
//! machines                          requests/s of all users / requests/s of a machine
//! ```
//! The batch is the largest that fits in memory, meets the targets, and does not exceed the knee, beyond which
//! nothing is gained. This is the mean of a steady state; queueing needs the simulator (`twostroke sim`).

use crate::division::{Division, Together};
use crate::{Ask, Deployment};

/// Maximum concurrent sequences of an engine.
const SEATS: usize = 256;
/// Utilization of a machine where none is stated: it keeps queues short.
pub const USE: f64 = 0.7;

/// The load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Users {
    /// Number of users.
    pub users: f64,
    /// Requests per second of each.
    pub rate: f64,
    /// TTFT target in seconds, of a prompt that does not wait for another.
    pub ttft: Option<f64>,
    /// TPOT target in seconds, including the time of other prompts.
    pub tpot: Option<f64>,
}

/// What limits the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// Memory.
    Memory,
    /// A larger batch gives no more tokens per second.
    Knee,
    /// The TPOT target.
    Target,
    /// The TTFT target.
    FirstToken,
    /// Concurrent sequences of an engine.
    Seats,
}

impl Cap {
    /// The limit as a phrase.
    pub fn words(self) -> &'static str {
        match self {
            Cap::Memory => "no more fit into memory",
            Cap::Knee => "a larger one gives no more tokens per second",
            Cap::Target => "more would miss the TPOT target",
            Cap::FirstToken => "more would miss the TTFT target",
            Cap::Seats => "the most concurrent sequences of an engine",
        }
    }
}

/// Required machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetSize {
    /// The load.
    pub users: Users,
    /// Requests that decode together on a machine.
    pub batch: usize,
    /// What limits the batch.
    pub cap: Cap,
    /// Even a single request at a time misses a target.
    pub misses_target: bool,
    /// Requests per second of a fully busy machine.
    pub per_machine: f64,
    /// Resulting seconds to the first token, without queueing.
    pub ttft: f64,
    /// Resulting seconds per output token.
    pub tpot: f64,
    /// Prefill's share of a machine's time.
    pub prefill_share: f64,
    /// Fully busy machines.
    pub busy: f64,
    /// Machines at the utilization of the question.
    pub machines: u64,
    /// The same load with prefill and decode on separate machines.
    pub division: Division,
}

impl Deployment {
    /// `None` if not even one request fits.
    pub(crate) fn fleet(&self, ask: &Ask, users: &Users) -> Option<FleetSize> {
        let fits = self.memory(ask).requests.unwrap_or(u64::MAX);
        if fits == 0 {
            return None;
        }
        let (context, answer) = (ask.mean_context(), ask.written().saturating_sub(1) as f64);
        let ttft = |others, context| self.ttft_behind(ask.cached_tokens(), ask.computed(), others, context);
        let prefill = ttft(0, 0.0);
        let knee = self.knee().unwrap_or(usize::MAX);
        let caps = [(SEATS as u64, Cap::Seats), (knee as u64, Cap::Knee), (fits, Cap::Memory)];
        let (most, mut cap) = caps.into_iter().min_by_key(|&(batch, _)| batch).expect("three of them");
        let tpot = |batch: usize| self.step(batch, context) + batch as f64 * prefill / answer.max(1.0);
        let most = most as usize;
        let ttft = |batch: usize| ttft(batch - 1, context);
        let slow = |batch: usize| users.tpot.is_some_and(|target| tpot(batch) > target);
        let late = |batch: usize| users.ttft.is_some_and(|target| ttft(batch) > target);
        let good = largest(most, |batch| !slow(batch) && !late(batch));
        let batch = good.unwrap_or(1);
        if good != Some(most) {
            let next = if good.is_none() { 1 } else { batch + 1 };
            cap = if slow(next) { Cap::Target } else { Cap::FirstToken };
        }
        let decode = answer * self.step(batch, context) / batch as f64;
        let per_machine = 1.0 / (prefill + decode);
        let all = users.users * users.rate;
        let busy = all / per_machine;
        let mut fleet = FleetSize {
            users: *users,
            batch,
            cap,
            misses_target: good.is_none(),
            per_machine,
            ttft: ttft(batch),
            tpot: tpot(batch),
            prefill_share: prefill / (prefill + decode),
            busy,
            machines: (busy / ask.utilization).ceil() as u64,
            division: Division::default(),
        };
        let alone = largest(most, |batch| users.tpot.is_none_or(|target| self.step(batch, context) <= target))
            .filter(|_| users.ttft.is_none_or(|target| prefill <= target));
        fleet.division = Division::of(&Together {
            fleet: &fleet,
            rate: all,
            utilization: ask.utilization,
            prefill,
            decode: &|batch| answer * self.step(batch, context) / batch as f64,
            batch: alone,
            bytes_per_prompt: (ask.prompt * self.demands.kv_bytes_per_token
                + 4 * self.demands.shape.state_numbers as usize) as f64,
        });
        Some(fleet)
    }
}

/// The largest batch up to `most` that is good, of which there is none above one that is not: times grow with the batch.
fn largest(most: usize, is_good: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut below, mut above) = (0, most + 1);
    while above - below > 1 {
        // The last first: mostly there is no target in the way.
        let middle = if above == most + 1 && below == 0 { most } else { below + (above - below) / 2 };
        if is_good(middle) { below = middle } else { above = middle }
    }
    (below > 0).then_some(below)
}
