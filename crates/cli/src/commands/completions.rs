//! `twostroke completions SHELL`, and what its scripts ask: this program again, with `TWOSTROKE_COMPLETE` set to the shell
//! and the line's words behind `--`.

use std::ffi::OsString;

use clap::CommandFactory;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use crate::console::put;
use crate::failure::Failure;
use crate::flags::{Cli, CompletionsFlags, Shell};

/// What tells this program that a line is to be completed: [`crate::environment::completing`] reads it.
const VARIABLE: &str = "TWOSTROKE_COMPLETE";
const NAME: &str = "twostroke";

/// The script.
pub(crate) fn script(flags: &CompletionsFlags) -> Result<(), Failure> {
    let mut script = Vec::new();
    match flags.shell {
        // Names of models have colons, which the library's script for this shell does not expect.
        Shell::Bash => script.extend_from_slice(include_bytes!("completions.bash")),
        Shell::Zsh => Zsh.write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?,
        Shell::Fish => Fish.write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?,
    }
    put(&String::from_utf8_lossy(&script))
}

/// What completes the last of these words. An error is for who tries the script by hand; shells do not show it.
pub(crate) fn answer(shell: &str, arguments: &[OsString]) -> Result<(), Failure> {
    let completers: [&dyn EnvCompleter; 3] = [&Bash, &Zsh, &Fish];
    let completer = completers.into_iter().find(|completer| completer.is(shell));
    let completer =
        completer.ok_or_else(|| Failure::usage(format!("{VARIABLE}: {shell} is no shell that is known")))?;
    let words: Vec<OsString> = arguments.iter().skip_while(|&word| word != "--").skip(1).cloned().collect();
    if words.is_empty() {
        return Err(Failure::usage(format!("{VARIABLE}: the words of a line are missing behind --")));
    }
    let mut root = Cli::command();
    root.build();
    let mut fitting = Vec::new();
    completer.write_complete(&mut root, words, std::env::current_dir().ok().as_deref(), &mut fitting)?;
    put(&String::from_utf8_lossy(&fitting))
}
