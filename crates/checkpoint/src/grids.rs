//! The block types of GGUF whose codes are places in a grid: 8 numbers of 2 bits, or 4 of 3, chosen together.
//!
//! ```text
//!          index bits            signs of 8       scale                                          w
//! IQ2_XXS  8 of 256, 8 numbers   7 bits, parity   4 bits for 32     d (2 s + 1) / 8 * [8 25 43]
//! IQ2_XS   9 of 512              7 bits, parity   4 bits for 16
//! IQ2_S    10 of 1024            8 bits           4 bits for 16
//! IQ3_XXS  8 of 256, 4 numbers   7 bits, parity   4 bits for 32     d (2 s + 1) / 4 * [4 12 20 28 36 44 52 62]
//! IQ3_S    9 of 512, 4 numbers   8 bits           4 bits for 32     d (2 s + 1)     * [1 3 5 .. 15]
//! IQ1_S    11 of 2048, 8         none             3 bits for 32     d (2 s + 1)     * ([-1 0 1] + 1/8 or - 1/8 for 32)
//! IQ1_M    11 of 2048            none             3 bits for 16     the same, 1/8 or - 1/8 for 8; d in four pieces
//! ```
//!
//! `grids.bin` has the grids as the `gguf` package of Python has them: 16 bits for an entry, the first
//! number in the low bits; `oracle/gguf_cases.py --check` compares. A sign of 7 bits has an eighth that makes their
//! number even.

use crate::blocks::{BlockType, half};
use kernels::quant::GroupScale;

/// Grids one behind the other, two bytes an entry.
const GRIDS: &[u8; 2 * (ENDS[5])] = include_bytes!("grids.bin");
/// Entries up to the end of the grids of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and of both of IQ1.
const ENDS: [usize; 6] = [256, 768, 1792, 2048, 2560, 4608];

/// Levels of IQ1 (eighths of `[-1 0 1]` and an eighth more or less) and of IQ2.
pub(crate) const TWO_BITS: [i8; 16] = [-43, -25, -9, -8, -7, -1, 0, 1, 7, 8, 9, 25, 43, 0, 0, 0];
/// Levels of IQ3_XXS.
pub(crate) const THREE_BITS: [i8; 16] = signed([4, 12, 20, 28, 36, 44, 52, 62]);
/// Levels of IQ3_S.
pub(crate) const ODD: [i8; 16] = signed([1, 3, 5, 7, 9, 11, 13, 15]);

const fn signed(levels: [i8; 8]) -> [i8; 16] {
    let (mut all, mut i) = ([0; 16], 0);
    while i < 16 {
        all[i] = if i < 8 { levels[i] } else { -levels[i - 8] };
        i += 1;
    }
    all
}

/// An entry of the grid that begins at entry `first`.
fn entry(first: usize, index: usize) -> u16 {
    u16_at(GRIDS, 2 * (first + index))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Index of `low` and, above its 8 bits, some of `high`.
fn index(low: u8, high: u8, mask: u8) -> usize {
    usize::from(low) | usize::from(high & mask) << 8
}

/// The signs of 7 bits, and the eighth.
fn with_parity(signs: u32) -> u8 {
    let signs = (signs & 127) as u8;
    signs | ((signs.count_ones() & 1) as u8) << 7
}

impl BlockType {
    /// Levels `8 i` to `8 i + 7` of a block.
    pub(crate) fn eight_levels(self, block: &[u8], i: usize) -> [i8; 8] {
        let word = |at: usize| u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16;
        // Of types with a word for 32 numbers: four signs of 7 bits, and the scale.
        let packed_signs = |at: usize| with_parity(word(at) >> (7 * (i % 4)));
        let two = |entry: u16, signs: u8| {
            std::array::from_fn(|j| sign([8, 25, 43, 0][usize::from(entry >> (2 * j) & 3)], signs, j))
        };
        let three = |entries: [u16; 2], levels: &[i8; 16], signs: u8| {
            std::array::from_fn(|j| sign(levels[usize::from(entries[j / 4] >> (j % 4 * 4) & 7)], signs, j))
        };
        let one = |entry: u16, is_less: bool| {
            let shift = if is_less { -1 } else { 1 };
            std::array::from_fn(|j| 8 * ((entry >> (2 * j) & 3) as i8 - 1) + shift)
        };
        match self {
            BlockType::IQ2_XXS => two(entry(0, block[2 + i / 4 * 8 + i % 4].into()), packed_signs(6 + i / 4 * 8)),
            BlockType::IQ2_XS => {
                let code = u16_at(block, 2 + 2 * i);
                two(entry(ENDS[0], usize::from(code & 511)), with_parity(u32::from(code >> 9)))
            }
            BlockType::IQ2_S => {
                let index = index(block[2 + i], block[66 + i / 4] >> (i % 4 * 2), 3);
                two(entry(ENDS[1], index), block[34 + i])
            }
            BlockType::IQ3_XXS => {
                let entries = [0, 1].map(|j| entry(ENDS[2], block[2 + 2 * i + j].into()));
                three(entries, &THREE_BITS, packed_signs(66 + i / 4 * 4))
            }
            BlockType::IQ3_S => {
                let high = |j: usize| block[66 + i / 4] >> (i % 4 * 2 + j);
                let entries = [0, 1].map(|j| entry(ENDS[3], index(block[2 + 2 * i + j], high(j), 1)));
                three(entries, &ODD, block[74 + i])
            }
            BlockType::IQ1_S => {
                let high = u16_at(block, 34 + i / 4 * 2);
                let index = index(block[2 + i], (high >> (i % 4 * 3)) as u8, 7);
                one(entry(ENDS[4], index), high >> 15 == 1)
            }
            BlockType::IQ1_M => {
                let high = block[32 + i / 2] >> (i % 2 * 4);
                one(entry(ENDS[4], index(block[i], high, 7)), high & 8 != 0)
            }
            other => unreachable!("{} has no grid", other.name()),
        }
    }

    /// The scale of a group of [`eight_levels`](Self::eight_levels).
    pub(crate) fn grid_scale(self, block: &[u8], group: usize) -> GroupScale {
        let nibble = |at: usize| block[at + group / 2] >> (group % 2 * 4) & 15;
        let (d, part, scale) = match self {
            BlockType::IQ2_XXS => (half(block, 0), 0.125, block[9 + 8 * group] >> 4),
            BlockType::IQ2_XS => (half(block, 0), 0.125, nibble(66)),
            BlockType::IQ2_S => (half(block, 0), 0.125, nibble(74)),
            BlockType::IQ3_XXS => (half(block, 0), 0.25, block[69 + 4 * group] >> 4),
            BlockType::IQ3_S => (half(block, 0), 1.0, nibble(106)),
            BlockType::IQ1_S => (half(block, 0), 0.125, block[35 + 2 * group] >> 4 & 7),
            BlockType::IQ1_M => {
                let word = |i: usize| u16_at(block, 48 + 2 * i);
                let d = (0..4).fold(0, |d, i| d | word(i) >> 12 << (4 * i));
                (half(&d.to_le_bytes(), 0), 0.125, (word(group / 4) >> (group % 4 * 3) & 7) as u8)
            }
            other => unreachable!("{} has no grid", other.name()),
        };
        GroupScale { d: d * part, ratio: 2 * scale as i8 + 1, ..GroupScale::ZERO }
    }
}

/// A level with the sign of bit `j`.
fn sign(level: i8, signs: u8, j: usize) -> i8 {
    if signs >> j & 1 == 1 { -level } else { level }
}
