//! `twostroke lab`: what [`::bench::Lab`] measures, by its flags, and the files that it is written to.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::{BenchSetup, ForwardTest, Lab, LabPlan, LoadedModel};
use model::ModelConfig;

use crate::commands::bench::{failure, setup};
use crate::commands::quality::Interrupts;
use crate::console::{note, put_line};
use crate::failure::Failure;
use crate::flags::LabFlags;
use crate::outputs::{self, Columns, GENERATOR, Kind};

/// Where `--output` has everything beside the pictures.
const TEXTS: [(&str, Kind); 3] =
    [("lab.json", Kind::Json), ("lab.csv", Kind::Table(Columns::Lab)), ("lab.html", Kind::Page)];

pub(crate) fn lab(flags: &LabFlags) -> Result<(), Failure> {
    let found = setup(&flags.model, |setup| {
        let setup = BenchSetup { repetitions: flags.repetitions, ..*setup };
        let failed = |error| failure(setup.checkpoint, error);
        let config = ModelConfig::load(setup.checkpoint).map_err(|error| failed(error.into()))?;
        let asked = [flags.prompts.as_deref(), flags.positions.as_deref(), flags.batches.as_deref()];
        let plans = LabPlan::all(asked, &config).map_err(failed)?;
        prepare(&flags.output)?;
        let tests: Vec<ForwardTest> = plans.iter().flat_map(LabPlan::tests).collect();
        let mut model = LoadedModel::load(&setup, &tests).map_err(failed)?;
        until_interrupted(|stop| Lab::measure(&mut model, &plans, &setup, stop).map_err(failed))
    })?;
    if found.is_empty() {
        return Err(Failure::Interrupted);
    }
    write(&found, &flags.output)?;
    put_line(&if flags.json { found.json().to_string() } else { found.to_string().trim_end().to_string() })?;
    note(&format!("written: {}/lab.html, lab.csv, lab.json and a picture of each curve", flags.output.display()));
    if found.interrupted {
        note("interrupted: what was measured until then is kept");
        return Err(Failure::Interrupted);
    }
    Ok(())
}

/// Sets the flag at Ctrl-C; at the second one the process ends.
fn until_interrupted<T>(work: impl FnOnce(&AtomicBool) -> Result<T, Failure>) -> Result<T, Failure> {
    let interrupts = Interrupts::listen()?;
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let interrupts = interrupts;
            while !over.load(Ordering::Relaxed) {
                if interrupts.came() {
                    match stop.swap(true, Ordering::Relaxed) {
                        false => note("ending: what was measured is written; Ctrl-C again ends at once"),
                        true => std::process::exit(130),
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let done = work(&stop);
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// Makes the directory before anything is measured, and looks at what is in the way.
fn prepare(directory: &Path) -> Result<(), Failure> {
    outputs::directory("--output", directory)?;
    let place = |name: &str, kind| outputs::place("--output", &directory.join(name), kind).map(drop);
    TEXTS.into_iter().try_for_each(|(name, kind)| place(name, kind))?;
    Lab::PICTURES.iter().try_for_each(|name| place(&format!("{name}.svg"), Kind::Picture))
}

fn write(lab: &Lab, directory: &Path) -> Result<(), Failure> {
    let put =
        |name: &str, kind, text: &str| outputs::put(&outputs::place("--output", &directory.join(name), kind)?, text);
    let page = lab.html(&format!("{GENERATOR}\">"));
    let texts = [format!("{:#}\n", outputs::json(&lab.json())), lab.csv(), page];
    TEXTS.into_iter().zip(&texts).try_for_each(|((name, kind), text)| put(name, kind, text))?;
    lab.pictures().into_iter().try_for_each(|(name, svg)| put(&format!("{name}.svg"), Kind::Picture, &svg))
}
