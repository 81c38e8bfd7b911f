//! The KV cache of a model: one of the backend's for each group of layers whose heads are alike.

use crate::config::CacheShape;
use kernels::{Backend, DeviceError, OutOfMemory};

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

    /// Panics if `out` is not as long as a block.
    pub(crate) fn read_block(&self, backend: &B, block: u32, out: &mut [u8]) -> Result<(), DeviceError> {
        assert_eq!(out.len(), self.block_bytes(backend), "a block of every layer");
        let mut rest = out;
        for group in &self.0 {
            let (part, behind) = rest.split_at_mut(backend.block_bytes(group));
            backend.read_block(group, block, part)?;
            rest = behind;
        }
        Ok(())
    }

    /// Panics if `bytes` are not as many as a block's.
    pub(crate) fn write_block(&mut self, backend: &B, block: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.block_bytes(backend), "a block of every layer");
        let mut rest = bytes;
        for group in &mut self.0 {
            let (part, behind) = rest.split_at(backend.block_bytes(group));
            backend.write_block(group, block, part);
            rest = behind;
        }
    }
}
