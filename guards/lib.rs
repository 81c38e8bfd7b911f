//! Fixtures of the instruction counts in `benches/instructions.rs`.
//!
//! Wall time depends on the neighbours of a machine, instructions do not: the same binary and inputs give the same
//! count (Valgrind's callgrind), so a limit on it holds a pull request to what the code did before. Valgrind knows no
//! AVX-512, so the kernels counted here are those of AVX2: the structure around them is the same.

pub mod crowd;

use kernels::{AccumulationOrder, Cpu, CpuOptions, Device, Isa, MatrixShape, PackedMatrix, RowSource, WeightClass};

/// Numbers around zero, the same in every run.
pub fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// One thread, so that no count depends on which thread waits for which.
pub fn cpu() -> Cpu {
    Cpu::new(CpuOptions {
        threads: Some(1),
        isa: Some(Isa::Avx2),
        arithmetic: Some(AccumulationOrder::Amx),
        ..CpuOptions::default()
    })
    .expect("a CPU with AVX2")
}

/// Random weights `[out_features, in_features]`.
pub fn matrix(cpu: &Cpu, class: WeightClass, out_features: usize, in_features: usize) -> PackedMatrix {
    let weights = values(out_features * in_features, 1);
    let rows = |row: usize, to: &mut [f32]| to.copy_from_slice(&weights[row * in_features..][..in_features]);
    cpu.pack(MatrixShape { out_features, in_features }, class, &RowSource(&rows)).expect("memory")
}
