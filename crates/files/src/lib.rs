//! The one door to files, whoever named them: a flag, a directory of a model, a cache of our own.
//!
//! ```text
//! name ── stat: a regular file? ── open, never waiting ── fstat: still one? ──> File
//!                                                                                 └── at most so many bytes ──> Vec, String
//! ```
//! What is at a name is not known until it is open. A FIFO waits for a writer for ever, `/dev/zero` never ends, a
//! directory is an error only when it is read, and a file may grow while it is. So nothing but a regular file is
//! opened, its kind is asked again of what was opened, and whoever reads says how much there may be.
//!
//! Errors are of the operating system's type and do not hold the name: callers have it, in the words of their user.
//! Asking the kernel (`/proc`, `/sys`) is no reading of files and does not come through here; `tests/tidy.rs` has the
//! list.

mod own;

pub use own::Place;

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens a regular file to be read. Never waits: not for a writer, not for a device.
///
/// Fails with [`io::ErrorKind::NotFound`] where there is nothing, and with [`io::ErrorKind::InvalidInput`] and what it
/// is where there is something else. Links are followed.
pub fn open(path: &Path) -> io::Result<File> {
    // Asked before the open as well: opening a device can do something to it.
    is_regular(&fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&file.metadata()?)?;
    Ok(file)
}

/// All of a regular file, if it has at most `most` bytes. Allocates no more than the file has or `most` allows.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let len = file.metadata()?.len();
    if len > most {
        return Err(too_large(most));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // It may grow meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
}

/// As [`read`], of UTF-8 text.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("not UTF-8 text at byte {at}"))
    })
}

/// A file that was not there before and is open to its owner alone, for writing and reading.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Puts what `write` writes at `path`, whole or not at all, also when the process ends or the power goes meanwhile.
/// Whatever was at that name is gone then. The directory is made if need be.
pub fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    replace_as(0o666, path, write)
}

/// As [`replace`], of bytes that are there already, in a file that is its owner's alone.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_as(0o600, path, |file| file.write_all(bytes))
}

fn replace_as(mode: u32, path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let temporary = temporary(path);
    // What an earlier process of this number left. Whatever it is, nothing is written through it.
    let _ = fs::remove_file(&temporary);
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // it may not exist
    }
    written
}

/// As [`replace`], of bytes that are there already.
pub fn replace_with(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, |file| file.write_all(bytes))
}

/// Ends the name of a file in the making, behind the writer's process id.
pub const TEMPORARY: &str = "tmp";

/// Where [`replace`] writes until all is there: `PATH.PID.tmp`.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{TEMPORARY}", std::process::id()));
    PathBuf::from(name)
}

/// Opens a regular file for reading, and for writing at its end; makes it where there is none.
pub fn append(path: &Path) -> io::Result<File> {
    match fs::metadata(path) {
        Ok(metadata) => is_regular(&metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut options = OpenOptions::new();
    let file =
        options.create(true).append(true).read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&file.metadata()?)?;
    Ok(file)
}

fn is_regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = kind(metadata.file_type());
    let problem = format!("{what}, not a regular file; copy what it holds into one");
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

fn kind(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () if kind.is_socket() => "a socket",
        () => "no file",
    }
}

fn too_large(most: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("larger than {most} bytes, the most that is read under this name"),
    )
}
