//! AMX kernels: tiles of 16 rows x 64 bytes, `TDPBSSD` for int8 and `TDPBF16PS` for bf16.
//!
//! ```text
//!                 tmm2 = tile of strip 0   tmm3 = tile of strip 1
//! tmm0 = rows 0..16      tmm4 +=                 tmm5 +=
//! tmm1 = rows 16..32     tmm6 +=                 tmm7 +=
//! ```
//! Fewer rows change nothing but the tile configuration. The whole K loop is one `asm!`, since no register that the
//! compiler does not know may carry a value from one `asm!` to the next.
//!
//! Both operands from L2 would halve the rate, so K is cut into blocks whose part of a pair of strips stays in L1
//! while the rows pass by; sums wait in memory between blocks, exactly (f32 and i32 tiles are stored as they are).

use super::{Product, Sums};
use crate::isa::Amx;
use crate::quant::{PAIR, TILE, WeightClass};
use crate::threads::share;
use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Steps of a K block: 32 KiB of a pair of strips.
const BLOCK_STEPS: usize = 16;
/// Rows of the two row tiles.
const BLOCK_ROWS: usize = 32;
/// Bytes of a row of sums.
const SUMS_STRIDE: usize = PAIR * 4;

/// The operand of `LDTILECFG`, palette 1.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// For `rows` in `1..=32`, tiles as in the module's picture.
    fn new(rows: usize) -> TileConfig {
        let low = rows.min(16) as u8;
        let high = rows.saturating_sub(16).max(1) as u8; // a tile that is configured must have a row
        let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.rows[..8].copy_from_slice(&[low, high, 16, 16, low, low, high, high]);
        config.row_bytes[..8].fill(64);
        config
    }
}

/// This thread's tile configuration while a panel is computed; gives the tiles back at the end, so that the operating
/// system need not save them at every switch.
struct Tiles {
    configured_rows: usize,
}

impl Tiles {
    fn new(_proof: Amx) -> Tiles {
        Tiles { configured_rows: 0 }
    }

    fn configure(&mut self, rows: usize) {
        if self.configured_rows != rows {
            let config = TileConfig::new(rows);
            // SAFETY: a `Tiles` is made with the proof of AMX; the operand is 64 bytes of a valid configuration.
            unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &config, options(nostack, readonly)) };
            self.configured_rows = rows;
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if self.configured_rows != 0 {
            // SAFETY: as in `configure`.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}

/// A block of up to 32 rows against some steps of one pair of strips.
struct TileBlock {
    x: *const u8,
    x_stride: usize,
    /// `[steps][2]` tiles.
    tiles: *const u8,
    steps: usize,
    /// `[rows][32]`.
    sums: *mut u32,
    /// Continue from `sums` instead of from zero.
    resume: bool,
}

/// Computes rows x pairs of a product with tiles.
pub(super) fn panel(proof: Amx, product: &Product<'_>, rows: Range<usize>, pairs: Range<usize>) {
    let mut sums = MaybeUninit::<Sums<{ super::PANEL_ROWS }>>::uninit();
    assert!(rows.len() <= super::PANEL_ROWS);
    let first_sums = sums.as_mut_ptr().cast::<u32>();
    let mut tiles = Tiles::new(proof);
    let (w, x) = (product.w, &product.activations);
    let k_blocks = w.steps().div_ceil(BLOCK_STEPS);
    for pair in pairs {
        for k_block in 0..k_blocks {
            let steps = share(w.steps(), k_blocks, k_block);
            for first in rows.clone().step_by(BLOCK_ROWS) {
                let count = BLOCK_ROWS.min(rows.end - first);
                tiles.configure(count);
                // SAFETY: rows and steps are within the activations and the matrix, whose formats `linear` chose for
                // tiles; `sums` holds `PANEL_ROWS` rows and those of earlier K blocks were written; the tiles are
                // configured for `count` rows.
                unsafe {
                    let block = TileBlock {
                        x: x.row(first).add(steps.start * 64),
                        x_stride: x.stride(),
                        tiles: w.pair(pair).as_ptr().add(steps.start * 2 * TILE),
                        steps: steps.len(),
                        sums: first_sums.add((first - rows.start) * PAIR),
                        resume: k_block > 0,
                    };
                    match (w.class(), count > 16) {
                        (WeightClass::Int8, true) => int8_two(block),
                        (WeightClass::Int8, false) => int8_one(block),
                        (WeightClass::Bf16, true) => bf16_two(block),
                        (WeightClass::Bf16, false) => bf16_one(block),
                        (WeightClass::Int4, _) => unreachable!("`tiles_for` gives int4 no tiles"),
                    }
                }
            }
        }
        for first in rows.clone().step_by(super::MAX_ROWS) {
            let count = super::MAX_ROWS.min(rows.end - first);
            // SAFETY: the loop above wrote the sums of every row of the panel.
            let sums = unsafe {
                std::slice::from_raw_parts(first_sums.add((first - rows.start) * PAIR).cast::<[u32; PAIR]>(), count)
            };
            product.finish(sums, first, pair, false);
        }
    }
}

/// The two kernels of a class: 17..=32 rows, and 1..=16. The latter is bound by memory, so it asks for its weights
/// early: 4 KiB ahead, every second line (the hardware fetches lines in pairs).
macro_rules! kernels {
    ($two:ident, $one:ident, $multiply:literal) => {
        /// # Safety
        /// The block's pointers cover 17..=32 rows, for which the tiles are configured.
        unsafe fn $two(block: TileBlock) {
            // SAFETY: the caller's promise; every tile register used is declared.
            unsafe {
                asm!(
                    "test {resume}, {resume}",
                    "jnz 3f",
                    "tilezero tmm4",
                    "tilezero tmm5",
                    "tilezero tmm6",
                    "tilezero tmm7",
                    "jmp 2f",
                    "3:",
                    "tileloadd tmm4, [{c0} + {c_stride}*1]",
                    "tileloadd tmm5, [{c0} + {c_stride}*1 + 64]",
                    "tileloadd tmm6, [{c1} + {c_stride}*1]",
                    "tileloadd tmm7, [{c1} + {c_stride}*1 + 64]",
                    "2:",
                    "tileloadd tmm0, [{x0} + {x_stride}*1]",
                    "tileloadd tmm2, [{w} + {w_stride}*1]",
                    concat!($multiply, " tmm4, tmm0, tmm2"),
                    "tileloadd tmm3, [{w} + {w_stride}*1 + 1024]",
                    concat!($multiply, " tmm5, tmm0, tmm3"),
                    "tileloadd tmm1, [{x1} + {x_stride}*1]",
                    concat!($multiply, " tmm6, tmm1, tmm2"),
                    concat!($multiply, " tmm7, tmm1, tmm3"),
                    "add {x0}, 64",
                    "add {x1}, 64",
                    "add {w}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{c0} + {c_stride}*1], tmm4",
                    "tilestored [{c0} + {c_stride}*1 + 64], tmm5",
                    "tilestored [{c1} + {c_stride}*1], tmm6",
                    "tilestored [{c1} + {c_stride}*1 + 64], tmm7",
                    resume = in(reg) usize::from(block.resume),
                    x0 = inout(reg) block.x => _,
                    x1 = inout(reg) block.x.add(16 * block.x_stride) => _,
                    x_stride = in(reg) block.x_stride,
                    w = inout(reg) block.tiles => _,
                    w_stride = in(reg) 64usize,
                    c0 = in(reg) block.sums,
                    c1 = in(reg) block.sums.add(16 * PAIR),
                    c_stride = in(reg) SUMS_STRIDE,
                    steps = inout(reg) block.steps => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }

        /// # Safety
        /// The block's pointers cover 1..=16 rows, for which the tiles are configured.
        unsafe fn $one(block: TileBlock) {
            // SAFETY: the caller's promise; every tile register used is declared; prefetching past the end is harmless.
            unsafe {
                asm!(
                    "test {resume}, {resume}",
                    "jnz 3f",
                    "tilezero tmm4",
                    "tilezero tmm5",
                    "jmp 2f",
                    "3:",
                    "tileloadd tmm4, [{c} + {c_stride}*1]",
                    "tileloadd tmm5, [{c} + {c_stride}*1 + 64]",
                    "2:",
                    "prefetcht1 [{w} + 4096]", "prefetcht1 [{w} + 4224]",
                    "prefetcht1 [{w} + 4352]", "prefetcht1 [{w} + 4480]",
                    "prefetcht1 [{w} + 4608]", "prefetcht1 [{w} + 4736]",
                    "prefetcht1 [{w} + 4864]", "prefetcht1 [{w} + 4992]",
                    "tileloadd tmm0, [{x} + {x_stride}*1]",
                    "tileloadd tmm2, [{w} + {w_stride}*1]",
                    concat!($multiply, " tmm4, tmm0, tmm2"),
                    "prefetcht1 [{w} + 5120]", "prefetcht1 [{w} + 5248]",
                    "prefetcht1 [{w} + 5376]", "prefetcht1 [{w} + 5504]",
                    "prefetcht1 [{w} + 5632]", "prefetcht1 [{w} + 5760]",
                    "prefetcht1 [{w} + 5888]", "prefetcht1 [{w} + 6016]",
                    "tileloadd tmm3, [{w} + {w_stride}*1 + 1024]",
                    concat!($multiply, " tmm5, tmm0, tmm3"),
                    "add {x}, 64",
                    "add {w}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{c} + {c_stride}*1], tmm4",
                    "tilestored [{c} + {c_stride}*1 + 64], tmm5",
                    resume = in(reg) usize::from(block.resume),
                    x = inout(reg) block.x => _,
                    x_stride = in(reg) block.x_stride,
                    w = inout(reg) block.tiles => _,
                    w_stride = in(reg) 64usize,
                    c = in(reg) block.sums,
                    c_stride = in(reg) SUMS_STRIDE,
                    steps = inout(reg) block.steps => _,
                    out("tmm0") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                    options(nostack)
                );
            }
        }
    };
}

kernels!(int8_two, int8_one, "tdpbssd");
kernels!(bf16_two, bf16_one, "tdpbf16ps");

/// Multiplies register tiles `rounds` times, eight products a round, and returns the multiply-adds done: for
/// measuring the peak of the tile unit.
pub(crate) fn peak(proof: Amx, class: WeightClass, rounds: usize) -> f64 {
    let mut tiles = Tiles::new(proof);
    tiles.configure(BLOCK_ROWS);
    macro_rules! rounds {
        ($multiply:literal) => {
            // SAFETY: the tiles are configured and declared; zeros stay zeros.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                    "2:",
                    concat!($multiply, " tmm4, tmm0, tmm2"),
                    concat!($multiply, " tmm5, tmm0, tmm3"),
                    concat!($multiply, " tmm6, tmm1, tmm2"),
                    concat!($multiply, " tmm7, tmm1, tmm3"),
                    concat!($multiply, " tmm4, tmm0, tmm2"),
                    concat!($multiply, " tmm5, tmm0, tmm3"),
                    concat!($multiply, " tmm6, tmm1, tmm2"),
                    concat!($multiply, " tmm7, tmm1, tmm3"),
                    "dec {rounds}",
                    "jnz 2b",
                    rounds = inout(reg) rounds.max(1) => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        };
    }
    match class {
        WeightClass::Int8 | WeightClass::Int4 => rounds!("tdpbssd"),
        WeightClass::Bf16 => rounds!("tdpbf16ps"),
    }
    (rounds.max(1) * 8 * 16 * 16 * class.step()) as f64
}
