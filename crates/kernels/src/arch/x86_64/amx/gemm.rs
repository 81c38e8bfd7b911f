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
use super::groups::{Folded, Folds, Group, Last, Waiting, add_by_ratio};
use super::heavy::Heavy;
use super::multiply::{Beside, Held, SUMS_STRIDE, TileBlock, bf16_one, bf16_two, int8_one, int8_two};
use super::plan::{BLOCK_ROWS, BLOCK_SUMS, Cut, GROUP_STEPS, SUMS_BYTES, UNPACKED_BYTES, Visit};
use super::unpack::{self, Part};
use crate::gemm::{Lists, Product, Sums};
use crate::mem::Buffer;
use crate::quant::{INT8_GROUP, Levels, PAIR, PackedMatrix, Ratios, TILE, WeightClass};
use std::arch::asm;
use std::arch::x86_64::_mm_sfence;
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
    let mut heavy_sums = MaybeUninit::<Sums<BLOCK_ROWS>>::uninit();
    let (ungated, heavy_sums) = (ungated.as_mut_ptr().cast(), heavy_sums.as_mut_ptr().cast());
    MEMORY.with_borrow_mut(|Memory { sums, heavy, parts }| {
        sums.reserve(SUMS_BYTES / size_of::<u32>()).expect("memory for the sums of a panel");
        let (sums, unpacked) = (sums.as_mut_ptr(), unpacked.as_mut_ptr().cast());
        for rows in cut.panels(rows) {
            heavy.find(product, rows.clone(), cut.panel_rows);
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
                heavy_sums,
                held: None,
                next: None,
                after: None,
                unasked: (0..0, 0),
                asked_pair: 0,
                folds: Folds::new(proof.avx512()),
            }
            .run(cut, pairs.clone());
        }
    });
    if product.streams {
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_sfence() };
    }
}

/// Rows whose sums are in memory together.
struct Panel<'a> {
    _proof: Amx,
    heavy: &'a mut Heavy,
    /// `[32][32]`: gate and up, before they become results.
    ungated: *mut f32,
    /// `[32][32]`: sums of heavy digits of the block that is being finished.
    heavy_sums: *mut u32,
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
    /// Sums that are still in the registers, and what follows when they are stored; not of groups, of which `folds`
    /// knows.
    held: Option<Held>,
    next: Option<After>,
    /// What is done beside products.
    after: Option<After>,
    /// Rows whose result lines are still to be prefetched, and how many at a time.
    unasked: (Range<usize>, usize),
    asked_pair: usize,
    folds: Folds<'a>,
}

/// 32 rows, or what is left, at a visit.
struct Rows {
    first: usize,
    count: usize,
    sums: *mut u32,
    block: TileBlock,
}

/// What is left to do for a block and pair whose sums are complete, some rows at a time.
#[derive(Clone, Copy)]
struct After {
    first: usize,
    count: usize,
    done: usize,
    pair: usize,
    what: What,
    /// Of [`What::Gate`] these results, else sums.
    sums: *const u32,
    /// Sums of heavy digits, `[rows][32]`; null: there are none.
    heavy: *const u32,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    /// Sums `[rows][32]` become results.
    Finish,
    /// The same of two digits, `[2 strips][32 rows][high, low]`.
    Join,
    /// `[rows][32]` of gate and up become results.
    Gate,
}

/// Rows that are gated beside the products of a step: about as long as these take.
const GATED_ROWS: usize = 4;
/// Rows that are finished at once. Fewer would fit beside the products, but what a call costs is more than that saves:
/// int4 with gates, 896 inputs: 121 cycles a tile product with 4 rows, 113 with 8, 108 with 16.
const FINISHED_ROWS: usize = 16;

impl Beside for Panel<'_> {
    fn part(&mut self) {
        if let Some(next) = self.next.take() {
            self.after = Some(next);
        }
        self.finish_some();
        self.ask_some();
        if let (Way::Digits, Some(&part)) = (self.way, self.parts.get(self.next_part)) {
            // SAFETY: `unpack_for` made the part; the proof of tiles is one of vectors.
            unsafe { unpack::digits(part, self.product.w.levels().table()) };
            self.next_part += 1;
        }
    }
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
                match self.way {
                    _ if rows.count <= 16 => self.few(&visit, &rows),
                    Way::Groups => self.groups(&visit, &rows),
                    Way::Digits => self.digits(&visit, &rows),
                    Way::Stored | Way::Whole => self.plain(&visit, &rows),
                }
            }
        }
        self.flush();
    }

    /// Stores and finishes all that is held or waits.
    fn flush(&mut self) {
        self.release();
        self.finish_all();
        // SAFETY: totals and results of what waits are the panel's.
        while let Some(folded) = unsafe { self.folds.fold_next() } {
            folded.into_iter().for_each(|folded| self.folded(folded));
            self.finish_all();
        }
    }

    /// Stores what the registers hold, where what is finished may have its sums.
    fn release(&mut self) {
        self.finish_all();
        // SAFETY: sums are held where there is room for them, and groups are not held beside others.
        unsafe {
            if let Some(held) = self.held.take() {
                held.store();
            }
            self.folds.store();
        }
        self.after = self.next.take();
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
        let block = (first - self.rows.start) / BLOCK_ROWS;
        // What no other visit continues is needed only until the next block is complete, and stays in L1.
        let at = if visit.first && visit.last { block % 2 } else { visit.slot * blocks + block } * sums;
        // SAFETY: `plan` chooses panels and groups of pairs whose sums fit; the steps are of the row.
        let (sums, x_at) = unsafe { (self.sums.add(at), x.row(first).add(visit.steps.start * 64)) };
        let block = TileBlock {
            x: x_at,
            x_stride: x.stride(),
            tiles,
            steps,
            before: if visit.first { null() } else { sums },
            ahead: ahead.next(2 * steps),
            lines: ahead.lines,
        };
        Rows { first, count: BLOCK_ROWS.min(self.rows.end - first), sums, block }
    }

    /// Begins to prefetch the result lines of a block for writing: a few beside each of `calls` products, since all at
    /// once would hold up the loads of tiles.
    fn ask_for_results(&mut self, visit: &Visit, rows: &Rows, calls: usize) {
        if visit.last && !self.product.streams {
            self.unasked = (rows.first..rows.first + rows.count, rows.count.div_ceil(calls));
            self.asked_pair = visit.pair;
        }
    }

    fn ask_some(&mut self) {
        let (rows, count) = &mut self.unasked;
        let count = (*count).min(rows.len());
        if count > 0 {
            self.product.each_result_line(rows.start, count, self.asked_pair, ask_to_write);
            rows.start += count;
        }
    }

    fn plain(&mut self, visit: &Visit, rows: &Rows) {
        let w = self.product.w;
        let to = self.product.destination(rows.first, visit.pair, self.ungated);
        // Sums that are results go where these belong; tiles cannot store past the caches.
        let direct = visit.last
            && !to.streams
            && (w.class(), to.add, to.bias) == (WeightClass::Bf16, false, None)
            && (rows.count, to.columns) == (BLOCK_ROWS, PAIR);
        self.ask_for_results(visit, rows, visit.steps.len());
        self.finish_all();
        let held = self.held.take();
        // SAFETY: rows, padded, and steps are within the activations and the matrix, whose formats `linear` chose for tiles;
        // sums of earlier K blocks were written, or are held; the tiles are configured.
        unsafe {
            match w.class() {
                WeightClass::Int8 | WeightClass::Int4 => int8_two(&rows.block, held, self),
                WeightClass::Bf16 => bf16_two(&rows.block, held, self),
            }
        }
        if direct {
            self.held = Some(Held { to: to.out.cast(), stride: to.width * size_of::<f32>() });
            if to.out == self.ungated {
                self.finish_next(rows.first, rows.count, visit.pair, (What::Gate, to.out.cast()));
            }
        } else {
            self.held = Some(Held { to: rows.sums, stride: SUMS_STRIDE });
            if visit.last {
                self.finish_next(rows.first, rows.count, visit.pair, (What::Finish, rows.sums));
            }
        }
    }

    fn digits(&mut self, visit: &Visit, rows: &Rows) {
        self.ask_for_results(visit, rows, 2 * visit.steps.len());
        for strip in 0..2 {
            self.finish_all();
            let held = self.held.take();
            // SAFETY: as in `plain`; sums and unpacked tiles are those of two strips.
            unsafe { int8_two(&self.strip(visit, rows, strip), held, self) };
            self.held = Some(Held { to: rows.sums.wrapping_add(strip * BLOCK_SUMS), stride: SUMS_STRIDE });
        }
        if visit.last {
            self.finish_next(rows.first, rows.count, visit.pair, (What::Join, rows.sums));
        }
    }

    /// The block of two digits of a strip.
    fn strip(&self, visit: &Visit, rows: &Rows, strip: usize) -> TileBlock {
        let before = if visit.first { null() } else { rows.sums.wrapping_add(strip * BLOCK_SUMS).cast_const() };
        let tiles = rows.block.tiles.wrapping_add(strip * visit.steps.len() * 2 * TILE);
        TileBlock { before, tiles, ..rows.block }
    }

    fn groups(&mut self, visit: &Visit, rows: &Rows) {
        let TileBlock { x, x_stride, tiles, ahead, lines, .. } = rows.block;
        self.ask_for_results(visit, rows, visit.steps.len().div_ceil(GROUP_STEPS));
        for (skipped, steps, ratios) in self.each_group(visit) {
            let last = visit.last && skipped + steps == visit.steps.len();
            let waits = Waiting { ratios, total: rows.sums, first: visit.first && skipped == 0, last };
            // What the fold writes must not be what is being finished.
            let sums = self.after.map(|after| after.sums);
            if self.folds.next_fold().is_some_and(|fold| fold.last || sums == Some(fold.total)) {
                self.finish_all();
            }
            // SAFETY: as in `plain`; a proof of tiles is one of vectors.
            let folded = unsafe {
                let (x, tiles) = (x.add(skipped * 64), tiles.add(skipped * 2 * TILE));
                let ahead = ahead.wrapping_add(skipped * 2 * lines * 64);
                let group = Group { x, x_stride, tiles, steps, ahead, lines };
                let (product, ungated) = (self.product, self.ungated);
                self.folds.group(&group, waits, || last_of(product, rows, visit.pair, ungated))
            };
            if let Some(folded) = folded {
                self.folded(folded);
            }
            (0..steps).for_each(|_| self.finish_some());
            self.ask_some();
        }
    }

    /// The groups of a visit: steps before them, their steps and their ratios.
    fn each_group(&self, visit: &Visit) -> impl Iterator<Item = (usize, usize, *const u8)> + use<'a> {
        let (ratios, steps) = (self.product.w.pair(visit.pair).0, visit.steps.clone());
        steps.clone().step_by(GROUP_STEPS).map(move |first| {
            let ratios = ratios[first * 64 / INT8_GROUP * PAIR..][..PAIR].as_ptr();
            (first - steps.start, GROUP_STEPS.min(steps.end - first), ratios)
        })
    }

    /// Up to 16 rows: bound by memory, so nothing is done beside their products.
    fn few(&mut self, visit: &Visit, rows: &Rows) {
        self.flush();
        // SAFETY: as in `plain`, `digits` and `groups`; no sums are held.
        unsafe {
            match (self.way, self.product.w.class()) {
                (Way::Stored, WeightClass::Bf16) => bf16_one(rows.block, rows.sums),
                (Way::Stored | Way::Whole, _) => int8_one(rows.block, rows.sums),
                (Way::Digits, _) => (0..2).for_each(|strip| {
                    int8_one(self.strip(visit, rows, strip), rows.sums.wrapping_add(strip * BLOCK_SUMS));
                }),
                (Way::Groups, _) => {
                    let mut sums = MaybeUninit::<Sums<16>>::uninit();
                    let to = sums.as_mut_ptr().cast();
                    for (skipped, steps, ratios) in self.each_group(visit) {
                        let (x, tiles) = (rows.block.x.add(skipped * 64), rows.block.tiles.add(skipped * 2 * TILE));
                        int8_one(TileBlock { x, tiles, steps, before: null(), ..rows.block }, to);
                        add_by_ratio(to, ratios, rows.count, rows.sums, !visit.first || skipped > 0);
                    }
                }
            }
        }
        if visit.last {
            let what = if self.way == Way::Digits { What::Join } else { What::Finish };
            self.finish_next(rows.first, rows.count, visit.pair, (what, rows.sums));
            self.flush();
        }
    }

    /// What follows a block's last fold.
    fn folded(&mut self, (Last { row, rows, pair, direct }, total, written): Folded<'a>) {
        match direct {
            Some((to, _)) if written && to.out == self.ungated => {
                self.finish_next(row, rows, pair, (What::Gate, to.out.cast()));
            }
            _ if written => return,
            _ => self.finish_next(row, rows, pair, (What::Finish, total)),
        }
        self.finish_all();
        self.after = self.next.take();
    }

    /// Finishes a block, whose sums are there when what is held is stored.
    fn finish_next(&mut self, first: usize, count: usize, pair: usize, (what, sums): (What, *mut u32)) {
        let mut heavy = null();
        if what != What::Gate && !self.heavy.is_empty() {
            self.release();
            self.finish_all();
            heavy = self.heavy_sums.cast_const();
            // SAFETY: the registers are free and configured, and the sums have room for a block.
            unsafe { self.heavy.multiply(self.product, first, pair, self.heavy_sums) };
        }
        self.next = Some(After { first, count, done: 0, pair, what, sums, heavy });
    }

    fn finish_all(&mut self) {
        while self.after.is_some() {
            self.finish_some();
        }
    }

    /// Finishes a few rows of what is to be done.
    fn finish_some(&mut self) {
        let Some(After { first, count, done, pair, what, sums, heavy }) = self.after else { return };
        let most = if what == What::Gate { GATED_ROWS } else { FINISHED_ROWS };
        let rows = most.min(count - done);
        self.after =
            (done + rows < count).then_some(After { first, count, done: done + rows, pair, what, sums, heavy });
        let (product, first) = (self.product, first + done);
        let mut joined = MaybeUninit::<Sums<FINISHED_ROWS>>::uninit();
        // SAFETY: the sums of these rows were written; the proof is that of the functions; each row and pair is in one
        // panel.
        unsafe {
            let sums = match what {
                What::Gate => return product.gate(sums.add(done * PAIR).cast(), PAIR, first, rows, pair),
                What::Finish => sums.add(done * PAIR),
                What::Join => {
                    unpack::join(sums, done..done + rows, joined.as_mut_ptr().cast());
                    joined.as_ptr().cast()
                }
            };
            let sums = std::slice::from_raw_parts(sums.cast::<[u32; PAIR]>(), rows);
            let (lists, heavy): (_, *const [u32; PAIR]) = match heavy.is_null() {
                true => (product.activations.lists(first, rows), null()),
                false => (self.heavy.rest(first, rows), heavy.add(done * PAIR).cast()),
            };
            let lists = if heavy.is_null() && lists.is_empty() { Lists::NONE } else { lists };
            product.finish_with::<FINISHED_ROWS>(finish, (lists, heavy), sums, first, pair);
        }
    }
}

/// What follows the last group of a block of rows.
fn last_of<'a>(product: &'a Product<'_>, rows: &Rows, pair: usize, ungated: *mut f32) -> Last<'a> {
    let whole = rows.count == BLOCK_ROWS && product.activations.lists(rows.first, rows.count).is_empty();
    let destination = product.destination(rows.first, pair, ungated);
    let direct = (whole && destination.columns == PAIR)
        .then(|| (destination, product.activations.scales(rows.first, rows.count).as_ptr()));
    Last { row: rows.first, rows: rows.count, pair, direct }
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

/// Prefetches a line that will be written.
#[inline(always)]
fn ask_to_write(line: *const u8) {
    // SAFETY: a prefetch is a hint, never a fault; a CPU with tiles has the instruction.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, readonly, preserves_flags)) };
}
