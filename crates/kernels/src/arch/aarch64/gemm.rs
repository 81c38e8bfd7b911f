//! NEON kernels: SDOT by lane for int8, a table look-up before it for int4, fused multiply-adds for bf16.
//!
//! Both factors are signed, so the corrections behind the activations are not needed; those of a file's groups say the
//! sum of their digits. A strip of 16 columns at a time: 5 rows fill the registers.

use super::bf16::{self, Wide};
use super::instructions::{prefetch_l2, sdot_lane};
use super::proofs::Neon;
use crate::gemm::{self, Block, Format, Functions, Groups, Kernel, Kind, Table, activations, epilogue, scalar};
use crate::quant::{INT4_RATIOS, INT4_TILE, INT8_GROUP, Levels, PAIR, Scales, TILE, WeightClass};
use std::arch::aarch64::*;

/// The kernels of any matrix.
pub(super) fn table(kind: Kind) -> &'static Table<Neon> {
    match kind {
        Kind::Pairs => &PAIRS,
        Kind::Own(WeightClass::Int8, _) => &INT8,
        Kind::Own(WeightClass::Int4, Levels::Even) => &INT4,
        Kind::Own(WeightClass::Int4, Levels::Uneven) => &UNEVEN,
        Kind::Own(WeightClass::Bf16, _) => &TILES,
        Kind::Blocks(codes, group) => &BLOCKS[codes][group],
    }
}

static INT8: Table<Neon> =
    of(Format::Int8, &[int8::<1>, int8::<2>, int8::<3>, int8::<4>, int8::<5>], scalar::outliers_int8);
static INT4: Table<Neon> = of(Format::Int8, &INT4_KERNELS, scalar::outliers_int4::<false>);
/// Int4 with uneven levels.
static UNEVEN: Table<Neon> = of(Format::Int8, &UNEVEN_KERNELS, scalar::outliers_int4::<true>);
static TILES: Table<Neon> = of(Format::Wide, &TILES_KERNELS, gemm::no_outliers);
static PAIRS: Table<Neon> = of(Format::Wide, &PAIRS_KERNELS, gemm::no_outliers);

/// For weights in the quantization groups of a file: by codes of 8 or 4 bits, and groups of 32 or 16.
static BLOCKS: [[Table<Neon>; 2]; 2] = [
    [
        of(Format::Int8By32, &block_kernels::<false, 32>(), scalar::block_outliers::<false, 32>),
        of(Format::Int8By16, &block_kernels::<false, 16>(), scalar::block_outliers::<false, 16>),
    ],
    [
        of(Format::Int8By32, &block_kernels::<true, 32>(), scalar::block_outliers::<true, 32>),
        of(Format::Int8By16, &block_kernels::<true, 16>(), scalar::block_outliers::<true, 16>),
    ],
];

/// A table of functions of this file, and of outliers, of which there are few, in plain Rust.
const fn of(format: Format, kernels: &'static [Kernel], outliers: gemm::Outliers) -> Table<Neon> {
    // SAFETY: no function of this file asks for more than NEON and its dot products.
    unsafe { Table::new(Functions { format, kernels, block_rows: kernels.len(), prepare, finish, outliers }) }
}

static INT4_KERNELS: [Kernel; 4] = [int4::<1, false>, int4::<2, false>, int4::<3, false>, int4::<4, false>];
static UNEVEN_KERNELS: [Kernel; 4] = [int4::<1, true>, int4::<2, true>, int4::<3, true>, int4::<4, true>];
static PAIRS_KERNELS: [Kernel; 4] = [pairs::<1, 2>, pairs::<2, 1>, pairs::<3, 1>, pairs::<4, 1>];
static TILES_KERNELS: [Kernel; 8] = [
    tiles::<1, 4>,
    tiles::<2, 4>,
    tiles::<3, 2>,
    tiles::<4, 2>,
    tiles::<5, 1>,
    tiles::<6, 1>,
    tiles::<7, 1>,
    tiles::<8, 1>,
];

const fn block_kernels<const FOUR: bool, const GROUP: usize>() -> [Kernel; 4] {
    [blocks::<1, FOUR, GROUP>, blocks::<2, FOUR, GROUP>, blocks::<3, FOUR, GROUP>, blocks::<4, FOUR, GROUP>]
}

pub(super) unsafe fn prepare(rows: activations::PrepareRows<'_>) {
    // SAFETY: passed on.
    unsafe { activations::prepare(rows, crate::quant::Plain) }
}

pub(super) unsafe fn finish(results: epilogue::Results<'_>) {
    // SAFETY: passed on.
    unsafe { epilogue::finish(results) }
}

unsafe fn pairs<const R: usize, const STRIPS: usize>(block: Block) {
    // SAFETY: passed on.
    unsafe { bf16::pairs::<Wide, R, STRIPS>(block) }
}

unsafe fn tiles<const R: usize, const PARTS: usize>(block: Block) {
    // SAFETY: passed on.
    unsafe { bf16::tiles::<Wide, R, PARTS>(block) }
}

/// Exact sums of 4 columns times their ratios, added to the totals.
///
/// # Safety
/// There are 4 ratios and 4 totals.
#[inline(always)]
pub(super) unsafe fn fold(sums: int32x4_t, ratios: *const u8, totals: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let ratios = vreinterpret_s8_u32(vdup_n_u32(ratios.cast::<u32>().read_unaligned()));
        let ratios = vmovl_s16(vget_low_s16(vmovl_s8(ratios)));
        let totals = totals.cast::<i32>();
        vst1q_s32(totals, vmlaq_s32(vld1q_s32(totals), sums, ratios));
    }
}

#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn int8<const R: usize>(block: Block) {
    // SAFETY: the sums are `[R][32]`. Step by step the addresses stay within the ratios, `steps` tiles and activations;
    // prefetching is harmless anywhere.
    unsafe {
        block.sums.write_bytes(0, R * PAIR);
        for (group, first) in (0..block.steps).step_by(INT8_GROUP / 64).enumerate() {
            for strip in 0..2 {
                let mut sums = [[vdupq_n_s32(0); 4]; R];
                for step in first..block.steps.min(first + INT8_GROUP / 64) {
                    let tile = block.tiles.add((step * 2 + strip) * TILE);
                    let ahead = block.ahead.wrapping_add(step * block.ahead_stride + strip * TILE);
                    for four in 0..4 {
                        let x: [int8x16_t; R] = std::array::from_fn(|r| {
                            vld1q_s8(block.x.add(r * block.x_stride + step * 64 + four * 16).cast())
                        });
                        macro_rules! quad {
                            ($q:literal) => {
                                prefetch_l2(ahead.wrapping_add((four * 4 + $q) * 64));
                                parts!(PART => {
                                    let w = vld1q_s8(tile.add((four * 4 + $q) * 64 + PART * 16).cast());
                                    for r in 0..R {
                                        sums[r][PART] = sdot_lane::<$q>(sums[r][PART], w, x[r]);
                                    }
                                });
                            };
                        }
                        quad!(0);
                        quad!(1);
                        quad!(2);
                        quad!(3);
                    }
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    parts!(PART => {
                        let at = strip * 16 + PART * 4;
                        fold(sums[PART], block.ratios.add(group * PAIR + at), block.sums.add(r * PAIR + at));
                    });
                }
            }
        }
    }
}

/// The 16 levels of int4, in a register.
#[inline(always)]
pub(super) fn int4_levels<const UNEVEN: bool>() -> int8x16_t {
    let levels = if UNEVEN { Levels::Uneven } else { Levels::Even };
    // SAFETY: 16 bytes.
    unsafe { vld1q_s8(levels.table().as_ptr()) }
}

/// The levels of 16 bytes: those of their low halves, those of their high ones.
#[inline(always)]
pub(super) fn unpack(levels: int8x16_t, codes: uint8x16_t) -> [int8x16_t; 2] {
    // SAFETY: only registers are touched, and every AArch64 has the instructions.
    unsafe { [vqtbl1q_s8(levels, vandq_u8(codes, vdupq_n_u8(15))), vqtbl1q_s8(levels, vshrq_n_u8::<4>(codes))] }
}

#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn int4<const R: usize, const UNEVEN: bool>(block: Block) {
    // SAFETY: as in `int8`.
    unsafe {
        let levels = int4_levels::<UNEVEN>();
        block.sums.write_bytes(0, R * PAIR);
        for step in 0..block.steps {
            let at = block.tiles.add(step * WeightClass::Int4.step_bytes());
            let ahead = block.ahead.wrapping_add(step * block.ahead_stride);
            prefetch_l2(ahead);
            for (strip, group) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let inside = INT4_RATIOS + strip * INT4_TILE + group * 256;
                let (lines, ahead) = (at.add(inside), ahead.wrapping_add(inside));
                let mut sums = [[vdupq_n_s32(0); 4]; R];
                for two in 0..2 {
                    let x: [int8x16_t; R] = std::array::from_fn(|r| {
                        vld1q_s8(block.x.add(r * block.x_stride + step * 64 + group * 32 + two * 16).cast())
                    });
                    macro_rules! line {
                        ($line:literal, $even:literal, $odd:literal) => {
                            prefetch_l2(ahead.wrapping_add((two * 2 + $line) * 64));
                            parts!(PART => {
                                let codes = vld1q_u8(lines.add((two * 2 + $line) * 64 + PART * 16));
                                let [even, odd] = unpack(levels, codes);
                                for r in 0..R {
                                    sums[r][PART] = sdot_lane::<$even>(sums[r][PART], even, x[r]);
                                    sums[r][PART] = sdot_lane::<$odd>(sums[r][PART], odd, x[r]);
                                }
                            });
                        };
                    }
                    line!(0, 0, 1);
                    line!(1, 2, 3);
                }
                let ratios = at.add(strip * 32 + group * 16);
                for (r, sums) in sums.into_iter().enumerate() {
                    parts!(PART => {
                        fold(sums[PART], ratios.add(PART * 4), block.sums.add(r * PAIR + strip * 16 + PART * 4));
                    });
                }
            }
        }
    }
}

/// The scales, or minima, at `from` of one group in 4 columns from `column` of the pair of strips.
///
/// # Safety
/// `from` is where those of a step begin.
#[inline(always)]
unsafe fn scales(groups: &Groups, from: *const u8, group: usize, column: usize) -> float32x4_t {
    let at = group * PAIR + column;
    // SAFETY: the caller's promise.
    unsafe {
        let half = |from: *const u8| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from.cast())));
        let bytes = |from: *const u8| vdup_n_u32(from.cast::<u32>().read_unaligned());
        match groups.scales {
            Scales::Half => half(from.add(at * 2)),
            Scales::Super => {
                let ratios = vmovl_s8(vreinterpret_s8_u32(bytes(from.add(PAIR * 2 + at))));
                vmulq_f32(half(from.add(column * 2)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(ratios))))
            }
            Scales::Power => {
                let exponents = vmovl_u8(vreinterpret_u8_u32(bytes(from.add(at))));
                vreinterpretq_f32_u32(vshlq_n_u32::<23>(vmovl_u16(vget_low_u16(exponents))))
            }
            Scales::Full => vld1q_f32(from.add(at * 4).cast()),
        }
    }
}

/// Weights in the quantization groups of a file: exact sums of a group, joined to the totals in f32.
#[target_feature(enable = "neon,dotprod")]
unsafe fn blocks<const R: usize, const FOUR: bool, const GROUP: usize>(block: Block) {
    // SAFETY: they live while the kernel runs.
    let groups = unsafe { block.groups.as_ref() }.expect("a path of groups");
    let tile_bytes = if FOUR { INT4_TILE } else { TILE };
    // SAFETY: the sums are `[R][32]`. Step by step the addresses stay within `steps` steps and activations, behind
    // which lies a correction for each group; prefetching is harmless anywhere.
    unsafe {
        let levels = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(groups.levels.as_ptr()), vdupq_n_u8(128)));
        block.sums.write_bytes(0, R * PAIR);
        for step in 0..block.steps {
            let at = block.tiles.add(step * groups.step_bytes);
            let ahead = block.ahead.wrapping_add(step * block.ahead_stride);
            (0..groups.step_bytes).step_by(64).for_each(|line| prefetch_l2(ahead.wrapping_add(line)));
            for (strip, group) in (0..2).flat_map(|strip| (0..64 / GROUP).map(move |group| (strip, group))) {
                let tile = at.add(groups.tiles() + strip * tile_bytes);
                let mut sums = [[vdupq_n_s32(0); 4]; R];
                for four in group * GROUP / 16..(group + 1) * GROUP / 16 {
                    let x: [int8x16_t; R] = std::array::from_fn(|r| {
                        vld1q_s8(block.x.add(r * block.x_stride + step * 64 + four * 16).cast())
                    });
                    macro_rules! two_quads {
                        ($first:literal, $second:literal) => {
                            parts!(PART => {
                                let w = if FOUR {
                                    let line = four * 2 + $first / 2;
                                    unpack(levels, vld1q_u8(tile.add(line * 64 + PART * 16)))
                                } else {
                                    [$first, $second]
                                        .map(|quad| vld1q_s8(tile.add((four * 4 + quad) * 64 + PART * 16).cast()))
                                };
                                for r in 0..R {
                                    sums[r][PART] = sdot_lane::<$first>(sums[r][PART], w[0], x[r]);
                                    sums[r][PART] = sdot_lane::<$second>(sums[r][PART], w[1], x[r]);
                                }
                            });
                        };
                    }
                    two_quads!(0, 1);
                    two_quads!(2, 3);
                }
                join::<R, GROUP>(&block, groups, (step, strip, group), sums);
            }
        }
    }
}

/// Adds a group's sums, times its scales, and those of its digits, times its minima, to the totals.
///
/// # Safety
/// As for every kernel; step, strip and group exist.
#[inline(always)]
unsafe fn join<const R: usize, const GROUP: usize>(
    block: &Block,
    groups: &Groups,
    (step, strip, group): (usize, usize, usize),
    sums: [[int32x4_t; 4]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = block.tiles.add(step * groups.step_bytes);
        let corrections = block.x.add(block.steps * 64 + (step * (64 / GROUP) + group) * 4);
        parts!(PART => {
            let column = strip * 16 + PART * 4;
            let scale = scales(groups, at, group, column);
            let min = groups.mins.then(|| scales(groups, at.add(groups.scale_bytes), group, column));
            for (r, sums) in sums.iter().enumerate() {
                let total = block.sums.add(r * PAIR + column).cast::<f32>();
                let mut joined = vfmaq_f32(vld1q_f32(total), vcvtq_f32_s32(sums[PART]), scale);
                if let Some(min) = min {
                    // The correction is -128 times the sum of the digits.
                    let start = corrections.add(r * block.x_stride).cast::<i32>().read_unaligned();
                    joined = vfmaq_n_f32(joined, min, (start / -128) as f32);
                }
                vst1q_f32(total, joined);
            }
        });
    }
}
