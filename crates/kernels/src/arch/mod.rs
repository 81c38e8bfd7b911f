//! The machine's own kernels, and the only place that asks for which machine it is compiled.
//!
//! ```text
//! native        what the rest of the crate calls; each machine gives the same names
//!   x86_64/     AVX2, AVX-512 and AMX
//!   aarch64/    NEON with dot products, and with products of 8-bit matrices and of bf16
//!   plain.rs    every other machine: the definitions in Rust, and proofs of which no value exists
//! no_tiles.rs   what machines without a matrix unit give in its place
//! ```
//! A machine gives its proofs ([`crate::isa`]), `has` and `has_lanes` of an instruction set, `dispatch` of what is
//! written over [`crate::simd::Simd`], `path` for matrix products, `narrow` (products of bf16 as stored) and `tiles` (a
//! matrix unit) for attention and low-rank products, `prefetch`, the control of floats ([`crate::float_state`]), and
//! the `loops` that measure its peak rates.

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(not(target_arch = "x86_64"))]
mod no_tiles;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod plain;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use plain as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;

/// Methods that are a single expression of intrinsics on registers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! registers {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: `self` proves that the CPU has the instructions, and none of them touches memory.
            unsafe { $body }
        }
    )* };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use registers;
