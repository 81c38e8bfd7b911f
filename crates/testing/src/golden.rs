//! Digests that are committed: a change that alters one bit of what is computed shows in the file's diff.
//!
//! `cargo xtask bits` compares all of them, a quick run of the tests a part; `cargo xtask bits --write` writes the files.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A committed file of lines `name<TAB>digest`, and what was computed now.
pub struct Golden {
    path: PathBuf,
    computed: BTreeMap<String, String>,
}

impl Golden {
    /// Reads nothing yet: the file is read or written at [`Golden::close`].
    pub fn open(path: &str) -> Golden {
        Golden { path: path.into(), computed: BTreeMap::new() }
    }

    /// What came for `name`. A name that comes again, computed in another way, must have the same digest.
    pub fn computed(&mut self, name: &str, way: &str, digest: String) {
        let first = self.computed.entry(name.to_owned()).or_insert_with(|| digest.clone());
        assert_eq!(*first, digest, "{name}: {way} gives other bits");
    }

    /// Holds what came against the file, or writes it; a whole run must have computed every line.
    pub fn close(self, is_whole: bool) {
        if std::env::var_os("TWOSTROKE_WRITE_BITS").is_some() {
            let lines: String = self.computed.iter().map(|(name, digest)| format!("{name}\t{digest}\n")).collect();
            std::fs::write(&self.path, lines).expect("the file can be written");
            return;
        }
        let text = std::fs::read_to_string(&self.path).expect("the file is committed");
        let committed: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
        let differs = |(name, digest): &(&String, &String)| committed.get(name.as_str()) != Some(&digest.as_str());
        let other: Vec<&String> = self.computed.iter().filter(differs).map(|(name, _)| name).collect();
        assert!(other.is_empty(), "other bits than {} has, in {} lines: {other:#?}", self.path.display(), other.len());
        assert!(!self.computed.is_empty(), "nothing was computed");
        let missing: Vec<_> = committed.keys().filter(|name| !self.computed.contains_key(**name)).collect();
        assert!(!is_whole || missing.is_empty(), "committed and not computed: {missing:?}");
    }
}
