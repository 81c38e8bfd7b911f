//! Memory use, and the number of concurrent requests that fit.

use roofline::MEMORY_SHARE;

use crate::{Ask, Deployment};

/// Tokens per block: a request holds whole blocks.
pub(crate) const BLOCK: usize = 32;
/// Maximum rows whose logits are computed together.
const LOGIT_ROWS: usize = 64;

/// Bytes by use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Memory for weights and cache; `None`: unknown.
    pub total: Option<f64>,
    /// Weights.
    pub weights: f64,
    /// Keys and values of one token.
    pub kv_per_token: f64,
    /// Keys and values of one request at its full length, in whole blocks.
    pub kv_per_request: f64,
    /// States of one request, of a model with layers that have one: what a step reads and what it writes.
    pub states_per_request: f64,
    /// Activations and logits of a pass, in f32.
    pub activations: f64,
    /// Reserved for the system and for activations.
    pub reserved: f64,
    /// Remaining for keys, values and states.
    pub left: Option<f64>,
    /// Concurrent requests of this length that fit.
    pub requests: Option<u64>,
}

impl Memory {
    /// Whether the weights and `batch` requests fit; `None` if the memory is unknown.
    pub fn fits(&self, batch: usize) -> Option<bool> {
        self.requests.map(|requests| requests >= batch as u64)
    }
}

impl Deployment {
    /// Memory for `ask`. The cache of a running engine is already allocated; otherwise the cache gets the memory that an
    /// engine leaves beside the weights.
    pub fn memory(&self, ask: &Ask) -> Memory {
        let shape = &self.demands.shape;
        let weights = self.demands.weight_bytes as f64 + self.unread_bytes as f64 - self.expert_bytes_on_disk();
        let kv_per_token = self.demands.kv_bytes_per_token as f64;
        let tokens = (ask.prompt + ask.written()).div_ceil(BLOCK) * BLOCK;
        let kv_per_request = kv_per_token * tokens as f64;
        let states_per_request = 2.0 * 4.0 * shape.state_numbers as f64;
        let logits = LOGIT_ROWS.min(ask.batch) as f64 * shape.vocab as f64;
        let activations = 4.0 * (self.machine.rows as f64 * shape.activations as f64 + logits);
        let total = self.machine.memory;
        let reserved = match (self.kv_tokens, total) {
            (None, Some(total)) => activations.max((1.0 - MEMORY_SHARE) * total),
            _ => activations,
        };
        let left = match self.kv_tokens {
            Some(tokens) => Some(tokens as f64 * kv_per_token),
            None => total.map(|total| (total - weights - reserved).max(0.0)),
        };
        // A running engine has its states beside the cache.
        let states = if self.kv_tokens.is_some() { 0.0 } else { states_per_request };
        let requests = left.map(|left| (left / (kv_per_request + states)) as u64);
        Memory {
            total,
            weights,
            kv_per_token,
            kv_per_request,
            states_per_request,
            activations,
            reserved,
            left,
            requests,
        }
    }
}
