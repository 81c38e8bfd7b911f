//! The header of a GGUF file: metadata by key, and the tensor table.
//!
//! ```text
//! "GGUF" | version | tensors | keys | key, type, value ... | name, dims, type, offset ... | padding | data
//!  4       u32       u64       u64    bounded, kept as bytes   checked against the data       to the alignment
//! ```
//!
//! Versions 2 and 3, little-endian. The format is that of ggml's `docs/gguf.md`.
//!
//! Files are untrusted. Every count and length is checked against the rest of the file before allocating; metadata
//! stays in its raw bytes, so an array of a million strings costs its own size; tensors must follow each other with
//! only padding between them, as every writer places them.

use crate::blocks::BlockType;
use crate::container::{StoredAs, TensorInfo};
use crate::encoding::{Block, Encoding};
use crate::files::{LoadError, ModelFile};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Maximum bytes of metadata and tensor table. The largest vocabularies in use take 20 MB.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// Maximum keys in one file; real ones have about 50.
const MAX_KEYS: u64 = 1 << 16;
/// Maximum tensors in one file; the largest models have about 2,000.
const MAX_TENSORS: u64 = 100_000;
/// ggml's limit on a key.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// ggml stores a name in 64 bytes with a terminating zero.
const MAX_NAME_BYTES: u64 = 63;
/// ggml's `GGML_MAX_DIMS`.
const MAX_RANK: u32 = 4;
/// Maximum nesting of arrays; real files have one level.
const MAX_DEPTH: usize = 4;
/// Bytes per read.
const READ_BYTES: usize = 256 << 10;
/// Alignment of tensors without `general.alignment`.
const DEFAULT_ALIGNMENT: u64 = 32;

const ALIGNMENT: &str = "general.alignment";

/// The header of one file.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    /// The tensors, by offset.
    pub(crate) tensors: Vec<TensorInfo>,
}

/// Metadata by key, in the raw bytes of the file.
#[derive(Debug)]
pub(crate) struct Metadata {
    file: String,
    bytes: Vec<u8>,
    values: HashMap<String, Value>,
}

/// One value: its type and its range in [`Metadata::bytes`].
#[derive(Clone, Debug)]
struct Value {
    kind: ValueType,
    bytes: Range<usize>,
}

/// The types of values, numbered as in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Text, List, U64, I64, F64]
    };

    fn parse(number: u32) -> Option<ValueType> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of a value; `None` if they vary.
    fn size(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::Text | ValueType::List => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "an 8-bit number",
            ValueType::I8 => "a signed 8-bit number",
            ValueType::U16 => "a 16-bit number",
            ValueType::I16 => "a signed 16-bit number",
            ValueType::U32 => "a 32-bit number",
            ValueType::I32 => "a signed 32-bit number",
            ValueType::F32 => "a 32-bit float",
            ValueType::Bool => "true or false",
            ValueType::Text => "a text",
            ValueType::List => "a list",
            ValueType::U64 => "a 64-bit number",
            ValueType::I64 => "a signed 64-bit number",
            ValueType::F64 => "a 64-bit float",
        }
    }
}

/// Element types by their number in the format, including unsupported ones, whose sizes are checked.
fn encoding(number: u32) -> Option<Encoding> {
    let other = |name, elements, bytes| Encoding::Other { name, block: Block { elements, bytes } };
    Some(match number {
        0 => Encoding::F32,
        1 => Encoding::F16,
        2 => Encoding::Quantized(BlockType::Q4_0),
        3 => Encoding::Quantized(BlockType::Q4_1),
        6 => Encoding::Quantized(BlockType::Q5_0),
        7 => Encoding::Quantized(BlockType::Q5_1),
        8 => Encoding::Quantized(BlockType::Q8_0),
        9 => other("Q8_1", 32, 36),
        10 => Encoding::Quantized(BlockType::Q2_K),
        11 => Encoding::Quantized(BlockType::Q3_K),
        12 => Encoding::Quantized(BlockType::Q4_K),
        13 => Encoding::Quantized(BlockType::Q5_K),
        14 => Encoding::Quantized(BlockType::Q6_K),
        15 => other("Q8_K", 256, 292),
        16 => Encoding::Quantized(BlockType::IQ2_XXS),
        17 => Encoding::Quantized(BlockType::IQ2_XS),
        18 => Encoding::Quantized(BlockType::IQ3_XXS),
        19 => Encoding::Quantized(BlockType::IQ1_S),
        20 => Encoding::Quantized(BlockType::IQ4_NL),
        21 => Encoding::Quantized(BlockType::IQ3_S),
        22 => Encoding::Quantized(BlockType::IQ2_S),
        23 => Encoding::Quantized(BlockType::IQ4_XS),
        24 => other("I8", 1, 1),
        25 => other("I16", 1, 2),
        26 => other("I32", 1, 4),
        27 => other("I64", 1, 8),
        28 => other("F64", 1, 8),
        29 => Encoding::Quantized(BlockType::IQ1_M),
        30 => Encoding::Bf16,
        34 => Encoding::Quantized(BlockType::TQ1_0),
        35 => Encoding::Quantized(BlockType::TQ2_0),
        39 => Encoding::Quantized(BlockType::MXFP4),
        40 => Encoding::Quantized(BlockType::NVFP4),
        41 => other("Q1_0", 128, 18),
        _ => return None,
    })
}

/// Reads and checks the header of a file, each byte once.
pub(crate) fn read(file: &ModelFile) -> Result<Header, LoadError> {
    let mut cursor = Cursor { file, bytes: Vec::new(), at: 0 };
    let magic = cursor.take(4, "magic")?;
    if cursor.bytes[magic] != *b"GGUF" {
        let problem = match file.beginning()? {
            Some(text) => format!("magic: the file does not begin with GGUF; it is text that begins with {text:?}"),
            None => "magic: the file does not begin with GGUF".to_string(),
        };
        return Err(LoadError::broken(file.name(), problem));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => {}
        1 => return Err(cursor.error("version", "1 is unsupported; convert the model again to get version 3")),
        _ if version & 0xFFFF == 0 => {
            return Err(cursor.error("version", "the file is big-endian; only little-endian files are supported"));
        }
        _ => return Err(cursor.error("version", format!("{version} is unknown; 2 and 3 are supported"))),
    }
    let num_tensors = cursor.count("number of tensors", MAX_TENSORS, 8 + 4 + 4 + 8)?;
    let num_keys = cursor.count("number of keys", MAX_KEYS, 8 + 1 + 4 + 1)?;
    let values = read_values(&mut cursor, num_keys)?;
    let metadata_len = cursor.at;
    let metadata = |bytes| Metadata { file: file.name().to_string(), bytes, values };

    let entries = read_tensors(&mut cursor, num_tensors)?;
    let header_len = cursor.at as u64;
    let mut bytes = cursor.bytes;
    bytes.truncate(metadata_len);
    bytes.shrink_to_fit();
    let metadata = metadata(bytes);
    let alignment = alignment(&metadata)?;
    let tensors = place_tensors(file, entries, header_len, alignment)?;
    Ok(Header { metadata, tensors })
}

fn read_values(cursor: &mut Cursor<'_>, num_keys: u64) -> Result<HashMap<String, Value>, LoadError> {
    let mut values = HashMap::new();
    for index in 0..num_keys {
        let field = format!("key {index}");
        let key = cursor.text(&field, MAX_KEY_BYTES)?;
        let key = match std::str::from_utf8(&cursor.bytes[key]) {
            Ok("") => return Err(cursor.error(&field, "has no name")),
            Ok(key) => key.to_string(),
            Err(_) => return Err(cursor.error(&field, "the name is not UTF-8")),
        };
        let field = format!("key {}", quoted(&key));
        let kind = cursor.kind(&field)?;
        let start = cursor.at;
        cursor.skip_value(kind, &field, 0)?;
        let value = Value { kind, bytes: start..cursor.at };
        if values.insert(key, value).is_some() {
            return Err(cursor.error(&field, "occurs twice"));
        }
    }
    Ok(values)
}

/// A row of the tensor table before its offset is checked.
struct TableEntry {
    name: String,
    encoding: Encoding,
    shape: Vec<usize>,
    offset: u64,
}

fn read_tensors(cursor: &mut Cursor<'_>, num_tensors: u64) -> Result<Vec<TableEntry>, LoadError> {
    let mut entries: Vec<TableEntry> = Vec::new();
    for index in 0..num_tensors {
        let field = format!("tensor {index}");
        let name = cursor.text(&field, MAX_NAME_BYTES)?;
        let name = match std::str::from_utf8(&cursor.bytes[name]) {
            Ok("") => return Err(cursor.error(&field, "has no name")),
            Ok(name) => name.to_string(),
            Err(_) => return Err(cursor.error(&field, "the name is not UTF-8")),
        };
        let field = format!("tensor {}", quoted(&name));
        let rank = cursor.u32(&field)?;
        if rank > MAX_RANK {
            return Err(cursor.error(&field, format!("{rank} dimensions; at most {MAX_RANK}")));
        }
        let mut shape = Vec::new();
        for _ in 0..rank {
            let dim = cursor.u64(&field)?;
            // ggml's dimensions are signed.
            let dim = i64::try_from(dim).ok().and_then(|dim| usize::try_from(dim).ok());
            shape.push(dim.ok_or_else(|| cursor.error(&field, "a dimension is more than 2^63"))?);
        }
        shape.reverse(); // the file has the innermost first
        let number = cursor.u32(&field)?;
        let encoding = encoding(number).ok_or_else(|| cursor.error(&field, format!("type {number} is unknown")))?;
        let block = encoding.block().elements;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(block) {
            let problem = format!("rows of {row} numbers; {} comes in blocks of {block}", encoding.name());
            return Err(cursor.error(&field, problem));
        }
        entries.push(TableEntry { name, encoding, shape, offset: cursor.u64(&field)? });
    }
    let mut names = HashSet::new();
    if let Some(entry) = entries.iter().find(|entry| !names.insert(entry.name.as_str())) {
        return Err(cursor.error(&format!("tensor {}", quoted(&entry.name)), "occurs twice"));
    }
    Ok(entries)
}

fn alignment(metadata: &Metadata) -> Result<u64, LoadError> {
    let Some(value) = metadata.values.get(ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
    if value.kind != ValueType::U32 {
        return Err(
            metadata.error(ALIGNMENT, format!("is {}; it must be {}", value.kind.name(), ValueType::U32.name()))
        );
    }
    let alignment = metadata.integer(ALIGNMENT)?.unwrap_or_default();
    if !alignment.is_power_of_two() {
        return Err(metadata.error(ALIGNMENT, format!("{alignment} is not a power of two")));
    }
    Ok(alignment)
}

/// Checks the offsets: tensors are one after the other, each at the next multiple of the alignment, and end with the
/// file: a tensor whose type was changed to a smaller one would be read as other numbers.
fn place_tensors(
    file: &ModelFile,
    entries: Vec<TableEntry>,
    header_len: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, LoadError> {
    let data = header_len.next_multiple_of(alignment); // both far below 2^63
    let mut expected = 0u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for TableEntry { name, encoding, shape, offset } in entries {
        let error = |problem: String| LoadError::field(file.name(), format!("tensor {}", quoted(&name)), problem);
        let len = encoding.num_bytes(&shape).map_err(error)?;
        if offset != expected {
            return Err(error(format!("offset {offset}; must be {expected}, after the previous tensors")));
        }
        let end = data.checked_add(offset).and_then(|start| start.checked_add(len));
        if end.is_none_or(|end| end > file.len()) {
            let problem = format!("{len} bytes at offset {offset} of the data exceed the file of {} bytes", file.len());
            return Err(LoadError::broken(file.name(), format!("tensor {}: {problem}", quoted(&name))));
        }
        expected = (offset + len).next_multiple_of(alignment);
        tensors.push(TensorInfo { name, encoding, shape, offset: data + offset, len, stored: StoredAs::Itself });
    }
    match tensors.last().map(|last| (last, file.len() - last.offset - last.len)) {
        // Writers pad the last tensor too, some by a whole step where none is needed.
        Some((last, rest)) if rest > alignment => {
            let TensorInfo { name, encoding, shape, len, .. } = last;
            let problem = format!("{} {shape:?} takes {len} bytes, but the file has {rest} more", encoding.name());
            Err(LoadError::field(file.name(), format!("tensor {}", quoted(name)), problem))
        }
        _ => Ok(tensors),
    }
}

/// Reads forward through the header of a file, and keeps the bytes read.
struct Cursor<'f> {
    file: &'f ModelFile,
    bytes: Vec<u8>,
    at: usize,
}

impl Cursor<'_> {
    fn error(&self, field: &str, problem: impl std::fmt::Display) -> LoadError {
        LoadError::field(self.file.name(), field, problem)
    }

    /// The next `len` bytes; an error beyond the end of the file.
    fn take(&mut self, len: u64, field: &str) -> Result<Range<usize>, LoadError> {
        let left = self.file.len() - self.at as u64;
        if len > left {
            let problem = format!("{field}: {len} bytes at byte {}, where the file has {left} left", self.at);
            return Err(LoadError::broken(self.file.name(), problem));
        }
        let end = self.at as u64 + len;
        if end > MAX_HEADER_BYTES {
            return Err(self.error(field, format!("the header is longer than {MAX_HEADER_BYTES} bytes")));
        }
        let end = end as usize;
        if end > self.bytes.len() {
            let from = self.bytes.len();
            let to = end.max((from + READ_BYTES).min(self.file.len() as usize));
            let oom = |_| LoadError::OutOfMemory { bytes: to, purpose: self.file.name().to_string() };
            self.bytes.try_reserve(to - from).map_err(oom)?;
            self.bytes.resize(to, 0);
            self.file.read_at(from as u64, &mut self.bytes[from..])?;
        }
        let start = std::mem::replace(&mut self.at, end);
        Ok(start..end)
    }

    fn u32(&mut self, field: &str) -> Result<u32, LoadError> {
        let at = self.take(4, field)?;
        Ok(u32::from_le_bytes(self.bytes[at].try_into().expect("four bytes")))
    }

    fn u64(&mut self, field: &str) -> Result<u64, LoadError> {
        let at = self.take(8, field)?;
        Ok(u64::from_le_bytes(self.bytes[at].try_into().expect("eight bytes")))
    }

    /// The number of the items that follow, each at least `size` bytes.
    fn count(&mut self, field: &str, limit: u64, size: u64) -> Result<u64, LoadError> {
        let count = self.u64(field)?;
        let left = self.file.len() - self.at as u64;
        if count > left / size {
            let problem = format!("{field}: {count}, but the file has only {left} bytes left");
            return Err(LoadError::broken(self.file.name(), problem));
        }
        if count > limit {
            return Err(self.error(field, format!("{count}; at most {limit} are read")));
        }
        Ok(count)
    }

    /// A length and the bytes of a name.
    fn text(&mut self, field: &str, limit: u64) -> Result<Range<usize>, LoadError> {
        let len = self.u64(field)?;
        if len > limit {
            return Err(self.error(field, format!("a name of {len} bytes; at most {limit}")));
        }
        self.take(len, field)
    }

    fn kind(&mut self, field: &str) -> Result<ValueType, LoadError> {
        let number = self.u32(field)?;
        ValueType::parse(number).ok_or_else(|| self.error(field, format!("value type {number} is unknown")))
    }

    fn skip_value(&mut self, kind: ValueType, field: &str, depth: usize) -> Result<(), LoadError> {
        match (kind.size(), kind) {
            (Some(size), _) => self.take(size as u64, field).map(drop),
            (None, ValueType::Text) => {
                let len = self.u64(field)?;
                self.take(len, field).map(drop)
            }
            (None, _) => {
                if depth == MAX_DEPTH {
                    return Err(self.error(field, format!("lists are nested deeper than {MAX_DEPTH}")));
                }
                let element = self.kind(field)?;
                // A text takes at least its length, a list its type and length.
                let smallest = element.size().unwrap_or(if element == ValueType::Text { 8 } else { 12 });
                let len = self.count(field, u64::MAX, smallest as u64)?;
                match element.size() {
                    Some(size) => self.take(len * size as u64, field).map(drop),
                    None => (0..len).try_for_each(|_| self.skip_value(element, field, depth + 1)),
                }
            }
        }
    }
}

impl Metadata {
    /// A [`LoadError::Field`] about a key.
    pub(crate) fn error(&self, key: &str, problem: impl std::fmt::Display) -> LoadError {
        LoadError::field(&self.file, key, problem)
    }

    /// Whether the key exists.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    fn wrong_type(&self, key: &str, expected: &str, found: &Value) -> LoadError {
        self.error(key, format!("expected {expected}, found {}", found.kind.name()))
    }

    /// A text; `None` if the key is absent.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        if value.kind != ValueType::Text {
            return Err(self.wrong_type(key, "a text", value));
        }
        let text = &self.bytes[value.bytes.start + 8..value.bytes.end];
        std::str::from_utf8(text).map(Some).map_err(|_| self.error(key, "is not UTF-8"))
    }

    /// A non-negative integer of any width.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<u64>, LoadError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let number = number(value.kind, &self.bytes[value.bytes.clone()]);
        match number {
            Some(Number::Integer(number)) => {
                u64::try_from(number).map(Some).map_err(|_| self.error(key, format!("{number}; must not be negative")))
            }
            _ => Err(self.wrong_type(key, "a whole number", value)),
        }
    }

    /// A number of any type.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match number(value.kind, &self.bytes[value.bytes.clone()]) {
            Some(Number::Float(number)) if number.is_finite() => Ok(Some(number)),
            Some(Number::Float(number)) => Err(self.error(key, format!("{number} is not a finite number"))),
            Some(Number::Integer(number)) => Ok(Some(number as f64)),
            None => Err(self.wrong_type(key, "a number", value)),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) if value.kind == ValueType::Bool => Ok(Some(self.bytes[value.bytes.start] != 0)),
            Some(value) => Err(self.wrong_type(key, "true or false", value)),
        }
    }

    /// The flags of a list.
    pub(crate) fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, LoadError> {
        match self.list(key)? {
            None => Ok(None),
            Some((ValueType::Bool, bytes)) => Ok(Some(bytes.iter().map(|&byte| byte != 0).collect())),
            Some((kind, _)) => {
                Err(self.error(key, format!("expected a list of true and false; each is {}", kind.name())))
            }
        }
    }

    /// The texts of a list.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, LoadError> {
        let Some((kind, bytes)) = self.list(key)? else { return Ok(None) };
        if kind != ValueType::Text {
            return Err(self.error(key, format!("expected a list of texts; each is {}", kind.name())));
        }
        let (mut texts, mut rest) = (Vec::new(), bytes);
        while let Some((len, after)) = rest.split_first_chunk() {
            let (text, after) = after.split_at(u64::from_le_bytes(*len) as usize); // checked when it was read
            let text = std::str::from_utf8(text);
            texts.push(text.map_err(|_| self.error(key, format!("entry {} is not UTF-8", texts.len())))?);
            rest = after;
        }
        Ok(Some(texts))
    }

    /// The numbers of a list.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f64>>, LoadError> {
        let Some((kind, bytes)) = self.list(key)? else { return Ok(None) };
        let wrong = || self.error(key, format!("expected a list of numbers; each is {}", kind.name()));
        let size = kind.size().ok_or_else(wrong)?;
        let numbers = bytes.chunks_exact(size).map(|bytes| match number(kind, bytes) {
            Some(Number::Integer(number)) => Some(number as f64),
            Some(Number::Float(number)) => Some(number),
            None => None,
        });
        numbers.collect::<Option<Vec<_>>>().ok_or_else(wrong).map(Some)
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| value.kind == ValueType::List)
    }

    /// Type and bytes of a list's elements.
    fn list(&self, key: &str) -> Result<Option<(ValueType, &[u8])>, LoadError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        if value.kind != ValueType::List {
            return Err(self.wrong_type(key, "a list", value));
        }
        let bytes = &self.bytes[value.bytes.clone()];
        let (kind, bytes) = bytes.split_first_chunk().expect("a list has an element type");
        let kind = ValueType::parse(u32::from_le_bytes(*kind)).expect("checked when it was read");
        Ok(Some((kind, &bytes[8..])))
    }
}

enum Number {
    Integer(i128),
    Float(f64),
}

fn number(kind: ValueType, bytes: &[u8]) -> Option<Number> {
    macro_rules! le {
        ($type:ty) => {
            <$type>::from_le_bytes(bytes.try_into().expect("the bytes of the type"))
        };
    }
    Some(match kind {
        ValueType::U8 => Number::Integer(le!(u8).into()),
        ValueType::I8 => Number::Integer(le!(i8).into()),
        ValueType::U16 => Number::Integer(le!(u16).into()),
        ValueType::I16 => Number::Integer(le!(i16).into()),
        ValueType::U32 => Number::Integer(le!(u32).into()),
        ValueType::I32 => Number::Integer(le!(i32).into()),
        ValueType::U64 => Number::Integer(le!(u64).into()),
        ValueType::I64 => Number::Integer(le!(i64).into()),
        ValueType::F32 => Number::Float(le!(f32).into()),
        ValueType::F64 => Number::Float(le!(f64)),
        ValueType::Bool | ValueType::Text | ValueType::List => return None,
    })
}

/// A name from a file, quoted, escaped, at most 60 characters.
pub(crate) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("{short:?}")
}
