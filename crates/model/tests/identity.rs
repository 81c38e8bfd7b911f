//! One token, one answer: the logits bits of a row are a function of the weights and the row's token history, and of
//! nothing else. Checked through `Forward`, on whole models.
//!
//! For every case there is one expectation: all rows of the prompt alone, in one pass, in the first blocks of a fresh
//! cache, on the `Reference` backend. Then everything that must not matter is varied.

use crate::common;

use common::*;
use kernels::float_state::{in_an_odd_host, is_odd};
use kernels::{AccumulationOrder, Backend, Isa, KvDtype, Reference, WeightClass};
use model::{Batch, Forward, Runner};
use std::sync::LazyLock;

/// Longer than an attention split (256) and not a multiple of a block.
const LEN: usize = 301;
const BLOCKS: usize = LEN.div_ceil(BLOCK as usize);

/// Ragged widths and grouped heads; biases and norms of q and k; windows, capped scores, norms of results; experts.
const CHECKPOINTS: [&str; 4] = ["llama3", "qwen3-bias-yarn", "gemma2", "mixtral"];

/// Of weights, of the cache, and the order of 16-bit sums: each of these in both.
const PRECISIONS: [Precision; 5] = [
    (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Vdpbf16),
    (WeightClass::Bf16, KvDtype::Bf16, AccumulationOrder::Amx),
    (WeightClass::Int8, KvDtype::Bf16, AccumulationOrder::Vdpbf16),
    (WeightClass::Int4, KvDtype::Bf16, AccumulationOrder::Amx),
    (WeightClass::Bf16, KvDtype::Int8, AccumulationOrder::Vdpbf16),
];

type Precision = (WeightClass, KvDtype, AccumulationOrder);

/// A checkpoint in some precision, a prompt, and the bits of its logits.
struct Expectation {
    checkpoint: &'static str,
    precision: Precision,
    prompt: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

impl Expectation {
    fn compute(checkpoint: &'static str, precision: Precision) -> Expectation {
        let (class, kv_dtype, arithmetic) = precision;
        let mut reference = load_with_kv(Reference::of(arithmetic), &committed(checkpoint), class, kv_dtype);
        let prompt = random_tokens(7, LEN, reference.config().vocab_size);
        let rows = run_alone(&mut reference, &prompt);
        Expectation { checkpoint, precision, prompt, rows: rows.iter().map(|row| bits(row)).collect() }
    }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|logit| logit.to_bits()).collect()
}

/// An expectation on one backend.
struct Case<'a> {
    name: String,
    prompt: &'a [u32],
    expected: &'a [Vec<u32>],
}

impl Case<'_> {
    fn check(&self, first_row: usize, rows: &[Vec<u32>], circumstance: &str) {
        for (index, row) in rows.iter().enumerate() {
            let position = first_row + index;
            assert!(*row == self.expected[position], "{}: {circumstance}: row {position} differs", self.name);
        }
    }
}

fn first_blocks(num: usize) -> Vec<u32> {
    (0..num as u32).collect()
}

/// Runs `check` on every backend, instruction set and thread count, for every checkpoint and weight class; plain loops,
/// which take a hundred times as long, in a long run, for each checkpoint and each precision once ([`is_tried_plainly`]).
fn everywhere(check: impl Fn(&Case<'_>, &mut dyn Forward)) {
    // Plain loops on one thread are what the reference is. In a quick run, the best instruction set alone is on one.
    let is_on_one = |isa: Isa| isa != Isa::Scalar && (testing::is_long() || isa == Isa::best());
    let threads = |isa: Isa| if is_on_one(isa) { 1..=2 } else { 2..=2 };
    let ways = Isa::available().into_iter().flat_map(|isa| threads(isa).map(move |threads| (isa, threads, 1)));
    on_each(true, &ways.collect::<Vec<_>>(), check);
}

/// A diagonal of checkpoints and precisions.
fn is_tried_plainly(checkpoint: &str, precision: Precision) -> bool {
    let row = PRECISIONS.iter().position(|other| *other == precision).expect("it is one of them");
    CHECKPOINTS[row % CHECKPOINTS.len()] == checkpoint
}

/// On CPUs of instruction set, threads and memory nodes, and on the reference itself.
fn on_each(reference: bool, ways: &[(Isa, usize, usize)], check: impl Fn(&Case<'_>, &mut dyn Forward)) {
    static EXPECTATIONS: LazyLock<Vec<Expectation>> = LazyLock::new(|| {
        let precisions = |checkpoint| PRECISIONS.map(|precision| (checkpoint, precision));
        let all = CHECKPOINTS.into_iter().flat_map(precisions);
        // A quick run has the diagonal: each checkpoint and each precision once.
        let all = all.filter(|(checkpoint, precision)| testing::is_long() || is_tried_plainly(checkpoint, *precision));
        all.map(|(checkpoint, precision)| Expectation::compute(checkpoint, precision)).collect()
    });
    for Expectation { checkpoint, precision, prompt, rows } in EXPECTATIONS.iter() {
        let (class, kv_dtype, arithmetic) = precision;
        let files = committed(checkpoint);
        let is_plain = testing::is_long() && is_tried_plainly(checkpoint, *precision);
        let on = |backend: String, model: &mut dyn Forward| {
            check(
                &Case {
                    name: format!("{checkpoint} {class:?}, {kv_dtype:?} keys, {arithmetic:?} on {backend}"),
                    prompt,
                    expected: rows,
                },
                model,
            );
        };
        if reference && is_plain {
            on("Reference".to_string(), &mut load_with_kv(Reference::of(*arithmetic), &files, *class, *kv_dtype));
        }
        for &(isa, threads, nodes) in ways.iter().filter(|(isa, ..)| is_plain || *isa != Isa::Scalar) {
            let name = format!("{} with {threads} threads on {nodes} nodes", isa.name());
            on(name, &mut load_with_kv(cpu_on(nodes, isa, threads, *arithmetic), &files, *class, *kv_dtype));
        }
    }
}

/// One test: what the others are held against takes plain loops the longest, and serves all.
#[test]
fn logits_have_the_same_bits() {
    let checks: [fn(); 9] = [
        on_any_number_of_memory_nodes,
        alone_in_chunks_of_any_size,
        whether_or_not_other_rows_have_logits,
        logits_in_groups,
        among_other_sequences_that_prefill_and_decode,
        after_a_prefix_that_another_sequence_computed,
        in_any_blocks_whatever_they_held_before,
        after_blocks_were_copied,
        twice_the_same_after_other_work,
    ];
    checks.into_iter().for_each(|check| check());
}

fn on_any_number_of_memory_nodes() {
    // More threads than some machines have cores, more nodes than some models have kv heads, and nodes of unlike size.
    let of_best = [(1, 1), (2, 2), (3, 2), (3, 3), (7, 4)].map(|(threads, nodes)| (Isa::best(), threads, nodes));
    let others = Isa::available().into_iter().filter(|&isa| isa != Isa::best() && isa != Isa::Scalar);
    let ways: Vec<_> = of_best.into_iter().chain(others.map(|isa| (isa, 3, 2))).collect();
    on_each(false, &ways, |case, model| {
        let table = first_blocks(BLOCKS);
        // A prompt, tokens one at a time, and a chunk across the border of an attention split.
        for rows in [0..250, 250..251, 251..252, 252..LEN] {
            let mut batch = Batch::default();
            push(&mut batch, case.prompt, rows.clone(), &table, Wanted::All);
            case.check(rows.start, &run(model, &batch), "split over nodes");
        }
    });
}

fn alone_in_chunks_of_any_size() {
    everywhere(|case, model| {
        let table = first_blocks(BLOCKS);
        for chunk in [1, 7, 64, 512] {
            let mut start = 0;
            while start < LEN {
                // Single tokens at the start and across the border of an attention split; the stretch between in one
                // go.
                let end = if chunk == 1 && start == 40 { 230 } else { (start + chunk).min(LEN) };
                let mut batch = Batch::default();
                push(&mut batch, case.prompt, start..end, &table, Wanted::All);
                case.check(start, &run(model, &batch), &format!("chunks of {chunk}"));
                start = end;
            }
        }
    });
}

fn whether_or_not_other_rows_have_logits() {
    everywhere(|case, model| {
        let table = first_blocks(BLOCKS);
        for (rows, wanted) in [(0..100, Wanted::None), (100..200, Wanted::Last), (200..LEN, Wanted::Last)] {
            let mut batch = Batch::default();
            push(&mut batch, case.prompt, rows.clone(), &table, wanted);
            let logits = run(model, &batch);
            case.check(rows.end - logits.len(), &logits, "only the last row wanted");
        }
    });
}

fn logits_in_groups() {
    everywhere(|case, model| {
        let vocab_size = model.config().vocab_size;
        let mut batch = Batch::default();
        push(&mut batch, case.prompt, 0..LEN, &first_blocks(BLOCKS), Wanted::All);
        let ticket = model.launch(&batch).unwrap();
        let done = model.wait(ticket).unwrap();
        // In any order, any of them twice: the hidden states stay until the next pass.
        for rows in [290..301, 0..1, 1..40, 290..301] {
            let mut logits = vec![f32::NAN; rows.len() * vocab_size];
            let each = rows.clone().zip(logits.chunks_exact_mut(vocab_size));
            each.for_each(|(row, logits)| model.read_logits(&done, row, logits).unwrap());
            let logits: Vec<Vec<u32>> = logits.chunks_exact(vocab_size).map(bits).collect();
            case.check(rows.start, &logits, "logits in groups");
        }
    });
}

fn among_other_sequences_that_prefill_and_decode() {
    everywhere(|case, model| {
        let vocab_size = model.config().vocab_size;
        let (b, c) = (random_tokens(8, 90, vocab_size), random_tokens(9, 140, vocab_size));
        let (table_b, table_c) = ([20, 21, 22], [30, 31, 32, 33, 34]);
        let table_a: Vec<u32> = (40..40 + BLOCKS as u32).rev().collect();
        let b_alone: Vec<Vec<u32>> = run_alone(model, &b).iter().map(|row| bits(row)).collect();
        let c_alone: Vec<Vec<u32>> = run_alone(model, &c).iter().map(|row| bits(row)).collect();

        // A's chunk first, last, or in the middle; B decodes one token a step, C prefills chunks of another size.
        let mut start_a = 0;
        for step in 0.. {
            if start_a == LEN {
                break;
            }
            let end_a = (start_a + [50, 1, 13, 64][step % 4]).min(LEN);
            let (row_b, rows_c) = (step % b.len(), (step * 9) % c.len()..((step * 9) % c.len() + 9).min(c.len()));
            let mut batch = Batch::default();
            let mut found = vec![];
            let order = [[0, 1, 2], [1, 0, 2], [2, 1, 0]][step % 3];
            for sequence in order {
                match sequence {
                    0 => push(&mut batch, case.prompt, start_a..end_a, &table_a, Wanted::All),
                    1 => push(&mut batch, &b, row_b..row_b + 1, &table_b, Wanted::All),
                    _ => push(&mut batch, &c, rows_c.clone(), &table_c, Wanted::All),
                }
            }
            let mut rows = run(model, &batch).into_iter();
            for sequence in order {
                let len = [end_a - start_a, 1, rows_c.len()][sequence];
                found.push((sequence, rows.by_ref().take(len).collect::<Vec<_>>()));
            }
            for (sequence, rows) in found {
                match sequence {
                    0 => case.check(start_a, &rows, "in a mixed batch"),
                    1 => assert!(rows[0] == b_alone[row_b], "{}: B's row {row_b} differs", case.name),
                    _ => assert!(rows == c_alone[rows_c.clone()], "{}: C's rows {rows_c:?} differ", case.name),
                }
            }
            start_a = end_a;
        }
    });
}

fn after_a_prefix_that_another_sequence_computed() {
    everywhere(|case, model| {
        // Another prompt with the same first 128 tokens leaves four full blocks behind.
        let mut other = case.prompt[..128].to_vec();
        other.extend(random_tokens(10, 60, model.config().vocab_size));
        let mut batch = Batch::default();
        push(&mut batch, &other, 0..other.len(), &[9, 3, 12, 5, 0, 1], Wanted::None);
        run(model, &batch);

        let mut table = vec![9, 3, 12, 5];
        table.extend(40..40 + (BLOCKS - 4) as u32);
        let mut batch = Batch::default();
        push(&mut batch, case.prompt, 128..LEN, &table, Wanted::All);
        case.check(128, &run(model, &batch), "after a prefix hit");
    });
}

fn in_any_blocks_whatever_they_held_before() {
    everywhere(|case, model| {
        // Scattered blocks, and the one behind each, are dirty; then the prompt is computed in them.
        let table: Vec<u32> = (0..BLOCKS as u32).map(|index| (index * 29 + 11) % 64).collect();
        let used: Vec<u32> = table.iter().flat_map(|&block| [block, (block + 1) % 64]).collect();
        for (seed, blocks) in used.chunks(16).enumerate() {
            let tokens = blocks.len() * BLOCK as usize;
            let dirt = random_tokens(20 + seed as u64, tokens, model.config().vocab_size);
            let mut batch = Batch::default();
            push(&mut batch, &dirt, 0..tokens, blocks, Wanted::None);
            run(model, &batch);
        }
        let mut batch = Batch::default();
        push(&mut batch, case.prompt, 0..LEN, &table, Wanted::All);
        case.check(0, &run(model, &batch), "in scattered dirty blocks");
    });
}

fn after_blocks_were_copied() {
    everywhere(|case, model| {
        let table = first_blocks(BLOCKS);
        let mut batch = Batch::default();
        push(&mut batch, case.prompt, 0..250, &table, Wanted::None);
        run(model, &batch);
        // The last, half-full block is shared no longer; two more move as well.
        model.copy_blocks(&[(7, 50), (2, 51), (0, 63)]);
        let table = [63, 1, 51, 3, 4, 5, 6, 50, 52, 53];
        let mut batch = Batch::default();
        push(&mut batch, case.prompt, 250..LEN, &table, Wanted::All);
        case.check(250, &run(model, &batch), "after a copy of blocks");
    });
}

fn twice_the_same_after_other_work() {
    // Preemption by recompute: the sequence starts again from its first token in other blocks.
    everywhere(|case, model| {
        for table in [first_blocks(BLOCKS), (30..30 + BLOCKS as u32).collect()] {
            let mut batch = Batch::default();
            push(&mut batch, case.prompt, 0..LEN, &table, Wanted::All);
            case.check(0, &run(model, &batch), "computed again");
        }
    });
}

/// The logits depend on every part of the history, so that the tests above could fail.
#[test]
fn another_history_gives_other_bits() {
    fn check<B: Backend>(model: &mut Runner<B>) {
        let prompt = random_tokens(7, 40, model.config().vocab_size);
        let rows = run_alone(model, &prompt);
        for changed in [0, 1, 38] {
            let mut other = prompt.clone();
            other[changed] = (other[changed] + 1) % model.config().vocab_size as u32;
            let other = run_alone(model, &other);
            assert_eq!(rows[..changed], other[..changed], "rows before token {changed}");
            assert_ne!(rows[39], other[39], "the last row, with token {changed} changed");
        }
    }
    for checkpoint in CHECKPOINTS {
        for (class, kv_dtype, arithmetic) in PRECISIONS {
            check(&mut load_with_kv(cpu_of(None, 1, arithmetic), &committed(checkpoint), class, kv_dtype));
        }
    }
}

/// As of a host that loaded a library built with `-ffast-math`, and one that computes bounds.
#[test]
fn a_host_that_rounds_up_and_flushes_denormals_gets_the_same_bits() {
    for (class, threads) in [(WeightClass::Bf16, 1), (WeightClass::Int8, 2), (WeightClass::Int4, 1)] {
        let answer = || {
            let mut model = load(cpu(None, threads), &committed("gemma2"), class);
            let prompt = random_tokens(7, 40, model.config().vocab_size);
            run_alone(&mut model, &prompt).iter().map(|row| bits(row)).collect::<Vec<_>>()
        };
        let want = answer();
        in_an_odd_host(|| {
            assert!(answer() == want, "{class:?}, {threads} threads");
            assert!(is_odd(), "what the host had is restored");
        });
    }
}
