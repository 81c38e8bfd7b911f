//! Reading a recording: nothing that passes the checks is too large or too late for a replay.
//!
//! The format is the engine's ([`engine::recording`]): a header, then one JSON object per line. A last line that was
//! cut off is left out; without `"end"` the recording was cut off.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use engine::recording::{Entry, Header, OLDEST_VERSION, OfferEntry, VERSION, within};
use scheduler::{DraftProposal, Limits};

/// Longest line that is read: a prompt of some ten million tokens.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Times are of one run: ten years. Sums of a few of them are still times.
const MAX_NANOS: u64 = 10 * 366 * 86_400 * 1_000_000_000;

/// Why a file is no recording. Each is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Something else.
    #[error("{}: not a recording: {problem}", path.display())]
    NotARecording {
        /// The file.
        path: PathBuf,
        /// How that can be seen.
        problem: String,
    },
    /// A recording by another version of this program.
    #[error("{}: a recording of format {found}; this program reads {OLDEST_VERSION} to {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// A line that no engine writes.
    #[error("{}: line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The model cannot be what was recorded.
    #[error("this model does not fit the recording: {problem}")]
    OtherModel {
        /// How that can be seen.
        problem: String,
    },
}

/// What the lines so far require of the next ones: time does not go back, and no request comes twice.
#[derive(Default)]
struct SoFar {
    now: u64,
    admitted: HashSet<u64>,
}

impl SoFar {
    /// Nothing that passes is too large for a replay: sums of times fit, and nothing is allocated that the limits do
    /// not allow.
    fn check(&mut self, entry: &Entry, limits: &Limits) -> Result<(), String> {
        match *entry {
            Entry::Admit(ref admit) => {
                self.time("admit.now", admit.now)?;
                within("admit.arrived", admit.arrived, 0, MAX_NANOS)?;
                within("admit.ttft", admit.ttft.unwrap_or(0), 0, MAX_NANOS)?;
                within("admit.tpot", admit.tpot.unwrap_or(0), 0, MAX_NANOS)?;
                within("admit.n", admit.n as u64, 1, limits.max_num_seqs as u64)?;
                within("admit.max_tokens", admit.max_tokens as u64, 0, Limits::MOST_TOKENS as u64)?;
                within("admit.min_tokens", admit.min_tokens as u64, 0, Limits::MOST_TOKENS as u64)?;
                within("admit.prompt", admit.prompt.len() as u64, 1, limits.max_model_len as u64)?;
                match self.admitted.insert(admit.id) {
                    true => Ok(()),
                    false => Err(format!("admit.id: request {} is open already, or was before", admit.id)),
                }
            }
            Entry::Cancel(_, now) => self.time("cancel", now),
            Entry::Idle(now) => self.time("idle", now),
            Entry::Abandoned(now, ref offers) => check_offers(offers).and_then(|()| self.time("abandoned", now)),
            Entry::Step(ref step) => {
                check_offers(&step.offers)?;
                self.time("step.from", step.from)?;
                self.time("step.to", step.to)
            }
            Entry::Restart { ref cost } => {
                // Those that were open may go on, admitted again with their tokens.
                self.admitted.clear();
                cost.as_ref().map_or(Ok(()), |cost| cost.model().map(|_| ()))
            }
            Entry::Stop(..) | Entry::End => Ok(()),
        }
    }

    fn time(&mut self, field: &str, now: u64) -> Result<(), String> {
        within(field, now, self.now, MAX_NANOS)?;
        self.now = now;
        Ok(())
    }
}

fn check_offers(offers: &[OfferEntry]) -> Result<(), String> {
    let most = |count: usize| count as u64 - 1;
    offers.iter().try_for_each(|&OfferEntry(.., source, _, strength)| {
        within("offers: source", source.into(), 0, most(DraftProposal::SOURCES))?;
        within("offers: strength", strength.into(), 0, most(DraftProposal::STRENGTHS))
    })
}

/// A recording that is read from the start.
pub struct Recording {
    /// What was recorded.
    pub header: Header,
    path: PathBuf,
    file: BufReader<File>,
    line: usize,
    /// The header's.
    limits: Limits,
    so_far: SoFar,
    /// Whether `"end"` was read.
    pub(crate) has_end: bool,
}

impl Recording {
    /// Opens the file and reads its header.
    pub fn open(path: &Path) -> Result<Recording, RecordingError> {
        let io = |error| RecordingError::Io { path: path.to_owned(), error };
        let mut file = BufReader::new(files::open(path).map_err(io)?);
        let mut first = Vec::new();
        (&mut file).take(MAX_LINE_BYTES).read_until(b'\n', &mut first).map_err(io)?;
        let wrong = |problem: String| RecordingError::NotARecording { path: path.to_owned(), problem };
        if first.is_empty() {
            return Err(wrong("the file is empty".into()));
        }
        let value: serde_json::Value =
            serde_json::from_slice(&first).map_err(|_| wrong("its first line is not JSON".into()))?;
        let version = value.get("twostroke_recording").and_then(serde_json::Value::as_u64);
        match version {
            Some(OLDEST_VERSION..=VERSION) => {}
            Some(found) => return Err(RecordingError::Version { path: path.to_owned(), found }),
            None => return Err(wrong("its first line has no \"twostroke_recording\"".into())),
        }
        let header: Header = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        header.check().map_err(|problem| wrong(format!("line 1: {problem}")))?;
        let (limits, so_far) = (header.limits(), SoFar::default());
        Ok(Recording { header, path: path.to_owned(), file, line: 1, limits, so_far, has_end: false })
    }

    /// The next line; `None` at the end, and at a last line that was cut off.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, RecordingError> {
        let mut text = Vec::new();
        let read = (&mut self.file).take(MAX_LINE_BYTES).read_until(b'\n', &mut text);
        read.map_err(|error| RecordingError::Io { path: self.path.clone(), error })?;
        self.line += 1;
        if text.is_empty() || self.has_end && text.trim_ascii().is_empty() {
            return Ok(None);
        }
        match serde_json::from_slice(&text) {
            Ok(Entry::End) => {
                self.has_end = true;
                Ok(None)
            }
            Ok(entry) => match self.so_far.check(&entry, &self.limits) {
                Ok(()) => Ok(Some(entry)),
                Err(problem) => Err(self.wrong(problem)),
            },
            Err(_) if !text.ends_with(b"\n") && (text.len() as u64) < MAX_LINE_BYTES => Ok(None),
            Err(error) => Err(self.wrong(error.to_string())),
        }
    }

    /// Of the entry that was read last, counted from 1.
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// What is wrong with the line that was read last.
    pub(crate) fn wrong(&self, problem: impl Into<String>) -> RecordingError {
        RecordingError::Line { path: self.path.clone(), line: self.line, problem: problem.into() }
    }
}
