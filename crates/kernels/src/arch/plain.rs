//! Every other machine: each computation runs by its definition in Rust. See [`native`](super::native).

use crate::accumulation_order::AccumulationOrder;
use crate::attention::tile::{NarrowProduct, Page};
use crate::gemm::{Kind, Path, Product};
use crate::isa::Isa;
use crate::limits::loops::Loop;
use crate::low_rank::product::{Block, RowTarget};
use crate::quant::WeightClass;
use crate::simd::Kernel;
use proofs::{NarrowProof, TilesProof};
use std::ops::Range;

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

pub(crate) fn tile_panel(proof: TilesProof, _product: &Product<'_>, _rows: Range<usize>, _pairs: Range<usize>) {
    match proof {}
}

pub(crate) fn tile_panel_rows(proof: TilesProof, _class: WeightClass, _in_features: usize) -> usize {
    match proof {}
}

pub(crate) fn low_rank_tiles<T: RowTarget>(proof: TilesProof, _block: &Block<'_, T>) {
    match proof {}
}

pub(crate) fn low_rank_narrow<T: RowTarget>(proof: NarrowProof, _block: &Block<'_, T>) {
    match proof {}
}

pub(crate) struct AttentionPairs(NarrowProof);

impl AttentionPairs {
    pub(crate) fn new(proof: NarrowProof) -> AttentionPairs {
        AttentionPairs(proof)
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(crate) unsafe fn product(&self, _product: &NarrowProduct, _rows: usize, _columns: usize, _to: *mut f32) {
        match self.0 {}
    }
}

pub(crate) struct AttentionTiles(TilesProof);

impl AttentionTiles {
    pub(crate) fn configure(proof: TilesProof, _rows: usize) -> AttentionTiles {
        AttentionTiles(proof)
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(crate) unsafe fn scores(&self, _queries: *const u16, _keys: *const u8, _steps: usize, _to: *mut f32) {
        match self.0 {}
    }

    /// # Safety
    /// As above.
    pub(crate) unsafe fn values(&self, _: *const u16, _: &[Page], _: usize, _: bool, _: *mut f32) {
        match self.0 {}
    }
}

#[cfg(test)]
pub(crate) fn kinds(_isa: Isa, _arithmetic: AccumulationOrder) -> (&'static str, &'static str) {
    ("scalar int8", "scalar f32")
}

#[cfg(test)]
pub(crate) fn multiply_pairs(_c: &[f32; 16], _a: &[u32; 16], _b: &[u32; 16]) -> Option<[f32; 16]> {
    None
}
