"""An engine in this process, and what is asked of it.

    generate, chat --> Request, for each prompt --> Inbox: select() until something has come --> RequestOutput
    stream ----------> Request ------------------> Mailbox: the same, waited for by the event loop
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import select
import time
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypedDict, TypeGuard, TypeVar, cast

from twostroke import _twostroke
from twostroke.mailbox import Mailbox
from twostroke.outputs import GenerationError, RequestOutput, StepRecord, StepRow, request_output
from twostroke.params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from twostroke.options import EngineOptions

RETRY_MS = 20
"""Where the queue is full of others' requests, no event says when there is room."""


REMEMBERED_STEPS = 4096
"""Forward passes that the engine remembers."""


TOGETHER_MS = 1
"""So long after the first output of a step its others are there too: to look at each by itself takes the engine's core."""


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as tokens."""

    prompt_token_ids: Sequence[int]


Prompt: TypeAlias = "str | Sequence[int] | TextPrompt | TokensPrompt"
Message: TypeAlias = "Mapping[str, Any]"
One = TypeVar("One")


class LLM:
    """A model that is loaded, and the engine that runs it.

    `model`: a directory, a GGUF file or a hub id; without one the model that is built in. Everything else is an option
    of `twostroke serve` by its name, with the same meaning and the same default: `weights="int8"`, `kv_dtype="int8"`,
    `max_num_seqs=8`, `ttft_slo="500ms"`, `speculate="off"`.

    What a person should know of the load, such as a context that was cut, is a warning.

    Any thread may call it, also several at a time: their requests share steps. `close`, the end of a `with` or of the
    last reference end it.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Unpack[EngineOptions]) -> None:
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if model is not None:
            given["model"] = model
        self._engine = _twostroke.Engine(json.dumps(given, default=_plain))
        self._process = os.getpid()
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = weakref.WeakKeyDictionary()
        self._end = weakref.finalize(self, self._engine.stop)
        for notice in self._engine.notices:
            warnings.warn(notice, stacklevel=2)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._engine.model

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self._engine.max_model_len

    def close(self) -> None:
        """Ends every request and the engine, and waits for the end of its recording, if there is one."""
        self._end()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Answers prompts, each a text or tokens, in their order. Ctrl-C ends all that runs.

        All of them are checked before the first is asked: `ValueError` and `TypeError` say what is wrong with which.
        `adapter`: one of `lora_modules` by its name. Raises `GenerationError` when a request ends without its answers.
        """
        listed = [cast("Prompt", prompts)] if _is_one(prompts) else list(cast("Sequence[Prompt]", prompts))
        params = _one_each(sampling_params, len(listed))
        return self._run(
            _for_each("prompts", listed, params, lambda prompt, params: self._validate(prompt, params, adapter))
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several. Texts are what the model writes, with its marks of thoughts and calls.

        `tools`: definitions, as OpenAI has them, for the template to show. `chat_template`: a template in place of the
        model's own. `continue_final_message`: go on with the last message (`add_generation_prompt=False` with it).
        """
        if add_generation_prompt and continue_final_message:
            raise ValueError("continue_final_message goes on with a turn, and add_generation_prompt begins one")
        variables = dict(chat_template_kwargs or {})
        if tools is not None and variables.setdefault("tools", list(tools)) != list(tools):
            raise ValueError("tools: they are in chat_template_kwargs too")
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages

        def validate(conversation: object, params: SamplingParams) -> _twostroke.Request:
            prompt = {
                "messages": conversation,
                "chat_template": chat_template,
                "chat_template_kwargs": variables,
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
                "now": int(time.time()),
            }
            return self._engine.validate_chat(json.dumps(prompt), params, _rule(params), adapter)

        params = _one_each(sampling_params, len(conversations))
        return self._run(_for_each("messages", cast("Sequence[object]", conversations), params, validate))

    async def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Answers one prompt as it comes; `output_kind` says what each output has. Who stops reading ends the request.

        No thread waits for tokens: the event loop does, for any number of streams.
        """
        params = sampling_params or SamplingParams()
        request = await asyncio.to_thread(self._validate, prompt, params, adapter)
        async for output in self._outputs(request, params.output_kind):
            yield output

    async def _outputs(self, request: _twostroke.Request, kind: RequestOutputKind) -> AsyncGenerator[RequestOutput, None]:
        loop = asyncio.get_running_loop()
        mailbox = self._mailbox(loop)
        key = mailbox.open(loop)
        try:
            while not mailbox.inbox.submit(self._engine, key, request):
                await asyncio.sleep(RETRY_MS / 1e3)
            request_id = mailbox.inbox.request_id(key)
            finished = False
            while not finished:
                finished = await mailbox.wait(key)
                if finished or kind is not RequestOutputKind.FINAL_ONLY:
                    entry = mailbox.inbox.output(key, kind is RequestOutputKind.DELTA)
                    output = request_output(request_id, request, entry)
                    _raise_errors([output])
                    yield output
        finally:
            mailbox.close(loop, key)

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a prompt, with what the model puts before them."""
        return self._engine.tokenize(text)

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        return self._engine.detokenize(_tokens("token_ids", token_ids), skip_special_tokens)

    def step_log(self) -> list[StepRecord]:
        """The last 4,096 forward passes, oldest first."""
        return [StepRecord(**entry) for entry in self._engine.steps(REMEMBERED_STEPS)]

    def step_rows(self) -> list[StepRow]:
        """What each request had in them."""
        return [StepRow(**entry) for entry in self._engine.step_rows(REMEMBERED_STEPS)]

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        if loop not in self._mailboxes:
            self._mailboxes[loop] = Mailbox()
        return self._mailboxes[loop]

    def _validate(self, prompt: Prompt, params: SamplingParams, adapter: str | None) -> _twostroke.Request:
        return self._engine.validate(_bare(prompt), params, _rule(params), adapter, None)

    def _run(self, requests: Sequence[_twostroke.Request]) -> list[RequestOutput]:
        if os.getpid() != self._process:
            raise RuntimeError("this engine runs in the process that made it, and not in those that it forks")
        inbox = _twostroke.Inbox()
        bell = select.poll()
        bell.register(inbox.fileno(), select.POLLIN)
        waiting = deque(range(len(requests)))
        names: dict[int, str] = {}
        outputs: dict[int, RequestOutput] = {}
        try:
            while len(outputs) < len(requests):
                while waiting and inbox.submit(self._engine, waiting[0], requests[waiting[0]]):
                    key = waiting.popleft()
                    names[key] = inbox.request_id(key)
                # Ctrl-C interrupts both, and a waiting thread holds no lock.
                bell.poll(RETRY_MS if waiting else None)
                time.sleep(TOGETHER_MS / 1e3)
                for key, finished in inbox.take():
                    if finished:
                        outputs[key] = request_output(names[key], requests[key], inbox.output(key, False))
                        inbox.close(key)
        finally:
            inbox.close_all()
        in_order = [outputs[key] for key in range(len(requests))]
        _raise_errors(in_order)
        return in_order


def _plain(value: object) -> object:
    """What JSON has no word for."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} is no value of an option")


def _rule(params: SamplingParams) -> tuple[str, str] | None:
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params: {type(params).__name__} is no SamplingParams")
    for name, tokens in (("stop_token_ids", params.stop_token_ids), ("allowed_token_ids", params.allowed_token_ids)):
        if tokens is not None:
            _tokens(name, tokens)
    return None if params.structured_outputs is None else params.structured_outputs._rule()


def _is_one(prompts: object) -> bool:
    """A text, a dict, or a list of tokens, and not a list of these."""
    if isinstance(prompts, (str, Mapping)):
        return True
    is_list = _is_list(prompts)
    if not is_list and not isinstance(prompts, Iterable):
        raise TypeError(f"prompts: {type(prompts).__name__} is neither a text nor tokens, nor several of them")
    if isinstance(prompts, BYTES):
        raise TypeError(f"prompts: {type(prompts).__name__} is no text; decode() makes one")
    return is_list and bool(prompts) and all(_is_token(item) for item in cast("Sequence[object]", prompts))


BYTES = (bytes, bytearray, memoryview)


def _is_list(value: object) -> bool:
    """Some things in an order; a text has characters, and bytes have numbers that are no tokens."""
    return isinstance(value, Sequence) and not isinstance(value, (str, *BYTES))


def _is_token(value: object) -> TypeGuard[SupportsIndex]:
    """A whole number, also one of numpy's; `True` is none."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _tokens(name: str, tokens: object) -> list[int]:
    """Token ids, in a list, a tuple, an array or any such; what is none of these is an error that says so."""
    is_list = hasattr(tokens, "__len__") and hasattr(tokens, "__getitem__")
    if isinstance(tokens, (str, Mapping, *BYTES)) or not is_list:
        raise TypeError(f"{name}: {type(tokens).__name__} is no list of tokens")
    ids = []
    for at, item in enumerate(cast("Iterable[object]", tokens)):
        if not _is_token(item):
            raise TypeError(f"{name}[{at}]: {type(item).__name__} is no token id, which is a whole number")
        ids.append(operator.index(item))
    return ids


def _bare(prompt: Prompt) -> str | Sequence[int]:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Mapping):
        return _tokens("prompt_token_ids", prompt)
    match dict(prompt):
        case {"prompt": str(text), **rest} if not rest:
            return text
        case {"prompt_token_ids": tokens, **rest} if not rest:
            return _tokens("prompt_token_ids", tokens)
    raise ValueError(f"a prompt is a text under 'prompt' or tokens under 'prompt_token_ids', not {sorted(prompt)}")


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence):
        raise TypeError(f"sampling_params: {type(params).__name__} is no SamplingParams")
    if len(params) != count:
        raise ValueError(f"sampling_params: there are {len(params)} for {count} prompts")
    return params


def _for_each(
    name: str,
    items: Sequence[One],
    params: Sequence[SamplingParams],
    validate: Callable[[One, SamplingParams], _twostroke.Request],
) -> list[_twostroke.Request]:
    """Checks all of them; of several the error says which."""
    requests = []
    for at, (item, one) in enumerate(zip(items, params, strict=True)):
        try:
            requests.append(validate(item, one))
        except (TypeError, ValueError) as error:
            if len(items) == 1:
                raise
            raise type(error)(f"{name}[{at}]: {error}") from None
    return requests


def _raise_errors(outputs: list[RequestOutput]) -> None:
    failed = [f"request {output.request_id}: {output.error}" for output in outputs if output.error is not None]
    if failed:
        raise GenerationError(f"{len(failed)} of {len(outputs)} requests failed; {failed[0]}", outputs)
