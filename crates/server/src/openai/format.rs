//! Whole answers in OpenAI's words, and what they share with streamed ones: names, and the way tokens are shown.

use std::sync::Arc;

use engine::{ServiceClass, TokenLogprob};
use serde::Serialize;
use telemetry::answer_timings::WireTimings;
use telemetry::timeline::RequestTrace;
use transport::json::json_body;

use crate::answers::{self, Answer, CollectedAnswer, EventStream, ResponsePlan, ResponseWriter, StreamWriter, Totals};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::openai::beams::Beams;
use crate::openai::logprobs::{ChatLogprobs, TextLogprobs, TokenTexts};
use crate::openai::said::Said;
use crate::openai::stream::Writer;
use crate::openai::transfer::WireTransfer;
use crate::openai::whole::{List, Numbers, Whole};
use crate::openai::wire::{ChatChoice, ChatMessageOut, Envelope, TextChoice, WireUsage, fingerprint};

/// What both deliveries share: names, and the way tokens are shown.
pub(super) struct Format<'a> {
    pub(super) app: &'a App,
    pub(super) plan: &'a ResponsePlan,
    pub(super) trace: &'a RequestTrace,
    pub(super) created: u64,
}

impl<'a> Format<'a> {
    pub(super) fn texts(&self) -> TokenTexts<'a> {
        TokenTexts { tokenizer: self.app.engine.model().tokenizer.as_deref(), as_ids: self.plan.delivery.tokens_as_ids }
    }

    pub(super) fn timings(&self, totals: &Totals) -> WireTimings {
        timings(self.app, self.plan, self.trace, totals)
    }

    pub(super) fn usage(&self, totals: &Totals) -> WireUsage {
        WireUsage::of(totals, self.plan.predicted)
    }

    pub(super) fn envelope<C>(&self, object: &'static str, choices: Vec<C>) -> Envelope<'a, C> {
        Envelope {
            id: &self.trace.response_id,
            object,
            created: self.created,
            model: &self.plan.delivery.model,
            system_fingerprint: fingerprint(self.app.engine.model()),
            service_tier: self.plan.delivery.tier.map(ServiceClass::name),
            choices,
            usage: None,
            timings: None,
            adjustments: None,
            prompt_progress: None,
            prompt_logprobs: None,
            prompt_token_ids: None,
            kv_transfer_params: self.plan.delivery.gives.as_ref().map(WireTransfer::of),
        }
    }
}

/// Where the time of an answer went.
pub(crate) fn timings(app: &App, plan: &ResponsePlan, trace: &RequestTrace, totals: &Totals) -> WireTimings {
    let reader = app.reader(trace.tenant);
    let detail = plan.delivery.timings_detail.then(|| reader.detail(trace).into());
    let cache = totals.timings.bill.miss.map(|miss| reader.cache_miss(&miss, trace));
    let searched = plan.beams.as_ref().map(Beams::taken);
    let phases = totals.cost.phases(app.engine.device_limits().as_ref(), &app.model.demands);
    let mut told = WireTimings::of(&totals.timings, trace.thinking(&*app.engine), phases, [cache, detail]);
    (told.beam_rounds, told.beam_rows) = searched.map(|taken| (taken.rounds, taken.rows)).unzip();
    told
}

pub(crate) struct OpenAi;

impl ResponseWriter for OpenAi {
    fn whole<'a>(&'a self, app: &'a Arc<App>, plan: ResponsePlan, outputs: EventStream) -> answers::Whole<'a> {
        answers::gathered(app, plan, outputs, |plan, gathered| json_body(body(app, plan, gathered).body()))
    }

    fn stream_writer(&self, app: &Arc<App>, plan: ResponsePlan, outputs: &EventStream) -> Box<dyn StreamWriter> {
        Box::new(Writer::new(app.clone(), plan, outputs))
    }
}

/// It is written while it is read.
fn body(app: &Arc<App>, plan: &ResponsePlan, gathered: CollectedAnswer) -> Whole {
    let CollectedAnswer { mut answers, prompts, prompt_logprobs, totals, trace, charge, .. } = gathered;
    let logprobs = answers.iter_mut().map(|answer| std::mem::take(&mut answer.logprobs)).collect();
    let frame = Format { app, plan, trace: &trace, created: app.now() };
    let (json, lists) = match plan.endpoint {
        Endpoint::Completion => frame.whole_text(answers, &prompts, &totals),
        _ => frame.whole_chat(answers, &prompts, &totals),
    };
    let numbers = Numbers {
        prompts,
        prompt_logprobs,
        logprobs,
        num_answers: plan.num_answers,
        echoes: plan.endpoint == Endpoint::Completion && plan.logprobs && !plan.echo.is_empty(),
        as_ids: plan.delivery.tokens_as_ids,
    };
    Whole::new(app.clone(), numbers, &json, &lists, charge)
}

/// A body whose lists are still empty, and which they are, in their order.
type Skeleton = (String, Vec<(List, usize)>);

impl Format<'_> {
    fn whole_chat(&self, answers: Vec<Answer>, prompts: &[Vec<u32>], totals: &Totals) -> Skeleton {
        let plan = self.plan;
        let choice = |(index, answer): (usize, Answer)| ChatChoice {
            index,
            message: echoing(
                plan.echo.first(),
                match answer.parts {
                    Some(parts) => Said::of(parts, self.app).message(),
                    None => ChatMessageOut { content: Some(answer.text), ..ChatMessageOut::default() },
                },
            ),
            logprobs: plan.logprobs.then(|| ChatLogprobs { content: Vec::new(), refusal: None }),
            finish_reason: answer.end.finish.name(),
            stop_reason: answer.end.stop_reason,
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
        envelope.adjustments = Some(&plan.delivery.adjustments);
        envelope.prompt_logprobs = Some(plan.prompt_logprobs.then(Vec::new));
        envelope.prompt_token_ids = Some(plan.delivery.token_ids.then(|| prompts[0].clone()));
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
                finish_reason: Some(answer.end.finish.name()),
                stop_reason: answer.end.stop_reason,
                prompt_logprobs: Some(plan.prompt_logprobs.then(Vec::new)),
                token_ids: Some(plan.delivery.token_ids.then_some(answer.tokens)),
                prompt_token_ids: Some(plan.delivery.token_ids.then(|| prompts[prompt].clone())),
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
        envelope.adjustments = Some(&plan.delivery.adjustments);
        (json(&envelope), lists)
    }

    /// The lists for an echoed prompt: empty without `echo` or without `logprobs`.
    pub(super) fn echoed_logprobs(
        &self,
        prompt: &[u32],
        logprobs: &[Option<TokenLogprob>],
        offset: &mut usize,
    ) -> TextLogprobs {
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

/// The message that was gone on with, and how it goes on.
fn echoing(echo: Option<&String>, mut message: ChatMessageOut) -> ChatMessageOut {
    if let Some(echo) = echo.filter(|echo| !echo.is_empty()) {
        message.content = Some(format!("{echo}{}", message.content.unwrap_or_default()));
    }
    message
}

pub(super) fn json(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("strings, finite numbers and lists serialize")
}
