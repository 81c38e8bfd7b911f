//! `twostroke bench --cost-model`: how well the engine knows what its steps will take.
//!
//! ```text
//! engine, measured afresh    clients that come and go ask prompts and answers of all lengths, for half a minute
//! each step                  |predicted - measured| / measured, by phase: what /metrics shows of a server
//! ```
//! The requests are drawn from a fixed seed and have nothing to do with the steps that the model was fitted to. The
//! first column of errors is that of the predictions that the scheduler worked with, corrected by each step before;
//! the second is what the measured model says without any correction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::{DefaultTarget, Engine, Prompt, RawRequest};
use figures::percentile;
use figures::random::Random;
use launch::{Calibrate, Settings};
use scheduler::{CostModel, StepRecord};
use serde_json::{Value, json};

use crate::setup::{BenchError, BenchProgress, BenchReport, OnProgress};

/// Clients, each of which asks, reads the answer and pauses.
const CLIENTS: u64 = 8;
/// How long they do so.
const SECONDS: u64 = 30;
/// Longest prompt and answer; less where the context is short.
const MOST_PROMPT: usize = 2048;
const MOST_ANSWER: usize = 128;
/// Longest pause of a client, in times that its last answer took.
const MOST_PAUSE: f64 = 2.0;
/// How often the step log is read: it keeps some thousand steps.
const READ_EVERY: Duration = Duration::from_millis(200);

/// What an engine is started with for that.
pub fn settings(settings: Settings) -> Settings {
    Settings {
        max_num_batched_tokens: Some(512),
        max_num_seqs: 32,
        calibrate: Calibrate::Afresh,
        ttft: Some(DefaultTarget::Auto),
        tpot: Some(DefaultTarget::Auto),
        ..settings
    }
}

/// Drives the engine for half a minute.
pub fn measure(engine: &Engine, progress: OnProgress<'_>) -> Result<BenchReport, BenchError> {
    let calibrated = engine.model().calibrated.as_ref();
    let calibrated =
        calibrated.ok_or_else(|| BenchError::Failed("there is too little KV cache to measure steps".into()))?;
    let records = drive(engine, progress);
    let phases = [
        ("decode", errors(&records, &calibrated.cost, |r| r.prefill.is_empty())),
        ("prefill", errors(&records, &calibrated.cost, |r| r.decode.is_empty())),
        ("mixed", errors(&records, &calibrated.cost, |r| !r.prefill.is_empty() && !r.decode.is_empty())),
        ("all", errors(&records, &calibrated.cost, |_| true)),
    ];
    let json = json!({
        "model": engine.model().name,
        "backend": engine.model().backend,
        "calibration_seconds": calibrated.took.as_secs_f64(),
        "phases": phases.iter().map(|(name, errors)| errors.json(name)).collect::<Vec<_>>(),
    });
    Ok(BenchReport { json, text: table(&engine.model().backend, calibrated.took, &phases) })
}

/// Lets the clients ask, and returns the records of all steps meanwhile.
fn drive(engine: &Engine, progress: OnProgress<'_>) -> Vec<Arc<StepRecord>> {
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let mut records: Vec<Arc<StepRecord>> = Vec::new();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let over = &over;
            scope.spawn(move || ask_on(engine, client, over));
        }
        while begun.elapsed().as_secs() < SECONDS {
            std::thread::sleep(READ_EVERY);
            progress(BenchProgress::Measuring("asking, seconds", begun.elapsed().as_secs(), SECONDS));
            let last = records.last().map(|record| record.step);
            records.extend(engine.records(usize::MAX).into_iter().filter(|record| Some(record.step) > last));
        }
        over.store(true, Ordering::Relaxed);
    });
    records
}

/// One client: asks, reads, pauses, until it is over.
fn ask_on(engine: &Engine, client: u64, over: &AtomicBool) {
    let mut random = Random::new(client + 1);
    let vocab = engine.model().config.vocab_size as u64;
    let most_prompt = MOST_PROMPT.min(engine.model().max_model_len / 2) as f64;
    let most_answer = MOST_ANSWER.min(engine.model().max_model_len / 4) as f64;
    let mut last = Duration::from_millis(100);
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(last.mul_f64(MOST_PAUSE * random.uniform()));
        let asked_at = Instant::now();
        // Lengths of all sizes, the short ones as often as the long ones.
        let (prompt, answer) =
            (16.0 * (most_prompt / 16.0).powf(random.uniform()), 4.0 * (most_answer / 4.0).powf(random.uniform()));
        let ids = (0..prompt as usize).map(|_| (random.bits() % vocab) as i64).collect();
        let raw =
            RawRequest { max_tokens: Some(answer as i64), ignore_eos: true, ..RawRequest::new(Prompt::Tokens(ids)) };
        let Ok(mut stream) = engine.validate(raw).map_err(drop).and_then(|asked| engine.submit(asked).map_err(drop))
        else {
            return;
        };
        while !over.load(Ordering::Relaxed) && stream.blocking_recv().is_some() {}
        last = asked_at.elapsed();
    }
}

/// Relative errors of the predicted times of some steps, rising.
pub(super) struct Errors {
    /// Seconds that the steps took.
    seconds: f64,
    live: Vec<f64>,
    uncorrected: Vec<f64>,
}

/// Of the steps that are so, and of which other programs took next to nothing. `cost`: what predicts them without correction.
pub(super) fn errors(records: &[Arc<StepRecord>], cost: &CostModel, which: impl Fn(&StepRecord) -> bool) -> Errors {
    let which: Vec<_> =
        records.iter().filter(|record| record.is_undisturbed() && record.took().0 > 0 && which(record)).collect();
    let sorted = |predicted: &dyn Fn(&StepRecord) -> f64| {
        let error = |record: &&Arc<StepRecord>| (predicted(record) / record.took().as_secs_f64() - 1.0).abs();
        let mut errors: Vec<f64> = which.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    Errors {
        seconds: which.iter().map(|record| record.took().as_secs_f64()).sum(),
        live: sorted(&|record| record.predicted.as_secs_f64()),
        uncorrected: sorted(&|record| cost.seconds(&record.work)),
    }
}

impl Errors {
    pub(super) fn json(&self, phase: &str) -> Value {
        json!({
            "phase": phase,
            "steps": self.live.len(),
            "seconds": self.seconds,
            "median": percentile(&self.live, 50.0),
            "p95": percentile(&self.live, 95.0),
            "median_uncorrected": percentile(&self.uncorrected, 50.0),
            "p95_uncorrected": percentile(&self.uncorrected, 95.0),
        })
    }
}

fn table(backend: &str, took: Duration, phases: &[(&str, Errors)]) -> String {
    let took = took.as_secs_f64();
    let head = format!("{backend}; steps measured in {took:.1} s; relative error of the predicted time of a step");
    [vec![head, String::new()], rows(phases)].concat().join("\n")
}

/// A table of them.
pub(super) fn rows(phases: &[(&str, Errors)]) -> Vec<String> {
    let percent = |errors: &[f64], percent| {
        percentile(errors, percent).map_or("-".to_string(), |e| format!("{:.1} %", e * 100.0))
    };
    let mut lines = vec![
        "| steps | number | seconds | median | p95 | median, uncorrected | p95, uncorrected |".to_string(),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |".to_string(),
    ];
    lines.extend(phases.iter().map(|(name, errors)| {
        let Errors { seconds, live, uncorrected } = errors;
        let figures =
            [(live, 50.0), (live, 95.0), (uncorrected, 50.0), (uncorrected, 95.0)].map(|(e, q)| percent(e, q));
        format!("| {name} | {} | {seconds:.1} | {} |", live.len(), figures.join(" | "))
    }));
    lines
}
