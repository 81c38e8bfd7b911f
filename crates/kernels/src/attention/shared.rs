//! Splits of one tile on several threads, for few sequences with long contexts, which otherwise leave threads idle
//! (Flash-Decoding: Dao et al., 2023). The fold makes the same steps in the same order as [`whole`](super::whole),
//! hence the same bits.
//!
//! ```text
//! partials  f32 [splits, rows, width of a value + 16]: values, maximum, sum
//! ```

use super::tile::{Folded, Scratch, Tile, Work, partial_len, with_scratch};
use super::{Call, SPLIT, Unit};
use crate::simd::{Kernel, Simd, dispatch};
use std::ops::Range;

/// Computes some splits of a tile, counted from its first visible one, into `partials`
/// `[splits.len(), rows, partial_len]`.
pub(super) fn partials(call: &Call<'_>, tile: &Tile, splits: Range<usize>, partials: &mut [f32]) {
    with_scratch(|scratch| dispatch(call.isa, Piece { call, tile, splits, partials, scratch }));
}

struct Piece<'a> {
    call: &'a Call<'a>,
    tile: &'a Tile,
    splits: Range<usize>,
    partials: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl Kernel for Piece<'_> {
    type Output = ();

    fn define(self) {
        unreachable!("splits are shared out only where there are vectors");
    }

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Piece { call, tile, splits, partials, scratch } = self;
        let (width, len) = (call.args.layout.value_dim(), partial_len(call.args.layout.value_dim()));
        let unit = call.unit(tile.rows.len());
        let work = Work { simd, unit: &unit, call, tile };
        work.load_queries(scratch);
        for (split, partials) in splits.zip(partials.chunks_exact_mut(work.rows() * len)) {
            work.split(scratch, (tile.splits().start + split) * SPLIT);
            for (row, partial) in partials.chunks_exact_mut(len).enumerate() {
                partial[..width].copy_from_slice(&scratch.split.values[row][..width]);
                partial[width] = scratch.split.max[row];
                partial[width + 1] = scratch.split.sum[row];
            }
        }
    }
}

/// Folds all splits of a tile and writes its rows.
pub(super) fn fold(call: &Call<'_>, tile: &Tile, partials: &[f32]) {
    with_scratch(|scratch| dispatch(call.isa, Fold { call, tile, partials, scratch }));
}

struct Fold<'a> {
    call: &'a Call<'a>,
    tile: &'a Tile,
    partials: &'a [f32],
    scratch: &'a mut Scratch,
}

impl Kernel for Fold<'_> {
    type Output = ();

    fn define(self) {
        unreachable!("splits are shared out only where there are vectors");
    }

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Fold { call, tile, partials, scratch } = self;
        let (width, len) = (call.args.layout.value_dim(), partial_len(call.args.layout.value_dim()));
        let work = Work { simd, unit: &Unit::Vectors, call, tile };
        for (split, partials) in tile.splits().zip(partials.chunks_exact(work.rows() * len)) {
            for (row, partial) in partials.chunks_exact(len).enumerate() {
                let next = Folded { max: partial[width], sum: partial[width + 1], values: &partial[..width] };
                work.fold_row(&mut scratch.total, row, split * SPLIT, next);
            }
        }
        work.finish(&mut scratch.total);
    }
}
