//! Limits on the memory of the process: the KV cache becomes smaller, and where nothing fits one line says which limit
//! binds.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::{Ran, Server, run, twostroke};

const MIB: u64 = 1 << 20;

/// `serve` under what `before` does to the shell that becomes it.
fn limited(before: &str, arguments: &[&str]) -> Command {
    let serve = twostroke(&[&["serve", "--port", "0", "--json"], arguments].concat());
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{before} && exec \"$@\""), "bash"]).arg(serve.get_program()).args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    command
}

/// It starts under the limit, says so, and answers several at once.
fn answers(before: &str, kind: &str, limit: u64) -> Value {
    let mut child = limited(before, &[]).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it prints its start");
    let server = Server::adopt(child, &line);
    let start = server.start.clone();
    assert_eq!(start["memory_limit"]["kind"], kind, "{start}");
    assert_eq!(start["memory_limit"]["bytes"].as_u64(), Some(limit), "{start}");
    assert!(start["kv_bytes"].as_u64().is_some_and(|bytes| bytes <= limit / 2), "{start}");
    let question = r#"{"prompt":"The fox and the lantern","max_tokens":60,"n":4,"logprobs":3}"#;
    std::thread::scope(|scope| {
        let ask = || server.request("POST", "/v1/completions", &[], question);
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        for answer in asked {
            let (status, body) = answer.join().expect("an answer");
            assert_eq!(status, 200, "{body}");
        }
    });
    start
}

/// It ends with one line that names the limit.
fn refused(before: &str, arguments: &[&str], code: i32, words: &[&str]) -> Ran {
    let ran = run(&mut limited(before, arguments));
    let lines: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("twostroke: ")).collect();
    assert_eq!((ran.code, lines.len()), (Some(code), 1), "{before}: {ran:?}");
    assert!(words.iter().all(|word| lines[0].contains(word)), "{before}: {ran:?}");
    ran
}

#[test]
fn an_address_space_makes_the_cache_smaller() {
    let large = answers("ulimit -Sv $((1024 * 1024))", "address space", 1024 * MIB);
    let small = answers("ulimit -Sv $((800 * 1024))", "address space", 800 * MIB);
    assert!(small["kv_bytes"].as_u64() < large["kv_bytes"].as_u64());
    let data = answers("ulimit -Sd $((900 * 1024))", "data", 900 * MIB);
    assert!(data["memory_limit"]["source"].as_str().is_some_and(|source| source.contains("ulimit -d")), "{data}");
}

#[test]
fn what_cannot_work_is_one_line_that_names_the_limit() {
    for (mib, wish) in [(100, &[][..]), (80, &[]), (620, &["--kv-cache-memory-bytes", "512MiB"])] {
        let ran = run(&mut limited(&format!("ulimit -Sv $(({mib} * 1024))"), wish));
        assert!(matches!(ran.code, Some(1 | 2)), "{mib} MiB: {ran:?}");
        assert_eq!(ran.stderr.lines().filter(|line| line.starts_with("twostroke: ")).count(), 1, "{mib} MiB: {ran:?}");
        assert!(!ran.stderr.contains("this is a bug") && ran.stdout.is_empty(), "{mib} MiB: {ran:?}");
    }
    let wish = ["--kv-cache-memory-bytes", "2GiB"];
    refused(
        "ulimit -Sv $((1024 * 1024))",
        &wish,
        2,
        &["--kv-cache-memory-bytes", "2048 MiB", "address-space limit: 1024 MiB"],
    );
}

/// A control group of version 1 or 2 of its own, if this system lets us make one.
struct Group {
    directory: std::path::PathBuf,
    limit: &'static str,
}

impl Group {
    fn with(bytes: u64) -> Result<Group, String> {
        let kinds = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let (above, limit) = kinds
            .into_iter()
            .find(|(above, _)| Path::new(above).join("cgroup.procs").exists())
            .ok_or("no control groups are mounted at /sys/fs/cgroup")?;
        let directory = Path::new(above).join(format!("twostroke-test-{}-{}", std::process::id(), bytes / MIB));
        std::fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let group = Group { directory, limit };
        let file = group.directory.join(limit);
        std::fs::write(&file, bytes.to_string()).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(group)
    }

    /// What moves a shell into it.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.directory.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may be on its way out.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_control_group_makes_the_cache_smaller() {
    let groups = Group::with(320 * MIB).and_then(|large| Ok((large, Group::with(80 * MIB)?)));
    let (group, tiny) = match groups {
        Ok(groups) => groups,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let start = answers(&group.enter(), "control group", 320 * MIB);
    let file = group.directory.join(group.limit);
    assert_eq!(start["memory_limit"]["source"].as_str(), file.to_str(), "{start}");
    let file = tiny.directory.join(tiny.limit);
    refused(&tiny.enter(), &[], 1, &["not enough memory", "control group: 80 MiB", file.to_str().expect("ASCII")]);
    let wish = ["--kv-cache-memory-bytes", "512MiB"];
    refused(&group.enter(), &wish, 2, &["--kv-cache-memory-bytes", "control group: 320 MiB"]);
}
