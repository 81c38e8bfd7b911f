//! A matrix unit of which no value exists, for machines without one. See [`native`](super::native).

use crate::attention::tile::Page;
use crate::gemm::{self, Product};
use crate::isa::Isa;
use crate::low_rank::product::{Block, RowTarget};
use std::ops::Range;

/// Proof of a matrix unit.
#[derive(Clone, Copy, Debug)]
pub enum TilesProof {}

pub(crate) fn tiles(_isa: Isa) -> Option<TilesProof> {
    None
}

/// It names what only a matrix unit asks of a product, so that the compiler goes on looking for code that no machine uses.
pub(crate) fn tile_panel(proof: TilesProof, product: &Product<'_>, _rows: Range<usize>, _pairs: Range<usize>) {
    let _ = (product.w.levels(), product.w.ratios(), product.activations.id());
    let _ = |results: &gemm::epilogue::Results<'_>| results.heavy;
    let _ = (gemm::Lists::new(&[], &[], 0).is_empty(), gemm::Lists::NONE.rows());
    match proof {}
}

pub(crate) fn low_rank_tiles<T: RowTarget>(proof: TilesProof, _block: &Block<'_, T>) {
    match proof {}
}

impl TilesProof {
    pub(crate) fn configure(proof: TilesProof, _rows: usize) -> TilesProof {
        proof
    }

    pub(crate) fn configure_int8(proof: TilesProof, _rows: usize, _head_dim: usize) -> TilesProof {
        proof
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(crate) unsafe fn scores(&self, _queries: *const u16, _keys: *const u8, _steps: usize, _to: *mut f32) {
        match *self {}
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn values(&self, _: *const u16, _: &[Page], _: usize, _: *mut f32) {
        match *self {}
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn int8_scores(&self, _: *const i8, _: *const u8, _: usize, _: *mut i32) {
        match *self {}
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn int8_values(&self, _: *const u8, _: &[Page], _: usize, _: [*mut i32; 2]) {
        match *self {}
    }
}
