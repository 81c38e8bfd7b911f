"""Dynamo's requests as `SamplingParams`, and our outputs as its chunks: dicts in, dicts out.

    {"token_ids", "sampling_options", "stop_conditions", "output_options"} --> SamplingParams
    RequestOutput --> {"token_ids", "index", "log_probs", "finish_reason", "completion_usage", ...}

What cannot be honoured is refused by its name (`ValueError`), and nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from twostroke.outputs import Logprob, RequestMetrics, RequestOutput
from twostroke.params import SamplingParams, StructuredOutputsParams

SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "allowed_token_ids",
)
"""Sampling options that are the same there and here."""

STOP_TOKENS = ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden")
"""All of them end an answer. Which are shown is the frontend's."""

SAYS_NOTHING: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "formatted_prompt": False,
    "require_reasoning": False,
    "priority": 0,
    "strict_priority": 0,
}
"""What is not done here, beside the value that asks for nothing."""

NOT_OURS = ("prompt_embeds", "multi_modal_data", "mm_processor_kwargs", "encoder_result", "require_reasoning")
"""Parts of a request that change its answer. All others are Dynamo's own."""

NOT_OUR_ROUTES = ("lora_name", "cache_salt", "priority")
"""Of its hints for routers, those that a worker would have to obey."""


def sampling_params(request: Mapping[str, Any]) -> SamplingParams:
    """What a request asks for. `None` is as the model's files say, as everywhere here."""
    sampling = dict(request.get("sampling_options") or {})
    stop = dict(request.get("stop_conditions") or {})
    output = dict(request.get("output_options") or {})
    params = SamplingParams(
        **{name: sampling.pop(name, None) for name in SAME_NAME},
        include_stop_str_in_output=bool(sampling.pop("include_stop_str_in_output", None)),
        structured_outputs=_structured(sampling.pop("guided_decoding", None)),
        max_tokens=stop.pop("max_tokens", None),
        min_tokens=stop.pop("min_tokens", None),
        stop=stop.pop("stop", None),
        stop_token_ids=[token for name in STOP_TOKENS for token in stop.pop(name, None) or ()],
        ignore_eos=bool(stop.pop("ignore_eos", None)),
        logprobs=output.pop("logprobs", None),
        prompt_logprobs=output.pop("prompt_logprobs", None),
        skip_special_tokens=bool(output.pop("skip_special_tokens", None)),
    )
    # Text is not read here: Dynamo's frontend makes it of tokens.
    sampling.pop("detokenize", None)
    output.pop("return_tokens_as_token_ids", None)
    routing = request.get("routing") or {}
    _refuse({**sampling, **stop, **output})
    _refuse({name: request.get(name) for name in NOT_OURS})
    _refuse({name: routing.get(name) for name in NOT_OUR_ROUTES})
    return params


def who_has_read(request: Mapping[str, Any]) -> tuple[str, int, str] | None:
    """Where the prompt was read, if another worker has: host, port, seal."""
    result = request.get("prefill_result")
    if result is None:
        return None
    match result.get("disaggregated_params"):
        case {"host": str(host), "port": int(port), "seal": str(seal)}:
            return host, port, seal
    raise ValueError("prefill_result: its prompt was read by a worker of another kind")


def of_prompt_alone(params: SamplingParams) -> SamplingParams:
    """The same for a worker that reads the prompt: one token, which is not sent on."""
    return replace(params, max_tokens=1, min_tokens=None, logprobs=None, prompt_logprobs=None)


def chunk(output: RequestOutput, request: Mapping[str, Any]) -> dict[str, Any]:
    """What is new of an answer. The last has its end and its usage."""
    (answer,) = output.outputs
    piece: dict[str, Any] = {"token_ids": answer.token_ids, "index": answer.index}
    if answer.logprobs:
        piece["log_probs"] = [
            likely[token].logprob for token, likely in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
        as_ids = (request.get("output_options") or {}).get("return_tokens_as_token_ids") is True
        piece["top_logprobs"] = [_top(likely, as_ids) for likely in answer.logprobs]
    if output.finished:
        assert output.metrics is not None, "what ended well has been measured"
        piece["finish_reason"] = answer.finish_reason
        piece["completion_usage"] = usage(output.metrics)
    return piece


def cancelled(prompt_tokens: int) -> dict[str, Any]:
    """The last of an answer whose client has left."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": 0, "total_tokens": prompt_tokens}
    return {"token_ids": [], "index": 0, "finish_reason": "cancelled", "completion_usage": counts}


def usage(metrics: RequestMetrics) -> dict[str, Any]:
    """Tokens, and of those of the prompt how many were in the cache."""
    return {
        "prompt_tokens": metrics.prompt_tokens,
        "completion_tokens": metrics.completion_tokens,
        "total_tokens": metrics.prompt_tokens + metrics.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": metrics.cached_tokens},
    }


def prompt_logprobs(positions: Sequence[dict[int, Logprob] | None]) -> list[dict[str, dict[str, Any]] | None]:
    """Those of the prompt's tokens, in Dynamo's form: JSON has no numbers for names."""
    return [None if likely is None else {str(token): _of_prompt(one) for token, one in likely.items()}
            for likely in positions]


def _of_prompt(one: Logprob) -> dict[str, Any]:
    return {name: value for name, value in one._asdict().items() if value is not None}


def _top(likely: Mapping[int, Logprob], as_ids: bool) -> list[dict[str, Any]]:
    return [
        {
            "rank": one.rank or 0,
            "token_id": token,
            "token": f"token_id:{token}" if as_ids else one.decoded_token,
            "logprob": one.logprob,
        }
        for token, one in likely.items()
    ]


def _structured(guided: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    if guided is None:
        return None
    forms = {name: value for name, value in guided.items() if value is not None and value != []}
    rest = {name: value for name, value in forms.items() if name not in ("json", "regex", "choice", "grammar")}
    _refuse({f"guided_decoding.{name}": value for name, value in rest.items()})
    return StructuredOutputsParams(**forms) if forms else None


def _refuse(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is not None and value != SAYS_NOTHING.get(name):
            raise ValueError(f"{name}: not supported by workers of twostroke, and {value!r} was asked for")
