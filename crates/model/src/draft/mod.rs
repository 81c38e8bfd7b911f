//! Small networks that draft a target's next tokens from what the target's own pass leaves behind.
//!
//! ```text
//! target's pass ──hidden row─────────────> Medusa    head h: the token h + 2 places on, of one row, all heads at once
//!               ──rows after some layers─> Feature   a layer with its own cache, one token a pass: EAGLE-3, MTP
//!                                            └─ its own rows ──> its next pass
//! ```
//! (Medusa: Cai et al., 2024. EAGLE-3: Li et al., 2025.) Both compute on the target's backend, share its
//! embedding and head where their files have none, and give logits over the target's vocabulary. What they say costs
//! or saves time and decides nothing, so their weights are bf16, whatever the target's are.
//!
//! Files are untrusted: what is missing, too much, of another shape, or made for another model, is one error that
//! names the file and the tensor or field.

mod eagle;
mod feature;
mod medusa;

pub use feature::{Feature, Features};
pub use medusa::Medusa;

use crate::config::fields::{Fields, parse_object, quoted};
use crate::config::{CONFIG, Family, MAX_CONFIG_BYTES, ModelConfig};
use crate::tensors::unread_error;
use crate::transformer::out_of_memory;
use checkpoint::weights::{TensorRows, Weights};
use checkpoint::{Checkpoint, LoadError, Source};
use kernels::{Backend, MatrixShape, RowSource, WeightClass};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The files of a drafter: a directory, or one `.safetensors` file, with or without a `config.json` beside it.
pub fn open(path: &Path) -> Result<Checkpoint, LoadError> {
    let is = |name: &str, endings: &[&str]| {
        endings.iter().any(|ending| Path::new(name).extension().is_some_and(|found| found.eq_ignore_ascii_case(ending)))
    };
    let no_weights = |problem| LoadError::NoWeights { checkpoint: path.display().to_string(), problem };
    if !path.is_dir() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        return match path.exists() {
            true if is(&name, &["safetensors"]) => Checkpoint::open(Source::Safetensors(path.into())),
            true if is(&name, &PICKLES) => Err(no_weights(pickled(&name))),
            true => Err(no_weights("neither a directory nor a .safetensors file".to_string())),
            false => Err(LoadError::NoDirectory { path: path.into() }),
        };
    }
    let entries = path.read_dir().into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.iter().any(|name| name == "model.safetensors" || name == "model.safetensors.index.json") {
        return Checkpoint::open(Source::Directory(path.into()));
    }
    let found: Vec<&String> = names.iter().filter(|name| is(name, &["safetensors"])).collect();
    match (found.as_slice(), names.iter().find(|name| is(name, &PICKLES))) {
        ([name], _) => Checkpoint::open(Source::Safetensors(path.join(name))),
        ([], Some(pickle)) => Err(no_weights(pickled(pickle))),
        ([], None) => Err(no_weights("no heads: no .safetensors file is there".to_string())),
        ([first, ..], _) => {
            let problem = format!("{} safetensors files; name the one to read, such as {}", found.len(), quoted(first));
            Err(no_weights(problem))
        }
    }
}

/// How files end that run code when they are loaded.
const PICKLES: [&str; 4] = ["pt", "bin", "pth", "ckpt"];

/// Why a pickle is not read, and how it becomes a file that is.
fn pickled(name: &str) -> String {
    format!(
        "only pickled heads ({}), which can run code when loaded and are never read; convert them: python -c \"import \
         torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in torch.load('FILE', map_location=\
         'cpu', weights_only=True).items()}}, 'model.safetensors')\"",
        quoted(name)
    )
}

/// What a drafter takes beside its target, as the headers of its files tell.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Its layers, which have keys and values of their own; `None`: it has no cache.
    pub layers: Option<ModelConfig>,
    /// Bytes of its weights in memory.
    pub weight_bytes: u64,
}

/// Bytes of some tensors in memory.
fn bytes_of(weights: &Weights, is_read: impl Fn(&str) -> bool) -> u64 {
    let numbers = |name: &str| weights.shape(name).map_or(0, |shape| shape.iter().product::<usize>());
    2 * weights.names().filter(|name| is_read(name)).map(numbers).sum::<usize>() as u64
}

/// `config.json` of a drafter; empty where there is none.
fn config_of(files: &Checkpoint) -> Result<Map<String, Value>, LoadError> {
    match files.read_text_capped(CONFIG, MAX_CONFIG_BYTES)? {
        Some(text) => parse_object(CONFIG, &text),
        None => Ok(Map::new()),
    }
}

/// Of what a drafter's configuration says about the model that it was trained for.
struct Target<'a> {
    config: &'a ModelConfig,
    /// What people call it, such as `Qwen/Qwen2.5-0.5B-Instruct`.
    name: Option<&'a str>,
}

impl Target<'_> {
    /// A field that says what the target is.
    fn check_name(&self, fields: &Fields<'_>, field: &str) -> Result<(), LoadError> {
        let trained_for = fields.text(field)?;
        let (Some(trained_for), Some(name)) = (trained_for.filter(|name| is_hub_name(name)), self.name) else {
            return Ok(());
        };
        match is_hub_name(name) && !name.eq_ignore_ascii_case(trained_for) {
            true => Err(fields.error(field, format!("{}, and the target is {}", quoted(trained_for), quoted(name)))),
            false => Ok(()),
        }
    }

    /// A field with names of architectures.
    fn check_architecture(&self, fields: &Fields<'_>, field: &str) -> Result<(), LoadError> {
        let named = fields.list(field)?.and_then(|names| names.first()).and_then(Value::as_str);
        match named.and_then(Family::of_architecture) {
            Some(family) if family != self.config.family => {
                let problem =
                    format!("{}, and the target is {}", quoted(named.unwrap_or_default()), self.config.family);
                Err(fields.error(field, problem))
            }
            _ => Ok(()),
        }
    }

    /// A size that has to be the target's.
    fn check_size(&self, fields: &Fields<'_>, field: &str, own: usize) -> Result<(), LoadError> {
        match fields.optional_size(field, 1 << 24)? {
            Some(size) if size != own => Err(fields.error(field, format!("{size}, and the target's is {own}"))),
            _ => Ok(()),
        }
    }
}

/// Whether a name says which model, wherever it is stored: `organisation/model`. Paths of directories say nothing.
fn is_hub_name(name: &str) -> bool {
    name.split_once('/').is_some_and(|(organisation, model)| {
        !organisation.is_empty() && !model.is_empty() && !model.contains('/') && !name.starts_with(['.', '~'])
    })
}

/// Reads tensors, and knows at the end which were not read.
struct Reader<'a, B: Backend> {
    backend: &'a B,
    weights: &'a Weights,
    read: HashSet<String>,
}

/// Which part of the columns of a matrix: number `index` of `count`, all as wide.
#[derive(Clone, Copy)]
struct Columns {
    index: usize,
    count: usize,
}

impl Columns {
    const ALL: Columns = Columns { index: 0, count: 1 };
}

impl<'a, B: Backend> Reader<'a, B> {
    fn new(backend: &'a B, weights: &'a Weights) -> Reader<'a, B> {
        Reader { backend, weights, read: HashSet::new() }
    }

    /// An error about a tensor.
    fn error(&self, tensor: &str, problem: String) -> LoadError {
        LoadError::field(self.weights.listing(), format!("tensor {}", quoted(tensor)), problem)
    }

    /// The rows of a matrix `[rows, width]`.
    fn rows(&mut self, name: &str, shape: [usize; 2]) -> Result<TensorRows<'a>, LoadError> {
        let tensor = self.weights.tensor(name, &shape)?;
        if tensor.encoding().is_none() {
            return Err(self.error(name, "quantized; heads are read from BF16, F16 and F32".to_string()));
        }
        self.read.insert(name.to_string());
        tensor.rows()
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        self.read.insert(name.to_string());
        self.weights.vector(name, len)
    }

    /// A vector where the backend computes.
    fn placed(&mut self, name: &str, len: usize) -> Result<B::Vector, LoadError> {
        let numbers = self.vector(name, len)?;
        self.place(&numbers, name)
    }

    fn place(&self, numbers: &[f32], name: &str) -> Result<B::Vector, LoadError> {
        self.backend.vector(numbers).map_err(|oom| out_of_memory(oom, format!("weights {name}")))
    }

    /// Whole rows of a matrix.
    fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<B::Matrix, LoadError> {
        self.columns(&[(name.to_string(), shape[0])], shape[1], Columns::ALL)
    }

    /// Some columns of matrices `[rows, width]`, one under the other.
    fn columns(&mut self, parts: &[(String, usize)], width: usize, part: Columns) -> Result<B::Matrix, LoadError> {
        let Columns { index, count } = part;
        let tensors = parts.iter().map(|(name, rows)| Ok((self.rows(name, [*rows, width])?, *rows)));
        let tensors = tensors.collect::<Result<Vec<_>, LoadError>>()?;
        let shape = MatrixShape { out_features: parts.iter().map(|(_, rows)| rows).sum(), in_features: width / count };
        self.pack(&parts[0].0, shape, |mut row, out| {
            for (tensor, rows) in &tensors {
                if row < *rows {
                    // A row of `count` pieces is `count` rows of one piece.
                    return tensor.read(row * count + index, out);
                }
                row -= rows;
            }
            unreachable!("row {row} beyond the last")
        })
    }

    /// A matrix whose rows `fill` knows. `name`: for messages.
    fn pack(
        &self,
        name: &str,
        shape: MatrixShape,
        fill: impl Fn(usize, &mut [f32]) -> Result<(), LoadError> + Sync,
    ) -> Result<B::Matrix, LoadError> {
        // The packing loop knows no errors: that of the first row is kept here, and such rows are zeros.
        let failed = Mutex::new(None::<(usize, LoadError)>);
        let source = |row: usize, out: &mut [f32]| {
            if let Err(error) = fill(row, out) {
                out.fill(0.0);
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(first, _)| row < *first) {
                    *failed = Some((row, error));
                }
            }
        };
        let matrix = self.backend.pack(shape, WeightClass::Bf16, &RowSource(&source));
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => matrix.map_err(|oom| out_of_memory(oom, format!("weights {name}"))),
        }
    }

    /// Refuses unread tensors, except the extra ones that such files are known to have.
    fn finish(self, is_extra: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        let unread = self.weights.names().filter(|name| !self.read.contains(*name) && !is_extra(name));
        let mut unread: Vec<&str> = unread.collect();
        unread.sort_unstable();
        match unread.is_empty() {
            true => Ok(()),
            false => {
                let why = "its configuration and the other tensors have no place for them";
                Err(unread_error(self.weights, "this drafter does not read", &unread, why))
            }
        }
    }
}

/// Logits over some of the target's tokens become logits over all: what is not drafted is out of reach.
fn scatter(logits: &[f32], ids: &[u32], out: &mut [f32]) {
    out.fill(f32::NEG_INFINITY);
    for (&logit, &id) in logits.iter().zip(ids) {
        out[id as usize] = logit;
    }
}

/// Checks a drafter's tokens: each is one of the target's, and none is there twice. `ids`: as the file's numbers say.
fn checked_ids(
    ids: impl Iterator<Item = i64>,
    vocab_size: usize,
    error: impl Fn(String) -> LoadError,
) -> Result<Vec<u32>, LoadError> {
    let mut seen = vec![false; vocab_size];
    let mut checked = Vec::new();
    for (index, id) in ids.enumerate() {
        let place = usize::try_from(id).ok().filter(|&id| id < vocab_size);
        let Some(place) = place else {
            return Err(error(format!("entry {index} leads to token {id}, and the target has {vocab_size}")));
        };
        if std::mem::replace(&mut seen[place], true) {
            return Err(error(format!("entry {index} leads to token {id}, as one before it does")));
        }
        checked.push(id as u32);
    }
    Ok(checked)
}
