//! A backend that computes in float32 and passes every product to a recorder, which may keep data of each matrix.
//!
//! ```text
//! x ──> float32 product ──> the pass goes on with it
//!  └──> recorder: the same product in a narrow class, sums of the inputs, ...
//! ```

use crate::convolution::{Convolution, GatedConvolution};
use crate::delta_rule::{DeltaRows, DeltaRule};
use crate::device::{Device, DeviceInfo, DeviceLimits};
use crate::float32::{Float32, Float32Cache, Float32Matrix};
use crate::kv_cache::KvShape;
use crate::limits::MeasureError;
use crate::low_rank::{Group, LowRankShape, LowRankSource};
use crate::mamba::Mamba;
use crate::mem::OutOfMemory;
use crate::pointwise::gated;
use crate::quant::{BlockFormat, BlockSource, Int4Source, Int8Source, MatrixShape, RowSource, WeightClass};
use crate::states::{StateShape, StateSpan, States};
use crate::{Activation, Attention, HeadLayout, HostBackend, LatentRows, Latents, Norm, Out, RotateAndStore, Routing};

/// Source of a matrix.
#[derive(Clone, Copy)]
pub enum MatrixSource<'a> {
    /// See [`Device::pack`].
    Rows(WeightClass, &'a RowSource<'a>),
    /// See [`Device::pack_int8`].
    Int8(&'a Int8Source<'a>),
    /// See [`Device::pack_int4`].
    Int4(&'a Int4Source<'a>),
    /// See [`Device::pack_blocks`].
    Blocks(BlockFormat, &'a BlockSource<'a>),
}

impl MatrixSource<'_> {
    /// Packs the matrix for a device.
    pub fn pack<D: Device>(self, device: &D, shape: MatrixShape) -> Result<D::Matrix, OutOfMemory> {
        match self {
            MatrixSource::Rows(class, rows) => device.pack(shape, class, rows),
            MatrixSource::Int8(rows) => device.pack_int8(shape, rows),
            MatrixSource::Int4(rows) => device.pack_int4(shape, rows),
            MatrixSource::Blocks(format, rows) => device.pack_blocks(shape, format, rows),
        }
    }
}

/// A product in float32.
pub struct RecordedProduct<'a> {
    /// `[rows, in_features]`.
    pub x: &'a [f32],
    /// Bias added to `y`.
    pub bias: Option<&'a [f32]>,
    /// `[rows, out_features]`.
    pub y: &'a [f32],
    /// The destination: the residual stream if `y` is added to it, else `y`.
    pub ends_in: &'a [f32],
    /// Shape of the matrix.
    pub shape: MatrixShape,
}

/// Receives products.
pub trait ProductRecorder: Send + Sync + 'static {
    /// The recorder's data of a matrix.
    type Matrix: Send + Sync + 'static;

    /// Called when a matrix is packed.
    fn pack(&self, shape: MatrixShape, source: MatrixSource<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Whether to record products of this matrix.
    fn wants(&self, _matrix: &Self::Matrix) -> bool {
        true
    }

    /// Records a product of such a matrix. `exact`: the backend that computed it.
    fn record(&self, matrix: &Self::Matrix, product: &RecordedProduct<'_>, exact: &Float32);

    /// Bytes of the recorder's data of a matrix.
    fn matrix_bytes(&self, _matrix: &Self::Matrix) -> usize {
        0
    }
}

/// [`Float32`] with a recorder of its products.
pub struct RecordingBackend<R> {
    /// Computes the results.
    pub exact: Float32,
    /// Receives the products.
    pub recorder: R,
}

/// A matrix, and the recorder's data of it.
pub struct RecordedMatrix<M> {
    /// The matrix of the products.
    pub exact: Float32Matrix,
    recorded: M,
}

impl<R: ProductRecorder> RecordingBackend<R> {
    fn both(&self, shape: MatrixShape, source: MatrixSource<'_>) -> Result<RecordedMatrix<R::Matrix>, OutOfMemory> {
        let recorded = self.recorder.pack(shape, source)?;
        Ok(RecordedMatrix { exact: source.pack(&self.exact, shape)?, recorded })
    }
}

impl<R: ProductRecorder> Device for RecordingBackend<R> {
    type Matrix = RecordedMatrix<R::Matrix>;
    type LowRank = [Float32Matrix; 2];
    type KvCache = Float32Cache;
    type States = States;
    type HostBuffer = Vec<u8>;

    fn describe(&self) -> String {
        self.exact.describe()
    }

    fn info(&self) -> DeviceInfo {
        self.exact.info()
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.exact.limits(seconds)
    }

    fn set_compute_thread(&self) {
        self.exact.set_compute_thread();
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory> {
        self.both(shape, MatrixSource::Rows(class, rows))
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        self.both(shape, MatrixSource::Int8(rows))
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        self.both(shape, MatrixSource::Int4(rows))
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory> {
        self.both(shape, MatrixSource::Blocks(format, rows))
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<Self::LowRank, OutOfMemory> {
        self.exact.pack_low_rank(shape, source)
    }

    fn shape(&self, matrix: &Self::Matrix) -> MatrixShape {
        matrix.exact.shape()
    }

    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize {
        self.exact.matrix_bytes(&matrix.exact) + self.recorder.matrix_bytes(&matrix.recorded)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<Float32Cache, OutOfMemory> {
        self.exact.kv_cache(shape)
    }

    fn copy_blocks(&self, kv: &mut Float32Cache, copies: &[(u32, u32)]) {
        self.exact.copy_blocks(kv, copies);
    }

    fn block_bytes(&self, kv: &Float32Cache) -> usize {
        self.exact.block_bytes(kv)
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    fn save_block(&self, kv: &Float32Cache, block: u32, to: &mut Vec<u8>, at: usize) {
        self.exact.save_block(kv, block, to, at);
    }

    fn load_block(&self, from: &Vec<u8>, at: usize, kv: &mut Float32Cache, block: u32) {
        self.exact.load_block(from, at, kv, block);
    }

    fn states(&self, shape: StateShape) -> Result<States, OutOfMemory> {
        States::new(shape)
    }

    fn save_state(&self, states: &States, slot: u32, to: &mut Vec<u8>) {
        states.read(slot, to);
    }

    fn load_state(&self, from: &Vec<u8>, states: &mut States, slot: u32) {
        states.write(slot, from);
    }
}

impl<R: ProductRecorder> HostBackend for RecordingBackend<R> {
    fn embed(&self, table: &Self::Matrix, ids: &[u32], out: &mut [f32]) {
        self.exact.embed(&table.exact, ids, out);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        self.exact.rms_norm(x, weight, eps, out);
    }

    fn layer_norm(&self, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
        self.exact.layer_norm(x, norm, out);
    }

    fn activate(&self, activation: Activation, x: &mut [f32]) {
        self.exact.activate(activation, x);
    }

    fn linear(&self, x: &[f32], w: &Self::Matrix, bias: Option<&[f32]>, mut out: Out<'_>) {
        let RecordedMatrix { exact: matrix, recorded } = w;
        if !self.recorder.wants(recorded) {
            return self.exact.linear(x, matrix, bias, out);
        }
        let shape = matrix.shape();
        let mut y = vec![0.0; x.len() / shape.in_features * shape.out_features];
        self.exact.linear(x, matrix, bias, Out::Store(&mut y));
        let (pool, isa) = self.exact.pool_and_isa();
        match &mut out {
            Out::Store(out) => out.copy_from_slice(&y),
            Out::StoreAt { out, at, width } => {
                for (out, y) in out.chunks_exact_mut(*width).zip(y.chunks_exact(shape.out_features)) {
                    out[*at..][..shape.out_features].copy_from_slice(y);
                }
            }
            Out::Add(out) => out.iter_mut().zip(&y).for_each(|(out, y)| *out += y),
            Out::Gated(activation, out) => gated(Some(pool), isa, *activation, &y, shape.out_features / 2, out),
        }
        let ends_in = if let Out::Add(out) = &out { &**out } else { &y };
        self.recorder.record(recorded, &RecordedProduct { x, bias, y: &y, ends_in, shape }, &self.exact);
    }

    fn add_low_rank<'a>(
        &self,
        x: &[f32],
        groups: impl Iterator<Item = Group<'a, Self::LowRank>> + Clone + Sync,
        out: &mut [f32],
    ) {
        self.exact.add_low_rank(x, groups, out);
    }

    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut Float32Cache) {
        self.exact.rotate_and_store(args, kv);
    }

    fn store_latents(&self, how: Latents<'_>, rows: LatentRows<'_>, slots: &[u32], kv: &mut Float32Cache) {
        self.exact.store_latents(how, rows, slots, kv);
    }

    fn attend(&self, args: Attention<'_>, kv: &Float32Cache, out: &mut [f32]) {
        self.exact.attend(args, kv, out);
    }

    fn convolve(&self, how: Convolution<'_>, spans: &[StateSpan<'_>], rows: &mut [f32], states: &mut States) {
        self.exact.convolve(how, spans, rows, states);
    }

    fn convolve_gated(
        &self,
        how: GatedConvolution<'_>,
        spans: &[StateSpan<'_>],
        rows: &[f32],
        states: &mut States,
        out: &mut [f32],
    ) {
        self.exact.convolve_gated(how, spans, rows, states, out);
    }

    fn delta_rule(
        &self,
        how: DeltaRule<'_>,
        spans: &[StateSpan<'_>],
        rows: DeltaRows<'_>,
        states: &mut States,
        out: &mut [f32],
    ) {
        self.exact.delta_rule(how, spans, rows, states, out);
    }

    fn mamba(
        &self,
        how: Mamba<'_>,
        spans: &[StateSpan<'_>],
        rows_and_steps: (&mut [f32], &mut [f32]),
        states: &mut States,
        out: &mut [f32],
    ) {
        self.exact.mamba(how, spans, rows_and_steps, states, out);
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &[f32], x: &mut [f32]) {
        self.exact.gate_heads(layout, qkv, x);
    }

    fn add_gated(&self, gates: &[f32], y: &[f32], x: &mut [f32]) {
        self.exact.add_gated(gates, y, x);
    }

    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]) {
        self.exact.add_scaled(y, scale, x);
    }

    fn softcap(&self, cap: f32, x: &mut [f32]) {
        self.exact.softcap(cap, x);
    }

    fn gate(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
        self.exact.gate(activation, gate_up, width, out);
    }

    fn route(&self, logits: &[f32], how: Routing<'_>, chosen: &mut [u32], weights: &mut [f32]) {
        self.exact.route(logits, how, chosen, weights);
    }

    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
        self.exact.gather(from, width, rows, out);
    }

    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]) {
        self.exact.scatter_add(y, weights, rows, width, x);
    }
}
