//! All splits of a tile in order, on one thread.

use super::tile::{Scratch, Tile, Work, with_scratch};
use super::{Call, SPLIT};
use crate::simd::{Kernel, Simd, dispatch};

/// Computes all rows of a tile.
pub(super) fn tile(call: &Call<'_>, tile: &Tile) {
    with_scratch(|scratch| dispatch(call.isa, Whole { call, tile, scratch }));
}

struct Whole<'a> {
    call: &'a Call<'a>,
    tile: &'a Tile,
    scratch: &'a mut Scratch,
}

impl Kernel for Whole<'_> {
    type Output = ();

    fn define(self) {
        super::define::tile(self.call, self.tile);
    }

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Whole { call, tile, scratch } = self;
        let unit = call.unit(tile.rows.len());
        let work = Work { simd, unit: &unit, call, tile };
        work.load_queries(scratch);
        for split in tile.splits() {
            work.split(scratch, split * SPLIT);
            work.fold(scratch, split * SPLIT);
        }
        work.finish(&mut scratch.total);
    }
}
