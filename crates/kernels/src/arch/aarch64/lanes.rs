//! Four registers for sixteen lanes.

use super::super::registers;
use super::instructions::{prefetch_l2, sdot};
use super::proofs::Neon;
use crate::quant::SMALLEST_ACTIVATION;
use crate::simd::Simd;
use std::arch::aarch64::*;

type Four = [float32x4_t; 4];
type Ints = [int32x4_t; 4];

#[inline(always)]
fn each<A: Copy, B>(a: [A; 4], f: impl Fn(A) -> B) -> [B; 4] {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn both<A: Copy, B: Copy, C>(a: [A; 4], b: [B; 4], f: impl Fn(A, B) -> C) -> [C; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn rounded(bits: uint32x4_t) -> uint32x4_t {
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd)
}

#[inline]
#[target_feature(enable = "neon")]
fn first_masks(n: usize) -> [uint32x4_t; 4] {
    let lane = [0u32, 1, 2, 3];
    // SAFETY: 4 numbers.
    let lane = unsafe { vld1q_u32(lane.as_ptr()) };
    let mask = |i: u32| vcltq_u32(vaddq_u32(lane, vdupq_n_u32(4 * i)), vdupq_n_u32(n as u32));
    [mask(0), mask(1), mask(2), mask(3)]
}

#[inline]
#[target_feature(enable = "neon")]
fn look_up_4(table: &[f32; 32], at: float32x4_t) -> float32x4_t {
    let at = vreinterpretq_u32_s32(vcvtnq_s32_f32(at));
    let bytes = vmlaq_u32(vdupq_n_u32(0x0302_0100), at, vdupq_n_u32(0x0404_0404));
    let bytes = vreinterpretq_u8_u32(bytes);
    // SAFETY: 128 bytes.
    let [low, high] = unsafe { [0, 64].map(|half| vld1q_u8_x4(table.as_ptr().cast::<u8>().add(half))) };
    let found = vqtbl4q_u8(low, bytes);
    vreinterpretq_f32_u8(vqtbx4q_u8(found, high, vsubq_u8(bytes, vdupq_n_u8(64))))
}

#[inline]
#[target_feature(enable = "neon")]
fn butterfly_4<const D: usize>(a: float32x4_t) -> float32x4_t {
    if D == 2 {
        let other = vextq_f32::<2>(a, a);
        return vcombine_f32(vget_low_f32(vaddq_f32(a, other)), vget_high_f32(vsubq_f32(other, a)));
    }
    let other = vrev64q_f32(a);
    let second = vreinterpretq_u32_u64(vdupq_n_u64(0xffff_ffff_0000_0000));
    vbslq_f32(second, vsubq_f32(other, a), vaddq_f32(a, other))
}

#[inline]
#[target_feature(enable = "neon")]
fn four_bytes(a: [int32x4_t; 4]) -> uint8x16_t {
    let words =
        |i: usize| vcombine_u16(vmovn_u32(vreinterpretq_u32_s32(a[i])), vmovn_u32(vreinterpretq_u32_s32(a[i + 1])));
    vcombine_u8(vmovn_u16(words(0)), vmovn_u16(words(2)))
}

impl Simd for Neon {
    type V = Four;
    type I = Ints;
    type Keys = [int8x16_t; 4];
    type Values = [int8x16_t; 4];
    const ROWS: usize = 2;

    registers! {
        splat(x: f32) -> Four = [vdupq_n_f32(x); 4];
        add(a: Four, b: Four) -> Four = both(a, b, |a, b| vaddq_f32(a, b));
        sub(a: Four, b: Four) -> Four = both(a, b, |a, b| vsubq_f32(a, b));
        mul(a: Four, b: Four) -> Four = both(a, b, |a, b| vmulq_f32(a, b));
        div(a: Four, b: Four) -> Four = both(a, b, |a, b| vdivq_f32(a, b));
        fma(a: Four, b: Four, c: Four) -> Four = std::array::from_fn(|i| vfmaq_f32(c[i], a[i], b[i]));
        min(a: Four, b: Four) -> Four = both(a, b, |a, b| vbslq_f32(vcltq_f32(a, b), a, b));
        max(a: Four, b: Four) -> Four = both(a, b, |a, b| vbslq_f32(vcgtq_f32(a, b), a, b));
        first(n: usize, a: Four, b: Four) -> Four = {
            let masks = first_masks(n);
            std::array::from_fn(|i| vbslq_f32(masks[i], a[i], b[i]))
        };
        zero_below(a: Four, x: Four, bound: f32) -> Four = both(a, x, |a, x| {
            let kept = vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, vdupq_n_f32(bound)));
            vbslq_f32(vceqq_f32(x, x), vreinterpretq_f32_u32(kept), x)
        });
        at_least(x: Four, bound: Four, a: Four, b: Four) -> Four =
            std::array::from_fn(|i| vbslq_f32(vcgeq_f32(x[i], bound[i]), a[i], b[i]));
        look_up(table: &[f32; 32], at: Four) -> Four = each(at, |at| look_up_4(table, at));
        scale_by_power(a: Four, _n: Four, rounded: Four) -> Four = both(a, rounded, |a, n| {
            let power = vshlq_n_u32::<23>(vreinterpretq_u32_f32(n));
            vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), power))
        });
        round_bf16(a: Four) -> Four = each(a, |a| {
            let bits = vreinterpretq_u32_f32(a);
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let kept = vbslq_u32(vceqq_f32(a, a), rounded(bits), quiet);
            let kept = vbicq_u32(kept, vcaltq_f32(a, vdupq_n_f32(SMALLEST_ACTIVATION)));
            vreinterpretq_f32_u32(vandq_u32(kept, vdupq_n_u32(0xffff_0000)))
        });
        round_weight(a: Four, x: Four, bound: f32) -> Four = both(a, x, |a, x| {
            let high = vandq_u32(rounded(vreinterpretq_u32_f32(a)), vdupq_n_u32(0xffff_0000));
            vreinterpretq_f32_u32(vbicq_u32(high, vcltq_f32(x, vdupq_n_f32(bound))))
        });
        sum(a: Four) -> f32 = {
            let four = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        };
        max_lane(a: Four) -> f32 = vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3])));
        zeros() -> Ints = [vdupq_n_s32(0); 4];
        keys_start(_sum: i32) -> Ints = [vdupq_n_s32(0); 4];
        dot_keys(sums: Ints, q: u32, keys: [int8x16_t; 4]) -> Ints = {
            let q = vreinterpretq_s8_u32(vdupq_n_u32(q));
            both(sums, keys, |sums, keys| sdot(sums, keys, q))
        };
        values_start(_sum: i32) -> Ints = [vdupq_n_s32(0); 4];
        add_ints(a: Ints, b: Ints) -> Ints = both(a, b, |a, b| vaddq_s32(a, b));
        sum_ints(a: Ints) -> i32 = vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[1]), vaddq_s32(a[2], a[3])));
        join_digits(high: Ints, low: Ints) -> Ints =
            both(high, low, |high, low| vaddq_s32(vshlq_n_s32::<7>(high), low));
        to_f32(a: Ints) -> Four = each(a, |a| vcvtq_f32_s32(a));
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        prefetch_l2(address);
    }

    #[inline(always)]
    fn butterfly<const D: usize>(self, a: Four) -> Four {
        // SAFETY: `self` proves that the CPU has the instructions, and none of them touches memory.
        unsafe {
            let (add, sub) = (|i: usize, j: usize| vaddq_f32(a[i], a[j]), |i: usize, j: usize| vsubq_f32(a[i], a[j]));
            match D {
                8 => [add(0, 2), add(1, 3), sub(0, 2), sub(1, 3)],
                4 => [add(0, 1), sub(0, 1), add(2, 3), sub(2, 3)],
                _ => each(a, |a| butterfly_4::<D>(a)),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_keys(self, from: *const u8) -> [int8x16_t; 4] {
        // SAFETY: the caller gives 64 bytes.
        unsafe { std::array::from_fn(|i| vld1q_s8(from.add(16 * i).cast())) }
    }

    #[inline(always)]
    unsafe fn load_values(self, from: *const u8) -> [int8x16_t; 4] {
        // SAFETY: the caller's promise.
        unsafe { self.load_keys(from) }
    }

    #[inline(always)]
    fn dot_values(self, sums: Ints, digits: u32, values: [int8x16_t; 4]) -> Ints {
        self.dot_keys(sums, digits, values)
    }

    #[inline(always)]
    unsafe fn load_ints(self, from: *const i32) -> Ints {
        // SAFETY: the caller gives 16 numbers.
        unsafe { std::array::from_fn(|i| vld1q_s32(from.add(4 * i))) }
    }

    #[inline(always)]
    unsafe fn store_ints(self, a: Ints, to: *mut i32) {
        // SAFETY: the caller gives room for 16 numbers.
        unsafe { a.into_iter().enumerate().for_each(|(i, a)| vst1q_s32(to.add(4 * i), a)) };
    }

    #[inline(always)]
    unsafe fn store_digits(self, weights: Four, high: *mut u8, low: *mut u8) -> Ints {
        // SAFETY: the caller gives room for 16 bytes each.
        unsafe {
            let n = each(weights, |weights| vcvtnq_s32_f32(weights));
            let digit = vdupq_n_u8(127);
            vst1q_u8(high, vandq_u8(four_bytes(each(n, |n| vshrq_n_s32::<7>(n))), digit));
            vst1q_u8(low, vandq_u8(four_bytes(n), digit));
            n
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Four {
        // SAFETY: the caller gives 16 numbers.
        unsafe { std::array::from_fn(|i| vld1q_f32(from.add(4 * i))) }
    }

    #[inline(always)]
    unsafe fn load_first(self, n: usize, from: *const f32) -> Four {
        let mut buffer = [0f32; 16];
        // SAFETY: the caller gives `n <= 16` numbers.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), n);
            self.load(buffer.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store(self, a: Four, to: *mut f32) {
        // SAFETY: the caller gives room for 16 numbers.
        unsafe { a.into_iter().enumerate().for_each(|(i, a)| vst1q_f32(to.add(4 * i), a)) };
    }

    #[inline(always)]
    unsafe fn store_first(self, n: usize, a: Four, to: *mut f32) {
        let mut buffer = [0f32; 16];
        // SAFETY: the caller gives room for `n <= 16` numbers.
        unsafe {
            self.store(a, buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, n);
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(self, from: *const u16) -> (Four, Four) {
        // SAFETY: the caller gives 64 bytes.
        unsafe {
            let pairs: [uint32x4_t; 4] = std::array::from_fn(|i| vld1q_u32(from.add(8 * i).cast()));
            let first = each(pairs, |pairs| vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)));
            (first, each(pairs, |pairs| vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000)))))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, a: Four, to: *mut u16) {
        // SAFETY: the caller gives 32 bytes.
        unsafe {
            let half = each(a, |a| vshrn_n_u32::<16>(vreinterpretq_u32_f32(a)));
            vst1q_u16(to, vcombine_u16(half[0], half[1]));
            vst1q_u16(to.add(8), vcombine_u16(half[2], half[3]));
        }
    }
}
