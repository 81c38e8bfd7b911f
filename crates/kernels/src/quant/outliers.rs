//! Activations as integers: one scale per row that fits most of them, and further digits for the outliers.
//!
//! ```text
//! row of x       | 4 | 4 | 4 | ...   in quads, as the integer instructions take them
//! limit          the bf16 number that only one in 32 quads exceeds, but at most 4 times the one that a quarter exceeds; if
//!                the largest magnitude is at most 1.5 times the first and 4 times the second, it is the limit;
//!                scale = limit / 127
//! x / scale      low + 255 * middle + 65,025 * high, each digit in -127..=127
//! low            [K] i8, dense: the operand of the matrix kernels
//! middle, high   only for quads that exceed the limit: a list of (quad, four digits) each
//! ```
//! Language models have a few input channels that are ten to a thousand times as large as the others (LLM.int8():
//! Dettmers et al., 2022; massive activations: Sun et al., 2024). A scale that covers them leaves the others a handful
//! of steps; here they get additional digits and the scale fits the others. Every digit's sum is an exact integer, so
//! its order and instruction do not matter.

use super::{SMALLEST_ABSMAX, absmax_bits, nearest};

/// Activations per list entry.
pub const QUAD: usize = 4;
/// Peaks that are compared at once.
pub(crate) const LANES: usize = 32;
/// One in `FEW` quads exceeds the limit in a row without distinct outliers.
const FEW: usize = 32;
/// At most one in `MANY` quads may exceed it in a row with more outliers: their lists are the price of a scale that fits
/// the rest.
const MANY: usize = 4;
/// Maximum of the limit relative to the peak that one in `MANY` exceeds. (Of normal numbers one quad in 32 exceeds 1.5
/// times what one in 4 exceeds.)
const LIMIT_ABOVE_MANY: f32 = 4.0;
/// A row whose largest number is at most this multiple of what one in `FEW` exceeds has no outliers. (The coarser scale
/// costs less than lists do. KL by factors 1, 2 and 3 on 9 kB of text: SmolLM2 0.0016, 0.0027, 0.0071.)
const MILD: f32 = 1.5;
/// Unit of a digit relative to the one below it.
pub(crate) const BASE: i32 = 255;
/// Lists of digits beyond the dense one.
pub const PLANES: usize = 2;
/// The limit is at least this part of the largest magnitude: integers then stay below 2^22.
const SMALLEST_LIMIT: f32 = 1.0 / 32_768.0;

/// Digits of a quad that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Outlier {
    /// Index of the quad: inputs `4 * quad ..`.
    pub quad: u32,
    /// In -127..=127.
    pub digits: [i8; QUAD],
    /// -128 times their sum: the initial value of a sum whose weights are stored as `w + 128`.
    pub start: i32,
}

impl Outlier {
    /// Fills lists initially.
    pub const NONE: Outlier = Outlier { quad: 0, digits: [0; QUAD], start: 0 };
}

// SAFETY: twelve bytes of integers, no padding.
unsafe impl crate::mem::Pod for Outlier {}

/// Maximum entries of each list of a row of `width` elements.
pub const fn max_outliers(width: usize) -> usize {
    width.div_ceil(QUAD) / MANY
}

/// Destination of a row's digits.
pub struct Digits<'a> {
    /// The low digits, at least as many as the row has elements; the rest becomes zero.
    pub low: &'a mut [i8],
    /// The middle and the high ones, [`max_outliers`] long each.
    pub outliers: [&'a mut [Outlier]; PLANES],
    /// Scratch: one per quad, rounded up to a multiple of 32.
    pub peaks: &'a mut [u16],
}

/// Returns a row's scale and the length of each list: `x = scale * (low + 255 * middle + 65,025 * high)`, rounded to
/// nearest even. The high list has an entry only where the middle one has.
///
/// A row with NaN or infinity has no digits and scale NaN, so that its products are NaN; one whose largest magnitude is
/// below [`SMALLEST_ABSMAX`] has no digits and scale 0.
pub fn quantize_activations(x: &[f32], to: Digits<'_>) -> (f32, [usize; PLANES]) {
    quantize_by(Plain, x, to)
}

/// [`quantize_activations`], inlined into a function of each instruction set, with its loops.
#[inline(always)]
pub(crate) fn quantize_by(loops: impl QuantLoops, x: &[f32], to: Digits<'_>) -> (f32, [usize; PLANES]) {
    let Digits { low, outliers: [middle_list, high_list], peaks } = to;
    let (low, rest) = low.split_at_mut(x.len());
    rest.fill(0);
    let quads = x.len().div_ceil(QUAD);
    let (all, _) = peaks[..quads.next_multiple_of(LANES)].as_chunks_mut::<LANES>();
    if let Some(last) = all.last_mut() {
        *last = [0; LANES];
    }
    let absmax = f32::from_bits(loops.peaks(x, &mut all.as_flattened_mut()[..quads]));
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        low.fill(0);
        return (if absmax.is_finite() { 0.0 } else { f32::NAN }, [0; PLANES]);
    }
    let whole = x.as_chunks::<QUAD>();
    let limit_bits = limit_of(loops, all, quads, up_to_bf16(&[absmax]));
    let limit = number(limit_bits).max(absmax * SMALLEST_LIMIT);
    let inverse = 127.0 / limit;
    loops.low_digits(x, inverse, low);
    let mut counts = [0; PLANES];
    for (first, part) in all.iter().enumerate() {
        let mut above = loops.at_least(part, limit_bits + 1);
        while above != 0 {
            let at = above.trailing_zeros() as usize;
            above &= above - 1;
            let quad = first * LANES + at;
            let first = quad * QUAD;
            let four = match whole.0.get(quad) {
                Some(four) => *four,
                None => std::array::from_fn(|i| whole.1.get(i).copied().unwrap_or(0.0)),
            };
            let (rest, digits) = digit(four.map(|x| nearest(x * inverse)));
            let digits = digits.map(|digit| digit as i8);
            match low[first..].first_chunk_mut::<QUAD>() {
                Some(to) => *to = digits,
                None => low[first..].iter_mut().zip(digits).for_each(|(to, digit)| *to = digit),
            }
            let (high, middle) = digit(rest);
            // A number that exceeds the limit by less than half a step has only a low digit; quads with a high digit list
            // their middle digits too, even if they are zero.
            let planes = if high != [0; QUAD] { 2 } else { usize::from(middle != [0; QUAD]) };
            let lists = [(&mut *middle_list, middle), (&mut *high_list, high)];
            for ((list, digits), count) in lists.into_iter().zip(&mut counts).take(planes) {
                let start = -128 * (digits[0] + digits[1] + digits[2] + digits[3]);
                list[*count] = Outlier { quad: quad as u32, digits: digits.map(|digit| digit as i8), start };
                *count += 1;
            }
        }
    }
    (limit / 127.0, counts)
}

/// `x = BASE * first + second`, the second in -127..=127, for magnitudes below 2^22.
#[inline(always)]
fn digit(x: [i32; QUAD]) -> ([i32; QUAD], [i32; QUAD]) {
    // The quotient is off by less than 2^-9, and 255 is odd: it is never that near to the middle of two integers.
    let above = x.map(|x| nearest(x as f32 * (1.0 / BASE as f32)));
    (above, std::array::from_fn(|i| x[i] - BASE * above[i]))
}

/// The largest magnitude rounded up to bf16, as its bits; at most the largest finite one.
#[inline(always)]
fn up_to_bf16(x: &[f32]) -> u16 {
    let mut largest = 0u32;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    ((largest + 0xffff) >> 16).min(0x7f7f) as u16
}

/// The limit for the peaks of a row, as bf16 bits. Two passes over the peaks detect a row without outliers; finding
/// where they begin takes at most 33.
#[inline(always)]
fn limit_of(loops: impl QuantLoops, peaks: &[[u16; LANES]], quads: usize, largest: u16) -> u16 {
    let is_within = |factor: f32, bits: u16, quads: usize| {
        let part = (number(bits) / factor).to_bits();
        loops.reached(peaks, ((part + 0xffff) >> 16) as u16) > quads
    };
    let (few, many) = (quads / FEW, quads / MANY);
    if is_within(MILD, largest, few) && is_within(LIMIT_ABOVE_MANY, largest, many) {
        return largest;
    }
    let limit = nth_largest(loops, peaks, few, largest);
    if is_within(LIMIT_ABOVE_MANY, limit, many) {
        return limit;
    }
    // Four times a bf16 number is a bf16 number, and this one is less than what one in `FEW` exceeds.
    ((LIMIT_ABOVE_MANY * number(nth_largest(loops, peaks, many, limit))).to_bits() >> 16) as u16
}

/// A number from its bf16 bits.
#[inline(always)]
fn number(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The number with `n` larger or equal ones besides it: the largest for `n = 0`. A binary search over the bits; none is
/// above `largest`.
#[inline(always)]
fn nth_largest(loops: impl QuantLoops, values: &[[u16; LANES]], n: usize, largest: u16) -> u16 {
    let mut found = 0u16;
    for bit in (0..15).rev() {
        let candidate = found | 1 << bit;
        if candidate <= largest && loops.reached(values, candidate) > n {
            found = candidate;
        }
    }
    found
}

/// The loops over a row. (The speed of compiled ones differs by up to a factor of ten, so instruction sets have their
/// own.)
pub(crate) trait QuantLoops: Copy {
    /// Stores the largest magnitude of each quad of `x`, rounded up to bf16: 16 bits that compare like the numbers.
    /// Returns that of all, as f32 bits: NaN and infinity are above every number.
    #[inline(always)]
    fn peaks(self, x: &[f32], peaks: &mut [u16]) -> u32 {
        let (quads, rest) = x.as_chunks::<QUAD>();
        for (peak, quad) in peaks.iter_mut().zip(quads) {
            *peak = up_to_bf16(quad);
        }
        if !rest.is_empty() {
            peaks[quads.len()] = up_to_bf16(rest);
        }
        absmax_bits(x)
    }

    /// Those of 32 peaks that are at least `bound`, as bits.
    #[inline(always)]
    fn at_least(self, peaks: &[u16; LANES], bound: u16) -> u32 {
        peaks.iter().enumerate().fold(0, |found, (i, &peak)| found | u32::from(peak >= bound) << i)
    }

    /// Number of peaks that are at least `bound`.
    #[inline(always)]
    fn reached(self, peaks: &[[u16; LANES]], bound: u16) -> usize {
        peaks.iter().map(|peaks| self.at_least(peaks, bound).count_ones() as usize).sum()
    }

    /// `low = round(x * inverse)` to nearest even, where that is within -127..=127; unspecified elsewhere, so that the
    /// quads of outliers are written again.
    #[inline(always)]
    fn low_digits(self, x: &[f32], inverse: f32, low: &mut [i8]) {
        for (low, &x) in low.iter_mut().zip(x) {
            *low = nearest(x * inverse).clamp(-127, 127) as i8;
        }
    }
}

/// The loops as they are defined.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl QuantLoops for Plain {
    #[inline(always)]
    fn reached(self, peaks: &[[u16; LANES]], bound: u16) -> usize {
        peaks.as_flattened().iter().filter(|peak| **peak >= bound).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Quantized {
        scale: f32,
        low: Vec<i8>,
        lists: [Vec<Outlier>; PLANES],
    }

    fn quantize(x: &[f32]) -> Quantized {
        let mut low = vec![9; x.len().next_multiple_of(64)];
        let mut lists = [(); PLANES].map(|()| vec![Outlier::NONE; max_outliers(x.len())]);
        let mut peaks = vec![9; x.len().div_ceil(QUAD).next_multiple_of(LANES)];
        let [middle, high] = &mut lists;
        let (scale, counts) =
            quantize_activations(x, Digits { low: &mut low, outliers: [middle, high], peaks: &mut peaks });
        lists.iter_mut().zip(counts).for_each(|(list, count)| list.truncate(count));
        Quantized { scale, low, lists }
    }

    impl Quantized {
        /// The integers that the digits represent.
        fn integers(&self, len: usize) -> Vec<i64> {
            let mut integers: Vec<i64> = self.low[..len].iter().map(|&q| q.into()).collect();
            for (list, unit) in self.lists.iter().zip([255, 65_025]) {
                for outlier in list {
                    for (i, &digit) in outlier.digits.iter().enumerate().filter(|(_, digit)| **digit != 0) {
                        integers[outlier.quad as usize * QUAD + i] += unit * i64::from(digit);
                    }
                }
            }
            integers
        }
    }

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        testing::Dice::new(seed.into()).normals(len)
    }

    #[test]
    fn every_number_is_its_digits() {
        for seed in 0..200 {
            let len = [1, 3, 64, 65, 127, 256, 1000, 2048][seed as usize % 8];
            let plain = noise(seed, len);
            let mut x = plain.clone();
            // Spikes of every size, in a number of places that depends on the seed.
            for i in 0..seed as usize % 40 {
                let at = (i * 37 + seed as usize) % len;
                x[at] = plain[at] * 10f32.powi(i as i32 % 6);
            }
            let quantized = quantize(&x);
            assert!(quantized.low[len..].iter().all(|&q| q == 0), "seed={seed}: padding");
            assert!(quantized.low.iter().all(|&q| q >= -127), "seed={seed}");
            let absmax = x.iter().fold(0f32, |max, x| max.max(x.abs()));
            assert!(quantized.scale >= absmax / 32_768.0 / 127.0 * 0.999, "seed={seed}");
            for (k, (&integer, &x)) in quantized.integers(len).iter().zip(&x).enumerate() {
                let error = (integer as f64 * f64::from(quantized.scale) - f64::from(x)).abs();
                let allowed = f64::from(quantized.scale) * 0.5 + f64::from(x.abs()) * 1e-6;
                assert!(error <= allowed, "seed={seed} k={k}: {x} became {integer} of {}", quantized.scale);
            }
            for outlier in &quantized.lists[1] {
                assert!(quantized.lists[0].iter().any(|middle| middle.quad == outlier.quad), "seed={seed}");
            }
            for outlier in quantized.lists.iter().flatten() {
                assert_eq!(outlier.start, outlier.digits.iter().map(|&d| -128 * i32::from(d)).sum::<i32>());
            }
        }
    }

    #[test]
    fn a_spike_does_not_coarsen_the_others() {
        let plain = noise(7, 1024);
        let calm = quantize(&plain).scale;
        for factor in [16.0, 256.0, 1024.0] {
            let mut spiked = plain.clone();
            spiked[77] = 3.0 * factor;
            let scale = quantize(&spiked).scale;
            assert!(scale <= calm * 1.01, "a spike of {factor}: scale {scale}, without it {calm}");
        }
    }

    #[test]
    fn nor_do_many_of_them() {
        let plain = noise(7, 1024);
        let calm = quantize(&plain).scale;
        for spikes in [8, 16, 32, 60] {
            for factor in [16.0, 256.0, 1024.0] {
                let mut spiked = plain.clone();
                (0..spikes).for_each(|spike| spiked[spike * 17] = 3.0 * factor);
                let scale = quantize(&spiked).scale;
                assert!(scale <= calm * 6.0, "{spikes} spikes of {factor}: scale {scale}, without them {calm}");
            }
        }
    }

    #[test]
    fn digits_are_those_of_integer_division() {
        for x in (-4_194_303..4_194_303).step_by(7).chain(-70_000..70_000) {
            let (above, digits) = digit([x; QUAD]);
            let wanted = (x + BASE / 2).div_euclid(BASE);
            assert_eq!((above[0], digits[0]), (wanted, x - BASE * wanted), "{x}");
            assert!(digits[0].abs() <= 127, "{x}");
        }
    }

    #[test]
    fn the_lists_never_overflow() {
        for len in [63, 64, 128, 1000] {
            // Equal values, steps, and powers of two: always at most one quad in 4 exceeds the limit.
            for shape in [|_| 1.0, |k| k as f32, |k| 2f32.powi(k as i32 % 100)] {
                let x: Vec<f32> = (0..len).map(shape).collect();
                let quantized = quantize(&x);
                assert!(quantized.lists.iter().all(|list| list.len() <= max_outliers(len)));
            }
        }
    }

    #[test]
    fn rows_without_a_scale() {
        for (x, is_nan) in
            [([0.0; 40], false), ([1e-38; 40], false), ([f32::NAN; 40], true), ([f32::INFINITY; 40], true)]
        {
            let quantized = quantize(&x);
            assert_eq!((quantized.scale.is_nan(), quantized.low), (is_nan, vec![0; 64]));
            assert!(is_nan || quantized.scale == 0.0);
        }
        let largest = quantize(&[f32::MAX; 8]);
        assert_eq!(largest.low[..8], [127; 8]);
        assert!(largest.scale.is_finite());
    }
}
