//! What a machine allows, and what a pass had of it: the one place where a rate becomes a share of a limit.
//!
//! ```text
//! compute time = matrix operations / peak of the weight class + attention operations / peak of the KV type
//! memory time  = (weights * passes + keys and values read) / read bandwidth
//! % of limit   = the longer of the two / measured time          bound by = which one that is
//! ```
//! This is the roofline (Williams et al., 2009) of the work itself: a long prompt is judged against the matrix peak, a
//! decode step against the bandwidth.

use std::fmt;

use kernels::limits::Limits;
use kernels::{KvDtype, WeightClass};

use crate::demands::PassWork;

/// What a machine can do at most with weights and keys of some class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Operations per second in matrices.
    pub matrix: f64,
    /// Operations per second of rows against keys.
    pub attention: f64,
    /// Bytes per second read from memory.
    pub bandwidth: f64,
}

impl Peaks {
    /// Of measured limits, those that hold for these classes.
    pub fn of(limits: &Limits, weights: WeightClass, kv_dtype: KvDtype) -> Peaks {
        let attention = match kv_dtype {
            KvDtype::Bf16 => limits.bf16_flops,
            KvDtype::Int8 => limits.int8_ops,
        };
        Peaks { matrix: peak(limits, weights), attention, bandwidth: limits.read_bandwidth }
    }

    /// Seconds that the arithmetic takes at the peaks.
    pub fn compute_seconds(&self, work: &PassWork) -> f64 {
        work.matrix_flops / self.matrix + work.attention_flops / self.attention
    }

    /// Seconds that reading takes at the full bandwidth.
    pub fn memory_seconds(&self, work: &PassWork) -> f64 {
        work.bytes / self.bandwidth
    }

    /// The least time that the work takes: the longer of the two, as if each ran while the other did.
    pub fn floor_seconds(&self, work: &PassWork) -> f64 {
        self.compute_seconds(work).max(self.memory_seconds(work))
    }
}

/// What held a phase back most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading weights, keys and values.
    Memory,
    /// Arithmetic.
    Compute,
    /// Far from both: time between the passes and within them that is neither arithmetic nor reading.
    Overhead,
}

impl Bound {
    /// In a word.
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

/// PassWork set against limits and a measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitShares {
    /// Of the matrix peak of the weight class.
    pub compute: f64,
    /// Of the read bandwidth.
    pub memory: f64,
}

impl LimitShares {
    /// Below this share of both limits a phase is bound by neither.
    const OVERHEAD: f64 = 0.1;

    /// What `work` that took `seconds` had of both limits; zeros for no time.
    pub fn of(work: &PassWork, seconds: f64, limits: &Limits, weights: WeightClass) -> LimitShares {
        LimitShares::within(work, seconds, &Peaks::of(limits, weights, work.kv_dtype))
    }

    /// The same, of peaks that are known otherwise.
    pub fn within(work: &PassWork, seconds: f64, peaks: &Peaks) -> LimitShares {
        LimitShares {
            compute: share(peaks.compute_seconds(work), seconds),
            memory: share(peaks.memory_seconds(work), seconds),
        }
    }

    /// The same of steps that were measured: a step that is above a limit has shown that the limit was measured too low,
    /// so it is at the limit and not above it.
    pub fn capped(self) -> LimitShares {
        let most = self.of_limit().max(1.0);
        LimitShares { compute: self.compute / most, memory: self.memory / most }
    }

    /// Share of the limit that binds this work.
    pub fn of_limit(&self) -> f64 {
        self.compute.max(self.memory)
    }

    /// The roofline that this work is closer to.
    pub fn roofline(&self) -> Bound {
        if self.compute > self.memory { Bound::Compute } else { Bound::Memory }
    }

    /// What held this work back.
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

    fn limits() -> Limits {
        Limits {
            read_bandwidth: 20e9,
            int8_ops: 2e12,
            bf16_flops: 1e12,
            f32_flops: 1e11,
            int8_kind: "test",
            bf16_kind: "test",
            fastest_int8_ops: 2e12,
            fastest_int8_kind: "test",
            fastest_bf16_flops: 1e12,
            fastest_bf16_kind: "test",
        }
    }

    #[test]
    fn work_is_judged_by_the_limit_that_binds_it() {
        let work = PassWork { matrix_flops: 1e12, attention_flops: 1e12, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        let bf16 = LimitShares::of(&work, 4.0, &limits(), WeightClass::Bf16);
        assert_eq!((bf16.compute, bf16.memory, bf16.bound()), (0.5, 0.25, Bound::Compute));
        // int8 matrices run at their own peak, attention stays bf16.
        let int8 = LimitShares::of(&work, 4.0, &limits(), WeightClass::Int8);
        assert_eq!((int8.compute, int8.memory), (0.375, 0.25));
        let decode = PassWork { matrix_flops: 1e9, attention_flops: 0.0, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        assert_eq!(LimitShares::of(&decode, 2.0, &limits(), WeightClass::Bf16).bound(), Bound::Memory);
        let slow = LimitShares::of(&decode, 100.0, &limits(), WeightClass::Bf16);
        assert_eq!((slow.bound(), slow.roofline()), (Bound::Overhead, Bound::Memory));
        assert_eq!(LimitShares::of(&decode, 0.0, &limits(), WeightClass::Bf16).of_limit(), 0.0);
        // A time below the floor: the limit was measured too low.
        let fast = LimitShares::of(&decode, 0.5, &limits(), WeightClass::Bf16);
        assert_eq!((fast.of_limit(), fast.capped().of_limit(), fast.capped().roofline()), (2.0, 1.0, Bound::Memory));
        let peaks = Peaks::of(&limits(), WeightClass::Bf16, KvDtype::Bf16);
        assert_eq!((peaks.floor_seconds(&work), peaks.floor_seconds(&decode)), (2.0, 1.0));
    }
}
