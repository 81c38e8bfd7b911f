//! The worker for NVIDIA Dynamo under Dynamo itself: etcd, its frontend and workers of ours on this machine.

use crate::setup;
use crate::shell::{command, root, show};

/// The programs of `tests/dynamo` that start a cluster of their own.
const PROGRAMS: [&str; 2] = ["run.py", "planner.py"];

/// Runs them, with the wheel of `crates/python` beside what `tests/dynamo/requirements.txt` lists.
pub(crate) fn run() -> Result<(), String> {
    setup::system()?;
    let etcd = setup::etcd()?;
    let builder = setup::python("venv-python", &root().join("tests/python/requirements.txt"))?;
    let python = setup::python_exactly("venv-dynamo", &root().join("tests/dynamo/requirements.txt"))?;
    setup::install_wheel(&python, &setup::wheel(&builder)?)?;
    for program in PROGRAMS {
        let mut tests = command(&python, &["-B"]);
        tests.arg(root().join("tests/dynamo").join(program)).arg(&etcd);
        show(&mut tests).map_err(|_| format!("{program}: not everything passed"))?;
    }
    Ok(())
}
