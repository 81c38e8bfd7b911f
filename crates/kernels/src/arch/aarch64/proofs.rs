//! The proofs of AArch64's instruction sets: products of matrices and of bf16 imply dot products.

use crate::isa::Isa;
use std::arch::is_aarch64_feature_detected;

pub use super::super::no_tiles::TilesProof;

impl Isa {
    /// Proof for NEON kernels, if this ceiling and the CPU allow them. Cheap: a cached load.
    pub fn neon(self) -> Option<Neon> {
        if self >= Isa::Neon { Neon::detect() } else { None }
    }

    /// Proof for kernels by products of matrices and of bf16, if this ceiling and the CPU allow them. Cheap: as above.
    pub fn neon_mm(self) -> Option<NeonMm> {
        if self >= Isa::NeonMm { NeonMm::detect() } else { None }
    }
}

/// Proof that this CPU has NEON, which every AArch64 has here, and its dot products.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// `target_feature`: `neon,dotprod`.
    pub fn detect() -> Option<Neon> {
        is_aarch64_feature_detected!("dotprod").then_some(Neon(()))
    }
}

/// Proof that this CPU has products of 8-bit matrices and of bf16 in addition to [`Neon`].
#[derive(Clone, Copy, Debug)]
pub struct NeonMm(Neon);

impl NeonMm {
    /// The proof of its base.
    pub fn neon(self) -> Neon {
        self.0
    }

    /// `target_feature`: those of [`Neon::detect`] and `i8mm,bf16`.
    pub fn detect() -> Option<NeonMm> {
        let found = is_aarch64_feature_detected!("i8mm") && is_aarch64_feature_detected!("bf16");
        Neon::detect().filter(|_| found).map(NeonMm)
    }
}
