//! Known models, from their published `config.json`: for planning, before anything is on the disk.

use crate::shape::ModelShape;

/// What a `config.json` says.
struct Published {
    /// For people.
    name: &'static str,
    /// Layers.
    layers: usize,
    /// Width of the residual stream.
    hidden: usize,
    /// Width of the MLP.
    intermediate: usize,
    /// Query heads.
    heads: usize,
    /// Key and value heads.
    kv_heads: usize,
    /// Width of a head.
    head_dim: usize,
    /// Tokens in the vocabulary.
    vocab: usize,
    /// The head is the embedding.
    tied: bool,
    /// Tokens that a sequence may have.
    max_model_len: usize,
}

/// Every known model, from its published `config.json`.
const MODELS: &[Published] = &[
    shape("llama-2-7b", [32, 4096, 11008], [32, 32, 128], 32_000, false, 4096),
    shape("llama-2-70b", [80, 8192, 28672], [64, 8, 128], 32_000, false, 4096),
    shape("llama-3.1-8b", [32, 4096, 14336], [32, 8, 128], 128_256, false, 131_072),
    shape("llama-3.1-70b", [80, 8192, 28672], [64, 8, 128], 128_256, false, 131_072),
    shape("llama-3.2-1b", [16, 2048, 8192], [32, 8, 64], 128_256, true, 131_072),
    shape("mistral-7b", [32, 4096, 14336], [32, 8, 128], 32_768, false, 32_768),
    shape("qwen2.5-0.5b", [24, 896, 4864], [14, 2, 64], 151_936, true, 32_768),
    shape("qwen2.5-7b", [28, 3584, 18944], [28, 4, 128], 152_064, false, 32_768),
];

const fn shape(
    name: &'static str,
    [layers, hidden, intermediate]: [usize; 3],
    [heads, kv_heads, head_dim]: [usize; 3],
    vocab: usize,
    tied: bool,
    max_model_len: usize,
) -> Published {
    Published { name, layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tied, max_model_len }
}

impl ModelShape {
    /// The models that are known by name.
    pub fn known() -> impl Iterator<Item = (&'static str, ModelShape)> {
        MODELS.iter().map(|model| (model.name, model.shape()))
    }

    /// The model called `name`.
    pub fn named(name: &str) -> Option<ModelShape> {
        MODELS.iter().find(|model| model.name == name).map(Published::shape)
    }
}

impl Published {
    fn shape(&self) -> ModelShape {
        let Published { layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, .. } = *self;
        let parameters = (layers * hidden * (2 * (heads + kv_heads) * head_dim + 3 * intermediate)) as u64;
        // As of a configuration.
        let widths = 3 * hidden + (2 * heads + 2 * kv_heads) * head_dim + 3 * intermediate;
        ModelShape {
            layer_parameters: parameters,
            active_parameters: parameters,
            expert_parameters: 0,
            head_parameters: (vocab * hidden) as u64,
            tables: if self.tied { 1 } else { 2 },
            pair_flops: (4 * layers * heads * head_dim) as u64,
            kv_values: (2 * layers * kv_heads * head_dim) as u64,
            kv_heads: (layers * kv_heads) as u64,
            activations: widths as u64,
            vocab,
            windows: vec![(None, layers)],
            experts: None,
            context_limit: self.max_model_len,
        }
    }
}
