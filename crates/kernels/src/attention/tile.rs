//! A tile of rows against one split, with vectors.
//!
//! Both products have the same shape: 16 columns in lanes, pairs of bf16 along the depth, one row of weights broadcast.
//!
//! ```text
//! scores   [rows, 16 tokens] += q [rows, 32 d]       x K [16 pairs of d][16 tokens][2]
//! values   [rows, 16 d]      += p [rows, 32 tokens]  x V [16 pairs of tokens][16 d][2]
//! ```
//! A cache line serves all rows of the tile: it is expanded to f32 once per pack of `Simd::ROWS` rows.

use super::int8::Ints;
use super::matrix::Queries;
use super::{Call, SPLIT, Unit};
use crate::AttentionSpan;
use crate::accumulation_order::AccumulationOrder;
use crate::kv_cache::{KEY_GROUP, KvDtype, LINE, MAX_HEAD_DIM, VALUE_PAGE};
use crate::mem::{Buffer, Pod};
use crate::simd::{LANES, Simd, exp_lanes, softcap_lanes, softmax_weights, with_rows};
use crate::spread::gather_lanes;
use std::cell::RefCell;
use std::ops::Range;

/// Maximum rows of a tile: two AMX tiles, which share every load of keys and values.
pub(crate) const ROWS: usize = 32;

/// Maximum rows of a tile for vectors: two packs of 8.
pub(super) const VECTOR_ROWS: usize = 16;

/// Row stride of scratch memory in elements: not a power of two, so that a column of rows spreads over the cache's sets.
pub(crate) const STRIDE: usize = MAX_HEAD_DIM + LANES;
const _: () = assert!(SPLIT <= MAX_HEAD_DIM);

/// Pages of values, and pairs of key groups, in a split.
const PAGES: usize = SPLIT / VALUE_PAGE;

/// Maximum prefetch distance in pages.
const MAX_AHEAD: usize = 4;

/// Addresses of the pages of a split, and of those that are prefetched behind them.
pub(super) type Pages = [Page; PAGES + MAX_AHEAD];

/// Elements of a row's partial result of one split, for values of this width.
pub(super) fn partial_len(width: usize) -> usize {
    width + LANES
}

/// Rows of one span that share a kv head.
pub(super) struct Tile {
    /// Index of the span.
    pub(super) span: usize,
    /// Index of the kv head.
    pub(super) kv_head: usize,
    /// Row `i` is head `i % group` of the kv head's group, of token `i / group` of the span.
    pub(super) rows: Range<usize>,
    /// Positions visible to any row: from the first of the first row to the last of the last.
    pub(super) seen: Range<usize>,
    /// Start of its partial results, if several tasks compute its splits.
    pub(super) partials: Option<usize>,
}

impl Tile {
    pub(super) fn new(call: &Call<'_>, span: usize, kv_head: usize, rows: Range<usize>) -> Tile {
        let seen = |row: usize| call.seen(&call.args.spans[span], row / call.group());
        let seen = seen(rows.start).start..seen(rows.end - 1).end;
        Tile { span, kv_head, rows, seen, partials: None }
    }

    pub(super) fn span<'a>(&self, call: &Call<'a>) -> &'a AttentionSpan<'a> {
        &call.args.spans[self.span]
    }

    /// Splits with positions visible to any row.
    pub(super) fn splits(&self) -> Range<usize> {
        self.seen.start / SPLIT..self.seen.end.div_ceil(SPLIT)
    }

    /// Elements of the partial results of one split.
    pub(super) fn partials_len(&self, call: &Call<'_>) -> usize {
        self.rows.len() * partial_len(call.args.layout.value_dim())
    }

    /// Cost in scores; a tile of one row still reads all keys, which costs as much as computing with several.
    pub(super) fn cost(&self) -> u64 {
        (self.seen.len() * self.rows.len().max(4)) as u64
    }
}

/// Scratch of one thread: about 390 KiB, of which 16 rows with heads of 128 touch 40, 2 KiB apart: a [`Buffer`] has it
/// on a huge page.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Scratch {
    /// Queries, rounded to bf16.
    queries: [[f32; STRIDE]; VECTOR_ROWS],
    /// Scores of a split, then weights.
    pub(super) scores: [[f32; STRIDE]; ROWS],
    /// For `vdpbf16ps`: queries as bf16, then weights as bf16.
    bf16: [[[u16; STRIDE]; VECTOR_ROWS]; 2],
    /// Queries for a matrix unit.
    pub(super) narrow_queries: Queries,
    /// Replaces queries, scores and weights for an int8 cache.
    pub(super) ints: Ints,
    /// Results of a split.
    pub(super) split: Sums,
    /// Results so far.
    pub(super) total: Sums,
}

// SAFETY: arrays of plain numbers, each a multiple of 64 bytes, so that there is no padding.
unsafe impl Pod for Scratch {}

/// Per row, a softmax before its division.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums {
    pub(super) values: [[f32; STRIDE]; ROWS],
    pub(super) max: [f32; ROWS],
    pub(super) sum: [f32; ROWS],
}

thread_local! {
    static SCRATCH: RefCell<Buffer<Scratch>> = RefCell::default();
    /// Of latent attention: the values of a split, in the order of a page of values.
    static LATENTS: RefCell<Buffer<u8>> = RefCell::default();
}

/// Runs `f` with this thread's scratch.
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.reserve(1).expect("memory for the tiles of attention");
        f(&mut scratch[0])
    })
}

/// State of a tile in progress.
pub(super) struct Work<'a, S> {
    pub(super) simd: S,
    /// The unit that multiplies.
    pub(super) unit: &'a Unit,
    pub(super) call: &'a Call<'a>,
    pub(super) tile: &'a Tile,
}

impl<S: Simd> Work<'_, S> {
    pub(super) fn rows(&self) -> usize {
        self.tile.rows.len()
    }

    /// Batch row and query head of a row of the tile.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> (usize, usize) {
        let (group, row) = (self.call.group(), self.tile.rows.start + row);
        (self.tile.span(self.call).first_row + row / group, self.tile.kv_head * group + row % group)
    }

    /// Positions visible to a row.
    #[inline(always)]
    pub(super) fn seen(&self, row: usize) -> Range<usize> {
        self.call.seen(self.tile.span(self.call), (self.tile.rows.start + row) / self.call.group())
    }

    /// The query of a row.
    #[inline(always)]
    pub(super) fn query(&self, row: usize) -> &[f32] {
        let (layout, (batch_row, head)) = (self.call.args.layout, self.row(row));
        &self.call.args.qkv[batch_row * layout.qkv_width() + head * layout.head_dim..][..layout.head_dim]
    }

    /// Loads the queries, rounded to the cache's type.
    #[inline(always)]
    pub(super) fn load_queries(&self, scratch: &mut Scratch) {
        let head_dim = self.call.args.layout.head_dim;
        if self.call.kv.shape().dtype == KvDtype::Int8 {
            return self.quantize_queries(scratch);
        }
        if let Unit::Tiles(_) = self.unit {
            return self.matrix_queries(scratch);
        }
        for row in 0..self.rows() {
            let query = self.query(row);
            for (from, to) in query.as_chunks::<LANES>().0.iter().zip(scratch.queries[row].as_chunks_mut::<LANES>().0) {
                // SAFETY: both are 16 numbers.
                unsafe { self.simd.store(self.simd.round_bf16(self.simd.load(from.as_ptr())), to.as_mut_ptr()) };
            }
            if let Unit::Pairs(_) = self.unit {
                self.narrow(&scratch.queries[row][..head_dim], &mut scratch.bf16[0][row][..head_dim]);
            }
        }
    }

    /// Narrows already rounded elements to bf16.
    #[inline(always)]
    fn narrow(&self, from: &[f32], to: &mut [u16]) {
        for (from, to) in from.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
            // SAFETY: both are 16 numbers.
            unsafe { self.simd.store_bf16(self.simd.load(from.as_ptr()), to.as_mut_ptr()) };
        }
    }

    /// Computes `scratch.split` for the split at `start`, which has positions visible to at least one row.
    #[inline(always)]
    pub(super) fn split(&self, scratch: &mut Scratch, start: usize) {
        let seen = inside(&self.tile.seen, start);
        let pages = seen.start / VALUE_PAGE..seen.end.div_ceil(VALUE_PAGE);
        let columns = pages.start * VALUE_PAGE..pages.end * VALUE_PAGE;
        let mut at = self.pages(start, &pages);
        if self.call.kv.shape().dtype == KvDtype::Int8 {
            return self.int8_split(scratch, start, &pages, &mut at);
        }
        if let Unit::Tiles(tiles) = self.unit {
            return self.matrix_split(tiles, scratch, start, &pages, &mut at);
        }
        self.scores(scratch, &at, &pages);
        // A pass over all rows at a time: rows do not wait for each other, as passes over one row do.
        let seen = |row: usize| inside(&self.seen(row), start);
        for row in 0..self.rows() {
            if let Some(cap) = self.call.args.rule.softcap {
                self.softcap(&mut scratch.scores[row][columns.clone()], cap);
            }
            scratch.split.max[row] = self.maximum(&scratch.scores[row], seen(row));
        }
        for row in 0..self.rows() {
            let (scores, max) = (&mut scratch.scores[row], scratch.split.max[row]);
            scratch.split.sum[row] = self.softmax(scores, max, seen(row), columns.clone());
            if let Unit::Pairs(_) = self.unit {
                let columns = columns.clone();
                self.narrow(&scratch.scores[row][columns.clone()], &mut scratch.bf16[1][row][columns]);
            }
        }
        self.values_of_keys::<2>(&pages, &mut at);
        self.values(scratch, &at, &pages);
    }

    /// The prefetch address after the keys of `page`: all keys of a split are read before all its values.
    #[inline(always)]
    pub(super) fn after_keys(&self, at: &[Page], pages: &Range<usize>, page: usize) -> *const u8 {
        let later = page + self.pages_ahead();
        if later < pages.end { at[later].keys } else { at[later - pages.len()].values }
    }

    /// The prefetch address after the values of `page`: at the end, the keys of the next split.
    #[inline(always)]
    pub(super) fn after_values(&self, at: &[Page], pages: &Range<usize>, page: usize) -> *const u8 {
        let later = page + self.pages_ahead();
        if later < pages.end { at[later].values } else { at[later].keys }
    }

    /// Prefetch distance in pages: 8 KiB of keys or values, at most 4 pages. (Zen 4 reads 4 KiB pages in random order, while
    /// it computes, at 25 GB/s with 2 KiB, 32 with 4, 33 with 8 or more.)
    #[inline(always)]
    fn pages_ahead(&self) -> usize {
        (8192 / self.call.kv.shape().page_bytes()).clamp(1, MAX_AHEAD)
    }

    /// Addresses of the pages of a split and of the pages that follow them (the last one repeated at the end).
    #[inline(always)]
    fn pages(&self, start: usize, pages: &Range<usize>) -> Pages {
        // The part of the cache with this head: on a machine with several memory nodes, that of one of them.
        let part = self.call.kv.part(self.tile.kv_head);
        let (shape, kv_head, data) = (part.shape(), part.head(self.tile.kv_head), part.data());
        let page_bytes = shape.page_bytes();
        let (blocks, last) = (self.tile.span(self.call).blocks, (self.tile.seen.end - 1) / VALUE_PAGE);
        let mut at = [Page::NOWHERE; PAGES + MAX_AHEAD];
        for (i, at) in at.iter_mut().enumerate().take(pages.end + self.pages_ahead()).skip(pages.start) {
            let position = (start / VALUE_PAGE + i).min(last) * VALUE_PAGE;
            let block = blocks[position / shape.block_size] as usize;
            let page = position % shape.block_size / VALUE_PAGE;
            let keys = shape.keys_at(self.call.args.layer, block, kv_head) + page * page_bytes;
            let values = shape.values_at(self.call.args.layer, block, kv_head) + page * page_bytes;
            at.keys = data[keys..][..page_bytes].as_ptr();
            at.values = data[values..][..page_bytes].as_ptr();
            if shape.dtype == KvDtype::Int8 {
                const SCALES: usize = VALUE_PAGE * size_of::<f32>();
                let key_scales = shape.scales_at(self.call.args.layer, block, kv_head) + page * SCALES;
                let value_scales = key_scales + shape.block_size * size_of::<f32>();
                at.key_scales = data[key_scales..][..SCALES].as_ptr().cast();
                at.value_scales = data[value_scales..][..SCALES].as_ptr().cast();
            }
        }
        at
    }

    /// Latent attention: transposes the first numbers of a split's keys, of which a lane has `P`, to pages of values.
    #[inline(always)]
    pub(super) fn values_of_keys<const P: usize>(&self, pages: &Range<usize>, at: &mut Pages) {
        let shape = self.call.kv.shape();
        let Some(width) = shape.latent else { return };
        let bytes = width * VALUE_PAGE * size_of::<u32>() / P;
        LATENTS.with_borrow_mut(|latents| {
            latents.reserve(pages.len() * bytes).expect("memory for the values of a split");
            for (to, at) in latents.chunks_exact_mut(bytes).zip(&mut at[pages.clone()]) {
                // SAFETY: the keys of a page of the cache, which nothing writes during attention.
                let keys = unsafe { std::slice::from_raw_parts(at.keys, shape.page_bytes()) };
                transpose::<P>(keys, (shape.head_dim, width), to);
                at.values = to.as_ptr();
            }
        });
    }

    /// `scores = q k^T * scale` for whole pages.
    #[inline(always)]
    fn scores(&self, scratch: &mut Scratch, at: &[Page], pages: &Range<usize>) {
        let (head_dim, scale) = (self.call.args.layout.head_dim, self.call.args.rule.scale);
        let to = scratch.scores.as_mut_ptr().cast::<f32>();
        for page in pages.clone() {
            let (lines, ahead) = (at[page].keys, self.after_keys(at, pages, page));
            let (rows, columns, to) = (self.rows(), VALUE_PAGE / KEY_GROUP, to.wrapping_add(page * VALUE_PAGE));
            // SAFETY: a page of keys is two groups of `head_dim / 2` lines; queries and scores have STRIDE numbers per
            // row, of which `head_dim` and this page's 32 are used.
            unsafe {
                if let Unit::Pairs(unit) = self.unit {
                    let weights = scratch.bf16[0].as_ptr().cast();
                    let product = NarrowProduct { depth: head_dim, weights, lines, ahead, scale: Some(scale) };
                    unit.product(&product, rows, columns, to);
                } else {
                    let weights = scratch.queries.as_ptr().cast();
                    let product = self.product(head_dim, weights, lines, ahead, Some(scale));
                    product.rows(rows, columns, to);
                }
            }
        }
    }

    /// A product of operands widened to f32.
    #[inline(always)]
    fn product(
        &self,
        depth: usize,
        weights: *const f32,
        lines: *const u8,
        ahead: *const u8,
        scale: Option<f32>,
    ) -> Product<S> {
        Product { simd: self.simd, arithmetic: self.call.arithmetic, depth, weights, lines, ahead, scale }
    }

    #[inline(always)]
    fn softcap(&self, scores: &mut [f32], cap: f32) {
        for chunk in scores.as_chunks_mut::<LANES>().0 {
            // SAFETY: a chunk is 16 numbers.
            unsafe {
                self.simd.store(softcap_lanes(self.simd, self.simd.load(chunk.as_ptr()), cap), chunk.as_mut_ptr())
            };
        }
    }

    /// The maximum of a row's visible scores.
    #[inline(always)]
    fn maximum(&self, scores: &[f32; STRIDE], seen: Range<usize>) -> f32 {
        let s = self.simd;
        let mut max = s.splat(f32::NEG_INFINITY);
        for c in touched(&seen) {
            // SAFETY: a chunk is 16 numbers.
            let scores = unsafe { s.load(scores.as_chunks::<LANES>().0[c].as_ptr()) };
            max = s.max(max, hide(s, &seen, c, scores, f32::NEG_INFINITY));
        }
        s.max_lane(max)
    }

    /// Replaces the scores of a row in `columns` by weights, zero outside of `seen`; returns their sum. `columns` begin
    /// and end at page boundaries.
    #[inline(always)]
    fn softmax(&self, scores: &mut [f32; STRIDE], max: f32, seen: Range<usize>, columns: Range<usize>) -> f32 {
        let s = self.simd;
        let chunks = scores[..columns.end].as_chunks_mut::<LANES>().0;
        let (touched, shift, mut sum) = (touched(&seen), s.splat(max), s.splat(0.0));
        for c in touched.clone() {
            // SAFETY: (here and below) a chunk is 16 numbers.
            let scores = unsafe { s.load(chunks[c].as_ptr()) };
            let weights = softmax_weights(s, s.sub(scores, shift));
            let weights = hide(s, &seen, c, weights, 0.0);
            sum = s.add(sum, weights);
            // SAFETY: as above.
            unsafe { s.store(weights, chunks[c].as_mut_ptr()) };
        }
        let (before, after) = (columns.start / LANES..touched.start, touched.end..columns.end / LANES);
        for c in before.chain(after) {
            chunks[c] = [0.0; LANES];
        }
        s.sum(sum)
    }

    /// `values = p v`.
    #[inline(always)]
    fn values(&self, scratch: &mut Scratch, at: &[Page], pages: &Range<usize>) {
        let width = self.call.args.layout.value_dim();
        for row in &mut scratch.split.values[..self.rows()] {
            row[..width].fill(0.0);
        }
        for page in pages.clone() {
            let (lines, ahead) = (at[page].values, self.after_values(at, pages, page));
            let (rows, columns, first) = (self.rows(), width / LANES, page * VALUE_PAGE);
            let to = scratch.split.values.as_mut_ptr().cast::<f32>();
            // SAFETY: a page of values is `width / 16` columns of 16 lines; weights have STRIDE numbers per row, 32 of
            // them for this page; values have `width` of STRIDE.
            unsafe {
                if let Unit::Pairs(unit) = self.unit {
                    let weights = scratch.bf16[1].as_ptr().cast::<u16>().wrapping_add(first);
                    let product = NarrowProduct { depth: VALUE_PAGE, weights, lines, ahead, scale: None };
                    unit.product(&product, rows, columns, to);
                } else {
                    let weights = scratch.scores.as_ptr().cast::<f32>().wrapping_add(first);
                    self.product(VALUE_PAGE, weights, lines, ahead, None).rows(rows, columns, to);
                }
            }
        }
    }

    /// Adds `scratch.split`, the split at `start`, to `scratch.total`. Factors, which are exponentials, are computed for
    /// 16 rows at once.
    #[inline(always)]
    pub(super) fn fold(&self, scratch: &mut Scratch, start: usize) {
        let (s, width) = (self.simd, self.call.args.layout.value_dim());
        let Scratch { split, total, .. } = scratch;
        let [mut max, mut sum, mut keep, mut join] = [[0.0; ROWS]; 4];
        for first in (0..self.rows()).step_by(LANES) {
            // SAFETY: there are two times 16 rows, of which those that are not there have any numbers.
            unsafe {
                let at = |rows: &[f32; ROWS]| rows.as_ptr().wrapping_add(first);
                let (old, new) = (s.load(at(&total.max)), s.load(at(&split.max)));
                let most = s.max(old, new);
                let (kept, joined) = (exp_lanes(s, s.sub(old, most)), exp_lanes(s, s.sub(new, most)));
                let sums = s.fma(s.load(at(&total.sum)), kept, s.mul(s.load(at(&split.sum)), joined));
                for (to, from) in [(&mut max, most), (&mut sum, sums), (&mut keep, kept), (&mut join, joined)] {
                    s.store(from, to.as_mut_ptr().add(first));
                }
            }
        }
        for row in 0..self.rows() {
            let seen = self.seen(row);
            if inside(&seen, start).is_empty() {
                continue;
            }
            let values = &split.values[row][..width];
            if seen.start >= start {
                total.begin_row(row, Folded { max: split.max[row], sum: split.sum[row], values });
            } else {
                (total.max[row], total.sum[row]) = (max[row], sum[row]);
                total.join_values(s, row, (s.splat(keep[row]), s.splat(join[row])), values);
            }
        }
    }

    /// Adds the split at `start` to a row's total, if any of it is visible to the row.
    #[inline(always)]
    pub(super) fn fold_row(&self, total: &mut Sums, row: usize, start: usize, next: Folded<'_>) {
        let seen = self.seen(row);
        if !inside(&seen, start).is_empty() {
            total.fold_row(self.simd, row, seen.start >= start, next);
        }
    }

    /// Joins the sinks to `total`, divides and writes it out, rotated back for an int8 cache.
    #[inline(always)]
    pub(super) fn finish(&self, total: &mut Sums) {
        const NO_VALUE: [f32; MAX_HEAD_DIM] = [0.0; MAX_HEAD_DIM];
        let s = self.simd;
        for row in 0..self.rows() {
            let (batch_row, head) = self.row(row);
            if let Some(sinks) = self.call.args.sinks {
                let values = &NO_VALUE[..self.call.args.layout.value_dim()];
                total.fold_row(s, row, false, Folded { max: sinks[head], sum: 1.0, values });
            }
            // SAFETY: each row and head is in one tile, and one task finishes a tile.
            let out = unsafe { self.call.out(batch_row, head) };
            let sum = s.splat(total.sum[row]);
            let chunks = total.values[row].as_chunks::<LANES>().0;
            for (to, from) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(chunks) {
                // SAFETY: both are 16 numbers.
                unsafe { s.store(s.div(s.load(from.as_ptr()), sum), to.as_mut_ptr()) };
            }
            if self.call.kv.shape().dtype == KvDtype::Int8 {
                gather_lanes(s, out, self.call.kv.shape().run());
            }
        }
    }
}

/// The first numbers of a page of keys of `head_dim` numbers, `width` of them, in the order of a page of values. A lane
/// holds `P` numbers.
#[inline(always)]
fn transpose<const P: usize>(keys: &[u8], (head_dim, width): (usize, usize), values: &mut [u8]) {
    let lines = LANES / P;
    for group in 0..VALUE_PAGE / KEY_GROUP {
        for column in 0..width / LANES {
            let from = &keys[(group * head_dim / P + column * lines) * LINE..][..lines * LINE];
            let to = &mut values[(column * VALUE_PAGE / P + group * lines) * LINE..][..lines * LINE];
            // Squares of P tokens and P numbers are turned by themselves, and change places.
            for (line, from) in from.chunks_exact(LINE).enumerate() {
                match P {
                    2 => {
                        for (square, from) in from.as_chunks::<8>().0.iter().enumerate() {
                            let x = u64::from_ne_bytes(*from);
                            let kept = x & 0xffff_0000_0000_ffff;
                            let turned = kept | (x & 0xffff_0000) << 16 | (x >> 16) & 0xffff_0000;
                            to[square * LINE + line * 8..][..8].copy_from_slice(&turned.to_ne_bytes());
                        }
                    }
                    _ => {
                        for (square, from) in from.as_chunks::<16>().0.iter().enumerate() {
                            let turned: [u8; 16] = std::array::from_fn(|i| from[i % 4 * 4 + i / 4]);
                            to[square * LINE + line * 16..][..16].copy_from_slice(&turned);
                        }
                    }
                }
            }
        }
    }
}

/// The part of `seen` within the split at `start`, relative to it.
#[inline(always)]
pub(super) fn inside(seen: &Range<usize>, start: usize) -> Range<usize> {
    seen.start.saturating_sub(start).min(SPLIT)..seen.end.saturating_sub(start).min(SPLIT)
}

/// The chunks of 16 positions that overlap `seen`.
#[inline(always)]
pub(super) fn touched(seen: &Range<usize>) -> Range<usize> {
    seen.start / LANES..seen.end.div_ceil(LANES)
}

/// Replaces masked lanes of chunk `c` by `x`. The chunk overlaps `seen`.
#[inline(always)]
pub(super) fn hide<S: Simd>(s: S, seen: &Range<usize>, c: usize, a: S::V, x: f32) -> S::V {
    let (first, end) = (seen.start.saturating_sub(c * LANES), (seen.end - c * LANES).min(LANES));
    if (first, end) == (0, LANES) { a } else { s.first(end, s.first(first, s.splat(x), a), s.splat(x)) }
}

/// One row's result of one split.
pub(super) struct Folded<'a> {
    pub(super) max: f32,
    pub(super) sum: f32,
    pub(super) values: &'a [f32],
}

impl Sums {
    /// Joins the next split to a row; if it is the `first`, it replaces the row.
    #[inline(always)]
    fn fold_row<S: Simd>(&mut self, s: S, row: usize, first: bool, next: Folded<'_>) {
        if first {
            return self.begin_row(row, next);
        }
        let max = if self.max[row] > next.max { self.max[row] } else { next.max };
        let keep = exp_lanes(s, s.splat(self.max[row] - max));
        let join = exp_lanes(s, s.splat(next.max - max));
        self.max[row] = max;
        let mut sum = [0.0; LANES];
        let joined = s.fma(s.splat(self.sum[row]), keep, s.mul(s.splat(next.sum), join));
        // SAFETY: these are 16 numbers.
        unsafe { s.store(joined, sum.as_mut_ptr()) };
        self.sum[row] = sum[0];
        self.join_values(s, row, (keep, join), next.values);
    }

    /// The first split of a row.
    #[inline(always)]
    fn begin_row(&mut self, row: usize, next: Folded<'_>) {
        (self.max[row], self.sum[row]) = (next.max, next.sum);
        self.values[row][..next.values.len()].copy_from_slice(next.values);
    }

    /// `values * keep + next * join` of a row.
    #[inline(always)]
    fn join_values<S: Simd>(&mut self, s: S, row: usize, (keep, join): (S::V, S::V), next: &[f32]) {
        let next = next.as_chunks::<LANES>().0;
        for (to, from) in self.values[row].as_chunks_mut::<LANES>().0.iter_mut().zip(next) {
            // SAFETY: every chunk is 16 numbers.
            unsafe {
                let joined = s.mul(s.load(from.as_ptr()), join);
                s.store(s.fma(s.load(to.as_ptr()), keep, joined), to.as_mut_ptr());
            }
        }
    }
}

/// Addresses of the 32 positions of a page.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Page {
    pub(crate) keys: *const u8,
    pub(crate) values: *const u8,
    /// `[32]` each; for int8 only.
    pub(crate) key_scales: *const f32,
    pub(crate) value_scales: *const f32,
}

impl Page {
    const NOWHERE: Page = Page {
        keys: std::ptr::null(),
        values: std::ptr::null(),
        key_scales: std::ptr::null(),
        value_scales: std::ptr::null(),
    };
}

/// A product of broadcast weights with lines of pairs.
struct Product<S> {
    simd: S,
    arithmetic: AccumulationOrder,
    /// Depth in elements; `depth / 2` lines.
    depth: usize,
    /// f32 `[rows, depth]`, rows STRIDE apart.
    weights: *const f32,
    /// bf16 `[columns][depth / 2][16][2]`.
    lines: *const u8,
    /// Lines to prefetch, of the same number.
    ahead: *const u8,
    /// `Some`: the product times this is stored. `None`: the product is added.
    scale: Option<f32>,
}

/// The same with weights of bf16 as stored.
pub(crate) struct NarrowProduct {
    /// Depth in elements; `depth / 2` lines.
    pub(crate) depth: usize,
    /// bf16 `[rows, depth]`, rows STRIDE apart.
    pub(crate) weights: *const u16,
    /// bf16 `[columns][depth / 2][16][2]`.
    pub(crate) lines: *const u8,
    /// Lines to prefetch, of the same number.
    pub(crate) ahead: *const u8,
    /// `Some`: the product times this is stored. `None`: the product is added.
    pub(crate) scale: Option<f32>,
}

impl<S: Simd> Product<S> {
    /// Rows of [`Product::pairs`]: one chain per row, where the order of tiles has two and a sum.
    const PAIR_ROWS: usize = if S::ROWS < 4 { 2 * S::ROWS } else { 8 };

    /// For `rows` rows and `columns` columns of 16; `to`: f32 `[rows, 16 * columns]`, rows STRIDE apart.
    ///
    /// # Safety
    /// `weights`, `lines` and `to` are as said.
    #[inline(always)]
    unsafe fn rows(&self, rows: usize, columns: usize, to: *mut f32) {
        match self.arithmetic {
            AccumulationOrder::Amx => {
                for first in (0..rows).step_by(S::ROWS) {
                    // SAFETY: a pack begins at `first` and ends at `rows` at most.
                    with_rows!(R = (rows - first).min(S::ROWS) => unsafe { self.tiles::<R>(first, columns, to) });
                }
            }
            AccumulationOrder::Vdpbf16 => {
                for first in (0..rows).step_by(Self::PAIR_ROWS) {
                    // SAFETY: as above.
                    with_rows!(R = (rows - first).min(Self::PAIR_ROWS) => unsafe { self.pairs::<R>(first, columns, to) });
                }
            }
        }
    }

    /// The lines of a column, and those to prefetch.
    ///
    /// # Safety
    /// There is such a column.
    #[inline(always)]
    unsafe fn column(&self, column: usize) -> (*const u8, *const u8) {
        let at = column * (self.depth / 2) * LINE;
        // SAFETY: the caller's promise.
        unsafe { (self.lines.add(at), self.ahead.wrapping_add(at)) }
    }

    /// Initial value of a sum.
    ///
    /// # Safety
    /// `to` is one of the results.
    #[inline(always)]
    unsafe fn start(&self, to: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        if self.scale.is_some() { self.simd.splat(0.0) } else { unsafe { self.simd.load(to) } }
    }

    /// Stores a sum.
    ///
    /// # Safety
    /// `to` is one of the results.
    #[inline(always)]
    unsafe fn finish(&self, total: S::V, to: *mut f32) {
        let scaled = self.scale.map(|scale| self.simd.mul(total, self.simd.splat(scale)));
        // SAFETY: the caller's promise.
        unsafe { self.simd.store(scaled.unwrap_or(total), to) };
    }

    /// For `R` rows from `first`. Lines are read in memory order, which the hardware prefetcher follows.
    ///
    /// # Safety
    /// As for [`Product::rows`].
    #[inline(always)]
    unsafe fn tiles<const R: usize>(&self, first: usize, columns: usize, to: *mut f32) {
        let (s, pairs) = (self.simd, self.depth / 2);
        let weights = self.weights.wrapping_add(first * STRIDE);
        for column in 0..columns {
            // SAFETY: the caller keeps every address inside its buffer.
            unsafe {
                let to = to.add(first * STRIDE + column * LANES);
                let (lines, ahead) = self.column(column);
                let mut total = [s.splat(0.0); R];
                for (r, total) in total.iter_mut().enumerate() {
                    *total = self.start(to.add(r * STRIDE));
                }
                let mut pair = 0;
                while pair < pairs {
                    let end = pairs.min(pair + 16);
                    let (mut even, mut odd) = ([s.splat(0.0); R], [s.splat(0.0); R]);
                    while pair < end {
                        let line = s.load_pairs(lines.add(pair * LINE).cast());
                        if first == 0 {
                            s.prefetch(ahead.wrapping_add(pair * LINE));
                        }
                        for r in 0..R {
                            let weight = weights.add(r * STRIDE + 2 * pair);
                            even[r] = s.fma(s.splat(*weight), line.0, even[r]);
                            odd[r] = s.fma(s.splat(*weight.add(1)), line.1, odd[r]);
                        }
                        pair += 1;
                    }
                    for r in 0..R {
                        total[r] = s.add(total[r], s.add(even[r], odd[r]));
                    }
                }
                for (r, &total) in total.iter().enumerate() {
                    self.finish(total, to.add(r * STRIDE));
                }
            }
        }
    }

    /// For `R` rows from `first`. Few rows take two columns at a time, to hide the latency of one chain.
    ///
    /// # Safety
    /// As for [`Product::rows`].
    #[inline(always)]
    unsafe fn pairs<const R: usize>(&self, first: usize, columns: usize, to: *mut f32) {
        let mut column = 0;
        // SAFETY: passed on: the columns exist.
        unsafe {
            while 2 * R <= Self::PAIR_ROWS && column + 2 <= columns {
                self.pairs_of_columns::<R, 2>(first, column, to);
                column += 2;
            }
            while column < columns {
                self.pairs_of_columns::<R, 1>(first, column, to);
                column += 1;
            }
        }
    }

    /// For `C` columns from `column`.
    ///
    /// # Safety
    /// As for [`Product::rows`].
    #[inline(always)]
    unsafe fn pairs_of_columns<const R: usize, const C: usize>(&self, first: usize, column: usize, to: *mut f32) {
        let s = self.simd;
        let weights = self.weights.wrapping_add(first * STRIDE);
        let to = |c: usize, r: usize| to.wrapping_add((first + r) * STRIDE + (column + c) * LANES);
        // SAFETY: the caller keeps every address inside its buffer.
        unsafe {
            let from: [_; C] = std::array::from_fn(|c| self.column(column + c));
            let mut totals = [[s.splat(0.0); R]; C];
            for (c, totals) in totals.iter_mut().enumerate() {
                for (r, total) in totals.iter_mut().enumerate() {
                    *total = self.start(to(c, r).cast_const());
                }
            }
            for pair in 0..self.depth / 2 {
                for ((lines, ahead), totals) in from.iter().zip(&mut totals) {
                    let line = s.load_pairs(lines.add(pair * LINE).cast());
                    if first == 0 {
                        s.prefetch(ahead.wrapping_add(pair * LINE));
                    }
                    for (r, total) in totals.iter_mut().enumerate() {
                        let weight = weights.add(r * STRIDE + 2 * pair);
                        *total = s.fma(s.splat(*weight.add(1)), line.1, *total);
                        *total = s.fma(s.splat(*weight), line.0, *total);
                    }
                }
            }
            for (c, totals) in totals.into_iter().enumerate() {
                for (r, total) in totals.into_iter().enumerate() {
                    self.finish(total, to(c, r));
                }
            }
        }
    }
}
