//! Sixteen lanes as one register.

use super::lanes_avx2::{max_of_8, sum_of_8};
use super::proofs::Avx512;
use super::registers;
use crate::quant::SMALLEST_ACTIVATION;
use crate::simd::Simd;
use std::arch::x86_64::*;

impl Simd for Avx512 {
    type V = __m512;
    type I = __m512i;
    /// Biased by 128: the instruction multiplies unsigned by signed bytes.
    type Keys = __m512i;
    /// As keys.
    type Values = __m512i;
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
        scale_by_power(a: __m512, n: __m512, _rounded: __m512) -> __m512 = _mm512_scalef_ps(a, n);
        exp_from(a: __m512, x: __m512, bound: f32) -> __m512 =
            // The power of a NaN is that NaN already.
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(bound)), a);
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
            let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
            let rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1));
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
        values_start(sum: i32) -> __m512i = _mm512_set1_epi32(sum.wrapping_mul(-128));
        dot_values(sums: __m512i, digits: u32, values: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(sums, values, _mm512_set1_epi32(digits as i32));
        add_ints(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        sum_ints(a: __m512i) -> i32 = _mm512_reduce_add_epi32(a);
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
    unsafe fn load_values(self, from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { self.load_keys(from) }
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
    unsafe fn store_digits(self, weights: __m512, high: *mut u8, low: *mut u8) -> __m512i {
        // SAFETY: the caller gives room for 16 bytes each.
        unsafe {
            let (n, digit) = (_mm512_cvtps_epi32(weights), _mm512_set1_epi32(127));
            let high_digit = _mm512_and_si512(_mm512_srli_epi32::<7>(n), digit);
            _mm_storeu_si128(high.cast(), _mm512_cvtepi32_epi8(high_digit));
            _mm_storeu_si128(low.cast(), _mm512_cvtepi32_epi8(_mm512_and_si512(n, digit)));
            n
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
    unsafe fn stream(self, a: __m512, to: *mut f32) {
        // SAFETY: the caller gives room for 16 numbers, aligned.
        unsafe { _mm512_stream_ps(to, a) }
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
            // One instruction instead of a shift and a conversion of two.
            let upper = _mm512_set_epi16(
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3,
                1,
            );
            let halves = _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, _mm512_castps_si512(a)));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }
}

#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}
