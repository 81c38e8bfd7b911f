//! Sampling from a whole vocabulary: an unnormalized probability per token, as an integer, and an exponential race
//! (Gumbel-max) between them.
//!
//! ```text
//! logit --(x - max) * scale--> exp_neg --mass--> u64 --race--> id      for 150,000 ids per sampled token
//! ```
//! Only single IEEE operations, no fused ones, so every instruction set gives the same bits.

mod best;
mod gumbel_max;
mod philox;

pub use best::{Candidate, all_below_infinity, by_logit, find_best, max_of, select_best};
pub use gumbel_max::Noise;
pub use philox::philox;

use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};

/// `exp(x)` for `x <= 0`, relative error below 2e-7; 0 from -87 down and for -infinity.
///
/// `2^n * p(r)` with `x = n ln 2 + r`, ln 2 in two parts (Cody & Waite, 1980) and the Taylor polynomial of degree 6 on
/// `|r| <= ln 2 / 2`.
#[inline(always)]
pub fn exp_neg(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let p = 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x > -87.0 { p * power } else { 0.0 }
}

/// An unnormalized probability as an integer, in units of 2^-40 of the best token's: sums are exact, so they do not
/// depend on the order.
#[inline(always)]
pub fn mass(weight: f32, min_p: f32) -> u64 {
    const ROUND: f64 = (1u64 << 52) as f64; // adding it puts the rounded integer into the low bits
    let scaled = f64::from(weight) * (1u64 << 40) as f64 + ROUND;
    let integer = scaled.to_bits() - ROUND.to_bits();
    if weight >= min_p { integer } else { 0 }
}

/// The mass of every logit of a row, `exp_neg((x - max) * scale)`, into `out` of the same length. Cost: one exponential
/// per logit.
pub fn masses(logits: &[f32], max: f32, scale: f32, min_p: f32, out: &mut [u64]) {
    assert_eq!(logits.len(), out.len(), "a mass for each logit");
    dispatch(Isa::best(), Masses { logits, max, scale, min_p, out });
}

struct Masses<'a> {
    logits: &'a [f32],
    max: f32,
    scale: f32,
    min_p: f32,
    out: &'a mut [u64],
}

impl Kernel for Masses<'_> {
    type Output = ();

    fn define(self) {
        self.weigh();
    }

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.weigh();
    }
}

impl Masses<'_> {
    /// Branch-free: compilers vectorize it in the width of the instruction set that it is inlined into.
    #[inline(always)]
    fn weigh(self) {
        for (out, &x) in self.out.iter_mut().zip(self.logits) {
            *out = mass(exp_neg((x - self.max) * self.scale), self.min_p);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_weighs_alike() {
        for len in [1, 7, 16, 33, 1000] {
            let mut logits: Vec<f32> = (0..len).map(|i| ((i * 7919 % 1009) as f32 - 900.0) * 0.37).collect();
            logits[0] = f32::NEG_INFINITY;
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let max = if max.is_finite() { max } else { 0.0 };
            for (scale, min_p) in [(1.0, 0.0), (1.0 / 0.7, 0.05), (1e5, 0.0)] {
                let defined: Vec<u64> = logits.iter().map(|&x| mass(exp_neg((x - max) * scale), min_p)).collect();
                for isa in Isa::available() {
                    let mut out = vec![1; len];
                    dispatch(isa, Masses { logits: &logits, max, scale, min_p, out: &mut out });
                    assert_eq!(out, defined, "{isa:?} len={len} scale={scale}");
                }
            }
        }
    }
}
