//! The limits of the machine, which steps can only raise: what was reached is possible, whatever was measured at the
//! start. The time on the clock proves that; a step's own time, which is an estimate, is held against the limits.
//!
//! ```text
//! step --took--> raises the peaks, with a line in the log
//!      --stolen, predicted--> no time of its own below the floor: what the work needs was not taken
//! ```

use kernels::{DeviceLimits, WeightClass};
use protocol::Nanos;
use roofline::{Demands, PassWork, Peaks};
use scheduler::{RecordRow, StealTime, StepRecord};

/// Limits as they were measured, and what steps have shown since.
#[derive(Debug)]
pub struct RooflinePeaks {
    demands: Demands,
    limits: DeviceLimits,
    /// Those of the limits that hold for this model, raised.
    peaks: Peaks,
    /// What the log was told last.
    told: Peaks,
}

/// The log is told of a peak that rose by so much since.
const WORTH_A_LINE: f64 = 1.1;

impl RooflinePeaks {
    /// Of passes that ask `demands`, where `limits` were measured.
    pub fn new(demands: Demands, limits: DeviceLimits) -> RooflinePeaks {
        let peaks = Peaks::of(&limits, &demands);
        RooflinePeaks { demands, limits, peaks, told: peaks }
    }

    /// Takes in a step, and holds what was predicted of it against the peaks. Cost: some operations for each row.
    pub fn step(&mut self, record: &mut StepRecord) {
        let work = self.work(record);
        self.raise(&work, record.took().as_secs_f64());
        if record.predicted > Nanos(0) {
            record.predicted = record.predicted.max(self.floor(&work));
        }
    }

    /// What the machine can have taken of a step, of which it is said to have taken `stolen`: the interval of that ends
    /// where the work would take less than it can.
    pub fn at_most_stolen(&self, record: &StepRecord, took: Nanos, stolen: StealTime) -> StealTime {
        if stolen.during > Nanos(0) { self.at_most(&self.work(record), took, stolen) } else { stolen }
    }

    fn at_most(&self, work: &PassWork, took: Nanos, stolen: StealTime) -> StealTime {
        let StealTime { during, uncertain, .. } = stolen;
        let most = took.since(self.floor(work)).min(Nanos(during.0 + uncertain.0));
        let least = during.since(uncertain).min(most);
        let uncertain = Nanos(most.since(least).0 / 2);
        StealTime { during: Nanos(least.0 + uncertain.0), uncertain, ..stolen }
    }

    /// What computing the first `tokens` of a prompt takes at least.
    pub fn least_for(&self, tokens: usize) -> Nanos {
        self.floor(&self.demands.prefill(0, tokens, tokens.max(1)))
    }

    fn work(&self, record: &StepRecord) -> PassWork {
        self.demands.step(
            record.decode.iter().map(RecordRow::span),
            record.prefill.iter().map(RecordRow::span),
            record.logit_rows().iter().sum(),
        )
    }

    fn floor(&self, work: &PassWork) -> Nanos {
        Nanos((self.peaks.floor_seconds(work) * 1e9).ceil() as u64)
    }

    fn raise(&mut self, work: &PassWork, seconds: f64) {
        self.peaks = self.peaks.raised_by(work, seconds);
        let Peaks { matrix, bandwidth, .. } = self.peaks;
        if matrix > self.told.matrix * WORTH_A_LINE || bandwidth > self.told.bandwidth * WORTH_A_LINE {
            let (gflops, gb_s, step_ms) = (matrix / 1e9, bandwidth / 1e9, seconds * 1e3);
            tracing::info!(gflops, gb_s, step_ms, "a step was faster than the limits of the machine: they are raised");
            self.told = self.peaks;
        }
    }

    /// The limits of now: at least what any step has reached.
    pub fn limits(&self) -> DeviceLimits {
        let (mut limits, peaks) = (self.limits, self.peaks);
        match self.demands.weights {
            WeightClass::Bf16 => limits.bf16_flops = peaks.matrix,
            WeightClass::Int8 | WeightClass::Int4 => limits.int8_ops = peaks.matrix,
        }
        match limits.holds(self.demands.weight_bytes) {
            true => limits.cache_bandwidth = peaks.bandwidth,
            false => limits.read_bandwidth = peaks.bandwidth,
        }
        limits.fastest_bf16_flops = limits.fastest_bf16_flops.max(limits.bf16_flops);
        limits.fastest_int8_ops = limits.fastest_int8_ops.max(limits.int8_ops);
        limits
    }
}

#[cfg(test)]
mod tests {
    use kernels::KvDtype;
    use roofline::{LimitShares, ModelShape};

    use super::*;

    fn limits(rate: f64) -> DeviceLimits {
        DeviceLimits::of_rate(rate, &[1.0; 5])
    }

    #[test]
    fn no_step_is_above_the_limits() {
        let (_, shape) = ModelShape::known().next().expect("there are known models");
        for (weights, kv_dtype) in [(WeightClass::Bf16, KvDtype::Bf16), (WeightClass::Int4, KvDtype::Int8)] {
            let demands = shape.demands(weights, kv_dtype);
            // A busy start has measured a thousandth of what there is.
            let mut peaks = RooflinePeaks::new(demands.clone(), limits(1e9));
            // Decode rows, rows of a prompt, seconds.
            for (decode, chunk, seconds) in [(1, 0, 0.05), (0, 512, 0.9), (3, 64, 0.12), (1, 0, 0.0)] {
                let prompt = (chunk > 0).then_some((0, chunk));
                let work = demands.step(std::iter::repeat_n((100, 1), decode), prompt.into_iter(), decode);
                peaks.raise(&work, seconds);
                let shares = LimitShares::of(&work, seconds, &peaks.limits(), &demands);
                assert!(shares.of_limit() <= 1.0 + 1e-9, "{decode} {chunk} {seconds}: {shares:?}");
            }
            let raised = peaks.limits();
            assert!(raised.read_bandwidth > 1e9 && raised.read_bandwidth.is_finite());
            // Slow steps lower nothing.
            peaks.raise(&demands.step(std::iter::once((100, 1)), std::iter::empty(), 1), 5.0);
            assert_eq!(peaks.limits().read_bandwidth, raised.read_bandwidth);
        }
    }

    #[test]
    fn nobody_takes_and_nothing_predicts_what_the_work_itself_needs() {
        let (_, shape) = ModelShape::known().next().expect("there are known models");
        let demands = shape.demands(WeightClass::Bf16, KvDtype::Bf16);
        let peaks = RooflinePeaks::new(demands.clone(), limits(1e12));
        let work = demands.step(std::iter::once((100, 1)), std::iter::empty(), 1);
        let floor = peaks.floor(&work);
        assert!(floor > Nanos(1_000_000), "{floor:?}");
        // In floors: what it took, what is said to be stolen of it and how uncertain that is, what can be.
        for (took, said, stolen) in [
            (3, [1, 0], [1, 0]),
            (3, [2, 0], [2, 0]),
            (3, [3, 0], [2, 0]),
            (1, [1, 0], [0, 0]),
            (0, [0, 0], [0, 0]),
            (2, [9, 0], [1, 0]),
            (9, [4, 2], [4, 2]),
            (5, [4, 4], [2, 2]),
            (5, [6, 1], [4, 0]),
        ] {
            let stolen_of = |[during, uncertain]: [u64; 2]| {
                let [during, uncertain] = [during, uncertain].map(|floors| Nanos(floors * floor.0));
                StealTime { during, uncertain, ..StealTime::default() }
            };
            let found = peaks.at_most(&work, Nanos(took * floor.0), stolen_of(said));
            assert_eq!(found, stolen_of(stolen), "{took} {said:?}");
        }
        assert!(peaks.least_for(2000) > peaks.least_for(1000) && peaks.least_for(1000) > floor);
    }
}
