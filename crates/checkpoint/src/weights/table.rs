//! The tensors of all files by name: file, offset and number format.

use std::collections::HashMap;

use super::quantized::{Quantized, StoredPart};
use crate::blocks::BlockType;
use crate::container::{Container, StoredAs, TensorInfo};
use crate::encoding::Encoding;
use crate::files::{LoadError, ModelFile};

/// Files, and the tensors in them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) files: Vec<ModelFile>,
    pub(super) tensors: HashMap<String, Entry>,
    /// The file that lists the tensors, for messages.
    pub(super) listing: String,
}

/// A tensor of the checkpoint.
#[derive(Debug)]
pub(super) struct Entry {
    /// Dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// Bytes in the files.
    pub(super) num_bytes: u64,
    /// Index of its file; for a quantized module, of the file that messages name.
    pub(super) file: usize,
    pub(super) values: Values,
}

/// How a tensor is stored.
#[derive(Debug)]
pub(super) enum Values {
    /// Contiguous rows.
    Rows {
        /// First byte, from the start of the file.
        offset: u64,
        /// Number format of the rows.
        encoding: Encoding,
        /// The converter's change.
        stored: StoredAs,
    },
    /// Codes, scales and zero points of a quantized module.
    Quantized(Box<Quantized>),
    /// Blocks of MXFP4 whose scales are a tensor of their own: 16 bytes of `codes` and one of `scales` for 32 numbers.
    Mxfp4 { codes: StoredPart, scales: StoredPart },
}

impl Values {
    /// The number format of the rows; `None` for a quantized module.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        match self {
            Values::Rows { encoding, .. } => Some(*encoding),
            Values::Quantized(_) => None,
            Values::Mxfp4 { .. } => Some(Encoding::Quantized(BlockType::MXFP4)),
        }
    }
}

impl Table {
    /// The type of a stored tensor.
    pub(super) fn dtype(&self, name: &str) -> Option<&'static str> {
        Some(self.tensors.get(name)?.values.encoding()?.name())
    }

    /// Adds a file and its tensors.
    pub(super) fn add(
        &mut self,
        container: &dyn Container,
        file: ModelFile,
        tensors: Vec<TensorInfo>,
    ) -> Result<(), LoadError> {
        let index = self.files.len();
        for TensorInfo { name, encoding, shape, offset, len, stored } in tensors {
            if let Some(first) = self.tensors.get(&name) {
                let shown = container.name_in_file(&name);
                let problem = format!("also in {}", self.files[first.file].name());
                return Err(LoadError::field(file.name(), format!("tensor {shown:?}"), problem));
            }
            let values = Values::Rows { offset, encoding, stored };
            self.tensors.insert(name, Entry { shape, num_bytes: len, file: index, values });
        }
        self.files.push(file);
        Ok(())
    }
}
