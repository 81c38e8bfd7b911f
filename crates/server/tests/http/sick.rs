//! The real model with something wrong in it.

use kernels::limits::MeasureError;
use kernels::{DeviceError, DeviceInfo, DeviceLimits, HostBuffer};
use model::{Batch, Forward, Logits, ModelConfig, Ticket};
use std::sync::Arc;

pub(crate) trait Illness: Send {
    /// Whether the device is there, at each of the calls `launch`, `wait` and `read_logits`.
    fn pass(&mut self, _door: &'static str) -> Result<(), DeviceError> {
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
