//! Low-rank matrices beside those of a model (LoRA: Hu et al., 2021), through which some rows go: `y + B (A x)`.
//!
//! ```text
//! A  [rank, in]     strips of 16 rows         one line for each pair of inputs, [16][2] bf16: 64 bytes
//! B  [out, rank]    strips of 16 rows, each with the lines of the inputs that its rows read, and no others:
//!                   q q q q k v               [ . . ]
//!                   of q, k and v in one      [ . . ]     the rest would be zeros
//!                   row, say                      [ . . ]
//!                                                     [ . . ]
//! step    the listed rows of x ─> A: every strip of every group ─> h, rounded ─> B: the same ─> added to out
//! ```
//! All rows of a step that go through some low-rank matrices are computed together, in two fork-joins.
//!
//! What a result is: `h` is the bf16 product of `A` and `x`, `d` that of `B` and `h`, each in the order of an
//! [`Arithmetic`], over all of K; then `y + d`, rounded once. Where `B` has zeros nothing is computed, which is the
//! same: the sum begins as +0 and is never -0, so a product with zero leaves it as it is, and where a step of tiles has
//! nothing but zeros it adds +0. Steps are counted from the first of all inputs, not from the first that a strip reads.

#[cfg(target_arch = "x86_64")]
mod amx;
mod product;

use crate::arithmetic::Arithmetic;
use crate::isa::{Amx, Isa};
use crate::lanes::{Kernel, LANES, Simd, round_bf16};
use crate::mem::{Buffer, OutOfMemory};
use crate::pointwise::Shared;
use crate::quant::{SMALLEST_WEIGHT, round_to_bf16};
use crate::threads::{Pool, share};
use product::{Added, Inner, Panel, Rows};
use std::ops::Range;

/// Rows that pass over some strips together, at most: so the strips come from a near cache but once.
const PANEL_ROWS: usize = 48;
/// A line of 16 pairs, one for each row of a strip, in units of a pair.
const LINE: usize = 16;

/// Shape of a low-rank product `B (A x)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowRankShape {
    /// Width of `x`.
    pub in_features: usize,
    /// Width of `A x`.
    pub rank: usize,
    /// Width of the result.
    pub out_features: usize,
}

/// Where packing reads from: exact f32 numbers, each asked for once.
#[derive(Clone, Copy)]
pub struct LowRankSource<'a> {
    /// `a(inner, to)`: row `0..rank` of `A`, `[in_features]`.
    pub a: &'a dyn Fn(usize, &mut [f32]),
    /// `reads(output)`: which of the `rank` numbers of `A x` an output is a sum over. The others count as times zero.
    pub reads: &'a dyn Fn(usize) -> Range<usize>,
    /// `b(output, to)`: its weights of these, `[reads(output).len()]`.
    pub b: &'a dyn Fn(usize, &mut [f32]),
}

/// Two low-rank matrices in the layout of this module, in bf16.
pub struct LowRank {
    shape: LowRankShape,
    a: Strips,
    b: Strips,
}

/// A matrix in strips of 16 rows.
struct Strips {
    /// `[line][16]` pairs of bf16.
    pairs: Buffer<u32>,
    spans: Vec<Span>,
}

/// What a strip reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Its first pair of inputs.
    first: usize,
    /// How many pairs.
    pairs: usize,
    /// Where its lines begin.
    line: usize,
}

impl Span {
    /// Of strip after strip.
    fn of_strips(rows: usize, reads: &dyn Fn(usize) -> Range<usize>) -> impl Iterator<Item = Span> {
        let mut line = 0;
        (0..rows.div_ceil(LANES)).map(move |strip| {
            let (mut first, mut end) = (usize::MAX, 0);
            for row in strip * LANES..rows.min((strip + 1) * LANES) {
                let read = reads(row);
                if !read.is_empty() {
                    (first, end) = (first.min(read.start / 2), end.max(read.end.div_ceil(2)));
                }
            }
            let pairs = end.saturating_sub(first);
            let span = Span { first: first.min(end), pairs, line };
            line += pairs;
            span
        })
    }
}

impl Strips {
    fn pack(
        rows: usize,
        reads: &dyn Fn(usize) -> Range<usize>,
        row: &dyn Fn(usize, &mut [f32]),
    ) -> Result<Strips, OutOfMemory> {
        let spans: Vec<Span> = Span::of_strips(rows, reads).collect();
        let lines: usize = spans.iter().map(|span| span.pairs).sum();
        let mut pairs = Buffer::<u32>::zeroed(lines * LINE)?;
        let mut weights = Vec::new();
        for index in 0..rows {
            let (span, read) = (spans[index / LANES], reads(index));
            weights.clear();
            weights.resize(read.len(), 0.0);
            row(index, &mut weights);
            for (k, &weight) in read.zip(&weights) {
                let bits = round_to_bf16(weight, SMALLEST_WEIGHT).to_bits() >> 16;
                pairs[(span.line + k / 2 - span.first) * LINE + index % LANES] |= bits << (k % 2 * 16);
            }
        }
        Ok(Strips { pairs, spans })
    }

    /// One weight: of a row and one of its strip's inputs.
    fn at(&self, row: usize, k: usize) -> f32 {
        let span = self.spans[row / LANES];
        let pair = self.pairs[(span.line + k / 2 - span.first) * LINE + row % LANES];
        f32::from_bits(if k.is_multiple_of(2) { pair << 16 } else { pair & 0xffff_0000 })
    }

    /// The definition: row `row` times `x`, which is rounded already.
    #[inline(always)]
    fn dot(&self, arithmetic: Arithmetic, row: usize, x: impl Fn(usize) -> f32) -> f32 {
        let Span { first, pairs, .. } = self.spans[row / LANES];
        let (read, begin) = (2 * first..2 * (first + pairs), 2 * first / Arithmetic::STEP * Arithmetic::STEP);
        let (x, read) = (&x, &read);
        let inside =
            |k: usize, of: &dyn Fn(usize) -> f32| if read.contains(&(begin + k)) { of(begin + k) } else { 0.0 };
        arithmetic.dot(read.end - begin, |k| inside(k, x), |k| inside(k, &|k| self.at(row, k)))
    }
}

impl LowRank {
    /// Rounds to bf16 and puts in order, on this thread. Fails where memory ends.
    pub fn pack(shape: LowRankShape, source: LowRankSource<'_>) -> Result<LowRank, OutOfMemory> {
        let LowRankShape { in_features, rank, out_features } = shape;
        assert!(in_features > 0 && rank > 0 && out_features > 0, "an empty matrix");
        let reads = |output: usize| {
            let read = (source.reads)(output);
            assert!(read.end <= rank, "output {output} reads {read:?} of {rank}");
            read
        };
        let a = Strips::pack(rank, &|_| 0..in_features, source.a)?;
        Ok(LowRank { shape, a, b: Strips::pack(out_features, &reads, source.b)? })
    }

    /// Shape.
    pub fn shape(&self) -> LowRankShape {
        self.shape
    }

    /// Bytes in memory, which a step reads that has rows for it.
    pub fn bytes(&self) -> usize {
        self.a.pairs.bytes() + self.b.pairs.bytes()
    }

    /// [`LowRank::bytes`] of matrices of a shape; `None` where that is absurd.
    pub fn bytes_of(shape: LowRankShape, reads: &dyn Fn(usize) -> Range<usize>) -> Option<usize> {
        let LowRankShape { in_features, rank, out_features } = shape;
        let a = rank.div_ceil(LANES).checked_mul(in_features.div_ceil(2))?;
        let b = Span::of_strips(out_features, reads).try_fold(0usize, |lines, span| lines.checked_add(span.pairs))?;
        a.checked_add(b)?.checked_mul(LINE * size_of::<u32>())
    }
}

/// Rows that go through the same low-rank matrices: these, and the rows' numbers. No row is in two groups, nor twice.
pub type Group<'a, L> = (&'a L, &'a [u32]);

/// The definition: `out[row] += B (A x[row])` for the rows of each group. Rows of `x` and `out` lie one behind the
/// other, as wide as the shapes say.
pub(crate) fn define<'a>(
    arithmetic: Arithmetic,
    x: &[f32],
    groups: impl Iterator<Item = Group<'a, LowRank>>,
    out: &mut [f32],
) {
    for (low_rank, rows) in groups {
        let LowRankShape { in_features, rank, out_features } = low_rank.shape;
        for &row in rows {
            let x = &x[row as usize * in_features..][..in_features];
            let x = |k: usize| x.get(k).map_or(0.0, |&x| round_bf16(x));
            let h: Vec<f32> = (0..rank).map(|inner| round_bf16(low_rank.a.dot(arithmetic, inner, x))).collect();
            let h = |k: usize| h.get(k).copied().unwrap_or(0.0);
            let out = &mut out[row as usize * out_features..][..out_features];
            out.iter_mut().enumerate().for_each(|(column, out)| *out += low_rank.b.dot(arithmetic, column, h));
        }
    }
}

/// Memory for the rows of a step, which grows to the largest so far.
#[derive(Default)]
pub(crate) struct Scratch {
    /// What `A` makes of the listed rows, group after group, in a [`Format`].
    h: Buffer<u32>,
    /// A bit for each row that is in a group.
    seen: Buffer<u64>,
}

/// What computes, and in which order it sums.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) arithmetic: Arithmetic,
    /// What sums in the order of tiles, if there is such an instruction.
    pub(crate) tiles: Option<Amx>,
}

/// As [`define`]. Allocates only where `scratch` must grow.
pub(crate) fn add<'a>(
    means: Means<'_>,
    scratch: &mut Scratch,
    x: &[f32],
    groups: impl Iterator<Item = Group<'a, LowRank>> + Clone + Sync,
    out: &mut [f32],
) {
    let Some(LowRankShape { in_features, out_features, .. }) = groups.clone().next().map(|(first, _)| first.shape)
    else {
        return;
    };
    let format = Format::of(means);
    let (mut stride, mut rows) = (0, 0);
    let most_rows = (x.len() / in_features).min(out.len() / out_features);
    let Scratch { h, seen } = scratch;
    seen.reserve(most_rows.div_ceil(64)).expect("memory for a bit of each row");
    seen.fill(0);
    for (LowRank { shape, .. }, listed) in groups.clone() {
        let LowRankShape { rank, .. } = *shape;
        assert_eq!(*shape, LowRankShape { in_features, rank, out_features }, "groups of other widths");
        (stride, rows) = (format.stride(rank.next_multiple_of(LANES)).max(stride), rows + listed.len());
        for &row in listed {
            assert!((row as usize) < most_rows, "row {row} of {most_rows}");
            let (word, bit) = (&mut seen[row as usize / 64], 1 << (row % 64));
            assert!(*word & bit == 0, "row {row} is listed twice");
            *word |= bit;
        }
    }
    h.reserve(rows * stride).expect("memory for the rows between two low-rank matrices");
    let (h, out) = (Shared::new(h), Shared::new(out));
    each_part(means.pool, &groups, |low_rank| &low_rank.a, &|Part { matrix, first, listed, rows, strips }| {
        let from = Rows::Listed { x, width: in_features, first, listed };
        product::run(means, Panel { matrix, from, rows, strips, to: Inner { h: &h, stride, format } });
    });
    // SAFETY: nobody writes it any more.
    let from = Rows::Ready { rows: unsafe { h.part(0..h.len()) }, stride };
    each_part(means.pool, &groups, |low_rank| &low_rank.b, &|Part { matrix, first, listed, rows, strips }| {
        let to = Added { out: &out, width: out_features, first, listed };
        product::run(means, Panel { matrix, from, rows, strips, to });
    });
}

/// Some rows of a group and some strips of one of its matrices.
struct Part<'a> {
    matrix: &'a Strips,
    /// The group's rows, and where the first is in scratch.
    listed: &'a [u32],
    first: usize,
    /// By their place in scratch.
    rows: Range<usize>,
    strips: Range<usize>,
}

/// Calls `f` for every row and strip of every group, on all threads.
fn each_part<'a>(
    pool: &Pool,
    groups: &(impl Iterator<Item = Group<'a, LowRank>> + Clone + Sync),
    matrix: impl Fn(&LowRank) -> &Strips + Sync,
    f: &(dyn Fn(Part<'a>) + Sync),
) {
    let panels = |rows: &[u32]| rows.len().div_ceil(PANEL_ROWS);
    let count = groups.clone().map(|(low_rank, rows)| panels(rows) * matrix(low_rank).spans.len()).sum();
    pool.shares(count, &|part| {
        let (mut at, mut first) = (0, 0);
        for (low_rank, listed) in groups.clone() {
            let (panels, matrix) = (panels(listed), matrix(low_rank));
            for panel in 0..panels {
                let own = part.start.max(at)..part.end.min(at + matrix.spans.len());
                if !own.is_empty() {
                    let rows = share(listed.len(), panels, panel);
                    let (rows, strips) = (first + rows.start..first + rows.end, own.start - at..own.end - at);
                    f(Part { matrix, listed, first, rows, strips });
                }
                at += matrix.spans.len();
            }
            first += listed.len();
        }
    });
}

/// How rows lie that a product reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Pairs of bf16: what `vdpbf16ps` and tiles take.
    Pairs,
    /// f32 that are bf16 values: what fused multiply-add takes.
    Wide,
}

impl Format {
    fn of(means: Means<'_>) -> Format {
        match means.arithmetic {
            Arithmetic::Pairs if means.isa.avx512_bf16().is_some() => Format::Pairs,
            Arithmetic::Tiles if means.tiles.is_some() => Format::Pairs,
            _ => Format::Wide,
        }
    }

    /// Units of four bytes of a pair.
    fn unit(self) -> usize {
        if self == Format::Pairs { 1 } else { 2 }
    }

    /// Units from a row of so many numbers to the next. Not a multiple of 2 KiB, since rows at such a distance share a
    /// few cache sets.
    fn stride(self, width: usize) -> usize {
        let units = width.div_ceil(2) * self.unit();
        if units.is_multiple_of(512) { units + 16 } else { units }
    }
}

/// A row in a format.
struct Convert<'a> {
    x: &'a [f32],
    to: &'a mut [u32],
    format: Format,
}

impl Convert<'_> {
    /// From number `from` on, which is even.
    #[inline(always)]
    fn each(self, from: usize) {
        let number = |k: usize| self.x.get(k).map_or(0, |&x| round_bf16(x).to_bits());
        match self.format {
            Format::Pairs => {
                for (pair, to) in self.to.iter_mut().enumerate().skip(from / 2) {
                    *to = number(2 * pair) >> 16 | number(2 * pair + 1);
                }
            }
            Format::Wide => self.to.iter_mut().enumerate().skip(from).for_each(|(k, to)| *to = number(k)),
        }
    }
}

impl Kernel for Convert<'_> {
    type Output = ();

    fn define(self) {
        self.each(0);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let lanes = self.x.as_chunks::<LANES>().0;
        for (at, x) in lanes.iter().enumerate() {
            // SAFETY: 16 numbers, and there is room for all that come before them and for these.
            unsafe {
                let rounded = s.round_bf16(s.load(x.as_ptr()));
                match self.format {
                    Format::Pairs => s.store_bf16(rounded, self.to[at * LANES / 2..][..LANES / 2].as_mut_ptr().cast()),
                    Format::Wide => s.store(rounded, self.to[at * LANES..][..LANES].as_mut_ptr().cast()),
                }
            }
        }
        let from = lanes.len() * LANES;
        self.each(from);
    }
}
