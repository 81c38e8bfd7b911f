//! GGUF files: the floats, ids and logits that other programs get from the same bytes, or from the same model in the
//! layout of transformers. `oracle/gguf_cases.py` made the files in `tests/data/gguf` with the `gguf` package of Python.

mod common;

use common::*;
use kernels::{Reference, WeightClass};
use model::tokenizer::Tokenizer;
use model::weights::Weights;
use model::{Checkpoint, Forward, ModelConfig, Source};
use std::path::PathBuf;

fn data(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

fn gguf(file: &str) -> Checkpoint {
    Checkpoint::open(Source::Gguf(data("gguf").join(file))).unwrap()
}

#[test]
fn every_bit_of_a_dequantized_float_is_that_of_the_gguf_package() {
    let weights = Weights::open(&gguf("blocks.gguf")).unwrap();
    let types =
        ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "F16", "BF16"];
    for name in types {
        let shape = match name {
            "F16" | "BF16" => [2, 64],
            name if name.ends_with("_K") => [4, 256],
            _ => [4, 96],
        };
        let tensor = weights.tensor(name, &shape).unwrap();
        let expected = weights.tensor(&format!("{name}.expected"), &shape).unwrap();
        let (mut found, mut wanted) = (vec![0.0; shape[1]], vec![0.0; shape[1]]);
        let mut distinct = std::collections::BTreeSet::new();
        for row in 0..shape[0] {
            tensor.row(row, &mut found).unwrap();
            expected.row(row, &mut wanted).unwrap();
            for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                let same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
                assert!(same, "{name}: row {row}, number {i}: {found:e}, not {wanted:e}");
                distinct.insert(found.to_bits());
            }
        }
        assert!(distinct.len() > 30, "{name}: the case says little: {} different numbers", distinct.len());
    }
}

#[test]
fn a_converted_model_gives_the_logits_of_its_directory() {
    let tokens = random_tokens(5, 40, 128);
    for class in [WeightClass::Bf16, WeightClass::Int8] {
        let mut directory = load(Reference::new(), &committed("llama3-v5"), class);
        let mut converted = load(Reference::new(), &gguf("llama3-v5.gguf"), class);
        assert_eq!(run_alone(&mut converted, &tokens), run_alone(&mut directory, &tokens), "{class:?}");
        assert_eq!(converted.weight_bytes(), directory.weight_bytes());
    }
    let (found, wanted) =
        (ModelConfig::load(&gguf("llama3-v5.gguf")).unwrap(), ModelConfig::load(&committed("llama3-v5")).unwrap());
    assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "every field of the configuration");
    assert_eq!(gguf("llama3-v5.gguf").name(), "llama3-v5");
}

/// Every matrix of another quantized type: what is computed is what the dequantized floats would give.
#[test]
fn a_quantized_model_is_the_model_of_its_dequantized_floats() {
    let tokens = random_tokens(6, 40, 128);
    let quantized = gguf("mixed.gguf");
    let floats = dequantized(&quantized);
    for class in [WeightClass::Bf16, WeightClass::Int8] {
        let found = run_alone(&mut load(Reference::new(), &quantized, class), &tokens);
        let wanted = run_alone(&mut load(Reference::new(), &floats, class), &tokens);
        assert_eq!(found, wanted, "{class:?}");
    }
}

/// The same model with all tensors in float32, in the layout of transformers.
fn dequantized(checkpoint: &Checkpoint) -> Checkpoint {
    let weights = Weights::open(checkpoint).unwrap();
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    let config = checkpoint.read_text("config.json").unwrap().unwrap();
    for (name, shape) in committed_shapes("llama3-v5") {
        let tensor = weights.tensor(&name, &shape).unwrap();
        let begin = bytes.len();
        let mut row = vec![0.0f32; *shape.last().unwrap()];
        for index in 0..shape.iter().product::<usize>() / row.len() {
            tensor.row(index, &mut row).unwrap();
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        }
        let range = [begin, bytes.len()];
        header.insert(name, serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": range}));
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    let file = [(header.len() as u64).to_le_bytes().to_vec(), header, bytes].concat();
    embedded(vec![("config.json", config.into_bytes()), ("model.safetensors", file)])
}

/// Names and shapes of a committed checkpoint's tensors.
fn committed_shapes(case: &str) -> Vec<(String, Vec<usize>)> {
    let bytes = std::fs::read(data(case).join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors.map(|(name, info)| (name, serde_json::from_value(info["shape"].clone()).unwrap())).collect()
}

#[test]
fn sentence_piece_ids_are_those_of_sentence_piece() {
    let tokenizer = Tokenizer::load(&gguf("spm.gguf"), 700).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(data("gguf/spm.json")).unwrap()).unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let wanted: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let found = tokenizer.encode(text, false).unwrap();
        assert_eq!(found, wanted, "{text:?}");
        assert_eq!(tokenizer.decode(&found, true), text, "{text:?} and back");
    }
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<s>"), Some("</s>")));
    // A file that does not say otherwise wants its first token.
    assert_eq!(tokenizer.encode("a", true).unwrap()[0], tokenizer.bos_id().unwrap());
    assert!(tokenizer.is_special(1) && tokenizer.encode_plain("<s>").unwrap() != [1]);
    let user = tokenizer.token_id("<|user|>").unwrap();
    assert!(!tokenizer.is_special(user), "a token of the user is text");
    assert!(tokenizer.encode("a<|user|>b", false).unwrap().contains(&user));
}
