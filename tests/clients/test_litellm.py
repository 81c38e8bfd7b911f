"""LiteLLM against a running twostroke server, by each of its providers that speak an API of ours: see served.py."""

import json
import math
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would download a list of prices

import litellm

import served
from served import ANIMAL, SUM, WEATHER, raises, run, test

litellm.suppress_debug_info = True

STORY = [{"role": "user", "content": served.STORY}]
FOREST = {"role": "user", "content": "How is it in the forest?"}
# hosted_vllm takes `strict` and `additionalProperties` away, which would leave a model free to invent arguments.
ONE_ARGUMENT = {**WEATHER, "maxProperties": 1}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Says how it is.", "parameters": ONE_ARGUMENT, "strict": True}}]
CHOICE = {"type": "function", "function": {"name": "weather"}}


def providers(server):
    """The same model by each of them."""
    v1 = dict(api_base=server.v1, api_key=server.key)
    here = dict(api_base=server.address, api_key=server.key)
    return {
        "openai": dict(model=f"openai/{server.model}", **v1),
        "hosted_vllm": dict(model=f"hosted_vllm/{server.model}", **v1),
        "anthropic": dict(model=f"anthropic/{server.model}", **here),
        "ollama_chat": dict(model=f"ollama_chat/{server.model}", **here),
    }


def ask(asked, messages, **more):
    return litellm.completion(messages=messages, **{"temperature": 0, "max_tokens": 200, **asked, **more})


def adds_up(usage):
    return usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@test
def every_provider_says_the_same(server):
    said = {}
    for name, asked in providers(server).items():
        answer = ask(asked, STORY)
        assert adds_up(answer.usage) and answer.choices[0].finish_reason in ("stop", "length"), name
        said[name] = answer.choices[0].message.content, answer.usage.prompt_tokens, answer.usage.completion_tokens
    assert len(set(said.values())) == 1 and said["openai"][0], said


@test
def a_stream_adds_up_to_the_whole_answer(server):
    for name, asked in providers(server).items():
        for messages in (STORY, [{"role": "user", "content": SUM}]):
            whole = ask(asked, messages)
            chunks = list(ask(asked, messages, stream=True, stream_options={"include_usage": True}))
            streamed = litellm.stream_chunk_builder(chunks, messages=messages)
            assert streamed.choices[0].message.content == whole.choices[0].message.content, name
            thought = getattr(streamed.choices[0].message, "reasoning_content", None)
            assert thought == getattr(whole.choices[0].message, "reasoning_content", None), name
            assert streamed.usage.completion_tokens == whole.usage.completion_tokens, name


@test
def thoughts_stand_apart(server):
    for name, asked in providers(server).items():
        message = ask(asked, [{"role": "user", "content": SUM}]).choices[0].message
        assert "42" in message.content and "think>" not in message.content, (name, message)
        assert message.reasoning_content, (name, message)


@test
def effort_is_passed_on(server):
    asked = providers(server)["hosted_vllm"]
    question = [{"role": "user", "content": SUM}]
    assert ask(asked, question, reasoning_effort="low").choices[0].message.content
    asked = providers(server)["openai"]
    answer = ask(asked, question, reasoning_effort="low", allowed_openai_params=["reasoning_effort"])
    assert answer.choices[0].message.content


@test
def an_answer_follows_a_schema(server):
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": ANIMAL}}
    for name, asked in providers(server).items():
        answer = ask(asked, [{"role": "user", "content": "Name an animal and count its legs."}], response_format=form)
        # To Anthropic it sends a tool without a description, of which a small model may think until its tokens are out.
        if name == "anthropic" and answer.choices[0].finish_reason == "length":
            assert answer.choices[0].message.reasoning_content, answer
            continue
        assert json.loads(answer.choices[0].message.content)["animal"] in ("fox", "owl"), (name, answer)


@test
def a_tool_is_called(server):
    for name in ("openai", "hosted_vllm"):  # of the others one cannot say that it must, one forgets the schema's end
        asked, more = providers(server)[name], dict(tools=TOOLS, tool_choice=CHOICE, parallel_tool_calls=False)
        whole = ask(asked, [FOREST], **more)
        (call,) = whole.choices[0].message.tool_calls
        assert call.function.name == "weather" and whole.choices[0].finish_reason == "tool_calls", name
        assert json.loads(call.function.arguments)["place"] in ("forest", "river"), name
        chunks = list(ask(asked, [FOREST], stream=True, **more))
        (same,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
        assert json.loads(same.function.arguments) == json.loads(call.function.arguments), name
        # The message goes back as LiteLLM has it, with a copy of each field that OpenAI does not know.
        result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
        then = ask(asked, [FOREST, whole.choices[0].message, result], tools=TOOLS)
        assert then.usage.prompt_tokens > whole.usage.prompt_tokens, name


@test
def a_call_and_its_result_are_read(server):
    call = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "forest"}'}}
    turn = [{"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": "It rains."}]
    for name, asked in providers(server).items():
        alone, then = (ask(asked, messages, tools=TOOLS, max_tokens=8) for messages in ([FOREST], [FOREST, *turn]))
        assert then.usage.prompt_tokens > alone.usage.prompt_tokens, name


@test
def text_is_continued(server):
    asked = dict(model=f"text-completion-openai/{server.model}", api_base=server.v1, api_key=server.key,
                 prompt="The fox", max_tokens=12, temperature=0)
    whole = litellm.text_completion(**asked)
    assert whole.choices[0].text and adds_up(whole.usage)
    assert "".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(**asked, stream=True)) \
        == whole.choices[0].text


@test
def a_response_is_made(server):
    asked = dict(model=f"openai/{server.model}", api_base=server.v1, api_key=server.key, temperature=0,
                 max_output_tokens=40, input=served.STORY)
    whole = litellm.responses(**asked)
    text = whole.output[-1].content[0].text
    assert text and whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert "".join(event.delta for event in litellm.responses(**asked, stream=True)
                   if event.type == "response.output_text.delta") == text


@test
def texts_have_vectors(server):
    texts = ["A fox ran through the forest.", "The fox ran in the wood.", "17 + 25 = 42"]
    for name, asked in providers(server).items():
        if name == "anthropic":
            continue  # has no vectors
        asked = dict(asked, model=asked["model"].replace("ollama_chat", "ollama"))
        made = litellm.embedding(input=texts, **asked)
        vectors = [item["embedding"] for item in made.data]
        assert [round(math.hypot(*vector), 3) for vector in vectors] == [1, 1, 1], name


@test
def errors_keep_their_kind(server):
    asked = providers(server)["openai"]
    raises(litellm.NotFoundError, lambda: ask({**asked, "model": "openai/none"}, STORY), "/v1/models")
    raises(litellm.BadRequestError, lambda: ask(asked, STORY, temperature=-1), "temperature")


def connect(server):
    return (server,)


if __name__ == "__main__":
    sys.exit(run(connect))
