//! A step from its plan to its tokens, and those that are on their way together.
//!
//! ```text
//! launch   offer ── plan ── move blocks ── draft ──── lower ── Forward::launch ─┐
//!                                                  flights: one on a CPU; a device may take more
//! land     Forward::wait ── sample  <──────────────────────────────────────────┘  the oldest comes first
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use model::sampler::{Allowed, SampleKey, Sampler};
use model::{Batch, Forward, Ticket};
use protocol::{Nanos, TokenId};
use scheduler::{RowOutput, Sequence, Step};

use super::compute::{HistoryGuard, PassPart, stop_tokens};
use super::{ActiveRequest, EngineCore};
use crate::draft::{self, DraftTokens, RecordedDrafts};
use crate::lower::{LogitRow, lower};
use crate::recording::OfferEntry;
use crate::validate::OfPrompt;

/// How long the engine's thread waits for a block when it has nothing else to do, before it looks for commands again.
const LOAD_WAIT: Duration = Duration::from_millis(5);

/// A step in flight.
#[derive(Default)]
pub(super) struct InFlightPass {
    pub(super) step: Step,
    pub(super) batch: Batch,
    /// What each of the batch's rows of logits is wanted for.
    pub(super) logit_rows: Vec<LogitRow>,
    /// What the step's drafts are.
    drafts: DraftTokens,
    /// `None`: the launch panicked.
    ticket: Option<Ticket>,
}

impl EngineCore {
    /// Plans a step and launches it; `clock` is read around drafting passes. False if there is nothing to compute.
    pub(super) fn launch(&mut self, now: Nanos, clock: &mut dyn FnMut() -> Nanos) -> bool {
        if let Some(tiers) = &mut self.tiers {
            tiers.settle(&mut *self.forward, &mut self.scheduler);
        }
        let mut flight = self.spare.pop().unwrap_or_default();
        let recorded = self.offer();
        let reads = self.drafters.computes() && self.scheduler.wants_proposals();
        self.scheduler.schedule_into(now, &mut flight.step);
        self.drafters.follow(&flight.step, &self.scheduler);
        self.transfer(&flight.step);
        for id in std::mem::take(&mut flight.step.needs_prefill) {
            self.request_remote_prefill(id, now);
        }
        if flight.step.is_empty() {
            self.spare.push(flight);
            return false;
        }
        flight.drafts.clear();
        match recorded {
            Some(recorded) => {
                draft::recorded(&flight.step, &recorded.drafts, self.logit_row.len(), &mut flight.drafts);
                self.scheduler.set_drafting_time(recorded.took);
            }
            None if self.drafters.computes() => {
                let begun = clock();
                self.draft(&flight.step, reads, &mut flight.drafts);
                self.scheduler.set_drafting_time(clock().since(begun));
            }
            None => self.draft(&flight.step, reads, &mut flight.drafts),
        }
        let of_prompt = |sequence: &Sequence| {
            self.active.get(&sequence.request_id()).map_or(OfPrompt::Nothing, |active| active.of_prompt)
        };
        let InFlightPass { step, batch, logit_rows, drafts, .. } = &mut flight;
        let adapter = |sequence: &Sequence| self.active.get(&sequence.request_id())?.request.adapter_slot();
        lower(step, &self.scheduler, (of_prompt, adapter), drafts, batch, logit_rows);
        self.tell_beginnings(now);
        flight.ticket = ticket(&mut *self.forward, &flight.batch);
        self.in_flight.push_back(flight);
        true
    }

    /// Gives the scheduler the drafters' offers. Returns what a recording says was offered and drafted in this step.
    pub(super) fn offer(&mut self) -> Option<RecordedDrafts> {
        let offers = &mut self.drafted.offers;
        offers.clear();
        self.offers.clear();
        let recorded = self.recorded_drafts.take();
        if let Some(recorded) = &recorded {
            for entry in &recorded.offers {
                if let Some(sequence) = self.scheduler.sequences().find(|sequence| entry.is_for(sequence)) {
                    self.offers.push(entry.offer(sequence.id()));
                    offers.push(*entry);
                }
            }
        } else if !self.drafters.is_empty() {
            self.drafters.begin(&|seq| self.scheduler.sequence(seq));
            let are_wanted = self.scheduler.wants_proposals();
            for sequence in self.scheduler.decoding().filter(|_| are_wanted) {
                let active = self.active.get(&sequence.request_id()).filter(|active| active.request.speculate);
                let prediction = active.and_then(|active| active.request.prediction.as_deref());
                let made = active.map(|_| self.drafters.proposals(sequence, prediction)).into_iter().flatten();
                for offer in made {
                    self.offers.push(offer);
                    offers.push(OfferEntry::of(sequence, &offer));
                }
            }
        }
        self.offers.iter().for_each(|&offer| self.scheduler.propose(offer));
        recorded
    }

    /// Asks the drafters for as many drafts as the plan took.
    fn draft(&mut self, step: &Step, reads: bool, drafts: &mut DraftTokens) {
        let EngineCore { drafters, scheduler, active, sampler, logit_row, .. } = self;
        let mut draw = |sequence: &Sequence, ahead: &[TokenId], logits: &mut [f32]| {
            let active = active.get_mut(&sequence.request_id())?;
            draw_ahead(active, sequence, ahead, sampler, logits)
        };
        drafters.draft(step, scheduler, reads, logit_row.len(), &mut draw, drafts);
    }

    /// Moves the blocks that a step wants moved. With nothing to compute, waits for one that is on its way.
    fn transfer(&mut self, step: &Step) {
        if let Some(tiers) = &mut self.tiers {
            tiers.transfer(step, &mut *self.forward, &mut self.scheduler);
            if step.is_empty() && self.in_flight.is_empty() && self.scheduler.is_loading() {
                tiers.wait(LOAD_WAIT);
            }
        }
        if !step.copies.is_empty() {
            let copies: Vec<_> = step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
            self.forward.copy_blocks(&copies);
        }
    }

    /// The oldest step's rows are computed and sampled. The requests of those that cannot be are in `failed`
    /// afterwards.
    pub(super) fn finish_pass(&mut self) {
        let mut flight = self.in_flight.pop_front().expect("a step is in flight");
        self.output.step = flight.step.id;
        self.output.rows.clear();
        let launched = flight.ticket.take();
        let whole =
            PassPart { batch: &flight.batch, spans: 0..flight.batch.spans.len(), wanted: 0..flight.logit_rows.len() };
        let is_done = launched.is_some_and(|ticket| self.attempt(&flight, Some(ticket), &whole).is_ok());
        if !is_done {
            tracing::error!(rows = flight.batch.num_rows(), "a pass panicked; its rows are computed again in parts");
            self.bisect(&flight, 0..flight.batch.spans.len());
            // The parts took the place of the passes behind it. What those wrote they write again, the same.
            for later in self.in_flight.iter_mut().filter(|later| later.ticket.is_some()) {
                later.ticket = ticket(&mut *self.forward, &later.batch);
            }
        }
        self.drafted.drafts = if self.journal.records() { flight.drafts.lists() } else { Vec::new() };
        self.spare.push(flight);
    }
}

/// What the target draws behind `ahead`, if `logits` are what it has there: a drafter that asks this with its own
/// logits mostly agrees with it.
fn draw_ahead(
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
    let run: Vec<RowOutput> = ahead.iter().map(|&token| RowOutput { seq: sequence.id(), token }).collect();
    let history = HistoryGuard::of(&mut answer.history, &run, params.needs_history());
    let mask = match &mut answer.constraint {
        // A token that the grammar forbids is no draft.
        Some(constraint) => constraint.mask_behind(answer.num_tokens, ahead)?,
        None => None,
    };
    let drawn = sampler.sample(logits, &params, history.history(), Allowed { mask, banned }, key);
    drawn.ok().map(|drawn| drawn.token)
}

fn ticket(forward: &mut dyn Forward, batch: &Batch) -> Option<Ticket> {
    catch_unwind(AssertUnwindSafe(|| forward.launch(batch))).ok()
}
