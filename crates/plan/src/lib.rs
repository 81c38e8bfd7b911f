//! Planning without loading weights: memory, speed, concurrency, and the limiting phase.
//!
//! ```text
//! NamedModel (a config.json, a known model, 7b) --precision--> Demands: FLOPs and bytes of any pass
//! Machine (a known one, given figures, here) --cost.rs---> CostModel: seconds of any step
//!            \______________ Deployment ______________/
//!                                |  Ask: prompt, response, batch, users
//!                                v
//!          Plan: memory | TTFT, TPOT, total | floors | what binds | profile of a request | fleet --> table, JSON, SVG
//! ```
//! Pure functions of a few microseconds: the server recomputes them for a slider. `tests/examples.rs` repeats the
//! calculations in numbers that can be checked by hand.
//!
//! There are two kinds of time. A *floor* is a lower bound: all operations of a phase at the machine's peaks, or all its
//! bytes at its bandwidth, whichever takes longer. A *prediction* comes from the cost model of the simulator and the
//! scheduler, with the share of the peaks that engines reach and the time between passes. It is never below the floor. The
//! share of the limit is floor over prediction, so it is never above 1.

mod choice;
mod cost;
mod curves;
mod decode;
mod division;
mod fleet;
mod gain;
mod json;
mod memory;
mod named;
mod picture;
mod prefill;
mod price;
mod question;
mod speculation;
mod text;
pub mod units;

pub use choice::{Choices, FleetChoice, Unmet};
pub use cost::Simulated;
pub use division::{Division, DivisionVerdict};
pub use fleet::{Cap, FleetSize, USE, Users};
pub use gain::Gain;
pub use memory::Memory;
pub use named::NamedModel;
pub use price::{Costs, PhaseCost};
pub use question::{
    HERE, Here, Loaded, PARAMETERS, Parameter, ParameterKind, PriceList, Problem, Question, WhichMachine, is_here,
    presets,
};
pub use speculation::{SpeculationModel, SpeculationPlan};

use kernels::{KvDtype, WeightClass};
use roofline::{Basis, Bound, Demands, LimitShares, Machine, PassWork, Peaks};
use scheduler::CostModel;

/// A request and its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// Tokens of a prompt; at least 1.
    pub prompt: usize,
    /// Tokens of an answer; at least 1.
    pub response: usize,
    /// Reasoning tokens before the answer.
    pub thinking: usize,
    /// Share of the prompt whose keys and values are in the prefix cache; at least 0, below 1.
    pub cached: f64,
    /// Requests that decode together, including this one; at least 1.
    pub batch: usize,
    /// Share of the time in which a machine works; above 0, at most 1.
    pub utilization: f64,
    /// Users, to size a fleet.
    pub users: Option<Users>,
}

impl Default for Ask {
    fn default() -> Ask {
        Ask { prompt: 1024, response: 256, thinking: 0, cached: 0.0, batch: 1, utilization: USE, users: None }
    }
}

impl Ask {
    /// Prompt tokens that are not computed: whole blocks of the prefix cache, and never the last token, whose logits are
    /// needed.
    pub fn cached_tokens(&self) -> usize {
        let cached = (self.prompt as f64 * self.cached) as usize;
        cached.min(self.prompt - 1) / memory::BLOCK * memory::BLOCK
    }

    /// Prompt tokens that are computed.
    pub fn computed(&self) -> usize {
        self.prompt - self.cached_tokens()
    }

    /// Mean number of keys that a decode row attends to, over an answer.
    fn mean_context(&self) -> f64 {
        self.prompt as f64 + self.written() as f64 / 2.0
    }

    /// Tokens that decode generates: reasoning and answer.
    pub fn written(&self) -> usize {
        self.thinking + self.response
    }
}

/// A model on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// The model's display name.
    pub name: String,
    /// If only the model's size is known: the known model whose heads and layers are assumed.
    pub assumed: Option<&'static str>,
    /// Costs of the model in its precision.
    pub demands: Demands,
    /// Bytes of weights that no pass reads.
    pub unread_bytes: u64,
    /// The machine.
    pub machine: Machine,
    /// Step costs.
    pub cost: CostModel,
    /// Tokens that the cache of a running engine holds; `None`: the cache fills the memory beside the weights.
    pub kv_tokens: Option<u64>,
    /// Speculative decoding; `None`: off.
    pub speculation: Option<SpeculationModel>,
    /// Bytes for experts, of which the others are read from disk; `None`: all are in memory.
    pub expert_memory: Option<f64>,
}

impl Deployment {
    /// For a model that is not loaded.
    pub fn new(model: &NamedModel, weights: WeightClass, kv_dtype: KvDtype, machine: Machine) -> Deployment {
        let demands = model.shape.demands(weights, kv_dtype);
        let cost = cost::cost(&machine, &demands);
        let unread_bytes = model.shape.unread_bytes(weights);
        let (name, assumed) = (model.name.clone(), model.assumed);
        let (kv_tokens, speculation, expert_memory) = (None, None, None);
        Deployment { name, assumed, unread_bytes, demands, machine, cost, kv_tokens, speculation, expert_memory }
    }

    /// Bytes of experts that are not in memory.
    pub(crate) fn expert_bytes_on_disk(&self) -> f64 {
        let all = self.demands.expert_bytes as f64;
        self.expert_memory.map_or(0.0, |memory| (all - memory).max(0.0))
    }

    /// Bytes of experts that a step of `rows` rows reads from disk, if all are equally likely. They rarely are, and those
    /// used most stay in memory: fewer are read.
    pub(crate) fn expert_bytes_read(&self, rows: f64) -> f64 {
        self.demands.shape.experts.map_or(0.0, |experts| experts.share_read(rows)) * self.expert_bytes_on_disk()
    }

    fn peaks(&self) -> Peaks {
        self.machine.peaks(&self.demands)
    }

    /// A prediction, raised to the floor: interpolation between few points may fall below it, and so do steps that were
    /// measured beside other programs.
    fn at_least(&self, predicted: f64, work: &PassWork) -> f64 {
        predicted.max(self.peaks().floor_seconds(work))
    }

    /// Shares of both limits that passes with this time reach. `None`: the prediction from measured steps was raised to the
    /// floor, so that they are not known.
    fn shares(&self, work: &PassWork, seconds: f64) -> Option<LimitShares> {
        let shares = LimitShares::within(work, seconds, &self.peaks());
        if self.machine.basis == Basis::Steps { shares.known() } else { Some(shares) }
    }

    /// Computes the plan for `ask`. Cost: a few microseconds.
    pub fn plan(&self, ask: &Ask) -> Plan {
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
            speculation: self.plan_speculation(ask),
            prefill: self.prefill_profile(ask),
            decode: self.decode_profile(ask),
            knee: self.knee(),
            by_prompt: prompts.iter().map(|&prompt| self.length(&Ask { prompt, ..*ask })).collect(),
            by_batch: batches.iter().map(|&batch| self.seats(&Ask { batch, ..*ask })).collect(),
            fleet: ask.users.as_ref().and_then(|users| self.fleet(ask, users)),
            choices: None,
            deployment: self.clone(),
        }
    }

    /// Latencies of a request.
    pub fn times(&self, ask: &Ask) -> Times {
        let context = ask.mean_context();
        let ttft = |others, context| self.ttft_behind(ask.cached_tokens(), ask.computed(), others, context);
        let (ttft_alone, ttft, tpot) = (ttft(0, 0.0), ttft(ask.batch - 1, context), self.step(ask.batch, context));
        let steps = ask.written().saturating_sub(1) as f64;
        Times { ttft, ttft_alone, tpot, total: ttft + steps * tpot }
    }

    /// The cost of reasoning.
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
        let work = self.prefill_work(ask.cached_tokens(), ask.computed());
        let times = self.times(ask);
        let shares = self.shares(&work, times.ttft_alone);
        Profile {
            passes: ask.computed().div_ceil(self.chunk(0)),
            tokens: ask.computed(),
            flops: work.flops(),
            attention_flops: work.attention_flops,
            bytes: work.bytes,
            intensity: work.intensity(),
            seconds: times.ttft,
            share: times.ttft / times.total,
            machine_seconds: times.ttft_alone,
            floor: self.prefill_floor(ask),
            shares,
            bound: shares.map_or_else(|| self.peaks().roofline(&work), |shares| shares.bound()),
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
            bound: shares.map_or_else(|| self.peaks().roofline(&work), |shares| shares.bound()),
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

/// Maximum prompt lengths of the table, and log2 of its largest batch.
const LENGTHS: usize = 6;
const BATCHES: usize = 8;

/// A plan: see the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The model and machine.
    pub deployment: Deployment,
    /// The request and load.
    pub ask: Ask,
    /// Memory use and concurrency.
    pub memory: Memory,
    /// Latencies.
    pub times: Times,
    /// The cost of reasoning; `None` without it.
    pub thinking: Option<Thinking>,
    /// The effect of speculative decoding; `None` if it is off.
    pub speculation: Option<SpeculationPlan>,
    /// Cost profile of prefill.
    pub prefill: Profile,
    /// Cost profile of decode.
    pub decode: Profile,
    /// The batch beyond which throughput does not grow.
    pub knee: Option<usize>,
    /// Latencies by prompt length.
    pub by_prompt: Vec<Length>,
    /// Throughput by batch size.
    pub by_batch: Vec<Seats>,
    /// Fleet size; `None` without users, or if nothing fits.
    pub fleet: Option<FleetSize>,
    /// Which machines meet the targets; `None` without users and targets.
    pub choices: Option<Choices>,
}

impl Plan {
    /// The phase that takes more of an answer's time.
    pub fn dominant(&self) -> &'static str {
        if self.prefill.seconds > self.decode.seconds { "prefill" } else { "decode" }
    }

    /// Why its figures are not sure, if they are not.
    pub fn doubt(&self) -> Option<String> {
        let Machine { basis, has_tiles, doubt, .. } = &self.deployment.machine;
        let of_tiles = (*basis == Basis::Limits && *has_tiles).then_some(
            "how much of its tiles' peak this model reaches is known once `serve` has measured its steps here",
        );
        let is_raised = self.prefill.shares.is_none() || self.decode.shares.is_none();
        let raised =
            || "steps measured here were faster than its limits, so lower bounds are in their place".to_string();
        doubt.map(|doubt| doubt.to_string()).or(of_tiles.map(str::to_owned)).or_else(|| is_raised.then(raised))
    }

    /// The phase that takes more of a machine's time, and so needs more machines.
    pub fn limiting(&self) -> &'static str {
        if self.prefill.machine_seconds > self.decode.machine_seconds { "prefill" } else { "decode" }
    }
}

/// Latencies in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// To the first token, while the rest of the batch decodes.
    pub ttft: f64,
    /// To the first token on an idle machine.
    pub ttft_alone: f64,
    /// Per output token, while the rest of the batch decodes and no prompt is in prefill.
    pub tpot: f64,
    /// To the last token.
    pub total: f64,
}

/// The cost of reasoning before an answer, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thinking {
    /// Duration of the reasoning.
    pub seconds: f64,
    /// To the first visible token.
    pub visible: f64,
    /// To the last token, without reasoning.
    pub total_without: f64,
    /// Requests that fit into the cache without reasoning.
    pub requests_without: Option<u64>,
}

/// Cost profile of a phase of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Passes over the weights.
    pub passes: usize,
    /// Tokens computed.
    pub tokens: usize,
    /// Operations.
    pub flops: f64,
    /// Operations of attention.
    pub attention_flops: f64,
    /// Bytes read; for decode in a batch, this request's part of each pass.
    pub bytes: f64,
    /// Operations per byte.
    pub intensity: f64,
    /// Seconds for the user.
    pub seconds: f64,
    /// Share of the whole answer's seconds.
    pub share: f64,
    /// Seconds of machine time: a decode step is shared with the batch.
    pub machine_seconds: f64,
    /// Lower bound in seconds, including attention, keys and values.
    pub floor: f64,
    /// Shares of the limits; the larger is the floor over the time on an idle machine. `None`: not known, because the time
    /// was below the floor and was raised to it.
    pub shares: Option<LimitShares>,
    /// The limit that binds.
    pub bound: Bound,
}

/// One prompt length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length {
    /// Its tokens.
    pub prompt: usize,
    /// TTFT in seconds.
    pub ttft: f64,
    /// TPOT in seconds.
    pub tpot: f64,
    /// Prefill's share of the answer's time.
    pub prefill_share: f64,
    /// Attention's share of prefill's operations.
    pub attention_share: f64,
    /// The limit of prefill.
    pub prefill_bound: Bound,
    /// The limit of decode.
    pub decode_bound: Bound,
}

/// One batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seats {
    /// Requests that decode together.
    pub batch: usize,
    /// TPOT in seconds.
    pub tpot: f64,
    /// Throughput of the batch.
    pub tokens_per_second: f64,
    /// Operations per byte.
    pub intensity: f64,
    /// The limit of decode.
    pub bound: Bound,
    /// Whether the batch fits into memory; `None`: unknown.
    pub fits: Option<bool>,
}
