//! Sixteen `f32` lanes: the width in which this crate defines row sums, exponentials and attention.
//!
//! ```text
//! the definition     exp, round_bf16, sum: plain scalar functions
//! Simd               the same operations on 16 numbers; two registers on AVX2, one on AVX-512
//! Kernel, dispatch   a computation written once over Simd, compiled once per instruction set
//! ```
//! A value that implements [`Simd`] proves that the CPU has the instructions, so its methods are safe to call. They
//! become single instructions only inside [`dispatch`], whose inner functions carry the `target_feature`s: all code
//! written over `Simd` is therefore `#[inline(always)]`.

pub(crate) use crate::arch::native::dispatch;
use crate::quant::{SMALLEST_ACTIVATION, round_to_bf16};

pub(crate) const LANES: usize = 16;

/// `x` rounded to the nearest bf16 (ties to even), magnitudes below 2^-40 to +0. NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bf16(x: f32) -> f32 {
    round_to_bf16(x, SMALLEST_ACTIVATION)
}

/// The bits of [`round_bf16`].
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u16 {
    (round_bf16(x).to_bits() >> 16) as u16
}

/// bf16 bits as a number.
#[inline(always)]
pub(crate) fn bf16_value(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Below this, [`exp`] is 0, so that results stay normal numbers.
const EXP_MIN: f32 = -87.0;
/// Above this, [`exp`] keeps its value here (1.65e38), so that results stay finite.
const EXP_MAX: f32 = 88.0;
/// 1.5 * 2^23: adding it rounds to an integer and leaves that integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 = `LN2_HI` + `LN2_LO`.
const LN2_HI: f32 = std::f32::consts::LN_2;
const LN2_LO: f32 = f32::from_bits(0xb102_e308);
/// `e^r = 1 + r + r^2 (C[4] + r (C[3] + ..))` on |r| <= ln(2)/2, minimax in relative error (3e-9) over the last five.
const EXP_C: [f32; 5] = [
    f32::from_bits(0x3ab5_11e8),
    f32::from_bits(0x3c09_1d10),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3eff_fffe),
];

/// `e^x` within 2 ulp; 0 below -87, constant above 88, NaN for NaN, exactly 1 for 0.
/// `x = n ln 2 + r`, a polynomial in `r`, and `n` added to the exponent.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x < EXP_MIN {
        return 0.0;
    }
    let x = if EXP_MAX < x { EXP_MAX } else { x };
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = rounded - ROUNDER;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    let mut p = EXP_C[0];
    for c in &EXP_C[1..] {
        p = p.mul_add(r, *c);
    }
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23))
}

/// `cap - 2 cap / (e^(2 x / cap) + 1)`, which is `cap * tanh(x / cap)`.
#[inline(always)]
pub(crate) fn softcap(x: f32, cap: f32) -> f32 {
    cap - 2.0 * cap / (exp(x * (2.0 / cap)) + 1.0)
}

/// Below this, [`softmax_weight`] is 0: the omitted part of a sum that is at least 1 is below 2^-39.
const WEIGHT_MIN: f32 = -27.5;

/// The weight of a score `x` relative to the maximum (`x <= 0`): `e^x` rounded to bf16, 0 below -27.5.
/// So it is never small enough for [`round_bf16`] to flush it.
#[inline(always)]
pub(crate) fn softmax_weight(x: f32) -> f32 {
    if x < WEIGHT_MIN { 0.0 } else { round_bf16(exp(x)) }
}

/// `e^x` for a score `x` relative to the maximum (`x <= 0`), 0 below -27.5: an unrounded weight.
#[inline(always)]
pub(crate) fn unrounded_weight(x: f32) -> f32 {
    if x < WEIGHT_MIN { 0.0 } else { exp(x) }
}

/// Largest integer weight: 14 bits, two of 7.
pub(crate) const MAX_WEIGHT: f32 = 16383.0;

/// The high and the low 7 bits of a weight in `0..=MAX_WEIGHT`, rounded to nearest even.
#[inline(always)]
pub(crate) fn weight_digits(weight: f32) -> (u8, u8) {
    let n = weight.round_ties_even() as u32;
    ((n >> 7 & 127) as u8, (n & 127) as u8)
}

/// The sum of 16 lanes: the upper half is added to the lower until one lane is left.
#[inline(always)]
pub(crate) fn sum(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Sixteen lanes; holding `Self` proves that the CPU has the instructions.
pub(crate) trait Simd: Copy {
    /// Sixteen numbers.
    type V: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// A line of keys, prepared for [`Simd::dot_keys`].
    type Keys: Copy;
    /// A line of values, prepared for [`Simd::dot_values`].
    type Values: Copy;
    /// Rows of a product whose sums over 16 columns fit the registers; at most 8.
    const ROWS: usize;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lanes of `a` below `n`, then lanes of `b`.
    fn first(self, n: usize, a: Self::V, b: Self::V) -> Self::V;
    /// Per lane: 0 where `x < bound`, `x` where it is NaN, else `a`.
    fn zero_below(self, a: Self::V, x: Self::V, bound: f32) -> Self::V;
    /// [`Simd::zero_below`] of an `a` that is [`exp_in_range`] of `x`, and that of a difference.
    fn exp_from(self, a: Self::V, x: Self::V, bound: f32) -> Self::V {
        self.zero_below(a, x, bound)
    }
    /// Per lane: `a` where `x >= bound`, else `b`.
    fn at_least(self, x: Self::V, bound: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Per lane: the entry of a table whose index is nearest to `at`, ties to even; `at` is within `0..=31`.
    fn look_up(self, table: &[f32; 32], at: Self::V) -> Self::V;
    /// Per lane: `a * 2^n` where that is a normal number and `n` is whole; `rounded` has `n` in its low bits.
    fn scale_by_power(self, a: Self::V, n: Self::V, rounded: Self::V) -> Self::V;
    /// [`round_bf16`].
    fn round_bf16(self, a: Self::V) -> Self::V;
    /// Per lane: 0 where `x < bound`, else `a` rounded to bf16, where `a` is 0, at least 2^-40, or a NaN whose low half
    /// is zero.
    fn round_weight(self, a: Self::V, x: Self::V, bound: f32) -> Self::V;
    /// For each pair of lanes at distance `D` (1, 2, 4 or 8): the first becomes the sum of both, the second first minus
    /// second.
    fn butterfly<const D: usize>(self, a: Self::V) -> Self::V;
    /// [`sum`].
    fn sum(self, a: Self::V) -> f32;
    /// The largest lane; NaN lanes may be ignored or not.
    fn max_lane(self, a: Self::V) -> f32;

    /// # Safety
    /// 16 readable numbers.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// Lanes from `n` on are zero.
    /// # Safety
    /// `n <= 16` readable numbers.
    unsafe fn load_first(self, n: usize, from: *const f32) -> Self::V;
    /// # Safety
    /// 16 writable numbers.
    unsafe fn store(self, a: Self::V, to: *mut f32);
    /// As [`Simd::store`], past the caches where the CPU can; a fence has to follow before other threads read.
    /// # Safety
    /// 16 writable numbers at a multiple of 64 bytes.
    unsafe fn stream(self, a: Self::V, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { self.store(a, to) }
    }
    /// # Safety
    /// `n <= 16` writable numbers.
    unsafe fn store_first(self, n: usize, a: Self::V, to: *mut f32);
    /// Sixteen pairs of bf16: the first of each pair, the second of each pair.
    /// # Safety
    /// 32 readable bf16.
    unsafe fn load_pairs(self, from: *const u16) -> (Self::V, Self::V);
    /// The bf16 bits of numbers that [`Simd::round_bf16`] returned.
    /// # Safety
    /// 16 writable bf16.
    unsafe fn store_bf16(self, a: Self::V, to: *mut u16);
    /// Prefetches a cache line into L2 (L1 has few outstanding misses); any address is allowed.
    fn prefetch(self, address: *const u8);

    /// Zeros.
    fn zeros(self) -> Self::I;
    /// Initial value for [`Simd::dot_keys`], where the elements of the other factor sum to `sum`.
    fn keys_start(self, sum: i32) -> Self::I;
    /// # Safety
    /// 64 readable bytes.
    unsafe fn load_keys(self, from: *const u8) -> Self::Keys;
    /// Per lane: `sums` plus four products of signed bytes, those of `q` and the lane's keys. Keys are not -128. Correct
    /// only if all bytes of `q` since [`Simd::keys_start`] sum to the value given there.
    fn dot_keys(self, sums: Self::I, q: u32, keys: Self::Keys) -> Self::I;
    /// Initial value for the low digits in [`Simd::dot_values`], where the weights sum to `sum`.
    fn values_start(self, sum: i32) -> Self::I;
    /// # Safety
    /// 64 readable bytes.
    unsafe fn load_values(self, from: *const u8) -> Self::Values;
    /// Per lane: `sums` plus four products, of the bytes of `digits`, each at most 127, and the lane's signed bytes of
    /// values. Correct only once digits are joined, and if the weights since [`Simd::values_start`] sum to the value
    /// given there.
    fn dot_values(self, sums: Self::I, digits: u32, values: Self::Values) -> Self::I;
    /// `a + b`, modulo 2^32.
    fn add_ints(self, a: Self::I, b: Self::I) -> Self::I;
    /// The sum of all lanes.
    fn sum_ints(self, a: Self::I) -> i32;
    /// Per lane: `high * 128 + low`.
    fn join_digits(self, high: Self::I, low: Self::I) -> Self::I;
    /// To the nearest f32 (ties to even).
    fn to_f32(self, a: Self::I) -> Self::V;
    /// # Safety
    /// 16 readable i32.
    unsafe fn load_ints(self, from: *const i32) -> Self::I;
    /// # Safety
    /// 16 writable i32.
    unsafe fn store_ints(self, a: Self::I, to: *mut i32);
    /// Stores [`weight_digits`] of 16 weights and returns the weights as integers; unspecified for NaN weights.
    /// # Safety
    /// 16 writable bytes each.
    unsafe fn store_digits(self, weights: Self::V, high: *mut u8, low: *mut u8) -> Self::I;
}

/// [`exp`] of 16 numbers.
#[inline(always)]
pub(crate) fn exp_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.min(s.splat(EXP_MAX), x);
    s.zero_below(exp_in_range(s, x), x, EXP_MIN)
}

/// [`softcap`] of 16 numbers.
#[inline(always)]
pub(crate) fn softcap_lanes<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    let bottom = s.add(exp_lanes(s, s.mul(x, s.splat(2.0 / cap))), s.splat(1.0));
    s.sub(s.splat(cap), s.div(s.splat(2.0 * cap), bottom))
}

/// [`softmax_weight`] of 16 numbers. NaN inputs must come from bf16 numbers, whose NaNs have a zero low half.
#[inline(always)]
pub(crate) fn softmax_weights<S: Simd>(s: S, x: S::V) -> S::V {
    s.round_weight(exp_in_range(s, x), x, WEIGHT_MIN)
}

/// [`unrounded_weight`] of 16 numbers.
#[inline(always)]
pub(crate) fn unrounded_weights<S: Simd>(s: S, x: S::V) -> S::V {
    s.exp_from(exp_in_range(s, x), x, WEIGHT_MIN)
}

/// `e^x` where that is in range; unspecified elsewhere.
#[inline(always)]
fn exp_in_range<S: Simd>(s: S, x: S::V) -> S::V {
    let rounded = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUNDER));
    let n = s.sub(rounded, s.splat(ROUNDER));
    let r = s.fma(n, s.splat(-LN2_HI), x);
    let r = s.fma(n, s.splat(-LN2_LO), r);
    let mut p = s.splat(EXP_C[0]);
    for c in &EXP_C[1..] {
        p = s.fma(p, r, s.splat(*c));
    }
    p = s.fma(p, r, s.splat(1.0));
    p = s.fma(p, r, s.splat(1.0));
    s.scale_by_power(p, n, rounded)
}

/// A computation with a definition in plain loops and one body for every vector instruction set.
pub(crate) trait Kernel {
    type Output;
    /// The definition.
    fn define(self) -> Self::Output;
    /// The same bits, with vectors. Must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Evaluates an expression with a row count of 1 to 8 as a constant.
macro_rules! with_rows {
    ($R:ident = $rows:expr => $do:expr) => {
        match $rows {
            1 => {
                const $R: usize = 1;
                $do
            }
            2 => {
                const $R: usize = 2;
                $do
            }
            3 => {
                const $R: usize = 3;
                $do
            }
            4 => {
                const $R: usize = 4;
                $do
            }
            5 => {
                const $R: usize = 5;
                $do
            }
            6 => {
                const $R: usize = 6;
                $do
            }
            7 => {
                const $R: usize = 7;
                $do
            }
            _ => {
                const $R: usize = 8;
                $do
            }
        }
    };
}
pub(crate) use with_rows;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    /// Every operation of `Simd` that is not a single instruction, on 16 numbers.
    struct Probe<'a>(&'a [f32; LANES], usize);

    struct Answers {
        exp: [f32; LANES],
        softcap: [f32; LANES],
        weight: [f32; LANES],
        bf16: [f32; LANES],
        bf16_bits: [u16; LANES],
        first: [f32; LANES],
        loaded: [f32; LANES],
        stored: [f32; LANES],
        butterflies: [[f32; LANES]; 4],
        sum: f32,
        max: f32,
    }

    impl Kernel for Probe<'_> {
        type Output = Answers;

        fn define(self) -> Answers {
            let Probe(x, n) = self;
            let first = |other: f32| std::array::from_fn(|i| if i < n { x[i] } else { other });
            Answers {
                exp: x.map(exp),
                softcap: x.map(|x| softcap(x, 30.0)),
                weight: x.map(|x| softmax_weight(-x.abs())),
                bf16: x.map(round_bf16),
                bf16_bits: x.map(bf16_bits),
                first: first(-3.0),
                loaded: first(0.0),
                stored: first(7.0),
                butterflies: [1, 2, 4, 8].map(|distance| {
                    let of = |i: usize| if i & distance == 0 { x[i] + x[i + distance] } else { x[i - distance] - x[i] };
                    std::array::from_fn(of)
                }),
                sum: sum(*x),
                max: x.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            }
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Answers {
            let Probe(x, n) = self;
            // SAFETY: every array has 16 elements, and n <= 16.
            unsafe {
                let v = s.load(x.as_ptr());
                let out = |v| {
                    let mut out = [0.0; LANES];
                    s.store(v, out.as_mut_ptr());
                    out
                };
                let mut bits = [0; LANES];
                s.store_bf16(s.round_bf16(v), bits.as_mut_ptr());
                let mut stored = [7.0; LANES];
                s.store_first(n, v, stored.as_mut_ptr());
                Answers {
                    exp: out(exp_lanes(s, v)),
                    softcap: out(softcap_lanes(s, v, 30.0)),
                    weight: out(softmax_weights(s, s.min(v, s.sub(s.splat(0.0), v)))),
                    bf16: out(s.round_bf16(v)),
                    bf16_bits: bits,
                    first: out(s.first(n, v, s.splat(-3.0))),
                    loaded: out(s.load_first(n, x.as_ptr())),
                    stored,
                    butterflies: [s.butterfly::<1>(v), s.butterfly::<2>(v), s.butterfly::<4>(v), s.butterfly::<8>(v)]
                        .map(out),
                    sum: s.sum(v),
                    max: s.max_lane(v),
                }
            }
        }
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_repeats_the_definitions() {
        let special = [0.0, -0.0, 1.0, -87.0, -87.00001, 88.0, 88.00001, 1e-13, -1e-13, 3.4e38, -3.4e38, 1e-45];
        let mut dice = testing::Dice::new(1);
        for case in 0..2000usize {
            let x: [f32; LANES] = std::array::from_fn(|i| {
                let random = dice.bits();
                let unit = (random >> 40) as f32 / (1 << 24) as f32;
                match case % 3 {
                    0 => special[(case / 3 + i) % special.len()],
                    1 => (unit - 0.5) * 200.0,
                    // any bits of moderate size: rounding ties and carries
                    _ => f32::from_bits((random >> 33) as u32 & 0x807f_ffff | (100 + (random >> 20) as u32 % 50) << 23),
                }
            });
            let n = case % (LANES + 1);
            let want = Probe(&x, n).define();
            for isa in Isa::available() {
                let got = dispatch(isa, Probe(&x, n));
                assert_eq!(bits(&got.exp), bits(&want.exp), "exp, {isa:?}, {x:?}");
                assert_eq!(bits(&got.softcap), bits(&want.softcap), "softcap, {isa:?}, {x:?}");
                assert_eq!(bits(&got.weight), bits(&want.weight), "softmax_weight, {isa:?}, {x:?}");
                assert_eq!(bits(&got.bf16), bits(&want.bf16), "round_bf16, {isa:?}, {x:?}");
                assert_eq!(got.bf16_bits, want.bf16_bits, "store_bf16, {isa:?}, {x:?}");
                assert_eq!(bits(&got.first), bits(&want.first), "first {n}, {isa:?}");
                assert_eq!(bits(&got.loaded), bits(&want.loaded), "load_first {n}, {isa:?}");
                assert_eq!(bits(&got.stored), bits(&want.stored), "store_first {n}, {isa:?}");
                for (got, want) in got.butterflies.iter().zip(&want.butterflies) {
                    assert_eq!(bits(got), bits(want), "butterfly, {isa:?}, {x:?}");
                }
                assert_eq!(got.sum.to_bits(), want.sum.to_bits(), "sum, {isa:?}, {x:?}");
                assert_eq!(got.max, want.max, "max, {isa:?}, {x:?}");
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for nan in [0x7fc0_0000, 0xffc0_0000, 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0x7fc0_01ff] {
            let x = [f32::from_bits(nan); LANES];
            for isa in Isa::available() {
                let got = dispatch(isa, Probe(&x, 3));
                let weights = got.weight.iter().filter(|_| nan & 0xffff == 0);
                let all = got.exp.iter().chain(&got.softcap).chain(&got.bf16).chain(weights);
                assert!(all.clone().all(|x| x.is_nan()), "{isa:?} {nan:x}");
                assert!(got.bf16_bits.iter().all(|&bits| bf16_value(bits).is_nan()), "{isa:?} {nan:x}");
                assert!(got.sum.is_nan(), "{isa:?} {nan:x}");
            }
        }
    }

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        let steps = 4_000_000;
        for i in 0..=steps {
            let x = (-87.0 + 175.0 * i as f64 / steps as f64) as f32;
            let want = libm::exp(x as f64);
            let ulp = f32::from_bits((want as f32).to_bits() & 0x7f80_0000) as f64 * f32::EPSILON as f64;
            worst = worst.max((exp(x) as f64 - want).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst} ulp");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(-87.1), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), exp(88.0));
    }
}
