//! A tile of rows against one split, on a matrix unit: it multiplies, vectors do the rest. That of an int8 cache is in
//! [`int8`](super::int8); of bf16 it is two passes over scores.
//!
//! ```text
//! multiply   dots [rows, 32] = q k^T of a page, while the page before is passed over
//! maximum    of the scores, `dot * scale`, which are not stored (capped ones are: a cap costs more than a store)
//! weights    bf16 e^(score - maximum), their sum
//! multiply   p v of all pages
//! ```

use super::SPLIT;
use super::int8::PER_PAGE;
use super::tile::{Page, Pages, ROWS, STRIDE, Scratch, Work, hide, inside, touched};
use crate::arch::native::AttentionTiles;
use crate::kv_cache::{LINE, MAX_HEAD_DIM, VALUE_PAGE};
use crate::simd::{LANES, Simd, softcap_lanes, softmax_weights};
use std::ops::Range;

/// Row stride of queries in elements: an odd number of cache lines, as [`WEIGHT_STRIDE`].
pub(crate) const QUERY_STRIDE: usize = MAX_HEAD_DIM + 32;
/// Row stride of weights in elements.
pub(crate) const WEIGHT_STRIDE: usize = SPLIT + 32;
const _: () = assert!(QUERY_STRIDE * 2 % (2 * LINE) == LINE && WEIGHT_STRIDE * 2 % (2 * LINE) == LINE);

/// Operands of a tile's products as bf16.
#[repr(C, align(64))]
pub(super) struct Operands {
    queries: [[u16; QUERY_STRIDE]; ROWS],
    weights: [[u16; WEIGHT_STRIDE]; ROWS],
}

impl Operands {
    pub(super) const fn zeroed() -> Operands {
        Operands { queries: [[0; QUERY_STRIDE]; ROWS], weights: [[0; WEIGHT_STRIDE]; ROWS] }
    }
}

impl<S: Simd> Work<'_, S> {
    /// [`Work::load_queries`] for a matrix unit.
    #[inline(always)]
    pub(super) fn matrix_queries(&self, scratch: &mut Scratch) {
        for row in 0..self.rows() {
            let to = scratch.operands.queries[row].as_chunks_mut::<LANES>().0;
            for (from, to) in self.query(row).as_chunks::<LANES>().0.iter().zip(to) {
                // SAFETY: both are 16 numbers.
                unsafe { self.simd.store_bf16(self.simd.round_bf16(self.simd.load(from.as_ptr())), to.as_mut_ptr()) };
            }
        }
    }

    /// [`Work::split`] for a matrix unit.
    #[inline(always)]
    pub(super) fn matrix_split(
        &self,
        tiles: &AttentionTiles,
        scratch: &mut Scratch,
        start: usize,
        pages: &Range<usize>,
        at: &mut Pages,
    ) {
        let rows = self.rows();
        let seen: [_; ROWS] = std::array::from_fn(|row| if row < rows { inside(&self.seen(row), start) } else { 0..0 });
        let mut max = [self.simd.splat(f32::NEG_INFINITY); ROWS];
        self.dots(tiles, scratch, at, pages.start);
        for page in pages.clone() {
            if page + 1 < pages.end {
                self.dots(tiles, scratch, at, page + 1);
            }
            for (row, max) in max[..rows].iter_mut().enumerate() {
                *max = self.max_of_page(&mut scratch.scores[row], &seen[row], page, *max);
            }
        }
        for (to, max) in scratch.split.max.iter_mut().zip(&max[..rows]) {
            *to = self.simd.max_lane(*max);
        }
        for (row, seen) in seen[..rows].iter().enumerate() {
            let (scores, weights) = (&scratch.scores[row], &mut scratch.operands.weights[row]);
            scratch.split.sum[row] = self.weights(scores, weights, seen, pages, scratch.split.max[row]);
        }
        self.values_of_keys::<2>(scratch, pages, at);
        let weights = scratch.operands.weights.as_ptr().cast::<u16>().wrapping_add(pages.start * VALUE_PAGE);
        let (to, width) = (scratch.split.values.as_mut_ptr().cast(), self.call.args.layout.value_dim());
        // SAFETY: rows are as far apart as said, and hold weights of these pages; there is a page, and the unit is used
        // for values of whole steps.
        unsafe { tiles.values(weights, &at[pages.clone()], width, to) };
    }

    /// `q k^T` of a page, in place of its scores.
    #[inline(always)]
    fn dots(&self, tiles: &AttentionTiles, scratch: &mut Scratch, at: &[Page], page: usize) {
        let queries = scratch.operands.queries.as_ptr().cast();
        let to = scratch.scores.as_mut_ptr().cast::<f32>().wrapping_add(page * VALUE_PAGE);
        // SAFETY: a page of keys is two groups of `head_dim / 2` lines; rows are as far apart as said, and hold
        // `head_dim` queries and this page's 32 scores; the unit is used for heads of whole steps.
        unsafe { tiles.scores(queries, at[page].keys, self.call.args.layout.head_dim / 32, to) };
    }

    /// The maximum of `max` and the scores of a page that are within `seen`. Capped scores replace their dots.
    #[inline(always)]
    fn max_of_page(&self, dots: &mut [f32; STRIDE], seen: &Range<usize>, page: usize, max: S::V) -> S::V {
        let (s, touched, mut max) = (self.simd, touched(seen), max);
        let chunks = dots.as_chunks_mut::<LANES>().0;
        let of_page = touched.start.max(page * PER_PAGE)..touched.end.min((page + 1) * PER_PAGE);
        for c in of_page {
            // SAFETY: a chunk is 16 numbers.
            let dots = unsafe { s.load(chunks[c].as_ptr()) };
            let mut score = s.mul(dots, s.splat(self.call.args.rule.scale));
            if let Some(cap) = self.call.args.rule.softcap {
                score = softcap_lanes(s, score, cap);
                // SAFETY: as above.
                unsafe { s.store(score, chunks[c].as_mut_ptr()) };
            }
            max = s.max(max, hide(s, seen, c, score, f32::NEG_INFINITY));
        }
        max
    }

    /// Weights of a row's pages, zero outside of `seen`, from what [`Work::max_of_page`] left; returns their sum.
    #[inline(always)]
    fn weights(
        &self,
        scores: &[f32; STRIDE],
        weights: &mut [u16; WEIGHT_STRIDE],
        seen: &Range<usize>,
        pages: &Range<usize>,
        max: f32,
    ) -> f32 {
        let (s, rule) = (self.simd, self.call.args.rule);
        let (scores, weights) = (scores.as_chunks::<LANES>().0, weights.as_chunks_mut::<LANES>().0);
        let (all, touched) = (pages.start * PER_PAGE..pages.end * PER_PAGE, touched(seen));
        let (shift, mut sum) = (s.splat(max), s.splat(0.0));
        for c in touched.clone() {
            // SAFETY: a chunk is 16 numbers.
            let mut score = unsafe { s.load(scores[c].as_ptr()) };
            if rule.softcap.is_none() {
                score = s.mul(score, s.splat(rule.scale));
            }
            let weight = hide(s, seen, c, softmax_weights(s, s.sub(score, shift)), 0.0);
            sum = s.add(sum, weight);
            // SAFETY: as above.
            unsafe { s.store_bf16(weight, weights[c].as_mut_ptr()) };
        }
        for c in (all.start..touched.start).chain(touched.end.max(all.start)..all.end) {
            weights[c] = [0; LANES];
        }
        s.sum(sum)
    }

    /// Sums over a page of int8 keys, as i32 in place of the scores.
    #[inline(always)]
    pub(super) fn int8_dots(&self, tiles: &AttentionTiles, scratch: &mut Scratch, page: usize, at: Page) {
        let queries = scratch.ints.queries.as_ptr().cast();
        let to = scratch.scores.as_mut_ptr().cast::<i32>().wrapping_add(page * VALUE_PAGE);
        // SAFETY: a page of keys is two groups of `head_dim / 4` lines; rows are as far apart as said, and there is
        // memory for those of whole row tiles.
        unsafe { tiles.int8_scores(queries, at.keys, self.call.args.layout.head_dim, to) };
    }

    /// `n v` of all pages of int8 values, as i32. The scores, which have become digits, are overwritten.
    #[inline(always)]
    pub(super) fn int8_sums(&self, tiles: &AttentionTiles, scratch: &mut Scratch, pages: &Range<usize>, at: &[Page]) {
        let (s, width) = (self.simd, self.call.args.layout.value_dim());
        let digits = scratch.ints.digits.as_ptr().cast::<u8>().wrapping_add(pages.start * VALUE_PAGE);
        let sums = [scratch.scores.as_mut_ptr().cast(), scratch.split.values.as_mut_ptr().cast()];
        // SAFETY: as above; values are a multiple of 16 wide, and there is a page.
        unsafe { tiles.int8_values(digits, &at[pages.clone()], width, sums) };
        for (high, low) in scratch.scores.iter().zip(&mut scratch.split.values).take(self.rows()) {
            let low = low[..width].as_chunks_mut::<LANES>().0;
            for (high, low) in high.as_chunks::<LANES>().0.iter().zip(low) {
                let (high, low) = (high.as_ptr().cast(), low.as_mut_ptr().cast());
                // SAFETY: a chunk is 16 numbers, and these are integers.
                unsafe { s.store_ints(s.join_digits(s.load_ints(high), s.load_ints(low)), low) };
            }
        }
    }
}
