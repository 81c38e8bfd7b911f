//! Low-rank matrices beside the projections of a model of 0.5B parameters: the operation of its own against whole
//! products of padded matrices, in turns. The fewest microseconds that the adapters of 24 layers took.
//!
//! ```text
//! cargo run --release -p kernels --example low_rank_speed [rank]
//! ```

use kernels::routing::{gather, scatter_add};
use kernels::{
    Cpu, CpuOptions, Device, HostBackend, LowRank, LowRankShape, LowRankSource, MatrixShape, Out, PackedMatrix,
    RowSource, WeightClass,
};
use std::ops::Range;
use std::time::{Duration, Instant};

const LAYERS: usize = 24;
/// Inputs and the outputs of the parts: q, k and v; o; gate and up; down.
const MODULES: [(usize, &[usize]); 4] = [(896, &[896, 128, 128]), (896, &[896]), (896, &[4864, 4864]), (4864, &[896])];
const TURNS: usize = 31;

struct Module {
    own: LowRank,
    whole: [PackedMatrix; 2],
}

fn module(cpu: &Cpu, rank: usize, (in_features, parts): (usize, &[usize])) -> Module {
    let out_features: usize = parts.iter().sum();
    let reads = |output: usize| -> Range<usize> {
        let (mut row, mut part) = (output, 0);
        while row >= parts[part] {
            (row, part) = (row - parts[part], part + 1);
        }
        part * rank..(part + 1) * rank
    };
    let fill = |row: usize, to: &mut [f32]| {
        to.iter_mut().enumerate().for_each(|(k, to)| *to = ((row * 31 + k * 17) % 101) as f32 / 5_000.0 - 0.01);
    };
    let shape = LowRankShape { in_features, rank: rank * parts.len(), out_features };
    let b = |row: usize, to: &mut [f32]| fill(row, &mut to[reads(row)]);
    let whole = |shape, rows: &(dyn Fn(usize, &mut [f32]) + Sync)| {
        cpu.pack(shape, WeightClass::Bf16, &RowSource(rows)).expect("memory for a matrix")
    };
    Module {
        own: cpu.pack_low_rank(shape, LowRankSource { a: &fill, reads: &reads, b: &fill }).expect("memory"),
        whole: [
            whole(MatrixShape { out_features: shape.rank, in_features }, &fill),
            whole(MatrixShape { out_features, in_features: shape.rank }, &b),
        ],
    }
}

fn main() {
    let rank = std::env::args().nth(1).map_or(16, |rank| rank.parse().expect("a rank"));
    let cpu = Cpu::new(CpuOptions::default()).expect("threads");
    cpu.pool().pin_caller();
    println!("{}, rank {rank}", cpu.describe());
    for (rows, adapters) in [(1, 1), (4, 4), (16, 1), (16, 2), (16, 4), (16, 16), (64, 4), (512, 1), (512, 4)] {
        let layers: Vec<Vec<Vec<Module>>> = (0..LAYERS)
            .map(|_| MODULES.iter().map(|&of| (0..adapters).map(|_| module(&cpu, rank, of)).collect()).collect())
            .collect();
        let lists: Vec<Vec<u32>> =
            (0..adapters).map(|own| (0..rows as u32).filter(|row| *row as usize % adapters == own).collect()).collect();
        let x: Vec<f32> = (0..rows * 4864).map(|at| (at % 37) as f32 * 0.1 - 1.8).collect();
        let mut out = vec![0.0f32; rows * 2 * 4864];
        let (mut gathered, mut h, mut d) = (vec![0.0; x.len()], vec![0.0; rows * 3 * rank], out.clone());
        let ones = vec![1.0; rows];
        let mut best = [Duration::MAX; 2];
        for _ in 0..TURNS {
            let begin = Instant::now();
            for layer in &layers {
                for (module, (in_features, parts)) in layer.iter().zip(MODULES) {
                    let (x, out) = (&x[..rows * in_features], &mut out[..rows * parts.iter().sum::<usize>()]);
                    let groups = module.iter().zip(&lists).map(|(module, rows)| (&module.own, &rows[..]));
                    HostBackend::add_low_rank(&cpu, x, groups, out);
                }
            }
            best[0] = best[0].min(begin.elapsed());
            let begin = Instant::now();
            for layer in &layers {
                for (module, (in_features, parts)) in layer.iter().zip(MODULES) {
                    let width = parts.iter().sum::<usize>();
                    let (x, out) = (&x[..rows * in_features], &mut out[..rows * width]);
                    for (Module { whole: [a, b], .. }, list) in module.iter().zip(&lists) {
                        let h = &mut h[..list.len() * rank * parts.len()];
                        if adapters == 1 {
                            cpu.linear(x, a, None, Out::Store(h));
                            cpu.linear(h, b, None, Out::Add(out));
                            continue;
                        }
                        let gathered = &mut gathered[..list.len() * in_features];
                        let d = &mut d[..list.len() * width];
                        gather(Some(cpu.pool()), x, in_features, list, gathered);
                        cpu.linear(gathered, a, None, Out::Store(h));
                        cpu.linear(h, b, None, Out::Store(d));
                        scatter_add(Some(cpu.pool()), cpu.isa(), d, &ones[..list.len()], list, width, out);
                    }
                }
            }
            best[1] = best[1].min(begin.elapsed());
        }
        let [own, whole] = best.map(|best| best.as_secs_f64() * 1e6);
        let bytes: usize = layers.iter().flatten().flatten().map(|module| module.own.bytes()).sum();
        println!(
            "{rows:>4} rows, {adapters:>2} adapters   own {own:>9.0} us ({:>5.1} GB/s)   whole {whole:>9.0} us   {:.2}",
            bytes as f64 / own / 1e3,
            own / whole
        );
    }
}
