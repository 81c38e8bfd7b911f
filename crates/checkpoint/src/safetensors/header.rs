//! The safetensors format: a length, a JSON header, then bytes.
//!
//! ```text
//! [ u64 header length ][ {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...} ][ data ]
//!        8 bytes          at most 100 MB, and inside the file                                 each byte in exactly one tensor
//! ```
//!
//! Files are untrusted, so the reader accepts only what the format's specification allows. Offsets must tile the data
//! exactly, without overlap, gap or trailing bytes (two programs must not see two different models in one file), a name
//! occurs once, and a shape's size must equal its byte range. Memory is bounded by the header's bytes; no number in the
//! file determines an allocation.

use crate::container::{StoredAs, TensorInfo};
use crate::encoding::{Block, Encoding};
use crate::files::{LoadError, ModelFile};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// The specification's limit on the header.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Maximum tensors in one file. The largest dense models have about 1,500.
const MAX_TENSORS: usize = 100_000;
/// Maximum bytes of a tensor's name; real ones have about 50.
const MAX_NAME_BYTES: usize = 512;
/// Maximum dimensions of a tensor.
const MAX_RANK: usize = 8;

/// Element types of the format.
fn parse_dtype(name: &str) -> Option<Encoding> {
    const OTHERS: [(&str, usize, usize); 19] = [
        ("BOOL", 1, 1),
        ("F4", 2, 1),
        ("F6_E2M3", 4, 3),
        ("F6_E3M2", 4, 3),
        ("U8", 1, 1),
        ("I8", 1, 1),
        ("F8_E5M2", 1, 1),
        ("F8_E4M3", 1, 1),
        ("F8_E8M0", 1, 1),
        ("F8_E4M3FNUZ", 1, 1),
        ("F8_E5M2FNUZ", 1, 1),
        ("I16", 1, 2),
        ("U16", 1, 2),
        ("I32", 1, 4),
        ("U32", 1, 4),
        ("I64", 1, 8),
        ("U64", 1, 8),
        ("F64", 1, 8),
        ("C64", 1, 8),
    ];
    match name {
        "F32" => Some(Encoding::F32),
        "F16" => Some(Encoding::F16),
        "BF16" => Some(Encoding::Bf16),
        _ => {
            let other = OTHERS.iter().find(|(other, ..)| *other == name);
            other.map(|&(name, elements, bytes)| Encoding::Other { name, block: Block { elements, bytes } })
        }
    }
}

/// Reads and checks the header, each byte once. Returns the tensors by offset.
pub(super) fn read_header(file: &ModelFile) -> Result<Vec<TensorInfo>, LoadError> {
    let error = |field: &str, problem: String| LoadError::broken(file.name(), format!("{field}: {problem}"));
    let text = file.beginning()?;
    if let Some(text) = text {
        return Err(LoadError::broken(file.name(), format!("text instead of weights; begins with {text:?}")));
    }
    if file.len() < 8 {
        return Err(error("header length", format!("the file has {} bytes; the length alone takes 8", file.len())));
    }
    let mut length = [0; 8];
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(error("header length", format!("{length} bytes; at most {MAX_HEADER_BYTES}")));
    }
    let data_len = match (file.len() - 8).checked_sub(length) {
        Some(data_len) => data_len,
        None => return Err(error("header length", format!("{length} bytes, but the file has {}", file.len()))),
    };
    let header = file.read_vec(8, length as usize)?;
    let header = std::str::from_utf8(&header)
        .map_err(|utf8| error("header", format!("not UTF-8 at byte {}", 8 + utf8.valid_up_to())))?;
    if !header.starts_with('{') {
        return Err(error("header", "does not start with `{`".to_string()));
    }
    let mut tensors = parse_header(header).map_err(|json| match json.classify() {
        serde_json::error::Category::Data => LoadError::field(file.name(), "header", json),
        _ => error("header", json.to_string()),
    })?;
    check_ranges(&mut tensors, data_len).map_err(|(name, problem)| error(&format!("tensor {name:?}"), problem))?;
    for tensor in &mut tensors {
        tensor.offset += 8 + length;
    }
    Ok(tensors)
}

/// Checks that the ranges tile `0..data_len` and match their shapes. Sorts by offset.
fn check_ranges(tensors: &mut [TensorInfo], data_len: u64) -> Result<(), (String, String)> {
    for tensor in tensors.iter() {
        let wanted = tensor.encoding.num_bytes(&tensor.shape).map_err(|problem| (tensor.name.clone(), problem))?;
        if wanted != tensor.len {
            let (dtype, shape) = (tensor.encoding.name(), &tensor.shape);
            let problem = format!("data_offsets span {} bytes; {dtype} {shape:?} takes {wanted}", tensor.len);
            return Err((tensor.name.clone(), problem));
        }
    }
    // An empty tensor sorts before another one at the same offset, so that the two do not count as overlapping.
    tensors.sort_by(|a, b| (a.offset, a.len, &a.name).cmp(&(b.offset, b.len, &b.name)));
    let mut covered = 0;
    for tensor in tensors.iter() {
        let (begin, end) = (tensor.offset, tensor.offset + tensor.len);
        if end > data_len {
            let problem = format!("data_offsets [{begin}, {end}] exceed the data of {data_len} bytes");
            return Err((tensor.name.clone(), problem));
        }
        if begin < covered {
            return Err((tensor.name.clone(), format!("data_offsets [{begin}, {end}] overlap another tensor's")));
        }
        if begin > covered {
            return Err((
                tensor.name.clone(),
                format!("data_offsets: bytes {covered}..{begin} before it belong to no tensor"),
            ));
        }
        covered = end;
    }
    if covered != data_len {
        let last = tensors.last().map(|tensor| tensor.name.clone()).unwrap_or_default();
        return Err((last, format!("data_offsets: {} trailing bytes after the last tensor", data_len - covered)));
    }
    Ok(())
}

fn parse_header(header: &str) -> Result<Vec<TensorInfo>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(header);
    let tensors = json.deserialize_map(HeaderVisitor)?;
    json.end()?; // trailing spaces are the format's padding; anything else is an error
    Ok(tensors)
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<TensorInfo>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<TensorInfo>, A::Error> {
        let mut tensors = Vec::new();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(A::Error::custom("duplicate __metadata__"));
                }
                map.next_value_seed(Strings)?;
                continue;
            }
            if name.len() > MAX_NAME_BYTES {
                let start = first_chars(&name);
                return Err(A::Error::custom(format!("tensor name of {} bytes, starting {start:?}", name.len())));
            }
            if tensors.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            let tensor = map
                .next_value_seed(Tensor { name: &name })
                .map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
            tensors.push(tensor);
        }
        let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(A::Error::custom(format!("tensor {:?} occurs twice", pair[0])));
        }
        Ok(tensors)
    }
}

/// `__metadata__`: strings by name, ignored.
struct Strings;

impl<'de> DeserializeSeed<'de> for Strings {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Strings {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("strings by name in __metadata__")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<String, String>()?.is_some() {}
        Ok(())
    }
}

/// One tensor's entry; its offset is still relative to the data.
struct Tensor<'n> {
    name: &'n str,
}

impl<'de> DeserializeSeed<'de> for Tensor<'_> {
    type Value = TensorInfo;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TensorInfo, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Tensor<'_> {
    type Value = TensorInfo;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorInfo, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            let duplicate = match field.as_str() {
                "dtype" => {
                    let name: String = map.next_value()?;
                    let known = parse_dtype(&name)
                        .ok_or_else(|| A::Error::custom(format!("dtype {:?} is unknown", first_chars(&name))))?;
                    dtype.replace(known).is_some()
                }
                "shape" => shape.replace(map.next_value_seed(Numbers::<usize>::at_most(MAX_RANK))?).is_some(),
                "data_offsets" => offsets.replace(map.next_value_seed(Numbers::<u64>::at_most(2))?).is_some(),
                other => return Err(A::Error::custom(format!("unknown field {:?}", first_chars(other)))),
            };
            if duplicate {
                return Err(A::Error::custom(format!("{field} occurs twice")));
            }
        }
        let missing = |field: &str| A::Error::custom(format!("{field} is missing"));
        let encoding = dtype.ok_or_else(|| missing("dtype"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        let offsets = offsets.ok_or_else(|| missing("data_offsets"))?;
        let &[begin, end] = offsets.as_slice() else {
            return Err(A::Error::custom("data_offsets must be two numbers"));
        };
        let len = end
            .checked_sub(begin)
            .ok_or_else(|| A::Error::custom(format!("data_offsets [{begin}, {end}] end before they begin")))?;
        Ok(TensorInfo { name: self.name.to_string(), encoding, shape, offset: begin, len, stored: StoredAs::Itself })
    }
}

fn first_chars(text: &str) -> String {
    text.chars().take(60).collect()
}

/// A list of at most `limit` integers.
struct Numbers<T> {
    limit: usize,
    element: PhantomData<T>,
}

impl<T> Numbers<T> {
    fn at_most(limit: usize) -> Numbers<T> {
        Numbers { limit, element: PhantomData }
    }
}

impl<'de, T: serde::Deserialize<'de>> DeserializeSeed<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: serde::Deserialize<'de>> Visitor<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} integers", self.limit)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut numbers = Vec::new();
        while numbers.len() < self.limit {
            match seq.next_element()? {
                Some(number) => numbers.push(number),
                None => return Ok(numbers),
            }
        }
        match seq.next_element::<IgnoredAny>()? {
            Some(_) => Err(A::Error::custom(format!("more than {} numbers in a list", self.limit))),
            None => Ok(numbers),
        }
    }
}
