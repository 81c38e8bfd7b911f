"""What a worker has to do, in the words of Dynamo's router, of its planner and of Prometheus."""

from __future__ import annotations

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
    """Whether nobody waits for anything: no request, and no other worker for its blocks."""
    return not (load["running_requests"] or load["waiting_requests"] or load["kept_blocks"])


def metrics(load: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Handoffs for Prometheus, under the names that they have on a server's `/metrics`."""
    common = "".join(f',{name}="{value}"' for name, value in labels.items())
    of_way = [("taken", result, count) for result, count in load["handoffs_taken"].items()]
    of_way.append(("given", "whole", load["handoffs_given"]))
    lines = ["# HELP twostroke_handoffs_total Prompts that were read for others and by others.",
             "# TYPE twostroke_handoffs_total counter"]
    lines += [f'twostroke_handoffs_total{{way="{way}",result="{result}"{common}}} {count}'
              for way, result, count in of_way]
    lines += ["# HELP twostroke_handoff_mismatches_total More than 0: a worker computes wrong.",
              "# TYPE twostroke_handoff_mismatches_total counter",
              f"twostroke_handoff_mismatches_total{{{common.lstrip(',')}}} {load['handoff_mismatches']}"]
    return "\n".join([*lines, ""])
