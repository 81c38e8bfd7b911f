//! `cargo xtask real`: real checkpoints in every narrow class, each gate held, and ik_llama.cpp beside: a table.

use std::path::Path;

use crate::setup;
use crate::shell::{cargo, command, root, show, target};

/// Downloads two models (330 MB) the first time. `peer` is a folder in which ik_llama.cpp was built.
pub(crate) fn run(peer: Option<&Path>) -> Result<(), String> {
    setup::system()?;
    let python = setup::client_python()?;
    let models = [("smollm2", setup::smollm2(&python)?), ("gemma3-270m", setup::gemma(&python)?)];
    show(&mut cargo(&["build", "--quiet", "--release"]))?;
    let mut table = command(&python, &["-B"]);
    table.arg(root().join("tests/real/table.py")).arg(target().join("release/twostroke"));
    if let Some(directory) = peer {
        let found = directory.canonicalize().map_err(|error| format!("--peer: {}: {error}", directory.display()))?;
        table.arg("--peer").arg(found);
    }
    for (name, file) in models {
        let file = file.ok_or_else(|| format!("{name} is not there, and there is nothing to measure without it"))?;
        table.arg(format!("{name}={}", file.display()));
    }
    show(&mut table).map_err(|_| "a gate is missed, or something could not be measured".to_owned())
}
