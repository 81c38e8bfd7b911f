//! Rows that go to experts. The host chooses them, with the kernels of a CPU: it waits for the logits of a layer, and
//! the counts decide what comes next. That is one wait for each layer with experts.

use std::sync::Arc;

use kernels::{HostBackend, OutOfMemory, Routes, Routing, RoutingRule};

use crate::device::Vulkan;
use crate::memory::{Buffer, Place};
use crate::recorder::Binding;
use crate::rows::{GpuRows, LANES, Vector};

/// Words of an entry of the list: a row, a factor of what the expert reads of it, and a weight of what it gives.
const ENTRY: usize = 3;

/// Which rows go to which expert.
pub struct GpuRoutes {
    of_host: Routes,
    num_experts: usize,
    /// In memory of the host: the rows of the first expert, then those of the next.
    list: Arc<Buffer>,
    /// Where the rows of each expert begin.
    starts: Vec<u32>,
    /// Logits, and the bias behind them.
    read: Vec<f32>,
    bytes: Vec<u8>,
}

impl GpuRoutes {
    pub(crate) fn new(
        vulkan: &Vulkan,
        max_rows: usize,
        num_experts: usize,
        rule: RoutingRule,
    ) -> Result<GpuRoutes, OutOfMemory> {
        let of_host = Routes::new(max_rows, num_experts, rule)?;
        let bytes = max_rows * rule.top_k * ENTRY * size_of::<u32>();
        let list = Arc::new(Buffer::new(&vulkan.driver, bytes as u64, Place::Host)?);
        let (read, bytes) = (Vec::new(), Vec::with_capacity(bytes));
        Ok(GpuRoutes { of_host, num_experts, list, starts: vec![0; num_experts], read, bytes })
    }

    /// On a lost device no expert has rows.
    pub(crate) fn choose(&mut self, vulkan: &Vulkan, logits: &GpuRows, bias: Option<&Vector>, rows: usize) {
        let GpuRoutes { of_host, num_experts, list, starts, read, bytes } = self;
        read.resize((rows + 1) * *num_experts, 0.0);
        let (of_rows, of_bias) = read.split_at_mut(rows * *num_experts);
        let is_read = bias.map_or(Ok(()), |bias| vulkan.numbers(&bias.buffer, 0, of_bias));
        let is_read = is_read.and_then(|()| vulkan.numbers(&logits.0, 0, of_rows));
        let rows = if is_read.is_ok() { rows } else { 0 };
        of_host.fill(rows, |num_experts, rule, chosen, weights| {
            let how = Routing { num_experts, rule, bias: bias.map(|_| &*of_bias) };
            HostBackend::route(&vulkan.host, &of_rows[..rows * num_experts], how, chosen, weights);
        });
        bytes.clear();
        for (expert, start) in starts.iter_mut().enumerate() {
            *start = (bytes.len() / ENTRY / size_of::<u32>()) as u32;
            let (rows, weights) = of_host.of(expert);
            let factors = of_host.input_factors(expert).iter().chain(std::iter::repeat(&1.0));
            for ((row, weight), factor) in rows.iter().zip(weights).zip(factors) {
                bytes.extend([*row, factor.to_bits(), weight.to_bits()].into_iter().flat_map(u32::to_ne_bytes));
            }
        }
        // SAFETY: what was queued before the logits were read is done, and only operations on these rows use the list.
        unsafe { list.write(0, bytes) };
    }

    pub(crate) fn num_rows(&self, expert: usize) -> usize {
        self.of_host.of(expert).0.len()
    }

    pub(crate) fn gather(&self, vulkan: &Vulkan, expert: usize, from: &GpuRows, width: usize, out: &GpuRows) {
        let has_factors = !self.of_host.input_factors(expert).is_empty();
        self.by_list(vulkan, expert, [from, out], width, u32::from(has_factors));
    }

    pub(crate) fn scatter(&self, vulkan: &Vulkan, expert: usize, y: &GpuRows, width: usize, x: &GpuRows) {
        self.by_list(vulkan, expert, [y, x], width, 2);
    }

    /// `how`: see the kernel.
    fn by_list(&self, vulkan: &Vulkan, expert: usize, [from, to]: [&GpuRows; 2], width: usize, how: u32) {
        let push = [width as u32, self.starts[expert], ENTRY as u32, how];
        let groups = [width.div_ceil(LANES) as u32, self.num_rows(expert) as u32, 1];
        let all = [&self.list, &from.0, &to.0].map(Binding::whole);
        vulkan.state().recorder.dispatch(&vulkan.kernels.gather, &all, push, groups);
    }
}
