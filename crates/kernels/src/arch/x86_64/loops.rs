//! Register-only loops of x86's multiply instructions.

use super::amx::multiply::peak;
use super::proofs::{Amx, Avx2, Avx512, Avx512Bf16};
use crate::accumulation_order::AccumulationOrder;
use crate::isa::Isa;
use crate::limits::loops::{Class, Loop};
use crate::quant::WeightClass;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Every loop that this CPU can run, slower instruction sets first. Each closure holds the proof of its instructions.
pub(crate) fn loops() -> Vec<Loop> {
    let mut loops = Vec::new();
    if let Some(proof) = Avx2::detect() {
        let (int8, fma) = (move |rounds| avx2_int8(proof, rounds), move |rounds| avx2_fma(proof, rounds));
        loops.push(Loop::new("avx2 vpmaddubsw", Class::Int8, Isa::Avx2, None, int8));
        loops.push(Loop::new("avx2 vfmadd231ps", Class::Float, Isa::Avx2, None, fma));
    }
    if let Some(proof) = Avx512::detect() {
        let (int8, fma) = (move |rounds| avx512_int8(proof, rounds), move |rounds| avx512_fma(proof, rounds));
        loops.push(Loop::new("avx512 vpdpbusd", Class::Int8, Isa::Avx512, None, int8));
        loops.push(Loop::new("avx512 vfmadd231ps", Class::Float, Isa::Avx512, None, fma));
    }
    if let Some(proof) = Avx512Bf16::detect() {
        let bf16 = move |rounds| avx512_bf16(proof, rounds);
        let order = Some(AccumulationOrder::Vdpbf16);
        loops.push(Loop::new("avx512 vdpbf16ps", Class::Bf16, Isa::Avx512Bf16, order, bf16));
    }
    if let Some(proof) = Amx::detect() {
        let int8 = move |rounds| peak(proof, WeightClass::Int8, rounds);
        let bf16 = move |rounds| peak(proof, WeightClass::Bf16, rounds);
        loops.push(Loop::new("amx tdpbssd", Class::Int8, Isa::Amx, None, int8));
        let order = Some(AccumulationOrder::Amx);
        loops.push(Loop::new("amx tdpbf16ps", Class::Bf16, Isa::Amx, order, bf16));
    }
    loops
}

/// A loop over independent accumulators, enough to hide the latency on two ports.
macro_rules! register_loop {
    (
        $name:ident, $proof:ty, $features:literal,
        $count:literal, $zero:expr, $x:expr, $w:expr, $step:expr, $macs:literal
    ) => {
        fn $name(_proof: $proof, rounds: usize) -> f64 {
            #[target_feature(enable = $features)]
            fn inner(rounds: usize) {
                let (x, w) = (black_box($x), black_box($w));
                let mut sums = [$zero; $count];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        *sum = $step(*sum, x, w);
                    }
                }
                black_box(sums);
            }
            // SAFETY: the features are among those of the proof.
            unsafe { inner(rounds) };
            (rounds * $count * $macs) as f64
        }
    };
}

register_loop!(
    avx2_int8,
    Avx2,
    "avx2",
    12,
    _mm256_set1_epi8(-7),
    _mm256_set1_epi8(3),
    _mm256_set1_epi16(1),
    // The accumulator is an operand: a product of constants would be hoisted out of the loop.
    |sum, x, ones| _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, sum), ones)),
    32
);
register_loop!(
    avx2_fma,
    Avx2,
    "avx2,fma",
    12,
    _mm256_setzero_ps(),
    _mm256_set1_ps(0.5),
    _mm256_set1_ps(0.25),
    |sum, x, w| _mm256_fmadd_ps(x, w, sum),
    8
);
register_loop!(
    avx512_int8,
    Avx512,
    "avx512f,avx512vnni",
    16,
    _mm512_setzero_si512(),
    _mm512_set1_epi8(3),
    _mm512_set1_epi8(-7),
    |sum, x, w| _mm512_dpbusd_epi32(sum, x, w),
    64
);
register_loop!(
    avx512_fma,
    Avx512,
    "avx512f",
    16,
    _mm512_setzero_ps(),
    _mm512_set1_ps(0.5),
    _mm512_set1_ps(0.25),
    |sum, x, w| _mm512_fmadd_ps(x, w, sum),
    16
);

/// Sixteen chains of `vdpbf16ps` on zeros.
fn avx512_bf16(_proof: Avx512Bf16, rounds: usize) -> f64 {
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn inner(rounds: usize) {
        let mut sums = [_mm512_setzero_ps(); 16];
        // SAFETY: both types are 64 bytes in which every bit pattern is valid.
        let (x, w): (__m512bh, __m512bh) =
            unsafe { std::mem::transmute(black_box((_mm512_set1_epi32(0x3f00_3f00), _mm512_set1_epi32(0x3e80_3e80)))) };
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, w);
            }
        }
        black_box(sums);
    }
    // SAFETY: the features are among those of the proof.
    unsafe { inner(rounds) };
    (rounds * 16 * 32) as f64
}
/// The loops that serve an instruction set, for int8 and bf16.
#[cfg(test)]
pub(crate) fn kinds(isa: Isa, arithmetic: AccumulationOrder) -> (&'static str, &'static str) {
    let int8 = match isa {
        Isa::Scalar | Isa::Neon | Isa::NeonMm => "scalar int8",
        Isa::Avx2 => "avx2 vpmaddubsw",
        Isa::Avx512 | Isa::Avx512Bf16 => "avx512 vpdpbusd",
        Isa::Amx => "amx tdpbssd",
    };
    let bf16 = match (isa, arithmetic) {
        (Isa::Scalar | Isa::Neon | Isa::NeonMm, _) => "scalar f32",
        (Isa::Avx2, _) => "avx2 vfmadd231ps",
        (Isa::Amx, AccumulationOrder::Amx) => "amx tdpbf16ps",
        (Isa::Avx512Bf16 | Isa::Amx, AccumulationOrder::Vdpbf16) if Avx512Bf16::detect().is_some() => {
            "avx512 vdpbf16ps"
        }
        _ => "avx512 vfmadd231ps",
    };
    (int8, bf16)
}
