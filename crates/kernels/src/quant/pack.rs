//! Packing: rows in, tiles out.
//!
//! ```text
//! task = a pair of strips     32 rows, one after the other:  source -> row -> converted row (bf16, int8 or nibbles)
//!                             then 16 columns x steps are transposed, 4 bytes at a time, into the tiles
//! ```

use super::int4::{self, GROUP};
use super::int8::{self, INT8_GROUP};
use super::{
    INT4_RATIOS, Int4Source, Int8Source, MatrixShape, PAIR, PackedMatrix, Ratios, RowSource, SMALLEST_WEIGHT,
    WeightClass, round_to_bf16,
};
use crate::isa::Isa;
use crate::lanes::{Kernel, Simd, dispatch};
use crate::mem::{Buffer, OutOfMemory};
use crate::threads::Pool;
use std::sync::{Arc, Mutex};

/// What is packed.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Floats(&'a RowSource<'a>),
    /// For [`WeightClass::Int8`] only.
    Int8(&'a Int8Source<'a>),
    /// For [`WeightClass::Int4`] only.
    Int4(&'a Int4Source<'a>),
}

/// See [`PackedMatrix::pack`].
pub(super) fn pack(
    pool: Option<&Pool>,
    isa: Isa,
    shape: MatrixShape,
    class: WeightClass,
    source: Source<'_>,
) -> Result<PackedMatrix, OutOfMemory> {
    let MatrixShape { out_features, in_features } = shape;
    assert!(out_features > 0 && in_features > 0, "an empty matrix");
    assert!(in_features <= 133_000, "an int8 sum over {in_features} products could leave i32");
    let pair_bytes = class.ratio_bytes(in_features) + in_features.div_ceil(class.step()) * class.step_bytes();
    let pairs = out_features.div_ceil(PAIR);
    let mut tiles = Buffer::<u8>::zeroed(pairs * pair_bytes)?;
    let mut scales = Buffer::<f32>::zeroed(if class == WeightClass::Bf16 { 0 } else { pairs * PAIR })?;

    // One lock per pair, never contended: the safe way to hand each task its own part of the result.
    let mut scale_parts = scales.chunks_mut(PAIR);
    let parts: Vec<_> =
        tiles.chunks_mut(pair_bytes).map(|tiles| Mutex::new((tiles, scale_parts.next().unwrap_or(&mut [])))).collect();
    let scratch = Mutex::new(Vec::<Scratch>::new());
    let ratios = Mutex::new(Ratios::One);
    let task = |pair: usize| {
        let mut own = scratch.lock().unwrap().pop().unwrap_or_default();
        let mut part = parts[pair].lock().unwrap();
        let (tiles, scales) = &mut *part;
        let of_pair = dispatch(isa, PackPair { shape, class, pair, source, scratch: &mut own, tiles, scales });
        let mut ratios = ratios.lock().unwrap();
        *ratios = of_pair.max(*ratios);
        scratch.lock().unwrap().push(own);
    };
    // Contiguous shares rather than whoever is free: the thread that will read a strip writes it first.
    match pool {
        Some(pool) => pool.run(&|thread| crate::threads::share(pairs, pool.threads(), thread).for_each(&task)),
        None => (0..pairs).for_each(task),
    }
    drop(parts);
    let (tiles, scales) = (Arc::new(tiles), Arc::new(scales));
    Ok(PackedMatrix { shape, class, tiles, scales, ratios: ratios.into_inner().unwrap() })
}

/// A task's memory while packing.
#[derive(Default)]
struct Scratch {
    /// One row as it came.
    row: Vec<f32>,
    /// 32 converted rows of padded K.
    converted: Vec<u8>,
    /// Int4: one row of integers, padded to a step.
    q: Vec<i8>,
    /// Integers from elsewhere: the scales of one row.
    group_scales: Vec<f32>,
    /// Integers: the ratios of 32 rows, those of int4 padded to a step.
    ratios: Vec<i8>,
}

/// Packs columns `32 * pair..` of the result; returns what its ratios are.
struct PackPair<'a> {
    shape: MatrixShape,
    class: WeightClass,
    pair: usize,
    source: Source<'a>,
    scratch: &'a mut Scratch,
    tiles: &'a mut [u8],
    scales: &'a mut [f32],
}

impl Kernel for PackPair<'_> {
    type Output = Ratios;

    fn define(self) -> Ratios {
        self.pack(int4::Plain)
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Ratios {
        self.pack(int4::InLanes(s))
    }
}

impl PackPair<'_> {
    #[inline(always)]
    fn pack(mut self, by: impl int4::Measure) -> Ratios {
        let in_features = self.shape.in_features;
        let steps = in_features.div_ceil(self.class.step());
        let row_bytes = if self.class == WeightClass::Int4 { steps * 32 } else { steps * 64 };
        let scratch = &mut *self.scratch;
        scratch.row.resize(in_features, 0.0);
        scratch.converted.clear();
        scratch.converted.resize(PAIR * row_bytes, 0);
        let (group, groups) = match self.class {
            WeightClass::Bf16 => (1, 0),
            WeightClass::Int8 => (INT8_GROUP, in_features.div_ceil(INT8_GROUP)),
            WeightClass::Int4 => (GROUP, steps * 2),
        };
        if groups > 0 {
            scratch.q.resize(steps * 64, 0);
            scratch.group_scales.resize(in_features.div_ceil(group), 0.0);
        }
        scratch.ratios.clear();
        scratch.ratios.resize(PAIR * groups, 0);
        let first = self.pair * PAIR;
        for row in first..(first + PAIR).min(self.shape.out_features) {
            self.convert(by, row, row - first, (row_bytes, groups));
        }
        let (pair_ratios, tiles) = self.tiles.split_at_mut(self.class.ratio_bytes(in_features));
        match self.class {
            WeightClass::Bf16 | WeightClass::Int8 => {
                for (at, to) in pair_ratios[..PAIR * groups].iter_mut().enumerate() {
                    *to = self.scratch.ratios[at % PAIR * groups + at / PAIR] as u8;
                }
                for (step, to) in tiles.chunks_exact_mut(self.class.step_bytes()).enumerate() {
                    transpose::<64>(&self.scratch.converted, row_bytes, step, to);
                }
            }
            WeightClass::Int4 => {
                for (step, to) in tiles.chunks_exact_mut(self.class.step_bytes()).enumerate() {
                    let (ratios, tiles) = to.split_at_mut(INT4_RATIOS);
                    transpose::<32>(&self.scratch.converted, row_bytes, step, tiles);
                    for (at, to) in ratios.iter_mut().enumerate() {
                        let (strip, group, column) = (at / 32, at % 32 / 16, at % 16);
                        *to = self.scratch.ratios[((strip * 16 + column) * steps + step) * 2 + group] as u8;
                    }
                }
            }
        }
        Ratios::of(&self.scratch.ratios)
    }

    /// Brings one row, the pair's `index`th, into the class's numbers.
    #[inline(always)]
    fn convert(&mut self, by: impl int4::Measure, row: usize, index: usize, (row_bytes, groups): (usize, usize)) {
        let Scratch { row: values, converted, q, group_scales, ratios } = &mut *self.scratch;
        let converted = &mut converted[index * row_bytes..][..row_bytes];
        match self.source {
            Source::Floats(rows) => (rows.0)(row, values),
            Source::Int8(rows) => (rows.0)(row, &mut q[..values.len()], group_scales),
            Source::Int4(rows) => (rows.0)(row, &mut q[..values.len()], group_scales),
        }
        let ratios = &mut ratios[index * groups..][..group_scales.len().min(groups)];
        match self.class {
            WeightClass::Int8 => {
                let own = &mut q[..values.len()];
                self.scales[index] = match self.source {
                    Source::Floats(_) | Source::Int4(_) => int8::quantize_int8_row(values, own, ratios),
                    Source::Int8(_) => int8::import(own, group_scales, ratios),
                };
                converted.iter_mut().zip(own).for_each(|(to, q)| *to = *q as u8);
            }
            WeightClass::Bf16 => {
                for (to, &x) in converted.as_chunks_mut::<2>().0.iter_mut().zip(&*values) {
                    *to = ((round_to_bf16(x, SMALLEST_WEIGHT).to_bits() >> 16) as u16).to_le_bytes();
                }
            }
            WeightClass::Int4 => {
                let own = &mut q[..values.len()];
                self.scales[index] = match self.source {
                    Source::Floats(_) | Source::Int8(_) => int4::quantize(by, values, own, ratios),
                    Source::Int4(_) => int4::import(own, group_scales, ratios),
                };
                for (to, q) in converted.as_chunks_mut::<4>().0.iter_mut().zip(q.as_chunks::<8>().0) {
                    *to = std::array::from_fn(|i| (q[i] + 8) as u8 | ((q[i + 4] + 8) as u8) << 4);
                }
            }
        }
    }
}

/// The two tiles of a step: `BYTES` of each of 2 x 16 rows, transposed in groups of 4.
#[inline(always)]
fn transpose<const BYTES: usize>(rows: &[u8], row_bytes: usize, step: usize, tiles: &mut [u8]) {
    for (strip, tile) in tiles.chunks_exact_mut(BYTES * 16).enumerate() {
        for column in 0..16 {
            let line = &rows[(strip * 16 + column) * row_bytes + step * BYTES..][..BYTES];
            for (group, from) in line.as_chunks::<4>().0.iter().enumerate() {
                tile[group * 64 + column * 4..][..4].copy_from_slice(from);
            }
        }
    }
}
