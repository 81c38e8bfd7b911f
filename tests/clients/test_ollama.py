"""The official `ollama` Python client against a running twostroke server: see served.py."""

import json
import sys

from ollama import Client, ResponseError

import served
from served import raises, run, test

STORY = [{"role": "user", "content": served.STORY}]
SHORT = {"temperature": 0, "num_predict": 24}


def refused(call, status, *words):
    raises(ResponseError, call, *words, status_code=status)


@test
def models_are_listed_shown_and_loaded(client, model):
    listed = client.list().models[0]
    assert listed.model == model and listed.size > 0 and len(listed.digest) == 64 and listed.modified_at
    shown = client.show(model)
    assert shown.details == listed.details and "completion" in shown.capabilities
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] > 0 and shown.template
    loaded = client.ps().models[0]
    assert loaded.model == model and loaded.size >= listed.size and loaded.expires_at and loaded.context_length > 0
    refused(lambda: client.show("other"), 404, "model")


@test
def chat_answers_whole_and_by_lines(client, model):
    whole = client.chat(model, STORY, options=SHORT)
    assert whole.model == model and whole.done and whole.done_reason in ("stop", "length")
    assert whole.message.role == "assistant" and whole.message.content
    assert 1 <= whole.eval_count <= 24 and whole.prompt_eval_count > 0
    assert whole.prompt_eval_duration + whole.eval_duration <= whole.total_duration
    parts = list(client.chat(model, STORY, options=SHORT, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


@test
def a_conversation_goes_on_with_the_clients_own_message_objects(client, model):
    first = client.chat(model, STORY, options=SHORT)
    history = [*STORY, first.message, {"role": "user", "content": "And then?"}]
    assert client.chat(model, history, options=SHORT).prompt_eval_count > first.prompt_eval_count


@test
def generate_goes_on_from_its_context(client, model):
    first = client.generate(model, "Tell me a story", options=SHORT)
    assert first.response and len(first.context) == first.prompt_eval_count + first.eval_count
    then = client.generate(model, "And then?", context=first.context, options=SHORT)
    assert then.context[:len(first.context)] == first.context
    parts = list(client.generate(model, "Tell me a story", options=SHORT, stream=True))
    assert "".join(part.response for part in parts) == first.response
    assert client.generate(model, "Once upon a time", raw=True, options=SHORT).context is None
    assert client.generate(model, keep_alive="1m").done_reason == "load"


@test
def thoughts_stand_apart(client, model):
    options = {"temperature": 0, "num_predict": 200}
    question = [{"role": "user", "content": served.SUM}]
    shown = client.chat(model, question, think=True, options=options)
    assert shown.message.thinking and shown.message.content
    assert client.chat(model, question, think=False, options=options).message.thinking is None
    parts = list(client.chat(model, question, think=True, options=options, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == shown.message.thinking


@test
def an_answer_has_the_form_that_was_asked_for(client, model):
    answer = client.chat(model, [{"role": "user", "content": "Name an animal and count its legs."}], format=served.ANIMAL,
                         options={"temperature": 0, "num_predict": 300})
    assert json.loads(answer.message.content)["animal"] in ("fox", "owl")


def weather(place: str) -> str:
    """Says how it is.

    Args:
        place: Where.
    """
    return "Foggy."


@test
def tools_are_told_as_functions_and_calls_sent_back(client, model):
    first = client.chat(model, [{"role": "user", "content": "How is it in the forest?"}], tools=[weather], options=SHORT)
    assert first.done
    history = [
        {"role": "user", "content": "How is it in the forest?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"place": "forest"}}}]},
        {"role": "tool", "tool_name": "weather", "content": weather("forest")},
    ]
    assert client.chat(model, history, tools=[weather], options=SHORT).prompt_eval_count > first.prompt_eval_count


@test
def what_is_not_there_is_an_error_with_its_name(client, model):
    refused(lambda: client.chat("other", STORY), 404, "model")
    refused(lambda: client.chat(model, STORY, options={"mirostat": 2}), 400, "options.mirostat")
    refused(lambda: list(client.chat(model, STORY, options={"top_p": 7}, stream=True)), 400, "top_p")
    refused(lambda: client.generate(model, "a", suffix="b"), 400, "suffix")
    refused(lambda: client.pull("llama3"), 501)
    refused(lambda: client.delete(model), 501)
    refused(lambda: client.copy(model, "other"), 501)


def connect(server):
    client = Client(host=server.address, headers={"Authorization": f"Bearer {server.key}"}, timeout=120)
    return client, client.list().models[0].model


if __name__ == "__main__":
    sys.exit(run(connect))
