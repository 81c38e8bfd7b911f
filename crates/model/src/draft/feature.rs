//! A layer behind the target: EAGLE-3 and next-token layers (MTP), one network, distinguished by its configuration.
//!
//! ```text
//!   target's rows ──[norm] fc──┐                                       EAGLE-3
//!   its own rows of before ────┴─> feature f ──norm──┐
//!   embedding e of the next token ──────────────norm─┤
//!                      qkv = e We + f Wf    x = f ───┴─> layers ─> x ─> norm, head, ids ──> logits
//!                      x   = e We + f Wf                        (MTP)   └─> its own rows for the pass after
//! ```
//! A row at position `p` has the feature of the target's row at `p` and the token at `p + 1`, and drafts the one at
//! `p + 2`. Keys and values are in a separate cache with the number and size of the target's blocks: block ids and
//! tables are the target's. A matrix over `[e, f]` is two: their products add up.

use super::eagle::{Kind, Plan};
use super::{Columns, Needs, Reader, Target, bytes_of, checked_ids, config_of, scatter};
use crate::batch::Batch;
use crate::config::ModelConfig;
use crate::forward::{Forward, Limits, Runner, Shared, rope_tables};
use crate::kv::Caches;
use crate::mixers::Memory;
use crate::tensors::{Tensors, Vector};
use crate::transformer::{
    FirstLayerInput, Linear, Loader, Pass, Scratch, Stack, copy, head_logits, in_step, out_of_memory,
};
use checkpoint::weights::{RowOrder, Weights};
use checkpoint::{Checkpoint, LoadError};
use kernels::{Backend, DeviceError, Extent, HostBuffer, MatrixShape, Out, StateShape, WeightClass};
use std::ops::Range;
use std::sync::Arc;

/// What a pass follows.
#[derive(Clone, Copy, Debug)]
pub enum Features<'a> {
    /// The target's rows: `[rows, taps, the target's hidden_size]`, as [`Forward::read_tapped`] gives them.
    Tapped(&'a [f32]),
    /// Its own rows: `[rows, hidden_size]`, as [`Feature::read_hidden`] gives them.
    Own(&'a [f32]),
}

/// A drafter that follows the target's features, or its own.
pub struct Feature {
    network: Box<dyn Passes>,
    /// After how many of the target's layers it looks.
    taps: Vec<usize>,
    /// Of its own rows, and of a row of all taps.
    widths: (usize, usize),
    limits: Limits,
    /// Which tokens its logits are of, where they are not of all.
    ids: Option<Vec<u32>>,
    /// A row of logits over `ids`.
    narrow: Vec<f32>,
    num_wanted: usize,
}

impl Feature {
    /// Reads a drafter for `target`; `files` may be the target's own, which have its next-token layer. `target_name`:
    /// what people call it, such as `Qwen/Qwen2.5-0.5B-Instruct`; a drafter that was trained for another name is
    /// refused. Takes memory for batches as large as the target's.
    pub fn load<B: Backend>(
        files: &Checkpoint,
        target: &Runner<B>,
        target_name: Option<&str>,
    ) -> Result<Feature, LoadError> {
        let weights = Weights::open(files)?;
        let about = Target { config: target.config(), name: target_name };
        let plan = Plan::of(&config_of(files)?, &weights, &about)?;
        let (network, ids) = Network::load(&plan, &weights, target)?;
        let (hidden, targets) = (plan.config.hidden_size, target.config().hidden_size);
        Ok(Feature {
            network: Box::new(network),
            widths: (hidden, plan.taps.len() * targets),
            limits: target.limits(),
            narrow: vec![0.0; ids.as_ref().map_or(0, Vec::len)],
            ids,
            taps: plan.taps,
            num_wanted: 0,
        })
    }

    /// What it takes, if it fits a target. Reads no weight.
    pub fn needs(files: &Checkpoint, target: &ModelConfig, target_name: Option<&str>) -> Result<Needs, LoadError> {
        let weights = Weights::open(files)?;
        let about = Target { config: target, name: target_name };
        let plan = Plan::of(&config_of(files)?, &weights, &about)?;
        let is_read = |name: &str| !matches!(plan.kind, Kind::Mtp(_)) || name.starts_with(&plan.prefix);
        Ok(Needs { weight_bytes: bytes_of(&weights, is_read), layers: Some(plan.config) })
    }

    /// What the target has to keep for it: see [`Forward::tap`].
    pub fn taps(&self) -> &[usize] {
        &self.taps
    }

    /// Width of its own rows.
    pub fn hidden_size(&self) -> usize {
        self.widths.0
    }

    /// A pass: keys and values of every row go to its cache, the logits and rows of `batch.logit_rows` are kept until
    /// the next. Positions, slots and blocks are those of the target's rows that `features` are of, token ids those of
    /// the tokens that came after. At most the logit rows that the target holds at a time.
    ///
    /// Panics when the batch breaks the limits of the target, or features are not as wide as they should be.
    pub fn forward(&mut self, batch: &Batch, features: Features<'_>) -> Result<(), DeviceError> {
        self.limits.check(batch);
        let (rows, wanted) = (batch.num_rows(), batch.logit_rows.len());
        assert!(wanted <= self.limits.max_logit_rows, "{wanted} logit rows, at most {}", self.limits.max_logit_rows);
        let (len, width) = match features {
            Features::Tapped(features) => (features.len(), self.widths.1),
            Features::Own(features) => (features.len(), self.widths.0),
        };
        assert_eq!(len, rows * width, "features of {rows} rows are {width} wide");
        self.num_wanted = 0;
        self.network.forward(batch, features)?;
        self.num_wanted = wanted;
        Ok(())
    }

    /// Logits of a row of the last pass, by its index among the batch's `logit_rows`, over the target's vocabulary:
    /// `out` is `[vocab_size]`.
    pub fn read_logits(&mut self, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        assert!(row < self.num_wanted, "row {row} of the last batch's {} with logits", self.num_wanted);
        assert_eq!(out.len(), self.limits.vocab_size, "a row of logits is [vocab_size]");
        match &self.ids {
            None => self.network.read_logits(row, out),
            Some(ids) => {
                self.network.read_logits(row, &mut self.narrow)?;
                scatter(&self.narrow, ids, out);
                Ok(())
            }
        }
    }

    /// Its own rows of the last pass, by their index among the batch's `logit_rows`: `out` is `[rows, hidden_size]`.
    /// What the next pass of these sequences follows.
    pub fn read_hidden(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        assert!(rows.end <= self.num_wanted, "rows {rows:?} of the last batch's {} with logits", self.num_wanted);
        assert_eq!(out.len(), rows.len() * self.widths.0, "rows are [rows, hidden_size]");
        self.network.read_hidden(rows, out)
    }

    /// See [`Forward::copy_blocks`].
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.network.copy_blocks(copies);
    }

    /// See [`Forward::block_bytes`].
    pub fn block_bytes(&self) -> usize {
        self.network.block_bytes()
    }

    /// See [`Forward::save_block`]. The memory is of the target.
    pub fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        self.network.save_block(block, to);
    }

    /// See [`Forward::load_block`].
    pub fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        self.network.load_block(from, block);
    }

    /// Bytes of weights that a pass reads, what it shares with the target not counted.
    pub fn weight_bytes(&self) -> usize {
        self.network.weight_bytes()
    }
}

/// What a backend does for [`Feature`].
trait Passes: Send {
    fn forward(&mut self, batch: &Batch, features: Features<'_>) -> Result<(), DeviceError>;
    fn read_logits(&mut self, row: usize, out: &mut [f32]) -> Result<(), DeviceError>;
    fn read_hidden(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError>;
    fn copy_blocks(&mut self, copies: &[(u32, u32)]);
    fn block_bytes(&self) -> usize;
    fn save_block(&self, block: u32, to: &mut dyn HostBuffer);
    fn load_block(&mut self, from: &dyn HostBuffer, block: u32);
    fn weight_bytes(&self) -> usize;
}

struct Network<B: Backend> {
    backend: Arc<B>,
    config: ModelConfig,
    /// The target's, where its head makes the logits.
    target_config: ModelConfig,
    /// `[vocab_size, hidden_size]`.
    embed: Arc<B::Matrix>,
    fuse: Option<Fuse<B>>,
    /// The target's, where tapped rows are read behind it.
    final_norm: Option<B::Vector>,
    embedding_norm: B::Vector,
    feature_norm: B::Vector,
    joint: Joint<B>,
    stack: Stack<B>,
    norm: B::Vector,
    /// Its own rows go on as the head reads them.
    norm_output: bool,
    head: Head<B>,
    kv: Caches<B>,
    /// Of no slot: its layers have none.
    states: B::States,
    scratch: Scratch<B>,
    rows: Rows<B>,
}

/// From the target's tapped rows to a feature.
struct Fuse<B: Backend> {
    norm: Option<FuseNorm<B>>,
    /// `[hidden_size, taps * the target's hidden_size]`.
    fc: B::Matrix,
}

/// The norm of tapped rows.
enum FuseNorm<B: Backend> {
    /// Of all together.
    Whole(B::Vector),
    /// Of each of a number of taps: by ones, since the factors are in `fc`.
    Each(usize, B::Vector),
}

/// Where embedding and feature meet. The embedding's half is in the first layer's q, k, v of `Attention`.
enum Joint<B: Backend> {
    Attention { feature: B::Matrix, norm_before_residual: bool },
    Stream { embedding: B::Matrix, feature: B::Matrix },
}

enum Head<B: Backend> {
    Own(B::Matrix),
    Target(Arc<B::Matrix>),
}

/// Rows of a pass beside those of every transformer.
struct Rows<B: Backend> {
    /// Features as they come, `[max_rows, the widest]`, and normed.
    given: B::Rows,
    given_normed: B::Rows,
    /// `[max_rows, hidden_size]`, each.
    feature: B::Rows,
    feature_normed: B::Rows,
    embedding: B::Rows,
    embedding_normed: B::Rows,
    /// `[max_logit_rows, hidden_size]`: wanted rows as the head reads them.
    output: B::Rows,
    /// `[max_logit_rows, tokens]`.
    logits: B::Rows,
}

impl<B: Backend> Network<B> {
    /// And which tokens its logits are of, where they are not of all.
    fn load(plan: &Plan, weights: &Weights, target: &Runner<B>) -> Result<(Network<B>, Option<Vec<u32>>), LoadError> {
        let Plan { kind, config, .. } = plan;
        let shared = target.shared();
        let (backend, limits, target_config) = (shared.backend.clone(), target.limits(), target.config().clone());
        let (hidden, targets) = (config.hidden_size, target_config.hidden_size);
        let mut reader = Reader::new(&*backend, weights);

        // What is wrong with a layer is said before anything is packed.
        let tensors = Tensors::of(&target_config, weights).of_drafter(config, weights, &plan.layers[0]);
        let mut layers = Vec::new();
        for (index, prefix) in plan.layers.iter().enumerate() {
            let mut layer = tensors.layer_named(index, prefix);
            let is_wide = index == 0 && matches!(kind, Kind::Eagle3);
            if is_wide {
                layer.attention_norms.before = None;
            }
            layer.each(&mut |name, shape, _| {
                let shape = if is_wide && is_qkv_matrix(name) { &[shape[0], 2 * hidden] } else { shape };
                reader.read.insert(name.to_string());
                weights.tensor(name, shape).map(drop)
            })?;
            layers.push(layer);
        }

        let ropes = rope_tables(&*backend, config, limits.max_model_len)?;
        let mut nothing = |_| {};
        let mut loader = Loader {
            backend: &*backend,
            config,
            weights,
            class: WeightClass::Bf16,
            as_stored: false,
            names: Vec::new(),
            progress: &mut nothing,
            expert_reader: None,
        };
        let mut joint = match kind {
            Kind::Eagle3 => None,
            Kind::Mtp(names) => {
                let parts = [(plan.name(names.join), hidden)];
                let mut half = |index| reader.columns(&parts, 2 * hidden, Columns { index, count: 2 });
                let (first, second) = (half(0)?, half(1)?);
                let (feature, embedding) = if names.feature_first { (first, second) } else { (second, first) };
                Some(Joint::Stream { feature, embedding })
            }
        };
        let mut stack = Stack { layers: Vec::new(), ropes };
        for (index, layer) in layers.into_iter().enumerate() {
            let rotary_dim = config.layers[index].rope.map_or(0, |rope| stack.ropes[rope].rotary_dim());
            let heads = config.layers[index].heads;
            let layer = match &joint {
                Some(_) => loader.layer(layer, (heads, rotary_dim))?,
                None => {
                    let qkv = &layer.mixings[0].qkv;
                    let (parts, width) = plan.wide_projection(qkv);
                    let mut half = |index| reader.columns(&parts, width, Columns { index, count: 2 });
                    let (embedding, feature) = (half(0)?, half(1)?);
                    joint = Some(Joint::Attention { feature, norm_before_residual: plan.norm_before_residual });
                    let bias = loader.bias(qkv, RowOrder::AsStored)?;
                    loader.layer_around(vec![Linear { matrix: embedding, bias }], layer, (heads, rotary_dim))?
                }
            };
            stack.layers.push(layer);
        }
        let joint = joint.expect("there is a first layer");

        let first = &plan.layers[0];
        let [embedding_norm, feature_norm, norm] = match kind {
            Kind::Eagle3 => [
                format!("{first}input_layernorm.weight"),
                format!("{first}hidden_norm.weight"),
                plan.name("norm.weight"),
            ],
            Kind::Mtp(names) => names.norms.map(|name| plan.name(name)),
        };
        let mut norm_of = |name: String| {
            reader.read.insert(name.clone());
            loader.norm(&Vector { name, len: hidden })
        };
        let (embedding_norm, feature_norm, norm) = (norm_of(embedding_norm)?, norm_of(feature_norm)?, norm_of(norm)?);
        let fuse = match kind {
            Kind::Eagle3 => Some(Fuse::load(plan, &mut reader, targets)?),
            Kind::Mtp(_) => None,
        };
        let final_norm = Tensors::of(&target_config, weights).final_norm().weight;
        let final_norm = final_norm.filter(|_| plan.behind_final_norm);
        let final_norm = final_norm.map(|norm| loader.norm(&norm)).transpose()?;

        let is_mtp = matches!(kind, Kind::Mtp(_));
        let Shared { embed, head, .. } = shared;
        let own_embedding = plan.name("embed_tokens.weight");
        let embed = match !is_mtp && weights.has(&own_embedding) {
            true => Arc::new(reader.matrix(&own_embedding, [target_config.vocab_size, hidden])?),
            false if hidden == targets => embed,
            false => {
                let problem = format!("missing, and the target's is {targets} wide, not {hidden}");
                return Err(reader.error(&own_embedding, problem));
            }
        };
        let ids = token_ids(&mut reader, target_config.vocab_size)?;
        let tokens = ids.as_ref().map_or(target_config.vocab_size, Vec::len);
        let head = match !is_mtp && weights.has("lm_head.weight") {
            true => Head::Own(reader.matrix("lm_head.weight", [tokens, hidden])?),
            false if hidden == targets && ids.is_none() => Head::Target(head),
            false => {
                let problem = "missing, and the target's does not fit: it is over other tokens or of another width";
                return Err(reader.error("lm_head.weight", problem.to_string()));
            }
        };
        // The files of a next-token layer are the target's, which has checked them.
        reader.finish(|name| is_mtp && !name.starts_with(&plan.prefix) || is_extra(name))?;

        let (of_target, kv_dtype) = (target.cache_shape(), target.cache_shape().groups[0].dtype);
        let kv = Caches::new(&*backend, &config.cache_shape(kv_dtype, of_target.blocks(), of_target.block_size()));
        let kv = kv.map_err(|oom| out_of_memory(oom, "the drafter's KV cache".to_string()))?;
        let states = backend.states(StateShape::default());
        let states = states.map_err(|oom| out_of_memory(oom, "no states".to_string()))?;
        let scratch = Scratch::new(&*backend, config, limits.max_rows)?;
        let given = (plan.taps.len() * targets).max(hidden);
        let is_normed = final_norm.is_some() || fuse.as_ref().is_some_and(|fuse| fuse.norm.is_some());
        let given_normed = if is_normed { given } else { 0 };
        let rows = Rows::new(&*backend, limits, hidden, [given, given_normed, tokens])?;
        let network = Network {
            config: config.clone(),
            target_config,
            embed,
            fuse,
            final_norm,
            embedding_norm,
            feature_norm,
            joint,
            stack,
            norm,
            norm_output: plan.norm_output,
            head,
            kv,
            states,
            scratch,
            rows,
            backend,
        };
        Ok((network, ids))
    }
}

/// Whether a tensor of a layer is one that reads embedding and feature.
fn is_qkv_matrix(name: &str) -> bool {
    ["q_proj.weight", "k_proj.weight", "v_proj.weight"].iter().any(|end| name.ends_with(end))
}

/// Tensors of such files that are not needed: the map from the target's tokens, the target's own that trainers keep beside
/// them, frequencies of rotations.
fn is_extra(name: &str) -> bool {
    let known = ["t2d", "verifier_norm.weight", "verifier_lm_head.weight"];
    // Copies of the target's beside a next-token layer.
    let copied = [".shared_head.head.weight", ".embed_tokens.weight"].iter().any(|end| name.ends_with(end));
    copied || known.contains(&name) || name.ends_with("rotary_emb.inv_freq")
}

/// The target's id of each token that is drafted: `id + d2t[id]`.
fn token_ids<B: Backend>(reader: &mut Reader<'_, B>, vocab_size: usize) -> Result<Option<Vec<u32>>, LoadError> {
    const NAME: &str = "d2t";
    let Some(shape) = reader.weights.shape(NAME) else { return Ok(None) };
    let len = shape.first().copied().unwrap_or_default();
    if len == 0 || len > vocab_size {
        return Err(reader.error(NAME, format!("{len} tokens, and the target has {vocab_size}")));
    }
    reader.read.insert(NAME.to_string());
    let distances = reader.weights.integers(NAME, len)?;
    let ids = distances.into_iter().zip(0..).map(|(distance, id)| distance.saturating_add(id));
    checked_ids(ids, vocab_size, |problem| reader.error(NAME, problem)).map(Some)
}

impl<B: Backend> Fuse<B> {
    fn load(plan: &Plan, reader: &mut Reader<'_, B>, targets: usize) -> Result<Fuse<B>, LoadError> {
        let (taps, hidden) = (plan.taps.len(), plan.config.hidden_size);
        let width = taps * targets;
        let mut factors = None;
        let norm = if plan.norm_before_fc {
            Some(FuseNorm::Whole(reader.placed(&plan.name("input_norm.weight"), width)?))
        } else if plan.fc_norm {
            let each = (0..taps).map(|tap| reader.vector(&plan.name(&format!("fc_norm.{tap}.weight")), targets));
            factors = Some(each.collect::<Result<Vec<_>, _>>()?.concat());
            Some(FuseNorm::Each(taps, reader.place(&vec![1.0; targets], &plan.name("fc_norm"))?))
        } else {
            None
        };
        let name = plan.name("fc.weight");
        let rows = reader.rows(&name, [hidden, width])?;
        let fc = reader.pack(&name, MatrixShape { out_features: hidden, in_features: width }, |row, out| {
            rows.read(row, out)?;
            if let Some(factors) = &factors {
                out.iter_mut().zip(factors).for_each(|(weight, factor)| *weight *= factor);
            }
            Ok(())
        })?;
        Ok(Fuse { norm, fc })
    }
}

impl<B: Backend> Rows<B> {
    fn new(
        backend: &B,
        limits: Limits,
        hidden: usize,
        [given, given_normed, tokens]: [usize; 3],
    ) -> Result<Rows<B>, LoadError> {
        let rows = |rows: usize, width: usize| {
            backend.rows(rows, width).map_err(|oom| out_of_memory(oom, format!("{rows} rows of a drafter")))
        };
        let (all, wanted) = (limits.max_rows, limits.max_logit_rows);
        Ok(Rows {
            given: rows(all, given)?,
            given_normed: rows(all, given_normed)?,
            feature: rows(all, hidden)?,
            feature_normed: rows(all, hidden)?,
            embedding: rows(all, hidden)?,
            embedding_normed: rows(all, hidden)?,
            output: rows(wanted, hidden)?,
            logits: rows(wanted, tokens)?,
        })
    }
}

impl<B: Backend> Passes for Network<B> {
    fn forward(&mut self, batch: &Batch, features: Features<'_>) -> Result<(), DeviceError> {
        let Network { backend, config, kv, states, scratch, rows: own, .. } = self;
        let backend = &**backend;
        let (count, eps) = (batch.num_rows(), config.rms_norm_eps);
        let extent = Extent { rows: count, width: config.hidden_size };
        let pass = Pass { backend, config, adapters: &[] };
        // The feature, and its norm.
        let (numbers, is_tapped) = match features {
            Features::Tapped(numbers) => (numbers, true),
            Features::Own(numbers) => (numbers, false),
        };
        backend.write(numbers, &mut own.given)?;
        in_step(backend, batch, scratch, |steps, scratch| {
            let step = &steps.all;
            let Rows { given, given_normed, feature, feature_normed, embedding, embedding_normed, .. } = own;
            let feature = match (&self.fuse, &self.final_norm) {
                (None, Some(weight)) if is_tapped => {
                    backend.rms_norm(given, 0..count, weight, eps, given_normed);
                    &*given_normed
                }
                (None, _) => &*given,
                (Some(_), _) if !is_tapped => &*given,
                (Some(fuse), _) => {
                    let input = match &fuse.norm {
                        None => &*given,
                        Some(FuseNorm::Whole(weight)) => {
                            backend.rms_norm(given, 0..count, weight, eps, given_normed);
                            &*given_normed
                        }
                        Some(FuseNorm::Each(taps, ones)) => {
                            backend.rms_norm(given, 0..count * taps, ones, eps, given_normed);
                            &*given_normed
                        }
                    };
                    backend.linear(input, count, &fuse.fc, None, Out::Store(feature));
                    &*feature
                }
            };
            backend.rms_norm(feature, 0..count, &self.feature_norm, eps, feature_normed);
            // The embedding, and its norm.
            backend.embed(step, &self.embed, embedding);
            backend.rms_norm(embedding, 0..count, &self.embedding_norm, eps, embedding_normed);
            // Both.
            let entry = match &self.joint {
                Joint::Attention { feature: matrix, norm_before_residual } => {
                    let residual = if *norm_before_residual { &*feature_normed } else { feature };
                    copy(backend, residual, &mut scratch.x, extent);
                    let product = &self.stack.layers[0].mixings[0].qkv;
                    product.apply(backend, embedding_normed, count, Out::Store(&mut scratch.qkv));
                    backend.linear(feature_normed, count, matrix, None, Out::Add(&mut scratch.qkv));
                    FirstLayerInput::Projected
                }
                Joint::Stream { embedding: matrix, feature: feature_matrix } => {
                    backend.linear(embedding_normed, count, matrix, None, Out::Store(&mut scratch.x));
                    backend.linear(feature_normed, count, feature_matrix, None, Out::Add(&mut scratch.x));
                    FirstLayerInput::Stream
                }
            };
            self.stack.run(&pass, (steps, batch), entry, scratch, Memory { kv: kv.groups(), states }, &mut []);
        });
        let wanted = batch.logit_rows.len();
        if wanted > 0 {
            let Rows { output, logits, .. } = own;
            backend.rms_norm(&scratch.wanted_x, 0..wanted, &self.norm, eps, output);
            match &self.head {
                Head::Own(matrix) => backend.linear(output, wanted, matrix, None, Out::Store(logits)),
                Head::Target(matrix) => {
                    head_logits(backend, &self.target_config, (matrix, None), (output, wanted), logits)
                }
            }
        }
        backend.submit()
    }

    fn read_logits(&mut self, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.backend.read(&self.rows.logits, row..row + 1, out.len(), out)
    }

    fn read_hidden(&mut self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        let from = if self.norm_output { &self.rows.output } else { &self.scratch.wanted_x };
        self.backend.read(from, rows, self.config.hidden_size, out)
    }

    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.kv.copy_blocks(&self.backend, copies);
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes(&self.backend)
    }

    fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        self.kv.save_block(&self.backend, block, to);
    }

    fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        self.kv.load_block(&self.backend, from, block);
    }

    fn weight_bytes(&self) -> usize {
        let backend = &*self.backend;
        let fuse = self.fuse.as_ref().map_or(0, |fuse| backend.matrix_bytes(&fuse.fc));
        let joint = match &self.joint {
            Joint::Attention { feature, .. } => backend.matrix_bytes(feature),
            Joint::Stream { embedding, feature } => backend.matrix_bytes(embedding) + backend.matrix_bytes(feature),
        };
        let head = match &self.head {
            Head::Own(matrix) => backend.matrix_bytes(matrix),
            Head::Target(_) => 0,
        };
        fuse + joint + self.stack.bytes(backend) + head
    }
}
