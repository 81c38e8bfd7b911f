//! The pass of an encoder: texts in, a vector of each out. No cache, no token by token.
//!
//! ```text
//! BERT        x = norm(word + position + type)
//!             per layer: x = norm(x + attend(x)), x = norm(x + W2 act(W1 x))
//! ModernBERT  x = norm(word)
//!             per layer: x = x + attend(norm x), x = x + Wo (act(a) * g); a norm at the end
//! EmbeddingGemma: the layers of its decoder (transformer.rs)
//! vector      rows of a text ─ pooling ─> one row ─ dense .. or a classifier ─> vector
//! ```
//! A text is the rows of one span, all of them in one pass: each row sees every row of its span (Devlin et al., 2018),
//! or those less than a window away. Keys and values of one layer at a time lie in a cache of one layer, in the blocks
//! of the span's table, and a text's bits depend on its tokens alone.
//!
//! Pooling happens on the host, in plain loops and in the order of the rows: it is a thousandth of a pass.

use crate::batch::Batch;
use crate::config::{
    CacheShape, Classifier, ClassifierForm, EncoderConfig, Family, ModelConfig, NormPlacement, Pooling,
};
use crate::forward::{
    Forward, LoadOptions, Logits, Progress, Ticket, cache_shape, max_model_len, rope_tables, unless_lost,
};
use crate::kv::Caches;
use crate::mixers::Memory;
use crate::tensors::{self, Linear as LinearTensors, Vector, unread_error, visit};
use crate::transformer::{self, Linear, Loader, Tap, Transformer, no_rows, out_of_memory};
use checkpoint::weights::{RowOrder, Weights};
use checkpoint::{Checkpoint, LoadError, Source};
use kernels::limits::MeasureError;
use kernels::threads::LostCpuTime;
use kernels::{
    AttentionLayer, AttentionSpan, Backend, DefaultFloats, DeviceError, DeviceInfo, DeviceLimits, Extent, HeadNorms,
    HostBuffer, Norm, Out, RopeTable, Rotation, StateShape, StepArrays, WeightClass,
};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// An encoder on a backend. [`read_hidden`](Forward::read_hidden) gives the vectors of texts; there are no logits of
/// tokens.
pub struct Encoder<B: Backend> {
    backend: Arc<B>,
    config: ModelConfig,
    body: Body<B>,
    /// What comes behind pooling.
    tail: Vec<Step<B>>,
    kv: Caches<B>,
    cache_shape: CacheShape,
    scratch: Scratch<B>,
    /// `[max_rows, vector_width]`, of the last pass.
    vectors: Vec<f32>,
    pass: u64,
    num_vectors: usize,
    options: LoadOptions,
    max_model_len: usize,
    notices: Vec<String>,
}

/// From tokens to the last hidden rows.
enum Body<B: Backend> {
    Own(EncoderWeights<B>),
    Decoder(Box<DecoderBody<B>>),
}

/// A decoder, of which rows see later ones too.
struct DecoderBody<B: Backend> {
    transformer: Transformer<B>,
    scratch: transformer::Scratch<B>,
    /// Of no numbers.
    states: B::States,
    /// The rows behind the last layer.
    last: [Tap<B>; 1],
}

/// Weights of an encoder in a backend's layout.
struct EncoderWeights<B: Backend> {
    /// `[vocab_size, hidden_size]`.
    words: B::Matrix,
    /// `[positions, hidden_size]`.
    positions: Option<B::Matrix>,
    /// `[token_types, hidden_size]`.
    types: Option<B::Matrix>,
    embedding_norm: NormWeights<B>,
    layers: Vec<Layer<B>>,
    ropes: Vec<RopeTable<B::Vector>>,
    final_norm: Option<NormWeights<B>>,
}

/// A product behind pooling, what follows it, and its norm if it has one.
type Step<B> = (Linear<B>, After, Option<NormWeights<B>>);

/// What follows a product behind pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    Tanh,
    /// The configuration's activation.
    Activation,
}

struct NormWeights<B: Backend> {
    weight: B::Vector,
    bias: Option<B::Vector>,
}

impl<B: Backend> NormWeights<B> {
    fn with_eps(&self, eps: f32) -> Norm<'_, B::Vector> {
        Norm { weight: &self.weight, bias: self.bias.as_ref(), eps }
    }

    fn bytes(&self, backend: &B) -> usize {
        backend.vector_bytes(&self.weight) + self.bias.as_ref().map_or(0, |bias| backend.vector_bytes(bias))
    }
}

struct Layer<B: Backend> {
    /// Of a block's result (BERT), or of its input (ModernBERT, whose first layer has none).
    attention_norm: Option<NormWeights<B>>,
    qkv: Linear<B>,
    o: Linear<B>,
    mlp_norm: NormWeights<B>,
    up: Linear<B>,
    down: Linear<B>,
}

/// Activations of one pass, sized once for the largest.
struct Scratch<B: Backend> {
    /// `[max_rows, hidden_size]`.
    x: B::Rows,
    /// `[max_rows, hidden_size]`.
    normed: B::Rows,
    /// `[max_rows, qkv_width]`.
    qkv: B::Rows,
    /// `[max_rows, hidden_size]`.
    attended: B::Rows,
    /// `[max_rows, intermediate_size]`.
    activated: B::Rows,
    /// `[max_seqs, tail width]`, two of them: what comes behind pooling.
    tail: [B::Rows; 2],
    /// Rows of one text on the host, `[max_model_len, hidden_size]`.
    text: Vec<f32>,
    /// Rows of the tables of positions and of segments, `[max_rows]` each.
    ids: [Vec<u32>; 2],
    /// Pooled rows, then vectors.
    pooled: Vec<f32>,
}

/// Reads the checkpoint of an encoder into a backend: see [`load`](crate::load), whose options hold here but for those
/// of logits, adapters and images.
pub fn load_encoder<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Encoder<B>, LoadError> {
    let backend = Arc::new(backend);
    unless_lost(&*backend, load_on(backend.clone(), checkpoint, options, progress))
}

fn load_on<B: Backend>(
    backend: Arc<B>,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Encoder<B>, LoadError> {
    let _floats = DefaultFloats::enter();
    let config = ModelConfig::load(checkpoint)?;
    let Some(encoder) = &config.encoder else {
        let problem = format!("{} is no encoder", config.family);
        return Err(LoadError::Option { option: "model", problem });
    };
    let weights = Weights::open(checkpoint)?;
    let mut notices = Vec::new();
    if encoder.pooling_is_assumed {
        let why = "the checkpoint has no modules.json: a text's vector is the mean of its tokens, as in \
                   sentence-transformers";
        notices.push(why.to_string());
    }
    let cache_shape = cache_shape(&config, options)?;
    let max_model_len = max_model_len(&config, options.max_model_len, &cache_shape, &mut notices)?;
    if max_model_len > options.max_rows {
        let problem = format!("{} rows; an encoder reads a text of {max_model_len} tokens at once", options.max_rows);
        return Err(LoadError::Option { option: "max_rows", problem });
    }
    let tensors = Tensors::of(&config, encoder, &weights);
    let of_decoder = encoder.decoder_layers.then(|| tensors::Tensors::of(&config, &weights));
    let bytes_total = match &of_decoder {
        Some(tensors) => tensors.check(&weights)?,
        None => tensors.check(&weights)?,
    };
    let scratch = Scratch::new(&*backend, &config, options.max_rows, max_model_len)?;
    let ropes = rope_tables(&*backend, &config, max_model_len)?;
    let kv = Caches::new(&*backend, &cache_shape)
        .map_err(|oom| out_of_memory(oom, "keys and values of a pass".to_string()))?;
    let mut bytes_done = 0;
    progress(Progress { bytes_done, bytes_total });
    let mut report = |bytes| {
        bytes_done += bytes;
        progress(Progress { bytes_done, bytes_total });
    };
    let mut loader = Loader {
        backend: &*backend,
        config: &config,
        weights: &weights,
        class: options.weights,
        as_stored: options.as_stored,
        names: Vec::new(),
        progress: &mut report,
        expert_reader: None,
    };
    let body = match of_decoder {
        Some(tensors) => Body::Decoder(Box::new(DecoderBody::load(&mut loader, &tensors, ropes, options.max_rows)?)),
        None => Body::Own(tensors.load(&mut loader, ropes)?),
    };
    let tail = tensors.tail(&mut loader, checkpoint)?;
    if let Some(first) = weights.first_non_finite() {
        let count = weights.num_non_finite();
        notices.push(format!("{count} of the weights are NaN, or infinite in bf16; the first is in tensor {first:?}"));
    }
    Ok(Encoder {
        vectors: vec![0.0; options.max_rows * config.vector_width()],
        backend,
        body,
        tail,
        config,
        kv,
        cache_shape,
        scratch,
        pass: 0,
        num_vectors: 0,
        options: options.clone(),
        max_model_len,
        notices,
    })
}

/// What an encoder's checkpoint calls its tensors.
struct Tensors<'c> {
    config: &'c ModelConfig,
    encoder: &'c EncoderConfig,
    prefix: &'static str,
}

/// Names and shapes of a norm.
struct NormTensors {
    weight: Vector,
    bias: Option<Vector>,
}

impl NormTensors {
    fn vectors(&self) -> impl Iterator<Item = &Vector> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

struct LayerTensors {
    attention_norm: Option<NormTensors>,
    qkv: LinearTensors,
    o: LinearTensors,
    mlp_norm: NormTensors,
    up: LinearTensors,
    down: LinearTensors,
}

impl<'c> Tensors<'c> {
    fn of(config: &'c ModelConfig, encoder: &'c EncoderConfig, weights: &Weights) -> Tensors<'c> {
        let is_modern = config.family == Family::ModernBert;
        let word = if is_modern { "embeddings.tok_embeddings.weight" } else { "embeddings.word_embeddings.weight" };
        let prefixes = ["bert.", "roberta.", "model.", ""];
        let prefix = prefixes.into_iter().find(|prefix| weights.has(&format!("{prefix}{word}"))).unwrap_or("");
        Tensors { config, encoder, prefix }
    }

    fn name(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn table(&self, module: &str, rows: usize) -> LinearTensors {
        LinearTensors::whole(&[(self.name(module), rows)], self.config.hidden_size, false)
    }

    fn norm(&self, module: String, has_bias: bool) -> NormTensors {
        let vector = |what: &str| Vector { name: format!("{module}.{what}"), len: self.config.hidden_size };
        NormTensors { weight: vector("weight"), bias: has_bias.then(|| vector("bias")) }
    }

    /// Words, and what there is of positions and segments.
    fn tables(&self) -> [Option<LinearTensors>; 3] {
        let EncoderConfig { positions, token_types, .. } = self.encoder;
        let words = if self.config.family == Family::ModernBert {
            "embeddings.tok_embeddings"
        } else {
            "embeddings.word_embeddings"
        };
        [
            Some(self.table(words, self.config.vocab_size)),
            positions.map(|positions| self.table("embeddings.position_embeddings", positions.rows)),
            (*token_types > 0).then(|| self.table("embeddings.token_type_embeddings", *token_types)),
        ]
    }

    fn embedding_norm(&self) -> NormTensors {
        let module = match self.config.family {
            Family::ModernBert => "embeddings.norm",
            Family::NomicBert => "emb_ln",
            _ => "embeddings.LayerNorm",
        };
        self.norm(self.name(module), self.encoder.norm_bias)
    }

    fn final_norm(&self) -> Option<NormTensors> {
        (self.config.norms == NormPlacement::Before).then(|| self.norm(self.name("final_norm"), self.encoder.norm_bias))
    }

    fn layer(&self, index: usize) -> LayerTensors {
        let (config, bias) = (self.config, self.encoder.norm_bias);
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        if self.config.family == Family::NomicBert {
            let at = |rest: &str| self.name(&format!("encoder.layers.{index}.{rest}"));
            return LayerTensors {
                attention_norm: Some(self.norm(at("norm1"), bias)),
                qkv: LinearTensors::whole(&[(at("attn.Wqkv"), 3 * hidden)], hidden, config.qkv_bias),
                o: LinearTensors::whole(&[(at("attn.out_proj"), hidden)], hidden, config.o_bias),
                mlp_norm: self.norm(at("norm2"), bias),
                // The second is what the activation is of.
                up: LinearTensors::whole(&[(at("mlp.fc12"), width), (at("mlp.fc11"), width)], hidden, config.mlp_bias),
                down: LinearTensors::whole(&[(at("mlp.fc2"), hidden)], width, config.mlp_bias),
            };
        }
        if self.encoder.gated {
            let at = |rest: &str| self.name(&format!("layers.{index}.{rest}"));
            return LayerTensors {
                attention_norm: (index > 0).then(|| self.norm(at("attn_norm"), bias)),
                qkv: LinearTensors::whole(&[(at("attn.Wqkv"), 3 * hidden)], hidden, config.qkv_bias),
                o: LinearTensors::whole(&[(at("attn.Wo"), hidden)], hidden, config.o_bias),
                mlp_norm: self.norm(at("mlp_norm"), bias),
                up: LinearTensors::whole(&[(at("mlp.Wi"), 2 * width)], hidden, config.mlp_bias),
                down: LinearTensors::whole(&[(at("mlp.Wo"), hidden)], width, config.mlp_bias),
            };
        }
        let at = |rest: &str| self.name(&format!("encoder.layer.{index}.{rest}"));
        let qkv = ["query", "key", "value"].map(|part| (at(&format!("attention.self.{part}")), hidden));
        LayerTensors {
            attention_norm: Some(self.norm(at("attention.output.LayerNorm"), bias)),
            qkv: LinearTensors::whole(&qkv, hidden, config.qkv_bias),
            o: LinearTensors::whole(&[(at("attention.output.dense"), hidden)], hidden, config.o_bias),
            mlp_norm: self.norm(at("output.LayerNorm"), bias),
            up: LinearTensors::whole(&[(at("intermediate.dense"), width)], hidden, config.mlp_bias),
            down: LinearTensors::whole(&[(at("output.dense"), hidden)], width, config.mlp_bias),
        }
    }

    /// The classifier's products: the one before the last, with its norm, and the last.
    fn classifier(
        &self,
        classifier: &Classifier,
        weights: &Weights,
    ) -> (Option<LinearTensors>, Option<NormTensors>, LinearTensors) {
        let (hidden, labels) = (self.config.hidden_size, classifier.labels.len());
        let linear = |module: String, rows, has_bias| LinearTensors::whole(&[(module, rows)], hidden, has_bias);
        match classifier.form {
            ClassifierForm::Pooler => {
                let pooler = linear(self.name("pooler.dense"), hidden, true);
                (Some(pooler), None, linear("classifier".into(), labels, true))
            }
            ClassifierForm::Dense => {
                let dense = linear("classifier.dense".into(), hidden, true);
                (Some(dense), None, linear("classifier.out_proj".into(), labels, true))
            }
            ClassifierForm::Score => (None, None, linear("score".into(), labels, false)),
            ClassifierForm::Rows => (None, None, linear("cls.output".into(), 2, false)),
            ClassifierForm::Tokens(rows) => {
                (None, None, tensors::Tensors::of(self.config, weights).head_rows(weights, &rows))
            }
            ClassifierForm::Normed { has_bias } => {
                let dense = linear("head.dense".into(), hidden, has_bias);
                let norm = self.norm("head.norm".into(), self.encoder.norm_bias);
                (Some(dense), Some(norm), linear("classifier".into(), labels, true))
            }
        }
    }

    /// Compares the checkpoint with what its configuration asks for; returns the bytes in the files of all matrices.
    fn check(&self, weights: &Weights) -> Result<u64, LoadError> {
        let (mut bytes, mut read) = (0, HashSet::new());
        let mut check = |name: &str, shape: &[usize], in_matrix: bool| {
            let tensor = weights.tensor(name, shape)?;
            bytes += if in_matrix { tensor.num_bytes() } else { 0 };
            read.insert(name.to_string());
            Ok(())
        };
        let tables = self.tables();
        visit(&tables.iter().flatten().collect::<Vec<_>>(), &[], &mut check)?;
        let norms: Vec<NormTensors> = std::iter::once(self.embedding_norm()).chain(self.final_norm()).collect();
        visit(&[], &norms.iter().flat_map(NormTensors::vectors).collect::<Vec<_>>(), &mut check)?;
        for index in 0..self.config.num_layers {
            let LayerTensors { attention_norm, qkv, o, mlp_norm, up, down } = self.layer(index);
            let norms = attention_norm.iter().chain([&mlp_norm]).flat_map(NormTensors::vectors);
            visit(&[&qkv, &o, &up, &down], &norms.collect::<Vec<_>>(), &mut check)?;
        }
        if let Some(classifier) = &self.encoder.classifier {
            let (dense, norm, last) = self.classifier(classifier, weights);
            visit(
                &dense.iter().chain([&last]).collect::<Vec<_>>(),
                &norm.iter().flat_map(NormTensors::vectors).collect::<Vec<_>>(),
                &mut check,
            )?;
        }
        let unread: Vec<&str> =
            weights.names().filter(|name| !read.contains(*name) && !self.is_known_extra(name)).collect();
        match unread.is_empty() {
            true => Ok(bytes),
            false => {
                let why = "the configuration has no place for them";
                Err(unread_error(weights, "this encoder does not read", &unread, why))
            }
        }
    }

    /// Tensors that files of these families have and that no vector needs: language-model heads, BERT's pooler where no
    /// classifier reads it, and buffers of ids.
    fn is_known_extra(&self, name: &str) -> bool {
        let rest = name.strip_prefix(self.prefix).unwrap_or(name);
        let judges = self.encoder.classifier.is_some();
        let heads = ["cls.", "lm_head.", "decoder.", "head."];
        let is_head = !judges && heads.iter().any(|head| name.starts_with(head));
        let is_pooler = rest.starts_with("pooler.")
            && !matches!(&self.encoder.classifier, Some(classifier) if classifier.form == ClassifierForm::Pooler);
        is_head || is_pooler || ["embeddings.position_ids", "embeddings.token_type_ids"].contains(&rest)
    }

    fn load<B: Backend>(
        &self,
        loader: &mut Loader<'_, B>,
        ropes: Vec<RopeTable<B::Vector>>,
    ) -> Result<EncoderWeights<B>, LoadError> {
        let [words, positions, types] = self.tables();
        let class = roofline::embedding_class(loader.class);
        let words = loader.matrix(&words.expect("every encoder has words"), class)?;
        // Small tables, each row of which is in every text.
        let mut small =
            |table: Option<LinearTensors>| table.map(|table| loader.matrix(&table, WeightClass::Bf16)).transpose();
        let (positions, types) = (small(positions)?, small(types)?);
        let embedding_norm = norm(loader, &self.embedding_norm())?;
        let layers = (0..self.config.num_layers)
            .map(|index| {
                let LayerTensors { attention_norm, qkv, o, mlp_norm, up, down } = self.layer(index);
                let order = if self.encoder.gated { RowOrder::GateUp } else { RowOrder::AsStored };
                Ok(Layer {
                    attention_norm: attention_norm.map(|tensors| norm(loader, &tensors)).transpose()?,
                    qkv: loader.linear(&qkv)?,
                    o: loader.linear(&o)?,
                    mlp_norm: norm(loader, &mlp_norm)?,
                    up: loader.linear_in_order(&up, order)?,
                    down: loader.linear(&down)?,
                })
            })
            .collect::<Result<_, LoadError>>()?;
        let final_norm = self.final_norm().map(|tensors| norm(loader, &tensors)).transpose()?;
        Ok(EncoderWeights { words, positions, types, embedding_norm, layers, ropes, final_norm })
    }

    /// Products behind pooling keep the bits of bf16 in every class: they are a row of each text.
    fn tail<B: Backend>(&self, loader: &mut Loader<'_, B>, checkpoint: &Checkpoint) -> Result<Vec<Step<B>>, LoadError> {
        let mut steps = Vec::new();
        if let Some(classifier) = &self.encoder.classifier {
            let (dense, norm_tensors, last) = self.classifier(classifier, loader.weights);
            let after = if norm_tensors.is_some() { After::Activation } else { After::Tanh };
            let norm_weights = norm_tensors.map(|tensors| norm(loader, &tensors)).transpose()?;
            if let Some(dense) = dense {
                steps.push((wide(loader, &dense)?, after, norm_weights));
            }
            steps.push((wide(loader, &last)?, After::Nothing, None));
        }
        for dense in &self.encoder.dense {
            let after = if dense.tanh { After::Tanh } else { After::Nothing };
            if loader.weights.has(&format!("{}.weight", dense.directory)) {
                let shape = [(dense.directory.clone(), dense.out_features)];
                let linear = LinearTensors::whole(&shape, dense.in_features, dense.has_bias);
                steps.push((wide(loader, &linear)?, after, None));
                continue;
            }
            let missing = || LoadError::NoWeights {
                checkpoint: checkpoint.location(),
                problem: format!("the module {} is read from a directory only", dense.directory),
            };
            let path = checkpoint.path().filter(|path| path.is_dir()).ok_or_else(missing)?.join(&dense.directory);
            let weights = Weights::open(&Checkpoint::open(Source::Directory(path))?)?;
            let linear =
                LinearTensors::whole(&[("linear".into(), dense.out_features)], dense.in_features, dense.has_bias);
            let is_read = |name: &&str| *name == "linear.weight" || dense.has_bias && *name == "linear.bias";
            let unread: Vec<&str> = weights.names().filter(|name| !is_read(name)).collect();
            if !unread.is_empty() {
                let why = "its config.json has no place for them";
                return Err(unread_error(&weights, "this dense module does not read", &unread, why));
            }
            let mut beside = Loader {
                backend: loader.backend,
                config: loader.config,
                weights: &weights,
                class: WeightClass::Bf16,
                as_stored: false,
                names: Vec::new(),
                progress: &mut |_| {},
                expert_reader: None,
            };
            steps.push((beside.linear(&linear)?, after, None));
        }
        Ok(steps)
    }
}

/// Width of the widest row behind pooling.
fn tail_width(config: &ModelConfig, encoder: &EncoderConfig) -> usize {
    let dense = encoder.dense.iter().map(|dense| dense.out_features).max().unwrap_or(0);
    config.hidden_size.max(dense).max(config.vector_width()).max(2)
}

fn wide<B: Backend>(loader: &mut Loader<'_, B>, linear: &LinearTensors) -> Result<Linear<B>, LoadError> {
    let matrix = loader.matrix(linear, WeightClass::Bf16)?;
    Ok(Linear { matrix, bias: loader.bias(linear, RowOrder::AsStored)? })
}

fn norm<B: Backend>(loader: &Loader<'_, B>, tensors: &NormTensors) -> Result<NormWeights<B>, LoadError> {
    Ok(NormWeights {
        weight: loader.norm(&tensors.weight)?,
        bias: tensors.bias.as_ref().map(|bias| loader.norm(bias)).transpose()?,
    })
}

impl<B: Backend> Scratch<B> {
    fn new(backend: &B, config: &ModelConfig, max_rows: usize, max_model_len: usize) -> Result<Scratch<B>, LoadError> {
        let encoder = config.encoder.as_ref().expect("of an encoder");
        let of_rows = |oom| no_rows(backend, oom, format!("activations of {max_rows} rows"));
        let rows = |width: usize| backend.rows(max_rows, width).map_err(of_rows);
        let (hidden, tail) = (config.hidden_size, tail_width(config, encoder));
        // The layers of a decoder have memory of their own.
        let own = |width: usize| rows(if encoder.decoder_layers { 0 } else { width });
        Ok(Scratch {
            x: rows(hidden)?,
            normed: own(hidden)?,
            qkv: own(config.layers.iter().map(|layer| layer.heads.qkv_width()).max().unwrap_or(0))?,
            attended: own(hidden)?,
            activated: own(config.intermediate_size)?,
            tail: [rows(tail)?, rows(tail)?],
            text: vec![0.0; max_model_len * hidden],
            ids: [Vec::with_capacity(max_rows), Vec::with_capacity(max_rows)],
            pooled: Vec::with_capacity(max_rows * tail),
        })
    }
}

impl<B: Backend> DecoderBody<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        tensors: &tensors::Tensors<'_>,
        ropes: Vec<RopeTable<B::Vector>>,
        max_rows: usize,
    ) -> Result<DecoderBody<B>, LoadError> {
        let (backend, config) = (loader.backend, loader.config);
        let of_rows = |oom| no_rows(backend, oom, format!("activations of {max_rows} rows"));
        let rows = backend.rows(max_rows, config.hidden_size).map_err(of_rows)?;
        Ok(DecoderBody {
            transformer: loader.load(tensors, ropes)?,
            scratch: transformer::Scratch::new(backend, config, max_rows)?,
            states: backend.states(StateShape { slots: 0, numbers: 0 }).map_err(of_rows)?,
            last: [Tap { after: config.num_layers, rows }],
        })
    }

    /// The last hidden rows of every text, in `x`.
    fn compute(&mut self, backend: &B, config: &ModelConfig, batch: &Batch, kv: &mut [B::KvCache], x: &mut B::Rows) {
        let DecoderBody { transformer, scratch, states, last } = self;
        let pass = transformer::Pass { backend, config, adapters: &[] };
        transformer.compute(&pass, batch, Memory { kv, states }, scratch, last);
        transformer.final_norm.apply(backend, &last[0].rows, 0..batch.num_rows(), x);
    }
}

impl<B: Backend> Encoder<B> {
    /// Shape of the cache that holds keys and values of one layer.
    pub fn cache_shape(&self) -> &CacheShape {
        &self.cache_shape
    }

    /// Longest text in tokens.
    pub fn max_model_len(&self) -> usize {
        self.max_model_len
    }

    /// What a person should know about this load. Often empty.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The last hidden rows of the last pass, by their index in its batch: `[rows, hidden_size]`.
    ///
    /// Panics if there are no such rows.
    pub fn read_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        self.backend.read(&self.scratch.x, rows, self.config.hidden_size, out)
    }

    /// Panics at what no input can cause.
    fn check(&self, batch: &Batch) {
        let rows = batch.num_rows();
        assert!(rows > 0 && rows <= self.options.max_rows, "{rows} rows in a batch of {}", self.options.max_rows);
        assert!(batch.token_ids.iter().all(|&id| (id as usize) < self.config.vocab_size), "a token id is a row");
        assert!([batch.positions.len(), batch.slots.len()] == [rows, rows], "positions and slots are [rows]");
        assert!(batch.token_types.is_empty() || batch.token_types.len() == rows, "types are [rows], or none");
        let covered = batch.spans.iter().fold(0, |next, span| {
            assert_eq!(span.first_row, next, "spans cover the rows in order");
            assert!(span.start == 0, "an encoder reads a text at once");
            assert!(span.num_rows as usize <= self.max_model_len, "a text is no longer than {}", self.max_model_len);
            next + span.num_rows
        });
        assert_eq!(covered as usize, rows, "spans cover every row");
    }

    /// The last hidden rows of every text, in `scratch.x`.
    fn compute(&mut self, batch: &Batch) {
        let Encoder { backend, config, body, kv, scratch, .. } = self;
        let encoder = config.encoder.as_ref().expect("checked at load");
        let weights = match body {
            Body::Own(weights) => &*weights,
            Body::Decoder(body) => return body.compute(backend, config, batch, kv.groups(), &mut scratch.x),
        };
        let spans: Vec<AttentionSpan<'_>> = batch
            .spans
            .iter()
            .map(|span| AttentionSpan {
                first_row: span.first_row as usize,
                num_rows: span.num_rows as usize,
                start: span.start as usize,
                blocks: &batch.block_tables[span.table.start as usize..span.table.end as usize],
            })
            .collect();
        let arrays = |token_ids| StepArrays {
            token_ids,
            positions: &batch.positions,
            slots: &batch.slots,
            spans: &spans,
            ..StepArrays::default()
        };
        let [mut positions, mut types] = std::mem::take(&mut scratch.ids);
        position_ids(encoder, batch, &mut positions);
        types.clear();
        types.extend(&batch.token_types);
        types.resize(batch.num_rows(), 0);
        let pass = Pass { backend: &**backend, config, encoder, weights, rows: batch.num_rows() };
        let mut is_first = true;
        let mut add = |step: &B::Step<'_>, table: &B::Matrix| {
            pass.add_embedding(step, table, std::mem::take(&mut is_first), [&mut scratch.normed, &mut scratch.x]);
        };
        for (table, ids) in [(&weights.positions, &positions), (&weights.types, &types)] {
            if let Some(table) = table {
                add(&backend.begin(arrays(ids)), table);
            }
        }
        let step = backend.begin(arrays(&batch.token_ids));
        add(&step, &weights.words);
        pass.norm(&scratch.normed, &weights.embedding_norm, &mut scratch.x);
        for index in 0..weights.layers.len() {
            match config.norms {
                NormPlacement::Before => pass.layer_normed_before(&step, index, scratch, &mut kv.groups()[0]),
                _ => pass.layer_normed_after(&step, index, scratch, &mut kv.groups()[0]),
            }
        }
        if let Some(last) = &weights.final_norm {
            pass.norm(&scratch.x, last, &mut scratch.normed);
            std::mem::swap(&mut scratch.x, &mut scratch.normed);
        }
        drop(step);
        scratch.ids = [positions, types];
    }

    /// The vectors of the texts that end in wanted rows.
    fn pool(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        let Encoder { backend, config, tail: steps, scratch, vectors, .. } = self;
        let encoder = config.encoder.as_ref().expect("checked at load");
        let hidden = config.hidden_size;
        let Scratch { x, text, pooled, tail: [tail, other], .. } = scratch;
        pooled.clear();
        let mut spans = batch.spans.iter();
        for &row in &batch.logit_rows {
            let is_of = |span: &&crate::Span| (span.first_row..span.first_row + span.num_rows).contains(&row);
            let span = spans.find(is_of).expect("texts are wanted once each, in order");
            let (first, rows) = (span.first_row as usize, span.num_rows as usize);
            let at = match encoder.pooling {
                Pooling::Cls => first..first + 1,
                Pooling::Last => first + rows - 1..first + rows,
                _ => first..first + rows,
            };
            let text = &mut text[..at.len() * hidden];
            backend.read(x, at, hidden, text)?;
            pool_rows(encoder.pooling, text, hidden, pooled);
        }
        let count = batch.logit_rows.len();
        let width = config.vector_width();
        if !steps.is_empty() {
            backend.write(pooled, tail)?;
            for (linear, after, norm) in &*steps {
                linear.apply(backend, tail, count, Out::Store(other));
                let extent = Extent { rows: count, width: backend.shape(&linear.matrix).out_features };
                match after {
                    After::Nothing => {}
                    After::Tanh => backend.softcap(1.0, other, extent),
                    After::Activation => backend.activate(config.activation, other, extent),
                }
                if let Some(norm) = norm {
                    backend.layer_norm(other, 0..count, norm.with_eps(config.rms_norm_eps), tail);
                } else {
                    std::mem::swap(tail, other);
                }
            }
            let rows = match &encoder.classifier {
                Some(Classifier { form: ClassifierForm::Tokens(_) | ClassifierForm::Rows, .. }) => 2,
                _ => 1,
            };
            pooled.resize(count * width * rows, 0.0);
            backend.read(tail, 0..count, width * rows, pooled)?;
            if rows == 2 {
                for row in 0..count {
                    pooled[row] = pooled[2 * row] - pooled[2 * row + 1];
                }
                pooled.truncate(count);
            }
        }
        if encoder.normalize {
            pooled.chunks_exact_mut(width).for_each(normalize);
        }
        vectors[..count * width].copy_from_slice(pooled);
        Ok(())
    }
}

/// What stays the same throughout a pass.
struct Pass<'a, B: Backend> {
    backend: &'a B,
    config: &'a ModelConfig,
    encoder: &'a EncoderConfig,
    weights: &'a EncoderWeights<B>,
    rows: usize,
}

impl<B: Backend> Pass<'_, B> {
    /// `sum = sum + table[ids]`, or the rows of the table where they are the first; `other` is scratch.
    fn add_embedding(&self, step: &B::Step<'_>, table: &B::Matrix, is_first: bool, [sum, other]: [&mut B::Rows; 2]) {
        if is_first {
            return self.backend.embed(step, table, sum);
        }
        self.backend.embed(step, table, other);
        self.backend.add_scaled(other, 1.0, sum, Extent { rows: self.rows, width: self.config.hidden_size });
    }

    fn norm(&self, x: &B::Rows, norm: &NormWeights<B>, out: &mut B::Rows) {
        self.backend.layer_norm(x, 0..self.rows, norm.with_eps(self.config.rms_norm_eps), out);
    }

    /// What a layer's tokens see of each other: to `attended`.
    fn attend(
        &self,
        (step, index): (&B::Step<'_>, usize),
        input: &B::Rows,
        (qkv, attended): (&mut B::Rows, &mut B::Rows),
        kv: &mut B::KvCache,
    ) {
        let Pass { backend, config, weights, rows, .. } = *self;
        let layout = config.layers[index].heads;
        weights.layers[index].qkv.apply(backend, input, rows, Out::Store(qkv));
        let rope = config.layers[index].rope.map(|rope| &weights.ropes[rope]);
        // Of the layer before, nothing is needed any more.
        backend.rotate_and_store(step, Rotation { layout, head_norms: HeadNorms::None, rope, layer: 0 }, qkv, kv);
        backend.attend(
            step,
            AttentionLayer { layout, rule: config.attention_rule(index), sinks: None, layer: 0 },
            qkv,
            kv,
            attended,
        );
    }

    /// The middle of an MLP: to `activated`.
    fn up(&self, index: usize, input: &B::Rows, activated: &mut B::Rows) {
        let Pass { backend, config, encoder, rows, .. } = *self;
        let up = &self.weights.layers[index].up;
        if encoder.gated {
            return up.apply(backend, input, rows, Out::Gated(config.activation, activated));
        }
        up.apply(backend, input, rows, Out::Store(activated));
        backend.activate(config.activation, activated, Extent { rows, width: config.intermediate_size });
    }

    /// BERT's: the norm of a block's sum is the stream.
    fn layer_normed_after(&self, step: &B::Step<'_>, index: usize, scratch: &mut Scratch<B>, kv: &mut B::KvCache) {
        let Scratch { x, normed, qkv, attended, activated, .. } = scratch;
        let layer = &self.weights.layers[index];
        self.attend((step, index), x, (qkv, attended), kv);
        layer.o.apply(self.backend, attended, self.rows, Out::Add(x));
        let attention_norm = layer.attention_norm.as_ref().expect("each layer has its norms");
        self.norm(x, attention_norm, normed);
        self.up(index, normed, activated);
        layer.down.apply(self.backend, activated, self.rows, Out::Add(normed));
        self.norm(normed, &layer.mlp_norm, x);
    }

    /// ModernBERT's: a block reads the norm of the stream and adds to it.
    fn layer_normed_before(&self, step: &B::Step<'_>, index: usize, scratch: &mut Scratch<B>, kv: &mut B::KvCache) {
        let Scratch { x, normed, qkv, attended, activated, .. } = scratch;
        let layer = &self.weights.layers[index];
        match &layer.attention_norm {
            Some(norm) => {
                self.norm(x, norm, normed);
                self.attend((step, index), normed, (qkv, attended), kv);
            }
            None => self.attend((step, index), x, (qkv, attended), kv),
        }
        layer.o.apply(self.backend, attended, self.rows, Out::Add(x));
        self.norm(x, &layer.mlp_norm, normed);
        self.up(index, normed, activated);
        layer.down.apply(self.backend, activated, self.rows, Out::Add(x));
    }
}

/// The rows of the table of positions. RoBERTa counts from behind the padding's id, where padding within a text stays.
fn position_ids(encoder: &EncoderConfig, batch: &Batch, ids: &mut Vec<u32>) {
    ids.clear();
    let padding = encoder.positions.and_then(|positions| positions.padding);
    let Some(padding) = padding else { return ids.extend(&batch.positions) };
    for span in &batch.spans {
        let mut last = padding;
        for &token in &batch.token_ids[span.first_row as usize..][..span.num_rows as usize] {
            last += u32::from(token != padding);
            ids.push(if token == padding { padding } else { last });
        }
    }
}

/// Appends the row that stands for some rows of `width` numbers. Sums go in the order of the rows.
fn pool_rows(pooling: Pooling, rows: &[f32], width: usize, pooled: &mut Vec<f32>) {
    let first = pooled.len();
    let (row, rest) = rows.split_at(width);
    pooled.extend_from_slice(row);
    let (out, count) = (&mut pooled[first..], rows.len() / width);
    for row in rest.chunks_exact(width) {
        for (out, &x) in out.iter_mut().zip(row) {
            match pooling {
                Pooling::Max => *out = if *out > x { *out } else { x },
                _ => *out += x,
            }
        }
    }
    let divisor = match pooling {
        Pooling::Mean => count as f32,
        Pooling::MeanSqrt => (count as f32).sqrt(),
        Pooling::Cls | Pooling::Last | Pooling::Max => return,
    };
    out.iter_mut().for_each(|out| *out /= divisor);
}

/// To length 1.
fn normalize(vector: &mut [f32]) {
    let squares: f32 = vector.iter().map(|x| x * x).sum();
    let length = squares.sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= length);
}

impl<B: Backend> Forward for Encoder<B> {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn launch(&mut self, batch: &Batch) -> Result<Ticket, DeviceError> {
        let _floats = DefaultFloats::enter();
        self.check(batch);
        (self.pass, self.num_vectors) = (self.pass + 1, 0);
        self.compute(batch);
        self.backend.submit()?;
        self.pool(batch)?;
        self.num_vectors = batch.logit_rows.len();
        Ok(Ticket::new(self.pass, self.num_vectors))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Logits, DeviceError> {
        self.backend.wait()?;
        Ok(ticket.done())
    }

    fn read_logits(&mut self, _: &Logits, _: usize, _: &mut [f32]) -> Result<(), DeviceError> {
        panic!("an encoder has no logits of tokens");
    }

    fn read_hidden(&mut self, pass: &Logits, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        let width = self.config.vector_width();
        assert_eq!(pass.pass(), self.pass, "vectors of another pass than the last");
        assert!(rows.end <= self.num_vectors, "vectors {rows:?} of {}", self.num_vectors);
        out.copy_from_slice(&self.vectors[rows.start * width..rows.end * width]);
        Ok(())
    }

    fn set_compute_thread(&self) {
        self.backend.set_compute_thread();
    }

    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.backend.share_out(count, work);
    }

    fn lost(&self) -> Option<LostCpuTime> {
        self.backend.lost()
    }

    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.kv.copy_blocks(&self.backend, copies);
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Arc<dyn HostBuffer> {
        Arc::new(self.backend.host_buffer(bytes))
    }

    fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        self.kv.save_block(&self.backend, block, to);
    }

    fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        self.kv.load_block(&self.backend, from, block);
    }

    fn submit(&self) -> Result<(), DeviceError> {
        self.backend.submit()
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes(&self.backend)
    }

    fn weight_bytes(&self) -> usize {
        let backend = &*self.backend;
        let tail = self.tail.iter();
        let tail =
            tail.map(|(linear, _, norm)| linear.bytes(backend) + norm.as_ref().map_or(0, |norm| norm.bytes(backend)));
        let tail = tail.sum::<usize>();
        let EncoderWeights { embedding_norm, layers, final_norm, .. } = match &self.body {
            Body::Own(weights) => weights,
            // The embedding, which stands for a head there, is counted as a table.
            Body::Decoder(body) => {
                return body.transformer.bytes(backend) - backend.matrix_bytes(&body.transformer.embed) + tail;
            }
        };
        let layer = |layer: &Layer<B>| {
            let norms = layer.attention_norm.iter().chain([&layer.mlp_norm]).map(|norm| norm.bytes(backend));
            let linears = [&layer.qkv, &layer.o, &layer.up, &layer.down].map(|linear| linear.bytes(backend));
            norms.sum::<usize>() + linears.iter().sum::<usize>()
        };
        let norms = embedding_norm.bytes(backend) + final_norm.as_ref().map_or(0, |norm| norm.bytes(backend));
        norms + layers.iter().map(layer).sum::<usize>() + tail
    }

    fn expert_bytes(&self) -> usize {
        0
    }

    fn kv_bytes_per_token(&self) -> usize {
        self.cache_shape.block_bytes() / self.cache_shape.block_size()
    }

    fn describe(&self) -> String {
        let tables = match &self.body {
            Body::Own(weights) => [Some(&weights.words), weights.positions.as_ref(), weights.types.as_ref()],
            Body::Decoder(body) => [Some(&*body.transformer.embed), None, None],
        };
        let tables = tables.into_iter().flatten();
        let bytes = self.weight_bytes() + tables.map(|table| self.backend.matrix_bytes(table)).sum::<usize>();
        let config = &self.config;
        format!(
            "{} {:.1} M, {} layers of {}, {} weights in {:.1} MB, {}",
            config.family,
            (config.layer_parameters() + config.head_parameters()) as f64 / 1e6,
            config.num_layers,
            config.hidden_size,
            self.options.weights.name(),
            bytes as f64 / 1e6,
            self.backend.describe(),
        )
    }

    fn device(&self) -> DeviceInfo {
        self.backend.info()
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.backend.limits(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_is_what_its_name_says() {
        let rows = [1.0, -4.0, 3.0, 2.0, 2.0, 8.0]; // three rows of two
        for (pooling, want) in [
            (Pooling::Mean, [2.0, 2.0]),
            (Pooling::Max, [3.0, 8.0]),
            (Pooling::MeanSqrt, [6.0 / 3f32.sqrt(), 6.0 / 3f32.sqrt()]),
        ] {
            let mut pooled = vec![7.0];
            pool_rows(pooling, &rows, 2, &mut pooled);
            assert_eq!(pooled[1..], want, "{pooling:?}");
        }
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
    }
}
