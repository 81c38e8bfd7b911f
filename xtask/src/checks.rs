//! Slower checks, each a command of its own.

use crate::setup;
use crate::shell::{cargo, command, root, show, target};
use std::fs;

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

/// Those of `fuzz/fuzz_targets`, each with its corpus.
const TARGETS: [&str; 9] =
    ["gguf", "safetensors", "config", "tokenizer", "text", "template", "recording", "trace", "body"];

/// Every fuzz target for so many seconds. Starts from `fuzz/corpus` and from what earlier runs kept; a finding ends it,
/// and its input stays in `fuzz/artifacts`. Needs a nightly toolchain.
pub(crate) fn fuzz(seconds: u32) -> Result<(), String> {
    let program = setup::cargo_fuzz()?;
    for name in TARGETS {
        let (kept, given) = (target().join("fuzz-corpus").join(name), root().join("fuzz/corpus").join(name));
        fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        let mut fuzz = command(&program, &["fuzz", "run", name, "--target-dir"]);
        fuzz.arg(target().join("fuzz")).args([kept, given]).arg("--");
        fuzz.args([format!("-max_total_time={seconds}"), "-max_len=16384".into(), "-timeout=10".into()]);
        fuzz.args(["-rss_limit_mb=2048", "-print_final_stats=1"]);
        show(fuzz.env("RUSTUP_TOOLCHAIN", "nightly"))?;
    }
    Ok(())
}
