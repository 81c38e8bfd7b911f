//! `config.json` and `generation_config.json`: what a checkpoint says about itself.
//!
//! Two spellings are in use. transformers 4 writes `rope_theta` and `rope_scaling` (whose kind is `rope_type`, once
//! `type`) beside the other fields; transformers 5 puts all of it into `rope_parameters`. Both are read here and give
//! the same [`ModelConfig`], which holds only what the forward pass uses, checked: a value that is zero, absurd or
//! meant for another architecture is refused under its own name before anything is allocated.
//!
//! ```text
//! config.json ──fields──> family.rs: what the architecture fixes, reads, and assumes ──> ModelConfig: the arithmetic
//! ```

mod cache;
mod encoder;
mod family;
pub(crate) mod fields;
mod layers;
mod rope;
mod shape;

pub use cache::{CacheLayer, CacheShape};
pub use encoder::{Classifier, ClassifierForm, Dense, EncoderConfig, PairTemplate, Pooling, PositionTable};
pub use family::{AttentionGate, Family, FusedProjections, HeadNorm, NormKind, NormPlacement};
pub use layers::{
    DeltaConfig, ExpertConfig, FeedForward, LatentConfig, MambaConfig, Mixer, MixerWidths, SharedExpertConfig,
    ShortConvolutionConfig,
};
pub use rope::RopeConfig;

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError};
use family::{AttentionBias, Factors, MixerFields, Traits};
use fields::{Fields, parse_object, quoted};
use kernels::{Activation, AttentionRule, HeadLayout, KvDtype, WeightClass};
use protocol::sampling::{SamplingParams, options};
use roofline::WideParts;
use serde_json::{Map, Value};

pub(crate) const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
/// What changes of it are named by.
const OVERRIDES: &str = "--override-generation-config";
/// A configuration is a few kilobytes; a larger file than this is refused.
pub(crate) const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Numbers of an xIELU.
pub(crate) const XIELU: [&str; 4] = ["alpha_p", "alpha_n", "beta", "eps"];
/// Largest number of queries, keys and values.
const CLIP: &str = "clip_qkv";

/// Of any multiplier.
const FACTOR: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// Widest input of a matrix: above it an int8 sum could leave 32 bits (see [`kernels::MatrixShape`]).
const MAX_WIDTH: usize = 1 << 17;

/// A transformer, as far as the forward pass needs to know it: a decoder, or an encoder. Every number is checked and
/// nonzero.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Which architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP; layers may have wider ones: see [`LayerConfig::mlp_width`].
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Layers behind these that draft further tokens, which no answer needs: see [`Feature`](crate::draft::Feature).
    pub num_next_token_layers: usize,
    /// Of all layers but those that have heads of their own: see [`LayerConfig::heads`]. Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads` (grouped-query attention: Ainslie et al., 2023).
    pub num_kv_heads: usize,
    /// Width of a head; a multiple of 16, at most 512. Of latent attention, of the key that its heads share: at most 576.
    pub head_dim: usize,
    /// Rows of the embedding: token ids are below it.
    pub vocab_size: usize,
    /// Positions that the checkpoint's own field states.
    pub max_position_embeddings: usize,
    /// Positions that make sense with the rope scaling: what a request may use at most.
    pub context_limit: usize,
    /// `[num_layers]`.
    pub layers: Vec<LayerConfig>,
    /// The rotations that layers refer to.
    pub ropes: Vec<RopeConfig>,
    /// Experts of the layers that have them; `intermediate_size` is the width of the others' MLP.
    pub experts: Option<ExpertConfig>,
    /// Where blocks have their norms.
    pub norms: NormPlacement,
    /// What norms of the stream take.
    pub norm: NormKind,
    /// Norms multiply by 1 plus the stored weight.
    pub norms_around_zero: bool,
    /// But the last one does not.
    pub plain_final_norm: bool,
    /// The embedding is normed, without weights.
    pub normed_embedding: bool,
    /// Added under the root in every norm, but those of blocks' outputs.
    pub rms_norm_eps: f32,
    /// Added under the root in those.
    pub after_norm_eps: f32,
    /// The norm of q and k.
    pub head_norm: HeadNorm,
    /// What it multiplies queries by where it has no weights.
    pub head_norm_factor: Option<f32>,
    /// Of the gate, in every MLP.
    pub activation: Activation,
    /// The same layer by layer, where the configuration has its numbers; empty: tensors of layers have them, or it is the
    /// same in all.
    pub layer_activations: Vec<Activation>,
    /// Multiplies the scores of attention.
    pub attention_scale: f32,
    /// Scores are bent below this.
    pub attention_softcap: Option<f32>,
    /// Multiplies what attention gives to its last product.
    pub attention_output_multiplier: f32,
    /// Multiplies embeddings.
    pub embedding_multiplier: f32,
    /// Multiplies what a block adds to the residual stream.
    pub residual_multiplier: f32,
    /// Multiplies logits.
    pub logits_multiplier: f32,
    /// Logits are bent below this.
    pub logits_softcap: Option<f32>,
    /// What makes logits of the last hidden row.
    pub head: Head,
    /// A bias on it.
    pub head_bias: bool,
    /// Which projections are stored as one tensor.
    pub fused_projections: FusedProjections,
    /// The MLP is gated; otherwise it is up, the activation, down.
    pub gated_mlp: bool,
    /// Pairs that turn are stored as neighbours, 0 and 1, and not halves apart.
    pub neighbours: bool,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// A bias on the attention's output projection.
    pub o_bias: bool,
    /// Queries, keys and values are clamped to this and its negative.
    pub clip_qkv: Option<f32>,
    /// Gates of attention's output.
    pub attention_gate: AttentionGate,
    /// Each query head has a logit in the softmax that has no value: see [`kernels::Attention::sinks`].
    pub sinks: bool,
    /// Windows are chunks: see [`AttentionRule::chunked`].
    pub chunked: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
    /// What a layer learns of a row's token besides the residual stream.
    pub layer_input: Option<LayerInputConfig>,
    /// The stream is multiplied by a stored number behind each layer.
    pub layer_scalars: bool,
    /// Begin-of-text tokens; often one, may be none.
    pub bos_token_ids: Vec<u32>,
    /// End-of-text tokens; may be none here and given by [`GenerationDefaults`].
    pub eos_token_ids: Vec<u32>,
    /// It is an encoder: see [`Encoder`](crate::Encoder). `None`: a decoder.
    pub encoder: Option<EncoderConfig>,
}

/// The language-model head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The embedding's matrix.
    Embedding,
    /// A separate matrix.
    Own,
    /// There is none: the checkpoint was saved from a class without one. It gives vectors of texts, and no token.
    Absent,
}

impl Head {
    /// Matrices `[vocab_size, hidden_size]` in all, the embedding among them.
    pub fn tables(self) -> u64 {
        if self == Head::Own { 2 } else { 1 }
    }
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// How its rows learn of earlier ones.
    pub mixer: Mixer,
    /// Attention sees this many last tokens; `None`: all.
    pub window: Option<usize>,
    /// Index of its rotation; `None`: queries and keys do not turn.
    pub rope: Option<usize>,
    /// What it does to each row by itself, behind the mixer if there is one.
    pub feed: FeedForward,
    /// Width of its MLP, where it has one without experts.
    pub mlp_width: usize,
    /// The heads of its attention.
    pub heads: HeadLayout,
    /// Its values are its keys before their norm and rotation.
    pub values_are_keys: bool,
    /// Where its keys and values are.
    pub cache: CacheLayer,
}

/// A vector of each token for each layer, beside its embedding (Gemma 3n and Gemma 4: Gemma Team, 2025).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputConfig {
    /// Numbers for a layer.
    pub width: usize,
    /// Rows of the table: tokens are below it.
    pub vocab_size: usize,
}

impl ModelConfig {
    /// No config.json that is read is longer.
    pub const MAX_BYTES: u64 = MAX_CONFIG_BYTES;

    /// Reads `config.json`. Which head the weights have is their own to say: [`with_head_of`](Self::with_head_of).
    pub fn load(checkpoint: &Checkpoint) -> Result<ModelConfig, LoadError> {
        let text = checkpoint
            .read_text_capped(CONFIG, MAX_CONFIG_BYTES)?
            .ok_or_else(|| LoadError::NoFile { file: CONFIG.to_string(), checkpoint: checkpoint.location() })?;
        let config = Self::parse(&text).map_err(|error| checkpoint.translate_error(error))?;
        config.with_modules(checkpoint)
    }

    /// A cache of its keys and values: those of the layers that have them.
    pub fn cache_shape(&self, dtype: KvDtype, blocks: usize, block_size: usize) -> CacheShape {
        cache::shape(&self.layers, (dtype, blocks, block_size))
    }

    /// Numbers of a layer's rows between the first and the last product of each of its mixers.
    pub fn mixer_widths(&self, layer: usize) -> impl Iterator<Item = MixerWidths> {
        let LayerConfig { heads, mixer, .. } = self.layers[layer];
        let of_heads = move || MixerWidths { row: heads.qkv_width(), gates: 0, out: heads.out_width() };
        mixer.parts().map(move |mixer| mixer.widths().unwrap_or_else(of_heads))
    }

    /// Reads the text of a `config.json`.
    pub fn parse(text: &str) -> Result<ModelConfig, LoadError> {
        let root = parse_object(CONFIG, text)?;
        Self::of_fields(Fields { file: CONFIG, path: String::new(), map: &root })
    }

    /// Of an object that may lie within another one.
    pub(crate) fn of_fields(fields: Fields<'_>) -> Result<ModelConfig, LoadError> {
        let of_kimi = Traits::of(&fields).is_ok_and(|(traits, _)| traits.mixers == MixerFields::Kimi);
        Self::read_fields(fields).map_err(|error| if of_kimi { in_words_of_kimi(error) } else { error })
    }

    fn read_fields(fields: Fields<'_>) -> Result<ModelConfig, LoadError> {
        if let Some(encoder) = encoder::read(&fields)? {
            return Ok(encoder);
        }
        if let Some(class) = encoder::judged_class(&fields)? {
            let mut map = fields.map.clone();
            map.insert("architectures".into(), serde_json::json!([class]));
            let decoder = Self::of_fields(Fields { map: &map, path: fields.path.clone(), ..fields })?;
            return encoder::judging(decoder, &fields);
        }
        let (traits, is_base) = Traits::of(&fields)?;
        let text_part = traits.text_part.map(|part| text_part(&fields, part.assumed)).transpose()?;
        let of_kimi = (traits.mixers == MixerFields::Kimi).then(|| kimi_fields(&fields)).transpose()?;
        let fields = match (&text_part, &of_kimi) {
            (Some(map), _) => Fields { file: CONFIG, path: "text_config.".to_string(), map },
            (None, Some(map)) => Fields { map, ..fields },
            (None, None) => fields,
        };
        let both_ways = is_base && encoder::looks_both_ways(&fields, traits.family);
        refuse_what_is_not_computed(&fields, traits, both_ways)?;

        let hidden_size = fields.size("hidden_size", MAX_WIDTH)?;
        let num_layers = match traits.mixers {
            MixerFields::SingleBlocks => layers::single_blocks(&fields)?.len(),
            _ => fields.size("num_hidden_layers", 1024)?,
        };
        let num_heads = fields.size("num_attention_heads", 1024)?;
        let latent = match traits.mixers {
            MixerFields::Latent | MixerFields::Kimi => Some(LatentConfig::read(&fields, num_heads)?),
            _ => None,
        };
        let num_kv_heads = match latent {
            Some(_) => 1,
            None => fields.optional_size("num_key_value_heads", 1024)?.unwrap_or(num_heads),
        };
        if num_heads % num_kv_heads != 0 {
            let problem = format!("{num_kv_heads} does not divide num_attention_heads = {num_heads}");
            return Err(fields.error("num_key_value_heads", problem));
        }
        let head_dim = match latent {
            Some(latent) => latent.shape.layout().head_dim,
            None => head_dim(&fields, traits, hidden_size, num_heads)?,
        };
        let max_position_embeddings = fields.size("max_position_embeddings", 1 << 27)?;
        let (qkv_bias, o_bias) = match traits.attention_bias {
            AttentionBias::Never => (false, false),
            AttentionBias::Qkv => (true, false),
            AttentionBias::Assumed => [fields.flag("attention_bias", true)?; 2].into(),
            AttentionBias::AssumedQkv => (fields.flag("attention_bias", true)?, false),
            AttentionBias::UseQkvBias => (fields.flag("use_qkv_bias", false)?, false),
            AttentionBias::UseBias => [fields.flag("use_bias", true)?; 2].into(),
            AttentionBias::StatedQkv => (fields.flag("attention_bias", false)?, false),
            AttentionBias::Stated => [fields.flag("attention_bias", false)?; 2].into(),
            AttentionBias::StatedApart => {
                (fields.flag("attention_bias", true)?, fields.flag("attention_out_bias", false)?)
            }
        };
        // Scores are those of the heads' own keys, wherever they are computed.
        let scored = latent.map_or(head_dim, |LatentConfig { shape, .. }| shape.plain + shape.turning);
        let multipliers = Multipliers::read(&fields, traits, hidden_size, scored)?;
        let experts = ExpertConfig::read(&fields, traits)?;
        let gates = match traits.attention_gate {
            AttentionGate::None => 0,
            AttentionGate::WithQueries | AttentionGate::PerNumber => head_dim,
            AttentionGate::PerHead => 1,
        };
        let own = || HeadLayout { num_heads, num_kv_heads, head_dim, gates, ..HeadLayout::default() };
        let heads = latent.map_or_else(own, |latent| latent.shape.layout());
        let mut layers = layers::layers(&fields, traits, num_layers, heads)?;
        let widths = |windowed| layers.iter().filter(move |layer: &&LayerConfig| layer.window.is_some() == windowed);
        let head_dim_of = |windowed| widths(windowed).next().map_or(head_dim, |layer| layer.heads.head_dim);
        let head_dims = match latent {
            Some(latent) => (latent.shape.turning, 0),
            None => (head_dim_of(false), head_dim_of(true)),
        };
        let (ropes, context_limit) = rope::ropes(&fields, traits, head_dims, (max_position_embeddings, num_layers))?;
        // Where all layers have experts, no field says how wide another MLP would be.
        let only_experts = experts
            .filter(|experts| !experts.beside_mlp && layers.iter().all(|layer| layer.feed != FeedForward::Dense));
        let intermediate_size = match (fields.optional_size("intermediate_size", MAX_WIDTH)?, only_experts) {
            (None, Some(experts)) => experts.intermediate_size,
            // Dense layers of this family have what is beside the experts in others.
            (_, None) if traits.experts == family::ExpertFields::Granite && experts.is_none() => {
                fields.size("shared_intermediate_size", MAX_WIDTH)?
            }
            _ if traits.computed_width => lfm2_width(&fields)?,
            _ if traits.experts == family::ExpertFields::Llama4 => fields.size("intermediate_size_mlp", MAX_WIDTH)?,
            (Some(width), _) if traits.experts == family::ExpertFields::Cohere => {
                fields.optional_size("prefix_dense_intermediate_size", MAX_WIDTH)?.unwrap_or(width)
            }
            _ => fields.size("intermediate_size", MAX_WIDTH)?,
        };
        layers::set_mlp_widths(&fields, &mut layers, intermediate_size)?;
        let activation = activation(&fields, traits)?;
        let of_states = fields.text("mamba_hidden_act")?;
        let is_silu = match traits.mixers {
            MixerFields::SingleBlocks => of_states.is_none_or(|name| name == "silu"),
            _ => matches!(activation, Activation::Silu | Activation::ScaledSilu { .. }),
        };
        if !is_silu && layers.iter().any(|layer| layer.mixer.state_numbers() > 0) {
            let name = if of_states.is_some() { "mamba_hidden_act" } else { "hidden_act" };
            return Err(fields.error(name, "models with states have silu only"));
        }

        let eps = fields.optional_float(traits.eps_field, 1e-12..=1.0)?.unwrap_or(traits.eps);
        let (norm, eps) = match fields.optional_float("rms_norm_eps", 1e-12..=1.0)? {
            Some(eps) if traits.rms_if_stated => (NormKind::Rms, eps),
            _ => (traits.norm, eps),
        };
        let after_eps = match traits.after_eps {
            Some(absent) => fields.optional_float("post_norm_eps", 1e-12..=1.0)?.unwrap_or(absent),
            None => eps,
        };
        let head_norm_factor = match traits.head_norm_factor {
            Some(absent) => Some(fields.optional_float("qk_scale_factor", 1e-6..=1e6)?.unwrap_or(absent) as f32),
            None => None,
        };
        let config = ModelConfig {
            family: traits.family,
            hidden_size,
            intermediate_size,
            num_layers,
            num_next_token_layers: fields.optional_integer("num_nextn_predict_layers", 0..=64)?.unwrap_or(0) as usize,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: fields.size("vocab_size", 1 << 24)?,
            max_position_embeddings,
            context_limit,
            layers,
            ropes,
            experts,
            norms: traits.norms,
            norm,
            norms_around_zero: traits.norms_around_zero,
            plain_final_norm: traits.plain_final_norm,
            normed_embedding: traits.normed_embedding,
            rms_norm_eps: eps as f32,
            after_norm_eps: after_eps as f32,
            head_norm_factor,
            head_norm: match traits.head_norm_if_asked {
                Some(absent) if !fields.flag("use_qk_norm", absent)? => HeadNorm::None,
                _ => traits.head_norm,
            },
            layer_activations: layer_activations(&fields, num_layers)?,
            activation,
            attention_scale: match latent {
                Some(_) => multipliers.attention_scale * rope::score_factor(&fields)?,
                None => multipliers.attention_scale,
            },
            attention_softcap: multipliers.attention_softcap,
            attention_output_multiplier: multipliers.attention_output,
            embedding_multiplier: multipliers.embedding,
            residual_multiplier: multipliers.residual,
            logits_multiplier: multipliers.logits,
            logits_softcap: multipliers.logits_softcap,
            head: match fields.flag("tie_embedding", fields.flag("tie_word_embeddings", traits.tied)?)? {
                true => Head::Embedding,
                false if is_base => Head::Absent,
                false => Head::Own,
            },
            head_bias: traits.head_bias && fields.flag("lm_head_bias", false)?,
            fused_projections: traits.fused_projections,
            gated_mlp: traits.gated_mlp,
            neighbours: traits.neighbours,
            qkv_bias,
            o_bias,
            attention_gate: traits.attention_gate,
            sinks: traits.sinks,
            chunked: traits.family == Family::Llama4,
            clip_qkv: fields.optional_float(CLIP, 1e-3..=1e9)?.map(|limit| limit as f32),
            mlp_bias: match traits.attention_bias {
                AttentionBias::UseBias => o_bias,
                _ => traits.mlp_bias && fields.flag("mlp_bias", false)?,
            },
            bos_token_ids: fields.token_ids("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
            layer_input: layers::layer_input(&fields, traits)?,
            layer_scalars: traits.layer_scalars,
            encoder: None,
        };
        if both_ways { encoder::of_decoder(config, &fields) } else { Ok(config) }
    }

    /// The same, with the head that the weights have. One that is stored beside the embedding and is another matrix is
    /// the head, whatever the configuration says of ties; and weights saved from a class without a head need have none.
    /// Reads rows of both matrices until two differ: all of them if they are copies.
    pub fn with_head_of(mut self, weights: &Weights) -> Result<ModelConfig, LoadError> {
        if self.encoder.is_none() {
            self.head = crate::tensors::head_of(&self, weights)?;
        }
        Ok(self)
    }

    /// Numbers (float32) of the states that a sequence has in all layers. 0: every layer's memory is keys and values.
    pub fn state_numbers(&self) -> usize {
        self.layers.iter().map(|layer| layer.mixer.state_numbers()).sum()
    }

    /// A layer's latent attention.
    pub(crate) fn latent(&self, layer: usize) -> Option<LatentConfig> {
        match self.layers[layer].mixer {
            Mixer::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    /// Numbers of a row that lie between products within a layer's mixer; `None`: there are none.
    pub(crate) fn between(&self, layer: usize) -> Option<[usize; 3]> {
        self.layers[layer].mixer.parts().find_map(|mixer| mixer.between())
    }

    /// The heads of the layers of attention.
    pub(crate) fn attention_heads(&self) -> impl Iterator<Item = HeadLayout> {
        self.layers.iter().filter(|layer| layer.mixer.has_keys()).map(|layer| layer.heads)
    }

    /// See [`ExpertConfig::beside_mlp`].
    pub(crate) fn has_experts_beside_mlps(&self) -> bool {
        self.experts.is_some_and(|experts| experts.beside_mlp)
    }

    /// Whether a layer with these heads norms its values.
    pub(crate) fn has_value_norms(&self, heads: HeadLayout) -> bool {
        self.head_norm == HeadNorm::WithValues && !heads.queries_only
    }

    /// Whether a layer norms queries and keys without weights: behind a rotation only where there is one.
    pub(crate) fn has_plain_head_norms(&self, layer: usize) -> bool {
        let turns = self.layers[layer].rope.is_some_and(|rope| self.ropes[rope].rotary_dim > 0);
        let is_asked = self.head_norm != HeadNorm::None && self.head_norm_factor.is_some();
        is_asked && self.layers[layer].mixer.has_keys() && (turns || self.head_norm != HeadNorm::AfterRotation)
    }

    /// The first of the layers behind which no key is stored: rows without logits need not go further. The number of
    /// layers, less one for the rest of the last, in most models.
    pub(crate) fn first_reading_layer(&self) -> usize {
        let owns = |layer: &LayerConfig| match layer.mixer.has_keys() {
            true => !layer.heads.queries_only,
            false => layer.mixer != Mixer::None,
        };
        self.layers.iter().rposition(owns).map_or(0, |last| last + 1)
    }

    /// How a layer's attention weighs what it sees.
    pub fn attention_rule(&self, layer: usize) -> AttentionRule {
        AttentionRule {
            scale: self.attention_scale,
            softcap: self.attention_softcap,
            window: self.layers[layer].window,
            chunked: self.chunked,
            both_ways: self.encoder.as_ref().is_some_and(|encoder| encoder.both_ways),
        }
    }

    /// Width of the widest MLP, experts counted one by one.
    pub fn widest_mlp(&self) -> usize {
        let experts = self.experts.filter(|_| self.layers.iter().any(LayerConfig::has_experts));
        let is_dense = |layer: &&LayerConfig| layer.feed == FeedForward::Dense || self.has_experts_beside_mlps();
        let dense = self.layers.iter().filter(is_dense).map(|layer| layer.mlp_width).max();
        let of = |experts: ExpertConfig| experts.intermediate_size.max(experts.shared.map_or(0, |shared| shared.width));
        experts.map(of).max(dense).unwrap_or(0)
    }

    /// Weights in the matrices of all layers, every expert counted. The embedding and the head are not in it.
    pub fn layer_parameters(&self) -> u64 {
        self.layer_parameters_with(|experts| experts.num_experts)
    }

    /// Weights in the matrices of all layers that a token passes through: of the experts, those that it is sent to.
    pub fn active_layer_parameters(&self) -> u64 {
        self.layer_parameters_with(|experts| experts.rule.top_k)
    }

    /// The matrices of a layer that are int8 in an int4 model.
    pub(crate) fn wide_parts(&self, layer: usize) -> WideParts {
        let HeadLayout { num_heads, num_kv_heads, .. } = self.layers[layer].heads;
        WideParts::of_layer((layer, self.num_layers), self.hidden_size, (num_heads, num_kv_heads))
    }

    /// Weights in these of all layers.
    pub fn wide_parameters(&self) -> u64 {
        let of_layer = |index: usize| {
            let (layer, wide) = (&self.layers[index], self.wide_parts(index));
            let is_attention = layer.mixer.parts().any(|part| part == Mixer::Attention);
            let outs: usize = self.mixer_widths(index).map(|widths| widths.out).sum();
            let (first, is_dense) = (self.mlp_matrices() as usize - 1, layer.feed == FeedForward::Dense);
            let of = |is_wide, width: usize| if is_wide { (self.hidden_size * width) as u64 } else { 0 };
            of(wide.keys_and_values && is_attention, 2 * layer.heads.kv_width())
                + of(wide.o, outs)
                + of(wide.gate_up && is_dense, first * layer.mlp_width)
                + of(wide.down && is_dense, layer.mlp_width)
        };
        (0..self.num_layers).map(of_layer).sum()
    }

    /// Matrices of an MLP: a gated one has three.
    pub(crate) fn mlp_matrices(&self) -> u64 {
        if self.gated_mlp { 3 } else { 2 }
    }

    /// Weights of one of a layer's experts.
    pub(crate) fn expert_parameters(&self, experts: &ExpertConfig) -> u64 {
        self.mlp_matrices() * (experts.intermediate_size * experts.latent.unwrap_or(self.hidden_size)) as u64
    }

    fn layer_parameters_with(&self, counted: fn(&ExpertConfig) -> usize) -> u64 {
        let hidden = self.hidden_size as u64;
        let mixer = |layer: usize| {
            let outer = self.mixer_widths(layer).map(|MixerWidths { row, gates, out }| row + gates + out);
            hidden * outer.sum::<usize>() as u64 + self.layers[layer].mixer.inner_parameters() as u64
        };
        let matrices = self.mlp_matrices();
        let dense = |layer: &LayerConfig| matrices * hidden * layer.mlp_width as u64;
        let mlp = |layer: &LayerConfig| match (layer.feed, self.experts.as_ref()) {
            (FeedForward::None, _) => 0,
            (FeedForward::Experts, Some(experts)) => {
                let counted = counted(experts) as u64 * self.expert_parameters(experts);
                let latent = 2 * hidden * experts.latent.unwrap_or(0) as u64;
                let of = |shared: SharedExpertConfig| matrices * shared.width as u64 + u64::from(shared.gated);
                let shared = experts.shared.map_or(0, of);
                let beside = if experts.beside_mlp { dense(layer) } else { 0 };
                beside + counted + latent + hidden * (experts.num_experts as u64 + shared) // the router's first
            }
            _ => dense(layer),
        };
        // The projection of the embedding for a layer, the gate, the projection back.
        let input = self.layer_input.map_or(0, |input| 3 * hidden * input.width as u64);
        self.layers.iter().enumerate().map(|(index, layer)| mixer(index) + mlp(layer) + input).sum()
    }

    /// Weights of the table of vectors for layers, of which a token reads one row.
    pub fn row_table_parameters(&self) -> u64 {
        self.layer_input.map_or(0, |input| (input.vocab_size * input.width * self.num_layers) as u64)
    }

    /// About what the weights take in memory.
    pub fn weight_bytes(&self, class: WeightClass) -> u64 {
        let tables = self.head.tables() * self.head_parameters() + self.row_table_parameters();
        let wide = self.wide_parameters();
        class_bytes(class, self.layer_parameters() - wide)
            + class_bytes(roofline::embedding_class(class), wide + tables)
    }

    /// The same where experts have `expert_memory` bytes: what of the weights is in memory.
    pub fn weight_bytes_in_memory(&self, class: WeightClass, expert_memory: Option<u64>) -> u64 {
        let all = self.weight_bytes(class);
        let Some(memory) = expert_memory else { return all };
        let experts = self.layer_parameters() - self.layer_parameters_with(|_| 0);
        all - (class_bytes(class, experts)).saturating_sub(memory)
    }

    /// Weights in the language-model head, which only rows with logits use.
    pub fn head_parameters(&self) -> u64 {
        self.vocab_size as u64 * self.hidden_size as u64
    }

    /// Multiplications and additions that the layers' matrices cost for one token. Attention over the context comes on
    /// top: see [`attention_flops`](Self::attention_flops).
    pub fn flops_per_token(&self) -> u64 {
        2 * self.active_layer_parameters()
    }

    /// Multiplications and additions of the language-model head for one row of logits.
    pub fn flops_per_logit_row(&self) -> u64 {
        2 * self.head_parameters()
    }

    /// Multiplications and additions of attention for one token that sees `context_len` tokens, all layers.
    pub fn attention_flops(&self, context_len: usize) -> u64 {
        let width = |heads: HeadLayout| (heads.q_width() + heads.out_width()) as u64;
        2 * self.attention_heads().map(width).sum::<u64>() * context_len as u64
    }

    /// Multiplications and additions of the states of one token, all layers.
    pub fn state_flops(&self) -> u64 {
        self.layers.iter().map(|layer| layer.mixer.state_flops() as u64).sum()
    }
}

/// Width of the MLP in LFM2: two thirds of what is stated, times a factor, rounded up, unless a field says that the
/// stated one holds.
fn lfm2_width(fields: &Fields<'_>) -> Result<usize, LoadError> {
    const FACTOR: &str = "block_ffn_dim_multiplier";
    let stated = match fields.optional_size("block_ff_dim", MAX_WIDTH)? {
        Some(width) => width,
        None => fields.size("intermediate_size", MAX_WIDTH)?,
    };
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(stated);
    }
    let width = 2 * stated / 3;
    let factor = match fields.map.get(FACTOR).is_some_and(Value::is_null) {
        true => return Ok(width),
        false => fields.optional_float(FACTOR, 1e-6..=1e6)?.unwrap_or(1.0),
    };
    let multiple = fields.optional_size("block_multiple_of", MAX_WIDTH)?.unwrap_or(256);
    match ((factor * width as f64) as usize).next_multiple_of(multiple) {
        width @ 1..=MAX_WIDTH => Ok(width),
        width => Err(fields.error(FACTOR, format!("{factor} makes the MLP {width} wide; at most {MAX_WIDTH}"))),
    }
}

/// The fields of a text model that is a part of something larger: its own, what it says with the others, what is
/// assumed. Old uploads have them beside the others.
fn text_part(fields: &Fields<'_>, assumed: &[(&str, u64)]) -> Result<Map<String, Value>, LoadError> {
    let mut map = match fields.object("text_config")? {
        Some(own) => own.map.clone(),
        None if fields.get("num_hidden_layers").is_some() => fields.map.clone(),
        None => return Err(fields.error("text_config", "missing")),
    };
    for name in ["bos_token_id", "eos_token_id", "tie_word_embeddings"] {
        if let Some(value) = fields.get(name) {
            map.insert(name.to_string(), value.clone());
        }
    }
    for (name, value) in assumed {
        map.entry(*name).or_insert_with(|| (*value).into());
    }
    Ok(map)
}

/// Names of Kimi Linear, and those that others have for the same.
const KIMI_NAMES: [(&str, &str); 6] = [
    ("num_experts", "n_routed_experts"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("moe_renormalize", "norm_topk_prob"),
    ("num_expert_group", "n_group"),
    ("num_shared_experts", "n_shared_experts"),
    ("model_max_length", "max_position_embeddings"),
];

/// An error that names a field as its file does.
fn in_words_of_kimi(error: LoadError) -> LoadError {
    match error {
        LoadError::Field { file, field, problem } => {
            let theirs = KIMI_NAMES.iter().find(|(_, usual)| *usual == field).map(|(theirs, _)| (*theirs).to_owned());
            LoadError::Field { file, field: theirs.unwrap_or(field), problem }
        }
        error => error,
    }
}

/// The fields of Kimi Linear under the names that others have for the same.
fn kimi_fields(fields: &Fields<'_>) -> Result<Map<String, Value>, LoadError> {
    let mut map = fields.map.clone();
    map.entry("routed_scaling_factor").or_insert_with(|| serde_json::json!(2.446));
    let mut rename = |of: &Fields<'_>, names: &[(&str, &str)]| {
        for (theirs, usual) in names {
            map.extend(of.get(theirs).map(|value| (usual.to_string(), value.clone())));
        }
    };
    rename(fields, &KIMI_NAMES);
    const LISTED: &str = "full_attn_layers";
    if let Some(of_delta) = fields.object("linear_attn_config")? {
        let names = [("head_dim", "linear_head_dim"), ("num_heads", "linear_num_heads")];
        rename(&of_delta, &names);
        rename(&of_delta, &[("short_conv_kernel_size", "linear_conv_kernel_dim")]);
        // Counted from 1.
        let mut types = vec!["linear_attention"; fields.size("num_hidden_layers", 1024)?];
        for layer in of_delta.list(LISTED)?.unwrap_or_default() {
            let index = layer.as_u64().and_then(|layer| (layer as usize).checked_sub(1));
            match index.and_then(|index| types.get_mut(index)) {
                Some(of) => *of = "full_attention",
                None => return Err(of_delta.error(LISTED, format!("{} is no layer", quoted(&layer.to_string())))),
            }
        }
        if of_delta.get(LISTED).is_some() && fields.get("layer_types").is_none() {
            map.insert("layer_types".into(), types.into());
        }
    }
    if !fields.flag("mla_use_nope", true)? {
        return Err(fields.error("mla_use_nope", "false is not supported; latent attention has no rotation here"));
    }
    if let Some(other) = fields.text("moe_router_activation_func")?.filter(|name| *name != "sigmoid") {
        let problem = format!("{} is not supported; sigmoid is", quoted(other));
        return Err(fields.error("moe_router_activation_func", problem));
    }
    Ok(map)
}

/// Fields that would change the arithmetic in ways that this forward pass does not have.
fn refuse_what_is_not_computed(fields: &Fields<'_>, traits: &Traits, both_ways: bool) -> Result<(), LoadError> {
    // Gemma 4 says which part of a text with images looks both ways.
    let of_images = fields.get("use_bidirectional_attention").is_some_and(|says| says == "vision");
    if let Some(says) = fields.text_or_flag("use_bidirectional_attention")?.filter(|says| *says != "vision") {
        let problem = format!("{} is not supported; attention looks back only", quoted(says));
        return Err(fields.error("use_bidirectional_attention", problem));
    }
    let both_ways = (!of_images && !both_ways).then_some(("use_bidirectional_attention", false));
    for (name, usual) in both_ways.into_iter().chain([("is_causal", true)]) {
        if fields.flag(name, usual)? != usual {
            return Err(fields.error(name, format!("{} is not supported; attention looks back only", !usual)));
        }
    }
    if let Some(limit) = fields.optional_float(CLIP, 0.0..=1e9)?.filter(|_| traits.family != Family::Olmo) {
        return Err(fields.error(CLIP, format!("{limit} is not supported; queries and keys are not clipped")));
    }
    if traits.head_norm == HeadNorm::None {
        for name in ["use_qk_norm", "qk_layernorm"] {
            if fields.flag(name, false)? {
                return Err(fields.error(name, "true is not supported; queries and keys have no norms here"));
            }
        }
    }
    if fields.flag("use_parallel_residual", false)? {
        let problem = "true is not supported; the MLP reads what attention gave";
        return Err(fields.error("use_parallel_residual", problem));
    }
    for (name, has_it, what) in [
        ("attn_output_gate", traits.attention_gate != AttentionGate::None, "attention's output has gates here"),
        ("use_attention_gate", traits.attention_gate != AttentionGate::None, "attention's output has gates here"),
        ("use_sandwich_norm", traits.norms == NormPlacement::Around, "outputs of blocks are normed here"),
    ] {
        if has_it && !fields.flag(name, true)? {
            return Err(fields.error(name, format!("false is not supported; {what}")));
        }
    }
    Ok(())
}

/// The activation of the gate, or of the middle of an MLP without one. Gemma's field is the first; its second may be
/// there too and is not what was trained.
fn activation(fields: &Fields<'_>, traits: &Traits) -> Result<Activation, LoadError> {
    let names: &[&str] = match traits.mixers {
        MixerFields::SingleBlocks => &["mlp_hidden_act"],
        _ => &["hidden_activation", "hidden_act"],
    };
    for name in names {
        match fields.text(name)? {
            None => {}
            Some("silu" | "swish") if traits.clamped => return clamped(fields),
            Some(other) if traits.clamped => {
                return Err(fields.error(name, format!("{} is not supported; silu is", quoted(other))));
            }
            Some("silu" | "swish") if traits.factors == Factors::FalconH1 => return scaled_silu(fields),
            Some("silu" | "swish") => return Ok(Activation::Silu),
            Some("gelu_pytorch_tanh") => return Ok(Activation::GeluTanh),
            Some("xielu") if matches!(traits.activation, Activation::Xielu { .. }) => return Ok(traits.activation),
            Some("relu2") => return Ok(Activation::ReluSquared),
            Some(other) => {
                let problem = format!("{} is not supported; silu, gelu_pytorch_tanh and relu2 are", quoted(other));
                return Err(fields.error(name, problem));
            }
        }
    }
    match traits.factors {
        Factors::FalconH1 => scaled_silu(fields),
        _ if traits.clamped => clamped(fields),
        _ => Ok(traits.activation),
    }
}

/// With a factor of the gate and one of the MLP's result.
fn scaled_silu(fields: &Fields<'_>) -> Result<Activation, LoadError> {
    const BOTH: &str = "mlp_multipliers";
    let factors = if fields.get(BOTH).is_some() { fields.floats(BOTH, 2, FACTOR)? } else { vec![1.0; 2] };
    Ok(match factors[..] {
        [inner, outer] if inner != 1.0 || outer != 1.0 => {
            Activation::ScaledSilu { inner: inner as f32, outer: outer as f32 }
        }
        _ => Activation::Silu,
    })
}

/// Numbers of xIELU in lists, as a GGUF file has them.
fn layer_activations(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<Activation>, LoadError> {
    let Some(xielu) = fields.object("xielu")? else { return Ok(Vec::new()) };
    let mut lists = Vec::new();
    for name in XIELU {
        lists.push(xielu.floats(name, num_layers, -1e6..=1e6)?);
    }
    let of = |layer: usize| Activation::xielu(std::array::from_fn(|number| lists[number][layer] as f32));
    Ok((0..num_layers).map(of).collect())
}

/// A gate and its factor that are clamped.
fn clamped(fields: &Fields<'_>) -> Result<Activation, LoadError> {
    const GAIN: f64 = 1.702;
    if let Some(other) = fields.optional_float("swiglu_alpha", 1e-6..=1e6)?.filter(|gain| *gain != GAIN) {
        return Err(fields.error("swiglu_alpha", format!("{other} is not supported; {GAIN} is")));
    }
    Ok(Activation::Clamped { limit: fields.optional_float("swiglu_limit", 1e-3..=1e6)?.unwrap_or(7.0) as f32 })
}

/// See [`Factors`].
struct Multipliers {
    attention_scale: f32,
    attention_softcap: Option<f32>,
    attention_output: f32,
    embedding: f32,
    residual: f32,
    logits: f32,
    logits_softcap: Option<f32>,
}

impl Multipliers {
    fn read(fields: &Fields<'_>, traits: &Traits, hidden_size: usize, head_dim: usize) -> Result<Self, LoadError> {
        let plain = Multipliers {
            attention_scale: AttentionRule::of_width(head_dim).scale,
            attention_softcap: None,
            attention_output: 1.0,
            embedding: 1.0,
            residual: 1.0,
            logits: 1.0,
            logits_softcap: None,
        };
        let positive = |name| fields.optional_float(name, FACTOR);
        // Absent, a cap is what transformers assumes; null is no cap.
        let cap = |name, absent: Option<f32>| match fields.map.contains_key(name) {
            true => Ok(positive(name)?.map(|cap| cap as f32)),
            false => Ok(absent),
        };
        Ok(match traits.factors {
            Factors::Plain => plain,
            Factors::OfEmbeddings => Multipliers { embedding: (hidden_size as f32).sqrt(), ..plain },
            Factors::Gemma { capped_scores } => Multipliers {
                attention_scale: (1.0 / positive("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt()) as f32,
                attention_softcap: if capped_scores { cap("attn_logit_softcapping", Some(50.0))? } else { None },
                embedding: (hidden_size as f32).sqrt(),
                logits_softcap: cap("final_logit_softcapping", capped_scores.then_some(30.0))?,
                ..plain
            },
            Factors::Gemma4 => Multipliers {
                attention_scale: 1.0,
                embedding: (hidden_size as f32).sqrt(),
                logits_softcap: cap("final_logit_softcapping", None)?,
                ..plain
            },
            Factors::Muse => Multipliers {
                logits: positive("output_multiplier")?.unwrap_or(256f64.sqrt() / 6656f64.sqrt()) as f32,
                logits_softcap: cap("final_logit_softcapping", Some(20.0))?,
                ..plain
            },
            Factors::FalconH1 => {
                let factor = |name| Ok(positive(name)?.unwrap_or(1.0));
                let of_input: f64 = factor("attention_in_multiplier")?;
                Multipliers {
                    // Of queries and keys; values are summed as they are.
                    attention_scale: (f64::from(plain.attention_scale)
                        * of_input
                        * of_input
                        * factor("key_multiplier")?) as f32,
                    attention_output: (of_input * factor("attention_out_multiplier")?) as f32,
                    embedding: factor("embedding_multiplier")? as f32,
                    logits: factor("lm_head_multiplier")? as f32,
                    ..plain
                }
            }
            Factors::Cohere => Multipliers { logits: positive("logit_scale")?.unwrap_or(0.0625) as f32, ..plain },
            Factors::Granite => Multipliers {
                attention_scale: positive("attention_multiplier")?.unwrap_or(1.0) as f32,
                embedding: positive("embedding_multiplier")?.unwrap_or(1.0) as f32,
                residual: positive("residual_multiplier")?.unwrap_or(1.0) as f32,
                logits: (1.0 / positive("logits_scaling")?.unwrap_or(1.0)) as f32,
                ..plain
            },
        })
    }
}

fn head_dim(fields: &Fields<'_>, traits: &Traits, hidden_size: usize, num_heads: usize) -> Result<usize, LoadError> {
    let explicit = match fields.optional_size("head_dim", 1024)? {
        None if traits.mixers == MixerFields::SingleBlocks => fields.optional_size("attention_head_dim", 1024)?,
        stated => stated,
    };
    let head_dim = match explicit.or(traits.head_dim) {
        Some(head_dim) => head_dim,
        None if !hidden_size.is_multiple_of(num_heads) => {
            let problem = format!("{num_heads} does not divide hidden_size = {hidden_size}, and head_dim is missing");
            return Err(fields.error("num_attention_heads", problem));
        }
        None => hidden_size / num_heads,
    };
    if num_heads * head_dim > MAX_WIDTH {
        let problem = format!("{num_heads} heads of width {head_dim} are more than {MAX_WIDTH} wide");
        return Err(fields.error("num_attention_heads", problem));
    }
    let field = if explicit.is_some() { "head_dim" } else { "num_attention_heads" };
    check_head_dim(fields, field, head_dim)?;
    Ok(head_dim)
}

/// A width that the kernels have.
fn check_head_dim(fields: &Fields<'_>, field: &str, head_dim: usize) -> Result<(), LoadError> {
    match head_dim.is_multiple_of(16) && head_dim <= 512 {
        true => Ok(()),
        false => {
            Err(fields.error(field, format!("heads of width {head_dim}; multiples of 16 up to 512 are supported")))
        }
    }
}

/// What `generation_config.json` proposes for requests that do not say otherwise. All optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether the authors sample at all; `Some(false)` means greedy.
    pub do_sample: Option<bool>,
    /// What it proposes of how tokens are drawn.
    pub sampling: SamplingParams,
    /// Longest answer.
    pub max_new_tokens: Option<usize>,
    /// Begin-of-text tokens.
    pub bos_token_ids: Vec<u32>,
    /// End-of-text tokens, to be united with the configuration's.
    pub eos_token_ids: Vec<u32>,
}

/// How a model's own defaults are changed.
#[derive(Clone, Debug, Default)]
pub struct GenerationSettings {
    /// Whose defaults of sampling hold.
    pub base: GenerationBase,
    /// Fields that hold in any case, as in `generation_config.json`.
    pub overrides: Map<String, Value>,
}

/// Whose defaults of sampling hold. The tokens that end an answer are always the model's.
#[derive(Clone, Debug, Default)]
pub enum GenerationBase {
    /// The model's, `generation_config.json`.
    #[default]
    Model,
    /// No defaults: every request draws from the model's own distribution unless it says otherwise.
    Neutral,
    /// Those of another file's text.
    Text(String),
}

impl GenerationDefaults {
    /// [`load`](Self::load), with settings.
    pub fn load_with(checkpoint: &Checkpoint, settings: &GenerationSettings) -> Result<GenerationDefaults, LoadError> {
        let own = Self::load(checkpoint)?;
        let base = match &settings.base {
            GenerationBase::Model => own.clone(),
            GenerationBase::Neutral => GenerationDefaults::default(),
            GenerationBase::Text(text) => Self::parse(text)?,
        };
        let names: Vec<&str> = options().filter(|option| option.of_model.is_some()).map(|option| option.name).collect();
        if let Some(name) = settings.overrides.keys().find(|name| !names.contains(&name.as_str())) {
            let problem = format!("is none of the defaults of sampling: {}", names.join(", "));
            return Err(LoadError::field(OVERRIDES, name, problem));
        }
        let said = Self::of(&Fields { file: OVERRIDES, path: String::new(), map: &settings.overrides })?;
        let (bos_token_ids, eos_token_ids) = (own.bos_token_ids, own.eos_token_ids);
        Ok(GenerationDefaults { sampling: said.sampling.or(&base.sampling), bos_token_ids, eos_token_ids, ..base })
    }

    /// Reads `generation_config.json`; all empty when there is none.
    pub fn load(checkpoint: &Checkpoint) -> Result<GenerationDefaults, LoadError> {
        match checkpoint.read_text_capped(GENERATION, MAX_CONFIG_BYTES)? {
            Some(text) => Self::parse(&text),
            None => Ok(GenerationDefaults::default()),
        }
    }

    /// Reads the text of a `generation_config.json`.
    pub fn parse(text: &str) -> Result<GenerationDefaults, LoadError> {
        let root = parse_object(GENERATION, text)?;
        Self::of(&Fields { file: GENERATION, path: String::new(), map: &root })
    }

    fn of(fields: &Fields<'_>) -> Result<GenerationDefaults, LoadError> {
        let mut sampling = SamplingParams::default();
        for option in options() {
            let Some(range) = option.of_model.clone() else { continue };
            let value = match option.is_integer() {
                true => {
                    fields.optional_integer(option.name, *range.start() as u64..=*range.end() as u64)?.map(|n| n as f64)
                }
                false => fields.optional_float(option.name, range)?,
            };
            (option.ask)(&mut sampling, value);
        }
        Ok(GenerationDefaults {
            do_sample: fields.get("do_sample").map(|_| fields.flag("do_sample", false)).transpose()?,
            sampling,
            max_new_tokens: fields.optional_size("max_new_tokens", 1 << 27)?,
            bos_token_ids: fields.token_ids("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
        })
    }
}

/// Bytes of that many weights.
fn class_bytes(class: WeightClass, parameters: u64) -> u64 {
    match class {
        WeightClass::Bf16 => 2 * parameters,
        WeightClass::Int8 => parameters,
        WeightClass::Int4 => parameters * 17 / 32, // a ratio of 8 bits for 32 weights of 4
    }
}
