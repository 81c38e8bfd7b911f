//! What a machine can do: a known one, one of given figures, or the one at hand as it was measured.
//!
//! The time of a step on it is a [`CostModel`], either one that was fitted to measured steps, or the roofline of the
//! figures times the share of them that an engine gets.

use kernels::limits::Limits;
use kernels::{KvDtype, WeightClass};
use model::demands::{Demands, Peaks};
use scheduler::cost::{Knot, Terms};
use scheduler::presets::{self, MACHINES};
use scheduler::{CostModel, Hardware};

/// Rows of a pass over a prompt on a machine whose engine is not known: what the simulator takes.
const ROWS: usize = 2048;
/// What `serve` takes here.
pub const ROWS_HERE: usize = 512;
/// Seconds of a step here beyond its passes.
const OVERHEAD_HERE: f64 = 1e-4;
/// Largest pass of the curve of the weights, as a power of two.
const LARGEST_PASS: u32 = 17;

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// For people.
    pub name: String,
    /// Operations per second at the precision of bf16 weights.
    pub bf16_flops: f64,
    /// Of 8-bit and 4-bit weights; what is known of a preset is its bf16 peak, which then stands here too.
    pub int8_ops: f64,
    /// Bytes per second from memory.
    pub bandwidth: f64,
    /// Share of the peak that a long prompt reaches.
    pub flops_share: f64,
    /// Share of the bandwidth that decode reaches.
    pub bandwidth_share: f64,
    /// Seconds that every step takes besides.
    pub step_overhead: f64,
    /// Bytes that hold weights and cache; `None` if that was not said.
    pub memory: Option<f64>,
    /// Rows of a pass over a prompt.
    pub rows: usize,
    /// Where the figures come from.
    pub basis: Basis,
}

/// Where a machine's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The vendor's peaks and measured shares of them: [`scheduler::presets`].
    Preset,
    /// Given, and taken as reached.
    Given,
    /// Limits measured on the machine at hand, and the shares that this engine reaches of them.
    Limits,
    /// Steps of this very model, measured on the machine at hand.
    Steps,
}

impl Basis {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Basis::Preset => "the vendor's peaks and the shares of them that engines reach",
            Basis::Given => "the given figures, all of them reached",
            Basis::Limits => "limits measured here and the shares of them that this engine reaches",
            Basis::Steps => "steps of this model measured here",
        }
    }
}

impl Machine {
    /// A known machine.
    pub fn named(name: &str) -> Option<Machine> {
        let presets::Machine { hardware, memory } =
            *MACHINES.iter().find(|machine| machine.hardware.name.eq_ignore_ascii_case(name))?;
        let Hardware { name, flops, bandwidth, flops_share, bandwidth_share, step_overhead } = hardware;
        Some(Machine {
            name: name.to_string(),
            bf16_flops: flops,
            int8_ops: flops,
            bandwidth,
            flops_share,
            bandwidth_share,
            step_overhead,
            memory: Some(memory),
            rows: ROWS,
            basis: Basis::Preset,
        })
    }

    /// One of given figures: operations and bytes per second that are reached, and bytes of memory.
    pub fn given(flops: f64, bandwidth: f64, memory: Option<f64>) -> Machine {
        Machine {
            name: "given".to_string(),
            bf16_flops: flops,
            int8_ops: flops,
            bandwidth,
            flops_share: 1.0,
            bandwidth_share: 1.0,
            step_overhead: 0.0,
            memory,
            rows: ROWS,
            basis: Basis::Given,
        }
    }

    /// This machine, of which only the limits are known. The shares are those of docs/performance.md, of prompts of 512
    /// tokens and of decode alone on the 0.5B shape: 90 % and 92 % with bf16 weights, 75 % and 92 % with int8, 70 % and
    /// 84 % with int4.
    pub fn here(limits: &Limits, weights: WeightClass, memory: Option<f64>) -> Machine {
        let (flops_share, bandwidth_share) = match weights {
            WeightClass::Bf16 => (0.90, 0.92),
            WeightClass::Int8 => (0.75, 0.92),
            WeightClass::Int4 => (0.70, 0.84),
        };
        Machine {
            name: "here".to_string(),
            bf16_flops: limits.bf16_flops,
            int8_ops: limits.int8_ops,
            bandwidth: limits.read_bandwidth,
            flops_share,
            bandwidth_share,
            step_overhead: OVERHEAD_HERE,
            memory,
            rows: ROWS_HERE,
            basis: Basis::Limits,
        }
    }

    /// `count` of them as one, as if nothing were lost between them: a bound, not a prediction.
    pub fn times(self, count: usize) -> Machine {
        let n = count as f64;
        Machine {
            name: if count == 1 { self.name } else { format!("{count} x {}", self.name) },
            bf16_flops: self.bf16_flops * n,
            int8_ops: self.int8_ops * n,
            bandwidth: self.bandwidth * n,
            memory: self.memory.map(|memory| memory * n),
            ..self
        }
    }

    /// What it can do at most with weights and keys of these classes.
    pub fn peaks(&self, weights: WeightClass, kv_dtype: KvDtype) -> Peaks {
        Peaks {
            matrix: if weights == WeightClass::Bf16 { self.bf16_flops } else { self.int8_ops },
            attention: if kv_dtype == KvDtype::Bf16 { self.bf16_flops } else { self.int8_ops },
            bandwidth: self.bandwidth,
        }
    }

    /// Of the peaks, what is reached.
    pub fn reached(&self, weights: WeightClass, kv_dtype: KvDtype) -> Peaks {
        let Peaks { matrix, attention, bandwidth } = self.peaks(weights, kv_dtype);
        Peaks {
            matrix: matrix * self.flops_share,
            attention: attention * self.flops_share,
            bandwidth: bandwidth * self.bandwidth_share,
        }
    }

    /// What steps of a model cost on it: the larger of reading and computing, for the weights; what rows see comes on top.
    /// As [`CostModel::roofline`], but a mixture's passes read the experts that their rows go to.
    pub fn cost(&self, demands: &Demands) -> CostModel {
        let reached = self.reached(demands.weights, demands.kv_dtype);
        let row = demands.shape.flops_per_token() / reached.matrix;
        let at = |rows: usize| {
            let read = demands.bytes_of_pass(rows as f64) / reached.bandwidth;
            Knot { rows, seconds: self.step_overhead + read.max(rows as f64 * row) }
        };
        // Where a dense model's curve bends; the points beside it make the interpolation exact.
        let bend = (demands.weight_bytes as f64 / reached.bandwidth / row) as usize;
        let mut rows: Vec<usize> = (0..=LARGEST_PASS).map(|power| 1 << power).collect();
        rows.extend([bend.max(1), bend.max(1) + 1]);
        rows.sort_unstable();
        rows.dedup();
        let terms = Terms {
            pair: demands.shape.pair_flops as f64 / reached.attention,
            key: demands.kv_bytes_per_token as f64 / reached.bandwidth,
            logits: demands.shape.flops_per_logit_row() / reached.matrix,
            ..Terms::default()
        };
        CostModel::new(rows.into_iter().map(at).collect(), terms)
    }
}
