//! Instruction sets as values: the kernel paths that this CPU supports, detected once at start.
//!
//! ```text
//! Isa      an order of preference, chosen by the user or by `best()`; every name is known on every machine
//! proofs   of this machine (`arch`): a value exists only if this CPU has the instructions, so kernels that take one may
//!          be called safely. `detect` is the only safe constructor; a proof contains the proof of its base
//! ```
//! An [`Isa`] is a ceiling, not a guarantee: a proof is given if the ceiling allows it *and* the CPU has it. Every path
//! returns the same bits, so the choice affects speed only.

use crate::arch::native;

pub use crate::arch::native::proofs::*;

/// The paths of [`crate::Cpu`], slowest first; a machine has those of its own kind. Each path may also use the kernels
/// of the machine's paths before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// Plain Rust: any CPU.
    Scalar,
    /// NEON and its dot products: AArch64 since Neoverse N1, Apple M1, Cortex-A76.
    Neon,
    /// The same plus products of 8-bit matrices and of bf16: AArch64 since Neoverse V1 and N2, Apple M2.
    NeonMm,
    /// AVX2 and FMA: x86-64-v3.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// The same plus BF16, whose `vdpbf16ps` computes [`AccumulationOrder::Vdpbf16`](crate::AccumulationOrder::Vdpbf16).
    Avx512Bf16,
    /// AMX tiles with int8 and bf16 products (Sapphire Rapids and later); everything else as [`Isa::Avx512Bf16`].
    Amx,
}

impl Isa {
    /// All paths, slowest first.
    pub const ALL: [Isa; 7] = [Isa::Scalar, Isa::Neon, Isa::NeonMm, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// The fastest path that this CPU and operating system allow.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Every path that this CPU supports, slowest first; [`Isa::Scalar`] is always among them.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this CPU and operating system allow this path.
    pub fn is_available(self) -> bool {
        native::has(self)
    }

    /// Display name: `scalar`, `neon`, `neon-mm`, `avx2`, `avx512`, `avx512bf16`, `amx`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonMm => "neon-mm",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }

    /// Parses a name that [`Isa::name`] returned.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}
