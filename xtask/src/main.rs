//! Developer commands: `cargo xtask <command>`. Standard library only, so that it builds in seconds.
//!
//! ```text
//! test [--all]                set-up, then what every change must pass, or everything; ends with "N passed, N failed"
//! oracle                      rebuild the reference logits with transformers and compare
//! web                         build the pages in web/ into crates/server/ui
//! book                        build docs/ as a book into target/book (mdBook), each link followed
//! count                       how large the tree is, and which files lead in circles
//! reference                   write docs/reference/flags.md and api.md from the flags and routes
//! bits [--write]              what is computed, against the digests and recordings that are committed
//! guards                      count the instructions of the hot operations and hold them against their limits
//! asan                        the kernels' tests under AddressSanitizer
//! loom                        the kernels' pool of threads in every order in which its threads can meet
//! miri                        the kernels' plain paths under Miri
//! fuzz [--seconds N]          readers of strangers' files, texts and requests against what is wrong in one place
//! chaos [--seeds N] ...       the scheduler under seeded chaos, long; and the bugs that it must find
//! planted [BUG]               bugs of real engines, put into a copy of the scheduler: each must be found; a table
//! hostile [--minutes N] ...   bad files, bad requests and faults against the built binary, each with its bounds: a table
//! soak [--minutes N]          a server under sixteen clients of every kind: what grows, what changes
//! schema [--examples N]       the document of the API against the server, by Schemathesis
//! agents                      Codex, Claude Code and opencode against the server
//! dist [--check]              tarballs, packages, image, wheel, formula; or made twice and installed
//! routers                     vllm-router over workers of ours, some of which are killed
//! dynamo                      NVIDIA Dynamo over workers of ours, some of which are killed and drained
//! crosscheck [--rounds N]     how fast the server is by bench-serve, guidellm and aiperf: a table
//! real [--peer DIR]           what narrow weights cost on real checkpoints, each gate held, ik_llama.cpp beside: a table
//! random-model SHAPE DIR      random weights in a real model's shape, for speed measurements without a download
//! ```

mod arm;
mod book;
mod chaos;
mod checks;
mod count;
mod crosscheck;
mod dist;
mod dynamo;
mod hostile;
mod oracle;
mod planted;
mod prometheus;
mod random_model;
mod real;
mod routers;
mod setup;
mod shell;
mod structure;
mod test;
mod web;

// The list of bugs lies beside the tests that must find them.
#[path = "../../crates/scheduler/tests/planted/catalogue.rs"]
mod catalogue;
#[path = "../../crates/scheduler/tests/planted/weave.rs"]
mod weave;

use std::process::ExitCode;

const HELP: &str = "usage: cargo xtask <command>
  test                      set up what the tests need, run what every change must pass: fmt build tests clients web
                            install targets
  test --all                everything: every client and program, long tables of tests, 10 minutes of soak
  test --only STAGE         one stage of it: those above, arm loom planted hostile docs schema prometheus
                            kubernetes crosscheck python deny dist routers dynamo real soak
  oracle                    rebuild the reference logits with transformers and compare
  web                       build the pages in web/ into crates/server/ui
  book                      build docs/ as a book into target/book (mdBook), and follow each of its links
  count                     size and structure of the tree: a table with limits, and circles of files
  reference                 write docs/reference/flags.md and api.md from the flags and routes
  bits [--write]            digests of tokens and logits, and recorded runs, against those that are committed; or write them
  guards                    count instructions of the hot operations (valgrind), hold them against their limits
  asan                      run the kernels' tests under AddressSanitizer (nightly toolchain)
  loom                      run the thread pool of the kernels in every order in which its threads can meet
  miri                      run the plain paths of the kernels under Miri (nightly toolchain)
  fuzz [--seconds N]        fuzz the readers of files, texts, recordings, traces and requests, 60 seconds each
                            (nightly toolchain)
  chaos [--seeds N] [--minutes M] [--from SEED]
                            the scheduler under seeded chaos, each seed twice (20,000 seeds unless told), and the planted
                            bugs that it must find; Ctrl-C ends it and tells what was done
  planted [BUG]             put each bug of crates/scheduler/tests/planted into a copy of the scheduler, and look for it with
                            chaos: a table of how many seeds that takes, and what finds it
  hostile [--minutes N] [--seed S] [--only WORD] [--sample]
                            bad files (mutated and built by hand), bad requests and faults of the process against the built
                            binary, each with a bound of time and memory; prints a table, keeps what failed in
                            target/hostile/failed. --minutes goes on with mutations from further seeds
  soak [--minutes N]        sixteen clients against a server with too small a cache (60 minutes); fails if memory grows, an
                            answer changes, counters disagree or a block stays held
  schema [--examples N]     ask what /openapi.json allows and what it does not (60 bodies for each operation unless told);
                            fails if an answer is not what it says
  agents                    download Codex, Claude Code and opencode (1 GB on disk), ask each something: what they send has
                            to be understood, and the model is a random one
  dist                      what people install without cargo, in target/dist: tarballs and .deb for x86-64 and aarch64,
                            image, wheel, Homebrew formula, install.sh, SHA256SUMS
  dist --check [DIR]        make them twice in the tests' profile, or take those in DIR; install each where nothing else is
                            and ask it; a table of what that took
  routers                   vllm-router over workers of ours: two that read prompts and two that answer, some of which
                            are killed; and two that it finds prefixes in
  dynamo                    NVIDIA Dynamo's frontend and router over workers of ours, two that read prompts and two that
                            answer: 800 requests while workers are killed, restarted and drained; downloads Dynamo and etcd
  crosscheck [--rounds N]   measure the server by bench-serve, guidellm and aiperf in turns (3 rounds), print a table
  real [--peer DIR]         download SmolLM2 and Gemma 3 270M, hold int8, int4, auto and int8 KV against their gates; with
                            DIR, where ik_llama.cpp was built, its quantizations beside; fails if a gate is missed
  random-model SHAPE DIR    random weights in the shape of qwen2.5-0.5b, llama-3.2-1b, mistral-7b, moe-0.8b, 100m, tiny
                            or long (tiny with a context of 131,072 tokens)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test::run(test::Extent::Quick, None),
        ["test", "--all"] => test::run(test::Extent::All, None),
        ["test", "--only", stage] => test::run(test::Extent::All, Some(stage)),
        ["oracle"] => oracle::check(),
        ["web"] => web::build(),
        ["reference"] => test::write_reference(),
        ["bits"] => checks::bits(false),
        ["bits", "--write"] => checks::bits(true),
        ["guards"] => checks::guards(),
        ["asan"] => checks::asan(),
        ["loom"] => shell::show(&mut checks::loom()),
        ["miri"] => checks::miri(),
        ["fuzz"] => checks::fuzz(60),
        ["fuzz", "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) => checks::fuzz(seconds),
            Err(_) => Err(format!("--seconds: {seconds:?} is not a number")),
        },
        ["planted"] => planted::run(None),
        ["planted", bug] => planted::run(Some(bug)),
        ["agents"] => test::agents(),
        ["dynamo"] => dynamo::run(),
        ["dist"] => dist::run(),
        ["dist", "--check"] => dist::check(None).and_then(|mut check| shell::show(&mut check)),
        ["dist", "--check", made] => dist::check(Some(made.as_ref())).and_then(|mut check| shell::show(&mut check)),
        ["routers"] => routers::run(),
        ["schema"] => test::schema(60),
        ["schema", "--examples", examples] => match examples.parse() {
            Ok(examples) => test::schema(examples),
            Err(_) => Err(format!("--examples takes a number, not '{examples}'")),
        },
        ["crosscheck"] => test::crosscheck(3),
        ["crosscheck", "--rounds", rounds] => match rounds.parse() {
            Ok(rounds @ 1..) => test::crosscheck(rounds),
            _ => Err(format!("--rounds: {rounds:?} is not a number of rounds")),
        },
        ["chaos", ref flags @ ..] => chaos::run(flags),
        ["hostile", ref flags @ ..] => hostile::run("hostile", flags),
        ["soak", ref flags @ ..] => hostile::run("soak", flags),
        ["real"] => real::run(None),
        ["real", "--peer", directory] => real::run(Some(directory.as_ref())),
        ["book"] => book::check().map(|links| println!("target/book: {links} links lead somewhere")),
        ["count"] => count::run(),
        ["random-model", shape, directory] => random_model::write(shape, directory.as_ref()),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
