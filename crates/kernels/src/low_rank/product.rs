//! Some rows times some strips, and where the sums go.
//!
//! ```text
//! for each block of up to 8 rows, for each strip or two of them
//!     sums of 16 columns     vdpbf16ps, or fused multiply-adds in the order of pairs or of tiles
//!     Inner: rounded, to h   Added: to the row of the result
//! ```

use super::{Format, LINE, Means, Span, Strips};
use crate::arithmetic::Arithmetic;
use crate::lanes::{Kernel, LANES, Simd, dispatch, round_bf16, with_rows};
use crate::pointwise::Shared;
use std::ops::Range;

/// Rows and strips of a matrix that are multiplied.
pub(super) struct Panel<'a, T> {
    pub(super) matrix: &'a Strips,
    /// Rows in the format that [`Format::of`] says.
    pub(super) x: &'a [u32],
    pub(super) x_stride: usize,
    pub(super) rows: Range<usize>,
    pub(super) strips: Range<usize>,
    pub(super) to: T,
}

/// Where sums go. Whoever calls computes a row and strip once.
pub(super) trait To: Copy {
    /// Sixteen columns of a row in scratch.
    fn put<S: Simd>(self, s: S, row: usize, strip: usize, sums: S::V);
    /// One of them.
    fn put_one(self, row: usize, column: usize, sum: f32);
}

/// Rounded, to the rows that `B` reads.
#[derive(Clone, Copy)]
pub(super) struct Inner<'a> {
    pub(super) h: &'a Shared<'a, u32>,
    pub(super) stride: usize,
    pub(super) format: Format,
}

impl To for Inner<'_> {
    #[inline(always)]
    fn put<S: Simd>(self, s: S, row: usize, strip: usize, sums: S::V) {
        let (width, sums) = (self.format.stride(LANES), s.round_bf16(sums));
        let at = row * self.stride + strip * width;
        // SAFETY: a row and strip is one task's, and there are 16 numbers in its part.
        unsafe {
            let to = self.h.part(at..at + width).as_mut_ptr();
            match self.format {
                Format::Pairs => s.store_bf16(sums, to.cast()),
                Format::Wide => s.store(sums, to.cast()),
            }
        }
    }

    #[inline(always)]
    fn put_one(self, row: usize, column: usize, sum: f32) {
        debug_assert_eq!(self.format, Format::Wide, "without vectors");
        let at = row * self.stride + column;
        // SAFETY: a row and column is one task's.
        unsafe { self.h.part(at..at + 1)[0] = round_bf16(sum).to_bits() };
    }
}

/// Added to the rows that are listed.
#[derive(Clone, Copy)]
pub(super) struct Added<'a> {
    pub(super) out: &'a Shared<'a, f32>,
    pub(super) width: usize,
    /// The first of them in scratch.
    pub(super) first: usize,
    pub(super) listed: &'a [u32],
}

impl Added<'_> {
    #[inline(always)]
    fn place(&self, row: usize, column: usize, count: usize) -> Range<usize> {
        let at = self.listed[row - self.first] as usize * self.width + column;
        at..at + count.min(self.width - column)
    }
}

impl To for Added<'_> {
    #[inline(always)]
    fn put<S: Simd>(self, s: S, row: usize, strip: usize, sums: S::V) {
        // SAFETY: no row is listed twice, and a row and strip is one task's; numbers beyond its end are not touched.
        unsafe {
            let out = self.out.part(self.place(row, strip * LANES, LANES));
            let (count, out) = (out.len(), out.as_mut_ptr());
            match count {
                LANES => s.store(s.add(s.load(out), sums), out),
                _ => s.store_first(count, s.add(s.load_first(count, out), sums), out),
            }
        }
    }

    #[inline(always)]
    fn put_one(self, row: usize, column: usize, sum: f32) {
        // SAFETY: as above; columns that only pad a strip have no place.
        let out = unsafe { self.out.part(self.place(row, column.min(self.width), 1)) };
        out.iter_mut().for_each(|out| *out += sum);
    }
}

/// Computes it.
pub(super) fn run<T: To>(means: Means<'_>, panel: Panel<'_, T>) {
    let Panel { matrix, x, x_stride, ref rows, .. } = panel;
    let (widest, rows_end) = (matrix.spans.iter().map(|span| span.first + span.pairs).max().unwrap_or(0), rows.end);
    let needed = Format::of(means).stride(2 * widest);
    assert!(needed <= x_stride && rows_end * x_stride <= x.len(), "rows are narrower than the matrix");
    #[cfg(target_arch = "x86_64")]
    if means.arithmetic == Arithmetic::Pairs
        && let Some(proof) = means.isa.avx512_bf16()
    {
        return dot::run(proof, &panel);
    }
    dispatch(means.isa, ByFma { panel, arithmetic: means.arithmetic });
}

/// How sums of 16 columns are computed.
trait Order<S: Simd>: Copy {
    /// Rows of a block, at most 8.
    const ROWS: usize;
    /// From how many rows on two strips are computed together.
    const TWO_FROM: usize;

    /// Sums of `R` rows of `C` strips that read the same inputs.
    ///
    /// # Safety
    /// `lines[c]`: `pairs` lines. `x`: rows of as many pairs, `x_stride` apart.
    unsafe fn sums<const R: usize, const C: usize>(
        self,
        s: S,
        lines: [*const u32; C],
        span: Span,
        x: *const u32,
        x_stride: usize,
    ) -> [[S::V; R]; C];
}

impl<T: To> Panel<'_, T> {
    /// Units of `unit` bytes for a pair of inputs: 1 packed, 2 wide.
    #[inline(always)]
    fn run<S: Simd, O: Order<S>>(&self, s: S, order: O, unit: usize) {
        let mut first = self.rows.start;
        while first < self.rows.end {
            let count = (self.rows.end - first).min(O::ROWS);
            with_rows!(R = count => self.block::<S, O, R>(s, order, unit, first));
            first += count;
        }
    }

    #[inline(always)]
    fn block<S: Simd, O: Order<S>, const R: usize>(&self, s: S, order: O, unit: usize, first: usize) {
        let mut strip = self.strips.start;
        while strip < self.strips.end {
            let span = self.matrix.spans[strip];
            let next = self.matrix.spans[self.strips.end.min(strip + 2) - 1];
            if R >= O::TWO_FROM && strip + 1 < self.strips.end && (next.first, next.pairs) == (span.first, span.pairs) {
                self.strips_at::<S, O, R, 2>(s, order, unit, first, strip);
                strip += 2;
            } else {
                self.strips_at::<S, O, R, 1>(s, order, unit, first, strip);
                strip += 1;
            }
        }
    }

    #[inline(always)]
    fn strips_at<S: Simd, O: Order<S>, const R: usize, const C: usize>(
        &self,
        s: S,
        order: O,
        unit: usize,
        first: usize,
        strip: usize,
    ) {
        let span = self.matrix.spans[strip];
        let x = self.x[first * self.x_stride + span.first * unit..].as_ptr();
        let lines: [*const u32; C] =
            std::array::from_fn(|c| self.matrix.pairs[self.matrix.spans[strip + c].line * LINE..].as_ptr());
        // SAFETY: the lines are the strips'; `run` has seen that rows are as wide as what any strip reads, and that
        // there are so many.
        let sums = unsafe { order.sums::<R, C>(s, lines, span, x, self.x_stride) };
        for (c, sums) in sums.into_iter().enumerate() {
            for (row, sums) in sums.into_iter().enumerate() {
                self.to.put(s, first + row, strip + c, sums);
            }
        }
    }
}

/// Without `vdpbf16ps`, from wide rows.
struct ByFma<'a, T> {
    panel: Panel<'a, T>,
    arithmetic: Arithmetic,
}

impl<T: To> Kernel for ByFma<'_, T> {
    type Output = ();

    fn define(self) {
        let Panel { matrix, x, x_stride, rows, strips, to } = self.panel;
        for row in rows {
            let x = &x[row * x_stride..][..x_stride];
            for column in strips.start * LANES..strips.end * LANES {
                to.put_one(row, column, matrix.dot(self.arithmetic, column, |k| f32::from_bits(x[k])));
            }
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.arithmetic {
            Arithmetic::Pairs => self.panel.run(s, FmaPairs, 2),
            Arithmetic::Tiles => self.panel.run(s, FmaTiles, 2),
        }
    }
}

/// How far ahead lines are asked for, in their own unit.
const AHEAD: usize = 2048 / size_of::<u32>();

/// One pair: weights `[line][16][2]`, of each row two numbers at `x`.
///
/// # Safety
/// As for [`Order::sums`].
#[inline(always)]
unsafe fn load_line<S: Simd>(s: S, line: *const u32) -> (S::V, S::V) {
    s.prefetch(line.wrapping_add(AHEAD).cast());
    // SAFETY: the caller's promise.
    unsafe { s.load_pairs(line.cast()) }
}

/// [`Arithmetic::Pairs`] with two fused multiply-adds for a pair, the odd product first.
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

/// [`Arithmetic::Tiles`]: an even and an odd chain for each step of all inputs.
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
const PAIRS: usize = Arithmetic::STEP / 2;

/// [`Arithmetic::Pairs`] with `vdpbf16ps`, from packed rows.
#[cfg(target_arch = "x86_64")]
mod dot {
    use super::{AHEAD, LINE, Order, Panel, Span, To};
    use crate::isa::{Avx512, Avx512Bf16};
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    struct Dot {
        _proof: Avx512Bf16,
    }

    pub(super) fn run<T: To>(proof: Avx512Bf16, panel: &Panel<'_, T>) {
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
        fn run<T: To>(proof: Avx512Bf16, panel: &Panel<'_, T>) {
            panel.run(proof.avx512(), Dot { _proof: proof }, 1);
        }
        // SAFETY: `proof` says that the CPU has these features.
        unsafe { run(proof, panel) }
    }

    impl Order<Avx512> for Dot {
        const ROWS: usize = 8;
        /// Two loads a cycle are all that there are, so many rows use a pair that is broadcast twice; few are bound by
        /// memory, and take it in order.
        const TWO_FROM: usize = 6;

        #[inline(always)]
        unsafe fn sums<const R: usize, const C: usize>(
            self,
            _: Avx512,
            lines: [*const u32; C],
            span: Span,
            x: *const u32,
            x_stride: usize,
        ) -> [[__m512; R]; C] {
            // SAFETY: `self` proves that the CPU has the instructions; addresses are within the lines and the rows, and
            // both types of a line are 64 bytes in which every bit pattern is valid.
            unsafe {
                let mut sums = [[_mm512_setzero_ps(); R]; C];
                for pair in 0..span.pairs {
                    let mut w = [_mm512_setzero_si512(); C];
                    for (w, line) in w.iter_mut().zip(lines) {
                        let line = line.add(pair * LINE);
                        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(AHEAD).cast());
                        *w = _mm512_loadu_si512(line.cast());
                    }
                    for row in 0..R {
                        let x = _mm512_set1_epi32(*x.add(row * x_stride + pair).cast::<i32>());
                        let x = std::mem::transmute::<__m512i, __m512bh>(x);
                        for (sums, w) in sums.iter_mut().zip(w) {
                            sums[row] = _mm512_dpbf16_ps(sums[row], std::mem::transmute::<__m512i, __m512bh>(w), x);
                        }
                    }
                }
                sums
            }
        }
    }
}
