//! Speed of the matrix products against what this machine can do at most.
//!
//! ```text
//! cargo run --release -p kernels --example kernel_speed [isa] [threads] [arithmetic] [classes]
//! ```
//! Few rows are judged by memory: the share of read bandwidth at which weights pass. Many rows are judged by
//! arithmetic: the share of the peak of the multiply instruction. Weights rotate through copies larger than the
//! caches together, as the layers of a model do.

use kernels::isa::Isa;
use kernels::limits;
use kernels::{
    Arithmetic, Cpu, CpuOptions, Device, HostBackend, MatrixShape, Out, PackedMatrix, RowSource, WeightClass,
};
use std::time::Instant;

/// The products of a 0.5B model: `(name, N, K)`.
const PRODUCTS: [(&str, usize, usize); 5] =
    [("qkv", 1_152, 896), ("o", 896, 896), ("gate_up", 9_728, 896), ("down", 896, 4_864), ("head", 151_936, 896)];
const ROWS: [usize; 6] = [1, 4, 8, 32, 128, 512];
/// Weights that a measurement passes over: far more than the caches hold.
const BYTES_IN_ROTATION: usize = 192 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let isa = args.next().map(|name| Isa::from_name(&name).expect("an instruction set"));
    let threads = args.next().map(|count| count.parse().expect("a number of threads"));
    let arithmetic = args.next().map(|name| Arithmetic::from_name(&name).expect("pairs or tiles"));
    let classes = args.next().unwrap_or_else(|| "int4,int8,bf16".into());
    let cpu = Cpu::new(CpuOptions { threads, isa, arithmetic, ..CpuOptions::default() }).expect("a backend");
    cpu.pool().pin_caller();
    let limits = limits::measure(cpu.pool(), cpu.isa(), cpu.arithmetic(), 1.0).expect("there is memory");
    println!("{}", cpu.describe());
    println!("read bandwidth {:.1} GB/s", limits.read_bandwidth / 1e9);
    println!(
        "int8 {:.2} TOPS ({}), fastest {:.2} ({})",
        limits.int8_ops / 1e12,
        limits.int8_kind,
        limits.fastest_int8_ops / 1e12,
        limits.fastest_int8_kind
    );
    println!(
        "bf16 {:.2} TFLOPS ({}), fastest {:.2} ({})",
        limits.bf16_flops / 1e12,
        limits.bf16_kind,
        limits.fastest_bf16_flops / 1e12,
        limits.fastest_bf16_kind
    );
    for class in [WeightClass::Int4, WeightClass::Int8, WeightClass::Bf16] {
        if !classes.contains(class.name()) {
            continue;
        }
        let peak = if class == WeightClass::Bf16 { limits.bf16_flops } else { limits.int8_ops };
        println!("\n{class:?}: share of bandwidth (measured again before each line) / share of peak");
        println!("{:>20} {:>6}{}", "", "GB/s", ROWS.map(|rows| format!("{:>18}", format!("{rows} rows"))).concat());
        for (name, out_features, in_features) in PRODUCTS {
            let shape = MatrixShape { out_features, in_features };
            let matrices = copies(&cpu, shape, class);
            // Other tenants of a shared host take their part of the bandwidth, now more, now less.
            let read_bandwidth =
                limits::measure(cpu.pool(), cpu.isa(), cpu.arithmetic(), 0.6).expect("there is memory").read_bandwidth;
            print!("{:>20} {:>6.1}", format!("{name} {out_features}x{in_features}"), read_bandwidth / 1e9);
            for rows in ROWS {
                let seconds = time(&cpu, &matrices, rows);
                let bandwidth = matrices[0].bytes() as f64 / seconds / read_bandwidth;
                let compute = 2.0 * (rows * out_features * in_features) as f64 / seconds / peak;
                print!("{:>18}", format!("{:.1}% / {:.1}%", bandwidth * 100.0, compute * 100.0));
            }
            println!();
        }
    }
}

/// As many copies of a matrix as fill the rotation, and the speed of packing them.
fn copies(cpu: &Cpu, shape: MatrixShape, class: WeightClass) -> Vec<PackedMatrix> {
    let rows = RowSource(&|row, to| {
        let mut state = row as u32;
        to.iter_mut().for_each(|w| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *w = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
        });
    });
    let pack = || cpu.pack(shape, class, &rows).expect("memory");
    let mut matrices = vec![pack()];
    while matrices.len() * matrices[0].bytes() < BYTES_IN_ROTATION {
        matrices.push(pack());
    }
    matrices
}

/// Seconds of one product in the best pass over the copies, as the limits are those of a best pass.
fn time(cpu: &Cpu, matrices: &[PackedMatrix], rows: usize) -> f64 {
    let MatrixShape { out_features, in_features } = matrices[0].shape();
    let x: Vec<f32> = (0..rows * in_features).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
    let mut out = vec![0f32; rows * out_features];
    let budget = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < 3 || (budget.elapsed().as_secs_f64() < 0.3 && seconds.len() < 100) {
        let start = Instant::now();
        let mut count = 0;
        for matrix in matrices {
            cpu.linear(&x, matrix, None, Out::Store(&mut out));
            count += 1;
            if start.elapsed().as_secs_f64() > 0.004 {
                break;
            }
        }
        seconds.push(start.elapsed().as_secs_f64() / f64::from(count));
    }
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}
