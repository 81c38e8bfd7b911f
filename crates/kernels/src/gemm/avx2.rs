//! AVX2 kernels: `vpmaddubsw` for int8, fused multiply-add for bf16. One strip of 16 columns at a time: 16 registers.

use super::{Block, Format, Kernel, Path, activations, epilogue};
use crate::quant::{INT4_TILE, TILE, WeightClass};
use std::arch::x86_64::*;

pub(super) static INT8: Path =
    Path { format: Format::Int8, kernels: &INT8_KERNELS, block_rows: 4, prepare, finish, unsigned_weights: false };

pub(super) static INT4: Path = Path {
    format: Format::Int8Grouped,
    kernels: &INT4_KERNELS,
    block_rows: 4,
    prepare,
    finish,
    unsigned_weights: false,
};

pub(super) static BF16: Path =
    Path { format: Format::Wide, kernels: &BF16_KERNELS, block_rows: 3, prepare, finish, unsigned_weights: false };

static INT8_KERNELS: [Kernel; 4] = [int8::<1>, int8::<2>, int8::<3>, int8::<4>];
static INT4_KERNELS: [Kernel; 4] = [int4::<1>, int4::<2>, int4::<3>, int4::<4>];
static BF16_KERNELS: [Kernel; 3] = [bf16::<1>, bf16::<2>, bf16::<3>];

#[target_feature(enable = "avx2,fma")]
unsafe fn prepare(rows: activations::PrepareRows<'_>) {
    // SAFETY: passed on.
    unsafe { activations::prepare(rows) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn finish(results: epilogue::Results<'_>) {
    // SAFETY: passed on.
    unsafe { epilogue::finish(results) }
}

/// `|w|` is unsigned and `x` takes the sign of `w`: both within +-127, so the 16-bit sum of two products cannot
/// saturate (2 * 127 * 127 = 32 258).
#[target_feature(enable = "avx2")]
unsafe fn int8<const ROWS: usize>(block: Block) {
    // SAFETY: step by step the addresses stay within `steps` tiles and activations, and the sums are `[ROWS][32]`;
    // prefetching past the end is harmless.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        for strip in 0..2 {
            let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
            let (mut tile, mut x) = (block.tiles.add(strip * TILE), block.x);
            let mut ahead = block.ahead.wrapping_add(strip * TILE);
            for _ in 0..block.steps {
                for quad in 0..16 {
                    let line = tile.add(quad * 64);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(quad * 64).cast());
                    for half in 0..2 {
                        let w = _mm256_loadu_si256(line.add(half * 32).cast());
                        let magnitude = _mm256_abs_epi8(w);
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let group = x.add(row * block.x_stride + quad * 4).cast::<i32>().read_unaligned();
                            let signed = _mm256_sign_epi8(_mm256_set1_epi32(group), w);
                            let products = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed), ones);
                            sums[half] = _mm256_add_epi32(sums[half], products);
                        }
                    }
                }
                tile = tile.add(2 * TILE);
                ahead = ahead.wrapping_add(block.ahead_stride);
                x = x.add(64);
            }
            for (row, sums) in sums.iter().enumerate() {
                for (half, &sum) in sums.iter().enumerate() {
                    _mm256_storeu_si256(block.sums.add(row * 32 + strip * 16 + half * 8).cast(), sum);
                }
            }
        }
    }
}

/// Sums of a group stay in 16 bits: eight products of pairs, each at most 2 * 15 * 127, in either half of a column's
/// lane, and the correction (see [`Format::Int8Grouped`]) in the low half. There the sum is that of `(q + 8) * x` over 16
/// weights and `-8 * x` over all 32: at most 32 512 at the end, whatever wrapped on the way. `vpmaddwd` with the ratio
/// in both halves then adds the two.
#[target_feature(enable = "avx2")]
unsafe fn int4<const ROWS: usize>(block: Block) {
    // SAFETY: as in `int8`; an activation row is followed by two corrections a step.
    unsafe {
        let low = _mm256_set1_epi8(15);
        for strip in 0..2 {
            let mut totals = [[_mm256_setzero_si256(); 2]; ROWS];
            let (mut step, mut x, mut ahead) = (block.tiles, block.x, block.ahead.wrapping_add(strip * INT4_TILE));
            let mut corrections = block.x.add(block.steps * 64);
            for _ in 0..block.steps {
                for group in 0..2 {
                    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let correction = corrections.add(row * block.x_stride + group * 4).cast::<i32>();
                        *sums = [_mm256_set1_epi32(correction.read_unaligned()); 2];
                    }
                    for line in group * 4..group * 4 + 4 {
                        let from = step.add(strip * INT4_TILE + line * 64);
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64).cast());
                        let packed = [0, 32].map(|half| _mm256_loadu_si256(from.add(half).cast()));
                        for high in 0..2 {
                            let w = packed.map(|packed| match high {
                                0 => _mm256_and_si256(packed, low),
                                _ => _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low),
                            });
                            for (row, sums) in sums.iter_mut().enumerate() {
                                let quad = x.add(row * block.x_stride + line * 8 + high * 4).cast::<i32>();
                                let quad = _mm256_set1_epi32(quad.read_unaligned());
                                for (sum, w) in sums.iter_mut().zip(w) {
                                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w, quad));
                                }
                            }
                        }
                    }
                    let ratios = [0, 8].map(|half| {
                        let ratios = step.add(2 * INT4_TILE + strip * 32 + group * 16 + half);
                        let ratios = _mm_loadl_epi64(ratios.cast());
                        _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(ratios, ratios))
                    });
                    for (totals, sums) in totals.iter_mut().zip(sums) {
                        for ((total, sum), ratios) in totals.iter_mut().zip(sums).zip(ratios) {
                            *total = _mm256_add_epi32(*total, _mm256_madd_epi16(sum, ratios));
                        }
                    }
                }
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(INT4_TILE).cast());
                step = step.add(WeightClass::Int4.step_bytes());
                ahead = ahead.wrapping_add(block.ahead_stride);
                x = x.add(64);
                corrections = corrections.add(8);
            }
            for (row, totals) in totals.iter().enumerate() {
                for (half, &total) in totals.iter().enumerate() {
                    _mm256_storeu_si256(block.sums.add(row * 32 + strip * 16 + half * 8).cast(), total);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn bf16<const ROWS: usize>(block: Block) {
    // SAFETY: as in `int8`; an activation row is f32 here.
    unsafe {
        let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        for strip in 0..2 {
            let totals = block.sums.cast::<f32>().add(strip * 16);
            for row in 0..ROWS {
                _mm256_storeu_ps(totals.add(row * 32), _mm256_setzero_ps());
                _mm256_storeu_ps(totals.add(row * 32 + 8), _mm256_setzero_ps());
            }
            let (mut tile, mut x) = (block.tiles.add(strip * TILE), block.x);
            let mut ahead = block.ahead.wrapping_add(strip * TILE);
            for _ in 0..block.steps {
                let mut even = [[_mm256_setzero_ps(); 2]; ROWS];
                let mut odd = [[_mm256_setzero_ps(); 2]; ROWS];
                for pair in 0..16 {
                    let line = tile.add(pair * 64);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(pair * 64).cast());
                    for half in 0..2 {
                        let w = _mm256_loadu_si256(line.add(half * 32).cast());
                        let w_even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                        let w_odd = _mm256_castsi256_ps(_mm256_and_si256(w, high));
                        for row in 0..ROWS {
                            let x = x.add(row * block.x_stride + pair * 8).cast::<f32>();
                            even[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(*x), w_even, even[row][half]);
                            odd[row][half] = _mm256_fmadd_ps(_mm256_set1_ps(*x.add(1)), w_odd, odd[row][half]);
                        }
                    }
                }
                for row in 0..ROWS {
                    for half in 0..2 {
                        let total = totals.add(row * 32 + half * 8);
                        let step = _mm256_add_ps(even[row][half], odd[row][half]);
                        _mm256_storeu_ps(total, _mm256_add_ps(_mm256_loadu_ps(total), step));
                    }
                }
                tile = tile.add(2 * TILE);
                ahead = ahead.wrapping_add(block.ahead_stride);
                x = x.add(128);
            }
        }
    }
}
