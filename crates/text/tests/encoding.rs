//! Encoding piece by piece gives the ids that the `tokenizers` crate gives for the whole text.
//!
//! One `check` for all: a tokenizer, texts that are hard on tokenizers, and three ways to encode. The tokenizers are
//! the committed ones, and copies of them with every stage that is written again here in their place.

use std::sync::LazyLock;

use checkpoint::{Checkpoint, Source};
use proptest::prelude::*;
use serde_json::{Value, json};
use text::tokenizer::Tokenizer;

const BYTE_LEVEL: &str = include_str!("data/byte_level.json");
const BYTE_FALLBACK: &str = include_str!("data/byte_fallback.json");
const METASPACE: &str = include_str!("data/metaspace.json");
const GEMMA: &str = include_str!("data/gemma.json");

/// Patterns of models in use: GPT-4 and Llama 3, Qwen, GPT-4o, Tekken, DeepSeek.
const PATTERNS: [&str; 6] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
    r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// A tokenizer here and in the crate.
struct Both {
    name: String,
    ours: Tokenizer,
    whole: tokenizers::Tokenizer,
    plain: tokenizers::Tokenizer,
}

impl Both {
    fn new(name: impl Into<String>, json: &str) -> Both {
        let name = name.into();
        let ours = Tokenizer::from_json(json, None, None, 1 << 20).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut whole: tokenizers::Tokenizer = json.parse().expect("the crate reads it");
        whole.with_truncation(None).expect("no truncation").with_padding(None);
        let mut plain = whole.clone();
        plain.set_encode_special_tokens(true);
        Both { name, ours, whole, plain }
    }

    fn check(&self, text: &str) {
        let start: String = text.chars().take(60).collect();
        for add_special in [false, true] {
            let expected = self.whole.encode_fast(text, add_special).expect("the crate encodes it");
            let got =
                self.ours.encode(text, add_special).unwrap_or_else(|error| panic!("{} {start:?}: {error}", self.name));
            assert!(
                got == expected.get_ids(),
                "{} {start:?}: {got:?}, the crate says {:?}",
                self.name,
                expected.get_ids()
            );
        }
        // Ids and their text get the same special tokens around them.
        let bare = self.ours.encode(text, false).expect("encodes");
        assert_eq!(self.ours.with_special_tokens(&bare), self.ours.encode(text, true), "{} {start:?}", self.name);
        let expected = self.plain.encode_fast(text, false).expect("the crate encodes it");
        let got = self.ours.encode_plain(text).expect("encodes");
        assert!(got == expected.get_ids(), "{} plain {start:?}: {got:?}, not {:?}", self.name, expected.get_ids());
    }
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).expect("JSON")
}

fn changed(json: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut value = parsed(json);
    change(&mut value);
    value.to_string()
}

/// Added tokens with every rule that they may have; `id`s follow the vocabulary.
fn with_added_tokens(json: &str) -> String {
    changed(json, |t| {
        let tokens = t["added_tokens"].as_array_mut().expect("a list");
        let first = 1 + tokens.iter().map(|token| token["id"].as_u64().expect("an id")).max().unwrap_or(0);
        let ids = parsed(json)["model"]["vocab"].clone();
        let most = match &ids {
            Value::Object(map) => map.values().filter_map(Value::as_u64).max().unwrap_or(0),
            Value::Array(list) => list.len() as u64,
            _ => 0,
        };
        let rules = [
            ("<left>", "lstrip", false),
            ("<right>", "rstrip", false),
            ("word", "single_word", false),
            ("<n>", "normalized", false),
            ("Ångström", "normalized", false),
            ("<special word>", "single_word", true),
            ("a b", "", false),
            ("  ", "rstrip", false),
        ];
        for (at, (content, rule, special)) in rules.into_iter().enumerate() {
            let mut token = json!({"id": first.max(most + 1) + at as u64, "content": content, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": special});
            if !rule.is_empty() {
                token[rule] = true.into();
            }
            tokens.push(token);
        }
    })
}

fn split(pattern: Value, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
}

fn sequence(parts: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts})
}

fn families() -> &'static [Both] {
    static FAMILIES: LazyLock<Vec<Both>> = LazyLock::new(|| {
        let mut all = vec![
            Both::new("byte level", BYTE_LEVEL),
            Both::new("byte fallback", BYTE_FALLBACK),
            Both::new("metaspace", METASPACE),
            Both::new("gemma", GEMMA),
        ];
        for (name, json) in [("byte level", BYTE_LEVEL), ("byte fallback", BYTE_FALLBACK), ("gemma", GEMMA)] {
            all.push(Both::new(format!("{name}, added tokens"), &with_added_tokens(json)));
        }
        let bytes = |regex: bool, space: bool| json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true, "use_regex": regex});
        let digits = |individual: bool| json!({"type": "Digits", "individual_digits": individual});
        let mut splits = vec![
            ("gpt-2".to_string(), bytes(true, false)),
            ("gpt-2 with a prefix".to_string(), bytes(true, true)),
            ("bytes alone".to_string(), bytes(false, false)),
            ("digits one by one".to_string(), sequence(&[digits(true), bytes(true, false)])),
            ("digits together".to_string(), sequence(&[digits(false), bytes(true, true)])),
        ];
        for (at, pattern) in PATTERNS.iter().enumerate() {
            let cut = split(json!({ "Regex": pattern }), "Isolated", false);
            splits.push((format!("pattern {at}"), sequence(&[cut, bytes(false, false)])));
        }
        let deepseek = [PATTERNS[4], "[一-龥぀-ゟ゠-ヿ]+", PATTERNS[5]];
        let mut stages: Vec<Value> =
            deepseek.iter().map(|pattern| split(json!({ "Regex": pattern }), "Isolated", false)).collect();
        stages.push(bytes(false, false));
        splits.push(("deepseek".to_string(), sequence(&stages)));
        for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"] {
            for invert in [false, true] {
                for pattern in [json!({"String": " "}), json!({"Regex": "[a-m0-4]"}), json!({"Regex": "\\s+|é"})] {
                    let name = format!("{behavior} {invert} {pattern}");
                    splits.push((name, sequence(&[split(pattern, behavior, invert), bytes(false, false)])));
                }
            }
        }
        for (name, stages) in splits {
            for ignore_merges in [false, true] {
                let json = changed(BYTE_LEVEL, |t| {
                    t["pre_tokenizer"] = stages.clone();
                    t["model"]["ignore_merges"] = ignore_merges.into();
                });
                all.push(Both::new(format!("{name}, words first: {ignore_merges}"), &json));
            }
        }
        for scheme in ["always", "first", "never"] {
            for cut in [false, true] {
                let json = changed(BYTE_FALLBACK, |t| {
                    t["normalizer"] = Value::Null;
                    t["pre_tokenizer"] =
                        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut});
                });
                all.push(Both::new(format!("metaspace {scheme} {cut}"), &with_added_tokens(&json)));
            }
        }
        let normalizers = [
            json!({"type": "NFD"}),
            json!({"type": "NFKC"}),
            json!({"type": "NFKD"}),
            json!({"type": "Lowercase"}),
            json!({"type": "Replace", "pattern": {"String": "aa"}, "content": "a"}),
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "xyz"}]}),
            // Left to the crate.
            json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": "_"}),
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        ];
        for normalizer in normalizers {
            let json = changed(BYTE_LEVEL, |t| t["normalizer"] = normalizer.clone());
            all.push(Both::new(format!("{normalizer}"), &with_added_tokens(&json)));
        }
        for (unk, fuse, bytes) in [("u", true, false), ("u", false, false), ("u", true, true), ("", false, false)] {
            let json = changed(BYTE_FALLBACK, |t| {
                t["model"]["unk_token"] = if unk.is_empty() { Value::Null } else { unk.into() };
                t["model"]["fuse_unk"] = fuse.into();
                t["model"]["byte_fallback"] = bytes.into();
                let vocab = t["model"]["vocab"].as_object_mut().expect("a map");
                // Some bytes have no token, so that some characters are unknown.
                let gone = vocab.shift_remove("<0xE3>").expect("a byte");
                vocab.insert("\u{10FFFF}".into(), gone);
            });
            all.push(Both::new(format!("unknown {unk:?} {fuse} {bytes}"), &json));
        }
        all
    });
    &FAMILIES
}

const ALPHABET: [&str; 40] = [
    "a",
    "e",
    "lamp",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "1",
    "23",
    "0",
    "é",
    "e\u{301}",
    "\u{301}",
    "日",
    "本",
    "ア",
    "한",
    "\u{1112}\u{1161}\u{11AB}",
    "🦊",
    "👩\u{200D}👩",
    "\u{FE0F}",
    "'s",
    "'LL",
    "<|im_end|>",
    "<|im",
    "<left>",
    "<right>",
    "word",
    "<special word>",
    "Ångström",
    "A\u{30a}",
    "a b",
    "▁",
    "_",
    "!",
    "...",
    "/",
    "\u{2003}",
    "\u{3000}",
];

/// Long runs of every class, and mixtures in which stages meet.
fn hard_texts(long: usize) -> Vec<String> {
    let mut texts: Vec<String> = ALPHABET.iter().map(|unit| unit.repeat(1 + long / unit.len())).collect();
    for (at, unit) in ALPHABET.iter().enumerate() {
        let other = ALPHABET[(at * 7 + 3) % ALPHABET.len()];
        texts.push([*unit, other].concat().repeat(long / 8));
        texts.push(format!("{}{other}", unit.repeat(33)));
        texts.push(format!("{other}{}", unit.repeat(34)));
    }
    texts.push(String::new());
    texts
}

#[test]
fn pieces_encode_as_the_whole_does() {
    for both in families() {
        for text in testing::part_of(hard_texts(300), 5) {
            both.check(&text);
        }
    }
}

/// Cuts inside a piece are looked for in long ones only, and the memory of long ones is not kept.
#[test]
fn long_pieces_encode_as_the_whole_does() {
    let long = 40_000;
    let texts = ["lamp".repeat(long / 4), "0123456789".repeat(long / 10), "the lamp in the harbour ".repeat(long / 24)];
    for (name, json) in [("byte level", BYTE_LEVEL), ("byte fallback", BYTE_FALLBACK), ("gemma", GEMMA)] {
        let both = Both::new(name, json);
        for text in texts.iter().chain(testing::part_of(&hard_texts(long)[..20], 3)) {
            both.check(text);
        }
    }
}

#[test]
fn the_committed_tokenizers_encode_as_the_whole_does() {
    let lantern = include_str!("../../../models/lantern/tokenizer.json");
    let mut all = vec![Both::new("lantern", lantern)];
    for file in ["bpe.gguf", "spm.gguf"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/gguf").join(file);
        let checkpoint = Checkpoint::open(Source::at(path)).expect("opens");
        let json = checkpoint.read_text("tokenizer.json").expect("reads").expect("has one");
        all.push(Both::new(file, &json));
    }
    for both in &all {
        for text in testing::part_of(hard_texts(300), 3) {
            both.check(&text);
        }
    }
}

#[test]
fn only_what_the_crate_alone_can_do_is_limited() {
    let long = "lamp ".repeat(10_000);
    let error = |both: &'static Both| Some((both.name.as_str(), both.ours.encode(&long, false).err()?));
    let limited: Vec<_> = families().iter().filter_map(error).collect();
    assert_eq!(limited.len(), 2, "{limited:?}");
    // Both have added tokens that look back.
    assert_eq!(
        limited[0].1.to_string(),
        "the text has 50000 bytes; this model's tokenizer takes at most 32768 at once"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if testing::is_long() { 256 } else { 24 }, ..ProptestConfig::default() })]

    #[test]
    fn any_text_encodes_as_the_whole_does(units in prop::collection::vec(0..ALPHABET.len(), 0..40), noise in ".{0,20}") {
        let text: String = units.iter().map(|&unit| ALPHABET[unit]).chain([noise.as_str()]).collect();
        for both in families() {
            both.check(&text);
        }
    }
}
