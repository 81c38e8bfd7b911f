//! Attention, as a page of its specification: one set of bits for every path, chunk, placement and neighbour.

use kernels::attention::attend;
use kernels::kv_cache::KvPlace;
use kernels::threads::{NodeChoice, Pool, max_threads};
use kernels::{AccumulationOrder, Attention, AttentionRule, AttentionSpan, HeadLayout, Isa, KvCache, KvDtype, KvShape};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use testing::Dice;

/// Roughly normal, exact in f32.
fn numbers(random: &mut Dice, len: usize) -> Vec<f32> {
    let uniform = |bits: u64| (bits as u16) as f32 / 32768.0 - 1.0;
    let number = |bits: u64| uniform(bits) + uniform(bits >> 16) + uniform(bits >> 32);
    (0..len).map(|_| number(random.bits())).collect()
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    latent: Option<usize>,
    block_size: usize,
    dtype: KvDtype,
    arithmetic: AccumulationOrder,
}

const fn shape(num_heads: usize, num_kv_heads: usize, head_dim: usize, block_size: usize) -> Shape {
    Shape {
        num_heads,
        num_kv_heads,
        head_dim,
        latent: None,
        block_size,
        dtype: KvDtype::Bf16,
        arithmetic: AccumulationOrder::Vdpbf16,
    }
}

/// Heads that share a key, of which a part is their value.
const fn latent(num_heads: usize, head_dim: usize, latent: usize) -> Shape {
    Shape { latent: Some(latent), ..shape(num_heads, 1, head_dim, 32) }
}

const SHAPES: [Shape; 15] = [
    shape(1, 1, 32, 32),
    shape(4, 2, 64, 32),
    shape(14, 2, 64, 64),
    shape(9, 3, 64, 32),
    shape(8, 1, 128, 64),
    shape(3, 3, 96, 32),
    shape(4, 2, 48, 32), // half a step of bf16 is left
    shape(6, 1, 256, 32),
    shape(20, 1, 32, 64), // a group wider than a tile
    shape(5, 1, 80, 32),
    shape(2, 2, 16, 32),  // half a step is all
    shape(4, 1, 512, 32), // Gemma 4's full layers
    latent(18, 576, 512), // DeepSeek's
    latent(3, 32, 16),    // whose values are less than is rotated together
    latent(5, 112, 96),
];

impl Shape {
    /// The shape with each type of cache, that of bf16 in each arithmetic.
    fn each(self) -> [Shape; 3] {
        let [pairs, tiles] = AccumulationOrder::ALL;
        [(KvDtype::Bf16, pairs), (KvDtype::Bf16, tiles), (KvDtype::Int8, tiles)].map(|(dtype, arithmetic)| Shape {
            dtype,
            arithmetic,
            ..self
        })
    }

    fn cache(self, layers: usize, blocks: usize) -> KvShape {
        let Shape { num_kv_heads, head_dim, latent, block_size, dtype, .. } = self;
        KvShape { dtype, layers, blocks, block_size, num_kv_heads, head_dim, latent }
    }
}

/// Contexts around the borders of groups, pages, blocks and splits, each decoding one token.
const DECODES: [(usize, usize); 8] = [(0, 1), (30, 1), (31, 1), (32, 1), (254, 1), (255, 1), (256, 1), (699, 1)];
/// Chunks of prompts: `(start, rows)`.
const CHUNKS: [(usize, usize); 3] = [(0, 40), (250, 20), (31, 3)];

const LAYERS: usize = 2;
const LAYER: usize = 1;

/// A sequence: queries, keys and values of all its tokens, a function of the seed.
#[derive(Clone)]
struct Sequence {
    queries: Vec<Vec<f32>>, // [tokens][num_heads * head_dim]
    keys: Vec<Vec<f32>>,    // [tokens][num_kv_heads * head_dim]
    values: Vec<Vec<f32>>,
}

impl Sequence {
    fn new(shape: Shape, seed: u64, tokens: usize) -> Sequence {
        let mut random = Dice::new(seed);
        let mut rows = |heads: usize| (0..tokens).map(|_| numbers(&mut random, heads * shape.head_dim)).collect();
        Sequence { queries: rows(shape.num_heads), keys: rows(shape.num_kv_heads), values: rows(shape.num_kv_heads) }
    }
}

/// A head spread over itself as the module `spread` says, in f64 and with the length that it had; its own inverse but
/// for the order of signs and sums.
fn spread(head: &[f64], back: bool) -> Vec<f64> {
    let len = 1 << head.len().trailing_zeros();
    let sign = |i: usize| if (i & i >> 1).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
    let of_run = |run: &[f64]| -> Vec<f64> {
        let turned = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -run[j] } else { run[j] };
        let of = |i: usize| -> f64 {
            let sum: f64 = (0..len).map(|j| if back { turned(i, j) } else { sign(j) * turned(i, j) }).sum();
            sum * if back { sign(i) } else { 1.0 } / (len as f64).sqrt()
        };
        (0..len).map(of).collect()
    };
    head.chunks(len).flat_map(of_run).collect()
}

/// A head rounded to int8 with one scale for each `group` of its numbers.
fn rounded(head: &[f64], group: usize) -> Vec<f64> {
    let of_group = |numbers: &[f64]| -> Vec<f64> {
        let scale = numbers.iter().fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs())) / 127.0;
        numbers.iter().map(|x| (x / scale).round_ties_even() * scale).collect()
    };
    head.chunks(group).flat_map(of_group).collect()
}

/// `rows` tokens of a sequence from `start`, in a step.
#[derive(Clone)]
struct Rows<'a> {
    sequence: &'a Sequence,
    start: usize,
    rows: usize,
}

/// A step: the block tables are drawn from a seed, and slots without a stored token hold garbage.
struct Step {
    layout: HeadLayout,
    arithmetic: AccumulationOrder,
    qkv: Vec<f32>,
    tables: Vec<Vec<u32>>,
    spans: Vec<(usize, usize, usize)>, // first row, rows, start
    kv: KvCache,
    sinks: Vec<f32>, // of a rule with sinks: the same for every step of a shape
}

impl Step {
    fn new(shape: Shape, batch: &[Rows<'_>], seed: u64) -> Step {
        let Shape { num_heads, num_kv_heads, head_dim, latent, block_size, .. } = shape;
        let layout = HeadLayout { num_heads, num_kv_heads, head_dim, latent, ..HeadLayout::default() };
        let value_dim = if latent.is_some() { 0 } else { head_dim };
        let mut random = Dice::new(seed);
        let needed = |rows: &Rows<'_>| (rows.start + rows.rows).div_ceil(block_size);
        let blocks = batch.iter().map(needed).sum::<usize>() + 3;
        let mut kv = KvCache::new(shape.cache(LAYERS, blocks)).unwrap();
        for slot in 0..blocks * block_size {
            for kv_head in 0..num_kv_heads {
                let (mut key, mut value) = (numbers(&mut random, head_dim), numbers(&mut random, value_dim));
                key.iter_mut().chain(&mut value).for_each(|x| *x *= [1e4, f32::NAN, f32::INFINITY][seed as usize % 3]);
                kv.store(KvPlace { layer: LAYER, slot, kv_head }, &key, &value);
            }
        }
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let (mut qkv, mut tables, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for rows in batch {
            let table: Vec<u32> = (0..needed(rows)).map(|_| free.swap_remove(random.roll(free.len()))).collect();
            for token in 0..rows.start + rows.rows {
                let slot = table[token / block_size] as usize * block_size + token % block_size;
                for kv_head in 0..num_kv_heads {
                    let head = kv_head * head_dim..(kv_head + 1) * head_dim;
                    let (key, value) = (&rows.sequence.keys[token], &rows.sequence.values[token]);
                    let value = &value[head.start..][..value_dim];
                    kv.store(KvPlace { layer: LAYER, slot, kv_head }, &key[head], value);
                }
            }
            spans.push((qkv.len() / layout.qkv_width(), rows.rows, rows.start));
            for query in &rows.sequence.queries[rows.start..rows.start + rows.rows] {
                qkv.extend_from_slice(query);
                qkv.extend(std::iter::repeat_n(f32::NAN, 2 * num_kv_heads * value_dim)); // must not be read
            }
            tables.push(table);
        }
        // Below the scores, among them, above them.
        let sinks = (0..num_heads).map(|head| [5.0, -5.0, 0.7, 40.0][head % 4]).collect();
        Step { layout, arithmetic: shape.arithmetic, qkv, tables, spans, kv, sinks }
    }

    /// The same step under another rule.
    fn under(&self, rule: AttentionRule) -> Under<'_> {
        Under { step: self, rule, with_sinks: false }
    }

    /// Output rows `[rows][num_heads * head_dim]`, as bits.
    fn attend(&self, isa: Isa, pool: Option<&Pool>) -> Vec<Vec<u32>> {
        self.under(AttentionRule::of_width(self.layout.head_dim)).attend(isa, pool)
    }
}

/// A step under a rule.
#[derive(Clone, Copy)]
struct Under<'a> {
    step: &'a Step,
    rule: AttentionRule,
    with_sinks: bool,
}

impl Under<'_> {
    /// Output rows `[rows][num_heads * head_dim]`, as bits.
    fn attend(&self, isa: Isa, pool: Option<&Pool>) -> Vec<Vec<u32>> {
        self.output(|args, out| attend(pool, isa, self.step.arithmetic, args, &self.step.kv, out))
    }

    fn output(&self, mut attend: impl FnMut(Attention<'_>, &mut [f32])) -> Vec<Vec<u32>> {
        let Step { layout, qkv, tables, spans, sinks, .. } = self.step;
        let sinks = Some(&sinks[..]).filter(|_| self.with_sinks);
        let spans: Vec<AttentionSpan<'_>> = spans
            .iter()
            .zip(tables)
            .map(|(&(first_row, num_rows, start), blocks)| AttentionSpan { first_row, num_rows, start, blocks })
            .collect();
        let rows = qkv.len() / layout.qkv_width();
        let mut out = vec![f32::NAN; rows * layout.out_width()];
        attend(Attention { qkv, layout: *layout, rule: self.rule, sinks, spans: &spans, layer: LAYER }, &mut out);
        out.chunks_exact(layout.out_width()).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
    }
}

/// No pool, and pools of one and two threads.
fn pools() -> Vec<Option<Pool>> {
    let mut pools = vec![None, Some(Pool::new(1).unwrap())];
    if max_threads() >= 2 {
        pools.push(Some(Pool::new(2).unwrap()));
    }
    pools
}

/// Every way to compute a step.
fn every_path(step: &Step, f: impl FnMut(Isa, usize, Vec<Vec<u32>>)) {
    every_path_under(step.under(AttentionRule::of_width(step.layout.head_dim)), f);
}

fn every_path_under(step: Under<'_>, mut f: impl FnMut(Isa, usize, Vec<Vec<u32>>)) {
    for pool in &pools() {
        let threads = pool.as_ref().map_or(0, Pool::threads);
        // The definition is slow, and one pool is enough to see that it does not care.
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar || threads == 1) {
            f(isa, threads, step.attend(isa, pool.as_ref()));
        }
    }
}

fn definition(step: &Step) -> Vec<Vec<u32>> {
    step.attend(Isa::Scalar, None)
}

fn definition_under(step: Under<'_>) -> Vec<Vec<u32>> {
    step.attend(Isa::Scalar, None)
}

/// A short window, one across a split's border, one of a split and a bit, one longer than any context here; a cap; and
/// rows that see later ones.
fn rules(head_dim: usize) -> Vec<AttentionRule> {
    let plain = AttentionRule::of_width(head_dim);
    let windows = [None, Some(1), Some(40), Some(256), Some(300), Some(10_000)];
    let mut rules: Vec<AttentionRule> = windows.into_iter().map(|window| AttentionRule { window, ..plain }).collect();
    rules.push(AttentionRule { scale: 0.3, softcap: Some(2.5), ..plain });
    rules.push(AttentionRule { softcap: Some(0.5), window: Some(100), ..plain });
    rules.push(AttentionRule { window: Some(40), chunked: true, ..plain });
    let windows = [None, Some(1), Some(8), Some(65), Some(10_000)];
    rules.extend(windows.map(|window| AttentionRule { window, both_ways: true, ..plain }));
    rules
}

/// Steps of every shape, each made when it is tried: decodes and chunks together, and the longest decode alone, whose
/// splits then run on several threads.
fn steps() -> impl Iterator<Item = (Shape, impl Fn() -> Step)> {
    let step_of = |seed: usize, shape: Shape, which: Range<usize>| {
        let all = DECODES.into_iter().chain(CHUNKS).enumerate().skip(which.start).take(which.len());
        let sequences: Vec<_> =
            all.map(|(at, (start, rows))| (Sequence::new(shape, (100 * seed + at) as u64, 700), start, rows)).collect();
        let batch: Vec<Rows<'_>> =
            sequences.iter().map(|(sequence, start, rows)| Rows { sequence, start: *start, rows: *rows }).collect();
        Step::new(shape, &batch, seed as u64)
    };
    SHAPES
        .into_iter()
        .flat_map(Shape::each)
        .enumerate()
        .flat_map(move |(seed, shape)| [0..11, 7..8].map(|which| (shape, move || step_of(seed, shape, which.clone()))))
}

#[test]
fn every_path_returns_the_bits_of_the_definition() {
    for (index, (shape, step)) in testing::part_of(steps().enumerate(), 13) {
        let step = step();
        // Some of the rules for each step, with sinks in turn: in the course of the steps, each rule meets several shapes.
        let here = |at: &(usize, AttentionRule)| at.0 % 4 == (index / 4 + index) % 4;
        for (at, rule) in rules(shape.head_dim).into_iter().enumerate().filter(here) {
            let under = Under { with_sinks: (at / 4 + index) % 2 == 0, ..step.under(rule) };
            let want = definition_under(under);
            every_path_under(under, |isa, threads, got| {
                assert!(got == want, "{shape:?}, {rule:?}, {isa:?}, {threads} threads")
            });
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles_of_attention {
    use super::*;
    use crate::amx_emulated::tiles;
    use crate::common::emulator::{self, Counts};
    use kernels::attention::attend_with_tiles;
    use kernels::isa::Amx;

    impl Under<'_> {
        fn attend_with_tiles(&self, amx: Amx, pool: Option<&Pool>) -> (Vec<Vec<u32>>, Counts) {
            let mut counts = Counts::default();
            let out = self.output(|args, out| {
                counts = emulator::counts(|| attend_with_tiles(pool, amx, args, &self.step.kv, out));
            });
            (out, counts)
        }
    }

    #[test]
    fn they_return_the_bits_of_the_definition() {
        let Some(amx) = tiles() else { return };
        let steps = steps().filter(|(shape, _)| shape.arithmetic == AccumulationOrder::Amx);
        let mut products = 0;
        for (index, (shape, step)) in testing::part_of(steps.enumerate(), 3) {
            let step = step();
            // Each shape with another rule, each type of cache in its turn.
            let rules = rules(shape.head_dim);
            let rule = rules[(index / 4 + index / 2 % 2 * 3) % rules.len()];
            let under = Under { with_sinks: index % 2 == 0, ..step.under(rule) };
            let want = definition_under(under);
            for pool in &pools() {
                let (got, counts) = under.attend_with_tiles(amx, pool.as_ref());
                products += counts.products;
                assert!(got == want, "{shape:?}, {rule:?}");
            }
        }
        assert!(Amx::detect().is_some() || products > 0, "no product was executed: this was not the tile path");
    }

    /// Of one token to four tiles and one row more, of chunks that begin anywhere, after rows full of NaN in the same
    /// memory.
    #[test]
    fn every_row_count_has_the_bits_of_the_definition() {
        let Some(amx) = tiles() else { return };
        let dims = [64, 96, 80, 128, 192, 256, 112];
        let starts = [0, 5, 31, 255, 230, 300];
        for tokens in 1..=97 {
            let (dim, group) = (dims[tokens % 7], [1, 1, 3, 1, 7][tokens % 5]);
            let shape = Shape { arithmetic: AccumulationOrder::Amx, ..shape(group, 1, dim, 32) };
            let dtype = KvDtype::ALL[tokens / 7 % 2];
            let shape = Shape { dtype, ..shape };
            let (rows, start) = (tokens.div_ceil(group), starts[tokens % 6]);
            let sequence = Sequence::new(shape, tokens as u64, start + rows);
            let step = Step::new(shape, &[Rows { sequence: &sequence, start, rows }], tokens as u64);
            let rules = rules(dim);
            let rule = rules[tokens / 2 % rules.len()];
            let under = Under { with_sinks: tokens % 2 == 0, ..step.under(rule) };
            // What earlier rows leave in the memory of a tile.
            let long = Sequence::new(shape, 1, 330);
            let mut before = Step::new(shape, &[Rows { sequence: &long, start: 290, rows: 40 }], 2);
            before.qkv.fill(f32::NAN);
            before.under(rule).attend_with_tiles(amx, None);
            let (got, _) = under.attend_with_tiles(amx, None);
            assert!(got == definition_under(under), "{tokens} rows from {start}, {shape:?}, {rule:?}");
        }
    }

    /// What a tile of rows takes of one split, where tiles are emulated: they are the model of docs/hardware.md.
    #[test]
    fn tile_instructions_of_a_split() {
        let Some(amx) = tiles() else { return };
        if Amx::detect().is_some() {
            return eprintln!("skipped: instructions are counted where they are emulated");
        }
        // Type of cache, rows, width of a head; products, at most loads and stores in 1,000 products.
        let (bf16, int8) = (KvDtype::Bf16, KvDtype::Int8);
        let table = [
            (bf16, 32, 64, 128, 1_000, 313),
            (bf16, 32, 128, 256, 1_000, 188),
            (bf16, 16, 64, 64, 1_375, 313),
            (bf16, 256, 64, 1_024, 1_000, 313),
            // A step of keys for both groups, and two digits for each 16 values.
            (int8, 32, 64, 32 + 128, 1_250, 300),
            (int8, 32, 80, 64 + 160, 1_286, 233),
            (int8, 16, 64, 16 + 64, 1_300, 300),
        ];
        for (dtype, rows, dim, products, loads, stores) in table {
            let shape = Shape { arithmetic: AccumulationOrder::Amx, dtype, ..shape(1, 1, dim, 32) };
            let sequence = Sequence::new(shape, 1, 256);
            let step = Step::new(shape, &[Rows { sequence: &sequence, start: 256 - rows, rows }], 1);
            let both_ways = AttentionRule { both_ways: true, ..AttentionRule::of_width(dim) };
            let (_, counts) = step.under(both_ways).attend_with_tiles(amx, None);
            let name = format!("{dtype:?}, {rows} rows, heads of {dim}: {counts:?}");
            println!("{name}, bytes of a product {}", counts.bytes / counts.products);
            assert_eq!((counts.configurations, counts.products), (rows.div_ceil(32), products), "{name}");
            assert!(counts.loads * 1_000 <= loads * products, "{name}: {} loads", counts.loads * 1_000 / products);
            assert!(counts.stores * 1_000 <= stores * products, "{name}: {} stores", counts.stores * 1_000 / products);
        }
    }
}

/// Two tiles would write row 0, on different threads.
#[test]
fn spans_that_wrap_around_are_refused_before_a_row_is_written() {
    let shape = Shape { dtype: KvDtype::Bf16, ..shape(16, 1, 32, 32) };
    let kv = KvCache::new(shape.cache(1, 1)).unwrap();
    let layout = HeadLayout { num_heads: 16, num_kv_heads: 1, head_dim: 32, ..HeadLayout::default() };
    let qkv = vec![0.5; layout.qkv_width()];
    let span = |first_row, num_rows, start| AttentionSpan { first_row, num_rows, start, blocks: &[0] };
    let wrapping = [
        [span(0, 1, 0), span(usize::MAX - 1, 3, 0)],
        [span(0, 1, 0), span(1, usize::MAX, 1)],
        [span(0, 0, 0), span(0, 1, usize::MAX)],
    ];
    for spans in wrapping {
        for isa in Isa::available() {
            let mut out = vec![7.0; layout.q_width()];
            let rule = AttentionRule::of_width(32);
            let args = Attention { qkv: &qkv, layout, rule, sinks: None, spans: &spans, layer: 0 };
            let attend = || attend(None, isa, AccumulationOrder::Vdpbf16, args, &kv, &mut out);
            let panic = catch_unwind(AssertUnwindSafe(attend)).expect_err("spans of more rows than there are numbers");
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("span end overflows"), "{spans:?}");
            assert!(out.iter().all(|&x| x == 7.0), "{spans:?}, {isa:?}");
        }
    }
}

#[test]
fn the_definition_is_softmax_attention() {
    // Weights of bf16 are rounded to 8 bits each: the error of a weighted mean of values up to 3 stays below 1 %. Those
    // of int8 have 14 bits of the largest. Keys and values are taken as the cache rounded them.
    let shapes =
        [SHAPES[1], latent(2, 112, 96)].into_iter().flat_map(|shape| shape.each().into_iter().zip([0.01, 0.01, 1e-3]));
    for (shape, tolerance) in shapes {
        let sequence = Sequence::new(shape, 7, 700);
        for (start, rows) in [(0, 5), (253, 6), (699, 1)] {
            let batch = [Rows { sequence: &sequence, start, rows }];
            let step = Step::new(shape, &batch, 3);
            for (at, rule) in testing::part_of(rules(shape.head_dim).into_iter().enumerate(), 3) {
                let under = Under { with_sinks: at % 2 == 0, ..step.under(rule) };
                let got = definition_under(under);
                for (row, got) in got.iter().enumerate() {
                    let seen = rule.seen(start + row, start + rows);
                    let want = exact_row(shape, under, &sequence.queries[start + row], seen);
                    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
                        let got = f32::from_bits(got) as f64;
                        let off = (got - want).abs();
                        assert!(
                            off < tolerance,
                            "{:?}, {rule:?}, row {row}, number {i}: {got} for {want}",
                            shape.dtype
                        );
                    }
                }
            }
        }
    }
}

/// Attention of a row of the only sequence of a step that sees `seen`, in f64.
fn exact_row(shape: Shape, under: Under<'_>, query: &[f32], seen: Range<usize>) -> Vec<f64> {
    let Under { step, rule, with_sinks } = under;
    let Shape { num_heads, num_kv_heads, head_dim, block_size, dtype, .. } = shape;
    let first = seen.start;
    let mut out = Vec::new();
    for head in 0..num_heads {
        let query = &query[head * head_dim..][..head_dim];
        let query: Vec<f64> = match dtype {
            KvDtype::Bf16 => query.iter().map(|&x| half::bf16::from_f32(x).to_f64()).collect(),
            KvDtype::Int8 => {
                let query: Vec<f64> = query.iter().map(|&x| x.into()).collect();
                spread(&rounded(&spread(&query, false), head_dim), true)
            }
        };
        let place = |token: usize| {
            let slot = step.tables[0][token / block_size] as usize * block_size + token % block_size;
            KvPlace { layer: LAYER, slot, kv_head: head / (num_heads / num_kv_heads) }
        };
        let scores: Vec<f64> = seen
            .clone()
            .map(|token| {
                let dot: f64 = (0..head_dim).map(|d| query[d] * step.kv.key(place(token), d) as f64).sum();
                let score = dot * rule.scale as f64;
                rule.softcap.map_or(score, |cap| cap as f64 * (score / cap as f64).tanh())
            })
            .collect();
        let sink = with_sinks.then(|| f64::from(step.sinks[head]));
        let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
        out.extend((0..shape.latent.unwrap_or(head_dim)).map(|d| -> f64 {
            let value = |(i, weight): (usize, &f64)| weight / sum * step.kv.value(place(first + i), d) as f64;
            weights.iter().enumerate().map(value).sum()
        }));
    }
    out
}

/// A name, channels of keys and what is added to them, channels of values and how much larger they are.
type Outliers = (&'static str, &'static [usize], f32, &'static [usize], f32);

/// What the caches of others do: int8 with a scale for each 32 numbers of queries, keys and values.
const OTHERS_GROUP: usize = 32;

/// Attention of the last token of a sequence in f64, of one head, where each head becomes `cached` first.
fn last_row(sequence: &Sequence, cached: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let cached = |heads: &[Vec<f32>]| -> Vec<Vec<f64>> {
        heads.iter().map(|head| cached(&head.iter().map(|&x| x.into()).collect::<Vec<f64>>())).collect()
    };
    let (keys, values) = (cached(&sequence.keys), cached(&sequence.values));
    let query = cached(&sequence.queries[sequence.queries.len() - 1..]).remove(0);
    let scale = 1.0 / (query.len() as f64).sqrt();
    let score = |key: &Vec<f64>| key.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>() * scale;
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    (0..query.len()).map(|d| weights.iter().zip(&values).map(|(w, v)| w * v[d]).sum::<f64>() / sum).collect()
}

#[test]
fn int8_keys_and_values_lose_no_more_than_with_a_scale_for_each_32() {
    // Channels that are large in every key, as Qwen2.5's biases make them (both of a pair that rotates), and in values.
    let cases: [Outliers; 5] = [
        ("plain", &[], 0.0, &[], 0.0),
        ("a pair of keys", &[9], 20.0, &[], 0.0),
        ("two pairs of keys", &[9, 27], 80.0, &[], 0.0),
        ("six pairs of keys", &[3, 9, 14, 20, 27, 31], 15.0, &[], 0.0),
        ("values", &[], 0.0, &[5, 41], 16.0),
    ];
    for head_dim in [64, 128, 256] {
        for (what, key_channels, bias, value_channels, factor) in cases {
            let (mut ours, mut others) = (0.0, 0.0);
            for seed in 0..8 {
                let shape = Shape { dtype: KvDtype::Int8, ..shape(1, 1, head_dim, 32) };
                let mut sequence = Sequence::new(shape, seed, 200);
                for (position, key) in sequence.keys.iter_mut().enumerate() {
                    for channel in key_channels.iter().map(|channel| channel * head_dim / 64) {
                        let (sin, cos) = (position as f32 / (channel + 1) as f32).sin_cos();
                        key[channel] += bias * cos;
                        key[channel + head_dim / 2] += bias * sin;
                    }
                }
                for value in &mut sequence.values {
                    value_channels.iter().for_each(|&channel| value[channel] *= factor);
                }
                let exact = last_row(&sequence, <[f64]>::to_vec);
                let off = |found: Vec<f64>| -> f64 {
                    let small = |d: &usize| !value_channels.contains(d);
                    (0..head_dim).filter(small).map(|d| (found[d] - exact[d]).powi(2)).sum()
                };
                let step = Step::new(shape, &[Rows { sequence: &sequence, start: 199, rows: 1 }], seed);
                ours += off(definition(&step)[0].iter().map(|&bits| f32::from_bits(bits).into()).collect());
                others += off(last_row(&sequence, |head| rounded(head, OTHERS_GROUP)));
            }
            println!("{what}, heads of {head_dim}: {ours:.3e}, with a scale for each 32 {others:.3e}");
            // Among numbers of one size the largest of a head is somewhat larger than that of 32.
            let most = if what == "plain" { 2.0 * others } else { others };
            assert!(ours <= most, "{what}, heads of {head_dim}: {ours:.3e} above {most:.3e}");
        }
    }
}

#[test]
fn the_definition_never_changes() {
    // The bits of one step, hashed (FNV-1a). They hold on every machine; a new value here is a new definition, after
    // which recorded answers can no longer be reproduced.
    let plain = AttentionRule::of_width(64);
    let windowed = AttentionRule { window: Some(400), softcap: Some(1.5), ..plain };
    let both_ways = AttentionRule { both_ways: true, ..plain };
    let [pairs, tiles, int8] = SHAPES[2].each();
    for (shape, (rule, with_sinks), want) in [
        (pairs, (plain, false), 0x65aa_44f7_8572_aeaau64),
        (pairs, (windowed, false), 0x9e49_0bd0_09ae_0db9),
        (pairs, (both_ways, false), 0xf66f_7424_4678_68b1),
        (tiles, (plain, false), 0x5504_18a3_36fe_ef74),
        (tiles, (windowed, false), 0x88d2_9964_9a7d_1b08),
        (int8, (plain, false), 0x46d2_5de9_dc27_2c9a),
        (int8, (windowed, false), 0x5272_0df4_923e_6d49),
        (pairs, (windowed, true), 0xd407_ea0d_02e8_aa77),
        (tiles, (plain, true), 0x3757_a15a_3145_92a0),
        (int8, (windowed, true), 0x2a60_b454_b7d0_be90),
    ] {
        let sequence = Sequence::new(shape, 1, 600);
        let step = Step::new(shape, &[Rows { sequence: &sequence, start: 597, rows: 3 }], 1);
        every_path_under(Under { with_sinks, ..step.under(rule) }, |isa, threads, got| {
            let bytes = got.iter().flatten().flat_map(|bits| bits.to_le_bytes());
            let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, byte| (h ^ byte as u64).wrapping_mul(0x100_0000_01b3));
            assert_eq!(hash, want, "{shape:?}, {rule:?}, {isa:?}, {threads} threads: {hash:#x}");
        });
    }
}

#[test]
fn rows_that_see_both_ways_see_their_whole_span_and_no_other() {
    // Texts of one block, of several, of more than a split.
    let lengths = [1, 31, 40, 300];
    let cases = SHAPES[1].each().into_iter().flat_map(|shape| [None, Some(9), Some(280)].map(|window| (shape, window)));
    // A quick run has every shape and every window.
    for (shape, window) in testing::part_of(cases, 4) {
        let rule = AttentionRule { window, both_ways: true, ..AttentionRule::of_width(shape.head_dim) };
        let texts = lengths.map(|len| Sequence::new(shape, 40 + len as u64, len));
        let whole = |text| Rows { sequence: text, start: 0, rows: text.queries.len() };
        let together = Step::new(shape, &texts.each_ref().map(whole), 3);
        let want = definition_under(together.under(rule));
        let mut first = 0;
        for text in &texts {
            let alone = Step::new(shape, &[whole(text)], 4);
            every_path_under(alone.under(rule), |isa, threads, got| {
                let same = got == want[first..first + got.len()];
                assert!(same, "{} rows, {shape:?}, {rule:?}, {isa:?}, {threads} threads", got.len());
            });
            first += text.queries.len();
        }
        every_path_under(together.under(rule), |isa, threads, got| {
            assert!(got == want, "together, {shape:?}, {rule:?}, {isa:?}, {threads} threads");
        });
    }
}

#[test]
fn a_row_does_not_depend_on_its_chunk() {
    let plain = AttentionRule::of_width(64);
    // Windows within a page, across pages, of a split and a bit.
    let rules = [None, Some(7), Some(50), Some(300)].map(|window| AttentionRule { window, ..plain });
    let tokens = 530;
    let cases = SHAPES[1].each().into_iter().flat_map(|shape| rules.map(|rule| (shape, rule)));
    // A quick run has every shape and every rule.
    for (shape, rule) in testing::part_of(cases, 3) {
        let sequence = Sequence::new(shape, 11, tokens);
        let all = Step::new(shape, &[Rows { sequence: &sequence, start: 0, rows: tokens }], 5);
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar) {
            for pool in &pools() {
                let with_sinks = rule.window != Some(50);
                let whole = Under { with_sinks, ..all.under(rule) }.attend(isa, pool.as_ref());
                for chunk in [1, 7, 64, 512] {
                    // The last 20 tokens of the sequence and the 20 around a split border, in chunks of this size.
                    for range in [tokens - 20..tokens, 246..266] {
                        for start in range.clone().step_by(chunk) {
                            let rows = chunk.min(range.end - start);
                            let step = Step::new(shape, &[Rows { sequence: &sequence, start, rows }], start as u64);
                            let got = Under { with_sinks, ..step.under(rule) }.attend(isa, pool.as_ref());
                            let same = got == whole[start..start + rows];
                            assert!(same, "{shape:?}, {rule:?}, {isa:?}, rows {start}..{}", start + rows);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_where_blocks_are_nor_on_what_they_kept() {
    let rows = [(0, 33), (200, 1), (256, 1), (290, 10)];
    let cases = SHAPES[3].each().into_iter().flat_map(|shape| rows.map(|rows| (shape, rows)));
    for (shape, (start, rows)) in testing::part_of(cases, 1) {
        let sequence = Sequence::new(shape, 13, 300);
        let batch = [Rows { sequence: &sequence, start, rows }];
        let want = definition(&Step::new(shape, &batch, 0));
        for seed in 1..4 {
            // Another seed: other blocks, other garbage.
            let step = Step::new(shape, &batch, seed);
            every_path(&step, |isa, threads, got| assert!(got == want, "seed {seed}, {isa:?}, {threads} threads"));
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let mut random = Dice::new(17);
    for seed in testing::part_of(0..6u64, 1) {
        let shape = SHAPES[2].each()[seed as usize % 3];
        let sequences: Vec<Sequence> = (0..12).map(|i| Sequence::new(shape, 1000 + i, 520)).collect();
        let batch: Vec<Rows<'_>> = sequences
            .iter()
            .map(|sequence| {
                let start = random.roll(500);
                let rows = if random.roll(2) == 0 { 1 } else { 1 + random.roll(20) };
                Rows { sequence, start, rows }
            })
            .collect();
        let together = Step::new(shape, &batch, seed);
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar) {
            for pool in &pools() {
                let got = together.attend(isa, pool.as_ref());
                let mut first = 0;
                for (i, rows) in batch.iter().enumerate().take(3) {
                    let alone = Step::new(shape, std::slice::from_ref(rows), 99).attend(isa, pool.as_ref());
                    assert!(got[first..first + rows.rows] == alone, "seed {seed}, {isa:?}, sequence {i}");
                    first += rows.rows;
                }
            }
        }
    }
}

#[test]
fn poison_stays_with_rows_that_see_it() {
    for shape in [SHAPES[4], latent(5, 112, 96)].into_iter().flat_map(Shape::each) {
        let sequence = Sequence::new(shape, 19, 100);
        let rows = |sequence: &Sequence| Step::new(shape, &[Rows { sequence, start: 90, rows: 5 }], 1);
        let want = definition(&rows(&sequence));
        for (what, bad) in [("a value", f32::INFINITY), ("a value", f32::NAN), ("a key", f32::NAN)] {
            let mut sick = sequence.clone();
            match (what, shape.latent) {
                ("a key", Some(latent)) => sick.keys[93][latent + 5] = bad,
                ("a key", None) | (_, Some(_)) => sick.keys[93][5] = bad,
                (_, None) => sick.values[93][5] = bad,
            }
            let mut poisoned = rows(&sick);
            // Behind the last row, in its block: what a failed sequence may have left there.
            let slot = poisoned.tables[0][95 / shape.block_size] as usize * shape.block_size + 95 % shape.block_size;
            let nan = vec![f32::NAN; shape.head_dim];
            poisoned.kv.store(
                KvPlace { layer: LAYER, slot, kv_head: 0 },
                &nan,
                if shape.latent.is_some() { &[] } else { &nan },
            );
            every_path(&poisoned, |isa, threads, got| {
                let path = format!("{what} {bad}, {:?}, {isa:?}, {threads} threads", shape);
                assert!(got[..3] == want[..3], "{path}: rows before token 93");
                let nan = got[3..].iter().flatten().all(|&bits| f32::from_bits(bits).is_nan());
                assert!(nan, "{path}: rows from token 93 on");
            });
            // Behind a window it is out of sight again.
            let windowed = AttentionRule { window: Some(1), ..AttentionRule::of_width(shape.head_dim) };
            let clean = definition_under(rows(&sequence).under(windowed));
            every_path_under(poisoned.under(windowed), |isa, threads, got| {
                let seen = got[3].iter().all(|&bits| f32::from_bits(bits).is_nan());
                assert!(seen && got[4] == clean[4], "{what} {bad}, {isa:?}, {threads} threads");
                assert!(got[4].iter().all(|&bits| f32::from_bits(bits).is_finite()));
            });
        }
    }
}

#[test]
fn an_int8_cache_keeps_each_spread_head_of_a_token_to_half_a_step() {
    let shape = KvShape {
        dtype: KvDtype::Int8,
        layers: 1,
        blocks: 2,
        block_size: 32,
        num_kv_heads: 2,
        head_dim: 80,
        latent: None,
    };
    assert_eq!(shape.block_bytes(), 32 * 2 * (2 * 80 + 8));
    let mut kv = KvCache::new(shape).unwrap();
    let mut random = Dice::new(3);
    for slot in 0..64 {
        for kv_head in 0..2 {
            let place = KvPlace { layer: 0, slot, kv_head };
            // Every token has another magnitude, and the value another than the key.
            let (large, small) = (2f32.powi(slot as i32 - 30), 1e-3);
            let key: Vec<f32> = numbers(&mut random, 80).iter().map(|x| x * large).collect();
            let value: Vec<f32> = numbers(&mut random, 80).iter().map(|x| x * small).collect();
            kv.store(place, &key, &value);
            let got: [Vec<f32>; 2] =
                [(0..80).map(|d| kv.key(place, d)).collect(), (0..80).map(|d| kv.value(place, d)).collect()];
            for (got, want) in got.iter().zip([&key, &value]) {
                let want: Vec<f64> = want.iter().map(|&x| x.into()).collect();
                let absmax = spread(&want, false).iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                let off = got.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).powi(2)).sum::<f64>();
                let most = (absmax / 254.0).powi(2) * 80.0;
                assert!(off <= most * 1.0001, "{place:?}: {got:?} for {want:?}");
                assert!(off > most * 0.05, "{place:?}: closer than one scale can be");
            }
        }
    }
    // All zeros, and magnitudes whose inverse is no number, are zeros.
    let place = KvPlace { layer: 0, slot: 5, kv_head: 1 };
    kv.store(place, &[0.0; 80], &[1e-38; 80]);
    assert!((0..80).all(|d| (kv.key(place, d), kv.value(place, d)) == (0.0, 0.0)));
}

#[test]
fn the_cache_keeps_what_was_stored_and_copies_blocks() {
    for (dtype, token_bytes) in [(KvDtype::Bf16, 2 * 48 * 2), (KvDtype::Int8, 2 * 48 + 8)] {
        let shape =
            KvShape { dtype, layers: 3, blocks: 4, block_size: 64, num_kv_heads: 2, head_dim: 48, latent: None };
        assert_eq!(shape.block_bytes(), 3 * 64 * 2 * token_bytes);
        assert_eq!(shape.bytes(), 4 * shape.block_bytes());
        let mut kv = KvCache::new(shape).unwrap();
        // Whole numbers up to 127, which bf16 keeps exactly, and int8 as they were where they were stored.
        let number = |place: KvPlace, d: usize, value: bool| {
            let number = ((place.layer * 256 + place.slot) * 2 + place.kv_head) * 48 + d + usize::from(value);
            if d == 0 { 127.0 } else { (number % 125) as f32 }
        };
        let places = |blocks: Range<usize>| {
            let slots = blocks.start * 64..blocks.end * 64;
            (0..3).flat_map(move |layer| {
                let slots = slots.clone();
                slots.flat_map(move |slot| (0..2).map(move |kv_head| KvPlace { layer, slot, kv_head }))
            })
        };
        for place in places(0..2) {
            let row = |value| (0..48).map(|d| number(place, d, value)).collect::<Vec<f32>>();
            kv.store(place, &row(false), &row(true));
        }
        let stored_numbers: Vec<(f32, f32)> = places(0..2)
            .flat_map(|place| (0..48).map(move |d| (place, d)))
            .map(|(place, d)| (kv.key(place, d), kv.value(place, d)))
            .collect();
        kv.copy_blocks(&[(1, 3), (0, 1)]);
        // Out and back by way of bytes: the same block.
        let mut bytes = vec![0; kv.shape().block_bytes()];
        kv.read_block(3, &mut bytes);
        kv.write_block(2, &bytes);
        for place in places(0..4) {
            let from = |slot| KvPlace { slot, ..place };
            for d in 0..48 {
                let got = (kv.key(place, d), kv.value(place, d));
                let stored = match place.slot / 64 {
                    0 => place,
                    1 | 2 => from(place.slot - 64),
                    _ => from(place.slot - 128),
                };
                let want = (number(stored, d, false), number(stored, d, true));
                let at = (stored.layer * 128 + stored.slot) * 2 + stored.kv_head;
                assert_eq!(got, stored_numbers[at * 48 + d], "{dtype:?} {place:?} {d}");
                let close = if dtype == KvDtype::Bf16 { 0.0 } else { 4.0 };
                assert!((got.0 - want.0).abs() <= close && (got.1 - want.1).abs() <= close, "{got:?} for {want:?}");
            }
        }
    }
}

#[test]
fn a_block_has_the_same_bytes_on_any_number_of_memory_nodes() {
    for dtype in KvDtype::ALL {
        let shape =
            KvShape { dtype, layers: 2, blocks: 3, block_size: 32, num_kv_heads: 3, head_dim: 32, latent: None };
        let caches = [(1, 1), (2, 2), (3, 3), (5, 4)].map(|(threads, nodes)| {
            let pool = Pool::on(threads, NodeChoice::Imagined(nodes)).unwrap();
            let mut kv = KvCache::on(pool.nodes(), shape).unwrap();
            let mut random = Dice::new(11);
            for (layer, slot) in (0..2).flat_map(|layer| (0..64).map(move |slot| (layer, slot))) {
                for kv_head in 0..3 {
                    kv.store(KvPlace { layer, slot, kv_head }, &numbers(&mut random, 32), &numbers(&mut random, 32));
                }
            }
            kv.copy_blocks(&[(0, 2)]);
            kv
        });
        let read = |kv: &KvCache, block| {
            let mut bytes = vec![0; shape.block_bytes()];
            kv.read_block(block, &mut bytes);
            bytes
        };
        for block in 0..3 {
            assert!(caches.iter().all(|kv| read(kv, block) == read(&caches[0], block)), "{dtype:?}, block {block}");
        }
        // What one wrote another takes.
        for mut kv in caches {
            let other = read(&kv, 1);
            kv.write_block(0, &other);
            assert_eq!((read(&kv, 0), read(&kv, 1)), (other.clone(), other));
        }
    }
}

/// Keys, values and queries as no model has them: nothing, denormals, numbers near the ends of what a float holds, one
/// that is large among small ones.
#[test]
fn numbers_of_any_size_have_the_bits_of_the_definition() {
    let sizes = [0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1.0, 1e4, 1e15, 1e37];
    for seed in 0..if testing::is_long() { 2_000 } else { 50 } {
        let mut dice = Dice::new(0xa77e + seed);
        let (head_dim, group, kv_heads) = (16 * dice.within(1..=16), dice.within(1..=9), dice.within(1..=2));
        let shape = shape(group * kv_heads, kv_heads, head_dim, 32 * dice.within(1..=4)).each()[dice.within(0..=2)];
        let (start, rows) = (dice.within(0..=300), dice.within(1..=97 / group + 1));
        let mut sequence = Sequence::new(shape, seed, start + rows);
        for heads in [&mut sequence.queries, &mut sequence.keys, &mut sequence.values] {
            let [most, one] = [0; 2].map(|_| sizes[dice.within(0..=8)]);
            for head in heads {
                let size = if dice.percent(60) { most } else { sizes[dice.within(0..=8)] };
                head.iter_mut().for_each(|x| *x *= size);
                head[dice.roll(head_dim)] *= if dice.percent(30) { one } else { 1.0 };
            }
        }
        let step = Step::new(shape, &[Rows { sequence: &sequence, start, rows }], seed);
        let rule = rules(head_dim)[dice.within(0..=13)];
        let under = Under { with_sinks: dice.percent(50), ..step.under(rule) };
        // The sign of a NaN, which scores beyond a float come to, is of no meaning.
        let signless = |rows: Vec<Vec<u32>>| -> Vec<Vec<u32>> {
            let of = |bits: u32| if f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits };
            rows.into_iter().map(|row| row.into_iter().map(of).collect()).collect()
        };
        let want = signless(definition_under(under));
        every_path_under(under, |isa, threads, got| {
            assert!(
                signless(got) == want,
                "seed {seed}: {shape:?}, {rule:?}, rows {start} + {rows}, {isa:?}, {threads} threads"
            );
        });
    }
}
