//! Tokenizers from strangers: each ends in a tokenizer that works or in one line that names the field, in little time
//! and memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use text::tokenizer::Tokenizer;

const BYTE_LEVEL: &str = include_str!("data/byte_level.json");
const BYTE_FALLBACK: &str = include_str!("data/byte_fallback.json");
const METASPACE: &str = include_str!("data/metaspace.json");
const GEMMA: &str = include_str!("data/gemma.json");

const VOCAB: usize = 1000;
/// Thirty times what is promised: machines differ and have other work, and a bomb misses it by far more.
const LONGEST: Duration = Duration::from_secs(300);
const MOST_BYTES: u64 = 300 << 20;

/// The outcome of a file, after a text went through it: its error's text, if any.
fn outcome(json: &str) -> Option<String> {
    let start = Instant::now();
    let mut error = None;
    let memory = allocation_counter::measure(|| match Tokenizer::from_json(json, None, None, VOCAB) {
        Err(refused) => error = Some(refused.to_string()),
        Ok(tokenizer) => {
            for text in
                ["", "a", "The lamp, e\u{301} 日本 12 <|im_end|> word\r\n  ", &" lamp<unk>\u{FDFA}🦊".repeat(500)]
            {
                for ids in [tokenizer.encode(text, true), tokenizer.encode_plain(text)].into_iter().flatten() {
                    tokenizer.decode(&ids, true);
                }
            }
        }
    });
    let (time, bytes) = (start.elapsed(), memory.bytes_max);
    let head: String = json.chars().take(200).collect();
    assert!(time < LONGEST, "{time:?}: {head}");
    assert!(bytes < MOST_BYTES, "{} MiB: {head}", bytes >> 20);
    if let Some(error) = &error {
        assert!(!error.contains('\n') && error.len() < 1000, "{error}");
    }
    error
}

fn changed(json: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut value = serde_json::from_str(json).expect("JSON");
    change(&mut value);
    value.to_string()
}

fn charsmap(bytes: &[u8]) -> Value {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    json!({"type": "Precompiled", "precompiled_charsmap": text})
}

/// A character map with a table of one block, in which `unit` stands at the root.
fn table(unit: u32, texts: &str) -> Value {
    let mut bytes = 1024u32.to_le_bytes().to_vec();
    bytes.extend(unit.to_le_bytes());
    bytes.extend([0; 1020]);
    bytes.extend(texts.as_bytes());
    charsmap(&bytes)
}

#[test]
fn bombs_are_refused_by_field() {
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let nested = |depth: usize| (0..depth).fold(json!({"type": "NFC"}), |inner, _| sequence(vec![inner]));
    let normalizers = [
        ("size of a table", charsmap(&[0xFF, 0xFF, 0xFF, 0x7F]), "a table of 2147483647 bytes in a map of 4"),
        ("no table", charsmap(&[0, 0, 0, 0]), "a table of 0 bytes"),
        ("half a unit", charsmap(&[3, 0, 0, 0, 1, 2, 3]), "a table of 3 bytes"),
        ("table that leads out", table(1000 << 10, "a\0"), "leads out of itself"),
        ("leaf without a text", table(1 << 8, ""), ""),
        ("long text in a map", table(0, &"a".repeat(100_000)), "a text of 100000 bytes; at most 64"),
        ("truncated base64", json!({"type": "Precompiled", "precompiled_charsmap": "AAA"}), "not base64"),
        ("nested", nested(50), "normalizer: nested more than 24 levels deep"),
        ("less nested", nested(11), ""),
        ("many steps", sequence(vec![replace("a", "b"); 100]), "more than 32 steps"),
        ("empty pattern", replace("", "x"), "normalizer.pattern: empty"),
        ("long content", replace("a", &"b".repeat(1 << 20)), "normalizer.content: 1048576 bytes; at most 64"),
        ("chain that grows", sequence(vec![replace("a", "aaaaaaaa"); 8]), "more than 64 times as long"),
        (
            "long prefix",
            json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)}),
            "normalizer.prepend: 1048576 bytes",
        ),
        (
            "empty matches",
            json!({"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"}),
            "matches the empty text",
        ),
        (
            "large automaton",
            json!({"type": "Replace", "pattern": {"Regex": r"(\p{L}{100}){100}{100}"}, "content": "b"}),
            "its automaton takes more than",
        ),
    ];
    for (name, normalizer, expected) in normalizers {
        let error = outcome(&changed(BYTE_LEVEL, |t| t["normalizer"] = normalizer)).unwrap_or_default();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(expected.is_empty() || error.contains("tokenizer.json"), "{name}: {error}");
    }
    type Change = fn(&mut Value);
    let others: [(&str, Change, &str); 9] = [
        (
            "added token of 100 kB",
            |t| t["added_tokens"][0]["content"] = json!("a".repeat(100_000)),
            "added_tokens[0].content: 100000 bytes; an added token may have 1024",
        ),
        ("long entry", |t| t["model"]["vocab"]["b".repeat(1 << 20)] = json!(900), "has 1048576 bytes; at most 4096"),
        ("many merges", |t| t["model"]["merges"] = json!(vec!["t h"; 20_000]), "more than 9024 entries"),
        (
            "merge without the prefix",
            |t| t["model"]["continuing_subword_prefix"] = json!("é"),
            "does not begin with the prefix",
        ),
        (
            "long words",
            |t| {
                t["model"] = json!({"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": u64::MAX, "vocab": {"a": 0}});
            },
            "model.max_input_chars_per_word",
        ),
        (
            "unknown without an entry",
            |t| t["model"] = json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}),
            "model.unk_id: 7, but there are 1 entries",
        ),
        (
            "pieces of no length",
            |t| t["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0}),
            "pre_tokenizer.length: 0",
        ),
        (
            "token that the model has not",
            |t| {
                t["post_processor"]["processors"][1]["special_tokens"]["<|begin|>"]["ids"] = json!([4_000_000]);
            },
            "post_processor",
        ),
        ("values", |t| t["version"] = json!(vec![json!({}); 100_000]), "version: more than 16384 values"),
    ];
    for (name, change, expected) in others {
        let error = outcome(&changed(BYTE_LEVEL, change)).unwrap_or_default();
        assert!(error.contains(expected) && error.contains("tokenizer.json"), "{name}: {error}");
    }
}

#[test]
fn a_large_file_of_small_values_takes_no_more_than_itself() {
    let sixty = 60 << 20;
    for (unit, field) in [("{}", "x"), ("[]", "x"), ("0", "model"), ("\"\"", "added_tokens")] {
        let list = vec![unit; sixty / (unit.len() + 1)].join(",");
        let json = match field {
            "model" => format!("{{\"model\": {{\"type\": \"BPE\", \"x\": [{list}]}}}}"),
            field => format!("{{\"{field}\": [{list}], \"model\": {{}}}}"),
        };
        let error = outcome(&json).expect("refused");
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}

/// Mutations of good files: one value, somewhere, replaced, removed, doubled, or given another's place.
#[test]
fn mutated_tokenizers_work_or_are_one_line() {
    let files: Vec<Value> = [BYTE_LEVEL, BYTE_FALLBACK, METASPACE, GEMMA]
        .iter()
        .map(|json| serde_json::from_str(json).expect("JSON"))
        .chain([unigram(), word_piece(), word_level()])
        .collect();
    let (mut refused, mut seed) = (0, 11u64);
    let rounds = 700;
    for round in 0..rounds {
        let mut file = files[round % files.len()].clone();
        let other = files[(round / 7) % files.len()].clone();
        for _ in 0..1 + round % 3 {
            mutate(&mut file, &other, &mut || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) as usize
            });
        }
        refused += usize::from(outcome(&file.to_string()).is_some());
    }
    assert!(refused > rounds / 10 && refused < rounds, "{refused} of {rounds} refused: nothing is tested");
}

fn unigram() -> Value {
    changed_model(json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["<unk>", 0.0], ["▁", -1.0], ["l", -2.0], ["a", -2.5], ["mp", -3.0], ["▁lamp", -1.5]]}))
}

fn word_piece() -> Value {
    changed_model(json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"<unk>": 0, "lamp": 1, "l": 2, "##a": 3, "##mp": 4}}))
}

fn word_level() -> Value {
    changed_model(json!({"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "lamp": 1, "The": 2}}))
}

fn changed_model(model: Value) -> Value {
    let mut file: Value = serde_json::from_str(METASPACE).expect("JSON");
    file["model"] = model;
    file["added_tokens"] = json!([]);
    file["post_processor"] = Value::Null;
    file["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"},
        {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}]});
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"},
        {"type": "Punctuation", "behavior": "Isolated"}, {"type": "UnicodeScripts"}, {"type": "WhitespaceSplit"}]});
    file
}

fn mutate(value: &mut Value, other: &Value, random: &mut dyn FnMut() -> usize) {
    // Down to some value, rarely into the long lists, which are much the same throughout.
    let depth = 1 + random() % 5;
    let mut at = value;
    for _ in 0..depth {
        let len = match &*at {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            _ => 0,
        };
        if len == 0 {
            break;
        }
        let index = random() % len;
        at = match at {
            Value::Array(items) => &mut items[index],
            Value::Object(fields) => fields.values_mut().nth(index).expect("counted"),
            _ => unreachable!("it has parts"),
        };
    }
    let places = ["model", "normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens"];
    *at = match random() % 16 {
        0 => Value::Null,
        1 => json!({}),
        2 => json!([]),
        3 => json!(""),
        4 => json!(-1),
        5 => json!(u64::MAX),
        6 => json!(1e308),
        7 => json!(true),
        8 => json!("a".repeat(random() % 5000)),
        9 => json!("\u{0}\u{301}\u{10FFFF}"),
        10 => json!([at.clone(), at.clone()]),
        11 => other[places[random() % places.len()]].clone(),
        12 => json!(random() % 2000),
        13 => {
            json!({"type": "Sequence", "normalizers": [at.clone()], "pretokenizers": [at.clone()], "decoders": [at.clone()]})
        }
        14 => json!({"String": "a"}),
        _ => json!({"Regex": "(?i)a|[^b]{2,}"}),
    };
}
