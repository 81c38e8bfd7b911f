//! Replaces `amx` on other architectures: a `Tiles` cannot be constructed.

use super::tile::Page;
use crate::isa::Amx;
use std::convert::Infallible;

pub(super) struct Tiles(Infallible);

impl Tiles {
    pub(super) fn configure(_proof: Amx, _rows: usize) -> Tiles {
        unreachable!("only a CPU with AMX gives the proof")
    }

    /// # Safety
    /// None is needed: there is no `self`.
    pub(super) unsafe fn scores(&self, _queries: *const u16, _keys: *const u8, _steps: usize, _to: *mut f32) {
        match self.0 {}
    }

    /// # Safety
    /// As above.
    pub(super) unsafe fn values(
        &self,
        _weights: *const u16,
        _pages: &[Page],
        _inside: usize,
        _wide: bool,
        _to: *mut f32,
    ) {
        match self.0 {}
    }
}
