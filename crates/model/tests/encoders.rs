//! Encoders: tiny ones of every family against `transformers`, whose rows and vectors `oracle/encoders.py` recorded, and
//! against themselves: a text has the same bits alone, among others, in any order, on any number of threads and any
//! instruction set.

use crate::common;

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError, Source};
use common::device::Remote;
use common::gguf::{f32_setting, file, list_setting, text_setting, texts_setting, u32_setting};
use common::*;
use kernels::{AccumulationOrder, Backend, Isa, KvDtype, Reference, WeightClass};
use model::{Batch, Encoder, Forward, KvBudget, LoadOptions, ModelConfig, Span, load_encoder};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CASES: [&str; 10] = [
    "bert",
    "bert-reranker",
    "xlm-roberta",
    "roberta-classifier",
    "modernbert",
    "modernbert-classifier",
    "embedding-gemma",
    "nomic-bert",
    "qwen3-classifier",
    "qwen3-reranker",
];

fn directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(Source::Directory(directory(name))).unwrap()
}

/// A text: tokens, and the segment of each if it is a pair.
#[derive(Clone, Debug)]
struct Text {
    tokens: Vec<u32>,
    types: Vec<u32>,
}

fn numbers(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn texts(name: &str) -> Vec<Text> {
    let json: Value = serde_json::from_slice(&std::fs::read(directory(name).join("oracle.json")).unwrap()).unwrap();
    let list = |value: &Value| -> Vec<u32> {
        value.as_array().into_iter().flatten().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let text = |text: &Value| Text { tokens: list(&text["tokens"]), types: list(&text["types"]) };
    json["texts"].as_array().unwrap().iter().map(text).collect()
}

fn encoder_options(weights: WeightClass, kv_dtype: KvDtype) -> LoadOptions {
    LoadOptions { max_rows: 800, max_logit_rows: 0, kv_blocks: KvBudget::Blocks(40), kv_dtype, ..options(weights) }
}

fn load<B: Backend>(backend: B, name: &str, weights: WeightClass, kv_dtype: KvDtype) -> Encoder<B> {
    load_encoder(backend, &open(name), &encoder_options(weights, kv_dtype), &mut |_| {}).unwrap()
}

/// A batch of whole texts in blocks from `first_block` on.
fn batch_of(texts: &[&Text], first_block: u32) -> Batch {
    let (mut batch, mut next) = (Batch::default(), first_block);
    for text in texts {
        let len = text.tokens.len();
        let table: Vec<u32> = (next..next + (len as u32).div_ceil(BLOCK)).collect();
        next += table.len() as u32;
        push(&mut batch, &text.tokens, 0..len, &table, Wanted::Last);
        batch.token_types.extend(&text.types);
        batch.token_types.resize(batch.token_ids.len(), 0);
    }
    batch
}

/// The vectors of one pass.
fn vectors(model: &mut dyn Forward, batch: &Batch) -> Vec<Vec<f32>> {
    let (ticket, width) = (model.launch(batch).unwrap(), model.config().vector_width());
    let done = model.wait(ticket).unwrap();
    let mut out = vec![f32::NAN; done.rows() * width];
    model.read_hidden(&done, 0..done.rows(), &mut out).unwrap();
    out.chunks_exact(width).map(<[f32]>::to_vec).collect()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Relative L2 error.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f32| f64::from(x).powi(2);
    let off: f64 = got.iter().zip(want).map(|(got, want)| square(got - want)).sum();
    (off / want.iter().map(|&want| square(want)).sum::<f64>()).sqrt()
}

#[test]
fn every_family_agrees_with_transformers() {
    for name in CASES {
        let texts = texts(name);
        let (rows_path, want) = (directory(name).join("rows.f32"), numbers(&directory(name).join("vectors.f32")));
        for (class, kv_dtype, most) in [
            (WeightClass::Bf16, KvDtype::Bf16, 1e-2),
            (WeightClass::Bf16, KvDtype::Int8, 2e-2),
            (WeightClass::Int8, KvDtype::Bf16, 1e-1),
            (WeightClass::Int4, KvDtype::Bf16, 0.5),
        ] {
            let mut model = load(cpu(None, 2), name, class, kv_dtype);
            let (mut rows, mut got) = (Vec::new(), Vec::new());
            for text in &texts {
                got.extend(vectors(&mut model, &batch_of(&[text], 0)).concat());
                let mut of_text = vec![0.0; text.tokens.len() * model.config().hidden_size];
                model.read_rows(0..text.tokens.len(), &mut of_text).unwrap();
                rows.extend(of_text);
            }
            let of_vectors = error(&got, &want);
            let of_rows = if rows_path.exists() { error(&rows, &numbers(&rows_path)) } else { 0.0 };
            println!("{name:22} {class:?} {kv_dtype:?}: rows {of_rows:.2e}, vectors {of_vectors:.2e}");
            assert!(of_rows <= most && of_vectors <= most, "{name} {class:?}: {of_rows:.2e}, {of_vectors:.2e}");
        }
    }
}

/// What is special about a family has an effect on its case: without it, the comparison fails.
#[test]
fn a_special_field_that_were_ignored_would_be_noticed() {
    for (name, field, value) in [
        ("bert-reranker", "hidden_act", json!("silu")),
        ("bert-reranker", "layer_norm_eps", json!(0.5)),
        ("roberta-classifier", "pad_token_id", json!(0)),
        ("xlm-roberta", "pad_token_id", json!(0)),
        ("modernbert", "local_attention", json!(10)),
        ("modernbert", "local_attention", json!(14)),
        ("modernbert", "global_attn_every_n_layers", json!(2)),
        ("modernbert", "local_rope_theta", json!(160_000)),
        ("modernbert", "global_rope_theta", json!(10_000)),
        ("modernbert-classifier", "classifier_pooling", json!("cls")),
        ("nomic-bert", "rotary_emb_base", json!(10_000)),
        ("nomic-bert", "layer_norm_epsilon", json!(0.5)),
        ("embedding-gemma", "sliding_window", json!(8)),
        ("embedding-gemma", "sliding_window", json!(12)),
        ("embedding-gemma", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
    ] {
        let (texts, want) = (texts(name), numbers(&directory(name).join("vectors.f32")));
        let checkpoint = changed(name, "config.json", |config| config[field] = value.clone());
        let options = encoder_options(WeightClass::Bf16, KvDtype::Bf16);
        let mut model = load_encoder(cpu(None, 1), &checkpoint, &options, &mut |_| {}).unwrap();
        let got = vectors(&mut model, &batch_of(&texts.iter().collect::<Vec<_>>(), 0)).concat();
        let error = error(&got, &want);
        println!("{name:22} {field} = {value}: {error:.2e}");
        assert!(error > 1.5e-2, "{name} with {field} = {value}: {error:.2e} would pass");
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_among_others() {
    let precisions = [
        (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Vdpbf16),
        (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Amx),
        (WeightClass::Int8, KvDtype::Int8, AccumulationOrder::Vdpbf16),
    ];
    // The layers of one of the two judges are those of the other.
    for (at, name) in CASES.into_iter().filter(|name| *name != "qwen3-classifier").enumerate() {
        let texts = texts(name);
        for (class, kv_dtype, arithmetic) in testing::one_of(precisions, at) {
            let mut reference = load(Reference::of(arithmetic), name, class, kv_dtype);
            let want: Vec<_> =
                texts.iter().map(|text| bits(&vectors(&mut reference, &batch_of(&[text], 0))).remove(0)).collect();
            let orders: [Vec<usize>; 3] = [vec![0, 1, 2, 3, 4], vec![4, 2, 0, 3, 1], vec![3, 3, 1, 4]];
            for isa in Isa::available() {
                // Plain loops take the longest, and have one thread; in a quick run they compute the last order alone.
                let plain = isa == Isa::Scalar;
                let orders = &orders[if plain && !testing::is_long() { 2 } else { 0 }..];
                for threads in 1..=if plain { 1 } else { 2 } {
                    let mut model = load(cpu_of(Some(isa), threads, arithmetic), name, class, kv_dtype);
                    for (text, want) in texts.iter().zip(&want) {
                        let got = bits(&vectors(&mut model, &batch_of(&[text], 7)));
                        assert_eq!(&got[0], want, "{name} {class:?} alone, {isa:?}, {threads} threads");
                    }
                    for order in orders {
                        let list: Vec<&Text> = order.iter().map(|&at| &texts[at]).collect();
                        let got = bits(&vectors(&mut model, &batch_of(&list, 3)));
                        for (&at, got) in order.iter().zip(&got) {
                            let what = format!("{name} {class:?}, {at} of {order:?}, {isa:?}, {threads} threads");
                            assert_eq!(got, &want[at], "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_of_its_own_computes_the_same() {
    for name in CASES {
        let texts = texts(name);
        let list: Vec<&Text> = texts.iter().collect();
        let mut here = load(Reference::new(), name, WeightClass::Bf16, KvDtype::Bf16);
        let mut there = load(Remote::new(Reference::new()), name, WeightClass::Bf16, KvDtype::Bf16);
        let batch = batch_of(&list, 0);
        assert_eq!(bits(&vectors(&mut there, &batch)), bits(&vectors(&mut here, &batch)), "{name}");
    }
}

#[test]
fn segments_tell_the_texts_of_a_pair_apart() {
    let pair = texts("bert-reranker").remove(3);
    let mut model = load(cpu(None, 1), "bert-reranker", WeightClass::Bf16, KvDtype::Bf16);
    let as_pair = vectors(&mut model, &batch_of(&[&pair], 0));
    let as_one = vectors(&mut model, &batch_of(&[&Text { types: Vec::new(), ..pair }], 0));
    assert_ne!(bits(&as_pair), bits(&as_one));
}

/// A committed case whose configuration is changed.
fn changed(name: &str, file: &str, change: impl FnOnce(&mut Value)) -> Checkpoint {
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("encoder-{name}-{}", std::process::id()));
    for part in ["", "1_Pooling", "2_Dense", "3_Dense"] {
        let Ok(files) = directory(name).join(part).read_dir() else { continue };
        std::fs::create_dir_all(copy.join(part)).unwrap();
        for path in files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
            std::fs::copy(&path, copy.join(part).join(path.file_name().unwrap())).unwrap();
        }
    }
    let mut value: Value = serde_json::from_slice(&std::fs::read(copy.join(file)).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(copy.join(file), value.to_string()).unwrap();
    Checkpoint::open(Source::Directory(copy)).unwrap()
}

fn refusal(checkpoint: &Checkpoint) -> String {
    let options = encoder_options(WeightClass::Bf16, KvDtype::Bf16);
    load_encoder(cpu(None, 1), checkpoint, &options, &mut |_| {}).err().expect("it is refused").to_string()
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    let config = "config.json";
    for (name, file, field, value, part) in [
        ("bert", config, "position_embedding_type", json!("relative_key"), "position_embedding_type"),
        ("bert", config, "is_decoder", json!(true), "is_decoder"),
        ("bert", config, "hidden_act", json!("relu"), "hidden_act"),
        ("bert", config, "num_attention_heads", json!(5), "num_attention_heads"),
        ("bert", config, "num_attention_heads", json!(8), "heads of width 8"),
        ("bert", config, "type_vocab_size", json!(3), "token_type_embeddings"),
        ("bert", config, "num_hidden_layers", json!(3), "encoder.layer.2"),
        ("bert", config, "num_hidden_layers", json!(1), "does not read"),
        ("xlm-roberta", config, "max_position_embeddings", json!(2), "max_position_embeddings"),
        ("xlm-roberta", "1_Pooling/config.json", "pooling_mode_mean_tokens", json!(true), "two ways"),
        ("xlm-roberta", "1_Pooling/config.json", "pooling_mode_cls_token", json!(false), "no way of pooling"),
        ("xlm-roberta", "1_Pooling/config.json", "word_embedding_dimension", json!(65), "word_embedding_dimension: 65"),
        ("xlm-roberta", "1_Pooling/config.json", "include_prompt", json!(false), "include_prompt"),
        ("roberta-classifier", config, "id2label", json!({}), "id2label"),
        ("roberta-classifier", config, "id2label", json!({"0": "a"}), "classifier.out_proj"),
        ("modernbert", config, "layer_types", json!(["full_attention"]), "layer_types"),
        ("modernbert-classifier", config, "classifier_pooling", json!("max"), "classifier_pooling"),
        ("modernbert-classifier", config, "classifier_activation", json!("tanh"), "classifier_activation"),
    ] {
        let found = refusal(&changed(name, file, |map| map[field] = value.clone()));
        assert!(found.contains(part), "{name} with {field} = {value}: {found}");
    }
    for (kind, path, part) in [
        ("sentence_transformers.models.CNN", "1_CNN", "CNN"),
        ("sentence_transformers.models.Pooling", "../1_Pooling", "not the name of a directory"),
        ("sentence_transformers.models.Dense", "2_Dense", "2_Dense/config.json"),
    ] {
        let module = json!({"idx": 2, "name": "2", "path": path, "type": kind});
        let modules = changed("xlm-roberta", "modules.json", |list| list.as_array_mut().unwrap().push(module));
        let found = refusal(&modules);
        assert!(found.contains(part), "{kind} {path}: {found}");
    }
}

#[test]
fn a_pipeline_without_pooling_or_with_a_dense_module_of_more_is_refused() {
    for kept in [0, 1] {
        let modules = changed("xlm-roberta", "modules.json", |list| list.as_array_mut().unwrap().truncate(kept));
        let found = refusal(&modules);
        assert!(found.contains("no module of the kind Pooling"), "{kept} modules: {found}");
    }
    let place = testing::Scratch::copy_of(&directory("bert"), "dense-without-bias");
    for module in ["1_Pooling", "2_Dense"] {
        std::fs::create_dir(place.join(module)).unwrap();
        for file in directory("bert").join(module).read_dir().unwrap().map(|file| file.unwrap()) {
            std::fs::copy(file.path(), place.join(module).join(file.file_name())).unwrap();
        }
    }
    let config = place.join("2_Dense/config.json");
    let mut fields: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    fields["bias"] = json!(false);
    std::fs::write(&config, fields.to_string()).unwrap();
    let found = refusal(&Checkpoint::open(Source::Directory(place.to_path_buf())).unwrap());
    assert!(found.contains("this dense module does not read") && found.contains("linear.bias"), "{found}");
}

#[test]
fn encoders_and_decoders_are_not_mistaken_for_each_other() {
    let decoder = load_encoder(
        cpu(None, 1),
        &committed("qwen3"),
        &encoder_options(WeightClass::Bf16, KvDtype::Bf16),
        &mut |_| {},
    );
    let found = decoder.err().expect("no encoder").to_string();
    assert!(found.contains("qwen3 is no encoder"), "{found}");
    let encoder = model::load(cpu(None, 1), &open("bert"), &options(WeightClass::Bf16), &mut |_| {});
    let found = encoder.err().expect("no decoder").to_string();
    assert!(found.contains("bert is an encoder"), "{found}");
}

#[test]
fn without_modules_the_mean_is_taken_and_said() {
    let model = load(cpu(None, 1), "modernbert", WeightClass::Bf16, KvDtype::Bf16);
    assert!(model.notices().iter().any(|notice| notice.contains("mean")), "{:?}", model.notices());
    let model = load(cpu(None, 1), "xlm-roberta", WeightClass::Bf16, KvDtype::Bf16);
    assert!(model.notices().is_empty(), "{:?}", model.notices());
}

#[test]
fn a_text_is_as_long_as_there_are_positions() -> Result<(), LoadError> {
    // RoBERTa's first two rows are of padding.
    assert_eq!(ModelConfig::load(&open("bert"))?.context_limit, 320);
    assert_eq!(ModelConfig::load(&open("xlm-roberta"))?.context_limit, 320);
    let shorter = |name: &str| -> Result<usize, LoadError> {
        let config = std::fs::read(directory(name).join("config.json")).unwrap();
        let beside = json!({"max_seq_length": 100, "do_lower_case": false}).to_string().into_bytes();
        let files = vec![("config.json", config), ("sentence_bert_config.json", beside)];
        Ok(ModelConfig::load(&embedded(files))?.context_limit)
    };
    assert_eq!(shorter("bert")?, 100);
    Ok(())
}

#[test]
#[should_panic(expected = "an encoder reads a text at once")]
fn a_part_of_a_text_is_no_text() {
    let text = texts("bert").remove(3);
    let mut batch = batch_of(&[&text], 0);
    let Span { start, .. } = &mut batch.spans[0];
    *start = 1;
    vectors(&mut load(Reference::new(), "bert", WeightClass::Bf16, KvDtype::Bf16), &batch);
}

/// A committed case as ggml's converter writes it: without the rows of positions that no text has, and with the products
/// of its modules beside the layers.
fn as_gguf(name: &str, architecture: &str, settings: &[(&str, u32)], pooling: u32) -> Checkpoint {
    let number = |encoding: &str| ["F32", "F16"].iter().position(|own| *own == encoding).map_or(30, |at| at as u32);
    let mut tensors = Vec::new();
    for part in ["", "2_Dense", "3_Dense"].iter().filter(|part| directory(name).join(part).is_dir()) {
        let weights = Weights::open(&Checkpoint::open(Source::Directory(directory(name).join(part))).unwrap()).unwrap();
        for stored in weights.stored() {
            let mut bytes = vec![0; stored.num_bytes as usize];
            stored.read(0, &mut bytes).unwrap();
            let mut shape: Vec<u64> = stored.shape.iter().rev().map(|&dim| dim as u64).collect();
            let own = stored.name.strip_prefix("bert.").unwrap_or(stored.name);
            let own = own.strip_prefix("roberta.").unwrap_or(own);
            let ggml = match architecture {
                "gemma-embedding" if part.is_empty() => {
                    checkpoint::gguf::ggml_name(architecture, &format!("model.{own}"))
                }
                _ if part.is_empty() => checkpoint::gguf::ggml_name(architecture, own),
                _ => own.replace("linear", &format!("dense_{}", &part[..1])),
            };
            if ggml == own && part.is_empty() || ggml.contains("dense_") && architecture == "bert" {
                continue; // heads that no vector needs
            }
            if ggml.starts_with("position_embd") && name.contains("roberta") {
                shape[1] -= 2;
                bytes.drain(..2 * bytes.len() / (shape[1] as usize + 2));
            }
            if architecture == "gemma-embedding" && ggml.ends_with("norm.weight") {
                let plus_one = |bytes: &[u8; 4]| (f32::from_le_bytes(*bytes) + 1.0).to_le_bytes();
                bytes = bytes.as_chunks().0.iter().flat_map(plus_one).collect();
            }
            let number = number(stored.encoding.name());
            if architecture == "qwen3" && ggml == "token_embd.weight" {
                // Rows of "yes" and "no".
                let row = bytes.len() / shape[1] as usize;
                let rows = [77, 12].map(|id| bytes[id * row..(id + 1) * row].to_vec()).concat();
                tensors.push(("cls.output.weight".to_string(), vec![shape[0], 2], number, rows));
            }
            tensors.push((ggml, shape, number, bytes));
        }
    }
    let key = |name: &str| format!("{architecture}.{name}");
    let mut all = vec![text_setting("general.architecture", architecture), u32_setting(&key("pooling_type"), pooling)];
    all.extend(settings.iter().map(|(name, value)| u32_setting(&key(name), *value)));
    let eps = if ["gemma-embedding", "qwen3"].contains(&architecture) { 1e-6 } else { 1e-5 };
    let is_bert = ["bert", "nomic-bert"].contains(&architecture) && !name.contains("roberta");
    all.push(f32_setting(&key("attention.layer_norm_epsilon"), if is_bert { 1e-12 } else { eps }));
    all.push(f32_setting(&key("attention.layer_norm_rms_epsilon"), eps));
    embedded(vec![("t.gguf", file(&all, &tensors))])
}

/// Rows of a GGUF file have the bits of those of the directory, and vectors their direction.
#[test]
fn encoders_in_gguf_are_those_of_their_directories() {
    let sizes = |width, heads, layers, mlp, context| {
        let names =
            ["embedding_length", "attention.head_count", "block_count", "feed_forward_length", "context_length"];
        names.into_iter().zip([width, heads, layers, mlp, context]).collect::<Vec<_>>()
    };
    let modern = [("attention.sliding_window", 12), ("attention.sliding_window_pattern", 3)];
    let gemma = [
        ("attention.head_count_kv", 1),
        ("attention.key_length", 32),
        ("attention.sliding_window", 10),
        ("attention.sliding_window_pattern", 2),
        ("rope.freq_base", 1_000_000),
    ];
    let qwen = [("attention.head_count_kv", 2), ("attention.key_length", 16), ("rope.freq_base", 1_000_000)];
    let table = [
        ("qwen3-reranker", "qwen3", [sizes(64, 4, 2, 96, 400), qwen.to_vec()].concat(), 4),
        ("bert", "bert", sizes(64, 2, 2, 96, 320), 1),
        ("xlm-roberta", "bert", sizes(48, 3, 2, 96, 320), 2),
        ("roberta-classifier", "bert", sizes(48, 3, 2, 96, 320), 4),
        ("nomic-bert", "nomic-bert", sizes(64, 2, 2, 96, 400), 1),
        ("modernbert", "modern-bert", [sizes(64, 4, 4, 72, 400), modern.to_vec()].concat(), 1),
        ("embedding-gemma", "gemma-embedding", [sizes(64, 4, 3, 96, 400), gemma.to_vec()].concat(), 1),
    ];
    for (name, architecture, settings, pooling) in table {
        let options = encoder_options(WeightClass::Bf16, KvDtype::Bf16);
        let checkpoint = as_gguf(name, architecture, &settings, pooling);
        let mut converted = load_encoder(cpu(None, 2), &checkpoint, &options, &mut |_| {}).unwrap();
        let mut own = load(cpu(None, 2), name, WeightClass::Bf16, KvDtype::Bf16);
        // Padding within a text is no token in GGUF.
        let texts: Vec<Text> = texts(name).into_iter().filter(|text| !text.tokens.contains(&1)).collect();
        let batch = batch_of(&texts.iter().collect::<Vec<_>>(), 0);
        let (found, wanted) = (vectors(&mut converted, &batch), vectors(&mut own, &batch));
        let mut rows = [(); 2].map(|()| vec![0f32; batch.token_ids.len() * own.config().hidden_size]);
        converted.read_rows(0..batch.token_ids.len(), &mut rows[0]).unwrap();
        own.read_rows(0..batch.token_ids.len(), &mut rows[1]).unwrap();
        assert!(rows[0] == rows[1], "{name}: {:?}, not {:?}", &rows[0][..4], &rows[1][..4]);
        if name == "bert" {
            continue; // its tanh behind pooling is not in the file
        }
        for (found, wanted) in found.iter().zip(&wanted) {
            let length = wanted.iter().map(|x| x * x).sum::<f32>().sqrt();
            let length = if pooling == 4 { 1.0 } else { length };
            let wanted: Vec<f32> = wanted.iter().map(|x| x / length).collect();
            assert!(error(found, &wanted) < 1e-6, "{name}: {:?}, not {:?}", &found[..3], &wanted[..3]);
        }
    }
}

/// WordPiece as ggml writes it, spaces before words instead of signs before endings, and Unigram.
#[test]
fn vocabularies_of_encoders_in_gguf() {
    let open = |model: &str, tokens: &[&str], types: &[u32], more: Vec<Vec<u8>>| {
        let types: Vec<u8> = types.iter().flat_map(|kind| kind.to_le_bytes()).collect();
        let scores = (0..tokens.len()).flat_map(|id| (-(id as f32)).to_le_bytes()).collect::<Vec<u8>>();
        let mut settings = vec![
            text_setting("general.architecture", "bert"),
            text_setting("tokenizer.ggml.model", model),
            texts_setting("tokenizer.ggml.tokens", tokens),
            list_setting("tokenizer.ggml.token_type", 5, tokens.len() as u64, &types),
            list_setting("tokenizer.ggml.scores", 6, tokens.len() as u64, &scores),
        ];
        settings.extend(more);
        let checkpoint = embedded(vec![("t.gguf", file(&settings, &[]))]);
        text::tokenizer::Tokenizer::load(&checkpoint, tokens.len()).unwrap()
    };
    let words =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u{2581}the", "\u{2581}cafe", "s", "\u{2581}!", "\u{2581}\u{65e5}"];
    let ids = |name: &str, id| u32_setting(&format!("tokenizer.ggml.{name}_token_id"), id);
    let specials = || vec![ids("cls", 2), ids("seperator", 3), ids("unknown", 1)];
    let lower = open("bert", &words, &[3, 3, 3, 3, 1, 1, 1, 1, 1], specials());
    for (text, wanted) in [
        ("The caf\u{e9}s!", &[2, 4, 5, 6, 7, 3][..]),
        ("\u{65e5}the xyz", &[2, 8, 4, 1, 3]),
        ("the[SEP]the", &[2, 4, 3, 4, 3]),
        ("", &[2, 3]),
    ] {
        assert_eq!(lower.encode(text, true).unwrap(), wanted, "{text:?}");
    }
    assert_eq!(lower.encode_pair("the", "cafe s", None).unwrap(), (vec![2, 4, 3, 5, 1, 3], Some(3)));
    // A capital in the vocabulary, in a file that does not say whether there are any.
    let mut cased = words;
    cased[4] = "\u{2581}The";
    let cased = open("bert", &cased, &[3, 3, 3, 3, 1, 1, 1, 1, 1], specials());
    assert_eq!(cased.encode("The the", true).unwrap(), [2, 4, 1, 3]);

    let pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u{2581}", "\u{2581}ab", "c", "\u{2581}abc", "a", "b", "[PAD9]"];
    let specials = vec![ids("bos", 0), ids("eos", 2), ids("unknown", 3)];
    let unigram = open("t5", &pieces, &[3, 3, 3, 2, 1, 1, 1, 1, 1, 1, 5], specials);
    for (text, wanted) in
        [("abc  ab", &[0, 7, 5, 2][..]), ("abcc", &[0, 7, 6, 2]), ("  ", &[0, 2]), ("abz", &[0, 5, 3, 2])]
    {
        assert_eq!(unigram.encode(text, true).unwrap(), wanted, "{text:?}");
    }
    assert_eq!(unigram.encode_pair("ab", "abc", None).unwrap(), (vec![0, 5, 2, 2, 7, 2], None));
}

#[test]
fn a_broken_encoder_in_gguf_is_refused_by_its_key() {
    let tokens = |tokens: &[&str]| texts_setting("tokenizer.ggml.tokens", tokens);
    let kind = |kind: &str| text_setting("tokenizer.ggml.model", kind);
    let all = ["[UNK]", "[CLS]", "[SEP]"];
    let scores = |count: u64| list_setting("tokenizer.ggml.scores", 6, count, &vec![0; 4 * count as usize]);
    for (settings, wanted) in [
        (vec![kind("bert")], "tokenizer.ggml.tokens: missing"),
        (vec![kind("bert"), tokens(&all[1..])], "tokenizer.ggml.tokens: no token \"[UNK]\" for what is unknown"),
        (vec![kind("bert"), tokens(&["[UNK]", "\u{2581}a", "\u{2581}a"])], "tokens: token \"\u{2581}a\" occurs twice"),
        (
            vec![kind("bert"), tokens(&all), u32_setting("tokenizer.ggml.cls_token_id", 3)],
            "tokenizer.ggml.cls_token_id: 3, but there are 3 tokens",
        ),
        (vec![kind("t5"), tokens(&all)], "tokenizer.ggml.scores: missing"),
        (vec![kind("t5"), tokens(&all), scores(2)], "tokenizer.ggml.scores: 2 scores for 3 tokens"),
    ] {
        let settings = [vec![text_setting("general.architecture", "bert")], settings].concat();
        let checkpoint = embedded(vec![("t.gguf", file(&settings, &[]))]);
        let error = text::tokenizer::Tokenizer::load(&checkpoint, 3).expect_err("refused").to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    let sizes = [("embedding_length", 48), ("attention.head_count", 3), ("block_count", 2), ("context_length", 320)];
    for (settings, pooling, wanted) in [
        (&sizes[..], 1, "t.gguf: bert.feed_forward_length: missing"),
        (&[sizes[0], ("attention.head_count", 5)], 1, "t.gguf: bert.attention.head_count: 5 does not divide"),
        (&sizes, 9, "t.gguf: bert.pooling_type: 9 is unknown"),
    ] {
        let found = refusal(&as_gguf("xlm-roberta", "bert", settings, pooling));
        assert!(found.contains(wanted), "{wanted}: {found}");
    }
}

#[test]
fn a_template_stays_whole_when_its_second_text_is_cut() {
    let template = model::config::PairTemplate { prefix: "<", before: "q", between: "d", suffix: ">" };
    let bytes = |text: &str| Ok::<Vec<u32>, ()>(text.bytes().map(u32::from).collect());
    for (most, wanted) in [(None, "<qabdxyz>"), (Some(9), "<qabdxyz>"), (Some(8), "<qabdxy>"), (Some(6), "<qabd>")] {
        let found = template.fill(["ab", "xyz"], most, bytes).unwrap();
        assert_eq!(found, (bytes(wanted).unwrap(), None), "{most:?}");
    }
}
