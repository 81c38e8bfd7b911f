//! What passes ask of a machine, beside what it allows: the one place where a rate becomes a share of a limit.
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

use crate::ModelConfig;

/// What a model's passes ask of the machine.
#[derive(Clone, Debug)]
pub struct Demands {
    /// Its shape.
    pub config: ModelConfig,
    /// Precision of its matrices.
    pub weights: WeightClass,
    /// Bytes of weights, every expert counted.
    pub weight_bytes: usize,
    /// Those of experts.
    pub expert_bytes: usize,
    /// Bytes of keys and values of one token.
    pub kv_bytes_per_token: usize,
    /// How they are kept: int8 keys and values are multiplied as int8.
    pub kv_dtype: KvDtype,
}

/// Operations and bytes of some passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    matrix_flops: f64,
    attention_flops: f64,
    kv_dtype: KvDtype,
    bytes: f64,
}

impl Demands {
    /// Prefill of `rows` tokens from position `start` in chunks of `chunk`; logits for the last row.
    pub fn prefill(&self, start: usize, rows: usize, chunk: usize) -> Work {
        let chunk = chunk.max(1);
        let chunks = rows.div_ceil(chunk);
        let seen = self.mean_over_layers(|window| seen(start, rows, window));
        let fetched = self.mean_over_layers(|window| {
            let ends = (1..=chunks).map(|i| ((i - 1) * chunk, (i * chunk).min(rows)));
            ends.map(|(from, to)| fetched(start + from, to - from, window)).sum()
        });
        let rows_per_chunk = rows as f64 / chunks.max(1) as f64;
        Work {
            matrix_flops: rows as f64 * self.config.flops_per_token() as f64 + self.config.flops_per_logit_row() as f64,
            attention_flops: seen * self.config.attention_flops(1) as f64,
            kv_dtype: self.kv_dtype,
            bytes: chunks as f64 * self.bytes_of_pass(rows_per_chunk) + fetched * self.kv_bytes_per_token as f64,
        }
    }

    /// `steps` decode steps that carry `rows` rows in all, which have `context` cache positions before them in all.
    pub fn decode(&self, steps: usize, rows: usize, context: f64) -> Work {
        let per_row = self.config.flops_per_token() + self.config.flops_per_logit_row();
        let rows_per_step = rows as f64 / steps.max(1) as f64;
        // As if all rows had the mean context.
        let seen = self.mean_over_layers(|window| context.min(rows as f64 * window as f64));
        Work {
            matrix_flops: rows as f64 * per_row as f64,
            attention_flops: seen * self.config.attention_flops(1) as f64,
            kv_dtype: self.kv_dtype,
            bytes: steps as f64 * self.bytes_of_pass(rows_per_step) + seen * self.kv_bytes_per_token as f64,
        }
    }

    /// One pass that carries decode rows and chunks of prompts, and computes the logits of `logit_rows` of its rows.
    /// `decode`: the position of each row. `prefill`: position of the first row of each chunk, and its rows.
    pub fn step(
        &self,
        decode: impl Iterator<Item = usize> + Clone,
        prefill: impl Iterator<Item = (usize, usize)> + Clone,
        logit_rows: usize,
    ) -> Work {
        let rows = decode.clone().count() + prefill.clone().map(|(_, rows)| rows).sum::<usize>();
        let decoded =
            self.mean_over_layers(|window| decode.clone().map(|start| (start + 1).min(window) as f64).sum::<f64>());
        let over_chunks = |of: fn(usize, usize, usize) -> f64| {
            self.mean_over_layers(|window| prefill.clone().map(|(start, rows)| of(start, rows, window)).sum())
        };
        let per_logit_row = self.config.flops_per_logit_row() as f64;
        Work {
            matrix_flops: rows as f64 * self.config.flops_per_token() as f64 + logit_rows as f64 * per_logit_row,
            attention_flops: (decoded + over_chunks(seen)) * self.config.attention_flops(1) as f64,
            kv_dtype: self.kv_dtype,
            bytes: self.bytes_of_pass(rows as f64) + (decoded + over_chunks(fetched)) * self.kv_bytes_per_token as f64,
        }
    }

    /// The mean of a number of tokens over the layers, by their window. Asks once for layers in a row that are alike.
    fn mean_over_layers(&self, of: impl Fn(usize) -> f64) -> f64 {
        let windows = self.config.layers.iter().map(|layer| layer.window.unwrap_or(usize::MAX));
        let mut last = (0, 0.0);
        let mut sum = 0.0;
        for window in windows {
            if window != last.0 {
                last = (window, of(window));
            }
            sum += last.1;
        }
        sum / self.config.layers.len() as f64
    }

    /// Bytes of weights that a pass over `rows` rows reads: of experts, those that rows go to on average.
    fn bytes_of_pass(&self, rows: f64) -> f64 {
        let share = self.config.experts.map_or(1.0, |experts| experts.share_read(rows));
        (self.weight_bytes - self.expert_bytes) as f64 + share * self.expert_bytes as f64
    }

    /// Weights of the model's matrices.
    pub fn parameters(&self) -> u64 {
        let embeddings = if self.config.tie_word_embeddings { 1 } else { 2 };
        self.config.layer_parameters() + embeddings * self.config.head_parameters()
    }
}

/// Positions that `rows` rows from position `start` see, summed: each sees itself and everything before it, or as much of
/// that as its layer's window holds.
fn seen(start: usize, rows: usize, window: usize) -> f64 {
    let growing = rows.min(window.saturating_sub(start)) as f64;
    let grown = rows as f64 - growing;
    growing * start as f64 + growing * (growing + 1.0) / 2.0 + if grown > 0.0 { grown * window as f64 } else { 0.0 }
}

/// Positions that a chunk fetches: once, what any of its rows sees.
fn fetched(start: usize, rows: usize, window: usize) -> f64 {
    (start + rows).min((rows - 1).saturating_add(window)) as f64
}

impl Work {
    /// Operations of matrices and of attention.
    pub fn flops(&self) -> f64 {
        self.matrix_flops + self.attention_flops
    }

    /// Bytes read: weights, keys and values.
    pub fn bytes(&self) -> f64 {
        self.bytes
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

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
            Bound::Overhead => "overhead",
        })
    }
}

/// Work set against limits and a measured time.
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

    /// What `work` that took `seconds` had of both limits; zeros for no time.
    pub fn of(work: &Work, seconds: f64, limits: &Limits, weights: WeightClass) -> Shares {
        let attention_peak = match work.kv_dtype {
            KvDtype::Bf16 => limits.bf16_flops,
            KvDtype::Int8 => limits.int8_ops,
        };
        let compute = work.matrix_flops / peak(limits, weights) + work.attention_flops / attention_peak;
        let memory = work.bytes / limits.read_bandwidth;
        Shares { compute: share(compute, seconds), memory: share(memory, seconds) }
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
        if self.of_limit() < Shares::OVERHEAD { Bound::Overhead } else { self.roofline() }
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
    fn a_pass_reads_the_experts_that_its_rows_go_to() {
        let config = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "num_local_experts": 8,
            "num_experts_per_tok": 2}"#;
        let config = ModelConfig::parse(config).expect("a good configuration");
        let (weights, weight_bytes, expert_bytes) = (WeightClass::Bf16, 1000, 800);
        let demands =
            Demands { config, weights, weight_bytes, expert_bytes, kv_bytes_per_token: 0, kv_dtype: KvDtype::Bf16 };
        // One row goes to 2 of 8; a second one meets them again with the same odds.
        assert_eq!(demands.decode(1, 1, 0.0).bytes, 200.0 + 0.25 * 800.0);
        assert_eq!(demands.decode(10, 20, 0.0).bytes, 10.0 * (200.0 + (1.0 - 0.75 * 0.75) * 800.0));
        let prefill = demands.prefill(0, 512, 256).bytes;
        assert!((1999.0..=2000.0).contains(&prefill), "two chunks that read everything: {prefill}");
        let dense =
            Demands { config: ModelConfig { experts: None, ..demands.config.clone() }, expert_bytes: 0, ..demands };
        assert_eq!(dense.decode(1, 1, 0.0).bytes, 1000.0);
    }

    #[test]
    fn attention_is_counted_as_far_as_a_layer_sees() {
        let demands = |window: &str| {
            let config = format!(
                r#"{{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 32,
                "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "sliding_window": {window}}}"#
            );
            let config = ModelConfig::parse(&config).expect("a good configuration");
            Demands {
                config,
                weights: WeightClass::Bf16,
                weight_bytes: 0,
                expert_bytes: 0,
                kv_bytes_per_token: 1,
                kv_dtype: KvDtype::Bf16,
            }
        };
        let (all, windowed) = (demands("null"), demands("8"));
        let tokens = |work: Work| (work.attention_flops / all.config.attention_flops(1) as f64, work.bytes);
        // One layer of two sees 8 tokens. Four rows from position 20: 21 + 22 + 23 + 24, and 24 fetched once.
        assert_eq!(tokens(all.prefill(20, 4, 4)), (90.0, 24.0));
        assert_eq!(tokens(windowed.prefill(20, 4, 4)), ((90.0 + 4.0 * 8.0) / 2.0, (24.0 + 11.0) / 2.0));
        // From position 5 the window fills up: 6 + 7 + 8 + 8; in chunks of two, 7 and 9 are fetched, or 7 and 9.
        assert_eq!(tokens(all.prefill(5, 4, 2)), (30.0, 16.0));
        assert_eq!(tokens(windowed.prefill(5, 4, 2)), ((30.0 + 29.0) / 2.0, (16.0 + 16.0) / 2.0));
        assert_eq!(tokens(all.decode(3, 3, 60.0)), (60.0, 60.0));
        assert_eq!(tokens(windowed.decode(3, 3, 60.0)), ((60.0 + 24.0) / 2.0, (60.0 + 24.0) / 2.0));
        assert_eq!(tokens(windowed.decode(3, 3, 12.0)), (12.0, 12.0), "shorter than the window");
    }

    #[test]
    fn a_step_asks_what_its_parts_ask_with_one_pass_over_the_weights() {
        let config = r#"{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
            "head_dim": 32, "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512,
            "sliding_window": 8}"#;
        let config = ModelConfig::parse(config).expect("a good configuration");
        let demands = Demands {
            config,
            weights: WeightClass::Int8,
            weight_bytes: 1000,
            expert_bytes: 0,
            kv_bytes_per_token: 4,
            kv_dtype: KvDtype::Int8,
        };
        let none = || std::iter::empty();
        let prefill = demands.step(none(), [(5, 4)].into_iter(), 1);
        assert_eq!(prefill, demands.prefill(5, 4, 4));
        let decode = demands.step([9, 9].into_iter(), std::iter::empty(), 2);
        assert_eq!(decode, demands.decode(1, 2, 20.0));
        let both = demands.step([9, 9].into_iter(), [(5, 4)].into_iter(), 3);
        assert_eq!(both.flops(), prefill.flops() + decode.flops());
        assert_eq!(both.bytes(), prefill.bytes() + decode.bytes() - 1000.0);
    }

    #[test]
    fn work_is_judged_by_the_limit_that_binds_it() {
        let work = Work { matrix_flops: 1e12, attention_flops: 1e12, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        let bf16 = Shares::of(&work, 4.0, &limits(), WeightClass::Bf16);
        assert_eq!((bf16.compute, bf16.memory, bf16.bound()), (0.5, 0.25, Bound::Compute));
        // int8 matrices run at their own peak, attention stays bf16.
        let int8 = Shares::of(&work, 4.0, &limits(), WeightClass::Int8);
        assert_eq!((int8.compute, int8.memory), (0.375, 0.25));
        let decode = Work { matrix_flops: 1e9, attention_flops: 0.0, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        assert_eq!(Shares::of(&decode, 2.0, &limits(), WeightClass::Bf16).bound(), Bound::Memory);
        let slow = Shares::of(&decode, 100.0, &limits(), WeightClass::Bf16);
        assert_eq!((slow.bound(), slow.roofline()), (Bound::Overhead, Bound::Memory));
        assert_eq!(Shares::of(&decode, 0.0, &limits(), WeightClass::Bf16).of_limit(), 0.0);
    }
}
