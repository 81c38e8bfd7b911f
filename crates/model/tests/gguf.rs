//! GGUF files: the floats, ids and logits that other programs get from the same bytes, or from the same model in the
//! layout of transformers. `oracle/gguf_cases.py` made the files in `tests/data/gguf` with the `gguf` package of
//! Python.

use crate::common;

use checkpoint::weights::{TensorSlice, Weights};
use checkpoint::{Checkpoint, Source};
use common::*;
use kernels::{Float32, Reference, WeightClass};
use model::draft::{Feature, Features};
use model::{Batch, Forward, ModelConfig};
use serde_json::Value;
use std::path::{Path, PathBuf};
use text::chat_template::{ChatMessage, ChatTemplate, TemplateOptions};
use text::tokenizer::Tokenizer;

fn data(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

fn gguf(file: &str) -> Checkpoint {
    Checkpoint::open(Source::Gguf(data("gguf").join(file))).unwrap()
}

#[test]
fn every_bit_of_a_dequantized_float_is_that_of_the_gguf_package() {
    let weights = Weights::open(&gguf("blocks.gguf")).unwrap();
    for name in SCALES.map(|(name, ..)| name).into_iter().chain(["F16", "BF16"]) {
        let shape = if name.contains("F16") { [2, 64] } else { shape_of(name) };
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
        // Three levels and a scale a row.
        let least = if name.starts_with("TQ") { 5 } else { 20 };
        assert!(distinct.len() > least, "{name}: the case says little: {} different numbers", distinct.len());
    }
}

/// A tensor of `blocks.gguf`: where its table entry ends, and its offset in the data.
fn table_entry(file: &[u8], name: &str) -> (usize, usize) {
    let key = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
    let at = file.windows(key.len()).position(|window| window == key).expect(name) + key.len();
    let dimensions = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let end = at + 4 + 8 * dimensions + 4 + 8;
    (end, u64::from_le_bytes(file[end - 8..end].try_into().unwrap()) as usize)
}

/// Block types with the numbers and bytes of a block, and where in it the scales are that every number depends on.
const SCALES: [(&str, usize, usize, &[usize]); 23] = [
    ("Q4_0", 32, 18, &[0]),
    ("Q4_1", 32, 20, &[0, 2]),
    ("Q5_0", 32, 22, &[0]),
    ("Q5_1", 32, 24, &[0, 2]),
    ("Q8_0", 32, 34, &[0]),
    ("Q2_K", 256, 84, &[80, 82]),
    ("Q3_K", 256, 110, &[108]),
    ("Q4_K", 256, 144, &[0, 2]),
    ("Q5_K", 256, 176, &[0, 2]),
    ("Q6_K", 256, 210, &[208]),
    ("IQ4_NL", 32, 18, &[0]),
    ("IQ4_XS", 256, 136, &[0]),
    ("MXFP4", 32, 17, &[]), // one byte: below
    ("TQ1_0", 256, 54, &[52]),
    ("TQ2_0", 256, 66, &[64]),
    ("IQ2_XXS", 256, 66, &[0]),
    ("IQ2_XS", 256, 74, &[0]),
    ("IQ2_S", 256, 82, &[0]),
    ("IQ3_XXS", 256, 98, &[0]),
    ("IQ3_S", 256, 110, &[0]),
    ("IQ1_S", 256, 50, &[0]),
    ("IQ1_M", 256, 56, &[]), // in pieces: below
    ("NVFP4", 64, 36, &[]),  // a byte that is always a number
];

/// Of a type's tensor in `blocks.gguf`.
fn shape_of(name: &str) -> [usize; 2] {
    let is_super = SCALES.iter().any(|&(other, elements, ..)| other == name && elements == 256);
    if is_super { [4, 256] } else { [4, if name == "NVFP4" { 192 } else { 96 }] }
}

#[test]
fn a_scale_that_is_no_number_is_an_error_with_file_and_tensor() {
    let file = std::fs::read(data("gguf/blocks.gguf")).unwrap();
    let names = names_by_offset(&file);
    let data_at = names.iter().map(|name| table_entry(&file, name).0).max().unwrap().next_multiple_of(32);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("broken-scale.gguf");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Weights::open(&Checkpoint::open(Source::Gguf(path.clone())).unwrap()).unwrap()
    };
    for (name, elements, block_bytes, fields) in SCALES {
        let shape = shape_of(name);
        // The second row's last block.
        let block = 2 * shape[1] / elements - 1;
        for field in fields {
            let at = data_at + table_entry(&file, name).1 + block * block_bytes + field;
            let with = |scale: u16| {
                let mut file = file.clone();
                file[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                open(&file)
            };
            let part =
                || vec![TensorSlice { name: name.to_string(), shape: shape.to_vec(), rows: 0..4, transposed: false }];
            let classes = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];
            for scale in [0x7e00, 0xfe00, 0x7c01, 0x7c00, 0xfc00] {
                let weights = with(scale);
                let rows = weights.tensor(name, &shape).unwrap().rows().unwrap();
                let mut row = vec![0.0; shape[1]];
                rows.read(0, &mut row).unwrap();
                let mut errors = vec![rows.read(1, &mut row).unwrap_err()];
                for class in classes {
                    errors.push(weights.pack(&Reference::new(), class, shape[1], &part()).err().expect("no number"));
                    let cpu = cpu(None, 2);
                    errors.push(weights.pack(&cpu, class, shape[1], &part()).err().expect("no number"));
                }
                let want = format!(
                    "broken-scale.gguf: tensor {name:?}: a scale of block {block} of {name} is not a finite number"
                );
                errors.iter().for_each(|error| assert_eq!(error.to_string(), want, "{scale:x}"));
                assert_eq!(weights.num_non_finite(), 0);
            }
            // The sign of a scale, zero and the largest number that a half has are all legal.
            for scale in [0x8000, 0x0000, 0x0001, 0x8001, 0x7bff, 0xfbff, 0xa400] {
                let weights = with(scale);
                for class in classes {
                    weights.pack(&Reference::new(), class, shape[1], &part()).unwrap();
                }
            }
        }
    }
    // A scale in pieces of four bits: the first of them makes it infinite, or no number.
    for first in [0x7c, 0x7e] {
        let mut bytes = file.clone();
        let at = data_at + table_entry(&file, "IQ1_M").1 + 56;
        for i in 0..4 {
            bytes[at + 49 + 2 * i] = if i == 3 {
                first & 0xf0
            } else if i == 2 {
                first << 4
            } else {
                0
            };
        }
        let error = open(&bytes).tensor("IQ1_M", &[4, 256]).unwrap().rows().unwrap().read(1, &mut [0.0; 256]);
        assert!(error.unwrap_err().to_string().ends_with("a scale of block 1 of IQ1_M is not a finite number"));
    }
    // An exponent for each block: too large for some code, and the largest that is not.
    for (scale, is_number) in [(0xffu8, false), (253, false), (252, true), (0, true)] {
        let mut bytes = file.clone();
        bytes[data_at + table_entry(&file, "MXFP4").1 + 4 * 17] = scale; // of the second row the second
        let weights = open(&bytes);
        let part = TensorSlice { name: "MXFP4".to_string(), shape: vec![4, 96], rows: 0..4, transposed: false };
        for class in [WeightClass::Bf16, WeightClass::Int4] {
            let packed = weights.pack(&Reference::new(), class, 96, std::slice::from_ref(&part));
            assert_eq!(packed.is_ok(), is_number, "{scale} in {class:?}");
            let want = "tensor \"MXFP4\": a scale of block 4 of MXFP4 is not a finite number";
            packed.err().iter().for_each(|error| assert!(error.to_string().ends_with(want), "{error}"));
        }
    }
    // Data that ends before its shape says.
    let last = names.last().unwrap();
    for cut in [1, 33, file.len() / 2] {
        std::fs::write(&path, &file[..file.len() - cut]).unwrap();
        let error = Checkpoint::open(Source::Gguf(path.clone()))
            .and_then(|checkpoint| Weights::open(&checkpoint).map(drop))
            .unwrap_err()
            .to_string();
        assert!(error.contains("broken-scale.gguf: broken: tensor") && error.contains("exceed the file"), "{error}");
        assert!(cut > 1 || error.contains(last), "{error}: {last}");
    }
}

/// The tensors of `blocks.gguf` by where their data are.
fn names_by_offset(file: &[u8]) -> Vec<String> {
    let types = SCALES.iter().map(|(name, ..)| *name).chain(["F16", "BF16"]);
    let mut names: Vec<String> = types.flat_map(|name| [name.to_string(), format!("{name}.expected")]).collect();
    names.sort_by_key(|name| table_entry(file, name).1);
    names
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

/// Every matrix of another quantized type. In bf16 what is computed is what the dequantized floats would give; in
/// float32 it is so in every class, since a class of as many bits keeps the file's weights and adds nothing.
#[test]
fn a_quantized_model_is_the_model_of_its_dequantized_floats() {
    let tokens = random_tokens(6, 40, 128);
    let quantized = gguf("mixed.gguf");
    let floats = dequantized(&quantized);
    let found = run_alone(&mut load(Reference::new(), &quantized, WeightClass::Bf16), &tokens);
    let wanted = run_alone(&mut load(Reference::new(), &floats, WeightClass::Bf16), &tokens);
    assert!(found == wanted, "other logits in bf16");
    let exact = |checkpoint, class| run_alone(&mut load(Float32::new(Some(1)).unwrap(), checkpoint, class), &tokens);
    assert!(exact(&quantized, WeightClass::Int8) == exact(&floats, WeightClass::Bf16), "other logits in float32");
}

/// The same model with all tensors in float32, in the layout of transformers.
fn dequantized(checkpoint: &Checkpoint) -> Checkpoint {
    let weights = Weights::open(checkpoint).unwrap();
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    let config = checkpoint.read_text("config.json").unwrap().unwrap();
    for Stored { name, shape, .. } in stored_tensors(&data("llama3-v5")) {
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
    let header = Value::Object(header).to_string().into_bytes();
    let file = [(header.len() as u64).to_le_bytes().to_vec(), header, bytes].concat();
    embedded(vec![("config.json", config.into_bytes()), ("model.safetensors", file)])
}

#[test]
fn sentence_piece_ids_are_those_of_sentence_piece() {
    let checkpoint = gguf("spm.gguf");
    assert!(checkpoint.has("tokenizer.json"), "the engine asks before it loads a tokenizer");
    let tokenizer = Tokenizer::load(&checkpoint, 700).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(data("gguf/spm.json")).unwrap()).unwrap();
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
        let config = sayable(&directory);
        let Some(files) = converted(&directory, &config) else { continue };
        let mut original = vec![("config.json".to_string(), config.to_string().into_bytes())];
        for entry in directory.read_dir().unwrap().map(|entry| entry.unwrap()) {
            let file = entry.file_name().to_string_lossy().into_owned();
            if file.contains(".safetensors") {
                original.push((file, std::fs::read(entry.path()).unwrap()));
            }
        }
        let original = embedded(original.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect());
        let wanted = run_alone(&mut load(cpu(None, 1), &original, WeightClass::Bf16), &tokens);
        for files in [vec![("m.gguf", files.whole)], files.parts] {
            let checkpoint = embedded(files);
            let found = run_alone(&mut load(cpu(None, 1), &checkpoint, WeightClass::Bf16), &tokens);
            assert!(found == wanted, "{name}: other logits than from its directory");
        }
        converted_cases.push(name);
    }
    for name in [
        "deepseek-v2",
        "deepseek-v3",
        "apertus",
        "arcee",
        "minimax-m2",
        "cohere2",
        "cohere2-moe",
        "cohere2-moe-rms",
        "command-r",
        "command-r-plus",
        "phi-moe",
        "nemotron",
        "nemotron-3",
        "nemotron-h",
        "olmo",
        "stablelm",
        "starcoder2",
        "dots1",
        "ernie4.5",
        "ernie4.5-moe",
        "glm",
        "glm4",
        "hunyuan",
        "hunyuan-moe",
        "kimi-linear",
        "kimi-linear-listed",
        "qwen2-moe",
        "exaone4",
        "falcon-h1",
        "falcon-h1-gate-first",
        "falcon-h1-norm-first",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma4",
        "gemma4-31b",
        "gemma4-moe",
        "gpt-oss",
        "gpt-oss-mxfp4",
        "glm4-moe",
        "glm4-moe-lite",
        "granite",
        "granite-hybrid",
        "granite-hybrid-dense",
        "granite-moe",
        "lfm2",
        "lfm2-moe",
        "muse-glimmer",
        "llama-bias-linear",
        "llama2",
        "llama3",
        "llama4",
        "ministral3",
        "mistral4",
        "mixtral",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi3",
        "phi3-longrope",
        "qwen2",
        "qwen2.5-yarn",
        "qwen3",
        "qwen3-moe-fused",
        "qwen3-next",
        "qwen3.5",
        "qwen3.5-moe",
        "seed-oss",
        "smollm3",
    ] {
        assert!(converted_cases.iter().any(|converted| converted == name), "{name} is not among {converted_cases:?}");
    }
}

struct Converted {
    whole: Vec<u8>,
    parts: Vec<(&'static str, Vec<u8>)>,
}

/// A configuration, its fields that GGUF has no word for set to what ggml takes for granted.
fn sayable(directory: &Path) -> Value {
    let text = std::fs::read_to_string(directory.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    match config["architectures"][0].as_str().unwrap() {
        "Gemma2ForCausalLM" => config["query_pre_attn_scalar"] = config["head_dim"].clone(),
        "Gemma3ForCausalLM" => config["layer_types"] = Value::Null,
        "SmolLM3ForCausalLM" => {
            config["no_rope_layers"] = Value::Null;
            config["no_rope_layer_interval"] = Value::Null;
        }
        "GptOssForCausalLM" => config["swiglu_limit"] = 7.0.into(),
        "Qwen2MoeForCausalLM" => config["use_sliding_window"] = false.into(),
        "Starcoder2ForCausalLM" => config["sliding_window"] = Value::Null,
        "FalconH1ForCausalLM" => {
            // Multipliers are part of the weights, and what is in the weights is rounded.
            let fields = config.as_object_mut().unwrap();
            fields.retain(|name, _| !name.contains("_multiplier"));
            fields.insert("mamba_norm_before_gate".into(), false.into());
        }
        "NemotronHForCausalLM" if config["head_dim"].is_null() => config["head_dim"] = 128.into(),
        "OlmoForCausalLM" => config["layer_norm_eps"] = 1e-5.into(),
        "HunYuanDenseV1ForCausalLM" => {
            config["rope_theta"] = f64::from((1e4 * 50f64.powf(32.0 / 30.0)) as f32).into();
            config["rope_scaling"] = Value::Null;
        }
        "Qwen3MoeForCausalLM" => config["norm_topk_prob"] = true.into(),
        "PhimoeForCausalLM" => config["router_jitter_noise"] = 0.01.into(),
        "Llama4ForCausalLM" => {
            for field in ["no_rope_layers", "attention_chunk_size", "floor_scale", "attn_scale"] {
                config.as_object_mut().unwrap().remove(field);
            }
        }
        "Cohere2MoeForCausalLM" if config["layer_types"].is_null() => {
            config["shared_expert_combination_strategy"] = "average".into();
            config["layer_types"] = serde_json::json!(["sliding_attention", "full_attention"]);
        }
        "Lfm2ForCausalLM" => {
            config["intermediate_size"] = 80.into();
            config["block_auto_adjust_ff_dim"] = false.into();
            config["block_ff_dim"] = Value::Null;
        }
        _ => {}
    }
    config
}

/// What ggml's converter would write for a directory; `None` where the format has no word for what the model needs.
fn converted(directory: &Path, config: &Value) -> Option<Converted> {
    use common::gguf::*;
    if config["use_sliding_window"] == true {
        return None; // of the Qwen families, ggml knows no window
    }
    let architecture = match config["architectures"][0].as_str().unwrap() {
        "LlamaForCausalLM" | "MixtralForCausalLM" => "llama",
        "ArceeForCausalLM" => "arcee",
        "Llama4ForCausalLM" => "llama4",
        "ApertusForCausalLM" => "apertus",
        "MiniMaxM2ForCausalLM" => "minimax-m2",
        "CohereForCausalLM" => "command-r",
        "Cohere2ForCausalLM" => "cohere2",
        "Cohere2MoeForCausalLM" => "cohere2moe",
        "PhimoeForCausalLM" => "phimoe",
        "FalconH1ForCausalLM" => "falcon-h1",
        "KimiLinearForCausalLM" => "kimi-linear",
        "NemotronForCausalLM" => "nemotron",
        "NemotronHForCausalLM" => "nemotron_h_moe",
        "Starcoder2ForCausalLM" => "starcoder2",
        "StableLmForCausalLM" => "stablelm",
        "OlmoForCausalLM" => "olmo",
        "Ernie4_5ForCausalLM" => "ernie4_5",
        "Ernie4_5_MoeForCausalLM" => "ernie4_5-moe",
        "HunYuanDenseV1ForCausalLM" => "hunyuan-dense",
        "HunYuanMoEV1ForCausalLM" => "hunyuan-moe",
        "GlmForCausalLM" => "chatglm",
        "Glm4ForCausalLM" => "glm4",
        "Dots1ForCausalLM" => "dots1",
        "Qwen2MoeForCausalLM" => "qwen2moe",
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        // Only with experts in every layer.
        "Qwen3MoeForCausalLM" if config["decoder_sparse_step"] == 1 => "qwen3moe",
        "GemmaForCausalLM" => "gemma",
        "Gemma2ForCausalLM" => "gemma2",
        "Gemma3ForCausalLM" => "gemma3",
        "Gemma4ForCausalLM" => "gemma4",
        "Phi3ForCausalLM" => "phi3",
        "Olmo2ForCausalLM" | "Olmo3ForCausalLM" => "olmo2",
        "OlmoeForCausalLM" => "olmoe",
        "Exaone4ForCausalLM" => "exaone4",
        "SeedOssForCausalLM" => "seed_oss",
        "GptOssForCausalLM" => "gpt-oss",
        "GraniteForCausalLM" => "granite",
        "SmolLM3ForCausalLM" => "smollm3",
        "Lfm2ForCausalLM" => "lfm2",
        "Lfm2MoeForCausalLM" => "lfm2moe",
        "MuseGlimmerForCausalLM" => "muse-glimmer",
        "Glm4MoeForCausalLM" => "glm4moe",
        "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM" | "Glm4MoeLiteForCausalLM" => "deepseek2",
        "Mistral4ForCausalLM" => "mistral4",
        "GraniteMoeForCausalLM" => "granitemoe",
        "GraniteMoeHybridForCausalLM" => "granitehybrid",
        "Ministral3ForCausalLM" => "mistral3",
        "Qwen3NextForCausalLM" => "qwen3next",
        "Qwen3_5ForCausalLM" => "qwen35",
        "Qwen3_5MoeForCausalLM" => "qwen35moe",
        _ => return None,
    };
    let key = |name: &str| format!("{architecture}.{name}");
    let number = |field: &str| config[field].as_u64().map(|number| number as u32);
    let of_delta = &config["linear_attn_config"];
    let (heads, hidden) = (number("num_attention_heads").unwrap(), number("hidden_size").unwrap());
    let head_dim = number("head_dim").unwrap_or(hidden / heads);
    // Of latent attention: rank and numbers that turn, the latter of which old files say nothing.
    let latent = number("kv_lora_rank").zip(number("qk_rope_head_dim"));
    let is_old = latent.is_some() && number("q_lora_rank").is_none();
    let [plain, value] = ["qk_nope_head_dim", "v_head_dim"].map(|field| number(field).unwrap_or(0));
    let wide = match latent {
        Some((_, turning)) if is_old => plain + turning,
        Some((rank, turning)) => rank + turning,
        None => widest_heads(config).unwrap_or(head_dim),
    };
    let mut settings =
        vec![text_setting("general.architecture", architecture), u32_setting(&key("attention.key_length"), wide)];
    let drafting = number("num_nextn_predict_layers").or(number("mtp_num_hidden_layers")).unwrap_or(0);
    let layers = number("num_hidden_layers").unwrap() + drafting;
    settings.push(u32_setting(&key("block_count"), layers));
    settings.push(match layers_without_keys(config) {
        _ if architecture == "gemma4" => of_gemma4_layers("attention.head_count_kv", config, |index, sees_all| {
            let own = config["per_layer_config"][index.to_string()]["num_key_value_heads"].as_u64();
            let global = config["num_global_key_value_heads"].as_u64().filter(|_| config["attention_k_eq_v"] == true);
            own.or(global).filter(|_| sees_all).or(config["num_key_value_heads"].as_u64()).unwrap()
        }),
        None => u32_setting(&key("attention.head_count_kv"), number("num_key_value_heads").unwrap_or(heads)),
        Some(without) => {
            let heads = |is_without: bool| if is_without { 0 } else { number("num_key_value_heads").unwrap_or(1) };
            let bytes: Vec<u8> = without.iter().flat_map(|&layer| heads(layer).to_le_bytes()).collect();
            list_setting(&key("attention.head_count_kv"), 4, without.len() as u64, &bytes)
        }
    });
    for (field, name) in [
        ("max_position_embeddings", "context_length"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("conv_L_cache", "shortconv.l_cache"),
        ("num_dense_layers", "leading_dense_block_count"),
        ("first_k_dense_replace", "leading_dense_block_count"),
        ("num_nextn_predict_layers", "nextn_predict_layers"),
        ("mtp_num_hidden_layers", "nextn_predict_layers"),
        ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ("linear_num_key_heads", "ssm.group_count"),
        ("linear_num_value_heads", "ssm.time_step_rank"),
        ("linear_key_head_dim", "ssm.state_size"),
        ("linear_conv_kernel_dim", "ssm.conv_kernel"),
        ("full_attention_interval", "full_attention_interval"),
        ("moe_num_experts", "expert_count"),
        ("moe_k", "expert_used_count"),
        ("moe_topk", "expert_used_count"),
        ("moe_num_shared_experts", "expert_shared_count"),
        ("moe_layer_start_index", "leading_dense_block_count"),
        ("moe_layer_interval", "interleave_moe_layer_step"),
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
        ("n_routed_experts", "expert_count"),
        ("n_shared_experts", "expert_shared_count"),
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
        ("q_lora_rank", "attention.q_lora_rank"),
        ("kv_lora_rank", "attention.kv_lora_rank"),
        ("shared_intermediate_size", "expert_shared_feed_forward_length"),
        ("mamba_num_heads", "ssm.time_step_rank"),
        ("n_groups", "ssm.group_count"),
        ("ssm_state_size", "ssm.state_size"),
        ("conv_kernel", "ssm.conv_kernel"),
        ("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ("moe_latent_size", "moe_latent_size"),
        ("num_shared_experts", "expert_shared_count"),
        ("num_expert_group", "expert_group_count"),
        ("num_experts_per_token", "expert_used_count"),
        ("linear_head_dim", "kda.head_dim"),
        ("mamba_d_ssm", "ssm.inner_size"),
        ("mamba_n_heads", "ssm.time_step_rank"),
        ("mamba_n_groups", "ssm.group_count"),
        ("mamba_d_state", "ssm.state_size"),
        ("mamba_d_conv", "ssm.conv_kernel"),
        ("sliding_window", "attention.sliding_window"),
        ("num_local_experts", "expert_count"),
        ("num_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("top_k_experts", "expert_used_count"),
        ("num_kv_shared_layers", "attention.shared_kv_layers"),
        ("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
    ] {
        let window_of_another = field == "sliding_window" && architecture.starts_with("qwen");
        let in_a_list = field == "intermediate_size" && ["gemma4", "cohere2moe", "llama4"].contains(&architecture);
        let is_told = !window_of_another && !in_a_list;
        settings.extend(number(field).filter(|_| is_told).map(|number| u32_setting(&key(name), number)));
    }
    for (field, name) in [
        ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        ("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
        (
            "norm_eps",
            if architecture == "nemotron" {
                "attention.layer_norm_epsilon"
            } else {
                "attention.layer_norm_rms_epsilon"
            },
        ),
        ("layer_norm_eps", "attention.layer_norm_epsilon"),
        ("norm_epsilon", "attention.layer_norm_epsilon"),
        ("logit_scale", "logit_scale"),
        ("output_multiplier", "logit_scale"),
        ("clip_qkv", "attention.clamp_kqv"),
        ("routed_scaling_factor", "expert_weights_scale"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        settings.extend(config[field].as_f64().map(|number| f32_setting(&key(name), number as f32)));
    }
    if ["olmo2", "exaone4"].contains(&architecture) && config["sliding_window"].is_u64() {
        let flags: Vec<u8> = (1..=number("num_hidden_layers").unwrap()).map(|layer| u8::from(layer % 4 != 0)).collect();
        settings.push(list_setting(&key("attention.sliding_window_pattern"), 7, flags.len() as u64, &flags));
    }
    if architecture == "gemma4" {
        let first_shared = layers - number("num_kv_shared_layers").unwrap_or(0);
        settings.push(of_gemma4_layers("feed_forward_length", config, |index, _| {
            let doubled = config["use_double_wide_mlp"] == true && index >= first_shared as usize;
            u64::from(number("intermediate_size").unwrap()) * if doubled { 2 } else { 1 }
        }));
        settings.push(u32_setting(&key("attention.key_length_swa"), head_dim));
        settings.push(f32_setting(&key("rope.freq_base_swa"), 1e4));
    }
    if architecture == "llama4" {
        settings.push(u32_setting(&key("feed_forward_length"), number("intermediate_size_mlp").unwrap()));
        settings.push(u32_setting(&key("expert_feed_forward_length"), number("intermediate_size").unwrap()));
    }
    if architecture == "cohere2moe" {
        let (expert, dense) = (number("intermediate_size").unwrap(), number("prefix_dense_intermediate_size"));
        settings.push(u32_setting(&key("feed_forward_length"), dense.unwrap_or(expert)));
        settings.push(u32_setting(&key("expert_feed_forward_length"), expert));
        let is_dense = |layer: &&Value| **layer == "dense";
        let dense = config["mlp_layer_types"].as_array().map_or(0, |types| types.iter().filter(is_dense).count());
        settings.push(u32_setting(&key("leading_dense_block_count"), dense as u32));
        let scores = if config["expert_selection_fn"] == "sigmoid" { 2 } else { 1 };
        settings.push(u32_setting(&key("expert_gating_func"), scores));
        settings.push(setting(&key("expert_weights_norm"), 7, &[u8::from(config["norm_topk_prob"] == true)]));
    }
    if ["gemma4", "muse-glimmer", "cohere2moe"].contains(&architecture) {
        let flags: Vec<u8> = layer_types(config).map(|sees_all| u8::from(!sees_all)).collect();
        settings.push(list_setting(&key("attention.sliding_window_pattern"), 7, flags.len() as u64, &flags));
    }
    if let Some((rank, turning)) = latent {
        settings.push(u32_setting(&key("attention.value_length"), if is_old { value } else { rank }));
        if !is_old {
            settings.push(u32_setting(&key("attention.key_length_mla"), plain + turning));
            settings.push(u32_setting(&key("attention.value_length_mla"), value));
        }
        let softmax = ["DeepseekV2ForCausalLM", "Mistral4ForCausalLM"].map(Value::from);
        let scores = if softmax.contains(&config["architectures"][0]) { 1 } else { 2 };
        settings.push(u32_setting(&key("expert_gating_func"), scores));
        let normed = ["norm_topk_prob", "moe_renormalize"].iter().any(|field| config[*field] == true);
        settings.push(setting(&key("expert_weights_norm"), 7, &[u8::from(normed)]));
        if config["mlp_layer_types"].is_array() {
            settings.push(u32_setting(&key("leading_dense_block_count"), 1));
        }
    }
    for (field, name) in [("head_dim", "kda.head_dim"), ("short_conv_kernel_size", "ssm.conv_kernel")] {
        settings.extend(of_delta[field].as_u64().map(|number| u32_setting(&key(name), number as u32)));
    }
    if let Some(width) = number("mamba_head_dim") {
        settings.push(u32_setting(&key("ssm.inner_size"), number("mamba_num_heads").unwrap() * width));
        settings.push(setting(&key("expert_weights_norm"), 7, &[u8::from(config["norm_topk_prob"] != false)]));
    }
    if let Some(expand) = number("mamba_expand").filter(|_| config["mamba_d_ssm"].is_null()) {
        settings.push(u32_setting(&key("ssm.inner_size"), expand * hidden));
    }
    if architecture == "granitehybrid" {
        let is_rotated = config["position_embedding_type"] == "rope";
        settings.push(setting(&key("rope.scaling.finetuned"), 7, &[u8::from(is_rotated)]));
    }
    if let Some(heads) = number("linear_num_value_heads") {
        let inner = heads * number("linear_value_head_dim").unwrap();
        settings.push(u32_setting(&key("ssm.inner_size"), inner));
        if let Some(types) = config["layer_types"].as_array() {
            let mut flags: Vec<u8> = types.iter().map(|name| u8::from(name == "linear_attention")).collect();
            flags.resize(layers as usize, 0);
            settings.push(list_setting(&key("attention.recurrent_layers"), 7, layers.into(), &flags));
        }
    }
    let shares = [&config["partial_rotary_factor"], &config["rope_parameters"]["partial_rotary_factor"]];
    let share = shares.into_iter().find_map(Value::as_f64);
    let share = share.or(config["rotary_dim"].as_f64().map(|width| width / f64::from(wide))).unwrap_or(1.0);
    let turning = latent.map_or((f64::from(wide) * share) as u32, |(_, turning)| turning);
    settings.push(u32_setting(&key("rope.dimension_count"), turning));

    let rope =
        ["rope_parameters", "rope_scaling"].map(|field| &config[field]).into_iter().find(|rope| rope.is_object());
    let rope = rope.unwrap_or(&Value::Null);
    let rope = if rope["full_attention"].is_object() { &rope["full_attention"] } else { rope };
    let usual = if architecture == "gemma4" { 1e6 } else { 1e4 };
    let theta = rope["rope_theta"].as_f64().or(config["rope_theta"].as_f64()).unwrap_or(usual);
    settings.push(f32_setting(&key("rope.freq_base"), theta as f32));
    let factor = || rope["factor"].as_f64().unwrap();
    let f32_tensor = |name: &str, values: Vec<f32>| {
        (name.to_string(), vec![values.len() as u64], 0, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    };
    let mut tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)> = Vec::new();
    match rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default") {
        _ if architecture == "gemma4" => {
            let divisor = |pair: u32| if pair < wide / 8 { 1.0 } else { 1e30 };
            tensors.push(f32_tensor("rope_freqs.weight", (0..wide / 2).map(divisor).collect()));
        }
        "default" => {}
        "linear" => {
            settings.push(text_setting(&key("rope.scaling.type"), "linear"));
            settings.push(f32_setting(&key("rope.scaling.factor"), factor() as f32));
        }
        "yarn" if (rope["truncate"] == false) == (architecture == "gpt-oss") => {
            settings.push(text_setting(&key("rope.scaling.type"), "yarn"));
            settings.push(f32_setting(&key("rope.scaling.factor"), factor() as f32));
            let original = rope["original_max_position_embeddings"].as_u64().unwrap() as u32;
            settings.push(u32_setting(&key("rope.scaling.original_context_length"), original));
            for (field, name) in [
                ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
                ("llama_4_scaling_beta", "attention.temperature_scale"),
            ] {
                let part = if field == "mscale_all_dim" && latent.is_some() { 0.1 } else { 1.0 };
                settings.extend(rope[field].as_f64().map(|number| f32_setting(&key(name), (part * number) as f32)));
            }
        }
        "llama3" => {
            let original = rope["original_max_position_embeddings"].as_f64().unwrap();
            let divisor = |i: u32| {
                let wavelength = std::f64::consts::TAU * theta.powf(f64::from(2 * i) / f64::from(head_dim));
                let smooth = ((original / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / factor() + smooth)) as f32
            };
            tensors.push(f32_tensor("rope_freqs.weight", (0..head_dim / 2).map(divisor).collect()));
        }
        "longrope" => {
            let original = number("original_max_position_embeddings").unwrap();
            settings.push(u32_setting(&key("rope.scaling.original_context_length"), original));
            for (field, name) in [("short_factor", "short"), ("long_factor", "long")] {
                let factors = serde_json::from_value(rope[field].clone()).unwrap();
                tensors.push(f32_tensor(&format!("rope_factors_{name}.weight"), factors));
            }
        }
        _ => return None,
    }
    let is_dense = config["num_local_experts"] == 0;
    let has_delta = config["linear_num_value_heads"].is_u64();
    let stored = delta_heads(stored_tensors(directory), config, architecture);
    let mut stored = if is_old { stored } else { latent_heads(stored, (plain as usize, value as usize)) };
    // Numbers of activations are settings, a list of all layers each.
    for number in ["alpha_n", "alpha_p", "beta", "eps"] {
        let of_layers = stored.extract_if(.., |tensor| tensor.name.ends_with(&format!("act_fn.{number}")));
        let wide = |tensor: Stored| half::bf16::from_le_bytes(tensor.bytes.try_into().unwrap()).to_f32().to_le_bytes();
        let values: Vec<u8> = of_layers.flat_map(wide).collect();
        if !values.is_empty() {
            settings.push(list_setting(&format!("xielu.{number}"), 6, values.len() as u64 / 4, &values));
        }
    }
    for Stored { name, dtype, shape, bytes } in unfused_experts(gpt_oss_experts(stored)) {
        let name = ggml_name(architecture, &numbered_on(&name, layers - drafting));
        let name = if is_dense { name.replace("_shexp", "") } else { name };
        let is_inner_norm = has_delta && name.ends_with("ssm_norm.weight");
        let (name, number, bytes) = match dtype.as_str() {
            _ if (["gemma", "gemma2", "gemma3", "nemotron"].contains(&architecture)
                || has_delta
                || architecture == "muse-glimmer" && name != "output_norm.weight")
                && (name.ends_with("_norm.weight") || name.contains("nextn.") && name.ends_with("norm.weight"))
                && !is_inner_norm =>
            {
                let values = bytes.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32() + 1.0);
                (name, 0, values.flat_map(f32::to_le_bytes).collect())
            }
            "BF16" if name.ends_with("ssm_a") => {
                let numbers = bytes.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32());
                let mut rates: Vec<f32> = numbers.collect();
                kernels::recurrence::rates(&mut rates);
                (name, 0, rates.into_iter().flat_map(|rate| (-rate).to_le_bytes()).collect())
            }
            "F32" => (name, 0, bytes),
            "F16" => (name, 1, bytes),
            "BF16" => (name, 30, bytes),
            "MXFP4" => (name, 39, bytes),
            other => panic!("{other}"),
        };
        let shape = match name.rsplit_once("blk.").map_or("", |(_, own)| own.split_once('.').unwrap().1) {
            "shortconv.conv.weight" | "ssm_conv1d.weight" => vec![shape[0], shape[2]],
            "ssm_a" if shape.len() == 4 => shape,
            own if own.starts_with("ssm_conv1d_") => [vec![1], shape].concat(),
            "ssm_norm.weight" if architecture == "kimi-linear" => shape,
            "ffn_gate_inp_shexp.weight" if ["qwen2moe", "qwen35moe"].contains(&architecture) => vec![shape[1]],
            "exp_probs_b.bias" => shape[shape.len() - 1..].to_vec(),
            "ssm_a" | "ssm_d" if !has_delta => vec![shape[0], 1],
            "ssm_norm.weight" if !has_delta => {
                let groups = config["mamba_n_groups"].as_u64().or(config["n_groups"].as_u64()).unwrap() as usize;
                vec![groups, shape[0] / groups]
            }
            _ => shape,
        };
        let rotated = name.contains("attn_q.") || name.contains("attn_k.");
        let bytes = match rotated && INTERLEAVED.contains(&architecture) {
            true => interleaved(&bytes, shape[0], head_dim as usize),
            false => bytes,
        };
        tensors.push((name, shape.iter().rev().map(|&dim| dim as u64).collect(), number, bytes));
    }
    let mut tensors = stacked_experts(tensors);
    if let Some(factor) = config["qk_scale_factor"].as_f64() {
        for (layer, (part, of)) in
            (0..layers).flat_map(|layer| [("q", factor as f32), ("k", 1.0)].map(|of| (layer, of)))
        {
            tensors.push(f32_tensor(&format!("blk.{layer}.attn_{part}_norm.weight"), vec![of; head_dim as usize]));
        }
    }
    if architecture == "chatglm" {
        fuse_qkv(&mut tensors);
    }
    // A layer that drafts, of which no forward pass reads anything, where there is none.
    let has_drafting = tensors.iter().any(|(name, ..)| name.contains("nextn."));
    for index in (layers - drafting..layers).filter(|_| !has_drafting) {
        for (name, dims) in [
            ("nextn.eh_proj.weight", vec![64, 32]),
            ("nextn.shared_head_norm.weight", vec![32]),
            ("attn_norm.weight", vec![32]),
            ("post_attention_norm.weight", vec![32]),
            ("ffn_up_exps.weight", vec![32, 24, 8]),
        ] {
            let bytes = vec![0; 4 * dims.iter().product::<u64>() as usize];
            tensors.push((format!("blk.{index}.{name}"), dims, 0, bytes));
        }
    }
    let split = |number: u8| vec![setting("split.no", 2, &[number, 0]), setting("split.count", 2, &[2, 0])];
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let parts = vec![
        ("m-00001-of-00002.gguf", file(&[settings.clone(), split(0)].concat(), first)),
        ("m-00002-of-00002.gguf", file(&split(1), second)),
    ];
    Some(Converted { whole: file(&settings, &tensors), parts })
}

/// The name of a tensor of a layer that drafts, as if it were one more layer.
fn numbered_on(name: &str, layers: u32) -> String {
    let Some(own) = name.strip_prefix("mtp.") else { return name.to_string() };
    let own = match own.strip_suffix(".weight").unwrap_or(own) {
        "fc" => "eh_proj.weight",
        "pre_fc_norm_embedding" => "enorm.weight",
        "pre_fc_norm_hidden" => "hnorm.weight",
        "norm" => "shared_head.norm.weight",
        _ => own.strip_prefix("layers.0.").unwrap(),
    };
    format!("model.layers.{layers}.{own}")
}

/// A layer that drafts gives the same from a GGUF file as from a directory.
#[test]
fn layers_that_draft_are_read() {
    for name in ["deepseek-v3", "qwen3.5"] {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/drafts").join(name);
        let files = converted(&directory, &sayable(&directory)).unwrap();
        let original = Checkpoint::open(Source::Directory(directory)).unwrap();
        let rows = [original, embedded(vec![("m.gguf", files.whole)])].map(|checkpoint| {
            let mut target = load(Reference::new(), &checkpoint, WeightClass::Bf16);
            let mut drafter = Feature::load(&checkpoint, &target, None).unwrap();
            target.tap(drafter.taps()).unwrap();
            let (tokens, mut batch) = (random_tokens(3, 21, 100), Batch::default());
            push(&mut batch, &tokens, 0..20, &[0], Wanted::Last);
            let ticket = target.launch(&batch).unwrap();
            let done = target.wait(ticket).unwrap();
            let mut features = vec![f32::NAN; 20 * target.config().hidden_size];
            target.read_tapped(&done, 0..20, &mut features).unwrap();
            batch.clear();
            push(&mut batch, &tokens[1..], 0..20, &[0], Wanted::Last);
            drafter.forward(&batch, Features::Tapped(&features)).unwrap();
            let mut logits = vec![f32::NAN; target.config().vocab_size];
            drafter.read_logits(0, &mut logits).unwrap();
            logits
        });
        assert!(rows[0] == rows[1], "{name}: other logits than from its directory");
        assert!(rows[0].iter().all(|logit| logit.is_finite()), "{name}");
    }
}

/// Of each layer, whether it sees all.
fn layer_types(config: &Value) -> impl Iterator<Item = bool> {
    config["layer_types"].as_array().unwrap().iter().map(|layer_type| layer_type == "full_attention")
}

/// A number for each layer of Gemma 4, by its index and whether it sees all.
fn of_gemma4_layers(name: &str, config: &Value, number: impl Fn(usize, bool) -> u64) -> Vec<u8> {
    use common::gguf::list_setting;
    let numbers = layer_types(config).enumerate().map(|(index, sees_all)| number(index, sees_all) as u32);
    let bytes: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
    list_setting(&format!("gemma4.{name}"), 4, bytes.len() as u64 / 4, &bytes)
}

/// Width of the heads of layers that see all, where it is another.
fn widest_heads(config: &Value) -> Option<u32> {
    let listed = config["per_layer_config"].as_object().and_then(|layers| layers.values().next()?["head_dim"].as_u64());
    listed.or(config["global_head_dim"].as_u64()).map(|width| width as u32)
}

/// Linear attention in ggml's order: of Qwen3-Next, q, k and v of all heads, and z, apart; of Qwen3.5, heads of values
/// that share a key head are not beside each other.
fn delta_heads(tensors: Vec<Stored>, config: &Value, architecture: &str) -> Vec<Stored> {
    let number = |field: &str| config[field].as_u64().map(|number| number as usize);
    let Some(heads) = number("linear_num_value_heads") else { return tensors };
    let key_heads = number("linear_num_key_heads").unwrap();
    let (per_key, key_dim) = (heads / key_heads, number("linear_key_head_dim").unwrap());
    let (keys, width) = (key_heads * key_dim, number("linear_value_head_dim").unwrap());
    let mut converted = Vec::new();
    for Stored { name, dtype, shape, bytes } in tensors {
        let Some((layer, part)) = name.split_once("linear_attn.") else {
            converted.push(Stored { name, dtype, shape, bytes });
            continue;
        };
        let rows: Vec<&[u8]> = bytes.chunks(bytes.len() / shape[0]).collect();
        if part == "in_proj_qkvz.weight" {
            // A key head's rows: q, k, and then v and z of its heads of values.
            let group = 2 * (key_dim + per_key * width);
            let of = |first: usize, len: usize| {
                (0..key_heads).flat_map(move |head| head * group + first..head * group + first + len)
            };
            let values = 2 * key_dim;
            let qkv = of(0, key_dim).chain(of(key_dim, key_dim)).chain(of(values, per_key * width));
            let z = of(values + per_key * width, per_key * width);
            let parts: [(&str, Vec<usize>); 2] = [("in_proj_qkv", qkv.collect()), ("in_proj_z", z.collect())];
            for (part, order) in parts {
                let bytes = order.iter().flat_map(|&row| rows[row].iter().copied()).collect();
                let (name, shape) = (format!("{layer}linear_attn.{part}.weight"), vec![order.len(), shape[1]]);
                converted.push(Stored { name, dtype: dtype.clone(), shape, bytes });
            }
            continue;
        }
        let tiled = |first: usize, width: usize| -> Vec<usize> {
            let of_head = move |head: usize| (0..width).map(move |at| first + head * width + at);
            let heads = (0..per_key).flat_map(|of_key| (0..key_heads).map(move |key| key * per_key + of_key));
            (0..first).chain(heads.flat_map(of_head)).collect()
        };
        let order = match part {
            _ if architecture == "qwen3next" => (0..shape[0]).collect(),
            "in_proj_qkv.weight" | "conv1d.weight" => tiled(2 * keys, width),
            "in_proj_z.weight" => tiled(0, width),
            "in_proj_a.weight" | "in_proj_b.weight" | "A_log" | "dt_bias" => tiled(0, 1),
            _ => (0..shape[0]).collect(),
        };
        let mut bytes: Vec<u8> = order.iter().flat_map(|&row| rows[row].iter().copied()).collect();
        if part == "out_proj.weight" && architecture != "qwen3next" {
            let columns: Vec<&[u8]> = bytes.chunks(bytes.len() / shape[0] / shape[1]).collect();
            let order = tiled(0, width);
            let width = shape[1];
            let row = |row: usize| order.iter().map(move |column| row * width + column);
            bytes = (0..shape[0]).flat_map(row).flat_map(|at| columns[at].iter().copied()).collect();
        }
        converted.push(Stored { name, dtype, shape, bytes });
    }
    converted
}

/// What makes keys of latents, transposed, and what makes values, each a stack with a matrix for each head.
fn latent_heads(tensors: Vec<Stored>, (plain, value): (usize, usize)) -> Vec<Stored> {
    let apart = |tensor: Stored| -> Vec<Stored> {
        let Some(module) = tensor.name.strip_suffix("kv_b_proj.weight") else { return vec![tensor] };
        let (rank, heads) = (tensor.shape[1], tensor.shape[0] / (plain + value));
        let numbers = tensor.bytes.as_chunks::<2>().0;
        let number = |head: usize, row: usize, column: usize| numbers[(head * (plain + value) + row) * rank + column];
        let stack = |part: &str, [rows, width]: [usize; 2], of: &dyn Fn(usize, usize, usize) -> [u8; 2]| {
            let each = (0..heads * rows * width).map(|i| of(i / (rows * width), i / width % rows, i % width));
            let (name, shape) = (format!("{module}{part}.weight"), vec![heads, rows, width]);
            Stored { name, dtype: tensor.dtype.clone(), shape, bytes: each.flatten().collect() }
        };
        vec![
            stack("k_b_proj", [rank, plain], &|head, row, column| number(head, column, row)),
            stack("v_b_proj", [value, rank], &|head, row, column| number(head, plain + row, column)),
        ]
    };
    tensors.into_iter().flat_map(apart).collect()
}

/// Columns of a quantized matrix in ggml's order of heads: what is held is what is read, and what is read is the file's
/// numbers in the order of their key heads.
#[test]
fn quantized_columns_follow_their_heads() {
    use common::gguf::*;
    let (key_heads, rows, mut dice) = (2, 3, testing::Dice::new(9));
    // Heads that share a scale with others are quantized anew.
    for (name, number, heads, head_dim, is_whole) in [
        ("Q8_0", 8, 6, 32, true),
        ("Q4_0", 2, 4, 64, true),
        ("Q6_K", 14, 8, 32, true),
        ("Q8_0", 8, 6, 16, false),
        ("Q4_K", 12, 16, 16, false),
    ] {
        let width = heads * head_dim;
        let (_, elements, block_bytes, scales) = *SCALES.iter().find(|(known, ..)| *known == name).unwrap();
        let mut bytes: Vec<u8> = (0..rows * width / elements * block_bytes).map(|_| dice.below(256) as u8).collect();
        for block in bytes.chunks_mut(block_bytes) {
            scales.iter().for_each(|&at| block[at + 1] = 0x30 | block[at + 1] & 7); // some number below one
        }
        let settings = [
            text_setting("general.architecture", "qwen35"),
            u32_setting("qwen35.ssm.group_count", key_heads),
            u32_setting("qwen35.ssm.time_step_rank", heads as u32),
            u32_setting("qwen35.ssm.state_size", 16),
            u32_setting("qwen35.ssm.inner_size", width as u32),
        ];
        let dims = vec![width as u64, rows as u64];
        let tensors =
            ["blk.0.ssm_out.weight", "as.stored"].map(|name| (name.to_string(), dims.clone(), number, bytes.clone()));
        let weights = Weights::open(&embedded(vec![("t.gguf", file(&settings, &tensors))])).unwrap();
        let part = "model.layers.0.linear_attn.out_proj.weight";
        let [found, stored] =
            [part, "as.stored"].map(|name| weights.tensor(name, &[rows, width]).unwrap().rows().unwrap());
        let slice = TensorSlice { name: part.to_string(), shape: vec![rows, width], rows: 0..rows, transposed: false };
        let packed = weights.pack(&Reference::new(), WeightClass::Int8, width, &[slice]).unwrap();
        let (mut row, mut as_stored, mut held) = (vec![0.0; width], vec![0.0; width], vec![0.0; width]);
        for index in 0..rows {
            found.read(index, &mut row).unwrap();
            stored.read(index, &mut as_stored).unwrap();
            kernels::HostBackend::embed(&Reference::new(), &packed, &[index as u32], &mut held);
            let per_key = heads / key_heads as usize;
            for (column, value) in row.iter().enumerate() {
                let (head, at) = (column / head_dim, column % head_dim);
                let from = (head % per_key * key_heads as usize + head / per_key) * head_dim + at;
                assert_eq!(*value, as_stored[from], "{name}, {heads} heads of {head_dim}: column {column}");
            }
            assert!(!is_whole || held == row, "{name}, {heads} heads of {head_dim}: held is another matrix");
            let most = row.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let is_close = held.iter().zip(&row).all(|(held, value)| (held - value).abs() < 0.01 * most);
            assert!(is_close, "{name}, {heads} heads of {head_dim}: far from the file's");
        }
    }
}

/// Which layers of LFM2 are convolutions, of Granite 4 Mamba-2.
fn layers_without_keys(config: &Value) -> Option<Vec<bool>> {
    if let Some(attention) = config["full_attn_idxs"].as_array() {
        let layers = 0..config["num_hidden_layers"].as_u64().unwrap();
        return Some(layers.map(|layer| !attention.contains(&layer.into())).collect());
    }
    if let Some(pattern) = config["hybrid_override_pattern"].as_str() {
        return Some(pattern.chars().map(|letter| letter != '*').collect());
    }
    if let Some(attention) = config["linear_attn_config"]["full_attn_layers"].as_array() {
        let layers = 1..=config["num_hidden_layers"].as_u64().unwrap();
        return Some(layers.map(|layer| !attention.contains(&layer.into())).collect());
    }
    if let Some(types) = config["layer_types"].as_array().filter(|_| config["kv_lora_rank"].is_u64()) {
        return Some(types.iter().map(|name| name == "linear_attention").collect());
    }
    if let Some(blocks) = config["layers_block_type"].as_array() {
        return Some(blocks.iter().map(|block| block != "full_attention").collect());
    }
    let is_other = |layer_type: &Value| layer_type == "conv" || layer_type == "mamba";
    let types = config["layer_types"].as_array().filter(|types| types.iter().any(is_other))?;
    Some(types.iter().map(is_other).collect())
}

const INTERLEAVED: [&str; 9] =
    ["llama", "arcee", "olmo", "granite", "smollm3", "granitemoe", "granitehybrid", "mistral3", "muse-glimmer"];

/// Neighbours 2 i and 2 i + 1 of a head are its rows i and half + i.
fn interleaved(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let (row_bytes, half) = (bytes.len() / rows, head_dim / 2);
    let rows = (0..rows).flat_map(|row| {
        let (head, in_head) = (row / head_dim, row % head_dim);
        let from = head * head_dim + in_head % 2 * half + in_head / 2;
        bytes[from * row_bytes..(from + 1) * row_bytes].iter().copied()
    });
    rows.collect()
}

/// An expert's rows, in bytes.
type RowsOf<'a> = Box<dyn Fn(usize) -> Vec<Vec<u8>> + 'a>;

/// gpt-oss's stacks, columns in bfloat16 or blocks of MXFP4, gate and up in turns, as tensors of each expert.
fn gpt_oss_experts(tensors: Vec<Stored>) -> Vec<Stored> {
    if !tensors.iter().any(|tensor| tensor.name.ends_with("self_attn.sinks")) {
        return tensors;
    }
    let scales: Vec<(String, Vec<u8>)> = tensors
        .iter()
        .filter_map(|tensor| Some((tensor.name.strip_suffix("_scales")?.to_string(), tensor.bytes.clone())))
        .collect();
    let mut apart = Vec::new();
    for Stored { name, dtype, shape, bytes } in tensors {
        let Some((prefix, kind)) = name.split_once("experts.") else {
            apart.push(Stored { name, dtype, shape, bytes });
            continue;
        };
        // Of each expert its rows, in bytes.
        let (experts, len) = (shape[0], bytes.len() / shape[0]);
        let columns = |bytes: &[u8]| -> Vec<Vec<u8>> {
            let pair = |row: usize, k: usize| [0, 1].map(|at| bytes[(k * shape[2] + row) * 2 + at]);
            (0..shape[2]).map(|row| (0..shape[1]).flat_map(|k| pair(row, k)).collect()).collect()
        };
        let blocks = |scales: &[u8], bytes: &[u8]| -> Vec<Vec<u8>> {
            let code = |block: &[u8], i: usize| block[i / 2] >> (i % 2 * 4) & 15;
            let block = |(block, &scale): (&[u8], &u8)| -> Vec<u8> {
                std::iter::once(scale).chain((0..16).map(|i| code(block, i) | code(block, i + 16) << 4)).collect()
            };
            let all: Vec<u8> = bytes.chunks(16).zip(scales).flat_map(block).collect();
            all.chunks(all.len() / shape[1]).map(<[u8]>::to_vec).collect()
        };
        let (part, of, rows): (_, _, RowsOf<'_>) = match kind {
            "gate_up_proj" | "down_proj" => {
                (kind, (dtype, "weight", vec![shape[1]]), Box::new(|e| columns(&bytes[e * len..(e + 1) * len])))
            }
            _ if kind.ends_with("_bias") => {
                let rows = |e: usize| bytes[e * len..(e + 1) * len].chunks(2).map(<[u8]>::to_vec).collect();
                (kind.trim_end_matches("_bias"), (dtype, "bias", vec![]), Box::new(rows))
            }
            _ if kind.ends_with("_blocks") => {
                let part = kind.trim_end_matches("_blocks");
                let (_, scales) = scales.iter().find(|(of, _)| name.strip_suffix("_blocks") == Some(of)).unwrap();
                let each = scales.len() / experts;
                let rows = move |e: usize| blocks(&scales[e * each..(e + 1) * each], &bytes[e * len..(e + 1) * len]);
                (part, ("MXFP4".to_string(), "weight", vec![shape[2] * 32]), Box::new(rows))
            }
            _ => continue, // scales go with their blocks
        };
        for expert in 0..experts {
            let rows = rows(expert);
            let parts: Vec<(&str, Vec<&Vec<u8>>)> = match part {
                "down_proj" => vec![("down_proj", rows.iter().collect())],
                _ => vec![
                    ("gate_proj", rows.iter().step_by(2).collect()),
                    ("up_proj", rows.iter().skip(1).step_by(2).collect()),
                ],
            };
            for (part, rows) in parts {
                let (dtype, kind, width) = of.clone();
                let name = format!("{prefix}experts.{expert}.{part}.{kind}");
                let shape = [vec![rows.len()], width].concat();
                apart.push(Stored { name, dtype, shape, bytes: rows.into_iter().flatten().copied().collect() });
            }
        }
    }
    apart
}

/// Stacks of gate and up together, as one tensor of each expert; and an MLP's apart.
fn unfused_experts(tensors: Vec<Stored>) -> Vec<Stored> {
    let mut apart = Vec::new();
    for mut tensor in tensors {
        for (theirs, usual) in
            [("input_linear.weight", "experts.gate_up_proj"), ("output_linear.weight", "experts.down_proj")]
        {
            if tensor.shape.len() == 3 {
                tensor.name = tensor.name.replace(theirs, usual);
            }
        }
        if tensor.name.contains("feed_forward.experts.") {
            tensor = of_rows(tensor);
        }
        if let Some(prefix) = tensor.name.strip_suffix("shared_mlp.input_linear.weight") {
            let shape = vec![tensor.shape[0] / 2, tensor.shape[1]];
            for (part, bytes) in ["gate", "up"].into_iter().zip(tensor.bytes.chunks_exact(tensor.bytes.len() / 2)) {
                let (name, dtype) = (format!("{prefix}shared_mlp.{part}_proj.weight"), tensor.dtype.clone());
                apart.push(Stored { name, dtype, shape: shape.clone(), bytes: bytes.to_vec() });
            }
            continue;
        }
        let Some(prefix) = ["gate_up_proj", "up_proj", "down_proj"]
            .iter()
            .find_map(|part| tensor.name.strip_suffix(&format!("experts.{part}")))
        else {
            apart.push(tensor);
            continue;
        };
        // Gemma 4's stay together.
        if prefix.trim_end_matches('.').ends_with(|last: char| last.is_ascii_digit()) {
            apart.push(tensor);
            continue;
        }
        let parts: &[&str] = match tensor.name.rsplit_once('.') {
            Some((_, "gate_up_proj")) => &["gate_proj", "up_proj"],
            Some((_, "up_proj")) => &["up_proj"],
            _ => &["down_proj"],
        };
        let &[experts, rows, width] = tensor.shape.as_slice() else { panic!("a stack has three dimensions") };
        let (shape, len) = (vec![rows / parts.len(), width], tensor.bytes.len() / experts / parts.len());
        for (index, bytes) in tensor.bytes.chunks_exact(len).enumerate() {
            let (expert, part) = (index / parts.len(), parts[index % parts.len()]);
            let name = format!("{prefix}experts.{expert}.{part}.weight");
            apart.push(Stored { name, dtype: tensor.dtype.clone(), shape: shape.clone(), bytes: bytes.to_vec() });
        }
    }
    apart
}

/// A stack of columns in 16 bits as one of rows.
fn of_rows(tensor: Stored) -> Stored {
    let &[experts, columns, rows] = tensor.shape.as_slice() else { return tensor };
    let numbers = tensor.bytes.as_chunks::<2>().0;
    let at = |i: usize| (i / (rows * columns) * columns + i % columns) * rows + i / columns % rows;
    let bytes = (0..numbers.len()).flat_map(|i| numbers[at(i)]).collect();
    Stored { shape: vec![experts, rows, columns], bytes, ..tensor }
}

/// Tensors of single experts as ggml's stacks.
fn stacked_experts(tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>) -> Vec<(String, Vec<u64>, u32, Vec<u8>)> {
    let mut stacked: Vec<(String, Vec<u64>, u32, Vec<u8>)> = Vec::new();
    for (name, dims, number, bytes) in tensors {
        let expert = name.split_once("experts.").and_then(|(prefix, rest)| Some((prefix, rest.split_once('.')?.1)));
        let Some((prefix, module)) = expert else {
            stacked.push((name, dims, number, bytes));
            continue;
        };
        let (part, kind) = module.split_once('.').unwrap();
        let module = match part {
            "gate_proj" | "w1" => "ffn_gate_exps",
            "up_proj" | "w3" => "ffn_up_exps",
            _ => "ffn_down_exps",
        };
        let layer = prefix.replace("mlp.", "").replace("block_sparse_moe.", "").replace("feed_forward.", "");
        let layer = layer.replace("mixer.", "");
        let name = format!("{layer}{module}.{kind}");
        match stacked.iter_mut().find(|(other, ..)| *other == name) {
            Some((_, dims, _, all)) => {
                *dims.last_mut().unwrap() += 1;
                all.extend(bytes);
            }
            None => stacked.push((name, [dims, vec![1]].concat(), number, bytes)),
        }
    }
    stacked
}

/// q, k and v of each layer as one tensor, as most files of GLM-4 have them.
fn fuse_qkv(tensors: &mut Vec<(String, Vec<u64>, u32, Vec<u8>)>) {
    let parts = tensors.extract_if(.., |(name, ..)| ["attn_k.", "attn_v."].iter().any(|part| name.contains(part)));
    let parts: Vec<_> = parts.collect();
    for (name, dims, _, bytes) in tensors.iter_mut().filter(|(name, ..)| name.contains("attn_q.")) {
        for part in ["attn_k.", "attn_v."] {
            let part = name.replace("attn_q.", part);
            let (_, more, _, its) = parts.iter().find(|(name, ..)| *name == part).unwrap();
            *dims.last_mut().unwrap() += more.last().unwrap();
            bytes.extend(its);
        }
        *name = name.replace("attn_q.", "attn_qkv.");
    }
}

fn ggml_name(architecture: &str, name: &str) -> String {
    let own: &[(&str, &str)] = match architecture {
        "gemma2" | "gemma3" => &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
        "gemma4" => &[
            ("model.embed_tokens_per_layer", "per_layer_token_embd"),
            ("model.per_layer_model_projection", "per_layer_model_proj"),
            ("model.per_layer_projection_norm", "per_layer_proj_norm"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("per_layer_input_gate", "inp_gate"),
            ("post_per_layer_input_norm", "post_norm"),
            ("per_layer_projection", "proj"),
            ("layer_scalar", "layer_output_scale.weight"),
            ("router.proj", "ffn_gate_inp"),
            ("router.scale", "ffn_gate_inp.scale"),
            ("router.per_expert_scale", "ffn_down_exps.scale"),
            ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            ("experts.down_proj", "ffn_down_exps.weight"),
        ],
        "muse-glimmer" => &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("self_attn.gate_proj", "attn_gate"),
        ],
        "llama4" => &[
            ("feed_forward.router", "ffn_gate_inp"),
            ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
            ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
        ],
        "gpt-oss" => &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("mlp.router", "ffn_gate_inp"),
            ("self_attn.sinks", "attn_sinks.weight"),
        ],
        "olmo2" | "exaone4" | "seed_oss" => {
            &[("post_attention_layernorm", "post_attention_norm"), ("post_feedforward_layernorm", "post_ffw_norm")]
        }
        "phi3" => &[("mlp.gate_up_proj", "ffn_up"), ("self_attn.qkv_proj", "attn_qkv")],
        "apertus" => &[("attention_layernorm", "attn_norm"), ("feedforward_layernorm", "ffn_norm")],
        "starcoder2" => &[("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")],
        "glm4" | "chatglm" => &[
            ("post_self_attn_layernorm", "post_attention_norm"),
            ("post_mlp_layernorm", "post_ffw_norm"),
            ("mlp.gate_up_proj", "ffn_up"),
        ],
        "hunyuan-dense" | "hunyuan-moe" => &[
            ("self_attn.query_layernorm", "attn_q_norm"),
            ("self_attn.key_layernorm", "attn_k_norm"),
            ("mlp.gate.wg", "ffn_gate_inp"),
            ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
            ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
        ],
        "qwen2moe" => &[
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ],
        "lfm2" | "lfm2moe" => &[
            ("model.embedding_norm", "token_embd_norm"),
            ("operator_norm", "attn_norm"),
            ("conv.conv", "shortconv.conv"),
            ("conv.in_proj", "shortconv.in_proj"),
            ("conv.out_proj", "shortconv.out_proj"),
            ("self_attn.out_proj", "attn_output"),
            ("self_attn.q_layernorm", "attn_q_norm"),
            ("self_attn.k_layernorm", "attn_k_norm"),
            ("feed_forward.expert_bias", "exp_probs_b.bias"),
            ("feed_forward.gate.", "ffn_gate_inp."),
            ("feed_forward.w1", "ffn_gate"),
            ("feed_forward.w3", "ffn_up"),
            ("feed_forward.w2", "ffn_down"),
        ],
        "kimi-linear" => &[
            ("self_attn.q_conv1d", "ssm_conv1d_q"),
            ("self_attn.k_conv1d", "ssm_conv1d_k"),
            ("self_attn.v_conv1d", "ssm_conv1d_v"),
            ("self_attn.f_a_proj", "ssm_f_a"),
            ("self_attn.f_b_proj", "ssm_f_b"),
            ("self_attn.g_a_proj", "ssm_g_a"),
            ("self_attn.g_b_proj", "ssm_g_b"),
            ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
            ("self_attn.kv_b_proj", "attn_kv_b"),
            ("self_attn.k_b_proj", "attn_k_b"),
            ("self_attn.v_b_proj", "attn_v_b"),
            ("self_attn.q_a_proj", "attn_q_a"),
            ("self_attn.q_a_layernorm", "attn_q_a_norm"),
            ("self_attn.q_b_proj", "attn_q_b"),
            ("self_attn.b_proj", "ssm_beta"),
            ("self_attn.o_norm", "ssm_norm"),
            ("self_attn.dt_bias", "ssm_dt.bias"),
            ("self_attn.A_log", "ssm_a"),
            ("block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ("block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
            ("block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
            ("block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
            ("block_sparse_moe.gate_proj", "ffn_gate"),
            ("block_sparse_moe.up_proj", "ffn_up"),
            ("block_sparse_moe.down_proj", "ffn_down"),
        ],
        "falcon-h1" => &[
            ("model.final_layernorm", "output_norm"),
            ("pre_ff_layernorm", "ffn_norm"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
            ("mamba.in_proj", "ssm_in"),
            ("mamba.conv1d", "ssm_conv1d"),
            ("mamba.norm", "ssm_norm"),
            ("mamba.out_proj", "ssm_out"),
            ("mamba.dt_bias", "ssm_dt.bias"),
            ("mamba.A_log", "ssm_a"),
            ("mamba.D", "ssm_d"),
        ],
        "nemotron_h_moe" => &[
            ("backbone.", "model."),
            ("model.embeddings", "token_embd"),
            ("model.norm_f", "output_norm"),
            ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ("mixer.gate.", "ffn_gate_inp."),
            ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
            ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
            ("mixer.fc1_latent_proj", "ffn_latent_down"),
            ("mixer.fc2_latent_proj", "ffn_latent_up"),
            ("mixer.q_proj", "attn_q"),
            ("mixer.k_proj", "attn_k"),
            ("mixer.v_proj", "attn_v"),
            ("mixer.o_proj", "attn_output"),
            ("mixer.up_proj", "ffn_up"),
            ("mixer.down_proj", "ffn_down"),
            ("mixer.in_proj", "ssm_in"),
            ("mixer.conv1d", "ssm_conv1d"),
            ("mixer.norm", "ssm_norm"),
            ("mixer.out_proj", "ssm_out"),
            ("mixer.dt_bias", "ssm_dt.bias"),
            ("mixer.A_log", "ssm_a"),
            ("mixer.D", "ssm_d"),
            (".norm.weight", ".attn_norm.weight"),
        ],
        "granitemoe" | "granitehybrid" => &[
            ("shared_mlp.gate_proj", "ffn_gate_shexp"),
            ("shared_mlp.up_proj", "ffn_up_shexp"),
            ("shared_mlp.output_linear", "ffn_down_shexp"),
            ("block_sparse_moe.router.layer", "ffn_gate_inp"),
            ("mamba.in_proj", "ssm_in"),
            ("mamba.conv1d", "ssm_conv1d"),
            ("mamba.norm", "ssm_norm"),
            ("mamba.out_proj", "ssm_out"),
            ("mamba.dt_bias", "ssm_dt.bias"),
            ("mamba.A_log", "ssm_a"),
            ("mamba.D", "ssm_d"),
        ],
        "qwen35" | "qwen35moe" | "qwen3next" => &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("linear_attn.in_proj_qkv", "attn_qkv"),
            ("linear_attn.in_proj_z", "attn_gate"),
            ("linear_attn.in_proj_ba", "ssm_ba"),
            ("linear_attn.in_proj_b", "ssm_beta"),
            ("linear_attn.in_proj_a", "ssm_alpha"),
            ("linear_attn.conv1d", "ssm_conv1d"),
            ("linear_attn.norm", "ssm_norm"),
            ("linear_attn.out_proj", "ssm_out"),
            ("linear_attn.dt_bias", "ssm_dt.bias"),
            ("linear_attn.A_log", "ssm_a"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ],
        "minimax-m2" => &[("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias")],
        "deepseek2" | "mistral4" | "dots1" | "ernie4_5-moe" | "cohere2moe" => &[
            ("self_attn.q_a_proj", "attn_q_a"),
            ("self_attn.q_a_layernorm", "attn_q_a_norm"),
            ("self_attn.q_b_proj", "attn_q_b"),
            ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
            ("self_attn.k_b_proj", "attn_k_b"),
            ("self_attn.v_b_proj", "attn_v_b"),
            ("self_attn.kv_b_proj", "attn_kv_b"),
            ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"),
            ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
            ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
        ],
        "glm4moe" => &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
            ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
        ],
        _ => &[],
    };
    const ALL: [(&str, &str); 21] = [
        ("eh_proj", "nextn.eh_proj"),
        ("enorm", "nextn.enorm"),
        ("hnorm", "nextn.hnorm"),
        ("shared_head.norm", "nextn.shared_head_norm"),
        ("model.layers.", "blk."),
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
        ("mlp.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ];
    own.iter().chain(&ALL).fold(name.to_string(), |name, (theirs, ggml)| name.replace(theirs, ggml))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Stored {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The tensors in a directory's safetensors files.
fn stored_tensors(directory: &Path) -> Vec<Stored> {
    let mut tensors = Vec::new();
    for entry in directory.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        for (name, info) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let shape: Vec<usize> = serde_json::from_value(info["shape"].clone()).unwrap();
            let [begin, end]: [usize; 2] = serde_json::from_value(info["data_offsets"].clone()).unwrap();
            let data = bytes[8 + length + begin..8 + length + end].to_vec();
            tensors.push(Stored { name, dtype: info["dtype"].as_str().unwrap().to_string(), shape, bytes: data });
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
    let byte_level = std::fs::read_to_string(data("../../../text/tests/data/byte_level.json")).unwrap();
    let mut json: Value = serde_json::from_str(&byte_level).unwrap();
    json["normalizer"] = Value::Null; // of the names with this pattern, none normalizes
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
            Value::String(merge) => merge.clone(),
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
    for alone in ["tekken", "qwen35", "seed-coder", "deepseek-coder", "command-r", "stablelm2"] {
        assert_eq!(digits(alone), 7, "{alone}");
    }
    for by_threes in ["gpt-4o", "llama4", "deepseek-v3", "minicpm5", "falcon", "default", "glm4", "kimi-k2"] {
        assert_eq!(digits(by_threes), digits("dbrx"), "{by_threes}");
    }
    // Chinese characters end a word, and other letters do as with o200k.
    for (text, pieces) in [
        ("Camel's été日本 12", &["Camel's été", "日本", " 12"][..]),
        ("日abc", &["日", "abc"]),
        ("a日 b", &["a", "日", " b"]),
    ] {
        let apart: Vec<u32> = pieces.iter().flat_map(|piece| load("gpt-4o").encode(piece, false).unwrap()).collect();
        assert_eq!(load("kimi-k2").encode(text, false).unwrap(), apart, "{text:?}");
    }
    // Characters that are written as two become one first, and marks are parts of words.
    for (text, normalized) in [("e\u{301}te\u{301}", "\u{e9}t\u{e9}"), ("caf\u{e9}", "caf\u{e9}")] {
        assert_eq!(load("qwen35").encode(text, false), load("qwen35").encode(normalized, false), "{text:?}");
        assert_eq!(load("qwen35").encode(text, false), load("qwen2").encode(text, false), "{text:?}");
    }
    // Letters with a case, others and digits in pieces of their own: nothing is lost between the patterns.
    for text in ["DeepSeek LLM", "1234567", "  a\n\n b ", "Ünïcode ΑΒΓ, привет", "こんにちは 世界 가나"]
    {
        let tokenizer = load("deepseek-llm");
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text, "deepseek-llm");
    }
    // The same pattern by another name.
    for (one, others) in [
        ("llama-bpe", &["falcon3", "pixtral", "lfm2", "midm-2.0"][..]),
        ("gpt-2", &["phi-2", "mpt", "olmo", "trillion", "roberta-bpe"]),
        ("refact", &["minerva-7b", "exaone", "mellum2"]),
        ("gpt-4o", &["llama4", "kanana2", "minimax-m2"]),
    ] {
        for other in others {
            for text in texts {
                assert_eq!(load(other).encode(text, false), load(one).encode(text, false), "{other}: {text:?}");
            }
        }
    }
    for pre in
        ["gpt-2", "llama-bpe", "refact", "tekken", "gpt-4o", "deepseek-v3", "deepseek-coder", "falcon", "default"]
    {
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
    // Control tokens have type 3.
    for (tokens, types, ends) in [
        (["a", "</s>", "<|im_end|>", "<|eot_id|>"], [1, 3, 3, 1], vec![1, 2]),
        (["a", "<|return|>", "<|end|>", "<|endoftext|>"], [1, 3, 3, 3], vec![1, 2, 3]),
        (["<|call|>", "<|return|>", "<|end|>", "<|endoftext|>"], [3, 3, 3, 3], vec![0, 1, 3]),
    ] {
        let types: Vec<u8> = types.into_iter().flat_map(i32::to_le_bytes).collect();
        let settings = [
            text_setting("general.architecture", "llama"),
            text_setting("tokenizer.ggml.model", "gpt2"),
            texts_setting("tokenizer.ggml.tokens", &tokens),
            list_setting("tokenizer.ggml.token_type", 5, 4, &types),
            u32_setting("tokenizer.ggml.eos_token_id", 1),
            f32_setting("llama.attention.layer_norm_rms_epsilon", 1e-5),
        ];
        let checkpoint = embedded(vec![("t.gguf", file(&settings, &[]))]);
        let config = checkpoint.read_text("config.json").unwrap().unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["eos_token_id"], serde_json::json!(ends), "of the names, only control tokens: {tokens:?}");
    }
}

/// A tensor of any type, packed in any class of as many bits: every weight is the one in the file, bit by bit.
#[test]
fn every_type_is_held_as_it_is() {
    let (weights, backend) = (Weights::open(&gguf("blocks.gguf")).unwrap(), Reference::new());
    let wide = ["Q5_0", "Q5_1", "Q8_0", "Q5_K", "Q6_K"];
    for (name, ..) in SCALES {
        let shape = shape_of(name);
        let [rows, width] = shape;
        for class in [WeightClass::Int8, WeightClass::Int4] {
            if class == WeightClass::Int4 && wide.contains(&name) {
                continue;
            }
            let part = TensorSlice { name: name.to_string(), shape: shape.to_vec(), rows: 0..rows, transposed: false };
            let packed = weights.pack(&backend, class, width, &[part]).unwrap();
            let stored = weights.tensor(name, &shape).unwrap().rows().unwrap();
            let (mut held, mut wanted) = (vec![0.0; width], vec![0.0f32; width]);
            for row in 0..rows {
                kernels::HostBackend::embed(&backend, &packed, &[row as u32], &mut held);
                stored.read(row, &mut wanted).unwrap();
                for (i, (held, wanted)) in held.iter().zip(&wanted).enumerate() {
                    let same = held.to_bits() == wanted.to_bits() || (held.is_nan() && wanted.is_nan());
                    assert!(same, "{name} in {class:?}: row {row}, number {i}: {held:e}, not {wanted:e}");
                }
            }
        }
    }
}

/// What holding a quantized model in the class that `class_for` proposes adds to the error that it has already:
/// relative L2 of the logits against float32 arithmetic on the dequantized floats.
#[test]
fn the_error_that_classes_add() {
    let tokens = random_tokens(8, 40, 128);
    let floats = dequantized(&gguf("mixed.gguf"));
    let exact = run_alone(&mut load(Float32::new(Some(1)).unwrap(), &floats, WeightClass::Bf16), &tokens).concat();
    let error = |class| {
        let found = run_alone(&mut load(Reference::new(), &gguf("mixed.gguf"), class), &tokens).concat();
        let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
        let difference = squares(&mut found.iter().zip(&exact).map(|(found, exact)| found - exact));
        (difference / squares(&mut exact.iter().copied())).sqrt()
    };
    let [bf16, int8, int4] = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4].map(error);
    println!("relative L2 of logits: bf16 {bf16:.4}, int8 {int8:.4}, int4 {int4:.4}");
    assert!(bf16 < 0.01 && int8 < 0.025 && int4 < 0.25, "bf16 {bf16}, int8 {int8}, int4 {int4}");
}

#[test]
fn the_class_of_each_type() {
    use checkpoint::BlockType::*;
    use checkpoint::encoding::Encoding;
    use checkpoint::encoding::class_for;
    for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16] {
        assert_eq!(class_for(encoding), WeightClass::Bf16);
    }
    for block in checkpoint::BlockType::ALL {
        let is_wide = [Q8_0, Q5_0, Q5_1, Q5_K, Q6_K].contains(&block);
        let wanted = if is_wide { WeightClass::Int8 } else { WeightClass::Int4 };
        assert_eq!(class_for(Encoding::Quantized(block)), wanted, "{block:?}");
    }
}
