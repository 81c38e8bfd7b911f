//! `cargo xtask test`: set-up, then the stages that every change must pass; `--all` runs the others too. All of them run,
//! even when one fails. There is one profile, `ci`, and one set of features: what the compiler builds for the first stage
//! serves the rest.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use crate::arm;
use crate::book;
use crate::checks;
use crate::crosscheck;
use crate::dist;
use crate::hostile;
use crate::planted;
use crate::prometheus;
use crate::random_model;
use crate::setup;
use crate::shell::{answers, cargo, command, root, show, show_and_keep, target};
use crate::web;

/// Tests that ran.
#[derive(Clone, Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    /// What was said of those that failed.
    failures: Vec<String>,
}

/// The most lines of a stage's failures that are shown again at the end.
const MOST_LINES_SAID: usize = 100;

/// How much of everything is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What `.ci/run` calls.
    Quick,
    /// Everything: every client, program and machine that is tried, and the long tables of tests.
    All,
}

struct Stage {
    name: &'static str,
    /// Whether it is part of [`Extent::Quick`].
    is_quick: bool,
    /// Whether [`Extent::Quick`] runs it beside the tests: it computes little and waits much.
    is_beside_tests: bool,
    run: fn(Extent) -> Result<Counts, String>,
}

const fn quick(name: &'static str, run: fn(Extent) -> Result<Counts, String>) -> Stage {
    Stage { name, is_quick: true, is_beside_tests: false, run }
}

const fn beside(name: &'static str, run: fn(Extent) -> Result<Counts, String>) -> Stage {
    Stage { name, is_quick: true, is_beside_tests: true, run }
}

const fn long(name: &'static str, run: fn(Extent) -> Result<Counts, String>) -> Stage {
    Stage { name, is_quick: false, is_beside_tests: false, run }
}

const STAGES: [Stage; 23] = [
    quick("fmt", format),
    quick("build", build),
    quick("tests", tests),
    beside("clients", clients),
    beside("web", pages),
    beside("install", install_script),
    quick("targets", targets),
    long("arm", emulated),
    long("loom", pool),
    long("planted", planted_bugs),
    long("hostile", hostile_sample),
    long("docs", docs),
    long("schema", schemas),
    long("prometheus", metrics),
    long("kubernetes", manifests),
    long("crosscheck", load_generators),
    long("python", package),
    long("deny", deny),
    long("dist", distribution),
    long("routers", routers),
    long("dynamo", dynamo),
    long("real", real_models),
    long("soak", soak),
];

/// The names of the stages, those of a quick run first.
pub(crate) fn stages() -> String {
    STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>().join(" ")
}

/// Runs the stages of an extent, or one stage as `--all` has it. Ends with what failed and why, one line per stage and
/// `N passed, N failed`.
pub(crate) fn run(extent: Extent, only: Option<&str>) -> Result<(), String> {
    let is_wanted = |stage: &&Stage| only.map_or(stage.is_quick || extent == Extent::All, |only| only == stage.name);
    let stages: Vec<&Stage> = STAGES.iter().filter(is_wanted).collect();
    if stages.is_empty() {
        return Err(format!("no such stage; there are {}", self::stages()));
    }
    let begin = Instant::now();
    setup::system()?;
    if only.is_none() {
        setup::ahead(extent);
    }
    let is_beside = |stage: &&Stage| stage.is_beside_tests && extent == Extent::Quick;
    let (beside, in_turn): (Vec<&Stage>, Vec<&Stage>) = stages.into_iter().partition(is_beside);
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        let mut waiting = Some(beside);
        let mut started = None;
        let mut ended = Vec::new();
        for stage in in_turn {
            if stage.name == "tests" {
                let beside = waiting.take().unwrap_or_default();
                started = Some(scope.spawn(move || run_in_turn(&beside, extent)));
            }
            ended.push(run_stage(stage, extent));
        }
        ended.extend(started.into_iter().flat_map(|beside| beside.join().expect("a stage does not panic")));
        ended
    });
    let mut total = Counts::default();
    let mut report = Vec::new();
    for Ended { line, counts } in ended {
        report.push(line);
        total.add(counts);
    }
    for line in &total.failures {
        println!("{line}");
    }
    report.push(format!("{:<10} {:>6.0} s", "all", begin.elapsed().as_secs_f64()));
    println!("\n{}\n{} passed, {} failed", report.join("\n"), total.passed, total.failed);
    if total.failed == 0 { Ok(()) } else { Err("not everything passed".into()) }
}

/// A stage that has been run.
struct Ended {
    /// Its name, its time and how it ended.
    line: String,
    counts: Counts,
}

fn run_in_turn(stages: &[&Stage], extent: Extent) -> Vec<Ended> {
    stages.iter().map(|stage| run_stage(stage, extent)).collect()
}

fn run_stage(stage: &Stage, extent: Extent) -> Ended {
    println!("\n==> {}", stage.name);
    let start = Instant::now();
    let result = (stage.run)(extent);
    let seconds = start.elapsed().as_secs_f64();
    let verdict = match &result {
        Ok(Counts { failed: 0, passed: 0, .. }) => "ok".to_string(),
        Ok(Counts { failed: 0, passed, .. }) => format!("ok, {passed} passed"),
        Ok(Counts { failed, passed, .. }) => format!("FAILED, {passed} passed, {failed} failed"),
        Err(message) => format!("FAILED: {message}"),
    };
    let line = format!("{:<10} {seconds:>6.0} s  {verdict}", stage.name);
    Ended { line, counts: result.unwrap_or(Counts { failed: 1, ..Counts::default() }) }
}

/// Compiles and lints the binary and every test at once: one set of features, so each dependency is compiled once, and no
/// crate waits for a link. The Python package too, whose tests have a stage of their own: it is compiled with every change.
const WORKSPACE: [&str; 3] = ["--profile", "ci", "--workspace"];

/// All that is built.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// What has tests: what `--lib` and `--bins` name is linked as a test even if its manifest says that it has none.
const TESTED: [&str; 1] = ["--tests"];

/// [`Extent::All`] has the example too, which sets the simulator beside measurements of others.
fn build(extent: Extent) -> Result<Counts, String> {
    let examples: &[&str] = if extent == Extent::All { &["--examples"] } else { &[] };
    show(&mut linted(&[&["build", "--quiet"], &WORKSPACE[..], &TARGETS, examples].concat()))?;
    Ok(Counts::default())
}

/// Cargo with clippy's driver in the compiler's place, and warnings as errors. `cargo clippy` calls it so too, to check
/// what was compiled already, and all dependencies, once more: a quarter of the time of this build.
fn linted(arguments: &[&str]) -> Command {
    let mut cargo = cargo(arguments);
    lint(&mut cargo);
    cargo
}

/// Has what calls cargo lint the workspace's crates, by the variables that [`linted`] builds have: crates that both want
/// with the same features are compiled once.
pub(crate) fn lint(cargo: &mut Command) {
    let beside = std::env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name("clippy-driver"));
    let driver = beside.filter(|driver| driver.exists()).unwrap_or_else(|| "clippy-driver".into());
    let separator = "__CLIPPY_HACKERY__";
    cargo.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", format!("-D{separator}warnings{separator}"));
}

fn format(_: Extent) -> Result<Counts, String> {
    show(&mut cargo(&["fmt", "--all", "--check"]))?;
    Ok(Counts::default())
}

/// Machines that no test runs on: see [`checks::targets`].
fn targets(extent: Extent) -> Result<Counts, String> {
    checks::targets(extent == Extent::Quick)?;
    Ok(Counts::default())
}

/// The kernels of AArch64, emulated: see [`arm::runs`].
fn emulated(_: Extent) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for mut run in arm::runs() {
        counts.add(count(&mut run)?);
    }
    Ok(counts)
}

/// The pool of threads in every order: see [`checks::loom`].
fn pool(_: Extent) -> Result<Counts, String> {
    count(&mut checks::loom())
}

/// Unit, integration and end-to-end tests. The end-to-end tests run the binary; the documentation has programs in Python.
/// The long tables of tests, and a real checkpoint where it can be downloaded, are for [`Extent::All`].
fn tests(extent: Extent) -> Result<Counts, String> {
    let python = setup::client_python()?;
    build(extent)?;
    let mut run = if answers("cargo-nextest", &["nextest", "--version"]) {
        let flags = ["--no-fail-fast", "--status-level", "slow", "--final-status-level", "fail"];
        let ignored = if extent == Extent::All { "all" } else { "default" };
        let mut run = linted(&[&["nextest", "run", "--cargo-profile"], &WORKSPACE[1..], &TESTED, &flags].concat());
        run.args(["--run-ignored", ignored]);
        run
    } else {
        let mut run = linted(&[&["test", "--no-fail-fast"], &WORKSPACE[..], &TESTED].concat());
        if extent == Extent::All {
            run.args(["--", "--include-ignored"]);
        }
        run
    };
    run.env("TWOSTROKE_BINARY", binary()).env("TWOSTROKE_TESTS_CACHE", measured_machine()?);
    setup::gpu()?;
    setup::glslang()?;
    run.envs(setup::browsers_gpu().map(|driver| ("VK_ADD_DRIVER_FILES", driver)));
    if extent == Extent::All {
        run.env("TWOSTROKE_LONG_TESTS", "1");
        if let Some(file) = setup::smollm2(&python)? {
            run.env("TWOSTROKE_SMOLLM2", file);
        }
        if let Some(directory) = setup::minilm(&python)? {
            run.env("TWOSTROKE_MINILM", directory);
        }
    }
    count(run.env("TWOSTROKE_PYTHON", python))
}

/// What the commonest servers of tests have beside `--port 0 --json`.
const COMMON_SERVERS: [&[&str]; 3] = [
    &[],
    &["-t", "1"],
    &["-t", "1", "--max-model-len", "2048", "--kv-cache-memory-bytes", "64MiB", "--speculate", "off"],
];

/// The directory of what servers measure of the machine, for this run alone, so that no run steers another. The first
/// call starts each of the commonest servers once, and every other waits: among tests a server measures the machine badly,
/// for long, and at each start again.
fn measured_machine() -> Result<&'static Path, String> {
    static MEASURED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let measure = || {
        let cache = target().join("tests-cache");
        let _ = fs::remove_dir_all(&cache); // nothing to remove the first time
        for flags in COMMON_SERVERS {
            let flags: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
            Server::start(&flags, Some(&cache))?;
        }
        Ok(cache)
    };
    MEASURED.get_or_init(measure).as_deref().map_err(Clone::clone)
}

/// A copy of the scheduler with bugs planted into it: each must be found.
fn planted_bugs(_: Extent) -> Result<Counts, String> {
    count(&mut planted::search()?)
}

/// Bad files, bad requests and faults of the process, a sample: every case that was built by hand and some mutations.
fn hostile_sample(_: Extent) -> Result<Counts, String> {
    build(Extent::Quick)?;
    count(&mut hostile::sample(&binary())?)
}

/// The code's own documentation: links that lead nowhere are errors, and examples are run.
fn docs(_: Extent) -> Result<Counts, String> {
    let doc = ["doc", "--quiet", "--release", "--workspace", "--no-deps", "--document-private-items"];
    show(cargo(&doc).env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))?;
    println!("book: {} links lead somewhere", book::check()?);
    count(&mut cargo(&["test", "--quiet", "--release", "--workspace", "--doc"]))
}

/// The clients that people use, against the real server with the built-in model: `tests/clients`. OpenAI's own in a
/// quick run.
fn clients(extent: Extent) -> Result<Counts, String> {
    let official = setup::client_python()?;
    build(extent)?;
    let batches = target().join("client-batches");
    let server = Server::start(&["--batch-dir".as_ref(), batches.as_os_str()], Some(measured_machine()?))?;
    let run = |python: &PathBuf, client: &str| {
        let test = root().join(format!("tests/clients/test_{client}.py"));
        count(command(python, &["-B"]).arg(test).arg(server.url()))
    };
    let mut counts = run(&official, "openai")?;
    if extent == Extent::Quick {
        return Ok(counts);
    }
    for client in ["anthropic", "ollama", "methods"] {
        counts.add(run(&official, client)?);
    }
    let frameworks = setup::frameworks_python()?;
    for client in ["langchain", "llama_index", "litellm"] {
        counts.add(run(&frameworks, client)?);
    }
    let path = setup::node()?;
    let tests = setup::client_node(&path)?.join("run.mjs");
    counts.add(count(command("node", &[tests]).arg(server.url()).env("PATH", path))?);
    Ok(counts)
}

/// The Python package: its wheel, built with the dependencies that the stages before have compiled, in an environment that
/// has nothing else and in one that has what users have beside it: `tests/python`.
fn package(_: Extent) -> Result<Counts, String> {
    let python = setup::package_python()?;
    build(Extent::Quick)?;
    let wheel = setup::wheel(&python)?;
    let bare = setup::bare_python(&python, &wheel)?;
    setup::install_wheel(&python, &wheel)?;
    let mut counts = Counts::default();
    for (python, test) in
        [(&bare, "bare"), (&python, "llm"), (&python, "errors"), (&python, "command"), (&python, "dynamo")]
    {
        let test = root().join(format!("tests/python/test_{test}.py"));
        let mut tests = command(python, &["-B"]);
        tests.arg(test).env("TWOSTROKE_BINARY", binary()).env("XDG_CACHE_HOME", target().join("python-cache"));
        counts.add(count(tests.env("HF_HUB_OFFLINE", "1"))?);
    }
    Ok(counts)
}

/// Tests in the browser that a quick run has: each page is opened and used once.
const QUICK_PAGES: &str = "every page on a phone|a chat: the answer streams";

/// The pages: that what is committed is what `web/` builds, and in a real browser against real servers.
fn pages(extent: Extent) -> Result<Counts, String> {
    let browser = setup::browser()?;
    web::check_committed()?;
    build(Extent::Quick)?;
    let mut tests = web::browser_tests(&binary(), &browser)?;
    tests.env("XDG_CACHE_HOME", measured_machine()?);
    match extent {
        Extent::Quick => _ = tests.arg(QUICK_PAGES),
        Extent::All => setup::programs(&[("firefox-esr", "firefox-esr")]), // the pages in another browser
    }
    count(&mut tests)
}

/// Metrics, rules and the board, read by Prometheus itself.
fn metrics(_: Extent) -> Result<Counts, String> {
    build(Extent::Quick)?;
    count(&mut prometheus::tests(&binary())?)
}

/// What lies in deploy/ for Kubernetes, against its schemas and the server's flags.
fn manifests(_: Extent) -> Result<Counts, String> {
    build(Extent::Quick)?;
    let mut check = command(setup::manifests_python()?, &["-B"]);
    check.arg(root().join("tests/kubernetes/check.py")).arg(binary());
    count(&mut check)
}

/// guidellm and aiperf beside bench-serve: the same counts, and figures that mean what they should.
fn load_generators(_: Extent) -> Result<Counts, String> {
    build(Extent::Quick)?;
    count(&mut crosscheck::tests(&binary())?)
}

/// The document of the API, by Schemathesis.
fn schemas(_: Extent) -> Result<Counts, String> {
    schema(60)?;
    Ok(Counts::default())
}

/// vllm-router over workers of ours.
fn routers(_: Extent) -> Result<Counts, String> {
    crate::routers::run()?;
    Ok(Counts::default())
}

/// NVIDIA Dynamo over workers of ours.
fn dynamo(_: Extent) -> Result<Counts, String> {
    crate::dynamo::run()?;
    Ok(Counts::default())
}

/// The script that installs, its service's unit: without a network and what is built.
fn install_script(_: Extent) -> Result<Counts, String> {
    // What is still missing then is skipped by name.
    setup::programs(&[("curl", "curl"), ("busybox", "busybox")]);
    count(command("python3", &["-B"]).arg(root().join("tests/dist/install.py")))
}

/// What people install without cargo, made twice and installed.
fn distribution(_: Extent) -> Result<Counts, String> {
    count(&mut dist::check(None)?)
}

/// What narrow weights cost on real checkpoints.
fn real_models(_: Extent) -> Result<Counts, String> {
    crate::real::run(None)?;
    Ok(Counts::default())
}

/// Ten minutes under clients of every kind; `cargo xtask soak` takes an hour.
fn soak(_: Extent) -> Result<Counts, String> {
    hostile::run("soak", &["--minutes", "10"])?;
    Ok(Counts::default())
}

/// Coding agents, with a model of random weights that has room for what they send.
pub(crate) fn agents() -> Result<(), String> {
    setup::system()?;
    let (python, path) = (setup::client_python()?, setup::node()?);
    let directory = setup::agents(&path)?;
    let model = target().join("models/long");
    random_model::write("long", &model)?;
    build(Extent::Quick)?;
    let server = Server::start(&["-m".as_ref(), model.as_os_str()], None)?;
    let mut tests = command(python, &["-B"]);
    tests.arg(root().join("tests/clients/test_agents.py")).arg(server.url());
    show(tests.current_dir(directory).env("PATH", path)).map_err(|_| "an agent did not end well".to_owned())
}

/// What the document of the API says against the server, by Schemathesis: `examples` bodies for each operation beside
/// those at the borders of its types.
pub(crate) fn schema(examples: u32) -> Result<(), String> {
    setup::system()?;
    let schemathesis = setup::schemathesis()?;
    build(Extent::Quick)?;
    let batches = target().join("schema-batches");
    let _ = fs::remove_dir_all(&batches); // nothing to remove the first time
    let flags = ["--max-model-len", "256", "--allow-runtime-lora", "--batch-dir"].map(OsStr::new);
    let server = Server::start(&[&flags[..], &[batches.as_os_str()]].concat(), None)?;
    let directory = root().join("tests/schema");
    let mut run = command(&schemathesis, &["--config-file"]);
    run.arg(directory.join("schemathesis.toml")).args(["run", &format!("{}/openapi.json", server.url())]);
    // The page's feed never ends, and a paused engine answers no request.
    run.args(["--exclude-path-regex", "/live/", "--max-examples", &examples.to_string()]);
    // It keeps what it has found beside where it was called.
    run.current_dir(target()).env("PYTHONPATH", &directory);
    show(&mut run).map_err(|_| "the server does not do what its document says".to_owned())
}

/// How fast the server is by bench-serve, guidellm and aiperf.
pub(crate) fn crosscheck(rounds: u32) -> Result<(), String> {
    build(Extent::Quick)?;
    crosscheck::compare(&binary(), rounds)
}

/// Licences, sources and bans always; known vulnerabilities when their database can be fetched. And the locks of the
/// workspaces that no other stage builds.
fn deny(_: Extent) -> Result<Counts, String> {
    for apart in ["guards", "fuzz"] {
        let manifest = format!("{apart}/Cargo.toml");
        let mut metadata = cargo(&["metadata", "--locked", "--format-version", "1", "--manifest-path", &manifest]);
        let output =
            metadata.stdout(Stdio::piped()).stderr(Stdio::piped()).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{apart}/Cargo.lock:\n{}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    let deny = setup::cargo_deny()?;
    show(&mut command(&deny, &["--log-level", "error", "check", "bans", "licenses", "sources"]))?;
    let mut advisories = Command::new("timeout");
    advisories.arg("120").arg(&deny).args(["--log-level", "error", "check", "advisories"]);
    let output = advisories.current_dir(root()).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("advisories ok");
    } else if text.contains("failed to fetch advisory database") || output.status.code() == Some(124) {
        println!("advisories not checked: their database cannot be fetched from here");
    } else {
        return Err(format!("advisories:\n{text}"));
    }
    Ok(Counts::default())
}

/// Writes `docs/reference/flags.md` as the binary prints it.
pub(crate) fn write_reference() -> Result<(), String> {
    build(Extent::Quick)?;
    for (verb, page) in [("flag-reference", "flags.md"), ("api-reference", "api.md")] {
        let output = Command::new(binary()).arg(verb).output().map_err(|error| error.to_string())?;
        let path = root().join("docs/reference").join(page);
        fs::write(&path, output.stdout).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn binary() -> PathBuf {
    target().join("ci/twostroke")
}

/// The built server on a free port, of the built-in model unless flags say otherwise; stopped when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts it and waits until it says where it listens: it does so once it can answer. `cache`: where it keeps what it
    /// measures, if not at the user's place.
    fn start(flags: &[&OsStr], cache: Option<&Path>) -> Result<Server, String> {
        let mut command = Command::new(binary());
        command.args(["serve", "--port", "0", "--json"]).args(flags).stdin(Stdio::null()).stdout(Stdio::piped());
        command.envs(cache.map(|cache| ("XDG_CACHE_HOME", cache)));
        let child = command.spawn().map_err(|error| format!("{}: {error}", binary().display()))?;
        let mut server = Server { child, port: 0 };
        let mut line = String::new();
        let stdout = server.child.stdout.take().expect("standard output is piped");
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
        server.port = port_in(&line).ok_or_else(|| format!("the server said no port: {line:?}"))?;
        Ok(server)
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// The port in the line that a server prints at its start.
fn port_in(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("\"port\":")?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// Runs a test runner and adds up its closing lines. A runner that failed without one counts as one failure.
fn count(command: &mut Command) -> Result<Counts, String> {
    let (success, lines) = show_and_keep(command)?;
    let mut counts = add_up(&lines);
    if !success && counts.failed == 0 {
        counts.failed = 1;
    }
    if counts.failed > 0 {
        counts.failures = said_of_failures(&lines);
    }
    Ok(counts)
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
    }
}

/// The lines that name a failure or its cause, each with those behind it. Of a runner that names none, the last ones.
fn said_of_failures(lines: &[String]) -> Vec<String> {
    const BEHIND: usize = 12;
    let is_about = |line: &String| {
        let line = line.trim_start();
        let begins =
            ["FAIL", "TIMEOUT", "SIG", "Traceback", "not ok", "error"].iter().any(|word| line.starts_with(word));
        begins || line.contains(" FAILED") || line.contains("panicked at")
    };
    let mut said = Vec::new();
    let mut shown = 0;
    for (index, _) in lines.iter().enumerate().filter(|(_, line)| is_about(line)) {
        let end = (index + 1 + BEHIND).min(lines.len());
        said.extend_from_slice(&lines[index.max(shown).min(end)..end]);
        shown = end;
    }
    if said.is_empty() {
        said.extend_from_slice(&lines[lines.len().saturating_sub(BEHIND)..]);
    }
    said.truncate(MOST_LINES_SAID);
    said
}

/// The sum of the closing lines; nextest's own alone where there is one, for it shows those of failed tests again.
fn add_up(lines: &[String]) -> Counts {
    let is_summary = |line: &&String| line.trim_start().starts_with("Summary [");
    let has_summary = lines.iter().any(|line| is_summary(&line));
    let mut counts = Counts::default();
    for line in lines.iter().filter(|line| is_closing_line(line) && (!has_summary || is_summary(line))) {
        counts.passed += number_before(line, "passed");
        counts.failed += number_before(line, "failed");
    }
    counts
}

/// Of nextest, of cargo test, or the plain `12 passed, 0 failed`.
fn is_closing_line(line: &str) -> bool {
    let line = line.trim_start();
    let words: Vec<&str> = line.split_whitespace().collect();
    let plain = matches!(words[..], [_, "passed,", _, "failed"]);
    line.starts_with("Summary [") || line.starts_with("test result:") || plain
}

/// `12 passed` gives 12.
fn number_before(line: &str, word: &str) -> usize {
    let words: Vec<&str> = line.split([' ', ';', ',', '.']).filter(|word| !word.is_empty()).collect();
    let pair = words.windows(2).find(|pair| pair[1] == word);
    pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let table = [
            ("     Summary [   0.012s] 12 tests run: 11 passed, 1 failed, 0 skipped", Some((11, 1))),
            (
                "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
                Some((5, 0)),
            ),
            ("24 passed, 1 failed", Some((24, 1))),
            ("        PASS [   0.005s] scheduler tests::all_passed", None),
            ("test all_passed ... ok", None),
        ];
        for (line, want) in table {
            let got = is_closing_line(line).then(|| (number_before(line, "passed"), number_before(line, "failed")));
            assert_eq!(got, want, "{line}");
        }
    }

    #[test]
    fn a_server_says_its_port() {
        assert_eq!(port_in(r#"{"url":"http://127.0.0.1:8123","port":8123}"#), Some(8123));
        assert_eq!(port_in(r#"{"port": 81, "x": 1}"#), Some(81));
        assert_eq!(port_in("nothing"), None);
    }

    #[test]
    fn what_failed_and_why_is_said_again() {
        let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
        let nextest = lines(
            "        PASS [   0.005s] engine a\n        FAIL [   0.005s] engine b\nthread 'b' panicked at b.rs:1:1:\nleft: 1",
        );
        assert_eq!(said_of_failures(&nextest), nextest[1..]);
        let plain = lines("ok  a\nlast words");
        assert_eq!(said_of_failures(&plain), plain);
        let many: Vec<String> = (0..1000).map(|line| format!("FAIL {line}")).collect();
        assert_eq!(said_of_failures(&many), many[..MOST_LINES_SAID]);
    }

    #[test]
    fn a_failure_that_nextest_shows_again_counts_once() {
        let lines = [
            "    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 27 filtered out; finished in 0.62s",
            "     Summary [  85.507s] 357 tests run: 356 passed, 1 failed, 0 skipped",
        ];
        let counts = add_up(&lines.map(String::from));
        assert_eq!((counts.passed, counts.failed), (356, 1));
    }
}
