//! A step from its plan to its tokens, and those that are on their way together.
//!
//! ```text
//! launch   offer ── plan ── move blocks ── draft ──── lower ── Forward::launch ─┐
//!                                                  flights: one on a CPU; a device may take more
//! land     Forward::wait ── sample  <──────────────────────────────────────────┘  the oldest comes first
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use kernels::DeviceError;
use model::{Batch, Forward, Ticket};
use protocol::{Nanos, TokenId};
use scheduler::{Scheduler, Sequence, Step};
use speculate::DraftTokens;

use super::EngineCore;
use super::compute::PassPart;
use super::step_drafts::draw_ahead;
use crate::encoders::mark_pairs;
use crate::lower::{LogitRow, lower};
use crate::recording::RecordedDrafts;
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
    pub(super) fn launch(&mut self, now: Nanos, clock: &mut dyn FnMut() -> Nanos) -> Result<bool, DeviceError> {
        if let Some(tiers) = &mut self.tiers {
            tiers.settle(&mut *self.forward, &mut self.scheduler);
        }
        let mut flight = self.buffers.spare.pop().unwrap_or_default();
        let recorded = self.offer();
        let reads = self.drafts.drafters.computes() && self.scheduler.wants_proposals();
        self.scheduler.schedule_into(now, &mut flight.step);
        self.drafts.drafters.follow(&flight.step, &self.scheduler);
        self.transfer(&flight.step)?;
        for id in std::mem::take(&mut flight.step.needs_prefill) {
            self.request_remote_prefill(id, now);
        }
        if flight.step.is_empty() {
            self.buffers.spare.push(flight);
            return Ok(false);
        }
        flight.drafts.clear();
        match recorded {
            Some(recorded) => {
                recorded.again(&flight.step, self.buffers.logit_row.len(), &mut flight.drafts);
                self.scheduler.set_drafting_time(recorded.took);
            }
            None if self.drafts.drafters.computes() => {
                let begun = clock();
                self.draft(&flight.step, reads, &mut flight.drafts);
                self.scheduler.set_drafting_time(clock().since(begun));
            }
            None => self.draft(&flight.step, reads, &mut flight.drafts),
        }
        let of_prompt = |sequence: &Sequence| {
            self.active.get(&sequence.request_id()).map_or(OfPrompt::Nothing, |active| active.of_prompt)
        };
        let best = |sequence: &Sequence| {
            let active = self.active.get(&sequence.request_id());
            active.map_or(0, |active| self.features.decided_by(sequence.request_id(), &active.request))
        };
        let InFlightPass { step, batch, logit_rows, drafts, .. } = &mut flight;
        let adapter = |sequence: &Sequence| self.active.get(&sequence.request_id())?.request.adapter_slot();
        lower(step, &self.scheduler, (of_prompt, best, adapter), drafts, batch, logit_rows);
        if self.scheduler.limits().whole_prompts {
            let second_from = |scheduler: &Scheduler, seq| {
                self.active.get(&scheduler.sequence(seq)?.request_id())?.request.second_from
            };
            mark_pairs(step, &self.scheduler, second_from, batch);
        }
        self.tell_beginnings(now);
        flight.ticket = ticket(&mut *self.forward, &flight.batch)?;
        self.in_flight.push_back(flight);
        Ok(true)
    }

    /// Gives the scheduler the drafters' offers. Returns what a recording says was offered and drafted in this step.
    pub(super) fn offer(&mut self) -> Option<RecordedDrafts> {
        let EngineCore { drafts, scheduler, active, .. } = self;
        drafts.offer(scheduler, |id| {
            let request = &active.get(&id)?.request;
            request.speculate.then_some(request.prediction.as_deref())
        })
    }

    /// Asks the drafters for as many drafts as the plan took.
    fn draft(&mut self, step: &Step, reads: bool, tokens: &mut DraftTokens) {
        let EngineCore { drafts, scheduler, active, sampler, buffers, .. } = self;
        let mut draw = |sequence: &Sequence, ahead: &[TokenId], logits: &mut [f32]| {
            let active = active.get_mut(&sequence.request_id())?;
            draw_ahead(active, sequence, ahead, sampler, logits)
        };
        drafts.drafters.draft(step, scheduler, reads, buffers.logit_row.len(), &mut draw, tokens);
    }

    /// Moves the blocks that a step wants moved. With nothing to compute, waits for one that is on its way.
    fn transfer(&mut self, step: &Step) -> Result<(), DeviceError> {
        if let Some(tiers) = &mut self.tiers {
            tiers.transfer(step, &mut *self.forward, &mut self.scheduler)?;
            if step.is_empty() && self.in_flight.is_empty() && self.scheduler.is_loading() {
                tiers.wait(LOAD_WAIT);
            }
        }
        if !step.copies.is_empty() {
            let copies: Vec<_> = step.copies.iter().map(|copy| (copy.src.0, copy.dst.0)).collect();
            self.forward.copy_blocks(&copies);
        }
        Ok(())
    }

    /// The oldest step's rows are computed and sampled. The requests of those that cannot be are in `failed`
    /// afterwards.
    pub(super) fn finish_pass(&mut self) -> Result<(), DeviceError> {
        let mut flight = self.in_flight.pop_front().expect("a step is in flight");
        self.buffers.output.step = flight.step.id;
        self.buffers.output.rows.clear();
        let launched = flight.ticket.take();
        let whole =
            PassPart { batch: &flight.batch, spans: 0..flight.batch.spans.len(), wanted: 0..flight.logit_rows.len() };
        let is_done = launched.map_or(Ok(false), |ticket| self.attempt(&flight, Some(ticket), &whole))?;
        if !is_done {
            tracing::error!(rows = flight.batch.num_rows(), "a pass panicked; its rows are computed again in parts");
            self.bisect(&flight, 0..flight.batch.spans.len())?;
            // The parts took the place of the passes behind it. What those wrote they write again, the same.
            for later in self.in_flight.iter_mut().filter(|later| later.ticket.is_some()) {
                later.ticket = ticket(&mut *self.forward, &later.batch)?;
            }
        }
        self.drafts.made.drafts = if self.journal.records() { flight.drafts.lists() } else { Vec::new() };
        self.buffers.spare.push(flight);
        Ok(())
    }
}

/// `None`: the launch panicked.
fn ticket(forward: &mut dyn Forward, batch: &Batch) -> Result<Option<Ticket>, DeviceError> {
    catch_unwind(AssertUnwindSafe(|| forward.launch(batch))).ok().transpose()
}
