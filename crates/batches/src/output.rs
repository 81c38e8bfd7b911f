//! The file of answers: what of it is whole counts, and it grows by whole lines.

use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::Deserialize;

use crate::BatchInput;
use crate::input::Names;

/// Why there is no place for answers.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It cannot be opened, read or written.
    #[error("{path}: {source}")]
    File {
        /// Its name.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{path}: another process writes answers to it")]
    Taken {
        /// Its name.
        path: String,
    },
    /// It was there before and is none.
    #[error("{path}: line {line} is no answer of a batch; name another file, or move this one away")]
    Foreign {
        /// Its name.
        path: String,
        /// The first such line, from 1.
        line: usize,
    },
    /// Answers to something else.
    #[error("{path}: line {line} answers '{custom_id}', which the input does not ask: it is of another batch")]
    Other {
        /// Its name.
        path: String,
        /// The first such line, from 1.
        line: usize,
        /// Whose answer it is.
        custom_id: String,
    },
}

/// Longest line that is read again: no answer whose numbers fit into memory is as long.
const MOST_ANSWER: u64 = 1 << 30;
/// How every line begins.
pub(crate) const BEGIN: &str = "{\"id\":\"batch_req_";

/// What of a line is looked at.
#[derive(Deserialize)]
struct Written {
    custom_id: String,
    response: Response,
}

#[derive(Deserialize)]
struct Response {
    status_code: u16,
}

/// A file of answers, locked while this lives.
#[derive(Debug)]
pub struct BatchOutput {
    file: File,
    path: String,
    done: Names,
    bytes: u64,
    failed: usize,
}

impl BatchOutput {
    /// Opens or makes it, for the answers to `input`. What a kill has left of a line is cut off.
    pub fn open(path: &Path, input: &BatchInput) -> Result<BatchOutput, OutputError> {
        let name = path.display().to_string();
        let wrong = |source| OutputError::File { path: name.clone(), source };
        let file = files::append_private(path).map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OutputError::Taken { path: name }),
            Err(TryLockError::Error(source)) => return Err(wrong(source)),
        }
        let mut output = BatchOutput { file, path: name.clone(), done: Names::default(), bytes: 0, failed: 0 };
        let whole = output.read(input)?;
        output.file.set_len(whole).map_err(wrong)?;
        output.bytes = whole;
        Ok(output)
    }

    /// Learns whose answers are there. Returns where the last whole line ends.
    fn read(&mut self, input: &BatchInput) -> Result<u64, OutputError> {
        let mut lines = BufReader::new(&self.file);
        let (mut bytes, mut whole, mut line) = (Vec::new(), 0, 0);
        loop {
            bytes.clear();
            line += 1;
            // What does not begin as a line of ours is another file, however long its lines are.
            let mut read = lines.by_ref().take(BEGIN.len() as u64).read_until(b'\n', &mut bytes);
            let is_ours = BEGIN.as_bytes().starts_with(&bytes) || bytes.trim_ascii().is_empty();
            if is_ours && !bytes.ends_with(b"\n") {
                read = lines.by_ref().take(MOST_ANSWER).read_until(b'\n', &mut bytes);
            }
            read.map_err(|source| OutputError::File { path: self.path.clone(), source })?;
            if !is_ours || bytes.len() as u64 > MOST_ANSWER {
                return Err(OutputError::Foreign { path: self.path.clone(), line });
            }
            if !bytes.ends_with(b"\n") {
                // What a kill left of a line.
                return match BEGIN.as_bytes().starts_with(&bytes[..bytes.len().min(BEGIN.len())]) {
                    true => Ok(whole),
                    false => Err(OutputError::Foreign { path: self.path.clone(), line }),
                };
            }
            whole += bytes.len() as u64;
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            let Ok(Written { custom_id, response }) = serde_json::from_slice(&bytes) else {
                return Err(OutputError::Foreign { path: self.path.clone(), line });
            };
            if !input.has(&custom_id) {
                return Err(OutputError::Other { path: self.path.clone(), line, custom_id });
            }
            self.failed += usize::from(response.status_code >= 400);
            self.done.insert(&custom_id);
        }
    }

    /// Answers that are there.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.done.len() == 0
    }

    /// Those of them that are refusals.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Bytes of all answers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn has(&self, custom_id: &str) -> bool {
        self.done.has(custom_id)
    }

    /// One more answer, on the disk as far as this process can see to it.
    pub(crate) fn add(&mut self, custom_id: &str, line: &str, has_failed: bool) -> Result<(), OutputError> {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|source| OutputError::File { path: self.path.clone(), source })?;
        self.bytes += line.len() as u64 + 1;
        self.failed += usize::from(has_failed);
        self.done.insert(custom_id);
        Ok(())
    }

    /// Waits until the disk has all of it.
    pub(crate) fn finish(&self) -> Result<(), OutputError> {
        self.file.sync_all().map_err(|source| OutputError::File { path: self.path.clone(), source })
    }
}
