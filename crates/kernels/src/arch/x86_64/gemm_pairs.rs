//! Bf16 kernels for [`Vdpbf16`](crate::AccumulationOrder::Vdpbf16): one chain per row and column, pair after pair.
//!
//! ```text
//! avx512 bf16   vdpbf16ps, a pair in one instruction; activations are packed bf16, broadcast 4 bytes at a time
//! avx512, avx2  two fused multiply-adds, the odd product first; activations are f32
//! ```
//! One register of sums per row suffices where the order of tiles needs three; many rows of AVX-512 take both strips
//! of a pair at once and use a broadcast activation twice: the limit is two loads per cycle. Few rows are bound by
//! memory and take tile after tile, in memory order (see [`in_order`]).

use super::proofs::{Avx2, Avx512, Avx512Bf16};
use super::{by_rows, gemm_avx2, gemm_avx512, in_order};
use crate::gemm::{self, Block, Format, Functions, Kernel, Table};
use crate::quant::TILE;
use std::arch::x86_64::*;
use std::hint::black_box;

pub(super) static AVX512_BF16: Table<Avx512Bf16> = {
    let (kernels, block_rows): (&[Kernel], _) = (&DOT_512, BLOCK_ROWS);
    let (prepare, finish, outliers) = (gemm_avx512::prepare, gemm_avx512::finish, gemm::no_outliers);
    // SAFETY: `dot_512` asks for AVX-512 F and BF16, the others for what `Avx512` proves.
    unsafe { Table::new(Functions { format: Format::Bf16, kernels, block_rows, prepare, finish, outliers }) }
};

pub(super) static AVX512: Table<Avx512> = {
    let (kernels, block_rows): (&[Kernel], _) = (&FMA_512, FMA_512.len());
    let (prepare, finish, outliers) = (gemm_avx512::prepare, gemm_avx512::finish, gemm::no_outliers);
    // SAFETY: `fma_512` asks for AVX-512 F, the others for what `Avx512` proves.
    unsafe { Table::new(Functions { format: Format::Wide, kernels, block_rows, prepare, finish, outliers }) }
};

pub(super) static AVX2: Table<Avx2> = {
    let (kernels, block_rows): (&[Kernel], _) = (&FMA_256, FMA_256.len());
    let (prepare, finish, outliers) = (gemm_avx2::prepare, gemm_avx2::finish, gemm::no_outliers);
    // SAFETY: `fma_256` asks for AVX2 and FMA, the others for what `Avx2` proves.
    unsafe { Table::new(Functions { format: Format::Wide, kernels, block_rows, prepare, finish, outliers }) }
};

static FMA_256: [Kernel; 4] = [fma_256::<1>, fma_256::<2>, fma_256::<3>, fma_256::<4>];
static DOT_512: [Kernel; 16] = by_rows!(R in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 => dot_512::<R>);
static FMA_512: [Kernel; 12] = by_rows!(R in 1 2 3 4 5 6 7 8 9 10 11 12 => fma_512::<R>);

/// Pairs of a tile. With few rows the compiler must not know it: it would unroll the loop and broadcast the activations
/// of all pairs before it multiplies, and run out of registers.
const LINES: usize = 16;

/// Up to this many rows AVX-512 takes tile after tile: they are bound by memory. (Zen 5, one core, 8 rows: 102 % of the
/// read bandwidth, with both strips at once 80 %.)
const STREAMED_ROWS: usize = 8;
/// Rows whose sums of both strips fit the registers. A few more are still one block, so that they read the weights once.
const BLOCK_ROWS: usize = 12;
/// As [`STREAMED_ROWS`] for fused multiply-adds, which reach their compute bound sooner.
const STREAMED_FMA_ROWS: usize = 4;

/// The sums of both strips.
type Totals<const ROWS: usize> = [[__m512; ROWS]; 2];

/// Stores sums to `[ROWS][32]`.
///
/// # Safety
/// `to` has room for them.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const ROWS: usize>(totals: &Totals<ROWS>, to: *mut u32) {
    for (strip, totals) in totals.iter().enumerate() {
        for (row, &total) in totals.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to.add(row * 32 + strip * 16).cast(), total) };
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot_512<const ROWS: usize>(block: Block) {
    /// One pair of `STRIPS` tiles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn pair<const ROWS: usize, const STRIPS: usize>(
        line: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        totals: &mut [[__m512; ROWS]],
    ) {
        // SAFETY: both types are 64 bytes in which every bit pattern is valid.
        let bf16 = |bits: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
        // SAFETY: within the tiles and the step of each activation row; prefetching past the end is harmless.
        unsafe {
            let w: [__m512bh; STRIPS] = std::array::from_fn(|strip| {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(strip * TILE).cast());
                bf16(_mm512_loadu_si512(line.add(strip * TILE).cast()))
            });
            for row in 0..ROWS {
                let x = bf16(_mm512_set1_epi32(x.add(row * x_stride).cast::<i32>().read_unaligned()));
                for (totals, w) in totals.iter_mut().zip(w) {
                    totals[row] = _mm512_dpbf16_ps(totals[row], w, x);
                }
            }
        }
    }
    let lines = black_box(LINES);
    let mut totals: Totals<ROWS> = [[_mm512_setzero_ps(); ROWS]; 2];
    let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    for _ in 0..block.steps {
        // SAFETY: step by step the addresses stay within `steps` steps of the tiles and of the activations, 64 bytes
        // each.
        unsafe {
            if ROWS <= STREAMED_ROWS || ROWS > BLOCK_ROWS {
                for (strip, totals) in totals.iter_mut().enumerate() {
                    let (tile, x) = in_order(tiles.add(strip * TILE), x);
                    let (ahead, totals) = (ahead.wrapping_add(strip * TILE), std::slice::from_mut(totals));
                    for at in 0..lines {
                        let ahead = ahead.wrapping_add(at * 64);
                        pair::<ROWS, 1>(tile.add(at * 64), x.add(at * 4), block.x_stride, ahead, totals);
                    }
                }
            } else {
                for at in 0..LINES {
                    let ahead = ahead.wrapping_add(at * 64);
                    pair::<ROWS, 2>(tiles.add(at * 64), x.add(at * 4), block.x_stride, ahead, &mut totals);
                }
            }
            (tiles, x) = (tiles.add(2 * TILE), x.add(64));
        }
        ahead = ahead.wrapping_add(block.ahead_stride);
    }
    // SAFETY: the sums are `[ROWS][32]`.
    unsafe { store(&totals, block.sums) };
}

#[target_feature(enable = "avx512f")]
unsafe fn fma_512<const ROWS: usize>(block: Block) {
    /// One pair of `STRIPS` tiles.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pair<const ROWS: usize, const STRIPS: usize>(
        line: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        totals: &mut [[__m512; ROWS]],
    ) {
        let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        // SAFETY: within the tiles and the step of each activation row, f32 here; prefetching past the end is harmless.
        unsafe {
            let w: [[__m512; 2]; STRIPS] = std::array::from_fn(|strip| {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(strip * TILE).cast());
                let w = _mm512_loadu_si512(line.add(strip * TILE).cast());
                [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)), _mm512_castsi512_ps(_mm512_and_si512(w, high))]
            });
            for row in 0..ROWS {
                let x = x.add(row * x_stride).cast::<f32>();
                let (even, odd) = (_mm512_set1_ps(*x), _mm512_set1_ps(*x.add(1)));
                for (totals, w) in totals.iter_mut().zip(w) {
                    totals[row] = _mm512_fmadd_ps(even, w[0], _mm512_fmadd_ps(odd, w[1], totals[row]));
                }
            }
        }
    }
    let lines = black_box(LINES);
    let mut totals: Totals<ROWS> = [[_mm512_setzero_ps(); ROWS]; 2];
    let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    for _ in 0..block.steps {
        // SAFETY: step by step the addresses stay within `steps` steps of the tiles, and of the activations, 128 bytes
        // each.
        unsafe {
            if ROWS <= STREAMED_FMA_ROWS {
                for (strip, totals) in totals.iter_mut().enumerate() {
                    let (tile, x) = in_order(tiles.add(strip * TILE), x);
                    let (ahead, totals) = (ahead.wrapping_add(strip * TILE), std::slice::from_mut(totals));
                    for at in 0..lines {
                        let ahead = ahead.wrapping_add(at * 64);
                        pair::<ROWS, 1>(tile.add(at * 64), x.add(at * 8), block.x_stride, ahead, totals);
                    }
                }
            } else {
                for at in 0..LINES {
                    let ahead = ahead.wrapping_add(at * 64);
                    pair::<ROWS, 2>(tiles.add(at * 64), x.add(at * 8), block.x_stride, ahead, &mut totals);
                }
            }
            (tiles, x) = (tiles.add(2 * TILE), x.add(128));
        }
        ahead = ahead.wrapping_add(block.ahead_stride);
    }
    // SAFETY: the sums are `[ROWS][32]`.
    unsafe { store(&totals, block.sums) };
}

#[target_feature(enable = "avx2,fma")]
unsafe fn fma_256<const ROWS: usize>(block: Block) {
    /// One tile.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const ROWS: usize>(
        tile: *const u8,
        x: *const u8,
        x_stride: usize,
        ahead: *const u8,
        lines: usize,
        totals: &mut [[__m256; 2]; ROWS],
    ) {
        let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        let (tile, x) = in_order(tile, x);
        for pair in 0..lines {
            // SAFETY: within the tile and the step of each activation row, f32 here; prefetching past the end is
            // harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(pair * 64).cast());
                for half in 0..2 {
                    let w = _mm256_loadu_si256(tile.add(pair * 64 + half * 32).cast());
                    let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                    let odd = _mm256_castsi256_ps(_mm256_and_si256(w, high));
                    for (row, totals) in totals.iter_mut().enumerate() {
                        let x = x.add(row * x_stride + pair * 8).cast::<f32>();
                        totals[half] = _mm256_fmadd_ps(_mm256_set1_ps(*x.add(1)), odd, totals[half]);
                        totals[half] = _mm256_fmadd_ps(_mm256_set1_ps(*x), even, totals[half]);
                    }
                }
            }
        }
    }
    let lines = black_box(LINES);
    let mut totals = [[[_mm256_setzero_ps(); 2]; ROWS]; 2];
    let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
    for _ in 0..block.steps {
        // SAFETY: as in `fma_512`.
        unsafe {
            tile(tiles, x, block.x_stride, ahead, lines, &mut totals[0]);
            tile(tiles.add(TILE), x, block.x_stride, ahead.wrapping_add(TILE), lines, &mut totals[1]);
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

/// `c` and sixteen pairs by the instruction, if this CPU has it.
#[cfg(test)]
pub(crate) fn multiply_pairs(c: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> Option<[f32; 16]> {
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn multiply(c: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> [f32; 16] {
        // SAFETY: sixteen numbers of 4 bytes each; every bit pattern is valid in all of the types.
        unsafe {
            let [a, b] =
                [a, b].map(|x| std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(x.as_ptr().cast())));
            std::mem::transmute(_mm512_dpbf16_ps(_mm512_loadu_ps(c.as_ptr()), a, b))
        }
    }
    // SAFETY: just detected.
    Avx512Bf16::detect().map(|_| unsafe { multiply(c, a, b) })
}
