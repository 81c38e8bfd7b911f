//! Drafters from strangers: what is missing, too much, of another shape or for another model ends in one error that
//! names the file and the tensor or field, before a pass.

use crate::common;

use checkpoint::{Checkpoint, LoadError};
use common::*;
use kernels::{Reference, WeightClass};
use model::draft::{self, Feature, Medusa};
use model::{LoadOptions, Runner};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use testing::Scratch;

/// A drafter's files: what a case damages.
struct Files {
    config: Value,
    /// Element type, shape, bytes.
    tensors: BTreeMap<String, (String, Vec<usize>, Vec<u8>)>,
}

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/drafts").join(name)
}

impl Files {
    fn of(name: &str) -> Files {
        let directory = data(name);
        let config = std::fs::read(directory.join("config.json"))
            .map_or(json!({}), |text| serde_json::from_slice(&text).unwrap());
        let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let file = entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "safetensors")).unwrap();
        let bytes = std::fs::read(file).unwrap();
        let (len, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
        let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, tensor)| {
            let offsets: Vec<usize> = tensor["data_offsets"].as_array().unwrap().iter().map(number).collect();
            let shape = tensor["shape"].as_array().unwrap().iter().map(number).collect();
            let dtype = tensor["dtype"].as_str().unwrap().to_string();
            (name.clone(), (dtype, shape, data[offsets[0]..offsets[1]].to_vec()))
        });
        Files { config, tensors: tensors.collect() }
    }

    fn checkpoint(&self) -> Checkpoint {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let start = data.len();
            data.extend(bytes);
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}));
        }
        let header = Value::Object(header).to_string();
        let weights = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        embedded(vec![("config.json", self.config.to_string().into_bytes()), ("model.safetensors", weights)])
    }

    /// A tensor of zeros.
    fn set(&mut self, name: &str, dtype: &str, shape: &[usize]) {
        let element = match dtype {
            "I64" => 8,
            "F32" => 4,
            "I8" => 1,
            _ => 2,
        };
        let bytes = vec![0; element * shape.iter().product::<usize>()];
        self.tensors.insert(name.to_string(), (dtype.to_string(), shape.to_vec(), bytes));
    }

    fn ids(&mut self, name: &str, ids: &[i64]) {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.tensors.insert(name.to_string(), ("I64".to_string(), vec![ids.len()], bytes));
    }

    fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.tensors.remove(from).unwrap();
        self.tensors.insert(to.to_string(), tensor);
    }

    fn remove(&mut self, name: &str) {
        assert!(self.tensors.remove(name).is_some(), "{name} is there");
    }
}

fn target(name: &str) -> Runner<Reference> {
    let checkpoint = match name {
        "mimo" => draft::open(&data("mimo")).unwrap(),
        _ => committed(name),
    };
    let options = LoadOptions { max_rows: 4, max_logit_rows: 4, ..options(WeightClass::Bf16) };
    model::load(Reference::new(), &checkpoint, &options, &mut |_| {}).unwrap()
}

fn clear(what: &str, error: LoadError, expected: &[&str]) {
    let message = error.to_string();
    for part in expected {
        assert!(message.contains(part), "{what}: {part:?} is not in the error: {message}");
    }
    assert!(!message.contains('\n') && message.len() < 800, "{what}: not one clear line: {message}");
}

/// What is wrong, and what the error has to say.
type Case = (&'static str, fn(&mut Files), &'static [&'static str]);

const FILE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

fn check(drafter: &str, target_name: &str, cases: &[Case]) {
    let runner = target(target_name);
    let name = Some("example/target");
    let load = |files: &Files| match drafter.starts_with("medusa") {
        true => Medusa::load(&files.checkpoint(), &runner, name).map(drop),
        false => Feature::load(&files.checkpoint(), &runner, name).map(drop),
    };
    for (what, damage, expected) in cases {
        let mut files = Files::of(drafter);
        damage(&mut files);
        let what = format!("{drafter} for {target_name}: {what}");
        clear(&what, load(&files).expect_err(&what), expected);
    }
}

#[test]
fn medusa_heads() {
    let cases: [Case; 14] = [
        (
            "narrow",
            |f| f.set("medusa_heads.0.1.linear.weight", "BF16", &[64, 32]),
            &[FILE, "medusa_heads.0.1.linear.weight", "[64, 32]", "[64, 64]"],
        ),
        (
            "a long bias",
            |f| f.set("medusa_heads.1.0.linear.bias", "BF16", &[65]),
            &[FILE, "medusa_heads.1.0.linear.bias", "[65]", "[64]"],
        ),
        ("a bias alone", |f| f.remove("medusa_heads.1.1.linear.weight"), &[FILE, "1.1.linear.weight", "missing"]),
        (
            "a layer in the middle",
            |f| f.rename("medusa_heads.0.0.linear.weight", "medusa_heads.0.3.linear.weight"),
            &[FILE, "0.0.linear.weight", "missing"],
        ),
        (
            "a head in the middle",
            |f| f.tensors.retain(|name, _| !name.starts_with("medusa_heads.0.")),
            &[FILE, "0.0.linear.weight", "missing"],
        ),
        ("one matrix of two", |f| f.remove("medusa_heads.1.2.weight"), &[FILE, "1.2.weight", "missing", "1 of 2"]),
        (
            "another vocabulary",
            |f| f.set("medusa_heads.0.2.weight", "BF16", &[100, 64]),
            &[FILE, "medusa_heads.0.2.weight", "[100, 64]", "[128, 64]"],
        ),
        (
            "a matrix too far behind",
            |f| f.rename("medusa_heads.0.2.weight", "medusa_heads.0.5.weight"),
            &[FILE, "medusa_heads.0.5.weight", "2 residual layers"],
        ),
        (
            "a head twice",
            |f| f.set("0.0.linear.weight", "BF16", &[64, 64]),
            &[FILE, "0.0.linear.weight", "the same as"],
        ),
        (
            "more than is read",
            |f| f.set("medusa_heads.0.gate", "BF16", &[64]),
            &[FILE, "1 tensor", "medusa_heads.0.gate", "does not read"],
        ),
        (
            "integers",
            |f| f.set("medusa_heads.0.0.linear.weight", "I8", &[64, 64]),
            &[FILE, "medusa_heads.0.0.linear.weight", "I8"],
        ),
        ("nothing", |f| f.tensors.clear(), &[FILE, "no Medusa heads"]),
        ("fewer than stated", |f| f.config["medusa_num_heads"] = json!(5), &[CONFIG, "medusa_num_heads", "5", "2"]),
        (
            "for another",
            |f| f.config["base_model_name_or_path"] = json!("lmsys/vicuna-7b-v1.3"),
            &[CONFIG, "base_model_name_or_path", "lmsys/vicuna-7b-v1.3", "example/target"],
        ),
    ];
    check("medusa-own", "llama2", &cases);
    // Of another width, with and without a configuration that says so.
    check("medusa-own", "llama3", &[("as it is", |_| {}, &[CONFIG, "hidden_size", "64", "72"])]);
    check("medusa", "llama2", &[("as it is", |_| {}, &[FILE, "0.0.linear", "72", "64"])]);
    let cases: [Case; 7] = [
        ("beyond the vocabulary", |f| f.ids("token_map", &[0; 40].map(|_| 131)), &[FILE, "token_map", "131"]),
        ("a token twice", |f| f.ids("token_map", &[7; 40]), &[FILE, "token_map", "7", "entry 1"]),
        ("below 0", |f| f.ids("token_map", &[-1; 40]), &[FILE, "token_map", "-1"]),
        ("more tokens than there are", |f| f.ids("token_map", &[0; 132]), &[FILE, "token_map", "132", "131"]),
        ("numbers with a point", |f| f.set("token_map", "F32", &[40]), &[FILE, "token_map", "F32", "I64"]),
        (
            "other tokens than rows",
            |f| f.set("lm_heads.1.weight", "BF16", &[41, 72]),
            &[FILE, "lm_heads.1.weight", "[41, 72]"],
        ),
        (
            "stated for another vocabulary",
            |f| f.config["vocab_size"] = json!(32_000),
            &[CONFIG, "vocab_size", "32000", "131"],
        ),
    ];
    check("medusa-map", "llama3", &cases);
}

#[test]
fn eagle3_drafters() {
    let cases: [Case; 19] = [
        ("no fc", |f| f.remove("fc.weight"), &[FILE, "fc.weight", "missing"]),
        ("two taps in fc", |f| f.set("fc.weight", "BF16", &[72, 144]), &[FILE, "fc.weight", "[72, 144]", "[72, 216]"]),
        (
            "an ordinary layer",
            |f| f.set("midlayer.self_attn.k_proj.weight", "BF16", &[32, 72]),
            &[FILE, "midlayer.self_attn.k_proj.weight", "[32, 72]", "[32, 144]"],
        ),
        (
            "heads of another width",
            |f| f.config["head_dim"] = json!(32),
            &[FILE, "midlayer.self_attn.q_proj.weight", "[64, 144]", "[128, 144]"],
        ),
        ("no norm of features", |f| f.remove("midlayer.hidden_norm.weight"), &[FILE, "midlayer.hidden_norm.weight"]),
        ("no last norm", |f| f.remove("norm.weight"), &[FILE, "`norm.weight`", "missing"]),
        ("a token beyond the vocabulary", |f| f.ids("d2t", &[131; 48]), &[FILE, "d2t", "entry 0", "131"]),
        ("a token below 0", |f| f.ids("d2t", &[-1; 48]), &[FILE, "d2t", "entry 0", "-1"]),
        ("a distance that wraps", |f| f.ids("d2t", &[i64::MAX; 48]), &[FILE, "d2t", "entry 0"]),
        (
            "a token twice",
            |f| f.ids("d2t", &std::array::from_fn::<i64, 48, _>(|id| if id == 9 { -9 } else { 0 })),
            &[FILE, "d2t", "entry 9", "token 0"],
        ),
        ("fewer tokens than rows", |f| f.ids("d2t", &[0; 40]), &[FILE, "lm_head.weight", "[48, 72]", "[40, 72]"]),
        ("distances with a point", |f| f.set("d2t", "F32", &[48]), &[FILE, "d2t", "F32"]),
        ("no head", |f| f.remove("lm_head.weight"), &[FILE, "lm_head.weight", "missing"]),
        (
            "a layer more",
            |f| f.set("layers.1.mlp.up_proj.weight", "BF16", &[4, 4]),
            &[FILE, "1 tensor", "layers.1.mlp.up_proj.weight", "does not read"],
        ),
        (
            "an embedding of another vocabulary",
            |f| f.set("embed_tokens.weight", "BF16", &[99, 72]),
            &[FILE, "embed_tokens.weight", "[99, 72]", "[131, 72]"],
        ),
        (
            "a layer that the target does not have",
            |f| f.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = json!([0, 1, 3]),
            &[CONFIG, "eagle_config.eagle_aux_hidden_state_layer_ids", "3", "3 layers"],
        ),
        (
            "no layers named",
            |f| f.config["eagle_config"] = json!({}),
            &[CONFIG, "eagle_aux_hidden_state_layer_ids", "missing", "3 layers"],
        ),
        (
            "no rows of the target",
            |f| f.config["eagle_config"]["use_aux_hidden_state"] = json!(false),
            &[CONFIG, "eagle_config.use_aux_hidden_state", "false"],
        ),
        (
            "for a wider target",
            |f| f.config["target_hidden_size"] = json!(4096),
            &[CONFIG, "target_hidden_size", "4096", "72"],
        ),
    ];
    check("eagle3-midlayer", "llama3", &cases);
    let cases: [Case; 12] = [
        (
            "another kind",
            |f| f.config["speculators_model_type"] = json!("dflash"),
            &[CONFIG, "speculators_model_type", "dflash", "eagle3"],
        ),
        (
            "for another",
            |_| {},
            &[CONFIG, "speculators_config.verifier.name_or_path", "example/llama3", "example/target"],
        ),
        (
            "for another architecture",
            |f| {
                f.config["speculators_config"]["verifier"] = json!({"architectures": ["Qwen3ForCausalLM"]});
            },
            &[CONFIG, "speculators_config.verifier.architectures", "Qwen3ForCausalLM", "llama"],
        ),
        (
            "another vocabulary",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["transformer_layer_config"]["vocab_size"] = json!(151_936);
            },
            &[CONFIG, "transformer_layer_config.vocab_size", "151936", "131"],
        ),
        (
            "heads that do not divide",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["transformer_layer_config"]["num_key_value_heads"] = json!(3);
            },
            &[CONFIG, "transformer_layer_config.num_key_value_heads", "3"],
        ),
        (
            "layers of another kind",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["transformer_layer_config"]["model_type"] = json!("gemma2");
            },
            &[CONFIG, "transformer_layer_config.model_type", "gemma2"],
        ),
        (
            "an unknown kind",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["transformer_layer_config"]["model_type"] = json!("rwkv");
            },
            &[CONFIG, "transformer_layer_config.model_type", "rwkv"],
        ),
        (
            "two norms before fc",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["fc_norm"] = json!(true);
                f.config["norm_before_fc"] = json!(true);
            },
            &[CONFIG, "fc_norm", "norm_before_fc"],
        ),
        (
            "a norm before fc that is not there",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["norm_before_fc"] = json!(true);
            },
            &[FILE, "input_norm.weight", "missing", "216"],
        ),
        (
            "no list of layers",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["eagle_aux_hidden_state_layer_ids"] = json!("all");
            },
            &[CONFIG, "eagle_aux_hidden_state_layer_ids", "a list"],
        ),
        (
            "an empty list of layers",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["eagle_aux_hidden_state_layer_ids"] = json!([]);
            },
            &[CONFIG, "eagle_aux_hidden_state_layer_ids", "0 layers"],
        ),
        (
            "three layers of two",
            |f| {
                f.config["speculators_config"] = json!(null);
                f.config["transformer_layer_config"]["num_hidden_layers"] = json!(3);
            },
            &[FILE, "layers.2.", "missing"],
        ),
    ];
    check("eagle3-speculators", "llama3", &cases);
    check(
        "eagle3-norms",
        "llama3",
        &[(
            "the target's embedding is of another width",
            |f| f.remove("embed_tokens.weight"),
            &[FILE, "embed_tokens.weight", "72", "64"],
        )],
    );
}

#[test]
fn next_token_layers() {
    let cases: [Case; 3] = [
        (
            "no last norm",
            |f| f.remove("model.mtp_layers.0.final_layernorm.weight"),
            &[FILE, "model.mtp_layers.0.final_layernorm.weight", "missing"],
        ),
        (
            "half an input",
            |f| f.set("model.mtp_layers.0.input_proj.weight", "BF16", &[64, 64]),
            &[FILE, "model.mtp_layers.0.input_proj.weight", "[64, 64]", "[64, 128]"],
        ),
        (
            "a gate",
            |f| f.set("model.mtp_layers.0.gate.weight", "BF16", &[64]),
            &[FILE, "model.mtp_layers.0.gate.weight", "does not read"],
        ),
    ];
    check("mimo", "mimo", &cases);
}

/// Heads of the first two versions of EAGLE are named for what they are, whichever model they were trained for.
#[test]
fn eagle_1_heads() {
    fn eagle_1(files: &mut Files) {
        files.config = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32_000});
        files.tensors.clear();
        files.set("fc.weight", "BF16", &[64, 128]);
        files.set("fc.bias", "BF16", &[64]);
        files.set("layers.0.self_attn.q_proj.weight", "BF16", &[64, 64]);
    }
    const SUPPORTED: [&str; 4] = ["eagle3", "medusa", "mtp", "draft_model"];
    const HEAD: &[&str] = &[FILE, "EAGLE-1", SUPPORTED[0], SUPPORTED[1], SUPPORTED[2], SUPPORTED[3]];
    let cases: [Case; 2] = [
        ("the authors' layout", eagle_1, HEAD),
        (
            "speculators' layout",
            |f| f.config = json!({"speculators_model_type": "eagle"}),
            &[CONFIG, "speculators_model_type", "\"eagle\"", "eagle3", "medusa"],
        ),
    ];
    check("eagle3-midlayer", "llama3", &cases);
}

/// Names that say nothing are believed: a directory may be called what it likes, and a model has one name in any case.
#[test]
fn names_of_targets() {
    let runner = target("llama2");
    let cases = [
        ("lmsys/vicuna-7b-v1.3", Some("LMSYS/Vicuna-7B-v1.3"), true),
        ("lmsys/vicuna-7b-v1.3", None, true),
        ("lmsys/vicuna-7b-v1.3", Some("models/there/vicuna"), true),
        ("lmsys/vicuna-7b-v1.3", Some("./vicuna"), true),
        ("/data/vicuna", Some("lmsys/vicuna-7b-v1.3"), true),
        ("lmsys/vicuna-7b-v1.3", Some("lmsys/vicuna-13b-v1.3"), false),
    ];
    for (trained_for, name, fits) in cases {
        let mut files = Files::of("medusa-own");
        files.config["base_model_name_or_path"] = json!(trained_for);
        let loaded = Medusa::load(&files.checkpoint(), &runner, name);
        assert_eq!(loaded.is_ok(), fits, "{trained_for} for {name:?}");
    }
}

#[test]
fn places_where_no_heads_are() {
    let whole = std::fs::read(data("medusa").join("medusa_lm_head.safetensors")).unwrap();
    let pickles = Scratch::with("pickles", &[("config.json", b"{}"), ("medusa_lm_head.pt", b"\x80\x02")]);
    let empty = Scratch::with("empty", &[("README.md", b"heads")]);
    let two = Scratch::with("two", &[("a.safetensors", &whole), ("b.safetensors", &whole)]);
    let cut = Scratch::with("cut", &[("medusa_lm_head.safetensors", &whole[..whole.len() / 2])]);
    let cases: [(PathBuf, &[&str]); 7] = [
        (pickles.to_path_buf(), &["medusa_lm_head.pt", "pickled", "torch.load", "safetensors", "save_file"]),
        (pickles.join("medusa_lm_head.pt"), &["medusa_lm_head.pt", "pickled", "save_file"]),
        (empty.to_path_buf(), &["twostroke-empty", "no .safetensors file"]),
        (empty.join("README.md"), &["README.md", "neither a directory nor a .safetensors file"]),
        (two.to_path_buf(), &["2 safetensors files", "a.safetensors"]),
        (Path::new("/nowhere/heads").to_path_buf(), &["/nowhere/heads"]),
        (cut.to_path_buf(), &["medusa_lm_head.safetensors", "exceed the data"]),
    ];
    let runner = target("gemma2");
    for (path, expected) in cases {
        let loaded = draft::open(&path).and_then(|files| Medusa::load(&files, &runner, None));
        let what = path.display().to_string();
        clear(&what, loaded.map(drop).expect_err(&what), expected);
    }
}
