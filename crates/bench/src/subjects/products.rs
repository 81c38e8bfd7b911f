//! Speed of the matrix products beside what this machine can do at most.
//!
//! Few rows are judged by memory, many rows by arithmetic. Weights rotate through copies larger than the caches
//! together, as the layers of a model do.

use kernels::{Buffer, Cpu, Device, HostBackend, Int4Source, MatrixShape, Out, PackedMatrix, RowSource, WeightClass};
use roofline::{PassWork, peak};

use crate::limits::peaks_now;
use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

/// The products of a 0.5B model, and one of a 7B model: name, outputs, inputs.
const PRODUCTS: [(&str, usize, usize); 6] = [
    ("qkv", 1_152, 896),
    ("o", 896, 896),
    ("gate_up", 9_728, 896),
    ("down", 896, 4_864),
    ("7B o", 4_096, 4_096),
    (HEAD, 151_936, 896),
];
/// Of the rows that are sampled, which are few: the first three numbers.
const HEAD: &str = "head";
const ROWS: [usize; 7] = [1, 4, 8, 32, 128, 512, 2_048];
/// Weights: name, class, and whether int4 has even levels, as files have.
const WEIGHTS: [(&str, WeightClass, bool); 4] = [
    ("int4", WeightClass::Int4, false),
    ("int4 even", WeightClass::Int4, true),
    ("int8", WeightClass::Int8, false),
    ("bf16", WeightClass::Bf16, false),
];
/// Weights that a measurement passes over: far more than the caches hold.
const BYTES_IN_ROTATION: usize = 192 << 20;

/// Of the class that --weights names, or of all.
pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let cpu = setup.cpu()?;
    cpu.set_compute_thread();
    let asked = |class| setup.model.weights.is_none_or(|only| only == class);
    for (weights, class, even) in WEIGHTS.into_iter().filter(|(_, class, _)| asked(*class)) {
        for (name, out_features, in_features) in PRODUCTS {
            let matrices = copies(&cpu, MatrixShape { out_features, in_features }, class, even)?;
            let peaks = peaks_now(&cpu, |limits| peak(limits, class))?;
            for &num_rows in if name == HEAD { &ROWS[..3] } else { &ROWS } {
                let samples = time(&cpu, &matrices, num_rows, setup.repetitions)?;
                let matrix_flops = 2.0 * (num_rows * out_features * in_features) as f64;
                let work = PassWork { matrix_flops, bytes: matrices[0].bytes() as f64, ..PassWork::default() };
                let test = format!("{weights} {name} {out_features}x{in_features}, {num_rows} rows");
                rows.timed(test, &samples, Against::Limits(work, peaks))?;
            }
        }
    }
    Ok(())
}

/// As many copies of a matrix as fill the rotation.
fn copies(cpu: &Cpu, shape: MatrixShape, class: WeightClass, even: bool) -> Result<Vec<PackedMatrix>, BenchError> {
    // 24 random bits, then the next.
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *state >> 8
    };
    let floats = RowSource(&|row, to| {
        let mut state = row as u32;
        to.iter_mut().for_each(|w| *w = next(&mut state) as f32 / (1 << 24) as f32 - 0.5);
    });
    let nibbles = Int4Source(&|row, q, scales| {
        let mut state = row as u32;
        q.iter_mut().for_each(|q| *q = (next(&mut state) >> 20) as i8 - 8);
        scales.iter_mut().enumerate().for_each(|(group, scale)| *scale = (1 + group % 15) as f32);
    });
    let pack = || if even { cpu.pack_int4(shape, &nibbles) } else { cpu.pack(shape, class, &floats) };
    let mut matrices = vec![pack()?];
    while matrices.len() * matrices[0].bytes() < BYTES_IN_ROTATION {
        matrices.push(pack()?);
    }
    Ok(matrices)
}

/// Rows and results are on huge pages, as those of the forward pass.
fn time(cpu: &Cpu, matrices: &[PackedMatrix], rows: usize, repetitions: usize) -> Result<Vec<f64>, BenchError> {
    let MatrixShape { out_features, in_features } = matrices[0].shape();
    let (mut x, mut out) = (Buffer::zeroed(rows * in_features)?, Buffer::zeroed(rows * out_features)?);
    x.iter_mut().enumerate().for_each(|(i, x)| *x = (i * 37 % 101) as f32 * 0.02 - 1.0);
    let mut next = 0;
    let [samples] = Timing::of(repetitions).in_turns(|_| {
        cpu.linear(&x, &matrices[next], None, Out::Store(&mut out));
        next = (next + 1) % matrices.len();
    });
    Ok(samples)
}
