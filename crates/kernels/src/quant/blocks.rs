//! Weights as in a GGUF file: small groups, each with its scale and maybe a minimum, which are not multiples of a common one.
//!
//! ```text
//! w[k] = scale * level + min       scale, min of the group of k: 16 or 32 adjacent weights; level: an 8-bit integer
//!                                  scale = d * ratio, min = m * min_ratio: d, m f16 or powers of two, the ratios 8 bits,
//!                                  products exact in f32
//!
//! step, 64 deep, 32 columns   [ scales | minima | tile 0 | tile 1 ]      tiles of 8-bit levels, or of 4-bit codes, 16 levels
//!   Scales::Half    [group][32] f16,     then the same for minima        Q8_0, Q5_0, Q4_0, Q4_1, IQ4_NL: d itself
//!   Scales::Super   [32] f16 d, [group][32] i8 ratios, then the same     K-quants: 64 weights are in one block of 256
//!   Scales::Power   [group][32] u8,      the exponents of f32            MXFP4
//!   Scales::Full    [group][32] f32,     then the same                   matrices with parts in different formats
//! ```
//! Nothing is requantized: every weight is the one in the file. Products within a group are exact integers; groups are
//! joined in f32, in order, with one rounding each.

use super::{INT4_TILE, PAIR, TILE};
use half::f16;

/// Width of a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codes {
    /// 4 bits: one of 16 levels.
    Four {
        /// Level of each code.
        levels: [i8; 16],
    },
    /// 8 bits: the level itself.
    Eight,
}

/// Storage of scales and minima.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// f16 per group; all ratios are 1.
    Half,
    /// f16 per 64 weights, and an 8-bit ratio per group.
    Super,
    /// A power of two per group, or 0: the 8 bits of an f32's exponent. There are no minima.
    Power,
    /// f32 per group.
    Full,
}

/// A layout for the weights of one or several block types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockFormat {
    /// Width of a code.
    pub codes: Codes,
    /// Weights that share a scale: 16 or 32.
    pub group: usize,
    /// Whether groups have a minimum.
    pub mins: bool,
    /// Storage of scales and minima.
    pub scales: Scales,
}

/// Scale and minimum of a group.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GroupScale {
    /// Multiplies `ratio`: a number of f16, or a power of two.
    pub d: f32,
    /// Scale in units of `d`.
    pub ratio: i8,
    /// Multiplies `min_ratio`: a number of f16.
    pub m: f32,
    /// Minimum in units of `m`.
    pub min_ratio: i8,
}

impl GroupScale {
    /// The scale of a group of zeros.
    pub const ZERO: GroupScale = GroupScale { d: 0.0, ratio: 0, m: 0.0, min_ratio: 0 };

    /// Value of one level step: exact.
    pub fn scale(&self) -> f32 {
        self.d * f32::from(self.ratio)
    }

    /// Value of level 0: exact.
    pub fn min(&self) -> f32 {
        self.m * f32::from(self.min_ratio)
    }
}

/// Source of weights in groups: `source.0(row, levels, scales)` writes row `0..out_features` as levels,
/// `[in_features]`, and the scales of its groups, `[in_features / group]` rounded up. For 4-bit codes the levels are
/// among the 16; for [`Scales::Super`] the groups of 64 weights have equal `d` and `m`; for [`Scales::Half`] all ratios
/// are 1; for [`Scales::Power`] they are 1, and `d` is a normal power of two or 0. Called from several threads, once per row.
pub struct BlockSource<'a>(pub &'a BlockRows<'a>);

/// `(row, levels, scales)`, see [`BlockSource`].
pub type BlockRows<'a> = dyn Fn(usize, &mut [i8], &mut [GroupScale]) + Sync + 'a;

impl BlockFormat {
    /// The narrowest format that holds the weights of both.
    pub fn join(self, other: BlockFormat) -> BlockFormat {
        let scales = match (self.scales, other.scales) {
            (a, b) if a == b => a,
            _ => Scales::Full,
        };
        BlockFormat {
            codes: if self.codes == other.codes { self.codes } else { Codes::Eight },
            group: self.group.min(other.group),
            mins: self.mins || other.mins,
            scales,
        }
    }

    /// Groups in a step of 64.
    pub(crate) const fn groups(&self) -> usize {
        64 / self.group
    }

    /// Bytes of the scales of a step, and of its minima.
    pub(crate) const fn scale_bytes(&self) -> (usize, usize) {
        let bytes = match self.scales {
            Scales::Half => self.groups() * PAIR * 2,
            Scales::Super => PAIR * 2 + self.groups() * PAIR,
            Scales::Power => self.groups() * PAIR,
            Scales::Full => self.groups() * PAIR * 4,
        };
        (bytes, if self.mins { bytes } else { 0 })
    }

    /// Bytes of a tile.
    pub(crate) const fn tile_bytes(&self) -> usize {
        match self.codes {
            Codes::Four { .. } => INT4_TILE,
            Codes::Eight => TILE,
        }
    }

    /// Bytes of a step of a pair of strips.
    pub const fn step_bytes(&self) -> usize {
        let (scales, mins) = self.scale_bytes();
        scales + mins + 2 * self.tile_bytes()
    }

    /// Writes the scales, or the minima, of one column of a step: `of` returns d and ratio of each of its groups.
    pub(super) fn write_scales(&self, to: &mut [u8], column: usize, of: impl Fn(usize) -> (f32, i8)) {
        for group in 0..self.groups() {
            let (d, ratio) = of(group);
            match self.scales {
                Scales::Half => to[(group * PAIR + column) * 2..][..2].copy_from_slice(&f16::from_f32(d).to_le_bytes()),
                Scales::Super => {
                    to[column * 2..][..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
                    to[PAIR * 2 + group * PAIR + column] = ratio as u8;
                }
                Scales::Power => to[group * PAIR + column] = ((d * f32::from(ratio)).to_bits() >> 23) as u8,
                Scales::Full => {
                    let scale = d * f32::from(ratio);
                    to[(group * PAIR + column) * 4..][..4].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
    }

    /// The scale, or the minimum, of one group in one column of a step.
    pub(crate) fn read_scale(&self, from: &[u8], group: usize, column: usize) -> f32 {
        let half = |at: usize| f16::from_le_bytes([from[at], from[at + 1]]).to_f32();
        match self.scales {
            Scales::Half => half((group * PAIR + column) * 2),
            Scales::Super => half(column * 2) * f32::from(from[PAIR * 2 + group * PAIR + column] as i8),
            Scales::Power => f32::from_bits(u32::from(from[group * PAIR + column]) << 23),
            Scales::Full => {
                let at = (group * PAIR + column) * 4;
                f32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]])
            }
        }
    }

    /// Level, scale and minimum of the weight at `k % 64` of a step, in one column.
    pub(crate) fn weight(&self, step: &[u8], k: usize, column: usize) -> (i8, f32, f32) {
        let (scale_bytes, min_bytes) = self.scale_bytes();
        let (scales, rest) = step.split_at(scale_bytes);
        let (mins, tiles) = rest.split_at(min_bytes);
        let tile = &tiles[column / 16 * self.tile_bytes()..][..self.tile_bytes()];
        let level = match &self.codes {
            Codes::Four { levels } => {
                let byte = tile[k / 8 * 64 + column % 16 * 4 + k % 4];
                levels[usize::from(byte >> (k / 4 % 2 * 4) & 15)]
            }
            Codes::Eight => tile[k / 4 * 64 + column % 16 * 4 + k % 4] as i8,
        };
        let min = if self.mins { self.read_scale(mins, k / self.group, column) } else { 0.0 };
        (level, self.read_scale(scales, k / self.group, column), min)
    }
}

/// `scale * level + min` with the usual rounding of dequantization: the product, then the sum.
pub(crate) fn value((level, scale, min): (i8, f32, f32), mins: bool) -> f32 {
    let product = scale * f32::from(level);
    if mins { product + min } else { product }
}
