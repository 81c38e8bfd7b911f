//! Low-rank products of some rows against their definition, which is two products with zeros where the parts of fused
//! projections do not meet: the same bits for any rank, any lists of rows, any number of threads and any instruction
//! set.

use crate::common;
use crate::common::low_rank;

use common::values;
use kernels::low_rank::Group;
use kernels::threads::{NodeChoice, max_threads};
use kernels::{
    AccumulationOrder, Cpu, CpuOptions, Device, Float32, HostBackend, Isa, LowRank, LowRankShape, Reference,
    gate_up_row,
};
use low_rank::{Case, Matrices, RANKS, bits, lists, single};
use std::ops::RangeInclusive;
use testing::Dice;

/// One and two threads of every instruction set there is here, in both arithmetics.
fn implementations() -> Vec<Cpu> {
    with_threads(1..=max_threads().min(2))
}

/// Devices with each number of threads, also where there are fewer cores.
fn with_threads(threads: RangeInclusive<usize>) -> Vec<Cpu> {
    let mut all = Vec::new();
    for (isa, arithmetic) in Isa::available().into_iter().flat_map(|isa| AccumulationOrder::ALL.map(|a| (isa, a))) {
        for threads in threads.clone() {
            let nodes = if threads > max_threads() { NodeChoice::Imagined(1) } else { NodeChoice::AsFound };
            let (isa, arithmetic) = (Some(isa), Some(arithmetic));
            all.push(Cpu::new(CpuOptions { threads: Some(threads), isa, arithmetic, nodes }).unwrap());
        }
    }
    all
}

/// The products of a layer as an adapter of any of its seven projections sees them: `q`, `k` and `v` in one, `gate` and
/// `up` by turns, and `o` or `down` alone.
#[derive(Clone, Copy, Debug)]
enum Fused {
    Qkv,
    GateUp,
    Alone,
}

impl Fused {
    fn outputs(self) -> &'static [usize] {
        match self {
            Fused::Qkv => &[64, 32, 32],
            Fused::GateUp => &[70, 70],
            Fused::Alone => &[72],
        }
    }

    /// Of all non-empty subsets of its projections the `index`th, in turns: the ranks where it has one, else 0.
    fn subset(self, index: usize, ranks: [usize; 3]) -> Vec<(usize, usize)> {
        let outputs = self.outputs();
        let chosen = 1 + index % ((1 << outputs.len()) - 1);
        let rank = |part: usize| ranks[part] * (chosen >> part & 1);
        outputs.iter().enumerate().map(|(part, &outputs)| (outputs, rank(part))).collect()
    }

    fn matrices(self, random: &mut Dice, parts: &[(usize, usize)]) -> Matrices {
        let order = |row| if let Fused::GateUp = self { gate_up_row(row, 70) } else { row };
        Matrices::new(random, 72, parts, order)
    }
}

/// Every subset of the projections of each fused product, at these ranks, beside others in further slots and beside
/// rows without an adapter.
fn every_subset(implementations: &[Cpu], all_ranks: &[[usize; 3]], slots: &[usize], rows_each: &[usize]) {
    for fused in [Fused::Qkv, Fused::GateUp, Fused::Alone] {
        for (seed, &ranks) in all_ranks.iter().enumerate() {
            for index in 0..(1 << fused.outputs().len()) - 1 {
                let random = &mut Dice::new((seed * 8 + index) as u64);
                let (slots, rows) = (slots[(seed + index) % slots.len()], rows_each[index % rows_each.len()]);
                let lists = lists(random, slots * rows + 2, &vec![rows; slots]);
                let groups: Vec<(Matrices, Vec<u32>)> = lists
                    .into_iter()
                    .enumerate()
                    .map(|(slot, rows)| (fused.matrices(random, &fused.subset(index + 2 * slot, ranks)), rows))
                    .collect();
                let name = format!("{fused:?}, subset {index}, ranks {ranks:?}, {slots} slots of {rows} rows");
                Case::new(name, groups, slots * rows + 2, random).check(implementations);
            }
        }
    }
}

#[test]
fn every_subset_of_projections_on_one_to_four_threads() {
    every_subset(&with_threads(1..=4), &[[8; 3], [1; 3], [5, 3, 8], [16, 8, 33], [32, 64, 2]], &[1, 2, 1, 3], &[1, 5]);
    // Rows between the matrices of 1,024 numbers and a little more.
    every_subset(&with_threads(2..=3), &[[512, 512, 16]], &[1], &[2]);
}

/// The same at every rank and up to 8 slots: minutes.
#[test]
#[ignore = "long: minutes; the ranks between those of the one above"]
fn every_subset_of_projections_at_every_rank() {
    let mut ranks: Vec<[usize; 3]> = (1..=64).map(|rank| [rank; 3]).collect();
    ranks.extend([[1, 64, 7], [64, 1, 31], [128, 8, 256], [512; 3], [16, 512, 512], [512, 16, 512], [511, 513, 2]]);
    every_subset(&with_threads(1..=4), &ranks, &[1, 2, 4, 8, 3], &[1, 3, 9]);
}

#[test]
fn matrices_that_no_output_reads_add_nothing() {
    let random = &mut Dice::new(77);
    let nothing = Matrices { reads: vec![0..0; 40], b: vec![0.0; 40 * 8], ..single(random, 50, 40, 8) };
    let groups = vec![(nothing, vec![0, 2]), (single(random, 50, 40, 8), vec![3])];
    Case::new("a group that reads nothing".into(), groups, 4, random).check(&with_threads(1..=4));
}

#[test]
fn every_rank_and_shape_has_the_bits_of_two_products() {
    let implementations = implementations();
    for (seed, rank) in RANKS.into_iter().enumerate() {
        for (in_features, out_features) in [(1, 1), (33, 17), (96, 160), (417, 31)] {
            let random = &mut Dice::new(seed as u64);
            let rows = lists(random, 9, &[5]).remove(0);
            let groups = vec![(single(random, in_features, out_features, rank), rows)];
            let name = format!("rank {rank}, {in_features} to {out_features}");
            Case::new(name, groups, 9, random).check(&implementations);
        }
    }
}

#[test]
fn parts_of_fused_projections_meet_what_is_theirs() {
    // Ranks of which a part begins within a pair, or within a step of 32, or behind some; parts that end within a
    // strip; gate and up in turns, up to an end where both are in one strip.
    let implementations = implementations();
    for (seed, ranks) in [[16, 16, 16], [1, 2, 3], [33, 8, 40], [15, 64, 5], [31, 31, 31]].into_iter().enumerate() {
        let random = &mut Dice::new(100 + seed as u64);
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
        let random = &mut Dice::new(200 + seed as u64);
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
    let random = &mut Dice::new(7);
    let large = Case::new("large".into(), vec![(single(random, 200, 90, 64), (0..70).collect())], 70, random);
    let small = Case::new("small".into(), vec![(single(random, 31, 20, 3), vec![1])], 2, random);
    for cpu in implementations() {
        let arithmetic = usize::from(cpu.arithmetic() == AccumulationOrder::Amx);
        for case in [&large, &small, &large, &small] {
            assert!(bits(&case.run(&cpu)) == case.expected[arithmetic], "{}, {}", case.name, cpu.describe());
        }
    }
}

#[test]
fn float32_rounds_nothing() {
    let random = &mut Dice::new(8);
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
    let random = &mut Dice::new(9);
    let matrices = Matrices::new(random, 896, &[(896, 16), (128, 16), (128, 16)], |row| row);
    let packed = matrices.pack(&Reference::new());
    assert_eq!(packed.bytes(), 2 * (48 * 896 + 1152 * 16), "two bytes a weight, and no zeros");
    let reads = |output: usize| matrices.reads[output].clone();
    assert_eq!(LowRank::bytes_of(matrices.shape, &reads), Some(packed.bytes()));
    let absurd = LowRankShape { rank: usize::MAX / 4, ..matrices.shape };
    assert_eq!(LowRank::bytes_of(absurd, &|_| 0..usize::MAX / 4), None);
}

/// A call checks its row lists before it writes anything.
fn refused(rows: &[&[u32]]) {
    let random = &mut Dice::new(10);
    let cpu = Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let packed = single(random, 32, 32, 4).pack(&cpu);
    let groups = rows.iter().map(|rows| -> Group<'_, LowRank> { (&packed, rows) });
    HostBackend::add_low_rank(&cpu, &values(random, 3 * 32), groups, &mut values(random, 3 * 32));
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
