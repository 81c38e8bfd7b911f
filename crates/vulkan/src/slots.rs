//! Slots for states, in as few buffers as devices give. Kernels find them by their addresses: no number of slots is
//! more than a binding may see.

use std::sync::Arc;

use kernels::{OutOfMemory, StateShape};

use crate::memory::{Buffer, Place};
use crate::recorder::Recorder;

/// Bytes of a buffer that slots share, if more than one fits.
const SHARED: usize = 256 << 20;

/// Slots.
pub struct GpuStates {
    pub(crate) shape: StateShape,
    per_buffer: usize,
    buffers: Vec<Arc<Buffer>>,
    /// Their addresses.
    pub(crate) table: Arc<Buffer>,
}

impl GpuStates {
    pub(crate) fn new(recorder: &mut Recorder, place: Place, shape: StateShape) -> Result<GpuStates, OutOfMemory> {
        let bytes = shape.slot_bytes();
        let per_buffer = (SHARED / bytes.max(1)).clamp(1, shape.slots.max(1));
        let slots = if bytes > 0 { shape.slots } else { 0 };
        let in_buffer = |first: usize| per_buffer.min(slots - first);
        let driver = recorder.driver.clone();
        let new = |first| Ok(Arc::new(Buffer::new(&driver, (in_buffer(first) * bytes) as u64, place)?));
        let buffers: Vec<_> = (0..slots).step_by(per_buffer).map(new).collect::<Result<_, _>>()?;
        let at = |slot: usize| buffers[slot / per_buffer].address + (slot % per_buffer * bytes) as u64;
        let addresses: Vec<u8> = (0..slots).flat_map(|slot| at(slot).to_le_bytes()).collect();
        let mut table = Buffer::new(&driver, addresses.len() as u64, place)?;
        table.holds = buffers.clone();
        let table = Arc::new(table);
        buffers.iter().for_each(|buffer| recorder.clear(buffer, buffer.bytes));
        recorder.upload(&table, 0, &addresses).map_err(|_| OutOfMemory { bytes: addresses.len() })?;
        Ok(GpuStates { shape, per_buffer, buffers, table })
    }

    /// Where a slot is.
    pub(crate) fn place(&self, slot: u32) -> (&Arc<Buffer>, u64) {
        let (slot, bytes) = (slot as usize, self.shape.slot_bytes());
        assert!(slot < self.shape.slots, "slot {slot} of {}", self.shape.slots);
        (&self.buffers[slot / self.per_buffer], (slot % self.per_buffer * bytes) as u64)
    }
}
