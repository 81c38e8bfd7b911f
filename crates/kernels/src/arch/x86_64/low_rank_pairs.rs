//! Low-rank products in the order of pairs with `vdpbf16ps`, from packed rows.

use super::proofs::{Avx512, Avx512Bf16};
use crate::low_rank::product::{AHEAD, Block, Order, RowTarget};
use crate::low_rank::{LINE, Span};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Dot {
    _proof: Avx512Bf16,
}

pub(crate) fn run<T: RowTarget>(proof: Avx512Bf16, block: &Block<'_, T>) {
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
    fn run<T: RowTarget>(proof: Avx512Bf16, block: &Block<'_, T>) {
        block.run(proof.avx512(), Dot { _proof: proof }, 1);
    }
    // SAFETY: `proof` says that the CPU has these features.
    unsafe { run(proof, block) }
}

impl Order<Avx512> for Dot {
    const ROWS: usize = 8;
    /// The limit is two loads per cycle: many rows use a broadcast pair twice; few rows are bound by memory, and take
    /// it in order.
    const TWO_FROM: usize = 6;

    #[inline(always)]
    unsafe fn sums<const R: usize, const C: usize>(
        self,
        _: Avx512,
        lines: [*const u32; C],
        span: Span,
        x: *const u32,
        x_stride: usize,
    ) -> [[__m512; R]; C] {
        // SAFETY: `self` proves that the CPU has the instructions; addresses are within the lines and the rows, and
        // both types of a line are 64 bytes in which every bit pattern is valid.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); R]; C];
            for pair in 0..span.pairs {
                let mut w = [_mm512_setzero_si512(); C];
                for (w, line) in w.iter_mut().zip(lines) {
                    let line = line.add(pair * LINE);
                    _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(AHEAD).cast());
                    *w = _mm512_loadu_si512(line.cast());
                }
                for row in 0..R {
                    let x = _mm512_set1_epi32(*x.add(row * x_stride + pair).cast::<i32>());
                    let x = std::mem::transmute::<__m512i, __m512bh>(x);
                    for (sums, w) in sums.iter_mut().zip(w) {
                        sums[row] = _mm512_dpbf16_ps(sums[row], std::mem::transmute::<__m512i, __m512bh>(w), x);
                    }
                }
            }
            sums
        }
    }
}
