//! `cargo xtask dist`: what people install without cargo, in `target/dist`.
//!
//! ```text
//! binary ── strip ───┐
//! manual, completions├─> tree ─┬─ tar, gzip ──> twostroke-VERSION-MACHINE.tar.gz     deploy/install.sh installs it
//! licences ──────────┘         ├─ dpkg-deb ───> twostroke_VERSION_ARCHITECTURE.deb
//!                              └─ buildah ────> twostroke-VERSION-image.tar          OCI, with Debian's C library
//! crates/python ── maturin ──> the wheel
//! git archive ───────────────> twostroke-VERSION.tar.gz ──> twostroke.rb             Homebrew builds from source
//! SHA256SUMS over all of them
//! ```
//! Every time in a file is that of the commit, so that a second run gives the same bytes. What cannot be made for want of
//! a tool is skipped, by name.

mod binary;
mod image;
mod licences;
mod packages;
mod tree;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::setup;
use crate::shell::{command, root, show, target};

use self::binary::{Build, Machine};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes everything.
pub(crate) fn run() -> Result<(), String> {
    let directory = target().join("dist");
    make(Build::Release, &directory)?;
    println!("{} has:", directory.display());
    show(command("cat", &["SHA256SUMS"]).current_dir(&directory))
}

/// Makes everything twice, in the profile of the tests, unless `made` names files that are there; then installs each
/// as people would, and asks it: `tests/dist/check.py`, whose closing line counts.
pub(crate) fn check(made: Option<&Path>) -> Result<Command, String> {
    setup::programs(&[
        ("busybox", "busybox-static"),
        ("mandoc", "mandoc"),
        ("lintian", "lintian"),
        ("podman", "podman"),
        ("ruby", "ruby"),
        ("shellcheck", "shellcheck"),
        ("qemu-aarch64-static", "qemu-user-static"),
    ]);
    let directory = match made {
        Some(made) => made.to_path_buf(),
        None => {
            let (first, second) = (target().join("dist-check/first"), target().join("dist-check/second"));
            make(Build::Checked, &first)?;
            make(Build::Checked, &second)?;
            same(&first, &second)?;
            first
        }
    };
    let mut check = command("python3", &["-B"]);
    check.arg(root().join("tests/dist/check.py")).arg(directory).arg(target().join("dist-check/roots"));
    Ok(check)
}

/// Two runs gave the same bytes, file by file.
fn same(first: &Path, second: &Path) -> Result<(), String> {
    let sums = |directory: &Path| read(&directory.join("SHA256SUMS"));
    let (first, second) = (sums(first)?, sums(second)?);
    let other: Vec<&str> = second.lines().filter(|line| !first.lines().any(|known| known == *line)).collect();
    if !other.is_empty() || first.lines().count() != second.lines().count() {
        return Err(format!("a second run gave other bytes: {}", other.join(", ")));
    }
    println!("two runs gave the same bytes: {} files", first.lines().count());
    Ok(())
}

fn make(build: Build, to: &Path) -> Result<(), String> {
    setup::programs(&[
        ("dpkg-deb", "dpkg"),
        ("buildah", "buildah"),
        ("mmdebstrap", "mmdebstrap"),
        ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        (binary::AARCH64_HEADERS, "libc6-dev-arm64-cross"),
    ]);
    fresh(to)?;
    let work = to.with_extension("work");
    fresh(&work)?;
    let moment = moment()?;
    let third_party = licences::third_party()?;
    let host = binary::built(Machine::X86_64, build)?.ok_or("the host's own binary cannot be built")?;
    let pack = |machine: Machine, binary: &Path| {
        let begin = Instant::now();
        let tree = work.join(format!("twostroke-{VERSION}-{}", machine.name()));
        tree::plant(&tree, &tree::Parts { binary, writer: &host, machine, third_party: &third_party })?;
        packages::tarball(&tree, to, moment)?;
        let package = packages::Package { machine, build, work: &work };
        packages::deb(&tree, &package, to, moment)?;
        made(&format!("tarball and .deb for {}", machine.name()), begin);
        Ok::<_, String>(tree)
    };
    let tree = pack(Machine::X86_64, &host)?;
    let begin = Instant::now();
    if image::make(&tree, &work, to, moment)? {
        made("image", begin);
    }
    let begin = Instant::now();
    binary::wheel(build, &tree, to, moment)?;
    made("wheel", begin);
    if let Some(binary) = binary::built(Machine::Aarch64, build)? {
        pack(Machine::Aarch64, &binary)?;
    }
    packages::source_and_formula(to)?;
    packages::sums(to)
}

fn made(what: &str, begin: Instant) {
    println!("{what}: {:.1} s", begin.elapsed().as_secs_f64());
}

/// A line for what is not made here, which the checks say again.
fn skipped(what: &str, why: &str) {
    println!("skipped: {what}: {why}");
}

/// The time of the commit, in seconds since 1970: `SOURCE_DATE_EPOCH`.
fn moment() -> Result<u64, String> {
    let output = command("git", &["log", "-1", "--format=%ct"]).output().map_err(|error| format!("git: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| "git tells no time of the last commit".to_owned())
}

/// An empty directory.
fn fresh(directory: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(directory); // nothing to remove the first time
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// A few lines of shell, with `$1`, `$2` and so on.
fn shell(script: &str, arguments: &[&OsStr], moment: u64) -> Result<(), String> {
    let mut shell = command("sh", &["-euc", script, "sh"]);
    show(shell.args(arguments).env("SOURCE_DATE_EPOCH", moment.to_string()).env("LC_ALL", "C").env("TZ", "UTC"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A file of `deploy/` with `@NAME@` replaced.
fn filled(file: &str, values: &[(&str, &str)]) -> Result<String, String> {
    let text = read(&root().join("deploy").join(file))?;
    Ok(values.iter().fold(text, |text, (name, value)| text.replace(&format!("@{name}@"), value)))
}

/// Where cargo keeps the sources of crates.
fn cargo_home() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).unwrap_or_default()
}

/// What a program prints.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("{}: {}", command.get_program().display(), String::from_utf8_lossy(&output.stderr))),
    }
}
