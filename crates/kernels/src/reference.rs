//! The definition: every operation on one thread in plain loops. Slow, portable, and the reference for every kernel.

use crate::accumulation_order::AccumulationOrder;
use crate::convolution::{self, Convolution, GatedConvolution};
use crate::delta_rule::{self, DeltaRows, DeltaRule};
use crate::device::{Device, DeviceInfo, DeviceLimits};
use crate::kv_cache::{KvCache, KvShape};
use crate::limits;
use crate::limits::MeasureError;
use crate::low_rank::{self, Group, LowRank, LowRankShape, LowRankSource};
use crate::mamba::{self, Mamba};
use crate::mem::OutOfMemory;
use crate::quant::{
    BlockFormat, BlockSource, ByteSource, Digits, Image, Int4Source, Int8Source, MatrixShape, Outlier, PEAK_LANES,
    PLANES, PackedMatrix, QUAD, RowSource, SMALLEST_ACTIVATION, WeightClass, max_outliers, power, quantize_activations,
    round_to_bf16,
};
use crate::states::{StateShape, StateSpan, States};
use crate::threads::Pool;
use crate::{
    Activation, Attention, HeadLayout, HostBackend, Isa, LatentRows, Latents, Norm, Out, RotateAndStore, Routing,
    attention, cpu, latent, layer_norm, pointwise, routing,
};
use std::ops::Range;

/// The backend of the definitions.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    arithmetic: AccumulationOrder,
}

impl Reference {
    /// With the fastest accumulation order here, the default of a [`Cpu`](crate::Cpu).
    pub fn new() -> Reference {
        Reference::of(AccumulationOrder::best())
    }

    /// With a given accumulation order.
    pub fn of(arithmetic: AccumulationOrder) -> Reference {
        Reference { arithmetic }
    }
}

impl Default for Reference {
    fn default() -> Reference {
        Reference::new()
    }
}

impl Device for Reference {
    type Matrix = PackedMatrix;
    type LowRank = LowRank;
    type KvCache = KvCache;
    type States = States;
    type HostBuffer = Vec<u8>;

    fn describe(&self) -> String {
        "reference (plain loops), 1 thread".into()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo::cpu(Isa::Scalar, 1)
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        Ok(limits::measure(&Pool::new(1)?, Isa::Scalar, self.arithmetic, seconds)?)
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack(None, Isa::Scalar, shape, class, rows)
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack_int8(None, Isa::Scalar, shape, rows)
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack_int4(None, Isa::Scalar, shape, rows)
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack_blocks(None, Isa::Scalar, shape, format, rows)
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<LowRank, OutOfMemory> {
        LowRank::pack(shape, source)
    }

    fn image(&self, matrix: &PackedMatrix) -> Option<Image> {
        matrix.image()
    }

    fn restore(&self, shape: MatrixShape, class: WeightClass, source: &ByteSource<'_>) -> Option<PackedMatrix> {
        PackedMatrix::restore(None, shape, class, source).ok()
    }

    fn shape(&self, matrix: &PackedMatrix) -> MatrixShape {
        matrix.shape()
    }

    fn matrix_bytes(&self, matrix: &PackedMatrix) -> usize {
        matrix.bytes()
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, OutOfMemory> {
        KvCache::new(shape)
    }

    fn copy_blocks(&self, kv: &mut KvCache, copies: &[(u32, u32)]) {
        kv.copy_blocks(copies);
    }

    fn block_bytes(&self, kv: &KvCache) -> usize {
        kv.shape().block_bytes()
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    fn save_block(&self, kv: &KvCache, block: u32, to: &mut Vec<u8>, at: usize) {
        kv.read_block(block, &mut to[at..][..kv.shape().block_bytes()]);
    }

    fn load_block(&self, from: &Vec<u8>, at: usize, kv: &mut KvCache, block: u32) {
        kv.write_block(block, &from[at..][..kv.shape().block_bytes()]);
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

impl HostBackend for Reference {
    fn embed(&self, table: &PackedMatrix, ids: &[u32], out: &mut [f32]) {
        cpu::embed(table, ids, out);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        pointwise::rms_norm(None, Isa::Scalar, x, weight, eps, out);
    }

    fn layer_norm(&self, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
        layer_norm::layer_norm(None, Isa::Scalar, x, norm, out);
    }

    fn activate(&self, activation: Activation, x: &mut [f32]) {
        layer_norm::activate(None, Isa::Scalar, activation, x);
    }

    fn linear(&self, x: &[f32], w: &PackedMatrix, bias: Option<&[f32]>, out: Out<'_>) {
        let MatrixShape { out_features, in_features } = w.shape();
        let rows = x.len() / in_features;
        assert_eq!(x.len(), rows * in_features, "x is not [rows, in_features]");
        let mut product = vec![0.0; rows * out_features];
        for first in (0..out_features).step_by(COLUMNS) {
            let columns = first..(first + COLUMNS).min(out_features);
            let of_row = of_row(self.arithmetic, w, columns.clone());
            for (x, product) in x.chunks_exact(in_features).zip(product.chunks_exact_mut(out_features)) {
                product[columns.clone()].copy_from_slice(&of_row(x));
            }
        }
        for product in product.chunks_exact_mut(out_features) {
            product.iter_mut().zip(bias.into_iter().flatten()).for_each(|(y, bias)| *y += bias);
        }
        let product = product.into_iter();
        match out {
            Out::Store(out) | Out::Add(out) if out.len() != rows * out_features => {
                panic!("out is not [rows, out_features]")
            }
            Out::Store(out) => out.iter_mut().zip(product).for_each(|(out, y)| *out = y),
            Out::StoreAt { out, at, width } => {
                assert_eq!(out.len(), rows * width, "out is not [rows, {width}]");
                let part = out.chunks_exact_mut(width).flat_map(|row| &mut row[at..at + out_features]);
                part.zip(product).for_each(|(out, y)| *out = y);
            }
            Out::Add(out) => out.iter_mut().zip(product).for_each(|(out, y)| *out += y),
            Out::Gated(activation, out) => {
                let gate_up: Vec<f32> = product.collect();
                pointwise::gated(None, Isa::Scalar, activation, &gate_up, out_features / 2, out);
            }
        }
    }

    fn add_low_rank<'a>(
        &self,
        x: &[f32],
        groups: impl Iterator<Item = Group<'a, LowRank>> + Clone + Sync,
        out: &mut [f32],
    ) {
        low_rank::define(self.arithmetic, x, groups, out);
    }

    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut KvCache) {
        pointwise::rotate_and_store(None, Isa::Scalar, args, kv);
    }

    fn store_latents(&self, how: Latents<'_>, rows: LatentRows<'_>, slots: &[u32], kv: &mut KvCache) {
        latent::store_latents(None, Isa::Scalar, how, rows, (kv, slots));
    }

    fn attend(&self, args: Attention<'_>, kv: &KvCache, out: &mut [f32]) {
        attention::attend(None, Isa::Scalar, self.arithmetic, args, kv, out);
    }

    fn convolve(&self, how: Convolution<'_>, spans: &[StateSpan<'_>], rows: &mut [f32], states: &mut States) {
        convolution::convolve(None, Isa::Scalar, how, spans, rows, states);
    }

    fn convolve_gated(
        &self,
        how: GatedConvolution<'_>,
        spans: &[StateSpan<'_>],
        rows: &[f32],
        states: &mut States,
        out: &mut [f32],
    ) {
        convolution::convolve_gated(None, Isa::Scalar, how, spans, rows, states, out);
    }

    fn delta_rule(
        &self,
        how: DeltaRule<'_>,
        spans: &[StateSpan<'_>],
        rows: DeltaRows<'_>,
        states: &mut States,
        out: &mut [f32],
    ) {
        delta_rule::delta_rule(None, Isa::Scalar, how, spans, rows, states, out);
    }

    fn mamba(
        &self,
        how: Mamba<'_>,
        spans: &[StateSpan<'_>],
        rows_and_steps: (&mut [f32], &mut [f32]),
        states: &mut States,
        out: &mut [f32],
    ) {
        mamba::mamba(None, Isa::Scalar, how, spans, rows_and_steps, states, out);
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &[f32], x: &mut [f32]) {
        pointwise::gate_heads(None, Isa::Scalar, layout, qkv, x);
    }

    fn add_gated(&self, gates: &[f32], y: &[f32], x: &mut [f32]) {
        pointwise::add_gated(None, Isa::Scalar, gates, y, x);
    }

    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]) {
        pointwise::add_scaled(None, Isa::Scalar, y, scale, x);
    }

    fn softcap(&self, cap: f32, x: &mut [f32]) {
        pointwise::softcap(None, Isa::Scalar, cap, x);
    }

    fn gate(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
        pointwise::gated(None, Isa::Scalar, activation, gate_up, width, out);
    }

    fn route(&self, logits: &[f32], how: Routing<'_>, chosen: &mut [u32], weights: &mut [f32]) {
        routing::route(None, Isa::Scalar, logits, how, chosen, weights);
    }

    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
        routing::gather(None, from, width, rows, out);
    }

    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]) {
        routing::scatter_add(None, Isa::Scalar, y, weights, rows, width, x);
    }
}

/// From a row of activations to some columns of a row of a product.
type OfRow<'a> = Box<dyn Fn(&[f32]) -> Vec<f32> + 'a>;

/// Columns whose weights are out of their layout at a time: a head of 128,000 would take gigabytes.
const COLUMNS: usize = 256;

/// Takes weights out of their layout once, for all rows.
fn of_row(arithmetic: AccumulationOrder, w: &PackedMatrix, of: Range<usize>) -> OfRow<'_> {
    fn columns<T>(of: Range<usize>, depth: usize, at: impl Fn(usize, usize) -> T) -> Vec<Vec<T>> {
        of.map(|column| (0..depth).map(|k| at(column, k)).collect()).collect()
    }
    let depth = w.shape().in_features;
    match (w.blocks(), w.class()) {
        (Some(format), _) => {
            let columns = columns(of, depth, |column, k| w.block_at(format, column, k));
            Box::new(move |x| block_row(x, &columns, format))
        }
        (None, WeightClass::Bf16) => {
            let columns = columns(of, w.steps() * 32, |column, k| w.bf16_at(column, k));
            Box::new(move |x| bf16_row(arithmetic, x, &columns))
        }
        (None, class) => {
            let scales = &w.scales()[of.clone()];
            let columns = columns(of, depth, |column, k| {
                let (q, ratio) = if class == WeightClass::Int4 { w.int4_at(column, k) } else { w.int8_at(column, k) };
                i32::from(q) * i32::from(ratio)
            });
            Box::new(move |x| integer_row(x, w.exponents(), (&columns, scales)))
        }
    }
}

/// One row of a bf16 product.
fn bf16_row(arithmetic: AccumulationOrder, x: &[f32], columns: &[Vec<f32>]) -> Vec<f32> {
    let at = |k: usize| x.get(k).map_or(0.0, |&x| round_to_bf16(x, SMALLEST_ACTIVATION));
    let x: Vec<f32> = (0..x.len().next_multiple_of(32)).map(at).collect();
    columns.iter().map(|column| arithmetic.dot(x.len(), |k| x[k], |k| column[k])).collect()
}

/// The low digits of a row (dense), its scale, and the listed quads of the middle and high digits.
fn digits_of(x: &[f32]) -> (f32, Vec<i8>, [Vec<Outlier>; PLANES]) {
    let mut low = vec![0; x.len()];
    let mut lists = [(); PLANES].map(|()| vec![Outlier::NONE; max_outliers(x.len())]);
    let [middle, high] = &mut lists;
    let mut peaks = vec![0; x.len().div_ceil(QUAD).next_multiple_of(PEAK_LANES)];
    let to = Digits { low: &mut low, outliers: [middle, high], peaks: &mut peaks };
    let (scale, counts) = quantize_activations(x, to);
    lists.iter_mut().zip(counts).for_each(|(list, count)| list.truncate(count));
    (scale, low, lists)
}

/// `low + 255 * middle + 65,025 * high`.
fn joined([low, middle, high]: [f32; 1 + PLANES]) -> f32 {
    65_025f32.mul_add(high, 255f32.mul_add(middle, low))
}

/// One row of an int8 or int4 product: an exact integer sum for each digit of the activations; the digit sums are
/// joined, then multiplied by the row's scale and the column's.
fn integer_row(x: &[f32], exponents: &[u8], (columns, scales): (&[Vec<i32>], &[f32])) -> Vec<f32> {
    let mut shifted = x.to_vec();
    shifted.iter_mut().zip(exponents).for_each(|(x, &exponent)| *x *= power(exponent));
    let (scale, low, lists) = digits_of(&shifted);
    let [middle, high] = lists.map(|list| {
        let mut digits = vec![0i8; x.len()];
        for outlier in list {
            let at = outlier.quad as usize * QUAD;
            digits[at..].iter_mut().zip(outlier.digits).for_each(|(to, digit)| *to = digit);
        }
        digits
    });
    let column = |(weights, column_scale): (&Vec<i32>, &f32)| {
        let sum = |digits: &[i8]| {
            digits.iter().zip(weights).map(|(&q, &weight)| i64::from(i32::from(q) * weight)).sum::<i64>() as f32
        };
        (joined([sum(&low), sum(&middle), sum(&high)]) * scale) * column_scale
    };
    columns.iter().zip(scales).map(column).collect()
}

/// One row of a product with weights in the quantization groups of a file: for the low digits an exact sum per group,
/// joined in order; for the other digits one per listed quad; the digits joined, then the row's scale.
fn block_row(x: &[f32], columns: &[Vec<(i8, f32, f32)>], format: &BlockFormat) -> Vec<f32> {
    let (scale, low, lists) = digits_of(x);
    // Adds the products of some adjacent elements of one group.
    let add = |total: f32, weights: &[(i8, f32, f32)], digits: &[i8]| {
        let dot: i32 = weights.iter().zip(digits).map(|((level, ..), &q)| i32::from(*level) * i32::from(q)).sum();
        let (_, group_scale, min) = weights[0];
        let total = (dot as f32).mul_add(group_scale, total);
        let sum: i32 = digits.iter().map(|&digit| i32::from(digit)).sum();
        if format.mins { (sum as f32).mul_add(min, total) } else { total }
    };
    let column = |column: &Vec<_>| {
        let groups = column.chunks(format.group).zip(low.chunks(format.group));
        let dense = groups.fold(0f32, |total, (weights, digits)| add(total, weights, digits));
        let [middle, high] = [0, 1].map(|plane| {
            let quads = lists[plane].iter();
            quads.fold(0f32, |total, quad| add(total, &column[quad.quad as usize * QUAD..], &quad.digits))
        });
        joined([dense, middle, high]) * scale
    };
    columns.iter().map(column).collect()
}
