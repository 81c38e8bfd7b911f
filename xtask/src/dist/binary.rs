//! The binary for each machine, and the wheel.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{cargo_home, made, skipped};
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
    /// In the profile of the tests: the same bits of answers, compiled sooner.
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
    let linker = machine.program("gcc");
    let files = format!("tarball and .deb for {}", machine.name());
    if !setup::target_libraries(machine.triple()) {
        skipped(&files, "its standard library cannot be installed");
        return Ok(None);
    }
    if machine != Machine::X86_64 && (!setup::is_here(&linker) || !Path::new(AARCH64_HEADERS).exists()) {
        skipped(&files, &format!("{linker} or its C library is not here"));
        return Ok(None);
    }
    let (triple, profile) = (machine.triple(), build.profile());
    let mut cargo = cargo(&["build", "--quiet", "--locked", "--package", "cli", "--profile", profile]);
    if machine == Machine::X86_64 {
        // The package is named too, so that dependencies have the features that it gives them: the wheel is of what is
        // compiled for the binary.
        cargo.args(["--package", "python", "--bin", "twostroke"]);
    } else {
        let name = triple.to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), linker);
    }
    let directory = match (machine, build) {
        (Machine::X86_64, Build::Checked) => {
            // As the stage of the Python package builds it, so that nothing is compiled again.
            test::lint(&mut cargo);
            target().join(profile)
        }
        _ => {
            cargo.args(["--target", triple]).env("CARGO_ENCODED_RUSTFLAGS", flags());
            target().join(triple).join(profile)
        }
    };
    let begin = Instant::now();
    show(&mut cargo)?;
    made(&format!("compiled for {}", machine.name()), begin);
    Ok(Some(directory.join("twostroke")))
}

/// No path of the machine that built it is in a binary.
fn flags() -> String {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    [remap(&root(), "."), remap(&target(), "target"), remap(&cargo_home(), "cargo")].join("\u{1f}")
}

/// The wheel, which has the command too, with the licences of `tree`. Tests of the package have theirs built likewise, so
/// there is one already.
pub(super) fn wheel(build: Build, tree: &Path, to: &Path, moment: u64) -> Result<(), String> {
    let python = setup::python_exactly("venv-dist", &root().join("tests/dist/requirements.txt"))?;
    let mut maturin = command(python.with_file_name("maturin"), &["build", "--quiet", "--locked", "--strip"]);
    maturin.args(["--compatibility", "manylinux_2_34", "--profile", build.profile(), "--manifest-path"]);
    let wheels = tree.with_file_name("wheels");
    maturin.arg(root().join("crates/python/Cargo.toml")).arg("--out").arg(&wheels);
    match build {
        Build::Release => {
            maturin.args(["--target", Machine::X86_64.triple()]).env("CARGO_ENCODED_RUSTFLAGS", flags());
        }
        Build::Checked => test::lint(&mut maturin),
    }
    show(&mut maturin)?;
    let mut complete = command(python, &["-B", "-c", COMPLETE]);
    complete.args([&wheels, &tree.join("share/doc/twostroke"), to]);
    show(complete.arg(moment.to_string()))
}

/// Puts licences into a wheel, and gives all files the time of the commit. Maturin would by `SOURCE_DATE_EPOCH`; but crates
/// with code in C are compiled again when that changes, and so is what needs them.
const COMPLETE: &str = "
import base64, hashlib, pathlib, sys, time, zipfile
wheels, licences, to = map(pathlib.Path, sys.argv[1:4])
moment = time.gmtime(int(sys.argv[4]))[:6]
(wheel,) = wheels.iterdir()
with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(to / wheel.name, 'w', zipfile.ZIP_DEFLATED) as new:
    files = {entry: old.read(entry) for entry in old.infolist()}
    (record,) = [entry for entry in files if entry.filename.endswith('.dist-info/RECORD')]
    added = b''
    for name in ['LICENSE-APACHE', 'LICENSE-MIT', 'THIRD-PARTY']:
        entry, text = zipfile.ZipInfo(record.filename[:-6] + 'licenses/' + name), (licences / name).read_bytes()
        entry.external_attr, files[entry] = record.external_attr, text
        sum = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b'=').decode()
        added += f'{entry.filename},sha256={sum},{len(text)}\\n'.encode()
    files[record] = added + files[record]
    for entry, body in files.items():
        entry.date_time, entry.compress_type = moment, zipfile.ZIP_DEFLATED
        new.writestr(entry, body)
";
