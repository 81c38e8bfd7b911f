//! `twostroke run`: one answer to an argument or to standard input, or a chat at the terminal.
//!
//! Standard output carries the answer and nothing else; the line about the phases goes to standard error.

mod chat;
mod commands;
mod editor;
mod history;
mod idle;
mod input;
pub(crate) mod told;
mod wrap;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use checkpoint::Checkpoint;
use engine::{
    Chat, ChatMessage, Engine, Event, FinishReason, ModelInfo, Prompt, PromptProgress, RawRequest, Rejection,
    SamplingParams, Timings, Usage,
};
use kernels::limits::Limits;
use launch::Settings;
use model::Adapter;
use serde_json::{Value, json};
use text::chat_template::TemplateSettings;
use tokio::runtime::Runtime;

use self::told::Voice;
use crate::console::{Progress, note, put, put_line};
use crate::failure::Failure;
use crate::figures::{self, Demands, Figures, LimitShares, PassWork, Peaks, Phase, rounded};
use crate::flags::RunFlags;
use crate::signals::{self, Ends};
use crate::{environment, models, narrower};

/// So long a prompt is read without a word about it.
const AT_ONCE: Duration = Duration::from_secs(1);
/// What the adapter of `--lora` is called.
const ADAPTER: &str = "lora";

pub(crate) fn run(flags: &RunFlags) -> Result<(), Failure> {
    let (model, question) = input::question(flags)?;
    let started = start(flags, model.as_deref(), &models::open_fitting(model.as_deref(), flags.force)?)?;
    let mut session = Session::new(started, flags)?;
    match question {
        Some(question) => match session.answer(&question)? {
            Ended::Stopped => Err(Failure::Interrupted),
            Ended::Finished => Ok(()),
        },
        None => chat::chat(&mut session),
    }
}

/// An engine, and the lines about its weights.
struct Started {
    engine: Engine,
    lines: Vec<String>,
}

/// Starts a model. `name`: as the user has it.
fn start(flags: &RunFlags, name: Option<&str>, checkpoint: &Checkpoint) -> Result<Started, Failure> {
    models::check_that_it_writes(checkpoint)?;
    let choose = if flags.quiet { models::choose } else { models::weights };
    let chosen = choose(&flags.model, checkpoint)?;
    let lines = match flags.quiet || flags.json {
        true => Vec::new(),
        false => narrower::start_lines(&flags.model, name, checkpoint, chosen, None),
    };
    Ok(Started { engine: models::start(checkpoint, &settings(flags)?, chosen)?, lines })
}

/// One sequence at a time; everything else is the engine's default.
fn settings(flags: &RunFlags) -> Result<Settings, Failure> {
    // Room for the one that there is.
    let rank = flags.lora.as_deref().map(Adapter::stated_rank).transpose();
    let rank = rank.map_err(|error| Failure::usage(format!("--lora: {error}")))?;
    let max_adapter_rank = rank.unwrap_or(1);
    let common = models::settings(&flags.model);
    Ok(Settings {
        max_model_len: flags.max_model_len,
        max_num_seqs: 1,
        max_num_batched_tokens: Some(flags.max_num_batched_tokens),
        kv_cache_bytes: flags.kv_cache_memory_bytes,
        adapters: flags.lora.iter().map(|path| (ADAPTER.to_owned(), path.clone())).collect(),
        max_adapter_rank,
        hash_key: environment::random_bytes()?,
        seed: u64::from_le_bytes(environment::random_bytes()?[..8].try_into().expect("8 of 32 bytes")),
        template: TemplateSettings { is_needed: !flags.raw, ..common.template },
        ..common
    })
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ended {
    #[default]
    Finished,
    /// By Ctrl-C or SIGHUP.
    Stopped,
}

/// How answers are drawn: the flags, and in a chat what was set since. `None`: the model's own.
#[derive(Clone, Debug, Default)]
struct Sampling {
    max_tokens: Option<i64>,
    params: SamplingParams,
    seed: Option<i64>,
}

/// A conversation with one engine.
struct Session<'a> {
    engine: Engine,
    flags: &'a RunFlags,
    runtime: Runtime,
    /// Heard from the start: without a listener they would end the process.
    interrupts: Ends,
    demands: Demands,
    voice: Voice,
    sampling: Sampling,
    /// The system message of the next conversation.
    system: Option<String>,
    messages: Vec<ChatMessage>,
    /// The oldest messages behind the system message that the model's context has no room for.
    left_out: usize,
    /// Texts of files that belong to the next question, each behind an empty line.
    attached: String,
    /// Start lines not printed yet: a usage error is reported alone.
    start_lines: Vec<String>,
}

impl Session<'_> {
    fn new(Started { engine, lines }: Started, flags: &RunFlags) -> Result<Session<'_>, Failure> {
        if engine.model().chat_template.is_none() && !flags.raw && flags.system.is_some() {
            return Err(Failure::usage("--system: this model has no chat template"));
        }
        tell_about(engine.model(), flags);
        let runtime = signals::runtime(0)?;
        let interrupts = runtime.block_on(async { Ends::listen() })?;
        let mut session = Session {
            demands: engine.model().demands(),
            voice: Voice::of(engine.model(), flags),
            engine,
            flags,
            runtime,
            interrupts,
            sampling: Sampling { max_tokens: flags.max_tokens, params: flags.sampling(), seed: flags.seed },
            system: flags.system.clone(),
            messages: Vec::new(),
            left_out: 0,
            attached: String::new(),
            start_lines: lines,
        };
        session.clear();
        Ok(session)
    }

    /// Forgets everything but the system message.
    fn clear(&mut self) {
        self.attached.clear();
        self.go_on_with(self.system.iter().map(|text| ChatMessage::new("system", text)).collect());
    }

    /// Another conversation.
    fn go_on_with(&mut self, messages: Vec<ChatMessage>) {
        (self.messages, self.left_out) = (messages, 0);
    }

    /// Another model answers from now on; says how much of the conversation it reads. Where it does not start, nothing
    /// changes: for as long as it starts, both are in memory.
    fn change_model(&mut self, name: &str) -> Result<String, Failure> {
        if self.flags.lora.is_some() {
            return Err(Failure::usage("/model: the adapter of --lora is one of the model that it was started with"));
        }
        let started = start(self.flags, Some(name), &models::open_here("/model", name)?)?;
        tell_about(started.engine.model(), self.flags);
        self.demands = started.engine.model().demands();
        self.voice = Voice::of(started.engine.model(), self.flags);
        self.engine = started.engine;
        started.lines.iter().for_each(|line| note(line));
        self.leave_out().map_err(Failure::usage)
    }

    /// Leaves out the oldest turns until a quarter of the context is free for what comes.
    fn leave_out(&mut self) -> Result<String, Rejection> {
        let model = self.engine.model();
        let (name, context) = (model.name.clone(), model.max_model_len);
        self.left_out = 0;
        let first = usize::from(self.has_system());
        let starts = self.messages.iter().enumerate().skip(first).filter(|(_, message)| message.role == "user");
        let starts: Vec<usize> = starts.map(|(at, _)| at - first).collect();
        if starts.is_empty() || !self.is_chat() {
            return Ok(format!("{name} answers; {context} tokens of context"));
        }
        let tokens = |left_out| {
            let mut messages = self.sent(left_out);
            messages.push(ChatMessage::new("user", "?"));
            let prompt = self.request(Prompt::Chat(Chat::new(messages)), None);
            model.encode(&prompt).map(|tokens| tokens.len())
        };
        let whole = tokens(0)?;
        if whole <= context / 4 * 3 {
            return Ok(format!("{name} answers; the conversation takes {whole} of {context} tokens"));
        }
        let fits = |&start: &usize| tokens(start).is_ok_and(|tokens| tokens <= context / 4 * 3);
        let all = self.messages.len() - first;
        self.left_out = starts.get(starts.partition_point(|start| !fits(start))).copied().unwrap_or(all);
        let newest = all - self.left_out;
        Ok(format!(
            "{name} answers; the conversation has {whole} tokens and this model reads {context}: the newest {newest} of \
             {all} messages are sent, and all are kept"
        ))
    }

    fn has_system(&self) -> bool {
        self.messages.first().is_some_and(|message| message.role == "system")
    }

    /// The conversation but for the oldest messages behind the system message.
    fn sent(&self, left_out: usize) -> Vec<ChatMessage> {
        let (system, rest) = self.messages.split_at(usize::from(self.has_system()));
        [system, &rest[left_out..]].concat()
    }

    /// The system message of the next conversation; none if it is empty. An error if the model cannot have one.
    fn set_system(&mut self, text: &str) -> Result<String, String> {
        if !self.is_chat() {
            return Err("/system: this model has no chat template".to_string());
        }
        self.system = Some(text.to_string()).filter(|text| !text.is_empty());
        let begun = self.messages.iter().any(|message| message.role != "system");
        if !begun {
            self.clear();
        }
        Ok(if begun { "from the next conversation on: /clear begins it".to_string() } else { "set".to_string() })
    }

    fn is_chat(&self) -> bool {
        !self.flags.raw && self.engine.model().chat_template.is_some()
    }

    /// Asks one question within the conversation, with the files that belong to it, and prints the answer as it comes.
    fn answer(&mut self, question: &str) -> Result<Ended, Failure> {
        let ended = self.answer_by(format!("{question}{}", self.attached), self.sampling.seed)?;
        self.attached.clear();
        Ok(ended)
    }

    /// Asks the last question again: the new answer, drawn by a new seed, takes the place of the old one.
    fn retry(&mut self) -> Result<Ended, Failure> {
        let asked = self.messages.iter().rposition(|message| message.role == "user");
        let asked = asked.ok_or_else(|| Failure::usage("/retry: nothing was asked yet"))?;
        let earlier = self.messages.split_off(asked);
        let ended = self.answer_by(earlier[0].content.clone().unwrap_or_default(), None);
        if ended.is_err() {
            self.messages.extend(earlier);
        }
        ended
    }

    /// A question and its answer become part of the conversation. `seed`: `None` for a new one.
    fn answer_by(&mut self, question: String, seed: Option<i64>) -> Result<Ended, Failure> {
        let is_chat = self.is_chat();
        let text = (!is_chat).then(|| question.clone());
        self.messages.push(ChatMessage::new("user", question));
        let prompt = text.map_or_else(|| Prompt::Chat(Chat::new(self.sent(self.left_out))), Prompt::Text);
        let answer = match self.ask(prompt, seed) {
            Ok(answer) => answer,
            Err(failure) => {
                // A question that could not be asked is not part of the conversation.
                self.messages.pop();
                return Err(failure);
            }
        };
        self.messages.push(ChatMessage::new("assistant", answer.text.clone()));
        self.report(&answer)?;
        Ok(answer.ended)
    }

    fn request(&self, prompt: Prompt, seed: Option<i64>) -> RawRequest {
        let Sampling { max_tokens, params, .. } = self.sampling;
        RawRequest {
            max_tokens,
            sampling: params,
            seed,
            stop: self.flags.stop.clone(),
            ignore_eos: self.flags.ignore_eos,
            now: Some(environment::now()),
            shown_tokens: self.voice.shown.clone(),
            adapter: self.flags.lora.as_ref().map(|_| ADAPTER.to_owned()),
            progress: io::stderr().is_terminal() && !self.flags.quiet,
            ..RawRequest::new(prompt)
        }
    }

    fn tell_start(&mut self) {
        self.start_lines.drain(..).for_each(|line| note(&line));
    }

    /// Streams one answer to standard output (or collects it for `--json`).
    fn ask(&mut self, prompt: Prompt, seed: Option<i64>) -> Result<Answer, Failure> {
        let request = self.engine.validate(self.request(prompt, seed)).map_err(Failure::usage)?;
        let mut telling = self.voice.telling(self.engine.model(), request.prompt(), !self.flags.json);
        let mut stream = self.engine.submit(request).map_err(Failure::failed)?;
        self.tell_start();
        let mut answer = Answer::default();
        let Session { runtime, interrupts, .. } = self;
        let (begun, mut reading) = (Instant::now(), None);
        runtime.block_on(async {
            loop {
                let output = tokio::select! {
                    output = stream.recv() => output,
                    _ = interrupts.recv() => {
                        answer.ended = Ended::Stopped;
                        return telling.end(&mut answer);
                    }
                };
                match output {
                    // A prompt that is read at once needs no bar.
                    Some(Event::Progress(PromptProgress { total, cached, processed, .. }))
                        if cached < processed && processed < total && begun.elapsed() > AT_ONCE =>
                    {
                        let bar = reading.get_or_insert_with(Progress::reading);
                        bar.at(processed as u64, total as u64);
                    }
                    Some(Event::Progress(_)) => {}
                    Some(Event::Token { text, .. }) => {
                        reading = None;
                        telling.take(&text, &mut answer)?;
                    }
                    Some(Event::Finished { reason, text, .. }) => {
                        telling.take(&text, &mut answer)?;
                        telling.end(&mut answer)?;
                        answer.reason = Some(reason);
                    }
                    Some(Event::Done { usage, timings }) => {
                        (answer.usage, answer.timings) = (usage, timings);
                        return Ok(());
                    }
                    Some(Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Noted { .. }) => {}
                    Some(Event::Failed(error)) => return Err(Failure::failed(error)),
                    None => return Err(Failure::failed("the engine stopped")),
                }
            }
        })?;
        Ok(answer)
    }

    /// Forgets a Ctrl-C that came when there was no answer to stop.
    fn forget_interrupts(&mut self) {
        let Session { runtime, interrupts, .. } = self;
        runtime.block_on(async { while tokio::time::timeout(Duration::ZERO, interrupts.recv()).await.is_ok() {} });
    }

    /// The line under an answer, or its JSON object. Nothing is measured for it: see [`idle`].
    fn report(&self, answer: &Answer) -> Result<(), Failure> {
        let is_told = !self.flags.quiet && answer.ended == Ended::Finished;
        if self.flags.json {
            return put_line(&self.json(answer, is_told).to_string());
        }
        if !answer.text.ends_with('\n') {
            put("\n")?;
        }
        let was_cut = matches!(answer.reason, Some(FinishReason::Length));
        if was_cut && answer.text.is_empty() && !answer.thought.is_empty() && !self.flags.quiet {
            note("the answer was cut within its thought: -n allows more tokens");
        }
        if is_told {
            note(&self.figures(answer, figures::known_limits(&self.flags.model).as_ref()).to_string());
        }
        Ok(())
    }

    fn figures(&self, answer: &Answer, limits: Option<&Limits>) -> Figures {
        let (demands, timings) = (&self.demands, &answer.timings);
        let chunk = self.engine.model().max_num_batched_tokens;
        let prefill = demands.prefill(timings.cached_tokens, timings.prefill_tokens, chunk);
        let context = timings.decode_context_tokens as f64;
        let decode = demands.decode(timings.decode_steps, timings.decode_tokens, context);
        // What was reached is possible, whatever was measured.
        let peaks = limits.map(|limits| {
            let peaks = Peaks::of(limits, demands).raised_by(&prefill, timings.prefill_ms / 1e3);
            peaks.raised_by(&decode, timings.decode_ms / 1e3)
        });
        let phase = |tokens, ms: f64, work: &PassWork| {
            let seconds = ms / 1e3;
            let shares = peaks.as_ref().map(|peaks| LimitShares::within(work, seconds, peaks));
            Phase { tokens, seconds, work: *work, shares }
        };
        Figures {
            prefill: phase(timings.prefill_tokens, timings.prefill_ms, &prefill),
            decode: phase(timings.decode_tokens, timings.decode_ms, &decode),
            cached_tokens: timings.cached_tokens,
            in_cache: limits.is_some_and(|limits| limits.holds(demands.weight_bytes)),
            doubt: limits.and_then(Limits::doubt),
        }
    }

    /// `has_figures`: with both phases.
    fn json(&self, answer: &Answer, has_figures: bool) -> Value {
        let model = self.engine.model();
        let (usage, timings) = (&answer.usage, &answer.timings);
        let mut object = json!({
            "model": model.name,
            "backend": model.backend,
            "threads": model.device.threads,
            "text": answer.text,
            "reasoning": Some(&answer.thought).filter(|thought| !thought.is_empty()),
            "finish_reason": match answer.reason {
                Some(FinishReason::Stop(_)) => "stop",
                Some(FinishReason::Length) => "length",
                None => "interrupted",
            },
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "timings": {
                "queue_ms": rounded(timings.queue_ms),
                "prefill_ms": rounded(timings.prefill_ms),
                "decode_ms": rounded(timings.decode_ms),
                "ttft_ms": rounded(timings.ttft_ms),
                "total_ms": rounded(timings.total_ms),
            },
        });
        if has_figures {
            let limits = figures::known_limits(&self.flags.model);
            let figures = self.figures(answer, limits.as_ref());
            object["prefill"] = figures.prefill.json();
            object["decode"] = figures.decode.json();
            if let (Some(bound), Some(limits)) = (figures.bound(), &limits) {
                object["bound_by"] = bound.to_string().into();
                object["limits"] = figures::limits_json(limits);
            }
        }
        object
    }
}

/// What is to be known of a model before it is asked.
fn tell_about(model: &ModelInfo, flags: &RunFlags) {
    if model.chat_template.is_none() && !flags.raw {
        note("this model has no chat template: the prompt is continued as plain text");
    }
    model.notices.iter().for_each(|notice| note(&format!("note: {notice}")));
}

/// One answer and what it cost.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    /// What was thought before it.
    thought: String,
    reason: Option<FinishReason>,
    ended: Ended,
    usage: Usage,
    timings: Timings,
}
