//! The KV cache of a model: one of the backend's for each group of layers whose heads are alike.

use crate::config::CacheShape;
use kernels::{Backend, HostBuffer, OutOfMemory};
use std::any::Any;

/// A block has the same index in all groups; its bytes are those of the groups, one after the other.
pub(crate) struct Caches<B: Backend>(Vec<B::KvCache>);

impl<B: Backend> Caches<B> {
    /// Zeroed.
    pub(crate) fn new(backend: &B, shape: &CacheShape) -> Result<Caches<B>, OutOfMemory> {
        shape.groups.iter().map(|&group| backend.kv_cache(group)).collect::<Result<_, _>>().map(Caches)
    }

    /// By [`CacheLayer::group`](crate::config::CacheLayer::group).
    pub(crate) fn groups(&mut self) -> &mut [B::KvCache] {
        &mut self.0
    }

    /// See [`Device::copy_blocks`](kernels::Device::copy_blocks).
    pub(crate) fn copy_blocks(&mut self, backend: &B, copies: &[(u32, u32)]) {
        self.0.iter_mut().for_each(|group| backend.copy_blocks(group, copies));
    }

    /// Bytes of a block in all groups.
    pub(crate) fn block_bytes(&self, backend: &B) -> usize {
        self.0.iter().map(|group| backend.block_bytes(group)).sum()
    }

    /// Panics if `to` is smaller than a block.
    pub(crate) fn save_block(&self, backend: &B, block: u32, to: &mut dyn HostBuffer) {
        let (to, mut at) = (own_mut::<B>(to), 0);
        for group in &self.0 {
            backend.save_block(group, block, to, at);
            at += backend.block_bytes(group);
        }
    }

    /// Panics if `from` is smaller than a block.
    pub(crate) fn load_block(&mut self, backend: &B, from: &dyn HostBuffer, block: u32) {
        let (from, mut at) = (own::<B>(from), 0);
        for group in &mut self.0 {
            backend.load_block(from, at, group, block);
            at += backend.block_bytes(group);
        }
    }
}

/// The host memory as its backend knows it.
pub(crate) fn own<B: Backend>(buffer: &dyn HostBuffer) -> &B::HostBuffer {
    (buffer as &dyn Any).downcast_ref().expect("host memory of this device")
}

/// The same to write to.
pub(crate) fn own_mut<B: Backend>(buffer: &mut dyn HostBuffer) -> &mut B::HostBuffer {
    (buffer as &mut dyn Any).downcast_mut().expect("host memory of this device")
}
