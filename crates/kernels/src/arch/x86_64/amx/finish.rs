//! From a block's sums to results: [`epilogue::finish`](crate::gemm::epilogue) for up to 32 rows. After 28 cycles of
//! products (K = 896) a row and pair have few to spare: there is no decision in a loop over rows, and rows with lists
//! are joined in a loop of their own.

use super::plan::BLOCK_ROWS;
use crate::gemm::Sums;
use crate::gemm::epilogue::{Results, UNITS};
use crate::quant::{PAIR, WeightClass};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// What the sums of a block are.
const FLOATS: u8 = 0;
const JOINED: u8 = 1;
const INTEGERS: u8 = 2;

/// # Safety
/// `out` covers the rows, at most 32, and columns, and no other thread accesses them; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn finish(results: Results<'_>) {
    let mut joined = MaybeUninit::<Sums<BLOCK_ROWS>>::uninit();
    let sums = results.sums.as_ptr().cast();
    let only_low = results.heavy.is_null() && results.lists.is_empty();
    // SAFETY: the caller's promise.
    unsafe {
        match (results.class, results.add) {
            (WeightClass::Bf16, false) => write::<FLOATS, false>(&results, sums),
            (WeightClass::Bf16, true) => write::<FLOATS, true>(&results, sums),
            (_, false) if only_low => write::<INTEGERS, false>(&results, sums),
            (_, true) if only_low => write::<INTEGERS, true>(&results, sums),
            (_, add) => {
                join(&results, joined.as_mut_ptr().cast());
                let write = if add { write::<JOINED, true> } else { write::<JOINED, false> };
                write(&results, joined.as_ptr().cast());
            }
        }
    }
}

/// The digits of each row as one number.
///
/// # Safety
/// `to` has room for the rows; rows with lists have sums of them.
#[target_feature(enable = "avx512f")]
unsafe fn join(results: &Results<'_>, to: *mut f32) {
    assert!(results.sums.len() <= BLOCK_ROWS);
    for (row, sums) in results.sums.iter().enumerate() {
        let planes = results.lists.planes(row);
        for at in [0, 16] {
            // SAFETY: the caller's promise.
            unsafe {
                let load = |from: *const u32| _mm512_loadu_si512(from.add(at).cast());
                let mut joined = _mm512_cvtepi32_ps(load(sums.as_ptr()));
                for (plane, unit) in UNITS.into_iter().enumerate() {
                    let of_plane = results.high.add(row).cast::<u32>().add(plane * PAIR);
                    let mut digits = if plane < planes { load(of_plane) } else { _mm512_setzero_si512() };
                    if plane == 0 && !results.heavy.is_null() {
                        digits = _mm512_add_epi32(digits, load(results.heavy.add(row).cast()));
                    }
                    // Digits that sum to zero change nothing.
                    joined = _mm512_fmadd_ps(_mm512_set1_ps(unit), _mm512_cvtepi32_ps(digits), joined);
                }
                _mm512_storeu_ps(to.add(row * PAIR + at), joined);
            }
        }
    }
}

/// # Safety
/// As for [`finish`]; `sums` are those of the rows, as `SUMS` says.
#[target_feature(enable = "avx512f")]
unsafe fn write<const SUMS: u8, const ADD: bool>(results: &Results<'_>, sums: *const f32) {
    let masks = [0, 16].map(|at| ((1u32 << results.columns.saturating_sub(at).min(16)) - 1) as __mmask16);
    // SAFETY: a masked load or store touches only columns that are there; the caller promises the rest.
    unsafe {
        let load = |from: &[f32]| {
            [0, 1].map(|strip| _mm512_maskz_loadu_ps(masks[strip], from.as_ptr().wrapping_add(strip * 16)))
        };
        // Adding -0.0 changes no number; sums of bf16 are not scaled.
        let bias = results.bias.map_or([_mm512_set1_ps(-0.0); 2], load);
        let columns = if SUMS == FLOATS { bias } else { load(results.column_scales) };
        for row in 0..results.sums.len() {
            let scale = if SUMS == FLOATS { _mm512_setzero_ps() } else { _mm512_set1_ps(results.row_scales[row]) };
            for strip in 0..2 {
                let (from, out) = (sums.add(row * PAIR + strip * 16), results.out.wrapping_add(row * results.width));
                let out = out.wrapping_add(strip * 16);
                let mut y = match SUMS {
                    INTEGERS => _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())),
                    _ => _mm512_loadu_ps(from),
                };
                if SUMS != FLOATS {
                    y = _mm512_mul_ps(_mm512_mul_ps(y, scale), columns[strip]);
                }
                y = _mm512_add_ps(y, bias[strip]);
                if ADD {
                    y = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[strip], out), y);
                }
                if results.streams && masks[strip] == 0xffff {
                    _mm512_stream_ps(out, y);
                } else {
                    _mm512_mask_storeu_ps(out, masks[strip], y);
                }
            }
        }
    }
}
