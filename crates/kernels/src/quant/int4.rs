//! Int4 rows with even levels: the quantizer of files that we write, and the ratios of prequantized rows.
//! (`--weights int4` uses uneven levels: [`super::uneven`].)
//!
//! ```text
//! w[k] = scale * ratio[k / 32] * q[k]       scale f32 per row, ratio -127..=127 per group of 32, q in -8..=7
//! ```
//! Ratios are signed so that a group's largest weight may be -8 steps regardless of its sign, as in GGUF's Q4_0.
//!
//! The product of a row is `scale` times the exact integer `T = sum of ratio * q * x`, so it must fit i32 for any
//! activations (`|x| <= 127`): our ratios are at most 15, and 133 000 * 15 * 8 * 127 < 2^31; imported ones are reduced
//! where the row's `127 * sum of |ratio * q|` would not fit.
//!
//! Rows that we quantize survive a file: their ratios have no common divisor and their scale has 20 significant bits
//! (17 from [`super::feedback`], with ratios of up to 127), so every `scale * ratio` is an f32 without rounding, and
//! importing those products gives the same scale and ratios again.

use super::{SMALLEST_ABSMAX, absmax_bits, greatest_common_divisor, ratios_that_fit};
use crate::isa::Isa;
use crate::simd::{Kernel, LANES, Simd, dispatch, sum};

/// Weights that share a ratio.
pub const GROUP: usize = 32;

/// Largest ratio of this quantizer. `ratio * q` then fits int8, so that tiles take a group directly.
pub(crate) const MAX_OWN_RATIO: i8 = 15;

/// Candidate scales of a row, relative to the one that clips nothing: a large scale clips no weight, a smaller one rounds
/// all the others better.
const SHRINK: [f32; 5] = [1.0, 0.94, 0.88, 0.82, 0.76];
/// Candidate ratios of a group: from this part of the one that clips nothing up to that one.
const SMALLEST_PART: f32 = 0.7;

/// Quantizes a row to int4: `x[k]` becomes `scale * ratios[k / 32] * q[k]`, and the scale is returned. `q` is as long
/// as `x`, `ratios` has one entry per 32 elements, in `-15..=15`.
///
/// Least squared error over a small search: five scales for the row; for each group every ratio from 0.7 of the one that
/// clips nothing; finally the best scale for the chosen integers, `sum(w r q) / sum((r q)^2)`. (GPTQ's `mse` option and
/// llama.cpp's `make_qx_quants` also search the scale instead of taking the largest weight's.) A row with NaN or
/// infinity gets `q = 0` and scale NaN, so that its products are NaN.
pub fn quantize_int4_row(x: &[f32], q: &mut [i8], ratios: &mut [i8]) -> f32 {
    assert!(q.len() == x.len() && ratios.len() == x.len().div_ceil(GROUP), "q or ratios do not fit the row");
    dispatch(Isa::best(), Quantize { x, q, ratios })
}

/// [`quantize`] as a kernel.
struct Quantize<'a> {
    x: &'a [f32],
    q: &'a mut [i8],
    ratios: &'a mut [i8],
}

impl Kernel for Quantize<'_> {
    type Output = f32;

    fn define(self) -> f32 {
        quantize(Plain, self.x, self.q, self.ratios)
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        quantize(InLanes(s), self.x, self.q, self.ratios)
    }
}

/// The inner loops of the search, which take nearly all of its time.
pub(super) trait Measure: Copy {
    /// The smallest and the largest weight, 0 if none is below or above.
    fn ends(self, group: &[f32; GROUP]) -> (f32, f32);
    /// The squared error of a group in steps of this size: 16 sums, then [`sum`].
    fn error(self, group: &[f32; GROUP], step: f32) -> f32;
}

#[derive(Clone, Copy)]
pub(super) struct Plain;

/// The same bits in lanes. (Compilers do not vectorize the loops: a first start of the 0.5B shape took 8.2 s and takes
/// 5.2.)
#[derive(Clone, Copy)]
pub(super) struct InLanes<S>(pub(super) S);

impl Measure for Plain {
    fn ends(self, group: &[f32; GROUP]) -> (f32, f32) {
        group
            .iter()
            .fold((0.0, 0.0), |(low, high), &x| (if x < low { x } else { low }, if x > high { x } else { high }))
    }

    fn error(self, group: &[f32; GROUP], step: f32) -> f32 {
        let inverse = inverse(step);
        let mut lanes = [0f32; LANES];
        for half in group.as_chunks::<LANES>().0 {
            for (lane, &x) in lanes.iter_mut().zip(half) {
                let error = x - round(x, inverse) * step;
                *lane += error * error;
            }
        }
        sum(lanes)
    }
}

impl<S: Simd> InLanes<S> {
    #[inline(always)]
    pub(super) fn halves(self, group: &[f32; GROUP]) -> (S::V, S::V) {
        // SAFETY: a group is two times 16 numbers.
        unsafe { (self.0.load(group.as_ptr()), self.0.load(group.as_ptr().add(LANES))) }
    }
}

impl<S: Simd> Measure for InLanes<S> {
    #[inline(always)]
    fn ends(self, group: &[f32; GROUP]) -> (f32, f32) {
        let (s, (a, b)) = (self.0, self.halves(group));
        let zero = s.splat(0.0);
        let high = s.max_lane(s.max(s.max(a, b), zero));
        let low = s.max_lane(s.sub(zero, s.min(s.min(a, b), zero)));
        (-low, high)
    }

    #[inline(always)]
    fn error(self, group: &[f32; GROUP], step: f32) -> f32 {
        let s = self.0;
        let (inverse, magic, step) = (s.splat(inverse(step)), s.splat(MAGIC), s.splat(step));
        let (low, high) = (s.splat(-8.0), s.splat(7.0));
        let (mut squares, (a, b)) = ([s.splat(0.0); 2], self.halves(group));
        for (square, x) in squares.iter_mut().zip([a, b]) {
            let rounded = s.sub(s.add(s.mul(x, inverse), magic), magic);
            let error = s.sub(x, s.mul(s.min(s.max(rounded, low), high), step));
            *square = s.mul(error, error);
        }
        s.sum(s.add(squares[0], squares[1]))
    }
}

/// See [`quantize_int4_row`]; inlined into a function of each instruction set.
#[inline(always)]
fn quantize(by: impl Measure, x: &[f32], q: &mut [i8], ratios: &mut [i8]) -> f32 {
    let absmax = f32::from_bits(absmax_bits(x));
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        q.fill(0);
        ratios.fill(0);
        return if absmax.is_finite() { 0.0 } else { f32::NAN };
    }
    // Loops instead of adapters: the closure of a `fold` is a separate function, compiled without the instruction set.
    let mut widest = 0f32;
    for group in groups(x) {
        widest = widest.max(unclipped(by, &group).abs());
    }
    let mut best = (f64::INFINITY, 0.0);
    for shrink in SHRINK {
        let scale = widest * shrink / f32::from(MAX_OWN_RATIO);
        let mut error = 0f64;
        for group in groups(x) {
            error += f64::from(best_ratio(by, &group, scale).1);
        }
        if error < best.0 {
            best = (error, scale);
        }
    }
    let scale = best.1;
    let (mut product, mut square) = (0f64, 0f64);
    for ((group, q), ratio) in groups(x).zip(q.chunks_mut(GROUP)).zip(&mut *ratios) {
        *ratio = best_ratio(by, &group, scale).0;
        let inverse = inverse(f32::from(*ratio) * scale);
        for (q, x) in q.iter_mut().zip(group) {
            let rounded = round(x, inverse);
            *q = rounded as i8;
            let integer = f64::from(rounded) * f64::from(*ratio);
            product += integer * f64::from(x);
            square += integer * integer;
        }
    }
    let divisor = greatest_common_divisor(ratios);
    ratios.iter_mut().for_each(|ratio| *ratio /= divisor);
    shortened(if square > 0.0 { (product / square * f64::from(divisor)) as f32 } else { scale })
}

/// Rounded to 20 significant bits, so that a product with a 4-bit ratio is exact.
fn shortened(scale: f32) -> f32 {
    f32::from_bits((scale.to_bits() + 8) & !15)
}

/// The groups of a row, the last one zero-padded.
#[inline(always)]
pub(super) fn groups(x: &[f32]) -> impl Iterator<Item = [f32; GROUP]> {
    x.chunks(GROUP).map(|part| {
        let mut group = [0.0; GROUP];
        group[..part.len()].copy_from_slice(part);
        group
    })
}

/// The scale of smallest magnitude that clips nothing of a group; its sign makes the largest weight negative.
#[inline(always)]
fn unclipped(by: impl Measure, group: &[f32; GROUP]) -> f32 {
    let (low, high) = by.ends(group);
    let (positive, negative) = ((high / 7.0).max(low / -8.0), (high / 8.0).max(low / -7.0));
    if positive <= negative { positive } else { -negative }
}

/// The ratio with the least squared error, and that error.
#[inline(always)]
fn best_ratio(by: impl Measure, group: &[f32; GROUP], scale: f32) -> (i8, f32) {
    let unclipped = unclipped(by, group) / scale;
    let sign = if unclipped < 0.0 { -1 } else { 1 };
    let last = (unclipped.abs().ceil() as i8).min(MAX_OWN_RATIO);
    let first = ((unclipped.abs() * SMALLEST_PART) as i8).min(last);
    let mut best = (first * sign, f32::INFINITY);
    for ratio in (first..=last).map(|ratio| ratio * sign) {
        let error = by.error(group, f32::from(ratio) * scale);
        if error < best.1 {
            best = (ratio, error);
        }
    }
    best
}

#[inline(always)]
pub(super) fn inverse(step: f32) -> f32 {
    if step == 0.0 { 0.0 } else { 1.0 / step }
}

/// 1.5 * 2^23: adding it rounds a small number to an integer.
const MAGIC: f32 = 12_582_912.0;

/// `x * inverse` to the nearest of -8..=7, ties to even.
#[inline(always)]
fn round(x: f32, inverse: f32) -> f32 {
    let rounded = (x * inverse + MAGIC) - MAGIC;
    let rounded = if rounded < -8.0 { -8.0 } else { rounded };
    if rounded > 7.0 { 7.0 } else { rounded }
}

/// Ratios and scale of a prequantized row. `q` is kept, unless the row is broken (a scale is not finite): then `q` is 0
/// and the scale NaN.
pub(super) fn import(q: &mut [i8], scales: &[f32], ratios: &mut [i8]) -> f32 {
    debug_assert!(q.iter().all(|q| (-8..=7).contains(q)), "an int4 weight outside -8..=7");
    let largest = f32::from_bits(absmax_bits(scales));
    if !largest.is_finite() || largest < SMALLEST_ABSMAX {
        q.fill(0);
        ratios.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    // As fine as with 127 steps, with the fewest steps that reach it: equal scales need one.
    let tolerance = largest / 254.0;
    let fine = |&steps: &i8| {
        let scale = largest / f32::from(steps);
        scales.iter().all(|s| (s - (s / scale).round_ties_even() * scale).abs() <= tolerance)
    };
    // Multiples of one scale are kept exactly, even if that takes more steps.
    let exact = |&steps: &i8| {
        let scale = largest / f32::from(steps);
        scales.iter().all(|s| (s - (s / scale).round_ties_even() * scale).abs() <= largest * f32::EPSILON)
    };
    let steps = (1..=MAX_OWN_RATIO).find(fine).or_else(|| (MAX_OWN_RATIO + 1..=i8::MAX).find(exact));
    let steps = steps.unwrap_or(i8::MAX);
    ratios_that_fit(q, scales, GROUP, ratios, steps, |steps, _| steps - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_of_one_scale_stay_what_they_are() {
        let base = f32::from_bits(0.003f32.to_bits() & !127); // 17 bits
        for ratios in [[1i8, 2, 3], [15, -7, 4], [97, 50, -3], [127, 126, 125], [16, 101, 0]] {
            let scales = ratios.map(|ratio| f32::from(ratio) * base);
            let (mut q, mut found) = ([3i8; 96], [0i8; 3]);
            let scale = import(&mut q, &scales, &mut found);
            let restored = found.map(|ratio| f32::from(ratio) * scale);
            assert_eq!(restored, scales, "{ratios:?}");
        }
    }

    /// Gaussian-like numbers: sums of uniform ones.
    fn row(seed: u32, len: usize) -> Vec<f32> {
        testing::Dice::new(seed.into()).normals(len)
    }

    /// The relative squared error of the quantizer.
    fn error(x: &[f32]) -> f64 {
        let (mut q, mut ratios) = (vec![0; x.len()], vec![0; x.len().div_ceil(GROUP)]);
        let scale = quantize_int4_row(x, &mut q, &mut ratios);
        assert!(ratios.iter().all(|ratio| ratio.abs() <= MAX_OWN_RATIO) && q.iter().all(|q| (-8..=7).contains(q)));
        let restored = q.iter().enumerate().map(|(k, &q)| (i32::from(q) * i32::from(ratios[k / GROUP])) as f32 * scale);
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        squares(&mut x.iter().zip(restored).map(|(x, restored)| x - restored)) / squares(&mut x.iter().copied())
    }

    #[test]
    fn the_search_beats_the_scale_of_the_largest_weight() {
        for seed in 0..20 {
            let x = row(seed, 777);
            // Q4_0 without its rounding of scales: the weight of largest magnitude becomes -8.
            let plain: f64 = x
                .chunks(GROUP)
                .flat_map(|group| {
                    let largest = group.iter().fold(0f32, |a, &b| if b.abs() > a.abs() { b } else { a });
                    let scale = largest / -8.0;
                    group.iter().map(move |x| f64::from(x - (x / scale).round().clamp(-8.0, 7.0) * scale).powi(2))
                })
                .sum();
            let plain = plain / x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let searched = error(&x);
            println!("seed={seed}: {searched:.3e}, the plain quantizer {plain:.3e}");
            assert!(searched < plain, "seed={seed}: {searched:.2e}, the plain quantizer {plain:.2e}");
        }
    }

    #[test]
    fn every_instruction_set_finds_the_same() {
        for seed in 0..60 {
            let len = [1, 31, 32, 33, 64, 96, 777][seed as usize % 7];
            let mut x: Vec<f32> = row(seed, len).iter().map(|x| x * 10f32.powi(seed as i32 % 7 - 5)).collect();
            if seed % 5 == 0 {
                x[..len.min(32)].fill(0.0);
            }
            let quantized = |isa: Option<Isa>| {
                let (mut q, mut ratios) = (vec![0; len], vec![0; len.div_ceil(GROUP)]);
                let kernel = Quantize { x: &x, q: &mut q, ratios: &mut ratios };
                let scale = match isa {
                    Some(isa) => dispatch(isa, kernel),
                    None => kernel.define(),
                };
                (scale.to_bits(), q, ratios)
            };
            let defined = quantized(None);
            for isa in Isa::available() {
                assert_eq!(quantized(Some(isa)), defined, "seed={seed} len={len} {isa:?}");
            }
        }
    }

    #[test]
    fn what_is_int4_already_is_found_again() {
        let ratios = [15, -3, 9, 1];
        let x: Vec<f32> = (0..128).map(|k| ((k * 5 % 16 - 8) * ratios[k as usize / GROUP]) as f32 * 0.25).collect();
        assert!(error(&x) < 1e-12, "{:e}", error(&x));
    }

    #[test]
    fn our_own_rows_are_imported_as_they_are() {
        for seed in 0..300 {
            let len = [1, 31, 32, 33, 64, 96, 777][seed as usize % 7];
            let x: Vec<f32> = row(seed, len).iter().map(|x| x * 10f32.powi(seed as i32 % 7 - 5)).collect();
            let (mut q, mut ratios) = (vec![0; len], vec![0; len.div_ceil(GROUP)]);
            let scale = quantize_int4_row(&x, &mut q, &mut ratios);
            let scales: Vec<f32> = ratios.iter().map(|ratio| f32::from(*ratio) * scale).collect();
            for (ratio, product) in ratios.iter().zip(&scales) {
                assert_eq!(f64::from(*product), f64::from(*ratio) * f64::from(scale), "seed={seed}: it was rounded");
            }
            let (mut imported, wanted) = (vec![0; ratios.len()], q.clone());
            let found = import(&mut q, &scales, &mut imported);
            assert_eq!((found, imported, q), (scale, ratios, wanted), "seed={seed} len={len}");
        }
    }

    #[test]
    fn rows_without_a_scale() {
        let (mut q, mut ratios) = ([9; 40], [9; 2]);
        assert_eq!(quantize_int4_row(&[0.0; 40], &mut q, &mut ratios), 0.0);
        assert_eq!((q, ratios), ([0; 40], [0; 2]));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 40];
            x[33] = bad;
            assert!(quantize_int4_row(&x, &mut q, &mut ratios).is_nan());
            assert_eq!((q, ratios), ([0; 40], [0; 2]));
        }
    }
}
