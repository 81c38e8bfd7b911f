//! What a mask costs, token by token, in any tokenizer's vocabulary.
//!
//!     cargo run --release -p grammar --example mask_speed -- DIR [TOKENS]
//!
//! `DIR` holds `tokenizer.json`. An answer goes where chance leads it among what may follow. Printed for each rule: the
//! median, the mean and the 99th percentile of a mask, and the median of accepting a token.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use grammar::{Rule, Vocabulary};
use serde_json::json;
use text::tokenizer::Tokenizer;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("a directory with tokenizer.json"));
    let tokens: usize = arguments.next().map_or(256, |text| text.parse().expect("a number of tokens"));
    let read = |name: &str| std::fs::read_to_string(directory.join(name));
    let json = read("tokenizer.json").expect("tokenizer.json can be read");
    let config = read("tokenizer_config.json").ok();
    let tokenizer = Tokenizer::from_json(&json, config.as_deref(), None, 1 << 20).expect("it is a tokenizer");
    let end = tokenizer.eos_id().unwrap_or(0);
    let start = Instant::now();
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &[end], &[]);
    println!("{} tokens, arranged in {:.2} s", tokenizer.vocab_size(), start.elapsed().as_secs_f64());
    let item = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["cat", "fox", "owl", "bear"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "likes": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "kind", "age", "likes"],
        "additionalProperties": false,
    });
    for (name, schema) in [
        ("a text of JSON", json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})),
        (
            "a long text of JSON",
            json!({"type": "object", "properties": {"text": {"type": "string", "minLength": 4000}}, "required": ["text"]}),
        ),
        ("a list of objects", json!({"type": "array", "items": item, "minItems": 400})),
        ("a list of texts", json!({"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 400})),
        ("any JSON object", json!({"type": "object"})),
    ] {
        let grammar = vocabulary.compile(&Rule::JsonSchema(schema)).expect("a rule");
        let mut constraint = grammar.constraint();
        let (mut masks, mut accepts) = (Vec::new(), Vec::new());
        let mut chance = 1u64;
        for at in 0..tokens {
            let start = Instant::now();
            let Ok(Some(mask)) = constraint.mask(at) else { break };
            masks.push(start.elapsed());
            let allowed: Vec<u32> =
                (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let token = allowed[(chance >> 33) as usize % allowed.len()];
            let start = Instant::now();
            if constraint.accept(token).is_err() || constraint.is_complete(at + 1) {
                break;
            }
            accepts.push(start.elapsed());
        }
        masks.sort();
        accepts.sort();
        let us = |times: &[Duration], of: usize| times[(times.len() - 1) * of / 100].as_secs_f64() * 1e6;
        println!(
            "{name:<22} {:>4} masks {:>7.1} us, mean {:>7.1}, p99 {:>7.1}; accept {:>6.1} us",
            masks.len(),
            us(&masks, 50),
            masks.iter().sum::<Duration>().as_secs_f64() * 1e6 / masks.len() as f64,
            us(&masks, 99),
            us(&accepts, 50),
        );
    }
}
