//! Speed of the matrix products beside what this machine can do at most.
//!
//! Few rows are judged by memory, many rows by arithmetic. Weights rotate through copies larger than the caches
//! together, as the layers of a model do.

use kernels::{Cpu, Device, HostBackend, MatrixShape, Out, PackedMatrix, RowSource, WeightClass};
use roofline::{PassWork, peak};

use crate::limits::peaks_now;
use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

/// The products of a 0.5B model: name, outputs, inputs.
const PRODUCTS: [(&str, usize, usize); 5] =
    [("qkv", 1_152, 896), ("o", 896, 896), ("gate_up", 9_728, 896), ("down", 896, 4_864), ("head", 151_936, 896)];
const ROWS: [usize; 6] = [1, 4, 8, 32, 128, 512];
/// Weights that a measurement passes over: far more than the caches hold.
const BYTES_IN_ROTATION: usize = 192 << 20;

/// Of the class that --weights names, or of all.
pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let cpu = setup.cpu()?;
    cpu.set_compute_thread();
    let classes = [WeightClass::Int4, WeightClass::Int8, WeightClass::Bf16];
    for class in classes.into_iter().filter(|class| setup.model.weights.is_none_or(|only| only == *class)) {
        for (name, out_features, in_features) in PRODUCTS {
            let matrices = copies(&cpu, MatrixShape { out_features, in_features }, class)?;
            let peaks = peaks_now(&cpu, |limits| peak(limits, class))?;
            for num_rows in ROWS {
                let samples = time(&cpu, &matrices, num_rows, setup.repetitions);
                let matrix_flops = 2.0 * (num_rows * out_features * in_features) as f64;
                let work = PassWork { matrix_flops, bytes: matrices[0].bytes() as f64, ..PassWork::default() };
                let test = format!("{} {name} {out_features}x{in_features}, {num_rows} rows", class.name());
                rows.timed(test, &samples, Against::Limits(work, peaks))?;
            }
        }
    }
    Ok(())
}

/// As many copies of a matrix as fill the rotation.
fn copies(cpu: &Cpu, shape: MatrixShape, class: WeightClass) -> Result<Vec<PackedMatrix>, BenchError> {
    let rows = RowSource(&|row, to| {
        let mut state = row as u32;
        to.iter_mut().for_each(|w| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *w = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
        });
    });
    let mut matrices = vec![cpu.pack(shape, class, &rows)?];
    while matrices.len() * matrices[0].bytes() < BYTES_IN_ROTATION {
        matrices.push(cpu.pack(shape, class, &rows)?);
    }
    Ok(matrices)
}

fn time(cpu: &Cpu, matrices: &[PackedMatrix], rows: usize, repetitions: usize) -> Vec<f64> {
    let MatrixShape { out_features, in_features } = matrices[0].shape();
    let x: Vec<f32> = (0..rows * in_features).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
    let mut out = vec![0f32; rows * out_features];
    let mut next = 0;
    let [samples] = Timing::of(repetitions).in_turns(|_| {
        cpu.linear(&x, &matrices[next], None, Out::Store(&mut out));
        next = (next + 1) % matrices.len();
    });
    samples
}
