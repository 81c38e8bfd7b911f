//! `twostroke bench --synthetic-acceptance A`: what drafts of that quality bring here, before there is a drafter.
//!
//! ```text
//! rehearsal    each client asks its prompts once; the answers are remembered
//! off on off on ..   the same again without and with drafts that are each accepted with probability A (-r rounds)
//! ```
//! The clients ask one prompt after the other, so that prompts are read while others are answered. Drafts cost nothing
//! here, as those from texts do: what a drafter with weights takes comes on top. The answers must be equal.

use std::sync::Arc;

use engine::{
    DefaultTarget, Drafters, Engine, Event as Said, Prompt, RawRequest, SamplingParams, Speculation, Timings,
};
use figures::percentile;
use launch::{Calibrate, Settings};
use scheduler::{CostModel, StepRecord};
use serde_json::{Value, json};

use crate::cost_model::{self, Errors, errors};
use crate::setup::{BenchError, BenchProgress, BenchReport, BenchSetup};
use crate::timing::{middle, spread};

/// Prompts of each client, and their tokens.
const PROMPTS: usize = 3;
const PROMPT_TOKENS: usize = 64;

/// What an engine is started with for that. `streams`: the most that answer at once.
pub fn settings(settings: Settings, acceptance: f64, streams: usize) -> Settings {
    Settings {
        max_num_seqs: streams,
        max_num_batched_tokens: Some(512.max(streams)),
        enable_prefix_caching: false,
        calibrate: Calibrate::Kept,
        ttft: Some(DefaultTarget::None),
        tpot: Some(DefaultTarget::None),
        speculation: Speculation::By(Drafters { lookup: None, rehearsed: Some(acceptance), ..Drafters::default() }),
        ..settings
    }
}

/// Asks with each number of streams in turn.
pub fn measure(engine: &Engine, acceptance: f64, setup: &BenchSetup<'_>) -> Result<BenchReport, BenchError> {
    let tokens = setup.n_gen.first().copied().unwrap_or(0).max(2);
    if PROMPT_TOKENS + tokens > engine.model().max_model_len {
        let most = engine.model().max_model_len.saturating_sub(PROMPT_TOKENS);
        let problem = format!("-n {tokens}: with a prompt of {PROMPT_TOKENS} at most {most} fit");
        return Err(BenchError::Usage(problem));
    }
    let mut records = Vec::new();
    let rounds = setup.parallel.iter().map(|&streams| compare(engine, streams, tokens, setup, &mut records));
    let rounds: Vec<Rounds> = rounds.collect::<Result<_, _>>()?;
    let backend = &engine.model().backend;
    let predicted = engine.model().calibrated.as_ref().map(|calibrated| predictions(&records, &calibrated.cost));
    let json = json!({
        "backend": backend,
        "acceptance": acceptance,
        "tokens": tokens,
        "streams": rounds.iter().map(Rounds::json).collect::<Vec<_>>(),
        "phases": predicted.iter().flatten().map(|(name, errors)| errors.json(name)).collect::<Vec<_>>(),
    });
    let text = table(backend, acceptance, tokens, &rounds, predicted.as_ref().map(|kinds| &kinds[..]));
    Ok(BenchReport { json, text })
}

/// Errors of the predicted times of steps that only decode, that verify drafts, and that read prompts.
fn predictions(records: &[Arc<StepRecord>], cost: &CostModel) -> [(&'static str, Errors); 3] {
    let checks = |record: &StepRecord| record.decode.iter().any(|row| row.drafts > 0);
    [
        ("decode", errors(records, cost, |record| record.prefill.is_empty() && !checks(record))),
        ("verify", errors(records, cost, |record| record.prefill.is_empty() && checks(record))),
        ("prompts", errors(records, cost, |record| !record.prefill.is_empty())),
    ]
}

/// The figures of `streams` clients, without drafts and with them.
struct Rounds {
    streams: usize,
    without: Side,
    with: Side,
}

/// One of the two.
#[derive(Default)]
struct Side {
    /// Of each round: tokens per second of all streams, and the median of one stream's in decode.
    all: Vec<f64>,
    one: Vec<f64>,
    /// Of all rounds, rising.
    ttft_ms: Vec<f64>,
    drafted: usize,
    accepted: usize,
    decode_tokens: usize,
    decode_steps: usize,
}

impl Side {
    fn add(&mut self, seconds: f64, answers: &[Answer]) {
        let tokens: usize = answers.iter().map(|answer| answer.tokens.len()).sum();
        self.all.push(tokens as f64 / seconds);
        let rates = answers
            .iter()
            .map(|Answer { timings, .. }| timings.decode_tokens as f64 / (timings.decode_ms / 1e3).max(1e-9));
        self.one.push(middle(&rates.collect::<Vec<f64>>()));
        self.ttft_ms.extend(answers.iter().map(|answer| answer.timings.ttft_ms));
        self.ttft_ms.sort_by(f64::total_cmp);
        for Answer { timings, .. } in answers {
            self.drafted += timings.drafted_tokens;
            self.accepted += timings.accepted_tokens;
            self.decode_tokens += timings.decode_tokens;
            self.decode_steps += timings.decode_steps;
        }
    }

    fn tokens_per_step(&self) -> f64 {
        self.decode_tokens as f64 / self.decode_steps.max(1) as f64
    }

    fn json(&self) -> Value {
        json!({
            "tokens_per_second": self.all,
            "decode_tokens_per_second_of_a_stream": self.one,
            "ttft_ms_p50": percentile(&self.ttft_ms, 50.0),
            "ttft_ms_p99": percentile(&self.ttft_ms, 99.0),
            "tokens_per_step": self.tokens_per_step(),
            "drafted": self.drafted,
            "accepted": self.accepted,
        })
    }
}

impl Rounds {
    fn json(&self) -> Value {
        json!({ "streams": self.streams, "without": self.without.json(), "with": self.with.json() })
    }
}

/// What came of one request.
#[derive(Debug)]
struct Answer {
    tokens: Vec<u32>,
    timings: Timings,
}

/// `records`: of all steps but those of the rehearsal.
fn compare(
    engine: &Engine,
    streams: usize,
    tokens: usize,
    setup: &BenchSetup<'_>,
    records: &mut Vec<Arc<StepRecord>>,
) -> Result<Rounds, BenchError> {
    let mut rounds = Rounds { streams, without: Side::default(), with: Side::default() };
    let (_, rehearsed) = round(engine, streams, tokens, true)?;
    let mut last = engine.records(1).last().map(|record| record.step);
    for repetition in 0..setup.repetitions {
        for speculate in [false, true] {
            (setup.progress)(BenchProgress::Measuring(
                "asking, rounds",
                (2 * repetition + usize::from(speculate)) as u64,
                2 * setup.repetitions as u64,
            ));
            let (seconds, answers) = round(engine, streams, tokens, speculate)?;
            if answers.iter().zip(&rehearsed).any(|(answer, before)| answer.tokens != before.tokens) {
                return Err(BenchError::Failed(
                    "an answer differs from that of the rehearsal: this is a defect".into(),
                ));
            }
            let side = if speculate { &mut rounds.with } else { &mut rounds.without };
            side.add(seconds, &answers);
            records.extend(engine.records(usize::MAX).into_iter().filter(|record| Some(record.step) > last));
            last = records.last().map(|record| record.step);
        }
    }
    Ok(rounds)
}

/// All clients ask all their prompts; seconds until the last answer, and the answers in the order of clients.
fn round(engine: &Engine, streams: usize, tokens: usize, speculate: bool) -> Result<(f64, Vec<Answer>), BenchError> {
    let begun = std::time::Instant::now();
    let client = |client: usize| -> Result<Vec<Answer>, BenchError> {
        (0..PROMPTS).map(|prompt| ask(engine, client * PROMPTS + prompt, tokens, speculate)).collect()
    };
    let answers: Result<Vec<Vec<Answer>>, BenchError> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..streams).map(|index| scope.spawn(move || client(index))).collect();
        let joined = clients.into_iter().map(|client| client.join());
        joined.map(|answers| answers.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, answers?.into_iter().flatten().collect()))
}

fn ask(engine: &Engine, number: usize, tokens: usize, speculate: bool) -> Result<Answer, BenchError> {
    let vocab = engine.model().config.vocab_size as u64;
    let token = |place: u64| ((number as u64 + 1) * 0x9e37_79b9 + place * 0x85eb_ca6b) % vocab;
    let raw = RawRequest {
        max_tokens: Some(tokens as i64),
        sampling: SamplingParams::at(0.0),
        ignore_eos: true,
        speculate,
        ..RawRequest::new(Prompt::Tokens((0..PROMPT_TOKENS as u64).map(|place| token(place) as i64).collect()))
    };
    let failed = |error: &dyn std::fmt::Display| BenchError::Failed(error.to_string());
    let request = engine.validate(raw).map_err(|error| failed(&error))?;
    let mut stream = engine.submit(request).map_err(|error| failed(&error))?;
    let mut said = Vec::with_capacity(tokens);
    loop {
        match stream.blocking_recv() {
            Some(Said::Token { token, .. }) => said.push(token),
            Some(Said::Done { timings, .. }) => return Ok(Answer { tokens: said, timings }),
            Some(Said::Failed(error)) => return Err(failed(&error)),
            Some(_) => {}
            None => return Err(BenchError::Failed("the engine stopped".into())),
        }
    }
}

fn table(
    backend: &str,
    acceptance: f64,
    tokens: usize,
    rounds: &[Rounds],
    predicted: Option<&[(&str, Errors)]>,
) -> String {
    let mut lines = vec![
        format!("{backend}; {tokens} tokens an answer; each draft holds with the chance {acceptance}"),
        String::new(),
        "| streams | a stream's tok/s without | with | gain | all tok/s without | with | gain | TTFT p99 | tokens a step | drafted | accepted |".to_owned(),
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |".to_owned(),
    ];
    for Rounds { streams, without, with } in rounds {
        let pair = |without: &[f64], with: &[f64]| {
            format!("{} | {} | {:.2}x", show(without), show(with), middle(with) / middle(without).max(1e-9))
        };
        let p99 = |side: &Side| percentile(&side.ttft_ms, 99.0).unwrap_or(0.0);
        lines.push(format!(
            "| {streams} | {} | {} | {:.2}x | {:.2} | {} | {} |",
            pair(&without.one, &with.one),
            pair(&without.all, &with.all),
            p99(with) / p99(without).max(1e-9),
            with.tokens_per_step(),
            with.drafted,
            with.accepted,
        ));
    }
    if let Some(kinds) = predicted {
        lines.extend(["", "Relative error of the predicted time of a step:", ""].map(String::from));
        lines.extend(cost_model::rows(kinds));
    }
    lines.join("\n")
}

/// The median, the least and the largest: `412 (398..420)`.
fn show(values: &[f64]) -> String {
    let [least, middle, most] = spread(values);
    format!("{middle:.0} ({least:.0}..{most:.0})")
}
