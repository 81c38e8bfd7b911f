//! `twostroke replay`: a recorded run again, each step compared, with `-m` each token too.

use std::io::BufWriter;
use std::path::Path;

use figures::percentile;
use kernels::WeightClass;
use launch::{Chosen, ModelSettings};
use replay::{Recording, ReplayError, Replayed, TracingError, replay, replay_with_model, trace};
use serde_json::json;

use crate::console::{Progress, note, put_line};
use crate::environment::utc;
use crate::failure::Failure;
use crate::flags::ReplayFlags;
use crate::{models, outputs};

pub(crate) fn again(flags: &ReplayFlags) -> Result<(), Failure> {
    let recording = Recording::open(&flags.log).map_err(Failure::usage)?;
    let model = bench::load::printable(&recording.header.model);
    let began = recording.header.began_unix_ns;
    let replayed = match (flags.model.as_deref(), &flags.trace) {
        (Some(name), _) => with_model(flags, recording, name)?,
        (None, Some(path)) => with_trace(recording, path)?,
        (None, None) => replay(recording, &mut |_| {}).map_err(Failure::usage)?,
    };
    if replayed.was_cut_off && replayed.difference.is_none() {
        note("note: the recording was cut off; what there is of it was replayed");
    }
    if let Some(difference) = &replayed.difference {
        let (log, steps) = (flags.log.display(), replayed.steps);
        return Err(Failure::failed(format!("{log}: {difference} (steps before it: {steps}, all as recorded)")));
    }
    let ran = Ran { model, began, replayed };
    put_line(&if flags.json { as_json(flags, &ran) } else { as_text(flags, &ran) })
}

/// What there is to tell.
struct Ran {
    model: String,
    began: Option<u64>,
    replayed: Replayed,
}

/// Relative errors of the predicted times of some steps.
struct Prediction {
    steps: &'static str,
    /// All whose time was predicted, and those that are judged: the machine did nothing else meanwhile.
    all: u64,
    judged: usize,
    /// Median and 95th percentile, where enough are judged.
    error: Option<(f64, f64)>,
}

/// Of fewer steps nothing is said.
const LEAST_JUDGED: usize = 30;

impl Ran {
    /// How far off the predicted times of steps were, of each kind that there was.
    fn predictions(&self) -> impl Iterator<Item = Prediction> {
        let kinds = Replayed::KINDS.into_iter().zip(self.replayed.predicted).zip(&self.replayed.errors);
        kinds.filter(|((_, all), _)| *all > 0).map(|((steps, all), errors)| {
            let mut errors = errors.clone();
            errors.sort_by(f64::total_cmp);
            let error = percentile(&errors, 50.0).zip(percentile(&errors, 95.0));
            Prediction { steps, all, judged: errors.len(), error: error.filter(|_| errors.len() >= LEAST_JUDGED) }
        })
    }

    /// When the recorded engine began.
    fn began_at(&self) -> Option<String> {
        self.began.map(|nanos| utc((nanos / 1_000_000_000) as i64))
    }
}

fn with_trace(recording: Recording, path: &Path) -> Result<Replayed, Failure> {
    let failed = |error| Failure::failed(format!("--trace: {}: {error}", path.display()));
    let place = outputs::place("--trace", path, outputs::Kind::Trace)?;
    let out = BufWriter::new(outputs::create(&place)?);
    trace(recording, out).map_err(|error| match error {
        TracingError::Recording(error) => Failure::usage(error),
        TracingError::Write(error) => failed(error),
    })
}

fn with_model(flags: &ReplayFlags, recording: Recording, name: &str) -> Result<Replayed, Failure> {
    let checkpoint = models::open(Some(name))?;
    let model = ModelSettings { threads: flags.threads, ..ModelSettings::default() };
    // Sizes and classes are the recording's.
    let chosen = Chosen { class: WeightClass::Bf16, as_stored: false, why: None };
    let options = models::settings_of(model).options(chosen);
    let bar = Progress::new("loading");
    let replayed = replay_with_model(recording, &checkpoint, &options, &mut |p| bar.at(p.bytes_done, p.bytes_total));
    drop(bar);
    replayed.map_err(|error| match error {
        ReplayError::Recording(error) => Failure::usage(error),
        ReplayError::Start(error) => models::start_failure(&checkpoint, error),
        ReplayError::Device(error) => Failure::failed(error),
    })
}

fn as_text(flags: &ReplayFlags, ran: &Ran) -> String {
    let Replayed { steps, requests, tokens, seconds, .. } = ran.replayed;
    let model = &ran.model;
    let computed = if flags.model.is_some() { ", computed again and all equal" } else { ", as recorded" };
    let from = ran.began_at().map_or_else(String::new, |at| format!(", from {at}"));
    let mut lines = vec![
        ("recorded", format!("{model}, {seconds:.1} s{from}")),
        ("requests", requests.to_string()),
        ("steps", format!("{steps}, all equal")),
        ("tokens", format!("{tokens}{computed}")),
    ];
    let predicted = ran.predictions().map(|Prediction { steps, all, judged, error }| {
        let error = error.map_or("not judged".to_owned(), |(median, p95)| {
            format!("{:.1} % off, p95 {:.1} %", median * 100.0, p95 * 100.0)
        });
        format!("{steps} {error}, over {judged} undisturbed steps of {all}")
    });
    let predicted = predicted.collect::<Vec<_>>().join("; ");
    lines.extend((!predicted.is_empty()).then_some(("predicted", predicted)));
    lines.extend(flags.trace.as_ref().map(|path| ("trace", format!("{}: open it in ui.perfetto.dev", path.display()))));
    let lines: Vec<String> = lines.iter().map(|(name, value)| format!("{name:<10} {value}")).collect();
    lines.join("\n")
}

fn as_json(flags: &ReplayFlags, ran: &Ran) -> String {
    let replayed = &ran.replayed;
    let predictions = ran.predictions().map(|Prediction { steps, all, judged, error }| {
        let (median, p95) = error.unzip();
        json!({ "steps": steps, "predicted": all, "number": judged, "median_error": median, "p95_error": p95 })
    });
    json!({
        "model": ran.model,
        "began_at": ran.began_at(),
        "requests": replayed.requests,
        "steps": replayed.steps,
        "tokens": replayed.tokens,
        "seconds": replayed.seconds,
        "predictions": predictions.collect::<Vec<_>>(),
        "computed": flags.model.is_some(),
        "equal": true,
        "was_cut_off": replayed.was_cut_off,
    })
    .to_string()
}
