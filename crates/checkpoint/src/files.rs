//! Finds and opens a model's files by name: in a directory, beside a GGUF file, or in the binary.
//!
//! ```text
//! Source::Directory   config.json  model.safetensors  tokenizer.json ...   (symlinks are followed: the hub's cache consists of them)
//! Source::Gguf        model.gguf, and its other parts beside it
//! Source::Safetensors NAME.safetensors, and the texts beside it
//! Source::Embedded    the same names, bytes in the binary
//!         │
//!       Files ── read_text(name)   small text files, size-capped
//!             └─ open(name)        ModelFile: length fixed at open, positioned reads from any thread
//! ```
//! The lowest layer of the crate: the containers above interpret the files.
//!
//! Nothing is memory-mapped: if a mapped file is truncated, SIGBUS ends the process; a positioned read returns an error
//! that names the file.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Location of a model's files.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory in the layout of Hugging Face `transformers`, or with one GGUF model in it.
    Directory(PathBuf),
    /// A GGUF file; the first of a model in parts.
    Gguf(PathBuf),
    /// One safetensors file, and the texts beside it: draft heads are often published so.
    Safetensors(PathBuf),
    /// Files built into the binary.
    Embedded {
        /// Name of the model.
        name: &'static str,
        /// `(file name, bytes)`.
        files: &'static [(&'static str, &'static [u8])],
    },
}

impl Source {
    /// The source for a path from the command line: a GGUF file by its extension, otherwise a directory.
    pub fn at(path: PathBuf) -> Source {
        if path.is_dir() || path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("gguf")) {
            Source::Directory(path)
        } else {
            Source::Gguf(path)
        }
    }
}

/// Errors of loading a model. Every variant names the file, and the field or tensor if there is one.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory of the model or adapter does not exist, or is a file.
    #[error("{}: no such directory", .path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// A required file is absent.
    #[error("{file}: absent from {checkpoint}")]
    NoFile {
        /// File name.
        file: String,
        /// Location of the model.
        checkpoint: String,
    },
    /// A file exists but is damaged or is another kind of file: truncated, a broken link, a web page.
    #[error("{file}: broken: {problem}")]
    Broken {
        /// File name.
        file: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// A file could not be opened or read.
    #[error("{file}: {error}")]
    Io {
        /// File name.
        file: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// A file exceeds the size limit for its name.
    #[error("{file}: {bytes} bytes; at most {limit} are read")]
    TooLarge {
        /// File name.
        file: String,
        /// Its size.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A value inside a file is absent, malformed or out of range.
    #[error("{file}: {field}: {problem}")]
    Field {
        /// File name.
        file: String,
        /// Dotted path of the field, or the part of the format.
        field: String,
        /// The problem and the expected value.
        problem: String,
    },
    /// The weights lack a tensor that the configuration requires.
    #[error("{file}: tensor `{tensor}` is missing: the configuration asks for shape {expected:?}")]
    NoTensor {
        /// The weights file, or the index of a sharded checkpoint.
        file: String,
        /// Full name of the tensor.
        tensor: String,
        /// Shape from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's shape contradicts the configuration.
    #[error("{file}: tensor `{tensor}`: shape {found:?} where the configuration asks for {expected:?}")]
    Shape {
        /// The weights file.
        file: String,
        /// Full name of the tensor.
        tensor: String,
        /// Shape from the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// The checkpoint has no weights in a supported format.
    #[error("{checkpoint}: {problem}")]
    NoWeights {
        /// Location of the model.
        checkpoint: String,
        /// The weights that exist, and the remedy.
        problem: String,
    },
    /// A load option contradicts the model or the other options.
    #[error("{option}: {problem}")]
    Option {
        /// The flag's name with underscores.
        option: &'static str,
        /// The problem and the possible values.
        problem: String,
    },
    /// An allocation failed.
    #[error("out of memory: {bytes} bytes for {purpose}")]
    OutOfMemory {
        /// Size of the allocation.
        bytes: usize,
        /// Purpose of the allocation.
        purpose: String,
    },
}

/// A parser's error, which may repeat the file: its first words, on one line.
pub fn brief(error: impl fmt::Display) -> String {
    const MOST: usize = 300;
    let text = error.to_string();
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST).collect();
    if line.len() < text.len() {
        line.push_str(" [...]");
    }
    line
}

impl LoadError {
    /// A [`LoadError::Field`].
    pub fn field(file: &str, field: impl Into<String>, problem: impl fmt::Display) -> LoadError {
        LoadError::Field { file: file.to_string(), field: field.into(), problem: problem.to_string() }
    }

    /// A [`LoadError::Broken`].
    pub fn broken(file: &str, problem: impl fmt::Display) -> LoadError {
        LoadError::Broken { file: file.to_string(), problem: problem.to_string() }
    }

    /// An error of parsing JSON: [`LoadError::Broken`] for wrong syntax, [`LoadError::Field`] for a wrong value.
    pub fn json(file: &str, field: &str, error: &serde_json::Error) -> LoadError {
        match error.classify() {
            serde_json::error::Category::Data => LoadError::field(file, field, brief(error)),
            _ => LoadError::broken(file, format!("not JSON: {}", brief(error))),
        }
    }

    /// An error of the operating system. Something other than a regular file at the path is [`LoadError::Broken`].
    fn io(file: &str, error: io::Error) -> LoadError {
        match error.kind() {
            io::ErrorKind::InvalidInput => LoadError::broken(file, error),
            _ => LoadError::Io { file: file.to_string(), error },
        }
    }
}

/// The files of one model, by name. Opening reads nothing.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    source: Source,
    name: String,
}

impl Files {
    /// Fails if a directory does not exist.
    pub(crate) fn at(source: Source) -> Result<Files, LoadError> {
        let name = match &source {
            Source::Directory(path) => {
                if let Some(problem) = files::broken_link(path) {
                    return Err(LoadError::broken(&path.display().to_string(), problem));
                }
                if !path.is_dir() {
                    return Err(LoadError::NoDirectory { path: path.clone() });
                }
                let last = path.canonicalize().unwrap_or_else(|_| path.clone());
                last.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
            }
            Source::Gguf(path) | Source::Safetensors(path) => {
                path.file_stem().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
            }
            Source::Embedded { name, .. } => name.to_string(),
        };
        Ok(Files { source, name })
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The directory's last component, the GGUF file's name without its ending, or the embedded model's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The directory or file; `None` for an embedded model.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Directory(path) | Source::Gguf(path) | Source::Safetensors(path) => Some(path),
            Source::Embedded { .. } => None,
        }
    }

    /// Path or name of the model, for messages.
    pub(crate) fn location(&self) -> String {
        match &self.source {
            Source::Directory(path) | Source::Gguf(path) | Source::Safetensors(path) => path.display().to_string(),
            Source::Embedded { name, .. } => format!("the built-in model {name}"),
        }
    }

    /// The names in the directory, unordered; only the file's own name for a single file.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.source {
            Source::Gguf(path) | Source::Safetensors(path) => {
                path.file_name().map(|name| name.to_string_lossy().into_owned()).into_iter().collect()
            }
            Source::Directory(path) => {
                let entries = path.read_dir().into_iter().flatten().flatten();
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            }
            Source::Embedded { files, .. } => files.iter().map(|(name, _)| name.to_string()).collect(),
        }
    }

    /// Whether the name exists. A broken link counts: opening it gives the error.
    pub(crate) fn has(&self, file: &str) -> bool {
        let exists = |path: PathBuf| match path.symlink_metadata() {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        match &self.source {
            Source::Directory(path) => exists(path.join(file)),
            Source::Gguf(path) | Source::Safetensors(path) => exists(path.with_file_name(file)),
            Source::Embedded { files, .. } => files.iter().any(|(name, _)| *name == file),
        }
    }

    /// A UTF-8 text file of at most `limit` bytes; `None` if it does not exist.
    pub(crate) fn read_text(&self, file: &str, limit: u64) -> Result<Option<String>, LoadError> {
        let Some(open) = self.open(file)? else { return Ok(None) };
        if open.len() > limit {
            return Err(LoadError::TooLarge { file: file.to_string(), bytes: open.len(), limit });
        }
        let bytes = open.read_vec(0, open.len() as usize)?;
        match String::from_utf8(bytes) {
            Ok(text) if text.starts_with('\u{feff}') => {
                Err(LoadError::broken(file, "begins with a byte order mark: save it as UTF-8 without one"))
            }
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                Err(LoadError::broken(file, format!("not UTF-8 text at byte {at}")))
            }
        }
    }

    /// Opens a regular file for positioned reads; `None` if the name does not exist. Every model file is opened here,
    /// so all of them are checked for being another kind of file.
    pub(crate) fn open(&self, file: &str) -> Result<Option<ModelFile>, LoadError> {
        let path = match &self.source {
            Source::Directory(directory) => directory.join(file),
            Source::Gguf(path) | Source::Safetensors(path) => path.with_file_name(file),
            Source::Embedded { files, .. } => {
                return Ok(files.iter().find(|(name, _)| *name == file).map(|(name, bytes)| ModelFile {
                    name: name.to_string(),
                    len: bytes.len() as u64,
                    written: None,
                    bytes: Bytes::Memory(bytes),
                }));
            }
        };
        let handle = match files::open(&path) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(with_cache_advice(&path, LoadError::io(file, error))),
        };
        let metadata = handle.metadata().map_err(|error| LoadError::io(file, error))?;
        let (len, written) = (metadata.len(), Some((metadata.mtime(), metadata.mtime_nsec())));
        let open = ModelFile { name: file.to_string(), len, written, bytes: Bytes::Disk(handle) };
        let mut head = [0; HEAD_BYTES];
        let head = &mut head[..len.min(HEAD_BYTES as u64) as usize];
        open.read_at(0, head)?;
        match not_a_model_file(head) {
            Some(problem) => Err(LoadError::broken(file, problem)),
            None => Ok(Some(open)),
        }
    }

    /// Opens a required file.
    pub(crate) fn require(&self, file: &str) -> Result<ModelFile, LoadError> {
        let missing = || LoadError::NoFile { file: file.to_string(), checkpoint: self.location() };
        self.open(file)?.ok_or_else(missing)
    }
}

/// Adds a remedy to the error of a link in the hub's cache without its blob.
fn with_cache_advice(path: &Path, error: LoadError) -> LoadError {
    let target = path.read_link().unwrap_or_default();
    let is_cache = target.components().any(|part| part.as_os_str() == "blobs") && !path.exists();
    match error {
        LoadError::Broken { file, problem } if is_cache => {
            let advice = "the hub's cache lacks this file's contents: name the model by its hub id, online";
            LoadError::Broken { file, problem: format!("{problem}; {advice}") }
        }
        other => other,
    }
}

/// Bytes read to detect the kind of a file.
const HEAD_BYTES: usize = 512;

/// For a file that begins with `head` (the whole file, if it is short) and cannot be a model file: its kind and the
/// remedy. `None`: it may be a model file.
fn not_a_model_file(head: &[u8]) -> Option<&'static str> {
    // Weights are detected first: the length that they begin with may have any bytes.
    let is_header = head.get(..8).is_some_and(|length| {
        u64::from_le_bytes(length.try_into().expect("8 bytes")) >> 32 == 0
            && head.get(8).is_none_or(|&next| next == b'{')
    });
    if head.starts_with(b"GGUF") || is_header {
        return None;
    }
    const PACKED: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "gzip-compressed: unpack it (gunzip)"),
        (b"PK\x03\x04", "a zip archive: unpack it (unzip), or convert PyTorch weights to safetensors"),
        (b"\x28\xb5\x2f\xfd", "zstd-compressed: unpack it (unzstd)"),
        (b"\xfd7zXZ\0", "xz-compressed: unpack it (unxz)"),
        (b"BZh", "bzip2-compressed: unpack it (bunzip2)"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    ];
    if head.is_empty() {
        return Some("empty, 0 bytes: download it again");
    }
    if let Some((_, problem)) = PACKED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(problem);
    }
    if is_utf16(head) {
        return Some("UTF-16 text: save it as UTF-8");
    }
    let text = String::from_utf8_lossy(head).to_lowercase();
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    if text.starts_with("version https://git-lfs.github.com/") || text.starts_with("version https://hawser.github.com/")
    {
        return Some("a git-lfs pointer, not the file itself: run git lfs pull");
    }
    let is_page = ["<!doctype html", "<html", "<head", "<body"].iter().any(|tag| text.starts_with(tag))
        || text.starts_with("<?xml") && ["<html", "<error", "<!doctype html"].iter().any(|tag| text.contains(tag));
    is_page.then_some("a web page (HTML), as servers send instead of a file: download it again")
}

/// Whether `head` has a UTF-16 byte order mark, or exactly every second byte is zero.
fn is_utf16(head: &[u8]) -> bool {
    let pairs = &head.as_chunks::<2>().0[..(head.len() / 2).min(16)];
    let zeros = |at: usize| pairs.iter().all(|pair| pair[at] == 0 && pair[1 - at] != 0);
    head.starts_with(&[0xFF, 0xFE]) || head.starts_with(&[0xFE, 0xFF]) || pairs.len() >= 2 && (zeros(0) || zeros(1))
}

/// One open file. Its length is fixed at open; a file that shrinks later gives errors, never short data.
#[derive(Debug)]
pub struct ModelFile {
    name: String,
    len: u64,
    /// When it was last written to, at open; `None` for a built-in file.
    written: Option<(i64, i64)>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Disk(File),
    Memory(&'static [u8]),
}

impl ModelFile {
    /// File name within the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes at open.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file was empty at open.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Times of the last change, mtime and ctime, as seconds and nanoseconds since 1970. `None` for a built-in file.
    pub fn times(&self) -> Option<[(i64, i64); 2]> {
        match &self.bytes {
            Bytes::Disk(file) => {
                let now = file.metadata().ok()?;
                Some([(now.mtime(), now.mtime_nsec()), (now.ctime(), now.ctime_nsec())])
            }
            Bytes::Memory(_) => None,
        }
    }

    /// Whether it was written to since it was opened: what is read now may be of other weights.
    pub(crate) fn is_changed(&self) -> bool {
        self.written.is_some() && self.times().map(|[written, _]| written) != self.written
    }

    /// The first 40 characters if the file begins with text, otherwise `None`. Weights do not: the length that they
    /// begin with has zero bytes.
    pub(crate) fn beginning(&self) -> Result<Option<String>, LoadError> {
        let mut head = [0; 40];
        let head = &mut head[..self.len.min(40) as usize];
        self.read_at(0, head)?;
        let text = head.iter().all(|&byte| byte.is_ascii_graphic() || b" \t\r\n".contains(&byte));
        Ok((text && head.len() >= 8).then(|| String::from_utf8_lossy(head).trim().to_string()))
    }

    /// The bytes of a built-in file.
    pub(crate) fn in_binary(&self) -> Option<&'static [u8]> {
        match &self.bytes {
            Bytes::Disk(_) => None,
            Bytes::Memory(bytes) => Some(bytes),
        }
    }

    /// Fills `buffer` from `offset`. May be called from many threads at once.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), LoadError> {
        match &self.bytes {
            Bytes::Disk(file) => file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => LoadError::io(
                    &self.name,
                    io::Error::new(error.kind(), format!("the file ends before byte {}", end(offset, buffer))),
                ),
                _ => LoadError::io(&self.name, error),
            }),
            Bytes::Memory(bytes) => {
                let found = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)?.get(..buffer.len()));
                let found = found.ok_or_else(|| {
                    let text = format!("the file ends before byte {}", end(offset, buffer));
                    LoadError::io(&self.name, io::Error::new(io::ErrorKind::UnexpectedEof, text))
                })?;
                buffer.copy_from_slice(found);
                Ok(())
            }
        }
    }

    /// `len` bytes from `offset`, which must be inside the file, so no allocation exceeds its size.
    pub fn read_vec(&self, offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        assert!(offset.checked_add(len as u64).is_some_and(|end| end <= self.len), "a read outside {}", self.name);
        let mut bytes = Vec::new();
        let oom = |_| LoadError::OutOfMemory { bytes: len, purpose: self.name.clone() };
        bytes.try_reserve_exact(len).map_err(oom)?;
        bytes.resize(len, 0);
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

fn end(offset: u64, buffer: &[u8]) -> u64 {
    offset.saturating_add(buffer.len() as u64)
}
