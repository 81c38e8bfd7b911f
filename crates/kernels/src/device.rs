//! What computes: its name, its limits, and what it keeps between steps, which is packed weights and the KV cache.

use crate::isa::Isa;
use crate::kv_cache::KvShape;
use crate::limits::MeasureError;
use crate::limits::{Certainty, Doubt};
use crate::low_rank::{LowRankShape, LowRankSource};
use crate::mem::OutOfMemory;
use crate::quant::{
    BlockFormat, BlockSource, ByteSource, Image, Int4Source, Int8Source, MatrixShape, RowSource, WeightClass,
};
use crate::threads::LostTime;

/// What computes, in words: for people, and for whoever keeps what was measured on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Of what kind: `CPU`.
    pub kind: &'static str,
    /// Which kernels: of a CPU the instruction set, e.g. `avx512`.
    pub kernels: String,
    /// Threads of this process that compute.
    pub threads: usize,
    /// Memory nodes that they are on.
    pub nodes: usize,
}

impl DeviceInfo {
    /// A CPU with these instructions and one memory node.
    pub fn cpu(isa: Isa, threads: usize) -> DeviceInfo {
        DeviceInfo { kind: "CPU", kernels: isa.name().to_owned(), threads, nodes: 1 }
    }
}

/// What a device can do at most; of a CPU all its threads together. A multiply-add counts as two operations.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// Bytes per second read from memory, far out of cache.
    pub read_bandwidth: f64,
    /// Bytes per second read from the last level of cache.
    pub cache_bandwidth: f64,
    /// Bytes that the last level of cache of the computing cores holds; 0: unknown, and everything comes from memory.
    pub cache_bytes: usize,
    /// Operations per second of the int8 instruction that the kernels use.
    pub int8_ops: f64,
    /// Operations per second of the instruction that the bf16 kernels use for the arithmetic in question.
    pub bf16_flops: f64,
    /// Operations per second of f32 multiply-add.
    pub f32_flops: f64,
    /// Which instruction gave `int8_ops`.
    pub int8_kind: &'static str,
    /// Which instruction gave `bf16_flops`.
    pub bf16_kind: &'static str,
    /// Operations per second of the fastest int8 instruction that this CPU has, used or not.
    pub fastest_int8_ops: f64,
    /// Which instruction that is.
    pub fastest_int8_kind: &'static str,
    /// Operations per second of the fastest instruction that multiplies bf16, used or not: `vdpbf16ps` is not used for
    /// [`Arithmetic::Tiles`](crate::Arithmetic::Tiles), nor `tdpbf16ps` for
    /// [`Arithmetic::Pairs`](crate::Arithmetic::Pairs).
    pub fastest_bf16_flops: f64,
    /// Which instruction that is.
    pub fastest_bf16_kind: &'static str,
    /// How sure the first five rates are, in their order: memory, cache, int8, bf16, f32.
    pub certainty: [Certainty; 5],
}

impl DeviceLimits {
    /// Whether weights of so many bytes stay in the last level of cache from pass to pass.
    pub fn holds(&self, weight_bytes: usize) -> bool {
        weight_bytes <= self.cache_bytes
    }

    /// Bytes per second that passes over weights of so many bytes read at most.
    pub fn bandwidth_for(&self, weight_bytes: usize) -> f64 {
        if self.holds(weight_bytes) { self.cache_bandwidth } else { self.read_bandwidth }
    }

    /// Why they are not sure, by the least sure of them; `None`: they are.
    pub fn doubt(&self) -> Option<Doubt> {
        self.certainty.iter().filter_map(Certainty::doubt).max_by(|a, b| a.weight().total_cmp(&b.weight()))
    }
}

/// What keeps weights and a cache, and says of itself what it is. What it computes with them is its
/// [`Backend`](crate::Backend).
pub trait Device: Send + Sync + 'static {
    /// A weight matrix in the device's packed layout.
    type Matrix: Send + Sync + 'static;
    /// Two low-rank matrices in the device's packed layout.
    type LowRank: Send + Sync + 'static;
    /// The KV cache's bytes.
    type KvCache: Send + 'static;

    /// One line for people, e.g. `avx512 (vnni), 2 threads`.
    fn describe(&self) -> String;

    /// The same in parts.
    fn info(&self) -> DeviceInfo;

    /// What it can do at most, measured now, for about `seconds`. Nothing else should run meanwhile.
    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError>;

    /// Makes the calling thread the one that computes from now on; it may be pinned to a core.
    fn adopt_thread(&self) {}

    /// Calls `work` once for each number below `count`, on the host's threads that compute, each on whichever is free.
    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }

    /// What the machine took of the threads that compute since this was asked last: see
    /// [`Pool::lost`](crate::threads::Pool::lost). `None`: nobody knows.
    fn lost(&self) -> Option<LostTime> {
        None
    }

    /// Packs a matrix `[out_features, in_features]` once, at load. Rows come from `rows`, exact f32 values.
    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix that is int8 already; see [`PackedMatrix::pack_int8`](crate::PackedMatrix::pack_int8).
    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix that is int4 already; see [`PackedMatrix::pack_int4`](crate::PackedMatrix::pack_int4).
    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix in the groups of a file; see [`PackedMatrix::pack_blocks`](crate::PackedMatrix::pack_blocks).
    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs low-rank matrices, see [`LowRank::pack`](crate::LowRank::pack): on the calling thread, which need not be
    /// the one that computes.
    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<Self::LowRank, OutOfMemory>;

    /// The bytes of a packed matrix as they lie in memory; see [`PackedMatrix::image`](crate::PackedMatrix::image).
    /// `None`: this device has no images.
    fn image(&self, _matrix: &Self::Matrix) -> Option<Image> {
        None
    }

    /// The matrix of an image; see [`PackedMatrix::restore`](crate::PackedMatrix::restore). `None`: no images, or no
    /// memory.
    fn restore(&self, _shape: MatrixShape, _class: WeightClass, _source: &ByteSource<'_>) -> Option<Self::Matrix> {
        None
    }

    /// Shape of a packed matrix.
    fn shape(&self, matrix: &Self::Matrix) -> MatrixShape;

    /// Bytes that a packed matrix occupies, padding included: what one decode step reads of it.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// A zeroed cache.
    fn kv_cache(&self, shape: KvShape) -> Result<Self::KvCache, OutOfMemory>;

    /// Copies whole blocks `(src, dst)` in every layer (copy-on-write).
    fn copy_blocks(&self, kv: &mut Self::KvCache, copies: &[(u32, u32)]);

    /// Bytes of one block of every layer, as this device stores them.
    fn block_bytes(&self, kv: &Self::KvCache) -> usize;

    /// Copies one block's bytes of every layer out of the cache. `out`: [`Device::block_bytes`] long. Blocks until what
    /// was asked for before it is done.
    fn read_block(&self, kv: &Self::KvCache, block: u32, out: &mut [u8]);

    /// Copies one block's bytes of every layer into the cache: bytes that [`Device::read_block`] gave, of any block.
    fn write_block(&self, kv: &mut Self::KvCache, block: u32, bytes: &[u8]);
}
