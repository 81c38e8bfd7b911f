//! Products with tiles: cuts of rows, columns and K against the definition, with NaN and extreme digits in the padding of
//! rows, and how many instructions they take.

use crate::amx_emulated::{implementations, tiles};
use crate::common::emulator::{self, Counts};
use crate::common::{Kind, packed, values};

use kernels::isa::Amx;
use kernels::{AccumulationOrder, Activation, Cpu, HeadColumns, HostBackend, MatrixShape, Out, Reference, WeightClass};
use testing::Dice;

/// Every way in which tiles compute a matrix, and its extremes.
const KINDS: [Kind; 8] = [
    Kind::Own(WeightClass::Bf16),
    Kind::Own(WeightClass::Int8),
    Kind::ImportedInt8 { groups: false },
    Kind::ImportedInt4 { narrow: true },
    Kind::ImportedInt4 { narrow: false },
    Kind::Own(WeightClass::Int4),
    Kind::Extreme(WeightClass::Int8),
    Kind::Extreme(WeightClass::Int4),
];

/// Rows of activations, by their lists of outliers.
#[derive(Clone, Copy, Debug)]
enum X {
    /// None; digits of 127 and -127.
    Extreme,
    None,
    /// One row has one.
    One,
    /// Every row has long ones of its own, some of two digits, some of three.
    Many,
    /// Every row has this number of quads, the same ones, as rows of models do, and a few have others.
    Heavy(usize),
}

const XS: [X; 6] = [X::Extreme, X::None, X::One, X::Many, X::Heavy(5), X::Heavy(20)];

impl X {
    fn rows(self, dice: &mut Dice, rows: usize, width: usize) -> Vec<f32> {
        let sign = |dice: &mut Dice| if dice.roll(2) == 0 { 1.0 } else { -1.0f32 };
        let mut x: Vec<f32> = (0..rows * width).map(|_| sign(dice) * (1.0 + dice.share() as f32 * 0.4)).collect();
        let channels: Vec<usize> = (0..20).map(|_| dice.roll(width)).collect();
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            match self {
                X::Extreme => x.iter_mut().for_each(|x| *x = sign(dice)),
                X::None => {}
                X::One if row > 0 => {}
                X::One => x[width / 2] *= 300.0,
                X::Many => (0..width / 20).for_each(|_| x[dice.roll(width)] *= [90.0, 30_000.0][dice.roll(2)]),
                X::Heavy(count) => {
                    channels[..count].iter().for_each(|&at| x[at] *= 200.0 * sign(dice));
                    if row % 7 == 3 {
                        x[dice.roll(width)] *= 50_000.0;
                    }
                }
            }
        }
        x
    }
}

/// Where results go: [`Out`].
#[derive(Clone, Copy, Debug)]
enum To {
    Store,
    Part,
    Add,
    Gate,
}

/// Numbers of results from which whole lines of one thread pass by the caches.
const LARGE: usize = (1 << 20) / size_of::<f32>();

struct Product {
    kind: Kind,
    shape: MatrixShape,
    rows: usize,
    x: X,
    to: To,
    bias: bool,
}

impl Product {
    /// The results, between numbers that are to stay.
    fn run<B: HostBackend>(&self, backend: &B, prepare: impl FnOnce(&B, &B::Matrix)) -> Vec<u32> {
        const BESIDE: usize = 40;
        let Product { rows, shape: MatrixShape { out_features, in_features }, .. } = *self;
        let dice = &mut Dice::new(rows as u64);
        let x = self.x.rows(dice, rows, in_features);
        let width = match self.to {
            To::Gate => out_features / 2,
            To::Part => out_features + 23,
            To::Store | To::Add => out_features,
        };
        let mut all = values(dice, 2 * BESIDE + 16 + rows * width);
        let (before, bias) = (all.clone(), values(dice, out_features));
        // Small results are of no alignment.
        let is_large = rows * width >= LARGE;
        let at = BESIDE + if is_large { all[BESIDE..].as_ptr().align_offset(64) } else { 0 };
        let out = &mut all[at..at + rows * width];
        let out = match self.to {
            To::Store => Out::Store(out),
            To::Part => Out::StoreAt { out, at: 5, width },
            To::Add => Out::Add(out),
            To::Gate => Out::Gated(Activation::Silu, out),
        };
        let matrix = packed(1, self.kind, self.shape, backend);
        prepare(backend, &matrix);
        backend.linear(&x, &matrix, self.bias.then_some(&bias[..]), out);
        for beside in [0..at, at + rows * width..all.len()] {
            assert_eq!(all[beside.clone()], before[beside], "{} wrote beside its results", self.name());
        }
        all[at..at + rows * width].iter().map(|y| y.to_bits()).collect()
    }

    fn name(&self) -> String {
        let Product { kind, shape: MatrixShape { out_features, in_features }, rows, x, to, bias } = self;
        format!("{kind:?}, {rows} rows of {x:?}, {in_features} to {out_features}, {to:?}, bias {bias}")
    }

    fn check(&self, cpu: &Cpu) {
        // What earlier products leave in the memory of rows.
        let leave = |cpu: &Cpu, matrix: &_| {
            let MatrixShape { out_features, in_features } = self.shape;
            let garbage = if self.kind == Kind::Own(WeightClass::Bf16) { f32::NAN } else { 1.0 };
            let mut out = vec![0.0; 128 * out_features];
            cpu.linear(&vec![garbage; 128 * in_features], matrix, None, Out::Store(&mut out));
        };
        let got = self.run(cpu, leave);
        let want = self.run(&Reference::of(AccumulationOrder::Amx), |_, _| {});
        let differs = got.iter().zip(&want).position(|(got, want)| got != want);
        assert_eq!(differs, None, "{}: at {:?}", self.name(), differs.map(|at| (got[at], want[at])));
    }
}

#[test]
fn every_row_count_of_every_way_to_multiply() {
    let Some(tiles) = tiles() else { return };
    let cpus = implementations(tiles);
    let cases = KINDS.into_iter().enumerate().flat_map(|kind| (1..=97).map(move |rows| (kind, rows)));
    for ((at, kind), rows) in testing::part_of(cases, 2) {
        let turn = rows + at;
        let shape = MatrixShape { out_features: [32, 64, 90][turn % 3], in_features: [1_000, 129, 70][turn / 3 % 3] };
        let (x, to) = (XS[(turn + turn / 6) % 6], [To::Store, To::Add, To::Gate, To::Part][turn % 4]);
        Product { kind, shape, rows, x, to, bias: turn % 5 < 2 }.check(&cpus[turn % cpus.len()]);
    }
}

#[test]
fn large_results_that_pass_by_the_caches() {
    let Some(tiles) = tiles() else { return };
    let cpu = Cpu::with_tiles(Some(1), tiles).unwrap();
    let kinds = [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4].map(Kind::Own);
    for (kind, x) in kinds.into_iter().zip([X::None, X::None, X::Many]) {
        // The last pair of strips is not whole, or it is.
        for (to, out_features) in [(To::Store, 4_112), (To::Gate, 8_192)] {
            let shape = MatrixShape { out_features, in_features: 33 };
            Product { kind, shape, rows: 65, x, to, bias: kind == kinds[1] }.check(&cpu);
        }
    }
}

#[test]
fn every_list_and_every_destination() {
    let Some(tiles) = tiles() else { return };
    let cpus = implementations(tiles);
    // Several panels of rows, and K in parts.
    for (rows, out_features, in_features) in [(64, 64, 400), (600, 32, 300), (70, 40, 5_600), (33, 544, 2_800)] {
        let shape = MatrixShape { out_features, in_features };
        let kinds = KINDS.into_iter().take(if out_features == 544 { 2 } else { 8 }).enumerate();
        for (turn, kind) in testing::part_of(kinds, if rows == 64 { 1 } else { 3 }) {
            let xs = if rows == 64 { &XS[..] } else { &[X::None, X::Heavy(5)][turn % 2..][..1] };
            let tos = if rows == 64 { &[To::Store, To::Add, To::Gate][..] } else { &[To::Store] };
            let biases = if rows == 64 { &[false, true][..] } else { &[false] };
            let ends = || tos.iter().flat_map(|&to| biases.iter().map(move |&bias| (to, bias)));
            // A quick run has every list, and every destination with and without a bias.
            let cases = xs.iter().flat_map(|&x| ends().map(move |end| (x, end)));
            for (x, (to, bias)) in testing::part_of(cases, 5) {
                Product { kind, shape, rows, x, to, bias }.check(&cpus[turn % cpus.len()]);
            }
        }
    }
}

#[test]
fn products_by_head_leave_the_columns_of_others() {
    fn run<B: HostBackend>(backend: &B, kind: Kind, rows: usize) -> Vec<u32> {
        let shape = MatrixShape { out_features: 40, in_features: 64 };
        let (from, to) = (HeadColumns { width: 210, stride: 70 }, HeadColumns { width: 150, stride: 50 });
        let (x, mut out) = (values(&mut Dice::new(5), rows * 210), values(&mut Dice::new(6), rows * 150));
        let matrices: Vec<B::Matrix> = (0..3).map(|head| packed(head, kind, shape, backend)).collect();
        backend.linear_by_head((&x, from), &matrices, (&mut out, to));
        out.into_iter().map(f32::to_bits).collect()
    }
    let Some(tiles) = tiles() else { return };
    for kind in [Kind::Own(WeightClass::Bf16), Kind::Own(WeightClass::Int8)] {
        for rows in [7, 100] {
            let got = run(&Cpu::with_tiles(Some(1), tiles).unwrap(), kind, rows);
            assert!(got == run(&Reference::of(AccumulationOrder::Amx), kind, rows), "{kind:?}, {rows} rows");
        }
    }
}

/// Counts of a product on one thread, where tiles are emulated. They are the model of docs/hardware.md: an instruction
/// more is cycles more on any machine.
#[test]
fn tile_instructions_of_a_product() {
    let Some(tiles) = tiles() else { return };
    if Amx::detect().is_some() {
        return eprintln!("skipped: instructions are counted where they are emulated");
    }
    let cpu = Cpu::with_tiles(Some(1), tiles).unwrap();
    let (bf16, int8) = (Kind::Own(WeightClass::Bf16), Kind::Own(WeightClass::Int8));
    let (one, narrow) = (Kind::ImportedInt8 { groups: false }, Kind::ImportedInt4 { narrow: true });
    let uneven = Kind::Own(WeightClass::Int4);
    // Kind, rows, outputs, inputs; products for each tile of rows, strip and step; at most loads and stores in 1,000 products.
    let table = [
        (bf16, 512, 896, 896, 1, 1_036, 72),
        (bf16, 16, 96, 896, 1, 1_600, 72),
        (bf16, 85, 96, 896, 1, 1_036, 72),
        (bf16, 64, 64, 4_864, 1, 1_093, 99),
        (int8, 512, 896, 896, 1, 1_000, 500),
        (int8, 32, 64, 4_864, 1, 1_000, 500),
        (one, 64, 64, 4_864, 1, 1_066, 80),
        (narrow, 128, 896, 896, 1, 1_000, 72),
        (uneven, 128, 896, 896, 2, 1_072, 143),
    ];
    let count = |kind, rows, out_features, in_features, x: X| {
        let matrix = packed(1, kind, MatrixShape { out_features, in_features }, &cpu);
        let x = x.rows(&mut Dice::new(2), rows, in_features);
        let mut out = vec![0f32; rows * out_features];
        emulator::counts(|| cpu.linear(&x, &matrix, None, Out::Store(&mut out)))
    };
    for (kind, rows, out_features, in_features, digits, loads, stores) in table {
        let counts = count(kind, rows, out_features, in_features, X::None);
        let name = format!("{kind:?}, {rows} rows, {in_features} to {out_features}: {counts:?}");
        let step = if kind == bf16 { 32 } else { 64 };
        let least = rows.div_ceil(16) * out_features.div_ceil(16).next_multiple_of(2) * in_features.div_ceil(step);
        let Counts { configurations, loads: loaded, stores: stored, products, .. } = counts;
        assert_eq!((configurations, products), (1, digits * least), "{name}");
        assert!(loaded * 1_000 <= loads * products, "{name}: {} loads", loaded * 1_000 / products);
        assert!(stored * 1_000 <= stores * products, "{name}: {} stores", stored * 1_000 / products);
    }
    // Quads that all rows list are one more step of two digits, for each 32 rows and pair.
    let [none, heavy] = [X::None, X::Heavy(5)].map(|x| count(int8, 128, 896, 896, x).products);
    assert_eq!(heavy - none, 128 / 32 * (896 / 32) * 8);
}
