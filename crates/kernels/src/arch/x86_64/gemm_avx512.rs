//! AVX-512 kernels: `vpdpbusd` for int8, fused multiply-add for bf16.
//!
//! A kernel computes 1..=12 rows x 32 columns in one pass over K, tile by tile in memory order: alternating between the
//! lines of two tiles defeats the hardware prefetcher (a third of the bandwidth on Zen 4). Only int8 with more than
//! eight rows, which is bound by its loads, alternates between both tiles. Weights are loaded and expanded once for all
//! rows (int8: `w ^ 0x80` is `w + 128` as unsigned; int4: two nibbles; bf16: even and odd halves widened to f32),
//! activations are broadcast from memory, four bytes at a time.

use super::proofs::Avx512;
use super::quantize::Loops;
use super::{by_rows, gemm_pairs, in_order, opaque};
use crate::gemm::{self, Block, Format, Functions, Groups, Kernel, Kind, OutlierBlock, Table, activations, epilogue};
use crate::quant::{GROUP, INT4_RATIOS, INT4_TILE, INT8_GROUP, Levels, Outlier, PAIR, QUAD, Scales, TILE, WeightClass};
use std::arch::x86_64::*;

/// The kernels of any matrix.
pub(super) fn table(kind: Kind) -> &'static Table<Avx512> {
    match kind {
        Kind::Pairs => &gemm_pairs::AVX512,
        Kind::Own(WeightClass::Int8, _) => &INT8,
        Kind::Own(WeightClass::Int4, Levels::Even) => &INT4,
        Kind::Own(WeightClass::Int4, Levels::Uneven) => &UNEVEN,
        Kind::Own(WeightClass::Bf16, _) => &BF16,
        Kind::Blocks(codes, group) => &BLOCKS[codes][group],
    }
}

static INT8: Table<Avx512> = of(Format::Int8, &INT8_KERNELS, outliers_int8);
static INT4: Table<Avx512> = of(Format::Int8Grouped, &int4_kernels::<false>(), outliers_int4::<false>);
/// Int4 with uneven levels.
static UNEVEN: Table<Avx512> = of(Format::Int8By32, &int4_kernels::<true>(), outliers_int4::<true>);
static BF16: Table<Avx512> = of(Format::Wide, &BF16_KERNELS, gemm::no_outliers);

/// For weights in the quantization groups of a file: by codes of 8 or 4 bits, and groups of 32 or 16.
static BLOCKS: [[Table<Avx512>; 2]; 2] = [
    [
        of(Format::Int8By32, &block_kernels::<false, 32>(), block_outliers::<false, 32>),
        of(Format::Int8By16, &block_kernels::<false, 16>(), block_outliers::<false, 16>),
    ],
    [
        of(Format::Int8By32, &block_kernels::<true, 32>(), block_outliers::<true, 32>),
        of(Format::Int8By16, &block_kernels::<true, 16>(), block_outliers::<true, 16>),
    ],
];

/// A table of functions of this file.
const fn of(format: Format, kernels: &'static [Kernel], outliers: gemm::Outliers) -> Table<Avx512> {
    // SAFETY: no function of this file has features other than those of AVX-512 F, BW, VL, DQ and VNNI, and of `Avx2`.
    unsafe { Table::new(Functions { format, kernels, block_rows: kernels.len(), prepare, finish, outliers }) }
}

const fn block_kernels<const FOUR: bool, const GROUP: usize>() -> [Kernel; 12] {
    by_rows!(R in 1 2 3 4 5 6 7 8 9 10 11 12 => blocks::<R, FOUR, GROUP>)
}

const fn int4_kernels<const UNEVEN: bool>() -> [Kernel; 12] {
    by_rows!(R in 1 2 3 4 5 6 7 8 9 10 11 12 => int4::<R, UNEVEN>)
}

static INT8_KERNELS: [Kernel; 12] = by_rows!(R in 1 2 3 4 5 6 7 8 9 10 11 12 => int8::<R>);
static BF16_KERNELS: [Kernel; 12] = by_rows!(R in 1 2 3 4 5 6 7 8 9 10 11 12 => bf16::<R>);

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,popcnt")]
pub(super) unsafe fn prepare(rows: activations::PrepareRows<'_>) {
    // SAFETY: passed on; the loops' instructions are this function's.
    unsafe { activations::prepare(rows, Loops::new()) }
}

/// As [`epilogue::finish`], a strip at a time, with masks at the edge.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn finish(results: epilogue::Results<'_>) {
    for strip in 0..2 {
        let column = strip * 16;
        let mask = ((1u32 << results.columns.saturating_sub(column).min(16)) - 1) as __mmask16;
        // SAFETY: a masked load or store touches only columns that are there; the caller promises `out`.
        unsafe {
            let load = |from: *const f32| _mm512_maskz_loadu_ps(mask, from.wrapping_add(column));
            let bias = results.bias.map(|bias| load(bias.as_ptr()));
            let column_scales = match results.class {
                WeightClass::Int8 | WeightClass::Int4 if !results.in_groups => load(results.column_scales.as_ptr()),
                _ => _mm512_setzero_ps(),
            };
            for (row, sums) in results.sums.iter().enumerate() {
                let sums = sums.as_ptr().add(column);
                let mut y = match results.class {
                    WeightClass::Bf16 => _mm512_loadu_ps(sums.cast()),
                    WeightClass::Int8 | WeightClass::Int4 => {
                        let number = |from: *const u32| match results.in_groups {
                            true => _mm512_loadu_ps(from.cast()),
                            false => _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())),
                        };
                        let mut joined = number(sums);
                        for (plane, unit) in epilogue::UNITS.into_iter().enumerate().take(results.lists.planes(row)) {
                            let digits = results.high.add(row).cast::<u32>().add(plane * PAIR + column);
                            joined = _mm512_fmadd_ps(_mm512_set1_ps(unit), number(digits), joined);
                        }
                        let scaled = _mm512_mul_ps(joined, _mm512_set1_ps(results.row_scales[row]));
                        if results.in_groups { scaled } else { _mm512_mul_ps(scaled, column_scales) }
                    }
                };
                if let Some(bias) = bias {
                    y = _mm512_add_ps(y, bias);
                }
                let out = results.out.wrapping_add(row * results.width + column);
                if results.add {
                    y = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), y);
                }
                _mm512_mask_storeu_ps(out, mask, y);
            }
        }
    }
}

/// 16 columns of `ROWS` rows.
type Strip<const ROWS: usize> = [__m512i; ROWS];

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn int8<const ROWS: usize>(block: Block) {
    /// One tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn tile<const ROWS: usize>(
        tile: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        sums: &mut Strip<ROWS>,
    ) {
        let flip = _mm512_set1_epi8(-128);
        let (tile, x) = in_order(tile, x);
        for quad in 0..16 {
            // SAFETY: within the tile and the step of each activation row; prefetching past the end is harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(quad * 64).cast());
                let w = _mm512_xor_si512(_mm512_loadu_si512(tile.add(quad * 64).cast()), flip);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let group = x.add(row * x_stride + quad * 4).cast::<i32>().read_unaligned();
                    *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(group));
                }
            }
        }
    }
    if ROWS > 8 {
        // SAFETY: the caller's promise.
        return unsafe { int8_many::<ROWS>(block) };
    }
    // Tile after tile, one linear stream; the sums of both strips are in registers, totals in memory.
    let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    let (mut ratios, mut left) = (block.ratios, block.steps);
    // SAFETY: step by step the addresses stay within the ratios, `steps` tiles and the activations, behind which lies a
    // correction for each group; the sums are `[ROWS][32]`.
    unsafe {
        block.sums.write_bytes(0, ROWS * 32);
        let mut corrections = block.x.add(block.steps * 64);
        while left > 0 {
            let steps = left.min(INT8_GROUP / 64);
            let start =
                |row: usize| _mm512_set1_epi32(corrections.add(row * block.x_stride).cast::<i32>().read_unaligned());
            let mut sums: [Strip<ROWS>; 2] = [std::array::from_fn(start); 2];
            for _ in 0..steps {
                for (strip, sums) in sums.iter_mut().enumerate() {
                    let at = strip * TILE;
                    tile(tiles.add(at), x, block.x_stride, ahead.wrapping_add(at), sums);
                }
                (tiles, x) = (tiles.add(2 * TILE), x.add(64));
                ahead = ahead.wrapping_add(block.ahead_stride);
            }
            let totals = opaque(block.sums); // otherwise the compiler keeps them in registers, of which there are too few
            for (strip, sums) in sums.into_iter().enumerate() {
                let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.add(strip * 16).cast()));
                for (row, sum) in sums.into_iter().enumerate() {
                    let total = totals.add(row * 32 + strip * 16);
                    let product = _mm512_mullo_epi32(sum, ratios);
                    _mm512_storeu_si512(total.cast(), _mm512_add_epi32(_mm512_loadu_si512(total.cast()), product));
                }
            }
            (ratios, corrections, left) = (ratios.add(PAIR), corrections.add(4), left - steps);
        }
    }
}

/// Many rows: two strips at once, so that an activation is broadcast once for both. Group sums are in registers, totals
/// in memory.
///
/// # Safety
/// As for a [`Kernel`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn int8_many<const ROWS: usize>(block: Block) {
    /// One group, added to the totals.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn group<const ROWS: usize>(
        (tiles, ratios, steps): (*const u8, *const u8, usize),
        (x, corrections, x_stride): (*const u8, *const u8, usize),
        (ahead, ahead_stride): (*const u8, usize),
        totals: *mut u32,
    ) {
        let flip = _mm512_set1_epi8(-128);
        // SAFETY: within the tiles, the ratios, each row of the activations and its corrections, and the totals;
        // prefetching past the end is harmless.
        unsafe {
            let totals = opaque(totals); // otherwise the compiler keeps them in registers, which are all in use
            let start = |row: usize| _mm512_set1_epi32(corrections.add(row * x_stride).cast::<i32>().read_unaligned());
            let mut sums: [[__m512i; 2]; ROWS] = std::array::from_fn(|row| [start(row); 2]);
            for step in 0..steps {
                let (line, ahead) = (tiles.add(step * 2 * TILE), ahead.wrapping_add(step * ahead_stride));
                let x = rows_by_three(x.add(step * 64), x_stride);
                for quad in 0..16 {
                    for strip in 0..2 {
                        _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add((strip * 16 + quad) * 64).cast());
                    }
                    let at = line.add(quad * 64);
                    let w = [0, TILE].map(|tile| _mm512_xor_si512(_mm512_loadu_si512(at.add(tile).cast()), flip));
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let four = x[row / 3].add(row % 3 * x_stride + quad * 4).cast::<i32>().read_unaligned();
                        let four = _mm512_set1_epi32(four);
                        sums[0] = _mm512_dpbusd_epi32(sums[0], w[0], four);
                        sums[1] = _mm512_dpbusd_epi32(sums[1], w[1], four);
                    }
                }
            }
            let ratios = [0, 16].map(|at| _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.add(at).cast())));
            for (row, sums) in sums.iter().enumerate() {
                for strip in 0..2 {
                    let total = totals.add(row * 32 + strip * 16);
                    let product = _mm512_mullo_epi32(sums[strip], ratios[strip]);
                    _mm512_storeu_si512(total.cast(), _mm512_add_epi32(_mm512_loadu_si512(total.cast()), product));
                }
            }
        }
    }
    let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    let (mut ratios, mut left) = (block.ratios, block.steps);
    // SAFETY: as in `int8`.
    unsafe {
        block.sums.write_bytes(0, ROWS * 32);
        let mut corrections = block.x.add(block.steps * 64);
        while left > 0 {
            let steps = left.min(INT8_GROUP / 64);
            let activations = (x, corrections, block.x_stride);
            group::<ROWS>((tiles, ratios, steps), activations, (ahead, block.ahead_stride), block.sums);
            (tiles, x) = (tiles.add(steps * 2 * TILE), x.add(steps * 64));
            ahead = ahead.wrapping_add(steps * block.ahead_stride);
            (ratios, corrections, left) = (ratios.add(PAIR), corrections.add(4), left - steps);
        }
    }
}

/// Address of every third of twelve rows: from these, the two rows after each need only one addition, which is part of
/// a load.
#[inline(always)]
fn rows_by_three(x: *const u8, stride: usize) -> [*const u8; 4] {
    std::array::from_fn(|third| opaque(x.wrapping_add(third * 3 * stride).cast_mut()).cast_const())
}

/// Sums of the outlier digits: 4 weights of each column, by the ratio of their group.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn outliers_int8(block: OutlierBlock<'_>) {
    let flip = _mm512_set1_epi8(-128);
    let product = |outliers: &[Outlier], to: &mut [u32; PAIR]| {
        let mut sums = [_mm512_setzero_si512(); 2];
        for outlier in outliers {
            let quad = outlier.quad as usize;
            // SAFETY: a quad of the activations is one of the weights, in every column.
            unsafe {
                let digits = _mm512_set1_epi32(outlier.digits.as_ptr().cast::<i32>().read_unaligned());
                let start = _mm512_set1_epi32(outlier.start);
                let line = block.tiles.add(quad / 16 * (2 * TILE) + quad % 16 * 64);
                let ratios = block.ratios.add(quad / (INT8_GROUP / QUAD) * PAIR);
                for (strip, sum) in sums.iter_mut().enumerate() {
                    let w = _mm512_xor_si512(_mm512_loadu_si512(line.add(strip * TILE).cast()), flip);
                    let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.add(strip * 16).cast()));
                    let products = _mm512_mullo_epi32(_mm512_dpbusd_epi32(start, w, digits), ratios);
                    *sum = _mm512_add_epi32(*sum, products);
                }
            }
        }
        // SAFETY: 32 numbers of 4 bytes.
        unsafe { store(sums, to.as_mut_ptr()) };
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

/// Stores the sums of two strips.
///
/// # Safety
/// `to` has room for 32 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(sums: [__m512i; 2], to: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_storeu_si512(to.cast(), sums[0]);
        _mm512_storeu_si512(to.add(16).cast(), sums[1]);
    }
}

/// As [`outliers_int8`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn outliers_int4<const UNEVEN: bool>(block: OutlierBlock<'_>) {
    let (low, levels) = (_mm512_set1_epi8(15), uneven_levels());
    let product = |outliers: &[Outlier], to: &mut [u32; PAIR]| {
        let mut sums = [_mm512_setzero_si512(); 2];
        for outlier in outliers {
            let quad = outlier.quad as usize;
            // SAFETY: a quad of the activations is one of the weights, in every column.
            unsafe {
                let digits = _mm512_set1_epi32(outlier.digits.as_ptr().cast::<i32>().read_unaligned());
                let start = _mm512_set1_epi32(outlier.start);
                let start = if UNEVEN { start } else { _mm512_srai_epi32::<4>(start) }; // a code is `q + 8`
                let shift = _mm_cvtsi32_si128((quad % 2 * 4) as i32);
                let step = block.tiles.add(quad / 16 * WeightClass::Int4.step_bytes());
                let line = step.add(INT4_RATIOS + quad % 16 / 2 * 64);
                let ratios = step.add(quad % 16 * QUAD / GROUP * 16);
                for (strip, sum) in sums.iter_mut().enumerate() {
                    let packed = _mm512_loadu_si512(line.add(strip * INT4_TILE).cast());
                    let w = _mm512_and_si512(_mm512_srl_epi16(packed, shift), low);
                    let w = if UNEVEN { _mm512_shuffle_epi8(levels, w) } else { w };
                    let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.add(strip * 32).cast()));
                    let products = _mm512_mullo_epi32(_mm512_dpbusd_epi32(start, w, digits), ratios);
                    *sum = _mm512_add_epi32(*sum, products);
                }
            }
        }
        // SAFETY: 32 numbers of 4 bytes.
        unsafe { store(sums, to.as_mut_ptr()) };
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

/// The uneven levels of int4 plus 128, in each lane of 16 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn uneven_levels() -> __m512i {
    // SAFETY: 16 bytes.
    let levels = unsafe { _mm_loadu_si128(Levels::Uneven.table().as_ptr().cast()) };
    _mm512_xor_si512(_mm512_broadcast_i32x4(levels), _mm512_set1_epi8(-128))
}

/// A group's sum starts at its correction and takes eight `vpdpbusd`. For even levels (see [`Format::Int8Grouped`]) only
/// its low 16 bits count: `vpdpwssd` multiplies those by the ratio, the high ones by zero, and adds to the total. A sum
/// of uneven levels is multiplied directly. Group sums are in registers, totals in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn int4<const ROWS: usize, const UNEVEN: bool>(block: Block) {
    /// Half a tile: one group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn group<const ROWS: usize, const UNEVEN: bool>(
        levels: __m512i,
        (lines, ratios): (*const u8, *const u8),
        (x, corrections): (*const u8, *const u8),
        x_stride: usize,
        ahead: *const u8,
        totals: *mut u32,
    ) {
        let (low, low_half) = (_mm512_set1_epi8(15), _mm512_set1_epi32(0xffff));
        let (lines, x) = in_order(lines, x);
        // SAFETY: within the tile, the step of each activation row and its corrections, and the totals; prefetching
        // past the end is harmless.
        unsafe {
            let mut sums: Strip<ROWS> = std::array::from_fn(|row| {
                _mm512_set1_epi32(corrections.add(row * x_stride).cast::<i32>().read_unaligned())
            });
            for line in 0..4 {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * 64).cast());
                let packed = _mm512_loadu_si512(lines.add(line * 64).cast());
                let even = _mm512_and_si512(packed, low);
                let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low);
                let [even, odd] =
                    [even, odd].map(|codes| if UNEVEN { _mm512_shuffle_epi8(levels, codes) } else { codes });
                for (row, sum) in sums.iter_mut().enumerate() {
                    let quads = x.add(row * x_stride + line * 8).cast::<i32>();
                    *sum = _mm512_dpbusd_epi32(*sum, even, _mm512_set1_epi32(quads.read_unaligned()));
                    *sum = _mm512_dpbusd_epi32(*sum, odd, _mm512_set1_epi32(quads.add(1).read_unaligned()));
                }
            }
            let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.cast()));
            let low_ratios = _mm512_and_si512(ratios, low_half);
            for (row, sum) in sums.into_iter().enumerate() {
                let to = totals.add(row * 32);
                let total = _mm512_loadu_si512(to.cast());
                let total = match UNEVEN {
                    true => _mm512_add_epi32(total, _mm512_mullo_epi32(sum, ratios)),
                    false => _mm512_dpwssd_epi32(total, sum, low_ratios),
                };
                _mm512_storeu_si512(to.cast(), total);
            }
        }
    }
    // SAFETY: the sums are `[ROWS][32]`. Step by step the addresses stay within `steps` steps and activations, behind
    // which lie two corrections a step.
    unsafe {
        let levels = uneven_levels();
        block.sums.write_bytes(0, ROWS * 32);
        let (mut step, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        let mut corrections = block.x.add(block.steps * 64);
        for _ in 0..block.steps {
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            for part in 0..4 {
                let (strip, half) = (part / 2, part % 2);
                let at = INT4_RATIOS + part * (INT4_TILE / 2);
                let weights = (step.add(at), step.add(part * 16));
                let activations = (x.add(half * 32), corrections.add(half * 4));
                let totals = block.sums.add(strip * 16);
                group::<ROWS, UNEVEN>(levels, weights, activations, block.x_stride, ahead.wrapping_add(at), totals);
            }
            (step, x, corrections) = (step.add(WeightClass::Int4.step_bytes()), x.add(64), corrections.add(8));
            ahead = ahead.wrapping_add(block.ahead_stride);
        }
    }
}

/// The scales, or minima, at `from` of one group in 16 columns.
///
/// # Safety
/// `from` is where those of a step begin.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn scales(groups: &Groups, from: *const u8, group: usize, strip: usize) -> __m512 {
    let at = group * PAIR + strip * 16;
    // SAFETY: the caller's promise.
    unsafe {
        let half = |from: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        match groups.scales {
            Scales::Half => half(from.add(at * 2)),
            Scales::Super => {
                let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.add(PAIR * 2 + at).cast()));
                _mm512_mul_ps(half(from.add(strip * 32)), _mm512_cvtepi32_ps(ratios))
            }
            Scales::Power => {
                let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.add(at).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponents))
            }
            Scales::Full => _mm512_loadu_ps(from.add(at * 4).cast()),
        }
    }
}

/// Weights in the quantization groups of a file. A group's sum starts at its correction and takes a `vpdpbusd` per quad;
/// then it is joined to the total in f32. Group sums are in registers, totals in memory.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn blocks<const ROWS: usize, const FOUR: bool, const GROUP: usize>(block: Block) {
    /// One group of one strip: `lines` are its quads, or pairs of them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn group<const ROWS: usize, const FOUR: bool, const GROUP: usize>(
        (lines, levels): (*const u8, __m512i),
        (x, corrections): (*const u8, *const u8),
        x_stride: usize,
        ahead: *const u8,
        (scale, min): (__m512, Option<__m512>),
        totals: *mut f32,
    ) {
        let (low, flip) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-128));
        let (lines, x) = in_order(lines, x);
        // SAFETY: within the tile, the step of each activation row and its corrections, and the totals; prefetching
        // past the end is harmless.
        unsafe {
            let start = |row: usize| _mm512_set1_epi32(corrections.add(row * x_stride).cast::<i32>().read_unaligned());
            let mut sums: Strip<ROWS> = std::array::from_fn(start);
            let quads = |row: usize, quad: usize| {
                _mm512_set1_epi32(x.add(row * x_stride + quad * 4).cast::<i32>().read_unaligned())
            };
            if FOUR {
                for line in 0..GROUP / 8 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * 64).cast());
                    let packed = _mm512_loadu_si512(lines.add(line * 64).cast());
                    let even = _mm512_shuffle_epi8(levels, _mm512_and_si512(packed, low));
                    let odd = _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low));
                    for (row, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_dpbusd_epi32(*sum, even, quads(row, line * 2));
                        *sum = _mm512_dpbusd_epi32(*sum, odd, quads(row, line * 2 + 1));
                    }
                }
            } else {
                for quad in 0..GROUP / 4 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(quad * 64).cast());
                    let w = _mm512_xor_si512(_mm512_loadu_si512(lines.add(quad * 64).cast()), flip);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_dpbusd_epi32(*sum, w, quads(row, quad));
                    }
                }
            }
            for (row, sum) in sums.into_iter().enumerate() {
                let total = totals.add(row * 32);
                let mut joined = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(total));
                if let Some(min) = min {
                    // The correction is -128 times the sum of the digits, so a minimum divided by it is as exact.
                    joined = _mm512_fmadd_ps(_mm512_cvtepi32_ps(start(row)), min, joined);
                }
                _mm512_storeu_ps(total, joined);
            }
        }
    }
    // SAFETY: they live while the kernel runs.
    let groups = unsafe { block.groups.as_ref() }.expect("a path of groups");
    let tile_bytes = if FOUR { INT4_TILE } else { TILE };
    // SAFETY: the sums are `[ROWS][32]`. Step by step the addresses stay within `steps` steps and activations, behind
    // which lies a correction for each group.
    unsafe {
        let levels = _mm512_broadcast_i32x4(_mm_loadu_si128(groups.levels.as_ptr().cast()));
        block.sums.write_bytes(0, ROWS * 32);
        let (mut step, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        let mut corrections = block.x.add(block.steps * 64);
        for _ in 0..block.steps {
            for line in 0..groups.tiles() / 64 {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * 64).cast());
            }
            for strip in 0..2 {
                for index in 0..64 / GROUP {
                    let at = groups.tiles() + strip * tile_bytes + index * (tile_bytes / (64 / GROUP));
                    let scale = scales(groups, step, index, strip);
                    let min = groups.mins.then(|| {
                        let min = scales(groups, step.add(groups.scale_bytes), index, strip);
                        _mm512_mul_ps(min, _mm512_set1_ps(-1.0 / 128.0))
                    });
                    group::<ROWS, FOUR, GROUP>(
                        (step.add(at), levels),
                        (x.add(index * GROUP), corrections.add(index * 4)),
                        block.x_stride,
                        ahead.wrapping_add(at),
                        (scale, min),
                        block.sums.add(strip * 16).cast(),
                    );
                }
            }
            (step, x) = (step.add(groups.step_bytes), x.add(64));
            corrections = corrections.add(64 / GROUP * 4);
            ahead = ahead.wrapping_add(block.ahead_stride);
        }
    }
}

/// As [`outliers_int8`], for weights in the quantization groups of a file.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn block_outliers<const FOUR: bool, const GROUP: usize>(block: OutlierBlock<'_>) {
    let groups = block.groups.expect("a path of groups");
    let (low, flip) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-128));
    let tile_bytes = if FOUR { INT4_TILE } else { TILE };
    // SAFETY: 16 bytes.
    let levels = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(groups.levels.as_ptr().cast())) };
    let product = |outliers: &[Outlier], to: &mut [u32; PAIR]| {
        let mut totals = [_mm512_setzero_ps(); 2];
        for outlier in outliers {
            let quad = outlier.quad as usize;
            // SAFETY: a quad of the activations is one of the weights, in every column.
            unsafe {
                let digits = _mm512_set1_epi32(outlier.digits.as_ptr().cast::<i32>().read_unaligned());
                let start = _mm512_set1_epi32(outlier.start);
                let step = block.tiles.add(quad / 16 * groups.step_bytes);
                let group = quad % 16 * QUAD / GROUP;
                for (strip, total) in totals.iter_mut().enumerate() {
                    let tile = step.add(groups.tiles() + strip * tile_bytes);
                    let w = if FOUR {
                        let shift = _mm_cvtsi32_si128((quad % 2 * 4) as i32);
                        let packed = _mm512_loadu_si512(tile.add(quad % 16 / 2 * 64).cast());
                        _mm512_shuffle_epi8(levels, _mm512_and_si512(_mm512_srl_epi16(packed, shift), low))
                    } else {
                        _mm512_xor_si512(_mm512_loadu_si512(tile.add(quad % 16 * 64).cast()), flip)
                    };
                    let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, w, digits));
                    *total = _mm512_fmadd_ps(dot, scales(groups, step, group, strip), *total);
                    if groups.mins {
                        let min = scales(groups, step.add(groups.scale_bytes), group, strip);
                        *total = _mm512_fmadd_ps(_mm512_set1_ps((outlier.start / -128) as f32), min, *total);
                    }
                }
            }
        }
        // SAFETY: 32 numbers of 4 bytes.
        unsafe { store(totals.map(|total| _mm512_castps_si512(total)), to.as_mut_ptr()) };
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn bf16<const ROWS: usize>(block: Block) {
    /// One tile: the even and the odd sums of its 32 products, added to the totals.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn tile<const ROWS: usize>(
        tile: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        totals: &mut [__m512; ROWS],
    ) {
        let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let mut even = [_mm512_setzero_ps(); ROWS];
        let mut odd = [_mm512_setzero_ps(); ROWS];
        let (tile, x) = in_order(tile, x);
        for pair in 0..16 {
            // SAFETY: within the tile and the step of each activation row, f32 here; prefetching past the end is
            // harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(pair * 64).cast());
                let w = _mm512_loadu_si512(tile.add(pair * 64).cast());
                let w_even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w));
                let w_odd = _mm512_castsi512_ps(_mm512_and_si512(w, high));
                for row in 0..ROWS {
                    let x = x.add(row * x_stride + pair * 8).cast::<f32>();
                    even[row] = _mm512_fmadd_ps(_mm512_set1_ps(*x), w_even, even[row]);
                    odd[row] = _mm512_fmadd_ps(_mm512_set1_ps(*x.add(1)), w_odd, odd[row]);
                }
            }
        }
        for (total, (even, odd)) in totals.iter_mut().zip(even.into_iter().zip(odd)) {
            *total = _mm512_add_ps(*total, _mm512_add_ps(even, odd));
        }
    }
    let mut totals = [[_mm512_setzero_ps(); ROWS]; 2];
    let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    for _ in 0..block.steps {
        // SAFETY: as in `int8`.
        unsafe {
            tile(tiles, x, block.x_stride, ahead, &mut totals[0]);
            tile(tiles.add(TILE), x, block.x_stride, ahead.wrapping_add(TILE), &mut totals[1]);
            (tiles, x) = (tiles.add(2 * TILE), x.add(128));
        }
        ahead = ahead.wrapping_add(block.ahead_stride);
    }
    for (strip, totals) in totals.iter().enumerate() {
        for (row, &total) in totals.iter().enumerate() {
            // SAFETY: the sums are `[ROWS][32]`.
            unsafe { _mm512_storeu_ps(block.sums.add(row * 32 + strip * 16).cast(), total) };
        }
    }
}
