//! Encoders in GGUF: their settings, and the names of their tensors.
//!
//! ```text
//! bert             BERT; RoBERTa and XLM-RoBERTa, whose first positions are cut off the table
//! nomic-bert       the same with rotations and a gated MLP           modern-bert   ModernBERT
//! gemma-embedding  Gemma 3, of which rows see later ones: names and settings are the decoder's, but for what is here
//! ```
//! `pooling_type` says what a vector is, and vectors have length 1, as ggml's programs make them.

use super::header::Metadata;
use crate::files::LoadError;
use serde_json::{Map, Value, json};

/// ggml's names and those of the classes.
pub(super) const ARCHITECTURES: [(&str, &str); 4] = [
    ("bert", "BertModel"),
    ("nomic-bert", "NomicBertModel"),
    ("modern-bert", "ModernBertModel"),
    ("gemma-embedding", "Gemma3TextModel"),
];

/// Fields of `config.json`, and keys.
const INTEGERS: [(&str, &str); 7] = [
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("intermediate_size", "feed_forward_length"),
    ("local_attention", "attention.sliding_window"),
    ("global_attn_every_n_layers", "attention.sliding_window_pattern"),
];
const FLOATS: [(&str, &str); 4] = [
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("norm_eps", "attention.layer_norm_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("global_rope_theta", "rope.freq_base"),
];
pub(super) const POOLING: &str = "pooling_type";

/// Modules outside the layers, and in them.
const OF_BERT: [(&str, &str); 14] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("cls", "classifier.dense"),
    ("cls.output", "classifier.out_proj"),
    ("blk.attn_q", "encoder.layer.*.attention.self.query"),
    ("blk.attn_k", "encoder.layer.*.attention.self.key"),
    ("blk.attn_v", "encoder.layer.*.attention.self.value"),
    ("blk.attn_output", "encoder.layer.*.attention.output.dense"),
    ("blk.attn_output_norm", "encoder.layer.*.attention.output.LayerNorm"),
    ("blk.ffn_up", "encoder.layer.*.intermediate.dense"),
    ("blk.ffn_down", "encoder.layer.*.output.dense"),
    ("blk.layer_output_norm", "encoder.layer.*.output.LayerNorm"),
];
const OF_NOMIC_BERT: [(&str, &str); 10] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "emb_ln"),
    ("blk.attn_qkv", "encoder.layers.*.attn.Wqkv"),
    ("blk.attn_output", "encoder.layers.*.attn.out_proj"),
    ("blk.attn_output_norm", "encoder.layers.*.norm1"),
    ("blk.ffn_up", "encoder.layers.*.mlp.fc11"),
    ("blk.ffn_gate", "encoder.layers.*.mlp.fc12"),
    ("blk.ffn_down", "encoder.layers.*.mlp.fc2"),
    ("blk.layer_output_norm", "encoder.layers.*.norm2"),
];
const OF_MODERN_BERT: [(&str, &str); 9] = [
    ("token_embd", "embeddings.tok_embeddings"),
    ("token_embd_norm", "embeddings.norm"),
    ("output_norm", "final_norm"),
    ("blk.attn_norm", "layers.*.attn_norm"),
    ("blk.attn_qkv", "layers.*.attn.Wqkv"),
    ("blk.attn_output", "layers.*.attn.Wo"),
    ("blk.ffn_norm", "layers.*.mlp_norm"),
    ("blk.ffn_up", "layers.*.mlp.Wi"),
    ("blk.ffn_down", "layers.*.mlp.Wo"),
];

/// The architecture whose names and settings a file has: that of the decoder for one with a decoder's layers.
pub(super) fn decoder_of(architecture: &str) -> &str {
    if architecture == "gemma-embedding" { "gemma3" } else { architecture }
}

fn modules(architecture: &str) -> &'static [(&'static str, &'static str)] {
    match architecture {
        "bert" => &OF_BERT,
        "nomic-bert" => &OF_NOMIC_BERT,
        "modern-bert" => &OF_MODERN_BERT,
        _ => &[],
    }
}

/// The tensor's name in transformers, of an encoder with layers of its own.
pub(super) fn name_in_transformers(architecture: &str, name: &str) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let (index, module) = match module.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((index, module)) => (index, format!("blk.{module}")),
        None => ("", module.to_string()),
    };
    let (_, theirs) = modules(architecture).iter().find(|(ggml, _)| *ggml == module)?;
    Some(format!("{}.{kind}", theirs.replace('*', index)))
}

/// ggml's name.
pub(super) fn ggml_name(architecture: &str, name: &str) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    modules(architecture).iter().find_map(|(ggml, theirs)| {
        let Some((before, behind)) = theirs.split_once('*') else {
            return (*theirs == module).then(|| format!("{ggml}.{kind}"));
        };
        let index = module.strip_prefix(before)?.strip_suffix(behind)?;
        index.parse::<u32>().ok()?;
        Some(format!("{}.{kind}", ggml.replacen("blk.", &format!("blk.{index}."), 1)))
    })
}

/// The dimensions of a tensor, if it is there.
pub(super) type Shapes<'a> = dyn Fn(&str) -> Option<Vec<usize>> + 'a;

/// The equivalent `config.json` of an encoder with layers of its own; `None` for other models.
pub(super) fn config(
    metadata: &Metadata,
    architecture: &str,
    shape: &Shapes<'_>,
) -> Result<Option<Map<String, Value>>, LoadError> {
    let Some((_, class)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture && decoder_of(name) == *name)
    else {
        return Ok(None);
    };
    let key = |name: &str| format!("{architecture}.{name}");
    let mut config = Map::new();
    config.insert("architectures".into(), json!([class]));
    for (field, name) in INTEGERS {
        config.extend(metadata.integer(&key(name))?.map(|number| (field.to_string(), number.into())));
    }
    for (field, name) in FLOATS {
        config.extend(metadata.float(&key(name))?.map(|number| (field.to_string(), number.into())));
    }
    let rows = |name: &str| shape(name)?.first().copied();
    config.insert("vocab_size".into(), json!(rows("token_embd.weight")));
    if let Some(types) = shape("token_types.weight") {
        // A table of one row may be a vector.
        let rows = if types.len() < 2 { 1 } else { types[0] };
        config.insert("type_vocab_size".into(), rows.into());
    }
    if let Some(labels) = rows("cls.output.weight") {
        let names = metadata.texts(&key("classifier.output_labels"))?.unwrap_or_default();
        let name = |index: usize| names.get(index).map_or_else(|| format!("LABEL_{index}"), |name| name.to_string());
        let labels: Map<String, Value> = (0..labels).map(|index| (index.to_string(), name(index).into())).collect();
        config.insert("architectures".into(), json!(["XLMRobertaForSequenceClassification"]));
        config.insert("id2label".into(), Value::Object(labels));
        config.insert("positions_are_cut".into(), true.into());
    }
    add_pooling(metadata, architecture, shape, &mut config)?;
    Ok(Some(config))
}

/// How rows become a vector, if the file says so, and the products behind that.
pub(super) fn add_pooling(
    metadata: &Metadata,
    architecture: &str,
    shape: &dyn Fn(&str) -> Option<Vec<usize>>,
    config: &mut Map<String, Value>,
) -> Result<(), LoadError> {
    let dense = ["dense_2", "dense_3"].into_iter().filter_map(|name| {
        let &[outputs, inputs] = shape(&format!("{name}.weight"))?.as_slice() else { return None };
        Some(json!({"name": name, "in_features": inputs, "out_features": outputs}))
    });
    config.insert("gguf_dense".into(), dense.collect());
    let key = format!("{architecture}.{POOLING}");
    let name = match metadata.integer(&key)? {
        None | Some(0 | 4) => return Ok(()),
        Some(1) => "mean",
        Some(2) => "cls",
        Some(3) => "lasttoken",
        Some(other) => return Err(metadata.error(&key, format!("{other} is unknown; 0 to 4 are known"))),
    };
    config.insert("gguf_pooling".into(), name.into());
    Ok(())
}

/// The metadata key of a field of the generated `config.json`.
pub(super) fn key_of(field: &str) -> Option<&'static str> {
    let own = INTEGERS.into_iter().chain(FLOATS).chain([("gguf_pooling", POOLING)]);
    own.into_iter().find(|(theirs, _)| *theirs == field).map(|(_, key)| key)
}
