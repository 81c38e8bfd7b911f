//! Small results that a start keeps for the next one, as JSON with a digest above it.
//!
//! ```text
//! 9c1e...                      BLAKE3 of every byte that follows
//! {"key": .., "found": ..}    what the result follows from, and the result
//! ```
//! A digit that a disk or an editor changed is a result that was never measured: such a file is discarded. Like all of
//! our digests it finds accidents; a process that may write the file can write the digest.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// No result is longer.
const MAX_BYTES: u64 = 64 << 10;

/// Names what a result follows from, given as text.
pub fn key(what: &str) -> String {
    blake3::hash(what.as_bytes()).to_hex().to_string()
}

/// Where the result for `key` is kept. `kind`: the ending of its name.
pub fn place(directory: &Path, key: &str, kind: &str) -> PathBuf {
    directory.join(format!("{}.{kind}", &key[..32]))
}

/// A result as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptResult<T> {
    /// Of what it follows from.
    pub key: String,
    /// The result.
    pub found: T,
}

impl<T: DeserializeOwned> KeptResult<T> {
    /// What is kept at `path`; `None` for anything but a whole result as it was written.
    pub fn read(path: &Path) -> Option<KeptResult<T>> {
        let text = files::read_text(path, MAX_BYTES).ok()?;
        let (digest, body) = text.split_once('\n')?;
        (digest == blake3::hash(body.as_bytes()).to_hex().as_str()).then(|| serde_json::from_str(body).ok())?
    }
}

impl<T: Serialize> KeptResult<T> {
    /// Keeps it in the place of what is there. Complete or absent, also when the process ends meanwhile.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let body = serde_json::to_string(self)?;
        files::replace_private(path, format!("{}\n{body}", blake3::hash(body.as_bytes()).to_hex()).as_bytes())
    }
}

/// What is kept at `path` for `key`.
pub fn read<T: DeserializeOwned>(path: &Path, key: &str) -> Option<T> {
    KeptResult::read(path).filter(|kept| kept.key == key).map(|kept| kept.found)
}

/// Keeps a result: see [`KeptResult::write`].
pub fn write<T: Serialize>(path: &Path, key: &str, found: T) -> io::Result<()> {
    KeptResult { key: key.to_owned(), found }.write(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;

    #[test]
    fn no_flipped_bit_is_a_result() {
        let path = std::env::temp_dir().join(format!("twostroke-kept-{}", std::process::id()));
        let read_one = || read::<Value>(&path, "one");
        let result = json!({"seconds": [0.1, 3e-7, 1e300], "of": "a \"text\"\n"});
        write(&path, "one", &result).unwrap();
        assert_eq!((read_one(), read::<Value>(&path, "two")), (Some(result), None));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                fs::write(&path, bytes).unwrap();
                assert_eq!(read_one(), None, "bit {bit} of byte {at}");
            }
        }
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read_one(), None, "cut after {cut} bytes");
        }
        fs::remove_file(&path).unwrap();
        // A named pipe is no result, and reading it must not block.
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(read_one(), None);
        write(&path, "one", 1).unwrap();
        assert_eq!(read_one(), Some(json!(1)));
        fs::remove_file(&path).unwrap();
    }
}
