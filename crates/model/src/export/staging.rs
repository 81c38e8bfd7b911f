//! A result in the making: a temporary name beside its place, renamed when it is whole, removed when it is not.
//!
//! ```text
//! out  asked for    .out.1234.partial/  <- files, each brought to the disk      rename ──> out
//!                        └── anything goes wrong, or Ctrl-C: removed
//! ```
//! A process that is killed leaves the temporary name, with its process id in it, and never the one that was asked for.
//! The next that makes a result of that name takes it away. A result in the making is locked, and a lock ends with its
//! process, whatever number that has: so leftovers are distinguished from files being written.

use super::ExportError;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Removes its temporary files when dropped before [`publish`](Self::publish).
pub(super) struct Staging {
    temporary: PathBuf,
    output: PathBuf,
    published: bool,
    /// Locked as long as this lives.
    _held: File,
}

impl Staging {
    /// A place for a directory that does not exist yet.
    pub(super) fn directory(output: &Path) -> Result<Staging, ExportError> {
        Staging::new(output, &|path| fs::create_dir(path).and_then(|()| File::open(path)))
    }

    /// A place for a file that does not exist yet. There is an empty one, to be written by the caller.
    pub(super) fn file(output: &Path) -> Result<Staging, ExportError> {
        Staging::new(output, &|path| File::create_new(path))
    }

    fn new(output: &Path, create: &dyn Fn(&Path) -> io::Result<File>) -> Result<Staging, ExportError> {
        let io = |error| ExportError::io(output, error);
        let temporary = place(output)?;
        loop {
            let held = create(&temporary).map_err(io)?;
            // Without locks nothing is taken away.
            let is_taken = matches!(held.try_lock(), Err(fs::TryLockError::WouldBlock));
            // Between the two lines above another process may have taken it for a leftover.
            let is_there = fs::symlink_metadata(&temporary).is_ok_and(|found| is_same(&found, &held));
            if is_there && !is_taken {
                return Ok(Staging { temporary, output: output.to_path_buf(), published: false, _held: held });
            }
            clean(output);
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.temporary
    }

    /// An error about the temporary name, reported with the name that was asked for.
    pub(super) fn blamed(&self, error: ExportError) -> ExportError {
        match error {
            ExportError::Io { error, .. } => ExportError::Io { path: self.output.clone(), error },
            ExportError::NoSpace(_) => ExportError::NoSpace(self.output.clone()),
            other => other,
        }
    }

    /// Gives the result its name. Files in it are on the disk already; the names are brought there too.
    pub(super) fn publish(mut self) -> Result<(), ExportError> {
        let io = |error| ExportError::io(&self.output, error);
        sync(&self.temporary).map_err(io)?;
        if self.output.symlink_metadata().is_ok() {
            return Err(ExportError::Exists(self.output.clone()));
        }
        fs::rename(&self.temporary, &self.output).map_err(io)?;
        self.published = true;
        sync(parent(&self.output)).map_err(|error| ExportError::io(&self.output, error))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            let _ = match self.temporary.is_dir() {
                true => fs::remove_dir_all(&self.temporary),
                false => fs::remove_file(&self.temporary), // it may not exist yet
            };
        }
    }
}

/// A staged file, empty, to be written.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// The temporary name of a result that does not exist yet.
pub(super) fn place(output: &Path) -> Result<PathBuf, ExportError> {
    // A link that leads nowhere is something too.
    if output.symlink_metadata().is_ok() {
        return Err(ExportError::Exists(output.to_path_buf()));
    }
    let Some(name) = output.file_name() else {
        return Err(ExportError::Refused(format!("{:?}: not a name for a result", output.display().to_string())));
    };
    let parent = parent(output);
    if !parent.is_dir() {
        return Err(ExportError::NoDirectory(parent.to_path_buf()));
    }
    clean(output);
    Ok(parent.join(format!("{}{}{END}", beginning(name), std::process::id())))
}

/// Of the temporary names of a result: what is before the process id, and what is behind it.
fn beginning(name: &OsStr) -> String {
    format!(".{}.", name.to_string_lossy())
}
const END: &str = ".partial";

/// Takes away what processes that are gone have left of a result of this name. What is locked is being made.
fn clean(output: &Path) {
    let Some(beginning) = output.file_name().map(beginning) else { return };
    for entry in fs::read_dir(parent(output)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(&beginning)?.strip_suffix(END));
        let is_temporary = pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
        // Not through a link: its name alone says nothing of what it leads to.
        let Some(found) = entry.metadata().ok().filter(|found| is_temporary && (found.is_dir() || found.is_file()))
        else {
            continue;
        };
        let Ok(file) = File::open(entry.path()) else { continue };
        if file.try_lock().is_ok() && is_same(&found, &file) {
            let _ = if found.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        }
    }
}

fn is_same(found: &fs::Metadata, file: &File) -> bool {
    file.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (found.dev(), found.ino()))
}

/// The directory of a path; of a bare name, the current one.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else() {
        let place = testing::Scratch::new("staging");
        let at = |name: &str| place.join(name);
        let names = || {
            let names = place.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        let others = [
            ".other.1.partial",
            ".out.1.partial.txt",
            ".out..partial",
            ".out.1x.partial",
            ".out.b.7.partial",
            "out.1.partial",
            ".out.partial",
            "theirs",
        ];
        others.iter().for_each(|name| fs::write(at(name), name).unwrap());
        symlink(at("theirs"), at(".out.3.partial")).unwrap();
        let before = names();
        // Of a process that was killed, of one with this process's number in another container, and of one at work.
        for leftover in ["1", "4294967295", &std::process::id().to_string()] {
            fs::create_dir(at(&format!(".out.{leftover}.partial"))).unwrap();
            fs::write(at(&format!(".out.{leftover}.partial/model.safetensors")), "half").unwrap();
            fs::write(at(&format!(".out.{leftover}7.partial")), "GGUF").unwrap();
        }
        let at_work = ".out.12.partial".to_string();
        fs::create_dir(at(&at_work)).unwrap();
        let lock = File::open(at(&at_work)).unwrap();
        lock.try_lock().unwrap();

        let staging = Staging::directory(&at("out")).unwrap();
        let own = staging.path().file_name().unwrap().to_str().unwrap().to_string();
        let mut expected = before.clone();
        expected.extend([at_work.clone(), own]);
        expected.sort();
        assert_eq!(names(), expected);
        // One at work beside it leaves it alone.
        clean(&at("out"));
        assert_eq!(names(), expected);
        staging.publish().unwrap();
        drop(lock);
        fs::remove_dir(at("out")).unwrap();
        let staging = Staging::file(&at("out")).unwrap();
        assert!(staging.path().is_file() && !at(&at_work).exists());
        drop(staging);
        assert_eq!(names(), before);
    }
}
