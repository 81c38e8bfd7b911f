//! Running other programs: found or not, seen by the developer, and read where their closing lines count.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

/// Build products and everything that a test run sets up: never committed.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A program with its arguments, to be run in the repository, as if a person had typed it: without the variables by
/// which `cargo run` describes this program. Some build scripts watch those, and half the tree would be built again
/// each time they come and go.
pub(crate) fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// This toolchain's cargo.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
}

/// Whether a program answers at all; its output is not shown.
pub(crate) fn answers<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> bool {
    let status = command(program, arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs to the end with its output shown.
pub(crate) fn show(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", name(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", name(command))) }
}

/// Runs a test runner to the end with its output shown, and returns the lines of both streams too. It hears every signal:
/// what a shell starts in the background, or under nohup, begins with some ignored, and so do its children.
pub(crate) fn show_and_keep(command: &Command) -> Result<(bool, Vec<String>), String> {
    let mut hearing = Command::new("env");
    hearing.arg("--default-signal=HUP,INT,QUIT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => hearing.env(name, value),
            None => hearing.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        hearing.current_dir(directory);
    }
    let child = hearing.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("{}: {error}", name(command)))?;
    let stdout = child.stdout.take().expect("standard output is piped");
    let stderr = child.stderr.take().expect("standard error is piped");
    let errors = thread::spawn(move || copy(stderr, std::io::stderr()));
    let mut lines = copy(stdout, std::io::stdout());
    lines.extend(errors.join().expect("copying lines does not panic"));
    let status = child.wait().map_err(|error| format!("{}: {error}", name(command)))?;
    Ok((status.success(), lines))
}

fn copy(from: impl Read, mut to: impl Write) -> Vec<String> {
    let mut lines = Vec::new();
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while from.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        let _ = to.write_all(&bytes); // a closed terminal does not change the result
        lines.push(String::from_utf8_lossy(&bytes).trim_end().to_string());
        bytes.clear();
    }
    lines
}

/// The program and its first arguments, for messages.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments = command.get_args().take(3).map(|argument| argument.to_string_lossy().into_owned());
    [program].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}
