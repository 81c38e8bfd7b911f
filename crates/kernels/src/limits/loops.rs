//! Register-only multiply-add loops: the peak rate of the multiply instructions.

use crate::accumulation_order::AccumulationOrder;
use crate::arch::native;
use crate::isa::Isa;
use std::hint::black_box;

/// Operand type of a loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Int8,
    /// f32 multiply-add, also used for bf16 operands.
    Float,
    /// Instructions with bf16 operands.
    Bf16,
}

/// A register-only multiply-add loop.
pub(crate) struct Loop {
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
    /// See the fields.
    pub(crate) fn new(
        name: &'static str,
        class: Class,
        used_from: Isa,
        arithmetic: Option<AccumulationOrder>,
        run: impl Fn(usize) -> f64 + Sync + 'static,
    ) -> Loop {
        Loop { name, class, used_from, arithmetic, run: Box::new(run) }
    }

    /// Every loop that this CPU can run, slower instruction sets first. Each closure holds the proof of its instructions.
    pub(super) fn available() -> Vec<Loop> {
        let mut loops = vec![
            Loop::new("scalar int8", Class::Int8, Isa::Scalar, None, scalar_int8),
            Loop::new("scalar f32", Class::Float, Isa::Scalar, None, scalar_f32),
        ];
        loops.extend(native::loops());
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
