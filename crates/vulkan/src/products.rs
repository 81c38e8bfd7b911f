//! Products: rows are converted to what a class of weights is multiplied with, then multiplied.

use std::sync::Arc;

use kernels::{AccumulationOrder, Activation, Extent, HeadColumns, MatrixShape, Out, WeightClass};

use crate::device::{Matrix, PAIR, Scratch, State, Vulkan};
use crate::driver::locked;
use crate::memory::Buffer;
use crate::pipelines::Pipeline;
use crate::recorder::Binding;
use crate::rows::{GpuRows, LANES, Norming, Vector};

/// Rows from which on a product goes by tiles of 128 rows and 64 columns: half a tile.
/// Few rows go by four with a strip of 16 columns: 20 bytes are loaded for 64 multiply-adds. A tile loads 192 for
/// 8,192, however many rows there are: less for each row from 10 on, but below half a tile most is computed for no row.
pub(crate) const MANY_FROM: usize = 64;

/// Weights of a group that a product of matrices may be as deep as.
const OF_MATRICES: u32 = 32;

/// Rows as products read them: bf16, or three planes of digits with the scale and the number of planes of each row.
pub(crate) struct Converted {
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
        let [x, weight, bias, y] = of.buffers.each_ref().map(Binding::whole);
        let [extent, columns] = [of.extent, of.columns].map(|pair| pair.map(|n| n as u32));
        let push = of.how.into_iter().chain(extent).chain(conversion).chain(columns);
        state.recorder.dispatch(&self.kernels.convert, &[x, weight, bias, y, a, b, c, d], push, [extent[0], 1, 1]);
    }

    /// `x` as products with `w` read it; `columns`: as of [`Norming`].
    pub(crate) fn convert(
        &self,
        state: &mut State,
        (x, columns): (&Arc<Buffer>, [usize; 2]),
        rows: usize,
        w: &Matrix,
    ) -> Converted {
        let extent = [rows, w.shape.in_features];
        let norm = state.norm.take_if(|norm| Arc::ptr_eq(&norm.buffers[3], x) && norm.extent == extent);
        self.list_norm(state);
        let plain = || Norming { how: [0; 4], buffers: [x, x, x, &self.nothing].map(Arc::clone), extent, columns };
        let (converted, [to, words]) = self.room_for(state, rows, w);
        let [a, b, c] = converted.bindings();
        let conversion = [to, words, w.exponents.unwrap_or(0)];
        self.list_rows(state, &norm.unwrap_or_else(plain), conversion, [a, b, c, w.scales()]);
        converted
    }

    /// Room for rows as products with `w` read them; the kind of the conversion, and words of such a row.
    fn room_for(&self, state: &mut State, rows: usize, w: &Matrix) -> (Converted, [u32; 2]) {
        let is_bf16 = w.class == WeightClass::Bf16 && w.groups.is_none();
        let words = w.shape.in_features.div_ceil(w.class.step()) * 16;
        let State { recorder, scratch: Scratch { converted, scales, planes, .. }, .. } = state;
        let numbers = self.scratch(recorder, converted, rows * words * if is_bf16 { 4 } else { 12 });
        let [scales, planes] = [scales, planes].map(|place| self.scratch(recorder, place, rows * 4));
        (Converted { numbers, scales, planes }, [if is_bf16 { 1 } else { 2 }, words as u32])
    }

    /// Compiles the kernels for a matrix: a first pass would wait for the driver's compiler.
    pub(crate) fn compile_for(&self, w: &Matrix) {
        self.compile([1, MANY_FROM].map(|rows| self.kernel_of(w, Some(rows), false).0));
    }

    pub(crate) fn compile<const N: usize>(&self, kernels: [&Pipeline; N]) {
        let failures = kernels.into_iter().filter_map(|kernel| kernel.handle().err());
        failures.for_each(|error| self.state().recorder.timeline.lose_by(error));
    }

    /// The kernel for these rows, or for few of several matrices, and how many of them, and of strips of 16 columns, a
    /// workgroup of it has.
    pub(crate) fn kernel_of(&self, w: &Matrix, rows: Option<usize>, is_gated: bool) -> (&Pipeline, usize, usize) {
        let (kernels, is_tiles) = (&self.kernels, self.arithmetic() == AccumulationOrder::Amx);
        let is_many = rows.is_some_and(|rows| rows >= MANY_FROM);
        let groups = w.groups.as_ref().map(|groups| groups.push[2]);
        let [few, many, routed] = match w.class {
            _ if groups.is_some() => [&kernels.few_groups, &kernels.many_groups, &kernels.routed_groups],
            WeightClass::Int8 => [&kernels.few_int8, &kernels.many_int8, &kernels.routed_int8],
            WeightClass::Int4 => [&kernels.few_int4, &kernels.many_int4, &kernels.routed_int4],
            WeightClass::Bf16 if !is_tiles && !is_many => {
                return (if rows.is_some() { &kernels.few_pairs } else { &kernels.routed_pairs }, 8, 2);
            }
            WeightClass::Bf16 => [&kernels.few_bf16, &kernels.many_bf16, &kernels.routed_bf16],
        };
        let many = match (kernels.has_matrices, groups, w.class) {
            (true, Some(OF_MATRICES), _) => &kernels.matrix_groups,
            (true, None, WeightClass::Int8) => &kernels.matrix_int8,
            (true, None, WeightClass::Int4) => &kernels.matrix_int4,
            _ => many,
        };
        // A gate lies in a pair of strips with its row.
        let few = (if rows.is_some() { few } else { routed }, 4, if is_gated { 2 } else { 1 });
        if is_many { (many, 128, 4) } else { few }
    }

    /// Rows that experts read with matrices like `w`, by a list of them, or those that they made of these; or of heads.
    pub(crate) fn convert_routed(
        &self,
        state: &mut State,
        (x, list, rows): (&Arc<Buffer>, Binding<'_>, usize),
        w: &Matrix,
        (how, x_width): ([u32; 2], usize),
    ) -> Converted {
        let (converted, [to, words]) = self.room_for(state, rows, w);
        let [a, b, c] = converted.bindings();
        let push = how.into_iter().chain([rows as u32, w.shape.in_features as u32, to, words, x_width as u32]);
        let all = [Binding::whole(x), list, Binding::whole(&self.nothing), Binding::whole(&self.nothing), a, b, c];
        state.recorder.dispatch(&self.kernels.routed_convert, &all, push, [rows as u32, 1, 1]);
        converted
    }

    /// Each tile of rows with a matrix like `w`; some may be empty. After `per_head` rows those of the next head come.
    pub(crate) fn product_routed(
        &self,
        state: &mut State,
        (converted, tiles, most): (&Converted, Binding<'_>, usize),
        (w, has_bias): (&Matrix, bool),
        (out, columns, per_head): (&Arc<Buffer>, HeadColumns, usize),
        gate: Option<Activation>,
    ) {
        let (pairs, HeadColumns { width, stride }) = (w.pairs, columns);
        let (kernel, _, strips) = self.kernel_of(w, None, gate.is_some());
        let ends = [if gate.is_some() { 2 } else { 0 }, width, 0];
        let push = w.numbers([most, 0, pairs, usize::from(has_bias)], ends, gate.map_or([0; 5], activation_numbers));
        let push = push.chain([per_head as u32, stride as u32]);
        let [numbers, scales, planes] = converted.bindings();
        let all = [numbers, tiles, Binding::whole(out), Binding::whole(&self.nothing), scales, planes];
        let groups = [most as u32, (2 * pairs).div_ceil(strips) as u32, 1];
        state.recorder.counts.weight_bytes += most as u64 * pairs as u64 * w.pair_bytes;
        state.recorder.dispatch(kernel, &all[..kernel.buffers], push, groups);
        state.recorder.count((most * pairs * PAIR * w.shape.in_features) as u64);
    }

    pub(crate) fn product(&self, x: &GpuRows, rows: usize, w: &Matrix, bias: Option<&Vector>, out: Out<'_, GpuRows>) {
        let state = &mut *locked(&self.state);
        let converted = self.convert(state, (&x.0, [w.shape.in_features, 0]), rows, w);
        self.product_of(state, (&converted, rows), (w, bias), out);
    }

    pub(crate) fn product_of(
        &self,
        state: &mut State,
        (converted, rows): (&Converted, usize),
        (w, bias): (&Matrix, Option<&Vector>),
        out: Out<'_, GpuRows>,
    ) {
        let (MatrixShape { out_features: n, in_features }, mut gate) = (w.shape, [0; 5]);
        let (kernel, rows_of_group, strips_of_group) = self.kernel_of(w, Some(rows), matches!(out, Out::Gated(..)));
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
        let ([numbers, scales, planes], has_bias) = (converted.bindings(), usize::from(bias.is_some()));
        let (bias_buffer, row_groups) =
            (bias.map_or(&converted.numbers, |bias| &bias.buffer), rows.div_ceil(rows_of_group));
        for (first, count, tiles) in w.windows(self) {
            state.recorder.counts.weight_bytes += row_groups as u64 * tiles.bytes;
            let push = w.numbers([rows, first, count, has_bias], ends, gate);
            let (out, bias) = (Binding::whole(out), Binding::whole(bias_buffer));
            let all = [numbers, tiles, out, bias, scales, planes, w.scales(), w.levels()];
            // Groups of the same weights come one after another.
            let groups = [row_groups as u32, (2 * count).div_ceil(strips_of_group) as u32, 1];
            state.recorder.dispatch(kernel, &all[..kernel.buffers], push, groups);
            state.recorder.count((rows * count * PAIR * in_features) as u64);
        }
    }
}

impl Converted {
    fn bindings(&self) -> [Binding<'_>; 3] {
        [&self.numbers, &self.scales, &self.planes].map(Binding::whole)
    }
}

impl Matrix {
    /// What products are given: rows, the first of some pairs, how many, and whether there is a bias; what becomes of
    /// results, the width of a row of them and where they begin in it; and the gate.
    fn numbers(
        &self,
        [rows, first, count, has_bias]: [usize; 4],
        ends: [usize; 3],
        gate: [u32; 5],
    ) -> impl Iterator<Item = u32> + use<> {
        let steps = self.shape.in_features.div_ceil(self.class.step());
        let ratio_words = (self.pair_bytes / 4).saturating_sub(steps as u64 * 512) as u32;
        let ratio_words = if self.class == WeightClass::Int8 { ratio_words } else { 0 };
        let of_groups = self.groups.as_ref().map_or([0; 5], |groups| groups.push);
        let common = [rows, self.shape.out_features, steps, first, count, has_bias].into_iter().chain(ends);
        common.map(|number| number as u32).chain([ratio_words]).chain(of_groups).chain(gate)
    }
}

/// An activation as kernels take it: its kind and four constants.
fn activation_numbers(activation: Activation) -> [u32; 5] {
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

/// What kernels of these rows are given, and their workgroups.
pub(crate) fn activation_of(activation: Activation, Extent { rows, width }: Extent) -> ([u32; 6], [u32; 3]) {
    let [kind, a, b, c, d] = activation_numbers(activation);
    ([width as u32, kind, a, b, c, d], [width.div_ceil(LANES) as u32, rows as u32, 1])
}
