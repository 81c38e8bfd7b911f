//! `twostroke quality`: what a weight class and a KV cache type cost, measured on a text of the user's or on the
//! calibration text. What int8 costs is kept for the line at the start of `run` and `serve`.
//!
//! ```text
//! text ──tokens──> windows of -c tokens, each read from its beginning (the beginning-of-text token in front, if any)
//!   float32 pass  ──> logits ──┐
//!   judged pass   ──> logits ──┴──> per token: -ln p(next) of both, KL divergence, same best token
//!   and in the float32 pass every product a second time in the judged class: the error of each matrix alone
//! ```
//! With --reference the float32 pass is that of another model, and its matrices are not looked at one by one.
//! Every token of a window but its first is scored, or with --skip those behind the first N alone: a token that is
//! predicted from little context says little about weights, and llama-perplexity scores the second half of each window.
//! Memory: four bytes per weight for float32, and the judged class twice.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use checkpoint::Checkpoint;
use kernels::{AccumulationOrder, Cpu, CpuOptions, Float32, WeightClass};
use model::{Batch, Forward, KvBudget, LoadOptions, ModelConfig, Runner, Span};
use quality::{Comparison, Judge, MatrixError, MeasuringBackend};
use serde_json::{Value, json};
use text::tokenizer::Tokenizer;

use crate::console::{Progress, note, put, put_line};
use crate::failure::Failure;
use crate::flags::QualityFlags;
use crate::kept::{self, Loss, Precision};
use crate::models;
use crate::signals::{self, Ends};

/// Tokens of a window unless -c says otherwise: what perplexities are usually quoted at.
pub(super) const WINDOW: usize = 2048;
/// Tokens per cache block: the server's default.
pub(super) const BLOCK_SIZE: usize = 32;
/// Rows of one forward pass.
pub(super) const ROWS: usize = 256;
/// Rows whose logits are held at a time.
const LOGIT_ROWS: usize = 32;
/// Longest text: tokenizing it takes about twenty times its size in memory.
const MAX_TEXT_BYTES: u64 = 256 << 20;
/// How much of the text two tokenizers are compared on.
const SAMPLE_CHARS: usize = 10_000;
/// Matrices that the report for people lists.
const LISTED: usize = 8;

pub(crate) fn quality(flags: &QualityFlags) -> Result<(), Failure> {
    let text = Text::of(flags)?;
    let checkpoint = models::open(flags.model.model.as_deref())?;
    models::check_that_it_writes(&checkpoint)?;
    let load_failure = |error| models::load_failure(&checkpoint, &error);
    let config = ModelConfig::load(&checkpoint).map_err(load_failure)?;
    let tokenizer = Tokenizer::load(&checkpoint, config.vocab_size).map_err(load_failure)?;
    let (window, skip) = window(flags, &text, &config)?;
    let corpus = Corpus::new(&text.body, &tokenizer, window, skip)
        .map_err(|problem| Failure::usage(format!("{}: {problem}", text.name)))?;

    let chosen = models::weights(&flags.model, &checkpoint)?;
    let options = LoadOptions {
        weights: chosen.class,
        as_stored: chosen.as_stored,
        max_rows: ROWS,
        max_logit_rows: LOGIT_ROWS,
        max_model_len: Some(corpus.longest()),
        kv_blocks: KvBudget::Blocks(corpus.longest().div_ceil(BLOCK_SIZE)),
        block_size: BLOCK_SIZE,
        image_directory: None,
        kv_dtype: flags.model.kv_dtype.dtype(),
        adapters: model::AdapterRoom::default(),
        state_slots: 2,
        expert_memory: flags.model.expert_memory.map(engine::expert_memory),
    };
    let other = flags.reference.as_deref().map(|name| models::open_for("--reference", name)).transpose()?;
    if let Some(other) = &other {
        check_reference(other, &config, &tokenizer, &text.body)?;
    }
    let mut pair = Pair::load(&checkpoint, other.as_ref(), flags, &options)?;
    let interrupts = Interrupts::listen()?;
    let bar = Progress::counting("measuring", "tokens");
    let (mut found, mut complete) = (Comparison::default(), true);
    for window in &corpus.windows {
        complete = pair.measure(window, corpus.skip, &mut found, &mut |scored| {
            bar.at(scored, corpus.scored());
            !interrupts.came()
        });
        if !complete {
            break;
        }
    }
    drop(bar);
    let weights = chosen.class.name();
    let kv_dtype = flags.model.kv_dtype.dtype().name();
    let parameters = config.layer_parameters() + config.head_parameters();
    let report = Report {
        weights,
        kv_dtype,
        arithmetic: flags.model.arithmetic.arithmetic().unwrap_or_else(AccumulationOrder::best).name(),
        bits_per_weight: 8.0 * pair.judged.weight_bytes() as f64 / parameters as f64,
        checkpoint: &checkpoint,
        text: &text.name,
        reference: other.as_ref(),
        corpus: &corpus,
        found,
        complete,
        errors: pair.errors(),
    };
    if complete && other.is_none() && chosen.class == WeightClass::Int8 && !chosen.as_stored {
        keep(flags, &report, &text);
    }
    if found.tokens > 0 {
        if flags.json { put_line(&report.json().to_string())? } else { put(&report.text())? }
    }
    if complete { Ok(()) } else { Err(Failure::Interrupted) }
}

/// Keeps the figure that the start of `run` and `serve` names, unless keeping is off.
fn keep(flags: &QualityFlags, report: &Report<'_>, text: &Text) {
    let Some(directory) = models::packed_cache(&flags.model) else { return };
    let loss = Loss {
        mean_kl: report.found.mean_kl(),
        tokens: report.found.tokens,
        window: report.corpus.longest() as u64,
        skip: report.corpus.skip as u64,
        text: text.short_name(),
    };
    let precision = Precision {
        weights: WeightClass::Int8,
        kv_dtype: flags.model.kv_dtype.dtype(),
        arithmetic: flags.model.arithmetic.arithmetic().unwrap_or_else(AccumulationOrder::best),
    };
    // A model with logits that are no numbers has no figure.
    if report.found.not_finite == 0
        && let Err(error) = precision.keep(&directory, report.checkpoint, &loss)
    {
        note(&format!("the figure could not be kept in {}: {error}", directory.display()));
    }
}

/// Technical English of our own, for a figure without a text.
const CALIBRATION: &str = include_str!("../../calibration.txt");
/// Tokens of a window of it, the second half of which is judged: what `docs/quality.md` and llama-perplexity take.
const CALIBRATION_WINDOW: usize = 512;

/// What is measured on.
struct Text {
    /// For people: a path, or what it is.
    name: String,
    body: String,
    /// The one in the binary.
    is_calibration: bool,
}

impl Text {
    /// Without the directories of a path.
    fn short_name(&self) -> String {
        let file = Path::new(&self.name).file_name().filter(|_| !self.is_calibration);
        file.map_or_else(|| self.name.clone(), |file| file.to_string_lossy().into_owned())
    }

    fn of(flags: &QualityFlags) -> Result<Text, Failure> {
        Ok(match &flags.text {
            Some(path) => Text { name: path.display().to_string(), body: read_text(path)?, is_calibration: false },
            None => Text { name: kept::CALIBRATION.to_string(), body: CALIBRATION.to_string(), is_calibration: true },
        })
    }
}

/// The text, which must be a regular file of reasonable size in UTF-8.
pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    let wrong = |problem: String| Failure::usage(format!("--text: {}: {problem}", path.display()));
    let text = files::read_text(path, MAX_TEXT_BYTES).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            wrong(format!("more than {MAX_TEXT_BYTES} bytes; a part of it says as much"))
        }
        _ => wrong(error.to_string()),
    })?;
    if text.is_empty() { Err(wrong("the file is empty".into())) } else { Ok(text) }
}

/// A model is judged by one that reads the same tokens.
fn check_reference(other: &Checkpoint, config: &ModelConfig, tokenizer: &Tokenizer, text: &str) -> Result<(), Failure> {
    let load_failure = |error| models::load_failure(other, &error);
    let theirs = ModelConfig::load(other).map_err(load_failure)?;
    let differ = |problem: String| Err(Failure::usage(format!("--reference: {problem}")));
    if theirs.vocab_size != config.vocab_size {
        return differ(format!("{} tokens, but the judged model has {}", theirs.vocab_size, config.vocab_size));
    }
    let sample: String = text.chars().take(SAMPLE_CHARS).collect();
    let encode =
        |tokenizer: &Tokenizer| tokenizer.encode(&sample, true).map_err(|error| Failure::usage(error.to_string()));
    if encode(&Tokenizer::load(other, theirs.vocab_size).map_err(load_failure)?)? != encode(tokenizer)? {
        return differ("the text is other tokens than for the judged model".to_string());
    }
    Ok(())
}

/// Tokens of a window, and how many of them are skipped.
fn window(flags: &QualityFlags, text: &Text, config: &ModelConfig) -> Result<(usize, usize), Failure> {
    let limit = config.context_limit;
    let usual = if text.is_calibration { CALIBRATION_WINDOW } else { WINDOW };
    let window = match flags.max_model_len {
        Some(asked) if asked > limit => {
            return Err(Failure::usage(format!("-c: {asked} tokens, but the model reads at most {limit}")));
        }
        Some(asked) if asked < 2 => return Err(Failure::usage("-c: a window of less than 2 tokens scores none")),
        Some(asked) => asked,
        None => usual.min(limit),
    };
    let skip = flags.skip.unwrap_or(if text.is_calibration { (window / 2).min(window - 2) } else { 0 });
    if skip > window - 2 {
        return Err(Failure::usage(format!("--skip: {skip} tokens of a window of {window} leave none to score")));
    }
    Ok((window, skip))
}

/// A text in windows.
pub(super) struct Corpus {
    /// Each of at least two tokens.
    pub(super) windows: Vec<Vec<u32>>,
    /// Rows at the beginning of each that are computed and not scored.
    skip: usize,
}

impl Corpus {
    /// Cuts a text into windows of `window` tokens. Special tokens written in the text are parsed.
    ///
    /// With `skip`, a last window that is not full is left out, so that every token scored has as much before it; and
    /// a beginning-of-text token replaces a window's first token rather than preceding it. llama-perplexity does both.
    pub(super) fn new(text: &str, tokenizer: &Tokenizer, window: usize, skip: usize) -> Result<Corpus, String> {
        let encode = |text: &str, add_special| tokenizer.encode(text, add_special).map_err(|error| error.to_string());
        let first = encode("", true)?.first().copied().filter(|&id| tokenizer.bos_id() == Some(id));
        let tokens = encode(text, false)?;
        let windows: Vec<Vec<u32>> = if skip > 0 {
            let tokens: Vec<u32> = first.iter().chain(&tokens).copied().collect();
            let begun = |part: &[u32]| [&[first.unwrap_or(part[0])], &part[1..]].concat();
            tokens.chunks_exact(window).map(begun).collect()
        } else {
            let parts = tokens.chunks(window - usize::from(first.is_some()));
            let begun = |part: &[u32]| first.iter().chain(part).copied().collect();
            parts.map(begun).filter(|window: &Vec<u32>| window.len() >= 2).collect()
        };
        if windows.is_empty() {
            let count = tokens.len();
            let least = if skip > 0 { window - usize::from(first.is_some()) } else { 2 };
            return Err(format!("{count} token{}; at least {least} are needed", if count == 1 { "" } else { "s" }));
        }
        Ok(Corpus { windows, skip })
    }

    pub(super) fn longest(&self) -> usize {
        self.windows.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Tokens that are scored in all.
    pub(super) fn scored(&self) -> u64 {
        self.windows.iter().map(|window| (window.len() - 1 - self.skip) as u64).sum()
    }
}

enum Reference {
    /// The judged model's own weights in float32, each product beside it in the judged class.
    Own(Box<Runner<MeasuringBackend<Cpu>>>),
    /// Another model.
    Other(Box<Runner<Float32>>),
}

impl Reference {
    fn forward(&mut self) -> &mut dyn Forward {
        match self {
            Reference::Own(runner) => &mut **runner,
            Reference::Other(runner) => &mut **runner,
        }
    }
}

/// The reference and what is judged by it.
struct Pair {
    reference: Reference,
    judged: Runner<Cpu>,
    /// A row of logits of both, `[vocab_size]` each.
    logits: [Vec<f32>; 2],
    batch: Batch,
}

impl Pair {
    /// `other`: the model that is right, if it is not the judged one in float32.
    fn load(
        checkpoint: &Checkpoint,
        other: Option<&Checkpoint>,
        flags: &QualityFlags,
        options: &LoadOptions,
    ) -> Result<Pair, Failure> {
        let (threads, nodes) = (flags.model.threads, flags.model.nodes());
        let arithmetic = flags.model.arithmetic.arithmetic();
        let cpu =
            || Cpu::new(CpuOptions { threads, arithmetic, nodes, ..CpuOptions::default() }).map_err(Failure::usage);
        let exact = Float32::new(threads).map_err(Failure::usage)?;
        let load_failure = |error| models::load_failure(checkpoint, &error);
        let bar = Progress::new("loading float32");
        let mut progress = |p: model::Progress| bar.at(p.bytes_done, p.bytes_total);
        let reference = match other {
            None => {
                let watched = Judge::beside(exact, cpu()?);
                let runner = model::load(watched, checkpoint, options, &mut progress).map_err(load_failure)?;
                Reference::Own(Box::new(runner))
            }
            Some(other) => {
                let runner = model::load(exact, other, options, &mut progress);
                Reference::Other(Box::new(runner.map_err(|error| models::load_failure(other, &error))?))
            }
        };
        bar.naming("loading".to_string());
        let judged = model::load(cpu()?, checkpoint, options, &mut progress).map_err(load_failure)?;
        judged.notices().iter().for_each(|notice| note(notice));
        let logits = || vec![0.0; judged.config().vocab_size];
        Ok(Pair { logits: [logits(), logits()], reference, judged, batch: Batch::default() })
    }

    /// Scores a window from row `skip` on. `go_on` gets the number of tokens scored in all after each part; false
    /// when it stops the run.
    fn measure(
        &mut self,
        window: &[u32],
        skip: usize,
        found: &mut Comparison,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> bool {
        for start in (0..window.len()).step_by(ROWS) {
            let end = window.len().min(start + ROWS);
            let unscored = skip.clamp(start, end); // rows before it are read and no more
            let scored = end.min(window.len() - 1).saturating_sub(unscored); // nothing follows the last token
            fill(&mut self.batch, window, start..end, unscored..unscored + scored);
            let pass = |forward: &mut dyn Forward| {
                forward.launch(&self.batch).and_then(|ticket| forward.wait(ticket)).expect("a CPU is not lost")
            };
            let [exact, narrow] = [pass(self.reference.forward()), pass(&mut self.judged)];
            for first in (0..scored).step_by(LOGIT_ROWS) {
                for row in first..scored.min(first + LOGIT_ROWS) {
                    let [reference, judged] = &mut self.logits;
                    let read = self.reference.forward().read_logits(&exact, row, reference);
                    read.and_then(|()| self.judged.read_logits(&narrow, row, judged)).expect("a CPU is not lost");
                    found.add(reference, judged, window[unscored + row + 1]);
                }
                if !go_on(found.tokens + found.not_finite) {
                    return false;
                }
            }
        }
        true
    }

    /// The error of every matrix with its name; none by another model.
    fn errors(&self) -> Vec<(String, MatrixError)> {
        let Reference::Own(reference) = &self.reference else { return Vec::new() };
        let names = reference.matrix_names().iter().cloned();
        names.zip(reference.backend().recorder.errors()).collect()
    }
}

/// Rows `rows` of a sequence with contiguous cache blocks; logits of those in `wanted`.
pub(super) fn fill(batch: &mut Batch, tokens: &[u32], rows: Range<usize>, wanted: Range<usize>) {
    batch.clear();
    batch.token_ids.extend(&tokens[rows.clone()]);
    batch.positions.extend(rows.clone().map(|position| position as u32));
    batch.slots.extend(rows.clone().map(|slot| slot as u32));
    let blocks = rows.end.div_ceil(BLOCK_SIZE) as u32;
    batch.block_tables.extend(0..blocks);
    batch.spans.push(Span {
        first_row: 0,
        num_rows: rows.len() as u32,
        start: rows.start as u32,
        table: 0..blocks,
        adapter: None,
        state: None,
        saves: 0..0,
    });
    let turn = (rows.start / ROWS % 2) as u32;
    batch.carry_states(turn, 1 - turn);
    batch.logit_rows.extend(wanted.map(|row| (row - rows.start) as u32));
}

/// Ctrl-C or SIGHUP, asked after instead of waited for.
pub(super) struct Interrupts {
    runtime: tokio::runtime::Runtime,
    ends: std::cell::RefCell<Ends>,
}

impl Interrupts {
    pub(super) fn listen() -> Result<Interrupts, Failure> {
        let runtime = signals::runtime(0)?;
        let ends = runtime.block_on(async { Ends::listen() })?;
        Ok(Interrupts { runtime, ends: ends.into() })
    }

    pub(super) fn came(&self) -> bool {
        let mut ends = self.ends.borrow_mut();
        self.runtime.block_on(async { tokio::time::timeout(Duration::ZERO, ends.recv()).await.is_ok() })
    }
}

struct Report<'a> {
    /// Class of the weights.
    weights: &'static str,
    /// Of the KV cache.
    kv_dtype: &'static str,
    /// Of products of 16-bit numbers.
    arithmetic: &'static str,
    /// Bits in memory for each weight of the layers and the head, scales and all.
    bits_per_weight: f64,
    checkpoint: &'a Checkpoint,
    /// Name of the text.
    text: &'a str,
    /// What it is judged by, if not by itself in float32.
    reference: Option<&'a Checkpoint>,
    corpus: &'a Corpus,
    found: Comparison,
    complete: bool,
    errors: Vec<(String, MatrixError)>,
}

impl Report<'_> {
    fn json(&self) -> Value {
        let Report { weights, found, .. } = self;
        let matrices = self.errors.iter().map(
            |(name, error)| json!({ "name": name, "relative_error": error.relative(), "worst_row": error.worst_row }),
        );
        json!({
            "build_version": env!("CARGO_PKG_VERSION"),
            "model": self.checkpoint.name(),
            "reference": self.reference.map(Checkpoint::name),
            "weights": weights,
            "kv_dtype": self.kv_dtype,
            "arithmetic": self.arithmetic,
            "bits_per_weight": self.bits_per_weight,
            "text": self.text,
            "window": self.corpus.longest(),
            "skip": self.corpus.skip,
            "tokens": found.tokens,
            "complete": self.complete,
            "reference_perplexity": found.reference_perplexity(),
            "perplexity": found.perplexity(),
            "perplexity_increase": found.perplexity_increase(),
            "mean_kl": found.mean_kl(),
            "worst_kl": found.worst_kl,
            "same_best_token": found.agreement(),
            "not_finite": found.not_finite,
            "matrices": matrices.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let Report { weights, bits_per_weight, found, corpus: Corpus { skip, .. }, .. } = self;
        let mut text = format!(
            "{}, {} weights ({bits_per_weight:.2} bits each), {} KV cache, {} arithmetic, against {}float32: {} tokens in windows of {}{}\n\n\
             perplexity        {:.4} (float32 {:.4}, {:+.3} %)\n\
             KL divergence     {:.6} nats per token, worst {:.4}\n\
             same best token   {:.2} %\n",
            self.checkpoint.name(),
            weights,
            self.kv_dtype,
            self.arithmetic,
            self.reference.map_or(String::new(), |reference| format!("{} in ", reference.name())),
            found.tokens,
            self.corpus.longest(),
            if *skip > 0 { format!(", behind the first {skip} of each") } else { String::new() },
            found.perplexity(),
            found.reference_perplexity(),
            found.perplexity_increase() * 100.0,
            found.mean_kl(),
            found.worst_kl,
            found.agreement() * 100.0,
        );
        if found.not_finite > 0 {
            text.push_str(&format!("not scored        {} tokens with logits that are no numbers\n", found.not_finite));
        }
        if self.reference.is_some() {
            return text;
        }
        let mut errors: Vec<_> = self.errors.iter().collect();
        errors.sort_by(|a, b| b.1.relative().total_cmp(&a.1.relative()));
        let listed = errors.len().min(LISTED);
        text.push_str(&format!("\nrelative error of the products, the {listed} largest of {}:\n", errors.len()));
        for (name, error) in &errors[..listed] {
            text.push_str(&format!("  {:.5}  worst row {:.5}  {name}\n", error.relative(), error.worst_row));
        }
        text
    }
}
