//! The chat of `run`: lines of a terminal, of which some are commands.
//!
//! ```text
//! What is 7 + 5?          a question
//! """ ... """             a question of several lines
//! /set temperature 0      a command: never sent to the model, known or not
//! ```
//! A word with a second slash in it (`/etc/hosts is what?`) is no command, and a space before a slash makes a question.

use std::io::Write;
use std::path::Path;

use engine::ChatMessage;
use engine::sampling::FILTERS;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::input::MAX_INPUT_BYTES;
use super::{Sampling, Session};
use crate::console::note;
use crate::failure::Failure;

const HELP: &str = "/set NAME VALUE  one of the settings that /show lists; without VALUE the model's own
/system TEXT     a system message, from the next conversation on; without TEXT none
/show            settings, system message and the length of the conversation
/save FILE       write the conversation, as JSON that /load reads
/load FILE       go on with such a conversation
/clear           forget the conversation
/help            this list
/exit            leave (also Ctrl-D)
\"\"\"              begins and ends a question of several lines
Ctrl-C           stop the answer and keep the conversation";
/// Begins and ends a question of several lines.
const FENCE: &str = "\"\"\"";

/// A line, as it is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said<'a> {
    Nothing,
    Question(&'a str),
    Exit,
    Clear,
    Help,
    Show,
    System(&'a str),
    Set(&'a str, &'a str),
    Save(&'a str),
    Load(&'a str),
    /// A command that is none, or one that is used wrongly: what to say about it.
    Unknown(&'a str),
    Misused(&'static str),
}

fn read(line: &str) -> Said<'_> {
    let text = line.trim();
    if text.is_empty() {
        return Said::Nothing;
    }
    let (word, rest) = text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim()));
    let is_command = line.starts_with('/') && word.len() > 1 && !word[1..].contains('/');
    match word {
        _ if !is_command => Said::Question(text),
        "/exit" | "/quit" | "/bye" => Said::Exit,
        "/clear" => Said::Clear,
        "/help" | "/?" => Said::Help,
        "/show" => Said::Show,
        "/system" => Said::System(rest),
        "/set" => match rest.split_once(char::is_whitespace) {
            _ if rest.is_empty() => Said::Misused("/set NAME VALUE: a name is missing"),
            Some((name, value)) => Said::Set(name, value.trim()),
            None => Said::Set(rest, ""),
        },
        "/save" | "/load" if rest.is_empty() => Said::Misused("/save FILE, /load FILE: a file is missing"),
        "/save" => Said::Save(rest),
        "/load" => Said::Load(rest),
        _ => Said::Unknown(word),
    }
}

/// A conversation at the terminal.
pub(super) fn chat(session: &mut Session<'_>) -> Result<(), Failure> {
    let mut editor = DefaultEditor::new().map_err(|error| Failure::failed(format!("terminal: {error}")))?;
    session.tell_start();
    note(&format!("{} · /help lists commands, Ctrl-D leaves", session.engine.model().backend));
    loop {
        session.forget_interrupts();
        if session.interrupts.hung_up() {
            return Err(Failure::Interrupted);
        }
        let line = match line(&mut editor) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(Failure::failed(format!("terminal: {error}"))),
        };
        // Only lines without control characters can fail to be kept, and nothing depends on it.
        let _ = editor.add_history_entry(line.trim());
        let told = match read(&line) {
            Said::Nothing => Ok(None),
            Said::Exit => return Ok(()),
            Said::Clear => {
                session.clear();
                Ok(None)
            }
            Said::Help => Ok(Some(HELP.to_string())),
            Said::Show => Ok(Some(shown(session))),
            Said::System(text) => session.set_system(text).map(Some),
            Said::Set(name, value) => session.sampling.set(name, value).map(Some),
            Said::Save(path) => save(&session.messages, path).map(Some),
            Said::Load(path) => load(path).map(|messages| {
                session.messages = messages;
                Some(format!("{} messages", session.messages.len()))
            }),
            Said::Unknown(word) => {
                Err(format!("{word}: no such command; /help lists them (a question may begin with a space)"))
            }
            Said::Misused(how) => Err(how.to_string()),
            Said::Question(question) => match session.answer(question.to_string()) {
                Ok(_) => Ok(None),
                // The conversation continues: a prompt that is too long can be cleared away.
                Err(Failure::Usage(message)) => Err(message),
                Err(failure) => return Err(failure),
            },
        };
        if let Some(text) = told.unwrap_or_else(Some) {
            note(&text);
        }
    }
}

/// A line, or several between fences.
fn line(editor: &mut DefaultEditor) -> Result<String, ReadlineError> {
    let first = editor.readline(">>> ")?;
    let Some(begun) = first.trim_start().strip_prefix(FENCE) else { return Ok(first) };
    let mut text = begun.to_string();
    loop {
        // A space before it: what is quoted is no command.
        if let Some(all) = text.trim_end().strip_suffix(FENCE) {
            return Ok(format!(" {}", all.trim()));
        }
        text.push('\n');
        text.push_str(&editor.readline("... ")?);
    }
}

fn shown(session: &Session<'_>) -> String {
    let system = session.system.as_deref().unwrap_or("none");
    let model = session.engine.model();
    let (name, messages) = (&model.name, session.messages.len());
    format!("model {name}, {messages} messages\nsystem: {system}\n{}", session.sampling)
}

/// Into a new file that its owner alone may read.
fn save(messages: &[ChatMessage], path: &str) -> Result<String, String> {
    let all: Vec<Value> = messages
        .iter()
        .map(|message| json!({"role": message.role, "content": message.content.as_deref().unwrap_or("")}))
        .collect();
    let text = format!("{:#}\n", Value::from(all));
    let written = files::create_private(Path::new(path)).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{path}: {error}"))?;
    Ok(format!("{} messages in {path}", messages.len()))
}

/// What [`save`] wrote, or any list of messages with a role and a text.
fn load(path: &str) -> Result<Vec<ChatMessage>, String> {
    let of = |error: &dyn std::fmt::Display| format!("{path}: {error}");
    let text = files::read_text(Path::new(path), MAX_INPUT_BYTES).map_err(|error| of(&error))?;
    let all: Value = serde_json::from_str(&text).map_err(|error| of(&error))?;
    let message = |value: &Value| {
        let part = |name: &str| value[name].as_str().map(str::to_owned);
        Some(ChatMessage::new(part("role")?, part("content")?))
    };
    let messages: Option<Vec<_>> = all.as_array().and_then(|all| all.iter().map(message).collect());
    messages.ok_or_else(|| of(&"not a list of messages with \"role\" and \"content\""))
}

/// How answers are drawn: the flags, and what `/set` has changed since. `None`: the model's own.
impl Sampling {
    /// Sets one by its name; an empty value takes it back. What a value may be, the engine says when it is used.
    fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
        fn parsed<T: std::str::FromStr>(name: &str, value: &str) -> Result<Option<T>, String> {
            let wrong = || format!("/set {name}: {value:?} is not a number of that kind");
            if value.is_empty() { Ok(None) } else { value.parse().map(Some).map_err(|_| wrong()) }
        }
        match (name, FILTERS.iter().find(|option| option.name == name)) {
            ("seed", _) => self.seed = parsed(name, value)?,
            ("max_tokens", _) => self.max_tokens = parsed(name, value)?,
            (_, Some(option)) if option.is_integer() => {
                (option.ask)(&mut self.params, parsed::<i64>(name, value)?.map(|value| value as f64));
            }
            (_, Some(option)) => (option.ask)(&mut self.params, parsed(name, value)?),
            (_, None) => {
                let known: String = FILTERS.iter().map(|option| format!("{}, ", option.name)).collect();
                return Err(format!("/set {name}: no such setting; {known}seed, max_tokens"));
            }
        }
        Ok(self.to_string())
    }
}

impl std::fmt::Display for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn word<T: ToString>(value: Option<T>, none: &str) -> String {
            value.map_or_else(|| none.to_string(), |value| value.to_string())
        }
        for option in &FILTERS {
            write!(f, "{} {}, ", option.name, word((option.asked)(&self.params), "the model's"))?;
        }
        let (seed, most) = (word(self.seed, "random"), word(self.max_tokens, "what the context has left"));
        write!(f, "seed {seed}, max_tokens {most}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_command_is_never_a_question() {
        let table = [
            ("", Said::Nothing),
            ("  ", Said::Nothing),
            ("What is 3 / 4?", Said::Question("What is 3 / 4?")),
            ("/etc/hosts is what?", Said::Question("/etc/hosts is what?")),
            (" /set is a command of what?", Said::Question("/set is a command of what?")),
            ("/ is a slash", Said::Question("/ is a slash")),
            ("/set temperature 0", Said::Set("temperature", "0")),
            ("/set  seed", Said::Set("seed", "")),
            ("/set", Said::Misused("/set NAME VALUE: a name is missing")),
            ("/system be brief", Said::System("be brief")),
            ("/save talk.json ", Said::Save("talk.json")),
            ("/save", Said::Misused("/save FILE, /load FILE: a file is missing")),
            ("/fly to the moon", Said::Unknown("/fly")),
            ("/clear everything", Said::Clear),
            ("/bye", Said::Exit),
        ];
        for (line, wanted) in table {
            assert_eq!(read(line), wanted, "{line:?}");
        }
    }

    #[test]
    fn settings_are_numbers_or_the_models_own() {
        let mut sampling = Sampling::default();
        assert!(sampling.set("temperature", "0.5").is_ok() && sampling.params.temperature == Some(0.5));
        assert!(sampling.set("temperature", "hot").is_err() && sampling.params.temperature == Some(0.5));
        assert!(sampling.set("temperature", "").is_ok() && sampling.params.temperature.is_none());
        assert!(sampling.set("colour", "red").is_err());
    }

    #[test]
    fn a_conversation_that_was_saved_is_loaded_again() {
        let path = std::env::temp_dir().join(format!("twostroke-{}-talk.json", std::process::id()));
        let _ = std::fs::remove_file(&path); // of a run that was killed
        let path = path.to_str().expect("a path of text");
        let messages = vec![ChatMessage::new("user", "7 + \"5\"?\n"), ChatMessage::new("assistant", "12")];
        assert!(save(&messages, path).is_ok());
        assert!(save(&messages, path).is_err(), "what is there stays");
        assert_eq!(load(path), Ok(messages));
        std::fs::write(path, "{}").expect("it can be written");
        assert!(load(path).is_err_and(|error| error.contains("not a list of messages")));
        std::fs::remove_file(path).expect("it is there");
    }
}
