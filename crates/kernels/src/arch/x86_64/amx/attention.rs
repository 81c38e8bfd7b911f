//! The two products of an attention tile with AMX: `TDPBF16PS` computes the definition's `dot`, `TDPBSSD` exact sums.
//!
//! ```text
//!                                        B 0        B 1          groups of keys, or 16 d of a page of values each
//! A 0 = rows 0..16 of q or weights       tmm4 +=    tmm5 +=
//! A 1 = rows 16..32, or low digits       tmm6 +=    tmm7 +=      of up to 16 rows of bf16: their values of 32 d more
//! ```
//! The cache stores keys and values as tiles, so nothing is rearranged. The configuration omits missing rows of bf16.
//!
//! With an int8 cache queries, keys, digits and values have other shapes, and a register each, so that one
//! configuration serves both products; what a register had is then loaded again. A step is an equal part of the head,
//! of 64 numbers at most. Two row tiles are whole: sums of rows that are not there are not used.

use super::super::proofs::Amx;
use crate::attention::int8::INT_STRIDE;
use crate::attention::matrix::{QUERY_STRIDE, WEIGHT_STRIDE};
use crate::attention::tile::{Page, ROWS as MAX_ROWS, STRIDE};
use crate::kv_cache::{LINE, VALUE_PAGE};
use std::arch::asm;

/// Bytes of a tile of keys or values.
const TILE: usize = 1024;
/// Bytes from row to row of scores and values.
const F32_STRIDE: usize = STRIDE * size_of::<f32>();

/// Rows of a tile register.
const ROWS: usize = 16;

/// Scores of a page, with `A 0`, `A 1`, `B 0` and `B 1` in these registers.
#[rustfmt::skip]
macro_rules! scores {
    ($multiply:literal, [$a0:literal, $a1:literal, $b0:literal, $b1:literal, $again:literal], $tiles:ident,
        ($queries:ident, $stride:expr, $step:expr), ($keys:ident, $key_step:expr, $steps:expr), $to:ident) => {
        asm!(
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            concat!("tileloadd ", $a0, ", [{a} + {a_stride}*1]"), concat!("tileloaddt1 ", $b0, ", [{b} + {line}*1]"),
            concat!($multiply, " tmm4, ", $a0, ", ", $b0),
            concat!("tileloaddt1 ", $b1, ", [{more_b} + {line}*1]"), concat!($multiply, " tmm5, ", $a0, ", ", $b1),
            "test {two}, {two}", "jz 3f",
            concat!("tileloadd ", $a1, ", [{a} + {a_stride}*1 + {more_a}]"), concat!($multiply, " tmm7, ", $a1, ", ", $b1),
            $again, concat!($multiply, " tmm6, ", $a1, ", ", $b0),
            "3:",
            "add {a}, {a_step}", "add {b}, {b_step}", "add {more_b}, {b_step}", "dec {steps}", "jnz 2b",
            "tilestored [{to} + {stride}*1], tmm4", "tilestored [{to} + {stride}*1 + 64], tmm5",
            "test {two}, {two}", "jz 4f",
            "tilestored [{to} + {stride}*1 + {more}], tmm6", "tilestored [{to} + {stride}*1 + {more} + 64], tmm7",
            "4:",
            a = inout(reg) $queries => _, a_stride = in(reg) $stride, more_a = const ROWS * $stride, a_step = in(reg) $step,
            b = inout(reg) $keys => _, more_b = inout(reg) $keys.byte_add($steps * $key_step) => _,
            b_step = in(reg) $key_step, steps = inout(reg) $steps => _, line = in(reg) LINE,
            two = in(reg) usize::from($tiles.two), to = in(reg) $to, stride = in(reg) F32_STRIDE,
            more = const ROWS * F32_STRIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Sums over pages of the columns at `$inside` bytes, with registers as above: of `A 0` to `$to`, of `A 1` to `$more`.
/// Without `$wide` only the first 16 columns.
#[rustfmt::skip]
macro_rules! values {
    ($multiply:literal, [$a0:literal, $a1:literal, $b0:literal, $b1:literal, $again:literal],
        ($weights:ident, $stride:expr, $more_weights:expr, $step:expr),
        ($pages:ident, $inside:expr, $column:expr, $wide:expr), ($to:expr, $more:expr)) => {
        asm!(
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "mov {b}, [{page}]", "add {b}, {inside}",
            concat!("tileloadd ", $a0, ", [{a} + {a_stride}*1]"), concat!("tileloaddt1 ", $b0, ", [{b} + {line}*1]"),
            concat!($multiply, " tmm4, ", $a0, ", ", $b0),
            concat!("tileloadd ", $a1, ", [{a} + {a_stride}*1 + {more_a}]"), concat!($multiply, " tmm6, ", $a1, ", ", $b0),
            "test {wide}, {wide}", "jz 3f",
            concat!("tileloaddt1 ", $b1, ", [{b} + {line}*1 + {column}]"), concat!($multiply, " tmm7, ", $a1, ", ", $b1),
            $again, concat!($multiply, " tmm5, ", $a0, ", ", $b1),
            "3:",
            "add {a}, {a_step}", "add {page}, {page_bytes}", "cmp {page}, {end}", "jne 2b",
            "tilestored [{to} + {stride}*1], tmm4", "tilestored [{more} + {stride}*1], tmm6",
            "test {wide}, {wide}", "jz 4f",
            "tilestored [{to} + {stride}*1 + 64], tmm5", "tilestored [{more} + {stride}*1 + 64], tmm7",
            "4:",
            a = inout(reg) $weights => _, a_stride = in(reg) $stride, more_a = const $more_weights, a_step = const $step,
            page = inout(reg) (&raw const $pages[0].values) => _, page_bytes = const size_of::<Page>(),
            end = in(reg) (&raw const $pages[0].values).byte_add(size_of_val($pages)),
            b = out(reg) _, inside = in(reg) $inside, column = const $column, wide = in(reg) usize::from($wide),
            line = in(reg) LINE, to = in(reg) $to, more = in(reg) $more, stride = in(reg) F32_STRIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// The AMX tiles of the calling thread, configured for a number of rows.
pub(crate) struct Tiles {
    /// Whether there are rows of a second tile.
    two: bool,
    /// Of an int8 cache: lines of 16 keys in a step.
    lines: usize,
    _configured: super::Tiles,
}

#[rustfmt::skip]
impl Tiles {
    /// Configures for products of `rows` rows, 1 to 32.
    pub(crate) fn configure(proof: Amx, rows: usize) -> Tiles {
        let two = rows > ROWS;
        let (first, more) = (rows.min(ROWS) as u8, if two { rows - ROWS } else { rows } as u8);
        let mut tiles = super::Tiles::new(proof);
        tiles.configure([first, more, 16, 16, first, first, more, more]);
        Tiles { two, lines: 16, _configured: tiles }
    }

    /// The same for an int8 cache, with heads of `head_dim`, a multiple of 16.
    pub(crate) fn configure_int8(proof: Amx, rows: usize, head_dim: usize) -> Tiles {
        let (all, rows_of_one) = (head_dim / 4, rows.min(ROWS) as u8);
        // A step of one line divides every head.
        let steps = (all.div_ceil(16)..).find(|&steps| all.is_multiple_of(steps)).unwrap_or(all);
        let lines = all / steps;
        let (queries, keys) = ((rows_of_one, 4 * lines as u8), (lines as u8, 64));
        let (digits, values) = ((rows_of_one, VALUE_PAGE as u8), (VALUE_PAGE as u8 / 4, 64));
        let sums = (rows_of_one, 64);
        let mut tiles = super::Tiles::new(proof);
        tiles.shape([queries, keys, digits, values, sums, sums, sums, sums]);
        Tiles { two: rows > ROWS, lines, _configured: tiles }
    }

    /// `scores = q k^T` of one page of 32 positions.
    ///
    /// # Safety
    /// `queries`: bf16 `[rows, 32 * steps]`, rows QUERY_STRIDE apart; `keys`: `[2][16 * steps]` lines; `to`: f32
    /// `[rows, 32]`, rows STRIDE apart; for the rows of the configuration.
    pub(crate) unsafe fn scores(&self, queries: *const u16, keys: *const u8, steps: usize, to: *mut f32) {
        // SAFETY: the caller's promise; every tile register used is declared.
        unsafe {
            scores!("tdpbf16ps", ["tmm0", "tmm1", "tmm2", "tmm3", ""], self,
                (queries, QUERY_STRIDE * size_of::<u16>(), 64usize), (keys, TILE, steps), to);
        }
    }

    /// `values = p v` over all `pages`.
    ///
    /// # Safety
    /// `weights`: bf16 `[rows, 32 * pages.len()]`, rows WEIGHT_STRIDE apart; the pages' values are `width` wide, a
    /// multiple of 32; `to`: f32 `[rows, width]`, rows STRIDE apart; for the rows of the configuration. `pages` is not
    /// empty.
    pub(crate) unsafe fn values(&self, weights: *const u16, pages: &[Page], width: usize, to: *mut f32) {
        for first in (0..width).step_by(if self.two { 32 } else { 64 }) {
            let inside = first * VALUE_PAGE * size_of::<u16>();
            // SAFETY: passed on: the columns exist.
            unsafe {
                if self.two {
                    self.values_of_two(weights, pages, inside, to.add(first));
                } else {
                    self.values_of_one(weights, pages, inside, width - first >= 64, to.add(first));
                }
            }
        }
    }

    /// 32 columns of up to 32 rows, from those at `inside` bytes of a page on.
    ///
    /// # Safety
    /// As for [`Tiles::values`], of these columns; there are rows of a second tile.
    unsafe fn values_of_two(&self, weights: *const u16, pages: &[Page], inside: usize, to: *mut f32) {
        const { assert!(VALUE_PAGE == 32) };
        // SAFETY: the caller's promise; every tile register used is declared.
        unsafe {
            values!("tdpbf16ps", ["tmm0", "tmm1", "tmm2", "tmm3", ""],
                (weights, WEIGHT_STRIDE * size_of::<u16>(), ROWS * WEIGHT_STRIDE * size_of::<u16>(), 64),
                (pages, inside, TILE, true), (to, to.add(ROWS * STRIDE)));
        }
    }

    /// 64 columns of up to 16 rows if `wide`, else 32, from those at `inside` bytes of a page on.
    ///
    /// # Safety
    /// As for [`Tiles::values`], of these columns.
    unsafe fn values_of_one(&self, weights: *const u16, pages: &[Page], inside: usize, wide: bool, to: *mut f32) {
        // SAFETY: the caller's promise; every tile register used is declared.
        unsafe {
            asm!(
                "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                "2:",
                "mov {values}, [{page}]", "add {values}, {inside}",
                "tileloadd tmm0, [{weights} + {weight_stride}*1]", "tileloaddt1 tmm2, [{values} + {line}*1]",
                "tdpbf16ps tmm4, tmm0, tmm2",
                "tileloaddt1 tmm3, [{values} + {line}*1 + 1024]", "tdpbf16ps tmm5, tmm0, tmm3",
                "test {wide}, {wide}", "jz 3f",
                "tileloaddt1 tmm2, [{values} + {line}*1 + 2048]", "tdpbf16ps tmm6, tmm0, tmm2",
                "tileloaddt1 tmm3, [{values} + {line}*1 + 3072]", "tdpbf16ps tmm7, tmm0, tmm3",
                "3:",
                "add {weights}, 64", "add {page}, {page_bytes}", "cmp {page}, {end}", "jne 2b",
                "tilestored [{to} + {stride}*1], tmm4", "tilestored [{to} + {stride}*1 + 64], tmm5",
                "test {wide}, {wide}", "jz 4f",
                "tilestored [{to} + {stride}*1 + 128], tmm6", "tilestored [{to} + {stride}*1 + 192], tmm7",
                "4:",
                weights = inout(reg) weights => _, weight_stride = in(reg) WEIGHT_STRIDE * size_of::<u16>(),
                page = inout(reg) (&raw const pages[0].values) => _, page_bytes = const size_of::<Page>(),
                end = in(reg) (&raw const pages[0].values).byte_add(size_of_val(pages)),
                values = out(reg) _, inside = in(reg) inside, line = in(reg) LINE,
                wide = in(reg) usize::from(wide), to = in(reg) to, stride = in(reg) F32_STRIDE,
                out("tmm0") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    /// `sums = q k^T` of one page of an int8 cache.
    ///
    /// # Safety
    /// `queries`: `[rows, head_dim]`, rows INT_STRIDE apart; `keys`: `[2][head_dim / 4]` lines; `to`: i32 `[rows, 32]`,
    /// rows STRIDE apart; for whole row tiles, and heads of the configuration, which is of [`Tiles::configure_int8`].
    pub(crate) unsafe fn int8_scores(&self, queries: *const i8, keys: *const u8, head_dim: usize, to: *mut i32) {
        let steps = head_dim / (4 * self.lines);
        // SAFETY: the caller's promise; every tile register used is declared.
        unsafe {
            scores!("tdpbssd", ["tmm0", "tmm0", "tmm1", "tmm1", "tileloadd tmm1, [{b} + {line}*1]"], self,
                (queries, INT_STRIDE, 4 * self.lines), (keys, LINE * self.lines, steps), to);
        }
    }

    /// `sums = n v` over all `pages` of an int8 cache, of each digit of the weights.
    ///
    /// # Safety
    /// `digits`: high and low ones, `[2][32 rows][32 * pages.len()]`, rows INT_STRIDE apart; the pages' values are
    /// `width` wide, a multiple of 16; `to`: i32 `[rows, width]`, rows STRIDE apart, for whole row tiles, of high
    /// digits and of low ones. `pages` is not empty, and the configuration is of [`Tiles::configure_int8`].
    pub(crate) unsafe fn int8_values(&self, digits: *const u8, pages: &[Page], width: usize, [high, low]: [*mut i32; 2]) {
        let columns = width.div_ceil(32);
        for part in 0..columns * (1 + usize::from(self.two)) {
            let (row, first) = (part / columns * ROWS, part % columns * 32);
            let (digits, at) = (digits.wrapping_add(row * INT_STRIDE), row * STRIDE + first);
            // SAFETY: the caller's promise; every tile register used is declared.
            unsafe {
                values!("tdpbssd", ["tmm2", "tmm2", "tmm3", "tmm3", "tileloadd tmm2, [{a} + {a_stride}*1]"],
                    (digits, INT_STRIDE, MAX_ROWS * INT_STRIDE, VALUE_PAGE),
                    (pages, first * VALUE_PAGE, VALUE_PAGE / 4 * LINE, width - first >= 32), (high.add(at), low.add(at)));
            }
        }
    }
}
