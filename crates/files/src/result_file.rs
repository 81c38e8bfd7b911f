//! Result files at a path from a flag, which overwrite only an earlier result of the same kind.
//!
//! ```text
//! at the path                                    a result
//! nothing; an empty file                         is written
//! an earlier result, by its first bytes          is replaced
//! any other file, a read-only one, a directory,  is an error that names the kind; nothing changes
//! a socket, a block device, a broken link
//! a terminal, /dev/null, a pipe with a reader    is written through it: nothing is lost
//! ```
//! Links are followed. The check and the write use one open file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::kind;

/// Bytes read to recognize an earlier result.
const HEAD_BYTES: u64 = 4096;

/// A path for a result that overwrites no other file.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    is_ours: fn(&[u8]) -> bool,
}

impl ResultFile {
    /// Checks the path without changing anything, so that a long computation fails early. `is_ours`: whether a file
    /// with this beginning (at most 4 KiB) is an earlier result of that kind.
    pub fn new(path: &Path, is_ours: fn(&[u8]) -> bool) -> io::Result<ResultFile> {
        let place = ResultFile { path: path.to_owned(), is_ours };
        match fs::symlink_metadata(path) {
            Ok(_) => drop(place.existing()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => place.check_new()?,
            Err(error) => return Err(error),
        }
        Ok(place)
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file for writing, truncated. Checks again: the path may have changed since [`new`](Self::new).
    pub fn create(&self) -> io::Result<File> {
        match File::create_new(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created,
        }
        let mut file = self.existing()?;
        if file.metadata()?.is_file() {
            file.rewind()?;
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Writes the whole result.
    pub fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.create()?.write_all(bytes)
    }

    /// Whether a new file can be created at the path.
    fn check_new(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match fs::metadata(parent) {
            Ok(found) if found.is_dir() && self.path.file_name().is_some() => Ok(()),
            Ok(found) if found.is_dir() => Err(refused("not a file name")),
            Ok(_) => Err(refused(format!("{} is not a directory", parent.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(refused(format!("no directory {}; create it first", parent.display())))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the existing file for writing, if nothing is lost by that.
    fn existing(&self) -> io::Result<File> {
        let found = fs::metadata(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refused("a broken link; remove it, or name another file"),
            _ => error,
        })?;
        let kind_of = found.file_type();
        if kind_of.is_fifo() || kind_of.is_char_device() {
            return through(&self.path);
        }
        if !found.is_file() {
            return Err(refused(format!("{}, not a file; name another", kind(kind_of))));
        }
        // Root could write it anyway, and should not.
        if found.permissions().readonly() {
            return Err(refused("a read-only file; name another, or make it writable"));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(refused("not a regular file any more; try again"));
        }
        let mut head = Vec::new();
        (&file).take(HEAD_BYTES).read_to_end(&mut head)?;
        match head.is_empty() || (self.is_ours)(&head) {
            true => Ok(file),
            false => Err(refused("exists, and twostroke did not write this kind of file; name another, or remove it")),
        }
    }
}

/// Opens a pipe or a character device for writing. A pipe without a reader is an error, not a wait.
fn through(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true);
    let asked = options.clone().custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let asked = asked.map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => refused("a pipe without a reader"),
        _ => error,
    })?;
    // Reopened as blocking, for complete writes.
    let file = options.custom_flags(libc::O_NOCTTY).open(path);
    drop(asked);
    file
}

fn refused(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem.into())
}
