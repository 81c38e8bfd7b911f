"""LangChain against a running twostroke server, by OpenAI's, Anthropic's and Ollama's API: see served.py."""

import math
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

os.environ["LANGSMITH_TRACING"] = "false"  # it would report what it does
os.environ["TIKTOKEN_CACHE_DIR"] = str(  # OpenAI's vocabulary, which LangChain would download, and LiteLLM brings
    Path(find_spec("litellm").origin).parent / "litellm_core_utils/tokenizers")

import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

from served import STORY, SUM, raises, run, test

# Fields of this server beside OpenAI's: the client warns of each.
warnings.filterwarnings("ignore", module="langchain")


class Animal(BaseModel):
    """Names one."""

    model_config = ConfigDict(extra="forbid")
    animal: Literal["fox", "owl"]


class Where(BaseModel):
    """Closed, so that nothing but a place can be said."""

    model_config = ConfigDict(extra="forbid")
    place: Literal["forest", "river"]


@tool(args_schema=Where)
def weather(place):
    """Says how it is."""
    return f"It rains over the {place}."


def chats(server, **more):
    """The same model by each of the APIs."""
    key = dict(api_key=server.key)
    by = dict(model=server.model, temperature=0, **more)
    v1 = dict(base_url=server.v1, max_retries=0, **key)
    return {
        "chat": ChatOpenAI(**v1, **by, max_tokens=200, stream_usage=True),
        "responses": ChatOpenAI(**v1, **by, max_tokens=200, use_responses_api=True),
        "messages": ChatAnthropic(base_url=server.address, max_retries=0, **key, max_tokens=200, **by),
        "ollama": ChatOllama(base_url=server.address, num_predict=200, client_kwargs={
            "headers": {"Authorization": f"Bearer {server.key}"}}, **by),
    }


def plain(message):
    """What a stream and a whole answer have in common."""
    usage = message.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], usage
    return message.text, usage["input_tokens"], usage["output_tokens"]


@test
def every_api_says_the_same(server):
    said = {api: plain(chat.invoke(STORY)) for api, chat in chats(server).items()}
    assert len(set(said.values())) == 1 and said["chat"][0], said


@test
def a_stream_adds_up_to_the_whole_answer(server):
    for api, chat in chats(server).items():
        for question in (STORY, SUM):
            chunks = list(chat.stream(question))
            whole = chunks[0]
            for chunk in chunks[1:]:
                whole += chunk
            assert plain(whole) == plain(chat.invoke(question)), api
            assert sum(bool(chunk.text) for chunk in chunks) > 1, api


@test
def a_batch_answers_in_order(server):
    questions = [STORY, SUM, "What is 2 + 3?"]
    for api, chat in chats(server).items():
        assert [answer.text for answer in chat.batch(questions)] == [chat.invoke(one).text for one in questions], api


@test
def an_answer_is_an_object(server):
    for api, chat in chats(server).items():
        methods = ("json_schema", "function_calling")
        for method in methods:
            asked = chat.with_structured_output(Animal, method=method, include_raw=True)
            answer = asked.invoke("Name an animal and count its legs.")
            if api == "ollama" and method == "function_calling":
                # Ollama's API has no word for a call that must be: the model calls if it likes.
                continue
            assert answer["parsing_error"] is None and answer["parsed"].animal in ("fox", "owl"), (api, method, answer)


@test
def a_tool_is_called_and_its_result_read(server):
    question = HumanMessage("How is it in the forest?")
    for api, chat in chats(server).items():
        if api == "ollama":
            continue
        forced = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False, strict=True)
        first = forced.invoke([question])
        (call,) = first.tool_calls
        assert call["name"] == "weather" and call["args"]["place"] in ("forest", "river") and call["id"], api
        chunks = list(forced.stream([question]))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        assert [(one["name"], one["args"]) for one in whole.tool_calls] == [(call["name"], call["args"])], api
        result = weather.invoke(call)
        assert isinstance(result, ToolMessage) and result.tool_call_id == call["id"]
        free = chat.bind_tools([weather])
        second = free.invoke([question, first, result])
        assert second.text or second.tool_calls, api
        assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"], api


@test
def a_tool_may_be_left_alone(server):
    for api, chat in chats(server).items():
        answer = chat.bind_tools([weather]).invoke(SUM)
        assert answer.text or answer.tool_calls, api


@test
def log_probabilities_are_there(server):
    chat = ChatOpenAI(base_url=server.v1, api_key=server.key, model=server.model, temperature=0, max_tokens=6)
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(STORY)
    content = answer.response_metadata["logprobs"]["content"]
    assert len(content) == answer.usage_metadata["output_tokens"] and all(one["logprob"] <= 0 for one in content)


@test
def a_response_is_gone_on_from(server):
    chat = ChatOpenAI(base_url=server.v1, api_key=server.key, model=server.model, temperature=0, max_tokens=60,
                      use_responses_api=True, use_previous_response_id=True)
    first = chat.invoke(STORY)
    assert first.response_metadata["id"].startswith("resp_")
    second = chat.invoke([HumanMessage(STORY), first, HumanMessage("And then?")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]


@test
def text_is_continued(server):
    by = OpenAI(base_url=server.v1, api_key=server.key, model=server.model, temperature=0, max_tokens=12)
    whole = by.invoke("The fox")
    assert whole and "".join(by.stream("The fox")) == whole
    assert by.batch(["The fox", "A lantern"])[0] == whole


@test
def texts_have_vectors(server):
    texts = ["A fox ran through the forest.", "The fox ran in the wood.", "17 + 25 = 42"]
    by = OpenAIEmbeddings(base_url=server.v1, api_key=server.key, model=server.model, check_embedding_ctx_length=False)
    vectors = by.embed_documents(texts)
    assert [round(math.hypot(*vector), 3) for vector in vectors] == [1, 1, 1]
    assert max(abs(a - b) for a, b in zip(by.embed_query(texts[1]), vectors[1])) < 1e-6
    ollama = OllamaEmbeddings(base_url=server.address, model=server.model, client_kwargs={
        "headers": {"Authorization": f"Bearer {server.key}"}})
    assert max(abs(a - b) for a, b in zip(ollama.embed_documents(texts)[2], vectors[2])) < 1e-5


@test
def ids_of_another_vocabulary_are_refused(server):
    # Told to look at lengths, which is its default, LangChain sends tokens of OpenAI's vocabulary.
    by = OpenAIEmbeddings(base_url=server.v1, api_key=server.key, model=server.model)
    raises(openai.BadRequestError, lambda: by.embed_query("A fox ran through the forest."), param="input")


def connect(server):
    return (server,)


if __name__ == "__main__":
    sys.exit(run(connect))
