//! The pages in `web/`: built into `crates/server/ui`, which is committed, so that cargo needs no node.

use std::fs;
use std::process::Command;

use crate::setup;
use crate::shell::{command, root, show, target};

/// Builds the pages: types checked, then bundled.
pub(crate) fn build() -> Result<(), String> {
    let path = setup::node()?;
    packages(&path)?;
    show(&mut node(&path, "npm", &["run", "--silent", "build"]))
}

/// A program of node's, run in `web/` with `path` as search path.
fn node(path: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = command(program, arguments);
    command.current_dir(root().join("web")).env("PATH", path);
    command
}

/// What `package-lock.json` names, into `web/node_modules`; again when it changes.
fn packages(path: &str) -> Result<(), String> {
    let lock = root().join("web/package-lock.json");
    let wanted = fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let stamp = root().join("web/node_modules/installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    // Not into the home of whoever runs this.
    let cache = target().join("npm");
    show(node(path, "npm", &["ci", "--silent", "--ignore-scripts", "--cache"]).arg(cache))?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}
