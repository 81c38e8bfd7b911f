//! Where a model's files are, opened by name: a directory, a GGUF file and what lies beside it, or bytes in the binary.
//!
//! ```text
//! Source::Directory   config.json  model.safetensors  tokenizer.json ...   (symlinks are followed: the hub's cache is made of them)
//! Source::Gguf        model.gguf, and its other parts beside it
//! Source::Safetensors NAME.safetensors, and the texts beside it
//! Source::Embedded    the same names, bytes in the binary
//!         │
//!       Files ── read_text(name)   small text files, size-capped
//!             └─ open(name)        ModelFile: length fixed at open, positioned reads from any thread
//! ```
//! The ground floor of the crate: what the files mean is the business of the containers above.
//!
//! Nothing is memory-mapped. A mapped file that somebody truncates ends the process with SIGBUS; a positioned read of
//! the same file is an error that names it.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where a model's files are.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory in the layout of Hugging Face `transformers`, or with one GGUF model in it.
    Directory(PathBuf),
    /// A GGUF file; of a model in parts, the first.
    Gguf(PathBuf),
    /// One safetensors file, and the texts beside it: heads that draft for a model are often published so.
    Safetensors(PathBuf),
    /// Files built into the binary.
    Embedded {
        /// What the model calls itself.
        name: &'static str,
        /// `(file name, bytes)`.
        files: &'static [(&'static str, &'static [u8])],
    },
}

impl Source {
    /// A path as a person names it: a GGUF file, or else a directory.
    pub fn at(path: PathBuf) -> Source {
        if path.is_dir() || path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("gguf")) {
            Source::Directory(path)
        } else {
            Source::Gguf(path)
        }
    }
}

/// Why a model cannot be loaded. Every variant names the file; the field or tensor too where there is one.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model directory is not there, or is not a directory.
    #[error("{}: no such model directory", .path.display())]
    NoDirectory {
        /// As given.
        path: PathBuf,
    },
    /// A file that every model of this kind has is absent.
    #[error("{file}: absent from {checkpoint}")]
    NoFile {
        /// File name.
        file: String,
        /// Where it was looked for.
        checkpoint: String,
    },
    /// A file is there and cannot be what its name says: half of it, a link to nothing, a page in its place.
    #[error("{file}: broken: {problem}")]
    Broken {
        /// File name.
        file: String,
        /// What is there instead, and what to do.
        problem: String,
    },
    /// A file could not be opened or read.
    #[error("{file}: {error}")]
    Io {
        /// File name.
        file: String,
        /// What the operating system said.
        error: io::Error,
    },
    /// A file is larger than anything this program reads under that name.
    #[error("{file}: {bytes} bytes; at most {limit} are read")]
    TooLarge {
        /// File name.
        file: String,
        /// Its size.
        bytes: u64,
        /// The cap.
        limit: u64,
    },
    /// A value inside a file is absent, malformed or out of range.
    #[error("{file}: {field}: {problem}")]
    Field {
        /// File name.
        file: String,
        /// Dotted path of the field, or the part of the format.
        field: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// The weights lack a tensor that the configuration asks for.
    #[error("{file}: tensor `{tensor}` is missing: the configuration asks for shape {expected:?}")]
    NoTensor {
        /// The weights file, or the index of a sharded checkpoint.
        file: String,
        /// Full name.
        tensor: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's shape contradicts the configuration.
    #[error("{file}: tensor `{tensor}`: shape {found:?} where the configuration asks for {expected:?}")]
    Shape {
        /// File that holds it.
        file: String,
        /// Full name.
        tensor: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// The checkpoint holds no weights in a format that this program reads.
    #[error("{checkpoint}: {problem}")]
    NoWeights {
        /// The model.
        checkpoint: String,
        /// What is there, and what to do.
        problem: String,
    },
    /// A load option contradicts the model or the other options.
    #[error("{option}: {problem}")]
    Option {
        /// Name in the options of a load, which is the flag's name with underscores.
        option: &'static str,
        /// What is wrong and what is possible.
        problem: String,
    },
    /// The machine has not enough memory.
    #[error("out of memory: {bytes} bytes for {purpose}")]
    OutOfMemory {
        /// Size of the allocation that failed.
        bytes: usize,
        /// What it was for.
        purpose: String,
    },
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

    /// Of a text that was to be JSON: broken where it is none, a [`LoadError::Field`] where a value is wrong.
    pub fn json(file: &str, field: &str, error: &serde_json::Error) -> LoadError {
        match error.classify() {
            serde_json::error::Category::Data => LoadError::field(file, field, error),
            _ => LoadError::broken(file, format!("not JSON: {error}")),
        }
    }

    /// What the operating system said of a file. Where something else than a file is at its name, the file is broken.
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
    /// Fails when a directory is not there.
    pub(crate) fn at(source: Source) -> Result<Files, LoadError> {
        let name = match &source {
            Source::Directory(path) => {
                if let Some(problem) = files::lost_link(path) {
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

    /// Where they are.
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

    /// Where the files are, for messages.
    pub(crate) fn location(&self) -> String {
        match &self.source {
            Source::Directory(path) | Source::Gguf(path) | Source::Safetensors(path) => path.display().to_string(),
            Source::Embedded { name, .. } => format!("the built-in model {name}"),
        }
    }

    /// The names in the directory, in no order; of a single file its own alone.
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

    /// Whether there is anything of that name. A link that leads to nothing is: opening it is the error.
    pub(crate) fn has(&self, file: &str) -> bool {
        let there = |path: PathBuf| match path.symlink_metadata() {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        match &self.source {
            Source::Directory(path) => there(path.join(file)),
            Source::Gguf(path) | Source::Safetensors(path) => there(path.with_file_name(file)),
            Source::Embedded { files, .. } => files.iter().any(|(name, _)| *name == file),
        }
    }

    /// A UTF-8 text file of at most `limit` bytes; `None` when there is no such file.
    pub(crate) fn read_text(&self, file: &str, limit: u64) -> Result<Option<String>, LoadError> {
        let Some(open) = self.open(file)? else { return Ok(None) };
        if open.len() > limit {
            return Err(LoadError::TooLarge { file: file.to_string(), bytes: open.len(), limit });
        }
        let bytes = open.read_vec(0, open.len() as usize)?;
        match String::from_utf8(bytes) {
            Ok(text) if text.starts_with('\u{feff}') => {
                Err(LoadError::broken(file, "it begins with a byte order mark: save it as UTF-8 without one"))
            }
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                Err(LoadError::broken(file, format!("not UTF-8 text at byte {at}")))
            }
        }
    }

    /// Opens a regular file for positioned reads; `None` when there is nothing of that name. Every file of a model
    /// comes through here, so what can be at a name in a file's place is known for all of them.
    pub(crate) fn open(&self, file: &str) -> Result<Option<ModelFile>, LoadError> {
        let path = match &self.source {
            Source::Directory(directory) => directory.join(file),
            Source::Gguf(path) | Source::Safetensors(path) => path.with_file_name(file),
            Source::Embedded { files, .. } => {
                return Ok(files.iter().find(|(name, _)| *name == file).map(|(name, bytes)| ModelFile {
                    name: name.to_string(),
                    len: bytes.len() as u64,
                    bytes: Bytes::Memory(bytes),
                }));
            }
        };
        let handle = match files::open(&path) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(lost_by_the_hub(&path, LoadError::io(file, error))),
        };
        let len = handle.metadata().map_err(|error| LoadError::io(file, error))?.len();
        let open = ModelFile { name: file.to_string(), len, bytes: Bytes::Disk(handle) };
        let mut head = [0; HEAD];
        let head = &mut head[..len.min(HEAD as u64) as usize];
        open.read_at(0, head)?;
        match stand_in(head) {
            Some(problem) => Err(LoadError::broken(file, problem)),
            None => Ok(Some(open)),
        }
    }

    /// A file that has to be there.
    pub(crate) fn require(&self, file: &str) -> Result<ModelFile, LoadError> {
        let missing = || LoadError::NoFile { file: file.to_string(), checkpoint: self.location() };
        self.open(file)?.ok_or_else(missing)
    }
}

/// A link of the hub's cache whose blob is not there.
fn lost_by_the_hub(path: &Path, error: LoadError) -> LoadError {
    let target = path.read_link().unwrap_or_default();
    let is_cache = target.components().any(|part| part.as_os_str() == "blobs") && !path.exists();
    match error {
        LoadError::Broken { file, problem } if is_cache => {
            let advice = "the hub's cache never had this file whole, or lost it: name the model by its hub id, online";
            LoadError::Broken { file, problem: format!("{problem}; {advice}") }
        }
        other => other,
    }
}

/// Bytes that tell what a file is.
const HEAD: usize = 512;

/// What a file is that begins with `head` (the whole file, if it is short) and is no file of a model, whatever its
/// name, and what to do. `None`: it may be one.
fn stand_in(head: &[u8]) -> Option<&'static str> {
    // What weights begin with is looked at first: their lengths may have any bytes.
    let is_header = head.get(..8).is_some_and(|length| {
        u64::from_le_bytes(length.try_into().expect("8 bytes")) >> 32 == 0
            && head.get(8).is_none_or(|&next| next == b'{')
    });
    if head.starts_with(b"GGUF") || is_header {
        return None;
    }
    const PACKED: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "packed by gzip: unpack it (gunzip)"),
        (b"PK\x03\x04", "a zip archive: unpack it (unzip), or, of weights, convert what PyTorch saved to safetensors"),
        (b"\x28\xb5\x2f\xfd", "packed by zstd: unpack it (unzstd)"),
        (b"\xfd7zXZ\0", "packed by xz: unpack it (unxz)"),
        (b"BZh", "packed by bzip2: unpack it (bunzip2)"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    ];
    if head.is_empty() {
        return Some("empty, 0 bytes: fetch it again");
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
        return Some("a pointer of git-lfs and not the file that it stands for: git lfs pull fetches that");
    }
    let is_page = ["<!doctype html", "<html", "<head", "<body"].iter().any(|tag| text.starts_with(tag))
        || text.starts_with("<?xml") && ["<html", "<error", "<!doctype html"].iter().any(|tag| text.contains(tag));
    is_page.then_some("a web page (HTML), as a server sends it in place of a file: fetch it again")
}

/// By its mark, or because every second byte of its beginning is zero and no other.
fn is_utf16(head: &[u8]) -> bool {
    let pairs = &head.as_chunks::<2>().0[..(head.len() / 2).min(16)];
    let zeros = |at: usize| pairs.iter().all(|pair| pair[at] == 0 && pair[1 - at] != 0);
    head.starts_with(&[0xFF, 0xFE]) || head.starts_with(&[0xFE, 0xFF]) || pairs.len() >= 2 && (zeros(0) || zeros(1))
}

/// One open file. Its length is what it was at open; a file that shrinks later gives errors, never short data.
#[derive(Debug)]
pub struct ModelFile {
    name: String,
    len: u64,
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

    /// Bytes at open.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file was empty at open.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When the file was last changed, seconds and nanoseconds since 1970: as programs set it, and as the file system
    /// noted it. `None` for what is built in.
    pub fn times(&self) -> Option<[(i64, i64); 2]> {
        match &self.bytes {
            Bytes::Disk(file) => {
                let now = file.metadata().ok()?;
                Some([(now.mtime(), now.mtime_nsec()), (now.ctime(), now.ctime_nsec())])
            }
            Bytes::Memory(_) => None,
        }
    }

    /// The first characters of a file that is text for as far as a line goes; `None` where it is none. Weights are
    /// not: the lengths that they begin with have zeros.
    pub(crate) fn beginning(&self) -> Result<Option<String>, LoadError> {
        let mut head = [0; 40];
        let head = &mut head[..self.len.min(40) as usize];
        self.read_at(0, head)?;
        let text = head.iter().all(|&byte| byte.is_ascii_graphic() || b" \t\r\n".contains(&byte));
        Ok((text && head.len() >= 8).then(|| String::from_utf8_lossy(head).trim().to_string()))
    }

    /// The bytes of a file that is built in.
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

    /// `len` bytes from `offset`, which must lie in the file: nothing is allocated beyond its size.
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
