//! A run of the engine on disk: every input of the scheduler in order and with its time, and every step.
//!
//! ```text
//! engine thread   admit   step   stop   step   cancel   ...        one [`Line`] each, sent and forgotten
//!                   |      |      |      |       |
//! recorder thread   +------+------+------+-------+----> FILE       one JSON object per line (format.rs, write.rs)
//!
//! replay          FILE --> the production scheduler, at the recorded times --> the same steps, or where they differ
//! ```
//!
//! A scheduler is a function of its inputs: it has no clock, no random hasher and no IO, and every time that it is told
//! is in the log. So the log determines each step, and [`replay()`] compares them exactly. With the model, whose tokens
//! are a function of each request alone, the tokens are compared too.
//!
//! A recording holds the prompts and answers themselves (as token ids), seeds, stop strings and a number for each API
//! key. Its file is readable by its owner only.
//!
//! Recording never slows a step: lines go through a bounded channel to a thread that writes. If the disk does not keep
//! up or is full, the recording ends with one line in the log, and nothing else happens.

mod format;
mod replay;
mod write;

use std::path::PathBuf;

use scheduler::{CostModel, Nanos, RequestId, StepRecord, TokenId};

use crate::door::ValidatedRequest;

pub use format::{Header, Recording};
pub use replay::{Difference, ReplayError, Replayed, Told, replay, replay_with_model};
pub(crate) use write::record;

/// Something that the scheduler was told, or that came of it.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    /// A request came in. Its seed is settled.
    Admit { id: RequestId, request: Box<ValidatedRequest>, arrived: Nanos, now: Nanos },
    /// Its client is gone.
    Cancel(RequestId, Nanos),
    /// An answer's text holds a stop string.
    Stop(RequestId, usize),
    /// A plan without rows.
    Idle(Nanos),
    /// A step: what it was, the tokens that were sampled in the plan's order (as many for each row as the record says), and
    /// the requests whose rows failed.
    Step(Box<StepRecord>, Vec<TokenId>, Vec<RequestId>),
    /// A plan that was not computed: its sequences went back to the queue.
    Abandoned(Nanos),
    /// A step failed; everything admitted ended, and a new scheduler began with this model of costs.
    Restart(Option<CostModel>),
}

/// Where lines go.
pub(crate) type Tape = Box<dyn FnMut(Line) + Send>;

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
    #[error("{}: a recording of format {found}; this program reads format {}", path.display(), format::VERSION)]
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
