//! The stage `crosscheck`: other people's load generators against our server, beside our own.

use std::path::Path;
use std::process::Command;

use crate::shell::{command, root, target};
use crate::{random_model, setup};

/// The comparison in `tests/crosscheck`, by `binary`, with a model made for it under `target/`.
pub(crate) fn tests(binary: &Path) -> Result<Command, String> {
    let suite = root().join("tests/crosscheck");
    let python = setup::python_exactly("crosscheck-venv", &suite.join("requirements.txt"))?;
    let model = target().join("models/100m");
    if !model.join("model.safetensors").exists() {
        random_model::write("100m", &model)?;
    }
    let mut tests = command(python, &["-B"]);
    tests.arg(suite.join("check.py")).arg(binary).arg(model).arg(root().join("models/lantern"));
    Ok(tests)
}
