//! The limits of the machine, which steps can only raise: what was reached is possible, whatever was measured at the
//! start.

use kernels::{DeviceLimits, WeightClass};
use roofline::{Demands, PassWork, Peaks};
use scheduler::{RecordRow, StepRecord};

/// Limits as they were measured, and what steps have shown since.
#[derive(Debug)]
pub struct RooflinePeaks {
    demands: Demands,
    limits: DeviceLimits,
    /// Those of the limits that hold for this model, raised.
    peaks: Peaks,
}

impl RooflinePeaks {
    /// Of passes that ask `demands`, where `limits` were measured.
    pub fn new(demands: Demands, limits: DeviceLimits) -> RooflinePeaks {
        let peaks = Peaks::of(&limits, &demands);
        RooflinePeaks { demands, limits, peaks }
    }

    /// Takes in a step. Cost: some operations for each row.
    pub fn step(&mut self, record: &StepRecord) {
        let work = self.demands.step(
            record.decode.iter().map(RecordRow::span),
            record.prefill.iter().map(RecordRow::span),
            record.logit_rows().iter().sum(),
        );
        self.raise(&work, record.took().as_secs_f64());
    }

    fn raise(&mut self, work: &PassWork, seconds: f64) {
        self.peaks = self.peaks.raised_by(work, seconds);
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
    use kernels::{Certainty, KvDtype};
    use roofline::{LimitShares, ModelShape};

    use super::*;

    fn limits(rate: f64) -> DeviceLimits {
        DeviceLimits {
            read_bandwidth: rate,
            cache_bandwidth: rate,
            cache_bytes: 0,
            int8_ops: rate,
            bf16_flops: rate,
            f32_flops: rate,
            int8_kind: "test",
            bf16_kind: "test",
            fastest_int8_ops: rate,
            fastest_int8_kind: "test",
            fastest_bf16_flops: rate,
            fastest_bf16_kind: "test",
            certainty: [Certainty::kept(); 5],
        }
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
}
