//! Int8 rows: our quantizer, and the ratios of prequantized rows.
//!
//! ```text
//! w[k] = scale * ratio[k / 128] * q[k]      scale f32 per row, ratio 1..=127 per group of 128, q in -128..=127
//! ```
//! As in int4 the ratios are integers, so that the product of a row is `scale` times the exact integer
//! `T = sum of ratio * q * x`. It must fit i32 for any activation digits (`|x| <= 127`): the largest ratio of a row is
//! reduced until `127 * sum of |ratio * q|` fits.
//!
//! Our rows survive a file: their scale has 17 significant bits before it is multiplied by the ratios' common divisor,
//! so every `scale * ratio` is an f32 without rounding, and importing those products gives the same scale and ratios
//! again. (Equal weights would not suffice: `T` is rounded to f32, and `3 T` may round differently.)

use super::{SMALLEST_ABSMAX, absmax_bits, greatest_common_divisor, nearest, ratios_that_fit};

/// Weights that share a ratio.
pub const INT8_GROUP: usize = 128;

/// Quantizes a row to int8: `x[k]` becomes `scale * ratios[k / 128] * q[k]`, and the scale is returned. `q` is as long
/// as `x`, `ratios` has one entry per 128 elements, without a common divisor. No weight is clipped by more than the
/// rounding of its scale.
///
/// A row with NaN or infinity gets `q = 0` and scale NaN, so that its products are NaN.
#[inline(always)]
pub fn quantize_int8_row(x: &[f32], q: &mut [i8], ratios: &mut [i8]) -> f32 {
    let absmax = f32::from_bits(absmax_bits(x));
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        q.fill(0);
        ratios.fill(0);
        return if absmax.is_finite() { 0.0 } else { f32::NAN };
    }
    let mut steps = i8::MAX;
    loop {
        let scale = shortened(absmax / 127.0 / f32::from(steps));
        let mut bound = 0u64;
        for ((x, q), ratio) in x.chunks(INT8_GROUP).zip(q.chunks_mut(INT8_GROUP)).zip(&mut *ratios) {
            let needed = f32::from_bits(absmax_bits(x)) / (127.0 * scale);
            *ratio = needed.ceil().clamp(1.0, f32::from(steps)) as i8;
            bound += quantize_group(x, f32::from(*ratio) * scale, q) * u64::from(ratio.unsigned_abs());
        }
        if 127 * bound <= i32::MAX as u64 {
            let divisor = greatest_common_divisor(ratios);
            ratios.iter_mut().for_each(|ratio| *ratio /= divisor);
            return scale * f32::from(divisor); // exact
        }
        steps = smaller(steps, bound);
    }
}

/// `q = round(x / step)`, to nearest even, within -127..=127. Returns the sum of magnitudes.
#[inline(always)]
fn quantize_group(x: &[f32], step: f32, q: &mut [i8]) -> u64 {
    let inverse = 1.0 / step;
    let mut sum = 0i32;
    for (q, &x) in q.iter_mut().zip(x) {
        let integer = nearest(x * inverse).clamp(-127, 127);
        sum += integer.abs();
        *q = integer as i8;
    }
    sum as u64
}

/// The next number of steps to try when the sums of a row could reach `127 * bound`.
fn smaller(steps: i8, bound: u64) -> i8 {
    let fitting = f64::from(steps) * f64::from(i32::MAX) / (127.0 * bound as f64);
    assert!(steps > 1, "int8 row is too long: its sum does not fit i32");
    (fitting as i8).clamp(1, steps - 1)
}

/// Rounded up to 17 significant bits, so that a product with a 7-bit ratio is exact.
fn shortened(scale: f32) -> f32 {
    f32::from_bits((scale.to_bits() + 127) & !127)
}

/// Ratios and scale of a prequantized row, from the scales of its groups. `q` is kept, unless the row is broken (a scale
/// is not finite): then `q` is 0 and the scale NaN.
///
/// Exact if all scales are multiples, up to 127, of one, as with one scale per channel and in our own rows, and the sum
/// fits; otherwise a scale is off by at most 1/254 of the largest. A negative scale inverts the signs of its group.
pub(super) fn import(q: &mut [i8], scales: &[f32], ratios: &mut [i8]) -> f32 {
    let largest = f32::from_bits(absmax_bits(scales));
    // 128 times the scale is at least the largest weight, by which our own rows are judged.
    if !largest.is_finite() || largest * 128.0 < SMALLEST_ABSMAX {
        q.fill(0);
        ratios.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    let exact = |&steps: &i8| {
        let scale = largest / f32::from(steps);
        scales.iter().all(|s| (s / scale).round_ties_even() * scale == *s)
    };
    let steps = (1..=i8::MAX).find(exact).unwrap_or(i8::MAX);
    ratios_that_fit(q, scales, INT8_GROUP, ratios, steps, smaller)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seed: u32, len: usize) -> Vec<f32> {
        testing::Dice::new(seed.into()).normals(len)
    }

    fn quantized(x: &[f32]) -> (f32, Vec<i8>, Vec<i8>) {
        let (mut q, mut ratios) = (vec![9; x.len()], vec![9; x.len().div_ceil(INT8_GROUP)]);
        let scale = quantize_int8_row(x, &mut q, &mut ratios);
        (scale, q, ratios)
    }

    /// The largest possible sum over activation digits.
    fn worst(q: &[i8], ratios: &[i8]) -> i64 {
        let magnitude = |(k, q): (usize, &i8)| (i64::from(*q) * i64::from(ratios[k / INT8_GROUP])).abs();
        127 * q.iter().enumerate().map(magnitude).sum::<i64>()
    }

    #[test]
    fn every_weight_is_within_half_a_step_of_its_group() {
        for seed in 0..60 {
            let len = [1, 127, 128, 129, 777, 4096][seed as usize % 6];
            let mut x: Vec<f32> = row(seed, len).iter().map(|x| x * 10f32.powi(seed as i32 % 7 - 3)).collect();
            x[len / 2] *= 30.0;
            let (scale, q, ratios) = quantized(&x);
            assert!(worst(&q, &ratios) <= i32::MAX.into(), "seed={seed}");
            for (group, x) in x.chunks(INT8_GROUP).enumerate() {
                let absmax = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                let step = scale * f32::from(ratios[group]);
                assert!(step <= absmax / 127.0 + scale * 1.001, "seed={seed}: step {step} for {absmax}");
                for (k, x) in x.iter().enumerate() {
                    let restored = f32::from(q[group * INT8_GROUP + k]) * step;
                    assert!((restored - x).abs() <= step * 0.5001, "seed={seed}: {x} became {restored}, step {step}");
                }
            }
        }
    }

    #[test]
    fn sums_fit_whatever_the_weights_are() {
        for len in [4096, 14_336, 60_000, 130_000] {
            let (_, q, ratios) = quantized(&vec![1.0; len]);
            assert!(worst(&q, &ratios) <= i32::MAX.into() && q.iter().all(|q| *q == 127), "{len}");
        }
    }

    #[test]
    fn our_own_rows_are_imported_as_they_are() {
        for seed in 0..300 {
            let len = [1, 31, 128, 129, 640, 1000][seed as usize % 6];
            let x: Vec<f32> = row(seed, len).iter().map(|x| x * 10f32.powi(seed as i32 % 7 - 5)).collect();
            let (scale, q, ratios) = quantized(&x);
            let scales: Vec<f32> = ratios.iter().map(|ratio| f32::from(*ratio) * scale).collect();
            for (ratio, product) in ratios.iter().zip(&scales) {
                assert_eq!(f64::from(*product), f64::from(*ratio) * f64::from(scale), "seed={seed}: it was rounded");
            }
            let (mut imported, mut found_q) = (vec![0; ratios.len()], q.clone());
            let found = import(&mut found_q, &scales, &mut imported);
            assert_eq!((found, imported, found_q), (scale, ratios, q), "seed={seed} len={len}");
        }
        // The smallest rows that are not zero, and rows below.
        for size in [SMALLEST_ABSMAX, SMALLEST_ABSMAX / 2.0] {
            let (scale, mut q, ratios) = quantized(&[size; 200]);
            let scales: Vec<f32> = ratios.iter().map(|ratio| f32::from(*ratio) * scale).collect();
            let mut imported = [9; 2];
            assert_eq!((import(&mut q, &scales, &mut imported), &imported[..]), (scale, &ratios[..]), "{size}");
            assert_eq!(q, [if size == SMALLEST_ABSMAX { 127 } else { 0 }; 200]);
        }
    }

    #[test]
    fn ratios_have_no_common_divisor() {
        for seed in 0..100 {
            let len = [1, 128, 256, 300][seed as usize % 4];
            let (scale, _, ratios) = quantized(&row(seed, len));
            assert_eq!(greatest_common_divisor(&ratios), 1, "seed={seed}: {ratios:?}");
            assert!(scale > 0.0 && (ratios.len() > 1 || ratios == [1]), "seed={seed}: {ratios:?}");
        }
    }

    #[test]
    fn one_scale_per_channel_is_kept() {
        let mut ratios = [9; 3];
        let mut q = [-128; 300];
        assert_eq!(import(&mut q, &[0.013; 3], &mut ratios), 0.013);
        assert_eq!((q, ratios), ([-128; 300], [1; 3]));
    }

    #[test]
    fn rows_without_a_scale() {
        assert_eq!(quantized(&[0.0; 200]), (0.0, vec![0; 200], vec![0; 2]));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 200];
            x[133] = bad;
            let (scale, q, ratios) = quantized(&x);
            assert!(scale.is_nan() && q == [0; 200] && ratios == [0; 2]);
            let (mut q, mut ratios) = ([1; 200], [1; 2]);
            assert!(import(&mut q, &[bad, 1.0], &mut ratios).is_nan() && q == [0; 200]);
        }
    }
}
