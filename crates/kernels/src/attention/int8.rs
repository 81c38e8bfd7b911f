//! A tile of rows against one split of an int8 cache, with vectors, or the products on a matrix unit: these are exact
//! sums of integers.
//!
//! ```text
//! scores   i32 [rows, 16 tokens] += q [rows, 4 d]       x K [4 d of 16 tokens]      times the scales of row and token
//! weights  p = e^(s - max) times the scale of the token's value, as integers of 14 bits: two digits of 7
//! values   i32 [rows, 16 d]      += n [rows, 4 tokens]  x V [4 tokens of 16 d]      once for each digit
//! ```
//! Queries are rotated like the cached keys (`spread`), and the weighted sum of values is rotated back after the fold.
//! No sum can overflow 32 bits: 256 terms of `127 * 127`, and `(128 + 1)` times that for both digits together.

use super::tile::{Page, Pages, ROWS, Scratch, Work, hide, inside, touched};
use super::{SPLIT, Unit};
use crate::kv_cache::{KEY_GROUP, LINE, MAX_HEAD_DIM, VALUE_PAGE};
use crate::quant::quantize_row;
use crate::simd::{LANES, MAX_WEIGHT, Simd, softcap_lanes, unrounded_weights, with_rows};
use crate::spread::spread_lanes;
use std::ops::Range;

/// Lines per 16 columns of a page of values.
const VALUE_LINES: usize = VALUE_PAGE / 4;

/// Chunks of 16 positions in a page.
pub(super) const PER_PAGE: usize = VALUE_PAGE / LANES;

/// Row stride of queries and digits: an odd number of cache lines.
pub(crate) const INT_STRIDE: usize = MAX_HEAD_DIM;
const _: () = assert!(SPLIT <= INT_STRIDE && INT_STRIDE % (2 * LINE) == LINE);

/// Scratch of a tile for int8.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Ints {
    pub(super) queries: [[i8; INT_STRIDE]; ROWS],
    /// The weights' high and low 7 bits.
    pub(super) digits: [[[u8; INT_STRIDE]; ROWS]; 2],
    /// Per row: the query's scale times the rule's.
    scales: [f32; ROWS],
    /// Per row: the sum of the query.
    sums: [i32; ROWS],
    /// Per row: the sum of the integer weights of a split.
    weight_sums: [i32; ROWS],
    /// Per row: the largest weight, of which integer weights are a part of [`MAX_WEIGHT`].
    most: [f32; ROWS],
}

impl<S: Simd> Work<'_, S> {
    #[inline(always)]
    pub(super) fn quantize_queries(&self, scratch: &mut Scratch) {
        let ints = &mut scratch.ints;
        let mut spread_query = [0.0; MAX_HEAD_DIM];
        let spread_query = &mut spread_query[..self.call.args.layout.head_dim];
        for row in 0..self.rows() {
            spread_query.copy_from_slice(self.query(row));
            spread_lanes(self.simd, spread_query, self.call.kv.shape().run());
            let (scale, sum) = quantize_row(spread_query, &mut ints.queries[row][..spread_query.len()]);
            (ints.scales[row], ints.sums[row]) = (scale * self.call.args.rule.scale, sum);
        }
    }

    /// [`Work::split`] for an int8 cache.
    #[inline(always)]
    pub(super) fn int8_split(&self, scratch: &mut Scratch, start: usize, pages: &Range<usize>, at: &mut Pages) {
        for page in pages.clone() {
            match self.unit {
                Unit::Tiles(tiles) => self.int8_dots(tiles, scratch, page, at[page]),
                _ => self.int8_scores(scratch, page, at[page], self.after_keys(at, pages, page)),
            }
        }
        // A pass over all rows at a time: rows do not wait for each other, as passes over one row do.
        let seen = |row: usize| inside(&self.seen(row), start);
        for row in 0..self.rows() {
            self.int8_scale(scratch, row, seen(row), at);
        }
        for row in 0..self.rows() {
            self.int8_weights(scratch, row, seen(row), at);
        }
        for row in 0..self.rows() {
            self.int8_digits(scratch, row, seen(row), pages);
        }
        self.values_of_keys::<4>(pages, at);
        match self.unit {
            Unit::Tiles(tiles) => self.int8_sums(tiles, scratch, pages, at),
            _ => self.int8_values(scratch, pages, at),
        }
        let (s, width) = (self.simd, self.call.args.layout.value_dim());
        for row in 0..self.rows() {
            let scale = s.splat(scratch.ints.most[row] * (1.0 / MAX_WEIGHT));
            for values in scratch.split.values[row][..width].as_chunks_mut::<LANES>().0 {
                // SAFETY: a chunk is 16 numbers, and they are integers until here.
                unsafe {
                    let sums = s.load_ints(values.as_ptr().cast());
                    s.store(s.mul(s.to_f32(sums), scale), values.as_mut_ptr());
                }
            }
        }
    }

    /// Sums over a page of keys, as i32 in place of the scores. Prefetches the lines at `ahead`, and the page's scales,
    /// which are read after the keys.
    #[inline(always)]
    fn int8_scores(&self, scratch: &mut Scratch, page: usize, at: Page, ahead: *const u8) {
        for scales in [at.key_scales, at.value_scales] {
            (0..VALUE_PAGE / LANES).for_each(|i| self.simd.prefetch(scales.wrapping_add(i * LANES).cast()));
        }
        for first in (0..self.rows()).step_by(S::ROWS) {
            // SAFETY: rows are the tile's, `at` is a page.
            with_rows!(R = (self.rows() - first).min(S::ROWS) => unsafe {
                self.int8_keys::<R>(scratch, first, page, at, ahead);
            });
        }
    }

    /// # Safety
    /// The tile has `R` rows from `first`, and `at` is a page of the cache.
    #[inline(always)]
    unsafe fn int8_keys<const R: usize>(
        &self,
        scratch: &mut Scratch,
        first: usize,
        page: usize,
        at: Page,
        ahead: *const u8,
    ) {
        let (s, lines) = (self.simd, self.call.args.layout.head_dim / 4);
        for group in 0..VALUE_PAGE / KEY_GROUP {
            let mut sums = [s.zeros(); R];
            for (sums, &sum) in sums.iter_mut().zip(&scratch.ints.sums[first..]) {
                *sums = s.keys_start(sum);
            }
            for line in 0..lines {
                let inside = (group * lines + line) * LINE;
                if first == 0 {
                    s.prefetch(ahead.wrapping_add(inside));
                }
                // SAFETY: a page of keys has two groups of this number of lines.
                let keys = unsafe { s.load_keys(at.keys.add(inside)) };
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = &scratch.ints.queries[first + r].as_chunks::<4>().0[line];
                    *sums = s.dot_keys(*sums, u32::from_ne_bytes(query.map(|q| q as u8)), keys);
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let to = scratch.scores[first + r][page * VALUE_PAGE + group * KEY_GROUP..][..LANES].as_mut_ptr();
                // SAFETY: `to` are 16 numbers.
                unsafe { s.store_ints(sums, to.cast()) };
            }
        }
    }

    /// Turns the sums of a row into scores, and stores their maximum.
    #[inline(always)]
    fn int8_scale(&self, scratch: &mut Scratch, row: usize, seen: Range<usize>, at: &[Page]) {
        let s = self.simd;
        let Scratch { scores, split, ints, .. } = scratch;
        let (scores, row_scale) = (scores[row].as_chunks_mut::<LANES>().0, s.splat(ints.scales[row]));
        let mut max = s.splat(f32::NEG_INFINITY);
        for c in touched(&seen) {
            // SAFETY: (here and below) a chunk is 16 numbers, and so is half of the scales of a page.
            let (sums, scales) = unsafe {
                let scales = at[c / PER_PAGE].key_scales.add(c % PER_PAGE * LANES);
                (s.load_ints(scores[c].as_ptr().cast()), s.load(scales))
            };
            let mut score = s.mul(s.mul(s.to_f32(sums), row_scale), scales);
            if let Some(cap) = self.call.args.rule.softcap {
                score = softcap_lanes(s, score, cap);
            }
            max = s.max(max, hide(s, &seen, c, score, f32::NEG_INFINITY));
            // SAFETY: as above.
            unsafe { s.store(score, scores[c].as_mut_ptr()) };
        }
        split.max[row] = s.max_lane(max);
    }

    /// Turns the scores of a row into weights times the scales of values, and stores the sum of the weights and the
    /// largest product.
    #[inline(always)]
    fn int8_weights(&self, scratch: &mut Scratch, row: usize, seen: Range<usize>, at: &[Page]) {
        let s = self.simd;
        let Scratch { scores, split, ints, .. } = scratch;
        let scores = scores[row].as_chunks_mut::<LANES>().0;
        let (max, mut sum, mut most) = (s.splat(split.max[row]), s.splat(0.0), s.splat(0.0));
        for c in touched(&seen) {
            // SAFETY: as in `int8_scale`.
            let (score, scales) = unsafe {
                let scales = at[c / PER_PAGE].value_scales.add(c % PER_PAGE * LANES);
                (s.load(scores[c].as_ptr()), s.load(scales))
            };
            let weights = hide(s, &seen, c, unrounded_weights(s, s.sub(score, max)), 0.0);
            sum = s.add(sum, weights);
            let weights = s.mul(weights, scales);
            most = s.max(most, weights);
            // SAFETY: as above.
            unsafe { s.store(weights, scores[c].as_mut_ptr()) };
        }
        (split.sum[row], ints.most[row]) = (s.sum(sum), s.max_lane(most));
    }

    /// Turns the weights of a row into digits, zero outside of `seen`, and stores their sum and scale.
    #[inline(always)]
    fn int8_digits(&self, scratch: &mut Scratch, row: usize, seen: Range<usize>, pages: &Range<usize>) {
        let s = self.simd;
        let Scratch { scores, ints, .. } = scratch;
        let (scores, most) = (scores[row].as_chunks::<LANES>().0, ints.most[row]);
        let factor = s.splat(if most > 0.0 { MAX_WEIGHT / most } else { 0.0 });
        let [high, low] = &mut ints.digits;
        let (high, low) = (high[row].as_chunks_mut::<LANES>().0, low[row].as_chunks_mut::<LANES>().0);
        let (touched, mut weight_sums) = (touched(&seen), s.zeros());
        for c in touched.clone() {
            // SAFETY: as in `int8_scale`.
            unsafe {
                let weights = s.mul(s.load(scores[c].as_ptr()), factor);
                let integers = s.store_digits(weights, high[c].as_mut_ptr(), low[c].as_mut_ptr());
                weight_sums = s.add_ints(weight_sums, integers);
            }
        }
        for c in (pages.start * PER_PAGE..touched.start).chain(touched.end..pages.end * PER_PAGE) {
            (high[c], low[c]) = ([0; LANES], [0; LANES]);
        }
        ints.weight_sums[row] = s.sum_ints(weight_sums);
    }

    /// `n v` of a split, as i32 in place of the values. A tile of one pack of rows reads the pages in memory order, as
    /// decode needs them from there; one of more packs keeps the sums of 16 columns in registers over all pages.
    #[inline(always)]
    fn int8_values(&self, scratch: &mut Scratch, pages: &Range<usize>, at: &Pages) {
        let width = self.call.args.layout.value_dim();
        for row in 0..self.rows() {
            let start = self.simd.values_start(scratch.ints.weight_sums[row]);
            for to in scratch.split.values[row][..width].as_chunks_mut::<LANES>().0 {
                // SAFETY: a chunk is 16 numbers, as wide as integers.
                unsafe { self.simd.store_ints(start, to.as_mut_ptr().cast()) };
            }
        }
        let run = if self.rows() > S::ROWS { pages.len() } else { 1 };
        for start in pages.clone().step_by(run) {
            for first in (0..self.rows()).step_by(S::ROWS) {
                // SAFETY: rows are the tile's, pages are the split's.
                with_rows!(R = (self.rows() - first).min(S::ROWS) => unsafe {
                    self.int8_weigh::<R>(scratch, first, start..start + run, (pages, at));
                });
            }
        }
    }

    /// Adds `n v` of the pages of `run`, and prefetches what is read after each.
    ///
    /// # Safety
    /// The tile has `R` rows from `first`, and `at` are the pages of the split, `run` of them.
    #[inline(always)]
    unsafe fn int8_weigh<const R: usize>(
        &self,
        scratch: &mut Scratch,
        first: usize,
        run: Range<usize>,
        (pages, at): (&Range<usize>, &Pages),
    ) {
        let s = self.simd;
        let Scratch { ints, split, .. } = scratch;
        let [high_digits, low_digits] = &ints.digits;
        for column in 0..self.call.args.layout.value_dim() / LANES {
            let (mut high, mut low) = ([s.zeros(); R], [s.zeros(); R]);
            for page in run.clone() {
                let (from, ahead) = (at[page].values, self.after_values(at, pages, page));
                for line in 0..VALUE_LINES {
                    let (quad, inside) = (page * VALUE_LINES + line, (column * VALUE_LINES + line) * LINE);
                    if first == 0 {
                        s.prefetch(ahead.wrapping_add(inside));
                    }
                    // SAFETY: a page of values has 8 lines for each 16 numbers of the head.
                    let values = unsafe { s.load_values(from.add(inside)) };
                    for r in 0..R {
                        let digits = |digits: &[[u8; INT_STRIDE]; ROWS]| {
                            u32::from_ne_bytes(digits[first + r].as_chunks::<4>().0[quad])
                        };
                        high[r] = s.dot_values(high[r], digits(high_digits), values);
                        low[r] = s.dot_values(low[r], digits(low_digits), values);
                    }
                }
            }
            for r in 0..R {
                let to: *mut i32 = split.values[first + r][column * LANES..][..LANES].as_mut_ptr().cast();
                // SAFETY: `to` are 16 numbers, as wide as integers.
                unsafe { s.store_ints(s.add_ints(s.load_ints(to), s.join_digits(high[r], low[r])), to) };
            }
        }
    }
}

const _: () = assert!(SPLIT as i64 * 127 * 127 * 129 <= i32::MAX as i64);
