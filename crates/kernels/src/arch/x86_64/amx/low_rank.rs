//! Blocks of up to 16 rows with `TDPBF16PS`: 16 lines of a strip are a tile without rearrangement.
//!
//! ```text
//! strip   [ .... | 16 lines | 16 lines | .. ]      steps are counted from the first of all inputs: where a strip reads
//!           copy    in place     in place    copy       only some pairs of a step, these are copied and padded with zeros
//! ```

use super::super::proofs::{Amx, Avx512};
use super::Tiles;
use crate::low_rank::product::{Block, PAIRS, RowTarget};
use crate::low_rank::{LINE, Span};
use crate::simd::{LANES, Simd};
use std::arch::asm;
use std::ops::Range;

/// Rows of a tile.
const ROWS: usize = 16;

/// Sums of a strip, or some pairs of a step.
#[repr(C, align(64))]
struct Tile<T>([[T; LANES]; ROWS]);

pub(crate) fn run<T: RowTarget>(proof: Amx, block: &Block<'_, T>) {
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    fn run<T: RowTarget>(s: Avx512, tiles: &mut Tiles, block: &Block<'_, T>) {
        let mut work = Work { block, sums: Tile([[0.0; LANES]; ROWS]), x: Tile([[0; LANES]; ROWS]), of: 0..0 };
        let rows = block.rows.len() as u8;
        // Operands: rows and lines; then the sums of rows. The other tiles are unused but need at least one row.
        tiles.configure([rows, ROWS as u8, rows, 1, 1, 1, 1, 1]);
        for &span in &block.matrix.spans[block.spans.clone()] {
            work.strip(span);
            for (row, sums) in block.rows.clone().zip(&work.sums.0) {
                // SAFETY: 16 sums; the strip is the matrix's, and each row and strip is in one panel.
                unsafe { block.to.put(s, block.to.row(row), span.strip, s.load(sums.as_ptr())) };
            }
        }
    }
    assert!((1..=ROWS).contains(&block.rows.len()), "{} rows", block.rows.len());
    // SAFETY: the proof of tiles contains that of the vectors.
    unsafe { run(proof.avx512(), &mut Tiles::new(proof), block) }
}

/// State of a block in progress, with configured tiles.
struct Work<'a, T> {
    block: &'a Block<'a, T>,
    sums: Tile<f32>,
    /// The rows' pairs `of`, at most 16, zero-padded; reused by strips that read the same ones.
    x: Tile<u32>,
    of: Range<usize>,
}

impl<T: RowTarget> Work<'_, T> {
    /// The sums of a strip.
    fn strip(&mut self, span: Span) {
        let Block { matrix, x, stride, .. } = *self.block;
        let lines = &matrix.pairs[span.line * LINE..][..span.pairs * LINE];
        self.sums.0.as_flattened_mut().fill(0.0);
        let mut pair = 0;
        while pair < span.pairs {
            let (at, left) = (span.first + pair, span.pairs - pair);
            let from = &lines[pair * LINE..];
            if at.is_multiple_of(PAIRS) && left >= PAIRS {
                let steps = left / PAIRS;
                // SAFETY: the lines exist, and pairs of each row, which are as wide as what the strip reads.
                unsafe { self.multiply(x[at..].as_ptr(), stride * size_of::<u32>(), from.as_ptr(), steps) };
                pair += steps * PAIRS;
            } else {
                let some = (PAIRS - at % PAIRS).min(left);
                let mut tile = Tile([[0u32; LINE]; PAIRS]);
                tile.0.as_flattened_mut()[..some * LINE].copy_from_slice(&from[..some * LINE]);
                if self.of != (at..at + some) {
                    self.of = at..at + some;
                    for (to, x) in self.x.0.iter_mut().zip(x.chunks_exact(stride)) {
                        *to = [0; LANES];
                        to[..some].copy_from_slice(&x[self.of.clone()]);
                    }
                }
                // SAFETY: one step of 16 pairs of each row, and 16 lines.
                unsafe {
                    self.multiply(self.x.0.as_ptr().cast(), size_of::<[u32; LANES]>(), tile.0.as_ptr().cast(), 1)
                };
                pair += some;
            }
        }
    }

    /// Adds the products of some steps to the sums.
    ///
    /// # Safety
    /// `x`: the block's rows, `stride` bytes apart, of 16 pairs a step; `lines`: 16 a step.
    unsafe fn multiply(&mut self, x: *const u32, stride: usize, lines: *const u32, steps: usize) {
        // SAFETY: the caller's promise; the sums have room for every row; every tile register used is declared;
        // prefetching past the end is harmless.
        unsafe {
            asm!(
                "tileloadd tmm2, [{c} + {line}*1]",
                "2:",
                "prefetcht1 [{w} + 4096]", "prefetcht1 [{w} + 4224]",
                "prefetcht1 [{w} + 4352]", "prefetcht1 [{w} + 4480]",
                "prefetcht1 [{w} + 4608]", "prefetcht1 [{w} + 4736]",
                "prefetcht1 [{w} + 4864]", "prefetcht1 [{w} + 4992]",
                "tileloadd tmm0, [{x} + {x_stride}*1]",
                "tileloadd tmm1, [{w} + {line}*1]",
                "tdpbf16ps tmm2, tmm0, tmm1",
                "add {x}, 64",
                "add {w}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{c} + {line}*1], tmm2",
                x = inout(reg) x => _,
                x_stride = in(reg) stride,
                w = inout(reg) lines => _,
                line = in(reg) 64usize,
                c = in(reg) &mut self.sums,
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _,
                options(nostack)
            );
        }
    }
}
