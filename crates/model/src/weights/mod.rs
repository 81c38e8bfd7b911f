//! A checkpoint's tensors by name, whichever files they lie in, read as `f32` rows.
//!
//! ```text
//! model.safetensors                      or   model.safetensors.index.json ──> model-00001-of-00002.safetensors ...
//!        └──────────── headers read and checked ────────────┘
//! or model.gguf, its parts, its names translated (crate::gguf)
//!        │
//! Weights ── tensor(name, shape) ──> Tensor ── row(i) ──> f32 row      q rows, k rows, v rows ──┐
//!                                                                      one packed matrix <── Device::pack
//! ```
//!
//! Rows go from the file straight into the backend's packed layout, through a few kilobytes of stack: loading takes
//! the memory of the packed weights and nothing on top. Reads are positioned, so packing threads do not share a cursor.

pub mod encoding;
mod image;
mod quantized;
mod safetensors;

use crate::checkpoint::{Checkpoint, LoadError, ModelFile};
use crate::gguf::{BlockType, Gguf, in_ggml};
pub use encoding::class_for;
use encoding::{CHUNK_BYTES, Encoding};
pub use image::ImageWriter;
use image::Packed;
use kernels::quant::GroupScale;
use kernels::{
    Backend, BlockFormat, BlockSource, Int4Source, Int8Source, MatrixShape, RowSource, WeightClass, gate_up_row,
};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The index of a 100,000-tensor checkpoint has about 10 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Files held open at once; the largest dense checkpoints have about 190.
const MAX_SHARDS: usize = 512;

/// The tensors of a checkpoint, their files open.
#[derive(Debug)]
pub struct Weights {
    files: Vec<ModelFile>,
    tensors: HashMap<String, Entry>,
    /// The file that lists the tensors, for messages.
    listing: String,
    /// Of a GGUF model, its architecture: messages name tensors as the file does.
    gguf: Option<String>,
    non_finite: AtomicU64,
    packed: Mutex<Packed>,
}

/// Rows of a tensor that become rows of a packed matrix.
#[derive(Clone, Debug)]
pub struct Part {
    /// Full name.
    pub name: String,
    /// The tensor's, outermost dimension first; the last is the matrix's `in_features`.
    pub shape: Vec<usize>,
    /// Which of its rows, all outer dimensions counted through.
    pub rows: Range<usize>,
}

/// Which row of the parts, one under the other, is which row of the packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The same.
    AsStored,
    /// Gate and up in the order of [`gate_up_row`].
    GateUp,
}

impl RowOrder {
    /// Of `rows` in all, where packed row `row` comes from.
    pub(crate) fn source(self, row: usize, rows: usize) -> usize {
        match self {
            RowOrder::AsStored => row,
            RowOrder::GateUp => gate_up_row(row, rows / 2),
        }
    }
}

/// The module's name, and which of its rows if not all.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.strip_suffix(".weight").unwrap_or(&self.name))?;
        let all: usize = self.shape.iter().rev().skip(1).product();
        if self.rows.len() == all { Ok(()) } else { write!(f, "[{}..{}]", self.rows.start, self.rows.end) }
    }
}

/// A tensor of the checkpoint, wherever its numbers come from.
#[derive(Debug)]
struct Entry {
    /// Dimensions, outermost first.
    shape: Vec<usize>,
    /// Bytes in the files.
    num_bytes: u64,
    /// Index of its file, or of the one that messages about it name.
    file: usize,
    values: Values,
}

/// Where a tensor's numbers come from: one variant for each way in which files keep them.
#[derive(Debug)]
enum Values {
    /// Rows one after the other.
    Rows {
        /// First byte, counted from the start of the file.
        offset: u64,
        /// What the rows are made of.
        encoding: Encoding,
        /// What the file has instead of the tensor itself.
        stored: StoredAs,
    },
    /// Codes, scales and zero points of a quantized module.
    Quantized(Box<quantized::Quantized>),
}

/// What a converter did to a tensor, to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredAs {
    /// Nothing.
    Itself,
    /// Rows `i` and `head_dim / 2 + i` of a head are neighbours `2 i` and `2 i + 1`.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
    /// 1 was added to every number.
    PlusOne,
}

impl StoredAs {
    /// Where the file has row `row`.
    fn row(self, row: usize) -> usize {
        match self {
            StoredAs::Itself | StoredAs::PlusOne => row,
            StoredAs::Interleaved { head_dim } => {
                let (head, in_head) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + in_head % half * 2 + in_head / half
            }
        }
    }

    /// A vector as it was before: a bias or a norm, some thousand numbers, once.
    fn restore(self, vector: &mut [f32]) {
        match self {
            StoredAs::Itself => {}
            StoredAs::Interleaved { .. } => {
                let stored = vector.to_vec();
                for (row, out) in vector.iter_mut().enumerate() {
                    *out = stored[self.row(row)];
                }
            }
            StoredAs::PlusOne => vector.iter_mut().for_each(|value| *value -= 1.0),
        }
    }
}

/// A tensor as a reader of a format finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    /// Full name.
    pub(crate) name: String,
    /// Element type.
    pub(crate) encoding: Encoding,
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// What the file has instead of the tensor itself.
    pub(crate) stored: StoredAs,
}

impl Weights {
    /// Opens every file and checks every header. Reads no tensor.
    pub fn open(checkpoint: &Checkpoint) -> Result<Weights, LoadError> {
        if let Some(gguf) = checkpoint.gguf() {
            return Weights::of_gguf(gguf, checkpoint);
        }
        if let Some(file) = checkpoint.open_file(SINGLE)? {
            let mut weights = Weights::empty(SINGLE);
            weights.add_file(file)?;
            quantized::assemble(&mut weights, checkpoint)?;
            return Ok(weights);
        }
        let Some(index) = checkpoint.read_text_capped(INDEX, MAX_INDEX_BYTES)? else {
            return Err(no_weights(checkpoint));
        };
        let mut weights = Weights::empty(INDEX);
        let map = parse_index(&index).map_err(|error| LoadError::field(INDEX, "weight_map", error))?;
        let shards: BTreeSet<&str> = map.iter().map(|(_, file)| file.as_str()).collect();
        if shards.len() > MAX_SHARDS {
            let problem = format!("{} files; at most {MAX_SHARDS} are read", shards.len());
            return Err(LoadError::field(INDEX, "weight_map", problem));
        }
        for &shard in &shards {
            check_shard_name(shard).map_err(|problem| LoadError::field(INDEX, "weight_map", problem))?;
        }
        for &shard in &shards {
            let file = checkpoint
                .open_file(shard)?
                .ok_or_else(|| LoadError::NoFile { file: shard.to_string(), checkpoint: checkpoint.location() })?;
            weights.add_file(file)?;
        }
        for (name, shard) in &map {
            let found = weights.tensors.get(name).map(|entry| weights.files[entry.file].name());
            if found != Some(shard) {
                let problem = format!("tensor {name:?} is not in {shard}");
                return Err(LoadError::field(INDEX, "weight_map", problem));
            }
        }
        quantized::assemble(&mut weights, checkpoint)?;
        Ok(weights)
    }

    /// The tensors of a GGUF model.
    pub(crate) fn of_gguf(gguf: &Gguf, checkpoint: &Checkpoint) -> Result<Weights, LoadError> {
        let parts = gguf.tensors()?;
        let mut weights = Weights { gguf: Some(gguf.architecture()?.to_string()), ..Weights::empty(parts[0].0) };
        for (name, tensors) in parts {
            let file = checkpoint
                .open_file(name)?
                .ok_or_else(|| LoadError::NoFile { file: name.to_string(), checkpoint: checkpoint.location() })?;
            weights.add(file, tensors)?;
        }
        Ok(weights)
    }

    fn empty(listing: &str) -> Weights {
        Weights {
            files: Vec::new(),
            tensors: HashMap::new(),
            listing: listing.to_string(),
            gguf: None,
            non_finite: AtomicU64::new(0),
            packed: Mutex::default(),
        }
    }

    fn add_file(&mut self, file: ModelFile) -> Result<(), LoadError> {
        let tensors = safetensors::read_header(&file)?;
        self.add(file, tensors)
    }

    /// Takes a file and the tensors in it.
    fn add(&mut self, file: ModelFile, tensors: Vec<TensorInfo>) -> Result<(), LoadError> {
        let index = self.files.len();
        for TensorInfo { name, encoding, shape, offset, len, stored } in tensors {
            if let Some(first) = self.tensors.get(&name) {
                let shown = self.shown(&name);
                let problem = format!("also in {}", self.files[first.file].name());
                return Err(LoadError::field(file.name(), format!("tensor {shown:?}"), problem));
            }
            let values = Values::Rows { offset, encoding, stored };
            self.tensors.insert(name, Entry { shape, num_bytes: len, file: index, values });
        }
        self.files.push(file);
        Ok(())
    }

    /// A tensor's name in its file.
    pub(crate) fn shown(&self, name: &str) -> String {
        match &self.gguf {
            Some(architecture) => in_ggml(architecture, name),
            None => name.to_string(),
        }
    }

    /// NaN and infinite values among the weights read so far that are stored as floats. Not an error: some checkpoints carry
    /// a few in rows that nobody uses. Worth a warning. (A scale that is not finite is an error.)
    pub fn num_non_finite(&self) -> u64 {
        self.non_finite.load(Ordering::Relaxed)
    }

    /// A tensor that must be there, with that shape, in a floating-point type.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let Some((name, entry)) = self.tensors.get_key_value(name) else {
            return Err(LoadError::NoTensor {
                file: self.listing.clone(),
                tensor: self.shown(name),
                expected: shape.to_vec(),
            });
        };
        let file = &self.files[entry.file];
        if entry.shape != shape {
            return Err(LoadError::Shape {
                file: file.name().to_string(),
                tensor: self.shown(name),
                expected: shape.to_vec(),
                found: entry.shape.clone(),
            });
        }
        match &entry.values {
            Values::Rows { encoding, .. } if !encoding.is_decoded() => {
                let problem = format!("dtype {}; weights are read from BF16, F16 and F32", encoding.name());
                Err(LoadError::field(file.name(), format!("tensor {:?}", self.shown(name)), problem))
            }
            Values::Rows { .. } | Values::Quantized(_) => Ok(Tensor { name, weights: self, entry }),
        }
    }

    /// A tensor `[len]` in memory.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name, &[len])?;
        let mut values = vec![0.0; len]; // no more than the file holds: the shape was checked
        tensor.rows()?.read(0, &mut values)?;
        Ok(values)
    }

    /// Every tensor that lies in a file as rows, in the order of the files and of their bytes.
    pub(crate) fn stored(&self) -> Vec<Stored<'_>> {
        let all = self.tensors.iter().filter_map(|(name, entry)| match &entry.values {
            &Values::Rows { offset, encoding, .. } => {
                let (shape, num_bytes) = (entry.shape.as_slice(), entry.num_bytes);
                Some((entry.file, Stored { name, shape, encoding, num_bytes, file: &self.files[entry.file], offset }))
            }
            Values::Quantized(_) => None,
        });
        let mut all: Vec<(usize, Stored<'_>)> = all.collect();
        all.sort_by(|(a_file, a), (b_file, b)| (a_file, a.offset, a.name).cmp(&(b_file, b.offset, b.name)));
        all.into_iter().map(|(_, stored)| stored).collect()
    }

    /// The names of all tensors, in no order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The file that lists the tensors, for messages.
    pub(crate) fn listing(&self) -> &str {
        &self.listing
    }

    /// Where the number of layers stands, for messages.
    pub(crate) fn layers_key(&self) -> String {
        match &self.gguf {
            Some(architecture) => format!("{architecture}.block_count"),
            None => "num_hidden_layers of config.json".to_string(),
        }
    }

    /// Whether a tensor is a bias of zeros beside a module that is in `read`, as some quantizers write for every module.
    pub(crate) fn is_zero_bias(&self, name: &str, read: &HashSet<String>) -> Result<bool, LoadError> {
        let of_read = name.strip_suffix(".bias").is_some_and(|module| read.contains(&format!("{module}.weight")));
        match self.tensors.get(name) {
            Some(Entry { shape, values: Values::Rows { encoding, .. }, .. }) if of_read && encoding.is_decoded() => {
                let &[len] = shape.as_slice() else { return Ok(false) };
                Ok(self.vector(name, len)?.iter().all(|&value| value == 0.0))
            }
            _ => Ok(false),
        }
    }

    /// Whether there is a tensor of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The class that most of the layers' weights are stored in: see [`class_for`].
    pub fn class(&self) -> WeightClass {
        let mut counts = [(WeightClass::Bf16, 0u64), (WeightClass::Int8, 0), (WeightClass::Int4, 0)];
        for (name, entry) in self.tensors.iter().filter(|(name, entry)| entry.shape.len() > 1 && !is_table(name)) {
            let class = self.class_of(name);
            let weights = entry.shape.iter().map(|&dim| dim as u64).product::<u64>();
            counts.iter_mut().filter(|(of, _)| *of == class).for_each(|(_, count)| *count += weights);
        }
        // Of equals the first: the widest.
        counts.iter().fold(counts[0], |most, &next| if next.1 > most.1 { next } else { most }).0
    }

    /// The type that most of the layers' weights are stored in, as files write it; `None` where they are quantized in a way
    /// that has no name.
    pub fn most_stored(&self) -> Option<&'static str> {
        let mut counts: Vec<(&'static str, u64)> = Vec::new();
        for (_, entry) in self.tensors.iter().filter(|(name, entry)| entry.shape.len() > 1 && !is_table(name)) {
            let Values::Rows { encoding, .. } = &entry.values else { continue };
            match counts.iter_mut().find(|(name, _)| *name == encoding.name()) {
                Some((_, bytes)) => *bytes += entry.num_bytes,
                None => counts.push((encoding.name(), entry.num_bytes)),
            }
        }
        counts.into_iter().max_by_key(|&(name, bytes)| (bytes, name)).map(|(name, _)| name)
    }

    /// The class that keeps a stored tensor.
    fn class_of(&self, name: &str) -> WeightClass {
        match self.tensors.get(name).map(|entry| &entry.values) {
            Some(Values::Rows { encoding, .. }) => class_for(*encoding),
            Some(Values::Quantized(quantized)) => quantized.class(),
            None => WeightClass::Bf16,
        }
    }

    /// `class`, or a wider one that some part is stored in: what a mixed recipe left wide stays so.
    pub(crate) fn at_least_as_stored(&self, class: WeightClass, parts: &[Part]) -> WeightClass {
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

    /// Packs rows of `in_features` from several tensors, one part under the other, as one matrix.
    pub fn pack<B: Backend>(
        &self,
        backend: &B,
        class: WeightClass,
        in_features: usize,
        parts: &[Part],
    ) -> Result<B::Matrix, LoadError> {
        self.pack_in_order(backend, class, in_features, parts, RowOrder::AsStored)
    }

    /// As [`Weights::pack`], rows in another order.
    pub(crate) fn pack_in_order<B: Backend>(
        &self,
        backend: &B,
        class: WeightClass,
        in_features: usize,
        parts: &[Part],
        order: RowOrder,
    ) -> Result<B::Matrix, LoadError> {
        let out_features = parts.iter().map(|part| part.rows.len()).sum();
        let shape = MatrixShape { out_features, in_features };
        let name = parts.iter().map(|part| format!("{}{:?}", part.name, part.rows)).collect::<Vec<_>>().join("+");
        let name = if order == RowOrder::GateUp { format!("{name}, gated") } else { name };
        let mut image = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(matrix) = image.restore(backend, &name, shape, class) {
            if let Some(bytes) = backend.image(&matrix) {
                image.keep(name, shape, class, bytes);
            }
            return Ok(matrix);
        }
        let tensors = parts
            .iter()
            .map(|part| Ok((self.tensor(&part.name, &part.shape)?.rows()?, part.rows.clone())))
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
        // The packing loop knows no errors: that of the first row is kept here, and such rows are zeros.
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
        let packed = packed.map_err(|oom| LoadError::OutOfMemory {
            bytes: oom.bytes,
            purpose: format!("weights {}", parts[0].name),
        })?;
        if let Some(bytes) = backend.image(&packed) {
            image.keep(name, shape, class, bytes);
        }
        Ok(packed)
    }
}

/// A tensor as it lies in its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'w> {
    /// Full name.
    pub(crate) name: &'w str,
    /// Dimensions, outermost first.
    pub(crate) shape: &'w [usize],
    /// Element type.
    pub(crate) encoding: Encoding,
    /// Bytes in the file.
    pub(crate) num_bytes: u64,
    file: &'w ModelFile,
    offset: u64,
}

impl Stored<'_> {
    /// Its bytes from `at` on.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        assert!(at + out.len() as u64 <= self.num_bytes, "a read outside {}", self.name);
        self.file.read_at(self.offset + at, out)
    }
}

/// A tensor, its rows ready to be read.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'w> {
    name: &'w str,
    weights: &'w Weights,
    entry: &'w Entry,
}

/// The rows of a tensor, whatever had to be read before the first one in memory.
#[derive(Debug)]
pub struct Rows<'w> {
    tensor: Tensor<'w>,
    /// Of a quantized module.
    codes: Option<quantized::Codes>,
}

impl<'w> Tensor<'w> {
    /// Bytes in the files.
    pub fn num_bytes(&self) -> u64 {
        self.entry.num_bytes
    }

    /// What its rows are made of; `None` of a quantized module.
    pub(crate) fn encoding(&self) -> Option<Encoding> {
        match self.entry.values {
            Values::Rows { encoding, .. } => Some(encoding),
            Values::Quantized(_) => None,
        }
    }

    /// Reads what rows need. Of a quantized module these are its bytes in the files; of others nothing.
    pub fn rows(self) -> Result<Rows<'w>, LoadError> {
        let codes = match &self.entry.values {
            Values::Rows { .. } => None,
            Values::Quantized(quantized) => Some(quantized.read(&self.weights.files)?),
        };
        Ok(Rows { tensor: self, codes })
    }

    /// Reads row `row` of `elements` numbers from a tensor at `offset`, some blocks at a time.
    fn read_blocks(
        &self,
        (row, elements): (usize, usize),
        (offset, encoding): (u64, Encoding),
        mut decode: impl FnMut(&[u8]),
    ) -> Result<(), LoadError> {
        let (block, file) = (encoding.block(), &self.weights.files[self.entry.file]);
        assert!(elements.is_multiple_of(block.elements), "a row of {} is no number of blocks", self.name);
        let row_bytes = elements / block.elements * block.bytes;
        let start = row as u64 * row_bytes as u64;
        assert!(start + row_bytes as u64 <= self.entry.num_bytes, "row {row} is outside {}", self.name);
        let (mut at, end) = (offset + start, offset + start + row_bytes as u64);
        let mut bytes = [0; CHUNK_BYTES];
        while at < end {
            let most = (CHUNK_BYTES / block.bytes * block.bytes) as u64;
            let bytes = &mut bytes[..(end - at).min(most) as usize];
            file.read_at(at, bytes)?;
            at += bytes.len() as u64;
            decode(bytes);
        }
        Ok(())
    }

    /// The error of a block whose scale is no finite number: no format has a meaning for one, and no weight of the block is
    /// known. `number`: the first of its numbers that shows it, counted from the start of the tensor in its file.
    fn broken_block(&self, block: BlockType, number: usize) -> LoadError {
        let (file, shown) = (&self.weights.files[self.entry.file], self.weights.shown(self.name));
        let (at, name) = (number / block.size().0, block.name());
        let problem = format!("a scale of block {at} of {name} is not a finite number");
        LoadError::field(file.name(), format!("tensor {shown:?}"), problem)
    }

    fn stored_row(&self, row: usize, offset: u64, encoding: Encoding, out: &mut [f32]) -> Result<(), LoadError> {
        let (block, mut done) = (encoding.block(), 0);
        self.read_blocks((row, out.len()), (offset, encoding), |bytes| {
            let next = done + bytes.len() / block.bytes * block.elements;
            encoding.decode(bytes, &mut out[std::mem::replace(&mut done, next)..next]);
        })
    }
}

impl Rows<'_> {
    /// Reads `out.len()` values from `row * out.len()` on, exactly. Rows of whole blocks only.
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
        let non_finite = out.iter().filter(|value| !value.is_finite()).count();
        if non_finite > 0 {
            if let (Some(block), &Values::Rows { stored, .. }) = (self.block_type(), &self.tensor.entry.values) {
                // With finite scales every number of a block is finite.
                let first = out.iter().position(|value| !value.is_finite()).unwrap_or_default();
                return Err(self.tensor.broken_block(block, stored.row(row) * out.len() + first));
            }
            self.tensor.weights.non_finite.fetch_add(non_finite as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Rows<'_> {
    /// Whether [`int4`](Self::int4) gives these rows without loss.
    fn is_int4(&self) -> bool {
        self.codes.as_ref().is_some_and(quantized::Codes::is_int4)
    }

    /// Whether [`int8`](Self::int8) gives these rows without loss.
    fn is_int8(&self) -> bool {
        self.codes.as_ref().is_some_and(quantized::Codes::is_int8)
    }

    /// A row in the terms of [`Int8Source`].
    fn int8(&self, row: usize, codes: &mut [i8], scales: &mut [f32]) {
        self.codes.as_ref().expect("is_int8").int8_row(row, codes, scales);
    }

    /// A row in the terms of [`Int4Source`].
    fn int4(&self, row: usize, codes: &mut [i8], scales: &mut [f32]) {
        self.codes.as_ref().expect("is_int4").int4_row(row, codes, scales);
    }

    /// The groups that these rows lie in, if they are blocks of a GGUF file that have no more bits than `class`: such
    /// weights are computed with as they are.
    fn block_format(&self, class: WeightClass) -> Option<BlockFormat> {
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

    /// A row in the terms of [`BlockSource`], in groups of `group`, which divides those of the blocks.
    fn blocks(&self, row: usize, group: usize, levels: &mut [i8], scales: &mut [GroupScale]) -> Result<(), LoadError> {
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

/// The embedding and the head, which have rules of their own.
fn is_table(name: &str) -> bool {
    name.contains("embed_tokens") || name.contains("lm_head")
}

/// A shard lies beside its index: a plain file name and nothing that could lead elsewhere.
fn check_shard_name(name: &str) -> Result<(), String> {
    let plain = !name.starts_with('.') && !name.contains(['/', '\\', '\0']) && name.len() <= 255;
    if plain && name.ends_with(".safetensors") {
        return Ok(());
    }
    let short: String = name.chars().take(60).collect();
    Err(format!("{short:?} is not the plain name of a .safetensors file"))
}

fn no_weights(checkpoint: &Checkpoint) -> LoadError {
    let mut pickled = None;
    for entry in checkpoint.path().and_then(|path| path.read_dir().ok()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.rsplit('.').next(), Some("bin" | "pt" | "pth" | "ckpt")) {
            pickled = Some(name);
        }
    }
    let problem = match pickled {
        Some(name) => format!(
            "only pickled weights ({name}), which can run code when loaded and are never read; convert them with \
             transformers: AutoModelForCausalLM.from_pretrained(directory).save_pretrained(new_directory)"
        ),
        None => format!("no weights: neither {SINGLE} nor {INDEX} nor a GGUF file is there"),
    };
    LoadError::NoWeights { checkpoint: checkpoint.location(), problem }
}

/// `weight_map` of an index: `(tensor, file)`, each tensor once.
fn parse_index(text: &str) -> Result<Vec<(String, String)>, serde_json::Error> {
    struct Index;
    impl<'de> Visitor<'de> for Index {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with weight_map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut weight_map = None;
            while let Some(field) = map.next_key::<String>()? {
                if field != "weight_map" {
                    map.next_value::<IgnoredAny>()?;
                } else if weight_map.replace(map.next_value_seed(WeightMap)?).is_some() {
                    return Err(A::Error::custom("weight_map occurs twice"));
                }
            }
            weight_map.ok_or_else(|| A::Error::custom("weight_map is missing"))
        }
    }

    struct WeightMap;
    impl<'de> DeserializeSeed<'de> for WeightMap {
        type Value = Vec<(String, String)>;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    impl<'de> Visitor<'de> for WeightMap {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("file names by tensor name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries: Vec<(String, String)> = Vec::new();
            while let Some(entry) = map.next_entry()? {
                entries.push(entry);
            }
            entries.sort_unstable();
            if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(A::Error::custom(format!("tensor {:?} occurs twice", pair[0].0)));
            }
            Ok(entries)
        }
    }

    let mut json = serde_json::Deserializer::from_str(text);
    let map = json.deserialize_map(Index)?;
    json.end()?;
    Ok(map)
}
