//! Adapters as peft writes them, from a seed: for tests of every crate above.
#![allow(dead_code, reason = "each test binary uses its part")]

use model::ModelConfig;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use testing::Dice;

/// A tensor of an adapter, in float32.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: [usize; 2],
    pub(crate) numbers: Vec<f32>,
}

/// What a directory is to hold.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: Vec<Tensor>,
}

/// The modules of a dense layer, apart or fused, with the numbers that each reads and makes.
pub(crate) fn modules(config: &ModelConfig) -> Vec<(&'static str, usize, usize)> {
    let (hidden, heads, width) = (config.hidden_size, config.layers[0].heads, config.intermediate_size);
    let kv = heads.kv_width();
    let mut modules = match config.fused_projections == model::config::FusedProjections::All {
        true => vec![("self_attn.qkv_proj", hidden, heads.qkv_width()), ("mlp.gate_up_proj", hidden, 2 * width)],
        false => vec![
            ("self_attn.q_proj", hidden, heads.q_width()),
            ("self_attn.k_proj", hidden, kv),
            ("self_attn.v_proj", hidden, kv),
            ("mlp.gate_proj", hidden, width),
            ("mlp.up_proj", hidden, width),
        ],
    };
    modules.push(("self_attn.o_proj", heads.q_width(), hidden));
    modules.push(("mlp.down_proj", width, hidden));
    if config.experts.is_some() {
        modules.retain(|(name, ..)| name.starts_with("self_attn."));
    }
    modules
}

/// An adapter of some modules (all that there are, if none are named) of every layer.
pub(crate) fn adapter(config: &ModelConfig, seed: u64, rank: usize, alpha: f64, only: &[&str]) -> Files {
    let mut dice = Dice::new(seed);
    let mut numbers =
        |count: usize, size: f32| -> Vec<f32> { (0..count).map(|_| dice.signed() * size * 1.7).collect() };
    let modules = modules(config);
    let chosen = modules.iter().filter(|(name, ..)| only.is_empty() || only.iter().any(|only| name.ends_with(only)));
    let chosen: Vec<_> = chosen.collect();
    let mut tensors = Vec::new();
    for layer in 0..config.num_layers {
        for &&(module, in_features, out_features) in &chosen {
            let name = |which| format!("base_model.model.model.layers.{layer}.{module}.lora_{which}.weight");
            let a = numbers(rank * in_features, 1.0 / (in_features as f32).sqrt());
            let b = numbers(out_features * rank, 0.4 / (rank as f32).sqrt());
            tensors.push(Tensor { name: name("A"), shape: [rank, in_features], numbers: a });
            tensors.push(Tensor { name: name("B"), shape: [out_features, rank], numbers: b });
        }
    }
    let targets: Vec<&str> = chosen.iter().filter_map(|(name, ..)| name.split('.').next_back()).collect();
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somebody/some-model",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "inference_mode": true,
        "modules_to_save": null,
        "use_dora": false,
        "use_rslora": false,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": targets,
    });
    let Value::Object(config) = config else { unreachable!("an object") };
    Files { config, tensors }
}

impl Files {
    /// Writes the directory, weights as float32.
    pub(crate) fn write(&self, directory: &Path) {
        self.write_as(directory, "F32", &|number| number.to_le_bytes().to_vec());
    }

    /// Writes the directory, weights as `dtype`, whose bytes `encode` makes.
    pub(crate) fn write_as(&self, directory: &Path, dtype: &str, encode: &dyn Fn(f32) -> Vec<u8>) {
        std::fs::create_dir_all(directory).unwrap();
        let config = serde_json::to_vec_pretty(&self.config).unwrap();
        std::fs::write(directory.join("adapter_config.json"), config).unwrap();
        std::fs::write(directory.join("adapter_model.safetensors"), safetensors(&self.tensors, dtype, encode)).unwrap();
    }
}

/// Tensors as a safetensors file.
pub(crate) fn safetensors(tensors: &[Tensor], dtype: &str, encode: &dyn Fn(f32) -> Vec<u8>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for Tensor { name, shape, numbers } in tensors {
        let begin = data.len();
        numbers.iter().for_each(|&number| data.extend(encode(number)));
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// A directory with an adapter, in another.
pub(crate) fn write_in(place: &Path, name: &str, files: &Files) -> PathBuf {
    let directory = place.join(name);
    files.write(&directory);
    directory
}
