//! What a step costs that decodes and reads a prompt at once, beside its two halves as steps of their own.
//!
//! ```text
//! cargo run --release -p model --example mixed_speed -- DIRECTORY [bf16|int8|int4] [bf16|int8] [context]
//!                                                       the weights, keys and values; 128 or 4096, else both
//! decode    B sequences, one row each, logits of all
//! chunk     N rows of another sequence, logits of the last
//! both      the same rows in one pass
//! ```
//! Every sequence has the context in the cache before. The three are timed in turns, and medians are compared: a
//! machine that changes its speed meanwhile changes all three.

use checkpoint::{Checkpoint, Source};
use kernels::{Cpu, CpuOptions, KvDtype, WeightClass};
use model::{Batch, Forward, KvBudget, LoadOptions, Span, load};
use std::ops::Range;
use std::time::Instant;

const BLOCK_SIZE: usize = 32;
const CONTEXTS: [usize; 2] = [128, 4096];
const DECODING: [usize; 2] = [8, 32];
const CHUNKS: [usize; 3] = [64, 256, 512];
/// Blocks of a sequence: the longest context and the longest chunk.
const BLOCKS: usize = (4096 + 512) / BLOCK_SIZE;
/// Times that each step is taken.
const ROUNDS: usize = 5;

fn main() {
    let mut args = std::env::args().skip(1);
    let directory = args.next().expect("a directory that holds a model");
    let weights = match args.next().as_deref() {
        None | Some("int8") => WeightClass::Int8,
        Some("int4") => WeightClass::Int4,
        Some("bf16") => WeightClass::Bf16,
        Some(other) => panic!("weights are bf16, int8 or int4, not {other}"),
    };
    let kv_dtype = match args.next().as_deref() {
        None | Some("bf16") => KvDtype::Bf16,
        Some("int8") => KvDtype::Int8,
        Some(other) => panic!("keys and values are bf16 or int8, not {other}"),
    };
    let only: Option<usize> = args.next().map(|context| context.parse().expect("a context"));
    let most = |list: &[usize]| *list.iter().max().expect("not empty");
    let (decoding, chunk) = (most(&DECODING), most(&CHUNKS));
    let options = LoadOptions {
        weights,
        as_stored: false,
        max_rows: decoding + chunk,
        max_logit_rows: decoding + 1,
        max_model_len: None,
        kv_blocks: KvBudget::Blocks((decoding + 1) * BLOCKS),
        block_size: BLOCK_SIZE,
        image_directory: None,
        kv_dtype,
        adapters: model::AdapterRoom::default(),
    };
    let checkpoint = Checkpoint::open(Source::Directory(directory.into())).expect("a model");
    let cpu = Cpu::new(CpuOptions::default()).expect("a backend");
    let mut model = load(cpu, &checkpoint, &options, &mut |_| ()).expect("a model");
    model.adopt_thread();
    println!("{}, keys and values {}", model.describe(), kv_dtype.name());
    let vocab_size = model.config().vocab_size;
    let mut logits = vec![0.0; (decoding + 1) * vocab_size];
    fill(&mut model, vocab_size, decoding, chunk);

    println!("| context | decode | chunk | decode, ms | chunk, ms | sum, ms | both, ms | both / sum |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for context in CONTEXTS.into_iter().filter(|&context| only.is_none_or(|only| only == context)) {
        for decoding in DECODING {
            for chunk in CHUNKS {
                let mut steps = [Batch::default(), Batch::default(), Batch::default()];
                for (step, (decodes, reads)) in steps.iter_mut().zip([(true, false), (false, true), (true, true)]) {
                    let sequences = if decodes { 0..decoding } else { 0..0 };
                    sequences.for_each(|sequence| rows(step, vocab_size, sequence, context..context + 1));
                    if reads {
                        // Sequence `most(&DECODING)` is the one that never decodes.
                        rows(step, vocab_size, most(&DECODING), context..context + chunk);
                    }
                }
                let mut times = [const { Vec::new() }; 3];
                for _ in 0..ROUNDS {
                    for (step, times) in steps.iter().zip(&mut times) {
                        let begin = Instant::now();
                        model.forward(step, &mut logits[..step.logit_rows.len() * vocab_size]);
                        times.push(begin.elapsed().as_secs_f64() * 1e3);
                    }
                }
                let [decode, read, both] = times.map(|mut times: Vec<f64>| {
                    times.sort_by(f64::total_cmp);
                    times[times.len() / 2]
                });
                let sum = decode + read;
                println!(
                    "| {context} | {decoding} | {chunk} | {decode:.2} | {read:.2} | {sum:.2} | {both:.2} | {:.3} |",
                    both / sum
                );
            }
        }
    }
}

/// Reads the longest context into one sequence and copies it to the others.
fn fill(model: &mut dyn Forward, vocab_size: usize, others: usize, chunk: usize) {
    let context = CONTEXTS[CONTEXTS.len() - 1];
    for start in (0..context).step_by(chunk) {
        let mut batch = Batch::default();
        rows(&mut batch, vocab_size, 0, start..context.min(start + chunk));
        batch.logit_rows.clear();
        let ticket = model.launch(&batch);
        model.wait(ticket);
    }
    let blocks = (BLOCKS..BLOCKS * (others + 1)).map(|block| ((block % BLOCKS) as u32, block as u32));
    model.copy_blocks(&blocks.collect::<Vec<_>>());
}

/// Adds positions of a sequence to the batch; the last has logits. Speed does not depend on the tokens, so they are a
/// fixed scramble of the position.
fn rows(batch: &mut Batch, vocab_size: usize, sequence: usize, positions: Range<usize>) {
    let (table, first_row) = (batch.block_tables.len() as u32, batch.num_rows() as u32);
    let first_block = sequence * BLOCKS;
    for position in positions.clone() {
        let scrambled = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        batch.token_ids.push((scrambled % vocab_size as u64) as u32);
        batch.positions.push(position as u32);
        batch.slots.push((first_block * BLOCK_SIZE + position) as u32);
    }
    batch.block_tables.extend((first_block..first_block + BLOCKS).map(|block| block as u32));
    let (start, num_rows) = (positions.start as u32, positions.len() as u32);
    batch.spans.push(Span { first_row, num_rows, start, table: table..table + BLOCKS as u32, adapter: None });
    batch.logit_rows.push(first_row + num_rows - 1);
}
