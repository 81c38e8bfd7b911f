//! Products: rows are converted to what a class of weights is multiplied with, then multiplied.

use std::sync::Arc;

use kernels::{MatrixShape, WeightClass};

use crate::backend::Vector;
use crate::device::{Matrix, PAIR, Scratch, State, Vulkan};
use crate::driver::Buffer;
use crate::pipelines::Pipeline;
use crate::recorder::Binding;

/// Rows of a workgroup of a product.
const PRODUCT_ROWS: usize = 8;

/// Destination of a product.
pub(crate) struct To<'a> {
    pub(crate) out: &'a Arc<Buffer>,
    pub(crate) add: bool,
    pub(crate) at: usize,
    pub(crate) width: usize,
}

/// Rows as products read them: bf16, or three planes of digits with the scale and the number of planes of each row.
struct Converted {
    numbers: Arc<Buffer>,
    scales: Arc<Buffer>,
    planes: Arc<Buffer>,
}

/// Rows to be normed, converted, or both: a norm waits for what comes next, to be one dispatch with a product's digits.
pub(crate) struct Norming {
    /// The kind of the norm, 0 where there is none; whether it has a bias; the first row; what is added to the mean.
    pub(crate) how: [u32; 4],
    /// Rows, weight, bias, and where to; how many rows, and their width.
    pub(crate) buffers: [Arc<Buffer>; 4],
    pub(crate) extent: [usize; 2],
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

    /// `out = x w^T + bias`, or added, to columns from `at` on of rows of `width`.
    pub(crate) fn product(
        &self,
        state: &mut State,
        x: &Arc<Buffer>,
        rows: usize,
        w: &Matrix,
        bias: Option<&Vector>,
        to: To<'_>,
    ) {
        let MatrixShape { out_features, in_features } = w.shape;
        let steps = in_features.div_ceil(w.class.step());
        let kernel: &Pipeline = match w.class {
            _ if w.groups.is_some() => &self.kernels.linear_groups,
            WeightClass::Bf16 => &self.kernels.linear_bf16,
            WeightClass::Int8 => &self.kernels.linear_int8,
            WeightClass::Int4 => &self.kernels.linear_int4,
        };
        let Converted { numbers, scales, planes } = self.convert(state, x, rows, w);
        let of_groups = w.groups.as_ref().map(|groups| [groups.step_words].into_iter().chain(groups.push));
        let ratio_words = if w.class == WeightClass::Int8 { (w.pair_bytes / 4) as u32 - steps as u32 * 512 } else { 0 };
        let bias_buffer = bias.map_or(&numbers, |bias| &bias.buffer);
        for (first, count, tiles) in w.windows(self) {
            state.recorder.counts.weight_bytes += tiles.bytes;
            let mut push = [0; 13];
            let common = [rows, out_features, steps, first, usize::from(bias.is_some()), usize::from(to.add)];
            let common = common.into_iter().chain([to.width, to.at]).map(|number| number as u32);
            let all = common.chain(of_groups.clone().into_iter().flatten().chain([ratio_words]));
            push.iter_mut().zip(all).for_each(|(to, number)| *to = number);
            let [scale, level] = [w.scales(), w.levels()];
            let all = [
                Binding::whole(&numbers),
                tiles,
                Binding::whole(to.out),
                Binding::whole(bias_buffer),
                Binding::whole(&scales),
                Binding::whole(&planes),
                if w.groups.is_some() { level } else { scale },
                level,
            ];
            let groups = [count as u32, rows.div_ceil(PRODUCT_ROWS) as u32, 1];
            state.recorder.dispatch(kernel, &all[..kernel.buffers], push, groups);
            state.recorder.count((rows * count * PAIR * in_features) as u64);
        }
    }
}
