//! Number formats in files: floats, blocks of quantized numbers, and the sizes of unsupported types.
//!
//! ```text
//! a row of a tensor  =  blocks, one after the other     F32:   a block is one number in 4 bytes
//!                                                       Q4_K:  a block is 256 numbers in 144 bytes
//! ```

use half::f16;
use half::slice::HalfFloatSliceExt;
use kernels::WeightClass;
use std::ops::Range;

use crate::blocks::BlockType;
use crate::files::{LoadError, ModelFile};

/// Bytes of a row decoded at a time, on the stack of the packing thread.
pub(crate) const CHUNK_BYTES: usize = 8192;

/// The element type of a tensor in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Blocks of quantized numbers (GGUF).
    Quantized(BlockType),
    /// An unsupported type: only name and size are known.
    Other {
        /// Name in the file.
        name: &'static str,
        /// See [`Encoding::block`].
        block: Block,
    },
}

/// The smallest class that keeps the precision of a stored tensor: bf16 for floats, int8 for 5 bits and more, int4 for
/// 4 bits and fewer. A class of the same number of bits keeps the file's weights without quantizing again:
/// `tests/gguf.rs`.
pub fn class_for(encoding: Encoding) -> WeightClass {
    use BlockType::*;
    match encoding {
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::Other { .. } => WeightClass::Bf16,
        Encoding::Quantized(Q5_0 | Q5_1 | Q8_0 | Q5_K | Q6_K) => WeightClass::Int8,
        Encoding::Quantized(_) => WeightClass::Int4,
    }
}

/// The smallest piece of a tensor that fills whole bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Numbers per block.
    pub elements: usize,
    /// Bytes per block.
    pub bytes: usize,
}

impl Encoding {
    /// Name in files.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "F32",
            Encoding::F16 => "F16",
            Encoding::Bf16 => "BF16",
            Encoding::Quantized(block) => block.name(),
            Encoding::Other { name, .. } => name,
        }
    }

    /// The unit that rows are made of.
    pub fn block(self) -> Block {
        match self {
            Encoding::F32 => Block { elements: 1, bytes: 4 },
            Encoding::F16 | Encoding::Bf16 => Block { elements: 1, bytes: 2 },
            Encoding::Quantized(block) => {
                let (elements, bytes) = block.size();
                Block { elements, bytes }
            }
            Encoding::Other { block, .. } => block,
        }
    }

    /// Whether [`decode`](Self::decode) supports it.
    pub fn is_decoded(self) -> bool {
        !matches!(self, Encoding::Other { .. })
    }

    /// Bytes of a tensor; the error text if it does not fill whole blocks or exceeds 64 bits.
    pub(crate) fn num_bytes(self, shape: &[usize]) -> Result<u64, String> {
        let Block { elements: block_elements, bytes } = self.block();
        let overflow = || format!("shape {shape:?} of {} has more than 2^64 bits", self.name());
        let elements =
            shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64)).ok_or_else(overflow)?;
        // Counted in bits, so that code with a smaller unit cannot overflow if this does not.
        let bits = (elements / block_elements as u64).checked_mul(8 * bytes as u64).ok_or_else(overflow)?;
        if elements % block_elements as u64 != 0 {
            return Err(format!("shape {shape:?} of {} does not fill whole bytes", self.name()));
        }
        Ok(bits / 8)
    }

    /// Little-endian file bytes to `f32`, exactly. `bytes` holds the blocks of `out` and at most [`CHUNK_BYTES`].
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        let block = self.block();
        debug_assert_eq!(bytes.len() * block.elements, out.len() * block.bytes, "bytes hold the blocks of out");
        match self {
            Encoding::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Encoding::Bf16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            Encoding::F16 => {
                let mut halves = [f16::ZERO; CHUNK_BYTES / 2];
                let halves = &mut halves[..out.len()];
                for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
                    *half = f16::from_le_bytes(*bytes);
                }
                halves.convert_to_f32_slice(out);
            }
            Encoding::Quantized(block) => block.decode(bytes, out),
            Encoding::Other { name, .. } => unreachable!("Weights::tensor refuses {name}"),
        }
    }
}

/// Whether a number is still finite when it is rounded to bf16.
pub fn is_finite_bf16(value: f32) -> bool {
    /// Half a step above the largest bf16: the least number that is rounded to infinity.
    const HALF_ABOVE: f32 = f32::from_bits(0x7f7f_8000);
    value.abs() < HALF_ABOVE
}

/// Reads `bytes` of a file in chunks of whole blocks, at most [`CHUNK_BYTES`] on the stack.
pub(crate) fn for_each_chunk(
    file: &ModelFile,
    bytes: Range<u64>,
    block: Block,
    mut decode: impl FnMut(&[u8]),
) -> Result<(), LoadError> {
    let Range { start: mut at, end } = bytes;
    let mut bytes = [0; CHUNK_BYTES];
    while at < end {
        let max_bytes = (CHUNK_BYTES / block.bytes * block.bytes) as u64;
        let bytes = &mut bytes[..(end - at).min(max_bytes) as usize];
        file.read_at(at, bytes)?;
        at += bytes.len() as u64;
        decode(bytes);
    }
    Ok(())
}
