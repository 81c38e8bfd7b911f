//! Writing quantized checkpoints: a model in the layout of transformers in, narrower files for this and other engines
//! out.
//!
//! ```text
//! Checkpoint ──Export::open──> what is written, and how large at most           everything that can be refused is refused here
//!                │
//!                └──write──> per unit: read, quantize, judge (recipe.rs) ──┬──> narrow: codes and scales
//!                                                                          └──> over the limit: as stored
//! ```
//! A *unit* is what has to share one class: q, k and v; gate and up; o; down; all experts of a layer. Other engines
//! compute its parts as one matrix, and so does this one. Embedding, head, router, norms and biases stay as they are
//! stored.
//!
//! **What is written is what is computed.** Codes and scales in safetensors come from the quantizers of
//! [`kernels::quant`] and are read back as they are. That of int8 is the one that `--weights int8` uses at load, so a
//! model that was written and loaded gives the bits of the original under that flag, as long as no unit was kept wide.
//! Int4 in files has even levels, in memory uneven ones.
//!
//! **Int4 by a text** ([`calibration`]) takes the place of the judge: layers are rounded one after the other by what
//! they see.
//!
//! Memory: one unit, as stored and narrow. Files appear under a temporary name beside their place ([`staging`]), are
//! brought to the disk, and renamed: there is never half a model under the name that was asked for.

mod calibration;
mod gguf;
mod observed;
mod recipe;
mod safetensors;
mod staging;
mod vocabulary;

pub use recipe::{Kept, Reason, limit};

use crate::config::{LayerConfig, ModelConfig};
use crate::forward::Progress;
use crate::tensors::Tensors;
use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError};
use kernels::WeightClass;
use serde_json::Value;
use staging::Staging;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const FIELD: &str = "quantization_config";
/// Most bytes of a `config.json`.
const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// Why a model was not written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The model cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model can be read, and not be written in this way.
    #[error("{0}")]
    Refused(String),
    /// There is something where the result should go.
    #[error("{}: exists already; nothing is overwritten", .0.display())]
    Exists(PathBuf),
    /// The result's directory is not there.
    #[error("{}: no such directory", .0.display())]
    NoDirectory(PathBuf),
    /// The disk is full. Nothing is left behind.
    #[error("{}: no space left on the device; nothing was written", .0.display())]
    NoSpace(PathBuf),
    /// Writing failed otherwise. Nothing is left behind.
    #[error("{}: {error}; nothing was written", .path.display())]
    Io {
        /// What was written.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// `progress` said stop. Nothing is left behind.
    #[error("interrupted")]
    Interrupted,
}

impl ExportError {
    fn io(path: &Path, error: io::Error) -> ExportError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ExportError::NoSpace(path.to_path_buf()),
            _ => ExportError::Io { path: path.to_path_buf(), error },
        }
    }
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportReport {
    /// Bytes of all files.
    pub bytes: u64,
    /// Matrices (as they are stored, q, k and v apart) that are narrow now.
    pub narrow: usize,
    /// The largest relative error of a unit's weights among them.
    pub worst_error: f64,
    /// Units that are int8 among int4, by name.
    pub raised: Vec<String>,
    /// Weights of the narrow matrices, and bits of all their codes.
    pub weights: u64,
    /// See `weights`.
    pub code_bits: u64,
    /// Units that were kept as stored, and why.
    pub kept: Vec<Kept>,
}

impl ExportReport {
    /// A unit that was made narrow: `raised`, as int8 among int4.
    fn add(&mut self, unit: &recipe::Unit, raised: bool, made: &[recipe::Narrow], error: f64) {
        self.narrow += made.len();
        self.worst_error = self.worst_error.max(error);
        if raised {
            self.raised.push(unit.name());
        }
        for (module, made) in unit.modules.iter().zip(made) {
            let weights = (module.out_features * module.in_features) as u64;
            self.weights += weights;
            self.code_bits += weights * made.target.code_bits();
        }
    }

    /// Bits of the codes of a weight, on average over the narrow matrices.
    pub fn bits(&self) -> f64 {
        self.code_bits as f64 / self.weights.max(1) as f64
    }
}

/// Whether a result can be called so: nothing is there yet, and its directory is. What processes that were killed left
/// of such a result goes.
pub fn check_output(output: &Path) -> Result<(), ExportError> {
    staging::place(output).map(|_| ())
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A directory in the layout of compressed-tensors, which this engine and vLLM load: [`safetensors`]. Int8 or int4.
    Safetensors,
    /// One file, which this engine and llama.cpp load: [`gguf`]. Bf16, int8 (Q8_0) or int4 (Q4_0).
    Gguf,
}

/// A model that can be written.
pub struct Export<'c> {
    checkpoint: &'c Checkpoint,
    class: WeightClass,
    config: ModelConfig,
    weights: Weights,
    /// Of a GGUF file.
    plan: Option<gguf::Plan>,
    /// The text that int4 is rounded by, in windows of tokens.
    windows: Vec<Vec<u32>>,
    /// Bits of the codes of a weight, on average.
    bits: Option<f64>,
}

impl<'c> Export<'c> {
    /// Reads and checks the headers, the configuration, and for GGUF the tokenizer.
    pub fn open(checkpoint: &'c Checkpoint, format: Format, class: WeightClass) -> Result<Export<'c>, ExportError> {
        if checkpoint.is_gguf() {
            let problem = "a GGUF file; quantize reads a directory in the layout of transformers";
            return Err(ExportError::Refused(format!("{}: {problem}", checkpoint.location())));
        }
        if (format, class) == (Format::Safetensors, WeightClass::Bf16) {
            return Err(ExportError::Refused("bf16: safetensors are written in int8 or int4".to_string()));
        }
        check_fields(checkpoint)?;
        let config = ModelConfig::load(checkpoint)?;
        let uneven =
            |layer: &LayerConfig| layer.heads.queries_only || layer.values_are_keys || layer.heads.latent.is_some();
        if config.layer_input.is_some() || config.layers.iter().any(uneven) {
            let problem = format!(
                "{}: layers with latent attention, whose values are keys, that read others' keys or have inputs of \
                 their own are not written",
                config.family
            );
            return Err(ExportError::Refused(problem));
        }
        let weights = Weights::open(checkpoint)?;
        let config = config.with_head_of(&weights)?;
        Tensors::of(&config, &weights).check(&weights)?;
        let mut export = Export { checkpoint, class, config, weights, plan: None, windows: Vec::new(), bits: None };
        if format == Format::Gguf {
            export.plan = Some(gguf::Plan::of(&export)?);
        }
        Ok(export)
    }

    /// Int4 is rounded by this text: windows of tokens, none of them empty. With `bits` (4 to 8), some units are int8:
    /// those that gain the most, until the codes of a weight have that many bits on average.
    pub fn calibrated(mut self, windows: Vec<Vec<u32>>, bits: Option<f64>) -> Export<'c> {
        assert!(self.class == WeightClass::Int4 && !windows.is_empty(), "a text rounds to int4");
        (self.windows, self.bits) = (windows, bits);
        self
    }

    /// Bytes that [`write`](Self::write) takes if no unit is kept wide.
    pub fn expected_bytes(&self) -> u64 {
        match &self.plan {
            Some(plan) => plan.expected_bytes(self),
            None => safetensors::expected_bytes(self),
        }
    }

    /// Writes the result: a directory of safetensors, or a GGUF file.
    ///
    /// `measured`: errors of products on a text, by the names of [`crate::Runner::matrix_names`]; may be empty.
    /// `threads` quantize together; the bytes do not depend on their number. `progress` is called at least once for
    /// each unit, and ends the work by returning false.
    pub fn write(
        &self,
        output: &Path,
        measured: &HashMap<String, f64>,
        threads: usize,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<ExportReport, ExportError> {
        let mut work = Work::new(self, threads, progress);
        let (staging, report) = match &self.plan {
            Some(plan) => {
                let staging = Staging::file(output)?;
                let report = gguf::write(self, plan, staging.path(), measured, &mut work);
                (staging, report)
            }
            None => {
                let staging = Staging::directory(output)?;
                let report = safetensors::write(self, staging.path(), measured, &mut work);
                (staging, report)
            }
        };
        let report = report.map_err(|error| staging.blamed(error))?;
        staging.publish()?;
        Ok(report)
    }
}

/// Refuses a model that is quantized already.
fn check_fields(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    // A config.json that is missing or no JSON object is refused by `ModelConfig`, in its own words.
    let text = checkpoint.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?.unwrap_or_default();
    let Ok(Value::Object(fields)) = serde_json::from_str(&text) else { return Ok(()) };
    let problem = match fields.get(FIELD) {
        None => return Ok(()),
        Some(Value::Null) => "null; remove the field, so that it can be written".to_string(),
        Some(found) => {
            let method = found["quant_method"].as_str().unwrap_or("some method");
            let method: String = method.chars().take(40).collect();
            format!("quantized already, by {method:?}; the original bf16, f16 or f32 model is needed")
        }
    };
    Err(LoadError::field(CONFIG, FIELD, problem))
}

/// The work while it is done: how far it is, and on how many threads.
struct Work<'p> {
    threads: usize,
    done: Progress,
    /// Bytes of the original before the part that is being dealt with.
    before: u64,
    progress: &'p mut dyn FnMut(Progress) -> bool,
}

impl<'p> Work<'p> {
    fn new(export: &Export<'_>, threads: usize, progress: &'p mut dyn FnMut(Progress) -> bool) -> Work<'p> {
        let stored: u64 = export.weights.stored().iter().map(|stored| stored.num_bytes).sum();
        // With a budget of bits, the layers are walked through twice.
        let again = if export.bits.is_some() { calibration::bytes_of_layers(export) } else { 0 };
        let bytes_total = stored + again;
        Work { threads: threads.max(1), done: Progress { bytes_done: 0, bytes_total }, before: 0, progress }
    }

    /// Counts `bytes` of the original as done.
    fn advance(&mut self, bytes: u64) -> Result<(), ExportError> {
        self.done.bytes_done += bytes;
        self.before = self.done.bytes_done;
        self.told()
    }

    /// Counts the share `done / of` of `bytes` as done.
    fn part(&mut self, bytes: u64, done: u64, of: u64) -> Result<(), ExportError> {
        self.done.bytes_done = self.before + (bytes as f64 * (done as f64 / of as f64)) as u64;
        self.told()
    }

    /// Counts as done what [`part`](Self::part) counted in shares.
    fn whole(&mut self, bytes: u64) -> Result<(), ExportError> {
        self.part(bytes, 1, 1)?;
        self.before = self.done.bytes_done;
        Ok(())
    }

    fn told(&mut self) -> Result<(), ExportError> {
        if (self.progress)(self.done) { Ok(()) } else { Err(ExportError::Interrupted) }
    }
}
