//! A model's files behind one door, whatever they are packed in: a Hugging Face directory, GGUF, or bytes in the
//! binary.
//!
//! ```text
//! Source ──> Files ──which container?──> safetensors::Directory   texts as they lie in the directory
//!                                   └──> gguf::Gguf               config.json and tokenizer.json made from the settings
//! Checkpoint ── read_text(name)   a text by the name that transformers gives it
//!            ├─ open_file(name)   a file as it is
//!            └─ Weights::open     the tensors
//! ```

use std::path::Path;
use std::sync::Arc;

use crate::container::Container;
use crate::files::{Files, LoadError, ModelFile, Source};
use crate::gguf::{Gguf, only_model};
use crate::safetensors::{Directory, is_weights};

/// A model's files. Opening one reads nothing but the directory, and the header of a GGUF file.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    files: Files,
    container: Arc<dyn Container>,
    is_gguf: bool,
}

impl Checkpoint {
    /// Largest text file that [`read_text`](Self::read_text) returns: the biggest tokenizers in use are a third of it.
    pub const MAX_TEXT_BYTES: u64 = 128 << 20;

    /// Fails when a directory is not there, and when a GGUF file is damaged.
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

    /// Whether the model is in GGUF: its texts are made, and its tensors have other names in the file.
    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn container(&self) -> &Arc<dyn Container> {
        &self.container
    }

    /// An error about a text that this checkpoint gave, in the words of the file where it stands.
    pub fn in_its_words(&self, error: LoadError) -> LoadError {
        self.container.in_its_words(error)
    }

    /// The directory's last component, the GGUF file's name without its ending, or the embedded model's name.
    pub fn name(&self) -> &str {
        self.files.name()
    }

    /// The directory or file; `None` for an embedded model.
    pub fn path(&self) -> Option<&Path> {
        self.files.path()
    }

    /// Where the files are, for messages.
    pub fn location(&self) -> String {
        self.files.location()
    }

    /// Whether a file of that name is there; of a GGUF model, whether its settings have something to say in its stead,
    /// right or wrong.
    pub fn has(&self, file: &str) -> bool {
        self.container.stands_for(&self.files, file) || self.files.has(file)
    }

    /// A UTF-8 text file of at most [`MAX_TEXT_BYTES`](Self::MAX_TEXT_BYTES); `None` when there is no such file. Of a
    /// GGUF model, what its settings say in that file's format.
    pub fn read_text(&self, file: &str) -> Result<Option<String>, LoadError> {
        self.read_text_capped(file, Self::MAX_TEXT_BYTES)
    }

    /// A UTF-8 text file of at most `limit` bytes; `None` when there is no such file.
    pub fn read_text_capped(&self, file: &str, limit: u64) -> Result<Option<String>, LoadError> {
        self.container.text(&self.files, file, limit)
    }

    /// Opens a regular file for positioned reads; `None` when there is none of that name.
    pub fn open_file(&self, file: &str) -> Result<Option<ModelFile>, LoadError> {
        self.files.open(file)
    }
}

/// The GGUF file that is this model; `None` for the layout of transformers, which wins where both are there.
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
