//! Whole passes of every committed checkpoint.

use crate::common::{devices, host, is_slow, open};

use std::cell::LazyCell;
use std::sync::Arc;
use std::time::Duration;

use crate::batches::{Wanted, committed, committed_checkpoints, options, passes, push, random_tokens, run};
use allocation_counter::measure;
use checkpoint::{Checkpoint, Source};
use kernels::{AccumulationOrder, Backend, Device, DeviceError, KvDtype, Reference, WeightClass};
use model::{Batch, ExpertMemory, Forward, KvBudget, LoadOptions, Runner};
use vulkan::{Faults, OperationCounts, Vulkan, VulkanOptions};

pub(crate) fn sizes(weights: WeightClass, kv_dtype: KvDtype) -> LoadOptions {
    LoadOptions { kv_blocks: KvBudget::Blocks(24), kv_dtype, ..options(weights) }
}

fn load<B: Backend>(backend: B, checkpoint: &Checkpoint, options: &LoadOptions) -> Runner<B> {
    model::load(backend, checkpoint, options, &mut |_| {}).unwrap()
}

/// A committed model on the last device, which is not the slow one that a test may have added.
pub(crate) fn small(name: &str, way: VulkanOptions, options: &LoadOptions) -> (Vulkan, Runner<Vulkan>) {
    let vulkan = open(AccumulationOrder::Amx, VulkanOptions { index: devices() - 1, ..way });
    (vulkan.clone(), load(vulkan, &committed(name), options))
}

const PRECISIONS: [(WeightClass, KvDtype); 5] = [
    (WeightClass::Bf16, KvDtype::Bf16),
    (WeightClass::Int8, KvDtype::Int8),
    (WeightClass::Int4, KvDtype::Bf16),
    (WeightClass::Int8, KvDtype::Bf16),
    (WeightClass::Bf16, KvDtype::Int8),
];

/// Tokens of which the last see more than attention takes together.
const PAST_A_SPLIT: usize = 261;
/// Rows of which products go by tiles: of a slow device, and of most checkpoints in a quick run. Splits are tried as
/// operations too.
const PAST_A_TILE: usize = 66;

/// What a quick run has: norms, windows and caps, sinks, experts, latents, and states of each kind.
const OF_EACH_KIND: [&str; 8] =
    ["cohere2", "deepseek-v3", "gemma2", "gpt-oss", "granite-hybrid", "kimi-linear", "lfm2", "qwen3-next"];

/// Numbers that differ.
fn differences(expected: &[Vec<u32>], found: &[Vec<u32>]) -> usize {
    let of_row = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).filter(|(a, b)| a != b).count();
    expected.iter().zip(found).map(of_row).sum::<usize>() + expected.len().abs_diff(found.len())
}

/// Each device, and the last one as if it lacked what it may lack: memory that the host does not reach, matrices in
/// several parts, no fused multiply-add, and workgroups in reversed order. Each is opened once for each order that it
/// computes: drivers compile the kernels then.
#[test]
fn every_checkpoint_has_the_references_bits() {
    let faults = Some(Faults { reversed: true, common_ground: true, ..Faults::default() });
    let binding_bytes = Some(96 << 10);
    let poor = VulkanOptions { stage: true, emulate_fma: true, binding_bytes, faults, ..VulkanOptions::default() };
    let poor = VulkanOptions { multiply_adds: Some(1 << 20), ..poor };
    let ways = (0..devices()).map(|index| VulkanOptions { index, ..VulkanOptions::default() });
    let ways = ways.chain([VulkanOptions { index: devices() - 1, ..poor }]);
    let opened = |way: VulkanOptions| AccumulationOrder::ALL.map(|order| LazyCell::new(move || open(order, way)));
    let opened: Vec<_> = ways.map(|way| (is_slow(way.index), opened(way))).collect();
    let mut computed = 0;
    let is_asked = |(name, _): &(String, _)| testing::is_long() || OF_EACH_KIND.contains(&name.as_str());
    for (at, (name, directory)) in committed_checkpoints().into_iter().filter(is_asked).enumerate() {
        let checkpoint = Checkpoint::open(Source::Directory(directory)).unwrap();
        for (weights, kv) in testing::one_of(PRECISIONS, at) {
            let (options, order) = (sizes(weights, kv), AccumulationOrder::ALL[at % 2]);
            let mut expected = [None, None];
            // In a quick run the first one on all, and the others in one way or the other.
            let is_wanted = |way: &usize| at == 0 || !opened[*way].0 && way % 2 == at / 2 % 2 || testing::is_long();
            for (is_slow, of_order) in (0..opened.len()).filter(is_wanted).map(|way| &opened[way]) {
                let is_short = *is_slow || !testing::is_long() && at % 3 > 0;
                let (vulkan, first) = (&*of_order[at % 2], if is_short { PAST_A_TILE } else { PAST_A_SPLIT });
                let mut model = load(vulkan.clone(), &checkpoint, &options);
                // The CPU is quicker, and has the definition's bits by tests of its own.
                let expected = expected[usize::from(is_short)].get_or_insert_with(|| match testing::is_long() {
                    true => passes(&mut load(Reference::of(order), &checkpoint, &options), first),
                    false => passes(&mut load(host(order), &checkpoint, &options), first),
                });
                let found = passes(&mut model, first);
                let other = differences(&expected.0, &found.0);
                let what = format!("{name} in {weights:?}, {kv:?}, on {}", vulkan.describe());
                assert_eq!(other, 0, "{what}: logits of {}", expected.0.iter().map(Vec::len).sum::<usize>());
                assert!(expected.1 == found.1, "{what}: bytes of the cache");
                computed += 1;
            }
        }
    }
    assert!(computed > 0, "some were computed");
}

#[test]
fn encoders_have_the_references_bits() {
    let vulkan = open(AccumulationOrder::Vdpbf16, VulkanOptions { index: devices() - 1, ..VulkanOptions::default() });
    let reference = || Reference::of(vulkan.arithmetic());
    let names = ["bert", "modernbert", "embedding-gemma", "nomic-bert", "qwen3-classifier"];
    for name in testing::part_of(names, 2) {
        let (checkpoint, options) = (committed(&format!("encoders/{name}")), sizes(WeightClass::Int8, KvDtype::Bf16));
        let rows = |encoder: &mut dyn Forward| {
            let (mut batch, width) = (Batch::default(), encoder.config().vector_width());
            push(&mut batch, &random_tokens(3, 40, encoder.config().vocab_size), 0..40, &[2, 1], Wanted::Last);
            batch.token_types.resize(40, 0);
            let ticket = encoder.launch(&batch).unwrap();
            let pass = encoder.wait(ticket).unwrap();
            let mut rows = vec![f32::NAN; pass.rows() * width];
            encoder.read_hidden(&pass, 0..pass.rows(), &mut rows).unwrap();
            rows.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let expected = rows(&mut model::load_encoder(reference(), &checkpoint, &options, &mut |_| {}).unwrap());
        let found = rows(&mut model::load_encoder(vulkan.clone(), &checkpoint, &options, &mut |_| {}).unwrap());
        assert!(expected == found, "{name}");
    }
}

/// Of few rows the device chooses the experts. Of others the host does when what comes before them is done. A device
/// that is lost there, or while an expert is read, says so, and no more than that happens.
#[test]
fn a_mixture_of_many_rows_waits_for_the_choice_of_each_layer() {
    let checkpoint = committed("mixtral");
    let none = ExpertMemory { bytes: 0, now: || Duration::ZERO };
    for (expert_memory, count) in [(None, 63), (None, 64), (Some(none), 5)] {
        let mut batch = Batch::default();
        push(&mut batch, &[1; 64], 0..count, &[5, 6, 7, 8, 9], Wanted::All);
        let options = LoadOptions { expert_memory, ..sizes(WeightClass::Int8, KvDtype::Bf16) };
        let way =
            VulkanOptions { index: devices() - 1, stage: true, faults: Some(Faults::default()), ..Default::default() };
        let vulkan = open(AccumulationOrder::Amx, way);
        let mut model = load(vulkan.clone(), &checkpoint, &options);
        // Where the experts are is uploaded once.
        run(&mut model, &batch);
        let before = vulkan.counts().submissions;
        let ticket = model.launch(&batch).unwrap();
        let submissions = vulkan.counts().submissions - before;
        if expert_memory.is_none() {
            assert_eq!(submissions, if count < 64 { 1 } else { model.config().layers.len() as u64 + 1 });
        }
        model.wait(ticket).unwrap();
        vulkan.fail("vkQueueSubmit", submissions / 2);
        let said = model.launch(&batch).and_then(|ticket| model.wait(ticket).map(|_| ())).unwrap_err().to_string();
        assert!(said.contains("vkQueueSubmit failed"), "{said}");
    }
}

/// Kernels of a layer: norm with digits, product of queries, keys and values, rotation with store, attention, [digits,
/// product] of its output, norm with digits, product of gate and up, which gates, [digits, product] of
/// down.
const PER_LAYER: u64 = 10;
/// Embedding; of the last layer the rows that are wanted, of the stream and of the attention; norm with digits; product
/// of the head; the largest logit.
const BESIDE: u64 = 6;

/// Bytes of a matrix in int8: each 32 columns have 64 weights after 64, and a ratio for each 128, to whole lines.
fn bytes_of((columns, rows): (usize, usize)) -> u64 {
    let ratios = 32 * rows.div_ceil(128);
    (columns.div_ceil(32) * (32 * 64 * rows.div_ceil(64) + ratios.next_multiple_of(64))) as u64
}

/// In place of the last four of a layer: norm with bf16, the router's product; for all experts of few rows together the
/// choice, the list, [digits, product] of gate and up, which gates, [digits, product] of down, and what they add.
const OF_EXPERTS: u64 = 9;

/// Whichever experts a row goes to, the operations are the same, and as many for all as for one.
#[test]
fn few_rows_go_to_all_their_experts_at_once() {
    let vulkan = open(AccumulationOrder::Amx, VulkanOptions { index: devices() - 1, ..VulkanOptions::default() });
    let mut model = load(vulkan.clone(), &committed("mixtral"), &sizes(WeightClass::Int8, KvDtype::Bf16));
    let layers = model.config().layers.len() as u64;
    let mut step = |(count, tokens): (usize, [u32; 3])| {
        let (mut batch, before) = (Batch::default(), vulkan.counts());
        push(&mut batch, &tokens, 0..count, &[0], Wanted::Last);
        run(&mut model, &batch);
        let OperationCounts { operations, recorded, .. } = vulkan.counts();
        (operations - before.operations, recorded - before.recorded)
    };
    // The first size what grows to the largest step.
    [(3, [1, 2, 3]), (3, [1, 2, 3]), (1, [1; 3])].into_iter().map(&mut step).for_each(drop);
    let of_layer = PER_LAYER - 4 + OF_EXPERTS;
    for rows in [(1, [9; 3]), (3, [7, 5, 4]), (1, [40; 3])] {
        assert_eq!(step(rows), (layers * of_layer + BESIDE - 1, 0), "{rows:?}");
    }
}

/// Submissions of a layer where each is as short as can be: one ends with every product and with attention.
const CUTS: u64 = 5;

/// A pass goes to the queue at once, unless it is long, and the host waits for it once; it reads each weight once, and a
/// steady one records and makes nothing, in the driver or beside it, though one with other rows was between. A greedy
/// step gives the host a logit and its id, without another copy.
#[test]
fn a_pass_is_one_submission_of_the_operations_that_it_has() {
    for (stage, multiply_adds) in [(false, None), (true, None), (false, Some(1))] {
        let way = VulkanOptions { stage, multiply_adds, ..VulkanOptions::default() };
        let (vulkan, mut model) = small("llama3", way, &sizes(WeightClass::Int8, KvDtype::Bf16));
        let batches = [0, 3, 0, 4, 5, 0, 6].map(|at| {
            let (mut batch, count) = (Batch::default(), if at == 0 { 3 } else { 1 });
            push(&mut batch, &[1; 8], at..at + count, &[0], Wanted::Last);
            batch.best.push(1);
            batch
        });
        let (mut row, mut best) = (vec![0.0; model.config().vocab_size], Vec::new());
        let mut step = |batch: &Batch| {
            let ticket = model.launch(batch).unwrap();
            let pass = model.wait(ticket).unwrap();
            let before = vulkan.counts();
            model.read_best(&pass, 0, &mut best).unwrap();
            let read = vulkan.counts();
            assert_eq!((read.read_bytes - before.read_bytes, read.operations), (8, before.operations));
            model.read_logits(&pass, 0, &mut row).unwrap();
            let copies = vulkan.counts().operations - before.operations;
            (vulkan.counts(), copies)
        };
        // The first size what grows to the largest step.
        let (steady, _) = batches[..4].iter().map(&mut step).last().unwrap();
        let mut all = Vec::with_capacity(3);
        let allocations = measure(|| all.extend(batches[4..].iter().map(&mut step)));
        let copies: u64 = all.iter().map(|(_, copies)| copies).sum();
        let OperationCounts { operations, recorded, submissions, weight_bytes, made, .. } = all[2].0;
        assert_eq!(copies, if stage { 3 } else { 0 }, "of rows that the host does not reach");
        let layers = model.config().layers.len() as u64;
        // One of the passes has three rows, of which each may be an attention of its own.
        let more = if multiply_adds.is_some() { 2 * layers } else { 0 };
        assert_eq!(operations - steady.operations, 3 * (layers * PER_LAYER + BESIDE) + more + copies);
        // The head, and the largest logit behind it.
        let of_pass = if multiply_adds.is_some() { layers * CUTS + 2 } else { 1 };
        assert_eq!(submissions - steady.submissions, 3 * of_pass + more + copies);
        if multiply_adds.is_some() {
            // Each is too short to be kept.
            continue;
        }
        assert_eq!(recorded, steady.recorded);
        let (hidden, heads, mlp) = (model.config().hidden_size, model.config().layers[0].heads, 100);
        let of_layer = [(heads.qkv_width(), hidden), (hidden, heads.q_width()), (2 * mlp, hidden), (hidden, mlp)];
        let matrices: u64 =
            of_layer.repeat(3).into_iter().chain([(model.config().vocab_size, hidden)]).map(bytes_of).sum();
        assert_eq!((weight_bytes - steady.weight_bytes, made), (3 * matrices, steady.made));
        assert_eq!(allocations.count_total, 0, "stage: {stage}");
    }
}

/// It may still compute, so nothing that it uses is freed, and nothing waits for it again.
#[test]
fn a_device_that_gives_no_answer_is_left_alone() {
    let impatient =
        VulkanOptions { patience: Some(Duration::ZERO), faults: Some(Faults::default()), ..VulkanOptions::default() };
    let (vulkan, mut model) = small("llama3", impatient, &sizes(WeightClass::Bf16, KvDtype::Bf16));
    drop(vulkan);
    let mut batch = Batch::default();
    push(&mut batch, &[1, 2, 3], 0..3, &[5], Wanted::All);
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

/// A second model on a device shares it with the first, and its loss; the next one opens it anew.
#[test]
fn models_share_a_device_and_its_loss() {
    let options = sizes(WeightClass::Bf16, KvDtype::Bf16);
    // As no other test opens it.
    let way = VulkanOptions { emulate_fma: true, ..VulkanOptions::default() };
    let (vulkan, mut model) = small("llama3", way, &options);
    let (other, mut beside) = small("llama3", VulkanOptions { stage: true, ..way }, &options);
    let made = vulkan.counts().made;
    assert_eq!(made, other.counts().made, "it is the same");
    let mut batch = Batch::default();
    push(&mut batch, &[1, 2, 3], 0..3, &[5], Wanted::All);
    let expected = run(&mut model, &batch);
    assert!(expected == run(&mut beside, &batch), "each has its own queue of operations");
    vulkan.fail("vkQueueSubmit", 0);
    let is_lost = |error: DeviceError| error.to_string().contains("vkQueueSubmit failed");
    assert!(beside.launch(&batch).is_err_and(is_lost) && model.launch(&batch).is_err_and(is_lost));
    let (new, mut model) = small("llama3", way, &options);
    assert!(expected == run(&mut model, &batch) && new.counts().made < made * 2);
    // While weights are read: that is no lack of memory, though it shows as one.
    for call in ["vkQueueSubmit", "vkWaitSemaphores", "vkGetSemaphoreCounterValue"] {
        let staged = VulkanOptions { index: devices() - 1, stage: true, ..way };
        let vulkan = open(AccumulationOrder::Amx, staged);
        vulkan.fail(call, 2);
        let loaded = model::load(vulkan, &committed("llama3"), &options, &mut |_| {});
        let said = loaded.err().expect("it is lost").to_string();
        assert!(said.contains(&format!(" is lost ({call} failed: ")), "{said}");
    }
}
