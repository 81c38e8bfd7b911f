//! The rows of a tensor: as `f32`, or as the codes and scales in the file.
//!
//! ```text
//! Tensor ──rows()──> TensorRows ──read(i)────────> f32 row
//!                         └─int8, int4, blocks──> codes and scales, for a class that keeps them unchanged
//! ```

use std::sync::atomic::Ordering;

use kernels::quant::GroupScale;
use kernels::{BlockFormat, WeightClass};

use super::table::{Entry, Values};
use super::{StoredTensor, Weights, quantized};
use crate::blocks::BlockType;
use crate::container::{StoredAs, broken_block};
use crate::encoding::{Encoding, class_for, for_each_chunk, is_finite_bf16};
use crate::files::LoadError;

/// A tensor of checked shape and type.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'w> {
    pub(super) name: &'w str,
    pub(super) weights: &'w Weights,
    pub(super) entry: &'w Entry,
}

/// The rows of a tensor; those of a quantized module are in memory.
#[derive(Debug)]
pub struct TensorRows<'w> {
    tensor: Tensor<'w>,
    /// For a quantized module.
    codes: Option<quantized::Codes>,
}

impl<'w> Tensor<'w> {
    /// Bytes in the files.
    pub fn num_bytes(&self) -> u64 {
        self.entry.num_bytes
    }

    /// The number format of its rows; `None` for a quantized module.
    pub fn encoding(&self) -> Option<Encoding> {
        match self.entry.values {
            Values::Rows { encoding, .. } => Some(encoding),
            Values::Quantized(_) => None,
        }
    }

    /// Both as stored, if equal numbers are equal bytes and vice versa.
    pub(super) fn same_bytes(&self, other: &Tensor<'w>) -> Option<[StoredTensor<'w>; 2]> {
        let stored = |tensor: &Tensor<'w>| match &tensor.entry.values {
            &Values::Rows { offset, encoding, stored: StoredAs::Itself } => Some(StoredTensor {
                name: tensor.name,
                shape: &tensor.entry.shape,
                encoding,
                num_bytes: tensor.entry.num_bytes,
                file: &tensor.weights.table.files[tensor.entry.file],
                offset,
            }),
            _ => None,
        };
        let both = [stored(self)?, stored(other)?];
        (both[0].encoding == both[1].encoding).then_some(both)
    }

    /// Prepares reading of rows. Reads all bytes of a quantized module, nothing otherwise.
    pub fn rows(self) -> Result<TensorRows<'w>, LoadError> {
        let codes = match &self.entry.values {
            Values::Rows { .. } => None,
            Values::Quantized(quantized) => Some(quantized.read(&self.weights.table.files)?),
        };
        Ok(TensorRows { tensor: self, codes })
    }

    /// Reads row `row` of `elements` numbers from a tensor at `offset`, in chunks of whole blocks.
    fn read_blocks(
        &self,
        (row, elements): (usize, usize),
        (offset, encoding): (u64, Encoding),
        decode: impl FnMut(&[u8]),
    ) -> Result<(), LoadError> {
        let (block, file) = (encoding.block(), &self.weights.table.files[self.entry.file]);
        assert!(elements.is_multiple_of(block.elements), "a row of {} is no number of blocks", self.name);
        let row_bytes = elements / block.elements * block.bytes;
        let start = row as u64 * row_bytes as u64;
        assert!(start + row_bytes as u64 <= self.entry.num_bytes, "row {row} is outside {}", self.name);
        for_each_chunk(file, offset + start..offset + start + row_bytes as u64, block, decode)
    }

    /// See [`broken_block`].
    fn broken_block(&self, block: BlockType, number: usize) -> LoadError {
        let file = &self.weights.table.files[self.entry.file];
        broken_block(file.name(), &self.weights.name_in_file(self.name), block, number)
    }

    fn stored_row(&self, row: usize, offset: u64, encoding: Encoding, out: &mut [f32]) -> Result<(), LoadError> {
        let (block, mut done) = (encoding.block(), 0);
        self.read_blocks((row, out.len()), (offset, encoding), |bytes| {
            let next = done + bytes.len() / block.bytes * block.elements;
            encoding.decode(bytes, &mut out[std::mem::replace(&mut done, next)..next]);
        })
    }
}

impl TensorRows<'_> {
    /// Reads `out.len()` values from index `row * out.len()`, exactly. A row must be whole blocks.
    pub fn read(&self, row: usize, out: &mut [f32]) -> Result<(), LoadError> {
        match (&self.codes, &self.tensor.entry.values) {
            (Some(codes), _) => codes.row(row, out),
            (None, &Values::Rows { offset, encoding, stored }) => match self.tensor.entry.shape.len() {
                0 | 1 => {
                    self.tensor.stored_row(row, offset, encoding, out)?;
                    stored.restore(out);
                }
                _ => self.tensor.stored_row(stored.row(row), offset, encoding, out)?,
            },
            (None, Values::Quantized(_)) => unreachable!("rows() reads the codes"),
        }
        let non_finite = out.iter().filter(|value| !is_finite_bf16(**value)).count();
        if non_finite > 0 {
            if let (Some(block), &Values::Rows { stored, .. }) = (self.block_type(), &self.tensor.entry.values) {
                // A block with finite scales has only finite numbers.
                let first = out.iter().position(|value| !value.is_finite()).unwrap_or_default();
                return Err(self.tensor.broken_block(block, stored.row(row) * out.len() + first));
            }
            let weights = self.tensor.weights;
            weights.non_finite.fetch_add(non_finite as u64, Ordering::Relaxed);
            weights.first_non_finite.get_or_init(|| weights.name_in_file(self.tensor.name));
        }
        Ok(())
    }
}

impl TensorRows<'_> {
    /// Whether [`int4`](Self::int4) gives these rows without loss.
    pub(super) fn is_int4(&self) -> bool {
        self.codes.as_ref().is_some_and(quantized::Codes::is_int4)
    }

    /// Whether [`int8`](Self::int8) gives these rows without loss.
    pub(super) fn is_int8(&self) -> bool {
        self.codes.as_ref().is_some_and(quantized::Codes::is_int8)
    }

    /// A row for [`Int8Source`](kernels::Int8Source).
    pub(super) fn int8(&self, row: usize, codes: &mut [i8], scales: &mut [f32]) {
        self.codes.as_ref().expect("is_int8").int8_row(row, codes, scales);
    }

    /// A row for [`Int4Source`](kernels::Int4Source).
    pub(super) fn int4(&self, row: usize, codes: &mut [i8], scales: &mut [f32]) {
        self.codes.as_ref().expect("is_int4").int4_row(row, codes, scales);
    }

    /// The format of these rows, if they are GGUF blocks of no more bits than `class`, which are packed unchanged.
    pub(super) fn block_format(&self, class: WeightClass) -> Option<BlockFormat> {
        let block = self.block_type()?;
        let fewer = class == WeightClass::Int4 && class_for(Encoding::Quantized(block)) == WeightClass::Int8;
        (class != WeightClass::Bf16 && !fewer).then(|| block.format())
    }

    fn block_type(&self) -> Option<BlockType> {
        match self.tensor.entry.values {
            Values::Rows { encoding: Encoding::Quantized(block), .. } => Some(block),
            _ => None,
        }
    }

    /// A row for [`BlockSource`](kernels::BlockSource), in groups of `group`, which divides those of the blocks.
    pub(super) fn blocks(
        &self,
        row: usize,
        group: usize,
        levels: &mut [i8],
        scales: &mut [GroupScale],
    ) -> Result<(), LoadError> {
        let &Values::Rows { offset, encoding, stored } = &self.tensor.entry.values else {
            unreachable!("only blocks have a format");
        };
        let block = self.block_type().expect("only blocks have a format");
        let (own_group, (elements, block_bytes)) = (block.format().group, block.size());
        let (mut done, mut own) = (0, [GroupScale::ZERO; 16]);
        let mut broken = None;
        self.tensor.read_blocks((stored.row(row), levels.len()), (offset, encoding), |bytes| {
            for bytes in bytes.chunks_exact(block_bytes) {
                let own = &mut own[..elements / own_group];
                block.groups(bytes, &mut levels[done..done + elements], own);
                if own.iter().any(|scale| !(scale.d.is_finite() && scale.m.is_finite())) {
                    broken.get_or_insert(done);
                }
                for (at, to) in scales[done / group..(done + elements) / group].iter_mut().enumerate() {
                    *to = own[at * group / own_group];
                }
                done += elements;
            }
        })?;
        match broken {
            Some(number) => Err(self.tensor.broken_block(block, stored.row(row) * levels.len() + number)),
            None => Ok(()),
        }
    }
}
