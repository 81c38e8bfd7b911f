//! What the cost of a model's passes follows from: a `config.json`, a known model, or nothing but its parameters.
//!
//! ```text
//! config.json -> ModelConfig --+
//! llama-3.1-8b -> ModelShape --+--> Shape --precision--> Demands --> FLOPs and bytes of any pass
//! 7b ------------> 7e9 --------+
//! ```
//! A mixture of experts has two counts of parameters: a token passes through the active ones, the memory holds all. A
//! layer with a sliding window reads what the window holds, though the cache keeps every token in every layer.

use kernels::{KvDtype, WeightClass};
use model::config::ExpertConfig;
use model::{ModelConfig, embedding_class};
use scheduler::presets::{MODELS, ModelShape};

use crate::work::Demands;

/// The shape of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// For people.
    pub name: String,
    /// Weights in the matrices of all layers, every expert counted.
    pub layer_parameters: u64,
    /// Those that a token passes through.
    pub active_parameters: u64,
    /// Those of experts.
    pub expert_parameters: u64,
    /// Weights of the head; the embedding has as many.
    pub head_parameters: u64,
    /// Embedding tables: 1 where the head is the embedding, 0 where they are not known apart.
    pub tables: u64,
    /// Operations of one row against one key, all layers.
    pub pair_flops: u64,
    /// Numbers that a token adds to the cache, all layers.
    pub kv_values: u64,
    /// Heads of keys and values, all layers: int8 keeps two scales for each.
    pub kv_heads: u64,
    /// Numbers that a pass holds for each row beside its logits.
    pub activations: u64,
    /// Tokens in the vocabulary; 0 if unknown.
    pub vocab: u64,
    /// Layers by what their attention sees: a number of last tokens, or all.
    pub windows: Vec<(Option<usize>, usize)>,
    /// Experts, if there are any.
    pub experts: Option<ExpertConfig>,
    /// Tokens that a sequence may have.
    pub context_limit: usize,
    /// The model whose heads and layers were taken where only the number of parameters is known.
    pub assumed: Option<&'static str>,
}

impl Shape {
    /// From its configuration.
    pub fn of_config(name: &str, config: &ModelConfig) -> Shape {
        let heads = config.heads();
        let mut windows: Vec<(Option<usize>, usize)> = Vec::new();
        for layer in &config.layers {
            match windows.iter_mut().find(|(window, _)| *window == layer.window) {
                Some((_, count)) => *count += 1,
                None => windows.push((layer.window, 1)),
            }
        }
        let with_experts = config.layers.iter().filter(|layer| layer.has_experts).count() as u64;
        let experts = config.experts.filter(|_| with_experts > 0);
        let of_experts = |experts: ExpertConfig| {
            3 * with_experts * (experts.num_experts * experts.intermediate_size * config.hidden_size) as u64
        };
        // The residual stream, a block's input and output, queries, keys and values, what attention gives, the MLP.
        let widths = 3 * config.hidden_size + heads.qkv_width() + heads.q_width() + 3 * config.widest_mlp();
        Shape {
            name: name.to_string(),
            layer_parameters: config.layer_parameters(),
            active_parameters: config.active_layer_parameters(),
            expert_parameters: experts.map_or(0, of_experts),
            head_parameters: config.head_parameters(),
            tables: if config.tie_word_embeddings { 1 } else { 2 },
            pair_flops: config.attention_flops(1),
            kv_values: 2 * (config.num_layers * config.num_kv_heads * config.head_dim) as u64,
            kv_heads: (config.num_layers * config.num_kv_heads) as u64,
            activations: widths as u64,
            vocab: config.vocab_size as u64,
            windows,
            experts,
            context_limit: config.context_limit,
            assumed: None,
        }
    }

    /// Of a known model.
    pub fn of_preset(preset: &ModelShape) -> Shape {
        let ModelShape { layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, .. } = *preset;
        let parameters = preset.layer_parameters() as u64;
        let widths = 3 * hidden + 2 * (heads + kv_heads) * head_dim + 3 * intermediate;
        Shape {
            name: preset.name.to_string(),
            layer_parameters: parameters,
            active_parameters: parameters,
            expert_parameters: 0,
            head_parameters: (vocab * hidden) as u64,
            tables: if preset.tied { 1 } else { 2 },
            pair_flops: (4 * layers * heads * head_dim) as u64,
            kv_values: (2 * layers * kv_heads * head_dim) as u64,
            kv_heads: (layers * kv_heads) as u64,
            activations: widths as u64,
            vocab: vocab as u64,
            windows: vec![(None, layers)],
            experts: None,
            context_limit: preset.max_model_len,
            assumed: None,
        }
    }

    /// Of a model of which nothing but its parameters is known: each is multiplied once per token. Heads and layers,
    /// for attention and cache, are those of the known model that is nearest in size.
    pub fn of_count(name: &str, parameters: u64) -> Shape {
        let distance = |preset: &&ModelShape| {
            let shape = Shape::of_preset(preset);
            (shape.parameters() as f64 / parameters as f64).ln().abs()
        };
        let nearest = MODELS.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("models are known");
        Shape {
            name: name.to_string(),
            layer_parameters: parameters,
            active_parameters: parameters,
            head_parameters: 0,
            tables: 0,
            assumed: Some(nearest.name),
            ..Shape::of_preset(nearest)
        }
    }

    /// A known model by its name, or a number of parameters such as `7b`, `0.5b`, `135m`.
    pub fn named(name: &str) -> Option<Shape> {
        let preset = MODELS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name)).map(Shape::of_preset);
        preset.or_else(|| Some(Shape::of_count(name, count(name)?)))
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
        self.mean_over_layers(|window| {
            let growing = rows.min(window.saturating_sub(start)) as f64;
            let grown = rows as f64 - growing;
            growing * start as f64
                + growing * (growing + 1.0) / 2.0
                + if grown > 0.0 { grown * window as f64 } else { 0.0 }
        })
    }

    /// The mean of a number of tokens over the layers, by their window.
    pub fn mean_over_layers(&self, of: impl Fn(usize) -> f64) -> f64 {
        let layers: usize = self.windows.iter().map(|(_, count)| count).sum();
        let sum = self.windows.iter().map(|&(window, count)| of(window.unwrap_or(usize::MAX)) * count as f64);
        sum.sum::<f64>() / layers as f64
    }

    /// What its passes ask with weights and cache of these classes. Norms, biases and the scales of int8 channels are not
    /// counted: less than a hundredth.
    pub fn demands(&self, weights: WeightClass, kv_dtype: KvDtype) -> Demands {
        let bytes = |parameters: u64, class| (parameters as f64 * weight_bytes(class)) as u64;
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
            kv_bytes_per_token,
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
pub fn weight_bytes(class: WeightClass) -> f64 {
    match class {
        WeightClass::Bf16 => 2.0,
        WeightClass::Int8 => 1.0,
        WeightClass::Int4 => 4.25 / 8.0,
    }
}

/// `7b` is 7e9, `0.5B` 5e8, `135m` 1.35e8.
fn count(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let factor = match unit {
        "m" | "M" => 1e6,
        "b" | "B" => 1e9,
        "t" | "T" => 1e12,
        _ => return None,
    };
    let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let parameters = number.parse::<f64>().ok().filter(|_| plain)? * factor;
    (1e6..=1e14).contains(&parameters).then_some(parameters as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_people_write_them() {
        let table = [
            ("7b", Some(7_000_000_000)),
            ("0.5B", Some(500_000_000)),
            ("135m", Some(135_000_000)),
            ("1t", Some(1_000_000_000_000)),
            ("b", None),
            ("", None),
            ("7", None),
            ("-7b", None),
            ("nanb", None),
            ("1e3b", None),
            ("0b", None),
            ("7bb", None),
            ("7ü", None),
        ];
        for (text, wanted) in table {
            assert_eq!(count(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn the_nearest_known_model_lends_its_heads() {
        for (name, assumed) in [("7b", "mistral-7b"), ("1b", "llama-3.2-1b"), ("400b", "llama-3.1-70b")] {
            let shape = Shape::named(name).expect("a count");
            assert!(shape.assumed.is_some(), "{name}");
            if name != "7b" {
                assert_eq!(shape.assumed, Some(assumed), "{name}");
            }
        }
        assert_eq!(Shape::named("llama-3.1-8b").expect("known").assumed, None);
        assert_eq!(Shape::named("llama-9"), None);
    }
}
