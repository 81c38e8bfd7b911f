//! A tile of rows against one split, on a matrix unit: it multiplies, vectors do the rest. That of an int8 cache is in
//! [`int8`](super::int8); of bf16 it is two passes over scores.
//!
//! ```text
//! multiply   dots [rows, 32] = q k^T of a page, while the page before is passed over
//! maximum    of the scores, `dot * scale`, which are not stored (capped ones are: a cap costs more than a store)
//! weights    bf16 e^(score - maximum), their sum
//! multiply   p v of all pages
//! ```

use super::int8::PER_PAGE;
use super::tile::{Page, Pages, ROWS, STRIDE, Scratch, Work, hide, inside, touched};
use crate::arch::native::AttentionTiles;
use crate::kv_cache::{LINE, MAX_HEAD_DIM, VALUE_PAGE};
use crate::simd::{LANES, Simd, softcap_lanes, softmax_weights};
use std::ops::Range;

/// Row stride of queries in elements: an odd number of cache lines, as [`WEIGHT_STRIDE`].
pub(crate) const QUERY_STRIDE: usize = MAX_HEAD_DIM + 32;
/// Row stride of weights in elements: they replace scores.
pub(crate) const WEIGHT_STRIDE: usize = 2 * STRIDE;
const _: () = assert!(QUERY_STRIDE * 2 % (2 * LINE) == LINE && WEIGHT_STRIDE * 2 % (2 * LINE) == LINE);

/// Chunks of scores whose exponentials are computed at once, which hides the latency of one behind the others.
const AT_ONCE: usize = 4;

/// Queries of a tile as bf16.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Queries([[u16; QUERY_STRIDE]; ROWS]);

impl<S: Simd> Work<'_, S> {
    /// [`Work::load_queries`] for a matrix unit.
    #[inline(always)]
    pub(super) fn matrix_queries(&self, scratch: &mut Scratch) {
        for row in 0..self.rows() {
            let to = scratch.narrow_queries.0[row].as_chunks_mut::<LANES>().0;
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
        let mut seen = [const { 0..0 }; ROWS];
        for (row, seen) in seen[..rows].iter_mut().enumerate() {
            *seen = inside(&self.seen(row), start);
        }
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
            *to = self.score_of(self.simd.max_lane(*max));
        }
        for (row, seen) in seen[..rows].iter().enumerate() {
            scratch.split.sum[row] = self.weights(&mut scratch.scores[row], seen, pages, scratch.split.max[row]);
        }
        self.values_of_keys::<2>(pages, at);
        let weights = scratch.scores.as_ptr().cast::<u16>().wrapping_add(pages.start * VALUE_PAGE);
        let (to, width) = (scratch.split.values.as_mut_ptr().cast(), self.call.args.layout.value_dim());
        // SAFETY: rows are as far apart as said, and hold weights of these pages; there is a page, and the unit is used
        // for values of whole steps.
        unsafe { tiles.values(weights, &at[pages.clone()], width, to) };
    }

    /// `q k^T` of a page, in place of its scores.
    #[inline(always)]
    fn dots(&self, tiles: &AttentionTiles, scratch: &mut Scratch, at: &[Page], page: usize) {
        let queries = scratch.narrow_queries.0.as_ptr().cast();
        let to = scratch.scores.as_mut_ptr().cast::<f32>().wrapping_add(page * VALUE_PAGE);
        // SAFETY: a page of keys is two groups of `head_dim / 2` lines; rows are as far apart as said, and hold
        // `head_dim` queries and this page's 32 scores; the unit is used for heads of whole steps.
        unsafe { tiles.scores(queries, at[page].keys, self.call.args.layout.head_dim / 32, to) };
    }

    /// The score that the maximum of a row, by [`Work::max_of_page`], stands for. (A scale is positive, so the order of
    /// dots is that of their scores.)
    #[inline(always)]
    fn score_of(&self, max: f32) -> f32 {
        let rule = self.call.args.rule;
        if rule.softcap.is_none() { max * rule.scale } else { max }
    }

    /// The maximum of `max` and the dots of a page that are within `seen`; of capped scores, which replace their dots.
    #[inline(always)]
    fn max_of_page(&self, dots: &mut [f32; STRIDE], seen: &Range<usize>, page: usize, max: S::V) -> S::V {
        let (s, rule, mut max) = (self.simd, self.call.args.rule, max);
        let (chunks, of_page) = (dots.as_chunks_mut::<LANES>().0, page * PER_PAGE..(page + 1) * PER_PAGE);
        let all = seen.start <= page * VALUE_PAGE && seen.end >= (page + 1) * VALUE_PAGE;
        if all && rule.softcap.is_none() {
            for dots in &chunks[of_page] {
                // SAFETY: a chunk is 16 numbers.
                max = s.max(max, unsafe { s.load(dots.as_ptr()) });
            }
            return max;
        }
        let touched = touched(seen);
        let (first, end) = (touched.start.max(of_page.start), touched.end.min(of_page.end));
        for (c, chunk) in chunks.iter_mut().enumerate().take(end).skip(first) {
            // SAFETY: as above.
            let mut dots = unsafe { s.load(chunk.as_ptr()) };
            if let Some(cap) = rule.softcap {
                dots = softcap_lanes(s, s.mul(dots, s.splat(rule.scale)), cap);
                // SAFETY: as above.
                unsafe { s.store(dots, chunk.as_mut_ptr()) };
            }
            max = s.max(max, hide(s, seen, c, dots, f32::NEG_INFINITY));
        }
        max
    }

    /// Weights of a row's pages, zero outside of `seen`, and their sum. They replace what [`Work::max_of_page`] left, of
    /// which they take the first half: scores of 32 rows fill most of an L1.
    #[inline(always)]
    fn weights(&self, scores: &mut [f32; STRIDE], seen: &Range<usize>, pages: &Range<usize>, max: f32) -> f32 {
        let (all, touched) = (pages.start * PER_PAGE..pages.end * PER_PAGE, touched(seen));
        // Chunks of which the row sees all 16 positions.
        let whole = seen.start.div_ceil(LANES)..seen.end / LANES;
        let (shift, mut sum, mut c) = (self.simd.splat(max), self.simd.splat(0.0), touched.start);
        while c < touched.end {
            if whole.contains(&c) && c + AT_ONCE <= whole.end {
                sum = self.weigh::<AT_ONCE>(scores, c, None, shift, sum);
                c += AT_ONCE;
            } else {
                sum = self.weigh::<1>(scores, c, Some(seen), shift, sum);
                c += 1;
            }
        }
        for c in (all.start..touched.start).chain(touched.end.max(all.start)..all.end) {
            scores[c * LANES / 2..][..LANES / 2].fill(0.0);
        }
        self.simd.sum(sum)
    }

    /// Weights of `N` chunks from `c`, zero outside of `seen`, and `sum` with them.
    #[inline(always)]
    fn weigh<const N: usize>(
        &self,
        scores: &mut [f32; STRIDE],
        c: usize,
        seen: Option<&Range<usize>>,
        shift: S::V,
        mut sum: S::V,
    ) -> S::V {
        let (s, rule) = (self.simd, self.call.args.rule);
        let scores = &mut scores[..(c + N) * LANES];
        // SAFETY: a chunk is 16 numbers, and its weights begin at or before it.
        unsafe {
            let mut weights = [shift; N];
            for (i, weight) in weights.iter_mut().enumerate() {
                let mut score = s.load(scores.as_ptr().add((c + i) * LANES));
                if rule.softcap.is_none() {
                    score = s.mul(score, s.splat(rule.scale));
                }
                *weight = softmax_weights(s, s.sub(score, shift));
                if let Some(seen) = seen {
                    *weight = hide(s, seen, c + i, *weight, 0.0);
                }
            }
            for (i, weight) in weights.into_iter().enumerate() {
                s.store_bf16(weight, scores.as_mut_ptr().cast::<u16>().add((c + i) * LANES));
                sum = s.add(sum, weight);
            }
        }
        sum
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
