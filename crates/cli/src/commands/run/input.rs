//! What `run` is asked: the argument, standard input, or both.
//!
//! ```text
//! argument   standard input           asked
//! none       terminal                 nothing: a chat
//! none, -    file or pipe             its text
//! PROMPT     terminal, empty          PROMPT
//! PROMPT     file or pipe with text   PROMPT, an empty line, the text
//! PROMPT     pipe that says nothing   PROMPT, after a while, and one line about it
//! ```
//! The last line is for those who start this program with a pipe of their own that they never close, as service managers
//! and remote shells do.

use std::io::{self, IsTerminal, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::console::note;
use crate::failure::Failure;
use crate::flags::RunFlags;
use crate::models;

/// Longest text taken from standard input or from a file: far above any context, far below any memory.
pub(super) const MAX_INPUT_BYTES: u64 = 64 << 20;
/// So long a prompt waits for the first byte of a pipe, or for its end.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to ask, or `None` for a chat.
pub(super) fn question(flags: &RunFlags) -> Result<Option<String>, Failure> {
    match flags.prompt.as_deref() {
        Some("-") => alone().map(Some),
        Some(prompt) => {
            if models::is_hub_id(prompt) {
                note(&format!("taken as the prompt: {prompt} (a model is chosen with -m {prompt})"));
            }
            beside(prompt).map(Some)
        }
        None if io::stdin().is_terminal() => Ok(None),
        None => alone().map(Some),
    }
}

/// Standard input is the whole question.
fn alone() -> Result<String, Failure> {
    match text_of(read_to_end(io::stdin().lock()))? {
        text if text.is_empty() => Err(Failure::usage("no prompt: give one as an argument or on standard input")),
        text => Ok(text),
    }
}

/// The question is an argument, and what is piped in stands below it.
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
    // It is left behind when it hears nothing: there is no way to stop a read that works for every kind of file.
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
