//! Matrix products with AMX: `TDPBSSD` for int8 and `TDPBF16PS` for bf16. What is computed when, and what stays in which
//! cache meanwhile, is in [`plan`](super::plan); the tiles themselves in [`multiply`](super::multiply).
//!
//! | weights | tiles | after the products |
//! | --- | --- | --- |
//! | bf16; int8 with one scale per channel | as they are | [`finish`](super::finish), or nothing: bf16 sums that are only stored are results |
//! | int8 with ratios | as they are | sums of each group are folded beside the next products: [`groups`](super::groups) |
//! | int4, even levels, ratios up to 15 | `ratio * q`, [`unpack`] | as for one scale |
//! | other int4 | two digits of `ratio * level` | joined: `256 * high + low` |
//!
//! Rows are padded to whole tiles: the sums of the padding, whatever is in it, stay in the scratch. So one configuration
//! serves a panel. Only panels of up to 16 rows are configured for fewer: their products then take fewer cycles.

use super::super::proofs::Amx;
use super::Tiles;
use super::finish::finish;
use super::groups::{Folds, Last, Waiting, add_by_ratio};
use super::heavy::Heavy;
use super::multiply::{SUMS_STRIDE, TileBlock, bf16_one, bf16_two, int8_one, int8_two};
use super::plan::{BLOCK_ROWS, BLOCK_SUMS, Cut, GROUP_STEPS, SUMS_BYTES, UNPACKED_BYTES, Visit};
use super::unpack::{self, Part};
use crate::gemm::{Lists, Product, Sums};
use crate::mem::Buffer;
use crate::quant::{INT8_GROUP, Levels, PAIR, PackedMatrix, Ratios, TILE, WeightClass};
use std::arch::asm;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;

/// How tiles compute a matrix.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Tiles as they are stored.
    Stored,
    /// Int8 groups with ratios.
    Groups,
    /// Int4 unpacked to one tile each.
    Whole,
    /// Int4 unpacked to two digits.
    Digits,
}

impl Way {
    fn of(w: &PackedMatrix) -> Way {
        match w.class() {
            WeightClass::Bf16 => Way::Stored,
            WeightClass::Int8 if w.ratios() == Ratios::One => Way::Stored,
            WeightClass::Int8 => Way::Groups,
            WeightClass::Int4 if w.levels() == Levels::Even && w.ratios() <= Ratios::Narrow => Way::Whole,
            WeightClass::Int4 => Way::Digits,
        }
    }
}

/// Two K blocks of unpacked tiles: one is multiplied, the next one unpacked.
#[repr(C, align(64))]
struct Unpacked([[u8; UNPACKED_BYTES]; 2]);

/// Memory of a thread's panels.
#[derive(Default)]
struct Memory {
    /// [`SUMS_BYTES`], once tiles are used.
    sums: Buffer<u32>,
    heavy: Heavy,
    parts: Vec<Part>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Computes rows x pairs of a product with tiles. Activations are in a format for tiles.
pub(crate) fn panel(proof: Amx, product: &Product<'_>, rows: Range<usize>, pairs: Range<usize>) {
    let mut tiles = Tiles::new(proof);
    let tile_rows = rows.len().min(16) as u8;
    tiles.configure([tile_rows, tile_rows, 16, 16, tile_rows, tile_rows, tile_rows, tile_rows]);
    let way = Way::of(product.w);
    let cut = Cut::of(product.w.class(), product.w.shape().in_features, way == Way::Digits);
    let mut unpacked = MaybeUninit::<Unpacked>::uninit();
    let mut ungated = MaybeUninit::<Sums<BLOCK_ROWS>>::uninit();
    let ungated = ungated.as_mut_ptr().cast();
    MEMORY.with_borrow_mut(|Memory { sums, heavy, parts }| {
        sums.reserve(SUMS_BYTES / size_of::<u32>()).expect("memory for the sums of a panel");
        let (sums, unpacked) = (sums.as_mut_ptr(), unpacked.as_mut_ptr().cast());
        for rows in cut.panels(rows) {
            heavy.find(product, rows.clone());
            let (heavy, parts) = (&mut *heavy, &mut *parts);
            Panel {
                _proof: proof,
                heavy,
                parts,
                next_part: 0,
                product,
                way,
                rows,
                sums,
                unpacked,
                ungated,
                folds: Folds::new(proof.avx512()),
            }
            .run(cut, pairs.clone());
        }
    });
}

/// Rows whose sums are in memory together.
struct Panel<'a> {
    _proof: Amx,
    heavy: &'a mut Heavy,
    /// `[32][32]`: gate and up, before they become results.
    ungated: *mut f32,
    product: &'a Product<'a>,
    way: Way,
    rows: Range<usize>,
    /// `[pairs of a group][blocks][32 rows][32]`; of two digits `[2 strips][32 rows][high, low]` in each block.
    sums: *mut u32,
    /// Two of [`UNPACKED_BYTES`], for visits in turn.
    unpacked: *mut u8,
    /// What there is to unpack for the next visit, and how much of it is.
    parts: &'a mut Vec<Part>,
    next_part: usize,
    folds: Folds<'a>,
}

/// 32 rows, or what is left, at a visit.
struct Rows {
    first: usize,
    count: usize,
    sums: *mut u32,
    block: TileBlock,
}

impl<'a> Panel<'a> {
    fn run(&mut self, cut: Cut, pairs: Range<usize>) {
        let mut visits = cut.visits(pairs).enumerate().peekable();
        self.unpack_for(visits.peek());
        while let Some((turn, visit)) = visits.next() {
            let halves = self.rows.len().div_ceil(BLOCK_ROWS) * 2 * visit.steps.len();
            let mut ahead = Ahead::of(self.product.w, visits.peek().map(|(_, next)| next), halves);
            let tiles = self.tiles(turn, &visit);
            self.unpack_for(visits.peek());
            for first in self.rows.clone().step_by(BLOCK_ROWS) {
                let rows = self.rows_at(&visit, first, tiles, &mut ahead);
                if visit.last {
                    self.product.each_result_line(rows.first, rows.count, visit.pair, ask_to_write);
                }
                match self.way {
                    Way::Groups => self.groups(&visit, &rows),
                    Way::Digits => self.digits(&visit, &rows),
                    Way::Stored | Way::Whole => self.plain(&visit, &rows),
                }
            }
        }
        // SAFETY: totals and results of what waits are the panel's.
        while let Some(folded) = unsafe { self.folds.fold_next() } {
            if let Some((last, total)) = folded {
                self.finish(total, last.row, last.rows, last.pair);
            }
        }
    }

    fn steps(&self, visit: &Visit) -> &'a [u8] {
        let w = self.product.w;
        &w.pair(visit.pair).1[visit.steps.start * w.step_bytes()..visit.steps.end * w.step_bytes()]
    }

    /// What the next visit, in its turn, has to have unpacked.
    fn unpack_for(&mut self, next: Option<&(usize, Visit)>) {
        self.parts.clear();
        self.next_part = 0;
        if let (Some((turn, visit)), Way::Digits) = (next, self.way) {
            let to = self.unpacked.wrapping_add(turn % 2 * UNPACKED_BYTES);
            self.parts.extend(unpack::parts(self.steps(visit), to));
        }
    }

    /// The tiles of a visit, unpacked if they have to be.
    fn tiles(&self, turn: usize, visit: &Visit) -> *const u8 {
        let from = self.steps(visit);
        // SAFETY: a K block has room, and there is a proof of the vectors.
        unsafe {
            match self.way {
                Way::Stored | Way::Groups => return from.as_ptr(),
                Way::Whole => unpack::whole(from, self.unpacked),
                Way::Digits => {
                    let levels = self.product.w.levels().table();
                    self.parts[self.next_part..].iter().for_each(|&part| unpack::digits(part, levels));
                    return self.unpacked.wrapping_add(turn % 2 * UNPACKED_BYTES);
                }
            }
        }
        self.unpacked
    }

    fn rows_at(&self, visit: &Visit, first: usize, tiles: *const u8, ahead: &mut Ahead) -> Rows {
        let (x, steps) = (&self.product.activations, visit.steps.len());
        let blocks = self.rows.len().div_ceil(BLOCK_ROWS);
        let sums = if self.way == Way::Digits { 2 * BLOCK_SUMS } else { BLOCK_SUMS };
        let at = (visit.slot * blocks + (first - self.rows.start) / BLOCK_ROWS) * sums;
        // SAFETY: `plan` chooses panels and groups of pairs whose sums fit; the steps are of the row.
        let (sums, x_at) = unsafe { (self.sums.add(at), x.row(first).add(visit.steps.start * 64)) };
        let block = TileBlock {
            x: x_at,
            x_stride: x.stride(),
            tiles,
            steps,
            before: if visit.first { null() } else { sums },
            to: sums,
            to_stride: SUMS_STRIDE,
            ahead: ahead.next(2 * steps),
            lines: ahead.lines,
        };
        Rows { first, count: BLOCK_ROWS.min(self.rows.end - first), sums, block }
    }

    fn plain(&mut self, visit: &Visit, rows: &Rows) {
        let mut block = rows.block;
        let to = self.product.destination(rows.first, visit.pair, self.ungated);
        // Sums that are results go where these belong.
        let direct = visit.last
            && (self.product.w.class(), to.add, to.bias) == (WeightClass::Bf16, false, None)
            && (rows.count, to.columns) == (BLOCK_ROWS, PAIR);
        if direct {
            (block.to, block.to_stride) = (to.out.cast(), to.width * size_of::<f32>());
        }
        // SAFETY: rows, padded, and steps are within the activations and the matrix, whose formats `linear` chose for tiles;
        // sums of earlier K blocks were written; the tiles are configured.
        unsafe {
            match (self.product.w.class(), rows.count > 16) {
                (WeightClass::Int8 | WeightClass::Int4, true) => int8_two(block),
                (WeightClass::Int8 | WeightClass::Int4, false) => int8_one(block),
                (WeightClass::Bf16, true) => bf16_two(block),
                (WeightClass::Bf16, false) => bf16_one(block),
            }
            if direct {
                self.product.gate(self.ungated, PAIR, rows.first, rows.count, visit.pair);
            }
        }
        if visit.last && !direct {
            self.finish(rows.sums, rows.first, rows.count, visit.pair);
        }
    }

    fn digits(&mut self, visit: &Visit, rows: &Rows) {
        for strip in 0..2 {
            let at = strip * BLOCK_SUMS;
            // SAFETY: as in `plain`; sums and unpacked tiles are those of two strips.
            unsafe {
                let before = if visit.first { null() } else { rows.block.before.add(at) };
                let tiles = rows.block.tiles.add(strip * visit.steps.len() * 2 * TILE);
                let block = TileBlock { before, to: rows.sums.add(at), tiles, ..rows.block };
                if rows.count > 16 {
                    let (parts, levels) = (&self.parts[self.next_part..], self.product.w.levels().table());
                    self.next_part += unpack::multiply_beside(block, parts, levels);
                } else {
                    int8_one(block);
                }
            }
        }
        if visit.last {
            let mut joined = MaybeUninit::<Sums<BLOCK_ROWS>>::uninit();
            let to = joined.as_mut_ptr().cast();
            // SAFETY: room for a block; of rows that no product has written only numbers are read, and not used.
            unsafe { unpack::join(rows.sums, to) };
            self.finish(to, rows.first, rows.count, visit.pair);
        }
    }

    fn groups(&mut self, visit: &Visit, rows: &Rows) {
        let ratios = self.product.w.pair(visit.pair).0;
        for (index, first) in visit.steps.clone().step_by(GROUP_STEPS).enumerate() {
            let (skipped, steps) = (index * GROUP_STEPS, GROUP_STEPS.min(visit.steps.end - first));
            let ratios = ratios[first * 64 / INT8_GROUP * PAIR..][..PAIR].as_ptr();
            let last = visit.last && first + steps == visit.steps.end;
            // SAFETY: as in `plain`; a proof of tiles is one of vectors.
            unsafe {
                let (x, tiles) = (rows.block.x.add(skipped * 64), rows.block.tiles.add(skipped * 2 * TILE));
                let block = TileBlock { x, tiles, steps, lines: 0, ..rows.block };
                let starts = visit.first && index == 0;
                if rows.count > 16 {
                    let ahead = rows.block.ahead.wrapping_add(skipped * 2 * rows.block.lines * 64);
                    (0..steps * 2 * rows.block.lines).for_each(|line| ask(ahead.wrapping_add(line * 64)));
                    let last = last.then(|| self.last(rows, visit.pair));
                    let waits = Waiting { ratios, total: rows.sums, first: starts, last };
                    match self.folds.group(block, waits) {
                        Some((last, _, true)) => self.product.gate(self.ungated, PAIR, last.row, last.rows, last.pair),
                        Some((last, total, false)) => self.finish(total, last.row, last.rows, last.pair),
                        None => {}
                    }
                } else {
                    let mut sums = MaybeUninit::<Sums<16>>::uninit();
                    let to = sums.as_mut_ptr().cast();
                    int8_one(TileBlock { before: null(), to, ..block });
                    add_by_ratio(to, ratios, rows.count, rows.sums, !starts);
                    if last {
                        self.finish(rows.sums, rows.first, rows.count, visit.pair);
                    }
                }
            }
        }
    }

    /// What follows the last group of a block of rows.
    fn last(&self, rows: &Rows, pair: usize) -> Last<'a> {
        let product = self.product;
        let whole = rows.count == BLOCK_ROWS && product.activations.lists(rows.first, rows.count).is_empty();
        let destination = product.destination(rows.first, pair, self.ungated);
        let direct = (whole && destination.columns == PAIR)
            .then(|| (destination, product.activations.scales(rows.first, rows.count).as_ptr()));
        Last { row: rows.first, rows: rows.count, pair, direct }
    }

    /// Sums of a block become results.
    fn finish(&mut self, sums: *const u32, first: usize, count: usize, pair: usize) {
        let product = self.product;
        // SAFETY: the sums of these rows were written; the proof is that of `finish`; each row and pair is in one panel.
        unsafe {
            let sums = std::slice::from_raw_parts(sums.cast::<[u32; PAIR]>(), count);
            if self.heavy.is_empty() {
                let lists = product.activations.lists(first, count);
                let lists = if lists.is_empty() { Lists::NONE } else { lists };
                return product.finish_with::<BLOCK_ROWS>(finish, (lists, null()), sums, first, pair);
            }
            let mut heavy = MaybeUninit::<Sums<BLOCK_ROWS>>::uninit();
            self.heavy.multiply(product, first, pair, heavy.as_mut_ptr().cast());
            let digits = (self.heavy.rest(first, count), heavy.as_ptr().cast());
            product.finish_with::<BLOCK_ROWS>(finish, digits, sums, first, pair);
        }
    }
}

/// The weights of the next visit, of which each step of each block of rows asks for a few lines.
struct Ahead {
    next: *const u8,
    /// Cache lines in half a step.
    lines: usize,
}

impl Ahead {
    /// `halves` of steps ask.
    fn of(w: &PackedMatrix, next: Option<&Visit>, halves: usize) -> Ahead {
        let Some(visit) = next else { return Ahead { next: null(), lines: 0 } };
        let from = &w.pair(visit.pair).1[visit.steps.start * w.step_bytes()..visit.steps.end * w.step_bytes()];
        Ahead { next: from.as_ptr(), lines: from.len().div_ceil(64).div_ceil(halves) }
    }

    /// The address for the next `halves` of steps.
    fn next(&mut self, halves: usize) -> *const u8 {
        let behind = self.next.wrapping_add(halves * self.lines * 64);
        std::mem::replace(&mut self.next, behind)
    }
}

/// Prefetches a line to L2.
#[inline(always)]
fn ask(line: *const u8) {
    // SAFETY: a prefetch is a hint, never a fault.
    unsafe { asm!("prefetcht1 [{}]", in(reg) line, options(nostack, readonly, preserves_flags)) };
}

/// Prefetches a line that will be written.
#[inline(always)]
fn ask_to_write(line: *const u8) {
    // SAFETY: as above; a CPU with tiles has the instruction.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, readonly, preserves_flags)) };
}
