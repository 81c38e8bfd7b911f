//! Products of some rows and some strips, and the destinations of the sums.
//!
//! ```text
//! for each block of up to 8 rows, rounded if necessary, for each strip or two of them
//!     sums of 16 columns     vdpbf16ps, or fused multiply-adds in the order of pairs or of tiles
//!     Inner: rounded, to h   Added: to the row of the result
//! ```

use super::{ComputeContext, Convert, Format, LINE, Span, Strips};
use crate::accumulation_order::AccumulationOrder;
use crate::arch::native;
use crate::mem::Buffer;
use crate::pointwise::Shared;
use crate::simd::{Kernel, LANES, Simd, dispatch, round_bf16, with_rows};
use std::cell::RefCell;
use std::ops::Range;

/// Rows of a block: limited by registers for vectors, and by a tile.
const BLOCK: usize = 8;
const TILE_BLOCK: usize = 16;

thread_local! {
    /// Scratch for a block of converted rows; it only grows.
    static CONVERTED: RefCell<Buffer<u32>> = RefCell::default();
}

/// Some rows and strips of a matrix to multiply.
pub(super) struct Panel<'a, T> {
    pub(super) matrix: &'a Strips,
    pub(super) from: Rows<'a>,
    /// Scratch indices of the rows.
    pub(super) rows: Range<usize>,
    /// Indices into the strips with inputs.
    pub(super) spans: Range<usize>,
    pub(super) to: T,
}

/// Input rows.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// The step's `x`, of which `listed` gives the rows with scratch indices from `first` on; rounded on use.
    Listed { x: &'a [f32], width: usize, first: usize, listed: &'a [u32] },
    /// Rows in scratch, in the format of [`Format::of`].
    Ready { rows: &'a [u32], stride: usize },
}

impl Rows<'_> {
    /// A block of rows in the format, and its row stride.
    fn block<'b>(
        &'b self,
        context: ComputeContext<'_>,
        rows: Range<usize>,
        room: &'b mut Buffer<u32>,
    ) -> (&'b [u32], usize) {
        match *self {
            Rows::Ready { rows: all, stride } => (&all[rows.start * stride..rows.end * stride], stride),
            Rows::Listed { x, width, first, listed } => {
                let format = Format::of(context);
                let stride = format.stride(width);
                room.reserve(TILE_BLOCK * stride).expect("memory for a block of inputs");
                for (to, row) in room.chunks_exact_mut(stride).zip(rows.clone()) {
                    let x = &x[listed[row - first] as usize * width..][..width];
                    dispatch(context.isa, Convert { x, to, format });
                }
                (&room[..rows.len() * stride], stride)
            }
        }
    }
}

/// Destination of sums. Callers compute each row and strip once.
pub(crate) trait RowTarget: Copy {
    /// Pointer to a row.
    type Row: Copy;

    /// A row by its scratch index.
    fn row(self, row: usize) -> Self::Row;

    /// Writes sixteen columns of it.
    ///
    /// # Safety
    /// The strip belongs to the matrix, and no other thread writes it in that row.
    unsafe fn put<S: Simd>(self, s: S, row: Self::Row, strip: usize, sums: S::V);

    /// Writes one column of it.
    ///
    /// # Safety
    /// As above.
    unsafe fn put_one(self, row: Self::Row, column: usize, sum: f32);
}

/// Rounded and stored to the input rows of `B`.
#[derive(Clone, Copy)]
pub(super) struct Inner<'a> {
    pub(super) h: &'a Shared<'a, u32>,
    pub(super) stride: usize,
    pub(super) format: Format,
}

impl RowTarget for Inner<'_> {
    type Row = *mut u32;

    #[inline(always)]
    fn row(self, row: usize) -> *mut u32 {
        self.h.pointer(row * self.stride..(row + 1) * self.stride)
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(self, s: S, row: *mut u32, strip: usize, sums: S::V) {
        let rounded = s.round_bf16(sums);
        // SAFETY: a row has room for every strip, and this part is the caller's.
        unsafe {
            let to = row.add(strip * LANES / 2 * self.format.unit());
            match self.format {
                Format::Pairs => s.store_bf16(rounded, to.cast()),
                Format::Wide => s.store(rounded, to.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn put_one(self, row: *mut u32, column: usize, sum: f32) {
        debug_assert_eq!(self.format, Format::Wide, "without vectors");
        // SAFETY: as above.
        unsafe { *row.add(column) = round_bf16(sum).to_bits() };
    }
}

/// Added to the listed rows.
#[derive(Clone, Copy)]
pub(super) struct Added<'a> {
    pub(super) out: &'a Shared<'a, f32>,
    pub(super) width: usize,
    /// Scratch index of the first listed row.
    pub(super) first: usize,
    pub(super) listed: &'a [u32],
}

impl RowTarget for Added<'_> {
    type Row = *mut f32;

    #[inline(always)]
    fn row(self, row: usize) -> *mut f32 {
        let row = self.listed[row - self.first] as usize;
        self.out.pointer(row * self.width..(row + 1) * self.width)
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(self, s: S, row: *mut f32, strip: usize, sums: S::V) {
        let column = strip * LANES;
        // SAFETY: the strip begins within the row, whose end is not passed, and this part is the caller's.
        unsafe {
            let out = row.add(column);
            match self.width - column {
                count @ 0..LANES => s.store_first(count, s.add(s.load_first(count, out), sums), out),
                _ => s.store(s.add(s.load(out), sums), out),
            }
        }
    }

    #[inline(always)]
    unsafe fn put_one(self, row: *mut f32, column: usize, sum: f32) {
        if column < self.width {
            // SAFETY: as above; columns that only pad a strip have no place.
            unsafe { *row.add(column) += sum };
        }
    }
}

// One function per type, so that they are compiled once here and not wherever the generic `add` is instantiated.
impl Panel<'_, Inner<'_>> {
    pub(super) fn compute(self, context: ComputeContext<'_>) {
        run(context, self);
    }
}

impl Panel<'_, Added<'_>> {
    pub(super) fn compute(self, context: ComputeContext<'_>) {
        run(context, self);
    }
}

/// Computes a panel, a block of rows at a time.
fn run<T: RowTarget>(context: ComputeContext<'_>, panel: Panel<'_, T>) {
    let Panel { matrix, from, rows, spans, to } = panel;
    let block_rows = if context.tiles.is_some() { TILE_BLOCK } else { BLOCK };
    CONVERTED.with_borrow_mut(|room| {
        for first in rows.clone().step_by(block_rows) {
            let rows = first..rows.end.min(first + block_rows);
            let (x, stride) = from.block(context, rows.clone(), room);
            let width = matrix.width(spans.clone()) * Format::of(context).unit();
            assert!(width <= stride, "rows of {stride} units are narrower than the matrix, which reads {width}");
            let block = Block { matrix, x, stride, rows, spans: spans.clone(), to };
            match (context.arithmetic, context.tiles, native::narrow(context.isa)) {
                (AccumulationOrder::Amx, Some(proof), _) => native::low_rank_tiles(proof, &block),
                (AccumulationOrder::Vdpbf16, _, Some(proof)) => native::low_rank_narrow(proof, &block),
                (arithmetic, ..) => dispatch(context.isa, ByFma { block, arithmetic }),
            }
        }
    });
}

/// A few rows in the format.
pub(crate) struct Block<'a, T> {
    pub(crate) matrix: &'a Strips,
    /// `rows` rows, `stride` apart, each at least as wide as the inputs of any of the strips.
    pub(crate) x: &'a [u32],
    pub(crate) stride: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) spans: Range<usize>,
    pub(crate) to: T,
}

/// An accumulation order, for sums of 16 columns.
pub(crate) trait Order<S: Simd>: Copy {
    /// Rows that fit the registers, at most 8.
    const ROWS: usize;
    /// Minimum rows to compute two strips together.
    const TWO_FROM: usize;

    /// Sums of `R` rows of `C` strips that read the same inputs.
    ///
    /// # Safety
    /// `lines[c]`: `pairs` lines. `x`: rows of that many pairs, `x_stride` apart.
    unsafe fn sums<const R: usize, const C: usize>(
        self,
        s: S,
        lines: [*const u32; C],
        span: Span,
        x: *const u32,
        x_stride: usize,
    ) -> [[S::V; R]; C];
}

impl<T: RowTarget> Block<'_, T> {
    /// `unit`: units per input pair.
    #[inline(always)]
    pub(crate) fn run<S: Simd, O: Order<S>>(&self, s: S, order: O, unit: usize) {
        let mut at = 0;
        while at < self.rows.len() {
            let count = (self.rows.len() - at).min(O::ROWS);
            with_rows!(R = count => self.rows::<S, O, R>(s, order, unit, at));
            at += count;
        }
    }

    /// `R` rows from the block's row `at`.
    #[inline(always)]
    fn rows<S: Simd, O: Order<S>, const R: usize>(&self, s: S, order: O, unit: usize, at: usize) {
        let mut to = [self.to.row(self.rows.start + at); R];
        for (row, to) in to.iter_mut().enumerate() {
            *to = self.to.row(self.rows.start + at + row);
        }
        let mut spans = &self.matrix.spans[self.spans.clone()];
        while let [span, rest @ ..] = spans {
            match rest {
                [next, rest @ ..]
                    if (next.first, next.pairs) == (span.first, span.pairs)
                        && (R >= O::TWO_FROM || span.pairs <= SHORT) =>
                {
                    self.strips::<S, O, R, 2>(s, order, unit, (at, &to), [*span, *next]);
                    spans = rest;
                }
                _ => {
                    self.strips::<S, O, R, 1>(s, order, unit, (at, &to), [*span]);
                    spans = rest;
                }
            }
        }
    }

    /// Strips that read the same inputs.
    #[inline(always)]
    fn strips<S: Simd, O: Order<S>, const R: usize, const C: usize>(
        &self,
        s: S,
        order: O,
        unit: usize,
        (at, to): (usize, &[T::Row; R]),
        spans: [Span; C],
    ) {
        let x = self.x[at * self.stride + spans[0].first * unit..].as_ptr();
        let mut lines = [std::ptr::null(); C];
        for (lines, span) in lines.iter_mut().zip(&spans) {
            *lines = self.matrix.pairs[span.line * LINE..].as_ptr();
        }
        // SAFETY: the lines are the strips'; rows are as wide as what any strip reads, and all exist.
        let sums = unsafe { order.sums::<R, C>(s, lines, spans[0], x, self.stride) };
        for (span, sums) in spans.into_iter().zip(sums) {
            for (&to, sums) in to.iter().zip(sums) {
                // SAFETY: the strip is the matrix's, and each row and strip is in one panel.
                unsafe { self.to.put(s, to, span.strip, sums) };
            }
        }
    }
}

/// Without `vdpbf16ps`, from wide rows.
struct ByFma<'a, T> {
    block: Block<'a, T>,
    arithmetic: AccumulationOrder,
}

impl<T: RowTarget> Kernel for ByFma<'_, T> {
    type Output = ();

    fn define(self) {
        let Block { matrix, x, stride, rows, spans, to } = self.block;
        for (row, x) in rows.zip(x.chunks_exact(stride)) {
            let to_row = to.row(row);
            let x = |k: usize| f32::from_bits(x[k]);
            matrix.dots(self.arithmetic, spans.clone(), x, |column, sum| {
                // SAFETY: the strips are the matrix's, and each row and strip is in one panel.
                unsafe { to.put_one(to_row, column, sum) };
            });
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.arithmetic {
            AccumulationOrder::Vdpbf16 => self.block.run(s, FmaPairs, 2),
            AccumulationOrder::Amx => self.block.run(s, FmaTiles, 2),
        }
    }
}

/// Maximum pairs of strips that are computed in twos for any number of rows: they are adjacent.
const SHORT: usize = 64;
/// Prefetch distance in 4-byte units.
pub(crate) const AHEAD: usize = 2048 / size_of::<u32>();

/// One pair: weights `[line][16][2]`, and two elements of each row at `x`.
///
/// # Safety
/// As for [`Order::sums`].
#[inline(always)]
unsafe fn load_line<S: Simd>(s: S, line: *const u32) -> (S::V, S::V) {
    s.prefetch(line.wrapping_add(AHEAD).cast());
    // SAFETY: the caller's promise.
    unsafe { s.load_pairs(line.cast()) }
}

/// [`AccumulationOrder::Vdpbf16`] with two fused multiply-adds per pair, the odd product first.
#[derive(Clone, Copy)]
struct FmaPairs;

impl<S: Simd> Order<S> for FmaPairs {
    const ROWS: usize = if 2 * S::ROWS < 8 { 2 * S::ROWS } else { 8 };
    const TWO_FROM: usize = usize::MAX;

    #[inline(always)]
    unsafe fn sums<const R: usize, const C: usize>(
        self,
        s: S,
        lines: [*const u32; C],
        span: Span,
        x: *const u32,
        x_stride: usize,
    ) -> [[S::V; R]; C] {
        let mut sums = [[s.splat(0.0); R]; C];
        for pair in 0..span.pairs {
            for (sums, line) in sums.iter_mut().zip(lines) {
                // SAFETY: within the lines and the rows.
                unsafe {
                    let (even, odd) = load_line(s, line.add(pair * LINE));
                    for (row, sum) in sums.iter_mut().enumerate() {
                        let x = x.add(row * x_stride + 2 * pair).cast::<f32>();
                        *sum = s.fma(s.splat(*x), even, s.fma(s.splat(*x.add(1)), odd, *sum));
                    }
                }
            }
        }
        sums
    }
}

/// [`AccumulationOrder::Amx`]: an even and an odd chain for each step of all inputs.
#[derive(Clone, Copy)]
struct FmaTiles;

impl<S: Simd> Order<S> for FmaTiles {
    const ROWS: usize = S::ROWS;
    const TWO_FROM: usize = usize::MAX;

    #[inline(always)]
    unsafe fn sums<const R: usize, const C: usize>(
        self,
        s: S,
        lines: [*const u32; C],
        span: Span,
        x: *const u32,
        x_stride: usize,
    ) -> [[S::V; R]; C] {
        let mut sums = [[s.splat(0.0); R]; C];
        for (sums, line) in sums.iter_mut().zip(lines) {
            let mut pair = 0;
            while pair < span.pairs {
                let end = (pair + PAIRS - (span.first + pair) % PAIRS).min(span.pairs);
                let (mut evens, mut odds) = ([s.splat(0.0); R], [s.splat(0.0); R]);
                while pair < end {
                    // SAFETY: within the lines and the rows.
                    unsafe {
                        let (even, odd) = load_line(s, line.add(pair * LINE));
                        for row in 0..R {
                            let x = x.add(row * x_stride + 2 * pair).cast::<f32>();
                            evens[row] = s.fma(s.splat(*x), even, evens[row]);
                            odds[row] = s.fma(s.splat(*x.add(1)), odd, odds[row]);
                        }
                    }
                    pair += 1;
                }
                for row in 0..R {
                    sums[row] = s.add(sums[row], s.add(evens[row], odds[row]));
                }
            }
        }
        sums
    }
}

/// Pairs of a step of tiles.
pub(crate) const PAIRS: usize = AccumulationOrder::STEP / 2;
