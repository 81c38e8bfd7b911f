//! The shape of a decoder, from any source, which determines its memory and the cost of its passes.
//!
//! ```text
//! config.json (model::ModelConfig::shape) --+
//! llama-3.1-8b (models.rs) -----------------+--> ModelShape --precision--> Demands: operations and bytes of any pass
//! 7b (plan::Named) -------------------------+
//! ```

use kernels::{KvDtype, WeightClass};

use crate::demands::Demands;

/// The shape of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Weights in the matrices of all layers, with all experts.
    pub layer_parameters: u64,
    /// Active weights per token in these.
    pub active_parameters: u64,
    /// Weights of experts in these.
    pub expert_parameters: u64,
    /// Those of the layers that an int4 model holds in int8: see [`WideParts`].
    pub wide_parameters: u64,
    /// Weights of the head, equal to those of the embedding.
    pub head_parameters: u64,
    /// Vocabulary tables in memory: 1 if the head is the embedding, 0 if they are unknown apart from the layers.
    pub tables: u64,
    /// Weights of tables beside the layers of which a pass reads one row a token: inputs of single layers.
    pub row_table_parameters: u64,
    /// Attention operations of one prefill row and one key, over all layers.
    pub pair_flops: u64,
    /// Attention operations of one decode row and one key, over all layers. Differs from prefill for a latent cache
    /// (MLA), which decode reads directly and prefill unpacks.
    pub decode_pair_flops: u64,
    /// Numbers that a token adds to the cache, over all layers.
    pub kv_values: u64,
    /// KV heads over all layers; int8 stores two scales for each.
    pub kv_heads: u64,
    /// Numbers (float32) of a sequence's states, over all layers; a step reads and writes them once for each sequence.
    pub state_numbers: u64,
    /// Operations of one row in these.
    pub state_flops: u64,
    /// Activations per row of a pass, without logits.
    pub activations: u64,
    /// Numbers of a row that the machines of an instance sum over all of them (tensor parallelism): the outputs of
    /// attention and of the MLP, over all layers.
    pub exchanged: u64,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Sliding window in tokens (`None`: full attention), and the number of layers with it.
    pub windows: Vec<(Option<usize>, usize)>,
    /// The mixture of experts, if any.
    pub experts: Option<Mixture>,
    /// Maximum tokens of a sequence.
    pub context_limit: usize,
}

impl ModelShape {
    /// Number of weights in memory.
    pub fn parameters(&self) -> u64 {
        self.layer_parameters + self.tables * self.head_parameters + self.row_table_parameters
    }

    /// Operations of one row in the layers' matrices, without attention and logits.
    pub fn flops_per_token(&self) -> f64 {
        2.0 * self.active_parameters as f64
    }

    /// Bytes of a sequence's states that a step reads and writes.
    pub fn state_bytes(&self) -> f64 {
        2.0 * 4.0 * self.state_numbers as f64
    }

    /// Operations of one row of logits.
    pub fn flops_per_logit_row(&self) -> f64 {
        2.0 * self.head_parameters as f64
    }

    /// Sum over `rows` rows from position `start` of the keys that a row attends to: its own and all before, within the
    /// layer's window. The mean over the layers.
    pub fn seen(&self, start: usize, rows: usize) -> f64 {
        self.mean_over_layers(|window| seen(start, rows, window))
    }

    /// The mean over the layers of a function of their window.
    pub fn mean_over_layers(&self, of: impl Fn(usize) -> f64) -> f64 {
        let layers: usize = self.windows.iter().map(|(_, count)| count).sum();
        let sum = self.windows.iter().map(|&(window, count)| of(window.unwrap_or(usize::MAX)) * count as f64);
        sum.sum::<f64>() / layers as f64
    }

    /// [`Demands`] with these precisions, computed from the shape. Norms, biases and the scales of int8 channels are
    /// not counted: about 1 %.
    pub fn demands(&self, weights: WeightClass, kv_dtype: KvDtype) -> Demands {
        let bytes = |parameters: u64, class| (parameters as f64 * weight_bytes(class)) as usize;
        let head = bytes(self.head_parameters, embedding_class(weights));
        let kv_bytes_per_token = match kv_dtype {
            KvDtype::Bf16 => 2 * self.kv_values,
            // One scale per head for the key and one for the value.
            KvDtype::Int8 => self.kv_values + 2 * 4 * self.kv_heads,
        };
        Demands {
            weights,
            weight_bytes: bytes(self.layer_parameters - self.wide_parameters, weights)
                + bytes(self.wide_parameters, embedding_class(weights))
                + head,
            expert_bytes: bytes(self.expert_parameters, weights),
            kv_bytes_per_token: kv_bytes_per_token as usize,
            kv_dtype,
            shape: self.clone(),
        }
    }

    /// Bytes of weights in memory that no pass reads as a whole: the embedding, if it is not the head, and tables of
    /// inputs of layers.
    pub fn unread_bytes(&self, weights: WeightClass) -> u64 {
        let tables = self.tables.saturating_sub(1) * self.head_parameters + self.row_table_parameters;
        (tables as f64 * weight_bytes(embedding_class(weights))) as u64
    }
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture {
    /// Experts per layer with experts.
    pub num_experts: usize,
    /// Experts per token.
    pub top_k: usize,
}

impl Mixture {
    /// The expected share of a layer's experts that a step of `rows` rows reads, if all experts are equally likely.
    /// Exact for one row.
    pub fn share_read(&self, rows: f64) -> f64 {
        1.0 - (1.0 - self.top_k as f64 / self.num_experts as f64).powf(rows)
    }
}

/// The class of the embedding and the head in a model of this class: int8 instead of int4, because an error in the head
/// directly changes every logit, and the tables are a small part of the bytes read.
pub fn embedding_class(weights: WeightClass) -> WeightClass {
    match weights {
        WeightClass::Int4 => WeightClass::Int8,
        same => same,
    }
}

/// The matrices of a layer that an int4 model holds in int8, where they are not stored as int4. The rule looks at no
/// weight; it was chosen by the KL divergence of two models for the bytes that each kind of matrix costs. A key or a
/// value is read by several heads and by every later token. The last layer writes to the stream what the head reads,
/// and nothing behind it makes its errors small; the first one's MLP makes the large numbers that stay in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideParts {
    /// Keys and values, if heads share them.
    pub keys_and_values: bool,
    /// The last product of attention, or of another mixer.
    pub o: bool,
    /// The first product of an MLP without experts.
    pub gate_up: bool,
    /// The second.
    pub down: bool,
}

impl WideParts {
    /// Narrower models hold more in int8: their errors cost more, and their bytes less.
    const NARROW: usize = 2048;

    /// Those of layer `index` of `layers`, in a model `hidden` wide whose layer has `heads` query and `kv_heads` KV
    /// heads.
    pub fn of_layer((index, layers): (usize, usize), hidden: usize, (heads, kv_heads): (usize, usize)) -> WideParts {
        let is_last = index + 1 == layers;
        WideParts {
            keys_and_values: kv_heads < heads,
            o: hidden < WideParts::NARROW,
            gate_up: is_last,
            down: is_last || index == 0,
        }
    }
}

/// Bytes of one weight; int4 has 4 bits, and a ratio of 8 bits per 32 weights.
fn weight_bytes(class: WeightClass) -> f64 {
    match class {
        WeightClass::Bf16 => 2.0,
        WeightClass::Int8 => 1.0,
        WeightClass::Int4 => 4.25 / 8.0,
    }
}

/// Sum over `rows` rows from position `start` of the positions that a row attends to: its own and all before, within
/// the window.
pub(crate) fn seen(start: usize, rows: usize, window: usize) -> f64 {
    let growing = rows.min(window.saturating_sub(start)) as f64;
    let grown = rows as f64 - growing;
    growing * start as f64 + growing * (growing + 1.0) / 2.0 + if grown > 0.0 { grown * window as f64 } else { 0.0 }
}
