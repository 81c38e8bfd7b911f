//! Sixteen lanes as two registers.

use super::proofs::Avx2;
use super::registers;
use crate::quant::SMALLEST_ACTIVATION;
use crate::simd::Simd;
use std::arch::x86_64::*;

/// The last three levels of the summation tree.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_of_8(a: __m256) -> f32 {
    let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn max_of_8(a: __m256) -> f32 {
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
    /// Magnitudes, and the signed keys.
    type Keys = [IntHalves; 2];
    type Values = IntHalves;
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
        scale_by_power(a: Halves, _n: Halves, rounded: Halves) -> Halves =
            Halves(scale_by_power_8(a.0, rounded.0), scale_by_power_8(a.1, rounded.1));
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
        values_start(_sum: i32) -> IntHalves = IntHalves(_mm256_setzero_si256(), _mm256_setzero_si256());
        dot_values(sums: IntHalves, digits: u32, values: IntHalves) -> IntHalves = {
            let digits = _mm256_set1_epi32(digits as i32);
            IntHalves(dot_8(sums.0, digits, values.0), dot_8(sums.1, digits, values.1))
        };
        add_ints(a: IntHalves, b: IntHalves) -> IntHalves =
            IntHalves(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1));
        sum_ints(a: IntHalves) -> i32 = {
            let mut lanes = [0i32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm256_add_epi32(a.0, a.1));
            lanes.iter().fold(0, |sum, &lane| sum.wrapping_add(lane))
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
    unsafe fn load_values(self, from: *const u8) -> IntHalves {
        // SAFETY: the caller gives 64 bytes.
        unsafe { self.load_ints(from.cast()) }
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
    unsafe fn store_digits(self, weights: Halves, high: *mut u8, low: *mut u8) -> IntHalves {
        // SAFETY: the caller gives room for 16 bytes each.
        unsafe {
            let digit = _mm256_set1_epi32(127);
            let (a, b) = (_mm256_cvtps_epi32(weights.0), _mm256_cvtps_epi32(weights.1));
            let (a_high, b_high) = (_mm256_srli_epi32::<7>(a), _mm256_srli_epi32::<7>(b));
            let and = |x| _mm256_and_si256(x, digit);
            _mm_storeu_si128(high.cast(), bytes_of_16(and(a_high), and(b_high)));
            _mm_storeu_si128(low.cast(), bytes_of_16(and(a), and(b)));
            IntHalves(a, b)
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

/// Per lane: `sums` plus four products of bytes. No pair of products overflows 16 bits, since factors are at most 127
/// in magnitude.
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
