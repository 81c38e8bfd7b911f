//! Names of tensors: ggml's to those of transformers, and the order of rows.
//!
//! ```text
//! blk.3.attn_q.weight   ──►   model.layers.3.self_attn.q_proj.weight
//! ```
//!
//! **Rows of queries and keys.** ggml's `llama` architecture rotates neighbours (0, 1), (2, 3), ...; transformers rotates
//! the halves of a head (0, d/2), (1, d/2 + 1), .... Its converter therefore stores the rows of both projections in
//! another order. Reading them back by the inverse order gives the original rows, exactly.

use super::header::Metadata;
use crate::checkpoint::LoadError;
use crate::weights::{RowOrder, TensorInfo};

/// Modules outside the layers.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Modules of a layer.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The name that transformers has for a tensor; `None` where it has none.
fn in_transformers(name: &str) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let find = |table: &[(&str, &str)], module: &str| {
        table.iter().find(|(ggml, _)| *ggml == module).map(|(_, theirs)| theirs.to_string())
    };
    let module = match module.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((index, module)) => format!("model.layers.{index}.{}", find(&LAYER, module)?),
        None => find(&OUTER, module)?,
    };
    Some(format!("{module}.{kind}"))
}

/// The name that ggml has for a tensor of transformers, for messages; the same name where it has none.
pub(crate) fn in_ggml(name: &str) -> String {
    let find = |table: &[(&str, &str)], module: &str| {
        table.iter().find(|(_, theirs)| *theirs == module).map(|(ggml, _)| ggml.to_string())
    };
    let translated = || {
        let (module, kind) = name.rsplit_once('.')?;
        let module = match module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
            Some((index, module)) => format!("blk.{index}.{}", find(&LAYER, module)?),
            None => find(&OUTER, module)?,
        };
        Some(format!("{module}.{kind}"))
    };
    translated().unwrap_or_else(|| name.to_string())
}

/// A tensor under the name that the forward pass asks for, its rows in the order that it expects. Others keep their names.
pub(super) fn translated(metadata: &Metadata, tensor: &TensorInfo) -> Result<TensorInfo, LoadError> {
    let Some(name) = in_transformers(&tensor.name) else { return Ok(tensor.clone()) };
    let order = match metadata.text("general.architecture")? {
        Some("llama") if name.contains(".q_proj.") || name.contains(".k_proj.") => {
            RowOrder::Interleaved { head_dim: super::config::head_dim(metadata)? }
        }
        _ => RowOrder::AsStored,
    };
    Ok(TensorInfo { name, order, ..tensor.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (ggml, theirs) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output_norm.weight", "model.norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
            ("blk.31.attn_k.bias", "model.layers.31.self_attn.k_proj.bias"),
            ("blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
        ] {
            assert_eq!(in_transformers(ggml).as_deref(), Some(theirs));
            assert_eq!(in_ggml(theirs), ggml);
        }
        for other in ["rope_freqs.weight", "blk.0.attn_rot_embd.weight", "blk.0", "output", ""] {
            assert_eq!(in_transformers(other), None, "{other}");
            assert_eq!(in_ggml(other), other);
        }
    }
}
