//! How a product is cut for tiles. No cut changes a bit: bf16 sums ascend along K, the others are integers.
//!
//! ```text
//! for a panel of rows            its rows, or a part of their K, stay in L2
//!   for a group of pairs         one, or where K is cut as many as have room for their sums
//!     for a part of K            all of it, or DEEP_PART bytes of a row
//!       for a pair of the group  a weight goes from memory to L2 to L1 once for the panel
//!         for a K block          28 KiB of the pair stay in L1; int4 is unpacked here
//!           for 32 rows          2 x 2 tiles, sums in memory between K blocks; the last K block yields results
//! ```
//! All constants that only hardware can decide are here. They follow from published bandwidths; on a core of Emerald
//! Rapids (docs/hardware.md) K blocks of 14 steps were faster than of 8 and as fast as of 16, parts of 1,792 to 2,688
//! bytes alike.

use crate::quant::{INT8_GROUP, PAIR, WeightClass};
use crate::threads::share;
use std::ops::Range;

/// Steps of a K block: 28 KiB of a pair in L1, the rest of which is for the rows that pass by. Fewer steps load and
/// store sums more often, more do not fit.
const BLOCK_STEPS: usize = 14;
/// Steps of a K block of two digits for each weight, 4 KiB each.
const DIGIT_STEPS: usize = 8;
/// Steps of an int8 group. K is cut between groups, in every class.
pub(super) const GROUP_STEPS: usize = INT8_GROUP / 64;
/// Rows of a panel by the bytes of a row up to which it holds. (Decided by the speed of a 2 x 2 step with its operands in
/// 512 KiB, 1 MiB and 1.5 MiB.)
const PANEL_ROWS: [(usize, usize); 3] = [(2048, 512), (4096, 256), (5461, 192)];
/// Rows of a panel of wider rows, whose K is cut.
const DEEP_ROWS: usize = 256;
/// Bytes of a row in a part of K.
const DEEP_PART: usize = 2048;
/// Bytes of the sums of a group of pairs, which stay in L2 beside the rows.
pub(super) const SUMS_BYTES: usize = 512 << 10;
/// Bytes of an unpacked K block.
pub(super) const UNPACKED_BYTES: usize = {
    let (whole, digits) = (BLOCK_STEPS * 2048, DIGIT_STEPS * 4096);
    if whole > digits { whole } else { digits }
};
/// Rows of a block: two row tiles.
pub(super) const BLOCK_ROWS: usize = 32;
/// Numbers of a block's sums.
pub(super) const BLOCK_SUMS: usize = BLOCK_ROWS * PAIR;

/// Cut of a product.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Maximum rows of a panel.
    pub(super) panel_rows: usize,
    steps: usize,
    block_steps: usize,
    parts: usize,
    /// Pairs of a group.
    pairs: usize,
}

/// A K block of a pair.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) pair: usize,
    /// Index of the pair in its group.
    pub(super) slot: usize,
    pub(super) steps: Range<usize>,
    /// Of the pair's K blocks.
    pub(super) first: bool,
    pub(super) last: bool,
}

impl Cut {
    /// `digits`: each weight has two, and sums of both.
    pub(super) fn of(class: WeightClass, in_features: usize, digits: bool) -> Cut {
        let steps = in_features.div_ceil(class.step());
        let fits = PANEL_ROWS.iter().find(|(bytes, _)| steps * 64 <= *bytes);
        let (panel_rows, parts) = fits.map_or((DEEP_ROWS, (steps * 64).div_ceil(DEEP_PART)), |&(_, rows)| (rows, 1));
        let sums = panel_rows * PAIR * size_of::<u32>() * if digits { 2 } else { 1 };
        let pairs = if parts > 1 { SUMS_BYTES / sums } else { 1 };
        Cut { panel_rows, steps, block_steps: if digits { DIGIT_STEPS } else { BLOCK_STEPS }, parts, pairs }
    }

    /// Panels of some rows: whole blocks, about equally many each.
    pub(super) fn panels(self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (blocks, panels) = (rows.len().div_ceil(BLOCK_ROWS), rows.len().div_ceil(self.panel_rows));
        (0..panels).map(move |panel| {
            let of = share(blocks, panels, panel);
            rows.start + of.start * BLOCK_ROWS..(rows.start + of.end * BLOCK_ROWS).min(rows.end)
        })
    }

    /// What a panel passes over, in order.
    pub(super) fn visits(self, pairs: Range<usize>) -> impl Iterator<Item = Visit> {
        let all = self.steps.div_ceil(GROUP_STEPS);
        let end = pairs.end;
        pairs.step_by(self.pairs).flat_map(move |group| {
            (0..self.parts).flat_map(move |part| {
                let part = share(all, self.parts, part);
                let blocks = part.len().div_ceil(self.block_steps / GROUP_STEPS);
                (group..(group + self.pairs).min(end)).flat_map(move |pair| {
                    let part = part.clone();
                    (0..blocks).map(move |block| {
                        let of = share(part.len(), blocks, block);
                        let (first, end) = (part.start + of.start, part.start + of.end);
                        let steps = first * GROUP_STEPS..(end * GROUP_STEPS).min(self.steps);
                        Visit { pair, slot: pair - group, steps, first: first == 0, last: end == all }
                    })
                })
            })
        })
    }
}
