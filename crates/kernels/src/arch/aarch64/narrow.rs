//! Attention and low-rank products in the order of pairs with BFMLALT and BFMLALB.

use super::bf16::{Narrow, Strip, add_pairs};
use super::proofs::{Neon, NeonMm};
use crate::attention::tile::{NarrowProduct, STRIDE};
use crate::kv_cache::LINE;
use crate::low_rank::Span;
use crate::low_rank::product::{AHEAD, Block, Order, RowTarget};
use crate::simd::{LANES, with_rows};
use std::arch::aarch64::*;

/// Rows whose sums over 16 columns fit the registers, with their activations: tiles of 16 rows are whole packs.
const ROWS: usize = 4;
/// Up to this many rows two columns of 16 are computed together, for enough chains of dependent multiplies.
const TWO_COLUMNS_TO: usize = 2;

/// The two products of an attention tile.
pub(crate) struct AttentionPairs {
    _proof: NeonMm,
}

impl AttentionPairs {
    pub(crate) fn new(proof: NeonMm) -> AttentionPairs {
        AttentionPairs { _proof: proof }
    }

    /// For `rows` rows and `columns` columns of 16; `to`: f32 `[rows, 16 * columns]`, rows STRIDE apart.
    ///
    /// # Safety
    /// The product's pointers and `to` are as said.
    pub(crate) unsafe fn product(&self, product: &NarrowProduct, rows: usize, columns: usize, to: *mut f32) {
        for first in (0..rows).step_by(ROWS) {
            // SAFETY: `self` holds the proof of the instructions; a pack begins at `first` and ends at `rows` at most.
            with_rows!(R = (rows - first).min(ROWS) => unsafe { pack::<R>(product, first, columns, to) });
        }
    }
}

/// For `R` rows from `first`.
///
/// # Safety
/// As for [`AttentionPairs::product`].
#[target_feature(enable = "neon,bf16")]
unsafe fn pack<const R: usize>(product: &NarrowProduct, first: usize, columns: usize, to: *mut f32) {
    let mut column = 0;
    // SAFETY: passed on: the columns exist.
    unsafe {
        if R <= TWO_COLUMNS_TO {
            while columns - column >= 2 {
                strips::<R, 2>(product, first, column, to);
                column += 2;
            }
        }
        (column..columns).for_each(|column| strips::<R, 1>(product, first, column, to));
    }
}

/// For `C` columns from `column`.
///
/// # Safety
/// As for [`AttentionPairs::product`].
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn strips<const R: usize, const C: usize>(product: &NarrowProduct, first: usize, column: usize, to: *mut f32) {
    let pairs = product.depth / 2;
    // SAFETY: the caller keeps every address inside its buffer; prefetching is harmless anywhere.
    unsafe {
        let to = |r: usize, c: usize| to.add((first + r) * STRIDE + (column + c) * LANES);
        let mut totals: [[Strip; R]; C] = [[[vdupq_n_f32(0.0); 4]; R]; C];
        if product.scale.is_none() {
            for (c, rows) in totals.iter_mut().enumerate() {
                for (r, sums) in rows.iter_mut().enumerate() {
                    parts!(PART => sums[PART] = vld1q_f32(to(r, c).add(4 * PART)));
                }
            }
        }
        let lines = std::array::from_fn(|c| product.lines.add((column + c) * pairs * LINE));
        let ahead = std::array::from_fn(|c| product.ahead.wrapping_add((column + c) * pairs * LINE));
        let x = product.weights.add(first * STRIDE).cast();
        add_pairs::<Narrow, R, C>(&mut totals, lines, ahead, x, STRIDE * size_of::<u16>(), pairs);
        for (c, rows) in totals.into_iter().enumerate() {
            for (r, sums) in rows.into_iter().enumerate() {
                parts!(PART => {
                    let scaled = product.scale.map_or(sums[PART], |scale| vmulq_n_f32(sums[PART], scale));
                    vst1q_f32(to(r, c).add(4 * PART), scaled);
                });
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Dot {
    _proof: NeonMm,
}

/// A block of a low-rank product, from packed rows.
pub(crate) fn low_rank<T: RowTarget>(proof: NeonMm, block: &Block<'_, T>) {
    #[target_feature(enable = "neon,dotprod,bf16")]
    fn run<T: RowTarget>(proof: NeonMm, block: &Block<'_, T>) {
        block.run(proof.neon(), Dot { _proof: proof }, 1);
    }
    // SAFETY: `proof` says that the CPU has these features.
    unsafe { run(proof, block) }
}

impl Order<Neon> for Dot {
    const ROWS: usize = ROWS;
    const TWO_FROM: usize = usize::MAX;

    #[inline(always)]
    unsafe fn sums<const R: usize, const C: usize>(
        self,
        _: Neon,
        lines: [*const u32; C],
        span: Span,
        x: *const u32,
        x_stride: usize,
    ) -> [[Strip; R]; C] {
        // SAFETY: `self` proves that the CPU has the instructions; addresses are within the lines and the rows.
        unsafe {
            let mut sums: [[Strip; R]; C] = [[[vdupq_n_f32(0.0); 4]; R]; C];
            let ahead = lines.map(|line| line.wrapping_add(AHEAD).cast());
            let stride = x_stride * size_of::<u32>();
            add_pairs::<Narrow, R, C>(&mut sums, lines.map(|line| line.cast()), ahead, x.cast(), stride, span.pairs);
            sums
        }
    }
}
