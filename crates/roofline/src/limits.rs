//! A machine's peaks, and the share of them that a pass reached: the only place where a rate becomes a share of a
//! limit.
//!
//! ```text
//! compute time = matrix operations / peak of the weight class + attention operations / peak of the KV type
//! memory time  = (weights * passes + keys and values read) / read bandwidth
//! % of limit   = the longer of the two / measured time          bound by = the longer one
//! ```
//! It is also the guard of every figure: nothing takes less than [`Peaks::floor_seconds`], and a share that is all of a
//! limit is not known ([`LimitShares::known`]), because the time was cut at the floor or other programs bent it.
//!
//! This is the roofline (Williams et al., 2009) of the work: a long prompt is compared with the matrix peak, a decode
//! step with the bandwidth.

use std::fmt;

use kernels::limits::Limits;
use kernels::{KvDtype, WeightClass};

use crate::demands::{Demands, PassWork};

/// What stands where a figure would exceed a limit.
pub const NOT_KNOWN: &str = "not known (machine busy)";

/// Peak rates of a machine for one weight class and precision of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Operations per second in matrices.
    pub matrix: f64,
    /// Operations per second in attention.
    pub attention: f64,
    /// Bytes per second read from the memory or cache that holds the weights.
    pub bandwidth: f64,
}

impl Peaks {
    /// The measured limits for this model: for its precisions, and for reading from memory, or from the last-level
    /// cache if its weights fit there.
    pub fn of(limits: &Limits, demands: &Demands) -> Peaks {
        let attention = match demands.kv_dtype {
            KvDtype::Bf16 => limits.bf16_flops,
            KvDtype::Int8 => limits.int8_ops,
        };
        let bandwidth = limits.bandwidth_for(demands.weight_bytes);
        Peaks { matrix: peak(limits, demands.weights), attention, bandwidth }
    }

    /// Peaks raised to the rates of a measured step, if these are higher: `work` took `seconds`. If arithmetic exceeded
    /// its limit, matrix and attention peaks rise together, because their times are not known apart.
    pub fn raised_by(&self, work: &PassWork, seconds: f64) -> Peaks {
        let LimitShares { compute, memory } = LimitShares::within(work, seconds, self);
        let (compute, memory) = (compute.max(1.0), memory.max(1.0));
        Peaks { matrix: self.matrix * compute, attention: self.attention * compute, bandwidth: self.bandwidth * memory }
    }

    /// Seconds of the arithmetic at the peaks.
    pub fn compute_seconds(&self, work: &PassWork) -> f64 {
        work.matrix_flops / self.matrix + work.attention_flops / self.attention
    }

    /// Seconds of reading at full bandwidth.
    pub fn memory_seconds(&self, work: &PassWork) -> f64 {
        work.bytes / self.bandwidth
    }

    /// The roofline that this work is closer to.
    pub fn roofline(&self, work: &PassWork) -> Bound {
        if self.compute_seconds(work) > self.memory_seconds(work) { Bound::Compute } else { Bound::Memory }
    }

    /// Lower bound of the work's time: the longer of the two, as if they overlapped completely. No time of anything that is
    /// measured, predicted or saved is below it.
    pub fn floor_seconds(&self, work: &PassWork) -> f64 {
        self.compute_seconds(work).max(self.memory_seconds(work))
    }
}

/// What limits the speed of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading weights, keys and values.
    Memory,
    /// Arithmetic.
    Compute,
    /// Neither: time between the passes and within them that is neither arithmetic nor reading.
    Overhead,
}

impl Bound {
    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
            Bound::Overhead => "overhead",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Shares of the limits reached by work in a measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitShares {
    /// Share of the compute peaks.
    pub compute: f64,
    /// Share of the read bandwidth.
    pub memory: f64,
}

impl LimitShares {
    /// Below this share of both limits, a phase is bound by overhead.
    const OVERHEAD: f64 = 0.1;
    /// A whole limit, up to what rounding to nanoseconds does.
    const ALL: f64 = 1.0 - 1e-5;

    /// Shares of both limits that `work` reached in `seconds`; zeros for no time.
    pub fn of(work: &PassWork, seconds: f64, limits: &Limits, demands: &Demands) -> LimitShares {
        LimitShares::within(work, seconds, &Peaks::of(limits, demands))
    }

    /// [`of`](Self::of) with given peaks.
    pub fn within(work: &PassWork, seconds: f64, peaks: &Peaks) -> LimitShares {
        LimitShares {
            compute: share(peaks.compute_seconds(work), seconds),
            memory: share(peaks.memory_seconds(work), seconds),
        }
    }

    /// `None` if they are all of a limit or more: then the time was not the work's own.
    pub fn known(self) -> Option<LimitShares> {
        (self.of_limit() < LimitShares::ALL).then_some(self)
    }

    /// The larger share: that of the binding limit.
    pub fn of_limit(&self) -> f64 {
        self.compute.max(self.memory)
    }

    /// The roofline that this work is closer to.
    pub fn roofline(&self) -> Bound {
        if self.compute > self.memory { Bound::Compute } else { Bound::Memory }
    }

    /// What limits this work.
    pub fn bound(&self) -> Bound {
        if self.of_limit() < LimitShares::OVERHEAD { Bound::Overhead } else { self.roofline() }
    }
}

/// Matrix operations per second with weights of this class.
pub fn peak(limits: &Limits, weights: WeightClass) -> f64 {
    match weights {
        WeightClass::Bf16 => limits.bf16_flops,
        WeightClass::Int8 | WeightClass::Int4 => limits.int8_ops,
    }
}

fn share(ideal: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { ideal / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelShape;

    fn limits() -> Limits {
        Limits {
            read_bandwidth: 20e9,
            cache_bandwidth: 80e9,
            cache_bytes: 32 << 20,
            int8_ops: 2e12,
            ..Limits::of_rate(1e12, &[1.0; 5])
        }
    }

    /// A model with `weight_bytes` of weights.
    fn model(weights: WeightClass, weight_bytes: usize) -> Demands {
        let (_, shape) = ModelShape::known().next().expect("there are known models");
        Demands { weight_bytes, ..shape.demands(weights, KvDtype::Bf16) }
    }

    #[test]
    fn work_is_judged_by_the_limit_that_binds_it() {
        let [wide, narrow] = [WeightClass::Bf16, WeightClass::Int8].map(|class| model(class, 1 << 30));
        let work = PassWork { matrix_flops: 1e12, attention_flops: 1e12, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        let bf16 = LimitShares::of(&work, 4.0, &limits(), &wide);
        assert_eq!((bf16.compute, bf16.memory, bf16.bound()), (0.5, 0.25, Bound::Compute));
        // int8 matrices run at their own peak, attention stays bf16.
        let int8 = LimitShares::of(&work, 4.0, &limits(), &narrow);
        assert_eq!((int8.compute, int8.memory), (0.375, 0.25));
        let decode = PassWork { matrix_flops: 1e9, attention_flops: 0.0, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        assert_eq!(LimitShares::of(&decode, 2.0, &limits(), &wide).bound(), Bound::Memory);
        let slow = LimitShares::of(&decode, 100.0, &limits(), &wide);
        assert_eq!((slow.bound(), slow.roofline()), (Bound::Overhead, Bound::Memory));
        assert_eq!(LimitShares::of(&decode, 0.0, &limits(), &wide).of_limit(), 0.0);
        // At the floor and below it nothing is known.
        for (seconds, is_known) in [(1.01, true), (1.0, false), (0.5, false), (0.0, true)] {
            let shares = LimitShares::of(&decode, seconds, &limits(), &wide);
            assert_eq!(shares.known(), is_known.then_some(shares), "{seconds}");
        }
        let peaks = Peaks::of(&limits(), &wide);
        assert_eq!((peaks.floor_seconds(&work), peaks.floor_seconds(&decode)), (2.0, 1.0));
    }

    #[test]
    fn weights_that_fit_the_last_cache_are_held_against_it() {
        for (bytes, bandwidth) in [(8 << 20, 80e9), (32 << 20, 80e9), ((32 << 20) + 1, 20e9), (1 << 30, 20e9)] {
            assert_eq!(Peaks::of(&limits(), &model(WeightClass::Bf16, bytes)).bandwidth, bandwidth, "{bytes}");
        }
        let unknown = Limits { cache_bytes: 0, ..limits() };
        assert_eq!(Peaks::of(&unknown, &model(WeightClass::Bf16, 1)).bandwidth, 20e9);
    }

    #[test]
    fn what_was_reached_is_possible() {
        let peaks = Peaks::of(&limits(), &model(WeightClass::Int8, 1 << 30));
        let work = PassWork { matrix_flops: 4e12, attention_flops: 1e12, kv_dtype: KvDtype::Bf16, bytes: 40e9 };
        // Compute takes 3 s at the peaks and reading 2 s.
        assert_eq!(peaks.raised_by(&work, 3.0), peaks);
        for (seconds, compute, memory) in [(2.5, 1.2, 1.0), (1.0, 3.0, 2.0)] {
            let raised = peaks.raised_by(&work, seconds);
            let rose = |after: f64, before: f64| (after / before * 1e9).round() / 1e9;
            assert_eq!((rose(raised.matrix, peaks.matrix), rose(raised.bandwidth, peaks.bandwidth)), (compute, memory));
            assert!(LimitShares::within(&work, seconds, &raised).of_limit() <= 1.0 + 1e-12);
        }
        assert_eq!(peaks.raised_by(&work, 0.0), peaks, "no time is no measurement");
    }
}
