//! Encoders in GGUF: their settings, the names of their tensors, WordPiece and Unigram vocabularies.
//!
//! ```text
//! bert             BERT; RoBERTa and XLM-RoBERTa, whose first positions are cut off the table
//! nomic-bert       the same with rotations and a gated MLP           modern-bert   ModernBERT
//! gemma-embedding  Gemma 3, of which rows see later ones: names and settings are the decoder's, but for what is here
//!
//! tokens "bert":  ▁word, ending  ──►  word, ##ending      tokens "t5": pieces and scores, a map of characters
//! ```
//! `pooling_type` says what a vector is, and vectors have length 1, as ggml's programs make them.

use super::Gguf;
use super::header::{Metadata, quoted};
use super::tokenizer::{MODEL, SCORES, TOKENS, TokenType, Vocabulary};
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
const POOLING: &str = "pooling_type";

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

/// The equivalent `config.json` of an encoder with layers of its own; `None` for other models.
pub(super) fn config(gguf: &Gguf) -> Result<Option<Map<String, Value>>, LoadError> {
    let (metadata, architecture) = (&gguf.metadata, gguf.architecture()?);
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
    let rows = |name: &str| Some(*gguf.tensor(name)?.1.shape.first()?);
    config.insert("vocab_size".into(), json!(rows("token_embd.weight")));
    if let Some(types) = gguf.tensor("token_types.weight") {
        // A table of one row may be a vector.
        let rows = if types.1.shape.len() < 2 { 1 } else { types.1.shape[0] };
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
    add_pooling(gguf, architecture, &mut config)?;
    Ok(Some(config))
}

/// How rows become a vector, if the file says so, and the products behind that.
pub(super) fn add_pooling(gguf: &Gguf, architecture: &str, config: &mut Map<String, Value>) -> Result<(), LoadError> {
    let metadata = &gguf.metadata;
    let dense = ["dense_2", "dense_3"].into_iter().filter_map(|name| {
        let &[outputs, inputs] = gguf.tensor(&format!("{name}.weight"))?.1.shape.as_slice() else { return None };
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

/// WordPiece, as BERT has it.
pub(super) fn word_piece(metadata: &Metadata) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let text = |id: usize| {
        let token = vocabulary.tokens[id];
        let is_special = vocabulary.types[id] != TokenType::Normal
            || token.len() > 2 && token.starts_with('[') && token.ends_with(']');
        match token.strip_prefix('\u{2581}') {
            Some(word) => word.to_string(),
            None if is_special => token.to_string(),
            None => format!("##{token}"),
        }
    };
    // Of files that do not say: no word of a vocabulary without capitals has one.
    let has_capital = |id: usize| {
        vocabulary.types[id] == TokenType::Normal && text(id).starts_with(|first: char| first.is_ascii_uppercase())
    };
    let lowercase = match metadata.flag("tokenizer.ggml.normalizer.lowercase")? {
        Some(stated) => stated,
        None => !vocabulary.ids().any(has_capital),
    };
    let strip_accents = metadata.flag("tokenizer.ggml.normalizer.strip_accents")?;
    let map = vocabulary.map_by(metadata, &text)?;
    let unknown = metadata.integer("tokenizer.ggml.unknown_token_id")?.map(|id| id as usize);
    let unknown = unknown.filter(|&id| id < vocabulary.tokens.len()).map_or("[UNK]".to_string(), text);
    if !map.contains_key(&unknown) {
        return Err(metadata.error(TOKENS, format!("no token {} for what is unknown", quoted(&unknown))));
    }
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": strip_accents, "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around(metadata, &vocabulary, false)?,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": map,
        },
    }))
}

/// Unigram (Kudo, 2018), as XLM-RoBERTa has it.
pub(super) fn unigram(metadata: &Metadata) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.error(SCORES, "missing"))?;
    if scores.len() != vocabulary.tokens.len() {
        let problem = format!("{} scores for {} tokens", scores.len(), vocabulary.tokens.len());
        return Err(metadata.error(SCORES, problem));
    }
    let is_filled = |id: usize| vocabulary.types[id] == TokenType::Unused;
    // The least score decides what an unknown character costs: of ids without a token it is no part.
    let least = (0..scores.len()).filter(|&id| !is_filled(id)).map(|id| scores[id]).fold(0.0, f64::min);
    let piece = |id: usize| json!([vocabulary.tokens[id], if is_filled(id) { least } else { scores[id] }]);
    let unknown = vocabulary.types.iter().position(|kind| *kind == TokenType::Unknown);
    let characters = metadata.floats("tokenizer.ggml.precompiled_charsmap")?;
    let characters = characters.map(|bytes| {
        // Bytes, signed or not.
        let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as i64 as u8).collect();
        json!({"type": "Precompiled", "precompiled_charsmap": base64(&bytes)})
    });
    let spaces = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": characters,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]},
        "post_processor": around(metadata, &vocabulary, true)?,
        "decoder": spaces,
        "model": {
            "type": "Unigram", "unk_id": unknown, "byte_fallback": false,
            "vocab": (0..scores.len()).map(piece).collect::<Vec<_>>(),
        },
    }))
}

/// What an embedder's tokenizer puts around a text; null for models that continue texts.
pub(super) fn around_texts(metadata: &Metadata) -> Result<Value, LoadError> {
    let architecture = metadata.text("general.architecture")?.unwrap_or_default();
    let is_encoder = ARCHITECTURES.iter().any(|(name, _)| *name == architecture);
    match is_encoder || metadata.integer(&format!("{architecture}.{POOLING}"))?.is_some_and(|kind| kind > 0) {
        true => around(metadata, &Vocabulary::read(metadata)?, false),
        false => Ok(Value::Null),
    }
}

/// Before a text, between two and behind: the first and last token of the file, if it adds them.
fn around(metadata: &Metadata, vocabulary: &Vocabulary<'_>, is_roberta: bool) -> Result<Value, LoadError> {
    let adds_by_itself = metadata.text(MODEL)?.is_some_and(|model| model == "bert" || model == "t5");
    let token = |names: [&str; 2], flag: &str, usual: &str, by_itself: bool| -> Result<Option<usize>, LoadError> {
        if !metadata.flag(flag)?.unwrap_or(by_itself) {
            return Ok(None);
        }
        for name in names {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match metadata.integer(&key)? {
                Some(id) if (id as usize) < vocabulary.tokens.len() => return Ok(Some(id as usize)),
                Some(id) => {
                    let problem = format!("{id}, but there are {} tokens", vocabulary.tokens.len());
                    return Err(metadata.error(&key, problem));
                }
                None => {}
            }
        }
        Ok(vocabulary.tokens.iter().position(|token| *token == usual))
    };
    let is_llama = metadata.text(MODEL)? == Some("llama");
    let first = token(["cls", "bos"], "tokenizer.ggml.add_bos_token", "[CLS]", adds_by_itself || is_llama)?;
    let last = token(["seperator", "eos"], "tokenizer.ggml.add_eos_token", "[SEP]", adds_by_itself)?;
    let special = |id: usize, part: u32| json!({"SpecialToken": {"id": vocabulary.tokens[id], "type_id": part}});
    let text = |name: &str, part: u32| json!({"Sequence": {"id": name, "type_id": part}});
    let part = |name: &str, part: u32, first: Option<usize>| -> Vec<Value> {
        let ends = [first, last].map(|id| id.map(|id| special(id, part)));
        let [before, behind] = ends;
        before.into_iter().chain([text(name, part)]).chain(behind).collect()
    };
    let single = part("A", 0, first);
    let second = if is_roberta { part("B", 0, last) } else { part("B", 1, None) };
    let entry = |id: usize| {
        let token = vocabulary.tokens[id];
        (token.to_string(), json!({"id": token, "ids": [id], "tokens": [token]}))
    };
    let specials: Map<String, Value> = [first, last].into_iter().flatten().map(entry).collect();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": single.iter().cloned().chain(second).collect::<Vec<_>>(),
        "special_tokens": specials,
    }))
}

/// The bytes in base64, as `tokenizer.json` has them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().chain(&[0, 0]).take(3).fold(0u32, |word, &byte| word << 8 | u32::from(byte));
        for digit in 0..4 {
            let value = word >> (18 - 6 * digit) & 63;
            text.push(if digit > three.len() { '=' } else { DIGITS[value as usize] as char });
        }
    }
    text
}
