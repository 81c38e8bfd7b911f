"""What a request asks for: vLLM's names, as far as they mean the same. `None`: as the model's files say."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class RequestOutputKind(enum.Enum):
    """What `LLM.stream` gives out."""

    CUMULATIVE = 0
    """Each time all that has come."""
    DELTA = 1
    """Each time what is new."""
    FINAL_ONLY = 2
    """Once, at the end."""


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """What an answer must look like. One of these."""

    json: str | dict[str, Any] | None = None
    """A JSON schema, or the text of one."""
    regex: str | None = None
    """An expression that the whole answer matches, in the syntax of Rust's `regex`."""
    choice: Sequence[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """GBNF, as llama.cpp has it, or llguidance's dialect of Lark."""
    json_object: bool | None = None
    """A JSON object, whatever is in it."""

    def _rule(self) -> tuple[str, str]:
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        if len(given) != 1:
            asked = " and ".join(given) or "none of them"
            raise ValueError(f"structured_outputs: an answer has one form, and {asked} was asked for")
        ((name, value),) = given.items()
        if name == "choice":
            value = list(value)
        return name, value if isinstance(value, str) else json.dumps(value)


@dataclass(kw_only=True)
class SamplingParams:
    """How answers are drawn, and when they end.

    Equal seeds give equal tokens, alone or in a batch. Unlike vLLM, an answer without `max_tokens` ends where the model
    ends it, or where its context does.
    """

    n: int = 1
    """Answers to one prompt, which is read once."""
    temperature: float | None = None
    """0: always the most likely token."""
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1: of the whole vocabulary."""
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    """By token id."""
    seed: int | None = None
    max_tokens: int | None = None
    """What goes beyond the context is cut."""
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    """Words that no answer has."""
    allowed_token_ids: Sequence[int] | None = None
    """The tokens that answers may have; none but these."""
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """Of each token, beside this many top tokens; -1: of the whole vocabulary."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""
    truncate_prompt_tokens: int | None = None
    """Of a longer prompt only this many of the last tokens are read; -1: what the context has room for."""
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = field(default=RequestOutputKind.CUMULATIVE)
    """Of `LLM.stream`."""
