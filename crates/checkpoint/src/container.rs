//! What a model's files are packed in: texts by the names of a Hugging Face directory, tensors by the names of the
//! forward pass.
//!
//! ```text
//! Container ── text("config.json"), text("tokenizer.json") ...    as they lie there, or made from a file's settings
//!           ├─ tensors(add)      each file with the TensorInfos in it: name, encoding, shape, place
//!           └─ in its own words  messages name keys and tensors as the file does
//! ```
//! Whatever implements this can be loaded: there is one definition of what a model is (that of transformers), and a
//! container translates to it.

use std::fmt;

use crate::blocks::BlockType;
use crate::encoding::Encoding;
use crate::files::{Files, LoadError, ModelFile};

/// Takes a file and the tensors in it.
pub(crate) type AddFile<'a> = dyn FnMut(ModelFile, Vec<TensorInfo>) -> Result<(), LoadError> + 'a;

/// A format of models.
pub(crate) trait Container: fmt::Debug + Send + Sync {
    /// What a Hugging Face directory has under `name` (`config.json`, `tokenizer.json`, ...); `None` where this one has
    /// nothing for it. A file that is read may have `limit` bytes.
    fn text(&self, files: &Files, name: &str, limit: u64) -> Result<Option<String>, LoadError>;

    /// Opens every file, checks every header, and hands each file with its tensors to `add`, under the names that the
    /// forward pass asks for. Reads no tensor. Returns the name of the file that lists them, for messages.
    fn tensors(&self, files: &Files, add: &mut AddFile<'_>) -> Result<String, LoadError>;

    /// The `config.json` that may say how modules are quantized; `None` where the tensors' own types say it.
    fn quantization(&self, files: &Files, limit: u64) -> Result<Option<String>, LoadError>;

    /// Whether something else than a file of that name gives its text, right or wrong.
    fn stands_for(&self, _files: &Files, _name: &str) -> bool {
        false
    }

    /// An error about a text that this gave, in the words of the file where it stands.
    fn in_its_words(&self, error: LoadError) -> LoadError {
        error
    }

    /// A tensor's name in its file.
    fn shown(&self, name: &str) -> String {
        name.to_string()
    }

    /// Where the number of layers stands, for messages.
    fn layers_key(&self) -> String {
        "num_hidden_layers of config.json".to_string()
    }
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
    pub(crate) fn row(self, row: usize) -> usize {
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

/// Whether a tensor can be read as what was asked for. `shown`: its name in the file.
pub(crate) fn readable(
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

/// The error of a block whose scale is no finite number: no format has a meaning for one, and no weight of the block is
/// known. `number`: the first of its numbers that shows it, counted from the start of the tensor in its file.
pub(crate) fn broken_block(file: &str, shown: &str, block: BlockType, number: usize) -> LoadError {
    let (at, name) = (number / block.size().0, block.name());
    let problem = format!("a scale of block {at} of {name} is not a finite number");
    LoadError::field(file, format!("tensor {shown:?}"), problem)
}
