//! `twostroke bench`: what the crate of that name measures, by its flags. `lab` measures with the same [`setup`].

use std::sync::{Mutex, PoisonError};

use bench::{BenchError, BenchProgress, BenchReport, BenchSetup, RowForm, SUBJECTS, cost_model, drafts, loras};
use checkpoint::Checkpoint;
use engine::Engine;
use launch::Settings;

use crate::console::{Progress, note, put_line};
use crate::failure::Failure;
use crate::flags::{BenchFlags, ModelFlags, Output};
use crate::{environment, figures, models};

pub(crate) fn bench(flags: &BenchFlags) -> Result<(), Failure> {
    setup(&flags.model, |setup| {
        let BenchFlags { n_prompt, n_gen, n_depth, batch_size, parallel, .. } = flags;
        let BenchFlags { isa, repetitions, lora_rank, .. } = *flags;
        measure(
            flags,
            &BenchSetup { isa, repetitions, lora_rank, n_prompt, n_gen, n_depth, batch_size, parallel, ..*setup },
        )
    })
}

fn measure(flags: &BenchFlags, setup: &BenchSetup<'_>) -> Result<(), Failure> {
    let failed = |error| failure(setup.checkpoint, error);
    let own = Settings { isa: flags.isa, ..models::settings(&flags.model) };
    let drive = |settings: Settings, measure: &dyn Fn(&Engine) -> Result<BenchReport, BenchError>| {
        let engine = models::start(setup.checkpoint, &settings, setup.chosen)?;
        let report = measure(&engine).map_err(failed);
        engine.stop();
        report
    };
    let report = if flags.cost_model {
        drive(cost_model::settings(own), &|engine| cost_model::measure(engine, setup.progress))
    } else if let Some(acceptance) = flags.synthetic_acceptance {
        let streams = flags.parallel.iter().max().copied().unwrap_or(1);
        drive(drafts::settings(own, acceptance, streams), &|engine| drafts::measure(engine, acceptance, setup))
    } else if let Some(adapters) = flags.synthetic_loras {
        loras::measure(setup, adapters).map_err(failed)
    } else {
        let subject = SUBJECTS.iter().find(|subject| subject.name == flags.subject).unwrap_or(&SUBJECTS[0]);
        return subject.measure(setup, form(flags), &mut std::io::stdout()).map_err(failed);
    };
    (setup.progress)(BenchProgress::Over);
    let report = report?;
    put_line(&if flags.json { report.json.to_string() } else { report.text })
}

fn form(flags: &BenchFlags) -> RowForm {
    match flags.output {
        _ if flags.json => RowForm::Json,
        Output::Md => RowForm::Md,
        Output::Json => RowForm::Json,
        Output::Jsonl => RowForm::Jsonl,
        Output::Csv => RowForm::Csv,
    }
}

/// Opens a model and measures with it, with progress bars for people.
pub(super) fn setup<T>(
    flags: &ModelFlags,
    measure: impl FnOnce(&BenchSetup<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let checkpoint = models::open(flags.model.as_deref())?;
    models::check_that_it_writes(&checkpoint)?;
    let bar: Mutex<Option<Progress>> = Mutex::new(None);
    let progress = |at: BenchProgress<'_>| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            BenchProgress::Loading(done, total) => {
                bar.get_or_insert_with(|| Progress::new("loading")).at(done, total);
            }
            BenchProgress::Measuring(what, done, total) => {
                let bar = bar.get_or_insert_with(|| Progress::counting(what, "done"));
                bar.naming(what.to_owned());
                bar.at(done, total);
            }
            BenchProgress::Over => *bar = None,
        }
    };
    measure(&BenchSetup {
        checkpoint: &checkpoint,
        model: &models::held(flags),
        chosen: models::weights(flags, &checkpoint)?,
        isa: None,
        repetitions: 1,
        n_prompt: &[],
        n_gen: &[],
        n_depth: &[],
        batch_size: &[],
        parallel: &[],
        lora_rank: 0,
        progress: &progress,
        now: || environment::utc(environment::now()),
        note: &note,
    })
}

/// In the words of flags.
pub(super) fn failure(checkpoint: &Checkpoint, error: BenchError) -> Failure {
    match error {
        BenchError::Load(error) => models::load_failure(checkpoint, &error),
        BenchError::Limits(error) => figures::unmeasured(error),
        BenchError::Cpu(error) => Failure::usage(error),
        BenchError::Usage(problem) => Failure::usage(problem),
        BenchError::Failed(problem) => Failure::failed(problem),
        BenchError::Output(error) => error.into(),
    }
}
