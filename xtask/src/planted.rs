//! Bugs that the tests must find: the catalogue of `crates/scheduler/tests/planted`, woven into a copy of the
//! scheduler.
//!
//! ```text
//! crates/scheduler/src --weave--> target/planted/woven/src            each mutation behind its number
//!          tests/chaos ---------->               .../tests/chaos    and the search that plants one after the other
//!          tests/remote_only_prefill.rs                             the world of a pair of precisions
//! ```
//!
//! The copy is a workspace of its own with the same lock file, profile and target directory, so its dependencies are
//! those that are built already. Its directory has another name within its workspace than the original has: cargo tells
//! packages apart by that, and would take the one for the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::catalogue::MUTATIONS;
use crate::shell::{cargo, root, show, target};
use crate::weave;

/// Looks for every bug, or for one, and shows the table: how many seeds it took, and which check it was.
pub(crate) fn run(only: Option<&str>) -> Result<(), String> {
    let mut search = search()?;
    if let Some(only) = only {
        let Some(mutation) = MUTATIONS.iter().find(|mutation| mutation.name == only) else {
            let names: Vec<&str> = MUTATIONS.iter().map(|mutation| mutation.name).collect();
            return Err(format!("no bug is called {only:?}; there are {}", names.join(", ")));
        };
        println!("{}", mutation.origin);
        for edit in mutation.edits {
            println!("  {}: {:?} -> {:?}", edit.file, edit.find, edit.replace);
        }
        search.env("TWOSTROKE_PLANTED", only);
    }
    show(&mut search)
}

/// The search, over a copy that is up to date. An error if a mutation no longer applies.
pub(crate) fn search() -> Result<Command, String> {
    let copy = target().join("planted");
    let krate = root().join("crates/scheduler");
    let to = copy.join("woven");
    write(&copy.join("Cargo.toml"), &manifest(&read(&root().join("Cargo.toml"))?))?;
    write(&copy.join("Cargo.lock"), &read(&root().join("Cargo.lock"))?)?;
    write(&to.join("Cargo.toml"), &read(&krate.join("Cargo.toml"))?)?;
    let mut kept = Vec::new();
    let woven = weave::weave(MUTATIONS, |file| read(&krate.join("src").join(file)))?;
    for name in files(&krate.join("src"))? {
        let text = match name.to_str().and_then(|name| woven.get(name)) {
            Some(text) => text.clone(),
            None => read(&krate.join("src").join(&name))?,
        };
        // Only the copy's own lints are quiet: a switch is not what one would write.
        let text = match name == Path::new("lib.rs") {
            true => text.replace("#![no_std]\n", "#![no_std]\n#![allow(warnings)]\npub mod planted;\n"),
            false => text,
        };
        write(&to.join("src").join(&name), &text)?;
        kept.push(Path::new("src").join(name));
    }
    for name in files(&krate.join("tests/chaos"))? {
        let text = read(&krate.join("tests/chaos").join(&name))?;
        let text = if name == Path::new("main.rs") {
            format!("{text}\nmod remote_only_prefill;\nmod search;\n")
        } else {
            text
        };
        write(&to.join("tests/chaos").join(&name), &text)?;
        kept.push(Path::new("tests/chaos").join(name));
    }
    // What its tests share with others', built on the copy.
    for name in files(&root().join("crates/testing"))? {
        write(&copy.join("testing").join(&name), &read(&root().join("crates/testing").join(&name))?)?;
    }
    write(&to.join("src/planted.rs"), &weave::switch(MUTATIONS))?;
    write(&to.join("tests/chaos/search.rs"), &read(&krate.join("tests/planted/search.rs"))?)?;
    write(&to.join("tests/chaos/remote_only_prefill.rs"), &read(&krate.join("tests/remote_only_prefill.rs"))?)?;
    kept.extend(
        ["Cargo.toml", "src/planted.rs", "tests/chaos/remote_only_prefill.rs", "tests/chaos/search.rs"]
            .map(PathBuf::from),
    );
    for name in files(&to)?.into_iter().filter(|name| !kept.contains(name)) {
        fs::remove_file(to.join(&name)).map_err(|error| format!("{}: {error}", name.display()))?;
    }
    let mut search = cargo(&["test", "--quiet", "--profile", "ci", "--package", "scheduler", "--test", "chaos"]);
    search.arg("--manifest-path").arg(copy.join("Cargo.toml")).env("CARGO_TARGET_DIR", target());
    search.args(["planted_bugs", "--", "--nocapture"]);
    Ok(search)
}

/// The workspace's manifest with two members, and without the profiles of the others.
fn manifest(ours: &str) -> String {
    let mut lines = Vec::new();
    let mut is_left_out = false;
    for line in ours.lines() {
        if line.starts_with('[') {
            is_left_out = line.contains(".package.") && !line.ends_with(".package.scheduler]");
        }
        match line {
            _ if is_left_out || line.starts_with("default-members") => {}
            _ if line.starts_with("members") => lines.push("members = [\"woven\", \"testing\"]"),
            _ => lines.push(line),
        }
    }
    let copied =
        lines.join("\n").replace("\"crates/scheduler\"", "\"woven\"").replace("\"crates/testing\"", "\"testing\"");
    copied.replace("\"crates/", &format!("\"{}/crates/", root().display())) + "\n"
}

/// Files below a directory, by their names from there.
fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(name) = open.pop() {
        let path = directory.join(&name);
        let entries = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for entry in entries.flatten() {
            let name = name.join(entry.file_name());
            if entry.path().is_dir() { open.push(name) } else { found.push(name) }
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Only what changes, so that nothing else is built again.
fn write(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let say = |error| format!("{}: {error}", path.display());
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(say)?;
    fs::write(path, text).map_err(say)
}

#[cfg(test)]
mod tests {
    use super::manifest;

    #[test]
    fn the_copy_is_a_workspace_of_two() {
        let ours = "[workspace]\nmembers = [\"crates/*\"]\ndefault-members = [\"a\"]\nscheduler = { path = \"crates/scheduler\" }\n\n\
                    [profile.release]\n\
                    opt-level = 3\n[profile.release.package.engine]\nb = 1\n[profile.release.package.scheduler]\nc = 1\n";
        let copy = "[workspace]\nmembers = [\"woven\", \"testing\"]\nscheduler = { path = \"woven\" }\n\n\
                    [profile.release]\nopt-level = 3\n\
                    [profile.release.package.scheduler]\nc = 1\n";
        assert_eq!(manifest(ours), copy);
    }
}
