"""The official `anthropic` Python client against a running twostroke server: see served.py."""

import json
import sys

import anthropic
from anthropic import Anthropic

import served
from served import raises, run, test

STORY = [{"role": "user", "content": served.STORY}]
SUM = [{"role": "user", "content": served.SUM}]
WEATHER = {"name": "weather", "description": "Says how it is.", "strict": True, "input_schema": served.WEATHER}
# A call, and only one.
ONE_CALL = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def plain(message):
    """What two answers to one request have in common."""
    blocks = [block.to_dict() for block in message.content]
    for block in blocks:
        block.pop("id", None)
    return blocks, message.stop_reason, message.stop_sequence, message.usage.output_tokens, prompt_tokens(message.usage)


@test
def models_are_listed_and_shown(client, model):
    listed = list(client.models.list())
    assert [entry.id for entry in listed] and all(entry.type == "model" for entry in listed)
    shown = client.models.retrieve(model)
    assert shown.id == model and shown.created_at.year >= 2020
    raises(anthropic.NotFoundError, lambda: client.models.retrieve("no-such-model"), type="not_found_error")


@test
def a_message_is_answered(client, model):
    message = client.messages.create(
        model=model, max_tokens=24, messages=STORY, system="Be kind.", extra_body={"temperature": 0})
    assert message.type == "message" and message.role == "assistant" and message.model == model
    assert message.id.startswith("msg_") and message._request_id
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens") and 1 <= message.usage.output_tokens <= 24
    assert message.model_extra["timings"]["total_ms"] > 0


@test
def a_stream_says_what_the_whole_message_says(client, model):
    for more in ({"messages": STORY}, {"messages": SUM}, {"messages": SUM, **ONE_CALL},
                 {"messages": STORY, "stop_sequences": [" a"]}):
        asked = {"model": model, "max_tokens": 200, "extra_body": {"temperature": 0}, **more}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
        assert plain(streamed) == plain(whole)
        assert text == "".join(block.text for block in whole.content if block.type == "text")


@test
def a_thought_is_a_block_of_its_own(client, model):
    def kinds(**more):
        message = client.messages.create(
            model=model, max_tokens=200, messages=SUM, extra_body={"temperature": 0}, **more)
        return [block.type for block in message.content]

    assert kinds()[:2] == ["thinking", "text"]
    assert kinds(thinking={"type": "adaptive"}) == kinds()
    assert kinds(thinking={"type": "disabled"}) == ["text"]


@test
def a_tool_is_called_and_its_result_read(client, model):
    messages = [{"role": "user", "content": "How is it in the forest?"}]
    asked = {"max_tokens": 300, "extra_body": {"temperature": 0}, **ONE_CALL}
    first = client.messages.create(model=model, messages=messages, **asked)
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    assert call.type == "tool_use" and call.name == "weather" and call.input["place"] in ("forest", "river")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It rains.",
              "cache_control": {"type": "ephemeral"}}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model=model, max_tokens=20, messages=messages, tools=[WEATHER])
    assert second.content
    counted = client.messages.count_tokens(model=model, messages=messages, tools=[WEATHER])
    assert counted.input_tokens == prompt_tokens(second.usage)


@test
def an_answer_follows_a_schema(client, model):
    message = client.messages.create(
        model=model, max_tokens=300, messages=[{"role": "user", "content": "Name an animal and count its legs."}],
        output_config={"format": {"type": "json_schema", "schema": served.ANIMAL}}, extra_body={"temperature": 0})
    text = "".join(block.text for block in message.content if block.type == "text")
    assert json.loads(text)["animal"] in ("fox", "owl"), text


@test
def betas_are_taken(client, model):
    message = client.beta.messages.create(
        model=model, max_tokens=3, messages=STORY, betas=["no-such-2099-01-01"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
    assert {"anthropic-beta", "context_management"} <= set(message.model_extra["hints"])


@test
def what_is_wrong_is_said_by_name(client, model):
    for more, field in (({"messages": []}, "messages"), ({"max_tokens": 0}, "max_tokens"),
                        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools[0].name"),
                        ({"extra_body": {"temprature": 1}}, "temprature")):
        asked = {"model": model, "max_tokens": 5, "messages": STORY, **more}
        error = raises(anthropic.BadRequestError, lambda: client.messages.create(**asked), type="invalid_request_error")
        assert field in error.message and error.request_id, error
    raises(anthropic.NotFoundError, lambda: client.messages.create(model="claude", max_tokens=5, messages=STORY))


def connect(server):
    return Anthropic(base_url=server.address, api_key=server.key, max_retries=0, timeout=120), server.model


if __name__ == "__main__":
    sys.exit(run(connect))
