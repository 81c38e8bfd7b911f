//! The shape of a decoder: what its memory and the cost of its passes follow from, wherever it is known from.
//!
//! ```text
//! config.json (model::ModelConfig::shape) --+
//! llama-3.1-8b (models.rs) -----------------+--> ModelShape --precision--> Demands: operations and bytes of any pass
//! 7b (plan::Named) -------------------------+
//! ```

use kernels::{KvDtype, WeightClass};

use crate::demands::Demands;

/// The shape of a decoder, as far as the cost of its passes follows from it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
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
    /// Operations of one row of a prompt against one key, all layers.
    pub pair_flops: u64,
    /// The same of a row that decodes: another number where keys and values are kept as a latent (MLA), which such a
    /// row reads as it is and a prompt unpacks.
    pub decode_pair_flops: u64,
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
    pub experts: Option<Mixture>,
    /// Tokens that a sequence may have.
    pub context_limit: usize,
}

impl ModelShape {
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

    /// Keys that `rows` rows from position `start` see, summed over the rows: each sees itself and everything before
    /// it, or as much of that as its layer's window holds. The mean over the layers.
    pub fn seen(&self, start: usize, rows: usize) -> f64 {
        self.mean_over_layers(|window| seen(start, rows, window))
    }

    /// The mean of a number of tokens over the layers, by their window.
    pub fn mean_over_layers(&self, of: impl Fn(usize) -> f64) -> f64 {
        let layers: usize = self.windows.iter().map(|(_, count)| count).sum();
        let sum = self.windows.iter().map(|&(window, count)| of(window.unwrap_or(usize::MAX)) * count as f64);
        sum.sum::<f64>() / layers as f64
    }

    /// What its passes ask with weights and cache of these classes, before anything is loaded. Norms, biases and the
    /// scales of int8 channels are not counted: about a hundredth.
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

/// The experts of a mixture, as far as what a pass reads follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture {
    /// In each layer that has experts.
    pub num_experts: usize,
    /// How many of them a token goes to.
    pub top_k: usize,
}

impl Mixture {
    /// The share of a layer's experts that a step of `rows` rows reads on average, if a row is as likely to go to one
    /// as to another. Exact for one row.
    pub fn share_read(&self, rows: f64) -> f64 {
        1.0 - (1.0 - self.top_k as f64 / self.num_experts as f64).powf(rows)
    }
}

/// The class of the embedding and the head in a model of this class: int8 instead of int4, since an error in the head
/// goes straight into every logit, and the tables are read far less than they weigh.
pub fn embedding_class(weights: WeightClass) -> WeightClass {
    match weights {
        WeightClass::Int4 => WeightClass::Int8,
        same => same,
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

/// Positions that `rows` rows from position `start` see, summed: each sees itself and everything before it, or as much
/// of that as its layer's window holds.
pub(crate) fn seen(start: usize, rows: usize, window: usize) -> f64 {
    let growing = rows.min(window.saturating_sub(start)) as f64;
    let grown = rows as f64 - growing;
    growing * start as f64 + growing * (growing + 1.0) / 2.0 + if grown > 0.0 { grown * window as f64 } else { 0.0 }
}
