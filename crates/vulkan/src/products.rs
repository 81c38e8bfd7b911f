//! Products: rows are converted to what a class of weights is multiplied with, then multiplied.

use std::sync::Arc;

use kernels::{AccumulationOrder, Activation, MatrixShape, Out, WeightClass};

use crate::device::{Matrix, PAIR, Scratch, State, Vulkan};
use crate::driver::locked;
use crate::memory::Buffer;
use crate::pipelines::Pipeline;
use crate::recorder::Binding;
use crate::rows::{GpuRows, Norming, Vector};

/// Rows from which on a product goes by tiles of 128 rows and 64 columns: half a tile.
/// Few rows go by four with a strip of 16 columns: 20 bytes are loaded for 64 multiply-adds. A tile loads 192 for
/// 8,192, however many rows there are: less for each row from 10 on, but below half a tile most is computed for no row.
const MANY_FROM: usize = 64;

/// Weights of a group that a product of matrices may be as deep as.
const OF_MATRICES: u32 = 32;

/// Rows as products read them: bf16, or three planes of digits with the scale and the number of planes of each row.
struct Converted {
    numbers: Arc<Buffer>,
    scales: Arc<Buffer>,
    planes: Arc<Buffer>,
}

impl Vulkan {
    /// Lists the norm that waits.
    pub(crate) fn list_norm(&self, state: &mut State) {
        if let Some(norm) = state.norm.take() {
            self.list_rows(state, &norm, [0; 3], [Binding::whole(&self.nothing); 4]);
        }
    }

    /// `conversion`: its kind, words of a converted row, and where the exponents begin.
    fn list_rows(&self, state: &mut State, of: &Norming, conversion: [u32; 3], [a, b, c, d]: [Binding<'_>; 4]) {
        let ([x, weight, bias, y], extent) = (of.buffers.each_ref().map(Binding::whole), of.extent.map(|n| n as u32));
        let (all, push) = ([x, weight, bias, y, a, b, c, d], of.how.into_iter().chain(extent).chain(conversion));
        state.recorder.dispatch(&self.kernels.convert, &all, push, [extent[0], 1, 1]);
    }

    /// `x` as products with `w` read it.
    fn convert(&self, state: &mut State, x: &Arc<Buffer>, rows: usize, w: &Matrix) -> Converted {
        let extent = [rows, w.shape.in_features];
        let is_bf16 = w.class == WeightClass::Bf16 && w.groups.is_none();
        let words = extent[1].div_ceil(w.class.step()) * 16;
        let norm = state.norm.take_if(|norm| Arc::ptr_eq(&norm.buffers[3], x) && norm.extent == extent);
        self.list_norm(state);
        let plain = || Norming { how: [0; 4], buffers: [x, x, x, &self.nothing].map(Arc::clone), extent };
        let State { recorder, scratch: Scratch { converted, scales, planes, .. }, .. } = state;
        let numbers = self.scratch(recorder, converted, rows * words * if is_bf16 { 4 } else { 12 });
        let [scales, planes] = [scales, planes].map(|place| self.scratch(recorder, place, rows * 4));
        let [a, b, c] = [&numbers, &scales, &planes].map(Binding::whole);
        let conversion = [if is_bf16 { 1 } else { 2 }, words as u32, w.exponents.unwrap_or(0)];
        self.list_rows(state, &norm.unwrap_or_else(plain), conversion, [a, b, c, w.scales()]);
        Converted { numbers, scales, planes }
    }

    /// Compiles the kernels for a matrix: a first pass would wait for the driver's compiler.
    pub(crate) fn compile_for(&self, w: &Matrix) {
        let compiled = [1, MANY_FROM].map(|rows| self.kernel_of(w, rows, false).0.handle());
        compiled.into_iter().filter_map(Result::err).for_each(|error| self.state().recorder.timeline.lose_by(error));
    }

    /// The kernel for these rows, and how many of them, and of strips of 16 columns, a workgroup of it has.
    fn kernel_of(&self, w: &Matrix, rows: usize, is_gated: bool) -> (&Pipeline, usize, usize) {
        let (kernels, is_tiles) = (&self.kernels, self.arithmetic() == AccumulationOrder::Amx);
        let groups = w.groups.as_ref().map(|groups| groups.push[2]);
        let [few, many] = match w.class {
            _ if groups == Some(OF_MATRICES) && kernels.has_matrices => [&kernels.few_groups, &kernels.matrix_groups],
            _ if groups.is_some() => [&kernels.few_groups, &kernels.many_groups],
            WeightClass::Int8 if kernels.has_matrices => [&kernels.few_int8, &kernels.matrix_int8],
            WeightClass::Int4 if kernels.has_matrices => [&kernels.few_int4, &kernels.matrix_int4],
            WeightClass::Int8 => [&kernels.few_int8, &kernels.many_int8],
            WeightClass::Int4 => [&kernels.few_int4, &kernels.many_int4],
            WeightClass::Bf16 if !is_tiles && rows < MANY_FROM => return (&kernels.few_pairs, 8, 2),
            WeightClass::Bf16 => [&kernels.few_bf16, &kernels.many_bf16],
        };
        // A gate lies in a pair of strips with its row.
        if rows >= MANY_FROM { (many, 128, 4) } else { (few, 4, if is_gated { 2 } else { 1 }) }
    }

    pub(crate) fn product(&self, x: &GpuRows, rows: usize, w: &Matrix, bias: Option<&Vector>, out: Out<'_, GpuRows>) {
        let MatrixShape { out_features: n, in_features } = w.shape;
        let (steps, mut gate) = (in_features.div_ceil(w.class.step()), [0; 5]);
        let (kernel, rows_of_group, strips_of_group) = self.kernel_of(w, rows, matches!(out, Out::Gated(..)));
        // What becomes of results, the width of a row of them and where they begin in it.
        let (GpuRows(out), ends) = match out {
            Out::Store(out) => (out, [0, n, 0]),
            Out::StoreAt { out, at, width } => (out, [0, width, at]),
            Out::Add(out) => (out, [1, n, 0]),
            Out::Gated(activation, out) => {
                gate = activation_numbers(activation);
                (out, [2, n / 2, 0])
            }
        };
        let state = &mut *locked(&self.state);
        let Converted { numbers, scales, planes } = self.convert(state, &x.0, rows, w);
        let of_groups = w.groups.as_ref().map_or([0; 5], |groups| groups.push);
        let ratio_words = if w.class == WeightClass::Int8 { (w.pair_bytes / 4) as u32 - steps as u32 * 512 } else { 0 };
        let (bias_buffer, row_groups) = (bias.map_or(&numbers, |bias| &bias.buffer), rows.div_ceil(rows_of_group));
        for (first, count, tiles) in w.windows(self) {
            state.recorder.counts.weight_bytes += row_groups as u64 * tiles.bytes;
            let common = [rows, n, steps, first, count, usize::from(bias.is_some())].into_iter().chain(ends);
            let all = common.map(|number| number as u32).chain([ratio_words]).chain(of_groups).chain(gate);
            let mut push = [0; 20];
            push.iter_mut().zip(all).for_each(|(to, number)| *to = number);
            let all = [
                Binding::whole(&numbers),
                tiles,
                Binding::whole(out),
                Binding::whole(bias_buffer),
                Binding::whole(&scales),
                Binding::whole(&planes),
                w.scales(),
                w.levels(),
            ];
            // Groups of the same weights come one after another.
            let groups = [row_groups as u32, (2 * count).div_ceil(strips_of_group) as u32, 1];
            state.recorder.dispatch(kernel, &all[..kernel.buffers], push, groups);
            state.recorder.count((rows * count * PAIR * in_features) as u64);
        }
    }
}

/// An activation as kernels take it: its kind and four constants.
pub(crate) fn activation_numbers(activation: Activation) -> [u32; 5] {
    let (kind, [a, b, c, d]) = match activation {
        Activation::Silu => (0, [0.0; 4]),
        Activation::ScaledSilu { inner, outer } => (1, [inner, outer, 0.0, 0.0]),
        Activation::GeluTanh => (2, [0.0; 4]),
        Activation::Gelu => (3, [0.0; 4]),
        Activation::ReluSquared => (4, [0.0; 4]),
        Activation::Xielu { positive, negative, beta, eps } => (5, [positive, negative, beta, eps]),
        Activation::Clamped { limit } => (6, [limit, 0.0, 0.0, 0.0]),
    };
    [kind, f32::to_bits(a), f32::to_bits(b), f32::to_bits(c), f32::to_bits(d)]
}
