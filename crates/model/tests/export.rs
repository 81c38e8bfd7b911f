//! Writing quantized checkpoints and GGUF files: what was written and is loaded computes what the original does under
//! the same flag, bit by bit; what would lose too much stays as it was; and whatever goes wrong, nothing is left
//! behind.

use crate::common;

use checkpoint::weights::{TensorSlice, Weights};
use checkpoint::{Checkpoint, Source};
use common::*;
use kernels::quant::quantize_int4_row;
use kernels::{Backend, Device, Int4Source, MatrixShape, Reference, WeightClass};
use model::export::{Export, ExportError, ExportReport, Format, Reason, check_output, limit};
use model::{LoadOptions, ModelConfig, Progress, Runner};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use testing::Scratch;
use text::chat_template::{ChatMessage, ChatTemplate, TemplateOptions};
use text::tokenizer::Tokenizer;

const CLASSES: [WeightClass; 2] = [WeightClass::Int8, WeightClass::Int4];

fn names(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn directory(path: &Path) -> Checkpoint {
    Checkpoint::open(Source::Directory(path.to_path_buf())).unwrap()
}

/// Writes a model with errors of products given by name.
fn written_with(checkpoint: &Checkpoint, class: WeightClass, output: &Path, measured: &[(&str, f64)]) -> ExportReport {
    let measured: HashMap<String, f64> = measured.iter().map(|(name, error)| (name.to_string(), *error)).collect();
    let export = Export::open(checkpoint, Format::Safetensors, class).unwrap();
    export.write(output, &measured, 2, &mut |_| true).unwrap()
}

fn written(checkpoint: &Checkpoint, class: WeightClass, output: &Path) -> ExportReport {
    written_with(checkpoint, class, output, &[])
}

/// Loaded as `--weights auto` does.
fn load_as_stored<B: Backend>(backend: B, checkpoint: &Checkpoint) -> Runner<B> {
    let class = Weights::open(checkpoint).unwrap().class();
    let options = LoadOptions { as_stored: true, ..options(class) };
    model::load(backend, checkpoint, &options, &mut |_| {}).unwrap()
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Tensors of a safetensors file: type, shape, offsets; and the length of its header.
fn header(path: &Path) -> (serde_json::Map<String, Value>, u64) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    (serde_json::from_slice(&bytes[8..8 + length as usize]).unwrap(), length)
}

/// Whether a tensor holds rows that units are made of.
fn is_quantizable(name: &str, shape: &[usize]) -> bool {
    let other = [
        "embed_tokens",
        "lm_head",
        ".gate.w",
        ".router.",
        "shared_expert_gate",
        "_proj_bias",
        "correction_bias",
        "q_norm",
        "k_norm",
    ];
    shape.len() > 1 && !other.iter().any(|part| name.contains(part))
}

/// Committed checkpoints that are not quantized yet, of families that can be.
fn originals() -> Vec<(String, PathBuf)> {
    let is_plain = |(name, path): &(String, PathBuf)| {
        let config = json_file(&path.join("config.json"));
        let is_written = !name.starts_with("gemma4") && config["kv_lora_rank"].is_null();
        is_written && config["quantization_config"].is_null()
    };
    committed_checkpoints().into_iter().filter(is_plain).collect()
}

/// A committed checkpoint whose widths are the smallest multiples of its own that are whole groups of 64, its weights
/// drawn anew: `None` where that would be large.
fn widened(name: &str) -> Option<Checkpoint> {
    let (_, path) = committed_checkpoints().into_iter().find(|(found, _)| found == name).unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    for file in names(&path).iter().filter(|file| file.ends_with(".safetensors")) {
        let (entries, _) = header(&path.join(file));
        let entries = entries.into_iter().filter(|(name, _)| name != "__metadata__");
        tensors.extend(entries.map(|(name, entry)| (name, serde_json::from_value(entry["shape"].clone()).unwrap())));
    }
    let whole = |factor: &usize| {
        let fits = |(name, shape): &(String, Vec<usize>)| {
            !is_quantizable(name, shape) || shape.last().is_some_and(|width| (width * factor).is_multiple_of(64))
        };
        tensors.iter().all(fits)
    };
    let factor = [1, 2, 4, 8].into_iter().find(whole)?;
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0
    };
    let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, mut shape) in tensors {
        // Tokens and experts stay as many as they are.
        let named = ["sinks", "router.bias", "correction_bias", ".act_fn.", "lm_head.bias"]
            .iter()
            .any(|part| name.contains(part));
        let kept = match shape.len() {
            len if named => len,
            1 => 0,
            2 if name.contains("g_proj") => 1, // gates of heads
            2 => usize::from(!is_quantizable(&name, &shape)),
            _ => 1,
        };
        shape.iter_mut().skip(kept).for_each(|size| *size *= factor);
        let width = shape.last().copied().unwrap_or(1);
        let begin = data.len();
        for at in 0..shape.iter().product() {
            let value = match shape.len() {
                0 | 1 => 1.0 + 0.2 * uniform(),
                // Groups of 128 of very different sizes, and a large weight here and there.
                _ => {
                    let size = (1.0 + (at / 128 % 5) as f32) / (width as f32).sqrt();
                    uniform() * size * if at % 97 == 0 { 3.0 } else { 0.5 }
                }
            };
            data.extend(half::bf16::from_f32(value).to_le_bytes());
        }
        entries.insert(name, json!({ "dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()] }));
    }
    let entries = Value::Object(entries).to_string().into_bytes();
    let weights = [&(entries.len() as u64).to_le_bytes()[..], &entries, &data].concat();
    let mut config = json_file(&path.join("config.json"));
    for (field, value) in config.as_object_mut().unwrap() {
        let sizes = [
            "hidden_size",
            "intermediate_size",
            "intermediate_size_mlp",
            "prefix_dense_intermediate_size",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "head_dim",
        ];
        if let Some(size) = value.as_u64().filter(|_| sizes.contains(&field.as_str())) {
            *value = json!(size as usize * factor);
        }
        for list in value.as_object_mut().into_iter().flat_map(|map| map.values_mut()).filter_map(Value::as_array_mut) {
            *list = list.iter().flat_map(|number| vec![number.clone(); factor]).collect(); // one for each pair of a head
        }
    }
    Some(embedded(vec![("config.json", config.to_string().into_bytes()), ("model.safetensors", weights)]))
}

#[test]
#[ignore = "long: every committed checkpoint, three times"]
fn a_written_model_has_the_codes_of_its_original() {
    let scratch = Scratch::new("families");
    let mut whole = Vec::new();
    let committed = originals().into_iter().map(|(name, path)| (name, directory(&path)));
    let wide = originals().into_iter().filter_map(|(name, _)| Some((format!("wide {name}"), widened(&name)?)));
    let lantern = directory(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern"));
    for (name, original) in committed.chain(wide).chain([("lantern".to_string(), lantern)]) {
        let vocab_size = ModelConfig::load(&original).unwrap().vocab_size;
        let tokens = random_tokens(9, 33, vocab_size);
        for class in CLASSES {
            let output = scratch.join(format!("{name}-{}", class.name()));
            let report = written(&original, class, &output);
            let found = run_alone(&mut load_as_stored(cpu(None, 1), &directory(&output)), &tokens);
            assert!(found.iter().flatten().all(|logit| logit.is_finite()), "{name} {class:?}");
            if report.kept.is_empty() {
                // Files have no uneven levels: what is written as int4 differs from what `--weights int4` computes
                // with.
                if class == WeightClass::Int8 {
                    let wanted = run_alone(&mut load(cpu(None, 1), &original, class), &tokens);
                    assert!(found == wanted, "{name}: other logits than --weights int8");
                }
                whole.push((name.clone(), class));
            }
            assert_eq!(report.worst_error > 0.0, report.narrow > 0, "{name}: {report:?}");
            assert!(report.worst_error <= limit(class), "{name}: {report:?}");
            let all_are_wide = |reason: &Reason| matches!(reason, Reason::Width { width, group } if width % group > 0);
            assert!(report.kept.iter().all(|kept| all_are_wide(&kept.reason)), "{name}: {report:?}");
            let bytes: u64 = names(&output).iter().map(|file| fs::metadata(output.join(file)).unwrap().len()).sum();
            assert_eq!(report.bytes, bytes, "{name} {class:?}");
            assert_eq!(same_packed(&original, &output, class), report.narrow, "{name} {class:?}");
        }
    }
    let count =
        |wide: bool, class| whole.iter().filter(|(name, of)| *of == class && name.starts_with("wide") == wide).count();
    // Int4: the others have matrices whose rows are no whole groups of 32. Int8: all but a few have some that are no whole
    // groups of 64. Of the wide ones the others have widths of which no small multiple is, or layers with a state.
    let committed = originals().len();
    let [narrow, wide] =
        [false, true].map(|wide| [WeightClass::Int4, WeightClass::Int8].map(|class| count(wide, class)));
    assert!(narrow[0] > committed / 3 && narrow[1] > 1, "{narrow:?} of {committed}: {whole:?}");
    assert!(wide.into_iter().all(|count| count > committed * 3 / 4), "{wide:?} of {committed}: {whole:?}");
}

/// The narrow matrices of a written model. Each is packed to the bytes that its original is packed to (int4: as even
/// levels), unless that is a part of a stack.
fn same_packed(original: &Checkpoint, output: &Path, class: WeightClass) -> usize {
    let [original, weights] = [original, &directory(output)].map(|checkpoint| Weights::open(checkpoint).unwrap());
    let (entries, _) = header(&output.join("model.safetensors"));
    let packed = entries.iter().filter_map(|(name, entry)| Some((name.strip_suffix("_packed")?, entry)));
    let packed = packed.map(|(name, entry)| {
        let [rows, words]: [usize; 2] = serde_json::from_value(entry["shape"].clone()).unwrap();
        let width = words * if class == WeightClass::Int4 { 8 } else { 4 };
        let bytes = |weights: &Weights| {
            let part =
                TensorSlice { name: name.to_string(), shape: vec![rows, width], rows: 0..rows, transposed: false };
            let backend = Reference::new();
            let packed = weights.pack(&backend, class, width, &[part]).unwrap();
            backend.image(&packed).expect("the reference has images").pieces().concat()
        };
        if let Ok(tensor) = original.tensor(name, &[rows, width]) {
            let wanted = match class {
                WeightClass::Int4 => {
                    let from = tensor.rows().unwrap();
                    let even = |row: usize, q: &mut [i8], scales: &mut [f32]| {
                        let (mut values, mut ratios) = (vec![0.0; width], vec![0; scales.len()]);
                        from.read(row, &mut values).unwrap();
                        let scale = quantize_int4_row(&values, q, &mut ratios);
                        scales.iter_mut().zip(ratios).for_each(|(to, ratio)| *to = f32::from(ratio) * scale);
                    };
                    let shape = MatrixShape { out_features: rows, in_features: width };
                    let backend = Reference::new();
                    let packed = backend.pack_int4(shape, &Int4Source(&even)).unwrap();
                    backend.image(&packed).expect("the reference has images").pieces().concat()
                }
                _ => bytes(&original),
            };
            assert!(bytes(&weights) == wanted, "{name} is not packed as its original");
        }
    });
    packed.count()
}

/// A checkpoint with the rows of one tensor replaced: `change(row, values)`. Its tensors are bf16 in one file.
fn changed(checkpoint: &Checkpoint, tensor: &str, change: impl Fn(usize, &mut [f32])) -> Checkpoint {
    let file = checkpoint.open_file("model.safetensors").unwrap().unwrap();
    let mut bytes = file.read_vec(0, file.len() as usize).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let entries: Value = serde_json::from_slice(&bytes[8..8 + length as usize]).unwrap();
    let entry = &entries[tensor];
    assert_eq!(entry["dtype"], "BF16");
    let [begin, end]: [usize; 2] = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
    let data = &mut bytes[8 + length as usize..][begin..end];
    let row_bytes = 2 * entry["shape"][1].as_u64().unwrap() as usize;
    for (row, bytes) in data.chunks_exact_mut(row_bytes).enumerate() {
        let numbers = bytes.as_chunks().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32());
        let mut values: Vec<f32> = numbers.collect();
        change(row, &mut values);
        bytes.copy_from_slice(
            &values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect::<Vec<_>>(),
        );
    }
    let config = checkpoint.read_text("config.json").unwrap().unwrap().into_bytes();
    embedded(vec![("config.json", config), ("model.safetensors", bytes)])
}

const DOWN: &str = "model.layers.1.mlp.down_proj";
const QKV: [&str; 3] =
    ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"];

/// The recipe: what stands out stays wide, with everything that has to share its class; it is named in the files, and
/// the engine keeps it wide when it loads them.
#[test]
fn what_would_lose_too_much_is_kept_and_stays_wide() {
    let scratch = Scratch::new("recipe");
    let original = widened("qwen3").unwrap();
    // In every group one weight of ten times the others' size: four bits do not hold both.
    let spiked = changed(&original, &format!("{DOWN}.weight"), |row, values| {
        let size = (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt();
        values.iter_mut().skip(row % 32).step_by(32).for_each(|value| *value = 10.0 * size);
    });
    let broken = changed(&original, &format!("{DOWN}.weight"), |_, values| values[3] = f32::INFINITY);
    let qkv = QKV.join(" + ");
    type Case<'a> = (&'a str, WeightClass, &'a Checkpoint, Vec<(&'a str, f64)>, Option<(&'a str, Vec<&'a str>)>);
    use WeightClass::{Int4, Int8};
    let table: Vec<Case<'_>> = vec![
        ("nothing", Int8, &original, vec![], None),
        ("a text without spikes", Int8, &original, vec![(DOWN, 0.04), (&qkv, 0.049)], None),
        ("products of one matrix", Int8, &original, vec![(DOWN, 0.9)], Some(("products", vec![DOWN]))),
        ("products of q, k and v", Int4, &original, vec![(&qkv, 0.9)], Some(("products", QKV.to_vec()))),
        ("a huge weight", Int4, &spiked, vec![], Some(("weights", vec![DOWN]))),
        ("no number", Int8, &broken, vec![], Some(("not finite", vec![DOWN]))),
    ];
    for (index, (what, class, checkpoint, measured, wanted)) in table.into_iter().enumerate() {
        let output = scratch.join(index.to_string());
        let report = written_with(checkpoint, class, &output, &measured);
        let names = wanted.as_ref().map(|(_, names)| names.clone()).unwrap_or_default();
        assert_eq!(report.narrow, 14 - names.len(), "{what}");
        match (&report.kept[..], &wanted) {
            ([], None) => {}
            ([kept], Some((reason, names))) => {
                assert_eq!(kept.name, names.join(" + "), "{what}");
                let found = match kept.reason {
                    Reason::Products(error) => (error == 0.9).then_some("products"),
                    Reason::Weights(error) => (error > limit(class)).then_some("weights"),
                    Reason::NotFinite => Some("not finite"),
                    Reason::Width { .. } => None,
                };
                assert_eq!(found, Some(*reason), "{what}: {kept:?}");
            }
            (kept, wanted) => panic!("{what}: {kept:?}, not {wanted:?}"),
        }
        let config = json_file(&output.join("config.json"));
        let mut ignored = vec!["lm_head"];
        ignored.extend(&names);
        let mut found: Vec<&str> =
            config["quantization_config"]["ignore"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        found.sort_unstable();
        ignored.sort_unstable();
        assert_eq!(found, ignored, "{what}");
        let (tensors, _) = header(&output.join("model.safetensors"));
        for name in &names {
            assert_eq!(tensors[&format!("{name}.weight")]["dtype"], "BF16", "{what}");
            assert!(!tensors.contains_key(&format!("{name}.weight_scale")), "{what}");
        }
        // Loaded, the kept ones take two bytes for each weight, whatever the others take.
        let weight_bytes =
            |checkpoint: &Checkpoint| load_as_stored(Reference::new(), checkpoint).resident_weight_bytes();
        let plain = scratch.join(format!("plain {index}"));
        written_with(&original, class, &plain, &[]);
        let wider = weight_bytes(&directory(&output)) > weight_bytes(&directory(&plain));
        assert_eq!(wider, !names.is_empty(), "{what}");
    }
}

#[test]
fn rows_that_are_no_whole_groups_are_kept() {
    let scratch = Scratch::new("widths");
    use WeightClass::{Int4, Int8};
    for (name, class, width, group, narrow) in [
        ("qwen3", Int8, 96, 64, 12),
        ("qwen3", Int4, 0, 32, 14),
        ("olmo2", Int8, 96, 64, 2),
        ("llama3", Int4, 72, 32, 3),
    ] {
        let report = written(&committed(name), class, &scratch.join(format!("{name}-{}", class.name())));
        assert_eq!(report.narrow, narrow, "{name} {class:?}: {report:?}");
        assert_eq!(report.kept.is_empty(), width == 0, "{name} {class:?}: {report:?}");
        let wanted = Reason::Width { width, group };
        assert!(width == 0 || report.kept.iter().any(|kept| kept.reason == wanted), "{name} {class:?}: {report:?}");
    }
}

/// An expert that stands out keeps all of its layer: other engines compute them as one.
#[test]
fn experts_of_a_layer_share_a_class() {
    let scratch = Scratch::new("experts");
    let output = scratch.join("out");
    let name = "model.layers.0.mlp.experts.down_proj[512..768]"; // the third of a stack, as the loader names it
    let report = written_with(&widened("qwen3-moe-fused").unwrap(), WeightClass::Int8, &output, &[(name, 0.5)]);
    assert_eq!(report.kept.len(), 1, "{report:?}");
    let (tensors, _) = header(&output.join("model.safetensors"));
    let experts: Vec<&String> = tensors.keys().filter(|name| name.contains("experts")).collect();
    assert_eq!(experts.len(), 5 * 3, "one matrix each, gate and up apart: {experts:?}");
    assert!(experts.iter().all(|name| tensors[*name]["dtype"] == "BF16"), "{experts:?}");
    let ignored = json_file(&output.join("config.json"))["quantization_config"]["ignore"].to_string();
    for wanted in ["model.layers.0.mlp.gate\"", "model.layers.0.mlp.experts.4.up_proj\"", "lm_head"] {
        assert!(ignored.contains(wanted), "{wanted} is not in {ignored}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_threads() {
    let scratch = Scratch::new("threads");
    for class in CLASSES {
        let written = [1, 2, 5].map(|threads| {
            let output = scratch.join(format!("{}-{threads}", class.name()));
            let checkpoint = widened("llama2").unwrap();
            let export = Export::open(&checkpoint, Format::Safetensors, class).unwrap();
            export.write(&output, &HashMap::new(), threads, &mut |_| true).unwrap();
            fs::read(output.join("model.safetensors")).unwrap()
        });
        assert!(written[0] == written[1] && written[1] == written[2], "{class:?}");
    }
    if kernels::threads::max_threads() < 2 {
        return;
    }
    // Rounded by a text, too.
    let checkpoint = widened("llama2").unwrap();
    let tokens = random_tokens(3, 40, ModelConfig::load(&checkpoint).unwrap().vocab_size);
    let written = [1, 2].map(|threads| {
        let output = scratch.join(format!("text-{threads}"));
        let export = Export::open(&checkpoint, Format::Safetensors, WeightClass::Int4).unwrap();
        let export = export.calibrated(vec![tokens.clone()], Some(5.0));
        export.write(&output, &HashMap::new(), threads, &mut |_| true).unwrap();
        fs::read(output.join("model.safetensors")).unwrap()
    });
    assert!(written[0] == written[1], "rounded by a text");
}

/// What others expect of the files: names, types and shapes as compressed-tensors has them; tensors at multiples of
/// their element's size, one after the other; the rest as it was.
#[test]
fn the_layout_is_that_of_compressed_tensors() {
    let scratch = Scratch::new("layout");
    let (_, original) = committed_checkpoints().into_iter().find(|(name, _)| name == "qwen2").unwrap();
    let config = fs::read_to_string(original.join("config.json")).unwrap();
    let table = [(WeightClass::Int8, 8, 64, [[96, 16], [96, 1]]), (WeightClass::Int4, 4, 32, [[96, 8], [96, 2]])];
    for (class, bits, group_size, [codes, scales]) in table {
        let output = scratch.join(class.name());
        written(&committed("qwen2"), class, &output);
        assert_eq!(names(&output), ["config.json", "model.safetensors"]);
        let text = fs::read_to_string(output.join("config.json")).unwrap();
        assert!(text.starts_with(config.trim_end().trim_end_matches('}').trim_end()), "its own text is untouched");
        let quantization = &json_file(&output.join("config.json"))["quantization_config"];
        assert_eq!(
            (&quantization["format"], &quantization["quant_method"]),
            (&json!("pack-quantized"), &json!("compressed-tensors"))
        );
        let group = &quantization["config_groups"]["group_0"];
        assert_eq!(
            [&group["weights"]["num_bits"], &group["weights"]["strategy"], &group["weights"]["group_size"]],
            [&json!(bits), &json!("group"), &json!(group_size)]
        );
        assert_eq!(group["input_activations"], Value::Null);
        let (tensors, length) = header(&output.join("model.safetensors"));
        assert_eq!(length % 8, 0);
        let gate = "model.layers.0.mlp.gate_proj";
        let found = tensors.iter().filter(|(name, _)| name.starts_with(gate));
        let mut found: Vec<(String, Value, Value)> = found
            .map(|(name, e)| (name[gate.len() + 1..].to_string(), e["dtype"].clone(), e["shape"].clone()))
            .collect();
        let wanted = [
            ("weight_packed", json!("I32"), json!(codes)),
            ("weight_scale", json!("F32"), json!(scales)),
            ("weight_shape", json!("I64"), json!([2])),
        ];
        found.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found, wanted.map(|(name, dtype, shape)| (name.to_string(), dtype, shape)));
        for (name, entry) in tensors.iter().filter(|(name, _)| *name != "__metadata__") {
            let size = match entry["dtype"].as_str().unwrap() {
                "I64" => 8,
                "F32" | "I32" => 4,
                "BF16" | "F16" => 2,
                _ => 1,
            };
            assert_eq!(entry["data_offsets"][0].as_u64().unwrap() % size, 0, "{name}");
        }
        assert_eq!(tensors["model.embed_tokens.weight"]["dtype"], "BF16");
        assert_eq!(tensors["model.layers.0.self_attn.q_proj.bias"]["dtype"], "BF16");
    }
}

#[test]
fn what_cannot_be_written_is_told_before_anything_is() {
    let quantized = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantized/w8a8-channel");
    let gguf = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/llama3-v5.gguf");
    let config = |change: &dyn Fn(&mut Value)| {
        let (_, path) = committed_checkpoints().into_iter().find(|(name, _)| name == "qwen3").unwrap();
        let mut config = json_file(&path.join("config.json"));
        change(&mut config);
        let weights = fs::read(path.join("model.safetensors")).unwrap();
        embedded(vec![("config.json", config.to_string().into_bytes()), ("model.safetensors", weights)])
    };
    let table = [
        (directory(&quantized), "quantization_config: quantized already, by \"compressed-tensors\""),
        (Checkpoint::open(Source::Gguf(gguf)).unwrap(), "a GGUF file; quantize reads a directory"),
        (config(&|c| c["quantization_config"] = Value::Null), "quantization_config: null; remove the field"),
        (config(&|c| c["hidden_size"] = json!(128)), "tensor `model.embed_tokens.weight`: shape"),
        (config(&|c| c["architectures"] = json!(["MambaForCausalLM"])), "architectures: \"MambaForCausalLM\""),
        (embedded(vec![("config.json", b"{}".to_vec())]), "architectures"),
    ];
    for (checkpoint, wanted) in table {
        let found = Export::open(&checkpoint, Format::Safetensors, WeightClass::Int8).err().expect(wanted).to_string();
        assert!(found.contains(wanted), "{wanted:?} is not in {found:?}");
    }
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_behind() {
    let scratch = Scratch::new("places");
    let checkpoint = committed("qwen3");
    let export = Export::open(&checkpoint, Format::Safetensors, WeightClass::Int4).unwrap();
    let write =
        |output: &Path, progress: &mut dyn FnMut(Progress) -> bool| export.write(output, &HashMap::new(), 1, progress);
    let taken = scratch.join("taken");
    fs::write(&taken, b"mine").unwrap();
    let link = scratch.join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for output in [&taken, &link, &*scratch] {
        assert!(matches!(check_output(output), Err(ExportError::Exists(path)) if path == *output));
        assert!(matches!(write(output, &mut |_| true), Err(ExportError::Exists(_))));
    }
    let nowhere = scratch.join("no/such/out");
    assert!(matches!(check_output(&nowhere), Err(ExportError::NoDirectory(path)) if path == scratch.join("no/such")));
    assert!(matches!(check_output(Path::new("..")), Err(ExportError::Exists(_))));

    // Stopped at every place where it asks.
    let (mut calls, mut totals) = (0, Vec::new());
    write(&scratch.join("whole"), &mut |p| {
        calls += 1;
        totals.push((p.bytes_done, p.bytes_total));
        true
    })
    .unwrap();
    assert!(totals.is_sorted() && totals.last().is_some_and(|(done, total)| done == total), "{totals:?}");
    for stop in 1..=calls {
        let mut left = stop;
        let stopped = write(&scratch.join("stopped"), &mut |_| {
            left -= 1;
            left > 0
        });
        assert!(matches!(stopped, Err(ExportError::Interrupted)), "at call {stop} of {calls}");
    }
    // Another program takes the name while the work goes on: its file stays.
    let raced = scratch.join("raced");
    let lost = write(&raced, &mut |_| fs::write(&raced, b"theirs").is_ok());
    assert!(matches!(lost, Err(ExportError::Exists(_))));
    assert_eq!(fs::read(&raced).unwrap(), b"theirs");
    assert_eq!(
        (fs::read(&taken).unwrap(), scratch.names()),
        (b"mine".to_vec(), ["link", "raced", "taken", "whole"].map(String::from).to_vec())
    );
}

fn lantern() -> Checkpoint {
    directory(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern"))
}

/// Windows of a text that lantern has never seen, `part` of `of`.
fn windows(part: usize, of: usize) -> Vec<Vec<u32>> {
    let tokenizer = Tokenizer::load(&lantern(), 2048).unwrap();
    let text = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern/heldout.jsonl"));
    let tokens = tokenizer.encode(&text.unwrap()[..16_000], false).unwrap();
    let share = tokens.len() / of;
    tokens[part * share..][..share].chunks_exact(256).map(<[u32]>::to_vec).collect()
}

fn opened(path: &Path) -> Checkpoint {
    let source = if path.is_dir() { Source::Directory(path.into()) } else { Source::Gguf(path.into()) };
    Checkpoint::open(source).unwrap()
}

/// Rounds lantern by the first half of the text.
fn calibrated(format: Format, bits: Option<f64>, threads: usize, output: &Path) -> ExportReport {
    let checkpoint = lantern();
    let export = Export::open(&checkpoint, format, WeightClass::Int4).unwrap().calibrated(windows(0, 2), bits);
    export.write(output, &HashMap::new(), threads, &mut |_| true).unwrap()
}

/// Squared error of the logits on the other half.
fn logits_error(path: &Path) -> f64 {
    static WANTED: LazyLock<Vec<Vec<Vec<f32>>>> = LazyLock::new(|| {
        let mut original = load(cpu(None, 1), &lantern(), WeightClass::Bf16);
        windows(1, 2).iter().map(|window| run_alone(&mut original, window)).collect()
    });
    let mut judged = load_as_stored(cpu(None, 1), &opened(path));
    let error = |(window, wanted): (&Vec<u32>, &Vec<Vec<f32>>)| {
        let found = run_alone(&mut judged, window);
        let pairs = wanted.iter().flatten().zip(found.iter().flatten());
        pairs.map(|(&a, &b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    windows(1, 2).iter().zip(WANTED.iter()).map(error).sum()
}

#[test]
fn a_text_makes_int4_lose_less() {
    let scratch = Scratch::new("calibrated");
    for format in testing::part_of([Format::Safetensors, Format::Gguf], 2) {
        let path = |name: &str| scratch.join(format!("{format:?}-{name}"));
        let report = calibrated(format, None, 1, &path("one"));
        assert_eq!((report.narrow, report.bits(), report.raised.len(), report.kept.len()), (35, 4.0, 0, 0));
        assert!((0.0..0.15).contains(&report.worst_error), "{report:?}");
        let checkpoint = lantern();
        let export = Export::open(&checkpoint, format, WeightClass::Int4).unwrap();
        export.write(&path("plain"), &HashMap::new(), 2, &mut |_| true).unwrap();
        let (plain, by_text) = (logits_error(&path("plain")), logits_error(&path("one")));
        println!("{format:?}: squared error of the logits {by_text:.0}, {plain:.0} without the text");
        assert!(by_text < 0.6 * plain, "{format:?}: {by_text}, {plain} without the text");
        // In a quick run, of a smaller model: `the_bytes_do_not_depend_on_the_threads`.
        if testing::is_long() && kernels::threads::max_threads() > 1 {
            calibrated(format, None, 2, &path("two"));
            let bytes = |name: &str| match format {
                Format::Safetensors => fs::read(path(name).join("model.safetensors")).unwrap(),
                Format::Gguf => fs::read(path(name)).unwrap(),
            };
            assert!(bytes("one") == bytes("two"), "{format:?}: other bits with another number of threads");
        }
    }
}

/// Files say which units are int8 among int4: those that are. How many.
fn raised_by_name(path: &Path) -> usize {
    let groups = json_file(&path.join("config.json"))["quantization_config"]["config_groups"].clone();
    let (entries, _) = header(&path.join("model.safetensors"));
    let mut raised = Vec::new();
    for (name, entry) in &entries {
        let Some(module) = name.strip_suffix(".weight_packed") else { continue };
        let shape = &entries[&format!("{module}.weight_scale")]["shape"];
        let per_word = shape[1].as_u64().unwrap() * 32 / entry["shape"][1].as_u64().unwrap();
        // 8 codes in a word and 32 to a scale, or 4 and 64.
        raised.extend((per_word == 2).then(|| module.to_string()));
    }
    let mut named: Vec<String> = serde_json::from_value(groups["group_1"]["targets"].clone()).unwrap_or_default();
    named.sort();
    raised.sort();
    assert_eq!(raised, named, "{path:?}");
    assert_eq!(groups["group_0"]["targets"] == json!(["Linear"]), raised.is_empty(), "{path:?}");
    raised.len()
}

#[test]
#[ignore = "long: `cargo xtask test --all`"]
fn bits_are_spent_where_they_do_the_most() {
    let scratch = Scratch::new("bits");
    let mut before = (0, f64::INFINITY);
    for bits in [4.0, 4.5, 6.0, 8.0] {
        let path = scratch.join(bits.to_string());
        let report = calibrated(Format::Safetensors, Some(bits), 1, &path);
        assert!((bits - 0.35..=bits).contains(&report.bits()), "{bits} were asked for: {}", report.bits());
        let error = logits_error(&path);
        println!("{bits} bits: {} units in int8, squared error of the logits {error:.0}", report.raised.len());
        assert!(report.raised.len() >= before.0 && error < before.1, "{bits} bits: {error} after {before:?}");
        before = (report.raised.len(), error);
        raised_by_name(&path);
    }
    assert_eq!(before.0, 20, "all units of five layers");
    // Then it is an int8 model like any other.
    let int8 = scratch.join("int8");
    written(&lantern(), WeightClass::Int8, &int8);
    let bytes = |path: &Path| fs::read(path.join("model.safetensors")).unwrap();
    assert!(bytes(&int8)[bytes(&int8).len() - 100_000..] == bytes(&scratch.join("8"))[bytes(&int8).len() - 100_000..]);
    let gguf = scratch.join("gguf");
    let report = calibrated(Format::Gguf, Some(5.0), 1, &gguf);
    assert!((4.7..=5.0).contains(&report.bits()) && logits_error(&gguf).is_finite(), "{report:?}");
}

#[test]
fn models_whose_layers_share_keys_are_not_written() {
    for (name, family) in [("gemma4", "gemma4_text"), ("gemma4-31b", "gemma4_text"), ("deepseek-v3", "deepseek_v3")] {
        let checkpoint = committed(name);
        let refused = Export::open(&checkpoint, Format::Safetensors, WeightClass::Int8);
        let error = refused.err().expect("no such model is written").to_string();
        let layers = "layers with latent attention, whose values are keys, that read others' keys or have inputs of \
            their own are not written";
        assert_eq!(error, format!("{family}: {layers}"));
    }
}

/// Experts see few tokens or none, matrices have no whole groups, and some inputs are always zero.
#[test]
fn any_model_can_be_rounded_by_any_text() {
    let scratch = Scratch::new("families");
    let committed = originals().into_iter().map(|(name, path)| (name, directory(&path)));
    let wide = originals().into_iter().filter_map(|(name, _)| Some((format!("wide {name}"), widened(&name)?)));
    let mut raised = 0;
    for (name, original) in testing::part_of(committed.chain(wide), 4) {
        let vocab_size = ModelConfig::load(&original).unwrap().vocab_size;
        let tokens = random_tokens(3, 40, vocab_size);
        let output = scratch.join(&name);
        let export = Export::open(&original, Format::Safetensors, WeightClass::Int4).unwrap();
        let export = export.calibrated(vec![tokens[..33].to_vec(), tokens[33..].to_vec()], Some(5.0));
        let report = export.write(&output, &HashMap::new(), 1, &mut |_| true).unwrap();
        let found = run_alone(&mut load_as_stored(cpu(None, 1), &directory(&output)), &tokens[..33]);
        assert!(found.iter().flatten().all(|logit| logit.is_finite()), "{name}");
        assert!(report.bits() <= 5.0 && report.narrow + report.kept.len() > 0, "{name}: {report:?}");
        raised += raised_by_name(&output);
    }
    assert!(raised > 0, "there were bits to spend");
}

#[test]
fn rounding_by_a_text_can_be_stopped_anywhere() {
    let scratch = Scratch::new("stopped");
    let checkpoint = if testing::is_long() { lantern() } else { widened("qwen3").unwrap() };
    let export = Export::open(&checkpoint, Format::Safetensors, WeightClass::Int4).unwrap();
    let tokens = random_tokens(3, 32, ModelConfig::load(&checkpoint).unwrap().vocab_size);
    let export = export.calibrated(vec![tokens], Some(5.0));
    let mut totals = Vec::new();
    let whole = export.write(&scratch.join("whole"), &HashMap::new(), 1, &mut |p| {
        totals.push((p.bytes_done, p.bytes_total));
        true
    });
    whole.unwrap();
    assert!(totals.is_sorted() && totals.last().is_some_and(|(done, total)| done == total), "{totals:?}");
    for stop in (1..=totals.len()).step_by((totals.len() / 9).max(1)) {
        let mut left = stop;
        let stopped = export.write(&scratch.join("stopped"), &HashMap::new(), 1, &mut |_| {
            left -= 1;
            left > 0
        });
        assert!(matches!(stopped, Err(ExportError::Interrupted)), "at call {stop} of {}", totals.len());
    }
    assert_eq!(scratch.names(), ["whole"]);
}

/// A committed checkpoint with a tokenizer: bytes, a few merges, added tokens, and ids without one behind them.
fn with_tokenizer(name: &str) -> Checkpoint {
    let (_, path) = committed_checkpoints().into_iter().find(|(found, _)| found == name).unwrap();
    let vocab_size = ModelConfig::load(&directory(&path)).unwrap().vocab_size;
    let characters = ('!'..='~').chain(['\u{120}', '\u{10a}']); // a space and a newline, in the byte alphabet
    let mut vocab: Vec<String> = characters.map(String::from).collect();
    vocab.extend(["th", "the", "\u{120}the"].map(String::from));
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let ids: serde_json::Map<String, Value> =
        vocab.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let special = vocab.len();
    assert!(special + 2 < vocab_size, "{name}: {special} of {vocab_size}");
    let added = |id: usize, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": special})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [added(special, "<s>", true), added(special + 1, "<tool>", false)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [special], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": ids, "merges": [["t", "h"], ["th", "e"], ["\u{120}", "the"]]},
    });
    let named =
        json!({"bos_token": "<s>", "eos_token": {"content": "<s>"}, "chat_template": "{{ messages[0].content }}"});
    let mut files = vec![
        ("tokenizer.json".to_string(), tokenizer.to_string().into_bytes()),
        ("tokenizer_config.json".to_string(), named.to_string().into_bytes()),
    ];
    for file in names(&path).into_iter().filter(|file| file == "config.json" || file.contains(".safetensors")) {
        let bytes = fs::read(path.join(&file)).unwrap();
        files.push((file, bytes));
    }
    embedded(files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect())
}

/// Writes a GGUF file and opens it.
fn gguf(checkpoint: &Checkpoint, class: WeightClass, output: &Path) -> (Checkpoint, ExportReport) {
    let export = Export::open(checkpoint, Format::Gguf, class).unwrap();
    let report = export.write(output, &HashMap::new(), 2, &mut |_| true).unwrap();
    assert_eq!(report.bytes, fs::metadata(output).unwrap().len());
    (Checkpoint::open(Source::Gguf(output.to_path_buf())).unwrap(), report)
}

/// The families that are written as GGUF and have a committed checkpoint that the format has words for.
const AS_GGUF: [&str; 7] = ["llama2", "llama3", "llama3-v5", "llama-bias-linear", "mistral", "qwen2", "qwen3"];

#[test]
fn a_gguf_in_16_bits_is_the_model_itself() {
    let scratch = Scratch::new("gguf");
    for name in AS_GGUF {
        let original = with_tokenizer(name);
        let (found, _) = gguf(&original, WeightClass::Bf16, &scratch.join(format!("{name}.gguf")));
        let vocab_size = ModelConfig::load(&original).unwrap().vocab_size;
        let tokens = random_tokens(10, 33, vocab_size);
        let run = |checkpoint| run_alone(&mut load(Reference::new(), checkpoint, WeightClass::Bf16), &tokens);
        assert!(run(&found) == run(&original), "{name}: other logits than the original's");
        let tokenizers = [&found, &original].map(|c| Tokenizer::load(c, vocab_size).unwrap());
        for text in ["the <s>other</s> <tool>\nthe", "don't  12", ""] {
            let [found, wanted] = tokenizers.each_ref().map(|t| (t.encode(text, true), t.encode_plain(text)));
            assert_eq!(found, wanted, "{name}: {text:?}");
        }
        // A template puts its token before any text; the flag that GGUF has instead never doubles it.
        let firsts = tokenizers.each_ref().map(|t| t.encode("<s>", true).unwrap().len());
        assert_eq!(firsts, [1, 2], "{name}");
        let [found_bos, wanted] = tokenizers.each_ref().map(|t| (t.bos_id(), t.eos_id(), t.vocab_size()));
        assert_eq!(found_bos, wanted, "{name}");
        let message = [ChatMessage::new("user", "the")];
        let [found, wanted] = [&found, &original]
            .map(|c| ChatTemplate::load(c).unwrap().unwrap().render(&message, &TemplateOptions::default()).unwrap());
        assert_eq!(found, wanted, "{name}");
    }
}

/// Narrow files hold blocks of ggml: near the original, and in the bytes that they should take.
#[test]
fn a_narrow_gguf_is_near_its_original() {
    let scratch = Scratch::new("narrow");
    for (class, most) in [(WeightClass::Int8, 0.03), (WeightClass::Int4, 0.35)] {
        let original = with_tokenizer("qwen2");
        let (found, report) = gguf(&original, class, &scratch.join(format!("{}.gguf", class.name())));
        assert_eq!((report.narrow, report.kept.len()), (14, 0), "{report:?}");
        assert_eq!(Weights::open(&found).unwrap().class(), class, "what it is stored in");
        let tokens = random_tokens(11, 33, 128);
        // Kept in 16 bits the dequantized weights are what is compared, and not how this engine computes with them.
        let run = |checkpoint| run_alone(&mut load(Reference::new(), checkpoint, WeightClass::Bf16), &tokens).concat();
        let (found, wanted) = (run(&found), run(&original));
        let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
        let error = squares(&mut found.iter().zip(&wanted).map(|(found, wanted)| found - wanted));
        let error = (error / squares(&mut wanted.iter().copied())).sqrt();
        println!("{class:?}: relative L2 of logits {error:.4}");
        assert!(error > 1e-4 && error < most, "{class:?}: {error}");
    }
}

#[test]
fn what_gguf_has_no_word_for_is_refused_by_name() {
    let change = |name: &str, file: &str, change: &dyn Fn(&mut Value)| {
        let original = with_tokenizer(name);
        let read = |file: &str| original.read_text(file).unwrap().unwrap();
        let files = ["config.json", "tokenizer.json", "tokenizer_config.json"].map(|other| {
            let mut value: Value = serde_json::from_str(&read(other)).unwrap();
            if other == file {
                change(&mut value);
            }
            (other, value.to_string().into_bytes())
        });
        let weights = original.open_file("model.safetensors").unwrap().unwrap();
        let weights = weights.read_vec(0, weights.len() as usize).unwrap();
        embedded(files.into_iter().chain([("model.safetensors", weights)]).collect())
    };
    let table = [
        (committed("olmo2"), "olmo2 models are not written as GGUF; llama, mistral, qwen2, qwen3 are"),
        (committed("qwen3"), "tokenizer.json"),
        (change("mistral-window", "", &|_| {}), "sliding_window: GGUF has no word for windows"),
        (change("qwen2.5-yarn", "", &|_| {}), "nothing"),
        (
            change("llama3", "config.json", &|c| c["rope_scaling"]["high_freq_factor"] = json!(8.0)),
            "rope_scaling: GGUF has no word for these borders of frequencies",
        ),
        (
            change("qwen2", "tokenizer.json", &|t| {
                t["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({"Regex": "a+"})
            }),
            "pre_tokenizer: ggml has no name for this pattern",
        ),
        (change("qwen2", "tokenizer.json", &|t| t["pre_tokenizer"] = Value::Null), "model: not BPE over bytes"),
    ];
    for (checkpoint, wanted) in table {
        let found = Export::open(&checkpoint, Format::Gguf, WeightClass::Int8);
        let found = found.err().map_or("nothing".to_string(), |error| error.to_string());
        assert!(found.contains(wanted), "{wanted:?} is not in {found:?}");
    }
    let bf16 = Export::open(&committed("qwen3"), Format::Safetensors, WeightClass::Bf16).err().unwrap();
    assert!(bf16.to_string().contains("safetensors are written in int8 or int4"));
}
