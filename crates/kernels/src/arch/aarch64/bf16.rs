//! Products of bf16 in both orders: written once, for instructions that take bf16 as it is stored and for those that
//! take it widened.
//!
//! ```text
//! line     64 bytes: a pair of weights of 16 columns, four registers of 4 columns
//! Wide     weights widened, the even by a shift, the odd by a mask; activations f32; FMLA by lane
//! Narrow   neither is widened; BFMLALB multiplies the even and BFMLALT the odd number of each pair, by lane
//! ```
//! Both are fused and round once, so they are the two multiply-adds of
//! [`AccumulationOrder`](crate::AccumulationOrder).

use super::instructions::{bfmlalb, bfmlalt, prefetch_l2};
use crate::gemm::Block;
use crate::quant::{PAIR, TILE};
use std::arch::aarch64::*;

/// Sums of 16 columns.
pub(super) type Strip = [float32x4_t; 4];

/// Bytes of a line.
const LINE: usize = 64;
/// Pairs of activations in an [`Operands::X`].
const FOUR: usize = 4;

/// How bf16 numbers are multiplied. The methods need the CPU's instructions.
pub(super) trait Operands {
    /// A pair of weights of 4 columns.
    type W: Copy;
    /// Four pairs of a row's activations.
    type X: Copy;
    /// Bytes of a pair of activations.
    const PAIR: usize;

    /// # Safety
    /// 16 readable bytes; the CPU has the instructions.
    unsafe fn weights(from: *const u8) -> Self::W;
    /// # Safety
    /// Four readable pairs; as above.
    unsafe fn activations(from: *const u8) -> Self::X;
    /// One readable pair, and three that are not used.
    /// # Safety
    /// As above.
    unsafe fn one_pair(from: *const u8) -> Self::X;
    /// The even product of pair `P` added to `c`.
    /// # Safety
    /// The CPU has the instructions.
    unsafe fn even<const P: i32>(c: float32x4_t, w: Self::W, x: Self::X) -> float32x4_t;
    /// The odd product.
    /// # Safety
    /// As above.
    unsafe fn odd<const P: i32>(c: float32x4_t, w: Self::W, x: Self::X) -> float32x4_t;
}

/// Widened to f32: for any CPU.
pub(super) struct Wide;

impl Operands for Wide {
    type W = [float32x4_t; 2];
    type X = [float32x4_t; 2];
    const PAIR: usize = 8;

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> [float32x4_t; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = vld1q_u32(from.cast());
            let odd = vandq_u32(pairs, vdupq_n_u32(0xffff_0000));
            [vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)), vreinterpretq_f32_u32(odd)]
        }
    }

    #[inline(always)]
    unsafe fn activations(from: *const u8) -> [float32x4_t; 2] {
        // SAFETY: the caller's promise.
        unsafe { [vld1q_f32(from.cast()), vld1q_f32(from.cast::<f32>().add(4))] }
    }

    #[inline(always)]
    unsafe fn one_pair(from: *const u8) -> [float32x4_t; 2] {
        // SAFETY: the caller's promise.
        unsafe { [vreinterpretq_f32_u64(vdupq_n_u64(from.cast::<u64>().read_unaligned())); 2] }
    }

    #[inline(always)]
    unsafe fn even<const P: i32>(c: float32x4_t, w: [float32x4_t; 2], x: [float32x4_t; 2]) -> float32x4_t {
        // SAFETY: every AArch64 has the instruction.
        unsafe {
            match P {
                0 => vfmaq_laneq_f32::<0>(c, w[0], x[0]),
                1 => vfmaq_laneq_f32::<2>(c, w[0], x[0]),
                2 => vfmaq_laneq_f32::<0>(c, w[0], x[1]),
                _ => vfmaq_laneq_f32::<2>(c, w[0], x[1]),
            }
        }
    }

    #[inline(always)]
    unsafe fn odd<const P: i32>(c: float32x4_t, w: [float32x4_t; 2], x: [float32x4_t; 2]) -> float32x4_t {
        // SAFETY: as above.
        unsafe {
            match P {
                0 => vfmaq_laneq_f32::<1>(c, w[1], x[0]),
                1 => vfmaq_laneq_f32::<3>(c, w[1], x[0]),
                2 => vfmaq_laneq_f32::<1>(c, w[1], x[1]),
                _ => vfmaq_laneq_f32::<3>(c, w[1], x[1]),
            }
        }
    }
}

/// As stored: for CPUs with `bf16`.
pub(super) struct Narrow;

impl Operands for Narrow {
    type W = uint16x8_t;
    type X = uint16x8_t;
    const PAIR: usize = 4;

    #[inline(always)]
    unsafe fn weights(from: *const u8) -> uint16x8_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_u16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn activations(from: *const u8) -> uint16x8_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_u16(from.cast()) }
    }

    #[inline(always)]
    unsafe fn one_pair(from: *const u8) -> uint16x8_t {
        // SAFETY: the caller's promise.
        unsafe { vreinterpretq_u16_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn even<const P: i32>(c: float32x4_t, w: uint16x8_t, x: uint16x8_t) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe {
            match P {
                0 => bfmlalb::<0>(c, w, x),
                1 => bfmlalb::<2>(c, w, x),
                2 => bfmlalb::<4>(c, w, x),
                _ => bfmlalb::<6>(c, w, x),
            }
        }
    }

    #[inline(always)]
    unsafe fn odd<const P: i32>(c: float32x4_t, w: uint16x8_t, x: uint16x8_t) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe {
            match P {
                0 => bfmlalt::<1>(c, w, x),
                1 => bfmlalt::<3>(c, w, x),
                2 => bfmlalt::<5>(c, w, x),
                _ => bfmlalt::<7>(c, w, x),
            }
        }
    }
}

/// Adds the products of `pairs` pairs to the sums of `R` rows and `C` strips, one or two, in the order of pairs.
///
/// # Safety
/// `lines[c]`: `pairs` lines. `x`: rows of that many pairs, `x_stride` bytes apart. The CPU has the instructions.
/// Lines at `ahead` are prefetched; any address is allowed.
#[inline(always)]
pub(super) unsafe fn add_pairs<M: Operands, const R: usize, const C: usize>(
    totals: &mut [[Strip; R]; C],
    lines: [*const u8; C],
    ahead: [*const u8; C],
    x: *const u8,
    x_stride: usize,
    pairs: usize,
) {
    macro_rules! pair {
        ($p:literal, $at:expr, $x:ident) => {
            parts!(STRIP in 0 1 => if STRIP < C {
                prefetch_l2(ahead[STRIP].wrapping_add($at * LINE));
                parts!(PART => {
                    let w = M::weights(lines[STRIP].add($at * LINE + PART * 16));
                    for r in 0..R {
                        totals[STRIP][r][PART] = M::odd::<$p>(totals[STRIP][r][PART], w, $x[r]);
                    }
                    for r in 0..R {
                        totals[STRIP][r][PART] = M::even::<$p>(totals[STRIP][r][PART], w, $x[r]);
                    }
                });
            });
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = 0;
        while at + FOUR <= pairs {
            let x: [M::X; R] = std::array::from_fn(|r| M::activations(x.add(r * x_stride + at * M::PAIR)));
            pair!(0, at, x);
            pair!(1, at + 1, x);
            pair!(2, at + 2, x);
            pair!(3, at + 3, x);
            at += FOUR;
        }
        while at < pairs {
            let x: [M::X; R] = std::array::from_fn(|r| M::one_pair(x.add(r * x_stride + at * M::PAIR)));
            pair!(0, at, x);
            at += 1;
        }
    }
}

/// A block in the order of pairs, `C` strips at a time: few rows have too few chains of dependent multiplies in one.
///
/// # Safety
/// As for every kernel, with activations of `M`.
#[inline(always)]
pub(super) unsafe fn pairs<M: Operands, const R: usize, const C: usize>(block: Block) {
    // SAFETY: the addresses stay within the tiles, the activations and the sums; prefetching is harmless anywhere.
    unsafe {
        for first in (0..2).step_by(C) {
            let mut totals: [[Strip; R]; C] = [[[vdupq_n_f32(0.0); 4]; R]; C];
            for step in 0..block.steps {
                let tile = block.tiles.add((step * 2 + first) * TILE);
                let ahead = block.ahead.wrapping_add(step * block.ahead_stride + first * TILE);
                let (lines, ahead) = (
                    std::array::from_fn(|c| tile.add(c * TILE)),
                    std::array::from_fn(|c| ahead.wrapping_add(c * TILE)),
                );
                let x = block.x.add(step * TILE / LINE * M::PAIR);
                add_pairs::<M, R, C>(&mut totals, lines, ahead, x, block.x_stride, TILE / LINE);
            }
            for (c, rows) in totals.iter().enumerate() {
                for (r, parts) in rows.iter().enumerate() {
                    for (part, &sum) in parts.iter().enumerate() {
                        vst1q_f32(block.sums.add(r * PAIR + (first + c) * 16 + part * 4).cast(), sum);
                    }
                }
            }
        }
    }
}

/// A block in the order of tiles, `PARTS` registers of 4 columns at a time: the chains of the even and the odd products
/// must fit the registers, and be enough to hide the latency.
///
/// # Safety
/// As for [`pairs`].
#[inline(always)]
pub(super) unsafe fn tiles<M: Operands, const R: usize, const PARTS: usize>(block: Block) {
    // SAFETY: as above.
    unsafe {
        block.sums.write_bytes(0, R * PAIR);
        for (step, first) in (0..block.steps).flat_map(|step| (0..8).step_by(PARTS).map(move |first| (step, first))) {
            let tile = block.tiles.add((step * 2 + first / 4) * TILE + first % 4 * 16);
            let ahead = block.ahead.wrapping_add(step * block.ahead_stride + first * (TILE / 4));
            let (mut even, mut odd) = ([[vdupq_n_f32(0.0); PARTS]; R], [[vdupq_n_f32(0.0); PARTS]; R]);
            for four in 0..TILE / LINE / FOUR {
                (0..PARTS).for_each(|line| prefetch_l2(ahead.wrapping_add((four * PARTS + line) * LINE)));
                let at = step * (TILE / LINE) + four * FOUR;
                let x: [M::X; R] =
                    std::array::from_fn(|r| M::activations(block.x.add(r * block.x_stride + at * M::PAIR)));
                macro_rules! pair {
                    ($p:literal) => {
                        parts!(PART => if PART < PARTS {
                            let w = M::weights(tile.add((four * FOUR + $p) * LINE + PART * 16));
                            for r in 0..R {
                                even[r][PART] = M::even::<$p>(even[r][PART], w, x[r]);
                                odd[r][PART] = M::odd::<$p>(odd[r][PART], w, x[r]);
                            }
                        });
                    };
                }
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
            }
            for r in 0..R {
                for part in 0..PARTS {
                    let to = block.sums.add(r * PAIR + (first + part) * 4).cast();
                    vst1q_f32(to, vaddq_f32(vld1q_f32(to), vaddq_f32(even[r][part], odd[r][part])));
                }
            }
        }
    }
}
