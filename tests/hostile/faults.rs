//! Faults of the process and of the machine around it: signals, files that change, disks that are full, limits.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tests::{Server, run, signal, twostroke};

use crate::base::{ANSWER, Base, PATIENCE, PROMPT, Verdict, converse, keeping, load, start, text};
use crate::case::{Bound, Case, FILE, Outcome, Scratch, Spent};
use crate::child::{self, End, status_kib};
use crate::http;
use crate::requests::metric;

const FAMILY: &str = "fault";
/// Of verbs that measure the machine's limits, over some hundred megabytes.
const MEASURES: Bound = FILE.seconds(5).mib(600);
const COMPLETIONS: &str = "/v1/completions";

pub(crate) fn cases(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = signals();
    cases.extend(pipes(base));
    cases.extend(changes(base));
    cases.extend(disks(base));
    cases.extend(limits(base));
    cases
}

fn timed(act: impl FnOnce() -> Result<(), String>) -> Outcome {
    let begin = Instant::now();
    let result = act();
    Outcome::of(result, Spent { wall: begin.elapsed(), ..Spent::default() })
}

fn question(max_tokens: usize) -> String {
    json!({ "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true }).to_string()
}

fn answered(port: u16) -> Result<String, String> {
    let answer = http::post(port, None, COMPLETIONS, &question(8), PATIENCE).map_err(|error| error.to_string())?;
    match answer.status {
        200 => {
            let value: Value = serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
            Ok(value["choices"][0]["text"].as_str().unwrap_or_default().to_owned())
        }
        status => Err(format!("{status} {}", child::first(&answer.body, 160))),
    }
}

/// Whether the server computes an answer.
fn is_running(port: u16) -> bool {
    let page = http::get(port, None, "/metrics", PATIENCE).map(|page| page.body).unwrap_or_default();
    metric(&page, "twostroke_requests_running") > Some(0.0)
}

fn until(what: &str, condition: impl Fn() -> bool) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > end {
            return Err(format!("waited in vain for {what}"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits for a server's end; `None` where it did not come in time, or by a signal.
fn ended(server: &mut Server) -> Option<i32> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        // A process that has ended and was not waited for has no memory.
        if status_kib(server.pid(), "VmRSS").is_none() {
            return server.wait();
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

fn signals() -> Vec<Case> {
    let mut cases = Vec::new();
    // Exit code, and whether a running answer is finished.
    for name in ["TERM", "INT", "HUP"] {
        cases.push(Case::new(FAMILY, format!("SIG{name} drains (row 59)"), move |_| {
            timed(|| {
                let mut server = Server::start(&["--kv-cache-memory-bytes", "16MiB"]);
                let port = server.port();
                let running = thread::spawn(move || http::post(port, None, COMPLETIONS, &question(2000), PATIENCE));
                until("the answer to begin", || is_running(port))?;
                signal(name, server.pid());
                let code = ended(&mut server);
                let answer = running.join().expect("it does not panic").map_err(|error| format!("lost: {error}"))?;
                if answer.status != 200 || !answer.body.contains("\"length\"") {
                    return Err(format!("{} {}", answer.status, child::first(&answer.body, 100)));
                }
                if code == Some(0) { Ok(()) } else { Err(format!("exit {code:?}")) }
            })
        }));
    }
    cases.push(Case::new(FAMILY, "two SIGINT end at once (row 59)", |_| {
        timed(|| {
            let mut server = Server::start(&["--kv-cache-memory-bytes", "64MiB", "--drain-timeout", "60"]);
            let port = server.port();
            let running = thread::spawn(move || http::post(port, None, COMPLETIONS, &question(6000), PATIENCE));
            until("the answer to begin", || is_running(port))?;
            signal("INT", server.pid());
            // Two signals that come together are one.
            until("the drain to begin", || {
                http::get(port, None, "/health", PATIENCE).is_ok_and(|answer| answer.status == 503)
            })?;
            signal("INT", server.pid());
            let code = ended(&mut server);
            let whole = running.join().expect("it does not panic").is_ok_and(|answer| answer.status == 200);
            match code {
                Some(_) if !whole => Ok(()),
                code => Err(format!("exit {code:?}; the answer was {}", if whole { "waited for" } else { "cut off" })),
            }
        })
    }));
    cases.push(Case::new(FAMILY, "SIGSTOP for two seconds, SIGCONT", |_| {
        timed(|| {
            let server = Server::start(&["--kv-cache-memory-bytes", "16MiB"]);
            let alone = answered(server.port())?;
            signal("STOP", server.pid());
            thread::sleep(Duration::from_secs(2));
            signal("CONT", server.pid());
            match answered(server.port())? == alone {
                true => Ok(()),
                false => Err("another answer".into()),
            }
        })
    }));
    for name in ["USR1", "PIPE", "WINCH", "URG"] {
        // Signals that are not meant for a server: it dies cleanly by it, or goes on. It must not hang or answer otherwise.
        cases.push(Case::new(FAMILY, format!("SIG{name}"), move |_| {
            timed(|| {
                let mut server = Server::start(&["--kv-cache-memory-bytes", "16MiB"]);
                let alone = answered(server.port())?;
                signal(name, server.pid());
                thread::sleep(Duration::from_millis(100));
                if status_kib(server.pid(), "VmRSS").is_none() {
                    server.wait();
                    return Ok(());
                }
                if answered(server.port())? == alone { Ok(()) } else { Err("another answer".into()) }
            })
        }));
    }
    cases.push(Case::new(FAMILY, "SIGKILL while packed weights are written leaves nothing that is read", |scratch| {
        timed(|| {
            let cache = scratch.path("cache");
            let model = tests::root().join("models/lantern");
            let mut without = keeping(&model, "int8");
            without.arg("--no-packed-cache");
            let wanted = run(&mut without).stdout;
            for delay in 0..15 {
                let mut command = keeping(&model, "int8");
                command.env("XDG_CACHE_HOME", &cache).stdout(Stdio::null()).stderr(Stdio::null());
                let mut child = command.spawn().map_err(|error| error.to_string())?;
                thread::sleep(Duration::from_millis(5 * delay));
                let _ = child.kill(); // it may have ended by itself
                let _ = child.wait();
                let ran = run(keeping(&model, "int8").env("XDG_CACHE_HOME", &cache));
                if ran.stdout != wanted {
                    return Err(format!("after a kill at {} ms: {ran:?}", 5 * delay));
                }
            }
            Ok(())
        })
    }));
    cases
}

/// Things that are no files where a file ought to be, and output that is not read.
fn pipes(base: &Arc<Base>) -> Vec<Case> {
    const NAMES: [&str; 6] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "chat_template.jinja",
    ];
    type Put = fn(&Path);
    let puts: [(&str, Put); 4] = [
        ("a FIFO", |path| mkfifo(path, Mode::S_IRWXU).expect("a FIFO")),
        ("/dev/zero", |path| symlink("/dev/zero", path).expect("a link")),
        ("a directory", |path| fs::create_dir(path).expect("a directory")),
        ("/dev/tty", |path| symlink("/dev/tty", path).expect("a link")),
    ];
    let mut cases = Vec::new();
    for name in NAMES {
        for (what, put) in puts {
            let own = Arc::clone(base);
            cases.push(Case::new(FAMILY, format!("{name} is {what}"), move |scratch| {
                let directory = own.with(scratch, &[(name, None)]);
                put(&directory.join(name));
                // A prompt that is raw needs no template.
                let asks = if name == "chat_template.jinja" { converse(&directory, PROMPT) } else { load(&directory) };
                let ran = child::run(&asks, scratch, &FILE, &[]);
                // Such a thing may not move to where failures are kept.
                let _ = fs::remove_file(directory.join(name));
                Verdict::Refused(vec![name]).judge(&ran, &FILE)
            }));
        }
    }
    for (what, put) in puts {
        cases.push(Case::new(FAMILY, format!("model.gguf is {what}"), move |scratch| {
            let path = scratch.path("model.gguf");
            put(&path);
            let ran = child::run(&load(&path), scratch, &FILE, &[]);
            let _ = fs::remove_file(&path);
            Verdict::Refused(vec!["model.gguf"]).judge(&ran, &FILE)
        }));
    }
    for arguments in [
        &["run", "hi", "-n", "4", "-q"][..],
        &["run", "hi", "-n", "4", "--json"],
        &["plan", "-m", "7b"],
        &["sim", "--requests", "10"],
        &["--help"],
        &["--version"],
    ] {
        cases.push(Case::new(FAMILY, format!("{} > /dev/full", arguments.join(" ")), move |scratch| {
            // The shell's redirection, because the suite's own goes to a file.
            let words = [tests::binary().to_str().expect("text")].into_iter().chain(arguments.iter().copied());
            let line: Vec<String> = words.map(|word| format!("'{word}'")).collect();
            let mut command = twostroke(&["x"]);
            let mut shell = Command::new("bash");
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            command.stdin(Stdio::null());
            shell.args(["-c", &format!("exec {} > /dev/full", line.join(" "))]);
            let ran = child::run(&shell, scratch, &MEASURES, &[]);
            // Exit 0 would say that the answer was written.
            let judged = ran.sane(&MEASURES).and_then(|()| match ran.end {
                End::Exit(0) => Err("exit 0, though nothing could be written".into()),
                _ => Ok(()),
            });
            Outcome::of(judged, ran.spent)
        }));
        cases.push(Case::new(
            FAMILY,
            format!("{} into a pipe without a reader", arguments.join(" ")),
            move |scratch| {
                let words = [tests::binary().to_str().expect("text")].into_iter().chain(arguments.iter().copied());
                let line: Vec<String> = words.map(|word| format!("'{word}'")).collect();
                let mut shell = Command::new("bash");
                shell.args(["-c", &format!("set -o pipefail; {} | true", line.join(" "))]);
                let ran = child::run(&shell, scratch, &MEASURES, &[]);
                Outcome::of(ran.sane(&MEASURES), ran.spent)
            },
        ));
    }
    cases
}

/// Files that change while they are read, and after.
fn changes(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = Vec::new();
    for file in ["model.safetensors", "tokenizer.json"] {
        let own = Arc::clone(base);
        cases.push(Case::new(FAMILY, format!("{file} truncated while it is loaded"), move |scratch| {
            let mut worst = Outcome::Passed(Spent::default());
            for round in 0..20 {
                let directory = own.with(scratch, &[]);
                let path = directory.join(file);
                let cut = thread::spawn(move || {
                    thread::sleep(Duration::from_micros(400 * round));
                    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(3000))
                });
                let ran = child::run(&load(&directory), scratch, &FILE, &[]);
                let _ = cut.join().expect("it does not panic");
                worst = Verdict::AnswersOr(own.answer.clone(), vec![file]).judge(&ran, &FILE);
                if matches!(worst, Outcome::Failed(..)) {
                    return worst;
                }
            }
            worst
        }));
    }
    let own = Arc::clone(base);
    cases.push(Case::new(FAMILY, "every file of the model truncated while it is served", move |scratch| {
        let directory = own.with(scratch, &[]);
        timed(|| {
            let flags = ["serve", "--port", "0", "--json", "-m", text(&directory), "--kv-cache-memory-bytes", "8MiB"];
            let server = start(&mut twostroke(&flags));
            let alone = answered(server.port())?;
            for entry in fs::read_dir(&directory).expect("it is there").flatten() {
                OpenOptions::new().write(true).truncate(true).open(entry.path()).expect("it can be written");
            }
            for _ in 0..20 {
                if answered(server.port())? != alone {
                    return Err("another answer".into());
                }
            }
            fs::remove_dir_all(&directory).expect("it is there");
            if answered(server.port())? == alone { Ok(()) } else { Err("another answer".into()) }
        })
    }));
    cases.push(Case::new(FAMILY, "a recording truncated while it is written", move |scratch| {
        let truncate = |path: &Path| _ = OpenOptions::new().write(true).truncate(true).open(path).expect("it is there");
        timed(|| records(&scratch.path("recording"), 1, truncate))
    }));
    cases
}

/// A server records to `path`, to which something happens after its first answer: it answers as often as asked as
/// before, and ends when told to.
fn records(path: &Path, times: usize, happens: impl FnOnce(&Path)) -> Result<(), String> {
    let mut server = Server::start(&["--record", text(path), "--kv-cache-memory-bytes", "8MiB"]);
    let alone = answered(server.port())?;
    happens(path);
    for _ in 0..times {
        if answered(server.port())? != alone {
            return Err("another answer".into());
        }
    }
    signal("TERM", server.pid());
    ended(&mut server).map(|_| ()).ok_or_else(|| "it does not end".into())
}

/// A small file system of the case's own, gone when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(scratch: &Scratch, size: &str) -> Result<Small, String> {
        let path = scratch.path("small");
        fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none", text(&path)])
            .stderr(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => Ok(Small(path)),
            _ => Err("a small file system cannot be mounted: not root".into()),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily, because a killed child may hold it for another moment.
        let _ = Command::new("umount").args(["-l", text(&self.0)]).status();
    }
}

fn disks(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = Vec::new();
    let own = Arc::clone(base);
    cases.push(Case::new(FAMILY, "a disk that is full: packed weights", move |scratch| {
        let small = match Small::mount(scratch, "64k") {
            Ok(small) => small,
            Err(why) => return Outcome::Skipped(why),
        };
        let directory = own.with(scratch, &[]);
        let mut without = keeping(&directory, "int8");
        without.arg("--no-packed-cache");
        let wanted = run(&mut without).stdout;
        let mut command = keeping(&directory, "int8");
        command.env("XDG_CACHE_HOME", &small.0);
        Verdict::Answers(wanted).judge(&child::run(&command, scratch, &FILE, &[]), &FILE)
    }));
    let own = Arc::clone(base);
    cases.push(Case::new(FAMILY, "a disk that is full: quantize", move |scratch| {
        let small = match Small::mount(scratch, "64k") {
            Ok(small) => small,
            Err(why) => return Outcome::Skipped(why),
        };
        let directory = own.with(scratch, &[]);
        let out = small.0.join("out");
        let command = twostroke(&["quantize", "-m", text(&directory), "--weights", "int8", "-o", text(&out)]);
        let outcome = Verdict::Refused(vec!["out", "space"]).judge(&child::run(&command, scratch, &FILE, &[]), &FILE);
        match outcome {
            Outcome::Passed(spent) if out.exists() => Outcome::Failed("half a result was left".into(), spent),
            outcome => outcome,
        }
    }));
    cases.push(Case::new(FAMILY, "a disk that is full: a recording", |scratch| {
        let small = match Small::mount(scratch, "64k") {
            Ok(small) => small,
            Err(why) => return Outcome::Skipped(why),
        };
        timed(|| records(&small.0.join("recording"), 60, |_| ()))
    }));
    cases.push(Case::new(FAMILY, "a disk that is full: swap", |scratch| {
        let small = match Small::mount(scratch, "1m") {
            Ok(small) => small,
            Err(why) => return Outcome::Skipped(why),
        };
        timed(|| {
            let place = format!("{}:64MiB", text(&small.0));
            let flags = ["serve", "--port", "0", "--json", "--kv-swap-disk", &place];
            let ran = child::run(&twostroke(&flags), scratch, &Bound { wall: Duration::from_secs(3), ..FILE }, &[]);
            match ran.end {
                // It may serve without, or say that it cannot.
                End::Hang => Ok(()),
                _ => ran.refused(&["swap", "space"]),
            }
        })
    }));
    let own = Arc::clone(base);
    for (name, kind) in [("a cache directory that is a file", 0), ("a cache directory that cannot be made", 1)] {
        let own = Arc::clone(&own);
        cases.push(Case::new(FAMILY, name, move |scratch| {
            let directory = own.with(scratch, &[]);
            let mut without = keeping(&directory, "int8");
            without.arg("--no-packed-cache");
            let wanted = run(&mut without).stdout;
            let mut command = keeping(&directory, "int8");
            let place = if kind == 0 { scratch.file("cache", "x") } else { PathBuf::from("/proc/nothing") };
            command.env("XDG_CACHE_HOME", place);
            Verdict::Answers(wanted).judge(&child::run(&command, scratch, &FILE, &[]), &FILE)
        }));
    }
    cases
}

fn limits(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = Vec::new();
    const MIB: u64 = 1 << 20;
    // Loading: right, or one line. Never an abort. Less than the program's own text is the system's to refuse.
    for mib in [60, 80, 100, 150, 200, 300, 500, 1000] {
        let own = Arc::clone(base);
        cases.push(Case::new(FAMILY, format!("run under an address space of {mib} MiB"), move |scratch| {
            let directory = own.with(scratch, &[]);
            let ran = child::run(&load(&directory), scratch, &FILE, &[("address-space", mib * MIB)]);
            Verdict::AnswersOr(own.answer.clone(), vec!["memory", "thread", "address"]).judge(&ran, &FILE)
        }));
    }
    for (name, limit, value) in [
        ("files of 4 kB (SIGXFSZ)", "file-size", 4096),
        ("16 open files", "files", 16),
        ("a stack of 256 KiB", "stack", 256 << 10),
    ] {
        let own = Arc::clone(base);
        cases.push(Case::new(FAMILY, format!("run under {name}"), move |scratch| {
            let directory = own.with(scratch, &[]);
            let mut command = keeping(&directory, "int8");
            let mut without = keeping(&directory, "int8");
            without.arg("--no-packed-cache");
            let wanted = run(&mut without).stdout;
            command.env("XDG_CACHE_HOME", scratch.path("cache"));
            let ran = child::run(&command, scratch, &FILE, &[(limit, value)]);
            Verdict::AnswersOr(wanted, vec!["open files", "limit"]).judge(&ran, &FILE)
        }));
    }
    // Serving: a smaller cache rather than none.
    for mib in [400, 600, 1000] {
        cases.push(Case::new(FAMILY, format!("serve under an address space of {mib} MiB (row 8)"), move |scratch| {
            serving(scratch, &["--max-num-seqs", "64"], &[("address-space", mib * MIB)], None)
        }));
    }
    cases.push(Case::new(FAMILY, "serve with 64 open files, 200 connections (row 41)", |scratch| {
        serving(scratch, &[], &[("files", 64)], Some(200))
    }));
    cases.push(Case::new(FAMILY, "serve in a control group of 320 MiB (row 8)", |scratch| {
        let group = PathBuf::from(format!("/sys/fs/cgroup/memory/twostroke-hostile-{}", std::process::id()));
        let limit = group.join("memory.limit_in_bytes");
        if fs::create_dir(&group).is_err() || fs::write(&limit, (320 * MIB).to_string()).is_err() {
            let _ = fs::remove_dir(&group);
            return Outcome::Skipped("no control group can be made here".into());
        }
        let outcome = timed(|| {
            let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", text(&group));
            let own = twostroke(&["serve", "--port", "0", "--json"]);
            let mut shell = Command::new("bash");
            shell.args(["-c", &enter, "bash"]).arg(own.get_program()).args(own.get_args());
            shell.env("XDG_CACHE_HOME", scratch.path("cache")).stdin(Stdio::null());
            let server = start(&mut shell);
            let alone = answered(server.port())?;
            // Enough tokens to touch all of a cache that is too large.
            let many =
                json!({ "prompt": "The fox", "max_tokens": 5000, "temperature": 1, "ignore_eos": true, "n": 32 });
            let stream = &mut http::connect(server.port(), Duration::from_secs(20)).map_err(|e| e.to_string())?;
            let bytes = http::request("POST", COMPLETIONS, None, "", many.to_string().as_bytes());
            stream.write_all(&bytes).map_err(|error| error.to_string())?;
            let _ = stream.read(&mut [0; 100]); // twenty seconds of it, or its end
            if answered(server.port())? == alone { Ok(()) } else { Err("another answer".into()) }
        });
        thread::sleep(Duration::from_millis(200));
        let _ = fs::remove_dir(&group);
        outcome
    }));
    cases.push(Case::new(FAMILY, "an environment of nothing", |scratch| {
        let own = twostroke(&[&["run"][..], &ANSWER, &[PROMPT]].concat());
        let mut bare = Command::new("env");
        bare.arg("-i").arg(own.get_program()).args(own.get_args());
        Verdict::Works.judge(&child::run(&bare, scratch, &FILE, &[]), &FILE)
    }));
    cases
}

/// A server under limits: it listens and answers, whatever the size of its cache; with a crowd of idle connections too.
fn serving(scratch: &Scratch, flags: &[&str], limits: &[(&str, u64)], crowd: Option<usize>) -> Outcome {
    timed(|| {
        let command = twostroke(&[&["serve", "--port", "0", "--json"], flags].concat());
        let mut helper = child::wrapped(&command, &scratch.path(".measured"), limits);
        let mut server = helper.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        server = std::os::unix::process::CommandExt::process_group(server, 0);
        let mut child = server.spawn().map_err(|error| error.to_string())?;
        let group = nix::unistd::Pid::from_raw(child.id() as i32);
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).map_err(|e| e.to_string())?;
        let result = (|| {
            let start: Value = serde_json::from_str(&line).map_err(|_| {
                let mut text = String::new();
                let _ = child.stderr.take().expect("piped").read_to_string(&mut text); // what there is
                format!("it did not start: {}", child::first(&text, 300))
            })?;
            let port = start["port"].as_u64().ok_or("no port")? as u16;
            let alone = answered(port)?;
            let crowd: Vec<_> =
                (0..crowd.unwrap_or(0)).filter_map(|_| http::connect(port, Duration::from_millis(50)).ok()).collect();
            thread::sleep(Duration::from_millis(500));
            drop(crowd);
            if answered(port)? == alone { Ok(()) } else { Err("another answer".into()) }
        })();
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = child.wait();
        result
    })
}
