//! Aggregation for a report: distributions of many values, and time series of unknown length.

use figures::Spread;
use protocol::Nanos;

/// Bits of a bucket's mantissa: a bucket is at most 1/128 wide, relative.
const MANTISSA: u32 = 7;

/// A histogram of durations with logarithmic buckets: any number of values in constant memory, to within 0.8 %.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    num: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, value: Nanos) {
        let bucket = bucket_of(value.0);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.num += 1;
        self.sum += u128::from(value.0);
        self.max = self.max.max(value.0);
    }

    /// In seconds.
    pub(crate) fn spread(&self) -> Spread {
        let at = |percent| figures::percentile_of(self.num, percent, |rank| self.value(rank) / 1e9).unwrap_or_default();
        Spread {
            mean: self.sum as f64 / self.num.max(1) as f64 / 1e9,
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            max: self.max as f64 / 1e9,
        }
    }

    /// The value of rank `rank` in nanoseconds; it must exist.
    fn value(&self, rank: u64) -> f64 {
        let mut seen = 0;
        let bucket = self.counts.iter().position(|&count| {
            seen += count;
            seen > rank
        });
        middle_of(bucket.expect("a rank is below the number of values")).min(self.max as f64)
    }
}

fn bucket_of(value: u64) -> usize {
    let exponent = (63 - (value | 1).leading_zeros()).saturating_sub(MANTISSA);
    (exponent << MANTISSA) as usize + (value >> exponent) as usize
}

fn middle_of(bucket: usize) -> f64 {
    let exponent = (bucket >> MANTISSA).saturating_sub(1);
    let low = (bucket - (exponent << MANTISSA)) as u64;
    let width = 1_u64 << exponent;
    (low * width) as f64 + (width - 1) as f64 / 2.0
}

/// A time series in at most [`Series::BUCKETS`] buckets: when they are full, each doubles its width.
#[derive(Clone, Debug)]
pub(crate) struct Series<const N: usize> {
    width: u64,
    /// Sum of value times nanoseconds.
    buckets: Vec<[f64; N]>,
}

impl<const N: usize> Series<N> {
    const BUCKETS: usize = 512;

    pub(crate) fn new() -> Series<N> {
        Series { width: 1_000_000, buckets: Vec::new() }
    }

    /// The quantities were `values` from `from` to `to`.
    pub(crate) fn add(&mut self, from: Nanos, to: Nanos, values: [f64; N]) {
        while to.0 >= self.width * Self::BUCKETS as u64 {
            self.width *= 2;
            let pairs = self.buckets.chunks(2);
            self.buckets = pairs.map(|pair| std::array::from_fn(|i| pair.iter().map(|b| b[i]).sum())).collect();
        }
        let (mut at, end) = (from.0, to.0);
        while at < end {
            let bucket = (at / self.width) as usize;
            let until = ((bucket as u64 + 1) * self.width).min(end);
            if bucket >= self.buckets.len() {
                self.buckets.resize(bucket + 1, [0.0; N]);
            }
            for (sum, value) in self.buckets[bucket].iter_mut().zip(values) {
                *sum += value * (until - at) as f64;
            }
            at = until;
        }
    }

    /// Middle of each bucket in seconds, and the means over it.
    pub(crate) fn points(&self) -> Vec<(f64, [f64; N])> {
        let width = self.width as f64;
        let buckets = self.buckets.iter().enumerate();
        buckets.map(|(index, sums)| ((index as f64 + 0.5) * width / 1e9, sums.map(|sum| sum / width))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_less_than_a_percent_wide() {
        let mut last = 0;
        for exponent in 0..60 {
            for value in [1_u64 << exponent, (1 << exponent) + (1 << exponent) / 3] {
                let bucket = bucket_of(value);
                assert!(bucket >= last, "{value}");
                last = bucket;
                let error = (middle_of(bucket) - value as f64).abs() / value as f64;
                assert!(error < 0.005, "{value}: {}", middle_of(bucket));
            }
        }
    }

    #[test]
    fn percentiles_of_a_known_set() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|ms| histogram.add(Nanos(ms * 1_000_000)));
        let spread = histogram.spread();
        for (got, want) in [(spread.p50, 0.5), (spread.p90, 0.9), (spread.p99, 0.99), (spread.max, 1.0)] {
            assert!((got / want - 1.0).abs() < 0.005, "{got} {want}");
        }
        assert_eq!(spread.mean, 0.5005);
    }

    #[test]
    fn a_series_keeps_the_mean_however_long_it_becomes() {
        let mut series = Series::<1>::new();
        let second = 1_000_000_000;
        for index in 0..10_000 {
            series.add(Nanos(index * second), Nanos((index + 1) * second), [if index < 5000 { 2.0 } else { 4.0 }]);
        }
        let points = series.points();
        assert!(points.len() <= Series::<1>::BUCKETS && points.len() > Series::<1>::BUCKETS / 4, "{}", points.len());
        assert_eq!((points[0].1[0], points[points.len() - 2].1[0]), (2.0, 4.0));
    }
}
