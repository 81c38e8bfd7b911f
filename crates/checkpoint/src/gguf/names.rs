//! Translates ggml's tensor names to those of transformers, and undoes its converter's changes.
//!
//! ```text
//! blk.3.attn_q.weight         ──►   model.layers.3.self_attn.q_proj.weight
//! blk.3.ffn_up_exps.weight    ──►   model.layers.3.mlp.experts.0.up_proj.weight, .1., .2. ...
//! blk.3.attn_sinks.weight     ──►   model.layers.3.self_attn.sinks
//! ```
//!
//! **Rows of queries and keys.** ggml rotates neighbours (0, 1), (2, 3), ... in some architectures; transformers
//! rotates the halves of a head (0, d/2), (1, d/2 + 1), .... The converter therefore stores the rows of both
//! projections in another order. Reading them in the inverse order gives the original rows, exactly.
//!
//! **Decay of Mamba-2 and the delta rule.** The converter stores `-exp(A_log)`, here the tensor `rates` without the sign,
//! in place of `A_log`.
//!
//! **Heads of values of the delta rule.** In `qwen35` and `qwen35moe` files, the heads of one key head are not beside each
//! other: first come the first ones of all key heads. Rows, columns and vectors are read in the inverse order.
//!
//! **Convolutions** lose the dimension of one between channels and taps, which is put back.
//!
//! **Norms of Gemma, Qwen3.5, Muse Glimmer and Nemotron** multiply by one plus their weight; the converter adds it.
//! It is subtracted here, and the forward pass adds it again, which gives the number in the file.

use super::encoders;
use super::header::Metadata;
use crate::container::{StoredAs, TensorInfo, TiledHeads};
use crate::files::LoadError;

/// Modules outside the layers.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The same of an architecture, exceptions first.
fn outer_modules(architecture: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let own: &[(&str, &str)] = match architecture {
        "lfm2" | "lfm2moe" => &[("token_embd_norm", "model.embedding_norm")],
        "nemotron_h" | "nemotron_h_moe" => &[("token_embd", "model.embeddings"), ("output_norm", "model.norm_f")],
        "falcon-h1" => &[("output_norm", "model.final_layernorm")],
        "gemma4" => &[
            ("per_layer_token_embd", "model.embed_tokens_per_layer"),
            ("per_layer_model_proj", "model.per_layer_model_projection"),
            ("per_layer_proj_norm", "model.per_layer_projection_norm"),
        ],
        _ => &[],
    };
    own.iter().chain(&OUTER)
}

/// Modules of a layer; [`layer_modules`] puts the exceptions of an architecture before them.
const LAYER: [(&str, &str); 15] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Stacks of the matrices of all experts.
const EXPERTS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// The module of one expert's matrix in each of these stacks, behind the expert's number, and what is before it.
fn expert_modules(architecture: &str) -> (&'static str, [&'static str; 3]) {
    match architecture {
        "lfm2moe" => ("feed_forward.experts", ["w1", "w3", "w2"]),
        "llama4" => ("feed_forward.experts", ["gate_proj", "up_proj", "down_proj"]),
        "kimi-linear" => ("block_sparse_moe.experts", ["w1", "w3", "w2"]),
        "granitemoe" | "granitehybrid" => ("block_sparse_moe.experts", ["gate_proj", "up_proj", "down_proj"]),
        "nemotron_h_moe" => ("mixer.experts", ["gate_proj", "up_proj", "down_proj"]),
        _ => ("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    }
}

/// Tensors of a layer whose whole names differ.
fn layer_tensors(architecture: &str) -> &'static [(&'static str, &'static str)] {
    match architecture {
        "lfm2moe" => &[("exp_probs_b.bias", "feed_forward.expert_bias")],
        "minimax-m2" => &[("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias")],
        "ernie4_5-moe" => &[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")],
        "glm4moe" | "dots1" | "deepseek2" | "mistral4" => &[("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")],
        "gemma4" => &[
            ("layer_output_scale.weight", "layer_scalar"),
            ("ffn_gate_inp.scale", "router.scale"),
            ("ffn_down_exps.scale", "router.per_expert_scale"),
            ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
            ("ffn_down_exps.weight", "experts.down_proj"),
        ],
        "nemotron_h" | "nemotron_h_moe" => &[
            ("ssm_a", "mixer.rates"),
            ("ssm_d", "mixer.D"),
            ("ssm_dt.bias", "mixer.dt_bias"),
            ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ],
        "kimi-linear" => &[
            ("ssm_a", "self_attn.rates"),
            ("ssm_dt.bias", "self_attn.dt_bias"),
            ("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
        ],
        "granitehybrid" | "falcon-h1" => {
            &[("ssm_a", "mamba.rates"), ("ssm_d", "mamba.D"), ("ssm_dt.bias", "mamba.dt_bias")]
        }
        "qwen35" | "qwen35moe" | "qwen3next" => {
            &[("ssm_a", "linear_attn.rates"), ("ssm_dt.bias", "linear_attn.dt_bias")]
        }
        _ => &[],
    }
}

/// The tensor of a layer that is no part of a module.
const SINKS: (&str, &str) = ("attn_sinks.weight", "self_attn.sinks");

/// Maximum experts of a layer.
const MAX_EXPERTS: usize = 1024;

/// Architectures whose queries and keys are stored interleaved.
const INTERLEAVED: [&str; 9] =
    ["llama", "arcee", "olmo", "granite", "smollm3", "granitemoe", "granitehybrid", "mistral3", "muse-glimmer"];

const OF_LFM2: [(&str, &str); 12] = [
    ("attn_norm", "operator_norm"),
    ("ffn_norm", "ffn_norm"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("ffn_gate_inp", "feed_forward.gate"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
];

const OF_GEMMA4: [(&str, &str); 9] = [
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("ffn_gate_inp", "router.proj"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
];

const OF_GRANITE: [(&str, &str); 11] = [
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_shexp", "shared_mlp.gate_proj"),
    ("ffn_up_shexp", "shared_mlp.up_proj"),
    ("ffn_down_shexp", "shared_mlp.down_proj"),
    ("ffn_gate", "shared_mlp.gate_proj"),
    ("ffn_up", "shared_mlp.up_proj"),
    ("ffn_down", "shared_mlp.down_proj"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

const OF_KIMI: [(&str, &str); 21] = [
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
    ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
    ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
];

const OF_FALCON_H1: [(&str, &str); 8] = [
    ("ffn_norm", "pre_ff_layernorm"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
];

const OF_NEMOTRON_H: [(&str, &str); 16] = [
    ("attn_norm", "norm"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("ffn_latent_down", "mixer.fc1_latent_proj"),
    ("ffn_latent_up", "mixer.fc2_latent_proj"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];

/// Of layers that draft.
const DRAFTING: [(&str, &str); 6] = [
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.shared_head_head", "shared_head.head"),
    ("nextn.shared_head_norm", "shared_head.norm"),
];

const OF_GLM4: [(&str, &str); 4] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// Latent attention; files from before the products of keys and values were apart have `attn_kv_b`.
const OF_LATENT: [(&str, &str); 11] = [
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

const OF_GLM4_DENSE: [(&str, &str); 3] = [
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
];

const OF_HUNYUAN: [(&str, &str); 6] = [
    ("attn_q_norm", "self_attn.query_layernorm"),
    ("attn_k_norm", "self_attn.key_layernorm"),
    ("ffn_gate_inp", "mlp.gate.wg"),
    ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

const OF_LLAMA4: [(&str, &str); 7] = [
    ("ffn_gate_inp", "feed_forward.router"),
    ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
    ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
    ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ("ffn_gate", "feed_forward.gate_proj"),
    ("ffn_up", "feed_forward.up_proj"),
    ("ffn_down", "feed_forward.down_proj"),
];

const OF_QWEN2MOE: [(&str, &str); 4] = [
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// The delta rule of Qwen3-Next and Qwen3.5.
const OF_DELTA: [(&str, &str); 14] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Modules of a layer, exceptions of the architecture first.
fn layer_modules(architecture: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let own: &[(&str, &str)] = match architecture {
        "gemma2" | "gemma3" => {
            &[("ffn_norm", "pre_feedforward_layernorm"), ("post_attention_norm", "post_attention_layernorm")]
        }
        "muse-glimmer" => &[
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_gate", "self_attn.gate_proj"),
        ],
        "olmo2" | "exaone4" | "seed_oss" => &[("post_attention_norm", "post_attention_layernorm")],
        "gpt-oss" => &[("post_attention_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.router")],
        "phi3" | "chatglm" => &[("ffn_up", "mlp.gate_up_proj")],
        "apertus" => &[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm")],
        "starcoder2" => &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        "glm4" => &OF_GLM4_DENSE,
        "hunyuan-dense" | "hunyuan-moe" => &OF_HUNYUAN,
        "qwen2moe" => &OF_QWEN2MOE,
        "llama4" => &OF_LLAMA4,
        "lfm2" | "lfm2moe" => &OF_LFM2,
        "glm4moe" | "dots1" | "ernie4_5-moe" | "cohere2moe" => &OF_GLM4,
        "deepseek2" | "mistral4" => &OF_LATENT,
        "gemma4" => &OF_GEMMA4,
        "granitemoe" | "granitehybrid" => &OF_GRANITE,
        "nemotron_h" | "nemotron_h_moe" => &OF_NEMOTRON_H,
        "falcon-h1" => &OF_FALCON_H1,
        "kimi-linear" => &OF_KIMI,
        "qwen35" | "qwen35moe" | "qwen3next" => &OF_DELTA,
        _ => &[],
    };
    own.iter().chain(&LAYER).chain(&DRAFTING)
}

/// The tensor's name in transformers; `None` if it has none.
fn name_in_transformers(architecture: &str, name: &str) -> Option<String> {
    if let Some((index, own)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
        && let Some((_, theirs)) = layer_tensors(architecture).iter().find(|(ggml, _)| *ggml == own)
    {
        return Some(format!("model.layers.{index}.{theirs}"));
    }
    if let Some(of_encoder) = encoders::name_in_transformers(architecture, name) {
        return Some(of_encoder);
    }
    let architecture = encoders::decoder_of(architecture);
    let (module, kind) = name.rsplit_once('.')?;
    let module = match module.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((index, module)) if name.ends_with(SINKS.0) => {
            return Some(format!("model.layers.{index}.{}", SINKS.1)).filter(|_| module == "attn_sinks");
        }
        Some((index, module)) => {
            let (_, theirs) = layer_modules(architecture).find(|(ggml, _)| *ggml == module)?;
            format!("model.layers.{index}.{theirs}")
        }
        None => outer_modules(architecture).find(|(ggml, _)| *ggml == module)?.1.to_string(),
    };
    Some(format!("{module}.{kind}"))
}

/// ggml's name of a tensor of transformers, for messages; the same name if it has none.
pub fn ggml_name(architecture: &str, name: &str) -> String {
    if let Some(index) = name.strip_suffix(SINKS.1).and_then(|rest| rest.strip_prefix("model.layers.")) {
        return format!("blk.{index}{}", SINKS.0);
    }
    if let Some(of_encoder) = encoders::ggml_name(architecture, name) {
        return of_encoder;
    }
    let architecture = encoders::decoder_of(architecture);
    let translated = || {
        if let Some((index, own)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'))
            && let Some((ggml, _)) = layer_tensors(architecture).iter().find(|(_, theirs)| *theirs == own)
        {
            return Some(format!("blk.{index}.{ggml}"));
        }
        let (module, kind) = name.rsplit_once('.')?;
        let module = match module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
            Some((index, module)) => {
                let (before, parts) = expert_modules(architecture);
                let expert = module.strip_prefix(before).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
                let ggml = match expert {
                    Some((_, part)) => EXPERTS[parts.iter().position(|theirs| *theirs == part)?],
                    None => layer_modules(architecture).find(|(_, theirs)| *theirs == module)?.0,
                };
                format!("blk.{index}.{ggml}")
            }
            None => outer_modules(architecture).find(|(_, theirs)| *theirs == module)?.0.to_string(),
        };
        Some(format!("{module}.{kind}"))
    };
    translated().unwrap_or_else(|| name.to_string())
}

/// A tensor under its name in the forward pass, or one for each expert. Others keep their names.
pub(super) fn translated(metadata: &Metadata, tensor: &TensorInfo) -> Result<Vec<TensorInfo>, LoadError> {
    let architecture = encoders::decoder_of(metadata.text("general.architecture")?.unwrap_or_default());
    // Those of Gemma 4 stay in their stacks, where gate and up are together.
    if let Some(experts) = split_experts(architecture, tensor).filter(|_| architecture != "gemma4") {
        return Ok(experts);
    }
    let Some(name) = name_in_transformers(architecture, &tensor.name) else { return Ok(vec![tensor.clone()]) };
    let rotated = name.contains(".q_proj.") || name.contains(".k_proj.");
    let stored = if let Some(stored) = stored_for_delta(metadata, architecture, (&name, &tensor.shape))? {
        stored
    } else if rotated && INTERLEAVED.contains(&architecture) {
        StoredAs::Interleaved { head_dim: super::config::head_dim(metadata)? }
    } else if ["gemma", "gemma2", "gemma3", "nemotron"].contains(&architecture) && name.ends_with("norm.weight")
        || architecture == "muse-glimmer" && name.ends_with("layernorm.weight")
    {
        StoredAs::PlusOne
    } else if name.ends_with(".rates") {
        StoredAs::Negative
    } else {
        StoredAs::Itself
    };
    let shape = match tensor.shape.as_slice() {
        // With dimensions of one at the front too.
        &[1, channels, 1, taps] if name.ends_with("_conv1d.weight") => vec![channels, 1, taps],
        &[1, 1, heads, 1] if name.ends_with(".rates") => vec![heads],
        &[channels, taps] if [".conv.conv.weight", ".conv1d.weight"].iter().any(|end| name.ends_with(end)) => {
            vec![channels, 1, taps]
        }
        // A matrix of one row.
        &[width]
            if [".shared_expert_gate.weight", ".token_type_embeddings.weight", ".out_proj.weight"]
                .iter()
                .any(|end| name.ends_with(end)) =>
        {
            vec![1, width]
        }
        // Of vectors, a column or groups.
        &[rows, width]
            if [".rates", ".D", ".mamba.norm.weight", ".mixer.norm.weight"].iter().any(|end| name.ends_with(end)) =>
        {
            vec![rows * width]
        }
        shape => shape.to_vec(),
    };
    Ok(vec![TensorInfo { name, shape, stored, ..tensor.clone() }])
}

/// How a tensor of a model with the delta rule is stored; `None` for those that are as in other models.
fn stored_for_delta(
    metadata: &Metadata,
    architecture: &str,
    (name, shape): (&str, &[usize]),
) -> Result<Option<StoredAs>, LoadError> {
    if !["qwen35", "qwen35moe", "qwen3next"].contains(&architecture) {
        return Ok(None);
    }
    let Some((_, own)) = name.split_once(".linear_attn.") else {
        return Ok(name.ends_with("norm.weight").then_some(StoredAs::PlusOne));
    };
    let plain = if own == "rates" { StoredAs::Negative } else { StoredAs::Itself };
    let heads = match architecture {
        "qwen3next" => None,
        _ => super::config::value_heads(metadata)?.filter(|heads| heads.per_key > 1),
    };
    let Some(heads) = heads else { return Ok(Some(plain)) };
    let (of_heads, of_columns) = (shape.first().copied().unwrap_or(0), shape.last().copied().unwrap_or(0));
    let (tiled, len): (fn(TiledHeads) -> StoredAs, _) = match own {
        "rates" => (StoredAs::TiledNegative, of_heads),
        "out_proj.weight" => (StoredAs::TiledColumns, of_columns),
        "norm.weight" => return Ok(Some(plain)),
        _ => (StoredAs::Tiled, of_heads),
    };
    let heads = match own {
        "in_proj_qkv.weight" | "conv1d.weight" => heads,
        "in_proj_z.weight" | "out_proj.weight" => TiledHeads { first: 0, ..heads },
        _ => TiledHeads { first: 0, width: 1, ..heads },
    };
    // Of another shape, it is refused for that.
    Ok(Some(if heads.len() == len { tiled(heads) } else { plain }))
}

/// The matrices in a stack `[experts, rows, in_features]`, each under its own name; or the biases in `[experts, rows]`.
fn split_experts(architecture: &str, tensor: &TensorInfo) -> Option<Vec<TensorInfo>> {
    let (name, kind) = tensor.name.strip_prefix("blk.")?.rsplit_once('.')?;
    let (index, module) = name.split_once('.')?;
    let (before, parts) = expert_modules(architecture);
    let part = parts[EXPERTS.iter().position(|ggml| *ggml == module)?];
    let (&experts, shape) = tensor.shape.split_first()?;
    if shape.len() != [("weight", 2), ("bias", 1)].into_iter().find(|(known, _)| *known == kind)?.1 {
        return None;
    }
    if experts == 0 || experts > MAX_EXPERTS || !tensor.len.is_multiple_of(experts as u64) {
        return None;
    }
    let len = tensor.len / experts as u64;
    let one = |expert: usize| TensorInfo {
        name: format!("model.layers.{index}.{before}.{expert}.{part}.{kind}"),
        shape: shape.to_vec(),
        offset: tensor.offset + expert as u64 * len,
        len,
        ..tensor.clone()
    };
    Some((0..experts).map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (architecture, ggml, theirs) in [
            ("llama", "token_embd.weight", "model.embed_tokens.weight"),
            ("llama", "output_norm.weight", "model.norm.weight"),
            ("llama", "output.weight", "lm_head.weight"),
            ("llama", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
            ("llama", "blk.31.attn_k.bias", "model.layers.31.self_attn.k_proj.bias"),
            ("llama", "blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
            ("llama", "blk.7.ffn_up.weight", "model.layers.7.mlp.up_proj.weight"),
            ("llama", "blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("gemma2", "blk.7.ffn_norm.weight", "model.layers.7.pre_feedforward_layernorm.weight"),
            ("gemma4", "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
            ("gemma4", "blk.7.proj.weight", "model.layers.7.per_layer_projection.weight"),
            ("gemma4", "blk.7.layer_output_scale.weight", "model.layers.7.layer_scalar"),
            ("gemma4", "blk.7.ffn_gate_inp.scale", "model.layers.7.router.scale"),
            ("gemma4", "blk.7.ffn_gate_up_exps.weight", "model.layers.7.experts.gate_up_proj"),
            ("gemma3", "blk.7.post_attention_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("olmo2", "blk.7.post_attention_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("olmo2", "blk.7.post_ffw_norm.weight", "model.layers.7.post_feedforward_layernorm.weight"),
            ("seed_oss", "blk.7.post_attention_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("phi3", "blk.7.ffn_up.weight", "model.layers.7.mlp.gate_up_proj.weight"),
            ("phi3", "blk.7.attn_qkv.weight", "model.layers.7.self_attn.qkv_proj.weight"),
            ("qwen3moe", "blk.7.ffn_gate_inp.weight", "model.layers.7.mlp.gate.weight"),
            ("gpt-oss", "blk.7.ffn_gate_inp.bias", "model.layers.7.mlp.router.bias"),
            ("gpt-oss", "blk.7.post_attention_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("gpt-oss", "blk.17.attn_sinks.weight", "model.layers.17.self_attn.sinks"),
            ("muse-glimmer", "blk.7.attn_gate.weight", "model.layers.7.self_attn.gate_proj.weight"),
            ("muse-glimmer", "blk.7.ffn_norm.weight", "model.layers.7.pre_feedforward_layernorm.weight"),
            ("lfm2", "token_embd_norm.weight", "model.embedding_norm.weight"),
            ("lfm2", "blk.7.shortconv.in_proj.weight", "model.layers.7.conv.in_proj.weight"),
            ("lfm2", "blk.7.attn_output.weight", "model.layers.7.self_attn.out_proj.weight"),
            ("lfm2", "blk.7.ffn_up.weight", "model.layers.7.feed_forward.w3.weight"),
            ("lfm2moe", "blk.7.ffn_gate_inp.weight", "model.layers.7.feed_forward.gate.weight"),
            ("lfm2moe", "blk.7.exp_probs_b.bias", "model.layers.7.feed_forward.expert_bias"),
            ("granitehybrid", "blk.7.ssm_a", "model.layers.7.mamba.rates"),
            ("granitehybrid", "blk.7.ssm_dt.bias", "model.layers.7.mamba.dt_bias"),
            ("granitehybrid", "blk.7.ssm_conv1d.bias", "model.layers.7.mamba.conv1d.bias"),
            ("granitehybrid", "blk.7.ffn_up_shexp.weight", "model.layers.7.shared_mlp.up_proj.weight"),
            ("granitehybrid", "blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("nemotron_h", "token_embd.weight", "model.embeddings.weight"),
            ("nemotron_h", "blk.7.ffn_up.weight", "model.layers.7.mixer.up_proj.weight"),
            ("nemotron_h_moe", "blk.7.ssm_a", "model.layers.7.mixer.rates"),
            ("nemotron_h_moe", "blk.7.exp_probs_b.bias", "model.layers.7.mixer.gate.e_score_correction_bias"),
            ("nemotron_h_moe", "blk.7.ffn_latent_down.weight", "model.layers.7.mixer.fc1_latent_proj.weight"),
            ("kimi-linear", "blk.7.ssm_conv1d_k.weight", "model.layers.7.self_attn.k_conv1d.weight"),
            ("kimi-linear", "blk.7.ssm_dt.bias", "model.layers.7.self_attn.dt_bias"),
            (
                "kimi-linear",
                "blk.7.ffn_down_shexp.weight",
                "model.layers.7.block_sparse_moe.shared_experts.down_proj.weight",
            ),
            ("falcon-h1", "output_norm.weight", "model.final_layernorm.weight"),
            ("falcon-h1", "blk.7.ssm_d", "model.layers.7.mamba.D"),
            ("falcon-h1", "blk.7.ffn_norm.weight", "model.layers.7.pre_ff_layernorm.weight"),
            ("granitemoe", "blk.7.ffn_gate_inp.weight", "model.layers.7.block_sparse_moe.router.layer.weight"),
            ("cohere2moe", "blk.7.ffn_up_shexp.weight", "model.layers.7.mlp.shared_experts.up_proj.weight"),
            ("phimoe", "output.bias", "lm_head.bias"),
            ("llama4", "blk.7.ffn_up.weight", "model.layers.7.feed_forward.up_proj.weight"),
            ("glm4moe", "blk.7.exp_probs_b.bias", "model.layers.7.mlp.gate.e_score_correction_bias"),
            ("glm4moe", "blk.7.ffn_up_shexp.weight", "model.layers.7.mlp.shared_experts.up_proj.weight"),
            ("glm4moe", "blk.7.post_attention_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("glm4moe", "blk.47.nextn.eh_proj.weight", "model.layers.47.eh_proj.weight"),
            ("deepseek2", "blk.7.attn_kv_a_mqa.weight", "model.layers.7.self_attn.kv_a_proj_with_mqa.weight"),
            ("deepseek2", "blk.7.exp_probs_b.bias", "model.layers.7.mlp.gate.e_score_correction_bias"),
            ("mistral4", "blk.7.attn_v_b.weight", "model.layers.7.self_attn.v_b_proj.weight"),
            ("starcoder2", "blk.7.ffn_up.bias", "model.layers.7.mlp.c_fc.bias"),
            ("nemotron", "blk.7.attn_norm.bias", "model.layers.7.input_layernorm.bias"),
            ("dots1", "blk.7.exp_probs_b.bias", "model.layers.7.mlp.gate.e_score_correction_bias"),
            ("ernie4_5-moe", "blk.7.exp_probs_b.bias", "model.layers.7.mlp.moe_statics.e_score_correction_bias"),
            ("glm4", "blk.7.post_attention_norm.weight", "model.layers.7.post_self_attn_layernorm.weight"),
            ("glm4", "blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("hunyuan-moe", "blk.7.ffn_gate_inp.weight", "model.layers.7.mlp.gate.wg.weight"),
            ("hunyuan-dense", "blk.7.attn_k_norm.weight", "model.layers.7.self_attn.key_layernorm.weight"),
            ("qwen2moe", "blk.7.ffn_gate_inp_shexp.weight", "model.layers.7.mlp.shared_expert_gate.weight"),
            ("qwen35", "blk.7.attn_qkv.weight", "model.layers.7.linear_attn.in_proj_qkv.weight"),
            ("qwen35", "blk.7.attn_gate.weight", "model.layers.7.linear_attn.in_proj_z.weight"),
            ("qwen35", "blk.7.ssm_alpha.weight", "model.layers.7.linear_attn.in_proj_a.weight"),
            ("qwen35", "blk.7.ssm_a", "model.layers.7.linear_attn.rates"),
            ("qwen35", "blk.7.post_attention_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
            ("qwen35", "blk.64.nextn.eh_proj.weight", "model.layers.64.eh_proj.weight"),
            ("qwen35moe", "blk.7.ffn_gate_inp_shexp.weight", "model.layers.7.mlp.shared_expert_gate.weight"),
            ("qwen3next", "blk.7.ssm_ba.weight", "model.layers.7.linear_attn.in_proj_ba.weight"),
            ("qwen3next", "blk.7.ssm_dt.bias", "model.layers.7.linear_attn.dt_bias"),
            ("bert", "token_embd_norm.bias", "embeddings.LayerNorm.bias"),
            ("bert", "blk.7.attn_output_norm.weight", "encoder.layer.7.attention.output.LayerNorm.weight"),
            ("bert", "cls.output.bias", "classifier.out_proj.bias"),
            ("nomic-bert", "blk.11.ffn_gate.weight", "encoder.layers.11.mlp.fc12.weight"),
            ("modern-bert", "blk.21.ffn_up.weight", "layers.21.mlp.Wi.weight"),
            ("gemma-embedding", "blk.7.ffn_norm.weight", "model.layers.7.pre_feedforward_layernorm.weight"),
        ] {
            assert_eq!(name_in_transformers(architecture, ggml).as_deref(), Some(theirs));
            assert_eq!(ggml_name(architecture, theirs), ggml);
        }
        for other in ["rope_freqs.weight", "blk.0.attn_rot_embd.weight", "blk.0", "output", ""] {
            assert_eq!(name_in_transformers("llama", other), None, "{other}");
            assert_eq!(ggml_name("llama", other), other);
        }
        assert_eq!(ggml_name("gpt-oss", "model.layers.1.mlp.experts.9.up_proj.bias"), "blk.1.ffn_up_exps.bias");
        assert_eq!(ggml_name("qwen3moe", "model.layers.1.mlp.experts.9.up_proj.weight"), "blk.1.ffn_up_exps.weight");
        assert_eq!(ggml_name("lfm2moe", "model.layers.1.feed_forward.experts.9.w3.weight"), "blk.1.ffn_up_exps.weight");
    }
}
