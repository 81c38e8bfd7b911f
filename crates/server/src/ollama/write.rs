//! An answer in Ollama's words: whole, or line by line.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use dialect::AnswerPart;
use engine::Event;
use hyper::body::Bytes;
use serde_json::{Value, json};
use telemetry::time_format::rfc3339;
use telemetry::timeline::RequestTrace;
use transport::error::{ApiError, ErrorFormat};
use transport::json::{self, json_body};

use crate::answers::{
    self, CollectedAnswer, EventStream, Finish, FinishInfo, Parsed, ResponsePlan, ResponseWriter, StreamParser,
    StreamWriter, Totals,
};
use crate::app::App;
use crate::openai::format::timings;
use crate::openai::logprobs::TokenTexts;
use crate::openai::whole::{List, Numbers, Whole};

/// Which of the two routes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    /// With the tokens by which the next request can go on from this one.
    Generate {
        tells_context: bool,
    },
}

/// The API, for one request.
#[derive(Clone)]
pub(super) struct Ollama {
    pub(super) kind: Kind,
    /// The model's name, as it was asked for.
    pub(super) name: String,
}

impl Ollama {
    fn body(&self, app: &Arc<App>, plan: &ResponsePlan, gathered: CollectedAnswer) -> Response {
        let CollectedAnswer { mut answers, mut prompts, totals, trace, charge, .. } = gathered;
        let answer = answers.swap_remove(0);
        let mut said = Said::default();
        let mut calls = Calls::default();
        let parts = answer.parts.unwrap_or_else(|| vec![AnswerPart::Text(answer.text)]);
        parts.into_iter().for_each(|part| calls.take(part, &mut said));
        calls.end(&mut said);
        let mut tokens = prompts.swap_remove(0);
        tokens.extend(answer.tokens);
        // Filled while it is read; before all that the model wrote, where it cannot be taken for anything else.
        let lists: &[_] = if plan.logprobs { &[(List::Logprobs, 0)] } else { &[] };
        let mut line = self.line(app, plan.logprobs.then(Vec::new), said);
        self.finish(app, plan, &trace, &totals, &answer.end, &tokens, &mut line);
        let logprobs = vec![answer.logprobs];
        let numbers = Numbers { logprobs, num_answers: 1, ..Numbers::default() };
        json_body(Whole::new(app.clone(), numbers, &line.to_string(), lists, charge).body())
    }
}

impl ResponseWriter for Ollama {
    fn whole<'a>(&'a self, app: &'a Arc<App>, plan: ResponsePlan, outputs: EventStream) -> answers::Whole<'a> {
        answers::gathered(app, plan, outputs, |plan, gathered| self.body(app, plan, gathered))
    }

    fn stream_writer(&self, app: &Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Box<dyn StreamWriter> {
        Box::new(Lines {
            app: app.clone(),
            api: self.clone(),
            trace: outputs.trace().clone(),
            parser: StreamParser::of(&plan, outputs.trace(), 0),
            calls: Calls::default(),
            totals: Totals::of(&plan),
            end: FinishInfo::default(),
            logprobs: Vec::new(),
            tokens: outputs.prompts().swap_remove(0),
            plan,
        })
    }

    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }
}

impl Ollama {
    /// What says that there was nothing to answer.
    pub(super) fn loaded(&self, app: &App) -> Value {
        let mut line = self.line(app, None, Said::default());
        line["done"] = true.into();
        line["done_reason"] = "load".into();
        line
    }

    /// A piece of an answer, with the log probabilities of its tokens where there are any to tell.
    fn line(&self, app: &App, logprobs: Option<Vec<Value>>, said: Said) -> Value {
        let mut line = json!({"model": self.name, "created_at": rfc3339(app.engine.unix(app.engine.now()))});
        if let Some(logprobs) = logprobs {
            line["logprobs"] = logprobs.into();
        }
        let mut piece = json!({});
        let text = match self.kind {
            Kind::Chat => {
                piece["role"] = "assistant".into();
                "content"
            }
            Kind::Generate { .. } => "response",
        };
        piece[text] = said.text.into();
        if !said.thought.is_empty() {
            piece["thinking"] = said.thought.into();
        }
        if !said.calls.is_empty() {
            piece["tool_calls"] = said.calls.into();
        }
        match (self.kind, piece) {
            (Kind::Generate { .. }, Value::Object(fields)) => {
                fields.into_iter().for_each(|(name, value)| line[name] = value);
            }
            (_, piece) => line["message"] = piece,
        }
        line["done"] = false.into();
        line
    }

    /// Makes it the last one.
    #[allow(clippy::too_many_arguments, reason = "each is another thing that a last line tells")]
    fn finish(
        &self,
        app: &App,
        plan: &ResponsePlan,
        trace: &RequestTrace,
        totals: &Totals,
        end: &FinishInfo,
        tokens: &[u32],
        line: &mut Value,
    ) {
        // Clients divide by it.
        let nanos = |ms: f64| ((ms * 1e6) as u64).max(1);
        line["done"] = true.into();
        line["done_reason"] = if end.finish == Finish::Length { "length" } else { "stop" }.into();
        if self.kind == (Kind::Generate { tells_context: true }) {
            line["context"] = tokens.into();
        }
        line["total_duration"] = nanos(totals.timings.total_ms).into();
        // It was there before the request was.
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = totals.usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanos(totals.timings.prefill_ms).into();
        line["eval_count"] = totals.usage.completion_tokens.into();
        line["eval_duration"] = nanos(totals.timings.decode_ms).into();
        line["timings"] = serde_json::to_value(timings(app, plan, trace, totals)).unwrap_or_default();
        plan.delivery.adjustments.tell(line);
    }
}

/// What a line says.
#[derive(Default)]
struct Said {
    thought: String,
    text: String,
    calls: Vec<Value>,
}

impl Said {
    fn is_empty(&self) -> bool {
        self.thought.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }
}

/// Puts the pieces of calls together: Ollama's are whole.
#[derive(Default)]
struct Calls {
    /// The one that is being written: its name and its arguments so far.
    open: Option<(Option<String>, String, String)>,
    count: usize,
    /// Something other than white space was said or thought since the beginning or the last call.
    is_told: bool,
    /// White space that is dropped unless something follows.
    white: String,
}

impl Calls {
    fn take(&mut self, part: AnswerPart, said: &mut Said) {
        match part {
            AnswerPart::Thought(text) => said.thought.push_str(&text),
            AnswerPart::Text(text) if self.is_told => said.text.push_str(&text),
            AnswerPart::Text(text) => {
                self.white.push_str(&text);
                if !self.white.trim().is_empty() {
                    self.is_told = true;
                    said.text.push_str(&std::mem::take(&mut self.white));
                }
            }
            AnswerPart::CallBegins { name, id, .. } => {
                self.white.clear();
                self.is_told = false;
                self.open = Some((id, name, String::new()));
            }
            AnswerPart::Arguments { json, .. } => {
                if let Some((_, _, arguments)) = &mut self.open {
                    arguments.push_str(&json);
                }
            }
            AnswerPart::CallEnds { .. } => {
                let Some((id, name, arguments)) = self.open.take() else { return };
                // What is no JSON was written by the model, and is shown as it is.
                let arguments: Value = json::of_text(&arguments).unwrap_or(Value::String(arguments));
                let mut call = json!({"function": {"index": self.count, "name": name, "arguments": arguments}});
                if let Some(id) = id {
                    call["id"] = id.into();
                }
                self.count += 1;
                said.calls.push(call);
            }
        }
    }

    /// The answer is over. A call that is still open was cut off, and half of one is none.
    fn end(&mut self, said: &mut Said) {
        if self.count == 0 {
            said.text.push_str(&std::mem::take(&mut self.white));
        }
    }
}

/// The lines of one answer.
struct Lines {
    app: Arc<App>,
    api: Ollama,
    plan: ResponsePlan,
    trace: Arc<RequestTrace>,
    parser: Option<StreamParser>,
    calls: Calls,
    totals: Totals,
    end: FinishInfo,
    /// Of tokens that no line has told yet.
    logprobs: Vec<Value>,
    /// Prompt and answer.
    tokens: Vec<u32>,
}

impl Lines {
    /// A line of what was parsed, if anything was.
    fn push(&mut self, parts: Vec<AnswerPart>, ends: bool, lines: &mut VecDeque<Bytes>) {
        let mut said = Said::default();
        parts.into_iter().for_each(|part| self.calls.take(part, &mut said));
        if ends {
            self.calls.end(&mut said);
        }
        if !said.is_empty() {
            let logprobs = self.untold();
            lines.push_back(ended(&self.api.line(&self.app, logprobs, said)));
        }
    }

    fn untold(&mut self) -> Option<Vec<Value>> {
        Some(std::mem::take(&mut self.logprobs)).filter(|logprobs| !logprobs.is_empty())
    }
}

/// One line.
fn ended(line: &Value) -> Bytes {
    format!("{line}\n").into()
}

impl StreamWriter for Lines {
    fn write(&mut self, _: usize, output: Event, lines: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        match output {
            Event::Token { token, text, logprob, .. } => {
                self.tokens.push(token);
                let tokenizer = self.app.engine.model().tokenizer.as_deref();
                let texts = TokenTexts { tokenizer, as_ids: false };
                // By way of a text, which has a number in its shortest form.
                let told = logprob.map(|logprob| serde_json::to_string(&texts.chat(&logprob)).unwrap_or_default());
                self.logprobs.extend(told.and_then(|told| serde_json::from_str(&told).ok()));
                let parsed = Parsed::token(self.parser.as_mut(), text, None);
                self.push(parsed.parts, false, lines);
            }
            Event::Finished { reason, stop_string, text, .. } => {
                self.end = FinishInfo::of(&self.plan, &self.app, reason, stop_string);
                let parsed = Parsed::end(self.parser.as_mut(), text);
                self.totals.add_thoughts(self.parser.as_ref());
                self.push(parsed.parts, true, lines);
            }
            Event::Done { usage, timings } => {
                self.totals.add(&self.app, &self.plan, &usage, &timings);
                let logprobs = self.untold();
                let Lines { app, api, plan, trace, totals, end, tokens, .. } = self;
                let mut line = api.line(app, logprobs, Said::default());
                api.finish(app, plan, trace, totals, end, tokens, &mut line);
                lines.push_back(ended(&line));
            }
            Event::Failed(error) => return Err(error.into()),
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Progress(_) | Event::Noted { .. } => {}
        }
        Ok(())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        format!("{}\n", error.json_in(ErrorFormat::Ollama)).into()
    }

    fn takes_comments(&self) -> bool {
        false
    }
}
