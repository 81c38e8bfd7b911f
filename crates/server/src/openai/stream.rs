//! A streamed answer in OpenAI's events, one per token.

use std::collections::VecDeque;
use std::sync::Arc;

use dialect::AnswerPart;
use engine::receipt::Receipt;
use engine::{Event, PromptProgress, TokenLogprob};
use hyper::body::Bytes;
use serde_json::Value;
use telemetry::answer_timings::WireTimings;
use telemetry::timeline::RequestTrace;
use transport::error::ApiError;
use transport::sse::{event, framed};

use crate::answers::{EventStream, FinishInfo, ResponsePlan, StreamParser, StreamWriter, Totals};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::openai::format::{Format, json};
use crate::openai::logprobs::{ChatLogprobs, TextLogprobs};
use crate::openai::said::Said;
use crate::openai::wire::{ChatChunk, Delta, Envelope, TextChoice, WireProgress, WireUsage};

/// One choice of a stream.
#[derive(Default)]
struct Choice {
    /// Parses the answer, where tools or thoughts are expected.
    parser: Option<StreamParser>,
    started: bool,
    offset: usize,
    num_tokens: usize,
    /// Goes with its last event.
    receipt: Option<Receipt>,
}

impl Choice {
    fn new(plan: &ResponsePlan, trace: &Arc<RequestTrace>, index: usize) -> Choice {
        Choice { parser: StreamParser::of(plan, trace, index), ..Choice::default() }
    }
}

/// Turns outputs into events, one per token.
pub(crate) struct Writer {
    app: Arc<App>,
    plan: ResponsePlan,
    trace: Arc<RequestTrace>,
    created: u64,
    prompts: Vec<Vec<u32>>,
    prompt_logprobs: Vec<Vec<Option<TokenLogprob>>>,
    choices: Vec<Choice>,
    unfinished: usize,
    /// Prompts whose `Done` has not come.
    undone: usize,
    /// The last choice to finish: its event carries the timings, which come right behind it.
    last: Option<(usize, Piece)>,
    totals: Totals,
}

/// A piece of an answer, before it has a form.
#[derive(Default)]
struct Piece {
    text: String,
    /// Parsed parts, where there is a parser.
    parts: Option<Vec<AnswerPart>>,
    token: Option<u32>,
    logprob: Option<TokenLogprob>,
    end: Option<FinishInfo>,
    timings: Option<WireTimings>,
    receipt: Option<Receipt>,
}

impl Writer {
    pub(crate) fn new(app: Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Writer {
        let prompts = outputs.prompts();
        let num_choices = prompts.len() * plan.num_answers;
        Writer {
            trace: outputs.trace().clone(),
            created: app.now(),
            prompt_logprobs: vec![Vec::new(); prompts.len()],
            choices: (0..num_choices).map(|index| Choice::new(&plan, outputs.trace(), index)).collect(),
            unfinished: num_choices,
            undone: prompts.len(),
            last: None,
            totals: Totals::of(&plan),
            app,
            plan,
            prompts,
        }
    }

    /// After the last prompt's `Done`: the last choice's end, the token counts, and the mark that nothing follows.
    fn finish(&mut self, events: &mut VecDeque<Bytes>) {
        let Some((choice, piece)) = self.last.take() else { return };
        let timings = Some(self.frame().timings(&self.totals));
        let receipt = self.choices[choice].receipt.take();
        let piece = Piece { timings: timings.clone(), receipt, ..piece };
        events.push_back(self.event(choice, piece));
        if self.plan.delivery.include_usage {
            let frame = self.frame();
            let mut envelope = frame.envelope::<ChatChunk>(self.object(), Vec::new());
            envelope.usage = Some(Some(frame.usage(&self.totals)));
            (envelope.timings, envelope.adjustments) = (timings, Some(&self.plan.delivery.adjustments));
            events.push_back(event(&json(&envelope)));
        }
        events.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }

    fn frame(&self) -> Format<'_> {
        Format { app: &self.app, plan: &self.plan, trace: &self.trace, created: self.created }
    }

    fn object(&self) -> &'static str {
        match self.plan.endpoint {
            Endpoint::Completion => "text_completion",
            _ => "chat.completion.chunk",
        }
    }

    /// One event of one choice. The first one of a choice opens it: with the role, or with the echoed prompt.
    fn event(&mut self, index: usize, piece: Piece) -> Bytes {
        let opens = !std::mem::replace(&mut self.choices[index].started, true);
        let mut offset = self.choices[index].offset;
        let bytes = match self.plan.endpoint {
            Endpoint::Completion => self.text_event(index, opens, piece, &mut offset),
            _ => self.chat_events(index, opens, piece),
        };
        self.choices[index].offset = offset;
        bytes
    }

    fn chat_events(&self, index: usize, opens: bool, piece: Piece) -> Bytes {
        let texts = self.frame().texts();
        let mut text = String::new();
        if opens {
            let content = self.plan.echo.first().cloned().unwrap_or_default();
            let delta = Delta { role: Some("assistant"), content: Some(content), ..Delta::default() };
            let chunk = ChatChunk { index, delta, ..ChatChunk::default() };
            let mut envelope = self.chunk(index, chunk, None);
            if let Some(Some(usage)) = &mut envelope.usage {
                // Its first token comes in the next event.
                *usage = WireUsage::so_far(usage.prompt_tokens, 0);
            }
            if index == 0 {
                envelope.prompt_token_ids = self.plan.delivery.token_ids.then(|| Some(self.prompts[0].clone()));
                let logprobs = || Some(texts.prompt(&self.prompt_logprobs[0]));
                envelope.prompt_logprobs = self.plan.prompt_logprobs.then(logprobs);
            }
            text.push_str(&framed(&json(&envelope)));
        }
        let (finish_reason, stop_reason) = piece.end.map(|end| (end.finish.name(), end.stop_reason)).unzip();
        let said = piece.parts.map(|parts| Said::of(parts, &self.app));
        let delivery = &self.plan.delivery;
        // Each token has its event, an invisible one too: a mark, or the beginning of one. The end of an answer has
        // content only when text was held back until then.
        let is_token = piece.token.is_some();
        let delta = match said {
            None => Delta { content: (is_token || !piece.text.is_empty()).then_some(piece.text), ..Delta::default() },
            Some(said) if said.is_empty() => Delta { content: is_token.then(String::new), ..Delta::default() },
            Some(said) => said.delta(),
        };
        let chunk = ChatChunk {
            index,
            delta,
            logprobs: piece
                .logprob
                .filter(|_| self.plan.logprobs)
                .map(|logprob| ChatLogprobs { content: vec![texts.chat(&logprob)], refusal: None }),
            finish_reason,
            stop_reason,
            token_ids: delivery.token_ids.then(|| piece.token.into_iter().collect()),
            receipt: piece.receipt,
        };
        text.push_str(&framed(&json(&self.chunk(index, chunk, piece.timings))));
        text.into()
    }

    /// A chunk that brings nothing to its choice: it opens when its first token comes.
    fn progress(&self, index: usize, progress: &PromptProgress) -> Bytes {
        let progress = Some(WireProgress::of(progress));
        let json = match self.plan.endpoint {
            Endpoint::Completion => {
                let choice = TextChoice { index, ..TextChoice::default() };
                json(&Envelope { prompt_progress: progress, ..self.chunk(index, choice, None) })
            }
            _ => {
                let chunk = ChatChunk { index, ..ChatChunk::default() };
                json(&Envelope { prompt_progress: progress, ..self.chunk(index, chunk, None) })
            }
        };
        event(&json)
    }

    fn text_event(&self, index: usize, opens: bool, piece: Piece, offset: &mut usize) -> Bytes {
        let prompt = index / self.plan.num_answers;
        let (frame, texts) = (self.frame(), self.frame().texts());
        let mut lists = TextLogprobs::default();
        let mut text = piece.text;
        if opens && let Some(echo) = self.plan.echo.get(prompt) {
            lists = frame.echoed_logprobs(&self.prompts[prompt], &self.prompt_logprobs[prompt], offset);
            text.insert_str(0, echo);
        }
        if let Some(logprob) = &piece.logprob {
            texts.push(&mut lists, offset, logprob.token, Some(logprob));
        }
        let shows_logprobs = self.plan.logprobs && !lists.tokens.is_empty();
        let (finish_reason, stop_reason) = piece.end.map(|end| (end.finish.name(), end.stop_reason)).unzip();
        let choice = TextChoice {
            index,
            text,
            logprobs: shows_logprobs.then_some(lists),
            finish_reason,
            stop_reason: stop_reason.unwrap_or(Value::Null),
            prompt_logprobs: (opens && self.plan.prompt_logprobs)
                .then(|| Some(texts.prompt(&self.prompt_logprobs[prompt]))),
            token_ids: self.plan.delivery.token_ids.then(|| Some(piece.token.into_iter().collect())),
            prompt_token_ids: (opens && self.plan.delivery.token_ids).then(|| Some(self.prompts[prompt].clone())),
            receipt: piece.receipt,
        };
        framed(&json(&self.chunk(index, choice, piece.timings))).into()
    }

    fn chunk<C>(&self, index: usize, choice: C, timings: Option<WireTimings>) -> Envelope<'_, C> {
        let delivery = &self.plan.delivery;
        let mut envelope = self.frame().envelope(self.object(), vec![choice]);
        envelope.adjustments = timings.is_some().then_some(&delivery.adjustments);
        envelope.timings = timings;
        if delivery.continuous_usage {
            let prompt_tokens = self.prompts[index / self.plan.num_answers].len();
            envelope.usage = Some(Some(WireUsage::so_far(prompt_tokens, self.choices[index].num_tokens)));
        } else if delivery.include_usage {
            envelope.usage = Some(None);
        }
        envelope
    }
}

impl StreamWriter for Writer {
    fn write(&mut self, prompt: usize, output: Event, events: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        let first = prompt * self.plan.num_answers;
        match output {
            Event::PromptLogprobs(logprobs) => self.prompt_logprobs[prompt] = logprobs,
            // Vectors are not streamed.
            Event::Embedding(_) => {}
            Event::Progress(progress) => events.push_back(self.progress(first, &progress)),
            Event::Token { answer, token, text, logprob } => {
                let choice = &mut self.choices[first + answer];
                choice.num_tokens += 1;
                let parts = choice.parser.as_mut().map(|parser| {
                    let mut parts = Vec::new();
                    parser.token(&text, &mut parts);
                    parts
                });
                let piece = Piece { text, parts, token: Some(token), logprob, ..Piece::default() };
                events.push_back(self.event(first + answer, piece));
            }
            Event::Noted { answer, unsealed } => self.choices[first + answer].receipt = self.plan.receipt(*unsealed),
            Event::Finished { answer, reason, stop_string, text } => {
                let mut end = FinishInfo::of(&self.plan, &self.app, reason, stop_string);
                let choice = &mut self.choices[first + answer];
                let parts = choice.parser.as_mut().map(|parser| {
                    let mut parts = Vec::new();
                    end.called(parser.end(&text, &mut parts));
                    parts
                });
                self.totals.add_thoughts(choice.parser.as_ref());
                let piece = Piece { text, parts, end: Some(end), ..Piece::default() };
                self.unfinished -= 1;
                if self.unfinished == 0 {
                    self.last = Some((first + answer, piece));
                } else {
                    let receipt = self.choices[first + answer].receipt.take();
                    events.push_back(self.event(first + answer, Piece { receipt, ..piece }));
                }
            }
            Event::Done { usage, timings } => {
                self.totals.add(&self.app, &self.plan, &usage, &timings);
                self.undone -= 1;
                if self.undone == 0 {
                    self.finish(events);
                }
            }
            Event::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event(&error.json())
    }
}
