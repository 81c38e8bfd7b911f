//! A result in the making: a temporary name beside its place, renamed when it is whole, removed when it is not.
//!
//! ```text
//! out  asked for    .out.1234.partial/  <- files, each brought to the disk      rename ──> out
//!                        └── anything goes wrong, or Ctrl-C: removed
//! ```
//! A process that is killed leaves the temporary name, with its process id in it, and never the one that was asked for.

use super::ExportError;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Removes its temporary files when dropped before [`publish`](Self::publish).
pub(super) struct Staging {
    temporary: PathBuf,
    output: PathBuf,
    published: bool,
}

impl Staging {
    /// A place for a directory that does not exist yet.
    pub(super) fn directory(output: &Path) -> Result<Staging, ExportError> {
        let temporary = place(output)?;
        fs::create_dir(&temporary).map_err(|error| ExportError::io(output, error))?;
        Ok(Staging { temporary, output: output.to_path_buf(), published: false })
    }

    /// A place for a file that does not exist yet, and is to be created by the caller.
    pub(super) fn file(output: &Path) -> Result<Staging, ExportError> {
        Ok(Staging { temporary: place(output)?, output: output.to_path_buf(), published: false })
    }

    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        &self.temporary
    }

    /// An error about the temporary name, told with the name that was asked for.
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
    Ok(parent.join(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id())))
}

/// The directory of a path; of a bare name, the current one.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
