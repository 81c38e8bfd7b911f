//! What products with tiles have of their own: how rows and columns are cut for threads, and where results go.
//!
//! ```text
//! thread    0        1        2        3          rows x columns of a thread: its cell, the same in every call, so that
//! cell      rows 0 x columns 0   rows 0 x columns 1 ..    it finds weights, rows and result lines in its own cache
//! ```
//! A thread that computes `m` rows of `n` columns reads `m + n` rows and columns of K for `m * n` products, so a
//! square cell reads least. On several memory nodes columns are cut by node first, as weights are placed.

use super::{PAIR, Product, Then};
use crate::pointwise;
use crate::threads::{Pool, share};
use std::ops::Range;

/// Rows that tiles compute at once.
pub(super) const BLOCK_ROWS: usize = 32;

/// Bytes per cycle that a core reads from a cache shared by all cores, all reading. (Published, and measured on Emerald
/// Rapids: 275 GB/s on 16 cores of 2.8 GHz. `doctor` measures it as the cache's bandwidth.)
const SHARED_CACHE: usize = 6;
/// Multiply-adds of a row and a column per cycle and byte of K: a tile product is 16 x 16 of 64 bytes in 16 cycles.
const PRODUCTS: usize = 1024;

/// Cuts `rows` x `columns`, in units of 32, for threads: the numbers of parts of rows and of columns. The least time of
/// the largest cell, computed or read; the most parts of columns if equal, since weights come from memory.
fn cut(threads: usize, rows: usize, columns: usize) -> (usize, usize) {
    let cost = |parts: usize| {
        let (m, n) = (rows.div_ceil(parts) * 32, columns.div_ceil(threads / parts) * 32);
        (m * n * SHARED_CACHE).max((m + n) * PRODUCTS)
    };
    let parts = (1..=threads.min(rows)).filter(|parts| threads.is_multiple_of(*parts)).min_by_key(|&parts| cost(parts));
    let parts = parts.unwrap_or(1);
    (parts, threads / parts)
}

/// The cell of a thread: blocks of rows, and pairs.
fn cell(pool: &Pool, thread: usize, blocks: usize, pairs: usize) -> (Range<usize>, Range<usize>) {
    let nodes = pool.nodes();
    let node = nodes.of_thread(thread);
    let (threads, columns) = (nodes.threads_of(node), nodes.part(pairs, node));
    let (row_parts, column_parts) = cut(threads.len(), blocks, columns.len());
    let index = thread - threads.start;
    let of = share(columns.len(), column_parts, index % column_parts);
    (share(blocks, row_parts, index / column_parts), columns.start + of.start..columns.start + of.end)
}

/// Calls `f` for rows x pairs that cover all, on the thread of their cell; the last eighth of a cell's pairs, and the
/// cells of absent threads, on any free one. Results must not depend on the assignment.
pub(super) fn spread(pool: &Pool, rows: usize, pairs: usize, f: &(dyn Fn(Range<usize>, Range<usize>) + Sync)) {
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let cells = |thread: usize| cell(pool, thread, blocks, pairs);
    let longest = (0..pool.threads()).map(|thread| cells(thread).1.len()).max().unwrap_or(0);
    // The pairs of each cell are numbered from a multiple of `longest`, so a thread's share is its cell.
    pool.shares(pool.threads() * longest, &|range| {
        for thread in range.start / longest..range.end.div_ceil(longest) {
            let (blocks, pairs) = cells(thread);
            let at = |number: usize| (pairs.start + number.saturating_sub(thread * longest)).min(pairs.end);
            let part = at(range.start)..at(range.end);
            let rows = blocks.start * BLOCK_ROWS..(blocks.end * BLOCK_ROWS).min(rows);
            if !part.is_empty() && !rows.is_empty() {
                f(rows, part);
            }
        }
    });
}

/// Where the results of some rows and a pair of strips go, and what is applied to their sums.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    /// First result.
    pub(crate) out: *mut f32,
    /// Row stride.
    pub(crate) width: usize,
    /// 32, fewer at the edge.
    pub(crate) columns: usize,
    /// Int8 and int4: `[columns]`.
    pub(crate) column_scales: &'a [f32],
    /// `[columns]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether results are added to what is there.
    pub(crate) add: bool,
    /// Whether they are written past the caches.
    pub(crate) streams: bool,
}

impl Product<'_> {
    /// The destination of rows `first..`. Gate and up, of which [`Product::gate`] makes results, go to `ungated`, 32 columns.
    #[inline(always)]
    pub(crate) fn destination(&self, first: usize, pair: usize, ungated: *mut f32) -> Destination<'_> {
        let column = pair * PAIR;
        let columns = (self.w.shape().out_features - column).min(PAIR);
        let (out, width) = match self.then {
            Then::Gate(..) => (ungated, PAIR),
            // SAFETY: within the output, which is `[rows, width]`.
            Then::Store | Then::Add => (unsafe { self.out.0.add(first * self.width + column) }, self.width),
        };
        Destination {
            out,
            width,
            columns,
            column_scales: if self.has_column_scales() { &self.w.scales()[column..column + columns] } else { &[] },
            bias: self.bias.map(|bias| &bias[column..column + columns]),
            add: matches!(self.then, Then::Add),
            streams: self.streams && matches!(self.then, Then::Store),
        }
    }

    /// Results of `rows` rows of gate and up, `[rows][32]`; nothing for other products.
    ///
    /// # Safety
    /// `columns` of each row were written, two of which are one of the output, which no other thread accesses there.
    #[inline(always)]
    pub(crate) unsafe fn gate(&self, ungated: *const f32, columns: usize, first: usize, rows: usize, pair: usize) {
        if let Then::Gate(isa, activation) = self.then {
            // SAFETY: the caller's promise.
            unsafe {
                let to = self.out.0.add(first * self.width + pair * PAIR / 2);
                pointwise::gated_block(
                    isa,
                    activation,
                    (ungated.cast(), rows),
                    columns,
                    (to, self.width),
                    self.streams,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::NodeChoice;
    use std::sync::Mutex;

    #[test]
    fn a_cut_reads_little_and_leaves_no_thread_without_work() {
        // Threads, rows and columns; then parts of rows and of columns.
        let cases = [(2, 512, 896, (1, 2)), (16, 32, 9_728, (1, 16)), (16, 512, 896, (4, 4)), (16, 2_048, 896, (8, 2))];
        for (threads, rows, columns, want) in cases {
            assert_eq!(cut(threads, rows / 32, columns / 32), want, "{threads} threads, {rows} x {columns}");
        }
    }

    #[test]
    fn cells_cover_every_row_and_pair_once() {
        for (threads, nodes) in [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3)] {
            let pool = Pool::on(threads, NodeChoice::Imagined(nodes)).unwrap();
            for (rows, pairs) in [(1, 1), (33, 2), (97, 7), (512, 28)] {
                let seen = Mutex::new(vec![0; rows * pairs]);
                spread(&pool, rows, pairs, &|rows, part| {
                    assert!(rows.start.is_multiple_of(BLOCK_ROWS));
                    let mut seen = seen.lock().unwrap();
                    rows.for_each(|row| part.clone().for_each(|pair| seen[row * pairs + pair] += 1));
                });
                assert!(seen.into_inner().unwrap().iter().all(|&count| count == 1), "{threads} {nodes} {rows} {pairs}");
            }
        }
    }
}
