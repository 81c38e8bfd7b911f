//! What differs from layer to layer: memory, windows, rotations, experts.

use super::family::{DeltaProjections, ExpertFields, MixerFields, Router, Traits, Windows};
use super::fields::{Fields, kind, quoted};
use super::{CacheLayer, FACTOR, LayerConfig, LayerInputConfig, MAX_WIDTH, cache, check_head_dim, rope};
use checkpoint::LoadError;
use kernels::convolution::MAX_TAPS;
use kernels::recurrence::MAX_WIDTH as MAX_HEAD;
use kernels::{DeltaShape, HeadLayout, LatentShape, MambaShape, OutputNorm, RoutingRule, Scores};
use serde_json::Value;

/// The experts of a mixture: MLPs of which every token passes through a few.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertConfig {
    /// In each layer that has experts.
    pub num_experts: usize,
    /// Width of one.
    pub intermediate_size: usize,
    /// How many a token goes to, and how their results are weighted.
    pub rule: RoutingRule,
    /// The router and every expert have biases.
    pub biases: bool,
    /// Experts have a bias that is part of their choice alone.
    pub has_choice_bias: bool,
    /// One more, which every token passes through.
    pub shared: Option<SharedExpertConfig>,
    /// Width of what they read and give, where that is not the stream's: a product before and one behind them.
    pub latent: Option<usize>,
    /// What that one gives counts half, as weights of the others do by their rule.
    pub halved: bool,
    /// They are beside the layer's MLP, not in its place, with norms of their own; the router norms the stream itself,
    /// and each expert has a factor (Gemma 4).
    pub beside_mlp: bool,
}

/// The expert of every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertConfig {
    /// Its width.
    pub width: usize,
    /// It has a gate; otherwise it is added as it is.
    pub gated: bool,
}

/// What a layer does to each row by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// Nothing: the layer is a mixer alone.
    None,
    /// One MLP for all.
    Dense,
    /// A mixture of experts.
    Experts,
}

/// How the rows of a layer learn of earlier ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// They do not: the layer is an MLP or experts alone.
    None,
    /// By the keys and values of each.
    Attention,
    /// By a state that each changes: linear attention with the gated delta rule (Yang et al., 2024).
    Delta(DeltaConfig),
    /// By a state that fades as fast as each says: Mamba-2 (Dao & Gu, 2024).
    Mamba(MambaConfig),
    /// By Mamba-2 and by attention, beside each other: what both give is added (Zuo et al., 2025).
    Both(MambaConfig),
    /// By the few rows before each: a short convolution between gates (LFM2: Liquid AI, 2025).
    ShortConvolution(ShortConvolutionConfig),
    /// By a latent of each, of which all heads have their keys and values (DeepSeek-AI, 2024).
    Latent(LatentConfig),
}

impl LayerConfig {
    /// Its MLP is a mixture of experts.
    pub fn has_experts(&self) -> bool {
        self.feed == FeedForward::Experts
    }
}

/// Numbers of a row in a layer between its first and its last product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixerWidths {
    /// What the first product makes.
    pub row: usize,
    /// What a second product of the same input makes; 0: there is none.
    pub gates: usize,
    /// What the last product reads.
    pub out: usize,
}

impl Mixer {
    /// The layer has keys and values.
    pub fn has_keys(&self) -> bool {
        matches!(self, Mixer::Attention | Mixer::Both(_) | Mixer::Latent(_))
    }

    /// The single mixers, in the order in which they are computed.
    pub(crate) fn parts(self) -> impl Iterator<Item = Mixer> {
        let parts = match self {
            Mixer::None => [None, None],
            Mixer::Both(mamba) => [Some(Mixer::Mamba(mamba)), Some(Mixer::Attention)],
            single => [Some(single), None],
        };
        parts.into_iter().flatten()
    }

    /// Numbers (float32) of a sequence's state in such a layer.
    pub fn state_numbers(&self) -> usize {
        match self {
            Mixer::None | Mixer::Attention | Mixer::Latent(_) => 0,
            Mixer::Delta(delta) => delta.conv_numbers() + delta.shape.state_numbers(),
            Mixer::Mamba(mamba) | Mixer::Both(mamba) => mamba.conv_numbers() + mamba.shape.state_numbers(),
            Mixer::ShortConvolution(ShortConvolutionConfig { channels, taps, .. }) => (taps - 1) * channels,
        }
    }

    /// Multiplications and additions of a token's states in such a layer.
    pub(super) fn state_flops(&self) -> usize {
        match self {
            Mixer::None | Mixer::Attention | Mixer::Latent(_) => 0,
            // The decay, and three sums with a product each; once more where it is of a key.
            Mixer::Delta(DeltaConfig { shape, taps, .. }) => 7 * shape.state_numbers() + 2 * taps * shape.channels(),
            // The same with one sum less.
            Mixer::Mamba(MambaConfig { shape, taps, .. }) | Mixer::Both(MambaConfig { shape, taps, .. }) => {
                5 * shape.state_numbers() + 2 * taps * shape.channels()
            }
            Mixer::ShortConvolution(ShortConvolutionConfig { channels, taps, .. }) => (2 * taps + 2) * channels,
        }
    }

    /// Weights of the products between the first and the last.
    pub(super) fn inner_parameters(&self) -> usize {
        match self {
            Mixer::Latent(latent) => latent.inner_parameters(),
            Mixer::Delta(DeltaConfig { shape, .. }) => shape.decays_width() * shape.key_dim,
            _ => 0,
        }
    }

    /// Numbers of a row that lie between these products; `None`: there are none.
    pub(super) fn between(&self) -> Option<[usize; 3]> {
        match self {
            Mixer::Latent(latent) => Some(latent.between()),
            Mixer::Delta(DeltaConfig { shape, .. }) if shape.by_key => Some([shape.decays_width(), 0, 0]),
            _ => None,
        }
    }

    /// Of all single mixers but attention, whose follow from its heads.
    pub(super) fn widths(&self) -> Option<MixerWidths> {
        match self {
            Mixer::None | Mixer::Attention | Mixer::Both(_) => None,
            Mixer::Delta(DeltaConfig { shape, .. }) => {
                Some(MixerWidths { row: shape.row_width(), gates: shape.gates_width(), out: shape.value_width() })
            }
            Mixer::Mamba(MambaConfig { shape, .. }) => {
                Some(MixerWidths { row: shape.row_width(), gates: shape.heads, out: shape.inner() })
            }
            Mixer::ShortConvolution(ShortConvolutionConfig { channels, .. }) => {
                Some(MixerWidths { row: 3 * channels, gates: 0, out: *channels })
            }
            Mixer::Latent(LatentConfig { shape, query_rank, .. }) => Some(MixerWidths {
                row: query_rank.unwrap_or(shape.query_width()),
                gates: shape.layout().head_dim,
                out: shape.num_heads * shape.value,
            }),
        }
    }
}

/// A layer of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentConfig {
    /// Its widths.
    pub shape: LatentShape,
    /// Width of what queries are made of; `None`: they are made of the layer's input.
    pub query_rank: Option<usize>,
    /// Numbers turn with their neighbours, not with those half the width away.
    pub neighbours: bool,
}

impl LatentConfig {
    pub(super) fn read(fields: &Fields<'_>, num_heads: usize) -> Result<LatentConfig, LoadError> {
        const BIAS: &str = "attention_bias";
        if fields.flag(BIAS, false)? {
            return Err(fields.error(BIAS, "true is not supported; latent attention has no biases here"));
        }
        let width = |name, most: usize| match fields.size(name, 1 << 20)? {
            width if width.is_multiple_of(16) && width <= most => Ok(width),
            width => Err(fields.error(name, format!("{width} is not supported; multiples of 16 up to {most} are"))),
        };
        let shape = LatentShape {
            num_heads,
            rank: width("kv_lora_rank", 512)?,
            plain: fields.size("qk_nope_head_dim", 512)?,
            turning: width("qk_rope_head_dim", 64)?,
            value: fields.size("v_head_dim", 512)?,
        };
        for (name, width) in [("qk_nope_head_dim", shape.plain), ("v_head_dim", shape.value)] {
            if num_heads * (width + shape.turning) > MAX_WIDTH {
                let problem = format!("{num_heads} heads of {width} numbers are more than {MAX_WIDTH} wide");
                return Err(fields.error(name, problem));
            }
        }
        let query_rank = fields.optional_size("q_lora_rank", MAX_WIDTH)?;
        Ok(LatentConfig { shape, query_rank, neighbours: fields.flag("rope_interleave", true)? })
    }

    /// Weights of the products between the layer's first and its last.
    pub(super) fn inner_parameters(&self) -> usize {
        let LatentShape { num_heads, rank, plain, value, .. } = self.shape;
        self.query_rank.map_or(0, |rank| rank * self.shape.query_width()) + num_heads * (plain + value) * rank
    }

    /// Queries, those absorbed, and sums, or what queries are made of.
    fn between(&self) -> [usize; 3] {
        let layout = self.shape.layout();
        [self.shape.query_width(), layout.q_width(), layout.out_width().max(self.query_rank.unwrap_or(0))]
    }
}

/// A Mamba-2 layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaConfig {
    /// Its heads.
    pub shape: MambaShape,
    /// Taps of the convolution of x, B and C.
    pub taps: usize,
    /// A bias on it.
    pub has_conv_bias: bool,
    /// The norm of its output.
    pub output: OutputNorm,
    /// How many equal parts of the output are normed by themselves.
    pub norm_groups: usize,
    /// Of z, x, B, C and dt, as the first product makes them.
    pub factors: [f32; 5],
    /// Of what the last product reads.
    pub output_factor: f32,
}

/// What fields of Mamba-2 are called, and what is assumed of them.
struct MambaFields {
    heads: (&'static str, usize),
    /// `None`: a head is its share of what [`inner`](Self::inner) makes.
    head_dim: (&'static str, Option<usize>),
    groups: (&'static str, usize),
    state_dim: (&'static str, usize),
    taps: &'static str,
    conv_bias: &'static str,
    biases: &'static str,
    inner: Inner,
    /// Groups are normed by themselves.
    norms_by_group: bool,
}

/// How wide all heads are together.
#[derive(PartialEq, Eq)]
enum Inner {
    /// `mamba_expand` times as wide as the stream.
    Expanded,
    /// `mamba_d_ssm`, which is assumed to be 1024; with null the same.
    Stated,
    /// As their number and width say.
    Free,
}

const OF_GRANITE: MambaFields = MambaFields {
    heads: ("mamba_n_heads", 128),
    head_dim: ("mamba_d_head", None),
    groups: ("mamba_n_groups", 1),
    state_dim: ("mamba_d_state", 256),
    taps: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
    biases: "mamba_proj_bias",
    inner: Inner::Expanded,
    norms_by_group: false,
};

const OF_FALCON: MambaFields =
    MambaFields { biases: "projectors_bias", inner: Inner::Stated, norms_by_group: true, ..OF_GRANITE };

const OF_NEMOTRON: MambaFields = MambaFields {
    heads: ("mamba_num_heads", 128),
    head_dim: ("mamba_head_dim", Some(64)),
    groups: ("n_groups", 8),
    state_dim: ("ssm_state_size", 128),
    taps: "conv_kernel",
    conv_bias: "use_conv_bias",
    biases: "use_bias",
    inner: Inner::Free,
    norms_by_group: true,
};

impl MambaConfig {
    fn read(fields: &Fields<'_>, names: &MambaFields) -> Result<MambaConfig, LoadError> {
        let size = |(name, absent)| Ok(fields.optional_size(name, 1 << 20)?.unwrap_or(absent));
        let width = |name, width: usize| match width.is_multiple_of(16) && (1..=MAX_HEAD).contains(&width) {
            true => Ok(width),
            false => {
                let problem = format!("{width} is not supported; multiples of 16 up to {MAX_HEAD} are");
                Err(fields.error(name, problem))
            }
        };
        let (heads, groups, (of_heads, _)) = (size(names.heads)?, size(names.groups)?, names.heads);
        if !heads.is_multiple_of(groups) {
            return Err(fields.error(names.groups.0, format!("{groups} does not divide {of_heads} = {heads}")));
        }
        const STATED: &str = "mamba_d_ssm";
        let (inner, why) = match names.inner {
            Inner::Free => (None, ""),
            Inner::Stated if !fields.map.get(STATED).is_some_and(Value::is_null) => {
                (Some(size((STATED, 1024))?), STATED)
            }
            _ => {
                let expanded = size(("mamba_expand", 2))?.saturating_mul(fields.size("hidden_size", MAX_WIDTH)?);
                (Some(expanded), "mamba_expand times hidden_size")
            }
        };
        let absent = names.head_dim.1.or(inner.map(|inner| inner / heads)).unwrap_or(0);
        let head_dim = match fields.map.get(names.head_dim.0) {
            Some(Value::String(auto)) if auto == "auto" => absent,
            _ => size((names.head_dim.0, absent))?,
        };
        let shape = MambaShape {
            heads,
            head_dim: width(names.head_dim.0, head_dim)?,
            groups,
            state_dim: width(names.state_dim.0, size(names.state_dim)?)?,
        };
        if let Some(inner) = inner.filter(|inner| heads * head_dim != *inner) {
            let problem = format!("{heads} heads of width {head_dim} are not {why} = {inner}");
            return Err(fields.error(of_heads, problem));
        }
        if shape.row_width() > 2 * MAX_WIDTH || shape.inner() > MAX_WIDTH {
            let problem = format!("{heads} heads of width {head_dim} are more than {MAX_WIDTH} wide");
            return Err(fields.error(of_heads, problem));
        }
        for name in [names.biases, "mamba_proj_bias"] {
            if fields.flag(name, false)? {
                return Err(fields.error(name, "true is not supported; these projections have no biases"));
            }
        }
        refuse_step_limits(fields)?;
        let taps = fields.optional_integer(names.taps, 2..=MAX_TAPS as u64)?.unwrap_or(4) as usize;
        let has_conv_bias = fields.flag(names.conv_bias, true)?;
        let output = match names.inner {
            Inner::Stated if !fields.flag("mamba_rms_norm", false)? => OutputNorm::None,
            Inner::Stated if fields.flag("mamba_norm_before_gate", true)? => OutputNorm::BeforeGate,
            _ => OutputNorm::AfterGate,
        };
        let norm_groups = if names.norms_by_group && output != OutputNorm::None { groups } else { 1 };
        let (factors, output_factor) = ([1.0; 5], 1.0);
        Ok(MambaConfig { shape, taps, has_conv_bias, output, norm_groups, factors, output_factor })
    }

    /// With the multipliers of Falcon-H1.
    fn with_factors(self, fields: &Fields<'_>) -> Result<MambaConfig, LoadError> {
        const EACH: &str = "ssm_multipliers";
        let factor = |name| Ok(fields.optional_float(name, FACTOR)?.unwrap_or(1.0));
        let of_input: f64 = factor("ssm_in_multiplier")?;
        let mut factors = [of_input as f32; 5];
        if fields.get(EACH).is_some() {
            let each = fields.floats(EACH, 5, FACTOR)?;
            factors = std::array::from_fn(|part| (of_input * each[part]) as f32);
        }
        Ok(MambaConfig { factors, output_factor: factor("ssm_out_multiplier")? as f32, ..self })
    }

    /// Numbers of the convolution's state: inputs of the rows before.
    pub(crate) fn conv_numbers(&self) -> usize {
        (self.taps - 1) * self.shape.channels()
    }
}

/// Step widths have no limits here. transformers heeds them when it reads a prompt, and not when it writes.
fn refuse_step_limits(fields: &Fields<'_>) -> Result<(), LoadError> {
    const NAME: &str = "time_step_limit";
    let limits = fields.list(NAME)?.unwrap_or_default();
    match limits.iter().any(|limit| limit.as_f64().is_some_and(|limit| limit != 0.0 && limit < f64::from(f32::MAX))) {
        true => Err(fields.error(NAME, "finite limits are not supported; from 0 to infinity are")),
        false => Ok(()),
    }
}

/// A layer that is a short convolution between gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConvolutionConfig {
    /// Numbers of each row that are convolved; a multiple of 16.
    pub channels: usize,
    /// Rows that each sees, itself among them.
    pub taps: usize,
    /// Biases on the convolution and on both products.
    pub has_bias: bool,
}

impl ShortConvolutionConfig {
    /// `absent`: taps, where no field says how many.
    fn read(fields: &Fields<'_>, absent: usize) -> Result<ShortConvolutionConfig, LoadError> {
        const TAPS: &str = "conv_L_cache";
        let channels = fields.size("hidden_size", MAX_WIDTH)?;
        if !channels.is_multiple_of(16) {
            let problem = format!("{channels} is no multiple of 16, which layers with a convolution need");
            return Err(fields.error("hidden_size", problem));
        }
        let taps = fields.optional_integer(TAPS, 2..=MAX_TAPS as u64)?.map_or(absent, |taps| taps as usize);
        Ok(ShortConvolutionConfig { channels, taps, has_bias: fields.flag("conv_bias", false)? })
    }
}

/// A layer of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Its heads.
    pub shape: DeltaShape,
    /// Taps of the convolution of queries, keys and values.
    pub taps: usize,
    /// The rows of its projections are stored key head by key head.
    pub by_key_head: bool,
}

impl DeltaConfig {
    fn read(fields: &Fields<'_>, projections: DeltaProjections) -> Result<DeltaConfig, LoadError> {
        // What transformers assumes of absent fields.
        let heads = |name, absent| Ok(fields.optional_size(name, 1024)?.unwrap_or(absent));
        let width = |name| match fields.optional_size(name, 1 << 20)?.unwrap_or(128) {
            width if width.is_multiple_of(16) && width <= MAX_HEAD => Ok(width),
            width => {
                let problem = format!("heads of width {width}; multiples of 16 up to {MAX_HEAD} are supported");
                Err(fields.error(name, problem))
            }
        };
        let by_key = projections == DeltaProjections::ByKey;
        let shape = match by_key {
            true => {
                let (heads, dim) = (heads("linear_num_heads", 32)?, width("linear_head_dim")?);
                DeltaShape { key_heads: heads, value_heads: heads, key_dim: dim, value_dim: dim, by_key }
            }
            false => DeltaShape {
                key_heads: heads("linear_num_key_heads", 16)?,
                value_heads: heads("linear_num_value_heads", 32)?,
                key_dim: width("linear_key_head_dim")?,
                value_dim: width("linear_value_head_dim")?,
                by_key,
            },
        };
        let DeltaShape { key_heads, value_heads, .. } = shape;
        if !value_heads.is_multiple_of(key_heads) {
            let problem = format!("{value_heads} is no multiple of linear_num_key_heads = {key_heads}");
            return Err(fields.error("linear_num_value_heads", problem));
        }
        if shape.value_width() > MAX_WIDTH {
            let problem = format!("{value_heads} heads of width {} are more than {MAX_WIDTH} wide", shape.value_dim);
            return Err(fields.error("linear_num_value_heads", problem));
        }
        const TAPS: &str = "linear_conv_kernel_dim";
        let taps = fields.optional_integer(TAPS, 2..=MAX_TAPS as u64)?.unwrap_or(4) as usize;
        Ok(DeltaConfig { shape, taps, by_key_head: projections == DeltaProjections::ByKeyHead })
    }

    /// Numbers of the convolution's state: inputs of the rows before.
    pub(crate) fn conv_numbers(&self) -> usize {
        (self.taps - 1) * self.shape.channels()
    }
}

impl ExpertConfig {
    pub(super) fn read(fields: &Fields<'_>, traits: &Traits) -> Result<Option<ExpertConfig>, LoadError> {
        if traits.experts == ExpertFields::None {
            return Ok(None);
        }
        if !has_experts(fields, traits)? {
            return Ok(None);
        }
        let num_experts = match traits.experts {
            ExpertFields::Glm4 | ExpertFields::Dots1 | ExpertFields::DeepSeek(_) | ExpertFields::NemotronH => {
                fields.size("n_routed_experts", MAX_EXPERTS)?
            }
            ExpertFields::Ernie => fields.size("moe_num_experts", MAX_EXPERTS)?,
            ExpertFields::HunYuan => of_all_layers(fields, "num_experts")?,
            // Transformers 5 writes the second name for what was the first.
            _ => match fields.optional_size("num_experts", MAX_EXPERTS)? {
                Some(num_experts) => num_experts,
                None => fields.size("num_local_experts", MAX_EXPERTS)?,
            },
        };
        let chosen = match traits.experts {
            ExpertFields::Gemma4 => "top_k_experts",
            ExpertFields::Ernie => "moe_k",
            ExpertFields::HunYuan => "moe_topk",
            _ => "num_experts_per_tok",
        };
        let top_k = of_all_layers(fields, chosen)?;
        if top_k > num_experts {
            return Err(fields.error(chosen, format!("{top_k} of {num_experts} experts")));
        }
        let normed = |absent| fields.flag("norm_topk_prob", absent);
        let (width, over_chosen) = match traits.experts {
            ExpertFields::Qwen | ExpertFields::Qwen2Moe | ExpertFields::Dots1 => {
                ("moe_intermediate_size", normed(false)?)
            }
            ExpertFields::Qwen3Next | ExpertFields::Lfm2 | ExpertFields::Glm4 | ExpertFields::NemotronH => {
                ("moe_intermediate_size", normed(true)?)
            }
            ExpertFields::DeepSeek(Router::Shares) if normed(false)? => {
                return Err(fields.error("norm_topk_prob", "true is not supported; weights are shares of all experts"));
            }
            ExpertFields::DeepSeek(Router::Shares) => ("moe_intermediate_size", false),
            ExpertFields::DeepSeek(_) => ("moe_intermediate_size", normed(true)?),
            ExpertFields::Qwen35 | ExpertFields::Gemma4 | ExpertFields::Ernie => ("moe_intermediate_size", true),
            ExpertFields::Olmoe => ("intermediate_size", normed(false)?),
            ExpertFields::Cohere => ("intermediate_size", normed(true)? || fields.text(SELECTION)? != Some("sigmoid")),
            ExpertFields::Mixtral
            | ExpertFields::PhiMoe
            | ExpertFields::Llama4
            | ExpertFields::Granite
            | ExpertFields::GptOss
            | ExpertFields::HunYuan
            | ExpertFields::MiniMaxM2
            | ExpertFields::None => ("intermediate_size", true),
        };
        let intermediate_size = fields.size(width, MAX_WIDTH)?;
        let (scores, has_choice_bias) = match traits.experts {
            ExpertFields::Lfm2 => {
                (sigmoid(fields, (num_experts, top_k), false)?, fields.flag("use_expert_bias", true)?)
            }
            ExpertFields::Glm4
            | ExpertFields::Dots1
            | ExpertFields::MiniMaxM2
            | ExpertFields::NemotronH
            | ExpertFields::DeepSeek(Router::Sigmoids) => (sigmoid(fields, (num_experts, top_k), true)?, true),
            ExpertFields::DeepSeek(router) => (shares(fields, (num_experts, top_k), router)?, false),
            ExpertFields::PhiMoe => {
                if top_k != 2 {
                    return Err(
                        fields.error("num_experts_per_tok", format!("{top_k} is not supported; SparseMixer chooses 2"))
                    );
                }
                let noise = fields.optional_float("router_jitter_noise", 0.0..=1.0)?.unwrap_or(0.01);
                (Scores::Sparse { tolerance: 2.0 * noise as f32 }, false)
            }
            ExpertFields::Llama4 => (Scores::OfInputs, false),
            ExpertFields::Cohere => (cohere_scores(fields)?, false),
            _ => (Scores::Softmax, traits.experts == ExpertFields::Ernie),
        };
        let shared = match traits.experts {
            ExpertFields::Qwen2Moe | ExpertFields::Qwen3Next | ExpertFields::Qwen35 => {
                let width = fields.size("shared_expert_intermediate_size", MAX_WIDTH)?;
                Some(SharedExpertConfig { width, gated: true })
            }
            ExpertFields::Glm4 | ExpertFields::Dots1 | ExpertFields::DeepSeek(_) => {
                several(fields, ("n_shared_experts", 1), intermediate_size)?
            }
            ExpertFields::Ernie => several(fields, ("moe_num_shared_experts", 2), intermediate_size)?,
            ExpertFields::Cohere => several(fields, ("num_shared_experts", 0), intermediate_size)?,
            ExpertFields::HunYuan | ExpertFields::Llama4 => {
                Some(SharedExpertConfig { width: intermediate_size, gated: false })
            }
            ExpertFields::NemotronH => {
                let width = fields.size("moe_shared_expert_intermediate_size", MAX_WIDTH)?;
                Some(SharedExpertConfig { width, gated: false })
            }
            ExpertFields::Granite => match shared_width(fields)? {
                0 => None,
                width => Some(SharedExpertConfig { width, gated: false }),
            },
            _ => None,
        };
        let rule = RoutingRule { top_k, over_chosen, scores };
        let (biases, beside_mlp) = (traits.experts == ExpertFields::GptOss, traits.experts == ExpertFields::Gemma4);
        let latent = match traits.experts {
            ExpertFields::NemotronH => fields.optional_size("moe_latent_size", MAX_WIDTH)?,
            _ => None,
        };
        let halved = traits.experts == ExpertFields::Cohere && is_average(fields)?;
        Ok(Some(ExpertConfig {
            num_experts,
            intermediate_size,
            rule,
            biases,
            has_choice_bias,
            shared,
            latent,
            halved,
            beside_mlp,
        }))
    }
}

/// Scores of Cohere's experts, which count half beside those of every token.
fn cohere_scores(fields: &Fields<'_>) -> Result<Scores, LoadError> {
    let factor = if is_average(fields)? { 0.5 } else { 1.0 };
    match fields.text(SELECTION)? {
        Some("sigmoid") => Ok(Scores::Sigmoid { groups: 1, kept_groups: 1, sum_eps: 0.0, factor }),
        None | Some("softmax") => Ok(Scores::GroupedSoftmax { groups: 1, kept_groups: 1, factor }),
        Some(other) => {
            Err(fields.error(SELECTION, format!("{} is not supported; softmax and sigmoid are", quoted(other))))
        }
    }
}

/// Experts of every token, if there are any, and the others are averaged.
fn is_average(fields: &Fields<'_>) -> Result<bool, LoadError> {
    const NAME: &str = "shared_expert_combination_strategy";
    let has_shared = fields.optional_integer("num_shared_experts", 0..=64)?.unwrap_or(0) > 0;
    match fields.text(NAME)? {
        None | Some("average") => Ok(has_shared),
        Some("sum") => Ok(false),
        Some(other) => Err(fields.error(NAME, format!("{} is not supported; average and sum are", quoted(other)))),
    }
}

/// A number, or a list of one for each layer, all of them equal.
fn of_all_layers(fields: &Fields<'_>, name: &str) -> Result<usize, LoadError> {
    let Some(Value::Array(listed)) = fields.map.get(name) else { return fields.size(name, MAX_EXPERTS) };
    let number = listed.first().and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    match number.filter(|number| (1..=MAX_EXPERTS).contains(number) && listed.iter().all(|of| *of == listed[0])) {
        Some(number) => Ok(number),
        None => Err(fields.error(name, format!("expected one number from 1 to {MAX_EXPERTS} for all layers"))),
    }
}

/// Experts of every token, as one.
fn several(
    fields: &Fields<'_>,
    (name, absent): (&str, u64),
    width: usize,
) -> Result<Option<SharedExpertConfig>, LoadError> {
    match fields.optional_integer(name, 0..=64)?.unwrap_or(absent) as usize {
        0 => Ok(None),
        count if count * width > MAX_WIDTH => {
            Err(fields.error(name, format!("{count} of width {width} are more than {MAX_WIDTH} wide")))
        }
        count => Ok(Some(SharedExpertConfig { width: count * width, gated: false })),
    }
}

/// Of families whose fields say so; others with fields of experts have them.
fn has_experts(fields: &Fields<'_>, traits: &Traits) -> Result<bool, LoadError> {
    match traits.experts {
        ExpertFields::Granite => Ok(fields.optional_integer("num_local_experts", 0..=MAX_EXPERTS as u64)? != Some(0)),
        ExpertFields::Gemma4 => fields.flag("enable_moe_block", false),
        ExpertFields::NemotronH => Ok(single_blocks(fields)?.contains(&SingleBlock::Experts)),
        _ => Ok(true),
    }
}

/// Width of Granite's MLP that every token passes through; 0: there is none.
pub(super) fn shared_width(fields: &Fields<'_>) -> Result<usize, LoadError> {
    Ok(fields.optional_integer("shared_intermediate_size", 0..=MAX_WIDTH as u64)?.unwrap_or(0) as usize)
}

/// Scores by sigmoid, of experts in groups or not.
fn sigmoid(fields: &Fields<'_>, (num_experts, top_k): (usize, usize), in_groups: bool) -> Result<Scores, LoadError> {
    let factor = fields.optional_float("routed_scaling_factor", 1e-6..=1e6)?.unwrap_or(1.0) as f32;
    if !in_groups {
        return Ok(Scores::Sigmoid { groups: 1, kept_groups: 1, sum_eps: 1e-6, factor });
    }
    let (groups, kept_groups) = groups(fields, (num_experts, top_k), 2)?;
    Ok(Scores::Sigmoid { groups, kept_groups, sum_eps: 1e-20, factor })
}

/// Groups of experts, and how many of them a row may go to. `least`: experts of one of several.
fn groups(
    fields: &Fields<'_>,
    (num_experts, top_k): (usize, usize),
    least: usize,
) -> Result<(usize, usize), LoadError> {
    let groups = fields.optional_size("n_group", MAX_EXPERTS)?.unwrap_or(1);
    let kept_groups = fields.optional_size("topk_group", MAX_EXPERTS)?.unwrap_or(1);
    let size = num_experts / groups;
    if size * groups != num_experts || (groups > 1 && size < least) {
        let problem = format!("{groups} groups of {num_experts} experts: each needs as many, and {least} or more");
        return Err(fields.error("n_group", problem));
    }
    if kept_groups > groups || kept_groups * size < top_k {
        let problem = format!("{kept_groups} of {groups} groups of {size} experts, for {top_k} experts of a token");
        return Err(fields.error("topk_group", problem));
    }
    Ok((groups, kept_groups))
}

/// Shares in the softmax over all experts.
fn shares(fields: &Fields<'_>, (num_experts, top_k): (usize, usize), router: Router) -> Result<Scores, LoadError> {
    const METHOD: &str = "topk_method";
    let factor = fields.optional_float("routed_scaling_factor", 1e-6..=1e6)?.unwrap_or(1.0) as f32;
    let in_groups = match (router, fields.text(METHOD)?) {
        (Router::Shares, Some("group_limited_greedy")) => true,
        (Router::Shares, None | Some("greedy")) => false,
        (Router::Shares, Some(other)) => {
            let problem = format!("{} is not supported; greedy and group_limited_greedy are", quoted(other));
            return Err(fields.error(METHOD, problem));
        }
        (_, _) => false,
    };
    let (groups, kept_groups) = if in_groups { groups(fields, (num_experts, top_k), 1)? } else { (1, 1) };
    if router == Router::NormedShares && fields.optional_size("n_group", MAX_EXPERTS)?.unwrap_or(1) > 1 {
        return Err(fields.error("n_group", "groups of experts are not supported here; one is"));
    }
    match (groups, factor) {
        (1, 1.0) => Ok(Scores::Softmax),
        _ => Ok(Scores::GroupedSoftmax { groups, kept_groups, factor }),
    }
}

/// Most experts of a layer; the largest models have 384.
const MAX_EXPERTS: usize = 1024;
/// What transformers assumes of `max_window_layers` when it is absent.
const FIRST_WINDOWED: usize = 28;
/// How Cohere's experts are scored.
const SELECTION: &str = "expert_selection_fn";
/// Windows of layers before those with experts.
const PREFIX_PATTERN: &str = "prefix_dense_sliding_window_pattern";
/// What `layer_types` calls a short convolution.
const CONVOLUTION: &str = "conv";
/// Layers at the end that read the keys and values of earlier ones.
const SHARED: &str = "num_kv_shared_layers";

/// `[num_layers]`; `heads` are those of most layers.
pub(super) fn layers(
    fields: &Fields<'_>,
    traits: &Traits,
    num_layers: usize,
    heads: HeadLayout,
) -> Result<Vec<LayerConfig>, LoadError> {
    let rotated = rotated(fields, traits, num_layers)?;
    let thetas = rope::layer_thetas(fields, traits, num_layers)?;
    // Dense layers before others that see all turn nevertheless.
    let dense_turn = traits.experts == ExpertFields::Cohere
        && fields.optional_size(PREFIX_PATTERN, 1 << 20)?.is_none_or(|pattern| pattern == 1);
    // What stands for a rotation where there is none: see `rope::ropes`.
    let still = rope::growth_of_unrotated(fields, traits)?.map(|_| 1);
    let rope_of = |layer: usize, windowed: bool, sees_all: bool| match &thetas {
        Some(thetas) => rope::index_of(thetas, thetas[layer]),
        None if sees_all && traits.unrotated_beside_windows => None,
        None => Some(usize::from(windowed && traits.local_theta.is_some())),
    };
    let windowed = windowed(fields, traits, &rotated)?;
    let window = window(fields, traits)?;
    let feeds = feeds(fields, traits, num_layers)?;
    let mixers = mixers(fields, traits, num_layers)?;
    let layers = rotated.into_iter().zip(windowed).zip(feeds).zip(mixers).enumerate();
    let mut layers: Vec<LayerConfig> = layers
        .map(|(layer, (((rotated, windowed), feed), mixer))| {
            let sees_all = !windowed && window.is_some() && (feed == FeedForward::Experts || !dense_turn);
            LayerConfig {
                mixer,
                window: window.filter(|_| windowed && mixer.has_keys()),
                rope: if rotated { rope_of(layer, windowed, sees_all) } else { still }.filter(|_| mixer.has_keys()),
                feed,
                mlp_width: 0,
                heads,
                values_are_keys: false,
                cache: CacheLayer::default(),
            }
        })
        .collect();
    if traits.uneven_layers.is_some() {
        set_heads(fields, &mut layers)?;
    }
    let first_shared = num_layers - shared_layers(fields, traits, num_layers)?;
    for layer in &mut layers[first_shared..] {
        (layer.heads.queries_only, layer.values_are_keys) = (true, false);
    }
    let source = |layers: &[LayerConfig], index: usize| {
        let alike = |layer: &LayerConfig| layer.window == layers[index].window;
        layers[..first_shared].iter().rposition(alike).filter(|_| index >= first_shared)
    };
    if let Some(index) = (first_shared..num_layers).find(|&index| source(&layers, index).is_none()) {
        let problem = format!("layer {index} is to read the keys of an earlier one of its kind, and there is none");
        return Err(fields.error(SHARED, problem));
    }
    for index in first_shared..num_layers {
        let keys = |layer: usize| (layers[layer].heads.num_kv_heads, layers[layer].heads.head_dim);
        if let Some(source) = source(&layers, index).filter(|&source| keys(source) != keys(index)) {
            let ((heads, width), (own_heads, own_width)) = (keys(source), keys(index));
            let problem = format!(
                "layer {index} has {own_heads} key heads of width {own_width}, and layer {source}, whose keys it reads, \
                 {heads} of width {width}"
            );
            return Err(fields.error(SHARED, problem));
        }
    }
    cache::place(&mut layers, source);
    Ok(layers)
}

/// Layers at the end without keys and values of their own.
fn shared_layers(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<usize, LoadError> {
    if traits.uneven_layers.is_none() {
        return Ok(0);
    }
    let shared = fields.optional_integer(SHARED, 0..=1024)?.unwrap_or(0) as usize;
    match shared < num_layers {
        true => Ok(shared),
        false => Err(fields.error(SHARED, format!("{shared} of {num_layers} layers; the first needs keys of its own"))),
    }
}

/// Layers without a window have heads of their own (Gemma 4): as transformers writes them now, layer by layer, or as
/// they were published.
fn set_heads(fields: &Fields<'_>, layers: &mut [LayerConfig]) -> Result<(), LoadError> {
    let values_are_keys = fields.flag("attention_k_eq_v", false)?;
    let listed = fields.object("per_layer_config")?;
    if let Some(listed) = &listed {
        check_listed(listed, layers)?;
    }
    let head_dim = fields.optional_size("global_head_dim", 1024)?.unwrap_or(512);
    let kv_heads = fields.optional_size("num_global_key_value_heads", 1024)?.filter(|_| values_are_keys);
    for (index, layer) in layers.iter_mut().enumerate().filter(|(_, layer)| layer.window.is_none()) {
        layer.values_are_keys = values_are_keys;
        let HeadLayout { num_heads, head_dim: usual, num_kv_heads: usual_kv, .. } = layer.heads;
        // Numbers may have zeros before them: "05".
        let name_of = |listed: &Fields<'_>| listed.map.keys().find(|name| name.parse() == Ok(index)).cloned();
        let own = listed.as_ref().and_then(|listed| Some(listed.object(&name_of(listed)?))).transpose()?.flatten();
        let (place, names) = match &own {
            Some(own) => (own, ["head_dim", "num_key_value_heads"]),
            None => (fields, ["global_head_dim", "num_global_key_value_heads"]),
        };
        let (width, kv) = match (&own, &listed) {
            (Some(own), _) => (own.optional_size(names[0], 1024)?, own.optional_size(names[1], 1024)?),
            (None, Some(_)) => (None, None),
            (None, None) => (Some(head_dim), kv_heads),
        };
        let (head_dim, num_kv_heads) = (width.unwrap_or(usual), kv.unwrap_or(usual_kv));
        check_head_dim(place, names[0], head_dim)?;
        if !num_heads.is_multiple_of(num_kv_heads) || num_heads * head_dim > MAX_WIDTH {
            let problem = format!("{num_kv_heads} for {num_heads} query heads of width {head_dim}");
            return Err(place.error(names[1], problem));
        }
        (layer.heads.head_dim, layer.heads.num_kv_heads) = (head_dim, num_kv_heads);
    }
    // They turn alike.
    let mut widths = layers.iter().filter(|layer| layer.window.is_none()).map(|layer| layer.heads.head_dim);
    if let Some(first) = widths.next()
        && let Some(other) = widths.find(|width| *width != first)
    {
        let problem = format!("layers that see all have heads of width {first} and {other}; one width is supported");
        return Err(fields.error("layer_types", problem));
    }
    Ok(())
}

/// Fields of single layers say what their heads are, where they see all, and nothing else.
fn check_listed(listed: &Fields<'_>, layers: &[LayerConfig]) -> Result<(), LoadError> {
    for name in listed.map.keys() {
        let layer = name.parse().ok().and_then(|index: usize| layers.get(index));
        if layer.is_none_or(|layer| layer.window.is_some()) {
            return Err(
                listed.error(&quoted(name), "is no layer that sees all; others have no fields of their own here")
            );
        }
        let own = listed.object(name)?;
        let known = |field: &&String| !["head_dim", "num_key_value_heads"].contains(&field.as_str());
        if let Some((own, field)) = own.as_ref().and_then(|own| Some((own, own.map.keys().find(known)?))) {
            return Err(own.error(&quoted(field), "differs between layers, which is not supported"));
        }
    }
    Ok(())
}

/// Widths of the layers' MLPs: twice the usual one where layers read other layers' keys and a field says so.
pub(super) fn set_mlp_widths(
    fields: &Fields<'_>,
    layers: &mut [LayerConfig],
    intermediate_size: usize,
) -> Result<(), LoadError> {
    let wide = 2 * intermediate_size;
    let doubled = layers.iter().any(|layer| layer.heads.queries_only) && fields.flag("use_double_wide_mlp", false)?;
    if doubled && wide > MAX_WIDTH {
        let problem = format!("{intermediate_size}, doubled by use_double_wide_mlp, is more than {MAX_WIDTH}");
        return Err(fields.error("intermediate_size", problem));
    }
    for layer in layers {
        layer.mlp_width = if doubled && layer.heads.queries_only { wide } else { intermediate_size };
    }
    Ok(())
}

/// What layers learn of a token beside the stream.
pub(super) fn layer_input(fields: &Fields<'_>, traits: &Traits) -> Result<Option<LayerInputConfig>, LoadError> {
    const WIDTH: &str = "hidden_size_per_layer_input";
    const VOCABULARY: &str = "vocab_size_per_layer_input";
    let Some(absent) = traits.uneven_layers.filter(|&absent| absent > 0) else { return Ok(None) };
    let width = match fields.map.contains_key(WIDTH) {
        true => fields.optional_integer(WIDTH, 0..=1 << 16)?.unwrap_or(0) as usize,
        false => absent,
    };
    if width == 0 {
        return Ok(None);
    }
    let tokens = fields.size("vocab_size", 1 << 24)?;
    let vocab_size = fields.optional_size(VOCABULARY, 1 << 24)?.unwrap_or(262_144);
    if vocab_size < tokens {
        return Err(fields.error(VOCABULARY, format!("{vocab_size} is less than vocab_size = {tokens}")));
    }
    Ok(Some(LayerInputConfig { width, vocab_size }))
}

/// Attention, or what `layer_types` lists besides; without a list, what the architecture assumes.
fn mixers(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<Mixer>, LoadError> {
    let full = ("full_attention", Mixer::Attention);
    let mixers: Vec<Mixer> = match traits.mixers {
        MixerFields::Attention => return Ok(vec![Mixer::Attention; num_layers]),
        MixerFields::Latent => {
            let latent = LatentConfig::read(fields, fields.size("num_attention_heads", 1024)?)?;
            return Ok(vec![Mixer::Latent(latent); num_layers]);
        }
        MixerFields::Kimi => {
            let latent = LatentConfig::read(fields, fields.size("num_attention_heads", 1024)?)?;
            let latent = Mixer::Latent(LatentConfig { neighbours: false, ..latent });
            let delta = Mixer::Delta(DeltaConfig::read(fields, DeltaProjections::ByKey)?);
            let every_fourth = |layer| if layer > 0 && layer % 4 == 0 { latent } else { delta };
            listed(fields, num_layers, &[("full_attention", latent), ("linear_attention", delta)])?
                .unwrap_or_else(|| (0..num_layers).map(every_fourth).collect())
        }
        MixerFields::Delta(projections) => {
            let delta = Mixer::Delta(DeltaConfig::read(fields, projections)?);
            match listed(fields, num_layers, &[full, ("linear_attention", delta)])? {
                Some(listed) => listed,
                None => {
                    let interval = fields.optional_size("full_attention_interval", 1 << 20)?.unwrap_or(4);
                    let mixer = |layer| if layer % interval == 0 { Mixer::Attention } else { delta };
                    (1..=num_layers).map(mixer).collect()
                }
            }
        }
        MixerFields::Mamba => {
            let (mamba, attention) = (true, false);
            let names = [
                ("mamba", mamba),
                ("linear_attention", mamba),
                ("attention", attention),
                ("full_attention", attention),
            ];
            let listed = listed(fields, num_layers, &names)?.unwrap_or_else(|| vec![mamba; num_layers]);
            let config = listed.contains(&mamba).then(|| MambaConfig::read(fields, &OF_GRANITE)).transpose()?;
            let mixer = |is_mamba: bool| config.filter(|_| is_mamba).map_or(Mixer::Attention, Mixer::Mamba);
            listed.into_iter().map(mixer).collect()
        }
        MixerFields::SingleBlocks => {
            let blocks = single_blocks(fields)?;
            let has_mamba = blocks.contains(&SingleBlock::Mamba);
            let mamba = has_mamba.then(|| MambaConfig::read(fields, &OF_NEMOTRON)).transpose()?;
            let mixer = |block| match block {
                SingleBlock::Mamba => mamba.map_or(Mixer::None, Mixer::Mamba),
                SingleBlock::Attention => Mixer::Attention,
                SingleBlock::Mlp | SingleBlock::Experts => Mixer::None,
            };
            blocks.into_iter().map(mixer).collect()
        }
        MixerFields::Both => {
            let mamba = MambaConfig::read(fields, &OF_FALCON)?.with_factors(fields)?;
            vec![Mixer::Both(mamba); num_layers]
        }
        MixerFields::ShortConvolutions | MixerFields::EverySecondConvolution => {
            let taps = if traits.mixers == MixerFields::ShortConvolutions { 3 } else { 7 };
            let convolution = Mixer::ShortConvolution(ShortConvolutionConfig::read(fields, taps)?);
            let windowed = ("sliding_attention", Mixer::Attention);
            let known = [full, (CONVOLUTION, convolution), windowed];
            let known = if traits.windows == Windows::Never { &known[..2] } else { &known };
            match listed(fields, num_layers, known)? {
                Some(listed) => listed,
                None if traits.mixers == MixerFields::ShortConvolutions => {
                    attention_at(fields, num_layers, convolution)?
                }
                None => {
                    let mixer = |layer| if layer == 0 || layer % 2 == 1 { convolution } else { Mixer::Attention };
                    (0..num_layers).map(mixer).collect()
                }
            }
        }
    };
    // The scheduler counts in blocks of keys and values.
    match mixers.iter().any(Mixer::has_keys) {
        true => Ok(mixers),
        false => Err(fields.error("layer_types", "no layer is attention; at least one is needed")),
    }
}

/// What a layer is that has one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SingleBlock {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// Blocks of layers that have one each, at least one layer: listed by name, or by letter.
pub(super) fn single_blocks(fields: &Fields<'_>) -> Result<Vec<SingleBlock>, LoadError> {
    use SingleBlock::{Attention, Experts, Mamba, Mlp};
    const PATTERN: &str = "hybrid_override_pattern";
    const LISTS: [&str; 2] = ["layers_block_type", "layer_types"];
    let stated = fields.optional_size("num_hidden_layers", 1024)?;
    let blocks = match (LISTS.into_iter().find(|name| fields.get(name).is_some()), fields.text(PATTERN)?) {
        (Some(name), _) => {
            let listed = fields.list(name)?.map_or(0, <[Value]>::len);
            let known = [
                ("mamba", Mamba),
                ("linear_attention", Mamba),
                ("attention", Attention),
                ("full_attention", Attention),
                ("mlp", Mlp),
                ("moe", Experts),
            ];
            listed_in(fields, name, stated.unwrap_or(listed), &known)?.unwrap_or_default()
        }
        (None, Some(pattern)) => {
            let block = |letter| match letter {
                'M' => Ok(Mamba),
                '*' => Ok(Attention),
                '-' => Ok(Mlp),
                'E' => Ok(Experts),
                _ => Err(fields.error(PATTERN, format!("{} is none of M, *, - and E", quoted(&letter.to_string())))),
            };
            pattern.chars().take(1025).map(block).collect::<Result<Vec<_>, _>>()?
        }
        (None, None) => return Err(fields.error(LISTS[0], "missing")),
    };
    match blocks.len() {
        found @ 1..=1024 if stated.is_none_or(|stated| stated == found) => Ok(blocks),
        found => {
            let wanted = stated.map_or("1 to 1024 are supported".to_string(), |of| format!("num_hidden_layers = {of}"));
            Err(fields.error(PATTERN, format!("{found} layers; {wanted}")))
        }
    }
}

/// Attention in the layers that `full_attn_idxs` lists, all of them without it.
fn attention_at(fields: &Fields<'_>, num_layers: usize, others: Mixer) -> Result<Vec<Mixer>, LoadError> {
    const NAME: &str = "full_attn_idxs";
    let Some(indices) = fields.list(NAME)? else { return Ok(vec![Mixer::Attention; num_layers]) };
    let mut mixers = vec![others; num_layers];
    for layer in indices {
        *layer_of(fields, NAME, layer, &mut mixers)? = Mixer::Attention;
    }
    Ok(mixers)
}

/// The element of a layer that a list names.
fn layer_of<'l, T>(fields: &Fields<'_>, name: &str, layer: &Value, of: &'l mut [T]) -> Result<&'l mut T, LoadError> {
    let num_layers = of.len();
    let index = layer.as_u64().and_then(|index| usize::try_from(index).ok());
    index
        .and_then(|index| of.get_mut(index))
        .ok_or_else(|| fields.error(name, format!("{} is not a layer of {num_layers}", quoted(&layer.to_string()))))
}

/// Layers whose queries and keys turn with their positions.
fn rotated(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<bool>, LoadError> {
    const NAME: &str = "no_rope_layers";
    if traits.rotation_if_asked {
        const KIND: &str = "position_embedding_type";
        return match fields.text(KIND)? {
            Some("rope") => Ok(vec![true; num_layers]),
            None | Some("nope") => Ok(vec![false; num_layers]),
            Some(other) => Err(fields.error(KIND, format!("{} is not supported; rope and nope are", quoted(other)))),
        };
    }
    if !traits.unrotated_layers {
        return Ok(vec![true; num_layers]);
    }
    let Some(flags) = fields.list(NAME)? else {
        let interval = fields.optional_size("no_rope_layer_interval", 1 << 20)?.unwrap_or(4);
        return Ok((1..=num_layers).map(|layer| layer % interval != 0).collect());
    };
    if flags.len() < num_layers {
        return Err(fields.error(NAME, format!("{} entries for num_hidden_layers = {num_layers}", flags.len())));
    }
    let wrong =
        |value: &Value| fields.error(NAME, format!("expected 1 (rotated) or 0, found {}", quoted(&value.to_string())));
    flags[..num_layers]
        .iter()
        .map(|flag| match flag.as_u64() {
            Some(flag @ 0..=1) => Ok(flag == 1),
            _ => Err(wrong(flag)),
        })
        .collect()
}

/// Layers that `layer_types` lists as `sliding_attention`, or the architecture's own without a list.
fn windowed(fields: &Fields<'_>, traits: &Traits, rotated: &[bool]) -> Result<Vec<bool>, LoadError> {
    let num_layers = rotated.len();
    let none = vec![false; num_layers];
    if traits.windows == Windows::Never {
        return Ok(none);
    }
    let listed = match traits.windows {
        Windows::Chunks => listed(fields, num_layers, &[("full_attention", false), ("chunked_attention", true)])?,
        _ => layer_types(fields, num_layers, traits.mixers == MixerFields::EverySecondConvolution)?,
    };
    let asked_for = [Windows::From, Windows::AllIfAsked, Windows::EverySecondIfAsked, Windows::UnrotatedIfAsked];
    if asked_for.contains(&traits.windows) && !fields.flag("use_sliding_window", false)? {
        return Ok(none);
    }
    if let Some(mut listed) = listed {
        // As transformers reads a list of such layers that ends otherwise.
        if let Some(last) = listed.last_mut().filter(|_| traits.uneven_layers.is_some()) {
            *last = false;
        }
        return Ok(listed);
    }
    Ok(match traits.windows {
        Windows::Never => none,
        Windows::All { .. } | Windows::AllIfAsked => vec![true; num_layers],
        Windows::From | Windows::FromAlways | Windows::EverySecondIfAsked => {
            let border = fields.optional_integer("max_window_layers", 0..=1 << 20)?;
            let border = border.map_or(FIRST_WINDOWED, |border| border as usize);
            let is_windowed = |layer| match traits.windows {
                Windows::From | Windows::FromAlways => layer >= border,
                _ => layer < border && layer % 2 == 0,
            };
            (0..num_layers).map(is_windowed).collect()
        }
        Windows::UnrotatedIfAsked => rotated.iter().map(|rotated| !rotated).collect(),
        Windows::AllButEveryFromLast { pattern } => {
            (1..=num_layers).map(|layer| !(num_layers - layer).is_multiple_of(pattern)).collect()
        }
        Windows::EveryFromFirst { pattern } => (0..num_layers).map(|layer| layer % pattern == 0).collect(),
        Windows::Chunks => rotated.to_vec(),
        Windows::AllButEveryBehindDense { pattern } => {
            let dense = fields.optional_integer("first_k_dense_replace", 0..=1 << 20)?.unwrap_or(0) as usize;
            let pattern = fields.optional_size("sliding_window_pattern", 1 << 20)?.unwrap_or(pattern);
            let before = fields.optional_size(PREFIX_PATTERN, 1 << 20)?.unwrap_or(1);
            let windowed = |layer: usize| match layer.checked_sub(dense) {
                Some(layer) => (layer + 1) % pattern != 0,
                None => !(layer + 1).is_multiple_of(before),
            };
            (0..num_layers).map(windowed).collect()
        }
        Windows::AllButEveryFromFirst { pattern } => (0..num_layers).map(|layer| layer % pattern != 0).collect(),
        Windows::AllButEvery { pattern } => {
            let pattern = fields.optional_size("sliding_window_pattern", 1 << 20)?.unwrap_or(pattern);
            let last_sees_all = traits.uneven_layers.is_some();
            let windowed = |layer| layer % pattern != 0 && !(last_sees_all && layer == num_layers);
            (1..=num_layers).map(windowed).collect()
        }
    })
}

/// How many tokens a layer with a window sees. `null` is no window; absent, it is what the architecture assumes.
fn window(fields: &Fields<'_>, traits: &Traits) -> Result<Option<usize>, LoadError> {
    let field = if traits.windows == Windows::Chunks { "attention_chunk_size" } else { "sliding_window" };
    if traits.windows == Windows::Never || fields.map.get(field).is_some_and(Value::is_null) {
        return Ok(None);
    }
    let absent = match traits.windows {
        Windows::All { absent } => absent,
        _ => Some(traits.absent_window),
    };
    Ok(fields.optional_size(field, 1 << 27)?.or(absent))
}

/// `[num_layers]`: whether `layer_types` lists a layer as one with a window; `None` where there is no list.
fn layer_types(fields: &Fields<'_>, num_layers: usize, has_convolutions: bool) -> Result<Option<Vec<bool>>, LoadError> {
    let known = [("full_attention", false), ("sliding_attention", true), (CONVOLUTION, false)];
    listed(fields, num_layers, if has_convolutions { &known } else { &known[..2] })
}

/// `[num_layers]`: what the names in `layer_types` stand for; `None` where there is no list.
fn listed<T: Copy>(fields: &Fields<'_>, num_layers: usize, known: &[(&str, T)]) -> Result<Option<Vec<T>>, LoadError> {
    listed_in(fields, "layer_types", num_layers, known)
}

/// The same of another list.
fn listed_in<T: Copy>(
    fields: &Fields<'_>,
    field: &str,
    num_layers: usize,
    known: &[(&str, T)],
) -> Result<Option<Vec<T>>, LoadError> {
    let Some(types) = fields.list(field)? else { return Ok(None) };
    let listed = types.iter().map(|layer_type| match layer_type.as_str() {
        None => Err(fields.error(field, format!("expected names, found {}", kind(layer_type)))),
        Some(name) => match known.iter().find(|(known, _)| *known == name) {
            Some((_, meaning)) => Ok(*meaning),
            None => Err(fields.error(field, format!("{} is not supported", quoted(name)))),
        },
    });
    let listed: Vec<T> = listed.collect::<Result<_, _>>()?;
    if listed.len() != num_layers {
        let problem = format!("{} entries for num_hidden_layers = {num_layers}", listed.len());
        return Err(fields.error(field, problem));
    }
    Ok(Some(listed))
}

/// What each layer does to each row by itself.
fn feeds(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<FeedForward>, LoadError> {
    if traits.mixers != MixerFields::SingleBlocks {
        let feed = |has_experts| if has_experts { FeedForward::Experts } else { FeedForward::Dense };
        return Ok(with_experts(fields, traits, num_layers)?.into_iter().map(feed).collect());
    }
    let feed = |block| match block {
        SingleBlock::Mamba | SingleBlock::Attention => FeedForward::None,
        SingleBlock::Mlp => FeedForward::Dense,
        SingleBlock::Experts => FeedForward::Experts,
    };
    Ok(single_blocks(fields)?.into_iter().map(feed).collect())
}

/// Layers whose MLP is a mixture of experts.
fn with_experts(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<bool>, LoadError> {
    let from = |name, absent| -> Result<Vec<bool>, LoadError> {
        let first = fields.optional_integer(name, 0..=1 << 20)?.unwrap_or(absent) as usize;
        Ok((0..num_layers).map(|layer| layer >= first).collect())
    };
    match traits.experts {
        ExpertFields::Qwen | ExpertFields::Qwen2Moe | ExpertFields::Qwen3Next => {}
        ExpertFields::Lfm2 => return from("num_dense_layers", 2),
        ExpertFields::Glm4 => return from("first_k_dense_replace", 1),
        ExpertFields::DeepSeek(_) | ExpertFields::Cohere => {
            const TYPES: &str = "mlp_layer_types";
            return match listed_in(fields, TYPES, num_layers, &[("dense", false), ("sparse", true)])? {
                Some(listed) => Ok(listed),
                None => match fields.get("first_k_dense_replace") {
                    None if traits.experts == ExpertFields::Cohere => from("first_k_dense_replace", 0),
                    Some(_) => from("first_k_dense_replace", 0),
                    None => Err(fields.error("first_k_dense_replace", "missing, and mlp_layer_types too")),
                },
            };
        }
        ExpertFields::Dots1 => return from("first_k_dense_replace", 0),
        ExpertFields::Ernie => {
            let interval = fields.optional_size("moe_layer_interval", 1 << 20)?.unwrap_or(1);
            let last = fields.get("moe_layer_end_index").and_then(Value::as_i64).filter(|last| *last >= 0);
            let from_first = from("moe_layer_start_index", 1)?.into_iter().enumerate();
            let has = |(layer, from_first): (usize, bool)| {
                from_first && (layer + 1) % interval == 0 && last.is_none_or(|last| layer as i64 <= last)
            };
            return Ok(from_first.map(has).collect());
        }
        ExpertFields::Llama4 => {
            const LISTED: &str = "moe_layers";
            let step = fields.optional_size("interleave_moe_layer_step", 1 << 20)?.unwrap_or(1);
            let mut layers: Vec<bool> = (1..=num_layers).map(|layer| layer % step == 0).collect();
            if let Some(listed) = fields.list(LISTED)? {
                layers.fill(false);
                for layer in listed {
                    *layer_of(fields, LISTED, layer, &mut layers)? = true;
                }
            }
            return Ok(layers);
        }
        ExpertFields::Granite | ExpertFields::Gemma4 => return Ok(vec![has_experts(fields, traits)?; num_layers]),
        _ => return Ok(vec![traits.experts != ExpertFields::None; num_layers]),
    }
    const DENSE: &str = "mlp_only_layers";
    let step = fields.optional_size("decoder_sparse_step", 1 << 20)?.unwrap_or(1);
    let mut with_experts: Vec<bool> = (1..=num_layers).map(|layer| layer % step == 0).collect();
    for layer in fields.list(DENSE)?.unwrap_or_default() {
        *layer_of(fields, DENSE, layer, &mut with_experts)? = false;
    }
    Ok(with_experts)
}
