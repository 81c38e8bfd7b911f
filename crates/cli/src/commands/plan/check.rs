//! `twostroke plan --check`: what is predicted of this machine, beside what it does.
//!
//! ```text
//! before a weight is read    limits, times the shares of them that this engine reaches
//! steps measured             the cost model that serve measures at its first start, measured afresh
//! measured                   TTFT: a prompt on an idle engine. TPOT: a batch, while all of it decodes
//! ```
//! Requests go through the engine's one door, as from `run` and `serve`, without prefix cache and without targets.

use std::time::{Duration, Instant};

use engine::{Engine, Event, Prompt, RawRequest};
use launch::{Calibrate, Settings};
use plan::{Ask, Deployment};
use serde_json::{Value, json};

use crate::console::{Progress, put_line};
use crate::failure::Failure;
use crate::figures::{duration, rounded};

/// Prompt, batch.
const POINTS: [(usize, usize); 7] = [(64, 1), (256, 1), (1024, 1), (3000, 1), (256, 4), (256, 16), (1024, 8)];
/// Tokens that all requests of a batch decode together.
const TOGETHER: usize = 32;
/// Times that a prompt is measured.
const REPETITIONS: usize = 3;
/// What a prediction may be off by.
const WANTED: f64 = 0.15;

/// Options of the engine: prompts are computed, whatever was asked before, and steps are measured now, whatever an
/// earlier start has kept.
pub(super) fn settings(settings: Settings) -> Settings {
    Settings { enable_prefix_caching: false, calibrate: Calibrate::Afresh, ..settings }
}

/// Measures all points that fit into the engine's context, and prints them beside both predictions.
pub(super) fn check(engine: &Engine, limits: &Deployment, steps: &Deployment, json: bool) -> Result<(), Failure> {
    let model = engine.model();
    let room = (model.max_model_len, model.num_blocks * model.block_size);
    let fits = |&&(prompt, batch): &&(usize, usize)| {
        let length = prompt + answer(prompt, batch);
        length <= room.0 && batch * (length + model.block_size) <= room.1 && batch <= model.max_num_seqs
    };
    let points: Vec<(usize, usize)> = POINTS.iter().filter(fits).copied().collect();
    let bar = Progress::counting("measuring", "points");
    let mut found = Vec::new();
    for (index, &(prompt, batch)) in points.iter().enumerate() {
        bar.at(index as u64, points.len() as u64);
        let ttft = (batch == 1).then(|| first_token(engine, prompt)).transpose()?;
        let (tpot, context) = together(engine, prompt, batch)?;
        let ask = Ask { prompt, response: 1, ..Ask::default() };
        let predicted = |deployment: &Deployment| (deployment.times(&ask).ttft, deployment.step(batch, context));
        found.push(Found { prompt, batch, ttft, tpot, limits: predicted(limits), steps: predicted(steps) });
    }
    drop(bar);
    match json {
        true => put_line(&as_json(engine, &found).to_string()),
        false => put_line(&as_text(engine, &found)),
    }
}

/// One point; seconds.
struct Found {
    prompt: usize,
    batch: usize,
    /// Of a batch of one.
    ttft: Option<f64>,
    tpot: f64,
    /// TTFT and TPOT.
    limits: (f64, f64),
    steps: (f64, f64),
}

impl Found {
    /// Name, measured, predicted from limits and from steps.
    fn figures(&self) -> impl Iterator<Item = (&'static str, f64, f64, f64)> {
        let ttft = self.ttft.map(|ttft| ("TTFT", ttft, self.limits.0, self.steps.0));
        ttft.into_iter().chain([("TPOT", self.tpot, self.limits.1, self.steps.1)])
    }
}

/// Tokens of an answer long enough that the first request still decodes when the last one begins to.
fn answer(prompt: usize, batch: usize) -> usize {
    TOGETHER + (batch - 1) * prompt.div_ceil(64).min(8) + 2
}

fn request(engine: &Engine, prompt: usize, answer: usize, seed: usize) -> Result<engine::Stream, Failure> {
    let vocab = engine.model().config.vocab_size;
    let scrambled = |position: usize| ((position + 7919 * seed + 1).wrapping_mul(0x9e37_79b9) >> 7) % vocab;
    let ids = (0..prompt).map(|position| scrambled(position) as i64).collect();
    // Sampled as the model's authors propose, which is what steps are measured with: of a large vocabulary that takes
    // time.
    let raw = RawRequest { max_tokens: Some(answer as i64), ignore_eos: true, ..RawRequest::new(Prompt::Tokens(ids)) };
    let request = engine.validate(raw).map_err(|rejection| Failure::failed(rejection.message))?;
    engine.submit(request).map_err(Failure::failed)
}

/// The moments of a stream's tokens.
fn moments(mut stream: engine::Stream) -> Result<Vec<Instant>, Failure> {
    let mut moments = Vec::new();
    while let Some(output) = stream.blocking_recv() {
        match output {
            Event::Token { .. } => moments.push(Instant::now()),
            Event::Failed(error) => return Err(Failure::failed(error)),
            _ => {}
        }
    }
    Ok(moments)
}

/// Seconds to the first token of a prompt, the median of some; the first try warms up.
fn first_token(engine: &Engine, prompt: usize) -> Result<f64, Failure> {
    let mut seconds = Vec::new();
    for seed in 0..=REPETITIONS {
        let asked = Instant::now();
        let moments = moments(request(engine, prompt, 1, seed)?)?;
        let first = moments.first().ok_or_else(|| Failure::failed("the engine gave no token"))?;
        seconds.push(first.duration_since(asked).as_secs_f64());
    }
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// Seconds per token while the whole batch decodes, and the tokens that a row sees meanwhile.
fn together(engine: &Engine, prompt: usize, batch: usize) -> Result<(f64, f64), Failure> {
    let answer = answer(prompt, batch);
    let streams: Vec<_> =
        (0..batch).map(|seed| request(engine, prompt, answer, 100 + seed)).collect::<Result<_, _>>()?;
    let read = |stream| std::thread::spawn(move || moments(stream));
    let threads: Vec<_> = streams.into_iter().map(read).collect();
    let joined =
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    let all: Vec<Vec<Instant>> = joined.collect::<Result<_, _>>()?;
    let ends = |of: fn(&Vec<Instant>) -> Option<&Instant>| all.iter().filter_map(of).copied();
    let (Some(from), Some(to)) = (ends(|m| m.first()).max(), ends(|m| m.last()).min()) else {
        return Err(Failure::failed("the engine gave no token"));
    };
    // Each stream's gaps within the time that all of them share.
    let (mut gaps, mut time, mut seen) = (0, Duration::ZERO, 0.0);
    for stream in &all {
        let inside: Vec<usize> = (0..stream.len()).filter(|&i| stream[i] >= from && stream[i] <= to).collect();
        if let (Some(&first), Some(&last)) = (inside.first(), inside.last())
            && last > first
        {
            gaps += last - first;
            time += stream[last].duration_since(stream[first]);
            seen += (last - first) as f64 * (prompt as f64 + (first + last) as f64 / 2.0);
        }
    }
    if gaps == 0 {
        return Err(Failure::failed("the requests of a batch never decoded together"));
    }
    Ok((time.as_secs_f64() / gaps as f64, seen / gaps as f64))
}

fn off(predicted: f64, measured: f64) -> f64 {
    predicted / measured - 1.0
}

/// Largest distance of the predictions, and how many of them are further off than wanted.
fn judged(found: &[Found], which: fn(&(&'static str, f64, f64, f64)) -> f64) -> (f64, usize, usize) {
    let all: Vec<f64> =
        found.iter().flat_map(Found::figures).map(|figure| off(which(&figure), figure.1).abs()).collect();
    (all.iter().copied().fold(0.0, f64::max), all.iter().filter(|&&off| off > WANTED).count(), all.len())
}

fn as_text(engine: &Engine, found: &[Found]) -> String {
    let mut lines = vec![
        engine.model().backend.clone(),
        String::new(),
        "| prompt | batch | figure | measured | before a weight is read | off | steps measured | off |".to_string(),
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |".to_string(),
    ];
    for point in found {
        for (name, measured, limits, steps) in point.figures() {
            lines.push(format!(
                "| {} | {} | {name} | {} | {} | {:+.0} % | {} | {:+.0} % |",
                point.prompt,
                point.batch,
                duration(measured),
                duration(limits),
                off(limits, measured) * 100.0,
                duration(steps),
                off(steps, measured) * 100.0,
            ));
        }
    }
    lines.push(String::new());
    for (name, which) in
        [("before a weight is read", (|f| f.2) as fn(&(_, f64, f64, f64)) -> f64), ("steps measured", |f| f.3)]
    {
        let (worst, over, all) = judged(found, which);
        let within = all - over;
        lines.push(format!(
            "{name}: {within} of {all} within {:.0} %, the worst off by {:.0} %",
            WANTED * 100.0,
            worst * 100.0
        ));
    }
    lines.join("\n")
}

fn as_json(engine: &Engine, found: &[Found]) -> Value {
    let points = found.iter().flat_map(|point| {
        point.figures().map(move |(name, measured, limits, steps)| {
            json!({
                "prompt": point.prompt,
                "batch": point.batch,
                "figure": name.to_lowercase(),
                "measured_ms": measured * 1e3,
                "by_limits_ms": limits * 1e3,
                "by_steps_ms": steps * 1e3,
                "off_by_limits_percent": rounded(off(limits, measured) * 100.0),
                "off_by_steps_percent": rounded(off(steps, measured) * 100.0),
            })
        })
    });
    json!({ "backend": engine.model().backend, "points": points.collect::<Vec<_>>() })
}
