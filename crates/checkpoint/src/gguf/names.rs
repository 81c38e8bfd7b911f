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
//! **Norms of Gemma** multiply by one plus their weight; the converter adds the one. It is subtracted here, and the
//! forward pass adds it again, which gives the number in the file.

use super::header::Metadata;
use crate::container::{StoredAs, TensorInfo};
use crate::files::LoadError;

/// Modules outside the layers.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

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

/// Stacks of the matrices of all experts, and the module of one expert's matrix.
const EXPERTS: [(&str, &str); 3] =
    [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")];

/// The tensor of a layer that is no part of a module.
const SINKS: (&str, &str) = ("attn_sinks.weight", "self_attn.sinks");

/// Maximum experts of a layer.
const MAX_EXPERTS: usize = 1024;

/// Architectures whose queries and keys are stored interleaved.
const INTERLEAVED: [&str; 3] = ["llama", "granite", "smollm3"];

/// Modules of a layer, exceptions of the architecture first.
fn layer_modules(architecture: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let own: &[(&str, &str)] = match architecture {
        "gemma2" | "gemma3" => {
            &[("ffn_norm", "pre_feedforward_layernorm"), ("post_attention_norm", "post_attention_layernorm")]
        }
        "olmo2" | "exaone4" | "seed_oss" => &[("post_attention_norm", "post_attention_layernorm")],
        "gpt-oss" => &[("post_attention_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.router")],
        "phi3" => &[("ffn_up", "mlp.gate_up_proj")],
        _ => &[],
    };
    own.iter().chain(&LAYER)
}

/// The tensor's name in transformers; `None` if it has none.
fn name_in_transformers(architecture: &str, name: &str) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let module = match module.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((index, module)) if name.ends_with(SINKS.0) => {
            return Some(format!("model.layers.{index}.{}", SINKS.1)).filter(|_| module == "attn_sinks");
        }
        Some((index, module)) => {
            let (_, theirs) = layer_modules(architecture).find(|(ggml, _)| *ggml == module)?;
            format!("model.layers.{index}.{theirs}")
        }
        None => OUTER.iter().find(|(ggml, _)| *ggml == module)?.1.to_string(),
    };
    Some(format!("{module}.{kind}"))
}

/// ggml's name of a tensor of transformers, for messages; the same name if it has none.
pub fn ggml_name(architecture: &str, name: &str) -> String {
    if let Some(index) = name.strip_suffix(SINKS.1).and_then(|rest| rest.strip_prefix("model.layers.")) {
        return format!("blk.{index}{}", SINKS.0);
    }
    let translated = || {
        let (module, kind) = name.rsplit_once('.')?;
        let module = match module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
            Some((index, module)) => {
                let expert = module.strip_prefix("mlp.experts.").and_then(|rest| rest.split_once('.'));
                let ggml = match expert {
                    Some((_, part)) => EXPERTS.iter().find(|(_, theirs)| *theirs == part)?.0,
                    None => layer_modules(architecture).find(|(_, theirs)| *theirs == module)?.0,
                };
                format!("blk.{index}.{ggml}")
            }
            None => OUTER.iter().find(|(_, theirs)| *theirs == module)?.0.to_string(),
        };
        Some(format!("{module}.{kind}"))
    };
    translated().unwrap_or_else(|| name.to_string())
}

/// A tensor under its name in the forward pass, or one for each expert. Others keep their names.
pub(super) fn translated(metadata: &Metadata, tensor: &TensorInfo) -> Result<Vec<TensorInfo>, LoadError> {
    let architecture = metadata.text("general.architecture")?.unwrap_or_default();
    if let Some(experts) = split_experts(tensor) {
        return Ok(experts);
    }
    let Some(name) = name_in_transformers(architecture, &tensor.name) else { return Ok(vec![tensor.clone()]) };
    let rotated = name.contains(".q_proj.") || name.contains(".k_proj.");
    let stored = if rotated && INTERLEAVED.contains(&architecture) {
        StoredAs::Interleaved { head_dim: super::config::head_dim(metadata)? }
    } else if architecture.starts_with("gemma") && name.ends_with("norm.weight") {
        StoredAs::PlusOne
    } else {
        StoredAs::Itself
    };
    Ok(vec![TensorInfo { name, stored, ..tensor.clone() }])
}

/// The matrices in a stack `[experts, rows, in_features]`, each under its own name; or the biases in `[experts, rows]`.
fn split_experts(tensor: &TensorInfo) -> Option<Vec<TensorInfo>> {
    let (name, kind) = tensor.name.strip_prefix("blk.")?.rsplit_once('.')?;
    let (index, module) = name.split_once('.')?;
    let (_, part) = EXPERTS.iter().find(|(ggml, _)| *ggml == module)?;
    let (&experts, shape) = tensor.shape.split_first()?;
    if shape.len() != [("weight", 2), ("bias", 1)].into_iter().find(|(known, _)| *known == kind)?.1 {
        return None;
    }
    if experts == 0 || experts > MAX_EXPERTS || !tensor.len.is_multiple_of(experts as u64) {
        return None;
    }
    let len = tensor.len / experts as u64;
    let one = |expert: usize| TensorInfo {
        name: format!("model.layers.{index}.mlp.experts.{expert}.{part}.{kind}"),
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
    }
}
