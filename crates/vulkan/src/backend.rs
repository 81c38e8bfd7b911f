//! The operations: each a kernel or a few over the rows of a step.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

use kernels::sampling::Candidate;
use kernels::{
    Activation, AttentionLayer, Backend, Convolution, DeltaRows, DeltaRule, DeviceError, Extent, GatedConvolution,
    HeadColumns, HeadLayout, HeadNorms, Latents, LowRankShape, Mamba, Norm, Out, OutOfMemory, Rotation, RoutedMlp,
    RoutingRule, StepArrays, WeightClass,
};

use crate::device::{GpuKvCache, GpuLowRank, Matrix, Scratch, State, Vulkan};
use crate::memory::{Buffer, Place};
use crate::products::activation_of;
use crate::recorder::{Binding, Recorder};
use crate::routes::GpuRoutes;
use crate::rows::{GpuRows, LANES, Norming, Vector};
use crate::slots::GpuStates;

/// The largest logits of rows, 8 bytes each, in memory of the host that the device writes: reading them takes no copy.
pub struct Best {
    buffer: Arc<Buffer>,
    /// Of a row: how many there is room for, and how many there are to be.
    room: usize,
    counts: Vec<u32>,
}

/// A logit, as bits, and its id.
const CANDIDATE_BYTES: usize = 8;
/// Logits that a workgroup selects from; and the least multiple of what it selects.
const SELECTED_FROM: usize = 4096;
const SELECTED_OF: usize = 4;

/// Attention as its kernels have it: positions of a split, which are lanes, queries of a workgroup, words of tickets.
const SPLIT: usize = 256;
const QUERIES: usize = 8;
const TICKETS: usize = 16384;
/// Words that the splits of several rows leave for the fold: one row may leave more.
const LEFT: usize = 8 << 20;

/// The arrays of a step, in one buffer.
pub struct GpuStep {
    buffer: Arc<Buffer>,
    tokens: usize,
    pub(crate) rows: usize,
    wanted: usize,
    /// Sequences that have a state, and a number above all their slots.
    pub(crate) states: usize,
    pub(crate) slots: usize,
    /// Positions that its rows see: all together, and where the last one ends.
    seen: u64,
    longest: usize,
    /// Each row is of another sequence.
    are_alone: bool,
    /// Where each array begins, and its bytes.
    parts: [(u64, u64); PARTS],
}

/// What a step has.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Tokens,
    Positions,
    Slots,
    Wanted,
    Listed,
    /// Of each row its position, the end of its span and where its block table begins.
    Seen,
    Tables,
    /// Of each sequence that has a state its first row, its rows, the slot before them, its first save and their
    /// number.
    States,
    /// A row, and the slot for what is left behind it.
    Saves,
}

const PARTS: usize = 9;
/// Words of a sequence with a state.
const STATE: usize = 8;

impl GpuStep {
    pub(crate) fn part(&self, part: Part) -> Binding<'_> {
        let (at, bytes) = self.parts[part as usize];
        Binding { buffer: &self.buffer, at, bytes }
    }

    /// Positions of rows, and which word of it begins their slots.
    pub(crate) fn places(&self) -> (Binding<'_>, u32) {
        let (positions, slots) = (self.part(Part::Positions), self.part(Part::Slots));
        let bytes = slots.at + slots.bytes - positions.at;
        (Binding { bytes, ..positions }, (slots.at - positions.at) as u32 / 4)
    }
}

impl Vulkan {
    /// Scratch of at least this many bytes; on a device that is lost for want of it anything will do.
    pub(crate) fn scratch(&self, recorder: &mut Recorder, room: &mut Option<Arc<Buffer>>, bytes: usize) -> Arc<Buffer> {
        recorder.at_least(room, bytes as u64, self.place).unwrap_or_else(|| self.nothing.clone())
    }

    /// Reads numbers from `first` on, behind all that was queued.
    pub(crate) fn numbers(&self, from: &Arc<Buffer>, first: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        let mut state = self.state();
        let State { recorder, bytes, .. } = &mut *state;
        bytes.resize(size_of_val(out), 0);
        recorder.download(from, (first * size_of::<f32>()) as u64, bytes)?;
        let numbers = bytes.as_chunks().0.iter().map(|number| f32::from_ne_bytes(*number));
        out.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
        Ok(())
    }

    fn pointwise(&self, operation: u32, x: &GpuRows, extent: Extent, how: Pointwise<'_>) {
        let Pointwise { y, gates, by_width, at, by, per_head } = how;
        let push = [extent.width as u32, operation, by_width as u32, at as u32, by.to_bits(), per_head as u32];
        let bindings = [Some(x), y, gates].map(|rows| Binding::whole(&rows.unwrap_or(x).0));
        let groups = [extent.width.div_ceil(LANES) as u32, extent.rows as u32, 1];
        self.state().recorder.dispatch(&self.kernels.pointwise, &bindings, push, groups);
    }

    /// `kind`: as kernels distinguish them.
    fn norm(&self, kind: u32, x: &GpuRows, rows: Range<usize>, norm: Norm<'_, Vector>, out: &GpuRows) {
        let Norm { weight, bias, eps } = norm;
        let how = [kind, u32::from(bias.is_some()), rows.start as u32, eps.to_bits()];
        let buffers = [&x.0, &weight.buffer, &bias.unwrap_or(weight).buffer, &out.0].map(Arc::clone);
        let (extent, columns) = ([rows.len(), weight.len], [weight.len, 0]);
        self.state().norm = Some(Norming { how, buffers, extent, columns });
    }

    /// Layout of a layer's block as kernels take it: tokens, words of a block, words of a head.
    pub(crate) fn of_cache(kv: &GpuKvCache) -> [u32; 3] {
        let words = kv.layer_block_bytes() / 4;
        [kv.shape.block_size as u32, words as u32, (words / kv.shape.num_kv_heads as u64) as u32]
    }
}

/// Operands of an operation number by number, beside the rows that it changes.
#[derive(Default)]
struct Pointwise<'a> {
    y: Option<&'a GpuRows>,
    gates: Option<&'a GpuRows>,
    by_width: usize,
    at: usize,
    by: f32,
    per_head: usize,
}

impl Backend for Vulkan {
    type Rows = GpuRows;
    type Vector = Vector;
    type Step<'a> = GpuStep;
    type Routes = GpuRoutes;
    type Best = Best;

    fn rows(&self, max_rows: usize, width: usize) -> Result<GpuRows, OutOfMemory> {
        let bytes = max_rows.checked_mul(width).and_then(|numbers| numbers.checked_mul(size_of::<f32>()));
        Ok(GpuRows(self.zeroed(bytes.ok_or(OutOfMemory { bytes: usize::MAX })?)?))
    }

    fn vector(&self, numbers: &[f32]) -> Result<Vector, OutOfMemory> {
        Ok(Vector { buffer: self.vector_of(numbers)?, len: numbers.len() })
    }

    fn vector_bytes(&self, vector: &Vector) -> usize {
        vector.len * size_of::<f32>()
    }

    fn routes(&self, max_rows: usize, num_experts: usize, rule: RoutingRule) -> Result<GpuRoutes, OutOfMemory> {
        GpuRoutes::new(self, max_rows, num_experts, rule)
    }

    fn best(&self, max_rows: usize, count: usize) -> Result<Best, OutOfMemory> {
        let buffer = Buffer::new(&self.driver, (max_rows * count * CANDIDATE_BYTES) as u64, Place::Host)?;
        Ok(Best { buffer: Arc::new(buffer), room: count, counts: Vec::with_capacity(max_rows) })
    }

    fn begin<'a>(&self, arrays: StepArrays<'a>) -> GpuStep {
        let StepArrays { token_ids, positions, slots, spans, states, wanted, listed } = arrays;
        let blocks = spans.iter().map(|span| span.blocks.len()).sum();
        let whole = [token_ids, positions, slots, wanted, listed];
        let (mut parts, mut end) = ([(0, 0); PARTS], 0);
        let saves = states.iter().map(|span| span.saves.len()).sum::<usize>();
        let others = [4 * positions.len(), blocks, STATE * states.len(), 2 * saves];
        let lens = whole.iter().map(|numbers| numbers.len()).chain(others);
        for (part, len) in parts.iter_mut().zip(lens) {
            // No binding is empty. The next step's are as long while its tables grow a little.
            *part = (end, (4 * len.next_power_of_two() as u64).max(16));
            end += part.1.next_multiple_of(self.driver.alignment);
        }
        let mut state = self.state();
        let step = |buffer, parts| GpuStep {
            buffer,
            tokens: token_ids.len(),
            rows: positions.len(),
            wanted: wanted.len(),
            states: states.len(),
            slots: states
                .iter()
                .flat_map(|span| span.from.into_iter().chain(span.saves.iter().map(|save| save.slot)))
                .max()
                .map_or(0, |slot| slot as usize + 1),
            seen: spans.iter().map(|span| (span.num_rows * (span.start + span.num_rows)) as u64).sum(),
            longest: spans.iter().map(|span| span.start + span.num_rows).max().unwrap_or(0),
            are_alone: spans.iter().all(|span| span.num_rows == 1),
            parts,
        };
        let is_free = |buffer: &&Arc<Buffer>| Arc::strong_count(buffer) == 1 && buffer.bytes >= end;
        let free = state.steps.iter().find(is_free).cloned().map(Ok);
        let new = || Buffer::new(&self.driver, end.next_power_of_two(), Place::Host).map(Arc::new);
        let buffer = match free.unwrap_or_else(new) {
            Ok(buffer) => buffer,
            Err(error) => {
                state.recorder.lose("the arrays of a step", error);
                return step(self.nothing.clone(), [(0, self.nothing.bytes); PARTS]);
            }
        };
        if Arc::strong_count(&buffer) == 1 {
            state.steps.retain(|buffer| Arc::strong_count(buffer) > 1 || buffer.bytes >= end);
            state.steps.push(buffer.clone());
        }
        let bytes = &mut state.bytes;
        bytes.clear();
        bytes.resize(end as usize, 0);
        let mut put = |part: usize, at: usize, numbers: &[u32]| {
            let to = &mut bytes[parts[part].0 as usize + 4 * at..];
            to.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_ne_bytes());
        };
        whole.iter().enumerate().for_each(|(part, numbers)| put(part, 0, numbers));
        let mut at = 0;
        for span in spans {
            let span_end = (span.start + span.num_rows) as u32;
            put(Part::Tables as usize, at, span.blocks);
            for row in 0..span.num_rows {
                let seen = [(span.start + row) as u32, span_end, at as u32, 0];
                put(Part::Seen as usize, 4 * (span.first_row + row), &seen);
            }
            at += span.blocks.len();
        }
        let mut at = 0;
        for (index, span) in states.iter().enumerate() {
            let [first, rows] = [span.first_row, span.num_rows].map(|number| number as u32);
            let numbers = [first, rows, span.from.unwrap_or(u32::MAX), at, span.saves.len() as u32];
            put(Part::States as usize, STATE * index, &numbers);
            for save in span.saves {
                put(Part::Saves as usize, 2 * at as usize, &[save.row, save.slot]);
                at += 1;
            }
        }
        // SAFETY: no frame that is under way keeps the buffer, and no other step has it.
        unsafe { buffer.write(0, bytes) };
        step(buffer, parts)
    }

    fn embed(&self, step: &GpuStep, table: &Matrix, out: &mut GpuRows) {
        let width = table.shape.in_features;
        let (steps, pair_words) = (width.div_ceil(table.class.step()) as u64, table.pair_bytes / 4);
        let (bits, ratio_words) = match table.class {
            WeightClass::Bf16 => (16, 0),
            WeightClass::Int8 => (8, pair_words.saturating_sub(steps * 512)),
            WeightClass::Int4 => (4, 0),
        };
        let (mut state, size) = (self.state(), [width.div_ceil(LANES) as u32, step.tokens as u32, 1]);
        for (first, count, tiles) in table.windows(self) {
            let [width, first, count] = [width, first, count].map(|number| number as u32);
            let (tokens, out) = (step.part(Part::Tokens), Binding::whole(&out.0));
            if let Some(groups) = &table.groups {
                let [step_words, kind, group, mins, four] = groups.push;
                let push = [width, first, count, steps as u32, step_words, kind, group, mins, four];
                let all = [tokens, tiles, table.levels(), out];
                state.recorder.dispatch(&self.kernels.embed_groups, &all, push, size);
            } else {
                let exponents = table.exponents.unwrap_or(0);
                let push = [width, bits, first, count, pair_words as u32, ratio_words as u32, exponents];
                let all = [tokens, tiles, table.scales(), table.levels(), out];
                state.recorder.dispatch(&self.kernels.embed, &all, push, size);
            }
        }
    }

    fn rms_norm(&self, x: &GpuRows, rows: Range<usize>, weight: &Vector, eps: f32, out: &mut GpuRows) {
        self.norm(1, x, rows, Norm { weight, bias: None, eps }, out);
    }

    fn layer_norm(&self, x: &GpuRows, rows: Range<usize>, norm: Norm<'_, Vector>, out: &mut GpuRows) {
        self.norm(2, x, rows, norm, out);
    }

    fn activate(&self, activation: Activation, x: &mut GpuRows, extent: Extent) {
        let (push, groups) = activation_of(activation, extent);
        self.state().recorder.dispatch(&self.kernels.activate, &[Binding::whole(&x.0)], push, groups);
    }

    fn linear(&self, x: &GpuRows, rows: usize, w: &Matrix, bias: Option<&Vector>, out: Out<'_, GpuRows>) {
        self.product(x, rows, w, bias, out);
    }

    fn rotate_and_store(&self, step: &GpuStep, how: Rotation<'_, Vector>, qkv: &mut GpuRows, kv: &mut GpuKvCache) {
        let Rotation { layout, head_norms, rope, layer } = how;
        let kv_heads = if layout.queries_only { 0 } else { layout.num_kv_heads };
        let (norm, q, k, v, eps) = match head_norms {
            HeadNorms::None => (0, None, None, None, 0.0),
            HeadNorms::PerHead { q, k, v, eps } => (1, Some(q), Some(k), v, eps),
            HeadNorms::AfterRotation { q, k, eps } => (2, Some(q), Some(k), None, eps),
            HeadNorms::Centered { q, k, eps } => (3, Some(q), Some(k), None, eps),
            HeadNorms::WholeWidth { q, k, eps } => (4, Some(q), Some(k), None, eps),
        };
        let factors = rope.and_then(|rope| rope.query_factors());
        // A row's norm is over all its heads, so one workgroup has them all.
        let heads = layout.num_heads + kv_heads;
        let per_group = if norm == 4 { heads } else { 1 };
        let (places, slots_at) = step.places();
        let HeadLayout { num_heads, head_dim, .. } = layout;
        let rotary = rope.map_or(0, |rope| rope.rotary_dim());
        let sizes = [num_heads, kv_heads, head_dim, layout.keys_at(), layout.qkv_width(), rotary].map(|n| n as u32);
        let how = [norm, u32::from(v.is_some()), u32::from(factors.is_some()), per_group as u32, eps.to_bits()];
        let push = sizes.into_iter().chain(how).chain(Vulkan::of_cache(kv)).chain([slots_at]);
        let vectors = [rope.map(|rope| rope.table()), factors, q, k, v];
        let [angles, factors, q, k, v] =
            vectors.map(|vector| Binding::whole(vector.map_or(&qkv.0, |vector| &vector.buffer)));
        let all = [Binding::whole(&qkv.0), places, angles, factors, q, k, v, Binding::whole(&kv.layers[layer])];
        let [kernel, _] = self.kernels.of_cache(&kv.shape);
        let groups = [step.rows as u32, heads.div_ceil(per_group) as u32, 1];
        self.state().recorder.dispatch(kernel, &all, push, groups);
    }

    /// A dispatch has as many rows as what their splits leave has room for, and as a submission may take. A number of a
    /// head makes 8 bytes, written and read, beside 512 of int8 keys and values that 8 queries share: an eighth at
    /// most. So rows of a prompt, which fill a device without splits, have no kernel that leaves nothing.
    fn attend(&self, step: &GpuStep, of: AttentionLayer<'_, Vector>, qkv: &GpuRows, kv: &GpuKvCache, y: &mut GpuRows) {
        let AttentionLayer { layout, rule, sinks, layer } = of;
        let (HeadLayout { num_heads, num_kv_heads, head_dim, .. }, value_dim) = (layout, layout.value_dim());
        let group = num_heads / num_kv_heads;
        // Wider values than there are lanes take several registers a query. Kernels of latents have twice as many.
        let registers = if layout.latent.is_some() { 2 * QUERIES } else { QUERIES };
        let queries = QUERIES.min(registers / value_dim.div_ceil(SPLIT));
        let tile_heads = group.div_ceil(group.div_ceil(queries));
        let across = num_kv_heads * group.div_ceil(tile_heads);
        // Rows of sequences of their own share no keys.
        let tile_rows = if step.are_alone { 1 } else { queries / tile_heads };
        let reach = rule.window.map_or(usize::MAX, |window| window.saturating_mul(1 + usize::from(rule.both_ways)));
        // Rounded, so that the next steps are alike: what is beyond a row's end does nothing.
        let splits = step.longest.div_ceil(SPLIT).next_power_of_two();
        let splits = splits.min(reach.saturating_add(tile_rows).div_ceil(SPLIT) + 1);
        let left_by_row = if splits > 1 { num_heads * splits * (value_dim + 2) } else { 0 };
        let widths = (layout.q_width() + layout.out_width()) as u64;
        let [of_row, of_all] = [step.longest.min(reach) as u64, step.seen].map(|n| n * widths);
        let mut state = self.state();
        let State { recorder, scratch, .. } = &mut *state;
        let most = (recorder.most / of_row.max(1)) as usize;
        let most = most.min(TICKETS / across).min(LEFT / left_by_row.max(1)).clamp(1, step.rows.max(1));
        let most = most - most % tile_rows.min(most);
        let before = scratch.left.as_ref().map(|buffer| buffer.number);
        let left = self.scratch(recorder, &mut scratch.left, 4 * (TICKETS + most * left_by_row));
        if before != Some(left.number) {
            recorder.clear(&left, 4 * TICKETS as u64);
        }
        let [x, sink, y, left] = [&qkv.0, sinks.map_or(&qkv.0, |it| &it.buffer), &y.0, &left].map(Binding::whole);
        let of_layer = Binding::whole(&kv.layers[layer]);
        let all = [x, step.part(Part::Seen), step.part(Part::Tables), of_layer, sink, y, left];
        let [_, kernel] = self.kernels.of_cache(&kv.shape);
        let of_layout = [num_heads, num_kv_heads, head_dim, value_dim, layout.qkv_width()].map(|number| number as u32);
        let window = rule.window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX / 2));
        let flags = [rule.chunked, rule.both_ways, sinks.is_some()].map(u32::from);
        let cap = rule.softcap.map_or([0.0; 2], |cap| [cap, 2.0 / cap]).map(f32::to_bits);
        for first in (0..step.rows).step_by(most) {
            let rows = most.min(step.rows - first);
            let of_part = [first, first + rows, tile_rows, tile_heads, splits].map(|number| number as u32);
            let push = of_layout.into_iter().chain(Vulkan::of_cache(kv)).chain([window]).chain(flags);
            let push = push.chain([rule.scale.to_bits()]).chain(cap).chain(of_part);
            let groups = [rows.div_ceil(tile_rows), across, splits].map(|number| number as u32);
            recorder.dispatch(kernel, &all, push, groups);
            recorder.count(of_all * rows as u64 / step.rows as u64);
        }
    }

    fn store_latents(
        &self,
        step: &GpuStep,
        how: Latents<'_, Vector>,
        queries: &GpuRows,
        keys_and_absorbed: (&mut GpuRows, &mut GpuRows),
        kv: &mut GpuKvCache,
    ) {
        self.latents(step, how, queries, keys_and_absorbed, kv);
    }

    fn linear_by_head(
        &self,
        x: (&GpuRows, HeadColumns),
        rows: usize,
        matrices: &[impl Borrow<Matrix> + Sync],
        out: (&mut GpuRows, HeadColumns),
    ) {
        self.products_by_head(x, rows, matrices, out);
    }

    fn convolve(&self, step: &GpuStep, how: Convolution<'_, Vector>, rows: &mut GpuRows, states: &mut GpuStates) {
        self.convolve_any(step, (how, false), [rows, rows], states);
    }

    fn convolve_gated(
        &self,
        step: &GpuStep,
        how: GatedConvolution<'_, Vector>,
        rows: &GpuRows,
        states: &mut GpuStates,
        out: &mut GpuRows,
    ) {
        let GatedConvolution { channels, taps, weight, bias, state } = how;
        let how = Convolution { row_width: 3 * channels, channels, taps, weight, bias, silu: false, state };
        self.convolve_any(step, (how, true), [rows, out], states);
    }

    fn delta_rule(
        &self,
        step: &GpuStep,
        how: DeltaRule<'_, Vector>,
        rows: DeltaRows<'_, GpuRows>,
        states: &mut GpuStates,
        out: &mut GpuRows,
    ) {
        self.recur_by_deltas(step, how, rows, states, out);
    }

    fn mamba(
        &self,
        step: &GpuStep,
        how: Mamba<'_, Vector>,
        (rows, steps): (&mut GpuRows, &mut GpuRows),
        states: &mut GpuStates,
        out: &mut GpuRows,
    ) {
        self.recur_by_steps(step, how, (rows, steps), states, out);
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &GpuRows, rows: usize, x: &mut GpuRows) {
        let per_head = if layout.gates == 1 { layout.head_dim } else { 0 };
        let (by_width, at) = (layout.qkv_width(), layout.q_width());
        let how = Pointwise { y: Some(qkv), by_width, at, per_head, ..Pointwise::default() };
        self.pointwise(6, x, Extent { rows, width: layout.q_width() }, how);
    }

    fn add_gated(&self, gates: &GpuRows, y: &GpuRows, x: &mut GpuRows, extent: Extent) {
        self.pointwise(5, x, extent, Pointwise { y: Some(y), gates: Some(gates), ..Pointwise::default() });
    }

    fn scale(&self, by: f32, x: &mut GpuRows, extent: Extent) {
        self.pointwise(0, x, extent, Pointwise { by, ..Pointwise::default() });
    }

    fn clamp(&self, limit: f32, x: &mut GpuRows, extent: Extent) {
        self.pointwise(1, x, extent, Pointwise { by: limit, ..Pointwise::default() });
    }

    fn multiply(&self, x: &mut GpuRows, extent: Extent, (by, by_width, at): (&GpuRows, usize, usize)) {
        self.pointwise(2, x, extent, Pointwise { y: Some(by), by_width, at, ..Pointwise::default() });
    }

    fn add_scaled(&self, y: &GpuRows, scale: f32, x: &mut GpuRows, extent: Extent) {
        self.pointwise(3, x, extent, Pointwise { y: Some(y), by: scale, ..Pointwise::default() });
    }

    fn softcap(&self, cap: f32, x: &mut GpuRows, extent: Extent) {
        self.pointwise(4, x, extent, Pointwise { by: cap, ..Pointwise::default() });
    }

    fn clear(&self, x: &mut GpuRows, extent: Extent) {
        self.state().recorder.clear(&x.0, (extent.numbers() * size_of::<f32>()) as u64);
    }

    fn gather_wanted(&self, step: &GpuStep, from: &GpuRows, width: usize, out: &mut GpuRows) {
        let all = [step.part(Part::Wanted), Binding::whole(&from.0), Binding::whole(&out.0)];
        let groups = [width.div_ceil(LANES) as u32, step.wanted as u32, 1];
        self.state().recorder.dispatch(&self.kernels.gather, &all, [width as u32, 0, 1, 0], groups);
    }

    fn add_low_rank<'a>(
        &self,
        step: &GpuStep,
        x: &GpuRows,
        groups: impl Iterator<Item = (&'a GpuLowRank, Range<usize>)> + Clone + Sync,
        out: &mut GpuRows,
    ) {
        let (mut state, kernel) = (self.state(), &self.kernels.low_rank);
        for (GpuLowRank { shape, parts: [a, b] }, listed) in groups {
            let LowRankShape { in_features, rank, out_features } = *shape;
            let (rank, first, rows) = (rank.next_multiple_of(16), listed.start as u32, listed.len());
            let State { recorder, scratch, .. } = &mut *state;
            let h = self.scratch(recorder, &mut scratch.between, rows * rank * size_of::<f32>());
            for (part, from, to, push) in [
                (a, &x.0, &h, [first, in_features as u32, rank as u32, 1]),
                (b, &h, &out.0, [first, rank as u32, out_features as u32, 0]),
            ] {
                let all = [
                    Binding::whole(from),
                    step.part(Part::Listed),
                    Binding::whole(&part.spans),
                    Binding::whole(&part.pairs),
                    Binding::whole(to),
                ];
                recorder.dispatch(kernel, &all, push, [rows as u32, part.strips, 1]);
            }
        }
    }

    fn gate(&self, activation: Activation, gate_up: &GpuRows, extent: Extent, out: &mut GpuRows) {
        let (push, groups) = activation_of(activation, extent);
        let bindings = [gate_up, out].map(|rows| Binding::whole(&rows.0));
        self.state().recorder.dispatch(&self.kernels.gated, &bindings, push, groups);
    }

    fn route(&self, logits: &GpuRows, bias: Option<&Vector>, rows: usize, routes: &mut GpuRoutes) {
        routes.choose(self, logits, bias, rows);
    }

    fn num_routed(&self, routes: &GpuRoutes, expert: usize) -> usize {
        routes.num_rows(expert)
    }

    fn gather_routed(&self, routes: &GpuRoutes, expert: usize, from: &GpuRows, width: usize, out: &mut GpuRows) {
        routes.gather(self, expert, from, width, out);
    }

    fn scatter_routed(&self, routes: &GpuRoutes, expert: usize, y: &GpuRows, width: usize, x: &mut GpuRows) {
        routes.scatter(self, expert, y, width, x);
    }

    fn add_routed<'a>(
        &self,
        logits: (&GpuRows, Option<&Vector>, usize),
        routes: &mut GpuRoutes,
        expert: impl Fn(usize) -> RoutedMlp<'a, Matrix, Vector>,
        from: &GpuRows,
        to: &mut GpuRows,
    ) -> bool {
        routes.add(self, logits, expert, [from, to])
    }

    /// All rows as many as one of them wants: the first of those are what fewer would be.
    fn find_best(&self, logits: &GpuRows, width: usize, counts: &[u32], out: &mut Best) {
        out.counts.clear();
        out.counts.extend(counts.iter().map(|&count| count.min(width as u32)));
        let (rows, count) = (counts.len(), out.counts.iter().max().map_or(0, |&most| most as usize));
        assert!(count <= out.room, "{count} of room for {}", out.room);
        if count == 0 {
            return;
        }
        let per_part = SELECTED_FROM.max(SELECTED_OF * count).min(width);
        let parts = width.div_ceil(per_part);
        // The last part may have fewer.
        let of_parts = (parts - 1) * count + count.min(width - (parts - 1) * per_part);
        let (mut state, kernel) = (self.state(), &self.kernels.select);
        let State { recorder, scratch: Scratch { between, converted, .. }, .. } = &mut *state;
        let between = self.scratch(recorder, between, rows * of_parts * CANDIDATE_BYTES);
        let selected = self.scratch(recorder, converted, rows * count * CANDIDATE_BYTES);
        // One needs no order.
        let (to, stride) = if count == 1 { (&out.buffer, out.room) } else { (&selected, count) };
        let mut select = |from: &Arc<Buffer>, to: &Arc<Buffer>, [width, per_part, stride, again]: [usize; 4]| {
            let push = [width, per_part, count, stride, again].map(|number| number as u32);
            let groups = [width.div_ceil(per_part) as u32, rows as u32, 1];
            recorder.dispatch(kernel, &[from, to].map(Binding::whole), push, groups);
        };
        if parts == 1 {
            select(&logits.0, to, [width, width, stride, 0]);
        } else {
            select(&logits.0, &between, [width, per_part, of_parts, 0]);
            select(&between, to, [of_parts, of_parts, stride, 1]);
        }
        if count > 1 {
            let groups = [count.div_ceil(LANES) as u32, rows as u32, 1];
            let (bindings, push) = ([&selected, &out.buffer].map(Binding::whole), [count as u32, out.room as u32]);
            recorder.dispatch(&self.kernels.rank, &bindings, push, groups);
        }
    }

    fn submit(&self) -> Result<(), DeviceError> {
        self.state().recorder.submit()
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.state().recorder.wait()
    }

    fn read(&self, from: &GpuRows, rows: Range<usize>, width: usize, out: &mut [f32]) -> Result<(), DeviceError> {
        self.numbers(&from.0, rows.start * width, out)
    }

    fn read_best(&self, from: &Best, _: &GpuRows, row: usize, out: &mut Vec<Candidate>) -> Result<(), DeviceError> {
        let mut state = self.state();
        let State { recorder, bytes, .. } = &mut *state;
        bytes.resize(from.counts[row] as usize * CANDIDATE_BYTES, 0);
        recorder.download(&from.buffer, (row * from.room * CANDIDATE_BYTES) as u64, bytes)?;
        let candidates = bytes.as_chunks().0.as_chunks().0.iter();
        out.clear();
        out.extend(candidates.map(|[logit, id]| (f32::from_ne_bytes(*logit), u32::from_ne_bytes(*id))));
        // Infinity and what is no number are above all others.
        if out.first().is_some_and(|(most, _)| most.is_nan() || *most == f32::INFINITY) {
            out.clear();
            out.push((f32::NAN, u32::MAX));
        }
        Ok(())
    }

    fn write(&self, from: &[f32], out: &mut GpuRows) -> Result<(), DeviceError> {
        let bytes: Vec<u8> = from.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let mut state = self.state();
        // What was queued may still use them.
        state.recorder.wait()?;
        if state.recorder.upload(&out.0, 0, &bytes).is_err() {
            state.recorder.check()?;
        }
        Ok(())
    }
}
