//! Seeded cases that judge a matrix product against its definition, shared by the tests of every implementation.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod emulator;
pub(crate) mod low_rank;

use kernels::quant::{Codes, GroupScale, Scales};
use kernels::{
    AccumulationOrder, BlockFormat, BlockSource, Cpu, Device, HostBackend, Int4Source, Int8Source, MatrixShape, Out,
    Reference, RowSource, WeightClass,
};
use testing::Dice;

/// Where the weights of a case come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Numbers, packed into a class.
    Own(WeightClass),
    /// Int4 with group scales of any size, or multiples of one, up to 15.
    ImportedInt4 { narrow: bool },
    /// Int8, -128 too, with one scale per channel or with group scales of any size.
    ImportedInt8 { groups: bool },
    /// Groups of a file, in the format with this index in [`formats`].
    Blocks(usize),
    /// Int8 or int4 with the largest weights and ratios that there are.
    #[allow(dead_code)] // tiles are tried on x86 alone
    Extreme(WeightClass),
}

pub(crate) fn formats() -> Vec<BlockFormat> {
    let levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut formats = Vec::new();
    for codes in [Codes::Eight, Codes::Four { levels }] {
        for group in [16, 32] {
            for mins in [false, true] {
                for scales in [Scales::Half, Scales::Super, Scales::Full] {
                    formats.push(BlockFormat { codes, group, mins, scales });
                }
            }
        }
    }
    let levels = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]; // MXFP4, doubled
    formats.push(BlockFormat { codes: Codes::Four { levels }, group: 32, mins: false, scales: Scales::Power });
    formats.push(BlockFormat { codes: Codes::Eight, group: 16, mins: false, scales: Scales::Power });
    formats
}

/// Everything that a product is defined for.
pub(crate) const KINDS: [Kind; 13] = [
    Kind::Own(WeightClass::Bf16),
    Kind::Own(WeightClass::Int8),
    Kind::Own(WeightClass::Int4),
    Kind::ImportedInt4 { narrow: false },
    Kind::ImportedInt4 { narrow: true },
    Kind::ImportedInt8 { groups: false },
    Kind::ImportedInt8 { groups: true },
    Kind::Blocks(1),
    Kind::Blocks(9),
    Kind::Blocks(12),
    Kind::Blocks(22),
    Kind::Blocks(24),
    Kind::Blocks(25),
];

/// Mostly around one; some zeros, some exact ties, some large and some far below what counts as zero.
fn value(random: &mut Dice) -> f32 {
    let unit = random.signed();
    match random.roll(32) {
        0 => 0.0,
        1 => unit * 1e-20,
        2 => unit * 100.0,
        3 => (random.roll(255) as f32 - 127.0) * 0.5,
        _ => unit,
    }
}

/// `len` of them.
pub(crate) fn values(random: &mut Dice, len: usize) -> Vec<f32> {
    (0..len).map(|_| value(random)).collect()
}

/// A matrix, its inputs, and the results by definition.
pub(crate) struct Case {
    pub(crate) name: String,
    weights: Weights,
    shape: MatrixShape,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// What is in the output before, if the product is added to it.
    residual: Option<Vec<f32>>,
    /// In each arithmetic; of integers, for which they are the same, once.
    expected: Vec<Vec<f32>>,
}

enum Weights {
    Own(WeightClass, Vec<f32>),
    /// Integers, and scales by group of 32.
    ImportedInt4(Vec<i8>, Vec<f32>),
    /// Integers, and scales by group of 128.
    ImportedInt8(Vec<i8>, Vec<f32>),
    /// Levels, and scales by group.
    Blocks(BlockFormat, Vec<i8>, Vec<GroupScale>),
}

impl Weights {
    /// Random weights of a kind.
    fn drawn(random: &mut Dice, kind: Kind, shape: MatrixShape) -> Weights {
        let MatrixShape { out_features, in_features } = shape;
        match kind {
            Kind::Own(class) => {
                let mut weights = values(random, out_features * in_features);
                // Columns of other sizes, for which integers have powers of two.
                if random.roll(2) == 1 {
                    let odd = weights.iter_mut().enumerate().filter(|(at, _)| at % in_features % 5 == 3);
                    odd.for_each(|(_, w)| *w /= 64.0);
                }
                Weights::Own(class, weights)
            }
            Kind::ImportedInt4 { narrow } => {
                let q = (0..out_features * in_features).map(|_| random.roll(16) as i8 - 8).collect();
                let scales = (0..out_features * in_features.div_ceil(32)).map(|_| match narrow {
                    true => (random.roll(31) as f32 - 15.0) * 0.125,
                    false => (random.roll(1_000) as f32 - 500.0) * 0.01,
                });
                Weights::ImportedInt4(q, scales.collect())
            }
            Kind::ImportedInt8 { groups } => {
                let q = (0..out_features * in_features).map(|_| random.roll(256) as u8 as i8).collect();
                let per_row = in_features.div_ceil(128);
                let mut scales: Vec<f32> =
                    (0..out_features * per_row).map(|_| (random.roll(1_000) as f32 + 1.0) * 0.01).collect();
                if !groups {
                    scales.chunks_mut(per_row).for_each(|row| row.fill(row[0]));
                }
                Weights::ImportedInt8(q, scales)
            }
            Kind::Extreme(class) => {
                let (group, least) = if class == WeightClass::Int4 { (32, -8) } else { (128, -128) };
                let q = (0..out_features * in_features).map(|_| if random.roll(9) == 0 { 7 } else { least }).collect();
                let scale = |_| if random.roll(5) == 0 { 0.01 } else { 1.27 };
                let scales = (0..out_features * in_features.div_ceil(group)).map(scale).collect();
                if group == 32 { Weights::ImportedInt4(q, scales) } else { Weights::ImportedInt8(q, scales) }
            }
            Kind::Blocks(format) => {
                let format = formats()[format];
                let level = |random: &mut Dice| match format.codes {
                    Codes::Eight => random.roll(256) as u8 as i8,
                    Codes::Four { levels } => levels[random.roll(16)],
                };
                let q = (0..out_features * in_features).map(|_| level(random)).collect();
                let per_row = in_features.div_ceil(format.group);
                let small = |random: &mut Dice| match format.scales {
                    Scales::Power if random.roll(9) == 0 => 0.0,
                    Scales::Power => 2f32.powi(random.roll(40) as i32 - 36),
                    _ => half::f16::from_f32((random.roll(2_000) as f32 - 1_000.0) * 1e-4).to_f32(),
                };
                let mut scales = Vec::new();
                for group in 0..out_features * per_row {
                    let ratio = |random: &mut Dice| match format.scales {
                        Scales::Half | Scales::Power => 1,
                        _ => random.roll(256) as u8 as i8,
                    };
                    let mut scale = GroupScale {
                        d: small(random),
                        ratio: ratio(random),
                        m: small(random),
                        min_ratio: ratio(random),
                    };
                    // 64 weights have one `d`.
                    if format.scales == Scales::Super && group % per_row % (64 / format.group) != 0 {
                        let GroupScale { d, m, .. } = scales[group - 1];
                        scale = GroupScale { d, m, ..scale };
                    }
                    scales.push(scale);
                }
                Weights::Blocks(format, q, scales)
            }
        }
    }

    /// The weights, packed for a backend.
    fn pack<B: HostBackend>(&self, shape: MatrixShape, backend: &B) -> B::Matrix {
        match self {
            Weights::Own(class, weights) => {
                let rows = |row: usize, to: &mut [f32]| to.copy_from_slice(&weights[row * to.len()..][..to.len()]);
                backend.pack(shape, *class, &RowSource(&rows)).unwrap()
            }
            Weights::ImportedInt4(q, scales) => {
                let rows = |row: usize, q_to: &mut [i8], scales_to: &mut [f32]| {
                    q_to.copy_from_slice(&q[row * q_to.len()..][..q_to.len()]);
                    scales_to.copy_from_slice(&scales[row * scales_to.len()..][..scales_to.len()]);
                };
                backend.pack_int4(shape, &Int4Source(&rows)).unwrap()
            }
            Weights::ImportedInt8(q, scales) => {
                let rows = |row: usize, q_to: &mut [i8], scales_to: &mut [f32]| {
                    q_to.copy_from_slice(&q[row * q_to.len()..][..q_to.len()]);
                    scales_to.copy_from_slice(&scales[row * scales_to.len()..][..scales_to.len()]);
                };
                backend.pack_int8(shape, &Int8Source(&rows)).unwrap()
            }
            Weights::Blocks(format, q, scales) => {
                let rows = |row: usize, q_to: &mut [i8], scales_to: &mut [GroupScale]| {
                    q_to.copy_from_slice(&q[row * q_to.len()..][..q_to.len()]);
                    scales_to.copy_from_slice(&scales[row * scales_to.len()..][..scales_to.len()]);
                };
                backend.pack_blocks(shape, *format, &BlockSource(&rows)).unwrap()
            }
        }
    }
}

/// A random matrix of a kind, packed for a backend.
#[allow(dead_code)] // as above
pub(crate) fn packed<B: HostBackend>(seed: u64, kind: Kind, shape: MatrixShape, backend: &B) -> B::Matrix {
    Weights::drawn(&mut Dice::new(seed), kind, shape).pack(shape, backend)
}

impl Case {
    pub(crate) fn new(seed: u64, kind: Kind, shape: MatrixShape, rows: usize) -> Case {
        let MatrixShape { out_features, in_features } = shape;
        let name = format!("seed={seed} {kind:?} rows={rows} N={out_features} K={in_features}");
        let mut random = Dice::new(seed);
        let weights = Weights::drawn(&mut random, kind, shape);
        let mut x = values(&mut random, rows * in_features);
        // Outliers of every size in some rows: none, a few of two digits, and some of three.
        for row in x.chunks_mut(in_features) {
            for _ in 0..random.roll(4) * in_features.div_ceil(200) {
                row[random.roll(in_features)] *= 10f32.powi(random.roll(6) as i32);
            }
        }
        let bias = (random.roll(2) == 0).then(|| values(&mut random, out_features));
        let residual = (random.roll(2) == 0).then(|| values(&mut random, rows * out_features));
        let mut case = Case { name, weights, shape, x, bias, residual, expected: Vec::new() };
        let arithmetics = AccumulationOrder::ALL.into_iter().take(if case.is_bf16() { 2 } else { 1 });
        case.expected = arithmetics.map(|arithmetic| case.run(&Reference::of(arithmetic))).collect();
        case
    }

    fn is_bf16(&self) -> bool {
        matches!(self.weights, Weights::Own(WeightClass::Bf16, _))
    }

    /// Whether this implementation computes the case in another way than the same one in the first arithmetic.
    #[allow(dead_code)] // some tests have implementations of one arithmetic only
    pub(crate) fn concerns(&self, cpu: &Cpu) -> bool {
        self.is_bf16() || cpu.arithmetic() == AccumulationOrder::ALL[0]
    }

    /// The product on a backend.
    pub(crate) fn run<B: HostBackend>(&self, backend: &B) -> Vec<f32> {
        let matrix = self.weights.pack(self.shape, backend);
        let mut out = vec![f32::NAN; self.x.len() / self.shape.in_features * self.shape.out_features];
        let to = match &self.residual {
            Some(residual) => {
                out.copy_from_slice(residual);
                Out::Add(&mut out[..])
            }
            None => Out::Store(&mut out[..]),
        };
        backend.linear(&self.x, &matrix, self.bias.as_deref(), to);
        out
    }

    pub(crate) fn check(&self, cpu: &Cpu) {
        let got = self.run(cpu);
        let arithmetic =
            AccumulationOrder::ALL.into_iter().position(|arithmetic| arithmetic == cpu.arithmetic()).unwrap();
        let expected = self.expected.get(arithmetic).unwrap_or(&self.expected[0]);
        for (at, (got, want)) in got.iter().zip(expected).enumerate() {
            let (row, column) = (at / self.shape.out_features, at % self.shape.out_features);
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{} on {}, {:?}: row {row} column {column} is {got:e}, by definition {want:e}",
                self.name,
                cpu.describe(),
                cpu.arithmetic()
            );
        }
    }
}

/// Ragged and round widths and depths; the deep one makes tile kernels cut K.
pub(crate) const SHAPES: [MatrixShape; 7] = [
    MatrixShape { out_features: 1, in_features: 1 },
    MatrixShape { out_features: 7, in_features: 33 },
    MatrixShape { out_features: 32, in_features: 64 },
    MatrixShape { out_features: 45, in_features: 100 },
    MatrixShape { out_features: 65, in_features: 129 },
    MatrixShape { out_features: 96, in_features: 256 },
    MatrixShape { out_features: 70, in_features: 1_190 },
];

/// Seed, kind, shape and rows of cases: every row count 1..=33 and a few that fill more than one panel, over shapes drawn
/// from the seed. What a case expects takes longer to compute than to compare, so a test makes those that it tries.
pub(crate) fn cases() -> impl Iterator<Item = (u64, Kind, MatrixShape, usize)> {
    let rows = (1..=33).chain([64, 191, 193, 300]);
    KINDS.into_iter().flat_map(move |kind| {
        rows.clone().flat_map(move |rows| {
            let seed = rows as u64 * 2 + u64::from(kind == Kind::Own(WeightClass::Int8));
            let shapes = [SHAPES[rows % SHAPES.len()], SHAPES[(rows * 3 + 1) % SHAPES.len()]];
            shapes.into_iter().map(move |shape| (seed, kind, shape, rows))
        })
    })
}
