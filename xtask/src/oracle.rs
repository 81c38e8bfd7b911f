//! `cargo xtask oracle`: what `crates/model/tests/data` holds, made again by the programs that made it and compared;
//! and what `twostroke quantize` writes, read by the packages whose formats it writes.

use std::ffi::OsString;
use std::fs;

use crate::setup;
use crate::shell::{cargo, command, root, show, target};

/// Downloads torch and transformers (about a gigabyte) into an environment of their own the first time.
pub(crate) fn check() -> Result<(), String> {
    setup::system()?;
    let python = setup::python("oracle-venv", &root().join("oracle/requirements.txt"))?;
    for script in ["oracle/make.py", "oracle/gguf_cases.py"] {
        show(&mut command(&python, &[script, "--check", "crates/model/tests/data"]))?;
    }
    show(&mut command(&python, &["oracle/quantized.py", "--check", "crates/model/tests/data/quantized"]))?;
    for kind in ["drafts", "adapters"] {
        let (script, data) = (format!("oracle/{kind}.py"), format!("crates/model/tests/data/{kind}"));
        show(&mut command(&python, &[script.as_str(), "--check", data.as_str()]))?;
    }
    show(&mut cargo(&["build", "--quiet", "--release"]))?;
    let data = fs::read_dir(root().join("crates/model/tests/data")).map_err(|error| error.to_string())?;
    let mut models: Vec<OsString> = data
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("oracle.json").exists())
        .map(OsString::from)
        .collect();
    models.sort();
    models.push(root().join("models/lantern").into());
    let program = target().join("release/twostroke");
    show(command(&python, &["oracle/exported.py"]).arg(program).args(models))
}
