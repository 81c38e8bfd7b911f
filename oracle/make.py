"""Tiny checkpoints of every supported family, and the logits that `transformers` gives for them.

    python oracle/make.py crates/model/tests/data            writes them
    python oracle/make.py --check crates/model/tests/data    makes them again and compares; exit status 1 when they differ

Each case is a directory in the layout of the Hugging Face hub (config.json in one of the two spellings in use,
safetensors in one or several files) with random weights from a fixed seed, and beside it:

    oracle.json   the prompts as token ids, and which rows of each were recorded
    logits.f32    those rows, float32, little-endian, [rows, vocab_size]

The logits are computed in float32 from weights whose matrices are rounded to bfloat16, which is what the engine's bf16
weights are. A row whose two best logits nearly tie says nothing about an implementation that rounds activations, so
prompts are drawn until every recorded row has a clear winner. For the same reason no token of a mixture of experts may
nearly have gone to another expert; and where the norm behind a state raises what is nearly zero, no row of a prompt may
be far from itself in bfloat16, as transformers computes it.

A prompt with `max_model_len` was computed as a server computes it that was started for sequences of that length. It
matters for LongRoPE alone, which has one set of frequencies for short sequences and one for long ones.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy
import safetensors.torch
import torch
import transformers

SHORT_PROMPTS = [1, 5, 24]  # all rows recorded
LONG_PROMPT = 300  # spans cache blocks and attention splits; the last rows recorded
LONG_ROWS = 6
MIN_MARGIN = 0.05  # between the two best logits, in standard deviations of the row
MIN_ROUTER_MARGIN = 0.05  # between the worst chosen expert and the best other one, likewise
MAX_NARROW_ERROR = 0.025  # of a row of logits in bfloat16, relative, in models with states
TOLERANCE = 1e-4

COMMON = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def case(architecture, model_type, stored, shards=1, embedding=1.0, norm=1.0, head_norm=None, fused_experts=False,
         mxfp4=False, **fields):
    """`embedding`: standard deviation of its weights. `norm`: mean of a norm's weights; `head_norm`: of q and k.
    `mxfp4`: of the experts."""
    config = {"architectures": [architecture], "model_type": model_type, **COMMON, **fields}
    return {"config": config, "stored": stored, "shards": shards, "embedding": embedding, "norm": norm,
            "head_norm": norm if head_norm is None else head_norm, "fused_experts": fused_experts, "mxfp4": mxfp4}


CASES = {
    # Multi-head attention, an untied head, no scaling; float16 in the file; transformers 4, without rope_theta.
    "llama2": case(
        "LlamaForCausalLM", "llama", torch.float16,
        num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_scaling=None, torch_dtype="float16",
    ),
    # Grouped queries, a tied head, llama3 scaling whose three bands all occur; widths that fill no tile.
    "llama3": case(
        "LlamaForCausalLM", "llama", torch.bfloat16,
        hidden_size=72, intermediate_size=100, vocab_size=131, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_theta=10000.0, torch_dtype="bfloat16", eos_token_id=[2, 3],
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 64},
    ),
    # Biases everywhere; linear scaling under its legacy name; float32 in the file.
    "llama-bias-linear": case(
        "LlamaForCausalLM", "llama", torch.float32,
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
        rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0}, torch_dtype="float32",
    ),
    # Llama 3 in the spelling of transformers 5.
    "llama3-v5": case(
        "LlamaForCausalLM", "llama", torch.bfloat16,
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
        rms_norm_eps=1e-5, tie_word_embeddings=True, dtype="bfloat16",
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 128},
    ),
    # Chunks of attention, norms of queries and keys behind the rotation of neighbours, and queries that grow where there
    # is none; experts in every second layer, whose inputs are weighed, and one of every token, as columns.
    "llama4": case(
        "Llama4ForCausalLM", "llama4_text", torch.bfloat16, fused_experts=True,
        hidden_size=32, intermediate_size=24, intermediate_size_mlp=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=False,
        num_local_experts=5, num_experts_per_tok=2, interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1, 0],
        attention_chunk_size=20, use_qk_norm=True, attn_temperature_tuning=True, floor_scale=8, attn_scale=0.25,
        dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # One key/value head for four query heads; three files; transformers 5.
    "mistral": case(
        "MistralForCausalLM", "mistral", torch.bfloat16, shards=3,
        num_attention_heads=4, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
        sliding_window=None, dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    # A window of less than a cache block in every layer; heads of 80, which end within a step of a product.
    "mistral-window": case(
        "MistralForCausalLM", "mistral", torch.bfloat16,
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=80,
        rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=24, dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # q, k, v biases; tied; transformers 4.
    "qwen2": case(
        "Qwen2ForCausalLM", "qwen2", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_theta=1000000.0, use_sliding_window=False, sliding_window=32768, max_window_layers=2,
        torch_dtype="bfloat16",
    ),
    # YaRN as Qwen2.5's model card spells it.
    "qwen2.5-yarn": case(
        "Qwen2ForCausalLM", "qwen2", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False,
        max_position_embeddings=128, rope_theta=10000.0, use_sliding_window=False, torch_dtype="bfloat16",
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
    # Norms of q and k; heads wider than hidden_size / heads; transformers 5.
    "qwen3": case(
        "Qwen3ForCausalLM", "qwen3", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, rms_norm_eps=1e-6, tie_word_embeddings=True,
        attention_bias=False, use_sliding_window=False, sliding_window=None, dtype="bfloat16",
        layer_types=["full_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    # A window that reaches across attention splits, in one layer of two; heads of 16.
    "qwen3-window": case(
        "Qwen3ForCausalLM", "qwen3", torch.bfloat16,
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
        tie_word_embeddings=False, attention_bias=False, use_sliding_window=True, sliding_window=270,
        layer_types=["sliding_attention", "full_attention"], dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # The same with biases and the rarer options of YaRN; float16 in two files.
    "qwen3-bias-yarn": case(
        "Qwen3ForCausalLM", "qwen3", torch.float16, shards=2,
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
        tie_word_embeddings=False, attention_bias=True, use_sliding_window=False, dtype="float16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 16.0,
                         "beta_slow": 2.0, "attention_factor": 1.25, "truncate": False,
                         "original_max_position_embeddings": 128},
    ),
    # Two kinds of layers: a window shorter than the prompts, then everything. Norms before and after each block, around
    # zero in the file; capped scores and logits, tanh's GELU, a scaled embedding; transformers 4, without layer_types.
    "gemma2": case(
        "Gemma2ForCausalLM", "gemma2", torch.bfloat16, embedding=0.1, norm=0.0,
        hidden_size=72, intermediate_size=100, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-6, query_pre_attn_scalar=24, sliding_window=20, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=2.0, final_logit_softcapping=1.5,
        rope_theta=10000.0, cache_implementation="hybrid", torch_dtype="bfloat16",
    ),
    # Rotations that differ between the kinds of layers, norms of q and k; transformers 5.
    "gemma3": case(
        "Gemma3ForCausalLM", "gemma3_text", torch.bfloat16, embedding=0.2, norm=0.0,
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, rms_norm_eps=1e-6, query_pre_attn_scalar=32, sliding_window=100,
        hidden_activation="gelu_pytorch_tanh", dtype="bfloat16", tie_word_embeddings=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    # Norms around zero and scaled embeddings, one key/value head; transformers 4.
    "gemma": case(
        "GemmaForCausalLM", "gemma", torch.bfloat16, embedding=0.2, norm=0.0,
        hidden_size=32, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-6, hidden_act="gelu_pytorch_tanh", rope_theta=10000.0, tie_word_embeddings=True,
        torch_dtype="bfloat16",
    ),
    # Layers that read the keys of earlier ones, whose MLP is wider; inputs of single layers, from a table with more rows
    # than the vocabulary; wider heads in layers that see all, of which one pair of eight turns; transformers 5.
    "gemma4": case(
        "Gemma4ForCausalLM", "gemma4_text", torch.bfloat16, embedding=0.2, head_norm=0.4,
        hidden_size=48, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, rms_norm_eps=1e-6, sliding_window=8, hidden_activation="gelu_pytorch_tanh", dtype="bfloat16",
        tie_word_embeddings=True, final_logit_softcapping=30.0, hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=160, num_kv_shared_layers=4, use_double_wide_mlp=True,
        layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention", "sliding_attention",
                     "full_attention", "sliding_attention", "full_attention"],
        per_layer_config={str(layer): {"head_dim": 32} for layer in (1, 2, 5, 7)},
        rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                            "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    # Values that are keys before their norm, and fewer of them, in layers that see all; the fields as published.
    "gemma4-31b": case(
        "Gemma4ForCausalLM", "gemma4_text", torch.bfloat16, embedding=0.2, head_norm=0.4,
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, global_head_dim=48, num_global_key_value_heads=1, attention_k_eq_v=True, rms_norm_eps=1e-6,
        sliding_window=100, hidden_activation="gelu_pytorch_tanh", dtype="bfloat16", tie_word_embeddings=True,
        final_logit_softcapping=30.0, hidden_size_per_layer_input=0, use_bidirectional_attention="vision",
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    # The same with experts beside the MLP of each layer.
    "gemma4-moe": case(
        "Gemma4ForCausalLM", "gemma4_text", torch.bfloat16, embedding=0.2, head_norm=0.4, fused_experts=True,
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, global_head_dim=64, num_global_key_value_heads=1, attention_k_eq_v=True, rms_norm_eps=1e-6,
        sliding_window=24, hidden_activation="gelu_pytorch_tanh", dtype="bfloat16", tie_word_embeddings=True,
        final_logit_softcapping=30.0, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6,
        top_k_experts=2, moe_intermediate_size=24, layer_types=["sliding_attention", "full_attention"],
    ),
    # Fused projections and a window on every layer, as in Phi-3-mini-4k; transformers 4.
    "phi3": case(
        "Phi3ForCausalLM", "phi3", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=50,
        rope_theta=10000.0, rope_scaling=None, original_max_position_embeddings=512, pad_token_id=0,
        torch_dtype="bfloat16",
    ),
    # LongRoPE over three quarters of a head, as in Phi-4-mini.
    "phi3-longrope": case(
        "Phi3ForCausalLM", "phi3", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=None,
        rope_theta=10000.0, partial_rotary_factor=0.75, original_max_position_embeddings=128, pad_token_id=0,
        torch_dtype="bfloat16",
        rope_scaling={"type": "longrope", "short_factor": [1 + i / 16 for i in range(12)],
                      "long_factor": [1 + i / 2 for i in range(12)]},
    ),
    # Attention and MLP of one layer norm without a bias, added together; neighbours turn; biases of attention; scaled
    # logits.
    "command-r": case(
        "CohereForCausalLM", "cohere", torch.bfloat16, embedding=0.6,
        hidden_size=48, num_attention_heads=3, num_key_value_heads=1, layer_norm_eps=1e-5, tie_word_embeddings=True,
        attention_bias=True, logit_scale=0.25, use_qk_norm=False, rope_theta=10000.0, pad_token_id=0,
        torch_dtype="bfloat16",
    ),
    # The same with norms of queries and keys around the mean of each head.
    "command-r-plus": case(
        "CohereForCausalLM", "cohere", torch.bfloat16, embedding=0.6,
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, layer_norm_eps=1e-5,
        tie_word_embeddings=True, attention_bias=False, logit_scale=0.25, use_qk_norm=True, rope_theta=10000.0,
        pad_token_id=0, torch_dtype="bfloat16",
    ),
    # The same with windows in three of four layers, which alone turn; transformers 5.
    "cohere2": case(
        "Cohere2ForCausalLM", "cohere2", torch.bfloat16, embedding=0.6,
        hidden_size=64, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        layer_norm_eps=1e-5, tie_word_embeddings=True, attention_bias=False, logit_scale=0.25, sliding_window=24,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], pad_token_id=0,
        dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
    ),
    # The same with experts behind a dense layer of another width, which turns though it sees all; two experts of every
    # token, which count half.
    "cohere2-moe": case(
        "Cohere2MoeForCausalLM", "cohere2_moe", torch.bfloat16, embedding=0.6,
        hidden_size=32, intermediate_size=24, prefix_dense_intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, layer_norm_eps=1e-5, tie_word_embeddings=True,
        attention_bias=False, logit_scale=0.25, sliding_window=24, num_experts=6, num_experts_per_tok=2,
        num_shared_experts=2, shared_expert_combination_strategy="average", expert_selection_fn="sigmoid",
        norm_topk_prob=True, prefix_dense_sliding_window_pattern=1, pad_token_id=0,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"], rope_theta=50000.0, dtype="bfloat16",
    ),
    # The same with norms of the mean square, shares in a softmax, experts that add up; every second layer sees all.
    "cohere2-moe-rms": case(
        "Cohere2MoeForCausalLM", "cohere2_moe", torch.bfloat16, embedding=0.6,
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, logit_scale=0.5,
        sliding_window=24, sliding_window_pattern=2, num_experts=6, num_experts_per_tok=3, num_shared_experts=1,
        shared_expert_combination_strategy="sum", pad_token_id=0, rope_theta=10000.0, dtype="bfloat16",
    ),
    # Layer norms around zero with biases; an MLP without a gate, its middle squared; five pairs of a head turn.
    "nemotron": case(
        "NemotronForCausalLM", "nemotron", torch.bfloat16, norm=0.0,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, hidden_act="relu2", norm_eps=1e-5,
        tie_word_embeddings=False, attention_bias=False, mlp_bias=True, partial_rotary_factor=0.3125,
        rope_theta=10000.0, torch_dtype="bfloat16",
    ),
    # Layer norms and biases everywhere, an MLP without a gate; windows in every layer.
    "starcoder2": case(
        "Starcoder2ForCausalLM", "starcoder2", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5,
        tie_word_embeddings=True, use_bias=True, sliding_window=40, rope_theta=10000.0, torch_dtype="bfloat16",
    ),
    # Layer norms with biases, biases on q, k and v; a quarter of a head turns.
    "stablelm": case(
        "StableLmForCausalLM", "stablelm", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=2, layer_norm_eps=1e-5, tie_word_embeddings=False, use_qkv_bias=True,
        qk_layernorm=False, use_parallel_residual=False, partial_rotary_factor=0.25, rope_theta=10000.0,
        torch_dtype="bfloat16",
    ),
    # Layer norms without weights; queries, keys and values are clamped.
    "olmo": case(
        "OlmoForCausalLM", "olmo", torch.bfloat16,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False, attention_bias=False, clip_qkv=0.75,
        rope_theta=10000.0, pad_token_id=1, torch_dtype="bfloat16",
    ),
    # Norms after each block only, norms of q and k over all heads together; heads of 48.
    "olmo2": case(
        "Olmo2ForCausalLM", "olmo2", torch.bfloat16,
        hidden_size=96, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-6,
        tie_word_embeddings=False, attention_bias=False, rope_theta=500000.0, torch_dtype="bfloat16",
    ),
    # OLMo 2 with windows on three of four layers, which alone are not stretched; transformers 4.
    "olmo3": case(
        "Olmo3ForCausalLM", "olmo3", torch.bfloat16,
        hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, rope_theta=500000.0, sliding_window=24,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "original_max_position_embeddings": 128},
        torch_dtype="bfloat16",
    ),
    # Norms of q and k over all heads together; weights of three of eight experts that do not sum to one.
    "olmoe": case(
        "OlmoeForCausalLM", "olmoe", torch.bfloat16,
        hidden_size=64, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attention_bias=False, clip_qkv=None, num_experts=8, num_experts_per_tok=3,
        norm_topk_prob=False, rope_theta=10000.0, torch_dtype="bfloat16",
    ),
    # Norms after each block, of q and k in each head; layers without a window do not turn.
    "exaone4": case(
        "Exaone4ForCausalLM", "exaone4", torch.bfloat16,
        hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True, sliding_window=24, sliding_window_pattern="LLLG",
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_theta=1000000.0, torch_dtype="bfloat16",
        rope_scaling={"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 128},
    ),
    # Biases on q, k and v and none on the output, by two fields; heads wider than hidden_size / heads.
    "seed-oss": case(
        "SeedOssForCausalLM", "seed_oss", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=False,
        attention_bias=True, attention_out_bias=False, mlp_bias=False, rope_scaling={"rope_type": "default"},
        rope_theta=10000000.0, torch_dtype="bfloat16",
    ),
    # Mistral with a window in one of two layers.
    "ministral": case(
        "MinistralForCausalLM", "ministral", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
        sliding_window=24, layer_types=["sliding_attention", "full_attention"], dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    # Queries that grow with their positions; cos and sin as they are.
    "ministral3": case(
        "Ministral3ForCausalLM", "ministral3", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
        sliding_window=None, dtype="bfloat16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                         "original_max_position_embeddings": 8, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.25},
    ),
    # An MLP without a gate, its middle squared; biases in it; YaRN as Arcee's models have it.
    "arcee": case(
        "ArceeForCausalLM", "arcee", torch.bfloat16,
        hidden_act="relu2", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attention_bias=False, mlp_bias=True, rope_theta=10000.0, torch_dtype="bfloat16",
        rope_scaling={"rope_type": "yarn", "factor": 20.0, "beta_fast": 32.0, "beta_slow": 1.0,
                      "original_max_position_embeddings": 128},
    ),
    # The same with an activation that each layer learns, and norms of q and k in each head; transformers 5.
    "apertus": case(
        "ApertusForCausalLM", "apertus", torch.bfloat16,
        hidden_act="xielu", num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, num_hidden_layers=3,
        tie_word_embeddings=False, attention_bias=False, dtype="bfloat16",
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 128},
    ),
    # Pairs of a rotation are neighbours; heads wider than hidden_size / heads.
    "ernie4.5": case(
        "Ernie4_5ForCausalLM", "ernie4_5", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, head_dim=48, rms_norm_eps=1e-5, tie_word_embeddings=True,
        use_bias=False, rope_theta=500000.0, torch_dtype="bfloat16",
    ),
    # The same with experts in the second and the fourth of five layers: shares of a softmax, a bias for the choice, two
    # experts of every token.
    "ernie4.5-moe": case(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=5, num_attention_heads=2,
        num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False, use_bias=False, moe_num_experts=8, moe_k=3,
        moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=2, moe_layer_end_index=-1,
        rope_theta=500000.0, torch_dtype="bfloat16",
    ),
    # Norms of q and k behind their rotation, which has a larger base for long contexts.
    "hunyuan": case(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True,
        attention_bias=True, rope_theta=10000.0, torch_dtype="bfloat16",
        rope_scaling={"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1},
    ),
    # The same with experts in every layer, and one of every token as wide; numbers of each layer in lists.
    "hunyuan-moe": case(
        "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", torch.bfloat16,
        hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=False, num_experts=6, moe_topk=2,
        moe_intermediate_size=[32, 32], num_shared_expert=[1, 1], rope_theta=10000.0, torch_dtype="bfloat16",
    ),
    # Neighbours of a share of a head turn; gate and up in one tensor; biases on q, k and v.
    "glm": case(
        "GlmForCausalLM", "glm", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1.5625e-7, tie_word_embeddings=False,
        attention_bias=True, partial_rotary_factor=0.3125, rope_theta=10000.0, pad_token_id=0, torch_dtype="bfloat16",
    ),
    # The same with norms around the blocks; transformers 5.
    "glm4": case(
        "Glm4ForCausalLM", "glm4", torch.bfloat16,
        hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=48, rms_norm_eps=1e-5,
        tie_word_embeddings=True, attention_bias=True, pad_token_id=0, dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ),
    # Experts by a sigmoid and a bias behind a dense layer, two of every token, norms of q and k in each head.
    "dots1": case(
        "Dots1ForCausalLM", "dots1", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=False,
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, first_k_dense_replace=1, sliding_window=None, max_window_layers=3,
        rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16",
    ),
    # Four multipliers.
    "granite": case(
        "GraniteForCausalLM", "granite", torch.bfloat16, embedding=0.1,
        num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=True,
        attention_bias=False, mlp_bias=False, embedding_multiplier=12.0, residual_multiplier=0.22,
        attention_multiplier=0.0625, logits_scaling=8.0, rope_theta=10000.0, rope_scaling=None,
        torch_dtype="bfloat16",
    ),
    # The same with sinks, windows of less than a page, and bases of rotations layer by layer; transformers 5.
    "granite-swa": case(
        "GraniteSWAForCausalLM", "granite_swa", torch.bfloat16, embedding=0.1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=4, rms_norm_eps=1e-5,
        tie_word_embeddings=True, attention_bias=False, mlp_bias=False, embedding_multiplier=12.0,
        residual_multiplier=0.4, attention_multiplier=0.25, logits_scaling=8.0, sliding_window=24,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        layer_rope_theta=[0, 10000.0, 500.0, 0], dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # The same with experts and one of every token; every fourth layer sees all, as no field says.
    "granite-moe-swa": case(
        "GraniteMoeSWAForCausalLM", "granitemoe_swa", torch.bfloat16, embedding=0.1, fused_experts=True,
        hidden_size=32, intermediate_size=24, shared_intermediate_size=40, num_attention_heads=2, num_key_value_heads=1,
        rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=True, num_local_experts=6, num_experts_per_tok=2,
        embedding_multiplier=12.0, residual_multiplier=0.5, attention_multiplier=0.25, logits_scaling=3.0,
        sliding_window=24, dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # A layer without positions.
    "smollm3": case(
        "SmolLM3ForCausalLM", "smollm3", torch.bfloat16,
        num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=16, rms_norm_eps=1e-6,
        tie_word_embeddings=True, attention_bias=False, mlp_bias=False, no_rope_layers=[1, 0],
        no_rope_layer_interval=2, use_sliding_window=False, sliding_window=None, rope_theta=5000000.0,
        rope_scaling=None, layer_types=["full_attention", "full_attention"], pad_token_id=0, torch_dtype="bfloat16",
    ),
    # Two of four experts, each in tensors of its own.
    "mixtral": case(
        "MixtralForCausalLM", "mixtral", torch.bfloat16, shards=2,
        hidden_size=32, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-5, tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
        rope_theta=1000000.0, torch_dtype="bfloat16",
    ),
    # Mixtral with layer norms, biases of attention and of the head; weights among the experts that are near.
    "phi-moe": case(
        "PhimoeForCausalLM", "phimoe", torch.bfloat16,
        hidden_size=32, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attention_bias=True, lm_head_bias=True, num_local_experts=6, num_experts_per_tok=2,
        router_jitter_noise=0.15, sliding_window=None, rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16",
    ),
    # Experts in the last layer only: every second one, and not the second.
    "qwen3-moe": case(
        "Qwen3MoeForCausalLM", "qwen3_moe", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False,
        num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1],
        use_sliding_window=False, sliding_window=None, rope_theta=1000000.0, torch_dtype="bfloat16",
    ),
    # The experts of a layer in one tensor, weights that do not sum to one; transformers 5.
    "qwen3-moe-fused": case(
        "Qwen3MoeForCausalLM", "qwen3_moe", torch.bfloat16, fused_experts=True,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False,
        num_local_experts=5, num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[],
        use_sliding_window=False, sliding_window=None, dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    # Norms of q and k over all heads together, five pairs of a head turn by a field of their own; experts in every layer by
    # a sigmoid and a bias, named as Mixtral's.
    "minimax-m2": case(
        "MiniMaxM2ForCausalLM", "minimax_m2", torch.bfloat16,
        hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        rms_norm_eps=1e-6, tie_word_embeddings=False, num_local_experts=8, num_experts_per_tok=3, use_qk_norm=True,
        rotary_dim=10, rope_theta=5000000.0, torch_dtype="bfloat16",
    ),
    # Linear attention with three value heads for each key head, its keys narrower than its values, in the first and the
    # last layer too; gates of attention's output; three pairs of a head turn; norms around zero; transformers 5.
    "qwen3.5": case(
        "Qwen3_5ForCausalLM", "qwen3_5_text", torch.bfloat16, norm=0.0,
        hidden_size=48, intermediate_size=64, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False, attn_output_gate=True,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, mtp_num_hidden_layers=1, dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.1875,
                         "mrope_section": [1, 1, 1], "mrope_interleaved": True},
    ),
    # The same with experts, one of which every token passes through; keys wider than values; every fourth layer is
    # attention, as no field says.
    "qwen3.5-moe": case(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", torch.bfloat16, norm=0.0, fused_experts=True,
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, attn_output_gate=True,
        linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=32, linear_value_head_dim=16,
        linear_conv_kernel_dim=4, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    ),
    # Projections key head by key head, experts in some layers only and apart; transformers 4.
    "qwen3-next": case(
        "Qwen3NextForCausalLM", "qwen3_next", torch.bfloat16, norm=0.0,
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        head_dim=48, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, full_attention_interval=2,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=32,
        linear_conv_kernel_dim=3, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
        shared_expert_intermediate_size=24, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1],
        partial_rotary_factor=0.375, rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16",
    ),
    # Biases on q, k and v, an expert of every token with a gate, a window in every second layer; transformers 4.
    "qwen2-moe": case(
        "Qwen2MoeForCausalLM", "qwen2_moe", torch.bfloat16,
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=True, sliding_window=40, max_window_layers=2,
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
        norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[1], rope_theta=10000.0, torch_dtype="bfloat16",
    ),
    # OLMo 2 with experts in every layer; transformers 5.
    "flex-olmo": case(
        "FlexOlmoForCausalLM", "flex_olmo", torch.bfloat16, fused_experts=True,
        hidden_size=32, intermediate_size=24, num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-6,
        tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, pad_token_id=0,
        dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    # Sinks, windows of less than a page, biases everywhere, gates that are clamped, YaRN whose range is not rounded;
    # experts as columns, gate and up in turns; transformers 5.
    "gpt-oss": case(
        "GptOssForCausalLM", "gpt_oss", torch.bfloat16, fused_experts=True,
        hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True, sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], num_local_experts=5,
        num_experts_per_tok=2, swiglu_limit=0.75, dtype="bfloat16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "truncate": False, "original_max_position_embeddings": 64},
    ),
    # The same with the experts in MXFP4, as it was published; transformers 4, without layer_types.
    "gpt-oss-mxfp4": case(
        "GptOssForCausalLM", "gpt_oss", torch.bfloat16, fused_experts=True, mxfp4=True, shards=2,
        hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True, sliding_window=24, num_local_experts=6,
        num_experts_per_tok=3, experts_per_token=3, swiglu_limit=7.0, rope_theta=150000,
        initial_context_length=128, torch_dtype="bfloat16",
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                      "original_max_position_embeddings": 128},
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    ),
    # Short convolutions in the first and the last layer too; a width of the MLP that three fields make; transformers 4.
    "lfm2": case(
        "Lfm2ForCausalLM", "lfm2", torch.bfloat16,
        hidden_size=48, num_hidden_layers=5, num_attention_heads=3, num_key_value_heads=1, norm_eps=1e-5, conv_L_cache=3,
        conv_bias=False, full_attn_idxs=[1, 3], block_ff_dim=90, block_auto_adjust_ff_dim=True,
        block_ffn_dim_multiplier=1.3, block_multiple_of=8, tie_embedding=True, rope_theta=1000000.0,
        torch_dtype="bfloat16",
    ),
    # The same with experts behind one dense layer, whose choice a bias changes; four taps and biases of convolutions.
    "lfm2-moe": case(
        "Lfm2MoeForCausalLM", "lfm2_moe", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, norm_eps=1e-5, conv_L_cache=4, conv_bias=True, num_dense_layers=1, num_experts=8,
        num_experts_per_tok=3, use_expert_bias=True, norm_topk_prob=True, routed_scaling_factor=1.5,
        layer_types=["conv", "full_attention", "conv", "conv"], tie_word_embeddings=True, dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    # The same with seven taps, norms around the blocks, a gate for each head of attention; layers that see all turn by
    # a share of a head's pairs, others see a window that ends within a page; transformers 5.
    "lfm3": case(
        "Lfm3ForCausalLM", "lfm3", torch.bfloat16,
        hidden_size=48, intermediate_size=80, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
        head_dim=16, norm_eps=1e-5, conv_L_cache=7, conv_bias=False, tie_word_embeddings=True, sliding_window=24, pad_token_id=0,
        layer_types=["conv", "sliding_attention", "full_attention", "conv", "sliding_attention"], dtype="bfloat16",
        rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.375,
                                            "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    # The embedding is normed; norms around blocks, those behind with an eps of their own, the last one not around zero;
    # norms of queries and keys without weights, a gate for each number of attention; the last layer sees all and does
    # not turn; capped logits.
    "muse-glimmer": case(
        "MuseGlimmerForCausalLM", "muse_glimmer_text", torch.bfloat16, norm=0.0,
        hidden_size=64, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, hidden_activation="silu", rms_norm_eps=1e-3, post_norm_eps=1e-8, tie_word_embeddings=False,
        sliding_window=24, final_logit_softcapping=5.0, qk_scale_factor=1.5, output_multiplier=0.75,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        layer_rope_theta=[10000.0, 10000.0, 0], dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # Experts in groups, scores by sigmoid, a bias for the choice, two experts of every token; biases on q, k and v and
    # norms of q and k; five pairs of a head turn; transformers 4.
    "glm4-moe": case(
        "Glm4MoeForCausalLM", "glm4_moe", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True,
        use_qk_norm=True, partial_rotary_factor=0.3125, n_routed_experts=8, n_shared_experts=2,
        num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.75,
        first_k_dense_replace=1, num_nextn_predict_layers=1, rope_theta=10000.0, rope_scaling=None,
        torch_dtype="bfloat16",
    ),
    # Latents of three lines, heads whose parts fill none, a norm between the two products of queries, eps that is not that
    # of latents; experts in groups behind one dense layer, a bias for their choice; YaRN that scales scores; transformers 4.
    "deepseek-v3": case(
        "DeepseekV3ForCausalLM", "deepseek_v3", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=48, qk_nope_head_dim=12, qk_rope_head_dim=16, v_head_dim=10,
        rms_norm_eps=1e-2, tie_word_embeddings=False, attention_bias=False, n_routed_experts=8, n_shared_experts=2,
        num_experts_per_tok=3, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.75,
        first_k_dense_replace=1, num_nextn_predict_layers=0, scoring_func="sigmoid", topk_method="noaux_tc",
        rope_theta=10000.0, torch_dtype="bfloat16",
        rope_scaling={"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32,
                      "beta_slow": 1, "mscale": 0.4, "mscale_all_dim": 0.4},
    ),
    # Queries of the layer's input; experts by shares in the groups of the best; transformers 4.
    "deepseek-v2": case(
        "DeepseekV2ForCausalLM", "deepseek_v2", torch.bfloat16,
        hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=32,
        v_head_dim=24, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, topk_method="group_limited_greedy",
        norm_topk_prob=False, routed_scaling_factor=4.0, first_k_dense_replace=1, rope_theta=10000.0,
        rope_scaling=None, torch_dtype="bfloat16",
    ),
    # Values wider than keys; the last layer dense; transformers 5.
    "glm4-moe-lite": case(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", torch.bfloat16,
        hidden_size=48, intermediate_size=64, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=3, q_lora_rank=40, kv_lora_rank=64, qk_nope_head_dim=20, qk_rope_head_dim=16,
        v_head_dim=36, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=False, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=1.8, mlp_layer_types=["dense", "sparse", "sparse"], dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    # Queries that grow with their positions; experts by shares over the chosen, one of every token; transformers 5.
    "mistral4": case(
        "Mistral4ForCausalLM", "mistral4", torch.bfloat16, fused_experts=True,
        hidden_size=32, moe_intermediate_size=24, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24,
        kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, head_dim=32, rms_norm_eps=1e-6,
        tie_word_embeddings=False, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0, first_k_dense_replace=0, dtype="bfloat16",
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0,
                         "original_max_position_embeddings": 8, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.25, "partial_rotary_factor": 0.5},
    ),
    # Mamba-2 in the first and the last layer too, its states wider than its heads, which share B and C by twos; experts
    # and one of every token; attention without rotation; four multipliers; transformers 4.
    "granite-hybrid": case(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", torch.bfloat16, embedding=0.1,
        hidden_size=32, intermediate_size=24, shared_intermediate_size=40, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=True, attention_bias=False,
        layer_types=["mamba", "attention", "mamba", "mamba"], mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2,
        mamba_d_state=32, mamba_d_conv=4, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False,
        num_local_experts=6, num_experts_per_tok=2, position_embedding_type="nope", embedding_multiplier=12.0,
        residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=3.0, rope_theta=10000.0, rope_scaling=None,
        torch_dtype="bfloat16",
    ),
    # The same without experts, with rotation, three taps and no bias of the convolution, heads wider than states.
    "granite-hybrid-dense": case(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", torch.bfloat16, embedding=0.1,
        hidden_size=32, intermediate_size=24, shared_intermediate_size=56, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False, attention_bias=True,
        layer_types=["mamba", "mamba", "attention"], mamba_n_heads=2, mamba_d_head=32, mamba_n_groups=1,
        mamba_d_state=16, mamba_d_conv=3, mamba_expand=2, mamba_conv_bias=False, mamba_proj_bias=False,
        num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope", embedding_multiplier=10.0,
        residual_multiplier=0.7, attention_multiplier=0.25, logits_scaling=2.0, torch_dtype="bfloat16",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # Delta attention with a decay for each key in the first and the last layer too, with other heads than the latent
    # attention without rotation; experts in groups, from the second layer on; as transformers 5 writes it.
    "kimi-linear": case(
        "KimiLinearForCausalLM", "kimi_linear", torch.bfloat16,
        hidden_size=40, intermediate_size=56, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "dense", "sparse"], linear_num_heads=3, linear_head_dim=16,
        linear_conv_kernel_dim=4, rms_norm_eps=1e-2, kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=12,
        qk_rope_head_dim=16, v_head_dim=10, model_max_length=512, num_experts=8, num_experts_per_token=3,
        num_expert_group=4, topk_group=2, num_shared_experts=2, moe_intermediate_size=24, moe_renormalize=True,
        routed_scaling_factor=1.5, tie_word_embeddings=False, pad_token_id=0, dtype="bfloat16",
    ),
    # The same as it was published: layers are listed from 1 on; queries are made of a few numbers; three taps.
    "kimi-linear-listed": case(
        "KimiLinearForCausalLM", "kimi_linear", torch.bfloat16,
        hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        linear_attn_config={"full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 32, "num_heads": 2,
                            "short_conv_kernel_size": 3},
        first_k_dense_replace=2, rms_norm_eps=1e-5, kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=16, model_max_length=512, mla_use_nope=True, moe_router_activation_func="sigmoid",
        moe_layer_freq=1, num_experts=5, num_experts_per_token=2, num_expert_group=1, topk_group=1, num_shared_experts=1,
        moe_intermediate_size=24, moe_renormalize=True, routed_scaling_factor=2.446, tie_word_embeddings=False,
        pad_token_id=0, torch_dtype="bfloat16",
    ),
    # Mamba-2 and attention beside each other in every layer, a factor for each product; heads of attention wider than the
    # stream's share; no norm of what Mamba-2 gives.
    "falcon-h1": case(
        "FalconH1ForCausalLM", "falcon_h1", torch.bfloat16,
        hidden_size=48, intermediate_size=56, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rms_norm_eps=1e-5, tie_word_embeddings=False, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16,
        mamba_n_groups=2, mamba_d_state=32, mamba_d_conv=4, mamba_rms_norm=False, embedding_multiplier=1.6,
        lm_head_multiplier=0.3, mlp_multipliers=[0.7, 0.6], key_multiplier=1.5, attention_in_multiplier=0.8,
        attention_out_multiplier=0.5, ssm_in_multiplier=1.3, ssm_out_multiplier=0.4,
        ssm_multipliers=[0.6, 1.4, 0.7, 1.6, 0.8], rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16",
    ),
    # The same with a norm of each group of heads, before the gate; and behind it, groups of three heads.
    "falcon-h1-norm-first": case(
        "FalconH1ForCausalLM", "falcon_h1", torch.bfloat16,
        hidden_size=32, intermediate_size=40, num_attention_heads=2, num_key_value_heads=2, rms_norm_eps=1e-3,
        tie_word_embeddings=True, mamba_d_ssm=None, mamba_expand=2, mamba_n_heads=2, mamba_d_head="auto",
        mamba_n_groups=2, mamba_d_state=16, mamba_d_conv=3, mamba_conv_bias=False, mamba_rms_norm=True,
        mamba_norm_before_gate=True, dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "falcon-h1-gate-first": case(
        "FalconH1ForCausalLM", "falcon_h1", torch.bfloat16,
        hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        rms_norm_eps=1e-5, tie_word_embeddings=True, mamba_d_ssm=96, mamba_n_heads=6, mamba_d_head=16,
        mamba_n_groups=2, mamba_d_state=32, mamba_d_conv=4, mamba_rms_norm=True, mamba_norm_before_gate=False,
        dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    # Layers that are one block each, by letters: Mamba-2 with groups of three heads, whose norms are their own, in the first
    # and the last layer too, three taps, no bias; experts in one tensor, under the names of transformers 5.
    "nemotron-h": case(
        "NemotronHForCausalLM", "nemotron_h", torch.bfloat16, fused_experts=True,
        hidden_size=40, intermediate_size=56, num_hidden_layers=5, hybrid_override_pattern="M-*EM",
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, layer_norm_epsilon=1e-3, tie_word_embeddings=False,
        ssm_state_size=16, mamba_num_heads=6, mamba_head_dim=16, n_groups=2, conv_kernel=3, use_conv_bias=False,
        n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, moe_shared_expert_intermediate_size=48,
        norm_topk_prob=False, torch_dtype="bfloat16",
    ),
    # The same by names, and named as they were published: experts on fewer numbers than the stream, in groups, in the
    # last layer too; states wider than heads; heads of attention of the width that no field states.
    "nemotron-3": case(
        "NemotronHForCausalLM", "nemotron_h", torch.bfloat16,
        hidden_size=48, intermediate_size=40, num_hidden_layers=6,
        layers_block_type=["full_attention", "moe", "linear_attention", "mlp", "linear_attention", "moe"],
        num_attention_heads=1, num_key_value_heads=1, layer_norm_epsilon=1e-5, tie_word_embeddings=False,
        ssm_state_size=32, mamba_num_heads=6, mamba_head_dim=16, n_groups=3, conv_kernel=4, use_conv_bias=True,
        n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=32, moe_latent_size=56, routed_scaling_factor=1.5, dtype="bfloat16",
    ),
    # Granite 3 with experts, which are one tensor of gate and up and one of down.
    "granite-moe": case(
        "GraniteMoeForCausalLM", "granitemoe", torch.bfloat16, embedding=0.1,
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False, num_local_experts=5, num_experts_per_tok=2,
        embedding_multiplier=12.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=3.0,
        rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16",
    ),
}


# Of the choice of experts, float32 in every file.
CHOICE_BIASES = ("expert_bias", "e_score_correction_bias")


def random_weights(config, spec, rng):
    """Weights with which activations stay near one and attention is neither flat nor a single token."""
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in
                  model_class(config)._from_config(config).state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    weights = {}
    for name in sorted(shapes):
        values = rng.standard_normal(shapes[name], dtype=numpy.float32)
        if name.endswith("A_log"):
            values = rng.uniform(-1.0, 1.5, shapes[name]).astype(numpy.float32)
        elif name.endswith("linear_attn.norm.weight"):  # around one, whatever the others are
            values = numpy.float32(1.0) + numpy.float32(0.2) * values
        elif ".act_fn." in name:
            low, high = {"beta": (0.5, 0.5), "eps": (-1e-6, -1e-6)}.get(name.rpartition(".")[2], (-1.0, 0.5))
            values = numpy.asarray(rng.uniform(low, high, shapes[name]), numpy.float32)
        elif name.endswith("dt_bias"):
            pass
        elif name.endswith(".D"):
            values = numpy.float32(1.0) + numpy.float32(0.3) * values
        elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            values = rng.uniform(0.5, 1.5, shapes[name]).astype(numpy.float32)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            values = numpy.float32(spec["head_norm"]) + numpy.float32(0.2) * values
        elif config.model_type == "muse_glimmer_text" and name == "model.norm.weight":  # around one, unlike others
            values = numpy.float32(1.0) + numpy.float32(0.2) * values
        elif name.endswith(("norm.weight", "norm_f.weight")):
            values = numpy.float32(spec["norm"]) + numpy.float32(0.2) * values
        elif name.endswith(CHOICE_BIASES):
            weights[name] = torch.from_numpy(values * numpy.float32(0.3))
            continue
        elif name.endswith((".bias", "_bias")):
            values *= numpy.float32(0.3)
        elif name.endswith("sinks"):
            values = rng.uniform(-5.0, 5.0, shapes[name]).astype(numpy.float32)
        elif config.model_type in ("gpt_oss", "llama4_text") and ".experts." in name:  # columns
            values *= numpy.float32(1.2 / shapes[name][-2] ** 0.5)
        elif name in ("model.embed_tokens.weight", "model.embed_tokens_per_layer.weight", "model.embeddings.weight"):
            values *= numpy.float32(spec["embedding"])
        else:
            gain = 2.0 if name == "lm_head.weight" else 1.2
            values *= numpy.float32(gain / shapes[name][-1] ** 0.5)
        weights[name] = torch.from_numpy(values).to(spec["stored"])
    if spec["mxfp4"]:
        weights = dict(in_mxfp4(weights))
    return weights if spec["fused_experts"] else dict(apart(weights, config.model_type))


MXFP4 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], numpy.float32)


def in_mxfp4(weights):
    """The experts as codes of four bits, two neighbours in a byte, and an exponent for each 32: rows, not columns."""
    for name, weight in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            yield name, weight
            continue
        rows = numpy.ascontiguousarray(weight.float().numpy().swapaxes(1, 2))
        blocks = rows.reshape(*rows.shape[:2], -1, 32)
        exponents = numpy.floor(numpy.log2(numpy.abs(blocks).max(-1))) - 2
        codes = numpy.abs(blocks[..., None] / 2.0 ** exponents[..., None, None] - MXFP4).argmin(-1).astype(numpy.uint8)
        yield f"{name}_blocks", torch.from_numpy(numpy.ascontiguousarray(codes[..., ::2] | codes[..., 1::2] << 4))
        yield f"{name}_scales", torch.from_numpy((exponents + 127).astype(numpy.uint8))


def apart(weights, model_type):
    """The experts of a layer in tensors of their own, under the names that the authors gave them; Granite's as stacks."""
    if model_type.startswith("granitemoe"):
        published = {"router.weight": "router.layer.weight", "experts.gate_up_proj": "input_linear.weight",
                     "experts.down_proj": "output_linear.weight"}
        for name, weight in weights.items():
            for ours, theirs in published.items():
                name = name.replace(f"block_sparse_moe.{ours}", f"block_sparse_moe.{theirs}")
            yield name, weight
        return
    gate, up, down = ("w1", "w3", "w2") if model_type in ("mixtral", "minimax_m2", "lfm2_moe", "phimoe", "kimi_linear") else ("gate_proj", "up_proj", "down_proj")
    for name, weight in weights.items():
        name = name.replace("mlp.gate.moe_statics", "mlp.moe_statics")
        if model_type == "kimi_linear":
            name = name.replace("forget_gate.", "")
            if any(part in name for part in (".gate.", "experts")):
                name = name.replace(".mlp.", ".block_sparse_moe.")
            if name.endswith("self_attn.conv1d.weight"):
                for part, rows in zip("qkv", weight.chunk(3)):
                    yield name.replace("conv1d", f"{part}_conv1d"), rows.contiguous()
                continue
        if model_type == "nemotron_h":
            name = name.replace("model.", "backbone.", 1)
        if model_type in ("mixtral", "minimax_m2", "phimoe"):
            name = name.replace(".mlp.", ".block_sparse_moe.").replace(".router.", ".gate.")
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            for expert, both in enumerate(weight):
                for part, rows in zip((gate, up), both.chunk(2)):
                    yield f"{prefix}{expert}.{part}.weight", rows.contiguous()
        elif name.endswith(("experts.down_proj", "experts.up_proj")):
            prefix, _, part = name.rpartition(".")
            part = down if part == "down_proj" else up
            for expert, rows in enumerate(weight):
                yield f"{prefix}.{expert}.{part}.weight", rows.contiguous()
        else:
            yield name, weight


def write_weights(directory, weights, shards):
    if shards == 1:
        safetensors.torch.save_file(weights, directory / "model.safetensors", {"format": "pt"})
        return
    names = sorted(weights)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        safetensors.torch.save_file(part, directory / file, {"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def clear_winners(rows):
    best = numpy.sort(rows, axis=1)[:, -2:]
    return ((best[:, 1] - best[:, 0]) / rows.std(axis=1)).min() >= MIN_MARGIN


def draw_prompt(model, narrow, rng, length, num_rows):
    """`narrow`: the same model in bfloat16, if it has states."""
    if narrow or chosen_experts(model.config):
        return draw_by_token(model, narrow, rng, length, num_rows)
    for _ in range(1000):
        tokens = [int(token) for token in rng.integers(0, model.config.vocab_size, length)]
        rows = logits_of(model, tokens)[length - num_rows:]
        if clear_winners(rows):
            return tokens, rows
    raise SystemExit("no prompt with clear winners: the weights are degenerate")


def narrow_error(narrow, tokens, row):
    """Of the last row."""
    return numpy.linalg.norm(logits_of(narrow, tokens)[-1] - row) / numpy.linalg.norm(row) if narrow else 0.0


def choice_margin(config, bias, logits):
    """By how much the worst chosen expert is before the best other one, and the worst kept group before the next, in
    standard deviations."""
    k, scores = chosen_experts(config), logits
    if config.model_type == "phimoe":  # of those that are near, none nearly is not
        ranked = logits.sort(descending=True).values
        near = [(best - logits) / logits.abs().clamp(min=best) for best in ranked[:k]]
        border = min(float((far - 2 * config.router_jitter_noise).abs().min()) for far in near)
        return min(2 * border, float((ranked[:k] - ranked[1:k + 1]).min() / logits.std()))
    if bias is None and getattr(config, "topk_method", None) == "group_limited_greedy":
        in_groups = scores.view(config.n_group, -1)
        best = in_groups.max(-1).values.sort(descending=True)
        kept, ranked = best.indices[:config.topk_group], best.values
        margin = float((ranked[config.topk_group - 1] - ranked[config.topk_group]) / scores.std())
        ranked = in_groups[kept].flatten().sort(descending=True).values
        return min(margin, float((ranked[k - 1] - ranked[k]) / scores.std()))
    if bias is None:
        ranked = scores.sort(descending=True).values
        return float((ranked[k - 1] - ranked[k]) / scores.std())
    scores = (logits.softmax(-1) if config.model_type.startswith("ernie") else logits.sigmoid()) + bias.flatten()
    margins, spread = [], scores.std()
    groups, kept = getattr(config, "n_group", 1), getattr(config, "topk_group", 1)
    if kept < groups:
        in_groups = scores.view(groups, -1)
        sums = in_groups.topk(2).values.sum(-1).sort(descending=True)
        margins.append(sums.values[kept - 1] - sums.values[kept])
        scores = in_groups[sums.indices[:kept]].flatten()
    ranked = scores.sort(descending=True).values
    margins.append(ranked[k - 1] - ranked[k])
    return float(min(margins) / spread)


def chosen_experts(config):
    """How many experts a token goes to; 0 where there are none."""
    return getattr(config, "num_experts_per_tok", 0) or getattr(config, "top_k_experts", 0) or 0


def draw_by_token(model, narrow, rng, length, num_rows):
    """Token by token, since in a long prompt drawn at once some token always nearly goes to another expert."""
    margins = []

    def note_margin(router, inputs, output):
        noted = getattr(router, "moe_statics", router)
        bias = inputs[1] if len(inputs) > 1 else getattr(noted, "e_score_correction_bias", None)
        experts = getattr(router, "proj", getattr(router, "wg", router)).weight.shape[0]
        parts = output[::-1] if type(router).__name__ == "Llama4Router" else output  # scores are first
        logits = next(part for part in parts if part.is_floating_point() and part.shape[-1] == experts)
        if hasattr(router, "proj"):  # it gives shares
            logits = logits.log()
        margins.append(choice_margin(model.config, bias, logits[-1]))

    routers = [module for module in model.modules() if type(module).__name__.lower().endswith(
        ("topkrouter", "textrouter", "v1gate", "llama4router"))]
    hooks = [router.register_forward_hook(note_margin) for router in routers]
    tokens = []
    for _ in range(100 * length):
        margins.clear()
        tokens.append(int(rng.integers(0, model.config.vocab_size)))
        row = logits_of(model, tokens)[-1:]
        recorded = len(tokens) > length - num_rows
        if (min(margins, default=1.0) < MIN_ROUTER_MARGIN or (recorded and not clear_winners(row))
                or narrow_error(narrow, tokens, row[0]) > MAX_NARROW_ERROR):
            tokens.pop()
        elif len(tokens) == length:
            break
    for hook in hooks:
        hook.remove()
    if len(tokens) < length:
        raise SystemExit("no prompt with clear choices: the weights are degenerate")
    return tokens, logits_of(model, tokens)[length - num_rows:]


def muse_glimmer():
    """The text part of MuseGlimmerForConditionalGeneration with the head of the whole."""
    from transformers.models.muse_glimmer import modeling_muse_glimmer

    class MuseGlimmerForCausalLM(transformers.PreTrainedModel):
        config_class, base_model_prefix = modeling_muse_glimmer.MuseGlimmerTextConfig, "model"

        def __init__(self, config):
            super().__init__(config)
            self.model = modeling_muse_glimmer.MuseGlimmerTextModel(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, tokens):
            logits = self.lm_head(self.model(tokens).last_hidden_state) * self.config.output_multiplier
            cap = self.config.final_logit_softcapping
            return SimpleNamespace(logits=cap * torch.tanh(logits / cap))

    return MuseGlimmerForCausalLM


def model_class(config):
    """Some are in no list of the library's."""
    name = config.architectures[0]
    return muse_glimmer() if name == "MuseGlimmerForCausalLM" else getattr(transformers, name)


def make_case(directory, name, spec):
    seed = int.from_bytes(name.encode(), "little") % 2**32
    rng = numpy.random.default_rng(seed)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(spec["config"], indent=1) + "\n")
    config = transformers.AutoConfig.from_pretrained(directory)
    write_weights(directory, random_weights(config, spec, rng), spec["shards"])

    def load(dtype):
        model, report = model_class(config).from_pretrained(
            directory, dtype=dtype, attn_implementation="eager", output_loading_info=True)
        if report["missing_keys"]:
            raise SystemExit(f"{name} is without {sorted(report['missing_keys'])}")
        return model.to(dtype).eval()

    model = load(torch.float32)
    has_states = not {"linear_attention", "hybrid"}.isdisjoint(getattr(config, "layer_types", None) or [])
    narrow = load(torch.bfloat16) if has_states else None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))

    short_context = {}
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "longrope":
        short_context["max_model_len"] = config.rope_parameters["original_max_position_embeddings"]
    prompts, recorded = [], []
    for length in SHORT_PROMPTS:
        tokens, rows = draw_prompt(model, narrow, rng, length, length)
        prompts.append({"first_row": 0, "tokens": tokens, **short_context})
        recorded.append(rows)
    tokens, rows = draw_prompt(model, narrow, rng, LONG_PROMPT, LONG_ROWS)
    prompts.append({"first_row": LONG_PROMPT - LONG_ROWS, "tokens": tokens})
    recorded.append(rows)
    (directory / "oracle.json").write_text(json.dumps({"seed": seed, "prompts": prompts}) + "\n")
    numpy.concatenate(recorded).astype("<f4").tofile(directory / "logits.f32")


def make(directory):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, spec in CASES.items():
        make_case(directory / name, name, spec)


def differences(committed, fresh):
    """What differs between two trees of cases: logits beyond the tolerance, anything else at all."""
    cases = {case.parent.name for tree in (committed, fresh) for case in tree.glob("*/oracle.json")}
    names = {p.relative_to(tree) for tree in (committed, fresh) for case in cases for p in (tree / case).glob("*")}
    yield from differences_in(sorted(names), committed, fresh)


def differences_in(names, committed, fresh):
    """The same for files of these names."""
    for name in names:
        old, new = committed / name, fresh / name
        if not old.exists() or not new.exists():
            yield f"{name}: only in the {'committed' if old.exists() else 'fresh'} tree"
        elif name.suffix == ".f32":
            a, b = numpy.fromfile(old, "<f4"), numpy.fromfile(new, "<f4")
            if a.shape != b.shape:
                yield f"{name}: {a.size} numbers committed, {b.size} fresh"
            elif not numpy.abs(a - b).max() <= TOLERANCE * numpy.abs(a).max():
                yield f"{name}: logits differ by up to {numpy.abs(a - b).max():.3g}"
        elif old.read_bytes() != new.read_bytes():
            yield f"{name}: differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing it")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        make(fresh)
        if arguments.check:
            found = list(differences(arguments.directory, fresh))
            print("\n".join(found) or f"oracle: {len(CASES)} checkpoints agree with transformers {transformers.__version__}")
            return 1 if found else 0
        for name in CASES:
            shutil.rmtree(arguments.directory / name, ignore_errors=True)
            shutil.copytree(fresh / name, arguments.directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
