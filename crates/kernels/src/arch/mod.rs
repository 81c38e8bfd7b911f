//! The machine's own kernels, and the only place that asks for which machine it is compiled.
//!
//! ```text
//! native      what the rest of the crate calls; each machine gives the same names
//!   x86_64/   AVX2, AVX-512 and AMX
//!   plain.rs  every other machine: the definitions in Rust, and proofs of which no value exists
//! ```
//! A machine gives its proofs ([`crate::isa`]), `has` and `has_lanes` of an instruction set, `dispatch` of what is
//! written over [`crate::simd::Simd`], `path` for matrix products, `narrow` (products of bf16 as stored) and `tiles` (a
//! matrix unit) for attention and low-rank products, `prefetch`, and the `loops` that measure its peak rates.

#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod plain;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use plain as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;
