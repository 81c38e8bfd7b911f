//! Every other machine: each computation runs by its definition in Rust. See [`native`](super::native).

use crate::attention::tile::{NarrowProduct, Page};
use crate::gemm::{self, Kind, Path, Product};
use crate::isa::Isa;
use crate::limits::loops::Loop;
use crate::low_rank::product::{Block, RowTarget};
use crate::quant::PackedMatrix;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

pub(crate) use proofs::{NarrowProof as AttentionPairs, TilesProof as AttentionTiles};
use proofs::{NarrowProof, TilesProof};

/// Proofs of which no value exists.
pub(crate) mod proofs {
    /// Proof of a matrix unit.
    #[derive(Clone, Copy, Debug)]
    pub enum TilesProof {}

    /// Proof of products of bf16 as stored.
    #[derive(Clone, Copy, Debug)]
    pub enum NarrowProof {}
}

pub(crate) fn has(isa: Isa) -> bool {
    isa == Isa::Scalar
}

pub(crate) fn has_lanes(_isa: Isa) -> bool {
    false
}

pub(crate) fn narrow(_isa: Isa) -> Option<NarrowProof> {
    None
}

pub(crate) fn tiles(_isa: Isa) -> Option<TilesProof> {
    None
}

pub(crate) fn path(_isa: Isa, _kind: Kind) -> Option<Path> {
    None
}

pub(crate) fn loops() -> Vec<Loop> {
    Vec::new()
}

pub(crate) fn prefetch(_address: *const u8) {}

pub(crate) fn dispatch<K: Kernel>(_isa: Isa, kernel: K) -> K::Output {
    kernel.define()
}

/// What machines with vectors use of the rest of the crate: named here, so that the compiler goes on looking for code
/// that no machine uses.
#[allow(dead_code)]
fn with_vectors<S: Simd, K: Kernel>(lanes: S, kernel: K, block: gemm::Block, product: NarrowProduct) -> K::Output {
    let _ = (block.x_stride, block.ahead, block.ahead_stride, PackedMatrix::ratios);
    let _ = (product.depth, product.weights, product.lines, product.ahead, product.scale);
    kernel.run(lanes)
}

pub(crate) fn tile_panel(proof: TilesProof, product: &Product<'_>, _rows: Range<usize>, _pairs: Range<usize>) {
    let _ = (product.only_stored(0, 0), product.w.levels(), product.w.ratios(), product.activations.id());
    let _ = (gemm::Lists::new(&[], &[], 0).is_empty(), gemm::Lists::NONE.rows());
    match proof {}
}

pub(crate) fn low_rank_tiles<T: RowTarget>(proof: TilesProof, _block: &Block<'_, T>) {
    match proof {}
}

pub(crate) fn low_rank_narrow<T: RowTarget>(proof: NarrowProof, _block: &Block<'_, T>) {
    match proof {}
}

impl NarrowProof {
    pub(crate) fn new(proof: NarrowProof) -> NarrowProof {
        proof
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(crate) unsafe fn product(&self, _: &NarrowProduct, _rows: usize, _columns: usize, _to: *mut f32) {
        match *self {}
    }
}

impl TilesProof {
    pub(crate) fn configure(proof: TilesProof, _rows: usize) -> TilesProof {
        proof
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(crate) unsafe fn scores(&self, _queries: *const u16, _keys: *const u8, _steps: usize, _to: *mut f32) {
        match *self {}
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn values(&self, _: *const u16, _: &[Page], _: usize, _: bool, _: *mut f32) {
        match *self {}
    }
}

#[cfg(test)]
pub(crate) fn kinds(_isa: Isa, _order: crate::AccumulationOrder) -> (&'static str, &'static str) {
    ("scalar int8", "scalar f32")
}

#[cfg(test)]
pub(crate) fn multiply_pairs(_c: &[f32; 16], _a: &[u32; 16], _b: &[u32; 16]) -> Option<[f32; 16]> {
    None
}
