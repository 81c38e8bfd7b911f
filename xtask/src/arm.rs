//! The kernels of AArch64 on a machine of another kind: built across, and run by QEMU, which emulates one program, each
//! against its definition. That shows bits; it shows neither time nor the order in which cores see memory.

use std::process::Command;

use crate::setup;
use crate::shell::cargo;

pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Where Debian has the libraries of that target.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Programs and files, each with its Debian package.
const WANTED: [(&str, &str); 3] = [
    ("qemu-aarch64-static", "qemu-user-static"),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/lib/libc.so.6", "libc6-dev-arm64-cross"),
];

/// Of the rows of tables that a quick run tries, each fourth: emulated kernels take some thirty times as long.
const EVERY: &str = "4";

/// Tests that compute by vectors: of the crate itself, and of its integration tests.
const COMPUTING: [&str; 14] = [
    "accumulation_order::",
    "attention::",
    "feedback::",
    "float32::",
    "gelu::",
    "latent::",
    "limits::tests::every_limit",
    "low_rank::",
    "plain::",
    "pointwise::",
    "routing::",
    "simd::",
    "states::",
    "twins::",
];

/// Of these, what says how good a definition is: it is the same on every machine, and long.
const ELSEWHERE: [&str; 3] = ["is_softmax_attention", "lose_no_more", "packing_keeps"];

/// The same tests on a core: its name, and which of the tests.
type Core = (&'static str, &'static [&'static str]);

/// One with everything, and two that exist: with dot products alone, and with neither.
const CORES: [Core; 3] = [
    ("max", &COMPUTING),
    ("neoverse-n1", &["low_rank::", "plain::", "simd::"]),
    ("cortex-a72", &["plain::", "simd::"]),
];

/// The runs, one for each core; none, and a line that says so, where something is missing.
pub(crate) fn runs() -> Vec<Command> {
    setup::programs(&WANTED);
    let programs = WANTED.into_iter().map(|(program, _)| program);
    let missing: Vec<&str> = programs.filter(|program| !setup::is_here(program)).collect();
    if !missing.is_empty() {
        println!("NOT CHECKED for AArch64: there is no {}", missing.join(", "));
        return Vec::new();
    }
    if !setup::target_libraries(TARGET) {
        return Vec::new(); // which is said
    }
    CORES.iter().map(run).collect()
}

fn run((core, tests): &Core) -> Command {
    let known = ["test", "--profile", "ci", "--package", "kernels", "--target", TARGET, "--lib", "--test", "it", "--"];
    let mut run = cargo(&[&known, *tests].concat());
    run.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    ELSEWHERE.iter().for_each(|test| _ = run.args(["--skip", test]));
    let runner = format!("qemu-aarch64-static -cpu {core} -L {LIBRARIES}");
    run.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    run.env("TWOSTROKE_TESTS_EVERY", EVERY);
    run
}
