//! Int8 groups with ratios: the sums of a group, times its ratios, are added to those of all groups ("folded").
//!
//! ```text
//! group g       8 products; the first 4 store what the registers hold of group g - 1; behind each 4 rows of the fold of g - 2
//! two buffers   g - 1 goes to one while g - 2 is folded out of the other
//! last group    of a block of rows: its fold may scale and write results instead of sums
//! ```
//! A fold is 64 vectors, about as many cycles as 8 products take: interleaved it fits beside them. What waits is folded in
//! the next blocks of rows, or pairs; [`Folds::fold_next`] folds what is left.

use super::super::proofs::Avx512;
use super::multiply::{Held, SUMS_STRIDE, ask, load, product, step, store, zero};
use super::plan::{BLOCK_ROWS, GROUP_STEPS};
use crate::gemm::Sums;
use crate::gemm::tiles::Destination;
use crate::quant::{PAIR, TILE};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// A group of 32 rows and a pair.
pub(super) struct Group {
    pub(super) x: *const u8,
    pub(super) x_stride: usize,
    /// `[steps][2]`.
    pub(super) tiles: *const u8,
    /// 1 or 2.
    pub(super) steps: usize,
    /// Prefetch address, and cache lines in each half of a step.
    pub(super) ahead: *const u8,
    pub(super) lines: usize,
}

/// What is done with the sums of a group.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    /// 32 ratios of the group.
    pub(super) ratios: *const u8,
    /// `[32][32]`: sums of all groups.
    pub(super) total: *mut u32,
    /// The first of its block of rows and pair: `total` is written, not added to.
    pub(super) first: bool,
    /// The last one.
    pub(super) last: bool,
}

/// What follows the fold of a block's last group.
#[derive(Clone, Copy)]
pub(super) struct Last<'a> {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) pair: usize,
    /// Where the fold itself may write results: of 32 rows without lists, and 32 columns.
    pub(super) direct: Option<(Destination<'a>, *const f32)>,
}

/// A block whose groups are all folded: its sums, and whether results are written instead.
pub(super) type Folded<'a> = (Last<'a>, *mut u32, bool);

/// The two buffers. Made by proof of the vectors that fold.
pub(super) struct Folds<'a> {
    sums: [MaybeUninit<Sums<BLOCK_ROWS>>; 2],
    waiting: [Option<Waiting>; 2],
    /// By buffer, of a block's last group: what follows.
    last: [Option<Last<'a>>; 2],
    /// Buffer of the next group.
    next: usize,
    /// Whether the sums of the last group are still in the registers.
    held: bool,
}

impl<'a> Folds<'a> {
    pub(super) fn new(_proof: Avx512) -> Folds<'a> {
        Folds { sums: [const { MaybeUninit::uninit() }; 2], waiting: [None; 2], last: [None; 2], next: 0, held: false }
    }

    fn buffer(&mut self, buffer: usize) -> Held {
        Held { to: self.sums[buffer].as_mut_ptr().cast(), stride: SUMS_STRIDE }
    }

    /// What is folded beside the next group.
    pub(super) fn next_fold(&self) -> Option<Waiting> {
        self.waiting[self.next]
    }

    /// Computes the sums of a group of 32 rows, which then wait, and folds those that have waited for two groups.
    /// `last`: of a block's last group.
    ///
    /// # Safety
    /// The group's pointers cover 32 rows and its steps, the tiles are configured for 16 rows each, and nothing but
    /// sums of groups is held in the registers; totals and destinations of what waits are there.
    pub(super) unsafe fn group(
        &mut self,
        group: &Group,
        waits: Waiting,
        last: impl FnOnce() -> Last<'a>,
    ) -> Option<Folded<'a>> {
        let buffer = self.next;
        let held = self.held.then_some(self.buffer(buffer ^ 1));
        let sums = self.buffer(buffer).to;
        let folded = self.waiting[buffer].replace(waits);
        (self.next, self.held) = (buffer ^ 1, true);
        // SAFETY: the caller's promise; what waits in this buffer was written by an earlier call, and is not held.
        let folded = unsafe {
            match folded {
                None => {
                    multiply::<NOTHING>(group, held, sums, &waits, None);
                    None
                }
                Some(waits) if waits.first => {
                    multiply::<FIRST>(group, held, sums, &waits, None);
                    waits.last.then_some((waits.total, false))
                }
                Some(waits) if !waits.last => {
                    multiply::<TOTAL>(group, held, sums, &waits, None);
                    None
                }
                Some(waits) => {
                    let to = self.last[buffer].as_ref().and_then(|last| last.direct.as_ref());
                    match to {
                        None => multiply::<TOTAL>(group, held, sums, &waits, None),
                        Some((destination, _)) if destination.add => {
                            multiply::<ACCUMULATE>(group, held, sums, &waits, to)
                        }
                        Some((destination, _)) if destination.streams => {
                            multiply::<STREAM>(group, held, sums, &waits, to)
                        }
                        Some(_) => multiply::<STORE>(group, held, sums, &waits, to),
                    }
                    Some((waits.total, to.is_some()))
                }
            }
        };
        let folded = folded.and_then(|(total, written)| Some((self.last[buffer]?, total, written)));
        if waits.last {
            self.last[buffer] = Some(last());
        }
        folded
    }

    /// Stores what is held, so that the registers are free.
    ///
    /// # Safety
    /// As for [`Folds::group`].
    pub(super) unsafe fn store(&mut self) {
        if std::mem::take(&mut self.held) {
            // SAFETY: a buffer has room.
            unsafe { self.buffer(self.next ^ 1).store() };
        }
    }

    /// Folds what waits longest, without a group beside it. `None`: nothing waits; inside: what follows.
    ///
    /// # Safety
    /// As for [`Folds::group`].
    pub(super) unsafe fn fold_next(&mut self) -> Option<Option<Folded<'a>>> {
        let next = (0..2).map(|later| self.next ^ later).find(|&buffer| self.waiting[buffer].is_some())?;
        let folded = self.waiting[next].take()?;
        // SAFETY: the caller's promise; what waits was written, or is now.
        unsafe {
            self.store();
            let sums = self.sums[next].as_ptr().cast();
            add_by_ratio(sums, folded.ratios, BLOCK_ROWS, folded.total, !folded.first);
        }
        Some(if folded.last { self.last[next].map(|last| (last, folded.total, false)) } else { None })
    }
}

/// `to = sums * ratios`, or `to += ..`, for rows of 32.
///
/// # Safety
/// `sums` and `to` hold the rows, and there are 32 ratios; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_by_ratio(sums: *const u32, ratios: *const u8, rows: usize, to: *mut u32, add: bool) {
    for strip in 0..2 {
        // SAFETY: the caller's promise.
        unsafe {
            let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.add(strip * 16).cast()));
            for row in 0..rows {
                let at = row * PAIR + strip * 16;
                let mut sum = _mm512_mullo_epi32(_mm512_loadu_si512(sums.add(at).cast()), ratios);
                if add {
                    sum = _mm512_add_epi32(sum, _mm512_loadu_si512(to.add(at).cast()));
                }
                _mm512_storeu_si512(to.add(at).cast(), sum);
            }
        }
    }
}

/// What a fold does with the products of sums and ratios: nothing is folded; they are the first totals; they are added
/// to totals; the totals become results, as in the epilogue `(total as f32 * row scale) * column scale + bias`, which
/// are written or added to others.
const NOTHING: u8 = 0;
const FIRST: u8 = 1;
const TOTAL: u8 = 2;
const STORE: u8 = 3;
const ACCUMULATE: u8 = 4;
const STREAM: u8 = 5;

/// The second step of a group that has one.
static NO_TILES: Tiles = Tiles([0; 2 * TILE]);

#[repr(C, align(64))]
struct Tiles([u8; 2 * TILE]);

/// Products of a group, stores of those before, and a fold of `sums`, as `waits` says, beside them. `to`: where results
/// go.
///
/// # Safety
/// As for [`Folds::group`]; pointers of what is folded are as their types say, those of results of 32 rows and columns.
#[target_feature(enable = "avx512f")]
unsafe fn multiply<const END: u8>(
    group: &Group,
    held: Option<Held>,
    sums: *const u32,
    waits: &Waiting,
    to: Option<&(Destination<'_>, *const f32)>,
) {
    let Group { x, x_stride, tiles, steps, mut ahead, lines } = *group;
    let (mut r, mut scales, mut bias) =
        ([_mm512_setzero_si512(); 2], [_mm512_setzero_ps(); 2], [_mm512_set1_ps(-0.0); 2]);
    let (mut out, mut width, mut row_scales) = (std::ptr::null_mut(), 0, std::ptr::null());
    for strip in 0..2 {
        // SAFETY: the caller's promise. Adding -0.0 changes no number.
        unsafe {
            if END != NOTHING {
                r[strip] = _mm512_cvtepi8_epi32(_mm_loadu_si128(waits.ratios.add(strip * 16).cast()));
            }
            if let (true, Some((to, rows))) = (END >= STORE, to) {
                (out, width, row_scales) = (to.out, to.width, *rows);
                scales[strip] = _mm512_loadu_ps(to.column_scales[strip * 16..].as_ptr());
                if let Some(from) = to.bias {
                    bias[strip] = _mm512_loadu_ps(from[strip * 16..].as_ptr());
                }
            }
        }
    }
    // Four rows of a fold.
    macro_rules! fold {
        ($part:expr) => {
            if END != NOTHING {
                for row in $part * 4..$part * 4 + 4 {
                    for strip in 0..2 {
                        let at = row * PAIR + strip * 16;
                        let mut sum = _mm512_mullo_epi32(_mm512_load_si512(sums.add(at).cast()), r[strip]);
                        if END != FIRST {
                            sum = _mm512_add_epi32(sum, _mm512_load_si512(waits.total.add(at).cast()));
                        }
                        if END < STORE {
                            _mm512_store_si512(waits.total.add(at).cast(), sum);
                            continue;
                        }
                        let out = out.add(row * width + strip * 16);
                        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(*row_scales.add(row)));
                        let mut y = _mm512_add_ps(_mm512_mul_ps(scaled, scales[strip]), bias[strip]);
                        if END == ACCUMULATE {
                            y = _mm512_add_ps(_mm512_loadu_ps(out), y);
                        }
                        if END == STREAM { _mm512_stream_ps(out, y) } else { _mm512_storeu_ps(out, y) }
                    }
                }
            }
            if $part % 2 == 0 {
                for _ in 0..lines {
                    ask(ahead);
                    ahead = ahead.wrapping_add(64);
                }
            }
        };
    }
    macro_rules! begin {
        ($sums:tt, $rows:literal, $strip:literal) => {
            if let Some(held) = held {
                store!($sums, held.tile($rows, $strip), held.stride);
            }
            zero!($sums);
        };
    }
    macro_rules! continued {
        ($sums:tt, $rows:literal, $strip:literal) => {};
    }
    macro_rules! behind {
        ($n:literal) => {
            fold!($n)
        };
    }
    macro_rules! behind_second {
        ($n:literal) => {
            fold!($n + 4)
        };
    }
    // SAFETY: the caller's promise; rows of a step that is not there are those of the first one, times zeros.
    unsafe {
        step!("tdpbssd", x, x_stride, tiles, begin, behind);
        let (x, tiles) = if steps == GROUP_STEPS { (x.add(64), tiles.add(2 * TILE)) } else { (x, NO_TILES.0.as_ptr()) };
        step!("tdpbssd", x, x_stride, tiles, continued, behind_second);
    }
}
