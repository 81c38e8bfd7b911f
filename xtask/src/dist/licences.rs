//! The licences of the crates that are linked into the binary: most ask to be in what is made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{cargo_home, output};
use crate::shell::cargo;

/// Each crate with its licence, then each text of a licence with the crates that have it.
pub(super) fn third_party() -> Result<String, String> {
    let arguments = ["tree", "--locked", "--package", "cli", "--edges", "normal,no-proc-macro", "--prefix", "none"];
    let mut tree = cargo(&arguments);
    let list = output(tree.args(["--no-dedupe", "--target", "x86_64-unknown-linux-gnu", "--format", "{p}|{l}"]))?;
    let list = String::from_utf8_lossy(&list).into_owned();
    let lines: BTreeSet<(&str, &str)> = list.lines().filter_map(|line| line.split_once('|')).collect();
    // Those of this repository have a path behind.
    let crates = lines.into_iter().filter(|(package, _)| !package.contains('('));
    let sources = sources()?;
    let mut text = String::from("Crates that are linked into twostroke, and their licences.\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (package, licence) in crates {
        let (name, version) = package.split_once(" v").unwrap_or((package, ""));
        text.push_str(&format!("{name} {version}: {licence}\n"));
        let folder = format!("{name}-{version}");
        let found = sources.iter().map(|source| source.join(&folder)).find(|path| path.is_dir());
        let folder = found.ok_or_else(|| format!("the source of {name} {version} is not in cargo's registry"))?;
        for licence in licences(&folder)? {
            texts.entry(licence).or_default().push(format!("{name} {version}"));
        }
    }
    for (licence, crates) in texts {
        text.push_str(&format!("\n{}\n{}\n\n{}\n", "-".repeat(100), crates.join(", "), licence.trim_end()));
    }
    Ok(text)
}

/// Where cargo keeps what it has unpacked.
fn sources() -> Result<Vec<PathBuf>, String> {
    let sources = cargo_home().join("registry/src");
    let folders = fs::read_dir(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    Ok(folders.flatten().map(|entry| entry.path()).collect())
}

/// The texts that a crate has.
fn licences(folder: &Path) -> Result<Vec<String>, String> {
    let words = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
    let files = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    let is_licence = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        words.iter().any(|word| name.starts_with(word))
    };
    let texts = files.iter().filter(is_licence).filter_map(|path| fs::read_to_string(path).ok());
    Ok(texts.map(|text| text.replace("\r\n", "\n")).collect())
}
