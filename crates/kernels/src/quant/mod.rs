//! Weight classes, their rounding, and the packed layout that every matrix product reads.
//!
//! ```text
//! columns (output features)   0..16   16..32 | 32..48  48..64 | ...      strips of 16, in pairs
//! k step 0                    tile 0  tile 1 |                           a tile is 1 KiB:
//! k step 1                    tile 2  tile 3 |  next pair, after         bf16 [16 pairs of k][16 columns][2]   32 deep
//! ...                         ...            |  the whole of this one    int8 [16 quads of k][16 columns][4]   64 deep
//! ```
//! That is the order in which AMX loads tiles and VNNI loads vectors, and one linear stream for a matrix-vector
//! product. In both classes a tile is a 16 x 16 transpose of 4-byte groups. N is padded to 32 and K to one step, with
//! zeros. The steps of an int8 pair follow its ratios, `[group of 128 k][32 columns]` i8, padded to 64 bytes.
//!
//! Behind an int8 or int4 matrix's scales are the exponents of its inputs, a byte each (`shifts`).
//!
//! Int4 is the same stream with half-size tiles and the group scales of a step before them:
//!
//! ```text
//! k step 0    ratios (64 B)   tile 0 (512 B)   tile 1 (512 B)          64 deep, 17 cache lines for 32 columns
//! tile        [8 lines][16 columns][4]: the low halves of line j are quad 2j of an int8 tile, the high ones quad
//!             2j + 1, each nibble q + 8 or the code of an uneven level: unpacking is one `and`, or one shift and one
//!             `and`, and for levels a shuffle
//! ratios      [strip][group of 32 k][16 columns] i8
//! ```

mod blocks;
mod feedback;
mod image;
mod int4;
mod int8;
mod outliers;
mod pack;
mod shifts;
mod uneven;

pub(crate) use blocks::value as block_value;
pub use blocks::{BlockFormat, BlockRows, BlockSource, Codes, GroupScale, Scales};
pub use feedback::{Factor, Gram, ROUNDED_ROWS, ScaleGrid};
pub use image::{ByteSource, Image, LAYOUT_VERSION};
pub use int4::{GROUP, quantize_int4_row};
pub use int8::{INT8_GROUP, quantize_int8_row};
pub(crate) use outliers::{BASE, LANES as PEAK_LANES, Plain, QuantLoops, quantize_by};
pub use outliers::{Digits, Outlier, PLANES, QUAD, max_outliers, quantize_activations};
pub(crate) use shifts::power;
pub(crate) use uneven::Levels;

use crate::isa::Isa;
use crate::mem::{Buffer, OutOfMemory};
use crate::node_parts::NodeParts;
use crate::threads::Pool;
use pack::Source;
use std::sync::Arc;

/// How weights are stored, which also determines the definition of their products.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WeightClass {
    /// Two bytes per weight; activations are rounded to bf16, products summed in f32 in the order of `TDPBF16PS`.
    Bf16,
    /// One byte per weight, a 7-bit integer scale per 128 of them (8.06 bits in total) and an f32 scale per output
    /// channel: `w = scale * ratio * q`. Activations are int8 with a scale per row and further digits for outliers
    /// ([`quantize_activations`]); sums over all of K are exact integers.
    Int8,
    /// Half a byte per weight, a signed 8-bit integer scale per 32 of them (4.25 bits in total) and an f32 scale per
    /// output channel: `w = scale * ratio * level`, the level one of 16 integers: -8 to 7 for prequantized weights,
    /// otherwise uneven ones, closer near zero, which reduces the error by a quarter. Activations and sums as
    /// for int8: the group scales and levels are integers so that the sum over all of K stays one exact integer.
    Int4,
}

impl WeightClass {
    /// Name for display and flags: `bf16`, `int8`, `int4`.
    pub const fn name(self) -> &'static str {
        match self {
            WeightClass::Bf16 => "bf16",
            WeightClass::Int8 => "int8",
            WeightClass::Int4 => "int4",
        }
    }

    /// Depth of a tile: the k values that one 64-byte row of activations holds.
    pub const fn step(self) -> usize {
        match self {
            WeightClass::Bf16 => 32,
            WeightClass::Int8 | WeightClass::Int4 => 64,
        }
    }

    /// Bytes before the steps of a pair of strips.
    pub(crate) const fn ratio_bytes(self, in_features: usize) -> usize {
        match self {
            WeightClass::Int8 => (in_features.div_ceil(INT8_GROUP) * PAIR).next_multiple_of(64),
            WeightClass::Bf16 | WeightClass::Int4 => 0,
        }
    }

    /// Bytes of one k step of a pair of strips.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            WeightClass::Bf16 | WeightClass::Int8 => 2 * TILE,
            WeightClass::Int4 => 2 * INT4_TILE + INT4_RATIOS,
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

/// Source of weights: `source.0(row, out)` writes the row `0..out_features`, `in_features` exact f32 values. Called from
/// several threads, once per row.
pub struct RowSource<'a>(pub &'a (dyn Fn(usize, &mut [f32]) + Sync));

/// Source of prequantized int4 weights: `source.0(row, q, scales)` writes row `0..out_features` as `q`, `[in_features]`
/// in `-8..=7`, and the scales of its groups of 32, `[in_features / 32]` rounded up, f32 of any sign. The weight is
/// `scales[k / 32] * q[k]`. Called from several threads, once per row.
///
/// Sources with wider groups repeat a scale for each group of 32.
pub struct Int4Source<'a>(pub &'a Int4Rows<'a>);

/// Source of prequantized int8 weights: `source.0(row, q, scales)` writes row `0..out_features`, `[in_features]`, and the
/// scales of its groups of 128, `[in_features / 128]` rounded up. Any `i8` is valid, including -128; at most 132 000 per
/// row. Called from several threads, once per row.
///
/// Sources with one scale per channel repeat it for each group.
pub struct Int8Source<'a>(pub &'a Int8Rows<'a>);

/// `(row, q, scales)`, see [`Int8Source`].
pub type Int8Rows<'a> = dyn Fn(usize, &mut [i8], &mut [f32]) + Sync + 'a;

/// `(row, q, scales)`, see [`Int4Source`].
pub type Int4Rows<'a> = dyn Fn(usize, &mut [i8], &mut [f32]) + Sync + 'a;

/// A weight matrix in the packed layout of this module.
pub struct PackedMatrix {
    shape: MatrixShape,
    class: WeightClass,
    /// Int8 and int4: the quantization groups of a file, instead of the class's native format.
    blocks: Option<BlockFormat>,
    /// One piece per pair of strips.
    tiles: Arc<NodeParts>,
    /// Int8 and int4: scale of each output channel, `[padded N]`; behind them, as bytes, the exponents of the inputs,
    /// `[K]` (zeros if no input is shifted). Empty for bf16 and for the groups of a file.
    scales: Arc<Buffer<f32>>,
    ratios: Ratios,
    /// Level table of int4 codes; even in other classes.
    levels: Levels,
    /// Whether inputs are multiplied by powers of two.
    shifted: bool,
}

/// Numbers that hold the scales of the outputs and the exponents of the inputs.
fn num_scales(shape: MatrixShape, class: WeightClass) -> usize {
    match class {
        WeightClass::Bf16 => 0,
        WeightClass::Int8 | WeightClass::Int4 => {
            shape.out_features.next_multiple_of(PAIR) + shape.in_features.div_ceil(size_of::<f32>())
        }
    }
}

/// Magnitude of a matrix's ratios, which determines how tiles compute it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Ratios {
    /// All are 1: the sum over all of K is one chain. True for int8 with one scale per channel.
    One,
    /// All are at most 15: `ratio * q` of int4 fits int8. True for int4 files written by us without calibration.
    Narrow,
    /// Others.
    Wide,
}

impl Ratios {
    fn of<'a>(ratios: impl IntoIterator<Item = &'a i8>) -> Ratios {
        let of_one = |&ratio: &i8| match ratio {
            // Padding and rows of zeros have ratio 0, and contribute nothing.
            0 | 1 => Ratios::One,
            _ if ratio.unsigned_abs() <= int4::MAX_OWN_RATIO.unsigned_abs() => Ratios::Narrow,
            _ => Ratios::Wide,
        };
        ratios.into_iter().map(of_one).max().unwrap_or(Ratios::One)
    }
}

/// Columns of a pair of strips.
pub const PAIR: usize = 32;
/// Bytes of a tile.
pub const TILE: usize = 1024;
/// Bytes of an int4 tile: 64 deep, 16 columns.
pub(crate) const INT4_TILE: usize = TILE / 2;
/// Bytes of the ratios of an int4 step: two strips, two groups, 16 columns.
pub(crate) const INT4_RATIOS: usize = 64;

/// Smaller activations (also queries, keys, values and attention weights) are flushed to zero, so that no product and no
/// sum is denormal: tiles flush denormals, fused multiply-add does not.
pub const SMALLEST_ACTIVATION: f32 = f32::from_bits((127 - 40) << 23); // 2^-40
/// As [`SMALLEST_ACTIVATION`], for weights.
pub const SMALLEST_WEIGHT: f32 = f32::from_bits((127 - 60) << 23); // 2^-60
/// A row or channel with a smaller maximum is zero in int8: 127 divided by the maximum stays finite.
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

/// GCD of ratios in -127..=127, at least 1.
fn greatest_common_divisor(ratios: &[i8]) -> i8 {
    fn of_two(a: u8, b: u8) -> u8 {
        if b == 0 { a } else { of_two(b, a % b) }
    }
    ratios.iter().fold(0, |divisor, ratio| of_two(divisor, ratio.unsigned_abs())).max(1) as i8
}

/// The integer nearest to a number of magnitude below 2^22, ties to even: after adding 1.5 * 2^23 it is in the low bits
/// of the sum.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// Ratios and scale of a prequantized row: ratios of at most `steps`, reduced until `127 * sum of |ratio * q|` fits i32.
/// `fewer` returns the next number of steps.
fn ratios_that_fit(
    q: &[i8],
    scales: &[f32],
    group: usize,
    ratios: &mut [i8],
    mut steps: i8,
    fewer: impl Fn(i8, u64) -> i8,
) -> f32 {
    let largest = f32::from_bits(absmax_bits(scales));
    loop {
        let scale = largest / f32::from(steps);
        let mut bound = 0u64;
        for ((ratio, scale_of_group), q) in ratios.iter_mut().zip(scales).zip(q.chunks(group)) {
            *ratio = (scale_of_group / scale).round_ties_even() as i8;
            bound += u64::from(ratio.unsigned_abs()) * q.iter().map(|q| u64::from(q.unsigned_abs())).sum::<u64>();
        }
        if 127 * bound <= i32::MAX as u64 {
            return scale;
        }
        steps = fewer(steps, bound);
    }
}

/// Symmetric int8 with one scale: `q = round(x * (127 / absmax))` to nearest even, `scale = absmax / 127`.
/// `q` may be longer than `x`; the rest is zero. Returns the scale and the sum of `q`.
///
/// A row with NaN or infinity gets `q = 0` and scale NaN, so that its products are NaN.
#[inline(always)]
pub fn quantize_row(x: &[f32], q: &mut [i8]) -> (f32, i32) {
    let absmax = f32::from_bits(absmax_bits(x));
    let (q, rest) = q.split_at_mut(x.len());
    rest.fill(0);
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        q.fill(0);
        return (if absmax.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    let inverse = 127.0 / absmax;
    let mut sum = 0i32;
    for (q, &x) in q.iter_mut().zip(x) {
        let integer = nearest(x * inverse).clamp(-127, 127);
        sum += integer;
        *q = integer as i8;
    }
    (absmax / 127.0, sum)
}

impl PackedMatrix {
    /// Packs in parallel, a pair of strips per task, reading each row once. Memory beyond the result: 32 rows per thread,
    /// and 128 rows that int8 and int4 read first.
    pub fn pack(
        pool: Option<&Pool>,
        isa: Isa,
        shape: MatrixShape,
        class: WeightClass,
        rows: &RowSource<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        pack::pack(pool, isa, shape, class, Source::Floats(rows))
    }

    /// As [`PackedMatrix::pack`], for weights that are already int8: every `q` is kept, and the scales of a channel become
    /// `scale * ratio`: exact if all are multiples, up to 127, of one, as with one scale per channel.
    pub fn pack_int8(
        pool: Option<&Pool>,
        isa: Isa,
        shape: MatrixShape,
        rows: &Int8Source<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        // 128 * 127 * K stays within i32.
        assert!(shape.in_features <= 132_000, "an int8 sum over {} products could leave i32", shape.in_features);
        pack::pack(pool, isa, shape, WeightClass::Int8, Source::Int8(rows))
    }

    /// As [`PackedMatrix::pack`], for weights that are already int4: every `q` is kept. The scales of a channel become
    /// `scale * ratio` with ratios as fine as the format allows (off by at most 1/254 of the channel's largest scale, and
    /// exact if all scales are multiples, up to 127, of one).
    pub fn pack_int4(
        pool: Option<&Pool>,
        isa: Isa,
        shape: MatrixShape,
        rows: &Int4Source<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        pack::pack(pool, isa, shape, WeightClass::Int4, Source::Int4(rows))
    }

    /// As [`PackedMatrix::pack`], for weights in the quantization groups of a file: every weight is kept. The class is
    /// int8 or int4 by the width of its codes.
    pub fn pack_blocks(
        pool: Option<&Pool>,
        isa: Isa,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        pack::pack_blocks(pool, isa, shape, format, rows)
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

    /// The class of the largest ratio.
    pub(crate) fn ratios(&self) -> Ratios {
        self.ratios
    }

    /// Level table of int4 codes.
    pub(crate) fn levels(&self) -> Levels {
        self.levels
    }

    /// The bytes of each pair of strips, in order: for the memory of another device.
    pub fn bytes_of_pairs(&self) -> impl Iterator<Item = &[u8]> {
        self.tiles.pieces()
    }

    /// The file's quantization groups, if the weights keep them.
    pub fn blocks(&self) -> Option<&BlockFormat> {
        self.blocks.as_ref()
    }

    /// Bytes before the steps of a pair.
    fn ratio_bytes(&self) -> usize {
        if self.blocks.is_some() { 0 } else { self.class.ratio_bytes(self.shape.in_features) }
    }

    /// Bytes of one k step of a pair of strips.
    pub(crate) fn step_bytes(&self) -> usize {
        self.blocks.as_ref().map_or(self.class.step_bytes(), BlockFormat::step_bytes)
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
        self.ratio_bytes() + self.steps() * self.step_bytes()
    }

    /// The ratios of a pair of strips, and its steps.
    pub(crate) fn pair(&self, pair: usize) -> (&[u8], &[u8]) {
        self.tiles.piece(pair).split_at(self.ratio_bytes())
    }

    /// Scales of the output channels, padded; empty for bf16.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales[..self.scales.len().min(self.pairs() * PAIR)]
    }

    /// Biased exponents of the powers of two that inputs are multiplied by, `[in_features]`; empty if none is.
    pub(crate) fn exponents(&self) -> &[u8] {
        match self.shifted {
            true => &self.scales.as_bytes()[self.pairs() * PAIR * size_of::<f32>()..][..self.shape.in_features],
            false => &[],
        }
    }

    /// The weights of output channel `row`, dequantized, `[in_features]`: one rounding for int8 and int4, and the power of
    /// two of each input.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.shape.out_features && out.len() == self.shape.in_features);
        if let Some(format) = &self.blocks {
            for (k, out) in out.iter_mut().enumerate() {
                *out = blocks::value(self.block_at(format, row, k), format.mins);
            }
            return;
        }
        let (strip, column) = (row % PAIR / 16, row % 16);
        let (pair_ratios, steps) = self.pair(row / PAIR);
        let steps = steps.chunks_exact(self.class.step_bytes());
        for (index, (out, step)) in out.chunks_mut(self.class.step()).zip(steps).enumerate() {
            match self.class {
                WeightClass::Bf16 => {
                    for (out, &[a, b, c, d]) in out.chunks_mut(2).zip(column_of(&step[strip * TILE..][..TILE], column))
                    {
                        let both = [
                            f32::from_bits(u32::from_le_bytes([0, 0, a, b])),
                            f32::from_bits(u32::from_le_bytes([0, 0, c, d])),
                        ];
                        out.copy_from_slice(&both[..out.len()]);
                    }
                }
                WeightClass::Int8 => {
                    let ratio = i32::from(pair_ratios[index * 64 / INT8_GROUP * PAIR + row % PAIR] as i8);
                    for (out, group) in out.chunks_mut(4).zip(column_of(&step[strip * TILE..][..TILE], column)) {
                        for (out, &q) in out.iter_mut().zip(group) {
                            *out = (i32::from(q as i8) * ratio) as f32 * self.scales[row];
                        }
                    }
                }
                WeightClass::Int4 => {
                    let ratios = [0, 1].map(|group| i32::from(step[strip * 32 + group * 16 + column] as i8));
                    let lines = column_of(&step[INT4_RATIOS + strip * INT4_TILE..][..INT4_TILE], column);
                    for (line, (out, bytes)) in out.chunks_mut(8).zip(lines).enumerate() {
                        let nibbles = bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4));
                        for (out, nibble) in out.iter_mut().zip(nibbles) {
                            let level = i32::from(self.levels.table()[usize::from(nibble)]);
                            *out = (ratios[line / 4] * level) as f32 * self.scales[row];
                        }
                    }
                }
            }
        }
        out.iter_mut().zip(self.exponents()).for_each(|(out, &exponent)| *out *= power(exponent));
    }

    /// The level of the int4 weight at `(row, k)` and the ratio of its group, unspecified and 0 in the padding of K: the
    /// layout as a formula, for the definition.
    pub(crate) fn int4_at(&self, row: usize, k: usize) -> (i8, i8) {
        let (strip, column) = (row % PAIR / 16, row % 16);
        let step_bytes = self.class.step_bytes();
        let step = &self.pair(row / PAIR).1[k / 64 * step_bytes..][..step_bytes];
        let (line, high) = (k % 64 / 8, k % 8 / 4);
        let byte = step[INT4_RATIOS + strip * INT4_TILE + line * 64 + column * 4 + k % 4];
        let ratio = step[strip * 32 + k % 64 / GROUP * 16 + column];
        (self.levels.table()[usize::from(byte >> (4 * high) & 15)], ratio as i8)
    }

    /// The int8 weight at `(row, k)`, or 0 in the padding of K, and the ratio of its group: the layout as a formula,
    /// for the definition.
    pub(crate) fn int8_at(&self, row: usize, k: usize) -> (i8, i8) {
        let (ratios, steps) = self.pair(row / PAIR);
        let tile = &steps[(k / 64 * 2 + row % PAIR / 16) * TILE..][..TILE];
        (tile[k % 64 / 4 * 64 + row % 16 * 4 + k % 4] as i8, ratios[k / INT8_GROUP * PAIR + row % PAIR] as i8)
    }

    /// Level, scale and minimum of the weight at `(row, k)`: the layout as a formula, for the definition.
    pub(crate) fn block_at(&self, format: &BlockFormat, row: usize, k: usize) -> (i8, f32, f32) {
        let bytes = format.step_bytes();
        format.weight(&self.pair(row / PAIR).1[k / 64 * bytes..][..bytes], k % 64, row % PAIR)
    }

    /// The bf16 weight at `(row, k)` as f32, or 0 in the padding of K: the layout as a formula, for the definition.
    pub(crate) fn bf16_at(&self, row: usize, k: usize) -> f32 {
        let tile = &self.pair(row / PAIR).1[(k / 32 * 2 + row % PAIR / 16) * TILE..][..TILE];
        let at = k % 32 / 2 * 64 + row % 16 * 4 + k % 2 * 2;
        f32::from_bits(u32::from_le_bytes([0, 0, tile[at], tile[at + 1]]))
    }
}

/// The 4-byte groups of one column of a tile, from the top.
fn column_of(tile: &[u8], column: usize) -> impl Iterator<Item = &[u8; 4]> {
    tile.as_chunks::<64>().0.iter().map(move |line| &line.as_chunks::<4>().0[column])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bf16_agrees_with_the_half_crate_but_for_tiny_numbers() {
        let mut dice = testing::Dice::new(1);
        for _ in 0..1_000_000 {
            let x = f32::from_bits(dice.bits() as u32);
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
