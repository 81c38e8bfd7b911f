//! Files of weights: safetensors and GGUF. By mutation of good ones, and built as in the reports about other loaders.

use std::sync::Arc;

use serde_json::{Map, Value, json};

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

const NORM: &str = "model.norm.weight";

/// Safetensors as nobody should write them.
pub(crate) fn built_safetensors(base: &Arc<Base>) -> Vec<Case> {
    type Build = fn(&[u8]) -> Vec<u8>;
    /// One field of the final norm's entry is set.
    fn norm(file: &[u8], field: &str, value: Value) -> Vec<u8> {
        let (mut header, data) = parts(file);
        header[NORM][field] = value;
        joined(&Value::Object(header).to_string(), data)
    }
    /// An entry more.
    fn more(file: &[u8], name: &str, entry: Value) -> Vec<u8> {
        let (mut header, data) = parts(file);
        header.insert(name.into(), entry);
        joined(&Value::Object(header).to_string(), data)
    }
    fn claims(file: &[u8], length: u64) -> Vec<u8> {
        [&length.to_le_bytes(), &file[8..]].concat()
    }
    /// Every bf16 value is this.
    fn all(file: &[u8], bits: u16) -> Vec<u8> {
        let (header, data) = parts(file);
        let data: Vec<u8> = bits.to_le_bytes().into_iter().cycle().take(data.len()).collect();
        joined(&Value::Object(header).to_string(), &data)
    }
    fn nested(depth: usize) -> String {
        format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
    }
    let refused: &[(&str, Build)] = &[
        ("empty", |_| Vec::new()),
        ("seven bytes", |file| file[..7].to_vec()),
        ("header of length 0", |_| joined("", &[])),
        ("header of length 1", |_| joined("{", &[])),
        ("header longer than the file", |file| claims(file, file.len() as u64)),
        ("header of 101 MB claimed", |file| claims(file, 101 << 20)),
        ("header of 2^63 claimed", |file| claims(file, 1 << 63)),
        ("header of 2^64-1 claimed", |file| claims(file, u64::MAX)),
        ("header of 2^64-8 claimed", |file| claims(file, u64::MAX - 7)),
        ("header is not UTF-8", |file| {
            let mut bytes = file.to_vec();
            bytes[20] = 0xFF;
            bytes
        }),
        ("header is a list", |_| joined("[]", &[])),
        ("header is a number", |_| joined("7", &[])),
        ("header nested 100,000 deep", |_| joined(&format!("{{\"a\":{}}}", nested(100_000)), &[])),
        ("a name twice", |file| {
            let (header, data) = parts(file);
            let entry = header[NORM].to_string();
            let text = Value::Object(header).to_string();
            joined(&format!("{},\"{NORM}\":{entry}}}", &text[..text.len() - 1]), data)
        }),
        ("unknown dtype", |file| norm(file, "dtype", json!("Q7_K"))),
        ("dtype is a number", |file| norm(file, "dtype", json!(7))),
        ("shape of 2^63", |file| norm(file, "shape", json!([1u64 << 63, 2]))),
        ("shape whose product wraps to 128", |file| norm(file, "shape", json!([(1u64 << 57) + 1, 128]))),
        ("bytes wrap though elements fit", |file| norm(file, "shape", json!([(1u64 << 63) + 128]))),
        ("negative shape", |file| norm(file, "shape", json!([-128]))),
        ("shape with a fraction", |file| norm(file, "shape", json!([128.5]))),
        ("a thousand dimensions", |file| norm(file, "shape", json!(vec![1; 1000]))),
        ("begin behind end", |file| norm(file, "data_offsets", json!([256, 0]))),
        ("end behind the file", |file| norm(file, "data_offsets", json!([0, 1u64 << 40]))),
        ("offsets near 2^64", |file| norm(file, "data_offsets", json!([u64::MAX - 255, u64::MAX]))),
        ("one offset", |file| norm(file, "data_offsets", json!([0]))),
        ("two tensors in one place", |file| norm(file, "data_offsets", json!([0, 256]))),
        ("trailing bytes", |file| [file, &b"PK\x03\x04"[..]].concat()),
        ("one byte too few", |file| file[..file.len() - 1].to_vec()),
        ("the data is missing", |file| {
            let (header, _) = parts(file);
            joined(&Value::Object(header).to_string(), &[])
        }),
        ("a tensor that nobody reads", |file| {
            let (_, data) = parts(file);
            let entry = json!({ "dtype": "BF16", "shape": [2], "data_offsets": [data.len(), data.len() + 4] });
            [more(file, "model.layers.0.secret.weight", entry), vec![0; 4]].concat()
        }),
        ("metadata that is no text", |file| more(file, "__metadata__", json!({ "format": 1 }))),
        ("100,000 entries of nothing", |file| {
            let (mut header, data) = parts(file);
            for index in 0..100_000 {
                let entry = json!({ "dtype": "BF16", "shape": [0], "data_offsets": [0, 0] });
                header.insert(format!("x{index}"), entry);
            }
            joined(&Value::Object(header).to_string(), data)
        }),
        ("a name of 1 MB", |file| {
            let entry = json!({ "dtype": "BF16", "shape": [0], "data_offsets": [0, 0] });
            more(file, &"x".repeat(1 << 20), entry)
        }),
        ("a name with control characters", |file| {
            let entry = json!({ "dtype": "BF16", "shape": [0], "data_offsets": [0, 0] });
            more(file, "\u{1b}[2J\nfake: line", entry)
        }),
        ("a pickle", |_| b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94.".to_vec()),
        ("a zip", |_| b"PK\x03\x04archive/data.pkl".to_vec()),
    ];
    let mut cases = Vec::new();
    for &(name, build) in refused {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let bytes = build(&own.model[FILE_OF_WEIGHTS]);
            weights(&own, scratch, &bytes, &Verdict::Refused(vec![FILE_OF_WEIGHTS]))
        };
        cases.push(Case::new(SAFETENSORS, name, check));
    }
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

/// A GGUF file taken apart, so that it can be put together wrongly.
#[derive(Clone)]
struct Parts {
    magic: [u8; 4],
    version: u32,
    /// Claimed counts, if not the true ones.
    num_tensors: Option<u64>,
    num_keys: Option<u64>,
    /// Key, and kind with value as bytes.
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<Tensor>,
    align: usize,
    data: Vec<u8>,
}

#[derive(Clone)]
struct Tensor {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];

struct Reader<'a>(&'a [u8], usize);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Vec<u8> {
        self.1 += count;
        self.0[self.1 - count..self.1].to_vec()
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }
    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.take(length)).expect("text")
    }
    fn skip(&mut self, kind: u32) {
        match kind {
            8 => drop(self.text()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip(kind));
            }
            _ => drop(self.take(SIZES[kind as usize])),
        }
    }
}

impl Parts {
    fn of(file: &[u8]) -> Parts {
        let mut reader = Reader(file, 4);
        let (version, num_tensors, num_keys) = (reader.u32(), reader.u64(), reader.u64());
        let keys = (0..num_keys).map(|_| {
            let key = reader.text();
            let start = reader.1;
            let kind = reader.u32();
            reader.skip(kind);
            (key, file[start..reader.1].to_vec())
        });
        let keys: Vec<_> = keys.collect();
        let tensors = (0..num_tensors).map(|_| {
            let name = reader.text();
            let dims = (0..reader.u32()).map(|_| reader.u64()).collect();
            Tensor { name, dims, kind: reader.u32(), offset: reader.u64() }
        });
        let tensors: Vec<_> = tensors.collect();
        let data = file[reader.1.next_multiple_of(32)..].to_vec();
        let magic = *b"GGUF";
        Parts { magic, version, num_tensors: None, num_keys: None, keys, tensors, align: 32, data }
    }

    fn file(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.num_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.num_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            bytes.extend(string(key));
            bytes.extend(value);
        }
        for tensor in &self.tensors {
            bytes.extend(string(&tensor.name));
            bytes.extend((tensor.dims.len() as u32).to_le_bytes());
            bytes.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(self.align), 0);
        bytes.extend(&self.data);
        bytes
    }

    fn set(&mut self, key: &str, value: Vec<u8>) {
        self.keys.retain(|(name, _)| !name.ends_with(key));
        let arch = |key: &str| match key.contains('.') {
            true => key.to_string(),
            false => format!("llama.{key}"),
        };
        self.keys.push((arch(key), value));
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn number(value: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), value.to_le_bytes()].concat()
}

fn float(value: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), value.to_le_bytes()].concat()
}

fn list(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes(), kind.to_le_bytes().as_slice(), &count.to_le_bytes(), elements].concat()
}

fn chars(value: &str) -> Vec<u8> {
    [&8u32.to_le_bytes(), string(value).as_slice()].concat()
}

/// GGUF as nobody should write it: llama.cpp's rejects, and more.
pub(crate) fn built_gguf(base: &Arc<Base>) -> Vec<Case> {
    type Build = fn(&mut Parts);
    let refused: &[(&str, Build)] = &[
        ("bad magic", |p| p.magic = *b"GGML"),
        ("big-endian", |p| p.version = p.version.swap_bytes()),
        ("version 0", |p| p.version = 0),
        ("version 1", |p| p.version = 1),
        ("version of the future", |p| p.version = 99),
        ("tensor count -1", |p| p.num_tensors = Some(u64::MAX)),
        ("tensor count 2^60", |p| p.num_tensors = Some(1 << 60)),
        ("tensor count too large by one", |p| p.num_tensors = Some(p.tensors.len() as u64 + 1)),
        ("key count -1", |p| p.num_keys = Some(u64::MAX)),
        ("key count 2^32", |p| p.num_keys = Some(1 << 32)),
        ("empty key", |p| p.keys[3].0.clear()),
        ("key of 1 MB", |p| p.keys[3].0 = "k".repeat(1 << 20)),
        ("bad value type", |p| p.keys[3].1 = [99u32.to_le_bytes(), [0; 4]].concat()),
        ("duplicate key", |p| p.keys.push(p.keys[2].clone())),
        ("alignment 13", |p| p.set("general.alignment", number(13))),
        ("alignment 0", |p| p.set("general.alignment", number(0))),
        ("alignment 2^31", |p| p.set("general.alignment", number(1 << 31))),
        ("alignment is text", |p| p.set("general.alignment", chars("32"))),
        ("inconsistent alignment", |p| {
            p.set("general.alignment", number(128));
            p.tensors[1].offset += 32;
        }),
        ("tensor name of 1 kB", |p| p.tensors[0].name = "n".repeat(1000)),
        ("five dimensions", |p| p.tensors[0].dims = vec![1; 5]),
        ("2^20 dimensions", |p| p.tensors[0].dims = vec![1; 1 << 20]),
        ("negative dimension", |p| p.tensors[0].dims[0] = -1i64 as u64),
        ("elements wrap", |p| p.tensors[0].dims = vec![1 << 33, 1 << 33]),
        ("bytes wrap though elements fit", |p| p.tensors[0].dims = vec![1 << 31, 1 << 30]),
        ("bad tensor type", |p| p.tensors[0].kind = 4),
        ("tensor type of the future", |p| p.tensors[0].kind = 9999),
        ("offset not aligned", |p| p.tensors[1].offset += 1),
        ("offset behind the file", |p| p.tensors[1].offset = 1 << 40),
        ("offset near 2^64", |p| p.tensors[1].offset = u64::MAX - 31),
        ("offset and size wrap", |p| p.tensors[1].offset = 0u64.wrapping_sub(4096)),
        ("two tensors in one place", |p| p.tensors[1].offset = p.tensors[2].offset),
        ("duplicate tensor", |p| {
            let name = p.tensors[0].name.clone();
            p.tensors[1].name = name;
        }),
        ("not enough data", |p| p.data.truncate(p.data.len() / 2)),
        ("no data", |p| p.data.clear()),
        ("two tensors whose sizes add up past 2^63", |p| {
            for tensor in p.tensors.iter_mut().take(2) {
                (tensor.dims, tensor.kind) = (vec![0x7FFF_FFFF_FFFF_FFC0], 24);
            }
        }),
        ("lists in lists", |p| {
            let deep = (0..1000).flat_map(|_| [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat());
            let value = [&9u32.to_le_bytes()[..], &deep.collect::<Vec<u8>>(), &4u32.to_le_bytes(), &[0; 12]].concat();
            p.set("general.tags", value);
        }),
        ("2^60 texts", |p| p.set("tokenizer.ggml.tokens", list(8, 1 << 60, &[]))),
        ("2^40 numbers", |p| p.set("tokenizer.ggml.scores", list(6, 1 << 40, &[0; 64]))),
        ("text longer than the file", |p| {
            p.set("general.name", [&8u32.to_le_bytes(), (1u64 << 40).to_le_bytes().as_slice(), b"x"].concat());
        }),
        ("text of 2^64-1", |p| {
            p.set("general.name", [&8u32.to_le_bytes(), u64::MAX.to_le_bytes().as_slice(), b"x"].concat());
        }),
        ("name is not UTF-8", |p| {
            p.set("general.architecture", [&8u32.to_le_bytes(), 2u64.to_le_bytes().as_slice(), &[0xFF, 0xFE]].concat());
        }),
        ("architecture unknown", |p| p.set("general.architecture", chars("mamba"))),
        ("no layers", |p| p.set("block_count", number(0))),
        ("one layer of three (row 10)", |p| p.set("block_count", number(1))),
        ("2^32-1 layers", |p| p.set("block_count", number(u32::MAX))),
        ("no heads", |p| p.set("attention.head_count", number(0))),
        ("no KV heads", |p| p.set("attention.head_count_kv", number(0))),
        ("heads that do not divide", |p| p.set("attention.head_count", number(7))),
        ("2^31 heads", |p| p.set("attention.head_count", number(1 << 31))),
        ("no width", |p| p.set("embedding_length", number(0))),
        ("width 2^32-1", |p| p.set("embedding_length", number(u32::MAX))),
        ("no context", |p| p.set("context_length", number(0))),
        ("rope base NaN", |p| p.set("llama.rope.freq_base", float(f32::NAN))),
        ("rope base -1", |p| p.set("llama.rope.freq_base", float(-1.0))),
        ("epsilon NaN", |p| p.set("llama.attention.layer_norm_rms_epsilon", float(f32::NAN))),
        ("no tokens", |p| p.set("tokenizer.ggml.tokens", list(8, 0, &[]))),
        ("tokens are numbers", |p| p.set("tokenizer.ggml.tokens", list(4, 2048, &[0; 8192]))),
        ("end of text beyond the vocabulary", |p| p.set("tokenizer.ggml.eos_token_id", number(1 << 30))),
        ("tokenizer unknown", |p| p.set("tokenizer.ggml.model", chars("rwkv"))),
        ("parts that are missing", |p| {
            p.set("split.count", [2u32.to_le_bytes().as_slice(), &3u16.to_le_bytes()].concat());
            p.set("split.no", [2u32.to_le_bytes().as_slice(), &0u16.to_le_bytes()].concat());
        }),
    ];
    let mut cases = Vec::new();
    let mut case = |name: &str, build: Build, verdict: Verdict| {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let mut parts = Parts::of(&own.gguf);
            build(&mut parts);
            gguf(scratch, &parts.file(), &verdict)
        };
        cases.push(Case::new(GGUF, name, check));
    };
    for &(name, build) in refused {
        case(name, build, Verdict::Refused(vec!["model.gguf"]));
    }
    let either: &[(&str, Build)] = &[
        ("as it was", |_| {}),
        ("part 65,535 of 0", |p| {
            p.set("split.count", [2u32.to_le_bytes().as_slice(), &0u16.to_le_bytes()].concat());
            p.set("split.no", [2u32.to_le_bytes().as_slice(), &u16::MAX.to_le_bytes()].concat());
        }),
        ("a tensor of no elements", |p| {
            p.tensors.push(Tensor { name: "none".into(), dims: vec![0], kind: 0, offset: 0 });
        }),
        ("alignment 64", |p| {
            p.set("general.alignment", number(64));
            p.align = 64;
        }),
        ("a template of 5,500 nested ifs", |p| {
            let template = format!("{}x{}", "{% if 1 %}".repeat(5500), "{% endif %}".repeat(5500));
            p.set("tokenizer.chat_template", chars(&template));
        }),
        ("scores NaN", |p| {
            let scores: Vec<u8> = (0..2048).flat_map(|_| f32::NAN.to_le_bytes()).collect();
            p.set("tokenizer.ggml.scores", list(6, 2048, &scores));
        }),
        ("every token the same", |p| {
            let tokens: Vec<u8> = (0..2048).flat_map(|_| string("a")).collect();
            p.set("tokenizer.ggml.tokens", list(8, 2048, &tokens));
        }),
        ("every token empty", |p| {
            let tokens: Vec<u8> = (0..2048).flat_map(|_| string("")).collect();
            p.set("tokenizer.ggml.tokens", list(8, 2048, &tokens));
        }),
        ("a token of 100 kB", |p| {
            let text = "ab".repeat(50_000);
            let tokens: Vec<u8> = (0..2048).flat_map(|index| string(if index == 7 { &text } else { "a" })).collect();
            p.set("tokenizer.ggml.tokens", list(8, 2048, &tokens));
        }),
        ("merges of nothing", |p| {
            let merges: Vec<u8> = (0..1000).flat_map(|_| string("")).collect();
            p.set("tokenizer.ggml.merges", list(8, 1000, &merges));
        }),
        ("token types of no meaning", |p| {
            let kinds: Vec<u8> = (0..2048u32).flat_map(|index| (index * 77).to_le_bytes()).collect();
            p.set("tokenizer.ggml.token_type", list(5, 2048, &kinds));
        }),
        ("one token type", |p| p.set("tokenizer.ggml.token_type", list(5, 1, &[1, 0, 0, 0]))),
    ];
    for &(name, build) in either {
        case(name, build, Verdict::RefusedOr(vec!["model.gguf"]));
    }
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
