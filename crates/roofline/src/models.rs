//! Known models, from their published `config.json`, for planning without their files.
//!
//! ```text
//! dense        layers x (attention + MLP)                                     qwen3-8b
//! windows      all layers but every n-th have a sliding window                gemma-3-4b, gpt-oss-20b
//! experts      some dense layers, then a router, experts, a shared expert     qwen3-30b-a3b, glm-4.5-air
//! latent       MLA: the cache has one latent for all heads of a layer         deepseek-v3, kimi-k2
//! ```
//! Each row was checked against the `config.json` in the model's repository on Hugging Face, or, for gated models,
//! against two training frameworks (MaxText's and slime's `configs/models`), and its number of parameters against the
//! model card, in a test. Vision towers and multi-token prediction heads are left out: a pass over text does not use
//! them. So are models with recurrent layers (Qwen3.5 and later, LFM2, Nemotron), whose cost this shape cannot
//! describe.

use crate::shape::{Mixture, ModelShape, WideParts};

/// The fields of a `config.json` that determine the shape.
#[derive(Clone, Copy)]
struct Published {
    name: &'static str,
    layers: usize,
    /// Width of the residual stream.
    hidden: usize,
    /// Width of the MLP, in layers without experts.
    intermediate: usize,
    /// Query heads.
    heads: usize,
    /// Key and value heads.
    kv_heads: usize,
    /// Width of a head.
    head_dim: usize,
    /// Tokens in the vocabulary.
    vocab: usize,
    /// Whether the head is the embedding.
    tied: bool,
    /// Maximum tokens of a sequence.
    max_model_len: usize,
    /// Tokens of the window, and n, if every n-th layer has none.
    window: Option<(usize, usize)>,
    experts: Option<Experts>,
    latent: Option<Latent>,
}

/// A mixture of experts.
#[derive(Clone, Copy)]
struct Experts {
    /// Experts per layer, except in dense layers.
    count: usize,
    /// Experts per token.
    top_k: usize,
    /// Width of one expert.
    width: usize,
    /// Width of the shared expert.
    shared: usize,
    /// First layers, which have an MLP instead.
    dense_layers: usize,
}

/// Multi-head latent attention (DeepSeek-AI, 2024): the cache keeps one latent and one rotated key for all heads.
#[derive(Clone, Copy)]
struct Latent {
    /// Rank of the query projection; 0: a single matrix.
    q_rank: usize,
    /// Width of the latent.
    kv_rank: usize,
    /// Widths of a head: of the key without position, of the rotated part, of the value.
    nope: usize,
    rope: usize,
    value: usize,
}

const MODELS: &[Published] = &[
    shape("llama-2-7b", [32, 4096, 11008], [32, 32, 128], 32_000, 4096),
    shape("llama-2-70b", [80, 8192, 28672], [64, 8, 128], 32_000, 4096),
    shape("llama-3.1-8b", [32, 4096, 14336], [32, 8, 128], 128_256, 131_072),
    shape("llama-3.1-70b", [80, 8192, 28672], [64, 8, 128], 128_256, 131_072),
    shape("llama-3.2-1b", [16, 2048, 8192], [32, 8, 64], 128_256, 131_072).tied(),
    shape("llama-3.2-3b", [28, 3072, 8192], [24, 8, 128], 128_256, 131_072).tied(),
    shape("llama-3.3-70b", [80, 8192, 28672], [64, 8, 128], 128_256, 131_072),
    shape("mistral-7b", [32, 4096, 14336], [32, 8, 128], 32_768, 32_768),
    shape("mixtral-8x7b", [32, 4096, 14336], [32, 8, 128], 32_000, 32_768).experts([8, 2, 14336], 0, 0),
    shape("mixtral-8x22b", [56, 6144, 16384], [48, 8, 128], 32_768, 65_536).experts([8, 2, 16384], 0, 0),
    shape("qwen2.5-0.5b", [24, 896, 4864], [14, 2, 64], 151_936, 32_768).tied(),
    shape("qwen2.5-7b", [28, 3584, 18944], [28, 4, 128], 152_064, 32_768),
    shape("qwen3-0.6b", [28, 1024, 3072], [16, 8, 128], 151_936, 40_960).tied(),
    shape("qwen3-1.7b", [28, 2048, 6144], [16, 8, 128], 151_936, 40_960).tied(),
    shape("qwen3-4b", [36, 2560, 9728], [32, 8, 128], 151_936, 40_960).tied(),
    shape("qwen3-8b", [36, 4096, 12288], [32, 8, 128], 151_936, 40_960),
    shape("qwen3-14b", [40, 5120, 17408], [40, 8, 128], 151_936, 40_960),
    shape("qwen3-32b", [64, 5120, 25600], [64, 8, 128], 151_936, 40_960),
    shape("qwen3-30b-a3b", [48, 2048, 6144], [32, 4, 128], 151_936, 40_960).experts([128, 8, 768], 0, 0),
    shape("qwen3-235b-a22b", [94, 4096, 12288], [64, 4, 128], 151_936, 40_960).experts([128, 8, 1536], 0, 0),
    shape("gemma-3-270m", [18, 640, 2048], [4, 1, 256], 262_144, 32_768).tied().window(512, 6),
    shape("gemma-3-1b", [26, 1152, 6912], [4, 1, 256], 262_144, 32_768).tied().window(512, 6),
    shape("gemma-3-4b", [34, 2560, 10240], [8, 4, 256], 262_208, 131_072).tied().window(1024, 6),
    shape("gemma-3-12b", [48, 3840, 15360], [16, 8, 256], 262_208, 131_072).tied().window(1024, 6),
    shape("gemma-3-27b", [62, 5376, 21504], [32, 16, 128], 262_208, 131_072).tied().window(1024, 6),
    shape("gpt-oss-20b", [24, 2880, 2880], [64, 8, 64], 201_088, 131_072).experts([32, 4, 2880], 0, 0).window(128, 2),
    shape("gpt-oss-120b", [36, 2880, 2880], [64, 8, 64], 201_088, 131_072).experts([128, 4, 2880], 0, 0).window(128, 2),
    shape("deepseek-v2-lite", [27, 2048, 10944], [16, 16, 128], 102_400, 163_840)
        .experts([64, 6, 1408], 2 * 1408, 1)
        .latent([0, 512], [128, 64, 128]),
    shape("deepseek-v3", [61, 7168, 18432], [128, 128, 128], 129_280, 163_840)
        .experts([256, 8, 2048], 2048, 3)
        .latent([1536, 512], [128, 64, 128]),
    shape("kimi-k2", [61, 7168, 18432], [64, 64, 128], 163_840, 131_072)
        .experts([384, 8, 2048], 2048, 1)
        .latent([1536, 512], [128, 64, 128]),
    shape("glm-4.5-air", [46, 4096, 10944], [96, 8, 128], 151_552, 131_072).experts([128, 8, 1408], 1408, 1),
    shape("glm-4.7-flash", [47, 2048, 10240], [20, 20, 256], 154_880, 202_752)
        .experts([64, 4, 1536], 1536, 1)
        .latent([768, 512], [192, 64, 256]),
    shape("glm-4.5", [92, 5120, 12288], [96, 8, 128], 151_552, 131_072).experts([160, 8, 1536], 1536, 3),
];

const fn shape(
    name: &'static str,
    [layers, hidden, intermediate]: [usize; 3],
    [heads, kv_heads, head_dim]: [usize; 3],
    vocab: usize,
    max_model_len: usize,
) -> Published {
    Published {
        name,
        layers,
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        vocab,
        tied: false,
        max_model_len,
        window: None,
        experts: None,
        latent: None,
    }
}

impl ModelShape {
    /// The known models and their names.
    pub fn known() -> impl Iterator<Item = (&'static str, ModelShape)> {
        MODELS.iter().map(|model| (model.name, model.shape()))
    }

    /// The model called `name`.
    pub fn named(name: &str) -> Option<ModelShape> {
        MODELS.iter().find(|model| model.name == name).map(Published::shape)
    }
}

impl Published {
    const fn tied(self) -> Published {
        Published { tied: true, ..self }
    }

    const fn window(self, tokens: usize, every: usize) -> Published {
        Published { window: Some((tokens, every)), ..self }
    }

    const fn experts(self, [count, top_k, width]: [usize; 3], shared: usize, dense_layers: usize) -> Published {
        Published { experts: Some(Experts { count, top_k, width, shared, dense_layers }), ..self }
    }

    const fn latent(self, [q_rank, kv_rank]: [usize; 2], [nope, rope, value]: [usize; 3]) -> Published {
        Published { latent: Some(Latent { q_rank, kv_rank, nope, rope, value }), ..self }
    }

    /// For one layer: attention weights; operations of a row and a key over all heads, in prefill and in decode;
    /// numbers and heads that a token adds to the cache.
    fn attention(&self) -> (usize, [usize; 2], usize, usize) {
        let Published { hidden, heads, kv_heads, head_dim, .. } = *self;
        match self.latent {
            None => (
                hidden * 2 * (heads + kv_heads) * head_dim,
                [4 * heads * head_dim; 2],
                2 * kv_heads * head_dim,
                kv_heads,
            ),
            Some(Latent { q_rank, kv_rank, nope, rope, value }) => {
                let query = nope + rope;
                let queries = if q_rank == 0 { hidden * heads * query } else { q_rank * (hidden + heads * query) };
                let keys = hidden * (kv_rank + rope) + kv_rank * heads * (nope + value);
                let weights = queries + keys + heads * value * hidden;
                // Prefill unpacks the latent into keys and values of all heads; a decode row projects its queries into
                // the latent space instead, and reads only the latent.
                let pair = [2 * heads * (query + value), 2 * heads * (kv_rank + rope + kv_rank)];
                (weights, pair, kv_rank + rope, 1)
            }
        }
    }

    /// Weights of a layer that an int4 model holds in int8.
    fn wide_parameters(&self, index: usize) -> usize {
        let Published { layers, hidden, intermediate, heads, kv_heads, head_dim, .. } = *self;
        let WideParts { keys_and_values, o, gate_up, down } =
            WideParts::of_layer((index, layers), hidden, (heads, kv_heads));
        let value = self.latent.map_or(head_dim, |latent| latent.value);
        let is_dense = self.experts.is_none_or(|experts| index < experts.dense_layers);
        let of = |is_wide, width: usize| if is_wide { hidden * width } else { 0 };
        of(keys_and_values && self.latent.is_none(), 2 * kv_heads * head_dim)
            + of(o, heads * value)
            + of(gate_up && is_dense, 2 * intermediate)
            + of(down && is_dense, intermediate)
    }

    fn shape(&self) -> ModelShape {
        let Published { layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, .. } = *self;
        let (attention, [pair, decode_pair], kv, scaled) = self.attention();
        let mlp = 3 * hidden * intermediate;
        let (expert, all, active, widest) = match self.experts {
            None => (0, layers * mlp, layers * mlp, intermediate),
            Some(Experts { count, top_k, width, shared, dense_layers }) => {
                let (sparse, one) = (layers - dense_layers, 3 * hidden * width);
                let besides = dense_layers * mlp + sparse * (3 * hidden * shared + hidden * count);
                let dense = if dense_layers > 0 { intermediate } else { 0 };
                let experts = sparse * count * one;
                (experts, besides + experts, besides + sparse * top_k * one, dense.max(top_k * width + shared))
            }
        };
        let windows = match self.window {
            None => vec![(None, layers)],
            Some((tokens, every)) => vec![(Some(tokens), layers - layers / every), (None, layers / every)],
        };
        // As in `model::ModelConfig::shape`.
        let widths = 3 * hidden + (2 * heads + 2 * kv_heads) * head_dim + 3 * widest;
        ModelShape {
            layer_parameters: (layers * attention + all) as u64,
            active_parameters: (layers * attention + active) as u64,
            expert_parameters: expert as u64,
            wide_parameters: (0..layers).map(|index| self.wide_parameters(index) as u64).sum(),
            head_parameters: (vocab * hidden) as u64,
            tables: if self.tied { 1 } else { 2 },
            row_table_parameters: 0,
            pair_flops: (layers * pair) as u64,
            decode_pair_flops: (layers * decode_pair) as u64,
            kv_values: (layers * kv) as u64,
            kv_heads: (layers * scaled) as u64,
            state_numbers: 0,
            state_flops: 0,
            activations: widths as u64,
            exchanged: (2 * layers * hidden) as u64,
            vocab,
            windows,
            experts: self.experts.map(|experts| Mixture { num_experts: experts.count, top_k: experts.top_k }),
            context_limit: self.max_model_len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, billions of parameters as in the model card or the technical report, and active billions per token.
    const CARDS: &[(&str, &str, &str)] = &[
        ("llama-2-7b", "6.74", ""),
        ("llama-2-70b", "69.0", ""),
        ("llama-3.1-8b", "8.03", ""),
        ("llama-3.1-70b", "70.6", ""),
        ("llama-3.2-1b", "1.24", ""),
        ("llama-3.2-3b", "3.21", ""),
        ("llama-3.3-70b", "70.6", ""),
        ("mistral-7b", "7.25", ""),
        ("mixtral-8x7b", "46.7", "12.9"),
        ("mixtral-8x22b", "141", "39"),
        ("qwen2.5-0.5b", "0.49", ""),
        ("qwen2.5-7b", "7.61", ""),
        ("qwen3-0.6b", "0.6", ""),
        ("qwen3-1.7b", "1.7", ""),
        ("qwen3-4b", "4.0", ""),
        ("qwen3-8b", "8.2", ""),
        ("qwen3-14b", "14.8", ""),
        ("qwen3-32b", "32.8", ""),
        ("qwen3-30b-a3b", "30.5", "3.3"),
        ("qwen3-235b-a22b", "235", "22"),
        // Of its text part: embedding and the rest, in Table 1 of the Gemma 3 report.
        ("gemma-3-270m", "0.27", ""),
        ("gemma-3-1b", "1.000", ""),
        ("gemma-3-4b", "3.884", ""),
        ("gemma-3-12b", "11.771", ""),
        ("gemma-3-27b", "27.016", ""),
        ("gpt-oss-20b", "20.9", "3.6"),
        ("gpt-oss-120b", "116.8", "5.1"),
        ("deepseek-v2-lite", "15.7", "2.4"),
        ("deepseek-v3", "671", "36.6"),
        ("kimi-k2", "1000", "32"),
        ("glm-4.5-air", "106", "12"),
        ("glm-4.5", "355", "32"),
        ("glm-4.7-flash", "29.9", "?"),
    ];

    /// Within 1 %, or equal in the printed digits.
    fn agrees(count: u64, printed: &str) -> bool {
        let published: f64 = printed.parse().expect("a number");
        let decimals = printed.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let billions = count as f64 / 1e9;
        (billions / published - 1.0).abs() <= 0.01 || format!("{billions:.decimals$}") == printed
    }

    #[test]
    fn every_model_has_as_many_parameters_as_its_card_says() {
        for (name, shape) in ModelShape::known() {
            let Some(&(_, all, active)) = CARDS.iter().find(|(card, ..)| *card == name) else {
                panic!("{name}: what does its card say?");
            };
            let rounded = |count: u64| count as f64 / 1e9;
            // Its card says only "1T".
            let close = agrees(shape.parameters(), all)
                || name == "kimi-k2" && shape.parameters().abs_diff(1_000_000_000_000) < 40_000_000_000;
            assert!(close, "{name}: {} B parameters, {all} published", rounded(shape.parameters()));
            // Some cards count the head as used, some the embedding too, some neither.
            let used = shape.active_parameters + shape.head_parameters;
            let near = |used: u64| (rounded(used) / active.parse::<f64>().expect("a number") - 1.0).abs() < 0.03;
            let unknown = ["", "?"].contains(&active);
            let counted = [shape.active_parameters, used, used + shape.head_parameters];
            let close = unknown || counted.into_iter().any(near);
            assert!(close, "{name}: {} B used, {active}", rounded(used));
            assert_eq!(active.is_empty(), shape.experts.is_none(), "{name}");
            let layers: usize = shape.windows.iter().map(|(_, layers)| layers).sum();
            assert!(
                layers > 0 && shape.context_limit >= 4096 && shape.active_parameters <= shape.layer_parameters,
                "{name}"
            );
        }
        assert_eq!(CARDS.len(), MODELS.len(), "a card without a model");
    }

    #[test]
    fn a_latent_cache_is_small_and_costs_arithmetic() {
        let [v3, llama] = ["deepseek-v3", "llama-3.1-70b"].map(|name| ModelShape::named(name).expect("known"));
        // 576 numbers a layer and token, where 8 heads of 128 keep 2,048.
        assert_eq!((v3.kv_values, llama.kv_values), (61 * 576, 80 * 2048));
        assert_eq!(v3.decode_pair_flops, 61 * 2 * 128 * (576 + 512));
        assert_eq!(v3.pair_flops, 61 * 2 * 128 * (192 + 128));
        assert_eq!(llama.decode_pair_flops, llama.pair_flops);
        let gemma = ModelShape::named("gemma-3-4b").expect("known");
        assert_eq!(gemma.windows, [(Some(1024), 29), (None, 5)]);
    }
}
