//! An answer as blocks: whole, and as the events by which they grow.
//!
//! ```text
//! parts --Growing--> block starts, deltas ..., block stops --> events, or dropped
//!            \-----> blocks ---------------------------------> message
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use dialect::AnswerPart;
use engine::Event;
use hyper::body::Bytes;
use serde_json::{Value, json};
use telemetry::timeline::RequestTrace;
use transport::error::{ApiError, ErrorFormat};
use transport::json::{self, json_body};
use transport::sse::framed;

use crate::answers::{
    self, CollectedAnswer, EventStream, Finish, FinishInfo, Parsed, ResponsePlan, ResponseWriter, StreamParser,
    StreamWriter, Totals,
};
use crate::app::App;
use crate::openai::format::timings;

pub(super) struct Anthropic;

impl Anthropic {
    fn body(&self, app: &Arc<App>, plan: &ResponsePlan, gathered: CollectedAnswer) -> Response {
        let CollectedAnswer { mut answers, totals, trace, .. } = gathered;
        let answer = answers.swap_remove(0);
        let mut growing = Growing::new(app.clone());
        let parts = answer.parts.unwrap_or_else(|| vec![AnswerPart::Text(answer.text)]);
        parts.into_iter().for_each(|part| growing.take(part, &mut |_, _| {}));
        growing.close(&mut |_, _| {});
        let mut message = head(plan, &trace);
        message["content"] = growing.blocks.into_iter().map(Block::whole).collect();
        let (reason, sequence) = stop(&answer.end);
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = sequence;
        message["usage"] = usage(&totals);
        add(&mut message, told_at_the_end(app, plan, &trace, &totals));
        json_body(message.to_string())
    }
}

impl ResponseWriter for Anthropic {
    fn whole<'a>(&'a self, app: &'a Arc<App>, plan: ResponsePlan, outputs: EventStream) -> answers::Whole<'a> {
        answers::gathered(app, plan, outputs, |plan, gathered| self.body(app, plan, gathered))
    }

    fn stream_writer(&self, app: &Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Box<dyn StreamWriter> {
        Box::new(Stream::new(app.clone(), plan, outputs.trace().clone()))
    }
}

/// What is known before there is an answer.
fn head(plan: &ResponsePlan, trace: &RequestTrace) -> Value {
    json!({
        "id": trace.response_id,
        "type": "message",
        "role": "assistant",
        "model": plan.delivery.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": null,
    })
}

/// Why it ended, and the text that ended it.
fn stop(end: &FinishInfo) -> (&'static str, Value) {
    match (&end.stop_reason, end.finish) {
        (Value::String(text), _) => ("stop_sequence", text.as_str().into()),
        (_, Finish::Stop) => ("end_turn", Value::Null),
        (_, Finish::Length) => ("max_tokens", Value::Null),
        (_, Finish::ToolCalls) => ("tool_use", Value::Null),
    }
}

/// Tokens that the cache had are no `input_tokens`. Whatever is read may be found there again, so none are counted as
/// written to it.
fn usage(totals: &Totals) -> Value {
    let usage = &totals.usage;
    let mut told = json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    });
    if let Some(tokens) = totals.thought_tokens {
        told["output_tokens_details"] = json!({"thinking_tokens": tokens});
    }
    told
}

/// This server's own: where the time went, and what was settled otherwise than a client may think.
fn told_at_the_end(app: &App, plan: &ResponsePlan, trace: &RequestTrace, totals: &Totals) -> Value {
    let mut told = serde_json::to_value(&plan.delivery.adjustments).unwrap_or_default();
    told["timings"] = serde_json::to_value(timings(app, plan, trace, totals)).unwrap_or_default();
    told
}

fn add(object: &mut Value, more: Value) {
    if let Value::Object(more) = more {
        more.into_iter().for_each(|(name, value)| object[name] = value);
    }
}

/// Hears of each event: its name, and its fields.
type Tell<'a> = &'a mut dyn FnMut(&'static str, Value);

/// A block: what it is, and its text, thought or arguments as far as they go.
struct Block {
    kind: Kind,
    text: String,
}

enum Kind {
    Thinking,
    Text,
    ToolUse { id: String, name: String },
}

impl Block {
    /// As it begins: without its text.
    fn begun(&self) -> Value {
        match &self.kind {
            // A signature proves to Anthropic's servers that a thought is theirs; here thoughts are not checked.
            Kind::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Kind::Text => json!({"type": "text", "text": ""}),
            Kind::ToolUse { id, name } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
        }
    }

    fn whole(self) -> Value {
        let mut block = self.begun();
        match self.kind {
            Kind::Thinking => block["thinking"] = self.text.into(),
            Kind::Text => block["text"] = self.text.into(),
            // A call that has ended has an object.
            Kind::ToolUse { .. } => block["input"] = json::of_text(&self.text).unwrap_or_else(|| json!({})),
        }
        block
    }

    fn delta(&self, text: &str) -> Value {
        match self.kind {
            Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::ToolUse { .. } => json!({"type": "input_json_delta", "partial_json": text}),
        }
    }
}

/// The blocks of an answer while it grows.
struct Growing {
    app: Arc<App>,
    blocks: Vec<Block>,
    /// The last block is under way.
    is_open: bool,
}

impl Growing {
    fn new(app: Arc<App>) -> Growing {
        Growing { app, blocks: Vec::new(), is_open: false }
    }

    fn take(&mut self, part: AnswerPart, tell: Tell<'_>) {
        match part {
            AnswerPart::Thought(text) => {
                if !self.is_in(|kind| matches!(kind, Kind::Thinking)) {
                    self.begin(Kind::Thinking, tell);
                }
                self.grow(&text, tell);
            }
            AnswerPart::Text(text) => {
                if !self.is_in(|kind| matches!(kind, Kind::Text)) {
                    // White space between calls is no text.
                    if !self.blocks.is_empty() && text.trim().is_empty() {
                        return;
                    }
                    self.begin(Kind::Text, tell);
                }
                self.grow(&text, tell);
            }
            AnswerPart::CallBegins { name, id, .. } => {
                // A name that the strictest templates take when it comes back.
                let id = id.unwrap_or_else(|| self.app.ids.call_id());
                self.begin(Kind::ToolUse { id, name }, tell);
            }
            AnswerPart::Arguments { json, .. } => self.grow(&json, tell),
            AnswerPart::CallEnds { .. } => self.close(tell),
        }
    }

    fn is_in(&self, is: fn(&Kind) -> bool) -> bool {
        self.is_open && self.blocks.last().is_some_and(|block| is(&block.kind))
    }

    fn begin(&mut self, kind: Kind, tell: Tell<'_>) {
        self.close(tell);
        let block = Block { kind, text: String::new() };
        tell("content_block_start", json!({"index": self.blocks.len(), "content_block": block.begun()}));
        self.blocks.push(block);
        self.is_open = true;
    }

    fn grow(&mut self, text: &str, tell: Tell<'_>) {
        let index = self.blocks.len().saturating_sub(1);
        if let Some(block) = self.blocks.last_mut() {
            block.text.push_str(text);
            tell("content_block_delta", json!({"index": index, "delta": block.delta(text)}));
        }
    }

    fn close(&mut self, tell: Tell<'_>) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let Some(index) = self.blocks.len().checked_sub(1) else { return };
        if matches!(self.blocks[index].kind, Kind::Thinking) {
            let delta = json!({"type": "signature_delta", "signature": ""});
            tell("content_block_delta", json!({"index": index, "delta": delta}));
        }
        tell("content_block_stop", json!({"index": index}));
    }
}

/// The events of one answer.
struct Stream {
    app: Arc<App>,
    plan: ResponsePlan,
    trace: Arc<RequestTrace>,
    parser: Option<StreamParser>,
    growing: Growing,
    totals: Totals,
    end: FinishInfo,
    has_begun: bool,
}

impl Stream {
    fn new(app: Arc<App>, plan: ResponsePlan, trace: Arc<RequestTrace>) -> Stream {
        Stream {
            parser: StreamParser::of(&plan, &trace, 0),
            growing: Growing::new(app.clone()),
            totals: Totals::of(&plan),
            end: FinishInfo::default(),
            has_begun: false,
            app,
            plan,
            trace,
        }
    }

    /// How much of the prompt the cache has is not known yet: the last event says.
    fn begin(&mut self, events: &mut VecDeque<Bytes>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let mut message = head(&self.plan, &self.trace);
            let mut totals = Totals::of(&self.plan);
            totals.usage.prompt_tokens = self.trace.prompt_tokens.iter().sum();
            message["usage"] = usage(&totals);
            events.push_back(event("message_start", json!({"message": message})));
            events.push_back(event("ping", json!({})));
        }
    }

    fn push(&mut self, parts: Vec<AnswerPart>, ends: bool, events: &mut VecDeque<Bytes>) {
        let mut tell = |name, fields| events.push_back(event(name, fields));
        parts.into_iter().for_each(|part| self.growing.take(part, &mut tell));
        if ends {
            self.growing.close(&mut tell);
        }
    }
}

/// `event:` and `data:`, both with its name.
fn event(name: &'static str, fields: Value) -> Bytes {
    let mut body = json!({"type": name});
    add(&mut body, fields);
    format!("event: {name}\n{}", framed(&body.to_string())).into()
}

impl StreamWriter for Stream {
    fn write(&mut self, _: usize, output: Event, events: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        if !matches!(output, Event::Failed(_)) {
            self.begin(events);
        }
        match output {
            Event::Token { text, .. } => {
                let parsed = Parsed::token(self.parser.as_mut(), text, None);
                self.push(parsed.parts, false, events);
            }
            Event::Finished { reason, stop_string, text, .. } => {
                self.end = FinishInfo::of(&self.plan, &self.app, reason, stop_string);
                let parsed = Parsed::end(self.parser.as_mut(), text);
                self.end.called(parsed.has_called);
                self.totals.add_thoughts(self.parser.as_ref());
                self.push(parsed.parts, true, events);
            }
            Event::Done { usage: of_prompt, timings } => {
                self.totals.add(&self.app, &self.plan, &of_prompt, &timings);
                let (reason, sequence) = stop(&self.end);
                let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
                let mut last = json!({"delta": delta, "usage": usage(&self.totals)});
                add(&mut last, told_at_the_end(&self.app, &self.plan, &self.trace, &self.totals));
                events.push_back(event("message_delta", last));
                events.push_back(event("message_stop", json!({})));
            }
            Event::Failed(error) => return Err(error.into()),
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Progress(_) | Event::Noted { .. } => {}
        }
        Ok(())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        format!("event: error\n{}", framed(&error.json_in(ErrorFormat::Anthropic))).into()
    }
}
