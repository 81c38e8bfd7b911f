//! Columns of one size: each input's weights are divided by a power of two, and the input is multiplied by it.
//!
//! ```text
//! sum over k of w[n][k] x[k]  =  sum over k of (w[n][k] / 2^s[k]) (x[k] 2^s[k])
//! ```
//! Weights of a group share a ratio, so a column far smaller than its neighbours has few levels left or none, and a far
//! larger one leaves few to them. Activations have no such trouble: a large one gets further digits
//! ([`super::outliers`]). So sizes are moved to the inputs, wholly, and that needs no data. (SmoothQuant, Xiao et al.,
//! 2023, and cross-layer equalization, Nagel et al., 2019, move a part of them between layers.) What a model has moved
//! itself, from a norm's weights to the columns behind it, does not matter then.
//!
//! A column's size is the median magnitude of some of its weights. It follows each power of two exactly, and neither a
//! few large rows nor a few tiny weights change it.

use super::{MatrixShape, RowSource, WeightClass};

/// Rows that sizes are taken from, evenly spread. (The median of 128 normal numbers is off by a seventh of a power of
/// two.)
const ROWS: usize = 128;
/// With fewer rows, sizes are chance.
const FEWEST_ROWS: usize = 32;
/// Shifts stay between this and its negative.
const MOST: i32 = 24;
/// Int8 has levels enough for columns of which sizes differ by less: ordinary matrices stay as they are there, and are
/// those that [`super::quantize_int8_row`] makes for files.
const FEWEST_OF_INT8: i32 = 5;

/// Some rows of a matrix, read before the others.
pub(super) struct Sample {
    shape: MatrixShape,
    count: usize,
    /// `[count, in_features]`.
    values: Vec<f32>,
}

impl Sample {
    pub(super) fn read(shape: MatrixShape, rows: &RowSource<'_>) -> Sample {
        let count = shape.out_features.min(ROWS);
        let mut values = vec![0.0; count * shape.in_features];
        for (nth, to) in values.chunks_exact_mut(shape.in_features).enumerate() {
            (rows.0)(nth * shape.out_features / count, to);
        }
        Sample { shape, count, values }
    }

    /// A row, if it was read.
    pub(super) fn row(&self, row: usize) -> Option<&[f32]> {
        let nth = (row * self.count).div_ceil(self.shape.out_features);
        let is_read = nth < self.count && nth * self.shape.out_features / self.count == row;
        is_read.then(|| &self.values[nth * self.shape.in_features..][..self.shape.in_features])
    }

    /// The shift of each column as the biased exponent of its power of two; empty if all are 0.
    pub(super) fn exponents(&self, class: WeightClass) -> Vec<u8> {
        let sizes = self.sizes();
        let mut sorted: Vec<i64> = sizes.iter().copied().flatten().collect();
        if self.count < FEWEST_ROWS || sorted.is_empty() {
            return Vec::new();
        }
        let middle = sorted.len() / 2;
        let median = *sorted.select_nth_unstable(middle).1;
        let fewest = if class == WeightClass::Int8 { FEWEST_OF_INT8 } else { 1 };
        let exponent = |size: Option<i64>| {
            let shift = size.map_or(0, |size| ((size - median + (1 << 22)) >> 23) as i32).clamp(-MOST, MOST);
            if shift.abs() < fewest { 127 } else { (127 + shift) as u8 }
        };
        let exponents: Vec<u8> = sizes.into_iter().map(exponent).collect();
        if exponents.iter().all(|&exponent| exponent == 127) { Vec::new() } else { exponents }
    }

    /// The median magnitude of each column as bits: a logarithm in units of 2^-23, linear between powers of two;
    /// `None` where no number has one.
    fn sizes(&self) -> Vec<Option<i64>> {
        let (width, mut magnitudes) = (self.shape.in_features, Vec::with_capacity(self.count));
        let size = |column: usize| {
            let all = self.values[column..].iter().step_by(width).map(|value| value.to_bits() & 0x7fff_ffff);
            magnitudes.clear();
            magnitudes.extend(all.filter(|&bits| bits > 0 && bits < f32::INFINITY.to_bits()));
            let middle = magnitudes.len() / 2;
            (!magnitudes.is_empty()).then(|| i64::from(*magnitudes.select_nth_unstable(middle).1))
        };
        (0..width).map(size).collect()
    }
}

/// `2^s` from its biased exponent.
#[inline(always)]
pub(crate) fn power(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent) << 23)
}

/// `2^-s` from the biased exponent of `2^s`.
#[inline(always)]
pub(super) fn inverse_power(exponent: u8) -> f32 {
    power(254 - exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MatrixShape = MatrixShape { out_features: 300, in_features: 96 };

    fn rows(of: impl Fn(usize, usize) -> f32 + Sync) -> Sample {
        let values = testing::Dice::new(7).normals(SHAPE.out_features * SHAPE.in_features);
        let fill = |row: usize, to: &mut [f32]| {
            let own = values[row * SHAPE.in_features..].iter().enumerate();
            to.iter_mut().zip(own).for_each(|(to, (k, value))| *to = value * of(row, k));
        };
        Sample::read(SHAPE, &RowSource(&fill))
    }

    fn shifts(sample: &Sample, class: WeightClass) -> Vec<i32> {
        sample.exponents(class).into_iter().map(|exponent| i32::from(exponent) - 127).collect()
    }

    #[test]
    fn shifts_follow_columns_and_not_rows() {
        let plain = shifts(&rows(|_, _| 1.0), WeightClass::Int4);
        assert!(plain.iter().all(|shift| shift.abs() <= 1), "{plain:?}");
        let sizes = [(3, -10), (40, 6), (95, -3)];
        let of = |k: usize| sizes.iter().find(|(at, _)| *at == k).map_or(0, |(_, shift)| *shift);
        // Rows of other sizes change nothing.
        let found = rows(|row, k| f32::powi(2.0, of(k) + if row % 50 == 7 { 10 } else { 0 }));
        let found = shifts(&found, WeightClass::Int4);
        for (k, shift) in found.into_iter().enumerate() {
            assert_eq!(shift - plain.get(k).unwrap_or(&0), of(k), "column {k}");
        }
    }

    #[test]
    fn tiny_weights_make_no_column_small() {
        let found = shifts(&rows(|row, k| if (row + k) % 16 == 0 { 1e-30 } else { 1.0 }), WeightClass::Int4);
        assert!(found.iter().all(|shift| shift.abs() <= 1), "{found:?}");
    }

    #[test]
    fn int8_shifts_only_columns_far_from_the_others() {
        assert!(rows(|_, k| if k == 5 { 4.0 } else { 1.0 }).exponents(WeightClass::Int8).is_empty());
        let found = shifts(&rows(|_, k| if k == 5 { 1.0 / 256.0 } else { 1.0 }), WeightClass::Int8);
        assert_eq!(found, (0..96).map(|k| if k == 5 { -8 } else { 0 }).collect::<Vec<_>>());
    }

    #[test]
    fn zeros_infinities_and_few_rows_shift_nothing() {
        for value in [0.0, f32::INFINITY, f32::NAN] {
            assert!(rows(|_, _| value).exponents(WeightClass::Int4).is_empty(), "{value}");
        }
        let shape = MatrixShape { out_features: FEWEST_ROWS - 1, in_features: 8 };
        let fill = |_: usize, to: &mut [f32]| to.iter_mut().enumerate().for_each(|(k, to)| *to = 2f32.powi(k as i32));
        assert!(Sample::read(shape, &RowSource(&fill)).exponents(WeightClass::Int4).is_empty());
    }

    #[test]
    fn a_sampled_row_is_the_row() {
        for out_features in [1, 5, 127, 128, 129, 300, 1000] {
            let shape = MatrixShape { out_features, in_features: 3 };
            let fill = |row: usize, to: &mut [f32]| to.fill(row as f32);
            let sample = Sample::read(shape, &RowSource(&fill));
            let read: Vec<usize> = (0..out_features).filter(|&row| sample.row(row).is_some()).collect();
            assert_eq!(read.len(), out_features.min(ROWS), "{out_features}");
            assert!(read.iter().all(|&row| sample.row(row) == Some(&[row as f32; 3])), "{out_features}");
        }
    }
}
