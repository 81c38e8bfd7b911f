//! Activations as integers: one scale per row that fits the many, and further digits for the few that it does not fit.
//!
//! ```text
//! row of x       | 4 | 4 | 4 | ...   in quads, as the integer instructions take them
//! limit          the bf16 number that all but one in 16 quads stay below; scale = limit / 127
//! x / scale      low + 255 * middle + 65,025 * high, each digit in -127..=127
//! low            [K] i8, dense: what the matrix kernels multiply
//! middle, high   only of quads that pass the limit: a list of (quad, four digits) each
//! ```
//! Language models keep a few input channels that are ten to a thousand times as large as the others (LLM.int8():
//! Dettmers et al., 2022; massive activations: Sun et al., 2024). A scale that reaches them leaves the others a handful
//! of steps; here they get digits of their own and the scale is the others'. Every digit's sum is an exact integer, so
//! it does not matter in which order or by which instruction it is computed.

use super::{SMALLEST_ABSMAX, absmax_bits};

/// Activations that share an entry of the lists.
pub const QUAD: usize = 4;
/// One quad in so many may pass the limit.
const QUADS_PER_OUTLIER: usize = 16;
/// What a digit counts in units of the one below it.
pub(crate) const BASE: i32 = 255;
/// Lists of digits beyond the dense one.
pub const PLANES: usize = 2;
/// The limit is at least this part of the largest magnitude: integers then stay below 2^22.
const SMALLEST_LIMIT: f32 = 1.0 / 32_768.0;
/// Adding 1.5 * 2^23 leaves the integer nearest to a number below 2^22 (ties to even) in the low bits of the sum.
const MAGIC: f32 = 12_582_912.0;

/// Digits of a quad that passes the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Outlier {
    /// Which four inputs: `4 * quad ..`.
    pub quad: u32,
    /// In -127..=127.
    pub digits: [i8; QUAD],
    /// Their sum: what weights that are stored with an offset are corrected by.
    pub sum: i32,
}

impl Outlier {
    /// Fills lists before they are written.
    pub const NONE: Outlier = Outlier { quad: 0, digits: [0; QUAD], sum: 0 };
}

// SAFETY: twelve bytes of integers, no padding.
unsafe impl crate::mem::Pod for Outlier {}

/// Most entries of each list of a row of `width` numbers.
pub const fn max_outliers(width: usize) -> usize {
    width.div_ceil(QUAD) / QUADS_PER_OUTLIER
}

/// Where the digits of a row go.
pub struct Digits<'a> {
    /// The low ones, at least as many as the row has numbers; what lies beyond these becomes zero.
    pub low: &'a mut [i8],
    /// The middle and the high ones, [`max_outliers`] long each.
    pub outliers: [&'a mut [Outlier]; PLANES],
    /// Scratch, one for each quad.
    pub peaks: &'a mut [u16],
}

/// A row's scale and how many entries each list has: `x = scale * (low + 255 * middle + 65,025 * high)`, rounded to
/// nearest even. The high list has an entry only where the middle one has.
///
/// A row with NaN or infinity has no digits and scale NaN, so that its products are NaN and not some number; one whose
/// largest magnitude is below [`SMALLEST_ABSMAX`] has no digits and scale 0.
#[inline(always)]
pub fn quantize_activations(x: &[f32], to: Digits<'_>) -> (f32, [usize; PLANES]) {
    let Digits { low, outliers: [middle_list, high_list], peaks } = to;
    let (low, rest) = low.split_at_mut(x.len());
    rest.fill(0);
    let absmax = f32::from_bits(absmax_bits(x));
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        low.fill(0);
        return (if absmax.is_finite() { 0.0 } else { f32::NAN }, [0; PLANES]);
    }
    // Largest magnitude of each quad, rounded up to bf16: 16 bits that compare as the numbers do.
    let peaks = &mut peaks[..x.len().div_ceil(QUAD)];
    let whole = x.as_chunks::<QUAD>();
    for (peak, quad) in peaks.iter_mut().zip(whole.0) {
        *peak = up_to_bf16(quad);
    }
    if !whole.1.is_empty() {
        let last = peaks.len() - 1;
        peaks[last] = up_to_bf16(whole.1);
    }
    let limit_bits = nth_largest(peaks, max_outliers(x.len()));
    let limit = f32::from_bits(u32::from(limit_bits) << 16).max(absmax * SMALLEST_LIMIT);
    let inverse = 127.0 / limit;
    for (q, &x) in low.iter_mut().zip(x) {
        *q = integer(x, inverse).clamp(-127, 127) as i8;
    }
    let mut counts = [0; PLANES];
    for (first, part) in peaks.chunks(64).enumerate() {
        let mut any = false;
        for &peak in part {
            any |= peak > limit_bits;
        }
        if !any {
            continue;
        }
        for (at, _) in part.iter().enumerate().filter(|(_, peak)| **peak > limit_bits) {
            let quad = first * 64 + at;
            let inputs = quad * QUAD..(quad * QUAD + QUAD).min(x.len());
            let (mut middle, mut high) = ([0i32; QUAD], [0i32; QUAD]);
            for (i, at) in inputs.enumerate() {
                let (rest, digit) = digit(integer(x[at], inverse));
                low[at] = digit as i8;
                (high[i], middle[i]) = self::digit(rest);
            }
            // A number that passes the limit by less than half a step has one digit like any other; where there is a
            // high digit the middle ones are listed too, even if they are zero.
            let planes = if high != [0; QUAD] { 2 } else { usize::from(middle != [0; QUAD]) };
            let lists = [(&mut *middle_list, middle), (&mut *high_list, high)];
            for ((list, digits), count) in lists.into_iter().zip(&mut counts).take(planes) {
                let sum = digits[0] + digits[1] + digits[2] + digits[3];
                list[*count] = Outlier { quad: quad as u32, digits: digits.map(|digit| digit as i8), sum };
                *count += 1;
            }
        }
    }
    (limit / 127.0, counts)
}

/// The nearest integer, for magnitudes below 2^22.
#[inline(always)]
fn integer(x: f32, inverse: f32) -> i32 {
    ((x * inverse) + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// `x = BASE * first + second`, the second in -127..=127.
#[inline(always)]
fn digit(x: i32) -> (i32, i32) {
    let above = (x + BASE / 2).div_euclid(BASE);
    (above, x - BASE * above)
}

/// The largest magnitude rounded up to bf16, as its bits; the largest finite one at most.
#[inline(always)]
fn up_to_bf16(x: &[f32]) -> u16 {
    let mut largest = 0u32;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    ((largest + 0xffff) >> 16).min(0x7f7f) as u16
}

/// The number that `n` of them are larger than, or equal to: the largest for `n = 0`. Found bit by bit.
#[inline(always)]
fn nth_largest(values: &[u16], n: usize) -> u16 {
    let mut found = 0u16;
    for bit in (0..15).rev() {
        let candidate = found | 1 << bit;
        let mut reached = 0u32;
        for &value in values {
            reached += u32::from(value >= candidate);
        }
        if reached as usize > n {
            found = candidate;
        }
    }
    found
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
        let mut peaks = vec![0; x.len().div_ceil(QUAD)];
        let [middle, high] = &mut lists;
        let (scale, counts) =
            quantize_activations(x, Digits { low: &mut low, outliers: [middle, high], peaks: &mut peaks });
        lists.iter_mut().zip(counts).for_each(|(list, count)| list.truncate(count));
        Quantized { scale, low, lists }
    }

    impl Quantized {
        /// The integers that the digits stand for.
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
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| (0..6).map(|_| uniform()).sum()).collect()
    }

    #[test]
    fn every_number_is_its_digits() {
        for seed in 0..200 {
            let len = [1, 3, 64, 65, 127, 256, 1000, 2048][seed as usize % 8];
            let plain = noise(seed, len);
            let mut x = plain.clone();
            // Spikes of every size, in as many places as the seed says.
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
                assert_eq!(outlier.sum, outlier.digits.iter().map(|&d| i32::from(d)).sum::<i32>());
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
    fn the_lists_never_overflow() {
        for len in [63, 64, 128, 1000] {
            // All alike, steps, and powers of two: whatever is drawn, at most one quad in 16 passes the limit.
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
