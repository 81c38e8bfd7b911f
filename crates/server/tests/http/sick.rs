//! The real model with something wrong in it.

use std::ops::Range;

use checkpoint::LoadError;
use kernels::limits::MeasureError;
use kernels::{DeviceError, DeviceInfo, DeviceLimits};
use model::{AdapterPacker, Batch, Forward, Logits, ModelConfig, PackedAdapter, Ticket};

pub(crate) trait Illness: Send {
    /// Whether the device is there, at each of the calls `launch`, `wait`, `read_logits`, `read_hidden` and
    /// `read_block`.
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
    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), DeviceError> {
        self.illness.pass("read_block")?;
        self.inner.read_block(block, out)
    }
    fn write_block(&mut self, block: u32, bytes: &[u8]) {
        self.inner.write_block(block, bytes);
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
