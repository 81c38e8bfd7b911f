//! A checkpoint's tensors by name, in any of its files, read as `f32` rows.
//!
//! ```text
//! Container ── each file, the tensors in it ──┐
//!                                             │
//! Weights ── tensor(name, shape) ──> Tensor ── row(i) ──> f32 row      q rows, k rows, v rows ──┐
//!                                                                      one packed matrix <── Device::pack
//! ```
//!
//! Rows go from the file directly into the backend's packed layout, through a few kilobytes of stack: loading takes no
//! more memory than the packed weights. Reads are positioned, so packing threads do not share a cursor.

mod digest;
mod image;
mod quantized;
mod rows;
mod table;

use crate::blocks::BlockType;
use crate::checkpoint::Checkpoint;
use crate::container::{Container, check_readable};
use crate::encoding::{Encoding, class_for};
use crate::files::{LoadError, ModelFile};
use image::ImageUse;
pub use image::ImageWriter;
use kernels::quant::GroupScale;
use kernels::{Backend, BlockSource, Int4Source, Int8Source, MatrixShape, RowSource, WeightClass, gate_up_row};
pub use rows::{Tensor, TensorRows};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use table::{Entry, Table, Values};

/// The tensors of a checkpoint, their files open.
#[derive(Debug)]
pub struct Weights {
    table: Table,
    /// For the names of tensors in messages.
    container: Arc<dyn Container>,
    non_finite: AtomicU64,
    /// The tensor of the first of them.
    first_non_finite: OnceLock<String>,
    image: Mutex<ImageUse>,
}

/// Rows of a tensor that become rows of a packed matrix.
#[derive(Clone, Debug)]
pub struct TensorSlice {
    /// Full name of the tensor.
    pub name: String,
    /// The tensor's shape, outermost dimension first; the last is the matrix's `in_features`.
    pub shape: Vec<usize>,
    /// Rows of the tensor, with all outer dimensions flattened.
    pub rows: Range<usize>,
    /// Their columns are the rows of the matrix, whose `in_features` is then the number of these rows.
    pub transposed: bool,
}

impl TensorSlice {
    /// Rows of the packed matrix.
    pub fn out_features(&self) -> usize {
        if self.transposed { self.shape.last().copied().unwrap_or(0) } else { self.rows.len() }
    }
}

/// Order of the concatenated rows of the parts in the packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Unchanged.
    AsStored,
    /// Gate and up rows in the order of [`gate_up_row`].
    GateUp,
    /// The same, where each gate row is stored before its up row.
    GateUpPairs,
    /// The first rows are `groups` groups, each of parts of these heights: the first parts of all groups, then the
    /// second parts, and so on. The rows behind them are unchanged.
    Grouped {
        /// Number of groups.
        groups: usize,
        /// Rows of each part; some may be 0.
        parts: [usize; 4],
    },
    /// The first rows are groups of `width` rows each. Of a group, those `at` hold pairs: the first of each, then the
    /// second of each, so that numbers that turn with their neighbours turn with those half the range away.
    Pairs {
        /// Rows in all groups; those behind them are unchanged.
        rows: usize,
        /// Rows of a group.
        width: usize,
        /// First row of the pairs in a group, and their rows; an even number.
        at: (usize, usize),
    },
}

impl RowOrder {
    /// The orders of the first `rows` rows and of those behind them, where both come from their own alone.
    pub fn split(self, at: usize) -> [RowOrder; 2] {
        match self {
            RowOrder::Pairs { rows, width, at: pairs } => {
                [rows.min(at), rows.saturating_sub(at)].map(|rows| RowOrder::Pairs { rows, width, at: pairs })
            }
            first => [first, RowOrder::AsStored],
        }
    }

    /// The concatenated row, of `rows`, that becomes packed row `row`.
    pub fn source(self, row: usize, rows: usize) -> usize {
        match self {
            RowOrder::AsStored => row,
            RowOrder::GateUp => gate_up_row(row, rows / 2),
            RowOrder::GateUpPairs => {
                let (stacked, width) = (gate_up_row(row, rows / 2), rows / 2);
                if stacked < width { 2 * stacked } else { 2 * (stacked - width) + 1 }
            }
            RowOrder::Grouped { groups, parts } => {
                let (group_rows, mut before, mut first) = (parts.iter().sum::<usize>(), 0, row);
                for height in parts {
                    if first < groups * height {
                        return first / height * group_rows + before + first % height;
                    }
                    (before, first) = (before + height, first - groups * height);
                }
                row
            }
            RowOrder::Pairs { rows, width, at: (first, len) } => match (row % width).checked_sub(first) {
                Some(i) if row < rows && i < len => row - i + 2 * (i % (len / 2)) + i / (len / 2),
                _ => row,
            },
        }
    }
}

/// The module's name, and the range of rows if not all.
impl fmt::Display for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.strip_suffix(".weight").unwrap_or(&self.name))?;
        let all: usize = self.shape.iter().rev().skip(1).product();
        if self.rows.len() == all { Ok(()) } else { write!(f, "[{}..{}]", self.rows.start, self.rows.end) }
    }
}

impl Weights {
    /// Refuses what was read just now if a file was written to since it was opened: it may be of other weights.
    fn check_unchanged(&self) -> Result<(), LoadError> {
        match self.table.files.iter().find(|file| file.is_changed()) {
            Some(file) => {
                let problem = "was written to since it was opened: start again with the file as it is";
                Err(LoadError::broken(file.name(), problem))
            }
            None => Ok(()),
        }
    }

    /// Opens every file and checks every header. Reads no tensor.
    pub fn open(checkpoint: &Checkpoint) -> Result<Weights, LoadError> {
        let (container, mut table) = (checkpoint.container().clone(), Table::default());
        let add = &mut |file, tensors| table.add(&*container, file, tensors);
        let listing = container.tensors(checkpoint.files(), add)?;
        table.listing = listing;
        quantized::assemble(&mut table, checkpoint)?;
        let (non_finite, first_non_finite) = (AtomicU64::new(0), OnceLock::new());
        Ok(Weights { table, container, non_finite, first_non_finite, image: Mutex::default() })
    }

    /// A tensor's name in its file.
    pub fn name_in_file(&self, name: &str) -> String {
        self.container.name_in_file(name)
    }

    /// Number of values that are NaN, or infinite in bf16, among the float weights read so far. A warning, not an
    /// error: some checkpoints have a few in unused rows. (A scale that is not finite is an error.)
    pub fn num_non_finite(&self) -> u64 {
        self.non_finite.load(Ordering::Relaxed)
    }

    /// The tensor, by its name in the file, in which the first of [`num_non_finite`](Self::num_non_finite) was read.
    pub fn first_non_finite(&self) -> Option<&str> {
        self.first_non_finite.get().map(String::as_str)
    }

    /// A required tensor of that shape, in a supported type.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let Some((name, entry)) = self.table.tensors.get_key_value(name) else {
            return Err(LoadError::NoTensor {
                file: self.table.listing.clone(),
                tensor: self.name_in_file(name),
                expected: shape.to_vec(),
            });
        };
        let (file, found) = (&self.table.files[entry.file], (entry.shape.as_slice(), entry.values.encoding()));
        check_readable(file.name(), &self.name_in_file(name), found, shape)?;
        Ok(Tensor { name, weights: self, entry })
    }

    /// The rows of the matrix in a slice, and the index of its first among them. Transposed ones are read into memory.
    pub fn rows_of(&self, slice: &TensorSlice) -> Result<(TensorRows<'_>, usize), LoadError> {
        let rows = self.tensor(&slice.name, &slice.shape)?.rows()?;
        match slice.transposed {
            false => Ok((rows, slice.rows.start)),
            true => Ok((rows.transposed(slice.rows.clone(), slice.out_features())?, 0)),
        }
    }

    /// Reads one row of a tensor: a vector of a stack.
    pub fn row(&self, slice: &TensorSlice) -> Result<Vec<f32>, LoadError> {
        let rows = self.tensor(&slice.name, &slice.shape)?.rows()?;
        let mut values = vec![0.0; slice.shape.last().copied().unwrap_or(0)]; // no more than the file holds
        rows.read(slice.rows.start, &mut values)?;
        Ok(values)
    }

    /// Reads a tensor `[len]`.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name, &[len])?;
        let mut values = vec![0.0; len]; // no more than the file holds: the shape was checked
        tensor.rows()?.read(0, &mut values)?;
        self.check_unchanged().map(|()| values)
    }

    /// Reads a tensor `[len]` of integers: ids, and distances between ids.
    pub fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>, LoadError> {
        let missing = || LoadError::NoTensor {
            file: self.table.listing.clone(),
            tensor: self.name_in_file(name),
            expected: vec![len],
        };
        let entry = self.table.tensors.get(name).ok_or_else(missing)?;
        let file = &self.table.files[entry.file];
        check_readable(file.name(), &self.name_in_file(name), (&entry.shape, None), &[len])?;
        let wrong = |dtype: &str| {
            let problem = format!("dtype {dtype}; expected I64 or I32");
            LoadError::field(file.name(), format!("tensor {:?}", self.name_in_file(name)), problem)
        };
        let &Values::Rows { offset, encoding, .. } = &entry.values else { return Err(wrong("quantized")) };
        let bytes = file.read_vec(offset, entry.num_bytes as usize)?; // the header was checked: inside the file
        Ok(match encoding.name() {
            "I64" => bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
            "I32" => bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
            other => return Err(wrong(other)),
        })
    }

    /// The dimensions of a tensor, outermost first; `None` if it does not exist.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.table.tensors.get(name).map(|entry| entry.shape.as_slice())
    }

    /// Every tensor that is one in its file too, and not a quantized module of several, by file and offset.
    pub fn stored(&self) -> Vec<StoredTensor<'_>> {
        let all = self.table.tensors.iter().filter_map(|(name, entry)| match &entry.values {
            &Values::Rows { offset, encoding, .. } => {
                let (shape, num_bytes) = (entry.shape.as_slice(), entry.num_bytes);
                Some((
                    entry.file,
                    StoredTensor { name, shape, encoding, num_bytes, file: &self.table.files[entry.file], offset },
                ))
            }
            Values::Quantized(_) | Values::Mxfp4 { .. } => None,
        });
        let mut all: Vec<(usize, StoredTensor<'_>)> = all.collect();
        all.sort_by(|(a_file, a), (b_file, b)| (a_file, a.offset, a.name).cmp(&(b_file, b.offset, b.name)));
        all.into_iter().map(|(_, stored)| stored).collect()
    }

    /// The names of all tensors, unordered.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.table.tensors.keys().map(String::as_str)
    }

    /// The file that lists the tensors, for messages.
    pub fn listing(&self) -> &str {
        &self.table.listing
    }

    /// The key of the number of layers, for messages.
    pub fn layers_key(&self) -> String {
        self.container.layers_key()
    }

    /// Whether a tensor is an all-zero bias of a module in `read`, as some quantizers write for every module.
    pub fn is_zero_bias(&self, name: &str, read: &HashSet<String>) -> Result<bool, LoadError> {
        let of_read = name.strip_suffix(".bias").is_some_and(|module| read.contains(&format!("{module}.weight")));
        match self.table.tensors.get(name) {
            Some(Entry { shape, values: Values::Rows { encoding, .. }, .. }) if of_read && encoding.is_decoded() => {
                let &[len] = shape.as_slice() else { return Ok(false) };
                Ok(self.vector(name, len)?.iter().all(|&value| value == 0.0))
            }
            _ => Ok(false),
        }
    }

    /// Whether two matrices of one shape are equal. Reads rows of both up to the first difference.
    pub fn are_equal(&self, one: &str, other: &str, shape: &[usize]) -> Result<bool, LoadError> {
        let stored = [one, other].map(|name| self.table.tensors.get(name).map(|entry| entry.shape.as_slice()));
        if stored[0] != stored[1] {
            return Ok(false);
        }
        let [one, other] = [self.tensor(one, shape)?, self.tensor(other, shape)?];
        let width = shape.last().copied().unwrap_or(1);
        let num_rows = shape.iter().rev().skip(1).product::<usize>();
        if let Some([one, other]) = one.same_bytes(&other) {
            return one.are_equal(&other);
        }
        let rows = [one.rows()?, other.rows()?];
        let mut numbers = [vec![0.0; width], vec![0.0; width]];
        for row in 0..num_rows {
            for (rows, out) in rows.iter().zip(&mut numbers) {
                rows.read(row, out)?;
            }
            let mut pairs = numbers[0].iter().zip(&numbers[1]);
            if !pairs.all(|(a, b)| a == b || a.is_nan() && b.is_nan()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the tensor exists.
    pub fn has(&self, name: &str) -> bool {
        self.table.tensors.contains_key(name)
    }

    /// The class of most of the layers' weights as stored: see [`class_for`].
    pub fn class(&self) -> WeightClass {
        let mut counts = [(WeightClass::Bf16, 0u64), (WeightClass::Int8, 0), (WeightClass::Int4, 0)];
        for (name, entry) in self.table.tensors.iter().filter(|(name, entry)| entry.shape.len() > 1 && !is_table(name))
        {
            let class = self.class_of(name);
            let weights = entry.shape.iter().map(|&dim| dim as u64).product::<u64>();
            counts.iter_mut().filter(|(of, _)| *of == class).for_each(|(_, count)| *count += weights);
        }
        // The first of equals, which is the widest.
        counts.iter().fold(counts[0], |most, &next| if next.1 > most.1 { next } else { most }).0
    }

    /// The stored type of most of the layers' weights, by its name in files; `None` for a quantization without a name.
    pub fn stored_type(&self) -> Option<&'static str> {
        let mut counts: Vec<(&'static str, u64)> = Vec::new();
        for (_, entry) in self.table.tensors.iter().filter(|(name, entry)| entry.shape.len() > 1 && !is_table(name)) {
            let Some(encoding) = entry.values.encoding() else { continue };
            match counts.iter_mut().find(|(name, _)| *name == encoding.name()) {
                Some((_, bytes)) => *bytes += entry.num_bytes,
                None => counts.push((encoding.name(), entry.num_bytes)),
            }
        }
        counts.into_iter().max_by_key(|&(name, bytes)| (bytes, name)).map(|(name, _)| name)
    }

    /// The class of a stored tensor: see [`class_for`].
    fn class_of(&self, name: &str) -> WeightClass {
        match self.table.tensors.get(name).map(|entry| &entry.values) {
            Some(Values::Rows { encoding, .. }) => class_for(*encoding),
            Some(Values::Quantized(quantized)) => quantized.class(),
            Some(Values::Mxfp4 { .. }) => class_for(Encoding::Quantized(BlockType::MXFP4)),
            None => WeightClass::Bf16,
        }
    }

    /// The wider of `class` and the classes of the stored parts: modules that a mixed recipe left wide stay wide.
    pub fn at_least_as_stored(&self, class: WeightClass, parts: &[TensorSlice]) -> WeightClass {
        let width = |class: WeightClass| match class {
            WeightClass::Int4 => 4,
            WeightClass::Int8 => 8,
            WeightClass::Bf16 => 16,
        };
        parts
            .iter()
            .map(|part| self.class_of(&part.name))
            .chain([class])
            .max_by_key(|&class| width(class))
            .unwrap_or(class)
    }

    /// Whether all parts are stored in more than four bits.
    pub fn are_wider_than_int4(&self, parts: &[TensorSlice]) -> bool {
        parts.iter().all(|part| self.class_of(&part.name) != WeightClass::Int4)
    }

    /// Packs the concatenated rows of several tensors as one matrix.
    pub fn pack<B: Backend>(
        &self,
        backend: &B,
        class: WeightClass,
        in_features: usize,
        parts: &[TensorSlice],
    ) -> Result<B::Matrix, LoadError> {
        self.pack_in_order(backend, class, in_features, parts, RowOrder::AsStored)
    }

    /// [`Weights::pack`] with the rows in another order.
    pub fn pack_in_order<B: Backend>(
        &self,
        backend: &B,
        class: WeightClass,
        in_features: usize,
        parts: &[TensorSlice],
        order: RowOrder,
    ) -> Result<B::Matrix, LoadError> {
        let out_features = parts.iter().map(TensorSlice::out_features).sum();
        let shape = MatrixShape { out_features, in_features };
        let name = parts.iter().map(|part| format!("{}{:?}", part.name, part.rows)).collect::<Vec<_>>().join("+");
        let name = match order {
            RowOrder::AsStored => name,
            RowOrder::GateUp => format!("{name}, gated"),
            RowOrder::GateUpPairs => format!("{name}, gated in pairs"),
            RowOrder::Pairs { width, at: (first, len), .. } => format!("{name}, pairs {first}+{len} of {width}"),
            RowOrder::Grouped { groups, parts } => format!("{name}, {groups} groups of {parts:?}"),
        };
        let mut image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(matrix) = image.restore(backend, &name, shape, class) {
            if let Some(bytes) = backend.image(&matrix) {
                image.add(name, shape, class, bytes);
            }
            return Ok(matrix);
        }
        let tensors = parts
            .iter()
            .map(|part| {
                let (rows, first) = self.rows_of(part)?;
                Ok((rows, first..first + part.out_features()))
            })
            .collect::<Result<Vec<_>, LoadError>>()?;
        let of_part = |row: usize| {
            let mut row = order.source(row, out_features);
            for (rows, range) in &tensors {
                if row < range.len() {
                    return (rows, range.start + row);
                }
                row -= range.len();
            }
            unreachable!("row {row} beyond the last")
        };
        // The packing loop cannot fail: rows with errors become zeros, and the error of the first one is kept here.
        let failed = Mutex::new(None::<(usize, LoadError)>);
        let fail = |row: usize, error: LoadError| {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(first, _)| row < *first) {
                *failed = Some((row, error));
            }
        };
        let format =
            tensors.iter().map(|(rows, _)| rows.block_format(class)).reduce(|a, b| Some(a?.join(b?))).flatten();
        let packed = if let Some(format) = format {
            let fill = |row: usize, levels: &mut [i8], scales: &mut [GroupScale]| {
                let (rows, of_tensor) = of_part(row);
                if let Err(error) = rows.blocks(of_tensor, format.group, levels, scales) {
                    levels.fill(0);
                    scales.fill(GroupScale::ZERO);
                    fail(row, error);
                }
            };
            backend.pack_blocks(shape, format, &BlockSource(&fill))
        } else if class == WeightClass::Int4 && tensors.iter().all(|(rows, _)| rows.is_int4()) {
            let fill = |row: usize, codes: &mut [i8], scales: &mut [f32]| {
                let (rows, row) = of_part(row);
                rows.int4(row, codes, scales);
            };
            backend.pack_int4(shape, &Int4Source(&fill))
        } else if class == WeightClass::Int8 && tensors.iter().all(|(rows, _)| rows.is_int8()) {
            let fill = |row: usize, codes: &mut [i8], scales: &mut [f32]| {
                let (rows, row) = of_part(row);
                rows.int8(row, codes, scales);
            };
            backend.pack_int8(shape, &Int8Source(&fill))
        } else {
            let fill = |row: usize, out: &mut [f32]| {
                let (rows, of_tensor) = of_part(row);
                if let Err(error) = rows.read(of_tensor, out) {
                    out.fill(0.0);
                    fail(row, error);
                }
            };
            backend.pack(shape, class, &RowSource(&fill))
        };
        if let Some((_, error)) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        self.check_unchanged()?;
        let packed = packed.map_err(|oom| LoadError::OutOfMemory {
            bytes: oom.bytes,
            purpose: format!("weights {}", parts[0].name),
        })?;
        if let Some(bytes) = backend.image(&packed) {
            image.add(name, shape, class, bytes);
        }
        Ok(packed)
    }
}

impl Weights {
    /// The stem of the name of a file with a saved result of `purpose` about a checkpoint, unique for both.
    pub fn file_stem(checkpoint: &Checkpoint, purpose: &str) -> String {
        image::file_stem(checkpoint, purpose)
    }

    /// The cache key of such a result, a digest: the layout of packed weights, the configuration, and name, size,
    /// mtime, ctime and a sample of each file. A result with another key is out of date. `None` if a file has no times.
    /// Reads all weights of a built-in model.
    pub fn cache_key(&self, checkpoint: &Checkpoint, purpose: &str) -> Option<String> {
        image::cache_key(checkpoint, &self.table.files, purpose)
    }

    /// The digest that identifies a checkpoint's weights: BLAKE3 over every stored tensor, sorted by name, independent
    /// of files and packing. Reads all of them. Fails if a file was written to after `not_after`, seconds and
    /// nanoseconds since 1970.
    pub fn digest(checkpoint: &Checkpoint, not_after: Option<(i64, i64)>) -> Result<[u8; 32], LoadError> {
        digest::digest(checkpoint, not_after)
    }

    /// Takes matrices from now on from their image in `directory`, if a matching one exists, and collects them for a
    /// new one otherwise. `purpose`: class or recipe, which distinguishes images of one checkpoint.
    pub fn use_image(&mut self, directory: &Path, checkpoint: &Checkpoint, purpose: &str) {
        self.image = Mutex::new(ImageUse::open(directory, checkpoint, &self.table.files, purpose));
    }

    /// Matrices of the image are not kept in memory until it is written: where there is none, each is written when it
    /// is packed. Whether that is so: then each has to be packed once before [`end_image`](Self::end_image), and later
    /// comes from there.
    pub fn keep_image_open(&self) -> bool {
        self.image.lock().unwrap_or_else(PoisonError::into_inner).keep_open()
    }

    /// All is packed. Returns the image of the packed matrices, to be written in the background; `None` if nothing has
    /// to be written, or after [`keep_image_open`](Self::keep_image_open).
    pub fn end_image(&self) -> Option<ImageWriter> {
        // A checkpoint with such weights is packed again at each start, because packing counts them.
        let is_lasting = self.num_non_finite() == 0;
        self.image.lock().unwrap_or_else(PoisonError::into_inner).end(is_lasting)
    }

    /// A log line about a damaged image.
    pub fn image_damage(&self) -> Option<String> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner).damage()
    }
}

/// A tensor as stored in its file.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'w> {
    /// Full name.
    pub name: &'w str,
    /// Dimensions, outermost first.
    pub shape: &'w [usize],
    /// Element type.
    pub encoding: Encoding,
    /// Bytes in the file.
    pub num_bytes: u64,
    file: &'w ModelFile,
    offset: u64,
}

impl StoredTensor<'_> {
    /// Whether two tensors have equal bytes.
    fn are_equal(&self, other: &StoredTensor<'_>) -> Result<bool, LoadError> {
        const CHUNK: u64 = 1 << 18;
        let mut bytes = [vec![0; CHUNK as usize], vec![0; CHUNK as usize]];
        let mut at = 0;
        while at < self.num_bytes {
            let len = CHUNK.min(self.num_bytes - at) as usize;
            let [one, two] = &mut bytes;
            self.read(at, &mut one[..len])?;
            other.read(at, &mut two[..len])?;
            if one[..len] != two[..len] {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// Reads its bytes from `at` on.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        assert!(at + out.len() as u64 <= self.num_bytes, "a read outside {}", self.name);
        self.file.read_at(self.offset + at, out)
    }
}

/// Whether a tensor is the embedding or the head, which have separate rules.
fn is_table(name: &str) -> bool {
    name.contains("embed_tokens") || name.contains("lm_head")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_an_order_are_the_order() {
        let at = (0, 8);
        for (order, rows, cut) in [
            (RowOrder::AsStored, 64, 32),
            (RowOrder::Grouped { groups: 2, parts: [8, 8, 0, 0] }, 48, 32),
            (RowOrder::Pairs { rows: 48, width: 16, at }, 64, 32), // two heads of queries, one of keys, one of values
            (RowOrder::Pairs { rows: 32, width: 16, at }, 48, 32),
        ] {
            let [first, second] = order.split(cut);
            for row in 0..rows {
                let source =
                    if row < cut { first.source(row, cut) } else { cut + second.source(row - cut, rows - cut) };
                assert_eq!(source, order.source(row, rows), "row {row} of {order:?}");
            }
        }
    }
}
