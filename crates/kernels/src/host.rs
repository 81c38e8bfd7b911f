//! Backends with rows in host memory: operations on slices, and one adapter from rows to slices for all of them.

use crate::backend::{AttentionLayer, Backend, Extent, Rotation, StepArrays};
use crate::device::{Device, DeviceError};
use crate::latent::by_head;
use crate::low_rank::Group;
use crate::mem::{Buffer, OutOfMemory};
use crate::quant::MatrixShape;
use crate::routing::{Routes, RoutingRule};
use crate::sampling::{Candidate, find_best};
use crate::states::StateSpan;
use crate::{
    Activation, Attention, Convolution, DeltaRows, DeltaRule, GatedConvolution, HeadColumns, HeadLayout, LatentRows,
    Latents, Mamba, Norm, Out, RotateAndStore, Routing,
};
use std::borrow::Borrow;
use std::ops::Range;

/// The operations of [`Backend`] on slices, whose lengths determine the number of rows. Each computes immediately.
/// Implementing this trait implements `Backend`.
///
/// Methods panic when shapes disagree.
pub trait HostBackend: Device {
    /// `out[i] = table[ids[i]]`, dequantized. `out`: `[ids.len(), in_features]`.
    fn embed(&self, table: &Self::Matrix, ids: &[u32], out: &mut [f32]);

    /// Root-mean-square norm of each row: `x / sqrt(mean(x^2) + eps) * weight` (Zhang & Sennrich, 2019).
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]);

    /// See [`layer_norm`](crate::layer_norm::layer_norm).
    fn layer_norm(&self, x: &[f32], norm: Norm<'_>, out: &mut [f32]);

    /// `x = activation(x)`.
    fn activate(&self, activation: Activation, x: &mut [f32]);

    /// `y = x w^T + bias` for each row of `x` `[rows, in_features]`; `y` `[rows, out_features]`, see [`Out`].
    fn linear(&self, x: &[f32], w: &Self::Matrix, bias: Option<&[f32]>, out: Out<'_>);

    /// `out[row] += B (A x[row])` for the rows of each group, see [`low_rank`](crate::low_rank). Rows of `x` and `out` are
    /// contiguous, with the widths of the groups' shapes, which all agree; no row is in two groups.
    fn add_low_rank<'a>(
        &self,
        x: &[f32],
        groups: impl Iterator<Item = Group<'a, Self::LowRank>> + Clone + Sync,
        out: &mut [f32],
    );

    /// See [`RotateAndStore`].
    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut Self::KvCache);

    /// Attention of every row over the cache. `out`: `[rows, layout.out_width()]`.
    fn attend(&self, args: Attention<'_>, kv: &Self::KvCache, out: &mut [f32]);

    /// See [`Latents`]. `slots`: as those of [`RotateAndStore`].
    fn store_latents(&self, how: Latents<'_>, rows: LatentRows<'_>, slots: &[u32], kv: &mut Self::KvCache);

    /// See [`Backend::linear_by_head`]. `x`, `out`: rows of the columns' widths.
    fn linear_by_head(
        &self,
        x: (&[f32], HeadColumns),
        matrices: &[impl Borrow<Self::Matrix> + Sync],
        out: (&mut [f32], HeadColumns),
    ) {
        let ((x, from), (out, to)) = (x, out);
        let MatrixShape { out_features, in_features } = self.shape(matrices[0].borrow());
        let rows = x.len() / from.width;
        let (mut heads, mut y) = (vec![0.0; matrices.len() * rows * in_features], vec![0.0; rows * out_features]);
        by_head(None, x, from, in_features, &mut heads);
        for ((head, matrix), x) in matrices.iter().enumerate().zip(heads.chunks_exact(rows * in_features)) {
            self.linear(x, matrix.borrow(), None, Out::Store(&mut y));
            for (out, y) in out.chunks_exact_mut(to.width).zip(y.chunks_exact(out_features)) {
                out[head * to.stride..][..out_features].copy_from_slice(y);
            }
        }
    }

    /// See [`Convolution`]. `rows`: `[rows, row_width]`.
    fn convolve(&self, how: Convolution<'_>, spans: &[StateSpan<'_>], rows: &mut [f32], states: &mut Self::States);

    /// See [`GatedConvolution`]. `rows`: `[rows, 3 * channels]`; `out`: `[rows, channels]`.
    fn convolve_gated(
        &self,
        how: GatedConvolution<'_>,
        spans: &[StateSpan<'_>],
        rows: &[f32],
        states: &mut Self::States,
        out: &mut [f32],
    );

    /// See [`DeltaRule`]. `out`: `[rows, value_width]`.
    fn delta_rule(
        &self,
        how: DeltaRule<'_>,
        spans: &[StateSpan<'_>],
        rows: DeltaRows<'_>,
        states: &mut Self::States,
        out: &mut [f32],
    );

    /// See [`Mamba`]. Rows `[rows, row_width]` and steps `[rows, heads]`; `out`: `[rows, inner]`.
    fn mamba(
        &self,
        how: Mamba<'_>,
        spans: &[StateSpan<'_>],
        rows_and_steps: (&mut [f32], &mut [f32]),
        states: &mut Self::States,
        out: &mut [f32],
    );

    /// `x = x / (1 + exp(-gate))`, the gates in `qkv` `[rows, layout.qkv_width()]`. `x`: `[rows, layout.q_width()]`.
    fn gate_heads(&self, layout: HeadLayout, qkv: &[f32], x: &mut [f32]);

    /// `x = y / (1 + exp(-gate)) + x` with one gate a row. `gates`: `[rows]`.
    fn add_gated(&self, gates: &[f32], y: &[f32], x: &mut [f32]);

    /// `x = by * x`.
    fn scale(&self, by: f32, x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x *= by);
    }

    /// `x = max(-limit, min(x, limit))`.
    fn clamp(&self, limit: f32, x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    }

    /// `x = x * by`, with the numbers of each row of `by` from `at` on: see [`multiply`](crate::pointwise::multiply).
    fn multiply(&self, x: &mut [f32], width: usize, by_width_at: (&[f32], usize, usize)) {
        crate::pointwise::multiply(x, width, by_width_at);
    }

    /// `x = scale * y + x`, rounded once.
    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]);

    /// `x = cap * tanh(x / cap)`.
    fn softcap(&self, cap: f32, x: &mut [f32]);

    /// [`Out::Gated`] as a separate operation. `gate_up`: `[rows, 2 * width]`, `out`: `[rows, width]`.
    fn gate(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]);

    /// The experts of each row and their weights: see [`route`](crate::routing::route).
    fn route(&self, logits: &[f32], how: Routing<'_>, chosen: &mut [u32], weights: &mut [f32]);

    /// `out[i] = from[rows[i]]`, rows of `width` elements.
    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]);

    /// `x[rows[i]] = weights[i] * y[i] + x[rows[i]]`, rounded once; rows of `width` elements; `rows` rises.
    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]);
}

impl<H: HostBackend> Backend for H {
    type Rows = Buffer<f32>;
    type Vector = Buffer<f32>;
    type Step<'a> = StepArrays<'a>;
    type Routes = Routes;
    /// Width of a row of logits, and counts.
    type Best = (usize, Vec<u32>);

    fn rows(&self, max_rows: usize, width: usize) -> Result<Buffer<f32>, OutOfMemory> {
        Buffer::zeroed(max_rows.checked_mul(width).ok_or(OutOfMemory { bytes: usize::MAX })?)
    }

    fn vector(&self, numbers: &[f32]) -> Result<Buffer<f32>, OutOfMemory> {
        let mut vector = Buffer::zeroed(numbers.len())?;
        vector.copy_from_slice(numbers);
        Ok(vector)
    }

    fn vector_bytes(&self, vector: &Buffer<f32>) -> usize {
        vector.bytes()
    }

    fn routes(&self, max_rows: usize, num_experts: usize, rule: RoutingRule) -> Result<Routes, OutOfMemory> {
        Routes::new(max_rows, num_experts, rule)
    }

    fn best(&self, max_rows: usize, _count: usize) -> Result<Self::Best, OutOfMemory> {
        Ok((0, Vec::with_capacity(max_rows)))
    }

    fn begin<'a>(&self, arrays: StepArrays<'a>) -> StepArrays<'a> {
        arrays
    }

    fn embed(&self, step: &StepArrays<'_>, table: &Self::Matrix, out: &mut Buffer<f32>) {
        let width = self.shape(table).in_features;
        HostBackend::embed(self, table, step.token_ids, &mut out[..step.token_ids.len() * width]);
    }

    fn rms_norm(&self, x: &Buffer<f32>, rows: Range<usize>, weight: &Buffer<f32>, eps: f32, out: &mut Buffer<f32>) {
        let width = weight.len();
        let (x, out) = (&x[rows.start * width..rows.end * width], &mut out[..rows.len() * width]);
        HostBackend::rms_norm(self, x, weight, eps, out);
    }

    fn layer_norm(&self, x: &Buffer<f32>, rows: Range<usize>, norm: Norm<'_, Buffer<f32>>, out: &mut Buffer<f32>) {
        let Norm { weight, bias, eps } = norm;
        let (width, norm) = (weight.len(), Norm { weight: &weight[..], bias: bias.map(|bias| &bias[..]), eps });
        let (x, out) = (&x[rows.start * width..rows.end * width], &mut out[..rows.len() * width]);
        HostBackend::layer_norm(self, x, norm, out);
    }

    fn activate(&self, activation: Activation, x: &mut Buffer<f32>, extent: Extent) {
        HostBackend::activate(self, activation, &mut x[..extent.numbers()]);
    }

    fn linear(
        &self,
        x: &Buffer<f32>,
        rows: usize,
        w: &Self::Matrix,
        bias: Option<&Buffer<f32>>,
        out: Out<'_, Buffer<f32>>,
    ) {
        let shape = self.shape(w);
        let out = match out {
            Out::Store(out) => Out::Store(&mut out[..rows * shape.out_features]),
            Out::StoreAt { out, at, width } => Out::StoreAt { out: &mut out[..rows * width], at, width },
            Out::Add(out) => Out::Add(&mut out[..rows * shape.out_features]),
            Out::Gated(activation, out) => Out::Gated(activation, &mut out[..rows * shape.out_features / 2]),
        };
        HostBackend::linear(self, &x[..rows * shape.in_features], w, bias.map(|bias| &bias[..]), out);
    }

    fn rotate_and_store(
        &self,
        step: &StepArrays<'_>,
        how: Rotation<'_, Buffer<f32>>,
        qkv: &mut Buffer<f32>,
        kv: &mut Self::KvCache,
    ) {
        let Rotation { layout, head_norms, rope, layer } = how;
        let &StepArrays { positions, slots, .. } = step;
        let qkv = &mut qkv[..positions.len() * layout.qkv_width()];
        let head_norms = head_norms.map(|weight| &weight[..]);
        let args = RotateAndStore { qkv, layout, head_norms, rope, positions, slots, layer };
        HostBackend::rotate_and_store(self, args, kv);
    }

    fn attend(
        &self,
        step: &StepArrays<'_>,
        how: AttentionLayer<'_, Buffer<f32>>,
        qkv: &Buffer<f32>,
        kv: &Self::KvCache,
        out: &mut Buffer<f32>,
    ) {
        let AttentionLayer { layout, rule, sinks, layer } = how;
        let (rows, spans) = (step.positions.len(), step.spans);
        let (qkv, out) = (&qkv[..rows * layout.qkv_width()], &mut out[..rows * layout.out_width()]);
        let sinks = sinks.map(|sinks| &sinks[..]);
        HostBackend::attend(self, Attention { qkv, layout, rule, sinks, spans, layer }, kv, out);
    }

    fn store_latents(
        &self,
        step: &StepArrays<'_>,
        how: Latents<'_>,
        queries: &Buffer<f32>,
        (keys, absorbed): (&mut Buffer<f32>, &mut Buffer<f32>),
        kv: &mut Self::KvCache,
    ) {
        let (&StepArrays { positions, slots, .. }, layout) = (step, how.shape.layout());
        let rows = positions.len();
        let (queries, keys) = (&queries[..rows * how.shape.query_width()], &mut keys[..rows * layout.head_dim]);
        let absorbed = &mut absorbed[..rows * layout.q_width()];
        HostBackend::store_latents(self, how, LatentRows { queries, keys, absorbed, positions }, slots, kv);
    }

    fn linear_by_head(
        &self,
        (x, from): (&Buffer<f32>, HeadColumns),
        rows: usize,
        matrices: &[impl Borrow<Self::Matrix> + Sync],
        (out, to): (&mut Buffer<f32>, HeadColumns),
    ) {
        let (x, out) = (&x[..rows * from.width], &mut out[..rows * to.width]);
        HostBackend::linear_by_head(self, (x, from), matrices, (out, to));
    }

    fn convolve(
        &self,
        step: &StepArrays<'_>,
        how: Convolution<'_, Buffer<f32>>,
        rows: &mut Buffer<f32>,
        states: &mut Self::States,
    ) {
        let rows = &mut rows[..step.positions.len() * how.row_width];
        HostBackend::convolve(self, how.map(|vector| &vector[..]), step.states, rows, states);
    }

    fn convolve_gated(
        &self,
        step: &StepArrays<'_>,
        how: GatedConvolution<'_, Buffer<f32>>,
        rows: &Buffer<f32>,
        states: &mut Self::States,
        out: &mut Buffer<f32>,
    ) {
        let numbers = step.positions.len() * how.channels;
        let (rows, out) = (&rows[..3 * numbers], &mut out[..numbers]);
        HostBackend::convolve_gated(self, how.map(|vector| &vector[..]), step.states, rows, states, out);
    }

    fn delta_rule(
        &self,
        step: &StepArrays<'_>,
        how: DeltaRule<'_, Buffer<f32>>,
        DeltaRows { rows, gates, decays }: DeltaRows<'_, Buffer<f32>>,
        states: &mut Self::States,
        out: &mut Buffer<f32>,
    ) {
        let (count, shape) = (step.positions.len(), how.shape);
        let rows = DeltaRows {
            rows: &mut rows[..count * shape.row_width()],
            gates: &mut gates[..count * shape.gates_width()],
            decays: decays.map(|decays| &mut decays[..count * shape.decays_width()]),
        };
        let out = &mut out[..count * shape.value_width()];
        HostBackend::delta_rule(self, how.map(|vector| &vector[..]), step.states, rows, states, out);
    }

    fn mamba(
        &self,
        step: &StepArrays<'_>,
        how: Mamba<'_, Buffer<f32>>,
        rows_and_steps: (&mut Buffer<f32>, &mut Buffer<f32>),
        states: &mut Self::States,
        out: &mut Buffer<f32>,
    ) {
        let ((rows, steps), count, shape) = (rows_and_steps, step.positions.len(), how.shape);
        let rows = &mut rows[..count * shape.row_width()];
        let steps = &mut steps[..count * shape.heads];
        let out = &mut out[..count * shape.inner()];
        HostBackend::mamba(self, how.map(|vector| &vector[..]), step.states, (rows, steps), states, out);
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &Buffer<f32>, rows: usize, x: &mut Buffer<f32>) {
        let (qkv, x) = (&qkv[..rows * layout.qkv_width()], &mut x[..rows * layout.q_width()]);
        HostBackend::gate_heads(self, layout, qkv, x);
    }

    fn add_gated(&self, gates: &Buffer<f32>, y: &Buffer<f32>, x: &mut Buffer<f32>, extent: Extent) {
        let numbers = extent.numbers();
        HostBackend::add_gated(self, &gates[..extent.rows], &y[..numbers], &mut x[..numbers]);
    }

    fn scale(&self, by: f32, x: &mut Buffer<f32>, extent: Extent) {
        HostBackend::scale(self, by, &mut x[..extent.numbers()]);
    }

    fn clamp(&self, limit: f32, x: &mut Buffer<f32>, extent: Extent) {
        HostBackend::clamp(self, limit, &mut x[..extent.numbers()]);
    }

    fn multiply(&self, x: &mut Buffer<f32>, extent: Extent, (by, by_width, at): (&Buffer<f32>, usize, usize)) {
        let by = &by[..extent.rows * by_width];
        HostBackend::multiply(self, &mut x[..extent.numbers()], extent.width, (by, by_width, at));
    }

    fn add_scaled(&self, y: &Buffer<f32>, scale: f32, x: &mut Buffer<f32>, extent: Extent) {
        HostBackend::add_scaled(self, &y[..extent.numbers()], scale, &mut x[..extent.numbers()]);
    }

    fn softcap(&self, cap: f32, x: &mut Buffer<f32>, extent: Extent) {
        HostBackend::softcap(self, cap, &mut x[..extent.numbers()]);
    }

    fn clear(&self, x: &mut Buffer<f32>, extent: Extent) {
        x[..extent.numbers()].fill(0.0);
    }

    fn gather_wanted(&self, step: &StepArrays<'_>, from: &Buffer<f32>, width: usize, out: &mut Buffer<f32>) {
        HostBackend::gather(self, from, width, step.wanted, &mut out[..step.wanted.len() * width]);
    }

    fn add_low_rank<'a>(
        &self,
        step: &StepArrays<'_>,
        x: &Buffer<f32>,
        groups: impl Iterator<Item = (&'a Self::LowRank, Range<usize>)> + Clone + Sync,
        out: &mut Buffer<f32>,
    ) {
        HostBackend::add_low_rank(self, x, groups.map(|(low_rank, list)| (low_rank, &step.listed[list])), out);
    }

    fn gate(&self, activation: Activation, gate_up: &Buffer<f32>, extent: Extent, out: &mut Buffer<f32>) {
        let numbers = extent.numbers();
        HostBackend::gate(self, activation, &gate_up[..2 * numbers], extent.width, &mut out[..numbers]);
    }

    fn route(&self, logits: &Buffer<f32>, bias: Option<&Buffer<f32>>, rows: usize, routes: &mut Routes) {
        routes.fill(rows, |num_experts, rule, chosen, weights| {
            let how = Routing { num_experts, rule, bias: bias.map(|bias| &bias[..]) };
            HostBackend::route(self, &logits[..rows * num_experts], how, chosen, weights);
        });
    }

    fn num_routed(&self, routes: &Routes, expert: usize) -> usize {
        routes.of(expert).0.len()
    }

    fn gather_routed(&self, routes: &Routes, expert: usize, from: &Buffer<f32>, width: usize, out: &mut Buffer<f32>) {
        let (rows, _) = routes.of(expert);
        HostBackend::gather(self, from, width, rows, &mut out[..rows.len() * width]);
        for (row, factor) in out.chunks_exact_mut(width).zip(routes.input_factors(expert)) {
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn scatter_routed(&self, routes: &Routes, expert: usize, y: &Buffer<f32>, width: usize, x: &mut Buffer<f32>) {
        let (rows, weights) = routes.of(expert);
        HostBackend::scatter_add(self, &y[..rows.len() * width], weights, rows, width, x);
    }

    fn find_best(&self, _: &Buffer<f32>, width: usize, counts: &[u32], (of, wanted): &mut Self::Best) {
        *of = width;
        wanted.clear();
        wanted.extend_from_slice(counts);
    }

    fn read_best(
        &self,
        (width, counts): &Self::Best,
        logits: &Buffer<f32>,
        row: usize,
        out: &mut Vec<Candidate>,
    ) -> Result<(), DeviceError> {
        find_best(&logits[row * width..][..*width], counts[row] as usize, out);
        Ok(())
    }

    fn read(&self, from: &Buffer<f32>, rows: Range<usize>, width: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        out.copy_from_slice(&from[rows.start * width..rows.end * width]);
        Ok(())
    }

    fn write(&self, from: &[f32], out: &mut Buffer<f32>) -> Result<(), DeviceError> {
        out[..from.len()].copy_from_slice(from);
        Ok(())
    }
}
