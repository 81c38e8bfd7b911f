//! The tile kernels against the definition, on any x86-64: where the CPU has no AMX, a handler of SIGILL executes the
//! tile instructions in software as the Intel SDM (volume 2, and volume 1 chapter 18) defines them.
//!
//! ```text
//! kernel  -> tdpbssd tmm4, tmm0, tmm2    the CPU raises SIGILL
//! handler -> decodes the VEX bytes at RIP, computes on this thread's eight tiles, moves RIP behind the instruction
//! kernel  -> next instruction
//! ```
//! On a machine with AMX the same test runs on the real thing.

use crate::common;
use crate::common::emulator;
use crate::common::low_rank;

use common::{Case, cases};
use kernels::Cpu;
use kernels::isa::{Amx, Avx512};
use kernels::threads::max_threads;
use testing::Dice;

/// A proof of AMX: real, or by grace of the emulator. `None`, with a line that says so, where there is no AVX-512
/// beside it: tile kernels unpack and rescale with vectors.
pub(crate) fn tiles() -> Option<Amx> {
    let Some(vectors) = Avx512::detect() else {
        eprintln!("skipped: the tile path needs AVX-512 beside it");
        return None;
    };
    Some(Amx::detect().unwrap_or_else(|| {
        emulator::install();
        // SAFETY: from here on SIGILL executes tile instructions.
        unsafe { Amx::assume(vectors) }
    }))
}

pub(crate) fn implementations(tiles: Amx) -> Vec<Cpu> {
    (1..=max_threads().min(2)).map(|threads| Cpu::with_tiles(Some(threads), tiles).unwrap()).collect()
}

#[test]
fn tiles_return_the_bits_of_the_definition() {
    let Some(tiles) = tiles() else { return };
    let implementations = implementations(tiles);
    for (seed, kind, shape, rows) in testing::part_of(cases(), 3) {
        let case = Case::new(seed, kind, shape, rows);
        for cpu in &implementations {
            case.check(cpu);
        }
    }
}

#[test]
fn low_rank_products_have_the_bits_of_the_definition() {
    let Some(tiles) = tiles() else { return };
    let implementations = implementations(tiles);
    for (seed, rank) in low_rank::RANKS.into_iter().enumerate() {
        for (in_features, rows) in [(33, 1), (96, 5), (417, 19)] {
            let random = &mut Dice::new(3_000 + seed as u64);
            let listed = low_rank::lists(random, rows + 2, &[rows]).remove(0);
            // The second part begins within a step, or within a pair.
            let parts = [(40, rank), (24, rank)];
            let matrices = low_rank::Matrices::new(random, in_features, &parts, |row| row);
            let name = format!("rank {rank}, {in_features} inputs, {rows} rows");
            low_rank::Case::new(name, vec![(matrices, listed)], rows + 2, random).check(&implementations);
        }
    }
}
