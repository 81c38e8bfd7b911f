//! The products of adapters alone, for the projections of a model of 0.5B parameters with 24 layers.

use std::ops::Range;

use kernels::{Cpu, Device, HostBackend, LowRank, LowRankShape, LowRankSource};
use roofline::PassWork;

use crate::limits::peaks_now;
use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

const LAYERS: usize = 24;
/// Inputs and the outputs of the parts: q, k and v; o; gate and up; down.
const MODULES: [(usize, &[usize]); 4] = [(896, &[896, 128, 128]), (896, &[896]), (896, &[4864, 4864]), (4864, &[896])];
/// The most inputs of any, and the most outputs.
const WIDEST: (usize, usize) = (4864, 2 * 4864);
/// Rows of a step, and adapters that they go through in turns.
const STEPS: [(usize, usize); 9] = [(1, 1), (4, 4), (16, 1), (16, 2), (16, 4), (16, 16), (64, 4), (512, 1), (512, 4)];

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let (cpu, rank) = (setup.cpu()?, setup.lora_rank);
    cpu.set_compute_thread();
    for (num_rows, adapters) in STEPS {
        let of_module = |module| (0..adapters).map(|_| pack(&cpu, rank, module)).collect::<Result<Vec<_>, _>>();
        // The adapters of each projection, layer after layer.
        let modules = (0..LAYERS).flat_map(|_| MODULES).map(of_module).collect::<Result<Vec<_>, _>>()?;
        let list = |own: usize| (0..num_rows as u32).filter(|row| *row as usize % adapters == own).collect();
        let lists: Vec<Vec<u32>> = (0..adapters).map(list).collect();
        let x: Vec<f32> = (0..num_rows * WIDEST.0).map(|at| (at % 37) as f32 * 0.1 - 1.8).collect();
        let mut out = vec![0.0f32; num_rows * WIDEST.1];
        let peaks = peaks_now(&cpu, |limits| limits.bf16_flops)?;
        let [samples] = Timing::of(setup.repetitions).in_turns(|_| {
            for (module, (in_features, parts)) in modules.iter().zip(MODULES.iter().cycle()) {
                let (x, out) = (&x[..num_rows * in_features], &mut out[..num_rows * parts.iter().sum::<usize>()]);
                let groups = module.iter().zip(&lists).map(|(matrices, rows)| (matrices, &rows[..]));
                HostBackend::add_low_rank(&cpu, x, groups, out);
            }
        });
        let numbers: usize = MODULES.iter().map(|(k, parts)| k * parts.len() + parts.iter().sum::<usize>()).sum();
        let work = PassWork {
            matrix_flops: (2 * LAYERS * num_rows * rank * numbers) as f64,
            bytes: modules.iter().flatten().map(|matrices| matrices.bytes() as f64).sum(),
            ..PassWork::default()
        };
        let test = format!("{num_rows} rows, {adapters} adapters of rank {rank}");
        rows.timed(test, &samples, Against::Limits(work, peaks))?;
    }
    Ok(())
}

/// One adapter's matrices at a projection.
fn pack(cpu: &Cpu, rank: usize, (in_features, parts): (usize, &[usize])) -> Result<LowRank, BenchError> {
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
    let shape = LowRankShape { in_features, rank: rank * parts.len(), out_features: parts.iter().sum() };
    Ok(cpu.pack_low_rank(shape, LowRankSource { a: &fill, reads: &reads, b: &fill })?)
}
