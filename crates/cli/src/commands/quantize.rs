//! `twostroke quantize`: a model with narrow weights, written to disk.
//!
//! ```text
//! --text ──> int8: float32 pass, every product in the narrow class beside it ──> errors ┐
//!            int4: windows of tokens, which model::export rounds by                      ├──> model::export ──> -o
//! -m     ──> headers, configuration: what is refused is refused now                      │
//!            free space, name of the result                                              ┘
//! ```

use std::collections::HashMap;
use std::path::Path;

use checkpoint::Checkpoint;
use kernels::threads::{ThreadError, default_threads, max_threads};
use kernels::{Cpu, CpuOptions, Float32, KvDtype, WeightClass};
use launch::machine;
use model::export::{self, Export, ExportError, ExportReport, Reason};
use model::{Batch, Forward, KvBudget, LoadOptions, ModelConfig};
use quality::Judge;
use text::tokenizer::Tokenizer;

use super::quality::{BLOCK_SIZE, Corpus, Interrupts, ROWS, WINDOW, fill, read_text};
use crate::console::{Progress, note, put};
use crate::failure::Failure;
use crate::flags::QuantizeFlags;
use crate::models;

/// Tokens of a window that int4 is rounded by.
const CALIBRATION_WINDOW: usize = 512;
/// Most tokens of a text that int4 is rounded by.
const MOST_TOKENS: usize = 16_384;
/// Longest tokens that a text is cut for.
const MOST_TOKEN_BYTES: usize = 32;

pub(crate) fn quantize(flags: &QuantizeFlags) -> Result<(), Failure> {
    let class = flags.weights.class();
    if flags.bits.is_some() && class != WeightClass::Int4 {
        return Err(Failure::usage(format!("--bits: goes with --weights int4, not with {}", class.name())));
    }
    let text = flags.text.as_deref().map(read_text).transpose()?;
    let threads = match (flags.threads, max_threads()) {
        (Some(asked), allowed) if asked > allowed => {
            return Err(Failure::usage(ThreadError::TooMany { asked, allowed }));
        }
        (Some(asked), _) => asked,
        (None, _) => default_threads(),
    };
    let checkpoint = models::open(flags.model.as_deref())?;
    models::check_that_it_writes(&checkpoint)?;
    let failure = |error| failure(&checkpoint, error);
    export::check_output(&flags.output).map_err(failure)?;
    let mut export = Export::open(&checkpoint, flags.format.format(), class).map_err(failure)?;
    check_space(&flags.output, export.expected_bytes())?;

    let interrupts = Interrupts::listen()?;
    let measured = match &text {
        // Nothing is lost in 16 bits.
        _ if class == WeightClass::Bf16 => HashMap::new(),
        Some(text) if class == WeightClass::Int4 => {
            export = export.calibrated(windows(&checkpoint, text)?, flags.bits);
            HashMap::new()
        }
        Some(text) => measure(&checkpoint, text, flags, &interrupts)?,
        None => HashMap::new(),
    };
    let bar = Progress::new(&format!("writing {}", class.name()));
    let mut progress = |p: model::Progress| {
        bar.at(p.bytes_done, p.bytes_total);
        !interrupts.came()
    };
    let report = export.write(&flags.output, &measured, threads, &mut progress);
    drop(bar);
    put(&words(flags, &report.map_err(failure)?))
}

/// A wrong model or a wrong name is the user's; a disk that is full is not.
fn failure(checkpoint: &Checkpoint, error: ExportError) -> Failure {
    match error {
        ExportError::Load(load) => models::load_failure(checkpoint, &load),
        ExportError::Refused(problem) => Failure::usage(format!("-m: {problem}")),
        ExportError::Exists(_) | ExportError::NoDirectory(_) => Failure::usage(format!("-o: {error}")),
        ExportError::NoSpace(_) | ExportError::Io { .. } => Failure::failed(format!("-o: {error}")),
        ExportError::Interrupted => Failure::Interrupted,
    }
}

/// Before anything is written: whether it would fit.
fn check_space(output: &Path, wanted: u64) -> Result<(), Failure> {
    match machine::free_space(output) {
        Some(free) if free < wanted => Err(Failure::failed(format!(
            "-o: {}: about {} MB will be written, and {} MB are free",
            output.display(),
            wanted.div_ceil(1_000_000),
            free / 1_000_000
        ))),
        _ => Ok(()),
    }
}

/// The text that int4 is rounded by, in windows of tokens; of a long one the beginning.
fn windows(checkpoint: &Checkpoint, text: &str) -> Result<Vec<Vec<u32>>, Failure> {
    let load_failure = |error| models::load_failure(checkpoint, &error);
    let config = ModelConfig::load(checkpoint).map_err(load_failure)?;
    let tokenizer = Tokenizer::load(checkpoint, config.vocab_size).map_err(load_failure)?;
    let most_bytes = MOST_TOKENS * MOST_TOKEN_BYTES;
    let beginning = &text[..text.floor_char_boundary(most_bytes)];
    let corpus = Corpus::new(beginning, &tokenizer, CALIBRATION_WINDOW.min(config.context_limit), 0)
        .map_err(|problem| Failure::usage(format!("--text: {problem}")))?;
    let mut windows = corpus.windows;
    let tokens = |windows: &[Vec<u32>]| windows.iter().map(Vec::len).sum::<usize>();
    if tokens(&windows) > MOST_TOKENS || beginning.len() < text.len() {
        windows.truncate(MOST_TOKENS / CALIBRATION_WINDOW);
        note(&format!("--text: the first {} tokens are used", tokens(&windows)));
    }
    Ok(windows)
}

/// The relative error of each matrix's products on a text, by the matrix's name.
fn measure(
    checkpoint: &Checkpoint,
    text: &str,
    flags: &QuantizeFlags,
    interrupts: &Interrupts,
) -> Result<HashMap<String, f64>, Failure> {
    let load_failure = |error| models::load_failure(checkpoint, &error);
    let config = ModelConfig::load(checkpoint).map_err(load_failure)?;
    let tokenizer = Tokenizer::load(checkpoint, config.vocab_size).map_err(load_failure)?;
    let corpus = Corpus::new(text, &tokenizer, WINDOW.min(config.context_limit), 0)
        .map_err(|problem| Failure::usage(format!("--text: {problem}")))?;
    let options = LoadOptions {
        weights: flags.weights.class(),
        as_stored: false,
        max_rows: ROWS,
        max_logit_rows: 0, // logits are not read
        max_model_len: Some(corpus.longest()),
        kv_blocks: KvBudget::Blocks(corpus.longest().div_ceil(BLOCK_SIZE)),
        block_size: BLOCK_SIZE,
        image_directory: None,
        kv_dtype: KvDtype::Bf16,
        expert_memory: None,
        adapters: model::AdapterRoom::default(),
        state_slots: 2,
    };
    let cpu = Cpu::new(CpuOptions { threads: flags.threads, ..CpuOptions::default() }).map_err(Failure::usage)?;
    let watched = Judge::beside(Float32::new(flags.threads).map_err(Failure::usage)?, cpu);
    let bar = Progress::new("loading float32");
    let loaded = model::load(watched, checkpoint, &options, &mut |p| bar.at(p.bytes_done, p.bytes_total));
    drop(bar);
    let mut runner = loaded.map_err(load_failure)?;
    let bar = Progress::counting("measuring", "tokens");
    let (mut batch, mut done) = (Batch::default(), 0);
    for window in &corpus.windows {
        for start in (0..window.len()).step_by(ROWS) {
            let end = window.len().min(start + ROWS);
            fill(&mut batch, window, start..end, start..end);
            runner.launch(&batch).and_then(|ticket| runner.wait(ticket)).expect("a CPU is not lost");
            done += (end - start) as u64;
            bar.at(done, corpus.windows.iter().map(|window| window.len() as u64).sum());
            if interrupts.came() {
                return Err(Failure::Interrupted);
            }
        }
    }
    let errors = runner.backend().recorder.errors();
    Ok(runner.matrix_names().iter().cloned().zip(errors.iter().map(|error| error.relative())).collect())
}

/// What was done, for people.
fn words(flags: &QuantizeFlags, report: &ExportReport) -> String {
    let (output, class) = (&flags.output, flags.weights.class());
    let percent = |error: f64| format!("{:.2} %", error * 100.0);
    let mut text = format!("{}: {:.1} MB", output.display(), report.bytes as f64 / 1e6);
    if class != WeightClass::Bf16 {
        let (count, error) = (report.narrow, percent(report.worst_error));
        let what = if flags.text.is_some() && class == WeightClass::Int4 { "products" } else { "weights" };
        text.push_str(&format!(", {count} matrices in {}, their {what} off by {error} at most", class.name()));
    }
    if flags.bits.is_some() {
        text.push_str(&format!(", {:.2} bits for each code", report.bits()));
    }
    text.push('\n');
    report.raised.iter().for_each(|name| text.push_str(&format!("int8: {name}\n")));
    let limit = percent(export::limit(class));
    for kept in &report.kept {
        let why = match kept.reason {
            Reason::Weights(error) => format!("weights would be off by {}, more than {limit}", percent(error)),
            Reason::Products(error) => format!("products would be off by {}, more than {limit}", percent(error)),
            Reason::Width { width, group } => format!("rows of {width} weights are no whole groups of {group}"),
            Reason::NotFinite => "some weights are NaN or infinite".to_string(),
        };
        text.push_str(&format!("kept as stored: {}: {why}\n", kept.name));
    }
    text
}
