"""How many methods of the official clients this server serves: see served.py.

Every public method of the groups below is called, with good arguments where it is to work, and with made-up ones where
there should be no such route. The guide says the numbers, and is held to them.
"""

import inspect
import json
import sys
import warnings
from functools import cached_property
from pathlib import Path
from typing import Literal

import anthropic
import openai
from pydantic import BaseModel, ConfigDict

from served import STORY, run, test

GUIDE = Path(__file__).parents[2] / "docs/guide/clients.md"
WORKS, REFUSED, NO_ROUTE = "works", "refused", "no route"
OPENAI = ("models", "chat", "completions", "responses", "embeddings", "files", "batches", "conversations",
          "moderations", "audio", "images")
ANTHROPIC = ("models", "messages", "beta.messages", "files")
warnings.simplefilter("ignore", DeprecationWarning)  # of methods that are still there
NAME = [{"role": "user", "content": "Name an animal and count its legs."}]


class Animal(BaseModel):
    model_config = ConfigDict(extra="forbid")
    animal: Literal["fox", "owl"]


def found(client, name):
    for part in name.split("."):
        client = getattr(client, part)
    return client


def methods(client, group):
    """Names of the methods of a group, and of the groups in it."""
    owner = found(client, group)
    for name in dir(type(owner)):
        kind = inspect.getattr_static(type(owner), name)
        if name.startswith(("_", "with_")):
            continue
        if isinstance(kind, (cached_property, property)):
            yield from methods(client, f"{group}.{name}")
        elif inspect.isfunction(kind):
            yield f"{group}.{name}"


def call(client, name, arguments):
    """Calls, and reads what comes to its end, whatever it is."""
    answer = found(client, name)(**arguments)
    if hasattr(answer, "__enter__"):
        with answer as stream:
            list(stream)
    elif name.endswith((".list", ".tool_runner")):
        list(answer)


def made_up(method):
    """Something for each argument that must be there."""
    needed = [parameter.name for parameter in inspect.signature(method).parameters.values()
              if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD]
    return {name: b"x" if name in ("file", "image") else "x" for name in needed}


def without(client, name):
    """What is said of a method that is not among those that work."""
    status = []
    client = client.with_options(http_client=None, max_retries=0)
    client._client.event_hooks = {"response": [lambda response: status.append((response.status_code, response.read()))]}
    try:
        call(client, name, made_up(found(client, name)))
    except Exception:  # also of the client itself, before it asks or when it reads
        pass
    said = [(code, text.decode()) for code, text in status]
    # What a made-up request is given is not what it asks for: the address is another API's.
    is_route = said and said[-1][0] not in (200, 404, 405) or any("_not_found" in text for _, text in said)
    return REFUSED if is_route else NO_ROUTE


def openai_calls(client, model):
    """Good arguments, by the methods that work; what they need is made when they are called."""
    chat = dict(model=model, messages=[{"role": "user", "content": STORY}], max_tokens=300, temperature=0)
    respond = dict(model=model, input=STORY, max_output_tokens=300, temperature=0)
    body = {**chat, "max_tokens": 500, "ignore_eos": True}
    line = {"custom_id": "", "method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "\n".join(json.dumps({**line, "custom_id": str(at)}) for at in range(200)).encode()
    upload = lambda: client.files.create(file=("in.jsonl", lines), purpose="batch").id
    response = lambda: dict(response_id=client.responses.create(**respond).id)
    order = lambda: dict(input_file_id=upload(), endpoint="/v1/chat/completions", completion_window="24h")
    batch = lambda: dict(batch_id=client.batches.create(**order()).id)
    return {
        "models.list": dict,
        "models.retrieve": lambda: dict(model=model),
        "chat.completions.create": lambda: chat,
        "chat.completions.parse": lambda: dict(chat, messages=NAME, response_format=Animal),
        "chat.completions.stream": lambda: chat,
        "completions.create": lambda: dict(model=model, prompt=STORY, max_tokens=4),
        "responses.create": lambda: respond,
        "responses.parse": lambda: dict(respond, input=NAME, text_format=Animal),
        "responses.stream": lambda: respond,
        "responses.retrieve": response,
        "responses.cancel": lambda: dict(response_id=client.responses.create(**respond, background=True).id),
        "responses.delete": response,
        "responses.input_items.list": response,
        "responses.input_tokens.count": lambda: dict(model=model, input=STORY),
        "embeddings.create": lambda: dict(model=model, input=STORY),
        "files.create": lambda: dict(file=("in.jsonl", lines), purpose="batch"),
        "files.list": dict,
        "files.retrieve": lambda: dict(file_id=upload()),
        "files.content": lambda: dict(file_id=upload()),
        "files.retrieve_content": lambda: dict(file_id=upload()),
        "files.wait_for_processing": lambda: dict(id=upload()),
        "files.delete": lambda: dict(file_id=upload()),
        "batches.create": order,
        "batches.list": dict,
        "batches.retrieve": batch,
        "batches.cancel": batch,
    }


def anthropic_calls(_, model):
    ask = dict(model=model, messages=[{"role": "user", "content": STORY}])
    message = lambda: dict(ask, max_tokens=200, extra_body={"temperature": 0})
    calls = {"models.list": dict, "models.retrieve": lambda: dict(model_id=model)}
    for group in ("messages", "beta.messages"):
        calls[f"{group}.create"] = calls[f"{group}.stream"] = message
        calls[f"{group}.parse"] = lambda: dict(message(), messages=NAME, output_format=Animal)
        calls[f"{group}.count_tokens"] = lambda: ask
    calls["beta.messages.tool_runner"] = lambda: dict(message(), tools=[])
    return calls


def tried(client, groups, calls):
    """What becomes of each method, by its name."""
    table = {}
    for name in (name for group in groups for name in methods(client, group)):
        if name in calls:
            call(client, name, calls[name]())
        table[name] = WORKS if name in calls else without(client, name)
    assert not set(calls) - set(table), "there are no such methods"
    return table


def hold(name, version, table):
    """Prints the table, and looks for its sum in the guide."""
    for method, verdict in table.items():
        print(f"        {verdict:<9} {method}")
    works = sum(verdict == WORKS for verdict in table.values())
    row = f"| `{name}` {version} | {works} of {len(table)} |"
    assert row in GUIDE.read_text(), f"not in {GUIDE.name}: {row}"


@test
def methods_of_openai(server):
    client = openai.OpenAI(base_url=server.v1, api_key=server.key, max_retries=0, timeout=120)
    hold("openai", openai.__version__, tried(client, OPENAI, openai_calls(client, server.model)))


@test
def methods_of_anthropic(server):
    client = anthropic.Anthropic(base_url=server.address, api_key=server.key, max_retries=0, timeout=120)
    hold("anthropic", anthropic.__version__, tried(client, ANTHROPIC, anthropic_calls(client, server.model)))


def connect(server):
    return (server,)


if __name__ == "__main__":
    sys.exit(run(connect))
