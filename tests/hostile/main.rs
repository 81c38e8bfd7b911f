//! `cargo xtask hostile`: everything bad that a stranger can hand to the built binary, and what must come of it.
//!
//! ```text
//! base.rs      good files, committed or made by the program itself
//!    |
//!    +-- weights, texts, settings, kept, logs     bad files: built by hand, and mutated from seeds     two at a time
//!    +-- requests                                 bad requests to a server of two keys, with canaries  one at a time
//!    +-- faults                                   signals, full disks, limits, pipes                   one at a time
//!    v
//! case.rs      a bound of time and memory, a verdict   child.rs   one run, measured
//!    v
//! a table: tried, failed, skipped, the worst of each family; a line per failure with seed and the place of its files
//! ```
//!
//! Rows are those of docs/faults.md, as in `crates/server/tests/http`; "found once" are defects that there were. The
//! promise: any bytes as a file are one clear error or an answer, in less than a second and 300 MiB; any bytes on the
//! port hurt no other client.

mod base;
mod case;
mod child;
mod faults;
mod http;
mod kept;
mod logs;
mod requests;
mod settings;
mod texts;
mod weights;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Base;
use case::{Case, Outcome, Scratch, Spent};

const HELP: &str = "usage: hostile [--sample] [--minutes N] [--seed S] [--only WORD]
  --sample      fewer mutations, for the test command
  --minutes N   after the first round, more mutations until N minutes are over
  --seed S      mutations begin at this seed (0)
  --only WORD   cases whose family or name has this word";
/// Seeds of one round. Each is about seven files.
const ROUND: u64 = 150;
const SAMPLE: u64 = 24;
/// A case that takes longer is named, so that the suite does not seem to hang.
const SLOW: Duration = Duration::from_secs(5);
/// Children at a time.
const WORKERS: usize = 2;

#[derive(Default)]
struct Flags {
    sample: bool,
    minutes: u64,
    seed: u64,
    only: Option<String>,
}

fn flags(arguments: &[OsString]) -> Option<Flags> {
    let mut flags = Flags::default();
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        match word.as_ref() {
            "--sample" => flags.sample = true,
            "--minutes" => flags.minutes = words.next()?.parse().ok()?,
            "--seed" => flags.seed = words.next()?.parse().ok()?,
            "--only" => flags.only = Some(words.next()?.into_owned()),
            _ => return None,
        }
    }
    Some(flags)
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|word| word == "--measure") {
        return child::measure(&arguments[1..]);
    }
    let Some(flags) = flags(&arguments) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let place = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| tests::root().join("target"), PathBuf::from);
    let place = place.join("hostile");
    let begin = Instant::now();
    let base = Arc::new(Base::make(&Scratch::new(place.join("base"))));
    let mut suite = Suite { place, only: flags.only, results: Mutex::default() };
    let _ = fs::remove_dir_all(suite.place.join("failed")); // of an earlier run

    let round = if flags.sample { SAMPLE } else { ROUND };
    suite.several(built(&base));
    suite.several(mutated(&base, flags.seed..flags.seed + round));
    suite.one_by_one(requests::cases(flags.sample));
    suite.one_by_one(faults::cases(&base));
    let mut next = flags.seed + round;
    while begin.elapsed() < Duration::from_secs(60 * flags.minutes) {
        suite.several(mutated(&base, next..next + SAMPLE));
        next += SAMPLE;
    }
    suite.tell(begin.elapsed(), next)
}

/// Bad files, built by hand.
fn built(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = weights::built_safetensors(base);
    cases.extend(weights::built_gguf(base));
    cases.extend(texts::built_tokenizers(base));
    cases.extend(texts::built_templates(base));
    cases.extend(settings::built(base));
    cases.extend(settings::built_shards(base));
    cases.extend(settings::built_hub(base));
    cases.extend(kept::built(base));
    cases.extend(logs::built_recordings(base));
    cases.extend(logs::built_traces());
    cases.extend(logs::built_numbers());
    cases
}

/// Bad files from seeds.
fn mutated(base: &Arc<Base>, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut cases = weights::mutated(base, seeds.clone());
    cases.extend(texts::mutated(base, seeds.clone()));
    cases.extend(settings::mutated(base, seeds.clone()));
    cases.extend(kept::mutated(base, seeds.clone()));
    cases.extend(logs::mutated(base, seeds));
    cases
}

/// Runs cases and keeps what came of them.
struct Suite {
    place: PathBuf,
    only: Option<String>,
    results: Mutex<Vec<Result1>>,
}

struct Result1 {
    family: &'static str,
    name: String,
    seed: Option<u64>,
    kept: Option<PathBuf>,
    outcome: Outcome,
}

impl Suite {
    fn wanted(&self, case: &Case) -> bool {
        self.only.as_ref().is_none_or(|word| case.to_string().contains(word.as_str()))
    }

    fn several(&mut self, cases: Vec<Case>) {
        let cases: Vec<Case> = cases.into_iter().filter(|case| self.wanted(case)).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.run(case);
                    }
                });
            }
        });
    }

    fn one_by_one(&mut self, cases: Vec<Case>) {
        for case in cases.into_iter().filter(|case| self.wanted(case)) {
            self.run(&case);
        }
    }

    fn run(&self, case: &Case) {
        let name: String = case.to_string().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name: String = name.chars().take(100).collect();
        let work = self.place.join("work").join(&name);
        let begin = Instant::now();
        let scratch = Scratch::new(work.clone());
        // A case that the suite itself cannot carry out, because a server does not even start, is one that failed.
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.check)(&scratch)));
        let outcome = outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map_or("it cannot be carried out", String::as_str);
            Outcome::Failed(text.to_owned(), Spent { wall: begin.elapsed(), ..Spent::default() })
        });
        let mut kept = None;
        if let Outcome::Failed(why, spent) = &outcome {
            let failed = self.place.join("failed").join(&name);
            let moved = fs::create_dir_all(self.place.join("failed")).and_then(|()| fs::rename(&work, &failed));
            kept = moved.is_ok().then_some(failed);
            let Spent { cpu, wall, mib } = spent;
            println!(
                "FAILED {case}\n       {why}\n       {:.1} s, {:.1} s of processor time, {mib} MiB",
                wall.as_secs_f64(),
                cpu.as_secs_f64()
            );
        }
        if begin.elapsed() > SLOW {
            println!("{:>6.1} s {case}", begin.elapsed().as_secs_f64());
        }
        let _ = fs::remove_dir_all(work); // moved, or of no more interest
        let (family, name, seed) = (case.family, case.name.clone(), case.seed);
        self.results.lock().expect("no thread panics with it").push(Result1 { family, name, seed, kept, outcome });
    }

    /// The table, the failures, the line that the test command adds up.
    fn tell(self, took: Duration, next_seed: u64) -> ExitCode {
        let results = self.results.into_inner().expect("no thread panics with it");
        let mut families: BTreeMap<&str, Row> = BTreeMap::new();
        for result in &results {
            families.entry(result.family).or_default().count(result);
        }
        println!(
            "\n{:<14} {:>6} {:>7} {:>8} {:>10} {:>10}",
            "family", "tried", "failed", "skipped", "worst time", "worst mem"
        );
        for (family, row) in &families {
            let Row { tried, failed, skipped, slowest, largest } = row;
            let (seconds, slow) = slowest.as_ref().map_or((0.0, ""), |(time, name)| (time.as_secs_f64(), name));
            let (mib, large) = largest.as_ref().map_or((0, ""), |(mib, name)| (*mib, name));
            println!(
                "{family:<14} {tried:>6} {failed:>7} {skipped:>8} {seconds:>8.2} s {mib:>6} MiB  {} | {}",
                short(slow),
                short(large)
            );
        }
        for result in &results {
            if let Outcome::Skipped(why) = &result.outcome {
                println!("skipped {}: {}: {why}", result.family, result.name);
            }
        }
        let failed: Vec<&Result1> = results.iter().filter(|r| matches!(r.outcome, Outcome::Failed(..))).collect();
        for Result1 { family, name, seed, kept, outcome } in &failed {
            let Outcome::Failed(why, _) = outcome else { continue };
            let again = seed.map(|seed| format!(" --seed {seed}")).unwrap_or_default();
            println!("FAILED {family}: {name}: {why}\n       cargo xtask hostile --only '{family}: {name}'{again}");
            if let Some(kept) = kept {
                println!("       files: {}", kept.display());
            }
        }
        let passed = results.iter().filter(|r| matches!(r.outcome, Outcome::Passed(_))).count();
        println!("{:.0} s; the next seed is {next_seed}", took.as_secs_f64());
        println!("{passed} passed, {} failed", failed.len());
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A family's line.
#[derive(Default)]
struct Row {
    tried: usize,
    failed: usize,
    skipped: usize,
    slowest: Option<(Duration, String)>,
    largest: Option<(u64, String)>,
}

impl Row {
    fn count(&mut self, result: &Result1) {
        let spent = match &result.outcome {
            Outcome::Skipped(_) => {
                self.skipped += 1;
                return;
            }
            Outcome::Failed(_, spent) => {
                self.failed += 1;
                spent
            }
            Outcome::Passed(spent) => spent,
        };
        self.tried += 1;
        let time = if spent.cpu.is_zero() { spent.wall } else { spent.cpu };
        if self.slowest.as_ref().is_none_or(|(slowest, _)| time > *slowest) {
            self.slowest = Some((time, result.name.clone()));
        }
        if self.largest.as_ref().is_none_or(|(largest, _)| spent.mib > *largest) {
            self.largest = Some((spent.mib, result.name.clone()));
        }
    }
}

fn short(name: &str) -> String {
    name.chars().take(48).collect()
}
