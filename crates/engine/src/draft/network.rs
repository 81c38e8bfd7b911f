//! Guesses by something that was trained: it computes, and what that costs is measured and predicted as a step is.

use model::{Batch, Forward, Logits};
use scheduler::{DraftProposal, DraftSource, SeqId, Sequence, Step, TokenId};

use crate::lower::LogitRow;

/// Their name among the scheduler's sources: an engine has one.
pub(crate) const SOURCE: DraftSource = DraftSource(6);

/// A sequence of which a drafter misses more tokens is not guessed: reading them would take long. Texts may have
/// guessed so many meanwhile, or a busy time with no guesses at all has passed.
pub(crate) const MOST_MISSING: usize = 256;

/// Draws the token behind a row of a drafter's logits, for a sequence and what is guessed of it so far: with the request's
/// parameters, the answer's history and the noise of that place, as the target will, so that both mostly draw the same.
/// `None`: these are no logits.
pub(crate) type Draw<'a> = dyn FnMut(&Sequence, &[TokenId], &mut [f32]) -> Option<TokenId> + 'a;

/// Sequences by name, of those that live.
pub(crate) type Of<'a, 's> = dyn Fn(SeqId) -> Option<&'s Sequence> + 'a;

/// Somebody who guesses by passes of its own. What it has of a sequence may be wrong or missing: that costs guesses,
/// never an answer.
pub(crate) trait Network: Send {
    /// A step is about to be planned. `of`: the sequences that go on.
    fn begin(&mut self, of: &Of<'_, '_>);

    /// Guesses for a sequence, if it is near enough to having all of it.
    fn offer(&mut self, sequence: &Sequence) -> Option<DraftProposal>;

    /// A new scheduler begins, which gives the same names to other sequences. Its blocks are another's when their first
    /// slot is written.
    fn start_over(&mut self);

    /// What a plan moves, whether it has rows or not, and what it begins to write.
    fn follow(&mut self, _step: &Step, _of: &Of<'_, '_>) {}

    /// These sequences of a planned step are to be guessed so far each. `reads`: what it can read beside, so that later
    /// guesses cost less, it should.
    fn guess(&mut self, step: &Step, asked: &[(&Sequence, usize)], reads: bool, of: &Of<'_, '_>, draw: &mut Draw<'_>);

    /// What it guessed for the sequence at that place of the list.
    fn guessed(&self, index: usize) -> &[TokenId];

    /// The target's pass is done: what it leaves behind can be read.
    fn landed(&mut self, _pass: &Landed<'_>, _target: &mut dyn Forward) {}
}

/// Sizes of a [`Network`] with a cache that are the target's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// Guesses for one sequence in one step.
    pub(crate) most_guesses: usize,
    /// Rows of a pass, and those of them that can have logits.
    pub(crate) max_rows: usize,
    pub(crate) max_logit_rows: usize,
    /// Tokens of a sequence that it can read.
    pub(crate) max_model_len: usize,
    pub(crate) blocks: usize,
    pub(crate) block_size: usize,
}

/// A pass of the target, over all rows of a step or over some of them.
pub(crate) struct Landed<'a> {
    pub(crate) logits: &'a Logits,
    pub(crate) batch: &'a Batch,
    /// Whose the batch's spans are.
    pub(crate) seqs: &'a [SeqId],
    /// What each of the batch's rows of logits was wanted for.
    pub(crate) logit_rows: &'a [LogitRow],
}

/// The guesses of several sequences, while they are made.
#[derive(Default)]
pub(crate) struct Lists(Vec<Vec<TokenId>>);

impl Lists {
    /// For so many sequences, empty.
    pub(crate) fn clear(&mut self, sequences: usize) {
        self.0.resize_with(sequences.max(self.0.len()), Vec::new);
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// Who is guessed in the pass for this place: who wants so many, and said something in every pass before.
    pub(crate) fn goes_on(&self, index: usize, count: usize, place: usize) -> bool {
        count > place && self.0[index].len() == place
    }

    pub(crate) fn of(&self, index: usize) -> &[TokenId] {
        &self.0[index]
    }

    /// One more guess, if there is one.
    pub(crate) fn push(&mut self, index: usize, guess: Option<TokenId>) {
        self.0[index].extend(guess);
    }
}
