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

use crate::config::ExpertConfig;
use crate::{ModelConfig, embedding_class};

/// The shape of a decoder, as far as the cost of its passes follows from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Weights in the matrices of all layers, every expert counted.
    pub layer_parameters: u64,
    /// Those that a token passes through.
    pub active_parameters: u64,
    /// Those of experts.
    pub expert_parameters: u64,
    /// Weights of the head; the embedding has as many.
    pub head_parameters: u64,
    /// Tables in memory: 1 where the head is the embedding, 0 where they are not known apart from the layers.
    pub tables: u64,
    /// Operations of one row against one key, all layers.
    pub pair_flops: u64,
    /// Numbers that a token adds to the cache, all layers.
    pub kv_values: u64,
    /// Heads of keys and values, all layers: int8 keeps two scales for each.
    pub kv_heads: u64,
    /// Numbers that a pass holds for each row beside its logits.
    pub activations: u64,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Layers by what their attention sees: a number of last tokens, or all.
    pub windows: Vec<(Option<usize>, usize)>,
    /// Experts, if there are any.
    pub experts: Option<ExpertConfig>,
    /// Tokens that a sequence may have.
    pub context_limit: usize,
}

impl Shape {
    /// Of a configuration.
    pub fn of(config: &ModelConfig) -> Shape {
        let heads = config.heads();
        let mut windows: Vec<(Option<usize>, usize)> = Vec::new();
        for layer in &config.layers {
            match windows.iter_mut().find(|(window, _)| *window == layer.window) {
                Some((_, count)) => *count += 1,
                None => windows.push((layer.window, 1)),
            }
        }
        let with_experts = config.layers.iter().filter(|layer| layer.has_experts).count();
        let experts = config.experts.filter(|_| with_experts > 0);
        let each = |experts: ExpertConfig| 3 * experts.num_experts * experts.intermediate_size * config.hidden_size;
        // The residual stream, a block's input and output, queries, keys and values, what attention gives, the MLP.
        let widths = 3 * config.hidden_size + heads.qkv_width() + heads.q_width() + 3 * config.widest_mlp();
        Shape {
            layer_parameters: config.layer_parameters(),
            active_parameters: config.active_layer_parameters(),
            expert_parameters: experts.map_or(0, |experts| (with_experts * each(experts)) as u64),
            head_parameters: config.head_parameters(),
            tables: if config.tie_word_embeddings { 1 } else { 2 },
            pair_flops: config.attention_flops(1),
            kv_values: 2 * (config.num_layers * config.num_kv_heads * config.head_dim) as u64,
            kv_heads: (config.num_layers * config.num_kv_heads) as u64,
            activations: widths as u64,
            vocab: config.vocab_size,
            windows,
            experts,
            context_limit: config.context_limit,
        }
    }

    /// All weights in memory.
    pub fn parameters(&self) -> u64 {
        self.layer_parameters + self.tables * self.head_parameters
    }

    /// Operations of one row in the layers' matrices; attention and logits come on top.
    pub fn flops_per_token(&self) -> f64 {
        2.0 * self.active_parameters as f64
    }

    /// Operations of one row of logits.
    pub fn flops_per_logit_row(&self) -> f64 {
        2.0 * self.head_parameters as f64
    }

    /// Keys that `rows` rows from position `start` see, summed over the rows: each sees itself and everything before it, or
    /// as much of that as its layer's window holds. The mean over the layers.
    pub fn seen(&self, start: usize, rows: usize) -> f64 {
        self.mean_over_layers(|window| seen(start, rows, window))
    }

    /// The mean of a number of tokens over the layers, by their window.
    pub fn mean_over_layers(&self, of: impl Fn(usize) -> f64) -> f64 {
        let layers: usize = self.windows.iter().map(|(_, count)| count).sum();
        let sum = self.windows.iter().map(|&(window, count)| of(window.unwrap_or(usize::MAX)) * count as f64);
        sum.sum::<f64>() / layers as f64
    }

    /// What its passes ask with weights and cache of these classes, before anything is loaded. Norms, biases and the scales
    /// of int8 channels are not counted: about a hundredth.
    pub fn demands(&self, weights: WeightClass, kv_dtype: KvDtype) -> Demands {
        let bytes = |parameters: u64, class| (parameters as f64 * weight_bytes(class)) as usize;
        let head = bytes(self.head_parameters, embedding_class(weights));
        let kv_bytes_per_token = match kv_dtype {
            KvDtype::Bf16 => 2 * self.kv_values,
            // Of each head a scale for the key and one for the value.
            KvDtype::Int8 => self.kv_values + 2 * 4 * self.kv_heads,
        };
        Demands {
            weights,
            weight_bytes: bytes(self.layer_parameters, weights) + head,
            expert_bytes: bytes(self.expert_parameters, weights),
            kv_bytes_per_token: kv_bytes_per_token as usize,
            kv_dtype,
            shape: self.clone(),
        }
    }

    /// Bytes of weights in memory that no pass reads: the embedding, where it is not the head.
    pub fn unread_bytes(&self, weights: WeightClass) -> u64 {
        let tables = self.tables.saturating_sub(1) * self.head_parameters;
        (tables as f64 * weight_bytes(embedding_class(weights))) as u64
    }
}

/// Bytes of one weight: of int4, 4 bits and a ratio of 8 bits for each 32 of them.
fn weight_bytes(class: WeightClass) -> f64 {
    match class {
        WeightClass::Bf16 => 2.0,
        WeightClass::Int8 => 1.0,
        WeightClass::Int4 => 4.25 / 8.0,
    }
}

/// What a model's passes ask of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// Its shape.
    pub shape: Shape,
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
    /// In the matrices of layers and head.
    pub matrix_flops: f64,
    /// Of rows against keys.
    pub attention_flops: f64,
    /// How the keys are kept.
    pub kv_dtype: KvDtype,
    /// Read: weights, keys and values.
    pub bytes: f64,
}

impl Demands {
    /// Prefill of `rows` tokens from position `start` in chunks of `chunk`; logits for the last row.
    pub fn prefill(&self, start: usize, rows: usize, chunk: usize) -> Work {
        let chunk = chunk.max(1);
        let chunks = rows.div_ceil(chunk);
        // All chunks but the last have as many rows. Of them the first ones fetch more and more, and those after them
        // what the window holds.
        let fetched = self.shape.mean_over_layers(|window| {
            let most = (chunk - 1).saturating_add(window);
            let whole = chunks.saturating_sub(1);
            let growing = (most.saturating_sub(start) / chunk).min(whole);
            let (n, grown) = (growing as f64, whole - growing);
            n * start as f64
                + chunk as f64 * n * (n + 1.0) / 2.0
                + if grown > 0 { grown as f64 * most as f64 } else { 0.0 }
                + if rows > 0 { fetched(start + whole * chunk, rows - whole * chunk, window) } else { 0.0 }
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

    /// One pass that carries decode rows and chunks of prompts, and computes the logits of `logit_rows` of its rows.
    /// `decode`: the position of each row. `prefill`: position of the first row of each chunk, and its rows.
    pub fn step(
        &self,
        decode: impl Iterator<Item = usize> + Clone,
        prefill: impl Iterator<Item = (usize, usize)> + Clone,
        logit_rows: usize,
    ) -> Work {
        let rows = decode.clone().count() + prefill.clone().map(|(_, rows)| rows).sum::<usize>();
        let decoded = self
            .shape
            .mean_over_layers(|window| decode.clone().map(|start| (start + 1).min(window) as f64).sum::<f64>());
        let over_chunks = |of: fn(usize, usize, usize) -> f64| {
            self.shape.mean_over_layers(|window| prefill.clone().map(|(start, rows)| of(start, rows, window)).sum())
        };
        let per_logit_row = self.shape.flops_per_logit_row();
        Work {
            matrix_flops: rows as f64 * self.shape.flops_per_token() + logit_rows as f64 * per_logit_row,
            attention_flops: (decoded + over_chunks(seen)) * self.shape.pair_flops as f64,
            kv_dtype: self.kv_dtype,
            bytes: self.bytes_of_pass(rows as f64) + (decoded + over_chunks(fetched)) * self.kv_bytes_per_token as f64,
        }
    }

    /// Bytes of weights that a pass over `rows` rows reads: of experts, those that rows go to on average.
    pub fn bytes_of_pass(&self, rows: f64) -> f64 {
        let share = self.shape.experts.map_or(1.0, |experts| experts.share_read(rows));
        (self.weight_bytes - self.expert_bytes) as f64 + share * self.expert_bytes as f64
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

    /// Arithmetic intensity: operations per byte read.
    pub fn intensity(&self) -> f64 {
        if self.bytes > 0.0 { self.flops() / self.bytes } else { 0.0 }
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
        Shares::within(work, seconds, &Peaks::of(limits, weights, work.kv_dtype))
    }

    /// The same, of peaks that are known otherwise.
    pub fn within(work: &Work, seconds: f64, peaks: &Peaks) -> Shares {
        Shares {
            compute: share(peaks.compute_seconds(work), seconds),
            memory: share(peaks.memory_seconds(work), seconds),
        }
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
        let demands = Demands {
            shape: Shape::of(&config),
            weights,
            weight_bytes,
            expert_bytes,
            kv_bytes_per_token: 0,
            kv_dtype: KvDtype::Bf16,
        };
        // One row goes to 2 of 8; a second one meets them again with the same odds.
        assert_eq!(demands.decode(1, 1, 0.0).bytes, 200.0 + 0.25 * 800.0);
        assert_eq!(demands.decode(10, 20, 0.0).bytes, 10.0 * (200.0 + (1.0 - 0.75 * 0.75) * 800.0));
        let prefill = demands.prefill(0, 512, 256).bytes;
        assert!((1999.0..=2000.0).contains(&prefill), "two chunks that read everything: {prefill}");
        let dense = Demands { shape: Shape { experts: None, ..demands.shape.clone() }, expert_bytes: 0, ..demands };
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
                shape: Shape::of(&config),
                weights: WeightClass::Bf16,
                weight_bytes: 0,
                expert_bytes: 0,
                kv_bytes_per_token: 1,
                kv_dtype: KvDtype::Bf16,
            }
        };
        let (all, windowed) = (demands("null"), demands("8"));
        let tokens = |work: Work| (work.attention_flops / all.shape.pair_flops as f64, work.bytes);
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
            shape: Shape::of(&config),
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
        assert_eq!(both.bytes, prefill.bytes + decode.bytes - 1000.0);
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
