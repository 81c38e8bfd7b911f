//! What a machine can do: a known one, one of given figures, or the one at hand as it was measured.
//!
//! Peaks are the vendors' published dense figures (no sparsity) for bf16 with sums in 32 bits and for int8, and their
//! memory bandwidth. The shares say how much of them a serving engine gets, and stand on measurements where there are
//! any:
//!
//! | machine | peaks | shares |
//! | --- | --- | --- |
//! | a100, h100 | NVIDIA's data sheets, SXM, 80 GB | Llama-2-70B on two GPUs, prompts of 1k to 8k tokens and decode at batch 1, in the data of Splitwise (Patel et al., ISCA 2024): of an engine of 2023, so newer ones get more |
//! | h200 | NVIDIA's data sheet | the H100's: the same chip with faster memory |
//! | b200 | NVIDIA's data sheet of HGX B200, an eighth, at 1,000 W; 180 of 192 GB are enabled there | not measured: the H100's |
//! | l40s | NVIDIA's data sheet | those of an RTX PRO 6000 with vLLM 0.19, by the layer profiles of LLMServingSim (Cho et al., IISWC 2024): also one card with GDDR |
//! | l4, t4 | NVIDIA's data sheets; a T4 has fp16 and no bf16 | not measured: the L40S's |
//! | rtx-3090, rtx-4090, rtx-5090 | the appendices of NVIDIA's white papers on GA102, Ada and RTX Blackwell: tensor cores with sums in 32 bits, half of what they do with sums in 16 | not measured: the L40S's |
//! | mi300x | AMD's data sheet | not measured: the H100's |
//! | m2-ultra | Apple's page of the Mac Pro: 76 GPU cores, 27.2 TFLOP/s; they multiply nothing faster in fewer bits. Of M3 and later Apple says the bandwidth and no operations, so they are not in the list | not measured: the L40S's |
//! | xeon-8480 | Intel: 56 cores at 2.0 GHz with 1,024 bf16 operations per cycle (AMX), twice as many of int8, 8 channels of DDR5-4800 | this engine's on another CPU (docs/performance.md) |
//! | epyc-9654 | AMD: 96 cores of Zen 4 at 2.4 GHz, AVX-512 on 256-bit units: 64 bf16 and 128 int8 operations per cycle (VDPBF16PS, VPDPBUSD); 12 channels of DDR5-4800 | this engine's on another CPU |
//! | ryzen-9950x | AMD: 16 cores of Zen 5 at 4.3 GHz with units of 512 bits: 128 bf16 and 256 int8 operations per cycle; 2 channels of DDR5-5600 | this engine's on another CPU |
//! | epyc-2core | measured by `lab`: 2 cores of a virtual machine without instructions for bf16 | measured: docs/performance.md |
//!
//! int8 means int8 weights and activations, which is what this engine computes with int8 and int4 weights alike. Who
//! unpacks 4-bit weights to 16 bits on the way (as most engines on GPUs do) has the bf16 peak.
//!
//! A step's overhead on a GPU is what the measured steps of vLLM 0.19 take beyond their layers: about a millisecond
//! (docs/performance.md, section Simulator).

use kernels::limits::{Doubt, Limits};
use kernels::{KvDtype, WeightClass};

use crate::demands::{Demands, PassWork};
use crate::limits::Peaks;

/// Rows of a pass over a prompt on a machine whose engine is not known: what the simulator takes.
const ROWS: usize = 2048;
/// Share of a machine's memory that weights and cache may take: the rest is for activations and the system.
pub const MEMORY_SHARE: f64 = 0.88;
/// What `serve` takes here.
pub const ROWS_HERE: usize = 512;
/// Seconds of a step of an engine on a GPU beyond its passes.
const OVERHEAD_OF_ENGINES: f64 = 1e-3;
/// Seconds of a step here beyond its passes.
const OVERHEAD_HERE: f64 = 1e-4;

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// For people.
    pub name: String,
    /// Operations per second at the precision of bf16 weights.
    pub bf16_flops: f64,
    /// Of 8-bit and 4-bit weights.
    pub int8_ops: f64,
    /// Bytes per second from memory.
    pub bandwidth: f64,
    /// What its last level of cache holds and how fast it is; `None`: weights come from memory.
    pub cache: Option<LastLevel>,
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
    /// Why they are not sure, if they were measured and are not.
    pub doubt: Option<Doubt>,
}

/// The last level of a machine's cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastLevel {
    /// Bytes that it holds.
    pub bytes: usize,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// Where a machine's figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The vendor's peaks and measured shares of them: the table at the head.
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
            Basis::Preset => "the vendor's peaks and the efficiency that engines reach",
            Basis::Given => "the given peaks, assumed 100 % efficient",
            Basis::Limits => "limits measured here and the efficiency that this engine reaches",
            Basis::Steps => "steps of this model measured here",
        }
    }
}

impl Machine {
    /// The machines that are known by name.
    pub fn known() -> impl Iterator<Item = Machine> {
        KNOWN.iter().map(Known::machine)
    }

    /// A known machine; upper and lower case are the same.
    pub fn named(name: &str) -> Option<Machine> {
        KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(name)).map(Known::machine)
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
            cache: None,
            doubt: None,
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
            cache: Some(LastLevel { bytes: limits.cache_bytes, bandwidth: limits.cache_bandwidth }),
            doubt: limits.doubt(),
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
            cache: self.cache.map(|cache| LastLevel { bytes: cache.bytes * count, bandwidth: cache.bandwidth * n }),
            memory: self.memory.map(|memory| memory * n),
            ..self
        }
    }

    /// What it can do at most with this model: for its classes, and for reading from where its weights are.
    pub fn peaks(&self, demands: &Demands) -> Peaks {
        self.peaks_of(demands.weights, demands.kv_dtype, demands.weight_bytes)
    }

    /// The same for weights of this class that take so many bytes, and keys of this type.
    pub fn peaks_of(&self, weights: WeightClass, kv_dtype: KvDtype, weight_bytes: usize) -> Peaks {
        let cache = self.cache.filter(|cache| weight_bytes <= cache.bytes);
        Peaks {
            matrix: if weights == WeightClass::Bf16 { self.bf16_flops } else { self.int8_ops },
            attention: if kv_dtype == KvDtype::Bf16 { self.bf16_flops } else { self.int8_ops },
            bandwidth: cache.map_or(self.bandwidth, |cache| cache.bandwidth),
        }
    }

    /// The same machine, once a step of this model has shown that it can do more: see [`Peaks::raised_by`].
    pub fn raised_by(self, demands: &Demands, work: &PassWork, seconds: f64) -> Machine {
        let known = self.peaks(demands);
        let raised = known.raised_by(work, seconds);
        let (compute, memory) = (raised.matrix / known.matrix, raised.bandwidth / known.bandwidth);
        Machine {
            bf16_flops: self.bf16_flops * compute,
            int8_ops: self.int8_ops * compute,
            bandwidth: self.bandwidth * memory,
            cache: self.cache.map(|cache| LastLevel { bandwidth: cache.bandwidth * memory, ..cache }),
            ..self
        }
    }

    /// Of the peaks, what is reached.
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
}

/// Every known machine: bf16 and int8 operations and bytes per second, the shares that are reached of the first two and
/// of the last, bytes of memory.
const KNOWN: &[Known] = &[
    machine("a100", [312e12, 624e12, 2039e9], [0.62, 0.62], 80e9),
    machine("h100", [989.4e12, 1978.9e12, 3350e9], [0.45, 0.55], 80e9),
    machine("h200", [989.4e12, 1978.9e12, 4800e9], [0.45, 0.55], 141e9),
    machine("b200", [2250e12, 4500e12, 8000e9], [0.45, 0.55], 180e9),
    machine("l40s", [362.05e12, 733e12, 864e9], [0.74, 0.86], 48e9),
    machine("l4", [121e12, 242.5e12, 300e9], [0.74, 0.86], 24e9),
    machine("t4", [65e12, 130e12, 320e9], [0.74, 0.86], 16e9),
    machine("rtx-3090", [71e12, 284e12, 936e9], [0.74, 0.86], 24e9),
    machine("rtx-4090", [165.2e12, 660.6e12, 1008e9], [0.74, 0.86], 24e9),
    machine("rtx-5090", [209.5e12, 838e12, 1792e9], [0.74, 0.86], 32e9),
    machine("mi300x", [1307.4e12, 2614.9e12, 5300e9], [0.45, 0.55], 192e9),
    machine("m2-ultra", [27.2e12, 27.2e12, 800e9], [0.74, 0.86], 192e9),
    machine("xeon-8480", [114.7e12, 229.4e12, 307.2e9], [0.75, 0.90], 512e9),
    machine("epyc-9654", [14.75e12, 29.5e12, 460.8e9], [0.75, 0.90], 768e9),
    machine("ryzen-9950x", [8.81e12, 17.6e12, 89.6e9], [0.75, 0.90], 64e9),
    machine("epyc-2core", [236.4e9, 945.7e9, 37.0e9], [0.90, 0.92], 8e9),
];

const fn machine(name: &'static str, peaks: [f64; 3], shares: [f64; 2], memory: f64) -> Known {
    let [flops, int8_ops, bandwidth] = peaks;
    Known { name, flops, int8_ops, bandwidth, shares, memory }
}

impl Known {
    fn machine(&self) -> Machine {
        let [flops_share, bandwidth_share] = self.shares;
        Machine {
            name: self.name.to_string(),
            bf16_flops: self.flops,
            int8_ops: self.int8_ops,
            bandwidth: self.bandwidth,
            flops_share,
            bandwidth_share,
            step_overhead: OVERHEAD_OF_ENGINES,
            memory: Some(self.memory),
            rows: ROWS,
            basis: Basis::Preset,
            cache: None,
            doubt: None,
        }
    }
}
