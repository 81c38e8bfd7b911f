//! What `run` is asked: the argument, standard input, or both.
//!
//! ```text
//! argument   standard input           asked
//! none       terminal                 nothing: a chat
//! none, -    file or pipe             its text; so with --file -
//! MODEL ...  (a first word that names one) what stands behind it, as below
//! PROMPT     terminal, empty          PROMPT
//! PROMPT     file or pipe with text   PROMPT, an empty line, the text
//! PROMPT     pipe that says nothing   PROMPT, after a while, and one line about it
//! ```
//! The last line is for those who start this program with a pipe of their own that they never close, as service managers
//! and remote shells do.

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use hub::HubEnv;

use crate::console::note;
use crate::environment;
use crate::failure::Failure;
use crate::flags::RunFlags;

/// Longest text taken from standard input or from a file: far above any context, far below any memory.
pub(super) const MAX_INPUT_BYTES: u64 = 64 << 20;
/// So long a prompt waits for the first byte of a pipe, or for its end.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a first word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Prompt,
    /// A path, a hub id, a short name or the built-in model.
    Model,
    /// One word that may be the name of a model that is not known here: it is never answered as a prompt.
    Unknown,
}

impl Word {
    fn of(word: &str, hub: &HubEnv) -> Word {
        match word {
            _ if word.trim().is_empty() || word == "-" || word.contains(char::is_whitespace) => Word::Prompt,
            _ if word == launch::SHIPPED_NAME || hub::is_name(word, hub) => Word::Model,
            _ => Word::Unknown,
        }
    }
}

/// The model that is asked, where it is not the built-in one, and what it is asked: `None` for a chat.
pub(super) fn question(flags: &RunFlags) -> Result<(Option<String>, Option<String>), Failure> {
    let model = flags.model.model.clone();
    if let Some(path) = flags.file.as_deref().filter(|path| *path != Path::new("-")) {
        let text = files::read_text(path, MAX_INPUT_BYTES)
            .map_err(|error| Failure::usage(format!("--file: {}: {error}", path.display())))?;
        return match text.trim_end() {
            "" => Err(Failure::usage(format!("--file: {}: there is no prompt in it", path.display()))),
            text => Ok((model, Some(text.to_owned()))),
        };
    }
    let words: Vec<&str> = match flags.file {
        Some(_) => vec!["-"],
        None => flags.words.iter().map(String::as_str).collect(),
    };
    let Some((&first, behind)) = words.split_first() else { return Ok((model, asked(None)?)) };
    if model.is_some() {
        return Ok((model, asked(Some(&words.join(" ")))?));
    }
    let hub = environment::variables().hub;
    match Word::of(first, &hub) {
        Word::Model => {
            let prompt = (!behind.is_empty()).then(|| behind.join(" "));
            Ok((Some(first.to_owned()), asked(prompt.as_deref())?))
        }
        Word::Unknown => {
            let problem = hub::canonical(first, &hub).err().map(|error| error.to_string());
            let problem = problem.unwrap_or_else(|| format!("{first:?} is no model: ORG/NAME would be one of the hub"));
            let said = words.join(" ");
            Err(Failure::usage(format!("{problem}. To say it to the built-in model: twostroke run lantern {said}")))
        }
        Word::Prompt if behind.is_empty() => Ok((None, asked(Some(first))?)),
        Word::Prompt => Err(Failure::usage(format!(
            "{first:?} is no model and {:?} stands behind it: a prompt of several words needs quotation marks",
            behind[0]
        ))),
    }
}

const NO_PROMPT: &str = "no prompt: give one as an argument or on standard input";

fn asked(prompt: Option<&str>) -> Result<Option<String>, Failure> {
    match prompt {
        Some("-") => alone().map(Some),
        Some(prompt) if prompt.trim().is_empty() => Err(Failure::usage(NO_PROMPT)),
        Some(prompt) => beside(prompt).map(Some),
        None if io::stdin().is_terminal() => Ok(None),
        None => alone().map(Some),
    }
}

/// Standard input is the whole question.
fn alone() -> Result<String, Failure> {
    match text_of(read_to_end(io::stdin().lock()))? {
        text if text.is_empty() => Err(Failure::usage(NO_PROMPT)),
        text => Ok(text),
    }
}

/// The question is an argument, and what is piped in follows it.
fn beside(prompt: &str) -> Result<String, Failure> {
    if io::stdin().is_terminal() {
        return Ok(prompt.to_string());
    }
    match read_in_time(io::stdin(), PATIENCE) {
        Some(read) => Ok(joined(prompt, &text_of(read)?)),
        None => {
            let seconds = PATIENCE.as_secs();
            note(&format!(
                "standard input said nothing in {seconds} s: answered without it (< /dev/null says so at once)"
            ));
            Ok(prompt.to_string())
        }
    }
}

fn joined(prompt: &str, text: &str) -> String {
    if text.is_empty() { prompt.to_string() } else { format!("{prompt}\n\n{text}") }
}

/// Everything until the end, however long that takes; `None` if `patience` passes before anything comes.
fn read_in_time(input: impl Read + Send + 'static, patience: Duration) -> Option<io::Result<Vec<u8>>> {
    let (begun, first) = sync_channel(1);
    let (done, all) = sync_channel(1);
    // The thread is abandoned when nothing is read: there is no way to stop a read that works for every kind of file.
    thread::spawn(move || drop(done.send(read_to_end(Announced { input, begun: Some(begun) }))));
    heard(&first, patience).then(|| all.recv().unwrap_or_else(|_| Err(io::ErrorKind::UnexpectedEof.into())))
}

/// Whether anything came: a byte, an end or an error.
fn heard(first: &Receiver<()>, patience: Duration) -> bool {
    !matches!(first.recv_timeout(patience), Err(RecvTimeoutError::Timeout))
}

/// Says when its first read returns.
struct Announced<R> {
    input: R,
    begun: Option<SyncSender<()>>,
}

impl<R: Read> Read for Announced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer);
        self.begun = None;
        read
    }
}

/// One byte more than is allowed, so that too much shows.
fn read_to_end(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text_of(read: io::Result<Vec<u8>>) -> Result<String, Failure> {
    let bytes = read.map_err(|error| Failure::failed(format!("standard input: {error}")))?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(Failure::usage(format!("standard input: more than {MAX_INPUT_BYTES} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| Failure::usage("standard input: not UTF-8 text"))?;
    Ok(text.trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_first_is_a_model_or_a_prompt() {
        let table = [
            ("llama3.2", Word::Model),
            ("Llama3.2:1B", Word::Model),
            ("qwen3:4b-instruct-q8_0", Word::Model),
            ("gpt-oss:20b", Word::Model),
            ("lantern", Word::Model),
            ("hf.co/org/name-GGUF", Word::Model),
            ("https://huggingface.co/org/name", Word::Model),
            ("https://huggingface.co/org/name/blob/main/name-Q8_0.gguf", Word::Model),
            ("Qwen/Qwen2.5-0.5B-Instruct", Word::Model),
            ("org/name:Q4_K_M", Word::Model),
            ("org/name@main", Word::Model),
            ("./model", Word::Model),
            ("/models/x", Word::Model),
            ("model.gguf", Word::Model),
            ("llama9", Word::Unknown),
            ("hi", Word::Unknown),
            ("philosophy", Word::Unknown),
            ("Hello!", Word::Unknown),
            ("1:1", Word::Unknown),
            ("What is llama3.2?", Word::Prompt),
            ("a/b or c?", Word::Prompt),
            ("-", Word::Prompt),
            ("", Word::Prompt),
        ];
        for (word, wanted) in table {
            assert_eq!(Word::of(word, &HubEnv::default()), wanted, "{word:?}");
        }
    }
}
