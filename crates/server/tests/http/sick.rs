//! The real model with something wrong in it.

use std::ops::Range;
use std::sync::Arc;

use checkpoint::LoadError;
use kernels::limits::MeasureError;
use kernels::{DeviceError, DeviceInfo, DeviceLimits, HostBuffer};
use model::{AdapterPacker, Batch, Forward, Logits, ModelConfig, PackedAdapter, Ticket};

pub(crate) trait Illness: Send {
    /// Whether the device is there, at each of the calls `launch`, `wait`, `read_logits`, `read_hidden` and
    /// `submit`.
    fn pass(&self, _door: &'static str) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Before a pass.
    fn before(&mut self, batch: &Batch);
    /// To a row of its logits.
    fn logits(&mut self, row: usize, logits: &mut [f32]);
}

/// The real model, and that.
pub(crate) struct Sick<I> {
    pub(crate) inner: Box<dyn Forward>,
    pub(crate) illness: I,
}

impl<I: Illness> Forward for Sick<I> {
    fn launch(&mut self, batch: &Batch) -> Result<Ticket, DeviceError> {
        self.illness.pass("launch")?;
        self.illness.before(batch);
        self.inner.launch(batch)
    }

    fn read_logits(&mut self, logits: &Logits, row: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.illness.pass("read_logits")?;
        self.inner.read_logits(logits, row, out)?;
        self.illness.logits(row, out);
        Ok(())
    }

    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }
    fn wait(&mut self, ticket: Ticket) -> Result<Logits, DeviceError> {
        self.illness.pass("wait")?;
        self.inner.wait(ticket)
    }
    fn set_compute_thread(&self) {
        self.inner.set_compute_thread();
    }
    fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        self.inner.copy_blocks(copies);
    }
    fn read_hidden(&mut self, pass: &Logits, rows: Range<usize>, out: &mut [f32]) -> Result<(), DeviceError> {
        self.illness.pass("read_hidden")?;
        self.inner.read_hidden(pass, rows, out)
    }
    fn adapter_packer(&self) -> Option<AdapterPacker> {
        self.inner.adapter_packer()
    }
    fn put_adapter(&mut self, slot: usize, adapter: Option<PackedAdapter>) -> Result<Option<PackedAdapter>, LoadError> {
        self.inner.put_adapter(slot, adapter)
    }
    fn host_buffer(&self, bytes: Vec<u8>) -> Arc<dyn HostBuffer> {
        self.inner.host_buffer(bytes)
    }
    fn save_block(&self, block: u32, to: &mut dyn HostBuffer) {
        self.inner.save_block(block, to);
    }
    fn load_block(&mut self, from: &dyn HostBuffer, block: u32) {
        self.inner.load_block(from, block);
    }
    fn submit(&self) -> Result<(), DeviceError> {
        self.illness.pass("submit")?;
        self.inner.submit()
    }
    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }
    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }
    fn expert_bytes(&self) -> usize {
        self.inner.expert_bytes()
    }
    fn kv_bytes_per_token(&self) -> usize {
        self.inner.kv_bytes_per_token()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn device(&self) -> DeviceInfo {
        self.inner.device()
    }
    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.inner.limits(seconds)
    }
}
