//! GGUF files: a whole model with metadata and tokenizer, in one file or in numbered parts.
//!
//! ```text
//! model.gguf ──header──┬── metadata ──config.rs────► config.json            as if the model were a directory in the
//!                      │           └─tokenizer.rs──► tokenizer.json, ...    layout of transformers: the same readers,
//!                      └── tensors ──names.rs──────► model.layers.0. ...    the same checks, the same forward pass
//!                                └──../blocks.rs──────► rows of f32
//! ```
//!
//! A file's metadata is translated to the texts of a Hugging Face directory, and its tensors to the names in one. So
//! there is one definition of a model and one place that checks it; errors about a generated text are translated back
//! to the file's keys (`Gguf::translate_error`).
//!
//! Unsupported: big-endian files, version 1, adapters, and what [`BlockType`](crate::BlockType) and `tokenizer.rs` lack.
//! Each is refused by name.

mod config;
mod encoders;
mod header;
mod names;
mod tokenizer;
mod vocabularies;

pub use names::ggml_name;
pub use tokenizer::pattern_name;

use crate::container::{AddFile, Container, TensorInfo, broken_block, check_readable};
use crate::encoding::{Encoding, for_each_chunk};
use crate::files::{Files, LoadError};
use header::{Metadata, quoted};

/// Maximum parts of one model; the format numbers them with 16 bits.
const MAX_PARTS: u64 = 512;

/// A model in GGUF, its headers read and checked.
#[derive(Debug)]
pub(crate) struct Gguf {
    metadata: Metadata,
    /// File names, and the tensors in each under their names in the file.
    parts: Vec<(String, Vec<TensorInfo>)>,
}

impl Gguf {
    /// Reads the headers of `file` and of the model's other parts beside it.
    pub(crate) fn open(files: &Files, file: &str) -> Result<Gguf, LoadError> {
        let first = header::read(&files.require(file)?)?;
        let metadata = first.metadata;
        let mut parts = vec![(file.to_string(), first.tensors)];
        let num_parts = metadata.integer("split.count")?.unwrap_or(1);
        if num_parts > 1 {
            let names = part_names(&metadata, file, num_parts)?;
            for (index, name) in names.into_iter().enumerate().skip(1) {
                let header = header::read(&files.require(&name)?)?;
                let (number, count) = (header.metadata.integer("split.no")?, header.metadata.integer("split.count")?);
                if (number, count) != (Some(index as u64), Some(num_parts)) {
                    let problem = format!("not part {} of the {num_parts} parts of {file}", index + 1);
                    return Err(header.metadata.error("split.no", problem));
                }
                parts.push((name, header.tensors));
            }
            let found: u64 = parts.iter().map(|(_, tensors)| tensors.len() as u64).sum();
            if let Some(stated) = metadata.integer("split.tensors.count")?
                && stated != found
            {
                return Err(metadata.error("split.tensors.count", format!("{stated}, but the parts hold {found}")));
            }
        }
        Ok(Gguf { metadata, parts })
    }

    /// File names, and the tensors in each under their names in the forward pass.
    fn translated(&self) -> Result<Vec<(&str, Vec<TensorInfo>)>, LoadError> {
        let each = |tensors: &[TensorInfo]| -> Result<Vec<TensorInfo>, LoadError> {
            let translated = tensors.iter().map(|tensor| names::translated(&self.metadata, tensor));
            Ok(translated.collect::<Result<Vec<_>, LoadError>>()?.concat())
        };
        self.parts.iter().map(|(file, tensors)| Ok((file.as_str(), each(tensors)?))).collect()
    }

    /// ggml's name of the architecture; empty if missing.
    fn architecture(&self) -> Result<&str, LoadError> {
        Ok(self.metadata.text("general.architecture")?.unwrap_or_default())
    }

    /// A tensor under its name in the file.
    fn tensor(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        let mut all = self.parts.iter().flat_map(|(file, tensors)| tensors.iter().map(move |t| (file.as_str(), t)));
        all.find(|(_, tensor)| tensor.name == name)
    }

    /// Whether a layer has a tensor of that name.
    fn has_tensor_like(&self, own: &str) -> bool {
        let ends =
            |name: &str| name.strip_suffix(own).is_some_and(|layer| layer.starts_with("blk.") && layer.ends_with('.'));
        self.parts.iter().flat_map(|(_, tensors)| tensors).any(|tensor| ends(&tensor.name))
    }

    /// A tensor `[len]` by its name in the file, read into memory: for parameters stored as a tensor.
    fn vector(&self, files: &Files, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let Some((file, tensor)) = self.tensor(name) else {
            let (file, tensor) = (self.parts[0].0.clone(), name.to_string());
            return Err(LoadError::NoTensor { file, tensor, expected: vec![len] });
        };
        check_readable(file, name, (&tensor.shape, Some(tensor.encoding)), &[len])?;
        let (block, mut done) = (tensor.encoding.block(), 0);
        let mut values = vec![0.0; len]; // no more than the file holds: the shape was checked
        for_each_chunk(&files.require(file)?, tensor.offset..tensor.offset + tensor.len, block, |bytes| {
            let next = done + bytes.len() / block.bytes * block.elements;
            tensor.encoding.decode(bytes, &mut values[std::mem::replace(&mut done, next)..next]);
        })?;
        match (tensor.encoding, values.iter().position(|value| !value.is_finite())) {
            (Encoding::Quantized(block), Some(number)) => Err(broken_block(file, name, block, number)),
            _ => Ok(values),
        }
    }
}

impl Container for Gguf {
    fn text(&self, files: &Files, name: &str, _limit: u64) -> Result<Option<String>, LoadError> {
        Ok(match name {
            "config.json" => Some(config::config_json(self, files)?.to_string()),
            "tokenizer.json" => Some(tokenizer::tokenizer_json(&self.metadata)?),
            "tokenizer_config.json" => Some(tokenizer::tokenizer_config_json(&self.metadata)?.to_string()),
            _ => None,
        })
    }

    fn tensors(&self, files: &Files, add: &mut AddFile<'_>) -> Result<String, LoadError> {
        let parts = self.translated()?;
        self.architecture()?;
        for (name, tensors) in parts {
            add(files.require(name)?, tensors)?;
        }
        Ok(self.parts[0].0.clone())
    }

    fn quantization(&self, _files: &Files, _limit: u64) -> Result<Option<String>, LoadError> {
        Ok(None)
    }

    fn replaces(&self, files: &Files, name: &str) -> bool {
        !matches!(self.text(files, name, u64::MAX), Ok(None))
    }

    fn translate_error(&self, error: LoadError) -> LoadError {
        let file = &self.parts[0].0;
        match error {
            LoadError::Field { file: text, field, problem } if text == "config.json" => {
                LoadError::field(file, config::key_of(&self.metadata, &field), problem)
            }
            LoadError::Field { file: text, field, problem } if text.starts_with("tokenizer") => {
                LoadError::field(file, tokenizer::key_of(&field), problem)
            }
            other => other,
        }
    }

    fn name_in_file(&self, name: &str) -> String {
        ggml_name(self.architecture().unwrap_or_default(), name)
    }

    fn layers_key(&self) -> String {
        format!("{}.block_count", self.architecture().unwrap_or_default())
    }
}

/// The names of all parts, from the name of the first.
fn part_names(metadata: &Metadata, file: &str, num_parts: u64) -> Result<Vec<String>, LoadError> {
    if num_parts > MAX_PARTS {
        return Err(metadata.error("split.count", format!("{num_parts} parts; at most {MAX_PARTS}")));
    }
    let number = metadata.integer("split.no")?.unwrap_or(0);
    let Some((prefix, 1, count)) = split_name(file) else {
        let problem = match number {
            0 => format!("the first of {num_parts} parts must be called NAME-00001-of-{num_parts:05}.gguf"),
            _ => format!("this is part {} of {num_parts}; open the first", number + 1),
        };
        return Err(metadata.error("split.no", problem));
    };
    if number != 0 || count != num_parts {
        let problem = format!("part {} of {num_parts} by its metadata, which contradicts its name", number + 1);
        return Err(metadata.error("split.no", problem));
    }
    Ok((1..=num_parts).map(|part| format!("{prefix}-{part:05}-of-{num_parts:05}.gguf")).collect())
}

/// `NAME-00002-of-00003.gguf` as `(NAME, 2, 3)`.
pub fn split_name(file: &str) -> Option<(&str, u64, u64)> {
    let stem = file.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| match digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse().ok(),
        false => None,
    };
    Some((prefix, number(part)?, number(count)?))
}

/// Whether a name is that of a GGUF model: vision projectors (`mmproj`) and importance matrices are none.
pub fn is_model(name: &str) -> bool {
    let plain = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    plain.ends_with(".gguf") && !plain.contains("mmproj") && !plain.contains("imatrix")
}

/// The GGUF model among the names of a directory: the file to open, or why none can be chosen. `None` if there is no
/// GGUF model.
pub(crate) fn only_model(names: &[String]) -> Option<Result<String, String>> {
    let is_first = |name: &&String| split_name(name).is_none_or(|(_, part, _)| part == 1);
    let mut models: Vec<&String> = names.iter().filter(|name| is_model(name)).collect();
    if models.is_empty() {
        return None;
    }
    models.sort();
    let firsts: Vec<&String> = models.iter().copied().filter(is_first).collect();
    Some(match firsts.as_slice() {
        [only] => Ok(only.to_string()),
        [] => Err(format!("found {} but not the first part of that model", quoted(models[0]))),
        [first, ..] => Err(format!("{} GGUF models; name one of them, such as {}", firsts.len(), quoted(first))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_directory() {
        type Expected = Option<Result<&'static str, &'static str>>;
        let cases: [(&[&str], Expected); 8] = [
            (&[], None),
            (&["config.json", "model.safetensors"], None),
            (&["README.md", "a.gguf"], Some(Ok("a.gguf"))),
            (&["a.gguf", "mmproj-a.gguf", "a.imatrix.gguf"], Some(Ok("a.gguf"))),
            (&["a-00002-of-00002.gguf", "a-00001-of-00002.gguf"], Some(Ok("a-00001-of-00002.gguf"))),
            (&["a-00002-of-00002.gguf"], Some(Err("the first part"))),
            (&["a.gguf", "b.gguf"], Some(Err("2 GGUF models; name one of them, such as \"a.gguf\""))),
            (&["a-1-of-2.gguf"], Some(Ok("a-1-of-2.gguf"))),
        ];
        for (names, expected) in cases {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            match (only_model(&names), expected) {
                (Some(Err(problem)), Some(Err(part))) => assert!(problem.contains(part), "{names:?}: {problem}"),
                (found, expected) => assert_eq!(found, expected.map(|e| e.map(str::to_string).map_err(str::to_string))),
            }
        }
    }

    #[test]
    fn names_of_parts() {
        for (name, expected) in [
            ("a-00001-of-00003.gguf", Some(("a", 1, 3))),
            ("b-c-12345-of-54321.gguf", Some(("b-c", 12345, 54321))),
            ("a-0001-of-00003.gguf", None),
            ("a-00001-of-00003.safetensors", None),
            ("a-+0001-of-00003.gguf", None),
            ("a.gguf", None),
        ] {
            assert_eq!(split_name(name), expected, "{name}");
        }
    }
}
