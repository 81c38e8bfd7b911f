//! Many users on many machines: how many, and which phase limits.
//!
//! ```text
//! a machine that always works       requests/s x (prefill + answer x step / batch) = 1
//! one answer on it                  TPOT = step + batch x prefill / answer           (others' prompts come between)
//! machines                          requests/s of all users / requests/s of a machine
//! ```
//! The batch is the largest that fits in memory, keeps the target for TPOT, and is no larger than the knee: beyond it
//! nothing is gained. This is the mean of a steady state; what queues do is the simulator's to tell (`twostroke sim`).

use crate::division::{Division, Together};
use crate::{Ask, Deployment};

/// Seats of an engine.
const SEATS: usize = 256;
/// Share of the time that a machine should work, so that queues stay short.
pub const USE: f64 = 0.7;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Users {
    /// How many.
    pub users: f64,
    /// Requests of each per second.
    pub rate: f64,
    /// Seconds per output token that an answer may take, prompts of others included.
    pub tpot: Option<f64>,
}

/// What keeps a batch from being larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// No further request fits into memory.
    Memory,
    /// A larger one makes no more tokens per second.
    Knee,
    /// The target.
    Target,
    /// Seats of an engine.
    Seats,
}

impl Cap {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Cap::Memory => "no more fit into memory",
            Cap::Knee => "a larger one makes no more tokens per second",
            Cap::Target => "more would miss the target",
            Cap::Seats => "an engine has no more seats",
        }
    }
}

/// What they need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetSize {
    /// As asked.
    pub users: Users,
    /// Requests that decode together on a machine.
    pub batch: usize,
    /// Why not more.
    pub cap: Cap,
    /// The target cannot be met even by one request at a time.
    pub misses_target: bool,
    /// Requests per second that a machine takes when it always works.
    pub per_machine: f64,
    /// Seconds per output token then.
    pub tpot: f64,
    /// Shares of a machine's time.
    pub prefill_share: f64,
    /// Machines that are always busy.
    pub busy: f64,
    /// Machines with room for queues to stay short.
    pub machines: u64,
    /// Were the phases on machines of their own.
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
        let prefill = self.ttft(ask.prompt, 0, 0.0);
        let knee = self.knee().unwrap_or(usize::MAX);
        let caps = [(SEATS as u64, Cap::Seats), (knee as u64, Cap::Knee), (fits, Cap::Memory)];
        let (most, mut cap) = caps.into_iter().min_by_key(|&(batch, _)| batch).expect("three of them");
        let tpot = |batch: usize| self.step(batch, context) + batch as f64 * prefill / answer.max(1.0);
        let mut batch = most as usize;
        let mut misses_target = false;
        if let Some(target) = users.tpot
            && tpot(batch) > target
        {
            // The time grows with the batch.
            let good = (1..=batch).rev().find(|&batch| tpot(batch) <= target);
            (batch, cap, misses_target) = (good.unwrap_or(1), Cap::Target, good.is_none());
        }
        let decode = answer * self.step(batch, context) / batch as f64;
        let per_machine = 1.0 / (prefill + decode);
        let all = users.users * users.rate;
        let busy = all / per_machine;
        let mut fleet = FleetSize {
            users: *users,
            batch,
            cap,
            misses_target,
            per_machine,
            tpot: tpot(batch),
            prefill_share: prefill / (prefill + decode),
            busy,
            machines: (busy / USE).ceil() as u64,
            division: Division::default(),
        };
        let alone = users.tpot.map_or(Some(most as usize), |target| {
            (1..=most as usize).rev().find(|&batch| self.step(batch, context) <= target)
        });
        fleet.division = Division::of(&Together {
            fleet: &fleet,
            rate: all,
            prefill,
            decode: &|batch| answer * self.step(batch, context) / batch as f64,
            batch: alone,
            bytes_per_prompt: (ask.prompt * self.demands.kv_bytes_per_token) as f64,
        });
        Some(fleet)
    }
}
