//! What a mask costs, token by token, in the model's vocabulary: an answer goes where chance leads it among what may
//! follow. A sample is the mean over one walk.

use std::time::{Duration, Instant};

use figures::random::Random;
use grammar::{Grammar, Rule, Vocabulary};
use serde_json::{Value, json};
use text::tokenizer::Tokenizer;

use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let tokenizer = Tokenizer::load(setup.checkpoint, usize::MAX)?;
    let end = tokenizer.eos_id().unwrap_or(0);
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocab_size(), &[end], &[]);
    let tokens = setup.n_gen.first().copied().unwrap_or(0).max(1);
    for (name, schema) in schemas() {
        let grammar = vocabulary.compile(&Rule::JsonSchema(schema));
        let grammar = grammar.map_err(|error| BenchError::Failed(format!("{name}: {error}")))?;
        let walks: Vec<[f64; 2]> = (0..setup.repetitions as u64).map(|seed| walk(&grammar, seed, tokens)).collect();
        for (what, which) in [("a mask", 0), ("taking a token", 1)] {
            let samples: Vec<f64> = walks.iter().map(|walk| walk[which]).collect();
            rows.timed(format!("{name}, {what}"), &samples, Against::Nothing)?;
        }
    }
    Ok(())
}

fn schemas() -> [(&'static str, Value); 5] {
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
    let text = |text: Value| json!({"type": "object", "properties": {"text": text}, "required": ["text"]});
    [
        ("a text of JSON", text(json!({"type": "string"}))),
        ("a long text of JSON", text(json!({"type": "string", "minLength": 4000}))),
        ("a list of objects", json!({"type": "array", "items": item, "minItems": 400})),
        ("a list of texts", json!({"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 400})),
        ("any JSON object", json!({"type": "object"})),
    ]
}

/// Mean seconds of a mask, and of accepting a token, over an answer of at most `tokens`.
fn walk(grammar: &Grammar, seed: u64, tokens: usize) -> [f64; 2] {
    let mut constraint = grammar.constraint();
    let (mut masking, mut taking, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    let mut random = Random::new(seed);
    while count < tokens {
        let start = Instant::now();
        let Ok(Some(mask)) = constraint.mask(count) else { break };
        masking += start.elapsed();
        let allowed: Vec<u32> =
            (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        let token = allowed[(random.bits() % allowed.len() as u64) as usize];
        let start = Instant::now();
        let taken = constraint.accept(token);
        taking += start.elapsed();
        count += 1;
        if taken.is_err() || constraint.is_complete(count) {
            break;
        }
    }
    [masking, taking].map(|time| time.as_secs_f64() / count.max(1) as f64)
}
