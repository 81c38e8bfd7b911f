//! Every line of CPU `unsafe`: packed weights, matrix products, attention, the bytes of the KV cache, pinned threads.
//! This crate knows shapes, not models and not requests.
//!
//! ```text
//! trait Device           what keeps weights and cache, and what it is called
//! trait Backend          the operations a transformer needs, over rows that lie wherever the device computes
//! trait HostBackend      the same over slices, for those whose rows are memory of this process; each is a Backend by that
//!   Reference            their definition, in plain loops; serves any CPU, judges every other implementation
//!   Float32              no rounding anywhere: what the error of the others is measured against
//!   Cpu                  AVX2, AVX-512 and AMX paths chosen at start; the same bits as Reference, always
//! ```
//!
//! # The contract: one token, one answer
//!
//! The output bits of a row are a function of the weights, that row's token history and the definitions in this crate,
//! and of nothing else: not of the other rows, not of how the rows were cut into chunks, not of the thread count, not
//! of the instruction set. Each definition below therefore fixes the order of every floating-point operation, and each
//! fast kernel repeats that order or works in exact integers.
//!
//! Activations are `f32`, row-major `[rows, width]`. No function here allocates in a steady state.

// What serves vectors and tiles has no caller on a CPU that is served by plain loops.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_mut, unused_variables))]

pub mod arithmetic;
pub mod attention;
pub mod backend;
pub mod cpu;
pub mod device;
pub mod disturbed;
pub mod float32;
pub mod gemm;
pub mod host;
pub mod isa;
pub mod kv_cache;
mod lanes;
pub mod limits;
pub mod low_rank;
pub mod mem;
mod parted;
pub mod pointwise;
pub mod quant;
pub mod recording;
pub mod reference;
pub mod room;
pub mod rope;
pub mod routing;
pub mod sampling;
mod spread;
pub mod threads;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use arithmetic::Arithmetic;
pub use backend::{AttentionLayer, Backend, Extent, Rotation, StepArrays};
pub use cpu::{Cpu, CpuError, CpuOptions};
pub use device::{Device, DeviceInfo, DeviceLimits};
pub use float32::Float32;
pub use host::HostBackend;
pub use isa::Isa;
pub use kv_cache::{KvCache, KvDtype, KvShape};
pub use limits::{Certainty, Doubt};
pub use low_rank::{LowRank, LowRankShape, LowRankSource};
pub use mem::{Buffer, OutOfMemory};
pub use pointwise::{Activation, gate_up_row};
pub use quant::{
    BlockFormat, BlockSource, ByteSource, Image, Int4Rows, Int4Source, Int8Rows, Int8Source, MatrixShape, PackedMatrix,
    RowSource, WeightClass,
};
pub use reference::Reference;
pub use rope::{RopeScaling, RopeTable};
pub use routing::{Routes, RoutingRule};

/// How the heads of one attention layer lie in a row of the fused q/k/v product:
/// `[q head 0 .. q head num_heads | k heads | v heads]`, each `head_dim` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; a multiple of 16.
    pub head_dim: usize,
}

impl HeadLayout {
    /// Width of a fused q/k/v row.
    pub fn qkv_width(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Width of the attention's output row.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }
}

/// Where [`Backend::linear`] puts its result. `R`: rows of a backend, or those of a slice.
pub enum Out<'a, R: ?Sized = [f32]> {
    /// `out = y`.
    Store(&'a mut R),
    /// `out = out + y` (one rounding): the residual stream.
    Add(&'a mut R),
    /// `out = activation(gate) * up`, half as wide as `y`: the middle of a gated MLP. The rows of the matrix and its
    /// bias are in the order of [`gate_up_row`], so that a number meets its factor while both are in registers' reach.
    Gated(Activation, &'a mut R),
}

/// A root-mean-square norm of queries and keys before rotation; values are never normed. `V`: a vector of
/// a backend, or a slice.
#[derive(Debug)]
pub enum HeadNorms<'a, V: ?Sized = [f32]> {
    /// None.
    None,
    /// Each head by itself (Qwen3, Gemma 3): weights `[head_dim]`, the same for all heads.
    PerHead {
        /// Of queries.
        q: &'a V,
        /// Of keys.
        k: &'a V,
        /// Added under the root.
        eps: f32,
    },
    /// All heads of a row together (OLMo 2): weights `[num_heads * head_dim]` and `[num_kv_heads * head_dim]`.
    WholeWidth {
        /// Of queries.
        q: &'a V,
        /// Of keys.
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
    /// The same norms with their weights seen as something else.
    pub fn map<W: ?Sized>(self, weight: impl Fn(&'a V) -> &'a W) -> HeadNorms<'a, W> {
        match self {
            HeadNorms::None => HeadNorms::None,
            HeadNorms::PerHead { q, k, eps } => HeadNorms::PerHead { q: weight(q), k: weight(k), eps },
            HeadNorms::WholeWidth { q, k, eps } => HeadNorms::WholeWidth { q: weight(q), k: weight(k), eps },
        }
    }
}

/// What happens to a fused q/k/v row before attention: norms of q and k, rotation, and the write of k and v to the
/// cache.
pub struct RotateAndStore<'a> {
    /// f32 `[rows, layout.qkv_width()]`. Queries are normed and rotated in place; keys and values are left undefined.
    pub qkv: &'a mut [f32],
    /// Shape of a row.
    pub layout: HeadLayout,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms<'a>,
    /// Rotation by position of the first `rope.rotary_dim()` numbers of each head; the others pass. `None`: all pass,
    /// as in layers without a position (NoPE: Kazemnejad et al., 2023; SmolLM3).
    pub rope: Option<&'a RopeTable>,
    /// `[rows]`, the token's position in its sequence.
    pub positions: &'a [u32],
    /// `[rows]`, `block * block_size + offset` of the token's place in the cache. All distinct.
    pub slots: &'a [u32],
    /// Which layer of the cache.
    pub layer: usize,
}

/// The rows of one sequence in a step: `rows` consecutive tokens from `start`, and its block table.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpan<'a> {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows: 1 for decode, a chunk's length for prefill.
    pub num_rows: usize,
    /// Position of the first row. Row `i` reads the cache at positions up to `start + i`.
    pub start: usize,
    /// The sequence's blocks, covering at least `start + num_rows` tokens.
    pub blocks: &'a [u32],
}

/// How the scores of a layer become weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRule {
    /// Multiplies the products of queries and keys; above 0.
    pub scale: f32,
    /// `cap * tanh(score / cap)` of the scaled scores, so that none leaves `-cap..cap` (Gemma 2: Gemma Team, 2024).
    pub softcap: Option<f32>,
    /// A row sees the last `window` positions, its own counted; at least 1. `None`: all up to its own.
    pub window: Option<usize>,
}

impl AttentionRule {
    /// Every earlier position, scores divided by the root of the head's width (Vaswani et al., 2017).
    pub fn of_width(head_dim: usize) -> AttentionRule {
        AttentionRule { scale: 1.0 / (head_dim as f32).sqrt(), softcap: None, window: None }
    }

    /// The first position that the row at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Causal attention of the rows of a step over the cache.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// f32 `[rows, layout.qkv_width()]`, the queries in front; the rest is not read.
    pub qkv: &'a [f32],
    /// Shape of a row.
    pub layout: HeadLayout,
    /// What a row sees, and how.
    pub rule: AttentionRule,
    /// The rows by sequence, in the order of their rows.
    pub spans: &'a [AttentionSpan<'a>],
    /// Which layer of the cache.
    pub layer: usize,
}
