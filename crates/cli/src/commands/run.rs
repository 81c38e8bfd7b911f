//! `twostroke run`: one answer to an argument or to standard input, or a chat at the terminal.
//!
//! Standard output carries the answer and nothing else; the line about the phases goes to standard error.

mod chat;
mod input;
pub(crate) mod told;

use std::io::{self, IsTerminal};
use std::time::Duration;

use engine::{
    Chat, ChatMessage, Engine, Event, FinishReason, Prompt, PromptProgress, RawRequest, SamplingParams, Timings, Usage,
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

/// What the adapter of `--lora` is called.
const ADAPTER: &str = "lora";

pub(crate) fn run(flags: &RunFlags) -> Result<(), Failure> {
    let (model, question) = input::question(flags)?;
    let checkpoint = models::open(model.as_deref())?;
    models::check_that_it_writes(&checkpoint)?;
    let choose = if flags.quiet { models::choose } else { models::weights };
    let chosen = choose(&flags.model, &checkpoint)?;
    let lines = match flags.quiet || flags.json {
        true => Vec::new(),
        false => narrower::start_lines(&flags.model, model.as_deref(), &checkpoint, chosen, None),
    };
    let engine = models::start(&checkpoint, &settings(flags)?, chosen)?;
    let mut session = Session { start_lines: lines, ..Session::new(engine, flags)? };
    match question {
        Some(question) => match session.answer(question)? {
            Ended::Stopped => Err(Failure::Interrupted),
            Ended::Finished => Ok(()),
        },
        None => chat::chat(&mut session),
    }
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
    /// Start lines not printed yet: a usage error is reported alone.
    start_lines: Vec<String>,
}

impl Session<'_> {
    fn new(engine: Engine, flags: &RunFlags) -> Result<Session<'_>, Failure> {
        let model = engine.model();
        let demands = model.demands();
        let voice = if flags.raw { Voice::default() } else { Voice::of(model) };
        if model.chat_template.is_none() && !flags.raw {
            if flags.system.is_some() {
                return Err(Failure::usage("--system: this model has no chat template"));
            }
            note("this model has no chat template: the prompt is continued as plain text");
        }
        model.notices.iter().for_each(|notice| note(&format!("note: {notice}")));
        let runtime = signals::runtime(0)?;
        let interrupts = runtime.block_on(async { Ends::listen() })?;
        let sampling = Sampling { max_tokens: flags.max_tokens, params: flags.sampling(), seed: flags.seed };
        let system = flags.system.clone();
        let (messages, start_lines) = (Vec::new(), Vec::new());
        let mut session =
            Session { engine, flags, runtime, interrupts, demands, voice, sampling, system, messages, start_lines };
        session.clear();
        Ok(session)
    }

    /// Forgets everything but the system message.
    fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| ChatMessage::new("system", text)).collect();
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

    /// Asks one question within the conversation and prints the answer as it comes.
    fn answer(&mut self, question: String) -> Result<Ended, Failure> {
        let prompt = if self.is_chat() {
            self.messages.push(ChatMessage::new("user", question));
            Prompt::Chat(Chat::new(self.messages.clone()))
        } else {
            Prompt::Text(question)
        };
        let answer = match self.ask(prompt) {
            Ok(answer) => answer,
            Err(failure) => {
                // A question that could not be asked is not part of the conversation.
                if self.is_chat() {
                    self.messages.pop();
                }
                return Err(failure);
            }
        };
        if self.is_chat() {
            self.messages.push(ChatMessage::new("assistant", answer.text.clone()));
        }
        self.report(&answer)?;
        Ok(answer.ended)
    }

    fn request(&self, prompt: Prompt) -> RawRequest {
        let Sampling { max_tokens, params, seed } = self.sampling;
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
    fn ask(&mut self, prompt: Prompt) -> Result<Answer, Failure> {
        let request = self.engine.validate(self.request(prompt)).map_err(Failure::usage)?;
        let mut telling = self.voice.telling(self.engine.model(), request.prompt(), !self.flags.json);
        let mut stream = self.engine.submit(request).map_err(Failure::failed)?;
        self.tell_start();
        let mut answer = Answer::default();
        let Session { runtime, interrupts, .. } = self;
        let mut reading = None;
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
                        if cached < processed && processed < total =>
                    {
                        let bar = reading.get_or_insert_with(|| Progress::counting("reading the prompt", "tokens"));
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

    /// The line under an answer, or its JSON object.
    fn report(&self, answer: &Answer) -> Result<(), Failure> {
        let limits = match self.flags.quiet || answer.ended == Ended::Stopped {
            true => None,
            false => Some(figures::limits_of(&self.flags.model)?),
        };
        if self.flags.json {
            return put_line(&self.json(answer, limits.as_ref()).to_string());
        }
        if !answer.text.ends_with('\n') {
            put("\n")?;
        }
        let was_cut = matches!(answer.reason, Some(FinishReason::Length));
        if was_cut && answer.text.is_empty() && !answer.thought.is_empty() && !self.flags.quiet {
            note("the answer was cut within its thought: -n allows more tokens");
        }
        if let Some(limits) = &limits {
            note(&self.figures(answer, limits).to_string());
        }
        Ok(())
    }

    fn figures(&self, answer: &Answer, limits: &Limits) -> Figures {
        let (demands, timings) = (&self.demands, &answer.timings);
        let chunk = self.engine.model().max_num_batched_tokens;
        let prefill = demands.prefill(timings.cached_tokens, timings.prefill_tokens, chunk);
        let context = timings.decode_context_tokens as f64;
        let decode = demands.decode(timings.decode_steps, timings.decode_tokens, context);
        // What was reached is possible, whatever was measured.
        let peaks = Peaks::of(limits, demands).raised_by(&prefill, timings.prefill_ms / 1e3);
        let peaks = peaks.raised_by(&decode, timings.decode_ms / 1e3);
        let phase = |tokens, ms: f64, work: &PassWork| {
            let seconds = ms / 1e3;
            Phase { tokens, seconds, work: *work, shares: LimitShares::within(work, seconds, &peaks) }
        };
        Figures {
            prefill: phase(timings.prefill_tokens, timings.prefill_ms, &prefill),
            decode: phase(timings.decode_tokens, timings.decode_ms, &decode),
            cached_tokens: timings.cached_tokens,
            in_cache: limits.holds(demands.weight_bytes),
            doubt: limits.doubt(),
        }
    }

    fn json(&self, answer: &Answer, limits: Option<&Limits>) -> Value {
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
        if let Some(limits) = limits {
            let figures = self.figures(answer, limits);
            object["prefill"] = figures.prefill.json();
            object["decode"] = figures.decode.json();
            object["bound_by"] = figures.bound().to_string().into();
            object["limits"] = figures::limits_json(limits);
        }
        object
    }
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
