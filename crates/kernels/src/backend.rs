//! The operations a transformer needs, over rows that lie where the device computes.
//!
//! ```text
//! load    rows, vector, routes      all memory of a pass, once
//! step    begin(StepArrays)         what the host brings: one upload
//!         embed, rms_norm, linear, rotate_and_store, attend, ...     asked for one after the other; none answers
//!         submit                    the host is done asking
//!         wait, read                the two that block; `read` is where f32 rows come to the host, `write` the way back
//! ```
//! Operations name rows and how many of them count, never memory of the host. One takes effect after those asked for
//! before it. A device may collect them and compute later; a CPU computes each at once, and then nothing is left to
//! wait for.
//!
//! Mixtures of experts have a third: [`Backend::num_routed`]. How many rows go to an expert decides what the host asks
//! for next. A device that launches by counts in its own memory may answer with the most there can be, the rows of the
//! step, without being waited for: its operations on routed rows know better. One that cannot, and would be slow if
//! asked once a layer, should refuse such models at load.

use crate::device::Device;
use crate::mem::OutOfMemory;
use crate::routing::RoutingRule;
use crate::{Activation, AttentionRule, AttentionSpan, HeadLayout, HeadNorms, Out, RopeTable};
use std::ops::Range;

/// What a step brings, in flat arrays. All but `spans` and `wanted` have one number for each row.
#[derive(Clone, Copy, Debug)]
pub struct StepArrays<'a> {
    /// Tokens.
    pub token_ids: &'a [u32],
    /// Positions in their sequences.
    pub positions: &'a [u32],
    /// `block * block_size + offset` of each token's place in the cache. All distinct.
    pub slots: &'a [u32],
    /// The rows by sequence, in the order of their rows, with the blocks of each.
    pub spans: &'a [AttentionSpan<'a>],
    /// The rows whose logits are wanted, in the order of the output.
    pub wanted: &'a [u32],
    /// Lists of rows, one behind the other: what some rows have and others do not (an adapter) is computed for a range
    /// of this. Numbers of rows, or of wanted rows, as the operation is asked.
    pub listed: &'a [u32],
}

/// How much of some rows an operation treats that works on single numbers: the first `rows`, each of `width` numbers,
/// one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rows, from the first.
    pub rows: usize,
    /// Numbers of a row.
    pub width: usize,
}

impl Extent {
    /// Numbers in all.
    pub fn numbers(self) -> usize {
        self.rows * self.width
    }
}

/// What happens to fused q/k/v rows between their product and attention. `V`: the backend's vectors.
#[derive(Clone, Copy)]
pub struct Rotation<'a, V> {
    /// Shape of a row.
    pub layout: HeadLayout,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms<'a, V>,
    /// See [`RotateAndStore::rope`](crate::RotateAndStore::rope).
    pub rope: Option<&'a RopeTable<V>>,
    /// Which layer of the cache.
    pub layer: usize,
}

/// Attention of one layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionLayer {
    /// Shape of a q/k/v row.
    pub layout: HeadLayout,
    /// What a row sees, and how.
    pub rule: AttentionRule,
    /// Which layer of the cache.
    pub layer: usize,
}

/// The operations a transformer needs. [`Reference`](crate::Reference) is their definition; every implementation
/// returns the same bits. Whose rows are memory of this process implements [`HostBackend`](crate::HostBackend) instead.
///
/// A row is as wide as the operation says that writes or reads it (a matrix, a norm, a layout of heads), whatever width
/// its memory was made for, and rows lie one behind the other without gaps.
///
/// Methods panic when shapes disagree: the caller (the model) made an error that no input can cause. A device that is
/// lost panics where the host waits for it.
pub trait Backend: Device {
    /// f32 rows where this backend computes.
    type Rows: Send + 'static;
    /// Factors of a norm, a bias, a table of rotations: given once, at load.
    type Vector: Send + Sync + 'static;
    /// What a step brought, where this backend computes.
    type Step<'a>;
    /// Which rows go to which expert, and their weights.
    type Routes: Send + 'static;

    /// Memory for at most `max_rows` rows of at most `width` numbers, zeros at first. Either may be 0.
    fn rows(&self, max_rows: usize, width: usize) -> Result<Self::Rows, OutOfMemory>;

    /// Takes numbers over.
    fn vector(&self, numbers: &[f32]) -> Result<Self::Vector, OutOfMemory>;

    /// Bytes that they occupy.
    fn vector_bytes(&self, vector: &Self::Vector) -> usize;

    /// Memory for routing at most `max_rows` rows.
    fn routes(&self, max_rows: usize, num_experts: usize, rule: RoutingRule) -> Result<Self::Routes, OutOfMemory>;

    /// Brings a step's arrays. They may change when the result is gone.
    fn begin<'a>(&self, arrays: StepArrays<'a>) -> Self::Step<'a>;

    /// `out[i] = table[token_ids[i]]`, dequantized.
    fn embed(&self, step: &Self::Step<'_>, table: &Self::Matrix, out: &mut Self::Rows);

    /// Root-mean-square norm of some rows (Zhang & Sennrich, 2019): `x / sqrt(mean(x^2) + eps) * weight`, to the first
    /// rows of `out`. As wide as `weight` is long.
    fn rms_norm(&self, x: &Self::Rows, rows: Range<usize>, weight: &Self::Vector, eps: f32, out: &mut Self::Rows);

    /// `y = x w^T + bias` for the first `rows` of `x` `[rows, in_features]`; `y` `[rows, out_features]`, see [`Out`].
    /// Activations are converted as the weight class says (bf16 rounding, or int8 with one scale per row).
    fn linear(
        &self,
        x: &Self::Rows,
        rows: usize,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: Out<'_, Self::Rows>,
    );

    /// Norms of q and k, rotation by position, and the write of k and v to the cache, for every row of the step. `qkv`:
    /// `[rows, layout.qkv_width()]`; queries are changed in place, keys and values are left undefined.
    fn rotate_and_store(
        &self,
        step: &Self::Step<'_>,
        how: Rotation<'_, Self::Vector>,
        qkv: &mut Self::Rows,
        kv: &mut Self::KvCache,
    );

    /// Causal attention of every row of the step over the cache, and nothing but the cache. `qkv`: the queries in front
    /// of each row, the rest is not read. `out`: `[rows, layout.q_width()]`.
    fn attend(
        &self,
        step: &Self::Step<'_>,
        how: AttentionLayer,
        qkv: &Self::Rows,
        kv: &Self::KvCache,
        out: &mut Self::Rows,
    );

    /// `x = by * x`.
    fn scale(&self, by: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = scale * y + x`, rounded once: a residual stream whose blocks are scaled, or normed after they are computed.
    fn add_scaled(&self, y: &Self::Rows, scale: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = cap * tanh(x / cap)`.
    fn softcap(&self, cap: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = 0`, whatever it was.
    fn clear(&self, x: &mut Self::Rows, extent: Extent);

    /// `out[i] = from[wanted[i]]`, rows of `width` numbers.
    fn gather_wanted(&self, step: &Self::Step<'_>, from: &Self::Rows, width: usize, out: &mut Self::Rows);

    /// `out[row] += B (A x[row])`, see [`low_rank`](crate::low_rank), for the rows of each group: a range of
    /// [`StepArrays::listed`]. No row is in two groups. The groups' matrices have the same widths, which are those of
    /// the rows of `x` and `out`.
    fn add_low_rank<'a>(
        &self,
        step: &Self::Step<'_>,
        x: &Self::Rows,
        groups: impl Iterator<Item = (&'a Self::LowRank, Range<usize>)> + Clone + Sync,
        out: &mut Self::Rows,
    );

    /// What [`Out::Gated`] does, by itself: `out = activation(gate) * up`. `gate_up`: `[rows, 2 * width]` in the order of
    /// [`gate_up_row`](crate::gate_up_row); `extent`: of `out`.
    fn gate(&self, activation: Activation, gate_up: &Self::Rows, extent: Extent, out: &mut Self::Rows);

    /// Sends the first `rows` of `logits` `[rows, num_experts]` to experts: see [`route`](crate::routing::route).
    fn route(&self, logits: &Self::Rows, rows: usize, routes: &mut Self::Routes);

    /// How many rows go to an expert. A device waits for what was asked for: once a layer, for all experts together.
    fn num_routed(&self, routes: &Self::Routes, expert: usize) -> usize;

    /// The rows of `from` that go to an expert, rising, to the first of `out`; rows of `width` numbers.
    fn gather_routed(
        &self,
        routes: &Self::Routes,
        expert: usize,
        from: &Self::Rows,
        width: usize,
        out: &mut Self::Rows,
    );

    /// The way back: `x[row] = weight * y[i] + x[row]`, rounded once, for each row that goes to the expert.
    fn scatter_routed(&self, routes: &Self::Routes, expert: usize, y: &Self::Rows, width: usize, x: &mut Self::Rows);

    /// Nothing more is asked for at once: what was may begin. Does not block.
    fn submit(&self) {}

    /// Blocks until all that was asked for is done.
    fn wait(&self) {}

    /// Some rows of `width` numbers to the host: `out` is `[rows.len(), width]`. Blocks until they are computed.
    fn read(&self, from: &Self::Rows, rows: Range<usize>, width: usize, out: &mut [f32]);

    /// The way back: numbers of the host, rows one behind the other, to the first rows of `out`. They may change when
    /// this returns.
    fn write(&self, from: &[f32], out: &mut Self::Rows);
}
