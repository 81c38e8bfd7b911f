//! Medusa (Cai et al., 2024): heads beside the language-model head, each for one place further on.
//!
//! ```text
//! hidden row ──head h──> x = x + silu(x W + b), a few times ──> x Whead      the token h + 2 places behind the row's
//! ```
//! Two layouts are in use: the authors' (`0.0.linear.weight`, `0.0.linear.bias`, `0.1.weight`, with or without
//! `medusa_heads.` before them) and vLLM's (`blocks.0.layers.0.weight`, `lm_heads.0.weight`, `token_map`). A head
//! without its own matrix uses the target's.

use super::{Columns, Needs, Reader, Target, bytes_of, checked_ids, config_of, scatter};
use crate::config::ModelConfig;
use crate::config::fields::Fields;
use crate::forward::{Forward, Limits, Runner, Shared};
use crate::transformer::{head_logits, out_of_memory};
use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError};
use kernels::{Activation, Backend, DeviceError, Extent, MatrixShape, Out, gate_up_row};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Largest number of heads; trained drafters have fewer.
const MOST_HEADS: usize = 64;
/// Largest number of residual layers of a head; trained ones have fewer.
const MOST_LAYERS: usize = 64;

/// Heads that read a target's hidden row. No state: any rows, in any order.
pub struct Medusa {
    heads: Box<dyn Heads>,
    num_heads: usize,
    hidden_size: usize,
    vocab_size: usize,
    max_logit_rows: usize,
    /// Each head has its own matrix: only its rows are multiplied together.
    own_matrices: bool,
    /// Which tokens its logits are of, where they are not of all.
    ids: Option<Vec<u32>>,
    /// What the heads made of the last rows, `[heads, rows, hidden_size]`.
    rows: Vec<f32>,
    num_rows: usize,
    /// How many heads did.
    proposed: usize,
    /// Which of these have logits.
    held: Range<usize>,
    /// A row of logits over `ids`.
    narrow: Vec<f32>,
}

impl Medusa {
    /// Reads heads for `target`. `target_name`: what people call it, such as `Qwen/Qwen2.5-0.5B-Instruct`; heads that
    /// were trained for another name are refused.
    pub fn load<B: Backend>(
        files: &Checkpoint,
        target: &Runner<B>,
        target_name: Option<&str>,
    ) -> Result<Medusa, LoadError> {
        let config = target.config();
        let stated = config_of(files)?;
        let fields = Fields { file: crate::config::CONFIG, path: String::new(), map: &stated };
        let about = Target { config, name: target_name };
        about.check_name(&fields, "base_model_name_or_path")?;
        about.check_size(&fields, "hidden_size", config.hidden_size)?;
        about.check_size(&fields, "vocab_size", config.vocab_size)?;

        let weights = Weights::open(files)?;
        let layout = Layout::of(&weights, fields.flag("original_lm_head", false)?)?;
        for field in ["medusa_num_heads", "num_heads"] {
            // Fewer are stated in published files that have more.
            if let Some(stated) = fields.optional_size(field, MOST_HEADS)?.filter(|&stated| stated > layout.heads.len())
            {
                return Err(fields.error(field, format!("{stated}, and the file has {}", layout.heads.len())));
            }
        }
        let shared = target.shared();
        let backend = shared.backend.clone();
        let mut reader = Reader::new(&*backend, &weights);
        let limits = target.limits();
        let ids = layout.token_map(&mut reader, config.vocab_size)?;
        let (network, own_matrices) = Network::load(&layout, &mut reader, shared, config, limits, ids.as_deref())?;
        reader.finish(|_| false)?;
        let width = if own_matrices { ids.as_ref().map_or(0, Vec::len) } else { config.vocab_size };
        Ok(Medusa {
            heads: Box::new(network),
            num_heads: layout.heads.len(),
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            max_logit_rows: limits.max_logit_rows,
            own_matrices,
            narrow: vec![0.0; if ids.is_some() { width } else { 0 }],
            ids,
            rows: vec![0.0; layout.heads.len() * limits.max_logit_rows * config.hidden_size],
            num_rows: 0,
            proposed: 0,
            held: 0..0,
        })
    }

    /// What they take. Reads no weight.
    pub fn needs(files: &Checkpoint) -> Result<Needs, LoadError> {
        Ok(Needs { layers: None, weight_bytes: bytes_of(&Weights::open(files)?, |_| true) })
    }

    /// How many places on they see.
    pub fn num_heads(&self) -> usize {
        self.num_heads
    }

    /// Bytes of weights that are read for a draft of all heads, the target's head not counted.
    pub fn weight_bytes(&self) -> usize {
        self.heads.weight_bytes()
    }

    /// Takes hidden rows of the target, `[rows, hidden_size]`, as [`Forward::read_hidden`] gives them: at most the
    /// rows that may have logits in a pass. The first `heads` heads draft behind each.
    ///
    /// Panics if there are more rows or heads than that.
    pub fn propose(&mut self, hidden: &[f32], heads: usize) -> Result<(), DeviceError> {
        let num_rows = hidden.len() / self.hidden_size;
        assert_eq!(hidden.len(), num_rows * self.hidden_size, "hidden rows are [rows, hidden_size]");
        assert!(num_rows <= self.max_logit_rows, "{num_rows} rows, at most {}", self.max_logit_rows);
        assert!(heads <= self.num_heads, "{heads} of {} heads", self.num_heads);
        (self.num_rows, self.proposed, self.held) = (num_rows, heads, 0..0);
        if num_rows == 0 || heads == 0 {
            return Ok(());
        }
        for (head, out) in self.rows.chunks_exact_mut(hidden.len()).take(heads).enumerate() {
            self.heads.residual(head, hidden, out)?;
        }
        self.hold(0, heads * num_rows)
    }

    /// Logits of a head behind a row, over the target's vocabulary: `out` is `[vocab_size]`. Rows of one head after the
    /// other are cheapest.
    ///
    /// Panics if the row or the head was not in the last [`propose`](Self::propose).
    pub fn read_logits(&mut self, head: usize, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        assert!(row < self.num_rows && head < self.proposed, "row {row} of head {head} was not proposed");
        assert_eq!(out.len(), self.vocab_size, "a row of logits is [vocab_size]");
        let place = head * self.num_rows + row;
        if !self.held.contains(&place) {
            self.hold(place, (head + 1) * self.num_rows)?;
        }
        let row = place - self.held.start;
        match &self.ids {
            None => self.heads.read_logits(row, out)?,
            Some(ids) if self.own_matrices => {
                self.heads.read_logits(row, &mut self.narrow)?;
                scatter(&self.narrow, ids, out);
            }
            // The target's head knows all tokens; those that the heads were trained for are left.
            Some(ids) => {
                self.heads.read_logits(row, &mut self.narrow)?;
                out.fill(f32::NEG_INFINITY);
                ids.iter().for_each(|&id| out[id as usize] = self.narrow[id as usize]);
            }
        }
        Ok(())
    }

    /// Computes logits of places from `first` on and before `end`, up to what one matrix serves and is held.
    fn hold(&mut self, first: usize, end: usize) -> Result<(), DeviceError> {
        let head = first / self.num_rows;
        let end = if self.own_matrices { end.min((head + 1) * self.num_rows) } else { end };
        let end = end.min(first + self.max_logit_rows);
        self.heads.logits(head, &self.rows[first * self.hidden_size..end * self.hidden_size])?;
        self.held = first..end;
        Ok(())
    }
}

/// What a backend does for [`Medusa`].
trait Heads: Send {
    /// The residual layers of a head: `[rows, hidden_size]` to the same.
    fn residual(&mut self, head: usize, hidden: &[f32], out: &mut [f32]) -> Result<(), DeviceError>;
    /// Logits of such rows, kept until the next.
    fn logits(&mut self, head: usize, rows: &[f32]) -> Result<(), DeviceError>;
    /// One row of these.
    fn read_logits(&mut self, row: usize, out: &mut [f32]) -> Result<(), DeviceError>;
    fn weight_bytes(&self) -> usize;
}

struct Network<B: Backend> {
    backend: Arc<B>,
    config: ModelConfig,
    heads: Vec<Head<B>>,
    target_head: Arc<B::Matrix>,
    /// `[max_logit_rows, hidden_size]`, both.
    x: B::Rows,
    added: B::Rows,
    /// `[max_logit_rows, tokens]`.
    logits: B::Rows,
}

struct Head<B: Backend> {
    layers: Vec<Residual<B>>,
    /// `None`: the target's.
    matrix: Option<Arc<B::Matrix>>,
}

/// `silu(x W + b)` as the gated product of `W` and a matrix of zeros whose bias is 1.
struct Residual<B: Backend> {
    matrix: B::Matrix,
    bias: B::Vector,
}

impl<B: Backend> Network<B> {
    /// And whether the heads have matrices of their own.
    fn load(
        layout: &Layout,
        reader: &mut Reader<'_, B>,
        shared: Shared<B>,
        config: &ModelConfig,
        limits: Limits,
        ids: Option<&[u32]>,
    ) -> Result<(Network<B>, bool), LoadError> {
        let hidden = config.hidden_size;
        let mut of_all = None;
        let heads = layout.heads.iter().map(|head| {
            let layers = head.layers.iter().map(|layer| layer.load(reader, hidden)).collect::<Result<_, _>>()?;
            let matrix = match (&head.matrix, &of_all) {
                (None, _) => None,
                // One for all heads is read once.
                (Some(_), Some(matrix)) if layout.one_matrix => Some(Arc::clone(matrix)),
                (Some(name), _) => Some(Arc::new(output_matrix(reader, name, [config.vocab_size, hidden], ids)?)),
            };
            of_all = matrix.clone();
            Ok(Head { layers, matrix })
        });
        let heads: Vec<Head<B>> = heads.collect::<Result<_, LoadError>>()?;
        let own = heads.iter().filter(|head| head.matrix.is_some()).count();
        if own > 0 && own < heads.len() {
            let index = heads.iter().position(|head| head.matrix.is_none()).unwrap_or_default();
            let problem = format!("missing, and {own} of {} heads have one", heads.len());
            return Err(reader.error(&layout.matrix_name(index), problem));
        }
        let rows = |width: usize| {
            let purpose = || format!("{} rows of Medusa heads", limits.max_logit_rows);
            shared.backend.rows(limits.max_logit_rows, width).map_err(|oom| out_of_memory(oom, purpose()))
        };
        let (x, added, logits) = (rows(hidden)?, rows(hidden)?, rows(config.vocab_size)?);
        let Shared { backend, head: target_head, .. } = shared;
        Ok((Network { backend, config: config.clone(), heads, target_head, x, added, logits }, own > 0))
    }
}

impl<B: Backend> Heads for Network<B> {
    fn residual(&mut self, head: usize, hidden: &[f32], out: &mut [f32]) -> Result<(), DeviceError> {
        let Network { backend, config, x, added, .. } = self;
        let width = config.hidden_size;
        let rows = hidden.len() / width;
        backend.write(hidden, x)?;
        for Residual { matrix, bias } in &self.heads[head].layers {
            backend.linear(x, rows, matrix, Some(bias), Out::Gated(Activation::Silu, added));
            backend.add_scaled(added, 1.0, x, Extent { rows, width });
        }
        backend.read(x, 0..rows, width, out)
    }

    fn logits(&mut self, head: usize, rows: &[f32]) -> Result<(), DeviceError> {
        let Network { backend, config, x, logits, .. } = self;
        let count = rows.len() / config.hidden_size;
        backend.write(rows, x)?;
        match &self.heads[head].matrix {
            Some(matrix) => backend.linear(x, count, matrix, None, Out::Store(logits)),
            None => head_logits(&**backend, config, (&self.target_head, None), (x, count), logits),
        }
        backend.submit()
    }

    fn read_logits(&mut self, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.backend.read(&self.logits, row..row + 1, out.len(), out)
    }

    fn weight_bytes(&self) -> usize {
        let backend = &*self.backend;
        let mut counted: Vec<*const B::Matrix> = Vec::new();
        let mut bytes = 0;
        for head in &self.heads {
            let layer = |layer: &Residual<B>| backend.matrix_bytes(&layer.matrix) + backend.vector_bytes(&layer.bias);
            bytes += head.layers.iter().map(layer).sum::<usize>();
            if let Some(matrix) = head.matrix.as_ref().filter(|matrix| !counted.contains(&Arc::as_ptr(matrix))) {
                counted.push(Arc::as_ptr(matrix));
                bytes += backend.matrix_bytes(matrix);
            }
        }
        bytes
    }
}

/// A head's matrix over the target's tokens, or over `ids`: then the file has these alone, or all of them.
fn output_matrix<B: Backend>(
    reader: &mut Reader<'_, B>,
    name: &str,
    [vocab_size, hidden]: [usize; 2],
    ids: Option<&[u32]>,
) -> Result<B::Matrix, LoadError> {
    let found = reader.weights.shape(name).and_then(|shape| shape.first()).copied().unwrap_or_default();
    match ids {
        Some(ids) if found == ids.len() => reader.columns(&[(name.to_string(), found)], hidden, Columns::ALL),
        Some(ids) => {
            let rows = reader.rows(name, [vocab_size, hidden])?;
            let shape = MatrixShape { out_features: ids.len(), in_features: hidden };
            reader.pack(name, shape, |row, out| rows.read(ids[row] as usize, out))
        }
        None => reader.matrix(name, [vocab_size, hidden]),
    }
}

/// What the file calls everything, by head.
#[derive(Debug, Default)]
struct Layout {
    heads: Vec<HeadNames>,
    /// All heads use the first one's matrix.
    one_matrix: bool,
    token_map: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct HeadNames {
    layers: Vec<LayerNames>,
    matrix: Option<String>,
}

#[derive(Clone, Debug)]
struct LayerNames {
    weight: String,
    bias: Option<String>,
}

/// What a tensor is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Weight {
        head: usize,
        layer: usize,
    },
    Bias {
        head: usize,
        layer: usize,
    },
    /// `layers`: behind how many layers the authors' layout has it.
    Matrix {
        head: usize,
        layers: Option<usize>,
    },
    OneMatrix,
    TokenMap,
}

impl Part {
    fn of(name: &str) -> Option<Part> {
        let name = name.strip_prefix("medusa_heads.").or_else(|| name.strip_prefix("medusa_head.")).unwrap_or(name);
        let head = |text: &str| text.parse().ok().filter(|&head| head < MOST_HEADS);
        let layer = |text: &str| text.parse().ok().filter(|&layer| layer < MOST_LAYERS);
        let parts: Vec<&str> = name.split('.').collect();
        Some(match parts.as_slice() {
            ["token_map"] => Part::TokenMap,
            ["lm_head", "weight"] => Part::OneMatrix,
            ["lm_heads", h, "weight"] => Part::Matrix { head: head(h)?, layers: None },
            ["blocks", h, "layers", l, "weight"] | [h, l, "linear", "weight"] => {
                Part::Weight { head: head(h)?, layer: layer(l)? }
            }
            ["blocks", h, "layers", l, "bias"] | [h, l, "linear", "bias"] => {
                Part::Bias { head: head(h)?, layer: layer(l)? }
            }
            [h, n, "weight"] => Part::Matrix { head: head(h)?, layers: Some(layer(n)?) },
            _ => return None,
        })
    }
}

impl Layout {
    /// What is not known by its name is found unread in the end.
    fn of(weights: &Weights, one_matrix: bool) -> Result<Layout, LoadError> {
        let error = |tensor: &str, problem: &str| {
            LoadError::field(weights.listing(), format!("tensor {tensor:?}"), problem.to_string())
        };
        let mut parts: BTreeMap<Part, &str> = BTreeMap::new();
        for name in weights.names() {
            let Some(part) = Part::of(name) else { continue };
            if let Some(first) = parts.insert(part, name) {
                let (first, second) = if *first < *name { (first, name) } else { (name, first) };
                return Err(error(second, &format!("the same as {first:?}")));
            }
        }
        // Names of what is missing are those of the layout that the rest has.
        let is_vllm = weights.names().any(|name| name.contains("blocks."));
        let weight_name = |head: usize, layer: usize| match is_vllm {
            true => format!("blocks.{head}.layers.{layer}.weight"),
            false => format!("{head}.{layer}.linear.weight"),
        };
        let mut heads: Vec<HeadNames> = Vec::new();
        let name = |part: Part| parts.get(&part).map(|name| name.to_string());
        let count = parts.keys().filter_map(|part| match *part {
            Part::Weight { head, .. } | Part::Bias { head, .. } => Some(head + 1),
            Part::Matrix { head, .. } if !one_matrix => Some(head + 1),
            _ => None,
        });
        for head in 0..count.max().unwrap_or(0) {
            let layers = parts.keys().filter_map(|part| match *part {
                Part::Weight { head: of, layer } | Part::Bias { head: of, layer } if of == head => Some(layer + 1),
                _ => None,
            });
            let layers = layers.max().unwrap_or(0);
            if layers == 0 {
                return Err(error(&weight_name(head, 0), "missing, and there are heads behind it"));
            }
            let layer = |layer| match name(Part::Weight { head, layer }) {
                Some(weight) => Ok(LayerNames { weight, bias: name(Part::Bias { head, layer }) }),
                None => Err(error(&weight_name(head, layer), "missing, and the head has more layers")),
            };
            let layer_names = (0..layers).map(layer).collect::<Result<_, _>>()?;
            let behind = parts.iter().find(|(part, _)| {
                matches!(part, Part::Matrix { head: of, layers: Some(behind) } if *of == head && *behind != layers)
            });
            if let Some((_, name)) = behind {
                return Err(error(name, &format!("no matrix stands there: the head has {layers} residual layers")));
            }
            let matrix = match one_matrix {
                true => name(Part::OneMatrix).or_else(|| name(Part::Matrix { head: 0, layers: None })),
                false => name(Part::Matrix { head, layers: None })
                    .or_else(|| name(Part::Matrix { head, layers: Some(layers) })),
            };
            heads.push(HeadNames { layers: layer_names, matrix });
        }
        match heads.is_empty() {
            true => {
                let problem = "no Medusa heads: neither 0.0.linear.weight nor blocks.0.layers.0.weight is there";
                Err(LoadError::field(weights.listing(), "tensors", problem))
            }
            false => Ok(Layout { heads, one_matrix, token_map: name(Part::TokenMap) }),
        }
    }

    /// A name for the matrix of a head, for messages.
    fn matrix_name(&self, head: usize) -> String {
        match self.heads[head].layers[0].weight.contains("blocks.") {
            true => format!("lm_heads.{head}.weight"),
            false => format!("{head}.{}.weight", self.heads[head].layers.len()),
        }
    }

    /// Which tokens the heads know, where they do not know all.
    fn token_map<B: Backend>(
        &self,
        reader: &mut Reader<'_, B>,
        vocab_size: usize,
    ) -> Result<Option<Vec<u32>>, LoadError> {
        let Some(name) = &self.token_map else { return Ok(None) };
        let len = reader.weights.shape(name).and_then(|shape| shape.first()).copied().unwrap_or_default();
        if len == 0 || len > vocab_size {
            return Err(reader.error(name, format!("{len} tokens, and the target has {vocab_size}")));
        }
        reader.read.insert(name.clone());
        let ids = reader.weights.integers(name, len)?;
        checked_ids(ids.into_iter(), vocab_size, |problem| reader.error(name, problem)).map(Some)
    }
}

impl LayerNames {
    fn load<B: Backend>(&self, reader: &mut Reader<'_, B>, hidden: usize) -> Result<Residual<B>, LoadError> {
        let rows = reader.rows(&self.weight, [hidden, hidden])?;
        let bias = match &self.bias {
            Some(bias) => reader.vector(bias, hidden)?,
            None => vec![0.0; hidden],
        };
        let shape = MatrixShape { out_features: 2 * hidden, in_features: hidden };
        let matrix = reader.pack(&self.weight, shape, |row, out| match gate_up_row(row, hidden) {
            gate if gate < hidden => rows.read(gate, out),
            _ => {
                out.fill(0.0);
                Ok(())
            }
        })?;
        let bias: Vec<f32> = (0..2 * hidden)
            .map(|row| gate_up_row(row, hidden))
            .map(|row| bias.get(row).copied().unwrap_or(1.0))
            .collect();
        Ok(Residual { matrix, bias: reader.place(&bias, &self.weight)? })
    }
}
