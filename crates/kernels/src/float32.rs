//! Plain float32 for weights, activations, keys, values, products and sums. Nothing is rounded to a narrower type, so
//! this is the baseline for the error of a weight class or of a narrow KV cache.
//!
//! ```text
//! dot(a, b)     element i in lane i % 16, one chain of fused multiply-adds per lane, lanes summed pairwise by halves
//! attention     all scores of a row, their maximum, weights e^(s - max), one division at the end
//! ```
//! Four bytes per weight and per cache element. It uses vectors and threads but no tiles: accuracy comes before speed.
//! Its bits do not depend on threads, batch or instruction set, but differ from those of
//! [`Reference`](crate::Reference), whose classes round on purpose.

use crate::accumulation_order::AccumulationOrder;
use crate::convolution::{self, Convolution, GatedConvolution};
use crate::cpu::CpuError;
use crate::delta_rule::{self, DeltaRows, DeltaRule};
use crate::device::{Device, DeviceInfo, DeviceLimits};
use crate::isa::Isa;
use crate::kv_cache::{KvShape, MAX_HEAD_DIM};
use crate::latent;
use crate::limits;
use crate::limits::MeasureError;
use crate::low_rank::{Group, LowRankShape, LowRankSource};
use crate::mamba::{self, Mamba};
use crate::mem::{Buffer, OutOfMemory};
use crate::pointwise::{self, Shared};
use crate::quant::{
    self, BlockFormat, BlockSource, GroupScale, INT8_GROUP, Int4Source, Int8Source, MatrixShape, RowSource, WeightClass,
};
use crate::simd::{self, Kernel, LANES, Simd, dispatch};
use crate::states::{StateShape, StateSpan, States};
use crate::threads::{Pool, default_threads};
use crate::{
    Activation, Attention, AttentionRule, HeadLayout, HeadNorms, HostBackend, LatentRows, Latents, Norm, Out,
    RotateAndStore, Routing, layer_norm, routing,
};
use std::ops::Range;

/// Columns of a product per task, for all rows.
const PANEL: usize = 16;
/// Maximum rows and columns of a product held in registers.
const BLOCK: (usize, usize) = (4, 2);

/// The backend without rounding. Weight classes are ignored.
pub struct Float32 {
    isa: Isa,
    pool: Pool,
}

/// `[out_features, in_features]`, row-major.
pub struct Float32Matrix {
    shape: MatrixShape,
    values: Buffer<f32>,
}

impl Float32Matrix {
    /// `[out_features, in_features]`.
    pub fn shape(&self) -> MatrixShape {
        self.shape
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.shape.in_features..][..self.shape.in_features]
    }
}

/// Keys and values: `[layer][slot][key, value][kv head][head_dim]`.
pub struct Float32Cache {
    shape: KvShape,
    data: Buffer<f32>,
}

impl Float32Cache {
    /// Elements of one token in one layer.
    fn token_len(&self) -> usize {
        self.shape.num_kv_heads * self.shape.stored()
    }

    /// Index of the keys of a token; its values follow, but those of latent attention, which are in the keys.
    fn token_at(&self, layer: usize, slot: usize) -> usize {
        (layer * self.shape.blocks * self.shape.block_size + slot) * self.token_len()
    }
}

impl Float32 {
    /// `threads` includes the caller; `None`: one per physical core that this process may use.
    pub fn new(threads: Option<usize>) -> Result<Float32, CpuError> {
        Float32::with_isa(threads, Isa::best())
    }

    /// With at most the instructions of `isa`, for tests: the bits are the same.
    #[doc(hidden)]
    pub fn with_isa(threads: Option<usize>, isa: Isa) -> Result<Float32, CpuError> {
        Ok(Float32 { isa, pool: Pool::new(threads.unwrap_or_else(default_threads))? })
    }

    /// The thread pool and instruction set, for work between products.
    pub fn pool_and_isa(&self) -> (&Pool, Isa) {
        (&self.pool, self.isa)
    }
}

impl Device for Float32 {
    type Matrix = Float32Matrix;
    /// `A`, and `B` with its padding.
    type LowRank = [Float32Matrix; 2];
    type KvCache = Float32Cache;
    type States = States;
    type HostBuffer = Vec<u8>;

    fn describe(&self) -> String {
        format!("float32 ({}), {} threads", self.isa.name(), self.pool.threads())
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo::cpu(self.isa, self.pool.threads())
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        Ok(limits::measure(&self.pool, self.isa, AccumulationOrder::best(), seconds)?)
    }

    fn set_compute_thread(&self) {
        self.pool.pin_caller();
    }

    fn pack(&self, shape: MatrixShape, _: WeightClass, rows: &RowSource<'_>) -> Result<Float32Matrix, OutOfMemory> {
        let MatrixShape { out_features, in_features } = shape;
        let len = out_features.checked_mul(in_features).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mut values = Buffer::zeroed(len)?;
        let shared = Shared::new(&mut values);
        self.pool.tasks(out_features, &|row| {
            // SAFETY: each row is one task's.
            rows.0(row, unsafe { shared.part(row * in_features..(row + 1) * in_features) });
        });
        Ok(Float32Matrix { shape, values })
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Float32Matrix, OutOfMemory> {
        let dequantized = |row: usize, out: &mut [f32]| {
            let (mut q, mut scales) = (vec![0; out.len()], vec![0.0; out.len().div_ceil(INT8_GROUP)]);
            rows.0(row, &mut q, &mut scales);
            for ((out, q), scale) in out.chunks_mut(INT8_GROUP).zip(q.chunks(INT8_GROUP)).zip(scales) {
                out.iter_mut().zip(q).for_each(|(out, &q)| *out = f32::from(q) * scale);
            }
        };
        self.pack(shape, WeightClass::Int8, &RowSource(&dequantized))
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Float32Matrix, OutOfMemory> {
        let dequantized = |row: usize, out: &mut [f32]| {
            let (mut q, mut scales) = (vec![0; out.len()], vec![0.0; out.len().div_ceil(32)]);
            rows.0(row, &mut q, &mut scales);
            for ((out, q), scale) in out.chunks_mut(32).zip(q.chunks(32)).zip(scales) {
                out.iter_mut().zip(q).for_each(|(out, &q)| *out = f32::from(q) * scale);
            }
        };
        self.pack(shape, WeightClass::Int4, &RowSource(&dequantized))
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Float32Matrix, OutOfMemory> {
        let dequantized = |row: usize, out: &mut [f32]| {
            let mut levels = vec![0; out.len()];
            let mut scales = vec![GroupScale::ZERO; out.len().div_ceil(format.group)];
            rows.0(row, &mut levels, &mut scales);
            for ((out, levels), scale) in out.chunks_mut(format.group).zip(levels.chunks(format.group)).zip(scales) {
                let (scale, min) = (scale.scale(), scale.min());
                for (out, &level) in out.iter_mut().zip(levels) {
                    *out = quant::block_value((level, scale, min), format.mins);
                }
            }
        };
        self.pack(shape, WeightClass::Int8, &RowSource(&dequantized))
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<[Float32Matrix; 2], OutOfMemory> {
        let LowRankShape { in_features, rank, out_features } = shape;
        let matrix = |out_features: usize, in_features: usize, row: &dyn Fn(usize, &mut [f32])| {
            let len = out_features.checked_mul(in_features).ok_or(OutOfMemory { bytes: usize::MAX })?;
            let mut values = Buffer::zeroed(len)?;
            values.chunks_exact_mut(in_features).enumerate().for_each(|(index, to)| row(index, to));
            Ok(Float32Matrix { shape: MatrixShape { out_features, in_features }, values })
        };
        let b = |output: usize, to: &mut [f32]| (source.b)(output, &mut to[(source.reads)(output)]);
        Ok([matrix(rank, in_features, source.a)?, matrix(out_features, rank, &b)?])
    }

    fn shape(&self, matrix: &Float32Matrix) -> MatrixShape {
        matrix.shape()
    }

    fn matrix_bytes(&self, matrix: &Float32Matrix) -> usize {
        matrix.values.bytes()
    }

    fn kv_cache(&self, shape: KvShape) -> Result<Float32Cache, OutOfMemory> {
        let numbers = [shape.layers, shape.blocks, shape.block_size, shape.num_kv_heads, shape.stored()];
        let len = numbers.iter().try_fold(1usize, |len, &n| len.checked_mul(n));
        Ok(Float32Cache { shape, data: Buffer::zeroed(len.ok_or(OutOfMemory { bytes: usize::MAX })?)? })
    }

    fn copy_blocks(&self, kv: &mut Float32Cache, copies: &[(u32, u32)]) {
        let len = kv.shape.block_size * kv.token_len();
        for layer in 0..kv.shape.layers {
            for &(src, dst) in copies {
                let [src, dst] = [src, dst].map(|block| kv.token_at(layer, block as usize * kv.shape.block_size));
                kv.data.copy_within(src..src + len, dst);
            }
        }
    }

    fn block_bytes(&self, kv: &Float32Cache) -> usize {
        kv.shape.layers * kv.shape.block_size * kv.token_len() * size_of::<f32>()
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    fn save_block(&self, kv: &Float32Cache, block: u32, to: &mut Vec<u8>, at: usize) {
        let len = kv.shape.block_size * kv.token_len();
        let out = &mut to[at..][..self.block_bytes(kv)];
        for (layer, out) in out.chunks_exact_mut(len * size_of::<f32>()).enumerate() {
            let first = kv.token_at(layer, block as usize * kv.shape.block_size);
            let numbers = out.as_chunks_mut().0.iter_mut().zip(&kv.data[first..first + len]);
            numbers.for_each(|(bytes, number)| *bytes = number.to_ne_bytes());
        }
    }

    fn load_block(&self, from: &Vec<u8>, at: usize, kv: &mut Float32Cache, block: u32) {
        let len = kv.shape.block_size * kv.token_len();
        let bytes = &from[at..][..self.block_bytes(kv)];
        for (layer, bytes) in bytes.chunks_exact(len * size_of::<f32>()).enumerate() {
            let first = kv.token_at(layer, block as usize * kv.shape.block_size);
            let numbers = bytes.as_chunks().0.iter().zip(&mut kv.data[first..first + len]);
            numbers.for_each(|(bytes, number)| *number = f32::from_ne_bytes(*bytes));
        }
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

impl HostBackend for Float32 {
    fn embed(&self, table: &Float32Matrix, ids: &[u32], out: &mut [f32]) {
        let width = table.shape.in_features;
        assert_eq!(out.len(), ids.len() * width, "out is not [ids, in_features]");
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(table.row(id as usize));
        }
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        pointwise::rms_norm(Some(&self.pool), self.isa, x, weight, eps, out);
    }

    fn layer_norm(&self, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
        layer_norm::layer_norm(Some(&self.pool), self.isa, x, norm, out);
    }

    fn activate(&self, activation: Activation, x: &mut [f32]) {
        layer_norm::activate(Some(&self.pool), self.isa, activation, x);
    }

    fn linear(&self, x: &[f32], w: &Float32Matrix, bias: Option<&[f32]>, out: Out<'_>) {
        let MatrixShape { out_features, in_features } = w.shape;
        let rows = x.len() / in_features;
        let (out, add, first, width) = match out {
            Out::Store(out) => (out, false, 0, out_features),
            Out::StoreAt { out, at, width } => (out, false, at, width),
            Out::Add(out) => (out, true, 0, out_features),
            Out::Gated(activation, out) => {
                let mut gate_up = vec![0.0; rows * out_features];
                self.linear(x, w, bias, Out::Store(&mut gate_up));
                pointwise::gated(Some(&self.pool), self.isa, activation, &gate_up, out_features / 2, out);
                return;
            }
        };
        assert_eq!(x.len(), rows * in_features, "x is not [rows, in_features]");
        assert_eq!(out.len(), rows * width, "out is not [rows, {width}]");
        assert!(first + out_features <= width, "{out_features} columns from {first} on do not fit {width}");
        let out = Shared::new(out);
        self.pool.tasks(out_features.div_ceil(PANEL), &|panel| {
            let columns = panel * PANEL..out_features.min((panel + 1) * PANEL);
            let each = &mut |row: usize, column: usize, product: f32| {
                let at = row * width + first + column;
                // SAFETY: each column is one task's.
                let out = unsafe { &mut out.part(at..at + 1)[0] };
                let y = bias.map_or(product, |bias| product + bias[column]);
                *out = if add { *out + y } else { y };
            };
            dispatch(self.isa, Products { x, w, columns, each });
        });
    }

    fn add_low_rank<'a>(
        &self,
        x: &[f32],
        groups: impl Iterator<Item = Group<'a, [Float32Matrix; 2]>> + Clone + Sync,
        out: &mut [f32],
    ) {
        for ([a, b], rows) in groups {
            let [mut gathered, mut h, mut d] =
                [a.shape.in_features, a.shape.out_features, b.shape.out_features].map(|w| vec![0.0; rows.len() * w]);
            self.gather(x, a.shape.in_features, rows, &mut gathered);
            self.linear(&gathered, a, None, Out::Store(&mut h));
            self.linear(&h, b, None, Out::Store(&mut d));
            for (&row, d) in rows.iter().zip(d.chunks_exact(b.shape.out_features)) {
                self.add_scaled(d, 1.0, &mut out[row as usize * d.len()..][..d.len()]);
            }
        }
    }

    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut Float32Cache) {
        let RotateAndStore { qkv, layout, head_norms, rope, positions, slots, layer } = args;
        let HeadLayout { num_heads, head_dim, .. } = layout;
        for (row, (&position, &slot)) in qkv.chunks_exact_mut(layout.qkv_width()).zip(positions.iter().zip(slots)) {
            let (queries, rest) = row.split_at_mut(layout.keys_at());
            let (keys, values) = rest.split_at_mut(layout.kv_width());
            let queries = &mut queries[..num_heads * head_dim];
            let norm = |heads: &mut [f32], weight: &[f32], eps: f32| {
                let plain = heads.to_vec();
                pointwise::rms_norm(None, self.isa, &plain, weight, eps, heads);
            };
            match head_norms {
                HeadNorms::None | HeadNorms::AfterRotation { .. } => {}
                HeadNorms::PerHead { q, k, v, eps } => {
                    norm(queries, q, eps);
                    norm(keys, k, eps);
                    if let Some(v) = v {
                        norm(values, v, eps);
                    }
                }
                HeadNorms::WholeWidth { q, k, eps } => {
                    norm(queries, q, eps);
                    norm(keys, k, eps);
                }
                HeadNorms::Centered { q, k, eps } => {
                    for (heads, weight) in [(&mut *queries, q), (&mut *keys, k)] {
                        for (head, weight) in heads.chunks_exact_mut(head_dim).zip(weight.chunks_exact(head_dim)) {
                            let (plain, norm) = (head.to_vec(), Norm { weight, bias: None, eps });
                            layer_norm::layer_norm(None, self.isa, &plain, norm, head);
                        }
                    }
                }
            }
            if let Some(rope) = rope {
                let (cos, sin) = rope.at(position as usize);
                queries.chunks_exact_mut(head_dim).for_each(|head| rotate(head, cos, sin));
                if let Some(factor) = rope.query_factor(position as usize) {
                    queries.iter_mut().for_each(|query| *query *= factor);
                }
                keys.chunks_exact_mut(head_dim).for_each(|head| rotate(head, cos, sin));
            }
            if let HeadNorms::AfterRotation { q, k, eps } = head_norms {
                norm(queries, q, eps);
                norm(keys, k, eps);
            }
            if layout.queries_only {
                continue;
            }
            let at = kv.token_at(layer, slot as usize);
            let (to_keys, to_values) = kv.data[at..][..2 * keys.len()].split_at_mut(keys.len());
            to_keys.copy_from_slice(keys);
            to_values.copy_from_slice(values);
        }
    }

    fn store_latents(&self, how: Latents<'_>, rows: LatentRows<'_>, slots: &[u32], kv: &mut Float32Cache) {
        let (layer, width) = (how.layer, how.shape.layout().head_dim);
        let at: Vec<usize> = slots.iter().map(|&slot| kv.token_at(layer, slot as usize)).collect();
        let data = Shared::new(&mut kv.data);
        latent::latents(Some(&self.pool), self.isa, how, rows, &|row, key| {
            // SAFETY: each row has a slot of its own.
            unsafe { data.part(at[row]..at[row] + width) }.copy_from_slice(key);
        });
    }

    fn attend(&self, args: Attention<'_>, kv: &Float32Cache, out: &mut [f32]) {
        let Attention { qkv, layout, rule, sinks, spans, layer } = args;
        let HeadLayout { num_heads, num_kv_heads, head_dim, .. } = layout;
        assert!(head_dim <= MAX_HEAD_DIM, "{layout:?}");
        let (value_dim, block_size) = (layout.value_dim(), kv.shape.block_size);
        let out = Shared::new(out);
        for span in spans {
            self.pool.tasks(span.num_rows * num_heads, &|task| {
                let (row, head) = (task / num_heads, task % num_heads);
                let at = (span.first_row + row) * layout.qkv_width() + head * head_dim;
                let kv_head = head / (num_heads / num_kv_heads);
                let position = span.start + row;
                let token = |position: usize| {
                    let slot = span.blocks[position / block_size] as usize * block_size + position % block_size;
                    let token = &kv.data[kv.token_at(layer, slot)..][..kv.token_len()];
                    let (keys, values) = match layout.latent {
                        Some(_) => (token, token),
                        None => token.split_at(token.len() / 2),
                    };
                    (&keys[kv_head * head_dim..][..head_dim], &values[kv_head * head_dim..][..value_dim])
                };
                let to = ((span.first_row + row) * num_heads + head) * value_dim;
                // SAFETY: each row and head is one task's.
                let out = unsafe { out.part(to..to + value_dim) };
                let seen = rule.seen(position, span.start + span.num_rows);
                let sink = sinks.map(|sinks| sinks[head]);
                dispatch(self.isa, AttendRow { query: &qkv[at..][..head_dim], rule, sink, seen, token, out });
            });
        }
    }

    fn convolve(&self, how: Convolution<'_>, spans: &[StateSpan<'_>], rows: &mut [f32], states: &mut States) {
        convolution::convolve(Some(&self.pool), self.isa, how, spans, rows, states);
    }

    fn convolve_gated(
        &self,
        how: GatedConvolution<'_>,
        spans: &[StateSpan<'_>],
        rows: &[f32],
        states: &mut States,
        out: &mut [f32],
    ) {
        convolution::convolve_gated(Some(&self.pool), self.isa, how, spans, rows, states, out);
    }

    fn delta_rule(
        &self,
        how: DeltaRule<'_>,
        spans: &[StateSpan<'_>],
        rows: DeltaRows<'_>,
        states: &mut States,
        out: &mut [f32],
    ) {
        delta_rule::delta_rule(Some(&self.pool), self.isa, how, spans, rows, states, out);
    }

    fn mamba(
        &self,
        how: Mamba<'_>,
        spans: &[StateSpan<'_>],
        rows_and_steps: (&mut [f32], &mut [f32]),
        states: &mut States,
        out: &mut [f32],
    ) {
        mamba::mamba(Some(&self.pool), self.isa, how, spans, rows_and_steps, states, out);
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &[f32], x: &mut [f32]) {
        pointwise::gate_heads(Some(&self.pool), self.isa, layout, qkv, x);
    }

    fn add_gated(&self, gates: &[f32], y: &[f32], x: &mut [f32]) {
        pointwise::add_gated(Some(&self.pool), self.isa, gates, y, x);
    }

    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]) {
        pointwise::add_scaled(Some(&self.pool), self.isa, y, scale, x);
    }

    fn softcap(&self, cap: f32, x: &mut [f32]) {
        pointwise::softcap(Some(&self.pool), self.isa, cap, x);
    }

    fn gate(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
        pointwise::gated(Some(&self.pool), self.isa, activation, gate_up, width, out);
    }

    fn route(&self, logits: &[f32], how: Routing<'_>, chosen: &mut [u32], weights: &mut [f32]) {
        routing::route(Some(&self.pool), self.isa, logits, how, chosen, weights);
    }

    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
        routing::gather(Some(&self.pool), from, width, rows, out);
    }

    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]) {
        routing::scatter_add(Some(&self.pool), self.isa, y, weights, rows, width, x);
    }
}

/// Rotates element `i` of the first half and of the second half of the rotary part by the same angle.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head[..2 * cos.len()].split_at_mut(cos.len());
    for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// The primitives of products and attention.
trait Ops: Copy {
    /// The products of up to [`BLOCK`] rows and columns, all of the same length.
    fn dots(self, x: &[&[f32]], w: &[&[f32]], out: &mut [[f32; BLOCK.1]; BLOCK.0]);
    /// `out += weight * values`, fused.
    fn add_scaled(self, weight: f32, values: &[f32], out: &mut [f32]);
    /// Preferred rows and columns of an [`Ops::dots`] call.
    fn block(self) -> (usize, usize);
}

#[derive(Clone, Copy)]
struct Plain;

impl Ops for Plain {
    fn dots(self, x: &[&[f32]], w: &[&[f32]], out: &mut [[f32; BLOCK.1]; BLOCK.0]) {
        for (x, out) in x.iter().zip(out) {
            for (w, out) in w.iter().zip(out) {
                let mut lanes = [0.0f32; LANES];
                for (i, (&x, &w)) in x.iter().zip(*w).enumerate() {
                    lanes[i % LANES] = x.mul_add(w, lanes[i % LANES]);
                }
                *out = simd::sum(lanes);
            }
        }
    }

    fn add_scaled(self, weight: f32, values: &[f32], out: &mut [f32]) {
        for (out, &value) in out.iter_mut().zip(values) {
            *out = weight.mul_add(value, *out);
        }
    }

    fn block(self) -> (usize, usize) {
        (1, 1)
    }
}

/// The same with vectors.
#[derive(Clone, Copy)]
struct Vectors<S>(S);

impl<S: Simd> Vectors<S> {
    /// Lane sums of the products of the first `ROWS` rows and `COLUMNS` columns. No closures here: they would not be
    /// compiled for the instruction set of the caller.
    #[inline(always)]
    fn block_sums<const ROWS: usize, const COLUMNS: usize>(
        self,
        x: &[&[f32]; BLOCK.0],
        w: &[&[f32]; BLOCK.1],
    ) -> [[S::V; BLOCK.1]; BLOCK.0] {
        let (s, len) = (self.0, x[0].len());
        let mut sums = [[s.splat(0.0); BLOCK.1]; BLOCK.0];
        for at in (0..len).step_by(LANES) {
            let n = LANES.min(len - at);
            let mut columns = [s.splat(0.0); BLOCK.1];
            for column in 0..COLUMNS {
                columns[column] = self.load(w[column], at, n);
            }
            for row in 0..ROWS {
                let x = self.load(x[row], at, n);
                for column in 0..COLUMNS {
                    sums[row][column] = s.fma(x, columns[column], sums[row][column]);
                }
            }
        }
        sums
    }

    /// The `n <= 16` elements from `at` on, then zeros.
    #[inline(always)]
    fn load(self, from: &[f32], at: usize, n: usize) -> S::V {
        let from = &from[at..at + n];
        // SAFETY: these are `n <= 16` numbers.
        unsafe { if n >= LANES { self.0.load(from.as_ptr()) } else { self.0.load_first(n, from.as_ptr()) } }
    }
}

impl<S: Simd> Ops for Vectors<S> {
    #[inline(always)]
    fn dots(self, x: &[&[f32]], w: &[&[f32]], out: &mut [[f32; BLOCK.1]; BLOCK.0]) {
        let (s, len) = (self.0, x[0].len());
        for values in x.iter().chain(w) {
            assert!(values.len() == len, "vectors of one length");
        }
        // Missing rows and columns repeat the last one: the block is always full.
        let (mut xs, mut ws) = ([x[0]; BLOCK.0], [w[0]; BLOCK.1]);
        xs[..x.len()].copy_from_slice(x);
        ws[..w.len()].copy_from_slice(w);
        if x.len() == 1 && w.len() == 1 {
            let [[sum, ..], ..] = self.block_sums::<1, 1>(&xs, &ws);
            out[0][0] = s.sum(sum);
            return;
        }
        let sums = match S::ROWS {
            4.. => self.block_sums::<4, 2>(&xs, &ws),
            _ => self.block_sums::<2, 2>(&xs, &ws),
        };
        for row in 0..x.len() {
            for column in 0..w.len() {
                out[row][column] = s.sum(sums[row][column]);
            }
        }
    }

    #[inline(always)]
    fn add_scaled(self, weight: f32, values: &[f32], out: &mut [f32]) {
        let s = self.0;
        let weight_lanes = s.splat(weight);
        let whole = out.len().min(values.len()) / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            // SAFETY: 16 numbers follow `at` in both.
            unsafe {
                let to = out.as_mut_ptr().add(at);
                s.store(s.fma(weight_lanes, s.load(values.as_ptr().add(at)), s.load(to)), to);
            }
        }
        Plain.add_scaled(weight, &values[whole..], &mut out[whole..]);
    }

    #[inline(always)]
    fn block(self) -> (usize, usize) {
        (if S::ROWS >= 4 { 4 } else { 2 }, 2)
    }
}

/// All rows of some columns of a product.
struct Products<'a, F> {
    x: &'a [f32],
    w: &'a Float32Matrix,
    columns: Range<usize>,
    /// Called with row, column, product.
    each: &'a mut F,
}

impl<F: FnMut(usize, usize, f32)> Products<'_, F> {
    #[inline(always)]
    fn each(self, ops: impl Ops) {
        let Products { x, w, columns, each } = self;
        let width = w.shape.in_features;
        let (block_rows, block_columns) = ops.block();
        let row = |row: usize| &x[row * width..][..width];
        let rows = x.len() / width;
        let mut out = [[0.0; BLOCK.1]; BLOCK.0];
        for first_row in (0..rows).step_by(block_rows) {
            let num_rows = block_rows.min(rows - first_row);
            let xs: [&[f32]; BLOCK.0] = std::array::from_fn(|i| row(first_row + i.min(num_rows - 1)));
            for first in columns.clone().step_by(block_columns) {
                let num_columns = block_columns.min(columns.end - first);
                let ws: [&[f32]; BLOCK.1] = std::array::from_fn(|i| w.row(first + i.min(num_columns - 1)));
                ops.dots(&xs[..num_rows], &ws[..num_columns], &mut out);
                for (i, out) in out[..num_rows].iter().enumerate() {
                    for (j, &product) in out[..num_columns].iter().enumerate() {
                        each(first_row + i, first + j, product);
                    }
                }
            }
        }
    }
}

impl<F: FnMut(usize, usize, f32)> Kernel for Products<'_, F> {
    type Output = ();

    fn define(self) {
        self.each(Plain);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.each(Vectors(s));
    }
}

/// One head of one row of attention.
struct AttendRow<'a, F> {
    query: &'a [f32],
    rule: AttentionRule,
    /// A logit without a value.
    sink: Option<f32>,
    /// Positions visible to the row.
    seen: Range<usize>,
    /// Key and value of this head at a position.
    token: F,
    out: &'a mut [f32],
}

impl<'k, F: Fn(usize) -> (&'k [f32], &'k [f32])> AttendRow<'_, F> {
    #[inline(always)]
    fn each(self, ops: impl Ops) {
        let AttendRow { query, rule, sink, seen, token, out } = self;
        let mut product = [[0.0; BLOCK.1]; BLOCK.0];
        let mut scores = Vec::with_capacity(seen.len());
        for position in seen.clone() {
            ops.dots(&[query], &[token(position).0], &mut product);
            let score = product[0][0] * rule.scale;
            scores.push(match rule.softcap {
                Some(cap) => simd::softcap(score, cap),
                None => score,
            });
        }
        let lowest = sink.unwrap_or(f32::NEG_INFINITY);
        let max = scores.iter().fold(lowest, |max, &score| if max > score { max } else { score });
        let mut lanes = [0.0; LANES];
        for (j, score) in scores.iter_mut().enumerate() {
            *score = simd::exp(*score - max);
            lanes[j % LANES] += *score;
        }
        out.fill(0.0);
        for (position, &weight) in seen.zip(&scores) {
            ops.add_scaled(weight, token(position).1, out);
        }
        let sum = simd::sum(lanes) + sink.map_or(0.0, |sink| simd::exp(sink - max));
        out.iter_mut().for_each(|out| *out /= sum);
    }
}

impl<'k, F: Fn(usize) -> (&'k [f32], &'k [f32])> Kernel for AttendRow<'_, F> {
    type Output = ();

    fn define(self) {
        self.each(Plain);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.each(Vectors(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Loads of 16 and of 3 elements from a slice of two.
    struct Beyond<'a>(&'a [f32]);

    impl Kernel for Beyond<'_> {
        type Output = bool;

        fn define(self) -> bool {
            true
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> bool {
            let from = self.0.len() - 2;
            let load = |n: usize| catch_unwind(AssertUnwindSafe(|| s.sum(Vectors(s).load(self.0, from, n))));
            [LANES, 3].into_iter().all(|n| load(n).is_err())
        }
    }

    #[test]
    fn nothing_is_loaded_from_beyond_the_end() {
        let numbers = [1.0; 64];
        assert!(Isa::available().into_iter().all(|isa| dispatch(isa, Beyond(&numbers[..20]))));
    }
}
