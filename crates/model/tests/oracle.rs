//! Whole models against `transformers`: tiny checkpoints of every family with the float32 logits that
//! `oracle/make.py` recorded for them.
//!
//! | weights | demanded of every recorded row |
//! |---|---|
//! | bf16 | the same best token; relative L2 error of all rows together at most 1e-2 |
//! | int8 | relative L2 error at most 1e-1 (printed: `cargo test --test oracle -- --nocapture`) |
//! | int4 | the same, at most 0.35: random weights round worse than trained ones; a broken kernel is near 1 or above |
//!
//! `Reference` and `Cpu` give the same bits.

mod common;

use common::*;
use kernels::{Backend, Reference, WeightClass};
use model::{Checkpoint, LoadOptions, ModelConfig, Runner, Source};
use std::path::Path;

/// What `transformers` said about one prompt.
struct Recorded {
    tokens: Vec<u32>,
    first_row: usize,
    /// The longest sequence that the model was loaded for, where that matters.
    max_model_len: Option<usize>,
    /// Rows from `first_row` to the last, `[vocab_size]` each.
    rows: Vec<Vec<f32>>,
}

fn recorded(directory: &Path, vocab_size: usize) -> Vec<Recorded> {
    let text = std::fs::read_to_string(directory.join("oracle.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let bytes = std::fs::read(directory.join("logits.f32")).unwrap();
    let logits: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let mut rows = logits.chunks_exact(vocab_size).map(<[f32]>::to_vec);
    let prompts = json["prompts"].as_array().unwrap();
    let found = prompts
        .iter()
        .map(|prompt| {
            let tokens: Vec<u32> =
                prompt["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect();
            let first_row = prompt["first_row"].as_u64().unwrap() as usize;
            let max_model_len = prompt["max_model_len"].as_u64().map(|len| len as usize);
            let rows = rows.by_ref().take(tokens.len() - first_row).collect();
            Recorded { tokens, first_row, max_model_len, rows }
        })
        .collect();
    assert_eq!(rows.next(), None, "logits beyond the last prompt");
    found
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

/// Relative L2 error over all rows, and how many rows have another best token. `load` makes a model for sequences up to
/// a length.
fn compare<B: Backend>(load: impl Fn(Option<usize>) -> Runner<B>, prompts: &[Recorded]) -> (f64, usize, Vec<Vec<f32>>) {
    let (mut error, mut scale, mut flips, mut all) = (0.0, 0.0, 0, Vec::new());
    for group in prompts.chunk_by(|a, b| a.max_model_len == b.max_model_len) {
        let mut model = load(group[0].max_model_len);
        for prompt in group {
            let rows = run_alone(&mut model, &prompt.tokens);
            for (row, want) in rows[prompt.first_row..].iter().zip(&prompt.rows) {
                for (&got, &want) in row.iter().zip(want) {
                    error += f64::from(got - want).powi(2);
                    scale += f64::from(want).powi(2);
                }
                flips += usize::from(argmax(row) != argmax(want));
            }
            all.extend(rows);
        }
    }
    ((error / scale).sqrt(), flips, all)
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn every_family_agrees_with_transformers() {
    let checkpoints = committed_checkpoints();
    assert!(checkpoints.len() >= 19, "committed checkpoints: {checkpoints:?}");
    for (name, directory) in checkpoints {
        let checkpoint = Checkpoint::open(Source::Directory(directory.clone())).unwrap();
        let prompts = recorded(&directory, ModelConfig::load(&checkpoint).unwrap().vocab_size);
        let num_rows: usize = prompts.iter().map(|prompt| prompt.rows.len()).sum();
        for (class, most) in [(WeightClass::Bf16, 1e-2), (WeightClass::Int8, 1e-1), (WeightClass::Int4, 0.35)] {
            let options = |max_model_len| LoadOptions { max_model_len, ..options(class) };
            let on_reference = |len| model::load(Reference::new(), &checkpoint, &options(len), &mut |_| {}).unwrap();
            let (error, flips, reference_rows) = compare(on_reference, &prompts);
            println!("{name:18} {class:?}: relative L2 error {error:.2e}, {flips} of {num_rows} best tokens differ");
            assert!(error <= most, "{name} {class:?}: relative L2 error {error:.3e} is above {most:e}");
            if class == WeightClass::Bf16 {
                assert_eq!(flips, 0, "{name}: best tokens differ from those of transformers");
            }

            let on_cpu = |len| model::load(cpu(None, 2), &checkpoint, &options(len), &mut |_| {}).unwrap();
            let (_, _, cpu_rows) = compare(on_cpu, &prompts);
            assert_eq!(bits(&cpu_rows), bits(&reference_rows), "{name} {class:?}: Cpu and Reference differ");
        }
    }
}
