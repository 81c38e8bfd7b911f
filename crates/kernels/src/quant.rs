//! Weight classes, their roundings, and the packed layout that every matrix product reads.
//!
//! ```text
//! columns (output features)   0..16   16..32 | 32..48  48..64 | ...      strips of 16, in pairs
//! k step 0                    tile 0  tile 1 |                           a tile is 1 KiB:
//! k step 1                    tile 2  tile 3 |  next pair, after         bf16 [16 pairs of k][16 columns][2]   32 deep
//! ...                         ...            |  the whole of this one    int8 [16 quads of k][16 columns][4]   64 deep
//! ```
//! That is the order in which AMX loads tiles and VNNI loads vectors, and one linear stream for a matrix-vector product.
//! In both classes a tile is a 16 x 16 transpose of 4-byte groups. N is padded to 32 and K to one step, with zeros.

use crate::mem::{Buffer, OutOfMemory};
use crate::threads::Pool;
use std::sync::Mutex;

/// How weights are kept, and with it how their products are defined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WeightClass {
    /// Two bytes per weight; activations are rounded to bf16, products summed in f32 in the order of `TDPBF16PS`.
    Bf16,
    /// One byte per weight with a scale per output channel; activations int8 with a scale per row, exact i32 sums.
    Int8,
}

impl WeightClass {
    /// Depth of a tile: the k values that one 64-byte row of activations holds.
    pub const fn step(self) -> usize {
        match self {
            WeightClass::Bf16 => 32,
            WeightClass::Int8 => 64,
        }
    }
}

/// A matrix `[out_features, in_features]`, applied as `y = x w^T`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatrixShape {
    /// Width of `y`, N.
    pub out_features: usize,
    /// Width of `x`, K. At most 133 000, so that an int8 sum stays within i32.
    pub in_features: usize,
}

/// Where packing reads from: `source.0(row, out)` writes the row `0..out_features`, `in_features` exact f32 values.
/// Called from several threads, each row once.
pub struct RowSource<'a>(pub &'a (dyn Fn(usize, &mut [f32]) + Sync));

/// A weight matrix in the packed layout of this module.
pub struct PackedMatrix {
    shape: MatrixShape,
    class: WeightClass,
    tiles: Buffer<u8>,
    /// Int8: scale of each output channel, `[padded N]`. Empty for bf16.
    scales: Buffer<f32>,
}

/// Columns of a pair of strips.
pub const PAIR: usize = 32;
/// Bytes of a tile.
pub const TILE: usize = 1024;

/// Smaller activations (queries, keys, values and attention weights too) count as zero, so that no product and no sum
/// can be denormal: tiles flush denormals, fused multiply-add does not.
pub const SMALLEST_ACTIVATION: f32 = f32::from_bits((127 - 40) << 23); // 2^-40
/// As [`SMALLEST_ACTIVATION`], for weights.
pub const SMALLEST_WEIGHT: f32 = f32::from_bits((127 - 60) << 23); // 2^-60
/// A row or channel whose largest magnitude is smaller counts as zero in int8: 127 divided by it stays finite.
pub const SMALLEST_ABSMAX: f32 = f32::from_bits((127 - 100) << 23); // 2^-100

/// `x` rounded to bf16 (to nearest, ties to even), as the f32 with the same value; magnitudes below `smallest` become
/// +0. NaN stays NaN.
#[inline(always)]
pub fn round_to_bf16(x: f32, smallest: f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let kept = if magnitude > 0x7f80_0000 { bits | 0x0040_0000 } else { rounded };
    f32::from_bits(if magnitude < smallest.to_bits() { 0 } else { kept & 0xffff_0000 })
}

/// Largest magnitude of a row, as f32 bits. NaN and infinity compare above every number.
#[inline(always)]
fn absmax_bits(x: &[f32]) -> u32 {
    x.iter().fold(0u32, |max, v| max.max(v.to_bits() & 0x7fff_ffff))
}

/// Symmetric int8 with one scale: `q = round(x * (127 / absmax))` to nearest even, `scale = absmax / 127`.
/// `q` may be longer than `x`; the rest is zero. Returns the scale and the sum of `q`.
///
/// A row with NaN or infinity has `q = 0` and scale NaN, so that its products are NaN and not some number.
#[inline(always)]
pub fn quantize_row(x: &[f32], q: &mut [i8]) -> (f32, i32) {
    let absmax = f32::from_bits(absmax_bits(x));
    let (q, rest) = q.split_at_mut(x.len());
    rest.fill(0);
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        q.fill(0);
        return (if absmax.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    // Adding 1.5 * 2^23 leaves the integer nearest to a small number (ties to even) in the low bits of the sum.
    const MAGIC: f32 = 12_582_912.0;
    let inverse = 127.0 / absmax;
    let mut sum = 0i32;
    for (q, &x) in q.iter_mut().zip(x) {
        let integer = ((x * inverse) + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
        let integer = integer.clamp(-127, 127);
        sum += integer;
        *q = integer as i8;
    }
    (absmax / 127.0, sum)
}

impl PackedMatrix {
    /// Packs in parallel, a pair of strips per task, each row read once. Memory beyond the result: 32 rows per thread.
    pub fn pack(
        pool: Option<&Pool>,
        shape: MatrixShape,
        class: WeightClass,
        rows: &RowSource<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        let MatrixShape { out_features, in_features } = shape;
        assert!(out_features > 0 && in_features > 0, "an empty matrix");
        assert!(in_features <= 133_000, "an int8 sum over {in_features} products could leave i32");
        let steps = in_features.div_ceil(class.step());
        let pairs = out_features.div_ceil(PAIR);
        let mut tiles = Buffer::<u8>::zeroed(pairs * steps * 2 * TILE)?;
        let mut scales = Buffer::<f32>::zeroed(if class == WeightClass::Int8 { pairs * PAIR } else { 0 })?;

        // One lock per pair, never contended: the safe way to hand each task its own part of the result.
        let mut scale_parts = scales.chunks_mut(PAIR);
        let parts: Vec<_> = tiles
            .chunks_mut(steps * 2 * TILE)
            .map(|tiles| Mutex::new((tiles, scale_parts.next().unwrap_or(&mut []))))
            .collect();
        let scratch = Mutex::new(Vec::<PackScratch>::new());
        let task = |pair: usize| {
            let mut own = scratch.lock().unwrap().pop().unwrap_or_default();
            let mut part = parts[pair].lock().unwrap();
            let (tiles, scales) = &mut *part;
            pack_pair(shape, class, pair, rows, &mut own, tiles, scales);
            scratch.lock().unwrap().push(own);
        };
        // Contiguous shares rather than whoever is free: the thread that will read a strip writes it first.
        match pool {
            Some(pool) => pool.run(&|thread| crate::threads::share(pairs, pool.threads(), thread).for_each(&task)),
            None => (0..pairs).for_each(task),
        }
        drop(parts);
        Ok(PackedMatrix { shape, class, tiles, scales })
    }

    /// Shape without padding.
    pub fn shape(&self) -> MatrixShape {
        self.shape
    }

    /// Class of the weights.
    pub fn class(&self) -> WeightClass {
        self.class
    }

    /// Bytes of tiles and scales, padding included.
    pub fn bytes(&self) -> usize {
        self.tiles.bytes() + self.scales.bytes()
    }

    /// k steps of the padded depth.
    pub(crate) fn steps(&self) -> usize {
        self.shape.in_features.div_ceil(self.class.step())
    }

    /// Pairs of strips of the padded width.
    pub(crate) fn pairs(&self) -> usize {
        self.shape.out_features.div_ceil(PAIR)
    }

    /// Bytes of a pair of strips.
    pub(crate) fn pair_bytes(&self) -> usize {
        self.steps() * 2 * TILE
    }

    /// The tiles of a pair of strips, `[steps][2]` of them; the next pair follows in memory.
    pub(crate) fn pair(&self, pair: usize) -> &[u8] {
        let bytes = self.pair_bytes();
        &self.tiles[pair * bytes..][..bytes]
    }

    /// Scales of the output channels, padded; empty for bf16.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The weights of output channel `row`, dequantized, `[in_features]`.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.shape.out_features && out.len() == self.shape.in_features);
        let (strip, column) = (row % PAIR / 16, row % 16);
        let tiles = self.pair(row / PAIR).chunks_exact(TILE).skip(strip).step_by(2);
        for (out, tile) in out.chunks_mut(self.class.step()).zip(tiles) {
            let groups = tile.as_chunks::<64>().0.iter().map(|line| &line.as_chunks::<4>().0[column]);
            match self.class {
                WeightClass::Bf16 => {
                    for (out, &[a, b, c, d]) in out.chunks_mut(2).zip(groups) {
                        let both = [
                            f32::from_bits(u32::from_le_bytes([0, 0, a, b])),
                            f32::from_bits(u32::from_le_bytes([0, 0, c, d])),
                        ];
                        out.copy_from_slice(&both[..out.len()]);
                    }
                }
                WeightClass::Int8 => {
                    for (out, group) in out.chunks_mut(4).zip(groups) {
                        for (out, &q) in out.iter_mut().zip(group) {
                            *out = f32::from(q as i8) * self.scales[row];
                        }
                    }
                }
            }
        }
    }

    /// The int8 weight at `(row, k)`, or 0 in the padding of K: the layout as a formula, for the definition.
    pub(crate) fn int8_at(&self, row: usize, k: usize) -> i8 {
        let tile = &self.pair(row / PAIR)[(k / 64 * 2 + row % PAIR / 16) * TILE..][..TILE];
        tile[k % 64 / 4 * 64 + row % 16 * 4 + k % 4] as i8
    }

    /// The bf16 weight at `(row, k)` as f32, or 0 in the padding of K: the layout as a formula, for the definition.
    pub(crate) fn bf16_at(&self, row: usize, k: usize) -> f32 {
        let tile = &self.pair(row / PAIR)[(k / 32 * 2 + row % PAIR / 16) * TILE..][..TILE];
        let at = k % 32 / 2 * 64 + row % 16 * 4 + k % 2 * 2;
        f32::from_bits(u32::from_le_bytes([0, 0, tile[at], tile[at + 1]]))
    }
}

/// A task's memory while packing.
#[derive(Default)]
struct PackScratch {
    /// One row as it came.
    row: Vec<f32>,
    /// 32 converted rows of padded K.
    converted: Vec<i8>,
}

/// Packs columns `32 * pair..` of the result.
fn pack_pair(
    shape: MatrixShape,
    class: WeightClass,
    pair: usize,
    rows: &RowSource<'_>,
    scratch: &mut PackScratch,
    tiles: &mut [u8],
    scales: &mut [f32],
) {
    let row_bytes = tiles.len() / PAIR;
    scratch.row.resize(shape.in_features, 0.0);
    scratch.converted.clear();
    scratch.converted.resize(PAIR * row_bytes, 0);
    let first = pair * PAIR;
    for row in first..(first + PAIR).min(shape.out_features) {
        (rows.0)(row, &mut scratch.row);
        let converted = &mut scratch.converted[(row - first) * row_bytes..][..row_bytes];
        match class {
            WeightClass::Int8 => scales[row - first] = quantize_row(&scratch.row, converted).0,
            WeightClass::Bf16 => {
                for (to, &x) in converted.as_chunks_mut::<2>().0.iter_mut().zip(&scratch.row) {
                    let bits = (round_to_bf16(x, SMALLEST_WEIGHT).to_bits() >> 16) as u16;
                    *to = bits.to_le_bytes().map(|byte| byte as i8);
                }
            }
        }
    }
    for (tile_index, tile) in tiles.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
        let (step, strip) = (tile_index / 2, tile_index % 2);
        for column in 0..16 {
            let line = &scratch.converted[(strip * 16 + column) * row_bytes + step * 64..][..64];
            for (group, from) in line.as_chunks::<4>().0.iter().enumerate() {
                tile[group * 64 + column * 4..][..4].copy_from_slice(&from.map(|byte| byte as u8));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bf16_agrees_with_the_half_crate_but_for_tiny_numbers() {
        let mut state = 1u32;
        for _ in 0..1_000_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(state.rotate_left(7));
            let (got, want) = (round_to_bf16(x, SMALLEST_ACTIVATION), half::bf16::from_f32(x).to_f32());
            if x.is_nan() {
                assert!(got.is_nan());
            } else if x.abs() < SMALLEST_ACTIVATION {
                assert_eq!(got.to_bits(), 0);
            } else {
                assert_eq!(got.to_bits(), want.to_bits(), "{x:e}");
            }
        }
    }

    #[test]
    fn quantized_rows_follow_the_definition() {
        let row = [1.0f32, -2.0, 0.5, 0.0, 1.5 * 2.0 / 127.0, 2.5 * 2.0 / 127.0];
        let mut q = [9i8; 8];
        let (scale, sum) = quantize_row(&row, &mut q);
        assert_eq!(scale, 2.0 / 127.0);
        for (i, &q) in q.iter().enumerate() {
            let x = row.get(i).copied().unwrap_or(0.0);
            assert_eq!(f32::from(q), (x * (127.0f32 / 2.0)).round_ties_even(), "{i}");
        }
        assert_eq!(sum, q.iter().map(|&q| i32::from(q)).sum::<i32>());
        assert_eq!(quantize_row(&[0.0, -0.0, 1e-38], &mut q), (0.0, 0));
        assert_eq!(q, [0; 8]);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (scale, sum) = quantize_row(&[1.0, bad, 2.0], &mut q);
            assert!(scale.is_nan() && sum == 0 && q == [0; 8]);
        }
    }
}
