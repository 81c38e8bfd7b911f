//! What has to fit into memory, and how many requests do.

use roofline::MEMORY_SHARE;

use crate::{Ask, Deployment};

/// Tokens of a block: a request holds whole ones.
const BLOCK: usize = 32;
/// Rows whose logits are computed together at most.
const LOGIT_ROWS: usize = 64;

/// Bytes, and what they hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// All there is for weights and cache; `None` if nobody said.
    pub total: Option<f64>,
    /// All weights.
    pub weights: f64,
    /// Keys and values of one token.
    pub kv_per_token: f64,
    /// Keys and values of one request at its full length, in whole blocks.
    pub kv_per_request: f64,
    /// What a pass holds besides: activations and logits, in f32.
    pub activations: f64,
    /// Kept free for the system and for activations.
    pub reserved: f64,
    /// What is left for keys and values.
    pub left: Option<f64>,
    /// Requests of this length that fit at once.
    pub requests: Option<u64>,
}

impl Memory {
    /// Whether the weights and as many requests fit; `None` if the memory is unknown.
    pub fn fits(&self, batch: usize) -> Option<bool> {
        self.requests.map(|requests| requests >= batch as u64)
    }
}

impl Deployment {
    /// What `ask` takes. A running engine has set its cache aside already; elsewhere the cache gets what an engine
    /// leaves beside the weights.
    pub fn memory(&self, ask: &Ask) -> Memory {
        let shape = &self.demands.shape;
        let weights = self.demands.weight_bytes as f64 + self.unread_bytes as f64;
        let kv_per_token = self.demands.kv_bytes_per_token as f64;
        let tokens = (ask.prompt + ask.written()).div_ceil(BLOCK) * BLOCK;
        let kv_per_request = kv_per_token * tokens as f64;
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
        let requests = left.map(|left| (left / kv_per_request) as u64);
        Memory { total, weights, kv_per_token, kv_per_request, activations, reserved, left, requests }
    }
}
