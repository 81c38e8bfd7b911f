//! A compute device: its name, its limits, and its storage between steps, which is packed weights and the KV cache.

use crate::isa::Isa;
use crate::kv_cache::KvShape;
use crate::limits::MeasureError;
use crate::limits::{Certainty, Doubt};
use crate::low_rank::{LowRankShape, LowRankSource};
use crate::mem::OutOfMemory;
use crate::quant::{
    BlockFormat, BlockSource, ByteSource, Image, Int4Source, Int8Source, MatrixShape, RowSource, WeightClass,
};
use crate::states::StateShape;
use crate::threads::LostCpuTime;
use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

/// The device answers no more: its weights, its cache and its rows are gone, and so is what it was to compute. The
/// caller goes on with another device, or ends what needs this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Its driver reports the loss (`VK_ERROR_DEVICE_LOST`, a sticky CUDA error).
    #[error("{device} is lost ({what}): look at the driver's log, reset the device, and start again")]
    Lost {
        /// Which device.
        device: String,
        /// What its driver says.
        what: String,
    },
    /// It did not finish in many times the expected time.
    #[error("{device} gave no answer for {waited:?}: look at the driver's log, reset the device, and start again")]
    Stuck {
        /// Which device.
        device: String,
        /// How long the host waited.
        waited: Duration,
    },
}

/// Identity of the device: for display, and as the key of saved measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Device type: `CPU`.
    pub kind: &'static str,
    /// Kernel set: for a CPU the instruction set, e.g. `avx512`.
    pub kernels: String,
    /// Compute threads of this process.
    pub threads: usize,
    /// Memory nodes that they run on.
    pub nodes: usize,
}

impl DeviceInfo {
    /// A CPU with these instructions and one memory node.
    pub fn cpu(isa: Isa, threads: usize) -> DeviceInfo {
        DeviceInfo { kind: "CPU", kernels: isa.name().to_owned(), threads, nodes: 1 }
    }
}

/// Peak rates of a device; for a CPU, of all threads together. A multiply-add counts as two operations.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// Bytes per second read from memory, far out of cache.
    pub read_bandwidth: f64,
    /// Bytes per second read from the last level of cache.
    pub cache_bandwidth: f64,
    /// Bytes that the last-level caches of the compute cores hold; 0: unknown, and all reads are taken to come from memory.
    pub cache_bytes: usize,
    /// Operations per second of the int8 instruction that the kernels use.
    pub int8_ops: f64,
    /// Operations per second of the instruction that the bf16 kernels use for the selected accumulation order.
    pub bf16_flops: f64,
    /// Operations per second of f32 multiply-add.
    pub f32_flops: f64,
    /// Instruction measured for `int8_ops`.
    pub int8_kind: &'static str,
    /// Instruction measured for `bf16_flops`.
    pub bf16_kind: &'static str,
    /// Operations per second of the fastest int8 instruction of this CPU, whether the kernels use it or not.
    pub fastest_int8_ops: f64,
    /// Instruction measured for `fastest_int8_ops`.
    pub fastest_int8_kind: &'static str,
    /// Operations per second of the fastest instruction that multiplies bf16, whether the kernels use it or not:
    /// [`AccumulationOrder::Amx`](crate::AccumulationOrder::Amx) does not use `vdpbf16ps`, and
    /// [`AccumulationOrder::Vdpbf16`](crate::AccumulationOrder::Vdpbf16) does not use `tdpbf16ps`.
    pub fastest_bf16_flops: f64,
    /// Instruction measured for `fastest_bf16_flops`.
    pub fastest_bf16_kind: &'static str,
    /// Certainty of the first five rates, in the order memory, cache, int8, bf16, f32.
    pub certainty: [Certainty; 5],
}

impl DeviceLimits {
    /// Scalar loops, no cache, and one rate for all that these samples of it show.
    pub fn of_rate(rate: f64, samples: &[f64]) -> DeviceLimits {
        let (int8_kind, bf16_kind) = ("scalar int8", "scalar f32");
        DeviceLimits {
            read_bandwidth: rate,
            cache_bandwidth: rate,
            cache_bytes: 0,
            int8_ops: rate,
            bf16_flops: rate,
            f32_flops: rate,
            int8_kind,
            bf16_kind,
            fastest_int8_ops: rate,
            fastest_int8_kind: int8_kind,
            fastest_bf16_flops: rate,
            fastest_bf16_kind: bf16_kind,
            certainty: [Certainty::of_rates(samples); 5],
        }
    }

    /// Whether `weight_bytes` bytes of weights stay in the last-level cache between passes.
    pub fn holds(&self, weight_bytes: usize) -> bool {
        weight_bytes <= self.cache_bytes
    }

    /// Read bandwidth in bytes per second for passes over `weight_bytes` bytes of weights.
    pub fn bandwidth_for(&self, weight_bytes: usize) -> f64 {
        if self.holds(weight_bytes) { self.cache_bandwidth } else { self.read_bandwidth }
    }

    /// Doubt about the least certain rate; `None`: all are certain.
    pub fn doubt(&self) -> Option<Doubt> {
        self.certainty.iter().filter_map(Certainty::doubt).max_by(|a, b| a.weight().total_cmp(&b.weight()))
    }
}

/// Host memory that a device reaches: what it saves is read here, by any thread, and what it loads comes from here.
/// Dropped while operations on it are queued, it lives until they are done.
pub trait HostBuffer: Any + Debug + Send + Sync {
    /// Its bytes: what was saved before the last [`submit`](crate::Backend::submit) is among them. Blocks until then.
    fn bytes(&self) -> Result<&[u8], DeviceError>;
}

/// Of a device whose memory is the host's: a save is done when it returns.
impl HostBuffer for Vec<u8> {
    fn bytes(&self) -> Result<&[u8], DeviceError> {
        Ok(self)
    }
}

/// Storage of weights and KV cache, with its identity. The operations are those of its [`Backend`](crate::Backend).
pub trait Device: Send + Sync + 'static {
    /// A weight matrix in the device's packed layout.
    type Matrix: Send + Sync + 'static;
    /// Two low-rank matrices in the device's packed layout.
    type LowRank: Send + Sync + 'static;
    /// The bytes of the KV cache.
    type KvCache: Send + 'static;
    /// The states of layers that have one.
    type States: Send + 'static;
    /// Host memory for blocks and states on their way.
    type HostBuffer: HostBuffer;

    /// One line for display, e.g. `avx512 (vnni), 2 threads`.
    fn describe(&self) -> String;

    /// The same as separate fields.
    fn info(&self) -> DeviceInfo;

    /// The most bytes that rows may have together.
    fn most_row_bytes(&self) -> usize {
        usize::MAX
    }

    /// Measures the peak rates for about `seconds`. Nothing else should run meanwhile.
    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError>;

    /// Makes the calling thread the compute thread from now on; it may be pinned to a core.
    fn set_compute_thread(&self) {}

    /// Calls `work` once for each index below `count` on the host's compute threads, dynamically balanced.
    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }

    /// CPU time that the compute threads lost to other processes since the last call: see
    /// [`Pool::lost`](crate::threads::Pool::lost). `None`: unknown.
    fn lost(&self) -> Option<LostCpuTime> {
        None
    }

    /// Packs a matrix `[out_features, in_features]` once, at load. Rows come from `rows`, exact f32 values.
    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix whose source is int8; see [`PackedMatrix::pack_int8`](crate::PackedMatrix::pack_int8).
    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix whose source is int4; see [`PackedMatrix::pack_int4`](crate::PackedMatrix::pack_int4).
    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs a matrix in the quantization groups of a file; see [`PackedMatrix::pack_blocks`](crate::PackedMatrix::pack_blocks).
    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory>;

    /// Packs low-rank matrices, see [`LowRank::pack`](crate::LowRank::pack), on the calling thread, which need not be the
    /// compute thread.
    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<Self::LowRank, OutOfMemory>;

    /// The in-memory bytes of a packed matrix; see [`PackedMatrix::image`](crate::PackedMatrix::image). `None`: this device
    /// has no images.
    fn image(&self, _matrix: &Self::Matrix) -> Option<Image> {
        None
    }

    /// The matrix of an image; see [`PackedMatrix::restore`](crate::PackedMatrix::restore). `None`: no images, or out of
    /// memory.
    fn restore(&self, _shape: MatrixShape, _class: WeightClass, _source: &ByteSource<'_>) -> Option<Self::Matrix> {
        None
    }

    /// Shape of a packed matrix.
    fn shape(&self, matrix: &Self::Matrix) -> MatrixShape;

    /// Bytes that a packed matrix occupies including padding: what one decode step reads of it.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// Allocates a zeroed cache.
    fn kv_cache(&self, shape: KvShape) -> Result<Self::KvCache, OutOfMemory>;

    /// Copies whole blocks `(src, dst)` in every layer (copy-on-write).
    fn copy_blocks(&self, kv: &mut Self::KvCache, copies: &[(u32, u32)]);

    /// Bytes of one block over all layers, as this device stores it.
    fn block_bytes(&self, kv: &Self::KvCache) -> usize;

    /// Takes bytes over into host memory of its own.
    fn host_buffer(&self, bytes: Vec<u8>) -> Self::HostBuffer;

    /// Copies one block's bytes of every layer, [`Device::block_bytes`] of them, to a place in host memory. This is an
    /// operation: what comes later may write to the block.
    fn save_block(&self, kv: &Self::KvCache, block: u32, to: &mut Self::HostBuffer, at: usize);

    /// The reverse: what [`Device::save_block`] gave of any block becomes this block's, before all that comes later.
    fn load_block(&self, from: &Self::HostBuffer, at: usize, kv: &mut Self::KvCache, block: u32);

    /// Allocates zeroed states.
    fn states(&self, shape: StateShape) -> Result<Self::States, OutOfMemory>;

    /// Copies a slot's bytes to host memory of [`StateShape::slot_bytes`]: an operation like [`Device::save_block`].
    fn save_state(&self, states: &Self::States, slot: u32, to: &mut Self::HostBuffer);

    /// The reverse, for the same slot or another.
    fn load_state(&self, from: &Self::HostBuffer, states: &mut Self::States, slot: u32);
}
