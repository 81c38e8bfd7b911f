//! One run of the program, with what it took: each under a helper process of its own, because a system tells the memory
//! of children that have ended only as the largest of all.
//!
//! ```text
//! suite ──spawn──► hostile --measure FILE [--limit NAME BYTES].. -- twostroke ...   sets limits, waits, writes FILE
//!   |                └──spawn──► twostroke                                          the only child that helper ever has
//!   └── watches time and memory, kills both beyond the hard limits
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::os::unix::process::{CommandExt, ExitStatusExt};

use crate::case::{Bound, Scratch, Spent};

/// A child that takes this is ended, for the sake of the machine that the suite runs on.
const MOST_MIB: u64 = 2 << 10;
/// Longest standard output that is kept.
const MOST_OUTPUT: u64 = 32 << 20;
const TICK: Duration = Duration::from_millis(4);

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit code, or the number of the signal.
    pub(crate) end: End,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) spent: Spent,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(i32),
    Signal(i32),
    /// It was still running after the bound's wall time.
    Hang,
    /// It took more memory than the suite lets anything take.
    Greed,
}

/// Runs to the end, or to the end of `bound.wall`.
pub(crate) fn run(command: &Command, scratch: &Scratch, bound: &Bound, limits: &[(&str, u64)]) -> Ran {
    let path = |name: &str| scratch.path(&format!(".{name}"));
    let file = |name: &str| File::create(path(name)).expect("the scratch directory can be written");
    let mut helper = wrapped(command, &path("measured"), limits);
    helper.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr")).process_group(0);
    let start = Instant::now();
    let mut child = helper.spawn().expect("this program can be run again");
    let forced = watch(&mut child, &path("measured"), start, bound.wall);
    let wall = start.elapsed();
    let measured = fs::read_to_string(path("measured")).unwrap_or_default();
    let mut numbers = measured.lines().nth(1).unwrap_or_default().split(' ').map(|word| word.parse::<i64>());
    let mut next = || numbers.next().and_then(Result::ok);
    let (code, signal, cpu_ms, kib) = (next(), next(), next(), next());
    let end = match (forced, code, signal) {
        (Some((end, _)), ..) => end,
        (None, Some(code), Some(-1)) => End::Exit(code as i32),
        (None, Some(_), Some(signal)) => End::Signal(signal as i32),
        _ => panic!("the helper wrote {measured:?}"),
    };
    let peak = forced.map_or_else(|| kib.unwrap_or_default() as u64, |(_, kib)| kib);
    let cpu = cpu_ms.map_or(wall, |ms| Duration::from_millis(ms as u64));
    let text = |name: &str| {
        let bytes = fs::read(path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_OUTPUT as usize)]).into_owned()
    };
    Ran { end, stdout: text("stdout"), stderr: text("stderr"), spent: Spent { cpu, wall, mib: peak >> 10 } }
}

/// The same command under this program as its helper.
pub(crate) fn wrapped(command: &Command, measured: &Path, limits: &[(&str, u64)]) -> Command {
    let mut helper = Command::new(std::env::current_exe().expect("this program has a path"));
    helper.arg("--measure").arg(measured);
    for (name, limit) in limits {
        helper.args(["--limit", name, &limit.to_string()]);
    }
    helper.arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => helper.env(name, value),
            None => helper.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        helper.current_dir(directory);
    }
    helper
}

/// Waits, and ends what takes too long or too much; then says why and what it had taken, in KiB.
fn watch(child: &mut Child, measured: &Path, start: Instant, wall: Duration) -> Option<(End, u64)> {
    let group = Pid::from_raw(child.id() as i32);
    loop {
        if child.try_wait().expect("it is our child").is_some() {
            return None;
        }
        let pid = fs::read_to_string(measured).ok().and_then(|text| text.lines().next()?.parse().ok());
        let kib = pid.and_then(|pid| status_kib(pid, "VmHWM")).unwrap_or(0);
        let output = measured.with_file_name(".stdout").metadata().map_or(0, |metadata| metadata.len());
        let end = match () {
            () if start.elapsed() > wall => End::Hang,
            () if kib >> 10 > MOST_MIB || output > MOST_OUTPUT => End::Greed,
            () => {
                std::thread::sleep(TICK);
                continue;
            }
        };
        let _ = killpg(group, Signal::SIGKILL); // it may have ended just now
        child.wait().expect("it is our child");
        return Some((end, kib));
    }
}

/// A line of `/proc/PID/status` that is in KiB.
pub(crate) fn status_kib(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The helper's whole life.
pub(crate) fn measure(arguments: &[OsString]) -> ExitCode {
    let split = arguments.iter().position(|argument| argument == "--").expect("a command behind --");
    let (own, command) = arguments.split_at(split);
    let place = PathBuf::from(&own[0]);
    for limit in own[1..].chunks(3) {
        let bytes: u64 = limit[2].to_string_lossy().parse().expect("a number of bytes");
        let resource = match limit[1].to_string_lossy().as_ref() {
            "address-space" => Resource::RLIMIT_AS,
            "file-size" => Resource::RLIMIT_FSIZE,
            "files" => Resource::RLIMIT_NOFILE,
            "stack" => Resource::RLIMIT_STACK,
            other => panic!("no limit is called {other}"),
        };
        setrlimit(resource, bytes, bytes).expect("a limit can be lowered");
    }
    let mut child = match Command::new(&command[1]).args(&command[2..]).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("hostile: {}: {error}", Path::new(&command[1]).display());
            return ExitCode::FAILURE;
        }
    };
    let pid = format!("{}\n", child.id());
    let _ = fs::write(&place, &pid); // without it only the memory guard is blind
    let status = child.wait().expect("it is our child");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a system tells");
    let (user, system) = (usage.user_time(), usage.system_time());
    let cpu_ms = (user.tv_sec() + system.tv_sec()) * 1000 + (user.tv_usec() + system.tv_usec()) / 1000;
    let numbers =
        format!("{} {} {cpu_ms} {}\n", status.code().unwrap_or(-1), status.signal().unwrap_or(-1), usage.max_rss());
    match fs::write(&place, pid + &numbers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostile: {}: {error}", place.display());
            ExitCode::FAILURE
        }
    }
}

impl Ran {
    /// No signal, no panic, no more than the bound.
    pub(crate) fn sane(&self, bound: &Bound) -> Result<(), String> {
        match self.end {
            End::Exit(101) => return Err(format!("exit 101: {}", self.first_lines())),
            End::Exit(_) => {}
            End::Signal(number) => return Err(format!("signal {number}: {}", self.first_lines())),
            End::Hang => return Err(format!("still running after {:.0} s", bound.wall.as_secs_f64())),
            End::Greed => return Err(format!("took {} MiB and was ended", self.spent.mib)),
        }
        for word in ["this is a bug", "panicked", "RUST_BACKTRACE", "stack overflow", "src/"] {
            if self.stderr.contains(word) || self.stdout.contains(word) {
                return Err(format!("{word:?} in: {}", self.first_lines()));
            }
        }
        self.spent.within(bound)
    }

    /// One line on standard error that names one of `words`, nothing on standard output, exit code 2 or 1.
    pub(crate) fn refused(&self, words: &[&str]) -> Result<(), String> {
        if !matches!(self.end, End::Exit(1 | 2)) {
            return Err(format!("not refused: {:?}, it wrote {:?}", self.end, first(&self.stdout, 80)));
        }
        // What was found out before is told before; the refusal is the one line after it.
        let said = |line: &&str| !["weights: ", "model ", "note: "].iter().any(|told| line.starts_with(told));
        let line = self.stderr.lines().filter(said).collect::<Vec<_>>().join("\n");
        if line.contains('\n') || !line.starts_with("twostroke: ") || line.len() > 2048 {
            return Err(format!("not one clear line: {}", self.first_lines()));
        }
        if line.chars().any(char::is_control) {
            return Err(format!("control characters in {line:?}"));
        }
        if !self.stdout.is_empty() {
            return Err(format!("refused, but wrote {:?}", first(&self.stdout, 80)));
        }
        // The word must be there beside the path, which names the case.
        match words.is_empty() || words.iter().any(|word| line.contains(word)) {
            true => Ok(()),
            false => Err(format!("none of {words:?} in: {line}")),
        }
    }

    fn first_lines(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().take(3).collect();
        first(&lines.join(" | "), 300)
    }
}

/// The beginning of a text.
pub(crate) fn first(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}
