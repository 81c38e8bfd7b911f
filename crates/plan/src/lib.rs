//! Before a weight is read: will it fit, how fast, how many at once, and which phase limits.
//!
//! ```text
//! NamedModel (a config.json, a known model, 7b) --precision--> Demands: FLOPs and bytes of any pass
//! Machine (a known one, given figures, here) --cost.rs---> CostModel: seconds of any step
//!            \______________ Deployment ______________/
//!                                |  Ask: prompt, response, batch, users
//!                                v
//!          Plan: memory | TTFT, TPOT, total | floors | what binds | profile of a request | fleet --> table, JSON, SVG
//! ```
//! Pure functions of a few microseconds: the server answers a slider with them. What they compute is written once more,
//! in numbers to check by hand, in `tests/examples.rs`.
//!
//! Two kinds of time stand beside each other. A *floor* is what nothing can beat: all operations of a phase at the
//! machine's peaks, or all its bytes at its bandwidth, whichever takes longer. A *prediction* is what the cost model of
//! the simulator and the scheduler says, with the share of the peaks that engines reach and the time between passes. The
//! share of the limit is one over the other, so it is never above 1.

mod cost;
mod decode;
mod division;
mod fleet;
mod gain;
mod json;
mod memory;
mod named;
mod picture;
mod prefill;
mod question;
mod speculation;
mod text;
pub mod units;

pub use cost::Simulated;
pub use division::{Division, DivisionVerdict};
pub use fleet::{Cap, FleetSize, USE, Users};
pub use gain::Gain;
pub use memory::Memory;
pub use named::NamedModel;
pub use question::{
    HERE, Here, Loaded, PARAMETERS, Parameter, ParameterKind, Problem, Question, WhichMachine, is_here, presets,
};
pub use speculation::{Guessing, SpeculationPlan};

use kernels::{KvDtype, WeightClass};
use roofline::{Basis, Bound, Demands, LimitShares, Machine, PassWork, Peaks};
use scheduler::CostModel;

/// What is asked of a deployment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Tokens of a prompt; at least 1.
    pub prompt: usize,
    /// Tokens of an answer; at least 1.
    pub response: usize,
    /// Tokens that are thought before it.
    pub thinking: usize,
    /// Requests that decode together, this one included; at least 1.
    pub batch: usize,
    /// Users of a fleet.
    pub users: Option<Users>,
}

impl Ask {
    /// Keys that a decode row sees, in the mean of an answer.
    fn mean_context(&self) -> f64 {
        self.prompt as f64 + self.written() as f64 / 2.0
    }

    /// Tokens that decode writes: thought and answer.
    pub fn written(&self) -> usize {
        self.thinking + self.response
    }
}

/// A model on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// The model's name, for people.
    pub name: String,
    /// The known model whose heads and layers it is taken to have, where only its size is known.
    pub assumed: Option<&'static str>,
    /// The model, in its precision.
    pub demands: Demands,
    /// Bytes of weights that no pass reads.
    pub unread_bytes: u64,
    /// The machine.
    pub machine: Machine,
    /// What steps cost on it.
    pub cost: CostModel,
    /// Tokens that the cache of a running engine holds; `None`: as many as fit beside the weights.
    pub kv_tokens: Option<u64>,
    /// Who guesses at next tokens, and how well; `None`: nobody.
    pub guessing: Option<Guessing>,
}

impl Deployment {
    /// A model that is not loaded.
    pub fn new(model: &NamedModel, weights: WeightClass, kv_dtype: KvDtype, machine: Machine) -> Deployment {
        let demands = model.shape.demands(weights, kv_dtype);
        let cost = cost::cost(&machine, &demands);
        let unread_bytes = model.shape.unread_bytes(weights);
        let (name, assumed) = (model.name.clone(), model.assumed);
        Deployment { name, assumed, unread_bytes, demands, machine, cost, kv_tokens: None, guessing: None }
    }

    fn peaks(&self) -> Peaks {
        self.machine.peaks(&self.demands)
    }

    /// A prediction from figures, which cannot be below the floor. (Interpolated between few points it might be.)
    /// Measured steps are what they are.
    fn at_least(&self, predicted: f64, work: &PassWork) -> f64 {
        match self.machine.basis {
            Basis::Steps => predicted,
            Basis::Preset | Basis::Given | Basis::Limits => predicted.max(self.peaks().floor_seconds(work)),
        }
    }

    /// The floor of some passes. Steps that were measured and took less have shown that the limits are higher.
    fn floor(&self, work: &PassWork, predicted: impl FnOnce() -> f64) -> f64 {
        let floor = self.peaks().floor_seconds(work);
        if self.machine.basis == Basis::Steps { floor.min(predicted()) } else { floor }
    }

    /// Shares of both limits that passes have which take so long.
    fn shares(&self, work: &PassWork, seconds: f64) -> LimitShares {
        LimitShares::within(work, seconds, &self.peaks()).capped()
    }

    /// Answers `ask`. Cost: some microseconds.
    pub fn plan(&self, ask: &Ask) -> Plan {
        self.raised_for(ask).answer(ask)
    }

    /// The same, on limits that are at least what steps of this model have reached: a limit that its own prediction
    /// beats was measured while others used the machine.
    fn raised_for(&self, ask: &Ask) -> Deployment {
        if self.machine.basis != Basis::Steps {
            return self.clone();
        }
        let (demands, context) = (&self.demands, ask.mean_context());
        let steps = [
            (self.prefill_work(ask.prompt), self.ttft(ask.prompt, 0, 0.0)),
            (self.step_work(1, 0.0), self.step(1, 0.0)),
            (self.step_work(ask.batch, context), self.step(ask.batch, context)),
        ];
        let raise = |machine: Machine, (work, seconds)| machine.raised_by(demands, &work, seconds);
        Deployment { machine: steps.into_iter().fold(self.machine.clone(), raise), ..self.clone() }
    }

    fn answer(&self, ask: &Ask) -> Plan {
        let prompts = std::iter::successors(Some(128), |prompt| Some(prompt * 4));
        let prompts = prompts.take_while(|&prompt| prompt + ask.written() <= self.demands.shape.context_limit);
        let mut prompts: Vec<usize> = prompts.take(LENGTHS).chain([ask.prompt]).collect();
        prompts.sort_unstable();
        prompts.dedup();
        let mut batches: Vec<usize> = (0..=BATCHES).map(|power| 1 << power).chain([ask.batch]).collect();
        batches.sort_unstable();
        batches.dedup();
        Plan {
            ask: *ask,
            memory: self.memory(ask),
            times: self.times(ask),
            thinking: self.thinking(ask),
            speculation: self.speculation(ask),
            prefill: self.prefill_profile(ask),
            decode: self.decode_profile(ask),
            knee: self.knee(),
            by_prompt: prompts.iter().map(|&prompt| self.length(&Ask { prompt, ..*ask })).collect(),
            by_batch: batches.iter().map(|&batch| self.seats(&Ask { batch, ..*ask })).collect(),
            fleet: ask.users.as_ref().and_then(|users| self.fleet(ask, users)),
            deployment: self.clone(),
        }
    }

    /// How long an answer takes.
    pub fn times(&self, ask: &Ask) -> Times {
        let context = ask.mean_context();
        let (ttft, tpot) = (self.ttft(ask.prompt, ask.batch - 1, context), self.step(ask.batch, context));
        let steps = ask.written().saturating_sub(1) as f64;
        Times { ttft, ttft_alone: self.ttft(ask.prompt, 0, 0.0), tpot, total: ttft + steps * tpot }
    }

    /// What the thought of an answer costs.
    fn thinking(&self, ask: &Ask) -> Option<Thinking> {
        let silent = Ask { thinking: 0, ..*ask };
        let (times, without) = (self.times(ask), self.times(&silent));
        (ask.thinking > 0).then(|| Thinking {
            seconds: ask.thinking as f64 * times.tpot,
            visible: times.ttft + ask.thinking as f64 * times.tpot,
            total_without: without.total,
            requests_without: self.memory(&silent).requests,
        })
    }

    fn prefill_profile(&self, ask: &Ask) -> Profile {
        let work = self.prefill_work(ask.prompt);
        let times = self.times(ask);
        let shares = self.shares(&work, times.ttft_alone);
        Profile {
            passes: ask.prompt.div_ceil(self.chunk(0)),
            tokens: ask.prompt,
            flops: work.flops(),
            attention_flops: work.attention_flops,
            bytes: work.bytes,
            intensity: work.intensity(),
            seconds: times.ttft,
            share: times.ttft / times.total,
            machine_seconds: times.ttft_alone,
            floor: self.prefill_floor(ask.prompt),
            shares,
            bound: shares.bound(),
        }
    }

    fn decode_profile(&self, ask: &Ask) -> Profile {
        let steps = ask.written().saturating_sub(1);
        let work = self.step_work(ask.batch, ask.mean_context());
        let times = self.times(ask);
        let shares = self.shares(&work, times.tpot);
        let own = steps as f64 / ask.batch as f64;
        Profile {
            passes: steps,
            tokens: steps,
            flops: work.flops() * own,
            attention_flops: work.attention_flops * own,
            bytes: work.bytes * own,
            intensity: work.intensity(),
            seconds: steps as f64 * times.tpot,
            share: steps as f64 * times.tpot / times.total,
            machine_seconds: own * times.tpot,
            floor: steps as f64 * self.decode_floor(ask.batch, ask.mean_context()),
            shares,
            bound: shares.bound(),
        }
    }

    fn length(&self, ask: &Ask) -> Length {
        let (times, prefill) = (self.times(ask), self.prefill_profile(ask));
        Length {
            prompt: ask.prompt,
            ttft: times.ttft,
            tpot: times.tpot,
            prefill_share: times.ttft / times.total,
            attention_share: prefill.attention_flops / prefill.flops,
            prefill_bound: prefill.bound,
            decode_bound: self.decode_profile(ask).bound,
        }
    }

    fn seats(&self, ask: &Ask) -> Seats {
        let decode = self.decode_profile(ask);
        let tpot = self.step(ask.batch, ask.mean_context());
        Seats {
            batch: ask.batch,
            tpot,
            tokens_per_second: ask.batch as f64 / tpot,
            intensity: decode.intensity,
            bound: decode.bound,
            fits: self.memory(ask).fits(ask.batch),
        }
    }
}

/// Prompt lengths of the table at most, and the power of two of its largest batch.
const LENGTHS: usize = 6;
const BATCHES: usize = 8;

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Of which model on which machine.
    pub deployment: Deployment,
    /// To which question.
    pub ask: Ask,
    /// Will it fit, and how often.
    pub memory: Memory,
    /// How fast.
    pub times: Times,
    /// What a thought before the answer costs; `None` without one.
    pub thinking: Option<Thinking>,
    /// What guesses bring to decode; `None` where nobody guesses.
    pub speculation: Option<SpeculationPlan>,
    /// The prompt's part of a request.
    pub prefill: Profile,
    /// The answer's part of a request.
    pub decode: Profile,
    /// The batch from which on a larger one makes no more tokens per second.
    pub knee: Option<usize>,
    /// As the prompt grows.
    pub by_prompt: Vec<Length>,
    /// As the batch grows.
    pub by_batch: Vec<Seats>,
    /// For users; `None` if none were named, or nothing fits.
    pub fleet: Option<FleetSize>,
}

impl Plan {
    /// The phase that an answer spends more time in.
    pub fn dominant(&self) -> &'static str {
        if self.prefill.seconds > self.decode.seconds { "prefill" } else { "decode" }
    }

    /// The phase that takes more of a machine's time, so that more machines are needed for it.
    pub fn limiting(&self) -> &'static str {
        if self.prefill.machine_seconds > self.decode.machine_seconds { "prefill" } else { "decode" }
    }
}

/// Seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// To the first token, while the rest of the batch decodes.
    pub ttft: f64,
    /// To the first token on an idle machine.
    pub ttft_alone: f64,
    /// From a token to the next, while the rest of the batch decodes and nobody is in prefill.
    pub tpot: f64,
    /// To the last token.
    pub total: f64,
}

/// What is thought before an answer, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thinking {
    /// Of the thought alone.
    pub seconds: f64,
    /// To the first token behind it, which is the first that a person sees.
    pub visible: f64,
    /// To the last token, did nobody think.
    pub total_without: f64,
    /// Requests that fit into the cache, did nobody think.
    pub requests_without: Option<u64>,
}

/// What a phase of one request costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Passes over the weights.
    pub passes: usize,
    /// Tokens that they compute.
    pub tokens: usize,
    /// Operations.
    pub flops: f64,
    /// Those of attention.
    pub attention_flops: f64,
    /// Bytes read; of decode in a batch, this request's part of each pass.
    pub bytes: f64,
    /// Operations per byte.
    pub intensity: f64,
    /// Seconds as the user sees them.
    pub seconds: f64,
    /// Their share of the whole answer.
    pub share: f64,
    /// Seconds of the machine: a decode step is shared with the batch.
    pub machine_seconds: f64,
    /// Seconds that nothing can beat, attention, keys and values included.
    pub floor: f64,
    /// Shares of the limits; the larger is the floor over the time on an idle machine.
    pub shares: LimitShares,
    /// Which binds.
    pub bound: Bound,
}

/// One length of prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Its tokens.
    pub prompt: usize,
    /// Seconds.
    pub ttft: f64,
    /// Seconds.
    pub tpot: f64,
    /// Of the answer's time.
    pub prefill_share: f64,
    /// Of prefill's operations.
    pub attention_share: f64,
    /// What binds.
    pub prefill_bound: Bound,
    /// What binds.
    pub decode_bound: Bound,
}

/// One batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seats {
    /// Requests that decode together.
    pub batch: usize,
    /// Seconds.
    pub tpot: f64,
    /// Of all together.
    pub tokens_per_second: f64,
    /// Operations per byte.
    pub intensity: f64,
    /// What binds.
    pub bound: Bound,
    /// Into memory.
    pub fits: Option<bool>,
}
