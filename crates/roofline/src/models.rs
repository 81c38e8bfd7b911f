//! Known machines and known models, in the units of the cost model: for planning, before anything was measured.
//!
//! Peaks are the vendors' published dense figures for bf16 and their memory bandwidth. The shares say how much of them a
//! serving engine gets, and stand on measurements where there are any:
//!
//! | machine | peaks | shares |
//! | --- | --- | --- |
//! | a100, h100 | NVIDIA's data sheets, SXM, 80 GB | Llama-2-70B on two GPUs, prompts of 1k to 8k tokens and decode at batch 1, in the data of Splitwise (Patel et al., ISCA 2024): of an engine of 2023, so newer ones get more |
//! | h200 | NVIDIA's data sheet | the H100's: the same chip with faster memory |
//! | l40s | NVIDIA's data sheet | those of an RTX PRO 6000 with vLLM 0.19, by the layer profiles of LLMServingSim (Cho et al., IISWC 2024): also one card with GDDR |
//! | mi300x | AMD's data sheet | not measured: the H100's |
//! | xeon-8480 | Intel: 56 cores at 2.0 GHz with 1,024 bf16 operations per cycle (AMX), 8 channels of DDR5-4800 | this engine's on another CPU (docs/performance.md) |
//! | epyc-2core | measured: docs/performance.md, bf16, 2 cores of a virtual machine | measured: the same page |
//!
//! A step's overhead on a GPU is what the measured steps of vLLM 0.19 take beyond their layers: about a millisecond
//! (docs/performance.md, section Simulator).

use crate::{Hardware, ModelCost};

/// A machine with its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Rates.
    pub hardware: Hardware,
    /// Bytes that hold weights and cache.
    pub memory: f64,
}

/// Every known machine.
pub const MACHINES: &[Machine] = &[
    machine("a100", 312e12, 2039e9, [0.62, 0.62], 80e9),
    machine("h100", 989.4e12, 3350e9, [0.45, 0.55], 80e9),
    machine("h200", 989.4e12, 4800e9, [0.45, 0.55], 141e9),
    machine("l40s", 362.05e12, 864e9, [0.74, 0.86], 48e9),
    machine("mi300x", 1307.4e12, 5300e9, [0.45, 0.55], 192e9),
    machine("xeon-8480", 114.7e12, 307.2e9, [0.75, 0.90], 512e9),
    machine("epyc-2core", 236.4e9, 37.0e9, [0.90, 0.92], 8e9),
];

const fn machine(name: &'static str, flops: f64, bandwidth: f64, shares: [f64; 2], memory: f64) -> Machine {
    let [flops_share, bandwidth_share] = shares;
    Machine { hardware: Hardware { name, flops, bandwidth, flops_share, bandwidth_share, step_overhead: 1e-3 }, memory }
}

impl Machine {
    /// The machine called `name`.
    pub fn named(name: &str) -> Option<Machine> {
        MACHINES.iter().find(|machine| machine.hardware.name == name).copied()
    }

    /// `count` of them as one, as if nothing were lost between them: a bound, not a prediction.
    pub fn times(self, count: usize) -> Machine {
        let Hardware { flops, bandwidth, .. } = self.hardware;
        let n = count as f64;
        Machine {
            hardware: Hardware { flops: flops * n, bandwidth: bandwidth * n, ..self.hardware },
            memory: self.memory * n,
        }
    }
}

/// A model as planning sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSize {
    /// What its steps cost.
    pub cost: ModelCost,
    /// Bytes of all weights in memory.
    pub resident_bytes: f64,
    /// Tokens that a sequence may have.
    pub max_model_len: usize,
}

/// Share of a machine's memory that weights and cache may take: the rest is for activations and the system.
pub const MEMORY_SHARE: f64 = 0.88;

impl ModelSize {
    /// Blocks of `block_size` tokens that fit into `memory` bytes beside the weights; 0 if not even those do.
    pub fn kv_blocks(&self, memory: f64, block_size: usize) -> usize {
        let left = memory * MEMORY_SHARE - self.resident_bytes;
        let blocks = (left / (self.cost.kv_bytes * block_size as f64)).max(0.0) as usize;
        // Slots are counted in 32 bits.
        blocks.min((u32::MAX as usize - 1) / block_size)
    }
}

/// The shape of a decoder: what its cost follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// For people.
    pub name: &'static str,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Tokens that a sequence may have.
    pub max_model_len: usize,
}

/// Every known model, from its published `config.json`.
pub const MODELS: &[ModelShape] = &[
    shape("llama-2-7b", [32, 4096, 11008], [32, 32, 128], 32_000, false, 4096),
    shape("llama-2-70b", [80, 8192, 28672], [64, 8, 128], 32_000, false, 4096),
    shape("llama-3.1-8b", [32, 4096, 14336], [32, 8, 128], 128_256, false, 131_072),
    shape("llama-3.1-70b", [80, 8192, 28672], [64, 8, 128], 128_256, false, 131_072),
    shape("llama-3.2-1b", [16, 2048, 8192], [32, 8, 64], 128_256, true, 131_072),
    shape("mistral-7b", [32, 4096, 14336], [32, 8, 128], 32_768, false, 32_768),
    shape("qwen2.5-0.5b", [24, 896, 4864], [14, 2, 64], 151_936, true, 32_768),
    shape("qwen2.5-7b", [28, 3584, 18944], [28, 4, 128], 152_064, false, 32_768),
];

const fn shape(
    name: &'static str,
    [layers, hidden, intermediate]: [usize; 3],
    [heads, kv_heads, head_dim]: [usize; 3],
    vocab: usize,
    tied: bool,
    max_model_len: usize,
) -> ModelShape {
    ModelShape { name, layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tied, max_model_len }
}

impl ModelShape {
    /// The model called `name`.
    pub fn named(name: &str) -> Option<ModelShape> {
        MODELS.iter().find(|shape| shape.name == name).copied()
    }

    /// Weights in the matrices of all layers.
    pub fn layer_parameters(&self) -> f64 {
        let ModelShape { layers, hidden, intermediate, heads, kv_heads, head_dim, .. } = *self;
        (layers * hidden * (2 * (heads + kv_heads) * head_dim + 3 * intermediate)) as f64
    }

    /// Its size with weights of `weight_bytes` each and keys and values of `kv_bytes` each.
    pub fn size(&self, weight_bytes: f64, kv_bytes: f64) -> ModelSize {
        let (layers, head) = (self.layer_parameters(), (self.vocab * self.hidden) as f64);
        let embeddings = if self.tied { head } else { 2.0 * head };
        ModelSize {
            cost: ModelCost {
                weight_bytes: (layers + head) * weight_bytes,
                row_flops: 2.0 * layers,
                logit_flops: 2.0 * head,
                pair_flops: (4 * self.layers * self.heads * self.head_dim) as f64,
                kv_bytes: (2 * self.layers * self.kv_heads * self.head_dim) as f64 * kv_bytes,
            },
            resident_bytes: (layers + embeddings) * weight_bytes,
            max_model_len: self.max_model_len,
        }
    }
}
