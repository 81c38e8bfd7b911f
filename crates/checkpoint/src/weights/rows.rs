//! The rows of a tensor: as `f32`, or as the codes and scales in the file.
//!
//! ```text
//! Tensor ──rows()──> TensorRows ──read(i)────────> f32 row
//!                         └─int8, int4, blocks──> codes and scales, for a class that keeps them unchanged
//! ```

use std::ops::Range;
use std::sync::atomic::Ordering;

use kernels::quant::GroupScale;
use kernels::{BlockFormat, WeightClass};

use super::quantized::StoredPart;
use super::table::{Entry, Values};
use super::{StoredTensor, Weights, quantized};
use crate::blocks::{BlockType, mxfp4_block};
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
    /// For rows that are stored as columns: all of them.
    columns: Option<Vec<f32>>,
}

impl<'w> Tensor<'w> {
    /// Bytes in the files.
    pub fn num_bytes(&self) -> u64 {
        self.entry.num_bytes
    }

    /// The number format of its rows; `None` for a quantized module.
    pub fn encoding(&self) -> Option<Encoding> {
        self.entry.values.encoding()
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
            Values::Rows { .. } | Values::Mxfp4 { .. } => None,
            Values::Quantized(quantized) => Some(quantized.read(&self.weights.table.files)?),
        };
        Ok(TensorRows { tensor: self, codes, columns: None })
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

    /// Bytes of a row of `elements` numbers, in chunks of whole blocks, and the index of the row in the file.
    fn stored_blocks(&self, row: usize, elements: usize, decode: impl FnMut(&[u8])) -> Result<usize, LoadError> {
        match &self.entry.values {
            &Values::Rows { offset, encoding, stored } => {
                let row = if self.entry.shape.len() < 2 { row } else { stored.row(row) };
                self.read_blocks((row, elements), (offset, encoding), decode)?;
                Ok(row)
            }
            Values::Mxfp4 { codes, scales } => {
                self.join_mxfp4((row, elements), (codes, scales), decode)?;
                Ok(row)
            }
            Values::Quantized(_) => unreachable!("rows() reads the codes"),
        }
    }

    /// A row whose codes and scales are apart, as the blocks of a GGUF file.
    fn join_mxfp4(
        &self,
        (row, elements): (usize, usize),
        (codes, scales): (&StoredPart, &StoredPart),
        mut decode: impl FnMut(&[u8]),
    ) -> Result<(), LoadError> {
        const BLOCKS: usize = 256;
        let files = &self.weights.table.files;
        let blocks = elements / 32;
        let (mut pairs, mut exponents, mut joined) = ([[0; 16]; BLOCKS], [0; BLOCKS], [[0; 17]; BLOCKS]);
        for first in (0..blocks).step_by(BLOCKS) {
            let (count, at) = (BLOCKS.min(blocks - first), (row * blocks + first) as u64);
            codes.read_at(files, 16 * at, pairs[..count].as_flattened_mut())?;
            scales.read_at(files, at, &mut exponents[..count])?;
            for ((pairs, &scale), joined) in pairs.iter().zip(&exponents).zip(&mut joined[..count]) {
                mxfp4_block(scale, pairs, joined);
            }
            decode(joined[..count].as_flattened());
        }
        Ok(())
    }
}

impl TensorRows<'_> {
    /// Reads `out.len()` values from index `row * out.len()`, exactly. A row must be whole blocks.
    pub fn read(&self, row: usize, out: &mut [f32]) -> Result<(), LoadError> {
        let mut stored_row = row;
        match (&self.codes, &self.columns) {
            (Some(codes), _) => codes.row(row, out),
            (None, Some(columns)) => {
                out.copy_from_slice(&columns[row * out.len()..(row + 1) * out.len()]);
                return Ok(()); // counted when they were read
            }
            (None, None) => stored_row = self.stored_row(row, out)?,
        }
        let non_finite = out.iter().filter(|value| !is_finite_bf16(**value)).count();
        if non_finite > 0 {
            if let Some(block) = self.block_type() {
                // A block with finite scales has only finite numbers.
                let first = out.iter().position(|value| !value.is_finite()).unwrap_or_default();
                return Err(self.tensor.broken_block(block, stored_row * out.len() + first));
            }
            let weights = self.tensor.weights;
            weights.non_finite.fetch_add(non_finite as u64, Ordering::Relaxed);
            weights.first_non_finite.get_or_init(|| weights.name_in_file(self.tensor.name));
        }
        Ok(())
    }

    /// Decodes a stored row. Returns its index in the file.
    fn stored_row(&self, row: usize, out: &mut [f32]) -> Result<usize, LoadError> {
        let values = &self.tensor.entry.values;
        let encoding = values.encoding().expect("rows() reads the codes");
        let (block, mut done) = (encoding.block(), 0);
        let row = self.tensor.stored_blocks(row, out.len(), |bytes| {
            let next = done + bytes.len() / block.bytes * block.elements;
            encoding.decode(bytes, &mut out[std::mem::replace(&mut done, next)..next]);
        })?;
        match (self.tensor.entry.shape.len(), values) {
            (0 | 1, Values::Rows { stored, .. }) => stored.restore(out),
            (_, Values::Rows { stored, .. }) => stored.restore_columns(out, 1),
            _ => {}
        }
        Ok(row)
    }

    /// The `columns` columns of these rows as rows, in memory.
    pub(super) fn transposed(self, rows: Range<usize>, columns: usize) -> Result<Self, LoadError> {
        // As many rows as fill a cache line of each column.
        const AT_A_TIME: usize = 16;
        let height = rows.len();
        let mut numbers = vec![0.0; height * columns]; // no more than the file holds: the shape was checked
        let mut some = vec![0.0; AT_A_TIME * columns];
        for first in (0..height).step_by(AT_A_TIME) {
            let count = AT_A_TIME.min(height - first);
            for (at, out) in some.chunks_exact_mut(columns).take(count).enumerate() {
                self.read(rows.start + first + at, out)?;
            }
            for (column, out) in numbers.chunks_exact_mut(height).enumerate() {
                let from = some[column..].iter().step_by(columns);
                out[first..first + count].iter_mut().zip(from).for_each(|(out, &from)| *out = from);
            }
        }
        Ok(TensorRows { tensor: self.tensor, codes: None, columns: Some(numbers) })
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

    /// The format of these rows, if they are GGUF blocks, or NVFP4, of no more bits than `class`, which are packed unchanged.
    pub(super) fn block_format(&self, class: WeightClass) -> Option<BlockFormat> {
        if let Some(codes) = &self.codes {
            return codes.block_format().filter(|_| class != WeightClass::Bf16);
        }
        let block = self.block_type()?;
        let fewer = class == WeightClass::Int4 && class_for(Encoding::Quantized(block)) == WeightClass::Int8;
        let is_whole = self.stored_as().keeps_groups(block.format().group);
        (class != WeightClass::Bf16 && !fewer && is_whole).then(|| block.format())
    }

    fn stored_as(&self) -> StoredAs {
        match self.tensor.entry.values {
            Values::Rows { stored, .. } => stored,
            Values::Quantized(_) | Values::Mxfp4 { .. } => StoredAs::Itself,
        }
    }

    fn block_type(&self) -> Option<BlockType> {
        match self.tensor.encoding().filter(|_| self.columns.is_none()) {
            Some(Encoding::Quantized(block)) => Some(block),
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
        if let Some(codes) = &self.codes {
            codes.groups(row, levels, scales);
            return Ok(());
        }
        let block = self.block_type().expect("only blocks have a format");
        let (own_group, (elements, block_bytes)) = (block.format().group, block.size());
        let (mut done, mut own) = (0, [GroupScale::ZERO; 16]);
        let mut broken = None;
        let row = self.tensor.stored_blocks(row, levels.len(), |bytes| {
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
        let stored = self.stored_as();
        stored.restore_columns(levels, 1);
        stored.restore_columns(scales, group);
        match broken {
            Some(number) => Err(self.tensor.broken_block(block, row * levels.len() + number)),
            None => Ok(()),
        }
    }
}
