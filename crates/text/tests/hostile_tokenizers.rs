//! Untrusted tokenizers: each gives a working tokenizer or a one-line error that names the field, in little time and
//! memory. These are made by hand; `crates/model/tests/fuzzed.rs` has those that are good files but for one change.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use text::tokenizer::Tokenizer;

const BYTE_LEVEL: &str = include_str!("data/byte_level.json");

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
        ("table that leads out", table(1000 << 10, "a\0"), "points outside itself"),
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
    let others: [(&str, Change, &str); 10] = [
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
            "a Unigram of nothing",
            |t| t["model"] = json!({"type": "Unigram", "unk_id": null, "vocab": []}),
            "model.vocab: a Unigram model without an entry",
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
