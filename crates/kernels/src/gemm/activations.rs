//! Activations converted to a kernel's format, in memory that only grows.

use super::{Format, Path, tiles};
use crate::mem::Buffer;
use crate::quant::{
    Digits, GROUP, INT8_GROUP, Outlier, PAIR, PEAK_LANES, PLANES, QUAD, QuantLoops, SMALLEST_ACTIVATION, max_outliers,
    power, quantize_by, round_to_bf16,
};
use crate::threads::{Pool, share};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rows times width from which conversion is worth a separate fork-join.
const PARALLEL_FROM: usize = 16_384;

/// Memory for converted activations: as large as the largest call so far.
#[derive(Default)]
pub(crate) struct Scratch {
    rows: Buffer<u8>,
    scales: Buffer<f32>,
    /// `[rows][PLANES][max_outliers]`.
    outliers: Buffer<Outlier>,
    /// Lengths of the lists, `[rows][PLANES]`.
    counts: Buffer<u32>,
    /// By thread: the largest magnitude of each quad of a row.
    peaks: Buffer<u16>,
    /// By thread: a row of which inputs are multiplied.
    shifted: Buffer<f32>,
    /// Rows of heads, head by head, as they were.
    pub(super) heads: Buffer<f32>,
}

#[derive(Clone, Copy)]
pub(crate) struct Activations<'a> {
    bytes: &'a [u8],
    stride: usize,
    /// Whether rows have scales and outlier lists.
    scaled: bool,
    scales: &'a [f32],
    outliers: &'a [Outlier],
    counts: &'a [u32],
    /// Capacity of each list.
    capacity: usize,
    /// Number of the conversion, for tiles.
    conversion: u64,
}

/// What differs for different activations.
pub(crate) type ActivationsId = (u64, usize);

impl Activations<'_> {
    /// Those of no other conversion for tiles, and no other part of it, have the same.
    pub(crate) fn id(&self) -> ActivationsId {
        (self.conversion, self.bytes.as_ptr().addr())
    }

    /// Those of some rows.
    pub(crate) fn part(&self, rows: Range<usize>) -> Self {
        let scaled = if self.scaled { rows.clone() } else { 0..0 };
        let lists = PLANES * self.capacity;
        Activations {
            // The rows behind a part are its padding for tiles.
            bytes: &self.bytes[rows.start * self.stride..],
            scales: &self.scales[scaled.clone()],
            outliers: &self.outliers[scaled.start * lists..scaled.end * lists],
            counts: &self.counts[scaled.start * PLANES..scaled.end * PLANES],
            ..*self
        }
    }

    /// Address of a row.
    pub(crate) fn row(&self, row: usize) -> *const u8 {
        self.bytes[row * self.stride..].as_ptr()
    }

    /// Row stride in bytes: a multiple of 8, so that the corrections behind the elements are aligned.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Row scales; empty unless activations are int8.
    pub(crate) fn scales(&self, first: usize, count: usize) -> &[f32] {
        if self.scaled { &self.scales[first..first + count] } else { &[] }
    }

    /// The middle and high digits of some rows; empty unless activations are int8.
    pub(crate) fn lists(&self, first: usize, count: usize) -> Lists<'_> {
        let (outliers, counts) = match self.scaled {
            true => (
                &self.outliers[first * PLANES * self.capacity..],
                &self.counts[first * PLANES..(first + count) * PLANES],
            ),
            false => (self.outliers, self.counts),
        };
        Lists { outliers, counts, capacity: self.capacity }
    }
}

/// The middle (plane 0) and high (plane 1) digits of some rows.
#[derive(Clone, Copy)]
pub(crate) struct Lists<'a> {
    /// `[rows][PLANES][capacity]`.
    outliers: &'a [Outlier],
    /// `[rows][PLANES]`.
    counts: &'a [u32],
    capacity: usize,
}

impl<'a> Lists<'a> {
    /// Lists of no row.
    pub(crate) const NONE: Lists<'static> = Lists { outliers: &[], counts: &[], capacity: 0 };

    /// As [`Activations::lists`] are.
    pub(crate) fn new(outliers: &'a [Outlier], counts: &'a [u32], capacity: usize) -> Lists<'a> {
        Lists { outliers, counts, capacity }
    }

    #[inline(always)]
    pub(crate) fn rows(&self) -> usize {
        self.counts.len() / PLANES
    }

    /// Of each list.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether no row has any.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    #[inline(always)]
    pub(crate) fn of(&self, row: usize, plane: usize) -> &'a [Outlier] {
        let list = row * PLANES + plane;
        &self.outliers[list * self.capacity..][..self.counts[list] as usize]
    }

    /// Number of non-empty lists of a row.
    #[inline(always)]
    pub(crate) fn planes(&self, row: usize) -> usize {
        self.counts[row * PLANES..][..PLANES].iter().take_while(|count| **count > 0).count()
    }
}

/// Input rows and the destinations of their conversion.
pub(crate) struct PrepareRows<'a> {
    format: Format,
    /// f32 `[rows, width]`.
    x: &'a [f32],
    /// Of the powers of two of the inputs, or empty.
    exponents: &'a [u8],
    width: usize,
    /// `[rows][stride]`.
    bytes: *mut u8,
    stride: usize,
    /// `[rows]`, if activations are int8.
    scales: *mut f32,
    /// `[rows][PLANES][max_outliers]`, if activations are int8.
    outliers: *mut Outlier,
    /// `[rows][PLANES]`, if activations are int8.
    counts: *mut u32,
    /// Scratch of this thread, one element per quad of a row.
    peaks: *mut u16,
    /// Scratch of this thread, `[width]`, if activations are int8.
    shifted: *mut f32,
}

/// The same destinations, shared by threads that convert different rows.
struct Pointers(*mut u8, *mut f32, *mut Outlier, *mut u32, *mut u16, *mut f32);
// SAFETY: `Scratch::prepare` hands every number to exactly one thread.
unsafe impl Sync for Pointers {}

impl Scratch {
    /// Converts rows of `width` elements. `exponents(row)`: those that the row's matrix has for its inputs. Panics when
    /// memory is exhausted (possible only on the largest call yet).
    pub(crate) fn prepare<'e>(
        &mut self,
        pool: &Pool,
        path: Path,
        format: Format,
        (x, exponents): (&[f32], &(dyn Fn(usize) -> &'e [u8] + Sync)),
        width: usize,
    ) -> Activations<'_> {
        let rows = x.len() / width;
        let stride = stride(format, width);
        let scaled_rows = if format.is_int8() { rows } else { 0 };
        let padded = rows + format.padding();
        self.rows.reserve(padded * stride).expect("memory for the activations of one matrix product");
        self.scales.reserve(scaled_rows).expect("memory for row scales");
        let list = max_outliers(width);
        self.outliers.reserve(scaled_rows * PLANES * list).expect("memory for outliers");
        self.counts.reserve(scaled_rows * PLANES).expect("memory for counts of outliers");
        let quads = if scaled_rows > 0 { width.div_ceil(QUAD).next_multiple_of(PEAK_LANES) } else { 0 };
        self.peaks.reserve(pool.threads() * quads).expect("memory for the peaks of a row of each part");
        let shifted = if scaled_rows > 0 { width } else { 0 };
        self.shifted.reserve(pool.threads() * shifted).expect("memory for a row of each part");
        let to = Pointers(
            self.rows.as_mut_ptr(),
            self.scales.as_mut_ptr(),
            self.outliers.as_mut_ptr(),
            self.counts.as_mut_ptr(),
            self.peaks.as_mut_ptr(),
            self.shifted.as_mut_ptr(),
        );
        let to = &to;
        // Columns are all of a row, but for bf16, where the last ones are followed by the padding.
        let convert = |part: usize, rows: Range<usize>, columns: Range<usize>| {
            let skipped = columns.start * size_of::<u16>();
            let stride_of_part = if columns.end == width { stride - skipped } else { columns.len() * size_of::<u16>() };
            for row in rows {
                let (at, exponents) = (if scaled_rows > 0 { row } else { 0 }, exponents(row));
                let x = &x[row * width..][columns.clone()];
                // SAFETY: the buffers hold `rows` rows, each part covers numbers of its own, and has scratch of its
                // own.
                unsafe {
                    let (bytes, scales) = (to.0.add(row * stride + skipped), to.1.add(at));
                    let (outliers, counts) = (to.2.add(at * PLANES * list), to.3.add(at * PLANES));
                    let (peaks, shifted) = (to.4.add(part * quads), to.5.add(part * shifted));
                    path.prepare(PrepareRows {
                        format,
                        x,
                        exponents,
                        width: x.len(),
                        bytes,
                        stride: stride_of_part,
                        scales,
                        outliers,
                        counts,
                        peaks,
                        shifted,
                    });
                }
            }
        };
        if rows == 1 || x.len() < PARALLEL_FROM {
            convert(0, 0..rows, 0..width);
        } else if format == Format::TileBf16 {
            // A gate's results are in the cache of the thread whose cell they are: 16 columns for each pair.
            let columns = |pairs: Range<usize>| pairs.start * PAIR / 2..(pairs.end * PAIR / 2).min(width);
            tiles::spread(pool, rows, width.div_ceil(PAIR / 2), &|rows, pairs| convert(0, rows, columns(pairs)));
        } else {
            // One part per thread, claimed by any.
            let parts = pool.threads();
            pool.tasks(parts, &|part| convert(part, share(rows, parts, part), 0..width));
        }
        Activations {
            bytes: &self.rows[..padded * stride],
            stride,
            scaled: format.is_int8(),
            scales: &self.scales[..scaled_rows],
            outliers: &self.outliers[..scaled_rows * PLANES * list],
            counts: &self.counts[..scaled_rows * PLANES],
            capacity: list,
            conversion: if format.padding() > 0 { CONVERSIONS.fetch_add(1, Relaxed) } else { 0 },
        }
    }
}

/// Conversions for tiles so far, from 1.
static CONVERSIONS: AtomicU64 = AtomicU64::new(1);

/// Bytes of a converted row: a multiple of 8. Not a multiple of 2048, since rows at such a distance share a few cache
/// sets.
fn stride(format: Format, width: usize) -> usize {
    let bytes = match format {
        Format::TileInt8 => return odd_lines(width.next_multiple_of(64)),
        Format::TileBf16 => return odd_lines(width.next_multiple_of(32) * 2),
        Format::Int8 => width.next_multiple_of(64) + (width.div_ceil(INT8_GROUP) * 4).next_multiple_of(64),
        Format::Int8Grouped => width.next_multiple_of(64) / GROUP * (GROUP + 4),
        Format::Int8By32 => width.next_multiple_of(64) / 32 * (32 + 4),
        Format::Int8By16 => width.next_multiple_of(64) / 16 * (16 + 4),
        Format::Bf16 => width.next_multiple_of(32) * 2,
        Format::Wide => width.next_multiple_of(32) * 4,
    };
    if bytes.is_multiple_of(2048) { bytes + 64 } else { bytes }
}

/// Bytes of an odd number of cache lines: rows of a tile at such a distance are in different cache sets.
fn odd_lines(bytes: usize) -> usize {
    ((bytes / 64) | 1) * 64
}

/// The conversion, inlined into a function of each instruction set, with its loops.
///
/// # Safety
/// The pointers cover the rows of `x`, and no other thread accesses them.
#[inline(always)]
pub(crate) unsafe fn prepare(rows: PrepareRows<'_>, loops: impl QuantLoops) {
    for (row, x) in rows.x.chunks_exact(rows.width).enumerate() {
        // SAFETY: row `row` of each array is there and is this caller's.
        unsafe {
            let bytes = rows.bytes.add(row * rows.stride);
            match rows.format {
                Format::Int8 => correct::<INT8_GROUP>(quantize_into(&rows, loops, row, x), x.len()),
                Format::Int8By32 => correct::<32>(quantize_into(&rows, loops, row, x), x.len()),
                Format::Int8By16 => correct::<16>(quantize_into(&rows, loops, row, x), x.len()),
                Format::Int8Grouped => {
                    let (q, corrections) = quantize_into(&rows, loops, row, x);
                    let q = std::slice::from_raw_parts(q, x.len().next_multiple_of(64));
                    for (group, q) in q.as_chunks::<GROUP>().0.iter().enumerate() {
                        let sum: i16 = q.iter().map(|&q| i16::from(q)).sum();
                        *corrections.add(group) = u32::from((-8 * sum) as u16);
                    }
                }
                Format::TileInt8 => drop(quantize_into(&rows, loops, row, x)),
                Format::Bf16 | Format::TileBf16 => {
                    let to = std::slice::from_raw_parts_mut(bytes.cast::<u16>(), rows.stride / 2);
                    to[x.len()..].fill(0);
                    for (to, &x) in to.iter_mut().zip(x) {
                        *to = (round_to_bf16(x, SMALLEST_ACTIVATION).to_bits() >> 16) as u16;
                    }
                }
                Format::Wide => {
                    let to = std::slice::from_raw_parts_mut(bytes.cast::<f32>(), rows.stride / 4);
                    to[x.len()..].fill(0.0);
                    for (to, &x) in to.iter_mut().zip(x) {
                        *to = round_to_bf16(x, SMALLEST_ACTIVATION);
                    }
                }
            }
        }
    }
}

/// Writes -128 times the sum of each group behind the low digits.
///
/// # Safety
/// The pointers are those of [`quantize_into`], and the format has room.
#[inline(always)]
unsafe fn correct<const GROUP: usize>((q, corrections): (*const i8, *mut u32), len: usize) {
    // SAFETY: the caller's promise.
    let q = unsafe { std::slice::from_raw_parts(q, len.next_multiple_of(64)) };
    for (group, q) in q.chunks(GROUP).enumerate() {
        let mut sum = 0i32;
        for &q in q {
            sum += i32::from(q);
        }
        // SAFETY: the caller's promise.
        unsafe { *corrections.add(group) = (-128 * sum) as u32 };
    }
}

/// Digits, scale and outliers of one row; returns its low digits and where the corrections of its groups go.
///
/// # Safety
/// As for [`prepare`].
#[inline(always)]
unsafe fn quantize_into(
    rows: &PrepareRows<'_>,
    loops: impl QuantLoops,
    row: usize,
    x: &[f32],
) -> (*const i8, *mut u32) {
    let (padded, list) = (x.len().next_multiple_of(64), max_outliers(x.len()));
    let x = if rows.exponents.is_empty() {
        x
    } else {
        // SAFETY: the scratch is as wide as a row and is this caller's.
        let shifted = unsafe { std::slice::from_raw_parts_mut(rows.shifted, x.len()) };
        for ((to, x), exponent) in shifted.iter_mut().zip(x).zip(rows.exponents) {
            *to = x * power(*exponent);
        }
        shifted
    };
    // SAFETY: row `row` of each array is there and is this caller's, and so is the scratch.
    unsafe {
        let bytes = rows.bytes.add(row * rows.stride);
        let low = std::slice::from_raw_parts_mut(bytes.cast::<i8>(), padded);
        let outliers =
            [0, 1].map(|plane| std::slice::from_raw_parts_mut(rows.outliers.add((row * PLANES + plane) * list), list));
        let peaks = std::slice::from_raw_parts_mut(rows.peaks, x.len().div_ceil(QUAD).next_multiple_of(PEAK_LANES));
        let (scale, counts) = quantize_by(loops, x, Digits { low, outliers, peaks });
        *rows.scales.add(row) = scale;
        for (plane, count) in counts.into_iter().enumerate() {
            *rows.counts.add(row * PLANES + plane) = count as u32;
        }
        (bytes.cast_const().cast(), bytes.add(padded).cast())
    }
}
