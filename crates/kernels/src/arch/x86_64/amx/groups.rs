//! Int8 groups with ratios: the sums of a group, times its ratios, are added to those of all groups ("folded").
//!
//! ```text
//! group g       8 products, and between each two of them 8 vectors of the fold of group g - 2; then its sums are stored
//! two buffers   g writes the one that it has just folded, so no load waits for a tile store that waits for a product
//! last group    of a block of rows: its fold may scale and write results instead of sums
//! ```
//! A fold is 64 vectors, about as many cycles as 8 products take: interleaved it fits beside them. What waits is folded in
//! the next blocks of rows, or pairs; [`Folds::fold_next`] folds what is left.

use super::super::proofs::Avx512;
use super::multiply::{TileBlock, int8_two};
use super::plan::{BLOCK_ROWS, BLOCK_SUMS, GROUP_STEPS};
use crate::gemm::{Destination, Sums};
use crate::quant::PAIR;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Sums of a group that wait for their fold.
pub(super) struct Waiting<'a> {
    /// 32 ratios of the group.
    pub(super) ratios: *const u8,
    /// `[32][32]`: sums of all groups.
    pub(super) total: *mut u32,
    /// The first of its block of rows and pair: `total` is written, not added to.
    pub(super) first: bool,
    /// The last one.
    pub(super) last: Option<Last<'a>>,
}

/// What follows the fold of a block's last group.
#[derive(Clone, Copy)]
pub(super) struct Last<'a> {
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) pair: usize,
    /// Where the fold itself may write results: of 32 rows without lists, and 32 columns.
    pub(super) direct: Option<(Destination<'a>, *const f32)>,
}

/// The two buffers.
pub(super) struct Folds<'a> {
    sums: [MaybeUninit<Sums<BLOCK_ROWS>>; 2],
    waiting: [Option<Waiting<'a>>; 2],
    next: usize,
}

impl<'a> Folds<'a> {
    pub(super) fn new() -> Folds<'a> {
        Folds { sums: [MaybeUninit::uninit(), MaybeUninit::uninit()], waiting: [None, None], next: 0 }
    }

    /// Computes the sums of a group of 1 or 2 steps of 32 rows, which then wait, and folds those that have waited for two
    /// groups. Returns what follows the latter, and whether results are written.
    ///
    /// # Safety
    /// As for [`int8_two`], without sums before, whose `to` is not used; totals and destinations of what waits are there.
    pub(super) unsafe fn group(
        &mut self,
        proof: Avx512,
        block: TileBlock,
        waits: Waiting<'a>,
    ) -> Option<(Last<'a>, *const u32, bool)> {
        let sums = self.sums[self.next].as_mut_ptr().cast::<u32>();
        let block = TileBlock { before: std::ptr::null(), to: sums, ..block };
        let folded = self.waiting[self.next].replace(waits);
        let mut written = false;
        // SAFETY: the caller's promise; what waits in this buffer was written by an earlier call.
        unsafe {
            match &folded {
                Some(folded) if block.steps == GROUP_STEPS => written = mixed(proof, block, folded),
                Some(folded) => {
                    fold(proof, sums, folded);
                    int8_two(block);
                }
                None => int8_two(block),
            }
        }
        self.next ^= 1;
        folded.and_then(|folded| Some((folded.last?, folded.total.cast_const(), written)))
    }

    /// Folds what waits longest, without a group beside it. `None`: nothing waits; inside: what follows.
    ///
    /// # Safety
    /// As for [`Folds::group`].
    pub(super) unsafe fn fold_next(&mut self, proof: Avx512) -> Option<Option<(Last<'a>, *const u32)>> {
        let next = (0..2).map(|later| self.next ^ later).find(|&buffer| self.waiting[buffer].is_some())?;
        let folded = self.waiting[next].take()?;
        // SAFETY: the caller's promise; what waits was written.
        unsafe { fold(proof, self.sums[next].as_ptr().cast(), &folded) };
        Some(folded.last.map(|last| (last, folded.total.cast_const())))
    }
}

/// The fold of a group alone.
///
/// # Safety
/// `sums`: `[32][32]`; ratios and totals of `folded` are there.
unsafe fn fold(proof: Avx512, sums: *const u32, folded: &Waiting<'_>) {
    // SAFETY: the caller's promise.
    unsafe { add_by_ratio(proof, sums, folded.ratios, BLOCK_ROWS, folded.total, !folded.first) }
}

/// `to = sums * ratios`, or `to += ..`, for rows of 32.
///
/// # Safety
/// `sums` and `to` hold the rows, and there are 32 ratios.
pub(super) unsafe fn add_by_ratio(
    _proof: Avx512,
    sums: *const u32,
    ratios: *const u8,
    rows: usize,
    to: *mut u32,
    add: bool,
) {
    #[target_feature(enable = "avx512f")]
    unsafe fn add_by_ratio(sums: *const u32, ratios: *const u8, rows: usize, to: *mut u32, add: bool) {
        for strip in 0..2 {
            // SAFETY: the caller's promise.
            unsafe {
                let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(ratios.add(strip * 16).cast()));
                for row in 0..rows {
                    let at = row * PAIR + strip * 16;
                    let mut sum = _mm512_mullo_epi32(_mm512_loadu_si512(sums.add(at).cast()), ratios);
                    if add {
                        sum = _mm512_add_epi32(sum, _mm512_loadu_si512(to.add(at).cast()));
                    }
                    _mm512_storeu_si512(to.add(at).cast(), sum);
                }
            }
        }
    }
    // SAFETY: there is a proof of the instructions; the rest is the caller's promise.
    unsafe { add_by_ratio(sums, ratios, rows, to, add) }
}

/// Parts of a fold, for row `\i` of the four of a slot. What they leave in `{a}` and `{b}` are products with ratios,
macro_rules! nothing {
    ($slot:literal) => {
        ""
    };
}
/// totals,
macro_rules! add {
    ($slot:literal) => {
        concat!(
            "vpaddd {a}, {a}, zmmword ptr [{total} + 512*",
            $slot,
            " + 128*\\i]\n",
            "vpaddd {b}, {b}, zmmword ptr [{total} + 512*",
            $slot,
            " + 128*\\i + 64]\n"
        )
    };
}
/// totals that are stored,
macro_rules! store {
    ($slot:literal) => {
        concat!(
            "vmovdqa64 zmmword ptr [{total} + 512*",
            $slot,
            " + 128*\\i], {a}\n",
            "vmovdqa64 zmmword ptr [{total} + 512*",
            $slot,
            " + 128*\\i + 64], {b}\n"
        )
    };
}
/// results,
macro_rules! scale {
    ($slot:literal) => {
        concat!(
            "vcvtdq2ps {a}, {a}\n",
            "vcvtdq2ps {b}, {b}\n",
            "vbroadcastss {t}, dword ptr [{row_scales} + 16*",
            $slot,
            " + 4*\\i]\n",
            "vmulps {a}, {a}, {t}\n",
            "vmulps {b}, {b}, {t}\n",
            "vmulps {a}, {a}, {c0}\n",
            "vmulps {b}, {b}, {c1}\n",
            "vaddps {a}, {a}, {b0}\n",
            "vaddps {b}, {b}, {b1}\n"
        )
    };
}
/// results that are written,
macro_rules! write {
    ($slot:literal) => {
        concat!(
            scale!($slot),
            "vmovups zmmword ptr [{out}], {a}\n",
            "vmovups zmmword ptr [{out} + 64], {b}\n",
            "add {out}, {width}\n"
        )
    };
}
/// or added to what is there.
macro_rules! accumulate {
    ($slot:literal) => {
        concat!(
            scale!($slot),
            "vmovups {t}, zmmword ptr [{out}]\n",
            "vaddps {a}, {t}, {a}\n",
            "vmovups zmmword ptr [{out}], {a}\n",
            "vmovups {t}, zmmword ptr [{out} + 64]\n",
            "vaddps {b}, {t}, {b}\n",
            "vmovups zmmword ptr [{out} + 64], {b}\n",
            "add {out}, {width}\n"
        )
    };
}

/// Vectors of a fold between two products: four rows of two strips.
macro_rules! slot {
    ($slot:literal, $add:ident, $end:ident) => {
        concat!(
            ".irp i, 0, 1, 2, 3\n",
            "vpmulld {a}, {r0}, zmmword ptr [{to} + 512*",
            $slot,
            " + 128*\\i]\n",
            "vpmulld {b}, {r1}, zmmword ptr [{to} + 512*",
            $slot,
            " + 128*\\i + 64]\n",
            $add!($slot),
            $end!($slot),
            ".endr"
        )
    };
}

/// A group of two steps with the fold of another's sums, which are where its own go.
macro_rules! mixed {
    ($add:ident, $end:ident, $block:ident, $folded:ident, { $($operands:tt)* }) => {{
        let ratios = |strip: usize| _mm512_cvtepi8_epi32(_mm_loadu_si128($folded.ratios.add(strip * 16).cast()));
        asm!(
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "tileloadd tmm0, [{x0} + {x_stride}*1]", "tileloadd tmm2, [{w} + {w_stride}*1]",
            "tdpbssd tmm4, tmm0, tmm2",
            slot!(0, $add, $end),
            "tileloadd tmm3, [{w} + {w_stride}*1 + 1024]",
            "tdpbssd tmm5, tmm0, tmm3",
            slot!(1, $add, $end),
            "tileloadd tmm1, [{x1} + {x_stride}*1]",
            "tdpbssd tmm6, tmm1, tmm2",
            slot!(2, $add, $end),
            "tdpbssd tmm7, tmm1, tmm3",
            slot!(3, $add, $end),
            "tileloadd tmm0, [{x0} + {x_stride}*1 + 64]", "tileloadd tmm2, [{w} + {w_stride}*1 + 2048]",
            "tdpbssd tmm4, tmm0, tmm2",
            slot!(4, $add, $end),
            "tileloadd tmm3, [{w} + {w_stride}*1 + 3072]",
            "tdpbssd tmm5, tmm0, tmm3",
            slot!(5, $add, $end),
            "tileloadd tmm1, [{x1} + {x_stride}*1 + 64]",
            "tdpbssd tmm6, tmm1, tmm2",
            slot!(6, $add, $end),
            "tdpbssd tmm7, tmm1, tmm3",
            slot!(7, $add, $end),
            "tilestored [{to} + {w_stride}*2], tmm4",
            "tilestored [{to} + {w_stride}*2 + 64], tmm5",
            "tilestored [{to} + {w_stride}*2 + 2048], tmm6",
            "tilestored [{to} + {w_stride}*2 + 2112], tmm7",
            x0 = in(reg) $block.x,
            x1 = in(reg) $block.x.add(16 * $block.x_stride),
            x_stride = in(reg) $block.x_stride,
            w = in(reg) $block.tiles,
            w_stride = in(reg) 64usize,
            to = in(reg) $block.to,
            total = in(reg) $folded.total,
            r0 = in(zmm_reg) ratios(0),
            r1 = in(zmm_reg) ratios(1),
            a = out(zmm_reg) _,
            b = out(zmm_reg) _,
            $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }};
}

/// A group of two steps, and the fold of what waits in its buffer. Returns whether that wrote results.
///
/// # Safety
/// As for [`Folds::group`]; `block.to` is the buffer.
unsafe fn mixed(_proof: Avx512, block: TileBlock, folded: &Waiting<'_>) -> bool {
    #[target_feature(enable = "avx512f")]
    unsafe fn sums(block: TileBlock, folded: &Waiting<'_>) {
        // SAFETY: the caller's promise; every register used is declared.
        unsafe {
            if folded.first { mixed!(nothing, store, block, folded, {}) } else { mixed!(add, store, block, folded, {}) }
        }
    }

    /// As the epilogue: `(total as f32 * row scale) * column scale + bias`, then `out + ..`.
    #[target_feature(enable = "avx512f")]
    unsafe fn results(block: TileBlock, folded: &Waiting<'_>, destination: &Destination<'_>, row_scales: *const f32) {
        // Adding -0.0 changes no number.
        // SAFETY: scales and bias have 32 numbers.
        let ([c0, c1], [b0, b1]) = unsafe {
            let load = |from: &[f32]| [0, 16].map(|at| _mm512_loadu_ps(from.as_ptr().add(at)));
            (load(destination.column_scales), destination.bias.map_or([_mm512_set1_ps(-0.0); 2], load))
        };
        macro_rules! results {
            ($end:ident) => {
                mixed!(
                    add, $end, block, folded,
                    {
                        row_scales = in(reg) row_scales,
                        out = inout(reg) destination.out => _,
                        width = in(reg) destination.width * size_of::<f32>(),
                        c0 = in(zmm_reg) c0,
                        c1 = in(zmm_reg) c1,
                        b0 = in(zmm_reg) b0,
                        b1 = in(zmm_reg) b1,
                        t = out(zmm_reg) _,
                    }
                )
            };
        }
        // SAFETY: the caller's promise; every register used is declared.
        unsafe { if destination.add { results!(accumulate) } else { results!(write) } }
    }

    let direct = folded.last.as_ref().and_then(|last| last.direct.as_ref()).filter(|_| !folded.first);
    // SAFETY: there is a proof of the instructions; the rest is the caller's promise.
    unsafe {
        match direct {
            Some((destination, row_scales)) => results(block, folded, destination, *row_scales),
            None => sums(block, folded),
        }
    }
    direct.is_some()
}

const _: () = assert!(BLOCK_SUMS == 1024 && GROUP_STEPS == 2);
