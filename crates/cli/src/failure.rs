//! How a command ends when it does not end well: one line on standard error and an exit code, never a backtrace.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use kernels::memory_limits::{self, Headroom, Limit};
use nix::errno::Errno;

use crate::console::note;
use crate::flags;

/// Why a command ended.
#[derive(Debug)]
pub enum Failure {
    /// A flag, a value or a file of the user's is wrong: exit code 2.
    Usage(String),
    /// It was asked rightly and did not work out: exit code 1.
    Failed(String),
    /// The reader of the output went away, as `head` does: not an error of ours.
    OutputClosed,
    /// Ctrl-C or SIGHUP: exit code 130, as shells expect.
    Interrupted,
    /// What had to be said is on the terminal already; only the code is left.
    Said(u8),
}

impl Failure {
    /// A wrong flag, value or file.
    pub(crate) fn usage(what: impl Display) -> Failure {
        Failure::Usage(what.to_string())
    }

    /// Something that did not work out.
    pub(crate) fn failed(what: impl Display) -> Failure {
        Failure::Failed(what.to_string())
    }

    /// Says what there is to say and gives the exit code.
    pub(crate) fn report(self) -> u8 {
        match self {
            Failure::Usage(message) => say(&message, 2),
            Failure::Failed(message) => say(&message, 1),
            Failure::OutputClosed => 0,
            Failure::Interrupted => 130,
            Failure::Said(code) => code,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ if error.raw_os_error() == Some(Errno::EMFILE as i32) => {
                Failure::Failed("too many open files: raise the limit of this process (ulimit -n)".to_string())
            }
            _ => Failure::Failed(format!("output: {error}")),
        }
    }
}

fn say(message: &str, code: u8) -> u8 {
    note(&format!("twostroke: {}", one_line(message)));
    code
}

/// Whatever a message holds, it stays one line of printable text.
fn one_line(message: &str) -> String {
    bench::load::printable(&message.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Bytes that the shortest command needs beside the program itself: its first threads' stacks, flags, the system's own.
const LEAST_ROOM: u64 = 12 << 20;

/// Refuses a limit of address space or data under which the first allocation that fails would be an abort without a
/// reason: most of such a limit is taken by the program's own code.
pub(crate) fn check_room() -> Result<(), Failure> {
    let set = |room: &Headroom| matches!(room.limit, Limit::AddressSpace { .. } | Limit::Data { .. });
    match memory_limits::headrooms().into_iter().filter(set).min_by_key(|room| room.bytes) {
        Some(room) if room.bytes < LEAST_ROOM => Err(Failure::failed(format!(
            "too little memory to start: {} ({}) leaves {} KiB beside the program itself, {} KiB are the least",
            room.limit,
            room.limit.source(),
            room.bytes >> 10,
            LEAST_ROOM >> 10,
        ))),
        _ => Ok(()),
    }
}

/// Clap's answer to the arguments: help and version are printed and are no failure, anything else is one line.
/// `arguments`: those that clap was given, the program's name before them.
pub(crate) fn from_clap(error: &clap::Error, arguments: &[OsString]) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(error.print()?),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.print()?;
            Err(Failure::Said(2))
        }
        _ => {
            let text = |argument: &OsString| argument.to_string_lossy().into_owned();
            Err(of_clap(error, &arguments.iter().map(text).collect::<Vec<_>>()))
        }
    }
}

/// The one line. `arguments`: as for [`from_clap`].
pub(crate) fn of_clap(error: &clap::Error, arguments: &[String]) -> Failure {
    Failure::Usage(message(error, &arguments[1.min(arguments.len())..]))
}

/// Clap's first paragraph and its tip, without colours; or our own hint for a flag or a verb of another engine.
fn message(error: &clap::Error, arguments: &[String]) -> String {
    if let Some((flag, hint)) = flags::hint_for_short(arguments.iter().cloned()) {
        return format!("unexpected argument '{flag}' found: {hint}");
    }
    if let Some(flag) = whole_flag(error, arguments) {
        return format!("unexpected argument '{flag}' found; --help lists what there is");
    }
    // `-m FILE -p TEXT`, as llama-cli has it.
    if arguments.first().is_some_and(|first| first.starts_with('-')) && error.kind() == ErrorKind::UnknownArgument {
        let flag = named(error, ContextKind::InvalidArg).unwrap_or_default();
        return format!(
            "unexpected argument '{flag}' found: a verb comes first, as in twostroke run or twostroke serve"
        );
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(one_line);
    let first = paragraphs.next().unwrap_or_default();
    let mut message = first.trim_start_matches("error: ").to_string();
    let hint = match error.kind() {
        ErrorKind::UnknownArgument => named(error, ContextKind::InvalidArg).and_then(flags::hint),
        ErrorKind::InvalidSubcommand => named(error, ContextKind::InvalidSubcommand).and_then(flags::verb_hint),
        _ => None,
    };
    if let Some(hint) = hint {
        return format!("{message}: {hint}");
    }
    // "to pass '--x' as a value, use '-- --x'" is never what was meant.
    let tips = paragraphs.filter_map(|paragraph| Some(paragraph.strip_prefix("tip: ")?.to_string()));
    for tip in tips.filter(|tip| !tip.starts_with("to pass ") && !is_far_fetched(error)) {
        message.push_str("; ");
        message.push_str(&tip);
    }
    message.push_str("; --help lists what there is");
    message
}

/// The flag as it was typed of which clap names a letter alone: `-ngl`, and not `-n`.
fn whole_flag<'a>(error: &clap::Error, arguments: &'a [String]) -> Option<&'a str> {
    let letter = named(error, ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    if letter.chars().count() != 2 || letter.starts_with("--") {
        return None;
    }
    let flags = arguments.iter().map(String::as_str).take_while(|&argument| argument != "--");
    flags.filter(|&flag| flag != letter).find(|flag| flag.starts_with(letter))
}

fn named(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(name) => Some(name),
        ContextValue::Strings(names) => names.first().map(String::as_str),
        _ => None,
    }
}

/// Whether what clap proposes instead is another word rather than the one that was mistyped: `--block-size` for
/// `--mlock`.
fn is_far_fetched(error: &clap::Error) -> bool {
    let pairs = [
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
    ];
    pairs.into_iter().any(|(invalid, suggested)| match (named(error, invalid), named(error, suggested)) {
        (Some(typed), Some(proposed)) => {
            let name = |word: &str| word.trim_start_matches('-').to_string();
            let (typed, proposed) = (name(typed), name(proposed));
            let begins = typed.len() >= 3 && proposed.starts_with(&typed);
            !begins && strsim::damerau_levenshtein(&typed, &proposed) * 3 > typed.len().max(proposed.len())
        }
        _ => false,
    })
}

/// A panic is a bug of ours: one line that says so and where, instead of a backtrace, and exit code 101 from Rust
/// itself. `RUST_BACKTRACE` still gives the trace.
pub(crate) fn install_panic_hook() {
    let default = std::panic::take_hook();
    let wants_trace = crate::environment::wants_backtrace();
    std::panic::set_hook(Box::new(move |info| {
        // Of a library, on bad input: an error says what is wrong.
        if text::catch_panic::is_caught() {
            return;
        }
        if wants_trace {
            return default(info);
        }
        let payload = info.payload();
        let what = payload.downcast_ref::<&str>().copied();
        let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown");
        let place = info.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let version = env!("CARGO_PKG_VERSION");
        note(&format!(
            "twostroke: this is a bug, please report it with the command you ran: {}{place} (version {version})",
            one_line(what)
        ));
    }));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::flags::Cli;

    use super::*;

    fn line(arguments: &[&str]) -> String {
        let all = ["twostroke"].iter().chain(arguments);
        let error = Cli::try_parse_from(all).expect_err("these arguments are wrong");
        message(&error, &arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_wrong_flag_gives_one_line() {
        let table: &[(&[&str], &str)] = &[
            (&["run", "--temprature", "1"], "--temperature"),
            (&["serve", "--port", "70000"], "70000"),
            (&["serve", "--max-num-seqs", "0"], "must be at least 1"),
            (&["bench", "-o", "xml"], "xml"),
            (&["serve", "--gpu-memory-utilization", "0.9"], "--kv-cache-memory-bytes"),
            (&["serve", "--tensor-parallel-size=2"], "-t sets the threads"),
            (&["serve", "--dtype", "bfloat16"], "--weights"),
            (&["fly"], "fly"),
            // Of llama.cpp, where clap sees a short flag and its value.
            (&["run", "-ngl", "99", "hi"], "this build computes on the CPU"),
            (&["run", "-ngl=99", "hi"], "this build computes on the CPU"),
            (&["serve", "-ngl", "99"], "this build computes on the CPU"),
            (&["serve", "-np", "4"], "--max-num-seqs"),
            (&["serve", "-fa"], "attention is always tiled"),
            (&["serve", "-ub", "512"], "--tpot-slo"),
            (&["serve", "-ctk", "q8_0"], "--kv-dtype"),
            (&["serve", "-tp", "2"], "-t sets the threads"),
            (&["serve", "-xyz", "4"], "'-xyz' found"),
            (&["serve", "-z", "4"], "'-z' found"),
            (&["serve", "-c", "4096", "-ngl", "99"], "'-ngl' found"),
            (&["serve", "--allowed-origins", "x"], "--allowed-origin ORIGIN"),
            (&["run", "--revision", "main"], "ORG/NAME@REVISION"),
            (&["serve", "--tokenizer-revision", "main"], "ORG/NAME@REVISION"),
            (&["serve", "--enable-lora"], "--lora-modules"),
            (&["serve", "--swap-space", "4"], "--kv-swap-memory"),
            (&["run", "--mlock", "hi"], "weights are read into memory"),
            (&["serve", "--log-file", "x"], "2> FILE"),
            (&["chat"], "twostroke run without a prompt is a chat"),
            (&["download", "llama3"], "twostroke pull"),
            (&["rm"], "MODEL"),
            (&["push", "llama3"], "twostroke quantize"),
            (&["cp", "llama3", "mine"], "twostroke quantize"),
            (&["completions", "tcsh"], "tcsh"),
            (&["serve", "--return-tokens-as-token-ids"], "return_tokens_as_token_ids"),
            (&["serve", "--enable-force-include-usage"], "include_usage"),
            (&["serv"], "'serve'"),
            (&["serve", "--max-num-seq", "4"], "--max-num-seqs"),
        ];
        for (arguments, wanted) in table {
            let line = line(arguments);
            assert!(line.contains(wanted), "{arguments:?} gave {line:?}");
            assert!(!line.contains('\n'), "{arguments:?} gave {line:?}");
            assert!(!line.starts_with("error"), "{arguments:?} gave {line:?}");
        }
    }

    #[test]
    fn the_last_of_several_counts() {
        let table: &[&[&str]] = &[
            &["serve", "--max-model-len", "8192", "--max-model-len", "10100"],
            &["serve", "-c", "8192", "--max-model-len=10100", "--json", "--json"],
            &["serve", "-c", "1", "-c", "2", "-c", "10100", "--host", "a", "--host", "127.0.0.1"],
        ];
        for arguments in table {
            let cli = Cli::try_parse_from(["twostroke"].iter().chain(*arguments));
            let cli = cli.unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
            let flags::Command::Serve(flags) = cli.command else { panic!("{arguments:?} is serve") };
            assert_eq!((flags.max_model_len, flags.host.as_str()), (Some(10_100), "127.0.0.1"), "{arguments:?}");
        }
        // What may be repeated adds up, also where it can hold several values.
        let arguments = ["twostroke", "serve", "--api-key", "a", "--api-key", "b,c", "--served-model-name", "x", "y"];
        let flags::Command::Serve(flags) = Cli::parse_from(arguments).command else { panic!("it is serve") };
        assert_eq!((flags.api_key.as_slice(), flags.served_model_name.len()), (&["a", "b,c"].map(String::from)[..], 2));
    }

    #[test]
    fn nothing_is_proposed_that_is_another_word() {
        let table: &[&[&str]] = &[
            &["serve", "--numa", "distribute"],
            &["run", "--revision", "main"],
            &["serve", "--jinja"],
            &["run", "--color", "hi"],
            &["whisper"],
        ];
        for arguments in table {
            let line = line(arguments);
            assert!(!line.contains("similar"), "{arguments:?} gave {line:?}");
        }
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(one_line("a\n  b\u{1b}[31m\tc"), "a b\u{fffd}[31m c");
    }
}
