//! Answers as they grow, and what Python is given of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::ledger::{Named, Owner, Shares};
use engine::{Event, FinishReason, Timings, TokenLogprob, Usage};
use pyo3::prelude::*;
use text::tokenizer::Tokenizer;

use crate::engine::Engine;
use crate::log::ms;
use crate::request::Request;

/// What an output shows of one token at one place: its log probability, its rank, its text.
type Likely = (f32, Option<usize>, Option<String>);
/// The drawn token and the most likely ones, by id.
type LikelyTokens = BTreeMap<u32, Likely>;

/// All answers of one request.
pub(crate) struct Answers {
    tokenizer: Option<Arc<Tokenizer>>,
    stop: Vec<String>,
    eos: Vec<u32>,
    answers: Vec<Answer>,
    prompt_logprobs: Option<Vec<Option<TokenLogprob>>>,
    end: Option<End>,
}

#[derive(Clone, Default)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    /// `None`: not requested.
    logprobs: Option<Vec<TokenLogprob>>,
    cumulative: f64,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
}

enum End {
    Done(Box<(Usage, Timings)>),
    Failed(String),
}

/// What ended an answer, where that is not the model's own end.
#[derive(Clone, IntoPyObject)]
pub(crate) enum StopReason {
    Token(u32),
    Text(String),
}

/// What Python makes a `RequestOutput` of.
#[derive(IntoPyObject)]
pub(crate) struct OutputEntry {
    outputs: Vec<AnswerEntry>,
    prompt_logprobs: Option<Vec<Option<LikelyTokens>>>,
    finished: bool,
    /// Why it ended without all its answers.
    error: Option<String>,
    metrics: Option<MetricsEntry>,
}

/// What Python makes a `CompletionOutput` of.
#[derive(IntoPyObject)]
pub(crate) struct AnswerEntry {
    index: usize,
    text: String,
    token_ids: Vec<u32>,
    cumulative_logprob: Option<f64>,
    logprobs: Option<Vec<LikelyTokens>>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
}

impl Answers {
    pub(crate) fn new(engine: &Engine, request: &Request) -> Answers {
        let model = engine.inner.model();
        let answer = Answer { logprobs: request.validated.logprobs().map(|_| Vec::new()), ..Answer::default() };
        Answers {
            tokenizer: model.tokenizer.clone(),
            stop: request.stop.clone(),
            eos: model.eos_token_ids.clone(),
            answers: vec![answer; request.validated.num_answers()],
            prompt_logprobs: None,
            end: None,
        }
    }

    /// Nothing comes any more.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Takes the next output; `None`: the engine is gone.
    pub(crate) fn take(&mut self, output: Option<Event>) {
        match output {
            Some(Event::PromptLogprobs(logprobs)) => self.prompt_logprobs = Some(logprobs),
            Some(Event::Token { answer, token, text, logprob }) => {
                let answer = &mut self.answers[answer];
                answer.text.push_str(&text);
                answer.tokens.push(token);
                answer.cumulative += logprob.as_ref().map_or(0.0, |logprob| f64::from(logprob.logprob));
                answer.logprobs.iter_mut().for_each(|logprobs| logprobs.extend(logprob.clone()));
            }
            Some(Event::Finished { answer, reason, stop_string, text }) => {
                let stop_reason = match (reason, stop_string) {
                    (_, Some(at)) => self.stop.get(at).cloned().map(StopReason::Text),
                    (FinishReason::Stop(Some(id)), None) if !self.eos.contains(&id) => Some(StopReason::Token(id)),
                    _ => None,
                };
                let answer = &mut self.answers[answer];
                answer.text.push_str(&text);
                answer.stop_reason = stop_reason;
                answer.finish_reason = Some(match reason {
                    FinishReason::Stop(_) => "stop",
                    FinishReason::Length => "length",
                });
            }
            // Not requested.
            Some(Event::Embedding(_) | Event::Progress(_) | Event::Noted { .. }) => {}
            Some(Event::Done { usage, timings }) => self.end = Some(End::Done(Box::new((usage, timings)))),
            Some(Event::Failed(error)) => self.fail(error.to_string()),
            None => self.fail("the engine has stopped".to_owned()),
        }
    }

    fn fail(&mut self, error: String) {
        for answer in self.answers.iter_mut().filter(|answer| answer.finish_reason.is_none()) {
            answer.finish_reason = Some("error");
        }
        self.end = Some(End::Failed(error));
    }

    /// What there is by now. `delta`: and was not given out before.
    pub(crate) fn entry(&mut self, delta: bool) -> OutputEntry {
        let tokenizer = self.tokenizer.clone();
        let likely = |logprob: TokenLogprob| likely_tokens(tokenizer.as_deref(), &logprob);
        let entry = |(index, answer): (usize, &mut Answer)| {
            let (text, token_ids, logprobs) = match delta {
                true => (
                    std::mem::take(&mut answer.text),
                    std::mem::take(&mut answer.tokens),
                    answer.logprobs.as_mut().map(std::mem::take),
                ),
                false => (answer.text.clone(), answer.tokens.clone(), answer.logprobs.clone()),
            };
            AnswerEntry {
                index,
                text,
                token_ids,
                cumulative_logprob: logprobs.is_some().then_some(answer.cumulative),
                logprobs: logprobs.map(|logprobs| logprobs.into_iter().map(likely).collect()),
                finish_reason: answer.finish_reason,
                stop_reason: answer.stop_reason.clone(),
            }
        };
        let outputs = self.answers.iter_mut().enumerate().map(entry).collect();
        let prompt = if delta { self.prompt_logprobs.take() } else { self.prompt_logprobs.clone() };
        let (error, metrics) = match &self.end {
            None => (None, None),
            Some(End::Failed(error)) => (Some(error.clone()), None),
            Some(End::Done(done)) => (None, Some(MetricsEntry::of(&done.0, &done.1))),
        };
        OutputEntry {
            outputs,
            prompt_logprobs: prompt.map(|all| all.into_iter().map(|logprob| logprob.map(likely)).collect()),
            finished: self.is_over(),
            error,
            metrics,
        }
    }
}

/// vLLM's form: the most likely with their ranks, and the one that was drawn, whose place is known if it is among them.
fn likely_tokens(tokenizer: Option<&Tokenizer>, logprob: &TokenLogprob) -> LikelyTokens {
    let text = |id| tokenizer.map(|tokenizer| tokenizer.token_text(id));
    let top = logprob.top.iter().enumerate().map(|(at, &(id, value))| (id, (value, Some(at + 1), text(id))));
    let mut tokens: LikelyTokens = top.collect();
    tokens.entry(logprob.token).or_insert_with(|| (logprob.logprob, None, text(logprob.token)));
    tokens
}

/// What Python makes `RequestMetrics` of: both phases, and the owner of every millisecond.
#[derive(IntoPyObject)]
pub(crate) struct MetricsEntry {
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    ttft_ms: f64,
    tpot_ms: Option<f64>,
    total_ms: f64,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    prefill_tokens: usize,
    decode_tokens: usize,
    decode_steps: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    preemptions: usize,
    prefill_tok_s: f64,
    decode_tok_s: f64,
    promised_ttft_ms: Option<f64>,
    ttft_owners: BTreeMap<&'static str, f64>,
    gap_owners: BTreeMap<&'static str, f64>,
    ttft_delayed_by: BTreeMap<String, f64>,
    gaps_delayed_by: BTreeMap<String, f64>,
    cost_to_others_ms: f64,
    saved_by_cache_ms: Option<f64>,
}

impl MetricsEntry {
    fn of(usage: &Usage, timings: &Timings) -> MetricsEntry {
        let bill = &timings.bill;
        let tpot = |tokens: usize| ms(bill.gaps.total()) / tokens as f64;
        MetricsEntry {
            queue_ms: timings.queue_ms,
            prefill_ms: timings.prefill_ms,
            decode_ms: timings.decode_ms,
            ttft_ms: timings.ttft_ms,
            tpot_ms: Some(timings.decode_tokens).filter(|&tokens| tokens > 0).map(tpot),
            total_ms: timings.total_ms,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            completion_tokens: usage.completion_tokens,
            prefill_tokens: timings.prefill_tokens,
            decode_tokens: timings.decode_tokens,
            decode_steps: timings.decode_steps,
            drafted_tokens: timings.drafted_tokens,
            accepted_tokens: timings.accepted_tokens,
            preemptions: timings.preemptions,
            prefill_tok_s: timings.prefill_tok_s(),
            decode_tok_s: timings.decode_tok_s(),
            promised_ttft_ms: timings.latency_bound.as_ref().map(|promise| ms(promise.first_token.p95)),
            ttft_owners: owners(&bill.ttft, &Owner::OF_TTFT),
            gap_owners: owners(&bill.gaps, &Owner::OF_GAP),
            ttft_delayed_by: named(&bill.ttft_others),
            gaps_delayed_by: named(&bill.gaps_others),
            cost_to_others_ms: ms(bill.cost.total()),
            saved_by_cache_ms: bill.saved_by_cache.map(ms),
        }
    }
}

fn owners(shares: &Shares, of: &[Owner]) -> BTreeMap<&'static str, f64> {
    of.iter().map(|&owner| (owner.name(), ms(shares.of(owner)))).collect()
}

/// By request; what those have who are not named is `others`.
fn named(named: &Named) -> BTreeMap<String, f64> {
    let rest = Some(("others".to_owned(), ms(named.rest()))).filter(|(_, ms)| *ms > 0.0);
    named.entries().map(|(id, nanos)| (id.0.to_string(), ms(nanos))).chain(rest).collect()
}
