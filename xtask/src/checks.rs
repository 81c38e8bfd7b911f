//! Slower checks, each a command of its own.

use crate::arm;
use crate::setup;
use crate::shell::{cargo, command, root, show, target};
use std::fs;
use std::process::Command;

/// What is computed, to the bit: digests of every committed checkpoint's logits and of the shipped model's answers, and
/// recorded runs. `write` makes the committed files anew.
pub(crate) fn bits(write: bool) -> Result<(), String> {
    // Of the whole workspace, so that its dependencies have the features that `cargo xtask test` has built them with.
    let mut test = cargo(&["test", "--quiet", "--profile", "ci", "--workspace", "--test", "it"]);
    test.arg("bits::").env("TWOSTROKE_LONG_TESTS", "1");
    if write {
        test.env("TWOSTROKE_WRITE_BITS", "1");
    }
    show(&mut test)
}

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
    test.args(["x86_64-unknown-linux-gnu", "--test", "it", "--", "--skip", "amx_emulated"]);
    // Rustup's cargo chooses the toolchain; this variable, set for our own run, would overrule it.
    test.env_remove("RUSTUP_TOOLCHAIN");
    show(test.env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", target().join("asan")))
}

/// The kernels' pool of threads in every order in which its threads can meet: `crates/kernels/src/threads/model.rs`.
/// Built apart, for the flag that puts loom in place of the standard library reaches every crate.
pub(crate) fn loom() -> Command {
    let mut test = cargo(&["test", "--quiet", "--release", "--package", "kernels", "--lib", "threads::model"]);
    test.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
    test
}

/// Plain paths of the kernels under Miri, which sees what neither the sanitizer nor a wrong result shows: addresses
/// beyond what a pointer may reach, references that exclude each other, values that no type has, races. It knows no
/// vectors of this crate, so it takes the paths that any CPU has. Needs a nightly toolchain with Miri.
pub(crate) fn miri() -> Result<(), String> {
    setup::miri()?;
    let mut test = command("cargo", &["+nightly", "miri", "test", "--quiet", "--package", "kernels"]);
    test.args(["--test", "it", "--target-dir"]).arg(target().join("miri")).args(["--", "plain::"]);
    // As for `asan`. The clock and /proc are the host's.
    test.env_remove("RUSTUP_TOOLCHAIN");
    show(test.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

/// Compiles for what no test machine is: everything for AArch64, the kernels for a machine without any of its own, and
/// the scheduler for one without an operating system, as `no_std` promises. Says so where a target cannot be installed.
/// And what counts instructions, a workspace of its own that a renaming would pass by. `quick`: the kernels for AArch64
/// alone, the one crate that has code of a machine; about 8 s of two cores the first time, 2 s then.
pub(crate) fn targets(quick: bool) -> Result<(), String> {
    if quick {
        if setup::target_libraries(arm::TARGET) {
            let kernels = ["check", "--quiet", "--profile", "ci", "--package", "kernels", "--target"];
            show(cargo(&kernels).arg(arm::TARGET))?;
        }
        return Ok(());
    }
    let mut guards = cargo(&["check", "--quiet", "--locked", "--benches", "--manifest-path", "guards/Cargo.toml"]);
    show(guards.env("CARGO_TARGET_DIR", target()))?;
    if setup::target_libraries(arm::TARGET) {
        // Nothing is linked, so what dependencies have of C need not be compiled either: `true` stands for its
        // compiler.
        let mut check = cargo(&["check", "--quiet", "--profile", "ci", "--workspace", "--target", arm::TARGET]);
        check.env("CC_aarch64_unknown_linux_gnu", "true").env("AR_aarch64_unknown_linux_gnu", "true");
        show(&mut check)?;
    }
    if setup::target_libraries("riscv64gc-unknown-linux-gnu") {
        let kernels = ["check", "--quiet", "--profile", "ci", "--package", "kernels", "--target"];
        show(cargo(&kernels).arg("riscv64gc-unknown-linux-gnu"))?;
    }
    if setup::target_libraries("x86_64-unknown-none") {
        show(&mut cargo(&[
            "build",
            "--quiet",
            "--release",
            "--package",
            "scheduler",
            "--target",
            "x86_64-unknown-none",
        ]))?;
    }
    Ok(())
}

/// Those of `fuzz/fuzz_targets`, each with its corpus.
const TARGETS: [&str; 12] = [
    "gguf",
    "safetensors",
    "config",
    "tokenizer",
    "text",
    "template",
    "recording",
    "trace",
    "body",
    "answer",
    "rule",
    "frame",
];

/// Every fuzz target for the given seconds. Starts from `fuzz/corpus` and from what earlier runs kept; a finding ends it,
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
