//! vllm-router over workers of ours: prompts read by one and answered by another, and sent where their prefix is.

use crate::setup;
use crate::shell::{cargo, command, root, show, target};

/// Runs `tests/routers/vllm_router.py` against the binary.
pub(crate) fn run() -> Result<(), String> {
    setup::system()?;
    show(&mut cargo(&["build", "--quiet", "--release"]))?;
    let python = setup::python("venv-routers", &root().join("tests/routers/requirements.txt"))?;
    let mut tests = command(&python, &["-B"]);
    tests.arg(root().join("tests/routers/vllm_router.py")).arg(target().join("release/twostroke"));
    show(tests.arg(python.with_file_name("vllm-router")))
        .map_err(|_| "vllm_router.py: not everything passed".to_owned())
}
