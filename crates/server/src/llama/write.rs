//! An answer in llama-server's own words: whole, or an event for each token.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use engine::Event;
use hyper::body::Bytes;
use serde_json::{Value, json};
use telemetry::timeline::RequestTrace;
use transport::error::ApiError;
use transport::json::json_body;
use transport::sse::event;

use crate::answers::{
    self, CollectedAnswer, EventStream, Finish, FinishInfo, ResponsePlan, ResponseWriter, StreamWriter, Totals,
};
use crate::app::App;
use crate::openai::format::timings;
use crate::openai::logprobs::TokenTexts;
use crate::openai::whole::{List, Numbers, Whole};
use crate::openai::wire::WireProgress;

/// Log probabilities of an answer's tokens.
const PROBABILITIES: &str = "completion_probabilities";

pub(super) struct Llama;

impl Llama {
    fn body(&self, app: &Arc<App>, plan: &ResponsePlan, gathered: CollectedAnswer) -> Response {
        let CollectedAnswer { mut answers, prompts, totals, trace, charge, .. } = gathered;
        let answer = answers.swap_remove(0);
        let mut body = piece(&answer.text, prompts[0].len(), answer.tokens.len());
        body["tokens"] = if plan.delivery.token_ids { answer.tokens.into() } else { json!([]) };
        finish(app, plan, &trace, &totals, &answer.end, &mut body);
        body["has_new_line"] = answer.text.contains('\n').into();
        // Filled while it is read.
        let lists: &[_] = if plan.logprobs { &[(List::Probabilities, 0)] } else { &[] };
        if plan.logprobs {
            body[PROBABILITIES] = json!([]);
        }
        let numbers = Numbers { logprobs: vec![answer.logprobs], num_answers: 1, ..Numbers::default() };
        json_body(Whole::new(app.clone(), numbers, &body.to_string(), lists, charge).body())
    }
}

impl ResponseWriter for Llama {
    fn whole<'a>(&'a self, app: &'a Arc<App>, plan: ResponsePlan, outputs: EventStream) -> answers::Whole<'a> {
        answers::gathered(app, plan, outputs, |plan, gathered| self.body(app, plan, gathered))
    }

    fn stream_writer(&self, app: &Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Box<dyn StreamWriter> {
        Box::new(Stream {
            app: app.clone(),
            trace: outputs.trace().clone(),
            prompt_tokens: outputs.trace().prompt_tokens.iter().sum(),
            num_tokens: 0,
            has_new_line: false,
            totals: Totals::of(&plan),
            end: FinishInfo::default(),
            plan,
        })
    }
}

/// A piece of an answer.
fn piece(text: &str, prompt_tokens: usize, num_tokens: usize) -> Value {
    json!({
        "index": 0,
        "content": text,
        "tokens": [],
        "stop": false,
        // There are none.
        "id_slot": -1,
        "tokens_predicted": num_tokens,
        "tokens_evaluated": prompt_tokens,
    })
}

/// Makes it the last one.
fn finish(app: &App, plan: &ResponsePlan, trace: &RequestTrace, totals: &Totals, end: &FinishInfo, body: &mut Value) {
    let word = end.stop_reason.as_str().unwrap_or_default();
    body["stop"] = true.into();
    body["stop_type"] = match (end.finish, word) {
        (Finish::Length, _) => "limit",
        (_, "") => "eos",
        _ => "word",
    }
    .into();
    body["stopping_word"] = word.into();
    body["model"] = plan.delivery.model.as_str().into();
    body["tokens_cached"] = totals.usage.cached_tokens.into();
    body["truncated"] = false.into();
    body["generation_settings"] = json!({"n_ctx": app.engine.model().max_model_len});
    body["timings"] = times(app, plan, trace, totals);
    plan.delivery.adjustments.tell(body);
}

/// Ours, and the same again in llama-server's names: `prompt` is prefill, `predicted` is decode.
fn times(app: &App, plan: &ResponsePlan, trace: &RequestTrace, totals: &Totals) -> Value {
    let told = &totals.timings;
    let mut times = serde_json::to_value(timings(app, plan, trace, totals)).unwrap_or_default();
    times["cache_n"] = told.cached_tokens.into();
    for (phase, tokens, ms) in [
        ("prompt", told.prefill_tokens, told.prefill_ms),
        // Of these prefill made the first.
        ("predicted", totals.usage.completion_tokens, told.decode_ms),
    ] {
        times[format!("{phase}_n")] = tokens.into();
        times[format!("{phase}_ms")] = rounded(ms).into();
        times[format!("{phase}_per_token_ms")] = rounded(ms / tokens.max(1) as f64).into();
        let per_second = if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 };
        times[format!("{phase}_per_second")] = rounded(per_second).into();
    }
    if told.drafted_tokens > 0 {
        times["draft_n"] = told.drafted_tokens.into();
        times["draft_n_accepted"] = told.accepted_tokens.into();
    }
    times
}

/// Rounded to microseconds.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The events of one answer.
struct Stream {
    app: Arc<App>,
    plan: ResponsePlan,
    trace: Arc<RequestTrace>,
    prompt_tokens: usize,
    num_tokens: usize,
    has_new_line: bool,
    totals: Totals,
    end: FinishInfo,
}

impl Stream {
    fn piece(&mut self, text: &str) -> Value {
        self.has_new_line |= text.contains('\n');
        piece(text, self.prompt_tokens, self.num_tokens)
    }
}

impl StreamWriter for Stream {
    fn write(&mut self, _: usize, output: Event, events: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        match output {
            Event::Token { token, text, logprob, .. } => {
                self.num_tokens += 1;
                let mut body = self.piece(&text);
                body["tokens"] = json!([token]);
                if let Some(logprob) = logprob {
                    let tokenizer = self.app.engine.model().tokenizer.as_deref();
                    let texts = TokenTexts { tokenizer, as_ids: false };
                    // By way of a text, which has a number in its shortest form.
                    let told = serde_json::to_string(&texts.llama(&logprob)).unwrap_or_default();
                    body[PROBABILITIES] = json!([serde_json::from_str::<Value>(&told).unwrap_or_default()]);
                }
                events.push_back(event(&body.to_string()));
            }
            Event::Progress(progress) => {
                let mut body = self.piece("");
                body["prompt_progress"] = serde_json::to_value(WireProgress::of(&progress)).unwrap_or_default();
                events.push_back(event(&body.to_string()));
            }
            Event::Finished { reason, stop_string, text, .. } => {
                self.end = FinishInfo::of(&self.plan, &self.app, reason, stop_string);
                if !text.is_empty() {
                    let body = self.piece(&text);
                    events.push_back(event(&body.to_string()));
                }
            }
            Event::Done { usage, timings } => {
                self.totals.add(&self.app, &self.plan, &usage, &timings);
                let mut body = self.piece("");
                let Stream { app, plan, trace, totals, end, has_new_line, .. } = self;
                finish(app, plan, trace, totals, end, &mut body);
                body["has_new_line"] = (*has_new_line).into();
                events.push_back(event(&body.to_string()));
            }
            Event::Failed(error) => return Err(error.into()),
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Noted { .. } => {}
        }
        Ok(())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        event(&error.json())
    }
}
