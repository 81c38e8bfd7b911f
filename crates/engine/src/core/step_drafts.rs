//! Drafts of a step: what the drafters offer before the plan, and what they draft after it. A recording replaces both.

use model::sampler::{Allowed, HistoryGuard, SampleKey, Sampler};
use observe::OfferEntry;
use protocol::{RequestId, TokenId};
use scheduler::{DraftProposal, Scheduler, Sequence};
use speculate::{DrafterSet, Prediction};

use super::ActiveRequest;
use super::compute::stop_tokens;
use crate::recording::RecordedDrafts;

#[derive(Default)]
pub(super) struct StepDrafts {
    pub(super) drafters: DrafterSet,
    /// What a recording says of the next step.
    pub(super) recorded: Option<RecordedDrafts>,
    /// What was on offer for the last plan, and what was drafted in the step that completes: a recording has one in
    /// flight.
    pub(super) made: RecordedDrafts,
    /// The offers for the next plan, kept for their memory.
    offers: Vec<DraftProposal>,
}

/// What a request says of drafts; `None`: it wants none.
type Wish<'a> = Option<Option<&'a Prediction>>;

impl StepDrafts {
    /// Gives the scheduler the drafters' offers. `wish`: of each request. Returns what a recording says was offered and
    /// drafted in this step.
    pub(super) fn offer<'a>(
        &mut self,
        scheduler: &mut Scheduler,
        wish: impl Fn(RequestId) -> Wish<'a>,
    ) -> Option<RecordedDrafts> {
        let StepDrafts { drafters, recorded, made, offers } = self;
        made.offers.clear();
        offers.clear();
        let recorded = recorded.take();
        if let Some(recorded) = &recorded {
            for entry in &recorded.offers {
                if let Some(sequence) = scheduler.sequences().find(|sequence| entry.is_for(sequence)) {
                    offers.push(entry.offer(sequence.id()));
                    made.offers.push(*entry);
                }
            }
        } else if !drafters.is_empty() {
            drafters.begin(&|seq| scheduler.sequence(seq));
            let are_wanted = scheduler.wants_proposals();
            for sequence in scheduler.decoding().filter(|_| are_wanted) {
                let Some(prediction) = wish(sequence.request_id()) else { continue };
                for offer in drafters.proposals(sequence, prediction) {
                    offers.push(offer);
                    made.offers.push(OfferEntry::of(sequence, &offer));
                }
            }
        }
        offers.iter().for_each(|&offer| scheduler.propose(offer));
        recorded
    }
}

/// What the target draws behind `ahead`, if `logits` are what it has there: a drafter that asks this with its own
/// logits mostly agrees with it.
pub(super) fn draw_ahead(
    active: &mut ActiveRequest,
    sequence: &Sequence,
    ahead: &[TokenId],
    sampler: &mut Sampler,
    logits: &mut [f32],
) -> Option<TokenId> {
    let index = sequence.answer();
    let (answer, stop) = (&mut active.answers[index], &active.request.stop);
    let params = active.request.sampling.without_logprobs();
    let (_, banned) = stop_tokens(stop, answer.num_tokens + ahead.len());
    let position = (sequence.num_tokens() + ahead.len()) as u64;
    let key = SampleKey { seed: active.seed, stream: index as u32, position };
    let history = HistoryGuard::of(&mut answer.history, ahead.iter().copied(), &params);
    let mask = match &mut answer.constraint {
        // A token that the grammar forbids is no draft.
        Some(constraint) => constraint.mask_behind(answer.num_tokens, ahead)?,
        None => None,
    };
    let drawn = sampler.sample(logits, &params, &history, Allowed { mask, banned }, key);
    drawn.ok().map(|drawn| drawn.token)
}
