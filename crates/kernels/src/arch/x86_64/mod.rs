//! x86: what it gives as [`native`](super::native).

mod amx;
mod attention_pairs;
mod gemm_avx2;
mod gemm_avx512;
mod gemm_pairs;
mod lanes_avx2;
mod lanes_avx512;
mod loops;
mod low_rank_pairs;
pub(crate) mod proofs;
mod quantize;

pub(crate) use amx::attention::Tiles as AttentionTiles;
pub(crate) use amx::gemm::panel as tile_panel;
pub(crate) use amx::low_rank::run as low_rank_tiles;
pub(crate) use attention_pairs::Pairs as AttentionPairs;
#[cfg(test)]
pub(crate) use gemm_pairs::multiply_pairs;
#[cfg(test)]
pub(crate) use loops::kinds;
pub(crate) use loops::loops;
pub(crate) use low_rank_pairs::run as low_rank_narrow;

use super::registers;
use crate::gemm::{Kind, Path};
use crate::isa::Isa;
use crate::simd::Kernel;
use proofs::{Amx, Avx2, Avx512, Avx512Bf16};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Whether this CPU and operating system allow a path.
pub(crate) fn has(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Neon | Isa::NeonMm => false,
        Isa::Avx2 => Avx2::detect().is_some(),
        Isa::Avx512 => Avx512::detect().is_some(),
        Isa::Avx512Bf16 => Avx512Bf16::detect().is_some(),
        Isa::Amx => Amx::detect().is_some(),
    }
}

/// Whether [`dispatch`] has vectors at or below `isa`.
pub(crate) fn has_lanes(isa: Isa) -> bool {
    isa.avx2().is_some()
}

/// The proof of products of bf16 as stored, if this ceiling and the CPU allow them. Cheap: a cached load.
pub(crate) fn narrow(isa: Isa) -> Option<Avx512Bf16> {
    if isa >= Isa::Avx512Bf16 { Avx512Bf16::detect() } else { None }
}

/// The proof of the matrix unit, if this ceiling, the CPU and the operating system allow it. Cheap: a cached load.
pub(crate) fn tiles(isa: Isa) -> Option<Amx> {
    if isa >= Isa::Amx { Amx::detect() } else { None }
}

/// The best vector path at or below `isa`.
pub(crate) fn path(isa: Isa, kind: Kind) -> Option<Path> {
    match (kind, narrow(isa)) {
        (Kind::Pairs, Some(proof)) => Some(gemm_pairs::AVX512_BF16.by(proof)),
        _ => match isa.avx512() {
            Some(proof) => Some(gemm_avx512::table(kind).by(proof)),
            None => isa.avx2().map(|proof| gemm_avx2::table(kind).by(proof)),
        },
    }
}

/// Runs `kernel` with the best vectors at or below `isa` that this CPU has.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    fn avx512<K: Kernel>(kernel: K, proof: Avx512) -> K::Output {
        kernel.run(proof)
    }
    #[target_feature(enable = "avx2,fma")]
    fn avx2<K: Kernel>(kernel: K, proof: Avx2) -> K::Output {
        kernel.run(proof)
    }
    if let Some(proof) = isa.avx512() {
        // SAFETY: `proof` says that the CPU has these features.
        return unsafe { avx512(kernel, proof) };
    }
    if let Some(proof) = isa.avx2() {
        // SAFETY: `proof` says that the CPU has these features.
        return unsafe { avx2(kernel, proof) };
    }
    kernel.define()
}

/// Of MXCSR: to nearest, denormals kept, exceptions masked.
pub(crate) const DEFAULT_FLOATS: u64 = 0x1f80;
/// The same, but rounds up and flushes denormals to zero, as operands and as results.
pub(crate) const ODD_FLOATS: u64 = 0xdfc0;

/// MXCSR of this thread without the flags of what has happened.
pub(crate) fn float_control() -> u64 {
    let mut register = 0u32;
    // SAFETY: writes four bytes.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack, preserves_flags)) };
    u64::from(register & 0xffc0)
}

/// Sets MXCSR of this thread.
pub(crate) fn set_float_control(control: u64) {
    let register = control as u32;
    // SAFETY: `control` is one of the constants above or was read from the register.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const register, options(nostack, preserves_flags)) };
}

/// Prefetches a line into the nearest cache; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: a prefetch is a hint, never a fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Returns the same addresses, opaque to the compiler. Called before each tile, it keeps the loads of a tile after those
/// of the previous one: the compiler would otherwise broadcast an activation once for two tiles and alternate between
/// their lines, which the hardware prefetcher does not follow.
#[inline(always)]
fn in_order(tile: *const u8, x: *const u8) -> (*const u8, *const u8) {
    (opaque(tile.cast_mut()), opaque(x.cast_mut()))
}

/// Returns the same address, opaque to the compiler: it derives no other address from it, and keeps nothing stored
/// there in registers.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // no memory access
fn opaque<T>(mut address: *mut T) -> *mut T {
    // SAFETY: no instruction at all.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Kernels of these numbers of rows.
macro_rules! by_rows {
    ($R:ident in $($rows:literal)* => $kernel:expr) => {
        [$({
            const $R: usize = $rows;
            $kernel
        }),*]
    };
}
use by_rows;
