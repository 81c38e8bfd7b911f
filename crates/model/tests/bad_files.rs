//! Files from strangers. Every malformed checkpoint ends in one error that names the file and the field: no panic, no
//! crash, no hang, no memory taken for what a number merely claims. Each case loads on a thread with a 256 KiB stack.

use crate::common;

use checkpoint::weights::{TensorSlice, Weights};
use checkpoint::{Checkpoint, LoadError, Source};
use common::*;
use kernels::{Reference, WeightClass};
use model::{Forward, GenerationDefaults, Head, KvBudget, LoadOptions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use testing::Scratch;

const HIDDEN: usize = 32;
const VOCAB: usize = 40;

/// A checkpoint as bytes: what a case damages.
#[derive(Clone)]
struct Files(Vec<(String, Vec<u8>)>);

impl Files {
    /// A complete one-layer Llama with zero weights.
    fn good() -> Files {
        let mut files = Files(Vec::new());
        files.set("config.json", good_config().to_string().into_bytes());
        files.set("model.safetensors", pack_tensors(&good_tensors()));
        files
    }

    fn set(&mut self, name: &str, bytes: Vec<u8>) {
        self.0.retain(|(other, _)| other != name);
        self.0.push((name.to_string(), bytes));
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(other, _)| other != name);
    }

    fn checkpoint(self) -> Checkpoint {
        embedded(self.0.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect())
    }
}

fn good_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    })
}

type TensorSpec = (String, &'static str, Vec<usize>);

fn good_tensors() -> Vec<TensorSpec> {
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_string(), "BF16", vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_string(), "BF16", vec![HIDDEN]),
        (layer("input_layernorm"), "F32", vec![HIDDEN]),
        (layer("post_attention_layernorm"), "F32", vec![HIDDEN]),
    ];
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push((layer(&format!("self_attn.{part}")), "F16", vec![HIDDEN, HIDDEN]));
    }
    for part in ["gate_proj", "up_proj"] {
        tensors.push((layer(&format!("mlp.{part}")), "BF16", vec![64, HIDDEN]));
    }
    tensors.push((layer("mlp.down_proj"), "BF16", vec![HIDDEN, 64]));
    tensors
}

/// A well-formed file of zeros.
fn pack_tensors(tensors: &[TensorSpec]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, dtype, shape) in tensors {
        let element = if *dtype == "I64" {
            8
        } else if *dtype == "F32" {
            4
        } else {
            2
        };
        let end = offset + element * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    file(&Value::Object(header).to_string(), &vec![0; offset])
}

/// A length, a header, data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A file or directory of the committed data.
fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Loads on a small stack. `Err` holds the message.
fn try_load(files: Files) -> Result<(), String> {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let outcome = thread.spawn(move || {
        let checkpoint = files.checkpoint();
        GenerationDefaults::load(&checkpoint).map_err(|error| error.to_string())?;
        let options = LoadOptions { max_rows: 4, max_logit_rows: 4, ..options(WeightClass::Bf16) };
        let loaded = model::load(Reference::new(), &checkpoint, &options, &mut |_| {});
        loaded.map(drop).map_err(|error| error.to_string())
    });
    outcome.unwrap().join().expect("a panic")
}

/// The error of each damaged checkpoint is one line that contains all of `expected`.
fn check(what: &str, files: Files, expected: &[&str]) {
    let message = try_load(files).expect_err(what);
    for part in expected {
        assert!(message.contains(part), "{what}: {part:?} is not in the error: {message}");
    }
    assert!(!message.contains('\n') && message.len() < 900, "{what}: not one clear line: {message}");
}

/// What [`good_tensors`] has, and more.
fn with_tensors(more: &[(&str, &'static str, &[usize])]) -> Files {
    let mut tensors = good_tensors();
    tensors.extend(more.iter().map(|(name, dtype, shape)| (name.to_string(), *dtype, shape.to_vec())));
    let mut files = Files::good();
    files.set("model.safetensors", pack_tensors(&tensors));
    files
}

#[test]
fn tensors_that_are_not_read_are_counted() {
    let long = format!("model.{}", "x".repeat(200));
    type Case<'a> = (&'a str, &'a [(&'a str, &'static str, &'a [usize])], &'a [&'a str]);
    let cases: [Case<'_>; 8] = [
        (
            "a layer more than the configuration says",
            &[
                ("model.layers.1.input_layernorm.weight", "BF16", &[HIDDEN]),
                ("model.layers.1.mlp.down_proj.weight", "BF16", &[HIDDEN, 64]),
                ("model.layers.1.mlp.up_proj.weight", "BF16", &[64, HIDDEN]),
                ("model.layers.10.mlp.up_proj.weight", "BF16", &[64, HIDDEN]),
            ],
            &[
                "model.safetensors: tensors: the checkpoint holds 4 tensors that this model does not read",
                "such as \"model.layers.1.input_layernorm.weight\", \"model.layers.1.mlp.down_proj.weight\"",
                "num_hidden_layers of config.json says 1, and there is a layer 10",
            ],
        ),
        (
            "a norm",
            &[("model.layers.0.self_attn.q_norm.weight", "BF16", &[HIDDEN])],
            &["1 tensor ", "q_norm", "no place"],
        ),
        ("an adapter", &[("model.layers.0.mlp.up_proj.lora_A.weight", "BF16", &[4, HIDDEN])], &["lora_A", "no place"]),
        ("a further predictor", &[("mtp.layers.0.mlp.up_proj.weight", "BF16", &[64, HIDDEN])], &["\"mtp.layers.0"]),
        ("a vision tower of its own", &[("vision_tower.a.weight", "BF16", &[4])], &["\"vision_tower.a.weight\""]),
        (
            "scales of a module that is not there",
            &[("model.a.input_scale", "BF16", &[1])],
            &["\"model.a.input_scale\""],
        ),
        ("a bias without its module", &[("model.a.bias", "BF16", &[1])], &["\"model.a.bias\""]),
        ("a long name", &[(&long, "BF16", &[1])], &["tensors: the checkpoint holds 1 tensor", "xxx\"..."]),
    ];
    for (what, more, expected) in cases {
        check(what, with_tensors(more), expected);
    }
    // An untied head that is not asked for is a copy; one that is asked for is read.
    let extras: [(&str, &'static str, &[usize]); 5] = [
        ("lm_head.weight", "BF16", &[VOCAB, HIDDEN]),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[HIDDEN / 2]),
        ("model.rotary_emb.inv_freq", "F32", &[HIDDEN / 2]),
        ("model.layers.0.mlp.down_proj.input_scale", "F32", &[1]),
        ("model.layers.0.mlp.down_proj.bias", "F16", &[HIDDEN]), // zeros
    ];
    try_load(with_tensors(&extras)).expect("these are known");
    // A bias that is not zero is part of the model.
    let bias = [("model.layers.0.mlp.down_proj.bias", "F16", &[HIDDEN] as &[usize])];
    let Files(mut files) = with_tensors(&bias);
    let (_, bytes) = files.iter_mut().find(|(name, _)| name == "model.safetensors").unwrap();
    *bytes.last_mut().unwrap() = 0x3c;
    check("a bias", Files(files), &["down_proj.bias", "no place"]);
}

#[test]
fn layers_of_a_gguf_file_that_are_not_read_are_counted() {
    let mut bytes = std::fs::read(data("gguf/llama3-v5.gguf")).unwrap();
    let key = b".block_count";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    assert_eq!(bytes[at..at + 8], [4, 0, 0, 0, 2, 0, 0, 0], "a u32 of 2");
    bytes[at + 4] = 1;
    let place = Scratch::with("unread", &[("half.gguf", &bytes)]);
    let checkpoint = Checkpoint::open(Source::Gguf(place.join("half.gguf"))).unwrap();
    let error = model::load(Reference::new(), &checkpoint, &options(WeightClass::Bf16), &mut |_| {}).err().unwrap();
    let message = error.to_string();
    for part in ["that this model does not read", "\"blk.1.attn_", ".block_count says 1, and there is a layer 1"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn the_undamaged_checkpoint_loads() {
    try_load(Files::good()).unwrap();
}

#[test]
fn damaged_headers() {
    let tensor = |fields: &str| format!("{{\"t\":{{{fields}}}}}");
    let f32x2 = |begin: u64, end: u64| format!("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[{begin},{end}]");
    let two = |first: (u64, u64), second: (u64, u64)| {
        format!("{{\"t\":{{{}}},\"u\":{{{}}}}}", f32x2(first.0, first.1), f32x2(second.0, second.1))
    };
    let length = |length: u64| [&length.to_le_bytes(), b"{\"t\":{}}".as_slice()].concat();
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
    let many = |num: usize| {
        let entry = |index| format!("\"{index}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
        format!("{{{}}}", (0..num).map(entry).collect::<Vec<_>>().join(","))
    };
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("an empty file", vec![], &["header length", "0 bytes"]),
        ("a file shorter than the length", vec![2, 0, 0, 0, 0, 0, 0], &["header length", "7 bytes"]),
        ("length 0", length(0), &["header", "start with `{`"]),
        ("length 1", length(1), &["header", "EOF"]),
        ("length beyond the file", length(9), &["header length", "9 bytes"]),
        ("length beyond the cap", length(100_000_001), &["header length", "100000001"]),
        ("length 2^63", length(1 << 63), &["header length", "9223372036854775808"]),
        ("length 2^64 - 1, which wraps with the eight bytes before", length(u64::MAX), &["header length"]),
        ("length 2^64 - 8, which wraps to zero", length(u64::MAX - 7), &["header length"]),
        ("not UTF-8", [&4u64.to_le_bytes(), b"{\"\xff\"".as_slice()].concat(), &["header", "not UTF-8 at byte 10"]),
        ("space before the object", file(" {}", b""), &["header", "start with `{`"]),
        ("a list", file("[]", b""), &["header", "start with `{`"]),
        ("a number", file("7", b""), &["header", "start with `{`"]),
        ("cut off", file("{\"t\":{\"dtype\":\"F32\"", b""), &["header", "EOF"]),
        ("something after the object", file("{}x", b""), &["header", "trailing"]),
        ("a second object", file("{}{}", b""), &["header", "trailing"]),
        ("no tensors", file("{}", b""), &["model.embed_tokens.weight", "missing"]),
        ("no tensors but data", file("{}", b"abc"), &["3 trailing bytes"]),
        ("a tensor twice", file(&two((0, 8), (8, 16)).replace("\"u\"", "\"t\""), &[0; 16]), &["\"t\" occurs twice"]),
        ("metadata twice", file("{\"__metadata__\":{},\"__metadata__\":{}}", b""), &["duplicate __metadata__"]),
        ("metadata with a number", file("{\"__metadata__\":{\"a\":1}}", b""), &["header", "a string"]),
        ("metadata as a list", file("{\"__metadata__\":[]}", b""), &["__metadata__"]),
        ("a tensor that is null", file("{\"t\":null}", b""), &["tensor \"t\"", "dtype, shape and data_offsets"]),
        ("a tensor that is a list", file("{\"t\":[]}", b""), &["tensor \"t\"", "dtype, shape and data_offsets"]),
        ("no dtype", file(&tensor("\"shape\":[2],\"data_offsets\":[0,8]"), &[0; 8]), &["\"t\"", "dtype is missing"]),
        (
            "no shape",
            file(&tensor("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), &[0; 8]),
            &["\"t\"", "shape is missing"],
        ),
        (
            "no offsets",
            file(&tensor("\"dtype\":\"F32\",\"shape\":[2]"), &[0; 8]),
            &["\"t\"", "data_offsets is missing"],
        ),
        ("unknown dtype", file(&tensor(&f32x2(0, 8)).replace("F32", "Q4"), &[0; 8]), &["\"t\"", "dtype \"Q4\""]),
        ("dtype as a number", file(&tensor(&f32x2(0, 8)).replace("\"F32\"", "32"), &[0; 8]), &["\"t\"", "a string"]),
        ("unknown field", file(&tensor("\"strides\":[1]"), b""), &["\"t\"", "unknown field \"strides\""]),
        (
            "a field twice",
            file(&tensor(&format!("{},\"shape\":[2]", f32x2(0, 8))), &[0; 8]),
            &["\"t\"", "shape occurs twice"],
        ),
        ("negative dimension", file(&tensor(&f32x2(0, 8)).replace("[2]", "[-2]"), &[0; 8]), &["\"t\"", "-2"]),
        ("fractional dimension", file(&tensor(&f32x2(0, 8)).replace("[2]", "[2.0]"), &[0; 8]), &["\"t\"", "2.0"]),
        (
            "dimension beyond 64 bits",
            file(&tensor(&f32x2(0, 8)).replace("[2]", "[18446744073709551618]"), &[0; 8]),
            &["\"t\""],
        ),
        (
            "product of dimensions wraps",
            file(&tensor(&f32x2(0, 8)).replace("[2]", "[4294967296,4294967296,2]"), &[0; 8]),
            &["\"t\"", "shape"],
        ),
        (
            "bytes wrap though elements fit",
            file(&tensor(&f32x2(0, 8)).replace("[2]", "[4611686018427387906]"), &[0; 8]),
            &["\"t\"", "shape"],
        ),
        (
            "a huge dimension before a zero",
            file(&tensor(&f32x2(0, 0)).replace("[2]", "[9223372036854775807,9223372036854775807,0]"), b""),
            &["\"t\"", "shape"],
        ),
        (
            "nine dimensions",
            file(&tensor(&f32x2(0, 8)).replace("[2]", "[2,1,1,1,1,1,1,1,1]"), &[0; 8]),
            &["\"t\"", "8"],
        ),
        ("shape of deep lists", file(&tensor(&format!("\"shape\":{}", deep("[", "]"))), b""), &["header", "\"t\""]),
        ("a tensor of deep objects", file(&format!("{{\"t\":{}}}", deep("{\"a\":", "}")), b""), &["header", "\"t\""]),
        (
            "more lists than numbers",
            file(&tensor(&format!("\"data_offsets\":[0,8,{}", deep("[", "]"))), b""),
            &["\"t\""],
        ),
        ("half a byte", file(&tensor("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]"), &[0]), &["\"t\"", "F4"]),
        ("begin after end", file(&tensor(&f32x2(8, 0)), &[0; 8]), &["\"t\"", "[8, 0]"]),
        ("one offset", file(&tensor("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]"), &[0]), &["data_offsets"]),
        ("three offsets", file(&tensor("\"data_offsets\":[0,1,2]"), &[0]), &["\"t\""]),
        ("end beyond the file", file(&tensor(&f32x2(0, 8)), &[0; 7]), &["\"t\"", "7 bytes"]),
        (
            "offsets near 2^64",
            file(&tensor(&f32x2(u64::MAX - 8, u64::MAX)), &[0; 8]),
            &["\"t\"", "18446744073709551607"],
        ),
        ("offsets shorter than the shape", file(&tensor(&f32x2(0, 4)), &[0; 4]), &["\"t\"", "4 bytes", "takes 8"]),
        ("offsets longer than the shape", file(&tensor(&f32x2(0, 12)), &[0; 12]), &["\"t\"", "12 bytes", "takes 8"]),
        ("overlap", file(&two((0, 8), (4, 12)), &[0; 12]), &["\"u\"", "overlap"]),
        ("the same bytes twice", file(&two((0, 8), (0, 8)), &[0; 8]), &["\"u\"", "overlap"]),
        ("a gap", file(&two((0, 8), (9, 17)), &[0; 17]), &["\"u\"", "8..9"]),
        ("a gap at the start", file(&tensor(&f32x2(1, 9)), &[0; 9]), &["\"t\"", "0..1"]),
        ("trailing bytes", file(&tensor(&f32x2(0, 8)), &[0; 10]), &["2 trailing bytes"]),
        (
            "a name of a megabyte",
            file(&tensor(&f32x2(0, 8)).replace("\"t\"", &format!("{:?}", "t".repeat(1 << 20))), &[0; 8]),
            &["tensor name of 1048576 bytes"],
        ),
        (
            "a name with control characters",
            file(&tensor(&f32x2(0, 4)).replace("\"t\"", r#""\u001b[2J\nfake: line""#), &[0; 4]),
            &["fake: line", "takes 8"],
        ),
        ("100,001 tensors", file(&many(100_001), b""), &["more than 100000 tensors"]),
    ];
    assert!(cases.len() >= 50);
    let before = testing::peak_memory_kib();
    for (what, bytes, expected) in cases {
        let mut files = Files::good();
        files.set("model.safetensors", bytes);
        check(what, files, &[&["model.safetensors"], expected].concat());
    }
    // The largest case, 100,001 entries, has a 5 MB header; what is built from it may be a few times that.
    let grown = testing::peak_memory_kib() - before;
    assert!(grown < 64 << 10, "peak memory grew by {grown} KiB");
}

#[test]
fn zero_size_tensors_and_odd_offsets_are_allowed() {
    let mut tensors = good_tensors();
    tensors.insert(1, ("model.rotary_emb.inv_freq".to_string(), "F32", vec![0, 5]));
    tensors.insert(1, ("model.layers.0.self_attn.rotary_emb.inv_freq".to_string(), "I64", vec![1]));
    let mut bytes = pack_tensors(&tensors);
    let mut files = Files::good();
    files.set("model.safetensors", bytes.clone());
    try_load(files).unwrap();

    // Padding with spaces at the end of the header is the format's own.
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes.splice(8 + header_len as usize..8 + header_len as usize, [b' '; 13]);
    bytes[..8].copy_from_slice(&(header_len + 13).to_le_bytes());
    let mut files = Files::good();
    files.set("model.safetensors", bytes);
    try_load(files).unwrap();
}

#[test]
fn tensors_that_contradict_the_configuration() {
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    let change = |name: &str, dtype: &'static str, shape: &[usize]| {
        let mut tensors = good_tensors();
        let tensor = tensors.iter_mut().find(|(other, ..)| other == name).unwrap();
        (tensor.1, tensor.2) = (dtype, shape.to_vec());
        tensors
    };
    let without = |name: &str| good_tensors().into_iter().filter(|(other, ..)| other != name).collect::<Vec<_>>();
    let cases: Vec<(&str, Vec<TensorSpec>, &[&str])> = vec![
        ("missing", without(Q), &[Q, "missing", "[32, 32]"]),
        ("missing norm", without("model.norm.weight"), &["`model.norm.weight`", "missing", "[32]"]),
        ("misshaped", change(Q, "BF16", &[32, 64]), &[Q, "[32, 64]", "[32, 32]"]),
        ("transposed", change("model.layers.0.mlp.down_proj.weight", "BF16", &[64, 32]), &["down_proj", "[64, 32]"]),
        ("flat", change(Q, "BF16", &[1024]), &[Q, "[1024]", "[32, 32]"]),
        (
            "fewer embeddings than the vocabulary",
            change("model.embed_tokens.weight", "BF16", &[39, HIDDEN]),
            &["model.embed_tokens.weight", "[39, 32]", "[40, 32]"],
        ),
        ("integers", change(Q, "I64", &[32, 32]), &[Q, "I64", "BF16, F16, F32"]),
        ("no elements", change(Q, "F32", &[32, 0]), &[Q, "[32, 0]"]),
    ];
    for (what, tensors, expected) in cases {
        let mut files = Files::good();
        files.set("model.safetensors", pack_tensors(&tensors));
        check(what, files, &[&["model.safetensors"], expected].concat());
    }
    for (architecture, missing) in [("Qwen2ForCausalLM", "q_proj.bias"), ("Qwen3ForCausalLM", "q_norm.weight")] {
        let mut config = good_config();
        config["architectures"] = json!([architecture]);
        config["head_dim"] = json!(32);
        let mut files = Files::good();
        files.set("config.json", config.to_string().into_bytes());
        check(architecture, files, &["model.safetensors", missing, "missing"]);
    }
    let mut config = good_config();
    config["tie_word_embeddings"] = json!(false);
    let mut files = Files::good();
    files.set("config.json", config.to_string().into_bytes());
    check("an untied head", files, &["model.safetensors", "lm_head.weight", "[40, 32]"]);
}

#[test]
fn damaged_indexes() {
    const A: &str = "model-00001-of-00002.safetensors";
    const B: &str = "model-00002-of-00002.safetensors";
    let tensors = good_tensors();
    let (half_a, half_b) = tensors.split_at(5);
    let good = || {
        let names = |half: &[TensorSpec], file: &str| {
            half.iter().map(|(name, ..)| (name.clone(), json!(file))).collect::<Vec<_>>()
        };
        let map: serde_json::Map<String, Value> = [names(half_a, A), names(half_b, B)].concat().into_iter().collect();
        json!({"metadata": {"total_size": 1}, "weight_map": map})
    };
    let sharded = |index: String| {
        let mut files = Files::good();
        files.remove("model.safetensors");
        files.set(A, pack_tensors(half_a));
        files.set(B, pack_tensors(half_b));
        files.set("model.safetensors.index.json", index.into_bytes());
        files
    };
    try_load(sharded(good().to_string())).expect("the undamaged index");

    let with = |tensor: &str, file: Value| {
        let mut index = good();
        index["weight_map"][tensor] = file;
        index.to_string()
    };
    const FIRST: &str = "model.embed_tokens.weight";
    let many: serde_json::Map<String, Value> =
        (0..600).map(|index| (format!("t{index}"), json!(format!("{index}.safetensors")))).collect();
    let twice = format!("{{\"weight_map\":{{\"{FIRST}\":\"{A}\",\"{FIRST}\":\"{B}\"}}}}");
    let cases: Vec<(&str, String, &[&str])> = vec![
        ("not JSON", "weight_map".into(), &["index.json: broken: not JSON"]),
        ("a list", "[]".into(), &["an object with weight_map"]),
        ("no weight_map", "{}".into(), &["weight_map is missing"]),
        ("weight_map as a list", "{\"weight_map\":[]}".into(), &["file names by tensor name"]),
        ("weight_map twice", "{\"weight_map\":{},\"weight_map\":{}}".into(), &["weight_map occurs twice"]),
        ("a tensor twice", twice, &[FIRST, "occurs twice"]),
        ("a number for a file", with(FIRST, json!(1)), &["a string"]),
        ("parent directory", with(FIRST, json!("../model.safetensors")), &["../model.safetensors", "plain name"]),
        ("parent directory inside", with(FIRST, json!("a/../../b.safetensors")), &["plain name"]),
        ("absolute path", with(FIRST, json!("/etc/passwd.safetensors")), &["/etc/passwd", "plain name"]),
        ("a subdirectory", with(FIRST, json!("sub/model.safetensors")), &["plain name"]),
        ("a backslash", with(FIRST, json!("..\\model.safetensors")), &["plain name"]),
        ("a NUL", with(FIRST, json!("a\0.safetensors")), &["plain name"]),
        ("a hidden file", with(FIRST, json!(".safetensors")), &["plain name"]),
        ("an empty name", with(FIRST, json!("")), &["plain name"]),
        ("another kind of file", with(FIRST, json!("config.json")), &["config.json", "plain name"]),
        ("a name of 300 bytes", with(FIRST, json!(format!("{}.safetensors", "a".repeat(300)))), &["plain name"]),
        ("600 files", json!({"weight_map": many}).to_string(), &["600 files"]),
        ("a tensor that no file has", with("ghost", json!(A)), &["\"ghost\" is not in", A]),
        ("a tensor of the other file", with(FIRST, json!(B)), &[FIRST, "is not in", B]),
        ("deep nesting", format!("{{\"metadata\":{}1", "[".repeat(100_000)), &["index.json: broken"]),
    ];
    for (what, index, expected) in cases {
        check(what, sharded(index), &[&["model.safetensors.index.json"], expected].concat());
    }

    let mut files = sharded(good().to_string());
    files.remove(B);
    check("a missing shard", files, &[B, "absent"]);
    let mut files = sharded(good().to_string());
    files.set(B, pack_tensors(&tensors[4..]));
    check("a tensor in two shards", files, &[B, &tensors[4].0, A]);
    let mut files = sharded(good().to_string());
    files.set(B, vec![1; 20]);
    check("a damaged shard", files, &[B, "header length"]);
    let mut files = sharded(good().to_string());
    files.set("model.safetensors.index.json", vec![0xff, 0xfe]);
    check("an index that is not text", files, &["model.safetensors.index.json", "UTF-8"]);
}

#[test]
fn damaged_configurations() {
    let set = |name: &str, value: Value| {
        let mut config = good_config();
        config[name] = value;
        config.to_string()
    };
    let without = |name: &str| {
        let mut config = good_config();
        config.as_object_mut().unwrap().remove(name);
        config.to_string()
    };
    let rope = |value: Value| set("rope_scaling", value);
    let mut cases: Vec<(String, String, Vec<String>)> = Vec::new();
    let mut case = |what: &str, text: String, expected: &[&str]| {
        cases.push((what.to_string(), text, expected.iter().map(|part| part.to_string()).collect()));
    };

    case("empty", String::new(), &["JSON"]);
    case("cut off", good_config().to_string()[..40].to_string(), &["JSON"]);
    case("a list", "[]".into(), &["top level"]);
    case("NaN", set("rms_norm_eps", json!("@")).replace("\"@\"", "NaN"), &["JSON"]);
    case("deep nesting", format!("{{\"a\":{}", "[".repeat(100_000)), &["JSON", "recursion"]);
    case("larger than any configuration", format!("{{}}{}", " ".repeat(5 << 20)), &["at most"]);
    case(
        "unknown architecture",
        set("architectures", json!(["GPT2LMHeadModel"])),
        &["architectures", "GPT2LMHeadModel"],
    );
    case("no architecture named", set("architectures", json!([])), &["architectures"]);
    case("architectures as text", set("architectures", json!("LlamaForCausalLM")), &["architectures", "list"]);
    case("neither name", without("architectures"), &["architectures", "model_type"]);
    case(
        "an architecture with control characters",
        set("architectures", json!([format!("\u{1b}[31m\n{}", "x".repeat(5000))])),
        &["architectures"],
    );

    let sizes = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];
    for name in sizes.into_iter().chain(["max_position_embeddings"]) {
        case("missing", without(name), &[name, "missing"]);
        for value in [json!(0), json!(-1), json!(1.5), json!(1e300), json!(u64::MAX), json!(1_000_000_000)] {
            let what = format!("{name} = {value}");
            case(&what, set(name, value), &[name, "not a whole number from 1 to"]);
        }
        for value in [json!("32"), json!([32]), json!(true), json!({})] {
            let what = format!("{name} = {value}");
            case(&what, set(name, value), &[name, "expected a whole number"]);
        }
    }
    for name in ["num_key_value_heads", "head_dim"] {
        case(name, set(name, json!(0)), &[name, "not a whole number from 1 to"]);
    }
    case(
        "heads that do not divide",
        set("num_attention_heads", json!(3)),
        &["num_attention_heads", "hidden_size = 32"],
    );
    case(
        "kv heads that do not divide",
        set("num_key_value_heads", json!(2)),
        &["num_key_value_heads", "does not divide"],
    );
    case("a ragged head", set("head_dim", json!(40)), &["head_dim", "multiples of 16"]);
    case("a wide head", set("head_dim", json!(528)), &["head_dim", "up to 512"]);
    case("narrow heads by division", set("num_attention_heads", json!(4)), &["num_attention_heads", "multiples of 16"]);
    let wide = good_config().to_string().replace("\"num_attention_heads\":1", "\"num_attention_heads\":1024");
    case(
        "heads too wide in sum",
        wide.replace("\"vocab_size\"", "\"head_dim\":1024,\"vocab_size\""),
        &["num_attention_heads"],
    );
    case("gelu", set("hidden_act", json!("gelu")), &["hidden_act", "gelu"]);
    for value in [json!(0), json!(-1e-5), json!(2), json!("small")] {
        case("eps", set("rms_norm_eps", value), &["rms_norm_eps"]);
    }
    case("eps beyond f64", set("rms_norm_eps", json!("@")).replace("\"@\"", "1e999"), &["JSON"]);
    for value in [json!(0), json!(1), json!(-10000.0), json!(1e300), json!("NaN"), json!([1])] {
        case("theta", set("rope_theta", value.clone()), &["rope_theta"]);
        case("theta, version 5", set("rope_parameters", json!({"rope_theta": value})), &["rope_parameters.rope_theta"]);
    }
    case(
        "a rotation per kind of layer",
        set(
            "rope_parameters",
            json!({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}),
        ),
        &["rope_parameters.\"full_attention\"", "differ between layers"],
    );
    case("rope_scaling as a list", rope(json!([])), &["rope_scaling", "an object"]);
    case("dynamic rope", rope(json!({"rope_type": "dynamic", "factor": 2})), &["rope_scaling.rope_type", "dynamic"]);
    case("rope type as a number", rope(json!({"type": 7})), &["rope_scaling.type", "a string"]);
    case("linear without factor", rope(json!({"type": "linear"})), &["rope_scaling.factor", "missing"]);
    for factor in [json!(0), json!(-2), json!(1e30), json!("2")] {
        case("factor", rope(json!({"type": "linear", "factor": factor})), &["rope_scaling.factor"]);
    }
    case("llama3 without bands", rope(json!({"rope_type": "llama3", "factor": 8})), &["rope_scaling.low_freq_factor"]);
    case(
        "llama3 with equal bands, a division by zero",
        rope(json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})),
        &["rope_scaling.high_freq_factor"],
    );
    case(
        "yarn of no positions",
        rope(json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 0})),
        &["rope_scaling.original_max_position_embeddings"],
    );
    case("yarn beta", rope(json!({"type": "yarn", "factor": 4, "beta_fast": -1})), &["rope_scaling.beta_fast"]);
    case("half a rotation", set("partial_rotary_factor", json!(0.5)), &["partial_rotary_factor", "0.5"]);
    case("tie as a number", set("tie_word_embeddings", json!(1)), &["tie_word_embeddings", "true or false"]);
    case("eos as text", set("eos_token_id", json!("</s>")), &["eos_token_id", "token id"]);
    case("eos negative", set("eos_token_id", json!([-1])), &["eos_token_id", "token id"]);
    case("bos beyond 32 bits", set("bos_token_id", json!(1u64 << 40)), &["bos_token_id", "token id"]);

    assert!(cases.len() > 100, "{} cases", cases.len());
    for (what, text, expected) in cases {
        let mut files = Files::good();
        files.set("config.json", text.into_bytes());
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check(&what, files, &[&["config.json"], expected.as_slice()].concat());
    }

    let mut files = Files::good();
    files.remove("config.json");
    check("no config.json", files, &["config.json", "absent from the built-in model case"]);
    let mut files = Files::good();
    files.set("config.json", vec![b'{', 0xff]);
    check("not text", files, &["config.json", "byte 1", "UTF-8"]);
}

#[test]
fn windows_of_other_layer_kinds() {
    for (field, value, expected) in [
        ("layer_types", json!(["chunked_attention"]), "chunked_attention"),
        ("layer_types", json!("full_attention"), "expected a list"),
        ("layer_types", json!([7]), "expected names"),
        ("layer_types", json!(vec!["full_attention"; 9]), "9 entries"),
        ("sliding_window", json!(0), "not a whole number"),
    ] {
        let mut config = good_config();
        config["architectures"] = json!(["MistralForCausalLM"]);
        config[field] = value;
        let mut files = Files::good();
        files.set("config.json", config.to_string().into_bytes());
        check(field, files, &["config.json", field, expected]);
    }
}

#[test]
fn damaged_fields_of_single_families() {
    let long = |short: Value, long: Value| json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
    for (architecture, field, value, expected) in [
        ("Gemma2", "query_pre_attn_scalar", json!(0), "not between"),
        ("Gemma2", "query_pre_attn_scalar", json!("256"), "expected a number"),
        ("Gemma2", "attn_logit_softcapping", json!(-50), "not between"),
        ("Gemma2", "final_logit_softcapping", json!(0), "not between"),
        ("Gemma2", "hidden_activation", json!("relu"), "relu"),
        ("Gemma2", "use_bidirectional_attention", json!(true), "looks back only"),
        ("Gemma3", "sliding_window_pattern", json!(0), "not a whole number"),
        ("Gemma3", "rope_local_base_freq", json!(0.5), "not between"),
        (
            "Gemma3",
            "rope_parameters.sliding_attention.rope_type",
            json!({"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2}}),
            "not stretched",
        ),
        (
            "Gemma3",
            "rope_parameters.full_attention.rope_theta",
            json!({"full_attention": {"rope_theta": -1}, "sliding_attention": {}}),
            "not between",
        ),
        (
            "Gemma3",
            "rope_parameters.full_attention",
            json!({"full_attention": 1, "sliding_attention": {}}),
            "an object",
        ),
        ("Phi3", "partial_rotary_factor", json!(0.03), "no number of pairs"),
        ("Phi3", "partial_rotary_factor", json!(0), "no number of pairs"),
        ("Phi3", "partial_rotary_factor", json!(1.5), "not between"),
        ("Phi3", "rope_scaling.short_factor", json!({"rope_type": "longrope"}), "missing"),
        ("Phi3", "rope_scaling.short_factor", long(json!([1]), json!([1])), "1 numbers; expected are 16"),
        ("Phi3", "rope_scaling.long_factor", long(json!(vec![1; 16]), json!(vec![0; 16])), "not a number between"),
        ("Phi3", "rope_scaling.long_factor", long(json!(vec![1; 16]), json!(vec!["1"; 16])), "not a number between"),
        ("Phi3", "rope_scaling.long_factor", long(json!(vec![1; 16]), json!(4)), "expected a list"),
        ("Granite", "embedding_multiplier", json!(0), "not between"),
        ("Granite", "residual_multiplier", json!(-1), "not between"),
        ("Granite", "attention_multiplier", json!(1e30), "not between"),
        ("Granite", "logits_scaling", json!(0), "not between"),
        ("SmolLM3", "no_rope_layers", json!(3), "expected a list"),
        ("SmolLM3", "no_rope_layers", json!([]), "0 entries for num_hidden_layers = 1"),
        ("SmolLM3", "no_rope_layers", json!([2]), "expected 1 (rotated) or 0"),
        ("SmolLM3", "no_rope_layers", json!([true]), "expected 1 (rotated) or 0"),
        ("SmolLM3", "no_rope_layer_interval", json!(0), "not a whole number"),
        ("Mixtral", "num_local_experts", json!(null), "missing"),
        ("Mixtral", "num_local_experts", json!(0), "not a whole number"),
        ("Mixtral", "num_local_experts", json!(1 << 20), "not a whole number from 1 to 1024"),
        ("Mixtral", "num_experts_per_tok", json!(9), "9 of 4 experts"),
        ("Mixtral", "num_experts_per_tok", json!(null), "missing"),
        ("Qwen3Moe", "moe_intermediate_size", json!(null), "missing"),
        ("Qwen3Moe", "norm_topk_prob", json!(1), "true or false"),
        ("Qwen3Moe", "decoder_sparse_step", json!(0), "not a whole number"),
        ("Qwen3Moe", "mlp_only_layers", json!([1]), "is not a layer of 1"),
        ("Qwen3Moe", "mlp_only_layers", json!([-1]), "is not a layer of 1"),
        ("Qwen3Moe", "mlp_only_layers", json!({}), "expected a list"),
        ("Qwen3_5", "layer_types", json!(["linear_attention"]), "no layer is attention"),
        ("Qwen3_5", "layer_types", json!(["mamba"]), "\"mamba\" is not supported"),
        (
            "Qwen3_5",
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            "2 entries for num_hidden_layers = 1",
        ),
        ("Qwen3_5", "full_attention_interval", json!(0), "not a whole number"),
        ("Qwen3_5", "linear_num_key_heads", json!(0), "not a whole number"),
        ("Qwen3_5", "linear_num_value_heads", json!(24), "24 is no multiple of linear_num_key_heads = 16"),
        ("Qwen3_5", "linear_num_value_heads", json!("many"), "expected a whole number"),
        ("Qwen3_5", "linear_key_head_dim", json!(40), "multiples of 16 up to 256"),
        ("Qwen3_5", "linear_value_head_dim", json!(272), "multiples of 16 up to 256"),
        ("Qwen3_5", "linear_conv_kernel_dim", json!(9), "not a whole number from 2 to 8"),
        ("Qwen3_5", "attn_output_gate", json!(false), "is not supported"),
        ("Cohere2", "use_qk_norm", json!(true), "have no norms here"),
        ("StableLm", "qk_layernorm", json!(true), "have no norms here"),
        ("StableLm", "use_parallel_residual", json!(true), "reads what attention gave"),
        ("Llama", "clip_qkv", json!(1), "are not clipped"),
        ("Qwen3_5", "hidden_act", json!("gelu_pytorch_tanh"), "silu only"),
        ("Qwen3_5", "partial_rotary_factor", json!(0.03), "no number of pairs"),
        ("Qwen3_5Moe", "shared_expert_intermediate_size", json!(null), "missing"),
        ("Qwen3Next", "shared_expert_intermediate_size", json!(0), "not a whole number"),
    ] {
        let mut config = good_config();
        config["architectures"] = json!([format!("{architecture}ForCausalLM")]);
        config["head_dim"] = json!(HIDDEN);
        config["num_local_experts"] = json!(4);
        config["num_experts_per_tok"] = json!(2);
        config["moe_intermediate_size"] = json!(16);
        config["shared_expert_intermediate_size"] = json!(16);
        config["full_attention_interval"] = json!(1);
        if field == "hidden_act" {
            config["num_hidden_layers"] = json!(2);
            config["full_attention_interval"] = json!(2);
        }
        config[field.split('.').next().unwrap()] = value.clone();
        let mut files = Files::good();
        files.set("config.json", config.to_string().into_bytes());
        check(&format!("{architecture}: {field} = {value}"), files, &["config.json", field, expected]);
    }
}

/// A configuration that claims a million experts costs nothing: the first tensor that is not there ends it.
#[test]
fn experts_that_are_not_there() {
    let mut config = good_config();
    config["architectures"] = json!(["Qwen3MoeForCausalLM"]);
    config["head_dim"] = json!(HIDDEN);
    for (field, value) in [("num_experts", 1024), ("num_experts_per_tok", 1024), ("moe_intermediate_size", 1 << 17)] {
        config[field] = json!(value);
    }
    config["num_hidden_layers"] = json!(1024);
    let mut files = Files::good();
    files.set("config.json", config.to_string().into_bytes());
    check("experts that are not there", files, &["model.safetensors", "model.layers.0.", "missing"]);
}

#[test]
fn damaged_generation_defaults() {
    for (text, field) in [
        ("[]", "top level"),
        ("{\"temperature\": -1}", "temperature"),
        ("{\"temperature\": \"hot\"}", "temperature"),
        ("{\"temperature\": 1e30}", "temperature"),
        ("{\"top_k\": -1}", "top_k"),
        ("{\"top_k\": 1.5}", "top_k"),
        ("{\"top_p\": 1.01}", "top_p"),
        // What no request may ask for is no default either.
        ("{\"top_p\": 0}", "top_p"),
        ("{\"repetition_penalty\": 0}", "repetition_penalty"),
        ("{\"repetition_penalty\": 1000}", "repetition_penalty"),
        ("{\"max_new_tokens\": 0}", "max_new_tokens"),
        ("{\"do_sample\": 1}", "do_sample"),
        ("{\"eos_token_id\": {}}", "eos_token_id"),
        ("{\"temperature\": NaN}", "JSON"),
    ] {
        let mut files = Files::good();
        files.set("generation_config.json", text.into());
        check(text, files, &["generation_config.json", field]);
    }
}

#[test]
fn load_options_that_cannot_be_met() {
    let try_options = |change: fn(&mut LoadOptions)| {
        let mut options = options(WeightClass::Bf16);
        change(&mut options);
        model::load(Reference::new(), &Files::good().checkpoint(), &options, &mut |_| {})
    };
    type Case = (fn(&mut LoadOptions), &'static [&'static str]);
    let cases: [Case; 9] = [
        (|options| options.block_size = 0, &["block_size", "multiple of 32"]),
        (|options| options.block_size = 16, &["block_size", "16"]),
        (|options| options.max_rows = 0, &["max_rows"]),
        (|options| options.max_model_len = Some(0), &["max_model_len"]),
        (|options| options.max_model_len = Some(129), &["max_model_len", "129", "at most 128"]),
        (
            |options| (options.max_model_len, options.kv_blocks) = (Some(128), KvBudget::Blocks(3)),
            &["max_model_len", "128", "96"],
        ),
        (|options| options.kv_blocks = KvBudget::Blocks(0), &["kv_blocks"]),
        (|options| options.kv_blocks = KvBudget::Bytes(100), &["kv_blocks", "4096 bytes"]),
        (|options| options.kv_blocks = KvBudget::Blocks(usize::MAX), &["kv_blocks", "at most"]),
    ];
    for (change, expected) in cases {
        let message = try_options(change).err().expect("an error").to_string();
        for part in expected {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }
    // More activations than any machine has memory for.
    let error = try_options(|options| options.max_rows = usize::MAX / 1024).err();
    assert!(matches!(error, Some(LoadError::OutOfMemory { .. })), "{error:?}");
}

#[test]
fn lengths_are_clamped_and_said_so() {
    let loaded = |config: Value, max_model_len, kv_blocks| {
        let mut files = Files::good();
        files.set("config.json", config.to_string().into_bytes());
        let options = LoadOptions { max_model_len, kv_blocks, ..options(WeightClass::Bf16) };
        let runner = model::load(Reference::new(), &files.checkpoint(), &options, &mut |_| {}).unwrap();
        (runner.max_model_len(), runner.cache_shape().blocks(), runner.notices().to_vec())
    };
    let blocks = KvBudget::Blocks;
    assert_eq!(loaded(good_config(), None, blocks(64)), (128, 64, vec![]));
    assert_eq!(loaded(good_config(), Some(100), blocks(64)), (100, 64, vec![]));
    // 32 tokens x 1 head x (key and value) x 32 wide x 2 bytes = 4096 bytes a block.
    let (len, blocks_taken, notices) = loaded(good_config(), None, KvBudget::Bytes(3 * 4096 + 5));
    assert_eq!((len, blocks_taken), (96, 3));
    assert!(notices[0].contains("96") && notices[0].contains("KV cache"), "{notices:?}");

    // What is never served takes no memory, however much the model was trained for.
    let mut endless = good_config();
    endless["max_position_embeddings"] = json!(100_000_000);
    let before = testing::peak_memory_kib();
    assert_eq!(loaded(endless.clone(), Some(64), blocks(64)).0, 64);
    assert_eq!(loaded(endless, None, blocks(2)).0, 64);
    assert!(testing::peak_memory_kib() < before + (1 << 20), "tables of all rotations would take 12 GB");

    // A window is what a layer sees, not how long a sequence may be.
    let mut windowed = good_config();
    windowed["architectures"] = json!(["MistralForCausalLM"]);
    windowed["sliding_window"] = json!(64);
    assert_eq!(loaded(windowed, None, blocks(64)), (128, 64, vec![]));
}

#[test]
fn non_finite_weights_are_counted_and_said_so() {
    let notices = |dtype, number: &[u8], class| {
        let mut tensors = good_tensors();
        tensors[0].1 = dtype;
        let mut bytes = pack_tensors(&tensors);
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[data..data + number.len()].copy_from_slice(number);
        let mut files = Files::good();
        files.set("model.safetensors", bytes);
        load(Reference::new(), &files.checkpoint(), class).notices().to_vec()
    };
    for class in [WeightClass::Bf16, WeightClass::Int8] {
        for (dtype, number) in [
            ("F32", &f32::NAN.to_le_bytes()[..]),
            // Finite, and above half a step beyond the largest bf16.
            ("F32", &3.4e38f32.to_le_bytes()),
            ("F16", &[0, 0x7c]),
            ("BF16", &[0x80, 0xff]),
        ] {
            let told =
                "1 of the weights are NaN, or infinite in bf16; the first is in tensor \"model.embed_tokens.weight\"";
            assert_eq!(notices(dtype, number, class), [told], "{dtype} {number:?} {class:?}");
        }
        assert_eq!(notices("F32", &3.38e38f32.to_le_bytes(), class), [""; 0], "the largest bf16 is about 3.39e38");
    }
}

/// A checkpoint's one weights file with `bytes` at the beginning of its first tensor whose name ends so; its name.
fn with_scale(directory: &Path, suffix: &str, value: f32) -> Option<(Files, String)> {
    let mut files = Files(Vec::new());
    for entry in directory.read_dir().unwrap().flatten() {
        files.set(entry.file_name().to_str().unwrap(), std::fs::read(entry.path()).unwrap());
    }
    let (_, bytes) = files.0.iter_mut().find(|(name, _)| name == "model.safetensors")?;
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let mut found: Vec<(&String, &Value)> = header.as_object().unwrap().iter().collect();
    found.sort_by_key(|(name, _)| *name);
    let (name, tensor) = found.into_iter().find(|(name, _)| name.ends_with(suffix))?;
    let at = data + tensor["data_offsets"][0].as_u64().unwrap() as usize;
    let number = match tensor["dtype"].as_str().unwrap() {
        "F32" => value.to_le_bytes().to_vec(),
        "BF16" => value.to_le_bytes()[2..].to_vec(),
        "U8" => vec![255],
        "F8_E4M3" => vec![127],
        // A number beyond half precision is infinite there.
        _ => [0, if value.is_nan() { 0x7e } else { 0x7c }].to_vec(),
    };
    bytes[at..at + number.len()].copy_from_slice(&number);
    let name = name.clone();
    Some((files, name))
}

#[test]
fn scales_that_are_no_numbers_are_refused_by_name() {
    let mut tried = 0;
    for checkpoint in data("quantized").read_dir().unwrap().map(|entry| entry.unwrap().path()) {
        for (suffix, value) in
            [".scales", ".weight_scale"].iter().flat_map(|s| [f32::NAN, f32::INFINITY, 3e38].map(|v| (s, v)))
        {
            let Some((files, name)) = with_scale(&checkpoint, suffix, value) else { continue };
            for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
                let loaded = model::load(Reference::new(), &files.clone().checkpoint(), &options(class), &mut |_| {});
                let message =
                    loaded.map(|runner| runner.notices().to_vec()).expect_err("no weight by it is known").to_string();
                // Of MXFP4 it is found in the blocks.
                assert!(
                    message.contains(name.trim_end_matches("_scale")) && message.contains("finite number"),
                    "{checkpoint:?} {class:?}: {message}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried >= 9 * 8, "{tried}: each kind of quantized checkpoint");
}

/// A fresh directory for one test.
fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bad_files-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn write(directory: &Path, files: &Files) {
    for (name, bytes) in &files.0 {
        std::fs::write(directory.join(name), bytes).unwrap();
    }
}

fn load_directory(path: PathBuf) -> Result<(), String> {
    let checkpoint = Checkpoint::open(Source::Directory(path)).map_err(|error| error.to_string())?;
    let loaded = model::load(Reference::new(), &checkpoint, &options(WeightClass::Bf16), &mut |_| {});
    loaded.map(drop).map_err(|error| error.to_string())
}

#[test]
fn directories_without_usable_weights() {
    let path = directory("none");
    let message = load_directory(path.join("absent")).unwrap_err();
    assert!(message.contains("absent: no such directory"), "{message}");
    std::fs::write(path.join("a-file"), b"").unwrap();
    let message = load_directory(path.join("a-file")).unwrap_err();
    assert!(message.contains("a-file: no such directory"), "{message}");

    let mut files = Files::good();
    files.remove("model.safetensors");
    write(&path, &files);
    let message = load_directory(path.clone()).unwrap_err();
    assert!(message.contains("neither model.safetensors nor"), "{message}");

    std::fs::write(path.join("ggml.gguf"), b"GGUF").unwrap();
    let message = load_directory(path.clone()).unwrap_err();
    assert!(message.contains("ggml.gguf: broken: version"), "the directory's one model, cut off: {message}");
    std::fs::write(path.join("other.gguf"), b"GGUF").unwrap();
    let message = load_directory(path.clone()).unwrap_err();
    assert!(message.contains("2 GGUF models; name one of them") && message.contains("ggml.gguf"), "{message}");
    std::fs::remove_file(path.join("ggml.gguf")).unwrap();
    std::fs::remove_file(path.join("other.gguf")).unwrap();

    for pickle in ["pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "model.pt"] {
        std::fs::write(path.join(pickle), b"\x80\x02").unwrap();
        let message = load_directory(path.clone()).unwrap_err();
        assert!(message.contains(pickle) && message.contains("save_pretrained"), "{message}");
        std::fs::remove_file(path.join(pickle)).unwrap();
    }
}

#[test]
fn things_that_are_not_files() {
    let path = directory("not-files");
    let mut files = Files::good();
    files.remove("model.safetensors");
    write(&path, &files);
    let weights = path.join("model.safetensors");
    let refused = |kind: &str| {
        let message = load_directory(path.clone()).unwrap_err();
        let said = message.starts_with("model.safetensors: ") && message.contains("not a regular file");
        assert!(said, "{kind}: {message}");
    };

    std::fs::create_dir(&weights).unwrap();
    refused("a directory");
    std::fs::remove_dir(&weights).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &weights).unwrap();
    refused("a device");
    std::fs::remove_file(&weights).unwrap();
    if std::process::Command::new("mkfifo").arg(&weights).status().is_ok_and(|status| status.success()) {
        refused("a FIFO, whose open would wait forever");
        std::fs::remove_file(&weights).unwrap();
    }
    std::os::unix::fs::symlink(&weights, &weights).unwrap();
    let message = load_directory(path.clone()).unwrap_err();
    assert!(message.starts_with("model.safetensors: "), "a link to itself: {message}");
    std::fs::remove_file(&weights).unwrap();

    // The hub's cache: names are links to blobs elsewhere.
    let blobs = directory("blobs");
    std::fs::write(blobs.join("0123abcd"), pack_tensors(&good_tensors())).unwrap();
    std::os::unix::fs::symlink(blobs.join("0123abcd"), &weights).unwrap();
    load_directory(path.clone()).unwrap();
}

/// Whatever is at a file's name in its place, whichever file it is: broken, by name, in one line.
#[test]
fn what_stands_in_a_files_place() {
    const NAMES: [&str; 8] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "model.safetensors",
        "model.safetensors.index.json",
    ];
    const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d4d\nsize 2471645608\n";
    let contents: [(&[u8], &str); 10] = [
        (b"", "empty"),
        (POINTER, "git-lfs"),
        (b"<!DOCTYPE html>\n<html><head></head></html>", "web page"),
        (b"\n <HTML><body>403</body></HTML>", "web page"),
        (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "web page"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03abc", "gzip"),
        (b"PK\x03\x04\x14\0\0\0\x08\0", "zip"),
        (b"\xff\xfe{\0\"\0a\0\"\0", "UTF-16"),
        (b"\xfe\xff\0{\0\"\0a\0\"", "UTF-16"),
        (b"{\x00\"\x00a\x00\"\x00:\x001\x00}\x00", "UTF-16"),
    ];
    let path = directory("in-place");
    let refused = |name: &str, word: &str| {
        let checkpoint = Checkpoint::open(Source::Directory(path.clone())).unwrap();
        assert!(checkpoint.has(name), "{name}, {word}: there is something");
        let message = checkpoint.open_file(name).unwrap_err().to_string();
        let said = message.starts_with(&format!("{name}: broken: ")) && message.contains(word);
        assert!(said && !message.contains('\n'), "{name}, {word}: {message}");
        std::fs::remove_file(path.join(name)).unwrap();
    };
    for name in NAMES {
        for (bytes, word) in contents {
            std::fs::write(path.join(name), bytes).unwrap();
            refused(name, word);
        }
        for (target, word) in
            [("../../blobs/0123", "a link to ../../blobs/0123, which does not exist"), (name, "circle")]
        {
            std::os::unix::fs::symlink(target, path.join(name)).unwrap();
            refused(name, word);
        }
    }
    let checkpoint = Checkpoint::open(Source::Directory(path)).unwrap();
    for name in NAMES {
        assert!(!checkpoint.has(name) && checkpoint.open_file(name).unwrap().is_none(), "{name} is absent");
    }
}

/// Weights as a class without a head saves them, by both spellings of names; and heads beside a tied embedding.
#[test]
fn heads_are_those_of_the_weights() {
    let load = |class: &str, tied: bool, tensors: Vec<u8>| {
        let mut config = good_config();
        config["architectures"] = json!([class]);
        config["tie_word_embeddings"] = json!(tied);
        let mut files = Files::good();
        files.set("config.json", config.to_string().into_bytes());
        files.set("model.safetensors", tensors);
        let loaded = model::load(Reference::new(), &files.checkpoint(), &options(WeightClass::Bf16), &mut |_| {});
        loaded.map(|runner| runner.config().head).map_err(|error| error.to_string())
    };
    for prefix in ["model.", "", "language_model.model.", "model.language_model.", "language_model."] {
        let renamed = |(name, dtype, shape): TensorSpec| (name.replacen("model.", prefix, 1), dtype, shape);
        let tensors: Vec<TensorSpec> = good_tensors().into_iter().map(renamed).collect();
        for class in ["LlamaForCausalLM", "LlamaModel"] {
            assert_eq!(load(class, true, pack_tensors(&tensors)), Ok(Head::Embedding), "{class} {prefix:?}");
            let untied = load(class, false, pack_tensors(&tensors));
            match class == "LlamaModel" || ["", "language_model."].contains(&prefix) {
                true => assert_eq!(untied, Ok(Head::Absent), "{class} {prefix:?}"),
                false => assert!(untied.as_ref().is_err_and(|error| error.contains("lm_head")), "{class} {untied:?}"),
            }
        }
        let head = if prefix.starts_with("language_model.") { "language_model.lm_head" } else { "lm_head" };
        let with_head = [tensors, vec![(format!("{head}.weight"), "BF16", vec![VOCAB, HIDDEN])]].concat();
        let copy = pack_tensors(&with_head);
        let mut trained = copy.clone();
        *trained.last_mut().unwrap() = 0x3c;
        for class in ["LlamaForCausalLM", "LlamaModel"] {
            assert_eq!(load(class, true, copy.clone()), Ok(Head::Embedding), "{class} {prefix:?}: a copy");
            assert_eq!(load(class, true, trained.clone()), Ok(Head::Own), "{class} {prefix:?}: another matrix");
            assert_eq!(load(class, false, trained.clone()), Ok(Head::Own), "{class} {prefix:?}");
        }
    }
}

/// Parts without an index are a model if all of them are there.
#[test]
fn parts_without_an_index() {
    let tensors = good_tensors();
    let parts = |stem: &str, kept: &[usize]| {
        let mut files = Files::good();
        files.remove("model.safetensors");
        for (index, half) in [&tensors[..5], &tensors[5..]].into_iter().enumerate() {
            if kept.contains(&index) {
                files.set(&format!("{stem}-{:05}-of-00002.safetensors", index + 1), pack_tensors(half));
            }
        }
        files
    };
    for stem in ["model", "pytorch_model"] {
        try_load(parts(stem, &[0, 1])).expect("both parts");
        for (kept, absent) in [(0, 2), (1, 1)] {
            let name = format!("{stem}-{absent:05}-of-00002.safetensors");
            check("one part", parts(stem, &[kept]), &["no weights", &name, "absent"]);
        }
    }
}

#[test]
fn files_that_change_while_they_are_read() {
    let path = directory("changing");
    write(&path, &Files::good());
    let checkpoint = Checkpoint::open(Source::Directory(path.clone())).unwrap();
    let weights = Weights::open(&checkpoint).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path.join("model.safetensors")).unwrap();
    file.set_len(3000).unwrap();

    let error = weights.vector("model.norm.weight", HIDDEN).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: the file ends before byte"), "{error}");
    let name = "model.layers.0.self_attn.q_proj.weight".to_string();
    let parts = [TensorSlice { name, shape: vec![HIDDEN, HIDDEN], rows: 0..HIDDEN, transposed: false }];
    let error = weights.pack(&Reference::new(), WeightClass::Bf16, HIDDEN, &parts).err().expect("an error");
    assert!(error.to_string().contains("model.safetensors: the file ends before byte"), "{error}");
}

#[test]
fn truncation_at_every_length_is_an_error() {
    let whole = pack_tensors(&good_tensors());
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for len in (0..header + 16).chain([whole.len() - 1]) {
        let mut files = Files::good();
        files.set("model.safetensors", whole[..len].to_vec());
        let Err(message) = try_load(files) else { panic!("{len} bytes of {} loaded", whole.len()) };
        assert!(message.starts_with("model.safetensors: "), "{len} bytes: {message}");
    }
}

/// Not a shape of files but of numbers in them: a model of zeros computes zeros, not NaN.
#[test]
fn zero_weights_give_zero_logits() {
    let mut runner = load(Reference::new(), &Files::good().checkpoint(), WeightClass::Int8);
    let rows = run_alone(&mut runner, &[1, 2, 3]);
    assert!(rows.iter().flatten().all(|&logit| logit == 0.0));
    assert_eq!(runner.config().vocab_size, VOCAB);
}

/// Two layers, of which the first has a state, with zero weights.
fn with_states() -> (Value, Vec<TensorSpec>) {
    let mut config = good_config();
    for (field, value) in [
        ("architectures", json!(["Qwen3_5ForCausalLM"])),
        ("num_hidden_layers", json!(2)),
        ("full_attention_interval", json!(2)),
        ("head_dim", json!(HIDDEN)),
        ("num_key_value_heads", json!(1)),
        ("linear_num_key_heads", json!(1)),
        ("linear_num_value_heads", json!(3)),
        ("linear_key_head_dim", json!(16)),
        ("linear_value_head_dim", json!(32)),
    ] {
        config[field] = value;
    }
    let mut tensors: Vec<TensorSpec> = good_tensors()
        .into_iter()
        .flat_map(|(name, dtype, shape)| match name.contains("layers.0.") {
            true => vec![(name.replace(".0.", ".1."), dtype, shape.clone()), (name, dtype, shape)],
            false => vec![(name, dtype, shape)],
        })
        .filter(|(name, ..)| !name.starts_with("model.layers.0.self_attn"))
        .collect();
    let q = tensors.iter_mut().find(|(name, ..)| name.ends_with("1.self_attn.q_proj.weight")).unwrap();
    q.2 = vec![2 * HIDDEN, HIDDEN]; // with the gates
    for norm in ["q_norm", "k_norm"] {
        tensors.push((format!("model.layers.1.self_attn.{norm}.weight"), "BF16", vec![HIDDEN]));
    }
    for (part, shape) in [
        ("in_proj_qkv.weight", vec![2 * 16 + 3 * 32, HIDDEN]),
        ("in_proj_z.weight", vec![3 * 32, HIDDEN]),
        ("in_proj_b.weight", vec![3, HIDDEN]),
        ("in_proj_a.weight", vec![3, HIDDEN]),
        ("conv1d.weight", vec![2 * 16 + 3 * 32, 1, 4]),
        ("dt_bias", vec![3]),
        ("A_log", vec![3]),
        ("norm.weight", vec![32]),
        ("out_proj.weight", vec![HIDDEN, 3 * 32]),
    ] {
        tensors.push((format!("model.layers.0.linear_attn.{part}"), "BF16", shape));
    }
    (config, tensors)
}

fn files_of(config: &Value, tensors: &[TensorSpec]) -> Files {
    let mut files = Files::good();
    files.set("config.json", config.to_string().into_bytes());
    files.set("model.safetensors", pack_tensors(tensors));
    files
}

#[test]
fn tensors_of_layers_with_a_state_are_named_where_they_are_wrong() {
    let (config, tensors) = with_states();
    try_load(files_of(&config, &tensors)).unwrap();
    let of_layer: Vec<&TensorSpec> = tensors.iter().filter(|(name, ..)| name.contains("linear_attn")).collect();
    assert_eq!(of_layer.len(), 9);
    for (name, ..) in of_layer.into_iter().chain(tensors.iter().filter(|(name, ..)| name.contains("q_proj"))) {
        let without: Vec<TensorSpec> = tensors.iter().filter(|(other, ..)| other != name).cloned().collect();
        check(&format!("without {name}"), files_of(&config, &without), &["model.safetensors", name, "missing"]);
        let mut misshapen = tensors.clone();
        misshapen.iter_mut().find(|(other, ..)| other == name).unwrap().2[0] += 1;
        check(&format!("another {name}"), files_of(&config, &misshapen), &["model.safetensors", name, "shape"]);
    }
    let with = |name: &str| {
        let mut more = tensors.clone();
        more.push((name.to_string(), "BF16", vec![HIDDEN]));
        files_of(&config, &more)
    };
    // Layers that draft further tokens have a name of their own, and no answer needs them.
    try_load(with("mtp.layers.0.input_layernorm.weight")).unwrap();
    check(
        "one too many",
        with("model.layers.0.linear_attn.gate.weight"),
        &["linear_attn.gate.weight", "does not read"],
    );
    // Beside a text model within a larger one, towers and drafting layers are passed over.
    let mut larger = json!({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": config,
        "vision_config": {"depth": 27}});
    larger["text_config"]["model_type"] = json!("qwen3_5_text");
    let mut longer: Vec<TensorSpec> = tensors
        .iter()
        .map(|(name, dtype, shape)| (name.replace("model.", "model.language_model."), *dtype, shape.clone()))
        .collect();
    for name in ["model.visual.patch_embed.proj.weight", "mtp.fc.weight"] {
        longer.push((name.to_string(), "BF16", vec![HIDDEN, 3]));
    }
    try_load(files_of(&larger, &longer)).unwrap();
}

#[test]
fn heads_wide_or_many_cost_nothing_until_their_tensors_are_there() {
    let (mut config, tensors) = with_states();
    for (field, value) in [("linear_num_key_heads", 512), ("linear_num_value_heads", 512), ("num_hidden_layers", 1024)]
    {
        config[field] = json!(value);
    }
    config["linear_value_head_dim"] = json!(256);
    check("many heads", files_of(&config, &tensors), &["linear_attn", "shape"]);
}

/// gpt-oss with experts in MXFP4: a tensor of one of its files changed, or removed.
#[test]
fn blocks_of_mxfp4_and_their_scales_belong_together() {
    type Change = fn(Value) -> Option<Value>;
    fn with(field: &str, value: Value) -> impl Fn(Value) -> Option<Value> {
        move |mut entry: Value| {
            entry[field] = value.clone();
            Some(entry)
        }
    }
    const GATE_UP: &str = "model.layers.0.mlp.experts.gate_up_proj";
    let none: Change = |_| None;
    type Row<'a> = (&'a str, Box<dyn Fn(Value) -> Option<Value>>, &'a [&'a str]);
    let table: [Row<'_>; 9] = [
        ("_scales", Box::new(none), &["gate_up_proj_scales", "missing"]),
        ("_blocks", Box::new(none), &["experts.0.gate_proj.weight", "missing"]),
        ("_bias", Box::new(none), &["gate_up_proj_bias", "missing"]),
        ("_blocks", Box::new(with("dtype", json!("I8"))), &["gate_up_proj_blocks", "dtype I8; expected U8"]),
        ("_scales", Box::new(with("dtype", json!("I8"))), &["gate_up_proj_scales", "dtype I8; expected U8 or F8_E8M0"]),
        (
            "_blocks",
            Box::new(with("shape", json!([6, 64, 32]))),
            &["gate_up_proj_blocks", "[.., outputs, inputs / 32, 16]"],
        ),
        ("_blocks", Box::new(with("shape", json!([768, 16]))), &["gate_up_proj_blocks", "shape [768, 16]; expected"]),
        ("_scales", Box::new(with("shape", json!([6, 2, 64]))), &["gate_up_proj_scales", "[6, 2, 64]", "[6, 64, 2]"]),
        ("_blocks", Box::new(with("shape", json!([12, 32, 2, 16]))), &["gate_up_proj"]),
    ];
    for (suffix, change, expected) in table {
        let name = format!("{GATE_UP}{suffix}");
        check(&format!("{name} changed"), gpt_oss(&name, &change, &|_| ()), expected);
    }
    // A scale that is no number is found where the matrix is packed, in every class.
    let files = |scale: u8| {
        let name = format!("{GATE_UP}_scales");
        gpt_oss(&name, &|entry| Some(entry), &|bytes| bytes[3] = scale).checkpoint()
    };
    for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
        for (scale, is_number) in [(0, true), (1, true), (2, true), (252, true), (253, false), (255, false)] {
            let loaded = model::load(Reference::new(), &files(scale), &options(class), &mut |_| {});
            let error = loaded.err().map(|error| error.to_string());
            let said = "gate_up_proj_blocks\": a scale of block 3 of MXFP4 is not a finite number";
            assert!(error.is_none() == is_number, "{scale} in {class:?}: {error:?}");
            assert!(error.is_none_or(|error| error.contains(said)), "{scale} in {class:?}");
        }
    }
}

/// The committed checkpoint with one of its tensors changed: its entry (`None`: removed), and its bytes.
fn gpt_oss(name: &str, change: &dyn Fn(Value) -> Option<Value>, edit: &dyn Fn(&mut [u8])) -> Files {
    let mut files = Files::good();
    files.remove("model.safetensors");
    let (mut weight_map, mut found) = (serde_json::Map::new(), false);
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let bytes = std::fs::read(data("gpt-oss-mxfp4").join(shard)).unwrap();
        let (len, rest) = bytes.split_at(8);
        let (header, bytes) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
        let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
        let (mut entries, mut kept) = (serde_json::Map::new(), Vec::new());
        for (tensor, mut entry) in header.into_iter().filter(|(tensor, _)| tensor != "__metadata__") {
            let [begin, end] = [0, 1].map(|at| entry["data_offsets"][at].as_u64().unwrap() as usize);
            let mut own = bytes[begin..end].to_vec();
            if tensor == name {
                found = true;
                edit(&mut own);
                let Some(changed) = change(entry) else { continue };
                entry = changed;
            }
            entry["data_offsets"] = json!([kept.len(), kept.len() + own.len()]);
            kept.extend(own);
            weight_map.insert(tensor.clone(), json!(shard));
            entries.insert(tensor, entry);
        }
        files.set(shard, file(&Value::Object(entries).to_string(), &kept));
    }
    assert!(found, "no tensor {name}");
    files.set("config.json", std::fs::read(data("gpt-oss-mxfp4").join("config.json")).unwrap());
    files.set("model.safetensors.index.json", json!({"weight_map": weight_map}).to_string().into_bytes());
    files
}
