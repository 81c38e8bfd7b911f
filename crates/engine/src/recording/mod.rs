//! A run of the engine on disk: every input of the scheduler in order and with its time, and every step.
//!
//! ```text
//! engine thread   admit   step   stop   step   cancel   ...        one [`RecordLine`] each, sent and forgotten
//!                   |      |      |      |       |
//! recorder thread   +------+------+------+-------+----> FILE       one JSON object per line (format.rs, write.rs)
//! ```
//!
//! A scheduler is a function of its inputs: it has no clock, no random hasher and no IO, and every time that it gets
//! is in the log. So the log determines each step. With the model, which makes tokens a function of each request alone,
//! it determines the tokens too.
//!
//! The format is here alone, and public: the writer of recordings (this crate) and the reader that replays them (the
//! crate `replay`) share [`Header`] and [`Entry`].
//!
//! A recording holds the prompts and answers themselves (as token ids), seeds, stop strings and a number for each API
//! key. Its file is readable by its owner only.
//!
//! Recording never slows a step: lines go through a bounded channel to a thread that writes. If the disk does not keep
//! up or is full, the recording ends with one line in the log, and nothing else happens.

mod format;
mod write;

use std::path::PathBuf;

use protocol::{Nanos, RequestId, TokenId};
use scheduler::{CostModel, Step, StepRecord};
use speculate::DraftTokens;

use crate::validate::ValidatedRequest;

pub use observe::OfferEntry;

pub use format::{AdmitEntry, CostEntry, Entry, Header, OLDEST_VERSION, StepEntry, VERSION, within};
pub(crate) use write::record;

/// An input of the scheduler, or what came of it.
#[derive(Clone, Debug)]
pub(crate) enum RecordLine {
    /// A request came in. Its seed is settled.
    Admit { id: RequestId, request: Box<ValidatedRequest>, arrived: Nanos, now: Nanos },
    /// Its client is gone.
    Cancel(RequestId, Nanos),
    /// An answer's text holds a stop string.
    Stop(RequestId, usize),
    /// A plan without rows.
    Idle(Nanos),
    /// A step: its record, the requests with failed rows, tokens and drafts.
    Step(Box<StepRecord>, Vec<RequestId>, Box<StepTokens>),
    /// A plan that was not computed: its sequences went back to the queue. And the drafts that were on offer for it.
    Abandoned(Nanos, Vec<OfferEntry>),
    /// A step failed; everything admitted ended, and a new scheduler began with this model of costs.
    Restart(Option<CostModel>),
}

/// What only a recording needs of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTokens {
    /// In the plan's order, `samples` of each row of the record.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) drafted: RecordedDrafts,
}

/// What a recording keeps of drafts: all offers, and the drafts of the decode rows that have some.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordedDrafts {
    pub(crate) offers: Vec<OfferEntry>,
    pub(crate) drafts: Vec<Vec<TokenId>>,
    /// What drafting took of the step's time.
    pub(crate) took: Nanos,
}

impl RecordedDrafts {
    /// The drafts again, for the step that was planned from the same offers.
    pub(crate) fn again(&self, step: &Step, vocab: usize, drafts: &mut DraftTokens) {
        let mut lists = self.drafts.iter();
        for rows in step.decode.iter().filter(|rows| rows.drafts > 0) {
            let list = lists.next().into_iter().flatten().take(rows.drafts);
            drafts.take(rows.seq, rows.drafts, vocab, |tokens| tokens.extend(list));
        }
    }
}

/// Where lines go.
pub(crate) type RecordSink = Box<dyn FnMut(RecordLine) + Send>;

/// Why a recording did not begin: its file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct RecordError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub error: std::io::Error,
}
