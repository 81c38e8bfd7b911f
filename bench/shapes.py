"""Checkpoints of random weights in the shapes of published models, with fewer layers and experts: for figures of speed.

    python bench/shapes.py deepseek-v2-lite DIRECTORY      needs transformers; without a name, the names
    twostroke bench -m DIRECTORY --weights int8 -p 512,2048 -n 32

Widths, heads, windows and the share of each kind of layer are those of the models.
"""

import sys

SHAPES = {
    # Class of transformers, and its fields: every one that matters for speed and is not the class's own.
    "qwen3.5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", dict(
        hidden_size=1024, intermediate_size=3584, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=2,
        head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
        linear_value_head_dim=128, tie_word_embeddings=True, full_attention_interval=4)),
    "deepseek-v2-lite": ("DeepseekV2ForCausalLM", "DeepseekV2Config", dict(
        hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=6,
        first_k_dense_replace=1, topk_method="greedy")),
    "glm-4.7-flash": ("Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig", dict(num_hidden_layers=4, n_routed_experts=16)),
    "qwen3-30b-a3b": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", dict(
        hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=6,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
        norm_topk_prob=True)),
    "gpt-oss-20b": ("GptOssForCausalLM", "GptOssConfig", dict(
        num_hidden_layers=4, num_local_experts=8, rope_parameters={"rope_type": "default", "rope_theta": 150000.0})),
    "gemma-4-e2b": ("Gemma4ForCausalLM", "Gemma4TextConfig", dict(
        hidden_size=1536, intermediate_size=6144, num_hidden_layers=15, num_kv_shared_layers=8, num_attention_heads=8,
        num_key_value_heads=1, head_dim=256, global_head_dim=512, hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=32000, sliding_window=512, use_double_wide_mlp=True)),
    "lfm2-1.2b": ("Lfm2ForCausalLM", "Lfm2Config", dict(
        hidden_size=2048, intermediate_size=12288, num_hidden_layers=8, num_attention_heads=32, num_key_value_heads=8,
        full_attn_idxs=[2, 5])),
    "granite-4-h-tiny": ("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", dict(
        hidden_size=1536, intermediate_size=512, shared_intermediate_size=1024, num_hidden_layers=10,
        num_attention_heads=12, num_key_value_heads=4, mamba_n_heads=48, mamba_d_head=64, mamba_n_groups=1,
        mamba_d_state=128, num_local_experts=16, num_experts_per_tok=6, position_embedding_type="nope",
        layer_types=["mamba"] * 5 + ["attention"] + ["mamba"] * 4)),
    "falcon-h1-1.5b": ("FalconH1ForCausalLM", "FalconH1Config", dict(
        hidden_size=2048, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
        head_dim=128, mamba_d_ssm=3072, mamba_n_heads=48, mamba_d_head=64, mamba_n_groups=1, mamba_d_state=256)),
    "kimi-linear": ("KimiLinearForCausalLM", "KimiLinearConfig", dict(
        num_hidden_layers=4, num_experts=16, layer_types=["linear_attention"] * 3 + ["full_attention"])),
    "nemotron-3-nano": ("NemotronHForCausalLM", "NemotronHConfig", dict(
        hidden_size=2688, num_attention_heads=32, num_key_value_heads=2, head_dim=128, mamba_num_heads=64,
        mamba_head_dim=64, n_groups=8, ssm_state_size=128, n_routed_experts=16, num_experts_per_tok=6,
        moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712, routed_scaling_factor=2.5,
        layers_block_type=["linear_attention", "moe"] * 3 + ["full_attention", "moe"])),
}


def make(name, directory):
    import torch
    import transformers

    model, config, fields = SHAPES[name]
    config = getattr(transformers, config)(vocab_size=32000, max_position_embeddings=32768, pad_token_id=None, **fields)
    torch.manual_seed(0)
    getattr(transformers, model)._from_config(config, dtype=torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in SHAPES:
        make(sys.argv[1], sys.argv[2])
    else:
        sys.exit(f"python bench/shapes.py NAME DIRECTORY; names: {', '.join(SHAPES)}")
