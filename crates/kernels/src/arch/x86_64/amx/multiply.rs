//! Blocks of rows against some steps of one pair of strips, or of the two digits of one strip.
//!
//! ```text
//!                 tmm2 = tile 0   tmm3 = tile 1
//! tmm0 = rows 0..16      tmm4 +=         tmm5 +=
//! tmm1 = rows 16..32     tmm6 +=         tmm7 +=
//! ```
//! A tile store waits for the last product of its register, and a product that reuses the register for the store: 55
//! cycles behind each block, as long as 3 to 4 products. So a block leaves its sums in the registers ([`Held`]), and
//! the first step of the next block stores each of them just before it needs the register.
//!
//! That is, tile registers carry values from one `asm!` to the next. The compiler has no use of them of its own (they
//! hold values only of the intrinsics' tile types, of which this program has none), a call saves none, and no other
//! code of this program runs on a thread between two blocks of a panel but what is passed as `beside`, which has none
//! either. Intel's intrinsics that name a register by its number rely on the same.

use super::super::proofs::Amx;
use super::Tiles;
use crate::quant::{PAIR, TILE, WeightClass};
use std::arch::asm;

/// Bytes of a row of sums.
pub(super) const SUMS_STRIDE: usize = PAIR * 4;

/// A block's operands, and the sums that it continues.
#[derive(Clone, Copy)]
pub(super) struct TileBlock {
    pub(super) x: *const u8,
    pub(super) x_stride: usize,
    /// `[steps][2]` tiles.
    pub(super) tiles: *const u8,
    pub(super) steps: usize,
    /// Sums to continue from, `[rows][32]`; null: zeros.
    pub(super) before: *const u32,
    /// Prefetch address, and cache lines in each half of a step; for blocks of two row tiles.
    pub(super) ahead: *const u8,
    pub(super) lines: usize,
}

/// Where the sums in `tmm4` to `tmm7` belong: `[32][32]`, rows `stride` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) to: *mut u32,
    pub(super) stride: usize,
}

/// What is computed with vectors beside products.
pub(super) trait Beside {
    /// A part, called behind each step. The first call is behind the stores of sums that were held.
    fn part(&mut self);
}

impl Beside for () {
    fn part(&mut self) {}
}

/// `tileloadd`, or `tileloaddt1` for a tile that will not be read again soon, which leaves others in L1.
macro_rules! load {
    ($tile:tt, $from:expr, $stride:expr) => {
        load!("tileloadd", $tile, $from, $stride)
    };
    ($load:literal, $tile:tt, $from:expr, $stride:expr) => {
        asm!(
            concat!($load, " ", $tile, ", [{from} + {stride}*1]"), from = in(reg) $from, stride = in(reg) $stride,
            out($tile) _, options(nostack, readonly, preserves_flags)
        )
    };
}

macro_rules! store {
    ($tile:tt, $to:expr, $stride:expr) => {
        asm!(
            concat!("tilestored [{to} + {stride}*1], ", $tile), to = in(reg) $to, stride = in(reg) $stride,
            options(nostack, preserves_flags)
        )
    };
}

macro_rules! zero {
    ($tile:tt) => {
        asm!(concat!("tilezero ", $tile), out($tile) _, options(nostack, preserves_flags))
    };
}

/// `$sums += $x * $w`.
macro_rules! product {
    ($multiply:expr, $sums:tt, $x:tt, $w:tt) => {
        asm!(
            concat!($multiply, " ", $sums, ", ", $x, ", ", $w), out($sums) _, options(nostack, preserves_flags)
        )
    };
}

/// A step of 32 rows. `$begin!(register, row tile, strip)` is there before the first product of a register,
/// `$behind!(n)` behind the n-th one. Rows pass by once for each pair: they are kept out of L1, where the pair stays.
macro_rules! step {
    ($multiply:literal, $x:expr, $x_stride:expr, $tiles:expr, $begin:ident, $behind:ident) => {{
        let (x, x_stride, tiles): (*const u8, usize, *const u8) = ($x, $x_stride, $tiles);
        load!("tileloaddt1", "tmm0", x, x_stride);
        load!("tmm2", tiles, 64usize);
        $begin!("tmm4", 0, 0);
        product!($multiply, "tmm4", "tmm0", "tmm2");
        $behind!(0);
        load!("tmm3", tiles.add(TILE), 64usize);
        $begin!("tmm5", 0, 1);
        product!($multiply, "tmm5", "tmm0", "tmm3");
        $behind!(1);
        load!("tileloaddt1", "tmm1", x.add(16 * x_stride), x_stride);
        $begin!("tmm6", 1, 0);
        product!($multiply, "tmm6", "tmm1", "tmm2");
        $behind!(2);
        $begin!("tmm7", 1, 1);
        product!($multiply, "tmm7", "tmm1", "tmm3");
        $behind!(3);
    }};
}
pub(super) use {load, product, step, store, zero};

impl Held {
    /// Address of the sums of 16 rows and a strip.
    #[inline(always)]
    pub(super) fn tile(self, rows: usize, strip: usize) -> *mut u32 {
        self.to.wrapping_byte_add(rows * 16 * self.stride + strip * 64)
    }

    /// Stores the sums.
    ///
    /// # Safety
    /// They are in the registers, and there is room for them.
    pub(super) unsafe fn store(self) {
        // SAFETY: the caller's promise.
        unsafe {
            store!("tmm4", self.tile(0, 0), self.stride);
            store!("tmm5", self.tile(0, 1), self.stride);
            store!("tmm6", self.tile(1, 0), self.stride);
            store!("tmm7", self.tile(1, 1), self.stride);
        }
    }
}

/// The two kernels of a class: two row tiles, and one. The latter is for few rows, so it is bound by memory, and prefetches
/// its weights itself: 4 KiB ahead, every second line (the hardware fetches lines in pairs).
macro_rules! kernels {
    ($two:ident, $one:ident, $multiply:literal) => {
        /// Computes 32 rows, whose sums stay in the registers; stores what was held there.
        ///
        /// # Safety
        /// The block's pointers cover 32 rows, what is held has room, and the tiles are configured for 16 rows each.
        #[inline(always)]
        pub(super) unsafe fn $two(block: &TileBlock, held: Option<Held>, beside: &mut impl Beside) {
            let TileBlock { x, x_stride, tiles, before, lines, .. } = *block;
            let before = (!before.is_null()).then_some(Held { to: before.cast_mut(), stride: SUMS_STRIDE });
            let mut ahead = block.ahead;
            for step in 0..block.steps {
                macro_rules! begin {
                    ($sums:tt, $rows:literal, $strip:literal) => {
                        if step == 0 {
                            if let Some(held) = held {
                                store!($sums, held.tile($rows, $strip), held.stride);
                            }
                            match before {
                                Some(before) => load!($sums, before.tile($rows, $strip), before.stride),
                                None => zero!($sums),
                            }
                        }
                    };
                }
                macro_rules! behind {
                    ($n:literal) => {
                        if $n % 2 == 0 {
                            for _ in 0..lines {
                                ask(ahead);
                                ahead = ahead.wrapping_add(64);
                            }
                        }
                    };
                }
                // SAFETY: the caller's promise; prefetching past the end is harmless.
                unsafe {
                    step!($multiply, x.add(step * 64), x_stride, tiles.add(step * 2 * TILE), begin, behind);
                }
                beside.part();
            }
        }

        /// Computes the rows of `tmm0`, at most 16, and stores their sums.
        ///
        /// # Safety
        /// The block's pointers and `to` cover these rows, the tiles are configured for them, and no sums are held.
        pub(super) unsafe fn $one(block: TileBlock, to: *mut u32) {
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
                    "tilestored [{to} + {line_bytes}*2], tmm4", "tilestored [{to} + {line_bytes}*2 + 64], tmm5",
                    x = inout(reg) block.x => _, x_stride = in(reg) block.x_stride, w = inout(reg) block.tiles => _,
                    line_bytes = in(reg) 64usize, c = in(reg) block.before, to = in(reg) to,
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

/// Prefetches a line to L2.
#[inline(always)]
pub(super) fn ask(line: *const u8) {
    // SAFETY: a prefetch is a hint, never a fault.
    unsafe { asm!("prefetcht1 [{}]", in(reg) line, options(nostack, readonly, preserves_flags)) };
}

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
