//! What it costs, or brings, to split a model over memory nodes: the same passes on one node and on several, in turns.
//!
//! ```text
//! cargo run --release -p model --example nodes_speed -- DIRECTORY [bf16|int8|int4] [threads]
//! ```
//! On a machine with one memory node two are imagined in its memory: what the split itself costs. On one with several
//! these are compared with the same threads and memory that lies where the system puts it.

use checkpoint::{Checkpoint, Source};
use kernels::threads::{NodeChoice, default_threads, num_nodes};
use kernels::{Cpu, CpuOptions, KvDtype, WeightClass, limits};
use model::{Batch, Forward, KvBudget, LoadOptions, Span, load};
use std::time::Instant;

const BLOCK_SIZE: usize = 32;
/// Blocks of a sequence.
const BLOCKS: usize = 512 / BLOCK_SIZE;
/// Name, sequences, and their rows.
const PASSES: [(&str, usize, usize); 3] = [("decode x1", 1, 1), ("decode x8", 8, 1), ("prefill 512", 1, 512)];
/// Times that each pass is taken on either; of the prompt a quarter.
const ROUNDS: usize = 60;

fn main() {
    let mut args = std::env::args().skip(1);
    let directory = args.next().expect("a directory that holds a model");
    let class = args.next().unwrap_or_else(|| "int8".into());
    let weights = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4].into_iter();
    let weights = weights.into_iter().find(|weights| weights.name() == class).expect("bf16, int8 or int4");
    let threads = args.next().map_or_else(default_threads, |count| count.parse().expect("a number of threads"));
    let options = LoadOptions {
        weights,
        as_stored: false,
        max_rows: 512,
        max_logit_rows: 8,
        max_model_len: None,
        kv_blocks: KvBudget::Blocks(8 * BLOCKS),
        block_size: BLOCK_SIZE,
        image_directory: None,
        kv_dtype: KvDtype::Bf16,
        adapters: model::AdapterRoom::default(),
    };
    let found = num_nodes(NodeChoice::AsFound, threads);
    let split = if found > 1 { NodeChoice::AsFound } else { NodeChoice::Imagined(2) };
    let checkpoint = Checkpoint::open(Source::Directory(directory.into())).expect("a model");
    let mut models = [NodeChoice::One, split].map(|nodes| {
        let cpu = Cpu::new(CpuOptions { threads: Some(threads), nodes, ..CpuOptions::default() }).expect("a backend");
        if nodes == split {
            let nodes = limits::measure_nodes(cpu.pool(), 1.0).expect("there is memory").expect("there are two");
            println!("read alone {:?}, from a neighbour {:.3e} bytes/s", nodes.alone, nodes.neighbour);
        }
        load(cpu, &checkpoint, &options, &mut |_| ()).expect("a model")
    });
    println!("one node: {}; split: {}", models[0].describe(), models[1].describe());
    if found == 1 {
        println!("this machine has one memory node: what two bring is not measured, only what the split costs");
    }
    models[0].adopt_thread();
    let vocab_size = models[0].config().vocab_size;
    let mut logits = vec![0.0; 8 * vocab_size];
    println!("| pass | one node, ms | split, ms | split / one, median of turns | quartiles |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (name, sequences, rows) in PASSES {
        let batch = batch(vocab_size, sequences, rows);
        let rounds = if rows == 1 { ROUNDS } else { ROUNDS / 4 };
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (model, times) in models.iter_mut().zip(&mut times) {
                // A few at a time: the threads of the other fall asleep meanwhile.
                for _ in 0..4 {
                    let begin = Instant::now();
                    model.forward(&batch, &mut logits[..sequences * vocab_size]);
                    // The first round warms up.
                    if round > 0 {
                        times.push(begin.elapsed().as_secs_f64() * 1e3);
                    }
                }
            }
        }
        let best = |four: &[f64]| four.iter().copied().fold(f64::INFINITY, f64::min);
        let [one, split] = times.map(|times| times.chunks(4).map(best).collect::<Vec<f64>>());
        let ratios = sorted(split.iter().zip(&one).map(|(split, one)| split / one).collect());
        let at = |share: usize| ratios[(ratios.len() - 1) * share / 4];
        let [one, split] = [sorted(one), sorted(split)].map(|times| times[times.len() / 2]);
        println!("| {name} | {one:.3} | {split:.3} | {:.3} | {:.3} to {:.3} |", at(2), at(1), at(3));
    }
}

fn sorted(mut times: Vec<f64>) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    times
}

/// The last rows of as many sequences as long as they may be. Speed depends neither on tokens nor on what is cached.
fn batch(vocab_size: usize, sequences: usize, rows: usize) -> Batch {
    let mut batch = Batch::default();
    for sequence in 0..sequences {
        let (first_row, start) = (batch.num_rows() as u32, BLOCKS * BLOCK_SIZE - rows);
        for position in start..start + rows {
            batch.token_ids.push((position * 7919 % vocab_size) as u32);
            batch.positions.push(position as u32);
            batch.slots.push((sequence * BLOCKS * BLOCK_SIZE + position) as u32);
        }
        let table = batch.block_tables.len() as u32;
        batch.block_tables.extend((sequence * BLOCKS..(sequence + 1) * BLOCKS).map(|block| block as u32));
        let table = table..table + BLOCKS as u32;
        batch.spans.push(Span { first_row, num_rows: rows as u32, start: start as u32, table, adapter: None });
        batch.logit_rows.push(first_row + rows as u32 - 1);
    }
    batch
}
