//! Other people's load generators beside our own: what their figures mean (the stage `crosscheck`), and how fast our
//! server is by each (`cargo xtask crosscheck`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{command, root, show, target};
use crate::{random_model, setup};

/// A program of `tests/crosscheck`, with the clients installed.
fn program(name: &str) -> Result<Command, String> {
    let suite = root().join("tests/crosscheck");
    let mut program = command(setup::load_generators_python()?, &["-B"]);
    program.arg(suite.join(name));
    Ok(program)
}

/// A tokenizer that the clients make prompts with.
fn tokenizer() -> PathBuf {
    root().join("models/lantern")
}

/// The three clients against a stand-in for a server: counts and definitions. No time of this machine is held against
/// one.
pub(crate) fn tests(binary: &Path) -> Result<Command, String> {
    let mut tests = program("check.py")?;
    tests.arg(binary).arg(tokenizer());
    Ok(tests)
}

/// The three clients against our server, with a model made for it under `target/`: prints a table.
pub(crate) fn compare(binary: &Path, rounds: u32) -> Result<(), String> {
    setup::system()?;
    let model = target().join("models/100m");
    if !model.join("model.safetensors").exists() {
        random_model::write("100m", &model)?;
    }
    show(program("speed.py")?.arg(binary).arg(model).arg(tokenizer()).arg(rounds.to_string()))
}
