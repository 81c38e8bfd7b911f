"""What comes back: answers, both phases of each request, the log of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

if TYPE_CHECKING:
    from twostroke._twostroke import Request


class Logprob(NamedTuple):
    """A token at one place. Natural logarithms of the model's own distribution, before temperature and filters."""

    logprob: float
    rank: int | None
    """Its rank among the top tokens, from 1; `None` if it is not among those that were asked for."""
    decoded_token: str | None


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """The sum over all of its tokens, if log probabilities were asked for."""
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    """`stop`, `length`, or `error`; `None` while it grows."""
    stop_reason: int | str | None
    """The stop string or token that ended it; `None` for the model's own end."""


@dataclass
class RequestMetrics:
    """Where the time of a request went. `queue_ms + prefill_ms` is `ttft_ms`, and with `decode_ms` the total."""

    queue_ms: float
    """Arrival to the first step with a row of it."""
    prefill_ms: float
    """From there to its first token."""
    decode_ms: float
    """From its first token to its last."""
    ttft_ms: float
    """Arrival to first token."""
    tpot_ms: float | None
    """The mean time from a token to the next; `None` for an answer of one token."""
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's tokens, those that the prefix cache had."""
    completion_tokens: int
    prefill_tokens: int
    """Rows of the prompt that were computed, again after a preemption."""
    decode_tokens: int
    """Tokens behind the first of each answer: those that decode steps made."""
    decode_steps: int
    drafted_tokens: int
    """Drafts that were checked."""
    accepted_tokens: int
    """Those of them that held."""
    preemptions: int
    prefill_tok_s: float
    decode_tok_s: float
    promised_ttft_ms: float | None
    """The bound on its first token that was promised when it came; 95 of 100 such promises are kept."""
    ttft_owners: dict[str, float]
    """Milliseconds until its first token, by who had them: the parts of `ttft_ms`."""
    gap_owners: dict[str, float]
    """Milliseconds between its tokens, likewise, over all answers."""
    ttft_delayed_by: dict[str, float]
    """The part of them that others had, by `request_id`."""
    gaps_delayed_by: dict[str, float]
    cost_to_others_ms: float
    """What it took of others' time: the same milliseconds, seen from here."""
    saved_by_cache_ms: float | None
    """What the cached part of the prompt would have taken."""


@dataclass
class RequestOutput:
    """A request and its answers."""

    request_id: str
    """Its name in the step log."""
    prompt: str | None
    """`None` if it was given as tokens."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = field(default=None, repr=False)
    """When it is finished."""
    error: str | None = None
    """Why it ended without all its answers."""


class GenerationError(RuntimeError):
    """Some requests ended without all their answers. Those of the others are in `outputs`, in the order of the prompts."""

    def __init__(self, message: str, outputs: list[RequestOutput]) -> None:
        super().__init__(message)
        self.outputs = outputs


class StepRecord(NamedTuple):
    """One forward pass. A list of them is a table: `pandas.DataFrame(llm.step_log())`."""

    step: int
    began_ms: float
    """Since the engine started."""
    took_ms: float
    predicted_ms: float
    """What the cost model said; not a number where steps were not measured."""
    machine_ms: float
    """Of the time, what the machine did for other programs."""
    prefill_rows: int
    """Tokens of prompts in it."""
    prefill_requests: int
    decode_rows: int
    """Rows of answers, those of drafts among them."""
    decode_requests: int
    draft_rows: int
    tokens: int
    """Tokens that came of it."""
    cached_tokens: int
    """Prompt tokens that the prefix cache saved requests that began in it."""
    recomputed_rows: int
    preempted: int
    waiting_requests: int
    waiting_tokens: int
    blocked: str
    """What the first in line waited for: `kv`, `seats`, `budget`; empty if none waited."""
    used_blocks: int
    """KV blocks held after planning."""
    taken_blocks: int
    evicted_blocks: int


class StepRow(NamedTuple):
    """What one answer had in a step."""

    step: int
    request_id: str
    answer: int
    phase: str
    """`prefill` or `decode`."""
    start: int
    """Tokens that were in the cache before."""
    rows: int
    tokens: int
    """Tokens that came of them."""
    drafts: int
    cached_tokens: int


Likely: TypeAlias = "dict[int, tuple[float, int | None, str | None]]"


class AnswerEntry(TypedDict):
    """An answer as the extension gives it."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[Likely] | None
    finish_reason: str | None
    stop_reason: int | str | None


class OutputEntry(TypedDict):
    """A request as the extension gives it."""

    outputs: list[AnswerEntry]
    prompt_logprobs: list[Likely | None] | None
    finished: bool
    error: str | None
    metrics: dict[str, Any] | None


def request_output(request_id: str, request: Request, entry: OutputEntry) -> RequestOutput:
    """The output of what the extension gives."""
    logprobs = entry["prompt_logprobs"]
    metrics = entry["metrics"]
    return RequestOutput(
        request_id=request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[_completion(output) for output in entry["outputs"]],
        finished=entry["finished"],
        prompt_logprobs=None if logprobs is None else [None if one is None else _named(one) for one in logprobs],
        metrics=None if metrics is None else RequestMetrics(**metrics),
        error=entry["error"],
    )


def _completion(entry: AnswerEntry) -> CompletionOutput:
    logprobs = entry["logprobs"]
    named = None if logprobs is None else [_named(one) for one in logprobs]
    return CompletionOutput(
        index=entry["index"],
        text=entry["text"],
        token_ids=entry["token_ids"],
        cumulative_logprob=entry["cumulative_logprob"],
        logprobs=named,
        finish_reason=entry["finish_reason"],
        stop_reason=entry["stop_reason"],
    )


def _named(likely: Likely) -> dict[int, Logprob]:
    return {token: Logprob(*entry) for token, entry in likely.items()}
