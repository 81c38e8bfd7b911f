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
//! What the program keeps (what was said and answered, caches, measurements) is its owner's alone, 0600 in 0700, whatever
//! the umask: `private` in a name says so.
//!
//! Errors are of the operating system's type and do not hold the name: callers have it, in the words of their user.
//! Asking the kernel (`/proc`, `/sys`) is no reading of files and does not come through here; `tests/tidy.rs` has the
//! list.

mod own;

pub use own::ResultPlace;

use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Opens a regular file to be read. Never waits: not for a writer, not for a device.
///
/// Fails with [`io::ErrorKind::NotFound`] where there is nothing at all, and with [`io::ErrorKind::InvalidInput`] and
/// what it is where there is something else. Links are followed; one that leads to no file is something else.
pub fn open(path: &Path) -> io::Result<File> {
    // Asked before the open as well: opening a device can do something to it.
    let metadata = fs::metadata(path).map_err(|error| match lost_link(path) {
        Some(problem) => io::Error::new(io::ErrorKind::InvalidInput, problem),
        None => error,
    })?;
    is_regular(&metadata)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(&file.metadata()?)?;
    Ok(file)
}

/// What is wrong with a link that leads to nothing; `None` for everything else, and where there is nothing.
pub fn lost_link(path: &Path) -> Option<String> {
    const MOST_SHOWN: usize = 200;
    let error = fs::metadata(path).err()?;
    let target = fs::read_link(path).ok()?;
    if error.raw_os_error() == Some(libc::ELOOP) {
        return Some("a link that leads in a circle".to_owned());
    }
    let target: String = target.to_string_lossy().chars().take(MOST_SHOWN).collect();
    (error.kind() == io::ErrorKind::NotFound).then(|| format!("a link to {target}, where there is nothing"))
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
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have taken bits from the owner as well.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Whether other users may read a file, by its mode.
pub fn is_shared(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o044 != 0)
}

/// Makes a directory that its owner alone can look into, and those above it that are missing. One that is there
/// already stays as it is: its mode was chosen when it was made.
pub fn private_directory(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        private_directory(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700)),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(no_directory(path).map_or(error, |is| io::Error::new(io::ErrorKind::NotADirectory, is))),
    }
}

/// What stands where a directory is wanted.
fn no_directory(path: &Path) -> Option<String> {
    let what = || {
        let metadata = fs::metadata(path).ok()?;
        Some(if metadata.is_file() { "a regular file" } else { kind(metadata.file_type()) }.to_owned())
    };
    lost_link(path).or_else(what).map(|what| format!("{what}, not a directory"))
}

/// As [`private_directory`], of a name that is this program's own: one that is there already becomes private too.
pub fn own_directory(path: &Path) -> io::Result<()> {
    private_directory(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Puts `bytes` at `path` in a file that is its owner's alone, whole or not at all, also when the process ends or the
/// power goes meanwhile. Whatever was at that name is gone then. The directory is made if need be, as private.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_private_by(path, |file| file.write_all(bytes))
}

/// As [`replace_private`], of what `write` writes.
pub fn replace_private_by(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    private_directory(directory_of(path))?;
    replace_in_place(path, create_private, write)
}

/// As [`replace_private`], of what is no secret: a file and directories as the umask has them.
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
    // What an earlier process of this number left. Whatever it is, nothing is written through it.
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

/// Has the disk note the names in a directory: without it a file that is whole can be nameless after a power cut. Not
/// every file system can, and there is nothing else to try.
fn sync_directory(directory: &Path) {
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Ends the name of a file in the making, behind the writer's process id.
const TEMPORARY: &str = ".tmp";

/// Where a file is written until all is there: `PATH.PID.tmp`.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}{TEMPORARY}", std::process::id()));
    PathBuf::from(name)
}

/// The process that writes a file of this name and has not come to its end, or did when it ended: `NAME.PID.tmp`. Who
/// holds a directory's lock takes such files away.
pub fn writer_of(path: &Path) -> Option<u32> {
    let (name, pid) = path.file_name()?.to_str()?.strip_suffix(TEMPORARY)?.rsplit_once('.')?;
    let is_number = pid.bytes().all(|byte| byte.is_ascii_digit());
    if name.is_empty() || !is_number { None } else { pid.parse().ok() }
}

/// Opens a regular file for reading, and for writing at its end; makes it where there is none.
pub fn append(path: &Path) -> io::Result<File> {
    append_by(0o666, path)
}

/// As [`append`]; a file that it makes is its owner's alone.
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
        Ok(metadata) => is_regular(&metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true).mode(mode).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_no_directory_is_named() {
        let place = testing::Scratch::new("files-none");
        fs::write(place.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("nothing", place.join("link")).unwrap();
        for (name, told) in [
            ("file", "a regular file, not a directory"),
            ("link", "a link to nothing, where there is nothing, not a directory"),
        ] {
            assert_eq!(private_directory(&place.join(name)).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn what_is_private_is_its_owners_alone() {
        let place = testing::Scratch::new("files");
        let inner = place.join("a/b");
        replace_private(&inner.join("kept"), b"x").unwrap();
        drop(append_private(&inner.join("grown")).unwrap());
        drop(create_private(&inner.join("new")).unwrap());
        for (path, expected) in
            [("a", 0o700), ("a/b", 0o700), ("a/b/kept", 0o600), ("a/b/grown", 0o600), ("a/b/new", 0o600)]
        {
            assert_eq!(mode(&place.join(path)), expected, "{path}");
        }
        fs::set_permissions(&inner, Permissions::from_mode(0o755)).unwrap();
        private_directory(&inner).unwrap();
        assert_eq!(mode(&inner), 0o755, "one that is there stays as it is");
        own_directory(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
    }

    #[test]
    fn a_file_in_the_making_is_known_by_its_name() {
        for (name, writer) in [
            ("note.json.12.tmp", Some(12)),
            ("a.b.c.4294967295.tmp", Some(u32::MAX)),
            (".12.tmp", None),
            ("note.json.tmp", None),
            ("note.12", None),
            ("note.12.tmp.json", None),
            ("note.+2.tmp", None),
            ("note..tmp", None),
            ("note.99999999999.tmp", None),
        ] {
            assert_eq!(writer_of(Path::new(name)), writer, "{name}");
        }
        assert_eq!(writer_of(&temporary(Path::new("x/note.json"))), Some(std::process::id()));
    }
}
