//! What a model's passes ask of a machine, counted exactly; and which of the machine's limits that comes near.
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

use crate::Shape;

/// What a model's passes ask of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// The model.
    pub shape: Shape,
    /// Class of the layers' matrices.
    pub weights: WeightClass,
    /// Bytes of weights that a pass reads, every expert counted.
    pub weight_bytes: u64,
    /// Those of experts.
    pub expert_bytes: u64,
    /// Bytes of keys and values of one token.
    pub kv_bytes_per_token: u64,
    /// How they are kept: int8 keys and values are multiplied as int8.
    pub kv_dtype: KvDtype,
}

/// Operations and bytes of some passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// In the matrices of layers and head.
    pub matrix_flops: f64,
    /// Of rows against keys.
    pub attention_flops: f64,
    /// How the keys are kept.
    pub kv_dtype: KvDtype,
    /// Read from memory: weights, keys and values.
    pub bytes: f64,
}

impl Work {
    /// All operations.
    pub fn flops(&self) -> f64 {
        self.matrix_flops + self.attention_flops
    }

    /// Arithmetic intensity: operations per byte read.
    pub fn intensity(&self) -> f64 {
        if self.bytes > 0.0 { self.flops() / self.bytes } else { 0.0 }
    }
}

impl Demands {
    /// Prefill of `rows` tokens from position `start` in chunks of `chunk`; logits for the last row.
    pub fn prefill(&self, start: usize, rows: usize, chunk: usize) -> Work {
        let chunk = chunk.max(1);
        let chunks = rows.div_ceil(chunk);
        // Each chunk fetches once what any of its rows sees. All but the last have `chunk` rows; of them the first ones
        // see more and more, and those after them what the window holds.
        let fetched = self.shape.mean_over_layers(|window| {
            let most = (chunk - 1).saturating_add(window);
            let whole = chunks.saturating_sub(1);
            let growing = (most.saturating_sub(start) / chunk).min(whole);
            let (n, grown) = (growing as f64, whole - growing);
            let last = (rows - chunk * whole).saturating_sub(1).saturating_add(window);
            n * start as f64
                + chunk as f64 * n * (n + 1.0) / 2.0
                + if grown > 0 { grown as f64 * most as f64 } else { 0.0 }
                + if rows > 0 { (start + rows).min(last) as f64 } else { 0.0 }
        });
        let rows_per_chunk = rows as f64 / chunks.max(1) as f64;
        Work {
            matrix_flops: rows as f64 * self.shape.flops_per_token() + self.shape.flops_per_logit_row(),
            attention_flops: self.shape.seen(start, rows) * self.shape.pair_flops as f64,
            kv_dtype: self.kv_dtype,
            bytes: chunks as f64 * self.bytes_of_pass(rows_per_chunk) + fetched * self.kv_bytes_per_token as f64,
        }
    }

    /// `steps` decode steps that carry `rows` rows in all, which have `context` cache positions before them in all.
    pub fn decode(&self, steps: usize, rows: usize, context: f64) -> Work {
        let per_row = self.shape.flops_per_token() + self.shape.flops_per_logit_row();
        let rows_per_step = rows as f64 / steps.max(1) as f64;
        // As if all rows had the mean context.
        let seen = self.shape.mean_over_layers(|window| context.min(rows as f64 * window as f64));
        Work {
            matrix_flops: rows as f64 * per_row,
            attention_flops: seen * self.shape.pair_flops as f64,
            kv_dtype: self.kv_dtype,
            bytes: steps as f64 * self.bytes_of_pass(rows_per_step) + seen * self.kv_bytes_per_token as f64,
        }
    }

    /// Bytes of weights that a pass over `rows` rows reads: of experts, those that rows go to on average.
    pub fn bytes_of_pass(&self, rows: f64) -> f64 {
        let share = self.shape.experts.map_or(1.0, |experts| experts.share_read(rows));
        (self.weight_bytes - self.expert_bytes) as f64 + share * self.expert_bytes as f64
    }
}

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
    pub fn compute_seconds(&self, work: &Work) -> f64 {
        work.matrix_flops / self.matrix + work.attention_flops / self.attention
    }

    /// Seconds that reading takes at the full bandwidth.
    pub fn memory_seconds(&self, work: &Work) -> f64 {
        work.bytes / self.bandwidth
    }
}

/// Matrix operations per second with weights of this class.
pub fn peak(limits: &Limits, weights: WeightClass) -> f64 {
    match weights {
        WeightClass::Bf16 => limits.bf16_flops,
        WeightClass::Int8 | WeightClass::Int4 => limits.int8_ops,
    }
}

/// What held a phase back most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading weights, keys and values.
    Memory,
    /// Multiplying.
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

/// Work set against limits and a time that it took or will take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// Of the matrix peak of the weight class.
    pub compute: f64,
    /// Of the read bandwidth.
    pub memory: f64,
}

impl Shares {
    /// Below this share of both limits a phase is bound by neither.
    const OVERHEAD: f64 = 0.1;

    /// `work` in `seconds` on a machine with these peaks.
    pub fn of(work: &Work, seconds: f64, peaks: &Peaks) -> Shares {
        let share = |ideal: f64| if seconds > 0.0 { ideal / seconds } else { 0.0 };
        Shares { compute: share(peaks.compute_seconds(work)), memory: share(peaks.memory_seconds(work)) }
    }

    /// Share of the limit that binds this work.
    pub fn of_limit(&self) -> f64 {
        self.compute.max(self.memory)
    }

    /// The roofline that this work is closer to.
    pub fn roofline(&self) -> Bound {
        if self.compute > self.memory { Bound::Compute } else { Bound::Memory }
    }

    /// What held it back most.
    pub fn bound(&self) -> Bound {
        if self.of_limit() < Shares::OVERHEAD { Bound::Overhead } else { self.roofline() }
    }
}
