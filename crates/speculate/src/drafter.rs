//! What a drafter that computes nothing has to do, and the drafts that come of it.

use std::ops::Range;

use protocol::TokenId;
use scheduler::{DraftProposal, DraftSource, SeqId, Sequence};

use crate::prediction::Prediction;

/// A drafter that looks texts up and computes nothing. One that computes is a [`DraftNetwork`].
pub trait Drafter: Send {
    /// A step is about to be planned: what was offered for the one before is forgotten. `lives`: which sequences
    /// continue.
    fn begin(&mut self, lives: &dyn Fn(SeqId) -> bool);

    /// Its offer for a decoding sequence, with the client's predicted output if there is one; `None`: nothing.
    fn propose(&mut self, sequence: &Sequence, prediction: Option<&Prediction>) -> Option<DraftProposal>;

    /// Whether offers of this source are its own.
    fn is(&self, source: DraftSource) -> bool;

    /// `count` drafts for a sequence whose [`Sequence::proposal`] is its own, no more than it offered since the last plan,
    /// behind `drafts`. If there are fewer, the missing ones are any token.
    fn draft(&mut self, sequence: &Sequence, count: usize, drafts: &mut Vec<TokenId>);

    /// A new scheduler begins, which gives the same names to other sequences.
    fn start_over(&mut self) {}

    /// Whether it wants to have the answers that are over.
    fn remembers(&self) -> bool {
        false
    }

    /// An answer is over: its salt, prompt and tokens.
    fn remember(&mut self, _salt: u64, _prompt: &[TokenId], _answer: &[TokenId]) {}
}

/// The drafts that a step checks, in the order of its decode rows.
#[derive(Clone, Debug, Default)]
pub struct DraftTokens {
    tokens: Vec<TokenId>,
    of: Vec<(SeqId, Range<usize>)>,
}

impl DraftTokens {
    /// Forgets all, and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.of.clear();
    }

    /// Of each sequence that has some.
    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &[TokenId])> {
        self.of.iter().map(|(seq, range)| (*seq, &self.tokens[range.clone()]))
    }

    /// Exactly `count` drafts for a sequence. Where `draft` gives too few, or an id outside the vocabulary, token 0
    /// is as good a draft as any.
    pub fn take(&mut self, seq: SeqId, count: usize, vocab: usize, draft: impl FnOnce(&mut Vec<TokenId>)) {
        let start = self.tokens.len();
        draft(&mut self.tokens);
        self.tokens.resize(start + count, 0);
        self.tokens[start..].iter_mut().filter(|token| **token as usize >= vocab).for_each(|token| *token = 0);
        self.of.push((seq, start..start + count));
    }

    /// The same without the names.
    pub fn lists(&self) -> Vec<Vec<TokenId>> {
        self.iter().map(|(_, drafts)| drafts.to_vec()).collect()
    }
}
