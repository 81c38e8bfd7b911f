//! The suites that hurt the built binary from outside: `tests/hostile` and `tests/soak`.

use std::path::Path;
use std::process::Command;

use crate::shell::{cargo, command, show, target};

/// Builds the binary and a suite, and runs it with these flags.
pub(crate) fn run(suite: &str, flags: &[&str]) -> Result<(), String> {
    show(&mut cargo(&["build", "--quiet", "--release"]))?;
    let mut suite = build(suite)?;
    show(suite.args(flags).env("TWOSTROKE_BINARY", target().join("release/twostroke")))
}

/// The hostile suite's sample, as a runner with its closing line.
pub(crate) fn sample(binary: &Path) -> Result<Command, String> {
    let mut suite = build("hostile")?;
    suite.arg("--sample").env("TWOSTROKE_BINARY", binary);
    Ok(suite)
}

/// A suite is a program of its own and not a test: it measures its children, and needs the machine for itself. Of the
/// whole workspace, for of this package alone cargo would build most of the tree again with fewer features.
fn build(suite: &str) -> Result<Command, String> {
    show(&mut cargo(&["build", "--quiet", "--release", "--workspace", "--bin", suite]))?;
    Ok(command(target().join("release").join(suite), &[] as &[&str]))
}
