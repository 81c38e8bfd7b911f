//! Guesses at what decoding sequences say next: who makes them, and which ones a step checks.
//!
//! ```text
//! before the plan   Drafter::offer    how many tokens could be had, and how sure it is   -> Scheduler::offer
//! after it          Drafter::propose  exactly as many as the plan took                   -> rows behind the last token
//! after the draw    the run of tokens that were drawn; the scheduler learns how many of the guesses they were
//! after an answer   Drafter::remember what was said, to guess from it what is said next
//! ```
//! A guess decides nothing but time: a token is drawn from each row as if it were the only one, and the row behind it
//! counts only if its guess is that token. So a drafter may be wrong, late, or mad.

mod answers;
mod asked;
mod lookup;
mod prediction;

pub use asked::{DraftMethod, Drafters, LearnedDrafter, LookupOptions, Speculation};
pub(crate) use lookup::Lookup;
pub(crate) use prediction::Prediction;

use std::ops::Range;

use scheduler::{Offer, SeqId, Sequence, Step, TokenId};

use crate::recording::OfferEntry;

/// Somebody who guesses.
pub(crate) trait Drafter: Send {
    /// A step is about to be planned: what was offered for the one before is forgotten. `lives`: which sequences go on.
    fn begin(&mut self, lives: &dyn Fn(SeqId) -> bool);

    /// What it could say about the next tokens of a decoding sequence, whose client may have said what it expects;
    /// `None`: nothing.
    fn offer(&mut self, sequence: &Sequence, prediction: Option<&Prediction>) -> Option<Offer>;

    /// `count` guesses for a sequence, no more than it offered since the last plan, behind `guesses`. Fewer, and the
    /// missing ones are any token.
    fn propose(&mut self, sequence: &Sequence, count: usize, guesses: &mut Vec<TokenId>);

    /// Whether it wants to have the answers that are over.
    fn remembers(&self) -> bool {
        false
    }

    /// An answer is over: what it was, to whom.
    fn remember(&mut self, _salt: u64, _prompt: &[TokenId], _answer: &[TokenId]) {}
}

/// The guesses that a step checks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guesses {
    tokens: Vec<TokenId>,
    of: Vec<(SeqId, Range<usize>)>,
}

impl Guesses {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.of.clear();
    }

    /// Of a sequence; in the plan's order they are found at once.
    pub(crate) fn of(&self, seq: SeqId) -> &[TokenId] {
        let range = self.of.iter().find(|(other, _)| *other == seq).map(|(_, range)| range.clone());
        range.map_or(&[], |range| &self.tokens[range])
    }

    /// Exactly `count` guesses for a sequence. Where `propose` says too few, or what is no token, token 0 is as good a
    /// guess as any.
    pub(crate) fn take(&mut self, seq: SeqId, count: usize, vocab: usize, propose: impl FnOnce(&mut Vec<TokenId>)) {
        let start = self.tokens.len();
        propose(&mut self.tokens);
        self.tokens.resize(start + count, 0);
        self.tokens[start..].iter_mut().filter(|token| **token as usize >= vocab).for_each(|token| *token = 0);
        self.of.push((seq, start..start + count));
    }

    /// In the order of the step's decode rows that have some.
    pub(crate) fn lists(&self) -> Vec<Vec<TokenId>> {
        self.of.iter().map(|(_, range)| self.tokens[range.clone()].to_vec()).collect()
    }
}

/// What a recording keeps of guesses: all that was offered, and what was guessed for the decode rows that have drafts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drafted {
    pub(crate) offers: Vec<OfferEntry>,
    pub(crate) guesses: Vec<Vec<TokenId>>,
}

/// The guesses of a recording, for the step that was planned from its offers.
pub(crate) fn recorded(step: &Step, lists: &[Vec<TokenId>], vocab: usize, guesses: &mut Guesses) {
    let mut lists = lists.iter();
    for rows in step.decode.iter().filter(|rows| rows.drafts > 0) {
        let list = lists.next();
        guesses
            .take(rows.seq, rows.drafts, vocab, |tokens| tokens.extend(list.into_iter().flatten().take(rows.drafts)));
    }
}
