//! Low-rank products of some rows against their definition, which is two products with zeros where the parts of fused
//! projections do not meet: the same bits for any rank, any lists of rows, any number of threads and any instruction
//! set.

#[allow(dead_code)] // products of whole matrices
mod common;

use common::Random;
use kernels::low_rank::Group;
use kernels::threads::max_threads;
use kernels::{
    Arithmetic, Cpu, CpuOptions, Device, Float32, HostBackend, Isa, LowRank, LowRankShape, LowRankSource, MatrixShape,
    Out, Reference, RowSource, WeightClass, gate_up_row,
};
use std::ops::Range;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One and two threads of every instruction set there is here, in both arithmetics.
fn implementations() -> Vec<Cpu> {
    let mut all = Vec::new();
    for (isa, arithmetic) in Isa::available().into_iter().flat_map(|isa| Arithmetic::ALL.map(|a| (isa, a))) {
        for threads in 1..=max_threads().min(2) {
            let (isa, arithmetic) = (Some(isa), Some(arithmetic));
            all.push(Cpu::new(CpuOptions { threads: Some(threads), isa, arithmetic }).unwrap());
        }
    }
    all
}

/// Low-rank matrices of parts whose outputs lie in one row, each with its rank.
struct Matrices {
    shape: LowRankShape,
    /// `[rank, in_features]`, `[out_features, rank]` with zeros where an output does not read.
    a: Vec<f32>,
    b: Vec<f32>,
    /// By output.
    reads: Vec<Range<usize>>,
}

impl Matrices {
    /// `parts`: outputs and rank of each. `order`: the part's row that an output is.
    fn new(random: &mut Random, in_features: usize, parts: &[(usize, usize)], order: impl Fn(usize) -> usize) -> Self {
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
            to[read.clone()].copy_from_slice(&random.values(read.len()));
        }
        Matrices {
            shape: LowRankShape { in_features, rank, out_features },
            a: random.values(rank * in_features),
            b,
            reads,
        }
    }

    fn pack<D: Device>(&self, device: &D) -> D::LowRank {
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
struct Case {
    name: String,
    groups: Vec<(Matrices, Vec<u32>)>,
    x: Vec<f32>,
    out: Vec<f32>,
    /// In each arithmetic.
    expected: [Vec<u32>; 2],
}

/// Lists of rows that no two have in common, of `rows` in all.
fn lists(random: &mut Random, rows: usize, sizes: &[usize]) -> Vec<Vec<u32>> {
    let mut left: Vec<u32> = (0..rows as u32).collect();
    let list = |&size: &usize| {
        let mut list: Vec<u32> = (0..size).map(|_| left.remove(random.below(left.len()))).collect();
        list.sort_unstable();
        list
    };
    sizes.iter().map(list).collect()
}

impl Case {
    fn new(name: String, groups: Vec<(Matrices, Vec<u32>)>, rows: usize, random: &mut Random) -> Case {
        let LowRankShape { in_features, out_features, .. } = groups[0].0.shape;
        let (x, out) = (random.values(rows * in_features), random.values(rows * out_features));
        let expected = Arithmetic::ALL.map(|arithmetic| {
            let mut out = out.clone();
            for (matrices, rows) in &groups {
                matrices.by_products(&Reference::of(arithmetic), &x, rows, &mut out);
            }
            bits(&out)
        });
        Case { name, groups, x, out, expected }
    }

    fn run<B: HostBackend>(&self, backend: &B) -> Vec<f32> {
        let packed: Vec<B::LowRank> = self.groups.iter().map(|(matrices, _)| matrices.pack(backend)).collect();
        let mut out = self.out.clone();
        let groups = packed.iter().zip(&self.groups).map(|(packed, (_, rows))| (packed, &rows[..]));
        HostBackend::add_low_rank(backend, &self.x, groups, &mut out);
        out
    }

    fn check(&self, implementations: &[Cpu]) {
        for (arithmetic, expected) in Arithmetic::ALL.into_iter().zip(&self.expected) {
            let found = bits(&self.run(&Reference::of(arithmetic)));
            assert!(found == *expected, "{}, reference, {arithmetic:?}", self.name);
            for cpu in implementations.iter().filter(|cpu| cpu.arithmetic() == arithmetic) {
                assert!(bits(&self.run(cpu)) == *expected, "{}, {}, {arithmetic:?}", self.name, cpu.describe());
            }
        }
    }
}

const RANKS: [usize; 8] = [1, 2, 8, 15, 16, 33, 64, 512];

/// One part alone.
fn single(random: &mut Random, in_features: usize, out_features: usize, rank: usize) -> Matrices {
    Matrices::new(random, in_features, &[(out_features, rank)], |row| row)
}

#[test]
fn every_rank_and_shape_has_the_bits_of_two_products() {
    let implementations = implementations();
    for (seed, rank) in RANKS.into_iter().enumerate() {
        for (in_features, out_features) in [(1, 1), (33, 17), (96, 160), (417, 31)] {
            let random = &mut Random::new(seed as u64);
            let rows = lists(random, 9, &[5]).remove(0);
            let groups = vec![(single(random, in_features, out_features, rank), rows)];
            let name = format!("rank {rank}, {in_features} to {out_features}");
            Case::new(name, groups, 9, random).check(&implementations);
        }
    }
}

#[test]
fn parts_of_fused_projections_meet_what_is_theirs() {
    // Ranks of which a part begins within a pair, or within a step of 32, or behind some; parts that end within a strip;
    // gate and up in turns, up to an end where both are in one strip.
    let implementations = implementations();
    for (seed, ranks) in [[16, 16, 16], [1, 2, 3], [33, 8, 40], [15, 64, 5], [31, 31, 31]].into_iter().enumerate() {
        let random = &mut Random::new(100 + seed as u64);
        let parts: Vec<(usize, usize)> = [64, 16, 16].into_iter().zip(ranks).collect();
        let ragged: Vec<(usize, usize)> = [21, 9, 40].into_iter().zip(ranks).collect();
        let gate_up: Vec<(usize, usize)> = [37, 37].into_iter().zip(ranks).collect();
        let groups = [
            Matrices::new(random, 72, &parts, |row| row),
            Matrices::new(random, 72, &ragged, |row| row),
            Matrices::new(random, 72, &gate_up, |row| gate_up_row(row, 37)),
        ];
        for matrices in groups {
            let name = format!("ranks {ranks:?}, {} outputs", matrices.shape.out_features);
            let rows = lists(random, 12, &[7]).remove(0);
            Case::new(name, vec![(matrices, rows)], 12, random).check(&implementations);
        }
    }
}

#[test]
fn every_number_of_rows_and_of_groups() {
    let implementations = implementations();
    for (seed, sizes) in
        [&[1][..], &[2, 1], &[3, 4, 5], &[6, 0, 7], &[8, 9, 1, 2], &[10, 11, 12, 13], &[17, 1], &[100, 49, 3]]
            .into_iter()
            .enumerate()
    {
        let random = &mut Random::new(200 + seed as u64);
        let rows = sizes.iter().sum::<usize>() + seed % 3;
        let lists = lists(random, rows, sizes);
        let ranks = RANKS.into_iter().take(7).cycle().skip(seed);
        let groups = lists.into_iter().zip(ranks).map(|(rows, rank)| (single(random, 130, 72, rank), rows));
        let groups = groups.collect();
        Case::new(format!("{sizes:?} of {rows} rows"), groups, rows, random).check(&implementations);
    }
}

#[test]
fn a_scratch_that_served_a_large_call_serves_a_small_one() {
    let random = &mut Random::new(7);
    let large = Case::new("large".into(), vec![(single(random, 200, 90, 64), (0..70).collect())], 70, random);
    let small = Case::new("small".into(), vec![(single(random, 31, 20, 3), vec![1])], 2, random);
    for cpu in implementations() {
        let arithmetic = usize::from(cpu.arithmetic() == Arithmetic::Tiles);
        for case in [&large, &small, &large, &small] {
            assert!(bits(&case.run(&cpu)) == case.expected[arithmetic], "{}, {}", case.name, cpu.describe());
        }
    }
}

#[test]
fn float32_rounds_nothing() {
    let random = &mut Random::new(8);
    let matrices = Matrices::new(random, 70, &[(30, 5), (20, 7)], |row| row);
    let exact = |weights: &[f32], x: &[f64]| -> Vec<f64> {
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        weights.chunks_exact(x.len()).map(dot).collect()
    };
    let case = Case::new("float32".into(), vec![(matrices, vec![0, 2])], 3, random);
    let found = case.run(&Float32::new(Some(1)).unwrap());
    for row in [0, 2] {
        let x: Vec<f64> = case.x[row * 70..][..70].iter().map(|&x| f64::from(x)).collect();
        let d = exact(&case.groups[0].0.b, &exact(&case.groups[0].0.a, &x));
        for ((found, before), d) in found[row * 50..][..50].iter().zip(&case.out[row * 50..]).zip(d) {
            let error = (f64::from(*found) - (f64::from(*before) + d)).abs();
            assert!(error <= 1e-5 * d.abs().max(100.0), "{error} of {d}");
        }
    }
    assert_eq!(bits(&found[50..100]), bits(&case.out[50..100]), "a row that is not listed");
}

#[test]
fn memory_is_that_of_the_weights_in_strips_of_16() {
    let random = &mut Random::new(9);
    let matrices = Matrices::new(random, 896, &[(896, 16), (128, 16), (128, 16)], |row| row);
    let packed = matrices.pack(&Reference::new());
    assert_eq!(packed.bytes(), 2 * (48 * 896 + 1152 * 16), "two bytes a weight, and no zeros");
    let reads = |output: usize| matrices.reads[output].clone();
    assert_eq!(LowRank::bytes_of(matrices.shape, &reads), Some(packed.bytes()));
    let absurd = LowRankShape { rank: usize::MAX / 4, ..matrices.shape };
    assert_eq!(LowRank::bytes_of(absurd, &|_| 0..usize::MAX / 4), None);
}

/// What a call is told about rows is checked before anything is written.
fn refused(rows: &[&[u32]]) {
    let random = &mut Random::new(10);
    let cpu = Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let packed = single(random, 32, 32, 4).pack(&cpu);
    let groups = rows.iter().map(|rows| -> Group<'_, LowRank> { (&packed, rows) });
    HostBackend::add_low_rank(&cpu, &random.values(3 * 32), groups, &mut random.values(3 * 32));
}

#[test]
#[should_panic(expected = "row 1 is listed twice")]
fn a_row_has_one_group() {
    refused(&[&[0, 1], &[1]]);
}

#[test]
#[should_panic(expected = "row 3 of 3")]
fn a_row_is_there() {
    refused(&[&[0, 3]]);
}
