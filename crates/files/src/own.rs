//! Results under a name that a flag gave: written where nothing is, or where an earlier result of the same kind is.
//!
//! ```text
//! at the name                                    a result there
//! nothing; an empty file                         is written
//! a file that is ours by its first bytes         is replaced
//! any other file, a read-only one, a directory,  is refused, by one error that says what is there; it stays
//! a socket, a disk, a link that leads nowhere
//! a terminal, /dev/null, a pipe that is read     goes through it: nothing there is lost
//! ```
//! Links are followed. What is looked at and what is written is one open file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::kind;

/// Bytes of a file that tell whose it is.
const HEAD: u64 = 4096;

/// A name for a result, at which nothing is lost.
#[derive(Debug)]
pub struct ResultPlace {
    path: PathBuf,
    is_ours: fn(&[u8]) -> bool,
}

impl ResultPlace {
    /// Looks at what is there, and changes nothing: so a command that computes long asks before it does. `is_ours`:
    /// whether a file that begins so is an earlier result of that kind; 4 KiB are shown to it, or all there are.
    pub fn new(path: &Path, is_ours: fn(&[u8]) -> bool) -> io::Result<ResultPlace> {
        let place = ResultPlace { path: path.to_owned(), is_ours };
        match fs::symlink_metadata(path) {
            Ok(_) => drop(place.existing()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => place.check_new()?,
            Err(error) => return Err(error),
        }
        Ok(place)
    }

    /// The name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it to be written, empty. Looks again: something may have come since.
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

    /// Writes all of it.
    pub fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.create()?.write_all(bytes)
    }

    /// Whether there can be something new at that name.
    fn check_new(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match fs::metadata(parent) {
            Ok(found) if found.is_dir() && self.path.file_name().is_some() => Ok(()),
            Ok(found) if found.is_dir() => Err(refused("no name for a file")),
            Ok(_) => Err(refused(format!("{} is not a directory", parent.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(refused(format!("there is no directory {}; make it first", parent.display())))
            }
            Err(error) => Err(error),
        }
    }

    /// What is there, open to be written, if nothing is lost by that.
    fn existing(&self) -> io::Result<File> {
        let found = fs::metadata(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refused("a link that leads nowhere; remove it, or name another file"),
            _ => error,
        })?;
        let kind_of = found.file_type();
        if kind_of.is_fifo() || kind_of.is_char_device() {
            return through(&self.path);
        }
        if !found.is_file() {
            return Err(refused(format!("{}, not a file; name another", kind(kind_of))));
        }
        // Root may write it nevertheless, and should not.
        if found.permissions().readonly() {
            return Err(refused("a read-only file; name another, or make it writable"));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(refused("another thing than it was a moment ago"));
        }
        let mut head = Vec::new();
        (&file).take(HEAD).read_to_end(&mut head)?;
        match head.is_empty() || (self.is_ours)(&head) {
            true => Ok(file),
            false => Err(refused("there is a file that twostroke did not write so; name another, or remove it")),
        }
    }
}

/// A pipe or a device of characters. One without a reader is an error, and is not waited for.
fn through(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true);
    let asked = options.clone().custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let asked = asked.map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => refused("a pipe without a reader"),
        _ => error,
    })?;
    // Whole writes, now that nothing waits for a reader.
    let file = options.custom_flags(libc::O_NOCTTY).open(path);
    drop(asked);
    file
}

fn refused(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    fn is_ours(head: &[u8]) -> bool {
        head.starts_with(b"ours")
    }

    fn everything_below(place: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut all: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all.into_iter().map(|path| (path.clone(), path.is_file().then(|| fs::read(path).unwrap()))).collect()
    }

    #[test]
    fn nothing_that_is_not_ours_is_lost() {
        let place = testing::Scratch::new("own");
        let at = |name: &str| place.join(name);
        for (name, text) in [
            ("own", "ours, longer than what comes"),
            ("empty", ""),
            ("foreign", "theirs"),
            ("fixed", "ours"),
            ("fixed-foreign", "theirs"),
            ("later", "not ours, and ours"),
            ("binary", "\0\u{1}"),
            ("linked-own", "ours"),
            ("linked-foreign", "theirs"),
        ] {
            fs::write(at(name), text).unwrap();
        }
        for name in ["fixed", "fixed-foreign"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o444)).unwrap();
        }
        fs::create_dir(at("directory")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (name, to) in [
            ("link-own", "linked-own"),
            ("link-foreign", "linked-foreign"),
            ("link-directory", "directory"),
            ("link-nowhere", "nowhere"),
            ("link-itself", "link-itself"),
        ] {
            symlink(to, at(name)).unwrap();
        }
        let table = [
            ("new", Ok("")),
            ("own", Ok("")),
            ("empty", Ok("")),
            ("link-own", Ok("")),
            ("foreign", Err("did not write")),
            ("later", Err("did not write")),
            ("binary", Err("did not write")),
            ("link-foreign", Err("did not write")),
            ("fixed", Err("read-only")),
            ("fixed-foreign", Err("read-only")),
            ("directory", Err("a directory")),
            ("link-directory", Err("a directory")),
            ("socket", Err("a socket")),
            ("link-nowhere", Err("leads nowhere")),
            ("link-itself", Err("")),
            ("no/directory", Err("no directory")),
            ("foreign/below", Err("")),
            ("..", Err("a directory")),
        ];
        for (name, wanted) in table {
            let before = everything_below(&place);
            let found = ResultPlace::new(&at(name), is_ours);
            assert_eq!(everything_below(&place), before, "{name}: looking changes nothing");
            match (found, wanted) {
                (Ok(found), Ok(_)) => {
                    found.put(b"ours, new").unwrap();
                    assert_eq!(fs::read(at(name)).unwrap(), b"ours, new", "{name}");
                }
                (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{name}: {error}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
        // Also what comes between the look and the result.
        let late = ResultPlace::new(&at("late"), is_ours).unwrap();
        fs::write(at("late"), "theirs").unwrap();
        assert!(late.put(b"ours").is_err());
        assert_eq!(fs::read(at("late")).unwrap(), b"theirs");
        ResultPlace::new(Path::new("/dev/null"), is_ours).unwrap().put(b"ours").unwrap();
    }
}
