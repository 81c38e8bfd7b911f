//! The drafters of an engine side by side, and which of their drafts a step checks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kernels::DeviceError;
use model::Forward;
use protocol::TokenId;
use scheduler::{DraftProposal, Scheduler, SeqId, Sequence, Step};

use crate::drafter::{DraftTokens, Drafter};
use crate::lookup::Lookup;
use crate::network::{DraftNetwork, Draw, SOURCE, TargetPass};
use crate::options::Drafters;
use crate::prediction::Prediction;
use crate::synthetic::SyntheticDrafter;

/// All drafters of an engine, side by side. Of their offers for a sequence the scheduler takes the most valuable.
#[derive(Default)]
pub struct DrafterSet {
    drafters: Vec<Box<dyn Drafter>>,
    network: Option<Box<dyn DraftNetwork>>,
}

impl DrafterSet {
    /// Those that are asked for and need no weights.
    pub fn of(asked: &Drafters) -> DrafterSet {
        let mut drafters = DrafterSet::default();
        if let Some(lookup) = &asked.lookup {
            drafters.join(Box::new(Lookup::new(asked.max_drafts, lookup)));
        }
        if let Some(acceptance) = asked.rehearsed {
            drafters.join(Box::new(SyntheticDrafter::new(asked.max_drafts, acceptance)));
        }
        drafters
    }

    /// One more.
    pub fn join(&mut self, drafter: Box<dyn Drafter>) {
        self.drafters.push(drafter);
    }

    /// Adds a learned drafter.
    pub fn join_network(&mut self, network: Box<dyn DraftNetwork>) {
        self.network = Some(network);
    }

    /// Whether there is no drafter.
    pub fn is_empty(&self) -> bool {
        self.drafters.is_empty() && self.network.is_none()
    }

    /// Whether a drafter takes passes.
    pub fn computes(&self) -> bool {
        self.network.is_some()
    }

    /// A step is about to be planned. `of`: the sequences that go on.
    pub fn begin<'a>(&mut self, of: &dyn Fn(SeqId) -> Option<&'a Sequence>) {
        self.drafters.iter_mut().for_each(|drafter| drafter.begin(&|seq| of(seq).is_some()));
        self.with_network(|network| network.begin(of));
    }

    /// What all could say of a sequence: see [`Drafter::propose`].
    pub fn proposals(
        &mut self,
        sequence: &Sequence,
        prediction: Option<&Prediction>,
    ) -> impl Iterator<Item = DraftProposal> {
        let of_network = self.with_network(|network| network.propose(sequence)).flatten();
        self.drafters.iter_mut().filter_map(move |drafter| drafter.propose(sequence, prediction)).chain(of_network)
    }

    /// See [`Drafter::start_over`].
    pub fn start_over(&mut self) {
        self.drafters.iter_mut().for_each(|drafter| drafter.start_over());
        self.with_network(|network| network.start_over());
    }

    /// What a plan moves, whether it has rows or not, and what it begins to write. Drafters with data per block learn
    /// of it before the plan is used otherwise.
    pub fn follow(&mut self, step: &Step, scheduler: &Scheduler) {
        self.with_network(|network| network.follow(step, &|seq| scheduler.sequence(seq)));
    }

    /// See [`Drafter::remembers`].
    pub fn remembers(&self) -> bool {
        self.drafters.iter().any(|drafter| drafter.remembers())
    }

    /// See [`Drafter::remember`].
    pub fn remember(&mut self, salt: u64, prompt: &[TokenId], answer: &[TokenId]) {
        self.drafters.iter_mut().for_each(|drafter| drafter.remember(salt, prompt, answer));
    }

    /// Drafts for all decode rows with drafts, each by the drafter whose offer the plan took. `reads`: see
    /// [`DraftNetwork::draft`].
    pub fn draft(
        &mut self,
        step: &Step,
        scheduler: &Scheduler,
        reads: bool,
        vocab: usize,
        draw: &mut Draw<'_>,
        drafts: &mut DraftTokens,
    ) {
        let of = |seq| scheduler.sequence(seq);
        let planned = |seq| of(seq).expect("a planned sequence lives until its step completes");
        let with_drafts =
            || step.decode.iter().filter(|rows| rows.drafts > 0).map(|rows| (planned(rows.seq), rows.drafts));
        let source = |sequence: &Sequence| sequence.proposal().expect("who has drafts had an offer").source;
        self.compute(|network| {
            let asked: Vec<_> = with_drafts().filter(|(sequence, _)| source(sequence) == SOURCE).collect();
            network.draft(step, &asked, reads, &of, draw)
        });
        let mut of_network = 0;
        for (sequence, count) in with_drafts() {
            drafts.take(sequence.id(), count, vocab, |tokens| {
                let source = source(sequence);
                if let Some(drafter) = self.drafters.iter_mut().find(|drafter| drafter.is(source)) {
                    drafter.draft(sequence, count, tokens);
                } else if let Some(network) = &self.network {
                    tokens.extend_from_slice(network.drafted(of_network));
                    of_network += 1;
                }
            });
        }
    }

    /// See [`DraftNetwork::landed`].
    pub fn landed(&mut self, pass: &TargetPass<'_>, target: &mut dyn Forward) {
        self.compute(|network| network.landed(pass, target));
    }

    /// Its device is lost, and what it knew with it.
    pub fn drop_network(&mut self) {
        self.network = None;
    }

    /// As [`with_network`](Self::with_network). One whose device is lost is dropped too.
    fn compute(&mut self, call: impl FnOnce(&mut dyn DraftNetwork) -> Result<(), DeviceError>) {
        if let Some(Err(error)) = self.with_network(call) {
            tracing::error!(%error, "the drafter lost its device; answers come without drafts from now on");
            self.drop_network();
        }
    }

    /// A network that panics is dropped; no answer needs it.
    fn with_network<R>(&mut self, call: impl FnOnce(&mut dyn DraftNetwork) -> R) -> Option<R> {
        let network = self.network.as_deref_mut()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| call(network)));
        if outcome.is_err() {
            tracing::error!("the drafter panicked; answers come without drafts from now on");
            self.network = None;
        }
        outcome.ok()
    }
}
