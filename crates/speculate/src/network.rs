//! Learned drafters: they compute, and the cost of that is measured and predicted as a step's is.

use kernels::DeviceError;
use model::{Batch, Forward, Logits};
use protocol::TokenId;
use scheduler::{DraftProposal, DraftSource, SeqId, Sequence, Step};

/// Their name among the scheduler's sources: an engine has one.
pub const SOURCE: DraftSource = DraftSource(6);

/// A sequence of which a drafter misses more tokens is not drafted: reading them would take long. Lookup may have
/// drafted that many meanwhile, or a busy time without drafts has passed.
pub(crate) const MOST_MISSING: usize = 256;

/// Draws the token behind a row of a drafter's logits, for a sequence and its drafts up to there: with the request's
/// parameters, the answer's history and the noise of that place, as the target will, so that both mostly draw the same.
/// `None`: the logits are not numbers.
pub type Draw<'a> = dyn FnMut(&Sequence, &[TokenId], &mut [f32]) -> Option<TokenId> + 'a;

/// Sequences by name, of those that live.
pub(crate) type SequenceLookup<'a, 's> = dyn Fn(SeqId) -> Option<&'s Sequence> + 'a;

/// A drafter with passes of its own. Its data of a sequence may be wrong or missing: that costs accepted drafts, never
/// an answer.
pub trait DraftNetwork: Send {
    /// A step is about to be planned. `of`: the sequences that go on.
    fn begin(&mut self, of: &SequenceLookup<'_, '_>);

    /// Drafts for a sequence, if it is near enough to having all of it.
    fn propose(&mut self, sequence: &Sequence) -> Option<DraftProposal>;

    /// A new scheduler begins, which gives the same names to other sequences. Its blocks are another's when their first
    /// slot is written.
    fn start_over(&mut self);

    /// What a plan moves, whether it has rows or not, and what it begins to write.
    fn follow(&mut self, _step: &Step, _of: &SequenceLookup<'_, '_>) {}

    /// Drafts these sequences of a planned step, each up to its count. `reads`: it should also read what makes later
    /// drafts cheaper.
    fn draft(
        &mut self,
        step: &Step,
        asked: &[(&Sequence, usize)],
        reads: bool,
        of: &SequenceLookup<'_, '_>,
        draw: &mut Draw<'_>,
    ) -> Result<(), DeviceError>;

    /// Its drafts for the sequence at that place of the list.
    fn drafted(&self, index: usize) -> &[TokenId];

    /// The target's pass is done: what it leaves behind can be read.
    fn landed(&mut self, _pass: &TargetPass<'_>, _target: &mut dyn Forward) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Sizes of a [`DraftNetwork`] with a cache that are the target's.
#[derive(Clone, Copy, Debug)]
pub struct DraftSizes {
    /// Drafts for one sequence in one step.
    pub max_drafts: usize,
    /// Rows of a pass.
    pub max_rows: usize,
    /// Rows with logits.
    pub max_logit_rows: usize,
    /// Tokens of a sequence that it can read.
    pub max_model_len: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

/// A row of the target's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnRow {
    /// Its sequence.
    pub seq: SeqId,
    /// Position of its token; its logits judge the next one.
    pub position: usize,
    /// Whether a token is drawn from it.
    pub is_drawn: bool,
}

/// A pass of the target, over all rows of a step or over some of them.
pub struct TargetPass<'a> {
    /// What it gave.
    pub logits: &'a Logits,
    /// What it computed.
    pub batch: &'a Batch,
    /// Whose the batch's spans are.
    pub seqs: &'a [SeqId],
    /// What each of the batch's rows of logits was wanted for.
    pub logit_rows: &'a [DrawnRow],
}

/// The drafts of several sequences, while they are made.
#[derive(Default)]
pub(crate) struct Lists(Vec<Vec<TokenId>>);

impl Lists {
    /// Empties the lists, one for each sequence.
    pub(crate) fn clear(&mut self, sequences: usize) {
        self.0.resize_with(sequences.max(self.0.len()), Vec::new);
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// Whether a sequence is in the pass for this place: it needs that many drafts, and had one of every pass before.
    pub(crate) fn continues(&self, index: usize, count: usize, place: usize) -> bool {
        count > place && self.0[index].len() == place
    }

    pub(crate) fn of(&self, index: usize) -> &[TokenId] {
        &self.0[index]
    }

    /// Appends a draft, if there is one.
    pub(crate) fn push(&mut self, index: usize, draft: Option<TokenId>) {
        self.0[index].extend(draft);
    }
}
