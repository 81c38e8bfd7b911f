//! The chaos tests, long: `crates/scheduler/tests/chaos`, and `crates/engine/src/chaos.rs` above it.
//!
//! ```text
//! planted bugs     a copy of the scheduler with bugs in it: each must be found
//! engine           the engine over a model that fails, for as many seeds: nothing must be found
//! seeds            the scheduler as it is: nothing must be found
//! tokens           a model's answers with drafts of every kind: each bit as without
//! ```

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::planted;
use crate::shell::{cargo, show};

/// Seeds unless told otherwise: a nightly run.
const SEEDS: u64 = 20_000;
/// Searches for each planted bug, and seeds of one search at most.
const TRIALS: u64 = 15;
const BUDGET: u64 = 5000;
/// Tokens of answers with drafts that are compared with those without.
const TOKENS: u64 = 1_000_000;

/// Finds the planted bugs, then runs as many seeds as the flags say.
pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let mut seeds =
        cargo(&["test", "--quiet", "--release", "--package", "scheduler", "--test", "chaos", "every_output"]);
    seeds.args(["--", "--nocapture"]);
    let mut engine = cargo(&["test", "--quiet", "--release", "--package", "engine", "--lib", "chaos"]);
    engine.args(["--", "--nocapture"]);
    let (mut has_end, mut flags) = (false, flags.iter());
    while let Some(flag) = flags.next() {
        let name = match *flag {
            "--seeds" => "TWOSTROKE_CHAOS_SEEDS",
            "--minutes" => "TWOSTROKE_CHAOS_MINUTES",
            "--from" => "TWOSTROKE_CHAOS_FROM",
            other => return Err(format!("{other:?}: there are --seeds, --minutes and --from")),
        };
        let value = flags.next().ok_or(format!("{flag} wants a number"))?;
        value.parse::<u64>().map_err(|_| format!("{flag}: {value:?} is not a number"))?;
        seeds.env(name, value);
        engine.env(name, value);
        has_end |= *flag != "--from";
    }
    if !has_end {
        seeds.env("TWOSTROKE_CHAOS_SEEDS", SEEDS.to_string());
        engine.env("TWOSTROKE_CHAOS_SEEDS", SEEDS.to_string());
    }
    let mut bugs = planted::search()?;
    bugs.env("TWOSTROKE_CHAOS_TRIALS", TRIALS.to_string()).env("TWOSTROKE_CHAOS_BUDGET", BUDGET.to_string());
    watch(&mut bugs)?;
    watch(&mut engine)?;
    watch(&mut seeds)?;
    let mut tokens = cargo(&["test", "--quiet", "--release", "--package", "engine", "--test", "it", "no_bit"]);
    show(tokens.args(["--", "--nocapture"]).env("TWOSTROKE_CHAOS_TOKENS", TOKENS.to_string()))
}

/// Runs in a process group of its own: Ctrl-C ends this program alone, its end of the pipe closes, and the test, which
/// watches that, stops at the next seed and tells what was done.
fn watch(command: &mut Command) -> Result<(), String> {
    command.env("TWOSTROKE_CHAOS_WATCHED", "1").process_group(0).stdin(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cargo: {error}"))?;
    let stdin = child.stdin.take();
    let status = child.wait().map_err(|error| format!("cargo: {error}"))?;
    drop(stdin);
    if status.success() { Ok(()) } else { Err("something was found".into()) }
}
