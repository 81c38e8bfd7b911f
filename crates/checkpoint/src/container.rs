//! The trait of model formats: texts by their names in a Hugging Face directory, tensors by their names in the forward
//! pass.
//!
//! ```text
//! Container ── text("config.json"), text("tokenizer.json") ...    read, or generated from a file's metadata
//!           ├─ tensors(add)      each file with its TensorInfos: name, encoding, shape, offset
//!           └─ translate_error   messages name keys and tensors as in the file
//! ```
//! There is one definition of a model, that of transformers; a container translates to it.

use std::fmt;

use crate::blocks::BlockType;
use crate::encoding::Encoding;
use crate::files::{Files, LoadError, ModelFile};

/// Takes a file and the tensors in it.
pub(crate) type AddFile<'a> = dyn FnMut(ModelFile, Vec<TensorInfo>) -> Result<(), LoadError> + 'a;

/// A format of models.
pub(crate) trait Container: fmt::Debug + Send + Sync {
    /// The text of the file `name` of a Hugging Face directory (`config.json`, `tokenizer.json`, ...), if there is one.
    /// A file that is read may have `limit` bytes.
    fn text(&self, files: &Files, name: &str, limit: u64) -> Result<Option<String>, LoadError>;

    /// Opens every file, checks every header, and passes each file with its tensors to `add`, under their names in the
    /// forward pass. Reads no tensor. Returns the name of the file that lists them, for messages.
    fn tensors(&self, files: &Files, add: &mut AddFile<'_>) -> Result<String, LoadError>;

    /// The `config.json` with the quantization of modules, if any; `None` if the tensor types define it.
    fn quantization(&self, files: &Files, limit: u64) -> Result<Option<String>, LoadError>;

    /// Whether metadata replaces the file of that name, even if invalid.
    fn replaces(&self, _files: &Files, _name: &str) -> bool {
        false
    }

    /// Translates an error about a text of [`text`](Self::text) to the file and key that the text was generated from.
    fn translate_error(&self, error: LoadError) -> LoadError {
        error
    }

    /// A tensor's name in its file.
    fn name_in_file(&self, name: &str) -> String {
        name.to_string()
    }

    /// The key of the number of layers, for messages.
    fn layers_key(&self) -> String {
        "num_hidden_layers of config.json".to_string()
    }
}

/// A converter's change of a tensor, to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredAs {
    /// Unchanged.
    Itself,
    /// Rows `i` and `head_dim / 2 + i` of a head are neighbours `2 i` and `2 i + 1`.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
    /// 1 was added to every number.
    PlusOne,
    /// Every number has the other sign.
    Negative,
}

impl StoredAs {
    /// Index of row `row` in the file.
    pub(crate) fn row(self, row: usize) -> usize {
        match self {
            StoredAs::Itself | StoredAs::PlusOne | StoredAs::Negative => row,
            StoredAs::Interleaved { head_dim } => {
                let (head, in_head) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + in_head % half * 2 + in_head / half
            }
        }
    }

    /// Undoes the change in a vector: a bias or a norm, some thousand numbers, once at load.
    pub(crate) fn restore(self, vector: &mut [f32]) {
        match self {
            StoredAs::Itself => {}
            StoredAs::Interleaved { .. } => {
                let stored = vector.to_vec();
                for (row, out) in vector.iter_mut().enumerate() {
                    *out = stored[self.row(row)];
                }
            }
            StoredAs::PlusOne => vector.iter_mut().for_each(|value| *value -= 1.0),
            StoredAs::Negative => vector.iter_mut().for_each(|value| *value = -*value),
        }
    }
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) encoding: Encoding,
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    pub(crate) stored: StoredAs,
}

/// An error unless a tensor has the expected shape and a supported encoding. `shown`: its name in the file.
pub(crate) fn check_readable(
    file: &str,
    shown: &str,
    (found, encoding): (&[usize], Option<Encoding>),
    expected: &[usize],
) -> Result<(), LoadError> {
    if found != expected {
        return Err(LoadError::Shape {
            file: file.to_string(),
            tensor: shown.to_string(),
            expected: expected.to_vec(),
            found: found.to_vec(),
        });
    }
    match encoding {
        Some(encoding) if !encoding.is_decoded() => {
            let blocks = BlockType::ALL.map(BlockType::name).join(", ");
            let problem = format!(
                "type {} is unknown; weights are read from BF16, F16, F32, and of GGUF files {blocks}",
                encoding.name()
            );
            Err(LoadError::field(file, format!("tensor {shown:?}"), problem))
        }
        _ => Ok(()),
    }
}

/// The error for a block with a scale that is not finite, which leaves its weights undefined. `number`: index of the
/// first affected number, from the start of the tensor in its file.
pub(crate) fn broken_block(file: &str, shown: &str, block: BlockType, number: usize) -> LoadError {
    let (at, name) = (number / block.size().0, block.name());
    let problem = format!("a scale of block {at} of {name} is not a finite number");
    LoadError::field(file, format!("tensor {shown:?}"), problem)
}
