//! Register-only loops of AArch64's multiply instructions.

use super::instructions::{bfmlalb, sdot_lane, smmla};
use super::proofs::{Neon, NeonMm};
use crate::isa::Isa;
use crate::limits::loops::{Class, Loop};
use std::arch::aarch64::*;
use std::hint::black_box;

/// Every loop that this CPU can run, slower instruction sets first. Each closure holds the proof of its instructions.
pub(crate) fn loops() -> Vec<Loop> {
    let mut loops = Vec::new();
    if let Some(proof) = Neon::detect() {
        let (int8, float) = (move |rounds| neon_sdot(proof, rounds), move |rounds| neon_fmla(proof, rounds));
        loops.push(Loop::new("neon sdot", Class::Int8, Isa::Neon, None, int8));
        loops.push(Loop::new("neon fmla", Class::Float, Isa::Neon, None, float));
    }
    if let Some(proof) = NeonMm::detect() {
        let (int8, bf16) = (move |rounds| mm_smmla(proof, rounds), move |rounds| mm_bfmlal(proof, rounds));
        loops.push(Loop::new("neon-mm smmla", Class::Int8, Isa::NeonMm, None, int8));
        // Both orders are made of it.
        loops.push(Loop::new("neon-mm bfmlal", Class::Bf16, Isa::NeonMm, None, bf16));
    }
    loops
}

/// A loop over independent accumulators, enough to hide the latency on four pipes.
macro_rules! register_loop {
    ($name:ident, $proof:ty, $features:literal, $zero:expr, $x:expr, $w:expr, $step:expr, $macs:literal) => {
        fn $name(_proof: $proof, rounds: usize) -> f64 {
            const COUNT: usize = 24;
            #[target_feature(enable = $features)]
            fn inner(rounds: usize) {
                let (x, w) = (black_box($x), black_box($w));
                let mut sums = [$zero; COUNT];
                for _ in 0..rounds {
                    parts!(AT in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 =>
                        sums[AT] = $step(sums[AT], w, x));
                }
                black_box(sums);
            }
            // SAFETY: the features are among those of the proof.
            unsafe { inner(rounds) };
            (rounds * COUNT * $macs) as f64
        }
    };
}

register_loop!(
    neon_sdot,
    Neon,
    "neon,dotprod",
    vdupq_n_s32(0),
    vdupq_n_s8(3),
    vdupq_n_s8(-7),
    |sum, w, x| sdot_lane::<0>(sum, w, x),
    16
);
register_loop!(
    neon_fmla,
    Neon,
    "neon",
    vdupq_n_f32(0.0),
    vdupq_n_f32(0.5),
    vdupq_n_f32(0.25),
    |sum, w, x| vfmaq_laneq_f32::<0>(sum, w, x),
    4
);
register_loop!(
    mm_smmla,
    NeonMm,
    "neon,i8mm",
    vdupq_n_s32(0),
    vdupq_n_s8(3),
    vdupq_n_s8(-7),
    |sum, w, x| smmla(sum, w, x),
    32
);
register_loop!(
    mm_bfmlal,
    NeonMm,
    "neon,bf16",
    vdupq_n_f32(0.0),
    vdupq_n_u16(0x3f00),
    vdupq_n_u16(0x3e80),
    |sum, w, x| bfmlalb::<0>(sum, w, x),
    4
);

/// The loops that serve an instruction set, for int8 and bf16.
#[cfg(test)]
pub(crate) fn kinds(isa: Isa, _order: crate::AccumulationOrder) -> (&'static str, &'static str) {
    match (isa.neon_mm(), isa.neon()) {
        (Some(_), _) => ("neon-mm smmla", "neon-mm bfmlal"),
        (None, Some(_)) => ("neon sdot", "neon fmla"),
        (None, None) => ("scalar int8", "scalar f32"),
    }
}

/// `c` and sixteen pairs by the two instructions, if this CPU has them.
#[cfg(test)]
pub(crate) fn multiply_pairs(c: &[f32; 16], a: &[u32; 16], b: &[u32; 16]) -> Option<[f32; 16]> {
    use super::instructions::bfmlalt;

    #[target_feature(enable = "neon,bf16")]
    fn multiply(c: f32, a: u32, b: u32) -> f32 {
        let (a, b) = (vreinterpretq_u16_u32(vdupq_n_u32(a)), vreinterpretq_u16_u32(vdupq_n_u32(b)));
        let odd = bfmlalt::<1>(vdupq_n_f32(c), a, b);
        vgetq_lane_f32::<0>(bfmlalb::<0>(odd, a, b))
    }
    // SAFETY: just detected.
    NeonMm::detect().map(|_| std::array::from_fn(|i| unsafe { multiply(c[i], a[i], b[i]) }))
}
