//! The `twostroke` command: flags in, one command run, an exit code out. A library, so that there is one code path for
//! the program (`main.rs`) and for programs that embed the command, as the Python package does.
//!
//! ```text
//! arguments --main--> flags --typed--> commands/*.rs --> launch, server, model, kernels, sim, plan, bench
//! options ---start------^       ^
//! environment ------------------+    (the only crate that reads the environment)
//! ```
//! Exit codes: 0 done, 1 it did not work out, 2 a wrong flag, value or file (one line says which), 101 a bug, 130
//! Ctrl-C or a terminal that is gone. Answers and figures go to standard output, everything else to standard error.

mod commands;
mod config;
mod console;
mod embedded;
mod environment;
mod failure;
mod figures;
mod flags;
mod forecast;
mod kept;
mod keys;
mod log;
mod models;
mod narrower;
mod notify;
mod outputs;
mod shapes;
mod signals;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use crate::flags::{Cli, Command};

pub use embedded::{ENGINE_OPTIONS, Embedded, hint, shown_tokens, start, stop};
pub use environment::started_by;
pub use failure::Failure;

/// Runs the command that the arguments name, the first of which is the program's own name. Returns the exit code.
///
/// Once in the life of a process: a command may set limits on it, listen for its signals and write to its streams.
pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    // A process that an engine is embedded in keeps its own ways with memory.
    kernels::memory_limits::bound_heaps();
    if let Err(failure) = settle_in() {
        return failure.report();
    }
    signals::end_the_first_process();
    let arguments: Vec<OsString> = arguments.collect();
    let run = || {
        let ended = match environment::completing() {
            Some(shell) => commands::completions::answer(&shell, &arguments),
            None => parse_and_run(arguments.iter().cloned()),
        };
        ended.map_or_else(Failure::report, |()| 0)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("main".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, run) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => run(),
        }
    })
}

/// Stack of the thread that runs a command: the first one's may be small (`ulimit -s`), and reading flags takes much.
const STACK_BYTES: usize = 8 << 20;

fn parse_and_run(arguments: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let (mut arguments, of_file) = config::arguments(arguments)?;
    // As other programs have it.
    if let [_, verb] = &mut arguments[..]
        && (verb == "version" || verb == "-v")
    {
        *verb = "--version".into();
    }
    let verb = arguments.get(1).and_then(|verb| verb.to_str()).unwrap_or_default().to_owned();
    if verb == "serve" {
        flags::take_hinted(&mut arguments).iter().for_each(|line| console::note(line));
    }
    // `-mm FILE` is no model `m`, and `-hf NAME` no call for help.
    let texts = arguments.iter().map(|argument| argument.to_string_lossy().into_owned());
    if let Some((flag, hint)) = flags::hint_for_short(texts).filter(|_| ["serve", "run"].contains(&&*verb)) {
        return Err(Failure::Usage(format!("unexpected argument '{flag}' found: {hint}")));
    }
    let parsed = Cli::command().try_get_matches_from(&arguments);
    match parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches))) {
        Ok((cli, matches)) => match flags::unused(&matches) {
            Some(problem) => Err(Failure::Usage(problem)),
            None => run(&cli.command),
        },
        Err(error) => failure::from_clap(&error, &arguments).map_err(|failure| of_file.blamed(failure)),
    }
}

/// What every way in needs of the process.
fn settle_in() -> Result<(), Failure> {
    kernels::memory_limits::spare_address_space();
    kernels::memory_limits::survive_file_size_limit();
    failure::install_panic_hook();
    failure::check_room()
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        // Its standard error is not read.
        Command::RenderTemplates => {}
        Command::Serve(_) => environment::start_logging("info", false),
        _ => environment::start_logging("warn", true),
    }
    match command {
        Command::Run(flags) => commands::run::run(flags),
        Command::Serve(flags) => commands::serve::serve(flags),
        Command::Batch(flags) => commands::batch::batch(flags),
        Command::Bench(flags) => commands::bench::bench(flags),
        Command::BenchServe(flags) => commands::bench_serve::bench_serve(flags),
        Command::Quality(flags) => commands::quality::quality(flags),
        Command::Quantize(flags) => commands::quantize::quantize(flags),
        Command::Plan(flags) => commands::plan::plan(flags),
        Command::Lab(flags) => commands::lab::lab(flags),
        Command::Sim(flags) => commands::sim::sim(flags),
        Command::Doctor(flags) => commands::doctor::doctor(flags),
        Command::Replay(flags) => commands::replay::again(flags),
        Command::Verify(flags) => commands::verify::verify(flags),
        Command::Whatif(flags) => commands::whatif::ask(flags),
        Command::Top(flags) => commands::top::top(flags),
        Command::Why(flags) => commands::why::why(flags),
        Command::Pull(flags) => commands::kept::pull(flags),
        Command::List(flags) => commands::kept::list(flags),
        Command::Show(flags) => commands::kept::show(flags),
        Command::Rm(flags) => commands::kept::remove(flags),
        Command::Ps(flags) => commands::ps::list(flags),
        Command::Stop(flags) => commands::ps::stop(flags),
        Command::Completions(flags) => commands::completions::script(flags),
        Command::ManPages { directory } => commands::man_pages::write(directory),
        Command::FlagReference => commands::reference::print(),
        Command::ApiReference => console::put(&server::api_reference()),
        Command::RenderTemplates => commands::render_templates::render(),
    }
}
