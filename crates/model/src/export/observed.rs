//! A [`HostBackend`] that computes in float32 and sums up what each matrix sees.

use kernels::float32::{Float32Cache, Float32Matrix};
use kernels::limits::MeasureError;
use kernels::low_rank::Group;
use kernels::pointwise::gated;
use kernels::quant::Gram;
use kernels::{
    Activation, Attention, BlockFormat, BlockSource, Device, DeviceInfo, DeviceLimits, Float32, HostBackend,
    Int4Source, Int8Source, KvShape, LowRankShape, LowRankSource, MatrixShape, Out, OutOfMemory, RotateAndStore,
    RoutingRule, RowSource, WeightClass,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// [`Float32`], and beside it the inputs of some matrices.
pub(super) struct Observed {
    exact: Float32,
    seen: Mutex<Seen>,
}

/// What was seen of the matrices that were packed last.
#[derive(Default)]
struct Seen {
    matrices: Vec<Inputs>,
}

/// What a matrix saw.
#[derive(Default)]
pub(super) struct Inputs {
    /// Of those that are watched.
    pub(super) gram: Option<Gram>,
    /// Sum of the squares of its products, while it was watched.
    pub(super) squared_norm: f64,
}

/// A matrix and its number.
pub(super) struct ObservedMatrix {
    exact: Float32Matrix,
    index: usize,
}

impl ObservedMatrix {
    /// Takes other numbers; returns those that it had.
    pub(super) fn exchange(&mut self, exact: Float32Matrix) -> Float32Matrix {
        std::mem::replace(&mut self.exact, exact)
    }
}

impl Observed {
    pub(super) fn new(exact: Float32) -> Observed {
        Observed { exact, seen: Mutex::default() }
    }

    pub(super) fn exact(&self) -> &Float32 {
        &self.exact
    }

    /// Numbers matrices from 0 again.
    pub(super) fn begin(&self) {
        self.lock().matrices.clear();
    }

    /// Watches a matrix.
    pub(super) fn watch(&self, index: usize, width: usize) {
        self.lock().matrices[index] = Inputs { gram: Some(Gram::new(width)), squared_norm: 0.0 };
    }

    /// What a matrix saw since then; it is not watched any more.
    pub(super) fn take(&self, index: usize) -> Inputs {
        std::mem::take(&mut self.lock().matrices[index])
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn numbered(&self, exact: Float32Matrix) -> ObservedMatrix {
        let matrices = &mut self.lock().matrices;
        matrices.push(Inputs::default());
        ObservedMatrix { exact, index: matrices.len() - 1 }
    }
}

/// What a row counts: errors are divided by the size of what they end in, since a norm comes after it. Without that,
/// the few tokens whose rows are thousands of times as large as all others (massive activations: Sun et al., 2024)
/// would be all that counts.
fn factor(mean_square: f64) -> f32 {
    if mean_square > 0.0 { (1.0 / mean_square.sqrt()) as f32 } else { 0.0 }
}

impl Device for Observed {
    type Matrix = ObservedMatrix;
    type LowRank = [Float32Matrix; 2];
    type KvCache = Float32Cache;

    fn describe(&self) -> String {
        self.exact.describe()
    }

    fn info(&self) -> DeviceInfo {
        self.exact.info()
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.exact.limits(seconds)
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory> {
        Ok(self.numbered(self.exact.pack(shape, class, rows)?))
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        Ok(self.numbered(self.exact.pack_int8(shape, rows)?))
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        Ok(self.numbered(self.exact.pack_int4(shape, rows)?))
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory> {
        Ok(self.numbered(self.exact.pack_blocks(shape, format, rows)?))
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<Self::LowRank, OutOfMemory> {
        self.exact.pack_low_rank(shape, source)
    }

    fn shape(&self, matrix: &Self::Matrix) -> MatrixShape {
        matrix.exact.shape()
    }

    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize {
        self.exact.matrix_bytes(&matrix.exact)
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

    fn read_block(&self, kv: &Float32Cache, block: u32, out: &mut [u8]) {
        self.exact.read_block(kv, block, out);
    }

    fn write_block(&self, kv: &mut Float32Cache, block: u32, bytes: &[u8]) {
        self.exact.write_block(kv, block, bytes);
    }
}

impl HostBackend for Observed {
    fn embed(&self, table: &Self::Matrix, ids: &[u32], out: &mut [f32]) {
        self.exact.embed(&table.exact, ids, out);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        self.exact.rms_norm(x, weight, eps, out);
    }

    fn linear(&self, x: &[f32], w: &Self::Matrix, bias: Option<&[f32]>, out: Out<'_>) {
        if self.lock().matrices[w.index].gram.is_none() {
            return self.exact.linear(x, &w.exact, bias, out);
        }
        let MatrixShape { out_features: width, in_features } = w.exact.shape();
        let mut y = vec![0.0; x.len() / in_features * width];
        self.exact.linear(x, &w.exact, bias, Out::Store(&mut y));
        let square = |row: &[f32]| row.iter().map(|&y| f64::from(y).powi(2)).sum::<f64>();
        let factors_of = |ends_in: &[f32]| -> Vec<f32> {
            ends_in.chunks_exact(width).map(|row| factor(square(row) / width as f64)).collect()
        };
        let (pool, isa) = self.exact.means();
        let factors = match out {
            Out::Store(out) => {
                out.copy_from_slice(&y);
                factors_of(&y)
            }
            Out::Add(out) => {
                out.iter_mut().zip(&y).for_each(|(out, y)| *out += y);
                factors_of(out)
            }
            Out::Gated(activation, out) => {
                gated(Some(pool), isa, activation, &y, width / 2, out);
                factors_of(&y)
            }
        };
        let inputs = &mut self.lock().matrices[w.index];
        let rows = y.chunks_exact(width).zip(&factors);
        inputs.squared_norm += rows.map(|(y, factor)| square(y) * f64::from(*factor).powi(2)).sum::<f64>();
        if let Some(gram) = &mut inputs.gram {
            gram.add(pool, isa, x, &factors);
        }
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

    fn attend(&self, args: Attention<'_>, kv: &Float32Cache, out: &mut [f32]) {
        self.exact.attend(args, kv, out);
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

    fn route(&self, logits: &[f32], num_experts: usize, rule: RoutingRule, chosen: &mut [u32], weights: &mut [f32]) {
        self.exact.route(logits, num_experts, rule, chosen, weights);
    }

    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
        self.exact.gather(from, width, rows, out);
    }

    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]) {
        self.exact.scatter_add(y, weights, rows, width, x);
    }
}
