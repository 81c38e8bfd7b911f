//! Rates of a machine: a preset, one with given figures, or this machine as measured.
//!
//! Peaks are the vendors' published dense figures (no sparsity) for bf16 with sums in 32 bits and for int8, and their
//! memory bandwidth. Watts are the vendors' limits of power for the card or the processor. The shares are
//! the fraction that a serving engine reaches, from measurements where available:
//!
//! | machine | peaks | shares |
//! | --- | --- | --- |
//! | a100, h100 | NVIDIA's data sheets, SXM, 80 GB | Llama-2-70B on two GPUs, prompts of 1k to 8k tokens and decode at batch 1, in the data of Splitwise (Patel et al., ISCA 2024): an engine of 2023, newer ones reach more |
//! | h200 | NVIDIA's data sheet | the H100's: the same chip with faster memory |
//! | b200 | NVIDIA's data sheet of HGX B200, an eighth, at 1,000 W; 180 of 192 GB enabled | not measured: the H100's |
//! | l40s | NVIDIA's data sheet | those of an RTX PRO 6000 with vLLM 0.19, by the layer profiles of LLMServingSim (Cho et al., IISWC 2024): also one card with GDDR |
//! | l4, t4 | NVIDIA's data sheets; a T4 has fp16 and no bf16 | not measured: the L40S's |
//! | rtx-3090, rtx-4090, rtx-5090 | the appendices of NVIDIA's white papers on GA102, Ada and RTX Blackwell: tensor cores with sums in 32 bits, half of their rate with sums in 16 | not measured: the L40S's |
//! | mi300x | AMD's data sheet | not measured: the H100's |
//! | mi355x | AMD's data sheet: 256 compute units at 2.4 GHz, 4,096 bf16 operations per cycle, twice that for int8 | not measured: the H100's |
//! | gb10 | NVIDIA publishes 1 PFLOP/s for 4 bits with sparsity, 273 GB/s and 140 W of the DGX Spark's chip; bf16 with sums in 32 bits is a sixteenth of that and int8 a fourth, as in the white paper on RTX Blackwell | not measured: the L40S's |
//! | ryzen-ai-max-395 | AMD: 40 compute units at 2.9 GHz, 512 operations per cycle in bf16 as in int8, 256 bits of LPDDR5X-8000; 120 W are the upper end of its range | not measured: the L40S's |
//! | m2-ultra | Apple's page of the Mac Pro: 76 GPU cores, 27.2 TFLOP/s; not faster in fewer bits. Of the Mac Studio the most watts. For M3 and later Apple publishes no operations, so they are not in the list | not measured: the L40S's |
//! | xeon-8480 | Intel: 56 cores at 2.0 GHz with 1,024 bf16 operations per cycle (AMX), twice that for int8, 8 channels of DDR5-4800 | this engine's on another CPU (docs/performance.md) |
//! | xeon-6980p | Intel: 128 cores at 2.0 GHz with the operations of the xeon-8480, 12 channels of MRDIMM-8800 | this engine's on another CPU |
//! | epyc-9654 | AMD: 96 cores of Zen 4 at 2.4 GHz, AVX-512 on 256-bit units: 64 bf16 and 128 int8 operations per cycle (VDPBF16PS, VPDPBUSD); 12 channels of DDR5-4800 | this engine's on another CPU |
//! | epyc-9755 | AMD: 128 cores of Zen 5 at 2.7 GHz, operations per cycle as of the ryzen-9950x; 12 channels of DDR5-6000 | this engine's on another CPU |
//! | ryzen-9950x | AMD: 16 cores of Zen 5 at 4.3 GHz with units of 512 bits: 128 bf16 and 256 int8 operations per cycle; 2 channels of DDR5-5600 | this engine's on another CPU |
//! | epyc-2core | measured by `lab`: 2 cores of a virtual machine without instructions for bf16 | measured: docs/performance.md |
//!
//! int8 means int8 weights and activations, as this engine computes with int8 and int4 weights. An engine that unpacks
//! 4-bit weights to 16 bits (as most GPU engines do) has the bf16 peak.
//!
//! A step's overhead on a GPU is the time of vLLM 0.19's measured steps beyond their layers: about 1 ms
//! (docs/performance.md, section Simulator).

use kernels::limits::{Doubt, Limits};
use kernels::{KvDtype, WeightClass};

use crate::demands::Demands;
use crate::limits::Peaks;
use crate::shape::ModelShape;

/// Maximum rows of a prefill pass for an unknown engine: the simulator's default.
const ROWS: usize = 2048;
/// Share of a machine's memory for weights and cache; the rest is for activations and the system.
pub const MEMORY_SHARE: f64 = 0.88;
/// Maximum rows of a prefill pass of `serve` on this machine.
pub const ROWS_HERE: usize = 512;
/// Seconds per step beyond its passes, for GPU engines.
const GPU_STEP_OVERHEAD: f64 = 1e-3;
/// Seconds per step beyond its passes, for this engine.
const OVERHEAD_HERE: f64 = 1e-4;

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Name for display.
    pub name: String,
    /// Operations per second with bf16 weights.
    pub bf16_flops: f64,
    /// Operations per second with 8-bit and 4-bit weights.
    pub int8_ops: f64,
    /// Bytes per second from memory.
    pub bandwidth: f64,
    /// Last-level cache; `None`: weights are read from memory.
    pub cache: Option<LastLevel>,
    /// Share of the peak reached by a long prompt.
    pub flops_share: f64,
    /// Share of the bandwidth reached by decode.
    pub bandwidth_share: f64,
    /// Seconds per step beyond its passes.
    pub step_overhead: f64,
    /// Bytes for weights and cache; `None` if unknown.
    pub memory: Option<f64>,
    /// Maximum rows of a prefill pass.
    pub rows: usize,
    /// Machines combined into this one.
    pub count: usize,
    /// Bytes per second that each of them sends to the others; `None`: nothing is lost between them.
    pub link: Option<f64>,
    /// Most watts; `None` if unknown.
    pub watts: Option<f64>,
    /// The user's price of an hour; no machine has one by itself.
    pub price_per_hour: Option<f64>,
    /// Source of the figures.
    pub basis: Basis,
    /// The measured peak is one of tiles, of which models reach very different shares.
    pub has_tiles: bool,
    /// Why measured figures are uncertain, if they are.
    pub doubt: Option<Doubt>,
}

/// The last-level cache of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastLevel {
    /// Size in bytes.
    pub bytes: usize,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// Source of a machine's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The vendor's peaks and shares of them: the table in the module's documentation.
    Preset,
    /// Given by the user, and assumed to be reached.
    Given,
    /// Limits measured on this machine, and this engine's shares of them.
    Limits,
    /// Steps of this model measured on this machine.
    Steps,
}

impl Basis {
    /// Description for output.
    pub fn words(self) -> &'static str {
        match self {
            Basis::Preset => "the vendor's peaks and the efficiency that engines reach",
            Basis::Given => "the given peaks, assumed 100 % efficient",
            Basis::Limits => "limits measured here and the efficiency that this engine reaches",
            Basis::Steps => "steps of this model measured here",
        }
    }
}

impl Machine {
    /// The preset machines.
    pub fn known() -> impl Iterator<Item = Machine> {
        KNOWN.iter().map(Known::machine)
    }

    /// A preset machine by name, ignoring case.
    pub fn named(name: &str) -> Option<Machine> {
        KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(name)).map(Known::machine)
    }

    fn of(name: &str, flops: f64, bandwidth: f64, memory: Option<f64>) -> Machine {
        Machine {
            name: name.to_string(),
            bf16_flops: flops,
            int8_ops: flops,
            bandwidth,
            flops_share: 1.0,
            bandwidth_share: 1.0,
            step_overhead: 0.0,
            memory,
            rows: ROWS,
            count: 1,
            link: None,
            watts: None,
            price_per_hour: None,
            basis: Basis::Given,
            cache: None,
            has_tiles: false,
            doubt: None,
        }
    }

    /// A machine with given figures: operations and bytes per second that are reached, and bytes of memory.
    pub fn given(flops: f64, bandwidth: f64, memory: Option<f64>) -> Machine {
        Machine::of("given", flops, bandwidth, memory)
    }

    /// This machine, from its measured limits. The shares are those of docs/performance.md, for prompts of 512 tokens
    /// and for decode alone on the 0.5B shape: 90 % and 92 % with bf16 weights, 75 % and 92 % with int8, 70 % and 84 %
    /// with int4; those of tiles are an estimate, and a plan from them is not sure.
    pub fn here(limits: &Limits, weights: WeightClass, memory: Option<f64>) -> Machine {
        let kind = if weights == WeightClass::Bf16 { limits.bf16_kind } else { limits.int8_kind };
        let has_tiles = kernels::limits::has_tiles(kind);
        let (flops_share, bandwidth_share) = match weights {
            WeightClass::Bf16 if has_tiles => (0.20, 0.92),
            WeightClass::Int8 if has_tiles => (0.15, 0.92),
            WeightClass::Int4 if has_tiles => (0.15, 0.84),
            WeightClass::Bf16 => (0.90, 0.92),
            WeightClass::Int8 => (0.75, 0.92),
            WeightClass::Int4 => (0.70, 0.84),
        };
        Machine {
            int8_ops: limits.int8_ops,
            flops_share,
            bandwidth_share,
            step_overhead: OVERHEAD_HERE,
            rows: ROWS_HERE,
            basis: Basis::Limits,
            cache: Some(LastLevel { bytes: limits.cache_bytes, bandwidth: limits.cache_bandwidth }),
            has_tiles,
            doubt: limits.doubt(),
            ..Machine::of("here", limits.bf16_flops, limits.read_bandwidth, memory)
        }
    }

    /// `count` machines as one: a bound, not a prediction. Between them nothing is lost but the time of
    /// [`Machine::link`].
    pub fn times(self, count: usize) -> Machine {
        let n = count as f64;
        Machine {
            name: if count == 1 { self.name } else { format!("{count} x {}", self.name) },
            bf16_flops: self.bf16_flops * n,
            int8_ops: self.int8_ops * n,
            bandwidth: self.bandwidth * n,
            cache: self.cache.map(|cache| LastLevel { bytes: cache.bytes * count, bandwidth: cache.bandwidth * n }),
            memory: self.memory.map(|memory| memory * n),
            count: self.count * count,
            watts: self.watts.map(|watts| watts * n),
            price_per_hour: self.price_per_hour.map(|price| price * n),
            ..self
        }
    }

    /// Seconds in which the machines of an instance sum what a row has on each of them, in 16 bits: by a ring, in which
    /// each sends all of it but its own part twice (Patarasuk & Yuan, 2009). The time of the first byte is not counted.
    pub fn exchange_seconds(&self, shape: &ModelShape) -> f64 {
        let others = (self.count - 1) as f64 / self.count as f64;
        self.link.map_or(0.0, |link| 2.0 * others * 2.0 * shape.exchanged as f64 / link)
    }

    /// The peaks for this model: for its precisions, and for reading from the memory or cache that holds its weights.
    pub fn peaks(&self, demands: &Demands) -> Peaks {
        self.peaks_of(demands.weights, demands.kv_dtype, demands.weight_bytes)
    }

    /// [`peaks`](Self::peaks) for `weight_bytes` of weights of a class, and a precision of the KV cache.
    pub fn peaks_of(&self, weights: WeightClass, kv_dtype: KvDtype, weight_bytes: usize) -> Peaks {
        let cache = self.cache.filter(|cache| weight_bytes <= cache.bytes);
        Peaks {
            matrix: if weights == WeightClass::Bf16 { self.bf16_flops } else { self.int8_ops },
            attention: if kv_dtype == KvDtype::Bf16 { self.bf16_flops } else { self.int8_ops },
            bandwidth: cache.map_or(self.bandwidth, |cache| cache.bandwidth),
        }
    }

    /// The rates that an engine reaches: peaks times shares.
    pub fn reached(&self, demands: &Demands) -> Peaks {
        let Peaks { matrix, attention, bandwidth } = self.peaks(demands);
        Peaks {
            matrix: matrix * self.flops_share,
            attention: attention * self.flops_share,
            bandwidth: bandwidth * self.bandwidth_share,
        }
    }
}

/// A row of the table.
struct Known {
    name: &'static str,
    flops: f64,
    int8_ops: f64,
    bandwidth: f64,
    shares: [f64; 2],
    memory: f64,
    /// 0: unknown.
    watts: f64,
}

/// The presets: bf16 and int8 operations and bytes per second, the reached shares of operations and of bandwidth, bytes
/// of memory and watts.
const KNOWN: &[Known] = &[
    machine("a100", [312e12, 624e12, 2039e9], [0.62, 0.62], 80e9, 400.0),
    machine("h100", [989.4e12, 1978.9e12, 3350e9], [0.45, 0.55], 80e9, 700.0),
    machine("h200", [989.4e12, 1978.9e12, 4800e9], [0.45, 0.55], 141e9, 700.0),
    machine("b200", [2250e12, 4500e12, 8000e9], [0.45, 0.55], 180e9, 1000.0),
    machine("l40s", [362.05e12, 733e12, 864e9], [0.74, 0.86], 48e9, 350.0),
    machine("l4", [121e12, 242.5e12, 300e9], [0.74, 0.86], 24e9, 72.0),
    machine("t4", [65e12, 130e12, 320e9], [0.74, 0.86], 16e9, 70.0),
    machine("rtx-3090", [71e12, 284e12, 936e9], [0.74, 0.86], 24e9, 350.0),
    machine("rtx-4090", [165.2e12, 660.6e12, 1008e9], [0.74, 0.86], 24e9, 450.0),
    machine("rtx-5090", [209.5e12, 838e12, 1792e9], [0.74, 0.86], 32e9, 575.0),
    machine("gb10", [62.5e12, 250e12, 273e9], [0.74, 0.86], 128e9, 140.0),
    machine("mi300x", [1307.4e12, 2614.9e12, 5300e9], [0.45, 0.55], 192e9, 750.0),
    machine("mi355x", [2516.6e12, 5033.2e12, 8000e9], [0.45, 0.55], 288e9, 1400.0),
    machine("ryzen-ai-max-395", [59.4e12, 59.4e12, 256e9], [0.74, 0.86], 128e9, 120.0),
    machine("m2-ultra", [27.2e12, 27.2e12, 800e9], [0.74, 0.86], 192e9, 295.0),
    machine("xeon-8480", [114.7e12, 229.4e12, 307.2e9], [0.75, 0.90], 512e9, 350.0),
    machine("xeon-6980p", [262.1e12, 524.3e12, 844.8e9], [0.75, 0.90], 768e9, 500.0),
    machine("epyc-9654", [14.75e12, 29.5e12, 460.8e9], [0.75, 0.90], 768e9, 360.0),
    machine("epyc-9755", [44.2e12, 88.5e12, 576e9], [0.75, 0.90], 768e9, 500.0),
    machine("ryzen-9950x", [8.81e12, 17.6e12, 89.6e9], [0.75, 0.90], 64e9, 170.0),
    machine("epyc-2core", [236.4e9, 945.7e9, 37.0e9], [0.90, 0.92], 8e9, 0.0),
];

const fn machine(name: &'static str, peaks: [f64; 3], shares: [f64; 2], memory: f64, watts: f64) -> Known {
    let [flops, int8_ops, bandwidth] = peaks;
    Known { name, flops, int8_ops, bandwidth, shares, memory, watts }
}

impl Known {
    fn machine(&self) -> Machine {
        let [flops_share, bandwidth_share] = self.shares;
        Machine {
            int8_ops: self.int8_ops,
            flops_share,
            bandwidth_share,
            step_overhead: GPU_STEP_OVERHEAD,
            watts: Some(self.watts).filter(|&watts| watts > 0.0),
            basis: Basis::Preset,
            ..Machine::of(self.name, self.flops, self.bandwidth, Some(self.memory))
        }
    }
}
