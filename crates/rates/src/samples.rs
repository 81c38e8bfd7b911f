//! What was measured of the steps of a model, as a start keeps it for the next one: samples, and no conclusion of them.
//!
//! ```text
//! NAME.cost   what it follows from, samples [(shape, wall, ran)], drift
//!    |          a sample counts if the threads had their cores: they ran for at least 98 % of it
//!    |  fit     CostModel::fit over all of them, where one in ten at most does not count: "not sure" otherwise
//!    v
//! CostModel   with the drift: how much slower steps have been since
//! ```
//! What does not count is measured again at the next start, and what counts is not: a machine that is always busy is known
//! after some starts.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use kernels::Doubt;
use kernels::cpu_time::Interval;
use protocol::Nanos;
use scheduler::{CostModel, Work};
use serde::{Deserialize, Serialize};

use crate::kept;

/// One sample in this many may have been disturbed: the fit gives it little weight.
const DISTURBED_SHARE: usize = 10;
/// Context of a decode row with negligible attention.
pub(crate) const SHORT: usize = 64;
/// What steps may take, of what was measured.
const SANE_DRIFT: RangeInclusive<f64> = 1.0 / 64.0..=64.0;
/// Samples of a file, their decode rows, rows of a chunk and tokens, and their nanoseconds: none is larger.
const MOST_SAMPLES: usize = 256;
const MOST_DECODE: usize = 1 << 16;
const MOST_TOKENS: usize = 1 << 24;
const SANE_NANOS: RangeInclusive<u64> = 1..=1 << 50;

/// A step to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Decode rows, each with `context` keys.
    pub(crate) decode: usize,
    pub(crate) context: usize,
    /// Rows of a prompt's chunk, and computed tokens before it.
    pub(crate) chunk: usize,
    pub(crate) start: usize,
    /// The chunk's last row wants logits.
    pub(crate) ends: bool,
}

impl Shape {
    pub(crate) fn rows(&self) -> usize {
        self.decode + self.chunk
    }

    /// Blocks of the cache, when no two sequences share one.
    pub(crate) fn blocks(&self, block_size: usize) -> usize {
        self.decode * self.context.div_ceil(block_size) + (self.start + self.chunk).div_ceil(block_size)
    }

    pub(crate) fn work(&self) -> Work {
        let mut work = Work::default();
        (0..self.decode).for_each(|_| work.add_decode(self.context));
        if self.chunk > 0 {
            work.add_chunk(self.start, self.chunk, self.ends);
        }
        work
    }
}

/// What a step of a shape took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    #[serde(flatten)]
    pub(crate) shape: Shape,
    wall_ns: u64,
    /// How long the thread ran that ran the least.
    ran_ns: u64,
}

impl Sample {
    pub(crate) fn new(shape: Shape, Interval { wall, cpu, .. }: Interval) -> Sample {
        let [wall_ns, ran_ns] = [wall, cpu].map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Sample { shape, wall_ns, ran_ns }
    }

    pub(crate) fn wall(&self) -> Duration {
        Duration::from_nanos(self.wall_ns)
    }

    pub(crate) fn counts(&self) -> bool {
        !Interval { wall: self.wall(), cpu: Duration::from_nanos(self.ran_ns), switches: 0 }.is_disturbed()
    }

    fn is_sane(&self) -> bool {
        let Shape { decode, context, chunk, start, .. } = self.shape;
        let is_small = decode <= MOST_DECODE && [context, chunk, start].iter().all(|&tokens| tokens <= MOST_TOKENS);
        is_small && self.shape.rows() > 0 && SANE_NANOS.contains(&self.wall_ns)
    }
}

/// What is known of the steps of a model here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSamples {
    samples: Vec<Sample>,
    /// By how much steps were slower since: decode alone, and what prompts add. `None`: as measured.
    drift: Option<[f64; 2]>,
}

impl StepSamples {
    pub(crate) fn new(samples: Vec<Sample>) -> StepSamples {
        StepSamples { samples, drift: None }
    }

    /// What was measured of this shape and counts; `None` once steps have been otherwise: it was another machine.
    pub(crate) fn counted(&self, shape: &Shape) -> Option<Sample> {
        let counted = |sample: &&Sample| sample.shape == *shape && sample.counts();
        self.samples.iter().filter(|_| self.drift.is_none()).find(counted).copied()
    }

    /// Whether steps were other than was measured.
    pub fn has_drifted(&self) -> bool {
        self.drift.is_some()
    }

    /// The model that follows. `None`: there are too few samples. Cost: some milliseconds.
    pub fn fit(&self) -> Option<CostModel> {
        // The points of the curve: rows of the steps that hardly have attention.
        let plain = self.samples.iter().map(|sample| sample.shape).filter(|of| of.start == 0 && of.context <= SHORT);
        let knots: Vec<usize> = plain.map(|shape| shape.rows()).collect::<BTreeSet<_>>().into_iter().collect();
        let steps: Vec<_> = self.samples.iter().map(|sample| (sample.shape.work(), Nanos(sample.wall_ns))).collect();
        Some(CostModel::fit(&knots, &steps)?.drifted(self.drift.unwrap_or([1.0; 2])))
    }

    /// Why it is not sure; `None`: it is.
    pub fn doubt(&self) -> Option<Doubt> {
        let (samples, undisturbed) = (self.samples.len(), self.samples.iter().filter(|sample| sample.counts()).count());
        ((samples - undisturbed) * DISTURBED_SHARE > samples).then_some(Doubt::Few { samples, undisturbed })
    }

    /// The same samples, of steps that were since slower by this; none of them counts any more if they `were_bad`.
    pub(crate) fn corrected(&self, drift: [f64; 2], were_bad: bool) -> StepSamples {
        let mut samples = self.samples.clone();
        samples.iter_mut().filter(|_| were_bad).for_each(|sample| sample.ran_ns = 0);
        StepSamples { samples, drift: Some(drift) }
    }

    /// What is kept at `path` for `key`; `None` for anything but a whole one that a start has written.
    pub fn read(path: &Path, key: &str) -> Option<StepSamples> {
        kept::read(path, key).filter(StepSamples::is_sane)
    }

    /// Keeps them. Complete or absent, also when the process ends meanwhile.
    pub fn write(&self, path: &Path, key: &str) -> io::Result<()> {
        kept::write(path, key, self)
    }

    fn is_sane(&self) -> bool {
        let has_sane_drift = self.drift.iter().flatten().all(|drift| SANE_DRIFT.contains(drift));
        has_sane_drift && self.samples.len() <= MOST_SAMPLES && self.samples.iter().all(Sample::is_sane)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sample(chunk: usize, micros: u64, counts: bool) -> Sample {
        let wall = Duration::from_micros(micros);
        let cpu = wall.mul_f64(if counts { 0.99 } else { 0.97 });
        Sample::new(Shape { chunk, ..Shape::default() }, Interval { wall, cpu, switches: 0 })
    }

    #[test]
    fn what_counts_is_measured_once_and_one_in_ten_may_not_count() {
        // Samples, and how many of them do not count.
        for (samples, bad, is_sure) in [(10, 0, true), (10, 1, true), (10, 2, false), (1, 1, false)] {
            let of = |at: usize| sample(1 << at, 10 << at, at >= bad);
            let known = StepSamples::new((0..samples).map(of).collect());
            assert_eq!(known.doubt().is_none(), is_sure, "{bad} of {samples}");
            let counted = (0..samples).filter(|at| known.counted(&of(*at).shape).is_some()).count();
            assert_eq!(counted, samples - bad);
            // Once steps were otherwise, all are measured again where any is.
            assert_eq!(known.corrected([0.7, 1.0], false).counted(&of(samples - 1).shape), None);
            assert!(
                known.corrected([0.7, 1.0], true).doubt().is_some(),
                "and what was so far off is no proof of anything"
            );
        }
    }

    #[test]
    fn a_file_is_taken_whole_and_for_its_key_or_not_at_all() {
        let directory = testing::Scratch::new("samples");
        let path = directory.join("x.cost");
        let known = StepSamples::new(vec![sample(1, 100, true), sample(64, 500, false), sample(512, 3000, true)]);
        let known = known.corrected([0.5, 2.0], false);
        known.write(&path, "key").expect("it can be written");
        let read = |key| StepSamples::read(&path, key);
        assert_eq!((read("key"), read("other")), (Some(known.clone()), None));
        let mut work = Work::default();
        work.add_chunk(0, 64, false);
        let seconds = known.fit().expect("it has samples").seconds(&work);
        assert!((seconds / 1e-3 - 1.0).abs() < 0.01, "twice as slow as measured: {seconds}");
        let good: Value = kept::read(&path, "key").expect("it is whole");
        for (place, bad) in [
            ("/samples/1/wall_ns", json!(0)),
            ("/samples/1/wall_ns", json!(1e300)),
            ("/samples/1/chunk", json!(0)),
            ("/samples/1/chunk", json!(1_u64 << 40)),
            ("/samples/1/decode", json!(-1)),
            ("/samples/1/ends", json!(1)),
            ("/samples/1", json!([])),
            ("/samples", json!(vec![good["samples"][0].clone(); 300])),
            ("/drift/0", json!(0)),
            ("/drift", json!([1])),
        ] {
            let mut value = good.clone();
            *value.pointer_mut(place).expect("it is there") = bad.clone();
            kept::write(&path, "key", value).expect("it can be written");
            assert_eq!(read("key"), None, "{place} {bad}");
        }
    }
}
