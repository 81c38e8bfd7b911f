//! The pages in `web/`: built into `crates/server/ui`, which is committed, so that cargo needs no node; and tested in a
//! browser.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup;
use crate::shell::{command, root, show, target};

/// Builds the pages: types checked, then bundled.
pub(crate) fn build() -> Result<(), String> {
    build_into(&committed())
}

/// What is committed.
fn committed() -> PathBuf {
    root().join("crates/server/ui")
}

fn build_into(directory: &Path) -> Result<(), String> {
    let path = setup::node()?;
    setup::node_packages(&path, &root().join("web"))?;
    show(node(&path, "npm", &["run", "--silent", "build", "--", "--emptyOutDir", "--outDir"]).arg(directory))
}

/// Builds again, beside what is committed, for a file that is written anew is compiled anew: an error if they differ.
pub(crate) fn check_committed() -> Result<(), String> {
    let again = target().join("web/ui");
    build_into(&again)?;
    let (before, after) = (files(&committed())?, files(&again)?);
    let names = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name));
    match names.min() {
        None => Ok(()),
        Some(name) => Err(format!(
            "crates/server/ui/{name} is not what web/ makes: `cargo xtask web` writes it; look at it and commit it"
        )),
    }
}

/// The files of a directory by name.
fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(problem)?;
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?))
    };
    entries.map(read).collect::<std::io::Result<_>>().map_err(problem)
}

/// The tests in `web/tests`, of pages that `binary` serves, seen by `browser`. Pictures of the pages stay in
/// `target/web`.
pub(crate) fn browser_tests(binary: &Path, browser: &str) -> Result<Command, String> {
    let mut tests = node(&setup::node()?, "node", &["tests/run.mjs"]);
    tests.arg(binary).arg(which(browser)?).arg(target().join("web"));
    Ok(tests)
}

/// Where a program lies on the search path: the driver of the browser does not look.
fn which(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found.ok_or_else(|| format!("{program} is not on the search path"))
}

/// A program of node's, run in `web/` with `path` as search path.
fn node(path: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = command(program, arguments);
    command.current_dir(root().join("web")).env("PATH", path);
    command
}
