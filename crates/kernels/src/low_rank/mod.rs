//! Low-rank adapters beside a model's matrices (LoRA: Hu et al., 2021), applied to some rows: `y + B (A x)`.
//!
//! ```text
//! A  [rank, in]     strips of 16 rows         one line for each pair of inputs, [16][2] bf16: 64 bytes
//! B  [out, rank]    strips of 16 rows, each with the lines of the inputs that its rows read only:
//!                   q q q q k v               [ . . ]
//!                   for q, k and v in one     [ . . ]     the rest is implicitly zero, and a strip
//!                   row, say                      [ . . ]     of zeros is omitted
//!                                                     [ . . ]
//! step    listed rows of x ─> A: every strip of every group ─> h, rounded ─> B: the same ─> added to out
//! ```
//! All rows of a step with low-rank adapters are computed together, in two fork-joins. The work is divided between
//! threads by lines, which determine bytes and multiplications, not by strips: with `q` and `v` only, the strips of `k`
//! are no work.
//!
//! Definition of a result: `h` is the bf16 product of `A` and `x`, `d` that of `B` and `h`, each in the order of an
//! [`AccumulationOrder`], over all of K; then `y + d`, rounded once. Zeros of `B` are skipped, which gives the same bits: the
//! sum begins as +0 and is never -0, so adding a product with zero does not change it, and a step of tiles with only
//! zeros adds +0. Steps are counted from the first of all inputs, not from the first that a strip reads. Nothing is added
//! to the outputs of a strip that reads nothing.

pub(crate) mod product;

use crate::accumulation_order::AccumulationOrder;
use crate::arch::native;
use crate::isa::{Isa, TilesProof};
use crate::mem::{Buffer, OutOfMemory};
use crate::pointwise::Shared;
use crate::quant::{SMALLEST_WEIGHT, round_to_bf16};
use crate::simd::{Kernel, LANES, Simd, round_bf16};
use crate::threads::{Pool, share};
use product::{Added, Inner, Panel, Rows};
use std::ops::Range;

/// Maximum rows that pass over some strips together, so that the strips are read from a far cache only once.
const PANEL_ROWS: usize = 48;
/// Length of a line in pairs, one for each row of a strip.
pub(crate) const LINE: usize = 16;

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

/// Source of a packing: exact f32 values, each requested once.
#[derive(Clone, Copy)]
pub struct LowRankSource<'a> {
    /// `a(inner, to)`: row `0..rank` of `A`, `[in_features]`.
    pub a: &'a dyn Fn(usize, &mut [f32]),
    /// `reads(output)`: the range of the `rank` elements of `A x` that an output depends on. Other weights are zero.
    pub reads: &'a dyn Fn(usize) -> Range<usize>,
    /// `b(output, to)`: the output's weights in this range, `[reads(output).len()]`.
    pub b: &'a dyn Fn(usize, &mut [f32]),
}

/// Two low-rank matrices in bf16, in the layout of this module.
pub struct LowRank {
    shape: LowRankShape,
    a: Strips,
    b: Strips,
}

/// A matrix in strips of 16 rows.
pub(crate) struct Strips {
    /// `[line][16]` pairs of bf16.
    pub(crate) pairs: Buffer<u32>,
    /// The strips with inputs, in order.
    pub(crate) spans: Vec<Span>,
}

/// A strip and its range of inputs, which is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Index of the strip's 16 rows.
    pub(crate) strip: usize,
    /// First input pair.
    pub(crate) first: usize,
    /// Number of input pairs.
    pub(crate) pairs: usize,
    /// First line.
    pub(crate) line: usize,
}

impl Span {
    /// The spans of all strips with inputs.
    fn of_strips(rows: usize, reads: &dyn Fn(usize) -> Range<usize>) -> impl Iterator<Item = Span> {
        let mut line = 0;
        (0..rows.div_ceil(LANES)).filter_map(move |strip| {
            let (mut first, mut end) = (usize::MAX, 0);
            for row in strip * LANES..rows.min((strip + 1) * LANES) {
                let read = reads(row);
                if !read.is_empty() {
                    (first, end) = (first.min(read.start / 2), end.max(read.end.div_ceil(2)));
                }
            }
            let pairs = end.checked_sub(first)?;
            let span = Span { strip, first, pairs, line };
            line += pairs;
            Some(span)
        })
    }

    /// Its rows of the matrix, including padding.
    fn rows(self) -> Range<usize> {
        self.strip * LANES..(self.strip + 1) * LANES
    }

    /// End of its input pairs.
    fn end(self) -> usize {
        self.first + self.pairs
    }
}

impl Strips {
    fn pack(
        rows: usize,
        reads: &dyn Fn(usize) -> Range<usize>,
        row: &dyn Fn(usize, &mut [f32]),
    ) -> Result<Strips, OutOfMemory> {
        let spans: Vec<Span> = Span::of_strips(rows, reads).collect();
        let mut pairs = Buffer::<u32>::zeroed(lines(&spans) * LINE)?;
        let mut weights = Vec::new();
        for span in &spans {
            for (lane, index) in span.rows().take_while(|&index| index < rows).enumerate() {
                let read = reads(index);
                weights.clear();
                weights.resize(read.len(), 0.0);
                row(index, &mut weights);
                for (k, &weight) in read.zip(&weights) {
                    let bits = round_to_bf16(weight, SMALLEST_WEIGHT).to_bits() >> 16;
                    pairs[(span.line + k / 2 - span.first) * LINE + lane] |= bits << (k % 2 * 16);
                }
            }
        }
        Ok(Strips { pairs, spans })
    }

    /// One weight: a strip's row and one of its inputs.
    fn at(&self, span: Span, lane: usize, k: usize) -> f32 {
        let pair = self.pairs[(span.line + k / 2 - span.first) * LINE + lane];
        f32::from_bits(if k.is_multiple_of(2) { pair << 16 } else { pair & 0xffff_0000 })
    }

    /// The definition: `put(row, sum)` for each row of some strips, the sum over `x`, which is already rounded.
    #[inline(always)]
    fn dots(
        &self,
        arithmetic: AccumulationOrder,
        spans: Range<usize>,
        x: impl Fn(usize) -> f32,
        mut put: impl FnMut(usize, f32),
    ) {
        let x = &x;
        for &span in &self.spans[spans] {
            let (read, begin) =
                (2 * span.first..2 * span.end(), 2 * span.first / AccumulationOrder::STEP * AccumulationOrder::STEP);
            let read = &read;
            let inside =
                |k: usize, of: &dyn Fn(usize) -> f32| if read.contains(&(begin + k)) { of(begin + k) } else { 0.0 };
            for (lane, row) in span.rows().enumerate() {
                let weight = |k: usize| self.at(span, lane, k);
                put(row, arithmetic.dot(read.end - begin, |k| inside(k, x), |k| inside(k, &weight)));
            }
        }
    }

    /// The strips whose first line is in this range. Ranges that cover all lines select each strip exactly once, with
    /// about as many lines as the range.
    fn that_begin(&self, lines: Range<usize>) -> Range<usize> {
        let before = |line: usize| self.spans.partition_point(|span| span.line < line);
        before(lines.start)..before(lines.end)
    }

    /// Input pairs that a row must have for some strips.
    fn width(&self, spans: Range<usize>) -> usize {
        self.spans[spans].iter().map(|span| span.end()).max().unwrap_or(0)
    }
}

/// Number of lines of strips.
fn lines(spans: &[Span]) -> usize {
    spans.last().map_or(0, |last| last.line + last.pairs)
}

impl LowRank {
    /// Rounds to bf16 and packs, on the calling thread.
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

    /// Dimensions of the two matrices.
    pub fn shape(&self) -> LowRankShape {
        self.shape
    }

    /// Both matrices for another device: of each the strips that have inputs, `[strip, first pair, pairs, first line]`, and
    /// its lines, `[line][16]` pairs of bf16.
    pub fn strips(&self) -> [(Vec<[u32; 4]>, &[u32]); 2] {
        let number =
            |&Span { strip, first, pairs, line }: &Span| [strip, first, pairs, line].map(|number| number as u32);
        [&self.a, &self.b].map(|strips| (strips.spans.iter().map(number).collect(), &strips.pairs[..]))
    }

    /// Size in bytes, which a step reads if any row uses it.
    pub fn bytes(&self) -> usize {
        self.a.pairs.bytes() + self.b.pairs.bytes()
    }

    /// [`LowRank::bytes`] for matrices of a shape; `None` on overflow.
    pub fn bytes_of(shape: LowRankShape, reads: &dyn Fn(usize) -> Range<usize>) -> Option<usize> {
        let LowRankShape { in_features, rank, out_features } = shape;
        let a = rank.div_ceil(LANES).checked_mul(in_features.div_ceil(2))?;
        let b = Span::of_strips(out_features, reads).try_fold(0usize, |lines, span| lines.checked_add(span.pairs))?;
        a.checked_add(b)?.checked_mul(LINE * size_of::<u32>())
    }

    /// The definition for one row.
    fn define_row(&self, arithmetic: AccumulationOrder, x: &[f32], row: usize, out: &mut [f32]) {
        let LowRankShape { in_features, rank, out_features } = self.shape;
        let x = &x[row * in_features..][..in_features];
        let x = |k: usize| x.get(k).map_or(0.0, |&x| round_bf16(x));
        let (a, b) = (&self.a, &self.b);
        let mut h = vec![0.0; rank.next_multiple_of(LANES)];
        a.dots(arithmetic, 0..a.spans.len(), x, |inner, sum| h[inner] = round_bf16(sum));
        let out = &mut out[row * out_features..][..out_features];
        b.dots(
            arithmetic,
            0..b.spans.len(),
            |k| h[k],
            |column, sum| {
                if let Some(out) = out.get_mut(column) {
                    *out += sum;
                }
            },
        );
    }
}

/// Low-rank matrices and the indices of the rows that use them. No row is in two groups, or twice in one.
pub type Group<'a, L> = (&'a L, &'a [u32]);

/// The definition: `out[row] += B (A x[row])` for the rows of each group. Rows of `x` and `out` are contiguous, with the
/// widths of the shapes.
pub(crate) fn define<'a>(
    arithmetic: AccumulationOrder,
    x: &[f32],
    groups: impl Iterator<Item = Group<'a, LowRank>>,
    out: &mut [f32],
) {
    for (low_rank, rows) in groups {
        rows.iter().for_each(|&row| low_rank.define_row(arithmetic, x, row as usize, out));
    }
}

/// Scratch for the rows of a step; it only grows.
#[derive(Default)]
pub(crate) struct Scratch {
    /// `A x` of the listed rows, group after group, in a [`Format`].
    h: Buffer<u32>,
    /// One bit per row: whether a group lists it.
    seen: Buffer<u64>,
}

/// Threads, instructions and accumulation order of a call.
#[derive(Clone, Copy)]
pub(crate) struct ComputeContext<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) arithmetic: AccumulationOrder,
    /// The matrix unit, if it is available for the order of tiles.
    pub(crate) tiles: Option<TilesProof>,
}

/// As [`define`]. Allocates only where `scratch` must grow.
pub(crate) fn add<'a>(
    context: ComputeContext<'_>,
    scratch: &mut Scratch,
    x: &[f32],
    groups: impl Iterator<Item = Group<'a, LowRank>> + Clone + Sync,
    out: &mut [f32],
) {
    let Some(LowRankShape { in_features, out_features, .. }) = groups.clone().next().map(|(first, _)| first.shape)
    else {
        return;
    };
    let format = Format::of(context);
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
    each_part(context.pool, &groups, |low_rank| &low_rank.a, &|Part { matrix, first, listed, rows, spans }| {
        let from = Rows::Listed { x, width: in_features, first, listed };
        Panel { matrix, from, rows, spans, to: Inner { h: &h, stride, format } }.compute(context);
    });
    // SAFETY: the fork-join that wrote it has ended, and nothing writes it any more.
    let from = Rows::Ready { rows: unsafe { h.part(0..h.len()) }, stride };
    each_part(context.pool, &groups, |low_rank| &low_rank.b, &|Part { matrix, first, listed, rows, spans }| {
        let to = Added { out: &out, width: out_features, first, listed };
        Panel { matrix, from, rows, spans, to }.compute(context);
    });
}

/// Some rows of a group and some strips of one of its matrices.
struct Part<'a> {
    matrix: &'a Strips,
    /// The group's rows; `first` is the scratch index of the first.
    listed: &'a [u32],
    first: usize,
    /// Scratch indices of the rows.
    rows: Range<usize>,
    /// Not empty.
    spans: Range<usize>,
}

/// Calls `f` for every row and strip of every group, on all threads, with about the same number of lines each.
fn each_part<'a>(
    pool: &Pool,
    groups: &(impl Iterator<Item = Group<'a, LowRank>> + Clone + Sync),
    matrix: impl Fn(&LowRank) -> &Strips + Sync,
    f: &(dyn Fn(Part<'a>) + Sync),
) {
    let panels = |rows: &[u32]| rows.len().div_ceil(PANEL_ROWS);
    let count = groups.clone().map(|(low_rank, rows)| panels(rows) * lines(&matrix(low_rank).spans)).sum();
    pool.shares(count, &|part| {
        let (mut at, mut first) = (0, 0);
        for (low_rank, listed) in groups.clone() {
            let (panels, matrix) = (panels(listed), matrix(low_rank));
            for panel in 0..panels {
                let end = at + lines(&matrix.spans);
                let own = part.start.clamp(at, end) - at..part.end.clamp(at, end) - at;
                let spans = matrix.that_begin(own);
                if !spans.is_empty() {
                    let rows = share(listed.len(), panels, panel);
                    f(Part { matrix, listed, first, rows: first + rows.start..first + rows.end, spans });
                }
                at = end;
            }
            first += listed.len();
        }
    });
}

/// Format of a product's input rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Pairs of bf16: for `vdpbf16ps` and tiles.
    Pairs,
    /// bf16 values as f32: for fused multiply-add.
    Wide,
}

impl Format {
    fn of(context: ComputeContext<'_>) -> Format {
        match context.arithmetic {
            AccumulationOrder::Vdpbf16 if native::narrow(context.isa).is_some() => Format::Pairs,
            AccumulationOrder::Amx if context.tiles.is_some() => Format::Pairs,
            _ => Format::Wide,
        }
    }

    /// 4-byte units per pair.
    fn unit(self) -> usize {
        if self == Format::Pairs { 1 } else { 2 }
    }

    /// Row stride in units for a width. Not a multiple of 2 KiB, since rows at such a distance share a few cache sets; so
    /// it is not monotonic in the width.
    fn stride(self, width: usize) -> usize {
        let units = width.div_ceil(2) * self.unit();
        if units.is_multiple_of(512) { units + 16 } else { units }
    }
}

/// Conversion of a row to a format.
struct Convert<'a> {
    x: &'a [f32],
    to: &'a mut [u32],
    format: Format,
}

impl Convert<'_> {
    /// Converts from element `from` on, which is even.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of the three parts of fused projections, not all 0: any subset of them, at small and large ranks, and with
    /// ranks for which the widths of rows are multiples of 1,024 and a little more.
    fn ranks() -> Vec<[usize; 3]> {
        let mut all = Vec::new();
        for ranks in [[1; 3], [2; 3], [4; 3], [5, 3, 1], [8; 3], [16; 3], [24; 3], [64; 3], [512; 3], [512, 512, 16]] {
            let subsets = (1..8).map(|subset: usize| [0, 1, 2].map(|part| ranks[part] * (subset >> part & 1)));
            all.extend(subsets);
        }
        all.extend([[16, 512, 512], [512, 16, 512], [1, 511, 512], [512, 8, 8], [1024, 1, 15], [1024, 512, 512]]);
        all
    }

    /// `B` for parts of 256, 128 and 130 outputs, where a part begins within a strip, or for two parts alternately.
    fn matrices([q, k, v]: [usize; 3]) -> [LowRank; 2] {
        let apart = move |output: usize| match output {
            0..256 => 0..q,
            256..384 => q..q + k,
            _ => q + k..q + k + v,
        };
        let turns = move |output: usize| if (output / LANES).is_multiple_of(2) { 0..q } else { q..q + k + v };
        let pack = |reads: &dyn Fn(usize) -> Range<usize>| {
            let shape = LowRankShape { in_features: 40, rank: q + k + v, out_features: 514 };
            let fill = |row: usize, to: &mut [f32]| to.fill(row as f32);
            LowRank::pack(shape, LowRankSource { a: &fill, reads, b: &fill }).unwrap()
        };
        [pack(&apart), pack(&turns)]
    }

    /// Holds on every instruction set: a row between the matrices, in either format, is as wide as any subset of the strips
    /// of `B` reads.
    #[test]
    fn any_part_of_the_strips_reads_what_a_row_has() {
        for ranks in ranks() {
            for LowRank { shape, a, b } in matrices(ranks) {
                for format in [Format::Pairs, Format::Wide] {
                    let (row, x) =
                        (format.stride(shape.rank.next_multiple_of(LANES)), format.stride(shape.in_features));
                    for (strips, stride) in [(&a, x), (&b, row)] {
                        for end in 0..=strips.spans.len() {
                            for first in 0..=end {
                                let width = strips.width(first..end) * format.unit();
                                assert!(width <= stride, "{ranks:?}, {format:?}, {first}..{end}: {width} of {stride}");
                            }
                        }
                    }
                }
            }
        }
    }

    /// Every strip with inputs belongs to one thread, and threads have the same number of lines, give or take a strip.
    #[test]
    fn threads_share_lines() {
        for ranks in ranks() {
            for LowRank { a, b, .. } in matrices(ranks) {
                for strips in [&a, &b] {
                    let all = lines(&strips.spans);
                    assert!(strips.spans.iter().all(|span| span.pairs > 0), "{ranks:?}: an empty strip");
                    let largest = strips.spans.iter().map(|span| span.pairs).max().unwrap();
                    for threads in 1..=9 {
                        let mut next = 0;
                        for thread in 0..threads {
                            let spans = strips.that_begin(share(all, threads, thread));
                            assert_eq!(spans.start, next, "{ranks:?}: thread {thread} of {threads}");
                            next = spans.end;
                            let own: usize = strips.spans[spans].iter().map(|span| span.pairs).sum();
                            let fair = all / threads;
                            assert!(
                                own + largest > fair && own <= fair + largest,
                                "{ranks:?}: {own} of {all} lines for thread {thread} of {threads}"
                            );
                        }
                        assert_eq!(next, strips.spans.len(), "{ranks:?}: {threads} threads");
                    }
                }
            }
        }
    }
}
