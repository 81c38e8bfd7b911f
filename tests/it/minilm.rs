//! A real encoder, all-MiniLM-L6-v2: the vectors of 50 texts beside those of sentence-transformers in float32.
//!
//! `cargo xtask test --all` installs the model and says where it is; without it this test says that it was skipped.

use checkpoint::{Checkpoint, Source};
use engine::{Engine, EngineOptions, Event, Prompt, RawRequest};
use kernels::{KvDtype, WeightClass};
use tests::{root, text};

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let Some(directory) = std::env::var_os("TWOSTROKE_MINILM") else {
        return println!("skipped: `cargo xtask test --all` installs all-MiniLM-L6-v2");
    };
    let checkpoint = Checkpoint::open(Source::Directory(directory.into())).expect("the model is there");
    let texts: Vec<String> = serde_json::from_str(&text("tests/real/minilm.json").expect("texts")).expect("a list");
    let bytes = std::fs::read(root().join("tests/real/minilm.f16")).expect("vectors");
    let wanted: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| half(u16::from_le_bytes(*bytes))).collect();
    for (weights, kv_dtype, least) in [
        (WeightClass::Bf16, KvDtype::Bf16, 0.9999),
        (WeightClass::Int8, KvDtype::Bf16, 0.999),
        (WeightClass::Int8, KvDtype::Int8, 0.999),
        (WeightClass::Int4, KvDtype::Bf16, 0.95),
    ] {
        let options = EngineOptions { weights, kv_dtype, ..EngineOptions::default() };
        let engine = Engine::start(&checkpoint, &options, &mut |_| {}).expect("it starts");
        let ask = |text: &String| {
            let raw = RawRequest { max_tokens: Some(0), embed: true, ..RawRequest::new(Prompt::Text(text.clone())) };
            engine.submit(engine.validate(raw).expect("a valid request")).expect("the queue has room")
        };
        let streams: Vec<_> = texts.iter().map(ask).collect();
        let mut worst = 1.0f64;
        for (mut stream, wanted) in streams.into_iter().zip(wanted.chunks_exact(384)) {
            let vector = loop {
                match stream.blocking_recv().expect("a vector comes") {
                    Event::Embedding(vector) => break vector,
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            };
            worst = worst.min(cosine(&vector, wanted));
        }
        println!("{weights:?} weights, {kv_dtype:?} keys: least cosine {worst:.6}");
        assert!(worst >= least, "{weights:?}, {kv_dtype:?}: {worst}");
    }
}

/// A float16 number that is neither infinite nor NaN.
fn half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, (bits >> 10) & 31, bits & 1023);
    let magnitude = match exponent {
        0 => f32::from(fraction) * 2f32.powi(-24),
        _ => (1.0 + f32::from(fraction) / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}
