//! The rows of a step: computed and sampled. A row that cannot be computed costs no other row anything.
//!
//! ```text
//! pass over all rows --panics--> pass over each half --panics--> ... --> one sequence, twice --panics--> its request ends
//!                                                                        (and twice without its drafts, if it has any)
//! ```
//! A device that is lost fails every pass, so there is nothing to find: see moving.rs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use grammar::ConstraintError;
use kernels::DeviceError;
use model::sampler::{Allowed, HistoryGuard, SampleError, SampleKey, Sampled, TokenLogProbs};
use model::{Batch, Logits, Ticket};
use protocol::{RequestId, StopRules, TokenId};
use scheduler::RowOutput;
use speculate::{DrawnRow, TargetPass};

use super::EngineCore;
use super::in_flight::InFlightPass;
use crate::feature::CoreEvent;
use crate::lower::LogitRow;
use crate::output::{Event, RequestError, TokenLogprob};
use crate::validate::OfPrompt;

/// All of a step or part of it, in one pass.
pub(super) struct PassPart<'a> {
    pub(super) batch: &'a Batch,
    /// Which of the step's sequences it has.
    pub(super) spans: Range<usize>,
    /// Which of the step's rows of logits.
    pub(super) wanted: Range<usize>,
}

/// What a row without a token means to its client.
fn why(error: SampleError, is_ruled: bool) -> RequestError {
    match error {
        SampleError::NothingLeft if is_ruled => ConstraintError::NothingFollows.into(),
        _ => RequestError::NanLogits,
    }
}

/// Whether an answer of `num_tokens` tokens may end with a stop token, and the ids that may not be drawn if not.
pub(super) fn stop_tokens(stop: &StopRules, num_tokens: usize) -> (bool, &[TokenId]) {
    let heeds = num_tokens >= stop.min_tokens;
    (heeds, if heeds { &[] } else { &stop.stop_token_ids })
}

impl EngineCore {
    /// Computes some of the step's sequences, in halves until those are found that fail alone. Those that do not are as
    /// they would have been: what a row computes does not depend on the rows beside it.
    pub(super) fn bisect(&mut self, flight: &InFlightPass, spans: Range<usize>) -> Result<(), DeviceError> {
        let middle = spans.start + spans.len() / 2;
        for part in [spans.start..middle, middle..spans.end].into_iter().filter(|part| !part.is_empty()) {
            let (rows, wanted) = flight.batch.part(part.clone());
            let pass = PassPart { batch: &rows, spans: part.clone(), wanted };
            if self.attempt(flight, None, &pass)? {
                continue;
            }
            if part.len() > 1 {
                self.bisect(flight, part)?;
                continue;
            }
            // It may not have been its own failure. One that is comes again.
            if self.attempt(flight, None, &pass)? {
                continue;
            }
            let rows = flight.step.rows().nth(part.start).expect("a span is of a sequence");
            // A draft is optional work: without it this is a decode row like any other.
            let (row, wanted) = flight.batch.head(part.start, rows.len - rows.drafts);
            let without = PassPart { batch: &row, spans: part, wanted };
            if rows.drafts > 0 && (self.attempt(flight, None, &without)? || self.attempt(flight, None, &without)?) {
                continue;
            }
            let sequence =
                self.scheduler.sequence(rows.seq).expect("a planned sequence lives until its step completes");
            tracing::error!(request = sequence.request_id().0, "its rows panic; the request ends");
            self.buffers.failed.push((sequence.request_id(), RequestError::Internal));
        }
        Ok(())
    }

    /// One pass. `ticket`: it was launched. False: it panicked, and nothing of it is in the output.
    pub(super) fn attempt(
        &mut self,
        flight: &InFlightPass,
        ticket: Option<Ticket>,
        part: &PassPart<'_>,
    ) -> Result<bool, DeviceError> {
        let (num_rows, num_failed) = (self.buffers.output.rows.len(), self.buffers.failed.len());
        let logit_rows = &flight.logit_rows[part.wanted.clone()];
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            let ticket = ticket.map_or_else(|| self.forward.launch(part.batch), Ok)?;
            let logits = self.forward.wait(ticket)?;
            self.sample(logit_rows, &logits)?;
            Ok(logits)
        }));
        let Ok(logits) = attempt else {
            self.buffers.output.rows.truncate(num_rows);
            self.buffers.failed.truncate(num_failed);
            return Ok(false);
        };
        let logits = logits?;
        if self.drafts.drafters.computes() {
            let seqs: Vec<_> =
                flight.step.rows().skip(part.spans.start).take(part.spans.len()).map(|rows| rows.seq).collect();
            let drawn = |row: &LogitRow| DrawnRow { seq: row.seq, position: row.position, is_drawn: row.samples > 0 };
            let rows: Vec<_> = logit_rows.iter().map(drawn).collect();
            let pass = TargetPass { logits: &logits, batch: part.batch, seqs: &seqs, logit_rows: &rows };
            self.drafts.drafters.landed(&pass, &mut *self.forward);
        }
        Ok(true)
    }

    /// Draws a token from every row that ended its known tokens, and judges the prompts that want it. `rows`: what the
    /// pass's rows of logits are wanted for.
    fn sample(&mut self, rows: &[LogitRow], logits: &Logits) -> Result<(), DeviceError> {
        self.prepare_masks(rows);
        // The sequence whose run of tokens has ended: drafts beyond the end enter no history.
        let mut run_over = None;
        for (in_pass, row) in rows.iter().enumerate() {
            match row.of_prompt {
                OfPrompt::Nothing => {}
                OfPrompt::LogProbs(top) => self.score_row(row, top, logits, in_pass)?,
                OfPrompt::Embedding => self.embed_row(row, logits, in_pass)?,
            }
            if row.samples > 0 && run_over != Some(row.seq) {
                let holds = row
                    .draft
                    .is_none_or(|draft| self.buffers.output.rows.last().is_some_and(|last| last.token == draft));
                let goes_on = holds && self.sample_row(row, logits, in_pass)?;
                run_over = (!goes_on).then_some(row.seq);
            }
        }
        Ok(())
    }

    /// Computes what may follow each answer under a rule, all of them in parallel: one takes tens of microseconds, and
    /// some a millisecond. Behind drafts it waits for the verdict on these.
    fn prepare_masks(&mut self, rows: &[LogitRow]) {
        let mut wanted: BTreeMap<RequestId, Vec<Range<usize>>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.samples > 0 && row.ahead == 0) {
            let sequence = self.scheduler.sequence(row.seq).expect("a planned sequence lives until its step completes");
            let first = sequence.answer();
            if self.active.get(&sequence.request_id()).is_some_and(|active| active.request.rule.is_some()) {
                wanted.entry(sequence.request_id()).or_default().push(first..first + row.samples);
            }
        }
        if wanted.is_empty() {
            return;
        }
        let mut constraints = Vec::new();
        for (id, active) in &mut self.active {
            let Some(ranges) = wanted.get(id) else { continue };
            let answers = active.answers.iter_mut().enumerate();
            let answers = answers.filter(|(index, _)| ranges.iter().any(|range| range.contains(index)));
            constraints.extend(answers.filter_map(|(_, answer)| {
                let at = answer.num_tokens;
                answer.constraint.as_mut().map(|constraint| Mutex::new((constraint, at)))
            }));
        }
        self.forward.share_out(constraints.len(), &|index| {
            let mut one = constraints[index].lock().unwrap_or_else(PoisonError::into_inner);
            let (constraint, at) = &mut *one;
            // It is kept; what is wrong is found again where the answer is looked at.
            let _ = constraint.mask(*at);
        });
    }

    /// False if nothing may follow in this step.
    fn sample_row(&mut self, row: &LogitRow, logits: &Logits, in_pass: usize) -> Result<bool, DeviceError> {
        let &LogitRow { seq, position, samples, ahead, .. } = row;
        let sequence = self.scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let (id, first_answer) = (sequence.request_id(), sequence.answer());
        // A request that left while the step was under way needs no token.
        let Some(active) = self.active.get_mut(&id) else { return Ok(false) };
        let first_token = self.buffers.output.rows.len();
        let run = first_token - ahead..first_token;
        let mut goes_on = true;
        for index in first_answer..first_answer + samples {
            let (answer, stop, params) = (&mut active.answers[index], &active.request.stop, &active.request.sampling);
            let (heeds_stop_tokens, banned) = stop_tokens(stop, answer.num_tokens + ahead);
            let key = SampleKey { seed: active.seed, stream: index as u32, position: position as u64 + 1 };
            let is_decided = self.forward.read_best(logits, in_pass, self.sampler.best_mut())?;
            if !is_decided {
                self.forward.read_logits(logits, in_pass, &mut self.buffers.logit_row)?;
            }
            if index == first_answer && !is_decided {
                let answers = first_answer..first_answer + samples;
                self.features.tell(&CoreEvent::Sampling { id, answers, ahead, logits: &self.buffers.logit_row });
            }
            let drawn = {
                let drawn = self.buffers.output.rows[run.clone()].iter().map(|row| row.token);
                let history = HistoryGuard::of(&mut answer.history, drawn, params);
                let mask = answer.constraint.as_mut().map(|constraint| constraint.mask(answer.num_tokens + ahead));
                let drawn = mask.transpose().map(Option::flatten).map_err(RequestError::from).and_then(|mask| {
                    let allowed = Allowed { mask, banned };
                    let drawn = match is_decided {
                        true => self.sampler.sample_best(params, key),
                        false => self.sampler.sample(&mut self.buffers.logit_row, params, &history, allowed, key),
                    };
                    drawn.map_err(|error| why(error, mask.is_some()))
                });
                drawn.and_then(|drawn| {
                    let accepted =
                        answer.constraint.as_mut().map_or(Ok(()), |constraint| constraint.accept(drawn.token));
                    accepted.map(|()| drawn).map_err(RequestError::from)
                })
            };
            match drawn {
                Ok(Sampled { token, logprob, top }) => {
                    let is_first = index == 0 && answer.num_tokens + ahead == 0;
                    if is_first && let Err(error) = self.handoffs.compare(id, token) {
                        self.buffers.output.rows.truncate(first_token);
                        self.buffers.failed.push((id, error));
                        return Ok(false);
                    }
                    answer.logprobs.truncate(ahead);
                    answer.logprobs.extend(params.logprobs.map(|_| TokenLogprob { token, logprob, top }));
                    goes_on &= !(heeds_stop_tokens && stop.stop_token_ids.contains(&token));
                    goes_on &= !answer.is_complete(ahead + 1);
                    self.buffers.output.rows.push(RowOutput { seq, token });
                }
                // The tokens before it stand; it comes again in the next step, and fails there.
                Err(_) if ahead > 0 => return Ok(false),
                Err(error) => {
                    self.buffers.output.rows.truncate(first_token);
                    self.buffers.failed.push((id, error));
                    return Ok(false);
                }
            }
        }
        Ok(goes_on)
    }

    /// The log probability of the prompt token after this row, for a request that asked.
    fn score_row(&mut self, row: &LogitRow, top: u32, logits: &Logits, in_pass: usize) -> Result<(), DeviceError> {
        let &LogitRow { seq, position, .. } = row;
        let sequence = self.scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let id = sequence.request_id();
        let Some(active) = self.active.get_mut(&id) else { return Ok(()) };
        let prompt = &active.request.prompt;
        if active.of_prompt == OfPrompt::Nothing {
            return Ok(());
        }
        if position == 0 {
            active.prompt_logprobs = vec![None];
        }
        // Rows that come again after a preemption have been judged.
        let next = position + 1;
        if next < prompt.len() && active.prompt_logprobs.len() == next {
            self.forward.read_logits(logits, in_pass, &mut self.buffers.logit_row)?;
            match self.sampler.log_probs_of(&self.buffers.logit_row, prompt[next], top as usize) {
                Ok(TokenLogProbs { logprob, top, .. }) => {
                    active.prompt_logprobs.push(Some(TokenLogprob { token: prompt[next], logprob, top }));
                }
                Err(_) => self.buffers.failed.push((id, RequestError::NanLogits)),
            }
        }
        if active.prompt_logprobs.len() == prompt.len() {
            active.of_prompt = OfPrompt::Nothing;
            active.events.send(Event::PromptLogprobs(std::mem::take(&mut active.prompt_logprobs)));
        }
        Ok(())
    }

    /// The vector of a prompt: what the head reads of its last token.
    fn embed_row(&mut self, row: &LogitRow, logits: &Logits, in_pass: usize) -> Result<(), DeviceError> {
        let sequence = self.scheduler.sequence(row.seq).expect("a planned sequence lives until its step completes");
        let id = sequence.request_id();
        let Some(active) = self.active.get_mut(&id) else { return Ok(()) };
        let mut vector = vec![0.0; self.forward.config().vector_width()];
        self.forward.read_hidden(logits, in_pass..in_pass + 1, &mut vector)?;
        if !vector.iter().all(|value| value.is_finite()) {
            self.buffers.failed.push((id, RequestError::NanLogits));
            return Ok(());
        }
        active.of_prompt = OfPrompt::Nothing;
        active.events.send(Event::Embedding(vector));
        Ok(())
    }
}
