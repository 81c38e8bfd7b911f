//! GGUF metadata as a `config.json`.
//!
//! ```text
//! general.architecture = "llama"           architectures: ["LlamaForCausalLM"]
//! llama.attention.head_count_kv = 8   ──►  num_key_value_heads: 8
//! no tensor output.weight                  tie_word_embeddings: true
//! ```
//!
//! Llama 3's RoPE scaling has no key: the converter writes the divisor of each frequency as the tensor
//! `rope_freqs.weight`, computed in float32. Its parameters are recovered and must reproduce every divisor, so the
//! rotations equal those of the original model, bit for bit.

use super::header::{Metadata, quoted};
use super::{Gguf, encoders};
use crate::container::TiledHeads;
use crate::files::{Files, LoadError};
use serde_json::{Map, Value, json};

/// Architectures: ggml's name, and that of transformers. ggml calls Mistral and Mixtral `llama` too, OLMo 3 `olmo2`, and
/// DeepSeek-V3, Kimi K2 and GLM-4.7-Flash `deepseek2`: see [`class`]. Of those that see images, the text part is a plain
/// model: without images, the three positions of a token are one.
const ARCHITECTURES: [(&str, &str); 55] = [
    ("llama", "LlamaForCausalLM"),
    ("llama4", "Llama4ForCausalLM"),
    ("arcee", "ArceeForCausalLM"),
    ("apertus", "ApertusForCausalLM"),
    ("ernie4_5", "Ernie4_5ForCausalLM"),
    ("ernie4_5-moe", "Ernie4_5_MoeForCausalLM"),
    ("hunyuan-dense", "HunYuanDenseV1ForCausalLM"),
    ("hunyuan-moe", "HunYuanMoEV1ForCausalLM"),
    ("chatglm", "GlmForCausalLM"),
    ("glm4", "Glm4ForCausalLM"),
    ("dots1", "Dots1ForCausalLM"),
    ("qwen2moe", "Qwen2MoeForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3moe", "Qwen3MoeForCausalLM"),
    ("gemma", "GemmaForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("gemma4", "Gemma4ForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("command-r", "CohereForCausalLM"),
    ("cohere2", "Cohere2ForCausalLM"),
    ("cohere2moe", "Cohere2MoeForCausalLM"),
    ("phimoe", "PhimoeForCausalLM"),
    ("nemotron", "NemotronForCausalLM"),
    ("nemotron_h", "NemotronHForCausalLM"),
    ("nemotron_h_moe", "NemotronHForCausalLM"),
    ("starcoder2", "Starcoder2ForCausalLM"),
    ("stablelm", "StableLmForCausalLM"),
    ("olmo", "OlmoForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("granite", "GraniteForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("olmoe", "OlmoeForCausalLM"),
    ("exaone4", "Exaone4ForCausalLM"),
    ("seed_oss", "SeedOssForCausalLM"),
    ("minimax-m2", "MiniMaxM2ForCausalLM"),
    ("gpt-oss", "GptOssForCausalLM"),
    ("qwen2vl", "Qwen2ForCausalLM"),
    ("qwen3vl", "Qwen3ForCausalLM"),
    ("qwen3vlmoe", "Qwen3MoeForCausalLM"),
    ("lfm2", "Lfm2ForCausalLM"),
    ("lfm2moe", "Lfm2MoeForCausalLM"),
    ("muse-glimmer", "MuseGlimmerForCausalLM"),
    ("glm4moe", "Glm4MoeForCausalLM"),
    ("deepseek2", "DeepseekV2ForCausalLM"),
    ("mistral4", "Mistral4ForCausalLM"),
    ("granitemoe", "GraniteMoeSharedForCausalLM"),
    ("granitehybrid", "GraniteMoeHybridForCausalLM"),
    ("falcon-h1", "FalconH1ForCausalLM"),
    ("kimi-linear", "KimiLinearForCausalLM"),
    ("mistral3", "Ministral3ForCausalLM"),
    ("qwen3next", "Qwen3NextForCausalLM"),
    ("qwen35", "Qwen3_5ForCausalLM"),
    ("qwen35moe", "Qwen3_5MoeForCausalLM"),
];

/// Integers: the field of `config.json`, and the key after the architecture's name.
const INTEGERS: [(&str, &str); 8] = [
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
];
const FEED_FORWARD: (&str, &str) = ("intermediate_size", "feed_forward_length");
const EPSILON: (&str, &str) = ("rms_norm_eps", "attention.layer_norm_rms_epsilon");
/// Of layer norms, with a mean; transformers has a name of its own for most of them.
const LAYER_EPSILON: [(&str, &str); 3] = [
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("norm_epsilon", "attention.layer_norm_epsilon"),
    ("norm_eps", "attention.layer_norm_epsilon"),
];
const WITH_LAYER_NORMS: [&str; 7] =
    ["command-r", "cohere2", "cohere2moe", "nemotron", "starcoder2", "stablelm", "olmo"];
/// Floats.
const FLOATS: [(&str, &str); 11] = [
    ("rope_theta", "rope.freq_base"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
    ("logit_scale", "logit_scale"),
    ("output_multiplier", "logit_scale"),
    ("clip_qkv", "attention.clamp_kqv"),
];
const WINDOW: (&str, &str) = ("sliding_window", "attention.sliding_window");
const HEAD_DIM_OF_WINDOWS: (&str, &str) = ("head_dim", "attention.key_length_swa");
const SHARED_KEYS: (&str, &str) = ("num_kv_shared_layers", "attention.shared_kv_layers");
const LAYER_INPUT: (&str, &str) = ("hidden_size_per_layer_input", "embedding_length_per_layer_input");
const HEAD_DIM: (&str, &str) = ("head_dim", "attention.key_length");
/// Fields of `rope_parameters`.
const ROPE: [(&str, &str); 5] = [
    ("factor", "rope.scaling.factor"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("attention_factor", "rope.scaling.attn_factor"),
    ("beta_fast", "rope.scaling.yarn_beta_fast"),
    ("beta_slow", "rope.scaling.yarn_beta_slow"),
];
/// The same of Ministral 3 and of latent attention.
const ROPE_OF_MISTRAL3: [(&str, &str); 2] =
    [("mscale_all_dim", "rope.scaling.yarn_log_multiplier"), ("llama_4_scaling_beta", "attention.temperature_scale")];
/// Fields of single architectures.
const EPSILON_OF_LFM2: &str = "norm_eps";
const CONV_TAPS: (&str, &str) = ("conv_L_cache", "shortconv.l_cache");
const DENSE_OF_LFM2: (&str, &str) = ("num_dense_layers", "leading_dense_block_count");
const DENSE_OF_GLM4: (&str, &str) = ("first_k_dense_replace", "leading_dense_block_count");
const DRAFTING: (&str, &str) = ("num_nextn_predict_layers", "nextn_predict_layers");
const EXPERT_FACTOR: (&str, &str) = ("routed_scaling_factor", "expert_weights_scale");
const OF_GLM4: [(&str, &str); 4] = [
    ("n_routed_experts", "expert_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
];
const OF_LATENT: [(&str, &str); 3] = [
    ("kv_lora_rank", "attention.kv_lora_rank"),
    ("q_lora_rank", "attention.q_lora_rank"),
    ("qk_rope_head_dim", "rope.dimension_count"),
];
const VALUE_LENGTH: &str = "attention.value_length";
const EXPERT_SCORES: &str = "expert_gating_func";
const OF_ERNIE: [(&str, &str); 5] = [
    ("moe_num_experts", "expert_count"),
    ("moe_k", "expert_used_count"),
    ("moe_num_shared_experts", "expert_shared_count"),
    ("moe_layer_start_index", "leading_dense_block_count"),
    ("moe_layer_interval", "interleave_moe_layer_step"),
];
const CHOSEN_OF_HUNYUAN: (&str, &str) = ("moe_topk", "expert_used_count");
const SHARED_WIDTH: (&str, &str) = ("shared_intermediate_size", "expert_shared_feed_forward_length");
const OF_MAMBA: [(&str, &str); 4] = [
    ("mamba_n_heads", "ssm.time_step_rank"),
    ("mamba_n_groups", "ssm.group_count"),
    ("mamba_d_state", "ssm.state_size"),
    ("mamba_d_conv", "ssm.conv_kernel"),
];
const OF_NEMOTRON_H: [(&str, &str); 7] = [
    ("mamba_num_heads", "ssm.time_step_rank"),
    ("n_groups", "ssm.group_count"),
    ("ssm_state_size", "ssm.state_size"),
    ("conv_kernel", "ssm.conv_kernel"),
    ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("moe_latent_size", "moe_latent_size"),
    DRAFTING,
];
const EPSILON_OF_NEMOTRON_H: &str = "layer_norm_epsilon";
const INNER: &str = "ssm.inner_size";
const OF_KIMI: [(&str, &str); 2] = [("linear_head_dim", "kda.head_dim"), ("linear_conv_kernel_dim", "ssm.conv_kernel")];
const OF_DELTA: [(&str, &str); 4] = [
    ("linear_num_key_heads", "ssm.group_count"),
    ("linear_num_value_heads", "ssm.time_step_rank"),
    ("linear_key_head_dim", "ssm.state_size"),
    ("linear_conv_kernel_dim", "ssm.conv_kernel"),
];
const SHARED_WIDTH_OF_QWEN: (&str, &str) = ("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
const ATTENTION_INTERVAL: (&str, &str) = ("full_attention_interval", "full_attention_interval");
/// Positions of images.
const SECTIONS: &str = "rope.dimension_sections";
/// No model has more, and what is larger is refused.
const MAX_LAYERS: u64 = 1024;
const ARCHITECTURE: &str = "general.architecture";
const ROPE_FREQS: &str = "rope_freqs.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Metadata of one architecture: keys without its name as prefix.
struct Settings<'m> {
    metadata: &'m Metadata,
    architecture: &'m str,
}

impl<'m> Settings<'m> {
    fn of(metadata: &'m Metadata) -> Result<Settings<'m>, LoadError> {
        let all = || ARCHITECTURES.iter().chain(&encoders::ARCHITECTURES).map(|(ggml, _)| *ggml);
        let known = || all().collect::<Vec<_>>().join(", ");
        match metadata.text(ARCHITECTURE)? {
            None => Err(metadata.error(ARCHITECTURE, "missing: is this a language model?")),
            Some(name) if all().any(|ggml| ggml == name) => Ok(Settings { metadata, architecture: name }),
            Some(other) => {
                Err(metadata.error(ARCHITECTURE, format!("{} is unknown; known are {}", quoted(other), known())))
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// An integer; or a list of one number per layer, if all are equal but for those of layers that have none. Of
    /// Gemma 4, whose layers differ, the first.
    fn integer(&self, name: &str) -> Result<Option<u64>, LoadError> {
        let key = self.key(name);
        if !self.metadata.is_list(&key) {
            return self.metadata.integer(&key);
        }
        let numbers = self.metadata.floats(&key)?.unwrap_or_default();
        let mut stated = numbers.iter().copied().filter(|&number| number != 0.0);
        match stated.next().or(numbers.first().copied()) {
            Some(first) if first >= 0.0 && (self.architecture == "gemma4" || stated.all(|number| number == first)) => {
                Ok(Some(first as u64))
            }
            _ => Err(self.metadata.error(&key, "a list of different numbers: layers that differ are unsupported")),
        }
    }

    /// Keys and values are parts of a latent.
    fn has_latents(&self) -> bool {
        ["deepseek2", "mistral4", "kimi-linear"].contains(&self.architecture)
    }

    fn head_dim(&self) -> Result<Option<u64>, LoadError> {
        if let Some(stated) = self.integer(HEAD_DIM.1)? {
            return Ok(Some(stated));
        }
        let (hidden, heads) = (self.integer("embedding_length")?, self.integer("attention.head_count")?);
        Ok(hidden.zip(heads).filter(|(hidden, heads)| *heads > 0 && hidden % heads == 0).map(|(h, n)| h / n))
    }
}

/// Width of a head, which determines the order of query and key rows.
pub(super) fn head_dim(metadata: &Metadata) -> Result<usize, LoadError> {
    let settings = Settings::of(metadata)?;
    let missing =
        || metadata.error(&settings.key(HEAD_DIM.1), "missing, and cannot be computed from the number of heads");
    Ok(settings.head_dim()?.filter(|dim| *dim > 0).ok_or_else(missing)? as usize)
}

/// How rows of queries, keys and values of the delta rule are stored in architectures that have their heads of values
/// tiled; `None` where metadata lack their numbers, which is refused where they are read.
pub(super) fn value_heads(metadata: &Metadata) -> Result<Option<TiledHeads>, LoadError> {
    const MOST: u64 = 1 << 20; // so that no product of these numbers is too large
    let settings = Settings::of(metadata)?;
    let number = |name| -> Result<Option<usize>, LoadError> {
        Ok(settings.integer(name)?.filter(|number| (1..=MOST).contains(number)).map(|number| number as usize))
    };
    let (key_heads, heads) = (number(OF_DELTA[0].1)?, number(OF_DELTA[1].1)?);
    let (key_dim, inner) = (number(OF_DELTA[2].1)?, number(INNER)?);
    let (Some(key_heads), Some(heads), Some(key_dim), Some(inner)) = (key_heads, heads, key_dim, inner) else {
        return Ok(None);
    };
    let is_whole = heads.is_multiple_of(key_heads) && inner.is_multiple_of(heads);
    let tiled =
        TiledHeads { first: 2 * key_heads * key_dim, width: inner / heads, key_heads, per_key: heads / key_heads };
    Ok(is_whole.then_some(tiled))
}

/// The equivalent `config.json`.
pub(super) fn config_json(gguf: &Gguf, files: &Files) -> Result<Value, LoadError> {
    let metadata = &gguf.metadata;
    let settings = Settings::of(metadata)?;
    let shape = |name: &str| gguf.tensor(name).map(|(_, tensor)| tensor.shape.clone());
    if let Some(config) = encoders::config(metadata, settings.architecture, &shape)? {
        return Ok(Value::Object(config));
    }
    let mut config = Map::new();
    config.insert("architectures".into(), json!([class(&settings)?]));
    for (field, key) in INTEGERS.into_iter().chain([FEED_FORWARD]) {
        if let Some(number) = settings.integer(key)? {
            config.insert(field.into(), number.into());
        }
    }
    for (field, key) in FLOATS {
        if let Some(number) = metadata.float(&settings.key(key))? {
            config.insert(field.into(), number.into());
        }
    }
    let has_mean_square = settings.architecture == "cohere2moe" && metadata.has(&settings.key(EPSILON.1));
    let has_layer_norms = WITH_LAYER_NORMS.contains(&settings.architecture) && !has_mean_square;
    for (field, key) in if has_layer_norms { &LAYER_EPSILON[..] } else { &[EPSILON] } {
        // Every architecture that is read has one, and what each would be without it is not the same.
        let missing = || metadata.error(&settings.key(key), "missing");
        config.insert((*field).into(), metadata.float(&settings.key(key))?.ok_or_else(missing)?.into());
    }
    let head_dim = settings.head_dim()?;
    if let Some(head_dim) = head_dim {
        config.insert(HEAD_DIM.0.into(), head_dim.into());
        let differ = |values: &u64| *values != head_dim && !settings.has_latents();
        if let Some(values) = settings.integer(VALUE_LENGTH)?.filter(differ) {
            let problem = format!("{values}, and keys have {head_dim}; heads of two widths are not supported");
            return Err(metadata.error(&settings.key(VALUE_LENGTH), problem));
        }
        let turns = |_: &u64| !settings.has_latents();
        if let Some(rotated) = settings.integer("rope.dimension_count")?.filter(turns) {
            // By its own number: as a share of a head it would not be recognised.
            if rotated == 0 || rotated > head_dim || rotated % 2 != 0 {
                let problem = format!("{rotated} is no even number from 2 to {head_dim}, the width of a head");
                return Err(metadata.error(&settings.key("rope.dimension_count"), problem));
            }
            config.insert("partial_rotary_factor".into(), json!(rotated as f64 / head_dim as f64));
        }
    }
    let embedding = gguf.tensor("token_embd.weight");
    if let Some(rows) = embedding.and_then(|(_, tensor)| tensor.shape.first()) {
        config.insert("vocab_size".into(), (*rows).into());
    }
    config.insert("tie_word_embeddings".into(), gguf.tensor("output.weight").is_none().into());
    let has_bias = ["attn_q.bias", "attn_qkv.bias"].iter().any(|name| gguf.has_tensor_like(name));
    for name in ["attention_bias", "use_qkv_bias", "use_bias"] {
        config.insert(name.into(), has_bias.into());
    }
    config.insert("mlp_bias".into(), gguf.tensor("blk.0.ffn_up.bias").is_some().into());
    add_architecture_fields(&settings, head_dim, &mut config)?;
    match settings.architecture {
        "lfm2" | "lfm2moe" => add_lfm2_fields(gguf, &settings, &mut config)?,
        "glm4moe" | "dots1" => add_glm4_fields(gguf, &settings, &mut config)?,
        "command-r" => {
            config.insert("use_qk_norm".into(), gguf.tensor("blk.0.attn_q_norm.weight").is_some().into());
        }
        "phimoe" => {
            config.insert("lm_head_bias".into(), gguf.tensor("output.bias").is_some().into());
        }
        "cohere2moe" => add_cohere_experts(&settings, &mut config)?,
        "ernie4_5-moe" => add_integers(&settings, &OF_ERNIE, &mut config)?,
        "hunyuan-moe" => add_integers(&settings, &[CHOSEN_OF_HUNYUAN], &mut config)?,
        "qwen2moe" => {
            add_integers(&settings, &[SHARED_WIDTH_OF_QWEN], &mut config)?;
            add_dense_layers(gguf, settings.integer("block_count")?.unwrap_or(0), &mut config);
        }
        "deepseek2" | "mistral4" => add_latent_fields(&settings, &mut config)?,
        "kimi-linear" => {
            add_latent_fields(&settings, &mut config)?;
            add_kimi_fields(gguf, &settings, &mut config)?;
        }
        "granitemoe" | "granitehybrid" => add_granite_fields(gguf, &settings, &mut config)?,
        "nemotron_h" | "nemotron_h_moe" => add_nemotron_h_fields(gguf, &settings, &mut config)?,
        "falcon-h1" => add_falcon_h1_fields(gguf, &settings, &mut config)?,
        "qwen3" if gguf.tensor("cls.output.weight").is_some() => {
            config.insert("architectures".into(), json!(["Qwen3ForSequenceClassification"]));
            config.insert("gguf_rows".into(), true.into());
        }
        "gemma-embedding" => {
            add_layer_types(&settings, &mut config)?;
            encoders::add_pooling(metadata, settings.architecture, &shape, &mut config)?;
        }
        "gemma4" => add_gemma4_fields(gguf, files, &settings, &mut config)?,
        "qwen35" | "qwen35moe" | "qwen3next" => add_delta_fields(gguf, &settings, head_dim, &mut config)?,
        _ => {}
    }
    if let Some(scaling) = rope_scaling(gguf, files, &settings, head_dim)? {
        config.insert("rope_scaling".into(), scaling);
    }
    let (bos, eos) = super::tokenizer::bos_and_eos(metadata)?;
    config.insert("bos_token_id".into(), json!(bos));
    config.insert("eos_token_id".into(), json!(eos));
    Ok(Value::Object(config))
}

/// The class of transformers for the file's architecture.
fn class(settings: &Settings<'_>) -> Result<&'static str, LoadError> {
    if settings.architecture == "llama" && settings.integer("expert_count")?.is_some_and(|experts| experts > 0) {
        return Ok("MixtralForCausalLM");
    }
    if settings.architecture == "olmo2" && settings.integer(WINDOW.1)?.is_some() {
        return Ok("Olmo3ForCausalLM");
    }
    if settings.architecture == "deepseek2" && settings.integer(EXPERT_SCORES)? == Some(2) {
        return Ok("DeepseekV3ForCausalLM");
    }
    let mut all = ARCHITECTURES.iter().chain(&encoders::ARCHITECTURES);
    Ok(all.find(|(ggml, _)| *ggml == settings.architecture).expect("checked by Settings::of").1)
}

/// Adds fields of single architectures, and constants of models for which ggml has no key.
fn add_architecture_fields(
    settings: &Settings<'_>,
    head_dim: Option<u64>,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    let window = settings.integer(WINDOW.1)?;
    match settings.architecture {
        "gemma2" | "gemma3" | "gemma-embedding" => {
            // Scores are scaled by the width of a head; in the largest models by hidden size / heads.
            let layers = settings.integer("block_count")?;
            let largest = if settings.architecture == "gemma2" { 46 } else { 62 };
            let scalar = match (settings.integer("embedding_length")?, settings.integer("attention.head_count")?) {
                (Some(hidden), Some(heads)) if layers == Some(largest) && heads > 0 => Some(hidden / heads),
                _ => head_dim,
            };
            config.insert("query_pre_attn_scalar".into(), json!(scalar));
            config.insert(WINDOW.0.into(), json!(window));
            if settings.architecture == "gemma-embedding" {
                config.insert("use_bidirectional_attention".into(), true.into());
            }
        }
        "qwen3moe" | "qwen3vlmoe" => {
            config.insert("norm_topk_prob".into(), true.into());
        }
        "gpt-oss" => {
            // Every MLP is an expert.
            if let Some(width) = config.get("moe_intermediate_size").cloned() {
                config.insert(FEED_FORWARD.0.into(), width);
            }
            config.extend(window.map(|window| (WINDOW.0.to_string(), window.into())));
            add_layer_types(settings, config)?;
        }
        "glm4" if settings.metadata.has(&settings.key(SECTIONS)) => {
            let problem = "of GLM-4V, which is not supported: its rows of queries and keys are in another order";
            return Err(settings.metadata.error(&settings.key(SECTIONS), problem));
        }
        "apertus" => {
            let mut numbers = Map::new();
            for name in ["alpha_p", "alpha_n", "beta", "eps"] {
                numbers.insert(name.into(), json!(settings.metadata.floats(&format!("xielu.{name}"))?));
            }
            config.insert("xielu".into(), Value::Object(numbers));
            config.insert("rope_parameters".into(), json!({"rope_type": "default"}));
        }
        "cohere2" | "cohere2moe" | "muse-glimmer" => {
            config.insert(WINDOW.0.into(), json!(window));
            add_layer_types(settings, config)?;
        }
        "phi3" => {
            config.insert(WINDOW.0.into(), json!(window));
        }
        "llama4" => {
            // The larger of the two has no norms.
            config.insert("use_qk_norm".into(), (settings.integer("expert_count")? != Some(128)).into());
            config.insert("intermediate_size_mlp".into(), json!(settings.integer(FEED_FORWARD.1)?));
            if let Some(width) = config.get("moe_intermediate_size").cloned() {
                config.insert(FEED_FORWARD.0.into(), width);
            }
            add_integers(settings, &[("interleave_moe_layer_step", OF_ERNIE[4].1)], config)?;
        }
        "phimoe" => {
            config.insert(WINDOW.0.into(), json!(window.filter(|window| *window > 0)));
        }
        "olmo2" | "exaone4" if window.is_some() => {
            config.insert(WINDOW.0.into(), json!(window));
            add_layer_types(settings, config)?;
            // Only layers that see everything are stretched; all turn from one base.
            if let Some(theta) = config.get("rope_theta").cloned().filter(|_| settings.architecture == "olmo2") {
                config.insert("rope_local_base_freq".into(), theta);
            }
        }
        "exaone4" => {
            config.insert(WINDOW.0.into(), Value::Null);
        }
        "llama" => {
            config.insert(WINDOW.0.into(), json!(window)); // of Mixtral; Llama has none
        }
        _ => {}
    }
    Ok(())
}

/// Which layers are convolutions: those without key heads.
fn add_lfm2_fields(gguf: &Gguf, settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    let key = settings.key("attention.head_count_kv");
    if settings.metadata.is_list(&key) {
        let heads = settings.metadata.floats(&key)?.unwrap_or_default();
        let name = |heads: &f64| if *heads == 0.0 { "conv" } else { "full_attention" };
        config.insert("layer_types".into(), heads.iter().map(name).collect());
    }
    config.extend(config.get(EPSILON.0).cloned().map(|eps| (EPSILON_OF_LFM2.to_string(), eps)));
    // The width that is stated is the MLP's own.
    config.insert("block_auto_adjust_ff_dim".into(), false.into());
    config.insert("conv_bias".into(), gguf.has_tensor_like("shortconv.conv.bias").into());
    for (field, name) in [CONV_TAPS, DENSE_OF_LFM2] {
        config.extend(settings.integer(name)?.map(|number| (field.to_string(), number.into())));
    }
    add_router_fields(settings, config)?;
    config.insert("use_expert_bias".into(), gguf.has_tensor_like("exp_probs_b.bias").into());
    Ok(())
}

/// Integers of single architectures.
fn add_integers(
    settings: &Settings<'_>,
    fields: &[(&str, &str)],
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    for (field, name) in fields {
        config.extend(settings.integer(name)?.map(|number| (field.to_string(), number.into())));
    }
    Ok(())
}

/// Layers without experts are those without a router.
fn add_dense_layers(gguf: &Gguf, layers: u64, config: &mut Map<String, Value>) {
    let has_router = |layer: &u64| gguf.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
    let dense: Vec<u64> = (0..layers.min(MAX_LAYERS)).filter(|layer| !has_router(layer)).collect();
    config.insert("mlp_only_layers".into(), dense.into());
}

fn add_glm4_fields(gguf: &Gguf, settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    add_integers(settings, &OF_GLM4, config)?;
    add_integers(settings, &[DENSE_OF_GLM4], config)?;
    add_glm4_layers(settings, config)?;
    config.insert("use_qk_norm".into(), gguf.tensor("blk.0.attn_q_norm.weight").is_some().into());
    add_router_fields(settings, config)
}

/// Layers that draft are counted with the others.
fn add_glm4_layers(settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    add_integers(settings, &[DRAFTING], config)?;
    let (layers, drafting) = (settings.integer("block_count")?, settings.integer(DRAFTING.1)?.unwrap_or(0));
    config.extend(layers.map(|layers| ("num_hidden_layers".to_string(), layers.saturating_sub(drafting).into())));
    Ok(())
}

/// Widths of the heads are stated as such, or, in files from before latents were cached, as those of keys and values.
fn add_latent_fields(settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    for (field, name) in OF_GLM4.into_iter().chain([DENSE_OF_GLM4, DRAFTING]).chain(OF_LATENT) {
        config.extend(settings.integer(name)?.map(|number| (field.to_string(), number.into())));
    }
    let width = |name: &str| -> Result<Option<u64>, LoadError> {
        match settings.integer(&format!("{name}_mla"))? {
            Some(width) => Ok(Some(width)),
            None => settings.integer(name),
        }
    };
    let turning = settings.integer("rope.dimension_count")?.unwrap_or(0);
    let plain = width(HEAD_DIM.1)?.map(|width| width.saturating_sub(turning));
    config.insert("qk_nope_head_dim".into(), json!(plain));
    config.insert("v_head_dim".into(), json!(width(VALUE_LENGTH)?));
    let layers = settings.integer("block_count")?.unwrap_or(0);
    let drafting = settings.integer(DRAFTING.1)?.unwrap_or(0);
    config.insert("num_hidden_layers".into(), layers.saturating_sub(drafting).into());
    let is_v2 = config.get("architectures").is_some_and(|classes| classes[0] == "DeepseekV2ForCausalLM");
    if is_v2 && settings.integer(OF_GLM4[2].1)?.unwrap_or(1) > 1 {
        config.insert("topk_method".into(), "group_limited_greedy".into());
    }
    add_expert_weights(settings, !is_v2, config)
}

/// Layers of linear attention are those without key heads; no key has the number of their heads.
fn add_kimi_fields(gguf: &Gguf, settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    add_integers(settings, &OF_KIMI, config)?;
    let heads = settings.metadata.floats(&settings.key("attention.head_count_kv"))?.unwrap_or_default();
    let name = |heads: &f64| if *heads == 0.0 { "linear_attention" } else { "full_attention" };
    config.insert("layer_types".into(), heads.iter().map(name).collect());
    let has_router = |layer: usize| gguf.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).is_some();
    let kind = |layer| if has_router(layer) { "sparse" } else { "dense" };
    config.insert("mlp_layer_types".into(), (0..heads.len()).map(kind).collect());
    let betas = (0..heads.len()).find_map(|layer| gguf.tensor(&format!("blk.{layer}.ssm_beta.weight")));
    config.extend(betas.map(|(_, betas)| ("linear_num_heads".to_string(), json!(betas.shape.first()))));
    add_router_fields(settings, config)
}

/// Layers that see all have heads of their own, and their pairs that do not turn have a divisor without end.
fn add_gemma4_fields(
    gguf: &Gguf,
    files: &Files,
    settings: &Settings<'_>,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    let metadata = settings.metadata;
    add_layer_types(settings, config)?;
    config.insert(WINDOW.0.into(), json!(settings.integer(WINDOW.1)?));
    let wide = settings.head_dim()?;
    let narrow = settings.integer(HEAD_DIM_OF_WINDOWS.1)?.or(wide);
    config.insert(HEAD_DIM.0.into(), json!(narrow));
    let rotated = settings.integer("rope.dimension_count_swa")?;
    if let Some(rotated) = rotated.filter(|rotated| Some(*rotated) != narrow) {
        let problem = format!("{rotated} is not supported; all of a head turns in layers with a window");
        return Err(metadata.error(&settings.key("rope.dimension_count_swa"), problem));
    }
    // Of each layer, whether it sees all, and its key heads.
    let sees_all = |layer: usize, types: &[Value]| types.get(layer).is_some_and(|of| of == "full_attention");
    let types = config.get("layer_types").and_then(Value::as_array).cloned().unwrap_or_default();
    let heads = settings.key("attention.head_count_kv");
    let listed = if metadata.is_list(&heads) { metadata.floats(&heads)?.unwrap_or_default() } else { Vec::new() };
    if let Some(first) = listed.iter().enumerate().find(|(layer, _)| !sees_all(*layer, &types)) {
        config.insert("num_key_value_heads".into(), json!(*first.1 as u64));
    }
    let mut of_layers = Map::new();
    for layer in (0..types.len()).filter(|&layer| sees_all(layer, &types)) {
        let mut own = json!({ HEAD_DIM.0: wide });
        if let Some(heads) = listed.get(layer) {
            own["num_key_value_heads"] = json!(*heads as u64);
        }
        of_layers.insert(layer.to_string(), own);
        let has = |part: &str| gguf.tensor(&format!("blk.{layer}.{part}.weight")).is_some();
        if has("attn_k") && !has("attn_v") {
            config.insert("attention_k_eq_v".into(), true.into());
        }
    }
    config.insert("per_layer_config".into(), Value::Object(of_layers));
    let shared = settings.integer(SHARED_KEYS.1)?.unwrap_or(0);
    config.insert(SHARED_KEYS.0.into(), shared.into());
    let widths = settings.key(FEED_FORWARD.1);
    if metadata.is_list(&widths) {
        let widths = metadata.floats(&widths)?.unwrap_or_default();
        let doubled = widths.first().zip(widths.last()).is_some_and(|(first, last)| *last == 2.0 * first);
        config.insert("use_double_wide_mlp".into(), doubled.into());
    }
    let inputs = settings.integer(LAYER_INPUT.1)?.unwrap_or(0);
    config.insert(LAYER_INPUT.0.into(), inputs.into());
    if let Some(rows) = gguf.tensor("per_layer_token_embd.weight").and_then(|(_, tensor)| tensor.shape.first()) {
        config.insert("vocab_size_per_layer_input".into(), (*rows).into());
    }
    let experts = settings.integer("expert_count")?.filter(|experts| *experts > 0);
    config.insert("enable_moe_block".into(), experts.is_some().into());
    config.extend(settings.integer("expert_used_count")?.map(|chosen| ("top_k_experts".to_string(), chosen.into())));
    let theta = |name, absent| Ok(metadata.float(&settings.key(name))?.unwrap_or(absent));
    let turning = match gguf.tensor(ROPE_FREQS) {
        Some(_) => {
            let divisors = gguf.vector(files, ROPE_FREQS, wide.unwrap_or_default() as usize / 2)?;
            divisors.iter().filter(|&&divisor| divisor < 1e20).count() as f64 / divisors.len().max(1) as f64
        }
        None => 1.0,
    };
    config.insert(
        "rope_parameters".into(),
        json!({
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": turning,
                "rope_theta": theta("rope.freq_base", 1e6)?},
            "sliding_attention": {"rope_type": "default", "rope_theta": theta("rope.freq_base_swa", 1e4)?},
        }),
    );
    Ok(())
}

/// Experts of Command A+, whose layers before them are as wide as is stated of all.
fn add_cohere_experts(settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    add_glm4_layers(settings, config)?;
    add_integers(settings, &[DENSE_OF_GLM4, ("num_shared_experts", OF_GLM4[1].1)], config)?;
    config.insert("prefix_dense_intermediate_size".into(), json!(settings.integer(FEED_FORWARD.1)?));
    if let Some(width) = config.get("moe_intermediate_size").cloned() {
        config.insert(FEED_FORWARD.0.into(), width);
    }
    let is_softmax = settings.integer(EXPERT_SCORES)? == Some(1);
    config.insert("expert_selection_fn".into(), if is_softmax { "softmax" } else { "sigmoid" }.into());
    add_expert_weights(settings, false, config)
}

fn add_granite_fields(gguf: &Gguf, settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    config.insert("num_local_experts".into(), settings.integer("expert_count")?.unwrap_or(0).into());
    // Without experts the MLP has the names of one, and its width is where it always is.
    let dense =
        gguf.tensor("blk.0.ffn_gate.weight").and_then(|(_, tensor)| tensor.shape.first().map(|&rows| rows as u64));
    let width = dense.or(settings.integer(SHARED_WIDTH.1)?);
    config.extend(width.map(|width| (SHARED_WIDTH.0.to_string(), width.into())));
    if settings.architecture != "granitehybrid" {
        return Ok(());
    }
    let key = settings.key("attention.head_count_kv");
    if settings.metadata.is_list(&key) {
        let heads = settings.metadata.floats(&key)?.unwrap_or_default();
        let name = |heads: &f64| if *heads == 0.0 { "mamba" } else { "attention" };
        config.insert("layer_types".into(), heads.iter().map(name).collect());
    }
    let is_rotated = settings.metadata.flag(&settings.key("rope.scaling.finetuned"))?.unwrap_or(true);
    config.insert("position_embedding_type".into(), if is_rotated { "rope" } else { "nope" }.into());
    add_integers(settings, &OF_MAMBA, config)?;
    let (inner, hidden) = (settings.integer(INNER)?, settings.integer("embedding_length")?);
    if let (Some(inner), Some(hidden @ 1..)) = (inner, hidden) {
        if inner % hidden != 0 {
            let problem = format!("{inner} is no multiple of the embedding's {hidden}");
            return Err(settings.metadata.error(&settings.key(INNER), problem));
        }
        config.insert("mamba_expand".into(), (inner / hidden).into());
    }
    config.insert("mamba_conv_bias".into(), gguf.has_tensor_like("ssm_conv1d.bias").into());
    Ok(())
}

/// Which layer is which block follows from its tensors.
fn add_nemotron_h_fields(
    gguf: &Gguf,
    settings: &Settings<'_>,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    add_integers(settings, &OF_NEMOTRON_H, config)?;
    add_integers(settings, &OF_GLM4, config)?;
    config.extend(config.get(EPSILON.0).cloned().map(|eps| (EPSILON_OF_NEMOTRON_H.to_string(), eps)));
    add_mamba_heads(settings, "mamba_head_dim", config)?;
    config.insert("use_conv_bias".into(), gguf.has_tensor_like("ssm_conv1d.bias").into());
    let layers = settings.integer("block_count")?.unwrap_or(0);
    let layers = layers.saturating_sub(settings.integer(DRAFTING.1)?.unwrap_or(0));
    let block = |layer: u64| {
        let has = |part: &str| gguf.tensor(&format!("blk.{layer}.{part}.weight")).is_some();
        let known = [("ssm_in", "mamba"), ("attn_q", "attention"), ("attn_qkv", "attention"), ("ffn_gate_inp", "moe")];
        known.into_iter().find(|(part, _)| has(part)).map_or("mlp", |(_, name)| name)
    };
    config.insert("layers_block_type".into(), (0..layers.min(MAX_LAYERS)).map(block).collect());
    config.insert("num_hidden_layers".into(), layers.into());
    add_router_fields(settings, config)
}

/// All multipliers are part of the weights; a norm, where there is one, is behind the gate.
fn add_falcon_h1_fields(
    gguf: &Gguf,
    settings: &Settings<'_>,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    add_integers(settings, &OF_MAMBA, config)?;
    add_integers(settings, &[("mamba_d_ssm", INNER)], config)?;
    add_mamba_heads(settings, "mamba_d_head", config)?;
    config.insert("mamba_conv_bias".into(), gguf.has_tensor_like("ssm_conv1d.bias").into());
    config.insert("mamba_rms_norm".into(), gguf.has_tensor_like("ssm_norm.weight").into());
    config.insert("mamba_norm_before_gate".into(), false.into());
    Ok(())
}

/// The width of a head of Mamba-2.
fn add_mamba_heads(settings: &Settings<'_>, field: &str, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    const HEADS: &str = OF_MAMBA[0].1;
    if let (Some(inner), Some(heads @ 1..)) = (settings.integer(INNER)?, settings.integer(HEADS)?) {
        if inner % heads != 0 {
            let problem = format!("{inner} is no multiple of {HEADS} = {heads}");
            return Err(settings.metadata.error(&settings.key(INNER), problem));
        }
        config.insert(field.into(), (inner / heads).into());
    }
    Ok(())
}

/// Qwen3-Next and Qwen3.5.
fn add_delta_fields(
    gguf: &Gguf,
    settings: &Settings<'_>,
    head_dim: Option<u64>,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    // What transformers assumes of them is no word of the file's.
    if let Some(absent) = OF_DELTA
        .map(|(_, name)| name)
        .into_iter()
        .chain([INNER])
        .find(|name| !settings.metadata.has(&settings.key(name)))
    {
        return Err(settings.metadata.error(&settings.key(absent), "missing"));
    }
    for (field, name) in OF_DELTA.into_iter().chain([SHARED_WIDTH_OF_QWEN, DRAFTING, ATTENTION_INTERVAL]) {
        config.extend(settings.integer(name)?.map(|number| (field.to_string(), number.into())));
    }
    add_mamba_heads(settings, "linear_value_head_dim", config)?;
    // Layers that draft are counted with the others.
    let layers = settings.integer("block_count")?.unwrap_or(0);
    let layers = layers.saturating_sub(settings.integer(DRAFTING.1)?.unwrap_or(0));
    config.insert("num_hidden_layers".into(), layers.into());
    if let Some(recurrent) = settings.metadata.flags(&settings.key("attention.recurrent_layers"))? {
        let name = |is_recurrent: &bool| if *is_recurrent { "linear_attention" } else { "full_attention" };
        config.insert("layer_types".into(), recurrent.iter().take(layers as usize).map(name).collect());
    }
    if settings.integer("rope.dimension_count")?.is_none_or(|rotated| Some(rotated) == head_dim) {
        config.insert("partial_rotary_factor".into(), json!(1.0));
    }
    if settings.architecture == "qwen3next" {
        add_dense_layers(gguf, layers, config);
    }
    Ok(())
}

/// Routers whose scores are a sigmoid.
fn add_router_fields(settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    if let Some(other @ (0 | 1 | 3..)) = settings.integer(EXPERT_SCORES)? {
        let problem = format!("{other} is not supported; 2, a sigmoid, is");
        return Err(settings.metadata.error(&settings.key(EXPERT_SCORES), problem));
    }
    add_expert_weights(settings, true, config)
}

/// How weights of experts are normed and scaled. `normed`: where the file does not say it.
fn add_expert_weights(settings: &Settings<'_>, normed: bool, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    if let Some(factor) = settings.metadata.float(&settings.key(EXPERT_FACTOR.1))?.filter(|factor| *factor != 0.0) {
        config.insert(EXPERT_FACTOR.0.into(), factor.into());
    }
    let stated = settings.metadata.flag(&settings.key("expert_weights_norm"))?;
    config.insert("norm_topk_prob".into(), stated.unwrap_or(normed).into());
    Ok(())
}

/// Which layers have a window: a flag for each, or every n-th has none. Absent, it is what the class assumes.
fn add_layer_types(settings: &Settings<'_>, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    let key = settings.key("attention.sliding_window_pattern");
    if !settings.metadata.is_list(&key) {
        let pattern = settings.metadata.integer(&key)?;
        config.extend(pattern.map(|pattern| ("sliding_window_pattern".to_string(), pattern.into())));
        return Ok(());
    }
    let flags = settings.metadata.flags(&key)?.unwrap_or_default();
    let name = |has_window: &bool| if *has_window { "sliding_attention" } else { "full_attention" };
    config.insert("layer_types".into(), flags.iter().map(name).collect());
    Ok(())
}

/// The metadata key of a field of the generated `config.json`, for messages.
pub(super) fn key_of(metadata: &Metadata, field: &str) -> String {
    let architecture = metadata.text(ARCHITECTURE).ok().flatten().unwrap_or_default();
    let name = field.rsplit('.').next().unwrap_or(field);
    let own = [CONV_TAPS, DENSE_OF_LFM2, DENSE_OF_GLM4, EXPERT_FACTOR, (EPSILON_OF_LFM2, EPSILON.1)];
    let fields =
        INTEGERS.into_iter().chain(FLOATS).chain(ROPE).chain(ROPE_OF_MISTRAL3).chain([FEED_FORWARD, HEAD_DIM, WINDOW]);
    let of_norms = if WITH_LAYER_NORMS.contains(&architecture) { &LAYER_EPSILON[..] } else { &[EPSILON] };
    let fields = of_norms
        .iter()
        .copied()
        .chain(fields)
        .chain(own)
        .chain(OF_ERNIE)
        .chain([CHOSEN_OF_HUNYUAN])
        .chain(OF_GLM4)
        .chain(OF_MAMBA)
        .chain(OF_NEMOTRON_H)
        .chain(OF_KIMI)
        .chain([(EPSILON_OF_NEMOTRON_H, EPSILON.1), ("mamba_head_dim", INNER), ("mamba_d_ssm", INNER)])
        .chain([SHARED_WIDTH])
        .chain(OF_LATENT);
    let widths = [("qk_nope_head_dim", "attention.key_length_mla"), ("v_head_dim", "attention.value_length_mla")];
    let fields = fields.chain(widths);
    let mut fields =
        fields.chain(OF_DELTA).chain([SHARED_WIDTH_OF_QWEN, ATTENTION_INTERVAL, ("linear_value_head_dim", INNER)]);
    match (field, fields.find(|(theirs, _)| *theirs == name)) {
        (_, Some((_, key))) => format!("{architecture}.{key}"),
        (_, None) if encoders::key_of(name).is_some() => {
            format!("{architecture}.{}", encoders::key_of(name).unwrap_or_default())
        }
        ("vocab_size", _) => "tensor \"token_embd.weight\"".to_string(),
        ("partial_rotary_factor", _) => format!("{architecture}.rope.dimension_count"),
        _ => field.to_string(),
    }
}

fn rope_scaling(
    gguf: &Gguf,
    files: &Files,
    settings: &Settings<'_>,
    head_dim: Option<u64>,
) -> Result<Option<Value>, LoadError> {
    let metadata = settings.metadata;
    let key = settings.key("rope.scaling.type");
    let mut scaling = Map::new();
    for (field, name) in ROPE {
        if let Some(number) = metadata.float(&settings.key(name))? {
            let number = if number.fract() == 0.0 { json!(number as i64) } else { json!(number) };
            scaling.insert(field.into(), number);
        }
    }
    if ["mistral3", "mistral4", "deepseek2"].contains(&settings.architecture) {
        for (field, name) in ROPE_OF_MISTRAL3 {
            let number = metadata.float(&settings.key(name))?;
            // Of latent attention a tenth of it is stated, as float32.
            let whole = |number: f64| if settings.has_latents() { (number * 1e7).round() / 1e6 } else { number };
            let number = number.map(|number| if field == "mscale_all_dim" { whole(number) } else { number });
            scaling.extend(number.map(|number| (field.to_string(), number.into())));
        }
        // As ggml takes for granted.
        let scale = scaling.get("mscale_all_dim").cloned().filter(|_| settings.has_latents());
        scaling.insert("mscale".into(), scale.unwrap_or(1.into()));
    }
    match metadata.text(&key)? {
        None | Some("none") if ["mistral3", "mistral4"].contains(&settings.architecture) => {
            scaling.insert("rope_type".into(), "default".into());
            return Ok(Some(Value::Object(scaling)));
        }
        None | Some("none") => {}
        Some("longrope") if gguf.tensor(LONG_FACTORS).is_some() => {}
        Some("longrope") => {
            return Err(metadata.error(&key, format!("longrope, but there is no tensor {LONG_FACTORS:?}")));
        }
        Some(kind @ ("linear" | "yarn")) => {
            scaling.insert("rope_type".into(), kind.into());
            if settings.architecture == "gpt-oss" {
                scaling.insert("truncate".into(), false.into()); // as ggml takes for granted
            }
            return Ok(Some(Value::Object(scaling)));
        }
        Some(other) => {
            return Err(metadata
                .error(&key, format!("{} is not supported; none, linear, yarn and longrope are", quoted(other))));
        }
    }
    let rotated = settings.integer("rope.dimension_count")?.or(head_dim).unwrap_or_default() as usize;
    if gguf.tensor(LONG_FACTORS).is_some() {
        let factors = |name| -> Result<Value, LoadError> { Ok(json!(gguf.vector(files, name, rotated / 2)?)) };
        let original = settings.integer("rope.scaling.original_context_length")?;
        return Ok(Some(json!({
            "rope_type": "longrope", "short_factor": factors(SHORT_FACTORS)?, "long_factor": factors(LONG_FACTORS)?,
            "original_max_position_embeddings": original,
        })));
    }
    // Gemma 4 has other divisors in it.
    let freqs = gguf.tensor(ROPE_FREQS).filter(|_| settings.architecture != "gemma4");
    let Some((file, _)) = freqs else { return Ok(None) };
    let divisors = gguf.vector(files, ROPE_FREQS, rotated / 2)?;
    let theta = metadata.float(&settings.key("rope.freq_base"))?.unwrap_or(10_000.0);
    let context = settings.integer("context_length")?.unwrap_or_default();
    let found = Llama3::find(&divisors, theta, context).ok_or_else(|| {
        let problem = "these frequency divisors are not those of Llama 3; others are unsupported";
        LoadError::field(file, format!("tensor {ROPE_FREQS:?}"), problem)
    })?;
    Ok(Some(json!({
        "rope_type": "llama3", "factor": found.factor, "low_freq_factor": Llama3::LOW, "high_freq_factor": Llama3::HIGH,
        "original_max_position_embeddings": found.original,
    })))
}

/// Parameters of Llama 3's RoPE scaling (Grattafiori et al., 2024). All its models have the same frequency factors.
struct Llama3 {
    factor: f64,
    original: u64,
}

impl Llama3 {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;

    /// The parameters that give these divisors, up to float32 rounding. The factor is the largest divisor; a divisor
    /// between 1 and the factor gives the original length; without one, it is the power of two that fits.
    fn find(divisors: &[f32], theta: f64, context: u64) -> Option<Llama3> {
        let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max));
        let wavelength =
            |i: usize| 2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / (2 * divisors.len()) as f64);
        let between = divisors.iter().position(|&d| d > 1.0 && f64::from(d) < factor);
        let computed = between.map(|i| {
            let smooth = (1.0 / f64::from(divisors[i]) - 1.0 / factor) / (1.0 - 1.0 / factor);
            (wavelength(i) * (Self::LOW + smooth * (Self::HIGH - Self::LOW))).round() as u64
        });
        let powers = (5..28).map(|power| 1u64 << power).filter(|&length| length <= context.max(8192));
        computed.into_iter().chain(powers).map(|original| Llama3 { factor, original }).find(|candidate| {
            let same = |(i, &d): (usize, &f32)| (candidate.divisor(wavelength(i)) / f64::from(d) - 1.0).abs() < 1e-5;
            divisors.iter().enumerate().all(same)
        })
    }

    fn divisor(&self, wavelength: f64) -> f64 {
        let original = self.original as f64;
        if wavelength < original / Self::HIGH {
            1.0
        } else if wavelength > original / Self::LOW {
            self.factor
        } else {
            let smooth = (original / wavelength - Self::LOW) / (Self::HIGH - Self::LOW);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }
}
