//! The two products of an attention tile with AMX: `TDPBF16PS` computes the definition's `dot`.
//!
//! ```text
//! scores   tmm0 = 16 rows x 32 d of q        tmm2, tmm3 = two groups of keys        tmm4, tmm5 += one page of scores
//! values   tmm0 = 16 rows x 32 weights       tmm2       = 16 d of a page of values  tmm4..7    += 64 d
//! ```
//! The cache stores keys and values as tiles, so nothing is rearranged. The tile configuration omits missing rows of a
//! partial tile.

use super::super::proofs::Amx;
use crate::attention::tile::{Page, STRIDE};
use crate::kv_cache::VALUE_PAGE;
use std::arch::asm;

/// Bytes of a tile of keys or values.
const TILE: usize = 1024;
/// Bytes from row to row of scores and values.
const F32_STRIDE: usize = STRIDE * size_of::<f32>();
/// Bytes from row to row of queries and weights.
const BF16_STRIDE: usize = STRIDE * size_of::<u16>();

/// The AMX tiles of the calling thread, configured for a number of rows.
pub(crate) struct Tiles {
    _configured: super::Tiles,
}

impl Tiles {
    /// Configures for products of `rows` rows, 1 to 16.
    pub(crate) fn configure(proof: Amx, rows: usize) -> Tiles {
        let rows = rows as u8;
        let mut tiles = super::Tiles::new(proof);
        tiles.configure([rows, rows, 16, 16, rows, rows, rows, rows]);
        Tiles { _configured: tiles }
    }

    /// `scores = q k^T` of one page of 32 positions.
    ///
    /// # Safety
    /// `queries`: bf16 `[rows, 32 * steps]`, rows STRIDE apart; `keys`: `[2][16 * steps]` lines; `to`: f32
    /// `[rows, 32]`, rows STRIDE apart; for the rows of the configuration.
    pub(crate) unsafe fn scores(&self, queries: *const u16, keys: *const u8, steps: usize, to: *mut f32) {
        // SAFETY: the caller's promise; every tile register used is declared.
        unsafe {
            asm!(
                "tilezero tmm4",
                "tilezero tmm5",
                "2:",
                "tileloadd tmm0, [{queries} + {bf16_stride}*1]",
                "tileloadd tmm2, [{keys} + {line}*1]",
                "tdpbf16ps tmm4, tmm0, tmm2",
                "tileloadd tmm3, [{more_keys} + {line}*1]",
                "tdpbf16ps tmm5, tmm0, tmm3",
                "add {queries}, 64",
                "add {keys}, 1024",
                "add {more_keys}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{to} + {f32_stride}*1], tmm4",
                "tilestored [{to} + {f32_stride}*1 + 64], tmm5",
                queries = inout(reg) queries => _,
                bf16_stride = in(reg) BF16_STRIDE,
                keys = inout(reg) keys => _,
                more_keys = inout(reg) keys.byte_add(steps * TILE) => _,
                line = in(reg) 64usize,
                to = in(reg) to,
                f32_stride = in(reg) F32_STRIDE,
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                options(nostack)
            );
        }
    }

    /// `values = p v` over all `pages`, for 64 columns of the head if `wide`, else for 32.
    ///
    /// # Safety
    /// `weights`: bf16 `[rows, 32 * pages.len()]`, rows STRIDE apart; `inside`: bytes from the start of a page to
    /// its first requested column; `to`: f32 `[rows, 64]` or `[rows, 32]`, rows STRIDE apart; for the rows of the
    /// configuration. `pages` is not empty.
    pub(crate) unsafe fn values(&self, weights: *const u16, pages: &[Page], inside: usize, wide: bool, to: *mut f32) {
        const { assert!(VALUE_PAGE == 32) };
        // SAFETY: the caller's promise; every tile register used is declared.
        unsafe {
            asm!(
                "tilezero tmm4",
                "tilezero tmm5",
                "tilezero tmm6",
                "tilezero tmm7",
                "2:",
                "tileloadd tmm0, [{weights} + {bf16_stride}*1]",
                "mov {values}, [{page}]",
                "add {values}, {inside}",
                "tileloadd tmm2, [{values} + {line}*1]",
                "tdpbf16ps tmm4, tmm0, tmm2",
                "tileloadd tmm3, [{values} + {line}*1 + 1024]",
                "tdpbf16ps tmm5, tmm0, tmm3",
                "test {wide}, {wide}",
                "jz 3f",
                "tileloadd tmm2, [{values} + {line}*1 + 2048]",
                "tdpbf16ps tmm6, tmm0, tmm2",
                "tileloadd tmm3, [{values} + {line}*1 + 3072]",
                "tdpbf16ps tmm7, tmm0, tmm3",
                "3:",
                "add {weights}, 64",
                "add {page}, {page_bytes}",
                "cmp {page}, {end}",
                "jne 2b",
                "tilestored [{to} + {f32_stride}*1], tmm4",
                "tilestored [{to} + {f32_stride}*1 + 64], tmm5",
                "test {wide}, {wide}",
                "jz 4f",
                "tilestored [{to} + {f32_stride}*1 + 128], tmm6",
                "tilestored [{to} + {f32_stride}*1 + 192], tmm7",
                "4:",
                weights = inout(reg) weights => _,
                bf16_stride = in(reg) BF16_STRIDE,
                page = inout(reg) (&raw const pages[0].values) => _,
                end = in(reg) (&raw const pages[0].values).byte_add(size_of_val(pages)),
                page_bytes = const size_of::<Page>(),
                values = out(reg) _,
                inside = in(reg) inside,
                wide = in(reg) usize::from(wide),
                line = in(reg) 64usize,
                to = in(reg) to,
                f32_stride = in(reg) F32_STRIDE,
                out("tmm0") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }
}
