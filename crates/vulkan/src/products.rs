//! Products: rows are converted to what a class of weights is multiplied with, then multiplied.

use std::sync::Arc;

use kernels::{MatrixShape, WeightClass};

use crate::backend::{LANES, Vector};
use crate::device::{Matrix, PAIR, Scratch, State, Vulkan};
use crate::memory::Buffer;
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

impl Vulkan {
    /// `x` as products with `w` read it.
    fn convert(&self, state: &mut State, x: &Arc<Buffer>, rows: usize, w: &Matrix) -> Converted {
        let in_features = w.shape.in_features;
        let is_bf16 = w.class == WeightClass::Bf16 && w.groups.is_none();
        let words = in_features.div_ceil(w.class.step()) * 16;
        let State { recorder, scratch: Scratch { converted, scales, planes, .. }, .. } = state;
        let numbers = self.scratch(recorder, converted, rows * words * if is_bf16 { 4 } else { 12 });
        let [scales, planes] = [scales, planes].map(|place| self.scratch(recorder, place, rows * 4));
        if is_bf16 {
            let push = [in_features as u32, words as u32];
            let bindings = [Binding::whole(x), Binding::whole(&numbers)];
            recorder.dispatch(&self.kernels.to_bf16, &bindings, &push, [words.div_ceil(LANES) as u32, rows as u32, 1]);
        } else {
            let push = [rows as u32, in_features as u32, words as u32, w.exponents.unwrap_or(0)];
            let bindings = [x, &numbers, &scales, &planes].map(Binding::whole);
            let [a, b, c, d] = bindings;
            recorder.dispatch(&self.kernels.digits, &[a, b, c, d, w.scales()], &push, [rows as u32, 1, 1]);
        }
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
            state.recorder.dispatch(kernel, &all[..kernel.buffers], &push, groups);
            state.recorder.count((rows * count * PAIR * in_features) as u64);
        }
    }
}
