//! A model's files in any container: a Hugging Face directory, GGUF, or bytes in the binary.
//!
//! ```text
//! Source ──> Files ──which container?──> safetensors::Directory   texts as in the directory
//!                                   └──> gguf::Gguf               config.json, tokenizer.json generated from metadata
//! Checkpoint ── read_text(name)   a text by its name in transformers
//!            ├─ open_file(name)   an unchanged file
//!            └─ Weights::open     the tensors
//! ```

use std::path::Path;
use std::sync::Arc;

use crate::container::Container;
use crate::files::{Files, LoadError, ModelFile, Source};
use crate::gguf::{Gguf, only_model};
use crate::safetensors::{Directory, is_weights};

/// A model's files. Opening reads only the directory, and the header of a GGUF file.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    files: Files,
    container: Arc<dyn Container>,
    is_gguf: bool,
}

impl Checkpoint {
    /// Maximum bytes of a text for [`read_text`](Self::read_text): the largest tokenizers in use have a third of it.
    pub const MAX_TEXT_BYTES: u64 = 128 << 20;

    /// Fails if a directory is missing or a GGUF file is damaged.
    pub fn open(source: Source) -> Result<Checkpoint, LoadError> {
        let files = Files::at(source)?;
        Ok(match gguf_file(&files)? {
            Some(file) => {
                let container = Arc::new(Gguf::open(&files, &file)?);
                Checkpoint { files, container, is_gguf: true }
            }
            None => Checkpoint { files, container: Arc::new(Directory), is_gguf: false },
        })
    }

    /// Whether the model is in GGUF: its texts are generated, and its tensors have other names in the file.
    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn container(&self) -> &Arc<dyn Container> {
        &self.container
    }

    /// Translates an error about a text of this checkpoint to the file and key that the text was generated from.
    pub fn translate_error(&self, error: LoadError) -> LoadError {
        self.container.translate_error(error)
    }

    /// The directory's last component, the GGUF file's name without its ending, or the embedded model's name.
    pub fn name(&self) -> &str {
        self.files.name()
    }

    /// The directory or file; `None` for an embedded model.
    pub fn path(&self) -> Option<&Path> {
        self.files.path()
    }

    /// Path or name of the model, for messages.
    pub fn location(&self) -> String {
        self.files.location()
    }

    /// Whether a file of that name exists, or GGUF metadata for it, even if invalid.
    pub fn has(&self, file: &str) -> bool {
        self.container.replaces(&self.files, file) || self.files.has(file)
    }

    /// A UTF-8 text file of at most [`MAX_TEXT_BYTES`](Self::MAX_TEXT_BYTES); `None` if it does not exist. For a GGUF
    /// model, its metadata in that file's format.
    pub fn read_text(&self, file: &str) -> Result<Option<String>, LoadError> {
        self.read_text_capped(file, Self::MAX_TEXT_BYTES)
    }

    /// A UTF-8 text file of at most `limit` bytes; `None` if it does not exist.
    pub fn read_text_capped(&self, file: &str, limit: u64) -> Result<Option<String>, LoadError> {
        self.container.text(&self.files, file, limit)
    }

    /// Opens a regular file for positioned reads; `None` if it does not exist.
    pub fn open_file(&self, file: &str) -> Result<Option<ModelFile>, LoadError> {
        self.files.open(file)
    }
}

/// The model's GGUF file; `None` for the layout of transformers, which wins if both exist.
fn gguf_file(files: &Files) -> Result<Option<String>, LoadError> {
    let names = files.names();
    if let Source::Gguf(_) = files.source() {
        return Ok(names.into_iter().next());
    }
    if names.iter().any(|name| is_weights(name)) {
        return Ok(None);
    }
    let wrong = |problem| LoadError::NoWeights { checkpoint: files.location(), problem };
    only_model(&names).transpose().map_err(wrong)
}
