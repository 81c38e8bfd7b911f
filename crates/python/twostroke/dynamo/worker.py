"""What Dynamo calls: an engine in this process that registers, reads prompts, answers, tells its load, and drains.

    from_args --> start: load --> generate, abort --> SIGTERM: Dynamo sends no requests and waits --> cleanup
                    |
                    +--> every 250 ms: load for the router, the last forward pass for the planner
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, ZmqSource
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup, DynamoRuntimeConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.runtime import parse_endpoint
from dynamo.llm import FpmDirectPublisher
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown

from twostroke import LLM, GenerationError, RequestOutputKind, _twostroke
from twostroke.dynamo import load, requests

REPORT_S = 0.25
"""How often load is told. A router that hears of a busy worker later than this has sent it a request or two."""

EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0"}
"""Dynamo subscribes in this process, and tells others."""

LOOK_S = 0.05
"""How often it is looked whether the last answer has ended."""

ROLES = {
    DisaggregationMode.AGGREGATED: "both",
    DisaggregationMode.PREFILL: "prefill",
    DisaggregationMode.DECODE: "decode",
}

ELSEWHERE = {
    "model",
    "role",
    "chat_template",
    "default_chat_template_kwargs",
    "lora_modules",
    "max_loras",
    "max_lora_rank",
}
"""Engine options that a worker does not take: they are flags of its own, or the frontend's, or follow from its mode."""


class Worker(LLMEngine):
    """One engine. Whatever Dynamo does not say is as `LLM` has it."""

    def __init__(self, model: str, served_model_name: str, mode: DisaggregationMode, options: dict[str, Any]) -> None:
        self.model, self.served_model_name, self.mode, self.options = model, served_model_name, mode, options
        self.llm: LLM | None = None
        self._worker_id = ""
        self._snapshots: Any = None
        self._passes: FpmDirectPublisher | None = None
        self._reports: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Task[Any] | None] = {}
        self._under_way = 0

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[Worker, WorkerConfig]:
        names = [name for name in _twostroke.engine_options() if name not in ELSEWHERE]
        parser = _parser(names)
        config = DynamoRuntimeConfig.from_cli_args(parser.parse_args(argv))
        config.validate()
        given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
        options = {name: values[0] if len(values) == 1 else values for name, values in given.items()}
        mode = DisaggregationMode(config.disaggregation_mode)
        if mode is not DisaggregationMode.AGGREGATED and "cluster_key" not in options:
            parser.error(f"--cluster-key: a {mode.value} worker and its partners need the same key")
        if mode is DisaggregationMode.PREFILL and "handoff_listen" not in options:
            parser.error("--handoff-listen HOST:PORT: where decode workers reach this one; port 0 takes a free one")
        component = "prefill" if mode is DisaggregationMode.PREFILL else "backend"
        config.component, config.endpoint = component, config.endpoint or "generate"
        if "." in config.endpoint:
            config.namespace, config.component, config.endpoint = parse_endpoint(config.endpoint)
        name = config.served_model_name or config.model
        worker = WorkerConfig.from_runtime_config(config, config.model, name, disaggregation_mode=mode)
        return cls(config.model, name, mode, options), worker

    async def start(self, worker_id: int) -> EngineConfig:
        self._worker_id = str(worker_id)
        options: dict[str, Any] = {"kv_events_config": EVENTS, **self.options, "role": ROLES[self.mode]}
        self.llm = await asyncio.to_thread(lambda: LLM(self.model, **options))
        engine = self.llm._engine
        seats, tokens = engine.limits
        registration = LlmRegistration(
            context_length=engine.max_model_len,
            kv_cache_block_size=engine.block_size,
            total_kv_blocks=engine.load()["total_blocks"],
            max_num_seqs=seats,
            max_num_batched_tokens=tokens,
        )
        return EngineConfig(model=self.model, served_model_name=self.served_model_name, llm=registration)

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """One answer. Where its prompt was read elsewhere, its blocks are fetched from there; whatever does not come is
        computed here, so a request whose prompt no worker has read, or one that is gone, is no special case.

        A request that Dynamo moves here from a worker that died has what was generated behind its prompt and fewer
        tokens to go. It goes on with the same bits, drawn or not: what is drawn depends on the seed and on the place in
        the text. But penalties and `min_tokens` count from here again, for it is not said where the prompt ended.
        """
        llm = self.llm
        if llm is None:
            raise EngineShutdown("this worker ends")
        self._under_way += 1
        try:
            async with aclosing(self._answered(llm, request, context)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._under_way -= 1

    async def _answered(self, llm: LLM, request: dict[str, Any], context: Any) -> AsyncGenerator[dict[str, Any], None]:
        validated = await self._validated(llm, request)
        # Of a prompt that was read the router takes the first chunk, whatever comes behind it.
        is_read_here = self.mode is DisaggregationMode.PREFILL
        kind = RequestOutputKind.FINAL_ONLY if is_read_here else RequestOutputKind.DELTA
        outputs = llm._outputs(validated, kind)
        of_prompt = None
        async with aclosing(outputs):
            while True:
                # Each chunk is asked for by a task of its own; who aborts interrupts the one that waits.
                self._waiting[context.id()] = asyncio.current_task()
                try:
                    output = await anext(outputs)
                except asyncio.CancelledError:
                    if not context.is_stopped():
                        raise
                    yield requests.cancelled(len(request["token_ids"]))
                    return
                except RuntimeError as error:
                    # From an engine that has been closed Dynamo takes a request to another.
                    is_over = self.llm is None or not isinstance(error, GenerationError)
                    raise (EngineShutdown if is_over else Unknown)(str(error)) from None
                finally:
                    self._waiting.pop(context.id(), None)
                chunk = requests.chunk(output, request)
                of_prompt = output.prompt_logprobs or of_prompt
                if output.finished and of_prompt is not None:
                    chunk["engine_data"] = {"prompt_logprobs": requests.prompt_logprobs(of_prompt)}
                if is_read_here:
                    assert llm._engine.handoff is not None, "it listens from its start"
                    host, port, seal = llm._engine.handoff
                    chunk["disaggregated_params"] = {"host": host, "port": port, "seal": seal}
                yield chunk
                if output.finished:
                    return

    async def _validated(self, llm: LLM, request: dict[str, Any]) -> _twostroke.Request:
        try:
            params = requests.sampling_params(request)
            partner: Any = None
            if self.mode is DisaggregationMode.PREFILL:
                params, partner = requests.of_prompt_alone(params), "decode"
            else:
                partner = requests.who_has_read(request)
            rule = None if params.structured_outputs is None else params.structured_outputs._rule()
            return await asyncio.to_thread(llm._engine.validate, request["token_ids"], params, rule, None, partner)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(str(error)) from None

    async def abort(self, context: Any) -> None:
        task = self._waiting.get(context.id())
        if task is not None:
            task.cancel()

    async def kv_event_sources(self) -> list[KvEventSource]:
        assert self.llm is not None
        told = self.options.get("kv_events_config")
        topic = json.loads(told).get("topic", "") if told else ""
        endpoints = self.llm._engine.kv_events[:1]
        return [ZmqSource(endpoint=endpoint.replace("0.0.0.0", "127.0.0.1"), topic=topic) for endpoint in endpoints]

    def component_metrics_dp_ranks(self) -> list[int]:
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        self._snapshots = publisher

    async def register_prometheus(self, metrics: Any) -> None:
        llm, labels = self.llm, dict(metrics.auto_labels)
        assert llm is not None
        metrics.register_prometheus_expfmt_callback(lambda: load.metrics(llm._engine.load(), labels))

    async def on_endpoint_ready(self, endpoint: Any) -> None:
        self._passes = FpmDirectPublisher(endpoint=endpoint, worker_id=self._worker_id)
        self._reports = asyncio.create_task(self._report())

    async def _report(self) -> None:
        """Tells what is to do: to the router when it changes, to the planner while there is something to do."""
        assert self.llm is not None and self._passes is not None
        engine, before = self.llm._engine, None
        while True:
            now = engine.load()
            if self._snapshots is not None and now != before:
                self._snapshots.publish(0, ComponentSnapshot(**load.snapshot(now)))
            before = now
            if now["running_requests"] or now["waiting_requests"]:
                # Where nothing is told for a second, Dynamo tells that nothing is done.
                for step in engine.steps(1):
                    self._passes.publish(**load.forward_pass(now, step, engine.step_rows(1)))
            await asyncio.sleep(REPORT_S)

    async def health_check_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = build_health_check_payload(bos_token_id=1)
        return payload

    async def is_quiescent(self) -> bool:
        return self.llm is None or load.is_at_rest(self.llm._engine.load())

    async def cleanup(self) -> None:
        # Dynamo asks for this while answers still run. They end first, or Dynamo's patience does and it moves them.
        while self._under_way:
            await asyncio.sleep(LOOK_S)
        if self._reports is not None:
            self._reports.cancel()
        if self._passes is not None:
            self._passes.shutdown()
        llm, self.llm, self._passes, self._reports = self.llm, None, None, None
        if llm is not None:
            await asyncio.to_thread(llm.close)


def _parser(names: list[str]) -> argparse.ArgumentParser:
    """The worker's own flags, the engine's options as flags, and those of Dynamo's runtime."""
    parser = argparse.ArgumentParser("python -m twostroke.dynamo", allow_abbrev=False)
    modes = [mode.value for mode in ROLES]
    ours = parser.add_argument_group("twostroke")
    ours.add_argument("--model", required=True, help="a directory or a hub id, for Dynamo's frontend too")
    ours.add_argument("--served-model-name", help="its name for clients; without one that of --model")
    ours.add_argument("--disaggregation-mode", choices=modes, default="agg", help="both phases, or which of them")
    for name in names:
        flag = "--" + name.replace("_", "-")
        # One that is there without a value is true, and of those that are lists each gives one.
        ours.add_argument(flag, nargs="?", const=True, action="append", help="as of twostroke serve")
    DynamoRuntimeArgGroup().add_arguments(parser)
    return parser
