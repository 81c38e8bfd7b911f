//! Kernels for CPUs with `i8mm` and `bf16`: products of 8-bit matrices by SMMLA, of bf16 as stored by BFMLALB and
//! BFMLALT.
//!
//! SMMLA multiplies two rows of 8 depths by two columns of 8:
//!
//! ```text
//! weights       two quads of a column are its 8 depths: ZIP1 and ZIP2 of two lines, or of the halves of one of int4
//! activations   two rows, 8 depths of one and 8 of the other, once per block and step for all its columns
//! sums          2 x 2 of a pair of rows and a pair of columns; four of them are two rows of 8 columns
//! ```
//! So weights and activations lie in memory as every other CPU has them. Up to three rows SDOT does as much.

use super::bf16::{self, Narrow};
use super::gemm::{self as neon, fold, int4_levels, unpack};
use super::instructions::{prefetch_l2, smmla};
use super::proofs::NeonMm;
use crate::gemm::{self, Block, Format, Functions, Kernel, Kind, Table, scalar};
use crate::quant::{INT4_RATIOS, INT4_TILE, INT8_GROUP, Levels, PAIR, TILE, WeightClass};
use std::arch::aarch64::*;

/// The kernels of a matrix, where they are others than those of NEON alone.
pub(super) fn table(kind: Kind) -> Option<&'static Table<NeonMm>> {
    match kind {
        Kind::Pairs => Some(&PAIRS),
        Kind::Own(WeightClass::Int8, _) => Some(&INT8),
        Kind::Own(WeightClass::Int4, Levels::Even) => Some(&INT4),
        Kind::Own(WeightClass::Int4, Levels::Uneven) => Some(&UNEVEN),
        Kind::Own(WeightClass::Bf16, _) => Some(&TILES),
        Kind::Blocks(..) => None,
    }
}

static INT8: Table<NeonMm> = of(Format::Int8, &INT8_KERNELS, scalar::outliers_int8);
static INT4: Table<NeonMm> = of(Format::Int8, &INT4_KERNELS, scalar::outliers_int4::<false>);
/// Int4 with uneven levels.
static UNEVEN: Table<NeonMm> = of(Format::Int8, &UNEVEN_KERNELS, scalar::outliers_int4::<true>);
static TILES: Table<NeonMm> = of(Format::Bf16, &TILES_KERNELS, gemm::no_outliers);
static PAIRS: Table<NeonMm> = of(Format::Bf16, &PAIRS_KERNELS, gemm::no_outliers);

const fn of(format: Format, kernels: &'static [Kernel], outliers: gemm::Outliers) -> Table<NeonMm> {
    let (prepare, finish) = (neon::prepare, neon::finish);
    // SAFETY: the functions ask for NEON, dot products, `i8mm` and `bf16` at most.
    unsafe { Table::new(Functions { format, kernels, block_rows: kernels.len(), prepare, finish, outliers }) }
}

static INT8_KERNELS: [Kernel; 8] = [
    neon::int8::<1>,
    neon::int8::<2>,
    neon::int8::<3>,
    int8::<4, 2>,
    int8::<5, 3>,
    int8::<6, 3>,
    int8::<7, 4>,
    int8::<8, 4>,
];
static INT4_KERNELS: [Kernel; 8] = int4_kernels::<false>();
static UNEVEN_KERNELS: [Kernel; 8] = int4_kernels::<true>();
static PAIRS_KERNELS: [Kernel; 5] = [pairs::<1, 2>, pairs::<2, 2>, pairs::<3, 1>, pairs::<4, 1>, pairs::<5, 1>];
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

const fn int4_kernels<const UNEVEN: bool>() -> [Kernel; 8] {
    [
        neon::int4::<1, UNEVEN>,
        neon::int4::<2, UNEVEN>,
        neon::int4::<3, UNEVEN>,
        int4::<4, 2, UNEVEN>,
        int4::<5, 3, UNEVEN>,
        int4::<6, 3, UNEVEN>,
        int4::<7, 4, UNEVEN>,
        int4::<8, 4, UNEVEN>,
    ]
}

#[target_feature(enable = "neon,bf16")]
unsafe fn pairs<const R: usize, const STRIPS: usize>(block: Block) {
    // SAFETY: passed on; the features are there.
    unsafe { bf16::pairs::<Narrow, R, STRIPS>(block) }
}

#[target_feature(enable = "neon,bf16")]
unsafe fn tiles<const R: usize, const PARTS: usize>(block: Block) {
    // SAFETY: passed on; the features are there.
    unsafe { bf16::tiles::<Narrow, R, PARTS>(block) }
}

/// `P` pairs of rows, `DEPTH` of each: 8 of one row, 8 of the other, the next 8 of the one.
#[repr(C, align(64))]
struct RowPairs<const P: usize, const DEPTH: usize>([[[i8; DEPTH]; 2]; P]);

impl<const P: usize, const DEPTH: usize> RowPairs<P, DEPTH> {
    const fn zeroed() -> Self {
        RowPairs([[[0; DEPTH]; 2]; P])
    }

    /// Takes `depth` of `rows` rows, `stride` apart. A row without another is its own.
    ///
    /// # Safety
    /// The rows are there; `depth` is a multiple of 16 and at most `DEPTH`.
    #[inline(always)]
    unsafe fn take(&mut self, rows: usize, x: *const u8, stride: usize, depth: usize) {
        for (pair, to) in self.0.iter_mut().enumerate() {
            let to = to.as_mut_ptr().cast::<i64>();
            for at in (0..depth).step_by(16) {
                // SAFETY: the caller's promise.
                unsafe {
                    let [a, b] = [2 * pair, (2 * pair + 1).min(rows - 1)]
                        .map(|row| vreinterpretq_s64_s8(vld1q_s8(x.add(row * stride + at).cast())));
                    vst1q_s64(to.add(at / 4), vzip1q_s64(a, b));
                    vst1q_s64(to.add(at / 4 + 2), vzip2q_s64(a, b));
                }
            }
        }
    }

    /// The operand of each pair of rows at a depth that is a multiple of 8.
    ///
    /// # Safety
    /// `depth` is below `DEPTH`.
    #[inline(always)]
    unsafe fn at(&self, depth: usize) -> [int8x16_t; P] {
        // SAFETY: the caller's promise.
        std::array::from_fn(|pair| unsafe { vld1q_s8(self.0[pair].as_ptr().cast::<i8>().add(2 * depth)) })
    }
}

/// The sums of a pair of rows by 8 columns: four squares of 2 rows by 2 columns.
type Squares = [int32x4_t; 4];

/// Two quads of 4 columns as two operands of 2 columns by 8 depths.
#[inline(always)]
fn eights(first: int8x16_t, second: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: only registers are touched, and every AArch64 has the instructions.
    unsafe {
        let (a, b) = (vreinterpretq_s32_s8(first), vreinterpretq_s32_s8(second));
        [vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b))]
    }
}

/// The products of a pair of quads of 4 columns, `part` of 8.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn add<const P: usize>(sums: &mut [Squares; P], part: usize, x: [int8x16_t; P], w: [int8x16_t; 2]) {
    for (sums, x) in sums.iter_mut().zip(x) {
        sums[2 * part] = smmla(sums[2 * part], x, w[0]);
        sums[2 * part + 1] = smmla(sums[2 * part + 1], x, w[1]);
    }
}

/// Sums of 8 columns times their ratios, added to the totals of `R` rows.
///
/// # Safety
/// There are 8 ratios and `[R][32]` totals, of which these are 8 of each row.
#[inline(always)]
unsafe fn fold_squares<const R: usize, const P: usize>(sums: &[Squares; P], ratios: *const u8, totals: *mut u32) {
    for (pair, sums) in sums.iter().enumerate() {
        for half in 0..2 {
            // SAFETY: the caller's promise.
            unsafe {
                let (a, b) = (vreinterpretq_s64_s32(sums[2 * half]), vreinterpretq_s64_s32(sums[2 * half + 1]));
                for (row, sums) in [vzip1q_s64(a, b), vzip2q_s64(a, b)].into_iter().enumerate() {
                    if 2 * pair + row < R {
                        let to = totals.add((2 * pair + row) * PAIR + half * 4);
                        fold(vreinterpretq_s32_s64(sums), ratios.add(half * 4), to);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "neon,i8mm")]
unsafe fn int8<const R: usize, const P: usize>(block: Block) {
    let mut x = RowPairs::<P, INT8_GROUP>::zeroed();
    // SAFETY: the sums are `[R][32]`. Step by step the addresses stay within the ratios, `steps` tiles and activations;
    // prefetching is harmless anywhere.
    unsafe {
        block.sums.write_bytes(0, R * PAIR);
        for (group, first) in (0..block.steps).step_by(INT8_GROUP / 64).enumerate() {
            let steps = (block.steps - first).min(INT8_GROUP / 64);
            x.take(R, block.x.add(first * 64), block.x_stride, steps * 64);
            for eight in 0..4 {
                let mut sums: [Squares; P] = [[vdupq_n_s32(0); 4]; P];
                for step in 0..steps {
                    let strip = (first + step) * 2 + eight / 2;
                    let lines = block.tiles.add(strip * TILE + eight % 2 * 32);
                    let ahead = block.ahead.wrapping_add((first + step) * block.ahead_stride + eight * (TILE / 2));
                    for two in 0..8 {
                        prefetch_l2(ahead.wrapping_add(two * 64));
                        let x = x.at(step * 64 + two * 8);
                        for part in 0..2 {
                            let line = lines.add(two * 128 + part * 16).cast();
                            add(&mut sums, part, x, eights(vld1q_s8(line), vld1q_s8(line.add(64))));
                        }
                    }
                }
                fold_squares::<R, P>(&sums, block.ratios.add(group * PAIR + eight * 8), block.sums.add(eight * 8));
            }
        }
    }
}

#[target_feature(enable = "neon,i8mm")]
unsafe fn int4<const R: usize, const P: usize, const UNEVEN: bool>(block: Block) {
    let mut x = RowPairs::<P, 64>::zeroed();
    // SAFETY: as in `int8`.
    unsafe {
        let levels = int4_levels::<UNEVEN>();
        block.sums.write_bytes(0, R * PAIR);
        for step in 0..block.steps {
            x.take(R, block.x.add(step * 64), block.x_stride, 64);
            let at = block.tiles.add(step * WeightClass::Int4.step_bytes());
            let ahead = block.ahead.wrapping_add(step * block.ahead_stride);
            (0..WeightClass::Int4.step_bytes()).step_by(64).for_each(|line| prefetch_l2(ahead.wrapping_add(line)));
            for (eight, group) in (0..4).flat_map(|eight| [(eight, 0), (eight, 1)]) {
                let lines = at.add(INT4_RATIOS + eight / 2 * INT4_TILE + group * 256 + eight % 2 * 32);
                let mut sums: [Squares; P] = [[vdupq_n_s32(0); 4]; P];
                for line in 0..4 {
                    let x = x.at(group * 32 + line * 8);
                    for part in 0..2 {
                        let [even, odd] = unpack(levels, vld1q_u8(lines.add(line * 64 + part * 16)));
                        add(&mut sums, part, x, eights(even, odd));
                    }
                }
                let ratios = at.add(eight / 2 * 32 + group * 16 + eight % 2 * 8);
                fold_squares::<R, P>(&sums, ratios, block.sums.add(eight * 8));
            }
        }
    }
}
