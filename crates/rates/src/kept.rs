//! Small results that a start keeps for the next one, as JSON with a digest above it.
//!
//! ```text
//! 9c1e...        BLAKE3 of every byte that follows
//! {"key": ..}    what the result follows from, and the result
//! ```
//! A digit that a disk or an editor changed is a result that was never measured: such a file is discarded. Like all of
//! our digests it finds accidents; a process that may write the file can write the digest.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

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

/// What is kept at `path`; `None` for anything but a whole result as it was written.
pub fn read(path: &Path) -> Option<Value> {
    let text = files::read_text(path, MAX_BYTES).ok()?;
    let (digest, body) = text.split_once('\n')?;
    (digest == blake3::hash(body.as_bytes()).to_hex().as_str()).then(|| serde_json::from_str(body).ok())?
}

/// Keeps a result in the place of what is there. Complete or absent, also when the process ends meanwhile.
pub fn write(path: &Path, result: &Value) -> io::Result<()> {
    let body = result.to_string();
    files::replace_private(path, format!("{}\n{body}", blake3::hash(body.as_bytes()).to_hex()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn no_flipped_bit_is_a_result() {
        let path = std::env::temp_dir().join(format!("twostroke-kept-{}", std::process::id()));
        let result = json!({"key": "one", "seconds": [0.1, 3e-7, 1e300], "of": "a \"text\"\n"});
        write(&path, &result).unwrap();
        assert_eq!(read(&path), Some(result));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                fs::write(&path, bytes).unwrap();
                assert_eq!(read(&path), None, "bit {bit} of byte {at}");
            }
        }
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path), None, "cut after {cut} bytes");
        }
        fs::remove_file(&path).unwrap();
        // A named pipe is no result, and reading it must not block.
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(read(&path), None);
        write(&path, &json!(1)).unwrap();
        assert_eq!(read(&path), Some(json!(1)));
        fs::remove_file(&path).unwrap();
    }
}
