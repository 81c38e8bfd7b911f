//! The stage `prometheus`: what a server exposes and what `deploy/` holds, read by Prometheus itself.

use std::path::Path;
use std::process::Command;

use crate::setup;
use crate::shell::{command, root};

/// The tests in `tests/prometheus`, of servers of `binary`.
pub(crate) fn tests(binary: &Path) -> Result<Command, String> {
    let tools = setup::prometheus()?;
    let mut tests = command("python3", &["-B"]);
    tests.arg(root().join("tests/prometheus/check.py")).arg(binary).arg(tools.prometheus).arg(tools.promtool);
    Ok(tests)
}
