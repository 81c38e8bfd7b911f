//! Files of weights: safetensors and GGUF, by mutation of good ones, and numbers that no model has. What is built as in
//! the reports about other loaders meets them in `crates/model/tests`, where each has its own message.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{Base, Verdict, load};
use crate::case::{Case, FILE, Outcome, Scratch};
use crate::child;
use testing::{Dice, mutate};

const SAFETENSORS: &str = "safetensors";
const GGUF: &str = "gguf";
const FILE_OF_WEIGHTS: &str = "model.safetensors";

/// Files of weights with one to three changes from a seed.
pub(crate) fn mutated(base: &Arc<Base>, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in seeds {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let mut bytes = own.model[FILE_OF_WEIGHTS].clone();
            changes(seed, &mut bytes, mutate::safetensors);
            // A tensor that went by another name is one that is missing.
            weights(&own, scratch, &bytes, &Verdict::RefusedOr(vec!["safetensors", "config.json"]))
        };
        cases.push(Case::new(SAFETENSORS, format!("mutated-{seed}"), check).drawn(seed));
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let mut bytes = own.gguf.clone();
            changes(seed, &mut bytes, mutate::gguf);
            gguf(scratch, &bytes, &Verdict::RefusedOr(vec!["model.gguf"]))
        };
        cases.push(Case::new(GGUF, format!("mutated-{seed}"), check).drawn(seed));
    }
    cases
}

/// One to three changes.
pub(crate) fn changes(seed: u64, bytes: &mut Vec<u8>, change: fn(&mut Vec<u8>, &mut Dice)) {
    let mut dice = Dice::new(seed);
    for _ in 0..=seed % 3 {
        change(bytes, &mut dice);
    }
}

fn weights(base: &Base, scratch: &Scratch, bytes: &[u8], verdict: &Verdict) -> Outcome {
    let directory = base.with(scratch, &[(FILE_OF_WEIGHTS, Some(bytes))]);
    verdict.judge(&child::run(&load(&directory), scratch, &FILE, &[]), &FILE)
}

fn gguf(scratch: &Scratch, bytes: &[u8], verdict: &Verdict) -> Outcome {
    let path = scratch.file("model.gguf", bytes);
    verdict.judge(&child::run(&load(&path), scratch, &FILE, &[]), &FILE)
}

/// A header as JSON text, and the data behind it.
fn parts(file: &[u8]) -> (Map<String, Value>, &[u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    (serde_json::from_slice(&file[8..8 + length]).expect("a header"), &file[8 + length..])
}

fn joined(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Untrained weights, and a pickle where weights should be.
pub(crate) fn built_safetensors(base: &Arc<Base>) -> Vec<Case> {
    type Build = fn(&[u8]) -> Vec<u8>;
    /// Every bf16 value is this.
    fn all(file: &[u8], bits: u16) -> Vec<u8> {
        let (header, data) = parts(file);
        let data: Vec<u8> = bits.to_le_bytes().into_iter().cycle().take(data.len()).collect();
        joined(&Value::Object(header).to_string(), &data)
    }
    let mut cases = Vec::new();
    let taken: &[(&str, Build)] = &[
        ("every weight NaN", |file| all(file, 0x7FC0)),
        ("every weight infinite", |file| all(file, 0x7F80)),
        ("every weight the largest", |file| all(file, 0x7F7F)),
        ("every weight denormal", |file| all(file, 0x0001)),
        ("every weight zero", |file| all(file, 0)),
        ("every weight -1", |file| all(file, 0xBF80)),
    ];
    for &(name, build) in taken {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let bytes = build(&own.model[FILE_OF_WEIGHTS]);
            weights(&own, scratch, &bytes, &Verdict::RefusedOr(vec!["model.safetensors", "not numbers", "finite"]))
        };
        cases.push(Case::new(SAFETENSORS, name, check));
    }
    let own = Arc::clone(base);
    cases.push(Case::new(SAFETENSORS, "a pickle beside no safetensors", move |scratch| {
        let directory = own.with(scratch, &[(FILE_OF_WEIGHTS, None), ("pytorch_model.bin", Some(b"\x80\x04\x95."))]);
        let verdict = Verdict::Refused(vec!["safetensors"]);
        verdict.judge(&child::run(&load(&directory), scratch, &FILE, &[]), &FILE)
    }));
    cases
}

/// GGUF that ends soon, or is none.
pub(crate) fn built_gguf(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = Vec::new();
    let own = Arc::clone(base);
    cases.push(Case::new(GGUF, "192 bytes", move |scratch| {
        gguf(scratch, &own.gguf[..192], &Verdict::Refused(vec!["model.gguf"]))
    }));
    cases.push(Case::new(GGUF, "a directory of that name", move |scratch| {
        let path = scratch.path("model.gguf");
        std::fs::create_dir_all(&path).expect("it can be written");
        let ran = child::run(&load(&path), scratch, &FILE, &[]);
        Verdict::Refused(vec!["model.gguf"]).judge(&ran, &FILE)
    }));
    cases
}
