//! From sums to results: scales of int8 and int4, bias, and the residual stream.

use super::Lists;
use crate::quant::{BASE, PAIR, PLANES, WeightClass};

/// A block's sums and the destination of its results.
pub(crate) struct Results<'a> {
    /// `[rows][32]`: i32 or f32 bits.
    pub(crate) sums: &'a [[u32; 32]],
    pub(crate) class: WeightClass,
    /// Sums are f32 with the group scales already applied.
    pub(crate) in_groups: bool,
    /// Int8 and int4: `[rows]`.
    pub(crate) row_scales: &'a [f32],
    /// Int8 and int4: the rows with middle and high digits.
    pub(crate) lists: Lists<'a>,
    /// Sums of these digits, `[rows]`; written only where there are such digits.
    pub(crate) high: *const [[u32; PAIR]; PLANES],
    /// Sums of middle digits beside those in lists, `[rows]`; null: there are none. For tiles.
    pub(crate) heavy: *const [u32; PAIR],
    /// Int8 and int4: `[columns]`.
    pub(crate) column_scales: &'a [f32],
    /// `[columns]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether results are added to the destination.
    pub(crate) add: bool,
    /// First result.
    pub(crate) out: *mut f32,
    /// Row stride of the output.
    pub(crate) width: usize,
    /// Columns to write: 32, fewer at the edge.
    pub(crate) columns: usize,
    /// Whether `out` is written past the caches: as [`Product::streams`](super::Product::streams).
    pub(crate) streams: bool,
}

/// Units of a middle and a high digit.
pub(crate) const UNITS: [f32; PLANES] = [BASE as f32, (BASE * BASE) as f32];

/// The definition of what follows the sum, inlined into a function of each instruction set.
///
/// # Safety
/// `out` covers the rows and columns, and no other thread accesses them.
#[inline(always)]
pub(crate) unsafe fn finish(results: Results<'_>) {
    let columns = results.columns;
    // The edge is padded so that every row below is 32 wide; only the final store uses the true width.
    let padded = |from: &[f32]| {
        let mut to = [0f32; PAIR];
        to[..columns].copy_from_slice(&from[..columns]);
        to
    };
    let bias = results.bias.map(padded);
    let column_scales = match results.class {
        WeightClass::Int8 | WeightClass::Int4 if !results.in_groups => padded(results.column_scales),
        _ => [0.0; PAIR],
    };
    for (row, sums) in results.sums.iter().enumerate() {
        let mut y = match results.class {
            WeightClass::Bf16 => sums.map(f32::from_bits),
            WeightClass::Int8 | WeightClass::Int4 => {
                let row_scale = results.row_scales[row];
                let number = |sum: u32| if results.in_groups { f32::from_bits(sum) } else { (sum as i32) as f32 };
                let mut sums = sums.map(number);
                for (plane, unit) in UNITS.into_iter().enumerate().take(results.lists.planes(row)) {
                    // SAFETY: a list that is not empty has sums.
                    let digits = unsafe { &*results.high.add(row).cast::<[u32; PAIR]>().add(plane) };
                    for (sum, &digits) in sums.iter_mut().zip(digits) {
                        *sum = unit.mul_add(number(digits), *sum);
                    }
                }
                std::array::from_fn(|column| {
                    let scaled = sums[column] * row_scale;
                    if results.in_groups { scaled } else { scaled * column_scales[column] }
                })
            }
        };
        if let Some(bias) = &bias {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        // SAFETY: the caller's promise.
        let out = unsafe { std::slice::from_raw_parts_mut(results.out.add(row * results.width), columns) };
        match <&mut [f32; PAIR]>::try_from(&mut *out) {
            Ok(out) if results.add => out.iter_mut().zip(y).for_each(|(out, y)| *out += y),
            Ok(out) => *out = y,
            Err(_) if results.add => out.iter_mut().zip(y).for_each(|(out, y)| *out += y),
            Err(_) => out.copy_from_slice(&y[..columns]),
        }
    }
}
