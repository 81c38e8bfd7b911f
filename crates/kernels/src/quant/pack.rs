//! Packing: rows in, tiles out.
//!
//! ```text
//! task = a pair of strips     32 rows, one after the other:  source -> row -> converted row (bf16, int8 or nibbles)
//!                             then 16 columns x steps are transposed, 4 bytes at a time, into the tiles
//! ```

use super::int4::{self, GROUP};
use super::int8::{self, INT8_GROUP};
use super::shifts::{Sample, inverse_power};
use super::uneven::{self, Fit, Levels};
use super::{
    BlockFormat, BlockSource, Codes, GroupScale, INT4_RATIOS, Int4Source, Int8Source, MatrixShape, PAIR, PackedMatrix,
    Ratios, RowSource, SMALLEST_WEIGHT, WeightClass, num_scales, round_to_bf16,
};
use crate::isa::Isa;
use crate::mem::{Buffer, OutOfMemory};
use crate::node_parts::NodeParts;
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::Pool;
use std::sync::{Arc, Mutex};

/// Source of the weights.
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
    let mut tiles = NodeParts::zeroed(pool.map(Pool::nodes), pairs, pair_bytes)?;
    let mut scales = Buffer::<f32>::zeroed(num_scales(shape, class))?;
    let sample = match source {
        Source::Floats(rows) if class != WeightClass::Bf16 => Some(Sample::read(shape, rows)),
        _ => None,
    };
    let exponents = sample.as_ref().map_or(Vec::new(), |sample| sample.exponents(class));
    if !exponents.is_empty() {
        scales.as_bytes_mut()[pairs * PAIR * size_of::<f32>()..][..in_features].copy_from_slice(&exponents);
    }

    // One lock per pair, never contended: safe access for each task to its part of the result.
    let mut scale_parts = scales.chunks_mut(PAIR);
    let parts: Vec<_> =
        tiles.pieces_mut().map(|tiles| Mutex::new((tiles, scale_parts.next().unwrap_or(&mut [])))).collect();
    let scratch = Mutex::new(Vec::<Scratch>::new());
    let ratios = Mutex::new(Ratios::One);
    let task = |pair: usize| {
        let mut own = scratch.lock().unwrap().pop().unwrap_or_default();
        let mut part = parts[pair].lock().unwrap();
        let (tiles, scales) = &mut *part;
        let (sample, exponents) = (sample.as_ref(), &exponents[..]);
        let of_pair =
            dispatch(isa, PackPair { shape, class, pair, source, sample, exponents, scratch: &mut own, tiles, scales });
        let mut ratios = ratios.lock().unwrap();
        *ratios = of_pair.max(*ratios);
        scratch.lock().unwrap().push(own);
    };
    // Contiguous shares instead of dynamic tasks: the thread that will read a strip writes it first.
    match pool {
        Some(pool) => pool.run(&|thread| crate::threads::share(pairs, pool.threads(), thread).for_each(&task)),
        None => (0..pairs).for_each(task),
    }
    drop(parts);
    let (tiles, scales) = (Arc::new(tiles), Arc::new(scales));
    let levels = match (class, source) {
        (WeightClass::Int4, Source::Floats(_) | Source::Int8(_)) => Levels::Uneven,
        _ => Levels::Even,
    };
    let (ratios, shifted) = (ratios.into_inner().unwrap(), !exponents.is_empty());
    Ok(PackedMatrix { shape, class, blocks: None, tiles, scales, ratios, levels, shifted })
}

/// See [`PackedMatrix::pack_blocks`].
pub(super) fn pack_blocks(
    pool: Option<&Pool>,
    isa: Isa,
    shape: MatrixShape,
    format: BlockFormat,
    source: &BlockSource<'_>,
) -> Result<PackedMatrix, OutOfMemory> {
    let MatrixShape { out_features, in_features } = shape;
    assert!(out_features > 0 && in_features > 0, "an empty matrix");
    let steps = in_features.div_ceil(64);
    let (pair_bytes, pairs) = (steps * format.step_bytes(), out_features.div_ceil(PAIR));
    let mut tiles = NodeParts::zeroed(pool.map(Pool::nodes), pairs, pair_bytes)?;
    let parts: Vec<_> = tiles.pieces_mut().map(Mutex::new).collect();
    let task = |pair: usize| {
        let mut tiles = parts[pair].lock().unwrap();
        dispatch(isa, PackBlocks { shape, format, pair, source, tiles: &mut tiles });
    };
    match pool {
        Some(pool) => pool.run(&|thread| crate::threads::share(pairs, pool.threads(), thread).for_each(&task)),
        None => (0..pairs).for_each(task),
    }
    drop(parts);
    let class = match format.codes {
        Codes::Four { .. } => WeightClass::Int4,
        Codes::Eight => WeightClass::Int8,
    };
    let (tiles, scales) = (Arc::new(tiles), Arc::new(Buffer::zeroed(0)?));
    let (blocks, ratios, levels) = (Some(format), Ratios::Wide, Levels::Even);
    Ok(PackedMatrix { shape, class, blocks, tiles, scales, ratios, levels, shifted: false })
}

/// Packs columns `32 * pair..` for the quantization groups of a file.
struct PackBlocks<'a, 'b> {
    shape: MatrixShape,
    format: BlockFormat,
    pair: usize,
    source: &'a BlockSource<'b>,
    tiles: &'a mut [u8],
}

impl Kernel for PackBlocks<'_, '_> {
    type Output = ();

    fn define(self) {
        self.pack();
    }

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.pack();
    }
}

impl PackBlocks<'_, '_> {
    #[inline(always)]
    fn pack(self) {
        let PackBlocks { shape, format, pair, source, tiles } = self;
        let steps = shape.in_features.div_ceil(64);
        let row_bytes = steps * format.tile_bytes() / 16;
        let mut levels = vec![0i8; steps * 64];
        let mut scales = vec![GroupScale::ZERO; steps * format.groups()];
        let mut converted = vec![0u8; PAIR * row_bytes];
        let (scale_bytes, min_bytes) = format.scale_bytes();
        // For 4 bits: the code of each level. Padding has any code, and scale 0.
        let mut code_of = [0u8; 256];
        if let Codes::Four { levels } = &format.codes {
            for (code, level) in levels.iter().enumerate().rev() {
                code_of[usize::from(*level as u8)] = code as u8;
            }
        }
        let first = pair * PAIR;
        for row in first..(first + PAIR).min(shape.out_features) {
            let own_groups = shape.in_features.div_ceil(format.group);
            (source.0)(row, &mut levels[..shape.in_features], &mut scales[..own_groups]);
            let to = &mut converted[(row - first) * row_bytes..][..row_bytes];
            match format.codes {
                Codes::Eight => to.iter_mut().zip(&levels).for_each(|(to, level)| *to = *level as u8),
                Codes::Four { .. } => {
                    for (to, levels) in to.as_chunks_mut::<4>().0.iter_mut().zip(levels.as_chunks::<8>().0) {
                        let code = |i: usize| code_of[usize::from(levels[i] as u8)];
                        *to = std::array::from_fn(|i| code(i) | code(i + 4) << 4);
                    }
                }
            }
            for (step, to) in tiles.chunks_exact_mut(format.step_bytes()).enumerate() {
                let of_step = &scales[step * format.groups()..][..format.groups()];
                let (to_scales, rest) = to.split_at_mut(scale_bytes);
                format.write_scales(to_scales, row - first, |group| (of_step[group].d, of_step[group].ratio));
                if format.mins {
                    let of_group = |group: usize| (of_step[group].m, of_step[group].min_ratio);
                    format.write_scales(&mut rest[..min_bytes], row - first, of_group);
                }
            }
        }
        for (step, to) in tiles.chunks_exact_mut(format.step_bytes()).enumerate() {
            let tiles = &mut to[scale_bytes + min_bytes..];
            match format.codes {
                Codes::Eight => transpose::<64>(&converted, row_bytes, step, tiles),
                Codes::Four { .. } => transpose::<32>(&converted, row_bytes, step, tiles),
            }
        }
    }
}

/// Scratch of a packing task.
#[derive(Default)]
struct Scratch {
    /// One source row.
    row: Vec<f32>,
    /// 32 converted rows of padded K.
    converted: Vec<u8>,
    /// Int4: one row of integers, padded to a step.
    q: Vec<i8>,
    /// Prequantized: the scales of one row. Uneven levels: steps.
    group_scales: Vec<f32>,
    /// Integers: the ratios of 32 rows, those of int4 padded to a step.
    ratios: Vec<i8>,
}

/// Packs columns `32 * pair..` of the result; returns the class of its ratios.
struct PackPair<'a> {
    shape: MatrixShape,
    class: WeightClass,
    pair: usize,
    source: Source<'a>,
    /// Rows that were read before.
    sample: Option<&'a Sample>,
    /// Of the columns; see [`Sample::exponents`].
    exponents: &'a [u8],
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
    fn pack(mut self, by: impl Fit) -> Ratios {
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

    /// Converts one row, the pair's `index`th, to the class's format.
    #[inline(always)]
    fn convert(&mut self, by: impl Fit, row: usize, index: usize, (row_bytes, groups): (usize, usize)) {
        let Scratch { row: values, converted, q, group_scales, ratios } = &mut *self.scratch;
        let converted = &mut converted[index * row_bytes..][..row_bytes];
        match self.source {
            Source::Floats(rows) => {
                match self.sample.and_then(|sample| sample.row(row)) {
                    Some(read) => values.copy_from_slice(read),
                    None => (rows.0)(row, values),
                }
                for (value, &exponent) in values.iter_mut().zip(self.exponents) {
                    *value *= inverse_power(exponent);
                }
            }
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
                // Uneven levels are already codes of 0..=15.
                let first = match self.source {
                    Source::Floats(_) | Source::Int8(_) => {
                        self.scales[index] = uneven::quantize(by, values, own, ratios, group_scales);
                        0
                    }
                    Source::Int4(_) => {
                        self.scales[index] = int4::import(own, group_scales, ratios);
                        8
                    }
                };
                for (to, q) in converted.as_chunks_mut::<4>().0.iter_mut().zip(q.as_chunks::<8>().0) {
                    *to = std::array::from_fn(|i| (q[i] + first) as u8 | ((q[i + 4] + first) as u8) << 4);
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
