//! Each operation beside its definition, with numbers that models have and numbers that they should not have.

use crate::common::{devices, host, is_slow, open, part_for};
use crate::states::rows_change_states_and_leave_them;

use WeightClass::{Bf16, Int4, Int8};
use kernels::quant::{Codes, GroupScale, Scales};
use kernels::{
    AccumulationOrder, Activation, AttentionLayer, AttentionRule, AttentionSpan, Backend, BlockFormat, BlockSource,
    Device, Extent, HeadColumns, HeadLayout, HeadNorms, HostBuffer, Int4Source, Int8Source, KvDtype, KvShape,
    LatentShape, Latents, LowRankShape, LowRankSource, MatrixShape, Norm, Out, QueryGrowth, Reference, RopeScaling,
    RopeTable, Rotation, RoutedMlp, RoutingRule, RowSource, Scores, StepArrays, WeightClass,
};
use testing::Dice;
use vulkan::{Faults, Vulkan, VulkanOptions};

pub(crate) const SEED: u64 = 7;

/// Rows of which some have spikes of every size, one is zero, one tiny, and one holds what is no number.
///
/// Where a fused multiply-add is made of others, products below 2^-102 are rounded twice, and denormals may be flushed:
/// so what is no product of weights, which flush what is smaller, is tried with numbers above.
fn rows(dice: &mut Dice, count: usize, width: usize, tiny: f32) -> Vec<f32> {
    let mut all = dice.normals(count * width);
    for (index, row) in all.chunks_exact_mut(width).enumerate() {
        match index % 8 {
            1 => row.fill(0.0),
            2 => row.iter_mut().for_each(|x| *x *= tiny),
            3 => (0..width.div_ceil(40)).for_each(|nth| row[nth * 37 % width] *= 1000.0),
            4 => (0..width.div_ceil(6)).for_each(|nth| row[nth * 5 % width] *= 10f32.powi(nth as i32 % 5)),
            6 | 7 => row.iter_mut().filter(|_| dice.below(20) == 0).for_each(|x| *x *= 3000.0),
            5 => row[width / 2] = [f32::NAN, f32::INFINITY][index / 8 % 2],
            _ => {}
        }
    }
    all
}

/// The bits; all that is no number is alike, and denormals, which a device may flush, are zeros.
fn bits(numbers: &[f32]) -> Vec<u32> {
    let bits = |x: &f32| match x {
        x if x.is_nan() => f32::NAN.to_bits(),
        x if x.is_subnormal() || *x == 0.0 => 0,
        x => x.to_bits(),
    };
    numbers.iter().map(bits).collect()
}

/// Rows of a backend with these numbers.
pub(crate) fn put<B: Backend>(backend: &B, numbers: &[f32], width: usize) -> B::Rows {
    let mut rows = backend.rows(numbers.len() / width, width).unwrap();
    backend.write(numbers, &mut rows).unwrap();
    rows
}

pub(crate) fn get<B: Backend>(backend: &B, rows: &B::Rows, count: usize, width: usize) -> Vec<u32> {
    let mut out = vec![0.0; count * width];
    backend.read(rows, 0..count, width, &mut out).unwrap();
    bits(&out)
}

/// Calls `compare` with each order on each device, as it is and as if it lacked what it may lack, its workgroups reversed;
/// and with whether it is a slow one.
fn on_each(compare: impl Fn(&Vulkan, bool, &Reference, &str)) {
    let faults = Some(Faults { reversed: true, common_ground: true, ..Faults::default() });
    let (binding_bytes, multiply_adds) = (Some(4 << 10), Some(1 << 16));
    let poor =
        VulkanOptions { stage: true, emulate_fma: true, binding_bytes, multiply_adds, faults, ..Default::default() };
    for index in 0..devices() {
        let is_slow = is_slow(index);
        for (order, way) in AccumulationOrder::ALL.into_iter().zip([VulkanOptions::default(), poor]) {
            if way.faults.is_none() && is_slow {
                continue; // its compiler takes seconds for all kernels
            }
            let vulkan = open(order, VulkanOptions { index, ..way });
            compare(&vulkan, is_slow, &Reference::of(order), &format!("seed {SEED}, {}", vulkan.describe()));
        }
    }
}

/// Around strips, pairs, steps, groups, workgroups and tiles; inputs added in several parts, and unlisted outliers.
const SHAPES: [[(usize, usize, usize); 6]; 2] = [
    [(1, 1, 1), (3, 15, 33), (9, 32, 64), (16, 33, 130), (17, 70, 257), (2, 257, 512)],
    [(40, 100, 96), (4, 20, 1090), (1, 34, 4161), (63, 34, 60), (64, 18, 4500), (131, 98, 70)],
];

/// How a matrix is packed.
#[derive(Clone, Copy, Debug)]
enum Packed {
    Floats(WeightClass),
    /// Columns of sizes far apart, whose inputs are shifted.
    Shifted(WeightClass),
    Int8,
    Int4,
    Groups(BlockFormat),
}

fn packings() -> Vec<Packed> {
    let mut all = vec![Packed::Floats(Bf16), Packed::Floats(Int8), Packed::Floats(Int4)];
    all.extend([Packed::Shifted(Int8), Packed::Shifted(Int4), Packed::Int8, Packed::Int4]);
    let levels = [-127, -100, -80, -60, -45, -30, -18, -7, 3, 14, 26, 40, 55, 72, 95, 120];
    for codes in [Codes::Eight, Codes::Four { levels }] {
        for (scales, mins) in [
            (Scales::Half, false),
            (Scales::Half, true),
            (Scales::Super, true),
            (Scales::Power, false),
            (Scales::Full, true),
        ] {
            all.extend([16, 32].map(|group| Packed::Groups(BlockFormat { codes, group, mins, scales })));
        }
    }
    all
}

fn pack<B: Backend>(backend: &B, shape: MatrixShape, how: Packed) -> B::Matrix {
    pack_from(backend, shape, how, SEED)
}

fn pack_from<B: Backend>(backend: &B, shape: MatrixShape, how: Packed, seed: u64) -> B::Matrix {
    let of_row = |row: usize| Dice::new(seed + row as u64);
    let floats = |row: usize, out: &mut [f32]| out.copy_from_slice(&of_row(row).normals(shape.in_features));
    let shifted = |row: usize, out: &mut [f32]| {
        floats(row, out);
        out.iter_mut().enumerate().for_each(|(k, x)| *x *= 2f32.powi((k * 7 % 23) as i32 - 11));
    };
    match how {
        Packed::Floats(class) => backend.pack(shape, class, &RowSource(&floats)),
        Packed::Shifted(class) => backend.pack(shape, class, &RowSource(&shifted)),
        Packed::Int8 => {
            let fill = |row: usize, q: &mut [i8], scales: &mut [f32]| {
                let mut dice = of_row(row);
                q.iter_mut().for_each(|q| *q = dice.bits() as i8);
                scales.iter_mut().for_each(|scale| *scale = dice.signed() * 0.01);
            };
            backend.pack_int8(shape, &Int8Source(&fill))
        }
        Packed::Int4 => {
            let fill = |row: usize, q: &mut [i8], scales: &mut [f32]| {
                let mut dice = of_row(row);
                q.iter_mut().for_each(|q| *q = dice.below(16) as i8 - 8);
                scales.iter_mut().for_each(|scale| *scale = dice.signed() * 0.01);
            };
            backend.pack_int4(shape, &Int4Source(&fill))
        }
        Packed::Groups(format) => {
            let fill = |row: usize, q: &mut [i8], scales: &mut [GroupScale]| {
                let mut dice = of_row(row);
                let mut level = || match format.codes {
                    Codes::Eight => dice.bits() as i8,
                    Codes::Four { levels } => levels[dice.below(16) as usize],
                };
                q.iter_mut().for_each(|q| *q = level());
                // Numbers of 16 bits, the smallest among them.
                let half = |dice: &mut Dice| match dice.below(6) {
                    0 => 2f32.powi(-24) * dice.below(1024) as f32,
                    _ => (dice.signed() * 256.0).round() / 4096.0,
                };
                let (mut d, mut m) = (0.0, 0.0);
                for (index, scale) in scales.iter_mut().enumerate() {
                    if format.scales != Scales::Super || index % (64 / format.group) == 0 {
                        (d, m) = (half(&mut dice), half(&mut dice));
                    }
                    let ratio = if format.scales == Scales::Super { dice.bits() as i8 } else { 1 };
                    if format.scales == Scales::Power {
                        d = if dice.below(5) == 0 { 0.0 } else { 2f32.powi(dice.below(20) as i32 - 10) };
                    }
                    *scale = GroupScale { d, ratio, m, min_ratio: if format.mins { ratio / 2 } else { 0 } };
                }
            };
            backend.pack_blocks(shape, format, &BlockSource(&fill))
        }
    }
    .unwrap()
}

/// All in one test: each opens the devices, and drivers compile the kernels then.
#[test]
fn each_gives_the_bits_of_its_definition() {
    on_each(|vulkan, is_slow, reference, what| {
        products_and_rows_of_tables_in_every_packing((vulkan, is_slow), reference, what);
        // Counted before a driver sees it.
        if !is_slow {
            weights_are_loaded_once_for_rows_that_go_together(vulkan, what);
            all_heads_of_few_rows_are_as_many_operations_as_one(vulkan, what);
        }
        what_is_done_row_by_row_and_number_by_number((vulkan, is_slow), reference, what);
        adapters_are_added_to_their_rows_alone((vulkan, is_slow), reference, what);
        attention_folds_the_splits_of_each_row((vulkan, is_slow), reference, what);
        products_by_head_are_those_of_each_head((vulkan, is_slow), reference, what);
        keys_of_latents_are_stored_once_and_seen_as_values((vulkan, is_slow), reference, what);
        the_best_of_rows_are_selected_in_their_order((vulkan, is_slow), reference, what);
        rows_go_to_their_experts_and_back(vulkan, reference, what);
        experts_that_come_together_are_as_one_after_another((vulkan, is_slow), reference, what);
        rows_change_states_and_leave_them((vulkan, is_slow), reference, what);
    });
}

fn products_and_rows_of_tables_in_every_packing((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    let shapes = || SHAPES.into_iter().flatten();
    let cases = packings().into_iter().flat_map(|how| shapes().map(move |shape| (how, shape)));
    for (how, (count, out_features, in_features)) in part_for(is_slow, cases, 17) {
        let what = format!("{what}: {how:?}, {count} x {out_features} x {in_features}");
        let shape = MatrixShape { out_features, in_features };
        let mut dice = Dice::new(SEED);
        let (x, bias) = (rows(&mut dice, count, in_features, 1e-35), dice.normals(out_features));
        let before = dice.normals(count * 2 * out_features);
        let found = products(vulkan, shape, how, (count, &x, &bias, &before));
        let expected = products(reference, shape, how, (count, &x, &bias, &before));
        for (way, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let other = found.iter().zip(expected).filter(|(a, b)| a != b).count();
            assert_eq!(other, 0, "{what}, way {way} of {}", expected.len());
        }
    }
}

/// A product in every way that it may end, and rows of the matrix as of a table.
fn products<B: Backend>(
    backend: &B,
    shape: MatrixShape,
    how: Packed,
    (count, x, bias, before): (usize, &[f32], &[f32], &[f32]),
) -> Vec<Vec<u32>> {
    let MatrixShape { out_features: n, in_features: k } = shape;
    let (w, x, bias) = (pack(backend, shape, how), put(backend, x, k), backend.vector(bias).unwrap());
    let mut all = Vec::new();
    let mut out = put(backend, before, 2 * n);
    backend.linear(&x, count, &w, None, Out::Store(&mut out));
    all.push(get(backend, &out, count, n));
    backend.linear(&x, count, &w, Some(&bias), Out::Add(&mut out));
    all.push(get(backend, &out, count, n));
    let mut wide = put(backend, before, 2 * n);
    backend.linear(&x, count, &w, Some(&bias), Out::StoreAt { out: &mut wide, at: n / 2, width: 2 * n });
    all.push(get(backend, &wide, count, 2 * n));
    if n.is_multiple_of(2) {
        backend.linear(&x, count, &w, Some(&bias), Out::Gated(Activation::Silu, &mut out));
        all.push(get(backend, &out, count, n / 2));
    }
    let tokens: Vec<u32> = (0..n as u32).rev().step_by(3).collect();
    let mut rows = backend.rows(tokens.len(), k).unwrap();
    let step = backend.begin(StepArrays { token_ids: &tokens, ..StepArrays::default() });
    backend.embed(&step, &w, &mut rows);
    all.push(get(backend, &rows, tokens.len(), k));
    all
}

/// Weights are loaded once for four rows, or for 128 from 64 on: 96 columns of 128 inputs, and their ratios.
fn weights_are_loaded_once_for_rows_that_go_together(vulkan: &Vulkan, what: &str) {
    for (how, bytes) in [(Packed::Int8, 96 * 128 + 3 * 64), (Packed::Int4, 96 * 68)] {
        let w = pack(vulkan, MatrixShape { out_features: 70, in_features: 65 }, how);
        let [x, mut out] = [65, 70].map(|width| vulkan.rows(140, width).unwrap());
        for (count, loads) in [(1, 1), (4, 1), (5, 2), (63, 16), (64, 1), (128, 1), (129, 2)] {
            let before = vulkan.counts().weight_bytes;
            vulkan.linear(&x, count, &w, None, Out::Store(&mut out));
            assert_eq!(vulkan.counts().weight_bytes - before, loads * bytes, "{what}: {count} rows of {how:?}");
        }
    }
}

fn what_is_done_row_by_row_and_number_by_number((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    for width in part_for(is_slow, [1, 260, 15, 16, 7201, 100, 17], 2) {
        let (found, expected) = (by_rows(vulkan, width), by_rows(reference, width));
        assert_eq!(found.len(), expected.len());
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            let other = found.iter().zip(expected).enumerate().find(|(_, (a, b))| a != b);
            let other =
                other.map(|(at, (a, b))| format!("{:e} for {:e} at {at}", f32::from_bits(*a), f32::from_bits(*b)));
            assert_eq!(other, None, "{what}: {name}, {width} wide");
        }
    }
}

const ACTIVATIONS: [Activation; 7] = [
    Activation::Silu,
    Activation::ScaledSilu { inner: 0.7, outer: 1.3 },
    Activation::GeluTanh,
    Activation::Gelu,
    Activation::ReluSquared,
    Activation::Xielu { positive: 0.8, negative: 0.9, beta: 0.5, eps: -1e-6 },
    Activation::Clamped { limit: 2.0 },
];

fn by_rows<B: Backend>(backend: &B, width: usize) -> Vec<(String, Vec<u32>)> {
    const ROWS: usize = 16;
    let (mut dice, extent) = (Dice::new(SEED), Extent { rows: ROWS, width });
    let numbers = rows(&mut dice, 2 * ROWS, width, 1e-15);
    let (x, y) = numbers.split_at(ROWS * width);
    let (weight, bias) = (dice.normals(width), dice.normals(width));
    let (weight, bias) = (backend.vector(&weight).unwrap(), backend.vector(&bias).unwrap());
    let other = put(backend, y, width);
    let mut all = Vec::new();
    let mut record = |name: String, rows: &B::Rows, count: usize| all.push((name, get(backend, rows, count, width)));
    let source = put(backend, x, width);
    let mut out = put(backend, y, width);
    backend.rms_norm(&source, 3..11, &weight, 1e-5, &mut out);
    record("rms_norm".into(), &out, ROWS);
    for bias in [None, Some(&bias)] {
        backend.layer_norm(&source, 1..9, Norm { weight: &weight, bias, eps: 1e-5 }, &mut out);
        record("layer_norm".into(), &out, 8);
    }
    // A product finds its rows normed, whether it is of all of them, of some or of others.
    for (class, of_others, count) in [(Int8, false, ROWS), (Bf16, false, ROWS), (Int8, true, ROWS), (Bf16, false, 3)] {
        let w = pack(backend, MatrixShape { out_features: 1, in_features: width }, Packed::Floats(class));
        let (mut normed, mut product) = (put(backend, y, width), put(backend, y, width));
        backend.rms_norm(&source, 0..ROWS, &weight, 1e-5, &mut normed);
        let to = Out::StoreAt { out: &mut product, at: width - 1, width };
        backend.linear(if of_others { &other } else { &normed }, count, &w, None, to);
        record(format!("{class:?} of {count} normed rows"), &product, ROWS);
        record("rms_norm before it".into(), &normed, ROWS);
    }
    let gate_up = put(backend, &numbers, 2 * width);
    for activation in ACTIVATIONS.into_iter().filter(|_| width < 1000) {
        let mut x = put(backend, x, width);
        backend.activate(activation, &mut x, extent);
        record(format!("{activation:?}"), &x, ROWS);
        backend.gate(activation, &gate_up, extent, &mut x);
        record(format!("gate of {activation:?}"), &x, ROWS);
    }
    let mut changed = |name: &str, change: &dyn Fn(&mut B::Rows)| {
        let mut x = put(backend, x, width);
        change(&mut x);
        record(name.to_owned(), &x, ROWS);
    };
    changed("scale", &|x| backend.scale(0.37, x, extent));
    changed("add_scaled", &|x| backend.add_scaled(&other, 0.37, x, extent));
    changed("softcap", &|x| backend.softcap(3.5, x, extent));
    changed("clear", &|x| backend.clear(x, Extent { rows: ROWS / 2, width }));
    changed("add_gated", &|x| backend.add_gated(&other, &source, x, extent));
    changed("multiply", &|x| backend.multiply(x, Extent { rows: ROWS / 2, width }, (&gate_up, 2 * width, width)));
    // What is no number has no order.
    let finite: Vec<f32> = x.iter().map(|&x| if x.is_finite() { x } else { 0.25 }).collect();
    let mut clamped = put(backend, &finite, width);
    backend.clamp(1.5, &mut clamped, extent);
    record("clamp".into(), &clamped, ROWS);
    all
}

fn adapters_are_added_to_their_rows_alone((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    for (in_features, rank, out_features) in part_for(is_slow, [(130, 40, 48), (33, 1, 20), (64, 8, 70)], 1) {
        let shape = LowRankShape { in_features, rank, out_features };
        let (found, expected) = (adapted(vulkan, shape), adapted(reference, shape));
        assert!(found == expected, "{what}: {shape:?}");
    }
}

fn adapted<B: Backend>(backend: &B, shape: LowRankShape) -> Vec<u32> {
    const ROWS: usize = 12;
    let LowRankShape { in_features, rank, out_features } = shape;
    let pack = |seed: u64| {
        let of = |at: usize| Dice::new(seed + at as u64);
        // Some outputs read nothing, others a part.
        let reads = |output: usize| [0..rank, 0..0, rank / 2..rank][output / 16 % 3].clone();
        let source = LowRankSource {
            a: &|inner, to: &mut [f32]| to.copy_from_slice(&of(inner).normals(to.len())),
            reads: &reads,
            b: &|output, to: &mut [f32]| to.copy_from_slice(&of(1000 + output).normals(to.len())),
        };
        backend.pack_low_rank(shape, source).unwrap()
    };
    let (first, second) = (pack(1), pack(2));
    let mut dice = Dice::new(SEED);
    let x = put(backend, &rows(&mut dice, ROWS, in_features, 1e-35), in_features);
    let mut out = put(backend, &dice.normals(ROWS * out_features), out_features);
    let listed = [0, 3, 4, 9, 1, 7, 11];
    let step = backend.begin(StepArrays { listed: &listed, ..StepArrays::default() });
    backend.add_low_rank(&step, &x, [(&first, 0..4), (&second, 4..7)].into_iter(), &mut out);
    get(backend, &out, ROWS, out_features)
}

/// Spans, by first row, rows and start: of sequences of their own, across a split, several in a workgroup, many splits.
const SPANS: [&[[usize; 3]]; 5] =
    [&[[0, 1, 255], [1, 1, 519]], &[[0, 14, 250]], &[[0, 3, 0], [3, 7, 509]], &[[0, 2, 1023]], &[[0, 1, 8500]]];

/// Query heads, those of the cache, and their width.
const HEADS: [[usize; 3]; 9] =
    [[2, 2, 16], [4, 1, 64], [8, 1, 32], [9, 1, 80], [6, 2, 256], [12, 2, 48], [3, 1, 272], [5, 1, 576], [6, 6, 128]];

fn attention_folds_the_splits_of_each_row((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    // The longest context takes a slow device as long as all others.
    for at in part_for(is_slow, 0..72, 19).chain((!is_slow).then_some(72)) {
        assert!(attended(vulkan, at) == attended(reference, at), "{what}: attention, row {at} of the table");
    }
}

/// Blocks of each of some spans: of all together each once, the last one first.
fn tables(spans: &[[usize; 3]], block_size: usize) -> Vec<Vec<u32>> {
    let count = |[_, num_rows, start]: &[usize; 3]| (start + num_rows).div_ceil(block_size);
    let mut ids = (0..spans.iter().map(count).sum::<usize>() as u32).rev();
    spans.iter().map(|span| ids.by_ref().take(count(span)).collect()).collect()
}

/// How many rows they have, and the spans with their blocks.
fn spans_of<'a>(spans: &[[usize; 3]], tables: &'a [Vec<u32>]) -> (usize, Vec<AttentionSpan<'a>>) {
    let of = |(&[first_row, num_rows, start], blocks): (&[usize; 3], &'a Vec<u32>)| AttentionSpan {
        first_row,
        num_rows,
        start,
        blocks,
    };
    (spans.iter().map(|[_, num_rows, _]| num_rows).sum(), spans.iter().zip(tables).map(of).collect())
}

/// Twice, as what a call leaves is not the next one's.
fn attended<B: Backend>(backend: &B, at: usize) -> [Vec<u32>; 2] {
    let (dtype, [num_heads, num_kv_heads, head_dim], spans) = (KvDtype::ALL[at % 2], HEADS[at / 2 % 9], SPANS[at / 18]);
    let layout = HeadLayout { num_heads, num_kv_heads, head_dim, gates: 0, queries_only: false, latent: None };
    let (mut dice, block_size, width) = (Dice::new(at as u64), 32 * (1 + at % 3), layout.qkv_width());
    let window = [None, None, Some(1), Some(33), Some(256), Some(300)][dice.roll(6)].filter(|_| at < 72);
    let (chunked, both_ways) = (window.is_some() && dice.roll(3) == 0, dice.roll(3) == 0);
    let softcap = [None, Some(2.0)][dice.roll(2)];
    let rule = AttentionRule { window, chunked, both_ways, softcap, ..AttentionRule::of_width(head_dim) };
    let sinks = (dice.roll(2) == 0).then(|| backend.vector(&dice.normals(num_heads)).unwrap());
    let tables = tables(spans, block_size);
    let blocks = tables.concat().len();
    let shape = KvShape { dtype, layers: 1, blocks, block_size, num_kv_heads, head_dim, latent: None };
    let (mut kv, slots) = (backend.kv_cache(shape).unwrap(), blocks * block_size);
    let mut numbers = dice.normals(slots * width);
    // Rows that see the first token of the last block, which is the first one's, are no numbers.
    numbers[((blocks - 1) * block_size + 1) * width - 1] = if at.is_multiple_of(5) { f32::NAN } else { 1.0 };
    let slots: Vec<u32> = (0..slots as u32).collect();
    // Of the longest each 17th, which are some in each split: software devices take long for each row that is stored.
    let every = if at < 72 { 1 } else { 17 };
    let stored: Vec<u32> = slots.iter().copied().step_by(every).collect();
    let numbers: Vec<f32> = numbers.chunks_exact(width).step_by(every).flatten().copied().collect();
    let step = backend.begin(StepArrays { positions: &stored, slots: &stored, ..StepArrays::default() });
    let rotation = Rotation { layout, head_norms: HeadNorms::None, rope: None, layer: 0 };
    backend.rotate_and_store(&step, rotation, &mut put(backend, &numbers, width), &mut kv);
    let (count, spans) = spans_of(spans, &tables);
    let step = backend.begin(StepArrays { positions: &slots[..count], spans: &spans, ..StepArrays::default() });
    let queries = put(backend, &rows(&mut dice, count, width, 1e-15), width);
    let how = AttentionLayer { layout, rule, sinks: sinks.as_ref(), layer: 0 };
    [(); 2].map(|()| {
        let mut out = backend.rows(count, layout.out_width()).unwrap();
        backend.attend(&step, how, &queries, &kv, &mut out);
        get(backend, &out, count, layout.out_width())
    })
}

/// Numbers beside those of a head stay, and one head's largest is not another's.
fn products_by_head_are_those_of_each_head((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    let cases = packings().into_iter().flat_map(|how| [(1, 3), (9, 16), (70, 2)].map(|case| (how, case)));
    for (how, case) in part_for(is_slow, cases, 13) {
        assert!(by_head(vulkan, how, case) == by_head(reference, how, case), "{what}: {how:?}, {case:?}");
    }
}

fn by_head<B: Backend>(backend: &B, how: Packed, (count, heads): (usize, usize)) -> [Vec<u32>; 3] {
    let shape = MatrixShape { out_features: 34, in_features: 70 };
    let (from, to) = ((90, 5 + heads * 90), (40, heads * 40));
    let [from, to] = [from, to].map(|(stride, width)| HeadColumns { width, stride });
    let matrices: Vec<_> = (0..heads)
        .map(|head| match how {
            Packed::Shifted(class) if head % 3 == 1 => pack(backend, shape, Packed::Floats(class)),
            how => pack_from(backend, shape, how, SEED + 1000 * head as u64),
        })
        .collect();
    let mut dice = Dice::new(SEED);
    let (x, before) = (rows(&mut dice, count, from.width, 1e-35), dice.normals(count * to.width));
    let x = put(backend, &x, from.width);
    // All heads, twice, as where they are is kept; then others, which begin with the same one.
    [&matrices[..], &matrices, &matrices[..heads - 1]].map(|matrices| {
        let mut out = put(backend, &before, to.width);
        backend.linear_by_head((&x, from), count, matrices, (&mut out, to));
        get(backend, &out, count, to.width)
    })
}

/// What a device does for a head, it does for all, where rows are few: a product would not pay for its dispatch.
fn all_heads_of_few_rows_are_as_many_operations_as_one(vulkan: &Vulkan, what: &str) {
    let (shape, columns) = (MatrixShape { out_features: 34, in_features: 34 }, HeadColumns { width: 680, stride: 34 });
    let matrices: Vec<_> = (0..20).map(|_| pack(vulkan, shape, Packed::Floats(Int8))).collect();
    let [x, mut out] = [(); 2].map(|()| vulkan.rows(63, columns.width).unwrap());
    let mut made = |count: usize| {
        let before = vulkan.counts().operations;
        vulkan.linear_by_head((&x, columns), count, &matrices, (&mut out, columns));
        vulkan.counts().operations - before
    };
    // The first time the device is told where the matrices are.
    made(1);
    assert_eq!([made(1), made(63)], [3; 2], "{what}");
}

/// Heads, the width of a latent, and what is plain and what turns of a query. DeepSeek's; values for which a workgroup
/// has fewer queries; values that are less than is rotated together.
const LATENTS: [[usize; 4]; 6] =
    [[18, 512, 12, 64], [2, 560, 7, 16], [3, 16, 0, 16], [5, 96, 20, 16], [8, 256, 16, 32], [1, 272, 16, 16]];

fn keys_of_latents_are_stored_once_and_seen_as_values(
    (vulkan, is_slow): (&Vulkan, bool),
    reference: &Reference,
    what: &str,
) {
    for at in part_for(is_slow, 0..48, 13) {
        let (found, expected) = (latents(vulkan, at), latents(reference, at));
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            assert!(found == expected, "{what}: {name} of latents, row {at} of the table");
        }
    }
}

/// Queries, blocks and what attention makes of them.
fn latents<B: Backend>(backend: &B, at: usize) -> [(&'static str, Vec<u32>); 3] {
    let ([num_heads, rank, plain, turning], spans) = (LATENTS[at / 2 % 6], SPANS[at / 12]);
    let shape = LatentShape { num_heads, rank, plain, turning, value: 16 };
    let (dtype, layout, block_size) = (KvDtype::ALL[at % 2], shape.layout(), 32 * (1 + at % 3));
    let HeadLayout { head_dim, latent, .. } = layout;
    let mut dice = Dice::new(at as u64);
    let tables = tables(spans, block_size);
    let blocks = tables.concat().len();
    let of_cache = KvShape { dtype, layers: 2, blocks, block_size, num_kv_heads: 1, head_dim, latent };
    let mut kv = backend.kv_cache(of_cache).unwrap();
    // Of each fifth token, as software devices take long.
    let slots: Vec<u32> = (0..(blocks * block_size) as u32).filter(|slot| slot % 5 == at as u32 % 5).collect();
    let (count, queries_of, turns) = (slots.len(), shape.query_width(), dice.roll(3) > 0);
    let rope = RopeTable::new(turning, 1e4, &RopeScaling::None, blocks * block_size).unwrap();
    let growth = QueryGrowth { beta: 0.5, original_max_position: 100, first: 0 };
    let rope = if dice.roll(2) == 0 { rope } else { rope.with_growth(growth).unwrap() };
    let rope = rope.try_map(|numbers| backend.vector(numbers)).unwrap();
    let norm = backend.vector(&dice.normals(rank)).unwrap();
    let how = Latents { shape, norm: &norm, eps: 1e-6, rope: turns.then_some(&rope), layer: 1 };
    let mut keys = rows(&mut dice, count, head_dim, 1e-15);
    // One token has what is no number, in its value or in the rest of its key.
    for (row, key) in keys.chunks_exact_mut(head_dim).enumerate() {
        key.iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = 0.25);
        if row == at % 4 * 7 && row < count / 2 {
            key[[0, rank][at / 4 % 2]] = f32::NAN;
        }
    }
    let step = backend.begin(StepArrays { positions: &slots, slots: &slots, ..StepArrays::default() });
    let queries = put(backend, &rows(&mut dice, count, queries_of, 1e-15), queries_of);
    let mut absorbed = put(backend, &rows(&mut dice, count, layout.q_width(), 1e-15), layout.q_width());
    let mut keys = put(backend, &keys, head_dim);
    backend.store_latents(&step, how, &queries, (&mut keys, &mut absorbed), &mut kv);
    let completed = get(backend, &absorbed, count, layout.q_width());
    let bytes = backend.block_bytes(&kv);
    let mut saved = backend.host_buffer(vec![0; blocks * bytes]);
    (0..blocks).for_each(|block| backend.save_block(&kv, block as u32, &mut saved, block * bytes));
    backend.submit().unwrap();
    let words = saved.bytes().unwrap().as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let (count, spans) = spans_of(spans, &tables);
    let step = backend.begin(StepArrays { positions: &slots[..count], spans: &spans, ..StepArrays::default() });
    let queries = put(backend, &rows(&mut dice, count, layout.q_width(), 1e-15), layout.q_width());
    let window = [None, Some(300)][dice.roll(2)];
    let rule = AttentionRule { window, ..AttentionRule::of_width(head_dim) };
    let mut out = backend.rows(count, layout.out_width()).unwrap();
    backend.attend(&step, AttentionLayer { layout, rule, sinks: None, layer: 1 }, &queries, &kv, &mut out);
    [("queries", completed), ("blocks", words), ("attention", get(backend, &out, count, layout.out_width()))]
}

/// Rows of one part and of several, of which each wants as many as it likes; nothing else goes to the host.
fn the_best_of_rows_are_selected_in_their_order((vulkan, is_slow): (&Vulkan, bool), reference: &Reference, what: &str) {
    for width in part_for(is_slow, [1, 2, 63, 152_064, 12_345, 4096, 4097], 3) {
        for wanted in [&[1, 0, 1][..], &[2, 40], &[64, 1, 0, 128], &[1024, 5000]] {
            let counts: Vec<u32> = wanted.iter().cycle().take(8).map(|&count| count.min(width as u32)).collect();
            let numbers: Vec<f32> = (0..counts.len()).flat_map(|nature| logits(nature, width)).collect();
            let before = vulkan.counts();
            let found = best_of(vulkan, &numbers, width, &counts);
            assert!(found == best_of(reference, &numbers, width, &counts), "{what}: {wanted:?} of {width}");
            let read = vulkan.counts().read_bytes - before.read_bytes;
            assert_eq!(read, counts.iter().map(|&count| 8 * u64::from(count)).sum::<u64>(), "{what}: bytes");
        }
    }
}

/// Among them equal ones, zeros of both signs, denormals, infinity and what is no number.
fn logits(nature: usize, width: usize) -> Vec<f32> {
    let mut dice = Dice::new(SEED + nature as u64);
    let mut all = dice.normals(width);
    match nature {
        1 => all.iter_mut().for_each(|x| *x = x.round()),
        2 => all.iter_mut().for_each(|x| *x = 0f32.copysign(*x)),
        3 => all.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0x8000_0003)),
        4 => all.iter_mut().for_each(|x| *x = if *x < 2.0 { f32::NEG_INFINITY } else { *x }),
        5 => all[width / 2] = f32::INFINITY,
        6 => all[width - 1] = -f32::NAN,
        _ => {}
    }
    all
}

/// Bits and ids.
fn best_of<B: Backend>(backend: &B, numbers: &[f32], width: usize, counts: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let (rows, most) = (put(backend, numbers, width), counts.iter().max().map_or(0, |&most| most as usize));
    let mut best = backend.best(counts.len(), most).unwrap();
    backend.find_best(&rows, width, counts, &mut best);
    let read = |(row, count): (usize, &u32)| {
        let mut found = Vec::new();
        if *count > 0 {
            backend.read_best(&best, &rows, row, &mut found).unwrap();
        }
        found.iter().map(|(logit, id)| (if logit.is_nan() { 0 } else { logit.to_bits() }, *id)).collect()
    };
    counts.iter().enumerate().map(read).collect()
}

/// By each way that experts' rows are taken and added: as they are, by shares and a bias, and times a factor.
fn rows_go_to_their_experts_and_back(vulkan: &Vulkan, reference: &Reference, what: &str) {
    for (scores, has_bias) in [(Scores::Softmax, false), (Scores::Softmax, true), (Scores::OfInputs, false)] {
        let rule = RoutingRule { top_k: 3, over_chosen: true, scores };
        for width in [1, 64, 65] {
            let found = routed(vulkan, rule, has_bias, width);
            assert!(found == routed(reference, rule, has_bias, width), "{what}: {scores:?}, {width} wide");
        }
    }
}

fn routed<B: Backend>(backend: &B, rule: RoutingRule, has_bias: bool, width: usize) -> Vec<Vec<u32>> {
    const EXPERTS: usize = 5;
    const ROWS: usize = 11;
    let mut dice = Dice::new(SEED);
    let (logits, bias) = (put(backend, &dice.normals(ROWS * EXPERTS), EXPERTS), dice.normals(EXPERTS));
    let bias = has_bias.then(|| backend.vector(&bias).unwrap());
    let from = put(backend, &rows(&mut dice, ROWS, width, 1e-15), width);
    let (mut out, mut to) = (backend.rows(ROWS, width).unwrap(), put(backend, &dice.normals(ROWS * width), width));
    let mut routes = backend.routes(ROWS, EXPERTS, rule).unwrap();
    let mut all = Vec::new();
    // Fewer rows go other ways.
    for count in [ROWS, 2] {
        backend.route(&logits, bias.as_ref(), count, &mut routes);
        for expert in 0..EXPERTS {
            let rows = backend.num_routed(&routes, expert);
            backend.gather_routed(&routes, expert, &from, width, &mut out);
            backend.scatter_routed(&routes, expert, &out, width, &mut to);
            all.push([vec![rows as u32], get(backend, &out, rows, width)].concat());
        }
        all.push(get(backend, &to, ROWS, width));
    }
    all
}

/// In each packing, some of their inputs shifted; with and without gates, biases, and factors before and behind them;
/// twice; by each rule. Many rows, and experts that are not alike, go one after another.
fn experts_that_come_together_are_as_one_after_another(
    (vulkan, is_slow): (&Vulkan, bool),
    reference: &Reference,
    what: &str,
) {
    let cases = packings().into_iter().flat_map(|how| [(1, false), (37, true), (9, false)].map(|case| (how, case)));
    let cases = part_for(is_slow, cases, 26).map(|(how, (count, is_full))| (how, count, is_full, Scores::OfInputs, 5));
    let sigmoid = |groups, kept_groups| Scores::Sigmoid { groups, kept_groups, sum_eps: 1e-3, factor: 2.5 };
    let grouped = Scores::GroupedSoftmax { groups: 5, kept_groups: 3, factor: 0.7 };
    let rules = [Scores::Softmax, sigmoid(1, 1), sigmoid(5, 4), grouped, Scores::Sparse { tolerance: 0.2 }];
    let few = rules.into_iter().flat_map(|scores| {
        [(1, true), (5, false)].map(|(count, is_full)| (Packed::Floats(Bf16), count, is_full, scores, 290))
    });
    for (how, count, is_full, scores, experts) in cases.chain(part_for(is_slow, few, 3)) {
        let [(together, found), (_, expected)] = [
            mixed(vulkan, [how; 2], (count, is_full), scores, experts),
            mixed(reference, [how; 2], (count, is_full), scores, experts),
        ];
        assert!(together && found == expected, "{what}: {count} rows of {how:?}, {is_full}, {scores:?}");
    }
    let apart = [([Packed::Int8; 2], 64), ([Packed::Int8, Packed::Int4], 3)];
    for (how, count) in apart.into_iter().filter(|_| !is_slow) {
        assert!(!mixed(vulkan, how, (count, false), Scores::Softmax, 5).0, "{what}: {count} rows of {how:?}");
    }
}

/// Whether experts of two packings in turn came together, and what they made of rows.
fn mixed<B: Backend>(
    backend: &B,
    hows: [Packed; 2],
    (count, is_full): (usize, bool),
    scores: Scores,
    num_experts: usize,
) -> (bool, Vec<u32>) {
    let (mut dice, width, mid) = (Dice::new(SEED), 260, 70);
    let rule = RoutingRule { top_k: 3, over_chosen: is_full, scores };
    let mut routes = backend.routes(count, num_experts, rule).unwrap();
    let logits = put(backend, &rows(&mut dice, count, num_experts, 1e-15), num_experts);
    let choice_bias = backend.vector(&dice.normals(num_experts)).unwrap();
    let has_bias = is_full && matches!(scores, Scores::Softmax | Scores::Sigmoid { .. });
    let choice_bias = has_bias.then_some(&choice_bias);
    let from = put(backend, &rows(&mut dice, count, width, 1e-15), width);
    let mut to = put(backend, &dice.normals(count * width), width);
    let shapes = [(if is_full { 2 * mid } else { mid }, width), (width, mid)];
    let shapes = shapes.map(|(out_features, in_features)| MatrixShape { out_features, in_features });
    let experts: [_; 5] = std::array::from_fn(|index| {
        let how = match hows[index % 2] {
            Packed::Shifted(class) if index % 3 == 1 => Packed::Floats(class),
            how => how,
        };
        shapes.map(|shape| {
            let bias = is_full.then(|| backend.vector(&dice.normals(shape.out_features)).unwrap());
            (pack_from(backend, shape, how, SEED + 1000 * index as u64), bias)
        })
    });
    let activation = Activation::Silu;
    let expert = |index: usize| RoutedMlp {
        products: experts[index % 5].each_ref().map(|(w, bias)| (w, bias.as_ref())),
        activation,
        is_gated: is_full,
        factor: is_full.then_some(0.5 + index as f32),
    };
    let [mut x, mut y, mut middle] = [width, width, mid].map(|width| backend.rows(count, width).unwrap());
    let mut together = false;
    for _ in 0..2 {
        together = backend.add_routed((&logits, choice_bias, count), &mut routes, expert, &from, &mut to);
        if !together {
            backend.route(&logits, choice_bias, count, &mut routes);
        }
        for index in (0..num_experts).filter(|_| !together) {
            let RoutedMlp { products: [(up, up_bias), (down, bias)], factor, .. } = expert(index);
            let rows = backend.num_routed(&routes, index);
            backend.gather_routed(&routes, index, &from, width, &mut x);
            if is_full {
                backend.linear(&x, rows, up, up_bias, Out::Gated(activation, &mut middle));
            } else {
                backend.linear(&x, rows, up, up_bias, Out::Store(&mut middle));
                backend.activate(activation, &mut middle, Extent { rows, width: mid });
            }
            backend.linear(&middle, rows, down, bias, Out::Store(&mut y));
            factor.into_iter().for_each(|by| backend.scale(by, &mut y, Extent { rows, width }));
            backend.scatter_routed(&routes, index, &y, width, &mut to);
        }
    }
    (together, get(backend, &to, count, width))
}

/// Drivers give some thousand pieces of memory, and a mixture has more matrices. What some gave back others get, and
/// none that of another.
#[test]
fn matrices_share_memory() {
    let vulkan = open(AccumulationOrder::Amx, VulkanOptions { index: devices() - 1, ..VulkanOptions::default() });
    let reference = Reference::of(AccumulationOrder::Amx);
    let shape = |nth: usize| MatrixShape { out_features: 3, in_features: 64 + nth * 37 % 1000 };
    let how = |nth: usize| Packed::Floats([Bf16, Int8, Int4][nth % 3]);
    let make = |nth: usize| pack(&vulkan, shape(nth), how(nth));
    let made = || vulkan.counts().made;
    let mut all: Vec<_> = (0..300).map(|nth| (nth, make(nth))).collect();
    let (before, mut new) = (made(), 300..usize::MAX);
    for round in 2..5 {
        all.retain(|(nth, _)| nth % round != 0);
        all.extend(new.by_ref().take(300 - all.len()).map(|nth| (nth, make(nth))));
    }
    assert_eq!(made() - before, (new.start - 300) as u64, "a buffer each, and no memory");
    for (nth, matrix) in &all {
        let expected = last_row(&reference, &pack(&reference, shape(*nth), how(*nth)));
        assert!(last_row(&vulkan, matrix) == expected, "matrix {nth}");
    }
}

/// A card that is almost full may have no room for a piece that many share.
#[test]
fn a_small_buffer_comes_alone_where_no_piece_has_room() {
    let faults = Some(Faults::default());
    let way = VulkanOptions { index: devices() - 1, faults, ..VulkanOptions::default() };
    let vulkan = open(AccumulationOrder::Amx, way);
    vulkan.fail("vkAllocateMemory", 0);
    let rows: Vec<_> =
        (0..10).map(|nth| vulkan.rows(1, (2 << 20) + nth).expect("there is room for it alone")).collect();
    assert_eq!(get(&vulkan, &rows[9], 1, 64), vec![0; 64]);
}

fn last_row<B: Backend>(backend: &B, matrix: &B::Matrix) -> Vec<u32> {
    let MatrixShape { out_features, in_features } = backend.shape(matrix);
    let mut row = backend.rows(1, in_features).unwrap();
    let last = [out_features as u32 - 1];
    let step = backend.begin(StepArrays { token_ids: &last, ..StepArrays::default() });
    backend.embed(&step, matrix, &mut row);
    get(backend, &row, 1, in_features)
}

/// Calls `each` with every instruction of a module: its opcode, and all its words.
fn change(words: &mut [u32], mut each: impl FnMut(u16, &mut [u32])) {
    let mut at = 5;
    while at < words.len() {
        let (opcode, count) = (words[at] as u16, (words[at] >> 16) as usize);
        each(opcode, &mut words[at..at + count]);
        at += count;
    }
}

// Of the specification of SPIR-V 1.6.
const DECORATE: u16 = 71;
const BINDING: u32 = 33;
const BARRIER: u16 = 224;
const ATOMIC_ADD: u16 = 234;
const ADD: u16 = 129;
const INTEGER_PRODUCT: u16 = 132;
const MATRIX_TYPE: u16 = 4456;
const NOP: u32 = 1 << 16;

/// Scales of rows for those of columns.
fn swap_scales(name: &str, words: &mut [u32]) {
    change(words, |opcode, it| {
        if name == "few_int8" && opcode == DECORATE && it[2] == BINDING && [4, 6].contains(&it[3]) {
            it[3] = 10 - it[3];
        }
    });
}

/// One of the barriers of what the invocations of a kernel do together.
fn forget_barrier(nth: u32, words: &mut [u32]) {
    let mut barriers = 0;
    change(words, |opcode, it| {
        barriers += u32::from(opcode == BARRIER);
        if opcode == BARRIER && barriers == nth {
            it.fill(NOP);
        }
    });
}

/// Tickets that count down: none is the last.
fn forget_ticket(name: &str, words: &mut [u32]) {
    change(words, |opcode, it| it[0] += u32::from(name == "attend_bf16" && opcode == ATOMIC_ADD));
}

/// Sums that are differences.
fn subtract(name: &str, words: &mut [u32]) {
    change(words, |opcode, it| it[0] += 2 * u32::from(name == "probe" && opcode == ADD));
}

/// Sums of matrices that are not multiplied by what belongs to their columns.
fn forget_factors(name: &str, words: &mut [u32]) {
    let mut types = Vec::new();
    change(words, |opcode, it| match opcode {
        MATRIX_TYPE => types.push(it[1]),
        INTEGER_PRODUCT if name == "probe_matrices" && types.contains(&it[1]) => it[0] -= 4,
        _ => {}
    });
}

fn faulty(kernel: fn(&str, &mut [u32])) -> VulkanOptions {
    let faults = Some(Faults { kernel: Some(kernel), ..Faults::default() });
    VulkanOptions { index: devices() - 1, faults, ..VulkanOptions::default() }
}

#[test]
fn a_kernel_with_a_fault_is_seen() {
    let (order, how) = (AccumulationOrder::Amx, Packed::Floats(Int8));
    let shape = MatrixShape { out_features: 33, in_features: 1200 };
    let is_right = |fault| {
        let vulkan = open(order, faulty(fault));
        [40, 70].map(|count| {
            let mut dice = Dice::new(SEED);
            let (x, bias) = (rows(&mut dice, count, shape.in_features, 1e-35), dice.normals(shape.out_features));
            let given = (count, &x[..], &bias[..], &dice.normals(count * 66)[..]);
            products(&vulkan, shape, how, given) == products(&Reference::of(order), shape, how, given)
        })
    };
    assert_eq!(is_right(|_, _| ()), [true; 2]);
    assert_eq!(is_right(swap_scales), [false, true], "swapped scales of few rows");
    // The first behind those of a norm and of histograms.
    let of_digits = |name: &str, words: &mut [u32]| {
        if name == "convert" {
            forget_barrier(20, words)
        }
    };
    assert_eq!(is_right(of_digits), [false; 2], "a barrier");
    let of_products = |name: &str, words: &mut [u32]| {
        if name.ends_with("_int8") {
            forget_barrier(1, words)
        }
    };
    assert_eq!(is_right(of_products), [false; 2], "barriers");
    assert!(attended(&open(order, faulty(forget_ticket)), 18) != attended(&Reference::of(order), 18), "a ticket");
    // Nothing is wrong without matrices of bytes, which not every device has.
    let uses_matrices = |fault| open(order, faulty(fault)).describe().contains("matrices of");
    println!("matrices of bytes: {}", uses_matrices(|_, _| ()));
    assert!(!uses_matrices(forget_factors), "other matrices are not used");
    assert_eq!(is_right(forget_factors), [true; 2], "without matrices");
    // Before any model is loaded.
    let refused = Vulkan::open(host(order), faulty(subtract)).err().expect("it is refused").to_string();
    assert!(refused.contains(" cannot be used: x + y of ") && refused.contains(" is right"), "{refused}");
}
