//! The block types of GGUF: quantized numbers and their scales as bytes, and their values as floats.
//!
//! ```text
//! Q8_0   [ d: f16 | 32 x i8 ]                                   w = d q
//! Q4_0   [ d: f16 | 32 x 4 bits ]                               w = d (q - 8)
//! Q4_1   [ d: f16 | m: f16 | 32 x 4 bits ]                      w = d q + m
//! Q5_0   [ d: f16 | 32 high bits | 32 x 4 bits ]                w = d (q - 16)          Q5_1: as Q4_1
//! IQ4_NL [ d: f16 | 32 x 4 bits ]                               w = d LEVELS[q]
//! Q4_K   [ d, dmin: f16 | 8 x (6 + 6 bits) | 256 x 4 bits ]     w = (d s) q - dmin m    Q2_K, Q5_K alike
//! Q6_K   [ 256 x 4 bits | 256 x 2 bits | 16 x i8 | d: f16 ]     w = (d s) (q - 32)      Q3_K alike
//! IQ4_XS [ d: f16 | 8 x 6 bits | 256 x 4 bits ]                 w = (d (s - 32)) LEVELS[q]
//! MXFP4  [ e: 8 bits | 32 x 4 bits ]                            w = 2^(e - 128) DOUBLED[q]
//! TQ2_0  [ 256 x 2 bits | d: f16 ]                              w = d (q - 1)           TQ1_0: five to a byte, in base 3
//! NVFP4  [ 4 x 8 bits | 64 x 4 bits ]                           w = (s / 2) DOUBLED[q]  s in e4m3; groups of 16
//! IQ1, IQ2, IQ3: `grids.rs`
//! ```
//!
//! Four-bit numbers of a block are in two halves: the low nibbles are its first half, the high nibbles its second. The
//! formats are ggml's (Gerganov et al., 2023). Products and sums are rounded in the order of Python's `gguf` package,
//! so dequantized floats are equal bit for bit: `oracle/gguf_cases.py` and `tests/gguf.rs`. In one thing they are not:
//! blocks of MXFP4 below 2^-123 (e of 0 and 1) are zeros here.

use crate::grids;
use half::f16;
use kernels::quant::{BlockFormat, Codes, GroupScale, Scales};

/// A supported quantized type.
#[allow(non_camel_case_types, reason = "the format's own names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// 4 bits, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits, a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits, a scale for 32.
    Q8_0,
    /// 2 bits, a 4-bit scale and minimum for 16.
    Q2_K,
    /// 3 bits, a 6-bit scale for 16.
    Q3_K,
    /// 4 bits, a 6-bit scale and minimum for 32.
    Q4_K,
    /// 5 bits, a 6-bit scale and minimum for 32.
    Q5_K,
    /// 6 bits, an 8-bit scale for 16.
    Q6_K,
    /// 4 bits that choose one of 16 uneven levels, a scale for 32.
    IQ4_NL,
    /// The same levels, a 6-bit scale for 32.
    IQ4_XS,
    /// 4 bits that are a float (a sign, two of exponent, one of fraction), a power of two for 32 (Rouhani et al., 2023).
    MXFP4,
    /// -1, 0 or 1 in 1.6 bits, a scale for 256.
    TQ1_0,
    /// -1, 0 or 1 in 2 bits, a scale for 256.
    TQ2_0,
    /// 2 bits in grids of 256, a 4-bit scale for 32.
    IQ2_XXS,
    /// 2 bits in grids of 512, a 4-bit scale for 16.
    IQ2_XS,
    /// 2 bits in grids of 1,024, a 4-bit scale for 16.
    IQ2_S,
    /// 3 bits in grids of 256, a 4-bit scale for 32.
    IQ3_XXS,
    /// 3 bits in grids of 512, a 4-bit scale for 32.
    IQ3_S,
    /// -1, 0 or 1 in grids of 2,048, moved by an eighth, a 3-bit scale for 32.
    IQ1_S,
    /// The same with a 3-bit scale for 16.
    IQ1_M,
    /// The floats of MXFP4 with a scale of 8 bits, a float too, for 16.
    NVFP4,
}

impl BlockType {
    /// All types.
    pub const ALL: [BlockType; 23] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q2_K,
        BlockType::Q3_K,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
        BlockType::IQ4_NL,
        BlockType::IQ4_XS,
        BlockType::MXFP4,
        BlockType::TQ1_0,
        BlockType::TQ2_0,
        BlockType::IQ2_XXS,
        BlockType::IQ2_XS,
        BlockType::IQ2_S,
        BlockType::IQ3_XXS,
        BlockType::IQ3_S,
        BlockType::IQ1_S,
        BlockType::IQ1_M,
        BlockType::NVFP4,
    ];

    /// ggml's name.
    pub fn name(self) -> &'static str {
        match self {
            BlockType::Q4_0 => "Q4_0",
            BlockType::Q4_1 => "Q4_1",
            BlockType::Q5_0 => "Q5_0",
            BlockType::Q5_1 => "Q5_1",
            BlockType::Q8_0 => "Q8_0",
            BlockType::Q2_K => "Q2_K",
            BlockType::Q3_K => "Q3_K",
            BlockType::Q4_K => "Q4_K",
            BlockType::Q5_K => "Q5_K",
            BlockType::Q6_K => "Q6_K",
            BlockType::IQ4_NL => "IQ4_NL",
            BlockType::IQ4_XS => "IQ4_XS",
            BlockType::MXFP4 => "MXFP4",
            BlockType::TQ1_0 => "TQ1_0",
            BlockType::TQ2_0 => "TQ2_0",
            BlockType::IQ2_XXS => "IQ2_XXS",
            BlockType::IQ2_XS => "IQ2_XS",
            BlockType::IQ2_S => "IQ2_S",
            BlockType::IQ3_XXS => "IQ3_XXS",
            BlockType::IQ3_S => "IQ3_S",
            BlockType::IQ1_S => "IQ1_S",
            BlockType::IQ1_M => "IQ1_M",
            BlockType::NVFP4 => "NVFP4",
        }
    }

    /// Numbers and bytes of a block.
    pub fn size(self) -> (usize, usize) {
        match self {
            BlockType::Q4_0 | BlockType::IQ4_NL => (32, 18),
            BlockType::MXFP4 => (32, 17),
            BlockType::Q4_1 => (32, 20),
            BlockType::Q5_0 => (32, 22),
            BlockType::Q5_1 => (32, 24),
            BlockType::Q8_0 => (32, 34),
            BlockType::Q2_K => (256, 84),
            BlockType::Q3_K => (256, 110),
            BlockType::Q4_K => (256, 144),
            BlockType::Q5_K => (256, 176),
            BlockType::Q6_K => (256, 210),
            BlockType::IQ4_XS => (256, 136),
            BlockType::TQ1_0 => (256, 54),
            BlockType::TQ2_0 | BlockType::IQ2_XXS => (256, 66),
            BlockType::IQ2_XS => (256, 74),
            BlockType::IQ2_S => (256, 82),
            BlockType::IQ3_XXS => (256, 98),
            BlockType::IQ3_S => (256, 110),
            BlockType::IQ1_S => (256, 50),
            BlockType::IQ1_M => (256, 56),
            BlockType::NVFP4 => (64, 36),
        }
    }

    /// The packed layout that holds these weights unchanged.
    pub fn format(self) -> BlockFormat {
        use BlockType::*;
        // Types of fewer bits share the table of a wider one, so that a matrix of several types stays at 4 bits.
        let four = |first: i8| Codes::Four { levels: std::array::from_fn(|code| code as i8 + first) };
        let codes = match self {
            Q4_0 | Q3_K | TQ1_0 | TQ2_0 => four(-8),
            Q4_1 | Q4_K | Q2_K => four(0),
            IQ4_NL | IQ4_XS => Codes::Four { levels: LEVELS },
            MXFP4 | NVFP4 => Codes::Four { levels: DOUBLED },
            IQ2_XXS | IQ2_XS | IQ2_S | IQ1_S | IQ1_M => Codes::Four { levels: grids::TWO_BITS },
            IQ3_XXS => Codes::Four { levels: grids::THREE_BITS },
            IQ3_S => Codes::Four { levels: grids::ODD },
            Q5_0 | Q5_1 | Q8_0 | Q5_K | Q6_K => Codes::Eight,
        };
        let group = if matches!(self, Q2_K | Q3_K | Q6_K | IQ2_XS | IQ2_S | IQ1_M | NVFP4) { 16 } else { 32 };
        let mins = matches!(self, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K);
        let scales = match self {
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS | IQ3_S => Scales::Super,
            // A part of d, which may be too small for a half.
            IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ1_S | IQ1_M => Scales::Full,
            MXFP4 => Scales::Power,
            _ => Scales::Half,
        };
        BlockFormat { codes, group, mins, scales }
    }

    /// Whole blocks to levels and the scales of their groups: `bytes` are those of `levels`, and `scales` has the
    /// groups of [`format`](Self::format). `scale * level + min` equals the result of [`decode`](Self::decode), bit for
    /// bit.
    pub fn groups(self, bytes: &[u8], levels: &mut [i8], scales: &mut [GroupScale]) {
        let (elements, block_bytes) = self.size();
        let per_block = elements / self.format().group;
        let blocks = bytes.chunks_exact(block_bytes).zip(levels.chunks_exact_mut(elements));
        for ((block, levels), scales) in blocks.zip(scales.chunks_exact_mut(per_block)) {
            self.block_groups(block, levels, scales);
        }
    }

    fn block_groups(self, block: &[u8], levels: &mut [i8], scales: &mut [GroupScale]) {
        let f16_at = |at: usize| half(block, at);
        let mut set = |from: &mut dyn Iterator<Item = i8>| levels.iter_mut().zip(from).for_each(|(to, q)| *to = q);
        // K-quants subtract the minimum that is added here.
        let k = |(d, ratio): (f32, i8), (m, min_ratio): (f32, i8)| GroupScale { d, ratio, m: -m, min_ratio };
        let none = (0.0, 0);
        match self {
            BlockType::Q4_0 => set(&mut nibbles(&block[2..]).into_iter().map(|q| q as i8 - 8)),
            BlockType::IQ4_NL => set(&mut nibbles(&block[2..]).into_iter().map(|q| LEVELS[usize::from(q)])),
            BlockType::MXFP4 => set(&mut nibbles(&block[1..]).into_iter().map(|q| DOUBLED[usize::from(q)])),
            BlockType::Q4_1 => set(&mut nibbles(&block[4..]).into_iter().map(|q| q as i8)),
            BlockType::Q5_0 => {
                set(&mut fifth_bits(&block[2..6], nibbles(&block[6..])).into_iter().map(|q| q as i8 - 16));
            }
            BlockType::Q5_1 => set(&mut fifth_bits(&block[4..8], nibbles(&block[8..])).into_iter().map(|q| q as i8)),
            BlockType::Q8_0 => set(&mut block[2..].iter().map(|&q| q as i8)),
            BlockType::Q2_K => set(&mut (0..256).map(|i| two_bits(&block[16..80], i) as i8)),
            BlockType::Q3_K => {
                set(&mut (0..256)
                    .map(|i| two_bits(&block[32..96], i) as i8 - ((one_bit(&block[..32], i) ^ 1) << 2) as i8))
            }
            BlockType::Q4_K => set(&mut (0..256).map(|i| four_bits(&block[16..], 32, i) as i8)),
            BlockType::Q5_K => {
                set(&mut (0..256).map(|i| (four_bits(&block[48..], 32, i) | one_bit(&block[16..48], i) << 4) as i8))
            }
            BlockType::Q6_K => set(&mut (0..256)
                .map(|i| (four_bits(&block[..128], 64, i) | two_bits(&block[128..192], i) << 4) as i8 - 32)),
            BlockType::IQ4_XS => {
                set(&mut (0..256).map(|i| LEVELS[usize::from(four_bits(&block[8..], 16, i))]));
            }
            BlockType::TQ1_0 => set(&mut (0..256).map(|i| in_base_three(&block[..52], i) as i8 - 1)),
            BlockType::TQ2_0 => set(&mut (0..256).map(|i| two_bits(&block[..64], i) as i8 - 1)),
            BlockType::NVFP4 => {
                set(&mut (0..64).map(|i| DOUBLED[usize::from(block[4 + i / 16 * 8 + i % 8] >> (i / 8 % 2 * 4) & 15)]))
            }
            _ => set(&mut (0..32).flat_map(|i| self.eight_levels(block, i))),
        }
        let of = |group: usize| match self {
            BlockType::Q4_0 | BlockType::IQ4_NL | BlockType::Q5_0 | BlockType::Q8_0 => {
                GroupScale { d: f16_at(0), ratio: 1, ..GroupScale::ZERO }
            }
            BlockType::MXFP4 => GroupScale { d: half_power(block[0]), ratio: 1, ..GroupScale::ZERO },
            BlockType::Q4_1 | BlockType::Q5_1 => GroupScale { d: f16_at(0), ratio: 1, m: f16_at(2), min_ratio: 1 },
            BlockType::Q2_K => {
                let byte = block[group];
                k((f16_at(80), (byte & 15) as i8), (f16_at(82), (byte >> 4) as i8))
            }
            BlockType::Q3_K => k((f16_at(108), q3_k_scale(&block[96..108], group)), none),
            BlockType::Q4_K | BlockType::Q5_K => {
                let (scale, min) = scale_and_min(&block[4..16], group);
                k((f16_at(0), scale as i8), (f16_at(2), min as i8))
            }
            BlockType::Q6_K => k((f16_at(208), block[192 + group] as i8), none),
            BlockType::IQ4_XS => k((f16_at(0), iq4_xs_scale(&block[2..8], group)), none),
            BlockType::TQ1_0 => GroupScale { d: f16_at(52), ratio: 1, ..GroupScale::ZERO },
            BlockType::TQ2_0 => GroupScale { d: f16_at(64), ratio: 1, ..GroupScale::ZERO },
            // What is no number counts as 0, as in ggml; the sign has no meaning.
            BlockType::NVFP4 => match block[group] {
                127 => GroupScale::ZERO,
                code => GroupScale { d: e4m3(code & 127).min(480.0) / 2.0, ratio: 1, ..GroupScale::ZERO },
            },
            _ => self.grid_scale(block, group),
        };
        scales.iter_mut().enumerate().for_each(|(group, scale)| *scale = of(group));
    }

    /// Whole blocks to floats: `bytes` are those of `out`.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            BlockType::Q4_0 => each(bytes, out, q4_0),
            BlockType::Q4_1 => each(bytes, out, q4_1),
            BlockType::Q5_0 => each(bytes, out, q5_0),
            BlockType::Q5_1 => each(bytes, out, q5_1),
            BlockType::Q8_0 => each(bytes, out, q8_0),
            BlockType::Q2_K => each(bytes, out, q2_k),
            BlockType::Q3_K => each(bytes, out, q3_k),
            BlockType::Q4_K => each(bytes, out, q4_k),
            BlockType::Q5_K => each(bytes, out, q5_k),
            BlockType::Q6_K => each(bytes, out, q6_k),
            BlockType::IQ4_NL => each(bytes, out, iq4_nl),
            BlockType::IQ4_XS => each(bytes, out, iq4_xs),
            BlockType::MXFP4 => each(bytes, out, mxfp4),
            BlockType::TQ1_0 => each(bytes, out, tq1_0),
            BlockType::TQ2_0 => each(bytes, out, tq2_0),
            _ => self.decode_groups(bytes, out),
        }
    }

    /// [`decode`](Self::decode) by levels and scales.
    fn decode_groups(self, bytes: &[u8], out: &mut [f32]) {
        let ((elements, block_bytes), group) = (self.size(), self.format().group);
        let (mut levels, mut scales) = ([0; 256], [GroupScale::ZERO; 16]);
        for (block, out) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(elements)) {
            self.block_groups(block, &mut levels[..elements], &mut scales[..elements / group]);
            for ((out, levels), scale) in out.chunks_mut(group).zip(levels.chunks(group)).zip(&scales) {
                out.iter_mut().zip(levels).for_each(|(out, &level)| *out = scale.scale() * f32::from(level));
            }
        }
    }
}

impl BlockType {
    /// Floats to whole blocks, like ggml's reference quantizers and byte for byte like the `gguf` package: the number
    /// of largest magnitude determines the scale. For Q8_0 and Q4_0, which this program writes.
    pub fn encode(self, values: &[f32], bytes: &mut [u8]) {
        match self {
            BlockType::Q8_0 => {
                for (values, block) in values.as_chunks().0.iter().zip(bytes.as_chunks_mut().0) {
                    encode_q8_0(values, block);
                }
            }
            BlockType::Q4_0 => {
                for (values, block) in values.as_chunks().0.iter().zip(bytes.as_chunks_mut().0) {
                    encode_q4_0(values, block);
                }
            }
            other => unreachable!("{} is not written", other.name()),
        }
    }
}

fn encode_q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let d = values.iter().fold(0f32, |largest, x| largest.max(x.abs())) / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (q, x) in block[2..].iter_mut().zip(values) {
        *q = (x * inverse).round() as i8 as u8; // halves away from zero
    }
}

fn encode_q4_0(values: &[f32; 32], block: &mut [u8; 18]) {
    // The first of equals.
    let largest = values.iter().fold(values[0], |largest, x| if x.abs() > largest.abs() { *x } else { largest });
    let d = largest / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let q = values.map(|x| ((x * inverse + 8.5) as u8).min(15));
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (i, byte) in block[2..].iter_mut().enumerate() {
        *byte = q[i] | q[i + 16] << 4;
    }
}

/// The numbers of MXFP4's codes, doubled: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the negative ones.
pub(crate) const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half the scale of a block of MXFP4: `2^(e - 128)`. 0 where that is no normal number, NaN where some code times it is no
/// number at all.
fn half_power(e: u8) -> f32 {
    match e {
        0 | 1 => 0.0,
        253.. => f32::NAN,
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// The number of a code: a sign, 4 bits of exponent with bias 7, 3 of fraction; the largest is NaN, and none infinite.
pub(crate) fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        _ if code & 0x7f == 0x7f => f32::NAN,
        0 => fraction * 2f32.powi(-9),
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}

/// A block of MXFP4 from its scale and its codes as safetensors have them, neighbours in a byte.
pub(crate) fn mxfp4_block(scale: u8, pairs: &[u8; 16], block: &mut [u8; 17]) {
    let code = |i: usize| pairs[i / 2] >> (i % 2 * 4) & 15;
    block[0] = scale;
    block[1..].iter_mut().enumerate().for_each(|(i, byte)| *byte = code(i) | code(i + 16) << 4);
}

/// The levels of IQ4_NL and IQ4_XS.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn each<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, out) = (bytes.as_chunks::<BYTES>().0, out.as_chunks_mut::<ELEMENTS>().0);
    assert_eq!(blocks.len(), out.len(), "bytes hold the blocks of out");
    for (block, out) in blocks.iter().zip(out) {
        decode(block, out);
    }
}

pub(crate) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The nibbles of 16 bytes: 32 numbers.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut q = [0; 32];
    for (i, byte) in bytes[..16].iter().enumerate() {
        (q[i], q[i + 16]) = (byte & 15, byte >> 4);
    }
    q
}

/// Adds bit `i` of `high` to the nibbles as number `i`'s fifth bit.
fn fifth_bits(high: &[u8], mut q: [u8; 32]) -> [u8; 32] {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= ((high >> i & 1) as u8) << 4;
    }
    q
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    *out = nibbles(&block[2..]).map(|q| d * f32::from(q as i8 - 8));
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (out, q) in out.iter_mut().zip(nibbles(&block[4..])) {
        *out = d * f32::from(q) + m;
    }
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, q) in out.iter_mut().zip(fifth_bits(&block[2..6], nibbles(&block[6..]))) {
        *out = d * f32::from(q as i8 - 16);
    }
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (out, q) in out.iter_mut().zip(fifth_bits(&block[4..8], nibbles(&block[8..]))) {
        *out = d * f32::from(q) + m;
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, q) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(*q as i8) * d;
    }
}

fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *out = d * f32::from(LEVELS[q as usize]);
    }
}

fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_power(block[0]);
    *out = nibbles(&block[1..]).map(|q| d * f32::from(DOUBLED[usize::from(q)]));
}

/// Number `i` of 256 two-bit ones: each run of 32 bytes holds four runs of 32 numbers.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3
}

/// Number `i` of 256 digits in base 3, five to each of 48 bytes and four to each of 4: a byte is its digits as a fraction of
/// 256, the first one largest.
fn in_base_three(bytes: &[u8], i: usize) -> u8 {
    let (byte, digit) = match i {
        0..160 => (bytes[i % 32], i / 32),
        160..240 => (bytes[32 + i % 16], i / 16 - 10),
        _ => (bytes[48 + i % 4], i / 4 - 60),
    };
    let rest = byte.wrapping_mul([1, 3, 9, 27, 81][digit]);
    ((u16::from(rest) * 3) >> 8) as u8
}

/// Number `i` of 256 four-bit ones, low nibbles of `run` bytes first.
fn four_bits(bytes: &[u8], run: usize, i: usize) -> u8 {
    bytes[i / (2 * run) * run + i % run] >> (i / run % 2 * 4) & 15
}

/// Number `i` of 256 bits: 32 bytes, with one bit for each run of 32 numbers.
fn one_bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 32] >> (i / 32) & 1
}

fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, q) = block.split_at(16);
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (group, (out, scale)) in out.as_chunks_mut::<16>().0.iter_mut().zip(scales).enumerate() {
        let (d, m) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(two_bits(q, group * 16 + i)) - m;
        }
    }
}

/// Scale of group `group`, 6 bits of the 12 bytes with 16 scales.
fn q3_k_scale(bytes: &[u8], group: usize) -> i8 {
    let scale = bytes[group % 8] >> (group / 8 * 4) & 15 | (bytes[8 + group % 4] >> (group / 4 * 2) & 3) << 4;
    scale as i8 - 32
}

fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, rest) = block.split_at(32);
    let (low, scales) = rest.split_at(64);
    let d = half(block, 108);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = d * f32::from(q3_k_scale(scales, group));
        for (i, out) in out.iter_mut().enumerate() {
            let i = group * 16 + i;
            // A set high bit means that nothing is subtracted.
            let q = two_bits(low, i) as i8 - ((one_bit(high, i) ^ 1) << 2) as i8;
            *out = d * f32::from(q);
        }
    }
}

/// Scale and minimum of group `j`, 6 bits each, of the 12 bytes with 8 of both.
fn scale_and_min(bytes: &[u8], j: usize) -> (u8, u8) {
    match j {
        0..4 => (bytes[j] & 63, bytes[4 + j] & 63),
        _ => {
            let k = j - 4;
            (bytes[8 + k] & 15 | bytes[k] >> 2 & 0x30, bytes[8 + k] >> 4 | bytes[4 + k] >> 2 & 0x30)
        }
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin, scales, q) = (half(block, 0), half(block, 2), &block[4..16], &block[16..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(scales, group);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(four_bits(q, 32, group * 32 + i)) - m;
        }
    }
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin, scales, high, low) = (half(block, 0), half(block, 2), &block[4..16], &block[16..48], &block[48..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(scales, group);
        let (d, m) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, out) in out.iter_mut().enumerate() {
            let i = group * 32 + i;
            *out = d * f32::from(four_bits(low, 32, i) | one_bit(high, i) << 4) - m;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = d * f32::from(scales[group] as i8);
        for (i, out) in out.iter_mut().enumerate() {
            let i = group * 16 + i;
            *out = d * f32::from((four_bits(low, 64, i) | two_bits(high, i) << 4) as i8 - 32);
        }
    }
}

/// Scale of group `group`: two bits of the first two bytes above four of the next ones.
fn iq4_xs_scale(bytes: &[u8], group: usize) -> i8 {
    let high = u16::from_le_bytes([bytes[0], bytes[1]]) >> (2 * group) & 3;
    (bytes[2 + group / 2] >> (group % 2 * 4) & 15 | (high as u8) << 4) as i8 - 32
}

fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let d = d * f32::from(iq4_xs_scale(&block[2..8], group));
        for (out, q) in out.iter_mut().zip(nibbles(&block[8 + 16 * group..])) {
            *out = d * f32::from(LEVELS[usize::from(q)]);
        }
    }
}

fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    out.iter_mut().enumerate().for_each(|(i, out)| *out = d * f32::from(in_base_three(&block[..52], i) as i8 - 1));
}

fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 64);
    out.iter_mut().enumerate().for_each(|(i, out)| *out = d * f32::from(two_bits(&block[..64], i) as i8 - 1));
}
