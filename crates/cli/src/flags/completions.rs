//! Flags of `completions`, and the names of models that a shell completes.

use std::ffi::OsStr;

use clap::{Args, ValueEnum};
use clap_complete::CompletionCandidate;
use clap_complete::engine::{PathCompleter, ValueCompleter};

use crate::environment;

/// Flags of `completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsFlags {
    /// The shell.
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: Shell,
}

/// Shells that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// Bash 4 or later
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

/// What can stand for a model and begins so: models of the cache, short names, GGUF files and directories.
pub(crate) fn models(begin: &OsStr) -> Vec<CompletionCandidate> {
    let short = hub::short_names().flat_map(|row| {
        let help = format!("{:.2} GB, {}", row.gigabytes, row.repository);
        row.names.split(' ').map(move |name| (name.to_owned(), help.clone()))
    });
    let built_in = (launch::SHIPPED_NAME.to_owned(), "the built-in model".to_owned());
    let mut found = cached_models(begin);
    found.extend(candidates(begin, std::iter::once(built_in).chain(short)));
    let files = PathCompleter::any().filter(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    found.extend(files.complete(begin));
    found
}

/// Models of the hub's cache whose name begins so.
pub(crate) fn cached_models(begin: &OsStr) -> Vec<CompletionCandidate> {
    let cached = hub::cached(&environment::variables().hub).unwrap_or_default();
    candidates(begin, cached.into_iter().map(|model| (model.id, plan::units::bytes(model.bytes))))
}

fn candidates(begin: &OsStr, named: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let Some(begin) = begin.to_str() else { return Vec::new() };
    let fit = named.filter(|(name, _)| name.starts_with(begin));
    fit.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect()
}
