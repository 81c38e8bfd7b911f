//! Low-rank adapters: what they compute, against merged weights; the same bits whatever is computed beside them; and files
//! that are refused.

use crate::common;
use crate::common::adapters;
use crate::common::device;

use adapters::{Files, Tensor, adapter, write_in};
use checkpoint::Checkpoint;
use common::*;
use device::Remote;
use kernels::{AccumulationOrder, Backend, Float32, Isa, KvDtype, Reference, WeightClass};
use model::adapter::adapter_bytes;
use model::{Adapter, AdapterRoom, Batch, Forward, LoadOptions, ModelConfig, Runner};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use testing::Scratch;

const ROOM: AdapterRoom = AdapterRoom { slots: 3, max_rank: 64 };

fn load_with_room<B: Backend>(backend: B, checkpoint: &Checkpoint, class: WeightClass, kv: KvDtype) -> Runner<B> {
    let options = LoadOptions { adapters: ROOM, kv_dtype: kv, ..options(class) };
    model::load(backend, checkpoint, &options, &mut |_| {}).unwrap()
}

fn config_of(checkpoint: &Checkpoint) -> ModelConfig {
    ModelConfig::load(checkpoint).unwrap()
}

fn read(directory: &Path, config: &ModelConfig) -> Adapter {
    Adapter::load(directory, config, ROOM.max_rank).unwrap()
}

/// Rows of one sequence through the adapter of a slot.
fn push_adapted(batch: &mut Batch, tokens: &[u32], rows: std::ops::Range<usize>, table: &[u32], slot: Option<u32>) {
    push(batch, tokens, rows, table, Wanted::All);
    batch.spans.last_mut().unwrap().adapter = slot;
}

fn table_from(first: u32, tokens: usize) -> Vec<u32> {
    (first..first + tokens.div_ceil(BLOCK as usize) as u32).collect()
}

/// A sequence from its first token in one pass, through the adapter of a slot.
fn alone(model: &mut dyn Forward, tokens: &[u32], slot: Option<u32>) -> Vec<Vec<u32>> {
    let mut batch = Batch::default();
    push_adapted(&mut batch, tokens, 0..tokens.len(), &table_from(0, tokens.len()), slot);
    run(model, &batch)
}

/// Linear attention, and queries with gates, have no place for an adapter; what the other products have is read.
#[test]
fn products_of_models_with_states_are_refused_by_name() {
    let config = config_of(&committed("qwen3.5"));
    let scratch = Scratch::new("states");
    for (module, widths, refused) in [
        ("layers.0.linear_attn.in_proj_qkv", [48, 256], Some("adapters of linear attention are not supported")),
        ("layers.0.linear_attn.out_proj", [192, 48], Some("adapters of linear attention are not supported")),
        ("layers.1.self_attn.q_proj", [48, 256], Some("q_proj, k_proj, v_proj (where queries have no gates)")),
        ("layers.1.self_attn.o_proj", [128, 48], None),
        ("layers.0.mlp.down_proj", [64, 48], None),
    ] {
        let tensor = |which: &str, shape: [usize; 2]| Tensor {
            name: format!("base_model.model.model.{module}.lora_{which}.weight"),
            shape,
            numbers: vec![0.5; shape[0] * shape[1]],
        };
        let tensors = vec![tensor("A", [4, widths[0]]), tensor("B", [widths[1], 4])];
        let mut files = adapter(&config, 1, 4, 8.0, &[]);
        files.tensors = tensors;
        files.config.remove("target_modules");
        let directory = write_in(&scratch, module, &files);
        match (Adapter::load(&directory, &config, ROOM.max_rank), refused) {
            (Ok(_), None) => {}
            (Err(error), Some(why)) => {
                let error = error.to_string();
                assert!(error.contains(module) && error.contains(why), "{module}: {error}");
            }
            (found, _) => panic!("{module}: {:?}", found.map(drop)),
        }
    }
    // A dense layer's MLP and attention's output: what room is kept for.
    let bytes = adapter_bytes(&config, 8).unwrap();
    assert!(bytes > 0 && bytes < adapter_bytes(&config_of(&committed("llama3")), 8).unwrap(), "{bytes}");
}

mod merged {
    use super::*;

    /// The tensors of a committed checkpoint in one file, as float32.
    fn tensors(checkpoint: &Checkpoint) -> Vec<Tensor> {
        let weights = checkpoint::Weights::open(checkpoint).unwrap();
        let stored = weights.stored();
        let tensor = |stored: &checkpoint::weights::StoredTensor<'_>| {
            let tensor = weights.tensor(stored.name, stored.shape).unwrap();
            let width = *stored.shape.last().unwrap();
            let rows: usize = stored.shape.iter().product::<usize>() / width;
            let mut numbers = vec![0.0; rows * width];
            let read = tensor.rows().unwrap();
            numbers.chunks_exact_mut(width).enumerate().for_each(|(row, out)| read.read(row, out).unwrap());
            Tensor { name: stored.name.to_string(), shape: [rows, width], numbers }
        };
        stored.iter().map(tensor).collect()
    }

    /// `W + s B A`, in doubles. `scale` by module.
    fn merge(tensors: &mut [Tensor], adapter: &Files, scale: &dyn Fn(&str) -> f64) -> usize {
        let by_name: HashMap<&str, &Tensor> =
            adapter.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut merged = 0;
        for Tensor { name, shape: [rows, width], numbers } in tensors {
            let Some(module) = name.strip_suffix(".weight") else { continue };
            let of = |which: &str| by_name.get(format!("base_model.model.{module}.lora_{which}.weight").as_str());
            let (Some(a), Some(b)) = (of("A"), of("B")) else { continue };
            let rank = a.shape[0];
            for row in 0..*rows {
                for column in 0..*width {
                    let products = (0..rank).map(|inner| {
                        f64::from(b.numbers[row * rank + inner]) * f64::from(a.numbers[inner * *width + column])
                    });
                    let number = &mut numbers[row * *width + column];
                    *number = (f64::from(*number) + scale(module) * products.sum::<f64>()) as f32;
                }
            }
            merged += 1;
        }
        merged
    }

    /// A checkpoint of merged weights, all float32.
    fn checkpoint_of(directory: &Path, original: &Checkpoint, tensors: &[Tensor]) -> Checkpoint {
        std::fs::create_dir_all(directory).unwrap();
        let config = original.read_text("config.json").unwrap().unwrap();
        std::fs::write(directory.join("config.json"), config).unwrap();
        let (mut header, mut data) = (Map::new(), Vec::new());
        for tensor in tensors {
            let begin = data.len();
            tensor.numbers.iter().for_each(|number| data.extend(number.to_le_bytes()));
            // A norm has one dimension.
            let shape = if tensor.shape[0] == 1 { json!([tensor.shape[1]]) } else { json!(tensor.shape) };
            let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] });
            header.insert(tensor.name.clone(), entry);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(directory.join("model.safetensors"), bytes).unwrap();
        Checkpoint::open(checkpoint::Source::Directory(directory.to_path_buf())).unwrap()
    }

    /// Relative error of all logits, L2.
    fn distance(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
        let pairs = || got.iter().flatten().zip(want.iter().flatten());
        let error: f64 = pairs().map(|(got, want)| f64::from(got - want).powi(2)).sum();
        (error / pairs().map(|(_, want)| f64::from(*want).powi(2)).sum::<f64>()).sqrt()
    }

    fn logits<B: Backend>(model: &mut Runner<B>, tokens: &[u32], slot: Option<u32>) -> Vec<Vec<f32>> {
        let mut batch = Batch::default();
        push_adapted(&mut batch, tokens, 0..tokens.len(), &table_from(0, tokens.len()), slot);
        run_f32(model, &batch)
    }

    /// Through the adapter as through merged weights: to float32's rounding where nothing else rounds, and in bf16 as
    /// near as bf16 products are.
    fn check(name: &str, files: &Files, scale: &dyn Fn(&str) -> f64) {
        let place = Scratch::new(&format!("merged-{name}-{}", files.tensors.len()));
        let original = committed(name);
        let config = config_of(&original);
        let adapter = read(&write_in(&place, "adapter", files), &config);
        let mut tensors = tensors(&original);
        assert_eq!(merge(&mut tensors, files, scale), files.tensors.len() / 2, "{name}: every module is merged");
        let merged = checkpoint_of(&place.join("merged"), &original, &tensors);
        let tokens = random_tokens(3, 70, config.vocab_size);

        let mut want = load(Float32::new(Some(1)).unwrap(), &merged, WeightClass::Bf16);
        let want = logits(&mut want, &tokens, None);
        let mut exact = load_with_room(Float32::new(Some(1)).unwrap(), &original, WeightClass::Bf16, KvDtype::Bf16);
        exact.set_adapter(1, Some(&adapter)).unwrap();
        let plain = logits(&mut exact, &tokens, None);
        assert!(distance(&plain, &want) > 0.05, "{name}: the adapter changes something");
        let found = distance(&logits(&mut exact, &tokens, Some(1)), &want);
        assert!(found < 2e-5, "{name}: {found} from merged weights in float32");

        let mut rounded = load_with_room(cpu(None, 1), &original, WeightClass::Bf16, KvDtype::Bf16);
        rounded.set_adapter(2, Some(&adapter)).unwrap();
        let found = distance(&logits(&mut rounded, &tokens, Some(2)), &want);
        // Where two experts are nearly equal, a rounded router may choose otherwise.
        assert!(found < 5e-2, "{name}: {found} from merged weights in bf16");
    }

    /// Log probabilities of every token, row after row.
    fn log_probabilities(logits: &[Vec<f32>]) -> Vec<f32> {
        let row = |row: &Vec<f32>| {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum = row.iter().map(|&logit| f64::from(logit - most).exp()).sum::<f64>().ln() as f32 + most;
            row.iter().map(|&logit| logit - sum).collect::<Vec<f32>>()
        };
        logits.iter().flat_map(row).collect()
    }

    /// The seven projections of a layer of Llama's.
    const SEVEN: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

    /// Every subset of the projections: on two threads and more the bits of one and of the definition, and the answers
    /// of a checkpoint that the adapter is merged into: log probabilities in float32, and as near as bf16 is in bf16.
    fn every_subset(ranks: &[usize], threads: &[usize], precisions: &[(WeightClass, AccumulationOrder)]) {
        let place = Scratch::new(&format!("subsets-{}-{}", ranks.len(), threads.len()));
        let original = committed("llama3");
        let config = config_of(&original);
        let tokens = random_tokens(3, 21, config.vocab_size);
        let room = AdapterRoom { slots: 2, max_rank: 512 };
        let weights = tensors(&original);
        for &(class, arithmetic) in precisions {
            let options = || LoadOptions { adapters: room, ..options(class) };
            let model = |threads: usize| {
                let nodes = if threads > kernels::threads::max_threads() {
                    kernels::threads::NodeChoice::Imagined(1)
                } else {
                    kernels::threads::NodeChoice::AsFound
                };
                let cpu =
                    kernels::CpuOptions { threads: Some(threads), isa: None, arithmetic: Some(arithmetic), nodes };
                model::load(kernels::Cpu::new(cpu).unwrap(), &original, &options(), &mut |_| {}).unwrap()
            };
            let mut definition = model::load(Reference::of(arithmetic), &original, &options(), &mut |_| {}).unwrap();
            let mut exact = model::load(Float32::new(Some(1)).unwrap(), &original, &options(), &mut |_| {}).unwrap();
            let mut models: Vec<_> = threads.iter().map(|&threads| (threads, model(threads))).collect();
            for (seed, &rank) in ranks.iter().enumerate() {
                // A quick run has every seventh, in which each of the seven stands with and without each other.
                for subset in testing::part_of(1..1 << SEVEN.len(), 7) {
                    let chosen: Vec<&str> = (0..7).filter(|at| subset >> at & 1 == 1).map(|at| SEVEN[at]).collect();
                    let name = format!("{class:?}, {arithmetic:?}, rank {rank} of {chosen:?}");
                    let mut files = adapter(&config, (subset + 1000 * seed) as u64, rank, rank as f64, &chosen);
                    // Of adapters as they are trained: a part of the weights.
                    files.tensors.iter_mut().flat_map(|tensor| &mut tensor.numbers).for_each(|x| *x *= 0.5);
                    let adapter = Adapter::load(&write_in(&place, "adapter", &files), &config, 512).unwrap();
                    definition.set_adapter(1, Some(&adapter)).unwrap();
                    let expected = alone(&mut definition, &tokens, Some(1));
                    for (threads, model) in &mut models {
                        model.set_adapter(1, Some(&adapter)).unwrap();
                        let found = alone(model, &tokens, Some(1));
                        assert!(found == expected, "{name}: {threads} threads");
                    }
                    if class == WeightClass::Bf16 {
                        let mut merged = weights.clone();
                        assert_eq!(merge(&mut merged, &files, &|_| 1.0), files.tensors.len() / 2, "{name}");
                        let merged = checkpoint_of(&place.join("merged"), &original, &merged);
                        let mut merged = load(Float32::new(Some(1)).unwrap(), &merged, WeightClass::Bf16);
                        let want = logits(&mut merged, &tokens, None);
                        // Where nothing is rounded, the adapter is all that can differ.
                        exact.set_adapter(1, Some(&adapter)).unwrap();
                        let found = logits(&mut exact, &tokens, Some(1));
                        let pairs = log_probabilities(&want).into_iter().zip(log_probabilities(&found));
                        let error = pairs.map(|(want, found)| (want - found).abs()).fold(0.0, f32::max);
                        assert!(error <= 0.05, "{name}: a log probability is {error} off that of merged weights");
                        let found = distance(&logits(&mut models[0].1, &tokens, Some(1)), &want);
                        assert!(found < 3e-2, "{name}: {found} from merged weights in bf16");
                    }
                }
            }
        }
    }

    #[test]
    fn every_subset_of_the_projections_at_the_rank_that_peft_takes() {
        every_subset(&[8], &[2, 1], &[(WeightClass::Bf16, AccumulationOrder::best())]);
    }

    #[test]
    #[ignore = "long: minutes; further ranks, threads, classes and arithmetics than the one above"]
    fn every_subset_of_the_projections_at_any_rank() {
        let classes = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];
        let precisions: Vec<_> =
            classes.into_iter().flat_map(|class| AccumulationOrder::ALL.map(|a| (class, a))).collect();
        every_subset(&[1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 33, 64, 512], &[2, 1, 3, 4], &precisions);
    }

    #[test]
    fn all_modules_of_models_of_all_kinds() {
        // Norms before and around blocks, biases, fused projections, experts beside attention.
        for name in ["llama3", "qwen3-bias-yarn", "gemma2", "olmo2", "phi3", "mixtral", "granite"] {
            let files = adapter(&config_of(&committed(name)), 1, 8, 16.0, &[]);
            check(name, &files, &|_| 2.0);
        }
    }

    #[test]
    fn some_modules_with_ranks_and_scales_of_their_own() {
        let config = config_of(&committed("llama3"));
        check("llama3", &adapter(&config, 2, 5, 7.0, &["q_proj", "v_proj"]), &|_| 1.4);
        check("llama3", &adapter(&config, 3, 40, 40.0, &["up_proj"]), &|_| 1.0);

        let mut stabilized = adapter(&config, 4, 16, 8.0, &["gate_proj", "down_proj", "o_proj"]);
        stabilized.config.insert("use_rslora".to_string(), json!(true));
        check("llama3", &stabilized, &|_| 2.0);

        let mut uneven = adapter(&config, 5, 8, 16.0, &["q_proj", "k_proj", "down_proj"]);
        let wide = adapter(&config, 6, 12, 16.0, &["k_proj"]);
        for tensor in uneven.tensors.iter_mut().filter(|tensor| tensor.name.contains("k_proj")) {
            *tensor = wide.tensors.iter().find(|wide| wide.name == tensor.name).unwrap().clone();
        }
        uneven.config.insert("rank_pattern".to_string(), json!({ "k_proj": 12 }));
        uneven
            .config
            .insert("alpha_pattern".to_string(), json!({ "mlp.down_proj": 4, "layers.0.self_attn.k_proj": 24 }));
        check("llama3", &uneven, &|module| match module {
            "model.layers.0.self_attn.k_proj" => 2.0,
            module if module.ends_with("k_proj") => 16.0 / 12.0,
            module if module.ends_with("down_proj") => 0.5,
            _ => 2.0,
        });
    }
}

/// Adapters that peft wrote, against the logits that it gives through them (`oracle/adapters.py`): to float32's
/// rounding where nothing else rounds, every row with the same best token; and in bf16 as near as bf16 products are.
#[test]
fn every_row_agrees_with_peft() {
    fn rows<B: Backend>(
        backend: B,
        checkpoint: &Checkpoint,
        adapter: Option<&Adapter>,
        prompts: &[Vec<u32>],
    ) -> Vec<f32> {
        let mut model = load_with_room(backend, checkpoint, WeightClass::Bf16, KvDtype::Bf16);
        model.set_adapter(2, adapter).unwrap();
        let rows = prompts.iter().flat_map(|tokens| {
            let mut batch = Batch::default();
            let table = table_from(0, tokens.len());
            push_adapted(&mut batch, tokens, 0..tokens.len(), &table, adapter.map(|_| 2));
            run_f32(&mut model, &batch)
        });
        rows.flatten().collect()
    }

    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/adapters");
    let cases = data.read_dir().expect("tests/data/adapters is committed").map(|entry| entry.unwrap().path());
    let cases: Vec<_> = cases.collect();
    assert!(cases.len() >= 6, "{cases:?}");
    for directory in cases {
        let about: Value = serde_json::from_slice(&std::fs::read(directory.join("adapters.json")).unwrap()).unwrap();
        let prompts: Vec<Vec<u32>> = serde_json::from_value(about["prompts"].clone()).unwrap();
        let checkpoint = committed(about["target"].as_str().unwrap());
        let config = config_of(&checkpoint);
        let adapter = read(&directory, &config);
        let bytes = std::fs::read(directory.join("logits.f32")).unwrap();
        let recorded: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let distance = |found: &[f32]| {
            assert_eq!(found.len(), recorded.len());
            let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>();
            let error = square(&mut found.iter().zip(&recorded).map(|(found, want)| found - want));
            (error / square(&mut recorded.iter().copied())).sqrt()
        };
        let name = directory.file_name().unwrap().display();
        let float32 = || Float32::new(Some(1)).unwrap();
        let plain = distance(&rows(float32(), &checkpoint, None, &prompts));
        assert!(plain > 0.05, "{name}: {plain} without the adapter");
        let exact = rows(float32(), &checkpoint, Some(&adapter), &prompts);
        assert!(distance(&exact) < 2e-5, "{name}: {} in float32", distance(&exact));
        let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let pairs = exact.chunks(config.vocab_size).zip(recorded.chunks(config.vocab_size)).enumerate();
        pairs.for_each(|(row, (found, want))| assert_eq!(best(found), best(want), "{name}: row {row}"));
        let rounded = distance(&rows(cpu(None, 1), &checkpoint, Some(&adapter), &prompts));
        assert!(rounded < 3e-2, "{name}: {rounded} in bf16");
    }
}

mod bits {
    use super::*;

    const CHECKPOINTS: [&str; 4] = ["llama3", "qwen3-bias-yarn", "gemma2", "mixtral"];
    const PRECISIONS: [(WeightClass, KvDtype, AccumulationOrder); 4] = [
        (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Vdpbf16),
        (WeightClass::Bf16, KvDtype::Int8, AccumulationOrder::Amx),
        (WeightClass::Int8, KvDtype::Bf16, AccumulationOrder::Vdpbf16),
        (WeightClass::Int4, KvDtype::Bf16, AccumulationOrder::Amx),
    ];
    const LEN: usize = 36;

    /// Two adapters, of which one has some modules only, and what rows have without one, with the one, with the other.
    struct Case {
        adapters: [Adapter; 2],
        prompts: [Vec<u32>; 4],
        slots: [Option<u32>; 4],
        expected: [Vec<Vec<u32>>; 4],
    }

    impl Case {
        fn of(name: &str, (class, kv, arithmetic): (WeightClass, KvDtype, AccumulationOrder), place: &Scratch) -> Case {
            let checkpoint = committed(name);
            let config = config_of(&checkpoint);
            let first = write_in(place, "first", &adapter(&config, 7, 8, 16.0, &[]));
            let second = write_in(place, "second", &adapter(&config, 8, 33, 12.0, &["k_proj", "o_proj", "up_proj"]));
            let adapters = [read(&first, &config), read(&second, &config)];
            let mut reference = load_with_room(Reference::of(arithmetic), &checkpoint, class, kv);
            for (slot, adapter) in adapters.iter().enumerate() {
                reference.set_adapter(slot, Some(adapter)).unwrap();
            }
            // The same prompt through each of them, and another.
            let prompt = random_tokens(11, LEN, config.vocab_size);
            let prompts = [prompt.clone(), prompt.clone(), prompt, random_tokens(12, LEN, config.vocab_size)];
            let slots = [None, Some(0), Some(1), Some(0)];
            let expected = [0, 1, 2, 3].map(|index| alone(&mut reference, &prompts[index], slots[index]));
            let mut plain = load_with_kv(Reference::of(arithmetic), &checkpoint, class, kv);
            assert!(alone(&mut plain, &prompts[0], None) == expected[0], "{name}: without an adapter as without room");
            assert!(expected[0] != expected[1] && expected[1] != expected[2] && expected[0] != expected[2]);
            Case { adapters, prompts, slots, expected }
        }

        fn check(&self, model: &mut dyn Forward, name: &str) {
            // In another order and other slots, the second first.
            for (slot, adapter) in [(2, &self.adapters[0]), (0, &self.adapters[1])] {
                model.set_adapter(slot, Some(adapter)).unwrap();
            }
            let slots = self.slots.map(|slot| slot.map(|slot| if slot == 0 { 2 } else { 0 }));
            for (index, slot) in slots.into_iter().enumerate() {
                let found = alone(model, &self.prompts[index], slot);
                assert!(found == self.expected[index], "{name}: sequence {index} alone");
            }
            self.mixed(model, name, slots);
        }

        /// All four beside each other, in chunks of any size and any order; of some steps only last rows have logits.
        fn mixed(&self, model: &mut dyn Forward, name: &str, slots: [Option<u32>; 4]) {
            let mut starts = [0; 4];
            for step in 0.. {
                if starts.iter().all(|&start| start == LEN) {
                    break;
                }
                let mut batch = Batch::default();
                let mut parts = Vec::new();
                let order = [[0, 1, 2, 3], [3, 1, 0, 2], [1, 3, 2, 0]][step % 3];
                for index in order {
                    let len = [1, 17, 3, 8, 1, 1][(step + index) % 6].min(LEN - starts[index]);
                    if len == 0 {
                        continue;
                    }
                    let rows = starts[index]..starts[index] + len;
                    let table = table_from(8 * index as u32, LEN);
                    push_adapted(&mut batch, &self.prompts[index], rows.clone(), &table, slots[index]);
                    parts.push((index, rows));
                    starts[index] += len;
                }
                let only_last = step % 2 == 1;
                if only_last {
                    let last = batch.spans.iter().map(|span| span.first_row + span.num_rows - 1);
                    batch.logit_rows = last.collect();
                }
                let mut found = run(model, &batch).into_iter();
                for (index, rows) in parts {
                    for row in if only_last { rows.end - 1..rows.end } else { rows } {
                        let found = found.next().unwrap();
                        assert!(found == self.expected[index][row], "{name}: row {row} of {index}, step {step}");
                    }
                }
            }
        }
    }

    #[test]
    fn of_a_row_are_its_own_whatever_adapters_its_neighbours_have() {
        for (at, checkpoint) in testing::part_of(CHECKPOINTS, 3).enumerate() {
            for precision in testing::one_of(PRECISIONS, 3 * at) {
                let (class, kv, arithmetic) = precision;
                let place = Scratch::new(&format!("bits-{checkpoint}-{}-{}", class.name(), arithmetic.name()));
                let case = Case::of(checkpoint, precision, &place);
                let files = committed(checkpoint);
                let name = |on: &str| format!("{checkpoint} {class:?} {kv:?} {arithmetic:?} on {on}");
                case.check(&mut load_with_room(Reference::of(arithmetic), &files, class, kv), &name("Reference"));
                for isa in Isa::available() {
                    for threads in if isa == Isa::Scalar { 2..=2 } else { 1..=2 } {
                        let mut model = load_with_room(cpu_of(Some(isa), threads, arithmetic), &files, class, kv);
                        case.check(&mut model, &name(&format!("{} with {threads} threads", isa.name())));
                    }
                }
            }
        }
    }

    #[test]
    fn are_the_same_on_a_device_elsewhere_which_is_not_waited_for_within_a_pass() {
        let precision = (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Vdpbf16);
        let place = Scratch::new("bits-device");
        let case = Case::of("llama3", precision, &place);
        let remote = Remote::new(Reference::of(AccumulationOrder::Vdpbf16));
        let waits = remote.waits();
        let mut model = load_with_room(remote, &committed("llama3"), precision.0, precision.1);
        case.check(&mut model, "a device");
        let mut batch = Batch::default();
        push_adapted(&mut batch, &case.prompts[0], 0..9, &table_from(0, 9), Some(0));
        let before = waits.load(Ordering::Relaxed);
        let ticket = model.launch(&batch).unwrap();
        assert_eq!(waits.load(Ordering::Relaxed), before, "the pass is asked for, and nothing waits");
        model.wait(ticket).unwrap();
    }

    #[test]
    fn are_those_of_an_adapter_that_was_packed_on_another_thread() {
        let precision = (WeightClass::Int8, KvDtype::Bf16, AccumulationOrder::Vdpbf16);
        let place = Scratch::new("bits-packed");
        let case = Case::of("llama3", precision, &place);
        let files = committed("llama3");
        let mut model = load_with_room(cpu_of(None, 1, precision.2), &files, precision.0, precision.1);
        let packer = model.adapter_packer().expect("there is room");
        let adapters = &case.adapters;
        let packed = std::thread::scope(|threads| {
            let packer = &packer;
            let packing = [0, 1].map(|index| threads.spawn(move || packer.pack(&adapters[index]).unwrap()));
            packing.map(|thread| thread.join().unwrap())
        });
        let [first, second] = packed;
        assert!(model.put_adapter(1, Some(first)).unwrap().is_none(), "the slot was empty");
        assert!(alone(&mut model, &case.prompts[1], Some(1)) == case.expected[1]);
        // What was in the slot comes back, and is as good in another.
        let first = model.put_adapter(1, Some(second)).unwrap();
        model.put_adapter(0, first).unwrap();
        assert!(alone(&mut model, &case.prompts[1], Some(0)) == case.expected[1]);
        assert!(alone(&mut model, &case.prompts[2], Some(1)) == case.expected[2]);
        let plain = load_with_kv(cpu(None, 1), &files, precision.0, precision.1);
        assert!(plain.adapter_packer().is_none(), "a model without room");
    }

    #[test]
    fn are_another_adapters_when_a_slot_is_filled_again() {
        let precision = (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Vdpbf16);
        let place = Scratch::new("bits-again");
        let case = Case::of("llama3", precision, &place);
        let mut model =
            load_with_room(Reference::of(AccumulationOrder::Vdpbf16), &committed("llama3"), precision.0, precision.1);
        for (adapter, index) in [(0, 1), (1, 2), (0, 1)] {
            model.set_adapter(1, None).unwrap();
            model.set_adapter(1, Some(&case.adapters[adapter])).unwrap();
            assert!(alone(&mut model, &case.prompts[index], Some(1)) == case.expected[index]);
        }
        let refused = model.set_adapter(3, Some(&case.adapters[0])).unwrap_err().to_string();
        assert_eq!(refused, "max_loras: slot 3 for an adapter, and there are 3");
    }
}

/// A steady step takes no memory: it is all there from the load on.
#[test]
fn a_step_with_adapters_allocates_nothing() {
    let place = Scratch::new("allocations");
    let checkpoint = committed("llama3");
    let config = config_of(&checkpoint);
    let files = adapter(&config, 1, 8, 16.0, &[]);
    let mut model = load_with_room(cpu(None, 1), &checkpoint, WeightClass::Bf16, KvDtype::Bf16);
    model.set_adapter(0, Some(&read(&write_in(&place, "one", &files), &config))).unwrap();
    let tokens = random_tokens(1, 8, config.vocab_size);
    let mut batch = Batch::default();
    for (index, slot) in [Some(0), None, Some(0)].into_iter().enumerate() {
        push_adapted(&mut batch, &tokens, 0..1, &[index as u32], slot);
    }
    let mut logits = vec![0.0; 3 * config.vocab_size];
    model.forward(&batch, &mut logits).unwrap();
    let counted = allocation_counter::measure(|| model.forward(&batch, &mut logits).unwrap());
    assert_eq!(counted.count_total, 0);
}

#[test]
fn memory_for_an_adapter_is_known_before_it_is_read() {
    let config = config_of(&committed("llama3"));
    let bytes = adapter_bytes(&config, 8).unwrap();
    let weights: usize = adapters::modules(&config).iter().map(|(_, input, output)| 8 * (input + output)).sum();
    let least = (2 * weights * config.num_layers) as u64;
    assert!(bytes >= least && bytes < 20 * least, "{bytes} bytes, at least {least} of weights");
    assert_eq!(AdapterRoom::default().bytes(&config, 512), Some(0));
    assert!(AdapterRoom { slots: 2, max_rank: 8 }.bytes(&config, 512).unwrap() > 2 * bytes);
    assert_eq!(adapter_bytes(&config, usize::MAX / 64), None, "absurd");
}

mod refused {
    use super::*;

    type Change = Box<dyn FnOnce(&mut Files)>;

    /// Why a changed adapter of llama3 is refused.
    fn why(case: &str, change: impl FnOnce(&mut Files)) -> String {
        let place = Scratch::new(&format!("refused-{case}"));
        let config = config_of(&committed("llama3"));
        let mut files = adapter(&config, 1, 8, 16.0, &["q_proj", "down_proj"]);
        change(&mut files);
        Adapter::load(&write_in(&place, "adapter", &files), &config, 16).expect_err(case).to_string()
    }

    fn with(field: &str, value: Value) -> String {
        why(field, |files| drop(files.config.insert(field.to_string(), value)))
    }

    #[test]
    fn is_what_would_compute_something_else() {
        let table = [
            ("peft_type", json!("IA3"), "adapter_config.json: peft_type: \"IA3\" is not supported; LORA is"),
            ("peft_type", json!(null), "adapter_config.json: peft_type: missing; \"LORA\" is read"),
            ("use_dora", json!(true), "adapter_config.json: use_dora: DoRA is not supported"),
            ("bias", json!("all"), "adapter_config.json: bias: \"all\"; trained biases are not supported: \"none\" is"),
            (
                "modules_to_save",
                json!(["lm_head"]),
                "adapter_config.json: modules_to_save: modules beside the low-rank matrices are not supported",
            ),
            (
                "fan_in_fan_out",
                json!(true),
                "adapter_config.json: fan_in_fan_out: transposed weights are not supported",
            ),
            (
                "target_parameters",
                json!(["mlp.experts.gate_up_proj"]),
                "adapter_config.json: target_parameters: adapters of parameters, such as experts, are not supported",
            ),
            (
                "a_field_of_next_year",
                json!({ "on": true }),
                "adapter_config.json: \"a_field_of_next_year\": unknown here, and it may change what the adapter \
                 computes; remove it if it does not",
            ),
            ("r", json!(17), "adapter_config.json: r: 17; ranks from 1 to 16 are served; --max-lora-rank allows more"),
            ("r", json!(0), "adapter_config.json: r: 0; ranks from 1 to 16 are served"),
            ("r", json!(4096), "adapter_config.json: r: 4096; ranks from 1 to 16 are served"),
            ("r", json!(-8), "adapter_config.json: r: -8 is not a whole number from 0 to 18446744073709551615"),
            ("lora_alpha", json!("x"), "adapter_config.json: lora_alpha: expected a number, found a string"),
            ("lora_alpha", json!(null), "adapter_config.json: lora_alpha: missing"),
            (
                "rank_pattern",
                json!({ "^q_.*": 4 }),
                "adapter_config.json: rank_pattern: \"^q_.*\": patterns are names of modules here",
            ),
            (
                "alpha_pattern",
                json!({ "q_proj": 4, "self_attn.q_proj": 5 }),
                "adapter_config.json: alpha_pattern: \"q_proj\" and \"self_attn.q_proj\" both name \
                 \"model.layers.0.self_attn.q_proj\"",
            ),
            (
                "target_modules",
                json!(7),
                "adapter_config.json: target_modules: expected names of modules, or a pattern",
            ),
            (
                "target_modules",
                json!(["q_proj", "down_proj", "lm_head"]),
                "adapter_config.json: target_modules: \"lm_head\": adapters of embeddings and heads are not supported",
            ),
            (
                "target_modules",
                json!(["q_proj", "model.embed_tokens", "down_proj"]),
                "adapter_config.json: target_modules: \"model.embed_tokens\": adapters of embeddings and heads are not \
                 supported",
            ),
        ];
        for (field, value, wanted) in table {
            assert_eq!(with(field, value.clone()), wanted, "{field}: {value}");
        }
        assert!(with("init_lora_weights", json!("pissa")).contains("\"pissa\" changes the model's own weights"));
    }

    #[test]
    fn is_an_adapter_of_another_model_or_half_of_one() {
        let q = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
        let table: [(&str, Change, &str); 9] = [
            (
                "no B",
                Box::new(move |files| files.tensors.retain(|tensor| tensor.name != format!("{q}B.weight"))),
                "adapter_model.safetensors: tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight` is \
                 missing: the configuration asks for shape [128, 8]",
            ),
            (
                "no pair",
                Box::new(move |files| files.tensors.retain(|tensor| !tensor.name.starts_with(q))),
                "adapter_model.safetensors: tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is \
                 missing: the configuration asks for shape [8, 72]",
            ),
            (
                "another rank",
                Box::new(|files| drop(files.config.insert("r".to_string(), json!(4)))),
                "adapter_model.safetensors: tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`: \
                 shape [8, 72] where the configuration asks for [4, 72]",
            ),
            (
                "another width",
                Box::new(|files| {
                    let tensor = &mut files.tensors[0];
                    tensor.shape = [8, 64];
                    tensor.numbers.truncate(8 * 64);
                }),
                "adapter_model.safetensors: tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`: \
                 shape [8, 64] where the configuration asks for [8, 72]",
            ),
            (
                "a layer too many",
                Box::new(|files| {
                    let mut more = files.tensors[0].clone();
                    more.name = more.name.replace("layers.0.", "layers.3.");
                    files.tensors.push(more);
                }),
                "the adapter is of another model",
            ),
            (
                "the head",
                Box::new(|files| files.tensors[0].name = "base_model.model.lm_head.lora_A.weight".to_string()),
                "is missing",
            ),
            (
                "the head beside",
                Box::new(|files| {
                    let mut more = files.tensors[0].clone();
                    more.name = "base_model.model.lm_head.lora_A.weight".to_string();
                    files.tensors.push(more);
                }),
                "adapters of embeddings and heads are not supported",
            ),
            (
                "DoRA without saying so",
                Box::new(|files| {
                    let mut more = files.tensors[0].clone();
                    more.name = more.name.replace("lora_A.weight", "lora_magnitude_vector");
                    files.tensors.push(more);
                }),
                "they are of DoRA, which is not supported",
            ),
            (
                "not a number",
                Box::new(|files| files.tensors[2].numbers[5] = f32::NAN),
                "mlp.down_proj.lora_A.weight\": NaN or infinite weights",
            ),
        ];
        for (case, change, wanted) in table {
            let found = why(&case.replace(' ', "-"), change);
            assert!(found.contains(wanted), "{case}: {found}");
        }
    }

    #[test]
    fn is_what_is_no_adapter() {
        let place = Scratch::new("refused-none");
        let config = config_of(&committed("llama3"));
        let load = |directory: &Path| Adapter::load(directory, &config, 16).unwrap_err().to_string();
        let nowhere = place.join("nowhere");
        assert_eq!(load(&nowhere), format!("{}: no such directory", nowhere.display()));
        let at = place.display();
        assert_eq!(load(&place), format!("adapter_config.json: absent from {at}"));
        let files = adapter(&config, 1, 8, 16.0, &["q_proj"]);
        let whole = write_in(&place, "whole", &files);
        std::fs::rename(whole.join("adapter_model.safetensors"), whole.join("adapter_model.bin")).unwrap();
        assert!(load(&whole).contains("only pickled weights (adapter_model.bin)"), "{}", load(&whole));
        std::fs::remove_file(whole.join("adapter_model.bin")).unwrap();
        assert_eq!(load(&whole), format!("adapter_model.safetensors: absent from {}", whole.display()));
        // Cut anywhere, it is an error and no panic.
        let bytes = adapters::safetensors(&files.tensors, "F32", &|number| number.to_le_bytes().to_vec());
        for len in [0, 7, 8, 60, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(whole.join("adapter_model.safetensors"), &bytes[..len]).unwrap();
            assert!(load(&whole).starts_with("adapter_model.safetensors: "), "{len}: {}", load(&whole));
        }
        for text in ["", "[]", "{", "{\"peft_type\": \"LORA\"}"] {
            std::fs::write(whole.join("adapter_config.json"), text).unwrap();
            assert!(load(&whole).starts_with("adapter_config.json: "), "{text}: {}", load(&whole));
        }
    }

    /// Files with a few bytes changed are read or refused, by name and without a panic.
    #[test]
    fn damage_of_any_kind_is_read_or_refused() {
        let place = Scratch::new("refused-damaged");
        let config = config_of(&committed("llama3"));
        let files = adapter(&config, 1, 2, 16.0, &["k_proj"]);
        let directory = write_in(&place, "adapter", &files);
        const SIGNS: &[u8] = b"0123456789{}[]\\\",:-.";
        let names = ["adapter_config.json", "adapter_model.safetensors"];
        let mut refused = [0; 2];
        for (name, refused) in names.into_iter().zip(&mut refused) {
            let good = std::fs::read(directory.join(name)).unwrap();
            // Beyond the header there are weights, of which any is good.
            let len = good.len().min(1500);
            for (index, seed) in random_tokens(5, 3 * 400, 1 << 20).chunks_exact(3).enumerate() {
                let mut bytes = good.clone();
                let at = seed[0] as usize % len;
                match index % 4 {
                    0 => bytes[at] ^= 1 << (seed[1] % 8),
                    1 => bytes[at] = SIGNS[seed[1] as usize % SIGNS.len()],
                    2 => bytes.truncate(at),
                    _ => drop(bytes.splice(at..at, seed[1].to_le_bytes())),
                }
                std::fs::write(directory.join(name), bytes).unwrap();
                if let Err(error) = Adapter::load(&directory, &config, 16) {
                    let error = error.to_string();
                    assert!(error.starts_with("adapter_") && error.len() < 1000, "{name} {index}: {error}");
                    *refused += 1;
                }
            }
            std::fs::write(directory.join(name), good).unwrap();
        }
        assert!(refused.iter().all(|&refused| refused > 150), "{refused:?} of 400 each");
    }

    /// A file of tensors with this header, and this many bytes behind it.
    fn file(header: &str, data: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    }

    #[test]
    fn is_a_file_that_claims_what_it_has_not() {
        let place = Scratch::new("refused-claims");
        let config = config_of(&committed("llama3"));
        let directory = write_in(&place, "adapter", &adapter(&config, 1, 8, 16.0, &["q_proj"]));
        let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
        let tensor = |shape: &str, end: u64| {
            format!(r#"{{"{name}": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, {end}]}}}}"#)
        };
        let many = |count: usize| {
            let entry = |index| format!(r#""x{index}": {{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}"#);
            format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","))
        };
        let cases: [(&str, Vec<u8>); 9] = [
            ("a header as long as the address space", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
            ("a header longer than the file", [&(1u64 << 40).to_le_bytes()[..], b"{}"].concat()),
            ("a rank that memory has no room for", file(&tensor("[4611686018427387904, 72]", 2304), 2304)),
            ("widths whose product is none", file(&tensor("[18446744073709551615, 18446744073709551615]", 2304), 2304)),
            ("more bytes than there are", file(&tensor("[8, 72]", 1 << 50), 2304)),
            ("fewer bytes than its shape has", file(&tensor("[8, 72]", 2300), 2304)),
            ("a shape of a thousand dimensions", file(&tensor(&format!("[{}1]", "1, ".repeat(999)), 4), 4)),
            ("thousands of tensors of nothing", file(&many(20_000), 0)),
            ("brackets without end", file(&"[".repeat(200_000), 0)),
        ];
        for (case, bytes) in cases {
            std::fs::write(directory.join("adapter_model.safetensors"), bytes).unwrap();
            let error = Adapter::load(&directory, &config, 16).expect_err(case).to_string();
            assert!(error.starts_with("adapter_model.safetensors: ") && error.len() < 1000, "{case}: {error}");
        }
        // The same name twice: neither is chosen in silence.
        let once = tensor("[8, 72]", 2304);
        let header = format!("{}, {}", &once[..once.len() - 1], &once[1..]);
        std::fs::write(directory.join("adapter_model.safetensors"), file(&header, 2304)).unwrap();
        let error = Adapter::load(&directory, &config, 16).unwrap_err().to_string();
        assert!(error.starts_with("adapter_model.safetensors: "), "{error}");
    }

    /// As peft writes them for classes with a head and without one, and as programs do that write no `base_model.`
    #[test]
    fn names_with_and_without_what_peft_puts_before_them() {
        let place = Scratch::new("prefixes");
        let config = config_of(&committed("llama3"));
        let mut first: Option<Vec<u8>> = None;
        for (number, before) in
            ["base_model.model.model.", "base_model.model.", "model.", "", "base_model.model.model.language_model."]
                .into_iter()
                .enumerate()
        {
            let mut files = adapter(&config, 1, 8, 16.0, &["q_proj", "v_proj"]);
            files
                .tensors
                .iter_mut()
                .for_each(|tensor| tensor.name = tensor.name.replace("base_model.model.model.", before));
            // A whole name in the configuration is spelled as those of the tensors are.
            let module = format!("{}layers.0.self_attn.q_proj", before.trim_start_matches("base_model.model."));
            files.config.insert("alpha_pattern".to_string(), json!({ module: 64 }));
            let directory = write_in(&place, &number.to_string(), &files);
            let read = Adapter::load(&directory, &config, 16).unwrap_or_else(|error| panic!("{before}: {error}"));
            let mut bytes = Vec::new();
            read.each_byte(|part| bytes.extend_from_slice(part));
            assert_eq!(*first.get_or_insert_with(|| bytes.clone()), bytes, "{before}");
        }
    }

    #[test]
    fn is_a_module_under_two_names() {
        let found = why("two-names", |files| {
            let mut more = files.tensors[0].clone();
            more.name = more.name.replace("model.model.layers", "model.model.language_model.layers");
            files.tensors.push(more);
        });
        assert!(found.contains("this model has no place for") && found.contains("language_model.layers.0"), "{found}");
    }

    #[test]
    fn are_numbers_that_are_none_in_bf16() {
        for number in [f32::INFINITY, -f32::INFINITY, f32::MAX, -3.4e38] {
            let found = why(&format!("{number}"), |files| files.tensors[1].numbers[7] = number);
            assert!(found.contains("NaN or infinite weights"), "{number}: {found}");
        }
        let scaled = why("scaled", |files| {
            files.config.insert("lora_alpha".to_string(), json!(1e6));
            files.tensors[1].numbers[7] = 1e35;
        });
        assert!(scaled.contains("NaN or infinite weights"), "{scaled}");
        let place = Scratch::new("refused-largest");
        let config = config_of(&committed("llama3"));
        let mut files = adapter(&config, 1, 8, 8.0, &["q_proj"]);
        files.tensors[1].numbers[7] = 3.38e38;
        assert!(Adapter::load(&write_in(&place, "adapter", &files), &config, 16).is_ok(), "the largest that there are");
    }

    #[test]
    fn are_configurations_without_end() {
        let nested = format!("{{\"peft_type\": \"LORA\", \"r\": 8, \"rank_pattern\": {}", "{\"a\": ".repeat(100_000));
        let long = format!("{{\"peft_type\": \"LORA\", \"x\": \"{}\"}}", "x".repeat(1 << 20));
        let place = Scratch::new("refused-endless");
        let config = config_of(&committed("llama3"));
        let directory = write_in(&place, "adapter", &adapter(&config, 1, 8, 16.0, &["q_proj"]));
        for (case, text) in [("nested", nested), ("long", long)] {
            std::fs::write(directory.join("adapter_config.json"), text).unwrap();
            let error = Adapter::load(&directory, &config, 16).expect_err(case).to_string();
            assert!(error.starts_with("adapter_config.json: ") && error.len() < 1000, "{case}: {error}");
        }
        // Thousands of patterns are looked through, none of which names a module here.
        let mut files = adapter(&config, 1, 8, 16.0, &["q_proj"]);
        let patterns: Map<String, Value> = (0..20_000).map(|index| (format!("x{index}.q_proj"), json!(3))).collect();
        files.config.insert("rank_pattern".to_string(), Value::Object(patterns));
        let found = Adapter::load(&write_in(&place, "patterns", &files), &config, 16).unwrap();
        assert_eq!(found.rank(), 8);
    }

    /// Nothing waits for a pipe's other end, or reads a device without limit.
    #[test]
    fn is_what_is_no_file() {
        let place = Scratch::new("refused-no-file");
        let config = config_of(&committed("llama3"));
        let files = adapter(&config, 1, 8, 16.0, &["q_proj"]);
        let load = |directory: &Path| Adapter::load(directory, &config, 16).unwrap_err().to_string();
        for device in ["/dev/zero", "/dev/null"] {
            let found = load(Path::new(device));
            assert!(found.contains(device), "{device}: {found}");
        }
        let pipe = |path: &Path| {
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        pipe(&place.join("pipe"));
        assert!(load(&place.join("pipe")).contains("pipe"));
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            let directory = write_in(&place, name, &files);
            let path = directory.join(name);
            let replace: [(&str, &dyn Fn()); 3] = [
                ("a pipe", &|| pipe(&path)),
                ("a directory", &|| std::fs::create_dir(&path).unwrap()),
                ("a device", &|| std::os::unix::fs::symlink("/dev/zero", &path).unwrap()),
            ];
            for (what, put) in replace {
                let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)); // what was there before
                put();
                let found = load(&directory);
                assert!(found.contains(name) && found.len() < 1000, "{name} is {what}: {found}");
            }
        }
    }

    #[test]
    fn are_experts() {
        let place = Scratch::new("refused-experts");
        let config = config_of(&committed("mixtral"));
        let mut files = adapter(&config, 1, 8, 16.0, &["q_proj"]);
        let mut more = files.tensors[0].clone();
        more.name = "base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_A.weight".to_string();
        files.tensors.push(more);
        let found = Adapter::load(&write_in(&place, "adapter", &files), &config, 16).unwrap_err().to_string();
        assert!(found.contains("adapters of experts and routers are not supported"), "{found}");
    }
}

#[test]
fn every_type_of_weights_is_read() {
    let place = Scratch::new("types");
    let config = config_of(&committed("llama3"));
    let mut files = adapter(&config, 1, 8, 16.0, &["q_proj"]);
    // Numbers that all three types have.
    files.tensors.iter_mut().flat_map(|tensor| &mut tensor.numbers).for_each(|number| {
        *number = (*number * 64.0).round() / 64.0;
    });
    let digest = |dtype: &str| {
        let encode = |number: f32| match dtype {
            "F32" => number.to_le_bytes().to_vec(),
            "BF16" => half::bf16::from_f32(number).to_le_bytes().to_vec(),
            _ => half::f16::from_f32(number).to_le_bytes().to_vec(),
        };
        files.write_as(&place.join(dtype), dtype, &encode);
        let mut bytes = Vec::new();
        read(&place.join(dtype), &config).each_byte(|part| bytes.extend_from_slice(part));
        bytes
    };
    let wanted = digest("F32");
    assert!(!wanted.is_empty() && digest("BF16") == wanted && digest("F16") == wanted);
}
