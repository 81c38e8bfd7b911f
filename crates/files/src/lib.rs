//! Opens, reads and writes all files of the program: from flags, model directories and its own caches.
//!
//! ```text
//! path ── stat: regular file? ── open, non-blocking ── fstat: still regular? ──> File
//!                                                                                  └── at most `max_bytes` ──> Vec, String
//! ```
//! A path may name anything: opening a FIFO waits for a writer forever, `/dev/zero` never ends, a directory fails only
//! when it is read, and a file may grow during a read. So only regular files are opened, the kind is checked again
//! after opening, and every read has a limit.
//!
//! Files that the program keeps (conversations, caches, measurements) are private to their owner, 0600 in 0700,
//! whatever the umask: functions with `private` in their name.
//!
//! Errors are `io::Error` without the path: the caller adds it as the user wrote it. Reads from the kernel (`/proc`,
//! `/sys`) do not come through here; `tests/tidy.rs` has the list.

mod result_file;

pub use result_file::ResultFile;

use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Opens a regular file for reading. Never blocks on a writer or a device.
///
/// Fails with [`io::ErrorKind::NotFound`] if the path does not exist, and with [`io::ErrorKind::InvalidInput`] and the
/// kind if it is no regular file. Links are followed; a broken link is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening as well: opening a device can have an effect.
    let metadata = fs::metadata(path).map_err(|error| match broken_link(path) {
        Some(problem) => io::Error::new(io::ErrorKind::InvalidInput, problem),
        None => error,
    })?;
    is_regular(&metadata, COPY)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&file.metadata()?, COPY)?;
    Ok(file)
}

/// The problem of a broken link; `None` for anything else, and if the path does not exist.
pub fn broken_link(path: &Path) -> Option<String> {
    const MAX_SHOWN: usize = 200;
    let error = fs::metadata(path).err()?;
    let target = fs::read_link(path).ok()?;
    if error.raw_os_error() == Some(libc::ELOOP) {
        return Some("a link that points to itself, in a circle".to_owned());
    }
    let target: String = target.to_string_lossy().chars().take(MAX_SHOWN).collect();
    (error.kind() == io::ErrorKind::NotFound).then(|| format!("a link to {target}, which does not exist"))
}

/// Reads a regular file of at most `max_bytes`. Allocates no more than the file has or `max_bytes` allows.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let len = file.metadata()?.len();
    if len > max_bytes {
        return Err(too_large(max_bytes));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // The file may grow meanwhile.
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes { Err(too_large(max_bytes)) } else { Ok(bytes) }
}

/// A byte order mark.
const MARK: char = '\u{feff}';

/// [`read`] for UTF-8 text, without the byte order mark that some editors put first.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut text = String::from_utf8(read(path, max_bytes)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("not UTF-8 text at byte {at}"))
    })?;
    if text.starts_with(MARK) {
        text.drain(..MARK.len_utf8());
    }
    Ok(text)
}

/// Creates a new file with mode 0600, for writing and reading. An error if the path exists.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have removed bits of the owner.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Whether other users may read a file, by its mode.
pub fn is_shared(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o044 != 0)
}

/// Creates a directory with mode 0700, and its missing parents. An existing directory keeps its mode.
pub fn private_directory(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        private_directory(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)),
        // Another process has created it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(no_directory(path).map_or(error, |is| io::Error::new(io::ErrorKind::NotADirectory, is))),
    }
}

/// The kind of a path that is not a directory, for messages.
fn no_directory(path: &Path) -> Option<String> {
    let what = || {
        let metadata = fs::metadata(path).ok()?;
        Some(if metadata.is_file() { "a regular file" } else { kind(metadata.file_type()) }.to_owned())
    };
    broken_link(path).or_else(what).map(|what| format!("{what}, not a directory"))
}

/// [`private_directory`] for a path that belongs to this program: an existing directory becomes private too.
pub fn force_private_directory(path: &Path) -> io::Result<()> {
    private_directory(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Replaces `path` atomically by a file of mode 0600 with `bytes`, complete or not at all even after a crash or a power
/// failure. Creates a missing directory as private.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_private_by(path, |file| file.write_all(bytes))
}

/// [`replace_private`] with the contents from `write`.
pub fn replace_private_by(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    private_directory(directory_of(path))?;
    replace_in_place(path, create_private, write)
}

/// [`replace_private`] for public data: modes of file and directories follow the umask.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory_of(path))?;
    replace_in_place(path, |path| File::create_new(path), |file| file.write_all(bytes))
}

fn replace_in_place(
    path: &Path,
    create: impl FnOnce(&Path) -> io::Result<File>,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = temporary(path);
    // A leftover of an earlier process with this id. Removed unseen, so nothing is written through a link.
    let _ = fs::remove_file(&temporary);
    let written = create(&temporary).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    match written {
        Ok(()) => sync_directory(directory_of(path)),
        Err(_) => drop(fs::remove_file(&temporary)), // it may not exist
    }
    written
}

/// Syncs a directory, so that a renamed file keeps its name after a power failure. Best effort: not every file system
/// supports it.
fn sync_directory(directory: &Path) {
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Suffix of a temporary file, after the writer's process id.
const TEMPORARY: &str = ".tmp";

/// Path of the temporary file while `path` is written: `PATH.PID.tmp`.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}{TEMPORARY}", std::process::id()));
    PathBuf::from(name)
}

/// The process id of a temporary file's writer, which may have ended: `NAME.PID.tmp`. The holder of a directory's lock
/// removes such files.
pub fn writer_of(path: &Path) -> Option<u32> {
    let (name, pid) = path.file_name()?.to_str()?.strip_suffix(TEMPORARY)?.rsplit_once('.')?;
    let is_number = pid.bytes().all(|byte| byte.is_ascii_digit());
    if name.is_empty() || !is_number { None } else { pid.parse().ok() }
}

/// Opens a regular file for reading and appending; creates it if missing.
pub fn append(path: &Path) -> io::Result<File> {
    append_by(0o666, path)
}

/// [`append`] that creates the file with mode 0600.
pub fn append_private(path: &Path) -> io::Result<File> {
    match create_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    append_by(0o600, path)
}

fn append_by(mode: u32, path: &Path) -> io::Result<File> {
    match fs::metadata(path) {
        Ok(metadata) => is_regular(&metadata, "name another")?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(mode).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    is_regular(&file.metadata()?, "name another")?;
    Ok(file)
}

/// What to do with what is no file to be read.
const COPY: &str = "copy its contents to one";

/// `advice`: what to do where it is none.
fn is_regular(metadata: &Metadata, advice: &str) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = kind(metadata.file_type());
    let problem = format!("{what}, not a regular file; {advice}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

fn kind(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () if kind.is_socket() => "a socket",
        () => "an unknown kind of file",
    }
}

fn too_large(max_bytes: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than the limit of {max_bytes} bytes for this file"))
}
