//! An answer as a response: whole, and event by event.
//!
//! ```text
//! outputs --Writing--> Growing --finish--> Content --> the body, the store
//!                         |                   |
//!                         +------ Teller -----+------> events
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{ChatMessage, Event};
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use telemetry::timeline::RequestTrace;
use transport::auth::Tenant;
use transport::error::ApiError;
use transport::json::{self, json_body};

use super::events::{Teller, Told};
use super::growing::Growing;
use super::running::Running;
use super::store::Content;
use crate::answers::{
    self, EventStream, Finish, FinishInfo, Parsed, ResponsePlan, ResponseWriter, StreamParser, StreamWriter, Totals,
};
use crate::app::App;
use crate::conversation::insert_thought;
use crate::openai::format::timings;
use crate::openai::logprobs::TokenTexts;
use crate::openai::wire::WireUsage;

/// What an answer says of its request.
pub(crate) struct ResponseEcho {
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
    /// Number of top log probabilities per token.
    pub(crate) top_logprobs: i64,
    pub(crate) truncation: &'static str,
    pub(crate) max_tool_calls: Option<i64>,
    /// Whose it is, if it is to be kept.
    pub(crate) stores: Option<Option<Tenant>>,
    pub(crate) background: bool,
    pub(crate) input: Value,
    /// The same as messages, behind what it goes on from.
    pub(crate) conversation: Vec<ChatMessage>,
}

pub(crate) struct Responses(pub(crate) Arc<ResponseEcho>);

impl ResponseWriter for Responses {
    fn stream_writer(&self, app: &Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Box<dyn StreamWriter> {
        Box::new(Stream::new(app.clone(), self.0.clone(), plan, outputs.trace().clone()))
    }

    /// It is parsed token by token, as one that is streamed: so both say the same, also where it was cut off in a call.
    fn whole<'a>(&'a self, app: &'a Arc<App>, plan: ResponsePlan, mut outputs: EventStream) -> answers::Whole<'a> {
        Box::pin(async move {
            let head = self.0.head(&outputs.trace().response_id, app.now(), &plan);
            let running = Running::new(head.clone());
            let mut writing = Writing::new(app.clone(), self.0.clone(), plan, outputs.trace().clone());
            writing.push_all(&mut outputs, &running).await?;
            let content = writing.finish(running.grown(), head)?;
            Ok((json_body(content.response.to_string()), writing.totals.timings.clone()))
        })
    }
}

impl ResponseEcho {
    /// What is known before there is an answer.
    pub(super) fn head(&self, id: &str, created: u64, plan: &ResponsePlan) -> Value {
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
            "max_tool_calls": self.max_tool_calls,
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
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p,
            "truncation": self.truncation,
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
        plan: &ResponsePlan,
        trace: &RequestTrace,
        totals: &Totals,
        end: &FinishInfo,
        growing: Growing,
        mut response: Value,
    ) -> Result<Arc<Content>, ApiError> {
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
        response["timings"] = serde_json::to_value(timings(app, plan, trace, totals)).unwrap_or_default();
        plan.delivery.adjustments.tell(&mut response);
        let Growing { items, deltas, .. } = growing;
        let reply = message_of(&items);
        response["output"] = items.into();
        let Some(tenant) = self.stores else {
            return Ok(Arc::new(Content { response, input: Value::Null, conversation: Vec::new(), deltas }));
        };
        let conversation = self.conversation.iter().cloned().chain([reply]).collect();
        let content = Content { response, input: self.input.clone(), conversation, deltas };
        app.responses.keep(tenant, &trace.response_id, content)
    }

    /// The response of an answer that has failed, with what there is of it.
    pub(super) fn failed(&self, mut response: Value, growing: Growing, error: &ApiError) -> Content {
        let (items, deltas) = growing.cut_off();
        response["status"] = "failed".into();
        response["error"] = failure(error);
        response["output"] = items.into();
        Content { response, input: self.input.clone(), conversation: self.conversation.clone(), deltas }
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
            Some("reasoning") => insert_thought(&mut extra, text),
            Some("message") => content.get_or_insert_default().push_str(text),
            _ => {
                let arguments = item["arguments"].as_str().unwrap_or_default();
                let arguments: Value = json::of_text(arguments).unwrap_or_else(|| arguments.into());
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

/// How tokens are shown.
fn texts<'a>(app: &'a App, plan: &ResponsePlan) -> TokenTexts<'a> {
    TokenTexts { tokenizer: app.engine.model().tokenizer.as_deref(), as_ids: plan.delivery.tokens_as_ids }
}

/// One answer, from what the engine says of it.
pub(super) struct Writing {
    app: Arc<App>,
    echo: Arc<ResponseEcho>,
    plan: ResponsePlan,
    trace: Arc<RequestTrace>,
    parser: Option<StreamParser>,
    totals: Totals,
    end: FinishInfo,
}

impl Writing {
    pub(super) fn new(app: Arc<App>, echo: Arc<ResponseEcho>, plan: ResponsePlan, trace: Arc<RequestTrace>) -> Writing {
        let (parser, totals) = (StreamParser::of(&plan, &trace, 0), Totals::of(&plan));
        Writing { app, echo, plan, trace, parser, totals, end: FinishInfo::default() }
    }

    /// The next output, written into `growing`. True: it was the last one.
    pub(super) fn take(&mut self, output: Event, growing: &mut Growing) -> Result<bool, ApiError> {
        let texts = texts(&self.app, &self.plan);
        match output {
            Event::Token { text, logprob, .. } => {
                let logprob = logprob.filter(|_| self.plan.logprobs);
                growing.push(Parsed::token(self.parser.as_mut(), text, logprob), &self.app.ids, &texts);
            }
            Event::Finished { reason, stop_string, text, .. } => {
                self.end = FinishInfo::of(&self.plan, &self.app, reason, stop_string);
                growing.push(Parsed::end(self.parser.as_mut(), text), &self.app.ids, &texts);
                self.totals.add_thoughts(self.parser.as_ref());
                growing.end();
            }
            Event::Done { usage, timings } => {
                self.totals.add(&self.app, &self.plan, &usage, &timings);
                return Ok(true);
            }
            Event::Failed(error) => return Err(error.into()),
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Progress(_) | Event::Noted { .. } => {}
        }
        Ok(false)
    }

    /// All outputs of the answer, which grows with each.
    pub(super) async fn push_all(&mut self, outputs: &mut EventStream, running: &Running) -> Result<(), ApiError> {
        while let Some((_, output)) = outputs.next().await {
            let is_last = running.change(|growing| self.take(output, growing));
            if is_last.inspect_err(|error| outputs.answered(error.status().as_u16()))? {
                outputs.answered(200);
                return Ok(());
            }
        }
        Err(ApiError::internal())
    }

    /// The response of the answer, which has ended; it is kept if it is to be.
    pub(super) fn finish(&self, growing: Growing, head: Value) -> Result<Arc<Content>, ApiError> {
        let Writing { app, echo, plan, trace, totals, end, .. } = self;
        echo.finish(app, plan, trace, totals, end, growing, head)
    }
}

/// The events of one answer.
struct Stream {
    writing: Writing,
    growing: Growing,
    teller: Teller,
    head: Value,
    has_begun: bool,
    ended: Option<Arc<Content>>,
}

impl Stream {
    fn new(app: Arc<App>, echo: Arc<ResponseEcho>, plan: ResponsePlan, trace: Arc<RequestTrace>) -> Stream {
        Stream {
            head: echo.head(&trace.response_id, app.now(), &plan),
            writing: Writing::new(app, echo, plan, trace),
            growing: Growing::default(),
            teller: Teller::new(None),
            has_begun: false,
            ended: None,
        }
    }

    fn tell(&mut self, events: &mut VecDeque<Bytes>) {
        let told = match &self.ended {
            Some(content) => Told::ended(content),
            None => Told::growing(&self.head, &self.growing, self.has_begun),
        };
        events.extend(std::iter::from_fn(|| self.teller.tell(&told)));
    }
}

impl StreamWriter for Stream {
    fn write(&mut self, _: usize, output: Event, events: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        let is_last = self.writing.take(output, &mut self.growing)?;
        self.has_begun = true;
        // All of it but its end: that it cannot be kept is seen then.
        self.tell(events);
        if is_last {
            self.ended = Some(self.writing.finish(self.growing.clone(), self.head.clone())?);
            self.tell(events);
        }
        Ok(())
    }

    fn failed(&mut self, error: &ApiError) -> Bytes {
        let (head, growing) = (self.head.clone(), std::mem::take(&mut self.growing));
        self.ended = Some(Arc::new(self.writing.echo.failed(head, growing, error)));
        let mut events = VecDeque::new();
        self.tell(&mut events);
        Vec::from(events).concat().into()
    }
}

/// An error, as a response has it.
pub(super) fn failure(error: &ApiError) -> Value {
    let told: Value = serde_json::from_str(&error.json()).unwrap_or_default();
    let code = told["error"]["code"].as_str().unwrap_or("server_error");
    json!({"code": code, "message": told["error"]["message"]})
}
