//! GGUF files from strangers: the handmade bad files of llama.cpp's `tests/test-gguf.cpp` by name, and those that broke
//! other readers. Every one ends in one error that names the file and the place, within the header's own memory, on a
//! thread with a small stack.

use crate::common;

use common::gguf::*;
use common::*;
use kernels::{Reference, WeightClass};
use std::time::{Duration, Instant};
use text::chat_template::ChatTemplate;
use text::tokenizer::Tokenizer;

const U8: u32 = 0;
const I32: u32 = 5;
const TEXT: u32 = 8;
const LIST: u32 = 9;
const F32_TENSOR: u32 = 0;
const Q4_0_TENSOR: u32 = 2;
const I8_TENSOR: u32 = 24;
const I64_TENSOR: u32 = 27;

/// Opens, configures, reads text and weights. `Err` holds the message.
fn try_load(files: Vec<(&'static str, Vec<u8>)>) -> Result<(), String> {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let load = move || {
        let checkpoint = try_embedded(files).map_err(|error| error.to_string())?;
        let options = options(WeightClass::Bf16);
        let model = model::load(Reference::new(), &checkpoint, &options, &mut |_| {}).map_err(|e| e.to_string())?;
        let vocab_size = model::Forward::config(&model).vocab_size;
        Tokenizer::load(&checkpoint, vocab_size).map_err(|error| error.to_string())?;
        ChatTemplate::load(&checkpoint).map_err(|error| error.to_string())?;
        Ok(())
    };
    thread.spawn(load).unwrap().join().expect("no panic")
}

fn check(what: &str, bytes: Vec<u8>, expected: &[&str]) {
    let started = Instant::now();
    let message = try_load(vec![("model.gguf", bytes)]).expect_err(what);
    // A refusal takes milliseconds; reading what a file claims to hold would never end.
    assert!(started.elapsed() < Duration::from_secs(300), "{what}: took {:?}", started.elapsed());
    for part in [&["model.gguf"], expected].concat() {
        assert!(message.contains(part), "{what}: no {part:?} in {message:?}");
    }
    assert!(!message.contains('\n') && message.len() < 800, "{what}: not one clear line: {message}");
}

/// The settings of a complete model of one layer.
fn good_settings() -> Vec<Vec<u8>> {
    let tokens: Vec<String> = (0..40).map(|id| format!("t{id}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    vec![
        text_setting("general.architecture", "llama"),
        u32_setting("llama.context_length", 128),
        u32_setting("llama.embedding_length", 32),
        u32_setting("llama.block_count", 1),
        u32_setting("llama.feed_forward_length", 64),
        u32_setting("llama.attention.head_count", 1),
        u32_setting("llama.attention.head_count_kv", 1),
        f32_setting("llama.attention.layer_norm_rms_epsilon", 1e-5),
        text_setting("tokenizer.ggml.model", "gpt2"),
        text_setting("tokenizer.ggml.pre", "gpt-2"),
        texts_setting("tokenizer.ggml.tokens", &tokens),
        texts_setting("tokenizer.ggml.merges", &[]),
    ]
}

type TensorSpec = (String, Vec<u64>, u32, Vec<u8>);

fn good_tensors() -> Vec<TensorSpec> {
    let zeros = |name: &str, dims: &[u64]| {
        (name.to_string(), dims.to_vec(), F32_TENSOR, vec![0; 4 * dims.iter().product::<u64>() as usize])
    };
    let mut tensors = vec![zeros("token_embd.weight", &[32, 40]), zeros("output_norm.weight", &[32])];
    for (name, dims) in [
        ("attn_norm", [32].as_slice()),
        ("ffn_norm", &[32]),
        ("attn_q", &[32, 32]),
        ("attn_k", &[32, 32]),
        ("attn_v", &[32, 32]),
        ("attn_output", &[32, 32]),
        ("ffn_gate", &[32, 64]),
        ("ffn_up", &[32, 64]),
        ("ffn_down", &[64, 32]),
    ] {
        tensors.push(zeros(&format!("blk.0.{name}.weight"), dims));
    }
    tensors
}

fn good() -> Vec<u8> {
    file(&good_settings(), &good_tensors())
}

/// The good model with one setting replaced, or added.
fn with(key: &str, value: Vec<u8>) -> Vec<u8> {
    file(&settings_with(key, value), &good_tensors())
}

fn settings_with(key: &str, value: Vec<u8>) -> Vec<Vec<u8>> {
    let mut settings = without(key);
    settings.push(value);
    settings
}

fn without(key: &str) -> Vec<Vec<u8>> {
    let name = text(key);
    good_settings().into_iter().filter(|setting| !setting.starts_with(&name)).collect()
}

#[test]
fn the_undamaged_file_loads() {
    try_load(vec![("model.gguf", good())]).unwrap();
    // Version 2 has the same bytes.
    let mut bytes = good();
    bytes[4] = 2;
    try_load(vec![("model.gguf", bytes)]).unwrap();
    // Settings of every kind, lists of them, lists of lists, a tensor of no elements and one of no dimensions,
    // under names that are known and not read.
    let mut settings = good_settings();
    for (kind, size) in [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8].into_iter().enumerate().filter(|(_, size)| *size > 0) {
        settings.push(setting(&format!("k{kind}"), kind as u32, &vec![0xA5; size]));
        settings.push(list_setting(&format!("l{kind}"), kind as u32, 3, &vec![0xA5; 3 * size]));
    }
    let inner = [&I32.to_le_bytes(), 1u64.to_le_bytes().as_slice(), &[7, 0, 0, 0]].concat();
    settings.push(list_setting("nested", LIST, 2, &inner.repeat(2)));
    let mut tensors = good_tensors();
    tensors.insert(1, ("blk.0.attn_rot_embd.weight".to_string(), vec![32, 0, 5], F32_TENSOR, Vec::new()));
    tensors.insert(1, ("blk.1.attn_rot_embd.weight".to_string(), vec![], F32_TENSOR, vec![0; 4]));
    tensors.push(("blk.2.attn_rot_embd.weight".to_string(), vec![256], 16, vec![0; 66])); // a type that is only read past
    try_load(vec![("model.gguf", file(&settings, &tensors))]).unwrap();
}

#[test]
fn another_alignment() {
    for alignment in [1u32, 2, 64, 4096] {
        let settings = [good_settings(), vec![u32_setting("general.alignment", alignment)]].concat();
        let (mut table, mut data) = (Vec::new(), Vec::new());
        for (name, dims, number, bytes) in &good_tensors() {
            data.resize(data.len().next_multiple_of(alignment as usize), 0);
            table.push(tensor(name, dims, *number, data.len() as u64));
            data.extend(bytes);
        }
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((table.len() as u64).to_le_bytes());
        bytes.extend((settings.len() as u64).to_le_bytes());
        bytes.extend([settings, table].concat().concat());
        bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
        bytes.extend(data);
        try_load(vec![("model.gguf", bytes)]).unwrap_or_else(|problem| panic!("{alignment}: {problem}"));
    }
}

/// Padding may follow the last tensor; what is longer is a part of it that its type does not cover.
#[test]
fn tensors_end_with_the_file() {
    for padding in [1, 31, 32] {
        try_load(vec![("model.gguf", [good(), vec![0; padding]].concat())]).unwrap();
    }
    let last = "tensor \"blk.0.ffn_down.weight\": F32 [32, 64] takes 8192 bytes, but the file has 33 more";
    check("bytes of no tensor", [good(), vec![0; 33]].concat(), &[last]);
    let retyped = |at: usize| {
        let mut tensors = good_tensors();
        tensors[at].2 = Q4_0_TENSOR;
        file(&good_settings(), &tensors)
    };
    let last = good_tensors().len() - 1;
    let problem = "tensor \"blk.0.ffn_down.weight\": Q4_0 [32, 64] takes 1152 bytes, but the file has 7040 more";
    check("the last, retyped", retyped(last), &[problem]);
    check("one between, retyped", retyped(last - 1), &["tensor \"blk.0.ffn_down.weight\": offset ", "; must be "]);
}

#[test]
fn damaged_headers() {
    const MINUS_ONE: u64 = u64::MAX;
    let one = |setting: Vec<u8>| raw(3, 0, 1, &[setting], &[]);
    let table = |tensors: &[Vec<u8>], data: usize| raw(3, tensors.len() as u64, 0, tensors, &vec![0; data]);
    let t = |dims: &[u64], number: u32, offset: u64| tensor("t", dims, number, offset);
    let long = "x".repeat(64);
    let nested = |depth: usize| {
        let mut value = [&U8.to_le_bytes(), 0u64.to_le_bytes().as_slice()].concat();
        for _ in 0..depth {
            value = [&LIST.to_le_bytes(), 1u64.to_le_bytes().as_slice(), &value].concat();
        }
        setting("k", LIST, &value)
    };
    let wrong_padding = [t(&[3], F32_TENSOR, 0), tensor("u", &[8], F32_TENSOR, 12)];
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        // llama.cpp: header
        ("HEADER_BAD_MAGIC", [b"FUGG".as_slice(), &[0; 40]].concat(), &["magic"]),
        ("HEADER_BAD_VERSION_0", raw(0, 0, 0, &[], &[]), &["version"]),
        ("HEADER_BAD_VERSION_1", raw(1, 0, 0, &[], &[]), &["version: 1 is unsupported"]),
        ("HEADER_BAD_VERSION_FUTURE", raw(4, 0, 0, &[], &[]), &["version: 4 is unknown"]),
        ("HEADER_BAD_N_TENSORS", raw(3, MINUS_ONE, 0, &[], &[]), &["number of tensors: 18446744073709551615"]),
        ("HEADER_BAD_N_KV", raw(3, 0, MINUS_ONE, &[], &[]), &["number of keys: 18446744073709551615"]),
        // llama.cpp: settings
        ("KV_BAD_KEY_SIZE", raw(3, 0, 1, &[MINUS_ONE.to_le_bytes().to_vec(), vec![0; 32]], &[]), &["key 0"]),
        ("KV_EMPTY_KEY", one(u32_setting("", 1)), &["key 0: has no name"]),
        ("KV_BAD_TYPE", one(setting("k", 13, &[0; 8])), &["key \"k\": value type 13"]),
        (
            "KV_DUPLICATE_KEY",
            raw(3, 0, 2, &[u32_setting("k", 1), u32_setting("k", 1)], &[]),
            &["key \"k\": occurs twice"],
        ),
        ("KV_BAD_ALIGN", one(u32_setting("general.alignment", 13)), &["general.alignment: 13"]),
        (
            "KV_WRONG_TYPE_ALIGN",
            one(setting("general.alignment", I32, &[32, 0, 0, 0])),
            &["general.alignment: is a signed 32-bit number"],
        ),
        // llama.cpp: tensors
        ("TENSORS_BAD_NAME_SIZE", table(&[tensor(&long, &[8], F32_TENSOR, 0)], 32), &["tensor 0", "64 bytes"]),
        ("TENSORS_BAD_N_DIMS", table(&[t(&[1, 1, 1, 1, 1], F32_TENSOR, 0)], 32), &["tensor \"t\": 5 dimensions"]),
        ("TENSORS_BAD_SHAPE", table(&[t(&[MINUS_ONE], F32_TENSOR, 0)], 32), &["tensor \"t\"", "dimension"]),
        (
            "TENSORS_NE_TOO_BIG",
            table(&[t(&[1 << 33, 1 << 33, 8], F32_TENSOR, 0)], 32),
            &["tensor \"t\": shape", "2^64 bits"],
        ),
        (
            "TENSORS_NBYTES_TOO_BIG",
            table(&[t(&[1 << 31, 1 << 31], I64_TENSOR, 0)], 32),
            &["tensor \"t\": shape", "2^64 bits"],
        ),
        ("TENSORS_BAD_TYPE", table(&[t(&[8], 99, 0)], 32), &["tensor \"t\": type 99"]),
        ("TENSORS_BAD_OFFSET", table(&[t(&[8], F32_TENSOR, MINUS_ONE)], 32), &["tensor \"t\": offset 184467"]),
        (
            "TENSORS_DUPLICATE_NAME",
            table(&[t(&[8], F32_TENSOR, 0), t(&[8], F32_TENSOR, 32)], 64),
            &["tensor \"t\": occurs twice"],
        ),
        (
            "TENSORS_BAD_ALIGN",
            raw(3, 1, 1, &[u32_setting("general.alignment", 13), t(&[8], F32_TENSOR, 0)], &[0; 32]),
            &["general.alignment: 13"],
        ),
        ("TENSORS_INCONSISTENT_ALIGN", table(&wrong_padding, 64), &["tensor \"u\": offset 12;", "must be 32"]),
        // llama.cpp: data
        ("DATA_NOT_ENOUGH_DATA", table(&[t(&[9], F32_TENSOR, 0)], 32), &["tensor \"t\": 36 bytes"]),
        (
            "DATA_BAD_ALIGN",
            raw(3, 1, 1, &[u32_setting("general.alignment", 0), t(&[8], F32_TENSOR, 0)], &[0; 32]),
            &["general.alignment: 0"],
        ),
        ("DATA_INCONSISTENT_ALIGN", table(&wrong_padding, 44), &["tensor \"u\": offset 12"]),
        (
            "DATA_MEM_SIZE_OVERFLOW",
            table(
                &[
                    t(&[0x7FFF_FFFF_FFFF_FFC0], I8_TENSOR, 0),
                    tensor("u", &[0x7FFF_FFFF_FFFF_FFC0], I8_TENSOR, 0x7FFF_FFFF_FFFF_FFC0),
                ],
                32,
            ),
            &["tensor \"t\": shape"],
        ),
        // Others that broke readers.
        ("an empty file", vec![], &["magic: 4 bytes at byte 0, where the file has 0 left"]),
        ("cut off in the counts", good()[..20].to_vec(), &["number of tensors: 11"]),
        ("cut off in a key", one(u32_setting("some.key", 1))[..40].to_vec(), &["key \"some.key\""]),
        ("big-endian", [b"GGUF\0\0\0\x03".as_slice(), &[0; 40]].concat(), &["version: the file is big-endian"]),
        ("more tensors than the rest could hold", raw(3, 3, 0, &[], &[0; 40]), &["number of tensors: 3"]),
        (
            "a text longer than the file",
            one(setting("k", TEXT, &[&100u64.to_le_bytes(), b"short".as_slice()].concat())),
            &["key \"k\": 100 bytes"],
        ),
        (
            "a text of almost 2^64 bytes",
            one(setting("k", TEXT, &[(u64::MAX - 7).to_le_bytes()].concat())),
            &["key \"k\""],
        ),
        ("2^60 texts", one(list_setting("k", TEXT, 1 << 60, &[0; 64])), &["key \"k\": 1152921504606846976"]),
        ("2^62 numbers, whose bytes wrap", one(list_setting("k", 4, 1 << 62, &[0; 64])), &["key \"k\": 461168"]),
        ("2^61 lists", one(list_setting("k", LIST, 1 << 61, &[0; 64])), &["key \"k\": 230584"]),
        ("a list of an unknown kind", one(list_setting("k", 77, 1, &[0; 8])), &["key \"k\": value type 77"]),
        ("lists in lists in lists", one(nested(20_000)), &["key \"k\": lists are nested"]),
        (
            "a key that is not UTF-8",
            raw(3, 0, 1, &[[&[2, 0, 0, 0, 0, 0, 0, 0], b"\xff\xfe".as_slice()].concat(), vec![0; 32]], &[]),
            &["key 0", "UTF-8"],
        ),
        ("a tensor without a name", table(&[tensor("", &[8], F32_TENSOR, 0)], 32), &["tensor 0: has no name"]),
        ("rows that are no blocks", table(&[t(&[33, 2], Q4_0_TENSOR, 0)], 64), &["tensor \"t\": rows of 33 numbers"]),
        (
            "two tensors in one place",
            table(&[t(&[8], F32_TENSOR, 0), tensor("u", &[8], F32_TENSOR, 0)], 64),
            &["tensor \"u\": offset 0"],
        ),
        ("a gap before the first", table(&[t(&[8], F32_TENSOR, 32)], 64), &["tensor \"t\": offset 32"]),
        ("an alignment that is not there", one(u32_setting("general.alignment", 1 << 31)), &["general.architecture"]),
    ];
    assert!(cases.len() >= 26 + 18);
    let before = testing::peak_memory_kib();
    for (what, bytes, expected) in cases {
        check(what, bytes, expected);
    }
    let grown = testing::peak_memory_kib() - before;
    assert!(grown < 16 << 10, "peak memory grew by {grown} KiB for files of a few hundred bytes");
}

#[test]
fn settings_that_are_no_model() {
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        (
            "no architecture",
            file(&without("general.architecture"), &good_tensors()),
            &["general.architecture: missing"],
        ),
        (
            "another architecture",
            with("general.architecture", text_setting("general.architecture", "t5")),
            &["general.architecture: \"t5\" is unknown; known are llama"],
        ),
        ("architecture as a number", with("general.architecture", u32_setting("general.architecture", 1)), &["a text"]),
        (
            "no epsilon",
            file(&without("llama.attention.layer_norm_rms_epsilon"), &good_tensors()),
            &["llama.attention.layer_norm_rms_epsilon: missing"],
        ),
        (
            "too many numbers of a head that turn",
            with("llama.rope.dimension_count", u32_setting("llama.rope.dimension_count", 2147483648)),
            &["llama.rope.dimension_count: 2147483648 is no even number from 2 to 32"],
        ),
        (
            "an odd count of numbers of a head that turn",
            with("llama.rope.dimension_count", u32_setting("llama.rope.dimension_count", 13)),
            &["llama.rope.dimension_count: 13 is no even number from 2 to 32"],
        ),
        ("no layers", with("llama.block_count", u32_setting("llama.block_count", 0)), &["llama.block_count: 0"]),
        (
            "a billion layers",
            with("llama.block_count", u32_setting("llama.block_count", 1_000_000_000)),
            &["llama.block_count: 1000000000"],
        ),
        (
            "no heads",
            with("llama.attention.head_count", u32_setting("llama.attention.head_count", 0)),
            &["llama.attention."],
        ),
        (
            "heads that do not divide",
            with("llama.attention.head_count_kv", u32_setting("llama.attention.head_count_kv", 3)),
            &["llama.attention.head_count_kv: 3"],
        ),
        (
            "heads that differ between layers",
            with(
                "llama.attention.head_count",
                list_setting("llama.attention.head_count", I32, 2, &[1, 0, 0, 0, 2, 0, 0, 0]),
            ),
            &["llama.attention.head_count", "different numbers"],
        ),
        (
            "a negative width",
            with("llama.embedding_length", setting("llama.embedding_length", I32, &(-32i32).to_le_bytes())),
            &["llama.embedding_length: -32"],
        ),
        (
            "an epsilon that is no number",
            with(
                "llama.attention.layer_norm_rms_epsilon",
                f32_setting("llama.attention.layer_norm_rms_epsilon", f32::NAN),
            ),
            &["llama.attention.layer_norm_rms_epsilon: NaN"],
        ),
        (
            "rotations of another kind",
            with("llama.rope.scaling.type", text_setting("llama.rope.scaling.type", "dynamic")),
            &["llama.rope.scaling.type: \"dynamic\""],
        ),
        (
            "keys and values of two widths",
            with("llama.attention.value_length", u32_setting("llama.attention.value_length", 64)),
            &["llama.attention.value_length: 64"],
        ),
        (
            "a tokenizer of another kind",
            with("tokenizer.ggml.model", text_setting("tokenizer.ggml.model", "rwkv")),
            &["tokenizer.ggml.model: \"rwkv\" is unsupported"],
        ),
        ("no pattern", file(&without("tokenizer.ggml.pre"), &good_tensors()), &["tokenizer.ggml.pre: missing"]),
        (
            "a pattern that is not known",
            with("tokenizer.ggml.pre", text_setting("tokenizer.ggml.pre", "newest")),
            &["tokenizer.ggml.pre: \"newest\" is not one of the"],
        ),
        (
            "a token twice",
            with("tokenizer.ggml.tokens", texts_setting("tokenizer.ggml.tokens", &["a", "b", "a"])),
            &["tokenizer.ggml.tokens: token \"a\" occurs twice"],
        ),
        (
            "a token that is not UTF-8",
            with("tokenizer.ggml.tokens", {
                list_setting("tokenizer.ggml.tokens", TEXT, 1, &[&1u64.to_le_bytes(), [0xFF].as_slice()].concat())
            }),
            &["tokenizer.ggml.tokens: entry 0 is not UTF-8"],
        ),
        (
            "more tokens than rows",
            with("tokenizer.ggml.tokens", {
                let tokens: Vec<String> = (0..50).map(|id| format!("t{id}")).collect();
                texts_setting("tokenizer.ggml.tokens", &tokens.iter().map(String::as_str).collect::<Vec<_>>())
            }),
            &["tokenizer.ggml.tokens"],
        ),
        (
            "a merge of tokens that are not there",
            with("tokenizer.ggml.merges", texts_setting("tokenizer.ggml.merges", &["t1 zz"])),
            &["tokenizer.ggml.merges: entry 0"],
        ),
        (
            "types of some tokens",
            with("tokenizer.ggml.token_type", list_setting("tokenizer.ggml.token_type", I32, 1, &[1, 0, 0, 0])),
            &["tokenizer.ggml.token_type: 1 types for 40 tokens"],
        ),
        (
            "an end that no token has",
            with("tokenizer.ggml.eos_token_id", u32_setting("tokenizer.ggml.eos_token_id", 4_000_000_000)),
            &["tokenizer.ggml.eos_token_id: 4000000000"],
        ),
        (
            "a template that is none",
            with("tokenizer.chat_template", text_setting("tokenizer.chat_template", "{% if %}")),
            &["tokenizer.chat_template"],
        ),
    ];
    for (what, bytes, expected) in cases {
        check(what, bytes, expected);
    }
}

#[test]
fn numbers_that_no_model_has() {
    for (key, value) in [
        ("llama.block_count", u32::MAX),
        ("llama.attention.head_count", 1 << 31),
        ("llama.attention.head_count_kv", 0),
        ("llama.embedding_length", 0),
        ("llama.embedding_length", u32::MAX),
        ("llama.context_length", 0),
    ] {
        check(&format!("{key} = {value}"), with(key, u32_setting(key, value)), &[key]);
    }
    let base = "llama.rope.freq_base";
    for value in [f32::NAN, -1.0] {
        check("a base of the rotation", with(base, f32_setting(base, value)), &[base]);
    }
    let tokens = "tokenizer.ggml.tokens";
    check("tokens that are numbers", with(tokens, list_setting(tokens, 4, 40, &[0; 160])), &[tokens]);
}

/// Heads of values are in another order where there are more of them than of keys: which, the settings have to say.
#[test]
fn linear_attention_that_says_too_little() {
    const KEYS: [(&str, u32); 5] =
        [("group_count", 2), ("time_step_rank", 6), ("state_size", 16), ("inner_size", 96), ("conv_kernel", 4)];
    let with = |keys: &[(&str, u32)]| {
        let mut settings = vec![
            text_setting("general.architecture", "qwen35"),
            f32_setting("qwen35.attention.layer_norm_rms_epsilon", 1e-6),
            u32_setting("qwen35.attention.key_length", 32),
        ];
        for (key, value) in [
            ("context_length", 128),
            ("embedding_length", 32),
            ("block_count", 4),
            ("feed_forward_length", 64),
            ("attention.head_count", 1),
            ("attention.head_count_kv", 1),
            ("rope.dimension_count", 8),
        ] {
            settings.push(u32_setting(&format!("qwen35.{key}"), value));
        }
        settings.extend(keys.iter().map(|(key, value)| u32_setting(&format!("qwen35.ssm.{key}"), *value)));
        file(&settings, &good_tensors())
    };
    for (at, (key, _)) in KEYS.into_iter().enumerate() {
        let key = format!("qwen35.ssm.{key}");
        let keys = [&KEYS[..at], &KEYS[at + 1..]].concat();
        check(&format!("no {key}"), with(&keys), &[&key, "missing"]);
        for value in [0, u32::MAX] {
            let mut keys = KEYS;
            keys[at].1 = value;
            check(&format!("{key} = {value}"), with(&keys), &["qwen35.ssm."]);
        }
    }
    let (mut heads, mut inner) = (KEYS, KEYS);
    (heads[1].1, inner[3].1) = (5, 100);
    check("heads of values that key heads do not share", with(&heads), &["qwen35.ssm."]);
    check("heads of no whole width", with(&inner), &["qwen35.ssm.inner_size: 100"]);
    check("a layer without its tensors", with(&KEYS), &["blk.0.ssm_conv1d.weight"]);
}

/// What single architectures need of settings.
#[test]
fn settings_of_single_architectures() {
    const EPS: &str = "attention.layer_norm_rms_epsilon";
    for (architecture, more, expected) in [
        ("cohere2", None, "cohere2.attention.layer_norm_epsilon: missing"),
        ("glm4", Some(u32_setting("glm4.rope.dimension_sections", 8)), "glm4.rope.dimension_sections: of GLM-4V"),
        ("apertus", None, "xielu.alpha_p: missing"),
        ("apertus", Some(list_setting("xielu.alpha_p", 6, 1, &[0; 4])), "xielu.alpha_p: 1 numbers; expected are 2"),
    ] {
        let key = |name: &str| format!("{architecture}.{name}");
        let mut settings = vec![text_setting("general.architecture", architecture), f32_setting(&key(EPS), 1e-6)];
        for (name, value) in [
            ("context_length", 128),
            ("embedding_length", 32),
            ("block_count", 2),
            ("feed_forward_length", 64),
            ("attention.head_count", 1),
        ] {
            settings.push(u32_setting(&key(name), value));
        }
        settings.extend(more);
        check(expected, file(&settings, &good_tensors()), &[expected]);
    }
}

/// Whatever tokens and parts claim to be, it is taken, or one clear line.
#[test]
fn words_that_mean_nothing() {
    let long = "ab".repeat(50_000);
    let scores = f32::NAN.to_le_bytes().repeat(40);
    let types: Vec<u8> = (0..40u32).flat_map(|index| (index * 77).to_le_bytes()).collect();
    let part = |name: &str, value: u16| setting(name, 2, &value.to_le_bytes());
    let cases: [(&str, Vec<Vec<u8>>); 7] = [
        ("tokenizer.ggml.tokens", vec![list_setting("tokenizer.ggml.tokens", TEXT, 0, &[])]),
        ("tokenizer.ggml.tokens", vec![texts_setting("tokenizer.ggml.tokens", &[""; 40])]),
        ("tokenizer.ggml.tokens", vec![texts_setting("tokenizer.ggml.tokens", &["a", "b", &long])]),
        ("tokenizer.ggml.merges", vec![texts_setting("tokenizer.ggml.merges", &[""; 1000])]),
        ("tokenizer.ggml.token_type", vec![list_setting("tokenizer.ggml.token_type", I32, 40, &types)]),
        ("tokenizer.ggml.scores", vec![list_setting("tokenizer.ggml.scores", 6, 40, &scores)]),
        ("split", vec![part("split.count", 0), part("split.no", u16::MAX)]),
    ];
    for (key, more) in cases {
        for kind in ["gpt2", "llama"] {
            let mut settings = without(key);
            settings.retain(|setting| !setting.starts_with(&text("tokenizer.ggml.model")));
            settings.push(text_setting("tokenizer.ggml.model", kind));
            settings.extend(more.clone());
            if let Err(message) = try_load(vec![("model.gguf", file(&settings, &good_tensors()))]) {
                let is_clear = message.contains("model.gguf") && !message.contains('\n') && message.len() < 600;
                assert!(is_clear, "{key}, {kind}: {message}");
            }
        }
    }
}

#[test]
fn tensors_that_contradict_the_settings() {
    let change = |name: &str, change: &dyn Fn(&mut TensorSpec)| {
        let mut tensors = good_tensors();
        change(tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap());
        file(&good_settings(), &tensors)
    };
    let missing: Vec<TensorSpec> = good_tensors().into_iter().filter(|t| t.0 != "blk.0.attn_q.weight").collect();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("missing", file(&good_settings(), &missing), &["`blk.0.attn_q.weight` is missing", "[32, 32]"]),
        (
            "transposed",
            change("blk.0.ffn_down.weight", &|tensor| tensor.1.reverse()),
            &["`blk.0.ffn_down.weight`: shape [64, 32]", "[32, 64]"],
        ),
        (
            "a type that is not read",
            change("blk.0.ffn_norm.weight", &|tensor| (tensor.2, tensor.3) = (I8_TENSOR, vec![0; 32])),
            &["blk.0.ffn_norm.weight", "I8"],
        ),
        (
            "divisors of the frequencies that nothing makes",
            file(
                &good_settings(),
                &[
                    good_tensors(),
                    vec![(
                        "rope_freqs.weight".to_string(),
                        vec![16],
                        F32_TENSOR,
                        (0..16).flat_map(|i| (1.0 + i as f32 * 0.3).to_le_bytes()).collect(),
                    )],
                ]
                .concat(),
            ),
            &["tensor \"rope_freqs.weight\"", "Llama 3"],
        ),
    ];
    for (what, bytes, expected) in cases {
        check(what, bytes, expected);
    }
}

#[test]
fn parts_that_do_not_belong_together() {
    const A: &str = "m-00001-of-00002.gguf";
    const B: &str = "m-00002-of-00002.gguf";
    let tensors = good_tensors();
    let (first, second) = tensors.split_at(4);
    let split =
        |number: u8, count: u8| vec![setting("split.no", 2, &[number, 0]), setting("split.count", 2, &[count, 0])];
    let part_a = file(&[good_settings(), split(0, 2)].concat(), first);
    let part_b = |number: u8, count: u8, tensors: &[TensorSpec]| file(&split(number, count), tensors);
    try_load(vec![(A, part_a.clone()), (B, part_b(1, 2, second))]).expect("the undamaged parts");
    // Cases: what, file names and bytes, parts of the message.
    type Case<'a> = (&'a str, Vec<(&'static str, Vec<u8>)>, &'a [&'a str]);
    let miscounted =
        file(&[good_settings(), split(0, 2), vec![u32_setting("split.tensors.count", 99)]].concat(), first);
    let cases: Vec<Case<'_>> = vec![
        ("the second is missing", vec![(A, part_a.clone())], &[B, "absent"]),
        ("the first is missing", vec![(B, part_b(1, 2, second))], &[B, "not the first part of that model"]),
        (
            "the first twice",
            vec![(A, part_a.clone()), (B, part_b(0, 2, second))],
            &[B, "split.no", "not part 2 of the 2"],
        ),
        ("a part of another", vec![(A, part_a.clone()), (B, part_b(1, 3, second))], &[B, "not part 2 of the 2"]),
        ("a tensor in both", vec![(A, part_a.clone()), (B, part_b(1, 2, &tensors[3..]))], &[B, "also in", A]),
        ("a damaged part", vec![(A, part_a.clone()), (B, vec![1; 40])], &[B, "magic"]),
        ("a name without its number", vec![("m.gguf", part_a)], &["m.gguf", "NAME-00001-of-00002.gguf"]),
        ("tensors that no part has", vec![(A, miscounted), (B, part_b(1, 2, second))], &[A, "split.tensors.count: 99"]),
    ];
    for (what, files, expected) in cases {
        let message = try_load(files).expect_err(what);
        for part in expected {
            assert!(message.contains(part), "{what}: no {part:?} in {message:?}");
        }
    }
}

/// Every file that is a beginning of a good one is an error, and never anything else.
#[test]
fn cut_off_anywhere() {
    let bytes = good();
    for len in (0..1200.min(bytes.len())).chain([bytes.len() - 1]) {
        let result = try_embedded(vec![("model.gguf", bytes[..len].to_vec())]);
        let message = result.err().unwrap_or_else(|| panic!("{len} of {} bytes are no model", bytes.len())).to_string();
        assert!(message.contains("model.gguf"), "{len}: {message}");
    }
}
