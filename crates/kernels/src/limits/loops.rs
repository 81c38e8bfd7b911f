//! Register-only multiply-add loops: the peak rate of the multiply instructions.

use crate::accumulation_order::AccumulationOrder;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Amx, Avx2, Avx512, Avx512Bf16};
use std::hint::black_box;

/// Operand type of a loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Int8,
    /// f32 multiply-add, also used for bf16 operands.
    Float,
    /// Instructions with bf16 operands.
    Bf16,
}

/// A register-only multiply-add loop.
pub(super) struct Loop {
    pub(super) name: &'static str,
    pub(super) class: Class,
    /// The lowest ISA whose kernels use this instruction.
    used_from: Isa,
    /// Its accumulation order; `None`: exact, or used for both.
    arithmetic: Option<AccumulationOrder>,
    /// Runs some rounds and returns the multiply-adds done.
    run: Box<dyn Fn(usize) -> f64 + Sync>,
}

impl Loop {
    /// A loop for both accumulation orders.
    fn new(name: &'static str, class: Class, used_from: Isa, run: impl Fn(usize) -> f64 + Sync + 'static) -> Loop {
        Loop { name, class, used_from, arithmetic: None, run: Box::new(run) }
    }

    /// Restricts the loop to one accumulation order.
    #[cfg(target_arch = "x86_64")]
    fn of(self, arithmetic: AccumulationOrder) -> Loop {
        Loop { arithmetic: Some(arithmetic), ..self }
    }

    /// Every loop that this CPU can run, slower instruction sets first. Each closure holds the proof of its instructions.
    pub(super) fn available() -> Vec<Loop> {
        let mut loops = vec![
            Loop::new("scalar int8", Class::Int8, Isa::Scalar, scalar_int8),
            Loop::new("scalar f32", Class::Float, Isa::Scalar, scalar_f32),
        ];
        #[cfg(target_arch = "x86_64")]
        {
            use crate::gemm::amx::peak;
            use crate::quant::WeightClass;
            use x86::*;
            if let Some(proof) = Avx2::detect() {
                let (int8, fma) = (move |rounds| avx2_int8(proof, rounds), move |rounds| avx2_fma(proof, rounds));
                loops.push(Loop::new("avx2 vpmaddubsw", Class::Int8, Isa::Avx2, int8));
                loops.push(Loop::new("avx2 vfmadd231ps", Class::Float, Isa::Avx2, fma));
            }
            if let Some(proof) = Avx512::detect() {
                let (int8, fma) = (move |rounds| avx512_int8(proof, rounds), move |rounds| avx512_fma(proof, rounds));
                loops.push(Loop::new("avx512 vpdpbusd", Class::Int8, Isa::Avx512, int8));
                loops.push(Loop::new("avx512 vfmadd231ps", Class::Float, Isa::Avx512, fma));
            }
            if let Some(proof) = Avx512Bf16::detect() {
                let bf16 = move |rounds| avx512_bf16(proof, rounds);
                let bf16 = Loop::new("avx512 vdpbf16ps", Class::Bf16, Isa::Avx512Bf16, bf16);
                loops.push(bf16.of(AccumulationOrder::Vdpbf16));
            }
            if let Some(proof) = Amx::detect() {
                let int8 = move |rounds| peak(proof, WeightClass::Int8, rounds);
                let bf16 = move |rounds| peak(proof, WeightClass::Bf16, rounds);
                loops.push(Loop::new("amx tdpbssd", Class::Int8, Isa::Amx, int8));
                loops.push(Loop::new("amx tdpbf16ps", Class::Bf16, Isa::Amx, bf16).of(AccumulationOrder::Amx));
            }
        }
        loops
    }

    /// Runs some rounds on the calling thread; returns the number of operations.
    pub(super) fn operations(&self, rounds: usize) -> f64 {
        2.0 * (self.run)(rounds)
    }

    /// Whether the kernels use this loop's instruction under the ceiling `isa` with this accumulation order.
    pub(super) fn serves(&self, isa: Isa, arithmetic: AccumulationOrder) -> bool {
        isa >= self.used_from && self.arithmetic.is_none_or(|its| its == arithmetic)
    }
}

/// 16 lanes of widening int8 multiply-add, in a form that compilers vectorize.
fn scalar_int8(rounds: usize) -> f64 {
    let (x, w) = (black_box([3i8; 16]), black_box([-7i8; 16]));
    let mut sums = [[0i32; 16]; 4];
    for _ in 0..rounds {
        for sums in &mut sums {
            for ((sum, &x), &w) in sums.iter_mut().zip(&x).zip(&w) {
                *sum = (i32::from(x) * i32::from(w)).wrapping_add(*sum);
            }
        }
        sums = black_box(sums);
    }
    (rounds * 64) as f64
}

fn scalar_f32(rounds: usize) -> f64 {
    let (x, w) = (black_box([0.5f32; 16]), black_box([0.25f32; 16]));
    let mut sums = [[0f32; 16]; 4];
    for _ in 0..rounds {
        for sums in &mut sums {
            for ((sum, &x), &w) in sums.iter_mut().zip(&x).zip(&w) {
                *sum = x.mul_add(w, *sum);
            }
        }
        sums = black_box(sums);
    }
    (rounds * 64) as f64
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::isa::{Avx2, Avx512, Avx512Bf16};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// A loop over independent accumulators, enough to hide the latency on two ports.
    macro_rules! register_loop {
        (
            $name:ident, $proof:ty, $features:literal,
            $count:literal, $zero:expr, $x:expr, $w:expr, $step:expr, $macs:literal
        ) => {
            pub(super) fn $name(_proof: $proof, rounds: usize) -> f64 {
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
    pub(super) fn avx512_bf16(_proof: Avx512Bf16, rounds: usize) -> f64 {
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn inner(rounds: usize) {
            let mut sums = [_mm512_setzero_ps(); 16];
            // SAFETY: both types are 64 bytes in which every bit pattern is valid.
            let (x, w): (__m512bh, __m512bh) = unsafe {
                std::mem::transmute(black_box((_mm512_set1_epi32(0x3f00_3f00), _mm512_set1_epi32(0x3e80_3e80))))
            };
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
}
