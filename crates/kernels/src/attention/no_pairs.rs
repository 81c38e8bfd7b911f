//! Replaces `pairs` on other architectures: a `Pairs` cannot be constructed.

use crate::isa::Avx512Bf16;
use std::convert::Infallible;

pub(super) struct Pairs(Infallible);

/// As in `pairs`.
pub(super) struct Product {
    pub(super) depth: usize,
    pub(super) weights: *const u16,
    pub(super) lines: *const u8,
    pub(super) ahead: *const u8,
    pub(super) scale: Option<f32>,
}

impl Pairs {
    pub(super) fn new(_proof: Avx512Bf16) -> Pairs {
        unreachable!("only a CPU with AVX-512 BF16 gives the proof")
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(super) unsafe fn product(&self, product: &Product, _rows: usize, _columns: usize, _to: *mut f32) {
        let Product { depth: _, weights: _, lines: _, ahead: _, scale: _ } = product;
        match self.0 {}
    }
}
