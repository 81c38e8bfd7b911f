//! Shared helpers of the end-to-end tests: the repository, the built binary, and a server of it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Once, OnceLock};
use std::thread;

use rates::kept::KeptResult;
use serde_json::Value;

pub use testing::{is_long, one_of, part_of, wait};

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository")
}

/// The `twostroke` binary: the one that `cargo xtask test` has built, or one built now, in the profile of the tests.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("TWOSTROKE_BINARY") {
            return path.into();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let own = std::env::current_exe().expect("a test has a file");
        let directory = own.parent().and_then(Path::parent).expect("it lies in target/PROFILE/deps");
        let profile = directory.file_name().and_then(OsStr::to_str).expect("a profile's name is text");
        let profile = if profile == "debug" { "dev" } else { profile };
        let arguments = ["build", "--quiet", "--bin", "twostroke", "--profile", profile];
        let mut cargo = Command::new(cargo);
        let status = forget_package(cargo.args(arguments)).current_dir(root()).status().expect("cargo runs");
        assert!(status.success(), "the binary could not be built");
        directory.join("twostroke")
    })
}

/// Takes out of a command's environment what cargo says there about the package under test. A cargo called by it would
/// otherwise build some crates again: their build scripts look at these variables.
pub fn forget_package(command: &mut Command) -> &mut Command {
    let describes = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(describes)) {
        command.env_remove(name);
    }
    command
}

/// The binary with arguments, no input, and none of the variables that it reads.
pub fn twostroke<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null());
    for name in ["TWOSTROKE_API_KEY", "TWOSTROKE_LOG", "RUST_BACKTRACE", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE"]
        .into_iter()
        .chain(["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
    {
        command.env_remove(name);
    }
    // Nothing here may depend on what a developer has downloaded, or reach for a network.
    command.env("HF_HOME", std::env::temp_dir().join("twostroke-no-such-cache")).env("HF_HUB_OFFLINE", "1");
    // What one server has measured of the machine serves the next.
    static TRUSTED: Once = Once::new();
    TRUSTED.call_once(|| trust(&cache()));
    command.env("XDG_CACHE_HOME", cache()).env("XDG_STATE_HOME", cache().join("state"));
    command
}

/// Says of the steps that servers of this run have measured that nothing disturbed them. Among tests something always
/// does, and each start would measure them again, for a second of a core.
fn trust(cache: &Path) {
    for entry in cache.join("twostroke/packed").read_dir().into_iter().flatten().flatten() {
        let file = entry.path();
        let kept = || KeptResult::<Value>::read(&file).filter(|_| file.extension().is_some_and(|end| end == "cost"));
        let Some(mut kept) = kept() else { continue };
        let mut is_new = false;
        for sample in kept.found["samples"].as_array_mut().into_iter().flatten() {
            is_new |= sample["ran_ns"] != sample["wall_ns"];
            sample["ran_ns"] = sample["wall_ns"].clone();
        }
        if is_new {
            kept.write(&file).expect("it can be written to");
        }
    }
}

/// Where the servers of one run of tests keep what they measure, so that no other run, checkout or user steers them:
/// `cargo xtask test` and nextest name the run, otherwise it is this process.
pub fn cache() -> PathBuf {
    match std::env::var_os("TWOSTROKE_TESTS_CACHE") {
        Some(path) => path.into(),
        None => {
            let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| std::process::id().to_string());
            std::env::temp_dir().join(format!("twostroke-tests-{run}"))
        }
    }
}

/// A command run by another one, which is given it as arguments: with its environment and no input.
pub fn run_by(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args()).stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// What a command left behind.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}\n{self:?}"))
    }
}

/// Runs to the end.
pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs to the end with `input` on standard input.
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("standard input is piped");
    let input = input.to_vec();
    // A command may end without reading all of it.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("writing does not panic");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Sends a signal, by its name without SIG.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("bash").args(["-c", &format!("kill -s {name} {pid}")]).status().expect("bash runs");
    assert!(status.success(), "SIG{name} to {pid}");
}

/// `twostroke serve` on a free port. Killed when dropped.
pub struct Server {
    child: Child,
    /// What it printed at its start, as JSON.
    pub start: Value,
}

impl Server {
    /// Starts the built-in model with further arguments and waits until it listens. It hears every signal, even if the
    /// tests were told to ignore some (`nohup`, or in the background of a shell). Its engine has one thread unless the
    /// arguments say otherwise: several tests run at once, and threads that wait for each other would take turns.
    pub fn start(arguments: &[&str]) -> Server {
        Server::start_with(arguments, &[])
    }

    /// The same with variables of the environment.
    pub fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Server {
        let says_threads = arguments.iter().any(|argument| ["-t", "--threads"].contains(argument));
        let threads: &[&str] = if says_threads { &[] } else { &["-t", "1"] };
        let arguments: Vec<&str> = [&["serve", "--port", "0", "--json"], threads, arguments].concat();
        let mut hearing = Command::new("env");
        hearing.arg("--default-signal=HUP,INT,QUIT");
        let mut command = run_by(hearing, twostroke(&arguments).envs(variables.iter().copied()));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("standard output is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it prints its start");
        Server::adopt(child, &line)
    }

    /// A server that was started otherwise, with the JSON line that it printed.
    pub fn adopt(child: Child, line: &str) -> Server {
        let start = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Server { child, start }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.start["port"].as_u64().expect("the start names the port") as u16
    }

    /// Its process id, for signals.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end and gives the exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Waits for its end and gives what is left of its output, as far as it was piped.
    pub fn output(mut self) -> (String, String) {
        let read = |from: Option<&mut dyn Read>| {
            let mut text = String::new();
            from.map(|from| from.read_to_string(&mut text).expect("output is UTF-8"));
            text
        };
        let (mut stdout, mut stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let stdout = read(stdout.as_mut().map(|from| from as &mut dyn Read));
        (stdout, read(stderr.as_mut().map(|from| from as &mut dyn Read)))
    }

    /// One HTTP/1.1 exchange on a connection of its own: status and body.
    pub fn request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).expect("it listens");
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {headers}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        (status, body.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// Every file of the repository below `directory` that git would keep, as paths from the root.
pub fn files(directory: &str) -> Vec<PathBuf> {
    const SKIPPED: [&str; 6] = [".git", "target", "node_modules", ".venv", "__pycache__", ".pytest_cache"];
    let mut files = Vec::new();
    let mut stack = vec![root().join(directory)];
    while let Some(directory) = stack.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if SKIPPED.iter().any(|skipped| name.as_os_str() == OsStr::new(skipped)) {
                continue;
            }
            match path.is_dir() && !path.is_symlink() {
                true => stack.push(path),
                false => files.push(path.strip_prefix(root()).expect("it lies below the root").to_path_buf()),
            }
        }
    }
    files.sort();
    files
}

/// A file of the repository as text; `None` if it is not text.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(std::fs::read(root().join(path)).ok()?).ok()
}
