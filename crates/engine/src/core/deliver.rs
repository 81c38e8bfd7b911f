//! Delivery of a step to clients: tokens as text, and the ends of answers.

use protocol::{FinishReason, Nanos, RequestId, TokenId};
use scheduler::{RowOutput, TokenEvent};
use text::detokenizer::TextPiece;

use super::{EngineCore, StepBuffers};
use crate::feature::{CoreEvent, EndedAnswer};
use crate::journal::Fact;
use crate::output::Event;

impl EngineCore {
    /// Turns events into text and sends them to the clients.
    pub(super) fn deliver(&mut self, now: Nanos) {
        let mut events = std::mem::take(&mut self.buffers.events);
        for (index, event) in events.iter().enumerate() {
            match *event {
                TokenEvent::Token { request, answer, token } => {
                    // What the scheduler says of its end follows at once.
                    let end = match events.get(index + 1) {
                        Some(&TokenEvent::Finished { request: r, answer: a, reason })
                            if (r, a) == (request, answer) =>
                        {
                            Some(reason)
                        }
                        _ => None,
                    };
                    self.deliver_token(request, answer, token, end, now);
                }
                TokenEvent::Finished { request, answer, reason } => {
                    self.finish_answer(request, answer, reason, None, now)
                }
            }
        }
        events.clear();
        self.buffers.events = events;
    }

    /// A run of tokens ends where its text has a stop string: what comes behind that is of no answer, and is not
    /// counted.
    pub(super) fn cut_runs(&mut self) {
        let EngineCore { scheduler, active, buffers: StepBuffers { output, .. }, .. } = self;
        let mut first = 0;
        while let Some(row) = output.rows.get(first) {
            let run = output.rows[first..].iter().take_while(|other| other.seq == row.seq).count();
            let sequence = scheduler.sequence(row.seq).filter(|sequence| sequence.num_generated() > 0);
            let active = sequence.and_then(|sequence| active.get(&sequence.request_id()).zip(Some(sequence.answer())));
            let mut len = run;
            if let Some((active, answer)) =
                active.filter(|(active, _)| run > 1 && !active.request.stop_strings.is_empty())
            {
                let answer = &active.answers[answer];
                let mut detokenizer = answer.detokenizer.clone();
                let ends = |(index, row): (usize, &RowOutput)| match &mut detokenizer {
                    Some(detokenizer) if answer.num_tokens + index < active.request.stop.min_tokens => {
                        detokenizer.push_unstoppable(row.token);
                        false
                    }
                    Some(detokenizer) => detokenizer.push(row.token).stopped.is_some(),
                    None => false,
                };
                len = output.rows[first..][..run].iter().enumerate().position(ends).map_or(run, |last| last + 1);
                output.rows.drain(first + len..first + run);
            }
            first += len;
        }
    }

    /// `end`: how the scheduler ended the answer with this token.
    fn deliver_token(&mut self, id: RequestId, index: usize, token: TokenId, end: Option<FinishReason>, now: Nanos) {
        let Some(active) = self.active.get_mut(&id) else { return };
        let answer = &mut active.answers[index];
        if answer.has_ended {
            return;
        }
        answer.num_tokens += 1;
        self.handoffs.token_delivered(id, index, token);
        if active.request.sampling.needs_history() {
            answer.history.push(token);
        }
        self.features.tell(&CoreEvent::Delivered { id, answer: index, token });
        answer.generated.iter_mut().for_each(|generated| generated.push(token));
        // A stop token's own text is not part of the answer, unless asked for.
        let withhold = matches!(end, Some(FinishReason::Stop(Some(_)))) && !active.request.include_stop_string;
        let piece = match &mut answer.detokenizer {
            // Before `min_tokens` a stop string is text like any other.
            Some(detokenizer) if answer.num_tokens <= active.request.stop.min_tokens => {
                TextPiece { text: detokenizer.push_unstoppable(token), stopped: None }
            }
            Some(detokenizer) if !withhold => detokenizer.push(token),
            _ => Default::default(),
        };
        let logprob = answer.logprobs.pop_front();
        let is_complete = answer.is_complete(0) && !matches!(end, Some(FinishReason::Stop(_)));
        active.events.send(Event::Token { answer: index, token, text: piece.text, logprob });
        if active.events.is_overfull() {
            self.buffers.slow_readers.push(id);
        }
        if piece.stopped.is_some() || is_complete {
            // The scheduler already knows of what it has ended itself.
            if end.is_none() {
                self.scheduler.stop(id, index);
                self.journal.take(Fact::Stopped(id, index));
            }
            self.finish_answer(id, index, FinishReason::Stop(None), piece.stopped, now);
        }
    }

    /// With its last answer a request is complete. Its client learns of that when the journal has its account.
    fn finish_answer(
        &mut self,
        id: RequestId,
        index: usize,
        reason: FinishReason,
        stop_string: Option<usize>,
        now: Nanos,
    ) {
        let Some(active) = self.active.get_mut(&id) else { return };
        let answer = &mut active.answers[index];
        if std::mem::replace(&mut answer.has_ended, true) {
            return;
        }
        self.journal.take(Fact::AnswerEnded(id, index, reason));
        let text = match &mut answer.detokenizer {
            Some(detokenizer) if stop_string.is_none() => detokenizer.finish(),
            _ => String::new(),
        };
        let generated = answer.generated.take();
        let ended = EndedAnswer { id, answer: index, request: &active.request, reason, stop_string };
        self.features.attachments(&ended).for_each(|attachment| active.events.send(attachment));
        if let Some(generated) = generated {
            self.drafts.drafters.remember(active.request.salt, &active.request.prompt, &generated);
        }
        active.events.send(Event::Finished { answer: index, reason, stop_string, text });
        if active.answers.iter().all(|answer| answer.has_ended) {
            self.journal.take(Fact::Finished(id, now));
        }
    }
}
