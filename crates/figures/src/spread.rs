//! Percentiles, by one definition: linear interpolation between the two nearest ranks.
//!
//! ```text
//! sorted     x0       x1       x2       x3       x4           n values, place = p / 100 * (n - 1)
//! percent     0       25       50       75      100
//!                              ^ p = 50      ^ p = 90: place 3.6, x3 + 0.6 (x4 - x3)
//! ```
//!
//! It is numpy's default, and so that of `vllm bench serve` and aiperf: whoever compares figures with theirs compares
//! the same thing (Hyndman & Fan, 1996, call it type 7). It has two properties that a rank without interpolation lacks:
//! the median of two values is their middle, and a figure moves a little when a value does. With few values a high
//! percentile lies below the largest one: p99 says something of a hundred values and more. guidellm's percentiles are
//! values that occurred, so its p99 may be one gap away.

/// The value `percent` of the way through `sorted`, which rises; `None` of nothing. `percent` is from 0 to 100.
pub fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    percentile_of(sorted.len() as u64, percent, |rank| sorted[rank as usize])
}

/// The same of `num` values that are not in a slice: `at(rank)` is the value with so many below it, or as good as it is
/// known.
pub fn percentile_of(num: u64, percent: f64, mut at: impl FnMut(u64) -> f64) -> Option<f64> {
    let last = num.checked_sub(1)?;
    let place = last as f64 * (percent / 100.0).clamp(0.0, 1.0);
    let rank = (place as u64).min(last);
    let below = at(rank);
    Some(match place - rank as f64 {
        0.0 => below, // there may be no rank above, and what is infinite must not become nothing
        share => below + (at(rank + 1) - below) * share,
    })
}

/// The median; sorts `values`. `None` of nothing.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    percentile(values, 50.0)
}

/// A distribution in five numbers, in the unit of its values; all are 0 of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90 % of the way from the least to the largest, by rank.
    pub p90: f64,
    /// 99 % of the way.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of any values, exactly; sorts them.
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
    /// Of any values.
    pub fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        Distribution(values)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
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

    /// [`percentile`] of the samples; 0 without any.
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
