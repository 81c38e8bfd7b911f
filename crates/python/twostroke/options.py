"""What `LLM` takes beside a model's name: the flags of `twostroke serve` that say what computes, by their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypedDict


class EngineOptions(TypedDict, total=False):
    """See `twostroke serve --help` for what each of them does, and for its default."""

    revision: str
    weights: Literal["auto", "bf16", "int8", "int4"]
    kv_dtype: Literal["bf16", "int8"]
    kv_cache_dtype: Literal["bf16", "int8"]
    expert_memory: int | str
    arithmetic: Literal["auto", "pairs", "tiles"]
    device: str
    standby: Literal["cpu"]
    threads: int
    no_numa: bool
    no_packed_cache: bool
    chat_template: str
    default_chat_template_kwargs: dict[str, Any]
    generation_config: str | os.PathLike[str]
    override_generation_config: dict[str, Any]
    max_model_len: int | str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_partial_prefills: int
    max_prefill_chunk: int
    ttft_slo: str
    tpot_slo: str
    refuse_late: bool
    recalibrate: bool
    enable_prefix_caching: bool
    block_size: int
    kv_cache_memory_bytes: int | str
    kv_swap_memory: int | str
    kv_swap_disk: str
    max_queued_requests: int
    max_queued_tokens: int | str
    speculate: Literal["auto", "off"]
    speculative_config: dict[str, Any]
    lora_modules: Sequence[str | dict[str, str]]
    max_loras: int
    max_lora_rank: int
    role: Literal["prefill", "decode", "both"]
    allow_role_change: bool
    prefill_workers: Sequence[str]
    handoff_listen: str
    handoff_precision: str
    cluster_key: str | os.PathLike[str]
    kv_events_config: dict[str, Any]
    spot_check: float
    record: str | os.PathLike[str]
    seed: int
