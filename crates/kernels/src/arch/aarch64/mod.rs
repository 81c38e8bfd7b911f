//! AArch64: what it gives as [`native`](super::native). Two levels: NEON with dot products (Neoverse N1, Apple M1,
//! Cortex-A76 on), and with products of 8-bit matrices and of bf16 too (Neoverse V1, N2, Apple M2 on).

/// Does something for each of the four registers of a strip, or for some numbers. Written out: where the body is long,
/// a loop remains one, and the sums go through memory.
macro_rules! parts {
    ($PART:ident => $do:expr) => {
        parts!($PART in 0 1 2 3 => $do)
    };
    ($PART:ident in $($at:literal)* => $do:expr) => {
        $({
            const $PART: usize = $at;
            $do
        })*
    };
}

mod bf16;
mod gemm;
mod gemm_mm;
mod instructions;
mod lanes;
mod loops;
mod narrow;
pub(crate) mod proofs;

pub(crate) use super::no_tiles::{TilesProof as AttentionTiles, low_rank_tiles, tile_panel, tiles};
pub(crate) use instructions::prefetch;
pub(crate) use loops::loops;
#[cfg(test)]
pub(crate) use loops::{kinds, multiply_pairs};
pub(crate) use narrow::{AttentionPairs, low_rank as low_rank_narrow};

use crate::gemm::{Kind, Path};
use crate::isa::Isa;
use crate::simd::Kernel;
use proofs::{Neon, NeonMm};

/// Whether this CPU has a path.
pub(crate) fn has(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Neon => Neon::detect().is_some(),
        Isa::NeonMm => NeonMm::detect().is_some(),
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => false,
    }
}

/// Whether [`dispatch`] has vectors at or below `isa`.
pub(crate) fn has_lanes(isa: Isa) -> bool {
    isa.neon().is_some()
}

/// The proof of products of bf16 as stored, if this ceiling and the CPU allow them. Cheap: a cached load.
pub(crate) fn narrow(isa: Isa) -> Option<NeonMm> {
    isa.neon_mm()
}

/// The best vector path at or below `isa`.
pub(crate) fn path(isa: Isa, kind: Kind) -> Option<Path> {
    match (isa.neon_mm(), gemm_mm::table(kind)) {
        (Some(proof), Some(table)) => Some(table.by(proof)),
        _ => isa.neon().map(|proof| gemm::table(kind).by(proof)),
    }
}

/// Of FPCR: to nearest, denormals kept, exceptions masked.
pub(crate) const DEFAULT_FLOATS: u64 = 0;
/// The same, but rounds up and flushes denormals to zero.
pub(crate) const ODD_FLOATS: u64 = 1 << 24 | 1 << 22;

/// FPCR of this thread.
pub(crate) fn float_control() -> u64 {
    let control;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nostack, nomem, preserves_flags)) };
    control
}

/// Sets FPCR of this thread.
pub(crate) fn set_float_control(control: u64) {
    // SAFETY: `control` is one of the constants above or was read from the register.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
}

/// Runs `kernel` with the best vectors at or below `isa` that this CPU has.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[target_feature(enable = "neon,dotprod")]
    fn neon<K: Kernel>(kernel: K, proof: Neon) -> K::Output {
        kernel.run(proof)
    }
    match isa.neon() {
        // SAFETY: `proof` says that the CPU has these features.
        Some(proof) => unsafe { neon(kernel, proof) },
        None => kernel.define(),
    }
}
