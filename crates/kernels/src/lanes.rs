//! Sixteen `f32` lanes: the width in which this crate's row sums, exponentials and attention are defined.
//!
//! ```text
//! the definition     exp, round_bf16, sum: plain functions of numbers
//! Simd               the same operations on 16 numbers at once; Avx2 has two registers for them, Avx512 one
//! Kernel, dispatch   a computation written once over Simd, compiled once per instruction set
//! ```
//! A value that implements [`Simd`] is the proof that the CPU has the instructions, so its methods are safe to call.
//! They become single instructions only inside [`dispatch`], whose inner functions carry the `target_feature`s:
//! everything written over `Simd` is therefore `#[inline(always)]`.

use crate::isa::{Avx2, Avx512, Isa};
use crate::quant::{SMALLEST_ACTIVATION, round_to_bf16};

/// Number of lanes.
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

/// Below this, [`exp`] is 0: it keeps results normal numbers.
const EXP_MIN: f32 = -87.0;
/// Above this, [`exp`] stays at its value here (1.65e38): it keeps results finite.
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

/// Below this, [`softmax_weight`] is 0: what is left out of a sum that is at least 1 is below 2^-39.
const WEIGHT_MIN: f32 = -27.5;

/// The weight of a score that is `x` above the largest (`x <= 0`): `e^x` rounded to bf16, 0 below -27.5.
/// So it is never small enough to be flushed by [`round_bf16`].
#[inline(always)]
pub(crate) fn softmax_weight(x: f32) -> f32 {
    if x < WEIGHT_MIN { 0.0 } else { round_bf16(exp(x)) }
}

/// `e^x` for a score that is `x` above the largest (`x <= 0`), 0 below -27.5: a weight that is not yet rounded.
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

/// The sum of 16 lanes: halves are added until one is left.
#[inline(always)]
pub(crate) fn sum(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Sixteen lanes on a CPU that has the instructions, as holding `Self` proves.
pub(crate) trait Simd: Copy {
    /// Sixteen numbers.
    type V: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// A line of keys, made ready for [`Simd::dot_keys`].
    type Keys: Copy;
    /// Rows of a product of which 16 columns fit the registers; at most 8.
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
    /// Lanes below `n` of `a`, the others of `b`.
    fn first(self, n: usize, a: Self::V, b: Self::V) -> Self::V;
    /// Per lane: 0 where `x < bound`, `x` where it is NaN, else `a`.
    fn zero_below(self, a: Self::V, x: Self::V, bound: f32) -> Self::V;
    /// Per lane: `a` where `x >= bound`, else `b`.
    fn at_least(self, x: Self::V, bound: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Per lane: the entry of a table whose index is nearest to `at`, ties to even; `at` is within `0..=31`.
    fn look_up(self, table: &[f32; 32], at: Self::V) -> Self::V;
    /// Per lane: the low bits of `n` are added to the exponent of `a`.
    fn scale_by_power(self, a: Self::V, n: Self::V) -> Self::V;
    /// [`round_bf16`].
    fn round_bf16(self, a: Self::V) -> Self::V;
    /// Per lane: 0 where `x < bound`, else `a` rounded to bf16, where `a` is 0, at least 2^-40, or a NaN whose low half
    /// is zero.
    fn round_weight(self, a: Self::V, x: Self::V, bound: f32) -> Self::V;
    /// Of lanes at the distance `D`, which is 1, 2, 4 or 8: the first becomes the sum of both, the second first minus second.
    fn butterfly<const D: usize>(self, a: Self::V) -> Self::V;
    /// [`sum`].
    fn sum(self, a: Self::V) -> f32;
    /// The largest lane; NaN lanes may or may not be seen.
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
    /// Asks for a cache line in the nearest cache but one (of the nearest, misses are few at a time); any address is fine.
    fn prefetch(self, address: *const u8);

    /// Zeros.
    fn zeros(self) -> Self::I;
    /// What [`Simd::dot_keys`] begins with, where all the numbers of the other factor sum to `sum`.
    fn keys_start(self, sum: i32) -> Self::I;
    /// # Safety
    /// 64 readable bytes.
    unsafe fn load_keys(self, from: *const u8) -> Self::Keys;
    /// Per lane: the sum of `sums` and of four products of signed bytes, those of `q` and the lane's keys. Keys are not
    /// -128. Right only if all bytes of `q` since [`Simd::keys_start`] sum to what was said there.
    fn dot_keys(self, sums: Self::I, q: u32, keys: Self::Keys) -> Self::I;
    /// Per lane: the sum of `sums` and of four products, of the bytes of `weights`, each at most 127, and the lane's
    /// signed bytes at `values`.
    /// # Safety
    /// 64 readable bytes.
    unsafe fn dot_values(self, sums: Self::I, weights: u32, values: *const u8) -> Self::I;
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
    /// [`weight_digits`] of 16 weights; some digits of weights that are NaN.
    /// # Safety
    /// 16 writable bytes each.
    unsafe fn store_digits(self, weights: Self::V, high: *mut u8, low: *mut u8);
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

/// [`softmax_weight`] of 16 numbers. They may be NaN if they came from bf16 numbers, whose NaNs end in zeros.
#[inline(always)]
pub(crate) fn softmax_weights<S: Simd>(s: S, x: S::V) -> S::V {
    s.round_weight(exp_in_range(s, x), x, WEIGHT_MIN)
}

/// [`unrounded_weight`] of 16 numbers.
#[inline(always)]
pub(crate) fn unrounded_weights<S: Simd>(s: S, x: S::V) -> S::V {
    s.zero_below(exp_in_range(s, x), x, WEIGHT_MIN)
}

/// `e^x` where that is neither too small nor too large; anything elsewhere.
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
    s.scale_by_power(p, rounded)
}

/// A computation with a definition in plain loops and one body for every vector instruction set.
pub(crate) trait Kernel {
    type Output;
    /// The definition.
    fn define(self) -> Self::Output;
    /// The same bits, with vectors. Must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Runs `kernel` with the best vectors at or below `isa` that this CPU has.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        fn avx512<K: Kernel>(kernel: K, proof: Avx512) -> K::Output {
            kernel.run(proof)
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<K: Kernel>(kernel: K, proof: Avx2) -> K::Output {
            kernel.run(proof)
        }
        if let Some(proof) = isa.avx512() {
            // SAFETY: `proof` says that the CPU has these features.
            return unsafe { avx512(kernel, proof) };
        }
        if let Some(proof) = isa.avx2() {
            // SAFETY: `proof` says that the CPU has these features.
            return unsafe { avx2(kernel, proof) };
        }
    }
    kernel.define()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, SMALLEST_ACTIVATION, Simd};
    use std::arch::x86_64::*;

    /// Methods that are one expression of intrinsics on registers.
    macro_rules! registers {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => { $(
            #[inline(always)]
            fn $name(self, $($arg: $ty),*) -> $out {
                // SAFETY: `self` proves that the CPU has the instructions, and none of them touches memory.
                unsafe { $body }
            }
        )* };
    }

    impl Simd for Avx512 {
        type V = __m512;
        type I = __m512i;
        /// Plus 128, as unsigned numbers: what the instruction multiplies by signed ones.
        type Keys = __m512i;
        const ROWS: usize = 8;

        registers! {
            splat(x: f32) -> __m512 = _mm512_set1_ps(x);
            add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
            sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
            mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
            div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
            fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
            min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
            max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
            first(n: usize, a: __m512, b: __m512) -> __m512 = _mm512_mask_mov_ps(b, first_lanes(n), a);
            zero_below(a: __m512, x: __m512, bound: f32) -> __m512 = {
                let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(bound));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
                _mm512_mask_mov_ps(_mm512_maskz_mov_ps(keep, a), nan, x)
            };
            at_least(x: __m512, bound: __m512, a: __m512, b: __m512) -> __m512 =
                _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, bound), a);
            look_up(table: &[f32; 32], at: __m512) -> __m512 = {
                let [low, high] = [0, 16].map(|half| _mm512_loadu_ps(table.as_ptr().wrapping_add(half)));
                _mm512_permutex2var_ps(low, _mm512_cvtps_epi32(at), high)
            };
            scale_by_power(a: __m512, n: __m512) -> __m512 = {
                let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
                _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power))
            };
            round_bf16(a: __m512) -> __m512 = {
                let bits = _mm512_castps_si512(a);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(a), _mm512_set1_ps(SMALLEST_ACTIVATION));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
                let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
                let rounded = _mm512_mask_mov_epi32(rounded, nan, quiet);
                _mm512_castsi512_ps(_mm512_maskz_and_epi32(keep, rounded, _mm512_set1_epi32(-0x1_0000)))
            };
            round_weight(a: __m512, x: __m512, bound: f32) -> __m512 = {
                let bits = _mm512_castps_si512(a);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(bound));
                _mm512_castsi512_ps(_mm512_maskz_and_epi32(keep, rounded, _mm512_set1_epi32(-0x1_0000)))
            };
            sum(a: __m512) -> f32 = {
                let half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
                sum_of_8(half)
            };
            max_lane(a: __m512) -> f32 = {
                max_of_8(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
            };
            prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(address.cast());
            zeros() -> __m512i = _mm512_setzero_si512();
            keys_start(sum: i32) -> __m512i = _mm512_set1_epi32(-128 * sum);
            dot_keys(sums: __m512i, q: u32, keys: __m512i) -> __m512i =
                _mm512_dpbusd_epi32(sums, keys, _mm512_set1_epi32(q as i32));
            join_digits(high: __m512i, low: __m512i) -> __m512i =
                _mm512_add_epi32(_mm512_slli_epi32::<7>(high), low);
            to_f32(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        }

        #[inline(always)]
        fn butterfly<const D: usize>(self, a: __m512) -> __m512 {
            // SAFETY: `self` proves that the CPU has the instructions, and none of them touches memory.
            unsafe {
                let (other, second) = match D {
                    1 => (_mm512_permute_ps::<0b10_11_00_01>(a), 0xaaaa),
                    2 => (_mm512_permute_ps::<0b01_00_11_10>(a), 0xcccc),
                    4 => (_mm512_shuffle_f32x4::<0b10_11_00_01>(a, a), 0xf0f0),
                    _ => (_mm512_shuffle_f32x4::<0b01_00_11_10>(a, a), 0xff00),
                };
                _mm512_mask_sub_ps(_mm512_add_ps(a, other), second, other, a)
            }
        }

        #[inline(always)]
        unsafe fn load_keys(self, from: *const u8) -> __m512i {
            // SAFETY: the caller gives 64 bytes.
            unsafe { _mm512_xor_si512(_mm512_loadu_si512(from.cast()), _mm512_set1_epi8(-128)) }
        }

        #[inline(always)]
        unsafe fn dot_values(self, sums: __m512i, weights: u32, values: *const u8) -> __m512i {
            // SAFETY: the caller gives 64 bytes.
            unsafe { _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(weights as i32), _mm512_loadu_si512(values.cast())) }
        }

        #[inline(always)]
        unsafe fn load_ints(self, from: *const i32) -> __m512i {
            // SAFETY: the caller gives 16 numbers.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }

        #[inline(always)]
        unsafe fn store_ints(self, a: __m512i, to: *mut i32) {
            // SAFETY: the caller gives room for 16 numbers.
            unsafe { _mm512_storeu_si512(to.cast(), a) }
        }

        #[inline(always)]
        unsafe fn store_digits(self, weights: __m512, high: *mut u8, low: *mut u8) {
            // SAFETY: the caller gives room for 16 bytes each.
            unsafe {
                let (n, digit) = (_mm512_cvtps_epi32(weights), _mm512_set1_epi32(127));
                let high_digit = _mm512_and_si512(_mm512_srli_epi32::<7>(n), digit);
                _mm_storeu_si128(high.cast(), _mm512_cvtepi32_epi8(high_digit));
                _mm_storeu_si128(low.cast(), _mm512_cvtepi32_epi8(_mm512_and_si512(n, digit)));
            }
        }

        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> __m512 {
            // SAFETY: the caller gives 16 numbers.
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn load_first(self, n: usize, from: *const f32) -> __m512 {
            // SAFETY: only the lanes in the mask are read.
            unsafe { _mm512_maskz_loadu_ps(first_lanes(n), from) }
        }

        #[inline(always)]
        unsafe fn store(self, a: __m512, to: *mut f32) {
            // SAFETY: the caller gives room for 16 numbers.
            unsafe { _mm512_storeu_ps(to, a) }
        }

        #[inline(always)]
        unsafe fn store_first(self, n: usize, a: __m512, to: *mut f32) {
            // SAFETY: only the lanes in the mask are written.
            unsafe { _mm512_mask_storeu_ps(to, first_lanes(n), a) }
        }

        #[inline(always)]
        unsafe fn load_pairs(self, from: *const u16) -> (__m512, __m512) {
            // SAFETY: the caller gives 64 bytes.
            unsafe {
                let pairs = _mm512_loadu_si512(from.cast());
                let first = _mm512_slli_epi32::<16>(pairs);
                let second = _mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000));
                (_mm512_castsi512_ps(first), _mm512_castsi512_ps(second))
            }
        }

        #[inline(always)]
        unsafe fn store_bf16(self, a: __m512, to: *mut u16) {
            // SAFETY: the caller gives 32 bytes.
            unsafe {
                let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(a)));
                _mm256_storeu_si256(to.cast(), halves);
            }
        }
    }

    #[inline(always)]
    fn first_lanes(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }

    /// The last three levels of the tree.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum_of_8(a: __m256) -> f32 {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn max_of_8(a: __m256) -> f32 {
        let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
    }

    /// [`Simd::look_up`] of 8 lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up_8(table: &[f32; 32], at: __m256) -> __m256 {
        let at = _mm256_cvtps_epi32(at);
        let of_quarter = |quarter: usize| {
            // SAFETY: a quarter is 8 numbers.
            let entries = unsafe { _mm256_loadu_ps(table.as_ptr().add(quarter * 8)) };
            _mm256_permutevar8x32_ps(entries, at)
        };
        let [eights, sixteens] =
            [_mm256_slli_epi32::<28>(at), _mm256_slli_epi32::<27>(at)].map(|bits| _mm256_castsi256_ps(bits));
        let low = _mm256_blendv_ps(of_quarter(0), of_quarter(1), eights);
        _mm256_blendv_ps(low, _mm256_blendv_ps(of_quarter(2), of_quarter(3), eights), sixteens)
    }

    /// Lanes 0 to 7 and 8 to 15.
    #[derive(Clone, Copy)]
    pub(crate) struct Halves(__m256, __m256);

    impl Simd for Avx2 {
        type V = Halves;
        type I = IntHalves;
        /// Magnitudes, and the keys with their signs.
        type Keys = [IntHalves; 2];
        const ROWS: usize = 2;

        registers! {
            splat(x: f32) -> Halves = Halves(_mm256_set1_ps(x), _mm256_set1_ps(x));
            add(a: Halves, b: Halves) -> Halves = Halves(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
            sub(a: Halves, b: Halves) -> Halves = Halves(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
            mul(a: Halves, b: Halves) -> Halves = Halves(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
            div(a: Halves, b: Halves) -> Halves = Halves(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1));
            fma(a: Halves, b: Halves, c: Halves) -> Halves =
                Halves(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
            min(a: Halves, b: Halves) -> Halves = Halves(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1));
            max(a: Halves, b: Halves) -> Halves = Halves(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
            first(n: usize, a: Halves, b: Halves) -> Halves = {
                let masks = first_masks(n);
                Halves(
                    _mm256_blendv_ps(b.0, a.0, _mm256_castsi256_ps(masks[0])),
                    _mm256_blendv_ps(b.1, a.1, _mm256_castsi256_ps(masks[1])),
                )
            };
            zero_below(a: Halves, x: Halves, bound: f32) -> Halves =
                Halves(zero_below_8(a.0, x.0, bound), zero_below_8(a.1, x.1, bound));
            at_least(x: Halves, bound: Halves, a: Halves, b: Halves) -> Halves = Halves(
                _mm256_blendv_ps(b.0, a.0, _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, bound.0)),
                _mm256_blendv_ps(b.1, a.1, _mm256_cmp_ps::<_CMP_GE_OQ>(x.1, bound.1)),
            );
            look_up(table: &[f32; 32], at: Halves) -> Halves = Halves(look_up_8(table, at.0), look_up_8(table, at.1));
            scale_by_power(a: Halves, n: Halves) -> Halves =
                Halves(scale_by_power_8(a.0, n.0), scale_by_power_8(a.1, n.1));
            round_bf16(a: Halves) -> Halves = Halves(round_bf16_8(a.0), round_bf16_8(a.1));
            round_weight(a: Halves, x: Halves, bound: f32) -> Halves =
                Halves(round_weight_8(a.0, x.0, bound), round_weight_8(a.1, x.1, bound));
            sum(a: Halves) -> f32 = sum_of_8(_mm256_add_ps(a.0, a.1));
            max_lane(a: Halves) -> f32 = max_of_8(_mm256_max_ps(a.0, a.1));
            prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(address.cast());
            zeros() -> IntHalves = IntHalves(_mm256_setzero_si256(), _mm256_setzero_si256());
            keys_start(_sum: i32) -> IntHalves = IntHalves(_mm256_setzero_si256(), _mm256_setzero_si256());
            dot_keys(sums: IntHalves, q: u32, keys: [IntHalves; 2]) -> IntHalves = {
                let (q, [magnitudes, keys]) = (_mm256_set1_epi32(q as i32), keys);
                IntHalves(
                    dot_8(sums.0, magnitudes.0, _mm256_sign_epi8(q, keys.0)),
                    dot_8(sums.1, magnitudes.1, _mm256_sign_epi8(q, keys.1)),
                )
            };
            join_digits(high: IntHalves, low: IntHalves) -> IntHalves = IntHalves(
                _mm256_add_epi32(_mm256_slli_epi32::<7>(high.0), low.0),
                _mm256_add_epi32(_mm256_slli_epi32::<7>(high.1), low.1),
            );
            to_f32(a: IntHalves) -> Halves = Halves(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1));
        }

        #[inline(always)]
        fn butterfly<const D: usize>(self, a: Halves) -> Halves {
            // SAFETY: `self` proves that the CPU has the instructions, and none of them touches memory.
            unsafe {
                if D == 8 {
                    return Halves(_mm256_add_ps(a.0, a.1), _mm256_sub_ps(a.0, a.1));
                }
                Halves(butterfly_8::<D>(a.0), butterfly_8::<D>(a.1))
            }
        }

        #[inline(always)]
        unsafe fn load_keys(self, from: *const u8) -> [IntHalves; 2] {
            // SAFETY: the caller gives 64 bytes.
            unsafe {
                let keys = self.load_ints(from.cast());
                [IntHalves(_mm256_abs_epi8(keys.0), _mm256_abs_epi8(keys.1)), keys]
            }
        }

        #[inline(always)]
        unsafe fn dot_values(self, sums: IntHalves, weights: u32, values: *const u8) -> IntHalves {
            // SAFETY: the caller gives 64 bytes.
            unsafe {
                let (weights, values) = (_mm256_set1_epi32(weights as i32), self.load_ints(values.cast()));
                IntHalves(dot_8(sums.0, weights, values.0), dot_8(sums.1, weights, values.1))
            }
        }

        #[inline(always)]
        unsafe fn load_ints(self, from: *const i32) -> IntHalves {
            // SAFETY: the caller gives 16 numbers.
            unsafe { IntHalves(_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())) }
        }

        #[inline(always)]
        unsafe fn store_ints(self, a: IntHalves, to: *mut i32) {
            // SAFETY: the caller gives room for 16 numbers.
            unsafe {
                _mm256_storeu_si256(to.cast(), a.0);
                _mm256_storeu_si256(to.add(8).cast(), a.1);
            }
        }

        #[inline(always)]
        unsafe fn store_digits(self, weights: Halves, high: *mut u8, low: *mut u8) {
            // SAFETY: the caller gives room for 16 bytes each.
            unsafe {
                let digit = _mm256_set1_epi32(127);
                let (a, b) = (_mm256_cvtps_epi32(weights.0), _mm256_cvtps_epi32(weights.1));
                let (a_high, b_high) = (_mm256_srli_epi32::<7>(a), _mm256_srli_epi32::<7>(b));
                let and = |x| _mm256_and_si256(x, digit);
                _mm_storeu_si128(high.cast(), bytes_of_16(and(a_high), and(b_high)));
                _mm_storeu_si128(low.cast(), bytes_of_16(and(a), and(b)));
            }
        }

        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> Halves {
            // SAFETY: the caller gives 16 numbers.
            unsafe { Halves(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }

        #[inline(always)]
        unsafe fn load_first(self, n: usize, from: *const f32) -> Halves {
            // SAFETY: only the lanes in the masks are read; the address of the second half is only computed.
            unsafe {
                let masks = first_masks(n);
                Halves(_mm256_maskload_ps(from, masks[0]), _mm256_maskload_ps(from.wrapping_add(8), masks[1]))
            }
        }

        #[inline(always)]
        unsafe fn store(self, a: Halves, to: *mut f32) {
            // SAFETY: the caller gives room for 16 numbers.
            unsafe {
                _mm256_storeu_ps(to, a.0);
                _mm256_storeu_ps(to.add(8), a.1);
            }
        }

        #[inline(always)]
        unsafe fn store_first(self, n: usize, a: Halves, to: *mut f32) {
            // SAFETY: only the lanes in the masks are written; the address of the second half is only computed.
            unsafe {
                let masks = first_masks(n);
                _mm256_maskstore_ps(to, masks[0], a.0);
                _mm256_maskstore_ps(to.wrapping_add(8), masks[1], a.1);
            }
        }

        #[inline(always)]
        unsafe fn load_pairs(self, from: *const u16) -> (Halves, Halves) {
            // SAFETY: the caller gives 64 bytes.
            unsafe {
                let high = _mm256_set1_epi32(-0x1_0000);
                let a = _mm256_loadu_si256(from.cast());
                let b = _mm256_loadu_si256(from.add(16).cast());
                let first = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
                let second = |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, high));
                (Halves(first(a), first(b)), Halves(second(a), second(b)))
            }
        }

        #[inline(always)]
        unsafe fn store_bf16(self, a: Halves, to: *mut u16) {
            // SAFETY: the caller gives 32 bytes.
            unsafe {
                let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(a.0));
                let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(a.1));
                let mixed = _mm256_packus_epi32(low, high); // per 128-bit half: 4 of low, 4 of high
                _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(mixed));
            }
        }
    }

    /// i32 lanes 0 to 7 and 8 to 15.
    #[derive(Clone, Copy)]
    pub(crate) struct IntHalves(__m256i, __m256i);

    /// Per lane: the sum of `sums` and of four products of bytes. No pair of products leaves 16 bits: no factor is above
    /// 127 in magnitude.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn dot_8(sums: __m256i, magnitudes: __m256i, signed: __m256i) -> __m256i {
        let pairs = _mm256_maddubs_epi16(magnitudes, signed);
        _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }

    /// The low bytes of 16 numbers below 128.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bytes_of_16(a: __m256i, b: __m256i) -> __m128i {
        let words = _mm256_packs_epi32(a, b); // per 128-bit half: 4 of a, 4 of b
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn first_masks(n: usize) -> [__m256i; 2] {
        let n = _mm256_set1_epi32(n as i32);
        [
            _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
            _mm256_cmpgt_epi32(n, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)),
        ]
    }

    /// [`Simd::butterfly`] of lanes at the distance 1, 2 or 4.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn butterfly_8<const D: usize>(a: __m256) -> __m256 {
        match D {
            1 => {
                let other = _mm256_permute_ps::<0b10_11_00_01>(a);
                _mm256_blend_ps::<0xaa>(_mm256_add_ps(a, other), _mm256_sub_ps(other, a))
            }
            2 => {
                let other = _mm256_permute_ps::<0b01_00_11_10>(a);
                _mm256_blend_ps::<0xcc>(_mm256_add_ps(a, other), _mm256_sub_ps(other, a))
            }
            _ => {
                let other = _mm256_permute2f128_ps::<1>(a, a);
                _mm256_blend_ps::<0xf0>(_mm256_add_ps(a, other), _mm256_sub_ps(other, a))
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero_below_8(a: __m256, x: __m256, bound: f32) -> __m256 {
        let below = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(bound));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
        _mm256_blendv_ps(_mm256_andnot_ps(below, a), x, nan)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scale_by_power_8(a: __m256, n: __m256) -> __m256 {
        let power = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn round_weight_8(a: __m256, x: __m256, bound: f32) -> __m256 {
        let bits = _mm256_castps_si256(a);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let high = _mm256_and_si256(rounded, _mm256_set1_epi32(-0x1_0000));
        _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(bound)), _mm256_castsi256_ps(high))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn round_bf16_8(a: __m256) -> __m256 {
        let bits = _mm256_castps_si256(a);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let magnitude = _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff)));
        let tiny = _mm256_cmp_ps::<_CMP_LT_OQ>(magnitude, _mm256_set1_ps(SMALLEST_ACTIVATION));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
        let quiet = _mm256_or_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x0040_0000)));
        let rounded = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, nan);
        let high = _mm256_castsi256_ps(_mm256_set1_epi32(-0x1_0000));
        _mm256_andnot_ps(tiny, _mm256_and_ps(rounded, high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation of `Simd` that is not a plain instruction, on 16 numbers.
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
        let mut state = 1u64;
        for case in 0..2000usize {
            let x: [f32; LANES] = std::array::from_fn(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let unit = (state >> 40) as f32 / (1 << 24) as f32;
                match case % 3 {
                    0 => special[(case / 3 + i) % special.len()],
                    1 => (unit - 0.5) * 200.0,
                    // any bits of moderate size: rounding ties and carries
                    _ => f32::from_bits((state >> 33) as u32 & 0x807f_ffff | (100 + (state >> 20) as u32 % 50) << 23),
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
