//! Quantized safetensors: tiny checkpoints in each layout, made by `oracle/quantized.py`, against the float32 weights
//! that they stand for; and what a broken or unknown one is told.

use crate::common;

use checkpoint::weights::{TensorSlice, Weights};
use checkpoint::{Checkpoint, LoadError, Source};
use common::*;
use kernels::{Reference, WeightClass};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantized")
}

fn cases() -> Vec<String> {
    let entries = directory().read_dir().expect("committed").map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    assert!(names.len() >= 8, "{names:?}");
    names
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(Source::Directory(directory().join(name))).unwrap()
}

fn json_file(name: &str, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory().join(name).join(file)).unwrap()).unwrap()
}

/// A model in memory.
fn embedded(files: Vec<(&'static str, Vec<u8>)>) -> Checkpoint {
    let files: Vec<(&str, &[u8])> = files.into_iter().map(|(name, bytes)| (name, &*bytes.leak())).collect();
    Checkpoint::open(Source::Embedded { name: "test", files: files.leak() }).unwrap()
}

/// Tensors of a safetensors file: name, dtype, shape, bytes.
type Tensors = Vec<(String, String, Vec<usize>, Vec<u8>)>;

fn write(tensors: &Tensors) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    [(header.len() as u64).to_le_bytes().to_vec(), header.into_bytes(), data].concat()
}

fn read(name: &str) -> Tensors {
    let bytes = std::fs::read(directory().join(name).join("model.safetensors")).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let numbers = |value: &Value| -> Vec<usize> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
    };
    let read = tensors.map(|(name, entry)| {
        let offsets = numbers(&entry["data_offsets"]);
        let bytes = bytes[data + offsets[0]..data + offsets[1]].to_vec();
        (name.clone(), entry["dtype"].as_str().unwrap().to_string(), numbers(&entry["shape"]), bytes)
    });
    read.collect()
}

/// The rows of a matrix, one after the other.
fn matrix(weights: &Weights, name: &str, shape: [usize; 2]) -> Vec<f32> {
    let rows = weights.tensor(name, &shape).unwrap().rows().unwrap();
    let mut values = vec![f32::NAN; shape[0] * shape[1]];
    for (row, out) in values.chunks_exact_mut(shape[1]).enumerate() {
        rows.read(row, out).unwrap();
    }
    values
}

/// `(name, shape, SHA-256)` of the matrices that a case stands for.
fn expected(name: &str) -> Vec<(String, [usize; 2], String)> {
    let expected = json_file(name, "expected.json");
    let each = expected.as_object().unwrap().iter().map(|(tensor, entry)| {
        let size = |index: usize| entry["shape"][index].as_u64().unwrap() as usize;
        (tensor.clone(), [size(0), size(1)], entry["sha256"].as_str().unwrap().to_string())
    });
    each.collect()
}

#[test]
fn every_layout_stands_for_the_weights_that_its_makers_say() {
    for name in cases() {
        let weights = Weights::open(&open(&name)).unwrap();
        for (tensor, shape, sha256) in expected(&name) {
            let values = matrix(&weights, &tensor, shape);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, sha256, "{name}: {tensor} begins with {:?}", &values[..4]);
        }
    }
}

/// The same model with its matrices in float32.
fn plain(name: &str) -> Checkpoint {
    let weights = Weights::open(&open(name)).unwrap();
    let quantized = expected(name);
    let is_quantized = |tensor: &str| {
        quantized.iter().any(|(name, ..)| tensor.starts_with(name.strip_suffix(".weight").expect("of a module")))
    };
    let mut tensors: Tensors = read(name).into_iter().filter(|(tensor, ..)| !is_quantized(tensor)).collect();
    for (tensor, shape, _) in &quantized {
        let bytes = matrix(&weights, tensor, *shape).iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.push((tensor.clone(), "F32".to_string(), shape.to_vec(), bytes));
    }
    let mut config = json_file(name, "config.json");
    config.as_object_mut().unwrap().remove("quantization_config");
    embedded(vec![("config.json", config.to_string().into_bytes()), ("model.safetensors", write(&tensors))])
}

#[test]
fn a_quantized_checkpoint_computes_as_its_weights_in_float32_do() {
    let tokens = random_tokens(7, 40, 32);
    for name in cases() {
        let bits = |checkpoint: &Checkpoint| -> Vec<u32> {
            let rows = run_alone(&mut load(Reference::new(), checkpoint, WeightClass::Bf16), &tokens);
            rows.iter().flatten().map(|logit| logit.to_bits()).collect()
        };
        assert_eq!(bits(&open(&name)), bits(&plain(&name)), "{name}");
    }
}

/// What loading `tensors` with `config` says.
fn complaint(config: &Value, tensors: &Tensors) -> String {
    let checkpoint =
        embedded(vec![("config.json", config.to_string().into_bytes()), ("model.safetensors", write(tensors))]);
    let loaded = model::load(Reference::new(), &checkpoint, &options(WeightClass::Bf16), &mut |_| {});
    match loaded {
        Ok(_) => "nothing".to_string(),
        Err(error @ (LoadError::Field { .. } | LoadError::Shape { .. } | LoadError::NoTensor { .. })) => {
            error.to_string()
        }
        Err(error) => panic!("an error without a field: {error}"),
    }
}

#[test]
fn what_is_not_computed_is_refused_by_the_name_of_its_field() {
    let table: &[(&str, &str, Value, &str)] = &[
        ("gptq-sym", "quant_method", json!("bitsandbytes"), "quant_method: \"bitsandbytes\" is unsupported"),
        ("gptq-sym", "quant_method", Value::Null, "quant_method: it is missing; supported are \"gptq\""),
        ("gptq-sym", "quant_method", json!("fp8"), "q_proj.weight"),
        ("nvfp4", "quant_method", json!("modelopt"), "down_proj.weight\": missing"),
        (
            "fp8-blocks",
            "weight_block_size",
            json!([128, 0]),
            "weight_block_size: expected two sizes, such as [128, 128]",
        ),
        ("fp8-blocks", "activation_scheme", json!("static"), "nothing"),
        ("fp8-blocks", "weight_block_size", Value::Null, "down_proj.weight_scale_inv"),
        ("fp8-blocks", "fmt", json!("e5m2"), "fmt: \"e5m2\" is unsupported"),
        ("gptq-sym", "bits", json!(3), "quantization_config.bits: 3 is unsupported; expected 4 or 8"),
        ("gptq-sym", "bits", json!(8), "down_proj.qzeros\": shape [3, 8]; the module's other tensors require [3, 16]"),
        ("auto-round-8-bits", "packing_format", json!("auto_round"), "packing_format: \"auto_round\" is unsupported"),
        ("auto-round-8-bits", "data_type", json!("mx_fp"), "data_type: \"mx_fp\" is unsupported"),
        ("auto-round-8-bits", "extra_config", Value::Null, "k_proj.qzeros\": shape [2, 4]"),
        ("auto-round-8-bits", "extra_config", json!({"a": {"bits": 2}}), "extra_config.a.bits: 2 is unsupported"),
        ("gptq-sym", "checkpoint_format", json!("marlin"), "checkpoint_format: \"marlin\" is unsupported"),
        ("gptq-sym", "is_marlin_format", json!(true), "is_marlin_format: true is unsupported"),
        ("gptq-sym", "pack_dtype", json!("int16"), "pack_dtype"),
        ("gptq-sym", "dynamic", json!({"+:.*down.*": {"bits": 8}}), "nothing"),
        ("gptq-sym", "dynamic", json!({"+:.*down.*": {"bits": 2}}), "quantization_config.dynamic.+:.*down.*.bits: 2"),
        ("gptq-sym", "dynamic", json!({"-:.*router.*": {}}), "nothing"),
        ("awq", "bits", json!(3), "quantization_config.bits: 3 is unsupported"),
        ("awq", "version", json!("gemv"), "version: \"gemv\" is unsupported; expected \"gemm\" or \"GEMM\""),
        ("awq", "version", json!("GEMM"), "nothing"),
        (
            "awq",
            "modules_to_not_convert",
            json!(["k_proj"]),
            "modules_to_not_convert: lists \"k_proj\" as not quantized",
        ),
        ("awq", "modules_to_not_convert", json!("k_proj"), "modules_to_not_convert: not a list of texts"),
        ("w8a8-channel", "format", json!("mxfp6-pack-quantized"), "format: \"mxfp6-pack-quantized\" is unsupported"),
        ("w8a8-channel", "kv_cache_scheme", json!({"num_bits": 8}), "nothing"),
        ("w8a8-channel", "quantization_status", json!("frozen"), "quantization_status"),
        ("w8a8-channel", "sparsity_config", json!({"format": "sparse-24-bitmask"}), "sparsity_config.format"),
        ("w8a8-channel", "transform_config", json!({"config_groups": {}}), "transform_config"),
        ("w8a8-channel", "config_groups", Value::Null, "config_groups: missing"),
        (
            "w8a8-channel",
            "ignore",
            json!(["model.layers.0.mlp.up_proj"]),
            "ignore: lists \"model.layers.0.mlp.up_proj\"",
        ),
    ];
    for (name, field, value, wanted) in table {
        let mut config = json_file(name, "config.json");
        config["quantization_config"][field] = value.clone();
        let found = complaint(&config, &read(name));
        assert!(found.contains(wanted), "{name}, {field} = {value}: {found}");
    }
    // ModelOpt's newer exports have the method in config.json.
    for (algorithm, wanted) in [("NVFP4", "nothing"), ("W4A16_AWQ", "quant_algo: \"W4A16_AWQ\" is unsupported")] {
        let mut config = json_file("nvfp4-modelopt", "config.json");
        config["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": algorithm});
        let found = complaint(&config, &read("nvfp4-modelopt"));
        assert!(found.contains(wanted), "{algorithm}: {found}");
    }
    let groups: &[(&str, &str, Value)] = &[
        ("weights", "type", json!("nf")),
        ("weights", "num_bits", json!(3)),
        ("weights", "num_bits", json!(16)),
        ("weights", "strategy", json!("block")),
        ("weights", "dynamic", json!(true)),
    ];
    for (part, field, value) in groups {
        let mut config = json_file("w8a8-channel", "config.json");
        config["quantization_config"]["config_groups"]["group_0"][part][field] = value.clone();
        let found = complaint(&config, &read("w8a8-channel"));
        let wanted = format!("config.json: quantization_config.config_groups.group_0.{part}.{field}: ");
        assert!(found.starts_with(&wanted), "{part}.{field} = {value}: {found}");
    }
}

#[test]
fn a_broken_module_is_named_with_its_file() {
    type Damage = fn(&mut Tensors);
    fn edit(tensors: &mut Tensors, suffix: &str, change: impl Fn(&mut (String, String, Vec<usize>, Vec<u8>))) {
        let tensor = tensors.iter_mut().find(|(name, ..)| name.ends_with(suffix)).expect("such a tensor");
        change(tensor);
    }
    fn remove(tensors: &mut Tensors, suffix: &str) {
        tensors.retain(|(name, ..)| !name.ends_with(suffix));
    }
    let table: &[(&str, Damage, &[&str])] = &[
        ("gptq-sym", |t| remove(t, "q_proj.scales"), &["q_proj.scales", "missing"]),
        ("gptq-sym", |t| remove(t, "q_proj.qzeros"), &["q_proj.qweight", "no qzeros"]),
        ("gptq-sym", |t| remove(t, "q_proj.qweight"), &["q_proj.weight", "missing"]),
        ("gptq-sym", |t| edit(t, "q_proj.qweight", |t| t.1 = "F32".into()), &["q_proj.qweight", "dtype F32", "I32"]),
        ("gptq-sym", |t| edit(t, "q_proj.scales", |t| t.2 = vec![64, 2]), &["q_proj.scales", "[64, 2]", "[64, 64]"]),
        ("gptq-sym", |t| edit(t, "q_proj.scales", |t| t.2 = vec![128]), &["q_proj.qweight", "two dimensions"]),
        ("gptq-sym", |t| edit(t, "q_proj.qzeros", |t| t.2 = vec![16]), &["q_proj.qzeros", "[16]", "[2, 8]"]),
        (
            "gptq-sym",
            |t| edit(t, "q_proj.g_idx", |t| t.3[4..8].fill(0x7f)),
            &["q_proj.g_idx", "input 1", "there are 2"],
        ),
        ("gptq-sym", |t| edit(t, "q_proj.g_idx", |t| t.3[4..8].fill(0xff)), &["q_proj.g_idx", "group -1"]),
        ("w4a16-group", |t| remove(t, "o_proj.weight_shape"), &["o_proj.weight_shape", "missing"]),
        (
            "w4a16-group",
            |t| edit(t, "o_proj.weight_shape", |t| t.3[0] = 65),
            &["o_proj.weight_packed", "does not hold 4-bit codes for 65 x 64"],
        ),
        (
            "w4a16-group",
            |t| edit(t, "o_proj.weight_shape", |t| t.3.fill(0xff)),
            &["o_proj.weight_shape", "expected two sizes"],
        ),
        (
            "w4a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.2 = vec![2, 64]),
            &["o_proj.weight_scale", "[2, 64]", "[64, groups]"],
        ),
        ("w8a16-group", |t| remove(t, "o_proj.weight_shape"), &["o_proj.weight_shape", "missing"]),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_shape", |t| t.3[0] = 65),
            &["o_proj.weight_packed", "shape [64, 16] does not hold 8-bit codes for 65 x 64"],
        ),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_shape", |t| (t.1, t.2, t.3) = ("F32".into(), vec![1], vec![0; 4])),
            &["o_proj.weight_shape", "dtype F32; expected I64 or I32"],
        ),
        (
            "w8a16-group",
            |t| {
                edit(t, "o_proj.weight_packed", |t| {
                    t.2[1] = 8;
                    t.3.truncate(64 * 8 * 4);
                })
            },
            &["o_proj.weight_packed", "shape [64, 8] does not hold 8-bit codes for 64 x 64"],
        ),
        ("w8a16-group", |t| edit(t, "o_proj.weight_packed", |t| t.2 = vec![1024]), &["o_proj.weight_packed", "[1024]"]),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_packed", |t| t.1 = "F32".into()),
            &["o_proj.weight_packed", "dtype F32; expected I32"],
        ),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.1 = "I16".into()),
            &["o_proj.weight_scale", "dtype I16"],
        ),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.2 = vec![2, 64]),
            &["o_proj.weight_scale", "[2, 64]", "[64, groups]"],
        ),
        (
            "w8a16-group",
            |t| {
                edit(t, "o_proj.weight_scale", |t| {
                    t.2[1] = 3;
                    t.3.resize(64 * 3 * 2, 0);
                })
            },
            &["o_proj.weight_scale", "3 groups of 32 do not divide 64 inputs"],
        ),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[6..8].copy_from_slice(&[0, 0x7e])),
            &["o_proj.weight_scale", "scale 3 is NaN"],
        ),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[6..8].copy_from_slice(&[0, 0xfc])),
            &["o_proj.weight_scale", "scale 3 is -inf"],
        ),
        (
            "w8a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[6..8].fill(0)),
            &["o_proj.weight_scale", "scale of group", "of output", "is 0, but its codes are not"],
        ),
        (
            "w8a8-channel",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[..4].fill(0)),
            &["o_proj.weight_scale", "the scale of group 0 of output 0 is 0, but its codes are not"],
        ),
        (
            "w4a16-group",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[..4].fill(0)),
            &["o_proj.weight_scale", "the scale of group 0 of output 0 is 0, but its codes are not"],
        ),
        (
            "w8a16-channel-asym",
            |t| edit(t, "o_proj.weight_zero_point", |t| t.2 = vec![1, 16]),
            &["o_proj.weight_zero_point", "[1, 16]", "[16, 1]"],
        ),
        (
            "w8a16-channel-asym",
            |t| edit(t, "o_proj.weight_zero_point", |t| t.1 = "F32".into()),
            &["o_proj.weight_zero_point", "dtype F32; expected I32"],
        ),
        (
            "gptq-sym",
            |t| edit(t, "q_proj.scales", |t| t.3[..2].copy_from_slice(&[0, 0x7c])),
            &["q_proj.scales", "scale 0 is inf"],
        ),
        (
            "gptq-8-bits-desc-act",
            |t| edit(t, "q_proj.qzeros", |t| t.2 = vec![4, 8]),
            &["q_proj.qzeros", "[4, 8]", "[2, 16]"],
        ),
        ("nvfp4", |t| remove(t, "o_proj.weight_global_scale"), &["o_proj.weight_global_scale", "missing"]),
        ("nvfp4", |t| remove(t, "o_proj.weight_packed"), &["o_proj.weight_scale", "dtype F8_E4M3"]),
        (
            "nvfp4",
            |t| edit(t, "o_proj.weight_global_scale", |t| t.3.fill(0)),
            &["o_proj.weight_global_scale", "0e0", "not a finite number"],
        ),
        (
            "nvfp4",
            |t| edit(t, "o_proj.weight_global_scale", |t| t.1 = "I32".into()),
            &["o_proj.weight_global_scale", "dtype I32; expected F32"],
        ),
        (
            "nvfp4",
            |t| edit(t, "o_proj.weight_packed", |t| t.2 = vec![512, 4]),
            &["o_proj.weight_packed", "[512, 4]", "16 codes"],
        ),
        (
            "nvfp4",
            |t| edit(t, "o_proj.weight_scale", |t| t.2 = vec![32, 8]),
            &["o_proj.weight_scale", "[32, 8]", "[64, 4]"],
        ),
        ("nvfp4", |t| edit(t, "o_proj.weight_scale", |t| t.3[2] = 0x7f), &["o_proj.weight_scale", "scale 2 is NaN"]),
        ("nvfp4", |t| edit(t, "o_proj.weight_scale", |t| t.1 = "I8".into()), &["o_proj.weight_scale", "dtype I8"]),
        (
            "mxfp4",
            |t| edit(t, "o_proj.weight_scale", |t| t.2 = vec![128]),
            &["o_proj.weight_scale", "[128]", "[64, 2]"],
        ),
        ("mxfp4", |t| edit(t, "o_proj.weight_scale", |t| t.3[3] = 255), &["o_proj.weight", "a scale of block 3"]),
        (
            "mxfp4",
            |t| edit(t, "o_proj.weight_packed", |t| t.2 = vec![256, 8]),
            &["o_proj.weight_packed", "[256, 8]", "inputs / 32"],
        ),
        ("mxfp8", |t| edit(t, "o_proj.weight_scale", |t| t.3[3] = 255), &["o_proj.weight_scale", "scale 3 is NaN"]),
        (
            "fp8-tensor",
            |t| edit(t, "o_proj.weight_scale_inv", |t| (t.2, t.3) = (vec![2], vec![0; 4])),
            &["o_proj.weight_scale_inv", "[2]", "[64, 1]"],
        ),
        ("fp8-blocks", |t| remove(t, "o_proj.weight_scale_inv"), &["o_proj.weight_scale_inv", "missing"]),
        ("fp8-blocks", |t| remove(t, "o_proj.weight"), &["o_proj.weight", "missing"]),
        ("fp8-blocks", |t| edit(t, "o_proj.weight", |t| t.3[65] = 0xff), &["o_proj.weight", "weight 1 of output 1"]),
        ("fp8-blocks", |t| edit(t, "o_proj.weight", |t| t.1 = "F8_E5M2".into()), &["o_proj.weight", "F8_E5M2"]),
        (
            "fp8-blocks",
            |t| edit(t, "o_proj.weight_scale_inv", |t| t.2 = vec![1, 4]),
            &["o_proj.weight_scale_inv", "[1, 4]", "[2, 2]"],
        ),
        (
            "fp8-channel",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[0..2].copy_from_slice(&[0x80, 0x7f])),
            &["o_proj.weight_scale", "not a finite number"],
        ),
        ("w8a8-channel", |t| edit(t, "o_proj.weight", |t| t.1 = "U8".into()), &["o_proj.weight", "dtype U8"]),
        ("w8a8-channel", |t| remove(t, "o_proj.weight_scale"), &["o_proj.weight_scale", "missing"]),
        ("w4a16-group", |t| remove(t, "o_proj.weight_scale"), &["o_proj.weight_scale", "missing"]),
        // Parts that the configuration says all modules have: without them other weights would be computed with.
        ("gptq-asym-desc-act", |t| remove(t, "q_proj.g_idx"), &["q_proj.g_idx", "missing"]),
        ("awq", |t| remove(t, "q_proj.qzeros"), &["q_proj.qzeros", "missing"]),
        ("w8a16-channel-asym", |t| remove(t, "o_proj.weight_zero_point"), &["o_proj.weight_zero_point", "missing"]),
        ("w4a16-channel-asym", |t| remove(t, "o_proj.weight_zero_point"), &["o_proj.weight_zero_point", "missing"]),
        ("w8a8-tensor-asym", |t| remove(t, "o_proj.weight_zero_point"), &["o_proj.weight_zero_point", "missing"]),
        (
            "nvfp4",
            |t| edit(t, "o_proj.weight_global_scale", |t| t.3 = f32::INFINITY.to_le_bytes().to_vec()),
            &["o_proj.weight_global_scale", "inf, and with it every weight is lost"],
        ),
        (
            "nvfp4-modelopt",
            |t| edit(t, "k_proj.weight_scale_2", |t| t.3 = vec![0; 4]),
            &["k_proj.weight_scale_2", "every weight is lost"],
        ),
        (
            "fp8-channel",
            |t| edit(t, "o_proj.weight_scale", |t| t.3[0..2].fill(0)),
            &["o_proj.weight_scale", "the scale of group 0 of output 0 is 0, but its codes are not"],
        ),
        ("w8a8-channel", |t| edit(t, "o_proj.weight", |t| t.2 = vec![4096]), &["o_proj.weight", "two dimensions"]),
    ];
    for (name, damage, wanted) in table {
        let mut tensors = read(name);
        damage(&mut tensors);
        let mut config = json_file(name, "config.json");
        if *name == "nvfp4-modelopt" {
            config["quantization_config"] = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
        }
        let found = complaint(&config, &tensors);
        for wanted in wanted.iter().chain(&["model.safetensors"]) {
            assert!(found.contains(wanted), "{name}: {wanted:?} is not in {found:?}");
        }
    }
}

/// A group of zeros has the scale 0 in some files, and a scale may be negative: quantizers that use all levels need it
/// where the largest number is positive.
#[test]
fn groups_of_zeros_and_negative_scales_are_legal() {
    for name in ["w4a16-group", "w8a16-group", "w8a8-channel"] {
        let tensors = read(name);
        let (module, shape) = ("model.layers.0.self_attn.o_proj", [64, 64]);
        let find = |suffix: &str| {
            let wanted = format!("{module}.{suffix}");
            tensors.iter().position(|(name, ..)| *name == wanted)
        };
        let (codes, scales) = (find("weight_packed").or(find("weight")).unwrap(), find("weight_scale").unwrap());
        let config = std::fs::read(directory().join(name).join("config.json")).unwrap();
        let weights = |tensors: &Tensors| {
            let files = vec![("config.json", config.clone()), ("model.safetensors", write(tensors))];
            matrix(&Weights::open(&embedded(files)).unwrap(), &format!("{module}.weight"), shape)
        };
        let plain = weights(&tensors);
        // Output 0: all codes the middle one, all scales 0. Output 1: the signs of its scales are turned.
        let mut changed = tensors.clone();
        let (row_bytes, scale_bytes) = (changed[codes].3.len() / 64, changed[scales].3.len() / 64);
        let size = if changed[scales].1 == "F32" { 4 } else { 2 };
        let zero = match name {
            "w4a16-group" => 0x88,
            "w8a16-group" => 0x80,
            _ => 0,
        };
        changed[codes].3[..row_bytes].fill(zero);
        changed[scales].3[..scale_bytes].fill(0);
        for at in (scale_bytes..2 * scale_bytes).step_by(size) {
            changed[scales].3[at + size - 1] ^= 0x80;
        }
        let found = weights(&changed);
        assert!(found[..64].iter().all(|&weight| weight == 0.0), "{name}");
        let turned = found[64..128].iter().zip(&plain[64..]).all(|(found, plain)| *found == -plain);
        assert!(turned && found[128..] == plain[128..], "{name}");
    }
}

/// What `config.json` says about the width of packed codes has to be true of the tensors.
#[test]
fn codes_of_another_width_are_refused() {
    let table = [
        ("w4a16-group", json!({"num_bits": 8}), "shape [64, 12] does not hold 8-bit codes for 64 x 96"),
        ("w8a16-group", json!({"num_bits": 4}), "shape [64, 24] does not hold 4-bit codes for 64 x 96"),
        ("w8a16-group", json!({"num_bits": null}), "nothing"),
        ("w8a16-group", json!({"format": "int-quantized"}), "no group of quantization_config in config.json is"),
    ];
    for (name, change, wanted) in table {
        let mut config = json_file(name, "config.json");
        let group = &mut config["quantization_config"]["config_groups"]["group_0"];
        for (field, value) in change.as_object().unwrap() {
            let fields = if field == "format" { &mut *group } else { &mut group["weights"] };
            fields[field] = value.clone();
        }
        let found = complaint(&config, &read(name));
        assert!(found.contains(wanted), "{name}, {change}: {found}");
        let named = found.contains("model.safetensors") && found.contains("down_proj.weight_packed");
        assert!(named || wanted == "nothing", "{name}, {change}: {found}");
    }
    // Two groups, of which one has the width.
    let mut config = json_file("w8a16-group", "config.json");
    let groups = &mut config["quantization_config"]["config_groups"];
    groups["group_1"] = json!({"targets": ["re:.*none"], "weights": {"num_bits": 4, "type": "int"}});
    assert_eq!(complaint(&config, &read("w8a16-group")), "nothing");
}

#[test]
fn what_a_checkpoint_is_stored_in_is_what_auto_takes() {
    for name in cases() {
        let class = Weights::open(&open(&name)).unwrap().class();
        let wanted = if name.contains('8') { WeightClass::Int8 } else { WeightClass::Int4 };
        assert_eq!(class, wanted, "{name}");
    }
    assert_eq!(Weights::open(&committed("llama2")).unwrap().class(), WeightClass::Bf16);
}

/// Rows packed as int8, taken out again; and the numbers that they stand for in the files.
fn through_int8(weights: &Weights, tensor: &str, shape: [usize; 2]) -> (Vec<f32>, Vec<f32>) {
    let part = TensorSlice { name: tensor.to_string(), shape: shape.to_vec(), rows: 0..shape[0], transposed: false };
    let packed = weights.pack(&Reference::new(), WeightClass::Int8, shape[1], &[part]).unwrap();
    let mut found = vec![f32::NAN; shape[0] * shape[1]];
    found.chunks_exact_mut(shape[1]).enumerate().for_each(|(row, out)| packed.unpack_row(row, out));
    (found, matrix(weights, tensor, shape))
}

/// Two codes of NVFP4 a byte and a float for 16 stay as they are where four or eight bits are asked for.
#[test]
fn codes_of_nvfp4_are_kept_in_their_groups() {
    for name in ["nvfp4", "nvfp4-modelopt"] {
        let weights = Weights::open(&open(name)).unwrap();
        for (tensor, shape, _) in expected(name).into_iter().filter(|(_, shape, _)| *shape != [64, 64]) {
            let (found, wanted) = through_int8(&weights, &tensor, shape);
            assert!(found == wanted, "{name}: {tensor}");
        }
    }
}

/// Symmetric int8 rows are not quantized once more, which -128 would not survive.
#[test]
fn int8_codes_are_kept_as_they_are() {
    let checkpoint = open("w8a8-channel");
    let weights = Weights::open(&checkpoint).unwrap();
    for (tensor, shape, _) in expected("w8a8-channel") {
        let (found, wanted) = through_int8(&weights, &tensor, shape);
        assert!(found == wanted, "{tensor}");
    }
}

/// One packed module of 8 bits with codes of every size, `shape` and groups of `group`; `scale(row, group)` in f32, and
/// zero points unless they are all 128.
fn packed_8_bits(
    shape: [usize; 2],
    group: usize,
    scale: impl Fn(usize, usize) -> f32,
    zero: Option<u8>,
) -> (Checkpoint, &'static str) {
    let [rows, width] = shape;
    let row_bytes = width.div_ceil(4) * 4;
    let codes = (0..rows * row_bytes).map(|at| (at * 7 % 256) as u8).collect();
    let groups = width.div_ceil(group);
    let scales = (0..rows * groups).flat_map(|at| scale(at / groups, at % groups).to_le_bytes()).collect();
    let sizes = shape.iter().flat_map(|size| (*size as u64).to_le_bytes()).collect();
    let mut tensors: Tensors = vec![
        ("m.weight_packed".into(), "I32".into(), vec![rows, row_bytes / 4], codes),
        ("m.weight_scale".into(), "F32".into(), vec![rows, groups], scales),
        ("m.weight_shape".into(), "I64".into(), vec![2], sizes),
    ];
    if let Some(zero) = zero {
        let words = rows.div_ceil(4);
        tensors.push(("m.weight_zero_point".into(), "I32".into(), vec![words, groups], vec![zero; words * groups * 4]));
    }
    let mut config = json_file("w8a16-group", "config.json");
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = group.into();
    let config = config.to_string().into_bytes();
    (embedded(vec![("config.json", config), ("model.safetensors", write(&tensors))]), "m.weight")
}

/// However the groups are cut: what counts is that 128 neighbours have one scale.
#[test]
fn packed_8_bit_codes_are_kept_where_their_scales_allow() {
    type Scale = fn(usize, usize) -> f32;
    type Case<'a> = (&'a str, [usize; 2], usize, Scale, Option<u8>, bool);
    // Of the kept ones every scale of a row is a multiple, up to 127, of one.
    let table: [Case<'_>; 12] = [
        ("channel", [6, 200], 200, |row, _| 0.01 * (row + 1) as f32, None, true),
        ("channel, an odd width", [3, 333], 333, |row, _| 0.01 * (row + 1) as f32, None, true),
        ("groups of 128", [3, 384], 128, |_, group| [3.0, 127.0, 1.0][group] / 64.0, None, true),
        ("groups of 256", [3, 512], 256, |_, group| [3.0, 127.0][group] / 64.0, None, true),
        ("pairs of 64", [3, 320], 64, |_, group| [3.0, 127.0, 1.0][group / 2] / 64.0, None, true),
        ("fours of 32", [3, 160], 32, |_, group| [3.0, 127.0][group / 4] / 64.0, None, true),
        ("zero points that say the same", [4, 256], 128, |_, group| [3.0, 2.0][group], Some(128), true),
        ("negative scales", [3, 256], 64, |_, group| [-3.0, 127.0][group / 2], None, true),
        ("groups of 64 that differ", [3, 320], 64, |_, group| [3.0, 7.0, 5.0, 4.0, 9.0][group], None, false),
        ("groups of 64, the last of 32", [3, 224], 64, |_, group| [3.0, 7.0, 5.0, 4.0][group], None, false),
        ("groups of 96", [3, 288], 96, |_, group| [3.0, 7.0, 5.0][group], None, false),
        ("other zero points", [4, 256], 128, |_, group| [3.0, 2.0][group], Some(127), false),
    ];
    for (what, shape, group, scale, zero, kept) in table {
        let (checkpoint, tensor) = packed_8_bits(shape, group, scale, zero);
        let (found, wanted) = through_int8(&Weights::open(&checkpoint).unwrap(), tensor, shape);
        let zero = i32::from(zero.unwrap_or(128));
        let row_bytes = shape[1].div_ceil(4) * 4;
        for (at, wanted) in wanted.iter().enumerate() {
            let (row, input) = (at / shape[1], at % shape[1]);
            let code = ((row * row_bytes + input) * 7 % 256) as i32;
            assert_eq!(*wanted, (code - zero) as f32 * scale(row, input / group), "{what}: {row}, {input}");
        }
        assert_eq!(found == wanted, kept, "{what}");
        // Quantized once more, each is within half a step of 128 weights, the largest of which is 127 steps.
        for (found, wanted) in found.chunks(shape[1]).zip(wanted.chunks(shape[1])) {
            let largest = wanted.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
            let off = found.iter().zip(wanted).fold(0f32, |off, (found, wanted)| off.max((found - wanted).abs()));
            assert!(off <= largest / 127.0 * 0.51, "{what}: off by {off} of {largest}");
        }
    }
}
