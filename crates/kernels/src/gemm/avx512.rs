//! AVX-512 kernels: `vpdpbusd` for int8, fused multiply-add for bf16.
//!
//! A kernel holds the sums of 1..=12 (int8) or 1..=6 (bf16) rows x 32 columns in registers and walks down K once. Weights
//! are loaded and made ready once for all rows (int8: `w ^ 0x80` is `w + 128` as unsigned; bf16: even and odd halves
//! widened to f32), activations are broadcast from memory, four bytes at a time.

use super::{Block, Format, Kernel, Path, activations, epilogue};
use crate::quant::{INT4_TILE, TILE, WeightClass};
use std::arch::x86_64::*;

pub(super) static INT8: Path =
    Path { format: Format::Int8, kernels: &INT8_KERNELS, block_rows: 12, prepare, finish, unsigned_weights: true };

pub(super) static INT4: Path = Path {
    format: Format::Int8Grouped,
    kernels: &INT4_KERNELS,
    block_rows: 12,
    prepare,
    finish,
    unsigned_weights: false,
};

pub(super) static BF16: Path =
    Path { format: Format::Wide, kernels: &BF16_KERNELS, block_rows: 6, prepare, finish, unsigned_weights: false };

static INT8_KERNELS: [Kernel; 12] = [
    int8::<1>, int8::<2>, int8::<3>, int8::<4>, int8::<5>, int8::<6>, int8::<7>, int8::<8>, int8::<9>, int8::<10>,
    int8::<11>, int8::<12>,
];
static INT4_KERNELS: [Kernel; 12] = [
    int4::<1>, int4::<2>, int4::<3>, int4::<4>, int4::<5>, int4::<6>, int4::<7>, int4::<8>, int4::<9>, int4::<10>,
    int4::<11>, int4::<12>,
];
static BF16_KERNELS: [Kernel; 6] = [bf16_row, bf16::<2>, bf16::<3>, bf16::<4>, bf16::<5>, bf16::<6>];

/// How far ahead the bf16 kernel of one row fetches weights; on Zen 5 better than twice and four times of it.
const ROW_PREFETCH: usize = 4096;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn prepare(rows: activations::PrepareRows<'_>) {
    // SAFETY: passed on.
    unsafe { activations::prepare(rows) }
}

/// As [`epilogue::finish`], a strip at a time, with masks at the edge.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn finish(results: epilogue::Results<'_>) {
    for strip in 0..2 {
        let column = strip * 16;
        let mask = ((1u32 << results.columns.saturating_sub(column).min(16)) - 1) as __mmask16;
        // SAFETY: a masked load or store touches only columns that are there; the caller promises `out`.
        unsafe {
            let load = |from: *const f32| _mm512_maskz_loadu_ps(mask, from.wrapping_add(column));
            let bias = results.bias.map(|bias| load(bias.as_ptr()));
            let column_scales = match results.class {
                WeightClass::Bf16 => _mm512_setzero_ps(),
                WeightClass::Int8 | WeightClass::Int4 => load(results.column_scales.as_ptr()),
            };
            for (row, sums) in results.sums.iter().enumerate() {
                let sums = sums.as_ptr().add(column);
                let mut y = match results.class {
                    WeightClass::Bf16 => _mm512_loadu_ps(sums.cast()),
                    WeightClass::Int8 | WeightClass::Int4 => {
                        let excess = if results.unsigned_weights { results.row_sums[row].wrapping_mul(128) } else { 0 };
                        let sums = _mm512_sub_epi32(_mm512_loadu_si512(sums.cast()), _mm512_set1_epi32(excess));
                        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(results.row_scales[row]));
                        _mm512_mul_ps(scaled, column_scales)
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

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn int8<const ROWS: usize>(block: Block) {
    // SAFETY: step by step the addresses stay within `steps` tiles and activations, and the sums are `[ROWS][32]`;
    // prefetching past the end is harmless.
    unsafe {
        let flip = _mm512_set1_epi8(-128);
        let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
        let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        for _ in 0..block.steps {
            for quad in 0..16 {
                let line = tiles.add(quad * 64);
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(quad * 64).cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(quad * 64 + TILE).cast());
                let w0 = _mm512_xor_si512(_mm512_loadu_si512(line.cast()), flip);
                let w1 = _mm512_xor_si512(_mm512_loadu_si512(line.add(TILE).cast()), flip);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let group = x.add(row * block.x_stride + quad * 4).cast::<i32>().read_unaligned();
                    let group = _mm512_set1_epi32(group);
                    sums[0] = _mm512_dpbusd_epi32(sums[0], w0, group);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], w1, group);
                }
            }
            tiles = tiles.add(2 * TILE);
            ahead = ahead.wrapping_add(block.ahead_stride);
            x = x.add(64);
        }
        for (row, sums) in sums.iter().enumerate() {
            _mm512_storeu_si512(block.sums.add(row * 32).cast(), sums[0]);
            _mm512_storeu_si512(block.sums.add(row * 32 + 16).cast(), sums[1]);
        }
    }
}

/// A group's sum starts at its correction (see [`Format::Int8Grouped`]) and takes eight `vpdpbusd`; only its low 16 bits
/// count. `vpdpwssd` multiplies those by the ratio, the high ones by zero, and adds to the total.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn int4<const ROWS: usize>(block: Block) {
    // SAFETY: as in `int8`; an activation row is followed by two corrections a step.
    unsafe {
        let (low, low_half) = (_mm512_set1_epi8(15), _mm512_set1_epi32(0xffff));
        let mut totals = [[_mm512_setzero_si512(); 2]; ROWS];
        let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        let mut corrections = block.x.add(block.steps * 64);
        for _ in 0..block.steps {
            for group in 0..2 {
                let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
                for (row, sums) in sums.iter_mut().enumerate() {
                    let correction = corrections.add(row * block.x_stride + group * 4).cast::<i32>().read_unaligned();
                    *sums = [_mm512_set1_epi32(correction); 2];
                }
                for line in group * 4..group * 4 + 4 {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64).cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64 + INT4_TILE).cast());
                    let packed = [0, INT4_TILE].map(|strip| _mm512_loadu_si512(tiles.add(line * 64 + strip).cast()));
                    for high in 0..2 {
                        let w = packed.map(|packed| match high {
                            0 => _mm512_and_si512(packed, low),
                            _ => _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low),
                        });
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let quad = x.add(row * block.x_stride + line * 8 + high * 4).cast::<i32>();
                            let quad = _mm512_set1_epi32(quad.read_unaligned());
                            sums[0] = _mm512_dpbusd_epi32(sums[0], w[0], quad);
                            sums[1] = _mm512_dpbusd_epi32(sums[1], w[1], quad);
                        }
                    }
                }
                let ratios = [0, 32].map(|strip| {
                    let ratios = tiles.add(2 * INT4_TILE + strip + group * 16);
                    _mm512_and_si512(_mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.cast())), low_half)
                });
                for (totals, sums) in totals.iter_mut().zip(sums) {
                    totals[0] = _mm512_dpwssd_epi32(totals[0], sums[0], ratios[0]);
                    totals[1] = _mm512_dpwssd_epi32(totals[1], sums[1], ratios[1]);
                }
            }
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(2 * INT4_TILE).cast());
            tiles = tiles.add(WeightClass::Int4.step_bytes());
            ahead = ahead.wrapping_add(block.ahead_stride);
            x = x.add(64);
            corrections = corrections.add(8);
        }
        for (row, totals) in totals.iter().enumerate() {
            _mm512_storeu_si512(block.sums.add(row * 32).cast(), totals[0]);
            _mm512_storeu_si512(block.sums.add(row * 32 + 16).cast(), totals[1]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn bf16<const ROWS: usize>(block: Block) {
    // SAFETY: as in `int8`; an activation row is f32 here.
    unsafe {
        let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let (mut tiles, mut x, mut ahead) = (block.tiles, block.x, block.ahead);
        let totals = block.sums.cast::<f32>();
        for row in 0..ROWS {
            _mm512_storeu_ps(totals.add(row * 32), _mm512_setzero_ps());
            _mm512_storeu_ps(totals.add(row * 32 + 16), _mm512_setzero_ps());
        }
        for _ in 0..block.steps {
            let mut even = [[_mm512_setzero_ps(); 2]; ROWS];
            let mut odd = [[_mm512_setzero_ps(); 2]; ROWS];
            for pair in 0..16 {
                let line = tiles.add(pair * 64);
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(pair * 64).cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(pair * 64 + TILE).cast());
                let w = [_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(TILE).cast())];
                let w_even = w.map(|w| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)));
                let w_odd = w.map(|w| _mm512_castsi512_ps(_mm512_and_si512(w, high)));
                for row in 0..ROWS {
                    let pair = x.add(row * block.x_stride + pair * 8).cast::<f32>();
                    let (x_even, x_odd) = (_mm512_set1_ps(*pair), _mm512_set1_ps(*pair.add(1)));
                    for strip in 0..2 {
                        even[row][strip] = _mm512_fmadd_ps(x_even, w_even[strip], even[row][strip]);
                        odd[row][strip] = _mm512_fmadd_ps(x_odd, w_odd[strip], odd[row][strip]);
                    }
                }
            }
            for row in 0..ROWS {
                for strip in 0..2 {
                    let total = totals.add(row * 32 + strip * 16);
                    let step = _mm512_add_ps(even[row][strip], odd[row][strip]);
                    _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), step));
                }
            }
            tiles = tiles.add(2 * TILE);
            ahead = ahead.wrapping_add(block.ahead_stride);
            x = x.add(128);
        }
    }
}

/// One row, which is bound by memory alone: asks for the tiles strictly in order and not too early.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn bf16_row(block: Block) {
    // SAFETY: as in `int8`; the activation row is f32 here.
    unsafe {
        let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let (mut tile, mut x) = (block.tiles, block.x);
        let mut totals = [_mm512_setzero_ps(); 2];
        for _ in 0..block.steps {
            for total in &mut totals {
                let mut even = _mm512_setzero_ps();
                let mut odd = _mm512_setzero_ps();
                for pair in 0..16 {
                    _mm_prefetch::<_MM_HINT_T0>(tile.wrapping_add(pair * 64 + ROW_PREFETCH).cast());
                    let w = _mm512_loadu_si512(tile.add(pair * 64).cast());
                    let x = x.add(pair * 8).cast::<f32>();
                    even = _mm512_fmadd_ps(_mm512_set1_ps(*x), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)), even);
                    odd =
                        _mm512_fmadd_ps(_mm512_set1_ps(*x.add(1)), _mm512_castsi512_ps(_mm512_and_si512(w, high)), odd);
                }
                *total = _mm512_add_ps(*total, _mm512_add_ps(even, odd));
                tile = tile.add(TILE);
            }
            x = x.add(128);
        }
        _mm512_storeu_ps(block.sums.cast(), totals[0]);
        _mm512_storeu_ps(block.sums.add(16).cast(), totals[1]);
    }
}
