//! Every other machine: each computation runs by its definition in Rust. See [`native`](super::native).

use crate::attention::tile::NarrowProduct;
use crate::gemm::{self, Kind, Path};
use crate::isa::Isa;
use crate::limits::loops::Loop;
use crate::low_rank::product::{Block, RowTarget};
use crate::simd::{Kernel, Simd};

pub(crate) use super::no_tiles::{TilesProof as AttentionTiles, low_rank_tiles, tile_panel, tiles};
use proofs::NarrowProof;
pub(crate) use proofs::NarrowProof as AttentionPairs;

/// Proofs of which no value exists.
pub(crate) mod proofs {
    pub use super::super::no_tiles::TilesProof;

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

pub(crate) fn path(_isa: Isa, _kind: Kind) -> Option<Path> {
    None
}

pub(crate) fn loops() -> Vec<Loop> {
    Vec::new()
}

pub(crate) const DEFAULT_FLOATS: u64 = 0;
pub(crate) const ODD_FLOATS: u64 = 0;

/// Machines whose register this crate does not know compute as their hosts do.
pub(crate) fn float_control() -> u64 {
    DEFAULT_FLOATS
}

pub(crate) fn set_float_control(_control: u64) {}

pub(crate) fn prefetch(_address: *const u8) {}

pub(crate) fn dispatch<K: Kernel>(_isa: Isa, kernel: K) -> K::Output {
    kernel.define()
}

/// What machines with vectors use of the rest of the crate: named here, so that the compiler goes on looking for code
/// that no machine uses.
#[allow(dead_code)]
fn with_vectors<S: Simd, K: Kernel>(lanes: S, kernel: K, block: gemm::Block, product: NarrowProduct) -> K::Output {
    let _ = (block.x_stride, block.ahead, block.ahead_stride, gemm::Format::Bf16);
    let _ = (product.depth, product.weights, product.lines, product.ahead, product.scale);
    kernel.run(lanes)
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

#[cfg(test)]
pub(crate) fn kinds(_isa: Isa, _order: crate::AccumulationOrder) -> (&'static str, &'static str) {
    ("scalar int8", "scalar f32")
}

#[cfg(test)]
pub(crate) fn multiply_pairs(_c: &[f32; 16], _a: &[u32; 16], _b: &[u32; 16]) -> Option<[f32; 16]> {
    None
}
