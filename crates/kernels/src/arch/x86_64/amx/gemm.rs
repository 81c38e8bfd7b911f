//! AMX kernels: tiles of 16 rows x 64 bytes, `TDPBSSD` for int8 and `TDPBF16PS` for bf16.
//!
//! ```text
//!                 tmm2 = tile of strip 0   tmm3 = tile of strip 1
//! tmm0 = rows 0..16      tmm4 +=                 tmm5 +=
//! tmm1 = rows 16..32     tmm6 +=                 tmm7 +=
//! ```
//! Fewer rows change only the tile configuration. The whole K loop is one `asm!`, since tile registers, which the
//! compiler does not track, must not carry a value from one `asm!` to the next.
//!
//! Reading both operands from L2 would halve the rate, so K is cut into blocks whose part of a pair of strips stays in
//! L1 for all rows; between blocks the sums are in memory, exactly (f32 and i32 tiles are stored unchanged).
//!
//! Int4 weights with even levels are unpacked to int8 tiles of `ratio * q`, a K block at a time, and then multiplied
//! like int8 (uneven ones, whose products do not fit int8, use vectors). A ratio larger than 15 is cut into two digits,
//! `ratio = 16 h + l`, and the rows are multiplied twice: the sums of `h * q` are multiplied by 16 before those of
//! `l * q` are added. That is the same integer, so the bits are the same. Int8 groups with ratios other than 1 are stored
//! and added to the sums by vectors, two steps at a time. Unpacking a tile costs as many cycles as multiplying it with
//! 30 rows, so int4 panels are taller than others.

use super::super::proofs::{Amx, Avx512};
use super::Tiles;
use crate::gemm::{MAX_ROWS, PANEL_ROWS, Product, Sums};
use crate::quant::{INT4_RATIOS, INT4_TILE, INT8_GROUP, PAIR, Ratios, TILE, WeightClass};
use crate::threads::share;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Steps of a K block: 32 KiB of a pair of strips.
const BLOCK_STEPS: usize = 16;
/// Steps of an int8 group; int4 and bf16 use the same number.
const GROUP_STEPS: usize = INT8_GROUP / 64;
/// Rows of the two row tiles.
const BLOCK_ROWS: usize = 32;
/// Bytes of a row of sums.
const SUMS_STRIDE: usize = PAIR * 4;

/// Rows of each register for `rows` in `1..=32`, as in the module's diagram.
fn rows_of_tiles(rows: usize) -> [u8; 8] {
    let low = rows.min(16) as u8;
    let high = rows.saturating_sub(16).max(1) as u8; // a configured tile needs at least one row
    [low, high, 16, 16, low, low, high, high]
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

/// Maximum rows of a panel.
const MAX_PANEL_ROWS: usize = 512;
/// Activation bytes of an int4 panel: they are read once per pair of strips, so they should stay in L2.
const INT4_PANEL_BYTES: usize = 1 << 20;

/// Rows of a panel over `in_features`.
pub(crate) fn panel_rows(_proof: Amx, class: WeightClass, in_features: usize) -> usize {
    match class {
        WeightClass::Int4 => {
            (INT4_PANEL_BYTES / in_features / BLOCK_ROWS * BLOCK_ROWS).clamp(PANEL_ROWS, MAX_PANEL_ROWS)
        }
        WeightClass::Bf16 | WeightClass::Int8 => PANEL_ROWS,
    }
}

/// A K block of int8 tiles.
#[repr(C, align(64))]
struct UnpackedBlock([u8; BLOCK_STEPS * 2 * TILE]);

/// Contents of an int4 tile.
#[derive(Clone, Copy, PartialEq)]
enum Digit {
    /// `ratio * q`, for ratios up to 15.
    Whole,
    /// `h * q`, where `ratio = 16 h + l` and `l` is in -8..=7.
    High,
    /// `l * q`.
    Low,
}

/// Unpacks int4 steps to int8 tiles, `[steps][2]`.
///
/// Two weights at a time: with `a = |ratio|` and nibbles `x`, `y`, `(x + 256 y) * a` leaves `x * a` and `y * a` in
/// their bytes, since neither exceeds 15 * 15. A nibble is `q + 8`, so `8 a` is subtracted; for a negative ratio the
/// nibble is inverted first, which makes it `7 - q`, and `7 a` is subtracted.
///
/// # Safety
/// `to` has room for the steps, aligned to 64.
unsafe fn unpack_int4(_proof: Avx512, steps: &[u8], digit: Digit, to: *mut u8) {
    // SAFETY: there is a proof of the instructions; the rest is the caller's promise.
    unsafe { unpack_int4_steps(steps, digit, to) }
}

/// # Safety
/// As for [`unpack_int4`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_int4_steps(steps: &[u8], digit: Digit, to: *mut u8) {
    let nibble = _mm512_set1_epi8(15);
    for (step, from) in steps.chunks_exact(WeightClass::Int4.step_bytes()).enumerate() {
        for part in 0..4 {
            // Strip `part / 2`, group `part % 2`: half a tile.
            // SAFETY: a step is 64 ratios and two tiles of 512 bytes, and becomes two of 1024.
            unsafe {
                let ratios = _mm_loadu_si128(from.as_ptr().add(part * 16).cast());
                let ratios = _mm512_cvtepi8_epi32(ratios);
                let high = _mm512_srai_epi32::<4>(_mm512_add_epi32(ratios, _mm512_set1_epi32(8)));
                let ratios = match digit {
                    Digit::Whole => ratios,
                    Digit::High => high,
                    Digit::Low => _mm512_sub_epi32(ratios, _mm512_slli_epi32::<4>(high)),
                };
                let inverted = _mm512_srai_epi32::<31>(ratios);
                let factor = _mm512_abs_epi32(ratios);
                let excess = _mm512_add_epi32(_mm512_slli_epi32::<3>(factor), _mm512_mullo_epi32(inverted, factor));
                let factor = _mm512_or_si512(factor, _mm512_slli_epi32::<16>(factor));
                let excess = _mm512_or_si512(excess, _mm512_slli_epi32::<8>(excess));
                let excess = _mm512_or_si512(excess, _mm512_slli_epi32::<16>(excess));
                let from = from.as_ptr().add(INT4_RATIOS + part * (INT4_TILE / 2));
                let to = to.add(step * 2 * TILE + part * (TILE / 2));
                for line in 0..4 {
                    let packed = _mm512_xor_si512(_mm512_loadu_si512(from.add(line * 64).cast()), inverted);
                    let quads = [packed, _mm512_srli_epi16::<4>(packed)];
                    for (quad, nibbles) in quads.map(|quad| _mm512_and_si512(quad, nibble)).into_iter().enumerate() {
                        let products = _mm512_sub_epi8(_mm512_mullo_epi16(nibbles, factor), excess);
                        _mm512_store_si512(to.add((line * 2 + quad) * 64).cast(), products);
                    }
                }
            }
        }
    }
}

/// Computes rows x pairs of a product with tiles.
pub(crate) fn panel(proof: Amx, product: &Product<'_>, rows: Range<usize>, pairs: Range<usize>) {
    let mut sums = MaybeUninit::<Sums<MAX_PANEL_ROWS>>::uninit();
    let mut unpacked = MaybeUninit::<UnpackedBlock>::uninit();
    assert!(rows.len() <= MAX_PANEL_ROWS);
    let first_sums = sums.as_mut_ptr().cast::<u32>();
    let mut tiles = Tiles::new(proof);
    let (w, x) = (product.w, &product.activations);
    // Whole groups per block, so that a group's ratios apply to its complete sum.
    let groups = w.steps().div_ceil(GROUP_STEPS);
    let k_blocks = groups.div_ceil(BLOCK_STEPS / GROUP_STEPS);
    let step_bytes = w.class().step_bytes();
    let digits: &[Digit] = if w.class() == WeightClass::Int4 && w.ratios() == Ratios::Wide {
        &[Digit::High, Digit::Low]
    } else {
        &[Digit::Whole]
    };
    for pair in pairs {
        for (&digit, k_block) in digits.iter().flat_map(|digit| (0..k_blocks).map(move |k_block| (digit, k_block))) {
            let part = share(groups, k_blocks, k_block);
            let steps = part.start * GROUP_STEPS..(part.end * GROUP_STEPS).min(w.steps());
            let (ratios, from) = w.pair(pair);
            let from = &from[steps.start * step_bytes..steps.end * step_bytes];
            let block_tiles = match w.class() {
                WeightClass::Bf16 | WeightClass::Int8 => from.as_ptr(),
                WeightClass::Int4 => {
                    let to = unpacked.as_mut_ptr().cast();
                    // SAFETY: a K block has at most `BLOCK_STEPS` steps.
                    unsafe { unpack_int4(proof.avx512(), from, digit, to) };
                    to.cast_const()
                }
            };
            if digit == Digit::Low && k_block == 0 {
                for at in 0..rows.len() * PAIR {
                    // SAFETY: the sums of the high digits were written, for every row of the panel.
                    unsafe { *first_sums.add(at) <<= 4 };
                }
            }
            for first in rows.clone().step_by(BLOCK_ROWS) {
                let count = BLOCK_ROWS.min(rows.end - first);
                tiles.configure(rows_of_tiles(count));
                // SAFETY: rows and steps are within the activations and the matrix, whose formats `linear` chose for
                // tiles; `sums` holds `MAX_PANEL_ROWS` rows and those of earlier K blocks were written; the tiles are
                // configured for `count` rows.
                unsafe {
                    let block = TileBlock {
                        x: x.row(first).add(steps.start * 64),
                        x_stride: x.stride(),
                        tiles: block_tiles,
                        steps: steps.len(),
                        sums: first_sums.add((first - rows.start) * PAIR),
                        resume: k_block > 0 || digit == Digit::Low,
                    };
                    if w.class() == WeightClass::Int8 && w.ratios() != Ratios::One {
                        int8_groups(proof.avx512(), block, count, &ratios[steps.start * 64 / INT8_GROUP * PAIR..]);
                        continue;
                    }
                    match (w.class(), count > 16) {
                        (WeightClass::Int8 | WeightClass::Int4, true) => int8_two(block),
                        (WeightClass::Int8 | WeightClass::Int4, false) => int8_one(block),
                        (WeightClass::Bf16, true) => bf16_two(block),
                        (WeightClass::Bf16, false) => bf16_one(block),
                    }
                }
            }
        }
        for first in rows.clone().step_by(MAX_ROWS) {
            let count = MAX_ROWS.min(rows.end - first);
            // SAFETY: the loop above wrote the sums of every row of the panel.
            let sums = unsafe {
                std::slice::from_raw_parts(first_sums.add((first - rows.start) * PAIR).cast::<[u32; PAIR]>(), count)
            };
            product.finish(sums, first, pair);
        }
    }
}

/// Adds the groups of an int8 block, each multiplied by its ratios, to its sums.
///
/// # Safety
/// As for the kernels; `ratios` are those of the block's groups, from its first.
unsafe fn int8_groups(_proof: Avx512, block: TileBlock, rows: usize, ratios: &[u8]) {
    let mut group = MaybeUninit::<Sums<BLOCK_ROWS>>::uninit();
    let sums = group.as_mut_ptr().cast::<u32>();
    for (index, first) in (0..block.steps).step_by(GROUP_STEPS).enumerate() {
        // SAFETY: the steps are within the block, the group's sums hold its rows, there are 32 ratios for each group,
        // and a proof of the instructions.
        unsafe {
            let part = TileBlock {
                x: block.x.add(first * 64),
                x_stride: block.x_stride,
                tiles: block.tiles.add(first * 2 * TILE),
                steps: GROUP_STEPS.min(block.steps - first),
                sums,
                resume: false,
            };
            if rows > 16 {
                int8_two(part)
            } else {
                int8_one(part)
            }
            add_by_ratio(sums, ratios[index * PAIR..][..PAIR].as_ptr(), rows, block.sums, block.resume || index > 0);
        }
    }
}

/// `to = sums * ratios`, or `to += ..`, for rows of 32.
///
/// # Safety
/// The CPU has AVX-512; `sums` and `to` hold the rows, and there are 32 ratios.
#[target_feature(enable = "avx512f")]
unsafe fn add_by_ratio(sums: *const u32, ratios: *const u8, rows: usize, to: *mut u32, add: bool) {
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

/// The two kernels of a class: 17..=32 rows, and 1..=16. The latter is bound by memory, so it prefetches its weights:
/// 4 KiB ahead, every second line (the hardware fetches lines in pairs).
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

/// Multiplies register tiles `rounds` times, eight products a round, and returns the number of multiply-adds: the peak
/// of the tile unit.
pub(crate) fn peak(proof: Amx, class: WeightClass, rounds: usize) -> f64 {
    let mut tiles = Tiles::new(proof);
    tiles.configure(rows_of_tiles(BLOCK_ROWS));
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
