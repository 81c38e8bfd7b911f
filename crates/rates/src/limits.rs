//! What a machine can do, by all that earlier starts have measured: samples, and no conclusion of them.
//!
//! ```text
//! a start ──the samples of each rate that count──> NAME.limits: the newest of all starts, with their times
//!                                                      └─> each rate is the best that enough others are near to
//! ```
//! Whatever disturbs a measurement lowers it. A machine on which few samples count is known after some starts, and one that
//! became slower once its faster samples are too old.

use std::io;
use std::path::Path;
use std::time::Duration;

use kernels::limits::{Certainty, FEW, Limits, STEADY};
use serde::{Deserialize, Serialize};

use crate::kept;

/// Rates of limits, in the order of their certainties.
const RATES: usize = 5;
/// Samples of each that are kept: of eight starts.
const MOST_KEPT: usize = 40;
/// Rates that a machine may have, of bytes and operations per second.
const SANE_RATES: std::ops::Range<f64> = 1e3..1e20;
/// So long is what was measured well taken without measuring again: a virtual machine's limits change while it runs.
const RECENT: Duration = Duration::from_secs(3600);

/// One that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct RateSample {
    rate: f64,
    unix_s: u64,
}

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLimits {
    /// Of memory, cache, int8, bf16 and f32, the newest last.
    samples: [Vec<RateSample>; RATES],
    cache_bytes: usize,
    /// int8, bf16.
    fastest: [f64; 2],
    /// The instructions of int8, bf16, and of the fastest of both.
    kinds: [String; 4],
}

impl MeasuredLimits {
    /// What is kept at `path` for `key`: nothing is known where there is anything but a whole one.
    pub fn read(path: &Path, key: &str) -> MeasuredLimits {
        kept::read(path, key).filter(MeasuredLimits::is_sane).unwrap_or_default()
    }

    /// Keeps it. Complete or absent, also when the process ends meanwhile.
    pub fn write(&self, path: &Path, key: &str) -> io::Result<()> {
        kept::write(path, key, self)
    }

    fn is_sane(&self) -> bool {
        let rates = self.samples.iter().flatten().map(|sample| &sample.rate).chain(&self.fastest);
        self.samples.iter().all(|samples| samples.len() <= MOST_KEPT)
            && rates.into_iter().all(|rate| SANE_RATES.contains(rate))
    }

    /// Takes in what was measured now, and says what the limits are: what was measured now is all there is where no sample
    /// counts.
    pub fn add(&mut self, now: &Limits, unix_s: u64) -> Limits {
        self.cache_bytes = now.cache_bytes;
        self.fastest = [now.fastest_int8_ops, now.fastest_bf16_flops];
        self.kinds = [now.int8_kind, now.bf16_kind, now.fastest_int8_kind, now.fastest_bf16_kind].map(str::to_owned);
        for (samples, certainty) in self.samples.iter_mut().zip(&now.certainty) {
            samples
                .extend(certainty.best.into_iter().filter(|&rate| rate > 0.0).map(|rate| RateSample { rate, unix_s }));
            samples.drain(..samples.len().saturating_sub(MOST_KEPT));
        }
        self.over(*now)
    }

    /// The limits, if each of them is sure.
    pub fn limits(&self) -> Option<Limits> {
        let [int8_kind, bf16_kind, fastest_int8_kind, fastest_bf16_kind] =
            self.kinds.each_ref().map(|kind| kernels::limits::kind(kind));
        let [fastest_int8_ops, fastest_bf16_flops] = self.fastest;
        let limits = self.over(Limits {
            cache_bytes: self.cache_bytes,
            int8_kind: int8_kind?,
            bf16_kind: bf16_kind?,
            fastest_int8_ops,
            fastest_int8_kind: fastest_int8_kind?,
            fastest_bf16_flops,
            fastest_bf16_kind: fastest_bf16_kind?,
            ..Limits::of_rate(0.0, &[])
        });
        limits.doubt().is_none().then_some(limits)
    }

    /// Whether all of them stand for what would be measured now. A time to come is that of a clock that was set.
    pub fn is_recent(&self, unix_s: u64) -> bool {
        let is_recent =
            |sample: &RateSample| unix_s.checked_sub(sample.unix_s).is_some_and(|age| age < RECENT.as_secs());
        self.samples.iter().all(|samples| samples.last().is_some_and(is_recent))
    }

    /// These limits, with the best sample of each rate that has any.
    fn over(&self, mut limits: Limits) -> Limits {
        let Limits { read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops, certainty, .. } = &mut limits;
        let rates = [read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops];
        for ((rate, certainty), samples) in rates.into_iter().zip(certainty).zip(&self.samples) {
            let known = supported(samples.iter().map(|sample| sample.rate).collect());
            if let Some(best) = known.first() {
                (*rate, *certainty) = (*best, Certainty::of_rates(&known));
            }
        }
        limits.cache_bandwidth = limits.cache_bandwidth.max(limits.read_bandwidth);
        limits.fastest_int8_ops = limits.fastest_int8_ops.max(limits.int8_ops);
        limits.fastest_bf16_flops = limits.fastest_bf16_flops.max(limits.bf16_flops);
        limits
    }
}

/// The best of these rates that enough others are near to, and those; where none is, all of them, the best first.
fn supported(mut rates: Vec<f64>) -> Vec<f64> {
    rates.sort_unstable_by(|a, b| b.total_cmp(a));
    let is_near = |rate: f64, best: f64| rate >= best * (1.0 - STEADY);
    if let Some(at) = rates.windows(FEW).position(|some| is_near(some[FEW - 1], some[0])) {
        let best = rates[at];
        rates.drain(..at);
        rates.retain(|&rate| is_near(rate, best));
    }
    rates
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const NONE: &[f64] = &[];

    #[test]
    fn the_best_of_what_counts_is_the_limit_and_what_counts_adds_up_over_starts() {
        let mut measured = MeasuredLimits::default();
        // What was measured, the samples of it that count, and the limit and whether it is sure.
        let table = [
            ((3e9, NONE), (3e9, false)),          // nothing else is known
            ((20e9, &[20e9][..]), (20e9, false)), // takes the place of what was bad, and is one sample
            ((2e9, NONE), (20e9, false)),         // a busy start changes nothing
            ((500e9, NONE), (20e9, false)),       // not even upwards
            ((19.5e9, &[19.5e9]), (20e9, false)),
            ((21e9, &[21e9, 20.5e9]), (21e9, true)),
            ((20e9, &[20e9; 5]), (21e9, true)),
            ((30e9, &[30e9]), (21e9, true)), // one that far above all others is no proof
        ];
        for ((rate, counted), (limit, sure)) in table {
            let limits = measured.add(&Limits::of_rate(rate, counted), 0);
            assert_eq!((limits.bf16_flops, limits.doubt().is_none()), (limit, sure), "{rate} {counted:?}");
            assert_eq!(measured.limits().map(|limits| limits.read_bandwidth), sure.then_some(limit));
        }
        // A machine that became slower is found to be, after some starts.
        let limits: Vec<f64> = (0..8).map(|_| measured.add(&Limits::of_rate(10e9, &[10e9; 5]), 0).bf16_flops).collect();
        assert_eq!((limits[0], limits[7]), (21e9, 10e9));
        // One rate may be sure where another is not.
        let mut half = Limits::of_rate(30e9, &[30e9; 5]);
        half.certainty[0] = Certainty::of_rates(&[]);
        let limits = measured.add(&half, 0);
        assert_eq!((limits.read_bandwidth, limits.bf16_flops), (10e9, 30e9));
    }

    #[test]
    fn what_was_measured_well_within_an_hour_is_not_measured_again() {
        let mut measured = MeasuredLimits::default();
        measured.add(&Limits::of_rate(3e9, NONE), 10_000);
        assert!(!measured.is_recent(10_000), "no sample counts");
        measured.add(&Limits::of_rate(4e10, &[4e10; 5]), 10_000);
        measured.add(&Limits::of_rate(3e9, NONE), 13_000); // which makes it no younger
        // When it is asked for, and whether it is recent: a clock may have been set back.
        for (unix_s, is_recent) in [(9_999, false), (10_000, true), (13_599, true), (13_600, false)] {
            assert_eq!(measured.is_recent(unix_s), is_recent, "{unix_s}");
        }
    }

    #[test]
    fn a_file_is_taken_whole_and_for_its_key_or_not_at_all() {
        let directory = testing::Scratch::new("limits");
        let path = directory.join("x.limits");
        let read = |key| MeasuredLimits::read(&path, key);
        assert_eq!(read("key"), MeasuredLimits::default());
        let mut measured = MeasuredLimits::default();
        measured.add(&Limits::of_rate(4e10, &[4e10, 3.9e10, 3.9e10]), 7);
        measured.write(&path, "key").expect("it can be written");
        assert_eq!((read("key"), read("other")), (measured, MeasuredLimits::default()));
        let good: Value = kept::read(&path, "key").expect("it is whole");
        for bad in ["-1.0", "1e300", "null", "4e2"] {
            let mut value = good.clone();
            value["samples"][2][0]["rate"] = serde_json::from_str(bad).expect("it is JSON");
            kept::write(&path, "key", value).expect("it can be written");
            assert_eq!(read("key"), MeasuredLimits::default(), "{bad}");
        }
    }
}
