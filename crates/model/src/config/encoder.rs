//! Encoders: `config.json` of BERT and its kin, and what sentence-transformers keeps beside it.
//!
//! ```text
//! config.json              ─> layers, positions, the classifier's labels
//! modules.json             ─> 1_Pooling/config.json: which rows make the vector; 2_Dense: products; Normalize
//! sentence_bert_config.json ─> the longest text
//! ```
//! Without `modules.json` the mean of all rows is taken, as sentence-transformers does of such a directory.

use super::fields::{Fields, parse_object, quoted};
use super::rope::RopeConfig;
use super::{
    AttentionGate, CONFIG, CacheLayer, Family, FeedForward, FusedProjections, Head, HeadNorm, LayerConfig,
    MAX_CONFIG_BYTES, MAX_WIDTH, Mixer, ModelConfig, NormKind, NormPlacement, check_head_dim,
};
use checkpoint::{Checkpoint, LoadError};
use kernels::{Activation, AttentionRule, HeadLayout, RopeScaling};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::path::Path;

/// What an encoder has and a decoder has not: every token sees every other one, nothing is generated, and a text
/// becomes one vector.
#[derive(Clone, Debug)]
pub struct EncoderConfig {
    /// Positions are added by a table instead of turning queries and keys.
    pub positions: Option<PositionTable>,
    /// Rows of the table of segments, which says to which text of a pair a token belongs. 0: there is none.
    pub token_types: usize,
    /// Its layers, and the names of its tensors, are those of the family's decoder (EmbeddingGemma: Schechter Vera et
    /// al., 2025).
    pub decoder_layers: bool,
    /// Each token sees later ones too.
    pub both_ways: bool,
    /// What is written around the two texts of a pair, where no special tokens stand between them.
    pub template: Option<PairTemplate>,
    /// The MLP is gated.
    pub gated: bool,
    /// Norms add a bias.
    pub norm_bias: bool,
    /// How the rows of a text become its vector.
    pub pooling: Pooling,
    /// Whether `pooling` was not said by the checkpoint.
    pub pooling_is_assumed: bool,
    /// Products behind pooling, in order.
    pub dense: Vec<Dense>,
    /// Vectors have length 1.
    pub normalize: bool,
    /// The head that judges a text or a pair of texts: then its logits are the vector.
    pub classifier: Option<Classifier>,
}

/// What stands before the first text of a pair, between the two and behind the second. Nothing of it is ever cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTemplate {
    /// Tokens of their own, before all.
    pub prefix: &'static str,
    /// Before the first text.
    pub before: &'static str,
    /// Between the texts.
    pub between: &'static str,
    /// Tokens of their own, behind all.
    pub suffix: &'static str,
}

impl PairTemplate {
    /// A pair in it, and no place of the second text. `most`: that is cut where all would be more than this number of
    /// tokens.
    pub fn fill<E>(
        &self,
        [first, second]: [&str; 2],
        most: Option<usize>,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<(Vec<u32>, Option<usize>), E> {
        let PairTemplate { prefix, before, between, suffix } = self;
        let (mut tokens, suffix) = (encode(prefix)?, encode(suffix)?);
        tokens.extend(encode(&format!("{before}{first}{between}{second}"))?);
        tokens.truncate(most.map_or(tokens.len(), |most| most.saturating_sub(suffix.len())));
        tokens.extend(suffix);
        Ok((tokens, None))
    }
}

/// As Qwen3-Reranker was published.
const QWEN3_RERANKER: PairTemplate = PairTemplate {
    prefix: "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
             provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
    before: "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: ",
    between: "\n<Document>: ",
    suffix: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
};

/// A learned table of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows of the table.
    pub rows: usize,
    /// Padding, as RoBERTa counts: positions begin behind this id, and a padding token within a text has this position.
    pub padding: Option<u32>,
}

/// How the rows of a text become one (Reimers & Gurevych, 2019).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first row.
    Cls,
    /// The mean of all rows, summed in order.
    Mean,
    /// The same sum divided by the root of their number.
    MeanSqrt,
    /// The largest of each component.
    Max,
    /// The last row.
    Last,
}

/// `y = activation(x w^T + bias)` of a pooled vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// The module's directory in the checkpoint.
    pub directory: String,
    /// Width of its input.
    pub in_features: usize,
    /// Width of its output.
    pub out_features: usize,
    /// It adds a bias.
    pub has_bias: bool,
    /// Behind it: nothing, or tanh.
    pub tanh: bool,
}

/// A head that gives logits of classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// Names of the classes, in the order of the logits.
    pub labels: Vec<String>,
    /// What stands before the last product.
    pub form: ClassifierForm,
    /// Logits become scores by sigmoids, each of its own; otherwise by softmax over the classes.
    pub sigmoid: bool,
    /// A score is the logit itself: the model's own setting for rerankers.
    pub is_raw: bool,
}

/// What stands between the pooled row and the product that makes logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassifierForm {
    /// BERT: `tanh(pooler x)`.
    Pooler,
    /// RoBERTa: `tanh(classifier.dense x)`, then `classifier.out_proj`.
    Dense,
    /// Of a decoder's layers: nothing, and `score` behind it.
    Score,
    /// Nothing, and two rows of the language-model head: the logit is that of the first less that of the second.
    Tokens([u32; 2]),
    /// The same of a GGUF file, which has the two rows apart.
    Rows,
    /// ModernBERT: `norm(gelu(head.dense x))`.
    Normed {
        /// `head.dense` and the classifier's norm have biases.
        has_bias: bool,
    },
}

/// A row of the table of encoders.
struct Traits {
    family: Family,
    /// The model alone, its language-model head (not read), its classifier.
    architectures: &'static [&'static str],
    classifier: &'static str,
}

const ENCODERS: [Traits; 5] = [
    Traits {
        family: Family::Bert,
        architectures: &["BertModel", "BertForMaskedLM", "BertForPreTraining"],
        classifier: "BertForSequenceClassification",
    },
    Traits {
        family: Family::Roberta,
        architectures: &["RobertaModel", "RobertaForMaskedLM"],
        classifier: "RobertaForSequenceClassification",
    },
    Traits {
        family: Family::XlmRoberta,
        architectures: &["XLMRobertaModel", "XLMRobertaForMaskedLM"],
        classifier: "XLMRobertaForSequenceClassification",
    },
    Traits {
        family: Family::ModernBert,
        architectures: &["ModernBertModel", "ModernBertForMaskedLM"],
        classifier: "ModernBertForSequenceClassification",
    },
    Traits {
        family: Family::NomicBert,
        architectures: &["NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining"],
        classifier: "NomicBertForSequenceClassification",
    },
];

const EPS: RangeInclusive<f64> = 1e-15..=1.0;
const POSITIONS: usize = 1 << 20;
const LABELS: usize = 4096;

/// The configuration, if it is one of an encoder.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<ModelConfig>, LoadError> {
    let names = fields.list("architectures")?.unwrap_or_default();
    let (name, model_type) = (names.first().and_then(Value::as_str), fields.text("model_type")?);
    let is_it = |traits: &&Traits| match name {
        Some(name) => traits.classifier == name || traits.architectures.contains(&name),
        None => model_type == Some(traits.family.name()),
    };
    let Some(traits) = ENCODERS.iter().find(is_it) else { return Ok(None) };
    let judges = name == Some(traits.classifier);
    let config = match traits.family {
        Family::ModernBert => modern_bert(fields, judges),
        Family::NomicBert => nomic_bert(fields, judges),
        family => bert(fields, family, judges),
    };
    with_stated_pooling(config?, fields).map(Some)
}

/// Pooling as a GGUF file says it, and what comes behind; there all vectors have length 1.
fn with_stated_pooling(mut config: ModelConfig, fields: &Fields<'_>) -> Result<ModelConfig, LoadError> {
    const FIELD: &str = "gguf_pooling";
    let mut width = config.hidden_size;
    for stated in fields.list("gguf_dense")?.into_iter().flatten().filter_map(Value::as_object) {
        let fields = Fields { file: CONFIG, path: "gguf_dense.".to_string(), map: stated };
        let directory = fields.text("name")?.unwrap_or_default().to_string();
        let (in_features, out_features) =
            (fields.size("in_features", MAX_WIDTH)?, fields.size("out_features", MAX_WIDTH)?);
        if in_features != width {
            let problem = format!("{directory} reads {in_features}; what comes before it is {width} wide");
            return Err(fields.error("in_features", problem));
        }
        width = out_features;
        let dense = Dense { directory, in_features, out_features, has_bias: false, tanh: false };
        config.encoder.iter_mut().for_each(|encoder| encoder.dense.push(dense.clone()));
    }
    if let (Some(encoder), Some(name)) = (&mut config.encoder, fields.text(FIELD)?) {
        let mode = MODES.iter().find(|(_, short, _)| *short == name).map(|(.., mode)| *mode);
        encoder.pooling = mode.ok_or_else(|| fields.error(FIELD, format!("{} is unknown", quoted(name))))?;
        (encoder.pooling_is_assumed, encoder.normalize) = (false, true);
    }
    Ok(config)
}

/// Whether a decoder of this configuration is an encoder: its tokens see later ones too.
pub(super) fn looks_both_ways(fields: &Fields<'_>, family: Family) -> bool {
    family == Family::Gemma3 && fields.get("use_bidirectional_attention") == Some(&Value::Bool(true))
}

/// The encoder with the layers of a decoder. Half of a window lies on each side, and the token between.
pub(super) fn of_decoder(mut config: ModelConfig, fields: &Fields<'_>) -> Result<ModelConfig, LoadError> {
    config.layers.iter_mut().for_each(|layer| layer.window = layer.window.map(|window| window / 2 + 1));
    with_stated_pooling(with_layers_of_decoder(config, true), fields)
}

/// The encoder with a decoder's layers: keys and values are of use within their layer alone.
fn with_layers_of_decoder(mut config: ModelConfig, both_ways: bool) -> ModelConfig {
    config.layers.iter_mut().for_each(|layer| layer.cache = CacheLayer::default());
    config.head = Head::Absent;
    config.encoder = Some(EncoderConfig {
        positions: None,
        token_types: 0,
        decoder_layers: true,
        both_ways,
        template: None,
        gated: true,
        norm_bias: false,
        pooling: if both_ways { Pooling::Mean } else { Pooling::Last },
        pooling_is_assumed: both_ways,
        dense: Vec::new(),
        normalize: false,
        classifier: None,
    });
    config
}

/// The class of a decoder whose last row a classifier judges: `Qwen3ForSequenceClassification`.
pub(super) fn judged_class(fields: &Fields<'_>) -> Result<Option<String>, LoadError> {
    let names = fields.list("architectures")?.unwrap_or_default();
    let prefix = names.first().and_then(Value::as_str).and_then(|name| name.strip_suffix("ForSequenceClassification"));
    Ok(prefix.map(|prefix| format!("{prefix}ForCausalLM")))
}

/// The classifier on the layers of a decoder.
pub(super) fn judging(config: ModelConfig, fields: &Fields<'_>) -> Result<ModelConfig, LoadError> {
    let form = if fields.flag("gguf_rows", false)? { ClassifierForm::Rows } else { ClassifierForm::Score };
    let classifier = classifier(fields, form)?;
    config.with_judge(classifier)
}

/// Widths and heads.
struct Sizes {
    hidden_size: usize,
    num_layers: usize,
    num_heads: usize,
    head_dim: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
}

impl Sizes {
    fn read(fields: &Fields<'_>) -> Result<Sizes, LoadError> {
        let hidden_size = fields.size("hidden_size", MAX_WIDTH)?;
        let num_heads = fields.size("num_attention_heads", 1024)?;
        if !hidden_size.is_multiple_of(num_heads) {
            let problem = format!("{num_heads} does not divide hidden_size = {hidden_size}");
            return Err(fields.error("num_attention_heads", problem));
        }
        let head_dim = hidden_size / num_heads;
        check_head_dim(fields, "num_attention_heads", head_dim)?;
        Ok(Sizes {
            hidden_size,
            num_layers: fields.size("num_hidden_layers", 1024)?,
            num_heads,
            head_dim,
            intermediate_size: fields.size("intermediate_size", MAX_WIDTH)?,
            max_position_embeddings: fields.size("max_position_embeddings", POSITIONS)?,
        })
    }
}

/// An encoder of this shape; what the families differ in is put in by them.
fn plain(fields: &Fields<'_>, family: Family, sizes: Sizes, encoder: EncoderConfig) -> Result<ModelConfig, LoadError> {
    let layers = vec![layer(&sizes); sizes.num_layers];
    let Sizes { hidden_size, num_layers, num_heads, head_dim, intermediate_size, max_position_embeddings } = sizes;
    Ok(ModelConfig {
        family,
        hidden_size,
        intermediate_size,
        num_layers,
        num_next_token_layers: 0,
        num_heads,
        num_kv_heads: num_heads,
        head_dim,
        vocab_size: fields.size("vocab_size", 1 << 24)?,
        max_position_embeddings,
        context_limit: max_position_embeddings,
        // Keys and values are of use within their layer alone: one place serves all.
        layers,
        ropes: Vec::new(),
        experts: None,
        norms: NormPlacement::After,
        norms_around_zero: false,
        plain_final_norm: false,
        normed_embedding: false,
        rms_norm_eps: 1e-12,
        after_norm_eps: 1e-12,
        norm: NormKind::Layer { weight: true, bias: encoder.norm_bias },
        head_norm: HeadNorm::None,
        head_norm_factor: None,
        activation: Activation::Gelu,
        layer_activations: Vec::new(),
        attention_scale: AttentionRule::of_width(head_dim).scale,
        attention_softcap: None,
        attention_output_multiplier: 1.0,
        embedding_multiplier: 1.0,
        residual_multiplier: 1.0,
        logits_multiplier: 1.0,
        logits_softcap: None,
        head: Head::Absent,
        head_bias: false,
        fused_projections: FusedProjections::None,
        gated_mlp: false,
        neighbours: false,
        qkv_bias: true,
        o_bias: true,
        clip_qkv: None,
        attention_gate: AttentionGate::None,
        sinks: false,
        chunked: false,
        mlp_bias: true,
        layer_input: None,
        layer_scalars: false,
        bos_token_ids: Vec::new(),
        eos_token_ids: Vec::new(),
        encoder: Some(encoder),
    })
}

/// A layer that sees everything. Keys and values are of use within their layer alone, so one place serves all.
fn layer(sizes: &Sizes) -> LayerConfig {
    let &Sizes { num_heads, head_dim, intermediate_size, .. } = sizes;
    LayerConfig {
        window: None,
        rope: None,
        feed: FeedForward::Dense,
        mixer: Mixer::Attention,
        mlp_width: intermediate_size,
        heads: HeadLayout { num_heads, num_kv_heads: num_heads, head_dim, ..HeadLayout::default() },
        values_are_keys: false,
        cache: CacheLayer::default(),
    }
}

/// BERT (Devlin et al., 2018), RoBERTa (Liu et al., 2019), XLM-RoBERTa (Conneau et al., 2019).
fn bert(fields: &Fields<'_>, family: Family, judges: bool) -> Result<ModelConfig, LoadError> {
    let sizes = Sizes::read(fields)?;
    if let Some(other) = fields.text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
        let problem = format!("{} is not supported; absolute is", quoted(other));
        return Err(fields.error("position_embedding_type", problem));
    }
    for name in ["is_decoder", "add_cross_attention"] {
        if fields.flag(name, false)? {
            return Err(fields.error(name, "true is not supported: encoders alone are read"));
        }
    }
    let rows = sizes.max_position_embeddings;
    let padding = match family {
        Family::Bert => None,
        // GGUF has no rows for positions that no text has.
        _ if fields.flag("positions_are_cut", false)? => None,
        _ => Some(fields.optional_integer("pad_token_id", 0..=1 << 20)?.unwrap_or(1) as u32),
    };
    let context_limit = rows.saturating_sub(padding.map_or(0, |padding| padding as usize + 1));
    if context_limit == 0 {
        return Err(fields.error("max_position_embeddings", "leaves no position behind that of padding"));
    }
    let form = if family == Family::Bert { ClassifierForm::Pooler } else { ClassifierForm::Dense };
    let encoder = EncoderConfig {
        positions: Some(PositionTable { rows, padding }),
        token_types: fields.optional_integer("type_vocab_size", 1..=1024)?.unwrap_or(2) as usize,
        decoder_layers: false,
        both_ways: true,
        template: None,
        gated: false,
        norm_bias: true,
        pooling: if judges { Pooling::Cls } else { Pooling::Mean },
        pooling_is_assumed: !judges,
        dense: Vec::new(),
        normalize: false,
        classifier: judges.then(|| classifier(fields, form)).transpose()?,
    };
    let eps = fields.optional_float("layer_norm_eps", EPS)?.unwrap_or(1e-12) as f32;
    let activation = activation(fields, "hidden_act")?;
    let config = plain(fields, family, sizes, encoder)?;
    Ok(ModelConfig { context_limit, rms_norm_eps: eps, activation, ..config })
}

/// Nomic Embed (Nussbaum et al., 2024): BERT with rotations, a gated MLP and no biases in its products. Its first files
/// have names of GPT-2 for the fields of BERT.
fn nomic_bert(fields: &Fields<'_>, judges: bool) -> Result<ModelConfig, LoadError> {
    const OF_GPT2: [(&str, &str); 8] = [
        ("n_embd", "hidden_size"),
        ("n_head", "num_attention_heads"),
        ("n_inner", "intermediate_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_positions", "max_position_embeddings"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("rotary_emb_base", "rope_theta"),
        ("activation_function", "hidden_act"),
    ];
    let mut map = fields.map.clone();
    for (theirs, own) in OF_GPT2 {
        if let Some(value) = map.get(theirs).cloned() {
            map.entry(own).or_insert(value);
        }
    }
    let fields = &Fields { map: &map, path: String::new(), ..*fields };
    let only = |name: &str, usual: Value| match fields.get(name).filter(|value| **value != usual && !value.is_null()) {
        Some(other) => Err(fields.error(name, format!("{} is not supported", quoted(&other.to_string())))),
        None => Ok(()),
    };
    if judges {
        return Err(fields.error("architectures", "classifiers of this family are not supported"));
    }
    for name in ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "rotary_emb_interleaved", "use_rms_norm"] {
        only(name, false.into())?;
    }
    only("rotary_emb_fraction", 1.0.into())?;
    let sizes = Sizes::read(fields)?;
    let nested = fields.object("rope_parameters")?;
    const THETA: RangeInclusive<f64> = 1.0 + f64::EPSILON..=1e15;
    let theta = match nested {
        Some(nested) => nested.optional_float("rope_theta", THETA)?,
        None => fields.optional_float("rope_theta", THETA)?,
    };
    let rotary_dim = sizes.head_dim;
    let rope = RopeConfig { theta: theta.unwrap_or(1000.0), scaling: RopeScaling::None, rotary_dim, growth: None };
    let own = LayerConfig { rope: Some(0), ..layer(&sizes) };
    let encoder = EncoderConfig {
        positions: None,
        token_types: fields.optional_integer("type_vocab_size", 0..=1024)?.unwrap_or(2) as usize,
        decoder_layers: false,
        both_ways: true,
        template: None,
        gated: true,
        norm_bias: true,
        pooling: Pooling::Mean,
        pooling_is_assumed: true,
        dense: Vec::new(),
        normalize: false,
        classifier: None,
    };
    let activation = match fields.text("hidden_act")? {
        None | Some("swiglu") => Activation::Silu,
        Some(_) => activation(fields, "hidden_act")?,
    };
    // What the model was trained for, where more positions are possible.
    let trained = fields.optional_size("max_trained_positions", POSITIONS)?.unwrap_or(POSITIONS);
    let context_limit = sizes.max_position_embeddings.min(trained);
    let config = plain(fields, Family::NomicBert, sizes, encoder)?;
    Ok(ModelConfig {
        layers: vec![own; config.num_layers],
        ropes: vec![rope],
        rms_norm_eps: fields.optional_float("layer_norm_eps", EPS)?.unwrap_or(1e-12) as f32,
        activation,
        context_limit,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        ..config
    })
}

/// ModernBERT (Warner et al., 2024).
fn modern_bert(fields: &Fields<'_>, judges: bool) -> Result<ModelConfig, LoadError> {
    let sizes = Sizes::read(fields)?;
    let (num_layers, head_dim) = (sizes.num_layers, sizes.head_dim);
    let is_global: Vec<bool> = match fields.list("layer_types")? {
        None => {
            let every = fields.optional_size("global_attn_every_n_layers", 1024)?.unwrap_or(3);
            (0..num_layers).map(|layer| layer % every == 0).collect()
        }
        Some(types) if types.len() != num_layers => {
            let problem = format!("{} layers; num_hidden_layers is {num_layers}", types.len());
            return Err(fields.error("layer_types", problem));
        }
        Some(types) => {
            let kind = |kind: &Value| match kind.as_str() {
                Some("full_attention") => Ok(true),
                Some("sliding_attention") => Ok(false),
                _ => Err(fields.error("layer_types", format!("{} is unknown", quoted(&kind.to_string())))),
            };
            types.iter().map(kind).collect::<Result<_, _>>()?
        }
    };
    let theta = |nested: &str, own: &str, usual: f64| -> Result<f64, LoadError> {
        const THETA: RangeInclusive<f64> = 1.0 + f64::EPSILON..=1e15;
        if let Some(nested) = fields.object("rope_parameters")?.map(|ropes| ropes.object(nested)).transpose()?.flatten()
        {
            if let Some(kind) = nested.text("rope_type")?.filter(|kind| *kind != "default") {
                let problem = format!("{} is not supported; default is", quoted(kind));
                return Err(nested.error("rope_type", problem));
            }
            if let Some(theta) = nested.optional_float("rope_theta", THETA)? {
                return Ok(theta);
            }
        }
        Ok(fields.optional_float(own, THETA)?.unwrap_or(usual))
    };
    let rope = |theta| RopeConfig { theta, scaling: RopeScaling::None, rotary_dim: head_dim, growth: None };
    let ropes = vec![
        rope(theta("full_attention", "global_rope_theta", 160_000.0)?),
        rope(theta("sliding_attention", "local_rope_theta", 10_000.0)?),
    ];
    // Half of it lies on each side, and the token between.
    let window = fields.optional_integer("local_attention", 2..=1 << 20)?.unwrap_or(128) as usize / 2 + 1;
    let of_all = layer(&sizes);
    let layer = |&is_global: &bool| LayerConfig {
        window: (!is_global).then_some(window),
        rope: Some(usize::from(!is_global)),
        ..of_all
    };
    let (norm_bias, attention_bias) = (fields.flag("norm_bias", false)?, fields.flag("attention_bias", false)?);
    let pooling = match fields.text("classifier_pooling")? {
        _ if !judges => Pooling::Mean,
        None | Some("cls") => Pooling::Cls,
        Some("mean") => Pooling::Mean,
        Some(other) => return Err(fields.error("classifier_pooling", format!("{} is unknown", quoted(other)))),
    };
    if let Some(other) = fields.text("classifier_activation")?.filter(|kind| judges && *kind != "gelu") {
        return Err(fields.error("classifier_activation", format!("{} is not supported; gelu is", quoted(other))));
    }
    let has_bias = fields.flag("classifier_bias", false)?;
    let encoder = EncoderConfig {
        positions: None,
        token_types: 0,
        decoder_layers: false,
        both_ways: true,
        template: None,
        gated: true,
        norm_bias,
        pooling,
        pooling_is_assumed: !judges,
        dense: Vec::new(),
        normalize: false,
        classifier: judges.then(|| classifier(fields, ClassifierForm::Normed { has_bias })).transpose()?,
    };
    let config = plain(fields, Family::ModernBert, sizes, encoder)?;
    Ok(ModelConfig {
        layers: is_global.iter().map(layer).collect(),
        ropes,
        norms: NormPlacement::Before,
        rms_norm_eps: fields.optional_float("norm_eps", EPS)?.unwrap_or(1e-5) as f32,
        activation: activation(fields, "hidden_activation")?,
        qkv_bias: attention_bias,
        o_bias: attention_bias,
        mlp_bias: fields.flag("mlp_bias", false)?,
        fused_projections: FusedProjections::All,
        gated_mlp: true,
        ..config
    })
}

fn activation(fields: &Fields<'_>, name: &str) -> Result<Activation, LoadError> {
    match fields.text(name)? {
        None | Some("gelu" | "gelu_python") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_fast" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some(other) => {
            let problem = format!("{} is not supported; gelu, gelu_new and silu are", quoted(other));
            Err(fields.error(name, problem))
        }
    }
}

fn classifier(fields: &Fields<'_>, form: ClassifierForm) -> Result<Classifier, LoadError> {
    let labels: Vec<String> = match fields.object("id2label")? {
        None => {
            let count = fields.optional_size("num_labels", LABELS)?.unwrap_or(2);
            (0..count).map(|index| format!("LABEL_{index}")).collect()
        }
        Some(names) if names.map.is_empty() || names.map.len() > LABELS => {
            let problem = format!("{} labels; 1 to {LABELS} are read", names.map.len());
            return Err(fields.error("id2label", problem));
        }
        Some(names) => {
            let label = |index: usize| match names.text(&index.to_string())? {
                Some(name) => Ok(name.chars().take(200).collect()),
                None => Err(names.error(&index.to_string(), "missing")),
            };
            (0..names.map.len()).map(label).collect::<Result<_, LoadError>>()?
        }
    };
    // CrossEncoder of sentence-transformers writes what turns a logit into a score.
    let own = match fields.object("sentence_transformers")? {
        Some(own) => own.text("activation_fn")?,
        None => fields.text("sbert_ce_default_activation_function")?,
    };
    let is_raw = own.is_some_and(|own| own.ends_with("Identity"));
    let several = fields.text("problem_type")? == Some("multi_label_classification");
    // Of two rows one logit is made.
    let labels = if form == ClassifierForm::Rows { labels.into_iter().take(1).collect() } else { labels };
    Ok(Classifier { sigmoid: labels.len() == 1 || several, labels, form, is_raw })
}

/// A file of sentence-transformers, if it is there.
fn object(
    checkpoint: &Checkpoint,
    name: &str,
    file: &'static str,
) -> Result<Option<serde_json::Map<String, Value>>, LoadError> {
    let text = checkpoint.read_text_capped(name, MAX_CONFIG_BYTES)?;
    text.map(|text| parse_object(file, &text)).transpose()
}

const MODULES: &str = "modules.json";
const POOLING: &str = "config.json of the pooling module";
const DENSE: &str = "config.json of a dense module";
const LENGTH: &str = "sentence_bert_config.json";
/// Tokens of a pair at most, of a decoder that judges.
const RERANKED: usize = 8192;
/// Modules of a pipeline at most.
const MAX_MODULES: usize = 16;

impl ModelConfig {
    /// Width of the vector that a text gives: of an encoder's last product or its number of classes, of other models
    /// `hidden_size`.
    pub fn vector_width(&self) -> usize {
        let Some(encoder) = &self.encoder else { return self.hidden_size };
        match &encoder.classifier {
            Some(classifier) => classifier.labels.len(),
            None => encoder.dense.last().map_or(self.hidden_size, |dense| dense.out_features),
        }
    }

    /// Why an encoder is refused by what needs a decoder for its `purpose`.
    pub fn is_encoder(&self, purpose: &str) -> LoadError {
        let problem = format!("{} is an encoder, which gives vectors of texts and no {purpose}", self.family);
        LoadError::field(CONFIG, "architectures", problem)
    }

    /// The same layers with a judge of the last row in place of the head.
    fn with_judge(self, classifier: Classifier) -> Result<ModelConfig, LoadError> {
        let heads = self.layers[0].heads;
        let is_plain = |layer: &LayerConfig| layer.mixer == Mixer::Attention && layer.heads == heads;
        if self.layer_input.is_some() || !self.layers.iter().all(is_plain) {
            let problem = format!("classifiers of {} are not supported: its layers differ", self.family);
            return Err(LoadError::field(CONFIG, "architectures", problem));
        }
        let mut config = with_layers_of_decoder(self, false);
        config.encoder.iter_mut().for_each(|encoder| encoder.classifier = Some(classifier.clone()));
        Ok(config)
    }

    /// Qwen3-Reranker, which no field of its configuration tells from a model that writes: its name does.
    fn with_reranker(self, checkpoint: &Checkpoint) -> Result<ModelConfig, LoadError> {
        let name = checkpoint.path().map(name_of).unwrap_or_default();
        let rows = matches!(&self.encoder, Some(EncoderConfig { classifier: Some(judge), .. })
            if judge.form == ClassifierForm::Rows);
        if self.family != Family::Qwen3 || !(rows || name.contains("qwen3-reranker")) {
            return Ok(self);
        }
        let mut config = match self.encoder {
            Some(_) => self,
            None => {
                let tokenizer = text::tokenizer::Tokenizer::load(checkpoint, self.vocab_size)?;
                let id = |word: &str| match tokenizer.encode(word, false).as_deref() {
                    Ok(&[id]) => Ok(id),
                    _ => {
                        let problem = format!("{word:?} is no token, and a reranker answers with it");
                        Err(LoadError::field("tokenizer.json", "model.vocab", problem))
                    }
                };
                let form = ClassifierForm::Tokens([id("yes")?, id("no")?]);
                self.with_judge(Classifier { labels: vec!["yes".into()], form, sigmoid: true, is_raw: false })?
            }
        };
        // What it was published with; longer texts would take memory for rows that none is.
        config.context_limit = config.context_limit.min(RERANKED);
        config.encoder.iter_mut().for_each(|encoder| encoder.template = Some(QWEN3_RERANKER));
        Ok(config)
    }

    /// What sentence-transformers keeps beside the configuration of an encoder that gives vectors.
    pub(super) fn with_modules(self, checkpoint: &Checkpoint) -> Result<ModelConfig, LoadError> {
        let mut config = self.with_reranker(checkpoint)?;
        if config.encoder.is_none() || checkpoint.is_gguf() {
            return Ok(config);
        }
        if let Some(map) = object(checkpoint, LENGTH, LENGTH)? {
            let fields = Fields { file: LENGTH, path: String::new(), map: &map };
            let longest = fields.optional_size("max_seq_length", POSITIONS)?;
            config.context_limit = longest.map_or(config.context_limit, |longest| longest.min(config.context_limit));
        }
        let width = config.hidden_size;
        let Some(encoder) = config.encoder.as_mut().filter(|encoder| encoder.classifier.is_none()) else {
            return Ok(config);
        };
        let Some(text) = checkpoint.read_text_capped(MODULES, MAX_CONFIG_BYTES)? else { return Ok(config) };
        let modules: Vec<Value> =
            serde_json::from_str(&text).map_err(|error| LoadError::json(MODULES, "JSON", &error))?;
        if modules.len() > MAX_MODULES {
            return Err(LoadError::field(
                MODULES,
                "top level",
                format!("{} modules; at most {MAX_MODULES}", modules.len()),
            ));
        }
        let mut width = width;
        let mut is_pooled = false;
        for (index, module) in modules.iter().enumerate() {
            let refuse = |problem: String| Err(LoadError::field(MODULES, format!("[{index}]"), problem));
            let kind = module["type"].as_str().and_then(|kind| kind.rsplit('.').next()).unwrap_or("");
            let directory = module["path"].as_str().unwrap_or("");
            if directory.contains(['/', '\\']) || directory.starts_with('.') {
                return refuse(format!("path: {} is not the name of a directory", quoted(directory)));
            }
            match kind {
                "Transformer" if index == 0 => {}
                "Pooling" if index > 0 && !is_pooled => {
                    encoder.pooling = pooling(checkpoint, directory, width)?;
                    encoder.pooling_is_assumed = false;
                    is_pooled = true;
                }
                "Dense" if is_pooled => {
                    let dense = dense(checkpoint, directory, width)?;
                    width = dense.out_features;
                    encoder.dense.push(dense);
                }
                "Normalize" if index + 1 == modules.len() => encoder.normalize = true,
                "Dropout" => {}
                other => return refuse(format!("type: {} is not supported here", quoted(other))),
            }
        }
        if !is_pooled {
            let problem = "no module of the kind Pooling behind a Transformer: a text has no vector";
            return Err(LoadError::field(MODULES, "top level", problem));
        }
        Ok(config)
    }
}

/// A required file of a module.
fn module(
    checkpoint: &Checkpoint,
    directory: &str,
    file: &'static str,
) -> Result<serde_json::Map<String, Value>, LoadError> {
    let name = format!("{directory}/{CONFIG}");
    let missing = || LoadError::NoFile { file: name.clone(), checkpoint: checkpoint.location() };
    object(checkpoint, &name, file)?.ok_or_else(missing)
}

/// Ways of pooling: the field that is true, the name of newer files.
const MODES: [(&str, &str, Pooling); 5] = [
    ("pooling_mode_cls_token", "cls", Pooling::Cls),
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_max_tokens", "max", Pooling::Max),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Pooling::MeanSqrt),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

fn pooling(checkpoint: &Checkpoint, directory: &str, width: usize) -> Result<Pooling, LoadError> {
    let map = module(checkpoint, directory, POOLING)?;
    let fields = Fields { file: POOLING, path: String::new(), map: &map };
    for name in ["word_embedding_dimension", "embedding_dimension"] {
        if let Some(other) = fields.optional_size(name, MAX_WIDTH)?.filter(|&other| other != width) {
            return Err(fields.error(name, format!("{other}; what comes before it is {width} wide")));
        }
    }
    if !fields.flag("include_prompt", true)? {
        return Err(fields.error("include_prompt", "false is not supported; all of a text is pooled"));
    }
    if let Some(name) = fields.text("pooling_mode")? {
        let mode = MODES.iter().find(|(_, short, _)| *short == name).map(|(.., mode)| *mode);
        return mode.ok_or_else(|| fields.error("pooling_mode", format!("{} is not supported", quoted(name))));
    }
    if fields.flag("pooling_mode_weightedmean_tokens", false)? {
        return Err(fields.error("pooling_mode_weightedmean_tokens", "true is not supported"));
    }
    let mut chosen = None;
    for (name, _, mode) in MODES {
        if fields.flag(name, false)? && chosen.replace(mode).is_some() {
            return Err(fields.error(name, "two ways of pooling are not supported"));
        }
    }
    chosen.ok_or_else(|| fields.error("pooling_mode_mean_tokens", "no way of pooling is true"))
}

fn dense(checkpoint: &Checkpoint, directory: &str, width: usize) -> Result<Dense, LoadError> {
    let map = module(checkpoint, directory, DENSE)?;
    let fields = Fields { file: DENSE, path: String::new(), map: &map };
    let in_features = fields.size("in_features", MAX_WIDTH)?;
    if in_features != width {
        return Err(fields.error("in_features", format!("{in_features}; what comes before it is {width} wide")));
    }
    let activation = fields.text("activation_function")?.and_then(|name| name.rsplit('.').next());
    let tanh = match activation {
        Some("Tanh") | None => true,
        Some("Identity") => false,
        Some(other) => {
            let problem = format!("{} is not supported; Tanh and Identity are", quoted(other));
            return Err(fields.error("activation_function", problem));
        }
    };
    let out_features = fields.size("out_features", MAX_WIDTH)?;
    Ok(Dense {
        directory: directory.to_string(),
        in_features,
        out_features,
        has_bias: fields.flag("bias", true)?,
        tanh,
    })
}

/// The last part of a model's path, or the hub id in whose snapshot it is; in lower case.
fn name_of(path: &Path) -> String {
    let snapshots = path.ancestors().find(|above| above.file_name().is_some_and(|name| name == "snapshots"));
    let of_hub = snapshots.and_then(Path::parent).and_then(Path::file_name).unwrap_or_default();
    let last = path.file_name().unwrap_or_default();
    format!("{} {}", of_hub.to_string_lossy(), last.to_string_lossy()).to_lowercase()
}
