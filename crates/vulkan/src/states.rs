//! Layers with a state: what the rows of a step do to it.
//!
//! ```text
//! before_states    rows x (heads + gates / 64)            norms of queries and keys, what gates stand for
//! recur            columns / 64 x heads x sequences       chains over keys, row after row
//! after_states     rows x what is normed together         gates and norm of the output
//! ```
//! Kernels find slots by their addresses.

use std::sync::Arc;

use kernels::{Convolution, DeltaRows, DeltaRule, DeltaShape, Mamba, MambaShape, OutputNorm};

use crate::backend::{GpuStep, Part};
use crate::device::Vulkan;
use crate::memory::Buffer;
use crate::pipelines::Pipeline;
use crate::recorder::Binding;
use crate::rows::{GpuRows, LANES, Vector};
use crate::slots::GpuStates;

/// Numbers of a state that a workgroup has.
const OWN: usize = 4096;
/// Kinds of recurrences, as kernels have them.
const BY_HEAD: usize = 0;
const BY_KEY: usize = 1;
const MAMBA: usize = 2;
/// What is done with outputs beside their gate.
const NO_NORM: usize = 0;
const NORM_LAST: usize = 1;
const NORM_FIRST: usize = 2;

/// The sequences of a step, with what they read and leave: the last three buffers of kernels that touch states.
fn of_step<'a>(step: &'a GpuStep, states: &'a GpuStates) -> [Binding<'a>; 3] {
    assert!(step.slots <= states.shape.slots, "slot {} of {}", step.slots - 1, states.shape.slots);
    [step.part(Part::States), step.part(Part::Saves), Binding::whole(&states.table)]
}

impl Vulkan {
    /// In place, or between gates.
    pub(crate) fn convolve_any(
        &self,
        step: &GpuStep,
        (how, is_between): (Convolution<'_, Vector>, bool),
        [x, out]: [&GpuRows; 2],
        states: &GpuStates,
    ) {
        let Convolution { row_width, channels, taps, weight, bias, silu, state } = how;
        let push = [row_width, channels, taps, state].map(|number| number as u32);
        let push = push.into_iter().chain([is_between, silu, bias.is_some()].map(u32::from));
        let [x, out, weight, bias] = [&x.0, &out.0, &weight.buffer, &bias.unwrap_or(weight).buffer].map(Binding::whole);
        let [spans, saves, slots] = of_step(step, states);
        let all = [x, out, weight, bias, spans, saves, slots];
        let groups = [channels.div_ceil(LANES) as u32, step.states as u32, 1];
        self.state().recorder.dispatch(&self.kernels.convolve, &all, push, groups);
    }

    pub(crate) fn recur_by_deltas(
        &self,
        step: &GpuStep,
        how: DeltaRule<'_, Vector>,
        DeltaRows { rows, gates, decays }: DeltaRows<'_, GpuRows>,
        states: &GpuStates,
        out: &GpuRows,
    ) {
        let DeltaRule { shape, rates, dt_bias, norm, eps, state } = how;
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, by_key } = shape;
        let (width, keys, decays_width) = (shape.row_width(), shape.key_width(), shape.decays_width());
        let (of_gates, kind) = ([shape.gates_width(), shape.beta_at()], if by_key { BY_KEY } else { BY_HEAD });
        let decays = decays.map_or(&rows.0, |decays| &decays.0);

        let numbers = [kind, width, 2 * key_heads, key_dim, value_heads, of_gates[0], of_gates[1], decays_width];
        let factors = [1.0 / (key_dim as f32).sqrt(), 1.0];
        let gates_of_row = value_heads + if by_key { keys } else { value_heads };
        let parts = 2 * key_heads + gates_of_row.div_ceil(LANES);
        let all = [&rows.0, &gates.0, decays, &rates.buffer, &dt_bias.buffer];
        self.by_row(step, &self.kernels.before_states, (&numbers, factors), parts, &all);

        let of_rows =
            [value_heads / key_heads, width, 0, keys, 2 * keys, of_gates[0], of_gates[1], decays_width, state];
        let of_state = (kind, value_heads, [key_dim, value_dim]);
        self.recur(step, of_state, of_rows, [&rows.0, &gates.0, decays, &out.0], states);

        let (from, width, gates_at) =
            if by_key { (decays, decays_width, keys) } else { (&rows.0, width, shape.channels()) };
        let numbers = [value_dim, width, gates_at, NORM_FIRST, usize::from(!by_key), 0, 1];
        let all = [&out.0, from, &norm.buffer, &norm.buffer];
        self.by_row(step, &self.kernels.after_states, (&numbers, [1.0, eps]), value_heads, &all);
    }

    pub(crate) fn recur_by_steps(
        &self,
        step: &GpuStep,
        how: Mamba<'_, Vector>,
        (rows, steps): (&GpuRows, &GpuRows),
        states: &GpuStates,
        out: &GpuRows,
    ) {
        let Mamba { shape, rates, step_factor, dt_bias, skip, gate_factor, output, norm, norm_groups, eps, state } =
            how;
        let MambaShape { heads, head_dim, groups, state_dim } = shape;
        let (width, inner) = (shape.row_width(), shape.inner());

        let numbers = [MAMBA, width, 0, 0, heads, heads, 0, 0];
        let all = [&rows.0, &steps.0, &rows.0, &rates.buffer, &dt_bias.buffer];
        self.by_row(step, &self.kernels.before_states, (&numbers, [1.0, step_factor]), heads.div_ceil(LANES), &all);

        let of_rows = [heads / groups, width, inner + groups * state_dim, inner, 0, heads, 0, 0, state];
        let buffers = [&rows.0, &steps.0, &rates.buffer, &out.0];
        self.recur(step, (MAMBA, heads, [state_dim, head_dim]), of_rows, buffers, states);

        let (order, parts) = match output {
            OutputNorm::None => (NO_NORM, heads),
            OutputNorm::AfterGate => (NORM_LAST, norm_groups),
            OutputNorm::BeforeGate => (NORM_FIRST, norm_groups),
        };
        let numbers = [inner / parts, width, shape.channels(), order, 1, head_dim, 0];
        let all = [&out.0, &rows.0, &norm.unwrap_or(skip).buffer, &skip.buffer];
        self.by_row(step, &self.kernels.after_states, (&numbers, [gate_factor, eps]), parts, &all);
    }

    /// Parts of each row.
    fn by_row(
        &self,
        step: &GpuStep,
        kernel: &Pipeline,
        (numbers, factors): (&[usize], [f32; 2]),
        parts: usize,
        buffers: &[&Arc<Buffer>],
    ) {
        let push = numbers.iter().map(|&number| number as u32).chain(factors.map(f32::to_bits));
        let all: Vec<_> = buffers.iter().map(|&buffer| Binding::whole(buffer)).collect();
        self.state().recorder.dispatch(kernel, &all, push, [parts as u32, step.rows as u32, 1]);
    }

    /// `of_rows`: the numbers of the kernel from `sharing` on.
    fn recur(
        &self,
        step: &GpuStep,
        (kind, heads, [key_dim, value_dim]): (usize, usize, [usize; 2]),
        of_rows: [usize; 9],
        buffers: [&Arc<Buffer>; 4],
        states: &GpuStates,
    ) {
        let columns = (OWN / key_dim).min(LANES);
        let push = [kind, heads, key_dim, value_dim, columns].into_iter().chain(of_rows);
        let groups = [value_dim.div_ceil(columns), heads, step.states].map(|number| number as u32);
        let ([rows, gates, decays, out], [spans, saves, slots]) = (buffers.map(Binding::whole), of_step(step, states));
        let all = [rows, gates, decays, out, spans, saves, slots];
        let recorder = &mut self.state().recorder;
        recorder.dispatch(&self.kernels.recur, &all, push.map(|number| number as u32), groups);
        recorder.count((3 * step.rows * heads * key_dim * value_dim) as u64);
    }
}
