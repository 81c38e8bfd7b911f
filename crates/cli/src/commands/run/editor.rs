//! The line editor of the chat: earlier lines, and what Tab completes.
//!
//! ```text
//! /se       > /set                 a command
//! /set to   > /set top_k, top_p    a setting
//! /model l  > /model lantern       a model of the cache, or the built-in one
//! /file ~/n > /file ~/notes.txt    a path
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::sampling::FILTERS;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::commands::{COMMANDS, Takes};
use super::history::{History, MAX_ENTRIES};
use crate::environment;

/// Entries of a directory that are looked at.
const MAX_LOOKED_AT: usize = 10_000;

/// Reads lines, and keeps them.
pub(super) struct Lines {
    editor: Editor<Keys, MemHistory>,
    history: History,
    /// Whether anything was typed since it was set to false.
    pub(super) is_typed: Arc<AtomicBool>,
}

impl Lines {
    pub(super) fn new() -> Result<Lines, ReadlineError> {
        let config = Config::builder().max_history_size(MAX_ENTRIES)?.history_ignore_space(true);
        let config = config.completion_type(CompletionType::List).build();
        let earlier = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, earlier)?;
        let is_typed = Arc::new(AtomicBool::new(false));
        editor.set_helper(Some(Keys { is_typed: Arc::clone(&is_typed) }));
        let (history, entries) = History::open(environment::state_file("history"));
        for entry in entries {
            editor.add_history_entry(entry)?;
        }
        Ok(Lines { editor, history, is_typed })
    }

    pub(super) fn read(&mut self, prompt: &str) -> Result<String, ReadlineError> {
        self.editor.readline(prompt)
    }

    /// Keeps what was typed for later, unless it begins with a space or is what came before it.
    pub(super) fn keep(&mut self, entry: &str) {
        if self.editor.add_history_entry(entry).is_ok_and(|is_new| is_new) {
            self.history.keep(entry);
        }
    }
}

/// Hears of each key, and completes.
struct Keys {
    is_typed: Arc<AtomicBool>,
}

impl Helper for Keys {}
impl Highlighter for Keys {}
impl Validator for Keys {}

impl Hinter for Keys {
    type Hint = String;

    /// No hint: it is called for every change of the line.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        if !line.is_empty() {
            self.is_typed.store(true, Ordering::Relaxed);
        }
        None
    }
}

impl Completer for Keys {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> Result<(usize, Vec<String>), ReadlineError> {
        self.is_typed.store(true, Ordering::Relaxed);
        Ok(completions(&line[..at], models))
    }
}

/// What may stand behind the start of a line, and where the word that it replaces begins.
fn completions(line: &str, models: fn() -> Vec<String>) -> (usize, Vec<String>) {
    let Some((command, rest)) = line.split_once(' ') else {
        let commands = COMMANDS.iter().filter(|_| line.starts_with('/')).map(|command| match command.takes {
            Takes::Nothing => command.name.to_owned(),
            _ => format!("{} ", command.name),
        });
        return (0, beginning_with(line, commands));
    };
    let rest = rest.trim_start();
    let takes = COMMANDS.iter().find(|known| known.name == command).map_or(Takes::Nothing, |known| known.takes);
    let found = match takes {
        Takes::Setting => {
            let names = FILTERS.iter().map(|option| option.name).chain(["seed", "max_tokens"]);
            beginning_with(rest, names.map(|name| format!("{name} ")))
        }
        Takes::Model => beginning_with(rest, models().into_iter()),
        Takes::Path => paths(rest),
        Takes::Nothing | Takes::Text => Vec::new(),
    };
    (line.len() - rest.len(), found)
}

fn beginning_with(start: &str, all: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = all.filter(|one| one.starts_with(start)).collect();
    found.sort();
    found
}

/// Models that need no download.
fn models() -> Vec<String> {
    let cached = hub::cached(&environment::variables().hub).unwrap_or_default();
    cached.into_iter().map(|model| model.id).chain([launch::SHIPPED_NAME.to_owned()]).collect()
}

/// Files and directories whose path begins so, in the words of its beginning. Hidden ones where a dot says so.
fn paths(start: &str) -> Vec<String> {
    let (place, name) = start.rfind('/').map_or(("", start), |at| start.split_at(at + 1));
    let directory = if place.is_empty() { PathBuf::from(".") } else { environment::at_home(place) };
    let entries = directory.read_dir().into_iter().flatten().take(MAX_LOOKED_AT).flatten();
    let named = entries.filter_map(|entry| {
        let found = entry.file_name().into_string().ok()?;
        let is_shown = !found.chars().any(char::is_control) && (name.starts_with('.') || !found.starts_with('.'));
        // Links to directories are directories here.
        let end = if entry.path().is_dir() { "/" } else { "" };
        is_shown.then(|| format!("{place}{found}{end}"))
    });
    beginning_with(start, named)
}

#[cfg(test)]
mod tests {
    use testing::Scratch;

    use super::*;

    fn models() -> Vec<String> {
        ["org/two", "org/one", "lantern"].map(str::to_owned).to_vec()
    }

    #[test]
    fn what_tab_completes() {
        let table: [(&str, usize, &[&str]); 12] = [
            ("", 0, &[]),
            ("What", 0, &[]),
            ("/se", 0, &["/set "]),
            ("/s", 0, &["/save ", "/set ", "/show", "/system "]),
            ("/cl", 0, &["/clear"]),
            ("/fly", 0, &[]),
            ("/set to", 5, &["top_k ", "top_p "]),
            ("/set  se", 6, &["seed "]),
            ("/model ", 7, &["lantern", "org/one", "org/two"]),
            ("/model org/t", 7, &["org/two"]),
            ("/system /s", 8, &[]),
            (" /se", 1, &[]),
        ];
        for (line, at, wanted) in table {
            assert_eq!(completions(line, models), (at, wanted.iter().map(|one| one.to_string()).collect()), "{line:?}");
        }
    }

    #[test]
    fn what_tab_completes_of_paths() {
        let scratch = Scratch::new("paths");
        for name in ["notes.txt", "note 2.txt", "other", ".hidden", "bad\u{1b}[2J"] {
            std::fs::write(scratch.join(name), "").expect("it can be written");
        }
        std::fs::create_dir(scratch.join("nothing")).expect("it can be made");
        let root = scratch.text();
        let table: [(&str, &[&str]); 6] = [
            ("no", &["note 2.txt", "notes.txt", "nothing/"]),
            ("note ", &["note 2.txt"]),
            (".h", &[".hidden"]),
            ("", &["note 2.txt", "notes.txt", "nothing/", "other"]),
            ("nothing/", &[]),
            ("absent/x", &[]),
        ];
        for (start, wanted) in table {
            let wanted = wanted.iter().map(|name| format!("{root}/{name}")).collect();
            let line = format!("/file {root}/{start}");
            assert_eq!(completions(&line, models), (6, wanted), "{start:?}");
        }
    }
}
