//! A file's vocabulary as a `tokenizer.json`, and its other tokenizer keys as a `tokenizer_config.json`.
//!
//! ```text
//! model "gpt2"    tokens, merges, and the name of a split pattern ──► BPE over bytes
//! model "llama"   tokens, scores (SentencePiece)                  ──► BPE over characters with byte fallback
//! model "gemma4"  tokens, merges                                  ──► the same, newlines apart from what they separate
//! models "bert" and "t5": WordPiece and Unigram, in vocabularies.rs
//! ```
//!
//! SentencePiece joins the neighbours whose union has the best score. As a list of merges that is: every way to split
//! every token into two tokens, best score first. `transformers` converts such models by the same rule, so the ids
//! equal those of its `tokenizer.json`.
//!
//! Patterns are those of the models' own `tokenizer.json`; a name that is not in [`SPLITS`] is refused, because a wrong
//! pattern silently gives wrong tokens. `add_eos_token` is ignored: a prompt is to be continued.

use super::header::{Metadata, quoted};
use super::vocabularies;
use crate::files::LoadError;
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};

pub(super) const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Maximum bytes of a token of a SentencePiece model; the longest in use have about 100.
const MAX_PIECE_BYTES: usize = 256;
/// Maximum bytes of all tokens of a SentencePiece model; the largest vocabularies in use have 3 MB.
const MAX_PIECES_BYTES: usize = 16 << 20;

/// The pre-tokenizer.
enum Split {
    /// GPT-2's pattern (Radford et al., 2019).
    Gpt2,
    /// Each digit alone, then GPT-2's pattern.
    DigitsGpt2,
    /// Other patterns, applied one after the other: each splits the pieces of the previous ones.
    Patterns(&'static [&'static str]),
}

impl Split {
    /// Its definition in `tokenizer.json`.
    fn pre_tokenizer(&self) -> Value {
        match self {
            Split::Gpt2 => byte_level(true),
            Split::DigitsGpt2 => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true}, byte_level(true),
            ]}),
            Split::Patterns(patterns) => {
                let split = |pattern: &&str| -> Value {
                    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
                };
                let mut parts: Vec<Value> = patterns.iter().map(split).collect();
                parts.push(byte_level(false));
                json!({"type": "Sequence", "pretokenizers": parts})
            }
        }
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

/// ggml's name for the pre-tokenizer of a `tokenizer.json`. Among names with the same pattern and rule about merges,
/// one with this normalizer is preferred: ggml itself has no normalizer.
pub fn pattern_name(pre_tokenizer: &Value, normalizer: &Value, ignores_merges: bool) -> Option<&'static str> {
    // Offsets are not needed; without the field `use_regex`, the pattern is used.
    let shape = |value: &Value| {
        let mut value = value.clone();
        let parts = match value.get("pretokenizers").is_some() {
            true => value["pretokenizers"].as_array_mut().map(|parts| parts.iter_mut().collect()).unwrap_or_default(),
            false => vec![&mut value],
        };
        for part in parts.into_iter().filter_map(Value::as_object_mut) {
            part.remove("trim_offsets");
            if part.get("type").is_some_and(|kind| kind == "ByteLevel") {
                part.entry("use_regex").or_insert(true.into());
            }
        }
        value
    };
    let wanted = shape(pre_tokenizer);
    let names: Vec<_> = SPLITS
        .iter()
        .take(WRITTEN)
        .filter(|(_, split, _, ignores)| *ignores == ignores_merges && shape(&split.pre_tokenizer()) == wanted)
        .collect();
    let same = names.iter().find(|(_, _, normalizes, _)| *normalizes != normalizer.is_null());
    same.or(names.first()).map(|(name, ..)| *name)
}

/// GPT-4's pattern, digits in groups of three at most.
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4's pattern with each digit alone.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const LLAMA3: Split = Split::Patterns(&[CL100K]);
const QWEN: Split = Split::Patterns(&[QWEN2]);
/// Qwen2's pattern with combining marks beside the letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words end before a capital after a small letter; each digit alone.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Tekken's pattern with `'s` and similar endings as part of words, and digits in groups of three at most.
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// o200k's pattern with runs of Chinese characters in pieces of their own.
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DEEPSEEK_CODER: [&str; 5] =
    [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+", r"\p{N}"];
/// Cased letters of the Unicode version at the time of the model; a number is one piece.
const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\
     \u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\
     \u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\
     \u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\
     \u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\
     \u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\
     \u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\
     \u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\
     \u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\
     \u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\
     \u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\
     \u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\
     \u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
    r"\s+$",
    "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
    r"\p{N}+",
];
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
const MINICPM5: [&str; 2] = [
    r"\p{N}{1,3}",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const FALCON: [&str; 3] = [r"[\p{P}$+<=>\^~|`]+", GPT2, "[0-9][0-9][0-9]"];
/// ggml's patterns for the name `default`.
const DEFAULT: [&str; 4] = [r"[\p{P}$+<=>\^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

/// The first `WRITTEN` names of [`SPLITS`] are also written to files; the others are only read.
const WRITTEN: usize = 11;
/// `tokenizer.ggml.pre`: the pattern; whether text is normalized (NFC), which ggml itself never does; whether a word
/// that is a token is not merged (`ignore_merges`). Names whose patterns look around (`tiny_aya`, `superbpe`, `jais-2`)
/// and those of unsupported architectures are unknown.
const SPLITS: &[(&str, Split, bool, bool)] = &[
    ("gpt-2", Split::Gpt2, false, false),
    ("llama-bpe", LLAMA3, false, true),
    ("llama3", LLAMA3, false, true),
    ("llama-v3", LLAMA3, false, true),
    ("smaug-bpe", LLAMA3, false, true),
    ("dbrx", LLAMA3, false, false),
    ("qwen2", QWEN, true, false),
    ("deepseek-r1-qwen", QWEN, true, false),
    ("smollm", Split::DigitsGpt2, false, false),
    ("starcoder", Split::DigitsGpt2, false, false),
    ("refact", Split::DigitsGpt2, false, false),
    ("falcon3", LLAMA3, false, true),
    ("falcon-h1", LLAMA3, false, true),
    ("pixtral", LLAMA3, false, true),
    ("midm-2.0", LLAMA3, false, true),
    ("lfm2", LLAMA3, false, true),
    ("jina-v5-nano", LLAMA3, false, true),
    ("glm4", LLAMA3, false, false),
    ("chatglm-bpe", LLAMA3, false, false),
    ("stablelm2", QWEN, false, false),
    ("megrez", QWEN, false, false),
    ("kormo", QWEN, false, false),
    ("f2llmv2", QWEN, false, false),
    ("hunyuan", QWEN, false, false),
    ("solar-open", QWEN, false, false),
    ("grok-2", QWEN, false, false),
    ("phi-2", Split::Gpt2, false, false),
    ("mpt", Split::Gpt2, false, false),
    ("roberta-bpe", Split::Gpt2, false, false),
    ("modern-bert", Split::Gpt2, true, false),
    ("olmo", Split::Gpt2, false, false),
    ("jais", Split::Gpt2, false, false),
    ("gigachat", Split::Gpt2, false, false),
    ("a.x-4.0", Split::Gpt2, false, false),
    ("mellum", Split::Gpt2, false, false),
    ("exaone4", Split::Gpt2, false, false),
    ("trillion", Split::Gpt2, false, false),
    ("granite-docling", Split::Gpt2, false, false),
    ("command-r", Split::DigitsGpt2, false, false),
    ("codeshell", Split::DigitsGpt2, false, false),
    ("exaone", Split::DigitsGpt2, false, false),
    ("minerva-7b", Split::DigitsGpt2, false, false),
    ("mellum2", Split::DigitsGpt2, false, false),
    ("tekken", Split::Patterns(&[TEKKEN]), false, true),
    ("gpt-4o", Split::Patterns(&[O200K]), false, true),
    ("llama4", Split::Patterns(&[O200K]), false, true),
    ("kanana2", Split::Patterns(&[O200K]), false, false),
    ("minimax-m2", Split::Patterns(&[O200K]), false, false),
    ("qwen35", Split::Patterns(&[QWEN35]), true, false),
    ("kimi-k2", Split::Patterns(&[KIMI]), false, true),
    ("seed-coder", Split::Patterns(&[SEED_CODER]), false, false),
    ("deepseek-llm", Split::Patterns(&DEEPSEEK_LLM), false, false),
    ("deepseek-coder", Split::Patterns(&DEEPSEEK_CODER), false, false),
    ("deepseek-v3", Split::Patterns(&DEEPSEEK_V3), false, false),
    ("hunyuan-dense", Split::Patterns(&DEEPSEEK_V3), false, false),
    ("joyai-llm", Split::Patterns(&DEEPSEEK_V3), false, false),
    ("minicpm5", Split::Patterns(&MINICPM5), false, true),
    ("falcon", Split::Patterns(&FALCON), false, false),
    ("default", Split::Patterns(&DEFAULT), false, false),
];

/// Names of [`SPLITS`] for which `add_bos_token` defaults to true.
const ADDS_BOS: [&str; 10] = [
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
];

/// Types of tokens, as numbered in the format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    /// A special token: `<|im_end|>`.
    Control,
    /// An added token that is not special.
    UserDefined,
    Unused,
    Byte,
}

/// The vocabulary: texts and types by id.
pub(super) struct Vocabulary<'m> {
    pub(super) tokens: Vec<&'m str>,
    pub(super) types: Vec<TokenType>,
}

impl<'m> Vocabulary<'m> {
    pub(super) fn read(metadata: &'m Metadata) -> Result<Vocabulary<'m>, LoadError> {
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.error(TOKENS, "missing"))?;
        let types = match metadata.floats(TYPES)? {
            None => vec![TokenType::Normal; tokens.len()],
            Some(types) if types.len() != tokens.len() => {
                let problem = format!("{} types for {} tokens", types.len(), tokens.len());
                return Err(metadata.error(TYPES, problem));
            }
            Some(types) => {
                let parse = |number: f64| match number as i64 {
                    1 => Ok(TokenType::Normal),
                    2 => Ok(TokenType::Unknown),
                    3 => Ok(TokenType::Control),
                    4 => Ok(TokenType::UserDefined),
                    5 => Ok(TokenType::Unused),
                    6 => Ok(TokenType::Byte),
                    _ => Err(metadata.error(TYPES, format!("type {number} is not known"))),
                };
                types.into_iter().map(parse).collect::<Result<_, _>>()?
            }
        };
        Ok(Vocabulary { tokens, types })
    }

    /// Ids with a token. A converter fills unassigned ids with names like `[PAD7]`.
    pub(super) fn ids(&self) -> impl Iterator<Item = usize> {
        (0..self.tokens.len())
            .filter(|&id| self.types[id] != TokenType::Unused || self.tokens[id] != format!("[PAD{id}]"))
    }

    /// `model.vocab`: ids by text.
    fn map(&self, metadata: &Metadata) -> Result<Map<String, Value>, LoadError> {
        self.map_by(metadata, &|id| self.tokens[id].to_string())
    }

    /// The same by texts that the file has in another form.
    pub(super) fn map_by(
        &self,
        metadata: &Metadata,
        text: &dyn Fn(usize) -> String,
    ) -> Result<Map<String, Value>, LoadError> {
        let mut map = Map::new();
        for id in self.ids() {
            if map.insert(text(id), id.into()).is_some() {
                let problem = format!("token {} occurs twice, the second time as {id}", quoted(self.tokens[id]));
                return Err(metadata.error(TOKENS, problem));
            }
        }
        Ok(map)
    }

    /// `added_tokens`.
    pub(super) fn added(&self) -> Vec<Value> {
        let added = self.ids().filter_map(|id| match self.types[id] {
            TokenType::Control | TokenType::Unknown => Some((id, true)),
            TokenType::UserDefined => Some((id, false)),
            _ => None,
        });
        let entry = |(id, special): (usize, bool)| {
            json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            })
        };
        added.map(entry).collect()
    }
}

/// The equivalent `tokenizer.json`.
pub(super) fn tokenizer_json(metadata: &Metadata) -> Result<String, LoadError> {
    let mut parts = match metadata.text(MODEL)? {
        Some("bert") => vocabularies::word_piece(metadata)?,
        Some("t5") => vocabularies::unigram(metadata)?,
        Some("gpt2") => bytes_bpe(metadata)?,
        Some("llama") => sentence_piece(metadata)?,
        Some("gemma4") => gemma4(metadata)?,
        Some(other) => {
            let problem = format!("{} is unsupported; gpt2, llama, gemma4, bert and t5 are supported", quoted(other));
            return Err(metadata.error(MODEL, problem));
        }
        None => return Err(metadata.error(MODEL, "missing: the file has no tokenizer")),
    };
    if parts.get("post_processor").is_none() {
        parts["post_processor"] = vocabularies::around_texts(metadata)?;
    }
    Ok(parts.to_string())
}

fn bytes_bpe(metadata: &Metadata) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let Some(name) = metadata.text(PRE)? else {
        let problem =
            "missing, so the split pattern is unknown; convert the model again with a converter of 2024 or later";
        return Err(metadata.error(PRE, problem));
    };
    let Some((_, split, normalize, ignore_merges)) = SPLITS.iter().find(|(known, ..)| *known == name) else {
        // A list of all known names would hide the rest of the line.
        let problem = format!(
            "{} is not one of the {} known split patterns; load the model's safetensors files instead",
            quoted(name),
            SPLITS.len()
        );
        return Err(metadata.error(PRE, problem));
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": normalize.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": split.pre_tokenizer(),
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
            "vocab": vocabulary.map(metadata)?, "merges": stated_merges(metadata, &vocabulary)?,
        },
    }))
}

/// The merges that a file lists, each of two tokens to a third.
fn stated_merges(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Vec<Value>, LoadError> {
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.error(MERGES, "missing"))?;
    let tokens: HashSet<&str> = vocabulary.tokens.iter().copied().collect();
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        // Neither half contains a space: the alphabets write it as another character.
        let pair = merge.split_once(' ').filter(|(a, b)| {
            let whole = [*a, *b].concat();
            tokens.contains(a) && tokens.contains(b) && tokens.contains(whole.as_str())
        });
        let (left, right) = pair.ok_or_else(|| {
            metadata.error(MERGES, format!("entry {index}, {}, does not join two tokens to a third", quoted(merge)))
        })?;
        pairs.push(json!([left, right]));
    }
    Ok(pairs)
}

/// Gemma 4's: spaces are written as another character, and runs of newlines are pieces of their own.
fn gemma4(metadata: &Metadata) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let unknown = vocabulary.types.iter().position(|kind| *kind == TokenType::Unknown);
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": spaces(),
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": "[^\n]+|[\n]+"}, "behavior": "Isolated", "invert": false,
        },
        "decoder": {"type": "Sequence", "decoders": decoders()},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown.map(|id| vocabulary.tokens[id]),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": vocabulary.types.contains(&TokenType::Byte), "ignore_merges": false,
            "vocab": vocabulary.map(metadata)?, "merges": stated_merges(metadata, &vocabulary)?,
        },
    }))
}

/// SentencePiece's character for a space.
fn spaces() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})
}

/// From SentencePiece's tokens back to text.
fn decoders() -> Vec<Value> {
    vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ]
}

fn sentence_piece(metadata: &Metadata) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.error(SCORES, "missing"))?;
    if scores.len() != vocabulary.tokens.len() {
        let problem = format!("{} scores for {} tokens", scores.len(), vocabulary.tokens.len());
        return Err(metadata.error(SCORES, problem));
    }
    let merges = merges_of_scores(metadata, &vocabulary, &scores)?;
    let prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let normalizer = match prefix {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, spaces()]}),
        false => spaces(),
    };
    let mut decoders = decoders();
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = match metadata.integer("tokenizer.ggml.unknown_token_id")? {
        Some(id) => Some(id as usize),
        None => vocabulary.types.iter().position(|kind| *kind == TokenType::Unknown),
    };
    let unknown = unknown.and_then(|id| vocabulary.tokens.get(id));
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": vocabulary.types.contains(&TokenType::Byte),
            "ignore_merges": false, "vocab": vocabulary.map(metadata)?, "merges": merges,
        },
    }))
}

/// Every way to split a token into two tokens, in SentencePiece's order of preference for the whole.
fn merges_of_scores(metadata: &Metadata, vocabulary: &Vocabulary<'_>, scores: &[f64]) -> Result<Vec<Value>, LoadError> {
    let total: usize = vocabulary.tokens.iter().map(|token| token.len()).sum();
    if total > MAX_PIECES_BYTES {
        return Err(metadata.error(TOKENS, format!("{total} bytes of text; at most {MAX_PIECES_BYTES}")));
    }
    let is_piece = |id: &usize| matches!(vocabulary.types[*id], TokenType::Normal | TokenType::Unused);
    let ids: HashMap<&str, usize> = vocabulary.ids().filter(is_piece).map(|id| (vocabulary.tokens[id], id)).collect();
    let mut merges = Vec::new();
    for id in vocabulary.ids().filter(is_piece) {
        let token = vocabulary.tokens[id];
        if token.len() > MAX_PIECE_BYTES {
            let problem = format!("token {id} has {} bytes; at most {MAX_PIECE_BYTES}", token.len());
            return Err(metadata.error(TOKENS, problem));
        }
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        merges.extend(cuts.filter_map(|(left, right)| Some((id, *ids.get(left)?, *ids.get(right)?))));
    }
    let length = |id: usize| vocabulary.tokens[id].chars().count();
    // Ties as in transformers: longer halves first, then by the ids of whole and halves.
    merges.sort_by(|a, b| {
        let by_score = scores[b.0].total_cmp(&scores[a.0]);
        by_score.then_with(|| (length(b.1), length(b.2)).cmp(&(length(a.1), length(a.2)))).then_with(|| a.cmp(b))
    });
    let pair = |(_, left, right): (usize, usize, usize)| json!([vocabulary.tokens[left], vocabulary.tokens[right]]);
    Ok(merges.into_iter().map(pair).collect())
}

/// Ids of bos and eos. A file names one eos, rarely two; the end-of-turn tokens of chat models are recognized by their
/// texts. Where answers are several messages (gpt-oss), `<|end|>` ends one of them, and other tokens the answer.
pub(super) fn bos_and_eos(metadata: &Metadata) -> Result<(Vec<u64>, Vec<u64>), LoadError> {
    const ENDS: [&str; 9] = [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|end_of_role|>",
    ];
    const OF_MESSAGES: [&str; 3] = ["<|return|>", "<|call|>", "<|endoftext|>"];
    let bos = metadata.integer("tokenizer.ggml.bos_token_id")?;
    let mut eos = BTreeSet::new();
    for name in ["eos", "eot", "eom"] {
        eos.extend(metadata.integer(&format!("tokenizer.ggml.{name}_token_id"))?);
    }
    if metadata.has(TOKENS) {
        let vocabulary = Vocabulary::read(metadata)?;
        let control = || vocabulary.ids().filter(|&id| vocabulary.types[id] == TokenType::Control);
        let has = |name: &str| control().any(|id| vocabulary.tokens[id] == name);
        let ends = if has(OF_MESSAGES[0]) && has(OF_MESSAGES[1]) { &OF_MESSAGES[..] } else { &ENDS };
        eos.extend(control().filter(|&id| ends.contains(&vocabulary.tokens[id])).map(|id| id as u64));
    }
    Ok((bos.into_iter().collect(), eos.into_iter().collect()))
}

/// The equivalent `tokenizer_config.json`.
pub(super) fn tokenizer_config_json(metadata: &Metadata) -> Result<Value, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let mut settings = Map::new();
    for (field, name) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = metadata.integer(&key)? else { continue };
        let token = usize::try_from(id)
            .ok()
            .and_then(|id| vocabulary.tokens.get(id))
            .ok_or_else(|| metadata.error(&key, format!("{id}, but there are {} tokens", vocabulary.tokens.len())))?;
        settings.insert(field.into(), (*token).into());
    }
    let add_bos = match metadata.flag("tokenizer.ggml.add_bos_token")? {
        Some(stated) => stated,
        // ggml's default.
        None => {
            metadata.text(MODEL)?.is_some_and(|model| model == "llama" || model == "gemma4")
                || metadata.text(PRE)?.is_some_and(|name| ADDS_BOS.contains(&name))
        }
    };
    // What embedders put around a text, the tokenizer does.
    let adds_by_itself = !vocabularies::around_texts(metadata)?.is_null();
    settings.insert("add_bos_token".into(), (add_bos && !adds_by_itself).into());
    let mut templates = Vec::new();
    if let Some(template) = metadata.text(TEMPLATE)? {
        templates.push(json!({"name": "default", "template": template}));
    }
    for name in metadata.texts("tokenizer.chat_templates")?.unwrap_or_default() {
        if let Some(template) = metadata.text(&format!("{TEMPLATE}.{name}"))? {
            templates.push(json!({"name": name, "template": template}));
        }
    }
    if !templates.is_empty() {
        settings.insert("chat_template".into(), templates.into());
    }
    Ok(Value::Object(settings))
}

/// The metadata key of a field of the generated texts, for messages.
pub(super) fn key_of(field: &str) -> String {
    let key = match field.split(['.', '[', ' ']).next().unwrap_or(field) {
        "chat_template" => TEMPLATE,
        "added_tokens" | "id" => TOKENS,
        "model" if field == "model.vocab" => TOKENS,
        "model" => MODEL,
        "pre_tokenizer" => PRE,
        _ => field,
    };
    key.to_string()
}
