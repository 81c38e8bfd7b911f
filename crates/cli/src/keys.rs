//! The keys that `serve` asks for: from flags, and from a file that also says what each may.
//!
//! ```text
//! # who            what it may beyond the usual
//! sk-team-a        priority
//! sk-team-b
//! sk-operator      adapters role
//! ```

use std::collections::HashSet;
use std::path::Path;

use engine::ClusterKey;
use server::ApiKey;

use crate::console::note;
use crate::environment;
use crate::failure::Failure;
use crate::flags::ServeFlags;

/// Most bytes of a key file: many thousand keys.
const MAX_BYTES: u64 = 1 << 20;
/// Which words may follow a key.
const RIGHTS: &str = "after the key only the words `priority`, `adapters`, `models` and `role` have a meaning";
/// Why a key is refused that every server would take, and no client could name.
const UNSENDABLE: &str = "a key that is empty or has white space or a control character in it cannot be sent";
/// Fewest bytes of a cluster's secret.
const LEAST_SECRET_BYTES: usize = 16;

/// All keys; none at all: every client may ask.
pub(crate) fn of(flags: &ServeFlags) -> Result<Vec<ApiKey>, Failure> {
    let (from, said) = match &flags.api_key[..] {
        [] => ("TWOSTROKE_API_KEY", environment::api_keys()),
        given => ("--api-key", given.to_vec()),
    };
    if said.iter().any(|key| !can_be_sent(key)) {
        return Err(Failure::usage(format!("{from}: {UNSENDABLE}")));
    }
    let mut keys: Vec<ApiKey> = said.iter().map(|key| ApiKey::from(key.as_str())).collect();
    if let Some(path) = &flags.api_key_file {
        keys.extend(read(path)?);
    }
    Ok(keys)
}

/// What the workers of a cluster share: the file's bytes, without white space around them.
pub(crate) fn of_cluster(path: &Path) -> Result<ClusterKey, Failure> {
    let wrong = |problem: String| Failure::usage(format!("--cluster-key {}: {problem}", path.display()));
    warn_if_shared("--cluster-key", path);
    let text = files::read_text(path, MAX_BYTES).map_err(|error| wrong(error.to_string()))?;
    let secret = text.trim().as_bytes();
    if secret.len() < LEAST_SECRET_BYTES {
        return Err(wrong(format!(
            "{} bytes are too short a secret, {LEAST_SECRET_BYTES} or more are not: head -c 32 /dev/urandom | base64",
            secret.len()
        )));
    }
    Ok(ClusterKey::of(secret))
}

fn read(path: &Path) -> Result<Vec<ApiKey>, Failure> {
    let wrong = |problem: String| Failure::usage(format!("--api-key-file {}: {problem}", path.display()));
    warn_if_shared("--api-key-file", path);
    let text = files::read_text(path, MAX_BYTES).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(wrong)
}

/// Says that a file of secrets can be read by others.
pub(crate) fn warn_if_shared(flag: &str, path: &Path) {
    if files::is_shared(path).unwrap_or(false) {
        let path = path.display();
        note(&format!("{flag} {path}: other users of this machine can read this secret: chmod 600 {path}"));
    }
}

fn can_be_sent(key: &str) -> bool {
    !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// The error names the line and never the key.
fn parse(text: &str) -> Result<Vec<ApiKey>, String> {
    let (mut keys, mut known) = (Vec::new(), HashSet::new());
    for (at, line) in text.lines().enumerate() {
        // Inside a word `#` is a character of a key.
        let mut words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        let Some(key) = words.next() else { continue };
        if !can_be_sent(key) {
            return Err(format!("line {}: {UNSENDABLE}", at + 1));
        }
        if !known.insert(key) {
            return Err(format!("line {}: this key is there already", at + 1));
        }
        let mut key = ApiKey::from(key);
        for right in words {
            match right {
                "priority" => key.may_be_urgent = true,
                "adapters" => key.may_change_adapters = true,
                "role" => key.may_change_role = true,
                "models" => key.may_change_models = true,
                _ => return Err(format!("line {}: {RIGHTS}", at + 1)),
            }
        }
        keys.push(key);
    }
    if keys.is_empty() { Err("no key in it, so no client could ask".to_string()) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_on_each_line_and_what_it_may() {
        let text =
            "# teams\nsk-a priority # the paying one\n\n  sk-b\r\nsk-c role adapters\nsk-d\tadapters\nsk-e#f models #g";
        let rights =
            |key: &ApiKey| [key.may_be_urgent, key.may_change_adapters, key.may_change_role, key.may_change_models];
        let keys = parse(text).unwrap();
        let shown: Vec<(&str, [bool; 4])> = keys.iter().map(|key| (key.key.as_str(), rights(key))).collect();
        let expected = [
            ("sk-a", [true, false, false, false]),
            ("sk-b", [false; 4]),
            ("sk-c", [false, true, true, false]),
            ("sk-d", [false, true, false, false]),
            ("sk-e#f", [false, false, false, true]),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn editors_leave_a_clusters_secret_as_it_is() {
        let place = testing::Scratch::new("cluster-key");
        let keys = ["\u{feff}", "", "\u{feff}\r\n "].map(|before| {
            let path = place.join("key");
            std::fs::write(&path, format!("{before}sixteen bytes and more\r\n")).unwrap();
            of_cluster(&path).ok().unwrap()
        });
        assert!(keys.iter().all(|key| *key == ClusterKey::of(b"sixteen bytes and more")));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_line_and_no_key_is_shown() {
        let cases = [
            ("", "no key in it, so no client could ask"),
            ("# only words\n", "no key in it, so no client could ask"),
            (
                "sk-a\nsk-b urgent\n",
                "line 2: after the key only the words `priority`, `adapters`, `models` and `role` have a meaning",
            ),
            ("sk-a\nsk-a\n", "line 2: this key is there already"),
            (
                "sk-a\nsk\0b\n",
                "line 2: a key that is empty or has white space or a control character in it cannot be sent",
            ),
            (
                "GGUF\u{3}\0\0\0",
                "line 1: a key that is empty or has white space or a control character in it cannot be sent",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).map(|_| ()), Err(message.to_string()), "{text:?}");
        }
    }
}
