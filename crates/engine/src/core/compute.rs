//! The rows of a step: computed and sampled. A row that cannot be computed costs nobody else's.
//!
//! ```text
//! pass over all rows --panics--> pass over each half --panics--> ... --> one sequence, twice --panics--> its request ends
//! ```

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use model::sampler::{SampleKey, Sampled, TokenLogProbs};
use model::{Batch, Logits, Ticket};
use receipt::Digest;
use scheduler::{RowOutput, TokenId};

use super::EngineCore;
use super::flight::Flight;
use crate::lower::LogitRow;
use crate::output::{Output, RequestError, TokenLogprob};

impl EngineCore {
    /// Computes some of the step's sequences, in halves until those are found that fail alone. Those that do not are as
    /// they would have been: what a row computes does not depend on who computes beside it.
    pub(super) fn bisect(&mut self, flight: &Flight, spans: Range<usize>) {
        let middle = spans.start + spans.len() / 2;
        for part in [spans.start..middle, middle..spans.end].into_iter().filter(|part| !part.is_empty()) {
            let (rows, wanted) = flight.batch.part(part.clone());
            if self.attempt(flight, None, &rows, wanted.clone()).is_ok() {
                continue;
            }
            if part.len() > 1 {
                self.bisect(flight, part);
                continue;
            }
            // It may not have been its own failure. One that is comes again.
            if self.attempt(flight, None, &rows, wanted).is_ok() {
                continue;
            }
            let rows = flight.step.rows().nth(part.start).expect("a span is of a sequence");
            let sequence =
                self.scheduler.sequence(rows.seq).expect("a planned sequence lives until its step completes");
            tracing::error!(request = sequence.request_id().0, "its rows panic; the request ends");
            self.failed.push((sequence.request_id(), RequestError::Internal));
        }
    }

    /// One pass over `batch`, all of a step or part of it, whose rows of logits are `rows` of the step's. `ticket`: it
    /// was launched. After a panic nothing of it is in the output.
    pub(super) fn attempt(
        &mut self,
        flight: &Flight,
        ticket: Option<Ticket>,
        batch: &Batch,
        rows: Range<usize>,
    ) -> Result<(), ()> {
        let (num_rows, num_failed) = (self.output.rows.len(), self.failed.len());
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            let ticket = ticket.unwrap_or_else(|| self.forward.launch(batch));
            let logits = self.forward.wait(ticket);
            self.sample(&flight.logit_rows, &logits, rows);
        }));
        attempt.map_err(|_| {
            self.output.rows.truncate(num_rows);
            self.failed.truncate(num_failed);
        })
    }

    /// Draws a token from every row that ended its known tokens, and judges the prompts that want it. `rows`: which of
    /// the step's rows of logits the pass had.
    fn sample(&mut self, wanted: &[LogitRow], logits: &Logits, rows: Range<usize>) {
        for (in_pass, row) in wanted[rows].iter().enumerate() {
            if row.scores {
                self.score_row(row, logits, in_pass);
            }
            if row.samples > 0 {
                self.sample_row(row, logits, in_pass);
            }
        }
    }

    fn sample_row(&mut self, row: &LogitRow, logits: &Logits, in_pass: usize) {
        let &LogitRow { seq, position, samples, .. } = row;
        let sequence = self.scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let (id, first_answer) = (sequence.request_id(), sequence.answer());
        // Who left while the step was under way wants no token.
        let Some(active) = self.active.get_mut(&id) else { return };
        let first_token = self.output.rows.len();
        let mut digest = None;
        for index in first_answer..first_answer + samples {
            let (answer, stop, params) = (&mut active.answers[index], &active.request.stop, &active.request.sampling);
            let banned: &[TokenId] = if answer.num_tokens < stop.min_tokens { &stop.stop_token_ids } else { &[] };
            let key = SampleKey { seed: active.seed, stream: index as u32, position: position as u64 + 1 };
            self.forward.read_logits(logits, in_pass, &mut self.logit_row);
            if let Some(notes) = &mut answer.notes {
                // Answers that begin with the same row share its digest.
                notes.row(*digest.get_or_insert_with(|| Digest::of_row(&self.logit_row)));
            }
            match self.sampler.sample(&mut self.logit_row, params, &answer.history, banned, key) {
                Ok(Sampled { token, logprob, top }) => {
                    answer.logprob = params.logprobs.map(|_| TokenLogprob { token, logprob, top });
                    self.output.rows.push(RowOutput { seq, token });
                }
                Err(_) => {
                    self.output.rows.truncate(first_token);
                    return self.failed.push((id, RequestError::NanLogits));
                }
            }
        }
    }

    /// The log probability of the prompt token after this row, for a request that asked.
    fn score_row(&mut self, row: &LogitRow, logits: &Logits, in_pass: usize) {
        let &LogitRow { seq, position, .. } = row;
        let sequence = self.scheduler.sequence(seq).expect("a planned sequence lives until its step completes");
        let id = sequence.request_id();
        let Some(active) = self.active.get_mut(&id) else { return };
        let (Some(top), prompt) = (active.scores, &active.request.prompt) else { return };
        if position == 0 {
            active.prompt_logprobs = vec![None];
        }
        // Rows that come again after a preemption have been judged.
        let next = position + 1;
        if next < prompt.len() && active.prompt_logprobs.len() == next {
            self.forward.read_logits(logits, in_pass, &mut self.logit_row);
            match self.sampler.log_probs_of(&self.logit_row, prompt[next], top as usize) {
                Ok(TokenLogProbs { logprob, top, .. }) => {
                    active.prompt_logprobs.push(Some(TokenLogprob { token: prompt[next], logprob, top }));
                }
                Err(_) => self.failed.push((id, RequestError::NanLogits)),
            }
        }
        if active.prompt_logprobs.len() == prompt.len() {
            active.scores = None;
            active.outputs.send(Output::PromptLogprobs(std::mem::take(&mut active.prompt_logprobs)));
        }
    }
}
