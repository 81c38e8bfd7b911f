//! The architectures: what each fixes, which fields it reads, and what it assumes of fields that are absent.
//!
//! One row per architecture, most of them "as Llama, except". Only reading a configuration looks at this table: what it
//! says is written into [`ModelConfig`](super::ModelConfig), and the forward pass knows no names.

use super::fields::{Fields, quoted};
use checkpoint::LoadError;
use kernels::Activation;
use serde_json::Value;
use std::fmt;

/// Architectures that the forward pass knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2, 3, 3.1, 3.2, 3.3, and the many models of that shape (Touvron et al., 2023; Grattafiori et al., 2024).
    Llama,
    /// Llama 4, its text part: chunks of attention, experts whose inputs are weighed (Meta, 2025).
    Llama4,
    /// Mistral 7B and its successors of the same shape (Jiang et al., 2023); of Small 3.1 and 3.2, the text part;
    /// Ministral 3, whose queries grow with their positions (Mistral AI, 2026).
    Mistral,
    /// Qwen2 and Qwen2.5 (Yang et al., 2024), and MiMo, which is one (LLM-Core Xiaomi, 2025).
    Qwen2,
    /// Qwen3, dense (Yang et al., 2025), and the text part of Qwen3-VL.
    Qwen3,
    /// Gemma (Gemma Team, 2024).
    Gemma,
    /// Gemma 2 (Gemma Team, 2024).
    Gemma2,
    /// Gemma 3, its text part (Gemma Team, 2025).
    Gemma3,
    /// Gemma 4, its text part (Gemma Team, 2026).
    Gemma4,
    /// Phi-3, Phi-3.5 and Phi-4, mini and medium (Abdin et al., 2024).
    Phi3,
    /// OLMo 2 (Team OLMo, 2025).
    Olmo2,
    /// OLMo 3 (Team OLMo, 2025).
    Olmo3,
    /// OLMoE: experts (Muennighoff et al., 2024).
    Olmoe,
    /// FlexOlmo: OLMo 2 with experts (Shi et al., 2025).
    FlexOlmo,
    /// EXAONE 4 (LG AI Research, 2025).
    Exaone4,
    /// Seed-OSS (ByteDance Seed Team, 2025).
    SeedOss,
    /// Granite 3, dense (Granite Team, 2024).
    Granite,
    /// Granite with windows and sinks, and bases of rotations layer by layer (IBM, 2026).
    GraniteSwa,
    /// The same with experts.
    GraniteMoeSwa,
    /// SmolLM3 (Bakouch et al., 2025).
    SmolLm3,
    /// Phi-3.5-MoE: Mixtral with layer norms and a router of its own (Abdin et al., 2024).
    PhiMoe,
    /// Mixtral: Mistral with experts (Jiang et al., 2024).
    Mixtral,
    /// Qwen1.5 and Qwen2 with experts (Yang et al., 2024).
    Qwen2Moe,
    /// Qwen3 with experts (Yang et al., 2025).
    Qwen3Moe,
    /// MiniMax-M2: experts (MiniMax, 2025).
    MiniMaxM2,
    /// Qwen3-Next: three layers of four have a state (Qwen Team, 2025; Gated DeltaNet: Yang et al., 2024).
    Qwen3Next,
    /// gpt-oss: experts with biases, sinks in attention (OpenAI, 2025).
    GptOss,
    /// Qwen3.5 to Qwen3.8, dense, their text part: layers as in Qwen3-Next.
    Qwen35,
    /// The same with experts.
    Qwen35Moe,
    /// LFM2 and LFM2.5, dense: short convolutions and attention (Liquid AI, 2025).
    Lfm2,
    /// The same with experts.
    Lfm2Moe,
    /// LFM3: the same with norms around its blocks, windows and gates of heads (Liquid AI, 2026).
    Lfm3,
    /// Muse Glimmer, its text part (Meta, 2026).
    MuseGlimmer,
    /// GLM-4.5: experts (GLM-4.5 Team, 2025).
    Glm4Moe,
    /// DeepSeek-V2: latent attention and experts (DeepSeek-AI, 2024).
    DeepSeekV2,
    /// DeepSeek-V3 and R1, and Kimi K2, which is one (DeepSeek-AI, 2024; Kimi Team, 2025).
    DeepSeekV3,
    /// GLM-4.7-Flash: the same of another width (GLM Team, 2026).
    Glm4MoeLite,
    /// Mistral Small 4, its text part (Mistral AI, 2026).
    Mistral4,
    /// Granite 3 with experts (Granite Team, 2024).
    GraniteMoe,
    /// Granite 4: Mamba-2 and attention, with experts or dense (IBM, 2025).
    GraniteHybrid,
    /// Falcon-H1: Mamba-2 and attention beside each other in every layer (Zuo et al., 2025).
    FalconH1,
    /// Kimi Linear: delta attention by key in three of four layers, latent attention without rotation in the others
    /// (Kimi Team, 2025).
    KimiLinear,
    /// Arcee's foundation models: an MLP without a gate (Arcee AI, 2025).
    Arcee,
    /// Apertus: an MLP without a gate, whose activation each layer learns (Swiss AI, 2025).
    Apertus,
    /// ERNIE 4.5, dense (ERNIE Team, 2025).
    Ernie45,
    /// The same with experts.
    Ernie45Moe,
    /// Hunyuan, dense: norms of queries and keys behind the rotation (Tencent Hunyuan Team, 2025).
    HunYuanDense,
    /// The same with experts.
    HunYuanMoe,
    /// GLM-4 (GLM Team, 2024).
    Glm,
    /// GLM-4-0414: GLM-4 with norms around its blocks.
    Glm4,
    /// Command R: attention and MLP beside each other (Cohere, 2024).
    Cohere,
    /// Command R7B and Command A: the same with windows (Cohere, 2025).
    Cohere2,
    /// Command A+: the same with experts (Cohere, 2026).
    Cohere2Moe,
    /// Nemotron-H and Nemotron 3: layers that are Mamba-2, attention, an MLP or experts alone (NVIDIA, 2025).
    NemotronH,
    /// Nemotron 4 and Minitron: layer norms, an MLP without a gate (Parmar et al., 2024).
    Nemotron,
    /// StarCoder2: layer norms, biases, an MLP without a gate (Lozhkov et al., 2024).
    Starcoder2,
    /// StableLM 2 1.6B: layer norms (Bellagente et al., 2024).
    StableLm,
    /// OLMo: layer norms without weights (Groeneveld et al., 2024).
    Olmo,
    /// dots.llm1: experts (Huo et al., 2025).
    Dots1,
    /// BERT: an encoder (Devlin et al., 2018).
    Bert,
    /// RoBERTa: an encoder (Liu et al., 2019).
    Roberta,
    /// XLM-RoBERTa: an encoder (Conneau et al., 2019).
    XlmRoberta,
    /// ModernBERT: an encoder (Warner et al., 2024).
    ModernBert,
    /// Nomic Embed 1 and 1.5: an encoder (Nussbaum et al., 2024).
    NomicBert,
}

impl Family {
    /// `model_type` of the family.
    pub fn name(self) -> &'static str {
        let decoder = ARCHITECTURES.iter().find(|traits| traits.family == self).map(|traits| traits.model_type);
        let encoder = ENCODERS.iter().find(|(family, _)| *family == self).map(|(_, name)| *name);
        decoder.or(encoder).unwrap_or("")
    }

    /// By a name in `architectures`; `None` where it is unknown.
    pub(crate) fn of_architecture(name: &str) -> Option<Family> {
        ARCHITECTURES.iter().find(|traits| traits.is_named(name)).map(|traits| traits.family)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a block (attention, MLP) has its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Its input is normed.
    Before,
    /// Its output is normed, before it is added to the residual stream.
    After,
    /// Both.
    Around,
    /// The input is normed, once for attention and the MLP, which are added together.
    Parallel,
}

/// What a norm of the stream takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// The mean square, and a weight.
    Rms,
    /// The mean too, and what of these it has.
    Layer {
        /// Multiplies.
        weight: bool,
        /// Is added.
        bias: bool,
    },
}

/// What a norm of queries and keys takes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// There is none.
    None,
    /// Each head by itself.
    PerHead,
    /// The same, and values too, which have no weights.
    WithValues,
    /// Each head by itself, of the distance from its mean, with weights of its own.
    Centered,
    /// All heads of a row.
    WholeWidth,
    /// Each head by itself, behind the rotation.
    AfterRotation,
}

/// Gates of attention's output, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionGate {
    /// There are none.
    None,
    /// One for each number, in the projection of queries: those of a head behind its queries.
    WithQueries,
    /// One for each number, by a projection of their own.
    PerNumber,
    /// One for each head, likewise.
    PerHead,
}

/// Which projections are one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedProjections {
    /// None.
    None,
    /// Gate and up.
    GateUp,
    /// Gate and up, and q, k and v.
    All,
}

/// Biases of the attention's projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttentionBias {
    Never,
    /// On q, k and v, always.
    Qkv,
    /// On all four if `attention_bias` says so.
    Stated,
    /// On all four unless `attention_bias` says no.
    Assumed,
    /// On q, k and v if it says so.
    StatedQkv,
    /// On q, k and v unless it says no.
    AssumedQkv,
    /// On q, k and v if `use_qkv_bias` says so.
    UseQkvBias,
    /// On all four and in the MLP unless `use_bias` says no.
    UseBias,
    /// On q, k and v unless `attention_bias` says no, on the output if `attention_out_bias` says so.
    StatedApart,
}

/// Which layers see a window (`sliding_window`) unless `layer_types` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// None, whatever the fields say.
    Never,
    /// All; of this width when the field is absent.
    All { absent: Option<usize> },
    /// With `use_sliding_window`, those from `max_window_layers` on.
    From,
    /// Those from `max_window_layers` on.
    FromAlways,
    /// With `use_sliding_window`, all.
    AllIfAsked,
    /// With `use_sliding_window`, every second one from the first, below `max_window_layers`.
    EverySecondIfAsked,
    /// With `use_sliding_window`, those without rotation.
    UnrotatedIfAsked,
    /// All but every n-th: `sliding_window_pattern`, or this.
    AllButEvery { pattern: usize },
    /// All but every n-th, counted back from the last, which is the first of them.
    AllButEveryFromLast { pattern: usize },
    /// Every n-th, the first among them.
    EveryFromFirst { pattern: usize },
    /// All others.
    AllButEveryFromFirst { pattern: usize },
    /// Those that turn; they are chunks of `attention_chunk_size`.
    Chunks,
    /// Of the layers behind `first_k_dense_replace` all but every n-th: `sliding_window_pattern`, or this; of those
    /// before all but every n-th by `prefix_dense_sliding_window_pattern`.
    AllButEveryBehindDense { pattern: usize },
}

/// Factors on the way through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factors {
    /// Scores are divided by the root of the head's width; nothing else.
    Plain,
    /// Embeddings times the root of `hidden_size`, scores divided by the root of the head's width.
    OfEmbeddings,
    /// Embeddings times the root of `hidden_size`, scores divided by the root of `query_pre_attn_scalar`, capped
    /// logits, and capped scores in one of them.
    Gemma { capped_scores: bool },
    /// Embeddings times the root of `hidden_size`, scores as they are, capped logits if a field says so.
    Gemma4,
    /// `logit_scale`.
    Cohere,
    /// `output_multiplier`, capped logits.
    Muse,
    /// A factor of every product.
    FalconH1,
    /// `embedding_multiplier`, `attention_multiplier`, `residual_multiplier`, `logits_scaling`.
    Granite,
}

/// Whether layers have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpertFields {
    None,
    /// In every layer, `intermediate_size` wide, weights over the chosen.
    Mixtral,
    /// The same, weights by those that are near: `router_jitter_noise`.
    PhiMoe,
    /// In the layers of `moe_layers`, or every `interleave_moe_layer_step`-th, `intermediate_size` wide, inputs times
    /// scores by sigmoid, and one as wide without a gate; other layers are `intermediate_size_mlp` wide.
    Llama4,
    /// `intermediate_size` wide, from layer `first_k_dense_replace` on, or where `mlp_layer_types` says so, scores by
    /// `expert_selection_fn`, and `num_shared_experts` more without a gate, which count half with the others; other
    /// layers are `prefix_dense_intermediate_size` wide.
    Cohere,
    /// In every layer, `intermediate_size` wide, weights by `norm_topk_prob`.
    Olmoe,
    /// In every layer, `intermediate_size` wide, weights over the chosen; router and experts have biases.
    GptOss,
    /// `moe_intermediate_size` wide, weights by `norm_topk_prob`, layers by `decoder_sparse_step` and
    /// `mlp_only_layers`.
    Qwen,
    /// The same, and one more with a gate for every token.
    Qwen2Moe,
    /// The same, weights over the chosen unless a field says no.
    Qwen3Next,
    /// If `enable_moe_block` says so, in every layer, beside its MLP: `moe_intermediate_size` wide, `top_k_experts`,
    /// weights over the chosen.
    Gemma4,
    /// The same in every layer, weights over the chosen.
    Qwen35,
    /// `moe_intermediate_size` wide, from layer `num_dense_layers` on, scores by sigmoid, a bias for the choice.
    Lfm2,
    /// `moe_intermediate_size` wide, from layer `first_k_dense_replace` on, scores by sigmoid, in groups, a bias for the
    /// choice, and `n_shared_experts` more without a gate.
    Glm4,
    /// `moe_intermediate_size` wide, from layer `first_k_dense_replace` on, or where `mlp_layer_types` says so, and
    /// `n_shared_experts` more without a gate.
    DeepSeek(Router),
    /// The same, from the first layer on if no field says otherwise, weights by `norm_topk_prob`.
    Dots1,
    /// In every layer, `intermediate_size` wide, scores by sigmoid, a bias for the choice, weights over the chosen.
    MiniMaxM2,
    /// `moe_intermediate_size` wide, from layer `moe_layer_start_index` to `moe_layer_end_index`, every
    /// `moe_layer_interval`-th, a bias for the choice, weights over the chosen, and `moe_num_shared_experts` more without
    /// a gate.
    Ernie,
    /// In every layer, `intermediate_size` wide, weights over the chosen, and one as wide without a gate.
    HunYuan,
    /// Where a layer is one, `moe_intermediate_size` wide, scores by sigmoid, in groups, a bias for the choice, one more
    /// of a width of its own, and `moe_latent_size`.
    NemotronH,
    /// In every layer, `intermediate_size` wide, weights over the chosen, and one of `shared_intermediate_size` without a
    /// gate; with `num_local_experts` 0 that one alone.
    Granite,
}

/// How a family of DeepSeek's scores experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Router {
    /// By sigmoid, with a bias for the choice, in groups.
    Sigmoids,
    /// By softmax, times a factor, in groups if `topk_method` says so.
    Shares,
    /// By softmax, weights over the chosen, times a factor.
    NormedShares,
}

/// Which layers are not attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MixerFields {
    /// None.
    Attention,
    /// Linear attention, but for every n-th unless `layer_types` lists them.
    Delta(DeltaProjections),
    /// Mamba-2, by `layer_types`.
    Mamba,
    /// A layer is Mamba-2, attention, an MLP or experts alone, by `layers_block_type` or `hybrid_override_pattern`.
    SingleBlocks,
    /// Mamba-2 and attention in all.
    Both,
    /// Short convolutions, by `layer_types`, or all but `full_attn_idxs`.
    ShortConvolutions,
    /// The same in the first layer and every second one unless `layer_types` lists them.
    EverySecondConvolution,
    /// Latent attention in all.
    Latent,
    /// Latent attention, and linear attention with a decay for each key, by `layer_types` or lists of layers.
    Kimi,
}

/// How the projections of a layer of linear attention are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeltaProjections {
    /// q, k and v in one tensor, the gates in others.
    Apart,
    /// In two tensors, key head by key head.
    ByKeyHead,
    /// q, k and v in three, decays of keys and gates of the output in two each.
    ByKey,
}

/// What the numbers of `layer_rope_theta`, one for each layer, mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerThetas {
    /// The field is not read.
    Unread,
    /// The base of the layer's rotation, 0 for none.
    Bases,
    /// 0 for no rotation, anything else for that of all; without the list every `pattern`-th from the last has none.
    ZeroOrNot { pattern: usize },
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    pub(super) family: Family,
    /// The class in `architectures`. A family may have several rows, the first of them for the name.
    pub(super) architecture: &'static str,
    /// The same without a head, as transformers saves it from the class that has none.
    pub(super) base: &'static str,
    pub(super) model_type: &'static str,
    pub(super) attention_bias: AttentionBias,
    /// `mlp_bias` is read.
    pub(super) mlp_bias: bool,
    pub(super) norms: NormPlacement,
    pub(super) norm: NormKind,
    /// Norms multiply by 1 plus their weight.
    pub(super) norms_around_zero: bool,
    /// But the last one does not.
    pub(super) plain_final_norm: bool,
    /// The embedding is normed, without weights.
    pub(super) normed_embedding: bool,
    /// `post_norm_eps` of norms behind blocks, where the field is absent; `None`: that of all norms.
    pub(super) after_eps: Option<f64>,
    pub(super) head_norm: HeadNorm,
    /// That norm has no weights; queries are multiplied by `qk_scale_factor`, or this.
    pub(super) head_norm_factor: Option<f64>,
    /// Only with `use_qk_norm`; what it is when the field is absent.
    pub(super) head_norm_if_asked: Option<bool>,
    /// `lm_head_bias` is read.
    pub(super) head_bias: bool,
    /// With `rms_norm_eps`, norms are of the mean square.
    pub(super) rms_if_stated: bool,
    pub(super) windows: Windows,
    /// `sliding_window` of a family that has one, where the field is absent.
    pub(super) absent_window: usize,
    pub(super) factors: Factors,
    pub(super) experts: ExpertFields,
    pub(super) fused_projections: FusedProjections,
    /// The MLP is gated.
    pub(super) gated_mlp: bool,
    /// Pairs of a rotation are neighbours, 0 and 1, and not halves apart.
    pub(super) neighbours: bool,
    /// `partial_rotary_factor` is read, and `rotary_dim`.
    pub(super) partial_rotation: bool,
    /// What it is when the field is absent.
    pub(super) rotary_share: f64,
    pub(super) attention_gate: AttentionGate,
    /// Each query head has a logit of its own in the softmax.
    pub(super) sinks: bool,
    /// Gate and up are clamped to `swiglu_limit`.
    pub(super) clamped: bool,
    /// Layers without a window have heads of their own, layers at the end may read the keys of others, and a layer may
    /// have an input of its own, this wide if no field says so: the fields of Gemma 4.
    pub(super) uneven_layers: Option<usize>,
    /// The stream is multiplied by a number behind each layer.
    pub(super) layer_scalars: bool,
    pub(super) mixers: MixerFields,
    /// Field of what is added under the root in norms.
    pub(super) eps_field: &'static str,
    /// The MLP's width is computed of several fields.
    pub(super) computed_width: bool,
    /// Layers with a window have a rotation of their own, unstretched, and this base when the field is absent.
    pub(super) local_theta: Option<f64>,
    /// `no_rope_layers` is read.
    pub(super) unrotated_layers: bool,
    /// Queries of the others grow with their positions, by `attn_scale` and `floor_scale`, unless
    /// `attn_temperature_tuning` says no.
    pub(super) growing_unrotated: bool,
    /// How `layer_rope_theta` is read.
    pub(super) layer_thetas: LayerThetas,
    /// Only with `position_embedding_type` "rope".
    pub(super) rotation_if_asked: bool,
    /// Where some layers have a window, the others have no rotation.
    pub(super) unrotated_beside_windows: bool,
    /// The fields are in `text_config`, beside those of an image's part.
    pub(super) text_part: Option<TextPart>,
    /// Of absent fields.
    pub(super) activation: Activation,
    pub(super) head_dim: Option<usize>,
    pub(super) eps: f64,
    /// No rotation is assumed: its fields are required.
    pub(super) rope_stated: bool,
    /// `llama_4_scaling_beta` is read, among the fields of the rotation.
    pub(super) growing_queries: bool,
    pub(super) theta: f64,
    pub(super) tied: bool,
}

/// The text part of a class that sees images: its `model_type`, and what is assumed of absent fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPart {
    model_type: &'static str,
    pub(super) assumed: &'static [(&'static str, u64)],
}

const LLAMA: Traits = Traits {
    family: Family::Llama,
    architecture: "LlamaForCausalLM",
    base: "LlamaModel",
    model_type: "llama",
    attention_bias: AttentionBias::Stated,
    mlp_bias: true,
    norms: NormPlacement::Before,
    norm: NormKind::Rms,
    norms_around_zero: false,
    plain_final_norm: false,
    normed_embedding: false,
    after_eps: None,
    head_norm: HeadNorm::None,
    head_norm_factor: None,
    head_norm_if_asked: None,
    head_bias: false,
    rms_if_stated: false,
    windows: Windows::Never,
    absent_window: 4096,
    factors: Factors::Plain,
    experts: ExpertFields::None,
    fused_projections: FusedProjections::None,
    gated_mlp: true,
    neighbours: false,
    partial_rotation: false,
    rotary_share: 1.0,
    attention_gate: AttentionGate::None,
    sinks: false,
    clamped: false,
    uneven_layers: None,
    layer_scalars: false,
    mixers: MixerFields::Attention,
    eps_field: "rms_norm_eps",
    computed_width: false,
    local_theta: None,
    unrotated_layers: false,
    growing_unrotated: false,
    layer_thetas: LayerThetas::Unread,
    rotation_if_asked: false,
    unrotated_beside_windows: false,
    text_part: None,
    activation: Activation::Silu,
    head_dim: None,
    eps: 1e-6,
    rope_stated: false,
    growing_queries: false,
    theta: 1e4,
    tied: false,
};

const LLAMA4: Traits = Traits {
    family: Family::Llama4,
    architecture: "Llama4ForCausalLM",
    base: "Llama4TextModel",
    model_type: "llama4_text",
    mlp_bias: false,
    head_norm: HeadNorm::AfterRotation,
    head_norm_factor: Some(1.0),
    head_norm_if_asked: Some(true),
    windows: Windows::Chunks,
    absent_window: 8192,
    experts: ExpertFields::Llama4,
    neighbours: true,
    unrotated_layers: true,
    growing_unrotated: true,
    head_dim: Some(128),
    eps: 1e-5,
    theta: 5e5,
    ..LLAMA
};

const MISTRAL: Traits = Traits {
    family: Family::Mistral,
    architecture: "MistralForCausalLM",
    base: "MistralModel",
    model_type: "mistral",
    attention_bias: AttentionBias::Never,
    mlp_bias: false,
    windows: Windows::All { absent: Some(4096) },
    ..LLAMA
};

const MINISTRAL3: Traits = Traits {
    architecture: "Ministral3ForCausalLM",
    base: "Ministral3Model",
    model_type: "ministral3",
    windows: Windows::All { absent: None },
    growing_queries: true,
    head_dim: Some(128),
    eps: 1e-5,
    // Absent, transformers assumes one stretched 16 times.
    rope_stated: true,
    theta: 1e6,
    ..MISTRAL
};

const QWEN3: Traits = Traits {
    family: Family::Qwen3,
    architecture: "Qwen3ForCausalLM",
    base: "Qwen3Model",
    model_type: "qwen3",
    mlp_bias: false,
    head_norm: HeadNorm::PerHead,
    windows: Windows::From,
    head_dim: Some(128),
    ..LLAMA
};

const QWEN2: Traits = Traits {
    family: Family::Qwen2,
    architecture: "Qwen2ForCausalLM",
    base: "Qwen2Model",
    model_type: "qwen2",
    attention_bias: AttentionBias::Qkv,
    head_norm: HeadNorm::None,
    head_dim: None,
    ..QWEN3
};

const QWEN2_VL_ASSUMED: &[(&str, u64)] = &[
    ("hidden_size", 8192),
    ("intermediate_size", 29_568),
    ("num_hidden_layers", 80),
    ("num_attention_heads", 64),
    ("num_key_value_heads", 8),
    ("max_position_embeddings", 32_768),
    ("vocab_size", 152_064),
];

const GEMMA: Traits = Traits {
    family: Family::Gemma,
    architecture: "GemmaForCausalLM",
    base: "GemmaModel",
    model_type: "gemma",
    mlp_bias: false,
    norms_around_zero: true,
    factors: Factors::OfEmbeddings,
    activation: Activation::GeluTanh,
    head_dim: Some(256),
    tied: true,
    ..LLAMA
};

const GEMMA2: Traits = Traits {
    family: Family::Gemma2,
    architecture: "Gemma2ForCausalLM",
    base: "Gemma2Model",
    model_type: "gemma2",
    mlp_bias: false,
    norms: NormPlacement::Around,
    norms_around_zero: true,
    windows: Windows::AllButEvery { pattern: 2 },
    factors: Factors::Gemma { capped_scores: true },
    activation: Activation::GeluTanh,
    head_dim: Some(256),
    tied: true,
    ..LLAMA
};

const GEMMA3: Traits = Traits {
    family: Family::Gemma3,
    architecture: "Gemma3ForCausalLM",
    base: "Gemma3TextModel",
    model_type: "gemma3_text",
    head_norm: HeadNorm::PerHead,
    windows: Windows::AllButEvery { pattern: 6 },
    factors: Factors::Gemma { capped_scores: false },
    theta: 1e6,
    local_theta: Some(1e4),
    ..GEMMA2
};

const GEMMA4: Traits = Traits {
    family: Family::Gemma4,
    architecture: "Gemma4ForCausalLM",
    base: "Gemma4TextModel",
    model_type: "gemma4_text",
    norms_around_zero: false,
    head_norm: HeadNorm::WithValues,
    factors: Factors::Gemma4,
    absent_window: 512,
    rotary_share: 0.25,
    experts: ExpertFields::Gemma4,
    uneven_layers: Some(256),
    layer_scalars: true,
    ..GEMMA3
};

/// The 12B: the same layers, without inputs of their own.
const GEMMA4_UNIFIED: Traits = Traits {
    architecture: "Gemma4UnifiedForCausalLM",
    base: "Gemma4UnifiedTextModel",
    model_type: "gemma4_unified_text",
    absent_window: 1024,
    experts: ExpertFields::None,
    uneven_layers: Some(0),
    ..GEMMA4
};

const GEMMA4_ASSUMED: &[(&str, u64)] = &[
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 30),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("max_position_embeddings", 131_072),
    ("vocab_size", 262_144),
];

const OLMO2: Traits = Traits {
    family: Family::Olmo2,
    architecture: "Olmo2ForCausalLM",
    base: "Olmo2Model",
    model_type: "olmo2",
    mlp_bias: false,
    norms: NormPlacement::After,
    head_norm: HeadNorm::WholeWidth,
    eps: 1e-5,
    ..LLAMA
};

const QWEN3_NEXT: Traits = Traits {
    family: Family::Qwen3Next,
    architecture: "Qwen3NextForCausalLM",
    base: "Qwen3NextModel",
    model_type: "qwen3_next",
    norms_around_zero: true,
    windows: Windows::Never,
    experts: ExpertFields::Qwen3Next,
    partial_rotation: true,
    rotary_share: 0.25,
    attention_gate: AttentionGate::WithQueries,
    mixers: MixerFields::Delta(DeltaProjections::ByKeyHead),
    head_dim: Some(256),
    ..QWEN3
};

const QWEN35: Traits = Traits {
    family: Family::Qwen35,
    architecture: "Qwen3_5ForCausalLM",
    base: "Qwen3_5TextModel",
    model_type: "qwen3_5_text",
    experts: ExpertFields::None,
    mixers: MixerFields::Delta(DeltaProjections::Apart),
    ..QWEN3_NEXT
};

const QWEN35_MOE: Traits = Traits {
    family: Family::Qwen35Moe,
    architecture: "Qwen3_5MoeForCausalLM",
    base: "Qwen3_5MoeTextModel",
    model_type: "qwen3_5_moe_text",
    experts: ExpertFields::Qwen35,
    ..QWEN35
};

const LFM2: Traits = Traits {
    family: Family::Lfm2,
    architecture: "Lfm2ForCausalLM",
    base: "Lfm2Model",
    model_type: "lfm2",
    attention_bias: AttentionBias::Never,
    mlp_bias: false,
    head_norm: HeadNorm::PerHead,
    mixers: MixerFields::ShortConvolutions,
    eps_field: "norm_eps",
    computed_width: true,
    eps: 1e-5,
    theta: 1e6,
    tied: true,
    ..LLAMA
};

const MUSE_GLIMMER: Traits = Traits {
    family: Family::MuseGlimmer,
    architecture: "MuseGlimmerForCausalLM",
    base: "MuseGlimmerTextModel",
    model_type: "muse_glimmer_text",
    attention_bias: AttentionBias::Never,
    mlp_bias: false,
    norms: NormPlacement::Around,
    norms_around_zero: true,
    plain_final_norm: true,
    normed_embedding: true,
    after_eps: Some(1e-8),
    head_norm: HeadNorm::PerHead,
    head_norm_factor: Some(3.87),
    windows: Windows::AllButEveryFromLast { pattern: 4 },
    absent_window: 2048,
    factors: Factors::Muse,
    attention_gate: AttentionGate::PerNumber,
    layer_thetas: LayerThetas::ZeroOrNot { pattern: 4 },
    head_dim: Some(128),
    eps: 1e-5,
    ..LLAMA
};

const GRANITE: Traits = Traits {
    family: Family::Granite,
    architecture: "GraniteForCausalLM",
    base: "GraniteModel",
    model_type: "granite",
    factors: Factors::Granite,
    ..LLAMA
};

const GRANITE_MOE: Traits = Traits {
    family: Family::GraniteMoe,
    architecture: "GraniteMoeForCausalLM",
    base: "GraniteMoeModel",
    model_type: "granitemoe",
    mlp_bias: false,
    experts: ExpertFields::Granite,
    ..GRANITE
};

const GRANITE_SWA: Traits = Traits {
    family: Family::GraniteSwa,
    architecture: "GraniteSWAForCausalLM",
    base: "GraniteSWAModel",
    model_type: "granite_swa",
    windows: Windows::AllButEveryFromFirst { pattern: 4 },
    absent_window: 128,
    sinks: true,
    layer_thetas: LayerThetas::Bases,
    eps: 1e-5,
    tied: true,
    ..GRANITE
};

const DEEPSEEK_V3: Traits = Traits {
    family: Family::DeepSeekV3,
    architecture: "DeepseekV3ForCausalLM",
    base: "DeepseekV3Model",
    model_type: "deepseek_v3",
    attention_bias: AttentionBias::Never,
    mlp_bias: false,
    experts: ExpertFields::DeepSeek(Router::Sigmoids),
    mixers: MixerFields::Latent,
    ..LLAMA
};

const MISTRAL4: Traits = Traits {
    family: Family::Mistral4,
    architecture: "Mistral4ForCausalLM",
    base: "Mistral4Model",
    model_type: "mistral4",
    experts: ExpertFields::DeepSeek(Router::NormedShares),
    growing_queries: true,
    // Absent, transformers assumes one stretched 128 times.
    rope_stated: true,
    ..DEEPSEEK_V3
};

const ERNIE45: Traits = Traits {
    family: Family::Ernie45,
    architecture: "Ernie4_5ForCausalLM",
    base: "Ernie4_5Model",
    model_type: "ernie4_5",
    attention_bias: AttentionBias::Never,
    mlp_bias: false,
    neighbours: true,
    head_dim: Some(128),
    eps: 1e-5,
    theta: 5e5,
    tied: true,
    ..LLAMA
};

const HUNYUAN: Traits = Traits {
    family: Family::HunYuanDense,
    architecture: "HunYuanDenseV1ForCausalLM",
    base: "HunYuanDenseV1Model",
    model_type: "hunyuan_v1_dense",
    mlp_bias: false,
    head_norm: HeadNorm::AfterRotation,
    eps: 1e-5,
    ..LLAMA
};

const GLM: Traits = Traits {
    family: Family::Glm,
    architecture: "GlmForCausalLM",
    base: "GlmModel",
    model_type: "glm",
    attention_bias: AttentionBias::StatedQkv,
    mlp_bias: false,
    fused_projections: FusedProjections::GateUp,
    partial_rotation: true,
    rotary_share: 0.5,
    neighbours: true,
    head_dim: Some(128),
    eps: 1.5625e-7,
    ..LLAMA
};

const COHERE: Traits = Traits {
    family: Family::Cohere,
    architecture: "CohereForCausalLM",
    base: "CohereModel",
    model_type: "cohere",
    mlp_bias: false,
    norms: NormPlacement::Parallel,
    norm: NormKind::Layer { weight: true, bias: false },
    head_norm: HeadNorm::Centered,
    head_norm_if_asked: Some(false),
    factors: Factors::Cohere,
    neighbours: true,
    eps_field: "layer_norm_eps",
    eps: 1e-5,
    theta: 5e5,
    tied: true,
    ..LLAMA
};

const COHERE2: Traits = Traits {
    family: Family::Cohere2,
    architecture: "Cohere2ForCausalLM",
    base: "Cohere2Model",
    model_type: "cohere2",
    head_norm: HeadNorm::None,
    windows: Windows::AllButEvery { pattern: 4 },
    unrotated_beside_windows: true,
    theta: 1e4,
    ..COHERE
};

const PHI_MOE: Traits = Traits {
    family: Family::PhiMoe,
    architecture: "PhimoeForCausalLM",
    base: "PhimoeModel",
    model_type: "phimoe",
    mlp_bias: false,
    norm: NormKind::Layer { weight: true, bias: true },
    head_bias: true,
    windows: Windows::All { absent: None },
    experts: ExpertFields::PhiMoe,
    eps: 1e-5,
    theta: 1e6,
    ..LLAMA
};

const NEMOTRON: Traits = Traits {
    family: Family::Nemotron,
    architecture: "NemotronForCausalLM",
    base: "NemotronModel",
    model_type: "nemotron",
    norm: NormKind::Layer { weight: true, bias: true },
    norms_around_zero: true,
    gated_mlp: false,
    partial_rotation: true,
    rotary_share: 0.5,
    activation: Activation::ReluSquared,
    eps_field: "norm_eps",
    eps: 1e-5,
    ..LLAMA
};

const GLM4_MOE: Traits = Traits {
    family: Family::Glm4Moe,
    architecture: "Glm4MoeForCausalLM",
    base: "Glm4MoeModel",
    model_type: "glm4_moe",
    attention_bias: AttentionBias::StatedQkv,
    mlp_bias: false,
    head_norm: HeadNorm::PerHead,
    head_norm_if_asked: Some(false),
    experts: ExpertFields::Glm4,
    partial_rotation: true,
    rotary_share: 0.5,
    eps: 1e-5,
    ..LLAMA
};

pub(super) static ARCHITECTURES: [Traits; 78] = [
    LLAMA,
    Traits {
        family: Family::Arcee,
        architecture: "ArceeForCausalLM",
        base: "ArceeModel",
        model_type: "arcee",
        gated_mlp: false,
        activation: Activation::ReluSquared,
        eps: 1e-5,
        ..LLAMA
    },
    Traits {
        family: Family::Apertus,
        architecture: "ApertusForCausalLM",
        base: "ApertusModel",
        model_type: "apertus",
        mlp_bias: false,
        head_norm: HeadNorm::PerHead,
        gated_mlp: false,
        // What a layer learns of, as transformers draws it.
        activation: Activation::Xielu { positive: 0.8, negative: 0.8, beta: 0.5, eps: -1e-6 },
        eps: 1e-5,
        // Absent, transformers assumes one stretched 8 times.
        rope_stated: true,
        theta: 1.2e7,
        ..LLAMA
    },
    ERNIE45,
    Traits {
        family: Family::Ernie45Moe,
        architecture: "Ernie4_5_MoeForCausalLM",
        base: "Ernie4_5_MoeModel",
        model_type: "ernie4_5_moe",
        experts: ExpertFields::Ernie,
        head_dim: None,
        ..ERNIE45
    },
    HUNYUAN,
    Traits {
        family: Family::HunYuanMoe,
        architecture: "HunYuanMoEV1ForCausalLM",
        base: "HunYuanMoEV1Model",
        model_type: "hunyuan_v1_moe",
        experts: ExpertFields::HunYuan,
        ..HUNYUAN
    },
    GLM,
    Traits {
        family: Family::Glm4,
        architecture: "Glm4ForCausalLM",
        base: "Glm4Model",
        model_type: "glm4",
        attention_bias: AttentionBias::AssumedQkv,
        norms: NormPlacement::Around,
        ..GLM
    },
    LLAMA4,
    // It sees images, and is used for its text here.
    Traits {
        architecture: "Llama4ForConditionalGeneration",
        base: "Llama4Model",
        model_type: "llama4",
        text_part: Some(TextPart {
            model_type: LLAMA4.model_type,
            assumed: &[
                ("hidden_size", 5120),
                ("intermediate_size", 8192),
                ("intermediate_size_mlp", 16_384),
                ("num_hidden_layers", 48),
                ("num_attention_heads", 40),
                ("num_key_value_heads", 8),
                ("max_position_embeddings", 131_072),
                ("vocab_size", 202_048),
                ("num_local_experts", 16),
                ("num_experts_per_tok", 1),
            ],
        }),
        ..LLAMA4
    },
    MISTRAL,
    // Its layers with a window are listed.
    Traits { architecture: "MinistralForCausalLM", base: "MinistralModel", model_type: "ministral", ..MISTRAL },
    // Small 3.1 and 3.2 see images, and are used for their text here.
    Traits {
        architecture: "Mistral3ForConditionalGeneration",
        base: "Mistral3Model",
        model_type: "mistral3",
        text_part: Some(TextPart {
            model_type: MISTRAL.model_type,
            assumed: &[
                ("hidden_size", 4096),
                ("intermediate_size", 14_336),
                ("num_hidden_layers", 32),
                ("num_attention_heads", 32),
                ("num_key_value_heads", 8),
                ("max_position_embeddings", 131_072),
                ("vocab_size", 32_000),
            ],
        }),
        ..MISTRAL
    },
    MINISTRAL3,
    // The same class, with another text part.
    Traits {
        architecture: "Mistral3ForConditionalGeneration",
        base: "Mistral3Model",
        model_type: "mistral3",
        text_part: Some(TextPart {
            model_type: MINISTRAL3.model_type,
            assumed: &[
                ("hidden_size", 4096),
                ("intermediate_size", 14_336),
                ("num_hidden_layers", 34),
                ("num_attention_heads", 32),
                ("num_key_value_heads", 8),
                ("max_position_embeddings", 262_144),
                ("vocab_size", 131_072),
            ],
        }),
        // A head that is stored is the head, also where no field says so.
        tied: true,
        ..MINISTRAL3
    },
    MISTRAL4,
    // The same again.
    Traits {
        architecture: "Mistral3ForConditionalGeneration",
        base: "Mistral3Model",
        model_type: "mistral3",
        text_part: Some(TextPart { model_type: MISTRAL4.model_type, assumed: &[] }),
        tied: true,
        ..MISTRAL4
    },
    QWEN2,
    // They see images, and are used for their text here: of a text alone, the three positions of a token are one.
    Traits {
        architecture: "Qwen2VLForConditionalGeneration",
        base: "Qwen2VLModel",
        model_type: "qwen2_vl",
        eps: 1e-5,
        text_part: Some(TextPart { model_type: "qwen2_vl_text", assumed: QWEN2_VL_ASSUMED }),
        ..QWEN2
    },
    Traits {
        architecture: "Qwen2_5_VLForConditionalGeneration",
        base: "Qwen2_5_VLModel",
        model_type: "qwen2_5_vl",
        eps: 1e-5,
        text_part: Some(TextPart { model_type: "qwen2_5_vl_text", assumed: QWEN2_VL_ASSUMED }),
        ..QWEN2
    },
    // MiMo, whose next-token layers are a drafter's business.
    Traits { architecture: "MiMoForCausalLM", base: "MiMoModel", model_type: "mimo", ..QWEN2 },
    QWEN3,
    // Of a text alone, the three positions of a token are one.
    Traits {
        architecture: "Qwen3VLForConditionalGeneration",
        base: "Qwen3VLModel",
        model_type: "qwen3_vl",
        windows: Windows::Never,
        theta: 5e5,
        text_part: Some(TextPart {
            model_type: "qwen3_vl_text",
            assumed: &[
                ("hidden_size", 4096),
                ("intermediate_size", 22_016),
                ("num_hidden_layers", 32),
                ("num_attention_heads", 32),
                ("num_key_value_heads", 32),
                ("max_position_embeddings", 128_000),
                ("vocab_size", 151_936),
            ],
        }),
        ..QWEN3
    },
    GEMMA,
    GEMMA2,
    GEMMA3,
    // Gemma 3 from 4B on: it sees images, and is used for its text here.
    Traits {
        architecture: "Gemma3ForConditionalGeneration",
        base: "Gemma3Model",
        model_type: "gemma3",
        text_part: Some(TextPart {
            model_type: GEMMA3.model_type,
            assumed: &[
                ("hidden_size", 2304),
                ("intermediate_size", 9216),
                ("num_hidden_layers", 26),
                ("num_attention_heads", 8),
                ("num_key_value_heads", 4),
                ("max_position_embeddings", 131_072),
                ("vocab_size", 262_208),
            ],
        }),
        ..GEMMA3
    },
    GEMMA4,
    // It sees and hears, and is used for its text here.
    Traits {
        architecture: "Gemma4ForConditionalGeneration",
        base: "Gemma4Model",
        model_type: "gemma4",
        text_part: Some(TextPart { model_type: GEMMA4.model_type, assumed: GEMMA4_ASSUMED }),
        ..GEMMA4
    },
    GEMMA4_UNIFIED,
    Traits {
        architecture: "Gemma4UnifiedForConditionalGeneration",
        base: "Gemma4UnifiedModel",
        model_type: "gemma4_unified",
        text_part: Some(TextPart { model_type: GEMMA4_UNIFIED.model_type, assumed: GEMMA4_ASSUMED }),
        ..GEMMA4_UNIFIED
    },
    Traits {
        family: Family::Phi3,
        architecture: "Phi3ForCausalLM",
        base: "Phi3Model",
        model_type: "phi3",
        windows: Windows::All { absent: None },
        fused_projections: FusedProjections::All,
        partial_rotation: true,
        eps: 1e-5,
        ..MISTRAL
    },
    COHERE,
    COHERE2,
    Traits {
        family: Family::Cohere2Moe,
        architecture: "Cohere2MoeForCausalLM",
        base: "Cohere2MoeModel",
        model_type: "cohere2_moe",
        windows: Windows::AllButEveryBehindDense { pattern: 4 },
        experts: ExpertFields::Cohere,
        rms_if_stated: true,
        head_dim: Some(128),
        ..COHERE2
    },
    PHI_MOE,
    // As it was published.
    Traits { architecture: "PhiMoEForCausalLM", base: "PhiMoEModel", ..PHI_MOE },
    NEMOTRON,
    Traits {
        family: Family::NemotronH,
        architecture: "NemotronHForCausalLM",
        base: "NemotronHModel",
        model_type: "nemotron_h",
        experts: ExpertFields::NemotronH,
        gated_mlp: false,
        mixers: MixerFields::SingleBlocks,
        eps_field: "layer_norm_epsilon",
        rotation_if_asked: true,
        activation: Activation::ReluSquared,
        head_dim: Some(128),
        eps: 1e-5,
        ..LLAMA
    },
    Traits {
        family: Family::Starcoder2,
        architecture: "Starcoder2ForCausalLM",
        base: "Starcoder2Model",
        model_type: "starcoder2",
        attention_bias: AttentionBias::UseBias,
        norms_around_zero: false,
        windows: Windows::All { absent: None },
        partial_rotation: false,
        rotary_share: 1.0,
        activation: Activation::GeluTanh,
        eps_field: "norm_epsilon",
        tied: true,
        ..NEMOTRON
    },
    Traits {
        family: Family::StableLm,
        architecture: "StableLmForCausalLM",
        base: "StableLmModel",
        model_type: "stablelm",
        attention_bias: AttentionBias::UseQkvBias,
        mlp_bias: false,
        norms_around_zero: false,
        gated_mlp: true,
        rotary_share: 0.25,
        activation: Activation::Silu,
        eps_field: "layer_norm_eps",
        ..NEMOTRON
    },
    Traits {
        family: Family::Olmo,
        architecture: "OlmoForCausalLM",
        base: "OlmoModel",
        model_type: "olmo",
        mlp_bias: false,
        norm: NormKind::Layer { weight: false, bias: false },
        eps_field: "layer_norm_eps",
        eps: 1e-5,
        ..LLAMA
    },
    OLMO2,
    Traits {
        family: Family::Olmo3,
        architecture: "Olmo3ForCausalLM",
        base: "Olmo3Model",
        model_type: "olmo3",
        windows: Windows::AllButEvery { pattern: 4 },
        theta: 5e5,
        local_theta: Some(5e5),
        ..OLMO2
    },
    Traits {
        family: Family::Olmoe,
        architecture: "OlmoeForCausalLM",
        base: "OlmoeModel",
        model_type: "olmoe",
        norms: NormPlacement::Before,
        experts: ExpertFields::Olmoe,
        ..OLMO2
    },
    Traits {
        family: Family::Exaone4,
        architecture: "Exaone4ForCausalLM",
        base: "Exaone4Model",
        model_type: "exaone4",
        attention_bias: AttentionBias::Never,
        head_norm: HeadNorm::PerHead,
        windows: Windows::AllButEvery { pattern: 4 },
        unrotated_beside_windows: true,
        ..OLMO2
    },
    Traits {
        family: Family::SeedOss,
        architecture: "SeedOssForCausalLM",
        base: "SeedOssModel",
        model_type: "seed_oss",
        attention_bias: AttentionBias::StatedApart,
        head_dim: Some(128),
        ..LLAMA
    },
    GRANITE,
    GRANITE_SWA,
    GRANITE_MOE,
    Traits {
        family: Family::GraniteMoeSwa,
        architecture: "GraniteMoeSWAForCausalLM",
        base: "GraniteMoeSWAModel",
        model_type: "granitemoe_swa",
        mlp_bias: false,
        experts: ExpertFields::Granite,
        eps: 1e-6,
        tied: false,
        ..GRANITE_SWA
    },
    Traits {
        architecture: "GraniteMoeSharedForCausalLM",
        base: "GraniteMoeSharedModel",
        model_type: "granitemoeshared",
        ..GRANITE_MOE
    },
    Traits {
        family: Family::GraniteHybrid,
        architecture: "GraniteMoeHybridForCausalLM",
        base: "GraniteMoeHybridModel",
        model_type: "granitemoehybrid",
        mixers: MixerFields::Mamba,
        rotation_if_asked: true,
        ..GRANITE_MOE
    },
    Traits {
        family: Family::FalconH1,
        architecture: "FalconH1ForCausalLM",
        base: "FalconH1Model",
        model_type: "falcon_h1",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        factors: Factors::FalconH1,
        mixers: MixerFields::Both,
        eps: 1e-5,
        ..LLAMA
    },
    Traits {
        family: Family::SmolLm3,
        architecture: "SmolLM3ForCausalLM",
        base: "SmolLM3Model",
        model_type: "smollm3",
        windows: Windows::UnrotatedIfAsked,
        unrotated_layers: true,
        theta: 2e6,
        tied: true,
        ..LLAMA
    },
    Traits {
        family: Family::Mixtral,
        architecture: "MixtralForCausalLM",
        base: "MixtralModel",
        model_type: "mixtral",
        windows: Windows::All { absent: None },
        experts: ExpertFields::Mixtral,
        eps: 1e-5,
        theta: 1e6,
        ..MISTRAL
    },
    Traits {
        family: Family::FlexOlmo,
        architecture: "FlexOlmoForCausalLM",
        base: "FlexOlmoModel",
        model_type: "flex_olmo",
        experts: ExpertFields::Olmoe,
        eps: 1e-6,
        theta: 5e5,
        ..OLMO2
    },
    Traits {
        family: Family::Qwen2Moe,
        architecture: "Qwen2MoeForCausalLM",
        base: "Qwen2MoeModel",
        model_type: "qwen2_moe",
        windows: Windows::EverySecondIfAsked,
        experts: ExpertFields::Qwen2Moe,
        ..QWEN2
    },
    Traits {
        family: Family::Qwen3Moe,
        architecture: "Qwen3MoeForCausalLM",
        base: "Qwen3MoeModel",
        model_type: "qwen3_moe",
        windows: Windows::AllIfAsked,
        experts: ExpertFields::Qwen,
        head_dim: None,
        ..QWEN3
    },
    Traits {
        family: Family::MiniMaxM2,
        architecture: "MiniMaxM2ForCausalLM",
        base: "MiniMaxM2Model",
        model_type: "minimax_m2",
        attention_bias: AttentionBias::Never,
        mlp_bias: false,
        head_norm: HeadNorm::WholeWidth,
        experts: ExpertFields::MiniMaxM2,
        partial_rotation: true,
        head_dim: Some(128),
        theta: 5e6,
        ..LLAMA
    },
    Traits {
        family: Family::GptOss,
        architecture: "GptOssForCausalLM",
        base: "GptOssModel",
        model_type: "gpt_oss",
        attention_bias: AttentionBias::Assumed,
        mlp_bias: false,
        windows: Windows::AllButEvery { pattern: 2 },
        absent_window: 128,
        experts: ExpertFields::GptOss,
        sinks: true,
        clamped: true,
        head_dim: Some(64),
        eps: 1e-5,
        // Absent, transformers assumes one stretched 32 times.
        rope_stated: true,
        theta: 1.5e5,
        ..LLAMA
    },
    QWEN3_NEXT,
    // It sees images, and is used for its text here. Of a text alone, the three positions of a token are one.
    Traits {
        architecture: "Qwen3_5ForConditionalGeneration",
        base: "Qwen3_5Model",
        model_type: "qwen3_5",
        text_part: Some(TextPart {
            model_type: QWEN35.model_type,
            assumed: &[
                ("hidden_size", 4096),
                ("intermediate_size", 12_288),
                ("num_hidden_layers", 32),
                ("num_attention_heads", 16),
                ("num_key_value_heads", 4),
                ("max_position_embeddings", 32_768),
                ("vocab_size", 248_320),
            ],
        }),
        ..QWEN35
    },
    QWEN35,
    Traits {
        architecture: "Qwen3_5MoeForConditionalGeneration",
        base: "Qwen3_5MoeModel",
        model_type: "qwen3_5_moe",
        text_part: Some(TextPart {
            model_type: QWEN35_MOE.model_type,
            assumed: &[
                ("hidden_size", 2048),
                ("num_hidden_layers", 40),
                ("num_attention_heads", 16),
                ("num_key_value_heads", 2),
                ("max_position_embeddings", 32_768),
                ("vocab_size", 248_320),
                ("num_experts", 256),
                ("num_experts_per_tok", 8),
                ("moe_intermediate_size", 512),
                ("shared_expert_intermediate_size", 512),
            ],
        }),
        ..QWEN35_MOE
    },
    QWEN35_MOE,
    LFM2,
    Traits {
        family: Family::Lfm2Moe,
        architecture: "Lfm2MoeForCausalLM",
        base: "Lfm2MoeModel",
        model_type: "lfm2_moe",
        computed_width: false,
        experts: ExpertFields::Lfm2,
        ..LFM2
    },
    Traits {
        family: Family::Lfm3,
        architecture: "Lfm3ForCausalLM",
        base: "Lfm3Model",
        model_type: "lfm3",
        norms: NormPlacement::Around,
        windows: Windows::EveryFromFirst { pattern: 4 },
        absent_window: 256,
        computed_width: false,
        rotary_share: 0.5,
        attention_gate: AttentionGate::PerHead,
        mixers: MixerFields::EverySecondConvolution,
        local_theta: Some(1e4),
        head_dim: Some(128),
        ..LFM2
    },
    MUSE_GLIMMER,
    // It sees images and films, and is used for its text here.
    Traits {
        architecture: "MuseGlimmerForConditionalGeneration",
        base: "MuseGlimmerModel",
        model_type: "muse_glimmer",
        text_part: Some(TextPart {
            model_type: MUSE_GLIMMER.model_type,
            assumed: &[
                ("hidden_size", 6656),
                ("intermediate_size", 19_968),
                ("num_hidden_layers", 52),
                ("num_attention_heads", 32),
                ("num_key_value_heads", 2),
                ("max_position_embeddings", 131_072),
                ("vocab_size", 202_048),
            ],
        }),
        ..MUSE_GLIMMER
    },
    GLM4_MOE,
    Traits {
        family: Family::DeepSeekV2,
        architecture: "DeepseekV2ForCausalLM",
        base: "DeepseekV2Model",
        model_type: "deepseek_v2",
        mlp_bias: true,
        experts: ExpertFields::DeepSeek(Router::Shares),
        ..DEEPSEEK_V3
    },
    DEEPSEEK_V3,
    Traits {
        family: Family::Glm4MoeLite,
        architecture: "Glm4MoeLiteForCausalLM",
        base: "Glm4MoeLiteModel",
        model_type: "glm4_moe_lite",
        eps: 1e-5,
        ..DEEPSEEK_V3
    },
    Traits {
        family: Family::KimiLinear,
        architecture: "KimiLinearForCausalLM",
        base: "KimiLinearModel",
        model_type: "kimi_linear",
        mixers: MixerFields::Kimi,
        rotation_if_asked: true,
        eps: 1e-5,
        ..DEEPSEEK_V3
    },
    Traits {
        family: Family::Dots1,
        architecture: "Dots1ForCausalLM",
        base: "Dots1Model",
        model_type: "dots1",
        attention_bias: AttentionBias::Stated,
        head_norm_if_asked: None,
        windows: Windows::FromAlways,
        experts: ExpertFields::Dots1,
        partial_rotation: false,
        rotary_share: 1.0,
        eps: 1e-6,
        ..GLM4_MOE
    },
];

/// Families of encoders, whose fields `encoder.rs` reads, and their `model_type`.
const ENCODERS: [(Family, &str); 5] = [
    (Family::Bert, "bert"),
    (Family::Roberta, "roberta"),
    (Family::XlmRoberta, "xlm-roberta"),
    (Family::ModernBert, "modernbert"),
    (Family::NomicBert, "nomic_bert"),
];

/// The families, for messages.
fn known() -> String {
    let decoders = ARCHITECTURES.iter().map(|traits| traits.family.name());
    let mut names: Vec<&str> = decoders.chain(ENCODERS.map(|(_, name)| name)).collect();
    names.dedup();
    names.join(", ")
}

impl Traits {
    fn is_named(&self, architecture: &str) -> bool {
        self.architecture == architecture || self.base == architecture
    }

    /// By `architectures`, or `model_type` where that is missing; and whether it is a class without a head.
    pub(super) fn of(fields: &Fields<'_>) -> Result<(&'static Traits, bool), LoadError> {
        let names = fields.list("architectures")?.unwrap_or_default();
        let (field, name) = match names.first() {
            Some(first) => ("architectures", first.as_str().unwrap_or("")),
            None => match fields.text("model_type")? {
                Some(name) => ("model_type", name),
                None => {
                    let problem = format!("missing, and model_type too; known are the classes of {}", known());
                    return Err(fields.error("architectures", problem));
                }
            },
        };
        let is_it = |traits: &&Traits| match names.is_empty() {
            true => traits.model_type == name,
            false => traits.is_named(name),
        };
        // Some classes have one of several text parts.
        let inner = match fields.object("text_config")? {
            Some(inner) => inner.text("model_type")?.map(str::to_string),
            None => None,
        };
        let has_it = |traits: &&Traits| traits.text_part.is_some_and(|part| Some(part.model_type) == inner.as_deref());
        let found = ARCHITECTURES.iter().filter(is_it).find(has_it).or(ARCHITECTURES.iter().find(is_it));
        match found {
            Some(traits) => {
                traits.check_text_part(fields)?;
                Ok((traits, !names.is_empty() && traits.base == name))
            }
            None => {
                let inner = inner_class(fields)?.map_or_else(String::new, |inner| format!(", {inner}"));
                let problem = format!("{} is unknown{inner}; known are the classes of {}", quoted(name), known());
                Err(fields.error(field, problem))
            }
        }
    }

    /// The text part within something larger is one that this knows.
    fn check_text_part(&self, fields: &Fields<'_>) -> Result<(), LoadError> {
        let (Some(TextPart { model_type: own, .. }), Some(inner)) = (self.text_part, fields.object("text_config")?)
        else {
            return Ok(());
        };
        match inner.text("model_type")? {
            Some(name) if name != own => {
                let known = ARCHITECTURES.iter().filter(|traits| traits.architecture == self.architecture);
                let known: Vec<&str> = known.filter_map(|traits| Some(traits.text_part?.model_type)).collect();
                let is = if known.len() == 1 { "is" } else { "are" };
                let known = match known.split_last() {
                    Some((last, rest @ [_, ..])) => format!("{} and {last}", rest.join(", ")),
                    _ => known.concat(),
                };
                let name = quoted(name);
                let problem = format!("{name} is unknown as the text part of {}; {known} {is}", self.architecture);
                Err(inner.error("model_type", problem))
            }
            _ => Ok(()),
        }
    }
}

/// What an error says of the text part of an unknown multimodal class; `None` where it has none.
fn inner_class(fields: &Fields<'_>) -> Result<Option<String>, LoadError> {
    let Some(inner) = fields.object("text_config")? else { return Ok(None) };
    let class = inner.list("architectures")?.and_then(|names| names.first()).and_then(Value::as_str);
    let Some(name) = class.or(inner.text("model_type")?) else {
        return Ok(Some("and its text_config does not say what its text part is".to_string()));
    };
    let known = ARCHITECTURES.iter().find(|traits| traits.is_named(name) || traits.model_type == name);
    Ok(Some(match known {
        Some(traits) => format!(
            "though its text part ({}) is known as {}: saved by itself, that part loads",
            quoted(name),
            traits.architecture
        ),
        None => format!("and so is its text part, {}", quoted(name)),
    }))
}
