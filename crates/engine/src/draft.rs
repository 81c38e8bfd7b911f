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
mod files;
mod lookup;
pub(crate) mod model;
mod prediction;
mod rehearsed;

pub use asked::{DraftMethod, Drafters, LearnedDrafter, LookupOptions, Speculation};
pub(crate) use files::DraftFiles;
pub(crate) use lookup::Lookup;
pub(crate) use model::{Beside, DraftModel};
pub(crate) use prediction::Prediction;
pub(crate) use rehearsed::Rehearsed;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use scheduler::{Nanos, Offer, Scheduler, SeqId, Sequence, SourceId, Step, TokenId};

use crate::recording::OfferEntry;

/// Somebody who guesses.
pub(crate) trait Drafter: Send {
    /// A step is about to be planned: what was offered for the one before is forgotten. `lives`: which sequences go on.
    fn begin(&mut self, lives: &dyn Fn(SeqId) -> bool);

    /// What it could say about the next tokens of a decoding sequence, whose client may have said what it expects;
    /// `None`: nothing.
    fn offer(&mut self, sequence: &Sequence, prediction: Option<&Prediction>) -> Option<Offer>;

    /// Whether offers of this source are its own.
    fn is(&self, source: SourceId) -> bool;

    /// `count` guesses for a sequence whose [`Sequence::offer`] is its own, no more than it offered since the last plan,
    /// behind `guesses`. Fewer, and the missing ones are any token.
    fn propose(&mut self, sequence: &Sequence, count: usize, guesses: &mut Vec<TokenId>);

    /// A new scheduler begins, which gives the same names to other sequences.
    fn start_over(&mut self) {}

    /// Whether it wants to have the answers that are over.
    fn remembers(&self) -> bool {
        false
    }

    /// An answer is over: what it was, to whom.
    fn remember(&mut self, _salt: u64, _prompt: &[TokenId], _answer: &[TokenId]) {}
}

/// All who guess for an engine, side by side. Of what they offer for a sequence the scheduler takes what is worth most.
#[derive(Default)]
pub(crate) struct Drafting {
    drafters: Vec<Box<dyn Drafter>>,
    /// Who has passes of its own.
    model: Option<DraftModel>,
}

impl Drafting {
    /// Those that are asked for and need no weights.
    pub(crate) fn of(asked: &Drafters) -> Drafting {
        let mut drafting = Drafting::default();
        if let Some(lookup) = &asked.lookup {
            drafting.join(Box::new(Lookup::new(asked.most_guesses, lookup)));
        }
        if let Some(acceptance) = asked.rehearsed {
            drafting.join(Box::new(Rehearsed::new(asked.most_guesses, acceptance)));
        }
        drafting
    }

    /// One more.
    pub(crate) fn join(&mut self, drafter: Box<dyn Drafter>) {
        self.drafters.push(drafter);
    }

    /// A model guesses too.
    pub(crate) fn join_model(&mut self, model: DraftModel) {
        self.model = Some(model);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.drafters.is_empty() && self.model.is_none()
    }

    pub(crate) fn has_model(&self) -> bool {
        self.model.is_some()
    }

    pub(crate) fn begin<'a>(&mut self, of: &dyn Fn(SeqId) -> Option<&'a Sequence>) {
        self.drafters.iter_mut().for_each(|drafter| drafter.begin(&|seq| of(seq).is_some()));
        if let Some(model) = &mut self.model {
            model.begin(of);
        }
    }

    pub(crate) fn offers(
        &mut self,
        sequence: &Sequence,
        prediction: Option<&Prediction>,
    ) -> impl Iterator<Item = Offer> {
        let of_model = self.model.as_mut().and_then(|model| model.offer(sequence));
        self.drafters.iter_mut().filter_map(move |drafter| drafter.offer(sequence, prediction)).chain(of_model)
    }

    /// See [`Drafter::start_over`]. A model's blocks are another's when their first slot is written.
    pub(crate) fn start_over(&mut self) {
        self.drafters.iter_mut().for_each(|drafter| drafter.start_over());
    }

    /// See [`Drafter::remembers`].
    pub(crate) fn remembers(&self) -> bool {
        self.drafters.iter().any(|drafter| drafter.remembers())
    }

    /// See [`Drafter::remember`].
    pub(crate) fn remember(&mut self, salt: u64, prompt: &[TokenId], answer: &[TokenId]) {
        self.drafters.iter_mut().for_each(|drafter| drafter.remember(salt, prompt, answer));
    }

    /// What a plan moves, whether it has rows or not, and what it begins to write: whoever keeps something by block
    /// hears of it before anything else is made of the plan.
    pub(crate) fn follow(&mut self, step: &Step, scheduler: &Scheduler) {
        let of = |seq| scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        if let Some(model) = &mut self.model {
            let followed = catch_unwind(AssertUnwindSafe(|| model.follow(step, of)));
            self.give_up_after(followed);
        }
    }

    /// Guesses for all decode rows with drafts, by whoever made the offers that the plan took.
    pub(crate) fn propose(
        &mut self,
        step: &Step,
        scheduler: &Scheduler,
        vocab: usize,
        draw: &mut model::Draw<'_>,
        guesses: &mut Guesses,
    ) {
        let of = |seq| scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let with_drafts = || step.decode.iter().filter(|rows| rows.drafts > 0).map(|rows| (of(rows.seq), rows.drafts));
        let source = |sequence: &Sequence| sequence.offer().expect("who has drafts had an offer").source;
        if let Some(model) = &mut self.model {
            let asked: Vec<_> = with_drafts().filter(|(sequence, _)| source(sequence) == model::SOURCE).collect();
            let said = catch_unwind(AssertUnwindSafe(|| model.propose(&asked, draw)));
            self.give_up_after(said);
        }
        let mut of_model = 0;
        for (sequence, count) in with_drafts() {
            guesses.take(sequence.id(), count, vocab, |tokens| {
                let source = source(sequence);
                if let Some(drafter) = self.drafters.iter_mut().find(|drafter| drafter.is(source)) {
                    drafter.propose(sequence, count, tokens);
                } else if let Some(model) = &self.model {
                    tokens.extend_from_slice(model.proposed(of_model));
                    of_model += 1;
                }
            });
        }
    }

    /// Prompts are read along, so that their answers can be guessed.
    pub(crate) fn read(&mut self, step: &Step, scheduler: &Scheduler) {
        let of = |seq| scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        if let Some(model) = self.model.as_mut().filter(|_| !step.prefill.is_empty()) {
            let read = catch_unwind(AssertUnwindSafe(|| model.read(step, of)));
            self.give_up_after(read);
        }
    }

    /// A drafter that panics guesses no more; nobody's answer needs it.
    fn give_up_after(&mut self, outcome: std::thread::Result<()>) {
        if outcome.is_err() {
            tracing::error!("the drafter panicked; from now on answers come without its guesses");
            self.model = None;
        }
    }
}

/// The guesses that a step checks, in the order of its decode rows.
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

    /// Of each sequence that has some.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &[TokenId])> {
        self.of.iter().map(|(seq, range)| (*seq, &self.tokens[range.clone()]))
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

    /// The same without the names.
    pub(crate) fn lists(&self) -> Vec<Vec<TokenId>> {
        self.iter().map(|(_, guesses)| guesses.to_vec()).collect()
    }
}

/// What a recording keeps of guesses: all that was offered, and what was guessed for the decode rows that have drafts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Drafted {
    pub(crate) offers: Vec<OfferEntry>,
    pub(crate) guesses: Vec<Vec<TokenId>>,
    /// What guessing took of the step's time.
    pub(crate) took: Nanos,
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
