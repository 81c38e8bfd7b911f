//! Rows that go to experts.
//!
//! The experts of many rows come one after another. The host chooses them, with the kernels of a CPU: it waits for the
//! logits of a layer, and the counts decide what comes next. That is one wait for each layer with experts.
//!
//! Those of few rows, whose dispatches would take longer to begin than to compute, come together: a workgroup finds its
//! rows, and addresses of their expert's weights, in a list that the device makes. By most rules it chooses too.

use std::sync::Arc;

use kernels::{Extent, HeadColumns, HostBackend, OutOfMemory, RoutedMlp, Routes, Routing, RoutingRule, Scores};

use crate::device::{Matrix, Scratch, State, Vulkan};
use crate::memory::{Buffer, Place};
use crate::products::{MANY_FROM, activation_of};
use crate::recorder::Binding;
use crate::rows::{GpuRows, LANES, Vector};

/// Words of an entry of the list: a row, a factor of what the expert reads of it, and a weight of what it gives.
const ENTRY: usize = 3;
/// Words, for each row that goes to an expert, of what all together read: its entry, its place among those of a row of
/// the step, and tiles of both products (entry.glsl). Those of the second begin at a multiple of what a binding may.
const TOGETHER: [usize; 3] = [LISTED, 1, 2 * TILE];
pub(crate) const LISTED: usize = 8;
pub(crate) const TILE: usize = 10;
pub(crate) const TILES: usize = 32;
/// Most experts of which the device chooses.
const ROOM: usize = 1024;

/// Which rows go to which expert.
pub struct GpuRoutes {
    of_host: Routes,
    num_experts: usize,
    rule: RoutingRule,
    of_device: Option<[u32; 4]>,
    /// In memory of the host: the rows of the first expert, then those of the next.
    list: Arc<Buffer>,
    /// Where the rows of each expert begin.
    starts: Vec<u32>,
    /// Experts of a few rows, then their weights, from the device or the host.
    picked: Arc<Buffer>,
    /// What experts that come together read.
    together: Arc<Buffer>,
    /// Addresses of the experts of each layer, where they are alike, by the number of the first buffer.
    tables: Vec<(u64, Option<Arc<Buffer>>)>,
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
        let new = |bytes: u64, place| Ok(Arc::new(Buffer::new(&vulkan.driver, bytes, place)?));
        let list = new(bytes as u64, Place::Host)?;
        let few = max_rows.min(MANY_FROM - 1) * rule.top_k;
        let of_device = of_device(num_experts, rule);
        let picked = new(8 * few as u64, if of_device.is_some() { vulkan.place } else { Place::Host })?;
        let together = new(parts(vulkan, few).1, vulkan.place)?;
        let (read, bytes) = (Vec::new(), Vec::with_capacity(bytes));
        let (starts, tables) = (vec![0; num_experts], Vec::new());
        Ok(GpuRoutes { of_host, num_experts, rule, of_device, list, starts, picked, together, tables, read, bytes })
    }

    /// On a lost device no expert has rows.
    pub(crate) fn choose(&mut self, vulkan: &Vulkan, logits: &GpuRows, bias: Option<&Vector>, rows: usize) {
        let GpuRoutes { of_host, num_experts, list, starts, picked, read, bytes, .. } = self;
        read.resize((rows + 1) * *num_experts, 0.0);
        let (of_rows, of_bias) = read.split_at_mut(rows * *num_experts);
        let is_read = bias.map_or(Ok(()), |bias| vulkan.numbers(&bias.buffer, 0, of_bias));
        let is_read = is_read.and_then(|()| vulkan.numbers(&logits.0, 0, of_rows));
        let rows = if is_read.is_ok() { rows } else { 0 };
        of_host.fill(rows, |num_experts, rule, chosen, weights| {
            let how = Routing { num_experts, rule, bias: bias.map(|_| &*of_bias) };
            HostBackend::route(&vulkan.host, &of_rows[..rows * num_experts], how, chosen, weights);
            bytes.clear();
            let words = chosen.iter().copied().chain(weights.iter().map(|weight| weight.to_bits()));
            bytes.extend(words.flat_map(u32::to_ne_bytes));
        });
        if bytes.len() as u64 <= picked.bytes {
            // SAFETY: what was queued before the logits were read is done, and only operations on these rows use it.
            unsafe { picked.write(0, bytes) };
        }
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

    /// Where the device finds all experts of a layer, written once. `None`: their numbers do not lie alike.
    fn table<'a>(
        &mut self,
        vulkan: &Vulkan,
        expert: impl Fn(usize) -> RoutedMlp<'a, Matrix, Vector>,
    ) -> Option<Arc<Buffer>> {
        let RoutedMlp { products, .. } = expert(0);
        let number = products[0].0.buffer.number;
        if let Some((_, table)) = self.tables.iter().find(|(other, _)| *other == number) {
            return table.clone();
        }
        let all: Vec<_> = (0..self.num_experts).map(expert).collect();
        let is_like = |of: &RoutedMlp<'_, Matrix, Vector>| {
            let mut pairs = products.iter().zip(of.products);
            pairs.all(|((a, bias), (b, other))| a.is_like(b) && bias.is_some() == other.is_some())
        };
        let words = all.iter().flat_map(|of| {
            let addresses = |(w, bias): (&Matrix, Option<&Vector>)| {
                let [weights, scales, levels, _] = w.addresses();
                [weights, scales, levels, bias.map_or(0, |bias| bias.buffer.address)]
            };
            let shifts = of.products.map(|(w, _)| w.addresses()[3]);
            let all = of.products.into_iter().flat_map(addresses).chain(shifts);
            Matrix::address_words(all).chain([of.factor.unwrap_or(1.0).to_bits(), 0])
        });
        let buffers = all.iter().flat_map(|of| of.products).flat_map(|(w, bias)| {
            let bias = bias.map(|bias| bias.buffer.clone());
            [Some(w.buffer.clone()), bias]
        });
        let table = if all.iter().all(is_like) { vulkan.table(words, buffers.flatten().collect()) } else { None };
        self.tables.push((number, table.clone()));
        table
    }

    /// What all experts together add to rows. False: there are too many rows, or matrices are not alike. Below
    /// [`MANY_FROM`] rows no expert has as many as pay for a kernel of many.
    pub(crate) fn add<'a>(
        &mut self,
        vulkan: &Vulkan,
        (logits, bias, rows): (&GpuRows, Option<&Vector>, usize),
        expert: impl Fn(usize) -> RoutedMlp<'a, Matrix, Vector>,
        [from, to]: [&GpuRows; 2],
    ) -> bool {
        if rows >= MANY_FROM {
            return false;
        }
        let (top_k, RoutedMlp { products, activation, is_gated, factor }) = (self.rule.top_k, expert(0));
        let entries = rows * top_k;
        let has_room = |(w, _): &(&Matrix, _)| {
            let widest = w.shape.out_features.max(w.shape.in_features.next_multiple_of(w.class.step()));
            (entries * widest * size_of::<f32>()) as u64 <= vulkan.driver.listed.binding_bytes
        };
        let Some(table) = self.table(vulkan, expert).filter(|_| products.iter().all(has_room)) else { return false };
        if self.of_device.is_none() {
            self.choose(vulkan, logits, bias, rows);
        }
        let (state, kernels) = (&mut *vulkan.state(), &vulkan.kernels);
        if let Some(how) = self.of_device {
            let push = [self.num_experts as u32, top_k as u32, entries as u32, u32::from(bias.is_some())];
            let all = [&logits.0, bias.map_or(&logits.0, |bias| &bias.buffer), &self.picked].map(Binding::whole);
            state.recorder.dispatch(&kernels.route, &all, push.into_iter().chain(how), [rows as u32, 1, 1]);
        }
        let ([list, of_row, tiles], _) = parts(vulkan, entries);
        let part = |(at, bytes): (u64, u64)| Binding { buffer: &self.together, at, bytes };
        let (second, of_inputs) = (entries.next_multiple_of(TILES), self.rule.scores == Scores::OfInputs);
        let [first_rows, second_rows] = products.map(|(w, _)| vulkan.kernel_of(w, None, false).1);
        let push = [entries, top_k, usize::from(of_inputs), second, first_rows, second_rows];
        let [picked, table] = [&self.picked, &table].map(Binding::whole);
        let (all, groups) = ([picked, table, part(list), part(of_row), part(tiles)], entries.div_ceil(LANES) as u32);
        state.recorder.dispatch(&kernels.expert, &all, push.map(|number| number as u32), [groups, 1, 1]);
        let [mid, width] = products.map(|(w, _)| w.shape.out_features);
        let State { recorder, scratch: Scratch { between, .. }, .. } = state;
        let between = vulkan.scratch(recorder, between, entries * mid.max(width) * size_of::<f32>());
        for (product, (w, bias)) in products.into_iter().enumerate() {
            let is_first = product == 0;
            let (x, how) =
                (if is_first { &from.0 } else { &between }, [!is_first, is_first && of_inputs].map(u32::from));
            let converted = vulkan.convert_routed(state, (x, part(list), entries), w, (how, w.shape.in_features));
            let bytes = |tiles: usize| (tiles * TILE * size_of::<u32>()) as u64;
            let own = part((tiles.0 + bytes(product * second), bytes(entries)));
            let gate = (is_first && is_gated).then_some(activation);
            let columns = HeadColumns { width: if gate.is_some() { mid / 2 } else { w.shape.out_features }, stride: 0 };
            vulkan.product_routed(
                state,
                (&converted, own, entries),
                (w, bias.is_some()),
                (&between, columns, entries),
                gate,
            );
            if is_first && !is_gated {
                let (push, groups) = activation_of(activation, Extent { rows: entries, width: mid });
                state.recorder.dispatch(&kernels.activate, &[Binding::whole(&between)], push, groups);
            }
        }
        let push = [width as u32, top_k as u32, u32::from(factor.is_some())];
        let groups = [width.div_ceil(LANES) as u32, rows as u32, 1];
        let all = [part(list), part(of_row), Binding::whole(&between), Binding::whole(&to.0)];
        state.recorder.dispatch(&kernels.combine, &all, push, groups);
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

/// Where each part of what all experts read begins and its bytes, for this number of entries; and the end.
fn parts(vulkan: &Vulkan, entries: usize) -> ([(u64, u64); TOGETHER.len()], u64) {
    let mut end = 0;
    let parts = TOGETHER.map(|words| {
        let part = (end, (4 * words * entries.next_multiple_of(TILES)).max(16) as u64);
        end += part.1.next_multiple_of(vulkan.driver.alignment);
        part
    });
    (parts, end)
}

/// How the device chooses: the kind of scores, whether they are over the chosen, what is added to their sum, and a
/// factor. `None`: the host does.
fn of_device(num_experts: usize, rule: RoutingRule) -> Option<[u32; 4]> {
    let (kind, over_chosen, sum_eps, factor) = match rule.scores {
        Scores::Softmax => (0, rule.over_chosen, 0.0, 1.0),
        Scores::Sigmoid { groups, kept_groups, sum_eps, factor } if groups == kept_groups => {
            (1, rule.over_chosen, sum_eps, factor)
        }
        Scores::OfInputs => (2, false, 0.0, 1.0),
        _ => return None,
    };
    let how = [kind, u32::from(over_chosen), f32::to_bits(sum_eps), f32::to_bits(factor)];
    Some(how).filter(|_| num_experts <= ROOM)
}
