//! Seeded cases that judge low-rank products against their definition.

use super::values;
use kernels::{
    AccumulationOrder, Cpu, Device, HostBackend, LowRankShape, LowRankSource, MatrixShape, Out, Reference, RowSource,
    WeightClass,
};
use std::ops::Range;
use testing::Dice;

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) const RANKS: [usize; 8] = [1, 2, 8, 15, 16, 33, 64, 512];

/// Low-rank matrices of fused projections: the outputs of several parts in one row, each part with its rank.
pub(crate) struct Matrices {
    pub(crate) shape: LowRankShape,
    /// `[rank, in_features]`, `[out_features, rank]` with zeros where an output does not read.
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
    pub(crate) reads: Vec<Range<usize>>,
}

impl Matrices {
    /// `parts`: outputs and rank of each. `order`: the part's row that an output is.
    pub(crate) fn new(
        random: &mut Dice,
        in_features: usize,
        parts: &[(usize, usize)],
        order: impl Fn(usize) -> usize,
    ) -> Self {
        let (out_features, rank) = parts.iter().fold((0, 0), |(rows, ranks), part| (rows + part.0, ranks + part.1));
        let of_row = |mut row: usize| {
            let mut first = 0;
            for &(rows, rank) in parts {
                if row < rows {
                    return first..first + rank;
                }
                (row, first) = (row - rows, first + rank);
            }
            unreachable!("a row of a part")
        };
        let reads: Vec<Range<usize>> = (0..out_features).map(|output| of_row(order(output))).collect();
        let mut b = vec![0.0; out_features * rank];
        for (to, read) in b.chunks_exact_mut(rank).zip(&reads) {
            to[read.clone()].copy_from_slice(&values(random, read.len()));
        }
        Matrices {
            shape: LowRankShape { in_features, rank, out_features },
            a: values(random, rank * in_features),
            b,
            reads,
        }
    }

    pub(crate) fn pack<D: Device>(&self, device: &D) -> D::LowRank {
        let LowRankShape { in_features, rank, .. } = self.shape;
        let a = |row: usize, to: &mut [f32]| to.copy_from_slice(&self.a[row * in_features..][..in_features]);
        let reads = |output: usize| self.reads[output].clone();
        let b = |row: usize, to: &mut [f32]| to.copy_from_slice(&self.b[row * rank..][..rank][reads(row)]);
        device.pack_low_rank(self.shape, LowRankSource { a: &a, reads: &reads, b: &b }).unwrap()
    }

    /// `y + d` for some rows, by whole products.
    fn by_products<B: HostBackend>(&self, backend: &B, x: &[f32], rows: &[u32], out: &mut [f32]) {
        let LowRankShape { in_features, rank, out_features } = self.shape;
        let whole = |weights: &[f32], out_features: usize, in_features: usize| {
            let rows = |row: usize, to: &mut [f32]| to.copy_from_slice(&weights[row * in_features..][..in_features]);
            backend.pack(MatrixShape { out_features, in_features }, WeightClass::Bf16, &RowSource(&rows)).unwrap()
        };
        let (a, b) = (whole(&self.a, rank, in_features), whole(&self.b, out_features, rank));
        for row in rows.iter().map(|&row| row as usize) {
            let (mut h, out) = (vec![0.0; rank], &mut out[row * out_features..][..out_features]);
            backend.linear(&x[row * in_features..][..in_features], &a, None, Out::Store(&mut h));
            backend.linear(&h, &b, None, Out::Add(out));
        }
    }
}

/// Some matrices, each with its rows, and what is there before.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) groups: Vec<(Matrices, Vec<u32>)>,
    pub(crate) x: Vec<f32>,
    pub(crate) out: Vec<f32>,
    pub(crate) expected: [Vec<u32>; 2],
}

/// Lists of rows that no two have in common, of `rows` in all.
pub(crate) fn lists(random: &mut Dice, rows: usize, sizes: &[usize]) -> Vec<Vec<u32>> {
    let mut left: Vec<u32> = (0..rows as u32).collect();
    let list = |&size: &usize| {
        let mut list: Vec<u32> = (0..size).map(|_| left.remove(random.roll(left.len()))).collect();
        list.sort_unstable();
        list
    };
    sizes.iter().map(list).collect()
}

impl Case {
    pub(crate) fn new(name: String, groups: Vec<(Matrices, Vec<u32>)>, rows: usize, random: &mut Dice) -> Case {
        let LowRankShape { in_features, out_features, .. } = groups[0].0.shape;
        let (x, out) = (values(random, rows * in_features), values(random, rows * out_features));
        let expected = AccumulationOrder::ALL.map(|arithmetic| {
            let mut out = out.clone();
            for (matrices, rows) in &groups {
                matrices.by_products(&Reference::of(arithmetic), &x, rows, &mut out);
            }
            bits(&out)
        });
        Case { name, groups, x, out, expected }
    }

    pub(crate) fn run<B: HostBackend>(&self, backend: &B) -> Vec<f32> {
        let packed: Vec<B::LowRank> = self.groups.iter().map(|(matrices, _)| matrices.pack(backend)).collect();
        let mut out = self.out.clone();
        let groups = packed.iter().zip(&self.groups).map(|(packed, (_, rows))| (packed, &rows[..]));
        HostBackend::add_low_rank(backend, &self.x, groups, &mut out);
        out
    }

    pub(crate) fn check(&self, implementations: &[Cpu]) {
        for (arithmetic, expected) in AccumulationOrder::ALL.into_iter().zip(&self.expected) {
            let found = bits(&self.run(&Reference::of(arithmetic)));
            assert!(found == *expected, "{}, reference, {arithmetic:?}", self.name);
            for cpu in implementations.iter().filter(|cpu| cpu.arithmetic() == arithmetic) {
                assert!(bits(&self.run(cpu)) == *expected, "{}, {}, {arithmetic:?}", self.name, cpu.describe());
            }
        }
    }
}

/// One part alone.
pub(crate) fn single(random: &mut Dice, in_features: usize, out_features: usize, rank: usize) -> Matrices {
    Matrices::new(random, in_features, &[(out_features, rank)], |row| row)
}
