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
use super::plan::{BLOCK_ROWS, GROUP_STEPS};
use crate::gemm::Sums;
use crate::gemm::tiles::Destination;
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

/// The two buffers. Made by proof of the vectors that fold.
pub(super) struct Folds<'a> {
    sums: [MaybeUninit<Sums<BLOCK_ROWS>>; 2],
    waiting: [Option<Waiting<'a>>; 2],
    next: usize,
}

impl<'a> Folds<'a> {
    pub(super) fn new(_proof: Avx512) -> Folds<'a> {
        Folds { sums: [MaybeUninit::uninit(), MaybeUninit::uninit()], waiting: [None, None], next: 0 }
    }

    /// Computes the sums of a group of 1 or 2 steps of 32 rows, which then wait, and folds those that have waited for two
    /// groups. Returns what follows the latter, and whether results are written.
    ///
    /// # Safety
    /// As for [`int8_two`], without sums before, whose `to` is not used; totals and destinations of what waits are there.
    pub(super) unsafe fn group(
        &mut self,
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
                Some(folded) if block.steps == GROUP_STEPS => written = mixed(block, folded),
                Some(folded) => {
                    add_by_ratio(sums, folded.ratios, BLOCK_ROWS, folded.total, !folded.first);
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
    pub(super) unsafe fn fold_next(&mut self) -> Option<Option<(Last<'a>, *const u32)>> {
        let next = (0..2).map(|later| self.next ^ later).find(|&buffer| self.waiting[buffer].is_some())?;
        let folded = self.waiting[next].take()?;
        // SAFETY: the caller's promise; what waits was written.
        unsafe {
            let sums = self.sums[next].as_ptr().cast();
            add_by_ratio(sums, folded.ratios, BLOCK_ROWS, folded.total, !folded.first);
        }
        Some(folded.last.map(|last| (last, folded.total.cast_const())))
    }
}

/// `to = sums * ratios`, or `to += ..`, for rows of 32.
///
/// # Safety
/// `sums` and `to` hold the rows, and there are 32 ratios; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_by_ratio(sums: *const u32, ratios: *const u8, rows: usize, to: *mut u32, add: bool) {
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

/// Vectors of a fold between two products: four rows of two strips, of which `$end` uses `{a}` and `{b}`: products with ratios.
#[rustfmt::skip]
macro_rules! slot {
    ($slot:literal, $end:ident) => {
        concat!(
            ".irp i, 0, 1, 2, 3\n",
            "vpmulld {a}, {r0}, zmmword ptr [{to} + 512*", $slot, " + 128*\\i]\n",
            "vpmulld {b}, {r1}, zmmword ptr [{to} + 512*", $slot, " + 128*\\i + 64]\n",
            end!($slot, $end),
            ".endr"
        )
    };
}
/// The first totals of a block of rows, later ones, results that are written, or that are added to others.
#[rustfmt::skip]
macro_rules! end {
    ($slot:literal, first) => {
        concat!("vmovdqa64 zmmword ptr [{total} + 512*", $slot, " + 128*\\i], {a}\n",
            "vmovdqa64 zmmword ptr [{total} + 512*", $slot, " + 128*\\i + 64], {b}\n")
    };
    ($slot:literal, add) => {
        concat!("vpaddd {a}, {a}, zmmword ptr [{total} + 512*", $slot, " + 128*\\i]\n",
            "vpaddd {b}, {b}, zmmword ptr [{total} + 512*", $slot, " + 128*\\i + 64]\n")
    };
    ($slot:literal, total) => {
        concat!(end!($slot, add), end!($slot, first))
    };
    ($slot:literal, scale) => {
        concat!(end!($slot, add), "vcvtdq2ps {a}, {a}\nvcvtdq2ps {b}, {b}\n",
            "vbroadcastss {t}, dword ptr [{row_scales} + 16*", $slot, " + 4*\\i]\n",
            "vmulps {a}, {a}, {t}\nvmulps {b}, {b}, {t}\nvmulps {a}, {a}, {c0}\nvmulps {b}, {b}, {c1}\n",
            "vaddps {a}, {a}, {b0}\nvaddps {b}, {b}, {b1}\n")
    };
    ($slot:literal, store) => {
        concat!(end!($slot, scale), "vmovups zmmword ptr [{out}], {a}\nvmovups zmmword ptr [{out} + 64], {b}\n",
            "add {out}, {width}\n")
    };
    ($slot:literal, accumulate) => {
        concat!(end!($slot, scale), "vmovups {t}, zmmword ptr [{out}]\nvaddps {a}, {t}, {a}\n",
            "vmovups zmmword ptr [{out}], {a}\nvmovups {t}, zmmword ptr [{out} + 64]\nvaddps {b}, {t}, {b}\n",
            "vmovups zmmword ptr [{out} + 64], {b}\nadd {out}, {width}\n")
    };
}

/// A group of two steps with the fold of another's sums, which are where its own go.
#[rustfmt::skip]
macro_rules! mixed {
    ($end:ident, $block:ident, $folded:ident, { $($operands:tt)* }) => {{
        let ratios = |strip: usize| _mm512_cvtepi8_epi32(_mm_loadu_si128($folded.ratios.add(strip * 16).cast()));
        asm!(
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "tileloadd tmm0, [{x0} + {x_stride}*1]", "tileloadd tmm2, [{w} + {line}*1]",
            "tdpbssd tmm4, tmm0, tmm2", slot!(0, $end),
            "tileloadd tmm3, [{w} + {line}*1 + 1024]", "tdpbssd tmm5, tmm0, tmm3", slot!(1, $end),
            "tileloadd tmm1, [{x1} + {x_stride}*1]", "tdpbssd tmm6, tmm1, tmm2", slot!(2, $end),
            "tdpbssd tmm7, tmm1, tmm3", slot!(3, $end),
            "tileloadd tmm0, [{x0} + {x_stride}*1 + 64]", "tileloadd tmm2, [{w} + {line}*1 + 2048]",
            "tdpbssd tmm4, tmm0, tmm2", slot!(4, $end),
            "tileloadd tmm3, [{w} + {line}*1 + 3072]", "tdpbssd tmm5, tmm0, tmm3", slot!(5, $end),
            "tileloadd tmm1, [{x1} + {x_stride}*1 + 64]", "tdpbssd tmm6, tmm1, tmm2", slot!(6, $end),
            "tdpbssd tmm7, tmm1, tmm3", slot!(7, $end),
            "tilestored [{to} + {line}*2], tmm4", "tilestored [{to} + {line}*2 + 64], tmm5",
            "tilestored [{to} + {line}*2 + 2048], tmm6", "tilestored [{to} + {line}*2 + 2112], tmm7",
            x0 = in(reg) $block.x, x1 = in(reg) $block.x.add(16 * $block.x_stride), x_stride = in(reg) $block.x_stride,
            w = in(reg) $block.tiles, line = in(reg) 64usize, to = in(reg) $block.to, total = in(reg) $folded.total,
            r0 = in(zmm_reg) ratios(0), r1 = in(zmm_reg) ratios(1), a = out(zmm_reg) _, b = out(zmm_reg) _,
            $($operands)*
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }};
}

/// A group of two steps, and the fold of what waits in its buffer. Returns whether that wrote results: as the epilogue,
/// `(total as f32 * row scale) * column scale + bias`, then `out + ..`.
///
/// # Safety
/// As for [`Folds::group`]; `block.to` is the buffer; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn mixed(block: TileBlock, folded: &Waiting<'_>) -> bool {
    let direct = folded.last.as_ref().and_then(|last| last.direct.as_ref()).filter(|_| !folded.first);
    // SAFETY: the caller's promise; every register used is declared; scales and bias have 32 numbers.
    unsafe {
        let Some((destination, row_scales)) = direct else {
            if folded.first {
                mixed!(first, block, folded, {})
            } else {
                mixed!(total, block, folded, {})
            }
            return false;
        };
        let load = |from: &[f32]| [0, 16].map(|at| _mm512_loadu_ps(from.as_ptr().add(at)));
        let [c0, c1] = load(destination.column_scales);
        // Adding -0.0 changes no number.
        let [b0, b1] = destination.bias.map_or([_mm512_set1_ps(-0.0); 2], load);
        macro_rules! results {
            ($end:ident) => {
                mixed!($end, block, folded, {
                    row_scales = in(reg) *row_scales, out = inout(reg) destination.out => _,
                    width = in(reg) destination.width * size_of::<f32>(),
                    c0 = in(zmm_reg) c0, c1 = in(zmm_reg) c1, b0 = in(zmm_reg) b0, b1 = in(zmm_reg) b1,
                    t = out(zmm_reg) _,
                })
            };
        }
        if destination.add { results!(accumulate) } else { results!(store) }
    }
    true
}
