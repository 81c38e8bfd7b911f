"""What a worker has to do, in the words of Dynamo's router, of its planner and of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def snapshot(load: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `ComponentSnapshot`. The rate of hits is since the start; `None` before the first prompt."""
    used, total = load["used_blocks"], load["total_blocks"]
    prompts = load["prompt_tokens"]
    return {
        "kv_used_blocks": used,
        "kv_total_blocks": total,
        "gpu_cache_usage": used / total,
        "kv_cache_hit_rate": load["cached_tokens"] / prompts if prompts else None,
        "dp_rank": 0,
    }


def forward_pass(
    load: Mapping[str, Any], step: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Arguments of `FpmDirectPublisher.publish`: a pass and its rows, and who waits now.

    An answer that was preempted waits as a prompt does, for it is read again like one.
    """
    of_phase: dict[str, list[Mapping[str, Any]]] = {"prefill": [], "decode": []}
    for row in rows:
        of_phase[row["phase"]].append(row)
    return {
        "dp_rank": 0,
        "scheduled_num_prefill_requests": step["prefill_requests"],
        "scheduled_sum_prefill_tokens": step["prefill_rows"],
        "scheduled_sum_prefill_kv_tokens": sum(row["start"] for row in of_phase["prefill"]),
        "scheduled_num_decode_requests": step["decode_requests"],
        "scheduled_sum_decode_kv_tokens": sum(row["start"] + row["rows"] for row in of_phase["decode"]),
        "queued_num_prefill_requests": load["waiting_requests"],
        "queued_sum_prefill_tokens": load["waiting_tokens"],
        "queued_num_decode_requests": 0,
        "queued_sum_decode_kv_tokens": 0,
        "wall_time_secs": step["took_ms"] / 1e3,
    }


def is_at_rest(load: Mapping[str, Any]) -> bool:
    """Whether nothing waits: no request, and no other worker for its blocks."""
    return not (load["running_requests"] or load["waiting_requests"] or load["kept_blocks"])


def deprecated(new: str) -> str:
    """The description of a metric under the name that it had in the release before."""
    return f"Deprecated, see twostroke_{new}; removed in the next release."


def metrics(load: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The page for Prometheus, under the names that a server's `/metrics` has."""
    handoffs = [({"way": "taken", "result": result}, count) for result, count in load["handoffs_taken"].items()]
    handoffs.append(({"way": "given", "result": "whole"}, load["handoffs_given"]))
    mismatches: list[tuple[dict[str, str], int]] = [({}, load["handoff_mismatches"])]
    lines = []
    for name, kind, help, samples in (
        ("kv_blocks_used", "gauge", "KV blocks held by requests.", [({}, load["used_blocks"])]),
        ("prompt_tokens_total", "counter", "Prompt tokens of finished requests.", [({}, load["prompt_tokens"])]),
        ("prompt_tokens_cached_total", "counter", "Those that the cache had.", [({}, load["cached_tokens"])]),
        ("remote_prefills_total", "counter", "Prompts that were read for others and by others.", handoffs),
        ("remote_prefill_mismatches_total", "counter", "Above 0: one computes wrong.", mismatches),
        ("handoffs_total", "counter", deprecated("remote_prefills_total"), handoffs),
        ("handoff_mismatches_total", "counter", deprecated("remote_prefill_mismatches_total"), mismatches),
    ):
        lines += [f"# HELP twostroke_{name} {help}", f"# TYPE twostroke_{name} {kind}"]
        for own, value in samples:
            written = ",".join(f"{label}={json.dumps(text)}" for label, text in {**own, **labels}.items())
            lines.append(f"twostroke_{name}{{{written}}} {value}")
    return "\n".join([*lines, ""])
