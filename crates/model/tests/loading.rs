//! What loading promises besides errors: exact values, progress, the figures that others compute with.

use crate::common;

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, Source};
use common::*;
use half::{bf16, f16};
use kernels::{Reference, WeightClass};
use model::{Batch, Forward, Progress};

/// A file with one tensor, as a built-in model.
fn one_tensor(dtype: &str, shape: &[usize], data: Vec<u8>) -> Checkpoint {
    let header =
        serde_json::json!({"t": {"dtype": dtype, "shape": shape, "data_offsets": [0, data.len()]}}).to_string();
    let bytes = [(header.len() as u64).to_le_bytes().to_vec(), header.into_bytes(), data].concat();
    embedded(vec![("model.safetensors", bytes)])
}

/// Longer than the piece of a row that is converted at once, and no multiple of it.
const LEN: usize = 9001;

fn values() -> impl Iterator<Item = f32> {
    random_tokens(3, LEN, 1 << 30).into_iter().map(|bits| (bits as f32 / (1 << 29) as f32 - 1.0) * 3.0)
}

#[test]
fn every_stored_type_is_read_exactly() {
    let check = |dtype: &str, data: Vec<u8>, expected: Vec<f32>| {
        let weights = Weights::open(&one_tensor(dtype, &[LEN], data)).unwrap();
        assert_eq!(weights.vector("t", LEN).unwrap(), expected, "{dtype}");
        assert_eq!(weights.num_non_finite(), 0);
    };
    check("F32", values().flat_map(f32::to_le_bytes).collect(), values().collect());
    let halves: Vec<f16> = values().map(f16::from_f32).collect();
    check(
        "F16",
        halves.iter().flat_map(|half| half.to_le_bytes()).collect(),
        halves.iter().map(|h| h.to_f32()).collect(),
    );
    let brains: Vec<bf16> = values().map(bf16::from_f32).collect();
    check("BF16", brains.iter().flat_map(|b| b.to_le_bytes()).collect(), brains.iter().map(|b| b.to_f32()).collect());
}

#[test]
fn rows_are_the_rows() {
    let data: Vec<u8> = (0..6 * 4).flat_map(|index| (index as f32).to_le_bytes()).collect();
    let checkpoint = one_tensor("F32", &[6, 4], data);
    let weights = Weights::open(&checkpoint).unwrap();
    let tensor = weights.tensor("t", &[6, 4]).unwrap();
    for row in 0..6 {
        let mut out = [f32::NAN; 4];
        tensor.rows().unwrap().read(row, &mut out).unwrap();
        let first = row as f32 * 4.0;
        assert_eq!(out, [first, first + 1.0, first + 2.0, first + 3.0]);
    }
}

#[test]
fn progress_rises_from_nothing_to_all() {
    let checkpoint = committed("mistral");
    let mut seen: Vec<Progress> = Vec::new();
    model::load(Reference::new(), &checkpoint, &options(WeightClass::Bf16), &mut |progress| seen.push(progress))
        .unwrap();
    let total = seen[0].bytes_total;
    // bf16 matrices: embedding and head, and per layer 4 + 2 heads of 32, the output, three of the MLP.
    let layer = 64 * (4 + 2) * 32 + 64 * 128 + 3 * 64 * 96;
    assert_eq!(total, 2 * (2 * 128 * 64 + 2 * layer));
    assert_eq!((seen[0].bytes_done, seen.last().unwrap().bytes_done), (0, total));
    assert!(seen.is_sorted_by_key(|progress| progress.bytes_done));
    assert_eq!(seen.len(), 1 + 2 + 2 * 4, "once before, then after every packed matrix");
}

#[test]
fn figures_of_a_loaded_model() {
    // Bits of a weight in the layers, and in the embedding and the head.
    for (class, layers, heads) in [(WeightClass::Bf16, 16, 16), (WeightClass::Int8, 8, 8), (WeightClass::Int4, 4, 8)] {
        let tied = load(Reference::new(), &committed("qwen2"), class);
        let config = tied.config();
        let least = (config.layer_parameters() * layers + config.head_parameters() * heads) as usize / 8;
        // Padding, scales, norms and biases come on top; at these tiny widths they are not small.
        let bytes = tied.weight_bytes();
        assert!((least..least * 2).contains(&bytes), "{class:?}: {bytes}");
        assert_eq!(tied.resident_weight_bytes(), bytes, "a tied head is the embedding");
        // 2 layers, key and value, 1 head of 32, bf16.
        assert_eq!(tied.kv_bytes_per_token(), 2 * 2 * 32 * 2);

        let untied = load(Reference::new(), &committed("llama2"), class);
        let embedding = untied.resident_weight_bytes() - untied.weight_bytes();
        assert!(embedding >= (untied.config().head_parameters() * heads) as usize / 8, "{class:?}: {embedding}");
    }
    let described = load(Reference::new(), &committed("qwen3"), WeightClass::Int8).describe();
    assert!(described.starts_with("qwen3 0.1 M, 2 layers of 64, int8 weights in 0."), "{described}");
}

#[test]
fn memory_is_known_from_the_shapes_to_the_byte() {
    for (name, _) in committed_checkpoints() {
        let checkpoint = committed(&name);
        for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
            let loaded = load(Reference::new(), &checkpoint, class);
            let (counted, held) =
                (model::bytes_in_memory(loaded.config(), class), loaded.resident_weight_bytes() as u64);
            // Experts in MXFP4 keep their blocks, which are not wider than any class that keeps them.
            let keeps_blocks = name == "gpt-oss-mxfp4" && class != WeightClass::Bf16;
            match keeps_blocks {
                true => assert!(counted.is_some_and(|counted| held <= counted), "{name} in {class:?}"),
                false => assert_eq!(counted, Some(held), "{name} in {class:?}"),
            }
        }
    }
}

#[test]
fn keys_and_values_are_apart_where_they_have_another_class() {
    // Biases; the rows of a fused tensor; gates; pairs of neighbours. Heads that do not share; other classes.
    for (name, class, apart) in [
        ("qwen2", WeightClass::Int4, 2),
        ("phi3", WeightClass::Int4, 2),
        ("qwen3-next", WeightClass::Int4, 2),
        ("glm4", WeightClass::Int4, 2),
        ("llama2", WeightClass::Int4, 0),
        ("qwen2", WeightClass::Int8, 0),
        ("qwen2", WeightClass::Bf16, 0),
    ] {
        let loaded = load(Reference::new(), &committed(name), class);
        let holds_queries = |name: &str| name.contains("q_proj") || name.contains("qkv_proj[0");
        let of_keys = |name: &&String| name.contains("k_proj") || name.contains("qkv_proj");
        let names: Vec<&String> = loaded.matrix_names().iter().filter(of_keys).collect();
        let found = names.iter().filter(|name| !holds_queries(name)).count();
        assert_eq!(found, apart, "{name} in {class:?}: {names:?}");
    }
}

#[test]
fn a_model_in_the_binary_is_the_same_model() {
    let (name, directory) = committed_checkpoints().remove(0);
    let files: Vec<(&'static str, &'static [u8])> = ["config.json", "model.safetensors"]
        .map(|file| (file, &*Box::leak(std::fs::read(directory.join(file)).unwrap().into_boxed_slice())))
        .to_vec();
    let source = Source::Embedded { name: "built-in", files: Box::leak(files.into_boxed_slice()) };
    let embedded = Checkpoint::open(source).unwrap();
    assert_eq!((embedded.name(), embedded.path()), ("built-in", None));
    assert_eq!(committed(&name).name(), name);

    let tokens = random_tokens(1, 20, 100);
    let from_disk = run_alone(&mut load(Reference::new(), &committed(&name), WeightClass::Bf16), &tokens);
    let from_memory = run_alone(&mut load(Reference::new(), &embedded, WeightClass::Bf16), &tokens);
    assert_eq!(from_disk, from_memory);
}

/// The caller's errors are panics that say what was promised.
#[test]
fn broken_promises_panic() {
    type Damage = fn(&mut Batch);
    let outcome = |damage: Damage| {
        let mut runner = load(Reference::new(), &committed("qwen2"), WeightClass::Bf16);
        let mut batch = Batch::default();
        push(&mut batch, &[1, 2, 3], 0..3, &[0], Wanted::Last);
        damage(&mut batch);
        let run = std::panic::AssertUnwindSafe(|| {
            let _ = runner.launch(&batch).unwrap();
        });
        let panic = std::panic::catch_unwind(run).expect_err("a panic");
        panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap()
    };
    let cases: [(Damage, &str); 7] = [
        (|batch| batch.clear(), "0 rows in a batch of at most 512"),
        (|batch| batch.token_ids[1] = 128, "a token id is not below 128"),
        (|batch| batch.positions[1] = 512, "a position is not below 512"),
        (|batch| batch.logit_rows[0] = 3, "a logit row is a row"),
        (|batch| batch.slots.truncate(2), "positions and slots are [rows]"),
        (|batch| batch.spans[0].num_rows = 2, "spans cover every row"),
        (|batch| batch.spans[0].first_row = 1, "spans cover the rows in order"),
    ];
    for (damage, expected) in cases {
        let message = outcome(damage);
        assert!(message.contains(expected), "{message}");
    }
}

/// Python writes a limit that is none as no JSON has it.
#[test]
fn infinity_in_a_configuration_is_beyond_every_range() {
    let (_, directory) = committed_checkpoints().into_iter().find(|(name, _)| name == "granite-hybrid").unwrap();
    let config = |field: &str| {
        let text = std::fs::read_to_string(directory.join("config.json")).unwrap();
        let text = text.replacen('{', &format!("{{ {field},"), 1);
        let checkpoint = embedded(vec![("config.json", text.into_bytes())]);
        model::ModelConfig::load(&checkpoint).map(|config| format!("{config:?}")).map_err(|error| error.to_string())
    };
    let plain = config(r#""x": 1"#).unwrap();
    for field in [
        r#""time_step_limit": [0.0, Infinity]"#,
        r#""name": "no \" Infinity \\", "time_step_limit": [0.0, Infinity]"#,
        r#""name": "Infinity""#,
    ] {
        assert_eq!(config(field).unwrap(), plain, "{field}");
    }
    for (field, expected) in [
        (r#""time_step_limit": [0.0, NaN]"#, "JSON"),
        (r#""clip_qkv": -Infinity"#, "clip_qkv: -1e+300 is not between"),
        (r#""clip_qkv": Infinity"#, "clip_qkv: 1e+300 is not between"),
        (r#""name": "\"#, "JSON"),
    ] {
        let error = config(field).unwrap_err();
        assert!(error.contains(expected), "{field}: {error}");
    }
}
