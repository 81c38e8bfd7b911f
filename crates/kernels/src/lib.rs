//! All `unsafe` code for the CPU: packed weights, matrix products, attention, KV cache bytes, pinned threads.
//! This crate knows shapes; it has no notion of models or requests.
//!
//! ```text
//! trait Device           storage of weights and KV cache, device name and limits
//! trait Backend          the operations of a transformer, over rows in the device's memory
//! trait HostBackend      the same over slices of host memory; implies Backend
//!   Reference            the definition, in plain loops; runs on any CPU, and all other implementations are compared with it
//!   Float32              no rounding to narrower types: the baseline for the error of the other backends
//!   Cpu                  AVX2, AVX-512 and AMX paths chosen at start; always the same bits as Reference
//! ```
//!
//! # The contract: batch-invariant, bit-exact results
//!
//! The output bits of a row depend only on the weights, that row's token history and the definitions in this crate:
//! not on the other rows, the chunking of the rows, the thread count or the instruction set. Each definition below
//! therefore fixes the order of every floating-point operation, and each fast kernel repeats that order or works in
//! exact integers.
//!
//! Activations are `f32`, row-major `[rows, width]`. No function here allocates in a steady state.

pub mod accumulation_order;
mod arch;
pub mod attention;
pub mod backend;
pub mod convolution;
pub mod cpu;
pub mod cpu_time;
pub mod delta_rule;
pub mod device;
pub mod float32;
pub mod float_state;
mod gelu;
pub mod gemm;
pub mod host;
pub mod isa;
pub mod kv_cache;
pub mod latent;
pub mod layer_norm;
pub mod limits;
pub mod low_rank;
pub mod mamba;
pub mod mem;
pub mod memory_limits;
mod node_parts;
pub mod pointwise;
pub mod quant;
pub mod recording;
pub mod recurrence;
pub mod reference;
pub mod rope;
pub mod routing;
pub mod sampling;
mod simd;
mod spread;
pub mod states;
pub mod threads;

pub use accumulation_order::AccumulationOrder;
pub use backend::{AttentionLayer, Backend, Extent, Rotation, RoutedMlp, StepArrays};
pub use convolution::{Convolution, GatedConvolution};
pub use cpu::{Cpu, CpuError, CpuOptions};
pub use delta_rule::{DeltaRows, DeltaRule, DeltaShape};
pub use device::{Device, DeviceError, DeviceInfo, DeviceLimits, HostBuffer};
pub use float_state::DefaultFloats;
pub use float32::Float32;
pub use host::HostBackend;
pub use isa::Isa;
pub use kv_cache::{KvCache, KvDtype, KvShape};
pub use latent::{HeadColumns, LatentRows, LatentShape, Latents};
pub use layer_norm::Norm;
pub use limits::{Certainty, Doubt};
pub use low_rank::{LowRank, LowRankShape, LowRankSource};
pub use mamba::{Mamba, MambaShape, OutputNorm};
pub use mem::{Buffer, OutOfMemory};
pub use pointwise::{Activation, gate_up_row};
pub use quant::{
    BlockFormat, BlockSource, ByteSource, Image, Int4Rows, Int4Source, Int8Rows, Int8Source, MatrixShape, PackedMatrix,
    RowSource, WeightClass,
};
pub use reference::Reference;
pub use rope::{QueryGrowth, RopeScaling, RopeTable};
pub use routing::{Routes, Routing, RoutingRule, Scores};
pub use states::{StateSave, StateShape, StateSpan, States};
use std::ops::Range;

/// Layout of the heads of one attention layer in a row of the fused q/k/v product:
/// `[q head 0 .. q head num_heads | gates of the q heads, if any | k heads | v heads]`, heads `head_dim` wide each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; a multiple of 16.
    pub head_dim: usize,
    /// Gates of a query head's output, behind the queries of all heads: one for all its numbers, or `head_dim`, one for
    /// each; 0: none. See [`Backend::gate_heads`].
    pub gates: usize,
    /// A row has no keys and values: the layer reads those that another one stored (Gemma 3n: Gemma Team, 2025).
    pub queries_only: bool,
    /// A value is the first numbers of its key, this many, a multiple of 16, and is not stored again: latent attention
    /// (DeepSeek-AI, 2024). The keys of such a layer are no part of the fused row. `None`: values are as wide as keys.
    pub latent: Option<usize>,
}

impl HeadLayout {
    /// Width of a fused q/k/v row.
    pub fn qkv_width(&self) -> usize {
        self.keys_at() + if self.latent.is_some() { 0 } else { 2 * self.kv_width() }
    }

    /// Width of a row's keys, and of its values.
    pub fn kv_width(&self) -> usize {
        if self.queries_only { 0 } else { self.num_kv_heads * self.head_dim }
    }

    /// Where the keys begin in a fused row.
    pub fn keys_at(&self) -> usize {
        self.num_heads * (self.head_dim + self.gates)
    }

    /// Width of a row's queries.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of a value of one head.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Width of the attention's output row.
    pub fn out_width(&self) -> usize {
        self.num_heads * self.value_dim()
    }
}

/// Destination and epilogue of [`Backend::linear`]. `R`: rows of a backend, or a slice.
pub enum Out<'a, R: ?Sized = [f32]> {
    /// `out = y`.
    Store(&'a mut R),
    /// `y` is a part of wider rows; their other numbers stay.
    StoreAt {
        /// `[rows, width]`.
        out: &'a mut R,
        /// Where `y` begins in a row.
        at: usize,
        /// Width of a row.
        width: usize,
    },
    /// `out = out + y` (one rounding): the residual stream.
    Add(&'a mut R),
    /// `out = activation(gate) * up`, half as wide as `y`: the middle of a gated MLP. The rows of the matrix and its
    /// bias are in the order of [`gate_up_row`], so that gate and up are combined while both are in registers.
    Gated(Activation, &'a mut R),
}

/// Norm of queries and keys, before rotation in most models, in some of values too; of the mean square but for one.
/// `V`: a vector of a backend, or a slice.
#[derive(Debug)]
pub enum HeadNorms<'a, V: ?Sized = [f32]> {
    /// No norm.
    None,
    /// Each head separately (Qwen3, Gemma 3): weights `[head_dim]`, the same for all heads.
    PerHead {
        /// Weights for queries.
        q: &'a V,
        /// Weights for keys.
        k: &'a V,
        /// Weights for values (Gemma 4), which do not rotate; `None`: they have no norm.
        v: Option<&'a V>,
        /// Added under the root.
        eps: f32,
    },
    /// Each head separately, behind the rotation (Hunyuan): weights `[head_dim]`.
    AfterRotation {
        /// Weights for queries.
        q: &'a V,
        /// Weights for keys.
        k: &'a V,
        /// Added under the root.
        eps: f32,
    },
    /// Each head separately, of the distance from its mean (Command R+): weights `[num_heads * head_dim]` and
    /// `[num_kv_heads * head_dim]`.
    Centered {
        /// Weights for queries.
        q: &'a V,
        /// Weights for keys.
        k: &'a V,
        /// Added under the root.
        eps: f32,
    },
    /// All heads of a row together (OLMo 2): weights `[num_heads * head_dim]` and `[num_kv_heads * head_dim]`.
    WholeWidth {
        /// Weights for queries.
        q: &'a V,
        /// Weights for keys.
        k: &'a V,
        /// Added under the root.
        eps: f32,
    },
}

impl<V: ?Sized> Clone for HeadNorms<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for HeadNorms<'_, V> {}

impl<'a, V: ?Sized> HeadNorms<'a, V> {
    /// The same norms with each weight mapped by `weight`.
    pub fn map<W: ?Sized>(self, weight: impl Fn(&'a V) -> &'a W) -> HeadNorms<'a, W> {
        match self {
            HeadNorms::None => HeadNorms::None,
            HeadNorms::PerHead { q, k, v, eps } => {
                HeadNorms::PerHead { q: weight(q), k: weight(k), v: v.map(weight), eps }
            }
            HeadNorms::AfterRotation { q, k, eps } => HeadNorms::AfterRotation { q: weight(q), k: weight(k), eps },
            HeadNorms::WholeWidth { q, k, eps } => HeadNorms::WholeWidth { q: weight(q), k: weight(k), eps },
            HeadNorms::Centered { q, k, eps } => HeadNorms::Centered { q: weight(q), k: weight(k), eps },
        }
    }
}

/// Processing of a fused q/k/v row before attention: norms of q and k, rotation, and the write of k and v to the cache.
pub struct RotateAndStore<'a> {
    /// f32 `[rows, layout.qkv_width()]`. Queries are normalized and rotated in place; keys and values become undefined.
    pub qkv: &'a mut [f32],
    /// Shape of a row.
    pub layout: HeadLayout,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms<'a>,
    /// Rotation by position of the first `rope.rotary_dim()` elements of each head; the others are unchanged. `None`: no
    /// rotation, as in layers without a position (NoPE: Kazemnejad et al., 2023; SmolLM3). Queries are multiplied by
    /// [`RopeTable::query_factor`] behind it.
    pub rope: Option<&'a RopeTable>,
    /// `[rows]`, the token's position in its sequence.
    pub positions: &'a [u32],
    /// `[rows]`, `block * block_size + offset` of the token's cache slot. All distinct.
    pub slots: &'a [u32],
    /// Layer index in the cache.
    pub layer: usize,
}

/// The rows of one sequence in a step: `rows` consecutive tokens from `start`, and its block table.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpan<'a> {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows: 1 for decode, a chunk's length for prefill.
    pub num_rows: usize,
    /// Position of the first row. Row `i` reads the cache at positions up to `start + i`, or of all rows of the span:
    /// see [`AttentionRule::both_ways`].
    pub start: usize,
    /// The sequence's blocks, covering at least `start + num_rows` tokens.
    pub blocks: &'a [u32],
}

/// How the scores of a layer become attention weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRule {
    /// Multiplies the products of queries and keys; above 0.
    pub scale: f32,
    /// `cap * tanh(score / cap)` of the scaled scores, which bounds them to `-cap..cap` (Gemma 2: Gemma Team, 2024).
    pub softcap: Option<f32>,
    /// Sliding window: a row sees positions less than `window` away, its own among them; at least 1. `None`: all.
    pub window: Option<usize>,
    /// Windows are chunks instead: a row sees those before it in its own, of positions from a multiple of `window` to
    /// the next (Llama 4).
    pub chunked: bool,
    /// A row sees the later rows of its span too (encoders: Devlin et al., 2018), not only positions up to its own.
    pub both_ways: bool,
}

impl AttentionRule {
    /// Full causal attention with scores divided by `sqrt(head_dim)` (Vaswani et al., 2017).
    pub fn of_width(head_dim: usize) -> AttentionRule {
        AttentionRule {
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: None,
            window: None,
            chunked: false,
            both_ways: false,
        }
    }

    /// Positions visible to the row at `position` of a span whose rows end before position `end`.
    pub fn seen(&self, position: usize, end: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| match self.chunked {
            true => position / window * window,
            false => (position + 1).saturating_sub(window),
        });
        let last = match (self.both_ways, self.window) {
            (false, _) => position + 1,
            (true, None) => end,
            (true, Some(window)) => position.saturating_add(window).min(end),
        };
        first..last
    }
}

/// Attention of the rows of a step over the cache.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// f32 `[rows, layout.qkv_width()]`, the queries first; the rest is not read.
    pub qkv: &'a [f32],
    /// Shape of a row.
    pub layout: HeadLayout,
    /// Mask and score function.
    pub rule: AttentionRule,
    /// `[num_heads]`: a logit of each query head that joins the softmax's sum and has no value (attention sinks: Xiao et
    /// al., 2023; learned, as in gpt-oss: OpenAI, 2025). `None`: weights sum to 1.
    pub sinks: Option<&'a [f32]>,
    /// Rows grouped by sequence, in row order.
    pub spans: &'a [AttentionSpan<'a>],
    /// Layer index in the cache.
    pub layer: usize,
}
