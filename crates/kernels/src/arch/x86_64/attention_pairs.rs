//! The two products of an attention tile with `vdpbf16ps`: a pair of the definition's `dot` per instruction.
//!
//! Two columns of 16 are computed together, so that a broadcast pair of weights is used twice: the limit is two loads
//! per cycle.

use super::proofs::Avx512Bf16;
use crate::attention::tile::{NarrowProduct, STRIDE};
use crate::kv_cache::LINE;
use crate::simd::{LANES, with_rows};
use std::arch::x86_64::*;

/// Rows for which the sums of two columns fit the registers.
const ROWS: usize = 8;

/// The unit, with the proof of its instructions.
pub(crate) struct Pairs {
    _proof: Avx512Bf16,
}

impl Pairs {
    pub(crate) fn new(proof: Avx512Bf16) -> Pairs {
        Pairs { _proof: proof }
    }

    /// For `rows` rows and `columns` columns of 16; `to`: f32 `[rows, 16 * columns]`, rows STRIDE apart.
    ///
    /// # Safety
    /// The product's pointers and `to` are as said.
    pub(crate) unsafe fn product(&self, product: &NarrowProduct, rows: usize, columns: usize, to: *mut f32) {
        for first in (0..rows).step_by(ROWS) {
            // SAFETY: a `Pairs` holds the proof of the instructions; a pack begins at `first` and ends at `rows` at
            // most.
            with_rows!(R = (rows - first).min(ROWS) => unsafe { pack::<R>(product, first, columns, to) });
        }
    }
}

/// For `R` rows from `first`.
///
/// # Safety
/// As for [`Pairs::product`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pack<const R: usize>(product: &NarrowProduct, first: usize, columns: usize, to: *mut f32) {
    for column in (0..columns).step_by(2) {
        // SAFETY: passed on: the columns exist.
        unsafe {
            if columns - column >= 2 {
                strips::<R, 2>(product, first, column, to);
            } else {
                strips::<R, 1>(product, first, column, to);
            }
        }
    }
}

/// For `C` columns from `column`.
///
/// # Safety
/// As for [`Pairs::product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn strips<const R: usize, const C: usize>(product: &NarrowProduct, first: usize, column: usize, to: *mut f32) {
    // SAFETY: both types are 64 bytes in which every bit pattern is valid.
    let bf16 = |bits: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
    let pairs = product.depth / 2;
    // SAFETY: the caller keeps every address inside its buffer; prefetching is harmless anywhere.
    unsafe {
        let weights = product.weights.add(first * STRIDE);
        let (lines, ahead) =
            (product.lines.add(column * pairs * LINE), product.ahead.wrapping_add(column * pairs * LINE));
        let to: [[*mut f32; C]; R] =
            std::array::from_fn(|r| std::array::from_fn(|c| to.add((first + r) * STRIDE + (column + c) * LANES)));
        let mut totals: [[__m512; C]; R] = std::array::from_fn(|r| {
            std::array::from_fn(|c| match product.scale {
                Some(_) => _mm512_setzero_ps(),
                None => _mm512_loadu_ps(to[r][c]),
            })
        });
        for pair in 0..pairs {
            let line: [__m512bh; C] = std::array::from_fn(|c| {
                let at = (c * pairs + pair) * LINE;
                if first == 0 {
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(at).cast());
                }
                bf16(_mm512_loadu_si512(lines.add(at).cast()))
            });
            for (r, totals) in totals.iter_mut().enumerate() {
                let weight = weights.add(r * STRIDE + 2 * pair).cast::<i32>().read_unaligned();
                let weight = bf16(_mm512_set1_epi32(weight));
                for (total, line) in totals.iter_mut().zip(line) {
                    *total = _mm512_dpbf16_ps(*total, line, weight);
                }
            }
        }
        for (to, totals) in to.iter().zip(totals) {
            for (&to, total) in to.iter().zip(totals) {
                let scaled = product.scale.map(|scale| _mm512_mul_ps(total, _mm512_set1_ps(scale)));
                _mm512_storeu_ps(to, scaled.unwrap_or(total));
            }
        }
    }
}
