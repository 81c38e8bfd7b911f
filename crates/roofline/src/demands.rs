//! Operations and bytes of a model's passes.
//!
//! ```text
//! operations = rows * 2 * active weights + rows * attended keys * operations of a pair
//! bytes      = weights * passes + keys and values read + states read and written
//! ```

use kernels::{KvDtype, WeightClass};

use crate::shape::{ModelShape, seen};

/// A model with given precisions: everything that determines the cost of its passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Demands {
    /// Shape of the model.
    pub shape: ModelShape,
    /// Precision of its matrices.
    pub weights: WeightClass,
    /// Bytes of weights, with all experts.
    pub weight_bytes: usize,
    /// Bytes of experts.
    pub expert_bytes: usize,
    /// Bytes of keys and values of one token.
    pub kv_bytes_per_token: usize,
    /// Precision of the KV cache: int8 keys and values are multiplied as int8.
    pub kv_dtype: KvDtype,
}

/// Operations and bytes of one or more passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassWork {
    /// Operations in the matrices of layers and head.
    pub matrix_flops: f64,
    /// Operations of attention and of states.
    pub attention_flops: f64,
    /// Precision of the KV cache.
    pub kv_dtype: KvDtype,
    /// Bytes read: weights, keys and values.
    pub bytes: f64,
}

impl Demands {
    /// Prefill of `rows` tokens from position `start` in chunks of `chunk`; logits for the last row.
    pub fn prefill(&self, start: usize, rows: usize, chunk: usize) -> PassWork {
        let chunk = chunk.max(1);
        let chunks = rows.div_ceil(chunk);
        // All chunks but the last have `chunk` rows. Up to the window, each reads more keys than the one before; the
        // later ones read the window.
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
            attention_flops: self.shape.seen(start, rows) * self.shape.pair_flops as f64 + self.state_flops(rows),
            kv_dtype: self.kv_dtype,
            bytes: chunks as f64 * (self.bytes_of_pass(rows_per_chunk) + self.shape.state_bytes())
                + fetched * self.kv_bytes_per_token as f64,
        }
    }

    /// `steps` decode steps with `rows` rows in total, and `context` cache positions before these rows in total.
    pub fn decode(&self, steps: usize, rows: usize, context: f64) -> PassWork {
        let per_row = self.shape.flops_per_token() + self.shape.flops_per_logit_row();
        let rows_per_step = rows as f64 / steps.max(1) as f64;
        // Assumes the mean context for all rows.
        let seen = self.shape.mean_over_layers(|window| context.min(rows as f64 * window as f64));
        PassWork {
            matrix_flops: rows as f64 * per_row,
            attention_flops: seen * self.shape.decode_pair_flops as f64 + self.state_flops(rows),
            kv_dtype: self.kv_dtype,
            bytes: steps as f64 * self.bytes_of_pass(rows_per_step)
                + seen * self.kv_bytes_per_token as f64
                + rows as f64 * self.shape.state_bytes(),
        }
    }

    /// One pass with decode rows and chunks of prompts, and logits for `logit_rows` of its rows. `decode`: the position
    /// of each sequence's first row, and its number of rows: one, plus drafts, which share one read of the keys.
    /// `prefill`: start and rows of each chunk.
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
        let sequences = (decode.clone().count() + prefill.clone().count()) as f64;
        PassWork {
            matrix_flops: rows as f64 * self.shape.flops_per_token() + logit_rows as f64 * per_logit_row,
            attention_flops: over_decode(seen) * self.shape.decode_pair_flops as f64
                + over_chunks(seen) * self.shape.pair_flops as f64
                + self.state_flops(rows),
            kv_dtype: self.kv_dtype,
            bytes: self.bytes_of_pass(rows as f64)
                + sequences * self.shape.state_bytes()
                + (over_decode(fetched) + over_chunks(fetched)) * self.kv_bytes_per_token as f64,
        }
    }

    /// [`step`](Self::step) by phase: prefill, then decode, with the logit rows of each. The bytes of the weights, read
    /// once for both, are divided by rows.
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

    /// Operations of these rows in the states, in float32 as attention's sums are.
    fn state_flops(&self, rows: usize) -> f64 {
        rows as f64 * self.shape.state_flops as f64
    }

    /// Bytes of weights read by a pass over `rows` rows, with the experts that the rows select on average.
    pub fn bytes_of_pass(&self, rows: f64) -> f64 {
        let share = self.shape.experts.map_or(1.0, |experts| experts.share_read(rows));
        (self.weight_bytes - self.expert_bytes) as f64 + share * self.expert_bytes as f64
    }
}

/// Cache positions read by a chunk: each position that any of its rows attends to, once.
fn fetched(start: usize, rows: usize, window: usize) -> f64 {
    (start + rows).min((rows - 1).saturating_add(window)) as f64
}

impl PassWork {
    /// Operations of matrices and of attention.
    pub fn flops(&self) -> f64 {
        self.matrix_flops + self.attention_flops
    }

    /// Adds other passes with the same precision of the KV cache.
    pub fn add(&mut self, other: &PassWork) {
        self.matrix_flops += other.matrix_flops;
        self.attention_flops += other.attention_flops;
        self.bytes += other.bytes;
        self.kv_dtype = other.kv_dtype;
    }

    /// Multiplies the work by `factor`.
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
