//! GGUF files: the floats, ids and logits that other programs get from the same bytes, or from the same model in the
//! layout of transformers. `oracle/gguf_cases.py` made the files in `tests/data/gguf` with the `gguf` package of Python.

mod common;

use common::*;
use kernels::{Reference, WeightClass};
use model::chat_template::{ChatMessage, ChatTemplate, TemplateOptions};
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
            tensor.rows().unwrap().read(row, &mut found).unwrap();
            expected.rows().unwrap().read(row, &mut wanted).unwrap();
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
    for (name, _, shape, _) in stored_tensors(&data("llama3-v5")) {
        let tensor = weights.tensor(&name, &shape).unwrap();
        let begin = bytes.len();
        let mut row = vec![0.0f32; *shape.last().unwrap()];
        for index in 0..shape.iter().product::<usize>() / row.len() {
            tensor.rows().unwrap().read(index, &mut row).unwrap();
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        }
        let range = [begin, bytes.len()];
        header.insert(name, serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": range}));
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    let file = [(header.len() as u64).to_le_bytes().to_vec(), header, bytes].concat();
    embedded(vec![("config.json", config.into_bytes()), ("model.safetensors", file)])
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

/// Every committed checkpoint that a GGUF file can say, converted here tensor by tensor: whole, and in two parts.
#[test]
fn converted_families_give_the_logits_of_their_directories() {
    let (tokens, mut converted_cases) = (random_tokens(7, 33, 100), Vec::new());
    for (name, directory) in committed_checkpoints() {
        let Some(files) = converted(&directory) else { continue };
        let wanted = run_alone(&mut load(Reference::new(), &committed(&name), WeightClass::Bf16), &tokens);
        for files in [vec![("m.gguf", files.whole)], files.parts] {
            let checkpoint = embedded(files);
            let found = run_alone(&mut load(Reference::new(), &checkpoint, WeightClass::Bf16), &tokens);
            assert!(found == wanted, "{name}: other logits than from its directory");
        }
        converted_cases.push(name);
    }
    for name in ["llama2", "llama3", "llama-bias-linear", "qwen2", "qwen2.5-yarn", "qwen3"] {
        assert!(converted_cases.iter().any(|converted| converted == name), "{name} is not among {converted_cases:?}");
    }
}

struct Converted {
    whole: Vec<u8>,
    parts: Vec<(&'static str, Vec<u8>)>,
}

/// What ggml's converter would write for a directory; `None` where the format has no word for what the model needs.
fn converted(directory: &std::path::Path) -> Option<Converted> {
    use common::gguf::*;
    let text = std::fs::read_to_string(directory.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let architecture = match config["architectures"][0].as_str().unwrap() {
        "LlamaForCausalLM" => "llama",
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        _ => return None,
    };
    let number = |field: &str| config[field].as_u64().map(|number| number as u32);
    let (heads, hidden) = (number("num_attention_heads").unwrap(), number("hidden_size").unwrap());
    let head_dim = number("head_dim").unwrap_or(hidden / heads);
    let key = |name: &str| format!("{architecture}.{name}");
    let mut settings = vec![
        text_setting("general.architecture", architecture),
        u32_setting(&key("context_length"), number("max_position_embeddings").unwrap()),
        u32_setting(&key("embedding_length"), hidden),
        u32_setting(&key("block_count"), number("num_hidden_layers").unwrap()),
        u32_setting(&key("feed_forward_length"), number("intermediate_size").unwrap()),
        u32_setting(&key("attention.head_count"), heads),
        u32_setting(&key("attention.head_count_kv"), number("num_key_value_heads").unwrap()),
        u32_setting(&key("attention.key_length"), head_dim),
        f32_setting(&key("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"].as_f64().unwrap() as f32),
    ];
    let rope =
        ["rope_parameters", "rope_scaling"].map(|field| &config[field]).into_iter().find(|rope| rope.is_object());
    let theta = rope.and_then(|rope| rope["rope_theta"].as_f64()).or(config["rope_theta"].as_f64()).unwrap_or(1e4);
    settings.push(f32_setting(&key("rope.freq_base"), theta as f32));
    let mut tensors = Vec::new();
    let empty = serde_json::Value::Null;
    let rope = rope.unwrap_or(&empty);
    let factor = || rope["factor"].as_f64().unwrap();
    match rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default") {
        "default" => {}
        "linear" => {
            settings.push(text_setting(&key("rope.scaling.type"), "linear"));
            settings.push(f32_setting(&key("rope.scaling.factor"), factor() as f32));
        }
        "yarn" if rope["truncate"] != false => {
            settings.push(text_setting(&key("rope.scaling.type"), "yarn"));
            settings.push(f32_setting(&key("rope.scaling.factor"), factor() as f32));
            let original = rope["original_max_position_embeddings"].as_u64().unwrap() as u32;
            settings.push(u32_setting(&key("rope.scaling.original_context_length"), original));
        }
        "llama3" => {
            let original = rope["original_max_position_embeddings"].as_f64().unwrap();
            let divisors = (0..head_dim / 2).flat_map(|i| {
                let wavelength = std::f64::consts::TAU * theta.powf(f64::from(2 * i) / f64::from(head_dim));
                let smooth = ((original / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
                ((1.0 / ((1.0 - smooth) / factor() + smooth)) as f32).to_le_bytes()
            });
            tensors.push(("rope_freqs.weight".to_string(), vec![u64::from(head_dim) / 2], 0, divisors.collect()));
        }
        _ => return None,
    }
    for (name, dtype, shape, bytes) in stored_tensors(directory) {
        let row_bytes = bytes.len() / shape[0];
        let interleaved = architecture == "llama" && (name.contains("q_proj") || name.contains("k_proj"));
        let bytes = match interleaved {
            true => {
                let half = head_dim as usize / 2;
                let rows = (0..shape[0]).flat_map(|row| {
                    // Neighbours 2 i and 2 i + 1 are rows i and half + i.
                    let (head, in_head) = (row / (2 * half), row % (2 * half));
                    let from = head * 2 * half + in_head % 2 * half + in_head / 2;
                    bytes[from * row_bytes..(from + 1) * row_bytes].iter().copied()
                });
                rows.collect()
            }
            false => bytes,
        };
        let dims = shape.iter().rev().map(|&dim| dim as u64).collect();
        let number = match dtype.as_str() {
            "F32" => 0,
            "F16" => 1,
            "BF16" => 30,
            other => panic!("{other}"),
        };
        tensors.push((ggml_name(&name), dims, number, bytes));
    }
    let split = |number: u8| vec![setting("split.no", 2, &[number, 0]), setting("split.count", 2, &[2, 0])];
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let parts = vec![
        ("m-00001-of-00002.gguf", file(&[settings.clone(), split(0)].concat(), first)),
        ("m-00002-of-00002.gguf", file(&split(1), second)),
    ];
    Some(Converted { whole: file(&settings, &tensors), parts })
}

fn ggml_name(name: &str) -> String {
    let mut name = name.replace("model.layers.", "blk.");
    for (theirs, ggml) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        name = name.replace(theirs, ggml);
    }
    name
}

/// `(name, dtype, shape, bytes)` of a directory's safetensors files.
fn stored_tensors(directory: &std::path::Path) -> Vec<(String, String, Vec<usize>, Vec<u8>)> {
    let mut tensors = Vec::new();
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        for (name, info) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let shape: Vec<usize> = serde_json::from_value(info["shape"].clone()).unwrap();
            let [begin, end]: [usize; 2] = serde_json::from_value(info["data_offsets"].clone()).unwrap();
            let data = bytes[8 + length + begin..8 + length + end].to_vec();
            tensors.push((name, info["dtype"].as_str().unwrap().to_string(), shape, data));
        }
    }
    tensors.sort();
    tensors
}

#[test]
fn byte_level_ids_are_those_of_the_original_tokenizer() {
    let lantern = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    let lantern = Checkpoint::open(Source::Directory(lantern)).unwrap();
    let (vocab_size, file) = (ModelConfig::load(&lantern).unwrap().vocab_size, gguf("bpe.gguf"));
    let original = Tokenizer::load(&lantern, vocab_size).unwrap();
    let found = Tokenizer::load(&file, vocab_size).unwrap();
    let heldout = std::fs::read_to_string(lantern.path().unwrap().join("heldout.jsonl")).unwrap();
    let lines =
        heldout.lines().take(200).chain(["", " ", "a\n\n\tb  c", "naïve 日本語 🙂", "<|user|>\nhi<|end|>", "12345"]);
    for text in lines {
        assert_eq!(found.encode(text, true), original.encode(text, true), "{text:?}");
        assert_eq!(found.encode_plain(text), original.encode_plain(text), "{text:?} as plain text");
        let ids = original.encode(text, false).unwrap();
        assert_eq!(found.decode(&ids, false), original.decode(&ids, false), "{text:?} and back");
    }
    assert_eq!(found.vocab_size(), original.vocab_size(), "the hole at the end is no token");
    assert_eq!((found.bos_token(), found.eos_token()), (original.bos_token(), original.eos_token()));
    for id in 0..found.vocab_size() as u32 {
        assert_eq!((found.token_bytes(id), found.is_special(id)), (original.token_bytes(id), original.is_special(id)));
    }

    let messages = [ChatMessage::new("system", "Be brief."), ChatMessage::new("user", "Hi <|end|> there")];
    let options = TemplateOptions { add_generation_prompt: true, ..TemplateOptions::default() };
    let [found, wanted] =
        [&file, &lantern].map(|c| ChatTemplate::load(c).unwrap().unwrap().render(&messages, &options).unwrap());
    assert_eq!(found, wanted);
}

/// The patterns by name, against the text of the `tokenizer.json` with the same pattern.
#[test]
fn patterns_cut_text_as_their_models_do() {
    use common::gguf::*;
    let byte_level = std::fs::read_to_string(data("text/byte_level.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&byte_level).unwrap();
    json["normalizer"] = serde_json::Value::Null; // of the names with this pattern, none normalizes
    let original = Tokenizer::from_json(&json.to_string(), None, None, 1000).unwrap();
    let ids = json["model"]["vocab"].as_object().unwrap().iter();
    let mut tokens: Vec<(u64, String)> = ids.map(|(token, id)| (id.as_u64().unwrap(), token.clone())).collect();
    let added = json["added_tokens"].as_array().unwrap().iter();
    tokens.extend(added.map(|token| (token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_string())));
    tokens.sort();
    assert!(tokens.iter().enumerate().all(|(index, (id, _))| index as u64 == *id), "no holes");
    let special = json["added_tokens"][0]["id"].as_u64().unwrap();
    let types: Vec<u8> =
        tokens.iter().flat_map(|(id, _)| if *id < special { [1, 0, 0, 0] } else { [3, 0, 0, 0] }).collect();
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| match merge {
            serde_json::Value::String(merge) => merge.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        })
        .collect();
    let settings = |pre: &str| {
        vec![
            text_setting("tokenizer.ggml.model", "gpt2"),
            text_setting("tokenizer.ggml.pre", pre),
            texts_setting("tokenizer.ggml.tokens", &tokens.iter().map(|(_, token)| token.as_str()).collect::<Vec<_>>()),
            list_setting("tokenizer.ggml.token_type", 5, tokens.len() as u64, &types),
            texts_setting("tokenizer.ggml.merges", &merges.iter().map(String::as_str).collect::<Vec<_>>()),
        ]
    };
    let load = |pre: &str| Tokenizer::load(&embedded(vec![("t.gguf", file(&settings(pre), &[]))]), 1000).unwrap();
    let texts = ["The price is 1234567 dollars.", "it's  a\n\n test", "x_y(z)", "DON'T", "été 12 34"];
    let found = load("dbrx");
    for text in texts {
        assert_eq!(found.encode(text, false), original.encode(text, false), "{text:?}");
    }
    // Digits: by threes, or each alone.
    let digits = |pre: &str| load(pre).encode("1234567", false).unwrap().len();
    assert!(digits("qwen2") == 7 && digits("smollm") == 7 && digits("starcoder") == 7);
    for pre in ["gpt-2", "llama-bpe", "refact"] {
        let tokenizer = load(pre);
        for text in texts {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text, "{pre}");
        }
    }
}

#[test]
fn ends_of_turns_are_found_by_their_names() {
    use common::gguf::*;
    let tokens = ["a", "</s>", "<|im_end|>", "<|eot_id|>"];
    let settings = [
        text_setting("general.architecture", "llama"),
        text_setting("tokenizer.ggml.model", "gpt2"),
        texts_setting("tokenizer.ggml.tokens", &tokens),
        list_setting("tokenizer.ggml.token_type", 5, 4, &[1, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0]),
        u32_setting("tokenizer.ggml.eos_token_id", 1),
    ];
    let checkpoint = embedded(vec![("t.gguf", file(&settings, &[]))]);
    let config = checkpoint.read_text("config.json").unwrap().unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["eos_token_id"], serde_json::json!([1, 2]), "of the names, only control tokens");
}
