//! The binary for each machine, and the wheel.

use std::path::{Path, PathBuf};

use super::{cargo_home, is_here, skipped};
use crate::setup;
use crate::shell::{cargo, command, root, show, target};
use crate::test;

/// What crates with code in C want of the cross compiler's library.
pub(super) const AARCH64_HEADERS: &str = "/usr/aarch64-linux-gnu/include/stdlib.h";

/// How the binaries are built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Build {
    /// For people.
    Release,
    /// As tests have them: the same bits of answers, compiled sooner.
    Checked,
}

impl Build {
    fn profile(self) -> &'static str {
        match self {
            Build::Release => "release",
            Build::Checked => "ci",
        }
    }
}

/// What a binary is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// In the names of files, and for `deploy/install.sh`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86_64-linux",
            Machine::Aarch64 => "aarch64-linux",
        }
    }

    /// Debian's word.
    pub(super) fn debian(self) -> &'static str {
        match self {
            Machine::X86_64 => "amd64",
            Machine::Aarch64 => "arm64",
        }
    }

    fn triple(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86_64-unknown-linux-gnu",
            Machine::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The linker and its kin for this machine.
    pub(super) fn program(self, name: &str) -> String {
        match self {
            Machine::X86_64 => name.to_owned(),
            Machine::Aarch64 => format!("aarch64-linux-gnu-{name}"),
        }
    }
}

/// The binary, not yet stripped; `None` where it cannot be built here.
pub(super) fn built(machine: Machine, build: Build) -> Result<Option<PathBuf>, String> {
    if (machine, build) == (Machine::X86_64, Build::Checked) {
        return test::built().map(Some);
    }
    let linker = machine.program("gcc");
    let files = format!("tarball and .deb for {}", machine.name());
    if !setup::target_libraries(machine.triple()) {
        skipped(&files, "its standard library cannot be installed");
        return Ok(None);
    }
    if machine != Machine::X86_64 && (!is_here(&linker) || !Path::new(AARCH64_HEADERS).exists()) {
        skipped(&files, &format!("{linker} or its C library is not here"));
        return Ok(None);
    }
    let (triple, profile) = (machine.triple(), build.profile());
    let mut cargo = cargo(&["build", "--quiet", "--locked", "--package", "cli"]);
    cargo.args(["--profile", profile, "--target", triple]).env("CARGO_ENCODED_RUSTFLAGS", flags());
    if machine == Machine::X86_64 {
        // Together, so that dependencies have the same features and the wheel is of what is compiled for the binary.
        cargo.args(["--package", "python"]);
    } else {
        let name = triple.to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), linker);
    }
    show(&mut cargo)?;
    Ok(Some(target().join(triple).join(profile).join("twostroke")))
}

/// No path of the machine that built it is in a binary.
fn flags() -> String {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    [remap(&root(), "."), remap(&target(), "target"), remap(&cargo_home(), "cargo")].join("\u{1f}")
}

/// The wheel, which has the command too. Tests of the package have theirs built likewise, so there is one already.
pub(super) fn wheel(build: Build, to: &Path, moment: u64) -> Result<(), String> {
    let python = setup::python_exactly("venv-dist", &root().join("tests/dist/requirements.txt"))?;
    let maturin = python.with_file_name("maturin");
    let mut maturin = command(maturin, &["build", "--quiet", "--locked", "--strip", "--compatibility"]);
    maturin.args(["manylinux_2_34", "--profile", "release", "--manifest-path"]);
    maturin.arg(root().join("crates/python/Cargo.toml")).arg("--out").arg(to);
    if build == Build::Release {
        maturin.args(["--target", Machine::X86_64.triple()]).env("CARGO_ENCODED_RUSTFLAGS", flags());
    }
    show(maturin.env("SOURCE_DATE_EPOCH", moment.to_string()))
}
