//! AVX2 kernels: `vpmaddubsw` for int8, fused multiply-add for bf16. One tile of 16 columns at a time: 16 registers.

use super::proofs::Avx2;
use super::{gemm_pairs, in_order};
use crate::gemm::{self, Block, Format, Functions, Groups, Kernel, Kind, OutlierBlock, Table, activations, epilogue};
use crate::quant::{
    GROUP, INT4_RATIOS, INT4_TILE, INT8_GROUP, Levels, Outlier, PAIR, PEAK_LANES, QUAD, QuantLoops, Scales, TILE,
    WeightClass,
};
use std::arch::x86_64::*;

/// The kernels of any matrix.
pub(super) fn table(kind: Kind) -> &'static Table<Avx2> {
    match kind {
        Kind::Pairs => &gemm_pairs::AVX2,
        Kind::Own(WeightClass::Int8, _) => &INT8,
        Kind::Own(WeightClass::Int4, Levels::Even) => &INT4,
        Kind::Own(WeightClass::Int4, Levels::Uneven) => &UNEVEN,
        Kind::Own(WeightClass::Bf16, _) => &BF16,
        Kind::Blocks(codes, group) => &BLOCKS[codes][group],
    }
}

static INT8: Table<Avx2> = of(Format::Int8, &INT8_KERNELS, outliers_int8);
static INT4: Table<Avx2> = of(Format::Int8Grouped, &INT4_KERNELS, outliers_int4);
/// Int4 with uneven levels.
static UNEVEN: Table<Avx2> = of(Format::Int8By32, &UNEVEN_KERNELS, outliers_uneven);
static BF16: Table<Avx2> = of(Format::Wide, &BF16_KERNELS, gemm::no_outliers);

/// For weights in the quantization groups of a file: by codes of 8 or 4 bits, and groups of 32 or 16.
static BLOCKS: [[Table<Avx2>; 2]; 2] = [
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
const fn of(format: Format, kernels: &'static [Kernel], outliers: gemm::Outliers) -> Table<Avx2> {
    // SAFETY: no function of this file has features other than AVX2, FMA, F16C and POPCNT.
    unsafe { Table::new(Functions { format, kernels, block_rows: kernels.len(), prepare, finish, outliers }) }
}

const fn block_kernels<const FOUR: bool, const GROUP: usize>() -> [Kernel; 4] {
    [blocks::<1, FOUR, GROUP>, blocks::<2, FOUR, GROUP>, blocks::<3, FOUR, GROUP>, blocks::<4, FOUR, GROUP>]
}

static INT8_KERNELS: [Kernel; 4] = [int8::<1>, int8::<2>, int8::<3>, int8::<4>];
static INT4_KERNELS: [Kernel; 4] = [int4::<1>, int4::<2>, int4::<3>, int4::<4>];
static UNEVEN_KERNELS: [Kernel; 4] = [uneven::<1>, uneven::<2>, uneven::<3>, uneven::<4>];
static BF16_KERNELS: [Kernel; 3] = [bf16::<1>, bf16::<2>, bf16::<3>];

#[target_feature(enable = "avx2,fma,popcnt")]
pub(super) unsafe fn prepare(rows: activations::PrepareRows<'_>) {
    // SAFETY: passed on.
    unsafe { activations::prepare(rows, Loops) }
}

/// The loops of a row's digits, of which the compiler's are fast but for one.
#[derive(Clone, Copy)]
struct Loops;

impl QuantLoops for Loops {
    #[inline(always)]
    fn at_least(self, peaks: &[u16; PEAK_LANES], bound: u16) -> u32 {
        // SAFETY: only `prepare` has these loops, and the instructions; a half is 32 bytes.
        unsafe {
            let bound = _mm256_set1_epi16(bound as i16);
            let low = _mm256_loadu_si256(peaks.as_ptr().cast());
            let high = _mm256_loadu_si256(peaks.as_ptr().add(16).cast());
            let low = _mm256_cmpeq_epi16(_mm256_max_epu16(low, bound), low);
            let high = _mm256_cmpeq_epi16(_mm256_max_epu16(high, bound), high);
            // Packing stays within 128 bits.
            _mm256_movemask_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(low, high))) as u32
        }
    }

    #[inline(always)]
    fn reached(self, peaks: &[[u16; PEAK_LANES]], bound: u16) -> usize {
        let mut count = 0;
        for half in peaks.as_flattened().as_chunks::<16>().0 {
            // SAFETY: as above.
            unsafe {
                let half = _mm256_loadu_si256(half.as_ptr().cast());
                let reached = _mm256_cmpeq_epi16(_mm256_max_epu16(half, _mm256_set1_epi16(bound as i16)), half);
                count += _mm256_movemask_epi8(reached).count_ones() / 2; // two bits each
            }
        }
        count as usize
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn finish(results: epilogue::Results<'_>) {
    // SAFETY: passed on.
    unsafe { epilogue::finish(results) }
}

/// 16 columns of `ROWS` rows.
type Strip<const ROWS: usize> = [[__m256i; 2]; ROWS];

/// Stores the sums of both strips to `[ROWS][2][16]`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const ROWS: usize>(sums: &[Strip<ROWS>; 2], to: *mut u32) {
    for (strip, sums) in sums.iter().enumerate() {
        for (row, halves) in sums.iter().enumerate() {
            for (half, &sum) in halves.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { _mm256_storeu_si256(to.add(row * 32 + strip * 16 + half * 8).cast(), sum) };
            }
        }
    }
}

/// `|w|` is unsigned and `x` takes the sign of `w`: magnitudes up to 128 (imported codes reach -128) and 127, so the
/// 16-bit sum of two products cannot saturate (2 * 128 * 127 = 32 512).
#[target_feature(enable = "avx2")]
unsafe fn int8<const ROWS: usize>(block: Block) {
    /// One tile.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn tile<const ROWS: usize>(
        tile: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        sums: &mut Strip<ROWS>,
    ) {
        let ones = _mm256_set1_epi16(1);
        let (tile, x) = in_order(tile, x);
        for quad in 0..16 {
            // SAFETY: within the tile and the step of each activation row; prefetching past the end is harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(quad * 64).cast());
                for half in 0..2 {
                    let w = _mm256_loadu_si256(tile.add(quad * 64 + half * 32).cast());
                    let magnitude = _mm256_abs_epi8(w);
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let group = x.add(row * x_stride + quad * 4).cast::<i32>().read_unaligned();
                        let signed = _mm256_sign_epi8(_mm256_set1_epi32(group), w);
                        let products = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed), ones);
                        sums[half] = _mm256_add_epi32(sums[half], products);
                    }
                }
            }
        }
    }
    // SAFETY: the sums are `[ROWS][32]`. Step by step the addresses stay within the ratios, `steps` tiles and
    // activations.
    unsafe {
        block.sums.write_bytes(0, ROWS * 32);
        let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        let (mut ratios, mut left) = (block.ratios, block.steps);
        while left > 0 {
            let steps = left.min(INT8_GROUP / 64);
            for strip in 0..2 {
                let mut sums: Strip<ROWS> = [[_mm256_setzero_si256(); 2]; ROWS];
                for step in 0..steps {
                    let at = (step * 2 + strip) * TILE;
                    let ahead = ahead.wrapping_add(step * block.ahead_stride + strip * TILE);
                    tile(tiles.add(at), x.add(step * 64), block.x_stride, ahead, &mut sums);
                }
                for half in 0..2 {
                    let ratios = _mm_loadl_epi64(ratios.add(strip * 16 + half * 8).cast());
                    let ratios = _mm256_cvtepi8_epi32(ratios);
                    for (row, sums) in sums.iter().enumerate() {
                        let total = block.sums.add(row * 32 + strip * 16 + half * 8).cast::<__m256i>();
                        let folded = _mm256_mullo_epi32(sums[half], ratios);
                        _mm256_storeu_si256(total, _mm256_add_epi32(_mm256_loadu_si256(total), folded));
                    }
                }
            }
            (tiles, x) = (tiles.add(steps * 2 * TILE), x.add(steps * 64));
            ahead = ahead.wrapping_add(steps * block.ahead_stride);
            (ratios, left) = (ratios.add(PAIR), left - steps);
        }
    }
}

/// Sums of the outlier digits: 4 weights of each column, by the ratio of their group.
#[target_feature(enable = "avx2")]
unsafe fn outliers_int8(block: OutlierBlock<'_>) {
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let quad = outlier.quad as usize;
            let digits = _mm256_set1_epi32(i32::from_le_bytes(outlier.digits.map(|digit| digit as u8)));
            for (eight, sums) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // SAFETY: a quad of the activations is one of the weights, in every column.
                unsafe {
                    let line = block.tiles.add((quad / 16 * 2 + eight / 2) * TILE + quad % 16 * 64 + eight % 2 * 32);
                    let ratios = block.ratios.add(quad * QUAD / INT8_GROUP * PAIR + eight * 8);
                    let w = _mm256_loadu_si256(line.cast());
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(digits, w));
                    add_by_ratio(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)), ratios);
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

/// As [`outliers_int8`].
#[target_feature(enable = "avx2")]
unsafe fn outliers_int4(block: OutlierBlock<'_>) {
    let low = _mm256_set1_epi8(15);
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let quad = outlier.quad as usize;
            let digits = _mm256_set1_epi32(i32::from_le_bytes(outlier.digits.map(|digit| digit as u8)));
            let excess = _mm256_set1_epi32(outlier.start / -16);
            let shift = _mm_cvtsi32_si128((quad % 2 * 4) as i32);
            for (eight, sums) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let (strip, half) = (eight / 2, eight % 2);
                // SAFETY: a quad of the activations is one of the weights, in every column.
                unsafe {
                    let step = block.tiles.add(quad / 16 * WeightClass::Int4.step_bytes());
                    let line = step.add(INT4_RATIOS + strip * INT4_TILE + quad % 16 / 2 * 64 + half * 32);
                    let ratios = step.add(strip * 32 + quad % 16 * QUAD / GROUP * 16 + half * 8);
                    let w = _mm256_and_si256(_mm256_srl_epi16(_mm256_loadu_si256(line.cast()), shift), low);
                    let products = _mm256_madd_epi16(_mm256_maddubs_epi16(w, digits), _mm256_set1_epi16(1));
                    add_by_ratio(sums, _mm256_sub_epi32(products, excess), ratios);
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

/// `sums += products * ratios`.
///
/// # Safety
/// There are 8 ratios.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_by_ratio(sums: &mut [u32; 8], products: __m256i, ratios: *const u8) {
    // SAFETY: the caller's promise; 8 sums are 32 bytes.
    unsafe {
        let ratios = _mm256_cvtepi8_epi32(_mm_loadl_epi64(ratios.cast()));
        let to = sums.as_mut_ptr().cast::<__m256i>();
        _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), _mm256_mullo_epi32(products, ratios)));
    }
}

/// Sums of a group stay in 16 bits: eight products of pairs, each at most 2 * 15 * 127, in either half of a column's
/// lane, and the correction (see [`Format::Int8Grouped`]) in the low half. The low half holds the sum of `(q + 8) * x`
/// over 16 weights and `-8 * x` over all 32: at most 32 512 at the end, even if it wrapped on the way. `vpmaddwd` with
/// the ratio in both halves then adds the two.
#[target_feature(enable = "avx2")]
unsafe fn int4<const ROWS: usize>(block: Block) {
    /// One tile, with its 32 ratios.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn tile<const ROWS: usize>(
        (tile, ratios): (*const u8, *const u8),
        (x, corrections): (*const u8, *const u8),
        x_stride: usize,
        ahead: *const u8,
        totals: &mut Strip<ROWS>,
    ) {
        let low = _mm256_set1_epi8(15);
        let (tile, x) = in_order(tile, x);
        for group in 0..2 {
            // SAFETY: within the tile, the step of each activation row and its two corrections; prefetching past the
            // end is harmless.
            unsafe {
                let mut sums: Strip<ROWS> = std::array::from_fn(|row| {
                    let correction = corrections.add(row * x_stride + group * 4).cast::<i32>();
                    [_mm256_set1_epi32(correction.read_unaligned()); 2]
                });
                for line in group * 4..group * 4 + 4 {
                    let from = tile.add(line * 64);
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * 64).cast());
                    let packed = [0, 32].map(|half| _mm256_loadu_si256(from.add(half).cast()));
                    for high in 0..2 {
                        let w = packed.map(|packed| match high {
                            0 => _mm256_and_si256(packed, low),
                            _ => _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low),
                        });
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let quad = x.add(row * x_stride + line * 8 + high * 4).cast::<i32>();
                            let quad = _mm256_set1_epi32(quad.read_unaligned());
                            for (sum, w) in sums.iter_mut().zip(w) {
                                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w, quad));
                            }
                        }
                    }
                }
                let ratios = [0, 8].map(|half| {
                    let ratios = _mm_loadl_epi64(ratios.add(group * 16 + half).cast());
                    _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(ratios, ratios))
                });
                for (totals, sums) in totals.iter_mut().zip(sums) {
                    for ((total, sum), ratios) in totals.iter_mut().zip(sums).zip(ratios) {
                        *total = _mm256_add_epi32(*total, _mm256_madd_epi16(sum, ratios));
                    }
                }
            }
        }
    }
    let mut totals = [[[_mm256_setzero_si256(); 2]; ROWS]; 2];
    let (mut step, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    let mut corrections = block.x.wrapping_add(block.steps * 64);
    for _ in 0..block.steps {
        // SAFETY: step by step the addresses stay within `steps` steps and activations, behind which lie the
        // corrections.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            for (strip, totals) in totals.iter_mut().enumerate() {
                let at = INT4_RATIOS + strip * INT4_TILE;
                let weights = (step.add(at), step.add(strip * 32));
                tile(weights, (x, corrections), block.x_stride, ahead.wrapping_add(at), totals);
            }
            (step, x, corrections) = (step.add(WeightClass::Int4.step_bytes()), x.add(64), corrections.add(8));
        }
        ahead = ahead.wrapping_add(block.ahead_stride);
    }
    // SAFETY: the sums are `[ROWS][32]`.
    unsafe { store(&totals, block.sums) };
}

/// The uneven levels of int4 plus 64, in both lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn uneven_levels() -> __m256i {
    // SAFETY: 16 bytes.
    let levels = unsafe { _mm_loadu_si128(Levels::Uneven.table().as_ptr().cast()) };
    _mm256_broadcastsi128_si256(_mm_add_epi8(levels, _mm_set1_epi8(64)))
}

/// Sums of a group begin with half the correction, which is -64 times the sum of its digits: levels plus 64 are below
/// 128, so that two products (2 * 127 * 127) fit 16 bits. Four are added in 32 bits, and sums multiplied by the ratio.
#[target_feature(enable = "avx2")]
unsafe fn uneven<const ROWS: usize>(block: Block) {
    /// One group of one strip.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn group<const ROWS: usize>(
        levels: __m256i,
        (lines, ratios): (*const u8, *const u8),
        (x, corrections): (*const u8, *const u8),
        x_stride: usize,
        ahead: *const u8,
        totals: *mut u32,
    ) {
        let (low, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
        let (lines, x) = in_order(lines, x);
        // SAFETY: within the tile, the step of each activation row and its corrections, the ratios and the totals;
        // prefetching past the end is harmless.
        unsafe {
            let mut sums: Strip<ROWS> = std::array::from_fn(|row| {
                let correction = corrections.add(row * x_stride).cast::<i32>().read_unaligned();
                [_mm256_set1_epi32(correction / 2); 2]
            });
            for line in 0..4 {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * 64).cast());
                let packed = [0, 32].map(|half| _mm256_loadu_si256(lines.add(line * 64 + half).cast()));
                for high in 0..2 {
                    let w = packed.map(|packed| {
                        let codes = if high == 0 { packed } else { _mm256_srli_epi16::<4>(packed) };
                        _mm256_shuffle_epi8(levels, _mm256_and_si256(codes, low))
                    });
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let quad = x.add(row * x_stride + line * 8 + high * 4).cast::<i32>();
                        let quad = _mm256_set1_epi32(quad.read_unaligned());
                        for (sum, w) in sums.iter_mut().zip(w) {
                            let products = _mm256_madd_epi16(_mm256_maddubs_epi16(w, quad), ones);
                            *sum = _mm256_add_epi32(*sum, products);
                        }
                    }
                }
            }
            for half in 0..2 {
                let ratios = _mm256_cvtepi8_epi32(_mm_loadl_epi64(ratios.add(half * 8).cast()));
                for (row, sums) in sums.iter().enumerate() {
                    let total = totals.add(row * 32 + half * 8).cast::<__m256i>();
                    let folded = _mm256_mullo_epi32(sums[half], ratios);
                    _mm256_storeu_si256(total, _mm256_add_epi32(_mm256_loadu_si256(total), folded));
                }
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
                group::<ROWS>(levels, weights, activations, block.x_stride, ahead.wrapping_add(at), totals);
            }
            (step, x, corrections) = (step.add(WeightClass::Int4.step_bytes()), x.add(64), corrections.add(8));
            ahead = ahead.wrapping_add(block.ahead_stride);
        }
    }
}

/// As [`outliers_int8`], for int4 with uneven levels.
#[target_feature(enable = "avx2")]
unsafe fn outliers_uneven(block: OutlierBlock<'_>) {
    let levels = uneven_levels();
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let quad = outlier.quad as usize;
            let digits = _mm256_set1_epi32(i32::from_le_bytes(outlier.digits.map(|digit| digit as u8)));
            let start = _mm256_set1_epi32(outlier.start / 2);
            for (eight, sums) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let (strip, half) = (eight / 2, eight % 2);
                // SAFETY: a quad of the activations is one of the weights, in every column.
                unsafe {
                    let step = block.tiles.add(quad / 16 * WeightClass::Int4.step_bytes());
                    let w = levels_of::<true>(levels, step.add(INT4_RATIOS + strip * INT4_TILE + half * 32), quad % 16);
                    let ratios = step.add(strip * 32 + quad % 16 * QUAD / GROUP * 16 + half * 8);
                    let products = _mm256_madd_epi16(_mm256_maddubs_epi16(w, digits), _mm256_set1_epi16(1));
                    add_by_ratio(sums, _mm256_add_epi32(products, start), ratios);
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

/// The scales, or minima, at `from` of one group in 8 columns.
///
/// # Safety
/// `from` is where those of a step begin.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales(groups: &Groups, from: *const u8, group: usize, eight: usize) -> __m256 {
    let at = group * PAIR + eight * 8;
    // SAFETY: the caller's promise.
    unsafe {
        let half = |from: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        match groups.scales {
            Scales::Half => half(from.add(at * 2)),
            Scales::Super => {
                let ratios = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(PAIR * 2 + at).cast()));
                _mm256_mul_ps(half(from.add(eight * 16)), _mm256_cvtepi32_ps(ratios))
            }
            Scales::Power => {
                let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponents))
            }
            Scales::Full => _mm256_loadu_ps(from.add(at * 4).cast()),
        }
    }
}

/// The levels of 4 weights in each of 8 columns, `quad` of a tile of groups.
///
/// # Safety
/// `half` is where the 8 columns of the tile's first line begin.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn levels_of<const FOUR: bool>(levels: __m256i, half: *const u8, quad: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        if FOUR {
            let packed = _mm256_loadu_si256(half.add(quad / 2 * 64).cast());
            let codes = if quad.is_multiple_of(2) { packed } else { _mm256_srli_epi16::<4>(packed) };
            _mm256_shuffle_epi8(levels, _mm256_and_si256(codes, _mm256_set1_epi8(15)))
        } else {
            _mm256_loadu_si256(half.add(quad * 64).cast())
        }
    }
}

/// Products of 4 signed weights, magnitudes up to 128, and digits: see [`int8`].
#[inline]
#[target_feature(enable = "avx2")]
fn dot(w: __m256i, digits: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(digits, w));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// The levels of 4-bit codes as signed numbers, in both lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn signed_levels(groups: &Groups) -> __m256i {
    // SAFETY: 16 bytes.
    let levels = unsafe { _mm_loadu_si128(groups.levels.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(_mm_xor_si128(levels, _mm_set1_epi8(-128)))
}

/// Weights in the quantization groups of a file: exact sums of a group, 8 columns at a time, joined to the totals in f32.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn blocks<const ROWS: usize, const FOUR: bool, const GROUP: usize>(block: Block) {
    // SAFETY: they live while the kernel runs.
    let groups = unsafe { block.groups.as_ref() }.expect("a path of groups");
    let tile_bytes = if FOUR { INT4_TILE } else { TILE };
    let levels = signed_levels(groups);
    // SAFETY: the sums are `[ROWS][32]`. Step by step the addresses stay within `steps` steps and activations, behind
    // which lies a correction for each group; prefetching past the end is harmless.
    unsafe {
        block.sums.write_bytes(0, ROWS * 32);
        let (mut step, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        let mut corrections = block.x.add(block.steps * 64);
        for _ in 0..block.steps {
            for line in 0..groups.step_bytes / 64 {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(line * 64).cast());
            }
            for eight in 0..4 {
                let half = step.add(groups.tiles() + eight / 2 * tile_bytes + eight % 2 * 32);
                for group in 0..64 / GROUP {
                    let mut sums = [_mm256_setzero_si256(); ROWS];
                    for quad in group * GROUP / 4..(group + 1) * GROUP / 4 {
                        let w = levels_of::<FOUR>(levels, half, quad);
                        for (row, sum) in sums.iter_mut().enumerate() {
                            let digits = x.add(row * block.x_stride + quad * 4).cast::<i32>().read_unaligned();
                            *sum = _mm256_add_epi32(*sum, dot(w, _mm256_set1_epi32(digits)));
                        }
                    }
                    let scale = scales(groups, step, group, eight);
                    let min = groups.mins.then(|| {
                        let min = scales(groups, step.add(groups.scale_bytes), group, eight);
                        _mm256_mul_ps(min, _mm256_set1_ps(-1.0 / 128.0))
                    });
                    for (row, sum) in sums.into_iter().enumerate() {
                        let total = block.sums.add(row * 32 + eight * 8).cast::<f32>();
                        let mut joined = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_loadu_ps(total));
                        if let Some(min) = min {
                            // The correction is -128 times the sum of the digits.
                            let start = corrections.add(row * block.x_stride + group * 4).cast::<i32>();
                            let start = _mm256_cvtepi32_ps(_mm256_set1_epi32(start.read_unaligned()));
                            joined = _mm256_fmadd_ps(start, min, joined);
                        }
                        _mm256_storeu_ps(total, joined);
                    }
                }
            }
            (step, x) = (step.add(groups.step_bytes), x.add(64));
            corrections = corrections.add(64 / GROUP * 4);
            ahead = ahead.wrapping_add(block.ahead_stride);
        }
    }
}

/// As [`outliers_int8`], for weights in the quantization groups of a file.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_outliers<const FOUR: bool, const GROUP: usize>(block: OutlierBlock<'_>) {
    let groups = block.groups.expect("a path of groups");
    let tile_bytes = if FOUR { INT4_TILE } else { TILE };
    let levels = signed_levels(groups);
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let quad = outlier.quad as usize;
            let digits = _mm256_set1_epi32(i32::from_le_bytes(outlier.digits.map(|digit| digit as u8)));
            let group = quad % 16 * QUAD / GROUP;
            for (eight, totals) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // SAFETY: a quad of the activations is one of the weights, in every column; 8 totals are 32 bytes.
                unsafe {
                    let step = block.tiles.add(quad / 16 * groups.step_bytes);
                    let half = step.add(groups.tiles() + eight / 2 * tile_bytes + eight % 2 * 32);
                    let dot = _mm256_cvtepi32_ps(dot(levels_of::<FOUR>(levels, half, quad % 16), digits));
                    let to = totals.as_mut_ptr().cast::<f32>();
                    let mut joined = _mm256_fmadd_ps(dot, scales(groups, step, group, eight), _mm256_loadu_ps(to));
                    if groups.mins {
                        let min = scales(groups, step.add(groups.scale_bytes), group, eight);
                        joined = _mm256_fmadd_ps(_mm256_set1_ps((outlier.start / -128) as f32), min, joined);
                    }
                    _mm256_storeu_ps(to, joined);
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

#[target_feature(enable = "avx2,fma")]
unsafe fn bf16<const ROWS: usize>(block: Block) {
    /// One tile: the even and the odd sums of its 32 products, added to the totals.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const ROWS: usize>(
        tile: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        totals: &mut [[__m256; 2]; ROWS],
    ) {
        let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        let mut even = [[_mm256_setzero_ps(); 2]; ROWS];
        let mut odd = [[_mm256_setzero_ps(); 2]; ROWS];
        let (tile, x) = in_order(tile, x);
        for pair in 0..16 {
            // SAFETY: within the tile and the step of each activation row, f32 here; prefetching past the end is
            // harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(pair * 64).cast());
                for half in 0..2 {
                    let w = _mm256_loadu_si256(tile.add(pair * 64 + half * 32).cast());
                    let w_even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                    let w_odd = _mm256_castsi256_ps(_mm256_and_si256(w, high));
                    for row in 0..ROWS {
                        let x = x.add(row * x_stride + pair * 8).cast::<f32>();
                        even[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(*x), w_even, even[row][half]);
                        odd[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(*x.add(1)), w_odd, odd[row][half]);
                    }
                }
            }
        }
        for row in 0..ROWS {
            for half in 0..2 {
                let step = _mm256_add_ps(even[row][half], odd[row][half]);
                totals[row][half] = _mm256_add_ps(totals[row][half], step);
            }
        }
    }
    let mut totals = [[[_mm256_setzero_ps(); 2]; ROWS]; 2];
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
        for (row, halves) in totals.iter().enumerate() {
            for (half, &total) in halves.iter().enumerate() {
                // SAFETY: the sums are `[ROWS][32]`.
                unsafe { _mm256_storeu_ps(block.sums.add(row * 32 + strip * 16 + half * 8).cast(), total) };
            }
        }
    }
}
