//! The tensors of all files by name: where each lies, and what its numbers are made of.

use std::collections::HashMap;

use super::quantized::Quantized;
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

/// A tensor of the checkpoint, wherever its numbers come from.
#[derive(Debug)]
pub(super) struct Entry {
    /// Dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// Bytes in the files.
    pub(super) num_bytes: u64,
    /// Index of its file, or of the one that messages about it name.
    pub(super) file: usize,
    pub(super) values: Values,
}

/// Where a tensor's numbers come from: one variant for each way in which files keep them.
#[derive(Debug)]
pub(super) enum Values {
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
    Quantized(Box<Quantized>),
}

impl Table {
    /// Takes a file and the tensors in it.
    pub(super) fn add(
        &mut self,
        container: &dyn Container,
        file: ModelFile,
        tensors: Vec<TensorInfo>,
    ) -> Result<(), LoadError> {
        let index = self.files.len();
        for TensorInfo { name, encoding, shape, offset, len, stored } in tensors {
            if let Some(first) = self.tensors.get(&name) {
                let shown = container.shown(&name);
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
