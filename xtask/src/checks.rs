//! Slower checks, each a command of its own.

use crate::setup;
use crate::shell::{cargo, command, show, target};

/// Instruction counts of the hot operations against the limits in `guards/benches/instructions.rs`.
pub(crate) fn guards() -> Result<(), String> {
    setup::valgrind()?;
    let runner = setup::gungraun_runner()?;
    let mut bench = cargo(&["bench", "--quiet", "--locked", "--manifest-path", "guards/Cargo.toml"]);
    show(bench.env("CARGO_TARGET_DIR", target()).env("GUNGRAUN_RUNNER", runner))
}

/// The kernels' tests with every memory access checked. Needs a nightly toolchain, for the sanitizer is not stable.
/// The emulator of tile instructions stays out: it lives in a signal handler, where the sanitizer has no stack.
pub(crate) fn asan() -> Result<(), String> {
    let mut test =
        command("cargo", &["+nightly", "test", "--quiet", "--release", "--package", "kernels", "--lib", "--target"]);
    test.args(["x86_64-unknown-linux-gnu", "--test", "twins", "--test", "attention", "--test", "pointwise"]);
    // Rustup's cargo chooses the toolchain; this variable, set for our own run, would overrule it.
    test.env_remove("RUSTUP_TOOLCHAIN");
    show(test.env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", target().join("asan")))
}
