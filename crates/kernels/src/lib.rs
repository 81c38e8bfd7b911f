//! Every line of CPU `unsafe`: packed weights, matrix products, attention, the bytes of the KV cache, pinned threads.
//! This crate knows shapes, not models and not requests.
//!
//! ```text
//! trait Backend          the operations a transformer needs
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
pub mod cpu;
pub mod float32;
pub mod gemm;
pub mod isa;
pub mod kv_cache;
mod lanes;
pub mod limits;
pub mod mem;
pub mod pointwise;
pub mod quant;
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
pub use cpu::{Cpu, CpuError, CpuOptions};
pub use float32::Float32;
pub use isa::Isa;
pub use kv_cache::{KvCache, KvDtype, KvShape};
pub use mem::OutOfMemory;
pub use pointwise::{Activation, gate_up_row};
pub use quant::{
    BlockFormat, BlockSource, ByteSource, Image, Int4Rows, Int4Source, Int8Rows, Int8Source, MatrixShape, PackedMatrix,
    RowSource, WeightClass,
};
pub use reference::Reference;
pub use rope::{RopeScaling, RopeTable};
pub use routing::RoutingRule;

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

/// Where [`Backend::linear`] puts its result.
pub enum Out<'a> {
    /// `out = y`.
    Store(&'a mut [f32]),
    /// `out = out + y` (one rounding): the residual stream.
    Add(&'a mut [f32]),
    /// `out = activation(gate) * up`, half as wide as `y`: the middle of a gated MLP. The rows of the matrix and its bias are in
    /// the order of [`gate_up_row`], so that a number meets its factor while both are in registers' reach.
    Gated(Activation, &'a mut [f32]),
}

/// A root-mean-square norm of queries and keys before rotation; values are never normed.
#[derive(Clone, Copy, Debug)]
pub enum HeadNorms<'a> {
    /// None.
    None,
    /// Each head by itself (Qwen3, Gemma 3): weights `[head_dim]`, the same for all heads.
    PerHead {
        /// Of queries.
        q: &'a [f32],
        /// Of keys.
        k: &'a [f32],
        /// Added under the root.
        eps: f32,
    },
    /// All heads of a row together (OLMo 2): weights `[num_heads * head_dim]` and `[num_kv_heads * head_dim]`.
    WholeWidth {
        /// Of queries.
        q: &'a [f32],
        /// Of keys.
        k: &'a [f32],
        /// Added under the root.
        eps: f32,
    },
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

/// The operations a transformer needs. `Reference` is their definition; every implementation returns the same bits.
///
/// Methods panic when shapes disagree: the caller (the model) made an error that no input can cause.
pub trait Backend: Send + Sync + 'static {
    /// A weight matrix in the backend's packed layout.
    type Matrix: Send + Sync + 'static;
    /// The KV cache's bytes.
    type KvCache: Send + 'static;

    /// For people: instruction set and threads, e.g. `avx512 (vnni), 2 threads`.
    fn describe(&self) -> String;

    /// Makes the calling thread the one that computes from now on; a backend may pin it to a core.
    fn adopt_thread(&self) {}

    /// Packs a matrix `[out_features, in_features]` once, at load. Rows come from `rows`, exact f32 values.
    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix that is int8 already; see [`PackedMatrix::pack_int8`].
    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix that is int4 already; see [`PackedMatrix::pack_int4`].
    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix in the groups of a file; see [`PackedMatrix::pack_blocks`].
    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory>;

    /// The bytes of a packed matrix as they lie in memory; see [`PackedMatrix::image`]. `None`: this backend has no images.
    fn image(&self, _matrix: &Self::Matrix) -> Option<Image> {
        None
    }

    /// The matrix of an image; see [`PackedMatrix::restore`]. `None`: no images, or no memory.
    fn restore(&self, _shape: MatrixShape, _class: WeightClass, _source: &ByteSource<'_>) -> Option<Self::Matrix> {
        None
    }

    /// Bytes that a packed matrix occupies, padding included: what one decode step reads of it.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// A zeroed cache.
    fn kv_cache(&self, shape: KvShape) -> Result<Self::KvCache, OutOfMemory>;

    /// `out[i] = table[ids[i]]`, dequantized. `out`: `[ids.len(), in_features]`.
    fn embed(&self, table: &Self::Matrix, ids: &[u32], out: &mut [f32]);

    /// Root-mean-square norm of each row: `x / sqrt(mean(x^2) + eps) * weight` (Zhang & Sennrich, 2019).
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);

    /// `y = x w^T + bias` for each row of `x` `[rows, in_features]`; `y` `[rows, out_features]`, see [`Out`].
    /// Activations are converted as the weight class says (bf16 rounding, or int8 with one scale per row).
    fn linear(&self, x: &[f32], w: &Self::Matrix, bias: Option<&[f32]>, out: Out<'_>);

    /// See [`RotateAndStore`].
    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut Self::KvCache);

    /// Causal attention of every row over the cache, and nothing but the cache. `out`: `[rows, layout.q_width()]`.
    fn attend(&self, args: Attention<'_>, kv: &Self::KvCache, out: &mut [f32]);

    /// `x = scale * y + x`, rounded once: a residual stream whose blocks are scaled, or normed after they are computed.
    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]);

    /// `x = cap * tanh(x / cap)`.
    fn softcap(&self, cap: f32, x: &mut [f32]);

    /// The experts of each row and their weights: see [`routing::route`].
    fn route(&self, logits: &[f32], num_experts: usize, rule: RoutingRule, chosen: &mut [u32], weights: &mut [f32]);

    /// `out[i] = from[rows[i]]`, rows of `width` numbers.
    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]);

    /// `x[rows[i]] = weights[i] * y[i] + x[rows[i]]`, rounded once; rows of `width` numbers; `rows` rises.
    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]);

    /// Copies whole blocks `(src, dst)` in every layer (copy-on-write).
    fn copy_blocks(&self, kv: &mut Self::KvCache, copies: &[(u32, u32)]);

    /// Bytes of one block of every layer, as this backend stores them.
    fn block_bytes(&self, kv: &Self::KvCache) -> usize;

    /// Copies one block's bytes of every layer out of the cache. `out`: [`Backend::block_bytes`] long.
    fn read_block(&self, kv: &Self::KvCache, block: u32, out: &mut [u8]);

    /// Copies one block's bytes of every layer into the cache: bytes that [`Backend::read_block`] gave, of any block.
    fn write_block(&self, kv: &mut Self::KvCache, block: u32, bytes: &[u8]);
}
