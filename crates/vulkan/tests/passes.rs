//! Whole passes of every committed checkpoint that the device computes.

use crate::common::{devices, open, part_for};

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use checkpoint::{Checkpoint, Source};
use kernels::{AccumulationOrder, Backend, Device, DeviceError, KvDtype, Reference, WeightClass};
use model::{AdapterRoom, Batch, Forward, KvBudget, LoadOptions, Span};
use testing::Dice;
use vulkan::{Counts, VulkanOptions};

const BLOCK: u32 = 32;

fn checkpoints() -> Vec<(String, PathBuf)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data");
    let all = data.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = all
        .filter(|path| path.join("oracle.json").exists())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .collect();
    found.sort();
    found
}

fn options(weights: WeightClass, kv_dtype: KvDtype) -> LoadOptions {
    LoadOptions {
        weights,
        as_stored: false,
        max_rows: 512,
        max_logit_rows: 512,
        max_model_len: None,
        kv_blocks: KvBudget::Blocks(24),
        block_size: BLOCK as usize,
        image_directory: None,
        kv_dtype,
        adapters: AdapterRoom::default(),
        state_slots: 0,
        expert_memory: None,
    }
}

fn push(batch: &mut Batch, tokens: &[u32], rows: Range<usize>, table: &[u32], is_wanted: impl Fn(usize) -> bool) {
    let (first_row, at) = (batch.token_ids.len() as u32, batch.block_tables.len() as u32);
    for position in rows.clone() {
        batch.token_ids.push(tokens[position]);
        batch.positions.push(position as u32);
        batch.slots.push(table[position / BLOCK as usize] * BLOCK + position as u32 % BLOCK);
        if is_wanted(position) {
            batch.logit_rows.push(first_row + (position - rows.start) as u32);
        }
    }
    batch.block_tables.extend(table);
    let table = at..batch.block_tables.len() as u32;
    let (num_rows, start) = (rows.len() as u32, rows.start as u32);
    batch.spans.push(Span { first_row, num_rows, start, table, adapter: None, state: None, saves: 0..0 });
}

fn run(model: &mut dyn Forward, batch: &Batch) -> Vec<Vec<u32>> {
    let ticket = model.launch(batch).unwrap();
    let logits = model.wait(ticket).unwrap();
    let mut row = vec![f32::NAN; model.config().vocab_size];
    let mut bits = |index| {
        model.read_logits(&logits, index, &mut row).unwrap();
        row.iter().map(|logit| logit.to_bits()).collect()
    };
    (0..logits.rows()).map(&mut bits).collect()
}

/// Chunks of two sequences, some together, past a split of attention; blocks that are copied, saved and loaded; decode
/// rows. The logits, and the bytes of some blocks.
fn passes(model: &mut dyn Forward) -> (Vec<Vec<u32>>, Vec<Vec<u8>>) {
    let mut dice = Dice::new(1);
    let vocab = model.config().vocab_size as u64;
    let [a, b] = [(); 2].map(|()| (0..300).map(|_| dice.below(vocab) as u32).collect::<Vec<u32>>());
    let (table_a, table_b) = ([5, 3, 9, 4, 8, 10, 13, 14, 15, 16], [1, 7, 2, 6]);
    let (mut all, mut batch) = (Vec::new(), Batch::default());
    push(&mut batch, &a, 0..261, &table_a, |position| position % 50 == 20);
    all.extend(run(model, &batch));
    batch.clear();
    push(&mut batch, &b, 0..33, &table_b, |_| true);
    push(&mut batch, &a, 261..270, &table_a, |_| true);
    all.extend(run(model, &batch));
    model.copy_blocks(&[(14, 11), (7, 12)]);
    let mut buffer = model.host_buffer(vec![0; model.block_bytes()]);
    let block = Arc::get_mut(&mut buffer).unwrap();
    model.save_block(1, block);
    model.load_block(block, 20);
    batch.clear();
    push(&mut batch, &a, 270..271, &[5, 3, 9, 4, 8, 10, 13, 11, 15, 16], |_| true);
    push(&mut batch, &b, 33..34, &[20, 12, 2, 6], |_| true);
    all.extend(run(model, &batch));
    let saved = [20, 12, 11, 8].map(|block| {
        let mut buffer = model.host_buffer(vec![0; model.block_bytes()]);
        model.save_block(block, Arc::get_mut(&mut buffer).unwrap());
        // What was saved is there once it was submitted: with the next pass.
        let mut batch = Batch::default();
        push(&mut batch, &a, 0..1, &[0], |_| true);
        run(model, &batch);
        buffer.bytes().unwrap().to_vec()
    });
    (all, saved.to_vec())
}

fn load<B: Backend>(backend: B, checkpoint: &Checkpoint, options: &LoadOptions) -> Box<dyn Forward> {
    Box::new(model::load(backend, checkpoint, options, &mut |_| {}).unwrap())
}

const PRECISIONS: [(WeightClass, KvDtype); 5] = [
    (WeightClass::Bf16, KvDtype::Bf16),
    (WeightClass::Int8, KvDtype::Int8),
    (WeightClass::Int4, KvDtype::Bf16),
    (WeightClass::Int8, KvDtype::Bf16),
    (WeightClass::Bf16, KvDtype::Int8),
];

/// Numbers that differ.
fn differences(expected: &[Vec<u32>], found: &[Vec<u32>]) -> usize {
    let of_row = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).filter(|(a, b)| a != b).count();
    expected.iter().zip(found).map(of_row).sum::<usize>() + expected.len().abs_diff(found.len())
}

/// Each device is opened once for each order: drivers compile the kernels then, which takes seconds on software.
fn on_device(index: usize, way: VulkanOptions) {
    let options_of_device = VulkanOptions { index, ..way };
    let opened = AccumulationOrder::ALL.map(|order| open(order, options_of_device));
    let mut computed = 0;
    for (at, (name, directory)) in part_for(&opened[0], checkpoints(), 6).enumerate() {
        let checkpoint = Checkpoint::open(Source::Directory(directory)).unwrap();
        for (weights, kv) in testing::one_of(PRECISIONS, at) {
            let (vulkan, options) = (&opened[at % 2], options(weights, kv));
            let mut model = match model::load(vulkan.clone(), &checkpoint, &options, &mut |_| {}) {
                Ok(model) => model,
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("does not compute"), "{name}: {error}");
                    continue;
                }
            };
            let expected = passes(&mut *load(Reference::of(vulkan.arithmetic()), &checkpoint, &options));
            let found = passes(&mut model);
            let other = differences(&expected.0, &found.0);
            let what = format!("{name} in {weights:?}, {kv:?}, on {}", vulkan.describe());
            assert_eq!(other, 0, "{what}: logits of {}", expected.0.iter().map(Vec::len).sum::<usize>());
            assert!(expected.1 == found.1, "{what}: bytes of the cache");
            computed += 1;
        }
    }
    assert!(computed > 0, "some were computed");
}

#[test]
fn every_checkpoint_has_the_references_bits_or_is_refused_by_name() {
    (0..devices()).for_each(|index| on_device(index, VulkanOptions::default()));
}

/// Memory that the host does not reach, matrices in several parts, and no fused multiply-add.
#[test]
fn so_it_has_where_the_device_lacks_what_others_have() {
    let way =
        VulkanOptions { stage: true, emulate_fma: true, binding_bytes: Some(96 << 10), ..VulkanOptions::default() };
    on_device(devices() - 1, way);
}

/// The host waits once for a pass, which goes to the queue at once.
#[test]
fn a_pass_is_one_submission() {
    let checkpoint = checkpoints().into_iter().find(|(name, _)| name == "llama3").expect("it is committed").1;
    let checkpoint = Checkpoint::open(Source::Directory(checkpoint)).unwrap();
    let vulkan = open(AccumulationOrder::Amx, VulkanOptions { index: devices() - 1, ..VulkanOptions::default() });
    let options = options(WeightClass::Int8, KvDtype::Bf16);
    let mut model = model::load(vulkan.clone(), &checkpoint, &options, &mut |_| {}).unwrap();
    let mut batch = Batch::default();
    push(&mut batch, &[1, 2, 3], 0..3, &[0], |position| position == 2);
    run(&mut model, &batch);
    let before = vulkan.counts();
    let mut each = Vec::new();
    for position in 3..6 {
        batch.clear();
        push(&mut batch, &[1; 6], position..position + 1, &[0], |_| true);
        let ticket = model.launch(&batch).unwrap();
        model.wait(ticket).unwrap();
        each.push(vulkan.counts());
    }
    let (first, last) = (each[0], each[2]);
    assert_eq!(last.submissions - before.submissions, 3, "three passes");
    let of = |counts: Counts| counts.operations - before.operations;
    assert_eq!(of(first), of(last) / 3, "of as many operations");
}

/// It may still compute, so nothing that it uses is freed, and nothing waits for it again.
#[test]
fn a_device_that_gives_no_answer_is_left_alone() {
    let checkpoint = checkpoints().into_iter().find(|(name, _)| name == "llama3").expect("it is committed").1;
    let checkpoint = Checkpoint::open(Source::Directory(checkpoint)).unwrap();
    let impatient = VulkanOptions { index: devices() - 1, patience: Some(Duration::ZERO), ..VulkanOptions::default() };
    let vulkan = open(AccumulationOrder::Amx, impatient);
    let options = options(WeightClass::Bf16, KvDtype::Bf16);
    let mut model = model::load(vulkan, &checkpoint, &options, &mut |_| {}).unwrap();
    let mut batch = Batch::default();
    push(&mut batch, &[1, 2, 3], 0..3, &[5], |_| true);
    let mut saved = model.host_buffer(vec![0; model.block_bytes()]);
    let ticket = model.launch(&batch).unwrap();
    let is_stuck = |error: &DeviceError| matches!(error, DeviceError::Stuck { waited: Duration::ZERO, .. });
    assert!(model.wait(ticket).is_err_and(|error| is_stuck(&error)));
    model.save_block(3, Arc::get_mut(&mut saved).unwrap());
    assert!(model.launch(&batch).is_err_and(|error| is_stuck(&error)), "every door says so");
    assert!(saved.bytes().is_err_and(|error| is_stuck(&error)), "nothing was saved");
    drop((model, saved));
    // The driver's threads end before the process does.
    std::thread::sleep(Duration::from_secs(2));
}
