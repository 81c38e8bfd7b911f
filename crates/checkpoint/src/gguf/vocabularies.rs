//! Vocabularies of encoders as the `tokenizer.json` that they were, and what stands around a text.
//!
//! ```text
//! tokens "bert":  ▁word, ending  ──►  word, ##ending      tokens "t5": pieces and scores, a map of characters
//! ```

use super::encoders::{ARCHITECTURES, POOLING};
use super::header::{Metadata, quoted};
use super::tokenizer::{MODEL, SCORES, TOKENS, TokenType, Vocabulary};
use crate::files::LoadError;
use serde_json::{Map, Value, json};

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
