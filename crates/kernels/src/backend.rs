//! The operations of a transformer, over rows in the device's memory.
//!
//! ```text
//! load    rows, vector, routes      allocates all memory of a pass, once
//! step    begin(StepArrays)         uploads the step's inputs from the host
//!         embed, rms_norm, linear, rotate_and_store, attend, ...     enqueued in order; none returns a result
//!         submit                    the host has enqueued everything
//!         wait, read, read_best     the blocking calls; `read` copies f32 rows to the host, `write` copies them back
//! ```
//! The calls of the last two lines, and [`HostBuffer::bytes`](crate::HostBuffer::bytes), are the doors: only they
//! return a [`DeviceError`], and on a lost device each does, from then on. An operation on a lost device does nothing.
//!
//! Operations take device rows and a row count, never host memory, and take effect in the order of the calls. A device
//! may queue them and compute later; a CPU computes each immediately, and `wait` is a no-op.
//!
//! Mixtures of experts add a third blocking call, where [`Backend::add_routed`] does not take all of a layer together:
//! [`Backend::num_routed`]. The number of rows per expert determines the
//! next operations. A device that launches from counts in its own memory may return the upper bound, the rows of the
//! step, without synchronizing: its operations on routed rows use the true counts.

use crate::device::{Device, DeviceError};
use crate::mem::OutOfMemory;
use crate::routing::RoutingRule;
use crate::sampling::Candidate;
use crate::states::StateSpan;
use crate::{
    Activation, AttentionRule, AttentionSpan, Convolution, DeltaRows, DeltaRule, GatedConvolution, HeadColumns,
    HeadLayout, HeadNorms, Latents, Mamba, Norm, Out, RopeTable,
};
use std::borrow::Borrow;
use std::ops::Range;

/// Inputs of a step, in flat arrays. All but `spans`, `states`, `wanted` and `listed` have one element per
/// row.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepArrays<'a> {
    /// Token ids.
    pub token_ids: &'a [u32],
    /// Positions in their sequences.
    pub positions: &'a [u32],
    /// `block * block_size + offset` of each token's cache slot. All distinct.
    pub slots: &'a [u32],
    /// Rows grouped by sequence, in row order, with the block table of each.
    pub spans: &'a [AttentionSpan<'a>],
    /// The same rows by sequence, with the states before and after them. Empty for models without states.
    pub states: &'a [StateSpan<'a>],
    /// Rows whose logits are needed, in output order.
    pub wanted: &'a [u32],
    /// Concatenated lists of row indices: an operation that applies to some rows only (an adapter) takes a range of
    /// this. Indices into the rows or into the wanted rows, depending on the operation.
    pub listed: &'a [u32],
}

/// The part of some rows that an elementwise operation covers: the first `rows`, each of `width` elements, contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of rows, from the first.
    pub rows: usize,
    /// Elements per row.
    pub width: usize,
}

impl Extent {
    /// Total number of elements.
    pub fn numbers(self) -> usize {
        self.rows * self.width
    }
}

/// Processing of fused q/k/v rows between their product and attention. `V`: the backend's vectors.
#[derive(Clone, Copy)]
pub struct Rotation<'a, V> {
    /// Shape of a row.
    pub layout: HeadLayout,
    /// Norms of heads.
    pub head_norms: HeadNorms<'a, V>,
    /// See [`RotateAndStore::rope`](crate::RotateAndStore::rope).
    pub rope: Option<&'a RopeTable<V>>,
    /// Layer index in the cache.
    pub layer: usize,
}

/// Attention of one layer. `V`: the backend's vectors.
#[derive(Debug)]
pub struct AttentionLayer<'a, V> {
    /// Shape of a q/k/v row.
    pub layout: HeadLayout,
    /// Mask and score function.
    pub rule: AttentionRule,
    /// See [`Attention::sinks`](crate::Attention::sinks).
    pub sinks: Option<&'a V>,
    /// Layer index in the cache.
    pub layer: usize,
}

impl<V> Clone for AttentionLayer<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for AttentionLayer<'_, V> {}

/// An expert as [`Backend::add_routed`] takes it. `M`, `V`: the backend's matrices and vectors.
#[derive(Clone, Copy)]
pub struct RoutedMlp<'a, M, V> {
    /// Its two products, with their biases.
    pub products: [(&'a M, Option<&'a V>); 2],
    /// Between them: of [`Out::Gated`], or of all that the first one gives.
    pub activation: Activation,
    /// Which of the two.
    pub is_gated: bool,
    /// Of its results.
    pub factor: Option<f32>,
}

/// The operations of a transformer. [`Reference`](crate::Reference) is their definition; every implementation returns
/// the same bits. Backends with rows in host memory implement [`HostBackend`](crate::HostBackend) instead.
///
/// The operation's operand (a matrix, a norm, a head layout) determines the width of a row, whatever width its memory
/// was allocated for; rows are contiguous without gaps.
///
/// Methods panic when shapes disagree: that is a bug in the caller (the model) which no input can cause.
pub trait Backend: Device {
    /// f32 rows in device memory.
    type Rows: Send + 'static;
    /// Norm weights, a bias or a rotation table in device memory: uploaded once, at load.
    type Vector: Send + Sync + 'static;
    /// The uploaded inputs of a step.
    type Step<'a>;
    /// Expert assignments of rows, and their weights.
    type Routes: Send + 'static;
    /// The largest logits of rows, with their ids.
    type Best: Send + 'static;

    /// Allocates zeroed memory for at most `max_rows` rows of at most `width` elements. Either may be 0.
    fn rows(&self, max_rows: usize, width: usize) -> Result<Self::Rows, OutOfMemory>;

    /// Uploads a vector.
    fn vector(&self, numbers: &[f32]) -> Result<Self::Vector, OutOfMemory>;

    /// Bytes that a vector occupies.
    fn vector_bytes(&self, vector: &Self::Vector) -> usize;

    /// Allocates memory for routing at most `max_rows` rows.
    fn routes(&self, max_rows: usize, num_experts: usize, rule: RoutingRule) -> Result<Self::Routes, OutOfMemory>;

    /// Allocates memory for the `count` largest logits of each of at most `max_rows` rows.
    fn best(&self, max_rows: usize, count: usize) -> Result<Self::Best, OutOfMemory>;

    /// Uploads a step's arrays. The host may change them once the result is dropped. Two steps may be in use at a time.
    fn begin<'a>(&self, arrays: StepArrays<'a>) -> Self::Step<'a>;

    /// `out[i] = table[token_ids[i]]`, dequantized.
    fn embed(&self, step: &Self::Step<'_>, table: &Self::Matrix, out: &mut Self::Rows);

    /// RMS norm of `rows` (Zhang & Sennrich, 2019): `x / sqrt(mean(x^2) + eps) * weight`, into the first rows of `out`. The
    /// width is the length of `weight`.
    fn rms_norm(&self, x: &Self::Rows, rows: Range<usize>, weight: &Self::Vector, eps: f32, out: &mut Self::Rows);

    /// Layer norm of `rows` of `x` (Ba et al., 2016), see [`layer_norm`](crate::layer_norm::layer_norm), into the first rows
    /// of `out`. The width is the length of its weight.
    fn layer_norm(&self, x: &Self::Rows, rows: Range<usize>, norm: Norm<'_, Self::Vector>, out: &mut Self::Rows);

    /// `x = activation(x)`.
    fn activate(&self, activation: Activation, x: &mut Self::Rows, extent: Extent);

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
    /// `[rows, layout.qkv_width()]`; queries change in place, keys and values become undefined.
    fn rotate_and_store(
        &self,
        step: &Self::Step<'_>,
        how: Rotation<'_, Self::Vector>,
        qkv: &mut Self::Rows,
        kv: &mut Self::KvCache,
    );

    /// Attention of every row of the step; keys and values come from the cache only. `qkv`: the queries come first
    /// in each row, the rest is not read. `out`: `[rows, layout.out_width()]`.
    fn attend(
        &self,
        step: &Self::Step<'_>,
        how: AttentionLayer<'_, Self::Vector>,
        qkv: &Self::Rows,
        kv: &Self::KvCache,
        out: &mut Self::Rows,
    );

    /// Norms and rotates the keys of latent attention and writes them to the cache, and completes its queries, for every
    /// row of the step: see [`Latents`] and [`LatentRows`](crate::LatentRows). Keys become undefined.
    fn store_latents(
        &self,
        step: &Self::Step<'_>,
        how: Latents<'_, Self::Vector>,
        queries: &Self::Rows,
        keys_and_absorbed: (&mut Self::Rows, &mut Self::Rows),
        kv: &mut Self::KvCache,
    );

    /// A product for each head, of which there are as many as matrices: `out = x w^T` of its own numbers of the first
    /// `rows`, which are the first `in_features` of its columns of `x`, to the first `out_features` of those of `out`;
    /// other numbers stay. All matrices have one
    /// shape and class. Activations are converted head by head, as [`linear`](Backend::linear) converts rows.
    fn linear_by_head(
        &self,
        x: (&Self::Rows, HeadColumns),
        rows: usize,
        matrices: &[impl Borrow<Self::Matrix> + Sync],
        out: (&mut Self::Rows, HeadColumns),
    );

    /// A depthwise causal convolution of every row of the step, in place, see [`Convolution`]. Reads the states before
    /// the rows and writes those to keep.
    fn convolve(
        &self,
        step: &Self::Step<'_>,
        how: Convolution<'_, Self::Vector>,
        rows: &mut Self::Rows,
        states: &mut Self::States,
    );

    /// A convolution between gates of every row of the step, see [`GatedConvolution`]. `rows`: `[rows, 3 * channels]`;
    /// `out`: `[rows, channels]`.
    fn convolve_gated(
        &self,
        step: &Self::Step<'_>,
        how: GatedConvolution<'_, Self::Vector>,
        rows: &Self::Rows,
        states: &mut Self::States,
        out: &mut Self::Rows,
    );

    /// The gated delta rule with the norms before it and the gated norm behind it, for every row of the step: see
    /// [`DeltaRule`]. Rows, gates and decays become undefined; `out`: `[rows, value_width]`.
    fn delta_rule(
        &self,
        step: &Self::Step<'_>,
        how: DeltaRule<'_, Self::Vector>,
        rows: DeltaRows<'_, Self::Rows>,
        states: &mut Self::States,
        out: &mut Self::Rows,
    );

    /// A Mamba-2 layer behind its convolution, for every row of the step: see [`Mamba`]. Rows `[rows, row_width]` and steps
    /// `[rows, heads]` become undefined; `out`: `[rows, inner]`.
    fn mamba(
        &self,
        step: &Self::Step<'_>,
        how: Mamba<'_, Self::Vector>,
        rows_and_steps: (&mut Self::Rows, &mut Self::Rows),
        states: &mut Self::States,
        out: &mut Self::Rows,
    );

    /// The gates of attention's output: `x = x / (1 + exp(-gate))`, of the first `rows`, with a gate for each number or
    /// for each head. `qkv`: `[rows, layout.qkv_width()]`, the gates behind the queries; `x`:
    /// `[rows, layout.q_width()]`.
    fn gate_heads(&self, layout: HeadLayout, qkv: &Self::Rows, rows: usize, x: &mut Self::Rows);

    /// `x = y / (1 + exp(-gate)) + x`, with one gate per row: an expert that every row passes through. `gates`:
    /// `[rows, 1]`.
    fn add_gated(&self, gates: &Self::Rows, y: &Self::Rows, x: &mut Self::Rows, extent: Extent);

    /// `x = by * x`.
    fn scale(&self, by: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = max(-limit, min(x, limit))`.
    fn clamp(&self, limit: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = x * by`: of each row of `by`, which are `by_width` wide, the numbers from `at` on. `x`: `extent`.
    fn multiply(&self, x: &mut Self::Rows, extent: Extent, by_width_at: (&Self::Rows, usize, usize));

    /// `x = scale * y + x`, rounded once: for residual streams with scaled or post-normalized blocks.
    fn add_scaled(&self, y: &Self::Rows, scale: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = cap * tanh(x / cap)`.
    fn softcap(&self, cap: f32, x: &mut Self::Rows, extent: Extent);

    /// `x = 0`, even where it was NaN.
    fn clear(&self, x: &mut Self::Rows, extent: Extent);

    /// `out[i] = from[wanted[i]]`, rows of `width` elements.
    fn gather_wanted(&self, step: &Self::Step<'_>, from: &Self::Rows, width: usize, out: &mut Self::Rows);

    /// `out[row] += B (A x[row])`, see [`low_rank`](crate::low_rank), for the rows of each group: a range of
    /// [`StepArrays::listed`]. No row is in two groups. All groups' matrices have the widths of the rows of `x` and `out`.
    fn add_low_rank<'a>(
        &self,
        step: &Self::Step<'_>,
        x: &Self::Rows,
        groups: impl Iterator<Item = (&'a Self::LowRank, Range<usize>)> + Clone + Sync,
        out: &mut Self::Rows,
    );

    /// [`Out::Gated`] as a separate operation: `out = activation(gate) * up`. `gate_up`: `[rows, 2 * width]` in the order of
    /// [`gate_up_row`](crate::gate_up_row); `extent`: of `out`.
    fn gate(&self, activation: Activation, gate_up: &Self::Rows, extent: Extent, out: &mut Self::Rows);

    /// Routes the first `rows` of `logits` `[rows, num_experts]` to experts: see [`route`](crate::routing::route). `bias`
    /// is that of [`Routing`](crate::Routing).
    fn route(&self, logits: &Self::Rows, bias: Option<&Self::Vector>, rows: usize, routes: &mut Self::Routes);

    /// Number of rows routed to an expert; 0 on a lost device, which the next door reports. A device synchronizes here:
    /// once a layer, for all experts together.
    fn num_routed(&self, routes: &Self::Routes, expert: usize) -> usize;

    /// Copies the rows of `from` routed to an expert, in rising order, to the first rows of `out`; `width` elements each.
    fn gather_routed(
        &self,
        routes: &Self::Routes,
        expert: usize,
        from: &Self::Rows,
        width: usize,
        out: &mut Self::Rows,
    );

    /// The inverse of the gather: `x[row] = weight * y[i] + x[row]`, rounded once, for each row routed to the expert.
    fn scatter_routed(&self, routes: &Self::Routes, expert: usize, y: &Self::Rows, width: usize, x: &mut Self::Rows);

    /// Routes rows, of logits with a bias, and all experts together: of each with rows, by rising index, the gather
    /// from `from`, the products, and the scatter to `to`. False: nothing is done, and the caller asks for these one
    /// after another, as a CPU wants it.
    fn add_routed<'a>(
        &self,
        _logits: (&Self::Rows, Option<&Self::Vector>, usize),
        _routes: &mut Self::Routes,
        _expert: impl Fn(usize) -> RoutedMlp<'a, Self::Matrix, Self::Vector>,
        _from: &Self::Rows,
        _to: &mut Self::Rows,
    ) -> bool {
        false
    }

    /// Selects the `counts[i]` largest of row `i` of `logits` `[counts.len(), width]`, in the order of
    /// [`find_best`](crate::sampling::find_best); none where the count is 0.
    fn find_best(&self, logits: &Self::Rows, width: usize, counts: &[u32], out: &mut Self::Best);

    /// Starts the queued operations: no further one follows immediately. Does not block.
    fn submit(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Blocks until all queued operations are done.
    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Copies some rows of `width` elements to the host: `out` is `[rows.len(), width]`. Blocks until they are computed.
    fn read(&self, from: &Self::Rows, rows: Range<usize>, width: usize, out: &mut [f32]) -> Result<(), DeviceError>;

    /// Copies what was selected of a row to the host, in place of what `out` holds. Blocks until it is there. `logits`
    /// are as they were: where they are in host memory, nothing is selected before it is asked for.
    fn read_best(
        &self,
        from: &Self::Best,
        logits: &Self::Rows,
        row: usize,
        out: &mut Vec<Candidate>,
    ) -> Result<(), DeviceError>;

    /// Copies contiguous host rows to the first rows of `out`. The host may change `from` when this returns.
    fn write(&self, from: &[f32], out: &mut Self::Rows) -> Result<(), DeviceError>;
}
