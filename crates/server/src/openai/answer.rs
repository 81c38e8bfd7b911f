//! From the engine's outputs to an answer: collected into one body, or event by event.
//!
//! ```text
//! Job { requests } --submit--> Outputs --next--> Output --+--> collect --> one JSON body
//!                                                         +--> Writer  --> data: {...}\n\n per token
//! ```
//!
//! A request with several prompts is several requests to the engine; prompt `p`'s answer `a` is choice `p * n + a`.
//! Dropping [`Outputs`] cancels whatever still runs: that is all there is to a client's disconnect.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use engine::receipt::{Provenance, Receipt, Unsealed};
use engine::{
    FinishReason, Output, PromptProgress, RequestError, ServiceClass, Stream, Timings, TokenLogprob, Usage,
    ValidatedRequest,
};
use hyper::body::{Body, Bytes, Frame};
use scheduler::Promise;
use serde::Serialize;
use serde_json::Value;

use crate::access;
use crate::app::App;
use crate::charge::{self, Charge};
use crate::error::ApiError;
use crate::openai::cost::Cost;
use crate::openai::late::LateWatch;
use crate::openai::params::Delivery;
use crate::openai::whole::{List, Numbers, Whole};
use crate::openai::wire::{
    ChatChoice, ChatChunk, ChatLogprobs, ChatMessageOut, Delta, Envelope, TextChoice, TextLogprobs, TokenTexts,
    WireProgress, WireTimings, WireUsage, fingerprint,
};
use crate::otel::Guard;
use crate::timeline::{Asker, Served};

/// Which of the two routes asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Chat,
    Completion,
}

impl Form {
    /// The route.
    pub(crate) fn route(self) -> &'static str {
        match self {
            Form::Chat => "/v1/chat/completions",
            Form::Completion => "/v1/completions",
        }
    }
}

/// Requests that passed the door, and how their answer is to look.
pub(crate) struct Job {
    pub(crate) requests: Vec<ValidatedRequest>,
    pub(crate) plan: Plan,
}

/// How the answer is to look.
pub(crate) struct Plan {
    pub(crate) form: Form,
    pub(crate) delivery: Delivery,
    /// What receipts share, where they were asked for.
    pub(crate) basis: Option<Provenance>,
    /// Answers per prompt.
    pub(crate) num_answers: usize,
    /// There was a prediction of the answers.
    pub(crate) predicted: bool,
    /// The stop strings, to name the one that ended an answer.
    pub(crate) stop: Vec<String>,
    pub(crate) logprobs: bool,
    /// vLLM's `prompt_logprobs` was asked for.
    pub(crate) prompt_logprobs: bool,
    /// Texts to repeat before the answers, one per prompt; none at all without `echo`.
    pub(crate) echo: Vec<String>,
}

/// Outputs of each answer of a stream that may wait to be read, beyond what the connection's buffers hold.
const MOST_UNREAD: usize = 4096;

fn most_unread(plan: &Plan) -> usize {
    MOST_UNREAD * plan.num_answers
}

/// The outputs of all prompts of a request, as they come.
pub(crate) struct Outputs {
    streams: Vec<Option<Stream>>,
    served: Arc<Served>,
    /// Prompt to ask first, so that none is starved.
    turn: usize,
    /// Memory set aside for what they say.
    charge: Option<Charge>,
    /// Dropped last, with the streams: then the request has ended, or is cancelled.
    _span: Option<Guard>,
    /// The same for the log.
    access: access::Guard,
}

impl Outputs {
    /// Submits all prompts, or none.
    pub(crate) fn submit(
        app: &App,
        plan: &Plan,
        asker: Asker,
        requests: Vec<ValidatedRequest>,
    ) -> Result<Outputs, ApiError> {
        let streamed = plan.delivery.stream;
        let bytes = |request: &ValidatedRequest| charge::bytes_of(request, streamed, most_unread(plan));
        let bytes = requests.iter().map(bytes).fold(0, u64::saturating_add);
        let tenant = requests.first().map_or(0, ValidatedRequest::tenant);
        let charge = app.answers.charge(tenant, bytes)?;
        let prompt_tokens = requests.iter().map(|request| request.prompt().len()).collect();
        let submit = |request| Ok(Some(app.engine.submit(request)?));
        // When a later one finds the queue full, dropping the earlier ones cancels them.
        let streams = requests.into_iter().map(submit).collect::<Result<Vec<_>, ApiError>>()?;
        if streamed {
            streams.iter().flatten().for_each(|stream: &Stream| stream.limit_unread(most_unread(plan)));
        }
        let requests = streams.iter().flatten().map(Stream::id).collect();
        let response_id = app.response_id(plan.form);
        let served = Arc::new(Served {
            tenant: asker.tenant,
            key: asker.key,
            response_id,
            request_id: asker.request_id,
            requests,
            prompt_tokens,
        });
        app.registry.add(served.clone());
        let span = app.exporter.clone().map(|exporter| {
            let operation = if plan.form == Form::Chat { "chat" } else { "text_completion" };
            Guard::new(exporter, served.clone(), plan.delivery.model.clone(), operation, asker.parent)
        });
        let access = access::Guard::new(app.access.clone(), served.clone(), plan.form.route(), streamed);
        Ok(Outputs { streams, served, turn: 0, charge: Some(charge), _span: span, access })
    }

    /// What was promised when the prompts were submitted: of each time, the latest of any prompt.
    pub(crate) fn promise(&self) -> Option<Promise> {
        self.streams.iter().flatten().filter_map(Stream::promise).copied().reduce(|a, b| a.latest(&b))
    }

    /// What is to be told if that is broken.
    fn late_watch(&self) -> Option<LateWatch> {
        let arrived = self.streams.iter().flatten().map(Stream::arrived).min()?;
        Some(LateWatch::new(self.promise()?, arrived, self.streams.len()))
    }

    fn prompts(&self) -> Vec<Vec<u32>> {
        self.streams.iter().flatten().map(|stream| stream.prompt().to_vec()).collect()
    }

    /// The next output and the prompt it belongs to; `None` when all have ended.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Output)>> {
        let count = self.streams.len();
        let mut open = false;
        for at in (self.turn..self.turn + count).map(|at| at % count) {
            let Some(stream) = &mut self.streams[at] else { continue };
            open = true;
            // A receive that is given up before it is ready has taken nothing.
            let Poll::Ready(output) = pin!(stream.recv()).poll(cx) else { continue };
            // An engine that is gone sends nothing more, not even an error.
            let output = output.unwrap_or(Output::Failed(RequestError::Internal));
            if matches!(output, Output::Done { .. } | Output::Failed(_)) {
                self.streams[at] = None;
            }
            self.turn = (at + 1) % count;
            return Poll::Ready(Some((at, output)));
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    async fn next(&mut self) -> Option<(usize, Output)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// Sums over the prompts of a request.
#[derive(Default)]
struct Totals {
    usage: Usage,
    timings: Timings,
    cost: Cost,
}

impl Totals {
    fn add(&mut self, app: &App, answers: usize, usage: &Usage, timings: &Timings) {
        self.cost.add(timings, &app.demands, app.engine.model().max_num_batched_tokens, answers);
        self.usage.prompt_tokens += usage.prompt_tokens;
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.cached_tokens += usage.cached_tokens;
        let sum = &mut self.timings;
        for (longest, this) in [
            (&mut sum.queue_ms, timings.queue_ms),
            (&mut sum.prefill_ms, timings.prefill_ms),
            (&mut sum.decode_ms, timings.decode_ms),
            (&mut sum.ttft_ms, timings.ttft_ms),
            (&mut sum.total_ms, timings.total_ms),
            (&mut sum.held_ms, timings.held_ms),
        ] {
            *longest = longest.max(this);
        }
        sum.prefill_tokens += timings.prefill_tokens;
        sum.cached_tokens += timings.cached_tokens;
        sum.decode_tokens += timings.decode_tokens;
        sum.decode_steps += timings.decode_steps;
        sum.verify_steps += timings.verify_steps;
        sum.drafted_tokens += timings.drafted_tokens;
        sum.accepted_tokens += timings.accepted_tokens;
        sum.preemptions += timings.preemptions;
        sum.promise = [sum.promise, timings.promise].into_iter().flatten().reduce(|a, b| a.latest(&b));
    }
}

/// One answer of one prompt, while it grows.
#[derive(Default)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    finish_reason: Option<&'static str>,
    stop_reason: Value,
    receipt: Option<Receipt>,
}

/// `stop` or `length`, and vLLM's `stop_reason`: the stop string or token that did it, `null` for the model's own end.
fn reasons(plan: &Plan, app: &App, reason: FinishReason, stop_string: Option<usize>) -> (&'static str, Value) {
    match (reason, stop_string) {
        (FinishReason::Length, _) => ("length", Value::Null),
        (_, Some(at)) => ("stop", plan.stop.get(at).map_or(Value::Null, |text| text.as_str().into())),
        (FinishReason::Stop(Some(token)), _) if !app.engine.model().eos_token_ids.contains(&token) => {
            ("stop", token.into())
        }
        (FinishReason::Stop(_), _) => ("stop", Value::Null),
    }
}

impl Plan {
    /// The receipt of an answer; none where none was asked for.
    fn receipt(&self, unsealed: Unsealed) -> Option<Receipt> {
        self.basis.clone().map(|basis| unsealed.seal(basis))
    }
}

/// What both deliveries share: names, and the way tokens are shown.
struct Format<'a> {
    app: &'a App,
    plan: &'a Plan,
    served: &'a Served,
    created: u64,
}

impl<'a> Format<'a> {
    fn texts(&self) -> TokenTexts<'a> {
        TokenTexts { tokenizer: self.app.engine.model().tokenizer.as_deref(), as_ids: self.plan.delivery.tokens_as_ids }
    }

    fn timings(&self, totals: &Totals) -> WireTimings {
        let wants_detail = self.plan.delivery.timings_detail;
        let detail = wants_detail.then(|| self.app.reader(self.served.tenant).detail(self.served));
        let phases = totals.cost.phases(self.app.engine.device_limits().as_ref(), &self.app.demands);
        WireTimings::of(&totals.timings, phases, detail)
    }

    fn usage(&self, totals: &Totals) -> WireUsage {
        WireUsage::of(&totals.usage, &totals.timings, self.plan.predicted)
    }

    fn envelope<C>(&self, object: &'static str, choices: Vec<C>) -> Envelope<'a, C> {
        Envelope {
            id: &self.served.response_id,
            object,
            created: self.created,
            model: &self.plan.delivery.model,
            system_fingerprint: fingerprint(self.app.engine.model().arithmetic),
            service_tier: self.plan.delivery.tier.map(ServiceClass::name),
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
            prompt_logprobs: None,
            prompt_token_ids: None,
        }
    }
}

/// Waits for the whole answer; its body is written while it is read. With where its time went.
pub(crate) async fn collect(app: &Arc<App>, plan: &Plan, mut outputs: Outputs) -> Result<(Whole, Timings), ApiError> {
    let prompts = outputs.prompts();
    let mut answers: Vec<Answer> = Vec::new();
    answers.resize_with(prompts.len() * plan.num_answers, Answer::default);
    let mut prompt_logprobs: Vec<Vec<Option<TokenLogprob>>> = vec![Vec::new(); prompts.len()];
    let mut totals = Totals::default();
    while let Some((prompt, output)) = outputs.next().await {
        let first = prompt * plan.num_answers;
        match output {
            // Only streams ask for it.
            Output::Progress(_) => {}
            Output::PromptLogprobs(logprobs) => prompt_logprobs[prompt] = logprobs,
            Output::Token { answer, token, text, logprob } => {
                let answer = &mut answers[first + answer];
                answer.text.push_str(&text);
                answer.tokens.push(token);
                answer.logprobs.extend(logprob);
            }
            Output::Noted { answer, unsealed } => answers[first + answer].receipt = plan.receipt(*unsealed),
            Output::Finished { answer, reason, stop_string, text } => {
                let answer = &mut answers[first + answer];
                answer.text.push_str(&text);
                let (finish_reason, stop_reason) = reasons(plan, app, reason, stop_string);
                answer.finish_reason = Some(finish_reason);
                answer.stop_reason = stop_reason;
            }
            Output::Done { usage, timings } => totals.add(app, plan.num_answers, &usage, &timings),
            Output::Failed(error) => {
                let error = ApiError::from(error);
                outputs.access.answered(error.status().as_u16());
                return Err(error);
            }
        }
    }
    outputs.access.answered(200);
    let logprobs = answers.iter_mut().map(|answer| std::mem::take(&mut answer.logprobs)).collect();
    let frame = Format { app, plan, served: &outputs.served, created: app.now() };
    let (json, lists) = match plan.form {
        Form::Chat => frame.whole_chat(answers, &prompts, &totals),
        Form::Completion => frame.whole_text(answers, &prompts, &totals),
    };
    let numbers = Numbers {
        prompts,
        prompt_logprobs,
        logprobs,
        num_answers: plan.num_answers,
        echoes: plan.logprobs && !plan.echo.is_empty(),
        as_ids: plan.delivery.tokens_as_ids,
    };
    Ok((Whole::new(app.clone(), numbers, &json, &lists, outputs.charge.take()), totals.timings))
}

/// A body whose lists are still empty, and which they are, in their order.
type Skeleton = (String, Vec<(List, usize)>);

impl Format<'_> {
    fn whole_chat(&self, answers: Vec<Answer>, prompts: &[Vec<u32>], totals: &Totals) -> Skeleton {
        let plan = self.plan;
        let choice = |(index, answer): (usize, Answer)| ChatChoice {
            index,
            message: ChatMessageOut { role: "assistant", content: answer.text, refusal: None },
            logprobs: plan.logprobs.then(|| ChatLogprobs { content: Vec::new(), refusal: None }),
            finish_reason: answer.finish_reason.unwrap_or("stop"),
            stop_reason: answer.stop_reason,
            token_ids: plan.delivery.token_ids.then_some(answer.tokens),
            receipt: answer.receipt,
        };
        let with_logprobs = if plan.logprobs { answers.len() } else { 0 };
        let mut lists: Vec<_> = (0..with_logprobs).map(|index| (List::Content, index)).collect();
        lists.extend(plan.prompt_logprobs.then_some((List::PromptLogprobs, 0)));
        let choices = answers.into_iter().enumerate().map(choice).collect();
        let mut envelope = self.envelope("chat.completion", choices);
        envelope.usage = Some(Some(self.usage(totals)));
        envelope.timings = Some(self.timings(totals));
        envelope.prompt_logprobs = plan.prompt_logprobs.then(Vec::new);
        envelope.prompt_token_ids = plan.delivery.token_ids.then(|| prompts[0].clone());
        (json(&envelope), lists)
    }

    fn whole_text(&self, answers: Vec<Answer>, prompts: &[Vec<u32>], totals: &Totals) -> Skeleton {
        let plan = self.plan;
        let choice = |(index, answer): (usize, Answer)| {
            let prompt = index / plan.num_answers;
            TextChoice {
                index,
                text: match plan.echo.get(prompt) {
                    Some(echo) => format!("{echo}{}", answer.text),
                    None => answer.text,
                },
                logprobs: plan.logprobs.then(TextLogprobs::default),
                finish_reason: answer.finish_reason,
                stop_reason: answer.stop_reason,
                prompt_logprobs: plan.prompt_logprobs.then(Vec::new),
                token_ids: plan.delivery.token_ids.then_some(answer.tokens),
                prompt_token_ids: plan.delivery.token_ids.then(|| prompts[prompt].clone()),
                receipt: answer.receipt,
            }
        };
        let four = [List::TextOffset, List::TokenLogprobs, List::Tokens, List::TopLogprobs];
        let of_choice = |index: usize| {
            let logprobs = four.into_iter().filter(|_| plan.logprobs);
            let lists = logprobs.chain(plan.prompt_logprobs.then_some(List::PromptLogprobs));
            lists.map(move |list| (list, index))
        };
        let lists = (0..answers.len()).flat_map(of_choice).collect();
        let choices = answers.into_iter().enumerate().map(choice).collect();
        let mut envelope = self.envelope("text_completion", choices);
        envelope.usage = Some(Some(self.usage(totals)));
        envelope.timings = Some(self.timings(totals));
        (json(&envelope), lists)
    }

    /// The lists for an echoed prompt: empty without `echo` or without `logprobs`.
    fn echoed_logprobs(&self, prompt: &[u32], logprobs: &[Option<TokenLogprob>], offset: &mut usize) -> TextLogprobs {
        let mut lists = TextLogprobs::default();
        if self.plan.logprobs && !self.plan.echo.is_empty() {
            let texts = self.texts();
            for (at, &token) in prompt.iter().enumerate() {
                texts.push(&mut lists, offset, token, logprobs.get(at).and_then(Option::as_ref));
            }
        }
        lists
    }
}

fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("strings, finite numbers and lists serialize")
}

/// One choice of a stream.
#[derive(Clone, Default)]
struct Choice {
    started: bool,
    offset: usize,
    num_tokens: usize,
    /// Goes with its last event.
    receipt: Option<Receipt>,
}

/// Turns outputs into events, one per token.
struct Writer {
    app: Arc<App>,
    plan: Plan,
    served: Arc<Served>,
    created: u64,
    prompts: Vec<Vec<u32>>,
    prompt_logprobs: Vec<Vec<Option<TokenLogprob>>>,
    choices: Vec<Choice>,
    unfinished: usize,
    /// Prompts whose `Done` has not come.
    undone: usize,
    /// The last choice to finish: its event carries the timings, which come right behind it.
    last: Option<(usize, String, &'static str, Value)>,
    totals: Totals,
}

/// A piece of an answer, before it has a form.
#[derive(Default)]
struct Piece {
    text: String,
    token: Option<u32>,
    logprob: Option<TokenLogprob>,
    finish: Option<(&'static str, Value)>,
    timings: Option<WireTimings>,
    receipt: Option<Receipt>,
}

impl Writer {
    fn new(app: Arc<App>, plan: Plan, outputs: &Outputs) -> Writer {
        let prompts = outputs.prompts();
        let num_choices = prompts.len() * plan.num_answers;
        Writer {
            served: outputs.served.clone(),
            created: app.now(),
            prompt_logprobs: vec![Vec::new(); prompts.len()],
            choices: vec![Choice::default(); num_choices],
            unfinished: num_choices,
            undone: prompts.len(),
            last: None,
            totals: Totals::default(),
            app,
            plan,
            prompts,
        }
    }

    /// Writes what `output` says into `events`. An error ends the stream.
    fn write(&mut self, prompt: usize, output: Output, events: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        let first = prompt * self.plan.num_answers;
        match output {
            Output::PromptLogprobs(logprobs) => self.prompt_logprobs[prompt] = logprobs,
            Output::Progress(progress) => events.push_back(self.progress(first, &progress)),
            Output::Token { answer, token, text, logprob } => {
                let piece = Piece { text, token: Some(token), logprob, ..Piece::default() };
                self.choices[first + answer].num_tokens += 1;
                events.push_back(self.event(first + answer, piece));
            }
            Output::Noted { answer, unsealed } => self.choices[first + answer].receipt = self.plan.receipt(*unsealed),
            Output::Finished { answer, reason, stop_string, text } => {
                let (finish_reason, stop_reason) = reasons(&self.plan, &self.app, reason, stop_string);
                self.unfinished -= 1;
                if self.unfinished == 0 {
                    self.last = Some((first + answer, text, finish_reason, stop_reason));
                } else {
                    let receipt = self.choices[first + answer].receipt.take();
                    let piece = Piece { text, finish: Some((finish_reason, stop_reason)), receipt, ..Piece::default() };
                    events.push_back(self.event(first + answer, piece));
                }
            }
            Output::Done { usage, timings } => {
                self.totals.add(&self.app, self.plan.num_answers, &usage, &timings);
                self.undone -= 1;
                if self.undone == 0 {
                    self.finish(events);
                }
            }
            Output::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// After the last prompt's `Done`: the last choice's end, the token counts, and the mark that nothing follows.
    fn finish(&mut self, events: &mut VecDeque<Bytes>) {
        let Some((choice, text, finish_reason, stop_reason)) = self.last.take() else { return };
        let timings = Some(self.frame().timings(&self.totals));
        let finish = Some((finish_reason, stop_reason));
        let receipt = self.choices[choice].receipt.take();
        let piece = Piece { text, finish, timings: timings.clone(), receipt, ..Piece::default() };
        events.push_back(self.event(choice, piece));
        if self.plan.delivery.include_usage {
            let frame = self.frame();
            let mut envelope = frame.envelope::<ChatChunk>(self.object(), Vec::new());
            envelope.usage = Some(Some(frame.usage(&self.totals)));
            envelope.timings = timings;
            events.push_back(event(&json(&envelope)));
        }
        events.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }

    fn frame(&self) -> Format<'_> {
        Format { app: &self.app, plan: &self.plan, served: &self.served, created: self.created }
    }

    fn object(&self) -> &'static str {
        match self.plan.form {
            Form::Chat => "chat.completion.chunk",
            Form::Completion => "text_completion",
        }
    }

    /// One event of one choice. The first one of a choice opens it: with the role, or with the echoed prompt.
    fn event(&mut self, index: usize, piece: Piece) -> Bytes {
        let opens = !std::mem::replace(&mut self.choices[index].started, true);
        let mut offset = self.choices[index].offset;
        let bytes = match self.plan.form {
            Form::Chat => self.chat_events(index, opens, piece),
            Form::Completion => self.text_event(index, opens, piece, &mut offset),
        };
        self.choices[index].offset = offset;
        bytes
    }

    fn chat_events(&self, index: usize, opens: bool, piece: Piece) -> Bytes {
        let texts = self.frame().texts();
        let mut text = String::new();
        if opens {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
            let chunk = ChatChunk {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                stop_reason: None,
                token_ids: None,
                receipt: None,
            };
            let mut envelope = self.chunk(index, chunk, None);
            if index == 0 {
                envelope.prompt_token_ids = self.plan.delivery.token_ids.then(|| self.prompts[0].clone());
                envelope.prompt_logprobs = self.plan.prompt_logprobs.then(|| texts.prompt(&self.prompt_logprobs[0]));
            }
            text.push_str(&framed(&json(&envelope)));
        }
        let (finish_reason, stop_reason) = piece.finish.unzip();
        // The end of an answer has content only when text was held back until then.
        let content = (piece.token.is_some() || !piece.text.is_empty()).then_some(piece.text);
        let chunk = ChatChunk {
            index,
            delta: Delta { role: None, content },
            logprobs: piece
                .logprob
                .filter(|_| self.plan.logprobs)
                .map(|logprob| ChatLogprobs { content: vec![texts.chat(&logprob)], refusal: None }),
            finish_reason,
            stop_reason,
            token_ids: self.plan.delivery.token_ids.then(|| piece.token.into_iter().collect()),
            receipt: piece.receipt,
        };
        text.push_str(&framed(&json(&self.chunk(index, chunk, piece.timings))));
        text.into()
    }

    /// A chunk that brings nothing to its choice: it opens when its first token comes.
    fn progress(&self, index: usize, progress: &PromptProgress) -> Bytes {
        let progress = Some(WireProgress::of(progress));
        let json = match self.plan.form {
            Form::Chat => {
                let chunk = ChatChunk { index, ..ChatChunk::default() };
                json(&Envelope { prompt_progress: progress, ..self.chunk(index, chunk, None) })
            }
            Form::Completion => {
                let choice = TextChoice { index, ..TextChoice::default() };
                json(&Envelope { prompt_progress: progress, ..self.chunk(index, choice, None) })
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
        let (finish_reason, stop_reason) = piece.finish.unzip();
        let choice = TextChoice {
            index,
            text,
            logprobs: shows_logprobs.then_some(lists),
            finish_reason,
            stop_reason: stop_reason.unwrap_or(Value::Null),
            prompt_logprobs: (opens && self.plan.prompt_logprobs).then(|| texts.prompt(&self.prompt_logprobs[prompt])),
            token_ids: self.plan.delivery.token_ids.then(|| piece.token.into_iter().collect()),
            prompt_token_ids: (opens && self.plan.delivery.token_ids).then(|| self.prompts[prompt].clone()),
            receipt: piece.receipt,
        };
        framed(&json(&self.chunk(index, choice, piece.timings))).into()
    }

    fn chunk<C>(&self, index: usize, choice: C, timings: Option<WireTimings>) -> Envelope<'_, C> {
        let delivery = &self.plan.delivery;
        let mut envelope = self.frame().envelope(self.object(), vec![choice]);
        envelope.timings = timings;
        if delivery.continuous_usage {
            let (prompt_tokens, completion_tokens) =
                (self.prompts[index / self.plan.num_answers].len(), self.choices[index].num_tokens);
            envelope.usage = Some(Some(WireUsage {
                prompt_tokens,
                completion_tokens,
                total_tokens: prompt_tokens + completion_tokens,
                prompt_tokens_details: None,
                completion_tokens_details: None,
            }));
        } else if delivery.include_usage {
            envelope.usage = Some(None);
        }
        envelope
    }
}

/// One server-sent event. JSON on one line needs no escaping.
fn framed(json: &str) -> String {
    format!("data: {json}\n\n")
}

fn event(json: &str) -> Bytes {
    framed(json).into()
}

/// The body of a streamed answer. Pulled by the connection: while a reader is slow nothing is written ahead for it, and
/// what the engine has sent meanwhile is at most the answer's own tokens.
pub(crate) struct Events {
    outputs: Option<Outputs>,
    writer: Writer,
    late: Option<LateWatch>,
    ready: VecDeque<Bytes>,
}

impl Events {
    pub(crate) fn new(app: Arc<App>, plan: Plan, outputs: Outputs) -> Events {
        let (writer, late) = (Writer::new(app, plan, &outputs), outputs.late_watch());
        Events { outputs: Some(outputs), writer, late, ready: VecDeque::new() }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            let Some(outputs) = &mut this.outputs else { return Poll::Ready(None) };
            let Poll::Ready(next) = outputs.poll_next(cx) else {
                let late = this.late.as_mut().and_then(|late| late.poll(&this.writer.app, &this.writer.served, cx));
                let Some(comment) = late else { return Poll::Pending };
                return Poll::Ready(Some(Ok(Frame::data(comment))));
            };
            let Some((prompt, output)) = next else {
                this.outputs = None;
                continue;
            };
            if let (Some(late), Output::Token { .. }) = (&mut this.late, &output) {
                late.token(prompt);
            }
            if let Err(error) = this.writer.write(prompt, output, &mut this.ready) {
                // The headers are gone, so the error is an event, and the missing [DONE] says that it is no end.
                this.ready.push_back(event(&error.json()));
                this.outputs = None;
            }
        }
    }
}
