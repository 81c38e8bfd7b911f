//! An answer as items: whole, and as the events by which they grow.
//!
//! ```text
//! parts --Growing--> item added, part added, deltas ..., part done, item done --> events, or nobody's
//!            \-----> items ------------------------------------------------------> response
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use dialect::AnswerPart;
use engine::{ChatMessage, Output};
use hyper::body::Bytes;
use serde_json::{Map, Value, json};

use crate::answers::{Api, Ear, End, Finish, Gathered, Outputs, Plan, Totals, Wire, framed};
use crate::app::App;
use crate::auth::Tenant;
use crate::error::ApiError;
use crate::openai::format::timings;
use crate::openai::wire::WireUsage;
use crate::routes::json_body;
use crate::timeline::Served;

/// What an answer says of its request.
pub(crate) struct Shape {
    pub(crate) instructions: Option<String>,
    pub(crate) previous: Option<String>,
    pub(crate) metadata: Value,
    pub(crate) tools: Value,
    pub(crate) tool_choice: Value,
    pub(crate) parallel: bool,
    pub(crate) reasoning: Value,
    /// `text.format`.
    pub(crate) format: Value,
    pub(crate) max_output_tokens: Option<i64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    /// Whose it is, if it is to be kept.
    pub(crate) stores: Option<Option<Tenant>>,
    pub(crate) background: bool,
    /// As it came.
    pub(crate) input: Value,
    /// The same as messages, behind what it goes on from.
    pub(crate) conversation: Vec<ChatMessage>,
}

/// The API.
pub(crate) struct Responses(pub(crate) Arc<Shape>);

impl Api for Responses {
    fn whole(&self, app: &Arc<App>, plan: &Plan, gathered: Gathered) -> Response {
        match self.0.response(app, plan, gathered) {
            Ok(response) => json_body(response.to_string()),
            Err(error) => error.into_response(),
        }
    }

    fn wire(&self, app: &Arc<App>, plan: Plan, outputs: &Outputs) -> Box<dyn Wire> {
        Box::new(Stream::new(app.clone(), self.0.clone(), plan, outputs.served().clone()))
    }

    fn shape(&self) -> Option<&Arc<Shape>> {
        Some(&self.0)
    }
}

impl Shape {
    /// The response of an answer that has ended; it is kept if it is to be.
    pub(super) fn response(&self, app: &Arc<App>, plan: &Plan, gathered: Gathered) -> Result<Value, ApiError> {
        let Gathered { mut answers, totals, served, .. } = gathered;
        let answer = answers.swap_remove(0);
        let mut growing = Growing::new(app.clone());
        let parts = answer.parts.unwrap_or_else(|| vec![AnswerPart::Text(answer.text)]);
        parts.into_iter().for_each(|part| growing.take(part, &mut |_, _| {}));
        growing.end(&mut |_, _| {});
        let mut response = self.head(&served.response_id, app.now(), plan);
        self.finish(app, plan, &served, &totals, &answer.end, growing.items, &mut response)?;
        Ok(response)
    }

    /// What is known before there is an answer.
    pub(super) fn head(&self, id: &str, created: u64, plan: &Plan) -> Value {
        let mut head = json!({
            "id": id,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": self.background,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": null,
            "metadata": self.metadata,
            "model": plan.delivery.model,
            "output": [],
            "parallel_tool_calls": self.parallel,
            "previous_response_id": self.previous,
            "reasoning": self.reasoning,
            "service_tier": plan.delivery.tier.map(engine::ServiceClass::name),
            "store": self.stores.is_some(),
            "temperature": self.temperature,
            "text": {"format": self.format},
            "tool_choice": self.tool_choice,
            "tools": self.tools,
            "top_logprobs": 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": null,
        });
        // A text or absent: strict clients take no null.
        if let Some(user) = &plan.delivery.user {
            head["user"] = user.as_str().into();
        }
        head
    }

    #[allow(clippy::too_many_arguments, reason = "each is another thing that a response tells")]
    fn finish(
        &self,
        app: &Arc<App>,
        plan: &Plan,
        served: &Served,
        totals: &Totals,
        end: &End,
        items: Vec<Value>,
        response: &mut Value,
    ) -> Result<(), ApiError> {
        response["status"] = if end.finish == Finish::Length { "incomplete" } else { "completed" }.into();
        if end.finish == Finish::Length {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let usage = WireUsage::of(totals, false);
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": totals.usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": totals.thought_tokens.unwrap_or(0)},
            "total_tokens": usage.total_tokens,
        });
        response["timings"] = serde_json::to_value(timings(app, plan, served, totals)).unwrap_or_default();
        if let Ok(Value::Object(settled)) = serde_json::to_value(&plan.delivery.settled) {
            settled.into_iter().for_each(|(name, value)| response[name] = value);
        }
        let reply = message_of(&items);
        response["output"] = items.into();
        if let Some(tenant) = self.stores {
            let conversation = self.conversation.iter().cloned().chain([reply]).collect();
            app.responses.keep(tenant, &served.response_id, response.clone(), self.input.clone(), conversation)?;
        }
        Ok(())
    }
}

/// An answer as the message that a template reads.
fn message_of(items: &[Value]) -> ChatMessage {
    let mut extra = Map::new();
    let mut content = None::<String>;
    let mut calls = Vec::new();
    for item in items {
        let text = item["content"][0]["text"].as_str().unwrap_or_default();
        match item["type"].as_str() {
            Some("reasoning") => {
                for name in ["reasoning_content", "reasoning", "thinking"] {
                    extra.insert(name.to_owned(), text.into());
                }
            }
            Some("message") => content.get_or_insert_default().push_str(text),
            _ => {
                let arguments = item["arguments"].as_str().unwrap_or_default();
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
                let function = json!({"name": item["name"], "arguments": arguments});
                calls.push(json!({"id": item["call_id"], "type": "function", "function": function}));
            }
        }
    }
    if calls.is_empty() {
        content.get_or_insert_default();
    } else {
        extra.insert("tool_calls".to_owned(), calls.into());
    }
    ChatMessage { role: "assistant".to_owned(), content, extra }
}

/// Hears of each event: its name, and its fields.
type Tell<'a> = &'a mut dyn FnMut(&'static str, Value);

/// The items of an answer while it grows.
struct Growing {
    app: Arc<App>,
    items: Vec<Value>,
    /// The last item is under way.
    open: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
    Call,
}

impl Growing {
    fn new(app: Arc<App>) -> Growing {
        Growing { app, items: Vec::new(), open: None }
    }

    fn take(&mut self, part: AnswerPart, tell: Tell<'_>) {
        match part {
            AnswerPart::Thought(text) => self.grow(Kind::Thought, &text, tell),
            AnswerPart::Text(text) => {
                // White space between calls is no message.
                if self.open != Some(Kind::Text) && !self.items.is_empty() && text.trim().is_empty() {
                    return;
                }
                self.grow(Kind::Text, &text, tell);
            }
            AnswerPart::CallBegins { name, id, .. } => {
                self.close(tell, "completed");
                let call_id = id.unwrap_or_else(|| self.app.call_id());
                let item = json!({
                    "type": "function_call", "id": format!("fc_{}", self.app.unique()), "status": "in_progress",
                    "call_id": call_id, "name": name, "arguments": "",
                });
                self.begin(Kind::Call, item, tell);
            }
            AnswerPart::Arguments { json, .. } => {
                let at = self.items.len() - 1;
                let item = &mut self.items[at];
                push(&mut item["arguments"], &json);
                let told = json!({"item_id": item["id"], "output_index": at, "delta": json});
                tell("response.function_call_arguments.delta", told);
            }
            AnswerPart::CallEnds { .. } => self.close(tell, "completed"),
        }
    }

    fn end(&mut self, tell: Tell<'_>) {
        // A call that is still open was cut off.
        let status = if self.open == Some(Kind::Call) { "incomplete" } else { "completed" };
        self.close(tell, status);
    }

    fn begin(&mut self, kind: Kind, item: Value, tell: Tell<'_>) {
        self.open = Some(kind);
        tell("response.output_item.added", json!({"output_index": self.items.len(), "item": item}));
        self.items.push(item);
    }

    fn grow(&mut self, kind: Kind, text: &str, tell: Tell<'_>) {
        if self.open != Some(kind) {
            self.close(tell, "completed");
            let id = self.app.unique();
            let item = match kind {
                Kind::Thought => {
                    json!({"type": "reasoning", "id": format!("rs_{id}"), "summary": [], "content": [], "status": "in_progress"})
                }
                _ => {
                    json!({"type": "message", "id": format!("msg_{id}"), "role": "assistant", "content": [], "status": "in_progress"})
                }
            };
            self.begin(kind, item, tell);
            let at = self.items.len() - 1;
            let part = part(kind, "");
            let told = json!({"item_id": self.items[at]["id"], "output_index": at, "content_index": 0, "part": part});
            tell("response.content_part.added", told);
            self.items[at]["content"] = json!([part]);
        }
        let at = self.items.len() - 1;
        let item = &mut self.items[at];
        push(&mut item["content"][0]["text"], text);
        let mut told = json!({"item_id": item["id"], "output_index": at, "content_index": 0, "delta": text});
        let name = match kind {
            Kind::Thought => "response.reasoning_text.delta",
            _ => {
                told["logprobs"] = json!([]);
                "response.output_text.delta"
            }
        };
        tell(name, told);
    }

    fn close(&mut self, tell: Tell<'_>, status: &str) {
        let Some(kind) = self.open.take() else { return };
        let at = self.items.len() - 1;
        let item = &mut self.items[at];
        item["status"] = status.into();
        let id = item["id"].clone();
        match kind {
            Kind::Call => {
                let told = json!({
                    "item_id": id, "output_index": at, "name": item["name"], "arguments": item["arguments"],
                });
                if status == "completed" {
                    tell("response.function_call_arguments.done", told);
                }
            }
            _ => {
                let part = item["content"][0].clone();
                let mut told = json!({"item_id": id, "output_index": at, "content_index": 0, "text": part["text"]});
                let name = match kind {
                    Kind::Thought => "response.reasoning_text.done",
                    _ => {
                        told["logprobs"] = json!([]);
                        "response.output_text.done"
                    }
                };
                tell(name, told);
                let told = json!({"item_id": id, "output_index": at, "content_index": 0, "part": part});
                tell("response.content_part.done", told);
            }
        }
        tell("response.output_item.done", json!({"output_index": at, "item": item}));
    }
}

fn part(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Thought => json!({"type": "reasoning_text", "text": text}),
        _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

fn push(text: &mut Value, more: &str) {
    if let Value::String(text) = text {
        text.push_str(more);
    }
}

/// The events of one answer.
struct Stream {
    app: Arc<App>,
    shape: Arc<Shape>,
    plan: Plan,
    served: Arc<Served>,
    ear: Option<Ear>,
    growing: Growing,
    totals: Totals,
    end: End,
    response: Value,
    sequence: usize,
    has_begun: bool,
}

impl Stream {
    fn new(app: Arc<App>, shape: Arc<Shape>, plan: Plan, served: Arc<Served>) -> Stream {
        Stream {
            response: shape.head(&served.response_id, app.now(), &plan),
            ear: Ear::of(&plan, &served, 0),
            growing: Growing::new(app.clone()),
            totals: Totals::of(&plan),
            end: End::default(),
            sequence: 0,
            has_begun: false,
            app,
            shape,
            plan,
            served,
        }
    }

    fn hear(&mut self, parts: Vec<AnswerPart>, ends: bool, events: &mut VecDeque<Bytes>) {
        let mut told = Vec::new();
        let mut tell = |name, fields| told.push((name, fields));
        parts.into_iter().for_each(|part| self.growing.take(part, &mut tell));
        if ends {
            self.growing.end(&mut tell);
        }
        for (name, fields) in told {
            let event = self.event(name, fields);
            events.push_back(event);
        }
    }

    /// `event:` and `data:`, numbered.
    fn event(&mut self, name: &'static str, mut fields: Value) -> Bytes {
        let mut body = json!({"type": name, "sequence_number": self.sequence});
        self.sequence += 1;
        if let Value::Object(fields) = fields.take() {
            fields.into_iter().for_each(|(name, value)| body[name] = value);
        }
        format!("event: {name}\n{}", framed(&body.to_string())).into()
    }

    fn begin(&mut self, events: &mut VecDeque<Bytes>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            for name in ["response.created", "response.in_progress"] {
                let event = self.event(name, json!({"response": self.response}));
                events.push_back(event);
            }
        }
    }
}

impl Wire for Stream {
    fn write(&mut self, _: usize, output: Output, events: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        if !matches!(output, Output::Failed(_)) {
            self.begin(events);
        }
        match output {
            Output::Token { text, .. } => {
                let mut parts = Vec::new();
                match &mut self.ear {
                    Some(ear) => ear.token(&text, &mut parts),
                    None if text.is_empty() => {}
                    None => parts.push(AnswerPart::Text(text)),
                }
                self.hear(parts, false, events);
            }
            Output::Finished { reason, stop_string, text, .. } => {
                self.end = End::of(&self.plan, &self.app, reason, stop_string);
                let mut parts = Vec::new();
                match &mut self.ear {
                    Some(ear) => _ = ear.end(&text, &mut parts),
                    None if text.is_empty() => {}
                    None => parts.push(AnswerPart::Text(text)),
                }
                self.totals.heard(self.ear.as_ref());
                self.hear(parts, true, events);
            }
            Output::Done { usage, timings } => {
                self.totals.add(&self.app, 1, &usage, &timings);
                let items = std::mem::take(&mut self.growing.items);
                let Stream { app, shape, plan, served, totals, end, response, .. } = self;
                shape.finish(app, plan, served, totals, end, items, response)?;
                let is_whole = self.end.finish != Finish::Length;
                let name = if is_whole { "response.completed" } else { "response.incomplete" };
                let event = self.event(name, json!({"response": self.response}));
                events.push_back(event);
            }
            Output::Failed(error) => return Err(error.into()),
            Output::PromptLogprobs(_) | Output::Embedding(_) | Output::Progress(_) | Output::Noted { .. } => {}
        }
        Ok(())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        let mut response = self.response.clone();
        response["status"] = "failed".into();
        response["error"] = failure(error);
        self.event("response.failed", json!({"response": response}))
    }
}

/// An error, as a response has it.
pub(super) fn failure(error: &ApiError) -> Value {
    let told: Value = serde_json::from_str(&error.json()).unwrap_or_default();
    let code = told["error"]["code"].as_str().unwrap_or("server_error");
    json!({"code": code, "message": told["error"]["message"]})
}
