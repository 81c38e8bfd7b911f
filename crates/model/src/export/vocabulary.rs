//! `tokenizer.json` as the settings of a GGUF file.
//!
//! ```text
//! model.vocab, added_tokens     tokenizer.ggml.tokens, token_type     ids without a token: [PAD7], unused
//! model.merges                  tokenizer.ggml.merges                 "a b"
//! pre_tokenizer                 tokenizer.ggml.pre                    by its pattern, which ggml knows under a name
//! post_processor                tokenizer.ggml.add_bos_token          by what it does to an empty text
//! ```
//! BPE over bytes only. A pattern without a name is refused: a wrong one gives wrong tokens without a word. ggml has no
//! normalizer for such models, so NFC, which some of them have, is lost: text that is in that form already gives the
//! same ids.

use super::ExportError;
use super::gguf::Settings;
use crate::config::ModelConfig;
use checkpoint::gguf::pattern_name;
use checkpoint::{Checkpoint, LoadError};
use serde_json::{Map, Value};
use text::tokenizer::Tokenizer;

const TOKENIZER: &str = "tokenizer.json";
const SETTINGS: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// Kinds of tokens, as the format numbers them.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Adds the tokenizer and the chat template.
pub(super) fn vocabulary(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    settings: &mut Settings,
) -> Result<(), ExportError> {
    let tokenizer = Tokenizer::load(checkpoint, config.vocab_size)?;
    let json = object(checkpoint, TOKENIZER)?;
    let model = &json["model"];
    let byte_level = json.get("pre_tokenizer").is_some_and(|pre| pre.to_string().contains("\"ByteLevel\""));
    if model["type"] != "BPE" || !byte_level {
        return Err(wrong("model", "not BPE over bytes, the only kind that is written as GGUF"));
    }
    let ignores_merges = model["ignore_merges"] == true;
    let Some(pre) = pattern_name(&json["pre_tokenizer"], &json["normalizer"], ignores_merges) else {
        return Err(wrong("pre_tokenizer", "ggml has no name for this pattern, so it cannot be written as GGUF"));
    };
    let (tokens, kinds) = tokens(&json, config.vocab_size)?;
    settings.text("tokenizer.ggml.model", "gpt2");
    settings.text("tokenizer.ggml.pre", pre);
    settings.texts("tokenizer.ggml.tokens", tokens.iter().map(String::as_str));
    settings.numbers("tokenizer.ggml.token_type", &kinds);
    let merges = merges(model)?;
    settings.texts("tokenizer.ggml.merges", merges.iter().map(String::as_str));

    let named = object(checkpoint, SETTINGS).unwrap_or_default();
    let id_of = |field: &str| {
        let name = named.get(field).and_then(|token| token.as_str().or(token["content"].as_str()))?;
        tokenizer.token_id(name)
    };
    let bos = tokenizer.bos_id().or(config.bos_token_ids.first().copied());
    let eos = tokenizer.eos_id().or(config.eos_token_ids.first().copied());
    for (name, id) in [("bos", bos), ("eos", eos), ("padding", id_of("pad_token")), ("unknown", id_of("unk_token"))] {
        if let Some(id) = id {
            settings.number(&format!("tokenizer.ggml.{name}_token_id"), id as usize)?;
        }
    }
    let empty = tokenizer.encode("", true).unwrap_or_default();
    settings.flag("tokenizer.ggml.add_bos_token", bos.is_some() && empty.first().copied() == bos);
    if let Some(template) = template(checkpoint, &named)? {
        settings.text("tokenizer.chat_template", &template);
    }
    Ok(())
}

fn wrong(field: &str, problem: &str) -> ExportError {
    LoadError::field(TOKENIZER, field, problem).into()
}

fn object(checkpoint: &Checkpoint, file: &str) -> Result<Map<String, Value>, ExportError> {
    let text = checkpoint.read_text(file)?.unwrap_or_default();
    serde_json::from_str(&text).map_err(|error| LoadError::field(file, "JSON", error).into())
}

/// Texts and kinds by id, `[vocab_size]`.
fn tokens(json: &Map<String, Value>, vocab_size: usize) -> Result<(Vec<String>, Vec<i32>), ExportError> {
    let mut tokens: Vec<String> = (0..vocab_size).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![UNUSED; vocab_size];
    let mut set = |id: Option<u64>, text: &str, kind| match id.map(|id| id as usize).filter(|id| *id < vocab_size) {
        Some(id) => {
            (tokens[id], kinds[id]) = (text.to_string(), kind);
            Ok(())
        }
        None => Err(wrong("model.vocab", "an id outside the model's vocabulary")),
    };
    for (text, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
        set(id.as_u64(), text, NORMAL)?;
    }
    for token in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
        set(token["id"].as_u64(), token["content"].as_str().unwrap_or_default(), kind)?;
    }
    Ok((tokens, kinds))
}

/// Merges as `a b`. `tokenizer.json` has them so, or as pairs.
fn merges(model: &Value) -> Result<Vec<String>, ExportError> {
    let merge = |merge: &Value| match merge {
        Value::String(text) => Some(text.clone()),
        Value::Array(pair) => Some(format!("{} {}", pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    };
    let merges: Option<Vec<String>> = model["merges"].as_array().into_iter().flatten().map(merge).collect();
    merges.ok_or_else(|| wrong("model.merges", "a merge is neither a text nor a pair of texts"))
}

/// The source of the template that serves unless another is asked for.
fn template(checkpoint: &Checkpoint, named: &Map<String, Value>) -> Result<Option<String>, ExportError> {
    if let Some(text) = checkpoint.read_text(TEMPLATE)? {
        return Ok(Some(text));
    }
    Ok(match named.get("chat_template") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(list)) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            default.and_then(|entry| entry["template"].as_str()).map(str::to_string)
        }
        _ => None,
    })
}
