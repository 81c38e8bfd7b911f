//! Percentiles, by one definition: linear interpolation between the two nearest ranks.
//!
//! ```text
//! sorted     x0       x1       x2       x3       x4           n values, position = p / 100 * (n - 1)
//! percent     0       25       50       75      100
//!                              ^ p = 50      ^ p = 90: position 3.6, x3 + 0.6 (x4 - x3)
//! ```
//!
//! This is the default of numpy, and so of `vllm bench serve` and aiperf: figures are comparable with theirs (type 7 of
//! Hyndman & Fan, 1996). Unlike a rank without interpolation, it gives the middle of two values as their median, and is
//! continuous in the values. With few values a high percentile is below the largest one: p99 needs a hundred values and
//! more. guidellm's percentiles are values that occurred, so its p99 may differ by one gap.

/// The percentile of `sorted` (ascending); `None` if it is empty. `percent` is from 0 to 100.
pub fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    percentile_of(sorted.len() as u64, percent, |rank| sorted[rank as usize])
}

/// [`percentile`] of `num` values that are not in a slice: `at(rank)` is the value of that rank, possibly approximate.
pub fn percentile_of(num: u64, percent: f64, mut at: impl FnMut(u64) -> f64) -> Option<f64> {
    let last = num.checked_sub(1)?;
    let position = last as f64 * (percent / 100.0).clamp(0.0, 1.0);
    let rank = (position as u64).min(last);
    let below = at(rank);
    Some(match position - rank as f64 {
        0.0 => below, // there may be no rank above, and infinity minus infinity would be NaN
        share => below + (at(rank + 1) - below) * share,
    })
}

/// The median; sorts `values`. `None` if they are empty.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    percentile(values, 50.0)
}

/// Mean and percentiles of a distribution, in the unit of its values; 0 without values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// The exact figures of `values`; sorts them.
    pub fn of(values: &mut [f64]) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |percent| percentile(values, percent).unwrap_or_default();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Spread { mean, p50: at(50.0), p90: at(90.0), p99: at(99.0), max: at(100.0) }
    }
}

/// Sorted samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution(Vec<f64>);

impl Distribution {
    /// Sorts the samples.
    pub fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        Distribution(values)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Arithmetic mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.iter().sum::<f64>() / self.0.len() as f64 }
    }

    /// Standard deviation of the samples.
    pub fn std(&self) -> f64 {
        let mean = self.mean();
        let squares = Distribution(self.0.iter().map(|value| (value - mean).powi(2)).collect());
        squares.mean().sqrt()
    }

    /// [`percentile`] of the samples; 0 without samples.
    pub fn percentile(&self, percent: f64) -> f64 {
        percentile(&self.0, percent).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `numpy.percentile(values, percent)` gives.
    #[test]
    fn percentiles_are_numpys() {
        let table: &[(&[f64], f64, f64)] = &[
            (&[7.0], 99.0, 7.0),
            (&[1.0, 4.0], 50.0, 2.5),
            (&[1.0, 2.0, 3.0, 4.0, 5.0], 90.0, 4.6),
            (&[1.0, 2.0, 3.0, 4.0, 5.0], 25.0, 2.0),
            (&[15.0, 20.0, 35.0, 40.0, 50.0], 40.0, 29.0),
            (&[0.1, 0.2, 0.4, 0.8], 99.0, 0.788),
            (&[0.1, 0.2, 0.4, 0.8], 0.0, 0.1),
            (&[0.1, 0.2, 0.4, 0.8], 100.0, 0.8),
            (&[1.0, f64::INFINITY], 0.0, 1.0),
            (&[1.0, f64::INFINITY], 100.0, f64::INFINITY),
        ];
        for &(values, percent, wanted) in table {
            let got = percentile(values, percent).expect("there are values");
            assert!(got == wanted || (got - wanted).abs() < 1e-12, "{percent} % of {values:?}: {got}, not {wanted}");
        }
        assert_eq!((percentile(&[], 50.0), median(&mut [])), (None, None));
    }

    #[test]
    fn every_way_to_ask_gives_the_same_number() {
        for num in [1, 2, 3, 10, 99, 100, 101, 1000] {
            let values: Vec<f64> = (0..num).map(|index| f64::from(index * 7919 % 1009).sqrt()).collect();
            let (mut sorted, distribution) = (values.clone(), Distribution::of(values.clone()));
            let spread = Spread::of(&mut sorted);
            for (percent, of_spread) in
                [(50.0, spread.p50), (90.0, spread.p90), (99.0, spread.p99), (100.0, spread.max)]
            {
                assert_eq!(Some(of_spread), percentile(&sorted, percent), "{num} values, {percent} %");
                assert_eq!(of_spread, distribution.percentile(percent));
            }
            assert_eq!(median(&mut values.clone()), Some(spread.p50));
            assert!((spread.mean - distribution.mean()).abs() < 1e-9);
        }
    }

    #[test]
    fn the_deviation_is_that_of_the_samples() {
        assert_eq!(Distribution::of(vec![2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).std(), 2.0);
        assert_eq!((Distribution::default().std(), Distribution::default().percentile(99.0)), (0.0, 0.0));
    }
}
