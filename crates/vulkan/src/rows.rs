//! Rows and numbers in the device's memory.

use std::sync::Arc;

use crate::memory::Buffer;

/// Lanes of a workgroup of what is done number by number.
pub(crate) const LANES: usize = 64;

/// f32 rows in the device's memory.
pub struct GpuRows(pub(crate) Arc<Buffer>);

/// Numbers in the device's memory.
pub struct Vector {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) len: usize,
}

/// Rows to be normed, converted, or both: a norm waits for what comes next, to be one dispatch with a product's digits.
pub(crate) struct Norming {
    /// The kind of the norm, 0 where there is none; whether it has a bias; the first row; what is added to the mean.
    pub(crate) how: [u32; 4],
    /// Rows, weight, bias, and where to; how many rows, and their width.
    pub(crate) buffers: [Arc<Buffer>; 4],
    pub(crate) extent: [usize; 2],
    /// Width of a row where they are, and where in it these begin.
    pub(crate) columns: [usize; 2],
}
