//! `cargo xtask oracle`: the reference logits in `crates/model/tests/data`, made again by `transformers` and compared.

use crate::setup;
use crate::shell::{command, root, show};

/// Downloads torch and transformers (about a gigabyte) into an environment of their own the first time.
pub(crate) fn check() -> Result<(), String> {
    setup::system()?;
    let python = setup::python("oracle-venv", &root().join("oracle/requirements.txt"))?;
    for script in ["oracle/make.py", "oracle/gguf_cases.py"] {
        show(&mut command(&python, &[script, "--check", "crates/model/tests/data"]))?;
    }
    Ok(())
}
