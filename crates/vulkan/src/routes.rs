//! Rows that go to experts. The host chooses them, with the kernels of a CPU: it waits for the logits of a layer, and
//! the counts decide what comes next. That is one wait for each layer with experts.
//!
//! The experts of many rows come one after another. Those of few rows, whose dispatches would take longer to begin than
//! to compute, come together: a workgroup finds its rows, and addresses of their expert's weights, in a list.

use std::sync::Arc;

use kernels::{Extent, HostBackend, OutOfMemory, RoutedMlp, Routes, Routing, RoutingRule};

use crate::device::{Matrix, Scratch, State, Vulkan};
use crate::memory::{Buffer, Place};
use crate::products::{MANY_FROM, activation_of};
use crate::recorder::Binding;
use crate::rows::{GpuRows, LANES, Vector};

/// Words of an entry of the list: a row, a factor of what the expert reads of it, and a weight of what it gives.
const ENTRY: usize = 3;

/// Words of what lies in the list where all experts come together: of each row that goes to one (entry.glsl), the
/// entries of each row of the step, by rising expert, and the tiles of either product (out.glsl).
const TOGETHER: [usize; 4] = [8, 1, 10, 10];

/// Which rows go to which expert.
pub struct GpuRoutes {
    of_host: Routes,
    num_experts: usize,
    top_k: usize,
    /// That were routed last.
    rows: usize,
    /// What experts that come together read, in memory that the host reaches, and whether operations may still read it.
    together: Arc<Buffer>,
    is_used: bool,
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
        let few = if vulkan.driver.has_addresses { max_rows.min(MANY_FROM - 1) } else { 0 };
        let (_, end) = parts(vulkan, few * rule.top_k);
        // Each workgroup begins with it, so it is near them where the host reaches that.
        let near = Some(Buffer::new(&vulkan.driver, end, vulkan.place)?).filter(Buffer::is_mapped);
        let together = Arc::new(near.map_or_else(|| Buffer::new(&vulkan.driver, end, Place::Host), Ok)?);
        let (top_k, starts) = (rule.top_k, vec![0; num_experts]);
        let (read, bytes) = (Vec::new(), Vec::with_capacity(bytes.max(end as usize)));
        let (rows, is_used) = (0, false);
        Ok(GpuRoutes { of_host, num_experts, top_k, rows, together, is_used, list, starts, read, bytes })
    }

    /// On a lost device no expert has rows.
    pub(crate) fn choose(&mut self, vulkan: &Vulkan, logits: &GpuRows, bias: Option<&Vector>, rows: usize) {
        let GpuRoutes { of_host, num_experts, list, starts, read, bytes, .. } = self;
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
        (self.rows, self.is_used) = (rows, false);
    }

    /// What all experts together add to rows. False: there are too many rows, the device has no addresses, or matrices
    /// are not alike. Below [`MANY_FROM`] rows no expert has as many as pay for a kernel of many.
    pub(crate) fn add<'a>(
        &mut self,
        vulkan: &Vulkan,
        expert: impl Fn(usize) -> RoutedMlp<'a, Matrix, Vector>,
        from: &GpuRows,
        to: &GpuRows,
    ) -> bool {
        let &mut GpuRoutes { ref of_host, num_experts, top_k, rows, ref together, ref starts, .. } = self;
        if rows >= MANY_FROM || !vulkan.driver.has_addresses {
            return false;
        }
        let used = || (0..num_experts).filter(|&index| !of_host.of(index).0.is_empty());
        // On a lost device none has rows.
        let Some(any) = used().next() else { return true };
        let of_all = expert(any);
        let (products, entries) = (of_all.products, rows * top_k);
        let is_like = |of: RoutedMlp<'_, Matrix, Vector>| {
            let mut pairs = products.iter().zip(of.products);
            pairs.all(|((a, bias), (b, other))| a.is_like(b) && bias.is_some() == other.is_some())
        };
        let has_room = |(w, _): &(&Matrix, _)| {
            let widest = w.shape.out_features.max(w.shape.in_features.next_multiple_of(w.class.step()));
            (entries * widest * size_of::<f32>()) as u64 <= vulkan.driver.listed.binding_bytes
        };
        if !products.iter().all(has_room) || !used().map(&expert).all(is_like) {
            return false;
        }
        let state = &mut *vulkan.state();
        if std::mem::replace(&mut self.is_used, true) {
            // If that fails, nothing is computed any more.
            let _ = state.recorder.wait();
        }
        let ((parts, end), bytes) = (parts(vulkan, entries), &mut self.bytes);
        bytes.clear();
        bytes.resize(end as usize, 0);
        let mut put = |part: usize, at: usize, words: &mut dyn Iterator<Item = u32>| {
            let to = &mut bytes[parts[part].0 as usize + 4 * at * TOGETHER[part]..];
            to.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_ne_bytes());
        };
        let halves = |address: u64| [address as u32, (address >> 32) as u32];
        let (mut of_row, mut tiles) = ([0; MANY_FROM], [0; 2]);
        for index in used() {
            let (of, (rows, weights), start) = (expert(index), of_host.of(index), starts[index] as usize);
            let factors = of_host.input_factors(index).iter().chain(std::iter::repeat(&1.0));
            let shifts = of.products.map(|(w, _)| halves(w.addresses()[3]));
            for (entry, ((&row, &weight), &factor)) in (start..).zip(rows.iter().zip(weights).zip(factors)) {
                let numbers = [factor, of.factor.unwrap_or(1.0), weight].map(f32::to_bits);
                put(0, entry, &mut [row].into_iter().chain(numbers).chain(shifts.into_iter().flatten()));
                put(1, row as usize * top_k + of_row[row as usize], &mut [entry as u32].into_iter());
                of_row[row as usize] += 1;
            }
            for (product, (w, bias)) in of.products.into_iter().enumerate() {
                let ([weights, scales, levels, _], rows_of_tile) = (w.addresses(), vulkan.kernel_of(w, None, false).1);
                let addresses = [weights, scales, levels, bias.map_or(0, |bias| bias.buffer.address)];
                for first in (0..rows.len()).step_by(rows_of_tile) {
                    let own = [start + first, rows_of_tile.min(rows.len() - first)].map(|number| number as u32);
                    put(2 + product, tiles[product], &mut addresses.into_iter().flat_map(halves).chain(own));
                    tiles[product] += 1;
                }
            }
        }
        // SAFETY: what was queued before the logits were read is done, and so is what used the list since.
        unsafe { together.write(0, bytes) };
        let part = |part: usize| Binding { buffer: together, at: parts[part].0, bytes: parts[part].1 };
        let [mid, width] = products.map(|(w, _)| w.shape.out_features);
        let State { recorder, scratch: Scratch { between, .. }, .. } = state;
        let between = vulkan.scratch(recorder, between, entries * mid.max(width) * size_of::<f32>());
        for (product, (w, bias)) in products.into_iter().enumerate() {
            let is_first = product == 0;
            for (w, bias) in used().map(|index| expert(index).products[product]) {
                let buffers = [Some(&w.buffer), bias.map(|bias| &bias.buffer)];
                buffers.into_iter().flatten().for_each(|buffer| state.recorder.keep(buffer));
            }
            let has_factors = is_first && !of_host.input_factors(any).is_empty();
            let (x, how) = (if is_first { &from.0 } else { &between }, [!is_first, has_factors].map(u32::from));
            let converted = vulkan.convert_routed(state, (x, part(0), entries), w, how);
            let (given, gate) = ((&converted, part(2 + product), [entries, tiles[product]]), of_all.activation);
            let gate = (is_first && of_all.is_gated).then_some(gate);
            vulkan.product_routed(state, given, (w, bias.is_some()), &between, gate);
            if is_first && !of_all.is_gated {
                let (push, groups) = activation_of(of_all.activation, Extent { rows: entries, width: mid });
                state.recorder.dispatch(&vulkan.kernels.activate, &[Binding::whole(&between)], push, groups);
            }
        }
        let push = [width as u32, top_k as u32, u32::from(of_all.factor.is_some())];
        let groups = [width.div_ceil(LANES) as u32, rows as u32, 1];
        let all = [part(0), part(1), Binding::whole(&between), Binding::whole(&to.0)];
        state.recorder.dispatch(&vulkan.kernels.combine, &all, push, groups);
        true
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

/// Where each part of the list begins and its bytes, for this number of entries; and the end.
fn parts(vulkan: &Vulkan, entries: usize) -> ([(u64, u64); TOGETHER.len()], u64) {
    let mut end = 0;
    let parts = TOGETHER.map(|words| {
        let part = (end, (4 * words * entries).max(16) as u64);
        end += part.1.next_multiple_of(vulkan.driver.alignment);
        part
    });
    (parts, end)
}
