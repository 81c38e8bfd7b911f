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
use launch::{Calibrate, Settings};
use scheduler::{CostModel, StepRecord};
use serde_json::{Value, json};

use crate::console::{Progress, put_line};
use crate::failure::Failure;
use crate::flags::BenchFlags;
use crate::models;

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

/// Runs the command.
pub(crate) fn cost_model(flags: &BenchFlags) -> Result<(), Failure> {
    let checkpoint = models::open(flags.model.model.as_deref())?;
    let chosen = models::weights(&flags.model, &checkpoint)?;
    let settings = Settings {
        isa: flags.isa,
        max_num_batched_tokens: Some(512),
        max_num_seqs: 32,
        calibrate: Calibrate::Afresh,
        ttft: Some(DefaultTarget::Comfortable),
        tpot: Some(DefaultTarget::Comfortable),
        ..models::settings(&flags.model)
    };
    let engine = models::start(&checkpoint, &settings, chosen)?;
    let calibrated = engine.model().calibrated.as_ref();
    let calibrated = calibrated.ok_or_else(|| Failure::failed("there is too little KV cache to measure steps"))?;
    let records = drive(&engine);
    engine.stop();
    let phases = [
        ("decode", errors(&records, &calibrated.cost, |r| r.prefill.is_empty())),
        ("prefill", errors(&records, &calibrated.cost, |r| r.decode.is_empty())),
        ("mixed", errors(&records, &calibrated.cost, |r| !r.prefill.is_empty() && !r.decode.is_empty())),
        ("all", errors(&records, &calibrated.cost, |_| true)),
    ];
    let text = match flags.json {
        true => json!({
            "model": engine.model().name,
            "backend": engine.model().backend,
            "calibration_seconds": calibrated.took.as_secs_f64(),
            "phases": phases.iter().map(|(name, errors)| errors.json(name)).collect::<Vec<_>>(),
        })
        .to_string(),
        false => table(&engine.model().backend, calibrated.took, &phases),
    };
    put_line(&text)
}

/// Lets the clients ask, and returns the records of all steps meanwhile.
fn drive(engine: &Engine) -> Vec<Arc<StepRecord>> {
    let bar = Progress::counting("asking", "s");
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
            bar.at(begun.elapsed().as_secs(), SECONDS);
            let last = records.last().map(|record| record.step);
            records.extend(engine.records(usize::MAX).into_iter().filter(|record| Some(record.step) > last));
        }
        over.store(true, Ordering::Relaxed);
    });
    records
}

/// One client: asks, reads, pauses, until it is over.
fn ask_on(engine: &Engine, client: u64, over: &AtomicBool) {
    let mut dice = Dice(client + 1);
    let vocab = engine.model().config.vocab_size as f64;
    let most_prompt = MOST_PROMPT.min(engine.model().max_model_len / 2) as f64;
    let most_answer = MOST_ANSWER.min(engine.model().max_model_len / 4) as f64;
    let mut last = Duration::from_millis(100);
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(last.mul_f64(MOST_PAUSE * dice.roll()));
        let asked_at = Instant::now();
        // Lengths of all sizes, the short ones as often as the long ones.
        let (prompt, answer) =
            (16.0 * (most_prompt / 16.0).powf(dice.roll()), 4.0 * (most_answer / 4.0).powf(dice.roll()));
        let ids = (0..prompt as usize).map(|_| (dice.roll() * vocab) as i64).collect();
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

/// Numbers from 0 to 1 from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Relative errors of the predicted times of some steps, rising.
pub(super) struct Errors {
    /// Seconds that the steps took.
    seconds: f64,
    live: Vec<f64>,
    uncorrected: Vec<f64>,
}

/// Of the steps that are so. `cost`: what predicts them without correction.
pub(super) fn errors(records: &[Arc<StepRecord>], cost: &CostModel, which: impl Fn(&StepRecord) -> bool) -> Errors {
    let which: Vec<_> = records.iter().filter(|record| record.undisturbed().0 > 0 && which(record)).collect();
    let sorted = |predicted: &dyn Fn(&StepRecord) -> f64| {
        let error = |record: &&Arc<StepRecord>| (predicted(record) / record.undisturbed().as_secs_f64() - 1.0).abs();
        let mut errors: Vec<f64> = which.iter().map(error).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    Errors {
        seconds: which.iter().map(|record| record.undisturbed().as_secs_f64()).sum(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_are_fair_and_repeat() {
        let rolls: Vec<f64> = (0..1000).scan(Dice(7), |dice, _| Some(dice.roll())).collect();
        let again: Vec<f64> = (0..1000).scan(Dice(7), |dice, _| Some(dice.roll())).collect();
        assert_eq!(rolls, again);
        let mean = rolls.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean) && rolls.iter().all(|roll| (0.0..1.0).contains(roll)), "{mean}");
    }
}
