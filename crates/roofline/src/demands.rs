//! What passes over a model ask of a machine: operations and bytes.
//!
//! ```text
//! operations = rows * 2 * weights that a row passes through + rows * keys that they see * operations of a pair
//! bytes      = weights * passes + keys and values that are fetched
//! ```

use kernels::{KvDtype, WeightClass};

use crate::shape::{ModelShape, seen};

/// What a model's passes ask of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// Its shape.
    pub shape: ModelShape,
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
pub struct PassWork {
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
    pub fn prefill(&self, start: usize, rows: usize, chunk: usize) -> PassWork {
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
        PassWork {
            matrix_flops: rows as f64 * self.shape.flops_per_token() + self.shape.flops_per_logit_row(),
            attention_flops: self.shape.seen(start, rows) * self.shape.pair_flops as f64,
            kv_dtype: self.kv_dtype,
            bytes: chunks as f64 * self.bytes_of_pass(rows_per_chunk) + fetched * self.kv_bytes_per_token as f64,
        }
    }

    /// `steps` decode steps that carry `rows` rows in all, which have `context` cache positions before them in all.
    pub fn decode(&self, steps: usize, rows: usize, context: f64) -> PassWork {
        let per_row = self.shape.flops_per_token() + self.shape.flops_per_logit_row();
        let rows_per_step = rows as f64 / steps.max(1) as f64;
        // As if all rows had the mean context.
        let seen = self.shape.mean_over_layers(|window| context.min(rows as f64 * window as f64));
        PassWork {
            matrix_flops: rows as f64 * per_row,
            attention_flops: seen * self.shape.decode_pair_flops as f64,
            kv_dtype: self.kv_dtype,
            bytes: steps as f64 * self.bytes_of_pass(rows_per_step) + seen * self.kv_bytes_per_token as f64,
        }
    }

    /// One pass that carries decode rows and chunks of prompts, and computes the logits of `logit_rows` of its rows.
    /// `decode`: the position of each sequence's first row, and its rows: one, and drafts behind it, for which the same
    /// keys are fetched once. `prefill`: the same of each chunk.
    pub fn step(
        &self,
        decode: impl Iterator<Item = (usize, usize)> + Clone,
        prefill: impl Iterator<Item = (usize, usize)> + Clone,
        logit_rows: usize,
    ) -> PassWork {
        let rows = decode.clone().chain(prefill.clone()).map(|(_, rows)| rows).sum::<usize>();
        let over_decode = |of: fn(usize, usize, usize) -> f64| {
            self.shape.mean_over_layers(|window| decode.clone().map(|(start, rows)| of(start, rows, window)).sum())
        };
        let over_chunks = |of: fn(usize, usize, usize) -> f64| {
            self.shape.mean_over_layers(|window| prefill.clone().map(|(start, rows)| of(start, rows, window)).sum())
        };
        let per_logit_row = self.shape.flops_per_logit_row();
        PassWork {
            matrix_flops: rows as f64 * self.shape.flops_per_token() + logit_rows as f64 * per_logit_row,
            attention_flops: over_decode(seen) * self.shape.decode_pair_flops as f64
                + over_chunks(seen) * self.shape.pair_flops as f64,
            kv_dtype: self.kv_dtype,
            bytes: self.bytes_of_pass(rows as f64)
                + (over_decode(fetched) + over_chunks(fetched)) * self.kv_bytes_per_token as f64,
        }
    }

    /// The same pass by phase, prefill and then decode, with the rows of logits of each. Both read the weights together:
    /// each has its rows' part of them.
    pub fn step_by_phase(
        &self,
        decode: impl Iterator<Item = (usize, usize)> + Clone,
        prefill: impl Iterator<Item = (usize, usize)> + Clone,
        [prefill_logits, decode_logits]: [usize; 2],
    ) -> [PassWork; 2] {
        let sum = |rows: &mut dyn Iterator<Item = (usize, usize)>| rows.map(|(_, rows)| rows).sum::<usize>() as f64;
        let rows = [sum(&mut prefill.clone()), sum(&mut decode.clone())];
        let all = rows[0] + rows[1];
        let parts = [
            self.step(std::iter::empty(), prefill, prefill_logits),
            self.step(decode, std::iter::empty(), decode_logits),
        ];
        std::array::from_fn(|phase| {
            let share = if all > 0.0 { rows[phase] / all } else { 0.0 };
            let kv = parts[phase].bytes - self.bytes_of_pass(rows[phase]);
            PassWork { bytes: share * self.bytes_of_pass(all) + kv, ..parts[phase] }
        })
    }

    /// Bytes of weights that a pass over `rows` rows reads: of experts, those that rows go to on average.
    pub fn bytes_of_pass(&self, rows: f64) -> f64 {
        let share = self.shape.experts.map_or(1.0, |experts| experts.share_read(rows));
        (self.weight_bytes - self.expert_bytes) as f64 + share * self.expert_bytes as f64
    }
}

/// Positions that a chunk fetches: once, what any of its rows sees.
fn fetched(start: usize, rows: usize, window: usize) -> f64 {
    (start + rows).min((rows - 1).saturating_add(window)) as f64
}

impl PassWork {
    /// Operations of matrices and of attention.
    pub fn flops(&self) -> f64 {
        self.matrix_flops + self.attention_flops
    }

    /// Adds other passes with keys of the same type.
    pub fn add(&mut self, other: &PassWork) {
        self.matrix_flops += other.matrix_flops;
        self.attention_flops += other.attention_flops;
        self.bytes += other.bytes;
        self.kv_dtype = other.kv_dtype;
    }

    /// So many times as much.
    pub fn scale(&mut self, factor: f64) {
        self.matrix_flops *= factor;
        self.attention_flops *= factor;
        self.bytes *= factor;
    }

    /// Arithmetic intensity: operations per byte read.
    pub fn intensity(&self) -> f64 {
        if self.bytes > 0.0 { self.flops() / self.bytes } else { 0.0 }
    }
}
