//! Drafts with a chosen acceptance rate: they measure what a drafter of that quality would bring, before there is one.
//!
//! ```text
//! first time    an answer is written down while it is drawn; nothing is drafted
//! again         the same prompt, the same seed: the same answer. The next tokens are known, and the drafter errs
//!               at a place if hash(place) says so, once in 1 / (1 - acceptance) places
//! ```
//! It costs next to nothing, as lookup does. What a drafter with weights takes comes on top.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use protocol::TokenId;
use scheduler::{DraftProposal, DraftSource, SeqId, Sequence};

use crate::drafter::Drafter;
use crate::prediction::Prediction;

/// Its name among the scheduler's sources.
const SOURCE: DraftSource = DraftSource(7);
/// Answers that are remembered; beyond that all are forgotten. Loads that are measured repeat less.
const ANSWERS: usize = 4096;

/// See the module's head.
pub(crate) struct SyntheticDrafter {
    most_drafts: usize,
    acceptance: f64,
    /// By prompt and answer.
    answers: BTreeMap<u64, Vec<TokenId>>,
    /// Which of them a sequence gives.
    names: BTreeMap<SeqId, u64>,
}

impl SyntheticDrafter {
    /// Right with the chance `acceptance`, 0 to 1, wherever all before it is right.
    pub(crate) fn new(most_drafts: usize, acceptance: f64) -> SyntheticDrafter {
        SyntheticDrafter { most_drafts, acceptance, answers: BTreeMap::new(), names: BTreeMap::new() }
    }

    fn name_of(&mut self, sequence: &Sequence) -> u64 {
        *self.names.entry(sequence.id()).or_insert_with(|| {
            let mut hasher = DefaultHasher::new();
            (sequence.request().prompt.as_ref(), sequence.answer()).hash(&mut hasher);
            hasher.finish()
        })
    }

    fn errs(&self, name: u64, place: usize) -> bool {
        let mut hasher = DefaultHasher::new();
        (name, place).hash(&mut hasher);
        (hasher.finish() >> 11) as f64 / (1u64 << 53) as f64 >= self.acceptance
    }
}

impl Drafter for SyntheticDrafter {
    fn begin(&mut self, lives: &dyn Fn(SeqId) -> bool) {
        if self.answers.len() > ANSWERS {
            self.answers.clear();
        }
        if self.names.len() > ANSWERS {
            self.names.retain(|&seq, _| lives(seq));
        }
    }

    fn start_over(&mut self) {
        self.names.clear();
    }

    fn propose(&mut self, sequence: &Sequence, _: Option<&Prediction>) -> Option<DraftProposal> {
        let name = self.name_of(sequence);
        let said = sequence.num_generated();
        let answer = self.answers.entry(name).or_default();
        if answer.len() < said {
            let tokens = sequence.tokens();
            answer.extend(&tokens[tokens.len() - (said - answer.len())..]);
        }
        let len = (answer.len() - said).min(self.most_drafts) as u16;
        (len > 0).then_some(DraftProposal { seq: sequence.id(), source: SOURCE, len, strength: 0 })
    }

    fn is(&self, source: DraftSource) -> bool {
        source == SOURCE
    }

    fn draft(&mut self, sequence: &Sequence, count: usize, drafts: &mut Vec<TokenId>) {
        let name = self.name_of(sequence);
        let said = sequence.num_generated();
        let places = said..said + count;
        let answer = self.answers.get(&name).map_or(&[][..], |answer| answer.as_slice());
        // One token beside the right one is surely wrong.
        drafts.extend(places.filter_map(|place| Some(answer.get(place)? ^ u32::from(self.errs(name, place)))));
    }
}
