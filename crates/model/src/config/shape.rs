//! A configuration as planning sees it: parameters, operations of a pair, numbers in the cache.

use kernels::KvDtype;
use roofline::{Mixture, ModelShape};

use super::{ExpertConfig, MixerWidths, ModelConfig};

impl ModelConfig {
    /// What planning needs to know of it.
    pub fn shape(&self) -> ModelShape {
        let mut windows: Vec<(Option<usize>, usize)> = Vec::new();
        for layer in self.layers.iter().filter(|layer| layer.mixer.has_keys()) {
            match windows.iter_mut().find(|(window, _)| *window == layer.window) {
                Some((_, count)) => *count += 1,
                None => windows.push((layer.window, 1)),
            }
        }
        let with_experts = self.layers.iter().filter(|layer| layer.has_experts()).count();
        let experts = self.experts.filter(|_| with_experts > 0);
        let each = |experts: ExpertConfig| experts.num_experts as u64 * self.expert_parameters(&experts);
        // The residual stream, a block's input and output, queries, keys and values, what attention gives, the MLP.
        let mixer = |layer: usize| {
            let widest = self.mixer_widths(layer).map(|MixerWidths { row, out, .. }| row + out).max().unwrap_or(0);
            widest + self.between(layer).map_or(0, |between| between.iter().sum())
        };
        let mixer = (0..self.num_layers).map(mixer).max().unwrap_or(0);
        // Of each row the inputs of all layers lie ready, twice.
        let inputs = self.layer_input.map_or(0, |input| (2 * self.num_layers + 1) * input.width);
        let widths = 3 * self.hidden_size + mixer + 3 * self.widest_mlp() + inputs;
        let cache = self.cache_shape(KvDtype::Bf16, 1, 32).groups;
        let kv_heads: usize = cache.iter().map(|group| group.layers * group.num_kv_heads).sum();
        let kv_values: usize = cache.iter().map(|group| group.layers * group.num_kv_heads * group.stored()).sum();
        ModelShape {
            layer_parameters: self.layer_parameters(),
            active_parameters: self.active_layer_parameters(),
            expert_parameters: experts.map_or(0, |experts| with_experts as u64 * each(experts)),
            wide_parameters: self.wide_parameters(),
            head_parameters: self.head_parameters(),
            tables: self.head.tables(),
            row_table_parameters: self.row_table_parameters(),
            pair_flops: self.attention_flops(1),
            decode_pair_flops: self.attention_flops(1),
            kv_values: kv_values as u64,
            kv_heads: kv_heads as u64,
            state_numbers: self.state_numbers() as u64,
            state_flops: self.state_flops(),
            activations: widths as u64,
            exchanged: (2 * self.num_layers * self.hidden_size) as u64,
            vocab: self.vocab_size,
            windows,
            experts: experts.map(|experts| Mixture { num_experts: experts.num_experts, top_k: experts.rule.top_k }),
            context_limit: self.context_limit,
        }
    }
}
