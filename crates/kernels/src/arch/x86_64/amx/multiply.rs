//! Blocks of rows against some steps of one pair of strips, or of the two digits of one strip.
//!
//! ```text
//!                 tmm2 = tile 0   tmm3 = tile 1
//! tmm0 = rows 0..16      tmm4 +=         tmm5 +=
//! tmm1 = rows 16..32     tmm6 +=         tmm7 +=
//! ```
//! The whole K loop is one `asm!`, since tile registers, which the compiler does not track, must not carry a value from
//! one `asm!` to the next.

use super::super::proofs::Amx;
use super::Tiles;
use crate::quant::{PAIR, WeightClass};
use std::arch::asm;

/// Bytes of a row of sums.
pub(super) const SUMS_STRIDE: usize = PAIR * 4;

/// A block's operands and sums.
#[derive(Clone, Copy)]
pub(super) struct TileBlock {
    pub(super) x: *const u8,
    pub(super) x_stride: usize,
    /// `[steps][2]` tiles.
    pub(super) tiles: *const u8,
    pub(super) steps: usize,
    /// Sums to continue from, `[rows][32]`; null: zeros.
    pub(super) before: *const u32,
    /// `[rows][32]`, rows `to_stride` bytes apart.
    pub(super) to: *mut u32,
    pub(super) to_stride: usize,
    /// Prefetch address, and cache lines in each half of a step; for blocks of two row tiles.
    pub(super) ahead: *const u8,
    pub(super) lines: usize,
}

/// `lines` prefetches. A line goes to L2: the tiles of this step need L1.
macro_rules! ask {
    () => {
        "mov {line}, {lines}\ntest {line}, {line}\njz 5f\n4:\nprefetcht1 [{ahead}]\nadd {ahead}, 64\ndec {line}\njnz 4b\n5:"
    };
}

/// The two kernels of a class: two row tiles, and one. The latter is for few rows, so it is bound by memory, and prefetches
/// its weights itself: 4 KiB ahead, every second line (the hardware fetches lines in pairs).
macro_rules! kernels {
    ($two:ident, $one:ident, $multiply:literal) => {
        /// # Safety
        /// The block's pointers cover 32 rows, and the tiles are configured for 16 each.
        pub(super) unsafe fn $two(block: TileBlock) {
            // SAFETY: the caller's promise; every tile register used is declared; prefetching past the end is harmless.
            unsafe {
                asm!(
                    "test {c}, {c}", "jnz 3f",
                    "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                    "jmp 2f",
                    "3:",
                    "tileloadd tmm4, [{c} + {line_bytes}*2]", "tileloadd tmm5, [{c} + {line_bytes}*2 + 64]",
                    "tileloadd tmm6, [{c} + {line_bytes}*2 + 2048]", "tileloadd tmm7, [{c} + {line_bytes}*2 + 2112]",
                    "2:",
                    "tileloadd tmm0, [{x0} + {x_stride}*1]", "tileloadd tmm2, [{w} + {line_bytes}*1]",
                    concat!($multiply, " tmm4, tmm0, tmm2"), ask!(),
                    "tileloadd tmm3, [{w} + {line_bytes}*1 + 1024]",
                    concat!($multiply, " tmm5, tmm0, tmm3"),
                    "tileloadd tmm1, [{x1} + {x_stride}*1]",
                    concat!($multiply, " tmm6, tmm1, tmm2"), ask!(),
                    concat!($multiply, " tmm7, tmm1, tmm3"),
                    "add {x0}, 64", "add {x1}, 64", "add {w}, 2048", "dec {steps}", "jnz 2b",
                    "mov {x1}, {to_stride}", "shl {x1}, 4", "add {x1}, {to}",
                    "tilestored [{to} + {to_stride}*1], tmm4", "tilestored [{to} + {to_stride}*1 + 64], tmm5",
                    "tilestored [{x1} + {to_stride}*1], tmm6", "tilestored [{x1} + {to_stride}*1 + 64], tmm7",
                    x0 = inout(reg) block.x => _, x1 = inout(reg) block.x.add(16 * block.x_stride) => _,
                    x_stride = in(reg) block.x_stride, w = inout(reg) block.tiles => _, line_bytes = in(reg) 64usize,
                    c = in(reg) block.before, to = in(reg) block.to, to_stride = in(reg) block.to_stride,
                    steps = inout(reg) block.steps => _,
                    ahead = inout(reg) block.ahead => _, lines = in(reg) block.lines, line = out(reg) _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }

        /// # Safety
        /// The block's pointers cover the rows of `tmm0`, at most 16, and the tiles are configured for them.
        pub(super) unsafe fn $one(block: TileBlock) {
            // SAFETY: the caller's promise; every tile register used is declared; prefetching past the end is harmless.
            unsafe {
                asm!(
                    "test {c}, {c}", "jnz 3f", "tilezero tmm4", "tilezero tmm5", "jmp 2f",
                    "3:",
                    "tileloadd tmm4, [{c} + {line_bytes}*2]", "tileloadd tmm5, [{c} + {line_bytes}*2 + 64]",
                    "2:",
                    ".irp i, 0, 1, 2, 3, 4, 5, 6, 7\nprefetcht1 [{w} + 4096 + 128*\\i]\n.endr",
                    "tileloadd tmm0, [{x} + {x_stride}*1]", "tileloadd tmm2, [{w} + {line_bytes}*1]",
                    concat!($multiply, " tmm4, tmm0, tmm2"),
                    ".irp i, 0, 1, 2, 3, 4, 5, 6, 7\nprefetcht1 [{w} + 5120 + 128*\\i]\n.endr",
                    "tileloadd tmm3, [{w} + {line_bytes}*1 + 1024]",
                    concat!($multiply, " tmm5, tmm0, tmm3"),
                    "add {x}, 64", "add {w}, 2048", "dec {steps}", "jnz 2b",
                    "tilestored [{to} + {to_stride}*1], tmm4", "tilestored [{to} + {to_stride}*1 + 64], tmm5",
                    x = inout(reg) block.x => _, x_stride = in(reg) block.x_stride, w = inout(reg) block.tiles => _,
                    line_bytes = in(reg) 64usize, c = in(reg) block.before, to = in(reg) block.to,
                    to_stride = in(reg) block.to_stride, steps = inout(reg) block.steps => _,
                    out("tmm0") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                    options(nostack)
                );
            }
        }
    };
}

kernels!(int8_two, int8_one, "tdpbssd");
kernels!(bf16_two, bf16_one, "tdpbf16ps");

/// Multiplies register tiles `rounds` times, eight products a round, and returns the number of multiply-adds: the peak
/// of the tile unit.
pub(crate) fn peak(proof: Amx, class: WeightClass, rounds: usize) -> f64 {
    let mut tiles = Tiles::new(proof);
    tiles.configure([16; 8]);
    macro_rules! rounds {
        ($multiply:literal) => {
            // SAFETY: the tiles are configured and declared; zeros stay zeros.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                    "2:",
                    concat!($multiply, " tmm4, tmm0, tmm2"), concat!($multiply, " tmm5, tmm0, tmm3"),
                    concat!($multiply, " tmm6, tmm1, tmm2"), concat!($multiply, " tmm7, tmm1, tmm3"),
                    concat!($multiply, " tmm4, tmm0, tmm2"), concat!($multiply, " tmm5, tmm0, tmm3"),
                    concat!($multiply, " tmm6, tmm1, tmm2"), concat!($multiply, " tmm7, tmm1, tmm3"),
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
