//! Where tests read and write.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate lies in the repository")
}

/// The directory of the built-in model.
pub fn lantern() -> PathBuf {
    root().join("models/lantern")
}

/// An empty directory of one test, gone with the value.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory each time; `name` identifies one that was left behind.
    pub fn new(name: &str) -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("twostroke-{name}-{}-{number}", process::id()));
        let _ = fs::remove_dir_all(&path); // of an earlier process with the same number
        fs::create_dir_all(&path).expect("the temporary directory can be written to");
        Scratch(path)
    }

    /// One that has copies of the files of `directory`.
    pub fn copy_of(directory: &Path, name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        for entry in directory.read_dir().expect("it is there").flatten().filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), scratch.join(entry.file_name())).expect("it can be written to");
        }
        scratch
    }

    /// One with these files.
    pub fn with(name: &str, files: &[(&str, &[u8])]) -> Scratch {
        let scratch = Scratch::new(name);
        for (file, bytes) in files {
            fs::write(scratch.join(file), bytes).expect("it can be written to");
        }
        scratch
    }

    /// What is in it, in order.
    pub fn names(&self) -> Vec<String> {
        let entries = self.read_dir().expect("it is there").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A path in it, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.join(name).to_string_lossy().into_owned()
    }

    /// Its path as an argument.
    pub fn text(&self) -> &str {
        self.0.to_str().expect("a path of ours is text")
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what is left is the system's own business
    }
}
