//! The chat of `run`: lines of a terminal, of which some are commands.
//!
//! ```text
//! What is 7 + 5?          a question
//! """ ... """             a question of several lines
//! /set temperature 0      a command: never sent to the model, known or not
//! ```
//! A word with a second slash in it (`/etc/hosts is what?`) is no command, and a space before a slash makes a question.

use std::io::{IsTerminal, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::ChatMessage;
use engine::sampling::FILTERS;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::commands::help;
use super::editor::Lines;
use super::input::MAX_INPUT_BYTES;
use super::{Sampling, Session, idle};
use crate::console::{note, put};
use crate::environment;
use crate::failure::Failure;

/// Begins and ends a question of several lines.
const FENCE: &str = "\"\"\"";
/// Base64 of OSC 52 beyond this is cut or refused by terminals: xterm takes 100,000 bytes with the rest of the sequence.
const MAX_CLIPBOARD_BYTES: usize = 99_000;

/// A line, as it is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said<'a> {
    Nothing,
    Question(&'a str),
    Exit,
    Clear,
    Help,
    Show,
    Retry,
    Copy,
    System(&'a str),
    Set(&'a str, &'a str),
    Model(&'a str),
    File(&'a str),
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
        "/retry" => Said::Retry,
        "/copy" => Said::Copy,
        "/system" => Said::System(rest),
        "/set" => match rest.split_once(char::is_whitespace) {
            _ if rest.is_empty() => Said::Misused("/set NAME VALUE: a name is missing"),
            Some((name, value)) => Said::Set(name, value.trim()),
            None => Said::Set(rest, ""),
        },
        "/model" if rest.is_empty() => Said::Misused("/model NAME: a name is missing; /show says which one answers"),
        "/model" => Said::Model(rest),
        "/file" if rest.is_empty() => Said::Misused("/file FILE: a file is missing"),
        "/file" => Said::File(rest),
        "/save" | "/load" if rest.is_empty() => Said::Misused("/save FILE, /load FILE: a file is missing"),
        "/save" => Said::Save(rest),
        "/load" => Said::Load(rest),
        _ => Said::Unknown(word),
    }
}

/// A conversation at the terminal.
pub(super) fn chat(session: &mut Session<'_>) -> Result<(), Failure> {
    let terminal = |error: &dyn std::fmt::Display| Failure::failed(format!("terminal: {error}"));
    let mut lines = Lines::new().map_err(|error| terminal(&error))?;
    session.tell_start();
    note(&format!("{} · /help lists commands, Ctrl-D leaves", session.engine.model().backend));
    loop {
        session.forget_interrupts();
        if session.interrupts.hung_up() {
            return Err(Failure::Interrupted);
        }
        let typed = match line(session, &mut lines) {
            Ok(typed) => typed,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(terminal(&error)),
        };
        lines.keep(typed.trim_end());
        let quoted = quoted(&typed);
        let said = read(quoted.as_deref().unwrap_or(&typed));
        if said == Said::Exit {
            return Ok(());
        }
        match turn(session, said) {
            Ok(None) => {}
            // The conversation continues: a prompt that is too long can be cleared away.
            Ok(Some(text)) | Err(Failure::Usage(text)) => note(&text),
            Err(failure) => return Err(failure),
        }
    }
}

/// Does what was said, and returns what there is to say about it. A usage error is one of this line and not of the chat.
fn turn(session: &mut Session<'_>, said: Said<'_>) -> Result<Option<String>, Failure> {
    let told = match said {
        Said::Nothing | Said::Exit => Ok(None),
        Said::Question(question) => return session.answer(question).map(|_| None),
        Said::Retry => return session.retry().map(|_| None),
        Said::Clear => {
            session.clear();
            Ok(None)
        }
        Said::Help => Ok(Some(help())),
        Said::Show => Ok(Some(shown(session))),
        Said::Copy => copy(session).map(Some),
        Said::System(text) => session.set_system(text).map(Some),
        Said::Set(name, value) => session.sampling.set(name, value).map(Some),
        Said::Model(name) => match session.change_model(name) {
            Ok(told) => Ok(Some(told)),
            Err(Failure::Usage(problem) | Failure::Failed(problem)) => {
                Err(format!("{problem}; {} answers as before", session.engine.model().name))
            }
            Err(failure) => return Err(failure),
        },
        Said::File(path) => attach(&mut session.attached, path).map(Some),
        Said::Save(path) => save(&session.messages, path).map(Some),
        Said::Load(path) => load(path).map(|messages| {
            session.go_on_with(messages);
            Some(format!("{} messages", session.messages.len()))
        }),
        Said::Unknown(word) => {
            Err(format!("{word}: no such command; /help lists them (a question may begin with a space)"))
        }
        Said::Misused(how) => Err(how.to_string()),
    };
    told.map_err(Failure::Usage)
}

/// What is typed until it is a line, or several between fences.
fn line(session: &Session<'_>, lines: &mut Lines) -> Result<String, ReadlineError> {
    let is_typed = std::sync::Arc::clone(&lines.is_typed);
    let mut text = match session.flags.quiet {
        true => lines.read(">>> ")?,
        false => idle::beside(&session.flags.model, &is_typed, || lines.read(">>> "))?,
    };
    while begins_quoted(&text) && quoted(&text).is_none() {
        text.push('\n');
        text.push_str(&lines.read("... ")?);
    }
    Ok(text)
}

fn begins_quoted(text: &str) -> bool {
    text.trim_start().starts_with(FENCE)
}

/// What stands between fences, with a space before it: what is quoted is no command. `None` where it has no end, or no
/// beginning.
fn quoted(text: &str) -> Option<String> {
    let all = text.trim_start().strip_prefix(FENCE)?.trim_end().strip_suffix(FENCE)?;
    Some(format!(" {}", all.trim()))
}

fn shown(session: &Session<'_>) -> String {
    let system = session.system.as_deref().unwrap_or("none");
    let model = session.engine.model();
    let (name, messages) = (&model.name, session.messages.len());
    let left_out = match session.left_out {
        0 => String::new(),
        oldest => format!(" (the oldest {oldest} are not sent)"),
    };
    let attached = match session.attached.len() {
        0 => String::new(),
        bytes => format!(", {bytes} bytes of files with the next question"),
    };
    format!("model {name}, {messages} messages{left_out}{attached}\nsystem: {system}\n{}", session.sampling)
}

/// A file's text behind those that belong to the next question already.
fn attach(attached: &mut String, path: &str) -> Result<String, String> {
    let left = MAX_INPUT_BYTES.saturating_sub(attached.len() as u64);
    let text = files::read_text(&environment::at_home(path), left).map_err(|error| format!("{path}: {error}"))?;
    let text = text.trim_end();
    if text.is_empty() {
        return Err(format!("{path}: there is no text in it"));
    }
    attached.push_str("\n\n");
    attached.push_str(text);
    Ok(format!("{path}: {} bytes, with the next question", text.len()))
}

/// The last answer into the terminal's clipboard, by OSC 52: the one way that also works through ssh.
fn copy(session: &Session<'_>) -> Result<String, String> {
    let answer = session.messages.iter().rev().find(|message| message.role == "assistant");
    let answer = answer.and_then(|message| message.content.as_deref()).filter(|text| !text.is_empty());
    let text = answer.ok_or("/copy: there is no answer yet")?;
    if !std::io::stdout().is_terminal() || !environment::terminal_has_clipboard() {
        return Err("/copy: this terminal has no clipboard; /save FILE writes the conversation".into());
    }
    let bytes = STANDARD.encode(text);
    if bytes.len() > MAX_CLIPBOARD_BYTES {
        return Err("/copy: longer than what terminals take; /save FILE writes the conversation".into());
    }
    put(&format!("\x1b]52;c;{bytes}\x07")).map_err(|_| "/copy: the terminal is gone".to_string())?;
    Ok(format!("{} bytes to the terminal's clipboard, if it lets programs write it", text.len()))
}

/// Into a new file that its owner alone may read.
fn save(messages: &[ChatMessage], path: &str) -> Result<String, String> {
    let all: Vec<Value> = messages
        .iter()
        .map(|message| json!({"role": message.role, "content": message.content.as_deref().unwrap_or("")}))
        .collect();
    let text = format!("{:#}\n", Value::from(all));
    let written =
        files::create_private(&environment::at_home(path)).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{path}: {error}"))?;
    Ok(format!("{} messages in {path}", messages.len()))
}

/// What [`save`] wrote, or any list of messages with a role and a text.
fn load(path: &str) -> Result<Vec<ChatMessage>, String> {
    let of = |error: &dyn std::fmt::Display| format!("{path}: {error}");
    let text = files::read_text(&environment::at_home(path), MAX_INPUT_BYTES).map_err(|error| of(&error))?;
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
    use super::super::commands::{COMMANDS, Command};
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
            ("/model org/name", Said::Model("org/name")),
            ("/model", Said::Misused("/model NAME: a name is missing; /show says which one answers")),
            ("/file  my notes.txt ", Said::File("my notes.txt")),
            ("/file", Said::Misused("/file FILE: a file is missing")),
            ("/retry", Said::Retry),
            ("/copy", Said::Copy),
        ];
        for (line, wanted) in table {
            assert_eq!(read(line), wanted, "{line:?}");
        }
    }

    #[test]
    fn a_question_between_fences_is_whole_and_no_command() {
        let table = [
            ("\"\"\"two\nlines\"\"\"", Some(" two\nlines")),
            (" \"\"\"/set\"\"\" ", Some(" /set")),
            ("\"\"\"\"\"\"", Some(" ")),
            ("\"\"\"begun", None),
            ("\"\"\"\"", None),
            ("said \"\"\"so\"\"\"", None),
        ];
        for (text, wanted) in table {
            assert_eq!(quoted(text).as_deref(), wanted, "{text:?}");
        }
    }

    #[test]
    fn each_command_is_known() {
        for Command { name, .. } in COMMANDS {
            assert!(!matches!(read(name), Said::Unknown(_) | Said::Question(_)), "{name}");
        }
    }

    #[test]
    fn files_belong_to_the_next_question_as_far_as_there_is_room() {
        let scratch =
            testing::Scratch::with("attached", &[("a", b"one\n\n"), ("b", b"two"), ("c", b" \n"), ("d", b"\xff")]);
        let mut attached = String::new();
        for name in ["a", "b"] {
            assert!(attach(&mut attached, &scratch.file(name)).is_ok());
        }
        assert_eq!(attached, "\n\none\n\ntwo");
        for (name, problem) in [("c", "no text"), ("d", "UTF-8"), ("e", "No such file"), ("", "directory")] {
            let said = attach(&mut attached, &scratch.file(name));
            assert!(said.as_ref().is_err_and(|said| said.contains(problem)), "{name:?}: {said:?}");
        }
        attached = "x".repeat(MAX_INPUT_BYTES as usize - 4);
        assert!(attach(&mut attached, &scratch.file("a")).is_err(), "five bytes where four are left");
        assert!(attach(&mut attached, &scratch.file("b")).is_ok());
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
