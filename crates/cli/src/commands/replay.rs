//! `twostroke replay`: a recorded run again, each step compared, with `-m` each token too.

use kernels::WeightClass;
use launch::{Chosen, ModelSettings};
use replay::{Recording, ReplayError, Replayed, replay, replay_with_model};
use serde_json::json;

use crate::console::{Progress, note, put_line};
use crate::failure::Failure;
use crate::flags::ReplayFlags;
use crate::models;

/// Runs the command.
pub(crate) fn again(flags: &ReplayFlags) -> Result<(), Failure> {
    let recording = Recording::open(&flags.log).map_err(Failure::usage)?;
    let model = recording.header.model.clone();
    let replayed = match flags.model.as_deref() {
        Some(name) => with_model(flags, recording, name)?,
        None => replay(recording, &mut |_| {}).map_err(Failure::usage)?,
    };
    if replayed.was_cut_off && replayed.difference.is_none() {
        note("note: the recording was cut off; what there is of it was replayed");
    }
    if let Some(difference) = &replayed.difference {
        let (log, steps) = (flags.log.display(), replayed.steps);
        return Err(Failure::failed(format!("{log}: {difference} (steps before it: {steps}, all as recorded)")));
    }
    put_line(&if flags.json { as_json(flags, &model, &replayed) } else { as_text(flags, &model, &replayed) })
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
    })
}

fn as_text(flags: &ReplayFlags, model: &str, replayed: &Replayed) -> String {
    let Replayed { steps, requests, tokens, seconds, .. } = *replayed;
    let computed = if flags.model.is_some() { ", computed again and all equal" } else { ", as recorded" };
    let lines = [
        ("recorded", format!("{model}, {seconds:.1} s")),
        ("requests", requests.to_string()),
        ("steps", format!("{steps}, all equal")),
        ("tokens", format!("{tokens}{computed}")),
    ];
    lines.map(|(name, value)| format!("{name:<10} {value}")).join("\n")
}

fn as_json(flags: &ReplayFlags, model: &str, replayed: &Replayed) -> String {
    json!({
        "model": model,
        "requests": replayed.requests,
        "steps": replayed.steps,
        "tokens": replayed.tokens,
        "seconds": replayed.seconds,
        "computed": flags.model.is_some(),
        "equal": true,
        "was_cut_off": replayed.was_cut_off,
    })
    .to_string()
}
