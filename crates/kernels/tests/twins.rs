//! Every fast matrix product against its plain twin: the same bits for any number of rows, any ragged shape, any number
//! of threads and any instruction set.

use crate::common;

use common::{Case, KINDS, Kind, SHAPES, cases, values};
use kernels::isa::Isa;
use kernels::pointwise::gated;
use kernels::threads::max_threads;
use kernels::{
    AccumulationOrder, Activation, Cpu, CpuOptions, Device, Float32, HostBackend, Int4Source, Int8Source, MatrixShape,
    Out, PackedMatrix, Reference, RowSource, WeightClass, gate_up_row,
};
use testing::Dice;

const CLASSES: [WeightClass; 3] = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One and two threads of every instruction set there is here, in both arithmetics; plain loops, which take the
/// longest, on two threads in a long run only.
fn implementations() -> Vec<Cpu> {
    let mut all = Vec::new();
    for (isa, arithmetic) in Isa::available().into_iter().flat_map(|isa| AccumulationOrder::ALL.map(|a| (isa, a))) {
        let most = if isa == Isa::Scalar && !testing::is_long() { 1 } else { 2 };
        for threads in 1..=max_threads().min(most) {
            let (isa, arithmetic) = (Some(isa), Some(arithmetic));
            all.push(
                Cpu::new(CpuOptions { threads: Some(threads), isa, arithmetic, ..CpuOptions::default() }).unwrap(),
            );
        }
    }
    all
}

/// Every implementation; in a quick run each instruction set once. For sums of integers, which are the same in both
/// arithmetics, of rows that take long to pack.
fn implementations_for_integers() -> Vec<Cpu> {
    let is_tried =
        |cpu: &Cpu| testing::is_long() || cpu.threads() == 1 && cpu.arithmetic() == AccumulationOrder::ALL[0];
    implementations().into_iter().filter(is_tried).collect()
}

#[test]
fn every_implementation_returns_the_bits_of_the_definition() {
    let implementations = implementations();
    assert!(implementations.iter().any(|cpu| cpu.isa() == Isa::Scalar));
    for (seed, kind, shape, rows) in testing::part_of(cases(), 9) {
        let case = Case::new(seed, kind, shape, rows);
        for cpu in implementations.iter().filter(|cpu| case.concerns(cpu)) {
            case.check(cpu);
        }
    }
}

#[test]
fn every_row_count_of_every_shape_up_to_a_kernel_s_most_rows() {
    let implementations = implementations();
    for shape in SHAPES {
        for kind in KINDS {
            for rows in testing::part_of(1..=17, 4) {
                let case = Case::new(1_000 + rows as u64, kind, shape, rows);
                for cpu in implementations.iter().filter(|cpu| cpu.threads() == 1 && case.concerns(cpu)) {
                    case.check(cpu);
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let shape = MatrixShape { out_features: 80, in_features: 416 };
    let mut random = Dice::new(5);
    let (weights, x) = (values(&mut random, 80 * 416), values(&mut random, 40 * 416));
    let rows = RowSource(&|row, to| to.copy_from_slice(&weights[row * 416..][..416]));
    for cpu in implementations() {
        for class in CLASSES {
            let matrix = cpu.pack(shape, class, &rows).unwrap();
            let (mut together, mut alone) = (vec![0.0; 40 * 80], vec![0.0; 80]);
            cpu.linear(&x, &matrix, None, Out::Store(&mut together));
            for row in 0..40 {
                cpu.linear(&x[row * 416..][..416], &matrix, None, Out::Store(&mut alone));
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&alone), bits(&together[row * 80..][..80]), "row {row}, {class:?}, {}", cpu.describe());
            }
        }
    }
}

/// The product beside other numbers of the rows, which stay.
fn check_part(name: &str, backend: &impl HostBackend) {
    let mut random = Dice::new(7);
    // Width of a row, where the product begins, the shape.
    for (width, at, n, k) in [(1, 0, 1, 33), (70, 0, 33, 64), (70, 33, 37, 129), (200, 96, 32, 256)] {
        let (weights, bias) = (values(&mut random, n * k), values(&mut random, n));
        let rows = RowSource(&|row, to| to.copy_from_slice(&weights[row * k..][..k]));
        for class in CLASSES {
            let matrix = backend.pack(MatrixShape { out_features: n, in_features: k }, class, &rows).unwrap();
            for num_rows in [0, 1, 7, 40] {
                let (x, mut out) = (values(&mut random, num_rows * k), values(&mut random, num_rows * width));
                let (mut wanted, mut alone) = (out.clone(), vec![f32::NAN; num_rows * n]);
                backend.linear(&x, &matrix, Some(&bias), Out::Store(&mut alone));
                let pairs = wanted.chunks_exact_mut(width).zip(alone.chunks_exact(n));
                pairs.for_each(|(wanted, y)| wanted[at..at + n].copy_from_slice(y));
                backend.linear(&x, &matrix, Some(&bias), Out::StoreAt { out: &mut out, at, width });
                assert_eq!(bits(&out), bits(&wanted), "{num_rows} rows, {k} to {n} at {at}, {class:?}, {name}");
            }
        }
    }
}

#[test]
fn a_product_is_the_same_as_a_part_of_wider_rows() {
    implementations().iter().for_each(|cpu| check_part(&cpu.describe(), cpu));
    AccumulationOrder::ALL.map(Reference::of).iter().for_each(|reference| check_part("reference", reference));
    check_part("float32", &Float32::new(Some(2)).unwrap());
}

#[test]
fn a_gate_behind_a_product_changes_no_bit() {
    let mut random = Dice::new(6);
    let implementations = implementations();
    for (width, in_features) in [(1, 33), (7, 64), (16, 100), (33, 129), (416, 256)] {
        let shape = MatrixShape { out_features: 2 * width, in_features };
        let (weights, bias) = (values(&mut random, 2 * width * in_features), values(&mut random, 2 * width));
        let x = values(&mut random, 40 * in_features);
        let row_of = |row: usize| &weights[row * in_features..][..in_features];
        let stored = RowSource(&|row, to| to.copy_from_slice(row_of(row)));
        let gate_up = RowSource(&|row, to| to.copy_from_slice(row_of(gate_up_row(row, width))));
        let gate_up_bias: Vec<f32> = (0..2 * width).map(|row| bias[gate_up_row(row, width)]).collect();
        for class in CLASSES {
            let references = AccumulationOrder::ALL.map(Reference::of);
            let as_stored = references.each_ref().map(|reference| reference.pack(shape, class, &stored).unwrap());
            let in_order = references.each_ref().map(|reference| reference.pack(shape, class, &gate_up).unwrap());
            let packed: Vec<PackedMatrix> =
                implementations.iter().map(|cpu| cpu.pack(shape, class, &gate_up).unwrap()).collect();
            for num_rows in [1, 2, 7, 40] {
                let x = &x[..num_rows * in_features];
                // The product of the rows as they are stored, put in order afterwards, and gated: three steps.
                let wanted = [0, 1].map(|at: usize| {
                    let mut y = vec![f32::NAN; num_rows * 2 * width];
                    references[at].linear(x, &as_stored[at], Some(&bias), Out::Store(&mut y));
                    let ordered: Vec<f32> = y
                        .chunks_exact(2 * width)
                        .flat_map(|y| (0..2 * width).map(|at| y[gate_up_row(at, width)]))
                        .collect();
                    let mut out = vec![f32::NAN; num_rows * width];
                    gated(None, Isa::Scalar, Activation::Silu, &ordered, width, &mut out);
                    bits(&out)
                });
                let got = |backend: &dyn Fn(Out<'_>)| {
                    let mut out = vec![f32::NAN; num_rows * width];
                    backend(Out::Gated(Activation::Silu, &mut out));
                    bits(&out)
                };
                let what = format!("{num_rows} rows, {in_features} to {width}, {class:?}");
                for at in [0, 1] {
                    let got = got(&|out| references[at].linear(x, &in_order[at], Some(&gate_up_bias), out));
                    assert_eq!(got, wanted[at], "{what}, reference, {:?}", AccumulationOrder::ALL[at]);
                }
                for (cpu, matrix) in implementations.iter().zip(&packed) {
                    let wanted = &wanted[usize::from(cpu.arithmetic() == AccumulationOrder::Amx)];
                    let got = got(&|out| cpu.linear(x, matrix, Some(&gate_up_bias), out));
                    assert_eq!(got, *wanted, "{what}, {}", cpu.describe());
                }
            }
        }
    }
}

#[test]
fn rows_of_gate_and_up_are_each_in_their_place() {
    for width in [1, 15, 16, 17, 32, 40, 4864] {
        let mut rows: Vec<usize> = (0..2 * width).map(|row| gate_up_row(row, width)).collect();
        for (part, of_part) in rows.chunks(32).enumerate() {
            let (gate, up) = of_part.split_at(of_part.len() / 2);
            assert!(gate.iter().copied().eq(part * 16..part * 16 + gate.len()), "width {width}, part {part}: {gate:?}");
            assert!(gate.iter().zip(up).all(|(gate, up)| gate + width == *up), "width {width}, part {part}");
        }
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..2 * width), "width {width}: every row once");
    }
}

#[test]
fn int8_sums_are_exact_at_the_extremes() {
    // Every weight and activation is +-127 after quantization: sums of 133 000 products, just within i32.
    let (out_features, in_features) = (33, 133_000);
    for cpu in implementations() {
        for (sign, name) in [(1.0f32, "all positive"), (-1.0, "all negative")] {
            let rows = RowSource(&|_, to| to.fill(3.0));
            let matrix = cpu.pack(MatrixShape { out_features, in_features }, WeightClass::Int8, &rows).unwrap();
            let mut out = vec![0.0; out_features];
            cpu.linear(&vec![sign * 2.0; in_features], &matrix, None, Out::Store(&mut out));
            let exact = (127 * 127 * in_features) as f32 * sign;
            // A scale of weights is rounded up to 17 bits.
            let column_scale = f32::from_bits(((3.0f32 / 127.0).to_bits() + 127) & !127);
            let expected = (exact * (2.0f32 / 127.0)) * column_scale;
            assert!(out.iter().all(|y| y.to_bits() == expected.to_bits()), "{name}, {}: {out:?}", cpu.describe());
        }
    }
}

/// The scale of a group of int4 weights.
type GroupScale = fn(usize) -> f32;

/// Int4 weights given by formulas.
fn pack_int4(cpu: &Cpu, shape: MatrixShape, q: fn(usize) -> i8, scale: GroupScale) -> PackedMatrix {
    let rows = Int4Source(&|_, to, scales| {
        to.iter_mut().enumerate().for_each(|(k, to)| *to = q(k));
        scales.iter_mut().enumerate().for_each(|(group, to)| *to = scale(group));
    });
    cpu.pack_int4(shape, &rows).unwrap()
}

#[test]
fn int4_sums_are_exact_at_the_extremes() {
    // `(K, the largest ratio that keeps the sum within i32)`: every weight -8, every activation +-127, all ratios the
    // largest but the first. The first sums come close to 2^31; the second would pass it, so packing takes smaller
    // ratios.
    for (in_features, ratio) in [(16_640, 127), (132_992, 15)] {
        for cpu in implementations_for_integers() {
            // No integers up to 127 have this ratio: those that have one keep it, and fewer steps.
            let scale = |group: usize| if group == 0 { std::f32::consts::FRAC_1_PI } else { 1.0 };
            let matrix = pack_int4(&cpu, MatrixShape { out_features: 33, in_features }, |_| -8, scale);
            for (sign, name) in [(1.0f32, "positive"), (-1.0, "negative")] {
                let mut out = vec![0.0; 33];
                cpu.linear(&vec![sign * 2.0; in_features], &matrix, None, Out::Store(&mut out));
                let first = (std::f32::consts::FRAC_1_PI * ratio as f32).round_ties_even() as i64;
                let sum = -8 * 127 * (32 * first + (in_features as i64 - 32) * ratio);
                assert!(sum > i64::from(i32::MIN) && sum < -2_000_000_000, "{sum}");
                let expected = (sum as f32 * sign * (2.0f32 / 127.0)) * (1.0 / ratio as f32);
                assert!(out.iter().all(|y| y.to_bits() == expected.to_bits()), "{name}, {}: {out:?}", cpu.describe());
            }
        }
    }
}

#[test]
fn int4_sums_of_uneven_levels_are_exact_at_the_extremes() {
    // Rows of one number: all levels are the same, and the ratios the largest whose sum fits i32.
    let (out_features, in_features) = (33, 130_016);
    let weight = |row: usize| if row.is_multiple_of(2) { -3.0f32 } else { 0.7 };
    let rows = RowSource(&|row, to| to.fill(weight(row)));
    let shape = MatrixShape { out_features, in_features };
    let product = |backend: &dyn Fn(&mut [f32])| -> Vec<u32> {
        let mut out = vec![0.0; out_features];
        backend(&mut out);
        for (row, y) in out.iter().enumerate() {
            let exact = weight(row) * 2.0 * in_features as f32;
            assert!((y.abs() - exact.abs()).abs() <= exact.abs() * 1e-5, "{exact} became {y}");
        }
        out.iter().map(|y| y.to_bits()).collect()
    };
    for sign in testing::part_of([1.0f32, -1.0], 2) {
        let x = vec![sign * 2.0; in_features];
        let matrix = Reference::new().pack(shape, WeightClass::Int4, &rows).unwrap();
        let wanted = product(&|out| Reference::new().linear(&x, &matrix, None, Out::Store(out)));
        for cpu in implementations_for_integers() {
            let matrix = cpu.pack(shape, WeightClass::Int4, &rows).unwrap();
            let found = product(&|out| cpu.linear(&x, &matrix, None, Out::Store(out)));
            assert_eq!(found, wanted, "{sign}, {}", cpu.describe());
        }
    }
}

#[test]
fn imported_int4_weights_are_kept() {
    // `(scale of a group, what a weight may be off by, per unit of q)`
    let cases: [(GroupScale, f32); 4] = [
        (|_| 0.123, 0.0),                                    // one scale for the whole row
        (|group| 0.125 * [-15.0, 1.0, 7.0][group % 3], 0.0), // what files have that we wrote
        (|group| [0.5, 0.0, 2.0][group % 3], 0.0),           // a group of zeros
        (|group| 0.01 - 0.003 * group as f32, 0.02 / 254.0),
    ];
    let shape = MatrixShape { out_features: 40, in_features: 330 };
    let q = |k: usize| (k * 7 % 16) as i8 - 8;
    for cpu in implementations() {
        for (scale, tolerance) in cases {
            let matrix = pack_int4(&cpu, shape, q, scale);
            let mut row = vec![0.0; 330];
            cpu.embed(&matrix, &[39], &mut row);
            for (k, &got) in row.iter().enumerate() {
                let (q, want) = (f32::from(q(k)), f32::from(q(k)) * scale(k / 32));
                let rounding = want.abs() * 2.0 * f32::EPSILON;
                assert!((got - want).abs() <= q.abs() * tolerance + rounding, "{k}: {want} became {got}");
            }
        }
        for bad in [|_| f32::NAN, |_| f32::INFINITY] {
            let mut out = vec![0.0; 40];
            let matrix = pack_int4(&cpu, shape, q, bad);
            cpu.linear(&[1.0; 330], &matrix, None, Out::Store(&mut out));
            assert!(out.iter().all(|y| y.is_nan()));
        }
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let shape = MatrixShape { out_features: 40, in_features: 70 };
    let weights = RowSource(&|_, to| to.fill(0.5));
    for cpu in implementations() {
        for class in CLASSES {
            let matrix = cpu.pack(shape, class, &weights).unwrap();
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = vec![1.0; 3 * 70];
                x[70 + 69] = bad;
                let mut out = vec![0.0; 3 * 40];
                cpu.linear(&x, &matrix, None, Out::Store(&mut out));
                let finite = |row: usize| out[row * 40..][..40].iter().all(|y| y.is_finite());
                let broken = |row: usize| out[row * 40..][..40].iter().all(|y| !y.is_finite());
                assert!(finite(0) && broken(1) && finite(2), "{bad} {class:?} {}", cpu.describe());
            }
        }
    }
}

/// `weights` through `pack` and back by `embed`.
fn round_trip<B: HostBackend>(backend: &B, shape: MatrixShape, class: WeightClass, weights: &[f32]) -> Vec<f32> {
    let rows = RowSource(&|row, to| to.copy_from_slice(&weights[row * shape.in_features..][..to.len()]));
    let matrix = backend.pack(shape, class, &rows).unwrap();
    let ids: Vec<u32> = (0..shape.out_features as u32).collect();
    let mut out = vec![0.0; weights.len()];
    backend.embed(&matrix, &ids, &mut out);
    out
}

#[test]
fn packing_keeps_every_weight_as_its_class_rounds_it() {
    for shape in SHAPES {
        let MatrixShape { out_features, in_features } = shape;
        let weights = values(&mut Dice::new(in_features as u64), out_features * in_features);
        for class in CLASSES {
            let got = round_trip(&Reference::new(), shape, class, &weights);
            for (row, (got, weights)) in got.chunks(in_features).zip(weights.chunks(in_features)).enumerate() {
                let absmax = weights.iter().fold(0f32, |max, w| max.max(w.abs()));
                for (k, (&got, &w)) in got.iter().zip(weights).enumerate() {
                    // Half a unit in the last place of bf16, or half a step of the channel's scale.
                    let tolerance = match class {
                        WeightClass::Bf16 => w.abs() / 256.0 + 1e-18,
                        WeightClass::Int8 => absmax / 254.0 * 1.0001,
                        // Half a step of a group's scale, or what the search chose to clip.
                        WeightClass::Int4 => absmax * 0.3,
                    };
                    assert!((got - w).abs() <= tolerance, "{shape:?} {class:?} row {row} k {k}: {w} became {got}");
                }
            }
            for cpu in implementations() {
                assert_eq!(round_trip(&cpu, shape, class, &weights), got, "{shape:?} {class:?} {}", cpu.describe());
            }
        }
    }
}

#[test]
fn bf16_weights_survive_packing_exactly() {
    let shape = MatrixShape { out_features: 50, in_features: 75 };
    let weights: Vec<f32> =
        values(&mut Dice::new(3), 50 * 75).iter().map(|w| f32::from_bits(w.to_bits() & 0xffff_0000)).collect();
    let kept: Vec<f32> = weights.iter().map(|&w| if w.abs() < 2f32.powi(-60) { 0.0 } else { w }).collect();
    assert_eq!(round_trip(&Reference::new(), shape, WeightClass::Bf16, &weights), kept);
}

#[test]
fn a_matrix_says_how_many_bytes_a_step_reads() {
    let rows = RowSource(&|_, to| to.fill(1.0));
    let bytes = |class, out_features, in_features| {
        let matrix: PackedMatrix =
            Reference::new().pack(MatrixShape { out_features, in_features }, class, &rows).unwrap();
        Reference::new().matrix_bytes(&matrix)
    };
    assert_eq!(bytes(WeightClass::Bf16, 64, 96), 64 * 96 * 2);
    assert_eq!(
        bytes(WeightClass::Int8, 64, 128),
        64 * 128 + 2 * 64 + 64 * 4 + 128,
        "ratios of a pair are padded to 64"
    );
    assert_eq!(bytes(WeightClass::Int4, 64, 128), 64 * 128 / 2 + 64 * (128 / 32) + 64 * 4 + 128);
    assert_eq!(bytes(WeightClass::Bf16, 33, 33), 64 * 64 * 2, "padded to 32 columns and a step of 32");
    assert_eq!(bytes(WeightClass::Int8, 1, 65), 32 * 128 + 64 + 32 * 4 + 68, "padded to 32 columns and a step of 64");
}

#[test]
fn a_scratch_that_served_a_large_call_serves_a_small_one() {
    let implementations = implementations();
    for kind in KINDS {
        // Wide, then narrow and ragged: what the wide call left must not leak into the padding.
        let wide = Case::new(1, kind, MatrixShape { out_features: 32, in_features: 1_000 }, 40);
        let narrow = Case::new(2, kind, MatrixShape { out_features: 40, in_features: 37 }, 9);
        for cpu in &implementations {
            wide.check(cpu);
            narrow.check(cpu);
        }
    }
}

#[test]
fn a_missing_instruction_set_is_an_error_that_names_what_there_is() {
    for isa in Isa::ALL {
        let made = Cpu::new(CpuOptions { threads: Some(1), isa: Some(isa), ..CpuOptions::default() });
        assert_eq!(made.is_ok(), Isa::available().contains(&isa));
        if let Err(error) = made {
            let text = error.to_string();
            assert!(text.contains(isa.name()) && text.contains("scalar"), "{text}");
        }
    }
}

/// Every layout of groups, on every instruction set, in a few shapes: those in [`KINDS`] go through all of them.
#[test]
fn groups_of_files_are_computed_as_defined() {
    let implementations = implementations();
    for format in 0..common::formats().len() {
        for (index, rows) in [1, 2, 5, 13].into_iter().enumerate() {
            let shape = SHAPES[(format + index) % SHAPES.len()];
            let case = Case::new(7_000 + format as u64, Kind::Blocks(format), shape, rows);
            implementations.iter().for_each(|cpu| case.check(cpu));
        }
    }
}

/// A product with groups of a file is that of their numbers, up to the rounding of activations.
#[test]
fn groups_of_files_mean_what_they_say() {
    for (index, format) in common::formats().into_iter().enumerate() {
        let case = Case::new(index as u64, Kind::Blocks(index), MatrixShape { out_features: 40, in_features: 320 }, 3);
        let exact = case.run(&Float32::new(Some(1)).unwrap());
        let found = case.run(&Reference::new());
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = norm(&mut exact.iter().zip(&found).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied());
        assert!(error < 0.01, "{format:?}: {error}");
    }
}

/// Int8 weights of others may be -128, which our own quantizer never gives.
#[test]
fn int8_from_elsewhere_is_computed_as_defined() {
    for (rows, out_features, in_features) in [(1, 33, 64), (2, 40, 200), (7, 64, 1024), (33, 70, 130)] {
        let shape = MatrixShape { out_features, in_features };
        let codes = |row: usize, q: &mut [i8], scales: &mut [f32]| {
            q.iter_mut().enumerate().for_each(|(k, q)| *q = if (row + k) % 3 == 2 { 127 } else { -128 });
            scales.fill(0.01 * (row + 1) as f32);
        };
        let x: Vec<f32> = (0..rows * in_features).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
        let product = |backend: &dyn Fn(&mut [f32])| -> Vec<u32> {
            let mut out = vec![f32::NAN; rows * out_features];
            backend(&mut out);
            out.iter().map(|y| y.to_bits()).collect()
        };
        let wanted = product(&|out| {
            let matrix = Reference::new().pack_int8(shape, &Int8Source(&codes)).unwrap();
            Reference::new().linear(&x, &matrix, None, Out::Store(out));
        });
        for isa in Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: Some(1), isa: Some(isa), ..CpuOptions::default() }).unwrap();
            let found = product(&|out| {
                let matrix = cpu.pack_int8(shape, &Int8Source(&codes)).unwrap();
                cpu.linear(&x, &matrix, None, Out::Store(out));
            });
            assert_eq!(found, wanted, "{isa:?} rows={rows} {shape:?}");
        }
    }
}

/// An intrinsic is a call of its own where it is in a closure that the compiler did not inline, since closures have
/// none of the instruction sets of the function around them. (Quantizing to int4 took twice as long.)
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn no_intrinsic_is_called() {
    if cfg!(debug_assertions) {
        return;
    }
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    // What follows the parts of a function's name wherever they are in the program, which has no such text itself.
    let follows = |parts: &[&str]| -> Vec<String> {
        let name = parts.concat();
        let found = program.windows(name.len() + 12).filter(|window| window.starts_with(name.as_bytes()));
        found.map(|window| String::from_utf8_lossy(&window[name.len()..]).into_owned()).collect()
    };
    assert!(!follows(&["7kernels", "4arch", "6x86_64"]).is_empty(), "the program has no names of functions");
    for module in follows(&["9core_arch", "3x86"]) {
        let vectors = ["3avx", "4avx2", "7avx512", "8avx512", "10avx512", "3fma", "4f16c"];
        let called = vectors.iter().any(|name| module.starts_with(name));
        assert!(!called, "a function of core::arch::x86_64 is called, of module {module}");
    }
}
